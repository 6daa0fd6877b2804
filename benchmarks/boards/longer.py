"""What longer runs change: the same cells after the leaderboard's rounds and after those of ``longer.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from boards.agreement import kept_order
from boards.markdown import NAMES, NOT_RUN, SPLITS, head
from boards.pairing import Seeds, complete, of_table, paired, placed
from boards.rows import MEASURES, ONE, REFERENCE, Record
from rayfed_ssl.base.text import signed

BESIDE = (REFERENCE, "local")  # the methods with which others are compared, after few rounds and after many
Pair = tuple[Seeds, Seeds]


def change(short: Sequence[Record], long: Sequence[Record], board: Mapping[str, Any]) -> str:
    """For each data set and partition of ``board``, a row per method in the order of its long runs: each protocol's
    accuracy after few rounds and after many, and the paired differences to ``BESIDE`` after each; below it, how far the
    methods' order stayed the same.

    Args:
        short: the leaderboard's rows.
        long: the rows of ``board``, the board of longer runs.
    """
    parts = []
    for data in board["data"]:
        for partition in board["partitions"]:
            before, after = (of_table(rows, data, partition, ONE) for rows in (short, long))
            both = {name: pair for name in after if all(pair := common(before.get(name, {}), after[name]))}
            if both:
                title = f"**{NAMES.get(data, data)}, {SPLITS.get(partition, partition)}.** {_caption(both)}"
                order = kept_order(
                    *({name: pair[at] for name, pair in both.items()} for at in (0, 1)), board["references"]
                )
                parts.append(f"{title}\n\n{_table(both, board)}\n\n{order}")
    return "\n\n".join(parts) or f"Longer runs are {NOT_RUN}."


def common(before: Seeds, after: Seeds) -> Pair:
    """The complete runs of both that have the same seed and split."""
    ended = [{row["seed"]: row for row in complete(seeds)} for seeds in (before, after)]
    seeds = [seed for seed, row in ended[0].items() if row["split"] == ended[1].get(seed, {}).get("split")]
    return {seed: ended[0][seed] for seed in seeds}, {seed: ended[1][seed] for seed in seeds}


def _caption(both: Mapping[str, Pair]) -> str:
    rounds = [max(row["rounds"] for pair in both.values() for row in pair[at].values()) for at in (0, 1)]
    seeds = sorted({seed for before, _ in both.values() for seed in before})
    return (
        f"After {rounds[0]} rounds -> after {rounds[1]}, over the seeds that a method has of both "
        f"({', '.join(map(str, seeds))})."
    )


def _table(both: Mapping[str, Pair], board: Mapping[str, Any]) -> str:
    heads = ["method", "seeds", *MEASURES.values()]
    heads += [f"{MEASURES[m]} over {name}" for name in BESIDE for m in ("knn", "linear")]
    lines = head(heads)
    for name in placed({name: after for name, (_, after) in both.items()}, board, REFERENCE):
        pair = both[name]
        cells = [f"`{name}`", str(len(pair[0]))]
        cells += [_shown([_mean(seeds, measure) for seeds in pair], "{:.3f}".format) for measure in MEASURES]
        cells += [
            _shown([_over(name, both, at, other, m) for at in (0, 1)], signed)
            for other in BESIDE
            for m in ("knn", "linear")
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(seeds: Seeds, measure: str) -> float | None:
    values = [row[measure] for row in seeds.values()]
    return None if None in values else fmean(values)


def _over(name: str, both: Mapping[str, Pair], at: int, other: str, measure: str) -> float | None:
    """The mean paired difference after few rounds (``at`` 0) or many; None for the method itself, or without a common
    seed.
    """
    if name == other or other not in both:
        return None
    pairs = paired(both[name][at], both[other][at], measure)
    return fmean(pairs) if pairs else None


def _shown(values: Sequence[float | None], form: Callable[[float], str]) -> str:
    known = [form(value) for value in values if value is not None]
    return " -> ".join(known) if len(known) == len(values) else "-"
