"""Memory of a long run on Ray: where it goes, and whether it grows from round to round.

    python benchmarks/soak.py [--rounds 300] [--clients 100] [--figure docs/figures/soak.png]
    python benchmarks/soak.py --config configs/clients_10000.yaml --rounds 10 data.path=../shared/data/cifar10

By default tiny clients: the handwritten digits dealt to ``--clients``, FedSimCLR on the 4-conv CNN, no checkpoint
before the last round. Every ``--every`` seconds, from before Ray is started, the proportional set size (PSS: shared
pages counted once) of this process and everything it has started is read from /proc (Linux only), and what lies in the
object store is asked of Ray. Prints one JSON line: MB per part after the warm-up (the first fifth of the rounds) and at
the end, the least squares slope in kB per round between them, and the peak of the sum. Processes are counted by their
anonymous memory. "mapped files" (libraries, cached images) are of all of them; their share changes with what else runs
on the machine. "object store" is its pages that were ever touched, "objects" what lies in them.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import machine
import numpy as np

from actors.follow import run_on_ray  # first of all, because `actors` keeps Ray's sockets on loopback
from actors.session import connect

import psutil  # isort: skip - comes with ray, found once ray is imported
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

from rayfed_ssl.config import load
from rayfed_ssl.simulation.progress import Progress

TINY = """
method: {name: fedsimclr}
data: {name: digits, image_size: 8}
clients: {encoders: small_cnn}
model: {projector: {hidden: [], dim: 32}}
augment: {preset: digits}
train: {batch_size: 8, optimizer: {lr: 0.01}}
evaluation: {protocols: []}
checkpoint: {every: 0}
resources: {actors: 2, device: cpu}
"""
ROLES = {"ray::Driver": "driver", "ray::ClientActor": "actors", "ray::IDLE": "spare workers"}
SHOWN = (("total", "mapped files", "actors", "driver"), ("object store", "objects"))  # panels of the figure
MB = 1e6


def pss(pid: int | str) -> dict[str, float]:
    """Bytes by kind from /proc/PID/smaps_rollup; empty if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (OSError, ProcessLookupError):
        return {}
    return {name.rstrip(":"): float(count) * 1024 for name, count, _ in (line.split() for line in lines)}


def role(process: psutil.Process) -> str:
    """The part under which a process is counted."""
    if process.pid == os.getpid():
        return "command"
    command = process.cmdline()
    named = [name for title, name in ROLES.items() if command and command[0].startswith(title)]
    return named[0] if named else "raylet" if process.name() == "raylet" else "ray services"


@dataclass
class Sampler:
    """Reads memory in a thread; ``rows`` are (round, seconds, bytes by part)."""

    every: float
    round: int = 0
    rows: list[tuple[int, float, dict[str, float]]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def read(self) -> dict[str, float]:
        """Bytes by part, now."""
        parts: dict[str, float] = {"object store": 0.0, "mapped files": 0.0, "total": 0.0}
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            try:
                name = role(process)
            except psutil.NoSuchProcess:
                continue
            if memory := pss(process.pid):
                parts[name] = parts.get(name, 0.0) + memory["Pss_Anon"]
                parts["object store"] += memory["Pss_Shmem"]
                parts["mapped files"] += memory["Pss_File"]
                parts["total"] += memory["Pss"]
        if self.round:
            parts["objects"] = objects()
        return parts

    def watch(self) -> None:
        """Sample until ``done`` is set."""
        began = time.monotonic()
        while not self.done.wait(self.every):
            at = self.round
            self.rows.append((at, time.monotonic() - began, self.read()))


@functools.cache
def raylet() -> node_manager_pb2_grpc.NodeManagerServiceStub:
    """The stub of the raylet of this machine's node."""
    (node,) = ray.nodes()
    channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    return node_manager_pb2_grpc.NodeManagerServiceStub(channel)


def objects() -> float:
    """Bytes of the objects in the store of this machine's node, as `ray memory` counts them."""
    stats = raylet().GetNodeStats(node_manager_pb2.GetNodeStatsRequest(include_memory_info=False), timeout=30.0)
    return float(stats.store_stats.object_store_bytes_used)


def slope(rounds: np.ndarray, values: np.ndarray) -> float:
    """The least squares slope per round."""
    return float(np.polyfit(rounds, values, 1)[0])


def draw(path: Path, sampler: Sampler, title: str) -> None:
    """Draw the panels of ``SHOWN`` over rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axes, names in zip(panels, SHOWN, strict=True):
        for name in names:
            points = [(at, parts[name] / MB) for at, _, parts in sampler.rows if at and name in parts]
            axes.plot(*zip(*points, strict=True), label=name)
        axes.set(xlabel="round", ylabel="MB", ylim=(0, None))
        axes.legend()
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value, as of `rayfed-ssl run`")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--clients", type=int, help="100, or what the config says")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between samples")
    parser.add_argument("--figure", type=Path)
    a = parser.parse_args()
    clients = a.clients or (None if a.config else 100)
    overrides = [*a.overrides, f"train.rounds={a.rounds}", *([f"clients.count={clients}"] if clients else [])]
    sampler, ends = Sampler(a.every), {}

    def report(progress: Progress) -> None:
        if "system/round_s" in progress.values:
            sampler.round, ends[progress.round] = progress.round, progress.values["system/round_s"]

    thread = threading.Thread(target=sampler.watch, daemon=True)
    thread.start()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = a.config or Path(folder) / "tiny.yaml"
        if a.config is None:
            path.write_text(TINY)
        config = load(path, overrides)
        with connect():
            run_on_ray(config, Path(folder) / "run", report=report)
            sampler.done.set()
            thread.join()
        board = sum(file.stat().st_size for file in (Path(folder) / "run").glob("events.out.tfevents.*"))
    wall_s = time.monotonic() - began
    measured = [(at, parts) for at, _, parts in sampler.rows if at > a.rounds / 5]
    rounds = np.array([at for at, _ in measured], float)
    parts = {name: np.array([row.get(name, 0.0) for _, row in measured]) for name in measured[-1][1]}
    line = {
        "benchmark": "soak",
        "method": config.method.name,
        "clients": config.clients.count,
        "clients_per_round": config.cohort_size,
        "rounds": a.rounds,
        "samples": len(measured),
        "start_mb": {name: round(values[0] / MB, 1) for name, values in parts.items()},
        "end_mb": {name: round(values[-1] / MB, 1) for name, values in parts.items()},
        "slope_kb_per_round": {name: round(slope(rounds, values) / 1e3, 2) for name, values in parts.items()},
        "peak_total_mb": round(max(row["total"] for _, _, row in sampler.rows) / MB, 1),
        "first_round_after_s": round(next(at for t, at, _ in sampler.rows if t), 1),
        "round_s": round(float(np.median(list(ends.values()))), 3),
        "wall_s": round(wall_s, 1),
        "tensorboard_mb": round(board / MB, 2),
        "machine": machine.name(),
    }
    if a.figure:
        title = f"{config.method.name}, {config.cohort_size} of {config.clients.count} clients a round"
        draw(a.figure, sampler, title)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
