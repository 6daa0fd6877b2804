"""The blocks of a run's configuration that no other component owns, and the base of those that methods bring."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.data.partition import Iid, PartitionConfig
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.models import check_encoder_name


class MethodConfig(Block):
    """Base of every ``method:`` block: only what is that method's own."""

    name: str

    @property
    def needs_public(self) -> bool:
        """Whether the method, as it is configured, uses public images."""
        return False

    @property
    def heads(self) -> frozenset[str]:
        """The heads of the network that the method needs beside its objective's."""
        return frozenset()


class PublicConfig(Block):
    """Unlabelled images everybody may see: `client 0` (that client's shard; it then does not train, unless the method
    uses no public images), a `share` of the training images, or another `source`, whose training `images` these are:
    all of them, or a `sample` of so many, drawn with the run's seed.
    """

    source: Literal["none", "client 0", "share", "source"] = "none"
    share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    images: SourceConfig | None = None
    sample: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _source_named(self) -> PublicConfig:
        if (self.source == "source") != (self.images is not None):
            raise ValueError("data.public.images names the images of `source: source`, and goes with no other source")
        if self.sample is not None and self.images is None:
            raise ValueError(f"data.public.sample: found {self.sample}; it is a sample of data.public.images")
        return self


class DataConfig(SourceConfig):
    """Which images, how they are dealt to clients, and which of them are public."""

    name: str = "digits"
    partition: PartitionConfig = Iid()
    public: PublicConfig = PublicConfig()
    tasks: tuple[tuple[str | int, ...], ...] | None = None  # class names (or ids) of each client's own task
    task_images: Annotated[int, Field(ge=1)] | None = None  # of each (client, class) of `tasks`; None: all


def check_name(encoder: str, key: str) -> None:
    """Raise ValueError, as a validator has to, for an encoder that nobody knows."""
    try:
        check_encoder_name(encoder, key)
    except UserError as unknown:
        raise ValueError(str(unknown)) from None


class ClientsConfig(Block):
    count: Annotated[int, Field(ge=1)] = 5
    encoders: str | tuple[str, ...] = "small_cnn"  # one name, or one per client

    @model_validator(mode="after")
    def _known(self) -> ClientsConfig:
        names = (self.encoders,) if isinstance(self.encoders, str) else self.encoders
        for name in names:
            check_name(name, "clients.encoders")
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
    """Made anew each round: no momentum carries over, as in the codes of FLESD, FedSC, EasyFL, FedX and Orchestra."""

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
    """``over``: how many are asked for each reply that is wanted; the round closes at the last one wanted."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    over: Annotated[float, Field(ge=1)] = 1.0


class CheckpointConfig(Block):
    every: Annotated[int, Field(ge=0)] = 10  # rounds; 0: only after the last one
    keep: Annotated[int, Field(ge=1)] = 2  # the newest so many
    keep_every: Annotated[int, Field(ge=0)] = 0  # and every n-th for ever; 0: none


class ResourcesConfig(Block):
    """Where the work runs. Nothing here changes a result on one kind of machine, but for threads and device."""

    actors: Annotated[int, Field(ge=1)] | None = None  # None: as many as fit, at most the clients asked per round
    cpus_per_client: Annotated[float, Field(ge=0)] = 1.0
    gpus_per_client: Annotated[float, Field(ge=0)] | None = None  # None: share the GPUs evenly among actors
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    gpu_kind: str | None = (
        None  # only GPUs of this kind, as Ray names them (A100, H200, L4, ..); other kinds change bits
    )
    strategy: Literal["PACK", "SPREAD"] = "PACK"  # how actors are placed on several nodes
    wait_s: Annotated[float, Field(ge=0)] = 120.0  # how long an autoscaling cluster may take to provide what fits
    autoscales_to: dict[Literal["CPU", "GPU"], Annotated[float, Field(ge=0)]] | None = None  # of an autoscaling cluster
    client_timeout_s: Annotated[float, Field(gt=0)] | None = None  # a call that takes longer follows on_client_error
    evaluation_timeout_s: Annotated[float, Field(gt=0)] | None = (
        None  # None: ten times client_timeout_s, if that is set
    )

    @property
    def evaluation_limit_s(self) -> float | None:
        """Seconds an evaluation may take before it is repeated elsewhere, once."""
        if self.evaluation_timeout_s is None and self.client_timeout_s is not None:
            return 10 * self.client_timeout_s
        return self.evaluation_timeout_s
