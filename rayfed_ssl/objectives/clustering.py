"""Orchestra's local loss: one view should be assigned to the global clusters to which the momentum target assigns the
other view (Lubana et al. 2022).

Shape legend: B batch, D embedding, G global centroids.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.objectives.base import full_precision, no_autocast


def cluster_agreement(target: Tensor, z: Tensor, centroids: Tensor, temperature: float) -> Tensor:
    """``-sum_c softmax(t C^T / T)_c log softmax(z C^T / T)_c``, mean over the batch: t, z (B, D), C (G, D) -> ().

    Rows of ``target`` and ``z`` are normalised; target and centroids are constant.
    """
    t, z = F.normalize(full_precision(target.detach()), dim=1), F.normalize(full_precision(z), dim=1)
    c = centroids.detach().to(z.dtype)
    with no_autocast(z):
        assigned, log_p = (t @ c.T / temperature).softmax(dim=1), F.log_softmax(z @ c.T / temperature, dim=1)
    return -(assigned * log_p).sum(dim=1).mean()
