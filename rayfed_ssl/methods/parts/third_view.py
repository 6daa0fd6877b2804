"""The third view that Orchestra and FedU2 add to a batch: rotated by 0 to 3 quarter turns, which the network predicts.

Shape legend: B batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.objectives.base import full_precision
from rayfed_ssl.objectives.rotation import turned


def turns_loss(
    client: EncoderClient[Any], pixels: Tensor, draws_turns: torch.Generator, draws_view: torch.Generator
) -> Tensor:
    """Cross-entropy of predicting how a view of ``pixels`` (B, C, H, H) uint8 was turned, from its projection: (). The
    turns are drawn before the view; both generators may be the same.
    """
    turns = torch.randint(4, (len(pixels),), generator=draws_turns, device=pixels.device)
    (view,) = client.views(pixels, draws_view, 1)
    logits = client.network.classify_projected_rotation(turned(view, turns))
    return F.cross_entropy(full_precision(logits), turns)


def with_third_view(cost: Workload) -> Workload:
    """The cost of local epochs with one view more of every image than ``fit`` counts."""
    return cost + Workload.trained(cost.images)
