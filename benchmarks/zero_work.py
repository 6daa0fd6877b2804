"""The cost of a round without training: clients load the round's model, do nothing, and reply.

    python benchmarks/zero_work.py --bench ../shared/bench [--cases mean,ask,state,large] [--rounds 7]

One Ray instance holds our two client actors and, for a ratio within one run, two plain Ray actors that do the same with
the bare network of ``--bench`` (``common.py``): load a flat vector, read it again, add it up, with one call per actor
and round. Rounds of both alternate. One JSON line per case: medians of seconds per client, and of the CPU seconds of
the driver and the actors, which other work on the machine disturbs less.

Cases: ``mean`` and ``ask`` with 0.4 MB of weights, ``state`` the same with 0.4 MB kept per client, ``large`` a mean of
45 MB (ResNet-18).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
os.environ.update({"RAY_worker_niceness": "0"})
HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE))
if not os.environ.get("PYTHONPATH"):  # otherwise: that tree is measured, an older one for instance
    sys.path.insert(1, str(HERE.parent))

import numpy as np  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from machine import described  # noqa: E402

from actors.cohort import RayCohort  # noqa: E402
from actors.plan import reserve  # noqa: E402
from actors.pool import Pool  # noqa: E402
from actors.shares import Plan, environment  # noqa: E402
from rayfed_ssl.config import RunConfig  # noqa: E402
from rayfed_ssl.federated.client import EncoderClient  # noqa: E402
from rayfed_ssl.federated.federation import Federation, load_federation  # noqa: E402
from rayfed_ssl.federated.initial_weights import InitialWeights  # noqa: E402
from rayfed_ssl.federated.ledger import Ledger  # noqa: E402
from rayfed_ssl.objectives.base import target_modules  # noqa: E402
from rayfed_ssl.simulation.worker import Worker  # noqa: E402

CLIENTS = 64
SMALL = {"clients": {"count": CLIENTS, "encoders": "small_cnn"}, "model": {"projector": {"hidden": [], "dim": 64}}}
LARGE = {"clients": {"count": CLIENTS, "encoders": "resnet18"}, "model": {"projector": {"hidden": [], "dim": 64}}}
COMMON: dict[str, Any] = {
    "data": {"name": "digits"},
    "evaluation": {"protocols": []},
    "resources": {"device": "cpu"},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {  # method, and what differs
    "mean": ("fedsimclr", SMALL),
    "ask": ("fedsimclr", SMALL),
    "state": ("fedbyol", SMALL),
    "large": ("fedsimclr", LARGE),
}


def idle(config: RunConfig, federation: Federation) -> Worker:
    """A worker whose clients do not train, but keep their momentum target if they have one."""

    def fit(self: Any, *_: Any, **__: Any) -> None:
        if self.target is not None and self.config.keeps_target:
            from rayfed_ssl.base.weights import pack

            self.state["target"] = pack(*target_modules(self.target))

    EncoderClient.fit = fit  # type: ignore[method-assign]
    return Worker(config, federation)


class Plain:
    """A plain Ray actor that does the least that is needed."""

    def __init__(self, folder: str, ballast: int) -> None:
        sys.path.insert(0, folder)
        import common

        torch.set_num_threads(1)
        self.common, self.net = common, common.make_net(ballast)

    def pid(self) -> int:
        return os.getpid()

    def run(self, weights: np.ndarray, clients: int) -> np.ndarray:
        vector, total = torch.tensor(weights), None
        for _ in range(clients):
            self.common.unflat(self.net, vector)
            own = self.common.flat(self.net)
            total = own if total is None else total.add_(own)
        assert total is not None
        return total.numpy()


def cpu_seconds(pids: list[int]) -> float:
    """CPU seconds of this process and of the processes ``pids``."""
    own, ticks = time.process_time(), os.sysconf("SC_CLK_TCK")
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        own += (int(fields[11]) + int(fields[12])) / ticks
    return own


def pss_bytes(pids: list[int]) -> int:
    """Proportional set size of this process and of the processes ``pids``."""
    total = 0
    for pid in (os.getpid(), *pids):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def timed(work: Callable[[], object], pids: list[int]) -> tuple[float, float]:
    """(seconds of wall time, of CPU time) of ``work``."""
    cpu, wall = cpu_seconds(pids), time.perf_counter()
    work()
    return time.perf_counter() - wall, cpu_seconds(pids) - cpu


def ours(case: str, config: RunConfig, federation: Federation, cohort: RayCohort) -> Callable[[], None]:
    """A function that runs one round on our actors."""
    weights, round = InitialWeights(config, federation)(config.clients.encoder(0)), 0

    def work() -> None:
        nonlocal weights, round
        round += 1
        cohort.begin_round(round, federation.clients)
        if case == "ask":
            for reply in cohort.ask("train", weights=weights):
                assert reply["weights"].vector.size == weights.vector.size
        else:
            weights = cohort.mean("train", weights=weights)["weights"]
        cohort.end_round()

    return work


def plain(actors: list[Any], size: int) -> Callable[[], None]:
    """A function that runs one round on the plain actors."""
    vector = torch.zeros(size)

    def work() -> None:
        nonlocal vector
        ref = ray.put(vector.numpy())
        sums = ray.get([actor.run.remote(ref, CLIENTS // len(actors)) for actor in actors])
        vector = sum(torch.from_numpy(total) for total in sums) / CLIENTS  # type: ignore[assignment]

    return work


def measure(case: str, bench: Path, rounds: int) -> dict[str, Any]:
    """Medians of one case, with rounds of ours and of the plain actors in turn; the first of each is left out."""
    method, changes = CASES[case]
    config = RunConfig.model_validate({"method": {"name": method}, **COMMON, **changes})
    federation = load_federation(config)
    size = InitialWeights(config, federation)(config.clients.encoder(0)).vector.size
    layout = Plan(2, cpus=0.5, gpus=0.0, threads=1, strategy="PACK")
    cohort = RayCohort(config, federation, Ledger(), Pool(layout, reserve(layout, 60)), factory=idle)
    options = {"num_cpus": 0, "runtime_env": {"env_vars": environment(1, 0.0)}}
    others: list[Any] = []
    kinds = {"ours": (ours(case, config, federation, cohort), [info.pid for info in cohort.infos])}
    if (bench / "common.py").exists():
        small = 106_304
        others = [ray.remote(Plain).options(**options).remote(str(bench), max(0, size - small)) for _ in range(2)]
        pids = ray.get([actor.pid.remote() for actor in others])
        length = size if size > small else small
        kinds["plain"] = plain(others, length), pids
    seen: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    peak = 0
    for _ in range(rounds + 1):
        for kind, (work, pids) in kinds.items():
            seen[kind].append(timed(work, pids))
        peak = max(peak, pss_bytes(kinds["ours"][1]))
    cohort.close()
    for actor in others:
        ray.kill(actor)
    line: dict[str, Any] = {"benchmark": "zero_work", "case": case, "clients": CLIENTS, "values": size}
    for kind, times in seen.items():
        line[f"{kind}_ms_per_client"] = round(statistics.median(wall for wall, _ in times[1:]) * 1e3 / CLIENTS, 4)
        line[f"{kind}_cpu_ms_per_client"] = round(statistics.median(cpu for _, cpu in times[1:]) * 1e3 / CLIENTS, 4)
    if "plain" in seen:
        ratios = [a[0] / b[0] for a, b in zip(seen["ours"][1:], seen["plain"][1:], strict=True)]
        line["ratio"] = round(statistics.median(ratios), 3)
        line["cpu_ratio"] = round(line["ours_cpu_ms_per_client"] / line["plain_cpu_ms_per_client"], 3)
    return {**line, "pss_mb": round(peak / 1e6), "rounds": rounds, "load": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, default=HERE.parents[1] / "shared" / "bench")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(
        address="local", num_cpus=2, num_gpus=0, include_dashboard=False, _node_ip_address="127.0.0.1",
        object_store_memory=1500 << 20, log_to_driver=False, logging_level="error",
    )  # fmt: skip
    for case in options.cases.split(","):
        print(json.dumps({**measure(case, options.bench.resolve(), options.rounds), **described()}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
