"""Sources whose images have bands: arrays and folders of TIFF, against the arrays that the test wrote itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import build
from rayfed_ssl.data.pixels.near_copies import near_copies
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.testing.tiny import BASE
from tests.data.bands import SIZE, bands, percentiles, read, saved, scaled
from tests.data.encoded import needs_tifffile


def refused(match: str, path: Path, **keys: Any) -> None:
    with pytest.raises(UserError, match=match) as error:
        read(path, **keys)
    assert "\n" not in str(error.value)
    assert not list((path.parent / "cache").glob("*"))


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [2, 4, 5, 13])
def test_arrays_of_bands_are_read_as_they_are_in_either_order_of_axes(tmp_path: Path, channels: int) -> None:
    train, test = bands(12, channels), bands(4, channels, seed=1)
    kinds = {"x_train": train, "y_train": np.arange(12) % 3, "x_test": test, "y_test": np.arange(4) % 3}
    last = saved(tmp_path / "last.npz", **kinds)
    moved = {"x_train": train.transpose(0, 3, 1, 2), "x_test": test.transpose(0, 3, 1, 2)}
    first = saved(tmp_path / "first.npz", **kinds | moved)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, array in kinds.items():
        np.save(folder / f"{name}.npy", array)
    for path in (last, first, folder):
        for _ in range(2):  # the second time from the cache
            data = read(path, channels=channels)
            np.testing.assert_array_equal(data.train.pixels, train)
            np.testing.assert_array_equal(data.test.pixels, test)
            assert texts(data.notes) == ()
            assert not data.grey
    assert read(last, channels=channels).digest == read(first, channels=channels).digest


def test_four_channels_are_transparency_unless_they_are_said_to_be_bands(tmp_path: Path) -> None:
    values = bands(8, 4)
    path = saved(tmp_path / "a.npz", x_train=values, x_test=values[:2])
    data = read(path, channels=3)
    assert not np.array_equal(data.train.pixels, values[..., :3])  # composited on black
    line = "has four channels: the fourth is taken for transparency; data.channels=4 reads four bands"
    assert sum(line in note for note in texts(data.notes)) == 2
    four = read(path, channels=4)
    np.testing.assert_array_equal(four.train.pixels, values)
    assert not any("four channels" in note or "transparent" in note for note in texts(four.notes))


@pytest.mark.parametrize(
    ("images", "keys", "line"),
    [
        (bands(3, 4), {}, r"is of shape \(3, 16, 16, 4\); images with data\.channels=5 are \(N, H, W, 5\) or \(N, 5,"),
        (bands(3, 3), {}, r"images with data\.channels=5 are"),
        (bands(3)[..., 0], {}, r"is of shape \(3, 16, 16\); images with data\.channels=5 are"),
        (bands(3)[:, :5], {}, r"\(3, 5, 16, 5\).*or \(N, 5, H, W\); bands may be the second axis or the last$"),
        (bands(3), {"channels": 3}, r"; volumes are not read: .*; data\.channels=5 reads images of 5 bands$"),
        (bands(3).transpose(0, 3, 1, 2), {"channels": 1}, r"; data\.channels=5 reads images of 5 bands$"),
        (bands(3, 4, 900), {"channels": 3}, r"has 4 channels of type uint16; .*, or data\.channels=4, which reads"),
        (bands(3, 5, 900), {}, r"holds bands of type uint16, of which the range cannot be told; set data\.range=perce"),
        (bands(3).astype(np.int64), {}, r"is of type int64; images are uint8"),
    ],
)  # fmt: skip
def test_arrays_without_so_many_bands_are_refused_in_a_line(
    tmp_path: Path, images: np.ndarray, keys: dict[str, Any], line: str
) -> None:
    refused(rf"^data\.path: array images of .*a\.npz .*{line}", saved(tmp_path / "a.npz", images=images), **keys)


# -- ranges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uint16", "int32", "float32"])
def test_percentiles_are_of_each_band_alone_and_of_training_pixels(tmp_path: Path, kind: str) -> None:
    spread = np.array([30, 900, 12_000, 60_000, 7])
    values = (bands(20, 5, 65536).astype(float) / 65536 * spread).astype(kind)
    test = np.full((4, SIZE, SIZE, 5), 5, kind)
    path = saved(tmp_path / "a.npz", x_train=values, x_test=test)
    expected = [percentiles(values[..., band].astype(np.float32)) for band in range(5)]
    for _ in range(2):  # the second time from the cache
        data = read(path, range="percentiles")
        assert data.range == tuple((low, high) for low, high in expected)
        for band, (low, high) in enumerate(expected):
            np.testing.assert_array_equal(data.train.pixels[..., band], scaled(values[..., band], low, high))
        by = f"data.range=percentiles, which is {expected}: the 0.5th and the 99.5th percentile of the pixels of the "
        note = f"24 images of more than 8 bits were scaled to 0..255, each by {by}training images, of each band"
        assert texts(data.notes)[0] == note
    kept = [json.loads(file.read_text())["range"] for file in (tmp_path / "cache").glob("*-percentiles.json")]
    assert kept == [expected]
    assert read(path, range=expected).train.pixels.tobytes() == data.train.pixels.tobytes()


def test_a_note_on_clipped_images_says_what_percentiles_leave_out_anyway(tmp_path: Path) -> None:
    """The numbers of the range are in the line above it: two for each band, which fill a line of their own."""
    values = bands(40, 13, 3000)
    path = saved(tmp_path / "a.npz", x_train=values, x_test=values[:2])
    data = read(path, channels=13, range="percentiles")
    assert data.range is not None
    low, high = np.array(data.range).T
    outside = (values < low) | (values > high)
    assert 0 < outside.mean() <= 0.01
    images = (outside.mean((1, 2, 3)) > 0.01).sum() + (outside[:2].mean((1, 2, 3)) > 0.01).sum()
    clipped = [note for note in texts(data.notes) if "clipped" in note]
    assert clipped == [
        f"{images} of them have over 1% of their pixels outside data.range=percentiles, and these are clipped (of all "
        f"pixels that it is taken from, at most 1%): their values go from 0 to {values.max()}"
    ]


def test_colours_still_share_the_percentiles_of_all_three(tmp_path: Path) -> None:
    values = bands(20, 3, 4000)
    values[..., 1] //= 10
    path = saved(tmp_path / "a.npz", x_train=values, x_test=values[:2])
    assert read(path, channels=3, range="percentiles").range == tuple(percentiles(values))


def test_a_range_for_all_bands_notes_those_that_it_does_not_fit(tmp_path: Path) -> None:
    values = bands(10, 5, 3000)
    values[..., 4] //= 300  # 0 to 9
    path = saved(tmp_path / "a.npz", x_train=values, x_test=values[:2])
    narrow = texts(read(path, range=[0, 3000]).notes)
    assert narrow[1] == (
        "12 of them have a band that takes up less than a sixteenth of data.range=[0.0, 3000.0], and keep at most 17 "
        "of 256 grey levels in it: their values go from 0 to 9; data.range=percentiles takes the range of the pixels"
    )
    clipped = texts(read(path, range=[[0, 3000], [0, 3000], [0, 500], [0, 3000], [0, 9]]).notes)
    assert clipped[1].startswith("12 of them have over 1% of their pixels outside data.range=[[0.0, 3000.0], [0.0, ")
    assert "[0.0, 9.0]], and these are clipped: their values go from 0 to" in clipped[1]
    assert len(clipped) == 2


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({4: 7}, r"^data\.range: found percentiles, but band 5 of all 10 training images of more than 8 bits are of one"
                 r" value each; allowed: \[low, high\], or 5 of these$"),
        ({2: None}, r"percentile of the pixels of band 3 of 10 training images of more than 8 bits are both 0; allowe"
                    r"d: \[low, high\], or 5 of these$"),
    ],
)  # fmt: skip
def test_a_band_without_a_range_of_its_own_is_named(tmp_path: Path, change: dict[int, Any], line: str) -> None:
    values = bands(10, 5, 3000)
    for band, value in change.items():
        values[..., band] = 0 if value is None else value
        if value is None:
            values[:, 0, 0, band] = 9  # one pixel of 256
    refused(line, saved(tmp_path / "a.npz", x_train=values, x_test=values[:2]), range="percentiles")


def test_percentiles_of_bands_of_8_bits_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x_train=bands(8), x_test=bands(2))
    refused(r"^data\.range: found percentiles, but no training image has more than 8 bits; allowed: null$", path,
            range="percentiles")  # fmt: skip


# -- the configuration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"channels": 0}, r"^data\.channels: found 0; must be"),
        ({"channels": 65}, r"^data\.channels: found 65; must be"),
        ({"name": "digits", "path": None, "channels": 5}, r"^data\.channels: found 5; digits has 1 or 3; more with na"
         r"me: parquet, hub, imagefolder, table, arrays$"),
        ({"range": [[0, 1]] * 4}, r"^data\.range: found \[\[0\.0, 1\.0\], .*; allowed: \[low, high\] with low < high, "
         r"or 5 of these$"),
        ({"range": [[0, 1]] * 4 + [[1, 1]]}, r"^data\.range: found .*, or 5 of these$"),
        ({"range": []}, r"^data\.range: found \[\]; must be \[low, high\], of bands perhaps a list of these, or"),
        ({"range": [[0, 1], 3]}, r"^data\.range: found \[\[0, 1\], 3\]; must be \[low, high\], of bands perhaps"),
        ({"range": ["a", 3]}, r"^data\.range: found \['a', 3\]; must be \[low, high\]"),
        ({"range": [1, 2, 3]}, r"^data\.range: found \[1, 2, 3\]; must be \[low, high\]"),
        ({"channels": 3, "range": [[0, 1]] * 3}, r"with low < high; one of each band needs channels, their number$"),
        ({"channels": 3, "range": [1, 0]}, r"^data\.range: found \[1\.0, 0\.0\]; allowed: \[low, high\] with low <"),
    ],
)  # fmt: skip
def test_wrong_keys_are_named(tmp_path: Path, keys: dict[str, Any], line: str) -> None:
    data = {"name": "arrays", "path": str(tmp_path), "channels": 5, "image_size": SIZE, **keys}
    with pytest.raises(ConfigError, match=line) as error:
        build({**BASE, "data": data, "method": {"name": "fedsimclr"}}, {}, origin="test")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"augment.gray_p": 0.2}, r"^augment\.gray_p: found 0\.2; it needs data\.channels=3$"),
        ({"data.background": "white"}, r"^data\.background: found white; it needs data\.channels=3 or 1$"),
        ({"augment.mean": [0.5] * 4}, r"^augment\.mean: found 4 values; allowed: 3 or data\.channels=5$"),
        ({"augment.std": []}, r"^augment\.std: found \[\]"),
        ({"evaluation.protocols": ["transfer"], "evaluation.transfer.data": {"name": "digits"}},
         r"^evaluation\.transfer\.data\.channels: found 3; encoders of this run read 5, data\.channels; allowed: 5$"),
    ],
)  # fmt: skip
def test_what_bands_leave_without_effect_or_meaning_is_refused(
    tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    data = {"name": "arrays", "path": str(tmp_path), "channels": 5, "image_size": SIZE}
    given = {**BASE, "data": data, "method": {"name": "fedsimclr"}}
    with pytest.raises(ConfigError, match=line):
        build(given, changes, origin="test")
    build(given, {"augment.gray_p": 0, "augment.mean": [0.1, 0.2, 0.3, 0.4, 0.5]}, origin="test")


# -- folders -----------------------------------------------------------------------------------------------------------


def test_folders_of_tiff_are_read_with_their_classes_and_ranges(tmp_path: Path) -> None:
    tifffile = needs_tifffile()
    values = bands(10, 13, 4000)
    for number, image in enumerate(values):
        place = tmp_path / "d" / ("test" if number > 7 else "train") / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(place / f"{number}.tif", image, photometric="minisblack", planarconfig="contig")
    data = read(tmp_path / "d", name="imagefolder", channels=13, range="percentiles")
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    expected = [percentiles(values[:8, ..., band]) for band in range(13)]
    assert data.range == tuple((low, high) for low, high in expected)
    for band, (low, high) in enumerate(expected):
        np.testing.assert_array_equal(data.train.pixels[..., band], scaled(values[order, ..., band], low, high))
    assert data.train.class_names == ("a", "b")
    Image.new("RGB", (SIZE, SIZE)).save(tmp_path / "d/train/a/x.png")
    with pytest.raises(
        UserError, match=r"x\.png cannot be decoded \(an image of mode RGB, where data\.channels=13 wan"
    ):
        read(tmp_path / "d", "other", name="imagefolder", channels=13, range=[0, 4000])
    left_out = read(tmp_path / "d", "other", name="imagefolder", channels=13, range=[0, 4000], on_bad_image="skip")
    assert (len(left_out.train), left_out.skipped) == (8, (str(tmp_path / "d/train/a/x.png"),))
    with pytest.raises(UserError, match=r"which Pillow does not read; .*; or data\.channels=13 reads all of them\)"):
        read(tmp_path / "d", "third", name="imagefolder", channels=3)


# -- what is noted of pixels -------------------------------------------------------------------------------------------


def test_copies_and_images_of_one_value_in_each_band_are_found(tmp_path: Path) -> None:
    values = bands(12)
    values[3], values[5] = (1, 2, 3, 4, 5), values[0]
    values[7] = values[1]
    values[7, 0, 0, 4] ^= 1  # in the last band alone
    data = read(saved(tmp_path / "a.npz", x_train=values, x_test=values[8:10]))
    assert data.copies is not None
    assert data.copies.tolist() == [[5, 0], [12, 8], [13, 9]]
    assert any(note.startswith("1 image is of one single colour throughout (") for note in texts(data.notes))


def test_near_copies_are_compared_by_the_mean_of_all_bands() -> None:
    smooth = np.kron(np.random.default_rng(0).integers(0, 256, (40, 8, 8)), np.ones((4, 4)))  # (40, 32, 32)
    train, test = (np.zeros((40, 32, 32, 5), np.uint8) for _ in range(2))
    train[..., 4], test[..., 4] = smooth, smooth  # black but for the last band
    test[..., 0] = 3
    found = near_copies(train, test, np.zeros(40, np.bool_))
    assert found.pairs == [(row, row) for row in range(40)]
