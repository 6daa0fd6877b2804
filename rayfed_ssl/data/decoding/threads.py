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

from rayfed_ssl.data.decoding.decode import decode
from rayfed_ssl.data.decoding.decoded import Decoded
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.images import BadImage, Payload

BLOCK = 256  # images decoded, and checked, at a time
PART_BYTES = 8 * 2**20  # of encoded images that one thread decodes at a time
WAITING_BYTES = 256 * 2**20  # of encoded images that are read and not decoded yet
THREADS = min(16, os.cpu_count() or 1)
TOLD_S = 10.0  # seconds of decoding between two lines
DECODERS = r"(PIL|pillow_heif|tifffile|pydicom|imagecodecs|rayfed_ssl\.data\.decoding\.(bit_depth|dicom.*))(\.|$)"
"""The modules whose warnings about large and odd images are off; images that cannot be used are reported by name."""
Name = TypeVar("Name")
Result = TypeVar("Result")

_filtering, _decoding = threading.Lock(), 0  # a lock on the filters, and how many calls decode at the moment
_report: ContextVar[Callable[[int, int], None] | None] = ContextVar("report", default=None)


@contextlib.contextmanager
def decoding_told(say: Callable[[str], object]) -> Iterator[None]:
    """While images are decoded within, ``say`` is called with a line every ``TOLD_S`` seconds: how many are done."""
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= TOLD_S:
            last = time.monotonic()
            say(f"decoding images: {done} of {total} ({done / total:.0%})")

    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def tell(done: int, total: int) -> None:
    """Report that ``done`` of a split's ``total`` images are decoded, if ``decoding_told`` asks for it."""
    if (report := _report.get()) is not None:
        report(done, total)


def decoded_blocks(
    rows: Iterator[tuple[Name, Payload]], form: ImageForm, size: int = BLOCK
) -> Iterator[tuple[list[Name], list[Decoded | BadImage]]]:
    """Decode blocks of ``size`` rows, as ``mapped_blocks`` does. ``Name`` is whatever tells rows apart."""
    return mapped_blocks(rows, lambda payload: decode(payload, form), size)


def mapped_blocks(
    rows: Iterator[tuple[Name, Payload]], work: Callable[[Payload], Result], size: int = BLOCK
) -> Iterator[tuple[list[Name], list[Result | BadImage]]]:
    """Yields blocks of ``size`` rows, in order: their names, and what ``work`` makes of their images, or the BadImage
    that it raises.

    The work is done in threads (Pillow releases the interpreter lock), on a bounded number of rows and bytes at a time.
    Warnings of ``DECODERS`` are off meanwhile.
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
    """Turns the warnings of ``DECODERS`` off until no call decodes any more: in the whole process, because threads have
    no filters of their own. Other filters stay as they are, also those that are set meanwhile.
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
                filters[:] = [entry for entry in filters if getattr(entry[3], "pattern", None) != DECODERS]


def _parts(rows: Iterator[tuple[Name, Payload]], size: int) -> Iterator[list[tuple[Name, Payload]]]:
    """Parts of blocks of ``size`` rows: a part ends where its block does, or where its images reach ``PART_BYTES``."""
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
    """How many bytes of memory a row's image takes before it is decoded; a file takes none, as it is not read yet."""
    payload = row[1]
    if isinstance(payload, bytes):
        return len(payload)
    return payload.nbytes if isinstance(payload, np.ndarray) else 0
