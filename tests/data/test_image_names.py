"""``images.parquet``: which file, or which row of one, every image of a run is, those held out as tests among them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from tests.tiny import run_locally, tiny


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 12, 12, 3), np.uint8)


def rows_of(run: Path, file: str) -> list[dict[str, object]]:
    return list(pq.read_table(run / file).to_pylist())


def test_every_image_of_a_tree_is_named_wherever_it_went(tmp_path: Path) -> None:
    """Two clients in one tree without ``test/``: by its name and index each file is where the run says it is."""
    root, files = tmp_path / "scans", {}
    for n, pixels in enumerate(pictures(80)):
        name = f"{'north' if n % 2 else 'süd'}/{'sick' if n % 4 < 2 else 'well'}/scan {n}.png"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name)
        files[name] = pixels
    data = {"name": "imagefolder", "path": str(root), "image_size": 12, "layout": "clients"}
    config = tiny(
        "fedsimclr", data={**data, "partition": {"name": "folders"}}, clients__count=2, train__rounds=1,
        train__batch_size=8, evaluation__select={"share": 0.2},
    )  # fmt: skip
    run_locally(config, tmp_path / "run")
    rows = rows_of(tmp_path / "run", "images.parquet")
    names = {(row["split"], row["index"]): str(row["name"]) for row in rows}
    assert sorted(names.values()) == sorted(files)
    dataset = load(SourceConfig.model_validate(data), tmp_path / "cache")
    for split, images in (("train", dataset.train), ("test", dataset.test)):
        assert len(images) > 0
        for index, pixels in enumerate(images.pixels):
            np.testing.assert_array_equal(pixels, files[names[split, index]])
    held = rows_of(tmp_path / "run", "partition.parquet")
    for row in held:
        folder = names["train", row["index"]].split("/")[0]
        assert row["split"] == "select" or row["client_name"] == folder
    assert {row["split"] for row in held} == {"train", "select"}


def test_a_data_set_that_has_moved_is_named_from_where_it_lies_and_its_cache_is_read_again(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place / "train").mkdir(parents=True)
        for n, pixels in enumerate(pictures(3)):
            Image.fromarray(pixels).save(tmp_path / place / "train" / f"{n}.png")
    found = [
        load(SourceConfig(name="imagefolder", path=tmp_path / place, image_size=12), tmp_path / "cache")
        for place in ("a", "b")
    ]
    assert [each.names["train"].to_pylist() for each in found] == 2 * [["train/0.png", "train/1.png", "train/2.png"]]
    assert len(list((tmp_path / "cache").glob("*-train.arrow"))) == 1


def test_whatever_a_file_is_called_its_name_is_its_id_in_a_table_of_features(tmp_path: Path) -> None:
    """A user leaves the test images out of that table by name: a narrow no-break space, as in macOS's
    screenshots, a tab, an accent of its own, a line's end, a backslash, and bytes that are no UTF-8.
    """
    root = tmp_path / "root"
    (root / "train").mkdir(parents=True)
    called = ["3.04\u202fPM.png", "tab\t.png", "e\u0301.png", "line\n.png", "back\\slash.png", "\udcff.png"]
    for name, pixels in zip(called, pictures(len(called)), strict=True):
        Image.fromarray(pixels).save(root / "train" / name)
    settings = SourceConfig(name="imagefolder", path=root, image_size=12)
    ids = [name for name, _ in catalogued(settings).read()]
    assert load(settings, tmp_path / "cache").names["train"].to_pylist() == ids
    assert len(set(ids)) == len(called)


@pytest.mark.parametrize("skip", [False, True])
def test_rows_of_parquet_are_named_by_file_and_row(skip: bool, tmp_path: Path) -> None:
    encoded = []
    for pixels in pictures(4):
        Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
        encoded.append(file.getvalue())
    if skip:
        encoded[1] = b"no image"
    for name in ("train-0", "train-1", "test"):
        pq.write_table(pa.table({"image": encoded, "label": [0, 1, 0, 1]}), tmp_path / f"{name}.parquet")
    settings = {"name": "parquet", "path": tmp_path, "image_size": 12, "on_bad_image": "skip" if skip else "fail"}
    found = load(SourceConfig.model_validate(settings), tmp_path / "cache")
    kept = [0, 2, 3] if skip else [0, 1, 2, 3]
    assert found.names["train"].to_pylist() == [f"train-{n}.parquet row {row}" for n in (0, 1) for row in kept]
    assert found.names["test"].to_pylist() == [f"test.parquet row {row}" for row in kept]
