"""Distils the outputs of several networks for the same samples: FedMD (Li and Wang 2019), FedDF (Lin et al. 2020) and
FedMKD (Li et al. 2024).

Shape legend: N networks, B batch, C outputs, D embedding, H attention, K queue.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfed_ssl.objectives.base import full_precision, kl_divergence, no_autocast


def consensus(outputs: Tensor) -> Tensor:
    """The unweighted mean over networks: (N, B, C) -> (B, C) (FedMD, Algorithm 1; FedDF's mean of logits)."""
    return outputs.mean(dim=0)


def digest(outputs: Tensor, agreed: Tensor) -> Tensor:
    """FedMD's digest: mean absolute difference of outputs (B, C) from a constant consensus (B, C)."""
    return F.l1_loss(full_precision(outputs), full_precision(agreed.detach()))


def ensemble_divergence(student: Tensor, ensemble: Tensor, temperature: float = 1.0) -> Tensor:
    """FedDF: ``KL(softmax(ensemble / T) || softmax(student / T))``, mean over the batch; no factor T^2.

    Logits (B, C) of the student and of the ensemble; these are the teachers' :func:`consensus`, constant. So logits are
    averaged, not probabilities.
    """
    log_ensemble = F.log_softmax(full_precision(ensemble.detach()) / temperature, dim=1)
    log_student = F.log_softmax(full_precision(student) / temperature, dim=1)
    return kl_divergence(log_ensemble, log_student)


def teacher_attention(q: Tensor, k: Tensor, w_q: Tensor, w_k: Tensor) -> Tensor:
    """FedMKD: the weight of each teacher for each sample: q (B, H), k (N, B, H), w (H, H) -> (B, N), rows sum to 1.

    ``softmax_c <q W_q / sqrt(H), k_c W_k / sqrt(H)>``: both factors are scaled, so scores are divided by H.
    """
    scale = math.sqrt(q.shape[1])
    q, k = full_precision(q), full_precision(k)
    with no_autocast(q):
        queries, keys = q @ w_q / scale, k @ w_k / scale
        scores = torch.einsum("bh,nbh->bn", queries, keys)
    return scores.softmax(dim=1)


def mixed_teacher(attention: Tensor, teachers: Tensor) -> Tensor:
    """``sum_c a_c T_c``: attention (B, N), teacher outputs (N, B, D) -> (B, D), not normalised."""
    attention, teachers = full_precision(attention), full_precision(teachers)
    with no_autocast(teachers):
        return torch.einsum("bn,nbd->bd", attention, teachers)
