"""Builds the configuration of a call from a file, a mapping or another configuration, with overrides."""

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
"""A YAML file's path, a mapping with the keys of one (nested, or dotted), or a run's configuration."""


def dotted(overrides: Mapping[str, object]) -> dict[str, object]:
    """Keyword arguments as dotted keys with plain values: ``train__rounds=3`` and ``train={"rounds": 3}`` are both
    ``{"train.rounds": 3}``.
    """
    found: dict[str, object] = {}
    for name, value in overrides.items():
        key = name.replace("__", ".")
        if isinstance(value, Mapping) and value:
            found |= {f"{key}.{inner}": item for inner, item in dotted(value).items()}
        else:
            found[key] = plain(value)
    return found


def as_changes(overrides: Mapping[str, object], block: str = "") -> list[str]:
    """Keyword arguments as the command line has them, ``key=value``; the keys are those of ``block``, if one is named.
    Values are JSON, with letters as they are: YAML reads no escaped halves of a letter.
    """
    before, changes = f"{block}." if block else "", dotted(overrides).items()
    return [f"{before}{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in changes]


def plain(value: object) -> object:
    """Paths as text, tuples as lists, NumPy's numbers as Python's: what YAML would have given."""
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
    """The configuration with keyword arguments laid over it.

    Paths in a file's ``imports`` are relative to its folder, those of a mapping or an argument to the working folder.

    Raises:
        UserError: naming every key that is wrong, a line each.
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
    """A run that no ``name`` was given to is named after its file."""
    if "name" in config.model_fields_set:
        return config
    return config.model_copy(update={"name": re.sub(r"[^\w.-]+", "-", path.stem).lstrip("-_.") or "run"})


def run_folder(config: Path | None, name: str, resume: bool) -> Path:
    """runs/<name>; resuming from a run's own config.yaml means that run, also where it had saved no round yet."""
    if resume and config is not None and config.name == "config.yaml" and _begun(config.parent):
        return config.parent
    return Path("runs") / name


def _begun(folder: Path) -> bool:
    """Whether a run has written its records there, or its first checkpoint. What was killed before that has nothing to
    resume.
    """
    return any((folder / made).exists() for made in ("environment.json", "checkpoints"))
