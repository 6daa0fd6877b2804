"""Large values of clients' replies: they stay in the object store until the server reads them. Where it passes them on
to heavy work of its own, they go there from where they lie; what it sends on to clients is read once, to be booked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ObjectLostError

from actors.client import Left
from actors.failures import StateLost
from actors.store import nbytes
from rayfed_ssl.federated.messages import Outcome, Unread


class Source:
    """The return value in which a call left what is large in its replies. Mapped once, by whoever reads first."""

    def __init__(self, ref: Any) -> None:
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
class Lying(Unread):
    """A value of a reply that lies in the store."""

    source: Source
    key: tuple[int, str]
    nbytes: int
    replies: Replies

    def read(self) -> Any:
        """Raises StateLost where the node died on which it lay."""
        value = self.source.values[self.key]
        if self.key not in self.source.read:
            self.source.read.add(self.key)
            self.replies.read_bytes += self.nbytes
        return value


class Replies:
    """Where the large values of replies lie, how many bytes of them this process has read, and how many came anyway."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self.within_bytes = 0  # of small values, which come with the call

    def lying(self, outcomes: Sequence[Outcome], ref: Any) -> list[Outcome]:
        """The outcomes of a call, with what it left where ``ref`` says."""
        source = Source(ref)

        def found(value: Any) -> Any:
            return Lying(source, value.key, value.nbytes, self) if isinstance(value, Left) else value

        return [replace(o, reply={name: found(value) for name, value in o.reply.items()}) for o in outcomes]

    def came(self, outcomes: Sequence[Outcome]) -> None:
        """Count what came with a call's outcomes."""
        values = (value for outcome in outcomes for value in outcome.reply.values())
        self.within_bytes += sum(nbytes(value) for value in values if not isinstance(value, Left))
