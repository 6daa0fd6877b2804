"""Checkpoint trees, Parquet schemas and run folders as they should not be: what comes of any of them is the value, or
one printable line; nothing else, and nothing is left behind.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import load_file, save_file

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.config import build
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.simulation.checks import check_labels, check_shards, ignored_clients, ownership_notes
from rayfed_ssl.simulation.forecast import forecast
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.storage import checkpoint
from rayfed_ssl.testing.tiny import tiny_run
from tests.tiny import run_locally, tiny

few = settings(max_examples=40, derandomize=True, deadline=None, database=None)
PLAIN = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5)
)  # NaN is equal to nothing
ARRAYS = st.sampled_from(
    [np.zeros(0, np.float32), np.float16(0.1), np.arange(6).reshape(2, 3), np.array(7), np.eye(2, dtype=np.bool_)]
) | st.builds(Weights, st.text(max_size=3), st.just(np.ones(3, np.float32)), st.integers(0, 3))
KEYS = st.text(max_size=4) | st.integers(-3, 3) | st.sampled_from(["$map", "$array", "$weights", "$scalar"])
TREES = st.recursive(
    PLAIN | ARRAYS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
SKELETONS = st.recursive(
    PLAIN | st.sampled_from(["000000", "000001", "000009"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries({"$map": st.lists(st.lists(inner, max_size=3) | inner, max_size=3)})
        | st.fixed_dictionaries({"$array": inner})
        | st.fixed_dictionaries({"$scalar": inner})
        | st.fixed_dictionaries({"$weights": inner, "layout": inner, "parameters": inner})
        | st.dictionaries(st.sampled_from(["$map", "$array", "$scalar", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)


def same(a: object, b: object) -> bool:
    """Equal to the last bit and type."""
    match a, b:
        case Weights(), Weights():
            return (a.layout, a.parameters) == (b.layout, b.parameters) and np.array_equal(a.vector, b.vector)
        case dict(), dict():
            return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
        case list(), list():
            return len(a) == len(b) and all(map(same, a, b))
        case np.ndarray(), np.ndarray():
            return (a.dtype, a.shape) == (b.dtype, b.shape) and np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


@few
@given(TREES, st.dictionaries(st.integers(0, 4), TREES, max_size=2))
def test_any_tree_comes_back_from_a_checkpoint(server: Any, clients: dict[int, Any]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = checkpoint.save(Path(root), 1, server, iter(clients.items()))
        checkpoint.verify(folder)
        found, states = checkpoint.load(folder)
        assert same(found, server)
        assert same(dict(states), clients)
        assert [path.name for path in Path(root).iterdir()] == ["round-00001"]


@few
@given(SKELETONS)
def test_any_document_in_a_checkpoint_is_a_tree_or_damage(skeleton: Any) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = checkpoint.save(Path(root), 1, {"a": np.zeros(2), "b": np.array(3)}, [(0, {"c": np.ones(2)})])
        for name in ("server", "clients-00000"):
            (folder / f"{name}.json").write_text(json.dumps(skeleton))
        try:
            list(checkpoint.load(folder)[1])
            checkpoint.load(folder)
        except checkpoint.Damaged as damage:
            line = str(damage)
            assert line.isprintable()
            assert ".json: " in line


@few
@given(
    st.sampled_from(["server.safetensors", "server.json", "complete.json"]), st.integers(0, 400), st.binary(max_size=9)
)
def test_any_bytes_in_a_checkpoints_files_are_noticed(name: str, at: int, put: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = checkpoint.save(Path(root), 1, {"a": np.arange(5.0)}, [])
        before = (folder / name).read_bytes()
        after = before[:at] + put + before[at + len(put) :]
        (folder / name).write_bytes(after)
        found, passed_over = checkpoint.newest(Path(root))
        if found is None:
            assert len(passed_over) == 1
            assert passed_over[0].isprintable()
        else:  # the same bytes, or others in the marker that say the same
            assert after == before or name == "complete.json"
            assert same(checkpoint.load(folder)[0], {"a": np.arange(5.0)})


# -- Parquet -----------------------------------------------------------------------------------------------------------

BUFFER = io.BytesIO()
Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(BUFFER, "png")
PNG, ROWS = BUFFER.getvalue(), 12
TWO_CLASSES = [0, 1] * (ROWS // 2)
IMAGES = [
    pa.array([PNG] * ROWS),
    pa.array([{"bytes": PNG, "path": "a.png"}] * ROWS),
    pa.array([{"bytes": PNG, "path": None}] * ROWS),
    pa.array([PNG] * (ROWS - 1) + [None]),
    pa.array([b"no image"] * ROWS),
    pa.array([PNG] * ROWS, pa.large_binary()),
    pa.array([{"path": "a.png"}] * ROWS),
    pa.array([[1, 2]] * ROWS),
    pa.array(["text"] * ROWS),
]
LABELS = [
    pa.array(TWO_CLASSES),
    pa.array(TWO_CLASSES, pa.uint64()),
    pa.array([0, 2**64 - 1] * (ROWS // 2), pa.uint64()),
    pa.array(TWO_CLASSES, pa.int8()),
    pa.array([0.0, 1.0] * (ROWS // 2)),
    pa.array(["a", "b"] * (ROWS // 2)),
    pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(),
    pa.array([None] * ROWS),
    pa.array([0, None] * (ROWS // 2)),
    pa.array([-5, 1] * (ROWS // 2)),
    pa.array([0, 10**9] * (ROWS // 2)),
    pa.array([[0], [1]] * (ROWS // 2)),
    pa.array([True, False] * (ROWS // 2)),
]
CLIENTS = [
    pa.array(["north", "south"] * (ROWS // 2)),
    pa.array(["north\x1b[2J", "south\n"] * (ROWS // 2)),
    pa.array(["north", None] * (ROWS // 2)).dictionary_encode(),
    pa.array([7, 3] * (ROWS // 2), pa.uint64()),
    pa.array([0.5, 1.5] * (ROWS // 2)),
    pa.array([None] * ROWS),
]
NAMES = ["img", "image", "label", "labels", "fine_label", "client", "x\x1b[2J", ""]
COLUMNS = st.lists(
    st.tuples(st.just("img"), st.sampled_from(IMAGES))
    | st.tuples(st.just("label"), st.sampled_from(LABELS))
    | st.tuples(st.just("client"), st.sampled_from(CLIENTS))
    | st.tuples(st.sampled_from(NAMES), st.sampled_from([*IMAGES, *LABELS, *CLIENTS])),
    max_size=5,
)
METADATA = st.none() | st.dictionaries(
    st.sampled_from(["class_names", "huggingface", "x"]),
    st.sampled_from(["", "null", "[", "3", '["a"]', '["a", "b\\u001b[2J"]', "[[]]", '{"info": 3}', "\x00"])
    | st.just(json.dumps({"info": {"features": {"label": {"names": ["zero", "one"]}}}})),
    max_size=2,
)
GOOD = [("img", IMAGES[0]), ("label", LABELS[0]), ("client", CLIENTS[0])]


@settings(few, max_examples=60)
@given(COLUMNS, COLUMNS | st.just(GOOD), METADATA, st.booleans(), st.booleans())
def test_any_parquet_gives_images_or_one_line(
    train: list[tuple[str, pa.Array]],
    test: list[tuple[str, pa.Array]],
    metadata: dict[str, str] | None,
    swap: bool,
    by_client: bool,
) -> None:
    with tempfile.TemporaryDirectory() as root:
        parts = {"train": test, "test": train} if swap else {"train": train, "test": test}
        for split, columns in parts.items():
            names, arrays = [name for name, _ in columns], [array for _, array in columns]
            table = pa.Table.from_arrays(arrays, names=names)
            pq.write_table(table.replace_schema_metadata(metadata), Path(root) / f"{split}.parquet")
        data: dict[str, object] = {"name": "parquet", "path": root, "image_size": 8}
        if by_client:
            data |= {"columns": {"client": "client"}, "partition": {"name": "natural"}}
        document = {"method": {"name": "fedsimclr"}, "data": data, "clients": {"count": 2}}
        cache = Path(root) / "cache"
        try:
            config = build(document, {}, origin="a test")
            federation = load_federation(config, cache)
            check_shards(config, federation)
            check_labels(config, federation)
        except UserError as refused:
            for line in str(refused).split("\n"):
                assert line.isprintable(), repr(line)
                assert ": " in line
        else:
            known = federation.dataset.train.labels
            assert set(federation.dataset.test.labels) <= {-1, *known}
            assert sum(len(shard["train"]) for shard in federation.shards) <= len(known) <= ROWS
            assert all(name.isprintable() for name in federation.names)
        assert not [path.name for path in cache.rglob("*") if path.name.endswith((".tmp", ".lock", ".partial"))]


# -- evaluate ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_locally(tiny("fedsimclr", train__rounds=1), folder)
    return folder


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """For as long, nothing can be written into ``folder``, not even by root."""
    before = os.geteuid()
    for path in (folder, *folder.parents):
        if path.stat().st_uid == before and path.is_relative_to(tempfile.gettempdir()):
            path.chmod(path.stat().st_mode | 0o055)
    mode = folder.stat().st_mode
    folder.chmod(0o555)
    try:
        if before == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(before)
        folder.chmod(mode)


def refused(run: Path) -> str:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as caught:
        reevaluate(run)
    assert str(caught.value).isprintable()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    return str(caught.value)


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(finished: Path) -> None:
    with read_only(finished), pytest.raises(UserError) as caught:
        reevaluate(finished)
    said = "cannot be written to, and evaluation.json belongs there; copy the run elsewhere"
    assert str(caught.value) == f"{finished}: {said}"


def _other_shape(run: Path) -> None:
    values = load_file(run / "encoder/global.safetensors")
    name = sorted(values)[0]
    save_file({**values, name: np.zeros((*values[name].shape, 2), np.float32)}, run / "encoder/global.safetensors")


def _rewritten(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_other_shape, r"global.safetensors"),
        (lambda run: (run / "encoder/global.safetensors").write_bytes(b""), "global.safetensors: cannot be read"),
        (lambda run: (run / "encoder/global.safetensors").unlink(), "global.safetensors: cannot be read"),
        (lambda run: save_file({}, run / "encoder/global.safetensors"), "global.safetensors"),
        (lambda run: (run / "encoder/global.json").write_text("{"), "global.json: found no description"),
        (lambda run: _rewritten(run / "encoder/global.json", encoder="resnet18"), "global.safetensors"),
        (lambda run: _rewritten(run / "encoder/global.json", encoder="no such"), "no such"),
        (lambda run: _rewritten(run / "encoder/global.json", encoder=[1]), "[1]"),
        (lambda run: _rewritten(run / "encoder/global.json", values=3), "global.json: found no description"),
        (lambda run: shutil.rmtree(run / "encoder"), "found no encoder"),
        (lambda run: (run / "config.yaml").unlink(), "config.yaml"),
        (lambda run: (run / "config.yaml").write_text("name: [\n"), "config.yaml"),
        (lambda run: (run / "config.yaml").write_bytes(b"\xff\xfe\x00"), "config.yaml"),
        (lambda run: (run / "evaluation.json").write_text("[3]"), "evaluation.json: cannot be read"),
        (lambda run: (run / "evaluation.json").write_text('{"accuracy": {"global": 3}}'), "evaluation.json: cannot be"),
        (lambda run: (run / "evaluation.json").mkdir(), "evaluation.json: cannot be read"),
        (lambda run: (run / ".evaluation.json.tmp").mkdir(), "evaluation.json cannot be written there"),
    ],
)
def test_a_damaged_run_is_evaluated_or_refused_in_a_line(
    finished: Path, damage: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    damage(tmp_path / "run")
    assert said in refused(tmp_path / "run")


def trees(root: Path) -> Path:
    """train/CLIENT/CLASS and test/CLASS."""
    for place in (
        "train/ward-1/cat",
        "train/ward-1/dog",
        "train/ward-2/cat",
        "train/ward-2/dog",
        "test/cat",
        "test/dog",
    ):
        (root / place).mkdir(parents=True)
        for k in range(6):
            Image.fromarray(np.full((8, 8), 20 * k, np.uint8)).save(root / place / f"{k}.png")
    return root


def test_client_folders_that_are_taken_for_classes_are_named(tmp_path: Path) -> None:
    data = {"data.name": "imagefolder", "data.path": str(trees(tmp_path / "images")), "data.image_size": 8}
    sizes = {"data.limit": None, "data.test_limit": None, "train.batch_size": 4, "clients.count": 2}
    config = tiny_run("fedsimclr", {**data, **sizes})
    with pytest.raises(UserError, match=r"allowed: data\.layout=clients if the outer ones are clients"):
        load_federation(config)
    dealt = tiny_run("fedsimclr", {**data, **sizes, "data.layout": "clients", "train.rounds": 1})
    told: list[str] = []
    run_locally(dealt, tmp_path / "run", report=lambda progress: told.append(progress.line))
    note = (
        "data.partition.name: dirichlet deals the images of 2 client folders or values anew; "
        "data.partition.name=natural with clients.count=2 gives each client its own"
    )
    assert note in told
    assert note in forecast(dealt).notes
    natural = tiny_run("fedsimclr", {**data, **sizes, "data.layout": "clients", "data.partition": {"name": "folders"}})
    assert ignored_clients(natural, load_federation(natural)) == []


def test_images_in_one_folder_belong_to_one_owner_and_a_note_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(8):
        (tmp_path / "phone/DCIM").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(tmp_path / f"phone/DCIM/{k}.png")
    changes = {
        "data.name": "imagefolder", "data.path": str(tmp_path / "phone"), "data.image_size": 8, "data.limit": None,
        "data.layout": "clients_flat", "data.partition": {"name": "iid"}, "clients.count": 2,
        "evaluation.protocols": [],
    }  # fmt: skip
    note = (
        "all 8 training images are in one client folder, DCIM: they belong to one owner; data.path names the folder "
        "that holds a folder per client"
    )
    config = tiny_run("fedsimclr", changes)
    assert list(texts(ownership_notes(config, load_federation(config)))) == [note]
    natural = tiny_run("fedsimclr", {**changes, "data.partition": {"name": "natural"}})
    with pytest.raises(UserError) as caught:
        load_federation(natural)
    assert str(caught.value) == (
        "clients.count: 2, but the images are of one client folder or value, DCIM, and belong to one owner; set "
        "clients.count=1"
    )
    alone = tiny_run("fedsimclr", {**changes, "data.layout": "flat", "data.group": "DCIM"})
    assert "data.group finds 1 group in 8 images, such as DCIM: all are of one" in texts(
        load_federation(alone).dataset.notes
    )
    (tmp_path / "phone/0.png").write_bytes((tmp_path / "phone/DCIM/0.png").read_bytes())
    (line,) = texts(ownership_notes(config, load_federation(config)))
    assert line.startswith("all 8 training images that have a client are in one client folder, DCIM: ")
    (tmp_path / "phone/WhatsApp").mkdir()
    (tmp_path / "phone/0.png").rename(tmp_path / "phone/WhatsApp/0.png")
    assert not any("one owner" in line for line in texts(ownership_notes(config, load_federation(config))))


def test_two_mistakes_about_labels_are_two_lines(tmp_path: Path) -> None:
    for k in range(12):
        (tmp_path / "train").mkdir(exist_ok=True)
        Image.fromarray(np.arange(k, k + 64, dtype=np.uint8).reshape(8, 8)).save(tmp_path / f"train/{k}.png")
    changes = {
        "data.name": "imagefolder", "data.path": str(tmp_path), "data.image_size": 8, "data.limit": None,
        "data.test_limit": None, "data.partition": {"name": "iid"}, "objective.name": "supervised", "clients.count": 2,
    }  # fmt: skip
    config = tiny_run("centralized", changes)
    with pytest.raises(UserError) as caught:
        check_labels(config, load_federation(config))
    first, second = str(caught.value).splitlines()
    assert first.startswith("objective.name: found 'supervised', but 12 of 12 training images have no label")
    assert second.startswith("evaluation.protocols: found knn, but none of the 12 train images has a label")
