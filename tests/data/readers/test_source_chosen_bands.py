"""``data.bands``: sources of which some bands are read, against the arrays that the test wrote itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import build
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.testing.tiny import BASE
from tests.data.bands import SIZE, bands, percentiles, read, saved, scaled
from tests.data.encoded import needs_tifffile

RGB = [4, 3, 2]


def test_bands_of_arrays_are_chosen_wherever_their_axis_is(tmp_path: Path) -> None:
    values = bands(6, 13)
    expected = values[..., [3, 2, 1]]
    for name, images in {
        "last": values,
        "first": values.transpose(0, 3, 1, 2),
        "wide": np.concatenate([values, values], axis=2),
        "many": np.repeat(values[:, :5, :5], 2, axis=3),  # more bands than pixels a side
    }.items():
        data = read(saved(tmp_path / f"{name}.npz", x_train=images, x_test=images[:2]), channels=3, bands=RGB)
        if name in ("last", "first"):
            np.testing.assert_array_equal(data.train.pixels, expected)
        assert data.train.pixels.shape == (6, SIZE, SIZE, 3)
    alone = read(tmp_path / "last.npz", channels=1, bands=[13])
    np.testing.assert_array_equal(alone.train.pixels, values[..., 12:])
    assert not [note for note in texts(data.notes) if "transparen" in note]


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        ((3, SIZE, SIZE), r"is of shape \(3, 16, 16\); images with data\.bands=\[4, 3, 2\] are \(N, H, W, C\) or "),
        ((3, SIZE, SIZE, 3), r"of 4 bands or more; it has 3 bands$"),
        ((3, 5, 16, 5), r"is of shape \(3, 5, 16, 5\); .* of 4 bands or more$"),
        ((3, 5, 5, 5), r"is of shape \(3, 5, 5, 5\); .* of 4 bands or more$"),
    ],
)
def test_arrays_without_these_bands_are_refused_in_a_line(tmp_path: Path, shape: tuple[int, ...], line: str) -> None:
    path = saved(tmp_path / "a.npz", images=np.zeros(shape, np.uint8))
    with pytest.raises(UserError, match=rf"^data\.path: .*{line}") as error:
        read(path, channels=3, bands=RGB)
    assert "\n" not in str(error.value)


def test_the_cache_of_one_choice_is_not_that_of_another_and_none_changes_no_name(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x_train=bands(6, 3), x_test=bands(2, 3))
    first = read(path, channels=3, bands=[1, 2, 3]).train.pixels.copy()
    np.testing.assert_array_equal(read(path, channels=3, bands=[3, 2, 1]).train.pixels, first[..., ::-1])
    made = {file.name for file in (tmp_path / "cache").glob("*train.arrow")}
    assert len(made) == 2
    read(path, channels=3)
    read(path, channels=3, bands=None)
    assert len({file.name for file in (tmp_path / "cache").glob("*train.arrow")} - made) == 1


def test_chosen_colours_share_their_percentiles_and_may_have_a_range_each(tmp_path: Path) -> None:
    values = bands(8, 13, 4000)
    values[..., 7] = 60_000  # in a band that is not read
    path = saved(tmp_path / "a.npz", x_train=values, x_test=values[:2])
    data = read(path, channels=3, bands=RGB, range="percentiles")
    low, high = percentiles(values[..., [3, 2, 1]])
    assert data.range == (low, high)
    np.testing.assert_array_equal(data.train.pixels, scaled(values[..., [3, 2, 1]], low, high))
    each = read(path, channels=3, bands=RGB, range=[[0, 1000], [0, 2000], [0, 3000]])
    np.testing.assert_array_equal(each.train.pixels[..., 2], scaled(values[..., 1], 0, 3000))
    six = read(path, channels=2, bands=[8, 4], range=[[0, 60_001], [0, 4000]])
    np.testing.assert_array_equal(six.train.pixels[..., 0], 255)
    two = read(path, channels=2, bands=[2, 13], range="percentiles")
    assert two.range == tuple(tuple(percentiles(values[..., band])) for band in (1, 12))


def test_folders_of_tiff_give_their_red_green_and_blue(tmp_path: Path) -> None:
    tifffile = needs_tifffile()
    values = bands(6, 13, 4000)
    for number, image in enumerate(values):
        place = tmp_path / "d" / ("test" if number > 3 else "train")
        place.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(place / f"{number}.tif", image, photometric="minisblack", planarconfig="contig")
    keys = {"name": "imagefolder", "path": tmp_path / "d", "image_size": SIZE, "layout": "flat", "bands": RGB}
    data = load(SourceConfig.model_validate({**keys, "range": [0, 4000]}), tmp_path / "cache")
    np.testing.assert_array_equal(data.train.pixels, scaled(values[:4][..., [3, 2, 1]], 0, 4000))
    with pytest.raises(UserError, match=r"^data\.on_bad_image: 6 images cannot be decoded: .*0\.tif, .*wants 14"):
        load(SourceConfig.model_validate({**keys, "bands": [14, 1, 2], "range": [0, 4000]}), tmp_path / "cache")


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"bands": [4, 3]}, r"bands: found 2 of them; allowed: as many as channels, 3"),
        ({"bands": [1, 2, 3, 4], "channels": 5}, r"bands: found 4 of them; allowed: as many as channels, 5"),
        ({"bands": [0, 1, 2]}, r"bands"),
        ({"bands": []}, r"bands"),
        ({"bands": RGB, "name": "digits", "path": None}, r"bands: found a value; digits reads none; allowed with "),
        ({"bands": RGB, "range": [[0, 1], [0, 1]]}, r"range: found .*; allowed: \[low, high\] with low < high, or 3 "),
    ],
)  # fmt: skip
def test_wrong_keys_are_named(tmp_path: Path, keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        SourceConfig.model_validate({"name": "arrays", "path": tmp_path, **keys})


def test_a_background_that_no_chosen_band_has_is_refused(tmp_path: Path) -> None:
    data = {"name": "arrays", "path": str(tmp_path), "bands": RGB, "image_size": SIZE}
    given = json.loads(json.dumps({**BASE, "data": data, "method": {"name": "fedsimclr"}}))
    with pytest.raises(ConfigError, match=r"data\.background: .*data\.bands=null"):
        build(given, {"data.background": "white"}, origin="test")
    build(given, {}, origin="test")
