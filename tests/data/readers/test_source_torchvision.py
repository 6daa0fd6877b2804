"""torchvision's data sets on small files in their exact formats, against what the test wrote.

torchvision checks MD5 sums, so the tests give it those of the generated files; everything else is its own reading.
"""

from __future__ import annotations

import gzip
import hashlib
import pickle
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from torchvision import datasets

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from tests.data.files import fetch, pictures, refused


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_cifar(root: Path, cls, monkeypatch, label: str, names: list[str]) -> dict[str, np.ndarray]:
    folder = root / cls.base_folder
    folder.mkdir()
    made = {}
    for number, (name, _) in enumerate(cls.train_list + cls.test_list):
        made[name] = pictures(4, 32, number)
        flat = made[name].transpose(0, 3, 1, 2).reshape(4, 3072)
        (folder / name).write_bytes(pickle.dumps({"data": flat, label: [number % len(names)] * 4}))
    (folder / cls.meta["filename"]).write_bytes(pickle.dumps({cls.meta["key"]: names}))
    for which in ("train_list", "test_list"):
        monkeypatch.setattr(cls, which, [[name, md5(folder / name)] for name, _ in getattr(cls, which)])
    monkeypatch.setattr(cls, "meta", cls.meta | {"md5": md5(folder / cls.meta["filename"])})
    return made


@pytest.mark.parametrize(
    ("name", "cls", "label"), [("cifar10", datasets.CIFAR10, "labels"), ("cifar100", datasets.CIFAR100, "fine_labels")]
)
def test_cifar(tmp_path, monkeypatch, name, cls, label):
    names = [f"class {number}" for number in range(10)]
    made = write_cifar(tmp_path, cls, monkeypatch, label, names)
    data = fetch(tmp_path, name, image_size=32)
    train = [entry for entry, _ in cls.train_list]
    assert np.array_equal(data.train.pixels, np.concatenate([made[entry] for entry in train]))
    assert data.train.labels.tolist() == [number for number in range(len(train)) for _ in range(4)]
    assert np.array_equal(data.test.pixels, made[cls.test_list[0][0]])
    assert data.train.class_names == tuple(names)
    assert len(fetch(tmp_path, name, image_size=32, limit=3).train) == 3
    (tmp_path / cls.base_folder / train[0]).write_bytes(b"damaged")
    refused(rf"data\.path: {name} is damaged below", tmp_path, name)


def test_svhn(tmp_path, monkeypatch):
    from scipy.io import savemat

    made = {}
    for split in ("train", "test"):
        made[split] = pictures(5, 32, len(split))
        path = tmp_path / f"{split}_32x32.mat"
        savemat(path, {"X": made[split].transpose(1, 2, 3, 0), "y": np.array([[1], [10], [3], [9], [10]], np.uint8)})
        url = datasets.SVHN.split_list[split][0]
        monkeypatch.setitem(datasets.SVHN.split_list, split, [url, path.name, md5(path)])
    data = fetch(tmp_path, "svhn", image_size=32)
    assert np.array_equal(data.train.pixels, made["train"])
    assert np.array_equal(data.test.pixels, made["test"])
    assert data.train.labels.tolist() == [1, 0, 3, 9, 0]  # SVHN writes the digit 0 as 10
    assert data.train.class_names == tuple("0123456789")


def test_stl10_trains_on_labelled_and_unlabelled_images(tmp_path, monkeypatch):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    made = {}
    for number, (name, count) in enumerate({"train": 3, "unlabeled": 4, "test": 2}.items()):
        made[name] = pictures(count, 96, number)
        (folder / f"{name}_X.bin").write_bytes(made[name].transpose(0, 3, 2, 1).tobytes())  # columns first
        (folder / f"{name}_y.bin").write_bytes(bytes(range(1, count + 1)))
    (folder / "class_names.txt").write_text("airplane\nbird\ncar\n")
    for which in ("train_list", "test_list"):
        entries = getattr(datasets.STL10, which)
        monkeypatch.setattr(datasets.STL10, which, [[name, md5(folder / name)] for name, _ in entries])
    data = fetch(tmp_path, "stl10", image_size=96)
    assert np.array_equal(data.train.pixels, np.concatenate([made["train"], made["unlabeled"]]))
    assert data.train.labels.tolist() == [0, 1, 2, -1, -1, -1, -1]
    assert np.array_equal(data.test.pixels, made["test"])
    assert data.test.labels.tolist() == [0, 1]
    assert data.train.class_names == ("airplane", "bird", "car")


def test_fashion_mnist(tmp_path):
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    made = {}
    for prefix, count in {"train": 6, "t10k": 3}.items():
        made[prefix] = pictures(count, 28, count)[..., 0]
        header = (0x803).to_bytes(4, "big") + b"".join(side.to_bytes(4, "big") for side in (count, 28, 28))
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + made[prefix].tobytes())
        header = (0x801).to_bytes(4, "big") + count.to_bytes(4, "big")
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(header + bytes(range(count)))
    data = fetch(tmp_path, "fashion_mnist", image_size=28)
    assert np.array_equal(data.train.pixels, np.repeat(made["train"][..., None], 3, axis=3))
    assert np.array_equal(data.test.pixels[..., 1], made["t10k"])
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.train.class_names[9] == "Ankle boot"
    (folder / "train-images-idx3-ubyte").write_bytes(b"\0\0\10\3 short")
    refused(r"data\.path: fashion_mnist is damaged below", tmp_path, "fashion_mnist")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "stl10", "fashion_mnist"])
def test_missing_files_name_the_download_key(tmp_path, name):
    refused(rf"data\.path: .* is missing; put {name} there or set data\.download=true \(--check", tmp_path, name)
    with pytest.raises(UserError, match=str(tmp_path / "downloads")):
        load(SourceConfig(name=name), tmp_path)


def test_download_fetches_what_is_missing(tmp_path, monkeypatch):
    """torchvision's own download from a loopback server: archives, checksums and unpacking are the real ones."""
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    resources = []
    for name, _ in datasets.FashionMNIST.resources:
        kind, count = ("images", 784) if "images" in name else ("labels", 1)
        head = (0x803).to_bytes(4, "big") + b"".join(side.to_bytes(4, "big") for side in (2, 28, 28))
        head = head if kind == "images" else (0x801).to_bytes(4, "big") + (2).to_bytes(4, "big")
        (mirror / name).write_bytes(gzip.compress(head + bytes(2 * count)))
        resources.append((name, md5(mirror / name)))
    monkeypatch.setattr(datasets.FashionMNIST, "resources", resources)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=str(mirror))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(datasets.FashionMNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        data = fetch(tmp_path, "fashion_mnist", path=tmp_path / "root", download=True)
        server.shutdown()
    assert (len(data.train), len(data.test)) == (2, 2)
    assert fetch(tmp_path, "fashion_mnist", path=tmp_path / "root").digest == data.digest  # now they are there
    refused(
        r"fashion_mnist could not be downloaded to .*elsewhere",
        tmp_path,
        "fashion_mnist",
        path=tmp_path / "elsewhere",
        download=True,
    )
