"""A run on images of five bands whose class lies in the last one alone, and all that is made of it afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import rayfed_ssl
from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.recipes import HALF
from rayfed_ssl.exporting import standalone
from rayfed_ssl.exporting.embed import embed
from rayfed_ssl.exporting.encoders import RunEncoder, run_encoder
from rayfed_ssl.exporting.folder import export
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.models.heads import StartConfig
from rayfed_ssl.models.transform import Transform
from rayfed_ssl.report.maps import shown_bands, thumbnail
from rayfed_ssl.report.run import report
from rayfed_ssl.simulation.checks import image_notes
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.exporting.stripes import SIDE, config_of, striped
from tests.tiny import run_locally

LEFT_OUT = (
    "views are made without saturation, hue, grey: images of 5 bands have no colours (augment.jitter, augment.gray_p)"
)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, (images, labels) = tmp_path_factory.mktemp("bands") / "a.npz", striped()
    np.savez(path, images=images, labels=labels)
    return path


@pytest.fixture(scope="module")
def run(arrays: Path) -> Path:
    run_locally(config_of(arrays, channels=5), arrays.parent / "run")
    return arrays.parent / "run"


@pytest.fixture(scope="module")
def encoder(run: Path) -> RunEncoder:
    return run_encoder(run)


@pytest.fixture(scope="module")
def expected(encoder: RunEncoder) -> np.ndarray:
    """(N, D) of all images, whose squares NumPy makes by the percentiles of the training images."""
    images, _ = striped()
    low, high = np.array(encoder.transform.range, np.float64).T
    squares = np.rint((images.clip(low, high) - low) * (255 / (high - low))).astype(np.uint8)
    recipe = encoder.config.augment.recipe()
    mean, std = (sum(values) / 3 for values in (recipe.mean, recipe.std))
    with torch.inference_mode():
        tensor = torch.from_numpy(((squares.transpose(0, 3, 1, 2) / 255 - mean) / std).astype(np.float32))
        return encoder.module(tensor).numpy()


def accuracies(run: Path) -> dict[str, float]:
    return dict(json.loads((run / "summary.json").read_text())["accuracy"])


@pytest.mark.long
def test_the_class_is_learned_from_the_band_that_has_it_and_not_from_the_first_three(run: Path, arrays: Path) -> None:
    images, labels = striped()
    np.savez(arrays.parent / "rgb.npz", images=images[..., :3], labels=labels)
    run_locally(config_of(arrays.parent / "rgb.npz"), arrays.parent / "rgb")
    assert min(accuracies(run).values()) > 0.8  # of four classes
    assert max(accuracies(arrays.parent / "rgb").values()) < 0.5


def test_the_run_says_what_views_leave_out_and_which_range_each_band_has(run: Path, encoder: RunEncoder) -> None:
    notes = texts(image_notes(encoder.config, load_federation(encoder.config)))
    assert LEFT_OUT in notes
    augment = encoder.config.augment.model_copy(update={"jitter": (0.4, 0.4, 0.0, 0.0), "gray_p": 0.0})
    plain = encoder.config.model_copy(update={"augment": augment})
    assert not [note for note in texts(image_notes(plain, load_federation(plain))) if "views" in note]
    assert encoder.transform.range is not None
    described = json.loads((run / "encoder/global.json").read_text())
    assert (described["channels"], described["input"]["range_of_deep_images"]) == (
        5, [list(part) for part in encoder.transform.range],
    )  # fmt: skip
    last_low, last_high = described["input"]["range_of_deep_images"][4]
    assert 15 < last_low < last_high < 75


def test_tables_exports_and_the_api_give_the_features_of_the_same_squares(
    run: Path, encoder: RunEncoder, arrays: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    images, _ = striped()
    embed(encoder, str(arrays), tmp_path / "x.parquet")
    rows = pq.read_table(tmp_path / "x.parquet").to_pydict()
    np.testing.assert_allclose(np.stack(rows["embedding"]), expected, atol=1e-6, rtol=1e-6)
    module = rayfed_ssl.load(run).encoder()
    with torch.no_grad():
        for given in (images[:9], list(images[:9])):
            features = module(module.transform(given)).numpy()
            np.testing.assert_allclose(features, expected[:9], atol=1e-6, rtol=1e-6)
    folder = export(encoder, "hub-folder", tmp_path / "hub").folder
    assert not (folder / "preprocessor_config.json").exists()  # of which transformers has no word for bands
    squares = torch.stack([standalone.square(image, folder) for image in images[:9]])
    with torch.no_grad():
        features = standalone.load(folder)(standalone.normalised(squares, folder)).numpy()
    np.testing.assert_allclose(features, expected[:9], atol=1e-6, rtol=1e-6)
    card = (folder / "README.md").read_text()
    assert "features of images of 5 bands and 16 x 16 px" in card
    assert "torch.zeros(1, 16, 16, 5, dtype=torch.uint8)  # encoder.square(image)[None] of an array (H, W, 5)" in card
    assert "each band\nresized with" in card
    assert "of the bands in their order" in card
    assert "- views are made without saturation, hue, grey: images of 5 bands have no colours." in card
    folder = export(encoder, "torchscript", tmp_path / "script").folder
    with torch.no_grad():
        features = torch.jit.load(folder / "model.pt")(squares).numpy()
    np.testing.assert_allclose(features, expected[:9], atol=1e-6, rtol=1e-6)


@pytest.mark.long
def test_onnx_gives_the_features_of_five_bands(encoder: RunEncoder, expected: np.ndarray, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = export(encoder, "onnx", tmp_path / "onnx").folder
    squares = encoder.transform.pixels(list(striped()[0][:9]))
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (features,) = session.run(["features"], {"images": squares})
    np.testing.assert_allclose(features, expected[:9], atol=2e-6, rtol=1e-6)


def test_other_images_of_five_bands_are_measured_and_others_refused(run: Path, tmp_path: Path) -> None:
    images, labels = striped()
    np.savez(tmp_path / "b.npz", images=images[:160], labels=labels[:160])
    found = reevaluate(run, ["knn"], data=str(tmp_path / "b.npz"))
    (other,) = found["other data"].values()
    assert other["accuracy"]["global"]["knn"] > 0.8
    with pytest.raises(
        UserError, match=r"^--data\.name: found digits, which has no images of 5 bands, as the run's are$"
    ):
        reevaluate(run, ["knn"], data="digits")
    with pytest.raises(
        UserError, match=r"^data\.name: found digits, which has no images of 5 bands, as the run's are$"
    ):
        embed(run_encoder(run), "digits", tmp_path / "x.parquet")
    np.savez(tmp_path / "c.npz", images=images[:9, ..., :3])
    with pytest.raises(UserError, match=r"images with data\.channels=5 are \(N, H, W, 5\) or \(N, 5, H, W\)$"):
        embed(run_encoder(run), str(tmp_path / "c.npz"), tmp_path / "x.parquet")
    np.savez(tmp_path / "d.npz", images=images[:9, ..., :4])
    with pytest.raises(UserError, match=r"^data\.channels: found 4; the encoder's run has 5, and images have their"):
        embed(run_encoder(run), f"{{name: arrays, path: '{tmp_path / 'd.npz'}', channels: 4}}", tmp_path / "x.parquet")


def test_a_report_shows_the_first_three_bands_and_says_so(run: Path) -> None:
    page = report(run).read_text()
    assert "Pictures show the first three of 5 bands as RGB." in page
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 5), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(thumbnail(pixels)), pixels[..., :3])
    np.testing.assert_array_equal(np.asarray(thumbnail(pixels[..., :2])), pixels[..., 0])
    assert shown_bands(2) == " Pictures show the first of 2 bands in grey."
    assert shown_bands(1) == shown_bands(3) == ""


def test_a_transform_takes_arrays_of_its_bands_alone() -> None:
    transform = Transform(SIDE, 5, (0.1, 0.2, 0.3, 0.4, 0.5), HALF, ((0, 9),) * 5)
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 5), dtype=np.uint8)
    own = torch.tensor(transform.mean).view(5, 1, 1)
    torch.testing.assert_close(transform(pixels), (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - own) / 0.5)
    assert transform.normalisation == (transform.mean, (0.5,) * 5)
    for wrong, line in {
        "pixels": (
            pixels[..., :3],
            r"^image 0: found an array of uint8 \(16, 16, 3\); must be an array \(H, W, 5\), as",
        ),
        "first": (pixels.transpose(2, 0, 1), r"; channels come last: image\.transpose\(1, 2, 0\)$"),
        "type": (pixels.astype(np.int64), r"found an array of int64 \(16, 16, 5\)"),
        "Pillow": (Image.new("RGB", (16, 16)), r"^image 0: cannot be decoded \(a Pillow image; of 5 bands an array"),
    }.values():
        with pytest.raises(UserError, match=line):
            transform([wrong])
    with pytest.raises(UserError, match=r"input\.mean and input\.std of 3 numbers, or of one for each channel"):
        Transform.described({"image_size": 16, "channels": 5, "input": {"mean": [0.5] * 4, "std": [1] * 4}})


def test_a_transform_takes_no_array_whose_bands_come_first() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (13, SIDE, SIDE + 1), dtype=np.uint8)
    hint = r"; channels come last: image\.transpose\(1, 2, 0\)$"
    for bands in ((4, 3, 2), (13, 1, 1)):
        transform = Transform(SIDE, 3, HALF, HALF, bands=bands)
        for first in (pixels, pixels[..., :-1], np.concatenate([pixels] * 2)[..., :-1]):
            assert transform(first.transpose(1, 2, 0)).shape == (3, SIDE, SIDE)
            with pytest.raises(UserError, match=r"must be an array \(H, W, C\) of all bands .*" + hint):
                transform(first)
    transform = Transform(SIDE, 3, HALF, HALF, bands=(4, 3, 2))
    for wrong in (pixels[:3], pixels[:3].transpose(1, 2, 0), pixels > 9, (pixels > 9).transpose(1, 2, 0)):
        with pytest.raises(UserError, match=r"or such a file's bytes or path$"):
            transform(wrong)
    with pytest.raises(UserError, match=r"or such a file's bytes or path$"):
        Transform(SIDE, 5, HALF, HALF)(np.zeros((5, SIDE, SIDE), bool))


def test_an_encoder_of_five_bands_starts_no_run_of_three(run: Path, tmp_path: Path) -> None:
    images, labels = striped()
    np.savez(tmp_path / "rgb.npz", images=images[..., :3], labels=labels)
    config = config_of(tmp_path / "rgb.npz")
    started = config.model_copy(update={"model": config.model.model_copy(update={"start": StartConfig(path=run)})})
    with pytest.raises(UserError, match=r"found features\.0\.weight \(\d+, 5, 3, 3\); encoder 'small_cnn_bn' expects"):
        run_locally(started, tmp_path / "run")
