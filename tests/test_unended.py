"""A run that was killed before it wrote encoders: what asks for them is told which checkpoint the run goes on from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import rayfed_ssl
from rayfed_ssl.records.summary_file import write_summary
from tests.command_line import command
from tests.tiny import run_locally, tiny

NO_ENCODER = "found no encoder in {encoder}; the run has not "
GENERAL = NO_ENCODER + "finished, or it diverged"
ROUND = NO_ENCODER + (
    "finished, and its checkpoint of round {round} is intact: {resume} continues the run from there to its end, where "
    "it writes encoders"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unended") / "run"
    run_locally(tiny("fedsimclr", train__rounds=2, checkpoint__every=1, evaluation__protocols=["rank"]), folder)
    return folder


@pytest.fixture
def killed(finished: Path, tmp_path: Path) -> Path:
    """As a run is left that was killed after its last checkpoint."""
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/encoder")
    (tmp_path / "run/summary.json").unlink()
    return tmp_path / "run"


@pytest.mark.parametrize(
    "words", ["evaluate {run}", "embed {run} digits --out {run}/x.parquet", "export {run} --to torch"]
)
def test_a_command_names_the_newest_checkpoint(words: str, killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ROUND.format(encoder=killed / "encoder", round=2, resume="--resume")
    assert command(capsys, *words.format(run=killed).split()) == (2, "", f"{killed}: {said}\n")


def damage(run: Path, round: int) -> None:
    (run / f"checkpoints/round-{round:05d}/server.safetensors").write_bytes(b"")


def none_left(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def diverged(run: Path) -> None:
    write_summary(run, {"status": "diverged", "rounds": 2})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda run: None, ROUND.replace("{round}", "2")),
        (lambda run: damage(run, 2), ROUND.replace("{round}", "1")),
        (lambda run: [damage(run, 1), damage(run, 2)], GENERAL),
        (none_left, GENERAL),
        (diverged, GENERAL),
    ],
)
def test_the_line_is_of_what_the_folder_holds(change: Callable[[Path], object], line: str, killed: Path) -> None:
    change(killed)
    run = rayfed_ssl.load(killed)
    for ask in (run.encoder, run.evaluate):
        with pytest.raises(rayfed_ssl.UserError) as refused:
            ask()
        assert str(refused.value) == f"{killed}: {line.format(encoder=killed / 'encoder', resume='resume=True')}"


def test_what_the_line_says_works(killed: Path) -> None:
    run = rayfed_ssl.load(killed).resume(executor="local", progress=False)
    assert run.encoder().dim > 0
