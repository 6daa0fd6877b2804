"""The Python API: the same runs as on the command line, as objects."""

from __future__ import annotations

import ast
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import rayfed_ssl
from rayfed_ssl.api.call_arguments import as_changes, asked
from rayfed_ssl.api.python_messages import in_python_words, python_words
from rayfed_ssl.config import build
from rayfed_ssl.data.decoding.decode import decode
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.pixels.store import Undecodable
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.models import load_exported
from rayfed_ssl.settings.files import ConfigError, parse_overrides
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.terminal.progress import Reporter
from rayfed_ssl.terminal.signals import interruptions
from tests.places import ROOT
from tests.tiny import booked, encoders, measured, run_locally

CONFIG: dict[str, Any] = {
    "method": {"name": "fedsimclr"},
    "data": {"name": "digits", "image_size": 8, "limit": 60, "test_limit": 30},
    "clients.count": 3,
    "model": {"width": 0.25},
    "augment": {"preset": "digits"},
    "train": {"rounds": 2, "batch_size": 16},
    "evaluation.protocols": ["knn"],
    "checkpoint.every": 1,
    "resources.device": "cpu",
    "figures": False,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> rayfed_ssl.Run:
    folder = tmp_path_factory.mktemp("api") / "run"
    return rayfed_ssl.run(CONFIG, out=folder, executor="local", progress=False)


# -- the package -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["rayfed_ssl", "rayfed_ssl.cli"])
def test_importing_the_package_or_the_command_line_imports_neither_torch_nor_pydantic(module: str) -> None:
    code = f"import {module}, sys; print({{'torch', 'pydantic', 'numpy'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"


def test_the_stub_and_the_package_name_the_same() -> None:
    stub = ast.parse((ROOT / "rayfed_ssl/__init__.pyi").read_text())
    told = {node.names[0].name: node.module for node in stub.body if isinstance(node, ast.ImportFrom)}
    assert told == rayfed_ssl._HOMES
    for name in told:
        assert getattr(rayfed_ssl, name).__name__ == name
        assert name in dir(rayfed_ssl)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rayfed_ssl.nothing


# -- what is asked -----------------------------------------------------------------------------------------------------


def test_overrides_are_dotted_keys_with_double_underscores_or_mappings(tmp_path: Path) -> None:
    expected = build(
        {"method": {"name": "fedsimclr"}}, {"train.rounds": 7, "data.partition.name": "dirichlet", "seed": 2}, origin=""
    )
    partition = {"name": "dirichlet"}
    base = {"method": {"name": "fedsimclr"}}
    assert asked(base, {"train__rounds": np.int64(7), "data__partition": partition, "seed": 2}) == expected
    assert asked(base, {"train": {"rounds": 7}, "data": {"partition": partition}, "seed": 2}) == expected
    assert asked(expected, {}) == expected
    assert asked(expected, {"train__rounds": 8}).train.rounds == 8
    (tmp_path / "some run.yaml").write_text("method: {name: fedsimclr}\n")
    of_file = asked(tmp_path / "some run.yaml", {"train__rounds": 7, "data__partition": partition, "seed": 2})
    assert of_file == expected.model_copy(update={"name": "some-run"})
    assert asked({"method": {"name": "fedsc"}}, {"method__name": "fedbyol"}).objective.name == "byol"
    assert asked({"method": {"name": "fedsc"}}, {"method": {"name": "fedbyol"}}).objective.name == "byol"


def test_overrides_come_through_the_command_lines_form_as_they_are() -> None:
    """``compare``, ``evaluate`` and ``leak`` pass them on as ``key=value``; a letter beyond 16 bits has two halves."""
    given = {"data__path": Path("/data/\N{GRINNING FACE} \N{LATIN SMALL LETTER E WITH ACUTE}: #1"), "train__rounds": 3}
    assert parse_overrides(as_changes(given)) == {"data.path": str(given["data__path"]), "train.rounds": 3}
    assert parse_overrides(as_changes({"linear__epochs": 2}, "evaluation")) == {"evaluation.linear.epochs": 2}


def test_mistakes_are_one_line_each_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rayfed_ssl.UserError) as refused:
        rayfed_ssl.run(CONFIG, executor="local", train__round=3, clients__count=0)
    lines = str(refused.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["clients.count", "train.round"]
    with pytest.raises(rayfed_ssl.UserError, match="executor: found 'slurm'; must be one of ray, local"):
        rayfed_ssl.run(CONFIG, executor="slurm")
    with pytest.raises(rayfed_ssl.UserError, match=r"nowhere.yaml: found no such file"):
        rayfed_ssl.run("nowhere.yaml", executor="local")
    with pytest.raises(rayfed_ssl.UserError, match=r"empty: found no such folder; must be a run folder"):
        rayfed_ssl.load("empty")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("config", [None, 3, ["tiny.yaml"]])
def test_what_is_no_configuration_is_refused(config: Any) -> None:
    allowed = "the path of a YAML file, a mapping with the keys of one, or the config of a run"
    with pytest.raises(rayfed_ssl.UserError) as error:
        rayfed_ssl.run(config)
    assert str(error.value) == f"config: found {config!r}; must be {allowed}"
    with pytest.raises(rayfed_ssl.UserError, match=r"^load: found .*; must be the path of a run folder, or a URI$"):
        rayfed_ssl.load(config)
    with pytest.raises(rayfed_ssl.UserError, match=r"^compare: found .*; must be methods with base, one file of "):
        rayfed_ssl.compare("fedsimclr", config, base="tiny.yaml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"out": ""}, "out: found ''; must be a folder, or a URI that pyarrow writes to"),
        ({"out": 3}, "out: found 3; must be a folder, or a URI that pyarrow writes to"),
        ({"resume": "no"}, "resume: found 'no'; must be True or False"),
        ({"on_progress": 3}, "on_progress: found 3; must be a function, or None"),
    ],
)
def test_what_is_no_such_argument_of_run_is_refused(
    given: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rayfed_ssl.UserError) as error:
        rayfed_ssl.run(CONFIG, executor="local", **given)
    assert str(error.value) == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base": {"seed": 1}}, "base: found {'seed': 1}; must be the path of a YAML file"),
        ({"base": "tiny.yaml", "seeds": "2"}, "seeds: found '2'; must be a whole number"),
        ({"base": "tiny.yaml", "out": 4}, "out: found 4; must be a folder"),
        ({"base": "tiny.yaml", "skip_unfit": 1}, "skip_unfit: found 1; must be True or False"),
    ],
)
def test_what_is_no_such_argument_of_compare_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(rayfed_ssl.UserError) as error:
        rayfed_ssl.compare("fedsimclr", "fedprox", **given)
    assert str(error.value) == message


def test_what_is_no_such_argument_of_a_finished_run_is_refused(finished: rayfed_ssl.Run) -> None:
    for wrong, given, message in (
        (["knn"], {}, "protocols: found ['knn']; must be names of protocols, each an argument of its own"),
        ("knn", {"data": 3}, "data: found 3; must be a folder, a file, hub:OWNER/NAME, or a mapping of keys"),
        ("knn", {"data": ""}, "data: found ''; must be a folder, a file, hub:OWNER/NAME, or a mapping of keys"),
        ("knn", {"exclude_trained": "yes"}, "exclude_trained: found 'yes'; must be True or False"),
    ):
        with pytest.raises(rayfed_ssl.UserError) as error:
            finished.evaluate(wrong, **given)  # type: ignore[arg-type]
        assert str(error.value) == message
    with pytest.raises(rayfed_ssl.UserError, match=r"^rounds: found '9'; must be a whole number$"):
        finished.resume("9")  # type: ignore[arg-type]


def test_a_mistake_names_arguments_not_options(finished: rayfed_ssl.Run) -> None:
    with pytest.raises(rayfed_ssl.UserError) as refused:
        rayfed_ssl.run(CONFIG, out=finished.folder, executor="local")
    assert str(refused.value).startswith("out: ")
    assert "add resume=True to continue it" in str(refused.value)
    assert "--" not in str(refused.value)
    with pytest.raises(rayfed_ssl.UserError, match=r"train.rounds: found 1; .* allowed with resume=True: 2 or more"):
        finished.resume(1, executor="local")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("--out: found x; add --resume", "out: found x; add resume=True"),
        ("a\n--client: none", "a\nclient: none"),
        ("give `--data x` or (--round 3), '--out'", "give `data x` or (round 3), 'out'"),
        ("--to: found 'x'; add --overwrite", "to: found 'x'; add overwrite=True"),
        ("--to hub-folder: needs more", "to='hub-folder': needs more"),
        ("--exclude-trained: found no --data", "exclude_trained=True: found no data"),
        ("/data/--out-x/--out: found no file", "/data/--out-x/--out: found no file"),
        ("--out-x and --outer, my--out", "--out-x and --outer, my--out"),
    ],
)
def test_only_options_become_arguments(said: str, told: str) -> None:
    assert in_python_words(said) == told


def test_a_mistake_keeps_its_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^train.round: "):
        rayfed_ssl.run(CONFIG, executor="local", train__round=3)
    with pytest.raises(Undecodable, match=r"^2 images of --out-x; out says where$") as caught, python_words():
        raise Undecodable("2 images of --out-x; --out says where")
    assert isinstance(caught.value, rayfed_ssl.UserError)


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_a_run_is_the_one_of_the_command_line(finished: rayfed_ssl.Run, tmp_path: Path) -> None:
    run_locally(asked(CONFIG, {}), tmp_path / "other")
    assert encoders(finished.folder) == encoders(tmp_path / "other")
    assert measured(finished.folder) == measured(tmp_path / "other")
    assert booked(finished.folder) == booked(tmp_path / "other")


def test_a_run_gives_what_its_folder_holds(finished: rayfed_ssl.Run) -> None:
    for one in (finished, rayfed_ssl.load(finished.folder)):
        assert one.config == asked(CONFIG, {})
        assert one.summary == json.loads((finished.folder / "summary.json").read_text())
        assert one.status == "complete"
        assert one.metrics.equals(pq.read_table(finished.folder / "metrics.parquet").cast(one.metrics.schema))
        sent = one.communication
        assert sum(sent["bytes"].to_pylist()) == sum(one.summary["communication"].values())
        assert repr(one).endswith(f"fedsimclr, complete, 2 of 2 rounds, knn {one.summary['accuracy']['knn']:.3f})")


def test_a_run_that_goes_on_is_shown_as_it_is_now(tmp_path: Path) -> None:
    run = rayfed_ssl.run(CONFIG, out=tmp_path / "run", executor="local", progress=False, train__rounds=1)
    watched = rayfed_ssl.load(tmp_path / "run")
    for one in (run, watched):
        assert (one.status, one.summary["rounds"], one.config.train.rounds) == ("complete", 1, 1)
        assert max(one.metrics["round"].to_pylist()) == max(one.communication["round"].to_pylist()) == 1
    longer = run.resume(rounds=3, executor="local", progress=False)
    for one in (run, watched):
        assert "complete, 3 of 3 rounds" in str(one)
        assert (str(one), one.summary, one.config) == (str(longer), longer.summary, longer.config)
        assert (one.metrics, one.communication) == (longer.metrics, longer.communication)
    (tmp_path / "run/summary.json").unlink()  # as it goes where the run is extended
    assert run.status == "unfinished"
    assert str(run).endswith("unfinished, 3 rounds wanted)")
    with pytest.raises(rayfed_ssl.UserError, match="the run has not ended"):
        _ = run.summary


def test_a_run_that_diverges_returns_and_says_so(tmp_path: Path) -> None:
    run = rayfed_ssl.run(CONFIG, out=tmp_path / "run", executor="local", progress=False, train__optimizer__lr=1e30)
    assert (run.status, run.summary["rounds"], run.summary["diverged"]["round"]) == ("diverged", 0, 1)
    assert "fedsimclr, diverged, 0 of 2 rounds" in str(run)
    with pytest.raises(rayfed_ssl.UserError, match=r"found no encoder in .*; the run has not finished, or it diverged"):
        run.encoder()
    assert run.resume(executor="local", progress=False).status == "diverged"


def test_torchs_threads_stay_the_callers(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    rayfed_ssl.run(
        CONFIG, out=tmp_path / "run", executor="local", progress=False, train__rounds=1, evaluation__protocols=[]
    )
    assert torch.get_num_threads() == 2


def test_evaluate_again(finished: rayfed_ssl.Run) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)  # not the run's
    try:
        finished.evaluate("knn")
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert finished.evaluate()["accuracy"] == {"global": finished.summary["accuracy"]}
    found = finished.evaluate("fewshot", fewshot__draws=3)
    assert found["evaluation"]["fewshot"]["draws"] == 3
    with pytest.raises(rayfed_ssl.UserError, match="protocols: found 'knnn'; must be one of"):
        finished.evaluate("knnn")


@pytest.mark.long
def test_evaluate_on_other_images(finished: rayfed_ssl.Run, tmp_path: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for k in range(60):
        folder = tmp_path / "others" / ("test" if k % 5 == 0 else "train") / str(digits.target[k])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.round(digits.images[k] * (255 / 16)).astype(np.uint8)).save(folder / f"{k}.png")
    before = finished.evaluate("knn")
    block = {"name": "imagefolder", "path": tmp_path / "others"}
    by_form = [
        finished.evaluate("knn", data=data, knn__k=5) for data in (tmp_path / "others", str(block["path"]), block)
    ]
    title = f"imagefolder:{tmp_path / 'others'}"
    whole = reevaluate(finished.folder, ["knn"], ["evaluation.knn.k=5"], data=title)
    for found in by_form:
        assert found == whole["other data"][title]
        assert found["images"]["train"] == 48
        assert found["accuracy"].keys() == {"global"}
    assert finished.evaluate("knn") == whole  # of the run's own images: all that is known
    assert whole["accuracy"] == before["accuracy"]
    finished.evaluate("knn", data="digits")
    assert finished.evaluate("knn", data=title, knn__k=5) == by_form[0]  # not the data set that was measured before
    for data in ("nowhere", tmp_path / "nowhere"):
        with pytest.raises(rayfed_ssl.UserError, match=r"^data: found '.*nowhere', which does not exist"):
            finished.evaluate(data=data)
    with pytest.raises(rayfed_ssl.UserError, match=r"^data\.pth: found 'x'; unknown key"):
        finished.evaluate(data={"name": "imagefolder", "pth": "x"})


# -- the encoder -------------------------------------------------------------------------------------------------------


def test_the_encoder_sees_images_as_the_run_did(finished: rayfed_ssl.Run) -> None:
    from sklearn.datasets import load_digits

    encoder = finished.encoder()
    assert isinstance(encoder, torch.nn.Module)
    assert not encoder.training
    seen = load_federation(finished.config).dataset.test.pixels[:5]  # (5, 8, 8, 3) uint8
    raw = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
    rows = [int(np.flatnonzero((raw == image[..., 0]).all((1, 2)))[0]) for image in seen]
    images = encoder.transform(raw[rows][..., None])
    recipe = finished.config.augment.recipe()
    mean, std = (np.array(of, np.float32).reshape(3, 1, 1) for of in (recipe.mean, recipe.std))
    expected = (seen.transpose(0, 3, 1, 2).astype(np.float32) / 255 - mean) / std
    torch.testing.assert_close(images, torch.from_numpy(expected), atol=1e-6, rtol=1e-6)
    with torch.inference_mode():
        features = encoder(images)
        torch.testing.assert_close(features, load_exported(finished.folder)(images))
    assert features.shape == (5, encoder.dim)


def test_an_image_may_be_pil_an_array_or_a_path(finished: rayfed_ssl.Run, tmp_path: Path) -> None:
    transform = finished.encoder().transform
    pixels = np.random.default_rng(0).integers(0, 256, (20, 12, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    expected = decode(tmp_path / "image.png", ImageForm(8)).pixels  # the central square, at the run's size
    one = transform(pixels)
    recipe = finished.config.augment.recipe()
    mean, std = (torch.tensor(of).reshape(3, 1, 1) for of in (recipe.mean, recipe.std))
    torch.testing.assert_close(one * std + mean, torch.from_numpy(expected.transpose(2, 0, 1).copy()) / 255)
    image = Image.fromarray(pixels)
    for same in (image, tmp_path / "image.png", str(tmp_path / "image.png"), image.convert("RGBA")):
        torch.testing.assert_close(transform(same), one, atol=0, rtol=0)
    assert transform([image, pixels]).shape == (2, 3, 8, 8)
    grey = image.convert("L")
    torch.testing.assert_close(transform(grey), transform(np.asarray(grey)), atol=0, rtol=0)
    torch.testing.assert_close(transform(grey), transform(grey.convert("RGB")), atol=0, rtol=0)
    torch.testing.assert_close(pickle.loads(pickle.dumps(transform))(image), one, atol=0, rtol=0)


@pytest.mark.usefixtures("only_svg")
def test_a_run_writes_its_report(finished: rayfed_ssl.Run) -> None:
    page = finished.report(images=False)
    assert page == finished.folder / "report.html"
    assert f"{finished.summary['accuracy']['knn']:.3f}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("wrong", [np.zeros((8, 8, 3)), np.zeros((8, 8, 4, 4, 4)), [None], ["missing.png"]])
def test_what_is_no_image_is_refused(finished: rayfed_ssl.Run, wrong: Any) -> None:
    with pytest.raises(rayfed_ssl.UserError, match=r"image 0( \(missing\.png\))?: (cannot be decoded|found )"):
        finished.encoder().transform(wrong)


def test_clients_encoders(tmp_path: Path) -> None:
    alone = {"method__name": "local", "train__rounds": 1, "evaluation__protocols": []}
    run = rayfed_ssl.run(CONFIG, out=tmp_path / "run", executor="local", progress=False, **alone)
    values = run.encoder(client=1).encoder.state_dict()
    expected = load_exported(run.folder, "client-00001").state_dict()
    assert all(torch.equal(values[name], expected[name]) for name in expected)
    with pytest.raises(rayfed_ssl.UserError, match=r"^client: not given, .* allowed: 0, 1, 2$"):
        run.encoder()


# -- stopping and going on ---------------------------------------------------------------------------------------------


def test_ctrl_c_stops_after_the_round_and_resume_goes_on(
    finished: rayfed_ssl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:  # the signal comes while the second round is running
        shown = Reporter.line

        def line(self: Reporter, text: str) -> None:
            shown(self, text)
            if text.startswith("round 1/2"):
                signal.raise_signal(signal.SIGINT)

        patch.setattr(Reporter, "line", line)
        stopped = rayfed_ssl.run(CONFIG, out=tmp_path / "run", executor="local")
    assert (stopped.status, stopped.summary["rounds"]) == ("stopped", 1)
    assert "stopping after this round, with a checkpoint" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    over = stopped.resume(executor="local", progress=False)
    assert capsys.readouterr().out == ""
    assert over.status == "complete"
    assert encoders(over.folder) == encoders(finished.folder)
    longer = over.resume(3, executor="local", progress=False)
    assert (longer.config.train.rounds, longer.summary["rounds"]) == (3, 3)


def test_who_hears_of_progress_may_stop_the_run_and_resume_goes_on(
    tmp_path: Path, finished: rayfed_ssl.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[rayfed_ssl.Progress] = []

    def after_the_first_evaluation(progress: rayfed_ssl.Progress) -> bool:
        heard.append(progress)
        return progress.round == 1 and "eval/knn" in progress.values

    run = rayfed_ssl.run(CONFIG, out=tmp_path / "run", executor="local", on_progress=after_the_first_evaluation)
    assert (run.status, run.summary["rounds"]) == ("stopped", 1)
    assert capsys.readouterr().out.count("on_progress asks for a stop: after this round, with a checkpoint") == 1
    (round,) = (progress for progress in heard if "system/round_s" in progress.values)
    assert (round.round, round.rounds, round.line) == (1, 2, "round 1/2")
    metrics = run.metrics.to_pylist()
    assert {("train/loss", round.values["train/loss"])} == {
        (row["tag"], row["value"]) for row in metrics if row["tag"] == "train/loss"
    }
    heard.clear()
    over = run.resume(executor="local", progress=False, on_progress=heard.append)  # gives None
    assert [progress.round for progress in heard if "system/round_s" in progress.values] == [2]
    assert over.status == "complete"
    assert encoders(over.folder) == encoders(finished.folder)


def fail_in_round_2(progress: rayfed_ssl.Progress) -> None:
    if progress.round == 2:
        raise LookupError("no such page")


def test_what_it_raises_ends_the_run_and_leaves_what_can_be_resumed(tmp_path: Path, finished: rayfed_ssl.Run) -> None:
    with pytest.raises(LookupError, match="no such page"):
        rayfed_ssl.run(CONFIG, out=tmp_path / "run", executor="local", progress=False, on_progress=fail_in_round_2)
    assert rayfed_ssl.load(tmp_path / "run").status == "unfinished"
    over = rayfed_ssl.run(CONFIG, out=tmp_path / "run", executor="local", progress=False, resume=True)
    assert encoders(over.folder) == encoders(finished.folder)


def test_a_second_ctrl_c_is_an_interrupt_and_other_threads_hear_none() -> None:
    with interruptions(lambda line: None) as stopping:
        signal.raise_signal(signal.SIGINT)
        assert stopping()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    heard: list[bool] = []

    def elsewhere() -> None:
        with interruptions(lambda line: None) as stopping:
            heard.append(stopping())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert heard == [False]


def test_code_that_a_run_brings_is_run_only_if_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text((ROOT / "examples/koleo.py").read_text())
    short = {"train__rounds": 1, "evaluation__protocols": [], "plugins": [{"name": "koleo"}]}
    run = rayfed_ssl.run(CONFIG, out="run", executor="local", progress=False, imports=["mine.py"], **short)
    assert [plugin.name for plugin in run.config.plugins] == ["koleo"]
    with pytest.raises(rayfed_ssl.UserError, match="this run brings code of its own, which trust_imports=True runs"):
        rayfed_ssl.load("run")
    assert rayfed_ssl.load("run", trust_imports=True).config == run.config


# -- comparisons, Ray, scripts -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_compare_runs_methods_and_reads_runs(tmp_path: Path, finished: rayfed_ssl.Run) -> None:
    from rayfed_ssl.settings.files import dump

    dump(finished.config, tmp_path / "base.yaml")
    asks = {"base": tmp_path / "base.yaml", "out": tmp_path / "fight", "executor": "local", "progress": False}
    found = rayfed_ssl.compare("fedsimclr", "fedprox", **asks, train__rounds=1, resume=True)
    assert found.table["row"].to_pylist()[:2] == ["fedsimclr", "fedprox"]
    assert found.table.num_rows == 4  # and the untrained encoder and raw pixels
    mean = found.table["knn.mean"].to_pylist()[1]
    assert f"{mean:.3f}" in str(found)
    assert f"{mean:.3f}" in found._repr_markdown_()
    assert (found.folder, found.left, found.failed) == (tmp_path / "fight", 0, 0)
    runs = [rayfed_ssl.load(path) for path in sorted((tmp_path / "fight").glob("trial-*"))]
    assert [run.config.method.name for run in runs] == ["fedsimclr", "fedprox"]
    again = rayfed_ssl.compare(*runs)
    assert again.table["knn.mean"].to_pylist() == found.table["knn.mean"].to_pylist()
    with pytest.raises(rayfed_ssl.UserError, match="fedsimclr is a method, and there is no base"):
        rayfed_ssl.compare("fedsimclr")


def test_who_hears_of_a_comparison_may_stop_it_and_resume_runs_what_is_left(
    tmp_path: Path, finished: rayfed_ssl.Run
) -> None:
    from rayfed_ssl.settings.files import dump

    dump(finished.config, tmp_path / "base.yaml")
    asks: dict[str, Any] = {"base": tmp_path / "base.yaml", "out": tmp_path / "fight", "executor": "local"}
    asks |= {"progress": False, "train__rounds": 1}
    heard: list[rayfed_ssl.Progress] = []

    def first_run(progress: rayfed_ssl.Progress) -> bool:
        heard.append(progress)
        return "eval/knn" in progress.values

    found = rayfed_ssl.compare("fedsimclr", "fedprox", **asks, on_progress=first_run)
    assert (found.left, [(p.round, p.rounds, bool(p.values)) for p in heard]) == (1, [(0, 2, False), (1, 2, True)])
    assert heard[-1].line.startswith("trial-00000  complete")
    assert heard[-1].values["eval/knn"] == found.table["knn.mean"].to_pylist()[0]

    def fail(progress: rayfed_ssl.Progress) -> None:
        heard.append(progress)
        raise LookupError("no such page")

    heard.clear()
    with pytest.raises(LookupError, match="no such page"):
        rayfed_ssl.compare("fedsimclr", "fedprox", **asks, resume=True, on_progress=fail)
    assert len(heard) == 1  # before the second run began
    whole = rayfed_ssl.compare("fedsimclr", "fedprox", **asks, resume=True, on_progress=heard.append)
    assert (whole.left, heard[-1].round, heard[-1].rounds) == (0, 2, 2)
    heard.clear()
    rayfed_ssl.compare(tmp_path / "fight", on_progress=heard.append)
    assert heard == []  # nothing is run


@pytest.mark.long
def test_compare_chooses_by_a_measure_without_test_labels(tmp_path: Path, finished: rayfed_ssl.Run) -> None:
    """``select`` is the command's ``--select``, for runs that are made and for runs that are read."""
    from rayfed_ssl.settings.files import dump

    dump(finished.config, tmp_path / "base.yaml")
    asks = {"base": tmp_path / "base.yaml", "out": tmp_path / "fight", "executor": "local", "progress": False}
    changes = {"train__rounds": 1, "evaluation__protocols": ["knn", "rank"]}
    with pytest.raises(rayfed_ssl.UserError, match=r"^select: found 'knn'; allowed: .*rankme.*select\.PROTOCOL"):
        rayfed_ssl.compare("fedsimclr", "fedprox", **asks, **changes, select="knn")
    with pytest.raises(rayfed_ssl.UserError, match=r"^select: found "):
        rayfed_ssl.compare("fedsimclr", "fedprox", **asks, train__rounds=1, select="rankme")
    assert not (tmp_path / "fight").exists()
    found = rayfed_ssl.compare("fedsimclr", "fedprox", **asks, **changes, select="rankme")
    ranks = dict(zip(found.table["row"].to_pylist(), found.table["features/rankme.mean"].to_pylist(), strict=True))
    best = max(("fedsimclr", "fedprox"), key=lambda name: ranks[name])
    assert found.selection is not None
    assert (found.selection.row, found.selection.mean) == (best, pytest.approx(ranks[best]))
    assert found.notes[-1] == found.selection.sentence
    assert found.selection.sentence in str(found)
    assert found.selection.sentence in found._repr_markdown_()
    kept = json.loads((tmp_path / "fight" / "comparison.json").read_text())
    assert found.selection.sentence in json.dumps(kept)
    assert rayfed_ssl.compare(tmp_path / "fight").selection is None
    again = rayfed_ssl.compare(*sorted((tmp_path / "fight").glob("trial-*")), select="rankme")
    assert again.selection == found.selection


@pytest.mark.long
def test_on_ray_it_is_the_same_run(finished: rayfed_ssl.Run, tmp_path: Path, ray_session: ModuleType) -> None:
    on_ray = rayfed_ssl.run(finished.config, out=tmp_path / "run", progress=False, resources__actors=1)
    assert encoders(on_ray.folder) == encoders(finished.folder)
    assert measured(on_ray.folder) == measured(finished.folder)


@pytest.mark.long
def test_on_ray_progress_is_heard_in_this_process(
    finished: rayfed_ssl.Run, tmp_path: Path, ray_session: ModuleType
) -> None:
    pids: set[int] = set()

    def first_round(progress: rayfed_ssl.Progress) -> bool:
        pids.add(os.getpid())
        return "system/round_s" in progress.values

    asks: dict[str, Any] = {"out": tmp_path / "run", "progress": False, "resources__actors": 1}
    run = rayfed_ssl.run(CONFIG, **asks, train__rounds=500, on_progress=first_round)
    assert run.status == "stopped"
    assert 1 <= run.summary["rounds"] < 500
    assert pids == {os.getpid()}
    asks["out"] = tmp_path / "failing"
    with pytest.raises(LookupError, match="no such page"):
        rayfed_ssl.run(CONFIG, **asks, on_progress=fail_in_round_2)
    over = rayfed_ssl.run(CONFIG, **asks, resume=True)
    assert encoders(over.folder) == encoders(finished.folder)


@pytest.mark.long
def test_on_ray_a_comparison_is_heard_and_stopped_in_this_process(
    finished: rayfed_ssl.Run, tmp_path: Path, ray_session: ModuleType
) -> None:
    from rayfed_ssl.settings.files import dump

    dump(finished.config, tmp_path / "base.yaml")
    heard: list[rayfed_ssl.Progress] = []

    def first_run(progress: rayfed_ssl.Progress) -> bool:
        heard.append(progress)
        return bool(progress.values)

    asks: dict[str, Any] = {"base": tmp_path / "base.yaml", "out": tmp_path / "fight", "progress": False}
    found = rayfed_ssl.compare(
        "fedsimclr", "fedprox", "local", **asks, on_progress=first_run, seeds=3, train__rounds=1, resources__actors=1
    )
    ended = [progress for progress in heard if "eval/knn" in progress.values]
    assert ended[0].rounds == 9
    over = [progress.round for progress in ended]  # those stopped under way have values, too, and are not over
    assert over[0] == 1
    assert over == sorted(over)
    assert set(range(1, over[-1] + 1)) == set(over)
    assert heard[-1].round == 9 - found.left
    assert 0 < found.left < 9


SCRIPT = """
import rayfed_ssl

run = rayfed_ssl.run({config!r}, out="run", resources__actors=1)
print("over:", run.status)
"""


@pytest.mark.cluster
def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(config=CONFIG))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("over: complete") == 1
    assert done.stdout.count("round 2/2") == 1
