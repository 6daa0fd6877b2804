"""The round loop: sample, ask, aggregate, evaluate, record, save. It knows nothing of where clients run.

Rounds are numbered t = 1 .. R; round 0 is the untrained encoder, or the one of ``model.start``. Every run evaluates it,
because a high number alone proves nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController

from rayfed_ssl import extensions
from rayfed_ssl.base.notes import Note, as_notes
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.decoding.threads import decoding_told
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.fedbuff import FedBuff
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.messages import ClientError, Diverged, RoundVoid, copy_views
from rayfed_ssl.federated.results import PIXELS, ClientMatrix
from rayfed_ssl.federated.server_steps import optimised_round
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation.assembly import assemble
from rayfed_ssl.simulation.checks import (
    check_run,
    coded_weights,
    describe,
    few_steps,
    image_notes,
    no_bfloat16,
    ownership_notes,
    with_start,
    without_effect,
)
from rayfed_ssl.simulation.export import export_encoders
from rayfed_ssl.simulation.last_outcomes import LastOutcomes
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.recorder import Recorder
from rayfed_ssl.simulation.resuming import (
    as_begun,
    began_earlier,
    check_same,
    digests_of,
    evaluated,
    examine_folder,
    forget_end,
    has_results,
    nothing_left,
    rounds_in,
)
from rayfed_ssl.simulation.saving import RunState, Saving, published_again, without_public_images
from rayfed_ssl.simulation.shared_encoders import SharedEncoders
from rayfed_ssl.simulation.shown_means import ShownMeans
from rayfed_ssl.simulation.timing import clock_notes
from rayfed_ssl.storage import checkpoint, failure
from rayfed_ssl.storage.claim import Claim

Connect = Callable[[RunConfig, Federation, Ledger], Cohort]


class RunLoop:
    """A run under way: its folder, its cohort and its server. :func:`run` opens, drives and closes it."""

    def __init__(
        self, config: RunConfig, folder: Path, connect: Connect, resume: bool, report: Callable[[Progress], None]
    ) -> None:
        self.config, self.folder, self.report = config, folder, report
        self.rounds = config.train.rounds
        self.shown = ShownMeans()
        self.start = 0
        self.done = 0  # the round finished last
        self.ended = 0  # the last round of a run that is resumed, before it was extended
        self.shared = SharedEncoders(config)
        self.outcomes = LastOutcomes()
        self.claim = Claim(folder)
        self.exit_stack = ExitStack()  # closed in reverse order at exit
        self.exit_stack.callback(self.claim.close)
        try:
            self._set_up(connect, resume)
        except BaseException:
            self.close()
            raise

    def _set_up(self, connect: Connect, resume: bool) -> None:
        """Check everything that a user can get wrong before the first file is written, and build the run's parts."""
        restored = self._examine(resume)
        config, folder = self.config, self.folder
        self.whole = None if restored is None else nothing_left(config, folder, restored[0])  # its summary
        if self.whole is not None:
            self.say(self.rounds, f"{folder} holds the whole run: nothing is left to do, and it stays as it is")
            return
        self.saving = Saving(config.checkpoint, folder / "checkpoints", config.train.rounds)
        # As in Ray's processes (actors/shares.py): sums of another number of threads have other bits.
        blas = ThreadpoolController().select(user_api="blas")
        self.exit_stack.enter_context(blas.limit(limits=config.resources.threads))
        with began_earlier(config, (folder / "config.yaml").exists()), decoding_told(lambda line: self.say(0, line)):
            self.federation = load_federation(config)
        self.say(0, describe(config, self.federation))
        if restored is not None or has_results(folder):
            check_same(config, folder, self.federation)
        check_run(config, self.federation)
        initial = InitialWeights(config, self.federation)
        start_notes = initial.notes()
        self.ledger = Ledger()
        files = digests_of(config)
        parts = assemble(config, self.federation, initial)
        self.server, self.plugins, self.clock = parts.server, parts.plugins, parts.clock
        self.buffered = FedBuff(self.server, self.clock) if self.clock and config.server.schedule == "fedbuff" else None
        self.cohort = connect(config, self.federation, self.ledger)
        self.exit_stack.callback(self.cohort.close)
        self.cohort.attach(self.plugins, self.clock)
        self.cohort.on_drop = self._dropped
        self.state = RunState(
            self.server,
            self.plugins,
            {
                "ledger": self.ledger,
                "clock": self.clock,
                "schedule": self.buffered,
                "setbacks": self.cohort.failure_policy,
                "outcomes": self.outcomes,
            },
        )
        if restored is not None:
            self.ended = rounds_in(folder)
            self.start = self.saving.round = self.done = self._restore(restored)
        else:
            try:
                self.server.start(self.cohort)
            except Diverged as error:  # nothing was written yet that could say so
                raise UserError(str(error)) from None
            self.cohort.check_read()
            copy_views(self.server.state, published=self.cohort.published)
            self.cohort.commit()
        time_notes = clock_notes(self.clock, config, self.server) if self.clock else []
        run_notes = [*ownership_notes(config, self.federation), *few_steps(config, self.server), *coded_weights(config)]
        run_notes += [*no_bfloat16(config, self.cohort.device), *without_effect(config)]
        own_notes = [*run_notes, *start_notes, *parts.notes(), *time_notes]
        notes = as_notes([*image_notes(config, self.federation), *own_notes])
        for note in notes:
            self.say(self.start, note.text)
        self._open_records(None if restored is None else self.start, files, notes)
        self.claim.begun = True

    def _examine(self, resume: bool) -> tuple[int, Path] | None:
        """What to resume from: (round, checkpoint), or None. Sets the configuration to the one that the run has."""
        self.config = with_start(self.config)
        if resume:
            self.config = as_begun(self.config, self.folder, lambda line: self.say(0, line))
        restored = examine_folder(self.config, self.folder, resume, lambda line: self.say(0, line))
        if why := self.claim.why_not_locked:
            self.say(0, f"{self.folder} cannot be locked ({why}): nothing keeps a second run from writing there")
        return restored

    def _open_records(self, resumed: int | None, files: dict[str, str], notes: Sequence[Note]) -> None:
        """Write the first files: the configuration, and what is known before the first round.

        Args:
            resumed: the round that the run is resumed from; None for a new run.
            files: digests of the files beside the images, by key.
            notes: lines that were printed and are also recorded.
        """
        config, folder, device, last = self.config, self.folder, self.cohort.device, self.outcomes
        with self.writing("what is known before the first round" if resumed is None else "the resumed run"):
            for name in self.saving.set_aside():
                self.say(self.start, f"checkpoints/{name}: set aside, so that it hides nothing that is saved from now")
            folder.mkdir(parents=True, exist_ok=True)
            if resumed is None or self.start < self.rounds:
                for line in forget_end(folder):
                    self.say(self.start, line)
            extensions.save(config.extensions, folder)
            configfile.dump(config, folder / "config.yaml")
            self.recorder = Recorder(
                config, folder, self.federation, device, resumed_from=resumed, files=files, notes=notes, outcomes=last
            )
            self.exit_stack.callback(self._close_records)
            if resumed is None:
                self.recorder.measured(0, self.cohort)  # by what the server trained at the start
            self.recorder.notes(notes)
            if 0 < self.ended < self.rounds:
                self.say(self.start, f"extended from {self.ended} to {self.rounds} rounds")
                self.recorder.configured(self.start)
            self.recorder.communication(self.ledger)  # what was published at the start

    def close(self) -> None:
        """Close the records, the clients and the folder's lock, as far as they were opened."""
        self.exit_stack.close()

    def _close_records(self) -> None:
        with suppress(OSError):  # a full disk: finish has raised it already
            self.recorder.close()

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Turn a disk error into one line: what could not be written, why, and from where the run can go on."""
        try:
            yield
        except OSError as error:
            if error.errno is None or isinstance(error, ConnectionError):  # Ray's, not the disk's
                raise
            if self.saving.round >= 0:
                remaining = f"the checkpoint of round {self.saving.round} is intact: --resume goes on from there"
            elif self.claim.clears:
                remaining = "nothing is left of this run"
            else:
                remaining = "there is no checkpoint yet: --resume starts again from round 0"
            raise UserError(
                f"--out: cannot write {what} into {self.folder} ({os.strerror(error.errno)}); {remaining}"
            ) from error

    def _restore(self, saved: tuple[int, Path]) -> int:
        round, folder = saved
        try:
            tree, clients = checkpoint.load(folder)
            published = self.state.restore(tree, folder / "server.json")
            self.cohort.restore(clients)
        except checkpoint.Damaged as error:
            raise UserError(f"{error}; remove {folder} to go on from an earlier checkpoint, or from round 0") from None
        for name, value in published_again(published, self.federation.public).items():
            self.cohort.publish(name, value)
        self.say(round, f"resumed from round {round} ({folder.name})")
        return round

    # -- rounds --------------------------------------------------------------------------------------------------------

    def drive(self, stopping: Callable[[], bool], saved: Callable[[], None]) -> dict[str, Any]:
        """Run rounds until the last one, or until ``stopping`` says so; returns the summary. Raises what a round
        raises.
        """
        if self.whole is not None:
            return self.whole
        t = self.start
        if (t in (0, self.ended) or self.config.evaluates(t)) and not evaluated(self.config, self.folder, t):
            self.evaluate(t)
        while t < self.rounds and not stopping():
            t += 1
            self.round(t)
            if self.saving.due(t):
                self.save(t)
                saved()
            if self.config.evaluates(t):
                self.evaluate(t)
            self.collect()
        complete = t == self.rounds
        if not complete and self.saving.round != t:
            self.save(t)
            saved()
        return self.finish(t, "complete" if complete else "stopped")

    def round(self, t: int) -> None:
        """Run round t: sample, ask, aggregate, record. A round that comes to nothing is recorded, too."""
        started_at = time.perf_counter()
        line, void_reason = f"round {t}/{self.rounds}", ""
        self.cohort.begin_round(t, ())
        try:
            if self.buffered is not None:
                self.buffered.round(t, self.cohort)
            else:
                self.cohort.clients = self.sample(t)
                optimised_round(self.server, self.config.server.optimizer, t, self.cohort)
        except RoundVoid as error:
            void_reason = f"came to nothing: {error}"
            line += f" {void_reason}"
        except ClientError:
            if self.cohort.every_client_failed:
                self.say(t, self.cohort.failure_policy.reason)
            raise
        if t == self.rounds:
            self.server.after_last_round(self.cohort)
        self.cohort.end_round()
        plugins = (plugin.state for plugin in self.plugins.values())
        copy_views(self.server.state, *plugins, published=self.cohort.published)
        seconds = time.perf_counter() - started_at
        with self.writing(f"the records of round {t}"):
            values = self.recorder.round(t, self.cohort, self.server, seconds, void=bool(void_reason))
        self.done = t
        self.report(Progress(t, self.rounds, line, values, void_reason))
        with self.writing(f"the records of round {t}"):
            self.recorder.draw()

    def sample(self, t: int) -> tuple[int, ...]:
        """The clients of round t: a uniform draw without replacement of participation.fraction of them, at least one.
        With a clock, they are drawn from those that can be reached; raises RoundVoid if none can.
        """
        return self.server.asked(t) if self.clock is None else self.clock.select(t, self.server.wanted(t))

    def evaluate(self, t: int) -> None:
        """Draw the matrices over pairs of clients, and start evaluating the method's encoders while the next round
        runs.
        """
        with self.writing(f"the records of round {t}"):
            self.recorder.client_matrices(t, self.matrices() if t else {}, last=False)
        if t == 0 and self.config.evaluation.on_pixels:  # beside the untrained encoders, the raw pixels
            self.cohort.evaluate(0, [PIXELS, *self.shared.distinct(0, self.server.evaluated_before())])
        else:
            encoders = self.server.evaluated_encoders() if t else self.server.evaluated_before()
            self.cohort.evaluate(t, self.shared.distinct(t, encoders))

    def matrices(self) -> dict[str, ClientMatrix]:
        """The matrices over pairs of clients that the server and the plug-ins have."""
        matrices = self.server.client_matrices()
        for plugin in self.plugins.values():
            matrices |= plugin.client_matrices()
        return matrices

    def collect(self, *, wait: bool = False) -> None:
        """Record and report the evaluations that are finished, or, with ``wait``, all that were started."""
        for t, client, values in self.shared.each(self.cohort.evaluations(wait=wait)):
            with self.writing(f"the evaluation of round {t}"):
                parts = self.recorder.evaluation(t, client, values)
            if means := self.shown.of(t, parts):
                first = "the untrained encoder" if self.config.model.start is None else "the encoder as it started"
                self.say(t, f"evaluated round {t}" if t else f"evaluated {first}", means)

    def save(self, t: int) -> None:
        """Write a checkpoint of the finished round: records first, then the files, the marker last. It holds all of a
        round's evaluations or none.
        """
        self.collect(wait=True)
        tree = self.state.tree(without_public_images(self.cohort.published, self.federation.public))
        with self.writing(f"the checkpoint of round {t}"):
            self.recorder.commit(t)
            self.saving.write(t, tree, self.cohort.states())
        self.saving.prune()

    def _dropped(self, error: ClientError) -> None:
        who = self.federation.called(error.client)
        self.say(error.round, f"{who} dropped in round {error.round} ({error.operation}): {error.reason}")

    def say(self, t: int, line: str, values: dict[str, float] | None = None) -> None:
        """Report a line, and the measured values."""
        self.report(Progress(t, self.rounds, line, values or {}))

    def diverge(self, error: Diverged) -> dict[str, Any]:
        """End a run that diverged: its records up to the last finished round stay, and the summary says why."""
        with suppress(ClientError):  # the same again, of what was still being evaluated
            self.collect(wait=True)
        with self.writing("the results"):
            self.recorder.commit(self.done)
            summary = self.recorder.summary(self.done, "diverged", self.server.privacy(), error)
            self.recorder.close()
        return summary

    def finish(self, t: int, status: str) -> dict[str, Any]:
        """End the run after t rounds: write the last evaluations, the figures, the encoders and the summary."""
        self.collect(wait=True)
        with self.writing("the results"):
            self.recorder.client_matrices(t, self.matrices(), last=True)
            self.recorder.commit(t)
            export_encoders(self.folder, self.config, self.server.evaluated_encoders(), self.cohort)
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
    begun: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run to the last round, or until ``stopping`` says so after a round, or until training diverges. Returns the
    summary that was written into the folder; its ``status`` is complete, stopped or diverged. ``saved`` is called after
    every checkpoint, and ``begun`` once nothing can be refused any more.

    Raises:
        UserError: the configuration asks for something that the images or the folder do not allow, or another run
            writes there: nothing is half-written. Or the disk is full: the last checkpoint is intact.
        ClientError: a client failed and ``on_client_error`` is ``fail``; or it is ``drop``, and all clients failed
            again and again.

    Any other error that ends a run under way is written to its ``error.txt``.
    """
    loop = RunLoop(config, folder, connect, resume, report)
    try:
        failure.clear(folder)
        begun()
        return loop.drive(stopping, saved)
    except Diverged as error:
        return loop.diverge(error)
    except Exception as error:
        if folder.is_dir():  # else it was removed
            failure.keep(folder, error)
        raise
    finally:
        loop.close()
