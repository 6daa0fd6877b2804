"""A paper's module that composes with any method: its client's half adds a loss term and fields to the reply, its
server's half adds fields to the message and keeps what comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from rayfed_ssl.base.notes import Note
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.results import ClientMatrix
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.federated.workload import Traffic, Workload
from rayfed_ssl.settings.blocks import MethodConfig
from rayfed_ssl.settings.run import PluginConfig

Config = TypeVar("Config", bound=PluginConfig)


class ClientPlugin(Generic[Config]):
    """A plug-in's client half; a new one is made for every training operation."""

    needs_features: ClassVar[bool] = False
    """Whether its term is on the encoder's features, so that a loss which gives none is an error."""

    def __init__(self, config: Config, client: EncoderClient[MethodConfig]) -> None:
        self.config = config
        self.client = client

    def receive(self, fields: Mapping[str, Any]) -> None:
        """Take the message's extra fields."""

    def penalty(self, projections: tuple[Tensor, ...], features: tuple[Tensor, ...] = ()) -> Tensor | None:
        """A loss term on the projections of this batch's views, V tensors (B, D), or on the encoder's features of the
        same views, (B, H) each, if the loss gives them (``Step``); None for no term.
        """
        return None

    def reply(self) -> dict[str, Any]:
        """Extra reply fields."""
        return {}


class ServerPlugin(Generic[Config]):
    """A plug-in's server half. ``state`` lasts from round to round, like a server's. A plug-in that exchanges nothing,
    such as a loss term, uses this class unchanged.
    """

    def __init__(self, config: Config, setup: Setup) -> None:
        self.config = config
        self.setup = setup
        self.state: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}

    def message(self, t: int, client: int) -> dict[str, Any]:
        """Extra fields for one client's training message of round t."""
        return {}

    def collect(self, t: int, client: int, fields: Mapping[str, Any]) -> None:
        """Take a client's extra reply fields."""

    @classmethod
    def exchanges(cls) -> bool:
        """Whether the plug-in exchanges anything: it overrides ``message`` or ``collect``."""
        return cls.message is not ServerPlugin.message or cls.collect is not ServerPlugin.collect

    def traffic(self, t: int, client: int, met: Collection[int]) -> Traffic | None:
        """What its fields add to a client's messages of round t; see ``MethodServer.traffic``. None: not known, which
        is the default if something is exchanged.
        """
        return None if self.exchanges() else Traffic(0, 0)

    def workload(self, client: int) -> Workload | None:
        """What the client's half adds to training: images that it reads besides those trained on, and bytes of its
        extra reply fields. None if that is known only afterwards, which is the default if something is exchanged.
        """
        return None if self.exchanges() else Workload(0)

    def end_round(self, t: int) -> None:
        """Called when all clients of round t have replied."""

    def notes(self) -> Sequence[Note | str]:
        """Lines to print once, before the first round; see ``MethodServer.notes``."""
        return []

    def client_matrices(self) -> dict[str, ClientMatrix]:
        """Matrices over pairs of clients, like a server's."""
        return {}
