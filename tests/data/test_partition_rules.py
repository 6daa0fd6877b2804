"""Quantity skew, largest remainders and seeds of their own, against published and hand-computed numbers."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.partition import Dirichlet, Iid, Quantity, partition
from rayfed_ssl.data.partition_rules import dirichlet_largest_remainder, largest_remainder

CIFAR10 = np.repeat(np.arange(10), 5000)
CIFAR100 = np.repeat(np.arange(100), 500)


@pytest.mark.parametrize(
    ("shares", "counts"),
    [((0.55, 0.25, 0.2), (5, 3, 2)), ((0.25, 0.55, 0.2), (2, 6, 2)), ((0.34, 0.33, 0.33), (4, 3, 3))],
)
def test_largest_remainder_of_ten(shares, counts):
    assert tuple(largest_remainder(10, np.array(shares))) == counts


def sizes(labels: np.ndarray, clients: int, alpha: float, seed: int) -> list[int]:
    shards = partition(Dirichlet(alpha=alpha, rounding="largest_remainder", seed=seed), labels, clients, 0)
    assert sum(map(len, shards)) == len(labels)
    return [len(shard) for shard in shards]


def test_published_splits_come_out_again():
    """The client sizes of published CIFAR splits (alpha 0.1), made by fedbox with seeds 17 and 1."""
    assert sizes(CIFAR10, 10, 0.1, 17) == [7318, 3547, 5852, 5132, 7520, 4160, 3370, 2920, 4221, 5960]
    fifty = sizes(CIFAR10, 50, 0.1, 1)
    assert fifty[:10] == [1135, 1977, 2090, 722, 1583, 1191, 1321, 2163, 1003, 76]
    assert min(fifty) == 60
    assert sizes(CIFAR100, 10, 0.1, 1) == [5381, 4258, 7019, 4727, 5447, 4522, 3719, 6068, 3624, 5235]


def test_published_classes_and_order_come_out_again():
    shards = dirichlet_largest_remainder(np.arange(50_000), CIFAR10, 10, 0.1, 17)
    assert [int((CIFAR10[shard] == 0).sum()) for shard in shards] == [0, 0, 451, 55, 0, 3329, 1149, 0, 13, 3]
    assert shards[2][:4].tolist() == [3555, 3097, 1479, 4875]  # the shuffled class 0; clients 0 and 1 hold none of it


def test_an_alpha_that_the_legacy_generator_rounds_to_nothing_is_refused():
    lost = [seed for seed in range(50) if np.isnan(np.random.RandomState(seed).dirichlet([0.001] * 5, size=10)).any()]
    assert lost
    for seed in lost:
        with pytest.raises(UserError, match=r"data\.partition\.alpha: found 0\.001, too small"):
            dirichlet_largest_remainder(np.arange(1000), np.arange(1000) % 10, 5, 0.001, seed)


def test_largest_remainder_knows_no_bound():
    with pytest.raises(ValidationError, match=r"min_size: found 5; .*'largest_remainder' knows none"):
        Dirichlet(rounding="largest_remainder", min_size=5)
    with pytest.raises(ValidationError, match="seed: found"):
        Dirichlet(rounding="largest_remainder", seed=2**32)


def test_quantity_sizes_are_log_normal_shares_and_classes_mix():
    shards = partition(Quantity(sigma=1.0, min_size=1), CIFAR10, 2000, 5)
    logs = np.log([len(shard) for shard in shards])
    assert logs.std() == pytest.approx(1.0, rel=0.1)
    assert abs(((logs - logs.mean()) ** 3).mean()) < 0.3  # no skew left in the logarithm
    few = partition(Quantity(sigma=1.5), CIFAR10, 5, 5)
    assert len(np.unique(np.concatenate(few))) == 50_000
    for shard in few:
        expected = len(shard) / 10
        assert np.abs(np.bincount(CIFAR10[shard]) - expected).max() < 5 * np.sqrt(expected)
    assert {len(shard) for shard in partition(Quantity(sigma=0), CIFAR10, 4, 5)} == {12_500}
    assert (
        min(len(s) for seed in range(10) for s in partition(Quantity(sigma=2, min_size=300), CIFAR10, 5, seed)) >= 300
    )


def test_quantity_that_cannot_be_is_refused():
    with pytest.raises(UserError, match=r"data\.partition\.min_size: 10 images for each of 6 clients are more than"):
        partition(Quantity(), CIFAR10[:50], 6, 0)
    with pytest.raises(UserError, match=r"data\.partition\.sigma: 10\.0 .*min_size=9000 in 10000 draws"):
        partition(Quantity(sigma=10, min_size=9000), CIFAR10, 5, 0)


@pytest.mark.parametrize("kind", [Iid, Dirichlet, Quantity])
def test_a_seed_of_its_own_holds_the_split_for_every_run(kind):
    labels = CIFAR10[::50]

    def split(config, seed):
        return [shard.tolist() for shard in partition(config, labels, 4, seed)]

    assert split(kind(seed=3), 0) == split(kind(seed=3), 1) == split(kind(), 3)
    assert split(kind(), 0) != split(kind(), 1)
