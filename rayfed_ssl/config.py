"""One validated schema for a run. Every block is defined beside the component it configures; this file composes them,
and ``consistency`` checks that they go together.

A run is one YAML file plus dotted ``key=value`` overrides, read by :func:`load`. Derived values are properties; what is
written to a run folder's ``config.yaml`` validates to an equal object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import PrivateAttr, field_validator, model_validator

from rayfed_ssl import extensions
from rayfed_ssl.base.choice import OneOf
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.consistency import check_consistent
from rayfed_ssl.defaults import as_made, is_of_a_run, replace_objective, with_defaults
from rayfed_ssl.extensions import Extension
from rayfed_ssl.methods import METHODS
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.settings.blocks import MethodConfig
from rayfed_ssl.settings.errors import kind_of
from rayfed_ssl.settings.run import PluginConfig, RunSettings
from rayfed_ssl.settings.transport import DIRECTIONS, Direction
from rayfed_ssl.settings.unused import refuse_beside, refuse_given, second_view_keys

MAPPING = "must be a mapping of keys to values"
NAME = re.compile(r"[^\W_][\w.-]{0,99}")
RESULT_NEUTRAL = ("name", "resources", "checkpoint", "figures")  # blocks that change no result


def method_kinds() -> dict[str, type[MethodConfig]]:
    """The ``method:`` block of every method there is."""
    return {name: method.config for name, method in METHODS.items()}


def plugin_kinds() -> dict[str, type[MethodConfig]]:
    """The entry of ``plugins:`` of every plug-in there is."""
    return {name: method.config for name, method in METHODS.items() if method.plugin is not None}


class RunConfig(RunSettings):
    """A run's settings, its method and plug-ins of kinds that exist, and all blocks fitting each other."""

    imports: tuple[str, ...] = ()
    """Python files, or modules, that define methods, objectives, heads, encoders, sources, partitions or protocols. A
    path is relative to the file that it stands in; on the command line, to the working folder."""
    method: Annotated[MethodConfig, OneOf(method_kinds)]
    """The federated method; ``rayfed-ssl methods`` lists what each transmits and needs."""
    plugins: tuple[Annotated[PluginConfig, OneOf(plugin_kinds)], ...] = ()
    """Plug-ins, which add loss terms to the method's local training."""

    _extensions: tuple[Extension, ...] = PrivateAttr(())

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """What ``imports`` named, as it was read."""
        return self._extensions

    def __reduce_ex__(self, protocol: Any) -> Any:
        """With imports, pickled as a document: unpickling imports these first."""
        if not self._extensions:
            return super().__reduce_ex__(protocol)
        return _revived, (self.model_dump(mode="json"), self._extensions)

    @field_validator("name")
    @classmethod
    def _a_file_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("must be letters, digits, '.', '_' and '-', the first a letter or digit, at most 100")
        return name

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_method(cls, document: Any) -> Any:
        return with_defaults(document)

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        check_consistent(self)
        return self


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's YAML with its profile and the dotted overrides applied. Raises UserError naming every wrong key.

    The file's ``imports`` are run: a third party's file is read by :func:`load_untrusted`.
    """
    return load_changed(path, configfile.parse_overrides(overrides))


def load_changed(path: Path, changes: Mapping[str, object]) -> RunConfig:
    """Like :func:`load`, with the overrides as dotted keys and their values."""
    document = as_made(path, configfile.read(path))
    if asked := [key for key, value in changes.items() if value == "?"]:
        raise configfile.ConfigError("\n".join(_answer(document, changes, key, path) for key in asked))
    found = extensions.gather(changes.get("imports", document.get("imports")), path.parent)
    make = build if is_of_a_run(path) else build_written  # that file has every key
    config = make(document, changes, origin=str(path), imports=found)
    for profile in document.get("profiles") or {}:
        if profile != config.profile:
            _check_profile(document, changes, profile, str(path), found)
    return config


def _answer(document: Mapping[str, Any], changes: Mapping[str, object], key: str, path: Path) -> str:
    """What may stand at ``key``: the line that refuses ``?`` there, or, of a list or block, refuses ``?`` within it."""
    known = {other: value for other, value in changes.items() if value != "?"}
    asked = _refusal(document, known, key, "?", path)
    if asked.endswith("must be a list"):
        asked = _refusal(document, known, key, ["?"], path)
        if asked.endswith(MAPPING):
            asked = _refusal(document, known, key, [{"name": "?"}], path)
    elif asked.endswith(MAPPING):
        asked = _refusal(document, known, key, {"?": 0}, path)
        asked = asked.replace(".?: found 0; unknown key, allowed here", ": found '?'; a mapping, allowed keys")
    return asked or f"{key}: found '?'; must be {kind_of(RunConfig, key, configfile.merge(document, {key: '?'}))}"


def _refusal(document: Mapping[str, Any], known: Mapping[str, object], key: str, value: object, path: Path) -> str:
    """The line about ``key`` that the document with ``value`` there gets; empty where it gets none."""
    try:
        imports = extensions.gather(known.get("imports", document.get("imports")), path.parent)
        build(document, {**known, key: value}, origin=str(path), imports=imports)
    except UserError as error:
        return next((line for line in str(error).splitlines() if line.startswith((f"{key}:", f"{key}."))), "")
    return ""


def load_untrusted(path: Path, overrides: Sequence[str] = (), *, trust_imports: bool = False) -> RunConfig:
    """Like :func:`load`, for what reads run folders. Raises UserError where the run would bring code of its own."""
    if (named := configfile.read(path).get("imports")) and not trust_imports:
        raise UserError(f"{path}: found imports: {named}; this run brings code of its own, which --trust-imports runs")
    began = load_of_run(path)
    return load(path, overrides) if overrides else began


def load_of_run(path: Path) -> RunConfig:
    """Like :func:`load`, of the config.yaml that a run has written: what is wrong in it, as where another version wrote
    it, is nothing in the user's own file, so every line names it.
    """
    try:
        return load(path)
    except configfile.ConfigError as error:
        lines = [line if line.startswith(str(path)) else f"{path}: {line}" for line in str(error).splitlines()]
        raise configfile.ConfigError("\n".join(lines)) from None


def _check_profile(
    document: Mapping[str, Any], changes: Mapping[str, object], profile: str, path: str, imports: Sequence[Extension]
) -> None:
    """Raise UserError for a profile nobody chose now: its mistakes would show on the machine it is for."""
    try:
        build(document, {"profile": profile}, origin=path, imports=imports)
    except UserError as alone:
        try:
            build(document, {**changes, "profile": profile}, origin=path, imports=imports)
        except UserError:
            lines = [f"profiles.{printable(profile)}: {line}" for line in str(alone).splitlines()]
            raise configfile.ConfigError("\n".join(lines)) from None


def build(
    document: Mapping[str, Any], changes: Mapping[str, object], *, origin: str, imports: Sequence[Extension] = ()
) -> RunConfig:
    """A document (with its ``profiles``) and dotted changes to a validated config; ``imports`` are run first."""
    extensions.load(imports)
    chosen = changes.get("profile", document.get("profile"))
    merged = configfile.overlay(dict(document), None if chosen is None else str(chosen))
    before = merged.get("method", {})
    merged = configfile.merge(merged, changes)
    if "method.name" in changes and merged["method"] != before:
        replace_objective(merged, changes)
    if imports:
        merged["imports"] = [extension.name for extension in imports]
    elif merged.get("imports"):
        raise UserError(f"{origin}: found imports: {merged['imports']}; they are read where the config is a file")
    config = _with(configfile.validate(RunConfig, with_defaults(merged), origin=origin), imports)
    refuse_given(config, changes, _unused(config))
    return config


def build_written(document: Mapping[str, Any], changes: Mapping[str, object], **of: Any) -> RunConfig:
    """Like :func:`build`, of what a user wrote: a key beside the one that leaves it without effect is refused."""
    config = build(document, changes, **of)
    refuse_beside(config, document, _unused(config))
    return config


def _unused(config: RunConfig) -> dict[str, str]:
    """The keys without effect that the method says, those of a second view of an image where the run makes none, and
    those of weights that do not cross.
    """
    method, *plugins = (METHODS[block.name] for block in (config.method, *config.plugins))
    second = any(row.second_view for row in (method, *plugins))
    views = {} if second else second_view_keys(config, method.objectives)
    unsent = {
        f"transport.{way}": f"method.name=one that sends weights {way} ({config.method.name} sends none)"
        for way in DIRECTIONS
        if way not in sends_weights(config)
    }
    return {**views, **unsent, **method.unused(config)}


def sends_weights(config: RunConfig) -> frozenset[Direction]:
    """In which directions the method, or a plug-in, sends weights."""
    plugins = (METHODS[block.name] for block in config.plugins)
    rows = [METHODS[config.method.name], *(row for row in plugins if row.exchanges_as_plugin)]
    return frozenset(way for row in rows for way in row.sends_weights(config))


def _with(config: RunConfig, imports: Sequence[Extension]) -> RunConfig:
    config._extensions = tuple(imports)
    return config


def _revived(document: dict[str, Any], imports: tuple[Extension, ...]) -> RunConfig:
    extensions.load(imports)
    return _with(RunConfig.model_validate(document), imports)
