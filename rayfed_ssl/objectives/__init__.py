"""Local losses by name: each file has its mathematics in free functions and its coefficients in a small object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from rayfed_ssl.base.annotations import values_of
from rayfed_ssl.base.choice import OneOf
from rayfed_ssl.base.table import Table
from rayfed_ssl.objectives import (
    align_uniform,
    autoencoder,
    barlow,
    base,
    byol,
    dino,
    mae,
    moco,
    nnclr,
    rotation,
    simclr,
    simsiam,
    spectral,
    supervised,
    swav,
    vicreg,
)
from rayfed_ssl.objectives.base import Batch, Memory, Objective, Step

__all__ = ["OBJECTIVES", "Batch", "Memory", "Objective", "ObjectiveConfig", "Step", "build"]


def _wrong(name: str, row: object) -> str:
    """What is wrong with a third-party objective; empty if nothing is."""
    if not (isinstance(row, type) and issubclass(row, Objective)):
        return "which is no subclass of rayfed_ssl.objectives.base.Objective"
    if name not in values_of(getattr(row, "block", None), "name"):
        return f'whose block has another name; must have block = Config, with name: Literal["{name}"] = "{name}"'
    if not isinstance(getattr(row, "heads", None), frozenset):
        return 'which says no heads; must have a frozenset of names, such as heads = frozenset({"projector"})'
    return "which has no loss; must define step" if row.step is Objective.step else ""


OBJECTIVES: Table[type[Objective]] = Table(
    "objective",
    "rayfed_ssl.objectives",
    {
        "simclr": simclr.SimCLR,
        "byol": byol.BYOL,
        "simsiam": simsiam.SimSiam,
        "spectral": spectral.Spectral,
        "moco": moco.MoCo,
        "barlow": barlow.Barlow,
        "vicreg": vicreg.VICReg,
        "swav": swav.SwAV,
        "nnclr": nnclr.NNCLR,
        "dino": dino.DINO,
        "align_uniform": align_uniform.AlignUniform,
        "autoencoder": autoencoder.Autoencoder,
        "mae": mae.MAE,
        "rotation": rotation.Rotation,
        "supervised": supervised.Supervised,
    },
    _wrong,
)


def _blocks() -> Mapping[str, type[base.ObjectiveConfig]]:
    return {name: objective.block for name, objective in OBJECTIVES.items()}


ObjectiveConfig = Annotated[base.ObjectiveConfig, OneOf(_blocks)]
"""The ``objective:`` block of a run."""


def build(config: base.ObjectiveConfig) -> Objective:
    """The objective that a configuration block describes."""
    return OBJECTIVES[config.name](config)
