"""Predicts a run's memory, bytes and training time before it is started. Nothing that is written stays, except decoded
images in a cache folder that the user named.

Bytes are those the ledger will book, if the method knows them beforehand and no client is lost. Time is an estimate: a
local step is measured on this machine's device and multiplied, and what clients compute besides steps is added as the
method's ``workload`` says; evaluation, server work and sending are left out.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rayfed_ssl.base.notes import Note, texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import amount, last_line
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.decoding.threads import decoding_told
from rayfed_ssl.data.pixels.store import CACHE, default_cache
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.messages import TRAINS
from rayfed_ssl.federated.plugin import ServerPlugin
from rayfed_ssl.federated.process_context import device_name
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.workload import BOTH_WAYS, Traffic, local_batches
from rayfed_ssl.methods.parts.tasks import TaskConfig
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.simulation.assembly import RunParts, rehearse
from rayfed_ssl.simulation.checks import check_run, describe, image_notes, settings_notes, with_start
from rayfed_ssl.simulation.memory import Estimate, Room, check_fits, estimate, free_memory
from rayfed_ssl.simulation.timing import workloads
from rayfed_ssl.simulation.worker import Worker

STEPS = 2  # measured, after one that warms up ..
LONG_S = 5.0  # .. unless that one took longer
BUSY = 1.5  # a step that takes so many times what a processor worked on it has waited for other work


class StepTime(NamedTuple):
    """How long a local step takes: seconds on the clock, and processor seconds of this process, summed over threads."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Forecast:
    """What is known of a run before it begins. ``notes`` are for people: what is not known, and why."""

    what: str
    kept: Estimate  # of clients between rounds
    free: Room
    images: int  # bytes of pixels
    traffic: Traffic | None  # over the whole run, all clients; None: not known beforehand
    steps: int  # local steps over the whole run
    step_s: float  # seconds of one, the mean over architectures
    step_cpu_s: float  # seconds that processors worked on it
    step_bytes: int  # most memory that this process, or its GPU, has had at a step
    device: str
    threads: int  # of a step's arithmetic
    passes: int | None  # of an image forward through a network beside local steps, over the run; None: not known
    pass_s: float  # seconds of one, as a part of a step
    notes: tuple[str, ...] = ()

    def seconds(self, actors: int) -> float:
        """Seconds of training with this number of clients at a time, each on a device like this one."""
        return (self.steps * self.step_s + (self.passes or 0) * self.pass_s) / actors

    def idle_share(self) -> float | None:
        """The part of a step's seconds in which this process waited, as it does if other work occupies the processors.
        None on a GPU, for which processors wait anyway; with several threads, whose seconds of work overlap; if a step
        took less than ``BUSY`` times their work; and without steps.
        """
        if self.device != "cpu" or self.threads > 1 or not self.step_s or self.step_s < BUSY * self.step_cpu_s:
            return None
        return 1 - self.step_cpu_s / self.step_s


@contextlib.contextmanager
def cache_of_check() -> Iterator[Path]:
    """The cache folder that the user named, in which the run will find the images. Without one it is a temporary
    folder, which shows the content of the usual cache, so that images there are not decoded again.
    """
    if os.environ.get(CACHE):
        yield default_cache()
        return
    with tempfile.TemporaryDirectory(prefix="rayfed-check-") as name:
        folder, real = Path(name), default_cache()
        for known in (*real.glob("*.arrow"), *real.glob("downloads")):
            (folder / known.name).symlink_to(known)
        yield folder


def forecast(config: RunConfig, say: Callable[[str], object] = lambda line: None) -> Forecast:
    """The forecast of the run; ``say`` takes lines while images are decoded. Raises UserError for everything that a run
    would refuse before its first round, except what concerns its folder and the place where it runs.
    """
    config = with_start(config)
    config = _offline(config)
    with cache_of_check() as cache, decoding_told(say):
        federation = load_federation(config, cache)
        check_run(config, federation)
        parts, lines = rehearse(config, federation)
        server = parts.server
        of_settings = settings_notes(config, federation, server)
        notes = list(texts([*image_notes(config, federation), *of_settings, *lines, *_said_by(parts)]))
        if config.system is not None:
            notes.append("bytes and time are those of a run in which no client is late or lost")
        kept, free = estimate(config, federation), free_memory()
        check_fits(config, kept, free, free)
        sent = _traffic(config, federation, server, parts.plugins)
        if sent is None:
            notes.append(f"{config.method.name} does not know its bytes beforehand; rayfed-ssl run counts them")
        device = Worker(config, federation).device
        notes += check_steps_fit(config, federation, _free(device))
        steps, step, pass_s = _steps(config, federation, server)
        passes = _passes(config, parts)
        if passes is None:
            notes.append(
                f"{config.method.name} does not know beforehand what its clients compute beside local steps: the time "
                "is without it"
            )
        train, test = federation.dataset.train.pixels, federation.dataset.test.pixels
        return Forecast(
            describe(config, federation), kept, free, int(train.nbytes + test.nbytes), sent, steps, step.wall_s,
            step.cpu_s, _peak(), device_name(device), config.resources.threads, passes, pass_s, tuple(notes),
        )  # fmt: skip


def _said_by(parts: RunParts) -> Sequence[Note | str]:
    """The notes of the method and its plug-ins, which a run prints before its first round. A third-party method may
    need a state that only ``server.start`` sets; then a note says so.
    """
    try:
        return parts.notes()
    except LookupError:
        return [f"what {parts.server.method.name} has to say is known once a run has started", *parts.plugin_notes()]


def _offline(config: RunConfig) -> RunConfig:
    """The same run, which must not download its images."""
    public = config.data.public
    if public.images is not None:
        images = public.images.model_copy(update={"download": False})
        public = public.model_copy(update={"images": images})
    return config.model_copy(update={"data": config.data.model_copy(update={"download": False, "public": public})})


def _traffic(
    config: RunConfig, federation: Federation, server: MethodServer[Any], plugins: dict[str, ServerPlugin[Any]]
) -> Traffic | None:
    """Bytes of the whole run; None if the method, a plug-in or the schedule does not know them."""
    if _buffered(config):
        return None
    total, met = Traffic(0, 0), set[int]()
    for t in range(config.train.rounds + 1):
        clients = server.asked(t) if t else federation.clients
        for client in clients:
            parts = [server.traffic(t, client, met), *(plugin.traffic(t, client, met) for plugin in plugins.values())]
            for part in parts:
                if part is None:
                    return None
                total += part
        met |= set(clients) if t else set()
    return total


def _steps(config: RunConfig, federation: Federation, server: MethodServer[Any]) -> tuple[int, StepTime, float]:
    """The run's local steps; the time of one, measured for each architecture and weighted by its steps; and the share
    of its seconds on the clock that one image's forward pass takes.
    """
    counts, images = dict[str, int](), 0
    if not server.reaches_clients:  # one trains on everybody's images
        made = local_batches(config, int(federation.sizes.sum()))
        counts[config.clients.encoder(federation.clients[0])] = config.train.rounds * made.steps
        images = config.train.rounds * made.images
    else:
        for t in range(1, config.train.rounds + 1):
            for client in _clients(config, server, t):
                encoder, made = config.clients.encoder(client), server.fit_batches(client)
                counts[encoder] = counts.get(encoder, 0) + made.steps
                images += made.images
    total = sum(counts.values())
    times = {encoder: step_time(config, federation, encoder) for encoder in counts}
    wall_s, cpu_s = (sum(count * times[encoder][i] for encoder, count in counts.items()) for i in range(2))
    forward = BOTH_WAYS * build_objective(config.objective).views * images
    return total, StepTime(wall_s / max(total, 1), cpu_s / max(total, 1)), wall_s / max(forward, 1)


def _clients(config: RunConfig, server: MethodServer[Any], t: int) -> tuple[int, ...]:
    """The clients that round t asks."""
    return server.asked(t)[: config.cohort_size if _buffered(config) else None]


def _passes(config: RunConfig, parts: RunParts) -> int | None:
    """Forward passes of an image in the method's and the plug-ins' workloads besides local steps, over the run: as many
    as they say, and at least one for each image that is read besides those of `fit`. None if a workload is not known.
    """
    server = parts.server
    if not server.reaches_clients:
        return 0
    workload_of, met, total = workloads(server, parts.plugins), set[int](), 0
    known = dict[tuple[str, int], int]()  # as long as the server's state is the same
    for t in range(1, config.train.rounds + 1):
        before = dict(server.state)
        server.rehearse(t)
        if before.keys() != server.state.keys() or any(server.state[name] is not before[name] for name in before):
            known.clear()
        clients = _clients(config, server, t)
        for client in clients:
            for asked in server.operations(t, client, met):
                if (asked, client) not in known:
                    try:
                        work = workload_of(asked, client)
                    except LookupError:  # a method of one's own, whose state only `start` brings
                        work = None
                    if work is None:
                        return None
                    fitted = server.fit_batches(client).images if asked == TRAINS else 0
                    known[asked, client] = max(work.passes, work.images - fitted)
                total += known[asked, client]
        met |= set(clients)
    return total


def _buffered(config: RunConfig) -> bool:
    return config.server.schedule != "sync"


def step_time(config: RunConfig, federation: Federation, encoder: str) -> StepTime:
    """The measured time of one local step: the mean of ``STEPS`` steps of a client with this encoder after one that
    warms up, or only that one if it takes longer than ``LONG_S``.
    """
    able = [client for client in federation.clients if config.clients.encoder(client) == encoder]
    client = max(able, key=lambda one: int(federation.sizes[one]))

    def measured(steps: int) -> StepTime:
        train = config.train.model_copy(update={"local_steps": steps})
        worker = Worker(config.model_copy(update={"train": train}), federation)
        one = worker.client(worker.method.client, client, 1, TRAINS, {})
        one.load_own()
        wall, cpu = time.perf_counter(), time.process_time()
        one.fit()
        return StepTime((time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps)

    first = measured(1)
    return first if first.wall_s > LONG_S else measured(STEPS)


def check_steps_fit(config: RunConfig, federation: Federation, free: Room) -> list[str]:
    """Refuse a batch whose views alone need more memory for the backward pass than there is: trying it could kill this
    process, or others. The check needs only shapes.

    Returns:
        a note for each encoder for which shapes do not tell.
    Raises:
        UserError: naming the batch, what it keeps, and how many images would fit.
    """
    notes, views = [], build_objective(config.objective).views
    for encoder in sorted({config.clients.encoder(client) for client in federation.clients}):
        sizes = [int(federation.sizes[one]) for one in federation.clients if config.clients.encoder(one) == encoder]
        rows = max(local_batches(config, size).size for size in sizes)
        network = InitialWeights(config, federation).network(encoder)
        if any("attention" in type(module).__name__.lower() for module in network.modules()):
            notes.append(
                f"the memory of a step of {encoder} is not known beforehand: its attention decides while it runs"
            )
            continue
        try:
            needed = views * backward_bytes(network, (rows, *_channels_and_sides(config, federation)), config)
        except Exception as error:  # a third-party encoder may need values: its real step reports what is wrong
            notes.append(f"the memory of a step of {encoder} is not known beforehand ({last_line(str(error))})")
            continue
        if needed > free.bytes:
            raise UserError(
                f"{_rows_key(config)}; a local step of {encoder} on {rows} images of "
                f"{config.data.image_size} px keeps {amount(needed)} for its backward pass; {free.name} has "
                f"{amount(free.bytes)}: room for {int(free.bytes * rows / needed)} (or a smaller "
                "data.image_size or clients.encoders)"
            )
    return notes


def _rows_key(config: RunConfig) -> str:
    """What determines how many images a local step takes, and what it does with them."""
    if isinstance(config.method, TaskConfig) and config.method.batch_ratio is not None:
        return f"method.batch_ratio: found {config.method.batch_ratio:g}"
    return f"train.batch_size: found {config.train.batch_size}"


def _channels_and_sides(config: RunConfig, federation: Federation) -> tuple[int, int, int]:
    return int(federation.dataset.train.pixels.shape[3]), config.data.image_size, config.data.image_size


def backward_bytes(network: Network, shape: tuple[int, ...], config: RunConfig) -> float:
    """Bytes that one view, images of ``shape`` (B, C, S, S), keeps for the backward pass of encoder and projector,
    counted on tensors that have a shape but no values.
    """
    network = network.to("meta").train()
    with kept_for_backward(network) as kept:
        features = network.represent(torch.empty(shape, device="meta"))
        _ = features if network.projector is None else network.project_features(features)
    return sum(kept.values()) / (2 if config.train.precision == "bfloat16" else 1)


@contextlib.contextmanager
def kept_for_backward(network: torch.nn.Module) -> Iterator[dict[int, int]]:
    """The storages that are kept for a backward pass, and their bytes. The network's parameters, which are in memory
    anyway, are not counted.
    """
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield kept


def _peak() -> int:
    """The most bytes that this process has used: of its GPU if it used one, else of memory."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _free(device: torch.device) -> Room:
    """Bytes that are free on the device."""
    return Room("the GPU", float(torch.cuda.mem_get_info(device)[0])) if device.type == "cuda" else free_memory()
