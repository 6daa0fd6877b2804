"""``evaluate --data`` scales images of more than 8 bits as the run scaled its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.sources import SourceConfig, load
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
