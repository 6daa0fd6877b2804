"""What must not change a bit: the process's surroundings, what is evaluated and in which order, how often is saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayfed_ssl.config import RunConfig
from rayfed_ssl.settings import files as configfile
from tests.places import ROOT
from tests.tiny import booked, encoders, measured, run_locally, tiny

ELSEWHERE = {
    "LC_ALL": "tr_TR.UTF-8", "LANG": "C", "LANGUAGE": "tr", "TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "4711",
    "OMP_NUM_THREADS": "7", "MKL_NUM_THREADS": "5", "OPENBLAS_NUM_THREADS": "3", "NUMEXPR_NUM_THREADS": "9",
    "COLUMNS": "20", "NO_COLOR": "1", "PYTHONUTF8": "0",
}  # fmt: skip


def config(**changes: object) -> RunConfig:
    """A method with a momentum target, states of clients, clients drawn by chance, and BatchNorm."""
    return tiny("fedema", **{"evaluation__protocols": ["knn", "fewshot"], "train__rounds": 2, **changes})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "run"
    run_locally(config(), folder)
    return folder


def one_core() -> None:
    """Keep this process, and its children, on the last of its cores; files it makes are its own."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.umask(0o077)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_surroundings_change_no_bit(plain: Path, tmp_path: Path) -> None:
    """Locale, time zone, hash seed, thread variables, no HOME, no assertions and docstrings, one core, all at once."""
    configfile.dump(config(), tmp_path / "run.yaml")
    kept = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME", "PYTHONPATH")}
    command = [sys.executable, "-OO", "-m", "rayfed_ssl", "run", "run.yaml", "--executor", "local", "--out", "there"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**kept, **ELSEWHERE, "PYTHONPATH": str(ROOT)}, preexec_fn=one_core,
        capture_output=True, text=True, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    there = tmp_path / "there"
    assert encoders(there) == encoders(plain)
    assert measured(there) == measured(plain)
    assert booked(there) == booked(plain)
    for name in ("config.yaml", "partition.parquet"):
        assert (there / name).read_bytes() == (plain / name).read_bytes()


@pytest.mark.parametrize("protocols", [[], ["fewshot", "knn"], ["rank", "knn"]])
@pytest.mark.parametrize("every", [0, 1])
def test_what_is_evaluated_changes_nothing_else(plain: Path, protocols: list[str], every: int, tmp_path: Path) -> None:
    run_locally(config(evaluation__protocols=protocols, evaluation__every=every), tmp_path / "run")
    assert encoders(tmp_path / "run") == encoders(plain)
    assert booked(tmp_path / "run") == booked(plain)
    ours, theirs = measured(tmp_path / "run"), measured(plain)
    trained = {key for key in theirs if not key[2].startswith("eval/")}
    common = ours.keys() & theirs.keys()
    assert trained <= common
    assert {key: ours[key] for key in common} == {key: theirs[key] for key in common}
    rounds = {key[0] for key in common - trained if "pixels" not in key[2]}
    assert rounds == (set() if not protocols else {0, 2} if every == 0 else {0, 1, 2})


@pytest.mark.parametrize("checkpoint", [{"every": 0}, {"every": 2}, {"every": 1, "keep": 1, "keep_every": 2}])
def test_how_often_is_saved_changes_nothing(plain: Path, checkpoint: dict[str, int], tmp_path: Path) -> None:
    run_locally(config(checkpoint=checkpoint), tmp_path / "run")
    assert encoders(tmp_path / "run") == encoders(plain)
    assert measured(tmp_path / "run") == measured(plain)
    assert booked(tmp_path / "run") == booked(plain)
