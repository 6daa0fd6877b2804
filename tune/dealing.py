"""Whether the images allow the runs of a sweep or of a comparison, before the first one starts."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation, deal
from rayfed_ssl.simulation.assembly import rehearse
from rayfed_ssl.simulation.checks import check_run, with_start


def refusals(configs: Sequence[RunConfig]) -> dict[int, str]:
    """What each run would be refused for before its first round, by its place in ``configs``, but for what concerns its
    folder and its machine. Images are dealt once for all runs that are dealt alike, and let go of before the next.
    """
    alike: dict[str, list[int]] = {}
    for place, config in enumerate(configs):
        alike.setdefault(_dealt_by(config), []).append(place)
    found: dict[int, str] = {}
    for places in alike.values():
        federation: Federation | None = None
        for place in places:
            try:
                federation = federation or deal(configs[place])
                _check(configs[place], federation)
            except UserError as error:
                found[place] = str(error)
                if federation is None:  # so it is for all of them
                    found |= dict.fromkeys(places, str(error))
                    break
    return found


def _dealt_by(config: RunConfig) -> str:
    """All that decides who holds which images."""
    by = config.model_dump(mode="json", include={"data", "clients", "seed", "evaluation"})
    return json.dumps([by, config.uses_public], sort_keys=True)


def _check(config: RunConfig, federation: Federation) -> None:
    check_run(config, federation)
    if config.model.start is not None or config.system is not None:
        rehearse(with_start(config), federation)
