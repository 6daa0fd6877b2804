"""Large values of clients' replies: they stay in the object store until the server reads them.

Values that the server passes on to its own heavy work go there directly from the store. Values that it sends on to
clients are read once, to be booked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError

from actors.failures import StateLost
from actors.store import nbytes
from actors.wire import OmittedValue
from rayfed_ssl.federated.messages import OperationResult, Unread


class OmittedValues:
    """The return value that holds the large values of a call's replies. It is mapped once, at the first read."""

    def __init__(self, ref: ObjectRef) -> None:
        self.ref = ref
        self.read: set[tuple[int, str]] = set()
        self._values: Mapping[tuple[int, str], Any] | None = None

    @property
    def values(self) -> Mapping[tuple[int, str], Any]:
        if self._values is None:
            try:
                self._values = ray.get(self.ref)
            except ObjectLostError as error:
                raise StateLost(f"replies lost ({type(error).__name__})") from None
        return self._values


@dataclass(eq=False)
class RemoteValue(Unread):
    """A value of a reply that is in the store."""

    source: OmittedValues
    key: tuple[int, str]
    nbytes: int
    replies: Replies

    def read(self) -> Any:
        """Read the value. Raises StateLost if the node that held it died."""
        value = self.source.values[self.key]
        if self.key not in self.source.read:
            self.source.read.add(self.key)
            self.replies.read_bytes += self.nbytes
        return value


class Replies:
    """Counts the bytes of replies that this process receives, and makes large values readable from the store."""

    def __init__(self) -> None:
        self.read_bytes = 0  # of large values, when they are read
        self.within_bytes = 0  # of small values, which come with the call

    def with_remote_values(self, results: Sequence[OperationResult], ref: ObjectRef) -> list[OperationResult]:
        """The results of a call, with a :class:`RemoteValue` for each value that it returned in ``ref``."""
        source = OmittedValues(ref)

        def remote(value: Any) -> Any:
            return RemoteValue(source, value.key, value.nbytes, self) if isinstance(value, OmittedValue) else value

        return [replace(o, reply={name: remote(value) for name, value in o.reply.items()}) for o in results]

    def count(self, results: Sequence[OperationResult]) -> None:
        """Count the bytes that came inside a call's results."""
        values = (value for result in results for value in result.reply.values())
        self.within_bytes += sum(nbytes(value) for value in values if not isinstance(value, OmittedValue))
