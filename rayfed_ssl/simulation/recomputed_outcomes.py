"""Computes the outcomes of a finished run from its exported encoders, if the version that ran it did not keep them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.evaluation import Outcomes, settings_of
from rayfed_ssl.evaluation.outcomes import ROUNDING
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.records.outcomes import FILE, outcomes_by_client, write_outcomes
from rayfed_ssl.records.summary_file import known_summary
from rayfed_ssl.records.tables import read_metrics
from rayfed_ssl.storage.claim import refuse_gone


def as_in_the_run(own: RunConfig, config: RunConfig) -> list[str]:
    """The scores that are measured now as they were in the run: by the same protocols with the same settings."""
    alike = [
        name
        for name in config.evaluation.rows
        if name in own.evaluation.rows and settings_of(config.evaluation, name) == settings_of(own.evaluation, name)
    ]
    return [score for name in alike for score in config.evaluation.scores_of(name)]


def add_outcomes(
    run: Path, found: Mapping[int | None, Outcomes], scores: Sequence[str], federation: Federation
) -> None:
    """Add to ``outcomes.parquet`` the ``scores`` that it lacks, if they come out as the run recorded them. Nothing is
    added to a run that did not end with its last round: its encoders may be of a later round than its accuracies.

    Args:
        found: client (None: the global encoder) -> what was measured of its exported encoder.
    Raises:
        UserError: ``outcomes.parquet`` is damaged, or the run is gone or cannot be written to.
    """
    summary = known_summary(run)
    if summary.get("status") != "complete" or not found:
        return
    known = outcomes_by_client(run)
    if known and known.keys() != found.keys():
        return
    there = {score for of in known.values() for score in of.draws}
    recorded = dict(summary.get("accuracy") or {})
    if None in found and len(found) > 1:
        recorded |= _beside_global(run, recorded, int(summary["rounds"]))
    missing = [score for score in scores if score not in there]
    more = [score for score in missing if all(_same(score, c, of, recorded) for c, of in found.items())]
    if not more:
        return
    merged = {}
    for client, of in found.items():
        before = known.get(client, Outcomes({}, {}))
        right = {**before.right, **{score: of.right[score] for score in more}}
        merged[client] = Outcomes(right, {**before.draws, **{score: of.draws[score] for score in more}})
    labels, names = federation.dataset.test.labels, federation.given_names
    try:
        write_outcomes(run, int(summary["rounds"]), merged, labels, names, within=run)
    except OSError as error:
        refuse_gone(run, FILE)
        raise UserError(f"{run}: {FILE} cannot be written there ({error.strerror})") from None


def _beside_global(run: Path, recorded: Mapping[str, Any], round: int) -> dict[str, dict[str | None, Any]]:
    """Score -> client (None: the global encoder) -> value: the global encoder's as in ``summary.json``, which has no
    others beside it, and the clients' as in the metrics of the last ``round``.
    """
    values: dict[str, dict[str | None, Any]] = {score: {None: value} for score, value in recorded.items()}
    for row in read_metrics(run).to_pylist():
        score = re.sub("^eval/", "", row["tag"])
        if row["round"] == round and row["client"] is not None and score in values:
            values[score][str(row["client"])] = row["value"]
    return values


def _same(score: str, client: int | None, of: Outcomes, recorded: Mapping[str, Any]) -> bool:
    """Whether the outcomes of a score agree with the accuracy that the run recorded."""
    value = recorded.get(score)
    value = value.get(None if client is None else str(client)) if isinstance(value, Mapping) else value
    if score not in of.right or not isinstance(value, float | int):
        return False
    return math.isclose(of.share(score), value, rel_tol=0, abs_tol=ROUNDING)
