"""The findings of an audit: how well a score of a field in a client's messages tells members from non-members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayfed_ssl.leak.auc import AucEstimate
from rayfed_ssl.records.leaked import UNTRAINED


@dataclass(frozen=True)
class Finding:
    """How well one score of one field in one client's messages tells members from non-members."""

    client: int
    round: int
    field: str
    score: str  # its name
    members: int  # how many there were, with as many non-members
    found: AucEstimate


def summary(findings: Sequence[Finding]) -> dict[tuple[str, str], dict[str, float]]:
    """(field, score) -> the mean, the lowest and the highest of the clients' areas."""
    areas: dict[tuple[str, str], list[float]] = {}
    for one in findings:
        areas.setdefault((one.field, one.score), []).append(one.found.auc)
    return {key: {"mean": float(np.mean(a)), "low": min(a), "high": max(a)} for key, a in areas.items()}


def suspicious(findings: Sequence[Finding]) -> list[Finding]:
    """The findings on the untrained encoder, which cannot know about membership, whose intervals exclude chance."""
    return [f for f in findings if f.field == UNTRAINED and not f.found.low <= 0.5 <= f.found.high]


def as_rows(findings: Sequence[Finding]) -> list[Mapping[str, Any]]:
    """The findings as plain values, for a table or JSON."""
    return [
        {
            "client": one.client, "round": one.round, "field": one.field, "score": one.score, "members": one.members,
            "auc": one.found.auc, "low": one.found.low, "high": one.found.high, "tpr_at_1_percent": one.found.tpr,
        }
        for one in findings
    ]  # fmt: skip
