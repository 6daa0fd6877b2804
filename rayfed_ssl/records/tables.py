"""The Parquet tables of a run folder.

``metrics.parquet`` and ``communication.parquet`` are folders of parts, so that a long run never rewrites what it has
already written; ``pyarrow.parquet.read_table(folder)`` reads them whole. A part is named after the round it was
committed at: ``part-00010.parquet`` belongs to the checkpoint of round 10, ``part-00010_1.parquet`` was committed after
that checkpoint and before the next (an evaluation that came in late). A run that resumes from round 10 keeps the first
and makes the second again.

Where clients have names (their folder, the value of a client column), every table has them beside the numbers, as its
last column ``client_name``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line
from rayfed_ssl.data.partition_file import Origin
from rayfed_ssl.federated.ledger import Booking

Number = TypeVar("Number", int, float)
_NAME = pa.dictionary(pa.int32(), pa.string())
METRICS = pa.schema(
    [("round", pa.int32()), ("client", pa.int32()), ("tag", _NAME), ("value", pa.float64()), ("wall_s", pa.float64())]
)
COMMUNICATION = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("direction", _NAME),
        ("operation", _NAME),
        ("field", _NAME),
        ("bytes", pa.int64()),
    ]
)

DROPPED = pa.schema([("round", pa.int32()), ("client", pa.int32()), ("operation", _NAME), ("reason", pa.string())])
PARTITION = pa.schema([("client", pa.int32()), ("split", _NAME), ("index", pa.int64()), ("label", pa.int64())])
NAME, CLASS = pa.field("client_name", _NAME), pa.field("class_name", _NAME)
EVALUATED = ("eval/", "select/", "features/")  # what an evaluation's tags begin with
EVALUATION = "evaluation.json"  # of the encoders that a run ended with, by ``rayfed-ssl evaluate``
OTHERS = "other data"  # in evaluation.json: what was measured on other images than the run's, by data set
SKIPPED = "skipped_images.txt"  # images that could not be decoded, by name
PART = re.compile(r"part-(\d{5,})(?:_(\d+))?\.parquet")


class Metric(NamedTuple):
    """One row of ``metrics.parquet``: ``client`` None means the whole federation; ``wall_s`` is in seconds of
    recording.
    """

    round: int
    client: int | None
    tag: str
    value: float
    wall_s: float


class Drop(NamedTuple):
    """One row of ``dropped.parquet``: which client's operation failed in which round, and why."""

    round: int
    client: int
    operation: str
    reason: str


class Commit(NamedTuple):
    """The place of a part in the run: the round, and how many commits of that round came before."""

    round: int
    late: int


def table(rows: Iterable[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """Rows as a table of ``schema``; NaN stays NaN, None is null."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def with_names(rows: pa.Table, names: Sequence[str] | None) -> pa.Table:
    """``rows`` with the column ``client_name``, null where ``client`` is; as they are where clients have no names."""
    if names is None:
        return rows
    client = rows["client"].combine_chunks()
    column = pa.DictionaryArray.from_arrays(client.cast(pa.int32()), pa.array(list(names), pa.string()))
    return rows.append_column(NAME, column)


class Parts:
    """A table as a folder of parts, written once each and never changed.

    Args:
        schema: what ``read`` returns.
        names: the clients' names, to be written beside their numbers.
    """

    def __init__(self, folder: Path, schema: pa.Schema, names: Sequence[str] | None = None) -> None:
        self.folder = folder
        self.schema = schema
        self.names = names

    def files(self) -> dict[Commit, Path]:
        """The parts in the order in which they were committed."""
        if not self.folder.exists():
            return {}
        if not self.folder.is_dir():
            raise UserError(f"{self.folder}: found a file, not a folder of parts; the run's records are damaged there")
        found = ((PART.fullmatch(path.name), path) for path in self.folder.iterdir())
        return dict(sorted((Commit(int(m[1]), int(m[2] or 0)), path) for m, path in found if m))

    def write(self, at: Commit, rows: pa.Table) -> None:
        named = with_names(rows, self.names)
        name = f"part-{at.round:05d}{f'_{at.late}' if at.late else ''}.parquet"
        replace_file(self.folder / name, lambda path: pq.write_table(named, path, compression="zstd"))

    def read(
        self, columns: list[str] | None = None, *, up_to: Commit | None = None, after: Commit | None = None
    ) -> pa.Table:
        """The rows of all parts, or of those at most ``up_to``, or of those past ``after``."""
        files = [path for at, path in self.files().items() if (not up_to or at <= up_to) and (not after or at > after)]
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        read = [self._part(path, columns) for path in files]
        return pa.concat_tables([schema.empty_table(), *read])

    def _part(self, path: Path, columns: list[str] | None) -> pa.Table:
        """One part. Raises UserError for a file that is not what was written."""
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        try:
            return pq.ParquetFile(path).read(columns=schema.names).cast(schema)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{path}: cannot be read ({in_one_line(error)}); the run's records are damaged there"
            ) from None

    def remove_after(self, last: Commit) -> None:
        """Delete the parts past ``last``, and what an interrupted write left behind."""
        for at, path in self.files().items():
            if at > last:
                path.unlink()
        for path in self.folder.glob(".*.tmp"):
            path.unlink()


def metrics_parts(folder: Path, names: Sequence[str] | None = None) -> Parts:
    return Parts(folder / "metrics.parquet", METRICS, names)


def communication_parts(folder: Path, names: Sequence[str] | None = None) -> Parts:
    return Parts(folder / "communication.parquet", COMMUNICATION, names)


def dropped_parts(folder: Path, names: Sequence[str] | None = None) -> Parts:
    """The clients left out under ``on_client_error: drop``; there is no such table if none was."""
    return Parts(folder / "dropped.parquet", DROPPED, names)


def read_metrics(folder: Path) -> pa.Table:
    """The committed metrics of the run in ``folder``: round, client (null: global), tag, value, wall_s."""
    return metrics_parts(folder).read()


def read_communication(folder: Path) -> pa.Table:
    """The committed bookings of the run in ``folder``: round, client, direction, operation, field, bytes."""
    return communication_parts(folder).read()


def communication_totals(bookings: pa.Table) -> dict[str, int]:
    """``{"up_bytes", "down_bytes"}`` of a table with the columns direction and bytes."""
    sums = bookings.unify_dictionaries().group_by("direction").aggregate([("bytes", "sum")]).to_pydict()
    by_direction = dict(zip(sums["direction"], sums["bytes_sum"], strict=True))
    return {f"{direction}_bytes": int(by_direction.get(direction, 0)) for direction in ("up", "down")}


def bytes_until(bookings: pa.Table) -> dict[int, int]:
    """Bytes up and down until the end of each round that has any, by round."""
    sums = bookings.select(["round", "bytes"]).group_by("round").aggregate([("bytes", "sum")])
    total, found = 0, {}
    for t, count in sorted(zip(sums["round"].to_pylist(), sums["bytes_sum"].to_pylist(), strict=True)):
        total += count
        found[t] = total
    return found


def last_until(values: Mapping[int, Number], round: int) -> Number | None:
    """The value of the last round up to ``round``, of values by ascending round; None where there is none."""
    rounds = list(values)
    place = bisect_right(rounds, round)
    return values[rounds[place - 1]] if place else None


def bookings_table(bookings: Iterable[Booking]) -> pa.Table:
    return table(bookings, COMMUNICATION)


@dataclass(frozen=True, eq=False)
class PartitionRows:
    """The images that ``partition.parquet`` lists.

    Args:
        shards: client -> split (train, es, rb, test) -> indices into the source (n,).
        labels: the labels of the source (images,).
        public: indices of the public images (m,), or None.
        public_labels: the labels of exactly these images (m,); None writes null.
        held_out: indices of the images to choose by, split "select"; their labels are the source's.
        names: of the clients, where they have any.
        class_names: the classes' names, by label.
        origin: how many clients there are and where the public images came from, for a run with this partition.
    """

    shards: Mapping[int, Mapping[str, np.ndarray]]
    labels: np.ndarray
    public: np.ndarray | None = None
    public_labels: np.ndarray | None = None
    held_out: np.ndarray | None = None
    names: Sequence[str] | None = None
    class_names: Sequence[str] = ()
    origin: Origin | None = None


def write_partition(folder: Path, rows: PartitionRows) -> None:
    """Write ``partition.parquet``: client (null: no client's own), split, index, label (null where there is none), and
    class_name where classes are called otherwise than by their numbers.
    """
    pieces, labels = [], rows.labels
    for client in sorted(rows.shards):
        shard = rows.shards[client]
        pieces += [_partition_piece(client, split, index, labels[index]) for split, index in shard.items()]
    if rows.public is not None:
        pieces.append(_partition_piece(None, "public", rows.public, rows.public_labels))
    if rows.held_out is not None:
        pieces.append(_partition_piece(None, "select", rows.held_out, labels[rows.held_out]))
    found = pa.concat_tables([PARTITION.empty_table(), *pieces]).unify_dictionaries()
    found = with_names(_with_classes(found, rows.class_names), rows.names)
    found = found.replace_schema_metadata(None if rows.origin is None else rows.origin.metadata)
    replace_file(folder / "partition.parquet", lambda path: pq.write_table(found, path, compression="zstd"))


def _repeated(name: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([name]))


def write_images(folder: Path, names: Mapping[str, pa.StringArray]) -> None:
    """Write ``images.parquet``: split (train, test), index and name of every image. An index of ``partition.parquet``
    is one of "train"; those of "test" are the test images, also where they were held out of one tree or file.

    Args:
        names: split -> what its images are called (n,).
    """
    pieces = [
        pa.table({"split": _repeated(split, len(of)), "index": pa.array(np.arange(len(of)), pa.int64()), "name": of})
        for split, of in names.items()
    ]
    rows = pa.concat_tables(pieces).unify_dictionaries()
    replace_file(folder / "images.parquet", lambda path: pq.write_table(rows, path, compression="zstd"))


def _with_classes(rows: pa.Table, class_names: Sequence[str]) -> pa.Table:
    """``rows`` with the column ``class_name``; as they are where the names are the numbers."""
    if not class_names or list(class_names) == [str(label) for label in range(len(class_names))]:
        return rows
    label = rows["label"].combine_chunks()
    known = pc.and_(pc.greater_equal(label, 0), pc.less(label, len(class_names)))
    number = pc.if_else(known, label, pa.scalar(None, pa.int64())).cast(pa.int32())
    column = pa.DictionaryArray.from_arrays(number, pa.array(list(class_names), pa.string()))
    return rows.append_column(CLASS, column)


def _partition_piece(client: int | None, split: str, index: np.ndarray, label: Any) -> pa.Table:
    count = len(index)
    columns = [
        pa.array([client], pa.int32()).take(pa.array(np.zeros(count, np.int64))),
        _repeated(split, count),
        pa.array(np.asarray(index, np.int64)),
        pa.nulls(count, pa.int64()) if label is None else pa.array(np.asarray(label, np.int64)),
    ]
    return pa.Table.from_arrays(columns, schema=PARTITION)
