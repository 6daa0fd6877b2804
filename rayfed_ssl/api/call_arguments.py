"""Builds the configuration of a call from a file, a mapping or another configuration, and keyword arguments."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rayfed_ssl import extensions
from rayfed_ssl.api.arguments import as_text
from rayfed_ssl.config import RunConfig, build, build_written, load_changed
from rayfed_ssl.settings import files as configfile

Configuration = str | os.PathLike[str] | Mapping[str, object] | RunConfig
"""The path of a YAML file, a mapping with its keys (nested or dotted), or a run's configuration."""


def dotted(overrides: Mapping[str, object]) -> dict[str, object]:
    """Keyword arguments as dotted keys with plain values: ``train__rounds=3`` and ``train={"rounds": 3}`` both become
    ``{"train.rounds": 3}``.
    """
    changes: dict[str, object] = {}
    for name, value in overrides.items():
        key = name.replace("__", ".")
        if isinstance(value, Mapping) and value:
            changes |= {f"{key}.{inner}": item for inner, item in dotted(value).items()}
        else:
            changes[key] = plain(value)
    return changes


def as_changes(overrides: Mapping[str, object], block: str = "") -> list[str]:
    """Keyword arguments as ``key=value``, as on the command line. With ``block``, the keys are those of this block.

    Values are JSON with unescaped letters, because YAML does not read the pairs of surrogates in JSON's escapes.
    """
    prefix, changes = f"{block}." if block else "", dotted(overrides).items()
    return [f"{prefix}{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in changes]


def plain(value: object) -> object:
    """``value`` as YAML would have given it: paths as text, tuples as lists, and NumPy's numbers as Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def asked(config: Configuration, overrides: Mapping[str, object]) -> RunConfig:
    """The configuration with the keyword arguments merged into it.

    Paths in the ``imports`` of a file are relative to its folder; those in a mapping or an argument are relative to the
    working folder.

    Raises:
        UserError: a key is wrong; there is a line for each.
    """
    changes = dotted(overrides)
    if isinstance(config, RunConfig):
        given = changes.get("imports")
        imports = config.extensions if given is None else extensions.gather(given, Path.cwd())
        return build(config.model_dump(mode="json"), changes, origin="config", imports=imports)
    if isinstance(config, Mapping):
        document = configfile.merge({}, {str(key): plain(value) for key, value in config.items()})
        imports = extensions.gather(changes.get("imports", document.get("imports")), Path.cwd())
        return build_written(document, changes, origin="config", imports=imports)
    allowed = "the path of a YAML file, a mapping with the keys of one, or the config of a run"
    path = Path(as_text(config, "config", allowed)).expanduser()
    if "imports" in changes:
        changes["imports"] = configfile.from_here(changes["imports"])
    return named_after(load_changed(path, changes), path)


def named_after(config: RunConfig, path: Path) -> RunConfig:
    """The configuration with the name of its file as the run's ``name``, if it does not have one."""
    if "name" in config.model_fields_set:
        return config
    return config.model_copy(update={"name": re.sub(r"[^\w.-]+", "-", path.stem).lstrip("-_.") or "run"})


def run_folder(config: Path | None, name: str, resume: bool) -> Path:
    """``runs/<name>``, or the run's own folder if it is resumed from its own config.yaml."""
    if resume and config is not None and config.name == "config.yaml" and _begun(config.parent):
        return config.parent
    return Path("runs") / name


def _begun(folder: Path) -> bool:
    """Whether a run in the folder has written its records or a checkpoint. A run that was killed before that has
    nothing to resume.
    """
    return any((folder / made).exists() for made in ("environment.json", "checkpoints"))
