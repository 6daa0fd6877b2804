"""What the leaderboard tells apart, at a glance: a sign per method and protocol, over all data sets and for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from boards.markdown import NAMES, head
from boards.overall import (
    ALPHA,
    DEPENDS,
    LEAST,
    LOCAL,
    Differences,
    differences,
    disagreements,
    in_order,
    survive,
    verdict,
)
from boards.rows import MEASURES, ONE, REFERENCE, Record
from rayfed_ssl.records.significance import APART, MARGIN, Judgement

SIGNS: dict[Judgement, str] = {"above": "+", "below": "−", "level": "=", APART: "?"}
HOLM = "†"


def verdicts(rows: Sequence[Record], board: Mapping[str, Any], table: str = ONE) -> str:
    """A row per ranked method, the best by kNN first: how it compares with the reference, over all data sets and for
    each, and with training alone. Tables of one data set have no columns by data set.
    """
    ranked = [method for method in board["methods"] if method not in board["references"]]
    found = {reference: differences(rows, board, reference, table) for reference in (REFERENCE, LOCAL)}
    if not any(found[REFERENCE].values()):
        return f"No method has {LEAST} clusters yet."
    sets = [name for name in board["data"] if any((row["data"], row["table"]) == (name, table) for row in rows)]
    sets = sets if len(sets) > 1 else []
    each = {name: differences(rows, {**board, "data": {name: None}}, REFERENCE, table) for name in sets}
    odd = {pair: of for pair, of in disagreements(rows, board, sets, table).items() if pair[1] in ranked}
    holm = {reference: survive(own, ranked) for reference, own in found.items()}
    heads = ["method", *(f"{words} over `{REFERENCE}`" for words in MEASURES.values())]
    heads += [f"{NAMES.get(name, name)} alone" for name in sets]
    heads += [f"{words} over `{LOCAL}`" for words in MEASURES.values()]
    lines = head(heads)
    for method in in_order(found[REFERENCE], ranked, board):
        if method in ranked:
            cells = [_sign(found[REFERENCE], method, m, holm[REFERENCE], odd) for m in MEASURES]
            cells += [" ".join(_sign(own, method, m) for m in MEASURES) for own in each.values()]
            cells += [_sign(found[LOCAL], method, m, holm[LOCAL]) for m in MEASURES]
            lines.append(f"| `{method}` | {' | '.join(cells)} |")
    asked = sum(method in ranked for own in found[REFERENCE].values() for method in own)
    return "\n".join([*lines, "", legend(sets, len(odd), asked)])


def legend(sets: Sequence[str], odd: int, asked: int) -> str:
    """What the signs mean, and how often chance alone makes one of them."""
    told = (
        f"{SIGNS['above']} above, {SIGNS['below']} below, {SIGNS['level']} level (the interval lies within "
        f"±{MARGIN:g}), {SIGNS[APART]} not told apart; {HOLM} also after Holm's correction for the intervals of all "
        "methods beside the same reference."
    )
    if sets:
        told += (
            f" {DEPENDS}: it differs between the data sets (Welch's t test at {100 * ALPHA:.0f}%, {odd} of {asked}, "
            f"where chance alone would make about {ALPHA * asked:.0f}), without a sign where one is above and the "
            "other below in the mean. Their own columns: kNN linear few-shot, of three clusters each."
        )
    return told


def _sign(
    found: Differences,
    method: str,
    measure: str,
    holm: set[tuple[str, str]] | None = None,
    odd: Mapping[tuple[str, str], bool] | None = None,
) -> str:
    """The sign of one method by one protocol; a dash if there are too few clusters or the method is the reference.

    ``odd``: the (measure, method) for which data sets differ, and whether their signs do.
    """
    one = found[measure].get(method)
    if one is None:
        return "-"
    contradicts = (odd or {}).get((measure, method))
    if contradicts:
        return DEPENDS
    sign = SIGNS[verdict(one)] + (HOLM if (measure, method) in (holm or ()) else "")
    return sign if contradicts is None else f"{sign} {DEPENDS}"
