"""QSGD's quantiser against a loop over values, its expectation, and bits that are really packed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rayfed_ssl.base import quantizing
from rayfed_ssl.base.quantizing import dequantized, levels_of, quantized, quantized_bytes

BITS, BUCKETS = range(2, 9), (1, 3, 16, 1000)


def values(count: int, seed: int = 0) -> np.ndarray:
    """Of many magnitudes, some of them 0, with a bucket of zeros among them."""
    draws = np.random.default_rng(seed)
    vector = draws.normal(size=count) * 10.0 ** draws.integers(-6, 3, count)
    vector[draws.random(count) < 0.1] = 0.0
    vector[16:32] = 0.0
    return vector.astype(np.float32)


def by_the_book(vector: np.ndarray, bits: int, bucket: int, draws: np.random.Generator) -> list[float]:
    """Alistarh et al. 2017, section 3.1, value by value, with the largest magnitude of the bucket for its norm."""
    s, found = 2 ** (bits - 1) - 1, []
    for i, v in enumerate(vector.tolist()):
        start = i // bucket * bucket
        norm = max(abs(u) for u in vector[start : start + bucket].tolist())
        u = draws.random()
        if norm == 0:
            found.append(0.0)
            continue
        ratio = abs(v) * s / norm  # of the paper's |v_i| / ||v|| in [l / s, (l + 1) / s]
        level = math.floor(ratio)
        if u < ratio - level:
            level += 1
        found.append(math.copysign(norm * level / s, v))
    return found


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("block", [64, 1 << 16])
def test_it_is_the_loop_over_values(bits: int, bucket: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many values are worked on at a time."""
    monkeypatch.setattr(quantizing, "BLOCK", block)
    vector = values(250)
    coded = quantized(vector, bits, bucket, np.random.default_rng(7))
    expected = by_the_book(vector, bits, bucket, np.random.default_rng(7))
    decoded = dequantized(*coded, bits, bucket)
    assert decoded.dtype == np.float32
    assert decoded.tolist() == np.array(expected, np.float32).tolist()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_its_expectation_is_the_value(bits: int) -> None:
    """The mean of R draws of a variable in an interval of length w differs from its expectation by more than
    ``w sqrt(ln(2 / p) / 2R)`` with probability p at most (Hoeffding); the seed is fixed.
    """
    repeats, probability = 4000, 1e-9
    vector = values(40)
    draws = np.random.default_rng(1)
    total = np.zeros(len(vector))
    for _ in range(repeats):
        total += dequantized(*quantized(vector, bits, 8, draws), bits, 8)
    scale = np.repeat(np.abs(vector).reshape(-1, 8).max(1), 8)
    width = scale / levels_of(bits)
    bound = width * math.sqrt(math.log(2 * len(vector) / probability) / (2 * repeats)) + 1e-6 * scale
    assert (np.abs(total / repeats - vector) <= bound).all()
    rounded_down = np.trunc(vector / np.where(scale > 0, width, 1)) * width
    assert (np.abs(rounded_down - vector) > bound).any(), "the bound would not notice rounding down"


@pytest.mark.parametrize("bits", BITS)
def test_what_has_to_be_exact_is(bits: int) -> None:
    draws = np.random.default_rng(0)
    for constant in (0.0, -3.7, 1e-42, 3e38):
        vector = np.full(37, constant, np.float32)
        assert np.array_equal(dequantized(*quantized(vector, bits, 10, draws), bits, 10), vector)
    vector = values(300)
    decoded = dequantized(*quantized(vector, bits, 16, draws), bits, 16)
    largest = np.abs(vector) == np.repeat(np.maximum.reduceat(np.abs(vector), np.arange(0, 300, 16)), 16)[:300]
    assert largest.any()
    assert np.array_equal(decoded[largest], vector[largest])
    assert not decoded[vector == 0].any()
    grid = np.arange(-levels_of(bits), levels_of(bits) + 1).astype(np.float32)
    assert np.array_equal(dequantized(*quantized(grid, bits, 1000, draws), bits, 1000), grid)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 250])
def test_the_bytes_are_those_of_packed_bits_that_decode_to_the_same(bits: int, count: int) -> None:
    """A message as it would cross: b bits of level + s for each value, and the scales."""
    vector, bucket, s = values(250)[:count], 16, 2 ** (bits - 1) - 1
    levels, scales = quantized(vector, bits, bucket, np.random.default_rng(3))
    positive = (levels.astype(np.int64) + s)[:, None] >> np.arange(bits)  # (n, b)
    message = np.packbits(positive.astype(np.uint8) & 1).tobytes() + scales.tobytes()
    assert len(message) == quantized_bytes(count, bits, bucket)
    cut = len(message) - scales.nbytes
    received = np.unpackbits(np.frombuffer(message[:cut], np.uint8), count=bits * count).reshape(count, bits)
    back = (received.astype(np.int64) << np.arange(bits)).sum(1) - s
    norms = np.frombuffer(message[cut:], np.float32)
    decoded = dequantized(back.astype(np.int8), norms, bits, bucket)
    assert decoded.tobytes() == dequantized(levels, scales, bits, bucket).tobytes()


def test_a_bucket_of_zeros_is_divided_by_nothing() -> None:
    with np.errstate(divide="raise", invalid="raise"):
        levels, scales = quantized(np.array([0, 0, 5], np.float32), 4, 2, np.random.default_rng(0))
    assert levels.tolist() == [0, 0, 7]
    assert scales.tolist() == [0, 5]


def test_the_same_numbers_give_the_same_levels_and_others_give_others() -> None:
    vector = values(250)
    first, same, other = (quantized(vector, 4, 16, np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_only_finite_values(broken: float) -> None:
    vector = values(250)
    vector[249] = broken
    with pytest.raises(ValueError, match="only finite values can be quantized"):
        quantized(vector, 4, 16, np.random.default_rng(0))
