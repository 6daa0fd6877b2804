"""A run's settings, as the layers below the table of methods see them.

``rayfed_ssl.config.RunConfig`` restricts ``method`` and ``plugins`` to the kinds that exist, and checks that the blocks
are consistent.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from rayfed_ssl.base.schema import Block
from rayfed_ssl.data.recipes import AugmentConfig
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.evaluation import EvaluationConfig
from rayfed_ssl.models import ModelConfig
from rayfed_ssl.objectives import ObjectiveConfig
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.objectives.simclr import SimCLRConfig
from rayfed_ssl.settings.blocks import (
    CheckpointConfig,
    ClientsConfig,
    DataConfig,
    MethodConfig,
    ParticipationConfig,
    ResourcesConfig,
    TrainConfig,
)
from rayfed_ssl.settings.system import ServerConfig, SystemConfig, Trace
from rayfed_ssl.settings.transport import TransportConfig

IMAGES = ("data.path", "data.public.images.path")  # keys of the images that are dealt to clients or public
OTHER_IMAGES = "evaluation.transfer.data.path"  # key of the images of a protocol
START = "model.start"  # key of the encoder's initial values, whose digest the configuration contains

Kind = TypeVar("Kind", bound=Block)


class PluginConfig(MethodConfig):
    """Base class of every entry of ``plugins:``. As a ``method:``, it means the plug-in on top of a local objective."""

    def minimum_batch(self, settings: RunSettings) -> int:
        """Rows that a batch must have for the plug-in's loss term to be defined."""
        return 1

    def called(self, settings: RunSettings) -> str:
        """How a message about :meth:`minimum_batch` names the plug-in and the key that decides it, if there is one."""
        return self.name

    def unused(self, path: str) -> Mapping[str, str]:
        """Keys without effect of this block, which stands at ``path``, and what each needs (``Method.unused``)."""
        return {}


class RunSettings(Block):
    """Everything a run depends on."""

    name: str = "run"
    """The run's folder below ``runs/``, and its actor when detached; by default the file's name."""
    seed: Annotated[int, Field(ge=0)] = 0
    """All randomness of the run is derived from it."""
    profile: str | None = None
    """Which of the file's ``profiles`` is laid over it; null: ``cpu``, where the file has profiles."""
    method: MethodConfig
    plugins: tuple[PluginConfig, ...] = ()
    """Plug-ins, which add loss terms to the method's local training."""
    objective: ObjectiveConfig = SimCLRConfig()
    """The local loss; by default the method's own."""
    data: DataConfig = DataConfig()
    clients: ClientsConfig = ClientsConfig()
    model: ModelConfig = ModelConfig()
    augment: AugmentConfig = AugmentConfig()
    train: TrainConfig = TrainConfig()
    participation: ParticipationConfig = ParticipationConfig()
    system: SystemConfig | None = None
    server: ServerConfig = ServerConfig()
    transport: TransportConfig = TransportConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    resources: ResourcesConfig = ResourcesConfig()
    on_client_error: Literal["fail", "drop"] = "fail"
    """Whether a failed client ends the run, or is left out of the round and counted; if all fail, that round comes to
    nothing.
    """
    figures: bool = True
    """Draw ``figures/`` and their copies in TensorBoard; false saves a second per run, as in sweeps of short trials."""

    def method_as(self, kind: type[Kind]) -> Kind:
        """The method's block, typed as ``kind``. Raises TypeError if it is of another kind."""
        return _as(self.method, kind)

    def objective_as(self, kind: type[Kind]) -> Kind:
        """The objective's block, typed as ``kind``. Raises TypeError if it is of another kind."""
        return _as(self.objective, kind)

    @property
    def least_batches(self) -> list[tuple[str, int]]:
        """(what needs it, rows): the smallest batches for which the objective and the plug-ins are defined."""
        plugins = [(plugin.called(self), plugin.minimum_batch(self)) for plugin in self.active_plugins]
        return [(f"the {self.objective.name} objective", build_objective(self.objective).minimum_batch), *plugins]

    @property
    def active_plugins(self) -> tuple[PluginConfig, ...]:
        """The plug-ins in use: the method itself if it is one, then those listed in ``plugins``."""
        own = (self.method,) if isinstance(self.method, PluginConfig) else ()
        return (*own, *self.plugins)

    @property
    def uses_public(self) -> bool:
        """Whether the method, as it is configured, uses public images."""
        return self.method.needs_public

    @property
    def keeps_target(self) -> bool:
        """Whether each client keeps its own momentum target between rounds (``objective.target: local``)."""
        return self.objective.momentum_target == "local"

    @property
    def averages_target(self) -> bool:
        """Whether momentum targets are sent and averaged (``objective.target: averaged``)."""
        return self.objective.momentum_target == "averaged"

    @property
    def projection_dim(self) -> int:
        """D, the dimension of projections, after the calibration layer if there is one."""
        return self.model.projection_dim

    @property
    def cohort_size(self) -> int:
        """The largest number of clients that train in a round, except in rounds that ask everybody
        (``MethodServer.asks_everybody``).
        """
        wanted = self.participants(self.clients.count)
        return wanted if self.server.schedule == "sync" else min(self.clients.count, self.server.buffer)

    def files(self) -> dict[str, Path]:
        """Key -> the path that it names, as it was written, for everything that the run reads: images, public images of
        another source, files on partition and clients, a protocol's images, and the encoder's initial values. Images
        without a path, and those whose path is a name (``hub``), are left out.
        """
        data, system, start = self.data, self.system, self.model.start
        named: dict[str, Path | None] = {
            "data.path": _place(data),
            "data.public.images.path": _place(data.public.images),
            **{f"data.partition.{key}": path for key, path in data.partition.files.items()},
            "system.devices": None if system is None else system.devices,
            "system.availability.path": system.availability.path
            if system is not None and isinstance(system.availability, Trace)
            else None,
            OTHER_IMAGES: _place(self.evaluation.transfer.data),
            START: None if start is None else start.path,
        }
        return {key: path for key, path in named.items() if path is not None}

    def evaluates(self, round: int) -> bool:
        """Whether encoders are evaluated after a round: every ``evaluation.every`` rounds, and after the last one."""
        return due(round, self.evaluation.every, self.train.rounds)

    def participants(self, clients: int) -> int:
        """How many of ``clients`` clients a round wants: participation.fraction of them, rounded to the nearest whole
        number (a half to the even one), but at least 1.
        """
        return max(1, round(self.participation.fraction * clients))


def due(t: int, every: int, last: int) -> bool:
    """Whether something is done after round ``t`` that is done every ``every`` rounds (0: never) and after the last."""
    return t == last or bool(every and t % every == 0)


def _place(source: SourceConfig | None) -> Path | None:
    """The path of a source's images; None if there is no source, or if it has no path in a file system."""
    return None if source is None or source.name == "hub" else source.path


def _as(block: Block, kind: type[Kind]) -> Kind:
    """``block``, typed as ``kind``. Raises TypeError if it is of another kind."""
    if not isinstance(block, kind):
        raise TypeError(f"found a block of {type(block).__qualname__}, expected {kind.__qualname__}")
    return block
