"""Run folders at a URI: what is copied in which order, what a resumed run fetches, and how a bad URI is refused."""

from __future__ import annotations

import errno
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.messages import ClientError
from rayfed_ssl.models.exported import NoEncoder, exported_by
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation import loop, reevaluation
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage.checkpoint import MARKER
from rayfed_ssl.storage.fetch import at_hand, renewing
from rayfed_ssl.storage.mirror import Mirror, mirrored, place, wanted
from rayfed_ssl.storage.remote_files import has_credentials
from tests.places import ROOT
from tests.tiny import booked, encoders, mean_that_fails, measured, run_locally, tiny


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The query of URIs of an S3 server on loopback, which has the bucket ``runs``."""
    moto_server = pytest.importorskip("moto.server", reason="moto is not installed (extra dev)")
    import boto3

    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        endpoint = f"http://{host}:{port}"
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="runs")
        yield f"?scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    server.stop()


@pytest.fixture(params=["file", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of a run's place that does not exist yet."""
    if request.param == "file":
        return f"file://{tmp_path}/shared/run"
    return f"s3://runs/{tmp_path.name}/run{request.getfixturevalue('s3')}"


def files(uri: str) -> dict[str, bytes]:
    """Path -> content of everything at a URI."""
    remote, root = fs.FileSystem.from_uri(uri)
    infos = remote.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    found = [info.path for info in infos if info.type == fs.FileType.File]
    return {path[len(root) + 1 :]: remote.open_input_stream(path).read() for path in found}


def downloaded(uri: str, folder: Path) -> Path:
    for path, content in files(uri).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def carried_out(uri: str, *, rounds: int = 3, resume: bool = False, every: int = 1) -> dict[str, object]:
    """A run at a URI in this process, stopped after ``rounds`` of 3, with a checkpoint ``every`` so many."""
    config, (folder, target) = tiny("fedbyol", checkpoint__every=every), place(uri)
    seen = [0]

    def report(progress: Progress) -> None:
        seen[0] = max(seen[0], progress.round)
        assert folder.stat().st_mode & 0o777 == 0o700  # in a place that others can list

    with mirrored(folder, target, resume=resume) as saved:
        summary = loop.run(
            config, folder, LocalCohort, resume=resume, report=report, stopping=lambda: seen[0] >= rounds, saved=saved
        )
    assert not folder.exists()
    return summary


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_run_at_a_uri_stopped_and_resumed_elsewhere_is_the_run_in_a_folder(uri: str, tmp_path: Path) -> None:
    assert carried_out(uri, rounds=1)["status"] == "stopped"
    assert f"checkpoints/round-00001/{MARKER}" in files(uri)
    with pytest.raises(UserError, match="already holds a run; add --resume"):
        carried_out(uri)
    assert carried_out(uri, resume=True)["status"] == "complete"
    expected = tmp_path / "expected"
    run_locally(tiny("fedbyol", checkpoint__every=1), expected)
    found = downloaded(uri, tmp_path / "found")
    for read in (encoders, measured, booked):
        assert read(found) == read(expected)  # type: ignore[operator]
    kept = {path.name for path in (expected / "checkpoints").iterdir()}
    assert {path.split("/")[1] for path in files(uri) if path.startswith("checkpoints/")} == kept  # pruned there, too
    assert any(path.startswith("events.out.tfevents.") for path in files(uri))
    assert {"config.yaml", "summary.json", "environment.json"} <= set(there := files(uri))
    assert carried_out(uri, resume=True)["status"] == "complete"
    assert files(uri) == there  # a complete run stays as it is


@pytest.mark.long
@pytest.mark.parametrize("failed", [1, 2])
def test_why_a_run_failed_is_said_there_until_it_goes_on(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: int
) -> None:
    """Where it failed before its first checkpoint, too: what is there is a run that can be resumed."""
    error = ClientError(2, failed, "train", "here", "no such file")
    with monkeypatch.context() as patch:
        patch.setattr(LocalCohort, "mean", mean_that_fails(failed, error))
        with pytest.raises(ClientError):
            carried_out(uri)
    there = files(uri)
    assert f"client 2 failed in round {failed}".encode() in there["error.txt"]
    assert (f"checkpoints/round-00001/{MARKER}" in there) == (failed > 1)
    assert {"config.yaml", "environment.json", "partition.parquet"} <= set(there)
    with pytest.raises(UserError, match="already holds a run; add --resume"):
        carried_out(uri)
    assert carried_out(uri, resume=True)["status"] == "complete"
    assert "error.txt" not in files(uri)


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 3])
def test_what_the_server_raises_is_said_there_too(uri: str, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setattr(LocalCohort, "mean", mean_that_fails(2, KeyError("no such field")))
    with pytest.raises(KeyError):
        carried_out(uri, every=every)
    there = files(uri)
    assert there["error.txt"].endswith(b"KeyError: 'no such field'\n")
    assert (f"checkpoints/round-00001/{MARKER}" in there) == (every == 1)
    assert {"config.yaml", "environment.json", "partition.parquet"} <= set(there)


@pytest.mark.parametrize("every", [1, 3])
def test_the_folder_of_a_failed_run_stays_where_the_uri_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    whole = Mirror.copy

    def refused(self: Mirror, path: str) -> None:
        if path == "error.txt" or every > 2:
            raise OSError(111, "Connection refused")
        whole(self, path)

    monkeypatch.setattr(Mirror, "copy", refused)
    error = ClientError(2, 2, "train", "here", "no such file")
    monkeypatch.setattr(LocalCohort, "mean", mean_that_fails(2, error))
    uri = f"file://{tmp_path}/run"
    with pytest.raises(ClientError, match="no such file") as failed:
        carried_out(uri, every=every)
    (told,) = pickle.loads(pickle.dumps(failed.value)).__notes__  # as it comes from Ray's driver
    said = re.fullmatch(
        rf"--out: could not copy to {re.escape(uri)} \(.*Connection refused\); the run is in (.*)", told
    )
    assert said is not None
    folder = Path(said[1])
    assert "client 2 failed in round 2" in (folder / "error.txt").read_text()
    assert (folder / "checkpoints").exists() == (every == 1)
    shutil.rmtree(folder)


@pytest.mark.long
def test_a_run_whose_copying_was_cut_off_goes_on_from_the_checkpoint_that_has_its_marker(
    tmp_path: Path,
) -> None:
    uri = f"file://{tmp_path}/run"
    carried_out(uri)
    (tmp_path / f"run/checkpoints/round-00003/{MARKER}").unlink()
    for name in ("metrics.parquet", "communication.parquet"):  # a file that was being written
        (tmp_path / "run" / name / "part-00003.parquet").write_bytes(b"PAR1")
    carried_out(uri, resume=True)
    run_locally(tiny("fedbyol", checkpoint__every=1), tmp_path / "expected")
    for read in (encoders, measured, booked):
        assert read(tmp_path / "run") == read(tmp_path / "expected")  # type: ignore[operator]
    assert pq.read_table(tmp_path / "run/metrics.parquet").num_rows


# -- the mirror --------------------------------------------------------------------------------------------------------


def write(folder: Path, *names: str, content: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def test_markers_are_copied_after_their_files_and_removed_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Watched:
        def __init__(self, remote: fs.FileSystem) -> None:
            self.remote = remote

        def __getattr__(self, name: str) -> object:
            def call(*paths: object, **how: object) -> object:
                if name in ("move", "delete_file"):  # where a file takes its place, or is gone
                    done.append(f"{name.split('_')[0]} {str(paths[-1]).split('/run/')[-1]}")
                return getattr(self.remote, name)(*paths, **how)

            return call

    work = tmp_path / "work"
    mirror = Mirror(work, f"file://{tmp_path}/run")
    mirror.remote = Watched(mirror.remote)
    old, new = "checkpoints/round-00001", "checkpoints/round-00002"
    write(work, "summary.json", f"{old}/{MARKER}", f"{old}/server.json", "metrics.parquet/part-00001.parquet")
    write(work, ".draft", "checkpoints/.writing-00009/server.json")
    mirror.push()
    assert done[-2:] == [f"move {old}/{MARKER}", "move summary.json"]
    assert set(done[:-2]) == {f"move {old}/server.json", "move metrics.parquet/part-00001.parquet"}
    done.clear()
    mirror.push()
    assert not done  # nothing is copied twice
    shutil.rmtree(work / old)
    write(work, f"{new}/{MARKER}", f"{new}/server.json", "notes")
    write(work, "summary.json", content="longer")
    mirror.push()
    assert done[-2:] == [f"delete {old}/{MARKER}", f"delete {old}/server.json"]
    assert done[-4:-2] == [f"move {new}/{MARKER}", "move summary.json"]
    assert not (tmp_path / "run" / old).exists()
    (work / "notes").unlink()
    write(work, "dropped.parquet/part-00002.parquet", "dropped.parquet/part-00003.parquet", "evaluation.json")
    mirror.push()
    (work / "dropped.parquet/part-00003.parquet").unlink()
    (work / "summary.json").unlink()  # as a run that goes on after its end
    (work / "evaluation.json").rename(work / "evaluation_round_2.json")
    write(work, "checkpoints/round-00003/server.json")
    done.clear()
    mirror.push()
    assert done == [
        "move evaluation_round_2.json", "delete evaluation.json",
        "delete summary.json", "move checkpoints/round-00003/server.json", "delete dropped.parquet/part-00003.parquet",
    ]  # fmt: skip
    assert (tmp_path / "run/notes").exists()  # deleted is only where runs delete


def test_what_a_resumed_run_fetches() -> None:
    complete = {f"checkpoints/round-00002/{name}" for name in (MARKER, "server.json")}
    tables = {f"metrics.parquet/part-{name}.parquet" for name in ("00001", "00001_1", "00002")}
    rest = {"config.yaml", "encoder/global.json", "figures/partition.png"}
    left = {
        "checkpoints/round-00004/server.json",
        "metrics.parquet/part-00002_1.parquet",
        "metrics.parquet/part-00004.parquet",
    }
    assert wanted(complete | tables | rest | left) == complete | tables | rest
    assert wanted(tables | rest) == rest  # no checkpoint: the tables are made again
    ended = complete | tables | rest | {"summary.json", "metrics.parquet/part-00002_1.parquet"}
    assert wanted(ended) == ended  # its last evaluation, without which it would not be complete


def test_places() -> None:
    assert place("runs/a") == (Path("runs/a"), None)
    assert place(Path("/shared/runs/a")) == (Path("/shared/runs/a"), None)
    folder, uri = place("s3://bucket/run")
    assert uri == "s3://bucket/run"
    assert folder.is_absolute()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("abfs://container@account.dfs.core.windows.net/run", False),
        ("abfss://container@account.dfs.core.windows.net/run", False),
        ("abfs://container:secret@account.dfs.core.windows.net/run", True),
        ("abfs://:secret@account.blob.core.windows.net/container/run", True),
        ("s3://key:secret@bucket/run", True),
        ("gs://anonymous@bucket/run", True),
        ("s3://bucket/runs/a@b", False),
        ("file:///tmp/a@b", False),
    ],
)
def test_azures_container_is_no_credential(uri: str, found: bool) -> None:
    assert has_credentials(uri) is found


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("nonsense://a/b", "allowed: a folder, or a URI that pyarrow writes to"),
        ("s3://key:secret@bucket/run", "credentials"),
        ("file:///proc/no/run", "cannot write to file:///proc/no/run"),
    ],
)
def test_a_bad_uri_is_one_line_and_keeps_secrets(uri: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=text) as caught, mirrored(tmp_path / "work", uri, resume=False):
        raise AssertionError("it was opened")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("--out: ")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "work").exists()


def test_a_place_with_something_in_it_and_a_missing_bucket_are_refused(s3: str, tmp_path: Path) -> None:
    write(tmp_path / "full", "thesis.tex")
    for uri, text in (
        (f"file://{tmp_path}/full", "is not empty"),
        (f"s3://missing/run{s3}", "cannot write to s3://missing"),
    ):
        with pytest.raises(UserError, match=text), mirrored(tmp_path / "work", uri, resume=False):
            raise AssertionError("it was opened")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_where_copying_fails_the_folder_is_kept_and_named(tmp_path: Path) -> None:
    work = tmp_path / "work"

    def copying_to_a_place_that_became_a_file() -> None:
        with mirrored(work, f"file://{tmp_path}/run", resume=False) as saved:
            write(work, "encoder/global.json")
            write(tmp_path, "run")
            saved()

    with pytest.raises(UserError, match=f"could not copy to .*; the run is in {work}"):
        copying_to_a_place_that_became_a_file()
    assert (work / "encoder/global.json").exists()


def test_a_folder_that_cannot_be_read_is_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of this machine that fails while what is new in the folder is looked for."""
    work = tmp_path / "work"

    def copying_from_a_broken_disk() -> None:
        with mirrored(work, f"file://{tmp_path}/run", resume=False) as saved:
            write(work, "config.yaml")
            monkeypatch.setattr(Path, "rglob", broken)
            saved()

    def broken(path: Path, pattern: str) -> list[Path]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with pytest.raises(UserError, match=rf"could not copy to .*Input/output error.*; the run is in {work}") as told:
        copying_from_a_broken_disk()
    assert "\n" not in str(told.value)
    assert (work / "config.yaml").exists()
    write(tmp_path / "run", "config.yaml")
    with pytest.raises(UserError, match=r"cannot fetch .*Input/output error"):
        Mirror(tmp_path / "other", f"file://{tmp_path}/run").open(resume=True)
    assert not (tmp_path / "other").exists()


def test_a_file_system_never_shows_half_a_file(tmp_path: Path) -> None:
    """A reader that has the old file open reads it to its end; what a cut-off copy left is no part of the run."""
    work = tmp_path / "work"
    mirror = Mirror(work, f"file://{tmp_path}/run")
    write(work, "config.yaml", "metrics.parquet/part-00001.parquet", content="old")
    mirror.push()
    write(tmp_path / "run", ".summary.json.copying", "metrics.parquet/.part-00001.parquet.copying", content="ha")
    write(work, "config.yaml", content="new and longer")
    with (tmp_path / "run/config.yaml").open() as reader:
        assert reader.read(1) == "o"
        mirror.push()
        assert reader.read() == "ld"
    assert (tmp_path / "run/config.yaml").read_text() == "new and longer"
    assert files(f"file://{tmp_path}/run") == {
        "config.yaml": b"new and longer", "metrics.parquet/part-00001.parquet": b"old",
    }  # fmt: skip
    assert wanted({"config.yaml", ".config.yaml.copying", "metrics.parquet/.part-00002.parquet.copying"}) == {
        "config.yaml"
    }


def test_encoders_that_the_folder_had_and_has_no_more_are_removed(tmp_path: Path) -> None:
    """Those of a run that goes on."""
    work = tmp_path / "work"
    write(work, "notes", "encoder/global.json")
    mirror = Mirror(work, f"file://{tmp_path}/run")
    mirror.push()
    (work / "encoder/global.json").unlink()
    mirror.push()
    assert set(files(f"file://{tmp_path}/run")) == {"notes"}


def test_nothing_else_is_removed_with_the_rest_of_a_cut_off_copy(tmp_path: Path) -> None:
    work, there = tmp_path / "work", tmp_path / "run"
    write(there, "encoder/.global.json.copying", "encoder/client-00001.json", ".hidden")
    write(work, "notes")
    Mirror(work, f"file://{there}").push()
    assert set(files(f"file://{there}")) == {"encoder/client-00001.json", ".hidden", "notes"}


@pytest.mark.long
def test_a_run_that_starts_again_leaves_no_old_points(tmp_path: Path) -> None:
    """Without an intact checkpoint everything is made again: at the URI, too, TensorBoard shows each point once."""
    uri = f"file://{tmp_path}/shared/run"
    carried_out(uri, rounds=2)
    old = {content for path, content in files(uri).items() if path.startswith("events.out.tfevents.")}
    remote, root = fs.FileSystem.from_uri(uri)
    for path in files(uri):
        if path.endswith(MARKER):
            remote.delete_file(f"{root}/{path}")
    carried_out(uri, resume=True)
    assert old
    assert not old & set(files(uri).values())  # within one second the new file has the old one's name
    events = EventAccumulator(str(downloaded(uri, tmp_path / "found")), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3]
    assert sum(path.startswith("events.out.tfevents.") for path in files(uri)) == 1


# -- working folders ---------------------------------------------------------------------------------------------------

WORKING = """
import os, signal, sys, time
from pathlib import Path
from rayfed_ssl.storage.fetch import at_hand
from rayfed_ssl.storage.mirror import mirrored, place
folder, uri = place(sys.argv[1])
with mirrored(folder, uri, resume=False) as saved:
    (folder / "metrics.parquet").mkdir(parents=True)
    (folder / "metrics.parquet/part-00001.parquet").write_text("x")
    folder.with_name(folder.name + ".fetching").mkdir()
    print(folder, flush=True)
    time.sleep(600)
"""


def working(tmp_path: Path, name: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKING, f"file://{tmp_path}/{name}"], cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.long
def test_what_a_killed_run_worked_in_goes_with_the_next_and_what_lives_or_was_kept_stays(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    killed, left = working(tmp_path, "a")
    living, busy = working(tmp_path, "b")
    try:
        killed.kill()
        killed.wait()
        assert (left / "metrics.parquet/part-00001.parquet").exists()
        assert left.with_name(f"{left.name}.fetching").exists()
        kept = left.with_name(f"rayfed-ssl-{'0' * 32}")  # copying failed: it has no lock file
        elsewhere = left.with_name(f"rayfed-ssl-{'1' * 32}")  # of another host, where the folder is shared
        write(kept, "config.yaml")
        write(elsewhere, "config.yaml")
        write(tmp_path / "tmp", f"{elsewhere.name}.lock", content="another-host, pid 1\n")
        write(tmp_path / "tmp", "rayfed-ssl-mine.lock", "rayfed-ssl-mine/notes", content="")
        mine = tmp_path / "tmp" / f"rayfed-ssl-{'2' * 32}"
        with mirrored(mine, f"file://{tmp_path}/c", resume=False):
            write(mine, "config.yaml")
            assert not left.exists()
            assert (busy / "metrics.parquet/part-00001.parquet").exists()
        stays = {busy, kept, elsewhere, tmp_path / "tmp/rayfed-ssl-mine"}
        locks = {path.with_name(f"{path.name}.lock") for path in stays - {kept}}
        fetching = {busy.with_name(f"{busy.name}.fetching")}
        assert set((tmp_path / "tmp").iterdir()) == stays | locks | fetching
    finally:
        living.kill()
        living.wait()


def test_what_was_kept_is_not_removed_by_the_next_run(tmp_path: Path) -> None:
    work = tmp_path / f"rayfed-ssl-{'3' * 32}"

    def copying_fails() -> None:
        with mirrored(work, f"file://{tmp_path}/run", resume=False):
            write(work, "encoder/global.json")
            write(tmp_path, "run")

    with pytest.raises(UserError, match="the run is in"):
        copying_fails()
    with mirrored(tmp_path / f"rayfed-ssl-{'4' * 32}", f"file://{tmp_path}/other", resume=False):
        pass
    assert (work / "encoder/global.json").exists()


def test_a_run_that_cannot_be_fetched_leaves_nothing_here(tmp_path: Path) -> None:
    write(tmp_path / "run", "config.yaml")
    work = tmp_path / "absent" / "work"  # as if there were no room
    with pytest.raises(UserError, match=r"--out: cannot fetch file://.* to resume it in .*TMPDIR") as caught:
        Mirror(work, f"file://{tmp_path}/run").open(resume=True)
    assert "\n" not in str(caught.value)
    assert not work.parent.exists()


# -- reading a run at a URI --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_run_at_a_uri_is_evaluated_and_loaded_there(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    import rayfed_ssl
    from tests.command_line import command

    carried_out(uri)
    before = files(uri)
    assert command(capsys, "evaluate", uri)[0] == 0
    found = files(uri)
    assert found.keys() - before.keys() == {"evaluation.json"}
    assert {path: found[path] for path in before} == before
    summary = json.loads(before["summary.json"])
    assert json.loads(found["evaluation.json"])["accuracy"] == {"global": summary["accuracy"]}

    run = rayfed_ssl.load(uri)
    assert run.summary == summary
    assert (run.uri, run.status) == (uri, "complete")
    assert encoders(run.folder) == encoders(downloaded(uri, tmp_path / "copy"))
    assert measured(run.folder) == measured(tmp_path / "copy")
    assert not (run.folder / "checkpoints").exists()
    run.evaluate("fewshot")
    assert set(json.loads(files(uri)["evaluation.json"])["accuracy"]["global"]) == {"knn", "fewshot"}
    longer = run.resume(4, executor="local", progress=False)  # from the checkpoints there
    assert (longer.uri, longer.summary["rounds"]) == (uri, 4)
    copy = longer.folder
    del run, longer
    assert not copy.exists()  # it lives as long as its Run


def test_a_run_that_is_removed_at_its_uri_while_it_is_evaluated_does_not_come_back(tmp_path: Path) -> None:
    run, uri = tmp_path / "run", f"file://{tmp_path}/run"
    write(run, "config.yaml")

    def removing() -> None:
        with at_hand(uri, put_back=("evaluation.json",)) as folder:
            (folder / "evaluation.json").write_text("{}")
            shutil.rmtree(run)

    with pytest.raises(UserError, match=f"^{uri}: found no run any more; .*, and evaluation.json was not written$"):
        removing()
    assert not run.exists()


def test_what_a_copy_lacks_is_said_of_the_run_at_its_uri(tmp_path: Path) -> None:
    write(tmp_path / "run", "config.yaml")
    uri = f"file://{tmp_path}/run"
    with pytest.raises(NoEncoder, match=f"^{uri}: found no encoder in {uri}/encoder; "), at_hand(uri) as folder:
        exported_by(folder)


@pytest.mark.parametrize("after", [None, "the summary of a longer run"])
def test_what_is_measured_of_a_run_at_a_uri_that_has_gone_on_is_not_written_there(
    after: str | None, tmp_path: Path
) -> None:
    """Neither while it goes on, nor once it has ended again."""
    run, uri = tmp_path / "run", f"file://{tmp_path}/run"
    write(run, "config.yaml", "summary.json")
    with at_hand(uri) as folder:
        renew = renewing(uri, folder, "evaluation.json")
        renew()
        (run / "summary.json").unlink()
        if after is not None:
            (run / "summary.json").write_text(after)
        for _ in range(2):  # the copy is as old as before
            with pytest.raises(UserError, match=f"^{uri}: the run has gone on since its encoders were read"):
                renew()


def test_who_measures_by_an_old_copy_of_a_run_that_has_gone_on_is_told_to_load_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of a ``Run`` stays as it is, so to try again would not help."""
    import rayfed_ssl
    from rayfed_ssl.api import folder

    def measure_nothing(run: Path, *rest: Any, renew: Callable[[], None], **options: Any) -> None:
        renew()

    monkeypatch.setattr(folder, "reevaluate", measure_nothing)
    write(tmp_path / "run", "summary.json")
    configfile.dump(tiny("fedsimclr"), tmp_path / "run/config.yaml")
    loaded = rayfed_ssl.load(uri := f"file://{tmp_path}/run")
    loaded.evaluate("knn")
    (tmp_path / "run/summary.json").write_text("of a longer run")
    with pytest.raises(UserError, match=rf"^{uri}: the run has gone .*; rayfed_ssl\.load reads it again when it has"):
        loaded.evaluate("knn")
    rayfed_ssl.load(uri).evaluate("knn")


@pytest.mark.long
def test_evaluations_of_a_run_at_a_uri_keep_what_others_added_meanwhile(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command's, and those of a copy that was loaded long before."""
    import json

    import rayfed_ssl
    from tests.command_line import command

    carried_out(uri)
    loaded = rayfed_ssl.load(uri)

    def evaluate(protocol: str) -> None:
        assert command(capsys, "evaluate", uri, "--protocol", protocol)[0] == 0

    measure = reevaluation.measure

    def slow(*args: Any) -> dict[str, Any]:
        monkeypatch.setattr(reevaluation, "measure", measure)
        evaluate("linear")  # begins after the first, and ends while that measures
        return measure(*args)

    monkeypatch.setattr(reevaluation, "measure", slow)
    evaluate("knn")
    assert set(json.loads(files(uri)["evaluation.json"])["accuracy"]["global"]) == {"knn", "linear"}
    loaded.evaluate("fewshot")
    assert set(json.loads(files(uri)["evaluation.json"])["accuracy"]["global"]) == {"knn", "linear", "fewshot"}
    assert not any("fetching" in path for path in files(uri))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("s3://key:secret@bucket/run", "URI: found one with credentials"),
        ("nothing://bucket/run", "found no URI that pyarrow reads"),
        ("file:///nowhere/at/all", "found no config.yaml; must be a run folder"),
    ],
)
def test_a_uri_that_holds_no_run_is_refused(wrong: str, said: str) -> None:
    import rayfed_ssl

    with pytest.raises(UserError) as refused:
        rayfed_ssl.load(wrong)
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
