"""The table of methods: one file and one row each, readable beside its paper's algorithm."""

from __future__ import annotations

from typing import Any

from rayfed_ssl.base.table import Table
from rayfed_ssl.federated.method import Method
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
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
)


def plugin_halves(name: str) -> tuple[type[ClientPlugin[Any]], type[ServerPlugin[Any]]]:
    """The client's and the server's half of a plug-in."""
    halves = METHODS[name].plugin
    assert halves is not None, f"{name} is no plug-in"
    return halves
