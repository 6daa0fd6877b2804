"""Images that stay on the device: one copy of each array of the run, the same bits, and no more than fits."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated import device_images
from rayfed_ssl.federated.device_images import DeviceImages
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.simulation.local import LocalCohort
from tests.tiny import tiny

CPU = torch.device("cpu")


def test_an_array_is_copied_once_and_none_that_does_not_fit() -> None:
    small, large = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3), np.zeros((5, 2, 2, 3), np.uint8)
    images = DeviceImages(CPU, room=20)
    first = images.get(small)
    assert first is not None
    assert images.get(small) is first
    np.testing.assert_array_equal(first.numpy(), small)
    assert images.get(large) is None
    assert images.get(small.copy()) is None  # 8 bytes are left
    assert DeviceImages(CPU).get(small) is None  # the array itself is as near


def test_an_array_that_was_copied_lives_on_so_that_no_other_has_its_address() -> None:
    images, array = DeviceImages(CPU, room=1e6), np.zeros((1, 2, 2, 3), np.uint8)
    images.get(array)
    known = weakref.ref(array)
    del array
    gc.collect()
    assert known() is not None


def test_copies_are_made_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).integers(0, 256, (7, 2, 2, 3), np.uint8)
    for block in (1, 24, 36, 1000):
        monkeypatch.setattr(device_images, "BLOCK_BYTES", block)
        found = DeviceImages(CPU, room=1e6).get(array)
        assert found is not None
        np.testing.assert_array_equal(found.numpy(), array)


def test_a_fifth_of_what_the_process_is_capped_at_is_for_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=16e9))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 0.125)
    assert DeviceImages(torch.device("cuda", 0)).room == pytest.approx(0.2 * 2e9)


def test_where_the_copy_does_not_fit_after_all_no_other_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    images, array, tried = DeviceImages(CPU, room=1e6), np.zeros((1, 2, 2, 3), np.uint8), []

    def full(*shape: Any, **options: Any) -> None:
        tried.append(shape)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    assert images.get(array) is None
    monkeypatch.undo()
    assert images.get(array) is None
    assert len(tried) == 1


@pytest.mark.parametrize("method", ["fedsimclr", "flesd", "fedlinked"])
def test_training_from_what_stays_there_gives_the_same_bits(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(config: RunConfig, room: float) -> tuple[list[np.ndarray], DeviceImages]:
        federation = load_federation(config)
        monkeypatch.setattr(device_images, "cap", lambda device: room / device_images.MEMORY_SHARE)
        context = LocalCohort(config, federation, Ledger()).worker
        if federation.public is not None:
            context.published["public"] = np.array(federation.public.pixels)
        out = []
        for client in federation.clients[:2]:
            weights = {} if method == "fedlinked" else {"weights": context.initial(config.clients.encoder(client))}
            operation = "represent" if method == "fedlinked" else "train"
            result, state = context.execute(operation, client, 1, weights, None)
            out += [
                np.asarray(v.vector if hasattr(v, "vector") else v) for v in (*result.reply.values(), *state.values())
            ]
        return out, context.on_device

    (plain, none), (kept, images) = (trained(tiny(method), room) for room in (0.0, 1e9))
    assert not none.kept
    assert images.kept
    for a, b in zip(plain, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_made_for_one_operation_does_not_stay() -> None:
    config = tiny("fedsimclr")
    context = LocalCohort(config, load_federation(config), Ledger()).worker
    context.on_device = DeviceImages(CPU, room=1e9)
    train = context.federation.dataset.train.pixels
    rows = np.array([3, 1])
    for pixels, stays in ((train[:4].copy(), 0), (train, 1), (train, 1)):
        found = context.images(pixels, rows)
        np.testing.assert_array_equal(found.permute(0, 2, 3, 1).numpy(), np.asarray(pixels)[rows])
        assert len(context.on_device.kept) == stays
    published = context.published["public"] = train[:5].copy()
    context.images(published, rows)
    assert len(context.on_device.kept) == 2
    whole = context.images(train)
    assert whole.shape == (len(train), train.shape[3], *train.shape[1:3])
