"""The pixel store: images are decoded once into an Arrow IPC file and memory-mapped ever after.

One file holds one split as one record batch, so that the pixels come back as one contiguous (N, S, S, C) array without
a copy; every process of a machine shares its pages. A file appears under its final name only when complete, and a lock
makes processes that want the same split at the same time build it once. While it is built the split takes twice its
size on disk (raw pixels, then the Arrow file), but only a few blocks of it in memory. The file carries a checksum
of every block of images; a process checks all of them when it first opens the file.

Shape legend: N images, S image size, C channels.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayfed_ssl.base.lock import locked
from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import as_utf8, printable
from rayfed_ssl.data.decoding.decoded import Decoded
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.threads import BLOCK, THREADS, decoded_blocks, tell
from rayfed_ssl.data.images import BadImage, Images, Listing
from rayfed_ssl.data.pixels.traits import NOTICED, Misfits, Traits
from rayfed_ssl.data.source_notes import HeldOut

FORMAT = 17  # 15: counts ``grey`` images; 16: parts of pixels in reduced JPEGs; 17: transparent greys, deep colours
CACHE = "RAYFED_SSL_CACHE"
MOST_NAMED = 5  # images that cannot be decoded and are named


class BadStore(Exception):
    """A store file that is truncated, damaged or of another format."""


@dataclass(frozen=True)
class Stored:
    """What a store file holds: the images, a digest of all of them, the names of those left out, how many have each
    trait of ``NOTICED``, the listing's notes, the misfits by kind, and the name of each image (N,).
    """

    images: Images
    digest: str
    skipped: tuple[str, ...]
    counts: dict[str, int]
    notes: tuple[Note | HeldOut, ...]
    misfits: dict[str, Misfits]
    names: pa.StringArray


def default_cache() -> Path:
    """``$RAYFED_SSL_CACHE``, or ``~/.cache/rayfed-ssl``."""
    return Path(os.environ.get(CACHE) or "~/.cache/rayfed-ssl").expanduser()


def cached(
    path: Path,
    listing: Callable[[], Listing],
    form: ImageForm,
    skip_bad: bool,
    key: str = "data",
    skipping: str = "set data.on_bad_image=skip",
    root: Path | None = None,
) -> Stored:
    """The split stored at ``path``; it is decoded and written there first if the file is absent or damaged.

    ``skipping`` is what to do to leave out images that cannot be decoded, for the message; images are named relative to
    ``root``. Several processes may ask at the same time. Raises UserError for an image that cannot be decoded (unless
    ``skip_bad``), and for a cache folder that cannot be written.
    """
    try:
        return read(path)
    except BadStore:
        pass
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            try:
                return read(path)
            except BadStore:
                _write(path, listing(), form, skip_bad, key, skipping, root)
    except OSError as error:
        reason = printable(error)
        raise UserError(f"cache {path.parent}: cannot be written or locked ({reason}); set RAYFED_SSL_CACHE") from error
    return read(path)


def read(path: Path) -> Stored:
    """Map a store file into memory. Pixels, labels, clients and groups are read-only views of it.

    A process that opens the file for the first time reads and checks all of it (measured: 2.4 GB/s a thread); a file
    that has not changed since is not checked again.

    Raises BadStore if the file is absent, cut short or of another format, or if its labels, clients, groups, names or a
    block of images do not match the checksums written with them.
    """
    try:
        with pa.memory_map(str(path)) as mapped:
            batch = pa.ipc.open_file(mapped).get_batch(0)
        head = json.loads(batch.schema.metadata[b"rayfed_ssl"])
        if head["format"] != FORMAT:
            raise BadStore(f"{path}: format {head['format']}; wanted {FORMAT}")
        pixels, labels = _pixels(batch.column("pixels"), head["shape"]), _values(batch.column("label"))
        clients, groups = (
            _values(batch.column(name)) if name in batch.schema.names else None for name in ("client", "group")
        )
        names = batch.column("name")
        counts = {trait: int(count) for trait, count in head["counts"].items()}
        stored = Stored(
            Images(pixels, labels, tuple(head["class_names"]), clients, tuple(head["client_names"]), groups),
            head["digest"],
            tuple(head["skipped"]),
            dict.fromkeys(NOTICED, 0) | counts,  # files of earlier versions lack some traits
            tuple(map(_read_note, head["notes"])),
            {kind: Misfits(**fields) for kind, fields in head["misfits"].items()},
            names,
        )
        state = _state(path)
        if _checked.get(path) != state and head["checks"] != _checks(pixels, labels, clients, groups, _letters(names)):
            raise BadStore(f"{path}: the content does not match its checksums")
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise BadStore(f"{path}: {error}") from error
    _checked[path] = state
    return stored


def _read_note(written: dict[str, Any]) -> Note | HeldOut:
    """A note as it was before it was written to the file."""
    return Note(**written) if "text" in written else HeldOut(**written)


_checked: dict[Path, tuple[int, ...]] = {}  # the files that this process found undamaged, with their ``_state`` then


def _state(path: Path) -> tuple[int, ...]:
    """What a file's status tells; it changes whenever the file is replaced or written to."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _values(column: pa.Array) -> NDArray[Any]:
    """A read-only view of a column's values; ``to_numpy`` would import pandas, if that is installed."""
    view: NDArray[Any] = np.from_dlpack(column)
    return view


def _pixels(column: pa.FixedSizeBinaryArray, shape: list[int]) -> NDArray[np.uint8]:
    """A read-only view (N, S, S, C) of the column of pixels."""
    if not len(column):
        return np.empty((0, *shape), np.uint8)
    return np.frombuffer(column.buffers()[1], dtype=np.uint8).reshape(len(column), *shape)


def _letters(names: pa.StringArray) -> NDArray[np.uint8]:
    """The bytes of all names, one name after the other."""
    letters = names.buffers()[2]
    return np.empty(0, np.uint8) if letters is None else np.frombuffer(letters, np.uint8)


def _checks(pixels: NDArray[np.uint8], *columns: NDArray[Any] | None) -> list[int]:
    """The CRC-32 of the labels, the clients, the groups, the names and every block of images. It finds damage, and is
    five times as fast as BLAKE2.
    """

    def check(part: NDArray[Any]) -> int:
        return zlib.crc32(np.ascontiguousarray(part).data)

    blocks = [pixels[start : start + BLOCK] for start in range(0, len(pixels), BLOCK)]
    parts: list[NDArray[Any]] = [*(column for column in columns if column is not None), *blocks]
    if len(blocks) < 8:
        return [check(part) for part in parts]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(check, parts))


def _write(
    path: Path, listing: Listing, form: ImageForm, skip_bad: bool, key: str, skipping: str, root: Path | None
) -> None:
    """Decode the images and write the store file, under its final name only once it is complete."""
    raw, partial = path.with_suffix(".raw.tmp"), path.with_suffix(".arrow.tmp")
    shape = (form.size, form.size, form.channels)
    try:
        split = _decode_to(raw, listing, form, skip_bad, key, skipping)
        digest = split.digest
        labels = np.ascontiguousarray(listing.labels[split.kept], dtype=np.int64)
        clients, groups = (
            None if column is None else np.ascontiguousarray(column[split.kept], dtype=np.int64)
            for column in (listing.clients, listing.groups)
        )
        prefix = "" if root is None else f"{root}{os.sep}"
        names = pa.array([as_utf8(name.removeprefix(prefix)) for name in split.names], pa.string())
        named = {"class_names": listing.class_names, "client_names": listing.client_names}
        digested = {
            "class_names": listing.class_names,
            "group_names": listing.client_names,
        }  # runs recorded such digests
        for part in (labels.data, clients.data if clients is not None else b"", json.dumps(digested).encode()):
            digest.update(part)
        if groups is not None:
            digest.update(groups.data)
        empty = np.empty((0, *shape), np.uint8)
        pixels = np.memmap(raw, np.uint8, "r", shape=(len(labels), *shape)) if len(labels) else empty
        notes = [asdict(Note(line) if isinstance(line, str) else line) for line in listing.notes]
        head = {"format": FORMAT, "shape": shape, "notes": notes}
        head |= {"skipped": split.skipped, "counts": split.traits.counts}
        head["misfits"] = {kind: asdict(misfits) for kind, misfits in split.traits.misfits(listing).items()}
        checks = _checks(pixels, labels, clients, groups, _letters(names))
        head |= named | {"checks": checks, "digest": digest.hexdigest()}
        beside = {"label": labels, "client": clients, "group": groups, "name": names}
        _write_arrow(partial, pixels, beside, json.dumps(head))
        os.replace(partial, path)
    finally:
        raw.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def _write_arrow(path: Path, pixels: NDArray[np.uint8], beside: dict[str, Any], head: str) -> None:
    """Write one record batch with the pixels, the columns ``beside`` them and ``head`` as metadata, and sync it to
    disk.
    """
    width = int(np.prod(pixels.shape[1:]))
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(pixels), [None, pa.py_buffer(pixels)])
    columns = {"pixels": column} | {name: pa.array(values) for name, values in beside.items() if values is not None}
    batch = pa.RecordBatch.from_pydict(columns).replace_schema_metadata({"rayfed_ssl": head})
    with open(path, "wb") as file:
        with pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class _DecodedSplit:
    """A decoded split: which rows were kept (N,) and the names of these, the names of the images left out, what was
    noticed of the images, and the pixels' digest.
    """

    kept: NDArray[np.bool_]
    names: list[str]
    skipped: list[str]
    traits: Traits
    digest: hashlib.blake2b


def _decode_to(raw: Path, listing: Listing, form: ImageForm, skip_bad: bool, key: str, skipping: str) -> _DecodedSplit:
    """Write the pixels of all images to ``raw``, one image after the other. Raises UserError, once all were tried, for
    any that cannot be decoded, unless ``skip_bad``.
    """
    split = _DecodedSplit(
        np.zeros(len(listing.labels), dtype=np.bool_),
        [],
        [],
        Traits(),
        hashlib.blake2b(digest_size=16),
    )
    kept, skipped, row = split.kept, split.skipped, 0
    first: BadImage | None = None
    with open(raw, "wb") as file:
        for names, results in decoded_blocks(listing.read(), form):
            for name, result in zip(names, results, strict=True):
                if row == len(kept):
                    raise UserError(f"{key}.path: more images were read than the {len(kept)} listed")
                if isinstance(result, Decoded):
                    kept[row] = True
                    split.names.append(name)
                    split.traits.add(row, result)
                    file.write(result.pixels.data)
                    split.digest.update(result.pixels.data)
                else:
                    skipped.append(printable(name))
                    first = first or result
                row += 1
            tell(row, len(kept))
    if first is not None and not skip_bad:
        raise Undecodable.named(skipped, first, key, skipping)
    if row != len(kept):
        raise UserError(f"{key}.path: {row} images were read where {len(kept)} were listed; did the files just change?")
    return split


class Undecodable(UserError):
    """The images that cannot be decoded, all in one line; ``reason`` is the first one's."""

    names: list[str]
    reason: BadImage

    @classmethod
    def named(cls, names: list[str], reason: BadImage, key: str, skipping: str) -> Undecodable:
        """The error with its line. (An error whose constructor takes other arguments does not survive pickling.)"""
        if len(names) == 1:
            problem, them = f"{names[0]} cannot be decoded ({reason})", "it"
        else:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            listed = ", ".join(names[:MOST_NAMED]) + more
            problem, them = f"{len(names)} images cannot be decoded: {listed} (the first: {reason})", "them"
        error = cls(f"{key}.on_bad_image: {problem}; mend or remove {them}, or {skipping} to leave such images out")
        error.names, error.reason = names, reason
        return error.setting(reason.to_set)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; its file is removed at the end."""
    descriptor = locked(path, math.inf)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
