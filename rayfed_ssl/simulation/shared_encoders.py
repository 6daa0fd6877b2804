"""Evaluates encoders only once that several clients hold with the same bits, such as FedDF's of one architecture.

The library's own protocols depend on nothing but the encoder: the seeds of everything random in them contain no client.
Third-party protocols, and methods that evaluate in their own way, are asked for every client.

A global encoder beside clients' own encoders (a student) has no values on clients' own test images: these belong to the
clients' encoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rayfed_ssl.config import RunConfig
from rayfed_ssl.evaluation import EvaluationConfig, of_client
from rayfed_ssl.evaluation.cache import digest, of_this_library
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.messages import SERVER
from rayfed_ssl.federated.results import Evaluated, EvaluatedEncoder
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import ENCODERS


def shareable(config: EvaluationConfig, encoder: str) -> bool:
    """Whether an evaluation of this architecture gives the same result for every client that holds the same values."""
    return of_this_library(config.rows.values()) and ENCODERS.origin(encoder) is None


class SharedEncoders:
    """Says which encoders are evaluated, and for which clients each one's results hold."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        kind = METHODS[config.method.name].client
        self._as_ours = kind.evaluate is EncoderClient.evaluate and kind.classes is EncoderClient.classes
        self._places: dict[tuple[int, int | None], int] = {}  # of round and client, in the order they were asked for
        self._holders: dict[tuple[int, int | None], tuple[int, ...]] = {}
        self._beside_own: set[int] = set()  # rounds in which clients' own encoders stand beside a global one

    def distinct(self, round: int, encoders: Sequence[EvaluatedEncoder]) -> list[EvaluatedEncoder]:
        """The encoders without those that have exactly the values of an earlier one; their clients become ``holders``
        of that one.
        """
        groups: dict[object, list[EvaluatedEncoder]] = {}
        known: dict[int, str] = {}  # of values that lie in one place: their digest
        if len({encoder.client is None for encoder in encoders}) == 2:
            self._beside_own.add(round)
        for place, encoder in enumerate(encoders):
            self._places[round, encoder.client] = place
            groups.setdefault(self._values(place, encoder, known), []).append(encoder)
        found = []
        for first, *others in groups.values():
            holders = tuple(one.client for one in (first, *others) if one.client is not None) if others else ()
            if holders:
                self._holders[round, first.client] = holders
            found.append(replace(first, holders=holders))
        return found

    def each(self, evaluated: Iterable[Evaluated]) -> Iterator[Evaluated]:
        """The evaluations, repeated for every client that holds the encoder, in the order in which they were
        requested.
        """
        found: list[Evaluated] = []
        for round, client, values in evaluated:
            if holders := self._holders.pop((round, client), ()):
                found += [(round, holder, of_client(values, holder)) for holder in holders]
            elif client is None and round in self._beside_own:
                found.append((round, None, of_client(values, SERVER)))
            else:
                found.append((round, client, values))
        return iter(sorted(found, key=lambda one: (one[0], self._places.pop(one[:2], 0))))

    def _values(self, place: int, encoder: EvaluatedEncoder, known: dict[int, str]) -> object:
        """A key that is equal for encoders of the same values; for an encoder that cannot be shared, its position."""
        weights = encoder.weights
        if weights is None or encoder.client is None or not self._as_ours:
            return place
        if not shareable(self.config.evaluation, encoder.architecture):
            return place
        if id(weights) not in known:
            known[id(weights)] = digest(weights.layout, weights.vector)
        return encoder.architecture, encoder.classes, known[id(weights)]
