"""FedLinked's splits against every count the thesis prints (Table 4.1)."""

from __future__ import annotations

import numpy as np
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.tasks import private_counts, split_tasks

CIFAR = [[3, 4, 5, 7], [3, 4, 6], [0, 1, 8, 9]]  # cat deer dog horse; cat deer frog; airplane automobile ship truck
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))


@pytest.mark.parametrize(
    ("total", "es", "test", "rb", "train"),
    [
        (6000, 600, 540, 486, 4374),
        (4500, 450, 405, 365, 3280),
        (7477, 748, 673, 606, 5450),  # the three SVHN clients, whose counts are all rounded up
        (8119, 812, 731, 658, 5918),
        (12822, 1283, 1154, 1039, 9346),
    ],
)
def test_private_counts_are_table_4_1(total, es, test, rb, train):
    assert private_counts(total) == {"es": es, "test": test, "rb": rb, "train": train}


def test_cifar_split_is_table_4_1():
    clients, public = split_tasks(LABELS, CIFAR, 0.25, seed=1, per_slot=2000)
    counts = [{name: len(part) for name, part in client.items()} for client in clients]
    assert counts[0] == counts[2] == {"train": 4374, "es": 600, "rb": 486, "test": 540}
    assert counts[1] == {"train": 3280, "es": 450, "rb": 365, "test": 405}
    assert len(public) == 5500
    everything = np.concatenate([public, *(part for client in clients for part in client.values())])
    assert len(np.unique(everything)) == 22_000
    for client, task in zip(clients, CIFAR, strict=True):
        held = LABELS[np.concatenate(list(client.values()))]
        assert np.bincount(held, minlength=10)[task].tolist() == [1500] * len(task)
        assert set(held) == set(task)
    assert np.bincount(LABELS[public], minlength=10).tolist() == [500, 500, 0, 1000, 1000, 500, 500, 500, 500, 500]
    assert all((np.diff(part) > 0).all() for client in clients for part in [public, *client.values()])


def test_as_many_as_the_data_allow():
    clients, public = split_tasks(LABELS, CIFAR, 0.25, seed=1)  # cat and deer serve two clients: 2,500 a slot
    assert sum(map(len, clients[0].values())) == 4 * 1875
    assert len(public) == 11 * 625


def test_the_split_is_a_function_of_the_seed():
    first, again, other = (split_tasks(LABELS, CIFAR, 0.25, seed, 100) for seed in (1, 1, 2))
    assert np.array_equal(first[1], again[1])
    assert all(np.array_equal(first[0][c][s], again[0][c][s]) for c in range(3) for s in ("train", "es", "rb", "test"))
    assert not np.array_equal(first[1], other[1])


@pytest.mark.parametrize(
    ("tasks", "share", "per_slot", "message"),
    [
        ([], 0.25, None, r"data\.tasks: empty"),
        ([[0, 0], [1]], 0.25, None, r"data\.tasks: task 0"),
        ([[0], [10]], 0.25, None, r"data\.tasks: class 10 has 0 images for 1 clients"),
        (CIFAR, 0.25, 2501, r"data\.tasks: class 3 has 5000 images for 2 clients; 2501"),
        (CIFAR, 1.0, None, r"data\.public\.share: 1\.0"),
        ([[0], [1]], 0.25, 4, r"data\.tasks: client 0 keeps 3 images"),
    ],
)
def test_what_does_not_fit_is_refused(tasks, share, per_slot, message):
    with pytest.raises(UserError, match=message):
        split_tasks(LABELS, tasks, share, 0, per_slot)
