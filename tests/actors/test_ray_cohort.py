"""The cohort in Ray actors: the bits of the cohort in process, order, a bounded window, errors that say where."""

from __future__ import annotations

import gc
import itertools
import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import ray
from ray.exceptions import ObjectLostError

import actors.cohort
import actors.replies
import actors.store
from actors.calls import CRASHES, Call
from actors.cohort import LONGEST_CHUNK, WINDOW, Pace, RayCohort
from actors.failures import StateLost
from actors.pool import PER_ACTOR, Pool
from actors.store import INLINE_BYTES
from actors.window import Request
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.aggregation import MixedArchitectures
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import SERVER, ClientError, OperationResult, Reply, RoundVoid, State, Task
from rayfed_ssl.federated.results import PIXELS, EvaluatedEncoder
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.loop import RunLoop
from rayfed_ssl.simulation.worker import Worker
from tests.actor_pools import two_actors
from tests.cluster.processes import until
from tests.tiny import tiny

CONFIG = tiny("fedbyol", clients__count=6)
Made = Callable[..., RayCohort]


class ExtendedWorker(Worker):
    """The real worker with a few operations beside the method's own."""

    def execute(
        self, operation: str, client: int, round: int, message: Mapping[str, Any], state: State | None, visit: int = 0
    ) -> tuple[OperationResult, State]:
        special = getattr(self, f"do_{operation}", None)
        if special is None:
            return super().execute(operation, client, round, message, state, visit)
        kept = dict(state or {})
        reply = special(client, dict(message), kept)
        return OperationResult(client, {"pid": os.getpid(), **reply}, {"seconds": 0.0}), kept

    def do_count(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        state["seen"] = int(state.get("seen", 0)) + 1
        return {"seen": state["seen"], "value": np.full(2, client, np.float32)}

    def do_forget(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        state.clear()
        return {}

    def do_look(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        writeable = {name: bool(v.flags.writeable) for name, v in message.items() if isinstance(v, np.ndarray)}
        return {"writeable": writeable, "published": sorted(self.published), "fields": sorted(message)}

    def do_pause(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        time.sleep(message["seconds"])
        return {}

    def do_fail(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        if client in message["bad"]:
            raise ValueError("spilt milk")
        return {"weights": np.full(3, 0.1 * client, np.float32)}

    def do_draw(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        time.sleep(message.get("seconds", 0.0))
        rows = np.arange(message.get("rows", 9000), dtype=np.float64) + client
        return {"rows": rows, "weights": Weights("a", rows[:9000].astype(np.float32), 9000), "few": np.ones(2) * client}

    def do_total(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        sent = [*message["sent"], message["more"][0]["first"]]
        assert {type(fields) for fields in sent} == {dict}, "as in process"
        return {
            "rows": sum(fields["rows"] for fields in sent),
            "weights": float(sum(fields["weights"].vector.sum(dtype=np.float64) for fields in sent)),
            "few": sum(fields["few"] for fields in sent),
            "writeable": any(fields["rows"].flags.writeable for fields in sent),
            "word": message["more"][1],
        }

    def do_echo(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        assert type(message["sent"][0]) is dict, "as in process"
        first = message["more"][0]["first"]
        return {"rows": message["sent"][0]["rows"] + (first["rows"] if len(message["sent"]) == 1 else 0)}

    def do_meet(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        """Done once the other piece is at work, too."""
        Path(message["mine"]).touch()
        assert until(Path(message["others"]).exists, 120)
        return {}

    def do_mixed(self, client: int, message: dict[str, Any], state: State) -> dict[str, Any]:
        return {"weights": Weights(f"layout {client % 2}", np.zeros(4, np.float32), 4)}

    def assess(self, round: int, encoder: EvaluatedEncoder, state: State | None) -> dict[str, float]:
        if encoder.architecture.startswith("/"):  # until this file exists
            assert until(Path(encoder.architecture).exists, 120)
            return {"pid": float(os.getpid())}
        return super().assess(round, encoder, state)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return load_federation(CONFIG)


@pytest.fixture(scope="module")
def both(ray_session: ModuleType) -> Iterator[Pool]:
    with two_actors(sys.modules[__name__], gpus=0.25) as pool:
        yield pool


@pytest.fixture(scope="module", params=[2, 1])
def pool(request: pytest.FixtureRequest, both: Pool) -> Pool:
    """The two actors, or a pool of the first of them alone."""
    if request.param == 2:
        return both
    alone = Pool(replace(both.plan, actors=1), both.reservation)
    alone.slots = both.slots[:1]
    return alone


@pytest.fixture
def made(pool: Pool, federation: Federation) -> Iterator[Made]:
    """Cohorts over the module's warm actors."""
    cohorts: list[RayCohort] = []

    def make(config: RunConfig = CONFIG, **options: Any) -> RayCohort:
        cohorts.append(RayCohort(config, federation, Ledger(), pool, keep=True, factory=ExtendedWorker, **options))
        return cohorts[-1]

    yield make
    for cohort in cohorts:
        cohort.close()


def local(federation: Federation, config: RunConfig = CONFIG) -> LocalCohort:
    cohort = LocalCohort(config, federation, Ledger())
    cohort.worker = ExtendedWorker(config, federation)
    return cohort


def two_rounds(cohort: Cohort, federation: Federation) -> list[np.ndarray]:
    """A mean, then replies one by one, of real training with state; everything that came out."""
    weights, out = InitialWeights(CONFIG, federation)("small_cnn_bn"), []
    cohort.begin_round(1, federation.clients)
    weights = cohort.mean("train", weights=weights)["weights"]
    cohort.end_round()
    cohort.begin_round(2, federation.clients[::2])
    out += [reply["weights"].vector for reply in cohort.ask("train", weights=weights)]
    cohort.end_round()
    out += [state["target"].vector for _, state in cohort.states()]
    return [weights.vector, *out]


def test_same_bits_states_metrics_and_bookings_as_in_process(made: Made, federation: Federation) -> None:
    here, there = local(federation), made()
    expected, found = two_rounds(here, federation), two_rounds(there, federation)
    assert len(expected) == 1 + 3 + 6
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    assert sorted(here.ledger.drain()) == sorted(there.ledger.drain())
    loss = [{c: m["loss"] for c, m in cohort.metrics.items()} for cohort in (here, there)]
    assert loss[0] == loss[1]


def test_actors_share_one_gpu_and_are_set_up(made: Made, pool: Pool) -> None:
    lines: list[str] = []
    infos = made(say=lines.append).infos
    assert len({info.pid for info in infos}) == len(infos) == pool.plan.actors
    assert {info.gpus for info in infos} == {("0",)}
    assert {info.environment["OMP_WAIT_POLICY"] for info in infos} == {"PASSIVE"}
    assert {info.environment["MALLOC_MMAP_THRESHOLD_"] for info in infos} == {str(1 << 30)}
    if not any(info.device != "cpu" for info in infos):
        assert len([line for line in lines if "no CUDA on this node: training on CPU" in line]) == 1


def test_replies_come_in_client_order_from_all_actors(made: Made, pool: Pool, federation: Federation) -> None:
    cohort = made()
    cohort.begin_round(1, federation.clients)
    slow_first = cohort.ask("pause", each=lambda client: {"seconds": 0.3 if client == 0 else 0.02})
    replies = list(slow_first)
    assert [reply.client for reply in replies] == list(federation.clients)
    assert len({reply["pid"] for reply in replies}) == min(pool.plan.actors, len(replies))


def test_the_window_is_bounded(made: Made, pool: Pool) -> None:
    cohort, calls = made(), []
    cohort.begin_round(1, (0,))
    submit = pool.submit

    def watched(call: Call) -> None:
        if call.method == "chunk":
            calls.append(call.args[0].clients)
        submit(call)

    ahead = []  # calls under way or waiting to be handed on, each time a reply is
    many = mock.patch("rayfed_ssl.federated.cohort.named", lambda clients, *_: tuple(clients))  # six stand for sixty
    with mock.patch.object(pool, "submit", watched), many:
        for handed_on, _ in enumerate(cohort.ask("count", clients=[k % 6 for k in range(60)])):
            ends = itertools.accumulate(map(len, calls))
            ahead.append(sum(end > handed_on for end in ends))
    assert sum(map(len, calls)) == 60
    assert max(ahead) <= WINDOW * pool.plan.actors


def test_slow_or_large_replies_come_alone() -> None:
    assert Pace(seconds=1e-3, nbytes=0.0).clients == LONGEST_CHUNK
    assert Pace(seconds=0.02, nbytes=0.0).clients == 2
    assert Pace(seconds=3.0, nbytes=0.0).clients == 1
    assert Pace(seconds=1e-3, nbytes=3e6).clients == 2
    assert Pace(seconds=1e-3, nbytes=45e6).clients == 1


@contextmanager
def watched(pool: Pool) -> Iterator[list[tuple[int, ...]]]:
    """The clients of each call, in the order of sending."""
    groups: list[tuple[int, ...]] = []
    submit = pool.submit

    def submitted(call: Call) -> None:
        if call.method == "chunk":
            groups.append(call.args[0].clients)
        submit(call)

    with mock.patch.object(pool, "submit", submitted):
        yield groups


def test_until_it_is_known_how_quick_clients_are_each_has_a_call(made: Made, pool: Pool) -> None:
    cohort = made()
    with watched(pool) as groups:
        cohort.begin_round(1, tuple(range(6)))
        replies = [[reply.client for reply in cohort.ask("count")] for _ in range(4)]
    assert replies == [list(range(6))] * 4
    assert groups[0] == (0,)
    assert [client for group in groups for client in group] == list(range(6)) * 4
    assert max(map(len, groups)) <= math.ceil(6 / (4 * pool.plan.actors))


@pytest.mark.parametrize("quick", [True, False])
def test_clients_of_a_mean_that_are_known_to_be_quick_share_one_call_per_actor(
    made: Made, pool: Pool, quick: bool
) -> None:
    cohort, clients = made(), tuple(range(6))
    cohort.begin_round(1, clients)
    small, whole = math.ceil(6 / (4 * pool.plan.actors)), 6 // pool.plan.actors
    found = []
    with watched(pool) as groups:
        for _ in range(3):
            groups.clear()
            found.append(cohort.mean("fail", bad=[])["weights"])
            assert [client for group in groups for client in group] == list(clients)
            sizes = {len(group) for group in groups}
            cohort.paces["fail"] = Pace(1e-4 if quick else 1.0, 0.0)  # not what this machine happens to be
    assert sizes == ({whole} if quick else {small})
    assert all(np.array_equal(value, found[0]) for value in found)


@pytest.mark.parametrize("calls", [1, 2])
def test_an_actors_only_call_of_an_exchange_takes_its_sum_along(made: Made, pool: Pool, calls: int) -> None:
    cohort, clients = made(), tuple(range(2 * pool.plan.actors))
    cohort.begin_round(1, clients)
    cohort.paces["fail"] = Pace(1e-4 if calls == 1 else 1.0, 0.0)  # slow ones have a call each
    sent: list[str] = []
    send = pool.send

    def noted(slot: Any, call: Call) -> None:
        sent.append(call.method)
        send(slot, call)

    with mock.patch.object(pool, "send", noted):
        cohort.mean("fail", bad=[])
    assert sent.count("chunk") == calls * pool.plan.actors
    assert sent.count("hand_over") == (0 if calls == 1 else pool.plan.actors)


def passed_on(cohort: Cohort, whom: tuple[int, ...]) -> tuple[Any, list[Reply]]:
    """What server work makes of replies that nobody has read, and the replies."""
    cohort.begin_round(1, whom)
    replies = list(cohort.ask("draw"))
    more = ({"first": replies[0].fields}, "a word")
    return cohort.serve("total", sent=[reply.fields for reply in replies], more=more).fields, replies


def echoed(cohort: Cohort, replies: list[Reply]) -> list[list[float]]:
    """What clients make of replies that are sent on to them."""
    told = {r.client: {"sent": [r.fields], "more": ({"first": r.fields}, "")} for r in replies}
    return [reply["rows"].tolist() for reply in cohort.ask("echo", each=told.__getitem__)]


def test_what_is_large_in_replies_is_passed_on_without_being_read(made: Made, federation: Federation) -> None:
    cohort, whom = made(), (0, 2, 3, 5)
    local = LocalCohort(CONFIG, federation, Ledger())
    local.worker = ExtendedWorker(CONFIG, federation)
    (total, replies), (expected, others) = passed_on(cohort, whom), passed_on(local, whom)
    for name in ("rows", "weights", "few", "writeable", "word"):
        np.testing.assert_array_equal(total[name], expected[name])
    assert total["weights"] == 5 * np.arange(9000).sum() + 9000 * 10
    assert [reply["few"].tolist() for reply in replies] == [[c, c] for c in whom]  # small values came along
    assert cohort.replies.read_bytes == 0
    np.testing.assert_array_equal(replies[2]["rows"], np.arange(9000) + 3.0)
    assert cohort.replies.read_bytes == 72_000
    assert "rows" in replies[1].fields
    assert "no" not in replies[1].fields
    assert cohort.replies.read_bytes == 72_000
    assert echoed(cohort, replies) == echoed(local, others)
    booked, read = 4 * (72_000 + 36_000), 4 * 72_000  # what clients are sent is read to be booked; counted once
    assert cohort.replies.read_bytes == booked + read
    copy = pickle.loads(pickle.dumps(replies[0].fields))
    assert type(copy) is dict
    np.testing.assert_array_equal(copy["rows"], replies[0]["rows"])
    assert sorted(cohort.ledger.drain()) == sorted(local.ledger.drain())


def test_what_all_clients_are_sent_lies_in_the_store_once_also_with_replies_in_it(made: Made) -> None:
    cohort = made()
    cohort.begin_round(1, (0, 2, 3, 5))
    replies, large = list(cohort.ask("draw")), np.ones(9000)
    shared = {"sent": [replies[1].fields, large], "more": ({"first": {"rows": large}},)}
    with mock.patch.object(actors.store.ray, "put", wraps=actors.store.ray.put) as put:
        found = [reply["rows"].tolist() for reply in cohort.ask("echo", **shared)]
    assert found == [(np.arange(9000) + 2.0).tolist()] * 4
    assert put.call_count == 2  # one for each of the two values


def test_server_work_in_the_middle_of_an_exchange_mixes_up_nothing(made: Made) -> None:
    """Both are sent the same list, whose replies are other arguments of either call."""
    cohort = made()
    cohort.begin_round(1, (0, 2, 3, 5))
    replies = list(cohort.ask("draw"))
    sent, found, totals = [replies[1].fields, replies[2].fields], [], []
    for reply in cohort.ask("echo", sent=sent, more=({"first": {}},)):
        found.append(reply["rows"][0])
        totals.append(cohort.serve("total", more=({"first": replies[3].fields}, ""), sent=sent)["rows"][0])
    assert found == [2.0] * 4
    assert totals == [2.0 + 3.0 + 5.0] * 4


@pytest.mark.parametrize(("method", "bank"), [("fedsc", "bank"), ("fedfoa", "bank"), ("fedca", "dictionaries")])
def test_a_servers_bank_keeps_what_it_holds_and_no_replies(pool: Pool, tmp_path: Path, method: str, bank: str) -> None:
    config = tiny(method, model__projector={"hidden": [], "dim": 96}, clients__encoders="small_cnn")

    def connect(config: RunConfig, federation: Federation, ledger: Ledger) -> Cohort:
        return RayCohort(config, federation, ledger, pool, keep=True)

    run = RunLoop(config, tmp_path / "run", connect, False, lambda progress: None)
    for t in (1, 2):  # FedSC shares from the second round on
        run.round(t)
    states = {"server": run.server, **run.plugins}
    kept = [array for owner in states.values() for array in owner.state.get(bank, {}).values()]
    assert kept
    assert all(array.flags.owndata for array in kept)
    run.close()


@pytest.mark.long
def test_flesd_and_fedlinked_do_not_read_the_representations_they_pass_on(pool: Pool) -> None:
    for config in (
        tiny("flesd", data__limit=240, model__projector={"hidden": [], "dim": 256}),
        tiny("fedlinked", clients__encoders="fedlinked_cnn", data__limit=240, model__representation=512),
    ):
        federation = load_federation(config)
        cohort = RayCohort(config, federation, Ledger(), pool, keep=True)
        server = METHODS[config.method.name].server(Setup(config, federation, InitialWeights(config, federation)))
        server.start(cohort)
        cohort.begin_round(1, federation.clients)
        server.round(1, cohort)
        uploads = [row.bytes for row in cohort.ledger.drain() if row.field == "representations"]
        assert len(uploads) == len(federation.clients)
        assert min(uploads) > INLINE_BYTES
        assert cohort.replies.read_bytes == 0
        cohort.close()


def test_replies_that_are_known_to_be_small_come_whole(made: Made) -> None:
    cohort = made()
    cohort.begin_round(1, (0, 1))
    sent: list[Call] = []
    send = cohort.pool.send

    def noted(slot: Any, call: Call) -> None:
        sent.append(call)
        send(slot, call)

    omits = []
    with mock.patch.object(cohort.pool, "send", noted):
        for rows in (1, 1, 9000, 9000, 1):
            assert [reply["rows"].size for reply in cohort.ask("draw", rows=rows)] == [rows, rows]
            omits.append({call.omits for call in sent})
            sent.clear()
    assert omits == [{True}, {False}, {False}, {True}, {True}]  # as it was the last time; at first nothing is known
    assert cohort.replies.read_bytes == 2 * 72_000


def test_replies_that_are_lost_send_the_run_back_to_its_checkpoint(made: Made) -> None:
    cohort = made()
    cohort.begin_round(1, (0, 1))
    replies = list(cohort.ask("draw"))
    with (
        mock.patch.object(actors.replies.ray, "get", side_effect=ObjectLostError("ab", None, "here")),
        pytest.raises(StateLost, match=r"replies lost \(ObjectLostError\)"),
    ):
        assert replies[1]["rows"].size
    assert replies[1]["rows"].size == 9000


def test_states_go_in_and_out_and_wait_for_the_end_of_the_round(made: Made) -> None:
    cohort = made()
    cohort.begin_round(1, (0, 3))
    assert [reply["seen"] for reply in cohort.ask("count")] == [1, 1]
    assert [reply["seen"] for reply in cohort.ask("count")] == [2, 2]  # within a round the pending state is used
    assert list(cohort.states()) == []
    cohort.end_round()
    assert list(cohort.states()) == [(0, {"seen": 2}), (3, {"seen": 2})]
    cohort.begin_round(2, (0,))
    list(cohort.ask("count"))
    cohort.begin_round(2, (0,))  # the round is begun again: what was pending is forgotten
    assert [reply["seen"] for reply in cohort.ask("count")] == [3]
    cohort.restore([(3, {"seen": 10})])
    assert list(cohort.states()) == [(3, {"seen": 10})]
    cohort.begin_round(3, (0, 3))
    assert [reply["seen"] for reply in cohort.ask("count")] == [1, 11]


def test_a_state_that_is_emptied_stays_empty(made: Made, federation: Federation) -> None:
    in_process = LocalCohort(CONFIG, federation, Ledger())
    in_process.worker = ExtendedWorker(CONFIG, federation)
    for cohort in (made(), in_process):
        for round, operation in enumerate(("count", "forget", "count"), start=1):
            cohort.begin_round(round, (0, 3))
            seen = [reply.fields.get("seen") for reply in cohort.ask(operation)]
            cohort.end_round()
        assert seen == [1, 1]
        assert dict(cohort.states()) == {0: {"seen": 1}, 3: {"seen": 1}}


def test_where_everybody_takes_part_the_states_of_a_call_are_one_object(made: Made, pool: Pool) -> None:
    cohort, everybody = made(), tuple(range(6))
    objects = []
    for round, clients in enumerate((everybody, everybody, everybody, (1, 4), everybody), start=1):
        cohort.paces["count"] = Pace(1e-4, 0.0)  # quick: clients share calls, not what this machine happens to be
        cohort.begin_round(round, ())
        cohort.clients = clients  # as the loop does, which draws them within the round
        list(cohort.ask("count"))
        cohort.end_round()
        kept = [cohort.client_states.complete(client) for client in everybody]
        objects.append([None if found is None else (found.ref, found.index) for found in kept])
        if round == 3:
            assert dict(cohort.states()) == {client: {"seen": 3} for client in everybody}
    assert dict(cohort.states()) == {client: {"seen": 4 + (client in (1, 4))} for client in everybody}
    assert dict(cohort.states([4, 0])) == {4: {"seen": 5}, 0: {"seen": 4}}
    calls = [len({place[0] for place in round if place}) for round in objects]
    alone = [sum(place is not None and place[1] is None for place in round) for round in objects]
    assert alone[1:] == [0, 0, 2, 0]  # the first round begins before it is known that there are states
    assert calls[1] == calls[2] == math.ceil(6 / math.ceil(6 / (4 * pool.plan.actors)))
    assert [place for k, place in enumerate(objects[3]) if k not in (1, 4)] == [
        place for k, place in enumerate(objects[2]) if k not in (1, 4)
    ]


def test_server_work_runs_in_an_actor_and_keeps_no_state(made: Made) -> None:
    cohort = made()
    cohort.begin_round(1, (0,))
    assert cohort.serve("count")["pid"] != os.getpid()
    assert cohort.serve("count")["seen"] == 1
    cohort.end_round()
    assert list(cohort.states()) == []
    assert cohort.ledger.drain() == []
    with pytest.raises(ClientError, match="server work failed in round 1, operation 'fail'"):
        cohort.serve("fail", bad=[SERVER])


def test_pieces_of_server_work_are_done_at_the_same_time(both: Pool, federation: Federation, tmp_path: Path) -> None:
    """Each waits for the other, so one after the other neither would end."""
    cohort = RayCohort(CONFIG, federation, Ledger(), both, keep=True, factory=ExtendedWorker)
    cohort.begin_round(1, (0,))
    files = {"left": str(tmp_path / "left"), "right": str(tmp_path / "right")}
    other = {"left": "right", "right": "left"}
    replies = cohort.serve_all("meet", files, lambda side: {"mine": files[side], "others": files[other[side]]})
    assert list(replies) == ["left", "right"]
    assert len({reply["pid"] for reply in replies.values()}) == 2
    cohort.close()


def test_pieces_of_server_work_are_sent_through_the_window_and_taken_in_order(made: Made, pool: Pool) -> None:
    cohort, calls, ahead = made(), list[Call](), list[int]()
    cohort.begin_round(1, (0,))
    submit = pool.submit

    def submitted(call: Call) -> None:
        if call.method == "chunk":
            calls.append(call)
        submit(call)

    def own(piece: int) -> dict[str, Any]:
        ahead.append(sum(not call.done or call.value is not None for call in calls))  # whose replies are not taken yet
        return {"rows": piece, "seconds": 0.5 if piece == 0 else 0.0}

    with mock.patch.object(pool, "submit", submitted):
        replies = cohort.serve_all("draw", range(20), own)
    assert [reply["rows"].shape for reply in replies.values()] == [(piece,) for piece in range(20)]
    assert len(calls) == len(ahead) == 20
    assert PER_ACTOR * pool.plan.actors <= max(ahead) + 1 <= WINDOW * pool.plan.actors
    cohort.end_round()
    assert list(cohort.states()) == []
    assert cohort.ledger.drain() == []


def test_what_pieces_of_server_work_share_is_put_once(made: Made) -> None:
    cohort = made()
    cohort.begin_round(1, (0, 1))
    replied, large = [reply.fields for reply in cohort.ask("draw")], np.ones(9000)
    own = [({"first": {"rows": np.full(9000, piece)}},) for piece in range(3)]
    with mock.patch.object(actors.store.ray, "put", wraps=actors.store.ray.put) as put:
        found = cohort.serve_all("echo", range(3), lambda piece: {"more": own[piece]}, sent=[{"rows": large}])
        assert [reply["rows"][0] for reply in found.values()] == [1.0, 2.0, 3.0]
        assert put.call_count == 1 + 3
        # Replies that are passed on lie in the store already.
        shared = {"sent": [replied[1], {"rows": large}]}
        found = cohort.serve_all("echo", range(3), lambda piece: {"more": ({"first": replied[0]},)}, **shared)
        assert [reply["rows"][0] for reply in found.values()] == [1.0] * 3
        assert put.call_count == 1 + 3 + 1
        assert cohort.serve_all("echo", (), lambda piece: {}, **shared) == {}
    assert cohort.replies.read_bytes == 0


def test_the_piece_of_server_work_that_failed_is_named(made: Made) -> None:
    cohort = made()
    cohort.begin_round(3, (0,))
    failing = {"north": [], "south": [SERVER], "west": [SERVER]}
    with pytest.raises(ClientError, match=r"^server work for piece south failed in round 3, operation 'fail', actor"):
        cohort.serve_all("fail", failing, lambda name: {"bad": failing[name]})
    assert cohort.serve("fail", bad=[])["weights"].shape == (3,)  # nothing is left of it


def test_what_is_common_is_put_once_a_round(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort, put, real = made(), [], actors.cohort.ray.put

    def counting(value: Any) -> Any:
        put.append(value)
        return real(value)

    monkeypatch.setattr(actors.cohort.ray, "put", counting)
    shared, own = np.zeros(20_000, np.float32), [np.zeros(20_000, np.float32) for _ in range(2)]
    cohort.publish("images", shared + 1)
    cohort.begin_round(1, (0, 1, 2, 3))
    for _ in range(2):
        for reply in cohort.ask("look", shared=shared, small=np.zeros(3), each=lambda c: {"own": own[c % 2]}):
            assert reply["fields"] == ["own", "shared", "small"]
            assert reply["published"] == ["images"]
            assert reply["writeable"]["shared"] is False
            assert reply["writeable"]["own"] is False
    assert len(put) == 1 + 1 + 2
    cohort.end_round()
    cohort.begin_round(2, (0,))
    list(cohort.ask("look", shared=shared))
    assert len(put) == 5


def test_an_error_names_client_round_operation_actor_node_and_shows_the_traceback(made: Made) -> None:
    cohort = made()
    cohort.begin_round(7, (0, 1, 2))
    with pytest.raises(ClientError) as caught:
        list(cohort.ask("fail", bad=[1]))
    text, info = str(caught.value), next(i for i in cohort.infos if f"pid {i.pid}" in str(caught.value))
    assert text.startswith(f"client 1 failed in round 7, operation 'fail', actor {info.actor} (pid {info.pid}) on node")
    assert info.node[:12] in text
    assert "Traceback" in text
    assert "in do_fail" in text
    assert "ValueError: spilt milk" in text


def test_dropped_clients_are_counted_and_the_mean_is_that_of_the_others(made: Made, federation: Federation) -> None:
    config = CONFIG.model_copy(update={"on_client_error": "drop"})
    here, there = local(federation, config), made(config)
    found = []
    for cohort in (here, there):
        cohort.begin_round(1, federation.clients)
        found.append(cohort.mean("fail", bad=[1, 4]))
        assert [error.client for error in cohort.dropped] == [1, 4]
    assert [reply.client for reply in found[1].replies] == [0, 2, 3, 5]
    np.testing.assert_array_equal(found[0]["weights"], found[1]["weights"], strict=True)
    for cohort in (here, there):
        cohort.begin_round(2, federation.clients)
        with pytest.raises(RoundVoid, match="every client that was asked failed"):
            cohort.mean("fail", bad=list(federation.clients))
        cohort.end_round()
        assert cohort.failure_policy.state == {"rounds": 1, "clients": list(federation.clients), "success": False}


def test_different_architectures_reach_the_caller_as_such_whatever_the_policy(
    made: Made, federation: Federation
) -> None:
    cohort = made(CONFIG.model_copy(update={"on_client_error": "drop"}))
    cohort.begin_round(1, federation.clients)
    with pytest.raises(MixedArchitectures, match="field 'weights' differs in layout"):
        cohort.mean("mixed")


def test_what_an_actor_cannot_offer_reaches_the_user_as_it_is(made: Made) -> None:
    if any(info.device != "cpu" for info in made().infos):
        pytest.skip("this machine has CUDA")
    resources = CONFIG.resources.model_copy(update={"device": "cuda"})
    with pytest.raises(UserError, match=r"resources\.device: found 'cuda'"):
        made(CONFIG.model_copy(update={"resources": resources}))
    made()  # the actors are as good as before


def test_asking_within_asking_and_breaking_off(made: Made, federation: Federation) -> None:
    cohort = made()
    cohort.begin_round(1, federation.clients)
    for reply in cohort.ask("count"):
        assert [r.client for r in cohort.ask("pause", seconds=0.0)] == list(federation.clients)
        if reply.client == 3:
            break
    assert len(list(cohort.ask("pause", seconds=0.0))) == 6


def test_values_that_several_clients_are_evaluated_with_are_stored_once(
    made: Made, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, cohort, stored, put = InitialWeights(CONFIG, federation)("small_cnn_bn"), made(), [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: (stored.append(value), put(value))[1])
    cohort.evaluate(0, [EvaluatedEncoder(client, "small_cnn_bn", weights) for client in federation.clients])
    assert [value is weights for value in stored] == [True]
    found = cohort.evaluations(wait=True)
    assert {client for _, client, _ in found} == set(federation.clients)
    assert all(values == found[0][2] for _, _, values in found)


def test_evaluation_gives_the_same_beside_the_next_round(
    made: Made, pool: Pool, federation: Federation, tmp_path: Path
) -> None:
    weights = InitialWeights(CONFIG, federation)("small_cnn_bn")
    half = weights.with_vector(weights.vector / 2)
    encoders = [PIXELS, EvaluatedEncoder(None, "small_cnn_bn", half), EvaluatedEncoder(2, "small_cnn_bn")]
    here, there = local(federation), made()
    for cohort in (here, there):
        cohort.evaluate(0, encoders)
    key = lambda entry: (entry[1] is None, entry[1] or 0, sorted(entry[2]))  # noqa: E731
    assert sorted(there.evaluations(wait=True), key=key) == sorted(here.evaluations(), key=key)
    gate = tmp_path / "gate"
    there.evaluate(1, [EvaluatedEncoder(None, str(gate))])
    assert there.evaluations() == []
    if pool.plan.actors == 1:  # the round waits for the evaluation
        gate.touch()
    there.begin_round(2, federation.clients)
    pids = {reply["pid"] for reply in there.ask("count")}
    if pool.plan.actors > 1:
        assert there.evaluations() == []  # the round was over first
        gate.touch()
    ((round, client, values),) = there.evaluations(wait=True)
    assert (round, client) == (1, None)
    if pool.plan.actors > 1:
        assert values["pid"] not in pids
    assert there.evaluations(wait=True) == []


def test_who_crashed_a_worker_has_one_try_but_all_where_its_reply_is_known_already(made: Made) -> None:
    """A sum that is lost ends no run because of a client that crashed before, and replied since."""
    cohort = made()
    cohort.begin_round(2, (3,))
    cohort.crashed_clients.add(3)
    task = Task("count", 2, {})
    tries = [
        cohort.call_of(task, Request((3,), ({},), (None,), repeated=repeated), None, None, False).most_crashes
        for repeated in (False, True)
    ]
    assert tries == [1, CRASHES]


@pytest.mark.long
def test_references_do_not_pile_up_over_rounds(made: Made, federation: Federation, ray_session: ModuleType) -> None:
    cohort = made()
    weights = np.zeros(50_000, np.float32)

    def references() -> int:
        gc.collect()
        return len(ray_session._private.worker.global_worker.core_worker.get_all_reference_counts())

    def some_rounds(first: int, last: int) -> None:
        for t in range(first, last):
            cohort.begin_round(t, federation.clients)
            list(cohort.ask("count", weights=weights + t))
            cohort.mean("fail", bad=[])
            sent = [reply.fields for reply in cohort.ask("draw")]
            cohort.serve("total", sent=sent, more=({"first": sent[0]}, ""))
            cohort.end_round()
            assert cohort.packer.empty  # no message outlives its round

    some_rounds(0, 3)
    before = references()
    some_rounds(3, 23)
    assert until(lambda: references() <= before, 30)  # what was sent last may still be under way
