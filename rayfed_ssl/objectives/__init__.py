"""Local losses by name: one file each, mathematics in free functions, coefficients in a small object."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated

from pydantic import Field

from rayfed_ssl.objectives import autoencoder, byol, rotation, simclr, simsiam, spectral, supervised
from rayfed_ssl.objectives.base import Objective, Step

__all__ = ["OBJECTIVES", "Objective", "ObjectiveConfig", "Step", "build"]

# Each module has a Config, the block, and an Objective, made from it.
OBJECTIVES: dict[str, ModuleType] = {
    "simclr": simclr,
    "byol": byol,
    "simsiam": simsiam,
    "spectral": spectral,
    "autoencoder": autoencoder,
    "rotation": rotation,
    "supervised": supervised,
}

_Config = (
    simclr.Config
    | byol.Config
    | simsiam.Config
    | spectral.Config
    | autoencoder.Config
    | rotation.Config
    | supervised.Config
)
ObjectiveConfig = Annotated[_Config, Field(discriminator="name")]
"""The ``objective:`` block of a run."""


def build(config: _Config) -> Objective:
    """The objective that a configuration block describes."""
    objective: Objective = OBJECTIVES[config.name].Objective(config)
    return objective
