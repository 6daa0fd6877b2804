"""What a server, and a plug-in's half of it, know before the first round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.settings.run import RunSettings


@dataclass(frozen=True)
class Setup:
    """What a server knows before the first round: sizes and architectures, never images."""

    config: RunSettings
    federation: Federation
    initial: Callable[[str], Weights]  # an architecture's untrained values

    @property
    def clients(self) -> tuple[int, ...]:
        return self.federation.clients

    def weight_bytes(self, encoder: str) -> int:
        """What the whole network of an architecture takes on the wire, buffers included."""
        return sum(self.initial(encoder).wire_bytes().values())

    @property
    def shares(self) -> np.ndarray:
        """(N,) q_j = n_j / sum n."""
        return self.federation.shares
