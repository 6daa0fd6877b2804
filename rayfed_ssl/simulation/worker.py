"""Executes a client's operation in any process: a pure function of (settings, round, client, message, state)."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from rayfed_ssl.base.numbers import numbers
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import forked, numpy_generator
from rayfed_ssl.base.weights import Resident, Weights, plain, settled
from rayfed_ssl.config import RunConfig
from rayfed_ssl.evaluation import BrokenFeatures, EncoderValues, outcomes_of
from rayfed_ssl.federated.aggregation import FixedPointSum, MixedArchitectures, NonFinite, check_summable
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.coding import reply_received
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import sizes
from rayfed_ssl.federated.messages import (
    SERVER,
    TRAINS,
    Averaging,
    Chunk,
    ClientError,
    Diverged,
    OperationResult,
    State,
    Task,
    visit_address,
)
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.federated.results import PIXELS, EvaluatedEncoder
from rayfed_ssl.methods import METHODS, plugin_halves
from rayfed_ssl.storage.checkpoint import refuse_unstorable


def of_pixels(values: Mapping[str, float]) -> dict[str, float]:
    """Scores of the raw pixels under the tags that are recorded (``pixels_knn``), with their outcomes under the scores'
    names.
    """
    return EncoderValues({f"pixels_{tag}": value for tag, value in values.items()}, outcomes_of(values))


class Worker(ProcessContext):
    """A process's context and the method whose clients run in it."""

    def __init__(self, config: RunConfig, federation: Federation, published: dict[str, Any] | None = None) -> None:
        super().__init__(config, federation, published)
        self.method = METHODS[config.method.name]
        self.plugins = [(p, plugin_halves(p.name)[0]) for p in config.active_plugins]

    def execute(
        self, operation: str, client: int, round: int, message: Mapping[str, Any], state: State | None, visit: int = 0
    ) -> tuple[OperationResult, State]:
        """Run one operation of a client (or of the server's heavy work, client SERVER).

        A ``visit`` other than 0 is part of the seed of all random numbers; see ``messages.Start``.

        A client's weights in the reply are those that the server receives (``coding.reply_received``). The lists and
        dicts of the message, of the state and of what was published are the operation's own: what it does to them
        reaches nobody else. Nor does what later operations do to this process's networks reach its reply and its state.

        Raises whatever the operation raises, and NonFinite if the reply holds NaN or infinity, or weights that
        ``transport.up`` cannot hold or FedBuff cannot sum. If the reply has no weights, those kept in the state are
        checked.
        """
        start = time.perf_counter()
        kind = self.method.service if client == SERVER else self.method.client
        if kind is None:
            raise ValueError(f"{self.method.name} has no server work to run")
        self.images_read = 0
        with (
            self._own_published(),
            forked(self.config.seed, round, client, operation, *visit_address(visit), device=self.device),
        ):
            worker = self.client(kind, client, round, operation, plain(dict(state or {})), visit)
            reply = settled(worker.perform(plain(dict(message))))
        check_finite(reply, said := f"operation '{operation}' replied with")
        if client != SERVER:
            where = self.config.seed, round, client, operation
            reply = reply_received(
                reply, message, self.config.transport.up,
                lambda purpose: numpy_generator(*where, purpose, *visit_address(visit)), said,
            )  # fmt: skip
        if client != SERVER and self.config.server.schedule == "fedbuff":  # which sums replies once it has them
            check_summable({name: value for name, value in reply.items() if isinstance(value, Weights)})
        if not any(isinstance(value, Weights) for value in reply.values()):
            kept = {name: value for name, value in worker.state.items() if isinstance(value, Weights)}
            check_finite(kept, f"operation '{operation}' left the client with")
        refuse_unstorable(worker.state, "self.state")
        metrics = {**numbers(worker.metrics, "self.metrics"), "seconds": time.perf_counter() - start}
        return OperationResult(client, reply, metrics, self.images_read), plain(settled(worker.state))

    def assess(self, round: int, encoder: EvaluatedEncoder, state: State | None) -> dict[str, float]:
        """Evaluate one encoder: raw pixels, the global encoder, or the client's own as its state holds it.

        Raises:
            Diverged: features are not finite.
        """
        if encoder == PIXELS:
            return of_pixels(self.evaluate_pixels())
        client = SERVER if encoder.client is None else encoder.client
        with self._own_published(), forked(self.config.seed, round, client, "evaluate", device=self.device):
            try:
                if encoder.holders:
                    return self.evaluate(encoder.architecture, encoder.weights, untrained=round == 0)
                worker = self.client(self.method.client, client, round, "evaluate", plain(dict(state or {})))
                return worker.evaluate(encoder.architecture, encoder.weights)
            except BrokenFeatures as error:
                raise Diverged(client, round, "evaluate", "", error.found, math.nan) from None

    @contextmanager
    def _own_published(self) -> Iterator[None]:
        """A context for one operation, with lists and dicts of its own in what was published."""
        given, self.published = self.published, plain(self.published)
        try:
            yield
        finally:
            self.published = given

    def features_of_client(self, client: int, round: int) -> dict[str, np.ndarray]:
        """The features by which encoders are compared, of the network as this client's operation has just left it."""
        return self.features_to_compare(self.client(self.method.client, client, round, "evaluate", {}).network)

    def client(
        self, kind: type[EncoderClient[Any]], client: int, round: int, operation: str, state: State, visit: int = 0
    ) -> EncoderClient[Any]:
        """A client for one operation, with its halves of the plug-ins if it trains."""
        halves = {config.name: partial(half, config) for config, half in self.plugins} if operation == TRAINS else {}
        return kind(self, client, round, operation, state, visit=visit, halves=halves)


@dataclass(frozen=True)
class ClientInput:
    """What one client of a call is given besides the task: its own fields, and its state, which is None if it has none
    yet.
    """

    client: int
    own: Mapping[str, Any]
    state: State | None


def run_chunk(
    worker: Worker,
    task: Task,
    inputs: Sequence[ClientInput],
    *,
    averaging: Averaging | None,
    where: str,
    running: FixedPointSum | None = None,
) -> tuple[Chunk, list[State | None]]:
    """The work of one call: runs each client in turn, and sums the fields to average where the clients run.

    Args:
        inputs: one for each client, in the order in which they run.
        averaging: what to sum; None to return whole replies.
        where: the place where this runs, in words, for error messages.
        running: the sum to add to, if it continues after this call; otherwise the chunk gets its own sum.
    Returns:
        the chunk, and the clients' new states (the old state if a client failed).
    Raises:
        MixedArchitectures, UserError: errors that no policy may drop: `mean` over clients of different architectures,
            and mistakes that only the user can mend, such as a file on this machine that differs from the run's.
    """
    chunk = Chunk(total=FixedPointSum() if averaging and running is None else None)
    new_states = [given.state for given in inputs]
    total = chunk.total if running is None else running
    for k, given in enumerate(inputs):
        client = given.client
        try:
            round, visit = task.start(client)
            message = {**task.message, **given.own}
            result, state = worker.execute(task.operation, client, round, message, given.state, visit)
            if client in task.compare_clients:
                result = replace(result, compared_features=worker.features_of_client(client, round))
            booked, reply = sizes(result.reply, worker.config.transport.up), dict(result.reply)
            if total is not None and averaging is not None:
                check_replied(reply, averaging.fields, task.operation)
                total.add(averaging.weights[client], {name: reply.pop(name) for name in averaging.fields})
            result = replace(result, reply=plain(reply))
        except (MixedArchitectures, UserError):
            raise
        except NonFinite as error:
            chunk.errors.append(Diverged(client, task.round, task.operation, where, str(error), error.largest))
            continue
        except Exception:
            chunk.errors.append(ClientError(client, task.round, task.operation, where, traceback.format_exc()))
            continue
        new_states[k] = state
        chunk.results.append(result)
        chunk.sizes.append(booked)
    return chunk, new_states


def check_replied(reply: Mapping[str, Any], fields: Sequence[str], operation: str) -> None:
    """Raise ValueError if a reply lacks a field that the server averages."""
    if missing := [name for name in fields if name not in reply]:
        raise ValueError(
            f"operation '{operation}' replied with {', '.join(reply) or 'nothing'}; the server's mean needs "
            f"{', '.join(missing)}, which the client's function has to return"
        )


def check_finite(fields: Mapping[str, Any], said: str) -> None:
    """Raise NonFinite, naming the first field that holds NaN or infinity at any depth; ``said`` begins the error's
    text.
    """
    for name, value in fields.items():
        for array in _floating(value):
            if not np.isfinite(array).all():
                raise NonFinite(f"{said} NaN or infinity in '{name}'", array)


def _floating(value: Any) -> Iterator[np.ndarray]:
    """The floating arrays within a value, except those already known to be finite."""
    match value:
        case Resident() if math.isfinite(value.largest):
            return
        case Weights():
            yield value.vector
        case np.ndarray() if value.dtype.kind == "f":
            yield value
        case Tensor() if value.is_floating_point():
            yield value.detach().cpu().float().numpy()
        case Mapping():
            for item in value.values():
                yield from _floating(item)
        case list() | tuple():
            for item in value:
                yield from _floating(item)
