"""Who gets what: the arithmetic and the refusals, against sums done by hand."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from actors.plan import autoscaling_ceiling, living_nodes, plan, plan_in_trial, reserve
from actors.shares import Plan
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.settings.blocks import ResourcesConfig

LAPTOP = [{"CPU": 4.0}]
ONE_GPU = [{"CPU": 4.0, "GPU": 1.0}]


def made(nodes: list[dict[str, float]], clients: int = 100, ceiling: Any = None, **resources: Any) -> Plan:
    return plan(ResourcesConfig(**resources), clients, nodes, ceiling)


def refusal(nodes: list[dict[str, float]], clients: int = 100, **resources: Any) -> str:
    with pytest.raises(UserError) as caught:
        made(nodes, clients, **resources)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_as_many_as_fit_but_no_more_than_clients() -> None:
    assert made(LAPTOP).actors == 4
    assert made(LAPTOP, clients=3).actors == 3
    assert made(LAPTOP, cpus_per_client=0.5).actors == 8
    assert made(LAPTOP, cpus_per_client=1.5).actors == 2
    assert made([{"CPU": 3.0}, {"CPU": 3.0}], cpus_per_client=2).actors == 2  # not 6 / 2 = 3: a bundle lies on one node
    assert made(LAPTOP, clients=7, cpus_per_client=0).actors == 7


def test_bundles_hold_what_an_actor_reserves() -> None:
    assert made(ONE_GPU, actors=2, gpus_per_client=0.5).bundles == [{"CPU": 1.0, "GPU": 0.5}] * 2
    assert made(LAPTOP, clients=1).bundles == [{"CPU": 1.0}]
    assert made(LAPTOP, clients=1, cpus_per_client=0).bundle == {}


def test_gpus_are_shared_evenly_if_nobody_says_how() -> None:
    alone = made(ONE_GPU)
    assert (alone.actors, alone.gpus) == (1, 1.0)
    four = made(ONE_GPU, actors=4)
    assert (four.actors, four.gpus) == (4, 0.25)
    three = made(ONE_GPU, actors=3)
    assert three.actors == 3
    assert 0.333 <= three.gpus <= 1 / 3
    assert any("3 actors share 1 GPU" in line for line in three.lines)
    assert made([{"CPU": 8.0, "GPU": 2.0}], actors=2).gpus == 1.0
    assert made(ONE_GPU, device="cpu").gpus == 0.0
    assert made(ONE_GPU, device="cpu").actors == 4
    assert made(LAPTOP).gpus == 0.0


def test_too_many_actors_are_refused_with_the_sum_and_two_ways_out() -> None:
    text = refusal(ONE_GPU, actors=5, gpus_per_client=0.25)
    assert text == (
        "resources.actors: found 5; 5 actors x 0.25 GPU = 1.25 GPUs, the cluster has 1.0: at most 4 "
        "(lower resources.gpus_per_client to 0.2, or set resources.actors=4)"
    )
    assert made([{"CPU": 5.0, "GPU": 1.0}], actors=5, gpus_per_client=0.2).actors == 5  # the way out is one
    text = refusal(LAPTOP, actors=5)
    assert "5 actors x 1 CPU = 5.0 CPUs, the cluster has 4.0: at most 4" in text
    assert "resources.cpus_per_client to 0.8" in text
    assert made(LAPTOP, actors=5, cpus_per_client=0.8).actors == 5
    text = refusal([{"CPU": 3.0}, {"CPU": 3.0}], actors=3, cpus_per_client=2)  # 6 CPUs in all, but on two nodes
    assert "on one node: at most 2 fit" in text


def test_what_fits_nowhere_is_refused() -> None:
    assert "the largest node has 4 CPUs" in refusal(LAPTOP, cpus_per_client=8)
    assert "the largest node has 0 GPUs" in refusal(LAPTOP, gpus_per_client=0.5)
    assert "the largest node has 1 GPUs" in refusal(ONE_GPU, gpus_per_client=2)
    assert "no single node has both" in refusal(
        [{"CPU": 1.0, "GPU": 1.0}, {"CPU": 8.0}], cpus_per_client=4, gpus_per_client=1
    )
    assert "whole GPUs" in refusal(ONE_GPU, gpus_per_client=1.5)
    assert "resources.device" in refusal(LAPTOP, device="cuda")
    assert "resources.device" in refusal(ONE_GPU, device="cuda", gpus_per_client=0)
    assert "resources.gpus_per_client" in refusal(ONE_GPU, device="cpu", gpus_per_client=0.5)
    with pytest.raises(UserError):
        made([], actors=1)


def test_an_actor_never_straddles_two_gpus() -> None:
    assert made([{"CPU": 16.0, "GPU": 2.0}], gpus_per_client=0.4).actors == 4  # two on each, not 2 / 0.4 = 5


def test_more_actors_than_clients_are_not_started_and_it_says_so() -> None:
    few = made(LAPTOP, clients=2, actors=4)
    assert few.actors == 2
    assert any("resources.actors=4" in line for line in few.lines)


def test_an_autoscaling_cluster_is_waited_for() -> None:
    assert "at most 4" in refusal(LAPTOP, actors=16)
    assert made(LAPTOP, actors=16, ceiling={"CPU": 32.0}).actors == 16
    assert made([], clients=3, ceiling={"CPU": 32.0}).actors == 3


def test_a_trial_uses_the_bundles_it_was_given() -> None:
    there = plan_in_trial(
        ResourcesConfig(threads=2), [{"CPU": 0.1}, {"CPU": 0.4, "GPU": 0.25}, {"CPU": 0.4, "GPU": 0.25}]
    )
    assert (there.actors, there.cpus, there.gpus, there.threads) == (2, 0.4, 0.25, 2)
    with pytest.raises(UserError):
        plan_in_trial(ResourcesConfig(), [{"CPU": 1.0}])


class Holder:
    def gpus(self) -> tuple[str, ...]:
        import ray

        return tuple(ray.get_runtime_context().get_accelerator_ids()["GPU"])


@pytest.mark.long
def test_four_quarters_of_one_gpu_are_the_same_gpu(ray_session: ModuleType) -> None:
    ray_session.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    four = plan(
        ResourcesConfig(actors=4, gpus_per_client=0.25, cpus_per_client=0.5), 8, living_nodes(), autoscaling_ceiling()
    )
    reservation = reserve(four, 30)
    remote = ray_session.remote(Holder)
    share = {"num_cpus": four.cpus, "num_gpus": four.gpus}
    holders = [remote.options(**share, **reservation.options(i)).remote() for i in range(four.actors)]
    assert ray_session.get([holder.gpus.remote() for holder in holders]) == [("0",)] * 4
    for holder in holders:
        ray_session.kill(holder)
    reservation.release()


@pytest.mark.long
def test_what_never_becomes_free_ends_with_what_was_awaited(ray_session: ModuleType) -> None:
    everything = Plan(1, cpus=4.0, gpus=0.0, threads=1, strategy="PACK")
    held = reserve(everything, 30)
    with pytest.raises(UserError, match=r"resources\.wait_s: waited 1 s for 1 x 4 CPU; free now: [\d.]+ CPUs"):
        reserve(everything, 1)
    held.release()
    named = reserve(everything, 30, "left behind")
    again = reserve(everything, 30, "left behind")  # what a dead driver left under its name is taken away first
    assert again.group.id != named.group.id  # type: ignore[union-attr]
    again.release()
    assert reserve(Plan(2, 0.0, 0.0, 1, "PACK"), 1).group is None


def test_gpus_of_one_kind_only() -> None:
    """Mixed kinds of GPU give different bits: with `gpu_kind` actors are planned on, and reserve, that kind alone."""
    nodes = [
        {"CPU": 8.0, "GPU": 2.0, "accelerator_type:A100": 1.0},
        {"CPU": 8.0, "GPU": 4.0, "accelerator_type:L4": 1.0},
    ]
    four = plan(ResourcesConfig(gpu_kind="A100", gpus_per_client=0.5), 100, nodes)
    assert four.actors == 4
    assert four.bundle == {"CPU": 1.0, "GPU": 0.5, "accelerator_type:A100": 0.001}
    assert plan(ResourcesConfig(gpus_per_client=0.5), 100, nodes).actors == 12
    with pytest.raises(UserError, match=r"resources\.gpu_kind: found 'H200'; the cluster has A100, L4"):
        plan(ResourcesConfig(gpu_kind="H200"), 100, nodes)
    with pytest.raises(UserError, match="names no kind of GPU"):
        plan(ResourcesConfig(gpu_kind="H200"), 100, [{"CPU": 2.0}])
