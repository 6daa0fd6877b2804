"""Opens a run: checks everything that a user can get wrong before the first file is written, builds the run's parts,
gives them their first state or that of a checkpoint, and writes the first files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

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
from rayfed_ssl.federated.messages import ClientError, Diverged, copy_views
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation.assembly import RunParts, assemble
from rayfed_ssl.simulation.checks import check_run, describe, image_notes, settings_notes, with_start
from rayfed_ssl.simulation.last_outcomes import LastOutcomes
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.recorder import Recorder
from rayfed_ssl.simulation.resuming import (
    as_begun,
    began_earlier,
    check_same,
    digests_of,
    examine_folder,
    forget_end,
    has_results,
    nothing_left,
    rounds_in,
)
from rayfed_ssl.simulation.saving import RunState, Saving, published_again
from rayfed_ssl.simulation.timing import clock_notes
from rayfed_ssl.storage import checkpoint
from rayfed_ssl.storage.claim import Claim

Connect = Callable[[RunConfig, Federation, Ledger], Cohort]


class OpenRun:
    """A run that may begin or go on: its folder, its cohort, its server and its records."""

    def __init__(
        self, config: RunConfig, folder: Path, connect: Connect, resume: bool, report: Callable[[Progress], None]
    ) -> None:
        self.config, self.folder, self.report = config, folder, report
        self.rounds = config.train.rounds
        self.start = 0  # the round that it goes on from
        self.ended = 0  # the last round of a run that is resumed, before it was extended
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
        """Open the run, unless ``whole`` says that nothing is left to do."""
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
        self._load_images(same=restored is not None or has_results(folder))
        initial = InitialWeights(config, self.federation)
        start_notes = initial.notes()
        files = digests_of(config)
        parts = self._build(connect, initial)
        if restored is not None:
            self.ended = rounds_in(folder)
            self.start = self.saving.round = self._restore(restored)
        else:
            self._begin()
        notes = self._notes(parts, start_notes)
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

    def _load_images(self, *, same: bool) -> None:
        """Load the images, and check that they suit the run and, with ``same``, that they are those it began with."""
        config, folder = self.config, self.folder
        with began_earlier(config, (folder / "config.yaml").exists()), decoding_told(lambda line: self.say(0, line)):
            self.federation = load_federation(config)
        self.say(0, describe(config, self.federation))
        if same:
            check_same(config, folder, self.federation)
        check_run(config, self.federation)

    def _build(self, connect: Connect, initial: InitialWeights) -> RunParts:
        """Build the server and the parts beside it, and connect to the clients."""
        config = self.config
        self.ledger = Ledger()
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
        return parts

    def _begin(self) -> None:
        """Give a new run the state from before its first round."""
        try:
            self.server.start(self.cohort)
        except Diverged as error:  # nothing was written yet that could say so
            raise UserError(str(error)) from None
        self.cohort.check_read()
        copy_views(self.server.state, published=self.cohort.published)
        self.cohort.commit()

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

    def _notes(self, parts: RunParts, start_notes: Sequence[Note | str]) -> Sequence[Note]:
        """The lines to print and to record before the first round, ``start_notes`` (on what networks begin with) among
        them.
        """
        config, federation = self.config, self.federation
        time_notes = clock_notes(self.clock, config, self.server) if self.clock else []
        of_settings = settings_notes(config, federation, self.server, self.cohort.device)
        return as_notes([*image_notes(config, federation), *of_settings, *start_notes, *parts.notes(), *time_notes])

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

    def _dropped(self, error: ClientError) -> None:
        who = self.federation.called(error.client)
        self.say(error.round, f"{who} dropped in round {error.round} ({error.operation}): {error.reason}")

    def say(self, t: int, line: str, values: dict[str, float] | None = None) -> None:
        """Report a line, and the measured values."""
        self.report(Progress(t, self.rounds, line, values or {}))

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
