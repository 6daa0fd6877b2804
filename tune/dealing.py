"""Checks, before the first run starts, that the images suit all runs of a sweep or of a comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.models import StartConfig, pinned
from rayfed_ssl.simulation.assembly import rehearse
from rayfed_ssl.simulation.checks import check_run


def refusals(configs: Sequence[RunConfig]) -> dict[int, str]:
    """The errors for which each run would be refused before its first round, by its position in ``configs``, except
    what concerns its folder and its machine. Images are dealt once for all runs with the same split, and released
    before the next.
    """
    same_split: dict[str, list[int]] = {}
    for place, config in enumerate(configs):
        same_split.setdefault(_partition_key(config), []).append(place)
    refused: dict[int, str] = {}
    starts: dict[StartConfig, StartConfig] = {}
    for places in same_split.values():
        federation: Federation | None = None
        for place in places:
            config = configs[place]
            try:
                federation = federation or load_federation(config)
                check_run(config, federation)
                if config.model.start is not None or config.system is not None:
                    rehearse(_pinned(config, starts), federation)
            except UserError as error:
                refused[place] = str(error)
                if federation is None:  # the images cannot be dealt: all runs with this split are refused
                    refused |= dict.fromkeys(places, str(error))
                    break
    return refused


def _partition_key(config: RunConfig) -> str:
    """The settings of a run that decide which client holds which images, as text."""
    blocks = config.model_dump(mode="json", include={"data", "clients", "seed", "evaluation"})
    return json.dumps([blocks, config.uses_public], sort_keys=True)


def _pinned(config: RunConfig, known: dict[StartConfig, StartConfig]) -> RunConfig:
    """The configuration with the digest of the file that ``model.start`` names; each digest is read once and kept in
    ``known``.
    """
    start = config.model.start
    if start is None:
        return config
    if start not in known:
        known[start] = pinned(start)
    return config.model_copy(update={"model": config.model.model_copy(update={"start": known[start]})})
