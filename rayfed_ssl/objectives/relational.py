"""FedX's relational loss: both views of an image should have the same similarities to random samples (Han et al. 2022).

Shape legend: B batch, R random samples, D embedding.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.objectives.base import full_precision, kl_divergence, no_autocast


def mean_target(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """``log m``, where m is the mean of softmax(a / T) and softmax(b / T): a, b (B, R) -> (B, R)."""
    both = torch.stack([F.log_softmax(x / temperature, dim=1) for x in (a, b)])
    return torch.logsumexp(both, dim=0) - math.log(2)


def relational(z_a: Tensor, z_b: Tensor, z_r: Tensor, temperature: float, target_temperature: float) -> Tensor:
    """The divergence of both views' similarities to random samples from their mean: z_a, z_b (B, D), z_r (R, D) -> ().

    ``(KL(m || s_a) + KL(m || s_b)) / 2``, where s is the softmax of a view's cosines with the random samples at
    ``temperature`` and m is :func:`mean_target` at ``target_temperature``. As in the authors' code, gradients also flow
    through m and z_r.

    Differs: the authors' code calls this Jensen-Shannon, which has KL(s || m).
    """
    a, b, r = (F.normalize(full_precision(z), dim=1) for z in (z_a, z_b, z_r))
    with no_autocast(a):
        s_a, s_b = a @ r.T, b @ r.T  # (B, R)
    log_m = mean_target(s_a, s_b, target_temperature)
    log_s = (F.log_softmax(s / temperature, dim=1) for s in (s_a, s_b))
    return torch.stack([kl_divergence(log_m, s) for s in log_s]).mean()
