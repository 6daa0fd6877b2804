"""Checkpoints: what goes in comes out, and nothing half-written or damaged is ever read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rayfed_ssl import checkpoint
from rayfed_ssl.weights import Weights

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
            return a.dtype == b.dtype and np.array_equal(a, b)
        case dict(), dict():
            return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
        case list(), list():
            return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_round_trip(tmp_path: Path) -> None:
    server, clients = checkpoint.load(save(tmp_path, 3))
    assert same(server, TREE | {"round": 3})
    assert {c: s["z"].tolist() for c, s in clients} == {c: [c] * 3 for c in range(4)}


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


def test_kill_in_the_middle_of_a_checkpoint(tmp_path: Path) -> None:
    """SIGKILL while the files are being written: the previous checkpoint is intact and used, the remains go with the
    next.
    """
    save(tmp_path, 1)
    program = (
        "import os, signal, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from rayfed_ssl import checkpoint\n"
        "def states():\n"
        "    yield 0, {'z': np.zeros(9_000_000)}\n"  # more than one group: a file is on disk when the kill comes
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "checkpoint.save(Path(sys.argv[1]), 2, {}, states())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=Path(__file__).parents[1], timeout=120)
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
