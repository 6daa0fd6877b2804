"""Reads, merges, validates and writes configuration files: YAML, named profiles and dotted ``key=value`` overrides.

The schema itself is in ``rayfed_ssl.config``. Precedence: file < profile < command line. A block that names its kind
(``method``, ``objective``, ...) is replaced as a whole if the name changes, because the old kind's keys mean nothing to
the new kind. A user's mistakes raise ``UserError``; ``validate`` reports all of them at once.
"""

from __future__ import annotations

import copy
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.settings.errors import closest, explain, value_text
from rayfed_ssl.settings.plain_yaml import Dumper, parse, problem

Model = TypeVar("Model", bound=BaseModel)

TAGGED = ("method", "objective", "data.partition", "system.availability")
"""The blocks whose ``name`` decides which other keys they may have."""

IMPORTS = ("imports", "overrides.imports")  # keys of a run's file, and of a sweep's or a comparison's

OF_RUN = "config.yaml"  # in a run folder

LARGEST = 4 * 2**20  # bytes that a YAML file may have


class ConfigError(UserError):
    """All mistakes in a configuration, one line each, which begins with the key's dotted path."""


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ``UserError`` if the file is missing, too large, not YAML, or no mapping."""
    try:
        document = parse(_text(path))
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "text that is not UTF-8"
        if isinstance(error, IsADirectoryError):
            reason = "a folder"
        hint = f"; did you mean {printable(path / OF_RUN)}?" if _is_file(path / OF_RUN) else ""
        raise UserError(
            f"{printable(path)}: found {_lowered(str(reason))}; must be a readable YAML file{hint}"
        ) from None
    except yaml.YAMLError as error:
        raise UserError(f"{printable(path)}: {problem(error)}; must be YAML with each key once") from None
    if not isinstance(document, dict):
        found = "an empty file" if document is None else value_text(document)
        raise UserError(f"{printable(path)}: found {found}; must be a mapping of keys to values")
    return document


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # not a valid path
        return False


def of_run(folder: Path, called: str | None = None) -> Path:
    """The configuration file of a run folder. Raises UserError if there is none; ``called`` is the user's name for the
    folder.
    """
    path = folder / OF_RUN
    if not path.is_file():
        missing = "config.yaml" if folder.is_dir() else "such folder"
        raise UserError(f"{printable(called or folder)}: found no {missing}; must be a run folder")
    return path


def overlay(document: Mapping[str, Any], profile: str | None) -> dict[str, Any]:
    """The document with one of its ``profiles`` merged into it.

    The profile is ``profile``, else the one that the document's key ``profile`` names, else ``cpu``. The result keeps
    the name under ``profile`` and has no ``profiles``, so overlaying it again changes nothing. Raises ``UserError`` if
    the document has no such profile.
    """
    base = {key: copy.deepcopy(value) for key, value in document.items() if key != "profiles"}
    profiles = document.get("profiles")
    if profiles is None:
        if profile is not None and profile != base.get("profile"):
            resolved = f" (it was resolved with {base['profile']!r})" if base.get("profile") is not None else ""
            raise UserError(f"profile: found {value_text(profile)}; this config offers no profiles{resolved}")
        return base
    if not isinstance(profiles, Mapping):
        raise UserError(f"profiles: found {value_text(profiles)}; must be a mapping of names to keys")
    chosen = profile if profile is not None else base.get("profile")
    chosen = "cpu" if chosen is None else chosen
    if not isinstance(chosen, str) or chosen not in profiles:
        raise UserError(
            f"profile: found {value_text(chosen)}; must be one of {printable(', '.join(profiles))}"
            f"{printable(closest(chosen, profiles))}"
        )
    changes = {} if profiles[chosen] is None else profiles[chosen]
    if not isinstance(changes, Mapping):
        raise UserError(
            f"profiles.{printable(chosen)}: found {value_text(changes)}; must be a mapping of keys to values"
        )
    return {**merge(base, changes), "profile": chosen}


def parse_overrides(items: Sequence[str]) -> dict[str, object]:
    """``["train.rounds=3"]`` as ``{"train.rounds": 3}``. Values are YAML, and the last of several equal keys counts.
    Paths of files among ``imports`` are relative to the working folder.

    Raises ``UserError`` for an item that is not ``key=value``, or whose value is not YAML.
    """
    overrides: dict[str, object] = {}
    for item in items:
        key, equals, text = item.partition("=")
        key = key.strip()
        if not equals or not re.fullmatch(r"[^\s.]+(\.[^\s.]+)*", key):
            raise UserError(f"command line: found {value_text(item)}; must be key=value, such as train.rounds=3")
        try:
            value = "?" if text.strip() == "?" else parse(text)  # YAML would read the question as a key without a name
        except yaml.YAMLError as error:
            raise UserError(
                f"{printable(key)}: found {value_text(text)}; must be a YAML value, text with signs in quotes "
                f"({problem(error)})"
            ) from None
        overrides.pop(key, None)
        overrides[key] = from_here(value) if key in IMPORTS else value
    return overrides


def from_here(imports: object) -> object:
    """``imports`` with the paths of files, which end in .py, made absolute from the working folder. Other entries, and
    what is no list, are unchanged.
    """
    if not isinstance(imports, list | tuple):
        return imports
    files = (isinstance(entry, str) and entry.endswith(".py") for entry in imports)
    return [
        str(Path.cwd() / Path(entry).expanduser()) if is_file else entry
        for entry, is_file in zip(imports, files, strict=True)
    ]


def merge(
    document: Mapping[str, Any], overrides: Mapping[str, object], tagged: Collection[str] = TAGGED
) -> dict[str, Any]:
    """A copy of the document with the overrides written into it.

    Keys may be dotted; ``clients.encoders.0`` is an entry of a list. Mappings are merged key by key; any other value
    replaces the old one. A block listed in ``tagged`` loses its old keys first if its ``name`` changes. Raises
    ``UserError`` for a path that leads through a value without keys, or beyond the end of a list.
    """
    merged = copy.deepcopy(dict(document))
    changes = list(leaves(overrides))
    for block in tagged:
        path = tuple(block.split("."))
        names = [value for leaf, value in changes if leaf == (*path, "name")]
        old = _at(merged, path)
        if names and old is not None and (not isinstance(old, Mapping) or old.get("name") != names[-1]):
            _at(merged, path[:-1])[path[-1]] = {}
    for path, value in changes:
        _put(merged, path, copy.deepcopy(value))
    return merged


def validate(model: type[Model], document: Mapping[str, Any], *, origin: str) -> Model:
    """``document`` as a ``model``. Errors of the whole document begin with ``origin``, the file.

    Raises ``ConfigError`` with one line per error: ``path: found VALUE; RULE; did you mean NAME?``.
    """
    try:
        config = model.model_validate(document)
    except ValidationError as error:
        raise ConfigError("\n".join(explain(model, document, error, origin))) from None
    if lines := [
        f"{printable(path)}: found {value_text(value)}; must be a number"
        for path, value in _lost_flags(document, config, ())
    ]:
        raise ConfigError("\n".join(lines))
    return config


def dump(config: BaseModel, path: Path) -> None:
    """Write the resolved config as YAML, in the schema's order. ``read`` and ``validate`` return an equal model.

    The file appears completely or not at all.
    """
    replace_file(path, lambda draft: draft.write_text(dumped(config), encoding="utf-8"), path.parent, shared=True)


def dumped(config: BaseModel) -> str:
    """The text that :func:`dump` writes."""
    values = config.model_dump(mode="json")
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def _text(path: Path) -> str:
    """The text of a regular file of at most ``LARGEST`` bytes. Raises OSError, UnicodeError or UserError."""
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or path.is_dir()):  # a pipe or device might never end
        raise UserError(f"{printable(path)}: found no regular file; must be a readable YAML file")
    if status.st_size > LARGEST:
        raise UserError(f"{printable(path)}: found {status.st_size} bytes; a YAML file has at most {LARGEST}")
    return path.read_text(encoding="utf-8")


def _lowered(text: str) -> str:
    """``text`` with a small first letter."""
    return text[:1].lower() + text[1:]


def leaves(changes: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """(path, value) of every nested or dotted key whose value is no mapping, or an empty one."""
    for key, value in changes.items():
        here = (*path, *str(key).split("."))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, here)
        else:
            yield here, value


def flat(changes: Mapping[str, object]) -> dict[str, Any]:
    """Dotted key -> value, for the pairs that :func:`leaves` gives."""
    return {".".join(path): value for path, value in leaves(changes)}


def _at(tree: Any, path: Sequence[str]) -> Any:
    """The value at ``path`` in nested mappings; None if there is none."""
    for part in path:
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Write ``value`` at ``path``, and create missing mappings on the way."""
    here: Any = tree
    for depth, part in enumerate(path[:-1]):
        key = _key(here, path, depth)
        if isinstance(here, dict) and here.get(part) is None:
            here[key] = {}
        here = here[key]
    key = _key(here, path, len(path) - 1)
    if value == {} and isinstance(value, dict) and isinstance(here, dict) and isinstance(here.get(key), dict):
        return  # an empty mapping changes nothing in a block
    here[key] = value


def _key(container: Any, path: tuple[str, ...], depth: int) -> str | int:
    """``path[depth]`` as a key of ``container``, or as an index if that is a list. Raises UserError if that fails."""
    part, whole = path[depth], printable(".".join(path))
    if isinstance(container, dict):
        return part
    parent = printable(".".join(path[:depth]))
    if not isinstance(container, list):
        raise UserError(f"{whole}: found {parent} set to {value_text(container)}; only a mapping or a list has keys")
    if not part.isdecimal() or int(part) >= len(container):
        raise UserError(
            f"{whole}: found index {value_text(part)}; {parent} is a list of {len(container)}, counted from 0"
        )
    return int(part)


def _lost_flags(document: Any, config: Any, path: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """(key, value) of every true or false that pydantic's lax mode has turned into the number 1 or 0."""
    if isinstance(document, bool):
        if isinstance(config, int | float) and not isinstance(config, bool):
            yield ".".join(path), document
    elif isinstance(document, Mapping):
        for key, value in document.items():
            inner = config.get(key) if isinstance(config, Mapping) else getattr(config, str(key), None)
            yield from _lost_flags(value, inner, (*path, str(key)))
    elif isinstance(document, list) and isinstance(config, list | tuple) and len(document) == len(config):
        for index, (value, inner) in enumerate(zip(document, config, strict=True)):
            yield from _lost_flags(value, inner, (*path, str(index)))
