"""Jobs on a cluster that asks for a token: submitted, followed, failed, left alone, attached to and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rayfed_ssl.storage import checkpoint
from tests import command_line
from tests.cluster.processes import descendants, end, until
from tests.places import ROOT

pytestmark = pytest.mark.cluster
ATTEMPTS, START_S = 3, 150.0  # to start a cluster
RAY = str(Path(sys.executable).with_name("ray"))
CONFIG = command_line.CONFIG.replace("device: cpu", "device: cpu, actors: 1, cpus_per_client: 0.5")


@dataclass(frozen=True)
class Cluster:
    """``jobs`` and ``gcs`` are its addresses for `ray job` and for drivers; ``env`` has its token."""

    jobs: str
    gcs: str
    env: dict[str, str]
    folder: Path

    def command(self, *arguments: str, within_s: float = 300.0, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **more}
        return subprocess.run(arguments, env=env, cwd=ROOT, capture_output=True, text=True, timeout=within_s)

    def submit(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`ray job submit`, followed to the job's end."""
        run = [sys.executable, "-m", "rayfed_ssl", "run", *arguments]
        options = ["--submission-id", name, "--working-dir", ".", "--"]
        return self.command(RAY, "job", "submit", *options, *run, RAY_ADDRESS=self.jobs)

    def rayfed(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line on a node of the cluster."""
        return self.command(sys.executable, "-m", "rayfed_ssl", *arguments, RAY_ADDRESS=self.gcs)

    def status(self, name: str) -> str:
        return self.command(RAY, "job", "status", name, RAY_ADDRESS=self.jobs).stdout


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def started(command: list[str], env: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`ray start --block`, logging to ``folder``, ended by the ids of its own processes."""
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
        try:
            yield process
        finally:
            ours = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            process.kill()
            process.wait()
            end(ours.values())


def start_command(*flags: str, **options: object) -> list[str]:
    shared = {"node_ip_address": "127.0.0.1", "num_cpus": 2, "num_gpus": 0, "object_store_memory": 100_000_000}
    named = [f"--{name.replace('_', '-')}={value}" for name, value in {**shared, **options}.items()]
    return [RAY, "start", "--block", *flags, *named]


@contextlib.contextmanager
def head(autoscaling: dict[str, object] | None = None, **options: object) -> Iterator[Cluster]:
    """`ray start --head` on loopback with a token; ``autoscaling`` is what `ray up` would be given.

    Its ports were free when they were chosen, but another process may have taken one since: then others are tried.
    """
    for _ in range(ATTEMPTS):
        with tried(autoscaling, **options) as (made, refused):
            if not refused:
                yield made
                return
    pytest.fail(refused)


@contextlib.contextmanager
def tried(autoscaling: dict[str, object] | None, **options: object) -> Iterator[tuple[Cluster, str]]:
    """The cluster, and why it takes no jobs: "" where it does."""
    folder = Path(tempfile.mkdtemp(prefix="rj-", dir="/tmp"))  # short: sockets have paths of at most 107 characters
    gcs, jobs, agent, client, metrics = free_ports(5)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env = {
        **kept, "HOME": str(folder), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux it says: no other machines, sockets on loopback
        "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }  # fmt: skip
    if autoscaling is not None:
        provider = {"type": "fake_multinode", "disable_node_updaters": True, "disable_launch_config_check": True}
        document = {**autoscaling, "provider": {**provider, "gcs_address": f"127.0.0.1:{gcs}"}}
        (folder / "scaling.json").write_text(json.dumps(document))
        options["autoscaling_config"] = folder / "scaling.json"
    command = start_command(
        "--head", port=gcs, dashboard_host="127.0.0.1", dashboard_port=jobs, dashboard_agent_listen_port=agent,
        ray_client_server_port=client, metrics_export_port=metrics, temp_dir=folder / "ray", **options,
    )  # fmt: skip
    made = Cluster(f"http://127.0.0.1:{jobs}", f"127.0.0.1:{gcs}", env, folder)
    with started(command, env, folder) as process:
        last = time.monotonic() + START_S
        refused = "starting"
        while refused and process.poll() is None and time.monotonic() < last:
            try:  # right after the start a job can be refused: its agent is not there yet
                probe = made.command(RAY, "job", "submit", "--", "true", within_s=60, RAY_ADDRESS=made.jobs)
                refused = f"{probe.stdout}{probe.stderr}" if probe.returncode else ""
            except subprocess.TimeoutExpired as error:
                refused = str(error)
            time.sleep(2 if refused else 0)
        yield made, refused and f"{(folder / 'log').read_text()}\n{refused}"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with head() as made:
        yield made


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return str(tmp_path / "tiny.yaml")


def test_a_job_is_followed_in_plain_lines_and_leaves_its_run(cluster: Cluster, config: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = cluster.submit("good", config, "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("round ")] == ["round 1/2", "round 2/2"]
    assert not any("\r" in line or "\x1b[2K" in line for line in lines)  # no bar
    assert "SUCCEEDED" in cluster.status("good").upper()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert f"{summary['accuracy']['knn']:.3f}" in done.stdout


def test_a_job_that_fails_says_why_in_a_line_and_its_exit_status_tells(
    cluster: Cluster, config: str, tmp_path: Path
) -> None:
    for name, arguments, text in (
        ("wrong-key", ["train.round=3", "--out", str(tmp_path / "out")], "train.round: found"),
        ("relative", ["--out", "out"], "--out: found out; a job's working directory is a temporary folder"),
    ):
        done = cluster.submit(name, config, *arguments)
        assert done.returncode != 0
        assert text in done.stdout + done.stderr
        assert "Traceback" not in done.stdout
        assert "FAILED" in cluster.status(name).upper()
    assert not (tmp_path / "out").exists()


def test_a_detached_run_is_attached_to_at_a_uri(cluster: Cluster, config: str, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/out"
    started = cluster.rayfed("run", config, "name=alone", "--detach", "--out", uri)
    assert started.returncode == 0, started.stdout + started.stderr
    assert "rayfed-ssl attach alone" in started.stdout
    again = cluster.rayfed("run", config, "name=alone", "--detach", "--out", f"{uri}2")
    assert again.returncode == 2
    assert "name: found 'alone', which runs on this cluster already" in again.stderr
    seen = cluster.rayfed("attach", "alone")
    assert seen.returncode == 0, seen.stdout + seen.stderr
    assert "round 2/2" in seen.stdout
    assert uri in seen.stdout
    assert json.loads((tmp_path / "out/summary.json").read_text())["status"] == "complete"
    gone = cluster.rayfed("attach", "alone")
    assert gone.returncode == 2
    assert "alone: no such run on this cluster" in gone.stderr


def test_a_detached_run_is_stopped_with_a_checkpoint_and_resumed(cluster: Cluster, config: str, tmp_path: Path) -> None:
    out, reached = tmp_path / "out", 0
    run = ("run", config, "name=long", "--detach", "--out", str(out), "train.rounds=1000000", "evaluation.every=0")
    run += ("train.local_epochs=30",)  # slow rounds: who attaches late is told the last hundred lines alone

    def saved() -> bool:
        return any(t > reached for t, _ in checkpoint.complete(out / "checkpoints"))

    for resume in ((), ("--resume",)):
        started = cluster.rayfed(*run, *resume)
        assert started.returncode == 0, started.stdout + started.stderr
        assert until(saved, 120)
        stopped = cluster.rayfed("stop", "long")
        assert stopped.returncode == 0, stopped.stderr
        seen = cluster.rayfed("attach", "long")
        assert seen.returncode == 130, seen.stdout + seen.stderr
        assert "of 1000000; --resume continues it" in seen.stdout
        assert (f"resumed from round {reached} " in seen.stdout) == bool(resume)
        summary = json.loads((out / "summary.json").read_text())
        assert summary["status"] == "stopped"
        assert reached < summary["rounds"] < 1000000
        reached = summary["rounds"]
        assert checkpoint.complete(out / "checkpoints")[-1][0] == reached


def test_a_detached_run_that_refuses_its_orders_says_so_at_once(cluster: Cluster, config: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/config.yaml").write_text("name: mine\n")
    refused = cluster.rayfed("run", config, "name=refused", "--detach", "--out", str(tmp_path / "out"))
    assert refused.returncode == 2
    assert "already holds a run" in refused.stderr
    assert cluster.rayfed("stop", "refused").returncode == 2  # its driver was let go


SCALING: dict[str, object] = {
    "cluster_name": "fake", "max_workers": 2, "idle_timeout_minutes": 5, "head_node_type": "ray.head.default",
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "worker": {"resources": {"CPU": 2, "object_store_memory": 100_000_000}, "node_config": {}, "max_workers": 2},
    },
    "auth": {}, "docker": {}, "head_node": {}, "worker_nodes": {}, "file_mounts": {}, "cluster_synced_files": [],
    **{f"{who}_commands": [] for who in ("initialization", "setup", "head_setup", "worker_setup")},
    **{f"{who}_start_ray_commands": [] for who in ("head", "worker")},
}  # fmt: skip


@pytest.mark.long
def test_an_autoscaler_starts_the_nodes_that_a_run_waits_for(config: str, tmp_path: Path) -> None:
    wide = (config, "resources.cpus_per_client=2", "resources.strategy=SPREAD")
    two, out = (*wide, "resources.actors=2"), ("--out", str(tmp_path / "out"))
    with head(SCALING, num_cpus=1) as cluster:
        refused = cluster.rayfed("run", *two, *out)
        assert refused.returncode == 2
        assert "resources.cpus_per_client: found 2; the largest node has 1 CPUs" in refused.stderr
        done = cluster.rayfed("run", *two, "resources.autoscales_to={CPU: 5}", "resources.wait_s=200", *out)
        assert done.returncode == 0, done.stdout + done.stderr
        three = (*wide, "resources.actors=3", "resources.autoscales_to={CPU: 7}")  # more than it ever starts
        never = cluster.rayfed("run", *three, "resources.wait_s=1", "--out", str(tmp_path / "never"))
        assert never.returncode == 2
        assert re.search(r"resources\.wait_s: waited 1 s for 3 x 2 CPU; free now: \d+", never.stderr), never.stderr
    assert "2 client actor(s) of 2 CPU" in done.stdout  # on the two nodes that were started for them
    assert json.loads((tmp_path / "out/summary.json").read_text())["status"] == "complete"
