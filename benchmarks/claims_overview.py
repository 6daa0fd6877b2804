"""The verdicts on the papers' claims, a row for each comparison that decides one, and the number of intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from claims import Line
from claims_tables import NAMES, Runs, by_chance, compared, counted, interval, rows, runs_of, verdicts


def table(lines: Sequence[Line], document: Mapping[str, Any]) -> str:
    """The claims with ``decides``: what the paper says, under which condition it was compared, and the verdicts.

    A pair that was picked by the results of the first seeds is judged by the seeds after them.
    """
    claims = {name: claim for name, claim in document["claims"].items() if "decides" in claim}
    measures = list(dict.fromkeys(measure for claim in claims.values() for measure in claim["measures"]))
    body = []
    for name, claim in claims.items():
        runs = runs_of(lines, name, claim)
        for deciding in claim["decides"]:
            judging = beyond(runs, document["seeds"]) if deciding.get("picked") else runs
            pair = compared(judging, claim, deciding["pair"])
            found = {measure: pair.differences[measure] for measure in claim["measures"]}
            cells = [interval(found[measure]) if measure in found else "" for measure in measures]
            told = [claim["method"], claim["short"], deciding["condition"], pair.label]
            seeds = f"{pair.seeds} others" if deciding.get("picked") else pair.seeds
            body.append([*told, seeds, *cells, verdicts(found)])
    head = ["method", "claimed", "compared here", "difference", "seeds", *(NAMES[m] for m in measures)]
    return rows([[*head, "verdict"], *body])


def beyond(runs: Runs, seeds: int) -> dict[str, dict[int, Line]]:
    """The runs of the seeds by which nothing was picked."""
    return {variant: {seed: line for seed, line in own.items() if seed >= seeds} for variant, own in runs.items()}


def intervals(lines: Sequence[Line], document: Mapping[str, Any]) -> str:
    """How many intervals the tables of all claims have, how many exclude zero, and how many would do so by chance."""
    pairs = [
        compared(runs_of(lines, name, claim), claim, pair)
        for name, claim in document["claims"].items()
        for pair in claim["compare"]
    ]
    count, without_zero = counted(pairs)
    return (
        f"The tables of differences in this section and the next have {count} intervals; {without_zero} exclude "
        f"zero. If nothing differed, about {by_chance(count)} would. No interval is corrected for that."
    )


def section(lines: Sequence[Line], document: Mapping[str, Any]) -> str:
    """The table of verdicts and the count of intervals."""
    return f"{table(lines, document)}\n\n{intervals(lines, document)}"
