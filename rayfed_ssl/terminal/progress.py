"""Shows a run's progress, and its results at the end: one bar on a terminal, one plain line per round elsewhere.

Only the driver prints. Accuracies arrive during the next round, so a line shows the newest and, if they are not those
of its own round, which round they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any

import rich.progress as bars
from rich import box
from rich.console import Console
from rich.table import Table

from rayfed_ssl.base.text import amount, fraction, printable
from rayfed_ssl.records.significance import APART
from rayfed_ssl.records.summary import TEST_LABELS, replies_text
from rayfed_ssl.records.tables import OTHERS
from rayfed_ssl.report.formats import how_many, span
from rayfed_ssl.report.verdict import (
    BETTER,
    WORSE,
    Verdict,
    began_with,
    beside_pixels,
    best_below_last,
    mean,
    test_images,
    unmeasured,
    verdict,
)
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.terminal.bars import Bar
from rayfed_ssl.terminal.output import prose, verbatim

TRY_NEXT = 'other views ("Which views?" in docs/data.md), more rounds, more steps in each (train.local_steps)'
"""The advice for an encoder that is not better than the untrained one, or worse than raw pixels by most measures."""
OTHER_CLASSES = "test images of other classes, too: all that were measured are of one"
NEARLY_ALL = 0.99
FEW_TEST_IMAGES = 100  # with fewer, an interval of a difference is often wider than ten points to either side
MORE_TEST_IMAGES = "more labelled test images, as {count} can show a large difference only; then {then}"
NOTHING_LEFT = (
    "a harder measure, since {began} has nearly all of this one: other evaluation.protocols, or fewer labelled images "
    "(evaluation.train_images)"
)
EVALUATION, FEATURES, PIXELS = "eval/", "features/", "pixels_"
RANK = "rankme"  # the measure of features that is also shown beside accuracies: a collapse shows in it first


class Reporter(Bar):
    """Turns the loop's :class:`Progress` into a bar or lines."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console, name, bars.TextColumn("{task.fields[shown]}"))
        self.newest: tuple[int, dict[str, float]] = (0, {})  # round and accuracies of the last evaluation
        self.shown: dict[str, float] = {}  # accuracies that a line has shown

    def __call__(self, progress: Progress) -> None:
        if progress.finishes_a_round:
            self._round(progress)
        elif not progress.values:
            self.line(progress.line)
        elif measured := scores(progress.values):
            self.newest = (progress.round, measured)
            new = {name: value for name, value in measured.items() if name not in self.shown}
            if progress.round == 0 and new:  # those of raw pixels and of clients' encoders arrive one by one
                self.line(f"{progress.line}  {accuracies(new)}")
                self.shown = measured

    def _round(self, progress: Progress) -> None:
        """Show a finished round, as the bar's text or as a line."""
        values, parts = progress.values, [f"round {progress.round}/{progress.rounds}"]
        if progress.came_to_nothing:
            if self.bar:  # the next round will replace its text
                self.line(progress.line)
            parts.append(progress.came_to_nothing)
        if "train/loss" in values:
            parts.append(f"loss {values['train/loss']:.4g}")
        evaluated, measured = self.newest
        if evaluated and (self.bar or measured is not self.shown):
            parts.append(accuracies(measured) + ("" if evaluated == progress.round else f" (round {evaluated})"))
            self.shown = measured
        if "features/angle" in values:
            parts.append(f"angle {values['features/angle']:.1f}°")
        if "system/dropped_clients" in values:
            parts.append(f"{values['system/dropped_clients']:.0f} clients dropped")
        if self.bar and self.task is not None:
            if "system/images_per_s" in values:
                parts.append(f"{values['system/images_per_s']:,.0f} images/s")
            shown = "  ".join(parts)
            self.bar.update(self.task, total=progress.rounds, completed=progress.round, shown=shown)
        else:
            self.line("  ".join([*parts, f"{values['system/round_s']:.1f} s"]))


def scores(values: Mapping[str, float]) -> dict[str, float]:
    """The accuracies of an evaluation, and RankMe; without accuracies, all measures of features except the
    spectrum.
    """
    measured = {tag.removeprefix(EVALUATION): value for tag, value in values.items() if tag.startswith(EVALUATION)}
    features = {tag.removeprefix(FEATURES): value for tag, value in values.items() if tag.startswith(FEATURES)}
    shown = {name: value for name, value in features.items() if "/" not in name and (not measured or name == RANK)}
    return measured | shown


def accuracies(measured: Mapping[str, float]) -> str:
    """The measured values as text, such as ``knn 0.850  fewshot 0.912``; those of raw pixels as ``pixels fewshot``."""
    return "  ".join(f"{name.replace(PIXELS, 'pixels ')} {fraction(value)}" for name, value in measured.items())


def accuracy_text(accuracy: float | Mapping[str, float | None] | None) -> str:
    """An accuracy of a summary as text: the value, or the mean of the clients' values with the extremes."""
    if accuracy is None:
        return "-"
    if not isinstance(accuracy, Mapping):
        return fraction(accuracy)
    values = [value for value in accuracy.values() if value is not None]
    if len(values) < 2:
        return accuracy_text(values[0] if values else None)
    return f"{fraction(fmean(values))} ({fraction(min(values))} to {fraction(max(values))})"


def accuracy_table(summary: Mapping[str, Any]) -> Table:
    """For each protocol the accuracy of raw pixels, of the encoder before the first round, of the last and of the best
    round, and what chose that. The last row is RankMe, if it was measured.
    """
    ways = {best.get("by", TEST_LABELS) for best in summary["best"].values()}
    head = f"best (by {ways.pop()})" if len(ways) == 1 else "best"
    before = "before" if "start" in summary else "untrained"
    table = Table("protocol", "pixels", before, "last", head, box=box.SIMPLE)
    for protocol, last in summary["accuracy"].items():
        best = summary["best"].get(protocol)
        by = f", by {best['by']}" if best and ways else ""
        table.add_row(
            protocol,
            accuracy_text(summary["pixels"].get(protocol)),
            accuracy_text(summary["untrained"].get(protocol)),
            accuracy_text(last),
            f"{fraction(best['value'])} (round {best['round']}{by})" if best else "-",
        )
    if (rank := summary.get("features", {}).get(RANK)) is not None:
        table.add_row(
            RANK,
            "-",
            accuracy_text(summary.get("untrained_features", {}).get(RANK)),
            accuracy_text(rank),
            "-",
        )
    return table


def features_table(summary: Mapping[str, Any]) -> Table:
    """The measures of features before the first round and after the last."""
    table = Table("features", "before" if "start" in summary else "untrained", "last", box=box.SIMPLE)
    for name, last in summary["features"].items():
        table.add_row(name, accuracy_text(summary.get("untrained_features", {}).get(name)), accuracy_text(last))
    return table


def evaluation_tables(found: Mapping[str, Any], other: bool = False) -> tuple[str | None, list[Table]]:
    """The tables of ``evaluation.json``, ``found``, and before them the lines on the images that were measured on.

    Args:
        other: whether to show the data set that was measured last, with a line on it and one for each note; otherwise
            the run's own images, which need no line (None).
    """
    if not other:
        return None, _tables_of(found)
    name, measured = list(found[OTHERS].items())[-1]
    images = measured["images"]
    line = f"on {printable(name)}: {images['train']} training and {images['test']} test images"
    return "\n".join([line, *map(printable, images.get("notes", ()))]), _tables_of(measured)


def _tables_of(found: Mapping[str, Any]) -> list[Table]:
    """A table of scores by encoder, and one of features, if they were measured. Scores are those on test images, on
    held-out images and on clients' own test images, the latter as the mean and the extremes over clients.
    """
    rows: dict[str, dict[str, Any]] = {name: dict(values) for name, values in found.get("accuracy", {}).items()}
    for name, values in found.get("select", {}).items():
        rows.setdefault(name, {}).update({f"select.{tag}": value for tag, value in values.items()})
    for name, values in found.get("untrained", {}).items():
        rows.setdefault(f"untrained {name}", {}).update(values)
    for name, values in found.get("own", {}).items():
        rows.setdefault(name, {}).update({f"own.{tag}": value for tag, value in values.items()})
    shared = {tag for values in rows.values() for tag in values}
    if pixels := {tag: value for tag, value in found.get("pixels", {}).items() if tag in shared}:
        rows["raw pixels"] = pixels
    features = {
        name: {tag: value for tag, value in values.items() if not tag.startswith("spectrum/")}
        for name, values in found.get("features", {}).items()
    }
    return [_by_encoder(part) for part in (rows, features) if part]


def _by_encoder(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """A table with a row for each encoder and a column for each tag."""
    tags = list(dict.fromkeys(tag for values in rows.values() for tag in values))
    table = Table("encoder", *tags, box=box.SIMPLE)
    for name, values in rows.items():
        table.add_row(name, *(accuracy_text(values.get(tag)) for tag in tags))
    return table


def report_command(folder: Path | str) -> str:
    """The command that writes the report of ``folder``, with a remark if an older report is there."""
    if "://" in str(folder):
        return "rayfed-ssl report FOLDER, a copy on this machine"
    older = "  (report.html there is older)" if (Path(folder) / "report.html").exists() else ""
    return f"rayfed-ssl report {quote(str(folder))}{older}"


def curves_command(folder: Path | str) -> str:
    """The command that shows the curves of the runs in ``folder``."""
    place = "FOLDER, a copy on this machine" if "://" in str(folder) else quote(str(folder))
    return f"tensorboard --logdir {place}"


def _failed(dropped: Mapping[str, int]) -> str:
    """How often clients were left out because their call failed."""
    return f"{how_many(dropped['clients'], 'client')}, left out {how_many(dropped['times'], 'time')}"


def _falls_short(summary: Mapping[str, Any], found: Verdict) -> bool:
    """Whether a run is not better than its untrained encoder by the measure of its verdict, or worse than raw pixels by
    more than half of its measures.
    """
    beside = [compared.kind for compared in beside_pixels(summary).values()]
    return found.kind not in (None, BETTER) or 2 * beside.count(WORSE) > len(beside)


def _try_next(summary: Mapping[str, Any], found: Verdict) -> str:
    """The advice for a run that falls short."""
    if (summary.get("largest_class") or {}).get("share") == 1:
        return OTHER_CLASSES
    before = mean(summary["untrained"].get(found.protocol)) if found.protocol else None
    if found.kind != WORSE and (before or 0.0) >= NEARLY_ALL:
        return NOTHING_LEFT.format(began=began_with(summary))
    if found.protocol and not isinstance(summary["accuracy"].get(found.protocol), Mapping):  # else it is over clients
        count = test_images(summary, found.protocol)
        if found.kind == APART and count and count < FEW_TEST_IMAGES:
            return MORE_TEST_IMAGES.format(count=count, then=TRY_NEXT)
    return TRY_NEXT


def conclude(console: Console, summary: Mapping[str, Any], folder: Path | str) -> None:
    """Print what a run came to, and where to look next."""
    found = verdict(summary) if summary["accuracy"] else None
    if found is not None:
        console.print(accuracy_table(summary))
        if hint := best_below_last(summary):
            prose(console, hint)
        prose(console, found.sentence)
        console.print()
    elif summary.get("features"):
        console.print(features_table(summary))
    sent = summary["communication"]
    void = summary.get("void_rounds")  # older runs did not count them
    failed, replies = summary.get("dropped", {}), summary.get("replies")
    lines = {
        **({"virtual time": span(summary["virtual_s"])} if "virtual_s" in summary else {}),
        **({"replies": replies_text(replies)} if replies else {}),
        **({"failed": _failed(failed)} if failed.get("times") else {}),
        **({"void rounds": f"{void} of {summary['rounds']} came to nothing"} if void else {}),
        **({"try next": _try_next(summary, found)} if found is not None and _falls_short(summary, found) else {}),
        **({} if summary["accuracy"] else {"accuracy": "; ".join(filter(None, unmeasured(summary, folder)))}),
        "clients sent": f"{amount(sent['up_bytes'])} up, {amount(sent['down_bytes'])} down",
        "took": f"{summary['wall_s']:.0f} s, start-up not counted",
        "run folder": str(folder),
        "curves": curves_command(folder),
        "report": report_command(folder),
    }
    for name, text in lines.items():
        verbatim(console, f"{name:<13} {text}")
