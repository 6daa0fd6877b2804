"""The validated schema of a run. Every block is defined beside the component that it configures; this file composes
them, and ``consistency`` checks that they fit each other.

A run is described by one YAML file and dotted ``key=value`` overrides, which :func:`load` reads. Derived values are
properties. The ``config.yaml`` that is written to a run folder validates to an equal object.
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
RESULT_NEUTRAL = ("name", "resources", "checkpoint", "figures")  # blocks that do not affect results


def method_kinds() -> dict[str, type[MethodConfig]]:
    """Name of a method -> its ``method:`` block."""
    return {name: method.config for name, method in METHODS.items()}


def plugin_kinds() -> dict[str, type[MethodConfig]]:
    """Name of a plug-in -> its block, an entry of ``plugins:``."""
    return {name: method.config for name, method in METHODS.items() if method.plugin is not None}


class RunConfig(RunSettings):
    """A run's settings, whose method and plug-ins exist and whose blocks fit each other."""

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
        """The entries of ``imports``, with their sources."""
        return self._extensions

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles a config with imports as a document, so that unpickling can load the imports first."""
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
    """The configuration in a run's YAML file, with its profile and the dotted overrides applied. Raises UserError with
    a line for every wrong key.

    The code of the file's ``imports`` is run; use :func:`load_untrusted` for files of third parties.
    """
    return load_changed(path, configfile.parse_overrides(overrides))


def load_changed(path: Path, changes: Mapping[str, object]) -> RunConfig:
    """Like :func:`load`, with the overrides as a mapping of dotted keys to values. A value "?" asks what is allowed;
    the answer is raised as a ConfigError.
    """
    document = as_made(path, configfile.read(path))
    if asked := [key for key, value in changes.items() if value == "?"]:
        raise configfile.ConfigError("\n".join(_answer(document, changes, key, path) for key in asked))
    imports = extensions.gather(changes.get("imports", document.get("imports")), path.parent)
    make = build if is_of_a_run(path) else build_written  # a run's file has every key, also those without effect
    config = make(document, changes, origin=str(path), imports=imports)
    for profile in document.get("profiles") or {}:
        if profile != config.profile:
            _check_profile(document, changes, profile, str(path), imports)
    return config


def _answer(document: Mapping[str, Any], changes: Mapping[str, object], key: str, path: Path) -> str:
    """What is allowed at ``key``: the error for the value ``?``. For a list or a block, it is the error for ``?`` as an
    entry or a key of it.
    """
    known = {other: value for other, value in changes.items() if value != "?"}
    answer = _refusal(document, known, key, "?", path)
    if answer.endswith("must be a list"):
        answer = _refusal(document, known, key, ["?"], path)
        if answer.endswith(MAPPING):
            answer = _refusal(document, known, key, [{"name": "?"}], path)
    elif answer.endswith(MAPPING):
        answer = _refusal(document, known, key, {"?": 0}, path)
        answer = answer.replace(".?: found 0; unknown key, allowed here", ": found '?'; a mapping, allowed keys")
    return answer or f"{key}: found '?'; must be {kind_of(RunConfig, key, configfile.merge(document, {key: '?'}))}"


def _refusal(document: Mapping[str, Any], known: Mapping[str, object], key: str, value: object, path: Path) -> str:
    """The error line about ``key`` for the document with ``value`` at ``key``; empty if there is none."""
    try:
        imports = extensions.gather(known.get("imports", document.get("imports")), path.parent)
        build(document, {**known, key: value}, origin=str(path), imports=imports)
    except UserError as error:
        return next((line for line in str(error).splitlines() if line.startswith((f"{key}:", f"{key}."))), "")
    return ""


def load_untrusted(path: Path, overrides: Sequence[str] = (), *, trust_imports: bool = False) -> RunConfig:
    """Like :func:`load`, for the config.yaml of a run folder. Raises UserError if it has ``imports``, whose code would
    be run, unless ``trust_imports`` is set.
    """
    if (named := configfile.read(path).get("imports")) and not trust_imports:
        raise UserError(f"{path}: found imports: {named}; this run brings code of its own, which --trust-imports runs")
    config = load_of_run(path)  # first without overrides, so that errors in the file name the file
    return load(path, overrides) if overrides else config


def load_of_run(path: Path) -> RunConfig:
    """Like :func:`load`, for the config.yaml that a run has written. Every line of an error names this file, because
    the mistake is not in a file of the user's; another version may have written it, for example.
    """
    try:
        return load(path)
    except configfile.ConfigError as error:
        lines = [line if line.startswith(str(path)) else f"{path}: {line}" for line in str(error).splitlines()]
        raise configfile.ConfigError("\n".join(lines)) from None


def _check_profile(
    document: Mapping[str, Any], changes: Mapping[str, object], profile: str, path: str, imports: Sequence[Extension]
) -> None:
    """Raise UserError for a mistake in a profile that was not chosen; otherwise it would show only when the profile is
    used, perhaps on another machine.
    """
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
    """The validated configuration of a document, with its profile and the dotted ``changes`` merged into it.
    ``imports`` are loaded first.
    """
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
        raise UserError(
            f"{origin}: found imports: {merged['imports']}; they are read where the config is a file, and those of a "
            "sweep or comparison in its overrides"
        )
    config = _with(configfile.validate(RunConfig, with_defaults(merged), origin=origin), imports)
    refuse_given(config, changes, _unused(config))
    return config


def build_written(document: Mapping[str, Any], changes: Mapping[str, object], **of: Any) -> RunConfig:
    """Like :func:`build`, for a document that a user wrote: a key that stands beside the key that disables it is
    refused.
    """
    config = build(document, changes, **of)
    refuse_beside(config, document, _unused(config))
    return config


def _unused(config: RunConfig) -> dict[str, str]:
    """Key without effect -> what it needs: the keys that the method declares, those of an image's second view if the
    run makes none, and those of a direction in which no weights are sent.
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
    """The directions in which the method or a plug-in sends weights."""
    plugins = (METHODS[block.name] for block in config.plugins)
    rows = [METHODS[config.method.name], *(row for row in plugins if row.exchanges_as_plugin)]
    return frozenset(way for row in rows for way in row.sends_weights(config))


def _with(config: RunConfig, imports: Sequence[Extension]) -> RunConfig:
    """``config``, whose ``extensions`` are set to ``imports``."""
    config._extensions = tuple(imports)
    return config


def _revived(document: dict[str, Any], imports: tuple[Extension, ...]) -> RunConfig:
    """A config out of its pickle."""
    extensions.load(imports)
    return _with(RunConfig.model_validate(document), imports)
