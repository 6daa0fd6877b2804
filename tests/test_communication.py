"""The ledger books what a deployment would send: types, identity, publication, resume, ten thousand clients."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rayfed_ssl.base.weights import pack
from rayfed_ssl.federated.ledger import Booking, Ledger, sizes


@dataclass(frozen=True, eq=False)
class Network:
    """The shape of ``rayfed_ssl.base.weights.Weights``: it says itself what it weighs."""

    parameters: int
    buffers: int

    def wire_bytes(self) -> dict[str, int]:
        return {"": 4 * self.parameters, ".buffers": 4 * self.buffers}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros((3, 5), np.float64), 60),
        (np.zeros((3, 5), np.float32), 60),
        (np.zeros((3, 5), np.float16), 30),
        (np.zeros(7, np.int8), 7),
        (np.zeros(7, np.uint8), 7),
        (np.zeros(7, np.int32), 28),
        (np.zeros(7, np.int64), 56),
        (np.zeros(7, bool), 7),
        (torch.zeros(2, 3, dtype=torch.float64), 24),
        (torch.zeros(2, 3, dtype=torch.bfloat16), 12),
        (torch.zeros(2, 3, dtype=torch.int64), 48),
        (b"12345", 5),
        ({"a": np.zeros(2), "b": [np.zeros(3, np.uint8), (np.zeros(1, np.float32), 3.0)]}, 8 + 3 + 4),
    ],
)
def test_an_array_counts_at_float32_or_as_it_is(value: object, expected: int) -> None:
    assert sizes({"x": value}) == {"x": expected}


@pytest.mark.parametrize("value", [None, 3, 2.5, True, "text", np.float64(3), [], {}, [1, 2.0, "x"], np.zeros(0)])
def test_scalars_and_empty_values_are_absent(value: object) -> None:
    assert sizes({"x": value}) == {}


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="field 'x' holds a object"):
        sizes({"x": object()})


def test_buffers_are_their_own_row_and_only_where_there_are_any() -> None:
    assert sizes({"weights": Network(10, 3)}) == {"weights": 40, "weights.buffers": 12}
    assert sizes({"weights": Network(10, 0)}) == {"weights": 40}
    assert sizes({"all": [Network(10, 3), Network(1, 1)]}) == {"all": 44, "all.buffers": 16}


def test_weights_of_a_real_network() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    # 4*3 + 3 weights and biases, 3 + 3 affine; running mean and variance; num_batches_tracked does not travel
    assert sizes({"weights": pack(net)}) == {"weights": 4 * (15 + 6), "weights.buffers": 4 * 6}


def test_the_same_object_is_booked_once_per_client_and_round_under_any_name() -> None:
    ledger, bank, own = Ledger(), np.zeros(4, np.float32), np.zeros(2, np.float32)
    ledger.begin_round(1)
    ledger.book_down(0, "correlation", {"weights": bank, "scale": 0.5})
    ledger.book_down(0, "train", {"start": bank, "rest": own})  # bank: already there, under another name
    ledger.book_down(1, "train", {"start": bank, "rest": [bank, own]})  # another client; bank once within a message
    assert ledger.drain() == [
        Booking(1, 0, "down", "correlation", "weights", 16),
        Booking(1, 0, "down", "train", "rest", 8),
        Booking(1, 1, "down", "train", "start", 16),
        Booking(1, 1, "down", "train", "rest", 8),
    ]
    ledger.begin_round(2)
    ledger.book_down(0, "train", {"start": bank})
    assert ledger.drain() == [Booking(2, 0, "down", "train", "start", 16)]


def test_equal_values_in_different_objects_are_booked_though_the_first_is_gone() -> None:
    ledger, addresses = Ledger(), set()
    for _ in range(50):
        value = np.zeros(3, np.float32)
        addresses.add(id(value))
        ledger.book_down(0, "train", {"x": value, "same": [value]})
        del value
        gc.collect(0)
    assert len(addresses) < 50  # an address was used again
    assert ledger.down_bytes == 50 * 12


def test_what_was_sent_to_one_client_is_not_kept_for_the_rest_of_the_round() -> None:
    ledger = Ledger()
    own = [np.zeros(3), Network(2, 1), torch.zeros(2)]
    gone = [weakref.ref(value) for value in own]
    ledger.book_down(0, "train", {"own": own})
    own.clear()
    assert [reference() for reference in gone] == [None] * 3


def test_published_once_for_the_run() -> None:
    ledger, images, aligner = Ledger(), np.zeros((5, 8), np.uint8), Network(3, 1)
    ledger.publish(range(2), "public", images)
    ledger.publish(range(3), "public", images)  # only the third is new
    ledger.publish([0], "aligner", aligner)
    ledger.begin_round(4)
    ledger.book_down(0, "train", {"images": images, "net": aligner})
    ledger.book_down(1, "train", {"images": images, "net": aligner})
    assert ledger.drain() == [
        *(Booking(0, client, "down", "publish", "public", 40) for client in range(3)),
        Booking(0, 0, "down", "publish", "aligner", 12),
        Booking(0, 0, "down", "publish", "aligner.buffers", 4),
        Booking(4, 1, "down", "train", "net", 12),
        Booking(4, 1, "down", "train", "net.buffers", 4),
    ]


def test_totals_equal_the_rows_and_up_is_never_deduplicated() -> None:
    ledger, reply = Ledger(), sizes({"weights": Network(5, 2), "loss": 0.3})
    for round in range(3):
        ledger.begin_round(round)
        for client in range(4):
            ledger.book_down(client, "train", {"weights": np.zeros(7)})
            ledger.book_up(client, "train", reply)
            ledger.book_up(client, "again", {**reply, "nothing": 0})
    rows = ledger.drain()
    assert ledger.down_bytes == sum(r.bytes for r in rows if r.direction == "down") == 3 * 4 * 28
    assert ledger.up_bytes == sum(r.bytes for r in rows if r.direction == "up") == 3 * 4 * 2 * 28
    assert {r.field for r in rows if r.direction == "up"} == {"weights", "weights.buffers"}
    assert ledger.drain() == []


def test_a_resumed_ledger_continues_and_does_not_publish_twice() -> None:
    def play(ledger: Ledger, rounds: range) -> list[Booking]:
        images = np.zeros(9, np.uint8)  # a new object in a new process
        ledger.publish(range(3), "public", images)
        for round in rounds:
            ledger.begin_round(round)
            for client in range(3):
                ledger.book_down(client, "train", {"weights": np.zeros(round, np.float32), "images": images})
                ledger.book_up(client, "train", {"weights": round})
        return ledger.drain()

    whole, first, second = Ledger(), Ledger(), Ledger()
    expected = play(whole, range(1, 5))
    rows = play(first, range(1, 3))
    second.restore(json.loads(json.dumps(first.state)))
    assert rows + play(second, range(3, 5)) == expected
    assert second.state == whole.state


def test_ten_thousand_clients_are_a_row_per_field_each() -> None:
    ledger, weights, matrix = Ledger(), Network(10**6, 10**3), np.zeros((64, 64))
    for client in range(10_000):
        ledger.book_down(client, "train", {"weights": weights, "matrix": matrix, "alpha": 0.1})
    assert len(ledger.drain()) == 30_000
