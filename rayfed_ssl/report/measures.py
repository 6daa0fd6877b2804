"""Names of measures on a page, and formats of their values: shares as per cent, other values as numbers.

A measure is named as in the records: ``knn``, ``linear_auc``, ``select/knn``, ``features/rankme``.
"""

from __future__ import annotations

import math

from rayfed_ssl.base.text import bounds as plain_bounds
from rayfed_ssl.base.text import fraction, signed
from rayfed_ssl.report.formats import ABSENT, bounds, number, percent, points

WORDS = {
    "knn": "kNN", "linear": "linear probe", "fewshot": "few-shot", "task": "own task", "auc": "AUC", "nmi": "NMI",
    "ari": "ARI",
}  # fmt: skip
FEATURES = {"rankme": "RankMe", "angle": "angle between clients' encoders in degrees"}
DESCRIBED = "features/"
INDICES = ("_auc", "_nmi", "_ari")  # endings of measures that are not shares, so not written as per cent
BALANCED = "_balanced_accuracy"


def protocol_name(protocol: str) -> str:
    """What readers call a protocol and the metric it is measured by: ``few-shot AUC``."""
    return " ".join(WORDS.get(word, word) for word in protocol.split("_"))


def features_name(name: str) -> str:
    """What readers call a value that describes features."""
    return FEATURES.get(name, name.replace("_", " "))


def measure_name(measure: str) -> str:
    """What readers call a measure, whichever images it was measured on."""
    if measure.startswith(DESCRIBED):
        return features_name(measure.removeprefix(DESCRIBED))
    return protocol_name(measure.rpartition("/")[2])


def subject(measure: str) -> str:
    """The measure's name, with the word accuracy added if it is an accuracy and its name does not say so."""
    name = measure_name(measure)
    return f"{name} accuracy" if is_share(measure) and not measure.endswith(BALANCED) else name


def is_share(measure: str) -> bool:
    """Whether the measure is a share, which is written as per cent."""
    return not measure.startswith(DESCRIBED) and not measure.endswith(INDICES)


def shown(measure: str, value: float | None) -> str:
    """A value: ``84.1 %`` for a share, ``0.904`` for an area, four significant digits if it describes features."""
    if value is None or is_share(measure):
        return percent(value)
    return number(value) if measure.startswith(DESCRIBED) else fraction(value) if math.isfinite(value) else ABSENT


def change(measure: str, difference: float | None) -> str:
    """A difference with its sign: in percentage points for shares, else as the measure's values are written."""
    if difference is None or is_share(measure):
        return points(difference)
    return _signed(measure, difference) if math.isfinite(difference) else ABSENT


def within(measure: str, low: float, high: float) -> str:
    """An interval of a difference in square brackets."""
    if measure.startswith(DESCRIBED):
        return f"[{_signed(measure, low)}, {_signed(measure, high)}]"
    return bounds(low, high) if is_share(measure) else plain_bounds(low, high).replace("-", "−")


def small(measure: str, margin: float) -> str:
    """The margin within which a difference is small: ``±1 point`` for shares."""
    return f"±{100 * margin:g} point" if is_share(measure) else f"±{margin:g}"


def _signed(measure: str, value: float) -> str:
    """A difference with its sign, for measures that are not shares."""
    return signed(value, ".3g" if measure.startswith(DESCRIBED) else ".3f").replace("-", "−")


def unit(measure: str) -> str:
    """The unit of a difference, with a space before it; "" if it has none."""
    return " points" if is_share(measure) else ""


def scale(measure: str) -> float:
    """The factor by which values are multiplied on an axis."""
    return 100.0 if is_share(measure) else 1.0


def axis(measure: str) -> str:
    """The label of an axis."""
    if not is_share(measure):
        return measure_name(measure)
    return "balanced accuracy (%)" if measure.endswith(BALANCED) else "accuracy (%)"
