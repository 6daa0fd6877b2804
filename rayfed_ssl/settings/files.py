"""Configuration files: YAML, named profiles, dotted ``key=value`` overrides, and errors a person can act on.

The machinery only; the schema is ``rayfed_ssl.config``. Precedence: file < profile < command line. A block that names
its kind (``method``, ``objective``, ...) is replaced as a whole when that name changes, because the old kind's keys
mean nothing to the new one. What a user can get wrong ends in a ``UserError``; ``validate`` reports all of it at once.
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
"""The blocks whose ``name`` decides which other keys they may hold."""

IMPORTS = ("imports", "overrides.imports")  # of a run's file, of a sweep's or a comparison's

OF_RUN = "config.yaml"  # in a run folder

LARGEST = 4 * 2**20  # bytes of a YAML file


class ConfigError(UserError):
    """Everything that is wrong with a configuration: one line per error, each opening with the key's dotted path."""


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ``UserError`` where it is missing, too large, not YAML, or not a mapping."""
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
    except (OSError, ValueError):  # no path at all
        return False


def of_run(folder: Path, called: str | None = None) -> Path:
    """The configuration of a run folder, which ``called`` names as the user did. Raises UserError where none is."""
    path = folder / OF_RUN
    if not path.is_file():
        missing = "config.yaml" if folder.is_dir() else "such folder"
        raise UserError(f"{printable(called or folder)}: found no {missing}; must be a run folder")
    return path


def overlay(document: Mapping[str, Any], profile: str | None, tagged: Collection[str] = TAGGED) -> dict[str, Any]:
    """The document with one of its ``profiles`` laid over it.

    ``profile``, else the document's own ``profile`` key, else ``cpu`` names the profile. The result keeps the name
    under ``profile`` and has no ``profiles``, so a resolved file reads the same again. Raises ``UserError`` for a name
    that the document does not offer.
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
    return {**merge(base, changes, tagged), "profile": chosen}


def parse_overrides(items: Sequence[str]) -> dict[str, object]:
    """``["train.rounds=3"]`` as ``{"train.rounds": 3}``; values are YAML, the last of equal keys wins. Files among
    ``imports`` are seen from the working folder.

    Raises ``UserError`` for an item that is not ``key=value`` or whose value is not YAML.
    """
    overrides: dict[str, object] = {}
    for item in items:
        key, equals, text = item.partition("=")
        key = key.strip()
        if not equals or not re.fullmatch(r"[^\s.]+(\.[^\s.]+)*", key):
            raise UserError(f"command line: found {value_text(item)}; must be key=value, such as train.rounds=3")
        try:
            value = "?" if text.strip() == "?" else parse(text)  # the question; YAML reads it as a key without a name
        except yaml.YAMLError as error:
            raise UserError(
                f"{printable(key)}: found {value_text(text)}; must be a YAML value, text with signs in quotes "
                f"({problem(error)})"
            ) from None
        overrides.pop(key, None)
        overrides[key] = from_here(value) if key in IMPORTS else value
    return overrides


def from_here(imports: object) -> object:
    """``imports`` with the paths of files, which end in .py, seen from the working folder; all else as it is."""
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
    """The document with the overrides written into it; neither argument is changed.

    Keys may be dotted (``clients.encoders.0`` reaches into a list) and values may be mappings, which merge key by key;
    any other value replaces what stood there. A block listed in ``tagged`` whose ``name`` changes loses its old keys
    first. Raises ``UserError`` for a path that leads through something without keys, or past the end of a list.
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
    """``document`` as a ``model``. ``origin`` (the file) names what is wrong with the document as a whole.

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
    """Write the resolved config as YAML, in the schema's order; ``read`` and ``validate`` give an equal model back.

    The file appears whole or not at all.
    """
    replace_file(path, lambda draft: draft.write_text(dumped(config), encoding="utf-8"), path.parent, shared=True)


def dumped(config: BaseModel) -> str:
    """The text that :func:`dump` writes."""
    values = config.model_dump(mode="json")
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def _text(path: Path) -> str:
    """What a regular file of at most ``LARGEST`` bytes says. Raises OSError, UnicodeError or UserError."""
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or path.is_dir()):  # a pipe or device might never end
        raise UserError(f"{printable(path)}: found no regular file; must be a readable YAML file")
    if status.st_size > LARGEST:
        raise UserError(f"{printable(path)}: found {status.st_size} bytes; a YAML file has at most {LARGEST}")
    return path.read_text(encoding="utf-8")


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def leaves(changes: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every (path, value) of nested and dotted keys; an empty mapping is a value."""
    for key, value in changes.items():
        here = (*path, *str(key).split("."))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, here)
        else:
            yield here, value


def flat(changes: Mapping[str, object]) -> dict[str, Any]:
    """The same by dotted key."""
    return {".".join(path): value for path, value in leaves(changes)}


def _at(tree: Any, path: Sequence[str]) -> Any:
    """What stands at ``path`` in nested mappings, or None."""
    for part in path:
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Write ``value`` at ``path``, making the mappings that are missing on the way."""
    here: Any = tree
    for depth, part in enumerate(path[:-1]):
        key = _key(here, path, depth)
        if isinstance(here, dict) and here.get(part) is None:
            here[key] = {}
        here = here[key]
    key = _key(here, path, len(path) - 1)
    if value == {} and isinstance(value, dict) and isinstance(here, dict) and isinstance(here.get(key), dict):
        return  # merging nothing into a block leaves it as it is
    here[key] = value


def _key(container: Any, path: tuple[str, ...], depth: int) -> str | int:
    """``path[depth]`` as a key of ``container``, an index where that is a list."""
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
    """The keys where true or false was quietly read as the number 1 or 0, which pydantic's lax mode does."""
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
