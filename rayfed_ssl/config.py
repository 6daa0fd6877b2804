"""One validated schema for a run. Every block is defined beside the component it configures; this file composes them.

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
from rayfed_ssl.defaults import as_made, is_of_a_run, replace_objective, with_defaults
from rayfed_ssl.extensions import Extension
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import HEADS, check_options, check_patches
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.settings.blocks import MethodConfig, refuse_unused
from rayfed_ssl.settings.errors import kind_of
from rayfed_ssl.settings.run import PluginConfig, RunSettings
from rayfed_ssl.settings.transport import DIRECTIONS, Direction
from rayfed_ssl.settings.unused import refuse_beside, refuse_given, second_view_keys

MAPPING = "must be a mapping of keys to values"
NAME = re.compile(r"[^\W_][\w.-]{0,99}")


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
        _check_objective(self)
        _check_heads(self)
        _check_data(self)
        _check_tasks(self)
        _check_warmup(self)
        _check_schedule(self)
        method = METHODS[self.method.name]
        if self.clients.heterogeneous and not method.info.heterogeneous:
            raise ValueError(
                f"clients.encoders: {self.method.name} averages weights, so all clients need one architecture"
            )
        if self.model.initial == "own" and not method.info.heterogeneous:
            raise ValueError(
                f"model.initial: found 'own'; clients of {self.method.name} begin with the server's weights; allowed: "
                "common"
            )
        for check in (method.check, *(METHODS[p.name].check for p in self.plugins)):
            if check is not None:
                check(self)
        if self.averages_target and not method.averages_targets:  # after the method's own check, which may allow less
            found = f"found 'averaged'; {self.method.name} averages no weights with targets"
            raise ValueError(f"objective.target: {found}; allowed: local, reset")
        _check_model(self)
        for reason, least in self.least_batches:
            if self.train.batch_size < least:
                raise ValueError(f"train.batch_size: found {self.train.batch_size}; {reason} needs at least {least}")
        return self


def _check_objective(config: RunConfig) -> None:
    """Raise ValueError for an objective that the method, or a plug-in, cannot use."""
    method, found = METHODS[config.method.name], config.objective.name
    if found not in (allowed := method.objectives):
        raise ValueError(f"objective.name: found '{found}'; {config.method.name} allows {', '.join(allowed)}")
    names = [plugin.name for plugin in config.active_plugins]
    if len(set(names)) != len(names):
        own = ", the first of which is the method" if isinstance(config.method, PluginConfig) else ""
        raise ValueError(f"plugins: found {', '.join(names)}{own}; allowed: each at most once")
    for name in names:
        if found not in (allowed := METHODS[name].objectives):
            raise ValueError(f"objective.name: found '{found}'; the plug-in {name} allows {', '.join(allowed)}")


def _check_heads(config: RunConfig) -> None:
    """Raise ValueError for a head that the objective, or the method, needs and nobody brings."""
    objective, method = config.objective.name, config.method
    needs = {("objective", objective): OBJECTIVES[objective].heads, ("method", method.name): method.heads}
    for (block, found), heads in needs.items():
        for head in sorted(heads - HEADS.keys()):
            raise ValueError(
                f"{block}.name: found '{found}', which needs the head '{head}'; must be one of {', '.join(HEADS)}"
                f"{HEADS.nearest(head)}"
            )


def _check_model(config: RunConfig) -> None:
    """Raise ValueError for a key of the model block that no encoder of the run has, a server's student included; and
    for a client's encoder that the objective cannot train.
    """
    if OBJECTIVES[config.objective.name].shows_patches:
        check_patches(config.clients.architectures, config.model, config.objective.name)
    check_options([*config.clients.architectures, *config.method.server_encoders], config.model)


def _check_data(config: RunConfig) -> None:
    """Raise ValueError where who holds what, and what is public, do not go together."""
    data = config.data
    if (pad := config.augment.recipe().pad) >= data.image_size:
        raise ValueError(
            f"augment.pad: found {pad}; images of {data.image_size} x {data.image_size} can be reflected by less; "
            f"allowed: below {data.image_size}"
        )
    for key in ("mean", "std"):
        given = getattr(config.augment, key)
        if given is not None and len(given) not in (3, data.channels):
            many = "3" if data.channels == 3 else f"3 or data.channels={data.channels}"
            raise ValueError(f"augment.{key}: found {len(given)} values; allowed: {many}")
    other = config.evaluation.transfer.data
    if other is not None and "transfer" in config.evaluation.protocols and other.channels != data.channels:
        raise ValueError(
            f"evaluation.transfer.data.channels: found {other.channels}; encoders of this run read {data.channels}, "
            f"data.channels; allowed: {data.channels}"
        )
    if config.uses_public and data.public.source == "none" and data.tasks is None:
        allowed = "client 0, source" if data.partition.natural else "client 0, share, source"
        raise ValueError(f"data.public.source: {config.method.name} needs public images; allowed: {allowed}")
    if data.partition.natural and data.public.source == "share":
        name = data.partition.name
        raise ValueError(f"data.public.source: 'share' cannot be taken out of `{name}`; allowed: client 0, source")
    if data.partition.listed and config.evaluation.select is not None:
        raise ValueError(
            f"evaluation.select: found a share beside data.partition.name={data.partition.name}, which says itself who "
            "holds what; allowed then: null"
        )


def _check_tasks(config: RunConfig) -> None:
    """Raise ValueError for a key that ``data.tasks`` leaves no room for, or that needs it."""
    data = config.data
    if data.tasks is None:
        if config.evaluation.tasks_on != "own":
            raise ValueError(
                f"evaluation.tasks_on: found {config.evaluation.tasks_on} without data.tasks; allowed then: own"
            )
        return
    if data.partition.name != "iid":
        raise ValueError(
            f"data.partition: found '{data.partition.name}' beside data.tasks, which says itself who holds "
            "what; allowed then: data.partition={name: iid}"
        )
    for key, group in {"columns.group": data.columns.group, "group": data.group}.items():
        if group is not None:
            raise ValueError(
                f"data.{key}: found '{group}' beside data.tasks, whose images are dealt and held out one by one; "
                "allowed then: null"
            )
    if config.evaluation.select is not None:
        raise ValueError(
            "evaluation.select: found a share beside data.tasks, where every client holds images out itself (rb, "
            "measured as select/task); allowed then: null"
        )


def _check_warmup(config: RunConfig) -> None:
    """Raise ValueError where the learning rate's warm-up leaves no round for its schedule."""
    warmup, rounds = config.train.optimizer.warmup, config.train.rounds
    if warmup >= rounds:
        raise ValueError(f"train.optimizer.warmup: found {warmup}; allowed: below train.rounds={rounds}")


def _check_schedule(config: RunConfig) -> None:
    """Raise ValueError where the server's schedule, the clients' system and the method do not go together."""
    over, server = config.participation.over, config.server
    if server.optimizer.name != "average":
        _check_server_optimizer(config)
    if over > 1 and config.system is None:
        raise ValueError(f"participation.over: found {over:g}; it needs a system block, which says who replies first")
    if server.schedule == "sync":
        keys = "buffer", "concurrency", "staleness_max", "lr"
        refuse_unused(server, "server", *keys, needs="server.schedule=fedbuff")
        return
    if config.system is None:
        raise ValueError("server.schedule: found 'fedbuff'; it needs a system block, which says who replies when")
    if over > 1:
        raise ValueError(f"participation.over: found {over:g}; server.schedule=fedbuff asks one by one; allowed: 1")
    if not METHODS[config.method.name].buffered:
        able = ", ".join(name for name, method in METHODS.items() if method.buffered)
        raise ValueError(
            f"server.schedule: found 'fedbuff', but a round of {config.method.name} is not one exchange of weights "
            f"that ends with their plain mean; allowed: sync (fedbuff goes with {able})"
        )
    if exchanging := [plugin.name for plugin in config.plugins if METHODS[plugin.name].exchanges_as_plugin]:
        raise ValueError(
            f"plugins: found {', '.join(exchanging)}; server.schedule=fedbuff allows only those that exchange nothing"
        )
    if config.averages_target:
        raise ValueError("objective.target: found 'averaged'; server.schedule=fedbuff allows local, reset")
    if (server.concurrency or 1) > config.clients.count:
        raise ValueError(
            f"server.concurrency: found {server.concurrency}; allowed: at most clients.count={config.clients.count}"
        )


def _check_server_optimizer(config: RunConfig) -> None:
    """Raise ValueError where a server's optimiser has no plain mean to step towards, or FedBuff takes its own step."""
    found = config.server.optimizer.name
    if not METHODS[config.method.name].optimizable:
        able = ", ".join(name for name, method in METHODS.items() if method.optimizable and method.plugin is None)
        raise ValueError(
            f"server.optimizer.name: found '{found}', but {config.method.name}'s server step is no plain mean of "
            f"weights; allowed: average ('{found}' goes with {able})"
        )
    if config.server.schedule == "fedbuff":
        raise ValueError(
            f"server.optimizer.name: found '{found}'; server.schedule=fedbuff steps by server.lr; allowed: average"
        )


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


RESULT_NEUTRAL = ("name", "resources", "checkpoint", "figures")  # blocks that change no result
