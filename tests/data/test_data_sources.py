"""Every source: digits, digests, caches, and what a block of configuration may hold."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from pydantic import ValidationError

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.pixels.store import FORMAT
from rayfed_ssl.data.sources import SourceConfig
from tests.data.files import fetch, pictures, write_parquet


@pytest.mark.long
def test_digits_are_scikit_learns(tmp_path):
    from sklearn.datasets import load_digits

    data = load(SourceConfig(name="digits"), tmp_path)
    bunch = load_digits()
    assert data.train.pixels.shape[1:] == (32, 32, 3)
    assert len(data.train) + len(data.test) == 1797
    together = np.bincount(np.concatenate([data.train.labels, data.test.labels]))
    assert np.array_equal(together, np.bincount(bunch.target))
    assert np.abs(np.bincount(data.test.labels) - 0.2 * together).max() <= 0.5
    assert data.train.class_names == tuple("0123456789")
    small = load(SourceConfig(name="digits", image_size=8), tmp_path)
    seen = {
        (*np.round(image[..., 0].ravel() * (16 / 255)).astype(int), int(label))
        for half in (small.train, small.test)
        for image, label in zip(half.pixels, half.labels, strict=True)
    }
    assert seen == {
        (*image.ravel().astype(int), int(label)) for image, label in zip(bunch.images, bunch.target, strict=True)
    }


def test_a_cache_that_cannot_be_looked_into_is_one_line(tmp_path):
    with pytest.raises(
        UserError, match=r"cannot be written or locked \(.*File name too long.*\); set RAYFED_SSL_CACHE"
    ):
        load(SourceConfig(name="digits"), tmp_path / ("x" * 300))


def test_digests_tell_data_sets_apart(tmp_path):
    digests = [
        load(SourceConfig(name="digits", limit=n, image_size=8), tmp_path / where).digest
        for n, where in ((50, "a"), (50, "b"), (51, "a"))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_the_cache_follows_the_files_content_and_the_settings(tmp_path):
    write_parquet(tmp_path / "train.parquet", pictures(4), [0] * 4)
    write_parquet(tmp_path / "test.parquet", pictures(2), [0, 0])
    first = fetch(tmp_path, "parquet")
    cached = set((tmp_path / "cache").glob("*.arrow"))
    times = {file: file.stat().st_mtime_ns for file in cached}
    assert len(cached) == 2
    (tmp_path / "train.parquet").touch()
    assert fetch(tmp_path, "parquet").digest == first.digest
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").glob("*.arrow")} == times
    assert fetch(tmp_path, "parquet", image_size=8).train.pixels.shape == (4, 8, 8, 3)
    write_parquet(tmp_path / "train.parquet", pictures(4, seed=9), [0] * 4)
    changed = fetch(tmp_path, "parquet")
    assert changed.digest != first.digest
    assert np.array_equal(changed.train.pixels, pictures(4, seed=9))
    for file in (tmp_path / "cache").glob("*.arrow"):  # a cut file is built again
        file.write_bytes(file.read_bytes()[:-100])
    assert fetch(tmp_path, "parquet").digest == changed.digest


def test_errors_name_the_block_they_come_from(tmp_path):
    with pytest.raises(UserError, match=r"^data\.public\.images\.path: not set"):
        load(SourceConfig(name="parquet"), tmp_path, key="data.public.images")


def test_configuration_is_checked():
    for wrong in ({"name": "mnist"}, {"image_size": 4}, {"limit": 0}, {"layout": "flat"}, {"pixels": 3}):
        with pytest.raises(ValidationError):
            SourceConfig.model_validate({"name": "digits"} | wrong)


def test_todays_caches_are_those_of_before_there_was_a_choice_of_squares(tmp_path):
    """A file's name is a digest of the format, the settings but those that say where images lie, and the files."""
    content = b"P5 8 8 255\n" + bytes(range(64))
    (tmp_path / "d/train").mkdir(parents=True)
    (tmp_path / "d/train/a.pgm").write_bytes(content)
    config = SourceConfig(name="imagefolder", path=tmp_path / "d")
    load(config, tmp_path / "cache")
    later = {"fit", "group", "background", "bands", "nodata"}  # keys that are in no name at their defaults
    settings = config.model_dump(exclude={"path", "download", "test_split", *later})
    del settings["columns"]["split"]  # so is this
    digest = hashlib.blake2b(json.dumps([FORMAT, settings], sort_keys=True).encode(), digest_size=12)
    digest.update(b"\0train/a.pgm\0%d\0" % len(content) + content)
    (found,) = (tmp_path / "cache").glob("*-train.arrow")
    assert found.name == f"imagefolder-32-{digest.hexdigest()}-train.arrow"
