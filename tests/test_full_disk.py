"""A disk that takes no more: a real one (a small tmpfs, where mounting is permitted), and a limit on a file's size.

Wherever it happens, it is one line and exit status 2, the last checkpoint is intact, and a run that could not begin
leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records.tensorboard import TensorBoard
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.storage import checkpoint, claim
from tests.places import ROOT
from tests.tiny import booked, encoders, measured, run_locally, tiny

Resize = Callable[[int], None]
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)  # Python ignores SIGXFSZ: writing raises EFBIG
from rayfed_ssl.cli import main
main(sys.argv[2:])
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Resize]]:
    """A file system of its own and how to set its size in KB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, text=True
        )
    except OSError as error:
        pytest.skip(f"no mount command: {error}")
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted: {done.stderr.strip()}")

    def resize(kilobytes: int) -> None:
        options = f"remount,size={kilobytes}k"
        subprocess.run(["mount", "-o", options, str(place)], check=True, capture_output=True)

    yield place, resize
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_locally(tiny("fedsimclr", figures=True), folder)
    return folder


def same(folder: Path, whole: Path) -> None:
    assert encoders(folder) == encoders(whole)
    assert measured(folder) == measured(whole)
    assert booked(folder) == booked(whole)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["accuracy"] == json.loads((whole / "summary.json").read_text())["accuracy"]


SAID = {  # KB of disk -> what cannot be written; the run takes 230
    16: r"what is known before the first round into \S+ \(No space left on device\); nothing is left of this run",
    80: r"the checkpoint of round 1 into .*; there is no checkpoint yet: --resume starts again from round 0",
    112: r"the checkpoint of round 2 into .*; the checkpoint of round 1 is intact: --resume goes on from there",
    208: r"the results into .*; the checkpoint of round 3 is intact: --resume goes on from there",
}


@pytest.mark.long
@pytest.mark.parametrize("kilobytes", SAID)
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(
    kilobytes: int,
    disk: tuple[Path, Resize],
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place, resize = disk
    folder, config = place / "runs" / "mine", tiny("fedsimclr", figures=True)
    resize(kilobytes)
    monkeypatch.setattr(claim, "PROBE", b"")  # so that it is found where it hurts
    with pytest.raises(UserError) as caught:
        run_locally(config, folder)
    assert re.match(f"--out: cannot write {SAID[kilobytes]}$", str(caught.value)), caught.value
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""  # no thread died with a traceback
    began = folder.exists()
    assert list(place.iterdir()) == ([place / "runs"] if began else [])
    assert not list(folder.rglob("*.tmp"))
    resize(4096)
    run_locally(config, folder, resume=began)
    same(folder, whole)


@pytest.mark.long
@pytest.mark.parametrize("share", [0.1, 0.4, 0.7])
def test_inodes_that_run_out_are_one_line_too(
    share: float, disk: tuple[Path, Resize], whole: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """There is room for bytes, and none for another file, after a share of those that a run makes."""
    place, resize = disk
    folder, config = place / "runs" / "mine", tiny("fedsimclr", figures=True)
    resize(16384)
    files = 3 + round(share * len(list(whole.rglob("*"))))
    subprocess.run(["mount", "-o", f"remount,nr_inodes={files}", str(place)], check=True, capture_output=True)
    with pytest.raises(UserError) as caught:
        run_locally(config, folder)
    said = (
        r"--out: cannot write (to|.* into) \S+ \(No space left on device\); (name a folder|.*--resume|nothing is left)"
    )
    assert re.match(said, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
    assert not list(folder.rglob("*.tmp"))
    began = (folder / "config.yaml").exists()
    subprocess.run(["mount", "-o", "remount,nr_inodes=1000", str(place)], check=True, capture_output=True)
    run_locally(config, folder, resume=began)
    same(folder, whole)


def test_a_full_disk_is_found_before_anything_is_done(disk: tuple[Path, Resize]) -> None:
    place, resize = disk
    resize(32)
    with pytest.raises(UserError, match=r"--out: cannot write to .* \(No space left on device\)"):
        claim.writable(place / "runs" / "mine")
    assert list(place.iterdir()) == []
    with pytest.raises(UserError, match=r"--out: cannot write to .* \(No space left on device\)"):
        run_locally(tiny("fedsimclr", figures=True), place / "runs" / "mine")
    assert list(place.iterdir()) == []


def test_what_lay_in_the_folder_before_stays(disk: tuple[Path, Resize], monkeypatch: pytest.MonkeyPatch) -> None:
    place, resize = disk
    (place / "notes.txt").write_text("mine")
    (place / "plans").mkdir()
    resize(20)
    monkeypatch.setattr(claim, "PROBE", b"")
    with pytest.raises(UserError, match="nothing is left of this run"):
        run_locally(tiny("fedsimclr", figures=True), place)
    assert {path.name for path in place.iterdir()} == {"notes.txt", "plans"}


def test_an_interrupt_while_setting_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rayfed_ssl.simulation.recorder.write_partition", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_locally(tiny("fedsimclr", figures=True), tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (8 << 10, r"--out: cannot write to \S+ \(File too large\); name a folder you may write to"),
        (
            80 << 10,
            r"--out: cannot write the checkpoint of round 1 into \S+ \(File too large\); there is no checkpoint",
        ),
    ],
)
def test_a_file_that_grows_too_large_ends_the_command_with_one_line(limit: int, said: str, tmp_path: Path) -> None:
    """The same without privileges, through the command line: safetensors, pyarrow and Python meet a real EFBIG."""
    configfile.dump(tiny("fedsimclr", model__width=1.0, train__rounds=1), tmp_path / "config.yaml")
    command = ["run", "config.yaml", "--executor", "local", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *command],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert re.match(said, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "out").exists() == ("checkpoint" in said)
    assert not list(tmp_path.glob("out/checkpoints/*"))


@pytest.mark.long
@pytest.mark.parametrize("form", ["torch", "torchscript", "onnx", "hub-folder"])
def test_an_export_that_the_disk_does_not_take_is_one_line(form: str, whole: Path, tmp_path: Path) -> None:
    """A process of its own: torch's writers of archives end theirs, where they meet a full disk themselves."""
    command = ["export", str(whole), "--to", form, "--out", "a/b"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(4 << 10), *command],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "--out: a/b cannot be written (File too large)\n")
    assert list(tmp_path.iterdir()) == []


def test_every_writer_raises_an_os_error(disk: tuple[Path, Resize]) -> None:
    place, resize = disk
    resize(64)
    for save in (
        lambda path: save_file({"a": np.zeros(10**6)}, path),
        lambda path: save_tensors({"a": torch.zeros(10**6)}, path),
    ):
        with pytest.raises(OSError, match="No space left") as caught, checkpoint.disk_errors():
            replace_file(place / "a", save)
        assert caught.value.errno == 28
    board = TensorBoard(place, clients=1, purge_step=None, epoch_s=0.0)
    with pytest.raises(OSError, match="No space left"):
        board.text("config", "x" * 10**6, 0)
    with contextlib.suppress(OSError):
        board.close()
    board.close()
    with pytest.raises(OSError, match="No such file") as caught, checkpoint.disk_errors():
        save_file({"a": np.zeros(3)}, place / "absent" / "a")
    assert caught.value.errno == 2
