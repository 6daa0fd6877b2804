"""The values a run begins with, by architecture."""

from __future__ import annotations

from collections.abc import Set

from rayfed_ssl.base.seeding import forked
from rayfed_ssl.base.weights import Weights, pack
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.models import StartConfig, StartReport, build_network, start_values
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.settings.run import RunSettings


class InitialWeights:
    """The values a run begins with: a pure function of the architecture, the same for every client and process. With
    ``model.initial: own`` they also depend on the client; with ``model.start`` the encoder's values come from a file.
    """

    def __init__(self, config: RunSettings, federation: Federation) -> None:
        self.config, self.federation = config, federation
        self.heads = build_objective(config.objective).heads | config.method.heads

    def __call__(self, encoder: str, classes: int | None = None, client: int | None = None) -> Weights:
        """The values of an architecture, or of a client with it. Raises UserError if ``model.start`` does not fit."""
        network = self.network(encoder, classes, client=client)
        if (start := self.config.model.start) is not None:
            self._started(network, start, client)
        return pack(network)

    def network(
        self, encoder: str, classes: int | None = None, without: Set[str] = frozenset(), client: int | None = None
    ) -> Network:
        """A fresh module on the CPU with drawn values."""
        classes = self.federation.classes if classes is None else classes
        size, channels = self.config.data.image_size, self.federation.dataset.train.pixels.shape[3]
        with forked(self.config.seed, "initial", encoder, *self.whose(client)):
            return build_network(
                encoder, self.config.model, size, heads=self.heads - without, classes=classes, channels=channels,
                objective=self.config.objective,
            )  # fmt: skip

    def whose(self, client: int | None) -> tuple[int, ...]:
        """(client,) if its initial values are its own; () if all clients begin with the same values."""
        return () if client is None or self.config.model.initial == "common" else (client,)

    def notes(self) -> list[str]:
        """Lines on what is taken from ``model.start``, one for each file and architecture. Raises UserError if it does
        not fit.
        """
        if (start := self.config.model.start) is None:
            return []
        found: dict[tuple[str, tuple[int, ...]], StartReport] = {}
        for client in self.federation.clients:
            key = (self.config.clients.encoder(client), self.whose(client))
            if key not in found:
                found[key] = self._started(self.network(key[0]), start, client)
        return list(dict.fromkeys(report.line for report in found.values()))

    def _started(self, network: Network, start: StartConfig, client: int | None) -> StartReport:
        return start_values(start, network.encoder_name, network.encoder, *self.whose(client))
