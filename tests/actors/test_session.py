"""The connection to Ray: loopback only, a private token, never joined by chance, never waited for without end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray._private import services, utils

from actors.instance import NotStarted, start_instance
from actors.session import (
    check_paths,
    check_token_path,
    connect,
    keeping_sigterm,
    private_folder,
    probe,
)
from rayfed_ssl.base.schema import UserError
from tests.cluster.processes import descendants, orphans, title
from tests.places import ROOT
from tests.tiny import tiny

LOCAL = """
import json, os, stat
import actors
from pathlib import Path
import ray
from actors.session import connect
from ray._raylet import AuthenticationMode, get_authentication_mode

NAMES = ("OMP_NUM_THREADS", "MALLOC_MMAP_THRESHOLD_")
os.environ["OMP_NUM_THREADS"] = "7"
with connect(num_cpus=1, num_gpus=0, object_store_memory=80 * 1024**2, threads=3) as session:
    folder = Path(ray._private.worker._global_node.get_temp_dir_path())
    mode = stat.S_IMODE(folder.parent.stat().st_mode)
    asks = ray.get(ray.remote(lambda: os.environ["RAY_AUTH_MODE"]).remote())
    inherited = ray.get(ray.remote(lambda: [os.environ.get(name) for name in NAMES]).remote())
    found = {"local": session.local, "folder": str(folder.parent), "mode": mode, "auth": asks}
    found |= {"threads": session.threads, "inherited": inherited, "own": [os.environ.get(name) for name in NAMES]}
    found["token"] = get_authentication_mode() == AuthenticationMode.TOKEN
    print(json.dumps(found), flush=True)
    input()
"""


def listening(pids: set[int]) -> set[str]:
    """The addresses, as the kernel writes them, on which these processes accept TCP connections."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
def test_a_local_instance_listens_on_loopback_keeps_its_token_private_and_ends(tmp_path: Path) -> None:
    """Whatever the shell says of tokens, and with a home that nothing can be written to."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    variables |= {"HOME": "/dev/null", "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN_PATH": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", LOCAL], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    ours = descendants(process.pid)
    servers = [p for p in ours.values() if Path(title(p[0]).split(" ")[0]).name in ("raylet", "gcs_server")]
    assert len(servers) == 2  # the check sees what it is about
    assert listening(set(ours)) <= LOOPBACK
    assert listening(set(ours))
    sessions = {os.getsid(server[0]) for server in servers}
    assert os.getsid(process.pid) not in sessions  # what is sent to the command's group does not reach them
    assert found["local"] is True
    assert (found["token"], found["auth"]) == (True, "token")
    assert found["mode"] == 0o700
    assert (found["threads"], found["inherited"]) == (3, ["3", str(1 << 30)])  # for its processes only
    assert found["own"] == ["7", None]
    assert list(Path(found["folder"]).glob("*/session_*/sockets/raylet"))
    process.communicate("\n", timeout=120)
    assert process.returncode == 0
    assert not orphans(servers, 60)
    assert not Path(found["folder"]).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_cluster_that_does_not_answer_is_an_error_in_time() -> None:
    with socket.socket() as server:  # takes connections and never says a word
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"RAY_ADDRESS: found {address}; no answer within 3 s"):
            probe(address, timeout_s=3)


@pytest.mark.parametrize(("name", "kind"), [(".", "a folder"), ("absent", "no file")])
def test_a_token_path_that_is_no_file_is_one_line(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / name))
    with pytest.raises(UserError, match=f"RAY_AUTH_TOKEN_PATH: found .*, which is {kind}; allowed: a file"):
        check_token_path()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    check_token_path()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short temporary folder, as the next instance's place."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_an_instances_folder_is_private_and_goes_at_the_end(place: Path) -> None:
    said: list[str] = []
    with private_folder(said.append) as inner:
        (folder,) = place.iterdir()
        assert inner.parent == folder
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(f"{inner}/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store") <= 107
        inner.chmod(0o777)  # as Ray does
        (inner / "log").write_text("x")
    for error in (UserError("no"), KeyboardInterrupt(), SystemExit(130)):
        with pytest.raises(type(error)), private_folder(said.append):
            raise error
    assert list(place.iterdir()) == []
    assert said == []


def test_an_instances_folder_is_kept_and_named_after_a_failure(place: Path) -> None:
    said: list[str] = []
    with contextlib.suppress(RuntimeError), private_folder(said.append) as inner:
        (inner / "log").write_text("why")
        raise RuntimeError
    assert said == [f"Ray's logs are kept in {inner.parent}"]
    with private_folder(said.append):  # the next one lets it be
        assert (inner / "log").read_text() == "why"


@pytest.mark.cluster
def test_an_instance_that_does_not_start_is_one_line_and_its_folder_is_kept(place: Path) -> None:
    said: list[str] = []
    refused = r"^Ray: no instance starts on this machine \(.*object_store_memory.*\); if it was busy, try again"
    with pytest.raises(UserError, match=refused), connect(num_cpus=1, object_store_memory=10**15, say=said.append):
        raise AssertionError("it has started")
    (folder,) = place.iterdir()
    assert said == [f"Ray's logs are kept in {folder}"]
    assert not ray.is_initialized()


@pytest.mark.long
def test_what_a_killed_process_left_goes_with_the_next_one(place: Path) -> None:
    code = (
        "import os, sys, signal, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from actors.session import private_folder\n"
        "with private_folder(print): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(place)], cwd=ROOT).returncode == -signal.SIGKILL
    (left,) = place.iterdir()
    with private_folder(lambda line: None) as inner:
        assert not left.exists()
        with private_folder(lambda line: None):
            assert inner.exists()  # of a living process


def test_a_long_tmpdir_is_too_long_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 80)))
    with private_folder(lambda line: None) as inner:
        assert inner.parent.parent == Path("/tmp")


def test_a_place_that_takes_no_folder_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    with pytest.raises(UserError, match="TMPDIR: cannot make a folder in /dev/null"), private_folder(print):
        pass


def test_a_job_takes_no_relative_paths(tmp_path: Path) -> None:
    check_paths(tiny("fedsimclr"), tmp_path)
    with pytest.raises(UserError, match="--out: found runs/x; a job's working directory is a temporary folder"):
        check_paths(tiny("fedsimclr"), Path("runs/x"))
    images = {"name": "imagefolder", "path": "images"}
    for changes, line in (
        ({"data": images}, "data.path: found images"),
        ({"data__partition": {"name": "file", "path": "lists.json"}}, "data.partition.path: found lists.json"),
        ({"data__public": {"source": "source", "images": images}}, "data.public.images.path: found images"),
        ({"system": {"devices": "phones.csv"}}, "system.devices: found phones.csv"),
        ({"evaluation__transfer": {"data": images}}, "evaluation.transfer.data.path: found images"),
        ({"model__start": "first.pth"}, "model.start: found first.pth"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(line)}; a job's working directory is a temporary folder"):
            check_paths(tiny("fedsimclr", **changes), tmp_path)
    check_paths(tiny("fedsimclr", data__name="hub", data__path="lab/cells"), tmp_path)  # no path of this machine


def test_an_instance_that_is_late_is_started_once_more_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself waits for 30 s, and forgets the processes that it had started."""
    started: list[subprocess.Popen[bytes]] = []
    why = ["The current node timed out during startup. This could happen", "no room", "never asked"]

    def init(**options: object) -> None:
        started.append(services.ConsolePopen(["sleep", "600"]))
        assert all(process.poll() is not None for process in started[:-1])
        reason = why[len(started) - 1]
        raise KeyboardInterrupt if reason == "Ctrl-C" else RuntimeError(reason)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # other tests of this process use theirs
    said: list[str] = []
    with pytest.raises(NotStarted, match=r"^Ray: no instance starts on this machine \(no room\)"):
        start_instance({}, said.append)
    assert said == ["Ray took longer to start than it waits for itself; it is started once more"]
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
    started.clear()
    why[0] = "no room"
    with pytest.raises(NotStarted, match="no room"):
        start_instance({}, said.append)
    assert (len(started), len(said)) == (1, 1)
    started.clear()
    why[0] = "Ctrl-C"
    with pytest.raises(KeyboardInterrupt):
        start_instance({}, said.append)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


ENDING = """
import os, signal, socket, subprocess, sys, time
from pathlib import Path
from actors import instance
from rayfed_ssl.terminal.signals import stop_signals

instance.LOOK_S, instance.GRACE_S = 0.05, float(sys.argv[1])
os.symlink("/bin/sleep", "raylet")
Path("folder/inner").mkdir(parents=True)
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
ray = [subprocess.Popen([name, "20"], **quiet) for name in ("sleep", "./raylet")]
with stop_signals(print), socket.create_server(("127.0.0.1", 0)) as gcs:
    if sys.argv[2] == "asked":
        signal.raise_signal(signal.SIGTERM)
    if sys.argv[2] == "unread":
        reader, writer = os.pipe()
        os.dup2(writer, 2)
        os.close(reader)
    with instance.ending_with(ray, gcs.getsockname()[1], Path("folder")):
        ray[0].kill()  # no server: Ray goes on
        ray[0].wait()
        time.sleep(0.5)
        print("went on")
        if sys.argv[2] == "unheard":
            gcs.close()
        else:
            ray[1].kill()
        time.sleep(1.0 if float(sys.argv[1]) > 1.0 else 60.0)
print("ended by itself")
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "status", "line"),
    [
        (["0.1", ""], 1, "stopped at once, because Ray's processes have ended (raylet): is memory full?; --resume"),
        (
            ["0.1", "unheard"],
            1,
            "stopped at once, because Ray's processes have ended (gcs_server): is memory full?; --resume",
        ),
        (["0.1", "asked"], 143, "stopped at once, because Ray's processes were ended, too; --resume"),
    ],
)
def test_a_command_ends_in_one_line_with_the_ray_of_its_own(
    given: list[str], status: int, line: str, tmp_path: Path
) -> None:
    done = ending(given, tmp_path)
    assert (done.returncode, done.stdout) == (status, "went on\n")
    assert done.stderr == f"{line} continues what was saved\n"
    assert not (tmp_path / "folder").exists()


@pytest.mark.long
def test_a_command_ends_with_its_ray_where_nobody_reads_what_it_says(tmp_path: Path) -> None:
    done = ending(["0.1", "unread"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "went on\n", "")
    assert not (tmp_path / "folder").exists()


@pytest.mark.long
def test_a_command_that_ends_by_itself_is_left_to_it(tmp_path: Path) -> None:
    done = ending(["30.0", ""], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\nended by itself\n", "")
    assert (tmp_path / "folder").exists()


def ending(given: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """A command whose Ray ends; ``given``: the seconds that it has to end by itself, and whether it was to stop."""
    return subprocess.run(
        [sys.executable, "-c", ENDING, *given], cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_ray_takes_no_sigterm_while_it_connects() -> None:
    before, heard = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        own = signal.getsignal(signal.SIGTERM)
        with keeping_sigterm():
            utils.set_sigterm_handler(lambda number, frame: None)  # as ``ray.init`` does
            assert signal.getsignal(signal.SIGTERM) is own
        utils.set_sigterm_handler(lambda number, frame: None)
        assert signal.getsignal(signal.SIGTERM) is not own  # it would have
    finally:
        signal.signal(signal.SIGTERM, heard)
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_stays_whose_it_was_also_where_connecting_failed() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def connecting() -> None:
        with keeping_sigterm():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        connecting()
    assert signal.getsignal(signal.SIGTERM) is before
