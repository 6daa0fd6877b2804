"""The transform against torchvision, Pillow and numpy, and against what an evaluation sees."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.augment import clean
from rayfed_ssl.data.decoding.decode import decode
from rayfed_ssl.data.decoding.form import ImageForm
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.recipes import PRESETS
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.models.transform import Transform

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
TRANSFORM = Transform(16, 3, MEAN, STD)
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 24, 20, 3), np.uint8)


def test_equals_torchvisions_resize_scale_normalise() -> None:
    theirs = v2.Compose([v2.Resize(16), v2.PILToTensor(), v2.ToDtype(torch.float32, True), v2.Normalize(MEAN, STD)])
    image = Image.fromarray(PIXELS[0, :20])  # square: Pillow's filter reads beyond the edges of a crop, theirs does not
    torch.testing.assert_close(TRANSFORM(image), theirs(image), rtol=0, atol=1e-6)


def test_an_array_a_pillow_image_a_file_and_its_bytes_give_the_same_bits(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(PIXELS[0]).save(file)
    first = TRANSFORM(PIXELS[0])
    assert first.shape == (3, 16, 16)
    assert first.dtype == torch.float32
    for image in (Image.fromarray(PIXELS[0]), Image.open(file), file, str(file), file.read_bytes()):
        assert torch.equal(TRANSFORM(image), first)
    many = TRANSFORM([PIXELS[0], file, Image.fromarray(PIXELS[2])])
    assert many.shape == (3, 3, 16, 16)
    assert torch.equal(many[1], first)
    assert torch.equal(TRANSFORM(PIXELS), TRANSFORM(list(PIXELS)))
    assert TRANSFORM([]).shape == (0, 3, 16, 16)


def test_the_bits_are_those_of_an_evaluation() -> None:
    recipe = PRESETS["fedsc"]
    squares = np.stack([decode(image, ImageForm(16)).pixels for image in PIXELS])
    expected = clean(torch.from_numpy(squares).permute(0, 3, 1, 2), recipe)
    assert torch.equal(Transform(16, 3, recipe.mean, recipe.std)(PIXELS), expected)


def test_grey_encoders_take_the_mean_of_the_normalisation() -> None:
    grey = Transform(24, 1, MEAN, STD)
    image = PIXELS[0, :, :20, 0]
    square = np.asarray(Image.fromarray(image).resize((24, 24), Image.Resampling.BILINEAR, box=(0, 2, 20, 22)))
    expected = (square / 255 - 0.5) / 0.25
    assert grey(image).shape == (1, 24, 24)
    np.testing.assert_allclose(grey(image)[0], expected, rtol=0, atol=1e-6)
    assert grey.normalisation == (pytest.approx((0.5,)), pytest.approx((0.25,)))
    colour = np.repeat(image[..., None], 3, axis=2)
    assert torch.equal(TRANSFORM(image), TRANSFORM(colour))  # grey images become RGB where the run had RGB


def test_an_image_with_a_palette_or_transparency_is_what_it_looks_like() -> None:
    palette = Image.fromarray(PIXELS[0]).quantize(16)
    assert torch.equal(TRANSFORM(palette), TRANSFORM(palette.convert("RGB")))
    opaque = Image.fromarray(PIXELS[0])
    opaque.putalpha(255)
    assert torch.equal(TRANSFORM(opaque), TRANSFORM(PIXELS[0]))


def test_deep_images_are_scaled_by_their_range() -> None:
    deep = np.linspace(0, 4095, 16 * 16).reshape(16, 16).astype(np.uint16)
    own = Transform(16, 1, (0, 0, 0), (1, 1, 1))
    window = Transform(16, 1, (0, 0, 0), (1, 1, 1), range=(0, 8190))
    assert own(deep).max() == 1
    assert window(Image.fromarray(deep)).max() == pytest.approx(128 / 255)


def test_an_opened_image_is_left_as_it_was() -> None:
    file = io.BytesIO()
    Image.fromarray(PIXELS[0]).resize((400, 400)).save(file, "JPEG")
    image = Image.open(file)
    TRANSFORM(image)
    assert image.size == (400, 400)
    assert np.asarray(image).shape == (400, 400, 3)


@pytest.mark.parametrize(
    ("images", "line"),
    [
        ([PIXELS[0], b"no image"], r"^image 1: cannot be decoded \(its content is no image"),
        ([np.zeros((4, 4, 5), np.uint8)], r"^image 0: found an array of uint8"),
        (Path("absent.png"), r"^image 0 \(absent\.png\): cannot be decoded \(it cannot be read: No such file"),
        (np.zeros((9000, 9000), np.uint8), r"^image 0: cannot be decoded \(9000x9000 pixels, more than"),
    ],
)
def test_what_is_no_image_is_refused_in_a_line(images: object, line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        TRANSFORM(images)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_a_description_names_the_transform() -> None:
    description = {"image_size": 16, "channels": 3, "input": {"mean": list(MEAN), "std": list(STD)}}
    assert Transform.described(description) == TRANSFORM
    assert Transform.described(description, range=(0, 1)).range == (0, 1)
    for key in description:
        if key != "channels":
            with pytest.raises(UserError, match="encoder description: found no image_size with input"):
                Transform.described({name: value for name, value in description.items() if name != key})


def test_a_description_of_fit_and_range_holds_against_what_is_given() -> None:
    said = {"mean": list(MEAN), "std": list(STD), "fit": "pad", "range_of_deep_images": [0, 4095]}
    description = {"image_size": 16, "channels": 3, "input": said}
    found = Transform.described(description)
    assert (found.fit, found.range) == ("pad", (0, 4095))
    assert Transform.described(description, fit="pad", range=(0.0, 4095.0)) == found
    with pytest.raises(UserError, match=r"^encoder: found fit crop; .* with pad, .*; allowed: pad$"):
        Transform.described(description, fit="crop")
    with pytest.raises(UserError, match=r"^encoder: found range null; .* with \[0, 4095\]"):
        Transform.described(description, range=None)
    for wrong in ({"fit": "round"}, {"range_of_deep_images": [1, 1]}, {"range_of_deep_images": "12 bit"}):
        with pytest.raises(UserError, match=r"^encoder description: found input\."):
            Transform.described({**description, "input": {**said, **wrong}})


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"image 0: found an array of uint8 \(3, 8, 8\); .* channels come last"),
        (np.zeros((5, 8, 9), np.uint8), r"several grey images: a list of them, or \(B, H, W, 1\)"),
        (np.zeros((2, 8, 8, 3), np.float32), r"found an array of float32 \(8, 8, 3\); .*\(255 \* image\)"),
        (np.zeros((8, 8), np.int64), r"found an array of int64 \(8, 8\); .* image\.astype\('uint8'\)"),
        (np.zeros(5, np.uint8), r"found an array of uint8 \(5,\)"),
        (np.zeros((0, 4), np.uint8), r"found an array of uint8 \(0, 4\)"),
        (torch.zeros(3, 8, 8), "images: found Tensor; must be one image or a list of them"),
        ([np.zeros((8, 8), np.uint8), torch.zeros(3, 8, 8)], "image 1: found Tensor; must be a Pillow image"),
        (None, "images: found NoneType"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_images_are_one_line_with_what_is_meant(given: object, line: str) -> None:
    transform = Transform(8, 3, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    with pytest.raises(UserError, match=line) as caught:
        transform(given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert transform(np.zeros((8, 8), np.uint8)).shape == (3, 8, 8)
    assert transform(np.arange(64, dtype=">u2").reshape(8, 8)).shape == (3, 8, 8)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "uint16", ">u2", "int16", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize("channels", [(), (1,), (3,)])
@pytest.mark.parametrize("given", [None, (0, 90)])
def test_an_array_that_a_run_reads_has_the_bits_that_the_run_saw(
    dtype: str, channels: tuple[int, ...], given: tuple[float, float] | None, tmp_path: Path
) -> None:
    """Whatever ``data.name: arrays`` takes, the encoder of such a run takes, too."""
    drawn = np.random.default_rng(0).random((12, 9, 10, *channels))
    images = drawn > 0.5 if dtype == "bool" else (100 * drawn).astype(dtype)
    np.savez(tmp_path / "x.npz", train_images=images, train_labels=np.arange(12) % 2)
    config = SourceConfig(name="arrays", path=tmp_path / "x.npz", image_size=8, range=given)
    transform = Transform(8, 3, MEAN, STD, given)
    if given is None and channels == (3,) and dtype not in ("uint8", "bool"):
        with pytest.raises(UserError, match=r"data\.range"):
            load(config, tmp_path)
        with pytest.raises(UserError, match=r"\(H, W, 3\) where the encoder's run has data\.range"):
            transform(images)
        return
    found = load(config, tmp_path, range_may_be_unused=True)
    known = {square.tobytes() for part in (found.train, found.test) for square in np.asarray(part.pixels)}
    assert len(known) == len(images)
    assert {square.tobytes() for square in transform.pixels(list(images))} == known
