"""Reads and extends ``evaluation.json``, which holds what ``rayfed-ssl evaluate`` measured of a run."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records.paired import OVER
from rayfed_ssl.records.tables import OTHERS

BETWEEN, UNTRAINED, PIXELS = "between encoders", "untrained", "pixels"  # in evaluation.json
BY_ENCODER = frozenset({  # its blocks with a row per encoder
    "accuracy", "untrained", "select", "own", "features", OVER.format(UNTRAINED), OVER.format(PIXELS),
})  # fmt: skip


def earlier(path: Path) -> dict[str, Any]:
    """The content that an earlier evaluation wrote, with all settings behind each protocol's results. Raises
    UserError.
    """
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        blocks = {name: dict(block) for name, block in document.items()}
        for name in blocks.keys() & BY_ENCODER:
            blocks[name] = {encoder: dict(values) for encoder, values in blocks[name].items()}
        blocks |= {OTHERS: {name: dict(of) for name, of in blocks[OTHERS].items()}} if OTHERS in blocks else {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); mend it, or move it away to begin anew") from None
    own = blocks.get("evaluation", {})
    common = {key: value for key, value in own.items() if not isinstance(value, dict)}
    blocks["evaluation"] = {key: {**common, **value} for key, value in own.items() if isinstance(value, dict)}
    return blocks


def added(known: Mapping[str, Any], new: Mapping[str, Any], measured: Sequence[str]) -> dict[str, Any]:
    """``known`` with ``new`` added. Earlier scores of a protocol that was ``measured`` again are removed: they had
    other settings.
    """
    merged: dict[str, Any] = {}
    for block in [*known, *(name for name in new if name not in known)]:
        before, now = known.get(block, {}), new.get(block, {})
        if block in BY_ENCODER and block != "features":
            names = [*before, *(name for name in now if name not in before)]
            merged[block] = {name: {**_others(before.get(name, {}), measured), **now.get(name, {})} for name in names}
        elif block == "features":
            names = [*before, *(name for name in now if name not in before)]
            merged[block] = {name: {**before.get(name, {}), **now.get(name, {})} for name in names}
        elif block == PIXELS:
            merged[block] = {**_others(before, measured), **now}
        else:
            merged[block] = {**before, **now}
    return merged


def _others(values: Mapping[str, float], measured: Sequence[str]) -> dict[str, float]:
    """The values whose tags belong to none of the protocols ``measured``."""
    return {
        tag: value
        for tag, value in values.items()
        if not any(tag == name or tag.startswith(f"{name}_") for name in measured)
    }


def with_untrained(known: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The ``known`` values, on the run's images and on others, without those of untrained encoders that are not in
    ``names``.
    """
    kept = dict(known)
    if UNTRAINED in kept:
        kept[UNTRAINED] = {name: of for name, of in kept[UNTRAINED].items() if name in names}
    for block in {"own", "features"} & kept.keys():
        kept[block] = {
            name: of
            for name, of in kept[block].items()
            if not name.startswith(f"{UNTRAINED} ") or name.removeprefix(f"{UNTRAINED} ") in names
        }
    if OTHERS in kept:
        kept[OTHERS] = {title: with_untrained(of, names) for title, of in kept[OTHERS].items()}
    return kept
