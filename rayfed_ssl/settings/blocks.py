"""The blocks of a run's configuration that no other component owns, and the base class of methods' blocks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.data.partition import Iid, PartitionConfig
from rayfed_ssl.data.sources import SourceConfig, SourceName
from rayfed_ssl.models import EncoderName, check_encoder_name


class MethodConfig(Block):
    """Base class of every ``method:`` block, which has only the method's own keys."""

    name: str
    """A row of ``rayfed-ssl methods``."""

    @property
    def needs_public(self) -> bool:
        """Whether the method, as it is configured, uses public images."""
        return False

    @property
    def server_encoders(self) -> tuple[EncoderName, ...]:
        """Encoders that the server has beside those of the clients, such as a student's."""
        return ()

    @property
    def heads(self) -> frozenset[str]:
        """The heads of the network that the method needs beside those of its objective."""
        return frozenset()

    def batch_rows(self, batch_size: int, images: int) -> int:
        """Rows of a batch of local training for a client with ``images`` images; by default ``train.batch_size``."""
        return batch_size


class PublicConfig(Block):
    """Unlabelled images that everybody may see."""

    source: Literal["none", "client 0", "share", "source"] = "none"
    """``client 0``: that client's shard, and it then does not train, unless the method uses no public images;
    ``share``: of the training images; ``source``: the training images of ``images``.
    """
    share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training images, with ``source: share``; with ``data.tasks``, of every task's images."""
    images: SourceConfig | None = None
    """The source of the public images, with ``source: source``."""
    sample: Annotated[int, Field(ge=1)] | None = None
    """How many of ``images`` are used, drawn with the run's seed; null: all of them."""

    @model_validator(mode="after")
    def _source_named(self) -> PublicConfig:
        if (self.source == "source") != (self.images is not None):
            raise ValueError("data.public.images names the images of `source: source`, and goes with no other source")
        if self.sample is not None and self.images is None:
            raise ValueError(f"data.public.sample: found {self.sample}; it is a sample of data.public.images")
        return self


class DataConfig(SourceConfig):
    """Which images, how they are dealt to clients, and which of them are public."""

    name: SourceName = "digits"
    partition: PartitionConfig = Iid()
    """Who holds which images."""
    public: PublicConfig = PublicConfig()
    tasks: tuple[tuple[str | int, ...], ...] | None = None
    """Class names, or ids, of each client's own task; null: clients have no tasks."""
    task_images: Annotated[int, Field(ge=1)] | None = None
    """How many images a client has of each class of its task; null: all."""


def check_name(encoder: str, key: str) -> None:
    """Raise ValueError, which pydantic expects of validators, for an unknown encoder."""
    try:
        check_encoder_name(encoder, key)
    except UserError as unknown:
        raise ValueError(str(unknown)) from None


class ClientsConfig(Block):
    """How many clients there are, and their architectures."""

    count: Annotated[int, Field(ge=1)] = 5
    """How many clients there are."""
    encoders: EncoderName | tuple[EncoderName, ...] = "small_cnn"
    """The encoder of all clients, or a list with one for each."""

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
        """The name of a client's encoder."""
        return self.encoders if isinstance(self.encoders, str) else self.encoders[client]

    @property
    def architectures(self) -> frozenset[str]:
        """The names of all clients' encoders, each once."""
        return frozenset((self.encoders,) if isinstance(self.encoders, str) else self.encoders)

    @property
    def heterogeneous(self) -> bool:
        """Whether clients have different encoders."""
        return len(self.architectures) > 1


def _shown(value: object) -> object:
    """A value as a line about its key shows it: as YAML has it, a block by its name."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else getattr(value, "name", value)


def refuse_unused(block: Block, path: str, *keys: str, needs: str) -> None:
    """Raise ValueError if one of the ``keys`` of ``block``, which stands at ``path``, differs from its default. The
    caller has found that they have no effect; ``needs`` says what they need to have one.
    """
    for key in keys:
        if (found := getattr(block, key)) != type(block).model_fields[key].default:
            shown = _shown(found)
            raise ValueError(f"{path}.{key}: found {shown}; it needs {needs}")


def check_student(student: str | None, clients: ClientsConfig) -> None:
    """Raise ValueError if the server's student (``method.student``) is an unknown encoder, or if none is named although
    clients have different encoders.
    """
    if student is not None:
        check_name(student, "method.student")
    elif clients.heterogeneous:
        raise ValueError("method.student: found null with several clients.encoders; must name the student's encoder")


class OptimizerConfig(Block):
    """The optimiser of local training. By default it is made anew each round: no momentum carries over, as in the codes
    of FLESD, FedSC, EasyFL, FedX and Orchestra.
    """

    name: Literal["sgd", "adam", "adamw", "lars"] = "sgd"
    """The rule of a step. ``lars`` scales each weight's by the weight's norm, and wants a larger ``lr``: SimCLR takes
    0.3, BYOL 0.2 for batches of 256.
    """
    lr: Annotated[float, Field(gt=0)] = 0.03
    """Learning rate."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of ``sgd`` and ``lars``."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Added to the gradient; ``adamw`` takes it off the weights; ``lars`` spares biases and normalisation."""
    trust_coefficient: Annotated[float, Field(gt=0)] = 0.001
    """With ``lars`` a weight's step is lr times this share of the weight's norm."""
    schedule: Literal["constant", "cosine"] = "constant"
    """How the learning rate changes over rounds; within a round it is constant. ``cosine``: in round t of R, after W
    rounds of warm-up, lr/2 (1 + cos(pi (t - 1 - W) / (R - W))).
    """
    warmup: Annotated[int, Field(ge=0)] = 0
    """Rounds W of warm-up before the schedule, fewer than ``train.rounds``: round t <= W has lr t / W. 0: none."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of a step's gradient; null: no limit."""
    keep: bool = False
    """Whether a client's local epochs go on with the momentum, or Adam's moments, of its last round; they stay with the
    client, are never sent or averaged, and take the room of one or two models a client.
    """


class TrainConfig(Block):
    """Rounds, and the clients' local training within one."""

    rounds: Annotated[int, Field(ge=1)] = 20
    """Communication rounds of the run."""
    local_epochs: Annotated[int, Field(ge=1)] = 1
    """Passes over a client's images in a round."""
    local_steps: Annotated[int, Field(ge=1)] | None = None
    """Batches, reshuffled as needed, in place of ``local_epochs``, which is refused beside it; null: epochs."""
    batch_size: Annotated[int, Field(ge=1)] = 128
    """Images in a batch; all images of a client that has fewer."""
    optimizer: OptimizerConfig = OptimizerConfig()
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of forward passes on a GPU (autocast). On a CPU they are float32."""
    compile: bool = False
    """Whether encoders go through ``torch.compile``."""


class ParticipationConfig(Block):
    """How many clients take part in a round."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that a round wants; their number is rounded, halves to the even number; at least 1."""
    over: Annotated[float, Field(ge=1)] = 1.0
    """Clients asked for each reply that is wanted; the round closes at the last one wanted."""


class CheckpointConfig(Block):
    """When checkpoints are written, and which of them stay."""

    every: Annotated[int, Field(ge=0)] = 10
    """Rounds between checkpoints; 0: only after the last one, whatever ``minutes`` says."""
    minutes: Annotated[float, Field(gt=0)] | None = 10.0
    """A round that ends so many minutes after the last checkpoint is saved, too, so that long rounds are not lost;
    null: ``every`` alone decides.
    """
    keep: Annotated[int, Field(ge=1)] = 2
    """How many of the newest checkpoints are kept."""
    keep_every: Annotated[int, Field(ge=0)] = 0
    """Checkpoints of every n-th round are kept for ever; 0: none."""


def _on_or_off(found: Any) -> Any:
    """``on`` or ``off`` in place of true or false, as which YAML reads these words."""
    if isinstance(found, bool):
        return "on" if found else "off"
    return found


class ResourcesConfig(Block):
    """Where the work runs. Nothing here changes a result on one kind of machine, but for threads and device."""

    actors: Annotated[int, Field(ge=1)] | None = None
    """Client actors; null: as many as fit, at most the clients asked in a round."""
    cpus_per_client: Annotated[float, Field(ge=0)] = 1.0
    """CPUs that an actor reserves."""
    gpus_per_client: Annotated[float, Field(ge=0)] | None = None
    """GPUs, or the part of one, that an actor reserves; null: the GPUs shared evenly among actors."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads of each actor's arithmetic."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto``: the GPU where an actor sees one."""
    cuda_graphs: Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_or_off)] = "auto"
    """Train steps as CUDA graphs, with the same bits; ``auto``: on GPUs, where a step can be recorded; ``on``: refused
    where it cannot.
    """
    gpu_kind: str | None = None
    """Only GPUs of this kind, as Ray names them (A100, H200, L4, ..); other kinds change bits."""
    strategy: Literal["PACK", "SPREAD"] = "PACK"
    """How actors are placed on several nodes."""
    wait_s: Annotated[float, Field(ge=0)] = 120.0
    """Seconds an autoscaling cluster may take to provide what fits."""
    autoscales_to: dict[Literal["CPU", "GPU"], Annotated[float, Field(ge=0)]] | None = None
    """CPUs and GPUs that an autoscaling cluster can grow to."""
    client_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds after which a client's call counts as failed (``on_client_error``); null: no limit."""
    evaluation_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds an evaluation may take before it is repeated elsewhere, once; null: ten times ``client_timeout_s``, if
    that is set.
    """

    @property
    def evaluation_limit_s(self) -> float | None:
        """Seconds an evaluation may take before it is repeated elsewhere, once."""
        if self.evaluation_timeout_s is None and self.client_timeout_s is not None:
            return 10 * self.client_timeout_s
        return self.evaluation_timeout_s
