"""Missing data of arrays and TIFF, against NumPy's masked arrays."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.decoding.decode import decode, high_bit_depth_values
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.images import BadImage
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from tests.data.bands import percentiles, scaled
from tests.data.encoded import needs_tifffile

SIDE, LOW, HIGH = 16, 100.0, 2000.0
MISSING = -9999.0


def images(count: int = 6, channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """(values (N, S, S, C) float32, where there is no data: a tenth of each band, of its own)."""
    draw = np.random.default_rng(0)
    values = draw.uniform(0, 3000, (count, SIDE, SIDE, channels)).astype(np.float32)
    return values, draw.random(values.shape) < 0.1


def tiff(values: np.ndarray, nodata: str | None = None, **how: Any) -> bytes:
    tifffile = needs_tifffile()
    file, tags = io.BytesIO(), [] if nodata is None else [(42113, 2, len(nodata) + 1, nodata, True)]
    planes = {"planarconfig": "contig"} if values.ndim == 3 else {}
    tifffile.imwrite(file, values, **{"photometric": "minisblack", "extratags": tags, **planes, **how})
    return file.getvalue()


def filled(values: np.ndarray, missing: np.ndarray, low: float = LOW, high: float = HIGH) -> np.ndarray:
    return np.where(missing, 0, scaled(np.where(missing, 0, values), low, high))


def form(nodata: Any = "file", **keys: Any) -> ImageForm:
    return ImageForm(SIDE, **{"range": (LOW, HIGH), "bands": (1, 2, 3), "nodata": nodata, **keys})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_missing_or_refused(value: float) -> None:
    values, missing = images(1)
    values[missing] = value
    for payload in (values[0], tiff(values[0])):
        for nodata in ("file", 7.0):
            found = decode(payload, form(nodata))
            np.testing.assert_array_equal(found.pixels, filled(values[0], missing[0]))
            assert (found.filled, found.unfilled) == (True, False)
        with pytest.raises(BadImage, match=r"^holds NaN or infinity$"):
            decode(payload, form(None))


@pytest.mark.parametrize("text", ["-9999", "-9999.0", " -9999 ", "-3.4028234663852886e+38", "nan"])
def test_a_tiffs_value_is_that_of_its_tag(text: str) -> None:
    values, missing = images(1)
    values[missing] = np.float32(float(text))
    found = decode(tiff(values[0], text), form())
    np.testing.assert_array_equal(found.pixels, filled(values[0], missing[0]))
    assert found.filled
    if text != "nan":
        plain = decode(tiff(values[0], text), form(None))  # as ever, but with a word
        np.testing.assert_array_equal(plain.pixels, scaled(values[0], LOW, HIGH))
        assert (plain.filled, plain.unfilled) == (False, True)
        assert not decode(tiff(values[0]), form(None)).unfilled
    no_number = decode(tiff(np.nan_to_num(values[0]), "none"), form())
    assert not no_number.filled


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "int32", "float32", "float64"])
def test_a_number_is_compared_as_the_files_type_holds_it(kind: str) -> None:
    values, missing = images(1)
    values = (values / 12).astype(kind)  # 0 .. 250
    number = 254.1 if kind.startswith("f") else 254
    values[missing] = number
    ranged = {"range": None} if kind == "uint8" else {"range": (0, 255)}
    expected = np.where(missing, 0, values if kind == "uint8" else np.rint(values))
    for payload in (values[0], tiff(values[0])):
        np.testing.assert_array_equal(decode(payload, form(number, **ranged)).pixels, expected[0])
        other = decode(payload, form(MISSING, **ranged))
        assert not other.filled  # no pixel has it
        assert (other.pixels[missing[0]] == 254).all()


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("by", [[-20000, 200], "percentiles"])
@pytest.mark.parametrize("kind", ["<f2", ">f2"])
def test_arrays_of_float16_keep_their_type(tmp_path: Path, kind: str, channels: int, by: Any) -> None:
    values, missing = images(6, channels)
    values = (values / 12).astype(kind)
    values[missing] = MISSING  # as float16 -10000
    assert float(values[missing][0]) == -10000
    np.savez(tmp_path / "a.npz", x_train=values[:4], x_test=values[4:])
    bands = None if channels == 5 else list(range(1, channels + 1))
    keys = {"name": "arrays", "path": tmp_path / "a.npz", "image_size": SIDE, "channels": channels, "bands": bands}
    data = load(SourceConfig.model_validate({**keys, "range": by, "nodata": MISSING}), tmp_path / "cache")
    for band in range(channels):
        low, high = by if by != "percentiles" else data.range[band] if channels == 5 else data.range
        seen = values[:4, ..., band if channels == 5 else slice(None)]
        if by == "percentiles":
            assert [low, high] == list(percentiles(seen[seen > MISSING].astype(np.float32)))
        own = filled(values[:4, ..., band].astype(np.float32), missing[:4, ..., band], low, high)
        np.testing.assert_array_equal(data.train.pixels[..., band], own)


@pytest.mark.filterwarnings("error")
def test_a_number_beyond_the_files_type_is_compared_without_a_warning() -> None:
    values, number = images(1)[0][0], "-1.7976931348623157e+308"
    for nodata in (None, "file", float(number)):
        found = decode(tiff(values, number), form(nodata))
        assert (found.filled, found.unfilled) == (False, False)
    assert not decode(tiff(values, number, photometric="rgb"), ImageForm(SIDE, range=(LOW, HIGH))).unfilled
    assert not decode(tiff(values[..., 0], number), ImageForm(SIDE, channels=1, range=(LOW, HIGH))).unfilled


def test_missing_data_count_for_no_range_and_no_note() -> None:
    values, missing = images(1)
    values = values.clip(LOW + 1, HIGH - 1)
    values[missing] = MISSING
    found = decode(values[0], form(MISSING))
    assert (found.clipped, found.narrow) == (None, None)
    values[..., 1] = 500 + values[..., 1] / 1000  # takes up little of the range, where there is data
    values[missing] = MISSING
    own = values[0, ..., 1][~missing[0, ..., 1]]
    assert decode(values[0], form(MISSING)).narrow == (own.min(), own.max())
    grey = decode(values[0], form(MISSING, channels=1, bands=(1,), range=None)).pixels[..., 0]
    first, gone = values[0, ..., 0], missing[0, ..., 0]
    np.testing.assert_array_equal(grey, filled(first, gone, first[~gone].min(), first[~gone].max()))
    inverted = decode(tiff(values[0], "-9999", photometric="miniswhite"), form()).pixels
    np.testing.assert_array_equal(inverted, np.where(missing[0], 0, 255 - filled(values[0], missing[0])))


def test_a_band_may_be_missing_but_not_an_image() -> None:
    values = images(1)[0][0]
    values[..., 1] = np.nan
    found = decode(values, form())
    assert not found.pixels[..., 1].any()
    np.testing.assert_array_equal(found.pixels[..., 0], scaled(values[..., 0], LOW, HIGH))
    assert found.clipped is not None
    with pytest.raises(BadImage, match=r"^no pixel holds data$"):
        decode(np.full_like(values, np.nan), form())
    counted = high_bit_depth_values(values, form())
    np.testing.assert_array_equal(np.isnan(counted), np.isnan(values))


def test_a_grey_array_has_one_band(tmp_path: Path) -> None:
    values, missing = images(6, 1)
    values[missing] = np.nan
    np.savez(tmp_path / "a.npz", x_train=values[:4, ..., 0], x_test=values[4:, ..., 0])
    keys = {"name": "arrays", "path": tmp_path / "a.npz", "image_size": SIDE, "channels": 1, "bands": [1]}
    data = load(SourceConfig.model_validate({**keys, "range": [LOW, HIGH], "nodata": "file"}), tmp_path / "cache")
    np.testing.assert_array_equal(data.train.pixels, filled(values[:4], missing[:4]))
    assert "6 images have pixels without data, which become black" in texts(data.notes)
    with pytest.raises(UserError, match=r"^data\.on_bad_image: 6 images cannot be decoded: .* holds NaN or"):
        load(SourceConfig.model_validate({**keys, "range": [LOW, HIGH]}), tmp_path / "cache")


@pytest.mark.parametrize("channels", [3, 5])
@pytest.mark.parametrize("kind", ["float32", "int16"])
def test_percentiles_are_of_pixels_with_data(tmp_path: Path, channels: int, kind: str) -> None:
    values, missing = images(6, channels)
    values = values.astype(kind)
    values[missing] = MISSING
    np.savez(tmp_path / "a.npz", x_train=values[:4], x_test=values[4:])
    keys = {"name": "arrays", "path": tmp_path / "a.npz", "image_size": SIDE, "range": "percentiles"}
    keys |= {"channels": channels, "nodata": MISSING} | ({"bands": [1, 2, 3]} if channels == 3 else {})
    data = load(SourceConfig.model_validate(keys), tmp_path / "cache")
    train, seen = values[:4], ~missing[:4]
    if channels == 3:
        expected = [percentiles(train[seen])] * 3
        assert data.range == tuple(expected[0])
    else:
        expected = [percentiles(train[..., band][seen[..., band]]) for band in range(5)]
        assert data.range == tuple(map(tuple, expected))
    for band, (low, high) in enumerate(expected):
        own = filled(train[..., band], missing[:4, ..., band], low, high)
        np.testing.assert_array_equal(data.train.pixels[..., band], own)
    names = {file.name for file in (tmp_path / "cache").glob("*")}
    other = load(SourceConfig.model_validate({**keys, "nodata": 1.5}), tmp_path / "cache")
    assert other.range != data.range
    assert len({file.name for file in (tmp_path / "cache").glob("*")}) == 2 * len(names)


def test_a_folder_of_tiffs_says_whose_value_of_missing_data_is_read(tmp_path: Path) -> None:
    values, missing = images(4, 1)
    values[missing] = MISSING
    for number, image in enumerate(values[..., 0]):
        place = tmp_path / "d" / ("test" if number > 2 else "train")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.tif").write_bytes(tiff(image, "-9999"))
    keys = {"name": "imagefolder", "path": tmp_path / "d", "image_size": SIDE, "channels": 1, "layout": "flat"}
    plain = load(SourceConfig.model_validate({**keys, "range": [LOW, HIGH]}), tmp_path / "cache")
    np.testing.assert_array_equal(plain.train.pixels, scaled(values[:3], LOW, HIGH))
    assert (
        "4 images have pixels of their GDAL_NODATA value (TIFF), which are read like any other; data.nodata=file with "
        "data.bands leaves them out of ranges and makes them black"
    ) in texts(plain.notes)
    chosen = {**keys, "range": "percentiles", "bands": [1], "nodata": "file"}
    data = load(SourceConfig.model_validate(chosen), tmp_path / "cache")
    low, high = percentiles(values[:3][~missing[:3]])
    assert data.range == (low, high)
    np.testing.assert_array_equal(data.train.pixels, filled(values[:3], missing[:3], low, high))


@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32"])
def test_colours_with_a_value_of_missing_data_are_noted(kind: str) -> None:
    values = (images(1)[0][0] / 12 + 1).astype(kind)
    ranged = ImageForm(SIDE, range=None if kind == "uint8" else (0, 255))
    assert not decode(tiff(values, "0", photometric="rgb"), ranged).unfilled
    values[3, 4] = 0
    found = decode(tiff(values, "0", photometric="rgb"), ranged)
    assert found.unfilled
    np.testing.assert_array_equal(found.pixels, np.rint(values))
    assert not decode(tiff(values, photometric="rgb"), ranged).unfilled


def test_it_needs_images_that_are_read_band_by_band(tmp_path: Path) -> None:
    for keys in ({"channels": 1}, {}):
        with pytest.raises(
            ValueError, match=r"nodata: found file; needs bands \(here, too, where the run has some\), such as \[1\]"
        ):
            SourceConfig.model_validate({"name": "arrays", "path": tmp_path, "nodata": "file", **keys})
    for wrong in ("all", np.nan, np.inf):
        with pytest.raises(ValueError, match="nodata"):
            SourceConfig.model_validate({"name": "arrays", "path": tmp_path, "channels": 5, "nodata": wrong})
