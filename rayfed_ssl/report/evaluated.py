"""The section of a run's report on what ``rayfed-ssl evaluate`` measured later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfed_ssl.base.text import printable
from rayfed_ssl.models.exported import exported_files
from rayfed_ssl.records.paired import BESIDE, MEAN, OVER
from rayfed_ssl.records.summary_file import known_summary
from rayfed_ssl.records.tables import OTHERS
from rayfed_ssl.report.accuracy_table import accuracy_table
from rayfed_ssl.report.page import Section
from rayfed_ssl.report.verdict import DAMAGED, Verdict, verdict

COUNTS = ("test_images", "task_test_images")  # keys of a protocol's settings
OWN = "On the run's own images"


def sentence_of(run: Path, document: Mapping[str, Any], other: bool = False) -> Verdict | None:
    """Like ``verdict_of``; if the run's summary is not of the form that a run writes, a sentence that says so."""
    try:
        return verdict_of(run, document, other)
    except (KeyError, TypeError, ValueError, AttributeError):
        return DAMAGED


def verdict_of(run: Path, found: Mapping[str, Any], other: bool = False) -> Verdict | None:
    """How the exported encoders compare with the untrained ones and with raw pixels: on the run's own images, or with
    ``other`` on the last of the other data sets. None if there is no accuracy, or if the run has no summary.

    The untrained encoders have a run's first values, even if the run began with an encoder (``model.start``).

    Args:
        found: what ``evaluation.json`` holds. One that an earlier version wrote has no numbers of test images, so there
            is no interval.
    """
    summary = known_summary(run)
    made = _of(list(found[OTHERS].values())[-1], run, summary) if other else _of(found, run, summary)
    return verdict(made) if made["accuracy"] and "rounds" in summary else None


def section(run: Path, found: Mapping[str, Any]) -> Section:
    """For each data set of which ``evaluation.json`` has accuracies, a table with a sentence above it."""
    built = Section("evaluated", "Evaluated later")
    if not found:
        return built
    summary = known_summary(run)
    for measured in (found, *found.get(OTHERS, {}).values()):
        name, counts = _named(measured.get("images"))
        as_summary = _of(measured, run, summary)
        sentence = f" {verdict(as_summary).sentence}" if "rounds" in summary else ""
        if (table := accuracy_table(as_summary, f"{name}{counts}.{sentence}", "untrained", keys=False)) is not None:
            built.tables.append(table)
            built.notes += [f"{name}: {printable(note)}." for note in measured.get("images", {}).get("notes", ())]
    if built.tables:
        built.intro = "What rayfed-ssl evaluate measured of the exported encoders."
    return built


def _named(images: Mapping[str, Any] | None) -> tuple[str, str]:
    """What a data set is called, and how many images it has. ``images`` is None for the run's own."""
    if images is None:
        return OWN, ""
    name = printable(images["source"].get("path") or images["source"]["name"], 120)
    return f"On {name}", f": {images['test']:,} test images, {images['train']:,} to learn from"


def _of(measured: Mapping[str, Any], run: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured on one data set, in the form of a run's summary."""
    accuracy: dict[str, Any] = {}
    untrained: dict[str, Any] = {}
    files = exported_files(run / "encoder")
    chosen = [file for file in files if file.client is None] or files
    which = chosen[0].stem if len(chosen) == 1 else MEAN
    for exported in chosen:
        began = measured.get("untrained", {})
        before = began.get(exported.stem, began.get(exported.architecture, {}))
        for tag, value in measured.get("accuracy", {}).get(exported.stem, {}).items():
            for side, score in ((accuracy, value), (untrained, before.get(tag))):
                if exported.client is None:
                    side[tag] = score
                else:
                    side.setdefault(tag, {})[str(exported.client)] = score
    pairs = {block: measured.get(OVER.format(block), {}).get(which, {}) for block in BESIDE}
    largest = measured["images"].get("largest_class") if "images" in measured else summary.get("largest_class")
    return {
        **{key: summary[key] for key in ("rounds", "status") if key in summary},
        "accuracy": accuracy, "untrained": untrained, "pixels": measured.get("pixels") or {},
        "paired": pairs, "evaluation": _counts(measured.get("evaluation", {})), "largest_class": largest,
    }  # fmt: skip


def _counts(settings: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of test images, from the protocols' settings; those of one data set agree where they have them."""
    blocks = [block for block in settings.values() if isinstance(block, Mapping)]
    return {key: block[key] for key in COUNTS for block in blocks if key in block}
