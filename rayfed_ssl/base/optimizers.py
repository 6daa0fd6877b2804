"""PyTorch's optimisers without the import of ``torch._dynamo``.

PyTorch wraps ``step`` and some more methods of its optimisers, so that ``torch.compile`` leaves them alone. The
wrappers import the compiler at their first call, which costs every process 1.7 s of CPU. The methods within are the
same here, and so are the kernels and the bits. Only encoders are compiled in this library, never a step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import optim


def _within(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method as its class defines it, out of its wrappers."""
    found: Callable[..., Any] = inspect.unwrap(method)
    return found


def _stepping(kind: type[optim.Optimizer]) -> Callable[..., Any]:
    return torch.no_grad()(_within(kind.step))


class _Plain(optim.Optimizer):
    add_param_group = _within(optim.Optimizer.add_param_group)
    zero_grad = _within(optim.Optimizer.zero_grad)


class SGD(_Plain, optim.SGD):
    """``torch.optim.SGD``."""

    step = _stepping(optim.SGD)


class Adam(_Plain, optim.Adam):
    """``torch.optim.Adam``."""

    step = _stepping(optim.Adam)


class AdamW(_Plain, optim.AdamW):
    """``torch.optim.AdamW``."""

    step = _stepping(optim.AdamW)
