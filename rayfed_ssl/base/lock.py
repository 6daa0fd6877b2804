"""An advisory lock on a file: one process of a machine holds it; the kernel releases it when that process dies."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rayfed_ssl.base.folders import PAUSE_S, TRIES, within

PATIENCE_S = 2.0  # for the process that is to follow one that was killed a moment ago


class Held(Exception):
    """Another process holds the lock; the text says which: host and pid."""


class Lock:
    """An advisory lock (flock) on a file that holds the host and pid of its owner, removed by :meth:`release`.

    The kernel releases it when the process dies, however it dies, and the next process can take it. It keeps out the
    processes of one machine. On storage that several hosts share it does so only where the file system passes flock on
    (NFS does since Linux 2.6.12, Lustre where it is mounted with ``flock``): elsewhere two hosts can write to one
    folder. ``why_not`` says why there is no lock, as on Windows and on file systems without flock.

    The folder is made where it is not there, unless ``make`` is False.

    Raises:
        Held: after ``patience_s`` another process still has it.
    """

    def __init__(self, path: Path, *, patience_s: float = PATIENCE_S, make: bool = True) -> None:
        self.path, self.why_not = path, ""
        self._descriptor: int | None = None
        try:
            self._descriptor = locked(path, time.monotonic() + patience_s, make=make)
        except (OSError, ImportError) as error:
            self.why_not = getattr(error, "strerror", None) or str(error)
            return
        with suppress(OSError):  # for a reader only
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{_owner()}\n".encode(), 0)

    def release(self) -> None:
        """Let go; a second time does nothing."""
        if self._descriptor is not None:
            import fcntl

            with suppress(OSError):
                if _is_at(self._descriptor, self.path):
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
    """Whether the lock file at ``path`` is one that a process of this user and host left when it was killed. Its lock
    is held for as long as the caller acts on the answer.
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
    """An open descriptor of the file at ``path`` that has the lock; ``create`` makes the file, ``make`` its folder.

    Raises:
        Held: at the time ``until`` another process has it.
        OSError: it cannot be opened, or not locked. ImportError: Windows.
    """
    import fcntl

    gone = 0
    while gone < TRIES:
        descriptor = _opened(path, create, make)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
            held = None  # its owner has removed it since: on to the next, if there is one
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
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))  # where no file is found at the path it was opened by


def _opened(path: Path, create: bool, make: bool) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    if create and make:
        return within(path.parent, lambda: _opened_once(path, flags))
    return _opened_once(path, flags)


def _opened_once(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o644)
    except PermissionError:  # another user's, from a run that was killed
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def _remove_unowned(descriptor: int, path: Path) -> None:
    """Remove a file that names no owner: one that was made for a lock that there is not."""
    with suppress(OSError):
        if os.fstat(descriptor).st_size == 0 and _is_at(descriptor, path):
            path.unlink()


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _owner() -> str:
    return f"{socket.gethostname()}, pid {os.getpid()}"
