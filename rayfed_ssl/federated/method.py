"""Defines a row of the table of methods: the Config, Client and Server of one file, and what the method needs and
promises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.uploads import Upload
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.settings.blocks import MethodConfig
from rayfed_ssl.settings.run import RunSettings
from rayfed_ssl.settings.transport import DIRECTIONS, Direction

ServerStep = Literal["own", "mean", "exchange"]
"""What a round does to the global model. ``own``: what no other part of the library could do in its place. ``mean``: it
ends with a plain mean of the clients' weights, as ``MethodServer.counts`` has them count, so that ``server.optimizer``
may step towards it. ``exchange``: that is all it does, ``train`` with weights for weights, so that FedBuff may do it.
"""
Accepts = Callable[[str], bool]  # an objective's name -> whether a method can train with it


def anything(objective: str) -> bool:
    """Allows any objective, including those that read labels."""
    return True


def unlabelled(objective: str) -> bool:
    """Allows objectives that read no labels."""
    return not OBJECTIVES[objective].labelled


def projecting(objective: str) -> bool:
    """Allows objectives that read no labels and work on projections, which the method or plug-in also needs."""
    return unlabelled(objective) and "projector" in OBJECTIVES[objective].heads


def only(name: str) -> Accepts:
    """Allows one objective, because the method's own loss is built on it."""
    return lambda objective: objective == name


@dataclass(frozen=True)
class Info:
    """One line of ``rayfed-ssl methods``. Only ``heterogeneous`` and ``independent`` affect a run."""

    paper: str
    transmits: str  # what crosses, in words
    stateful: bool = False  # whether a client keeps something from round to round
    heterogeneous: bool = False  # whether clients may differ in architecture; a configuration is held to it
    public_data: bool = False  # whether it uses public images
    independent: bool = False
    """Whether clients with tasks of their own, or of mixed architectures, begin with values of their own unless
    ``model.initial`` says otherwise: independently designed models.
    """


@dataclass(frozen=True)
class ClientFootprint:
    """What is kept for one client from round to round; an objective's momentum target is counted separately."""

    models: int = 0  # copies of its whole network in its state
    state: int = 0  # bytes of other arrays in its state
    bank: int = 0  # bytes at the server


@dataclass(frozen=True)
class Method:
    """A row of the table of methods."""

    config: type[MethodConfig]
    client: type[EncoderClient[Any]]
    server: type[MethodServer[Any]]
    info: Info
    objective: str  # trained with where the run names none
    accepts: Accepts
    service: type[EncoderClient[Any]] | None = None  # heavy server work
    plugin: tuple[type[ClientPlugin[Any]], type[ServerPlugin[Any]]] | None = None  # this file's plug-in halves
    step: ServerStep = "own"
    sends_weights: Callable[[RunSettings], Collection[Direction]] = lambda settings: DIRECTIONS
    """In which directions ``Weights`` cross; in any other, nothing reads ``transport``, which is refused there."""
    averages_targets: bool = False  # `objective.target: averaged` goes with it: momentum targets travel with weights
    check: Callable[[RunSettings], None] | None = None  # raises ValueError naming the key that does not fit
    unused: Callable[[RunSettings], Mapping[str, str]] = lambda settings: {}
    """Keys that have no effect as the run is configured, and what each needs: refused where they are given for the run.
    In a file they may be meant for other runs of it; where even that makes no sense, ``check`` refuses them.
    """
    second_view: bool = False  # whether it makes two views of an image at once itself, beside those of the objective
    check_federation: Callable[[RunSettings, Federation], None] | None = None  # raises UserError, before any file
    footprint: Callable[[RunSettings, int], ClientFootprint] = lambda settings, images: ClientFootprint()
    planned: Callable[[RunSettings], str] = lambda settings: ""  # `key: why` rounds depend on train.rounds, if they do
    uploads: Mapping[str, Upload] = field(default_factory=dict)
    """What each field of a client's replies is, weights excepted; a plug-in's under ``name.field``, as they cross."""

    def __post_init__(self) -> None:
        """Raises UserError for a plug-in whose client replies with fields that its server does not collect."""
        if self.plugin is None:
            return
        client, server = self.plugin
        if client.reply is not ClientPlugin.reply and server.collect is ServerPlugin.collect:
            raise UserError(
                f"{self.name}: found {client.__name__}.reply; {server.__name__} needs a collect that takes it"
            )

    @property
    def name(self) -> str:
        return str(self.config.model_fields["name"].default)

    @property
    def exchanges_as_plugin(self) -> bool:
        """Whether, as a plug-in, it adds anything to what clients and server exchange."""
        return self.plugin is not None and self.plugin[1].exchanges()

    @property
    def optimizable(self) -> bool:
        """Whether ``server.optimizer`` may step towards the model that its round ends with."""
        return self.step != "own"

    @property
    def buffered(self) -> bool:
        """Whether it works with FedBuff."""
        return self.step == "exchange"

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives that are allowed, the default one first."""
        return tuple(sorted(filter(self.accepts, OBJECTIVES), key=lambda name: name != self.objective))
