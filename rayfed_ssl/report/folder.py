"""Reads a run folder as far as possible: a missing or damaged part gives a line in the report, not an error.

Nothing here runs code that the folder brings along, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_ssl.base.files import read_json
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line, printable
from rayfed_ssl.records.summary import History, history, summarise, virtual_seconds
from rayfed_ssl.records.summary_file import SUMMARY, read_summary
from rayfed_ssl.records.tables import (
    COMMUNICATION,
    EVALUATION,
    METRICS,
    bytes_until,
    communication_parts,
    metrics_parts,
)
from rayfed_ssl.settings import files as configfile

UNFINISHED, UNKNOWN = "unfinished", "unknown"
Value = TypeVar("Value")


@dataclass(frozen=True)
class RunFolder:
    """The readable parts of a run folder. ``notes`` say what is missing or damaged.

    ``summary`` is what ``summary.json`` holds. If that file is missing or damaged, it is made from the committed
    tables, with the status "unfinished" or "unknown". ``partition`` is None if ``partition.parquet`` cannot be read.
    """

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    metrics: pa.Table
    bookings: pa.Table
    partition: pa.Table | None
    evaluation: dict[str, Any]
    environment: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The folder's name, because many runs may share a configuration's name."""
        return self.path.resolve().name

    @property
    def method(self) -> str:
        """The method's name: from the summary, else from the configuration."""
        return str(self.summary.get("method") or self.configured("method", "name") or "unknown method")

    @property
    def dataset(self) -> str:
        return str(self.summary.get("dataset") or self.configured("data", "name") or "unknown data")

    def configured(self, *keys: str) -> Any:
        """The value at a path of keys in the configuration; None if there is none."""
        return _at(self.config, keys)

    def told(self, *keys: str) -> Any:
        """The value at a path of keys in the summary; None if there is none."""
        return _at(self.summary, keys)

    @cached_property
    def scores(self) -> History:
        """Accuracies: protocol -> round -> client (None: global) -> value. Those of raw pixels are among them."""
        return history(self.metrics)

    @cached_property
    def features(self) -> History:
        """Values that describe features: name -> round -> client -> value."""
        return history(self.metrics, "features")

    @cached_property
    def spectrum(self) -> dict[int, list[float]]:
        """Round -> the eigenvalues of the features' covariance, the largest first, each as the mean over clients."""
        eigenvalues: dict[int, list[float]] = {}
        for _, rounds in sorted(history(self.metrics, "features/spectrum").items()):
            for t, values in rounds.items():
                eigenvalues.setdefault(t, []).append(fmean(values.values()))
        return dict(sorted(eigenvalues.items()))

    @cached_property
    def client_names(self) -> dict[int, str]:
        """Client -> its name; empty if clients have no names."""
        return self._names("client", "client_name")

    @cached_property
    def class_names(self) -> dict[int, str]:
        """Class -> its name; empty if classes have no names."""
        return self._names("label", "class_name")

    def _names(self, number: str, name: str) -> dict[int, str]:
        """Number -> name, from two columns of the partition; empty if it has no such names."""
        if self.partition is None or name not in self.partition.column_names:
            return {}
        pairs = self.partition.select([number, name]).group_by([number, name]).aggregate([]).to_pylist()
        return {row[number]: printable(row[name]) for row in pairs if row[number] is not None and row[name] is not None}

    def client(self, client: int) -> str:
        """A client's name, or ``client 3``."""
        return self.client_names.get(client, f"client {client}")

    @cached_property
    def virtual_s(self) -> dict[int, float]:
        """Round -> seconds of the virtual clock until its end."""
        return virtual_seconds(self.metrics)

    @cached_property
    def series(self) -> dict[str, dict[int, dict[int | None, float]]]:
        """Every recorded tag -> round -> client (None: global) -> value."""
        values_by_tag: dict[str, dict[int, dict[int | None, float]]] = {}
        columns = (self.metrics[name].to_pylist() for name in ("tag", "round", "client", "value"))
        for tag, t, client, value in zip(*columns, strict=True):
            values_by_tag.setdefault(tag, {}).setdefault(t, {})[client] = value
        return {tag: dict(sorted(rounds.items())) for tag, rounds in sorted(values_by_tag.items())}

    @cached_property
    def sent(self) -> dict[int, int]:
        """Round -> bytes up and down until its end, for rounds that sent any."""
        return bytes_until(self.bookings)

    @cached_property
    def rounds(self) -> int:
        """The number of completed rounds, as the summary has it."""
        return int(self.summary.get("rounds") or 0)


def _at(document: Any, keys: Sequence[str]) -> Any:
    """The value at a path of keys in nested mappings; None if there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def is_run(path: Path) -> bool:
    """Whether a folder holds any of the files that a run writes."""
    return any((path / name).exists() for name in ("config.yaml", "metrics.parquet", "summary.json"))


def read(path: Path) -> RunFolder:
    """Read what is left of the run in ``path``.

    Raises:
        UserError: there is neither a configuration, nor metrics, nor a summary.
    """
    if not is_run(path):
        raise UserError(
            f"{path}: found no config.yaml, metrics.parquet or summary.json; must be the folder of a run, a "
            "comparison or a sweep"
        )
    notes: list[str] = []
    nothing: dict[str, Any] = {}
    config = _tried(lambda: configfile.read(path / "config.yaml"), nothing, notes)
    metrics = _tried(lambda: metrics_parts(path).read(), METRICS.empty_table(), notes)
    bookings = _tried(lambda: communication_parts(path).read(), COMMUNICATION.empty_table(), notes)
    bookings = bookings.unify_dictionaries()
    partition = _tried(lambda: _partition(path), None, notes)
    status = UNKNOWN if (path / SUMMARY).is_file() else UNFINISHED
    summary = _tried(lambda: read_summary(path) or nothing, nothing, notes)
    if status == UNFINISHED:
        notes.append(f"There is no {SUMMARY}: the run has not ended. Shown is what its last commit holds.")
    if not summary and metrics.num_rows:
        summary = _tried(lambda: _provisional(path, config, metrics, partition, status), nothing, notes)
    evaluation = _tried(lambda: _json(path / EVALUATION), nothing, notes, quietly=True)
    environment = _tried(lambda: _json(path / "environment.json"), nothing, notes)
    return RunFolder(path, config, summary, metrics, bookings, partition, evaluation, environment, notes)


def _tried(read: Callable[[], Value], otherwise: Value, notes: list[str], *, quietly: bool = False) -> Value:
    """What ``read`` returns; ``otherwise``, with a note, if the file is missing or cannot be read."""
    try:
        return read()
    except FileNotFoundError as error:
        if not quietly:
            notes.append(f"{Path(str(error.filename)).name} is missing.")
    except (
        UserError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        pa.ArrowException,
    ) as error:
        notes.append(in_one_line(error))
    return otherwise


def _json(path: Path) -> dict[str, Any]:
    """What a JSON file holds. Raises UserError if it is damaged, FileNotFoundError if it is missing."""
    if (document := read_json(path)) is None:
        raise FileNotFoundError(2, "no such file", str(path))
    return document


def _partition(path: Path) -> pa.Table:
    """The table of which client holds which image, with plain strings. Raises FileNotFoundError if it is missing."""
    file = path / "partition.parquet"
    if not file.is_file():
        raise FileNotFoundError(2, "no such file", str(file))
    named = [name for name in ("class_name", "client_name") if name in pq.read_schema(file).names]
    table = pq.read_table(file, columns=["client", "split", "index", "label", *named])
    for name in ("split", *named):
        at = table.column_names.index(name)
        table = table.set_column(at, name, table[name].cast(pa.string()))
    return table


def _provisional(
    path: Path, config: Mapping[str, Any], metrics: pa.Table, partition: pa.Table | None, status: str
) -> dict[str, Any]:
    """A summary made from what is committed so far."""
    held = set() if partition is None else set(partition["client"].to_pylist()) - {None}
    method, data, model = (config.get(key) for key in ("method", "data", "model"))
    start = model.get("start") if isinstance(model, Mapping) else None
    started_from = {"path": start.get("path"), "digest": start.get("sha256")} if isinstance(start, Mapping) else None
    summary = summarise(
        path,
        method=str(method.get("name", "unknown")) if isinstance(method, Mapping) else "unknown",
        dataset=str(data.get("name", "unknown")) if isinstance(data, Mapping) else "unknown",
        seed=int(config.get("seed") or 0),
        rounds=max(metrics["round"].to_pylist(), default=0),
        clients=len(held),
        status=status,
    )
    return summary if started_from is None else {**summary, "start": started_from}
