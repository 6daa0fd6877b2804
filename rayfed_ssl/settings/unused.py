"""Refuses keys that were given but have no effect because of other keys.

A key in a file may be meant for other runs of the file, so an option that disables it does not make it a mistake. A key
is refused only if it is given for this run, or at the same place as the key that disables it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from rayfed_ssl.data.images import are_bands
from rayfed_ssl.data.partition import FeatureSkew
from rayfed_ssl.data.recipes import AugmentConfig
from rayfed_ssl.evaluation.config import EvaluationConfig
from rayfed_ssl.models import ModelConfig
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.settings.blocks import DataConfig, TrainConfig, refuse_unused
from rayfed_ssl.settings.files import ConfigError, flat
from rayfed_ssl.settings.run import PluginConfig, RunSettings


def refuse_given(config: RunSettings, changes: Mapping[str, object], unused: Mapping[str, str]) -> None:
    """Refuse keys among ``changes``, nested or dotted, that have no effect and do not have their default values.

    Args:
        unused: key of the method without effect -> what it needs, ``KEY=VALUE``.
    Raises:
        ConfigError: with a line for each such key.
    """
    given = _numbered(changes)
    _refuse(config, {key: needs for key, needs in _all(config, unused).items() if _among(given, key)})


def refuse_beside(config: RunSettings, document: Mapping[str, Any], unused: Mapping[str, str]) -> None:
    """Refuse a key of a document if the key that disables it stands in the document, too, and has the run's value
    there. The keys of the run's profile are checked in the same way.

    A document or profile that has every key was resolved from defaults, and is not checked.

    Raises:
        ConfigError: with a line for each such key.
    """
    profile = (document.get("profiles") or {}).get(config.profile) or {}
    for written in (document, profile):
        _refuse_in(config, written, unused)


def _refuse_in(config: RunSettings, written: Mapping[str, Any], unused: Mapping[str, str]) -> None:
    """:func:`refuse_beside` for one place, the document or its profile."""
    given, resolved = _numbered(written), _numbered(config.model_dump(mode="json"))
    if {f"train.{name}" for name in TrainConfig.model_fields} - {"train.optimizer"} <= given.keys():
        return
    found = {}
    for key, needs in _all(config, unused).items():
        causes = resolved.keys() & re.split("[= ]", needs)
        settled = {by for by in causes if by in given or resolved[by] is not None}  # null: another key decides
        if _among(given, key) and settled and all(by in given and given[by] == resolved[by] for by in settled):
            found[key] = needs
    _refuse(config, found)


def second_view_keys(config: RunSettings, allowed: Sequence[str]) -> dict[str, str]:
    """Key of an image's second view -> what it needs; empty if the objective trains on two views.

    ``rank`` measures alignment on two views made as in training. It does not count as a use of these keys, because
    training makes only one view.

    Args:
        allowed: the objectives that the method can use.
    """
    if build_objective(config.objective).views > 1:
        return {}
    found, method = config.objective.name, config.method.name
    needs = f"objective.name=one with two views of an image ({found} has one)"
    if len(allowed) == 1:
        needs = f"method.name=one that trains on two views of an image ({method} trains on one)"
    keys = (name for name in AugmentConfig.model_fields if name.startswith("second_"))
    return {f"augment.{name}": needs for name in keys}


def _numbered(changes: Mapping[str, object]) -> dict[str, Any]:
    """Dotted key -> value, also of the blocks in a list: ``plugins.0.weight``."""
    found = flat(changes)
    for key, value in tuple(found.items()):
        blocks = value if isinstance(value, list | tuple) else ()
        found |= flat({f"{key}.{place}": block for place, block in enumerate(blocks) if isinstance(block, Mapping)})
    return found


def _among(given: Mapping[str, object], key: str) -> bool:
    """Whether ``key`` is given, or, if it is a block, one of its keys."""
    return key in given or any(name.startswith(f"{key}.") for name in given)


def _all(config: RunSettings, unused: Mapping[str, str]) -> dict[str, str]:
    """Key without effect -> what it needs: the run's own keys, those of plug-ins, of the objective and, ``unused``, of
    the method.
    """
    found = dict[str, str]()
    if config.train.local_steps is not None:
        found["train.local_epochs"] = "train.local_steps=null"
    if config.train.optimizer.name not in ("sgd", "lars"):
        found["train.optimizer.momentum"] = "train.optimizer.name=sgd or lars"
    elif config.train.optimizer.momentum == 0:
        found["train.optimizer.keep"] = "train.optimizer.momentum above 0"
    if config.train.optimizer.name != "lars":
        found["train.optimizer.trust_coefficient"] = "train.optimizer.name=lars"
    if config.resources.device == "cpu":
        found["train.precision"] = "resources.device=auto or cuda"
    if config.server.schedule == "fedbuff":  # FedBuff's server only adds up replies, and waits for enough of them
        keys = "system.server_seconds_per_image", "system.minimum_replies"
        found |= dict.fromkeys(keys, "server.schedule=sync")
    if config.server.optimizer.name == "adagrad":
        found["server.optimizer.beta_2"] = "server.optimizer.name=adam or yogi"
    if config.data.channels != 3 and config.augment.gray_p:
        found["augment.gray_p"] = "data.channels=3"
    found |= _of_data(config.data) | _of_heads(config.model) | _of_views(config.augment)
    found |= _of_protocols(config.evaluation)
    for path, plugin in _plugins(config).items():
        found |= plugin.unused(path)
    return {**found, **config.objective.unused(), **unused}


def _of_data(data: DataConfig) -> dict[str, str]:
    """What of the images, and of how they are dealt, has no effect."""
    found, split = dict[str, str](), data.partition
    if data.tasks is None:
        found["data.task_images"] = "data.tasks"
        if data.public.source != "share":
            found["data.public.share"] = "data.public.source=share"
    if are_bands(data.channels):
        found["data.background"] = "data.channels=3 or 1"
    elif data.bands is not None:
        found["data.background"] = "data.bands=null"
    if not split.draws and data.public.source != "share":
        found["data.partition.seed"] = f"data.partition.name=one that draws ({split.name} draws nothing)"
    if isinstance(split, FeatureSkew) and set(split.corruptions) == {"none"}:
        found["data.partition.severity"] = "data.partition.corruptions with another than none"
    return found


def _of_heads(config: ModelConfig) -> dict[str, str]:
    """BatchNorm of the hidden layers of heads that have none."""
    heads = {"model.projector": config.projector, "model.predictor": config.predictor}
    return {
        f"{path}.batch_norm": f"{path}.hidden with a layer, or all"
        for path, head in heads.items()
        if head is not None and not head.hidden and head.batch_norm == "hidden"
    }


def _of_protocols(config: EvaluationConfig) -> dict[str, str]:
    """What of a protocol has no effect because of the protocol's other keys. A protocol that a run does not measure by
    may be asked for later, by its settings (``rayfed-ssl evaluate``).
    """
    found, transfer = dict[str, str](), config.transfer
    if config.knn.k == 1:
        found["evaluation.knn.temperature"] = "evaluation.knn.k above 1"
    for path, tuning in {"semi": config.semi, "transfer.finetune": transfer.finetune}.items():
        if tuning.optimizer != "sgd":
            found[f"evaluation.{path}.momentum"] = f"evaluation.{path}.optimizer=sgd"
    for path, probe in {"linear": config.linear, "transfer.linear": transfer.linear}.items():
        if "ours" not in probe.recipes:
            ours = (f"evaluation.{path}.{name}" for name in ("epochs", "lr", "batch_size"))
            found |= dict.fromkeys(ours, f"evaluation.{path}.recipes with ours")
    for way, block in {"linear": transfer.linear, "finetune": transfer.finetune}.items():
        if way not in transfer.by:
            keys = (f"evaluation.transfer.{way}.{name}" for name in type(block).model_fields)
            found |= dict.fromkeys(keys, f"evaluation.transfer.by with {way}")
    return found


def _of_views(config: AugmentConfig) -> dict[str, str]:
    """What of a jitter or a blur has no effect, because another value of it, often the preset's, leaves it out."""
    recipe, found, preset = config.recipe(), dict[str, str](), f"augment.preset={config.preset} has 0"

    def needs(key: str, what: str) -> str:
        return f"augment.{key} {what}" + (f" where {preset}" if getattr(config, key) is None else "")

    if not recipe.jitter_p and any(config.jitter or ()):
        found["augment.jitter"] = needs("jitter_p", "above 0")
    if not any(recipe.jitter) and config.jitter_p:
        found["augment.jitter_p"] = needs("jitter", "with a strength above 0")
    if not (recipe.blur_p or recipe.second_blur_p):
        found["augment.blur_sigma"] = needs("blur_p", "above 0")
    return found


def _plugins(config: RunSettings) -> dict[str, PluginConfig]:
    """The blocks of plug-ins by the paths at which they stand."""
    method = {"method": config.method} if isinstance(config.method, PluginConfig) else {}
    return {**method, **{f"plugins.{place}": plugin for place, plugin in enumerate(config.plugins)}}


def _refuse(config: RunSettings, unused: Mapping[str, str]) -> None:
    """Raise ConfigError with a line for each of these keys that does not have its default value."""
    lines = []
    for key, needs in unused.items():
        path, _, name = key.rpartition(".")
        try:
            refuse_unused(reduce(_in, path.split("."), config), path, name, needs=needs)
        except ValueError as refusal:
            lines.append(str(refusal))
    if lines:
        raise ConfigError("\n".join(lines))


def _in(block: Any, key: str) -> Any:
    """The value of a block's key, or the block of a list with this number."""
    return block[int(key)] if isinstance(block, tuple) else getattr(block, key)
