"""The table of sources: a row that others add is decoded, cached, digested and checked as ours are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from rayfed_ssl.base.notes import Note
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.images import Listing, Source
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SOURCES, SourceConfig, SourceKind


def open_numpy(config: SourceConfig, cache: Path, key: str) -> Source:
    """What a third party would write: pixels and labels in two .npy files per split."""
    folder = config.path
    files = tuple(folder / f"{split}_{what}.npy" for split in ("train", "test") for what in ("pixels", "labels"))

    def listing(split: str) -> Listing:
        pixels, labels = (np.load(folder / f"{split}_{what}.npy") for what in ("pixels", "labels"))
        count = len(labels[: config.limits[split]])
        rows = [(f"{split} row {row}", pixels[row]) for row in range(count)]
        return Listing(labels[:count], ("a\x1b[31m", "b"), lambda: iter(rows))

    return Source(files, listing, ("read by a stranger",))


@pytest.fixture
def table():
    SOURCES.add("numpy files", SourceKind(open_numpy), "a test")
    yield SOURCES
    SOURCES.remove("a test")


def write(folder: Path, labels=(0, 1, 1)) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)
    for split in ("train", "test"):
        np.save(folder / f"{split}_pixels.npy", pixels)
        np.save(folder / f"{split}_labels.npy", np.array(labels, np.int64))
    return pixels


def test_a_source_from_outside(tmp_path, table):
    pixels = write(tmp_path)
    config = SourceConfig(name="numpy files", path=tmp_path, image_size=8, test_limit=2)
    data = load(config, tmp_path / "cache")
    assert np.array_equal(data.train.pixels, pixels)
    assert (len(data.train), len(data.test)) == (3, 2)
    assert data.train.class_names == ("a\\x1b[31m", "b")  # never what a terminal would act on
    assert data.notes == (Note("read by a stranger"),)  # which is on no card
    write(tmp_path, labels=(1, 1, 0))
    assert load(config, tmp_path / "cache").digest != data.digest


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((0, 1, 2), "found the label 2; there are 2 class names"),
        ((0, 1, 10**9), "found the label 1000000000; allowed: 0 to 1048575"),
        ((0, 1, -7), "found the label -7; allowed: 0 to"),
    ],
)
def test_its_labels_are_checked(tmp_path, table, labels, message):
    write(tmp_path, labels)
    with pytest.raises(UserError, match=message):
        load(SourceConfig(name="numpy files", path=tmp_path, image_size=8), tmp_path / "cache")


def test_keys_that_a_source_does_not_read_are_refused(tmp_path, table):
    with pytest.raises(ValidationError, match=r"layout: found a value; numpy files reads none; .*: imagefolder"):
        SourceConfig(name="numpy files", path=tmp_path, layout="clients")
    with pytest.raises(ValidationError, match=r"path: found a value; digits reads none; .*numpy files"):
        SourceConfig(name="digits", path=tmp_path)


def test_an_unknown_name_gets_the_names_and_the_closest(table):
    with pytest.raises(
        ValidationError, match=r"name: found 'cifar_10'; must be one of digits, .*; did you mean cifar10"
    ):
        SourceConfig(name="cifar_10")
    table.add("half done", open_numpy, "a test")
    with pytest.raises(ValidationError, match=r"'half done', of which a test gives no .*SourceKind"):
        SourceConfig(name="half done")
