"""What a client actor computes without Ray: its environment, its cap on GPU memory, a repeated client in its place."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from actors.client import (
    ActorInfo,
    ClientActor,
    fitting_share,
    memory_fraction,
    merged,
)
from actors.shares import environment
from actors.wire import ArgRef, ChunkResult, OmittedValue, StateReturn, Work
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated import device_images
from rayfed_ssl.federated.aggregation import FixedPointSum
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.messages import Averaging, Chunk, ClientError, OperationResult, State
from rayfed_ssl.simulation.worker import Worker
from tests.tiny import tiny

GB = 1e9


def test_the_cap_is_the_share_less_the_context() -> None:
    assert memory_fraction(0.25, 16 * GB) == pytest.approx((0.25 * 16 - 0.4) / 16)
    assert memory_fraction(0.5, 8 * GB, reserve_bytes=1 * GB) == pytest.approx(3 / 8)
    # four processes of a quarter, contexts included, stay within the GPU
    assert 4 * (memory_fraction(0.25, 16 * GB) * 16 + 0.4) == pytest.approx(16)  # type: ignore[operator]


@pytest.mark.parametrize("share", [0.0, 1.0, 2.0])
def test_no_cap_without_a_share_and_for_whole_gpus(share: float) -> None:
    assert memory_fraction(share, 16 * GB) is None


def test_a_share_below_the_context_is_refused() -> None:
    with pytest.raises(UserError, match=r"resources\.gpus_per_client: found 0\.02"):
        memory_fraction(0.02, 16 * GB)


def test_the_share_that_would_have_fitted() -> None:
    assert fitting_share(3 * GB, 0.6 * GB, 16 * GB) == 0.25  # 3 + 0.6 + 0.4 of 16
    assert fitting_share(3 * GB, 0.61 * GB, 16 * GB) == 0.26  # rounded up


def test_actors_without_a_gpu_share_see_no_gpu() -> None:
    assert environment(2, 0.0)["CUDA_VISIBLE_DEVICES"] == ""
    assert environment(2, 0.0)["OMP_NUM_THREADS"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in environment(2, 0.25)  # Ray says which


def test_a_repeated_client_stands_where_it_stood() -> None:
    def result(client: int) -> OperationResult:
        return OperationResult(client, {}, {})

    def total(weight: float, value: float) -> FixedPointSum:
        made = FixedPointSum()
        made.add(weight, {"x": np.array([value], np.float32)})
        return made

    failed, other = (ClientError(c, 1, "train", "here", "trace") for c in (7, 8))
    chunk = Chunk([result(5), result(9)], [{"a": 1}, {"a": 2}], [failed, other], total(0.75, 4.0))
    again: Any = Chunk([result(7)], [{"a": 3}], [], total(0.25, 8.0))
    result = merged(chunk, failed, again, [5, 7, 8, 9])
    assert [o.client for o in result.results] == [5, 7, 9]
    assert [s["a"] for s in result.sizes] == [1, 3, 2]
    assert result.errors == [other]
    assert result.total is not None
    assert result.total.mean()["x"] == pytest.approx(5.0)  # 0.75 * 4 + 0.25 * 8


# -- a client that runs out of GPU memory -----------------------------------------------------------------------------

CONFIG = tiny("fedsimclr")
TOO_MUCH = "CUDA out of memory. Tried to allocate 600.00 MiB. GPU 0 has a total capacity of 15.00 GiB"


AVERAGING = Averaging({0: 0.25, 1: 0.25, 2: 0.5}, ("weights",))


class Crowded(Worker):
    """A process in which client 1 runs out of memory: while it holds what earlier clients left, or always."""

    opened: ClassVar[list[Crowded]] = []
    always: ClassVar[bool] = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[int] = []
        self.opened.append(self)

    def execute(
        self, operation: str, client: int, round: int, message: Mapping[str, Any], state: State | None, visit: int = 0
    ) -> tuple[OperationResult, State]:
        self.asked.append(client)
        if client == 1 and (self.always or len(self.asked) > 1):
            raise torch.OutOfMemoryError(TOO_MUCH)
        reply = {"weights": np.full(message.get("values", 2), 10.0 * client, np.float32)}
        return OperationResult(client, reply, {}), {"seen": (state or {}).get("seen", 0) + 1}


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> ClientActor:
    """An actor without its Ray process, on a GPU of 16 GB of which 3 GB were in use at the worst moment."""
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * GB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=16 * GB))
    monkeypatch.setattr(device_images, "cap", lambda device: 16.0 * GB)
    monkeypatch.setattr(Crowded, "opened", [])
    actor, federation = ClientActor(4), load_federation(CONFIG)
    actor.info = ActorInfo(4, 1, "node", ("0",), "a GPU")
    actor.reopen = lambda: Crowded(CONFIG, federation)
    actor.worker = actor.reopen()
    return actor


def asked(
    actor: ClientActor,
    averaging: Averaging | None,
    state_return: StateReturn = StateReturn.APART,
    values: int = 2,
    **more: Any,
) -> tuple[ChunkResult, list[Any]]:
    """Clients 0, 1, 2, whose states are the second argument, and the items 1 and 0 of the first."""
    own = (ArgRef(1), ArgRef(0, 1), ArgRef(0, 0))
    message = {"values": values}
    work = Work("train", 1, message, (0, 1, 2), ({}, {}, {}), averaging, states=own, state_return=state_return, **more)
    states = [{"seen": 5}, {"seen": 6}], {"seen": 7}
    result = actor.chunk(work, *states)
    first, *returned = [result] if isinstance(result, ChunkResult) else result
    return first, returned


@pytest.mark.parametrize("averaged", [False, True])
def test_who_runs_out_of_memory_is_tried_again_alone(averaged: bool, crowded: ClientActor) -> None:
    result, states = asked(crowded, AVERAGING if averaged else None)
    chunk = result.chunk
    assert result.has_state == [True] * 3
    assert [worker.asked for worker in Crowded.opened] == [[0, 1, 2], [1]]  # alone in a worker of its own
    assert [worker.on_device.room > 0 for worker in Crowded.opened] == [True, False]  # and without images of others
    assert not chunk.errors
    assert [result.client for result in chunk.results] == [0, 1, 2]
    assert states == [{"seen": 8}, {"seen": 7}, {"seen": 6}]
    if averaged:
        assert chunk.total is not None
        np.testing.assert_array_equal(chunk.total.mean()["weights"], np.full(2, 12.5, np.float32))


def test_what_is_large_is_left_also_by_who_is_tried_again(crowded: ClientActor) -> None:
    result, (omitted, *states) = asked(crowded, None, values=10_000, omits=True)
    assert [worker.asked for worker in Crowded.opened] == [[0, 1, 2], [1]]
    assert states == [{"seen": 8}, {"seen": 7}, {"seen": 6}]
    assert [o.reply["weights"] for o in result.chunk.results] == [
        OmittedValue((c, "weights"), 40_000) for c in range(3)
    ]
    assert {key: value[0] for key, value in omitted.items()} == {(c, "weights"): 10.0 * c for c in range(3)}
    result, (omitted, *_) = asked(crowded, None, omits=True)
    assert omitted == {}  # small
    assert all(isinstance(o.reply["weights"], np.ndarray) for o in result.chunk.results)


def test_who_runs_out_of_memory_alone_is_told_what_would_have_fitted(
    crowded: ClientActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Crowded, "always", True)
    result, states = asked(crowded, None)
    chunk = result.chunk
    assert [result.client for result in chunk.results] == [0, 2]
    assert result.has_state == [True, False, True]
    assert states == [{"seen": 8}, None, {"seen": 6}]
    (error,) = chunk.errors
    assert error.client == 1
    assert error.trace.endswith("resources.gpus_per_client of at least 0.26 would have let it get further.")


@pytest.mark.parametrize(
    ("state_return", "returned", "within"),
    [
        (StateReturn.APART, [{"seen": 8}, None, {"seen": 6}], []),
        (StateReturn.TOGETHER, [[{"seen": 8}, None, {"seen": 6}]], []),
        (StateReturn.WITHIN, [], [{"seen": 8}, None, {"seen": 6}]),
    ],
)
def test_new_states_are_returned_as_the_call_says(
    state_return: StateReturn,
    returned: list[Any],
    within: list[Any],
    crowded: ClientActor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Crowded, "always", True)
    result, states = asked(crowded, None, state_return)
    assert (result.state_return, result.states, states) == (state_return, within, returned)


def test_a_call_that_hands_over_takes_what_the_calls_before_it_left(crowded: ClientActor) -> None:
    before, states = asked(crowded, AVERAGING, exchange="e", tag=1)
    assert before.sum_header is None
    assert len(states) == 3
    result, (totals, *states) = asked(crowded, AVERAGING, exchange="e", tag=2, hands_over=True)
    assert result.sum_header is not None
    assert result.sum_header.tags == (1, 2)
    assert len(states) == 3
    result.sum_header.total.totals = totals
    np.testing.assert_array_equal(result.sum_header.total.mean()["weights"], np.full(2, 12.5, np.float32))
    assert result.sum_header.total.weight == 2 << 40
    assert crowded.hand_over("e")[0].tags == ()  # nothing is left
