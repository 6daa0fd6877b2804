"""One validated schema for a run. Every block is defined beside the component it configures; this file composes them.

A run is one YAML file plus dotted ``key=value`` overrides, read by :func:`load`. Derived values are properties; what is
written to a run folder's ``config.yaml`` validates to an equal object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rayfed_ssl import configfile
from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.client import averages_target
from rayfed_ssl.configerrors import closest
from rayfed_ssl.data.augment import AugmentConfig
from rayfed_ssl.data.partition import Iid, PartitionConfig
from rayfed_ssl.data.sources import SourceConfig, SourceName
from rayfed_ssl.evaluation import EvaluationConfig
from rayfed_ssl.methods import DEFAULT_OBJECTIVES, METHODS, MethodConfig, PluginConfig
from rayfed_ssl.models import ENCODERS, ModelConfig
from rayfed_ssl.objectives import ObjectiveConfig
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.objectives.simclr import Config as SimCLR

NAME = re.compile(r"[^\W_][\w.-]{0,99}")
TAGGED = ("method", "objective", "data.partition")  # blocks whose `name` decides which other keys exist


class PublicConfig(Block):
    """Unlabelled images everybody may see: `client 0` (that client's shard; it then does not train, unless the method
    uses no public images), a `share` of the training images, or another `source`.
    """

    source: Literal["none", "client 0", "share", "source"] = "none"
    share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    images: SourceConfig | None = None

    @model_validator(mode="after")
    def _source_named(self) -> PublicConfig:
        if (self.source == "source") != (self.images is not None):
            raise ValueError("data.public.images names the images of `source: source`, and goes with no other source")
        return self


class DataConfig(SourceConfig):
    """Which images, how they are dealt to clients, and which of them are public."""

    name: SourceName = "digits"
    partition: PartitionConfig = Iid()
    public: PublicConfig = PublicConfig()
    tasks: tuple[tuple[str | int, ...], ...] | None = None  # class names (or ids) of each client's own task
    task_images: Annotated[int, Field(ge=1)] | None = None  # of each (client, class) of `tasks`; None: all


class ClientsConfig(Block):
    count: Annotated[int, Field(ge=1)] = 5
    encoders: str | tuple[str, ...] = "small_cnn"  # one name, or one per client

    @model_validator(mode="after")
    def _known(self) -> ClientsConfig:
        names = (self.encoders,) if isinstance(self.encoders, str) else self.encoders
        for name in names:
            if name not in ENCODERS:
                raise ValueError(
                    f"clients.encoders: found '{name}'; must be one of {', '.join(ENCODERS)}{closest(name, ENCODERS)}"
                )
        if not isinstance(self.encoders, str) and len(self.encoders) != self.count:
            raise ValueError(
                f"clients.encoders lists {len(self.encoders)} names for clients.count={self.count}; give one per client"
            )
        return self

    def encoder(self, client: int) -> str:
        return self.encoders if isinstance(self.encoders, str) else self.encoders[client]

    @property
    def heterogeneous(self) -> bool:
        return not isinstance(self.encoders, str) and len(set(self.encoders)) > 1


class OptimizerConfig(Block):
    """Made anew each round, as in all the papers' codes (ALGORITHMS 0.3)."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Field(gt=0)] = 0.03
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Literal["constant", "cosine"] = "constant"  # over rounds; constant within a round
    clip_norm: Annotated[float, Field(gt=0)] | None = None


class TrainConfig(Block):
    rounds: Annotated[int, Field(ge=1)] = 20
    local_epochs: Annotated[int, Field(ge=1)] = 1
    local_steps: Annotated[int, Field(ge=1)] | None = (
        None  # instead of epochs: that many batches, reshuffling as needed
    )
    batch_size: Annotated[int, Field(ge=1)] = 128
    optimizer: OptimizerConfig = OptimizerConfig()
    precision: Literal["float32", "bfloat16"] = "float32"  # autocast of forward passes, on GPU
    compile: bool = False  # torch.compile of the encoder


class ParticipationConfig(Block):
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0


class CheckpointConfig(Block):
    every: Annotated[int, Field(ge=0)] = 10  # rounds; 0: only after the last one
    keep: Annotated[int, Field(ge=1)] = 2  # the newest so many
    keep_every: Annotated[int, Field(ge=0)] = 0  # and every n-th for ever; 0: none


class ResourcesConfig(Block):
    """Where the work runs. Nothing here changes a result on one kind of machine, but for threads and device."""

    actors: Annotated[int, Field(ge=1)] | None = None  # None: as many as fit, at most the clients asked per round
    cpus_per_client: Annotated[float, Field(ge=0)] = 1.0
    gpus_per_client: Annotated[float, Field(ge=0)] | None = None  # None: share the GPUs evenly among actors
    threads: Annotated[int, Field(ge=1)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    gpu_kind: str | None = (
        None  # only GPUs of this kind, as Ray names them (A100, H200, L4, ..); other kinds change bits
    )
    strategy: Literal["PACK", "SPREAD"] = "PACK"  # how actors are placed on several nodes
    wait_s: Annotated[float, Field(ge=0)] = 120.0  # how long an autoscaling cluster may take to provide what fits
    autoscales_to: dict[Literal["CPU", "GPU"], Annotated[float, Field(ge=0)]] | None = None  # of an autoscaling cluster
    client_timeout_s: Annotated[float, Field(gt=0)] | None = None  # a call that takes longer follows on_client_error


class RunConfig(Block):
    """Everything a run depends on. ``name`` is that of its folder below runs/, and of its actor when detached."""

    name: str = "run"
    seed: Annotated[int, Field(ge=0)] = 0
    profile: str | None = None
    method: MethodConfig
    plugins: tuple[PluginConfig, ...] = ()
    objective: ObjectiveConfig = SimCLR()
    data: DataConfig = DataConfig()
    clients: ClientsConfig = ClientsConfig()
    model: ModelConfig = ModelConfig()
    augment: AugmentConfig = AugmentConfig()
    train: TrainConfig = TrainConfig()
    participation: ParticipationConfig = ParticipationConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    resources: ResourcesConfig = ResourcesConfig()
    on_client_error: Literal["fail", "drop"] = "fail"

    @field_validator("name")
    @classmethod
    def _a_file_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("must be letters, digits, '.', '_' and '-', the first a letter or digit, at most 100")
        return name

    @model_validator(mode="before")
    @classmethod
    def _default_objective(cls, document: Any) -> Any:
        """A run that names no objective gets its method's default one."""
        if not isinstance(document, dict) or not isinstance(document.get("method"), dict):
            return document
        objective = document.get("objective", {})
        default = DEFAULT_OBJECTIVES.get(str(document["method"].get("name")))
        if default is None or not isinstance(objective, dict) or "name" in objective:
            return document
        return {**document, "objective": {"name": default, **objective}}

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        method = METHODS[self.method.name]
        if self.objective.name not in method.objectives:
            allowed = ", ".join(method.objectives)
            raise ValueError(f"objective.name: found '{self.objective.name}'; {self.method.name} allows {allowed}")
        if averages_target(self) and not method.averages:
            raise ValueError(
                f"objective.target: found 'averaged'; {self.method.name} averages no weights with targets; allowed: "
                "local, reset"
            )
        if self.clients.heterogeneous and not method.info.heterogeneous:
            raise ValueError(
                f"clients.encoders: {self.method.name} averages weights, so all clients need one architecture"
            )
        if self.uses_public and self.data.public.source == "none" and self.data.tasks is None:
            raise ValueError(
                f"data.public.source: {self.method.name} needs public images; allowed: client 0, share, source"
            )
        if self.data.tasks is not None and self.data.partition != Iid():
            raise ValueError(
                f"data.partition: found '{self.data.partition.name}' beside data.tasks, which says itself who holds "
                "what; allowed then: none"
            )
        if self.data.partition.name == "folders" and self.data.public.source == "share":
            raise ValueError("data.public.source: 'share' cannot be taken out of `folders`; allowed: client 0, source")
        names = [plugin.name for plugin in self.active_plugins]
        if len(set(names)) != len(names):
            raise ValueError(f"plugins: each at most once; found {', '.join(names)}")
        for name in names:
            if self.objective.name not in METHODS[name].objectives:
                allowed = ", ".join(METHODS[name].objectives)
                raise ValueError(f"objective.name: found '{self.objective.name}'; the plug-in {name} allows {allowed}")
        for check in (method.check, *(METHODS[p.name].check for p in self.plugins)):
            if check is not None:
                check(self)
        for reason, least in self.least_batches:
            if self.train.batch_size < least:
                raise ValueError(f"train.batch_size: found {self.train.batch_size}; {reason} needs at least {least}")
        return self

    @property
    def least_batches(self) -> list[tuple[str, int]]:
        """(who, how many rows): the smallest batches the objective and the plug-ins are defined for."""
        plugins = [(plugin.name, plugin.minimum_batch(self)) for plugin in self.active_plugins]
        return [(f"the {self.objective.name} objective", build_objective(self.objective).minimum_batch), *plugins]

    @property
    def active_plugins(self) -> tuple[PluginConfig, ...]:
        """The plug-ins in force: those listed, and the method itself where it is one over a local objective."""
        own = (self.method,) if METHODS[self.method.name].is_plugin else ()
        return (*own, *self.plugins)

    @property
    def uses_public(self) -> bool:
        """Whether the method, as it is configured, uses public images."""
        return METHODS[self.method.name].info.public_data and self.method.needs_public

    @property
    def projection_dim(self) -> int:
        """D: what the network's `project` returns, after a calibration layer if there is one."""
        return self.model.calibration or self.model.projector.dim

    @property
    def cohort_size(self) -> int:
        return max(1, round(self.participation.fraction * self.clients.count))


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's YAML with its profile and the dotted overrides applied. Raises UserError naming every wrong key."""
    changes = configfile.parse_overrides(overrides)
    document = configfile.read(path)
    config = build(document, changes, origin=str(path))
    for profile in document.get("profiles") or {}:
        if profile != config.profile:
            _check_profile(document, changes, profile, str(path))
    return config


def _check_profile(document: Mapping[str, Any], changes: Mapping[str, object], profile: str, path: str) -> None:
    """Raise UserError for a profile nobody chose now: its mistakes would show on the machine it is for."""
    try:
        build(document, {"profile": profile}, origin=path)
    except UserError as alone:
        try:
            build(document, {**changes, "profile": profile}, origin=path)
        except UserError:
            lines = [f"profiles.{profile}: {line}" for line in str(alone).splitlines()]
            raise configfile.ConfigError("\n".join(lines)) from None


def build(document: Mapping[str, Any], changes: Mapping[str, object], *, origin: str) -> RunConfig:
    """A document (with its ``profiles``) and dotted changes to a validated config."""
    chosen = changes.get("profile", document.get("profile"))
    merged = configfile.overlay(dict(document), None if chosen is None else str(chosen))
    before = merged.get("method", {})
    merged = configfile.merge(merged, changes, tagged=TAGGED)
    if "method.name" in changes and merged["method"] != before:
        _replace_objective(merged, changes)
    return configfile.validate(RunConfig, merged, origin=origin)


def _replace_objective(document: dict[str, Any], changes: Mapping[str, object]) -> None:
    """A method chosen on the command line brings its own objective where the file's is not allowed."""
    method = METHODS.get(str(changes["method.name"]))
    objective = document.get("objective")
    if (
        method
        and isinstance(objective, dict)
        and "objective.name" not in changes
        and objective.get("name") not in method.objectives
    ):
        given = {key.removeprefix("objective."): v for key, v in changes.items() if key.startswith("objective.")}
        document["objective"] = {"name": method.objectives[0], **given}


RESULT_NEUTRAL = ("name", "resources", "checkpoint")


def changed_keys(old: RunConfig, new: RunConfig) -> list[str]:
    """Dotted keys that affect the result and differ: with any of them a run cannot be resumed."""

    def flat(value: Any, prefix: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return {
                k: v for key, item in value.items() for k, v in flat(item, f"{prefix}.{key}" if prefix else key).items()
            }
        return {prefix: value}

    a, b = (
        {
            key: value
            for key, value in flat(config.model_dump(mode="json"), "").items()
            if key.split(".")[0] not in RESULT_NEUTRAL or key in ("resources.threads", "resources.device")
        }
        for config in (old, new)
    )
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def result_affecting(old: RunConfig, new: RunConfig, folder: Path) -> None:
    """Raise UserError naming the keys whose change would make a resumed run a different one."""
    if keys := changed_keys(old, new):
        raise UserError(
            f"{folder}: cannot resume with changed {', '.join(keys)}; only resources.*, checkpoint.* and name "
            "may change (another --out starts a new run)"
        )
