"""HEIC, AVIF and JPEG 2000, where the installed Pillow decodes them, and what is said where it does not."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from rayfed_ssl.base.lazy import LazyModule
from rayfed_ssl.base.notes import texts
from rayfed_ssl.data.decoding import decode as decoding
from rayfed_ssl.data.decoding import formats
from rayfed_ssl.data.decoding.decode import decode
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.images import BadImage
from rayfed_ssl.data.pixels import cache_names
from rayfed_ssl.data.readers import walking
from tests.data.files import fetch, file_of, pictures, png, put, refused, write_parquet

KINDS = [("AVIF", ".avif", "avif"), ("JPEG2000", ".jp2", "jpg_2000"), ("JPEG2000", ".JPX", "jpg_2000")]


def needs(feature: str) -> None:
    if not formats.has_feature(feature):
        pytest.skip(f"this Pillow is built without {feature}")


@pytest.mark.parametrize(("kind", "suffix", "feature"), KINDS)
def test_they_are_read_in_folders_and_in_parquet(tmp_path: Path, kind: str, suffix: str, feature: str) -> None:
    needs(feature)
    images = pictures(4)
    encoded = [file_of(image, kind) for image in images]
    for split in ("train", "test"):
        for number, content in enumerate(encoded):
            path = tmp_path / f"folder/{split}/{number % 2}/{number}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        write_parquet(tmp_path / f"table/{split}.parquet", encoded, [0, 1, 0, 1])
    wanted = {Image.open(io.BytesIO(content)).convert("RGB").tobytes() for content in encoded}
    for name, where in (("imagefolder", "folder"), ("parquet", "table")):
        data = fetch(tmp_path, name, path=tmp_path / where)
        assert {pixels.tobytes() for pixels in data.train.pixels} == wanted
        assert texts(data.notes)[1:] == ()  # the first counts copies
    with pytest.raises(BadImage):
        decode(encoded[0][: len(encoded[0]) // 2], ImageForm(16))


def test_an_animated_avif_and_one_that_is_turned_are_read_like_others() -> None:
    needs("avif")
    file, exif = io.BytesIO(), Image.Exif()
    first = Image.new("RGB", (32, 16), "red")
    first.save(file, "AVIF", save_all=True, append_images=[Image.new("RGB", (32, 16), "blue")])
    decoded = decode(file.getvalue(), ImageForm(16))
    assert decoded.frames
    assert decoded.pixels[..., 0].min() > 200
    file, exif[274] = io.BytesIO(), 6
    first.save(file, "AVIF", exif=exif)  # with several frames, Pillow 13 crashes
    decoded = decode(file.getvalue(), ImageForm(16, fit="pad"))
    assert decoded.pixels[0, 8, 0] > 200  # upright: black is left and right of it
    assert decoded.pixels[8, 0].max() < 50


def twelve_bits(values: np.ndarray, signed: bool = False) -> bytes:
    """A JPEG 2000 of 12 bits, of one of 16 whose samples are as far from the middle; Pillow writes no other depth."""
    file = io.BytesIO()
    Image.fromarray((values + (32768 if signed else 30720)).astype(np.uint16)).save(file, "JPEG2000")
    content = bytearray(file.getvalue())
    for place in (content.index(b"\xff\x4f\xff\x51") + 42, content.index(b"ihdr") + 14):
        content[place] = 11 | (0x80 if signed else 0)
    return bytes(content)


@pytest.mark.parametrize("signed", [False, True])
def test_a_range_is_of_the_values_in_a_jpeg_2000_whatever_its_depth(signed: bool) -> None:
    needs("jpg_2000")
    values = np.arange(4096).reshape(64, 64) - (2048 if signed else 0)
    low, high = (-500, 1500) if signed else (1000, 3000)
    decoded = decode(twelve_bits(values, signed), ImageForm(64, range=(low, high), channels=1))
    assert decoded.high_bit_depth
    assert decoded.clipped == (values.min(), values.max())
    wanted = np.rint((np.clip(values, low, high) - low) / (high - low) * 255)
    assert np.array_equal(decoded.pixels[..., 0], wanted)


def test_colours_of_more_than_eight_bits_need_their_range_said_as_in_png() -> None:
    needs("jpg_2000")
    file = io.BytesIO()
    Image.fromarray(pictures(1)[0]).save(file, "JPEG2000")
    content = bytearray(file.getvalue())
    start = content.index(b"\xff\x4f\xff\x51") + 42
    content[start : start + 9 : 3] = bytes([11] * 3)
    content[content.index(b"ihdr") + 14] = 11
    with pytest.raises(BadImage, match=r"12 bits per channel in mode RGB.*data\.range=\[0,4095\] if they use all"):
        decode(bytes(content), ImageForm(16))
    assert decode(bytes(content), ImageForm(16, range=(0, 4095))).high_bit_depth


@pytest.mark.parametrize(("kind", "suffix", "feature"), KINDS[:2])
def test_where_pillow_lacks_a_decoder_one_line_says_so(tmp_path: Path, monkeypatch, kind, suffix, feature) -> None:
    needs(feature)
    write_parquet(tmp_path / "a.parquet", [file_of(pictures(1)[0], kind)] * 5, [0] * 5)
    put(tmp_path / "folder", {f"a/{n}.png": image for n, image in enumerate(pictures(5))})
    (tmp_path / f"folder/a/x{suffix}").write_bytes(file_of(pictures(1)[0], kind))
    kept = tuple(name for name in formats.FORMATS if name != kind)
    for module in (formats, decoding):
        monkeypatch.setattr(module, "FORMATS", kept)
    monkeypatch.setattr(walking, "SUFFIXES", formats.SUFFIXES - {suffix})
    monkeypatch.setattr(walking, "ABSENT", {kind: {suffix}})
    refused(
        rf"it is {kind}, which the installed Pillow does not decode; convert",
        tmp_path,
        "parquet",
        path=tmp_path / "a.parquet",
    )
    notes = texts(fetch(tmp_path, "imagefolder", path=tmp_path / "folder").notes)
    assert f"1 file is not read: 1 {suffix}; {kind} is not decoded by the installed Pillow" in notes


def heic(image: Image.Image, **options: object) -> bytes:
    """The image as HEIC, by the library that reads it; skips where that is not installed."""
    pytest.importorskip("pillow_heif").register_heif_opener()
    file = io.BytesIO()
    image.save(file, "HEIF", **options)
    return file.getvalue()


def test_heic_is_read_in_folders_and_in_parquet(tmp_path: Path) -> None:
    images = pictures(4)
    encoded = [heic(Image.fromarray(image), quality=-1, chroma=444, matrix_coefficients=0) for image in images]
    for split in ("train", "test"):
        for number, content in enumerate(encoded):
            path = tmp_path / f"folder/{split}/{number % 2}/{number}{('.heic', '.HEIF', '.hif')[number % 3]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        write_parquet(tmp_path / f"table/{split}.parquet", encoded, [0, 1, 0, 1])
    for name, where in (("imagefolder", "folder"), ("parquet", "table")):
        data = fetch(tmp_path, name, path=tmp_path / where)
        assert {pixels.tobytes() for pixels in data.train.pixels} == {image.tobytes() for image in images}  # lossless
        assert texts(data.notes)[1:] == ()  # the first counts copies
    with pytest.raises(BadImage):
        decode(encoded[0][: len(encoded[0]) // 2], ImageForm(16))


def test_a_heic_is_turned_once_and_its_primary_image_is_read_on_the_background() -> None:
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:8] = 255  # white above black
    content = heic(Image.fromarray(pixels), quality=95)
    exif = Image.Exif()
    exif[274] = 3  # tells what was done: the container says how to turn, by a property that this file has not
    for same in (content, heic(Image.fromarray(pixels), quality=95, exif=exif)):
        decoded = decode(same, ImageForm(16, fit="stretch")).pixels
        assert decoded[:6].min() > 200
        assert decoded[-6:].max() < 50
    red, blue = Image.new("RGB", (32, 32), "red"), Image.new("RGB", (32, 32), "blue")
    both = decode(heic(red, save_all=True, append_images=[blue], primary_index=1), ImageForm(16))
    assert not both.frames  # the file says which of them it is
    assert both.pixels[..., 2].min() > 200
    clear = decode(heic(Image.new("RGBA", (32, 32), (255, 0, 0, 0))), ImageForm(16, background="white"))
    assert clear.transparent
    assert clear.pixels.min() > 250


def test_a_heic_of_too_many_pixels_is_refused_before_they_are_read() -> None:
    with pytest.raises(BadImage, match=r"^64x64 pixels, more than max_pixels=4000"):
        decode(heic(Image.new("RGB", (64, 64))), ImageForm(16, max_pixels=4000))


def test_without_its_decoder_heic_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    for module in (formats, walking):
        monkeypatch.setattr(module, "HEIC_HERE", False)
    for module in (walking, formats):
        monkeypatch.setattr(module, "SUFFIXES", formats.SUFFIXES - formats.HEIC)
    with pytest.raises(BadImage, match=r"^it is HEIC, which takes pip install 'rayfed-ssl\[heic\]'; or convert it to"):
        decode(content, ImageForm(16))
    put(tmp_path, {f"a/{n}.png": image for n, image in enumerate(pictures(5))})
    (tmp_path / "a/IMG_1.HEIC").write_bytes(content)
    notes = texts(fetch(tmp_path, "imagefolder").notes)
    assert "1 file is not read: 1 .heic; HEIC takes pip install 'rayfed-ssl[heic]'" in notes


def test_a_decoder_of_heic_that_cannot_be_imported_does_no_harm_to_other_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formats, "HEIC_HERE", True)
    monkeypatch.setattr(formats, "_PILLOW_HEIF", LazyModule("a_decoder_without_its_library"))
    assert decode(png(pictures(1)[0]), ImageForm(16)).pixels.shape == (16, 16, 3)
    with pytest.raises(BadImage, match=r"^its content is no image of a format that is read"):
        decode(b"no image", ImageForm(16))
    with pytest.raises(BadImage, match=r"ModuleNotFoundError: No module named 'a_decoder_without"):
        decode(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", ImageForm(16))


def test_what_was_left_out_for_want_of_heic_is_read_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images in Parquet that were skipped are in the store's cache as left out: it is another one then."""
    write_parquet(tmp_path / "a.parquet", [*map(png, pictures(9)), heic(Image.fromarray(pictures(1)[0]))], [0] * 10)
    options = {"path": tmp_path / "a.parquet", "on_bad_image": "skip"}
    with monkeypatch.context() as patch:
        for module in (formats, cache_names):
            patch.setattr(module, "HEIC_HERE", False)
        before = fetch(tmp_path, "parquet", **options)
    after = fetch(tmp_path, "parquet", **options)
    assert (len(before.train) + len(before.test), len(after.train) + len(after.test)) == (9, 10)


def test_a_pillow_that_knows_no_such_feature_has_none() -> None:
    assert not formats.has_feature("a feature of another Pillow")
    assert features.check("jpg_2000") == ("JPEG2000" in formats.FORMATS)
