"""An encoder's representations of images: features, nearest neighbours, a map in the plane.

Shapes: N images, D features, K neighbours. All randomness is seeded by the run's seed.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.text import printable
from rayfed_ssl.config import RunConfig, load_untrusted
from rayfed_ssl.evaluation import FrozenEncoder
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.models.base import Encoder
from rayfed_ssl.models.exported import exported_files, held_by
from rayfed_ssl.simulation.resuming import check_same_images

POOL = 1000  # the most images in the sample
MAPPED = 500  # the most of them on the map
QUERIES, NEIGHBOURS = 6, 5
PERPLEXITY = 30.0


@dataclass(frozen=True)
class Look:
    """A sample of images and an encoder's features of them.

    ``pixels`` (N, S, S, C) uint8; ``labels`` (N,), -1 if unknown; ``features`` (N, D) of the trained encoder;
    ``before`` (N, D) of the untrained one, or None if the run began with a trained one. ``encoder``: the exported
    encoder's name. ``split``: which images these are.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    features: NDArray[np.float64]
    before: NDArray[np.float64] | None
    encoder: str
    split: str
    seed: int

    def class_name(self, row: int) -> str:
        """What the class of one image is called."""
        label = int(self.labels[row])
        if label < 0:
            return "unlabelled"
        return printable(self.class_names[label], 30) if label < len(self.class_names) else str(label)


def look(run: Path, *, trust_imports: bool = False) -> Look:
    """Up to 1000 test images, or training images if there are no test images, drawn with the run's seed, and their
    features by the global encoder, or by the first client's if there is no global one.

    Raises:
        UserError: the images, the encoder or the code that they need cannot be found, or are not those of the run.
        OSError: a file cannot be read.
    """
    config = load_untrusted(run / "config.yaml", trust_imports=trust_imports)
    files = exported_files(run / "encoder")
    if not files:
        raise UserError(f"{run.name}: found no exported encoder; the run has not ended")
    file = held_by(None, files) or files[0]
    encoder = file.load()
    federation = load_federation(config)
    check_same_images(run, federation)
    images = federation.dataset.test if len(federation.dataset.test) else federation.dataset.train
    rows = np.sort(numpy_generator(config.seed, "report", "images").permutation(len(images))[:POOL])
    pixels = np.array(images.pixels[rows])
    before = None
    if config.model.start is None:
        classes = None if file.client is None else federation.task_classes(file.client)
        network = InitialWeights(config, federation).network(file.architecture, classes, client=file.client)
        before = _features(network.encoder, config, pixels)
    return Look(
        pixels, images.labels[rows], images.class_names, _features(encoder, config, pixels), before, file.stem,
        "test" if images is federation.dataset.test else "training", config.seed,
    )  # fmt: skip


def _features(encoder: Encoder, config: RunConfig, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The features (N, D) of the images, which are not augmented. Raises UserError if one is not finite."""
    module = encoder.eval().to(memory_format=torch.channels_last)
    frozen = FrozenEncoder(module, encoder.dim, config.augment.recipe(), torch.device("cpu"), 250)
    values = frozen.features(pixels).double().numpy()
    if not np.isfinite(values).all():
        raise UserError("encoder: found features that are not finite; the training diverged")
    return np.asarray(values)


# -- mathematics -------------------------------------------------------------------------------------------------------


def similarities(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cosines (N, N) between rows of ``features`` (N, D); 0 for rows that are all zero."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    units = features / np.where(lengths > 0, lengths, 1.0)
    return np.asarray(units @ units.T)


def neighbours(features: NDArray[np.float64], row: int) -> list[tuple[int, float]]:
    """The ``NEIGHBOURS`` rows with the largest cosines to ``row``, without itself, and these cosines. Of rows with
    equal cosines the earlier comes first. ``features``: (N, D).
    """
    lengths = np.linalg.norm(features, axis=1)
    units = features / np.where(lengths > 0, lengths, 1.0)[:, None]
    cosines = units @ units[row]
    cosines[row] = -np.inf
    return [(int(i), float(cosines[i])) for i in np.argsort(-cosines, kind="stable")[:NEIGHBOURS] if i != row]


def mapped(count: int, seed: int) -> NDArray[np.int64]:
    """Which of ``count`` images are on the map, ascending. They are drawn by the seed, because in a folder's order the
    first rows are of few classes.
    """
    return np.sort(numpy_generator(seed, "report", "map").permutation(count)[:MAPPED])


def queries(labels: NDArray[np.int64], count: int = QUERIES) -> list[int]:
    """Rows whose neighbours are shown: the first image of each of up to ``count`` classes, spread evenly over the
    classes; without labels, rows spread evenly.
    """
    classes = [int(label) for label in np.unique(labels) if label >= 0]
    choices = classes or range(len(labels))
    chosen = [choices[i * len(choices) // min(count, len(choices))] for i in range(min(count, len(choices)))]
    return [int(np.flatnonzero(labels == label)[0]) for label in chosen] if classes else chosen


def principal(features: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The (N, count) coordinates along the principal axes of ``features`` (N, D), padded with zeros if there are fewer
    axes. Each axis has the sign that makes its largest entry positive.
    """
    centred = features - features.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:count]
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])
    coordinates = centred @ (axes * signs[:, None]).T
    return np.asarray(np.pad(coordinates, ((0, 0), (0, count - coordinates.shape[1]))))


def plane(features: NDArray[np.float64], seed: int) -> tuple[NDArray[np.float64], str]:
    """The coordinates (N, 2) of ``features`` (N, D), and the name of the map: t-SNE if openTSNE is installed and there
    are at least 10 images, else PCA, the first two principal components.
    """
    count = len(features)
    if importlib.util.find_spec("openTSNE") is None or count < 10:
        return principal(features, 2), "PCA"
    from openTSNE import TSNE

    deviation = features.std(0)
    scaled = (features - features.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    reduced = principal(scaled, min(50, scaled.shape[1], count))
    perplexity = min(PERPLEXITY, (count - 1) / 3)
    options: dict[str, Any] = {"n_jobs": 1, "random_state": seed, "initialization": "pca", "n_iter": 400}
    fitted = TSNE(perplexity=perplexity, neighbors="exact", **options).fit(reduced)
    return np.asarray(fitted, np.float64), "t-SNE"
