"""Seconds per FedSimCLR round, as a ratio to a bare two-process PyTorch loop doing the same work.

    python benchmarks/round_time.py --bench ../shared/bench --data ../shared/data/cifar10 [--reps 3]

The work: FedAvg + SimCLR on the 4-conv CNN (106k parameters), batch 128, one local epoch, 8 clients x 512 images of 32
px (or ``--clients 64 --images 64``), one thread per process, two processes, the same malloc settings for both.
``--bench`` is a folder with ``sys_bare.py``, the bare loop. Runs alternate; the first round of each is left out; the
ratio is of medians over all rounds. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import machine
import pyarrow.compute as pc
import pyarrow.parquet as pq

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

SETTINGS = [
    "method.name=fedsimclr", "objective.temperature=0.5", "model.projector.hidden=[]", "model.projector.dim=64",
    "augment.preset=none", "augment.crop_scale=[0.2,1.0]", "augment.flip=true", "clients.encoders=small_cnn",
    "train.batch_size=128", "train.optimizer.lr=0.05", "train.optimizer.momentum=0", "train.local_epochs=1",
    "evaluation.protocols=[]", "evaluation.every=0", "checkpoint.every=0", "resources.device=cpu",
]  # fmt: skip


def bare(folder: Path, clients: int, images: int, rounds: int, channels_last: bool) -> list[float]:
    """Seconds of each measured round of the bare loop."""
    environment = {**os.environ, **MALLOC, **THREADS, "BENCH_T0": repr(time.time()), "PYTHONPATH": str(folder)}
    environment["BENCH_CHANNELS_LAST"] = "1" if channels_last else "0"
    command = [sys.executable, "sys_bare.py", "--procs", "2", "--clients", str(clients), "--images", str(images)]
    command += ["--rounds", str(rounds)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=900)
    line = next(line for line in done.stdout.splitlines() if line.startswith("BENCH "))
    return [float(seconds) for seconds in json.loads(line.removeprefix("BENCH "))["rounds_s"]]


def ours(data: Path, clients: int, images: int, rounds: int, executor: str) -> list[float]:
    """Seconds from the end of one round to the end of the next, in a run with two actors."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "round_time.yaml"
        config.write_text("method: {name: fedsimclr}\n")
        overrides = [
            *SETTINGS, "data.name=parquet", f"data.path={data.resolve()}", f"data.limit={clients * images}",
            "data.test_limit=100", f"clients.count={clients}", f"train.rounds={rounds}", "resources.actors=2",
        ]  # fmt: skip
        command = [sys.executable, "-m", "rayfed_ssl", "run", str(config), *overrides]
        command += ["--out", f"{folder}/run", "--executor", executor]
        subprocess.run(command, env={**os.environ}, check=True, timeout=900, stdout=subprocess.DEVNULL)
        table = pq.read_table(f"{folder}/run/metrics.parquet")
        rows = table.filter(pc.equal(table["tag"].cast("string"), "train/loss")).sort_by("round")
        ends = rows["wall_s"].to_pylist()
    return [later - earlier for earlier, later in pairwise(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--executor", choices=("ray", "local"), default="ray")
    parser.add_argument("--channels-last", action="store_true", help="the bare loop, too: what a careful one would do")
    a = parser.parse_args()
    reference: list[float] = []
    measured: list[float] = []
    for _ in range(a.reps):
        reference += bare(a.bench.resolve(), a.clients, a.images, a.rounds, a.channels_last)
        measured += ours(a.data, a.clients, a.images, a.rounds, a.executor)
    line = {
        "benchmark": "round_time",
        "clients": a.clients,
        "images": a.images,
        "executor": a.executor,
        "channels_last": a.channels_last,
        "bare_s": round(statistics.median(reference), 4),
        "ours_s": round(statistics.median(measured), 4),
        "ratio": round(statistics.median(measured) / statistics.median(reference), 3),
        "bare_range_s": [round(min(reference), 4), round(max(reference), 4)],
        "ours_range_s": [round(min(measured), 4), round(max(measured), 4)],
        "rounds": len(measured),
        "machine": machine.name(),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
