"""Rounds without a run folder, and single clients: what tests of methods look into."""

from __future__ import annotations

from typing import Any

from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import SERVER
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from tests.dotted import dotted

BASE: dict[str, Any] = {
    "data": {"name": "digits", "image_size": 8, "limit": 90, "test_limit": 40},
    "clients": {"count": 3, "encoders": "small_cnn_bn"},
    "model": {"width": 0.25, "projector": {"hidden": [8], "dim": 4}},
    "augment": {"preset": "digits"},
    "train": {"rounds": 2, "batch_size": 10, "optimizer": {"lr": 0.05}},
    "evaluation": {"protocols": [], "every": 0},
}


def config_of(name: str, **changes: object) -> RunConfig:
    """A run of seconds; ``changes`` are dotted keys with ``__`` for dots."""
    return build({**BASE, "method": {"name": name}}, dotted(**changes), origin="test")


def started(config: RunConfig) -> tuple[MethodServer[Any], LocalCohort]:
    """The server before its first round, and its cohort."""
    federation = load_federation(config)
    cohort = LocalCohort(config, federation, Ledger())
    server = METHODS[config.method.name].server(Setup(config, federation, InitialWeights(config, federation)))
    server.start(cohort)
    return server, cohort


def played(config: RunConfig) -> tuple[MethodServer[Any], LocalCohort]:
    """The server after its last round, and its cohort."""
    server, cohort = started(config)
    for t in range(1, config.train.rounds + 1):
        cohort.begin_round(t, cohort.federation.clients)
        server.round(t, cohort)
        cohort.end_round()
    return server, cohort


def worker(config: RunConfig, **published: Any) -> Worker:
    return Worker(config, load_federation(config), published)


def client(context: Worker, number: int = 0, operation: str = "train", round: int = 1) -> EncoderClient[Any]:
    """A client, or the server's own work (SERVER), ready to be asked."""
    kind = context.method.client if number != SERVER else context.method.service
    assert kind is not None
    return kind(context, number, round, operation, {})
