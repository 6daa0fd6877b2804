"""The cost of a method's local step relative to that of its plain objective: CPU time, alternating.

    python benchmarks/local_step.py [--reps 5] [--methods fedsc,fedca,flesd,fedx,fedfoa] [--batch 128] [--steps 8]

Both are a client's training from the second round on, one of three clients, in one process with one thread. The plain
objective is FedAvg with the method's own objective. One JSON line per method: milliseconds of CPU per step of both, and
the median ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENVIRONMENT = {  # an actor's: read when the process starts
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
}
if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from gpu import Federated  # noqa: E402
from machine import described  # noqa: E402

from rayfed_ssl.config import RunConfig, build  # noqa: E402
from rayfed_ssl.federated.messages import TRAINS  # noqa: E402
from rayfed_ssl.simulation.local import LocalCohort  # noqa: E402

OWN: dict[str, dict[str, object]] = {
    "fedca": {"data.public.source": "share"},
    "flesd": {"data.public.source": "share", "train.rounds": 3},
    "fedfoa": {"model.calibration": 64, "method.warmup": 1},
}


def settings(method: str, batch: int, steps: int, changes: dict[str, object]) -> RunConfig:
    """The configuration: three clients with the benchmarks' CNN on digits at 32 px."""
    dotted: dict[str, object] = {
        "data.name": "digits", "data.image_size": 32, "data.partition.name": "iid", "clients.count": 3,
        "clients.encoders": "small_cnn", "train.batch_size": batch, "train.local_steps": steps,
        "resources.device": "cpu", "evaluation.protocols": [],
    }  # fmt: skip
    return build({"method": {"name": method}}, dotted | changes, origin="local_step.py")


def training(config: RunConfig) -> Iterator[float]:
    """CPU milliseconds per step of the last client of each round; the first round is left out."""
    federated = Federated(config, LocalCohort)
    assert isinstance(federated.cohort, LocalCohort)
    worker, seen = federated.cohort.worker, list[float]()
    execute = worker.execute

    def watched(operation: str, *arguments: Any) -> Any:
        began = time.process_time()
        result = execute(operation, *arguments)
        if operation == TRAINS:
            seen.append(1e3 * (time.process_time() - began) / config.train.local_steps)  # type: ignore[operator]
        return result

    worker.execute = watched  # type: ignore[method-assign]
    federated.round()
    while True:
        federated.round()
        yield seen[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--methods", default="fedsc,fedca,flesd,fedx,fedfoa")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for method in options.methods.split(","):
        config = settings(method, options.batch, options.steps, OWN.get(method, {}))
        objective = {"objective.name": config.objective.name}
        plain = settings("fedavg", options.batch, options.steps, objective)
        ours, others = training(config), training(plain)
        pairs = [(next(ours), next(others)) for _ in range(options.reps)]
        line = {
            "benchmark": "local_step", "case": method, "objective": config.objective.name, "batch": options.batch,
            "method_ms": round(statistics.median(a for a, _ in pairs), 2),
            "plain_ms": round(statistics.median(b for _, b in pairs), 2),
            "ratio": round(statistics.median(a / b for a, b in pairs), 3), "load": round(os.getloadavg()[0], 1),
        }  # fmt: skip
        print(json.dumps({**line, **described()}), flush=True)


if __name__ == "__main__":
    main()
