"""JPEGs that are read at a half, quarter or eighth of their size become the squares that all of their pixels give."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from rayfed_ssl.data.decoding.decode import decode
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.squares import Fit
from rayfed_ssl.exporting import standalone

SIDE, BILINEAR = 32, Image.Resampling.BILINEAR
SIZES = [(1081, 2347), (1000, 667), (501, 333), (137, 391), (512, 768)]  # the last one is an eighth of whole pixels


def photo(width: int, height: int, orientation: int = 1) -> bytes:
    """A scene of soft spots, in its width a dozen, tagged with an EXIF orientation."""
    coarse = np.random.default_rng(width + height).integers(0, 256, (12 * height // width, 12, 3), np.uint8)
    exif, file = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = orientation
    scene = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    scene.save(file, "JPEG", quality=95, exif=exif)
    return file.getvalue()


def full_size(photo: bytes, fit: Fit) -> np.ndarray:
    """By Pillow alone: every pixel is read, turned upright, and then resized."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(photo)))
    if fit == "stretch":
        return np.asarray(image.resize((SIDE, SIDE), BILINEAR))
    return np.asarray((ImageOps.pad if fit == "pad" else ImageOps.fit)(image, (SIDE, SIDE), BILINEAR))


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("size", SIZES)
def test_a_side_that_the_scale_does_not_divide_moves_nothing(size: tuple[int, int], fit: Fit) -> None:
    for width, height in (size, size[::-1]):
        file = photo(width, height)
        difference = decode(file, ImageForm(SIDE, fit=fit)).pixels.astype(int) - full_size(file, fit)
        assert np.abs(difference).mean() < 1


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_nor_in_an_image_that_is_turned(tmp_path: Path, orientation: int, fit: Fit) -> None:
    """The pixels that lie in the image in part are the last ones of the file, and may be the first ones upright."""
    path, form = tmp_path / "photo.jpg", ImageForm(SIDE, fit=fit)
    path.write_bytes(photo(501, 333, orientation))
    decoded = decode(path, form).pixels
    assert np.abs(decoded.astype(int) - full_size(path.read_bytes(), fit)).mean() < 1
    (tmp_path / "config.json").write_text(json.dumps({"image_size": SIDE, "channels": 3, "input": {"fit": fit}}))
    assert np.array_equal(standalone.square(path, tmp_path).numpy(), decoded)
