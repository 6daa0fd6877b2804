"""Reads and writes the files of a sweep, ``sweep.yaml`` and ``base.yaml``; refuses to go on with a different sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import nearest, printable
from rayfed_ssl.config import RunConfig
from rayfed_ssl.extensions import Extension, gather, save
from rayfed_ssl.settings import files as configfile
from tune.config import Sweep, SweepConfig, default_metric

KEYED = ("space", "overrides")  # blocks whose keys are those of a run, dots and all


def load(path: Path, changes: Sequence[str] = ()) -> Sweep:
    """Read a sweep's file. ``changes`` are ``key=value``: a sweep's own keys (``trials=4``, ``space.KEY={grid: [1]}``,
    ``overrides.seed=1``), else keys of the run (``data.path=PATH``), which go into ``overrides``. Raises UserError.
    """
    document = configfile.read(path)
    if "base" not in document and "method" in document:
        raise UserError(f"{path}: found the configuration of a run; a sweep is a file with base: (that one) and space:")
    for key, value in configfile.parse_overrides(changes).items():
        block, _, rest = key.partition(".")
        if block in KEYED and (rest or isinstance(value, Mapping)):
            given = value if isinstance(value, Mapping) and not rest else {rest: value}
            _add(document, block, given)
        elif block in SweepConfig.model_fields:
            document = configfile.merge(document, {key: value}, tagged=("scheduler",))
        elif block in RunConfig.model_fields:
            _add(document, "overrides", {key: value})
        else:
            known = [*SweepConfig.model_fields, *RunConfig.model_fields]
            allowed = f"{', '.join(SweepConfig.model_fields)}, or of its runs: {', '.join(RunConfig.model_fields)}"
            raise UserError(
                f"{printable(key)}: found {printable(value)}; must be a key of the sweep: {allowed}"
                f"{nearest(block, known, 1)}"
            )
    settings = configfile.validate(SweepConfig, document, origin=str(path))
    base = path.parent / settings.base
    resolved, imports, overrides = read_base(base, settings.overrides, path.parent)
    chosen = {} if "metric" in document else {"metric": default_metric(resolved, overrides)}
    settings = configfile.validate(SweepConfig, {**document, **chosen}, origin=str(path))
    return Sweep(settings.model_copy(update={"overrides": overrides}), resolved, f"{path} (base {base})", imports)


def _add(document: dict[str, Any], block: str, given: Mapping[str, Any]) -> None:
    """Put keys into a block of the file. A block that is not a mapping stays as it is, and is refused with the file."""
    known = document.get(block) or {}
    if isinstance(known, Mapping):
        document[block] = {**known, **given}


def read_base(
    base: Path, overrides: Mapping[str, Any], beside: Path = Path()
) -> tuple[dict[str, Any], tuple[Extension, ...], dict[str, Any]]:
    """A run's document with its profile applied, the modules that ``imports`` name, and the overrides without profile
    and imports.

    Paths in the base's ``imports`` are relative to its folder, those in the overrides to ``beside``, the folder of the
    file that these stand in.
    """
    overrides = dict(overrides)
    profile = overrides.pop("profile", None)
    resolved = configfile.overlay(configfile.read(base), None if profile is None else str(profile))
    given = "imports" in overrides
    imports = gather(overrides.pop("imports", resolved.get("imports")), beside if given else base.parent)
    if imports or "imports" in resolved:
        resolved["imports"] = [extension.name for extension in imports]
    return resolved, imports, overrides


def dump(sweep: Sweep, folder: Path) -> None:
    """Write ``sweep.yaml`` and ``base.yaml``: ``tune FOLDER/sweep.yaml`` repeats the sweep."""
    save(sweep.imports, folder)
    write_yaml(folder / "base.yaml", dict(sweep.document))
    settings = sweep.settings.model_dump(mode="json", exclude_none=True)
    write_yaml(folder / "sweep.yaml", {**settings, "base": "base.yaml"})


def write_yaml(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document with its keys in their order."""
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def refuse_changed(old: Sweep, new: Sweep, folder: Path) -> None:
    """Raise UserError naming what differs from the sweep in the folder. ``concurrent`` may differ, ``trials`` may grow,
    and ``points`` may be added after existing ones, if there are any.
    """
    free = {"base", "concurrent", "trials", "points"}
    if new.settings.repeat == 1:  # then worst, mean and best are one
        free.add("score")
    a, b = (s.settings.model_dump(mode="json", exclude=free) for s in (old, new))
    changed = [name for key in a for name in differing(key, a[key], b[key])]
    before, now = old.settings.points, new.settings.points
    if before != now[: len(before)] or bool(before) != bool(now):  # the first point is put before every configuration
        changed.append("points")
    if old.document != new.document or old.imports != new.imports:
        changed.append("base")
    if new.count < old.count:
        changed.append("trials")
    if changed:
        raise UserError(
            f"{folder}: cannot resume with changed {', '.join(changed)}; only concurrent may change, trials may grow, "
            "and points may be added at the end (another --out starts a new sweep)"
        )


def differing(name: str, old: Any, new: Any) -> list[str]:
    """The key ``name`` or, for a block of dotted keys, the keys that are not the same; empty if nothing differs."""
    if old == new:
        return []
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return [name]
    absent = object()
    return [f"{name}.{k}" for k in dict.fromkeys([*old, *new]) if old.get(k, absent) != new.get(k, absent)]
