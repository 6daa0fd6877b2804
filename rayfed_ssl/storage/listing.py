"""Lists the runs in a folder with status, rounds, accuracy and size. No code of the runs is executed. Tables are read
only for runs that have not ended, and the end of TensorBoard's event file only for running ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from rayfed_ssl.base.lock import is_held
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records.summary_file import SUMMARY, read_summary
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.storage import failure
from rayfed_ssl.storage.claim import LOCK

DEEPEST = 5  # levels of folders below the listed one that are searched
TRIALS = "trials.json"  # beside the trials of a sweep or a comparison: see ``tune.book``
METRICS = "metrics.parquet"  # see ``rayfed_ssl.records.tables``
MARKERS = "checkpoints/round-*/complete.json"  # see ``rayfed_ssl.storage.checkpoint``


@dataclass(frozen=True)
class Listed:
    """One run.

    ``run`` is its path below the listed folder. ``status`` is complete, stopped, diverged, failed, running (a process
    of this machine is writing to it), unfinished or damaged; ``problem`` says why.

    ``done`` of ``rounds`` are over. If the run has not ended and is not running, ``done`` is the round of the newest
    checkpoint, from which it would continue.

    ``accuracy`` is that of the last evaluated round up to the newest checkpoint, averaged over clients; it is None
    before the first round has ended. ``features`` has the values that describe features, of the same round.

    ``changed`` is when a file was last written, in local time. For a trial of a sweep or a comparison, ``point`` has
    the keys that it varies, and ``seed`` its seed if several seeds were run.
    """

    run: str
    status: str
    method: str | None = None
    done: int | None = None
    rounds: int | None = None
    accuracy: dict[str, float | None] = field(default_factory=dict)
    features: dict[str, float | None] = field(default_factory=dict)
    bytes: int = 0
    changed: str | None = None
    problem: str | None = None
    point: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None


def runs_in(folder: Path) -> list[Listed]:
    """Every run in ``folder`` and its subfolders, sorted by path; only ``folder`` itself if it is a run.

    Raises:
        UserError: there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: found no such folder; must be one that holds runs")
    books = Books()
    if _looks_like_a_run(folder, books):
        return [listed(folder, folder.name or str(folder), books)]
    return [listed(path, path.relative_to(folder).as_posix(), books) for path in _found(folder, DEEPEST, books)]


class Books:
    """The records that sweeps and comparisons keep of their trials. Each file is read once."""

    def __init__(self) -> None:
        self._read: dict[Path, dict[str, dict[str, Any]]] = {}

    def trial(self, folder: Path) -> dict[str, Any]:
        """The record of the trial in ``folder``; empty if ``folder`` is not a trial of a sweep or a comparison."""
        if folder.parent not in self._read:
            self._read[folder.parent] = _trials(folder.parent / TRIALS)
        return self._read[folder.parent].get(folder.name, {})


def listed(folder: Path, name: str, books: Books) -> Listed:
    """The row of the run in ``folder``, which may be damaged."""
    size, changed = _size_and_time(folder)
    trial = books.trial(folder)
    known: dict[str, Any] = {"run": name, "bytes": size, "changed": changed, "point": trial.get("point", {})}
    reason = failure.kept(folder)
    failed: dict[str, Any] = {"status": "failed", "problem": f"{folder / failure.ERROR}: {reason}"}
    if reason is not None and not (folder / "config.yaml").exists():
        return Listed(**known, **failed)
    try:
        known |= _settings(folder, seed=bool(trial.get("several")))
        ended = _summary(folder)
    except UserError as error:
        return Listed(**{"status": "damaged", **known, "problem": str(error)})
    saved = (path.parent.name.removeprefix("round-") for path in folder.glob(MARKERS))
    reached = max((int(round) for round in saved if round.isdecimal()), default=0)
    known |= {**ended, "done": max(reached, ended.get("done", 0))}
    if not ended:
        try:
            known |= _measured(folder, reached)
        except UserError as error:  # resuming the run mends its tables, so it is not damaged
            known["problem"] = str(error)
    if is_held(folder / LOCK):
        known |= {"status": "running", "done": max(known["done"], _rounds_over(folder))}
    elif reason is not None:
        known |= failed
    elif "status" not in known and trial.get("status") == "failed":
        known["status"] = "failed"
    elif "status" not in known or (known["status"] == "complete" and ended["done"] < known["rounds"]):
        known["status"] = "unfinished"  # the second condition: the run was extended, and is not over
    return Listed(**known)


def _looks_like_a_run(folder: Path, books: Books) -> bool:
    if (folder / "config.yaml").exists() or (folder / METRICS).is_dir():
        return True
    return (folder / failure.ERROR).is_file() and bool(books.trial(folder))


def _found(folder: Path, deep: int, books: Books) -> Iterator[Path]:
    """The run folders below ``folder``, by name. Hidden folders, links and the insides of runs are not searched."""
    try:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return
    for path in inside:
        if path.is_dir() and not path.is_symlink():
            if _looks_like_a_run(path, books):
                yield path
            elif deep:
                yield from _found(path, deep - 1, books)


def _settings(folder: Path, *, seed: bool) -> dict[str, Any]:
    """Method and rounds in config.yaml, and with ``seed`` the run's seed. Raises UserError."""
    document = configfile.read(folder / "config.yaml")
    try:
        found = {"method": str(document["method"]["name"]), "rounds": int(document["train"]["rounds"])}
        return {**found, "seed": int(document["seed"])} if seed else found
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'config.yaml'}: not what a run writes ({error!r})") from None


def _summary(folder: Path) -> dict[str, Any]:
    """Status, rounds, accuracy and features in summary.json; empty if there is no such file. Raises UserError."""
    if (summary := read_summary(folder)) is None:
        return {}
    try:
        accuracy = {str(name): _mean(value) for name, value in summary["accuracy"].items()}
        features = {str(name): _mean(value) for name, value in (summary.get("features") or {}).items()}
        known = {"status": str(summary["status"]), "done": int(summary["rounds"])}
        if known["done"] == 0:  # the values of the untrained encoder are no results of the run
            accuracy, features = dict.fromkeys(accuracy), dict.fromkeys(features)
        return {**known, "accuracy": accuracy, "features": features}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / SUMMARY}: not what a run writes ({error!r})") from None


def _measured(folder: Path, reached: int) -> dict[str, Any]:
    """Accuracy and features in the tables, up to ``reached``, the round of the newest checkpoint. Raises UserError."""
    if not (folder / METRICS).exists():
        return {}
    import pyarrow.compute as pc  # these imports take seconds, and only runs that have not ended need them

    from rayfed_ssl.records.summary import best_and_last, last_of
    from rayfed_ssl.records.tables import read_metrics

    metrics = read_metrics(folder)
    metrics = metrics.filter(
        pc.less_equal(metrics["round"], reached)
    )  # evaluations that came in late may be of later rounds
    measured = {"accuracy": best_and_last(metrics)[1], "features": last_of(metrics, "features")}
    return {
        part: {name: _mean(value) if reached else None for name, value in values.items()}
        for part, values in measured.items()
    }


def _rounds_over(folder: Path) -> int:
    from rayfed_ssl.records.rounds_under_way import rounds_over  # imports TensorBoard, only for running runs

    return rounds_over(folder)


def _trials(path: Path) -> dict[str, dict[str, Any]]:
    """Folder of a trial -> its row of ``trials.json``; empty if there is no such file, or if it is damaged."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["trials"]
        several = any(row.get("repetition") for row in rows)
        return {f"trial-{row['trial']:05d}": {**row, "point": dict(row.get("point") or {}), "several": several}
                for row in rows}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _mean(value: float | Mapping[str, float | None] | None) -> float | None:
    """A value, or the mean of clients' values; None if there is none."""
    if not isinstance(value, Mapping):
        return None if value is None else float(value)
    known = [of_client for of_client in value.values() if of_client is not None]
    return fmean(known) if known else None


def _size_and_time(folder: Path) -> tuple[int, str | None]:
    """The bytes of all files, and when the newest of them was written, in local time."""
    size, newest = 0, 0.0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.lstat(os.path.join(root, name))
            except OSError:  # removed meanwhile
                continue
            size, newest = size + stat.st_size, max(newest, stat.st_mtime)
    return size, datetime.fromtimestamp(newest).isoformat(" ", "minutes") if newest else None
