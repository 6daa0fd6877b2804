"""The server's side of a method: ``round`` is the paper's server procedure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.ledger import sizes
from rayfed_ssl.federated.messages import TRAINS
from rayfed_ssl.federated.results import ClientMatrix, EvaluatedEncoder
from rayfed_ssl.federated.sampling import selected
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.federated.workload import Batches, Traffic, Workload, local_batches
from rayfed_ssl.settings.blocks import MethodConfig

Config = TypeVar("Config", bound=MethodConfig)


def counting(scheme: Literal["size", "uniform"], clients: Sequence[int]) -> dict[int, float] | None:
    """The weights of these clients in a mean (``cohort.mean(by=...)``): None, by their numbers of images, or all 1."""
    return dict.fromkeys(clients, 1.0) if scheme == "uniform" else None


def pretrain(server: MethodServer[Any], cohort: Cohort) -> None:
    """Have clients that take part for the first time train alone (their ``pretrain``), before anything is exchanged.
    ``server.state["pretrained"]`` lists who has done so.
    """
    done: list[int] = server.state["pretrained"]
    known = set(done)
    if fresh := [client for client in cohort.clients if client not in known]:
        server.state["pretrained"] = done + [reply.client for reply in cohort.ask("pretrain", clients=fresh)]


class MethodServer(Generic[Config]):
    """Base of every server.

    ``state`` holds everything that lasts from round to round: it is what a checkpoint stores. It may hold NumPy arrays
    and scalars, ``Weights``, bool, int, float, str and None, nested in dicts and lists (a tuple comes back as a list);
    torch tensors and other objects are a TypeError when the checkpoint is written.
    """

    reaches_clients: ClassVar[bool] = True
    """Whether clients do the work; False: all of it is the server's own, whichever clients can be reached."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.config = setup.config
        self.state: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}  # of this round; the loop records and clears them

    @property
    def method(self) -> Config:
        """This method's own config block."""
        return cast(Config, self.config.method)

    @property
    def weights(self) -> Weights:
        """The global model."""
        return self.state["weights"]  # type: ignore[no-any-return]

    @weights.setter
    def weights(self, value: Weights) -> None:
        self.state["weights"] = value

    @property
    def common_encoder(self) -> str:
        """The architecture of the global model: every client's, in a method of one architecture."""
        return self.config.clients.encoder(self.setup.clients[0])

    def initial_weights(self) -> Weights:
        """The values the global model begins with: those of the common architecture, or of ``model.start``."""
        return self.setup.initial(self.common_encoder)

    def start(self, cohort: Cohort) -> None:
        """Called once, before the first round of a fresh run: set initial values, publish public data."""

    def round(self, t: int, cohort: Cohort) -> None:
        """The paper's server procedure of round t = 1, 2, ..."""
        raise NotImplementedError

    def after_last_round(self, cohort: Cohort) -> None:
        """Once, after the last of ``train.rounds``, also where it came to nothing: what clients then do by themselves
        (``cohort.conclude``).
        """

    def counts(self, clients: Sequence[int]) -> dict[int, float] | None:
        """How these clients count in the mean that a round ends with (``cohort.mean(by=...)``); None: by their number
        of images.
        """
        return None

    def workload(self, operation: str, client: int) -> Workload | None:
        """What an operation will cost a client, without the plug-ins' part: the images it will read and its reply's
        bytes by field, exactly. None where that is known only afterwards; then deadlines cannot be kept.
        """
        return None

    def operations(self, t: int, client: int, met: Collection[int]) -> tuple[str, ...]:
        """What a client of round t is asked for, in order, where ``workload`` knows what it costs.

        Args:
            met: who was asked in earlier rounds.
        """
        return (TRAINS,)

    def rehearse(self, t: int) -> None:
        """Take on what ``state`` would hold as round t begins, as far as ``workload`` and ``notes`` read it. ``run
        --check`` calls it in place of ``start``. By default the global model has its first values.
        """
        self.state.setdefault("weights", self.initial_weights())

    def publishes(self) -> Mapping[str, object]:
        """What everybody is sent before the first round (``cohort.publish``), by name: values, or their sizes
        (``ledger.WireSize``).
        """
        return {}

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """What a client that is asked in round t >= 1 will be sent in that round, where nobody is lost, without the
        plug-ins' part: its messages' fields by name, values or their sizes, each thing once. None where that is known
        only afterwards.

        Args:
            met: who was asked in earlier rounds.
        """
        return None

    def traffic(self, t: int, client: int, met: Collection[int]) -> Traffic | None:
        """What a client that is asked in round t will be sent and send, exactly, where nobody is lost; without the
        plug-ins' part: ``sends``, and the replies of the round's ``operations``. Round 0 is ``publishes``. None where
        the sizes are known only afterwards.

        Args:
            met: who was asked in earlier rounds.
        """
        if not self.reaches_clients:
            return Traffic(0, 0)
        sent = self.sends(max(t, 1), client, met)
        if sent is None:  # then what is published may not be said either
            return None
        down = sum(sizes(sent if t else self.publishes(), self.config.transport.down).values())
        return self.with_replies(down, t, client, met) if t else Traffic(down, 0)

    def with_replies(self, down: int, t: int, client: int, met: Collection[int]) -> Traffic | None:
        """The traffic of a client that is sent ``down`` bytes in round t >= 1 and replies to the round's ``operations``
        with what their ``workload`` says; None where one is not known beforehand.
        """
        works = [self.workload(operation, client) for operation in self.operations(t, client, met)]
        known = [work.up_bytes for work in works if work is not None]
        return Traffic(down, sum(known)) if len(known) == len(works) else None

    def server_images(self, t: int, clients: Sequence[int]) -> int | None:
        """How many images the server's own work (``cohort.serve``, ``cohort.serve_all``) will read in round t, exactly,
        where these clients are asked and nobody is lost; each once per pass, as clients' are counted. Round 0 is
        ``start``. None where that is known only afterwards, or not written down. Only what is said before the first
        round, as by ``run --check``, uses it; virtual time counts images as they are read.
        """
        return None

    def asks_everybody(self, t: int) -> bool:
        """True where round t needs all clients, whatever the participation fraction."""
        return False

    def wanted(self, t: int) -> int:
        """How many clients round t wants: ``participation.fraction`` of them, at least one, or everybody."""
        clients = len(self.setup.clients)
        return clients if self.asks_everybody(t) else self.config.participants(clients)

    def asked(self, t: int) -> tuple[int, ...]:
        """The clients of round t where all can be reached: a uniform draw without replacement of those it wants."""
        return selected(self.setup.clients, self.wanted(t), self.config.seed, t, "cohort")

    def fit_batches(self, client: int) -> Batches:
        """The batches of one `fit` over the client's shard, as the client will draw them."""
        return local_batches(self.config, int(self.setup.federation.sizes[client]))

    def fitting(self, client: int, **replied: Any) -> Workload:
        """The workload of one `fit` over the client's shard, and of a reply of the sizes of these values."""
        return Workload(self.fit_batches(client).images, sizes(replied, self.config.transport.up))

    def evaluated_encoders(self) -> list[EvaluatedEncoder]:
        """The encoders this method ends with. By default the global one."""
        return [EvaluatedEncoder(None, self.common_encoder, self.weights)]

    def evaluated_before(self) -> list[EvaluatedEncoder]:
        """What round 0 evaluates: the same encoders, untrained."""
        return self.evaluated_encoders()

    def own_encoders(self) -> list[EvaluatedEncoder]:
        """One encoder per client, for methods whose clients keep their own."""
        return [EvaluatedEncoder(c, self.config.clients.encoder(c)) for c in self.setup.clients]

    def notes(self) -> Sequence[Note | str]:
        """Lines worth saying once, before the first round: what an exchange costs, say. ``run --check`` asks for them
        before ``start``. A ``Note`` gives the part that a model card shows; of plain text, a card shows nothing.
        """
        return []

    def client_matrices(self) -> dict[str, ClientMatrix]:
        """Matrices over pairs of clients, drawn at the end of the run under these names."""
        return {}

    def privacy(self) -> dict[str, Any] | None:
        """What was spent, for the summary; None where nothing is claimed."""
        return None
