"""A connection to Ray: an instance of our own on this machine, or the cluster somebody named, never one met by chance.

A local instance ends with the command that started it. Its token file is made private, its sockets are on loopback as
far as Ray lets us (``actors/__init__.py``). A cluster is named by RAY_ADDRESS, as ``ray job submit`` does, or by an
address.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.partition import FromFile

NAMESPACE = "rayfed-ssl"
CONNECT_S = 60.0
PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


@dataclass(frozen=True)
class Session:
    """``local``: the instance is ours and ends with us. ``node``: the id of the node this process is on."""

    local: bool
    node: str


@contextlib.contextmanager
def connect(
    address: str | None = None,
    *,
    timeout_s: float = CONNECT_S,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    object_store_memory: int | None = None,
) -> Iterator[Session]:
    """Connect, and let go at the end. A process that is connected already stays as it is.

    Args:
        address: of a cluster; by default RAY_ADDRESS, and where that is not set an instance of our own.
        timeout_s: how long a cluster may take to let us in (a wrong token would be tried for ever).
        num_cpus, num_gpus, object_store_memory: what a local instance pretends to have, if not what is there.
    Raises:
        UserError: the cluster does not answer, or refuses our token.
    """
    if ray.is_initialized():
        yield Session(False, ray.get_runtime_context().get_node_id())
        return
    address = address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": True, "logging_level": logging.ERROR, "namespace": NAMESPACE}
    if address is not None:
        probe(address, timeout_s)
        with keeping_sigterm():
            ray.init(address=address, **quiet)
    else:
        pretended = {"num_cpus": num_cpus, "num_gpus": num_gpus, "object_store_memory": object_store_memory}
        given = {name: value for name, value in pretended.items() if value is not None}
        make_private(token_file())
        with keeping_sigterm():
            ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **given, **quiet)
        make_private(token_file())
    try:
        yield Session(address is None, ray.get_runtime_context().get_node_id())
    finally:
        ray.shutdown()


@contextlib.contextmanager
def keeping_sigterm() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it connects, and then ends at once; give it back to whoever had it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def probe(address: str, timeout_s: float) -> None:
    """Try the address in a process of its own, because Ray's attempt cannot be interrupted. Raises UserError."""
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


def token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()


def make_private(path: Path) -> None:
    """Ray writes its token readable by everybody; take that back (only of a file that is ours)."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def cluster_address(address: str | None, what: str) -> str:
    """The address given, or RAY_ADDRESS. Raises UserError where neither is: an own instance ends with its command."""
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
    public, start = config.data.public.images, config.model.start
    paths: dict[str, Path | None] = {"--out": folder, "model.start": start.path if start else None}
    for key, source in (("data", config.data), ("data.public.images", public)):
        if source is not None and source.name != "hub":  # whose path is OWNER/NAME
            paths[f"{key}.path"] = source.path
    if isinstance(config.data.partition, FromFile):
        paths["data.partition.path"] = config.data.partition.path
    if (system := config.system) is not None:
        paths["system.devices"] = system.devices
        paths["system.availability.path"] = getattr(system.availability, "path", None)
    for key, path in paths.items():
        if path is not None and not path.is_absolute():
            raise UserError(
                f"{key}: found {path}; a job's working directory is a temporary folder: give an absolute path "
                "(--out also takes a URI)"
            )
