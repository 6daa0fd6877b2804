"""Two finished runs that the tests of this folder look at: one global encoder, and an encoder per client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from rayfed_ssl.exporting.encoders import RunEncoder, run_encoder
from tests.tiny import run_locally, tiny


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scikit-learn's digits as PNG files, ``train/digit_3/0017.png``, every fifth in ``test/``."""
    root, bunch = tmp_path_factory.mktemp("digits"), load_digits()
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    for row, (image, label) in enumerate(zip(pixels, bunch.target, strict=True)):
        folder = root / ("test" if row % 5 == 0 else "train") / f"digit_{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{row:04d}.png")
    return root


@pytest.fixture(scope="session")
def run(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    data = {"data__name": "imagefolder", "data__path": str(digits), "data__limit": None, "data__test_limit": None,
            "data__image_size": 16}  # fmt: skip
    run_locally(
        tiny("fedsimclr", **data, train__rounds=2, evaluation__protocols=["linear", "knn"], evaluation__every=2), folder
    )
    return folder


@pytest.fixture(scope="session")
def mixed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients of different architectures, no global encoder."""
    folder = tmp_path_factory.mktemp("runs") / "mixed"
    encoders = ["small_cnn", "small_cnn_bn"]
    run_locally(tiny("local", clients__count=2, clients__encoders=encoders, data__limit=80, train__rounds=1), folder)
    return folder


@pytest.fixture
def encoder(run: Path) -> RunEncoder:
    return run_encoder(run)
