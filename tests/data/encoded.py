"""Encoded images, some of kinds that Pillow does not write: TIFF of bands, PNG of 16-bit colours."""

from __future__ import annotations

import io
import struct
import zlib
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest


def banded(
    bands: int, bits: int, photometric: int, extra: int | None = None, big: bool = False, kind: int | None = None
) -> bytes:
    """A little-endian TIFF of 8 x 8 pixels in one strip, by the specification: the value of each byte is its place in
    its pixel. ``extra``: what the bands after the colours are; ``kind``: the SampleFormat."""
    pixel = bytes(range(bands * bits // 8))
    data = pixel * 64
    colours = 3 if photometric == 2 else 1
    tags = {256: [8], 257: [8], 258: [bits] * bands, 259: [1], 262: [photometric], 273: [0], 277: [bands], 278: [8]}
    tags |= {279: [len(data)]} | ({} if extra is None else {338: [extra] * (bands - colours)})
    tags |= {} if kind is None else {339: [kind] * bands}
    count, offset, room = ("Q", "Q", 8) if big else ("H", "I", 4)
    start = 16 if big else 8
    end = start + struct.calcsize(f"<{count}") + len(tags) * (20 if big else 12) + struct.calcsize(f"<{offset}")
    beyond, entries = b"", b""
    for tag, values in tags.items():
        raw = struct.pack(f"<{len(values)}H", *values)
        if len(raw) > room:
            beyond, raw = beyond + raw, struct.pack(f"<{offset}", end + len(beyond))
        entries += struct.pack(f"<HH{offset}", tag, 3, len(values)) + raw.ljust(room, b"\0")
    place = struct.pack(f"<HH{offset}", 273, 3, 1)
    entries = entries.replace(place + bytes(room), place + struct.pack("<H", end + len(beyond)).ljust(room, b"\0"))
    header = struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) if big else struct.pack("<2sHI", b"II", 42, 8)
    return header + struct.pack(f"<{count}", len(tags)) + entries + struct.pack(f"<{offset}", 0) + beyond + data


def png16(values: np.ndarray, *extra: bytes) -> bytes:
    """A PNG (ISO 15948) of uint16 (H, W, C), C = 2, 3 or 4; ``extra`` chunks stand before or, of eXIf, behind it."""
    height, width, channels = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    before, behind = (
        [_chunk(part[:4], part[4:]) for part in extra if (part[:4] == b"eXIf") == late] for late in (0, 1)
    )
    parts = (_chunk(b"IHDR", header), *before, _chunk(b"IDAT", zlib.compress(rows)), *behind, _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def grey_png(values: np.ndarray, bits: int, clear: int) -> bytes:
    """A PNG (ISO 15948) of grey ``values`` (H, W) of so many bits, of which ``clear`` is transparent (tRNS)."""
    places = (values[..., None].astype(np.int64) >> np.arange(bits)[::-1] & 1).astype(np.uint8)
    rows = b"".join(b"\0" + np.packbits(row.reshape(-1)).tobytes() for row in places)
    head = struct.pack(">IIBBBBB", *values.shape[::-1], bits, 0, 0, 0, 0)
    parts = (_chunk(b"IHDR", head), _chunk(b"tRNS", struct.pack(">H", clear)), _chunk(b"IDAT", zlib.compress(rows)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + _chunk(b"IEND", b"")


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def high_bit_depth_colour() -> bytes:
    """A PNG of 2 x 2 pixels of three colours of 16 bits, all 0x1234."""
    return png16(np.full((2, 2, 3), 0x1234, np.uint16))


def needs_tifffile() -> ModuleType:
    """The module; skips the test where it is not installed."""
    return cast(ModuleType, pytest.importorskip("tifffile", reason="tifffile is not installed (extra tiff)"))


def tiff(values: np.ndarray, **how: Any) -> bytes:
    tifffile = needs_tifffile()
    file = io.BytesIO()
    tifffile.imwrite(file, values, **{"photometric": "rgb", **how})
    return file.getvalue()
