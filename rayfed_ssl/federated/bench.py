"""What a process keeps warm: modules per architecture on their device, mapped images, and nothing that matters.

Every operation loads the values it works with and draws from generators of its own address. So any workbench gives the
same answer.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl import evaluation
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import forked
from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.data.augment import clean
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.models import build_network
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.settings.run import RunSettings


def resolve_device(wanted: str) -> torch.device:
    """`auto` is the GPU where this process sees one."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("resources.device: found 'cuda', but this process sees no CUDA device; allowed here: auto, cpu")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """``cpu``, or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


class Initial:
    """Untrained networks: architecture -> values, the same for every client and process."""

    def __init__(self, config: RunSettings, federation: Federation) -> None:
        self.config, self.federation = config, federation
        self.heads = build_objective(config.objective).heads

    def __call__(self, encoder: str, classes: int | None = None) -> Weights:
        return pack(self.network(encoder, classes))

    def network(self, encoder: str, classes: int | None = None, without: Set[str] = frozenset()) -> Network:
        """A fresh module on the CPU with the initial values."""
        classes = self.federation.classes if classes is None else classes
        with forked(self.config.seed, "initial", encoder):
            size = self.config.data.image_size
            return build_network(encoder, self.config.model, size, heads=self.heads - without, classes=classes)


class Workbench:
    """Warm modules and mapped images of one process."""

    def __init__(self, config: RunSettings, federation: Federation, published: dict[str, Any] | None = None) -> None:
        torch.set_num_threads(config.resources.threads)
        self.config = config
        self.federation = federation
        self.device = resolve_device(config.resources.device)
        # 1.15 to 1.3 times faster training on CPU (docs/architecture.md) and what tensor cores want. It changes bits,
        # so clients, server work and evaluation all have it.
        self.memory_format = torch.channels_last
        self.objective = build_objective(config.objective)
        self.recipe = config.augment.recipe()
        self.published: dict[str, Any] = {} if published is None else published
        self.images_read = 0  # source images that went through the operation at work, once per pass
        self._initial = Initial(config, federation)
        self._networks: dict[tuple[str, str, int | None], Network] = {}
        self._untrained: dict[str, dict[str, float]] = {}

    # -- networks ------------------------------------------------------------------------------------------------------

    def network(self, encoder: str, role: str = "online", classes: int | None = None) -> Network:
        """The warm module of an architecture. A ``role`` other than "online" is a second copy that no gradient reaches:
        a momentum "target" (without predictor), or the one that is "evaluated"."""
        key = (encoder, role, classes)
        if key not in self._networks:
            network = self._initial.network(encoder, classes, without={"predictor"} if role == "target" else set())
            network.to(self.device, memory_format=self.memory_format)  # type: ignore[call-overload]
            network.requires_grad_(role == "online")
            if self.config.train.compile:
                network.encoder.compile()
            self._networks[key] = network
        return self._networks[key]

    def initial(self, encoder: str, classes: int | None = None) -> Weights:
        """The untrained values of an architecture: the same for every client that has it."""
        return self._initial(encoder, classes)

    # -- images --------------------------------------------------------------------------------------------------------

    def images(self, pixels: np.ndarray, indices: np.ndarray | None = None) -> Tensor:
        """(n, 3, H, W) uint8 on the device, out of (N, H, W, 3) pixels."""
        chosen = pixels if indices is None else pixels[indices]
        return torch.tensor(np.asarray(chosen)).to(self.device).permute(0, 3, 1, 2)

    def clean(self, pixels: Tensor) -> Tensor:
        self.images_read += len(pixels)
        return clean(pixels, self.recipe).contiguous(memory_format=self.memory_format)

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, encoder: str, weights: Weights | None, classes: int | None = None) -> dict[str, float]:
        """The configured label-using protocols on the frozen encoder: eval mode, clean images. None: the untrained
        encoder. ``classes`` is what the weights' classifier was built for, by default all of the data.
        """
        if not self.config.evaluation.protocols:
            return {}
        if weights is None:
            if encoder not in self._untrained:
                self._untrained[encoder] = self.evaluate(encoder, self.initial(encoder))
            return self._untrained[encoder]
        network = self.network(encoder, "evaluated", classes)
        unpack(weights, network)
        network.eval()
        (train, train_y), (test, test_y) = self._probe_images()
        train_x, test_x = self._features(network, train), self._features(network, test)
        return self._measure(train_x, train_y, test_x, test_y, self.config.evaluation)

    def evaluate_pixels(self) -> float:
        """Few-shot accuracy of the raw pixels: what an encoder has to beat."""
        (train, train_y), (test, test_y) = self._probe_images()
        train_x, test_x = (torch.from_numpy(np.array(p)).reshape(len(p), -1) for p in (train, test))
        only = self.config.evaluation.model_copy(update={"protocols": ("fewshot",)})
        return self._measure(train_x, train_y, test_x, test_y, only)["fewshot"]

    def _measure(
        self,
        train_x: Tensor,
        train_y: np.ndarray,
        test_x: Tensor,
        test_y: np.ndarray,
        config: evaluation.EvaluationConfig,
    ) -> dict[str, float]:
        labels = torch.tensor(train_y), torch.tensor(test_y)
        return evaluation.evaluate(
            train_x, labels[0], test_x, labels[1], config, self.federation.classes, self.config.seed
        )

    def _probe_images(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """(pixels, labels) of labelled training images, at most `evaluation.train_images`, and of test images."""
        train, test = self.federation.dataset.train, self.federation.dataset.test
        rows = evaluation.labelled_rows(train.labels, self.config.evaluation.train_images, self.config.seed)
        whole = len(rows) == len(train.labels)
        return (train.pixels if whole else train.pixels[rows], train.labels[rows]), (test.pixels, test.labels)

    def _features(self, network: Network, pixels: np.ndarray) -> Tensor:
        return evaluation.extract(network.represent, pixels, self.clean, self.config.evaluation.batch_size, self.device)
