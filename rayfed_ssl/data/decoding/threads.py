"""Decodes images in threads, block by block, with a bound on how many are in memory."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import numpy as np

from rayfed_ssl.data.decoding.decode import Decoded, ImageForm, decode
from rayfed_ssl.data.images import BadImage, Payload

BLOCK = 256  # images decoded, and checked, at a time
PART_BYTES, WAITING_BYTES = 8 * 2**20, 256 * 2**20  # of encoded images: those one thread decodes, those not decoded yet
THREADS = min(16, os.cpu_count() or 1)
TOLD_S = 10.0  # seconds of decoding between two lines
DECODERS = r"(PIL|pillow_heif|tifffile|pydicom|imagecodecs|rayfed_ssl\.data\.decoding\.(bit_depth|dicom.*))(\.|$)"
"""Modules that warn of large and odd images; what cannot be used is reported by name."""
Name = TypeVar("Name")
Result = TypeVar("Result")

_filtering, _decoding = threading.Lock(), 0  # how many decode just now
_teller: ContextVar[Callable[[int, int], None] | None] = ContextVar("teller", default=None)


@contextlib.contextmanager
def decoding_told(say: Callable[[str], object]) -> Iterator[None]:
    """A line every ``TOLD_S`` seconds that images of a split are decoded for the cache meanwhile."""
    last = time.monotonic()

    def told(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= TOLD_S:
            last = time.monotonic()
            say(f"decoding images: {done} of {total} ({done / total:.0%})")

    token = _teller.set(told)
    try:
        yield
    finally:
        _teller.reset(token)


def tell(done: int, total: int) -> None:
    """Report that so many of a split's images are decoded, where a report was asked for."""
    if (told := _teller.get()) is not None:
        told(done, total)


def decoded_blocks(
    rows: Iterator[tuple[Name, Payload]], form: ImageForm, size: int = BLOCK
) -> Iterator[tuple[list[Name], list[Decoded | BadImage]]]:
    """Decode blocks of ``size`` rows, as ``mapped_blocks``. ``Name`` is whatever tells rows apart."""
    return mapped_blocks(rows, lambda payload: decode(payload, form), size)


def mapped_blocks(
    rows: Iterator[tuple[Name, Payload]], work: Callable[[Payload], Result], size: int = BLOCK
) -> Iterator[tuple[list[Name], list[Result | BadImage]]]:
    """What ``work`` makes of blocks of ``size`` rows, in threads (PIL lets go of the interpreter lock), in order, a
    bounded number of rows and of bytes at a time. Warnings of ``DECODERS`` are off meanwhile.
    """

    def decode_part(part: list[tuple[Name, Payload]]) -> tuple[list[Name], list[Result | BadImage]]:
        results: list[Result | BadImage] = []
        for _, payload in part:
            try:
                results.append(work(payload))
            except BadImage as error:
                results.append(error)
        return [name for name, _ in part], results

    waiting: deque[tuple[int, Future[tuple[list[Name], list[Result | BadImage]]]]] = deque()
    names: list[Name] = []
    results: list[Result | BadImage] = []
    parts = _parts(rows, size)
    with _quiet(), ThreadPoolExecutor(THREADS) as pool:
        try:
            while (part := next(parts, None)) or waiting:
                if part:
                    waiting.append((sum(map(_bytes_of, part)), pool.submit(decode_part, part)))
                while waiting and (
                    not part or len(waiting) > 2 * THREADS or sum(weight for weight, _ in waiting) > WAITING_BYTES
                ):
                    more, decoded = waiting.popleft()[1].result()
                    names, results = names + more, results + decoded
                    if len(names) == size:
                        yield names, results
                        names, results = [], []
            if names:
                yield names, results
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Warnings of ``DECODERS`` are off in all of the process, for no thread has filters of its own: until nobody
    decodes any more. Other filters stay as they are, also those that are set meanwhile.
    """
    global _decoding
    with _filtering:
        _decoding += 1
        warnings.filterwarnings("ignore", module=DECODERS)
    try:
        yield
    finally:
        with _filtering:
            _decoding -= 1
            if not _decoding:
                filters = cast("list[Any]", warnings.filters)  # a list, which typeshed calls a sequence
                filters[:] = [one for one in filters if getattr(one[3], "pattern", None) != DECODERS]


def _parts(rows: Iterator[tuple[Name, Payload]], size: int) -> Iterator[list[tuple[Name, Payload]]]:
    """Blocks of ``size`` rows, cut where their encoded images come to ``PART_BYTES``."""
    part, weight = list[tuple[Name, Payload]](), 0
    for count, row in enumerate(rows, 1):
        part.append(row)
        weight += _bytes_of(row)
        if count % size == 0 or weight >= PART_BYTES:
            yield part
            part, weight = [], 0
    if part:
        yield part


def _bytes_of(row: tuple[object, Payload]) -> int:
    """How much memory a row's encoded image takes; a file's has not been read."""
    payload = row[1]
    if isinstance(payload, bytes):
        return len(payload)
    return payload.nbytes if isinstance(payload, np.ndarray) else 0
