"""A sweep in sentences: which configuration it chose, whether training made encoders worse, and what a reader has to
know about the choice. Configurations are named by their numbers, as in the tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from rayfed_ssl.base.text import listed, printable
from rayfed_ssl.records.significance import partly_by_chance
from rayfed_ssl.records.summary import HELD_OUT_LABELS, NO_LABELS, TEST_LABELS
from rayfed_ssl.records.sweep_choice import (
    SHARES,
    Choice,
    before_training,
    below_untrained,
    labels_of,
    untrained_of,
)
from rayfed_ssl.report.formats import how_many, number, percent, words
from rayfed_ssl.report.verdict import Verdict

MOST = 8  # the most configurations that a sentence names
Row = Mapping[str, Any]


def verdict(
    rows: Sequence[Row], choice: Choice, keys: Sequence[str], metric: str, mode: str = "max", of: str = "mean"
) -> Verdict:
    """The configuration that the sweep chose, with its keys and score; which configurations are worse than before
    training; and how many have a score but cannot be chosen.

    Args:
        rows: the rows of ``results.parquet``, one per trial.
        keys: the keys that varied.
        of: how a configuration's score is made of its repeats: mean, worst or best.
    """
    if not choice.ranking:
        return Verdict("No configuration has a score yet.")
    some = how_many(len(choice.ranking), "configuration")
    if choice.winner is None:
        return Verdict(f"No configuration has run to its end yet; {some} with a score so far.")
    own = [row for row in rows if row["configuration"] == choice.winner]
    settings = ", ".join(f"{key} = {words(own[0].get(key))}" for key in keys)
    labels = f" (chosen by {TEST_LABELS})" if labels_of(metric) == TEST_LABELS else ""
    repeats = f", the {of} of {choice.repeats} repeats," if choice.repeats > 1 else ""
    best = "first" if choice.level or choice.apart else "the best"
    sentences = [
        f"Of {how_many(len(choice.finished), 'configuration')} that ran to the end, number {choice.winner} is {best} "
        f"by {printable(metric, 60)}{labels}: {shown(own[0]['score'], metric)}{repeats} with {settings}.",
        *_below(rows, choice, metric, mode),
    ]
    if others := len(choice.ranking) - len(choice.finished):
        sentences.append(f"{how_many(others, 'other')} with a score did not run to the end and cannot be chosen.")
    return Verdict(" ".join(sentences))


def remarks(choice: Choice, metric: str, held_out: Collection[int] = ()) -> list[str]:
    """What a reader has to know about the choice, one sentence each: whose labels it used, which configurations are as
    good, and how far it may be due to chance. Empty if no configuration was chosen.

    ``held_out``: the number of images held out to choose by, of each trial of the chosen configuration that says so.
    """
    if choice.winner is None:
        return []
    labels = labels_of(metric)
    of = f", of {_counts(held_out)} images in each trial" if held_out and labels == HELD_OUT_LABELS else ""
    sentences = (
        [] if labels is None else ["Chosen without labels." if labels == NO_LABELS else f"Chosen by {labels}{of}."]
    )
    winner = f"number {choice.winner}"
    if choice.level:
        sentences.append(f"Level with {winner}: {numbers(choice.level)}, because {choice.why_level}.")
    if choice.apart:
        sentences.append(f"Not told apart from {winner}: {numbers(choice.apart)}, because {choice.why_apart}.")
    if choice.ahead:
        sentences.append(f"Better than {winner} by the mean of repeats: {numbers(choice.ahead)}.")
    if choice.repeats > 1 and (chance := partly_by_chance(len(choice.finished))):
        sentences.append(f"{chance[0].upper()}{chance[1:]}.")
    if choice.repeats == 1 and not choice.level and len(choice.finished) > 1:
        sentences.append("Each was trained once, so differences may be chance (repeat: 3 shows their spread).")
    return sentences


def shown(value: float | None, metric: str) -> str:
    """A value of the metric: as per cent if it is a share, else as a number."""
    return percent(value) if metric.startswith(SHARES) else number(value)


def numbers(configurations: Sequence[int]) -> str:
    """``number 3``, ``numbers 3, 0 and 2``: the first few, and how many more."""
    named = [str(configuration) for configuration in configurations[:MOST]]
    if more := len(configurations) - len(named):
        named.append(f"{more} more")
    return f"number{'' if len(configurations) == 1 else 's'} {listed(named)}"


def _counts(counts: Collection[int]) -> str:
    """A count, or the smallest and the largest: ``60``, or ``58 to 60``."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _below(rows: Sequence[Row], choice: Choice, metric: str, mode: str) -> list[str]:
    """Which configurations are worse than before training, with the value before training if it is the same for all."""
    below = below_untrained(rows, choice, metric, mode)
    if not below:
        return []
    means = {shown(fmean(scores), metric) for c, scores in untrained_of(rows, metric).items() if c in below}
    value = f" ({means.pop()})" if len(means) == 1 else ""
    by = " by the mean of repeats" if choice.repeats > 1 else ""
    beside = f"the {before_training(rows)}{value}{by}, chance not counted"
    if len(below) == len(choice.ranking) == len(choice.finished):
        who = {1: "It is", 2: "Both are"}.get(len(below), f"All {len(below)} are")
        return [f"{who} worse than {beside}."]
    return [f"Worse than {beside}: {numbers(below)}."]
