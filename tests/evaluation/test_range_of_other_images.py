"""``evaluate --data`` scales images of more than 8 bits as the run scaled its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.exporting import standalone
from rayfed_ssl.exporting.embed import table_of
from rayfed_ssl.exporting.encoders import run_encoder
from rayfed_ssl.exporting.folder import export
from rayfed_ssl.models.transform import Transform
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.testing.tiny import run_locally
from tests.tiny import tiny

RANGE = (0.0, 4000.0)


def scans(root: Path, bits: int, most: int) -> Path:
    """Grey images whose largest value is ``most`` or less: without a range each would be scaled by its own."""
    values = np.random.default_rng(bits)
    for split, count in {"train": 24, "test": 8}.items():
        for number in range(2 * count):
            path = root / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = values.integers(0, values.integers(most // 4, most), (8, 8))
            Image.fromarray(pixels.astype(np.uint16 if bits == 16 else np.uint8)).save(path)
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranged")
    own = {"data.name": "imagefolder", "data.path": str(scans(folder / "own", 16, 4000)), "data.range": list(RANGE)}
    config = tiny("fedsimclr", **{key.replace(".", "__"): value for key, value in own.items()}, train__rounds=1)
    run_locally(config, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def by_percentiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("percentiles")
    own = {"data__name": "imagefolder", "data__path": str(scans(folder / "own", 16, 4000)), "train__rounds": 1}
    run_locally(tiny("fedsimclr", data__range="percentiles", **own), folder / "run")
    return folder / "run"


def digest(run: Path, data: SourceConfig) -> str:
    *_, newest = reevaluate(run, ["knn"], data=data)["other data"].values()
    return str(newest["images"]["digest"])


def test_the_range_is_the_runs_unless_the_block_says_another(run: Path, tmp_path: Path) -> None:
    other = SourceConfig(name="imagefolder", path=scans(tmp_path / "other", 16, 3000))
    form = {"image_size": 8, "channels": 3}

    def by(found: tuple[float, float] | None) -> str:
        return load(other.model_copy(update=form | {"range": found})).digest

    assert len({by(None), by(RANGE), by((0.0, 3000.0))}) == 3
    assert digest(run, other) == by(RANGE)
    assert digest(run, SourceConfig(name="imagefolder", path=other.path, range=(0.0, 3000.0))) == by((0.0, 3000.0))
    assert digest(run, SourceConfig(name="imagefolder", path=other.path, range=None)) == by(None)


def test_images_of_8_bits_need_none_of_it(run: Path, tmp_path: Path) -> None:
    path = scans(tmp_path / "shallow", 8, 250)
    plain = load(SourceConfig(name="imagefolder", path=path, image_size=8, channels=3))
    assert digest(run, SourceConfig(name="imagefolder", path=path)) == plain.digest
    with pytest.raises(UserError, match=r"range: found \[0\.0, 4000\.0\], but no image has more than 8 bits"):
        reevaluate(run, ["knn"], data=SourceConfig(name="imagefolder", path=path, range=RANGE))


@pytest.mark.long
def test_percentiles_are_those_of_the_runs_training_images_wherever_the_encoder_goes(
    by_percentiles: Path, tmp_path: Path
) -> None:
    """In what the run records, its transform, tables, an export, and evaluations of other images."""
    run, own = by_percentiles, by_percentiles.parent / "own"
    pixels = np.concatenate([np.asarray(Image.open(file)).ravel() for file in sorted(own.glob("train/*/*.png"))])
    low, high = np.percentile(pixels.astype(np.float64), [0.5, 99.5], method="inverted_cdf").tolist()
    said = json.loads((run / "encoder/global.json").read_text())["input"]
    assert said["range_of_deep_images"] == [low, high]
    assert str([low, high]) in json.loads((run / "environment.json").read_text())["scaled"]["data"]["by"]
    other = SourceConfig(name="imagefolder", path=scans(tmp_path / "other", 16, 9000))
    form = {"image_size": 8, "channels": 3}
    assert digest(run, other) == load(other.model_copy(update=form | {"range": (low, high)})).digest
    theirs = SourceConfig(name="imagefolder", path=other.path, range="percentiles")
    assert digest(run, theirs) == load(theirs.model_copy(update=form)).digest != digest(run, other)
    encoder = run_encoder(run)
    file = next((tmp_path / "other").glob("test/*/*.png"))
    values = np.asarray(Image.open(file)).astype(float)
    expected = np.rint((values.clip(low, high) - low) * 255 / (high - low)).astype(np.uint8)
    assert np.array_equal(encoder.transform.pixels([file])[0, ..., 0], expected)
    place = export(encoder, "torch", tmp_path / "exported").folder
    assert np.array_equal(standalone.square(file, place)[..., 0].numpy(), expected)
    for data in (str(own), str(other.path), f"{{name: imagefolder, path: {own}, range: percentiles}}"):
        table, _ = table_of(encoder, data)
        metadata = json.loads(table.schema.metadata[b"rayfed_ssl"])
        assert metadata["range_of_deep_images"] == [low, high]
    with pytest.raises(UserError, match=r"data\.range: found \[0\.0, 9\.0\]; the encoder's run has \["):
        table_of(encoder, f"{{name: imagefolder, path: {own}, range: [0, 9]}}")
    del said["range_of_deep_images"]
    description = json.loads((run / "encoder/global.json").read_text()) | {"input": said}
    with pytest.raises(UserError, match=r"found no input\.range_of_deep_images; must be what data\.range=percentiles"):
        Transform.of_run(description, encoder.config.data)


def test_a_table_of_images_has_no_percentiles_of_its_own(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.range: found percentiles; the encoder's run has \[0\.0, 4000\.0\]"):
        table_of(run_encoder(run), f"{{name: imagefolder, path: {run.parent / 'own'}, range: percentiles}}")
    shallow = {"data__name": "imagefolder", "data__path": str(scans(tmp_path / "own", 8, 250)), "train__rounds": 1}
    run_locally(tiny("fedsimclr", **shallow), tmp_path / "run")
    with pytest.raises(UserError, match=r"found percentiles, which are of training images, .*; allowed: null, or \["):
        table_of(
            run_encoder(tmp_path / "run"), f"{{name: imagefolder, path: {run.parent / 'own'}, range: percentiles}}"
        )
