"""Images of bands, against what NumPy and Pillow make of each band alone."""

from __future__ import annotations

import io
import logging
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.data.decoding.bit_depth import Range, Ranges
from rayfed_ssl.data.decoding.decode import decode, decode_opened
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.squares import Fit
from rayfed_ssl.data.images import BadImage, Payload
from tests.data.bands import scaled
from tests.data.encoded import banded, needs_tifffile
from tests.data.files import file_of

SIDE = 12
BILINEAR = Image.Resampling.BILINEAR


def noise(channels: int, height: int = 20, width: int = 31, high: int = 256) -> np.ndarray:
    kind = np.uint8 if high == 256 else np.uint16
    return np.random.default_rng(channels).integers(0, high, (height, width, channels)).astype(kind)


def cropped(band: np.ndarray) -> np.ndarray:
    """The central square of a band of 8 bits, as Pillow resizes it."""
    height, width = band.shape
    side = min(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    image = Image.fromarray(np.ascontiguousarray(band))
    return np.asarray(image.resize((SIDE, SIDE), BILINEAR, box=(left, top, left + side, top + side)))


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [2, 4, 5, 13, 64])
def test_each_band_becomes_the_square_that_it_is_as_a_grey_image(channels: int) -> None:
    pixels = noise(channels)
    found = decode(pixels, ImageForm(SIDE, channels=channels))
    assert found.pixels.shape == (SIDE, SIDE, channels)
    assert found.pixels.flags.c_contiguous
    for band in range(channels):
        np.testing.assert_array_equal(found.pixels[..., band], cropped(pixels[..., band]))
    assert not any((found.high_bit_depth, found.transparent, found.grey, found.bands))
    same = noise(channels, SIDE, SIDE)
    np.testing.assert_array_equal(decode(same, ImageForm(SIDE, channels=channels)).pixels, same)


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_bands_are_padded_and_stretched_as_grey_images_are(fit: Fit) -> None:
    pixels = noise(5, 10, 40)
    found = decode(pixels, ImageForm(SIDE, channels=5, fit=fit)).pixels
    for band in range(5):
        grey = decode(pixels[..., band], ImageForm(SIDE, channels=1, fit=fit)).pixels
        np.testing.assert_array_equal(found[..., band], grey[..., 0])


@pytest.mark.parametrize("kind", ["uint16", "int16", "int32", "float32", "float64"])
def test_one_range_is_for_all_bands_and_a_list_for_each(kind: str) -> None:
    values = noise(4, SIDE, SIDE, 5000).astype(kind)
    one = decode(values, ImageForm(SIDE, channels=4, range=(1000, 4000)))
    np.testing.assert_array_equal(one.pixels, scaled(values, 1000, 4000))
    ranges = ((0, 5000), (10, 20), (-3000, 3000), (2000, 2500.5))
    each = decode(values, ImageForm(SIDE, channels=4, range=ranges))
    for band, (low, high) in enumerate(ranges):
        np.testing.assert_array_equal(each.pixels[..., band], scaled(values[..., band], low, high))
    assert one.high_bit_depth
    assert each.high_bit_depth


def test_an_image_is_noted_if_one_of_its_bands_leaves_its_range_or_takes_up_little_of_it() -> None:
    values = np.zeros((SIDE, SIDE, 3 + 1), np.uint16)
    values[..., 0] = np.arange(SIDE * SIDE).reshape(SIDE, SIDE) * 20  # 0 to 2860
    values[..., 1] = values[..., 0] // 10  # 0 to 286
    fine = decode(values[..., [0, 0]], ImageForm(SIDE, channels=2, range=(0, 3000)))
    assert fine.clipped is fine.narrow is fine.spiked is None
    clipped = decode(values[..., [0, 1]], ImageForm(SIDE, channels=2, range=((0, 2000), (0, 286))))
    assert (clipped.clipped, clipped.narrow) == ((0, 2860), None)
    narrow = decode(values[..., [0, 1]], ImageForm(SIDE, channels=2, range=(0, 6000)))
    assert (narrow.clipped, narrow.narrow) == (None, (0, 286))
    both = decode(values[..., [0, 1]], ImageForm(SIDE, channels=2, range=((0, 2000), (0, 6000))))
    assert (both.clipped, both.narrow) == ((0, 2860), (0, 286))
    outside = int(((values[..., 0] > 2840) | (values[..., 0] < 0)).sum())
    assert outside == 1  # of 288: in all bands together less than one in a hundred
    assert decode(values[..., [0, 1]], ImageForm(SIDE, channels=2, range=(0, 2840))).clipped is None


@pytest.mark.parametrize(
    ("payload", "range", "reason"),
    [
        (noise(3), None, r"^an array \(20, 31, 3\), where data\.channels=5 wants \(H, W, 5\)$"),
        (noise(1)[..., 0], None, r"^an array \(20, 31\), where data\.channels=5"),
        (noise(5, high=900), None, r"^bands of type uint16, of which the range .*; set data\.range=percentiles, which"),
        (noise(5, high=900), ((0, 1), (0, 2)), r"^5 bands, and a range of each of 2$"),
        (np.full((9, 9, 5), np.nan, np.float32), (0, 1), r"^holds NaN or infinity$"),
        (noise(5, 200, 200), None, r"^200x200 pixels, more than max_pixels=10000"),
        (b"", None, r"it is empty"),
        (
            file_of(noise(3), "PNG"),
            None,
            r"^an image of mode RGB, where data\.channels=5 wants so many bands; allowed: ",
        ),
        (file_of(noise(4), "PNG"), None, r"^an image of mode RGBA, where data\.channels=5"),
        (b"\0" * 128 + b"DICM" + bytes(40), None, r"^DICOM, which has no bands$"),
        (None, None, r"^no image bytes$"),
    ],
)
def test_what_has_not_so_many_bands_is_refused(payload: Payload, range: Range | Ranges | None, reason: str) -> None:
    with pytest.raises(BadImage, match=reason):
        decode(payload, ImageForm(SIDE, channels=5, range=range, max_pixels=10_000))


def test_a_range_of_each_band_scales_no_grey_image_and_no_colours() -> None:
    for values in (noise(1, high=900)[..., 0], noise(3, high=900)):
        with pytest.raises(BadImage, match=r"channels, which have one range; found one of each of 2 bands$"):
            decode(values, ImageForm(SIDE, range=((0, 1), (0, 2))))


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "channels"), [("RGBA", 4), ("LA", 2)])
def test_transparency_is_a_band_where_so_many_are_asked_for(mode: str, channels: int, tmp_path: Path) -> None:
    pixels = noise(channels, SIDE, SIDE)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == mode
        with pytest.raises(BadImage, match=rf"^a Pillow image; of {channels} bands an array \(H, W, {channels}\) is "):
            decode_opened(image, ImageForm(SIDE, channels=channels))
    for payload in (tmp_path / "a.png", (tmp_path / "a.png").read_bytes()):
        np.testing.assert_array_equal(decode(payload, ImageForm(SIDE, channels=channels)).pixels, pixels)
    assert decode(tmp_path / "a.png", ImageForm(SIDE)).transparent  # without a word it is transparency, as ever


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(("bands", "bits"), [(2, 8), (4, 8), (5, 8), (13, 8), (4, 16), (13, 16)])
def test_a_tiffs_samples_are_bands(bands: int, bits: int, big: bool, tmp_path: Path) -> None:
    needs_tifffile()
    payload = banded(bands, bits, 1, 0, big)
    (tmp_path / "a.tif").write_bytes(payload)
    deep = np.array([2 * band + 256 * (2 * band + 1) for band in range(bands)])  # little-endian
    expected = np.arange(bands) if bits == 8 else scaled(deep, 0, 10_000)
    for given in (payload, tmp_path / "a.tif"):
        found = decode(given, ImageForm(8, channels=bands, range=None if bits == 8 else (0, 10_000)))
        np.testing.assert_array_equal(found.pixels, np.broadcast_to(expected, (8, 8, bands)))


@pytest.mark.parametrize("layout", ["samples", "planes", "pages", "plain pages", "ImageJ", "compressed", "floats"])
def test_bands_may_be_samples_planes_or_pages(layout: str, tmp_path: Path) -> None:
    tifffile = needs_tifffile()
    values, path = noise(6, 20, 31, 3000), tmp_path / "a.tif"
    if layout == "floats":
        values = values.astype(np.float32) / 3
    planes = np.ascontiguousarray(values.transpose(2, 0, 1))
    if layout in ("pages", "plain pages"):
        with tifffile.TiffWriter(path) as writer:
            for plane in planes:
                said = {} if layout == "pages" else {"metadata": None}
                writer.write(plane, photometric="minisblack", contiguous=False, **said)
    elif layout == "ImageJ":
        tifffile.imwrite(path, planes, imagej=True, metadata={"axes": "CYX"})
    elif layout == "planes":
        tifffile.imwrite(path, planes, photometric="minisblack", planarconfig="separate")
    else:
        deflated = {"compression": "zlib"} if layout == "compressed" else {}
        tifffile.imwrite(path, values, photometric="minisblack", planarconfig="contig", **deflated)
    form = ImageForm(SIDE, channels=6, range=(0, 3000))
    np.testing.assert_array_equal(decode(path, form).pixels, decode(values, form).pixels)


def test_a_tiff_of_other_bands_axes_types_or_orders_is_refused(tmp_path: Path) -> None:
    tifffile = needs_tifffile()

    def refusal(values: np.ndarray, **how: object) -> str:
        tifffile.imwrite(tmp_path / "a.tif", values, **{"photometric": "minisblack", **how})
        with pytest.raises(BadImage) as error:
            decode(tmp_path / "a.tif", ImageForm(8, channels=5, max_pixels=4000))
        return str(error.value)

    volume = np.zeros((5, 4, 9, 9), np.uint8)
    other = "a TIFF of 20 x 31 x 6 (axes YXS), where data.channels=5 wants so many bands"
    assert refusal(noise(6), planarconfig="contig") == other
    assert refusal(noise(1)[..., 0]).startswith("a TIFF of 20 x 31 (axes YX), where data.channels=5")
    assert refusal(volume).startswith("a TIFF of 5 x 4 x 9 x 9 (axes ")
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        for side in (9, 9, 9, 9, 5):  # the last is another image, such as a preview
            writer.write(np.zeros((side, side), np.uint8), photometric="minisblack", contiguous=False)
    with pytest.raises(BadImage, match=r"^a TIFF of 9 x 9 \(axes YX\), where data\.channels=5 wants so many bands$"):
        decode(tmp_path / "a.tif", ImageForm(8, channels=5))
    assert refusal(np.zeros((5, 9, 9), np.int8)).startswith("a TIFF of type int8; bands are of 8 bits without a sign")
    assert refusal(np.zeros((5, 9, 9), np.complex64)).startswith("a TIFF of type complex64; ")
    assert refusal(np.zeros((5, 90, 90), np.uint8)).startswith("90x90 pixels, more than max_pixels=4000")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("layout", ["samples", "planes", "pages"])
def test_bands_are_turned_as_pillow_turns_an_image(layout: str, orientation: int, tmp_path: Path) -> None:
    tifffile = needs_tifffile()
    values, path, tags = noise(5, SIDE, SIDE, 3000), tmp_path / "a.tif", [(274, 3, 1, orientation, True)]
    planes = np.ascontiguousarray(values.transpose(2, 0, 1))
    if layout == "samples":
        tifffile.imwrite(path, values, photometric="minisblack", planarconfig="contig", extratags=tags)
    elif layout == "planes":
        tifffile.imwrite(path, planes, photometric="minisblack", planarconfig="separate", extratags=tags)
    else:
        with tifffile.TiffWriter(path) as writer:
            for plane in planes:
                writer.write(plane, photometric="minisblack", contiguous=False, metadata=None, extratags=tags)
    names = ["FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90"]
    found = decode(path, ImageForm(SIDE, channels=5, range=(0, 3000))).pixels
    for band in range(5):
        image = Image.fromarray(scaled(values[..., band], 0, 3000))
        if orientation > 1:
            image = image.transpose(getattr(Image.Transpose, names[orientation - 2]))
        np.testing.assert_array_equal(found[..., band], image)


@pytest.mark.parametrize("high", [256, 3000])
def test_bands_of_which_zero_is_white_are_inverted_as_grey_images_are(high: int, tmp_path: Path) -> None:
    tifffile = needs_tifffile()
    values, range = noise(5, SIDE, SIDE, high), None if high == 256 else (0.0, 2000.0)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="miniswhite", planarconfig="contig")
    found = decode(tmp_path / "a.tif", ImageForm(SIDE, channels=5, range=range)).pixels
    np.testing.assert_array_equal(found, 255 - (values if range is None else scaled(values, *range)))
    tifffile.imwrite(tmp_path / "grey.tif", np.ascontiguousarray(values[..., 2]), photometric="miniswhite")
    grey = decode(tmp_path / "grey.tif", ImageForm(SIDE, channels=1, range=range)).pixels
    np.testing.assert_array_equal(found[..., 2], grey[..., 0])


# -- some bands --------------------------------------------------------------------------------------------------------


SENTINEL = (4, 3, 2)  # red, green, blue of Sentinel-2's 13 bands


@pytest.mark.parametrize("layout", ["array", "samples", "planes", "pages"])
def test_bands_are_chosen_in_their_order_and_counted_from_one(layout: str, tmp_path: Path) -> None:
    values, path = noise(13, SIDE, SIDE, 3000), tmp_path / "a.tif"
    payload: Payload = values
    if layout != "array":
        tifffile = needs_tifffile()
        planes, payload = np.ascontiguousarray(values.transpose(2, 0, 1)), path
        if layout == "samples":
            tifffile.imwrite(path, values, photometric="minisblack", planarconfig="contig")
        elif layout == "planes":
            tifffile.imwrite(path, planes, photometric="minisblack", planarconfig="separate")
        else:
            with tifffile.TiffWriter(path) as writer:
                for plane in planes:
                    writer.write(plane, photometric="minisblack", contiguous=False, metadata=None)
    colours = decode(payload, ImageForm(SIDE, range=(0, 3000), bands=SENTINEL))
    expected = scaled(np.stack([values[..., 3], values[..., 2], values[..., 1]], axis=-1), 0, 3000)
    np.testing.assert_array_equal(colours.pixels, expected)
    assert colours.high_bit_depth
    each = decode(payload, ImageForm(SIDE, range=((0, 1000), (0, 2000), (5, 3000)), bands=SENTINEL)).pixels
    np.testing.assert_array_equal(each[..., 1], scaled(values[..., 2], 0, 2000))
    last = decode(payload, ImageForm(SIDE, channels=1, bands=(13,))).pixels[..., 0]
    np.testing.assert_array_equal(last, scaled(values[..., 12], values[..., 12].min(), values[..., 12].max()))
    five = decode(payload, ImageForm(SIDE, channels=5, range=(0, 3000), bands=(1, 13, 8, 8, 2))).pixels
    np.testing.assert_array_equal(five, scaled(values[..., [0, 12, 7, 7, 1]], 0, 3000))
    with pytest.raises(BadImage, match=r", where data\.bands=\[14, 3, 2\] wants 14 bands or more$"):
        decode(payload, ImageForm(SIDE, range=(0, 3000), bands=(14, 3, 2)))
    with pytest.raises(BadImage, match=r"^colours of type uint16, of which the range cannot be told"):
        decode(payload, ImageForm(SIDE, bands=SENTINEL))


@pytest.mark.parametrize(("count", "mode"), [(1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA")])
def test_bands_of_other_files_are_their_channels_of_8_bits(count: int, mode: str) -> None:
    pixels = noise(count, SIDE, SIDE)
    payload = file_of(pixels[..., 0] if count == 1 else pixels, "PNG")
    with Image.open(io.BytesIO(payload)) as image:
        assert image.mode == mode
    found = decode(payload, ImageForm(SIDE, channels=1, bands=(count,)))
    np.testing.assert_array_equal(found.pixels[..., 0], pixels[..., -1])
    assert not found.transparent
    with pytest.raises(
        BadImage, match=rf"^an image of mode {mode}, where data\.bands=\[5\] wants 5 bands or more; all"
    ):
        decode(payload, ImageForm(SIDE, channels=1, bands=(5,)))


def test_one_band_is_called_so() -> None:
    form, indexed = ImageForm(SIDE, channels=1, bands=(1,)), io.BytesIO()
    Image.fromarray(noise(1)[..., 0]).convert("P").save(indexed, "PNG")
    with pytest.raises(BadImage, match=r", where data\.bands=\[1\] wants 1 band or more; allowed"):
        decode(indexed.getvalue(), form)
    with pytest.raises(BadImage, match=r"^a Pillow image; of 1 band an array \(H, W, C\) of all bands is read, or"):
        decode_opened(Image.fromarray(noise(3)), form)


def test_numbers_of_a_palette_and_of_four_bits_are_no_bands() -> None:
    tifffile = needs_tifffile()
    grey, form = noise(1, SIDE, SIDE)[..., 0], ImageForm(SIDE, channels=1, bands=(1,))
    palette, file = io.BytesIO(), io.BytesIO()
    Image.fromarray(grey).convert("P").save(palette, "TIFF")
    with pytest.raises(BadImage, match=r"^a TIFF with a palette; bands are of 8 bits, or of more, without a palette$"):
        decode(palette.getvalue(), form)
    tifffile.imwrite(file, grey, photometric="minisblack")
    np.testing.assert_array_equal(decode(file.getvalue(), form).pixels[..., 0], grey)
    eight, four = (struct.pack("<HHII", 258, 3, 1, bits) for bits in (8, 4))  # BitsPerSample
    assert file.getvalue().count(eight) == 1
    with pytest.raises(BadImage, match=r"^a TIFF of 4 bits; bands are of 8 bits, or of more, without a palette$"):
        decode(file.getvalue().replace(eight, four), form)


def test_three_chosen_bands_that_are_the_same_are_grey() -> None:
    assert decode(noise(5), ImageForm(SIDE, bands=(2, 2, 2))).grey
    assert not decode(noise(5), ImageForm(SIDE, bands=(2, 2, 3))).grey


def test_without_tifffile_a_tiff_of_bands_is_refused_with_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfed_ssl.data.decoding.bands.TIFFFILE_HERE", False)
    with pytest.raises(BadImage, match=r"^a TIFF, whose bands are read with pip install 'rayfed-ssl\[tiff\]'$"):
        decode(banded(5, 8, 1, 0), ImageForm(8, channels=5))


def test_a_damaged_tiff_is_refused_in_a_line_and_says_nothing_else() -> None:
    needs_tifffile()
    payload = banded(5, 8, 1, 0)
    code = (
        "import sys; from rayfed_ssl.data.decoding.decode import *\n"
        "try: decode(sys.stdin.buffer.read(), ImageForm(8, channels=5))\n"
        "except BadImage: print('refused')"
    )
    for broken in (payload[:-100], payload[:20], payload.replace(b"\x01\x03", b"\xff\xff")[:60]):
        done = subprocess.run([sys.executable, "-c", code], input=broken, capture_output=True, check=True, timeout=120)
        assert (done.stdout, done.stderr) == (b"refused\n", b"")
    assert logging.getLogger("tifffile").handlers


def test_a_png_of_16_bits_with_transparency_is_refused_where_pillow_would_take_its_high_ones() -> None:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header, rows = struct.pack(">IIBBBBB", 2, 2, 16, 6, 0, 0, 0), (b"\0" + b"\x12\x34" * 8) * 2
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    with pytest.raises(
        BadImage, match=r"^16 bits per channel, which are not read of bands here; allowed: arrays, TIFF$"
    ):
        decode(head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""), ImageForm(8, channels=4))
