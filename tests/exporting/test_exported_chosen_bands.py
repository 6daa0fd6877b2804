"""A run on three of the five bands of its images, as RGB, and all that is made of it afterwards from all five."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import rayfed_ssl
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.exporting import standalone
from rayfed_ssl.exporting.embed import embed
from rayfed_ssl.exporting.encoders import RunEncoder, run_encoder
from rayfed_ssl.exporting.folder import export
from rayfed_ssl.exporting.use import use_of
from rayfed_ssl.models import load_exported
from rayfed_ssl.models.transform import Transform
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.data.encoded import needs_tifffile
from tests.exporting.stripes import SIDE, config_of, striped
from tests.tiny import run_locally

CHOSEN, RANGES = [5, 1, 2], [[0, 100], [1000, 2000], [0, 3000]]


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, (images, labels) = tmp_path_factory.mktemp("chosen") / "a.npz", striped()
    np.savez(path, images=images, labels=labels)
    return path


@pytest.fixture(scope="module")
def run(arrays: Path) -> Path:
    run_locally(config_of(arrays, channels=3, bands=CHOSEN, range=RANGES), arrays.parent / "run")
    return arrays.parent / "run"


@pytest.fixture(scope="module")
def encoder(run: Path) -> RunEncoder:
    return run_encoder(run)


@pytest.fixture(scope="module")
def squares() -> np.ndarray:
    """(N, S, S, 3), which NumPy makes of the three bands."""
    images, (low, high) = striped()[0][..., [4, 0, 1]], np.array(RANGES, np.float64).T
    return np.rint((images.clip(low, high) - low) * (255 / (high - low))).astype(np.uint8)


@pytest.fixture(scope="module")
def expected(encoder: RunEncoder, squares: np.ndarray) -> np.ndarray:
    """(N, D) of all images."""
    recipe = encoder.config.augment.recipe()
    mean, std = (np.array(values) for values in (recipe.mean, recipe.std))
    with torch.inference_mode():
        tensor = torch.from_numpy(((squares / 255 - mean) / std).transpose(0, 3, 1, 2).astype(np.float32))
        return encoder.module(tensor).numpy()


def test_tables_exports_and_the_api_choose_the_same_bands_of_raw_images(
    run: Path, encoder: RunEncoder, arrays: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    images, _ = striped()
    assert json.loads((run / "encoder/global.json").read_text())["input"]["bands"] == CHOSEN
    np.savez(tmp_path / "copy.npz", images=images)
    for number, place in enumerate((arrays, tmp_path / "copy.npz")):
        embed(encoder, str(place), tmp_path / f"{number}.parquet")
        rows = pq.read_table(tmp_path / f"{number}.parquet").to_pydict()
        np.testing.assert_allclose(np.stack(rows["embedding"]), expected, atol=1e-6, rtol=1e-6)
    module = rayfed_ssl.load(run).encoder()
    folder = export(encoder, "hub-folder", tmp_path / "hub").folder
    assert not (folder / "preprocessor_config.json").exists()
    described = json.loads((folder / "config.json").read_text())
    assert (described["channels"], described["input"]["bands"]) == (3, CHOSEN)
    loaded = load_exported(folder, "config")
    with torch.no_grad():
        squares = torch.stack([standalone.square(image, folder) for image in images[:9]])
        for features in (
            module(module.transform(images[:9])),
            loaded(Transform.described(described)(images[:9])),
            standalone.load(folder)(standalone.normalised(squares, folder)),
        ):
            np.testing.assert_allclose(features.numpy(), expected[:9], atol=1e-6, rtol=1e-6)
    card = (folder / "README.md").read_text()
    assert "An array (H, W, C) of all bands, of which 5, 1, 2 (the first is 1) are taken, first becomes" in card
    with pytest.raises(ValueError, match=r"an array \(16, 16, 4\); the encoder takes an array \(H, W, 5\) with"):
        standalone.square(images[0][..., :4], folder)


def test_tiffs_are_read_by_their_paths(run: Path, expected: np.ndarray, tmp_path: Path) -> None:
    tifffile = needs_tifffile()
    for number, image in enumerate(striped()[0][:5]):
        tifffile.imwrite(tmp_path / f"{number}.tif", image, photometric="minisblack", planarconfig="contig")
    module = rayfed_ssl.load(run).encoder()
    with torch.no_grad():
        features = module(module.transform(sorted(tmp_path.glob("*.tif")))).numpy()
    np.testing.assert_allclose(features, expected[:5], atol=1e-6, rtol=1e-6)
    embed(run_encoder(run), str(tmp_path), tmp_path / "x.parquet")
    rows = pq.read_table(tmp_path / "x.parquet").to_pydict()
    np.testing.assert_allclose(np.stack(rows["embedding"]), expected[:5], atol=1e-6, rtol=1e-6)


def test_other_images_may_have_the_bands_in_other_places_or_no_others(
    run: Path, squares: np.ndarray, expected: np.ndarray, tmp_path: Path
) -> None:
    images, labels = striped()
    np.savez(tmp_path / "all.npz", images=images[:160], labels=labels[:160])
    np.savez(tmp_path / "three.npz", images=images[:160][..., [1, 0, 4]], labels=labels[:160])
    np.savez(tmp_path / "rgb.npz", images=squares[:160], labels=labels[:160])
    blocks = {
        "all": str(tmp_path / "all.npz"),
        "three": f"{{name: arrays, path: '{tmp_path / 'three.npz'}', bands: [3, 2, 1]}}",
        "rgb": f"{{name: arrays, path: '{tmp_path / 'rgb.npz'}', bands: null}}",
    }
    found = {name: reevaluate(run, ["knn"], data=block) for name, block in blocks.items()}
    measured = {json.dumps(of["accuracy"]) for of in found["rgb"]["other data"].values()}
    assert len(measured) == 1
    for name, block in blocks.items():
        embed(run_encoder(run), block, tmp_path / f"{name}.parquet")
        rows = pq.read_table(tmp_path / f"{name}.parquet").to_pydict()
        np.testing.assert_allclose(np.stack(rows["embedding"]), expected[:160], atol=1e-6, rtol=1e-6)
    with pytest.raises(UserError, match=r"^data\.path: .*with data\.bands=\[5, 1, 2\] are .*; it has 3 bands$"):
        embed(run_encoder(run), str(tmp_path / "three.npz"), tmp_path / "no.parquet")
    embed(run_encoder(run), "digits", tmp_path / "digits.parquet")  # which have no bands to choose from


def test_a_transform_takes_arrays_of_all_bands_alone(encoder: RunEncoder) -> None:
    image, transform = striped()[0][0], encoder.transform
    for wrong, line in (
        (
            image[..., :4],
            r"^image 0: found an array of uint16 \(16, 16, 4\); must be an array \(H, W, C\) of all",
        ),
        (image[..., 0], r"^image 0: found an array of uint16 \(16, 16\)"),
        (
            Image.new("RGB", (SIDE, SIDE)),
            r"^image 0: cannot be decoded \(a Pillow image; of 3 bands an array \(H, W, C\) of all b",
        ),
    ):
        with pytest.raises(UserError, match=line):
            transform([wrong])
    said = {"image_size": SIDE, "channels": 3, "input": {"mean": [0.5] * 3, "std": [1] * 3, "bands": [0, 1, 2]}}
    with pytest.raises(UserError, match=r"^encoder description: found input\.bands \[0, 1, 2\]; allowed: a list"):
        Transform.described(said)
    said["input"]["bands"] = CHOSEN
    with pytest.raises(UserError, match=r"^encoder: found bands \[1, 2, 3\]; its run read its images with \[5, 1, 2\]"):
        Transform.described(said, bands=(1, 2, 3))


@pytest.mark.parametrize("nodata", ["file", -9999.0])
def test_missing_data_are_as_in_the_run(encoder: RunEncoder, nodata: str | float, tmp_path: Path) -> None:
    draw, ranges = np.random.default_rng(0), tuple((float(low), float(high)) for low, high in RANGES)
    transform = replace(encoder.transform, nodata=nodata, range=ranges)
    said = {"image_size": SIDE, "channels": 3, "input": {"mean": [0.5] * 3, "std": [1] * 3, "bands": CHOSEN}}
    said["input"] |= {"range_of_deep_images": RANGES, "nodata": nodata}
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert Transform.described(said).nodata == nodata
    values = "NaN and infinity" if nodata == "file" else "NaN, infinity and -9999"
    assert f"Missing data ({values}) become 0." in use_of(replace(encoder, transform=transform), "torch")
    assert "Missing data" not in use_of(encoder, "torch")
    for kind in ("float32", "float64", "int16", "uint8"):
        image = striped()[0][0].clip(0, 250 if kind == "uint8" else None).astype(kind)
        missing = draw.random(image.shape) < 0.1
        if kind.startswith("f"):
            image[missing] = np.nan if nodata == "file" else nodata
        elif kind == "int16" and nodata != "file":
            image[missing] = nodata
        else:
            missing[:] = False
        found = transform.pixels([image])[0]
        np.testing.assert_array_equal(standalone.square(image, tmp_path).numpy(), found)
        assert not found[missing[..., [4, 0, 1]]].any()
        assert found[~missing[..., [4, 0, 1]]].any()
    grey = replace(transform, channels=1, bands=(1,), range=None)
    said |= {"channels": 1, "input": {**said["input"], "bands": [1], "range_of_deep_images": None}}
    (tmp_path / "grey").mkdir()
    (tmp_path / "grey/config.json").write_text(json.dumps(said))
    image = striped()[0][0][..., 0].astype(np.float32)
    image[3, 4:9] = np.nan
    np.testing.assert_array_equal(standalone.square(image, tmp_path / "grey").numpy(), grey.pixels([image])[0])
    with pytest.raises(ValueError, match=r", no pixel of which holds data$"):
        standalone.square(np.full((SIDE, SIDE, 5), np.nan, np.float32), tmp_path)
    said["input"]["nodata"] = "tag"
    with pytest.raises(UserError, match=r"^encoder description: found input\.nodata 'tag'; allowed: file, or"):
        Transform.described(said)
