"""QSGD's stochastic uniform quantisation (Alistarh et al. 2017, section 3): unbiased, with few bits a value.

The vector is cut into buckets of d consecutive values, the last of which may be shorter. With ``m`` the largest
magnitude in a bucket and ``s = 2^(b-1) - 1``, a value v becomes ``m sgn(v) l / s``. The level l is ``|v| s / m``
rounded up or down at random such that its expectation is this number: ``E[m sgn(v) l / s] = v``. A message has, for
each value, its level and sign in b bits, and for each bucket m as float32.

Differs: m is the bucket's largest magnitude, as in the paper's experiments (section 5); the paper's analysis has the
2-norm. Levels take b bits each, without the paper's variable-length code, so the number of bytes does not depend on the
values.

Shape legend: n values, k = ceil(n / d) buckets.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BLOCK = 1 << 16  # values processed at a time, so that the temporaries stay in the CPU's cache


def levels_of(bits: int) -> int:
    """s, the largest level that ``bits`` can hold beside the sign."""
    return int(2 ** (bits - 1) - 1)


def quantized(vector: np.ndarray, bits: int, bucket: int, draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A vector's signed levels (n,) int8, each of magnitude at most s, and its buckets' scales m (k,) float32.

    A value of magnitude m, and 0, are exact. A bucket of zeros has scale 0.

    Args:
        vector: (n,) float32.
        bits: b, the bits of a value, 2 to 8.
        bucket: d, the number of values that share a scale.
        draws: gives one number in [0, 1) for each value, in order.
    Raises:
        ValueError: a value is NaN or infinite.
    """
    levels, scales = np.empty(vector.size, np.int8), np.empty(-(-vector.size // bucket), np.float32)
    for part, buckets in _blocks(vector.size, bucket):
        values = vector[part].astype(np.float64)
        magnitudes = np.abs(values)
        largest = np.maximum.reduceat(magnitudes, np.arange(0, values.size, bucket))
        if not np.isfinite(largest).all():
            raise ValueError("only finite values can be quantized")
        scale = _spread(largest, bucket, values.size)
        exact = np.zeros(values.size)  # |v| s / m
        np.divide(magnitudes * levels_of(bits), scale, out=exact, where=scale > 0)
        lower = np.floor(exact)
        levels[part] = np.copysign(lower + (draws.random(values.size) < exact - lower), values)
        scales[buckets] = largest
    return levels, scales


def dequantized(levels: np.ndarray, scales: np.ndarray, bits: int, bucket: int) -> np.ndarray:
    """``m l / s``, rounded to float32: signed levels (n,) and scales (k,) -> (n,)."""
    vector = np.empty(levels.size, np.float32)
    for part, buckets in _blocks(levels.size, bucket):
        scale = _spread(scales[buckets].astype(np.float64), bucket, len(levels[part]))
        vector[part] = scale * levels[part] / levels_of(bits)
    return vector


def quantized_bytes(count: int, bits: int, bucket: int) -> int:
    """Bytes of ``count`` quantized values: their levels, packed, and a float32 for each bucket."""
    return -(-bits * count // 8) + 4 * -(-count // bucket)


def _blocks(count: int, bucket: int) -> Iterator[tuple[slice, slice]]:
    """(slice of values, slice of their buckets) for whole buckets, about ``BLOCK`` values at a time."""
    several = max(1, BLOCK // bucket)
    for first in range(0, -(-count // bucket), several):
        yield slice(first * bucket, min((first + several) * bucket, count)), slice(first, first + several)


def _spread(scales: np.ndarray, bucket: int, count: int) -> np.ndarray:
    """The scale of each of ``count`` values."""
    return np.repeat(scales, bucket)[:count]
