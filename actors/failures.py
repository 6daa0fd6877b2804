"""The ways in which an actor's call can fail, as exceptions that say what to do about it."""

from __future__ import annotations

from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

DEATHS = (RayActorError, WorkerCrashedError, OutOfMemoryError, NodeDiedError)


class StateLost(RuntimeError):
    """A client's state was on a node that died, or all actors died: the run has to go back to its checkpoint."""


class Crashed(RuntimeError):
    """A call killed its actor again and again, or died with the only actor that could answer it."""


class TimedOut(RuntimeError):
    """A call took longer than ``resources.client_timeout_s``."""


def unwrapped(error: RayTaskError) -> Exception:
    """The exception as it was raised, with the remote traceback as its cause; StateLost if an argument was lost."""
    cause = error.cause
    if isinstance(error, ObjectLostError) or isinstance(cause, ObjectLostError):
        return StateLost(f"state lost, back to the checkpoint: {type(cause).__name__}")
    if not isinstance(cause, Exception):
        return RuntimeError(str(error))
    cause.__cause__ = RemoteTraceback(str(error))
    return cause


class RemoteTraceback(Exception):
    """Shows the traceback of another process when an exception is printed."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
