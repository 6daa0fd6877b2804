"""Whole runs whose processes are killed with SIGKILL: a client actor, the driver, the command line, a node.

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

from rayfed_ssl import configfile
from rayfed_ssl.config import RunConfig
from tests.tiny import booked, encoders, measured, run_locally, tiny

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0
ORPHANS_S = 90.0  # Ray's helper agents linger for about a minute
ROUNDS = 5
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
    """Clients whose momentum targets are state; rounds long enough to be hit."""
    return tiny("fedbyol", **{"train__rounds": ROUNDS, "train__local_epochs": 8, **changes})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run_locally(config(), folder)
    return folder


# -- processes of ours ------------------------------------------------------------------------------------------------

Process = tuple[int, int]  # pid and the tick it started at: a pid alone may be somebody else's by now


def stat(pid: int) -> tuple[int, str, int] | None:
    """(parent, state, start) of a process; None where there is none."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return int(fields[1]), fields[0], int(fields[19])
    return None


def descendants(pid: int) -> dict[int, Process]:
    """Those a process started, and those that they did."""
    children: dict[int, list[Process]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        number = int(path.name)
        if (found := stat(number)) is not None:
            children.setdefault(found[0], []).append((number, found[2]))
    out: dict[int, Process] = {}
    todo = [pid]
    while todo:
        for process in children.get(todo.pop(), []):
            out[process[0]] = process
            todo.append(process[0])
    return out


def alive(process: Process) -> bool:
    found = stat(process[0])
    return found is not None and found[2] == process[1] and found[1] != "Z"


def title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


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
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self.process.poll() is None:
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
        for process in ours.values():
            if alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process[0], signal.SIGKILL)


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


# -- what is killed ---------------------------------------------------------------------------------------------------


def test_a_client_actor_in_mid_round(run: Callable[..., CommandLine], undisturbed: Path, tmp_path: Path) -> None:
    command = run(config(**ON_RAY))
    command.until_round(2)
    os.kill(command.until_titled("ray::ClientActor.chunk"), signal.SIGKILL)
    text = command.finish()
    (repeated,) = re.findall(r"actor \d \(pid \d+\) on node \w+ died; replaced, and (\d+) call", text)
    assert int(repeated) >= 1
    assert "resumed from round" not in text
    same(tmp_path / "run", undisturbed)


def test_the_driver(run: Callable[..., CommandLine], undisturbed: Path, tmp_path: Path) -> None:
    command = run(config(**ON_RAY))
    command.until_round(2)
    os.kill(command.until_titled("ray::Driver"), signal.SIGKILL)
    text = command.finish()
    assert "the driver's process died: going on from the newest checkpoint" in text
    assert int(re.findall(r"resumed from round (\d)", text)[0]) >= 2
    same(tmp_path / "run", undisturbed)


def test_the_command_line_leaves_no_orphans_and_is_resumed(
    run: Callable[..., CommandLine], undisturbed: Path, tmp_path: Path
) -> None:
    settings = config(**ON_RAY)
    command = run(settings)
    command.until_round(2)
    left = {**command.seen, **descendants(command.process.pid)}
    assert any("ClientActor" in title(pid) for pid in left)
    assert any("raylet" in title(pid) for pid in left)
    command.process.send_signal(signal.SIGKILL)
    command.process.wait()
    end = time.monotonic() + ORPHANS_S
    while (orphans := [p for p in left.values() if alive(p)]) and time.monotonic() < end:
        time.sleep(0.5)
    assert not orphans, [title(pid) for pid, _ in orphans]
    assert not (tmp_path / "run/summary.json").exists()
    text = run(settings, "--resume").finish()
    assert int(re.findall(r"resumed from round (\d)", text)[0]) >= 2
    assert f"round 1/{ROUNDS}" not in text
    same(tmp_path / "run", undisturbed)


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
        for process in ours.values():
            if alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process[0], signal.SIGKILL)


@pytest.mark.parametrize("head_cpus", [2, 1], ids=["room for both", "room for one"])
def test_a_node_with_states_that_lay_nowhere_else(
    head_cpus: int, run: Callable[..., CommandLine], undisturbed: Path, tmp_path: Path
) -> None:
    """Every second round is a checkpoint, so that round 3's states are where they were made when the node dies."""
    placed = {"resources__actors": 2, "resources__cpus_per_client": 1, "resources__strategy": "SPREAD"}
    settings = config(**placed, resources__device="cpu", resources__wait_s=8, checkpoint__every=2)
    with two_nodes(head_cpus) as (address, raylet):
        command = run(settings, RAY_ADDRESS=address)
        command.until_round(3)
        os.kill(raylet, signal.SIGKILL)
        text = command.finish()
    assert re.search(r"lost.*; going on from the newest checkpoint", text), text
    assert "resumed from round 2" in text
    assert ("going on with 1 of 2 actors" in text) == (head_cpus == 1)
    if head_cpus == 1:
        assert "waiting up to 8 s for 2 x 1 CPU" in text
        assert "waited 8 s for 2 x 1 CPU" in text
    same(tmp_path / "run", undisturbed)
