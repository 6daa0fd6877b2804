"""Partitions against counting, the papers' rules by hand, and the moments of the Dirichlet distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.partition import (
    ClassBlocks,
    ClassesPerClient,
    Dirichlet,
    Iid,
    Natural,
    PartitionConfig,
    hold_out,
    label_histogram,
    partition,
)
from rayfed_ssl.data.partition_base import NaturalClients

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
NATURAL = np.random.default_rng(1).integers(0, 4, len(LABELS))
CONFIGS = [Iid(), Dirichlet(alpha=0.3), ClassesPerClient(classes=5), ClassBlocks(classes=2), Natural()]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_shards_are_sorted_disjoint_within_the_indices_and_a_function_of_the_seed(config):
    indices = np.arange(0, len(LABELS), 2)[::-1]
    shards = partition(config, LABELS, 4, 7, NaturalClients(NATURAL), indices)
    together = np.concatenate(shards)
    assert len(shards) == 4
    assert all(shard.dtype == np.int64 and (np.diff(shard) > 0).all() for shard in shards)
    assert len(np.unique(together)) == len(together)
    assert set(together) <= set(indices)
    again = partition(config, LABELS, 4, 7, NaturalClients(NATURAL), indices[::-1])
    other = partition(config, LABELS, 4, 8, NaturalClients(NATURAL), indices)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    same = all(np.array_equal(a, b) for a, b in zip(shards, other, strict=True))
    assert same == isinstance(config, ClassBlocks | Natural)  # those draw nothing
    if isinstance(config, Iid | Dirichlet | ClassesPerClient | Natural):
        assert len(together) == len(indices)  # 4 clients x 5 classes / 10: two parts a class, all dealt


def test_iid_sizes_differ_by_one_at_most_and_classes_mix():
    shards = partition(Iid(), LABELS, 7, 0)
    assert sorted({len(shard) for shard in shards}) == [142, 143]
    assert label_histogram(shards, LABELS, 10).min() > 2


def test_dirichlet_spread_has_the_distributions_variance():
    """Var of one share is (1/N)(1 - 1/N)/(N alpha + 1); 300 classes give it to a few per cent."""
    labels = np.repeat(np.arange(300), 200)
    for alpha in (0.1, 1.0, 100.0):
        shares = label_histogram(partition(Dirichlet(alpha=alpha), labels, 5, 3), labels, 300) / 200
        assert np.allclose(shares.sum(axis=0), 1)
        assert shares.var() == pytest.approx(0.2 * 0.8 / (5 * alpha + 1), rel=0.1)


def test_dirichlet_redraws_until_the_smallest_client_is_large_enough():
    sizes = [
        min(map(len, partition(Dirichlet(alpha=0.1, min_size=least), LABELS, 5, seed)))
        for least in (10, 60)
        for seed in range(20)
    ]
    assert min(sizes[:20]) >= 10
    assert min(sizes[20:]) >= 60
    assert min(sizes[:20]) < 60  # so the bound is what made the difference


def test_dirichlet_default_bound_is_ten_or_half_the_mean():
    assert min(len(s) for seed in range(30) for s in partition(Dirichlet(alpha=0.05), LABELS, 6, seed)) >= 10
    few = np.repeat(np.arange(2), 12)  # half the mean of 4 clients is 3
    assert min(len(s) for seed in range(30) for s in partition(Dirichlet(alpha=0.5), few, 4, seed)) == 3


@pytest.mark.parametrize(("clients", "classes"), [(5, 2), (4, 3), (7, 2), (10, 1), (3, 10)])
def test_classes_per_client_follows_easyfls_rule(clients, classes):
    shards = partition(ClassesPerClient(classes=classes), LABELS, clients, 1)
    counts = label_histogram(shards, LABELS, 10)
    parts = math.ceil(clients * classes / 10)
    part_sizes = {100 // parts, -(-100 // parts)}
    assert ((counts > 0).sum(axis=1) == classes).all()
    assert set(counts[counts > 0]) <= part_sizes
    used = (counts > 0).sum(axis=0)
    assert used.max() <= parts
    assert used.max() - used.min() <= 1  # the least-used class comes first


def test_ties_between_classes_are_broken_at_random():
    """Of ten classes that nobody holds yet, a first client gets any two: each about 2 times in 10."""
    held = [
        label_histogram(partition(ClassesPerClient(classes=2), LABELS, 5, seed), LABELS, 10)[0] for seed in range(60)
    ]
    often = np.array([counts > 0 for counts in held]).sum(axis=0)
    assert often.sum() == 120
    assert often.min() >= 2
    assert often.max() <= 30


def test_class_blocks_are_fedscs():
    shards = partition(ClassBlocks(), LABELS, 5, 0)
    expected = np.kron(np.eye(5, dtype=int), [100, 100])
    assert np.array_equal(label_histogram(shards, LABELS, 10), expected)
    left_over = label_histogram(partition(ClassBlocks(classes=1), LABELS, 3, 0), LABELS, 10)
    assert left_over.sum(axis=0).tolist() == [100] * 3 + [0] * 7


def test_folders_give_each_client_its_group():
    shards = partition(Natural(), np.full(len(NATURAL), -1), 4, 0, NaturalClients(NATURAL))
    assert all((NATURAL[shard] == client).all() for client, shard in enumerate(shards))


def test_histogram_leaves_unlabelled_images_out():
    assert label_histogram([np.array([0, 1, 2]), np.array([3])], np.array([1, -1, 1, 0]), 3).tolist() == [
        [0, 2, 0],
        [1, 0, 0],
    ]


def test_hold_out_takes_the_share_and_leaves_the_rest():
    public, rest = hold_out(1000, 0.25, 5)
    assert len(public) == 250
    assert np.array_equal(np.sort(np.concatenate([public, rest])), np.arange(1000))
    assert np.array_equal(public, hold_out(1000, 0.25, 5)[0])
    assert not np.array_equal(public, hold_out(1000, 0.25, 6)[0])
    assert [len(part) for part in hold_out(3, 0.01, 0)] == [1, 2]
    with pytest.raises(UserError, match=r"data\.public\.share"):
        hold_out(10, 1.0, 0)


@pytest.mark.parametrize(
    ("config", "labels", "clients", "natural", "message"),
    [
        (Iid(), LABELS[:3], 4, None, r"clients\.count: 4.*3 images"),
        (
            Dirichlet(),
            np.full(50, -1),
            2,
            None,
            r"data\.partition\.name: dirichlet.*50 of 50.*iid, quantity, .*folders",
        ),
        (ClassesPerClient(classes=11), LABELS, 2, None, r"data\.partition\.classes: 11.*have 10"),
        (ClassesPerClient(classes=2), LABELS[:12], 10, None, r"clients\.count: class \d"),
        (ClassBlocks(), LABELS, 3, None, r"clients\.count: 10 classes cannot be divided among 3"),
        (ClassBlocks(classes=4), LABELS, 3, None, r"data\.partition\.classes.*need 12.*have 10"),
        (Dirichlet(alpha=0.01, min_size=150), LABELS, 6, None, r"data\.partition\.alpha: 0\.01.*min_size=150.*best"),
        (Dirichlet(min_size=300), LABELS, 5, None, r"data\.partition\.min_size: 300.*1000"),
        (Natural(), LABELS, 4, None, r"data\.layout=clients"),
        (Natural(), LABELS, 3, NATURAL, r"clients\.count: 3.*4 client folders or values"),
        (Natural(), LABELS, 4, np.full(len(NATURAL), -1), r"no training image has a client"),
        (
            Natural(min_size=400),
            LABELS,
            4,
            NATURAL,
            r"min_size: found 400, .* client \d, has \d+ images .* at most 2\d\d$",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(config, labels, clients, natural, message):
    with pytest.raises(UserError, match=message) as error:
        partition(config, labels, clients, 0, NaturalClients(natural))
    assert "\n" not in str(error.value)


def test_a_client_whose_images_are_all_held_out_is_refused_by_its_name_or_left_out():
    rest, held = np.flatnonzero((NATURAL != 2) & (NATURAL != 3)), int((NATURAL == 2).sum())
    with pytest.raises(
        UserError, match=rf"client 2 \(c\) has no image to train on, nor have 1 more \(all {held} of its .*select\)"
    ):
        partition(Natural(), LABELS, 4, 0, NaturalClients(NATURAL, "abcd"), rest)
    with pytest.raises(UserError, match=r"client 4 \(e\) has no .*if it has any.*; data\.partition\.min_size=1 leaves"):
        partition(Natural(), LABELS, 5, 0, NaturalClients(NATURAL, "abcde"))
    with pytest.raises(UserError, match=r"client 2 has no image"):
        partition(Natural(), LABELS, 4, 0, NaturalClients(NATURAL), rest)
    for names, clients in (("abcd", 4), ("abcde", 5)):
        shards = partition(Natural(min_size=1), LABELS, clients, 0, NaturalClients(NATURAL, names), rest)
        assert [len(shard) for shard in shards] == [*np.bincount(NATURAL)[:2], *[0] * (clients - 2)]
    least = int(np.sort(np.bincount(NATURAL))[1])
    shards = partition(Natural(min_size=least), LABELS, 4, 0, NaturalClients(NATURAL))
    assert [len(shard) for shard in shards] == [size if size >= least else 0 for size in np.bincount(NATURAL)]


def test_images_that_are_no_clients_are_nobodys():
    natural = np.where(np.arange(len(NATURAL)) % 5 == 0, -1, NATURAL)
    shards = partition(Natural(), LABELS, 4, 0, NaturalClients(natural))
    assert [shard.tolist() for shard in shards] == [np.flatnonzero(natural == client).tolist() for client in range(4)]


def test_configuration_is_a_tagged_union():
    adapter = TypeAdapter(PartitionConfig)
    assert adapter.validate_python({"name": "dirichlet", "alpha": "1e-2"}) == Dirichlet(alpha=0.01)
    for wrong in ({"name": "iid", "alpha": 1}, {"name": "dirichlet", "alpha": 0}, {"name": "classes"}):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
