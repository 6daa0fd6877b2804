"""Matrices in double precision for tests of equations: written out, and drawn from the normal distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from rayfed_ssl.base.seeding import generator


def rows(*values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "normal"), dtype=torch.float64)
