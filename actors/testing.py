"""Warm pools of client actors that a whole test session shares, because starting processes is most of a tiny run's
cost.
"""

from __future__ import annotations

from typing import Literal

import pytest
import ray

from actors.plan import plan, reserve
from actors.pool import Pool
from rayfed_ssl.settings.blocks import ResourcesConfig

GPU_SHARE = 0.25  # of an actor: pools of one and of two actors have room on one GPU

_pools: dict[tuple[int, str], Pool] = {}


def local_ray(config: pytest.Config) -> None:
    """Connect to one local instance (4 CPUs, one pretended GPU) that ends with the session."""
    if ray.is_initialized():
        return
    ray.init(
        address="local",
        num_cpus=4,
        num_gpus=1,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=300 * 1024**2,
        log_to_driver=False,
    )
    config.add_cleanup(_close)


def shared_pool(actors: int, config: pytest.Config, device: Literal["auto", "cpu", "cuda"] = "cpu") -> Pool:
    """A pool of this many client actors, opened once per session; with ``device`` cuda they share a GPU."""
    local_ray(config)
    if (actors, device) not in _pools:
        share = GPU_SHARE if device == "cuda" else 0.0
        wishes = ResourcesConfig(actors=actors, cpus_per_client=0.5, gpus_per_client=share, device=device)
        made = plan(wishes, actors, [{"CPU": 2.0, "GPU": 1.0}])
        _pools[actors, device] = Pool(made, reserve(made, 60.0))
    return _pools[actors, device]


def close_pools() -> None:
    """Close the pools, so that other tests can use their resources."""
    while _pools:
        _pools.popitem()[1].close()


def _close() -> None:
    close_pools()
    ray.shutdown()
