"""The cost of many actors and nodes compared with two actors: rounds of idle clients, sixteen for each actor.

    python benchmarks/many_actors.py [--shapes 1x2,1x4,1x8,1x16,2x8,4x8,4x16] [--rounds 5]

A shape is NODESxACTORS. It uses Ray's own cluster for tests, with several nodes on this machine, so objects travel over
loopback sockets and all actors share its cores. One JSON line per shape and size of the model (0.4 and 45 MB): MB of
sums that the driver reads in a round, and CPU milliseconds per client, of all processes together, including raylets and
merging tasks. Both are means over ``--rounds`` rounds, or ten times as many for the small model, after a first one.
Every shape runs in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
from typing import Any

import zero_work  # first of all: sets the processes' environment

import psutil  # isort: skip - comes with ray
import ray
from processes import each_alone, tell
from ray.cluster_utils import Cluster

from actors.cohort import RayCohort
from actors.plan import reserve
from actors.pool import Pool
from actors.shares import Plan
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger

SHAPES = "1x2,1x4,1x8,1x16,2x8,4x8,4x16"
PER_ACTOR = 16
STORE_BYTES = 6 << 30  # for all nodes together
SAMPLED_S = 0.25
SMALL_ROUNDS = 10  # times as many rounds for the small model, as the system counts CPU in hundredths of a second


class Used(threading.Thread):
    """CPU seconds of this process and of all processes below it, including those that have ended. It samples them,
    because the system forgets the times of a process whose parent did not wait for it.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done, self._known, self._lock = threading.Event(), dict[tuple[int, float], float](), threading.Lock()

    def seconds(self) -> float:
        """The CPU seconds up to now."""
        with self._lock:
            for process in (me := psutil.Process(), *me.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self._known[process.pid, process.create_time()] = times.user + times.system
            return sum(self._known.values())

    def run(self) -> None:
        while not self.done.wait(SAMPLED_S):
            self.seconds()


def measure(nodes: int, actors: int, case: str, rounds: int) -> dict[str, Any]:
    """The line of one case on a cluster that is connected."""
    method, changes = zero_work.CASES[case]
    keys = {"method": {"name": method}, **zero_work.COMMON, **changes}
    keys["clients"] = {**keys["clients"], "count": PER_ACTOR * actors}
    config = RunConfig.model_validate(keys)
    federation = load_federation(config)
    plan = Plan(actors, cpus=0.5, gpus=0.0, threads=1, strategy="SPREAD")
    cohort = RayCohort(config, federation, Ledger(), Pool(plan, reserve(plan, 300)), factory=zero_work.idle)
    assert len({info.node for info in cohort.infos}) == nodes
    weights, used = InitialWeights(config, federation)(config.clients.encoder(0)), Used()
    used.start()
    for round in range(rounds + 1):
        if round == 1:  # the first is left out
            cpu, read = used.seconds(), cohort.sum_bytes
        cohort.begin_round(round, federation.clients)
        weights = cohort.mean("train", weights=weights)["weights"]
        cohort.end_round()
    used.done.set()
    used.join()
    cpu, read = used.seconds() - cpu, cohort.sum_bytes - read
    cohort.close()
    return {
        "benchmark": "many_actors", "nodes": nodes, "actors": actors, "clients": len(federation.clients),
        "values": weights.vector.size, "rounds": rounds, "read_mb": round_to(read / rounds / 1e6),
        "cpu_ms_per_client": round_to(cpu * 1e3 / rounds / len(federation.clients)),
    }  # fmt: skip


def round_to(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def shape(nodes: int, actors: int, rounds: int) -> None:
    """Measure both sizes of the model on one cluster."""
    store = {"object_store_memory": STORE_BYTES // nodes, "num_cpus": -(-actors // (2 * nodes))}
    cluster = Cluster(initialize_head=True, head_node_args=store)
    for _ in range(nodes - 1):
        cluster.add_node(**store)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        for case, times in (("mean", SMALL_ROUNDS), ("large", 1)):
            tell(measure(nodes, actors, case, times * rounds))
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        shape(*map(int, options.one.split("x")), options.rounds)
        return
    each_alone(options.shapes.split(","))


if __name__ == "__main__":
    main()
