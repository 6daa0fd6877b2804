"""Images with the same pixels are found, against a comparison of every pair; the result is kept in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.pixels import copies as module
from rayfed_ssl.data.pixels.copies import copies
from rayfed_ssl.data.sources import SourceConfig


def by_pairs(*splits: np.ndarray) -> list[tuple[int, int]]:
    """Every image against every earlier one."""
    images = [image for split in splits for image in split]
    found = []
    for row, image in enumerate(images):
        earlier = [first for first in range(row) if np.array_equal(images[first], image)]
        found += [(row, earlier[0])] if earlier else []
    return found


@pytest.mark.parametrize("shape", [(8, 8, 3), (9, 9, 1), (8, 8, 1)])
def test_the_same_pixels_are_found_as_by_comparing_all_pairs(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 256, (12, *shape), dtype=np.uint8)
    train, test = kinds[rng.integers(0, 8, 20)], kinds[rng.integers(4, 12, 15)]
    assert [tuple(pair) for pair in copies(train, test)] == by_pairs(train, test)
    assert len(copies(kinds)) == 0
    assert copies(kinds[:0], kinds[:0]).shape == (0, 2)
    assert [tuple(pair) for pair in copies(kinds[:0], kinds[[1, 1]])] == [(1, 0)]


def test_images_of_equal_sums_are_told_apart_by_their_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last byte of a row of 81 is in no word; nor may any other sum be taken at its word."""
    images = np.zeros((3, 9, 9, 1), np.uint8)
    images[1, -1, -1] = 7
    assert [tuple(pair) for pair in copies(images)] == [(2, 0)]
    monkeypatch.setattr(module, "_sums", lambda flat: np.zeros(len(flat), np.uint64))
    different = np.random.default_rng(1).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
    assert len(copies(different)) == 0


def test_a_data_set_of_more_than_a_block_is_summed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 4)
    kinds = np.random.default_rng(2).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    train, test = kinds[[0, 1, 2, 3, 4, 1, 5]], kinds[[5, 0]]
    assert [tuple(pair) for pair in copies(train, test)] == [(5, 1), (7, 6), (8, 0)]


def folder(tmp_path: Path) -> SourceConfig:
    pixels = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    files = {"train/a/0.png": 0, "train/a/1.png": 1, "train/b/2.png": 2, "test/a/3.png": 1, "test/b/4.png": 3}
    for name, number in files.items():
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number]).save(tmp_path / "d" / name)
    return SourceConfig(name="imagefolder", path=tmp_path / "d", image_size=8)


def test_what_is_found_is_kept_with_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, cache = folder(tmp_path), tmp_path / "cache"
    data = load(config, cache)
    assert data.copies is not None
    assert data.copies.tolist() == [[3, 1]]
    (kept,) = cache.glob("*-copies.json")
    assert json.loads(kept.read_text()) == {"images": data.digest, "copies": [[3, 1]]}
    assert not [*cache.glob("*.tmp")]
    with monkeypatch.context() as patched:
        patched.setattr(module, "copies", lambda *splits: pytest.fail("found once more"))
        again = load(config, cache)
    assert again.copies is not None
    assert again.copies.tolist() == [[3, 1]]
    assert load(config, cache, splits=("train",)).copies is None


@pytest.mark.parametrize("damage", ['{"images"', "[]", '{"images": "of others", "copies": [[1, 0]]}', "{}"])
def test_a_damaged_or_foreign_file_is_found_anew(tmp_path: Path, damage: str) -> None:
    config, cache = folder(tmp_path), tmp_path / "cache"
    load(config, cache)
    (kept,) = cache.glob("*-copies.json")
    kept.write_text(damage)
    data = load(config, cache)
    assert data.copies is not None
    assert data.copies.tolist() == [[3, 1]]
    assert json.loads(kept.read_text())["copies"] == [[3, 1]]


def test_a_cache_that_cannot_be_written_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, cache = folder(tmp_path), tmp_path / "cache"
    load(config, cache)
    (kept,) = cache.glob("*-copies.json")
    kept.unlink()

    def refuse(old: Path, new: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    data = load(config, cache)
    assert data.copies is not None
    assert data.copies.tolist() == [[3, 1]]
    assert not [*cache.glob("*.tmp")]
    (tmp_path / "d/train/a/9.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="cannot be"):
        load(config, cache)
