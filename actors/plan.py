"""The plan: computes actors and their shares from a run's ``resources`` and a cluster's, or refuses with numbers.

Ray waits silently for ever for what can never be scheduled, so the arithmetic is done here first. :func:`plan` is pure;
:func:`reserve` turns a plan into a placement group. Within a Ray Tune trial the trial's own group is used: its bundle 0
is the driver's, every other bundle a client actor's (Ray does not count an empty head bundle).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray._private.utils import get_num_cpus

from actors.shares import KIND, Plan, Reservation, request_bundles, trial_group
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.user_error import StoppedAtOnce
from rayfed_ssl.config import RunConfig
from rayfed_ssl.settings.blocks import ResourcesConfig

Resources = Mapping[str, float]
EPSILON = 1e-6
SILENT_S = 5.0  # a wait that takes longer is announced
LOOK_S = 1  # between looks, during a wait, at whether a stop was asked for; Ray waits for whole seconds


def plan(
    resources: ResourcesConfig, clients_per_round: int, nodes: Sequence[Resources], ceiling: Resources | None = None
) -> Plan:
    """The plan: number of actors and their shares.

    Args:
        resources: the config's block.
        clients_per_round: the number of clients asked at once; more actors than that would idle.
        nodes: the resources of each living node ({"CPU": 8, "GPU": 1, ...}).
        ceiling: what an autoscaling cluster can grow to; then a plan that does not fit yet is waited for, not refused.
    Raises:
        UserError: the plan can never be scheduled; the text has the arithmetic and a way out.
    """
    nodes = _of_kind(resources.gpu_kind, nodes, waits=ceiling is not None)
    total = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    reach = {name: max(total[name], (ceiling or {}).get(name, 0.0)) for name in total}
    cpus, gpus, why = resources.cpus_per_client, *_gpu_share(resources, reach)
    fits = _fits(cpus, gpus, nodes)
    if ceiling is not None:
        fits = max(fits, _fits(cpus, gpus, [reach]))
    if fits < 1:
        raise UserError(_too_big(cpus, gpus, nodes))
    if resources.actors is not None and resources.actors > fits:
        raise UserError(_too_many(resources.actors, cpus, gpus, total, int(fits)))
    wanted = fits if resources.actors is None else resources.actors
    actors = int(min(wanted, clients_per_round))
    lines = [f"{actors} client actor(s) of {describe(cpus, gpus)}, {resources.threads} thread(s) each", *why]
    if resources.actors is not None and actors < resources.actors:
        lines.append(
            f"resources.actors={resources.actors}: a round has {clients_per_round} clients, so {actors} are started"
        )
    return Plan(actors, cpus, gpus, resources.threads, resources.strategy, tuple(lines), resources.gpu_kind)


def _of_kind(kind: str | None, nodes: Sequence[Resources], *, waits: bool) -> Sequence[Resources]:
    """The nodes whose GPUs are of the kind asked for. Raises UserError if there is none and none can be added."""
    found = [node for node in nodes if kind is None or KIND + kind in node]
    if not found and not waits:
        kinds = sorted({name.removeprefix(KIND) for node in nodes for name in node if name.startswith(KIND)})
        have = f"has {', '.join(kinds)}" if kinds else "names no kind of GPU"
        raise UserError(f"resources.gpu_kind: found '{kind}'; the cluster {have}")
    return found


def plan_in_trial(resources: ResourcesConfig, bundles: Sequence[Resources]) -> Plan:
    """The plan that a Tune trial's placement group implies; ``bundles`` as Ray lists them, the driver's first.

    Raises:
        UserError: the group has no bundle for a client actor.
    """
    own = bundles[1:]
    if not own:
        raise UserError(
            "resources.actors: this trial's placement group has no bundle for a client actor; at least 1 needed"
        )
    cpus, gpus = (min(bundle.get(name, 0.0) for bundle in own) for name in ("CPU", "GPU"))
    line = f"{len(own)} client actor(s) of {describe(cpus, gpus)} in the trial's placement group"
    return Plan(len(own), cpus, gpus, resources.threads, resources.strategy, (line,))


def describe(cpus: float, gpus: float) -> str:
    """A share in words: 1 CPU, 0.25 GPU."""
    return f"{cpus:g} CPU" + (f", {gpus:g} GPU" if gpus else "")


def _gpu_share(resources: ResourcesConfig, total: Resources) -> tuple[float, list[str]]:
    """Each actor's share of a GPU, and a line that explains it if nobody asked for it."""
    share, count = resources.gpus_per_client, int(total["GPU"] + EPSILON)
    if resources.device == "cpu":
        if share:
            raise UserError(f"resources.gpus_per_client: found {share:g} with resources.device=cpu; allowed: 0 or none")
        return 0.0, []
    if resources.device == "cuda" and (count == 0 or share == 0):
        found = f"gpus_per_client={share:g}" if count else "a cluster without GPUs"
        raise UserError(f"resources.device: found 'cuda' with {found}; allowed then: auto, cpu")
    if share is not None:
        if share > 1 and share != int(share):
            raise UserError(f"resources.gpus_per_client: found {share:g}; allowed: a part of one GPU, or whole GPUs")
        return share, []
    if count == 0:
        return 0.0, []
    per_gpu = 1 if resources.actors is None else math.ceil(resources.actors / count)
    share = math.floor(1e4 / per_gpu) / 1e4  # Ray counts in ten-thousandths
    how = "one actor per GPU" if per_gpu == 1 else f"{resources.actors} actors share {count} GPU(s)"
    return share, [f"resources.gpus_per_client not given: {how}, {share:g} each"]


def _fits(cpus: float, gpus: float, nodes: Sequence[Resources]) -> float:
    """How many actors the nodes can hold: each on one node, with its share of a GPU on one GPU. inf if an actor needs
    nothing.
    """

    def on(node: Resources) -> float:
        by_cpu = math.floor(node.get("CPU", 0.0) / cpus + EPSILON) if cpus else math.inf
        if not gpus:
            return by_cpu
        devices = node.get("GPU", 0.0)
        if gpus < 1:  # what is left of GPUs in part taken is one GPU's, for all that Ray tells
            whole = math.floor(devices + EPSILON)
            part = math.floor(max(devices - whole, 0.0) / gpus + EPSILON)
            return min(by_cpu, whole * math.floor(1 / gpus + EPSILON) + part)
        return min(by_cpu, math.floor(devices / gpus + EPSILON))

    return sum(on(node) for node in nodes)


def _too_big(cpus: float, gpus: float, nodes: Sequence[Resources]) -> str:
    """The error that not even one actor fits on any node."""
    most = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in ("CPU", "GPU")}
    if gpus > most["GPU"] + EPSILON:
        return (
            f"resources.gpus_per_client: found {gpus:g}; the largest node has {most['GPU']:g} GPUs "
            f"(lower resources.gpus_per_client to {most['GPU']:g})"
        )
    if cpus > most["CPU"] + EPSILON:
        return (
            f"resources.cpus_per_client: found {cpus:g}; the largest node has {most['CPU']:g} CPUs "
            f"(lower resources.cpus_per_client to {most['CPU']:g})"
        )
    return (
        f"resources.cpus_per_client: found {cpus:g} with {gpus:g} GPU; no single node has both "
        f"(at most {most['CPU']:g} CPUs and {most['GPU']:g} GPUs on one; lower resources.cpus_per_client)"
    )


def _too_many(actors: int, cpus: float, gpus: float, total: Resources, fits: int) -> str:
    """The error that more actors are asked for than fit: the arithmetic of the resource that runs out, and two ways
    out.
    """
    for name, key, share in (("GPU", "gpus_per_client", gpus), ("CPU", "cpus_per_client", cpus)):
        if actors * share > total[name] + EPSILON:
            lower = math.floor(total[name] / actors * 1e4) / 1e4
            sums = f"{actors} actors x {share:g} {name} = {_tenths(actors * share)} {name}s"
            return (
                f"resources.actors: found {actors}; {sums}, the cluster has {_tenths(total[name])}: at most {fits} "
                f"(lower resources.{key} to {lower:g}, or set resources.actors={fits})"
            )
    return (
        f"resources.actors: found {actors}; each needs {describe(cpus, gpus)} on one node: at most {fits} fit "
        f"(lower the share, or set resources.actors={fits})"
    )


def _tenths(amount: float) -> str:
    """A number with at least one decimal: 1.0, 1.25."""
    return f"{amount:.1f}" if abs(amount * 10 - round(amount * 10)) < EPSILON else f"{amount:.4g}"


# -- what a cluster has, and taking a part of it ---------------------------------------------------------------------


def cores() -> float:
    """The CPUs that a Ray instance started here would offer; in a container, those of its quota."""
    return float(get_num_cpus(override_docker_cpu_warning=True))


def living_nodes() -> list[Resources]:
    """The resources of each living node of the cluster we are connected to."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def free_nodes() -> list[Resources]:
    """The free resources of each living node."""
    return list(ray._private.state.available_resources_per_node().values())


def autoscaling_ceiling(declared: Mapping[Any, float] | None = None) -> Resources | None:
    """What an autoscaler may grow this cluster to: ``declared`` (``resources.autoscales_to``), else what Ray says.

    None if neither says anything: then the cluster's size is fixed. Ray 2.60's own autoscaler does not say.
    """
    limits: dict[str, float] | None = ray._private.state.state.get_max_resources_from_cluster_config()
    return declared or limits or None


def planned(config: RunConfig) -> Plan:
    """The plan for the cluster we are connected to, or for the Tune trial we are in. Raises UserError."""
    if (group := trial_group()) is not None:
        return plan_in_trial(config.resources, group.bundle_specs)
    ceiling = autoscaling_ceiling(config.resources.autoscales_to)
    return plan(config.resources, config.cohort_size, living_nodes(), ceiling)


def reserve(
    plan: Plan,
    wait_s: float,
    name: str = "",
    say: Callable[[str], None] = lambda line: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Reservation:
    """A placement group for the plan's actors that is ready; in a Tune trial the trial's own. See
    :func:`await_ready`.
    """
    return await_ready(plan, request_bundles(plan, name), wait_s, say, stopping)


def await_ready(
    plan: Plan,
    reservation: Reservation,
    wait_s: float,
    say: Callable[[str], None] = lambda line: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Reservation:
    """The reservation, once it is ready; a Tune trial's own is ready already.

    Args:
        wait_s: how long to wait for others to finish, or for an autoscaler to start nodes.
        say: gets a line that says what is awaited, if that takes long.
        stopping: ends the wait once it returns True.
    Raises:
        StoppedAtOnce: ``stopping`` returned True before it was ready.
        UserError: it did not become ready in time; the text says what was awaited and what is free.
    """
    group = reservation.group
    if group is None or not reservation.owned:
        return reservation
    awaited, patience = f"{plan.actors} x {describe(plan.cpus, plan.gpus)}", max(wait_s, 1.0)

    def ready_within(seconds: float) -> bool:
        last = time.monotonic() + seconds
        while not group.wait(max(0, min(LOOK_S, math.ceil(last - time.monotonic())))):
            if stopping():
                reservation.release()
                raise StoppedAtOnce(
                    f"stopped at once, while it waited for {awaited}; --resume continues what was saved"
                )
            if time.monotonic() >= last:
                return False
        return True

    if not ready_within(min(SILENT_S, patience)):
        if patience > SILENT_S:
            say(f"waiting up to {wait_s:g} s for {awaited}; free now: {free_now()}")
        if not ready_within(max(patience - SILENT_S, 0.0)):
            free = free_now()
            reservation.release()
            raise UserError(
                f"resources.wait_s: waited {wait_s:g} s for {awaited}; free now: {free} "
                "(wait longer, or lower resources.actors)"
            )
    return reservation


def what_is_left(
    before: Plan, resources: ResourcesConfig, nodes: Sequence[Resources], free: Sequence[Resources] | None = None
) -> Plan:
    """The plan with the same shares and fewer actors, on the nodes that remain of a cluster.

    Args:
        free: the nodes' free resources, if ``before`` was waited for in vain. Then there are fewer actors than
            ``before``, but at least one, even if it has to be waited for.
    Raises:
        UserError: not one actor fits on any of the nodes.
    """
    shares = {"actors": None, "gpus_per_client": before.gpus, "device": "auto"}
    left = plan(resources.model_copy(update=shares), before.actors, nodes)
    if free is None:
        return left
    fits = _fits(before.cpus, before.gpus, _of_kind(before.kind, free, waits=True))
    return replace(left, actors=int(max(1, min(fits, left.actors, before.actors - 1))))


def free_now() -> str:
    """The free resources of the cluster, in words."""
    free = ray.available_resources()
    return f"{free.get('CPU', 0.0):g} CPUs, {free.get('GPU', 0.0):g} GPUs"
