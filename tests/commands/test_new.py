"""``rayfed-ssl new``: what it writes runs at once, and its test passes."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from rayfed_ssl.commands.templates import Kind
from rayfed_ssl.config import load_untrusted
from rayfed_ssl.data.augment import clean
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.models import load_exported
from rayfed_ssl.settings.files import parse_overrides
from tests.command_line import Call
from tests.places import ROOT
from tests.tiny import encoders, measured

LOCAL = ("run", "tiny.yaml", "--executor", "local", "-q", "train.rounds=1")


@pytest.fixture
def begun(call: Call, tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """The overrides that a new file's author is told to run with."""
    kind: Kind = request.param
    status, out, _ = call("new", kind, "half_way", "--out", "mine")
    assert status == 0
    assert "test it    pytest mine/test_half_way.py" in out
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["half_way.py", "test_half_way.py"]
    assert len((tmp_path / "mine/half_way.py").read_text().splitlines()) < 50
    (line,) = [line for line in out.splitlines() if line.startswith("run it")]
    return shlex.split(line.partition("CONFIG.yaml ")[2])


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (Kind.METHOD, "method.step=0.5"),
        (Kind.PLUGIN, "plugins=[{name: half_way, weight: 5}]"),
        (Kind.OBJECTIVE, "objective.uniformity=0.5"),
        (Kind.PARTITION, "data.partition.ratio=0.5"),
        (Kind.ENCODER, "model.width=0.5"),
    ],
    indirect=["begun"],
)
def test_what_is_begun_runs_as_is_said_and_its_own_key_reaches_it(
    call: Call, tmp_path: Path, begun: list[str], more: str
) -> None:
    for name, overrides in (("as is said", begun), ("with the key", [*begun, more])):
        ran = call(*LOCAL, "evaluation.protocols=[]", *overrides, "--out", f"runs/{name}")
        assert ran == (0, "", "")
    assert encoders(tmp_path / "runs/as is said") != encoders(tmp_path / "runs/with the key")


@pytest.mark.parametrize("begun", [Kind.PARTITION], indirect=True)
def test_a_partition_begins_with_sizes_that_fall_off(call: Call, tmp_path: Path, begun: list[str]) -> None:
    assert call(*LOCAL, *begun, "evaluation.protocols=[]", "--out", "run") == (0, "", "")
    sizes = np.bincount(pq.read_table(tmp_path / "run/partition.parquet").column("client").to_numpy())
    assert np.abs(sizes - 60 * np.array([1, 0.8, 0.64]) / 2.44).max() < 1


@pytest.mark.parametrize("begun", [Kind.PROTOCOL], indirect=True)
def test_a_protocol_begins_as_the_nearest_class_mean(call: Call, tmp_path: Path, begun: list[str]) -> None:
    assert call(*LOCAL, *begun, "--out", "run") == (0, "", "")
    config = load_untrusted(tmp_path / "run/config.yaml", trust_imports=True)
    data, encoder = load_federation(config).dataset, load_exported(tmp_path / "run")

    def features(pixels: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            views = clean(torch.tensor(np.array(pixels)).permute(0, 3, 1, 2), config.augment.recipe())
            return np.asarray(F.normalize(encoder(views), dim=1))

    train, test = features(data.train.pixels), features(data.test.pixels)
    means = [train[data.train.labels == label].mean(0) for label in range(10)]
    similar = [[row @ mean / np.linalg.norm(mean) for mean in means] for row in test]
    right = float(np.mean(np.argmax(similar, axis=1) == data.test.labels))
    assert measured(tmp_path / "run")[1, None, "eval/half_way"] == pytest.approx(right)


def drawn(folder: Path) -> dict[str, list[Path]]:
    """Files of three classes, whose names begin with their class."""
    folder.mkdir()
    files: dict[str, list[Path]] = {"cat": [], "dog": [], "owl": []}
    for index, (kind, count) in enumerate((("cat", 50), ("dog", 40), ("owl", 30))):
        for number in range(count):
            pixels = np.random.default_rng(100 * index + number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            files[kind].append(folder / f"{kind}_{number:03}.png")
            Image.fromarray(pixels).save(files[kind][-1])
    Image.fromarray(pixels).save(folder / "nobody.png")
    return files


@pytest.mark.parametrize("begun", [Kind.SOURCE], indirect=True)
def test_a_source_begins_as_files_whose_names_begin_with_their_class(
    call: Call, tmp_path: Path, begun: list[str]
) -> None:
    files = drawn(tmp_path / "images")
    begun = [word.replace("FOLDER", str(tmp_path / "images")) for word in begun]
    everything = ("data.limit=null", "data.test_limit=null")
    assert call(*LOCAL, *begun, *everything, "--out", "run")[0] == 0
    data = load_federation(load_untrusted(tmp_path / "run/config.yaml", trust_imports=True)).dataset
    assert data.train.class_names == ("cat", "dog", "owl")
    assert np.bincount(data.test.labels).tolist() == [10, 8, 6]  # a fifth of each
    seen = dict[str, np.ndarray]()
    for split, images in (("train", data.train), ("test", data.test)):
        for name, label, pixels in zip(data.names[split].to_pylist(), images.labels, images.pixels, strict=True):
            assert name.startswith(images.class_names[label])
            seen[name] = pixels
    assert sorted(seen) == sorted(file.name for kind in files.values() for file in kind)
    for kind in files.values():
        np.testing.assert_array_equal(seen[kind[0].name], np.asarray(Image.open(kind[0])))


@pytest.mark.parametrize("begun", [Kind.SOURCE], indirect=True)
def test_a_source_begins_with_clear_lines_on_what_is_not_there(call: Call, tmp_path: Path, begun: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    for path, said in ((tmp_path / "empty", "no training images"), (tmp_path / "absent", "does not exist")):
        status, _, err = call(*LOCAL, *(word.replace("FOLDER", str(path)) for word in begun), "--out", "run")
        assert (status, err.count("\n")) == (2, 1)
        assert said in err
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_the_tests_of_what_is_begun_pass(call: Call, tmp_path: Path) -> None:
    for kind in Kind:
        assert call("new", kind, f"own_{kind}", "--out", "mine")[0] == 0
    done = subprocess.run(  # on Ray it is the suite's own business
        [sys.executable, "-m", "pytest", "-q", "-W", "error::pytest.PytestWarning", "-p", "no:cacheprovider",
         "-k", "not ray", "mine"],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # The method's server predicts no costs, and its row does not say that its round ends with a plain mean.
    assert f"{7 * len(Kind) - 3} passed, 3 skipped" in done.stdout


def test_nothing_is_written_over_and_names_are_checked(call: Call, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("precious")
    status, _, err = call("new", "method", "mine")
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith("test_mine.py: found a file, which is not written over")
    assert (tmp_path / "test_mine.py").read_text() == "precious"
    for kind, name, said in (
        ("method", "fedsc", "which is a method already"),
        ("plugin", "fedsc", "which is a plugin already"),
        ("objective", "simclr", "which is an objective already"),
        ("source", "hub", "which is a source already"),
        ("partition", "iid", "which is a partition already"),
        ("encoder", "vgg9", "which is an encoder already"),
        ("protocol", "knn", "which is a protocol already"),
        ("method", "Mine", "must be lower-case letters"),
        ("method", "../mine", "must be lower-case letters"),
        ("method", "random", "a Python module that random.py would hide"),
        ("method", "class", "a word of Python's own"),
    ):
        status, _, err = call("new", kind, name)
        assert (status, err.count("\n")) == (2, 1)
        assert err.startswith("NAME: found ")
        assert said in err
    assert call("new", "head", "mine")[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test_mine.py", "tiny.yaml"]


def test_a_full_disk_leaves_neither_file(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next attempt would find a file, which it does not write over."""
    opened = Path.open

    def full(path: Path, *how: Any, **more: Any) -> Any:
        if path.name == "test_mine.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *how, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        status, _, err = call("new", "partition", "mine", "--out", "here")
    assert (status, err) == (
        2,
        "--out: cannot write to here (No space left on device); name a folder you may write to\n",
    )
    assert list((tmp_path / "here").iterdir()) == []
    assert call("new", "partition", "mine", "--out", "here")[0] == 0


def test_what_it_says_can_be_copied_whatever_the_folder_is_called(call: Call, tmp_path: Path) -> None:
    odd = tmp_path / "my own, [it's] #1"
    status, out, _ = call("new", "method", "half_way", "--out", str(odd))
    said = {
        line[:9].strip(): shlex.split(line[9:]) for line in out.splitlines() if line.startswith(("run it", "test it"))
    }
    assert (status, said["test it"]) == (0, ["pytest", str(odd / "test_half_way.py")])
    (imports,) = [word for word in said["run it"] if word.startswith("imports=")]
    assert parse_overrides([imports]) == {"imports": [str(odd / "half_way.py")]}
