"""The connection to Ray: loopback only, a private token, never joined by chance, never waited for without end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from actors.session import check_paths, make_private, probe
from rayfed_ssl.base.schema import UserError
from tests.cluster.processes import descendants, orphans, title
from tests.tiny import tiny

LOCAL = """
import json, os, stat
import actors
from actors.session import connect, token_file

with connect(num_cpus=1, num_gpus=0, object_store_memory=80 * 1024**2) as session:
    token = token_file()
    mode = stat.S_IMODE(token.stat().st_mode) if token.exists() else None
    print(json.dumps({"local": session.local, "mode": mode}), flush=True)
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


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
def test_a_local_instance_listens_on_loopback_keeps_its_token_private_and_ends(tmp_path: Path) -> None:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path)}
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
    assert found["local"] is True
    assert found["mode"] in (None, 0o600)
    process.communicate("\n", timeout=120)
    assert process.returncode == 0
    assert not orphans(servers, 10)


def test_a_cluster_that_does_not_answer_is_an_error_in_time() -> None:
    with socket.socket() as server:  # takes connections and never says a word
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"RAY_ADDRESS: found {address}; no answer within 3 s"):
            probe(address, timeout_s=3)


def test_the_token_file_is_made_private(tmp_path: Path) -> None:
    token = tmp_path / "auth_token"
    make_private(token)  # none there: nothing to do
    token.write_text("secret")
    token.chmod(0o644)
    make_private(token)
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_job_takes_no_relative_paths(tmp_path: Path) -> None:
    check_paths(tiny("fedsimclr"), tmp_path)
    with pytest.raises(UserError, match="--out: found runs/x; a job's working directory is a temporary folder"):
        check_paths(tiny("fedsimclr"), Path("runs/x"))
    with pytest.raises(UserError, match=r"data\.path: found images"):
        check_paths(tiny("fedsimclr", data__name="imagefolder", data__path="images"), tmp_path)
    with pytest.raises(UserError, match=r"data\.partition\.path: found lists\.json; a job's working directory"):
        check_paths(tiny("fedsimclr", data__partition={"name": "file", "path": "lists.json"}), tmp_path)
    check_paths(tiny("fedsimclr", data__name="hub", data__path="lab/cells"), tmp_path)  # no path of this machine
