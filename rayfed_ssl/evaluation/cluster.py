"""Clustering: how well k-means on the features of unlabelled images finds their classes.

Shapes: M test images, D embedding.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.base.schema import Block
from rayfed_ssl.base.seeding import seed_of
from rayfed_ssl.evaluation.material import Material
from rayfed_ssl.evaluation.pixels import shares
from rayfed_ssl.evaluation.protocol import Protocol
from rayfed_ssl.evaluation.standard import one_thread

_metrics, _clusters = LazyModule("sklearn.metrics"), LazyModule("sklearn.cluster")


class ClusterConfig(Block):
    """Clustering by k-means."""

    clusters: int | None = Field(None, ge=1)
    """Clusters of k-means; null: as many as there are classes with a labelled image. Never more than images."""
    starts: int = Field(10, ge=1)
    """Runs of k-means from different centres, of which the tightest counts."""
    normalise: bool = True
    """Whether features are scaled to length 1 first."""


def clustered(features: Tensor, clusters: int, starts: int, seed: int) -> np.ndarray:
    """(M,) the cluster of each row of ``features`` (M, D), by scikit-learn's k-means (k-means++ starts). There are
    fewer clusters if fewer rows differ, as with a collapsed encoder; scikit-learn's warning about that is switched off.
    """
    means = _clusters.KMeans(min(clusters, len(features)), n_init=starts, random_state=seed_of(seed, "cluster") % 2**32)
    with one_thread("sklearn.cluster"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Number of distinct clusters")
        return np.asarray(means.fit_predict(features.double().numpy()))


def measure(material: Material, config: ClusterConfig) -> dict[str, float]:
    """``cluster_nmi`` and ``cluster_ari``: normalised mutual information (arithmetic mean of the entropies) and
    adjusted Rand index (chance is 0) between the clusters of the evaluated images and their classes.

    No label takes part in the clustering.
    """
    values: dict[str, float] = {}
    labels = [split.labels.numpy() for split in (material.train, *material.tests.values())]
    clusters = config.clusters or len(np.unique(np.concatenate(labels)))
    for prefix, split in material.tests.items():
        features = F.normalize(split.features, dim=1) if config.normalise else split.features
        assigned = clustered(features, clusters, config.starts, material.seed)
        truth = split.labels.numpy()
        values[f"{prefix}cluster_nmi"] = float(_metrics.normalized_mutual_info_score(truth, assigned))
        values[f"{prefix}cluster_ari"] = float(_metrics.adjusted_rand_score(truth, assigned))
    return values


CLUSTER = Protocol(
    ClusterConfig,
    measure,
    lambda settings: ("cluster_nmi", "cluster_ari"),
    classifies=False,
    pixels=shares,
)
