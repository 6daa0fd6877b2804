"""Decides how many trials run at a time, and with which resources; waits for resources and says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import ray
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.util.placement_group import placement_group_table

from actors.plan import SILENT_S, autoscaling_ceiling, describe, free_now, living_nodes, plan
from actors.shares import Plan
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.settings.blocks import ResourcesConfig


@dataclass(frozen=True)
class TrialSlots:
    """How many trials run at a time, and the bundles of each: the trial's own first, then its client actors'."""

    trials: int
    plan: Plan
    node: str  # the resource that only the command's node has

    @property
    def bundles(self) -> list[dict[str, float]]:
        return [{self.node: 0.001}, *self.plan.bundles]

    @property
    def line(self) -> str:
        actors = f"{self.plan.actors} client actor(s) of {describe(self.plan.cpus, self.plan.gpus)}"
        return f"{self.trials} trial(s) at a time, each with {actors}"


def trial_slots(resources: ResourcesConfig, concurrent: int | None, trials: int, node: str = "node") -> TrialSlots:
    """Divide the cluster among trials. A pure function, except that it reads the cluster's nodes.

    ``resources.actors`` applies to each trial, by default 1. If ``concurrent`` is set, this number of trials share the
    cluster, with fractions of GPUs; else the shares are those in ``resources``, and as many trials run as fit. Raises
    UserError if not even one trial fits, or not as many as asked for.
    """
    nodes, actors = living_nodes(), resources.actors or 1
    ceiling = autoscaling_ceiling(resources.autoscales_to)
    actors_in_all = actors * (concurrent or 1)
    shared = plan(resources.model_copy(update={"actors": actors_in_all}), actors_in_all, nodes, ceiling)
    per_trial = Plan(actors, shared.cpus, shared.gpus, shared.threads, shared.strategy, kind=shared.kind)
    if concurrent is None:
        fixed = resources.model_copy(update={"actors": None, "gpus_per_client": shared.gpus})
        concurrent = plan(fixed, actors * trials, nodes, ceiling).actors // actors
    return TrialSlots(max(1, min(concurrent, trials)), per_trial, node)


class Patience:
    """Waits, and says so, while the cluster has no room for a trial: others hold it, or an autoscaler starts nodes."""

    def __init__(
        self, resources: ResourcesConfig, space: TrialSlots, say: Callable[[str], None], before: Iterable[str] = ()
    ) -> None:
        self.wait_s, self.say = max(resources.wait_s, 1.0), say
        self.before = frozenset(before)  # placement groups that have nothing to do with this sweep
        self.awaited = f"{space.plan.actors} x {describe(space.plan.cpus, space.plan.gpus)}"
        self.grows = autoscaling_ceiling(resources.autoscales_to) is not None
        self.began = False  # whether a trial ever had a place
        self.since, self.said = time.monotonic(), False

    def look(self) -> bool:
        """Whether some trial has a place. Raises UserError if none ever had one, and none is coming."""
        if placed(self.before):
            self.began, self.since, self.said = True, time.monotonic(), False
            return True
        waited = time.monotonic() - self.since
        for_ever = self.began or self.grows
        if not self.said and waited >= min(SILENT_S, self.wait_s):
            self.said = True
            limit = "" if for_ever else f" up to {self.wait_s:g} s"
            self.say(f"waiting{limit} for a trial's {self.awaited}; free now: {free_now()}")
        if waited >= self.wait_s and not for_ever and not growing():
            raise UserError(
                f"resources.wait_s: waited {self.wait_s:g} s for a trial's {self.awaited}; free now: {free_now()} "
                "(wait longer, or lower resources.actors)"
            )
        return False


def placed(before: frozenset[str]) -> bool:
    """Whether some placement group that this process asked for is placed, apart from those in ``before``. A group's id
    ends with its job's id.
    """
    job = ray.get_runtime_context().get_job_id()
    groups = placement_group_table().items()
    return any(key.endswith(job) and group["state"] == "CREATED" for key, group in groups if key not in before)


def growing() -> bool:
    """Whether an autoscaler is starting nodes."""
    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    return bool(status.pending_launches or status.pending_nodes)
