"""A connection to Ray: our own instance on this machine, or the cluster that ``RAY_ADDRESS`` names, and no other.

A local instance ends with the command that started it, and is not in its process group. Its sockets are on loopback as
far as Ray allows (``actors/__init__.py``), its token is only in the environment of our processes, and its files,
including sockets, are in a folder that no other user may enter. A cluster is named by RAY_ADDRESS, as ``ray job
submit`` does, or by an address.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import utils

from actors.instance import NotStarted, ending_with, start_instance
from actors.shares import environment
from rayfed_ssl.base.lock import Lock, left_behind
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig

NAMESPACE = "rayfed-ssl"
CONNECT_S = 60.0  # how long a cluster may take to accept us: a wrong token would be tried for ever
FOLDER = "rayfed-ray-"  # an instance's temporary folder begins so
LOCK = ".lock"
INNER = "r"  # Ray opens the folder that it is given to everybody: it gets one within
LONGEST = 40  # letters of the path that Ray is given: a socket's path has at most 107, and Ray appends 66
PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


@dataclass(frozen=True)
class Session:
    """A connection to Ray."""

    local: bool  # whether the instance is ours and ends with us
    node: str  # the id of the node this process is on
    threads: int | None = None  # for how many its processes' environment was made; None: not known


@contextlib.contextmanager
def connect(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    object_store_memory: int | None = None,
    threads: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Session]:
    """Connect, and disconnect at the end. A process that is already connected stays connected.

    Args:
        address: a cluster's address; by default RAY_ADDRESS, and if that is not set, our own instance.
        num_cpus, num_gpus, object_store_memory: what a local instance pretends to have; by default what the machine
            has.
        threads: the number of threads of an actor, for the environment of a local instance's processes; by default each
            actor has to be given its own environment.
        say: gets a line that names the folder with Ray's logs, which is kept after a failure.
    Raises:
        UserError: the cluster does not answer, or refuses our token; there is no place for temporary files; an instance
            does not start.
    """
    if ray.is_initialized():
        yield Session(local=False, node=ray.get_runtime_context().get_node_id())
        return
    address = address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": True, "logging_level": logging.ERROR, "namespace": NAMESPACE}
    if address is not None:
        check_token_path()
        probe(address, CONNECT_S)
        with keeping_sigterm():
            ray.init(address=address, **quiet)
        try:
            yield Session(local=False, node=ray.get_runtime_context().get_node_id())
        finally:
            ray.shutdown()
        return
    pretended = {"num_cpus": num_cpus, "num_gpus": num_gpus, "object_store_memory": object_store_memory}
    given = {name: value for name, value in pretended.items() if value is not None}
    with private_folder(say) as folder, own_token():
        options: dict[str, Any] = {
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": str(folder),
            "_system_config": {"prestart_worker_first_driver": False},  # a process per core that nobody would use
        }
        with keeping_sigterm(), variables({} if threads is None else environment(threads, 1.0)):
            started = start_instance({**options, **given, **quiet}, say)
        try:
            port = int(ray.get_runtime_context().gcs_address.rpartition(":")[2])
            with ending_with(started, port, folder.parent):
                yield Session(local=True, node=ray.get_runtime_context().get_node_id(), threads=threads)
        finally:
            ray.shutdown()


@contextlib.contextmanager
def private_folder(say: Callable[[str], None]) -> Iterator[Path]:
    """A folder for an instance's files that only this user may enter. It is removed at the end, but kept after an error
    that is neither the user's mistake nor their wish. The next process removes what a killed process left.

    Raises:
        UserError: the folder cannot be made.
    """
    parent = Path(tempfile.gettempdir())
    if len(str(parent / FOLDER)) + len("12345678/") + len(INNER) > LONGEST:
        parent = Path("/tmp")
    remove_left_over(parent)
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=parent))
    except OSError as error:
        raise UserError(
            f"TMPDIR: cannot make a folder in {parent} ({error.strerror}); name one you may write to"
        ) from None
    lock = Lock(folder / LOCK)
    kept = False
    try:
        (inner := folder / INNER).mkdir()
        yield inner
    except BaseException as end:
        wanted = isinstance(end, UserError | KeyboardInterrupt | SystemExit | GeneratorExit)
        if kept := not wanted or isinstance(end, NotStarted):
            say(f"Ray's logs are kept in {folder}")
        raise
    finally:
        if kept:
            lock.release()  # without its lock it is nobody's to remove
        else:
            for _ in range(20):  # Ray's helpers may still be writing
                shutil.rmtree(folder, ignore_errors=True)
                if not folder.exists():
                    break
                time.sleep(0.1)
            lock.release()


def remove_left_over(parent: Path) -> None:
    """Remove folders of instances in ``parent`` whose processes, of this user and host, were killed."""
    for path in parent.glob(f"{FOLDER}*/{LOCK}"):
        with left_behind(path) as ours:
            if ours and not path.parent.is_symlink():
                shutil.rmtree(path.parent, ignore_errors=True)


@contextlib.contextmanager
def own_token() -> Iterator[None]:
    """Make the instance that is started now require a token, whatever the shell's variables say. Our processes have it
    in their environment: no file is needed, and none is written.
    """
    said = os.environ.pop("RAY_AUTH_MODE", None)  # Ray then turns authentication on
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # one a process: Ray reads it once
    try:
        yield
    finally:
        if said is not None:
            os.environ["RAY_AUTH_MODE"] = said


@contextlib.contextmanager
def variables(given: dict[str, str]) -> Iterator[None]:
    """A context in which started processes get these variables; afterwards this process has its old ones."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def keeping_sigterm() -> Iterator[None]:
    """Keep our handler of SIGTERM. Ray replaces it before it connects, to end at once with its own status, and its C++
    code does so again later.
    """
    before, taken = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = taken
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def check_token_path() -> None:
    """Raise UserError if RAY_AUTH_TOKEN_PATH names something that is not a file, and no token is given otherwise."""
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if path and "RAY_AUTH_TOKEN" not in os.environ and not Path(path).is_file():
        kind = "a folder" if Path(path).is_dir() else "no file"
        raise UserError(f"RAY_AUTH_TOKEN_PATH: found {path}, which is {kind}; allowed: a file that holds the token")


def probe(address: str, timeout_s: float) -> None:
    """Try the address in a separate process, because Ray's attempt cannot be interrupted. Raises UserError."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=min(timeout_s, 10.0)).close()
        except OSError as error:
            raise UserError(
                f"RAY_ADDRESS: found {address}; {error.strerror or error}; unset it to run on this machine"
            ) from None
    try:
        subprocess.run(
            [sys.executable, "-c", PROBE, address], timeout=timeout_s, check=True, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer within {timeout_s:g} s (is it running, and RAY_AUTH_TOKEN the cluster's?)"
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["it could not be reached"])[-1]
    else:
        return
    raise UserError(f"RAY_ADDRESS: found {address}; {reason}; unset it to run on this machine")


def cluster_address(what: str, address: str | None = None) -> str:
    """The given address, or RAY_ADDRESS. Raises UserError without either, because our own instance ends with its
    command.
    """
    if found := address or os.environ.get("RAY_ADDRESS"):
        return found
    raise UserError(
        f"RAY_ADDRESS: not set, and {what} needs a cluster that stays; allowed: auto (on a node of a cluster that "
        "`ray start --head` made), or HOST:6379"
    )


def in_job() -> bool:
    """Whether this process was started by ``ray job submit``: its working directory is a temporary folder."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def check_paths(config: RunConfig, folder: Path) -> None:
    """Refuse paths relative to a job's temporary working directory. Raises UserError."""
    for key, path in {"--out": folder, **config.files()}.items():
        if not path.is_absolute():
            raise UserError(
                f"{key}: found {path}; a job's working directory is a temporary folder: give an absolute path "
                "(--out also takes a URI)"
            )
