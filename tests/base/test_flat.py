"""Modules in one buffer: the same values, strides and bits as modules that are not, whatever is taken of them."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.base.flat import ALIGNED, flat_of, flatten
from rayfed_ssl.base.weights import Resident, Weights, layout_of, pack, plain, unpack


def network(seed: int) -> nn.Sequential:
    """Channels-last kernels, odd sizes, BatchNorm, a counter, in two parts."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.Conv2d(7, 5, 1, bias=False), nn.BatchNorm2d(5))
    head = nn.Sequential(nn.Flatten(), nn.Linear(5 * 16, 3), nn.BatchNorm1d(3))
    made = nn.Sequential(encoder, head).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    made(torch.rand(4, 3, 6, 6))  # moves the running statistics
    return made  # type: ignore[no-any-return]


def both(seed: int) -> tuple[nn.Sequential, nn.Sequential]:
    """A network as torch makes it, and the same in one buffer."""
    apart, together = network(seed), network(seed)
    flatten(together)
    return apart, together


def test_flattening_changes_neither_values_nor_strides_nor_parameters() -> None:
    apart, together = network(0), network(0)
    before = [id(p) for p in together.parameters()]
    flatten(together)
    assert [id(p) for p in together.parameters()] == before
    for (name, a), (_, b) in zip(apart.state_dict().items(), together.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
        assert a.stride() == b.stride(), name
    floating = [t for t in together.state_dict().values() if t.is_floating_point()]
    assert len({t.untyped_storage().data_ptr() for t in floating}) == 1
    assert all(t.storage_offset() % ALIGNED == 0 for t in floating)


@pytest.mark.parametrize("parts", [lambda n: (n,), lambda n: (n[0],), lambda n: (n[1],), lambda n: (n[1], n[0])])
def test_what_is_taken_is_what_is_taken_of_modules_apart(parts: object) -> None:
    apart, together = both(0)
    a, b = pack(*parts(apart)), pack(*parts(together))  # type: ignore[operator]
    assert type(a) is Weights
    assert type(b) is Resident
    assert (a.layout, a.parameters, a.count, a.wire_bytes()) == (b.layout, b.parameters, b.count, b.wire_bytes())
    assert "vector" not in vars(b)  # none of this needed it
    np.testing.assert_array_equal(a.vector, b.vector, strict=True)
    assert b.largest == np.abs(a.vector).max()


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("part", [slice(0, 2), slice(0, 1), slice(1, 2)])
def test_what_is_loaded_arrives_and_nothing_else_changes(resident: bool, part: slice) -> None:
    (apart, together), (_, source) = both(1), both(2)
    given = pack(*list(source)[part])
    for target in (apart, together):
        unpack(given if resident else plain(given), *list(target)[part])
    np.testing.assert_array_equal(pack(*list(together)[part]).vector, given.vector)
    np.testing.assert_array_equal(pack(together).vector, pack(apart).vector)


def test_what_was_taken_does_not_follow_the_module() -> None:
    _, together = both(0)
    taken = pack(together)
    expected = pack(network(0)).vector
    with torch.no_grad():
        for parameter in together.parameters():
            parameter.add_(1.0)
    np.testing.assert_array_equal(taken.vector, expected)


def test_the_same_vector_is_laid_out_once_and_another_in_its_place_is_not_mistaken_for_it() -> None:
    _, together = both(0)
    given = plain(pack(network(3)))
    flat = flat_of((together,), lambda: layout_of(together))
    assert flat is not None
    assert flat.laid(given.vector) is not flat.laid(given.vector)  # a caller may write to it
    given.vector.flags.writeable = False
    again = given.vector[:]  # as the next call's argument: the same memory, another object
    assert flat.laid(given.vector) is flat.laid(again)
    other = given.vector + 1
    other.flags.writeable = False
    unpack(given.with_vector(other), together)
    np.testing.assert_array_equal(pack(together).vector, other)


def test_training_gives_the_same_bits() -> None:
    def trained(net: nn.Module) -> np.ndarray:
        optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=1e-2)
        images = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(0))
        images = images.contiguous(memory_format=torch.channels_last)
        for _ in range(3):
            optimizer.zero_grad()
            net(images).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        return pack(net).vector

    apart, together = both(4)
    np.testing.assert_array_equal(trained(apart), trained(together))


def test_a_module_that_changed_is_looked_at_again() -> None:
    _, together = both(0)
    pack(together)
    together[1][1] = nn.Linear(5 * 16, 2)
    assert type(pack(together)) is Weights  # no longer in one buffer
    assert pack(together).count == sum(t.numel() for t in floating(together))
    _, moved = both(0)
    pack(moved)
    first = next(moved.parameters())
    first.data = first.data + 1
    expected = torch.cat([t.detach().reshape(-1) for t in floating(moved)]).numpy()
    np.testing.assert_array_equal(pack(moved).vector, expected)


def floating(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]


def test_copies_and_other_processes_get_plain_values() -> None:
    apart, together = both(0)
    taken = pack(together)
    sent = pickle.loads(pickle.dumps(taken))
    assert type(sent) is Weights
    np.testing.assert_array_equal(sent.vector, taken.vector)
    assert type(plain({"a": {"b": taken}})["a"]["b"]) is Weights
    changed = taken.with_vector(taken.vector * 2)
    assert type(changed) is Weights
    assert (changed.layout, changed.parameters) == (taken.layout, taken.parameters)
    np.testing.assert_array_equal(changed.vector, 2 * pack(apart).vector)
    with pytest.raises(TypeError):  # it has no vector of its own to replace
        replace(taken, vector=changed.vector)
    assert type(copy.copy(taken)) is type(copy.deepcopy(taken)) is Weights
    twin = copy.deepcopy(together)
    with torch.no_grad():
        for tensor in floating(twin):
            tensor.zero_()
    np.testing.assert_array_equal(pack(together).vector, pack(apart).vector)


def test_modules_of_another_type_stay_as_they_are_and_another_layout_is_refused() -> None:
    double = network(0).double()
    flatten(double)
    assert type(pack(double)) is Weights
    _, together = both(0)
    with pytest.raises(ValueError, match="layout"):
        unpack(pack(nn.Linear(3, 2)), together)
    with pytest.raises(ValueError, match="layout"):
        unpack(pack(together[0]), together[1])
