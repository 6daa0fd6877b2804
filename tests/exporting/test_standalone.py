"""What the exported encoder's own file makes of an image file is what a run makes of it, of any depth."""

from __future__ import annotations

import io
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, TiffImagePlugin

from rayfed_ssl.data.decoding.decode import decode, decode_opened
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.decoding.squares import Background, Fit
from rayfed_ssl.exporting import standalone
from tests.data.encoded import grey_png

RAMP = np.arange(40 * 30, dtype=np.uint16).reshape(40, 30)


def file_of(pixels: np.ndarray, kind: str = "PNG", mode: str | None = None, **options: object) -> bytes:
    file, image = io.BytesIO(), Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(file, kind, **options)
    return file.getvalue()


def white_is_zero() -> bytes:
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[262] = 0
    return file_of(RAMP, "TIFF", tiffinfo=tags)


def turned(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[ExifTags.Base.Orientation] = orientation
    return found


def glassy(mode: str, kind: str) -> bytes:
    """Noise under a ramp of transparency, or, of a palette, with some colours that cannot be seen."""
    pixels = np.random.default_rng(1).integers(1, 256, (40, 30, 4), np.uint8)
    pixels[..., 3] = RAMP % 256
    image = Image.fromarray(pixels).convert(mode)
    options = {"transparency": bytes(range(256))} if mode == "P" else {"lossless": True} if kind == "WEBP" else {}
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def one_grey_clear(bits: int) -> bytes:
    """A grey PNG of which one value is transparent."""
    values = RAMP.astype(np.int64) // 7 * 7 % 2**bits
    return grey_png(values, bits, clear=int(values[20, 15]))


FILES = {
    "16-bit PNG": file_of(7 * RAMP + 100),
    "16-bit TIFF": file_of(5 * RAMP, "TIFF"),
    "white is zero": white_is_zero(),
    "float TIFF": file_of(np.linspace(-900, 4000, 1200, dtype=np.float32).reshape(40, 30), "TIFF"),
    "8-bit grey": file_of((RAMP % 256).astype(np.uint8)),
    "RGBA": file_of((RAMP % 256).astype(np.uint8), "PNG", "RGBA"),
    "transparent RGBA": glassy("RGBA", "PNG"),
    "transparent WebP": glassy("RGBA", "WEBP"),
    "transparent TIFF": glassy("RGBA", "TIFF"),
    "transparent grey": glassy("LA", "PNG"),
    "transparent palette": glassy("P", "PNG"),
    "one transparent grey of 16 bits": one_grey_clear(16),
    "one transparent grey of 4 bits": one_grey_clear(4),
    "palette": file_of((RAMP % 256).astype(np.uint8), "PNG", "P"),
    "turned JPEG": file_of((RAMP % 256).astype(np.uint8), "JPEG", exif=turned(6)),
    "turned 16-bit PNG": file_of(7 * RAMP, exif=turned(5)),
    "JPEG": file_of((RAMP % 256).astype(np.uint8), "JPEG"),
}


def folder(tmp_path: Path, channels: int, value_range: list[float] | None) -> Path:
    config = {"image_size": 30, "channels": channels, "input": {"range_of_deep_images": value_range}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("value_range", [None, [0, 3000]])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", list(FILES))
def test_every_depth_is_what_a_run_makes_of_it(
    tmp_path: Path, name: str, channels: int, value_range: list[float] | None
) -> None:
    form = ImageForm(30, channels=channels, range=None if value_range is None else (value_range[0], value_range[1]))
    found = standalone.square(Image.open(io.BytesIO(FILES[name])), folder(tmp_path, channels, value_range))
    expected = decode(FILES[name], form).pixels
    assert len(np.unique(expected)) > 10
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("background", ["white", "grey"])
@pytest.mark.parametrize("name", [name for name in FILES if "transparent" in name])
def test_every_background_is_as_in_the_run(tmp_path: Path, name: str, background: Background) -> None:
    place = folder(tmp_path, 3, None)
    config = json.loads((place / "config.json").read_text())
    config["input"]["background"] = background
    (place / "config.json").write_text(json.dumps(config))
    expected = decode(FILES[name], ImageForm(30, background=background)).pixels
    found = standalone.square(Image.open(io.BytesIO(FILES[name])), place)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(40, 30), (31, 300), (30, 31), (2, 900), (30, 30)])
def test_every_fit_is_as_in_the_run(tmp_path: Path, shape: tuple[int, int], channels: int, fit: Fit) -> None:
    pixels = np.random.default_rng(0).integers(1, 256, (*shape, 3), np.uint8)
    place = folder(tmp_path, channels, None)
    config = json.loads((place / "config.json").read_text())
    config["input"]["fit"] = fit
    (place / "config.json").write_text(json.dumps(config))
    expected = decode(file_of(pixels), ImageForm(30, channels=channels, fit=fit)).pixels
    found = standalone.square(Image.open(io.BytesIO(file_of(pixels))), place)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("value_range", [[0, 3000], [[0, 3000], [5, 9], [-100, 50], [1000, 1001], [0, 1]]])
@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "float32"])
def test_bands_are_as_in_the_run(tmp_path: Path, kind: str, fit: Fit, value_range: list) -> None:
    values = np.random.default_rng(0).integers(0, 256 if kind == "uint8" else 3500, (40, 31, 5)).astype(kind)
    place = folder(tmp_path, 5, value_range)
    config = json.loads((place / "config.json").read_text())
    config["input"]["fit"] = fit
    (place / "config.json").write_text(json.dumps(config))
    pairs = tuple(tuple(part) if isinstance(part, list) else part for part in value_range)
    expected = decode(values, ImageForm(30, channels=5, range=pairs, fit=fit)).pixels
    np.testing.assert_array_equal(standalone.square(values, place).numpy(), expected)


def of_input(place: Path, **input: object) -> Path:
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "input": {**config["input"], **input}}))
    return place


def test_arrays_whose_bands_come_first_are_refused(tmp_path: Path) -> None:
    place = of_input(folder(tmp_path, 3, None), bands=[4, 3, 2])
    values = np.random.default_rng(0).integers(0, 256, (13, 30, 30), np.uint8)
    for first in (values, values[:, :20], np.concatenate([values] * 3)):
        with pytest.raises(ValueError, match=r"^an array \(\d+, \d0, 30\), .*; channels come last, \(H, W, C\)$"):
            standalone.square(first, place)
        with pytest.raises(ValueError, match="channels come last"):
            standalone.square(torch.from_numpy(first), place)
    np.testing.assert_array_equal(
        standalone.square(values.transpose(1, 2, 0), place), values[[3, 2, 1]].transpose(1, 2, 0)
    )


def test_the_callers_array_stays_as_it_is(tmp_path: Path) -> None:
    place = of_input(folder(tmp_path, 2, [-1, 1]), nodata=-9999)
    values = np.linspace(0, 1, 30 * 30 * 2).reshape(30, 30, 2)
    values[0, 0] = -9999
    before = values.copy()
    first = standalone.square(values, place)
    np.testing.assert_array_equal(values, before)
    np.testing.assert_array_equal(standalone.square(values, place), first)


def test_what_is_no_array_of_the_bands_is_refused(tmp_path: Path) -> None:
    place, values = folder(tmp_path, 5, None), np.zeros((30, 30, 5), np.uint16)
    for image in ("a.png", Image.new("RGB", (30, 30))):
        with pytest.raises(ValueError, match=r"^a file or a Pillow image; the encoder takes an array \(H, W, 5\)$"):
            standalone.square(image, place)
    with pytest.raises(ValueError, match=r"^an array \(30, 30, 4\); the encoder takes"):
        standalone.square(values[..., :4], place)
    with pytest.raises(
        ValueError, match=r"^bands of torch\.uint16, and the encoder's run had none of more than 8 bits$"
    ):
        standalone.square(values, place)
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        standalone.square(np.full((30, 30, 5), np.nan), folder(tmp_path, 5, [0, 1]))


@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation_is_turned_as_a_run_turns_it(tmp_path: Path, orientation: int) -> None:
    exif = turned(orientation)
    exif[ExifTags.Base.Make] = "somebody"
    file = file_of(np.random.default_rng(0).integers(0, 256, (40, 30), np.uint8), exif=exif)
    found = standalone.square(Image.open(io.BytesIO(file)), folder(tmp_path, 1, None))
    np.testing.assert_array_equal(found.numpy(), decode(file, ImageForm(30, channels=1)).pixels)


def test_grey_with_an_alpha_channel_that_is_multiplied_in_is_as_in_the_run(tmp_path: Path) -> None:
    image = Image.open(io.BytesIO(FILES["transparent grey"])).convert("La")
    expected = decode_opened(image, ImageForm(30, channels=1)).pixels
    np.testing.assert_array_equal(standalone.square(image, folder(tmp_path, 1, None)).numpy(), expected)


def test_what_is_no_number_is_refused_and_one_value_alone_is_as_in_the_run(tmp_path: Path) -> None:
    place = folder(tmp_path, 3, None)
    with pytest.raises(ValueError, match="mode F that holds NaN"):
        standalone.square(Image.open(io.BytesIO(file_of(np.full((30, 30), np.nan, np.float32), "TIFF"))), place)
    blank = file_of(np.full((30, 30), 700, np.uint16), "TIFF")
    found = standalone.square(Image.open(io.BytesIO(blank)), place)
    np.testing.assert_array_equal(found.numpy(), decode(blank, ImageForm(30)).pixels)
    assert not found.any()


def test_colours_of_16_bits_are_refused_but_for_the_full_range(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + (np.arange(30 * 3, dtype=">u2") * 700).tobytes() for _ in range(30))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    head = (30).to_bytes(4, "big") * 2 + bytes([16, 2, 0, 0, 0])
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    with pytest.raises(ValueError, match="16 bits per channel"):
        standalone.square(Image.open(io.BytesIO(png)), folder(tmp_path, 3, None))
    found = standalone.square(Image.open(io.BytesIO(png)), folder(tmp_path, 3, [0, 65535]))
    np.testing.assert_array_equal(found.numpy(), decode(png, ImageForm(30, range=(0.0, 65535.0))).pixels)


def netpbm(kind: str, highest: int) -> bytes:
    """A ramp of 30 x 30 values up to the highest, which is white, in PGM (P5) or PPM (P6); or of floats (Pf)."""
    if kind == "Pf":
        return b"Pf\n30 30\n-1.0\n" + np.linspace(0, highest, 30 * 30).astype("<f4").tobytes()
    values = np.linspace(0, highest, 30 * 30 * (3 if kind == "P6" else 1)).astype(">u2" if highest > 255 else np.uint8)
    return f"{kind} 30 30 {highest}\n".encode() + values.tobytes()


def jpeg2000(bits: int, bands: int) -> bytes:
    imagecodecs = pytest.importorskip("imagecodecs", reason="writes JPEG 2000 (extra tiff)")
    values = np.linspace(0, 2**bits - 1, 30 * 30 * bands).astype(np.uint16).reshape(30, 30, bands).squeeze()
    encoded = imagecodecs.jpeg2k_encode(values, level=0, bitspersample=bits, reversible=True, codecformat="jp2")
    return bytes(encoded)


@pytest.mark.parametrize(
    ("kind", "highest", "value_range", "read"),
    [
        ("P5", 255, None, True), ("P5", 1000, None, True), ("P5", 1000, [0, 1000], False),
        ("P5", 65535, [0, 9000], True), ("Pf", 1, None, True), ("Pf", 1, [0, 0.5], True),
        ("P6", 255, [0, 9], True), ("P6", 1000, None, True),
        ("P6", 1000, [0, 500], False), ("P6", 65535, [0, 500], False), ("grey JPEG 2000", 4095, None, True),
        ("grey JPEG 2000", 4095, [0, 4095], False), ("grey JPEG 2000", 65535, [0, 9000], True),
        ("JPEG 2000", 4095, [0, 4095], False), ("JPEG 2000", 65535, [0, 65535], False),
    ],
)  # fmt: skip
def test_what_pillow_spreads_over_other_bits_is_refused_where_a_range_would_scale_it(
    tmp_path: Path, kind: str, highest: int, value_range: list[float] | None, read: bool
) -> None:
    grey = kind in ("P5", "Pf", "grey JPEG 2000")
    payload = netpbm(kind, highest) if kind in ("P5", "P6", "Pf") else jpeg2000(highest.bit_length(), 1 if grey else 3)
    place = folder(tmp_path, 1 if grey else 3, value_range)
    if not read:
        with pytest.raises(ValueError, match="of more than 8 bits"):
            standalone.square(Image.open(io.BytesIO(payload)), place)
        return
    span = None if value_range is None else (float(value_range[0]), float(value_range[1]))
    expected = decode(payload, ImageForm(30, channels=1 if grey else 3, range=span)).pixels
    found = standalone.square(Image.open(io.BytesIO(payload)), place).numpy()
    assert np.abs(found.astype(int) - expected).max() <= 1  # Pillow spreads over whole numbers
    assert found.max() > 250


@pytest.mark.parametrize("channels", [1, 3])
def test_a_large_jpeg_is_read_at_the_scale_of_the_run(tmp_path: Path, channels: int) -> None:
    """Noise of single pixels: a decoder that halves it does not give what a filter over all of it gives."""
    path, place = tmp_path / "photo.jpg", folder(tmp_path, channels, None)
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    path.write_bytes(file_of(noise, "JPEG", exif=turned(6)))
    expected = decode(path, ImageForm(30, channels=channels)).pixels
    for given in (path, str(path), Image.open(path)):
        np.testing.assert_array_equal(standalone.square(given, place).numpy(), expected)
    opened = Image.open(path)
    np.testing.assert_array_equal(decode_opened(opened, ImageForm(30, channels=channels)).pixels, expected)
    assert (opened.size, standalone.square(opened, place).shape) == ((400, 300), (30, 30, channels))
    in_full = standalone.square(Image.open(io.BytesIO(path.read_bytes())), place).numpy()
    assert np.abs(in_full.astype(int) - expected).max() > 2
