"""Describes features without labels: alignment, uniformity, RankMe, spectrum. Collapse shows here first.

Shapes: N images, D embedding.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base import sphere
from rayfed_ssl.base.schema import Block
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.evaluation.material import Material, drawn_rows, refuse_broken
from rayfed_ssl.evaluation.protocol import Protocol

GROUP = "features/"
EPSILON = 1e-7  # of RankMe
UNIFORMITY_T = 2.0  # of the Gaussian potential


class RankConfig(Block):
    """What features look like without labels."""

    images: int = Field(2048, ge=2)
    """Training images looked at, drawn by the run's seed; all where there are fewer."""
    spectrum: int = Field(16, ge=0)
    """How many of the largest eigenvalues of the features' covariance are recorded."""


def alignment(a: Tensor, b: Tensor) -> float:
    """Mean squared distance of the normalised features (N, D) of two views: 0 is perfect, 2 is unrelated.

    Source: Wang and Isola 2020, alignment loss with alpha = 2.
    """
    return float(sphere.alignment(a.double(), b.double()))


def uniformity(x: Tensor) -> float:
    """log of the mean of exp(-2 |x_i - x_j|^2) over pairs i < j of normalised features (N, D), N > 1: 0 is collapse.

    Source: Wang and Isola 2020, uniformity loss with t = 2.
    """
    return float(sphere.uniformity(x.double(), UNIFORMITY_T))


def rankme(x: Tensor) -> float:
    """exp of the entropy of the singular values of ``x`` (N, D), scaled to sum 1: between 1 and min(N, D).

    Source: Garrido et al. 2023 (RankMe, an effective rank), eq. 1 to 3; 0 for features that are all 0.
    """
    values = torch.linalg.svdvals(x.double())
    total = values.sum()
    if total == 0:
        return 0.0
    shares = values / total + EPSILON
    return float(torch.exp(-(shares * shares.log()).sum()))


def spectrum(x: Tensor) -> Tensor:
    """(D,) eigenvalues of the covariance (1/N) of features ``x`` (N, D), the largest first.

    Source: Jing et al. 2022 (dimensional collapse), section 3.
    """
    centred = x.double() - x.double().mean(dim=0)
    values: Tensor = torch.linalg.eigvalsh(centred.T @ centred / len(x))
    return values.flip(0).clamp_min(0)


def measure(material: Material, config: RankConfig) -> dict[str, float]:
    """``features/alignment``, ``features/uniformity``, ``features/rankme`` and ``features/spectrum/NNN``. A single
    image has no uniformity, because it makes no pair.

    Alignment compares two views, augmented as in the run's training; everything else is measured on clean images. All
    use backbone features in eval mode. Raises BrokenFeatures if a feature is not finite.
    """
    encoder, pool = material.encoder, material.pool
    pixels = pool[drawn_rows(material.pool_rows, config.images, material.seed, "rank")]
    draws = generator(material.seed, "evaluation", "rank", "views", device=encoder.device)
    first: list[Tensor] = []
    second: list[Tensor] = []
    with torch.inference_mode():
        for start in range(0, len(pixels), encoder.batch_size):
            block = encoder.batch(pixels[start : start + encoder.batch_size])
            views = encoder.views(block, encoder.recipe, draws, 2).chunk(2)
            for view, parts in zip(views, (first, second), strict=True):
                parts.append(encoder.module(view).flatten(1).float().cpu())
    features, views = encoder.features(pixels), (torch.cat(first), torch.cat(second))
    for found in (features, *views):
        refuse_broken(found, "training")
    values = {
        "alignment": alignment(*views),
        **({"uniformity": uniformity(features)} if len(features) > 1 else {}),
        "rankme": rankme(features),
    }
    values |= {f"spectrum/{k:03d}": float(v) for k, v in enumerate(spectrum(features)[: config.spectrum])}
    return {GROUP + name: value for name, value in values.items()}


RANK = Protocol(
    RankConfig,
    measure,
    lambda settings: (),
    needs_labels=False,
    classifies=False,
    describes=("alignment", "uniformity", "rankme"),
)
