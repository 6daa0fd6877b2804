"""Flat weights and addressed randomness."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rayfed_ssl.base.seeding import forked, generator, numpy_generator, seed_of
from rayfed_ssl.base.weights import Weights, named, pack, unpack


def network(seed: int, width: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.LazyLinear(4))
    made(torch.rand(5, 3, 6, 6))  # moves the running statistics
    return made


def test_round_trip_through_one_array() -> None:
    source, target = network(0), network(1)
    packed = pack(source)
    unpack(packed, target)
    for (name, a), (_, b) in zip(source.state_dict().items(), target.state_dict().items(), strict=True):
        if a.is_floating_point():
            assert torch.equal(a, b), name
    parameters = sum(p.numel() for p in source.parameters())
    assert packed.parameters == parameters
    assert packed.vector.size == parameters + 16  # running mean and variance of 8 channels
    assert packed.wire_bytes() == {"": 4 * parameters, ".buffers": 4 * 16}


def test_parameters_first_in_named_order() -> None:
    source = network(0)
    expected = torch.cat([p.detach().reshape(-1) for p in source.parameters()]).numpy()
    np.testing.assert_array_equal(pack(source).vector[: expected.size], expected)


def test_channels_last_holds_the_same_values() -> None:
    source = network(0)
    packed = pack(source).vector
    np.testing.assert_array_equal(pack(source.to(memory_format=torch.channels_last)).vector, packed)


def test_values_by_name_are_views_of_the_modules_floating_values() -> None:
    source = network(0)
    packed = pack(source)
    views = named(packed, source)
    floating = {name: value for name, value in source.state_dict().items() if value.is_floating_point()}
    assert views.keys() == floating.keys()
    for name, value in floating.items():
        np.testing.assert_array_equal(views[name], value.numpy())
        assert np.shares_memory(views[name], packed.vector)
    with pytest.raises(ValueError, match="layout"):
        named(packed, network(0, width=4))


def test_another_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="layout"):
        unpack(pack(network(0)), network(0, width=4))
    swapped = Weights(pack(nn.Linear(3, 2)).layout, np.zeros(8, np.float32), 8)
    with pytest.raises(ValueError, match="layout"):
        unpack(swapped, nn.Linear(2, 3))


def test_counters_do_not_travel() -> None:
    source = network(0)
    assert int(source.state_dict()["1.num_batches_tracked"]) == 1
    target = network(1)
    target.state_dict()["1.num_batches_tracked"].fill_(7)
    unpack(pack(source), target)
    assert int(target.state_dict()["1.num_batches_tracked"]) == 7


def test_addresses_are_distinct_and_stable() -> None:
    addresses = [(0, 1, 2, "views"), (0, 12, "views"), (0, 1, "2", "views"), (1, 1, 2, "views"), (0, None, 2, "views")]
    assert len({seed_of(*address) for address in addresses}) == len(addresses)
    assert seed_of(0, 1, 2, "views") == seed_of(0, 1, 2, "views")
    assert torch.equal(torch.rand(3, generator=generator(1, "a")), torch.rand(3, generator=generator(1, "a")))
    assert numpy_generator(1, "a").integers(1 << 60) != numpy_generator(1, "b").integers(1 << 60)


def test_forked_seeds_the_global_generator_and_gives_it_back() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with forked(0, "x"):
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    with forked(0, "x"):
        assert torch.equal(torch.rand(4), first)
