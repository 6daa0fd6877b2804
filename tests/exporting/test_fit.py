"""A run of padded or stretched images: whatever looks at images afterwards makes the same squares of them."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image, ImageOps

import rayfed_ssl
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.exporting.embed import embed
from rayfed_ssl.exporting.encoders import run_encoder
from rayfed_ssl.exporting.folder import export
from rayfed_ssl.models.transform import Transform
from rayfed_ssl.settings.data_argument import parse_data_argument
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.tiny import run_locally, tiny

SIDE = 16
BILINEAR = Image.Resampling.BILINEAR


@pytest.fixture(scope="module", params=["pad", "stretch"])
def strips(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """(fit, strips of 12 x 60 pixels in class folders, a run on them)."""
    root, rng = tmp_path_factory.mktemp("strips") / "d", np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for label in ("a", "b"):
            (root / split / label).mkdir(parents=True)
            for row in range(count):
                pixels = rng.integers(0, 256, (12, 60, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / label / f"{row}.png")
    run = root.parent / "run"
    data = {"name": "imagefolder", "path": str(root), "image_size": SIDE, "fit": request.param}
    run_locally(tiny("fedsimclr", data=data, train__rounds=1, train__batch_size=4), run)
    return request.param, root, run


def squares(fit: str, files: list[Path]) -> np.ndarray:
    """As Pillow makes them."""
    images = [Image.open(file) for file in files]
    made = [
        ImageOps.pad(image, (SIDE, SIDE), BILINEAR) if fit == "pad" else image.resize((SIDE, SIDE), BILINEAR)
        for image in images
    ]
    return np.stack([np.asarray(image) for image in made])


def test_the_runs_transform_makes_the_runs_squares(strips: tuple[str, Path, Path]) -> None:
    fit, root, run = strips
    files = sorted(root.rglob("*.png"))
    expected = squares(fit, files)
    for transform in (run_encoder(run).transform, rayfed_ssl.load(run).encoder().transform):
        assert np.array_equal(transform.pixels(files), expected)
        assert np.array_equal(transform.pixels([Image.open(file) for file in files]), expected)


def test_a_table_of_embeddings_is_of_those_squares_wherever_images_lie(
    strips: tuple[str, Path, Path], tmp_path: Path
) -> None:
    fit, root, run = strips
    encoder = run_encoder(run)
    shutil.copytree(root, tmp_path / "moved")
    files = [root / "train" / "a" / "0.png", root / "test" / "b" / "3.png"]
    with torch.inference_mode():
        expected = encoder.module(encoder.transform.normalised(squares(fit, files))).numpy()
    for data in (str(root), str(tmp_path / "moved"), f"{{name: imagefolder, path: '{tmp_path / 'moved'}'}}"):
        embed(encoder, data, tmp_path / "x.parquet", overwrite=True)
        rows = pq.read_table(tmp_path / "x.parquet").to_pydict()
        found = [rows["embedding"][rows["id"].index(file.relative_to(root).as_posix())] for file in files]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    said = json.loads(pq.read_schema(tmp_path / "x.parquet").metadata[b"rayfed_ssl"])
    assert (said["fit"], said["range_of_deep_images"]) == (fit, None)


@pytest.mark.parametrize(("key", "found"), [("fit", "crop"), ("image_size", 32), ("channels", 1)])
def test_a_block_that_asks_for_other_squares_than_the_runs_is_refused(
    strips: tuple[str, Path, Path], tmp_path: Path, key: str, found: object
) -> None:
    fit, root, run = strips
    allowed = {"fit": fit, "image_size": SIDE, "channels": 3}[key]
    line = rf"^data\.{key}: found {found}; the encoder's run has {allowed}, .*; allowed: {allowed}, or nothing$"
    with pytest.raises(UserError, match=line):
        embed(run_encoder(run), f"{{name: imagefolder, path: '{root}', {key}: {found}}}", tmp_path / "y.parquet")
    assert not (tmp_path / "y.parquet").exists()


def test_the_json_beside_an_encoder_makes_those_squares_alone(strips: tuple[str, Path, Path]) -> None:
    fit, root, run = strips
    description = json.loads((run / "encoder" / "global.json").read_text())
    assert description["image_size"] == SIDE
    assert {key: description["input"][key] for key in ("fit", "range_of_deep_images", "deep_images")} == {
        "fit": fit,
        "range_of_deep_images": None,
        "deep_images": False,
    }
    files = sorted(root.rglob("*.png"))
    assert np.array_equal(Transform.described(description).pixels(files), squares(fit, files))


def test_a_configuration_that_says_otherwise_than_the_json_is_refused(
    strips: tuple[str, Path, Path], tmp_path: Path
) -> None:
    fit, _, run = strips
    shutil.copytree(run, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(f"fit: {fit}", "fit: crop"))
    with pytest.raises(UserError, match=rf"^encoder: found fit crop; its run read its images with {fit}, .*: {fit}$"):
        run_encoder(tmp_path / "run")


def test_other_images_are_evaluated_as_those_squares(strips: tuple[str, Path, Path], tmp_path: Path) -> None:
    """The same images elsewhere are the run's; a block may say another fit."""
    _, root, run = strips
    shutil.copytree(root, tmp_path / "moved")
    own = json.loads((run / "environment.json").read_text())["images"]
    moved = str(tmp_path / "moved")
    found = reevaluate(run, ["knn"], data=parse_data_argument(moved))["other data"][f"imagefolder:{moved}"]
    assert found["images"]["digest"] == own
    assert found["images"]["source"] == {"name": "imagefolder", "path": moved}
    block = f"{{name: imagefolder, path: '{moved}', fit: crop}}"
    other = reevaluate(run, ["knn"], data=parse_data_argument(block))["other data"][f"imagefolder:{moved}"]
    assert other["images"]["digest"] != own
    assert other["images"]["source"] == {"name": "imagefolder", "path": moved, "fit": "crop"}


@pytest.mark.long
def test_an_exported_folder_says_and_makes_those_squares(strips: tuple[str, Path, Path], tmp_path: Path) -> None:
    fit, root, run = strips
    place = export(run_encoder(run), "hub-folder", tmp_path / "x").folder
    description = json.loads((place / "config.json").read_text())
    assert description["input"]["fit"] == fit
    assert "central" not in description["input"]["resize"]
    card = (place / "README.md").read_text().partition("On other images")[0]  # which another test looked at
    assert "central square" not in card
    spec = importlib.util.spec_from_file_location(f"exported_{fit}", place / "encoder.py")
    assert spec is not None
    assert spec.loader is not None
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    files = sorted(root.rglob("*.png"))
    expected = squares(fit, files)
    assert np.array_equal(np.stack([loader.square(file) for file in files]), expected)
    assert np.array_equal(Transform.described(description).pixels(files), expected)
    words = place / "preprocessor_config.json"
    assert words.exists() is (fit == "stretch")
    if fit == "stretch":
        said = json.loads(words.read_text())
        assert (said["size"], said["do_center_crop"]) == ({"height": SIDE, "width": SIDE}, False)


@pytest.mark.parametrize("given", [None, [100, 3000]])
def test_images_of_many_bits_are_scaled_as_the_run_scaled_them(tmp_path: Path, given: list[int] | None) -> None:
    root, rng = tmp_path / "d", np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for label in ("a", "b"):
            (root / split / label).mkdir(parents=True)
            for row in range(count):
                deep = rng.integers(0, 4096, (SIDE, SIDE), dtype=np.uint16)
                Image.fromarray(deep).save(root / split / label / f"{row}.png")
    data = {"name": "imagefolder", "path": str(root), "image_size": SIDE, "range": given}
    run_locally(tiny("fedsimclr", data=data, train__rounds=1, train__batch_size=4), tmp_path / "run")
    encoder = run_encoder(tmp_path / "run")
    description = json.loads((tmp_path / "run" / "encoder" / "global.json").read_text())
    assert description["input"]["range_of_deep_images"] == given
    assert description["input"]["deep_images"]
    first = np.asarray(Image.open(root / "train" / "a" / "0.png")).astype(float)
    low, high = given or (first.min(), first.max())
    grey = np.rint((first.clip(low, high) - low) * 255 / (high - low)).astype(np.uint8)
    made = Transform.described(description).pixels([root / "train" / "a" / "0.png"])[0]
    assert np.array_equal(made, np.repeat(grey[..., None], 3, axis=2))
    block = f"{{name: imagefolder, path: '{root}', range: [0, 65535]}}"
    with pytest.raises(UserError, match=r"^data\.range: found \[0\.0, 65535\.0\]; the encoder's run has (null|\[100)"):
        embed(encoder, block, tmp_path / "x.parquet")
