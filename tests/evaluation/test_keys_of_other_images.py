"""``evaluate --data`` and ``embed`` say in which block a key stands that their images need."""

from __future__ import annotations

import pickle
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.images import BadImage
from rayfed_ssl.data.pixels.store import Undecodable
from rayfed_ssl.exporting.embed import table_of
from rayfed_ssl.exporting.encoders import run_encoder
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.testing.tiny import run_locally
from tests.data.encoded import tiff
from tests.data.files import png
from tests.tiny import tiny

Use = Callable[[Path, str], object]
STANDS = re.compile(r"; here data\.(\w+) stands in a block: (?P<option>--data |)'(?P<block>\{.*\})'$")


def png_of_16_bits(pixels: np.ndarray) -> bytes:
    """A PNG of colours (H, W, 3) of 16 bits, which Pillow reads and does not write."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def cmyk_of_16_bits(pixels: np.ndarray) -> bytes:
    """A TIFF of four inks (H, W, 4) of 16 bits."""
    return tiff(np.dstack([pixels, pixels[..., 0]]).astype(np.uint16), photometric="separated")


def tree(root: Path, encoded: Callable[[np.ndarray], bytes] | None, most: int = 256) -> Path:
    """Images of 12 x 12 pixels, in two classes; ``encoded`` of colours, else grey PNGs of 16 bits."""
    values = np.random.default_rng(0)
    for split, count in {"train": 24, "test": 8}.items():
        for number in range(count):
            path = root / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            if encoded is None:
                Image.fromarray(values.integers(0, most, (12, 12)).astype(np.uint16)).save(path)
            else:
                path.write_bytes(encoded(values.integers(0, most, (12, 12, 3))))
    return root


def colours(pixels: np.ndarray) -> bytes:
    return png(pixels.astype(np.uint8))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "run"
    run_locally(tiny("fedsimclr", train__rounds=1), folder)
    return folder


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranged")
    own = {"data__name": "imagefolder", "data__path": str(tree(folder / "own", None, 4000))}
    run_locally(tiny("fedsimclr", **own, data__range=[0, 4000], train__rounds=1), folder / "run")
    return folder / "run"


def evaluated(run: Path, data: str) -> object:
    return reevaluate(run, ["knn"], data=data)


def embedded(run: Path, data: str) -> object:
    return table_of(run_encoder(run), data)


@pytest.mark.parametrize(("use", "option"), [(evaluated, "--data "), (embedded, "")])
def test_the_block_that_is_named_reads_the_images(use: Use, option: str, run: Path, tmp_path: Path) -> None:
    deep, large = tree(tmp_path / "deep", png_of_16_bits, 2**16), tree(tmp_path / "large", colours)
    cases = {
        "range": (str(deep), "[0, 65535]"),
        "max_pixels": (f"{{name: imagefolder, path: {large}, max_pixels: 143}}", "144"),
    }
    for key, (data, right) in cases.items():
        with pytest.raises(UserError) as refused:
            use(run, data)
        assert "\n" not in str(refused.value)
        found = STANDS.search(str(refused.value))
        assert found is not None, str(refused.value)
        assert (found[1], found["option"]) == (key, option)
        assert f"{key}: VALUE" in found["block"]
        use(run, found["block"].replace("VALUE", right))


def test_no_block_is_named_where_the_encoders_run_has_the_range(ranged: Path, tmp_path: Path) -> None:
    deep = tree(tmp_path / "deep", cmyk_of_16_bits)  # which is read by the range of its bits alone
    with pytest.raises(UserError) as refused:
        embedded(ranged, str(deep))
    assert str(refused.value).endswith(
        "; here data.range cannot be set: the encoder's run has [0.0, 4000.0], and images have their features in the "
        "run only so"
    )
    with pytest.raises(UserError, match=r"data\.range: found \[0\.0, 65535\.0\]; the encoder's run has"):
        embedded(ranged, f"{{name: imagefolder, path: {deep}, range: [0, 65535]}}")
    embedded(ranged, str(tree(tmp_path / "png", png_of_16_bits, 2**16)))  # by the run's range


@pytest.mark.parametrize("use", [evaluated, embedded])
def test_a_path_that_looks_like_a_key_is_none(use: Use, run: Path, tmp_path: Path) -> None:
    empty = tmp_path / "data.range=none"
    empty.mkdir()
    with pytest.raises(UserError) as refused:
        use(run, str(empty))
    assert str(refused.value).startswith("data.path: ")
    assert str(empty) in str(refused.value)
    assert "stands in a block" not in str(refused.value)


def test_the_key_comes_through_from_another_process() -> None:
    bad = BadImage.unless_set("max_pixels", "12x12 pixels")
    for error in (UserError("x").setting("range"), Undecodable.named(["x"], bad, "data", "y")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.to_set) == (type(error), str(error), error.to_set)
    assert pickle.loads(pickle.dumps(bad)).to_set == "max_pixels"
    assert UserError("data.range=[0, 1]").to_set is None
