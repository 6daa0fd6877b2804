"""The memory that the process with the server uses for many clients, by method: its own and the object store's.

    python benchmarks/driver_memory.py --data ../shared/data/fashion_mnist [--clients 1000] [--methods fedsc,flesd]

This process is the driver of a real run on two client actors of its own Ray instance: 1,000 clients of two dozen
images, one local step, two rounds that ask every client (FedLinked, whose rounds compare all pairs: a hundred clients).
D is 64 (FedSC: 128; FedFoA, which needs batches of that size: 16), r is 128, and 500 images are public (FedLinked:
2,000).

One JSON line per method: the most MB by which the driver's anonymous memory and the objects in the store grew after the
actors were ready; MB that clients sent; MB of replies and of sums that the driver read; and the library's own estimate
of the MB that the server and the clients keep of these clients between rounds. Every method runs in a process of its
own.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import Any

import zero_work  # noqa: F401 - first of all: sets the processes' environment

import ray  # isort: skip
import soak
from processes import each_alone, tell

from actors.cohort import RayCohort
from actors.plan import reserve
from actors.pool import Pool
from actors.shares import Plan
from rayfed_ssl.config import build
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.simulation.memory import estimate

BASE: dict[str, object] = {
    "data.name": "parquet", "data.image_size": 16, "data.test_limit": 100,
    "data.public.source": "share", "data.public.share": 0.02, "clients.encoders": "small_cnn",
    "model.projector.hidden": [], "model.projector.dim": 64,
    "train.local_steps": 1, "train.batch_size": 16, "train.rounds": 2,
    "evaluation.protocols": [], "resources.device": "cpu",
}  # fmt: skip
METHODS_SHOWN: dict[str, dict[str, object]] = {
    "fedsimclr": {},
    "fedsc": {"model.projector.dim": 128},
    "fedfoa": {"model.projector.dim": 16},
    "fedca": {"method.alignment_epochs": 1},
    "flesd": {"method.epochs": 1},
    "fedlinked": {
        "objective.name": "supervised", "data.task_images": 12, "data.public.share": 0.1, "augment.preset": "none",
    },
}  # fmt: skip


class Peaks(threading.Thread):
    """Samples this process's anonymous memory and the objects in the store until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done, self.start_bytes, self.most = threading.Event(), self.read(), {"driver": 0.0, "objects": 0.0}

    def read(self) -> dict[str, float]:
        """Bytes of both, now."""
        return {"driver": soak.pss("self").get("Pss_Anon", 0.0), "objects": soak.objects()}

    def run(self) -> None:
        while not self.done.wait(0.05):
            for name, value in self.read().items():
                self.most[name] = max(self.most[name], value - self.start_bytes[name])


def measure(name: str, clients: int, data: Path) -> dict[str, Any]:
    """The line of one method."""
    changes = {**BASE, **METHODS_SHOWN[name], "data.path": str(data), "clients.count": clients}
    if name == "fedlinked":  # two classes each
        changes["data.tasks"] = [[i % 10, (i + 1) % 10] for i in range(clients)]
    config = build({"method": {"name": name}}, changes, origin="driver_memory.py")
    federation = load_federation(config)
    setup = Setup(config, federation, InitialWeights(config, federation))
    plan = Plan(2, cpus=0.5, gpus=0.0, threads=1, strategy="PACK")
    ledger = Ledger()
    cohort = RayCohort(config, federation, ledger, Pool(plan, reserve(plan, 60)))
    server = METHODS[name].server(setup)
    asked = federation.clients[: min(clients, 100)] if name == "fedlinked" else federation.clients
    peaks, began = Peaks(), time.monotonic()
    peaks.start()
    server.start(cohort)
    for t in range(1, config.train.rounds + 1):
        cohort.begin_round(t, asked)
        server.round(t, cohort)
        cohort.end_round()
    ledger.drain()
    peaks.done.set()
    peaks.join()
    kept = estimate(config, federation)
    line = {
        "benchmark": "driver_memory", "method": name, "clients": clients, "asked": len(asked),
        **{f"{part}_mb": round(value / 1e6, 1) for part, value in peaks.most.items()},
        "replies_read_mb": round((cohort.replies.read_bytes + cohort.replies.within_bytes) / 1e6, 1),
        "sums_read_mb": round(cohort.sum_bytes / 1e6, 1),
        "up_mb": round(ledger.up_bytes / 1e6, 1),
        "bank_mb": round(kept.bank * len(asked) / 1e6, 1), "states_mb": round(2 * kept.state * len(asked) / 1e6, 1),
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    cohort.close()
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--methods", default=",".join(METHODS_SHOWN))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        ray.init(
            address="local", num_cpus=2, num_gpus=0, include_dashboard=False, _node_ip_address="127.0.0.1",
            object_store_memory=4 << 30, log_to_driver=False, logging_level="error",
        )  # fmt: skip
        tell(measure(options.one, options.clients, options.data.resolve()))
        ray.shutdown()
        return
    each_alone(options.methods.split(","))


if __name__ == "__main__":
    main()
