"""The command line: what runs, what it leaves, how it refuses (one clear line, exit status 2, nothing half-written)."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from PIL import Image
from rich.console import Console

from rayfed_ssl.base.user_error import StoppedAtOnce
from rayfed_ssl.methods import METHODS
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.terminal.progress import Reporter, accuracy_table, accuracy_text, conclude
from rayfed_ssl.terminal.signals import left_running, stop_signals, unwinding
from tests.cluster.processes import Process, descendants, end, orphans, title, until
from tests.command_line import CONFIG, Call
from tests.places import ROOT


def local(*arguments: str) -> tuple[str, ...]:
    return ("run", "tiny.yaml", "--executor", "local", *arguments)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_prints_a_line_per_round_a_table_and_where_to_look(call: Call, tmp_path: Path) -> None:
    status, out, err = call(*local())
    assert (status, err) == (0, "")
    rounds = [line for line in out.splitlines() if line.startswith("round ")]
    assert [line.split("  ")[0] for line in rounds] == ["round 1/2", "round 2/2"]
    assert all("loss " in line and line.endswith(" s") for line in rounds)
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    assert f"{summary['accuracy']['knn']:.3f}" in out  # the default folder is runs/<stem>
    assert "tensorboard --logdir runs/tiny" in out
    assert "Warning" not in out + err


def test_overrides_name_and_out(call: Call, tmp_path: Path) -> None:
    status, _, _ = call(*local("train.rounds=1", "name=renamed", "seed=3"))
    assert status == 0
    assert json.loads((tmp_path / "runs/renamed/summary.json").read_text())["seed"] == 3
    status, _, _ = call("run", "runs/renamed/config.yaml", "--executor", "local", "--out", "again")
    assert status == 0  # a run's own config repeats it
    first, again = (json.loads((tmp_path / f / "summary.json").read_text()) for f in ("runs/renamed", "again"))
    assert first["accuracy"] == again["accuracy"]


def test_resume_goes_on_where_a_stopped_run_was(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call(*local("--out", "whole"))
    with monkeypatch.context() as patch:  # the signal comes while the first round is running
        shown_line = Reporter.line
        told: list[str] = []

        def line(self: Reporter, text: str) -> None:
            told.append(text)
            if text.startswith("round 1/2"):
                signal.raise_signal(signal.SIGTERM)
            shown_line(self, text)

        patch.setattr(Reporter, "line", line)
        status, out, _ = call(*local("--out", "parts"))
    assert status == 143
    assert "stopping after this round" in out
    assert "stopped after round 1 of 2; --resume continues it" in out
    assert json.loads((tmp_path / "parts/summary.json").read_text())["status"] == "stopped"
    status, out, _ = call("run", "parts/config.yaml", "--executor", "local", "--resume")  # its folder is known
    assert status == 0
    assert "resumed from round 1" in out
    for name in ("accuracy", "best", "untrained", "communication", "status"):
        whole, parts = (json.loads((tmp_path / f / "summary.json").read_text())[name] for f in ("whole", "parts"))
        assert whole == parts


def test_a_second_signal_ends_at_once() -> None:
    told: list[str] = []
    with stop_signals(told.append) as stopping:
        assert not stopping()
        signal.raise_signal(signal.SIGINT)
        assert stopping()
        with pytest.raises(SystemExit) as exit:
            signal.raise_signal(signal.SIGTERM)
    assert exit.value.code == 130
    assert len(told) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # as before


def test_a_second_signal_ends_with_130_whatever_ray_makes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            signal.raise_signal(signal.SIGINT)
        except SystemExit:
            raise SystemExit(1) from None  # as Ray does where it was waiting

    with pytest.raises(SystemExit) as exit, stop_signals(lambda line: None):
        interrupted()
    assert exit.value.code == 130
    with pytest.raises(SystemExit) as exit, stop_signals(lambda line: None):
        raise SystemExit(1)  # nobody's signal
    assert exit.value.code == 1
    assert capsys.readouterr().err == "stopped at once; --resume continues what was saved\n"


def test_a_run_that_ended_with_its_signal_has_the_signals_status(capsys: pytest.CaptureFixture[str]) -> None:
    """As where Ray's processes heard it, too."""

    def ended() -> None:
        signal.raise_signal(signal.SIGTERM)
        raise StoppedAtOnce("all of it ended")

    with pytest.raises(SystemExit) as exit, stop_signals(lambda line: None):
        ended()
    assert exit.value.code == 143
    assert capsys.readouterr().err == "all of it ended\n"


def test_who_attaches_to_a_run_that_was_stopped_at_once_ends_with_130(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise StoppedAtOnce("stopped at once, while it waited")

    monkeypatch.setattr("actors.follow.attach", stopped)
    assert call("attach", "fedsc") == (130, "", "stopped at once, while it waited\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_any_command_says_that_a_signal_ended_it(
    number: signal.Signals, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfed_ssl.storage.listing.runs_in", lambda folder: signal.raise_signal(number))
    before = signal.getsignal(number)
    status, out, err = call("list", ".")
    assert (status, out) == (128 + number, "")
    assert err == f"interrupted by {number.name}; give the command again to start it anew\n"
    assert signal.getsignal(number) is before


STRUCK = """
import importlib, sys
class CtrlC:
    def find_spec(self, name, *where):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
module, _, function = sys.argv.pop(1).partition(":")
getattr(importlib.import_module(module), function)()
"""  # Ctrl-C while the command line is being imported


def test_ctrl_c_during_the_imports_is_the_same_line() -> None:
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["rayfed-ssl"]
    done = subprocess.run(
        [sys.executable, "-c", STRUCK, entry, "list"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    said = "interrupted by SIGINT; give the command again to start it anew\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_any_signal_is_a_ctrl_c_with_a_status_of_its_own(
    number: signal.Signals, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit, unwinding():
        signal.raise_signal(number)
    assert exit.value.code == status
    assert capsys.readouterr().err == f"interrupted by {number.name}; give the command again to start it anew\n"
    with pytest.raises(SystemExit) as exit, unwinding(), left_running():
        signal.raise_signal(number)
    assert exit.value.code == status
    with pytest.raises(SystemExit) as exit, unwinding():
        raise SystemExit(1)  # nobody's signal
    assert exit.value.code == 1
    assert capsys.readouterr().err == ""


def test_a_terminal_is_lost_once_however_often_that_is_said() -> None:
    """Its shell says so to its jobs, and the kernel once more to those in the foreground."""

    def lost(stopping: Callable[[], bool]) -> None:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert stopping()
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as exit, stop_signals(lambda line: None) as stopping:
        lost(stopping)
    assert exit.value.code == 129


def test_a_signal_that_is_being_ignored_ends_no_command(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def found(folder: Path) -> list[object]:
        signal.raise_signal(signal.SIGHUP)
        return []

    monkeypatch.setattr("rayfed_ssl.storage.listing.runs_in", found)
    try:
        status, _, err = call("list", ".")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (status, err) == (0, "")


def test_a_failing_client_shows_its_traceback_once(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object, weights: object) -> None:
        raise ZeroDivisionError("a client's own")

    monkeypatch.setattr(METHODS["fedsimclr"].client, "train", fails)
    status, _, err = call(*local())
    assert status == 1
    assert err.count("ZeroDivisionError: a client's own") == 1
    assert "client 0 failed in round 1, operation 'train'" in err
    assert "typer" not in err  # nothing but the client's traceback


# -- refusals ----------------------------------------------------------------------------------------------------------


def parquet(path: Path, images: list[bytes]) -> None:
    rows = [{"bytes": image, "path": f"{i}.jpg"} for i, image in enumerate(images)]
    labels = pa.array([i % 2 for i in range(len(images))], pa.int64())
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"img": rows, "label": labels}), path)


def jpeg(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


REFUSALS = {
    "an unknown key": (["train.round=3"], "train.round: found 3; unknown key"),
    "a misspelt method": (["method.name=fedsc2"], "did you mean fedsc"),
    "a missing path": (["data.name=imagefolder", "data.path=nowhere"], "data.path: nowhere does not exist"),
    "no path": (["data.name=parquet"], "data.path: not set"),
    "a text file named .parquet": (["data.name=parquet", "data.path=text.parquet"], "text.parquet"),
    "a truncated JPEG": (["data.name=parquet", "data.path=truncated"], "data.on_bad_image"),
    "zero clients": (["clients.count=0"], "clients.count: found 0; must be at least 1"),
    "more clients than images": (["clients.count=99"], "clients.count: 99, but there are only 60 images"),
    "an objective the method does not allow": (["objective.name=byol"], "found 'byol'; fedsimclr allows simclr"),
    "a batch below the objective's need": (["train.batch_size=1"], "train.batch_size: found 1"),
    "shards below the objective's need": (["clients.count=60"], "clients.count: client 0 has 1 image; "),
    "a learning rate in words": (["train.optimizer.lr=fast"], "train.optimizer.lr: found 'fast'; must be a number"),
    "an unwritable out folder": (["--out", "text.parquet/run"], "--out: cannot write to text.parquet/run"),
    "an override without a value": (["seed"], "command line: found 'seed'; must be key=value"),
    "no profiles": (["profile=paper"], "profile: found 'paper'"),
}  # fmt: skip


def test_images_that_are_not_there_are_missed_before_ray_starts(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", never)
    for name in ("no path", "a missing path"):
        changes, expected = REFUSALS[name]
        command = [word for word in local(*changes) if word not in ("--executor", "local")]
        status, _, err = call(*command)
        assert (status, err.startswith(expected)) == (2, True), err


def test_a_path_that_leads_nowhere_is_told_before_torch_is_imported(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one in the file itself; not where a key is asked about, nor where a cluster has the images."""
    text = (tmp_path / "tiny.yaml").read_text().replace("name: digits", "name: table, path: gone.csv")
    (tmp_path / "own.yaml").write_text(text)
    at_end = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    at_end += "from rayfed_ssl import cli; cli.main(sys.argv[1:])"

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words, said in ((["own.yaml"], "gone.csv"), (["own.yaml", "data.path=there.csv"], "there.csv")):
        command = [sys.executable, "-c", at_end, "run", *words, "--check"]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout.strip(), ended.stderr.count("\n")) == (2, "False", 1)
        assert ended.stderr.startswith(f"data.path: {said} does not exist (seen from ")
    wrong = ["train.round=3", "seed=x"]
    _, _, keys = call("run", "tiny.yaml", *wrong, "--check")  # its images are there
    status, _, error = call("run", "own.yaml", *wrong, "--check")
    assert (status, keys.count("\n")) == (2, 2)
    assert error.splitlines()[:2] == keys.splitlines()
    assert [line[:33] for line in error.splitlines()[2:]] == ["data.path: gone.csv does not exist"[:33]]
    status, _, error = call("run", "own.yaml", "seed=?", "--check")
    assert (status, "seed: found '?'; must be a whole number" in error) == (2, True)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    status, _, error = call("run", "own.yaml", "seed=x", "--check")
    assert (status, error.startswith("seed: found 'x'")) == (2, True)


@pytest.mark.parametrize(("changes", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_one_line_and_leaves_nothing(
    call: Call, tmp_path: Path, changes: list[str], expected: str
) -> None:
    (tmp_path / "text.parquet").write_text("no parquet\n")
    parquet(tmp_path / "truncated/train.parquet", [jpeg(i) for i in range(9)] + [jpeg(9)[:-200]])
    parquet(tmp_path / "truncated/test.parquet", [jpeg(i) for i in range(10, 14)])
    before = files(tmp_path)
    status, out, err = call(*local(*changes))
    assert status == 2
    assert expected in err
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    assert files(tmp_path) == before


def test_the_config_that_is_refused_with_changes_runs_without(call: Call) -> None:
    assert call(*local("train.rounds=1"))[0] == 0


def test_all_mistakes_are_told_at_once(call: Call) -> None:
    status, _, err = call(*local("train.rounds=0", "clients.count=0"))
    assert status == 2
    assert [line.split(":")[0] for line in err.splitlines()] == ["clients.count", "train.rounds"]


def test_a_missing_config_and_an_unknown_executor(call: Call) -> None:
    status, _, err = call("run", "nowhere.yaml")
    assert (status, err) == (2, "nowhere.yaml: found no such file or directory; must be a readable YAML file\n")
    status, _, err = call("run", "tiny.yaml", "--executor", "slurm")
    assert status == 2
    assert "ray" in err
    assert "local" in err


def test_a_folder_that_holds_a_run_is_not_written_over(call: Call, tmp_path: Path) -> None:
    call(*local("train.rounds=1"))
    before = contents(tmp_path / "runs")
    status, _, err = call(*local("train.rounds=1"))
    assert status == 2
    assert "already holds a run; add --resume" in err
    status, _, err = call(*local("train.rounds=1", "train.batch_size=8", "seed=1", "--resume"))
    assert status == 2
    assert "cannot resume with changed seed, train.batch_size" in err
    assert contents(tmp_path / "runs") == before


def test_labels_that_are_missing_are_missed_before_training(call: Call, tmp_path: Path) -> None:
    (tmp_path / "images/train").mkdir(parents=True)
    for i in range(8):
        (tmp_path / f"images/train/{i}.jpg").write_bytes(jpeg(i))
    unlabelled = ("data.name=imagefolder", "data.path=images", "clients.count=2", "train.rounds=1")
    status, _, err = call(*local(*unlabelled))
    assert status == 2
    assert err.startswith("evaluation.protocols: found knn, but none of the 8 train images has a label")
    assert not (tmp_path / "runs").exists()
    status, out, _ = call(*local(*unlabelled, "evaluation.protocols=[]"))
    assert status == 0
    assert "untrained" not in out


def test_more_actors_than_can_be_scheduled(call: Call, tmp_path: Path, ray_session: ModuleType) -> None:
    before = files(tmp_path)
    status, _, err = call("run", "tiny.yaml", "resources.actors=9")
    assert status == 2
    assert err.startswith("resources.actors: found 9; 9 actors x 1 CPU = 9.0 CPUs, the cluster has 4.0: at most 4")
    assert err.count("\n") == 1
    assert files(tmp_path) == before


# -- the other verbs ---------------------------------------------------------------------------------------------------


def test_methods_as_json_are_the_table(call: Call) -> None:
    status, out, _ = call("methods", "--json")
    rows = json.loads(out)
    assert status == 0
    assert [row["name"] for row in rows] == list(METHODS)
    assert {"name", "paper", "transmits", "stateful", "heterogeneous", "independent", "public_data"} == set(rows[0])
    status, out, _ = call("methods")
    assert status == 0
    assert all(name in out for name in METHODS)


def test_evaluate_again_gives_the_runs_own_numbers(call: Call, tmp_path: Path) -> None:
    call(*local("evaluation.protocols=[knn,fewshot]"))
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    status, out, _ = call("evaluate", "runs/tiny")
    found = json.loads((tmp_path / "runs/tiny/evaluation.json").read_text())
    assert status == 0
    assert found["accuracy"] == {"global": summary["accuracy"]}
    assert found["untrained"] == {"small_cnn": summary["untrained"]}
    assert found["pixels"] == summary["pixels"]
    assert f"{summary['accuracy']['knn']:.3f}" in out
    status, _, _ = call("evaluate", "runs/tiny", "--protocol", "linear", "--protocol", "knn")
    found = json.loads((tmp_path / "runs/tiny/evaluation.json").read_text())
    assert set(found["accuracy"]["global"]) == {"linear", "knn", "fewshot"}  # added, not replaced
    assert found["accuracy"]["global"]["fewshot"] == summary["accuracy"]["fewshot"]
    assert found["evaluation"]["fewshot"]["draws"] == 1  # the run's, not the default
    assert found["evaluation"]["linear"]["epochs"] == 200


def test_evaluate_takes_one_encoder_per_client(call: Call, tmp_path: Path) -> None:
    call(*local("method.name=fedfoa", "model.projector.dim=8", "model.width=0.1"))
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    call("evaluate", "runs/tiny")
    found = json.loads((tmp_path / "runs/tiny/evaluation.json").read_text())["accuracy"]
    assert {name: values["knn"] for name, values in found.items()} == {
        f"client-{int(client):05d}": value for client, value in summary["accuracy"]["knn"].items()
    }


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("run",), "rayfed-ssl run: missing argument 'config'; see rayfed-ssl run --help"),
        (("run", "tiny.yaml", "--fast"), "rayfed-ssl run: no such option: --fast; see rayfed-ssl run --help"),
        (
            ("run", "tiny.yaml", "--executor", "gpu"),
            "rayfed-ssl run: invalid value for '--executor': 'gpu' is not one of 'ray', 'local'; "
            "see rayfed-ssl run --help",
        ),
        (
            ("list", "runs", "\x1b]0;x"),
            r"rayfed-ssl list: got unexpected extra argument(s) (\x1b]0;x); see rayfed-ssl list --help",
        ),
        (
            ("run", "tiny.yaml", "--train.rounds=3"),
            "rayfed-ssl run: no such option: --train.rounds; keys are given without dashes: train.rounds=VALUE; "
            "see rayfed-ssl run --help",
        ),
        (
            ("evaluate", "runs/x", "--data.path", "photos"),
            "rayfed-ssl evaluate: no such option: --data.path; keys are given without dashes: data.path=VALUE where "
            "the run's images have moved, --data VALUE for other images; see rayfed-ssl evaluate --help",
        ),
        (
            ("leak", "runs/x", "--data.path=photos"),
            "rayfed-ssl leak: no such option: --data.path; keys are given without dashes: data.path=VALUE; "
            "see rayfed-ssl leak --help",
        ),
        (("embed", "x", "--data.path=y"), "rayfed-ssl embed: no such option: --data.path; see rayfed-ssl embed --help"),
        (("fly",), "rayfed-ssl: no such command 'fly'; see rayfed-ssl --help"),
    ],
)
def test_arguments_that_do_not_fit_are_one_line(call: Call, arguments: tuple[str, ...], line: str) -> None:
    status, out, err = call(*arguments)
    assert (status, out, err) == (2, "", line + "\n")


def test_no_argument_at_all_shows_the_commands(call: Call) -> None:
    status, out, err = call()
    assert (status, err) == (2, "")
    assert all(name in out for name in ("run", "compare", "doctor"))


@pytest.mark.parametrize(
    "arguments", [("evaluate",), ("leak",), ("embed", "images", "--out", "x"), ("export", "--to", "torch"), ("report",)]
)
def test_a_run_folder_that_is_not_there_is_called_the_same_everywhere(call: Call, arguments: tuple[str, ...]) -> None:
    status, out, err = call(arguments[0], "nowhere", *arguments[1:])
    assert (status, out) == (2, "")
    assert err.startswith("nowhere: found no such folder; must be ")
    assert err.count("\n") == 1


def test_evaluate_refuses_what_it_cannot_measure(call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, _, err = call("evaluate", "empty")
    assert (status, err) == (2, "empty: found no config.yaml; must be a run folder\n")
    assert call("run", "tiny.yaml", "--executor", "local", "-q", "train.rounds=1", "--out", "run")[0] == 0
    status, _, err = call("evaluate", "run", "--protocol", "transfr")
    assert status == 2
    assert all(name in err for name in ("knn", "linear", "fewshot", "did you mean transfer?"))


def test_doctor_says_what_is_there_and_what_is_missing(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAYFED_SSL_CACHE", str(tmp_path / "cache"))
    status, out, _ = call("doctor")
    assert status == 0
    for name in ("python", "torch", "ray", "cores", "memory", "GPU", "cluster", "cache", "extra privacy", "extra viz"):
        assert f"  {name}" in out
    assert not (tmp_path / "cache").exists()  # it looks and leaves nothing
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    status, out, _ = call("doctor")
    assert status == 1
    assert "127.0.0.1:1 does not answer" in out


# -- how it looks ------------------------------------------------------------------------------------------------------


def test_a_terminal_gets_one_bar() -> None:
    text = io.StringIO()
    with Reporter(Console(file=text, force_terminal=True, width=120), "fedsc") as reporter:
        reporter(Progress(0, 9, "fedsc on digits"))
        reporter(
            Progress(3, 9, "round 3/9", {"train/loss": 4.41, "system/round_s": 2.1, "system/images_per_s": 1234.0})
        )
        reporter(Progress(3, 9, "evaluated round 3", {"eval/knn": 0.85}))
        reporter(Progress(4, 9, "round 4/9", {"train/loss": 4.4, "system/round_s": 2.1, "system/images_per_s": 1234.0}))
        assert reporter.bar is not None
        (task,) = reporter.bar.tasks
        assert (task.completed, task.total) == (4, 9)
        assert task.fields["shown"] == "round 4/9  loss 4.4  knn 0.850 (round 3)  1,234 images/s"
    assert "fedsc on digits" in text.getvalue()


WHY = "came to nothing: every client that was asked failed"
NOTHING = Progress(2, 9, f"round 2/9 {WHY}", {"system/round_s": 2.1}, WHY)


def test_a_round_that_came_to_nothing_says_so() -> None:
    text = io.StringIO()
    with Reporter(Console(file=text, width=120), "fedsc") as reporter:
        reporter(Progress(1, 9, "round 1/9", {"train/loss": 4.41, "system/round_s": 2.1}))
        reporter(NOTHING)
    assert text.getvalue().splitlines() == [
        "round 1/9  loss 4.41  2.1 s",
        "round 2/9  came to nothing: every client that was asked failed  2.1 s",
    ]
    bar = io.StringIO()
    with Reporter(Console(file=bar, force_terminal=True, width=120), "fedsc") as reporter:
        reporter(NOTHING)
        reporter(Progress(3, 9, "round 3/9", {"train/loss": 4.41, "system/round_s": 2.1}))
    assert "round 2/9 came to nothing: every client that was asked failed" in bar.getvalue()  # above the bar, to stay


@pytest.mark.parametrize(("void", "told"), [({"void_rounds": 3}, True), ({"void_rounds": 0}, False), ({}, False)])
def test_a_run_says_in_the_end_how_many_rounds_came_to_nothing(void: dict[str, int], told: bool) -> None:
    text = io.StringIO()
    summary = {"accuracy": {}, "rounds": 9, "communication": {"up_bytes": 0, "down_bytes": 0}, "wall_s": 1.0, **void}
    conclude(Console(file=text, width=120), summary, "runs/demo")
    assert ("void rounds   3 of 9 came to nothing" in text.getvalue().splitlines()) == told
    assert "took          1 s, start-up not counted" in text.getvalue().splitlines()


@pytest.mark.parametrize(
    ("replies", "told"),
    [
        ({"asked": 1052, "late": 3, "dropped_out": 5, "gone": 0}, "1,052 asked for; 3 late, 5 lost in mid-round"),
        ({"asked": 52, "late": 0, "dropped_out": 0}, "52 asked for; none late or lost"),
        ({"asked": 9, "lost": 1, "stale": 2}, "9 asked for; 1 lost or late, 2 too stale"),
    ],
)
def test_a_run_with_a_clock_says_in_the_end_what_became_of_replies(replies: dict[str, int], told: str) -> None:
    text, plain = io.StringIO(), io.StringIO()
    summary = {"accuracy": {}, "rounds": 9, "communication": {"up_bytes": 0, "down_bytes": 0}, "wall_s": 1.0}
    conclude(Console(file=plain, width=120), {**summary, "dropped": {"clients": 0, "times": 0}}, "runs/demo")
    summary |= {"virtual_s": 7500.0, "replies": replies, "dropped": {"clients": 1, "times": 3}}
    conclude(Console(file=text, width=120), summary, "runs/demo")
    clock = ["virtual time  2 h 05 min", f"replies       {told}", "failed        1 client, left out 3 times"]
    assert text.getvalue().splitlines() == [*clock, *plain.getvalue().splitlines()]


@pytest.mark.parametrize(("last", "advised"), [(0.6, False), (0.5, True), (0.4, True)])
def test_an_encoder_that_is_not_better_than_untrained_comes_with_what_to_try(last: float, advised: bool) -> None:
    text = io.StringIO()
    summary = {
        "accuracy": {"knn": last}, "untrained": {"knn": 0.5}, "pixels": {}, "best": {},
        "evaluation": {"test_images": 4000}, "rounds": 9,
        "communication": {"up_bytes": 0, "down_bytes": 0}, "wall_s": 1.0,
    }  # fmt: skip
    conclude(Console(file=text, width=120), summary, "runs/demo")
    told = 'try next      other views ("Which views?" in docs/data.md), more rounds, more steps in each'
    assert (told in text.getvalue()) == advised


@pytest.mark.parametrize(("images", "last", "advised"), [(40, 0.6, True), (4000, 0.51, False), (40, 0.1, False)])
def test_where_few_test_images_cannot_tell_apart_more_of_them_are_advised(
    images: int, last: float, advised: bool
) -> None:
    """Ten points more are within the interval of 40 images, 40 points less are beyond it."""
    text = io.StringIO()
    summary = {
        "accuracy": {"knn": last}, "untrained": {"knn": 0.5}, "pixels": {}, "best": {},
        "evaluation": {"test_images": images}, "rounds": 9,
        "communication": {"up_bytes": 0, "down_bytes": 0}, "wall_s": 1.0,
    }  # fmt: skip
    conclude(Console(file=text, width=120), summary, "runs/demo")
    assert ("try next      more labelled test images, as 40 can show" in text.getvalue()) == advised
    assert 'other views ("Which views?" in docs/data.md)' in text.getvalue()


def test_more_test_images_are_no_advice_where_the_interval_is_over_clients() -> None:
    text = io.StringIO()
    summary = {
        "accuracy": {"task": {"0": 0.9, "1": 0.2, "2": 0.6}}, "untrained": {"task": {"0": 0.5, "1": 0.5, "2": 0.5}},
        "pixels": {}, "best": {}, "evaluation": {"test_images": 40, "task_test_images": 60}, "rounds": 9,
        "communication": {"up_bytes": 0, "down_bytes": 0}, "wall_s": 1.0,
    }  # fmt: skip
    conclude(Console(file=text, width=120), summary, "runs/demo")
    assert "try next      other views" in text.getvalue()


@pytest.mark.parametrize(
    ("pixels", "advised"),
    [
        ({}, False),
        ({"linear": 0.7, "knn": 0.5, "fewshot": 0.6}, False),
        ({"linear": 0.7, "knn": 0.5, "fewshot": 0.7}, True),
        ({"linear": 0.5, "knn": 0.7, "fewshot": 0.7}, True),
        ({"linear": 0.7, "knn": 0.5}, False),
        ({"linear": 0.7}, True),
    ],
)
def test_an_encoder_that_most_measures_put_below_raw_pixels_comes_with_what_to_try(
    pixels: dict[str, float], advised: bool
) -> None:
    """Ten points above the untrained encoder; ten below the pixels, level with them or ten above, of 4,000 images."""
    text = io.StringIO()
    summary = {
        "accuracy": dict.fromkeys(("linear", "knn", "fewshot"), 0.6), "pixels": pixels, "best": {},
        "untrained": dict.fromkeys(("linear", "knn", "fewshot"), 0.5), "evaluation": {"test_images": 4000},
        "rounds": 9, "communication": {"up_bytes": 0, "down_bytes": 0}, "wall_s": 1.0,
    }  # fmt: skip
    conclude(Console(file=text, width=120), summary, "runs/demo")
    assert ("try next      other views" in text.getvalue()) == advised


def test_where_the_untrained_encoder_has_all_another_measure_is_advised() -> None:
    text = io.StringIO()
    summary = {
        "accuracy": {"knn": 1.0}, "untrained": {"knn": 1.0}, "pixels": {}, "best": {},
        "evaluation": {"test_images": 4000}, "rounds": 9,
        "communication": {"up_bytes": 0, "down_bytes": 0}, "wall_s": 1.0,
    }  # fmt: skip
    conclude(Console(file=text, width=120), summary, "runs/demo")
    assert "try next      a harder measure, since the untrained encoder has nearly all of this one" in text.getvalue()
    assert "other views" not in text.getvalue()
    begun = io.StringIO()
    conclude(Console(file=begun, width=160), {**summary, "start": {"path": "earlier"}}, "runs/demo")
    assert "a harder measure, since the encoder it started from has nearly all of this one" in begun.getvalue()
    worse = io.StringIO()
    conclude(Console(file=worse, width=120), {**summary, "accuracy": {"knn": 0.4}}, "runs/demo")
    assert "try next      other views" in worse.getvalue()


def test_an_accuracy_of_several_clients_is_their_mean_and_extremes() -> None:
    assert accuracy_text(0.5) == "0.500"
    assert accuracy_text(None) == "-"
    assert accuracy_text(-0.0002) == "0.000"  # as an adjusted Rand index may be
    assert accuracy_text({"0": -0.0004, "1": -0.0002}) == "0.000 (0.000 to 0.000)"
    assert accuracy_text({"0": 0.25, "1": 0.75, "2": None}) == "0.500 (0.250 to 0.750)"
    assert accuracy_text({"0": 1.0, "1": 0.99984}) == ">.999 (>.999 to 1.000)"
    table = accuracy_table(
        {"accuracy": {"knn": None}, "best": {}, "untrained": {"knn": 0.1}, "pixels": {}}
    )  # a run whose last value was not finite
    assert [next(iter(column.cells)) for column in table.columns] == ["knn", "-", "0.100", "-", "-"]


@pytest.mark.cluster
def test_ctrl_c_twice_on_ray_ends_at_once_and_quietly(tmp_path: Path) -> None:
    slow = CONFIG.replace("rounds: 2", "rounds: 1000000, local_steps: 1000000")
    (tmp_path / "tiny.yaml").write_text(slow)
    command = [sys.executable, "-m", "rayfed_ssl", "run", "tiny.yaml", "--out", "run", "resources.actors=1"]
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # short, and nobody else's
    log = (tmp_path / "log").open("w")
    run = subprocess.Popen(
        command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary)},
    )  # fmt: skip
    ours: dict[int, Process] = {}
    try:
        until(
            lambda: (
                any(title(p) == "ray::ClientActorProcess.chunk" for p in descendants(run.pid)) or run.poll() is not None
            ),
            200,
        )
        ours = descendants(run.pid)
        (folder,) = temporary.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert list(folder.glob("*/session_*/sockets/raylet"))
        os.killpg(run.pid, signal.SIGINT)
        until(lambda: "stopping after this round" in (tmp_path / "log").read_text(), 60)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(120) == 130
        assert list(temporary.iterdir()) == []
    finally:
        ours |= descendants(run.pid)
        run.kill()
        run.wait()
        end(ours.values())
        shutil.rmtree(temporary, ignore_errors=True)
    text = (tmp_path / "log").read_text()
    assert "retried" not in text
    assert "Traceback" not in text


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_on_ray_ends_with_a_checkpoint_and_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    """Sent to the whole process group, as terminals and ``timeout`` do."""
    (tmp_path / "tiny.yaml").write_text(CONFIG.replace("rounds: 2", "rounds: 1000000"))
    with on_ray(tmp_path) as (run, ours):
        os.killpg(run.pid, number)
        assert run.wait(120) == 128 + number
        assert not orphans(ours.values(), 180)
    text = (tmp_path / "log").read_text()
    assert "stopped after round" in text
    assert "Traceback" not in text
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "stopped"
    assert list((tmp_path / "run/checkpoints").glob("round-*/complete.json"))


@pytest.mark.cluster
def test_a_signal_to_every_process_ends_at_once_and_keeps_the_checkpoints(tmp_path: Path) -> None:
    """As systemd and Slurm send it; Ray's processes end, too, and the last line says how to go on."""
    (tmp_path / "tiny.yaml").write_text(CONFIG.replace("rounds: 2", "rounds: 1000000"))
    with on_ray(tmp_path) as (run, ours):
        for pid in (run.pid, *ours):
            os.kill(pid, signal.SIGTERM)
        assert run.wait(55) == 143  # before Ray gives up waiting for itself, and ends its own way
        assert not orphans(ours.values(), 180)
    text = (tmp_path / "log").read_text()
    why = ("Ray's processes were ended", "the process that trained ended")  # which is seen first
    assert text.splitlines()[-1] in [
        f"stopped at once, because {one}, too; --resume continues what was saved" for one in why
    ]
    assert "Traceback" not in text
    assert not (tmp_path / "run/summary.json").exists()
    assert list((tmp_path / "run/checkpoints").glob("round-*/complete.json"))


@contextmanager
def on_ray(place: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[int, Process]]]:
    """A run of ``tiny.yaml`` on Ray in its second round, as the leader of a process group, and its processes; what it
    prints is in ``log``.
    """
    log = place / "log"
    command = [sys.executable, "-m", "rayfed_ssl", "run", "tiny.yaml", "--out", "run", "resources.actors=1"]
    with log.open("w") as file:
        run = subprocess.Popen(
            command, cwd=place, stdout=file, stderr=file, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    ours: dict[int, Process] = {}
    try:
        until(lambda: "round 2/" in log.read_text() or run.poll() is not None, 200)
        ours |= descendants(run.pid)
        assert "round 2/" in log.read_text()
        titles = [title(pid) for pid in ours]
        assert all(any(name in each for each in titles) for name in ("raylet", "gcs_server", "ray::ClientActor"))
        yield run, ours
    finally:
        ours |= descendants(run.pid)
        run.kill()
        run.wait()
        end(ours.values())
