"""FedU and FedEMA: how far a client's model has diverged from another one, and how much of its own it keeps therefore
(Zhuang et al. 2021, "Collaborative unsupervised visual representation learning from decentralized data"; Zhuang et al.
2022, "Divergence-aware federated self-supervised learning"). Free functions, and the base of both methods' clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import nn

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import Weights, named
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.method import ClientFootprint, unlabelled
from rayfed_ssl.methods import fedavg
from rayfed_ssl.models.encoders import build_encoder
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.settings.run import RunSettings


def convolutions(module: nn.Module) -> list[str]:
    """The names of the weights of all convolutions, without those on residual shortcuts, which EasyFL leaves out,
    too.
    """
    shortcuts = _shortcuts(module)
    return [
        f"{name}.weight"
        for name, part in module.named_modules()
        if isinstance(part, nn.Conv2d) and not f"{name}.".startswith(shortcuts)
    ]


def _shortcuts(module: nn.Module) -> tuple[str, ...]:
    """The prefixes of the names of all parts on residual shortcuts.

    A shortcut is called ``shortcut``, or ``downsample`` if the block's own convolutions (``conv1``, ``conv_dw``) are
    beside it. In networks such as ConvNeXt, a ``downsample`` beside a stage's ``blocks`` is on the main path.
    """
    prefixes = []
    for name, part in module.named_modules():
        children = [child for child, _ in part.named_children()]
        shortcuts = [child for child in children if child == "shortcut"]
        if any(child.startswith("conv") for child in children):
            shortcuts += [child for child in children if child == "downsample"]
        prefixes += [f"{name}.{child}.".removeprefix(".") for child in shortcuts]
    return tuple(prefixes)


def layer_divergence(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """The L2 distance between two models for each tensor, as the mean over tensors.

    EasyFL's code takes it over convolutions, between a model before and after its own previous training. Raises
    ValueError if there are no tensors, or if their names differ.
    """
    return float(np.mean(np.sqrt(_squares(a, b))))


def model_divergence(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """The L2 distance between two models over all tensors together (in the papers: global and client's own encoder).

    Raises ValueError if there are no tensors, or if their names differ.
    """
    return float(np.sqrt(np.sum(_squares(a, b))))


def _squares(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> list[float]:
    """The squared L2 distance of each pair of tensors."""
    if not a or a.keys() != b.keys():
        raise ValueError("divergence: both models need the same tensors, at least one")
    moves = (np.asarray(a[name], np.float64) - np.asarray(b[name], np.float64) for name in a)
    return [float(np.dot(move.ravel(), move.ravel())) for move in moves]


def takes_predictor(divergence: float, threshold: float) -> bool:
    """FedU: whether a client takes the global predictor: strictly below the threshold. Else it keeps its own."""
    return divergence < threshold


def autoscaler(tau: float, first: float) -> float | None:
    """FedEMA's lambda_k = tau / d_k, fixed at a client's first divergence so that mu_k = tau there (FedEMA, eq. 4).

    None if d_k is 0: then the next divergence counts as the first.
    """
    return tau / first if first > 0 else None


def kept_share(scaler: float, divergence: float) -> float:
    """FedEMA's mu_k = min(lambda_k d_k, 1): the share of its own model that a client keeps (eq. 3)."""
    return min(scaler * divergence, 1.0)


def mixed(own: np.ndarray, received: np.ndarray, mu: float) -> np.ndarray:
    """``mu own + (1 - mu) received`` (FedEMA, eq. 1 and 2); to the bit ``received`` at 0, and ``own`` at 1."""
    if mu in (0.0, 1.0):
        return (own if mu else received).copy()
    return np.asarray(np.float32(mu) * own + np.float32(1 - mu) * received, own.dtype)


class Config(fedavg.Config):
    divergence: Literal["easyfl", "paper"] = "easyfl"
    """d_k as EasyFL computes it, or as the papers define it; see :class:`DivergentClient`."""


AnyConfig = TypeVar("AnyConfig", bound=Config)


class DivergentClient(EncoderClient[AnyConfig]):
    """A client that keeps its model of the round in which it last trained, and measures its distance to another model.

    ``easyfl``: :func:`layer_divergence` of the encoder's convolutions from before to after that training.
    ``paper``: :func:`model_divergence` of encoder and projector from that model to the one just received.
    """

    def divergence(self, received: Weights) -> float | None:
        """d_k; None in the client's first round."""
        if "model" not in self.state:
            return None
        if self.method.divergence == "easyfl":
            return float(self.state["drift"])
        parts = (self.parameters(self.state["model"]), self.parameters(received))
        own, other = ({name: x for name, x in part.items() if not name.startswith("predictor.")} for part in parts)
        return model_divergence(own, other)

    def parameters(self, weights: Weights) -> dict[str, np.ndarray]:
        """The parameters by name, without buffers, as views."""
        values = named(weights, self.network)
        return {name: values[name] for name, _ in self.network.named_parameters()}

    def train_and_keep(self) -> dict[str, Any]:
        """Train local epochs from what is loaded, and keep the model and how far training moved it."""
        before = self.weights
        self.fit()
        self.keep_own()
        if self.method.divergence == "easyfl":
            names = [f"encoder.{name}" for name in convolutions(self.network.encoder)]
            models = (named(weights, self.network) for weights in (before, self.state["model"]))
            self.state["drift"] = layer_divergence(*({name: model[name] for name in names} for model in models))
        return {"weights": self.state["model"]}


def predicting(objective: str) -> bool:
    """Whether an objective has no labels and trains a predictor, which FedU and FedEMA treat separately."""
    return unlabelled(objective) and "predictor" in OBJECTIVES[objective].heads


def check_federation(config: RunSettings, federation: Federation) -> None:
    """Refuse ``easyfl`` for an encoder if it does not measure most of its layers, such as a ViT, whose only convolution
    embeds the patches. Raises UserError.
    """
    if config.method_as(Config).divergence != "easyfl":
        return
    for name in sorted(config.clients.architectures):
        with torch.device("meta"):
            encoder = build_encoder(name, config.model, config.data.image_size, config.data.channels)
        shortcuts = _shortcuts(encoder)
        layers = sum(x.ndim > 1 and not part.startswith(shortcuts) for part, x in encoder.named_parameters())
        measured = len(convolutions(encoder))
        if not measured or 2 * measured < layers:
            raise UserError(
                f"method.divergence: found 'easyfl', which measures convolutions; of {name} they are {measured} of "
                f"{layers} weights with two dimensions or more; allowed below half: paper (method.divergence=paper)"
            )


def footprint(config: RunSettings, images: int) -> ClientFootprint:
    """A client keeps its own model."""
    return ClientFootprint(models=1)
