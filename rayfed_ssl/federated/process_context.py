"""What a process keeps loaded between operations: modules per architecture on their device, and mapped images. No
result depends on it.

Every operation loads the values it works with, and draws from random generators with its own seeds. So every process
gives the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl import evaluation
from rayfed_ssl.base.flat import flatten
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.data.augment import clean
from rayfed_ssl.evaluation import FrozenEncoder, Material, Protocol, Split, cache
from rayfed_ssl.evaluation.outcomes import Counts, Tally
from rayfed_ssl.evaluation.pixels import SIDE, flattened
from rayfed_ssl.federated.device_images import DeviceImages, device_memory
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.measured_rows import labels_of, train_rows
from rayfed_ssl.federated.messages import SERVER
from rayfed_ssl.federated.steps import StepMaker
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives import build as build_objective
from rayfed_ssl.settings.run import RunSettings

PIXELS_SHARE = 0.05  # of a GPU: protocols make copies, such as normalised ones


def resolve_device(wanted: str) -> torch.device:
    """`auto` is the GPU if this process sees one."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("resources.device: found 'cuda', but this process sees no CUDA device; allowed here: auto, cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def device_name(device: torch.device) -> str:
    """``cpu``, or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


class ProcessContext:
    """What one process keeps loaded: its device, a module per architecture, mapped images, and published values."""

    def __init__(self, config: RunSettings, federation: Federation, published: dict[str, Any] | None = None) -> None:
        torch.set_num_threads(config.resources.threads)
        self.config = config
        self.federation = federation
        self.device = resolve_device(config.resources.device)
        if self.device.type == "cuda":  # else gradients of convolutions differ from call to call
            torch.backends.cudnn.deterministic = True
        self.on_device = DeviceImages(self.device)
        self.step_maker = StepMaker(config.resources.cuda_graphs, self.device)
        # 1.15 to 1.3 times faster training on CPU (docs/architecture.md) and what tensor cores want. It changes bits,
        # so clients, server work and evaluation all have it.
        self.memory_format = torch.channels_last
        self.objective = build_objective(config.objective)
        self.recipe = config.augment.recipe()
        self.published: dict[str, Any] = {} if published is None else published
        self.images_read = 0  # source images that went through the operation at work, once per pass
        self._initial = InitialWeights(config, federation)
        self.networks: dict[tuple[str, str, int | None], Network] = {}
        self._common: dict[tuple[str, int | None], Weights] = {}  # by encoder and classes, what all clients begin with
        self._untrained: dict[tuple[str, tuple[int, ...]], dict[str, float]] = {}

    # -- networks ------------------------------------------------------------------------------------------------------

    def network(self, encoder: str, role: str = "online", classes: int | None = None) -> Network:
        """The module of an architecture. A ``role`` other than "online" is a second copy that no gradient reaches: a
        momentum "target" (without predictor, unless that is one of ``Objective.target_heads``), or the one that is
        "evaluated".
        """
        key = (encoder, role, classes)
        if key not in self.networks:
            without = {"predictor"} - self.objective.target_heads if role == "target" else set()
            network = self._initial.network(encoder, classes, without=without)
            network.to(self.device, memory_format=self.memory_format)  # type: ignore[call-overload]
            network.requires_grad_(role == "online")
            flatten(network)
            if self.config.train.compile:
                network.encoder.compile()
            self.networks[key] = network
        return self.networks[key]

    def initial(self, encoder: str, classes: int | None = None, client: int | None = None) -> Weights:
        """The values that an architecture, or a client with it, begins with. Do not write to them."""
        if self._initial.whose(client):
            return self._initial(encoder, classes, client)
        key = (encoder, classes)
        if key not in self._common:
            self._common[key] = self._initial(encoder, classes)
        return self._common[key]

    # -- images --------------------------------------------------------------------------------------------------------

    def images(self, pixels: np.ndarray, indices: np.ndarray | None = None) -> Tensor:
        """(n, C, H, W) uint8 on the device, from (N, H, W, C) pixels. Do not write to them."""
        there = self.on_device.get(pixels) if self._lasts(pixels) else None
        if there is None:
            chosen = torch.tensor(np.asarray(pixels if indices is None else pixels[indices])).to(self.device)
        else:
            chosen = there if indices is None else there[torch.tensor(indices, device=self.device)]
        return chosen.permute(0, 3, 1, 2)

    def _lasts(self, pixels: np.ndarray) -> bool:
        """Whether these are images of the run, not images that were made for one operation."""
        dataset, public = self.federation.dataset, self.federation.public
        parts = (dataset.train, dataset.test, public)
        lasting = [*(part.pixels for part in parts if part is not None), *self.published.values()]
        return any(pixels is known for known in lasting)

    def clean(self, pixels: Tensor) -> Tensor:
        """uint8 (B, C, H, W) -> normalised float32, without augmentation. The images count as read."""
        self.images_read += len(pixels)
        return clean(pixels, self.recipe).contiguous(memory_format=self.memory_format)

    @torch.no_grad()
    def outputs(self, network: Network, pixels: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """(n, D) float32 of clean images by ``part`` of the network, in eval mode from now on, at most
        ``evaluation.batch_size`` images at a time.
        """
        network.eval()
        batches = torch.split(pixels, self.config.evaluation.batch_size)
        return torch.cat([part(self.clean(batch)).float() for batch in batches])

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        encoder: str,
        weights: Weights | None,
        classes: int | None = None,
        client: int | None = None,
        *,
        untrained: bool = False,
    ) -> dict[str, float]:
        """The values of the configured protocols for the frozen encoder, by tag. If the weights are None, it is the
        encoder that ``client`` begins with. ``classes`` is the number that the weights' classifier was built for, by
        default all classes of the data.

        The client's own test images are measured too; those of every client if ``client`` is None or the server. The
        values carry the outcomes on the test images. Values of encoders that the caller knows to be ``untrained`` are
        remembered for the next run that begins with them; remembered values carry the outcomes only if they were kept.
        """
        if not self.config.evaluation.protocols:
            return {}
        owner = None if client == SERVER else client
        if weights is None:
            key = (encoder, self._initial.whose(client))
            if key not in self._untrained:
                self._untrained[key] = self.evaluate(encoder, self.initial(encoder, client=client), untrained=untrained)
            return evaluation.of_client(self._untrained[key], owner)
        network = self.network(encoder, "evaluated", classes)

        def measured() -> dict[str, float]:
            unpack(weights, network)
            material = self.material(self.frozen(network), owner)
            material = replace(material, tally=Tally(material.tests[""]))
            return evaluation.evaluate(material, self.config.evaluation)

        if not untrained or not cache.repeatable(self.config.evaluation.rows.values(), network.encoder):
            return measured()
        values = cache.digest(weights.layout, weights.vector)
        return cache.remembered(self._key("encoder", encoder, values, classes, client), measured)

    def _key(self, *subject: object) -> dict[str, object]:
        """What an encoder's values depend on, besides the code and the machine."""
        config, federation = self.config, self.federation
        own = None if federation.own_tests is None else cache.digest(*federation.own_tests)
        blocks = [block.model_dump(mode="json") for block in (config.evaluation, config.augment, config.model)]
        return {
            "subject": subject,
            "images": [*self._images(), own, federation.clients],
            "settings": [*blocks, config.seed, config.train.compile, str(self.memory_format)],
            "device": device_name(self.device),
        }

    def _images(self) -> list[object]:
        """Values that identify all images and labels that protocols read."""
        federation = self.federation
        train, test = federation.dataset.train, federation.dataset.test
        held_out = None if federation.held_out is None else cache.digest(federation.held_out)
        images = cache.digest(federation.dataset.digest, train.labels, test.labels)
        return [images, len(train), len(test), federation.classes, held_out]

    def features_to_compare(self, network: Network) -> dict[str, np.ndarray]:
        """The features (n, D) by which each configured comparison compares an encoder, by the comparison's name: of
        test images, or of training images if there are none. The network's mode is unchanged.
        """
        config, dataset, training = self.config.evaluation, self.federation.dataset, network.training
        pixels = dataset.test.pixels if len(dataset.test) else dataset.train.pixels
        frozen = self.frozen(network)
        seed, rows = self.config.seed, config.comparisons
        found = {name: row.features(frozen, pixels, config.of(name), seed).numpy() for name, row in rows.items()}
        network.train(training)
        return found

    def evaluate_pixels(self) -> dict[str, float]:
        """The scores of the raw pixels by each configured protocol that can measure them: the baseline that an encoder
        has to beat.

        Each protocol's scores are remembered separately: they depend on neither the model nor the clients nor other
        protocols.
        """
        values, right, draws = dict[str, float](), dict[str, Counts](), dict[str, int]()
        for name, row in self.config.evaluation.on_pixels.items():
            values |= (found := self._pixels_by(name, row))
            if (outcomes := evaluation.outcomes_of(found)) is not None:
                right |= outcomes.right
                draws |= outcomes.draws
        kept = {tag: value for tag, value in values.items() if "/" not in tag}
        return evaluation.EncoderValues(kept, evaluation.Outcomes(right, draws))

    def _pixels_by(self, name: str, row: Protocol[Any]) -> dict[str, float]:
        config, settings = self.config.evaluation, self.config.evaluation.of(name)

        def measured() -> dict[str, float]:
            material = self.material(None, pixels=row.pixels or flattened)
            material = replace(material, tally=(tally := Tally(material.tests[""])))
            values = row.values(name, material, settings)
            return evaluation.EncoderValues(values, tally.outcomes(values))

        if not cache.repeatable([row]):
            return measured()
        decided = [settings.model_dump(mode="json"), config.metrics, config.train_images, self.config.seed]
        key = {"images": self._images(), "settings": decided, "device": device_name(self._device_of_pixels())}
        return cache.remembered({"subject": ("pixels", name), **key}, measured)

    def frozen(self, network: Network) -> FrozenEncoder:
        """The network's encoder, in eval mode from now on."""
        network.eval()
        return FrozenEncoder(
            network.encoder,
            network.dim,
            self.recipe,
            self.device,
            self.config.evaluation.batch_size,
            self.memory_format,
        )

    def material(
        self,
        frozen: FrozenEncoder | None,
        client: int | None = None,
        pixels: Callable[[np.ndarray], Tensor] = flattened,
    ) -> Material:
        """What protocols read: labelled training images, at most ``evaluation.train_images``, test images, and the
        held-out training images, if any. Without an encoder it is raw pixels, (N, S, S, C) to (N, D) as ``pixels``
        reads them. ``client`` says whose own test images count; None: those of every client.
        """
        federation, config = self.federation, self.config.evaluation
        train, test, held_out = federation.dataset.train, federation.dataset.test, federation.held_out
        rows, pool_rows = train_rows(federation, self.config)
        features = pixels if frozen is None else frozen.features
        classes = federation.classes
        tests = {"": Split("test", test.pixels, test.labels, classes, features)}
        if held_out is not None and frozen is not None:
            chosen = Split("held-out", train.pixels, labels_of(train.labels, held_out), classes, features)
            tests[evaluation.SELECT] = chosen
        return Material(
            Split("train", train.pixels, labels_of(train.labels, rows), classes, features),
            tests,
            train.pixels,
            pool_rows,
            classes,
            self.config.seed,
            config.metrics,
            frozen,
            {} if frozen is None else self._own_tests(client),
            self._device_of_pixels(),
        )

    def _device_of_pixels(self) -> torch.device:
        """The device on which raw pixels are measured: this one if they take, as float32, at most ``PIXELS_SHARE`` of
        it, else the CPU. The whole GPU counts, because an actor's share must not decide bits.
        """
        dataset = self.federation.dataset
        side, channels = dataset.train.pixels.shape[2:]
        needed = 4 * (len(dataset.train) + len(dataset.test)) * min(side, SIDE) ** 2 * channels
        return self.device if needed <= PIXELS_SHARE * device_memory(self.device) else torch.device("cpu")

    def _own_tests(self, client: int | None) -> dict[int, np.ndarray]:
        """The rows of this client's own test images, or of every participating client's."""
        rows = self.federation.own_tests
        if rows is None:
            return {}
        return {c: rows[c] for c in (self.federation.clients if client is None else (client,))}
