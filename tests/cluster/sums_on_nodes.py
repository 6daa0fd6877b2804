"""A mean over actors on several nodes of this machine, as a program: its bits, and the bytes its driver read.

python tests/cluster/sums_on_nodes.py NODES ACTORS [kill]    # kill: the last node, with sums merged on it
python tests/cluster/sums_on_nodes.py NODES ACTORS replies   # the last node, with replies that nobody has read

Prints one JSON line: a digest of the mean, of the same in process, bytes of sums the driver read, actors replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.update(OMP_NUM_THREADS="1", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0")
os.environ.update({"RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT)})
os.environ.pop("RAY_ADDRESS", None)

import numpy as np  # noqa: E402
import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from actors import sums  # noqa: E402
from actors.cohort import RayCohort  # noqa: E402
from actors.failures import StateLost  # noqa: E402
from actors.plan import reserve  # noqa: E402
from actors.pool import Pool  # noqa: E402
from actors.shares import Plan  # noqa: E402
from rayfed_ssl.config import RunConfig  # noqa: E402
from rayfed_ssl.federated.cohort import Cohort  # noqa: E402
from rayfed_ssl.federated.federation import Federation, load_federation  # noqa: E402
from rayfed_ssl.federated.ledger import Ledger  # noqa: E402
from rayfed_ssl.federated.messages import OperationResult, State  # noqa: E402
from rayfed_ssl.simulation.local import LocalCohort  # noqa: E402
from rayfed_ssl.simulation.worker import Worker  # noqa: E402
from tests.tiny import tiny  # noqa: E402

VALUES = 50_000  # 0.4 MB of a sum: too large to travel within a reply
SYSTEM = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 2000,
    "health_check_failure_threshold": 3,  # a dead node is missed in 6 s, not 15
}


def worker_of(config: RunConfig, federation: Federation) -> Worker:
    """A worker whose clients reply with noise of their own."""

    class Noise(Worker):
        def execute(
            self,
            operation: str,
            client: int,
            round: int,
            message: Mapping[str, Any],
            state: State | None,
            visit: int = 0,
        ) -> tuple[OperationResult, State]:
            drawn = np.random.default_rng([round, client]).normal(size=VALUES).astype(np.float32)
            return OperationResult(client, {"weights": drawn}, {}), {}

    return Noise(config, federation)


def digest(cohort: Cohort, federation: Federation) -> list[str]:
    """Of the means of two rounds."""
    found = []
    for t in (1, 2):
        cohort.begin_round(t, federation.clients)
        mean = cohort.mean("train")
        assert [reply.client for reply in mean.replies] == list(federation.clients)
        found.append(hashlib.sha256(mean["weights"].tobytes()).hexdigest()[:16])
        cohort.end_round()
    return found


def killing(raylet: int) -> Any:
    """The merge, after which the node dies on which it put what it merged."""
    real = sums.merged_where_they_lie

    def merged(held: Any, home: str) -> list[Any]:
        refs = real(held, home)
        sums.merged_where_they_lie = real  # once
        ray.wait(refs, num_returns=len(refs), timeout=120, fetch_local=False)
        os.kill(raylet, signal.SIGKILL)
        return refs

    return merged


def lost_replies(cohort: RayCohort, raylet: int) -> dict[str, Any]:
    """What becomes of server work on replies of which some lay on a node that has died."""
    cohort.begin_round(1, cohort.federation.clients)
    replies = list(cohort.ask("train"))
    os.kill(raylet, signal.SIGKILL)
    try:
        cohort.serve("train", sent=[reply.fields for reply in replies])
    except StateLost as error:
        return {"served": None, "lost": str(error), "read_bytes": cohort.replies.read_bytes}
    return {"served": True}


def main() -> None:
    nodes, actors = int(sys.argv[1]), int(sys.argv[2])
    store = {"object_store_memory": 120 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "_system_config": SYSTEM, **store})
    others = [cluster.add_node(num_cpus=4, **store) for _ in range(nodes - 1)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        config = tiny("fedbyol", clients__count=24, data__limit=240)
        federation = load_federation(config)
        here = LocalCohort(config, federation, Ledger())
        here.worker = worker_of(config, federation)
        expected = digest(here, federation)
        plan = Plan(actors, cpus=0.5, gpus=0.0, threads=1, strategy="SPREAD")
        cohort = RayCohort(config, federation, Ledger(), Pool(plan, reserve(plan, 120)), factory=worker_of)
        sums.DIRECT_BYTES = 0
        if sys.argv[3:] == ["kill"]:
            sums.merged_where_they_lie = killing(others[-1].all_processes["raylet"][0].process.pid)
        if sys.argv[3:] == ["replies"]:
            print("result " + json.dumps(lost_replies(cohort, others[-1].all_processes["raylet"][0].process.pid)))
            return
        found = digest(cohort, federation)
        line = {"digest": found, "expected": expected, "read_bytes": cohort.sum_bytes, "replaced": cohort.replaced}
        line["nodes"] = len({info.node for info in cohort.infos})
        print("result " + json.dumps(line), flush=True)
        cohort.close()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
