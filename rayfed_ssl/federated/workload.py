"""The predicted cost of a client's operation, which decides who replies in time before any client trains; and the
batches of local training, which the client draws and the server counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rayfed_ssl.federated.ledger import sizes
from rayfed_ssl.settings.run import RunSettings

BOTH_WAYS = 3  # passes forward that one forward and back takes: back is about two


@dataclass(frozen=True)
class Workload:
    """``images``: source images the operation reads, each once per pass over it. ``up``: bytes of the reply by field,
    as the ledger books them. ``passes``: what is computed besides `fit` on the objective's views, counted in forward
    passes of one image through a network; a pass forward and back counts as ``BOTH_WAYS``. Only `run --check`'s time
    estimate uses it.
    """

    images: int
    up: Mapping[str, int] = field(default_factory=dict)
    passes: int = 0

    @classmethod
    def inferred(cls, images: int, views: int = 1, /, **replied: object) -> Workload:
        """The workload of reading each image once, passing this many views of it forward, and replying with values of
        these sizes.
        """
        return cls(images, sizes(replied), views * images)

    @classmethod
    def trained(cls, images: int, views: int = 1) -> Workload:
        """The workload of training besides ``fit``: each image is read once, and this many views of it pass forward and
        back.
        """
        return cls(images, passes=BOTH_WAYS * views * images)

    @property
    def up_bytes(self) -> int:
        return sum(self.up.values())

    def __add__(self, other: Workload) -> Workload:
        up = {name: self.up.get(name, 0) + other.up.get(name, 0) for name in {**self.up, **other.up}}
        return Workload(self.images + other.images, up, self.passes + other.passes)


@dataclass(frozen=True)
class Traffic:
    """Bytes that one client is sent and sends in one round, as the ledger books them."""

    down: int
    up: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.down + other.down, self.up + other.up)


@dataclass(frozen=True)
class Batches:
    """The batches of local training: ``steps`` of ``size`` rows, ``per_epoch`` of them before images are reshuffled."""

    size: int
    per_epoch: int
    steps: int

    @property
    def images(self) -> int:
        """The number of images that these batches read."""
        return self.steps * self.size


def local_batches(settings: RunSettings, count: int, epochs: int | None = None, size: int | None = None) -> Batches:
    """The batches out of ``count`` >= 1 images. All batches have the same number of rows, so that their losses and
    correlations are comparable; a short last batch is dropped.

    Args:
        epochs: passes over the images; None: ``train.local_steps`` if they are given, else ``train.local_epochs``.
        size: rows of a batch; None: the method's batch size, and at least as many as objective and plug-ins are defined
            for. If there are fewer images, the batch is all of them.
    """
    train = settings.train
    if size is None:
        rows = settings.method.batch_rows(train.batch_size, count)
        size = max(rows, *(least for _, least in settings.least_batches))
    size = min(size, count)
    per_epoch = count // size
    if epochs is None and train.local_steps:
        return Batches(size, per_epoch, train.local_steps)
    return Batches(size, per_epoch, per_epoch * (train.local_epochs if epochs is None else epochs))
