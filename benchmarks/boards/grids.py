"""How well a method's settings can be chosen without labels: whether effective rank orders the values of its grid as
accuracy on held-out images does, and how much accuracy is lost by choosing by it, as Garrido et al. 2023 do.

A method's grid on a data set is a group: its runs share everything except the keys that the grid tunes. Losses are left
out, because a temperature changes their scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from boards.markdown import head
from boards.prediction import Group, interval, tau
from boards.tuning import FEATURES, Line
from rayfed_ssl.base.text import bounds, signed

LEAST = 3  # a grid with fewer runs is left out, and with fewer grids nothing is shown
MEASURES = {"knn": "kNN", "linear": "linear"}
HIGHER = {"early_effective_rank": 1.0, "effective_rank": 1.0, "early_uniformity": -1.0, "uniformity": -1.0}
Grid = list[Line]


def grids(lines: Sequence[Line]) -> dict[tuple[str, str], Grid]:
    """(data set, method) -> the complete runs of its grid whose features were kept, each once."""
    found: dict[tuple[str, str], dict[str, Line]] = {}
    for line in lines:
        known = line.get("features") or {}
        if line["score"] is not None and all(known.get(name) is not None for name in FEATURES):
            found.setdefault((line["data"], line["method"]), {})[line["settings"]] = line
    return {of: list(runs.values()) for of, runs in sorted(found.items()) if len(runs) >= LEAST}


def lost(grid: Grid, measure: str, by: str | None) -> float:
    """The grid's best held-out accuracy minus that of the setting with the best ``by``: a feature, a measure, or None
    for a random setting.
    """
    values = [float(line["scores"][measure]) for line in grid]
    if by is None:
        return max(values) - math.fsum(values) / len(values)
    return max(values) - values[int(np.argmax([_ranked_by(line, by) for line in grid]))]


def _ranked_by(line: Line, by: str) -> float:
    """The value by which settings are chosen; the highest wins."""
    return HIGHER[by] * float(line["features"][by]) if by in HIGHER else float(line["scores"][by])


def groups(found: Mapping[tuple[str, str], Grid], feature: str, measure: str) -> list[Group]:
    """A group for each grid: the feature, the accuracy, and the method, by which runs are resampled together."""
    return [
        Group(
            np.array([float(line["features"][feature]) for line in grid]),
            np.array([float(line["scores"][measure]) for line in grid]),
            np.array([method] * len(grid)),
        )
        for (_, method), grid in found.items()
    ]


def table(lines: Sequence[Line]) -> str:
    """A row in Markdown for each way to choose."""
    found = grids(lines)
    if len(found) < LEAST:
        return f"Shown from {LEAST} grids on; not run yet."
    words = {
        "early_effective_rank": "effective rank after two of ten rounds",
        "effective_rank": "effective rank at the end",
        "early_uniformity": "uniformity after two of ten rounds (lower is more uniform)",
        "uniformity": "uniformity at the end",
    }
    heads = ["chosen by", *(f"tau with held-out {name} [95%]" for name in MEASURES.values())]
    heads += [f"{name} lost: mean (most)" for name in MEASURES.values()]
    made = head(heads)
    for feature in FEATURES:
        taus = [_tau(groups(found, feature, measure)) for measure in MEASURES]
        made.append(f"| {words[feature]} | {' | '.join([*taus, *_losses(found, feature)])} |")
    for measure, name in MEASURES.items():
        made.append(f"| held-out {name}, by labels | - | - | {' | '.join(_losses(found, measure))} |")
    made.append(f"| a setting at random | - | - | {' | '.join(_losses(found, None))} |")
    runs = sum(map(len, found.values()))
    methods = ", ".join(f"`{method}`" for _, method in found)
    return "\n".join([*made, "", f"{runs} runs in {len(found)} grids: {methods}."])


def _tau(of: Sequence[Group]) -> str:
    """Kendall's tau with its interval."""
    return f"{signed(tau(of), '.2f')} {bounds(*interval(of), 2)}"


def _losses(found: Mapping[tuple[str, str], Grid], by: str | None) -> list[str]:
    """The accuracy lost, by each measure: the mean over grids, and the largest."""
    each = [[lost(grid, measure, by) for grid in found.values()] for measure in MEASURES]
    return [f"{fmean(losses):.3f} ({max(losses):.3f})" for losses in each]
