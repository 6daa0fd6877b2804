"""Whether the leaderboard's budget can answer a question: how far FedSimCLR is above the untrained encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from boards.markdown import NAMES, NOT_RUN, head, number
from boards.pairing import complete, of_table
from boards.rows import ONE, REFERENCE, Record
from rayfed_ssl.base.text import signed
from rayfed_ssl.records.comparison import spread

GAIN, SHARE = 0.08, 0.25  # the least gain of a budget, and the most that seeds may deviate, as a share of the gain


def criterion(gains: Sequence[float]) -> str:
    """Whether the mean gain is at least ``GAIN`` and its deviation over seeds below ``SHARE`` of it; if not, why."""
    found = spread(gains)
    if found is None or found.deviation is None:
        return f"spread {NOT_RUN}"
    if found.mean < GAIN:
        return "gain too small"
    if found.deviation >= SHARE * found.mean:
        return f"spread too large: {found.deviation:.4f} of {SHARE * found.mean:.4f}"
    return "holds"


def confirmed(rows: Sequence[Record], board: Mapping[str, Any]) -> str:
    """FedSimCLR on IID clients against the untrained encoder, seed by seed, with the criterion for the budget."""
    lines = head(("data", "seeds", "measure", "untrained", "FedSimCLR", "gain by seed", "gain", "criterion", "minutes"))
    for data in board["data"]:
        runs = complete(of_table(rows, data, "iid", ONE).get(REFERENCE, {}))
        for measure in ("knn", "linear", "fewshot"):
            if not runs:
                lines.append(f"| {NAMES.get(data, data)} | 0 | {measure} | {NOT_RUN} | | | | | |")
                continue
            gains = [row[measure] - row[f"untrained_{measure}"] for row in runs]
            cells = (
                NAMES.get(data, data), ", ".join(str(row["seed"]) for row in runs), measure,
                number([row[f"untrained_{measure}"] for row in runs]), number([row[measure] for row in runs]),
                ", ".join(map(signed, gains)), number(gains), criterion(gains),
                number([row["minutes"] for row in runs], 1),
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
