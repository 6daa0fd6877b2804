"""Ray's processes on this machine: starts them apart from the command, and ends the command if they have ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import ray
from ray._private import services

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.terminal.output import flush, tell
from rayfed_ssl.terminal.signals import status_asked_for

LATE = "timed out during startup"  # in what Ray says after the 30 s that it waits, whatever the machine
SERVERS = ("raylet", "gcs_server")  # without one of these Ray is no more
LOOK_S = 1.0  # between looks at them
ANSWER_S = 5.0  # in which one of them may take a connection
GRACE_S = 10.0  # in which the command may still end by itself
FAILED = 1  # the exit status of a command that ends because Ray did


class NotStarted(UserError):
    """Ray did not start an instance on this machine. Its logs are kept."""


def start_instance(options: dict[str, Any], say: Callable[[str], None]) -> list[subprocess.Popen[bytes]]:
    """Start our own instance of Ray; try again if it took longer than Ray waits, as on a busy machine.

    Returns:
        The instance's processes, without those that they start.
    Raises:
        NotStarted: it does not start.
    """
    try:
        return _started(options)
    except NotStarted as error:
        if LATE not in str(error):
            raise
    say("Ray took longer to start than it waits for itself; it is started once more")
    return _started(options)


def _started(options: dict[str, Any]) -> list[subprocess.Popen[bytes]]:
    with own_sessions() as started:
        try:
            ray.init(address="local", **options)
        except BaseException as error:  # Ray raises plain Exceptions, too
            ray.shutdown()
            for process in started:  # Ray forgets them
                process.kill()
                process.wait()
            if not isinstance(error, Exception):  # a second Ctrl-C
                raise
            why = " ".join(str(error).split()).rstrip(".")
            raise NotStarted(
                f"Ray: no instance starts on this machine ({why}); if it was busy, try again; run and compare need "
                "none with --executor local"
            ) from error
    return started


@contextlib.contextmanager
def own_sessions() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A context in which a Ray that is started puts each of its processes into its own session; yields these processes.
    Ray has no option for this.

    A signal to the command's process group (from a terminal that closes, from ``timeout``) then reaches only the
    command, which ends its round first. On Linux the kernel ends Ray's processes with ours; elsewhere Ray finds them by
    their group, so they stay in it.
    """
    before = services.ConsolePopen
    started: list[subprocess.Popen[bytes]] = []

    def popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(before(*args, start_new_session=sys.platform == "linux", **options))
        return started[-1]

    services.ConsolePopen = popen
    try:
        yield started
    finally:
        services.ConsolePopen = before


@contextlib.contextmanager
def ending_with(processes: Sequence[subprocess.Popen[bytes]], gcs: int, folder: Path) -> Iterator[None]:
    """End this process if Ray's servers end while it needs them: print one line, and remove ``folder``.

    ``gcs`` is the port of one of them: after SIGTERM its process may live for another minute and take no connection.

    Calls into Ray then wait, some of them where no exception reaches them, and after a minute Ray ends the process
    itself, with an error of its own. Servers end where memory has run out, or where every process of a job is sent a
    signal, as systemd and Slurm do.
    """
    servers = {Path(cast(Sequence[str], process.args)[0]).name: process for process in processes}
    over = threading.Event()

    def gone() -> list[str]:
        """The servers that have ended."""
        ended = [name for name in SERVERS if name in servers and servers[name].poll() is not None]
        return ended or (["gcs_server"] if refused(gcs) else [])

    def watch() -> None:
        while not over.wait(LOOK_S):
            if gone() and not over.wait(GRACE_S) and (ended := gone()):
                asked = status_asked_for()
                why = "were ended, too" if asked is not None else f"have ended ({', '.join(ended)}): is memory full?"
                line = f"stopped at once, because Ray's processes {why}; --resume continues what was saved"
                with contextlib.suppress(OSError, ValueError):
                    flush()  # what the caller has printed; nothing else is done at the end of the process
                tell(line)
                for process in processes:
                    process.kill()  # they write into it
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(FAILED if asked is None else asked)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def refused(port: int) -> bool:
    """Whether no process on this machine listens at a port; one that is too busy to answer does listen."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
