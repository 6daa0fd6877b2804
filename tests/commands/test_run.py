"""``rayfed-ssl run`` for programs and for people: objects, silence, and a finished run that is made longer."""

from __future__ import annotations

import errno
import io
import json
import shlex
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from rayfed_ssl.report.verdict import verdict
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.terminal.events import Events
from tests.command_line import Call

LOCAL = ("run", "tiny.yaml", "--executor", "local")


def test_json_is_one_object_per_round_and_lines_go_to_stderr(call: Call, tmp_path: Path) -> None:
    status, out, err = call(*LOCAL, "--json")
    assert status == 0
    events = [json.loads(line) for line in out.splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    assert [(event["round"], event["rounds"]) for event in rounds] == [(1, 2), (2, 2)]
    table = pq.read_table(tmp_path / "runs/tiny/metrics.parquet").to_pylist()
    recorded = {(row["round"], row["tag"]): row["value"] for row in table if row["client"] is None}
    assert all(event["train/loss"] == recorded[event["round"], "train/loss"] for event in rounds)
    measured = {event["round"]: event for event in events if event["event"] == "evaluation"}
    assert set(measured) == {0, 1, 2}
    assert measured[2]["eval/knn"] == recorded[2, "eval/knn"]
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    said = asdict(verdict(summary))
    assert events[-1] == {"event": "end", "run": "runs/tiny", **summary, "verdict": said}
    assert said["sentence"].startswith("After 2 rounds, the encoder is ")
    assert err.startswith("fedsimclr on digits: 3 clients x 20 images\n")


@pytest.mark.long
@pytest.mark.usefixtures("only_svg")
def test_the_last_line_names_the_report_and_an_older_one(call: Call, tmp_path: Path) -> None:
    status, out, _ = call(*LOCAL, "evaluation.protocols=[]", "train.rounds=1")
    assert (status, out.splitlines()[-1]) == (0, "report        rayfed-ssl report runs/tiny")
    assert call("report", "runs/tiny", "--no-images")[0] == 0
    page = tmp_path / "runs/tiny/report.html"
    assert "as it was after round 1." in page.read_text()
    status, out, _ = call("run", "runs/tiny/config.yaml", "--executor", "local", "--resume", "train.rounds=2")
    assert (status, out.splitlines()[-1]) == (
        0,
        "report        rayfed-ssl report runs/tiny  (report.html there is older)",
    )
    assert call("report", "runs/tiny", "--no-images")[0] == 0
    assert "as it was after round 2." in page.read_text()


def test_quiet_says_nothing_but_mistakes(call: Call, tmp_path: Path) -> None:
    assert call(*LOCAL, "--quiet") == (0, "", "")
    assert json.loads((tmp_path / "runs/tiny/summary.json").read_text())["status"] == "complete"
    status, out, err = call(*LOCAL, "-q")
    assert (status, out) == (2, "")
    assert "already holds a run" in err
    status, _, err = call(*LOCAL, "-q", "--json")
    assert (status, err) == (2, "--quiet: found beside --json, which prints objects; allowed: one of them\n")


def test_what_others_print_and_what_is_not_finite_leave_json_intact(capsys: pytest.CaptureFixture[str]) -> None:
    with Events() as events:
        print("a worker's output")
        events(Progress(1, 2, "round 1/2", {"train/loss": float("nan"), "system/round_s": 1.0}))
        events.say({"accuracy": {"knn": float("nan"), "draws": [0.5, float("inf")]}})
        events(Progress(1, 2, "a\x1b[31m line"))
    print("afterwards")
    out, err = capsys.readouterr()
    assert out == (
        '{"event": "round", "round": 1, "rounds": 2, "train/loss": null, "system/round_s": 1.0}\n'
        '{"accuracy": {"knn": null, "draws": [0.5, null]}}\nafterwards\n'
    )
    assert err == "a worker's output\na\\x1b[31m line\n"


def test_beside_objects_people_hear_of_a_round_that_came_to_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Events() as events:
        why = "came to nothing: nobody replied"
        events(Progress(2, 3, f"round 2/3 {why}", {"system/round_s": 1.0}, why))
    out, err = capsys.readouterr()
    assert json.loads(out) == {"event": "round", "round": 2, "rounds": 3, "system/round_s": 1.0}
    assert err == "round 2/3 came to nothing: nobody replied\n"


def test_objects_that_nobody_reads_any_more_end_no_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("sys.stdout", Closed())
    with Events() as events:
        for t in (1, 2):
            events(Progress(t, 2, "", {"system/round_s": 1.0}))
    assert capsys.readouterr().err == "standard output: Broken pipe; going on without it\n"


def test_rounds_are_shown_where_nothing_but_features_is_described(call: Call) -> None:
    status, out, _ = call(*LOCAL, "evaluation.protocols=[rank]", "evaluation.every=1")
    assert status == 0
    assert [line.split("  ")[0] for line in out.splitlines() if line.startswith("round ")] == ["round 1/2", "round 2/2"]


@pytest.mark.long
def test_a_finished_run_is_extended(call: Call, tmp_path: Path) -> None:
    call(*LOCAL, "-q")
    again = ("run", "runs/tiny/config.yaml", "--executor", "local", "--resume")
    status, out, _ = call(*again, "train.rounds=3")
    assert status == 0
    assert "extended from 2 to 3 rounds" in out
    assert "round 3/3" in out
    assert yaml.safe_load((tmp_path / "runs/tiny/config.yaml").read_text())["train"]["rounds"] == 3
    status, _, err = call(*again, "train.rounds=2")
    assert status == 2
    assert err.startswith("train.rounds: found 2; runs/tiny is a run of 3, allowed with --resume: 3 or more")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["runs/odd name x", "runs/it's $HOME"])
def test_commands_that_are_named_can_be_copied_whatever_the_folder_is_called(
    name: str, call: Call, tmp_path: Path
) -> None:
    status, out, _ = call(*LOCAL, "evaluation.protocols=[]", "train.rounds=1", "--out", name)
    said = {line[:13].strip(): line[14:] for line in out.splitlines()}
    assert (status, said["run folder"]) == (0, name)
    assert shlex.split(said["curves"]) == ["tensorboard", "--logdir", name]
    assert shlex.split(said["report"]) == ["rayfed-ssl", "report", name]
