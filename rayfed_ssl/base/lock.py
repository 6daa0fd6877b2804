"""An advisory lock on a file. One process of a machine holds it, and the kernel releases it when that process dies."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rayfed_ssl.base.folders import PAUSE_S, TRIES, within

PATIENCE_S = 2.0  # a process that was killed a moment ago may hold its lock a little longer


class Held(Exception):
    """Another process holds the lock. The text is its host and pid."""


class Lock:
    """An advisory lock (flock) on a file that contains the host and pid of its owner. :meth:`release` removes the file.

    The kernel releases the lock when the process dies for any reason; then another process can take it. The lock
    excludes other processes of the same machine. On storage that several hosts share it excludes those of other hosts
    only if the file system passes flock on (NFS does since Linux 2.6.12, Lustre if it is mounted with ``flock``);
    otherwise two hosts can write to one folder. If there is no lock, as on Windows and on file systems without flock,
    ``why_not`` is the reason.

    A missing folder is created, unless ``make`` is False.

    Raises:
        Held: another process still holds the lock after ``patience_s``.
    """

    def __init__(self, path: Path, *, patience_s: float = PATIENCE_S, make: bool = True) -> None:
        self.path, self.why_not = path, ""
        self._descriptor: int | None = None
        try:
            self._descriptor = locked(path, time.monotonic() + patience_s, make=make)
        except (OSError, ImportError) as error:
            self.why_not = getattr(error, "strerror", None) or str(error)
            return
        with suppress(OSError):  # the text only informs readers
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{_owner()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock and remove its file. A second call does nothing."""
        if self._descriptor is not None:
            import fcntl

            with suppress(OSError):
                if is_at(self._descriptor, self.path):
                    self.path.unlink()
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked child may have it open, too
            os.close(self._descriptor)
            self._descriptor = None


def is_held(path: Path) -> bool:
    """Whether a living process of this machine holds the lock at ``path``."""
    try:
        import fcntl

        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except (OSError, ImportError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


@contextmanager
def left_behind(path: Path) -> Iterator[bool]:
    """Yields whether a process of this user and host left the lock file at ``path`` behind when it was killed. The lock
    is held within the context, so that nobody else takes it.
    """
    try:
        descriptor = locked(path, 0.0, create=False)
    except (Held, OSError, ImportError):
        yield False
        return
    try:
        host = os.pread(descriptor, 1000, 0).decode(errors="replace").partition(", pid ")[0]
        yield os.fstat(descriptor).st_uid == os.geteuid() and host == socket.gethostname()
    finally:
        os.close(descriptor)


def locked(path: Path, until: float, *, create: bool = True, make: bool = True) -> int:
    """An open descriptor of the file at ``path`` that holds the lock.

    Args:
        until: how long to try, in ``time.monotonic``.
        create: whether to create a missing file.
        make: whether to create a missing folder for it.
    Raises:
        Held: another process still holds the lock at the time ``until``.
        OSError: the file cannot be opened or locked.
        ImportError: there is no ``fcntl``, as on Windows.
    """
    import fcntl

    gone = 0
    while gone < TRIES:
        descriptor = _opened(path, create, make)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                return descriptor
            held = None  # the file's owner has removed it since: try again with the file that is there now
        except (BlockingIOError, PermissionError):
            held = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "owner unknown"
        except OSError:
            _remove_unowned(descriptor, path)
            os.close(descriptor)
            raise
        os.close(descriptor)
        if held and time.monotonic() >= until:
            raise Held(held)
        gone = 0 if held else gone + 1
        time.sleep(0.1 if held else PAUSE_S)
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))  # an opened file is never found at its path


def _opened(path: Path, create: bool, make: bool) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    if create and make:
        return within(path.parent, lambda: _opened_once(path, flags))
    return _opened_once(path, flags)


def _opened_once(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o644)
    except PermissionError:  # the file of another user's run, which was killed
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def _remove_unowned(descriptor: int, path: Path) -> None:
    """Remove an empty lock file, which was created for a lock that could not be taken."""
    with suppress(OSError):
        if os.fstat(descriptor).st_size == 0 and is_at(descriptor, path):
            path.unlink()


def is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _owner() -> str:
    return f"{socket.gethostname()}, pid {os.getpid()}"
