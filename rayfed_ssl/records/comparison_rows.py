"""Makes the rows of a comparison from run folders: which runs belong together, and how rows differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RESULT_NEUTRAL
from rayfed_ssl.records.comparison import RAW_PIXELS, STARTED, UNTRAINED, Comparison, Row
from rayfed_ssl.records.one_run import OneRun, read_run
from rayfed_ssl.records.outcomes import PIXELS_FILE, UNTRAINED_FILE, read_outcomes
from rayfed_ssl.records.settings_table import written
from rayfed_ssl.records.summary_file import SUMMARY
from rayfed_ssl.settings.files import TAGGED, flat

ALIKE = (*RESULT_NEUTRAL, "seed", "profile", "imports")  # what the runs of one row may differ in
STILL = ("resources.threads", "resources.device")  # of them what changes bits
COMPLETE = "complete"


def of_variants(variants: Mapping[str, Sequence[Path]], left_out: Mapping[str, str] | None = None) -> Comparison:
    """The comparison of named variants, each with its run folders; a run that has not ended is noted as unfinished.

    Raises:
        UserError: a run's records are damaged, or no run is complete.
    """
    rows = []
    for name, folders in variants.items():
        ended = [read_run(folder) for folder in folders if (folder / SUMMARY).is_file()]
        without = {folder.name: "not finished" for folder in folders if not (folder / SUMMARY).is_file()}
        rows.append(_row(name, ended, without))
    return compare_rows(rows, left_out or {})


def of_runs(folders: Sequence[Path]) -> Comparison:
    """The comparison of run folders: those that differ in the seed alone are one row, named by its method.

    Raises:
        UserError: a folder holds no run that has ended, or the same run as another; or no run is complete.
    """
    groups: dict[str, list[OneRun]] = {}
    for folder in folders:
        run = read_run(folder)
        together = groups.setdefault(json.dumps(_that_matter(run.settings), sort_keys=True), [])
        for other in together:
            if other.seed == run.seed:
                raise UserError(f"{folder}: found the settings and the seed of {other.folder}; each run once")
        together.append(run)
    grouped = list(groups.values())
    named = dict(zip(_names(grouped), grouped, strict=True))
    made = compare_rows([_row(name, runs, {}) for name, runs in named.items()], {})
    return replace(made, folders={name: [run.folder for run in runs] for name, runs in named.items()})


def _row(name: str, ended: Sequence[OneRun], without: Mapping[str, str]) -> Row:
    complete = {run.seed: run for run in sorted(ended, key=lambda run: run.seed) if run.status == COMPLETE}
    others = {f"seed {run.seed}": run.status for run in ended if run.status != COMPLETE}
    measures = dict.fromkeys(name for run in complete.values() for name in run.values)
    values = {m: {seed: run.values[m] for seed, run in complete.items() if m in run.values} for m in measures}
    return Row(name, values, complete, {**others, **without})


def compare_rows(rows: Sequence[Row], left_out: Mapping[str, str]) -> Comparison:
    """The rows, marked if their settings differ from the first row's, and the baselines below them; raw pixels only if
    they were measured, as they are by no task of a client's own and by no description of features.
    """
    if not any(row.runs for row in rows):
        raise UserError("compare: found no run that is complete; nothing can be compared yet")
    reference = next(row for row in rows if row.runs)
    theirs = next(iter(reference.runs.values())).settings
    runs = {seed: run for row in reversed(rows) for seed, run in row.runs.items()}  # of each seed, the first row's
    name = STARTED if any(run.started for run in runs.values()) else UNTRAINED
    began, pixels = _baseline(name, "untrained", runs), _baseline(RAW_PIXELS, "pixels", runs)
    marked = []
    for row in rows:
        own = next((run.settings for run in row.runs.values()), theirs)
        otherwise = any(
            runs[seed].untrained.get(measure, value) != value
            for seed, run in row.runs.items()
            for measure, value in run.untrained.items()
        )
        before = _baseline(name, "untrained", row.runs) if otherwise else None
        marked.append(replace(row, differing=differing(theirs, own), began=before))
    return Comparison((*marked, began, *([pixels] if pixels.values else [])), dict(left_out))


def _baseline(name: str, of: Literal["untrained", "pixels"], runs: Mapping[int, OneRun]) -> Row:
    """What training has to beat, as the ``runs`` of each seed measured it."""
    values: dict[str, dict[int, float]] = {}
    before: dict[int, OneRun] = {}
    for seed, run in sorted(runs.items()):
        measured = run.untrained if of == "untrained" else run.pixels
        for measure, value in measured.items():
            values.setdefault(measure, {})[seed] = value
        answers = read_outcomes(run.folder, UNTRAINED_FILE if of == "untrained" else PIXELS_FILE)
        before[seed] = replace(run, values=dict(measured), outcomes=answers, by_client={})
    return Row(name, values, before=before)


def differing(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys beyond ``method`` whose values are not the same: (the first's, the other's); a key that is absent is
    None. For a block of another kind, only the kind is named; for a block that only one has, such as public images,
    only its name and path.
    """
    a, b = (flat(_that_matter(settings)) for settings in (first, other))
    return {key: (a.get(key), b.get(key)) for key in _differing_keys(a, b) if not key.startswith("method.")}


def _differing_keys(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Those whose values are not the same, sorted, less those that a block of another kind, or one that is not in both,
    brings with it.
    """
    keys = [key for key in sorted({*first, *other}) if first.get(key) != other.get(key)]
    kinds = {f"{block}." for block in TAGGED if f"{block}.name" in keys}
    named = [key for key in keys if key.endswith(".name") and None in (first.get(key), other.get(key))]
    alone = {key.removesuffix("name") for key in named}
    told = {f"{block}name" for block in kinds | alone} | {f"{block}path" for block in alone}
    return [key for key in keys if key in told or not any(key.startswith(block) for block in kinds | alone)]


def _that_matter(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a row's runs share."""
    kept = {key: value for key, value in settings.items() if key not in ALIKE}
    found = flat(settings)
    return {**kept, **{key: found.get(key) for key in STILL}}


def _names(groups: Sequence[Sequence[OneRun]]) -> list[str]:
    """Each group's name: its method and, if several groups have the same method, its differences from the first of
    them.
    """
    names: list[str] = []
    for runs in groups:
        alike = [other[0] for other in groups if other[0].method == runs[0].method]
        if alike[0] is runs[0]:
            names.append(runs[0].method)
            continue
        a, b = (flat(_that_matter(run.settings)) for run in (alike[0], runs[0]))
        keys = _differing_keys(a, b)
        told = ", ".join(f"{key}={written(b.get(key))}" for key in keys[:2])
        name = f"{runs[0].method} ({told}{', ..' if len(keys) > 2 else ''})"
        names.append(name if name not in names else f"{name} {runs[0].folder}")
    return names
