"""The pixel store: images are decoded once into an Arrow IPC file and memory-mapped ever after.

One file holds one split as one record batch, so that the pixels come back as one contiguous (N, S, S, 3) array without
a copy; every process of a machine shares its pages. A file appears under its final name only when complete, and a lock
makes processes that want the same split at the same time build it once. While it is built the split takes twice its
size on disk (raw pixels, then the Arrow file), but only a few blocks of it in memory.

Shape legend: N images, S image size.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.images import Images, Listing, Payload

FORMAT = 1
BLOCK = 256
SAMPLED_ROWS = 64


class BadImage(Exception):
    """An image that cannot be decoded; the text is the reason."""


class BadStore(Exception):
    """A store file that is truncated, damaged or of another format."""


@dataclass(frozen=True)
class Stored:
    """What a store file holds: the images, a digest of all of them, and the names of those left out."""

    images: Images
    digest: str
    skipped: tuple[str, ...]


def default_cache() -> Path:
    """``$RAYFED_SSL_CACHE``, or ``~/.cache/rayfed-ssl``."""
    return Path(os.environ.get("RAYFED_SSL_CACHE") or "~/.cache/rayfed-ssl").expanduser()


def decode(payload: Payload, size: int, max_pixels: int) -> NDArray[np.uint8]:
    """Decode an image to RGB pixels (size, size, 3): its central square, resized with PIL's antialiased bilinear.

    That is "short side to ``size``, then centre crop" in one step. Large JPEGs are decoded at a half, quarter or eighth
    where that still leaves at least twice ``size``. 16-bit grey keeps its high byte; EXIF orientation is not applied.
    Raises BadImage for anything that cannot be decoded and for images of more than ``max_pixels`` pixels, before their
    pixels are read.
    """
    if payload is None:
        raise BadImage("no image bytes")
    try:
        with _opened(payload) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise BadImage(f"{width}x{height} pixels, more than max_pixels={max_pixels}")
            image.draft("RGB", (2 * size, 2 * size))
            return _square(_rgb(image), size)
    except BadImage:
        raise
    except Exception as error:  # decoders of damaged files raise anything: OSError, SyntaxError, struct.error, ...
        raise BadImage(" ".join(f"{type(error).__name__}: {error}".split())) from error


def _opened(payload: bytes | Path | NDArray[np.uint8]) -> Image.Image:
    if isinstance(payload, np.ndarray):
        return Image.fromarray(np.ascontiguousarray(payload))
    return Image.open(io.BytesIO(payload) if isinstance(payload, bytes) else payload)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def _square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    width, height = image.size
    if (width, height) != (size, size):
        short = min(width, height)
        left, top = (width - short) / 2, (height - short) / 2
        box = (left, top, left + short, top + short)
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image, dtype=np.uint8)


def cached(
    path: Path, listing: Callable[[], Listing], size: int, max_pixels: int, skip_bad: bool, key: str = "data"
) -> Stored:
    """The split stored at ``path``; decoded and written there first where it is absent or damaged.

    Safe when several processes ask at once. Raises UserError for an image that cannot be decoded (unless ``skip_bad``)
    and for a cache folder that cannot be written.
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
                _write(path, listing(), size, max_pixels, skip_bad, key)
    except OSError as error:
        raise UserError(f"cache {path.parent}: cannot be written ({error}); set RAYFED_SSL_CACHE") from error
    return read(path)


def read(path: Path) -> Stored:
    """Map a store file. The pixels are a read-only view of the file; labels and groups likewise.

    Raises BadStore where the file is absent, cut short, of another format, or where its labels, groups or 64 evenly
    spaced images do not match the digest written with them (all rows would take seconds per gigabyte).
    """
    try:
        with pa.memory_map(str(path)) as mapped:
            batch = pa.ipc.open_file(mapped).get_batch(0)
        head = json.loads(batch.schema.metadata[b"rayfed_ssl"])
        pixels, labels = _pixels(batch.column("pixels"), head["size"]), batch.column("label").to_numpy()
        groups = batch.column("group").to_numpy() if head["grouped"] else None
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise BadStore(f"{path}: {error}") from error
    if head["format"] != FORMAT or head["check"] != _check(pixels, labels, groups):
        raise BadStore(f"{path}: the content does not match its digest")
    images = Images(pixels, labels, tuple(head["class_names"]), groups, tuple(head["group_names"]))
    return Stored(images, head["digest"], tuple(head["skipped"]))


def _pixels(column: pa.FixedSizeBinaryArray, size: int) -> NDArray[np.uint8]:
    shape = (len(column), size, size, 3)
    return np.frombuffer(column.buffers()[1], dtype=np.uint8).reshape(shape) if len(column) else _empty(size)


def _check(pixels: NDArray[np.uint8], labels: NDArray[np.int64], groups: NDArray[np.int64] | None) -> str:
    """A digest that is cheap to compute at every opening: all labels and groups, and a sample of the images."""
    digest = hashlib.blake2b(str(pixels.shape).encode(), digest_size=16)
    for row in np.linspace(0, len(labels) - 1, SAMPLED_ROWS).astype(np.int64) if len(labels) else ():
        digest.update(pixels[row].data)
    digest.update(labels.data)
    if groups is not None:
        digest.update(groups.data)
    return digest.hexdigest()


def _write(path: Path, listing: Listing, size: int, max_pixels: int, skip_bad: bool, key: str) -> None:
    raw, partial = path.with_suffix(".raw.tmp"), path.with_suffix(".arrow.tmp")
    try:
        kept, skipped, digest = _decode_to(raw, listing, size, max_pixels, skip_bad, key)
        labels = np.ascontiguousarray(listing.labels[kept], dtype=np.int64)
        groups = None if listing.groups is None else np.ascontiguousarray(listing.groups[kept], dtype=np.int64)
        names = {"class_names": listing.class_names, "group_names": listing.group_names}
        for part in (labels.data, groups.data if groups is not None else b"", json.dumps(names).encode()):
            digest.update(part)
        pixels = np.memmap(raw, np.uint8, "r", shape=(len(labels), size, size, 3)) if len(labels) else _empty(size)
        head = {"format": FORMAT, "size": size, "grouped": groups is not None, "skipped": skipped} | names
        head |= {"check": _check(pixels, labels, groups), "digest": digest.hexdigest()}
        _write_arrow(partial, pixels, labels, groups, json.dumps(head))
        os.replace(partial, path)
    finally:
        raw.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def _empty(size: int) -> NDArray[np.uint8]:
    return np.empty((0, size, size, 3), np.uint8)


def _write_arrow(
    path: Path, pixels: NDArray[np.uint8], labels: NDArray[np.int64], groups: NDArray[np.int64] | None, head: str
) -> None:
    width = int(np.prod(pixels.shape[1:]))
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(labels), [None, pa.py_buffer(pixels)])
    columns = {"pixels": column, "label": pa.array(labels)}
    if groups is not None:
        columns["group"] = pa.array(groups)
    batch = pa.RecordBatch.from_pydict(columns).replace_schema_metadata({"rayfed_ssl": head})
    with open(path, "wb") as file:
        with pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())


def _decode_to(
    raw: Path, listing: Listing, size: int, max_pixels: int, skip_bad: bool, key: str
) -> tuple[NDArray[np.bool_], list[str], hashlib.blake2b]:
    """Append the decoded images to ``raw``; returns the rows kept (N,), the names left out, the pixels' digest."""
    kept = np.zeros(len(listing.labels), dtype=np.bool_)
    skipped: list[str] = []
    digest = hashlib.blake2b(digest_size=16)
    row = 0
    with open(raw, "wb") as file:
        for names, results in _decoded_blocks(listing.read(), size, max_pixels):
            for name, result in zip(names, results, strict=True):
                if not isinstance(result, BadImage):
                    kept[row] = True
                    file.write(result.data)
                    digest.update(result.data)
                elif skip_bad:
                    skipped.append(name)
                else:
                    raise UserError(
                        f"{key}.on_bad_image: {name} cannot be decoded ({result}); mend or remove it, or set "
                        f"{key}.on_bad_image=skip to leave such images out"
                    )
                row += 1
    if row != len(kept):
        raise UserError(f"{key}.path: {row} images were read where {len(kept)} were listed; did the files just change?")
    return kept, skipped, digest


Block = tuple[list[str], list[NDArray[np.uint8] | BadImage]]


def _decoded_blocks(rows: Iterator[tuple[str, Payload]], size: int, max_pixels: int) -> Iterator[Block]:
    """Decode blocks of rows in threads (PIL lets go of the interpreter lock), in order, a bounded number at a time."""

    def decode_block(block: list[tuple[str, Payload]]) -> Block:
        results: list[NDArray[np.uint8] | BadImage] = []
        for _, payload in block:
            try:
                results.append(np.ascontiguousarray(decode(payload, size, max_pixels)))
            except BadImage as error:
                results.append(error)
        return [name for name, _ in block], results

    threads = min(16, os.cpu_count() or 1)
    waiting: deque[Future[Block]] = deque()
    with ThreadPoolExecutor(threads) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL warns of large and odd images; what cannot be used is reported by name
        try:
            while block := list(islice(rows, BLOCK)):
                waiting.append(pool.submit(decode_block, block))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the empty lock file stays."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
