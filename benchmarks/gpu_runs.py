"""What ``gpu.py`` measures: sizes, the run of a method, and its server and cohort outside a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    encoder: str
    width: float
    pixels: int
    batches: tuple[int, ...]
    steps: int
    clients: int  # clients of a round
    client_batch: int  # the batch size of each of these
    client_steps: int
    actors: tuple[int, ...]
    copied: int  # bytes
    side: int  # rows and columns of the matrices
    images: int
    rounds: int  # the number of rounds over which medians are taken


FULL = Size("resnet18", 1.0, 32, (16, 128, 512), 40, 10, 128, 20, (1, 2, 4, 8), 1 << 30, 8192, 1500, 5)
SMALL = Size("resnet18", 0.125, 16, (8, 16), 10, 4, 16, 10, (1, 2), 1 << 20, 64, 240, 2)


def settings(size: Size, device: str, method: str, batch: int, clients: int, **changes: object) -> RunConfig:
    """A run of a method on digits at the size's pixels. Only the number of images matters, not what they show."""
    dotted: dict[str, object] = {
        "data.name": "digits", "data.image_size": size.pixels, "data.limit": size.images, "data.test_limit": 100,
        "data.partition.name": "iid", "clients.count": clients, "clients.encoders": size.encoder,
        "model.width": size.width, "train.batch_size": batch, "train.local_steps": size.steps,
        "train.precision": "bfloat16" if device == "cuda" else "float32", "evaluation.protocols": ["knn", "linear"],
        "resources.device": device, "resources.cuda_graphs": "off",
    }  # fmt: skip
    if method == "fedfoa":
        dotted |= {"model.calibration": 8, "method.warmup": 1}
    return build({"method": {"name": method}}, dotted | changes, origin="gpu.py")


def several(size: Size, device: str) -> RunConfig:
    """FedSimCLR with all clients of a round."""
    steps = {"train.local_steps": size.client_steps}
    return settings(size, device, "fedsimclr", size.client_batch, size.clients, **steps)


class Federated:
    """A method's server and cohort, outside a run."""

    def __init__(self, config: RunConfig, connect: Callable[[RunConfig, Federation, Ledger], Cohort]) -> None:
        self.federation, ledger = load_federation(config), Ledger()
        setup = Setup(config, self.federation, InitialWeights(config, self.federation))
        self.server: MethodServer[Any] = METHODS[config.method.name].server(setup)
        self.cohort = connect(config, self.federation, ledger)
        self.server.start(self.cohort)
        self.cohort.commit()
        self.t = 0

    def round(self) -> float:
        """Run one round with all clients and return its seconds."""
        self.t += 1
        self.cohort.begin_round(self.t, self.federation.clients)
        began = time.perf_counter()
        self.server.round(self.t, self.cohort)
        taken = time.perf_counter() - began
        self.cohort.end_round()
        return taken

    def trained(self) -> tuple[float, float]:
        """(images, seconds) of the clients' last operation that trained, in this round."""
        known = [v for client, v in self.cohort.metrics.items() if client >= 0 and "loss" in v]
        return sum(v["images"] for v in known), sum(v["seconds"] for v in known)

    def weights(self) -> np.ndarray:
        """The weights of the method's first encoder."""
        encoder = self.server.evaluated_encoders()[0]
        if encoder.weights is not None:
            return encoder.weights.vector
        assert encoder.client is not None
        ((_, state),) = self.cohort.states([encoder.client])
        found: np.ndarray = state["model"].vector
        return found
