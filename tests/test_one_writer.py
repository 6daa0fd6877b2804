"""One run at a time in a folder: the lock, who is told what, and that a killed process lets go of it."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.base.lock import Held, Lock, is_at
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage.claim import LOCK, Claim, rewriting, writable
from tests.command_line import Call
from tests.places import ROOT
from tests.tiny import booked, encoders, measured, run_locally, tiny

CONFIG = {"train__rounds": 300, "checkpoint__every": 1, "evaluation__every": 100}
HOLD = """
import os, sys, time
from pathlib import Path
from rayfed_ssl.base.lock import Lock
lock = Lock(Path(sys.argv[1]))
if os.fork() == 0:  # a child that outlives its parent holds the same open file
    os.closerange(0, 3)
    time.sleep(float(sys.argv[2]))
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
lock.release()
print("released", flush=True)
sys.stdin.read()
"""


def unsupported(*args: Any) -> None:
    """What a file system without locks says."""
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.mark.long
def test_a_second_command_is_refused_and_a_killed_one_lets_go(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    configfile.dump(tiny("fedsimclr", **CONFIG), tmp_path / "config.yaml")
    command = ["run", str(tmp_path / "config.yaml"), "--executor", "local", "--out", str(folder)]
    with (tmp_path / "log").open("w") as log:
        living = subprocess.Popen([sys.executable, "-m", "rayfed_ssl", *command], cwd=ROOT, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 200
        while not list(folder.glob("checkpoints/round-*/complete.json")) and time.monotonic() < until:
            assert living.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        status, _, err = call(*command, "--resume")
        assert status == 2, err
        assert re.fullmatch(
            rf"--out: {folder} is being written by another run \(\S+, pid {living.pid}\); "
            "wait for it, stop it, or name another folder\n",
            err,
        ), err
        assert living.poll() is None
    finally:
        living.send_signal(signal.SIGKILL)
        living.wait()
    assert (folder / LOCK).exists()
    seen: list[str] = []
    stopping = {"stopping": lambda: True, "report": lambda p: seen.append(p.line)}
    summary = run_locally(tiny("fedsimclr", **CONFIG), folder, resume=True, **stopping)
    assert summary["status"] == "stopped"
    assert any(line.startswith("resumed from round") for line in seen)
    assert not (folder / LOCK).exists()
    measured(folder)  # nothing twice


@pytest.mark.long
def test_two_runs_of_one_process_are_kept_apart_and_the_first_is_undisturbed(tmp_path: Path) -> None:
    config, refused = tiny("fedsimclr"), []

    def again(progress: Progress) -> None:
        if progress.line == "round 1/3":
            for resume in (False, True):
                with pytest.raises(UserError, match=f"is being written by another run .*pid {os.getpid()}") as caught:
                    run_locally(config, tmp_path / "run", resume=resume)
                refused.append(caught)

    run_locally(config, tmp_path / "run", report=again)
    assert len(refused) == 2
    run_locally(config, tmp_path / "whole")
    assert encoders(tmp_path / "run") == encoders(tmp_path / "whole")
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")
    assert booked(tmp_path / "run") == booked(tmp_path / "whole")
    assert not (tmp_path / "run" / LOCK).exists()


def test_of_many_that_start_at_once_one_has_the_folder(tmp_path: Path) -> None:
    """Each undoes what it made when it cannot begin, folder and lock file too: nobody may slip in beside another."""
    inside, most, refused = [0], [0], [0]
    guard = threading.Lock()

    def begin() -> None:
        for _ in range(30):
            try:
                claim = Claim(tmp_path / "runs" / "run")
            except UserError:
                refused[0] += 1
                continue
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            (tmp_path / "runs" / "run" / "figures").mkdir(parents=True)
            with guard:
                inside[0] -= 1
            claim.close()

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert refused[0] < 180
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_folders_and_files_that_others_remove_meanwhile_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What mkdir says of a folder that is removed between its two looks, or above it, is no reason to go without."""
    make, at, left = Path.mkdir, is_at, {"exists": 12, "absent": 12, "elsewhere": 12}

    def mkdir(self: Path, *given: Any, **named: Any) -> None:
        for what, error in (("exists", FileExistsError), ("absent", FileNotFoundError)):
            if left[what]:
                left[what] -= 1
                raise error(self)
        make(self, *given, **named)

    def moving(descriptor: int, path: Path) -> bool:
        left["elsewhere"] -= 1
        return left["elsewhere"] < 0 and at(descriptor, path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr("rayfed_ssl.base.lock.is_at", moving)
    mine = Lock(tmp_path / "runs" / LOCK, patience_s=0.0)
    assert mine.why_not == ""
    assert left == {"exists": 0, "absent": 0, "elsewhere": -1}
    mine.release()
    assert not (tmp_path / "runs" / LOCK).exists()


@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError])
def test_nobody_who_looks_whether_a_folder_can_be_written_to_is_refused_for_another_who_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """Each removes what it made to look: a folder, and those above it, may be gone between any two calls."""
    make, write, left = Path.mkdir, Path.open, {"mkdir": 3, "open": 3}

    def mkdir(self: Path, *given: Any, **named: Any) -> None:
        left["mkdir"] -= 1
        if left["mkdir"] >= 0:
            raise error(errno.ENOENT, "gone", str(self))
        make(self, *given, **named)

    def opened(self: Path, *given: Any, **named: Any) -> Any:
        left["open"] -= 1
        if left["open"] >= 0:
            self.parent.rmdir()
        return write(self, *given, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "open", opened)
    writable(tmp_path / "runs" / "run")
    assert left["mkdir"] < 0
    assert left["open"] < 0
    assert not (tmp_path / "runs").exists()


def test_where_that_never_ends_the_lock_says_why_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert Lock(tmp_path / "file" / LOCK).why_not == "File exists"
    monkeypatch.setattr("rayfed_ssl.base.lock.is_at", lambda descriptor, path: False)
    assert Lock(tmp_path / LOCK).why_not == "No locks available"


def test_a_lock_is_free_once_released_though_a_process_inherited_it(tmp_path: Path) -> None:
    path = tmp_path / "runs" / LOCK
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), "20"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(Held, match=rf", pid {other.pid}$"):
        Lock(path, patience_s=0.2)
    other.stdin.close()
    assert other.stdout.readline() == b"released\n"
    lock = Lock(path, patience_s=0.2)
    assert lock.why_not == ""
    lock.release()
    lock.release()
    assert not path.exists()
    other.wait()


def test_a_lock_left_by_a_kill_is_taken_over_and_one_of_a_new_folder_left_alone(tmp_path: Path) -> None:
    path = tmp_path / LOCK
    path.write_text("elsewhere, pid 1\n" + "x" * 100)
    mine = Lock(path)
    assert path.read_text().endswith(f", pid {os.getpid()}\n")
    assert path.read_text().count("\n") == 1
    path.unlink()  # the folder was removed under the run, and another run began
    theirs = Lock(path)
    mine.release()
    assert path.exists()
    theirs.release()
    assert not path.exists()


def test_where_there_are_no_locks_the_run_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, seen = tiny("fedsimclr", train__rounds=1), list[str]()
    load_federation(config)  # images are decoded into a cache, which has a lock of its own
    monkeypatch.setattr(fcntl, "flock", unsupported)
    run_locally(config, tmp_path / "run", report=lambda p: seen.append(p.line))
    assert f"{tmp_path / 'run'} cannot be locked (Operation not supported)" in seen[0]
    assert "nothing keeps a second run from writing there" in seen[0]
    assert not (tmp_path / "run" / LOCK).exists()


def test_where_there_are_no_locks_no_file_of_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that names its owner does: it may hold the lock, on another machine."""
    monkeypatch.setattr(fcntl, "flock", unsupported)
    claim = Claim(tmp_path / "runs" / "run")
    claim.close()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "config.yaml").touch()
    with rewriting(tmp_path / "evaluation.json"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    (tmp_path / LOCK).write_text("elsewhere, pid 1\n")
    assert Lock(tmp_path / LOCK).why_not == "Operation not supported"
    assert (tmp_path / LOCK).read_text() == "elsewhere, pid 1\n"


def test_a_file_of_a_run_that_is_gone_is_not_written(tmp_path: Path) -> None:
    file, said = (
        tmp_path / "runs" / "run" / "leak.json",
        r"run: found no run any more; .*, and leak\.json was not written",
    )
    with pytest.raises(UserError, match=said), rewriting(file):
        raise AssertionError("nobody is to write")
    file.parent.mkdir(parents=True)
    with pytest.raises(UserError, match=said), rewriting(file):
        raise AssertionError("nobody is to write")
    assert list(file.parent.iterdir()) == []
    (file.parent / "config.yaml").touch()
    with rewriting(file) as write:
        shutil.rmtree(file.parent)
        with pytest.raises(UserError, match=said):
            write({})
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]


def test_a_file_that_the_disk_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "config.yaml").touch()
    monkeypatch.setattr("rayfed_ssl.storage.claim.write_json", full)
    said = r": leak\.json cannot be written there \(No space left on device\)$"
    with rewriting(tmp_path / "leak.json") as write, pytest.raises(UserError, match=said):
        write({})


def test_refusals_leave_folders_as_they_were(tmp_path: Path) -> None:
    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(UserError, match="already holds a run"):
        run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run")
    with pytest.raises(UserError, match=r"train\.rounds|cannot resume with changed"):
        run_locally(tiny("fedsimclr", train__rounds=1, seed=7), tmp_path / "run", resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--out: cannot write to \S+file"):
        run_locally(tiny("fedsimclr"), tmp_path / "file")
    assert sorted(str(path) for path in tmp_path.rglob("*") if path.name != "file") == before


def test_what_a_killed_process_was_writing_goes_and_nothing_else(tmp_path: Path) -> None:
    drafts = [
        ".config.yaml.12.tmp",
        ".summary.json.tmp",
        ".environment-2.json.tmp",
        ".partition.parquet.tmp",
        ".images.parquet.tmp",
        ".probe-7",
    ]
    for name in (*drafts, ".mine.tmp", "summary.json.tmp"):
        (tmp_path / name).write_text("x")
    claim = Claim(tmp_path)
    claim.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.tmp", "summary.json.tmp"]


@pytest.mark.long
def test_a_process_that_follows_one_just_killed_waits_for_the_kernel(tmp_path: Path) -> None:
    """As a driver that Ray restarts."""
    path = tmp_path / LOCK
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(path, ready))
    process.start()
    assert ready.wait(60)
    threading.Timer(0.5, process.kill).start()
    lock = Lock(path, patience_s=30.0)
    assert lock.why_not == ""
    lock.release()
    process.join()


def _hold(path: Path, ready: Any) -> None:
    lock = Lock(path)
    ready.set()
    time.sleep(600)
    lock.release()
