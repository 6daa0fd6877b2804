"""Lets only one process at a time write to the folder of a run, a sweep or a comparison, and checks that it can be
written to.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rayfed_ssl.base.files import write_json
from rayfed_ssl.base.folders import within
from rayfed_ssl.base.lock import Held, Lock, is_held
from rayfed_ssl.base.schema import UserError

LOCK = ".lock"
REWRITING_S = 60.0  # far longer than it takes to write a file
PROBE = os.urandom(64 << 10)  # random bytes, because file systems compress zeros
DRAFT = re.compile(  # names of the temporary files of ``replace_file``, and of the probes of ``writable``
    r"\.(config\.yaml\.\d+|((summary|environment|environment-\d+|evaluation|leak)\.json|(partition|images)\.parquet))\.tmp|\.probe-\d+"
)


def writable(folder: Path) -> None:
    """Raise UserError if nothing can be written into the folder, or if it is missing and cannot be created. Writing 64
    KB shows a full disk or an exhausted quota, too. Leaves nothing behind.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    probe = folder / f".probe-{os.getpid()}"

    def write() -> None:
        with probe.open("wb") as file:
            file.write(PROBE)
            file.flush()
            os.fsync(file.fileno())

    try:
        within(folder, write)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"--out: cannot write to {folder} ({why}); name a folder you may write to") from None
    finally:
        with suppress(OSError):
            probe.unlink()
        for path in missing:
            with suppress(OSError):
                path.rmdir()


def refuse_taken(folder: Path, resume: bool) -> None:
    """Raise UserError if the folder holds a run and ``resume`` is not set."""
    if (folder / "config.yaml").exists() and not resume:
        raise UserError(f"--out: {folder} already holds a run; add --resume to continue it, or name another folder")


def refuse_busy(folder: Path) -> None:
    """Raise UserError if a process of this machine is writing to the folder."""
    path = folder / LOCK
    if is_held(path):
        owner = "owner unknown"
        with suppress(OSError):
            owner = path.read_text(errors="replace").strip() or owner
        raise _busy(folder, owner)


class Claim:
    """A run folder that only this process writes to until :meth:`close`. :class:`Lock` says which processes this
    excludes.

    If ``begun`` is not set, the run could not begin, and closing leaves nothing behind: it removes the files that
    were added to a folder without a run, and the folder if it was created here. Files are not removed if there is no
    lock, because another run may have written them.

    Raises:
        UserError: another run is writing there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.begun = folder, False
        self._made = [path for path in (folder, *folder.parents) if not path.exists()]
        self._lock = lock_of(folder, folder / LOCK)
        if not self.why_not_locked:
            self._remove_drafts()
        self._before = _names(folder)

    @property
    def clears(self) -> bool:
        """Whether closing removes the files that were added."""
        return not self.begun and not self.why_not_locked and "config.yaml" not in self._before

    @property
    def why_not_locked(self) -> str:
        """Why there is no lock that excludes a second run; empty if there is one."""
        return self._lock.why_not

    def _remove_drafts(self) -> None:
        """Remove the temporary files of killed processes. While the lock is held, no living process writes any."""
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
        if not self.begun:
            for path in self._made:
                with suppress(OSError):  # not empty, or gone
                    path.rmdir()


@contextmanager
def claimed(folder: Path) -> Iterator[str]:
    """Locks the folder of a sweep or a comparison within this context. Yields why there is no lock, or an empty text.
    The runs in the folder have claims of their own. Folders that were created here and are empty are removed.

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
    """Locks a JSON file of a run folder that several commands may read, change and write. Yields the function that
    writes it. A run folder that was removed is not created again.

    :class:`Lock` says which processes this excludes. Each command has its own copy of a run at a URI, so there the lock
    excludes nobody.

    Raises:
        UserError: another command still holds the lock after a minute, the run is gone, or the file cannot be written.
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
    """Raise UserError if the run is gone to whose folder the file ``what`` was to be written."""
    if not (run / "config.yaml").exists():
        raise UserError(f"{run}: found no run any more; it was removed or moved meanwhile, and {what} was not written")


def lock_of(folder: Path, path: Path) -> Lock:
    """The lock at ``path``, which stands for ``folder``. Raises UserError if another run holds it."""
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
