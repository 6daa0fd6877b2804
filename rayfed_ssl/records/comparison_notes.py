"""The notes below a comparison's table: seeds, split, intervals, and which settings differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.base.text import fraction, listed, printable
from rayfed_ssl.records.comparison import RAW_PIXELS, UNTRAINED, Comparison, Row
from rayfed_ssl.records.comparison_run_notes import run_notes
from rayfed_ssl.records.image_pairs import CLIENTS, HELD_OUT, TEST_IMAGES
from rayfed_ssl.records.image_sampling import counted, held_out, not_counted
from rayfed_ssl.records.intervals import LEVEL
from rayfed_ssl.records.leaked import INTERVAL, Area, largest
from rayfed_ssl.records.significance import MARGIN

_stats = LazyModule("scipy.stats")
MOST_FOLDERS = 5  # of a row, named


def notes(comparison: Comparison) -> list[str]:
    """What a reader has to know: seeds, split, intervals, how rows differ, and what is missing."""
    lines = [*_elsewhere(comparison)]
    seeds = _listed(comparison.seeds)
    lines += [f"Values are those of the last round, over seed(s) {seeds}; nothing was chosen by test labels."]
    if comparison.other_splits:
        lines += _other_splits(comparison)
    else:
        lines.append("The split is the same for all rows, seed by seed.")
    lines += [*_intervals(comparison), *not_counted(comparison), *held_out(comparison)]
    if alone := [row.name for row in comparison.trained if any(run.of_clients for run in row.runs.values())]:
        lines.append(f"Of {_listed(alone)}: the mean over clients, each measured with its own encoder.")
    lines += [*_below(comparison, before_training(comparison)), *_below(comparison, RAW_PIXELS)]
    lines += [*_columns(comparison), *_private(comparison), *_leaks(comparison)]
    lines += [*_beyond(comparison), *_unfinished(comparison)]
    lines += [*_folders(comparison), *_void(comparison), *_began_otherwise(comparison), *run_notes(comparison)]
    return [*lines, *_left_out(comparison)]


def cautions(comparison: Comparison) -> list[str]:
    """The notes without which values would be misread: the meaning of marks on rows, rounds that trained no client, the
    runs' own notes, and what was left out.
    """
    marks = [
        *_elsewhere(comparison), *_other_splits(comparison), *_beyond(comparison), *_unfinished(comparison),
    ]  # fmt: skip
    return [*marks, *_void(comparison), *_began_otherwise(comparison), *run_notes(comparison), *_left_out(comparison)]


def _elsewhere(comparison: Comparison) -> list[str]:
    return [
        f"# {printable(name)}: other images than {printable(comparison.first.name)} in seed(s) {_listed(of)}, so "
        "accuracies cannot be compared, and no difference counts them."
        for name, of in comparison.other_images.items()
    ]


def _other_splits(comparison: Comparison) -> list[str]:
    first, elsewhere = printable(comparison.first.name), comparison.other_images
    return [
        f"+ {printable(name)}: another split than {first} in seed(s) {_listed(left)}, so a difference includes "
        f"what the split does{_of_the_split(comparison, name)}."
        for name, of in comparison.other_splits.items()
        if (left := [seed for seed in of if seed not in elsewhere.get(name, [])])
    ]


def _beyond(comparison: Comparison) -> list[str]:
    return [f"* {_listed(names)}: beyond the method, {told}." for told, names in _differing(comparison).items()]


def _unfinished(comparison: Comparison) -> Iterator[str]:
    for row in comparison.trained:
        if row.unfinished:
            told = ", ".join(f"{name} {status}" for name, status in row.unfinished.items())
            yield f"! {printable(row.name)}: {told}; not counted."


def _left_out(comparison: Comparison) -> list[str]:
    return [f"Left out, {printable(name)}: {' '.join(why.split())}" for name, why in comparison.left_out.items()]


def _folders(comparison: Comparison) -> Iterator[str]:
    """The folders of each row, if folders were given."""
    for name, folders in comparison.folders.items():
        more = f" and {len(folders) - MOST_FOLDERS} more" if len(folders) > MOST_FOLDERS else ""
        yield f"{printable(name)}: {', '.join(printable(folder) for folder in folders[:MOST_FOLDERS])}{more}."


def _of_the_split(comparison: Comparison, name: str) -> str:
    """The values for which a row on another split has no difference: those measured on images that the split
    chooses.
    """
    row = next(row for row in comparison.rows if row.name == name)
    left = [
        measure
        for measure in comparison.measures
        if (common := row.values.get(measure, {}).keys() & comparison.first.values.get(measure, {}).keys())
        and len(row.common_seeds(comparison.first, measure)) < len(common)
    ]
    return (
        f"; {', '.join(left)} {'is' if len(left) == 1 else 'are'} of other images there, and not subtracted"
        if left
        else ""
    )


def _intervals(comparison: Comparison) -> list[str]:
    """The meaning of the lines below a mean."""
    first, kinds, several = printable(comparison.first.name), counted(comparison), len(comparison.seeds) > 1
    if not comparison.first.values:
        return [f"{first} has no complete run, so nothing is subtracted."]
    images = " or ".join(of for of in (TEST_IMAGES, HELD_OUT) if of in kinds)
    more = []
    if images:
        told = f"that counts which {images} were drawn, too" if several else f"over the {images} of this one seed"
        more.append(f"images: its 95% interval {told}")
    if CLIENTS in kinds:
        more.append(f"clients: its 95% interval {'that counts clients, too' if several else 'over those of this seed'}")
    words = f"level: the interval contains zero and lies within {MARGIN:g} of it; not told apart: it contains zero and "
    words += "reaches further."
    if len(comparison.seeds) == 2:
        words += (
            f" Of two seeds, Student's t has one degree of freedom: an interval over seeds is {_reach(2):.1f} standard "
            f"errors wide on either side, of three {_reach(3):.1f}."
        )
    if several:
        second = f"Second line: paired difference to {first} with its 95% interval (Student's t over seeds)"
        more += ["the words rest on it where there is one"] if more else []
        return ["; ".join([second, *more, words])]
    if more:
        second = f"Second line: difference to {first}"
        return [f"{'; '.join([second, *more])}, so another seed may say otherwise; {words}"]
    return [f"Second line: difference to {first}; of one seed there is no interval, so it may be chance."]


def _reach(seeds: int) -> float:
    """How many standard errors a 95% interval over so many seeds reaches to either side."""
    return float(_stats.t.ppf((1 + LEVEL) / 2, seeds - 1))


def _below(comparison: Comparison, baseline: str) -> list[str]:
    """Which rows are worse than a row without training, in the mean over paired seeds, and by which accuracy; than
    their own encoders before training, if these were others.
    """
    common = next((row for row in comparison.rows if row.name == baseline), None)
    told: dict[str, list[str]] = {}
    for row in comparison.trained:
        if row.name in comparison.other_images:
            continue
        beside = row.began if row.began is not None and baseline == row.began.name else common
        worth = {} if beside is None else beside.values
        pairs = {
            m: [row.values[m][seed] - value for seed, value in of.items() if seed in row.values.get(m, {})]
            for m, of in worth.items()
            if "/" not in m
        }
        if below := [measure for measure, differences in pairs.items() if differences and fmean(differences) < 0]:
            told.setdefault(listed(below), []).append(printable(row.name))
    named = "; ".join(f"{', '.join(rows)} by {by}" for by, rows in told.items())
    whose = baseline if baseline == RAW_PIXELS else f"the {baseline}"
    return [f"Below {whose} in the mean, chance not counted: {named}."] if told else []


def _columns(comparison: Comparison) -> list[str]:
    """The meaning of the columns of costs."""
    main, began = comparison.main, before_training(comparison)
    until = (
        ""
        if main is None
        else f"; to 90% of {main} gain: until the first evaluation that was 90% of the way from the {began}'s {main} "
        f"to the run's last one, -: no gain, or the {began} was not evaluated"
    )
    if goal := goal_name(comparison):
        many = ", here the mean over seeds" if len(comparison.seeds) > 1 else ""
        until += (
            f"; to {goal}: until the first evaluation with an accuracy that all rows are asked for, 90% of the way "
            f"from the {began} to the last round of {printable(comparison.first.name)} at the same "
            f"seed{many}, never: not in a run's rounds"
        )
    hours = "h: hours of the virtual clock; " if any(row.virtual_hours is not None for row in comparison.rows) else ""
    lines = [f"MB: millions of bytes to and from all clients; {hours}seconds: those of a run's rounds{until}."]
    if main is not None and (doubtful := _doubtful_gains(comparison, main)):
        lines.append(
            f"The {main} gain of {_listed(doubtful)} is not told apart from none, so the cost of 90% of it says little."
        )
    if main is not None and goal and _doubtful_gain(comparison, comparison.first, main):
        lines.append(
            f"{goal} rests on the gain of {printable(comparison.first.name)}, which is not told apart from none, so "
            "the cost of it says little."
        )
    return lines


def before_training(comparison: Comparison) -> str:
    """The name of the encoder before training: the untrained or the starting one (``model.start``)."""
    return UNTRAINED if comparison.began is None else comparison.began.name


def goal_name(comparison: Comparison) -> str:
    """The accuracy that all rows are asked for, as ``knn 0.512``; empty if the first row gained nothing."""
    main = comparison.main
    found = None if main is None else comparison.first.to_goal(comparison.first, main)
    return "" if found is None else f"{main} {fraction(found.accuracy)}"


def _doubtful_gains(comparison: Comparison, main: str) -> list[str]:
    """Rows all of whose runs gained something, and whose interval over the encoder before training does not exclude
    zero.
    """
    gained = [row for row in comparison.trained if row.bytes_to(main) is not None]
    return [row.name for row in gained if _doubtful_gain(comparison, row, main)]


def _doubtful_gain(comparison: Comparison, row: Row, main: str) -> bool:
    """Whether the row's interval over the encoder before training does not exclude zero."""
    began = row.began or comparison.began
    gain = None if began is None else row.difference(began, main)
    return gain is not None and gain.judged() not in (None, "above")


def _private(comparison: Comparison) -> list[str]:
    """What each epsilon guarantees."""
    found: dict[str, list[str]] = {}
    for row in comparison.trained:
        if row.guarantee is not None:
            found.setdefault(row.guarantee.scope, []).append(row.name)
    return [f"epsilon of {_listed(names)}: of the client that spent most, {scope}." for scope, names in found.items()]


def _leaks(comparison: Comparison) -> list[str]:
    """The meaning of the areas."""
    known = [(name, area) for name, area in leaked(comparison).items() if area is not None]
    told = [f"{printable(name)}: {area.of}" for name, area in known]
    if not told:
        return []
    return [
        "leak AUC: the largest area by which a message told members from others (rayfed-ssl leak), with its 95% "
        f"interval ({'; '.join(told)}); 0.5 is chance, and of many areas the largest is above it by chance. The "
        f"interval is {INTERVAL}."
    ]


def _differing(comparison: Comparison) -> dict[str, list[str]]:
    """The settings in which rows differ beyond the method, in words, and which rows do."""
    found: dict[str, list[str]] = {}
    for row in comparison.trained:
        if row.differing:
            pairs = row.differing.items()
            told = "; ".join(
                f"{key} is {_value_or_absent(own)} (not {_value_or_absent(theirs)})" for key, (theirs, own) in pairs
            )
            found.setdefault(told, []).append(row.name)
    return found


def _void(comparison: Comparison) -> list[str]:
    """How many rounds came to nothing, if some did: these rows trained in fewer rounds than they count."""
    runs = [(row.name, run) for row in comparison.trained for run in row.runs.values()]
    void, rounds = Counter[str](), Counter[str]()
    for name, run in runs:
        void[name] += run.void_rounds
        rounds[name] += run.rounds
    told = [f"{printable(name)} {void[name]} of {rounds[name]}" for name in rounds if void[name]]
    if not told:
        return []
    others = "; of other rows none" if len(told) < len(rounds) else ""
    trained: dict[int, set[int]] = {}
    for _, run in runs:
        trained.setdefault(run.seed, set()).add(run.rounds - run.void_rounds)
    equal = all(len(of) == 1 for of in trained.values())
    beyond = "" if equal else ", so runs are compared that did not train equally often"
    return [f"Rounds that came to nothing: {', '.join(told)}{others}. They count as rounds and train nobody{beyond}."]


def _began_otherwise(comparison: Comparison) -> list[str]:
    """Rows whose encoders before training were not measured as that encoder's row says."""
    found = {row.name: row.values for row in comparison.rows}
    lines = []
    for name, of, why in (
        (before_training(comparison), "untrained", "with other encoders or images, and gains are over that"),
        (RAW_PIXELS, "pixels", "of other images"),
    ):
        others = [
            row.name
            for row in comparison.trained
            if any(
                found.get(name, {}).get(measure, {}).get(seed, value) != value
                for seed, run in row.runs.items()
                for measure, value in getattr(run, of).items()
            )
        ]
        if others:
            lines.append(
                f"{name.capitalize()}: what the first row with that seed measured; {_listed(others)} measured "
                f"something else, as {why} (untrained, pixels in the summary.json of their runs)."
            )
    return lines


def _listed(items: Sequence[Any]) -> str:
    return ", ".join(printable(item) for item in items) or "none"


def _value_or_absent(value: Any) -> str:
    return "absent" if value is None else printable(value, 60)


def leaked(comparison: Comparison) -> dict[str, Area | None]:
    """Row -> the largest area by which its messages gave members away, None if nothing crossed; empty if a run was not
    audited.
    """
    runs = {row.name: [run.audited for run in row.runs.values()] for row in comparison.rows}
    if any(audit is None for audits in runs.values() for audit in audits):
        return {}
    return {name: largest([audit for audit in audits if audit is not None]) for name, audits in runs.items()}
