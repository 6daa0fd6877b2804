"""Near-duplicates between training and test images, against correlations that NumPy and Pillow compute."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from rayfed_ssl.base.notes import texts
from rayfed_ssl.data.images import Dataset
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.pixels import near_copies as near
from rayfed_ssl.data.pixels.near_copies import kept_near_copies, near_copies
from rayfed_ssl.data.sources import SourceConfig

SCENES, FRAMES = 12, 10


def scene(number: int, frame: int, shift: int = 0) -> Image.Image:
    """A frame of a camera that does not move, unless by ``shift`` pixels of 200: with noise, an exposure of its own and
    JPEG's losses.
    """
    photograph = load_sample_images().images[number % 2]
    corner, values = np.random.default_rng(number), np.random.default_rng([number, frame])
    top, left = (int(corner.integers(10, side - 210)) for side in photograph.shape[:2])
    pixels = photograph[top : top + 200, left + shift : left + shift + 200].astype(float)
    pixels = pixels * values.uniform(0.95, 1.05) + values.uniform(-5, 5) + values.normal(0, 4, pixels.shape)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).round().astype(np.uint8)).save(file, "JPEG", quality=80)
    return Image.open(file)


def square(image: Image.Image, side: int = 32) -> np.ndarray:
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR))


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    """(SCENES, FRAMES, 32, 32, 3)."""
    return np.stack([np.stack([square(scene(number, frame)) for frame in range(FRAMES)]) for number in range(SCENES)])


def found(train: np.ndarray, test: np.ndarray, copied: np.ndarray | None = None) -> near.NearCopies:
    return near_copies(train, test, np.zeros(len(test), np.bool_) if copied is None else copied)


@pytest.mark.long
def test_frames_of_one_scene_are_found_and_those_of_other_scenes_are_not(frames: np.ndarray) -> None:
    train, test = frames[:, ::2].reshape(-1, 32, 32, 3), frames[:, 1::2].reshape(-1, 32, 32, 3)
    alike = found(train, test)
    assert [row for row, _ in alike.pairs] == list(range(len(test)))
    assert all(row // 5 == other // 5 for row, other in alike.pairs)
    assert (alike.many, alike.sampled, alike.tested, alike.trained) == (True, False, 60, 60)
    apart = found(frames[::2].reshape(-1, 32, 32, 3), frames[1::2].reshape(-1, 32, 32, 3))
    assert (apart.pairs, apart.many) == ([], False)
    copied = np.arange(len(test)) < 20
    assert [row for row, _ in found(train, test, copied).pairs] == list(range(20, len(test)))


@pytest.mark.parametrize("side", [24, 32, 64, 100])
def test_a_pair_is_alike_where_numpys_correlations_are_high_enough(side: int) -> None:
    """Thumbnails by means of blocks of pixels: Pillow's box filter, where the blocks are of one size."""
    values = np.random.default_rng(side)
    base = np.stack([square(scene(number, 0), side) for number in range(SCENES)])
    noisy = base + values.normal(0, np.linspace(0, side / 2, SCENES)[:, None, None, None], base.shape)
    test = noisy.clip(0, 255).astype(np.uint8)
    expected = []
    for row, (a, b) in enumerate(zip(test, base, strict=True)):
        small = []
        for image in (a, b):
            grey = Image.fromarray((image @ np.array([0.299, 0.587, 0.114])).astype(np.float32))
            if side == 100:  # whose blocks are of 3 or 4 pixels
                ends = [*(np.arange(32) * 100 // 32), 100]
                whole = np.asarray(grey)
                blocks = [[whole[t:u, x:y].mean() for x, y in pairwise(ends)] for t, u in pairwise(ends)]
                small.append(np.array(blocks))
            else:
                target = min(side, 32)
                small.append(np.asarray(grey.resize((target, target), Image.Resampling.BOX)))
        detail = []
        for thumbnail in small:
            padded = np.pad(thumbnail, 1, mode="edge")
            rows, columns = thumbnail.shape
            means = [[padded[y : y + 3, x : x + 3].mean() for x in range(columns)] for y in range(rows)]
            detail.append(thumbnail - np.array(means))
        whole_r, detail_r = (np.corrcoef(x.ravel(), y.ravel())[0, 1] for x, y in (small, detail))
        if whole_r >= near.ALIKE and detail_r >= near.ALIKE_DETAIL:
            expected.append((row, row))
    assert 0 < len(expected) < SCENES
    assert found(base, test).pairs == expected


def test_a_fast_pan_is_not_found(frames: np.ndarray) -> None:
    moved = np.stack([square(scene(number, 99, shift=8)) for number in range(SCENES)])
    assert found(frames.reshape(-1, 32, 32, 3), moved).pairs == []


def blobs(count: int, seed: int, noise: float) -> np.ndarray:
    """One to three smooth spots on black."""
    values, (y, x) = np.random.default_rng(seed), np.mgrid[:32, :32]
    made = np.zeros((count, 32, 32))
    for image in made:
        for _ in range(values.integers(1, 4)):
            down, right, width = *values.uniform(4, 28, 2), values.uniform(1.5, 6)
            image += values.uniform(60, 230) * np.exp(-((x - right) ** 2 + (y - down) ** 2) / (2 * width**2))
        image += values.normal(0, noise, image.shape)
    return made.clip(0, 255).astype(np.uint8)[..., None]


@pytest.mark.parametrize("noise", [0, 0.5, 2])
def test_smooth_spots_on_black_are_no_alarm(noise: float) -> None:
    alike = found(blobs(2000, 2, noise), blobs(400, 1, noise))
    assert not alike.many
    assert len(alike.pairs) <= (4 if noise == 0 else 0)


def test_digits_and_images_of_almost_no_contrast_are_no_alarm() -> None:
    images = [Image.fromarray((image * 15.9375).astype(np.uint8)) for image in load_digits().images]
    large = np.stack([square(image) for image in images])[..., None]
    assert found(large[360:], large[:360]).pairs == []
    small = (load_digits().images * 15.9375).astype(np.uint8)[..., None]
    assert found(small[360:], small[:360]).tested == 0  # 8 x 8 pixels tell too little
    dark = np.zeros((40, 32, 32, 1), np.uint8)
    dark[:, 3, 3] = 90  # one hot pixel, in each
    assert found(dark[:20], dark[20:]).pairs == []
    assert found(dark[:20] * 0, dark[20:] * 0).pairs == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_data_sets_of_single_images_have_no_note(shared_data: Path, tmp_path: Path, name: str) -> None:
    data = load(SourceConfig(path=shared_data / name, limit=5000, test_limit=1000), tmp_path)
    alike = found(data.train.pixels, data.test.pixels)
    assert len(alike.pairs) <= 2
    assert not any("almost equal" in note for note in texts(data.notes))


def test_more_images_than_are_compared_are_sampled_evenly(frames: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "MOST_TRAINED", 30)
    monkeypatch.setattr(near, "MOST_PAIRS", 30 * 20)
    alike = found(frames[:, ::2].reshape(-1, 32, 32, 3), frames[:, 1::2].reshape(-1, 32, 32, 3))
    assert (alike.tested, alike.trained, alike.sampled) == (20, 30, True)
    rows = np.linspace(0, 59, 20).astype(int).tolist()
    assert [row for row, _ in alike.pairs] == rows  # each scene has training images in the sample


def test_of_large_images_no_more_are_read_than_so_many_bytes(
    frames: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = frames[:, ::2].reshape(-1, 32, 32, 3), frames[:, 1::2].reshape(-1, 32, 32, 3)
    whole = found(train, test)
    monkeypatch.setattr(near, "BLOCK_BYTES", 7 * 32 * 32 * 3)
    parts, shots = found(train, test), len(train) // SCENES
    assert replace(parts, pairs=[]) == replace(whole, pairs=[])
    for alike in (parts, whole):  # which of a scene's shots is nearest, by a hair, depends on how a processor rounds
        assert [row for row, _ in alike.pairs] == list(range(len(test)))
        assert all(row // shots == other // shots for row, other in alike.pairs)
    monkeypatch.setattr(near, "MOST_TRAINED_BYTES", 30 * 32 * 32 * 3)
    assert (found(train, test).tested, found(train, test).trained) == (60, 30)
    monkeypatch.setattr(near, "MOST_TESTED_BYTES", 20 * 32 * 32 * 3)
    alike = found(train, test)
    assert (alike.tested, alike.trained, alike.sampled) == (20, 30, True)
    assert [row for row, _ in alike.pairs] == np.linspace(0, 59, 20).astype(int).tolist()
    monkeypatch.setattr(near, "MOST_TRAINED_BYTES", 1)
    monkeypatch.setattr(near, "MOST_TESTED_BYTES", 1)
    monkeypatch.setattr(near, "BLOCK_BYTES", 1)
    assert (found(train, test).tested, found(train, test).trained) == (1, 1)


def test_what_was_found_is_kept_and_of_other_images_found_anew(frames: np.ndarray, tmp_path: Path) -> None:
    train, test, none = frames[:, 0], frames[:, 1], np.zeros(SCENES, np.bool_)
    first = kept_near_copies(train, test, none, "these", tmp_path / "x.json")
    assert len(first.pairs) == SCENES
    assert kept_near_copies(train[:0], test, none, "these", tmp_path / "x.json") == first
    assert kept_near_copies(train, test[:3], none[:3], "others", tmp_path / "x.json").tested == 3
    for damage in ("", "[]", json.dumps({"images": "these", "pairs": 3})):
        (tmp_path / "x.json").write_text(damage)
        assert kept_near_copies(train, test, none, "these", tmp_path / "x.json") == first


# -- what a run says ---------------------------------------------------------------------------------------------------


def folder(path: Path, cache: Path, **settings: object) -> Dataset:
    return load(SourceConfig(name="imagefolder", path=path, **settings), cache)  # type: ignore[arg-type]


def test_it_is_noted_with_examples_and_what_to_do_until_images_of_one_scene_stay_together(
    frames: np.ndarray, tmp_path: Path
) -> None:
    for number, of_scene in enumerate(frames):
        for frame, pixels in enumerate(of_scene):
            place = tmp_path / "d" / "ab"[number % 2] / f"s{number:02}_{frame}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place)
    for _ in range(2):  # the second time from the cache
        data = folder(tmp_path / "d", tmp_path / "cache")
        note = data.notes[-1]
        assert note.public == "24 of 24 test images almost equal a training image: accuracy on them is partly memory"
        shown, advice = note.text.split("): ")
        assert advice == (
            "accuracy on them is partly memory; if they are frames of one video, or shots of one burst, keep these on "
            "one side, as data.group does where images are held out"
        )
        for pair in shown.split("(")[1].split(" and "):
            ours, theirs = pair.split(" with ")
            assert (ours in data.names["test"].to_pylist(), theirs in data.names["train"].to_pylist()) == (True, True)
            assert ours[:5] == theirs[:5]  # the scene
    together = folder(tmp_path / "d", tmp_path / "cache", group="s[0-9]+")
    assert not any("almost equal" in line for line in texts(together.notes))


def test_a_sample_is_said_to_be_one(frames: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", train_images=frames[:, 0], test_images=frames[:, 1])
    monkeypatch.setattr(near, "MOST_PAIRS", SCENES * 4)
    *_, note = load(SourceConfig(name="arrays", path=tmp_path / "a.npz"), tmp_path / "cache").notes
    assert note.text.startswith(
        "4 of 4 test images that were compared (of 12, with 12 of 12 training images) almost equal a training image (a"
    )
    assert note.text.endswith("keep these on one side, as data.columns.group does where images are held out")
    copied = tmp_path / "b.npz"
    np.savez(copied, train_images=frames[:, 0], test_images=frames[:, 0])
    assert not any("almost equal" in line for line in texts(load(SourceConfig(name="arrays", path=copied)).notes))
