"""When an exchange closes and who is in it, against numbers worked out by hand and a second-by-second reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.clock import Clock, exchange_end
from rayfed_ssl.federated.messages import RoundVoid
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.testing.tiny import measured, run_locally, tiny_run
from tests.tiny import tiny

A, B, C, D, E = range(5)
MEGABIT = 8 / 1e6
# images, seconds per image, bytes per second down, up; a million bytes each way
CLIENTS = {
    A: (1000, 0.01, 1e6, 5e5), B: (500, 0.02, 2e6, 1e6), C: (800, 0.05, 1e6, 1e6), D: (300, 0.01, 5e5, 2.5e5),
    E: (1000, 0.02, 1e6, 1e6),
}  # fmt: skip
BY_HAND = {A: 1 + 10 + 2, B: 0.5 + 10 + 1, C: 1 + 40 + 1, D: 2 + 3 + 4, E: 1 + 20 + 1}


def five(folder: Path, **changes: object) -> RunConfig:
    """A run of five clients whose devices are those above."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = zip(*[row[1:] for row in CLIENTS.values()], strict=True)
    seconds, down, up = (np.array(column) for column in columns)
    table = {"client": range(5), "seconds_per_image": seconds, "down_mbps": down * MEGABIT, "up_mbps": up * MEGABIT}
    pq.write_table(pa.table({name: list(column) for name, column in table.items()}), folder / "devices.parquet")
    return tiny("fedsimclr", clients__count=5, system__devices=str(folder / "devices.parquet"), **changes)


def clock_of(config: RunConfig) -> Clock:
    assert config.system is not None
    work = {client: Workload(images, {"weights": 10**6}) for client, (images, *_) in CLIENTS.items()}
    return Clock(config, config.system, range(config.clients.count), lambda operation, client: work[client])


def exchange(clock: Clock, asked: tuple[int, ...]) -> tuple[float, set[int]]:
    """Seconds of an exchange in which a million bytes go down to everybody asked, and who replied."""
    before = clock.now
    under_way = clock.begin("train", asked, True, lambda client: clock.hear(client, "down", 10**6))
    clock.end(under_way)
    return clock.now - before, set(under_way.replying)


def test_seconds_of_a_client_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    clock = clock_of(five(tmp_path))
    for client, expected in BY_HAND.items():
        clock.hear(client, "down", 10**6)
        assert clock.seconds(client, Workload(CLIENTS[client][0], {"weights": 10**6})) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("wanted", "changes", "seconds", "replied"),
    [
        (5, {"system__deadline_s": 1000}, 42, {A, B, C, D, E}),
        (4, {"participation__over": 1.3}, 22, {D, B, A, E}),
        (4, {"participation__over": 1.3, "system__deadline_s": 20}, 20, {D, B, A}),  # not 13: C and E may yet reply
        (4, {"participation__over": 1.3, "system__deadline_s": 25}, 22, {D, B, A, E}),
        (1, {"participation__over": 5}, 9, {D}),
    ],
)
def test_an_exchange_closes_where_it_was_worked_out(
    wanted: int, changes: dict[str, object], seconds: float, replied: set[int], tmp_path: Path
) -> None:
    clock = clock_of(five(tmp_path, **changes))
    assert clock.select(1, wanted) == (A, B, C, D, E)
    assert exchange(clock, (A, B, C, D, E)) == (pytest.approx(seconds), replied)


def test_a_client_that_goes_away_is_lost_and_the_next_is_waited_for(tmp_path: Path) -> None:
    """E is away from 21 to 30, so that its reply at 22 never comes: the fourth is C's at 42."""
    away = [f"{client},0,100" for client in (A, B, C, D)] + ["4,0,21", "4,30,100"]
    (tmp_path / "trace.csv").write_text("\n".join(["client,start,end", *away]))
    trace = {"name": "trace", "path": str(tmp_path / "trace.csv")}
    clock = clock_of(five(tmp_path, system__availability=trace, participation__over=1.3))
    assert clock.select(1, 4) == (A, B, C, D, E)
    assert exchange(clock, (A, B, C, D, E)) == (pytest.approx(42), {A, B, C, D})


def test_a_client_that_left_between_two_exchanges_is_gone(tmp_path: Path) -> None:
    """D replies at 9 and leaves at 15; the first exchange ends with C's reply at 42, so the second is without D, also
    where D comes back a second after it began.
    """
    stays = [f"{client},0,200" for client in (A, B, C, E)] + ["3,0,15", "3,43,200"]
    (tmp_path / "trace.csv").write_text("\n".join(["client,start,end", *stays]))
    clock = clock_of(five(tmp_path, system__availability={"name": "trace", "path": str(tmp_path / "trace.csv")}))
    asked = clock.select(1, 5)
    assert exchange(clock, asked) == (pytest.approx(42), {A, B, C, D, E})
    assert clock.reply_counts["gone"] == 0
    assert exchange(clock, asked) == (pytest.approx(42), {A, B, C, E})
    assert clock.reply_counts["gone"] == 1


def test_over_selection_waits_for_all_of_a_part_of_the_round(tmp_path: Path) -> None:
    """Three of four asked are wanted; where a method asks C and E alone, it is waited for both."""
    clock = clock_of(five(tmp_path, participation__over=1.3))
    clock.select(1, 1)
    under_way = clock.begin("train", (C, E), False, lambda client: clock.hear(client, "down", 10**6))
    assert under_way.replying == (C, E)
    assert under_way.seconds == pytest.approx(42)


@pytest.mark.parametrize("deadline", [None, 20.0])
def test_a_client_that_drops_out_does_not_reply_whether_or_not_times_are_predicted(
    deadline: float | None, tmp_path: Path
) -> None:
    clock = clock_of(five(tmp_path, system__drop_out=0.3, system__deadline_s=deadline))
    fates = []
    for t in range(1, 17):
        clock.select(t, 5)
        dropping = set(clock.dropping)
        under_way = clock.begin("train", (A, B, D), True, lambda client: clock.hear(client, "down", 10**6))
        assert set(under_way.replying) == {A, B, D} - dropping
        assert clock.reply_counts["dropped_out"] == len({A, B, D} & dropping)
        clock.end(under_way)
        assert not clock.sent, "what was on its way to lost clients is not counted again"
        fates.append(bool({A, B, D} & dropping))
    assert set(fates) == {True, False}


@pytest.mark.parametrize(("wanted", "over", "asked"), [(3, 1.3, 4), (2, 1.3, 3), (5, 1.3, 5), (1, 1.0, 1), (3, 1.0, 3)])
def test_over_selection_rounds_up(wanted: int, over: float, asked: int, tmp_path: Path) -> None:
    """ceil(3 * 1.3) = 4; truncated it would be 3."""
    assert len(clock_of(five(tmp_path, participation__over=over)).select(1, wanted)) == asked


def test_over_selection_is_not_fooled_by_rounding(tmp_path: Path) -> None:
    """10 * 1.1 is 11.000000000000002 in floating point, and eleven clients."""
    config = tiny("fedsimclr", clients__count=20, system={"latency_s": 1.0}, participation__over=1.1)
    assert config.system is not None
    assert len(Clock(config, config.system, range(20), lambda *_: None).select(1, 10)) == 11


def event_by_event(times: dict[int, float], valid: set[int], wanted: int, deadline: float | None) -> tuple[float, set]:
    """The rules as a server would live them: one event after the other."""
    events = sorted((at, client) for client, at in times.items() if client in valid)
    if deadline is not None:
        events = sorted([*events, (deadline, 10**9)])  # after the replies of that instant
    replied: set[int] = set()
    for at, client in events:
        if client == 10**9:
            return at, replied
        replied.add(client)
        if len(replied) == wanted or replied == valid:
            return at, replied
    return max(times.values()), replied


@pytest.mark.parametrize("seed", range(60))
def test_closing_equals_living_it_event_by_event(seed: int) -> None:
    draws = np.random.default_rng(seed)
    count = int(draws.integers(1, 8))
    times = {client: float(draws.integers(1, 12)) for client in range(count)}  # ties are frequent
    valid = {client for client in times if draws.random() < 0.7}
    wanted = int(draws.integers(1, count + 1))
    deadline = None if seed % 3 == 0 else float(draws.integers(1, 14))
    seconds, replied = exchange_end(times, valid, wanted, deadline)
    expected = event_by_event(times, valid, wanted, deadline)
    assert (seconds, set(replied)) == expected
    assert list(replied) == sorted(replied)


def test_time_of_several_exchanges_adds_up_and_published_bytes_travel_with_the_first(tmp_path: Path) -> None:
    clock = clock_of(five(tmp_path, system__deadline_s=1000))
    clock.select(1, 5)
    for client in CLIENTS:
        clock.hear(client, "down", 10**6)  # published before the first round
    first, _ = exchange(clock, (A, B, C, D, E))
    second, _ = exchange(clock, (A, B, C, D, E))
    assert (first, second) == (pytest.approx(42 + 1), pytest.approx(42))
    assert clock.now == pytest.approx(85)
    again = clock_of(five(tmp_path))
    again.restore(clock.state)
    assert again.now == clock.now


def test_who_takes_no_part_is_not_waited_for(tmp_path: Path) -> None:
    """Client 0 was left out, say for too few images: that it comes at 10 and at 30 helps nobody."""
    (tmp_path / "trace.csv").write_text("client,start,end\n0,10,20\n0,30,40\n1,100,200\n")
    config = five(tmp_path, system__availability={"name": "trace", "path": str(tmp_path / "trace.csv")})
    assert config.system is not None
    clock = Clock(config, config.system, (B, C), lambda *_: None)
    with pytest.raises(RoundVoid, match="nobody can be reached"):
        clock.select(1, 1)
    assert clock.now == 100
    assert clock.select(2, 1) == (B,)


def test_nobody_there_is_a_round_that_comes_to_nothing(tmp_path: Path) -> None:
    rows = [f"{client},50,60" for client in CLIENTS]
    (tmp_path / "trace.csv").write_text("\n".join(["client,start,end", *rows]))
    trace = {"name": "trace", "path": str(tmp_path / "trace.csv"), "repeat_s": 100}
    clock = clock_of(five(tmp_path, system__availability=trace))
    with pytest.raises(RoundVoid, match="nobody can be reached"):
        clock.select(1, 5)
    assert clock.now == 50  # it waited for a client to come
    assert len(clock.select(2, 5)) == 5
    clock.now = 70.0
    with pytest.raises(RoundVoid):
        clock.select(3, 5)
    assert clock.now == 150


ASKS_FIRST = """
from typing import Any, Literal

import numpy as np

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.settings.blocks import MethodConfig


class Config(MethodConfig):
    name: Literal["asks_first"] = "asks_first"


class Client(EncoderClient[Config]):
    def train(self) -> dict[str, Any]:
        return {"mine": np.ones(8, np.float32)}


class Server(MethodServer[Config]):
    def start(self, cohort):
        self.state["known"] = [reply.client for reply in cohort.gather("train")]

    def round(self, t, cohort):
        self.metrics["known"] = float(len(self.state["known"]))

    def workload(self, operation, client):
        return Workload(0, {"mine": 32})

    def evaluated_encoders(self):
        return []


METHODS = {"asks_first": Method(Config, Client, Server, Info("mine", "nothing"), "simclr", unlabelled)}
"""


def asked_first(folder: Path, trace: str) -> float:
    """How many clients reply to what a method asks before the first round, with a deadline."""
    (folder / "asks_first.py").write_text(ASKS_FIRST)
    (folder / "trace.csv").write_text(f"client,start,end\n{trace}")
    changes = {
        "imports": ["asks_first.py"], "evaluation.protocols": [], "train.rounds": 1,
        "system": {"deadline_s": 9.0, "availability": {"name": "trace", "path": str(folder / "trace.csv")}},
    }  # fmt: skip
    run_locally(tiny_run("asks_first", changes, folder), folder / "run")
    return measured(folder / "run")[1, None, "known"]


def test_a_method_may_ask_before_the_first_round_whoever_is_there(tmp_path: Path) -> None:
    assert asked_first(tmp_path, "0,0,99\n1,1,99\n2,0,99\n3,0,99\n") == 3.0


def test_that_nobody_replies_before_the_first_round_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^method.name: asks_first asks clients before .* and nobody replied; let some reply by system"
    ):
        asked_first(tmp_path, "".join(f"{client},5,99\n" for client in range(4)))
    assert not (tmp_path / "run").exists()
