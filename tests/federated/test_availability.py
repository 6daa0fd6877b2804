"""Availability: drawn by address, or read from traces, which are looked at second by second, too."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.availability import Traced, drop_outs, make_availability
from rayfed_ssl.settings.system import Bernoulli, Trace


def test_bernoulli_and_drop_outs_are_functions_of_seed_round_and_client() -> None:
    present = make_availability(Bernoulli(probability=0.6), 3, 5000)
    one, two = present.reachable(1, 0.0), present.reachable(2, 0.0)
    assert one.mean() == pytest.approx(0.6, abs=0.03)
    assert (one & two).mean() == pytest.approx(0.36, abs=0.03)  # rounds are independent
    np.testing.assert_array_equal(one, present.reachable(1, 99.0))
    small = make_availability(Bernoulli(probability=0.6), 3, 50)
    np.testing.assert_array_equal(small.reachable(1, 0.0), one[:50])
    lost = drop_outs(0.3, 3, 1, 5000)
    assert lost.mean() == pytest.approx(0.3, abs=0.03)
    assert (lost & one).mean() == pytest.approx(0.18, abs=0.03)  # not the draw of availability
    assert not drop_outs(0.0, 3, 1, 50).any()


# -- traces ------------------------------------------------------------------------------------------------------------


def awake(intervals: list[tuple[int, int, int]], client: int, at: int, repeat: int | None) -> bool:
    at = at % repeat if repeat else at
    return any(c == client and start <= at < end for c, start, end in intervals)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("repeat", [None, 40])
def test_a_trace_equals_looking_at_every_second(seed: int, repeat: int | None) -> None:
    draws = np.random.default_rng(seed)
    starts = draws.integers(0, 39, 8)
    intervals = [(int(draws.integers(0, 3)), int(s), int(draws.integers(s + 1, 41))) for s in starts]
    if seed % 4 == 0:
        intervals.append((0, 0, 40))  # always there, where it repeats
    clients, begin, end = (np.array(column, np.float64) for column in zip(*intervals, strict=True))
    traced = Traced(clients, begin, end, 4, repeat)
    horizon = 400
    for now in range(0, 120, 7):
        here = traced.reachable(1, float(now))
        assert here.tolist() == [awake(intervals, client, now, repeat) for client in range(4)]
        for client in np.flatnonzero(here):
            gone = next((s for s in range(now, horizon) if not awake(intervals, client, s, repeat)), math.inf)
            assert traced.until(int(client), float(now)) == gone
        assert all(traced.until(int(client), float(now)) == -math.inf for client in np.flatnonzero(~here))
        came = traced.next_start(float(now), np.arange(4))
        if not here.any():
            later = (s for s in range(now, horizon) if any(awake(intervals, c, s, repeat) for c in range(4)))
            assert came == next(later, None)
    assert traced.longest()[3] == 0
    stays = [[awake(intervals, c, s, repeat) for s in range(horizon)] for c in range(4)]
    for client, present in enumerate(stays):
        text = "".join("1" if here else "0" for here in present)
        longest = max((len(part) for part in text.split("0")), default=0)
        assert traced.longest()[client] == (math.inf if longest == horizon else longest)
    assert traced.ends() == (math.inf if repeat else end.max())


@pytest.mark.parametrize("repeat", [86400.0, 1000 / 3, 0.7])
@pytest.mark.parametrize("seed", range(10))
def test_a_clock_that_waits_or_sees_a_client_off_never_stands_still(seed: int, repeat: float) -> None:
    """Fractions of seconds: the sum of a whole number of repetitions and a moment of the trace may be rounded down."""
    draws = np.random.default_rng(seed)
    bounds = np.sort(draws.random((3, 2)), axis=1) * repeat
    if seed % 2:
        bounds[0, 0], bounds[2, 1] = 0.0, repeat
    clients, now = np.array([0, 1, 2]), 0.0
    traced = Traced(clients, bounds[:, 0], bounds[:, 1], 3, repeat)
    for _ in range(300):
        here = np.flatnonzero(traced.reachable(1, now))
        if len(here):
            then = traced.until(int(here[0]), now)
            assert not traced.reachable(1, then)[here[0]]
        else:
            came = traced.next_start(now, clients)
            assert came is not None
            then = came
            assert traced.reachable(1, then).any()
        assert now < then < now + 2 * repeat
        now = then


def test_only_the_clients_that_take_part_are_waited_for() -> None:
    traced = Traced(np.array([0, 0, 1]), np.array([10.0, 30.0, 100.0]), np.array([20.0, 40.0, 200.0]), 3, None)
    assert traced.next_start(0.0, np.array([0, 1])) == 10
    assert traced.next_start(0.0, np.array([1, 2])) == 100
    assert traced.next_start(100.0, np.array([1])) is None
    again = Traced(np.array([0]), np.array([10.0]), np.array([20.0]), 2, 50.0)
    assert again.next_start(10.0, np.array([0])) == 60
    assert again.next_start(10.0, np.array([1])) is None


def write(path: Path, **columns: list[float]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_a_trace_may_be_parquet_or_csv(tmp_path: Path) -> None:
    parquet = write(tmp_path / "a.parquet", client=[0, 1], start=[0.0, 5.0], end=[4.0, 9.0])
    for name in ("a.csv", "TRACE.CSV"):
        (tmp_path / name).write_text("client,start,end\n0,0,4\n1,5,9\n")
    for path in (parquet, tmp_path / "a.csv", tmp_path / "TRACE.CSV"):
        there = make_availability(Trace(path=path), 0, 2)
        assert [there.reachable(1, float(now)).tolist() for now in (0, 4, 5)] == [
            [True, False], [False, False], [False, True],
        ]  # fmt: skip


def test_a_column_that_is_there_twice_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("client,client,start,end\n0,0,0,4\n")
    with pytest.raises(UserError, match=r"found 2 columns client in .*; it has client, client, start, end"):
        make_availability(Trace(path=tmp_path / "twice.csv"), 0, 2)


@pytest.mark.parametrize(
    ("columns", "repeat", "line"),
    [
        (
            {"client": [0], "start": [5.0], "end": [5.0]},
            None,
            r"path: found client 0, 5 to 5 in row 0 of .*start < end",
        ),
        ({"client": [2], "start": [0.0], "end": [5.0]}, None, r"found client 2, 0 to 5 .*clients 0 to 1"),
        ({"client": [0], "start": [math.nan], "end": [5.0]}, None, r"found nan in column start, row 0 .*finite number"),
        ({"client": [0], "start": [0.0]}, None, r"found no column end in .*; it has client, start"),
        ({"client": ["a"], "start": [0.0], "end": [1.0]}, None, r"found string in column client of .*needs numbers"),
        ({"client": [], "start": [], "end": []}, None, r"found no interval"),
        ({"client": [0], "start": [0.0], "end": [50.0]}, 40.0, r"repeat_s: found 40; .* goes on to 50 s; allowed: at"),
    ],
)
def test_a_wrong_trace_is_one_line(columns: dict, repeat: float | None, line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line) as caught:
        make_availability(Trace(path=write(tmp_path / "t.parquet", **columns), repeat_s=repeat), 0, 2)
    assert "\n" not in str(caught.value)
