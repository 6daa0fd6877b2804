"""Templates of ``rayfed-ssl new``: for each kind a complete working file and its test."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from string import Template

METHOD = Template('''"""$title: what it does, in one sentence (paper, equation).

    rayfed-ssl run CONFIG.yaml 'imports=[$name.py]' method.name=$name

It begins as FedAvg (McMahan et al. 2017) whose server goes `step` of the way to the clients' mean: 1 is FedAvg.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.settings.blocks import MethodConfig


class Config(MethodConfig):
    name: Literal["$name"] = "$name"
    step: Annotated[float, Field(gt=0, le=1)] = 1.0  # method.step=0.5 in a run


class Client(EncoderClient[Config]):
    def train(self, weights: Weights) -> dict[str, Any]:
        self.load(weights)
        self.fit()  # local epochs of the run's objective
        return {"weights": self.weights}


class Server(MethodServer[Config]):
    def start(self, cohort: Cohort) -> None:
        self.weights = self.initial_weights()

    def round(self, t: int, cohort: Cohort) -> None:
        mean = cohort.mean("train", weights=self.weights)["weights"]
        change = self.method.step * (mean.vector - self.weights.vector)
        self.weights = self.weights.with_vector(self.weights.vector + change)


METHODS = {
    "$name": Method(Config, Client, Server, Info("its paper", "weights"), objective="simclr", accepts=unlabelled)
}
''')

PLUGIN = Template('''"""$title: what it adds to any method's loss, in one sentence (paper, equation).

    rayfed-ssl run CONFIG.yaml 'imports=[$name.py]' 'plugins=[{name: $name}]'

It begins as a penalty on large projections: `weight` times the mean square of their entries, the mean over views.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_ssl.federated.method import Info, Method, unlabelled
from rayfed_ssl.federated.plugin import ClientPlugin, ServerPlugin
from rayfed_ssl.methods import fedavg
from rayfed_ssl.settings.run import PluginConfig


class Config(PluginConfig):
    name: Literal["$name"] = "$name"
    weights: Literal["size", "uniform"] = "size"  # as a method of its own, over FedAvg: how clients count
    weight: Annotated[float, Field(ge=0)] = 0.1  # 'plugins=[{name: $name, weight: 0.5}]' in a run


class OnTheClient(ClientPlugin[Config]):
    def penalty(self, projections: tuple[Tensor, ...], features: tuple[Tensor, ...] = ()) -> Tensor | None:
        return self.config.weight * torch.stack([view.float().square().mean() for view in projections]).mean()


METHODS = {
    "$name": Method(
        Config, fedavg.Client, fedavg.Server, Info("its paper", "weights"), objective="simclr", accepts=unlabelled,
        step="exchange", averages_targets=True,  # its round is FedAvg's, so FedBuff goes with it
        plugin=(OnTheClient, ServerPlugin),  # a server's half of its own where something is exchanged
    )
}
''')

OBJECTIVE = Template('''"""$title: the local loss, in one sentence (paper, equation).

    rayfed-ssl run CONFIG.yaml 'imports=[$name.py]' method.name=fedavg 'objective={name: $name}'

It begins as alignment and uniformity (Wang and Isola 2020): the squared distance of an image's two views on the unit
sphere, plus `uniformity` times the logarithm of the mean of exp(-2 d^2) over pairs of images, the mean over views.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import Batch, Objective, ObjectiveConfig, Step, encoded_together, full_precision


class Config(ObjectiveConfig):
    name: Literal["$name"] = "$name"
    uniformity: Annotated[float, Field(ge=0)] = 1.0  # objective.uniformity=0.5 in a run


@dataclass(frozen=True)
class $title(Objective):
    config: Config

    block: ClassVar[type[ObjectiveConfig]] = Config
    heads: ClassVar[frozenset[str]] = frozenset({"projector"})

    def step(self, network: Network, batch: Batch) -> Step:
        features, projections = encoded_together(network, batch.views)
        z = [F.normalize(full_precision(view), dim=1) for view in projections]
        alignment = (z[0] - z[1]).square().sum(1).mean()
        spread = torch.stack([torch.pdist(view).square().mul(-2).exp().mean().log() for view in z]).mean()
        return Step(alignment + self.config.uniformity * spread, projections, features)


OBJECTIVES = {"$name": $title}
''')

PARTITION = Template('''"""$title: how images are dealt to clients, in one sentence.

    rayfed-ssl run CONFIG.yaml 'imports=[$name.py]' 'data.partition={name: $name, ratio: 0.5}'

It begins with sizes that fall off: each client holds `ratio` times as many images as the one before, drawn at random.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rayfed_ssl.data.partition_base import Deal, Indices, Partition
from rayfed_ssl.data.partition_rules import largest_remainder


class $title(Partition):
    name: Literal["$name"] = "$name"
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.8  # 1: an equal split

    def shards(self, deal: Deal) -> list[Indices]:
        sizes = self.ratio ** np.arange(deal.clients)
        counts = largest_remainder(len(deal.chosen), sizes / sizes.sum())
        return np.split(deal.draw.permutation(deal.chosen), np.cumsum(counts)[:-1])


PARTITIONS = {"$name": $title}
''')

SOURCE = Template('''"""$title: where the images come from, in one sentence.

    rayfed-ssl run CONFIG.yaml 'imports=[$name.py]' data.name=$name data.path=FOLDER

It begins as a folder of PNG files whose names begin with their class, as `cat_0012.png` does: CLASS_ANYTHING.png. A
fifth of each class is held out for testing.
"""

from pathlib import Path

import numpy as np

from rayfed_ssl.data.holdout import TEST_SHARE, stratified_halves
from rayfed_ssl.data.images import Listing, Source
from rayfed_ssl.data.sources import SourceConfig, SourceKind, existing


def open_$name(config: SourceConfig, cache: Path, key: str) -> Source:
    files = sorted(existing(config, key).glob("*_*.png"))
    classes = sorted({file.name.split("_")[0] for file in files})
    labels = np.array([classes.index(file.name.split("_")[0]) for file in files], dtype=np.int64)  # -1: unknown
    rest, held_out = stratified_halves(labels, TEST_SHARE)

    def listing(split: str) -> Listing:
        rows = (held_out if split == "test" else rest)[: config.limits[split]]
        chosen = [files[row] for row in rows]
        # An image is its name and its file; in place of that, a file's bytes, or pixels: uint8 (H, W, 3).
        return Listing(labels[rows], tuple(classes), lambda: ((file.name, file) for file in chosen))

    return Source(tuple(files), listing)


SOURCES = {"$name": SourceKind(open_$name)}
''')

ENCODER = Template('''"""$title: what kind of network it is, in one sentence (paper, table).

    rayfed-ssl run CONFIG.yaml 'imports=[$name.py]' clients.encoders=$name

It begins as two convolutions and a global average.
"""

from torch import Tensor, nn

from rayfed_ssl.models import Encoder, Family, ModelConfig


class $title(Encoder):
    """(B, C, S, S) -> (B, dim)."""

    def __init__(self, config: ModelConfig, image_size: int, channels: int) -> None:
        super().__init__()
        width, self.dim = config.scaled(32), config.scaled(64)  # model.width scales a family
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width, self.dim, 3, stride=2, padding=1), nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images).mean(dim=(2, 3))
        return features


ENCODERS = {"$name": Family($title, minimum=4)}
''')

PROTOCOL = Template('''"""$title: what it measures of a frozen encoder, in one sentence (paper, section).

    rayfed-ssl run CONFIG.yaml 'imports=[$name.py]' 'evaluation.protocols=[knn, $name]'

It begins as the nearest class mean: a test image is of the class whose training images have the most similar mean.
"""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rayfed_ssl.base.schema import Block
from rayfed_ssl.evaluation import Protocol
from rayfed_ssl.evaluation.material import Material, Split


class Config(Block):
    temperature: float = Field(0.1, gt=0)  # 'evaluation.options.$name={temperature: 0.5}' in a run


def measure(material: Material, config: Config) -> dict[str, float]:
    train = F.normalize(material.train.features, dim=1)
    means = torch.zeros(material.classes, train.shape[1]).index_add_(0, material.train.labels, train)
    means = F.normalize(means, dim=1)  # a class without training images stays at zero

    def answer(split: Split) -> tuple[Tensor, Tensor]:
        scores = (F.normalize(split.features, dim=1) @ means.T / config.temperature).softmax(1)
        return scores.argmax(1), scores

    return material.classified("$name", answer)


PROTOCOLS = {"$name": Protocol(Config, measure, tags=lambda config: ("$name",))}
''')

TEST = Template('''"""$title keeps a run's promises: finite, deterministic, resumable, the same bits on Ray."""

from pathlib import Path

from rayfed_ssl.testing import contract

Test$title = contract("$method", {"imports": ["$name.py"], $changes}, beside=Path(__file__).parent)
''')

SOURCE_TEST = Template('''"""$title keeps a run's promises: finite, deterministic, resumable, the same bits on Ray."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from rayfed_ssl.testing import contract

IMAGES = TemporaryDirectory()  # as $name reads them: noise of four classes
for index in range(200):
    pixels = np.random.default_rng(index).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(Path(IMAGES.name) / f"{'abcd'[index % 4]}_{index}.png")

Test$title = contract("$method", {"imports": ["$name.py"], $changes}, beside=Path(__file__).parent)
''')


class Kind(StrEnum):
    """The kinds of things that ``rayfed-ssl new`` begins."""

    METHOD = "method"
    PLUGIN = "plugin"
    OBJECTIVE = "objective"
    SOURCE = "source"
    PARTITION = "partition"
    ENCODER = "encoder"
    PROTOCOL = "protocol"


@dataclass(frozen=True)
class Starter:
    """What a thing of a kind begins as: its file, and the settings of a run that uses it."""

    text: Template
    table: str
    """The table of ``extensions.TABLES`` that the file adds a row to."""
    run: str
    """The overrides of a run that uses it."""
    method: str
    """The method that its test runs."""
    changes: str
    """What its test changes in the run."""
    test: Template = TEST

    def files(self, name: str) -> tuple[str, str]:
        """The text of the file for a thing of this name, and that of its test."""
        title = "".join(part.capitalize() for part in name.split("_"))
        method, changes = (Template(text).substitute(name=name) for text in (self.method, self.changes))
        test = self.test.substitute(name=name, title=title, method=method, changes=changes)
        return self.text.substitute(name=name, title=title), test


STARTERS = {
    Kind.METHOD: Starter(METHOD, "METHODS", "method.name=$name", "$name", '"method.step": 0.5'),
    Kind.PLUGIN: Starter(
        PLUGIN, "METHODS", "'plugins=[{name: $name}]'", "fedsimclr", '"plugins": [{"name": "$name", "weight": 0.5}]'
    ),
    Kind.OBJECTIVE: Starter(
        OBJECTIVE,
        "OBJECTIVES",
        "method.name=fedavg 'objective={name: $name}'",
        "fedavg",
        '"objective": {"name": "$name"}',
    ),
    Kind.SOURCE: Starter(
        SOURCE,
        "SOURCES",
        "data.name=$name data.path=FOLDER",
        "fedsimclr",
        '"data.name": "$name", "data.path": IMAGES.name',
        SOURCE_TEST,
    ),
    Kind.PARTITION: Starter(
        PARTITION,
        "PARTITIONS",
        "'data.partition={name: $name}'",
        "fedsimclr",
        '"data.partition": {"name": "$name", "ratio": 0.7}',
    ),
    Kind.ENCODER: Starter(ENCODER, "ENCODERS", "clients.encoders=$name", "fedsimclr", '"clients.encoders": "$name"'),
    Kind.PROTOCOL: Starter(
        PROTOCOL,
        "PROTOCOLS",
        "'evaluation.protocols=[knn, $name]'",
        "fedsimclr",
        '"evaluation.protocols": ["knn", "$name"]',
    ),
}
