"""The round loop: sample, ask, aggregate, evaluate, record, save. It knows nothing of where clients run.

Rounds are numbered t = 1 .. R; round 0 is the untrained encoder, which every run evaluates, because a high number alone
proves nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, result_affecting
from rayfed_ssl.config import load as load_config
from rayfed_ssl.federated.bench import Initial
from rayfed_ssl.federated.clock import RoundVoid, selected
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.fedbuff import FedBuff
from rayfed_ssl.federated.federation import Federation, deal
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.plugin import ServerPlugin
from rayfed_ssl.federated.results import PIXELS
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS, plugin_halves
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation.export import export_encoders
from rayfed_ssl.simulation.recorder import Recorder
from rayfed_ssl.simulation.timing import check_reachable, make_clock
from rayfed_ssl.storage import checkpoint
from rayfed_ssl.storage.claim import Claim

WRITTEN = (  # what a run writes over, or deletes
    "metrics.parquet", "communication.parquet", "partition.parquet", "summary.json", "environment.json", "checkpoints",
    "encoder", "events.out.tfevents.*",
)  # fmt: skip
Connect = Callable[[RunConfig, Federation, Ledger], Cohort]


@dataclass(frozen=True)
class Progress:
    """Something worth a line: what is going on, or a finished round with what was measured."""

    round: int
    rounds: int
    line: str
    values: dict[str, float] = field(default_factory=dict)


class Run:
    """A run in the making: its folder, its cohort, its server. :func:`run` drives it."""

    def __init__(
        self, config: RunConfig, folder: Path, connect: Connect, resume: bool, report: Callable[[Progress], None]
    ):
        self.config, self.folder, self.report = config, folder, report
        self.rounds = config.train.rounds
        self.shown_round = 0  # the round evaluated last, and by client what was measured of it
        self.shown: dict[int | None, dict[str, float]] = {}
        self.start = 0
        self.saved = -1  # the round of the newest checkpoint that is known to be intact
        self.claim = Claim(folder)
        self.leaving = ExitStack()  # what is let go in the end, the last first
        self.leaving.callback(self.claim.close)
        try:
            self._set_up(connect, resume)
        except BaseException:
            self.close()
            raise

    def _set_up(self, connect: Connect, resume: bool) -> None:
        """Everything a user can get wrong comes before the first file."""
        config, folder = self.config, self.folder
        restored = examine_folder(config, folder, resume, lambda line: self.say(0, line))
        if why := self.claim.why_not_locked:
            self.say(0, f"{folder} cannot be locked ({why}): nothing keeps a second run from writing there")
        self.federation = deal(config)
        self.say(0, describe(config, self.federation))
        check_shards(config, self.federation)
        check_labels(config, self.federation)
        if (check := METHODS[config.method.name].check_federation) is not None:
            check(config, self.federation)
        self.ledger = Ledger()
        self.server, self.plugins = self._servers()
        self.clock = make_clock(config, self.federation, self.server, self.plugins)
        self.buffered = FedBuff(self.server, self.clock) if self.clock and config.server.schedule == "fedbuff" else None
        self.cohort = connect(config, self.federation, self.ledger)
        self.leaving.callback(self.cohort.close)
        self.cohort.attach(self.plugins, self.clock)
        if restored is not None:
            self.start = self.saved = self._restore(restored)
        else:
            self.server.start(self.cohort)
            self.cohort.commit()
        notes = self.server.notes() + (check_reachable(self.clock, config) if self.clock else [])
        for line in notes:
            self.say(self.start, line)
        began = None if restored is None else self.start
        with self.writing("what is known before the first round" if began is None else "the resumed run"):
            for name in checkpoint.set_aside(folder / "checkpoints", self.saved):
                self.say(self.start, f"checkpoints/{name}: set aside, so that it hides nothing that is saved from now")
            folder.mkdir(parents=True, exist_ok=True)
            configfile.dump(config, folder / "config.yaml")
            self.recorder = Recorder(config, folder, self.federation, self.cohort.device, began)
            self.leaving.callback(self._close_records)
            if began is None:
                self.recorder.measured(0, self.cohort)  # by what the server trained at the start
            self.recorder.notes(notes)
            self.recorder.communication(self.ledger)  # what was published at the start
        self.claim.settled = True

    def close(self) -> None:
        """Let go of the records, the clients and the folder, whatever state they are in."""
        self.leaving.close()

    def _close_records(self) -> None:
        with suppress(OSError):  # of a full disk, which was said where it mattered: see finish
            self.recorder.close()

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Make what the disk refuses one line: what could not be written, why, and from where the run can go on."""
        try:
            yield
        except OSError as error:
            if error.errno is None or isinstance(error, ConnectionError):  # Ray's, not the disk's
                raise
            if self.saved >= 0:
                left = f"the checkpoint of round {self.saved} is intact: --resume goes on from there"
            elif self.claim.clears:
                left = "nothing is left of this run"
            else:
                left = "there is no checkpoint yet: --resume starts again from round 0"
            raise UserError(
                f"--out: cannot write {what} into {self.folder} ({os.strerror(error.errno)}); {left}"
            ) from error

    def _servers(self) -> tuple[MethodServer[Any], dict[str, ServerPlugin[Any]]]:
        setup = Setup(self.config, self.federation, Initial(self.config, self.federation))
        plugins: dict[str, ServerPlugin[Any]] = {
            p.name: plugin_halves(p.name)[1](p, setup) for p in self.config.active_plugins
        }
        return METHODS[self.config.method.name].server(setup), plugins

    def _restore(self, found: tuple[int, Path]) -> int:
        round, folder = found
        tree, clients = checkpoint.load(folder)
        self.server.state = tree["server"]
        for name, plugin in self.plugins.items():
            plugin.state = tree["plugins"][name]
        self.ledger.restore(tree["ledger"])
        if self.clock is not None:
            self.clock.state = tree["clock"]
        if self.buffered is not None:
            self.buffered.state = tree["schedule"]
        self.cohort.restore(clients)
        for name, value in tree["published"].items():
            self.cohort.publish(name, value)
        self.say(round, f"resumed from round {round} ({folder.name})")
        return round

    # -- one round -----------------------------------------------------------------------------------------------------

    def round(self, t: int) -> None:
        began = time.perf_counter()
        line = f"round {t}/{self.rounds}"
        self.cohort.begin_round(t, ())
        try:
            if self.buffered is not None:
                self.buffered.round(t, self.cohort)
            else:
                self.cohort.clients = self.sample(t)
                self.server.round(t, self.cohort)
        except RoundVoid as void:
            line += f" came to nothing: {void}"
        self.cohort.end_round()
        seconds = time.perf_counter() - began
        with self.writing(f"the records of round {t}"):
            values = self.recorder.round(t, self.cohort, self.server, seconds)
        self.say(t, line, values)

    def sample(self, t: int) -> tuple[int, ...]:
        """The clients of round t: a uniform draw without replacement of participation.fraction of them, at least one;
        of those that the clock says can be reached. Raises RoundVoid where it says that nobody can.
        """
        clients = self.federation.clients
        wanted = len(clients) if self.server.asks_everybody(t) else self.config.participants(len(clients))
        if self.clock is not None:
            return self.clock.select(t, wanted)
        return selected(clients, wanted, self.config.seed, t, "cohort")

    def evaluate(self, t: int) -> None:
        """Start evaluating what this method ends with, beside the next round."""
        if t == 0 and self.config.evaluation.protocols:  # beside the untrained encoders, the raw pixels
            self.cohort.evaluate(0, [PIXELS, *self.server.subjects_before()])
        else:
            self.cohort.evaluate(t, self.server.subjects() if t else self.server.subjects_before())

    def collect(self, *, wait: bool = False) -> None:
        for t, client, values in self.cohort.evaluations(wait=wait):
            with self.writing(f"the evaluation of round {t}"):
                self.recorder.evaluation(t, client, values)
            self._show(t, client, values)

    def _show(self, t: int, client: int | None, values: dict[str, float]) -> None:
        """Report the mean over the clients measured so far in round t; of an earlier round what came in late."""
        if t > self.shown_round:
            self.shown_round, self.shown = t, {}
        known = self.shown if t == self.shown_round else {}
        known[client] = {**known.get(client, {}), **values}
        names = sorted({name for of_client in known.values() for name in of_client})
        means = {f"eval/{name}": float(np.mean([v[name] for v in known.values() if name in v])) for name in names}
        self.say(t, f"evaluated round {t}" if t else "evaluated the untrained encoder", means)

    def save(self, t: int) -> None:
        """A checkpoint of the finished round: records first, then the files, the marker last."""
        self.collect()
        tree = {
            "server": self.server.state,
            "plugins": {name: plugin.state for name, plugin in self.plugins.items()},
            "ledger": self.ledger.state(),
            "published": self.cohort.published,
            "clock": self.clock and self.clock.state,
            "schedule": self.buffered and self.buffered.state,
        }
        root, config = self.folder / "checkpoints", self.config.checkpoint
        with self.writing(f"the checkpoint of round {t}"):
            self.recorder.commit(t)
            checkpoint.save(root, t, tree, self.cohort.states())
        self.saved = t
        checkpoint.prune(root, config.keep, config.keep_every)

    def say(self, t: int, line: str, values: dict[str, float] | None = None) -> None:
        self.report(Progress(t, self.rounds, line, values or {}))

    def finish(self, t: int, status: str) -> dict[str, Any]:
        self.collect(wait=True)
        matrices = self.server.client_matrices()
        for plugin in self.plugins.values():
            matrices |= plugin.client_matrices()
        with self.writing("the results"):
            self.recorder.client_matrices(t, matrices)
            self.recorder.commit(t)
            export_encoders(self.folder, self.config, self.server.subjects(), self.cohort)
            summary = self.recorder.summary(t, status, self.server.privacy())
            self.recorder.close()
        return summary


def run(
    config: RunConfig,
    folder: Path,
    connect: Connect,
    *,
    resume: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
    saved: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run to the last round, or until ``stopping`` says so after a round. Returns the summary that stands in the
    folder; ``saved`` is called after every checkpoint.

    Raises:
        UserError: the configuration asks for something the images or the folder do not allow, or another run writes
            there: nothing is half-written. Or the disk takes no more: the last checkpoint is as it was.
        ClientError: a client failed and ``on_client_error`` is ``fail``.
    """
    this = Run(config, folder, connect, resume, report)
    try:
        every = config.evaluation.every
        t = this.start
        if (t == 0 or due(t, every, this.rounds)) and not this.recorder.evaluated(t):
            this.evaluate(t)
        for t in range(this.start + 1, this.rounds + 1):
            if stopping():
                t -= 1
                break
            this.round(t)
            saves = due(t, config.checkpoint.every, this.rounds)
            if saves:
                this.collect(wait=True)
                this.save(t)
                saved()
            if due(t, every, this.rounds):
                this.evaluate(t)
            this.collect()
        done = t == this.rounds
        if not done and this.saved != t:
            this.collect(wait=True)  # so that a checkpoint holds all of a round's evaluations, or none
            this.save(t)
            saved()
        return this.finish(t, "complete" if done else "stopped")
    finally:
        this.close()


def due(t: int, every: int, last: int) -> bool:
    return t == last or bool(every and t % every == 0)


def examine_folder(
    config: RunConfig, folder: Path, resume: bool, say: Callable[[str], None]
) -> tuple[int, Path] | None:
    """What to resume from: (round, checkpoint), or None for a fresh start. Refuses to write over a run, or over what is
    not one.
    """
    existing = folder / "config.yaml"
    if existing.exists() and not resume:
        raise UserError(f"--out: {folder} already holds a run; add --resume to continue it, or name another folder")
    checkpoint.writable(folder)
    if not existing.exists():
        if theirs := sorted({path.name for pattern in WRITTEN for path in folder.glob(pattern)}):
            raise UserError(
                f"--out: {folder} holds {', '.join(theirs[:3])} and no config.yaml, so it is no run, and a run would "
                "write over that; name another folder"
            )
        return None
    found, damaged = checkpoint.newest(folder / "checkpoints")
    for line in damaged:
        say(f"checkpoint passed over: {line}")
    if found is None:
        say("no complete checkpoint yet: starting from round 0")
    else:
        result_affecting(load_config(existing), config, folder)
    return found


def check_shards(config: RunConfig, federation: Federation) -> None:
    """Refuse shards below what the objective or a plug-in needs; batches are min(batch_size, shard)."""
    smallest = min(federation.clients, key=lambda client: federation.sizes[client])
    size = int(federation.sizes[smallest])
    for reason, least in config.least_batches:
        if size < least:
            raise UserError(
                f"clients.count: client {smallest} has {size} images; {reason} needs batches of at least {least} "
                "(fewer clients, more images, or another data.partition)"
            )


def check_labels(config: RunConfig, federation: Federation) -> None:
    """Refuse an objective, or protocols, that need labels where images have none, before rounds are spent on them."""
    trained = np.concatenate([federation.dataset.train.labels[shard["train"]] for shard in federation.shards])
    if build_objective(config.objective).labelled and (unknown := int((trained < 0).sum())):
        raise UserError(
            f"objective.name: found '{config.objective.name}', but {unknown} of {len(trained)} training images have no "
            "label; allowed without labels: a self-supervised objective"
        )
    for split, images in (("train", federation.dataset.train), ("test", federation.dataset.test)):
        if config.evaluation.protocols and not (images.labels >= 0).any():
            raise UserError(
                f"evaluation.protocols: found {', '.join(config.evaluation.protocols)}, but none of the "
                f"{len(images.labels)} {split} images has a label; allowed without labels: []"
            )
    known = np.unique(federation.dataset.train.labels)
    if "fewshot" in config.evaluation.protocols and (count := int((known >= 0).sum())) < 2:
        raise UserError(
            f"evaluation.protocols: found fewshot, but the training images are of {count} class; it needs 2 or more"
        )


def describe(config: RunConfig, federation: Federation) -> str:
    sizes = federation.sizes[list(federation.clients)]
    spread = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    line = f"{config.method.name} on {federation.dataset.name}: {len(federation.clients)} clients x {spread} images"
    if sizes.min() < config.train.batch_size:
        line += f"; batches of min({config.train.batch_size}, shard)"
    if skipped := federation.dataset.skipped:
        line += f"; {len(skipped)} broken images left out"
    return line
