"""Digests of each image's pixels, which recognise a copy without the images themselves.

8 bytes an image: of a million different images and a hundred thousand others, two have the same number with a
probability of 5e-9. What is found is kept beside the images in the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.files import replace_file


def pixel_digests(pixels: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """(N, S, S, C) -> (N,) the first 8 bytes of each image's BLAKE2b."""
    found = b"".join(hashlib.blake2b(np.ascontiguousarray(one).data, digest_size=8).digest() for one in pixels)
    return np.frombuffer(found, "<u8").astype(np.uint64)


def kept_digests(pixels: NDArray[np.uint8], digest: str, file: Path) -> NDArray[np.uint64]:
    """As ``pixel_digests``; read from ``file`` where it is of the images with this digest, else found and written
    there. A file that cannot be written is found anew by the next process.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, zipfile.BadZipFile), np.load(file) as kept:
        if str(kept["images"]) == digest and len(kept["digests"]) == len(pixels):
            return np.asarray(kept["digests"], np.uint64)
    found = pixel_digests(pixels)
    with contextlib.suppress(OSError):
        replace_file(file, lambda draft: _save(draft, digest, found), file.parent, shared=True)
    return found


def _save(file: Path, digest: str, found: NDArray[np.uint64]) -> None:
    with file.open("wb") as opened:  # to a path that does not end in .npz NumPy would add it
        np.savez(opened, images=np.array(digest), digests=found)
