"""Checkpoints: what goes in comes out, and nothing half-written or damaged is ever read."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from rayfed_ssl.base.files import write_json
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.storage import checkpoint
from tests.places import ROOT

TREE = {
    "weights": Weights("layout", np.arange(5, dtype=np.float32), 4),
    "bank": {3: np.eye(2, dtype=np.float32), 0: np.zeros((0, 4), np.int64)},
    "list": [1, 2.5, None, "text", True, {"deep": np.float16(2.0)}],
    "empty": {},
}


def save(root: Path, round: int) -> Path:
    return checkpoint.save(root, round, TREE | {"round": round}, ((c, {"z": np.full(3, c)}) for c in range(4)))


def same(a: object, b: object) -> bool:
    match a, b:
        case Weights(), Weights():
            return a.layout == b.layout and a.parameters == b.parameters and np.array_equal(a.vector, b.vector)
        case np.ndarray(), np.ndarray():
            return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        case dict(), dict():
            return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
        case list(), list():
            return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


KINDS = [np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.uint64, np.bool_, np.complex64]


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_keep_their_type_and_arrays_their_shape(kind: type[np.generic], tmp_path: Path) -> None:
    """A value that changes between float32 and float64 changes what a resumed run computes."""
    number = np.pi if np.issubdtype(kind, np.inexact) else 1
    cube = np.arange(24).reshape(2, 3, 4).astype(kind)
    tree = {
        "scalar": kind(number), "no dimensions": np.array(number, kind), "one": np.array([number], kind),
        "strided": cube[:, ::2].T, "empty": np.zeros((0, 3), kind), "one of none": np.zeros((1, 0, 1), kind),
    }  # fmt: skip
    assert tree["no dimensions"].shape == ()
    folder = checkpoint.save(tmp_path, 1, {"deep": [tree]}, [(5, tree)])
    server, clients = checkpoint.load(folder)
    assert same(server, {"deep": [tree]})
    assert same(dict(clients), {5: tree})


def test_plain_values_stay_plain_and_other_things_are_refused(tmp_path: Path) -> None:
    plain = {"float": 0.1, "int": 2**60, "nothing": None, "flag": False, "text": "é", 7: "a number as a key"}
    assert same(checkpoint.load(checkpoint.save(tmp_path, 1, plain, []))[0], plain)
    assert same(checkpoint.load(checkpoint.save(tmp_path, 2, {"t": np.str_("a")}, []))[0], {"t": "a"})
    with pytest.raises(TypeError, match="a checkpoint holds arrays"):
        checkpoint.save(tmp_path, 3, {"set": {1}}, [])
    assert [t for t, _ in checkpoint.complete(tmp_path)] == [1, 2]


def test_round_trip(tmp_path: Path) -> None:
    server, clients = checkpoint.load(save(tmp_path, 3))
    assert same(server, TREE | {"round": 3})
    assert isinstance(server["list"][5]["deep"], np.float16)
    assert {c: s["z"].tolist() for c, s in clients} == {c: [c] * 3 for c in range(4)}


def test_one_object_is_written_once_and_is_one_again(tmp_path: Path) -> None:
    array, weights = np.arange(6.0), Weights("layout", np.arange(5, dtype=np.float32), 4)
    columns, alike = np.asfortranarray(np.eye(2, 3)), Weights("layout", weights.vector, 4)
    tree = {"a": [array, weights, columns], "b": {1: array, 2: weights, 3: columns, 4: alike}}
    folder = checkpoint.save(tmp_path, 1, tree, [])
    found, _ = checkpoint.load(folder)
    assert same(found, tree)
    assert all(found["a"][k] is found["b"][k + 1] for k in range(3))
    assert found["b"][4] is not found["b"][2]
    assert len(load_file(folder / "server.safetensors")) == 4


class Drawn(Mapping[str, Weights]):
    """Values that are made when they are read, and that nobody else keeps."""

    def __getitem__(self, key: str) -> Weights:
        return Weights("layout", np.full(3, float(key), np.float32), 3)

    def __iter__(self) -> Iterator[str]:
        return iter("01234567")

    def __len__(self) -> int:
        return 8


def test_values_that_are_made_as_they_are_written_are_told_apart(tmp_path: Path) -> None:
    found, _ = checkpoint.load(checkpoint.save(tmp_path, 1, {"drawn": Drawn()}, []))
    assert {key: w.vector.tolist() for key, w in found["drawn"].items()} == {key: [float(key)] * 3 for key in Drawn()}


@pytest.mark.parametrize("axes", itertools.permutations(range(3)))
def test_an_array_keeps_its_order_in_memory(axes: tuple[int, ...], tmp_path: Path) -> None:
    cube = np.arange(24.0).reshape(2, 3, 4).transpose(axes)
    found, _ = checkpoint.load(checkpoint.save(tmp_path, 1, {"cube": cube}, []))
    assert found["cube"].strides == cube.strides
    np.testing.assert_array_equal(found["cube"], cube)


def test_states_are_grouped_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "GROUP_BYTES", 40)
    folder = save(tmp_path, 1)
    assert len(list(folder.glob("clients-*.safetensors"))) == 2
    assert [c for c, _ in checkpoint.load(folder)[1]] == [0, 1, 2, 3]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 1)
    victim = save(tmp_path, 2) / "clients-00000.safetensors"
    content = bytearray(victim.read_bytes())
    if damage == "remove":
        victim.unlink()
    else:
        content[-1] ^= 1
        victim.write_bytes(content if damage == "flip" else content[:-8])
    found, damaged = checkpoint.newest(tmp_path)
    assert found is not None
    assert found[0] == 1
    assert len(damaged) == 1
    assert "clients-00000.safetensors" in damaged[0]


def test_without_its_marker_it_does_not_exist(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / checkpoint.MARKER).unlink()
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert found[0] == 1


def test_an_error_in_the_middle_leaves_the_previous_one_and_no_litter(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def broken() -> object:
        yield 0, {"z": np.zeros(3)}
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, TREE, broken())  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["round-00001"]


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, named: list[str]) -> None:
    save(tmp_path, 1)
    write_json(tmp_path / "summary.json", {"status": "complete"})
    assert named == ["round-00001", "summary.json"]


def test_names_are_on_the_disk_before_anything_rests_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that holds a name is synced after the name was given: else a power cut may take it back."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        sync(descriptor)
        done.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")

    def renamed(old: Path, new: Path) -> None:
        replace(old, new)
        done.append(f"name {new.name}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    save(tmp_path / "checkpoints", 1)
    assert done[-4:-2] == ["sync complete.json", f"sync .writing-00001-{os.getpid()}"]
    assert done[-2:] == ["name round-00001", "sync checkpoints"]
    write_json(tmp_path / "run" / "summary.json", {"status": "complete"})
    assert done[-3:] == ["sync .summary.json.tmp", "name summary.json", "sync run"]


def test_folders_that_cannot_be_synced_are_left_to_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, number = os.fsync, errno.EINVAL

    def refused(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refused)
    save(tmp_path, 1)
    number = errno.EIO  # a disk that fails
    with pytest.raises(OSError, match="Input/output error"):
        save(tmp_path, 2)


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True])
def test_a_round_saved_twice_is_there_at_every_moment(after: bool, tmp_path: Path) -> None:
    """SIGKILL before or after the second checkpoint gets its name: the first, or the second, is read."""
    checkpoint.save(tmp_path, 1, {"made": 1}, [])
    checkpoint.save(tmp_path, 2, {"made": 1}, [])
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from rayfed_ssl.storage import checkpoint\n"
        "replace = os.replace\n"
        "def killed(old, new):\n"
        f"    {after} and replace(old, new)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.replace = killed\n"
        "checkpoint.save(Path(sys.argv[1]), 2, {'made': 2}, [])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, timeout=120)
    assert done.returncode == -signal.SIGKILL
    found, damaged = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found[0], damaged) == (2, [])
    assert checkpoint.load(found[1])[0] == {"made": 2 if after else 1}
    assert [t for t, _ in checkpoint.complete(tmp_path)] == [1, 2]
    checkpoint.save(tmp_path, 2, {"made": 3}, [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-00001", "round-00002"]
    assert checkpoint.load(tmp_path / "round-00002")[0] == {"made": 3}


def test_a_round_that_cannot_be_saved_again_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 2, {"made": 1}, [])

    def full(old: Path, new: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, {"made": 2}, [])
    assert [p.name for p in tmp_path.iterdir()] == ["round-00002"]
    assert checkpoint.load(tmp_path / "round-00002")[0] == {"made": 1}


def test_what_was_replaced_and_is_damaged_is_set_aside_under_its_own_name(tmp_path: Path) -> None:
    save(tmp_path, 2).rename(tmp_path / "round-00002.replaced")
    assert checkpoint.set_aside(tmp_path, 1) == ["round-00002.damaged"]
    assert [p.name for p in tmp_path.iterdir()] == ["round-00002.damaged"]


def test_kill_in_the_middle_of_a_checkpoint(tmp_path: Path) -> None:
    """SIGKILL while the files are being written: the previous checkpoint is intact and used, the remains go with the
    next.
    """
    save(tmp_path, 1)
    program = (
        "import os, signal, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from rayfed_ssl.storage import checkpoint\n"
        "def states():\n"
        "    yield 0, {'z': np.zeros(9_000_000)}\n"  # more than one group: a file is on disk when the kill comes
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.save(Path(sys.argv[1]), 2, {}, states())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert any(p.name.startswith(".writing-") for p in tmp_path.iterdir())
    found, damaged = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found[0], damaged) == (1, [])
    save(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-00001", "round-00002"]


def test_prune_keeps_the_newest_and_every_nth(tmp_path: Path) -> None:
    for t in range(1, 8):
        save(tmp_path, t)
    checkpoint.prune(tmp_path, keep=2, keep_every=3)
    assert [t for t, _ in checkpoint.complete(tmp_path)] == [3, 6, 7]


def test_the_marker_lists_every_file(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    listed = json.loads((folder / checkpoint.MARKER).read_text())["files"]
    assert sorted(listed) == sorted(p.name for p in folder.iterdir() if p.name != checkpoint.MARKER)
    assert all(listed[name]["bytes"] == os.stat(folder / name).st_size for name in listed)


def test_only_names_of_the_runs_own_count(tmp_path: Path) -> None:
    """A copy that a user made, and folders that merely begin alike, are neither read nor removed."""
    for t in (1, 2, 3):
        save(tmp_path, t)
    strangers = ["round-00003-copy", "round-3", "round-", "round-0000x", "round-00009.damaged.bak", "my-round-00009"]
    for name in strangers:
        shutil.copytree(tmp_path / "round-00003", tmp_path / name)
    assert [t for t, _ in checkpoint.complete(tmp_path)] == [1, 2, 3]
    found, damaged = checkpoint.newest(tmp_path)
    assert found == (3, tmp_path / "round-00003")
    assert damaged == []
    checkpoint.prune(tmp_path, keep=1, keep_every=0)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["round-00003", *strangers])


def test_a_large_round_has_more_digits(tmp_path: Path) -> None:
    for t in (99_999, 100_000):
        save(tmp_path, t)
    assert [t for t, _ in checkpoint.complete(tmp_path)] == [99_999, 100_000]


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"files": 3}', '{"files": {"server.json": {"bytes": 1}}}'])
def test_a_marker_of_another_shape_is_damage(marker: str, tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / checkpoint.MARKER).write_text(marker)
    found, damaged = checkpoint.newest(tmp_path)
    assert found == (1, tmp_path / "round-00001")
    assert len(damaged) == 1


def test_what_was_set_aside_goes_when_it_was_made_again(tmp_path: Path) -> None:
    for t in (10, 20, 30):
        save(tmp_path, t)
    assert checkpoint.set_aside(tmp_path, 10) == ["round-00020.damaged", "round-00030.damaged"]
    assert checkpoint.complete(tmp_path) == [(10, tmp_path / "round-00010")]
    save(tmp_path, 20)
    checkpoint.prune(tmp_path, keep=2, keep_every=0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-00010", "round-00020", "round-00030.damaged"]
