"""A sweep's file: what is tried, what is refused before anything runs, and the copy in the sweep's folder."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.settings import files as configfile
from tests.command_line import command
from tests.places import ROOT
from tests.tiny import run_locally
from tests.tune.sweeps import GRID, LR, RUN, sweep, written
from tune import files as sweep_files
from tune.blocks import Dimension
from tune.config import SweepConfig, draw
from tune.files import load

SHIPPED = sorted((ROOT / "configs" / "tune").glob("*.yaml"))


def test_a_grid_is_the_product_with_the_last_key_fastest(tmp_path: Path) -> None:
    points = sweep(tmp_path).configurations
    assert points == [{LR: lr, "objective.temperature": t} for lr in (0.001, 0.01, 0.1) for t in (0.1, 0.5)]


def test_points_vary_keys_together_and_what_stands_twice_runs_once(tmp_path: Path) -> None:
    points = [{"train.rounds": 1, "train.local_epochs": 4}, {"train.rounds": 2, "train.local_epochs": 2}]
    made = sweep(tmp_path, points=[*points, points[0]], space={"seed": {"grid": [1, 2]}})
    assert made.configurations == [{**point, "seed": seed} for point in points for seed in (1, 2)]
    assert [made.config_of(p).train.local_epochs for p in made.configurations or []] == [4, 4, 2, 2]


def test_random_points_depend_on_seed_and_number_alone_and_lie_in_the_ranges(tmp_path: Path) -> None:
    space = {
        LR: {"loguniform": [1e-4, 1e-2]},
        "train.local_epochs": {"randint": [1, 3]},
        "model.width": {"uniform": [0.2, 0.4]},
    }
    few, many = (sweep(tmp_path, space=space, search="random", trials=n).configurations or [] for n in (5, 200))
    assert few == many[:5]
    assert many != sweep(tmp_path, "seed=1", space=space, search="random", trials=200).configurations
    assert {p["train.local_epochs"] for p in many} == {1, 2, 3}
    assert all(0.2 <= p["model.width"] <= 0.4 for p in many)
    exponents = np.log10([p[LR] for p in many])
    assert exponents.min() >= -4
    assert exponents.max() <= -2
    assert abs(exponents.mean() + 3) < 0.15  # uniform over the exponents; uniform over the values would give -2.4


def test_a_draw_of_one_key_does_not_depend_on_the_others() -> None:
    one = {"a": {"uniform": [0, 1]}}
    both = {"b": {"choice": ["x", "y"]}, **one}
    first, second = (
        draw(
            SweepConfig(base=Path("x"), space={k: Dimension(**v) for k, v in s.items()}, search="random"),
            3,
        )
        for s in (one, both)
    )
    assert first["a"] == second["a"]


@pytest.mark.parametrize("kind", ["uniform", "loguniform"])
def test_no_digit_is_rounded_out_of_a_range(kind: str) -> None:
    """Ends of more digits than are drawn, and a range between two numbers of so many digits."""
    for low, high in ((0.12345649, 0.12345651), (1.00000049, 2.9999996), (1000001.4, 1000003.6), (0.1, 0.3)):
        dimension = Dimension.model_validate({kind: (low, high)})
        drawn = [dimension.draw(np.random.default_rng(seed)) for seed in range(50)]
        drawn += [dimension.within(value) for value in (low, high, low / 2, 2 * high)]
        assert all(isinstance(value, float) and low <= value <= high for value in drawn)
    assert Dimension(uniform=(0.1, 0.3)).within(0.123456789) == 0.123457
    assert Dimension(choice=(0.123456789, "auto")).within(0.123456789) == 0.123456789
    assert [Dimension(randint=(2, 4)).within(value) for value in (1.2, 2.6, 9)] == [2, 3, 4]


def test_overrides_hold_for_every_trial_and_points_win(tmp_path: Path) -> None:
    whole = sweep(tmp_path, "space={train.rounds: {grid: [2, 3]}}", "overrides={train.batch_size: 8}")
    assert {point["train.rounds"] for point in whole.configurations or ()} == {2, 3}
    assert whole.settings.overrides["train.batch_size"] == 8
    made = sweep(tmp_path, "train.rounds=7", "overrides.train.optimizer.lr=5", "space.seed={grid: [4, 5]}", "trials=3")
    assert made.count == 3
    config = made.config_of({LR: 0.25}, repetition=2, name="trial-00009")
    assert (config.train.rounds, config.train.optimizer.lr, config.seed, config.name) == (7, 0.25, 2, "trial-00009")


def test_a_profile_of_the_base_is_chosen_by_an_override(tmp_path: Path) -> None:
    run = {**RUN, "profiles": {"cpu": {"train": {"rounds": 2}}, "paper": {"train": {"rounds": 9}}}}
    assert sweep(tmp_path, run=run, **GRID).config_of({}).train.rounds == 2
    assert sweep(tmp_path, "profile=paper", run=run, **GRID).config_of({}).train.rounds == 9


def test_a_searched_method_brings_its_own_block_and_objective(tmp_path: Path) -> None:
    made = sweep(tmp_path, space={"method.name": {"grid": ["fedsimclr", "fedbyol"]}})
    assert [made.config_of(point).objective.name for point in made.configurations or []] == ["simclr", "byol"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (["space.train.roundz={grid: [1]}"], "train.roundz: found 1; unknown key"),
        (["space.train.rounds={grid: [1, 0]}"], "train.rounds: found 0"),
        (["space.train.rounds={uniform: [1, 2]}"], "space.train.rounds: found a range or a choice with search=grid"),
        (["space.train.rounds={}"], "exactly one of grid, choice, uniform, loguniform, randint"),
        (["space.train.rounds={randint: [3, 3]}"], "randint: found [3, 3]; must be [lower, higher]"),
        (["space.resources.actors={grid: [1]}"], "set it in overrides"),
        (["space.seed={grid: [1]}", "repeat=3"], "must be one of them"),
        (["metric=accuracy.linear"], "this sweep's runs have accuracy.knn"),
        (["metric=accuracy.knn.nonsense"], "this sweep's runs have accuracy.knn"),
        (["metric=best.knn"], "metric: found 'best.knn'; this sweep's runs have best.knn.value"),
        (["metric=best.knn.round"], "metric: found 'best.knn.round'; this sweep's runs have best.knn.value"),
        (
            ["metric=communication"],
            "metric: found 'communication'; must be communication.up_bytes or communication.down_bytes",
        ),
        (["score=median"], "score: found 'median'"),
        (["metric=speed"], "metric: found 'speed'"),
        (["search=bayes"], "search: found 'bayes'"),
        (["trials=0"], "trials: found 0"),
        (["scheduler=asha", "evaluation.every=0"], "evaluation.every: found 0 with scheduler=asha"),
        (["scheduler=asha", "metric=best.knn.value"], "must be select.PROTOCOL, accuracy.PROTOCOL or features.NAME"),
        (["scheduler=pbt", "search=random", "space.clients.count={choice: [2]}"], "space.clients.count: found with"),
        (["scheduler=pbt", "search=random", "repeat=2"], "repeat: found more than 1"),
        (["triasl=3"], "triasl: found 3; must be a key of the sweep: base, overrides, space, "),
        (["triasl=3"], "imports; did you mean trials?"),
        (["trian.rounds=3"], "trian.rounds: found 3; must be a key of the sweep: base, overrides, space, "),
        (["trian.rounds=3"], "; did you mean train?"),
        (["space.clients.count=[2, 3]"], "must be {grid: [2, 3]}, or one of choice, uniform, loguniform, randint"),
        (["space.clients.count=2"], "must be {grid: [..]}, or one of choice, uniform, loguniform, randint"),
        (["base=nowhere.yaml"], "nowhere.yaml: found no such file"),
    ],
)
def test_refusals_name_the_key_in_one_line(tmp_path: Path, changes: list[str], text: str) -> None:
    with pytest.raises(UserError) as error:
        sweep(tmp_path, *changes).check()
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("keys", "changes", "text"),
    [
        ({"space": [1]}, ["space.seed={grid: [1]}"], r"^space: found"),
        ({"overrides": "foo", **GRID}, ["train.rounds=1"], r"^overrides: found 'foo'; must be a mapping"),
        ({"overrides": {"data": 5}, **GRID}, [], r"^data: found 5"),
        ({"overrides": {"evaluation": 5}, **GRID}, [], r"^evaluation: found 5"),
        ({"overrides": {"evaluation.protocols": 5}, **GRID}, [], r"^evaluation\.protocols: found 5"),
        ({"overrides": {"evaluation.protocols": [{"a": 1}]}, **GRID}, [], r"^evaluation\.protocols"),
        (
            {"space": {"seed": {"randint": [1, 2**63]}}, "search": "random"}, [],
            r"^space\.seed\.randint: found \[1, 9223372036854775808\]; must be numbers of 64 bits$",
        ),
        (
            {"space": {LR: {"uniform": [-1e308, 1e308]}}, "search": "random"}, [],
            r"uniform: found \[-1e\+308, 1e\+308\]; must be at most 1e\+308 apart$",
        ),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_one_line(
    tmp_path: Path, keys: dict[str, Any], changes: list[str], text: str
) -> None:
    with pytest.raises(UserError, match=text) as caught:
        sweep(tmp_path, *changes, **keys).check()
    assert "\n" not in str(caught.value)


def test_a_range_is_checked_at_both_ends_where_an_optimiser_proposes(tmp_path: Path) -> None:
    made = sweep(tmp_path, space={"participation.fraction": {"uniform": [0.5, 1.5]}}, search="optuna", trials=2)
    with pytest.raises(UserError, match=r"participation\.fraction: found 1\.5"):
        made.check()


def test_the_folder_holds_a_sweep_that_is_equal_and_complete_in_itself(tmp_path: Path) -> None:
    made = sweep(tmp_path, "train.rounds=5", "scheduler=asha")
    out = tmp_path / "out"
    out.mkdir()
    sweep_files.dump(made, out)
    (tmp_path / "run.yaml").unlink()
    again = load(out / "sweep.yaml")
    assert again.configurations == made.configurations
    assert again.config_of({LR: 0.5}) == made.config_of({LR: 0.5})
    sweep_files.refuse_changed(again, made, out)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("concurrent=3", None),
        ("trials=4", None),
        ("trials=2", "trials"),
        ("metric=train_images_per_s", "metric"),
        ("seed=1", "seed"),
        ("train.rounds=9", r"overrides\.train\.rounds"),
        ("space.clients.count={randint: [2, 3]}", r"space\.clients\.count"),
    ],
)
def test_a_resumed_sweep_may_grow_but_not_change(tmp_path: Path, change: str, named: str | None) -> None:
    keys: dict[str, Any] = {"space": {LR: {"uniform": [0.01, 0.1]}}, "search": "random"}
    old, new = sweep(tmp_path, "trials=3", **keys), sweep(tmp_path, "trials=3", change, **keys)
    if named is None:
        sweep_files.refuse_changed(old, new, tmp_path)
        return
    with pytest.raises(UserError, match=f"cannot resume with changed {named};"):
        sweep_files.refuse_changed(old, new, tmp_path)


def test_more_points_may_follow_those_that_are_there(tmp_path: Path) -> None:
    """Whose trials keep their numbers."""
    points: list[dict[str, Any]] = [{LR: 0.1}, {LR: 0.2}]
    old, new = sweep(tmp_path, points=points), sweep(tmp_path, points=[*points, {LR: 0.3}])
    sweep_files.refuse_changed(old, new, tmp_path)
    assert (new.configurations or [])[:2] == old.configurations
    for other in (points[:1], points[::-1], [{LR: 0.3}, *points]):
        with pytest.raises(UserError, match="cannot resume with changed points"):
            sweep_files.refuse_changed(old, sweep(tmp_path, points=other), tmp_path)
    keys: dict[str, Any] = {"space": {LR: {"grid": [0.1, 0.2]}}}
    without, first = sweep(tmp_path, **keys), sweep(tmp_path, points=[{"train.batch_size": 8}], **keys)
    with pytest.raises(UserError, match="cannot resume with changed points"):  # each configuration would be another
        sweep_files.refuse_changed(without, first, tmp_path)


def test_a_changed_base_is_a_changed_sweep(tmp_path: Path) -> None:
    old = sweep(tmp_path)
    changed = {**RUN, "train": {"rounds": 4}}
    with pytest.raises(UserError, match="changed base;"):
        sweep_files.refuse_changed(old, load(written(tmp_path, run=changed, **GRID)), tmp_path)


def test_a_runs_configuration_is_no_sweep(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(UserError, match=r"run\.yaml: found the configuration of a run; a sweep is a file with base:"):
        load(tmp_path / "run.yaml")


def test_the_command_refuses_in_one_line_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = command(capsys, "tune", written(tmp_path), "train.roundz=2", "--out", tmp_path / "out")
    assert status == 2
    assert err.startswith("train.roundz: found 2; unknown key")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"space": {LR: {"grid": list(range(1, 3163))}, "seed": {"grid": list(range(3163))}}},
            "space: found a grid of 10001406 configurations; a sweep has at most 10000 trials",
        ),
        (
            {"space": {LR: {"uniform": [0.1, 0.9]}}, "search": "random", "trials": 10**9},
            "trials: found 1000000000; a sweep has at most 10000 trials",
        ),
        ({"space": {LR: {"grid": [0.1]}}, "repeat": 10**9}, "found a grid of 1 configurations with repeat=1000000000"),
    ],
)
def test_more_trials_than_can_be_run_are_refused_at_once(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    """Making them all would take more memory than there is."""
    with pytest.raises(UserError, match=re.escape(said)):
        sweep(tmp_path, **keys)


def test_a_few_of_a_large_grid_are_taken_without_making_it(tmp_path: Path) -> None:
    values = [[0.1 + k / 1e4, 0.1 + k / 1e4] for k in range(1000)]
    keys = ("lr", "weight_decay", "momentum")
    space = {f"train.optimizer.{key}": {"grid": [v for pair in values for v in pair]} for key in keys}
    made = sweep(tmp_path, space=space, trials=3)
    assert made.count == 3
    assert [point["train.optimizer.momentum"] for point in made.configurations or ()] == [v for v, _ in values[:3]]


@pytest.mark.parametrize(
    "out", ["s3://bucket/sweep", "s3-like+x.y://bucket/sweep", "abfs://c@account/x", "file:///tmp/x"]
)
def test_a_sweep_at_a_uri_is_refused_at_once(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    status, _, err = command(capsys, "tune", file, "--out", out)
    assert status == 2
    assert "; a sweep lies in a folder of this machine or of shared storage" in err
    assert sorted(tmp_path.iterdir()) == before


def test_four_sweeps_are_shipped() -> None:
    assert {path.stem for path in SHIPPED} == {
        "communication_rounds",
        "fedfoa_lambda",
        "fedlinked_eta",
        "flesd_temperature",
    }


def test_a_method_that_learns_no_tasks_is_measured_by_none(tmp_path: Path) -> None:
    tasks = ["data.tasks=[[0, 1], [2, 3]]", "method.name=fedfoa", "data.public.source=share", "train.batch_size=64"]
    for kind in ("accuracy", "select"):
        made = sweep(tmp_path, *tasks, f"metric={kind}.task", space={LR: {"grid": [0.1, 0.2]}})
        allowed = {"accuracy": r"accuracy\.knn", "select": "none: "}[kind]
        with pytest.raises(UserError, match=rf"^metric: found '{kind}\.task'; this sweep's runs have {allowed}"):
            made.check()


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_a_shipped_sweep_is_valid_in_every_profile_and_names_its_command(path: Path) -> None:
    base = path.parent / yaml.safe_load(path.read_text())["base"]
    for profile in configfile.read(base)["profiles"]:
        load(path, [f"profile={profile}"]).check()
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(f"rayfed-ssl tune configs/tune/{path.name}" in line for line in header)


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ([], "accuracy.knn"),
        (["evaluation.select={share: 0.2}"], "select.knn"),
        (["evaluation.select.share=0.2", "evaluation.protocols=[linear]"], "select.linear"),
        (["evaluation.select={share: 0.2}", "metric=accuracy.knn"], "accuracy.knn"),
        (["evaluation.protocols=[rank]"], "features.rankme"),
        (["evaluation.protocols=[rank, knn]"], "accuracy.knn"),
        (["evaluation.select={share: 0.2}", "evaluation.protocols=[rank, knn]"], "select.knn"),
        (["data.tasks=[[0, 1], [2, 3]]", "method.name=fedavg_trunk", "data.public.source=share"], "select.task"),
        (
            ["data.tasks=[[0, 1], [2, 3]]", "method.name=fedlinked", "data.public.source=share", "metric=accuracy.knn"],
            "accuracy.knn",
        ),
        (["data.tasks=[[0, 1], [2, 3]]", "method.name=local"], "accuracy.knn"),  # by an objective without labels
        (["data.tasks=[[0, 1], [2, 3]]", "method.name=local", "objective.name=supervised"], "select.task"),
    ],
)
def test_held_out_images_choose_where_there_are_any(tmp_path: Path, changes: list[str], metric: str) -> None:
    made = sweep(tmp_path, *changes, space={LR: {"grid": [0.1, 0.2]}})
    assert made.settings.metric == metric
    made.check()


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ([], "max"),
        (["metric=features.rankme"], "max"),
        (["metric=features.uniformity"], "min"),
        (["metric=communication.up_bytes"], "min"),
        (["metric=features.uniformity", "mode=max"], "max"),
    ],
)
def test_smaller_values_are_better_where_the_metric_says_so(tmp_path: Path, changes: list[str], mode: str) -> None:
    assert sweep(tmp_path, *changes, space={LR: {"grid": [0.1, 0.2]}}).settings.mode == mode


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ([], "mean"),
        (["score=worst"], "worst"),
        (["score=min"], "worst"),  # of accuracies
        (["score=max"], "best"),
        (["score=min", "metric=features.alignment"], "best"),  # of which smaller ones are better
        (["score=max", "metric=features.alignment"], "worst"),
        (["score=min", "metric=features.alignment", "mode=max"], "worst"),
        (["score=mean", "metric=features.alignment"], "mean"),
        (["score=best", "metric=features.alignment"], "best"),
    ],
)
def test_a_score_of_min_or_max_is_read_as_what_it_said(tmp_path: Path, changes: list[str], score: str) -> None:
    assert sweep(tmp_path, *changes, space={LR: {"grid": [0.1, 0.2]}}).settings.score == score


def test_an_older_sweeps_folder_is_resumed(tmp_path: Path) -> None:
    """Its ``sweep.yaml`` says min, the default then."""
    for repeat, metric in itertools.product((1, 3), ("train_images_per_s", "wall_s")):
        made = sweep(tmp_path, f"repeat={repeat}", f"metric={metric}", "score=worst", space={LR: {"grid": [0.1]}})
        sweep_files.dump(made, out := tmp_path / f"{metric}{repeat}")
        found = yaml.safe_load((out / "sweep.yaml").read_text())
        assert found["score"] == "worst"
        (out / "sweep.yaml").write_text(yaml.safe_dump({**found, "score": "min"}))
        if (repeat, metric) == (3, "wall_s"):  # it went by the best of its repeats
            with pytest.raises(UserError, match="cannot resume with changed score;"):
                sweep_files.refuse_changed(load(out / "sweep.yaml"), made, out)
        else:
            sweep_files.refuse_changed(load(out / "sweep.yaml"), made, out)


def test_a_sweep_cannot_choose_by_what_its_runs_do_not_hold_out(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"found 'select\.knn'; this sweep's runs have none: set evaluation\.select\.share"
    ):
        sweep(tmp_path, "metric=select.knn").check()
    chosen = ["metric=select.linear", "evaluation.select={share: 0.1}", "evaluation.metrics=[accuracy, auc]"]
    with pytest.raises(UserError, match=r"found 'select\.linear'; this sweep's runs have select\.knn, select\.knn_auc"):
        sweep(tmp_path, *chosen).check()
    sweep(tmp_path, *chosen, "metric=select.knn_auc", "scheduler=asha").check()
    with pytest.raises(
        UserError, match=r"'features\.rankme'; this sweep's runs have none: name rank in evaluation\.prot"
    ):
        sweep(tmp_path, "metric=features.rankme").check()
    rank = "evaluation.protocols=[rank]"
    with pytest.raises(
        UserError, match=r"this sweep's runs have features\.alignment, features\.uniformity, features\.ran"
    ):
        sweep(tmp_path, rank, "metric=features.angle").check()
    with pytest.raises(UserError, match=r"'accuracy\.knn'; this sweep's runs have none: nothing is evaluated$"):
        sweep(tmp_path, "metric=accuracy.knn", "evaluation.protocols=[]").check()
    sweep(tmp_path, rank, "metric=features.uniformity", "mode=min", "scheduler=asha").check()
    sweep(tmp_path, "metric=best.knn.value").check()
    sweep(tmp_path, "metric=accuracy.knn.1").check()  # a client's own
    sweep(tmp_path, "metric=communication.down_bytes").check()


def test_what_describes_an_encoder_is_what_it_is_described_by(tmp_path: Path) -> None:
    ((_, config),) = sweep(tmp_path, "evaluation.protocols=[rank]", space={LR: {"grid": [0.1]}}).check()
    summary = run_locally(
        config.model_copy(update={"train": config.train.model_copy(update={"rounds": 1})}), tmp_path / "r"
    )
    assert {name for name in summary["features"] if "/" not in name} == set(config.evaluation.describing)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_no_shipped_sweep_chooses_by_test_labels(path: Path) -> None:
    assert load(path).settings.metric.startswith("select.")


def test_communication_rounds_has_the_three_series() -> None:
    path = next(path for path in SHIPPED if path.stem == "communication_rounds")
    pairs = [(p["train.rounds"], p["train.local_epochs"]) for p in load(path).configurations or []]
    assert len(set(pairs)) == len(pairs)
    for series in (lambda t, e: t * e == 20, lambda t, e: e == 5, lambda t, e: t == 2):
        assert sum(series(t, e) for t, e in pairs) >= 4


def test_fedlinked_has_the_thesis_ranges() -> None:
    settings = load(next(path for path in SHIPPED if path.stem == "fedlinked_eta")).settings
    assert {key: tuple(dimension.bounds) for key, dimension in settings.space.items()} == {
        "method.eta": (0.8, 3.0),
        "method.distillation_epochs": (1, 60),
        "train.rounds": (3, 12),
        "train.local_epochs": (1, 20),
        "method.initial_epochs": (1, 40),
        "method.fine_tune_epochs": (1, 20),
        "method.batch_ratio": (0.008, 0.12),
        "train.optimizer.lr": (1e-4, 1e-2),
    }
    assert (settings.repeat, settings.score) == (3, "worst")


@pytest.mark.long
def test_two_etas_of_the_fedlinked_sweep_give_different_encoders(tmp_path: Path) -> None:
    """Adam would be blind to the factor by which eta enters the loss: a few parts in a million."""
    path = next(path for path in SHIPPED if path.stem == "fedlinked_eta")
    small = ["data.name=digits", "data.image_size=16", "data.tasks=[[0, 1], [1, 2]]", "data.task_images=30",
             "clients.count=2", "model.channels=4", "model.representation=8", "model.dropout=0", "model.head_dropout=0",
             "train.local_epochs=1", "train.batch_size=16"]  # fmt: skip
    made = load(path, small)
    epochs = {"method.initial_epochs": 1, "method.distillation_epochs": 2, "method.fine_tune_epochs": 1}
    found = []
    for eta in (0.8, 3.0):
        config = made.config_of({**epochs, "train.rounds": 1, "train.optimizer.lr": 1e-2, "method.eta": eta})
        assert config.train.optimizer.name == "sgd"
        run_locally(config, tmp_path / str(eta))
        files = sorted((tmp_path / str(eta) / "encoder").glob("*.safetensors"))
        found.append(np.concatenate([a.ravel() for f in files for _, a in sorted(load_file(f).items())]).astype(float))
    assert np.linalg.norm(found[0] - found[1]) > 1e-3 * np.linalg.norm(found[0])
