r"""An objective written outside the library, with a head of its own: invariant information clustering (Ji et al. 2019,
"Invariant information clustering for unsupervised image classification and segmentation", section 3.1).

    rayfed-ssl run configs/demo.yaml method.name=fedavg 'imports=[examples/invariant_clustering.py]' \
        objective.name=iic train.optimizer.name=adam train.optimizer.lr=0.003

The head says to which of K clusters an image belongs, and the loss is minus what one view's cluster tells of the
other's: the mutual information of P (K, K), P_kl = the mean over the batch of p_k(one view) p_l(other), made symmetric.

Adam is the authors' choice: where all clusters are alike the gradient is so small that SGD stays there.

Differs: one head, no over-clustering by a second one, and one pair of views per image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from rayfed_ssl.models.network import HeadInputs, Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, full_precision, no_autocast

EPSILON = 1e-12


class Config(ObjectiveConfig):
    name: Literal["iic"] = "iic"
    clusters: Annotated[int, Field(ge=2)] = 10
    """K."""


def build_clusters(inputs: HeadInputs) -> nn.Module:
    """The head: features (B, dim) -> logits (B, K)."""
    assert isinstance(inputs.objective, Config)
    return nn.Linear(inputs.dim, inputs.objective.clusters)


def mutual_information(p: Tensor, q: Tensor) -> Tensor:
    """I of the clusters of two views, from the probabilities p and q (B, K) of each image: between 0 and log K."""
    joint = p.T @ q / len(p)
    joint = ((joint + joint.T) / 2).clamp(min=EPSILON)
    one, other = joint.sum(1, keepdim=True), joint.sum(0, keepdim=True)
    return (joint * (joint.log() - one.log() - other.log())).sum()


@dataclass(frozen=True)
class InvariantClustering(Objective):
    config: Config

    block: ClassVar[type[ObjectiveConfig]] = Config
    heads: ClassVar[frozenset[str]] = frozenset({"clusters"})

    def step(self, network: Network, batch: Batch) -> Step:
        features = tuple(network.represent(view) for view in batch.views)
        p, q = (full_precision(network.through("clusters", h)).softmax(1) for h in features)
        with no_autocast(p):
            return Step(-mutual_information(p, q), (), features)


OBJECTIVES = {"iic": InvariantClustering}
HEADS = {"clusters": build_clusters}
