"""The report's sentence on what ``rayfed-ssl evaluate`` measured: ``evaluation.json`` in the words of a summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfed_ssl.models.exported import exported_files
from rayfed_ssl.records.summary import known_summary
from rayfed_ssl.records.tables import OTHERS
from rayfed_ssl.report.verdict import DAMAGED, Verdict, verdict

COUNTS = ("test_images", "task_test_images")  # in the settings of a protocol


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
    of = list(found[OTHERS].values())[-1] if other else found
    accuracy: dict[str, Any] = {}
    untrained: dict[str, Any] = {}
    files = exported_files(run / "encoder")
    for one in [file for file in files if file.client is None] or files:
        began = of.get("untrained", {})
        before = began.get(one.stem, began.get(one.architecture, {}))
        for tag, value in of.get("accuracy", {}).get(one.stem, {}).items():
            for known, values in ((accuracy, value), (untrained, before.get(tag))):
                if one.client is None:
                    known[tag] = values
                else:
                    known.setdefault(tag, {})[str(one.client)] = values
    if not accuracy or "rounds" not in summary:
        return None
    said: dict[str, Any] = {key: summary[key] for key in ("rounds", "status") if key in summary}
    largest = of["images"].get("largest_class") if other else summary.get("largest_class")
    return verdict(
        {
            **said, "accuracy": accuracy, "untrained": untrained, "pixels": of.get("pixels"),
            "evaluation": _counts(of.get("evaluation", {})), "largest_class": largest,
        }
    )  # fmt: skip


def _counts(settings: Mapping[str, Any]) -> dict[str, int]:
    """How many test images there were: of one data set all protocols say the same, those that say it."""
    blocks = [block for block in settings.values() if isinstance(block, Mapping)]
    return {key: block[key] for key in COUNTS for block in blocks if key in block}
