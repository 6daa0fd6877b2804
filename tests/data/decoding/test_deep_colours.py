"""Colours of 16 bits a channel at full depth, against files that the test writes byte by byte and what NumPy makes of
their values.
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
from rayfed_ssl.data.images import BadImage
from tests.data.encoded import png16, tiff
from tests.data.scans import encoded, scan

SIDE = 12
RANGE = (700.0, 3000.0)


def colours(channels: int = 3, side: int = SIDE, high: int = 4096) -> np.ndarray:
    """What a 12-bit camera writes."""
    return np.random.default_rng(channels).integers(0, high, (side, side, channels)).astype(np.uint16)


def scaled(values: np.ndarray, low: float = RANGE[0], high: float = RANGE[1]) -> np.ndarray:
    return np.rint((values.astype(float).clip(low, high) - low) * (255 / (high - low))).astype(np.uint8)


def payloads(values: np.ndarray) -> dict[str, bytes]:
    planes = np.ascontiguousarray(values.transpose(2, 0, 1))
    return {
        "png": png16(values),
        "tiff": tiff(values),
        "big-endian": tiff(values, byteorder=">"),
        "planes": tiff(planes, planarconfig="separate"),
        "deflated planes": tiff(planes, planarconfig="separate", compression="zlib"),
        "deflated": tiff(values, compression="zlib", predictor=True),
        "BigTIFF": tiff(values, bigtiff=True),
        "DICOM": encoded(scan(values, PhotometricInterpretation="RGB")),
    }


@pytest.mark.parametrize(
    "kind", ["png", "tiff", "big-endian", "planes", "deflated planes", "deflated", "BigTIFF", "DICOM"]
)
def test_a_range_scales_all_sixteen_bits(kind: str, tmp_path: Path) -> None:
    values, form = colours(), ImageForm(SIDE, range=RANGE)
    payload = payloads(values)[kind]
    (tmp_path / "a").write_bytes(payload)
    for given in (payload, tmp_path / "a"):
        found = decode(given, form)
        np.testing.assert_array_equal(found.pixels, scaled(values))
        assert (found.high_bit_depth, found.transparent, found.bands, found.frames) == (True, False, False, False)
        assert found.clipped == (values.min(), values.max())
        np.testing.assert_array_equal(np.sort(high_bit_depth_values(given, form), None), np.sort(values, None))
    if kind != "DICOM":
        with Image.open(io.BytesIO(payload)) as image:
            np.testing.assert_array_equal(decode_opened(image, form).pixels, scaled(values))
    narrow = decode(payload, ImageForm(SIDE, range=(0, 65536)))
    assert (narrow.clipped, narrow.narrow) == (None, (values.min(), values.max()))
    with pytest.raises(
        BadImage, match=r"^16 bits per channel in mode RGB, of which the range cannot be told; set data"
    ):
        decode(payload, ImageForm(SIDE))


def test_the_range_of_all_bits_keeps_the_high_ones_as_ever_but_of_planes() -> None:
    values, form = colours(high=65536), ImageForm(SIDE, range=(0, 65535))
    for kind, payload in payloads(values).items():
        expected = scaled(values, 0, 65535) if kind == "planes" else values >> 8
        np.testing.assert_array_equal(decode(payload, form).pixels, expected, err_msg=kind)
    with Image.open(io.BytesIO(payloads(values)["planes"])) as image:  # of which Pillow takes other bytes
        assert (np.asarray(image) != values >> 8).mean() > 0.9


def test_colours_that_use_little_of_all_bits_are_noticed_by_their_high_ones() -> None:
    """As they are by all bits, but for the values, which are known to the next 256."""
    form, dim, one = ImageForm(SIDE, range=(0, 65535)), colours(high=3000), colours(high=200)
    clear = np.dstack([dim, np.full((SIDE, SIDE), 65535, np.uint16)])
    clear[0, 0] = [65535, 65535, 65535, 0]  # wholly transparent: it counts for nothing
    for payload in (*payloads(dim).values(), png16(clear)):
        found = decode(payload, form).narrow
        assert found is not None
        assert 0 <= dim.min() - found[0] < 256
        assert 0 <= found[1] - dim.max() < 256
    assert decode(png16(colours(high=8192)), form).narrow is None
    assert decode(png16(one), form).narrow is None  # of one single colour by its high bits, of which there is a note


def test_images_keep_their_square_and_become_grey_by_their_luma() -> None:
    values = colours(side=40)
    found = decode(png16(values), ImageForm(SIDE, range=RANGE)).pixels
    expected = Image.fromarray(scaled(values)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(found, np.asarray(expected))
    grey = decode(png16(colours()), ImageForm(SIDE, channels=1, range=RANGE)).pixels[..., 0]
    assert np.abs(grey - scaled(colours()) @ np.array([0.299, 0.587, 0.114])).max() <= 1  # ITU-R 601-2
    with pytest.raises(BadImage, match=r"^12x12 pixels, more than max_pixels=100"):
        decode(tiff(colours().astype(np.float32)), ImageForm(SIDE, range=RANGE, max_pixels=100))


# -- transparency ------------------------------------------------------------------------------------------------------


def over(values: np.ndarray, opacity: np.ndarray, ground: int) -> np.ndarray:
    """Pixels of 8 bits laid on a grey."""
    share = opacity[..., None] / 255
    return np.rint(values * share + ground * (1 - share))


@pytest.mark.parametrize("channels", [2, 4])
@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_what_is_transparent_is_laid_on_the_background_and_counts_for_no_range(kind: str, channels: int) -> None:
    if kind == "tiff" and channels == 2:
        pytest.skip("a grey TIFF with transparency is no RGB")
    values = colours(channels)
    values[..., -1] = np.random.default_rng(1).choice([0, 32768, 65535], (SIDE, SIDE))
    values[values[..., -1] == 0, :-1] = 4095  # hidden
    payload = png16(values) if kind == "png" else tiff(values, extrasamples=["unassalpha"])
    found = decode(payload, ImageForm(SIDE, range=(0, 3000), background="grey"))
    expected = over(scaled(values[..., :-1], 0, 3000), np.rint(values[..., -1] / 257), 128)
    assert np.abs(found.pixels - expected).max() <= 1
    assert found.transparent
    seen = values[values[..., -1] > 0][:, :-1]
    assert found.clipped == (seen.min(), seen.max())
    counted = high_bit_depth_values(payload, ImageForm(SIDE))
    np.testing.assert_array_equal(np.sort(counted, None), np.sort(seen, None))
    hidden = values.copy()
    hidden[..., -1] = 0
    payload = png16(hidden) if kind == "png" else tiff(hidden, extrasamples=["unassalpha"])
    assert (decode(payload, ImageForm(SIDE, range=(0, 3000), background="white")).pixels == 255).all()


def test_a_fourth_sample_that_a_tiff_says_nothing_of_is_transparency() -> None:
    values = colours(4)
    values[..., 3] = np.random.default_rng(1).choice([0, 65535], (SIDE, SIDE))
    payload = bytearray(tiff(values, extrasamples=["unassalpha"]))
    place = payload.index(struct.pack("<HHI", 338, 3, 1))
    payload[place : place + 4] = struct.pack("<HH", 337, 2)  # ExtraSamples becomes TargetPrinter
    for background, ground in (("white", 255), ("black", 0)):
        expected = over(scaled(values[..., :3]), values[..., 3] / 257, ground)
        found = decode(bytes(payload), ImageForm(SIDE, range=RANGE, background=background))
        np.testing.assert_array_equal(found.pixels, expected)
        assert found.transparent
        assert not found.bands
    wide = tiff(colours(4).astype(np.float32), extrasamples=["unspecified"])
    assert decode(wide, ImageForm(SIDE, range=RANGE)).bands


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_an_opened_image_may_be_read_twice(kind: str) -> None:
    payload = payloads(colours())[kind]
    with Image.open(io.BytesIO(payload)) as image:
        for _ in range(2):
            np.testing.assert_array_equal(decode_opened(image, ImageForm(SIDE, range=RANGE)).pixels, scaled(colours()))


def test_the_one_colour_that_a_png_calls_transparent_is_told_by_all_of_its_bits() -> None:
    values = colours()
    values[3, 4], values[5, 6] = (1000, 2000, 3000), (1000, 2000, 3001)  # of the same 8 high bits
    payload = png16(values, b"tRNS" + struct.pack(">HHH", 1000, 2000, 3000))
    found = decode(payload, ImageForm(SIDE, range=RANGE, background="white"))
    expected = scaled(values)
    expected[3, 4] = 255
    np.testing.assert_array_equal(found.pixels, expected)


def test_colours_that_were_multiplied_by_their_opacity_are_divided_by_it() -> None:
    plain, opacity = colours(), np.random.default_rng(2).integers(9000, 65536, (SIDE, SIDE, 1))
    multiplied = np.concatenate([np.rint(plain * (opacity / 65535)), opacity], axis=2).astype(np.uint16)
    found = decode(tiff(multiplied, extrasamples=["assocalpha"]), ImageForm(SIDE, range=RANGE))
    expected = over(scaled(plain), np.rint(opacity[..., 0] / 257), 0)
    assert np.abs(found.pixels - expected).max() <= 2
    assert found.transparent


# -- what else a file says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
def test_they_are_turned_upright(orientation: int) -> None:
    values = colours()
    turns = [None, *(getattr(Image.Transpose, name) for name in (
        "FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90"
    ))]  # fmt: skip
    plain, turn = Image.fromarray(scaled(values)), turns[orientation - 1]
    expected = np.asarray(plain if turn is None else plain.transpose(turn))
    exif = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHH", 274, 3, 1, orientation, 0) + bytes(4)
    for payload in (
        png16(values, b"eXIf" + exif),
        tiff(values, extratags=[(274, 3, 1, orientation, True)]),
    ):
        np.testing.assert_array_equal(decode(payload, ImageForm(SIDE, range=RANGE)).pixels, expected)


@pytest.mark.parametrize("kind", ["float32", "float64", "int16", "uint32"])
def test_a_tiff_of_colours_that_pillow_does_not_open_is_read_by_a_range(kind: str) -> None:
    values = colours().astype(kind) - (500 if kind != "uint32" else 0)
    payload = tiff(np.stack([values, values + 1]))
    found = decode(payload, ImageForm(SIDE, range=(0, 3000)))
    np.testing.assert_array_equal(found.pixels, scaled(values, 0, 3000))
    assert found.frames
    np.testing.assert_array_equal(np.sort(high_bit_depth_values(payload, ImageForm(SIDE)), None), np.sort(values, None))
    with pytest.raises(BadImage, match=r"^a TIFF of 3 bands of .*, or data\.range=percentiles its colours$"):
        decode(payload, ImageForm(SIDE))
    more = tiff(np.concatenate([values, values[..., :2]], axis=2), extrasamples=["unspecified", "unspecified"])
    assert decode(more, ImageForm(SIDE, range=(0, 3000))).bands
    np.testing.assert_array_equal(decode(more, ImageForm(SIDE, range=(0, 3000))).pixels, scaled(values, 0, 3000))
    grey = tiff(values, photometric="minisblack", planarconfig="contig")
    with pytest.raises(BadImage, match=r"^a TIFF of 3 bands of \d+ bits, which Pillow does not read; .* all of them$"):
        decode(grey, ImageForm(SIDE, range=(0, 3000)))  # which does not say that they are colours


def test_what_is_no_number_is_refused() -> None:
    values = colours().astype(np.float32)
    values[0, 0, 1] = np.nan
    with pytest.raises(BadImage, match=r"^holds NaN or infinity$"):
        decode(tiff(values), ImageForm(SIDE, range=RANGE))


def test_transparency_of_floats_and_damage_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    floats = tiff(colours(4).astype(np.float32), extrasamples=["unassalpha"])
    with pytest.raises(BadImage, match=r"^a TIFF with transparency of type float32, which is read of unsigned"):
        decode(floats, ImageForm(SIDE, range=RANGE))
    for damaged in (png16(colours())[:200], tiff(colours())[:300]):
        with pytest.raises(BadImage):
            decode(damaged, ImageForm(SIDE, range=RANGE))
    monkeypatch.setattr("rayfed_ssl.data.decoding.deep_colours.TIFFFILE_HERE", False)
    with pytest.raises(BadImage, match=r"^a TIFF of colours of more than 8 bits, which are read with pip install 'ray"):
        decode(tiff(colours()), ImageForm(SIDE, range=RANGE))
    np.testing.assert_array_equal(
        decode(tiff(colours(high=65536)), ImageForm(SIDE, range=(0, 65535))).pixels, colours(high=65536) >> 8
    )
