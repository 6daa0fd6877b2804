"""NumPy's arrays in an ``.npz`` file, or as ``.npy`` files in a folder: their names, their headers, and their rows.

Nothing is unpickled: arrays of Python objects are refused by their headers. Only headers are read until rows are asked
for. An ``.npy`` file is memory-mapped. An array in an ``.npz`` file is read once from its beginning, with a few
megabytes of it in memory at a time; only if its axes are in Fortran's order is it read as a whole.

Shape legend: N rows, k of them chosen.
"""

from __future__ import annotations

import contextlib
import math
import struct
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line, printable
from rayfed_ssl.data.readers.walking import ARRAYS, read_by

AT_A_TIME = 2**20  # bytes of rows that are read from an .npz file at a time
DAMAGED = (  # what damaged files raise, beside lzma's error, as some Pythons are built without lzma
    zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, TypeError, NotImplementedError, RuntimeError,
    struct.error,
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where an array lies: in a file; if ``member`` is set, in this part of an ``.npz`` file."""

    file: Path
    member: str | None

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[IO[bytes], int]]:
        """The array's bytes as a stream, from its header on, and how many there are."""
        if self.member is None:
            with self.file.open("rb") as stream:
                yield stream, self.file.stat().st_size
            return
        with zipfile.ZipFile(self.file) as archive, archive.open(self.member) as stream:
            yield stream, archive.getinfo(self.member).file_size


@dataclass(frozen=True)
class Header:
    """What an array's header says of it; ``name`` is the array's name in its file."""

    name: str
    place: Place
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def called(self) -> str:
        """What messages call the array: "array NAME of FILE"."""
        return f"array {printable(self.name, 80)} of {printable(self.place.file)}"

    def row(self, number: int) -> str:
        """What the image in this row is called."""
        return f"{self.place.file}{'' if self.place.member is None else f' {self.name}'} row {number}"

    def whole(self, key: str) -> NDArray[Any]:
        """The values of the array. Raises UserError if it is damaged."""
        with _readable(self.called, key), self.place.opened() as (stream, _):
            return np.asarray(npy.read_array(stream, allow_pickle=False))

    def rows(self, chosen: NDArray[np.int64], key: str) -> Iterator[NDArray[Any]]:
        """The rows with the numbers ``chosen`` (k,), which ascend. Raises UserError if the array is damaged."""
        if not len(chosen):
            return
        if self.place.member is None:
            with _readable(self.called, key):
                mapped = npy.open_memmap(self.place.file, mode="r")
            yield from (mapped[row] for row in chosen)
        elif self.fortran:
            values = self.whole(key)
            yield from (values[row] for row in chosen)
        else:
            yield from self._streamed(chosen, key)

    def _streamed(self, chosen: NDArray[np.int64], key: str) -> Iterator[NDArray[Any]]:
        """As ``rows``, for an array that is read from its beginning, ``AT_A_TIME`` bytes at a time."""
        width = self.dtype.itemsize * math.prod(self.shape[1:])
        step = max(1, AT_A_TIME // max(1, width))
        with _readable(self.called, key), self.place.opened() as (stream, _):
            _header_of(stream)
            for start in range(0, int(chosen[-1]) + 1, step):
                count = min(step, self.shape[0] - start)
                block = stream.read(count * width)
                low, high = np.searchsorted(chosen, (start, start + count))
                if high > low:
                    values = np.frombuffer(block, self.dtype).reshape(count, *self.shape[1:])
                    yield from values[chosen[low:high] - start]  # a copy of these rows: the block can be freed


def arrays_at(path: Path, key: str) -> tuple[dict[str, Place], tuple[str, ...]]:
    """Where each array lies, by name and in order; and the names of other parts of an ``.npz`` file.

    Raises:
        UserError: the path is neither an ``.npz`` file nor a folder with ``.npy`` files, the file is damaged, or it has
            a name twice.
    """
    if path.is_dir():
        return _in_folder(path, key), ()
    if path.suffix.lower() == ".npy":
        raise UserError(
            f"{key}.path: {printable(path)} is one array; allowed: an .npz file, or a folder of .npy files: give "
            f"{printable(path.parent)}, and name the images in {key}.columns.image={printable(path.stem)}"
        )
    if path.suffix.lower() not in ARRAYS and (hint := read_by(path, key)):
        raise UserError(f"{key}.path: {printable(path)} is no .npz file{hint}")
    with _readable(f"{printable(path)} as .npz", key), zipfile.ZipFile(path) as archive:
        members = [info.filename for info in archive.infolist() if not info.is_dir()]
    if twice := [name for name, count in Counter(members).items() if count > 1]:
        raise UserError(f"{key}.path: {printable(path)} has {printable(twice[0], 80)} twice; allowed: each name once")
    arrays = {name.removesuffix(".npy"): Place(path, name) for name in members if name.endswith(".npy")}
    return arrays, tuple(name for name in members if not name.endswith(".npy"))


def _in_folder(path: Path, key: str) -> dict[str, Place]:
    files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    arrays = {file.stem: Place(file, None) for file in files if file.suffix.lower() == ".npy" and file.is_file()}
    if arrays:
        return arrays
    archives = [printable(file) for file in files if file.suffix.lower() == ".npz"]
    hint = f"; give one of its .npz files: {', '.join(archives[:5])}" if archives else ""
    raise UserError(
        f"{key}.path: {printable(path)} holds no .npy files; allowed: an .npz file, or a folder of them{hint}"
    )


def header(name: str, place: Place, key: str) -> Header:
    """The header of an array.

    Raises:
        UserError: the array holds Python objects, is damaged, or is not as long as its header says.
    """
    with _readable(f"array {printable(name, 80)} of {printable(place.file)}", key), place.opened() as (stream, size):
        shape, fortran, dtype = _header_of(stream)
        array = Header(name, place, shape, dtype, fortran)
        if dtype.hasobject:
            raise UserError(
                f"{key}.path: {array.called} holds Python objects, and pickles are never loaded; save numbers or text: "
                f"np.stack(images), labels.astype(int) or labels.astype(str)"
            )
        if min(shape, default=0) < 0 or size != stream.tell() + dtype.itemsize * math.prod(shape):
            raise ValueError(f"{size} bytes are not those of shape {shape} and type {dtype.name}")
    return array


def _header_of(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape of an array, whether it is in Fortran's order, and its type. The stream is left at the first value.
    Raises ValueError if there is no header that can be read.
    """
    version = npy.read_magic(stream)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"format {version} of .npy, which is of tables")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of headers that Python 2 wrote
        return readers[version](stream)


@contextlib.contextmanager
def _readable(called: str, key: str) -> Iterator[None]:
    """Turn what damaged files raise within into UserError, which calls what is read ``called``."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, DAMAGED) and type(error).__name__ != "LZMAError":
            raise
        reason = in_one_line(error)
        raise UserError(f"{key}.path: {called} cannot be read ({reason}); is it whole?") from error
