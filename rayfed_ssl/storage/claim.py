"""Lets only one process at a time write to the folder of a run, a sweep or a comparison."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rayfed_ssl.base.files import write_json
from rayfed_ssl.base.lock import Held, Lock, is_held
from rayfed_ssl.base.schema import UserError

LOCK = ".lock"
REWRITING_S = 60.0  # far longer than it takes to write a file
DRAFT = re.compile(  # of a file that is put in place when it is whole
    r"\.(config\.yaml\.\d+|((summary|environment|environment-\d+|evaluation|leak)\.json|(partition|images)\.parquet))\.tmp|\.probe-\d+"
)


def refuse_taken(folder: Path, resume: bool) -> None:
    """Raise UserError where a run is in the folder and ``resume`` is not set."""
    if (folder / "config.yaml").exists() and not resume:
        raise UserError(f"--out: {folder} already holds a run; add --resume to continue it, or name another folder")


def refuse_busy(folder: Path) -> None:
    """Raise UserError where a process of this machine writes in the folder now."""
    path = folder / LOCK
    if is_held(path):
        owner = "owner unknown"
        with suppress(OSError):
            owner = path.read_text(errors="replace").strip() or owner
        raise _busy(folder, owner)


class Claim:
    """A run folder that this process alone writes to until :meth:`close`; see :class:`Lock` for how far that reaches.

    Until ``settled`` is set, closing removes what came into a folder that held no run, and the folder itself if it was
    made: a run that could not begin leaves nothing behind. Not so where there is no lock: it may be another run's.

    Raises:
        UserError: another run is writing there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.settled = folder, False
        self._made = [path for path in (folder, *folder.parents) if not path.exists()]
        self._lock = lock_of(folder, folder / LOCK)
        if not self.why_not_locked:
            self._remove_drafts()
        self._before = _names(folder)

    @property
    def clears(self) -> bool:
        """Whether closing removes what was written."""
        return not self.settled and not self.why_not_locked and "config.yaml" not in self._before

    @property
    def why_not_locked(self) -> str:
        """Why nothing keeps a second run out; empty where it is kept out."""
        return self._lock.why_not

    def _remove_drafts(self) -> None:
        """Remove what a killed process was writing: with the lock held it is nobody's."""
        for name in _names(self.folder):
            if DRAFT.fullmatch(name):
                with suppress(OSError):
                    (self.folder / name).unlink()

    def close(self) -> None:
        if self.clears:
            for name in _names(self.folder) - self._before - {LOCK}:
                path = self.folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with suppress(OSError):
                        path.unlink()
        self._lock.release()
        if not self.settled:
            for path in self._made:
                with suppress(OSError):  # not empty, or gone
                    path.rmdir()


@contextmanager
def claimed(folder: Path) -> Iterator[str]:
    """The folder of a sweep or a comparison, which this process alone works in: why not, or nothing. The runs in there
    have claims of their own. Where nothing was written, folders that were not there before are not there afterwards.

    Raises:
        UserError: another command works there.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = lock_of(folder, folder.absolute() / LOCK)
    try:
        yield lock.why_not
    finally:
        lock.release()
        for path in made:
            with suppress(OSError):  # not empty, or gone
                path.rmdir()


@contextmanager
def rewriting(path: Path) -> Iterator[Callable[[Mapping[str, object]], None]]:
    """While a JSON file of a run folder that several commands may write is read, changed and written, by what this
    gives: one of a machine at a time does so. The folder is not made again where it is gone.

    One at a time does so in a folder that they share, as far as :class:`Lock` reaches. Of a run at a URI each command
    has a copy, which no lock of another guards.

    Raises:
        UserError: after a minute another command still has it, the run is gone, or it cannot be written there.
    """
    run = path.parent

    def write(document: Mapping[str, object]) -> None:
        try:
            write_json(path, document, within=run)
        except OSError as error:
            refuse_gone(run, path.name)
            raise UserError(f"{run}: {path.name} cannot be written there ({error.strerror})") from None

    try:
        lock = Lock(path.with_name(f".{path.name}.lock"), patience_s=REWRITING_S, make=False)
    except Held as owner:
        raise UserError(f"{path}: is being written by another command ({owner}); try again when it has ended") from None
    try:
        refuse_gone(run, path.name)
        yield write
    finally:
        lock.release()


def refuse_gone(run: Path, what: str) -> None:
    """Raise UserError where the run whose folder ``what`` belongs in is there no more."""
    if not (run / "config.yaml").exists():
        raise UserError(f"{run}: found no run any more; it was removed or moved meanwhile, and {what} was not written")


def lock_of(folder: Path, path: Path) -> Lock:
    """The lock at ``path``, which stands for ``folder``. Raises UserError where another run has it."""
    try:
        return Lock(path)
    except Held as owner:
        raise _busy(folder, owner) from None


def _busy(folder: Path, owner: object) -> UserError:
    return UserError(
        f"--out: {folder} is being written by another run ({owner}); wait for it, stop it, or name another folder"
    )


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()
