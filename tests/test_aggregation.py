"""Fixed-point means: equal to a float64 mean, to the bit independent of order and grouping, and loud about what does
not fit.
"""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from rayfed_ssl.base.flat import flatten
from rayfed_ssl.base.weights import Resident, Weights, pack, plain
from rayfed_ssl.federated.aggregation import (
    FixedPointSum,
    MixedArchitectures,
    NonFinite,
    _add_fixed_on_device,
)


def clients(count: int, seed: int = 0) -> tuple[list[float], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 100, count)
    values = [rng.normal(0, 10 ** rng.uniform(-3, 3), 70_001).astype(np.float32) for _ in range(count)]
    return (sizes / sizes.sum()).tolist(), values


def summed(weights: list[float], values: list[np.ndarray], order: tuple[int, ...]) -> FixedPointSum:
    total = FixedPointSum()
    for k in order:
        total.add(weights[k], {"x": values[k]})
    return total


def to_fixed(weight: float, values: np.ndarray) -> np.ndarray:
    """The integers that one client adds to a sum."""
    return np.asarray(summed([weight], [values], (0,)).totals["x"])


def test_equals_a_float64_mean() -> None:
    weights, values = clients(5)
    mean = summed(weights, values, tuple(range(5))).mean()["x"]
    expected = sum(w * v.astype(np.float64) for w, v in zip(weights, values, strict=True))
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-11)


def test_fixed_points_are_the_nearest() -> None:
    """Exact fractions: half a step of 2^-40 away at most, above as often as below."""
    values = np.random.default_rng(0).normal(size=200).astype(np.float32)
    exact = [Fraction(float(value)) * Fraction(0.3) * 2**40 for value in values]
    gaps = [int(fixed) - value for fixed, value in zip(to_fixed(0.3, values), exact, strict=True)]
    assert max(map(abs, gaps)) <= Fraction(501, 1000)  # the product is rounded, too
    assert Fraction(1, 4) < max(gaps)
    assert min(gaps) < Fraction(-1, 4)


def test_order_and_grouping_change_no_bit_where_float_sums_would() -> None:
    weights, values = clients(4)
    means = [summed(weights, values, order).mean()["x"] for order in itertools.permutations(range(4))]
    assert all(np.array_equal(means[0], other) for other in means)
    left, right = summed(weights, values, (3, 1)), summed(weights, values, (0, 2))
    left.merge(right)
    assert np.array_equal(left.mean()["x"], means[0])

    def float_sum(order: tuple[int, ...]) -> np.ndarray:
        total = np.zeros_like(values[0])
        for k in order:
            total += np.float32(weights[k]) * values[k]
        return total

    assert any(not np.array_equal(float_sum((0, 1, 2, 3)), float_sum(o)) for o in itertools.permutations(range(4)))


def test_equal_inputs_come_back_whatever_the_weights() -> None:
    """Averaging is idempotent."""
    value = np.linspace(-3, 3, 1001, dtype=np.float32)
    total = FixedPointSum()
    for weight in (0.1, 0.2, 0.7):
        total.add(weight, {"x": value})
    np.testing.assert_allclose(total.mean()["x"], value, rtol=2e-7, atol=1e-11)


def test_those_who_did_not_reply_do_not_shrink_the_mean() -> None:
    """Weights over everybody, summed over those present, must be renormalised."""
    total = FixedPointSum()
    total.add(0.3, {"x": np.full(3, 2.0, np.float32)})
    total.add(0.4, {"x": np.full(3, 2.0, np.float32)})
    np.testing.assert_allclose(total.mean()["x"], 2.0, rtol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e6, 1e30])
def test_what_does_not_fit_is_refused(bad: float) -> None:
    values = np.zeros(40_000, np.float32)
    values[39_999] = bad
    with pytest.raises(NonFinite):
        to_fixed(0.5, values)


def test_different_architectures_are_refused() -> None:
    total = FixedPointSum()
    total.add(0.5, {"weights": Weights("a", np.zeros(3, np.float32), 3)})
    with pytest.raises(MixedArchitectures, match="weights"):
        total.add(0.5, {"weights": Weights("b", np.zeros(3, np.float32), 3)})


def test_read_only_sums_are_not_written_to() -> None:
    """A sum out of an object store is read-only; merging into it must copy."""
    first, second = FixedPointSum(), FixedPointSum()
    second.add(0.5, {"x": np.ones(4, np.float32)})
    second.totals["x"].flags.writeable = False
    first.merge(second)
    first.merge(second)
    np.testing.assert_allclose(first.mean()["x"], 1.0)


def flat_network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    flatten(made)
    return made  # type: ignore[no-any-return]


def test_resident_weights_sum_to_the_bits_of_plain_ones() -> None:
    """In their own order, mixed with plain ones on either side, merged, and sent."""
    given = [pack(flat_network(k)) for k in range(4)]
    assert all(isinstance(w, Resident) for w in given)

    def total(*which: Weights) -> FixedPointSum:
        made = FixedPointSum()
        for k, weights in enumerate(which):
            made.add(0.1 * (k + 1), {"w": weights})
        return made

    expected = total(*map(plain, given)).mean()["w"]
    for some in (given, [given[0], plain(given[1]), *given[2:]], [plain(given[0]), *given[1:]]):
        found = total(*some).mean()["w"]
        np.testing.assert_array_equal(found.vector, expected.vector, strict=True)
        assert (found.layout, found.parameters) == (expected.layout, expected.parameters)
    halves = [FixedPointSum(), FixedPointSum()]
    for k, weights in enumerate(given):
        halves[k % 2].add(0.1 * (k + 1), {"w": weights})
    halves[0].merge(pickle.loads(pickle.dumps(halves[1])))
    np.testing.assert_array_equal(halves[0].mean()["w"].vector, expected.vector, strict=True)


def test_a_refused_client_leaves_the_sum_as_it_was() -> None:
    """A running sum goes on after a client's NaN, in the first field or the last."""
    total, good = FixedPointSum(), {"a": np.ones(3, np.float32), "b": np.full(2, 5, np.float32)}
    total.add(0.5, good)
    for name in good:
        with pytest.raises(NonFinite):
            total.add(0.25, {**good, name: np.full(good[name].shape, np.nan, np.float32)})
    with pytest.raises(MixedArchitectures):
        total.add(0.25, {"a": good["a"], "b": np.ones(3, np.float32)})
    total.add(0.5, good)
    assert total.weight == 2**40
    assert total.mean()["b"].tolist() == [5, 5]


def test_large_values_and_the_device_way_give_the_same_integers() -> None:
    """Above 2^10 the integers are rounded in another way; on a GPU in a third."""
    values = np.random.default_rng(0).normal(size=50_000).astype(np.float32)
    for scale in (1.0, 900.0, 1e5):
        scaled = (values * scale).astype(np.float32)
        expected = np.rint(scaled.astype(np.float64) * (0.3 * 2.0**40)).astype(np.int64)
        np.testing.assert_array_equal(to_fixed(0.3, scaled), expected)
        total = torch.zeros(values.size, dtype=torch.int64)
        _add_fixed_on_device(total, torch.from_numpy(scaled), 0.3 * 2.0**40)
        np.testing.assert_array_equal(total.numpy(), expected)
