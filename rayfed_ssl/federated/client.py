"""The client side that methods share: load weights, train local epochs, project images. A method's Client is a subclass
and adds one function for each operation that a client is asked to do.

An instance lives for one operation. Put into ``state`` what must last longer; return what would cross the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from rayfed_ssl.base.seeding import Address, generator, numpy_generator
from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.data.augment import augment
from rayfed_ssl.federated.local_optimizer import moments, new_optimizer, round_learning_rate, with_moments
from rayfed_ssl.federated.messages import SERVER, State, qualified, take_qualified, visit_address
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.federated.steps import TrainStep
from rayfed_ssl.federated.workload import local_batches
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Memory, Step, refuse_no_step, target_modules
from rayfed_ssl.settings.blocks import MethodConfig

Config = TypeVar("Config", bound=MethodConfig)
PUBLIC_IMAGES = "public"  # the name under which servers publish the public images
FLOAT_BYTES = 4
VIEW_BYTES = 1 << 26  # of views made at once without gradients; making them takes about five times as much
Loss = Callable[[tuple[Tensor, ...], Tensor], Step]  # views, V tensors (B, C, H, W); rows (B,) of the pixels they show


class Attached(Protocol):
    """The part of a plug-in's client half that a client uses; see ``federated.plugin``."""

    needs_features: ClassVar[bool]

    def receive(self, fields: Mapping[str, Any]) -> None: ...

    def penalty(self, projections: tuple[Tensor, ...], features: tuple[Tensor, ...] = ()) -> Tensor | None: ...

    def reply(self) -> dict[str, Any]: ...


NOTHING_ATTACHED: Mapping[str, Callable[[EncoderClient[Any]], Attached]] = MappingProxyType({})


class EncoderClient(Generic[Config]):
    """A client with an encoder, a shard of the training images, and a local objective."""

    def __init__(
        self,
        context: ProcessContext,
        client: int,
        round: int,
        operation: str,
        state: State,
        *,
        visit: int = 0,
        halves: Mapping[str, Callable[[EncoderClient[Any]], Attached]] = NOTHING_ATTACHED,
    ) -> None:
        """A client for one operation.

        Args:
            visit: how often this client was asked for this operation before in this round.
            halves: plug-in -> function that makes its client half; empty for operations in which plug-ins take no part.
        """
        self.context = context
        self.config = context.config
        self.objective = context.objective
        self.id = client
        self.round = round
        self.operation = operation
        self.state = state
        self.metrics: dict[str, float] = {}
        self._memory: Memory | None = None
        self._fitted: set[str] = set()  # the purposes of this operation's fits
        self.visit = visit
        self.plugins: Mapping[str, Attached] = {name: half(self) for name, half in halves.items()}

    @property
    def method(self) -> Config:
        """This method's own config block."""
        return cast(Config, self.config.method)

    def perform(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run the operation. Plug-ins take their fields out of its message, and add others to its reply."""
        for name, plugin in self.plugins.items():
            plugin.receive(take_qualified(name, message))
        if not callable(operation := getattr(self, self.operation, None)):
            raise AttributeError(
                f"clients were asked for {self.operation!r}, which {type(self).__name__} does not define; "
                f"it defines {', '.join(self._operations()) or 'nothing'}"
            )
        reply: dict[str, Any] = operation(**message)
        if not isinstance(reply, dict):
            raise TypeError(
                f"operation {self.operation!r} returned {'nothing' if reply is None else type(reply).__name__}; "
                "must return a dict of the reply's fields, {} for none"
            )
        for name, plugin in self.plugins.items():
            reply |= qualified(name, plugin.reply())
        return reply

    def _operations(self) -> list[str]:
        """The functions that a method's own classes define, as far as they could be operations."""
        own = type(self).__mro__[: type(self).__mro__.index(EncoderClient)]
        return sorted({n for kind in own for n, f in vars(kind).items() if callable(f) and not n.startswith("_")})

    # -- what a client has ---------------------------------------------------------------------------------------------

    @property
    def encoder(self) -> str:
        """The name of this client's architecture; in the server's own work, that of client 0."""
        return self.config.clients.encoder(0 if self.id == SERVER else self.id)

    @property
    def classes(self) -> int | None:
        """The number of outputs of this client's classifier; None: all classes of the data."""
        return None

    @property
    def network(self) -> Network:
        return self.context.network(self.encoder, classes=self.classes)

    @property
    def target(self) -> Network | None:
        """The momentum target network (encoder and ``Objective.target_heads``), if the objective has one."""
        return None if self.config.objective.momentum_target is None else self.context.network(self.encoder, "target")

    @property
    def memory(self) -> Memory | None:
        """What the objective remembers from batch to batch, if it does: this client's memory from its last round, if
        the objective keeps that, else a fresh one.
        """
        if self._memory is None and self.objective.memory:
            own = self.state.get("memory") if self.objective.keeps_memory else None
            if own is None:
                dim = self.objective.memory_dim(self.network.config)
                tensors = self.objective.remember(dim, self.generator("memory"))
            else:
                tensors = {name: torch.tensor(values, device=self.context.device) for name, values in own.items()}
            self._memory = Memory(self.round, tensors, self.generator("draws") if self.objective.draws else None)
        return self._memory

    @property
    def indices(self) -> np.ndarray:
        """This client's training images, as indices into the training set."""
        return self.context.federation.shards[self.id]["train"]

    def pixels(self) -> Tensor:
        """(n, C, H, W) uint8 on the device."""
        return self.context.images(self.context.federation.dataset.train.pixels, self.indices)

    def public_pixels(self) -> Tensor:
        """(m, C, H, W) uint8 public images on the device."""
        return self.context.images(self.context.federation.public_images.pixels)

    def published_pixels(self, name: str = PUBLIC_IMAGES) -> Tensor:
        """(m, C, H, W) uint8 images on the device that the server published under this name."""
        return self.context.images(self.context.published[name])

    def labels(self) -> Tensor:
        """(n,) labels of the shard, for supervised methods only."""
        return torch.from_numpy(self.context.federation.dataset.train.labels[self.indices]).to(self.context.device)

    def generator(self, purpose: str) -> torch.Generator:
        """A random generator on the device, seeded for this client, round, operation and purpose."""
        return generator(*self._address(purpose), device=self.context.device)

    def _address(self, purpose: str) -> tuple[Address, ...]:
        return self.config.seed, self.round, self.id, self.operation, purpose, *visit_address(self.visit)

    # -- values --------------------------------------------------------------------------------------------------------

    def load(self, weights: Weights, target: Weights | None = None) -> None:
        """Load the global model, and the momentum target as the objective's ``target`` option says: this client's own,
        the downloaded ``target``, or, without either, a copy of the network.
        """
        unpack(weights, self.network)
        if self.target is not None:
            values = self.state.get("target") if self.config.keeps_target else target
            unpack(pack(*self._followed(self.network)) if values is None else values, *self._followed(self.target))

    def load_own(self) -> None:
        """Load this client's own model and target: those of its last round, or the initial values."""
        own = self.state.get("model")
        self.load(self.context.initial(self.encoder, self.classes, self.id) if own is None else own)

    def keep_own(self) -> None:
        """Keep this client's own model for its next round."""
        self.state["model"] = self.weights

    @property
    def weights(self) -> Weights:
        return pack(self.network)

    @property
    def averaged(self) -> dict[str, Weights]:
        """The reply of a client of an averaging method: its weights, and its momentum target if that is averaged."""
        reply = {"weights": self.weights}
        if self.config.averages_target:
            assert self.target is not None
            reply["target"] = pack(*self._followed(self.target))
        return reply

    def _followed(self, network: Network) -> list[nn.Module]:
        """The parts of a network that the objective's momentum target also has."""
        return target_modules(network, self.objective.target_heads)

    # -- training ------------------------------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """This round's learning rate, by ``local_optimizer.round_learning_rate``."""
        return round_learning_rate(self.config.train.optimizer, self.round, self.config.train.rounds)

    @property
    def weight_decay(self) -> float:
        """lambda: the optimiser adds lambda theta to the gradient (adamw: subtracts lr lambda theta from theta; lars:
        not for biases and normalisation's parameters).
        """
        return self.config.train.optimizer.weight_decay

    def optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimiser. Only ``fit`` can give it the momentum of earlier rounds (``train.optimizer.keep``)."""
        return new_optimizer(self.config.train.optimizer, parameters, self.learning_rate, self.weight_decay)

    def batches(
        self, count: int, epochs: int | None = None, size: int | None = None, purpose: str = "order"
    ) -> Iterator[Tensor]:
        """Batches of row numbers out of ``count`` rows, reshuffled each epoch; ``workload.local_batches`` says how many
        there are and how large. Each ``purpose`` has its own order: name two in an operation that goes through two
        sets.
        """
        plan = local_batches(self.config, count, epochs, size)
        order = numpy_generator(*self._address(purpose))
        for step in range(plan.steps):
            if step % plan.per_epoch == 0:
                shuffled = torch.from_numpy(order.permutation(count)).to(self.context.device)
            start = step % plan.per_epoch * plan.size
            yield shuffled[start : start + plan.size]

    def fit(
        self,
        loss: Loss | None = None,
        *,
        pixels: Tensor | None = None,
        epochs: int | None = None,
        stop: Callable[[], bool] | None = None,
        purpose: str = "",
    ) -> None:
        """Train the network, as it is now, on augmented views of images: local epochs of ``loss`` plus the plug-ins'
        terms. ``self.metrics`` then has ``loss`` (the mean over batches), ``images`` (read) and ``lr``; the momentum
        target and the objective's memory are kept in ``self.state`` if they last. The device is waited for only at the
        end, unless ``loss``, ``stop`` or a plug-in waits for it.

        Args:
            loss: (views, rows) -> Step(loss, projections, features); by default the objective's.
            pixels: (n, C, H, W) uint8; by default this client's shard.
            epochs: passes over ``pixels``; by default ``train.local_steps`` steps if they are given, else
                ``train.local_epochs`` epochs.
            stop: called after every epoch and at the end; training ends as soon as it returns True.
            purpose: part of the seed of the order and the views: an operation that fits twice must name the second fit.
        Raises:
            ValueError: this operation has fitted with this purpose before, and would draw the same order and views
                again; or a plug-in needs features that ``loss`` does not give.
        """
        if purpose in self._fitted:
            raise ValueError(f"{self.operation}: a second fit draws what the first one drew; give it a purpose")
        self._fitted.add(purpose)
        pixels = self.pixels() if pixels is None else pixels
        plan = local_batches(self.config, len(pixels), epochs)
        self.network.train()
        if self.target is not None:
            self.target.train()
        step, draws = self._train_step(loss, plan.steps), self.generator(f"views {purpose}".rstrip())
        steps, seen, stopped = 0, 0, False
        for rows in self.batches(len(pixels), epochs, purpose=f"order {purpose}".rstrip()):
            step(self.views(pixels[rows], draws, self.objective.views), rows)
            steps, seen = steps + 1, seen + len(rows)
            if stop is not None and steps % plan.per_epoch == 0:
                if stopped := stop():
                    break
                self.network.train()
        if stop is not None and not stopped and steps % plan.per_epoch:
            stop()  # the part of an epoch that `local_steps` ended with
        self._keep_objectives_state()
        if self.config.train.optimizer.keep:
            self.state["optimizer"] = moments(step.optimizer, self.network)
        self.metrics |= {"loss": float(step.total) / max(steps, 1), "images": float(seen), "lr": self.learning_rate}

    def _train_step(self, loss: Loss | None, count: int) -> TrainStep:
        """The step to take ``count`` times. Only the objective's step may be recorded as a graph, unless it draws
        random numbers: a method's own loss, or a plug-in, may do what a graph cannot repeat.
        """
        network, target, batch_loss = self.network, self.target, loss or self.objective_loss()
        parameters: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        optimizer = with_moments(self.optimizer(parameters), network, self.state.get("optimizer", {}))
        step = TrainStep(
            lambda views, rows: self._with_plugins(batch_loss, views, rows), optimizer,
            self.config.train.optimizer.clip_norm, lambda: self.objective.after_step(network, target),
            torch.zeros((), device=self.context.device),
        )  # fmt: skip
        if loss is not None or self.plugins or self.objective.draws:
            return step
        memory = {} if self.memory is None else self.memory.tensors
        return self.context.step_maker.made(step, self.config.objective.name, count, memory)

    def _keep_objectives_state(self) -> None:
        """Keep the momentum target and the objective's memory for the next round, if they last."""
        if self.target is not None and self.config.keeps_target:
            self.state["target"] = pack(*self._followed(self.target))
        if self._memory is not None and self.objective.keeps_memory:
            self.state["memory"] = {name: tensor.cpu().numpy() for name, tensor in self._memory.tensors.items()}

    def _with_plugins(self, loss: Loss, views: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        """The loss of one batch with the plug-ins' terms on the projections and features of its views."""
        with self.autocast():
            step = loss(views, rows)
        refuse_no_step(step, self.config.objective.name)
        value = step.loss
        for name, plugin in self.plugins.items():
            if plugin.needs_features and not step.features:
                raise ValueError(
                    f"{name} needs the encoder's features of the views, and the loss gives none: "
                    "Step(loss, projections, features); see rayfed_ssl.objectives.base.encoded"
                )
            if (term := plugin.penalty(step.projections, step.features)) is not None:
                value = value + term
                if value.numel() != 1:
                    raise TypeError(
                        f"plug-in {name}: penalty gave a term of shape {tuple(term.shape)}; must be a scalar"
                    )
        return value

    def objective_loss(self) -> Loss:
        """The configured objective on this client's network, target, memory, and, if it is supervised, labels."""
        network, target, memory = self.network, self.target, self.memory
        labels = self.labels() if self.objective.labelled else None

        def loss(views: tuple[Tensor, ...], rows: Tensor) -> Step:
            batch = Batch(views, None if labels is None else labels[rows], target, memory)
            return self.objective.step(network, batch)

        return loss

    def views(self, pixels: Tensor, draws: torch.Generator, count: int) -> tuple[Tensor, ...]:
        """V augmented views (B, C, H, W), made in one batched call."""
        self.context.images_read += len(pixels)
        augmented = augment(pixels, self.context.recipe, draws, views=count)
        return augmented.contiguous(memory_format=self.context.memory_format).chunk(count)

    def count_images(self, images: int) -> None:
        """Count source images that the operation reads by other means than ``views`` and ``context.clean``, which count
        themselves. The virtual clock uses this count.
        """
        self.context.images_read += images

    def autocast(self) -> torch.autocast:
        """A context for forward passes: bfloat16 on a GPU if ``train.precision`` says so, else no change."""
        wanted = self.config.train.precision == "bfloat16" and self.context.device.type == "cuda"
        return torch.autocast(self.context.device.type, torch.bfloat16, enabled=wanted)

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, encoder: str, weights: Weights | None) -> dict[str, float]:
        """Protocol -> value for the global encoder (weights given) or this client's own (None); no state changes.
        In round 0 both are untrained.
        """
        own = self.state.get("model") if weights is None else weights
        return self.context.evaluate(encoder, own, self.classes, self.id, untrained=self.round == 0)

    # -- inference -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def projections(self, pixels: Tensor, *, views: int | None = None, training: bool = False) -> Iterator[Tensor]:
        """Projections, batch by batch: (B, D) of clean images, or (V, B, D) of V augmented views; in eval mode, unless
        ``training``. Batch sizes differ by at most one row and are at most ``evaluation.batch_size``; a batch of views
        takes at most ``VIEW_BYTES``, unless it is of two images only.
        """
        self.network.train(training)
        draws, most = None if views is None else self.generator("views"), self.config.evaluation.batch_size
        if views is not None and len(pixels):
            most = min(most, max(2, VIEW_BYTES // (FLOAT_BYTES * views * pixels[0].numel())))
        for part in pixels.tensor_split(-(-len(pixels) // most)):
            if views is None or draws is None:
                yield self.network.project(self.context.clean(part)).float()
            else:
                yield torch.stack([self.network.project(v).float() for v in self.views(part, draws, views)])
