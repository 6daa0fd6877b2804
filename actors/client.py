"""The actor in which clients run: a warm process with a worker, which keeps nothing of any client.

Everything that a client needs comes in as arguments. Everything that it changes goes out as return values, new states
apart from the rest. What an actor returns belongs to the caller and outlives the actor; values that it put into the
store itself would not.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
import torch

from actors.shares import environment
from actors.store import INLINE_BYTES, nbytes
from actors.wire import ArgRef, ChunkResult, OmittedValue, StateReturn, SumHeader, Work, item
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.aggregation import FixedPointSum
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.messages import Averaging, Chunk, ClientError, OperationResult, State, Task, mapped
from rayfed_ssl.federated.process_context import device_name
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.simulation.worker import ClientInput, Worker, run_chunk

Factory = Callable[[RunConfig, Federation], Worker]
CONTEXT_BYTES = 0.4e9  # a CUDA context and its libraries' workspaces, which the allocator's cap does not count
OUT_OF_MEMORY = re.compile(r"OutOfMemoryError: CUDA out of memory")
ASKED_FOR = re.compile(r"Tried to allocate ([\d.]+) (GiB|MiB|KiB)")
UNITS = {"GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10}


@dataclass(frozen=True)
class ActorInfo:
    """Where an actor runs."""

    actor: int
    pid: int
    node: str
    gpus: tuple[str, ...]
    device: str  # cpu, or the GPU's name
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"actor {self.actor} (pid {self.pid}) on node {self.node[:12]}"


def memory_fraction(share: float, total_bytes: float, reserve_bytes: float = CONTEXT_BYTES) -> float | None:
    """The argument of ``torch.cuda.set_per_process_memory_fraction`` for a share of a GPU; None (share 0, or whole
    GPUs): no cap.

    Raises:
        UserError: the share is smaller than the memory of a CUDA context alone.
    """
    if share <= 0 or share >= 1:
        return None
    fraction = share - reserve_bytes / total_bytes
    if fraction <= 0:
        least = reserve_bytes / total_bytes
        raise UserError(
            f"resources.gpus_per_client: found {share:g}; the CUDA context alone takes {least:.2g} of this GPU "
            f"({total_bytes / 1e9:.1f} GB); allowed: clearly more than that"
        )
    return fraction


def fitting_share(peak_bytes: float, asked_bytes: float, total_bytes: float) -> float:
    """The smallest share of a GPU, in hundredths, that holds the memory in use, the memory asked for, and the
    context.
    """
    needed = (peak_bytes + asked_bytes + CONTEXT_BYTES) / total_bytes
    return -(-round(needed * 1e4) // 100) / 100


@dataclass
class RunningSum:
    """An actor's sum over its calls in one exchange."""

    exchange: str | None
    total: FixedPointSum = field(default_factory=FixedPointSum)
    tags: list[int] = field(default_factory=list)  # the calls it holds


class ClientActor:
    """Runs clients' operations, heavy server work and evaluation. Wrapped with ``ray.remote`` where it is used."""

    def __init__(self, actor: int) -> None:
        self.actor = actor
        self.reopen: Callable[[], Worker]
        self.worker: Worker
        self.info: ActorInfo
        self.sum = RunningSum(None)

    def open(
        self,
        config: RunConfig,
        federation: Federation | None,
        share: float,
        factory: Factory,
        published: Sequence[str],
        *values: Any,
    ) -> ActorInfo:
        """Make the worker. This is not done in ``__init__``, so that errors keep their type on the way to the user.

        Args:
            federation: None if its images are too large for the object store; then they are mapped from the cache.
            share: this actor's part of a GPU.
            published: the names of values published so far; ``values`` are the values themselves.
        """
        context = ray.get_runtime_context()
        cuda = torch.cuda.is_available()
        if cuda and (fraction := memory_fraction(share, torch.cuda.get_device_properties(0).total_memory)) is not None:
            torch.cuda.set_per_process_memory_fraction(fraction)
        images = load_federation(config) if federation is None else federation
        known = dict(zip(published, values, strict=True))

        def reopen() -> Worker:
            worker = factory(config, images)
            worker.published.update(known)
            return worker

        self.known, self.reopen, self.worker = known, reopen, reopen()
        gpus = tuple(context.get_accelerator_ids().get("GPU", ()))
        device = device_name(self.worker.device)
        variables = {name: os.environ.get(name, "") for name in environment(1, 0.0)}
        self.info = ActorInfo(self.actor, os.getpid(), context.get_node_id(), gpus, device, variables)
        return self.info

    def publish(self, name: str, value: Any) -> None:
        self.known[name] = self.worker.published[name] = value

    def chunk(self, work: Work, *values: Any) -> tuple[Any, ...] | ChunkResult:
        """Run the operation for the clients of ``work``.

        Args:
            values: the values that :class:`ArgRef` objects stand for.
        Returns:
            The :class:`ChunkResult`. Then, each only if ``work`` says so: the totals of the running sum, the large
                values of the replies, the new states.
        """

        def fetched(value: Any) -> Any:
            return value.of(values) if isinstance(value, ArgRef) else value

        def filled(fields: Mapping[str, Any]) -> dict[str, Any]:
            """An argument's value may contain further references, to values of earlier replies."""
            return {name: mapped(fetched(value), fetched) for name, value in fields.items()}

        task = Task(work.operation, work.round, filled(work.message), work.starts, work.compare_clients)
        inputs = [
            ClientInput(client, filled(own), None if place is None else place.of(values))
            for client, own, place in zip(work.clients, work.own, work.states, strict=True)
        ]
        running = self._running(work)
        total = None if running is None else running.total
        chunk, new = run_chunk(
            self.worker, task, inputs, averaging=work.averaging, where=self.info.where, running=total
        )  # fmt: skip
        for error in [e for e in chunk.errors if OUT_OF_MEMORY.search(e.trace)]:
            k = work.clients.index(error.client)
            again, (new[k],) = self._alone(task, inputs[k], work.averaging, total)
            chunk = merged(chunk, error, again, work.clients)
        if running is not None:
            running.tags.append(work.tag)
        succeeded = {result.client for result in chunk.results}
        has_state = [  # or had one, and emptied it
            given.client in succeeded and bool(now or given.state) for given, now in zip(inputs, new, strict=True)
        ]
        changed = [state if keep else None for state, keep in zip(new, has_state, strict=True)]
        within, apart, sum_header = changed, list[Any](), None
        if work.hands_over and work.exchange is not None:
            sum_header, totals = self.hand_over(work.exchange)
            apart.append(totals)
        if work.omits:
            chunk.results, omitted = omit_large(chunk.results)
            apart.append(omitted)
        if work.state_return is not StateReturn.WITHIN:
            within = []
            apart += [changed] if work.state_return is StateReturn.TOGETHER else changed
        result = ChunkResult(chunk, has_state, work.state_return, within, sum_header)
        return (result, *apart) if apart else result

    def _running(self, work: Work) -> RunningSum | None:
        """The running sum of the call's exchange; the sum of an earlier exchange is forgotten."""
        if work.averaging is None or work.exchange is None:
            return None
        if self.sum.exchange != work.exchange:
            self.sum = RunningSum(work.exchange)
        return self.sum

    def hand_over(self, exchange: str) -> tuple[SumHeader, dict[str, Any]]:
        """Return what this actor has summed in the exchange since it last handed over: a header and the totals."""
        held, self.sum = self.sum, RunningSum(None)
        if held.exchange != exchange:
            held = RunningSum(exchange)
        held.total.to_host()
        totals, held.total.totals = held.total.totals, {}
        nbytes = sum(array.nbytes for array in totals.values())
        return SumHeader(tuple(held.tags), held.total, nbytes), totals

    def _alone(
        self, task: Task, given: ClientInput, averaging: Averaging | None, total: FixedPointSum | None
    ) -> tuple[Chunk, list[State | None]]:
        """Repeat a client that ran out of GPU memory, after this process has released everything else."""
        del self.worker
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.worker = self.reopen()
        self.worker.on_device.room = 0  # also of images
        chunk, states = run_chunk(
            self.worker, task, [given], averaging=averaging, where=self.info.where, running=total
        )  # fmt: skip
        chunk.errors = [self._with_advice(e) for e in chunk.errors]
        return chunk, states

    def _with_advice(self, error: ClientError) -> ClientError:
        if not OUT_OF_MEMORY.search(error.trace):
            return error
        found = ASKED_FOR.search(error.trace)
        asked = float(found[1]) * UNITS[found[2]] if found else 0.0
        total = torch.cuda.get_device_properties(0).total_memory
        share = fitting_share(torch.cuda.max_memory_allocated(), asked, total)
        advice = f"Alone it failed, too; resources.gpus_per_client of at least {share:g} would have let it get further."
        return ClientError(error.client, error.round, error.operation, error.where, f"{error.trace}\n{advice}")

    def assess(
        self, round: int, encoder: EvaluatedEncoder, weights: Any, state: Any, within: int | None
    ) -> dict[str, float]:
        """Evaluate an encoder. Its weights and its client's state are separate arguments, so that Ray fetches them.

        Args:
            state: the state, or the object of which it is the item ``within``.
        """
        return self.worker.assess(round, replace(encoder, weights=weights), item(state, within))


def omit_large(results: Sequence[OperationResult]) -> tuple[list[OperationResult], dict[tuple[int, str], Any]]:
    """The results with an :class:`OmittedValue` for every large value of their replies, and those values."""
    omitted: dict[tuple[int, str], Any] = {}

    def small(client: int, name: str, value: Any) -> Any:
        if (count := nbytes(value)) <= INLINE_BYTES:
            return value
        omitted[client, name] = value
        return OmittedValue((client, name), count)

    out = [replace(o, reply={name: small(o.client, name, value) for name, value in o.reply.items()}) for o in results]
    return out, omitted


def merged(chunk: Chunk, error: ClientError, again: Chunk, order: Sequence[int]) -> Chunk:
    """``chunk`` with one client's failure replaced by the result of repeating it, in client order."""
    pairs: list[tuple[OperationResult, dict[str, int]]] = [
        *zip(chunk.results, chunk.sizes, strict=True),
        *zip(again.results, again.sizes, strict=True),
    ]
    pairs.sort(key=lambda pair: order.index(pair[0].client))
    total = chunk.total
    if total is not None and again.total is not None and again.total.totals:
        total.merge(again.total)
    errors = [e for e in chunk.errors if e is not error] + again.errors
    return Chunk([result for result, _ in pairs], [sizes for _, sizes in pairs], errors, total)
