"""The papers' claims in Markdown, made only from the lines of ``results/claims.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from boards.markdown import NOT_RUN, number
from claims import WORST, Line

from rayfed_ssl.base.text import bounds, signed
from rayfed_ssl.records.comparison import Difference, difference
from rayfed_ssl.records.intervals import LEVEL
from rayfed_ssl.records.significance import APART

UNTRAINED = "untrained"
NAMES = {"knn": "kNN", "fewshot": "few-shot", "linear": "linear", "task": "own task", "select/knn": "held-out kNN"}
ONE_SEED = "one seed"
PAIRS = ("0_1", "0_2", "1_2")
Values = dict[int, float]  # seed -> value
Runs = Mapping[str, Mapping[int, Line]]  # variant -> seed -> line


@dataclass(frozen=True)
class Compared:
    """A pair of variants in words, and measure -> the difference of the first to the second; None if no seeds are
    paired.
    """

    label: str
    differences: Mapping[str, Difference | None]

    @property
    def known(self) -> dict[str, Difference]:
        return {measure: found for measure, found in self.differences.items() if found is not None}

    @property
    def seeds(self) -> str:
        return str(max((found.count for found in self.known.values()), default=0))


def runs_of(lines: Sequence[Line], name: str, claim: Mapping[str, Any]) -> dict[str, dict[int, Line]]:
    """Variant -> seed -> line, for the complete runs of a claim; if a seed has several lines, the newest."""
    found: dict[str, dict[int, Line]] = {}
    for line in lines:
        known = claim["variants"].get(line["variant"])
        if line["claim"] == name and line["status"] == "complete" and known == line["keys"]:
            found.setdefault(line["variant"], {})[line["seed"]] = line
    return found


def values(runs: Runs, variant: str, measure: str) -> Values:
    """Seed -> value: of a variant, of its worst client (``.., worst client``), or of the untrained encoder."""
    worst = variant.endswith(WORST)
    if variant == UNTRAINED:
        lines = {seed: line for of_seeds in reversed(list(runs.values())) for seed, line in of_seeds.items()}
        found = {seed: line["untrained"].get(measure) for seed, line in lines.items()}
    else:
        lines = dict(runs.get(variant.removesuffix(WORST), {}))
        found = {seed: line["measured"].get(measure) for seed, line in lines.items()}
    return {seed: one(value, worst=worst) for seed, value in sorted(found.items()) if value is not None}


def one(value: float | Mapping[str, float], *, worst: bool) -> float:
    """A value as one number: the mean over clients, or with ``worst`` their lowest value, if it is one for each
    client.
    """
    if isinstance(value, Mapping):
        return min(value.values()) if worst else fmean(value.values())
    return value


def chosen(runs: Runs, names: str | Sequence[str], by: str | None) -> str | None:
    """The variant that stands for several: the one with the highest mean of ``by``; None if one of them has not run."""
    if isinstance(names, str):
        return names
    assert by is not None
    scores = {name: list(values(runs, name, by).values()) for name in names}
    return max(scores, key=lambda name: fmean(scores[name])) if all(scores.values()) else None


def apart(runs: Runs, a: str, b: str, measure: str) -> Difference | None:
    """The difference of ``a`` to ``b`` over the seeds that both have."""
    own, theirs = values(runs, a, measure), values(runs, b, measure)
    return difference([own[seed] - theirs[seed] for seed in sorted(own.keys() & theirs.keys())])


def compared(runs: Runs, claim: Mapping[str, Any], pair: Sequence[str | Sequence[str]]) -> Compared:
    """The differences of a pair in ``compare``, by the claim's measures and by the one that chose between several
    variants.
    """
    first, second = pair
    measures, by = [*claim["measures"], *([claim["by"]] if "by" in claim else [])], claim.get("by")
    a, b = chosen(runs, first, by), chosen(runs, second, by)
    if a is None or b is None:
        return Compared(f"best of {len(first)} against best of {len(second)}", dict.fromkeys(measures))
    best = "" if isinstance(first, str) else f" (each the best by {NAMES[claim['by']]})"
    return Compared(f"{a} over {b}{best}", {measure: apart(runs, a, b, measure) for measure in measures})


def verdict(found: Difference | None) -> str:
    """The word for the 95% interval (``rayfed_ssl.records.significance``)."""
    if found is None:
        return NOT_RUN
    return found.judged() or (ONE_SEED if found.count == 1 else "no interval")


def verdicts(differences: Mapping[str, Difference | None]) -> str:
    """The verdict of each measure, grouped by word: ``above by kNN and few-shot; level by linear``."""
    by_word: dict[str, list[str]] = {}
    for measure, found in differences.items():
        by_word.setdefault(verdict(found), []).append(NAMES[measure])
    if len(by_word) == 1:
        [(word, names)] = by_word.items()
        if len(names) == 1 or word in (NOT_RUN, ONE_SEED):
            return word
        return f"{word} by {'any' if word == APART else 'all'}"
    return "; ".join(f"{word} by {_listed(names)}" for word, names in by_word.items())


def _listed(names: Sequence[str]) -> str:
    """Names joined by commas and a last "and"."""
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def counted(pairs: Iterable[Compared]) -> tuple[int, int]:
    """The number of intervals, and how many of them exclude zero."""
    words = [word for pair in pairs for found in pair.known.values() if (word := found.judged()) is not None]
    return len(words), sum(word in ("above", "below") for word in words)


def by_chance(intervals: int) -> str:
    """How many of so many intervals would exclude zero if nothing differed."""
    return f"{(1 - LEVEL) * intervals:.1f}"


def interval(found: Difference | None) -> str:
    """A difference with its interval, if it has one."""
    if found is None:
        return "-"
    text = signed(found.mean)
    return text if found.low is None or found.high is None else f"{text} {bounds(found.low, found.high)}"


def rows(cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is the heading."""
    head, *body = cells
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def accuracies(runs: Runs, claim: Mapping[str, Any]) -> str:
    """Mean and standard deviation over seeds of each variant, after those of the untrained encoder."""
    measures = [*claim["measures"], *([claim["by"]] if "by" in claim else [])]
    names = [UNTRAINED]
    for name in claim["variants"]:
        names += [name, name + WORST] if name in claim.get("worst", ()) else [name]
    body = []
    for name in names:
        found = {m: list(values(runs, name, m).values()) for m in measures}
        if name != UNTRAINED and not any(found.values()):
            body.append([name, "0", NOT_RUN, *[""] * len(measures)])
            continue
        used = [line["cpu_minutes"] for line in runs.get(name, {}).values() if line["cpu_minutes"] is not None]
        minutes = number(used, 1) if used else "" if name not in runs else "-"
        cells = [number(found[m]) if found[m] else "-" for m in measures]
        body.append([name, str(max(map(len, found.values()))), *cells, minutes])
    return rows([["variant", "seeds", *(NAMES[m] for m in measures), "CPU minutes"], *body])


def comparisons(runs: Runs, claim: Mapping[str, Any]) -> str:
    """The paired differences, each with its 95% interval, and the verdicts by the claim's measures."""
    body, pairs = [], [compared(runs, claim, pair) for pair in claim["compare"]]
    for pair in pairs:
        cells = [interval(found) for found in pair.differences.values()]
        if not pair.known:
            cells[0] = NOT_RUN
        of_claim = {m: found for m, found in pair.known.items() if m in claim["measures"]}
        body.append([pair.label, pair.seeds, *cells, verdicts(of_claim) if of_claim else NOT_RUN])
    names = [NAMES[measure] for measure in pairs[0].differences]
    count, without_zero = counted(pairs)
    below = f"Intervals that exclude zero: {without_zero} of {count}; by chance alone about {by_chance(count)}."
    return f"{rows([['difference', 'seeds', *names, 'verdict'], *body])}\n\n{below}"


def usefulness(runs: Runs, variants: Sequence[str]) -> str:
    """How useful and how alike FedLinked's clients are to each other in the last round, for each seed: G_02/G_01 and
    G_12/G_01, and the likenesses, which do not grow with the length of representations.
    """
    body = []
    for variant in variants:
        for seed, line in sorted(runs.get(variant, {}).items()):
            also = line["also"]
            a = {
                pair: also[f"fedlinked/A_{pair}"] for pair in ("1_0", "2_0", "0_1", "2_1")
            }  # ratios of A for the same target are ratios of G
            cells = [a["2_0"] / a["1_0"], a["2_1"] / a["0_1"], *(also[f"fedlinked/likeness_{pair}"] for pair in PAIRS)]
            body.append([variant, str(seed), *(f"{cell:z.2f}" for cell in cells)])
    return rows([["variant", "seed", "G_02/G_01", "G_12/G_01", "likeness 01", "02", "12"], *body])


def section(lines: Sequence[Line], name: str, claim: Mapping[str, Any]) -> str:
    """The section of a claim: what it says, the setting, accuracies, and differences."""
    runs = runs_of(lines, name, claim)
    commits = sorted({line["commit"] for of_seeds in runs.values() for line in of_seeds.values()})
    made = f"Made at {', '.join(commits)}." if commits else f"{NOT_RUN.capitalize()}."
    says = f"Claimed: {claim['says']}" if "decides" in claim else claim["says"]
    parts = [f"**{says}.** {claim['setting']}. {made}", accuracies(runs, claim), comparisons(runs, claim)]
    if found := [name for name in claim.get("useful", ()) if name in runs]:
        parts.append(usefulness(runs, found))
    return "\n\n".join(parts)
