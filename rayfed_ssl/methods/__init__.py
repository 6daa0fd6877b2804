"""The table of methods: one file each, readable beside its paper's algorithm."""

from __future__ import annotations

from typing import Annotated, Union

from pydantic import Field

from rayfed_ssl.methods import (
    centralized,
    fedavg,
    fedavg_trunk,
    fedca,
    fedfoa,
    fedlinked,
    fedprox,
    fedsc,
    flesd,
    local,
)
from rayfed_ssl.methods.base import ClientPlugin, Method, ServerPlugin

METHODS: dict[str, Method] = {
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
}

MethodConfig = Annotated[
    Union[  # noqa: UP007
        fedavg.FedSimCLR,
        fedavg.FedBYOL,
        fedavg.FedAvgSC,
        fedsc.Config,
        fedfoa.Config,
        flesd.Config,
        flesd.ConfigCC,
        fedca.Config,
        fedprox.Config,
        centralized.Config,
        fedlinked.Config,
        fedavg_trunk.Config,
        fedavg.FedAvgSupervised,
        local.Config,
    ],
    Field(discriminator="name"),
]
"""The ``method:`` block of a run."""

PluginConfig = fedfoa.Config
"""An entry of ``plugins:``; a union discriminated by ``name`` once there is a second one."""

DEFAULT_OBJECTIVES = {name: method.objectives[0] for name, method in METHODS.items()}


def plugin_halves(name: str) -> tuple[type[ClientPlugin], type[ServerPlugin]]:
    """The client's and the server's half of a plug-in."""
    halves = METHODS[name].plugin
    assert halves is not None, f"{name} is no plug-in"
    return halves
