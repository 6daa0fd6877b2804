"""Checks that the blocks of a run's configuration fit each other; each may be valid by itself."""

from __future__ import annotations

from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import HEADS, check_options, check_patches
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.settings.blocks import refuse_unused
from rayfed_ssl.settings.run import PluginConfig, RunSettings


def check_consistent(config: RunSettings) -> None:
    """Raise ValueError, naming the key to change, for blocks that do not fit each other or the method."""
    _check_objective(config)
    _check_heads(config)
    _check_data(config)
    _check_tasks(config)
    _check_warmup(config)
    _check_schedule(config)
    method = METHODS[config.method.name]
    if config.clients.heterogeneous and not method.info.heterogeneous:
        raise ValueError(
            f"clients.encoders: {config.method.name} averages weights, so all clients need one architecture"
        )
    if config.model.initial == "own" and not method.info.heterogeneous:
        raise ValueError(
            f"model.initial: found 'own'; clients of {config.method.name} begin with the server's weights; allowed: "
            "common"
        )
    for check in (method.check, *(METHODS[p.name].check for p in config.plugins)):
        if check is not None:
            check(config)
    if config.averages_target and not method.averages_targets:  # after the method's own check, which may allow less
        found = f"found 'averaged'; {config.method.name} averages no weights with targets"
        raise ValueError(f"objective.target: {found}; allowed: local, reset")
    _check_model(config)
    for reason, least in config.least_batches:
        if config.train.batch_size < least:
            raise ValueError(f"train.batch_size: found {config.train.batch_size}; {reason} needs at least {least}")


def _check_objective(config: RunSettings) -> None:
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


def _check_heads(config: RunSettings) -> None:
    """Raise ValueError for a head that the objective or the method needs, but that is in no table."""
    objective, method = config.objective.name, config.method
    needs = {("objective", objective): OBJECTIVES[objective].heads, ("method", method.name): method.heads}
    for (block, found), heads in needs.items():
        for head in sorted(heads - HEADS.keys()):
            raise ValueError(
                f"{block}.name: found '{found}', which needs the head '{head}'; must be one of {', '.join(HEADS)}"
                f"{HEADS.nearest(head)}"
            )


def _check_model(config: RunSettings) -> None:
    """Raise ValueError for a key of the model block that no encoder of the run has, including a server's student, and
    for a client's encoder that the objective cannot train.
    """
    if OBJECTIVES[config.objective.name].shows_patches:
        check_patches(config.clients.architectures, config.model, config.objective.name)
    check_options([*config.clients.architectures, *config.method.server_encoders], config.model)


def _check_data(config: RunSettings) -> None:
    """Raise ValueError if the keys on images, partition and public images do not fit each other."""
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


def _check_tasks(config: RunSettings) -> None:
    """Raise ValueError for a key that is not allowed with ``data.tasks``, or not without it."""
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


def _check_warmup(config: RunSettings) -> None:
    """Raise ValueError if the learning rate's warm-up leaves no round for its schedule."""
    warmup, rounds = config.train.optimizer.warmup, config.train.rounds
    if warmup >= rounds:
        raise ValueError(f"train.optimizer.warmup: found {warmup}; allowed: below train.rounds={rounds}")


def _check_schedule(config: RunSettings) -> None:
    """Raise ValueError if the server's schedule, the clients' system and the method do not fit each other."""
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


def _check_server_optimizer(config: RunSettings) -> None:
    """Raise ValueError if the server's optimiser cannot be used: the method has no plain mean of weights, or FedBuff
    has a step of its own.
    """
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
