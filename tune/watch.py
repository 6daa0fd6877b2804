"""Lets the command watch its trials: their logs and ends; passes on a request to stop."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import RayTaskError

from rayfed_ssl.base.text import last_line
from rayfed_ssl.storage import failure
from tune.room import Patience
from tune.search import Proposals
from tune.trial import LOG, STOP

LOOK_S = 1.0  # seconds between looks at what trials log, and at what they wait for


class StoppedBeforePlacement(Exception):
    """A stop was requested while no trial had a place to run."""


class Watch(tune.Callback):  # type: ignore[misc]
    """Passes a request to stop on to the trials, and reports what they log, what they wait for, and why one failed."""

    def __init__(
        self,
        folder: Path,
        proposals: Proposals,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
        patience: Patience | None = None,
    ) -> None:
        self.folder, self.proposals, self.say, self.stopping = folder, proposals, say, stopping
        self.patience = patience
        self.seen = {path: path.stat().st_size for path in folder.glob(f"trial-*/{LOG}")}
        self.told: set[str] = set()
        self.died: set[str] = set()  # trials whose process died
        self.looked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """An empty state: Tune pickles its callbacks for a restore of its own, which is not used here."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if stop := self.stopping():
            (self.folder / STOP).touch()
        if time.monotonic() < self.looked + LOOK_S:
            return
        self.looked = time.monotonic()
        self.read_on()
        if self.patience is not None and not self.patience.look() and stop:
            raise StoppedBeforePlacement

    def read_on(self) -> None:
        """Report what trials wrote into their logs since the last look; a repeated line of a trial is reported once."""
        for path in sorted(self.folder.glob(f"trial-*/{LOG}")):
            if (size := path.stat().st_size) == (seen := self.seen.get(path, 0)):
                continue
            with path.open("rb") as file:
                file.seek(seen)
                new = file.read(size - seen)
            whole = new[: new.rfind(b"\n") + 1]
            self.seen[path] = seen + len(whole)
            lines = [f"{path.parent.name}: {line.partition(' ')[2]}" for line in whole.decode().splitlines()]
            for line in dict.fromkeys(lines):
                if line not in self.told:
                    self.told.add(line)
                    self.say(line)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.read_on()
        folder = self.folder / str(trial)
        if (kept := failure.kept(folder)) is not None:
            reason = f"{kept} ({folder / failure.ERROR})"
        elif (error := _raised(trial)) is not None:  # it could not be written into the folder
            reason = last_line(str(error))
        else:
            reason = "its process died"
            self.died.add(str(trial))
        self.say(f"{trial} failed: {reason}")


def _raised(trial: Any) -> RayTaskError | None:
    """The error that a trial raised; None if its process died."""
    error = None if trial.pickled_error_file is None else pickle.loads(Path(trial.pickled_error_file).read_bytes())
    return error if isinstance(error, RayTaskError) else None


class Population(Watch):
    """Tells the proposals how trials in Tune's own list end: population-based training has no searcher."""

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if trial.trial_id not in self.proposals.running:
            self.proposals.begin(trial.trial_id, self.proposals.book.entries[int(str(trial).removeprefix("trial-"))])

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.proposals.on_trial_result(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.proposals.on_trial_complete(trial.trial_id, trial.last_result)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        super().on_trial_error(iteration, trials, trial)
        self.proposals.on_trial_complete(trial.trial_id, error=True)
