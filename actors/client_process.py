"""A client's actor in the form that Ray starts: the process starts at once, and imports slow libraries in its
constructor.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle

from actors.ending import end_at_sigterm
from actors.shares import Plan, Reservation, environment, request_bundles
from rayfed_ssl.base.lazy import importing


@dataclass(frozen=True)
class StartedActors:
    """Client actors whose processes were started, and the bundles requested for them, which may not be granted yet."""

    reservation: Reservation
    actors: Sequence[ActorHandle]

    def close(self) -> None:
        """End the actors, and release the bundles."""
        for actor in self.actors:
            ray.kill(actor)
        self.reservation.release()


def begin(plan: Plan, name: str) -> StartedActors:
    """Start the actors of a plan without waiting for their bundles.

    Args:
        name: the name of their placement group.
    """
    reservation = request_bundles(plan, name)
    return StartedActors(reservation, [start_client(plan, reservation, number) for number in range(plan.actors)])


def start_client(plan: Plan, reservation: Reservation, number: int) -> ActorHandle:
    """The actor with this number, in its bundle."""
    variables = environment(plan.threads, plan.gpus)
    options = {
        "num_cpus": plan.cpus,
        "num_gpus": plan.gpus,
        "max_restarts": 0,
        "max_task_retries": 0,
        **plan.runtime_env(variables),
        **reservation.options(number),
    }
    return ray.remote(ClientActorProcess).options(**options).remote(number, variables)


class ClientActorProcess:
    """The process of a :class:`actors.client.ClientActor`, whose methods these are."""

    def __init__(self, actor: int, variables: dict[str, str]) -> None:
        end_at_sigterm()
        os.environ.update(variables)
        with importing():
            from actors.client import ClientActor
        gc.freeze()  # later collections leave alone what was imported
        self.client = ClientActor(actor)

    def open(self, *args: Any) -> Any:
        return self.client.open(*args)

    def publish(self, *args: Any) -> Any:
        return self.client.publish(*args)

    def chunk(self, *args: Any) -> Any:
        return self.client.chunk(*args)

    def hand_over(self, *args: Any) -> Any:
        return self.client.hand_over(*args)

    def assess(self, *args: Any) -> Any:
        return self.client.assess(*args)
