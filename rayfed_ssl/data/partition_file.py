"""Partitions from a file: JSON (a list of lists of indices, or lists by clients' names) or Parquet (columns ``client``
and ``index``). Named clients are in the order of their names.

A row whose client is null, -1 or blank text names an image that no client holds. A run folder's ``partition.parquet``
has more columns, which are respected: ``split`` (a client's rows are shared out only if it is ``train``; rows without a
client are public only if it is ``public``; the rest counts as known), ``label`` (has to be the data set's) and
``client_name``. The schema's metadata says how many clients there are, of whom the last may hold nothing, and whether
public rows were client 0's or a share of all. In a file without metadata there are as many clients as hold images, and
rows with the split ``public`` belong to client 0 if it has no others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable

Indices = NDArray[np.int64]
KEY = "data.partition.path"
SHARED_OUT, PUBLIC = "train", "public"  # splits
METADATA = b"rayfed_ssl"
CLIENT_0, SHARE, NONE = "client 0", "share", "none"


@dataclass(frozen=True)
class Origin:
    """What a run's partition says besides its rows: how many clients there are, and where public images came from:
    ``client 0``, a ``share`` of all, or ``none``.
    """

    clients: int
    public: str

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """The entries that say this in a Parquet file's schema."""
        return {METADATA: json.dumps({"clients": self.clients, "public": self.public}).encode()}


@dataclass(frozen=True)
class FilePartition:
    """The content of a file: ``lists[j]`` are the indices that client j holds, ``names[j]`` its name, then the public
    images' indices, and the number of images that are ``nobodys``: those in no row, or in a row without a client.
    """

    lists: tuple[Indices, ...]
    names: tuple[str, ...] | None
    public: Indices
    nobodys: int = 0

    def of(self, clients: int) -> tuple[Indices, ...]:
        """The lists, one for each client. Raises UserError if the number of lists is not the number of clients."""
        if len(self.lists) != clients:
            raise UserError(
                f"clients.count: {clients}, but data.partition.path has {len(self.lists)} clients; set "
                f"clients.count={len(self.lists)}"
            )
        return self.lists


@dataclass(frozen=True)
class _Rows:
    """The r rows of a file: ``client`` (r,) are positions in the lists, -1 for none; ``index`` (r,) are images.
    ``shared_out`` (r,) says whether that client trains on the image, or, if it has no client, whether it is public.
    ``nobodys`` is the number of rows that have neither a client nor a split.
    """

    client: NDArray[np.int64]
    index: NDArray[np.int64]
    shared_out: NDArray[np.bool_]
    clients: int
    names: tuple[str, ...] | None = None
    label: NDArray[np.int64] | None = None
    origin: Origin | None = None
    nobodys: int = 0

    @property
    def given_away(self) -> bool:
        """Whether the public rows are client 0's: what the file says, or else whether client 0 holds nothing."""
        if self.origin is not None:
            return self.origin.public == CLIENT_0
        return bool(self.clients) and not bool((self.shared_out & (self.client == 0)).any())


def read_partition(path: Path, labels: NDArray[np.int64], partial: bool = False) -> FilePartition:
    """Read a partition of the training images whose labels are ``labels`` (n,).

    Raises:
        UserError: an unreadable file, an index twice or out of range, labels of other images, or, unless ``partial``,
            images that the file does not name.
    """
    path, where = path.expanduser(), printable(path)
    rows = _from_parquet(path) if path.suffix.lower() == ".parquet" else _from_json(path)
    count = len(labels)
    beyond = rows.index[(rows.index < 0) | (rows.index >= count)]
    if len(beyond):
        raise UserError(
            f"{KEY}: {where} holds the index {beyond[0]}, but there are {count} training images; allowed: 0 to "
            f"{count - 1} (a file of a data set of another size, or data.limit?)"
        )
    known, times = np.unique(rows.index, return_counts=True)
    if len(twice := known[times > 1]):
        raise UserError(f"{KEY}: {where} holds the index {twice[0]} twice; an image has one client at most")
    if len(known) < count and not partial:
        raise UserError(
            f"{KEY}: {where} names {len(known)} of {count} training images (a file of a data set of another size?); "
            "data.partition.partial=true leaves the others to nobody"
        )
    if rows.label is not None and len(other := np.flatnonzero((rows.label >= 0) & (rows.label != labels[rows.index]))):
        first = other[0]
        raise UserError(
            f"{KEY}: {where} gives image {rows.index[first]} the label {rows.label[first]}, which is "
            f"{labels[rows.index[first]]} here ({len(other)} such images): it was made for another data set"
        )
    lists = [rows.index[rows.shared_out & (rows.client == client)] for client in range(rows.clients)]
    public = rows.index[rows.shared_out & (rows.client < 0)]
    if rows.given_away:
        lists[0], public = public, public[:0]
    return FilePartition(tuple(lists), rows.names, public, count - len(known) + rows.nobodys)


def _from_json(path: Path) -> _Rows:
    content = _content(path)
    try:
        lists: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _unlike(path, f"no JSON ({printable(error, 100)})") from error
    names = None
    if isinstance(lists, dict):
        names, lists = tuple(sorted(lists)), [lists[name] for name in sorted(lists)]
    if not isinstance(lists, list) or not all(isinstance(indices, list) for indices in lists):
        raise _unlike(path, "no list of lists")
    if blank := [name for name in names or () if not name.strip()]:
        raise _unlike(path, f"the name {blank[0]!r}")
    flat = [index for indices in lists for index in indices]
    not_index = next((index for index in flat if isinstance(index, bool) or not isinstance(index, int)), None)
    if not_index is not None:
        raise _unlike(path, f"{printable(repr(not_index), 40)} among the indices")
    largest = max(flat, default=0)
    if not -(2**62) < min(flat, default=0) <= largest < 2**62:
        raise _unlike(path, "an index beyond 2^62")
    client = np.repeat(np.arange(len(lists)), [len(indices) for indices in lists])
    return _Rows(
        client,
        np.array(flat, np.int64),
        np.ones(len(flat), np.bool_),
        len(lists),
        names and tuple(map(printable, names)),
    )


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{KEY}: {printable(path)} is no regular file (a folder, FIFO, socket or device)")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{KEY}: {printable(path)} cannot be read ({reason})") from error


def _unlike(path: Path, found: str) -> UserError:
    return UserError(
        f"{KEY}: {printable(path)} has {found}; allowed: JSON, a list of indices for each client, or Parquet with the "
        "columns client and index"
    )


def _from_parquet(path: Path) -> _Rows:
    try:
        table = pq.read_table(pa.BufferReader(_content(path)))
    except (pa.ArrowException, OSError) as error:
        raise _unlike(path, f"no readable Parquet ({printable(error, 100)})") from error
    for name in ("client", "index"):
        if table.column_names.count(name) != 1:
            raise _unlike(path, f"the columns {printable(', '.join(table.column_names), 100)}")
    if not pa.types.is_integer(table.schema.field("index").type) or table.column("index").null_count:
        raise _unlike(path, "an index that is no integer")
    try:
        index = np.asarray(table.column("index").cast(pa.int64()).to_numpy(), np.int64)
        client, names = _positions(table.column("client"), path)
        shared_out, nobodys = np.ones(len(index), np.bool_), 0
        if "split" in table.column_names:
            expected = [PUBLIC if number < 0 else SHARED_OUT for number in client.tolist()]
            split = table.column("split").to_pylist()
            shared_out = np.array([given == name for given, name in zip(split, expected, strict=True)], np.bool_)
        label = None
        if "label" in table.column_names:
            label = np.asarray(table.column("label").cast(pa.int64()).fill_null(-1).to_numpy(), np.int64)
    except pa.ArrowException as error:
        raise _unlike(path, printable(error, 100)) from error
    count = len(names) if names is not None else int(client.max(initial=-1)) + 1
    origin = None if names is not None else _origin(table.schema, path)
    if origin is not None:
        _check(origin, client, shared_out, path)
        count = origin.clients
    elif "split" not in table.column_names:
        shared_out = client >= 0
        nobodys = int((client < 0).sum())
    if names is None and "client_name" in table.column_names:
        names = _names_beside(client, table.column("client_name").to_pylist(), count)
    return _Rows(client, index, shared_out, count, names, label, origin, nobodys)


def _origin(schema: pa.Schema, path: Path) -> Origin | None:
    """What the schema's metadata says; None if it says nothing. Raises UserError if it cannot be understood."""
    if (text := (schema.metadata or {}).get(METADATA)) is None:
        return None
    try:
        content: Any = json.loads(text)
        origin = Origin(content["clients"], content["public"])
    except (ValueError, KeyError, TypeError, RecursionError):
        origin = Origin(0, "")
    if type(origin.clients) is not int or origin.clients < 1 or origin.public not in (CLIENT_0, SHARE, NONE):
        raise UserError(
            f"{KEY}: {printable(path)} has the metadata {METADATA.decode()}={printable(repr(text), 100)}; allowed: "
            f"clients, from 1 on, and public, one of {CLIENT_0}, {SHARE}, {NONE}"
        )
    return origin


def _check(origin: Origin, client: NDArray[np.int64], shared_out: NDArray[np.bool_], path: Path) -> None:
    """Raise UserError if a file's rows contradict its metadata."""
    prefix = f"{KEY}: the metadata of {printable(path)} says"
    if (largest := int(client.max(initial=-1))) >= origin.clients:
        raise UserError(
            f"{prefix} {origin.clients} clients, but a row is client {largest}'s; allowed: 0 to {origin.clients - 1}"
        )
    public = int((shared_out & (client < 0)).sum())
    kept = int((shared_out & (client == 0)).sum())
    if public and origin.public == NONE:
        raise UserError(f"{prefix} that no image is public, but {public} rows are; allowed: none")
    if kept and origin.public == CLIENT_0:
        raise UserError(f"{prefix} that client 0's images are public, but it holds {kept} others; allowed: none")


def _names_beside(client: NDArray[np.int64], column: Sequence[object], count: int) -> tuple[str, ...]:
    """The names of ``count`` clients: what ``column`` has in a client's first row, or ``client 3`` and the like."""
    numbers, first = np.unique(client, return_index=True)
    known = {int(number): column[row] for number, row in zip(numbers, first, strict=True)}
    given = (known.get(number) for number in range(count))
    return tuple(f"client {number}" if name is None else printable(name) for number, name in enumerate(given))


def _positions(column: pa.ChunkedArray, path: Path) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    """(client of each row, -1 for none; the clients' names): integers count clients, text names them, sorted."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    values = column.to_pylist()
    if pa.types.is_integer(kind):
        client = np.array([-1 if value is None else value for value in values], np.int64)
        if client.min(initial=0) < -1 or client.max(initial=-1) > len(client):
            odd = client[(client < -1) | (client > len(client))][0]
            raise _unlike(path, f"the client {odd}")
        return client, None
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise _unlike(path, f"clients of type {printable(kind)}")
    named = [value if value is not None and value.strip() else None for value in values]
    known = sorted({value for value in named if value is not None})
    position = {name: number for number, name in enumerate(known)}
    client = np.array([-1 if value is None else position[value] for value in named], np.int64)
    return client, tuple(printable(name) for name in known)
