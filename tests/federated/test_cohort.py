"""The verbs a server has for its clients: who is asked, what is kept of their replies, and what is an error."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.federated.aggregation import NonFinite
from rayfed_ssl.federated.asked import AskedOperations
from rayfed_ssl.federated.clock import Clock
from rayfed_ssl.federated.messages import SERVER, ClientError, OperationResult, RoundVoid, Start
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.timing import make_clock
from rayfed_ssl.simulation.worker import Worker
from tests.methods.rounds import config_of, started
from tests.tiny import run_locally, tiny


def begun(**changes: object) -> tuple[MethodServer[Any], LocalCohort]:
    """A server and its cohort of three in round 1."""
    server, cohort = started(config_of("fedsimclr", **changes))
    cohort.begin_round(1, cohort.federation.clients)
    return server, cohort


def rows(cohort: LocalCohort) -> list[tuple[Any, ...]]:
    return sorted((b.client, b.direction, b.operation, b.field, b.bytes) for b in cohort.ledger.drain())


def test_tell_asks_everybody_once_and_books_what_reading_would() -> None:
    server, cohort = begun()
    assert [reply.client for reply in cohort.ask("train", weights=server.weights)] == [0, 1, 2]
    read = rows(cohort)
    told_server, told = begun()
    told.tell("train", weights=told_server.weights)
    assert rows(told) == read
    assert {row[:2] for row in read} == {(c, way) for c in range(3) for way in ("down", "up")}
    assert {c: m["loss"] for c, m in told.metrics.items()} == {c: m["loss"] for c, m in cohort.metrics.items()}


def test_tell_reaches_whom_it_says_with_fields_of_their_own() -> None:
    server, cohort = begun()
    cohort.tell("train", clients=(0, 2), each=lambda client: {"weights": server.weights})
    assert {row[0] for row in rows(cohort)} == {0, 2}


def test_gather_has_every_reply_in_client_order_and_is_a_void_round_where_there_is_none() -> None:
    server, cohort = begun(on_client_error="drop")
    replies = cohort.gather("train", clients=(0, 2), weights=server.weights)
    assert [reply.client for reply in replies] == [0, 2]
    assert all(reply["weights"].vector.shape == server.weights.vector.shape for reply in replies)
    for _ in range(2):
        with pytest.raises(RoundVoid, match="every client that was asked failed"):
            cohort.gather("train", weights=None)
    assert [error.client for error in cohort.dropped] == [0, 1, 2] * 2
    with pytest.raises(ClientError, match="client 2 failed in round 1, operation 'train'"):
        cohort.gather("train", weights=None)


def test_a_mean_of_replies_that_count_nothing_is_a_void_round() -> None:
    """Where those that count have failed: a mean over the others would be one of nothing."""
    server, cohort = begun(on_client_error="drop")
    with pytest.raises(RoundVoid, match=r"^all 2 that replied have weight 0$"):
        cohort.mean(
            "train", by={0: 0.0, 1: 3.0, 2: 0.0}, each=lambda c: {"weights": None if c == 1 else server.weights}
        )
    assert [error.client for error in cohort.dropped] == [1]
    cohort.begin_round(2, cohort.federation.clients)  # nothing of it is left
    assert [reply.client for reply in cohort.mean("train", weights=server.weights).replies] == [0, 1, 2]


def test_gather_of_no_clients_is_nothing_and_of_lost_ones_a_void_round(tmp_path: Path) -> None:
    """The others remain, so it is not the round that has too few, but the exchange that has nobody; and it is not the
    failure of what was asked before.
    """
    (tmp_path / "trace.csv").write_text("client,start,end\n0,0,0.000001\n1,0,900\n2,0,900\n")
    trace = {"name": "trace", "path": str(tmp_path / "trace.csv")}
    system = {"availability": trace, "seconds_per_image": 0.01}
    config = config_of("fedsimclr", on_client_error="drop", system=system)
    server, cohort = started(config)
    clock = make_clock(config, cohort.federation, server, {})
    assert clock is not None
    cohort.attach({}, clock)
    cohort.begin_round(1, clock.select(1, 3))
    with pytest.raises(RoundVoid, match="every client that was asked failed"):
        cohort.gather("train", clients=(1,), weights=None)
    assert cohort.gather("train", clients=(), weights=server.weights) == []
    with pytest.raises(RoundVoid, match="nobody replied"):
        cohort.gather("train", clients=(0,), weights=server.weights)
    assert cohort.clients == (1, 2)


def kept(cohort: LocalCohort) -> dict[int, dict[str, bytes]]:
    """Every client's committed state: the momentum target that FedBYOL's clients keep."""
    return {c: {name: value.vector.tobytes() for name, value in state.items()} for c, state in cohort.states()}


def test_a_mean_whose_counting_clients_were_lost_is_a_void_round(tmp_path: Path) -> None:
    """By the clock alone: nobody failed, and those that reply have the weight 0."""
    (tmp_path / "trace.csv").write_text("client,start,end\n0,0,0.000001\n1,0,900\n2,0,900\n")
    trace = {"name": "trace", "path": str(tmp_path / "trace.csv")}
    config = config_of("fedsimclr", system={"availability": trace, "seconds_per_image": 0.01})
    server, cohort = started(config)
    cohort.attach({}, clock := make_clock(config, cohort.federation, server, {}))
    assert clock is not None
    cohort.begin_round(1, clock.select(1, 3))
    with pytest.raises(RoundVoid, match=r"^all 2 that replied have weight 0$"):
        cohort.mean("train", by={0: 3.0, 1: 0.0, 2: 0.0}, weights=server.weights)
    assert {client for client, way, *_ in rows(cohort) if way == "up"} == {1, 2}  # they did train, and replied
    with pytest.raises(ValueError, match="none below 0 and one above"):  # of those asked, which is the server's mistake
        cohort.mean("train", by={1: 0.0, 2: 0.0}, clients=(1, 2), weights=server.weights)


def test_a_void_round_keeps_what_clients_computed_in_the_exchanges_before_the_one_that_failed(tmp_path: Path) -> None:
    """Exchanges take 10 s. Client 0 leaves at 15 s, so that the second has two replies where three are needed; in the
    second round the first exchange has.
    """
    (tmp_path / "trace.csv").write_text("client,start,end\n0,0,15\n1,0,900\n2,0,900\n")
    trace = {"name": "trace", "path": str(tmp_path / "trace.csv")}
    config = config_of("fedbyol", system={"availability": trace, "latency_s": 10.0, "minimum_replies": 3})
    server, cohort = started(config)
    clock = make_clock(config, cohort.federation, server, {})
    assert clock is not None
    cohort.attach({}, clock)
    cohort.begin_round(1, clock.select(1, 3))
    cohort.tell("train", weights=server.weights)
    with pytest.raises(RoundVoid, match="2 of 3 replied"):
        cohort.tell("train", weights=server.weights)
    assert kept(cohort) == {}  # nothing before the round's end
    cohort.end_round()

    plain_server, plain = started(config_of("fedbyol"))
    plain.begin_round(1, plain.federation.clients)
    plain.tell("train", weights=plain_server.weights)
    plain.end_round()
    assert set(kept(plain)) == {0, 1, 2}
    assert all("target" in state for state in kept(plain).values())
    assert kept(cohort) == kept(plain)  # client 0's too

    before, booked = kept(cohort), rows(cohort)
    cohort.begin_round(2, (1, 2))
    with pytest.raises(RoundVoid, match="2 of 2 replied"):
        cohort.mean("train", weights=server.weights)
    cohort.end_round()
    assert kept(cohort) == before  # nobody trained
    up = [row for row in booked if row[1] == "up"]
    assert {client for client, *_ in up} == {0, 1, 2}
    assert sum(client == 1 for client, *_ in up) == 2 * sum(client == 0 for client, *_ in up)  # who replied, twice


def test_a_void_round_keeps_what_the_server_took_before_and_its_model(tmp_path: Path) -> None:
    """FedSC's second exchange has too few replies: the matrices of the first are there, and were released."""
    (tmp_path / "trace.csv").write_text("client,start,end\n0,0,15\n1,0,900\n2,0,900\n")
    trace = {"name": "trace", "path": str(tmp_path / "trace.csv")}
    config = config_of("fedsc", system={"availability": trace, "latency_s": 10.0, "minimum_replies": 3})
    server, cohort = started(config)
    cohort.attach({}, clock := make_clock(config, cohort.federation, server, {}))
    assert clock is not None
    cohort.begin_round(2, clock.select(2, 3))
    weights = server.weights.vector.copy()
    with pytest.raises(RoundVoid, match="2 of 3 replied"):
        server.round(2, cohort)
    cohort.end_round()
    assert set(server.state["bank"]) == {0, 1, 2}
    assert server.state["releases"] == {0: 1, 1: 1, 2: 1}
    assert (server.weights.vector == weights).all()


def test_after_a_void_round_clients_do_by_themselves_what_no_exchange_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of three replies where two are needed: that it trains was predicted, and it does something else."""
    server, cohort = begun()
    config = config_of("fedsimclr", system={"drop_out": 0.5, "minimum_replies": 2})
    cohort.attach({}, clock := make_clock(config, cohort.federation, server, {}))
    assert clock is not None
    clock.wanted, clock.dropping = 3, frozenset({0, 2})
    with pytest.raises(RoundVoid, match="1 of 3 replied"):
        cohort.mean("train", weights=server.weights)
    done: list[int] = []

    def rest(client: Any) -> dict[str, Any]:
        done.append(client.id)
        return {}

    monkeypatch.setattr(cohort.worker.method.client, "rest", rest, raising=False)
    now = clock.now
    cohort.conclude("rest", (0, 1, 2))
    assert done == [0, 1, 2]
    assert clock.now == now


def test_replies_that_are_taken_later_and_fail_end_their_exchange() -> None:
    config = config_of("fedsimclr", system={"seconds_per_image": 0.01})
    server, cohort = started(config)
    cohort.attach({}, make_clock(config, cohort.federation, server, {}))
    cohort.begin_round(1, (0, 1))
    with pytest.raises(ClientError, match="client 0 failed"):
        list(cohort.take_up("train", {0: Start(1), 1: Start(1)}, lambda client: {"weights": None}))
    assert cohort.exchange is None


def test_replies_that_nobody_reads_are_an_error_at_the_rounds_end() -> None:
    server, cohort = begun()
    cohort.ask("train", weights=server.weights)
    assert rows(cohort) == []  # nobody was sent anything
    with pytest.raises(RuntimeError, match=r"fedsimclr: nobody read the replies of 'train', so no client was asked"):
        cohort.end_round()


def test_replies_must_be_read_to_the_last() -> None:
    """A process asks one client after the other, an actor a few of them ahead: a server that reads a part of the
    replies would send, and be charged, differently.
    """
    server, cohort = begun()
    replies = cohort.ask("train", weights=server.weights)
    assert [next(replies).client for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match=r"fedsimclr: the replies of 'train' were not read to the last, so which"):
        cohort.end_round()
    assert list(replies) == []
    cohort.end_round()


def test_replies_of_a_round_that_comes_to_nothing_need_not_be_read() -> None:
    server, cohort = begun()
    cohort.begin_round(2, ())
    cohort.ask("train", weights=server.weights)
    begun_to_read = cohort.ask("train", clients=(0, 1), weights=server.weights)
    next(begun_to_read)
    with pytest.raises(RoundVoid, match="nobody replied"):
        cohort.mean("train", weights=server.weights)
    cohort.end_round()


def test_what_a_run_is_resumed_with_is_as_read_only_as_what_it_went_on_with() -> None:
    """A checkpoint gives one array to all clients that held one."""
    _, cohort = begun()
    shared = np.arange(3.0)
    cohort.restore([(client, {"anchor": [shared]}) for client in range(2)])
    with pytest.raises(ValueError, match="read-only"):
        dict(cohort.states())[0]["anchor"][0] += 1


def test_clients_get_a_published_array_in_the_order_in_which_another_process_receives_it() -> None:
    _, cohort = begun()
    cohort.publish("anchors", anchors := np.arange(6.0).reshape(2, 3)[:, ::-1])
    received = cohort.worker.published["anchors"]
    assert received.flags.c_contiguous
    np.testing.assert_array_equal(received, anchors)
    assert cohort.published["anchors"] is anchors  # by which the ledger knows it


class Served(Worker):
    """A worker whose server work says what it was given, and fails where it is told to."""

    def execute(
        self, operation: str, client: int, round: int, message: Mapping[str, Any], state: Any, visit: int = 0
    ) -> tuple[OperationResult, Any]:
        if message.get("why") == "nan":
            raise NonFinite("operation 'work' replied with NaN or infinity in 'rows'", np.array([2.0, np.nan]))
        if "why" in message:
            raise ValueError(message["why"])
        given = {"client": client, "round": round, "visit": visit, **message}
        metrics = {"seconds": 0.5, "loss": float(message["own"])}
        return OperationResult(client, given, metrics, images=message["own"]), {"kept": 1}


def serving(system: dict[str, float] | None = None) -> tuple[LocalCohort, Clock | None]:
    config = config_of("fedsimclr", **({} if system is None else {"system": system}))
    server, cohort = started(config)
    cohort.worker = Served(config, cohort.federation)
    cohort.attach({}, clock := make_clock(config, cohort.federation, server, {}))
    cohort.begin_round(3, (0, 1))
    return cohort, clock


def test_pieces_of_server_work_have_fields_and_numbers_of_their_own() -> None:
    cohort, clock = serving({"server_seconds_per_image": 0.25})
    assert clock is not None
    pieces = {"north": 7, "south": 1, "west": 4}
    found = cohort.serve_all("work", pieces, lambda name: {"own": pieces[name]}, shared="common")
    assert list(found) == list(pieces)
    assert [dict(reply.fields) for reply in found.values()] == [
        {"client": SERVER, "round": 3, "visit": visit, "own": own, "shared": "common"}
        for visit, own in enumerate(pieces.values())
    ]
    assert cohort.metrics == {SERVER: {"seconds": 1.5, "loss": 4.0}}  # sums, and what the last one measured
    assert clock.now == clock.server_s == 0.25 * (7 + 1 + 4)  # one machine does one after the other
    numbered = cohort.serve_all("work", pieces, lambda name: {"own": 0}, call=pieces.__getitem__)
    assert [reply["visit"] for reply in numbered.values()] == [7, 1, 4]
    assert cohort.serve("work", own=0, call=5)["visit"] == 5
    cohort.end_round()
    assert dict(cohort.states()) == {}
    assert rows(cohort) == []


def test_a_piece_of_server_work_is_made_when_it_is_its_turn() -> None:
    cohort, _ = serving()
    order: list[tuple[str, int]] = []
    execute = cohort.worker.execute

    def noted(operation: str, client: int, round: int, message: Any, *rest: Any) -> Any:
        order.append(("done", message["own"]))
        return execute(operation, client, round, message, *rest)

    def own(piece: int) -> dict[str, int]:
        order.append(("made", piece))
        return {"own": piece}

    cohort.worker.execute = noted  # type: ignore[method-assign, assignment]
    cohort.serve_all("work", (4, 2), own)
    assert order == [("made", 4), ("done", 4), ("made", 2), ("done", 2)]


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("spilt milk", r"^server work for piece 2 failed in round 3, operation 'work', in this process\n(?s:.*) milk"),
        ("nan", r"^diverged in round 3: server work for piece 2, operation 'work' replied with NaN or infinity"),
    ],
)
def test_the_first_piece_of_server_work_that_fails_is_named(why: str, said: str) -> None:
    cohort, _ = serving()
    made: list[int] = []

    def own(piece: int) -> dict[str, Any]:
        made.append(piece)
        return {"own": 1} if piece == 8 else {"why": why}

    with pytest.raises(ClientError, match=said) as caught:
        cohort.serve_all("work", (8, 2, 5), own)
    assert made == [8, 2]
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.piece) == (type(caught.value), str(caught.value), "2")
    with pytest.raises(ClientError, match=r"^(server work failed in|diverged in round 3: server work, operation)"):
        cohort.serve("work", why=why)


def test_pieces_of_one_name_are_refused() -> None:
    cohort, _ = serving()
    with pytest.raises(ValueError, match=r"server work 'work': found the pieces \(1, 2, 1\); no two may be the same"):
        cohort.serve_all("work", (1, 2, 1), lambda piece: {"own": piece})


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedmkd", "fedsc"])
def test_seconds_of_a_round_are_those_of_all_its_operations(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedMKD asks its clients twice and serves several times; FedSC asks twice."""
    worked, execute = dict[str, float](), Worker.execute

    def timed(self: Worker, operation: str, client: int, *rest: Any, **more: Any) -> Any:
        result, state = execute(self, operation, client, *rest, **more)
        whose = "server/seconds" if client == SERVER else "client/seconds"
        worked[whose] = worked.get(whose, 0.0) + result.metrics["seconds"]
        return result, state

    monkeypatch.setattr(Worker, "execute", timed)
    run_locally(tiny(method), tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "metrics.parquet").to_pylist()
    found = {tag: sum(row["value"] for row in rows if row["tag"] == tag) for tag in worked}
    assert found == pytest.approx(worked)
    assert set(worked) == {"client/seconds"} | ({"server/seconds"} if method == "fedmkd" else set())


@pytest.mark.parametrize(
    ("sent", "void", "refused"), [("update", False, True), ("update", True, False), ("train", False, False)]
)
def test_a_round_that_trains_under_another_name_leaves_no_plugin_out_silently(
    sent: str, void: bool, refused: bool
) -> None:
    asked = AskedOperations("mine")
    asked.begin_round()
    asked.send(sent)
    asked.check_trains([], comparing=False)  # nothing takes part in training alone
    if void:
        asked.void()
    for plugins, comparing in ((["feddecorr"], False), ([], True)):
        with pytest.raises(RuntimeError, match=r"mine: .*'update'") if refused else nullcontext():
            asked.check_trains(plugins, comparing=comparing)
