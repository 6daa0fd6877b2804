"""What a server and a plug-in's server half know before the first round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rayfed_ssl.base.weights import Weights, pack
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import WireSize
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.objectives.base import target_modules
from rayfed_ssl.settings.run import RunSettings
from rayfed_ssl.settings.transport import DIRECTIONS, Direction


@dataclass(frozen=True)
class Setup:
    """What a server knows before the first round: sizes and architectures, never images."""

    config: RunSettings
    federation: Federation
    initial: Callable[[str], Weights]  # an architecture's untrained values
    _sizes: dict[tuple[str, str], dict[Direction, WireSize]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def clients(self) -> tuple[int, ...]:
        return self.federation.clients

    def network_size(self, encoder: str, way: Direction = "up") -> WireSize:
        """The size of an architecture's whole network, buffers included, as it is sent up or down."""
        return self._size("network", encoder, self.initial, way)

    def target_size(self, encoder: str, way: Direction = "up") -> WireSize:
        """The size of the momentum target of an architecture's network, as it is sent up or down."""
        network = InitialWeights(self.config, self.federation).network
        heads = build_objective(self.config.objective).target_heads
        return self._size("target", encoder, lambda name: pack(*target_modules(network(name), heads)), way)

    def network_sizes(self, encoder: str, way: Direction = "up", *, target: bool = False) -> dict[str, WireSize]:
        """The sizes of a message's or reply's field ``weights`` and, if ``target`` is set, of its field ``target``."""
        found = {"weights": self.network_size(encoder, way)}
        return {**found, "target": self.target_size(encoder, way)} if target else found

    def _size(self, what: str, encoder: str, made: Callable[[str], Weights], way: Direction) -> WireSize:
        """The size of an architecture's values, which are made once to measure them and are not kept."""
        if (what, encoder) not in self._sizes:
            weights, code = made(encoder), self.config.transport.code
            self._sizes[what, encoder] = {to: WireSize(weights.wire_bytes(code(to).size)) for to in DIRECTIONS}
        return self._sizes[what, encoder][way]

    def weight_bytes(self, encoder: str) -> int:
        """The bytes that an architecture's whole network takes on its way down, buffers included."""
        return self.network_size(encoder, "down").total

    @property
    def shares(self) -> np.ndarray:
        """(N,) q_j = n_j / sum n."""
        return self.federation.shares
