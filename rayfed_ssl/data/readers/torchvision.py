"""CIFAR-10, CIFAR-100, SVHN, STL-10 and Fashion-MNIST through torchvision, which reads, checks and downloads them.

``data.path`` is torchvision's root; without it the files are in the cache's ``downloads/`` folder. STL-10 trains on its
labelled and its unlabelled images (label -1) together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line
from rayfed_ssl.data.images import Listing, Payload, Source
from rayfed_ssl.data.readers.limits import FIRST_ROWS, unseen_classes

datasets = LazyModule("torchvision.datasets")


@dataclass(frozen=True)
class _Set:
    """How a data set is read through torchvision: the name of its class, the arguments of each split, the files it
    reads, the order of its array's axes.

    ``files`` is a function, because torchvision's classes know their files and are imported late. ``axes`` bring pixels
    (N, ...) to (N, H, W, 3), or leave (N, H, W).
    """

    name: str
    splits: dict[str, dict[str, Any]]
    files: Callable[[], list[str]]
    axes: tuple[int, ...]


def _cifar_files(cls: Any) -> list[str]:
    names = [name for name, _ in cls.train_list + cls.test_list] + [cls.meta["filename"]]
    return [f"{cls.base_folder}/{name}" for name in names]


def _fashion_files() -> list[str]:
    return [f"FashionMNIST/raw/{name.removesuffix('.gz')}" for name, _ in datasets.FashionMNIST.resources]


def _stl10_files() -> list[str]:
    cls = datasets.STL10
    return [f"{cls.base_folder}/{name}" for name, _ in cls.train_list + cls.test_list]


_HALVES: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
_HWC, _CHW, _GREY = (0, 1, 2, 3), (0, 2, 3, 1), (0, 1, 2)
_SETS = {
    "cifar10": _Set("CIFAR10", _HALVES, lambda: _cifar_files(datasets.CIFAR10), _HWC),
    "cifar100": _Set("CIFAR100", _HALVES, lambda: _cifar_files(datasets.CIFAR100), _HWC),
    "fashion_mnist": _Set("FashionMNIST", _HALVES, _fashion_files, _GREY),
    "stl10": _Set("STL10", {"train": {"split": "train+unlabeled"}, "test": {"split": "test"}}, _stl10_files, _CHW),
    "svhn": _Set(
        "SVHN",
        {"train": {"split": "train"}, "test": {"split": "test"}},
        lambda: [datasets.SVHN.split_list[split][1] for split in ("train", "test")],
        _CHW,
    ),
}


def torchvision_source(name: str, root: Path, download: bool, limits: dict[str, int | None], key: str) -> Source:
    """The source ``name`` below ``root``; missing files are downloaded if ``download`` is set.

    Raises UserError naming ``data.download`` for missing files, and for files that torchvision's checksums refuse.
    """
    data_set = _SETS[name]
    files = tuple(root / file for file in data_set.files())
    missing = [file for file in files if not file.is_file()]
    if missing and not download:
        raise UserError(
            f"{key}.path: {missing[0]} is missing; put {name} there or set {key}.download=true "
            "(--check downloads nothing)"
        )
    if missing:
        for split in data_set.splits:
            _opened(data_set, name, root, split, download, key)

    def listing(split: str) -> Listing:
        opened = _opened(data_set, name, root, split, False, key)
        pixels = np.asarray(opened.data).transpose(data_set.axes)
        labels = np.asarray(opened.targets if hasattr(opened, "targets") else opened.labels, dtype=np.int64)
        class_names = tuple(getattr(opened, "classes", None) or (str(number) for number in range(10)))
        count = len(labels[: limits[split]])

        def read() -> Iterator[tuple[str, Payload]]:
            return ((f"{name} {split} {row}", pixels[row]) for row in range(count))

        notes = unseen_classes(split, labels, np.arange(count), FIRST_ROWS)
        return Listing(labels[:count], class_names, read, notes=notes)

    return Source(files, listing)


def _opened(data_set: _Set, name: str, root: Path, split: str, download: bool, key: str) -> Any:
    """torchvision's object of a split. Raises UserError if it cannot be downloaded or is damaged."""
    try:
        return getattr(datasets, data_set.name)(str(root), download=download, **data_set.splits[split])
    except (RuntimeError, OSError, HTTPException, ValueError, KeyError, TypeError, AssertionError) as error:
        problem = "could not be downloaded to" if download else "is damaged below"
        remedy = "put it there by hand" if download else f"remove it and set {key}.download=true, or put it there"
        reason = in_one_line(error, 200)
        raise UserError(f"{key}.path: {name} {problem} {root} ({reason}); {remedy}") from error
