"""Data sets of the Hugging Face Hub from a stand-in server on loopback: the download is huggingface_hub's own."""

from __future__ import annotations

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

pytest.importorskip("huggingface_hub")

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.catalogue import catalogued
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.sources import SourceConfig
from tests.data.files import pictures, write_parquet

COMMITS = {"main": "a" * 40, "refs/convert/parquet": "b" * 40}


class Hub(BaseHTTPRequestHandler):
    """``root/OWNER/NAME/COMMIT/files``: the Hub's revision, tree and file addresses for data sets."""

    root: Path
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.asked.append(f"{self.command} {'/'.join(parts)}")
        if parts[:2] == ["api", "datasets"]:
            name, what, revision = "/".join(parts[2:4]), parts[4], parts[5]
            self._api(name, what, COMMITS.get(revision, revision))
        else:  # datasets/OWNER/NAME/resolve/COMMIT/FILE
            self._file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]), body)

    def _api(self, name: str, what: str, commit: str) -> None:
        if not (self.root / name).is_dir():
            return self._send(404, {"X-Error-Code": "RepoNotFound"}, b"{}")
        if name == "lab/closed":
            return self._send(403, {"X-Error-Code": "GatedRepo"}, b"{}")
        folder = self.root / name / commit
        if not folder.is_dir():
            return self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
        files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
        if what == "tree":
            entries = [{"type": "file", "path": f, "size": (folder / f).stat().st_size, "oid": "0" * 40} for f in files]
            return self._send(200, {}, json.dumps(entries).encode())
        siblings = [{"rfilename": file} for file in files]
        info = {"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
        return self._send(200, {}, json.dumps(info).encode())

    def _file(self, name: str, commit: str, file: str, body: bool) -> None:
        path = self.root / name / commit / file
        if not path.is_file():
            return self._send(404, {"X-Error-Code": "EntryNotFound"}, b"")
        content = path.read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit}
        return self._send(200, headers, content, body)

    def _send(self, status: int, headers: dict[str, str], content: bytes, body: bool = True) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if body and self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    Hub.root, Hub.asked = tmp_path / "hub", []
    Hub.root.mkdir()
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield Hub
        server.shutdown()


def publish(name: str, folder: str = "data", revision: str = "main", seed: int = 0, **columns) -> None:
    home = Hub.root / name / COMMITS[revision] / folder
    write_parquet(home / "train-00000-of-00001.parquet", pictures(6, seed=seed), [0, 1] * 3, **columns)
    write_parquet(home / "test-00000-of-00001.parquet", pictures(2, seed=seed + 1), [0, 1], **columns)
    (home / "README.md").write_text("not wanted")


def fetch(tmp_path: Path, name: str, **settings):
    config = SourceConfig(name="hub", path=name, image_size=16, **settings)
    return load(config, tmp_path / "cache")


def test_a_data_set_is_downloaded_once(tmp_path, hub):
    publish("lab/cells")
    data = fetch(tmp_path, "lab/cells")
    assert np.array_equal(data.train.pixels, pictures(6))
    assert np.array_equal(data.test.pixels, pictures(2, seed=1))
    assert texts(data.notes) == (f"lab/cells of the Hugging Face Hub at commit {'a' * 40}",)
    fetched = [line for line in hub.asked if line.startswith("GET datasets/")]
    assert len(fetched) == 2
    assert not any("README" in line for line in hub.asked)
    hub.asked.clear()
    assert fetch(tmp_path, "lab/cells").digest == data.digest
    assert not [line for line in hub.asked if line.startswith("GET datasets/")]


def test_files_of_no_split_are_noted_beside_the_commit(tmp_path, hub):
    publish("lab/cells")
    extra = hub.root / "lab/cells" / COMMITS["main"] / "data/validation-00000-of-00001.parquet"
    write_parquet(extra, pictures(3), [0] * 3)
    commit, note = texts(fetch(tmp_path, "lab/cells").notes)
    assert commit.endswith("a" * 40)
    assert note.startswith("data/validation-00000-of-00001.parquet (3 rows) is not used: the images are those of data/")
    assert note.endswith("; data.test_split=validation tests on its 3 labelled images")
    assert np.array_equal(fetch(tmp_path, "lab/cells", test_split="validation").test.pixels, pictures(3))


def test_parts_without_a_test_split_lose_a_fifth(tmp_path, hub):
    pixels = pictures(20)
    for part in range(2):
        shard = hub.root / "lab/cells" / COMMITS["main"] / f"data/train-0000{part}-of-00002.parquet"
        write_parquet(shard, pixels[10 * part : 10 * part + 10], [0, 1] * 5)
    data = fetch(tmp_path, "lab/cells")
    assert np.bincount(data.test.labels).tolist() == [2, 2]
    assert texts(data.notes)[1].startswith(
        "2 Parquet files without a test split: a fifth of each class, 4 of 20 images"
    )


def test_a_catalogue_takes_every_split_of_one_data_set(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("RAYFED_SSL_CACHE", str(tmp_path / "cache"))
    publish("lab/cells")
    images = catalogued(SourceConfig(name="hub", path="lab/cells"))
    names = [name for name, _ in images.read()]
    assert names[:2] == ["data/train-00000-of-00001.parquet:0", "data/train-00000-of-00001.parquet:1"]
    assert images.splits == (("train", 6), ("test", 2))
    assert images.labels.tolist() == [0, 1] * 4
    publish("lab/two", "plain")
    publish("lab/two", "blurred")
    with pytest.raises(
        UserError, match=r"lab/two holds 2 data sets; give one of them: lab/two/blurred, lab/two/plain$"
    ):
        catalogued(SourceConfig(name="hub", path="lab/two"))
    assert len(catalogued(SourceConfig(name="hub", path="lab/two/plain"))) == 8


def test_without_network_the_cache_does(tmp_path, hub, monkeypatch):
    publish("lab/cells")
    data = fetch(tmp_path, "lab/cells")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert fetch(tmp_path, "lab/cells").digest == data.digest
    with pytest.raises(UserError, match=r"data\.path: lab/other is not in the cache .*, and the Hub cannot be reached"):
        fetch(tmp_path, "lab/other")


def test_revisions_and_folders(tmp_path, hub):
    publish("lab/cells", "plain")
    publish("lab/cells", "blurred", seed=5)
    publish("lab/cells", "default", "refs/convert/parquet", seed=9)
    with pytest.raises(UserError, match=r"lab/cells holds 2 data sets; .*: lab/cells/blurred, lab/cells/plain$"):
        fetch(tmp_path, "lab/cells")
    assert np.array_equal(fetch(tmp_path, "lab/cells/blurred").train.pixels, pictures(6, seed=5))
    converted = fetch(tmp_path, "lab/cells", revision="refs/convert/parquet")
    assert np.array_equal(converted.train.pixels, pictures(6, seed=9))
    with pytest.raises(UserError, match=r"data\.revision: found 'v9'; lab/cells has no such revision"):
        fetch(tmp_path, "lab/cells", revision="v9")


def test_the_layout_of_converted_data_sets(tmp_path, hub):
    """``CONFIG/train/0000.parquet``, as the Hub's own conversion writes it."""
    home = hub.root / "lab/cells" / COMMITS["refs/convert/parquet"] / "default"
    write_parquet(home / "train" / "0000.parquet", pictures(4), [0, 1] * 2)
    write_parquet(home / "validation" / "0000.parquet", pictures(2), [0, 1])
    assert len(fetch(tmp_path, "lab/cells", revision="refs/convert/parquet").train) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody/nothing", r"data\.path: nobody/nothing is no data set of the Hub, or a private one \(set HF_TOKEN\)"),
        ("lab/closed", r"data\.path: lab/closed wants its terms accepted"),
        ("lab/text", r"data\.path: lab/text holds no Parquet files on the Hub; data\.revision=refs/convert/parquet"),
        ("cells", r"data\.path: found 'cells'; a data set of the Hub is OWNER/NAME"),
        ("lab/../x", r"a data set of the Hub is OWNER/NAME"),
        ("lab/ce lls", r"a data set of the Hub is OWNER/NAME"),
    ],
)
def test_what_the_hub_does_not_have_is_named(tmp_path, hub, name, message):
    publish("lab/closed")
    text = hub.root / "lab/text" / COMMITS["main"] / "data.csv"
    text.parent.mkdir(parents=True)
    text.write_text("a,b")
    with pytest.raises(UserError, match=message) as error:
        fetch(tmp_path, name)
    assert "\n" not in str(error.value)


def test_columns_are_named_by_key(tmp_path, hub):
    publish("lab/cells", column="scan", label="diagnosis")
    with pytest.raises(UserError, match=r"no image column .* it has scan, diagnosis: name one in data\.columns\.image"):
        fetch(tmp_path, "lab/cells")
    data = fetch(tmp_path, "lab/cells", columns={"image": "scan", "label": "diagnosis"})
    assert data.train.labels.tolist() == [0, 1] * 3
