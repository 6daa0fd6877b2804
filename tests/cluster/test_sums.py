"""Running sums: an actor dies with one, a node with merged ones; the driver reads as much of many as of two."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from actors.cohort import RayCohort
from actors.pool import Pool
from actors.sums import Sums, merged_where_they_lie
from actors.window import Request
from rayfed_ssl.federated.aggregation import FixedPointSum
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.simulation.local import LocalCohort
from tests.actor_pools import two_actors
from tests.cluster import test_actor_faults as faults
from tests.cluster.sums_on_nodes import VALUES
from tests.tiny import tiny

pytestmark = pytest.mark.cluster
CONFIG = tiny("fedbyol", clients__count=18, data__limit=240)  # with two actors a call of a mean has three clients


@pytest.fixture(scope="module")
def federation() -> Federation:
    return load_federation(CONFIG)


@pytest.fixture(scope="module")
def pool(ray_session: ModuleType) -> Iterator[Pool]:
    with two_actors(faults) as pool:
        yield pool


@pytest.fixture
def cohort(pool: Pool, federation: Federation) -> Iterator[RayCohort]:
    pool.replaced = 0
    made = RayCohort(CONFIG, federation, Ledger(), pool, keep=True, factory=faults.ExtendedWorker)
    yield made
    made.close()


def two_rounds(
    where: Cohort, federation: Federation, log: Path, victims: list[int], during: Callable[[int], None] | None = None
) -> tuple[Any, ...]:
    """Means, replies, states and bookings of two rounds; in the second the victims end their process once."""
    means, replies = [], []
    for t in (1, 2):
        where.begin_round(t, federation.clients)
        message = {"log": str(log), "victims": victims if t == 2 else [], "times": t}

        def own(client: int, t: int = t) -> dict[str, Any]:
            if during is not None and t == 2:
                during(client)
            return {}

        mean = where.mean("work", each=own, **message)
        means.append(mean["weights"].tolist())
        replies.append([(reply.client, reply.fields) for reply in mean.replies])
        where.end_round()
    return means, replies, dict(where.states()), sorted(where.ledger.drain())


@pytest.fixture
def expected(federation: Federation, tmp_path: Path) -> tuple[Any, ...]:
    local = LocalCohort(CONFIG, federation, Ledger())
    local.worker = faults.ExtendedWorker(CONFIG, federation)
    return two_rounds(local, federation, tmp_path / "local", [])


def attempts(log: Path, client: int) -> int:
    return [who for who, _ in faults.lines(log)].count(str(client))


def test_an_actor_dies_with_half_a_sum(
    cohort: RayCohort, federation: Federation, expected: tuple[Any, ...], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert two_rounds(cohort, federation, log, [16]) == expected
    assert cohort.replaced == 1
    victim = [pid for who, pid in faults.lines(log) if who == "16"][1]
    lost = [int(who) for who, pid in faults.lines(log)[len(federation.clients) :] if pid == victim and who != "16"]
    assert lost  # it had summed others before
    assert all(attempts(log, client) == 3 for client in lost)  # round 1, round 2, round 2 again
    assert sum(attempts(log, client) == 2 for client in federation.clients) >= 3  # the other actor's stayed


def test_an_actor_dies_between_its_last_reply_and_handing_over(
    cohort: RayCohort,
    federation: Federation,
    expected: tuple[Any, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collect, collected = Sums.collect, 0

    def kill_first(self: Sums, repeat: Callable[[list[Request]], None]) -> FixedPointSum:
        nonlocal collected
        collected += 1
        if collected == 2:
            os.kill(cohort.pool.slots[1].info.pid, signal.SIGKILL)  # type: ignore[union-attr]
        return collect(self, repeat)

    monkeypatch.setattr(Sums, "collect", kill_first)
    assert two_rounds(cohort, federation, tmp_path / "log", []) == expected
    assert cohort.replaced == 1


def test_an_actor_that_begins_to_evaluate_hands_over_before(
    cohort: RayCohort, federation: Federation, expected: tuple[Any, ...], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "log").write_text("0 0\n")  # the evaluation ends its process the second time it is asked

    def evaluate(client: int) -> None:
        if client == 12:
            cohort.evaluate(1, [EvaluatedEncoder(None, str(gate / "log"))])

    assert two_rounds(cohort, federation, tmp_path / "log", [], evaluate) == expected
    assert cohort.evaluations(wait=True) == [(1, None, {"knn": 0.5})]


def test_sums_are_merged_on_their_node(ray_session: ModuleType) -> None:
    home = ray_session.get_runtime_context().get_node_id()
    arrays = [{"x": np.full(20_000, 10**k, np.int64)} for k in range(7)]
    for count in (1, 2, 3, 7):
        refs = merged_where_they_lie([(ray_session.put(array), home) for array in arrays[:count]], home)
        assert len(refs) == min(count, 2)
        assert sum(part["x"] for part in ray_session.get(refs)).tolist() == [int("1" * count)] * 20_000


def on_nodes(*arguments: str) -> dict[str, Any]:
    program = Path(__file__).parent / "sums_on_nodes.py"
    done = subprocess.run([sys.executable, str(program), *arguments], capture_output=True, text=True, timeout=500)
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    assert lines, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(lines[0].removeprefix("result "))
    return found


@pytest.mark.parametrize(
    ("nodes", "actors"),
    [*(pytest.param(*few, marks=pytest.mark.long) for few in ((1, 2), (1, 4), (2, 4))), (4, 4)],
)
def test_the_driver_reads_two_sums_however_many_actors_and_nodes_there_are(nodes: int, actors: int) -> None:
    found = on_nodes(str(nodes), str(actors))
    assert found["nodes"] == nodes
    assert found["digest"] == found["expected"]
    assert found["read_bytes"] == 2 * (2 * 8 * VALUES)  # two rounds, two sums of int64


@pytest.mark.long
def test_a_node_dies_with_replies_that_nobody_has_read() -> None:
    """They cannot be repeated without the rest of the round: the run goes back to its checkpoint."""
    found = on_nodes("2", "4", "replies")
    assert re.match("state lost, back to the checkpoint|replies lost", found["lost"])
    assert found["read_bytes"] == 0


def test_a_node_dies_with_what_was_merged_on_it() -> None:
    found = on_nodes("2", "4", "kill")
    assert found["digest"] == found["expected"]
    assert found["replaced"] >= 2  # those on the node
