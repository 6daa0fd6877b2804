"""Refuses given keys that have no effect because of other keys.

A key in a file may be meant for other runs of it: an option that leaves it without effect does not make it wrong. So
what counts is what is given for this run, or at one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from rayfed_ssl.settings.blocks import TrainConfig, refuse_unused
from rayfed_ssl.settings.files import ConfigError, flat
from rayfed_ssl.settings.run import RunSettings


def refuse_given(config: RunSettings, changes: Mapping[str, object], unused: Mapping[str, str]) -> None:
    """Refuse what is given for a run, nested or dotted, and has no effect, unless it is at its default.

    Args:
        unused: the method's keys without effect, and what each needs, ``KEY=VALUE``.
    Raises:
        ConfigError: a line for each.
    """
    given = flat(changes).keys()
    _refuse(config, {key: needs for key, needs in _all(config, unused).items() if key in given})


def refuse_beside(config: RunSettings, written: Mapping[str, Any], unused: Mapping[str, str]) -> None:
    """Refuse a key of a file, or of a profile of it, if the key that disables it is in the same file.

    Fully resolved files (every key present) are not checked.
    """
    given = flat(written).keys()
    if not {f"train.{name}" for name in TrainConfig.model_fields} - {"train.optimizer"} <= given:
        _refuse(config, {key: n for key, n in _all(config, unused).items() if {key, n.partition("=")[0]} <= given})


def _all(config: RunSettings, unused: Mapping[str, str]) -> dict[str, str]:
    """Those of the method, and the run's own."""
    found = dict[str, str]()
    if config.train.local_steps is not None:
        found["train.local_epochs"] = "train.local_steps=null"
    if config.train.optimizer.name not in ("sgd", "lars"):
        found["train.optimizer.momentum"] = "train.optimizer.name=sgd or lars"
    if config.train.optimizer.name != "lars":
        found["train.optimizer.trust_coefficient"] = "train.optimizer.name=lars"
    if config.resources.device == "cpu":
        found["train.precision"] = "resources.device=auto or cuda"
    if config.server.schedule == "fedbuff":  # its server adds up replies and does nothing else
        found["system.server_seconds_per_image"] = "server.schedule=sync"
    if config.server.optimizer.name == "adagrad":
        found["server.optimizer.beta_2"] = "server.optimizer.name=adam or yogi"
    if config.data.tasks is None:
        found["data.task_images"] = "data.tasks"
        if config.data.public.source != "share":
            found["data.public.share"] = "data.public.source=share"
    if "ours" not in config.evaluation.linear.recipes:
        keys = (f"evaluation.linear.{name}" for name in ("epochs", "lr", "batch_size"))
        found |= dict.fromkeys(keys, "evaluation.linear.recipes with ours")
    return {**found, **unused}


def _refuse(config: RunSettings, unused: Mapping[str, str]) -> None:
    lines = []
    for key, needs in unused.items():
        path, _, name = key.rpartition(".")
        try:
            refuse_unused(reduce(getattr, path.split("."), config), path, name, needs=needs)
        except ValueError as refusal:
            lines.append(str(refusal))
    if lines:
        raise ConfigError("\n".join(lines))
