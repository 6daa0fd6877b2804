"""What a method file is made of: a Config, a Client, a Server whose ``round`` is the paper's server procedure, and a
Method that names them. A plug-in adds its own two halves to any method: fields in the message, a loss term, fields in
the reply.

Nothing here changes control flow; what methods share is a function they call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from rayfed_ssl.base.schema import Block
from rayfed_ssl.base.weights import Weights

if TYPE_CHECKING:
    from rayfed_ssl.client import EncoderClient
    from rayfed_ssl.cohort import Cohort
    from rayfed_ssl.config import RunConfig
    from rayfed_ssl.data.federation import Federation


class MethodConfig(Block):
    """Base of every ``method:`` block: only what is that method's own."""

    name: str

    @property
    def needs_public(self) -> bool:
        """Whether a method with ``Info.public_data`` needs them as it is configured."""
        return True


class PluginConfig(MethodConfig):
    """Base of every entry of ``plugins:``."""

    def minimum_batch(self, config: RunConfig) -> int:
        """Rows a batch must have for the plug-in's loss term to be defined."""
        return 1


@dataclass(frozen=True)
class Info:
    """One line of ``rayfed-ssl methods``."""

    paper: str
    transmits: str
    stateful: bool = False
    heterogeneous: bool = False
    public_data: bool = False


@dataclass(frozen=True)
class Kept:
    """What is kept of one client from round to round; a momentum target of the objective's is counted by itself."""

    models: int = 0  # copies of its whole network in its state
    state: int = 0  # bytes of other arrays in its state
    bank: int = 0  # bytes at the server


@dataclass(frozen=True)
class Subject:
    """An encoder to evaluate or export: the global one (weights given), or a client's own (kept in its state under
    ``model``).
    """

    client: int | None
    encoder: str
    weights: Weights | None = None
    classes: int | None = None  # of the classifier in ``model``, where a client has a task of its own


class ClientMatrix(NamedTuple):
    """What a method knows about pairs of clients."""

    values: np.ndarray  # (N, N); NaN where nothing is known
    rows: str  # what a row is, e.g. "target"
    columns: str


@dataclass(frozen=True)
class Setup:
    """What a server knows before the first round: sizes and architectures, never images."""

    config: RunConfig
    federation: Federation
    initial: Callable[[str], Weights]  # an architecture's untrained values

    @property
    def clients(self) -> tuple[int, ...]:
        return self.federation.clients

    @property
    def shares(self) -> np.ndarray:
        """(N,) q_j = n_j / sum n."""
        return self.federation.shares


class MethodServer:
    """Base of every server. ``state`` holds everything that lasts from round to round, so a checkpoint is that dict."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.config = setup.config
        self.state: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}  # of this round; the loop records and clears them

    @property
    def method(self) -> Any:
        """This method's own config block."""
        return self.config.method

    @property
    def weights(self) -> Weights:
        """The global model."""
        return self.state["weights"]  # type: ignore[no-any-return]

    @weights.setter
    def weights(self, value: Weights) -> None:
        self.state["weights"] = value

    def start(self, cohort: Cohort) -> None:
        """Once, before the first round of a fresh run: initial values, public data."""

    def round(self, t: int, cohort: Cohort) -> None:
        """The paper's server procedure of round t = 1, 2, ..."""
        raise NotImplementedError

    def asks_everybody(self, t: int) -> bool:
        """True where round t needs all clients, whatever the participation fraction."""
        return False

    def counting(self, clients: Sequence[int]) -> dict[int, float] | None:
        """How these clients count in a mean, as ``method.weights`` says: None by size, or all the same."""
        return dict.fromkeys(clients, 1.0) if self.method.weights == "uniform" else None

    def subjects(self) -> list[Subject]:
        """The encoders this method ends with. By default the global one."""
        return [Subject(None, self.setup.config.clients.encoder(self.setup.clients[0]), self.weights)]

    def subjects_before(self) -> list[Subject]:
        """What round 0 evaluates: the same encoders, untrained."""
        return self.subjects()

    def own_subjects(self) -> list[Subject]:
        """One encoder per client, for methods whose clients keep their own."""
        return [Subject(c, self.config.clients.encoder(c)) for c in self.setup.clients]

    def notes(self) -> list[str]:
        """Lines worth saying once, before the first round: what an exchange costs, say."""
        return []

    def client_matrices(self) -> dict[str, ClientMatrix]:
        """Matrices over pairs of clients, drawn at the end of the run under these names."""
        return {}

    def privacy(self) -> dict[str, Any] | None:
        """What was spent, for the summary; None where nothing is claimed."""
        return None


class ServerPlugin:
    """A plug-in's server half. ``state`` lasts, like a server's."""

    def __init__(self, config: PluginConfig, setup: Setup) -> None:
        self.config: Any = config
        self.setup = setup
        self.state: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}

    def message(self, t: int, client: int) -> dict[str, Any]:
        """Extra fields for one client's training message of round t."""
        return {}

    def collect(self, t: int, client: int, fields: Mapping[str, Any]) -> None:
        """Take a client's extra reply fields."""

    def end_round(self, t: int) -> None:
        """Everybody of round t has replied."""

    def client_matrices(self) -> dict[str, ClientMatrix]:
        """Matrices over pairs of clients, like a server's."""
        return {}


class ClientPlugin:
    """A plug-in's client half, made anew for every training operation."""

    def __init__(self, config: PluginConfig, client: EncoderClient) -> None:
        self.config: Any = config
        self.client = client

    def receive(self, fields: Mapping[str, Any]) -> None:
        """The extra message fields."""

    def penalty(self, projections: tuple[Tensor, ...]) -> Tensor | None:
        """A loss term on the projections of this batch, V tensors (B, D); None for nothing."""
        return None

    def reply(self) -> dict[str, Any]:
        """Extra reply fields."""
        return {}


@dataclass(frozen=True)
class Method:
    """A row of the table of methods."""

    config: type[MethodConfig]
    client: type[EncoderClient]
    server: type[MethodServer]
    info: Info
    objectives: tuple[str, ...]  # allowed; the first is the default
    service: type[EncoderClient] | None = None  # heavy server work
    heads: frozenset[str] | None = None  # of the network; None: what the objective needs
    plugin: tuple[type[ClientPlugin], type[ServerPlugin]] | None = None  # this file's plug-in halves
    averages: bool = False  # clients' weights, and with `objective.target: averaged` their momentum targets
    is_plugin: bool = False  # the method is that plug-in over a local objective
    check: Callable[[RunConfig], None] | None = None  # raises ValueError naming the key that does not fit
    check_federation: Callable[[RunConfig, Federation], None] | None = None  # raises UserError; nothing is written yet
    kept: Callable[[RunConfig, int], Kept] = lambda config, images: Kept()  # of a client with that many images
    supervised: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return str(self.config.model_fields["name"].default)
