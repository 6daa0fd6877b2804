"""The steps of a model's way through a round: CPU milliseconds of each, and as multiples of a copy of as many bytes.

    python benchmarks/parts.py        # PYTHONPATH=OTHER_TREE measures another tree, such as an older one

One thread, one process. Every part alternates with a plain copy; medians. ``load`` is unpack as a client does it,
``reply`` pack, ``finite`` the check of a reply, ``add`` adding it to an exact sum, ``mean`` the division at the end.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ENVIRONMENT = {  # an actor's: read when the process starts
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
}
if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE))
if not os.environ.get("PYTHONPATH"):
    sys.path.insert(1, str(HERE.parent))

import torch  # noqa: E402
from machine import described  # noqa: E402

from rayfed_ssl.base.weights import pack, unpack  # noqa: E402
from rayfed_ssl.config import RunConfig  # noqa: E402
from rayfed_ssl.federated.aggregation import FixedPointSum  # noqa: E402
from rayfed_ssl.federated.federation import load_federation  # noqa: E402
from rayfed_ssl.simulation.worker import Worker, check_finite  # noqa: E402

REPETITIONS = 9


def cpu_ms(work: Callable[[], object], times: int = 1) -> float:
    """CPU milliseconds of one call of ``work``."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) * 1e3 / times


def alternating(encoder: str) -> tuple[int, dict[str, list[tuple[float, float]]]]:
    """The number of values of an encoder, and CPU milliseconds of each part with those of a copy made right after
    it.
    """
    config = RunConfig.model_validate(
        {"method": {"name": "fedsimclr"}, "data": {"name": "digits"}, "clients": {"encoders": encoder},
         "model": {"projector": {"hidden": [], "dim": 64}}, "resources": {"device": "cpu"}}
    )  # fmt: skip
    worker = Worker(config, load_federation(config))
    network, given = worker.network(encoder), worker.initial(encoder)
    given.vector.flags.writeable = False
    source, into = torch.zeros(given.vector.size), torch.zeros(given.vector.size)
    total = FixedPointSum()
    unpack(given, network)
    reply = pack(network)

    def take() -> None:
        nonlocal reply
        reply = pack(network)

    parts: dict[str, Callable[[], object]] = {
        "load": lambda: unpack(given, network),
        "reply": take,
        "finite": lambda: check_finite({"weights": reply}, "found"),
        "add": lambda: total.add(1 / 64, {"weights": reply}),
        "mean": total.mean,
    }
    times = 1 if given.vector.size > 10**6 else 50  # the clock's resolution is coarse
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in parts}
    for _ in range(REPETITIONS + 1):
        for name, work in parts.items():
            take()  # a fresh reply, of which nothing is cached
            measured = cpu_ms(work, 1 if name == "finite" else times)
            seen[name].append((measured, cpu_ms(lambda: into.copy_(source), times)))
    return given.vector.size, seen


def main() -> None:
    torch.set_num_threads(1)
    for encoder in ("small_cnn", "resnet18"):
        size, seen = alternating(encoder)
        for name, pairs in seen.items():
            line = {
                "benchmark": "parts",
                "part": name,
                "values": size,
                "cpu_ms": round(statistics.median(a for a, _ in pairs[1:]), 4),
                "copies": round(statistics.median(a / b for a, b in pairs[1:]), 2),
                "load": round(os.getloadavg()[0], 1),
            }
            print(json.dumps({**line, **described()}), flush=True)


if __name__ == "__main__":
    main()
