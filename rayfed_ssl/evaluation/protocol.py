"""Defines a protocol: a settings block, what it needs, and a function that computes values by tag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.numbers import numbers
from rayfed_ssl.base.schema import Block
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.evaluation.material import OWN, FrozenEncoder, Material

Settings = TypeVar("Settings", bound=Block)


@dataclass(frozen=True)
class Protocol(Generic[Settings]):
    """Measures one encoder.

    A third-party protocol is a row like ours, named by an entry point of the group ``rayfed_ssl.protocols``. Our
    protocols have their settings at ``evaluation.NAME``, where each key is part of a run's schema; settings of
    third-party protocols are at ``evaluation.options.NAME`` and are checked against ``config`` when they are read.

    ``measure`` returns ``{tag: value}``. A tag without a slash is a score, larger being better, and is recorded as
    ``eval/<tag>``. A tag with a slash is recorded as it is: ``features/<tag>`` describes features without judging them,
    and values measured on held-out images have tags that begin with ``select/``. A score's tag is the protocol's name,
    or begins with it and an underscore.
    """

    config: type[Settings]
    measure: Callable[[Material, Settings], dict[str, float]]
    tags: Callable[[Settings], tuple[str, ...]]
    """The scores ``measure`` returns for the test images, by ``evaluation.metrics: [accuracy]``."""
    needs_labels: bool = True
    """Whether it reads labels of the run's train and test images: runs that have none are refused beforehand."""
    classifies: bool = True
    """Whether each tag is an accuracy, so that ``evaluation.metrics`` adds others beside it."""
    pixels: Callable[[NDArray[np.uint8]], Tensor] | None = None
    """How it reads raw pixels, images (N, S, S, C) to (N, D), where it can be measured on them as on features: it asks
    its material for no encoder. None: it cannot be.
    """
    describes: tuple[str, ...] = ()
    """The names of the ``features/<name>`` that are one number of the encoder."""
    ready: Callable[[Settings, int], None] = lambda settings, image_size: None
    """Raises UserError for settings that cannot work, before a run writes its first file."""
    images: Callable[[Settings, int], Mapping[str, Dataset]] = lambda settings, image_size: {}
    """Other images than the run's that it measures on, by the key that names them: a run notes how they were read.
    Raises UserError where ``ready`` does.
    """
    remarks: Callable[[Settings, NDArray[np.int64]], Iterable[Note | str]] = lambda settings, labels: ()
    """Lines that a run prints before its first round, from the labels (N,) of the train images that it will use. A
    ``Note`` gives the part that a model card shows; of a line of plain text, a card shows nothing.
    """
    effective: Callable[[Settings, int], dict[str, int]] = lambda settings, train: {}
    """What is used in place of settings that so many labelled train images cut, by ``<setting>_used``: written beside
    the settings."""

    def values(self, name: str, material: Material, settings: Settings) -> dict[str, float]:
        """What ``measure`` finds. Raises TypeError if that is no dict of numbers by such tags, or if it wrote into
        features, which other protocols read, too.
        """
        found, said = self.measure(material, settings), f"evaluation protocol {name!r}"
        if not isinstance(found, dict):
            raise TypeError(
                f"{said}: found {type(found).__name__}; must be a dict of numbers by tag, as {{{name!r}: 0.5}}"
            )
        for tag in found:
            names = tuple(f"{own}{name}{end}" for own in ("", OWN) for end in "_@")
            if "/" not in tag and not f"{tag}_".startswith(names):
                raise TypeError(f"{said}: found the tag {tag!r}; must be {name!r}, or begin with {name + '_'!r}")
        if any(split.changed for split in (material.train, *material.tests.values())):
            raise TypeError(
                f"{said}: it wrote into the features, which other protocols read, too; must write into a copy"
            )
        return numbers(found, said)


@dataclass(frozen=True)
class EncoderComparison(Generic[Settings]):
    """Compares encoders by their features of the same images: the encoders of a finished run, or, during a run, those
    that a round's clients ended with.
    """

    config: type[Settings]
    tag: str
    """The tag, beginning with ``features/``, that a run records; others, of single pairs, it leaves out."""
    features: Callable[[FrozenEncoder, NDArray[np.uint8], Settings, int], Tensor]
    """An encoder, images (N, S, S, C), settings and the run's seed -> what the encoder is compared by (n, D), on the
    CPU; made where the encoder is.
    """
    compare: Callable[[Mapping[str, Tensor], Settings], dict[str, float]]
    """``{name: what an encoder is compared by}`` -> ``{tag: value}``; empty where no two can be compared."""
    clients: Callable[[Settings], int]
    """How many clients of a round are compared, at most."""
