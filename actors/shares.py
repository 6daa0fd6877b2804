"""The resources of actors: a plan's shares, the bundles reserved for them, and their environment.

This module imports little, because processes import it before libraries that take seconds.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

KIND = "accelerator_type:"  # Ray's resource that a node with such GPUs has one of
KIND_SHARE = 1e-3


def environment(threads: int, gpus: float) -> dict[str, str]:
    """Environment of an actor's process, set before it starts, because libraries read it when they load.

    Raised malloc thresholds keep glibc from giving activations back to the kernel and faulting them in again (1.3 to
    1.6 times faster on CPU). OpenMP threads must not spin while they wait: that is very slow on shared cores.
    """
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS is deterministic only with a fixed workspace
    }
    return variables if gpus else {**variables, "CUDA_VISIBLE_DEVICES": ""}


def restarted() -> bool:
    """Whether this actor was restarted, so that this process is not its first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own use of what it calls deprecated
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


@dataclass(frozen=True)
class Plan:
    """The number of client actors, and each one's share of a node."""

    actors: int
    cpus: float
    gpus: float
    threads: int
    strategy: str
    lines: tuple[str, ...] = ()  # why, for people
    kind: str | None = None  # of GPU
    prepared: bool = False
    """Whether Ray's processes have the :func:`environment` of so many threads already, but for the GPUs they see."""

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that one actor reserves; empty if it reserves nothing."""
        share = {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount > 0}
        return share | ({KIND + self.kind: KIND_SHARE} if self.kind else {})

    @property
    def bundles(self) -> list[dict[str, float]]:
        return [dict(self.bundle) for _ in range(self.actors)]

    def runtime_env(self, variables: dict[str, str]) -> dict[str, Any]:
        """Ray's option for a process with these variables; empty if they are set already, because this option makes Ray
        import itself twice in every process.
        """
        return {} if self.prepared else {"runtime_env": {"env_vars": variables}}


@dataclass(frozen=True)
class Reservation:
    """Bundles for the actors of a plan: actor i lies in bundle ``first + i``. There is no group if actors reserve
    nothing.
    """

    group: PlacementGroup | None
    first: int = 0
    owned: bool = True

    def options(self, actor: int) -> dict[str, Any]:
        """Ray options that put an actor into its bundle."""
        if self.group is None:
            return {}
        place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.first + actor)
        return {"scheduling_strategy": place}

    def release(self) -> None:
        """Give the bundles back, if this reservation made them."""
        if self.group is not None and self.owned:
            await_scheduling([self.group])
            remove_placement_group(self.group)


# Ray 2.60 loses the bundles of a group that is removed between their preparation and their commitment (ray-project/ray,
# issue 64693): their CPUs and GPUs are nobody's until the node ends.
SCHEDULED = frozenset({"NO_RESOURCES", "INFEASIBLE", "FINISHED", "REMOVED"})  # states of a group not being placed
SCHEDULING_S = 10.0


def await_scheduling(groups: Iterable[PlacementGroup]) -> None:
    """Wait until Ray has placed each group, or found no room for it; at most ``SCHEDULING_S`` seconds for each."""
    for group in groups:
        last = time.monotonic() + SCHEDULING_S
        while state(group) not in SCHEDULED and time.monotonic() < last:
            time.sleep(0.005)


def state(group: PlacementGroup) -> str:
    """How far Ray is with placing the group; a group that Ray does not know counts as removed."""
    return str(placement_group_table(group).get("stats", {}).get("scheduling_state", "REMOVED"))


def trial_group() -> PlacementGroup | None:
    """The placement group this process was started in: a Tune trial's."""
    return ray.util.get_current_placement_group()


def request_bundles(plan: Plan, name: str = "") -> Reservation:
    """A placement group for the plan's actors, which may not be ready yet; in a Tune trial the trial's own.

    Args:
        name: a group of this name left by a process that died is removed first.
    """
    if (group := trial_group()) is not None:
        return Reservation(group, first=1, owned=False)
    if not plan.bundle:
        return Reservation(None)
    if name:
        discard(name)
    return Reservation(placement_group(plan.bundles, strategy=plan.strategy, name=name))


def discard(name: str) -> None:
    """Remove the group of this name, if there is one, and wait until its bundles are free."""
    with contextlib.suppress(ValueError):  # there is none of that name
        group = ray.util.get_placement_group(name)
        await_scheduling([group])
        remove_placement_group(group)
        for _ in range(100):
            if placement_group_table(group).get("state") == "REMOVED":
                return
            time.sleep(0.1)
