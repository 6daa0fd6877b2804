"""Run folders at a URI: what is copied in which order, what a resumed run fetches, and how a bad URI is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from rayfed_ssl import simulation
from rayfed_ssl.checkpoint import MARKER
from rayfed_ssl.cohort import LocalCohort
from rayfed_ssl.schema import UserError
from rayfed_ssl.simulation import Progress
from rayfed_ssl.storage import Mirror, mirrored, place, wanted
from tests.tiny import booked, encoders, measured, run_locally, tiny


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


def carried_out(uri: str, *, rounds: int = 3, resume: bool = False) -> dict[str, object]:
    """A run at a URI in this process, stopped after ``rounds`` of 3."""
    config, (folder, target) = tiny("fedbyol", checkpoint__every=1), place(uri)
    seen = [0]

    def report(progress: Progress) -> None:
        seen[0] = max(seen[0], progress.round)

    with mirrored(folder, target, resume=resume) as saved:
        summary = simulation.run(
            config, folder, LocalCohort, resume=resume, report=report, stopping=lambda: seen[0] >= rounds, saved=saved
        )
    assert not folder.exists()
    return summary


# -- runs --------------------------------------------------------------------------------------------------------------


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
    assert {"config.yaml", "summary.json", "environment.json"} <= set(files(uri))


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
            def call(path: object, **how: object) -> object:
                if name in ("open_output_stream", "delete_file"):
                    done.append(f"{name.split('_')[0]} {str(path).split('/run/')[-1]}")
                return getattr(self.remote, name)(path, **how)

            return call

    work = tmp_path / "work"
    mirror = Mirror(work, f"file://{tmp_path}/run")
    mirror.remote = Watched(mirror.remote)
    old, new = "checkpoints/round-00001", "checkpoints/round-00002"
    write(work, "summary.json", f"{old}/{MARKER}", f"{old}/server.json", "metrics.parquet/part-00001.parquet")
    write(work, ".draft", "checkpoints/.writing-00009/server.json")
    mirror.push()
    assert done[-2:] == [f"open {old}/{MARKER}", "open summary.json"]
    assert set(done[:-2]) == {f"open {old}/server.json", "open metrics.parquet/part-00001.parquet"}
    done.clear()
    mirror.push()
    assert not done  # nothing is copied twice
    shutil.rmtree(work / old)
    write(work, f"{new}/{MARKER}", f"{new}/server.json", "notes")
    write(work, "summary.json", content="longer")
    mirror.push()
    assert done[-2:] == [f"delete {old}/{MARKER}", f"delete {old}/server.json"]
    assert done[-4:-2] == [f"open {new}/{MARKER}", "open summary.json"]
    assert not (tmp_path / "run" / old).exists()
    (work / "notes").unlink()
    mirror.push()
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


def test_places() -> None:
    assert place("runs/a") == (Path("runs/a"), None)
    assert place(Path("/shared/runs/a")) == (Path("/shared/runs/a"), None)
    folder, uri = place("s3://bucket/run")
    assert uri == "s3://bucket/run"
    assert folder.is_absolute()
    assert not folder.exists()


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
