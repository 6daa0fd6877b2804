"""The table of methods: one file and one row each, readable beside its paper's algorithm."""

from __future__ import annotations

from typing import Any, get_args

from rayfed_ssl.base.annotations import values_of
from rayfed_ssl.base.table import Table
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.method import Info, Method, ServerStep
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.methods import (
    centralized,
    fedavg,
    fedavg_trunk,
    fedca,
    feddecorr,
    feddf,
    fedema,
    fedfoa,
    fedlinked,
    fedmd,
    fedmkd,
    fedprox,
    fedsc,
    fedu,
    fedu2,
    fedx,
    flesd,
    ldawa,
    local,
    orchestra,
    ssd,
)
from rayfed_ssl.settings.blocks import MethodConfig

MUST_BE_CALLABLE = ("accepts", "sends_weights", "unused", "footprint", "planned")  # fields of a row


def _wrong(name: str, row: object) -> str:
    """What is wrong with a third-party method; empty if nothing is."""
    if not isinstance(row, Method):
        return "which is no rayfed_ssl.federated.method.Method"
    for part, base in (("config", MethodConfig), ("client", EncoderClient), ("server", MethodServer)):
        kind = getattr(row, part)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            return f"whose {part} is no subclass of {base.__module__}.{base.__name__}"
    if name not in values_of(row.config, "name"):
        return f'whose block has another name; must have name: Literal["{name}"] = "{name}"'
    if not isinstance(row.info, Info):
        return "whose info is no rayfed_ssl.federated.method.Info"
    if row.step not in get_args(ServerStep):
        return f"whose step is {row.step!r}; must be one of {', '.join(get_args(ServerStep))}"
    uncalled = [part for part in MUST_BE_CALLABLE if not callable(getattr(row, part))]
    return f"whose {uncalled[0]} is no function" if uncalled else ""


METHODS: Table[Method] = Table(
    "method",
    "rayfed_ssl.methods",
    {
        "fedsimclr": fedavg.FEDSIMCLR,
        "fedbyol": fedavg.FEDBYOL,
        "fedavg_sc": fedavg.FEDAVG_SC,
        "fedsc": fedsc.FEDSC,
        "fedfoa": fedfoa.FEDFOA,
        "flesd": flesd.FLESD,
        "flesd_cc": flesd.FLESD_CC,
        "fedca": fedca.FEDCA,
        "fedprox": fedprox.FEDPROX,
        "centralized": centralized.CENTRALIZED,
        "fedlinked": fedlinked.FEDLINKED,
        "fedavg_trunk": fedavg_trunk.FEDAVG_TRUNK,
        "fedavg_supervised": fedavg.FEDAVG_SUPERVISED,
        "local": local.LOCAL,
        "fedavg": fedavg.FEDAVG,
        "fedsimsiam": fedavg.FEDSIMSIAM,
        "fedmoco": fedavg.FEDMOCO,
        "fedae": fedavg.FEDAE,
        "fedmae": fedavg.FEDMAE,
        "fedpr": fedavg.FEDPR,
        "feddecorr": feddecorr.FEDDECORR,
        "fedu": fedu.FEDU,
        "fedema": fedema.FEDEMA,
        "ldawa": ldawa.LDAWA,
        "fedu2": fedu2.FEDU2,
        "fur": fedu2.FUR,
        "fedmd": fedmd.FEDMD,
        "feddf": feddf.FEDDF,
        "fedx": fedx.FEDX,
        "orchestra": orchestra.ORCHESTRA,
        "fedmkd": fedmkd.FEDMKD,
        "ssd": ssd.SSD,
    },
    _wrong,
)


def plugin_halves(name: str) -> tuple[type[ClientPlugin[Any]], type[ServerPlugin[Any]]]:
    """The client's and the server's half of a plug-in."""
    halves = METHODS[name].plugin
    assert halves is not None, f"{name} is no plug-in"
    return halves
