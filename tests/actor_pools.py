"""Warm client actors for a module of tests, because a start is a process that imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import ray

from actors.plan import reserve
from actors.pool import Pool
from actors.shares import Plan


@contextmanager
def two_actors(*modules: ModuleType, gpus: float = 0.0) -> Iterator[Pool]:
    """A pool of two actors with half a CPU each, on the Ray that this process is connected to.

    Args:
        modules: those whose functions and classes the actors run; no actor can import a test.
        gpus: each actor's share of a GPU.
    """
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    plan = Plan(2, cpus=0.5, gpus=gpus, threads=1, strategy="PACK")
    pool = Pool(plan, reserve(plan, 30.0))
    try:
        yield pool
    finally:
        pool.close()
