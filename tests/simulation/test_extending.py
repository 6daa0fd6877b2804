"""A finished run made longer: the same bits as a run of that many rounds, or one line that says why not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rayfed_ssl import load as load_run
from rayfed_ssl.api.execution import preflight
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import load
from rayfed_ssl.records.one_run import read_run
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.simulation.resuming import forget_end
from tests.tiny import TASKS, booked, encoders, measured, run_locally, tiny

OWN = {
    "fedsimclr": {"evaluation__every": 1},
    "fedema": {"checkpoint__every": 0},  # clients keep state; the only checkpoint is the one at the end
    "fedsc": {"method__alpha": "share", "method__share_every": 2},
}


@pytest.mark.parametrize("method", OWN)
def test_an_extended_run_equals_one_that_was_as_long_from_the_start(method: str, tmp_path: Path) -> None:
    long, short = tiny(method, train__rounds=3, **OWN[method]), tiny(method, train__rounds=2, **OWN[method])
    run_locally(long, tmp_path / "long")
    assert run_locally(short, tmp_path / "short")["rounds"] == 2
    lines: list[str] = []
    summary = run_locally(long, tmp_path / "short", resume=True, report=lambda p: lines.append(p.line))
    assert "extended from 2 to 3 rounds" in lines
    assert not any(line.startswith(("round 1/", "round 2/")) for line in lines)
    assert (summary["status"], summary["rounds"]) == ("complete", 3)
    assert encoders(tmp_path / "short") == encoders(tmp_path / "long")
    assert measured(tmp_path / "short") == measured(tmp_path / "long")
    assert booked(tmp_path / "short") == booked(tmp_path / "long")
    assert load(tmp_path / "short/config.yaml") == load(tmp_path / "long/config.yaml")


def test_a_run_that_goes_on_has_no_encoder_of_where_it_had_ended(tmp_path: Path) -> None:
    """Killed on its way, it would give that encoder as its own; and its evaluations stood beside later ones."""
    run = tmp_path / "run"
    run_locally(tiny("fedsimclr", train__rounds=1), run)
    reevaluate(run, ["knn"])
    evaluated = (run / "evaluation.json").read_bytes()
    lines: list[str] = []

    def killed(progress: Progress) -> None:
        lines.append(progress.line)
        if progress.round == 2 and progress.finishes_a_round:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_locally(tiny("fedsimclr", train__rounds=3), run, resume=True, report=killed)
    assert "evaluation.json: now evaluation_round_1.json, as it is of encoders that are trained further" in lines
    assert not (run / "evaluation.json").exists()
    assert (run / "evaluation_round_1.json").read_bytes() == evaluated
    with pytest.raises(UserError, match=r"the run has not finished, and its checkpoint of round 1 is intact"):
        load_run(run).encoder()
    run_locally(tiny("fedsimclr", train__rounds=3), run, resume=True)
    assert load_run(run).encoder().dim > 0


def test_what_was_measured_of_one_round_twice_is_kept_twice(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"rounds": 5}')
    for text in ("first", "second"):
        (tmp_path / "evaluation.json").write_text(text)
        forget_end(tmp_path)
        (tmp_path / "summary.json").write_text('{"rounds": 5}')
    kept = [(tmp_path / f"evaluation_round_5{end}.json").read_text() for end in ("", "_2")]
    assert kept == ["first", "second"]


def test_a_run_that_begins_anew_names_no_image_that_an_earlier_attempt_left_out(tmp_path: Path) -> None:
    config = tiny("fedsimclr", train__rounds=1, checkpoint__every=0)
    run_locally(config, tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()  # as after a kill before the first checkpoint
    shutil.rmtree(tmp_path / "run/checkpoints")
    (tmp_path / "run/skipped_images.txt").write_text("broken.png\n")
    run_locally(config, tmp_path / "run", resume=True)
    assert not (tmp_path / "run/skipped_images.txt").exists()


@pytest.mark.long
def test_what_the_shorter_run_was_evaluated_at_in_the_end_is_kept(tmp_path: Path) -> None:
    settings = {"evaluation__every": 3, "checkpoint__every": 0}
    run_locally(tiny("fedsimclr", train__rounds=3, **settings), tmp_path / "long")
    run_locally(tiny("fedsimclr", train__rounds=2, **settings), tmp_path / "short")
    ended = {key: value for key, value in measured(tmp_path / "short").items() if key[2].startswith("eval/")}
    run_locally(tiny("fedsimclr", train__rounds=3, **settings), tmp_path / "short", resume=True)
    of_both, of_long = measured(tmp_path / "short"), measured(tmp_path / "long")
    assert of_both.items() >= of_long.items()
    assert of_both.keys() - of_long.keys() == {key for key in ended if key[0] == 2}
    assert all(of_both[key] == value for key, value in ended.items())


def test_what_is_measured_of_an_encoder_that_a_run_trains_further_is_not_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_locally(tiny("fedsimclr", train__rounds=1), run)

    def extend() -> None:  # while it is measured
        run_locally(tiny("fedsimclr", train__rounds=2), run, resume=True)

    with pytest.raises(UserError, match=f"^{run}: the run has gone on since its encoders were read, and nothing was"):
        reevaluate(run, renew=extend)
    assert not (run / "evaluation.json").exists()


REFUSED = {
    "fewer rounds": ("fedsimclr", {}, 1, {}, "train.rounds: found 1; "),
    "a schedule over all rounds": (
        "fedsimclr", {"train__optimizer__schedule": "cosine"}, 4, {}, "train.optimizer.schedule: found 'cosine'",
    ),
    "an alpha over all rounds": ("fedsc", {}, 4, {}, "method.alpha: found 'decay'"),
    "a return after the last round": (
        "fedavg_trunk", {key.replace(".", "__"): value for key, value in TASKS.items()}, 4, {}, "method.rollback: ",
    ),
    "something else beside": ("fedsimclr", {}, 4, {"seed": 1}, "cannot resume with changed seed;"),
}  # fmt: skip


@pytest.mark.parametrize(("method", "own", "rounds", "beside", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_extended_is_refused_in_one_line(
    method: str, own: dict[str, object], rounds: int, beside: dict[str, object], expected: str, tmp_path: Path
) -> None:
    run_locally(tiny(method, train__rounds=2, evaluation__protocols=[], **own), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    longer = tiny(method, train__rounds=rounds, evaluation__protocols=[], **own, **beside)
    with pytest.raises(UserError) as refusal:
        run_locally(longer, tmp_path / "run", resume=True)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


class Killed(Exception):
    """What a killed process does not live to see."""


@pytest.mark.long
def test_a_run_that_goes_on_and_is_killed_has_not_ended(tmp_path: Path) -> None:
    """What said how it had ended is gone before anything new is there, so that nobody puts the two together."""
    run_locally(tiny("fedsimclr", train__rounds=2), tmp_path / "run")
    longer = tiny("fedsimclr", train__rounds=4)

    def killed(progress: Progress) -> None:
        if progress.line == "round 3/4":
            raise Killed

    assert load_run(tmp_path / "run").status == "complete"
    with pytest.raises(Killed):
        run_locally(longer, tmp_path / "run", resume=True, report=killed)
    assert load_run(tmp_path / "run").status == "unfinished"
    with pytest.raises(UserError, match="has not ended; --resume finishes it"):
        read_run(tmp_path / "run")
    run_locally(longer, tmp_path / "run", resume=True)
    run_locally(longer, tmp_path / "whole")
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")


def test_what_is_looked_at_before_ray_starts_takes_a_run_that_began_with_an_encoder(tmp_path: Path) -> None:
    config = tiny("fedsimclr", train__rounds=1)
    run_locally(config, tmp_path / "first")
    begun = tiny("fedsimclr", train__rounds=1, model__start=str(tmp_path / "first"))
    run_locally(begun, tmp_path / "run")
    assert load(tmp_path / "run/config.yaml") != begun  # the run's has the file's digest
    preflight(begun, tmp_path / "run", uri=None, resume=True)
    with pytest.raises(UserError, match=r"cannot resume with changed model\.start"):
        preflight(config, tmp_path / "run", uri=None, resume=True)


def test_without_a_checkpoint_a_finished_run_is_not_written_over_by_another(tmp_path: Path) -> None:
    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="cannot resume with changed seed;"):
        run_locally(tiny("fedsimclr", train__rounds=1, seed=1), tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_run_whose_checkpoints_are_all_damaged_is_not_written_over_by_another(tmp_path: Path) -> None:
    """It was killed, so that no summary is there; what it has got to may be mended yet."""
    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    for file in (tmp_path / "run/checkpoints").glob("round-*/server.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match="cannot resume with changed seed;"):
        run_locally(tiny("fedsimclr", train__rounds=1, seed=1), tmp_path / "run", resume=True)
    assert run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run", resume=True)["status"] == "complete"


def test_a_run_that_diverged_before_its_first_checkpoint_begins_again_with_other_settings(tmp_path: Path) -> None:
    wild = tiny("fedsimclr", train__rounds=2, train__optimizer__lr=1e30, checkpoint__every=2)
    assert run_locally(wild, tmp_path / "run")["status"] == "diverged"
    summary = run_locally(tiny("fedsimclr", train__rounds=2), tmp_path / "run", resume=True)
    assert summary["status"] == "complete"


def test_the_noise_of_a_bounded_epsilon_is_planned_for_all_rounds() -> None:
    from rayfed_ssl.methods.fedsc import planned

    private = {"method__alpha": "share", "objective__clip": 1.0, "objective__name": "spectral"}
    assert planned(tiny("fedsc", **private, method__privacy={"epsilon": 5.0})).startswith("method.privacy.epsilon: ")
    assert planned(tiny("fedsc", **private, method__privacy={"sigma": 0.1})) == ""
