"""Files whose samples Pillow changes or does not open, against the values that the test writes: the transparent grey or
colour of a PNG, colours in JPEG 2000 and PPM, PGM of any highest value, and grey TIFFs of any type.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.data.decoding.decode import decode, decode_opened, high_bit_depth_values
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.squares import Background
from rayfed_ssl.data.images import BadImage
from tests.data.encoded import grey_png, png16, tiff

SIDE = 12
GROUNDS: dict[Background, int] = {"black": 0, "white": 255, "grey": 128}


def noise(low: int, high: int, *channels: int, dtype: str = "int64") -> np.ndarray:
    return np.random.default_rng(low + high).integers(low, high, (SIDE, SIDE, *channels)).astype(dtype)


def scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((values.astype(float).clip(low, high) - low) * (255 / (high - low)))


def threefold(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, axis=2)


# -- what a PNG calls transparent --------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", list(GROUNDS))
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_grey_that_a_png_calls_transparent_is_one_of_its_samples(bits: int, background: Background) -> None:
    values, form = noise(0, 2**bits), ImageForm(SIDE, background=background)
    for clear in {0, 1, 2 ** (bits - 1), 2**bits - 1}:
        payload = grey_png(values, bits, clear)
        expected = np.where(values == clear, GROUNDS[background], values * (255 // (2**bits - 1)))
        found = decode(payload, form)
        np.testing.assert_array_equal(found.pixels, threefold(expected))
        assert found.transparent == (values == clear).any()
        with Image.open(io.BytesIO(payload)) as image:
            told = dict(image.info)
            np.testing.assert_array_equal(decode_opened(image, form).pixels, found.pixels)
            assert image.info == told


@pytest.mark.parametrize("background", list(GROUNDS))
def test_a_transparent_grey_of_16_bits_is_laid_on_the_background_and_counts_for_no_range(
    background: Background,
) -> None:
    values = noise(1000, 3000)
    values[:3] = 65535
    payload, clear = grey_png(values, 16, 65535), values == 65535
    low, high = values[~clear].min(), values[~clear].max()
    for value_range in (None, (1500.0, 2500.0)):
        found = decode(payload, ImageForm(SIDE, background=background, range=value_range))
        expected = np.where(clear, GROUNDS[background], scaled(values, *(value_range or (low, high))))
        np.testing.assert_array_equal(found.pixels, threefold(expected))
        assert (found.transparent, found.high_bit_depth) == (True, True)
        assert found.clipped == (None if value_range is None else (low, high))
    counted = high_bit_depth_values(payload, ImageForm(SIDE))
    np.testing.assert_array_equal(np.sort(counted), np.sort(values[~clear]))
    everywhere = decode(grey_png(np.full((SIDE, SIDE), 7), 16, 7), ImageForm(SIDE, background=background))
    assert (everywhere.pixels == GROUNDS[background]).all()


def test_a_transparent_colour_is_told_by_all_bits_also_by_the_range_of_all() -> None:
    values = noise(0, 65536, 3).astype(np.uint16)
    values[2] = values[0, 0]
    values[3, 3] = values[0, 0] ^ [0, 0, 1]  # of the same 8 high bits
    payload = png16(values, b"tRNS" + struct.pack(">HHH", *values[0, 0].tolist()))
    found = decode(payload, ImageForm(SIDE, range=(0, 65535), background="white"))
    clear = (values == values[0, 0]).all(axis=2)
    assert clear.sum() == SIDE + 1
    np.testing.assert_array_equal(found.pixels, np.where(clear[..., None], 255, scaled(values, 0, 65535)))


# -- JPEG 2000 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize(("bits", "dtype"), [(10, "uint16"), (12, "uint16"), (16, "uint16"), (12, "int16")])
def test_colours_in_jpeg_2000_have_all_of_their_bits(bits: int, dtype: str, channels: int) -> None:
    """Of Pillow's 8 bits, the values next to white become black."""
    imagecodecs = pytest.importorskip("imagecodecs", reason="imagecodecs is not installed (extra tiff)")
    lowest = -(2 ** (bits - 1)) if dtype == "int16" else 0
    highest = lowest + 2**bits - 1
    values = noise(lowest, highest + 1, channels, dtype=dtype)
    values[:4, :, :3] = highest  # white
    values[..., -1] = values[..., -1] if channels == 3 else highest
    payload = imagecodecs.jpeg2k_encode(values, level=0, bitspersample=bits, reversible=True, codecformat="jp2")
    colours = values[..., : channels - 1 if channels != 3 else 3]
    for low, high in ((lowest, highest), (lowest + 100, highest // 2)):
        found = decode(payload, ImageForm(SIDE, range=(low, high)))
        np.testing.assert_array_equal(found.pixels, np.broadcast_to(scaled(colours, low, high), (SIDE, SIDE, 3)))
        assert found.high_bit_depth
    counted = high_bit_depth_values(payload, ImageForm(SIDE))
    np.testing.assert_array_equal(np.sort(counted, None), np.sort(colours, None))
    with pytest.raises(BadImage, match=rf"^{bits} bits per channel in mode \w+, of which the range cannot be told"):
        decode(payload, ImageForm(SIDE))
    if channels == 3:
        with pytest.raises(BadImage, match=r"^16 bits per channel, which are not read of bands here"):
            decode(payload, ImageForm(SIDE, bands=(1, 2, 3)))


def test_transparency_in_jpeg_2000_is_of_all_of_its_bits_and_takes_imagecodecs(monkeypatch: pytest.MonkeyPatch) -> None:
    imagecodecs = pytest.importorskip("imagecodecs", reason="imagecodecs is not installed (extra tiff)")
    values = noise(0, 4096, 4, dtype="uint16")
    payload = imagecodecs.jpeg2k_encode(values, level=0, bitspersample=12, reversible=True, codecformat="jp2")
    share = np.rint(values[..., 3:] * (255 / 4095)) / 255
    expected = np.rint(scaled(values[..., :3], 0, 4095) * share + 255 * (1 - share))
    form = ImageForm(SIDE, range=(0, 4095), background="white")
    assert np.abs(decode(payload, form).pixels - expected).max() <= 1
    monkeypatch.setattr("rayfed_ssl.data.decoding.deep_colours.IMAGECODECS_HERE", False)
    with pytest.raises(BadImage, match=r"^a JPEG 2000 of colours of more than 8 bits, which .* 'rayfed-ssl\[tiff\]'$"):
        decode(payload, form)


# -- PGM and PPM -------------------------------------------------------------------------------------------------------


def netpbm(values: np.ndarray, highest: int, plain: bool) -> bytes:
    """A PGM or PPM: https://netpbm.sourceforge.net/doc/ppm.html."""
    magic = (2 if plain else 5) + (values.ndim == 3)
    head = f"P{magic}\n# of a test\n{SIDE} {SIDE}\n{highest}\n".encode()
    if plain:
        rows = [" ".join(map(str, row.reshape(-1).tolist())) + " # a row" for row in values]
        return head + "\n".join(rows).encode() + b"\n"
    return head + values.astype(">u2").tobytes()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("highest", [256, 1023, 4095, 65535])
def test_a_range_means_the_values_that_a_pgm_or_ppm_holds(highest: int, plain: bool, tmp_path: Path) -> None:
    grey, colours = noise(0, highest + 1), noise(0, highest + 1, 3)
    for values in (grey, colours):
        payload = netpbm(values, highest, plain)
        (tmp_path / "a.ppm").write_bytes(payload)
        for low, high in ((0, highest), (highest // 8, highest // 2)):
            found = decode(tmp_path / "a.ppm", ImageForm(SIDE, range=(low, high)))
            expected = scaled(values, low, high)
            np.testing.assert_array_equal(found.pixels, expected if values.ndim == 3 else threefold(expected))
            assert found.high_bit_depth
        counted = high_bit_depth_values(payload, ImageForm(SIDE))
        np.testing.assert_array_equal(np.sort(counted, None), np.sort(values, None))
    own = decode(netpbm(grey, highest, plain), ImageForm(SIDE))
    np.testing.assert_array_equal(own.pixels, threefold(scaled(grey, grey.min(), grey.max())))
    white = decode(netpbm(colours, highest, plain), ImageForm(SIDE))  # its highest value is white
    assert np.abs(white.pixels - scaled(colours, 0, highest)).max() <= 1
    assert not white.high_bit_depth


def test_a_ppm_that_is_cut_off_cannot_be_decoded() -> None:
    colours = noise(0, 4096, 3)
    for plain in (False, True):
        with pytest.raises(BadImage):
            decode(netpbm(colours, 4095, plain)[:-90], ImageForm(SIDE, range=(0, 4095)))
    with pytest.raises(BadImage, match=r"^16 bits per channel, which are not read of bands here"):
        decode(netpbm(colours, 4095, False), ImageForm(SIDE, bands=(1, 2, 3), range=(0, 4095)))


# -- grey TIFFs that Pillow does not open ------------------------------------------------------------------------------


@pytest.mark.parametrize("white_is_zero", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["float16", "float64", "uint32", "uint64", "int64", "int16", "int32"])
def test_a_grey_tiff_of_any_type_is_scaled_as_others_are(kind: str, order: str, white_is_zero: bool) -> None:
    values = noise(0 if kind[0] == "u" else -900, 1000).astype(kind)
    photometric = "miniswhite" if white_is_zero else "minisblack"
    payload = tiff(values, photometric=photometric, byteorder=order, extratags=[(274, "H", 1, 6, True)])
    turned = np.rot90(values.astype(float), -1)
    for value_range in (None, (100.0, 700.0)):
        found = decode(payload, ImageForm(SIDE, range=value_range))
        expected = scaled(turned, *(value_range or (turned.min(), turned.max())))
        expected = 255 - expected if white_is_zero else expected
        np.testing.assert_array_equal(found.pixels, threefold(expected))
        assert (found.high_bit_depth, found.frames, found.bands, found.transparent) == (True, False, False, False)
    counted = high_bit_depth_values(payload, ImageForm(SIDE))
    np.testing.assert_array_equal(np.sort(counted, None), np.sort(values.astype(float), None))
    stack = decode(tiff(np.stack([values] * 3), photometric=photometric, byteorder=order), ImageForm(SIDE))
    assert stack.frames


def test_what_a_grey_tiff_holds_may_be_refused() -> None:
    bad = noise(0, 9).astype(np.float64)
    bad[3, 4] = np.nan
    with pytest.raises(BadImage, match=r"^holds NaN or infinity$"):
        decode(tiff(bad, photometric="minisblack"), ImageForm(SIDE))
    with pytest.raises(BadImage, match=r"^12x12 pixels, more than max_pixels=100"):
        decode(tiff(bad, photometric="minisblack"), ImageForm(SIDE, max_pixels=100))
    with pytest.raises(BadImage, match=r"^a TIFF of 128 bits, complex numbers, which Pillow does not read so"):
        decode(tiff(bad.astype(np.complex128), photometric="minisblack"), ImageForm(SIDE))
