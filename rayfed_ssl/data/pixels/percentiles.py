"""The range of images of more than 8 bits by percentiles of the training images' pixels (``data.range=percentiles``).

The range is the 0.5th and the 99.5th percentile of all pixels of all training images of more than 8 bits together: the
smallest value that at least that share of the pixels does not exceed. Test images do not count, nor do images of one
value alone, the padding of DICOM files, missing data, transparent pixels, colours that the range of their bits alone
scales (such as JPEG 2000's), and images that cannot be decoded.

Pixels are counted by value, so the result does not depend on the order or on threads, and memory does not grow with the
images. Whole numbers from -32,768 to 65,535, as 16 bits hold, are counted one by one in one pass. Other values are
counted as float32 in two passes, exactly too: first by their upper 16 bits, then, where these are a percentile's, by
their lower 16 bits. Colours share one range. Bands have a range each, counted in the same passes, which takes 2.4 MB a
band; an image counts for the bands in which it has several values.

Shape legend: P pixels that count of one image, C bands.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.decoding.bit_depth import PERCENTILES, Range, Ranges
from rayfed_ssl.data.decoding.decode import high_bit_depth_values
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.threads import mapped_blocks, tell
from rayfed_ssl.data.images import BadImage, Listing, Payload
from rayfed_ssl.data.pixels.store import Undecodable

SHARES = (5, 995)  # of a thousand pixels
WHOLE = (-(2**15), 2**16 - 1)  # the whole numbers that are counted one by one
_HALF = 2**16  # values of 16 bits


def kept_range(
    listing: Callable[[], Listing], form: ImageForm, file: Path, key: str = "data", skipping: str = ""
) -> Range | Ranges:
    """As ``percentile_range``, but read from ``file`` if that is there, else computed and written there. It is not
    written if the run is going to be refused for images that cannot be decoded. The file's name depends on the images
    and on the settings that they are read with.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(file.read_text(encoding="utf-8"))["range"]
        pairs = tuple((float(low), float(high)) for low, high in (kept if form.are_bands else [kept]))
        if len(pairs) == (form.channels if form.are_bands else 1) and all(low < high for low, high in pairs):
            return pairs if form.are_bands else pairs[0]
    value_range, whole = percentile_range(listing(), form, key, skipping)
    if skipping and not whole:  # later, when all images can be decoded, this file would be taken for the range of all
        return value_range
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"range": value_range})
        replace_file(file, lambda draft: draft.write_text(text, encoding="utf-8"), file.parent, shared=True)
    return value_range


def percentile_range(listing: Listing, form: ImageForm, key: str, skipping: str) -> tuple[Range | Ranges, bool]:
    """The (low, high) percentile of the listed images' pixels, in float32; for bands, C such pairs. And whether all
    images could be decoded.

    Args:
        skipping: what to do to leave out images that cannot be decoded, for a message; empty if they are left out.
    Raises:
        UserError: no image has more than 8 bits, those that have are of one value each or are colours that no other
            range than that of their bits scales, or both percentiles of the pixels, or of one band, are the same.
        Undecodable: no pixel was counted, and some images cannot be decoded.
    """
    bands = [Counts() for _ in range(form.channels)] if form.are_bands else [Counts()]
    whole = _over(listing, form, bands, key, skipping)
    if not bands[0].total and bands[0].colours:
        raise UserError(_needs_its_own_range(bands[0].colours, key))
    numbers = form.bands or range(1, form.channels + 1)
    of_bands = [f"band {number} of " for number in numbers] if form.are_bands else [""]
    allowed = f"[low, high], or {form.channels} of these" if form.are_bands else "null, or [low, high]"
    for counts, which in zip(bands, of_bands, strict=True):
        if counts.total:
            continue
        if counts.blank:
            reason = f"{which}all {counts.blank} training images of more than 8 bits are of one value each"
            raise UserError(f"{key}.range: found {PERCENTILES}, but {reason}; allowed: {allowed}")
        raise UserError(
            f"{key}.range: found {PERCENTILES}, but no training image has more than 8 bits; allowed: "
            f"{'null' if form.are_bands else allowed}"
        )
    if not all(counts.all_whole for counts in bands):
        for counts in bands:
            counts.refine()
        _over(listing, form, bands, key, skipping)
    ranges = tuple(counts.range for counts in bands)
    for counts, which, (low, high) in zip(bands, of_bands, ranges, strict=True):
        if low == high:
            raise UserError(
                f"{key}.range: found {PERCENTILES}, but the 0.5th and the 99.5th percentile of the pixels of {which}"
                f"{counts.images} training images of more than 8 bits are both {low:g}; allowed: {allowed}"
            )
    return ranges if form.are_bands else ranges[0], whole


def _needs_its_own_range(colours: Mapping[int, int], key: str) -> str:
    """The message if only colours could be scaled, and these by the range of their bits alone. ``colours`` says how
    many files have how many bits a channel.
    """
    most = 2 ** max(colours) - 1
    return (
        f"{key}.range: found {PERCENTILES}, but the pixels of {sum(colours.values())} training images of "
        f"{' and '.join(map(str, sorted(colours)))} bits per channel can only be scaled by the range of these bits; "
        f"allowed: [0, {most}], if they use all of it, or convert them to 8 bits"
    )


def _over(listing: Listing, form: ImageForm, bands: list[Counts], key: str, skipping: str) -> bool:
    """Count the pixels of every image of more than 8 bits in ``bands``, and return whether all images could be decoded.
    Raises Undecodable if nothing was counted, some images cannot be decoded, and these are not left out.
    """

    def count(payload: Payload) -> bool:
        values = high_bit_depth_values(payload, form)
        if isinstance(values, int):
            bands[0].add_colours(values)
            return False
        parts = [values[..., band] for band in range(len(bands))] if form.are_bands else [values]
        if form.nodata is not None:
            parts = [part[np.isfinite(part)] for part in parts]
        elif not np.isfinite(values).all():
            return False
        decoded = [counts.add(part) for counts, part in zip(bands, parts, strict=True)]
        return any(decoded)

    added, done, broken = False, 0, list[str]()
    first: BadImage | None = None
    for names, results in mapped_blocks(listing.read(), count):
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BadImage):
                broken.append(printable(name))
                first = first or result
            else:
                added |= result
        tell(done := done + len(names), len(listing.labels))
    if first is not None and skipping and not added:
        raise Undecodable.named(broken, first, key, skipping)
    return first is None


@dataclass
class Counts:
    """How many pixels have which value. Several threads may ``add`` at the same time.

    ``images`` is the number of images that were counted, ``blank`` the number of images of one value. ``colours``
    counts files of colours by their bits per channel, if these are more than 8, before ``refine``. ``whole`` counts the
    pixels of images with whole numbers alone, ``upper`` those of other images by the upper 16 bits of their ordered
    float32. After ``refine`` all images are added again; ``buckets`` are then the upper 16 bits of the two percentiles,
    and ``lower`` counts the values with these by their lower 16 bits.
    """

    images: int = 0
    blank: int = 0
    colours: dict[int, int] = field(default_factory=dict)
    whole: NDArray[np.int64] = field(default_factory=lambda: np.zeros(WHOLE[1] - WHOLE[0] + 1, np.int64))
    upper: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_HALF, np.int64))
    buckets: tuple[int, int] | None = None
    lower: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, _HALF), np.int64))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def total(self) -> int:
        return int(self.whole.sum() + self.upper.sum())

    @property
    def all_whole(self) -> bool:
        return not self.upper.any()

    def add(self, values: NDArray[np.float64]) -> bool:
        """Count the values of an image, in any shape, unless it holds NaN or infinity. Returns whether it does not, and
        has values at all.
        """
        flat = values.reshape(-1)
        if not len(flat) or not np.isfinite(flat).all():
            return False
        low, high = flat.min(), flat.max()
        if low == high:
            with self._lock:
                self.blank += self.buckets is None
            return True
        if self.buckets is not None:
            keys = ordered(flat)
            lower = [np.bincount(keys[keys >> 16 == bucket] & (_HALF - 1), minlength=_HALF) for bucket in self.buckets]
            with self._lock:
                self.lower += np.stack(lower)
            return True
        is_whole = WHOLE[0] <= low and high <= WHOLE[1] and bool((flat == np.rint(flat)).all())
        if is_whole:
            counts = np.bincount((flat - WHOLE[0]).astype(np.int64), minlength=len(self.whole))
        else:
            counts = np.bincount(ordered(flat) >> 16, minlength=_HALF)
        with self._lock:
            self.images += 1
            if is_whole:
                self.whole += counts
            else:
                self.upper += counts
        return True

    def add_colours(self, bits: int) -> None:
        """Count a file of colours of so many bits per channel, or an image of 8 bits, which does not count."""
        with self._lock:
            if bits > 8 and self.buckets is None:
                self.colours[bits] = self.colours.get(bits, 0) + 1

    def refine(self) -> None:
        """Begin the second pass, which counts the lower bits of values whose upper bits are a percentile's."""
        whole = ordered(np.arange(WHOLE[0], WHOLE[1] + 1, dtype=np.float64)) >> 16
        upper = self.upper.copy()
        np.add.at(upper, whole, self.whole)
        low, high = (int(np.searchsorted(np.cumsum(upper), rank)) for rank in self.ranks)
        self.upper, self.buckets = upper, (low, high)
        self.whole[:] = 0

    @property
    def ranks(self) -> tuple[int, int]:
        """The ranks of the two percentiles among the pixels, in ascending order from 1."""
        low, high = (-(-share * self.total // 1000) for share in SHARES)
        return low, high

    @property
    def range(self) -> Range:
        """The (low, high) percentile."""
        if self.buckets is None:
            ends = np.cumsum(self.whole)
            low, high = (float(np.searchsorted(ends, rank) + WHOLE[0]) for rank in self.ranks)
            return low, high
        before = np.concatenate([[0], np.cumsum(self.upper)])
        keys = [
            int(bucket << 16 | np.searchsorted(np.cumsum(counts), rank - before[bucket]))
            for bucket, counts, rank in zip(self.buckets, self.lower, self.ranks, strict=True)
        ]
        low, high = unordered(np.array(keys, np.int64)).tolist()
        return low, high


def ordered(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers of 32 bits in the order of the values as float32. They are the bits of the float32, of which all
    are inverted for negative values, and the sign alone for others.
    """
    most = np.finfo(np.float32).max
    bits = (values.clip(-most, most).astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.int64)  # no -0
    return np.asarray(np.where(bits >> 31, 2**32 - 1 - bits, bits + 2**31))


def unordered(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """The values from which ``ordered`` makes the whole numbers ``keys``."""
    bits = np.where(keys >> 31, keys - 2**31, 2**32 - 1 - keys).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)
