"""The results of ``rayfed-ssl evaluate`` in the report."""

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

COUNTS = ("test_images", "task_test_images")  # in the settings of a protocol
OWN = "On the run's own images"


def sentence_of(run: Path, found: Mapping[str, Any], other: bool = False) -> Verdict | None:
    """As ``verdict_of``; where the run's summary is not what a run writes it says so: what was measured stands."""
    try:
        return verdict_of(run, found, other)
    except (KeyError, TypeError, ValueError, AttributeError):
        return DAMAGED


def verdict_of(run: Path, found: Mapping[str, Any], other: bool = False) -> Verdict | None:
    """How the exported encoders compare with the untrained ones and with raw pixels, on the run's own images, or with
    ``other`` on the data set that stands last. None where there is no accuracy, or the run has no summary.

    The untrained encoders are those of first values, also of a run that began with an encoder (``model.start``).

    Args:
        found: what ``evaluation.json`` holds. Of one that an earlier version wrote, the numbers of test images are not
            known, and there is no interval.
    """
    summary = known_summary(run)
    made = _of(list(found[OTHERS].values())[-1], run, summary) if other else _of(found, run, summary)
    return verdict(made) if made["accuracy"] and "rounds" in summary else None


def section(run: Path, found: Mapping[str, Any]) -> Section:
    """A table, and the sentence above it, for each data set that ``evaluation.json`` has accuracies of."""
    made = Section("evaluated", "Evaluated later")
    if not found:
        return made
    summary = known_summary(run)
    for one in (found, *found.get(OTHERS, {}).values()):
        name, counts = _named(one.get("images"))
        known = _of(one, run, summary)
        sentence = f" {verdict(known).sentence}" if "rounds" in summary else ""
        if (table := accuracy_table(known, f"{name}{counts}.{sentence}", "untrained", keys=False)) is not None:
            made.tables.append(table)
            made.notes += [f"{name}: {printable(note)}." for note in one.get("images", {}).get("notes", ())]
    if made.tables:
        made.intro = "What rayfed-ssl evaluate measured of the exported encoders."
    return made


def _named(images: Mapping[str, Any] | None) -> tuple[str, str]:
    """What is called a data set of ``evaluate --data``, or the run's own without one, and how many images it had."""
    if images is None:
        return OWN, ""
    name = printable(images["source"].get("path") or images["source"]["name"], 120)
    return f"On {name}", f": {images['test']:,} test images, {images['train']:,} to learn from"


def _of(of: Mapping[str, Any], run: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured on one data set, as the summary of a run has it."""
    accuracy: dict[str, Any] = {}
    untrained: dict[str, Any] = {}
    files = exported_files(run / "encoder")
    chosen = [file for file in files if file.client is None] or files
    which = chosen[0].stem if len(chosen) == 1 else MEAN
    for one in chosen:
        began = of.get("untrained", {})
        before = began.get(one.stem, began.get(one.architecture, {}))
        for tag, value in of.get("accuracy", {}).get(one.stem, {}).items():
            for known, values in ((accuracy, value), (untrained, before.get(tag))):
                if one.client is None:
                    known[tag] = values
                else:
                    known.setdefault(tag, {})[str(one.client)] = values
    pairs = {block: of.get(OVER.format(block), {}).get(which, {}) for block in BESIDE}
    largest = of["images"].get("largest_class") if "images" in of else summary.get("largest_class")
    return {
        **{key: summary[key] for key in ("rounds", "status") if key in summary},
        "accuracy": accuracy, "untrained": untrained, "pixels": of.get("pixels") or {},
        "paired": pairs, "evaluation": _counts(of.get("evaluation", {})), "largest_class": largest,
    }  # fmt: skip


def _counts(settings: Mapping[str, Any]) -> dict[str, int]:
    """How many test images there were: of one data set all protocols say the same, those that say it."""
    blocks = [block for block in settings.values() if isinstance(block, Mapping)]
    return {key: block[key] for key in COUNTS for block in blocks if key in block}
