"""``data.range=percentiles``: the range is NumPy's percentiles of all pixels of the training images alone."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.decoding.decode import decode
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.images import BadImage, Dataset, Listing
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.pixels.percentiles import Counts, ordered, percentile_range, unordered
from rayfed_ssl.data.sources import SourceConfig
from tests.data.encoded import high_bit_depth_colour, png16, tiff
from tests.data.files import fetch, png, refused
from tests.data.scans import save, scan

SIZE = 16


def truth(*images: np.ndarray) -> tuple[float, float]:
    """NumPy's, of all pixels together: the smallest value that 0.5% (99.5%) of them do not exceed."""
    pixels = np.concatenate([image.ravel() for image in images]).astype(np.float32)
    low, high = np.percentile(pixels, [0.5, 99.5], method="inverted_cdf").tolist()
    return low, high


def found(*images: np.ndarray | bytes | Path | None) -> tuple[float, float]:
    rows = [(f"image {n}", image) for n, image in enumerate(images)]
    listing = Listing(np.full(len(rows), -1), (), lambda: iter(rows))
    return percentile_range(listing, ImageForm(SIZE), "data", "set data.on_bad_image=skip")[0]


@pytest.mark.parametrize("kind", ["uint16", "int16", "int32", "float32", "float64", "far floats", "whole and floats"])
def test_they_are_numpys(kind: str) -> None:
    """Of images of different sizes, more than a block of them, as threads come to them."""
    values = np.random.default_rng(3)
    images = [values.gamma(2, 300, values.integers(5, 40, 2)) for _ in range(300)]
    if kind == "int16":
        images = [(image - 500).round().astype(kind) for image in images]
    elif kind in ("uint16", "int32"):
        images = [(image * (40 if kind == "int32" else 1)).round().astype(kind) for image in images]
    elif kind == "far floats":
        images = [(30000 + image / 1000).astype(np.float32) for image in images]
    elif kind == "whole and floats":
        images = [image.round().astype(np.int16) if n % 3 else image - 900 for n, image in enumerate(images)]
    else:
        images = [(image - 900).astype(kind) / 7 for image in images]
    assert found(*images) == truth(*images)
    assert found(*images[::-1]) == truth(*images)


def test_one_hot_pixel_and_blank_images_change_nothing() -> None:
    scenes = [np.random.default_rng(n).integers(900, 1100, (20, 20)).astype(np.uint16) for n in range(5)]
    expected = truth(*scenes)
    hot = [scenes[0].copy(), *scenes[1:]]
    hot[0][3, 4] = 65535
    assert found(*hot, np.zeros((50, 50), np.uint16), np.full((50, 50), 65535, np.uint16)) == expected
    assert found(*(image.astype(np.float32) / 3 for image in hot), np.zeros((50, 50), np.float32)) == truth(
        *(image.astype(np.float32) / 3 for image in scenes)
    )


def test_padding_of_dicom_and_images_of_8_bits_do_not_count(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 2000, (30, 30)).astype(np.int16)
    padded = stored.copy()
    padded[:10] = -2000
    rescaled = {"RescaleSlope": 2, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 80}
    files = [
        save(scan(padded, PixelPaddingValue=-2000, **rescaled), tmp_path / "a.dcm"),
        save(scan(stored, **rescaled), tmp_path / "b.dcm"),
        save(scan(stored.astype(np.uint8)), tmp_path / "c.dcm"),
    ]
    assert found(*files, png(np.zeros((9, 9), np.uint8))) == truth(2.0 * padded[10:] - 1024, 2.0 * stored - 1024)


def test_colours_share_one_range_and_those_of_files_count_as_those_of_arrays_do(tmp_path: Path) -> None:
    colours = [np.random.default_rng(n).integers(0, 900 * n, (12, 12, 3)).astype(np.uint16) for n in (1, 2, 3, 4)]
    dicom = save(scan(colours[3], PhotometricInterpretation="RGB"), tmp_path / "rgb.dcm")
    assert found(colours[0], png16(colours[1]), png16(colours[2]), dicom, high_bit_depth_colour()) == truth(*colours)


def test_colours_of_which_the_high_bits_alone_are_read_are_told_the_one_range_that_they_can_have() -> None:
    blank, grey = np.full((9, 9), 3, np.uint16), png(np.arange(81, dtype=np.uint8).reshape(9, 9))
    inks = tiff(np.random.default_rng(1).integers(0, 2**16, (32, 32, 4)).astype(np.uint16), photometric="separated")
    with pytest.raises(UserError) as error:
        found(inks, grey, blank, inks)
    assert str(error.value) == (
        "data.range: found percentiles, but the pixels of 2 training images of 16 bits per channel can only be scaled "
        "by the range of these bits; allowed: [0, 65535], if they use all of it, or convert them to 8 bits"
    )
    with pytest.raises(BadImage, match=r"^16 bits per channel in mode CMYK, of which TIFF is read with the 8 high"):
        decode(inks, ImageForm(SIZE, range=(0, 1000)))


def test_a_folder_of_16_bit_colours_is_scaled_by_its_percentiles(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 4096, (6, SIZE, SIZE, 3)).astype(np.uint16)
    for number, values in enumerate(colours):
        place = tmp_path / "d" / ("test" if number > 3 else "train") / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.png").write_bytes(png16(values))
    config = SourceConfig(name="imagefolder", path=tmp_path / "d", image_size=SIZE, range="percentiles")
    data = load(config, tmp_path / "cache")
    low, high = truth(*colours[:4])
    assert data.range == (low, high)
    expected = np.rint((colours[[0, 2, 1, 3]].astype(float).clip(low, high) - low) * (255 / (high - low)))
    np.testing.assert_array_equal(data.train.pixels, expected)
    assert any(note.startswith("6 images of more than 8 bits were scaled to 0..255") for note in texts(data.notes))
    refused(r"16 bits per channel .* set data\.range=percentiles", tmp_path, "imagefolder", path=tmp_path / "d")


def test_the_order_of_floats_is_kept() -> None:
    values = np.array([-np.inf, -3e38, -1.5, -1e-45, -0.0, 0.0, 1e-45, 1.0, 1.0000001, 3e38])
    keys = ordered(values)
    assert (np.diff(keys) >= 0).all()
    assert (keys.min() >= 0, keys.max() < 2**32, keys[4] == keys[5]) == (True, True, True)
    assert np.array_equal(unordered(keys)[1:], values[1:].astype(np.float32))


def test_what_has_no_percentiles_is_one_line() -> None:
    grey = png(np.arange(81, dtype=np.uint8).reshape(9, 9))
    with pytest.raises(
        UserError, match=r"^data\.range: found percentiles, but no training image has more than 8 bits;"
    ):
        found(grey)
    with pytest.raises(
        UserError, match=r"but all 2 training images of more than 8 bits are of one value each; allowed"
    ):
        found(grey, np.full((9, 9), 3, np.uint16), np.full((9, 9), 0.5))
    dark = np.zeros((100, 100), np.uint16)
    dark[0, :20] = 999  # a fifth of a percent
    with pytest.raises(UserError, match=r"of the pixels of 1 training images .* are both 0; allowed: null, or \[low"):
        found(dark)
    with pytest.raises(UserError, match=r"^data\.on_bad_image: image 0 cannot be decoded \(no image bytes\).*=skip"):
        found(None, grey)


def test_memory_does_not_grow_with_the_images() -> None:
    counts = Counts()
    held = counts.whole.nbytes + counts.upper.nbytes + counts.lower.nbytes
    for seed in range(20):
        counts.add(np.random.default_rng(seed).normal(0, 1e6, (64, 64)))
    counts.refine()
    assert counts.whole.nbytes + counts.upper.nbytes + counts.lower.nbytes == held < 3 * 2**20


# -- the whole way -----------------------------------------------------------------------------------------------------


def tree(root: Path, tests: int = 4000) -> dict[str, list[np.ndarray]]:
    """16-bit images whose test images are brighter than those that train."""
    made: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for split, most in {"train": 1000, "test": tests}.items():
        for number in range(6):
            values = np.random.default_rng([number, most]).integers(0, most, (SIZE, SIZE)).astype(np.uint16)
            path = root / split / "ab"[number % 2] / f"{number}.{'png' if number < 3 else 'tif'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(path)
            made[split].append(values)
    return made


def by_hand(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((values.astype(float).clip(low, high) - low) * 255 / (high - low)).astype(np.uint8)


def loaded(path: Path, tmp_path: Path, **settings: object) -> Dataset:
    return load(
        SourceConfig(name="imagefolder", path=path, image_size=SIZE, channels=1, **settings), tmp_path / "cache"
    )  # type: ignore[arg-type]


def test_training_images_alone_decide_and_all_images_are_scaled_by_it(tmp_path: Path) -> None:
    made = tree(tmp_path / "d")
    data = loaded(tmp_path / "d", tmp_path, range="percentiles")
    low, high = truth(*made["train"])
    assert data.range == (low, high)
    for split, images in {"train": data.train, "test": data.test}.items():
        expected = sorted(by_hand(values, low, high).tobytes() for values in made[split])
        assert sorted(pixels.tobytes() for pixels in images.pixels) == expected
    assert texts(data.notes)[0] == (
        f"12 images of more than 8 bits were scaled to 0..255, each by data.range=percentiles, which is {[low, high]}: "
        "the 0.5th and the 99.5th percentile of the pixels of the training images"
    )
    assert data.scaling is not None
    assert str([low, high]) in data.scaling.by
    same = loaded(tmp_path / "d", tmp_path, range=(low, high))
    assert (same.digest, same.range) == (data.digest, (low, high))
    assert loaded(tmp_path / "d", tmp_path).range is None
    tree(tmp_path / "other", tests=60000)
    assert loaded(tmp_path / "other", tmp_path, range="percentiles").range == (low, high)


def test_what_was_found_is_kept_and_found_anew_where_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "d")
    first = loaded(tmp_path / "d", tmp_path, range="percentiles")
    (file,) = (tmp_path / "cache").glob("*-percentiles.json")
    assert tuple(json.loads(file.read_text())["range"]) == first.range
    for damage in ("", "[]", '{"range": [3, 3]}', '{"range": 7}'):
        file.write_text(damage)
        assert loaded(tmp_path / "d", tmp_path, range="percentiles").digest == first.digest
    monkeypatch.setattr("rayfed_ssl.data.pixels.percentiles.percentile_range", None)
    assert loaded(tmp_path / "d", tmp_path, range="percentiles").range == first.range


def test_a_range_of_some_images_is_not_kept_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of images that another installation can decode, such as one with tifffile."""
    made = tree(tmp_path / "d")
    values = np.random.default_rng(9).integers(0, 60000, (SIZE, SIZE, 3)).astype(np.uint16)
    (tmp_path / "d/train/a/colours.tif").write_bytes(tiff(values))
    monkeypatch.setattr("rayfed_ssl.data.decoding.deep_colours.TIFFFILE_HERE", False)
    refused(r"colours\.tif cannot be decoded", tmp_path, "imagefolder", path=tmp_path / "d", range="percentiles")
    assert not list((tmp_path / "cache").glob("*-percentiles.json"))
    skipping = {"on_bad_image": "skip", "range": "percentiles"}
    assert loaded(tmp_path / "d", tmp_path, **skipping).range == truth(*made["train"])
    assert len(list((tmp_path / "cache").glob("*-percentiles.json"))) == 1
    monkeypatch.undo()
    assert loaded(tmp_path / "d", tmp_path, range="percentiles").range == truth(*made["train"], values)


def test_a_limit_and_images_left_out_do_not_count(tmp_path: Path) -> None:
    made = tree(tmp_path / "d")
    (tmp_path / "d/train/a/broken.png").write_bytes(b"no image")
    refused(r"broken\.png cannot be decoded", tmp_path, "imagefolder", path=tmp_path / "d", range="percentiles")
    skipping = {"on_bad_image": "skip", "range": "percentiles"}
    assert loaded(tmp_path / "d", tmp_path, **skipping).range == truth(*made["train"])
    (tmp_path / "d/train/a/broken.png").unlink()
    limited = loaded(tmp_path / "d", tmp_path, range="percentiles", limit=1)
    assert limited.range == truth(made["train"][0])


def test_arrays_and_colours_of_them(tmp_path: Path) -> None:
    train = np.random.default_rng(0).normal(5, 2, (8, SIZE, SIZE, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", train_images=train, test_images=train[:2] * 9)
    data = fetch(tmp_path, "arrays", path=tmp_path / "a.npz", range="percentiles")
    assert data.range == truth(train)
    assert np.array_equal(data.train.pixels, by_hand(train, *truth(train)))


def test_it_is_refused_where_nothing_needs_it_and_its_name_is_the_only_word(tmp_path: Path) -> None:
    put = tmp_path / "d/train"
    put.mkdir(parents=True)
    (put / "a.png").write_bytes(png(np.arange(256, dtype=np.uint8).reshape(SIZE, SIZE)))
    refused(
        r"^data\.range: found percentiles, but no training image has more than 8 bits; allowed: null, or \[low, hi",
        tmp_path,
        "imagefolder",
        path=tmp_path / "d",
        range="percentiles",
    )
    with pytest.raises(ValueError, match="percentiles"):
        SourceConfig(range="percentile")  # type: ignore[arg-type]


def test_no_warning_comes_of_large_floats() -> None:
    """Of which float32 holds none: they count as its largest."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found(np.geomspace(1, 1e300, 10_000).reshape(100, 100))[1] == float(np.finfo(np.float32).max)
