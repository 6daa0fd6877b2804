"""Decoding: depth, channels and which decoders image bytes may choose, against numpy."""

from __future__ import annotations

import io
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageOps, TiffImagePlugin

from rayfed_ssl.data.decoding.decode import decode, decode_opened
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.images import BadImage
from tests.data.encoded import banded, high_bit_depth_colour
from tests.data.files import file_of

RAMP = np.tile(np.arange(4096, dtype=np.uint16).reshape(64, 64), (1, 1))  # what a 12-bit camera writes
FORM = ImageForm(64)


def by_hand(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """0..255 from low..high, rounded half to even, as (S, S, 3)."""
    scaled = np.rint((np.clip(values.astype(np.float64), low, high) - low) / (high - low) * 255)
    return np.repeat(scaled.astype(np.uint8)[..., None], 3, axis=2)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("depth", [12, 16])
def test_grey_images_of_many_bits_use_the_whole_of_eight(kind, depth):
    values = RAMP << (depth - 12)
    decoded = decode(file_of(values, kind), FORM)
    assert decoded.high_bit_depth
    assert len(np.unique(decoded.pixels)) == 256
    assert np.array_equal(decoded.pixels, by_hand(values, values.min(), values.max()))


def test_a_range_is_the_same_for_every_image():
    dark, form = RAMP // 2, ImageForm(64, range=(0, 4095))
    assert np.array_equal(decode(file_of(dark, "PNG"), form).pixels, by_hand(dark, 0, 4095))
    assert decode(file_of(RAMP * 2, "PNG"), form).pixels.max() == 255  # clipped beyond


@pytest.mark.parametrize(("beyond", "value"), [(40, 4095), (41, 4096), (41, 9000), (41, -1), (4096, 5000)])
def test_an_image_of_which_more_than_a_hundredth_is_clipped_says_its_values(beyond, value):
    """40 of 4096 pixels are less than 1%, 41 more."""
    values = np.full(64 * 64, 100, np.float32)
    values[:beyond], values[-1] = value, 200
    decoded = decode(values.reshape(64, 64), ImageForm(64, range=(0.0, 4095.0)))
    outside = ((values < 0) | (values > 4095)).mean() > 0.01
    assert decoded.clipped == ((values.min(), values.max()) if outside else None)
    assert outside == (value in (4096, 9000, -1, 5000))
    assert decode(values.reshape(64, 64), FORM).clipped is None


@pytest.mark.parametrize(("low", "high"), [(0, 255), (100, 355), (0, 256), (0, 0), (7, 7), (100, 5000)])
def test_an_image_that_takes_up_less_than_a_sixteenth_of_its_range_says_its_values(low, high):
    values = np.linspace(low, high, 64 * 64, dtype=np.float32).reshape(64, 64)
    decoded = decode(values, ImageForm(64, range=(0.0, 4096.0)))
    assert decoded.narrow == ((low, high) if 0 < high - low < 256 else None)
    assert len(np.unique(decoded.pixels)) <= 17 or decoded.clipped is not None
    if low < high:
        assert decode(values, FORM).narrow is None  # its own range fits


@pytest.mark.parametrize(("side", "hot", "told"), [(64, 1, True), (64, 20, True), (64, 41, False), (14, 1, False)])
def test_an_image_of_which_few_pixels_take_up_most_of_its_own_range_says_that_of_the_others(side, hot, told):
    """20 of 4096 pixels are less than 0.5%, and of 14 x 14 pixels none is left out."""
    values = np.linspace(500, 1500, side * side).astype(np.uint16)
    values[3 : 3 + hot] = 65535
    image = values.reshape(side, side)
    decoded = decode(file_of(image, "PNG"), FORM)
    assert len(np.unique(decoded.pixels)) <= 17 or side != 64
    assert (decoded.spiked is not None) == told
    if decoded.spiked is not None:
        assert 500 < decoded.spiked[0] < 520
        assert 1480 < decoded.spiked[1] <= 1500
    assert decode(file_of(image, "PNG"), ImageForm(64, range=(0, 65535))).spiked is None  # narrow, or clipped
    assert decode(np.linspace(500, 1500, side * side).reshape(side, side), FORM).spiked is None


@pytest.mark.parametrize(("width", "height"), [(128, 4096), (4096, 128), (1000, 1000)])
def test_of_large_images_pixels_of_all_columns_are_looked_at(width, height):
    """A dark column in eight is much, and no outlier."""
    values = np.full((height, width), 1000, np.uint16)
    values[:, 5::8] = 100
    values[7, 5::8] = values[9, 6] = 60000
    assert decode(file_of(values, "PNG"), FORM).spiked == (100, 1000)


@pytest.mark.parametrize("shape", [(16, 480), (33, 16), (16, 17), (15, 16), (7, 100), (101, 64), (40, 40), (16, 16)])
@pytest.mark.parametrize("channels", [1, 3])
def test_all_of_an_image_is_padded_or_stretched_to_a_square_as_pillow_does(shape, channels):
    pixels = np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8)
    image, payload = Image.fromarray(pixels).convert("L" if channels == 1 else "RGB"), file_of(pixels, "PNG")
    padded = decode(payload, ImageForm(16, channels=channels, fit="pad"))
    expected = ImageOps.pad(image, (16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(padded.pixels, np.asarray(expected).reshape(16, 16, channels))
    stretched = decode(payload, ImageForm(16, channels=channels, fit="stretch"))
    expected = image.resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(stretched.pixels, np.asarray(expected).reshape(16, 16, channels))
    assert not padded.cropped
    assert not stretched.cropped


@pytest.mark.parametrize(
    ("fit", "shape", "size", "enlarged"),
    [
        ("crop", (21, 100), 32, True),  # 32 / 21 = 1.52
        ("crop", (22, 100), 32, False),
        ("crop", (100, 20), 30, False),  # below 32 pixels a side nobody expects detail
        ("crop", (32, 32), 48, True),
        ("crop", (33, 32), 48, True),
        ("crop", (33, 33), 48, False),
        ("pad", (10, 32), 48, True),
        ("pad", (10, 33), 48, False),
        ("stretch", (100, 32), 48, True),
        ("stretch", (33, 100), 48, False),
    ],
)
def test_an_image_that_is_made_much_larger_says_so(fit, shape, size, enlarged):
    payload = file_of(np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8), "PNG")
    assert decode(payload, ImageForm(size, fit=fit)).enlarged == enlarged


def test_a_line_of_pixels_is_padded_to_one_row():
    """Of which ImageOps.pad would make none."""
    line = decode(file_of(np.full((2, 900), 200, np.uint8), "PNG"), ImageForm(16, channels=1, fit="pad")).pixels[..., 0]
    assert (np.count_nonzero(line, axis=1) > 0).sum() == 1
    assert set(np.unique(line)) == {0, 200}


@pytest.mark.parametrize("kind", ["TIFF", "array"])
def test_float_images_keep_their_levels(kind):
    values = np.linspace(-1000.0, 3000.0, 64 * 64, dtype=np.float32).reshape(64, 64)  # Hounsfield units
    payload = values if kind == "array" else file_of(values, kind)
    assert np.array_equal(decode(payload, FORM).pixels, by_hand(values, -1000, 3000))
    window = decode(payload, ImageForm(64, range=(-160.0, 240.0)))
    assert np.array_equal(window.pixels, by_hand(values, -160, 240))


def test_white_is_zero_is_turned_around():
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[262] = 0
    file = file_of(RAMP, "TIFF", tiffinfo=tags)
    assert Image.open(io.BytesIO(file)).tag_v2[262] == 0
    assert np.array_equal(decode(file, FORM).pixels, 255 - by_hand(RAMP, 0, 4095))
    tags[274] = 3  # and upside down
    upside_down = file_of(RAMP, "TIFF", tiffinfo=tags)
    assert np.array_equal(decode(upside_down, FORM).pixels, 255 - by_hand(RAMP[::-1, ::-1], 0, 4095))


def test_values_that_are_no_numbers_are_refused():
    for value in (np.nan, np.inf):
        with pytest.raises(BadImage, match="NaN"):
            decode(file_of(np.full((8, 8), value, np.float32), "TIFF"), FORM)


@pytest.mark.parametrize("value", [0, 700, 65535])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "array"])
def test_an_image_of_one_value_is_kept_as_the_smallest_value_of_any_image(kind, value):
    """With a range it is the grey that the range gives it; where zero is white, the smallest value is white."""
    values = np.full((8, 8), value, np.uint16)
    payload = values if kind == "array" else file_of(values, kind)
    decoded = decode(payload, FORM)
    assert decoded.high_bit_depth
    assert (decoded.clipped, decoded.narrow, decoded.spiked) == (None, None, None)
    assert set(decoded.pixels.ravel()) == {0}
    ranged = decode(payload, ImageForm(64, range=(0.0, 65535.0)))
    assert set(ranged.pixels.ravel()) == {round(value / 257)}
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[262] = 0
    assert set(decode(file_of(values, "TIFF", tiffinfo=tags), FORM).pixels.ravel()) == {255}


def test_colour_of_sixteen_bits_needs_a_range():
    with pytest.raises(BadImage, match=r"16 bits per channel in mode RGB.*data\.range=percentiles, or .*\[0,65535\]"):
        decode(high_bit_depth_colour(), ImageForm(8))
    decoded = decode(high_bit_depth_colour(), ImageForm(8, range=(0, 65535)))
    assert decoded.high_bit_depth
    assert set(decoded.pixels.ravel()) == {0x12}


@pytest.mark.parametrize("kind", ["uint16", "float32", "float64"])
def test_arrays_of_colours_of_many_bits_need_a_range(kind):
    """All channels share it, and values beyond it are counted over all of them."""
    values = np.random.default_rng(0).integers(0, 1001, (16, 16, 3)).astype(kind)
    with pytest.raises(
        BadImage, match=rf"^colours of type {kind}, of which the range cannot be told; set data\.range="
    ):
        decode(values, ImageForm(16))
    decoded = decode(values, ImageForm(16, range=(0, 1000)))
    assert np.array_equal(decoded.pixels, np.rint(values.astype(float) * 0.255))
    assert (decoded.high_bit_depth, decoded.clipped) == (True, None)
    assert decode(values, ImageForm(16, range=(0, 500))).clipped == (values.min(), values.max())
    with pytest.raises(BadImage, match="colours of type"):
        decode(values[..., [0, 1, 2, 0]], ImageForm(16, range=(0, 1000)))


def test_eight_bits_stay_what_they_were():
    grey = (RAMP % 100).astype(np.uint8)
    decoded = decode(file_of(grey, "PNG"), FORM)
    assert not decoded.high_bit_depth
    assert np.array_equal(decoded.pixels, np.repeat(grey[..., None], 3, axis=2))


def test_one_channel_is_the_luma():
    colours = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    decoded = decode(file_of(colours, "PNG"), ImageForm(16, channels=1)).pixels
    luma = colours @ np.array([0.299, 0.587, 0.114])  # ITU-R 601-2
    assert decoded.shape == (16, 16, 1)
    assert np.abs(decoded[..., 0] - luma).max() <= 1
    grey = colours[..., 0]
    for payload in (grey, grey[..., None], file_of(grey, "PNG")):
        assert np.array_equal(decode(payload, ImageForm(16, channels=1)).pixels[..., 0], grey)


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 10 10
%%EndComments
(/tmp/pwned) (w) file closefile
%%EOF
"""


@pytest.mark.parametrize("kind", ["EPS", "PSD", "TGA", "PCX", "ICO", "PDF"])
def test_bytes_choose_no_other_decoder(kind):
    if kind == "EPS":
        payload = EPS
        assert Image.open(io.BytesIO(payload)).format == "EPS"  # so Pillow would have run Ghostscript
    elif kind == "PSD":
        payload = b"8BPS\0\1" + bytes(6) + b"\0\3" + b"\0\0\0\x08\0\0\0\x08\0\x08\0\3" + bytes(12)
    else:
        payload = file_of(np.zeros((16, 16, 3), np.uint8), kind)
    with pytest.raises(BadImage, match="no image of a format that is read"):
        decode(payload, FORM)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "MPO"])
def test_the_formats_we_mean_open(kind):
    payload = file_of(np.full((16, 16, 3), 100, np.uint8), kind)
    assert np.abs(decode(payload, ImageForm(8)).pixels.astype(int) - 100).max() <= 2


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    ("bands", "extra", "more"), [(3, None, False), (4, 0, True), (4, 2, False), (5, 0, True), (6, 0, True)]
)
def test_a_tiff_with_bands_beside_its_colours_says_so(bands, extra, more, big, tmp_path):
    payload = banded(bands, 8, 2, extra, big)
    (tmp_path / "a.tif").write_bytes(payload)
    for given in (payload, tmp_path / "a.tif"):
        decoded = decode(given, ImageForm(8))
        assert decoded.bands == more
        black = 0 if extra != 2 else 1  # the fourth band is an opacity of 3 of 255
        assert (decoded.pixels == [0, 1 - black, 2 - 2 * black]).all()
    assert decode(banded(2, 8, 1, 0), ImageForm(8)).bands  # grey, and one more
    assert not decode(file_of(RAMP, "TIFF"), ImageForm(8)).bands


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(("bands", "bits", "photometric"), [(13, 16, 1), (4, 8, 1), (4, 32, 2), (8, 8, 2), (3, 4, 2)])
def test_a_tiff_whose_bands_cannot_be_read_says_how_many_it_has(bands, bits, photometric, big, tmp_path):
    payload = banded(bands, bits, photometric, 0, big)
    (tmp_path / "a.tif").write_bytes(payload)
    said = f"^a TIFF of {bands} bands of {bits} bits, which Pillow does not read; write three of its bands as 8 bits"
    for given in (payload, tmp_path / "a.tif"):
        with pytest.raises(BadImage, match=said):
            decode(given, ImageForm(8))
    for damaged in (payload[:20], payload[:40], payload[:2], b"II*\0" + bytes(4)):
        with pytest.raises(BadImage, match="no image of a format that is read"):
            decode(damaged, ImageForm(8))


@pytest.mark.parametrize(
    ("bits", "kind", "photometric", "said"),
    [(64, 3, 1, "64 bits, floats"), (64, None, 1, "64 bits, whole numbers"), (16, 2, 0, "16 bits, whole numbers with")],
)
def test_a_tiff_of_one_band_that_cannot_be_read_says_what_it_holds(bits, kind, photometric, said, monkeypatch):
    for module in ("formats", "deep_colours"):
        monkeypatch.setattr(f"rayfed_ssl.data.decoding.{module}.TIFFFILE_HERE", False)
    with pytest.raises(BadImage, match=rf"^a TIFF of {said}.*, which Pillow does not read so; .*\[tiff\]' reads whole"):
        decode(banded(1, bits, photometric, kind=kind), ImageForm(8))


def test_a_tiff_of_32_bits_without_a_sign_keeps_its_high_bit():
    signed = np.linspace(-(2**31), 2**31 - 1, 64).round().astype(np.int32).reshape(8, 8)
    unsigned = (signed.astype(np.int64) + 2**31).astype(np.uint32)
    with_sign, without = (struct.pack("<HHIH", 339, 3, 1, kind) for kind in (2, 1))
    payload = file_of(unsigned.view(np.int32), "TIFF")
    assert payload.count(with_sign) == 1
    expected = decode(file_of(signed, "TIFF"), ImageForm(8, channels=1)).pixels
    assert (expected[0, 0], expected[-1, -1]) == (0, 255)
    assert (decode(payload.replace(with_sign, without), ImageForm(8, channels=1)).pixels == expected).all()


def test_a_tiff_of_8_bits_with_a_sign_is_refused():
    with pytest.raises(BadImage, match=r"^8 bits with a sign"):
        decode(banded(1, 8, 1, kind=2), ImageForm(8))
    assert (decode(banded(1, 8, 1, kind=1), ImageForm(8)).pixels == 0).all()


def test_an_empty_file_is_called_empty_and_no_reason_names_an_object_of_python(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    for nothing in (b"", tmp_path / "a.png"):
        with pytest.raises(BadImage, match=r"^it is empty$"):
            decode(nothing, FORM)
    with pytest.raises(
        BadImage, match=r"^its content is no image of a format that is read \((AVIF, )?BMP, DICOM, GIF, .*\)"
    ):
        decode(b"<html>404</html>", FORM)


def test_pillow_says_nothing_of_its_own(tmp_path):
    (tmp_path / "a.tif").write_bytes(banded(13, 16, 1, 0))
    code = (
        "import sys; from pathlib import Path; from rayfed_ssl.data.decoding.decode import *\n"
        "try: decode(Path(sys.argv[1]), ImageForm(8))\n"
        "except BadImage: print('bad')"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.tif")], capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"bad\n", b"")


UPRIGHT = {  # EXIF 2.3, tag 274: which side of the scene the first row and the first column of the pixels are
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: p.swapaxes(0, 1)[:, ::-1],
    7: lambda p: p[::-1, ::-1].swapaxes(0, 1),
    8: lambda p: p.swapaxes(0, 1)[::-1],
}


def tagged(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[274] = orientation
    return exif


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize(("kind", "high_bit_depth"), [("PNG", False), ("TIFF", False), ("WEBP", False), ("PNG", True)])
def test_images_are_turned_as_their_exif_orientation_says(kind, high_bit_depth, orientation):
    draw = np.random.default_rng(0)
    pixels = (
        draw.integers(0, 4096, (64, 64), np.uint16) if high_bit_depth else draw.integers(0, 256, (64, 64, 3), np.uint8)
    )
    options = {"lossless": True} if kind == "WEBP" else {}
    file = file_of(pixels, kind, exif=tagged(orientation), **options)
    shown = np.ascontiguousarray(UPRIGHT[orientation](pixels))
    assert np.array_equal(decode(file, FORM).pixels, decode(file_of(shown, "PNG"), FORM).pixels)
    with Image.open(io.BytesIO(file)) as opened:
        assert np.array_equal(decode_opened(opened, FORM).pixels, decode(file_of(shown, "PNG"), FORM).pixels)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_large_jpeg_is_turned_too_and_a_damaged_orientation_is_none():
    """A wide scene, red on the left, that the camera wrote turned by a quarter."""
    scene = np.zeros((200, 300, 3), np.uint8)
    scene[:, :150, 0] = 255
    turned = np.ascontiguousarray(scene.swapaxes(0, 1)[::-1])  # as its first row, the scene's right side
    for exif in (tagged(6).tobytes(), tagged(6).tobytes().replace(b"\x01\x12", b"\x01\x13")):
        decoded = decode(file_of(turned, "JPEG", exif=exif, quality=95), ImageForm(16)).pixels.astype(int)
        upright = decoded[:, :7, 0].min() > 250 and decoded[:, 9:, 0].max() < 5
        assert upright == (exif == tagged(6).tobytes())
    plain = decode(file_of(turned, "PNG"), FORM).pixels
    for damaged in (b"", b"Exif\0\0", b"Exif\0\0II", b"Exif\0\0MM\0\x2a\xff\xff\xff\xff", b"Exif\0\0xxxxxxxxxxxx"):
        assert np.array_equal(decode(file_of(turned, "PNG", exif=damaged), FORM).pixels, plain)


def with_an_odd_tag(tag: int, kind: int, count: int, value: bytes) -> bytes:
    """An EXIF block that says orientation 6, and another tag of the type ``kind`` (TIFF 6.0, section 2)."""
    head = b"Exif\0\0II*\0" + struct.pack("<I", 8)
    entries = [struct.pack("<HHI4s", 274, 3, 1, b"\6\0\0\0"), struct.pack("<HHI4s", tag, kind, count, value)]
    return head + struct.pack("<H", 2) + b"".join(sorted(entries, key=lambda entry: entry[:2][::-1])) + bytes(4)


@pytest.mark.parametrize(
    ("tag", "kind", "count", "value"),
    [(282, 2, 3, b"72\0"), (296, 2, 3, b"in\0"), (305, 11, 1, b"\0\0\x80\x3f"), (34853, 9, 1, b"\x9b\xff\xff\xff")],
    ids=["resolution as text", "unit as text", "software as a number", "GPS before the file"],
)
def test_other_tags_that_are_odd_cost_no_image(tag, kind, count, value):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    file = file_of(pixels, "PNG", exif=with_an_odd_tag(tag, kind, count, value))
    shown = np.ascontiguousarray(UPRIGHT[6](pixels))
    assert np.array_equal(decode(file, FORM).pixels, shown)


def test_grey_with_an_alpha_channel_that_is_multiplied_in_is_laid_on_black():
    """As some TIFFs have it (``ExtraSamples`` 1): black grounds add nothing, so the grey values stay."""
    grey = np.array([[60, 128], [255, 0]], np.uint8)
    image = Image.merge("LA", [Image.fromarray(grey), Image.new("L", (2, 2), 128)])
    found = decode_opened(image.convert("La"), ImageForm(2, channels=1))
    assert found.transparent
    assert np.abs(found.pixels[..., 0].astype(int) - grey * (128 / 255)).max() <= 1


@pytest.mark.long
def test_an_image_that_is_too_large_for_pillow_is_told_in_our_words():
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    with pytest.raises(BadImage, match=r"^more than 178956970 pixels, the most that max_pixels may be$"):
        decode(file.getvalue(), FORM)
