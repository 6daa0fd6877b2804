"""Whole runs whose processes are killed with SIGKILL: an actor, the driver, the command line, Ray's servers, a node.

Each run is the command line in a process of its own, with its own Ray. Each says what was lost and repeated, and each
ends with the bytes of the run in process that nobody disturbed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayfed_ssl.config import RunConfig
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.storage import checkpoint
from tests.cluster.processes import Process, descendants, end, orphans, title
from tests.places import ROOT
from tests.tiny import booked, encoders, measured, run_locally, tiny

pytestmark = pytest.mark.cluster
PATIENCE_S = 400.0
ORPHANS_S = 180.0  # Ray's helper agents linger for about a minute, and longer on a busy machine
ROUNDS, EVERY = 12, 6  # a kill after round EVERY + 2 has some rounds to be felt in, before the next checkpoint
ON_RAY = {"resources__actors": 2, "resources__cpus_per_client": 0.5, "resources__device": "cpu"}
TWO_NODES = """
import sys
from ray.cluster_utils import Cluster
system = {
    "health_check_initial_delay_ms": 5000,  # a dead node is missed in 6 s, not 15
    "health_check_period_ms": 2000,
    "health_check_failure_threshold": 3,
    "max_direct_call_object_size": 1000,  # these networks are small: their states go to the node's store all the same
}
store = {"object_store_memory": 200 * 1024**2}
head = {"num_cpus": int(sys.argv[1]), "_system_config": system, **store}
cluster = Cluster(initialize_head=True, head_node_args=head)
node = cluster.add_node(num_cpus=1, **store)
cluster.wait_for_nodes()
raylet = node.all_processes["raylet"][0].process.pid
print("cluster", cluster.address, raylet, flush=True)
sys.stdin.read()
"""


def config(**changes: object) -> RunConfig:
    """Clients whose momentum targets are state; rounds long enough to be hit, few checkpoints, so that work is lost."""
    few = {"evaluation__every": 3, "checkpoint__every": EVERY}
    return tiny("fedbyol", **{"train__rounds": ROUNDS, "train__local_epochs": 8, "data__limit": 240, **few, **changes})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run_locally(config(), folder)
    return folder


# -- the command line --------------------------------------------------------------------------------------------------


class CommandLine:
    """`python -m rayfed_ssl run`, its output in a file. Ended with everything it started when the test is over."""

    def __init__(self, log: Path, *arguments: str, **variables: str) -> None:
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rayfed_ssl", "run", *arguments],
                env={**os.environ, **variables}, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.seen: dict[int, Process] = {}

    def text(self) -> str:
        return self.log.read_text()

    def until(self, what: str, found: Callable[[], int | None]) -> int:
        last, over = time.monotonic() + PATIENCE_S, False
        while not over:
            over = time.monotonic() > last or self.process.poll() is not None
            self.seen |= descendants(self.process.pid)
            if (value := found()) is not None:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never saw {what}; status {self.process.poll()}:\n{self.text()}")

    def until_round(self, t: int) -> None:
        self.until(f"round {t}", lambda: t if f"round {t}/" in self.text() else None)

    def until_titled(self, start: str) -> int:
        """The pid of a process of this command that calls itself so: an actor at work shows the method it is in."""
        return self.until(
            start,
            lambda: next((p for p in descendants(self.process.pid) if title(p).startswith(start)), None),
        )

    def finish(self) -> str:
        assert self.process.wait(timeout=PATIENCE_S) == 0, self.text()
        return self.text()

    def end(self) -> None:
        ours = {**self.seen, **descendants(self.process.pid)}
        self.process.kill()
        self.process.wait()
        end(ours.values())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., CommandLine]]:
    started: list[CommandLine] = []

    def start(settings: RunConfig, *arguments: str, **variables: str) -> CommandLine:
        file = tmp_path / "kills.yaml"
        configfile.dump(settings, file)
        log = tmp_path / f"log-{len(started)}"
        started.append(CommandLine(log, str(file), "--out", str(tmp_path / "run"), *arguments, **variables))
        return started[-1]

    yield start
    for command in started:
        command.end()


def same(run: Path, undisturbed: Path) -> None:
    assert encoders(run) == encoders(undisturbed)
    assert measured(run) == measured(undisturbed)
    assert booked(run) == booked(undisturbed)


def finished(text: str) -> list[int]:
    """The rounds that were finished, in that order; one that was lost and repeated is there twice."""
    return [int(t) for t in re.findall(r"^round (\d+)/", text, re.MULTILINE)]


def resumed(text: str) -> list[int]:
    return [int(t) for t in re.findall(r"resumed from round (\d+)", text)]


# -- what is killed ---------------------------------------------------------------------------------------------------


def test_a_client_actor_in_mid_round(run: Callable[..., CommandLine], undisturbed: Path, tmp_path: Path) -> None:
    command = run(config(**ON_RAY))
    command.until_round(1)

    def repeated() -> list[int]:
        found = re.findall(r"actor \d \(pid \d+\) on node \w+ died; replaced, and (\d+) call", command.text())
        return [int(number) for number in found]

    deaths = 0
    while not any(repeated()):  # it may have been hit between two calls
        os.kill(command.until_titled("ray::ClientActorProcess.chunk"), signal.SIGKILL)
        deaths += 1
        command.until(f"death {deaths}", lambda: len(repeated()) >= deaths or None)  # noqa: B023
    text = command.finish()
    assert len(repeated()) == deaths
    assert not resumed(text)
    assert finished(text) == list(range(1, ROUNDS + 1))
    same(tmp_path / "run", undisturbed)


def test_the_driver(run: Callable[..., CommandLine], undisturbed: Path, tmp_path: Path) -> None:
    command = run(config(**{**ON_RAY, "resources__cpus_per_client": (os.cpu_count() or 2) / 2}))  # all there is
    command.until_round(EVERY + 2)
    os.kill(command.until_titled("ray::Driver"), signal.SIGKILL)
    text = command.finish()
    assert "the driver's process died: going on from the newest checkpoint" in text
    assert resumed(text) == [EVERY]
    assert finished(text).count(EVERY + 1) == 2  # it was lost, and repeated
    same(tmp_path / "run", undisturbed)


def test_the_command_line_leaves_no_orphans_and_is_resumed(run: Callable[..., CommandLine], tmp_path: Path) -> None:
    rounds, every = 50, 20
    changes = {"train__rounds": rounds, "train__local_epochs": 1, "evaluation__every": 10, "checkpoint__every": every}
    settings = config(**ON_RAY, **changes)
    command = run(settings)
    command.until_round(every + 2)
    left = {**command.seen, **descendants(command.process.pid)}
    assert any("ClientActor" in title(pid) for pid in left)
    assert any("raylet" in title(pid) for pid in left)
    command.process.send_signal(signal.SIGKILL)
    command.process.wait()
    assert not orphans(left.values(), ORPHANS_S)
    assert not (tmp_path / "run/summary.json").exists()
    kept = checkpoint.complete(tmp_path / "run/checkpoints")[-1][0]
    text = run(settings, "--resume").finish()
    assert resumed(text) == [kept]
    assert kept >= every  # the driver may have trained on for a while
    assert finished(text) == list(range(kept + 1, rounds + 1))
    assert every + 1 in finished(command.text())  # in most runs it was lost, and is repeated
    run_locally(config(**changes), tmp_path / "undisturbed")
    same(tmp_path / "run", tmp_path / "undisturbed")


@pytest.mark.long
@pytest.mark.parametrize("server", ["gcs_server", "raylet"])
def test_a_server_of_rays_own(server: str, run: Callable[..., CommandLine], tmp_path: Path) -> None:
    """The command ends, at once or when it misses the server, leaves nobody behind, and is resumed."""
    rounds, every = 50, 20
    changes = {"train__rounds": rounds, "train__local_epochs": 1, "evaluation__every": 10, "checkpoint__every": every}
    settings = config(**ON_RAY, **changes)
    command = run(settings, RAY_gcs_rpc_server_reconnect_timeout_s="5")  # 60 by default
    command.until_round(every + 2)
    left = {**command.seen, **descendants(command.process.pid)}
    os.kill(next(pid for pid in left if Path(title(pid).split(" ")[0]).name == server), signal.SIGKILL)
    assert command.process.wait(PATIENCE_S) != 0
    assert not orphans(left.values(), ORPHANS_S)
    text = run(settings, "--resume").finish()
    # Actors work on for a while without a GCS, on a fast machine to the end.
    assert "nothing is left to do" in text or resumed(text)[0] >= every
    run_locally(config(**changes), tmp_path / "undisturbed")
    same(tmp_path / "run", tmp_path / "undisturbed")


@contextlib.contextmanager
def two_nodes(head_cpus: int) -> Iterator[tuple[str, int]]:
    """A cluster of two raylets on this machine: its address, and the pid of the second one, which has 1 CPU."""
    cluster = subprocess.Popen(
        [sys.executable, "-c", TWO_NODES, str(head_cpus)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert cluster.stdout is not None
        line = next((line.split() for line in cluster.stdout if line.startswith("cluster ")), None)
        assert line is not None, "no cluster"
        yield line[1], int(line[2])
    finally:
        ours = descendants(cluster.pid)
        cluster.kill()
        cluster.wait()
        end(ours.values())


@pytest.mark.parametrize(
    ("head_cpus", "wait_s"),
    [pytest.param(2, 60, marks=pytest.mark.long, id="room for both"), pytest.param(1, 15, id="room for one")],
)
def test_a_node_with_states_that_lay_nowhere_else(
    head_cpus: int, wait_s: int, run: Callable[..., CommandLine], undisturbed: Path, tmp_path: Path
) -> None:
    """A checkpoint fetches all states to the driver. Some rounds later they are where they were made: every round two
    clients train on each node, unless an evaluation takes an actor, as after rounds 3 and 6, but not in round 8.
    """
    placed = {"resources__actors": 2, "resources__cpus_per_client": 1, "resources__strategy": "SPREAD"}
    settings = config(**placed, resources__device="cpu", resources__wait_s=wait_s)
    with two_nodes(head_cpus) as (address, raylet):
        command = run(settings, RAY_ADDRESS=address)
        command.until_round(EVERY + 2)
        os.kill(raylet, signal.SIGKILL)
        text = command.finish()
    assert re.search(r"lost.*; going on from the newest checkpoint", text), text
    assert set(resumed(text)) == {EVERY}, text
    assert finished(text).count(EVERY + 1) >= 2  # it was lost, and repeated
    assert ("going on with 1 of 2 actors" in text) == (head_cpus == 1), text
    if head_cpus == 1:
        assert f"waiting up to {wait_s} s for 2 x 1 CPU" in text
        assert f"waited {wait_s} s for 2 x 1 CPU" in text
    same(tmp_path / "run", undisturbed)
