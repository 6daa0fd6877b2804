"""Finds test images that almost equal a training image, such as frames of one video or shots of one burst.

All images are reduced to grey thumbnails. For each test image, the training image is found whose 8 x 8 thumbnail
correlates most with its own. The two almost equal each other if their 32 x 32 thumbnails correlate by ``ALIKE`` or
more, and the differences of these thumbnails from their local means of 3 x 3 pixels by ``ALIKE_DETAIL`` or more. Images
of less contrast than ``LEAST_CONTRAST`` and images smaller than 16 x 16 are not compared, and exact copies are not
counted (see ``copies``).

False alarms were measured at 32 x 32: 4 of 5,368 test images of Fashion-MNIST are found beside 25,000 training images,
none of 2,684 of CIFAR-10 beside 50,000, and none of 360 of scikit-learn's digits. Of 1,000 drawn images with one to
three smooth spots on black, beside 5,000 others, 9 are found without noise and none with noise of half a grey level; of
1,000 of a bright organ with three smooth spots, 1 without noise and none with two grey levels. So a note is made only
if ``LEAST_SHARE`` of the compared test images or more are found. Of 80 pairs of frames of one photograph, with noise,
another exposure and JPEG's losses, 79 are found if nothing moves, a third if the camera moves by 0.5% of the image's
side, and none if it moves by 1% or more: a pan is not found.

At most ``MOST_PAIRS`` pairs of images are compared, at most ``MOST_TRAINED`` training images, and at most so many of
either split as ``MOST_TRAINED_BYTES`` and ``MOST_TESTED_BYTES`` hold, all evenly spaced. In memory, on a busy core:
2,236 test images beside 60,000 training images of 32 x 32 x 3 take 2.2 s, and 10,000 beside 65,536 of 224 x 224 x 3,
of which 4,704 and 28,532 are compared, 5.2 s.

Shape legend: N training images, M test images, S image side, C channels, T side of a thumbnail, K images found.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.images import are_bands

ALIKE, ALIKE_DETAIL = 0.998, 0.97  # correlations
LEAST_CONTRAST = 4.0  # grey levels: the standard deviation of a thumbnail's pixels
LEAST_SHARE = 0.01  # of the compared test images, for a note
LEAST_FOUND = 2  # images, for a note
MOST_SHOWN = 2  # pairs named as examples
SIDE, COARSE = 32, 8  # pixels, of thumbnails
LEAST_SIDE = 16  # pixels, of images that are compared
MOST_TRAINED, MOST_PAIRS = 2**16, 2**27
MOST_TRAINED_BYTES, MOST_TESTED_BYTES = 2**32, 2**30  # of the pixels of the images that are compared
BLOCK, BLOCK_BYTES = 512, 2**25  # images, and bytes of them, at a time
_GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601-2


@dataclass(frozen=True)
class NearCopies:
    """What was found. ``pairs`` (K, 2) are rows: a test image, and the training image that it almost equals. ``tested``
    test images were compared with ``trained`` training images; ``sampled`` says whether there are more of either.
    """

    pairs: list[tuple[int, int]]
    tested: int
    trained: int
    sampled: bool = False

    @property
    def many(self) -> bool:
        """Whether the pairs are enough for a note."""
        return len(self.pairs) >= max(LEAST_FOUND, LEAST_SHARE * self.tested)


def kept_near_copies(
    train: NDArray[np.uint8], test: NDArray[np.uint8], copied: NDArray[np.bool_], digest: str, file: Path
) -> NearCopies:
    """As ``near_copies``, but read from ``file`` if that was written for the images with this digest, else found and
    written there. If the file cannot be written, the next process searches again.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["images"] == digest:
            pairs = [(int(row), int(other)) for row, other in kept["pairs"]]
            return NearCopies(pairs, int(kept["tested"]), int(kept["trained"]), bool(kept["sampled"]))
    near = near_copies(train, test, copied)
    text = json.dumps({"images": digest, **asdict(near)})
    with contextlib.suppress(OSError):
        replace_file(file, lambda draft: draft.write_text(text, encoding="utf-8"), file.parent, shared=True)
    return near


def near_copies(train: NDArray[np.uint8], test: NDArray[np.uint8], copied: NDArray[np.bool_]) -> NearCopies:
    """The test images that almost equal a training image.

    Args:
        train: (N, S, S, C).
        test: (M, S, S, C).
        copied: (M,) which test images are not compared, because they equal a training image.
    """
    if not len(train) or not len(test) or train.shape[1] < LEAST_SIDE:
        return NearCopies([], 0, 0)
    size = train[0].nbytes
    trained = _spread(np.arange(len(train)), max(1, min(MOST_TRAINED, MOST_TRAINED_BYTES // size)))
    others = np.flatnonzero(~copied)
    tested = _spread(others, max(1, min(MOST_PAIRS // len(trained), MOST_TESTED_BYTES // size)))
    coarse = np.concatenate([_units(_thumbnails(train[rows], COARSE)) for rows in _blocks(trained, size)])
    pairs: list[tuple[int, int]] = []
    for rows in _blocks(tested, size):
        near = trained[(_units(_thumbnails(test[rows], COARSE)) @ coarse.T).argmax(axis=1)]
        alike = _alike(_thumbnails(test[rows], SIDE), _thumbnails(train[near], SIDE))
        pairs += zip(rows[alike].tolist(), near[alike].tolist(), strict=True)
    return NearCopies(pairs, len(tested), len(trained), len(tested) < len(others) or len(trained) < len(train))


def note(
    found: NearCopies, images: tuple[int, int], names: tuple[Sequence[str], Sequence[str]], key: str
) -> tuple[Note, ...]:
    """A line on what was found, if the pairs are ``many``.

    Args:
        images: how many images the training and the test split have.
        names: the names of the first pairs' training images, and of their test images.
        key: the key that keeps images together, such as ``data.group``.
    """
    if not found.many:
        return ()
    (trained, tested), (theirs, ours) = images, names
    sample = f" that were compared (of {tested}, with {found.trained} of {trained} training images)"
    examples = " and ".join(f"{printable(a, 80)} with {printable(b, 80)}" for a, b in zip(ours, theirs, strict=True))
    compared = f"{found.tested} test images{sample if found.sampled else ''}"
    text = f"{len(found.pairs)} of {compared} almost equal a training image"
    return (
        Note(
            f"{text} ({examples}): accuracy on them is partly memory; if they are frames of one video, or shots of one "
            f"burst, keep these on one side, as {key} does where images are held out",
            f"{text}: accuracy on them is partly memory",
        ),
    )


def _blocks(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """The rows of images of ``size`` bytes each, in blocks that fit into memory."""
    at_once = max(1, min(BLOCK, BLOCK_BYTES // size))
    return [rows[start : start + at_once] for start in range(0, len(rows), at_once)]


def _spread(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most ``most`` of the rows, evenly spaced."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


def _thumbnails(pixels: NDArray[np.uint8], side: int) -> NDArray[np.float32]:
    """Grey thumbnails (n, T, T) of ``pixels`` (n, S, S, C), by means; T is the smaller of ``side`` and S."""
    whole = pixels.shape[1]
    if whole <= side:
        return _grey(pixels)
    edges = np.arange(side + 1) * whole // side
    sizes = np.diff(edges)
    rows = np.empty((len(pixels), side, *pixels.shape[2:]), np.min_scalar_type(255 * int(sizes.max())))
    for row, (start, end) in enumerate(pairwise(edges.tolist())):  # whole numbers are four times as fast at S = 224
        np.add.reduce(pixels[:, start:end], axis=1, dtype=rows.dtype, out=rows[:, row])
    sums = np.add.reduceat(_grey(rows), edges[:-1], axis=2)
    return np.asarray(sums / (sizes[:, None] * sizes), np.float32)


def _grey(pixels: NDArray[np.unsignedinteger]) -> NDArray[np.float32]:
    """The grey values (..) of ``pixels`` (.., C); the mean of bands."""
    if are_bands(pixels.shape[-1]):
        return np.asarray(pixels.mean(axis=-1, dtype=np.float32))
    return np.asarray(pixels @ _GREY if pixels.shape[-1] == 3 else pixels[..., 0], np.float32)


def _units(thumbnails: NDArray[np.float32]) -> NDArray[np.float32]:
    """Thumbnails (n, T, T) as vectors (n, T * T) of mean 0 and length 1, whose products are correlations. A thumbnail
    whose pixels are all the same becomes 0.
    """
    flat = thumbnails.reshape(len(thumbnails), -1)
    centred = flat - flat.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.where(length > 1e-3, length, np.inf), np.float32)


def _alike(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether each pair of thumbnails ``a`` and ``b`` (n, T, T) almost equal each other, (n,)."""
    contrast = np.minimum(a.std(axis=(1, 2)), b.std(axis=(1, 2))) >= LEAST_CONTRAST
    whole = (_units(a) * _units(b)).sum(axis=1) >= ALIKE
    detail = (_units(a - _local_means(a)) * _units(b - _local_means(b))).sum(axis=1) >= ALIKE_DETAIL
    return np.asarray(contrast & whole & detail)


def _local_means(thumbnails: NDArray[np.float32]) -> NDArray[np.float32]:
    """The means (n, T, T) of 3 x 3 pixels around each pixel; beyond the edge its pixels are repeated."""
    side = thumbnails.shape[1]
    padded = np.pad(thumbnails, ((0, 0), (1, 1), (1, 1)), mode="edge")
    shifted = [padded[:, down : down + side, right : right + side] for down in range(3) for right in range(3)]
    return np.asarray(sum(shifted, np.zeros_like(thumbnails)) / 9, np.float32)
