"""PyTorch's optimisers without the import of ``torch._dynamo``, and LARS.

PyTorch wraps ``step`` and some other methods of its optimisers so that ``torch.compile`` skips them. The wrappers
import the compiler at their first call, which costs every process 1.7 s of CPU. The classes here use the methods
without their wrappers, so kernels and bits are the same. This library compiles only encoders, never an optimiser's
step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim.optimizer import ParamsT


def _within(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method as its class defines it, without its wrappers."""
    unwrapped: Callable[..., Any] = inspect.unwrap(method)
    return unwrapped


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


class LARS(_Plain):
    """Layer-wise adaptive rate scaling: SGD with momentum in which a tensor's step is proportional to the tensor's norm
    (You, Gitman and Ginsburg 2017, "Large batch training of convolutional networks", Algorithm 1). SimCLR and BYOL
    train with it.

    ``m <- momentum m + s``, ``w <- w - lr m``, where :func:`lars_steps` gives s for a tensor of two or more dimensions.
    Tensors of at most one dimension (biases and the parameters of normalisation layers) have s = g, without adaptation
    or weight decay. A parameter without a gradient is not changed.

    A step depends on no step counter and does not wait for the device, so a CUDA graph can record it.

    Raises:
        ValueError: lr, momentum or weight_decay is below 0, or trust_coefficient is not above 0.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name, found in settings.items():
            if not found >= 0:
                raise ValueError(f"{name}: found {found}; must be at least 0")
        if not trust_coefficient > 0:
            raise ValueError(f"trust_coefficient: found {trust_coefficient}; must be above 0")
        super().__init__(params, {**settings, "trust_coefficient": trust_coefficient})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. Returns what ``closure`` returns; if given, it computes the gradients anew."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            weights, others = [p for p in moved if p.ndim > 1], [p for p in moved if p.ndim <= 1]
            gradients = [p.grad for p in weights]
            steps = lars_steps(weights, gradients, group["weight_decay"], group["trust_coefficient"])
            self._descend([*weights, *others], [*steps, *(p.grad for p in others)], group["lr"], group["momentum"])
        return loss

    def _descend(self, parameters: list[Tensor], steps: list[Tensor], lr: float, momentum: float) -> None:
        if not parameters:
            return
        if momentum != 0:
            for p in parameters:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            gathered = [self.state[p]["momentum_buffer"] for p in parameters]
            torch._foreach_mul_(gathered, momentum)
            torch._foreach_add_(gathered, steps)
            steps = gathered
        torch._foreach_add_(parameters, steps, alpha=-lr)


def lars_steps(weights: list[Tensor], gradients: list[Tensor], decay: float, trust: float) -> list[Tensor]:
    """A new tensor for each of the L weights, of its shape: ``trust |w| / |u| u`` where ``u = g + decay w``, with
    Euclidean norms over the whole tensor. It is u itself if either norm is 0, so that weights can leave 0.

    Differs: Algorithm 1 divides by ``|g| + decay |w|``. This divides by ``|g + decay w|``, as the code of SimCLR and
    of BYOL does.
    """
    if not weights:
        return []
    steps = list(torch._foreach_add(gradients, weights, alpha=decay))
    of_weights, of_steps = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, steps))  # (L,)
    ratios = (trust * of_weights / of_steps).masked_fill((of_weights == 0) | (of_steps == 0), 1.0)
    torch._foreach_mul_(steps, ratios.unbind())
    return steps
