"""The blocks ``system:`` and ``server:``: clients' speeds and availability, and how the server waits and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rayfed_ssl.base.schema import Block

NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class LogNormal(Block):
    """Each client's own draw of ``median * exp(sigma * N(0, 1))``, the same in every round."""

    median: Positive
    """Median of the clients' draws."""
    sigma: NotNegative
    """Standard deviation of the draws' logarithm."""


class Always(Block):
    """Every client can be reached at any time."""

    name: Literal["always"] = "always"


class Bernoulli(Block):
    """Each client can be reached in a round with this probability, and then throughout the round."""

    name: Literal["bernoulli"] = "bernoulli"
    probability: Annotated[float, Field(gt=0, le=1)]
    """Probability that a client can be reached in a round."""


class Trace(Block):
    """A file says when each client can be reached: Parquet or CSV, with the columns client, start, end, in virtual
    seconds.
    """

    name: Literal["trace"] = "trace"
    path: Path
    """The file."""
    repeat_s: Positive | None = None
    """The trace starts again after so many seconds; null: a run that outlasts the trace is refused."""


AvailabilityConfig = Annotated[Always | Bernoulli | Trace, Field(discriminator="name")]


class SystemConfig(Block):
    """Unequal, unreliable clients on a virtual clock; null: clients are always there, and no virtual time is kept. What
    is not given takes no time and never fails.
    """

    seconds_per_image: NotNegative | LogNormal = 0.0
    """Seconds that a client takes for each source image it reads, views included."""
    down_mbps: Positive | LogNormal | None = None
    """A client's download rate in 10^6 bits per second; null: downloads take no time."""
    up_mbps: Positive | LogNormal | None = None
    """A client's upload rate in 10^6 bits per second; null: uploads take no time."""
    latency_s: NotNegative | LogNormal = 0.0
    """Seconds that each exchange takes in addition, where anything crosses."""
    devices: Path | None = None
    """Parquet or CSV file, one row per client, whose columns replace the four keys above."""
    availability: AvailabilityConfig = Always()
    """When clients can be reached."""
    drop_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that an asked client is lost in mid-round."""
    deadline_s: Positive | None = None
    """Seconds after which an exchange ends; later replies are not used; null: no deadline."""
    minimum_replies: Annotated[int, Field(ge=1)] = 1
    """Fewest replies to a round; with fewer, it comes to nothing."""
    server_seconds_per_image: NotNegative = 0.0
    """Seconds that the server's own work, such as distillation, takes per image, counted as a client's; 0: none."""


class Average(Block):
    """The clients' mean is the next model."""

    name: Literal["average"] = "average"


class Momentum(Block):
    """FedAvgM (Hsu et al. 2019): steps towards the mean gather momentum."""

    name: Literal["momentum"] = "momentum"
    lr: Positive = 1.0
    """Length of the step; 1: without momentum it ends at the mean."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """How much of the last step is taken again."""


class Adaptive(Block):
    """FedAdagrad, FedAdam, FedYogi (Reddi et al. 2021): each parameter with a step of its own, which learning rate and
    ``tau`` decide on, not how far clients moved.
    """

    lr: Positive = 0.01
    """About how far a parameter moves in a round."""
    beta_1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the running mean of clients' moves."""
    beta_2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the running mean of their squares; no effect with ``adagrad``."""
    tau: Positive = 1e-3
    """Moves below it count as none: the smaller, the more adaptive."""


class FedAdagrad(Adaptive):
    """FedAdagrad (Reddi et al. 2021)."""

    name: Literal["adagrad"] = "adagrad"


class FedAdam(Adaptive):
    """FedAdam (Reddi et al. 2021)."""

    name: Literal["adam"] = "adam"


class FedYogi(Adaptive):
    """FedYogi (Reddi et al. 2021)."""

    name: Literal["yogi"] = "yogi"


ServerOptimizer = Average | Momentum | FedAdagrad | FedAdam | FedYogi


class ServerConfig(Block):
    """When the server updates its model, and by what step."""

    schedule: Literal["sync", "fedbuff"] = "sync"
    """``sync``: once everybody asked has replied; ``fedbuff``: after every ``buffer`` replies of clients that train at
    their own pace.
    """
    buffer: Annotated[int, Field(ge=1)] = 10
    """FedBuff: K, how many replies an update takes."""
    concurrency: Annotated[int, Field(ge=1)] | None = None
    """FedBuff: M, how many clients train at a time; null: ``participation.fraction`` of all."""
    staleness_max: Annotated[int, Field(ge=0)] = 20
    """FedBuff: a reply is not used if there were more updates than this since the client's download."""
    lr: Positive = 1.0
    """FedBuff: length of the step of an update."""
    optimizer: Annotated[ServerOptimizer, Field(discriminator="name")] = Average()
    """How a synchronous server goes from its model to the clients' mean."""
