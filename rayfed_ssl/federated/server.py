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
    """The weights of these clients in a mean (``cohort.mean(by=...)``): None for their numbers of images, else 1
    each.
    """
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
    """Base class of every method's server.

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
        """The global model. Raises KeyError if the method has set none."""
        try:
            return self.state["weights"]  # type: ignore[no-any-return]
        except KeyError as error:
            error.add_note(
                f"{self.config.method.name}: self.weights is not set; set it in `start`, or say what is evaluated by "
                "`evaluated_encoders`"
            )
            raise

    @weights.setter
    def weights(self, value: Weights) -> None:
        if value is not None and not isinstance(value, Weights):
            raise TypeError(
                f"{self.config.method.name}: self.weights: found {type(value).__name__}; must be Weights, as "
                'cohort.mean("train", ..)["weights"] and self.weights.with_vector(array) are'
            )
        self.state["weights"] = value

    @property
    def common_encoder(self) -> str:
        """The architecture of the global model: every client's, in a method of one architecture."""
        return self.config.clients.encoder(self.setup.clients[0])

    def initial_weights(self) -> Weights:
        """The values the global model begins with: those of the common architecture, or of ``model.start``."""
        return self.setup.initial(self.common_encoder)

    def start(self, cohort: Cohort) -> None:
        """Called once, before the first round of a fresh run, to set initial values and publish public data."""

    def round(self, t: int, cohort: Cohort) -> None:
        """The paper's server procedure of round t = 1, 2, ..."""
        raise NotImplementedError

    def after_last_round(self, cohort: Cohort) -> None:
        """Called once after the last of ``train.rounds``, even if that came to nothing. Clients may then do something
        by themselves (``cohort.conclude``).
        """

    def counts(self, clients: Sequence[int]) -> dict[int, float] | None:
        """The weights of these clients in the mean that a round ends with (``cohort.mean(by=...)``); None: their
        numbers of images.
        """
        return None

    def workload(self, operation: str, client: int) -> Workload | None:
        """The exact cost of an operation for a client, without the plug-ins' part: the images it will read, and its
        reply's bytes by field. None if that is known only afterwards; then deadlines cannot be kept.
        """
        return None

    def operations(self, t: int, client: int, met: Collection[int]) -> tuple[str, ...]:
        """The operations that a client of round t is asked for, in order, if ``workload`` knows their cost.

        Args:
            met: the clients that were asked in earlier rounds.
        """
        return (TRAINS,)

    def rehearse(self, t: int) -> None:
        """Set in ``state`` what it would hold at the beginning of round t, as far as ``workload`` and ``notes`` read
        it. ``run --check`` calls this instead of ``start``. By default the global model gets its first values.
        """
        self.state.setdefault("weights", self.initial_weights())

    def publishes(self) -> Mapping[str, object]:
        """What every client is sent before the first round (``cohort.publish``), by name: values, or their sizes
        (``ledger.WireSize``).
        """
        return {}

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """What a client that is asked in round t >= 1 will be sent in that round if no client is lost, without the
        plug-ins' part: the fields of its messages by name, as values or their sizes, each object once. None if that is
        known only afterwards.

        Args:
            met: the clients that were asked in earlier rounds.
        """
        return None

    def traffic(self, t: int, client: int, met: Collection[int]) -> Traffic | None:
        """The exact bytes that a client that is asked in round t will be sent and will send if no client is lost,
        without the plug-ins' part: ``sends``, and the replies of the round's ``operations``. Round 0 is ``publishes``.
        None if the sizes are known only afterwards.

        Args:
            met: the clients that were asked in earlier rounds.
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
        with as many bytes as their ``workload`` says; None if one of them is not known beforehand.
        """
        works = [self.workload(operation, client) for operation in self.operations(t, client, met)]
        known = [work.up_bytes for work in works if work is not None]
        return Traffic(down, sum(known)) if len(known) == len(works) else None

    def server_images(self, t: int, clients: Sequence[int]) -> int | None:
        """How many images the server's own work (``cohort.serve``, ``cohort.serve_all``) will read in round t, exactly,
        if these clients are asked and none is lost. Each image counts once per pass, as for clients. Round 0 is
        ``start``. None if the number is known only afterwards, or is not written down. Only forecasts before the first
        round, such as ``run --check``, use it; virtual time counts images as they are read.
        """
        return None

    def asks_everybody(self, t: int) -> bool:
        """Whether round t needs all clients, whatever the participation fraction. Asked before ``start``, too."""
        return False

    def wanted(self, t: int) -> int:
        """How many clients round t wants: ``participation.fraction`` of them, at least one, or all of them."""
        clients = len(self.setup.clients)
        return clients if self.asks_everybody(t) else self.config.participants(clients)

    def asked(self, t: int) -> tuple[int, ...]:
        """The clients of round t if all can be reached: a uniform draw, without replacement, of as many as it wants."""
        return selected(self.setup.clients, self.wanted(t), self.config.seed, t, "cohort")

    def fit_batches(self, client: int) -> Batches:
        """The batches of one `fit` over the client's shard, as the client will draw them."""
        return local_batches(self.config, int(self.setup.federation.sizes[client]))

    def fitting(self, client: int, **replied: Any) -> Workload:
        """The workload of one `fit` over the client's shard and of a reply with values of these sizes."""
        return Workload(self.fit_batches(client).images, sizes(replied, self.config.transport.up))

    def evaluated_encoders(self) -> list[EvaluatedEncoder]:
        """The encoders that this method ends with; by default the global one."""
        return [EvaluatedEncoder(None, self.common_encoder, self.weights)]

    def evaluated_before(self) -> list[EvaluatedEncoder]:
        """The encoders that round 0 evaluates: the same ones, untrained."""
        return self.evaluated_encoders()

    def own_encoders(self) -> list[EvaluatedEncoder]:
        """One encoder per client, for methods whose clients keep their own."""
        return [EvaluatedEncoder(c, self.config.clients.encoder(c)) for c in self.setup.clients]

    def notes(self) -> Sequence[Note | str]:
        """Lines to print once, before the first round, such as the cost of an exchange. ``run --check`` asks for them
        before ``start``. A ``Note`` says which part of it a model card shows; a card shows nothing of plain text.
        """
        return []

    def client_matrices(self) -> dict[str, ClientMatrix]:
        """Matrices over pairs of clients, drawn at the end of the run under these names."""
        return {}

    def privacy(self) -> dict[str, Any] | None:
        """The privacy that was spent, for the summary; None if the method claims none."""
        return None
