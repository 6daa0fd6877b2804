"""Digests of each image's pixels, which recognise a copy without the images themselves.

A digest has 8 bytes: between a million different images and a hundred thousand others, any two have the same one with a
probability of 5e-9. The digests are kept beside the images in the cache.
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
    """The digest (N,) of each image (N, S, S, C): its BLAKE2b of 8 bytes."""
    digests = b"".join(hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest() for image in pixels)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def kept_digests(pixels: NDArray[np.uint8], digest: str, file: Path) -> NDArray[np.uint64]:
    """As ``pixel_digests``, but read from ``file`` if that was written for the images with this digest, else computed
    and written there. If the file cannot be written, the next process computes them again.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, zipfile.BadZipFile), np.load(file) as kept:
        if str(kept["images"]) == digest and len(kept["digests"]) == len(pixels):
            return np.asarray(kept["digests"], np.uint64)
    digests = pixel_digests(pixels)
    with contextlib.suppress(OSError):
        replace_file(file, lambda draft: _save(draft, digest, digests), file.parent, shared=True)
    return digests


def _save(file: Path, digest: str, digests: NDArray[np.uint64]) -> None:
    with file.open("wb") as opened:  # NumPy adds .npz to a path that does not end in it
        np.savez(opened, images=np.array(digest), digests=digests)
