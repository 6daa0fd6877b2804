"""The round loop: sample, ask, aggregate, evaluate, record, save. It knows nothing of where clients run.

Rounds are numbered t = 1 .. R; round 0 is the untrained encoder, or the one of ``model.start``. Every run evaluates it,
because a high number alone proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.messages import ClientError, Diverged, RoundVoid, copy_views
from rayfed_ssl.federated.results import PIXELS, ClientMatrix, EvaluatedEncoder
from rayfed_ssl.federated.sampling import named
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.server_steps import optimised_round
from rayfed_ssl.simulation.export import export_encoders
from rayfed_ssl.simulation.opening import Connect, OpenRun
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.resuming import evaluated
from rayfed_ssl.simulation.saving import without_public_images
from rayfed_ssl.simulation.shared_encoders import SharedEncoders
from rayfed_ssl.simulation.shown_means import ShownMeans
from rayfed_ssl.storage import failure
from rayfed_ssl.storage.checkpoint import refuse_unstorable


class RunLoop(OpenRun):
    """The rounds of a run. :func:`run` opens, drives and closes it."""

    def __init__(
        self, config: RunConfig, folder: Path, connect: Connect, resume: bool, report: Callable[[Progress], None]
    ) -> None:
        super().__init__(config, folder, connect, resume, report)
        self.done = self.start  # the round finished last
        self.shared, self.shown = SharedEncoders(self.config), ShownMeans()
        self.checked_kept = False  # whether a client's own encoder was looked for

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
        states = [self.server.state, *(plugin.state for plugin in self.plugins.values())]
        copy_views(*states, published=self.cohort.published)
        for name, state in zip([self.config.method.name, *self.plugins], states, strict=True):
            refuse_unstorable(state, f"{name}: self.state")
        seconds = time.perf_counter() - started_at
        with self.writing(f"the records of round {t}"):
            values = self.recorder.round(t, self.cohort, self.server, seconds, void=bool(void_reason))
        self.done = t
        self.report(Progress(t, self.rounds, line, values, void_reason))
        with self.writing(f"the records of round {t}"):
            self.recorder.draw()

    def sample(self, t: int) -> tuple[int, ...]:
        """The clients of round t: a uniform draw without replacement of participation.fraction of them, at least one.
        With a clock, they are drawn from those that can be reached; raises RoundVoid if none can. A server with a draw
        of its own (``asked``) decides in both cases.
        """
        asked = named(self.server.asked(t), self.server.setup.clients, f"{self.config.method.name}: asked({t})")
        if self.clock is None:
            return asked
        own = type(self.server).asked is not MethodServer.asked
        return self.clock.select(t, self.server.wanted(t), asked if own else None)

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
            self.refuse_unkept(encoders)
            self.cohort.evaluate(t, self.shared.distinct(t, encoders))

    def refuse_unkept(self, encoders: Iterable[EvaluatedEncoder]) -> None:
        """Raise RuntimeError if a client's own encoder is to be evaluated, the client has trained in this round, and it
        kept no model: its initial values would be measured. One client is looked at, because all run the same code.
        """
        own = (one.client for one in encoders if one.weights is None and one.client in self.cohort.metrics)
        client = next(own, None)
        if client is None or self.checked_kept or "loss" not in self.cohort.metrics[client]:
            return
        self.checked_kept = True
        if "model" not in dict(self.cohort.states([client])).get(client, {}):
            raise RuntimeError(
                f"{self.config.method.name}: the own encoder of client {client} is to be evaluated, and it trained and "
                "kept none; its function that trains calls self.keep_own()"
            )

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
