"""``rayfed-ssl list``: whatever lies in a folder, damaged or not, and what runs on a cluster."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from torch.utils.tensorboard import summary

from rayfed_ssl.base.lock import Lock, is_held
from rayfed_ssl.federated.messages import ClientError
from rayfed_ssl.methods import METHODS
from rayfed_ssl.records.rounds_under_way import rounds_over
from rayfed_ssl.records.tensorboard import EventFile
from rayfed_ssl.report.formats import number
from rayfed_ssl.report.verdict import verdict
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage.claim import LOCK
from rayfed_ssl.storage.listing import Listed, runs_in
from rayfed_ssl.terminal.listing import listing_table
from tests.command_line import Call
from tests.tiny import tiny


def test_a_cell_of_many_measures_holds_whole_ones_and_counts_the_others() -> None:
    """What was cut out of the middle made one measure's name and another's value one."""
    measures = {f"measure_{n:02}_balanced_accuracy": n / 100 for n in range(20)}
    (cell,) = listing_table([Listed("r", "complete", accuracy=dict(measures))], []).columns[4].cells
    *shown, more = str(cell).split("  ")
    assert shown == [f"{name} {value:.3f}" for name, value in measures.items()][: len(shown)]
    assert (len(shown) > 3, more) == (True, f"and {20 - len(shown)} more")
    (cell,) = listing_table([Listed("r", "complete", accuracy={"knn": 0.5, "linear": None})], []).columns[4].cells
    assert cell == "knn 0.500  linear -"
    (cell,) = listing_table([Listed("r", "complete", accuracy={"cluster_ari": -0.0002})], []).columns[4].cells
    assert cell == "cluster_ari 0.000"
    (cell,) = listing_table([Listed("r", "complete", accuracy={"knn": 0.99984})], []).columns[4].cells
    assert cell == "knn >.999"


def test_runs_are_listed_however_they_are(call: Call, tmp_path: Path) -> None:
    call("run", "tiny.yaml", "--executor", "local", "-q", "--out", "runs/whole")
    runs = tmp_path / "runs"
    for name in ("cut", "fight/trial-00000", "no-config", "odd-summary", "not-yaml", "longer"):
        shutil.copytree(runs / "whole", runs / name)
    (runs / "cut/summary.json").unlink()
    shutil.rmtree(runs / "cut/checkpoints/round-00002")
    (runs / "no-config/config.yaml").unlink()
    (runs / "odd-summary/summary.json").write_text("{}")
    (runs / "not-yaml/config.yaml").write_text("- a\n- [")
    text = (runs / "longer/config.yaml").read_text()
    (runs / "longer/config.yaml").write_text(text.replace("rounds: 2", "rounds: 5"))
    (runs / ".hidden").mkdir()
    (runs / "notes.txt").write_text("mine")
    (runs / "loop").symlink_to(runs)

    status, out, _ = call("list", "--json")
    assert status == 0
    found = {row["run"]: row for row in json.loads(out)}
    assert list(found) == ["cut", "fight/trial-00000", "longer", "no-config", "not-yaml", "odd-summary", "whole"]
    summary = json.loads((runs / "whole/summary.json").read_text())
    whole = found["whole"]
    assert (whole["method"], whole["status"], whole["done"], whole["rounds"]) == ("fedsimclr", "complete", 2, 2)
    assert whole["accuracy"] == summary["accuracy"]
    files = [path for path in (runs / "whole").rglob("*") if path.is_file()]
    assert whole["bytes"] == sum(path.stat().st_size for path in files)
    assert found["fight/trial-00000"]["status"] == "complete"
    assert (found["cut"]["status"], found["cut"]["done"]) == ("unfinished", 1)
    recorded = pq.read_table(runs / "cut/metrics.parquet").to_pylist()
    (first,) = [row["value"] for row in recorded if (row["round"], row["tag"]) == (1, "eval/knn")]
    assert (found["cut"]["accuracy"], first == summary["accuracy"]["knn"]) == ({"knn": first}, False)
    assert (found["longer"]["status"], found["longer"]["done"], found["longer"]["rounds"]) == ("unfinished", 2, 5)
    for name, file in (("no-config", "config.yaml"), ("not-yaml", "config.yaml"), ("odd-summary", "summary.json")):
        assert found[name]["status"] == "damaged"
        assert f"runs/{name}/{file}: " in found[name]["problem"]

    status, out, _ = call("list", "runs")
    assert status == 0
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["whole"]]
    assert f"whole fedsimclr complete 2/2 knn {summary['accuracy']['knn']:.3f} " in " ".join(line.split())
    assert out.count("damaged") == 3
    assert [one.run for one in runs_in(runs / "whole")] == ["whole"]


def test_a_run_stopped_before_its_first_round_has_measured_nothing(call: Call, tmp_path: Path) -> None:
    config = tiny("fedsimclr", evaluation__protocols=["knn", "rank"], train__rounds=1)
    summary = loop.run(config, tmp_path / "runs/none", LocalCohort, stopping=lambda: True)
    assert (summary["status"], summary["rounds"]) == ("stopped", 0)
    assert summary["accuracy"]["knn"] > 0  # the untrained encoder's
    (one,) = runs_in(tmp_path / "runs")
    assert (one.status, one.done, one.accuracy) == ("stopped", 0, {"knn": None})
    assert one.features == dict.fromkeys(summary["features"])
    status, out, _ = call("list")
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["none"]]
    assert (status, " ".join(line.split()).startswith("none fedsimclr stopped 0/1 knn - ")) == (0, True)


def test_a_run_that_was_cut_off_is_listed_with_what_it_last_recorded(tmp_path: Path) -> None:
    changes = {"evaluation__protocols": ["knn", "rank"], "evaluation__every": 2, "train__rounds": 3}
    summary = loop.run(tiny("local", checkpoint__every=1, **changes), tmp_path / "runs/one", LocalCohort)
    run = tmp_path / "runs/one"
    (run / "summary.json").unlink()
    (one,) = runs_in(tmp_path / "runs")
    assert (one.status, one.done, one.problem) == ("unfinished", 3, None)
    assert one.accuracy == {"knn": pytest.approx(np.mean(list(summary["accuracy"]["knn"].values())))}
    assert set(one.features) == set(summary["features"])
    shutil.rmtree(run / "checkpoints")
    (one,) = runs_in(tmp_path / "runs")
    assert (one.done, one.accuracy) == (0, {"knn": None})  # of the untrained encoders
    (part, *_) = sorted((run / "metrics.parquet").iterdir())
    part.write_bytes(b"no table")
    (one,) = runs_in(tmp_path / "runs")
    assert (one.status, one.accuracy) == ("unfinished", {})
    assert str(one.problem).startswith(f"{part}: cannot be read (")


def test_a_run_under_way_is_listed_with_the_rounds_that_are_over(tmp_path: Path) -> None:
    """No checkpoint yet, so no table: what the loop reported is the truth. Without its process it would begin again."""
    seen = {}

    def report(progress: Progress) -> None:
        if progress.finishes_a_round:
            (copy := tmp_path / "runs" / f"after-{progress.round}").parent.mkdir(exist_ok=True)
            shutil.copytree(tmp_path / "run", copy)
            with sorted(copy.glob("events*"))[-1].open("ab") as file:
                file.write(b"\x18\x00\x00")  # the next record, half written
            seen[copy.name] = progress.round

    loop.run(tiny("fedsimclr", train__rounds=3, checkpoint__every=10), tmp_path / "run", LocalCohort, report=report)
    assert list(seen.values()) == [1, 2, 3]
    copies = [tmp_path / "runs" / name for name in seen]
    (copies[0] / "events.out.tfevents.9999999999").symlink_to(tmp_path / "gone")  # hides its run's rounds, and no other
    seen[copies[0].name] = 0
    assert {(one.status, one.done) for one in runs_in(tmp_path / "runs")} == {("unfinished", 0)}
    child = os.fork()
    if child == 0:
        locks = [Lock(copy / LOCK) for copy in copies]
        time.sleep(60)
        os._exit(len(locks))
    try:
        for _ in range(200):
            if all(is_held(copy / LOCK) for copy in copies):
                break
            time.sleep(0.05)
        assert {one.run: (one.status, one.done) for one in runs_in(tmp_path / "runs")} == {
            name: ("running", round) for name, round in seen.items()
        }
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_rounds_that_are_over_are_read_from_the_end_of_the_event_file(tmp_path: Path) -> None:
    """Before the records lie 64 GB of nothing, which no test has time to read."""
    file = EventFile(tmp_path / "made", None)
    file.add(summary.scalar("system/round_s", 0.5), 6)
    for client in range(5000):  # far more than is read at first
        file.add(summary.scalar(f"client/train/loss/{client}", 0.5), 7)
    file.add(summary.text("notes", "system/round_s is no round"), 9)
    file.close()
    (path,) = (tmp_path / "made").iterdir()
    assert rounds_over(path.parent) == 6
    with (tmp_path / path.name).open("wb") as large:
        large.seek(1 << 36)
        large.write(path.read_bytes())
    assert rounds_over(tmp_path) == 6
    EventFile(tmp_path / "none", None).close()
    assert rounds_over(tmp_path / "none") == 0


def test_clients_accuracies_are_listed_as_their_mean(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/config.yaml").write_text("{method: {name: mine}, train: {rounds: 4}}")
    told = {"status": "stopped", "rounds": 3, "accuracy": {"knn": {"0": 0.5, "1": None, "2": 1.0}, "linear": None}}
    (tmp_path / "one/summary.json").write_text(json.dumps(told))
    (one,) = runs_in(tmp_path)
    assert (one.method, one.status, one.done, one.rounds) == ("mine", "stopped", 3, 4)  # no such method is known here
    assert one.accuracy == {"knn": 0.75, "linear": None}
    child = os.fork()
    if child == 0:  # a lock is another process's business
        Lock(tmp_path / "one" / LOCK)
        time.sleep(60)
        os._exit(0)
    try:
        for _ in range(200):
            if is_held(tmp_path / "one" / LOCK):
                break
            time.sleep(0.05)
        assert runs_in(tmp_path)[0].status == "running"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert runs_in(tmp_path)[0].status == "stopped"


def test_a_run_that_failed_is_listed_as_such_until_it_goes_on(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, t: int, cohort: object) -> None:
        raise ClientError(1, t, "train", "in process", "Traceback ..\nValueError: no luck")

    tiny_run = ("run", "tiny.yaml", "--executor", "local", "-q", "--out", "runs/one")
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["fedsimclr"].server, "round", broken)
        status, _, err = call(*tiny_run)
    assert status == 1
    assert "ValueError: no luck" in err
    status, out, _ = call("list")
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["one"]]
    assert " ".join(line.split()).startswith("one fedsimclr failed 0/2")
    assert "runs/one/error.txt: ValueError: no luck" in out
    assert call(*tiny_run, "--resume")[0] == 0
    assert [(one.status, one.problem) for one in runs_in(tmp_path / "runs")] == [("complete", None)]


def test_trials_are_listed_with_what_they_vary(call: Call, tmp_path: Path) -> None:
    call("run", "tiny.yaml", "--executor", "local", "-q", "--out", "sweep/trial-00000")
    for trial in (1, 2, 3):
        shutil.copytree(tmp_path / "sweep/trial-00000", tmp_path / f"sweep/trial-0000{trial}")
    (tmp_path / "sweep/trial-00001/summary.json").unlink()
    (tmp_path / "sweep/trial-00002/config.yaml").unlink()
    shutil.rmtree(tmp_path / "sweep/trial-00002/metrics.parquet")
    (tmp_path / "sweep/trial-00002/error.txt").write_text("Traceback\nOSError: gone\n")
    rows = [
        {"trial": k, "point": {"method.name": "fedsimclr", "train.batch_size": 8 * (k + 1)}, "status": status}
        for k, status in enumerate(("complete", "failed", "failed", "complete"))
    ]
    (tmp_path / "sweep/trials.json").write_text(json.dumps({"trials": rows}))
    found = runs_in(tmp_path)
    assert [one.status for one in found] == ["complete", "failed", "failed", "complete"]
    assert found[1].point == {"method.name": "fedsimclr", "train.batch_size": 16}
    assert found[2].problem == f"{tmp_path / 'sweep/trial-00002/error.txt'}: OSError: gone"
    assert "sweep/trial-00000  train.batch_size=8 " in call("list", ".")[1]
    assert {one.seed for one in found} == {None}
    repeats = [{**row, "repetition": k % 2} for k, row in enumerate(rows)]  # which only their seeds tell apart
    (tmp_path / "sweep/trials.json").write_text(json.dumps({"trials": repeats}))
    assert [one.seed for one in runs_in(tmp_path)] == [0, 0, None, 0]  # as config.yaml says, where there is one
    assert "sweep/trial-00000  train.batch_size=8  seed=0 " in call("list", ".")[1]
    (tmp_path / "sweep/trials.json").write_text("[]")
    assert [one.run for one in runs_in(tmp_path)] == [f"sweep/trial-0000{k}" for k in (0, 1, 3)]


def test_what_a_sweep_wrote_of_its_trials_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        for trial in range(5):
            (tmp_path / f"{name}/trial-{trial:05d}").mkdir(parents=True)
            (tmp_path / f"{name}/trial-{trial:05d}/error.txt").write_text("OSError: gone\n")
        rows = [{"trial": k, "point": {"seed": [name, k]}, "status": "failed"} for k in range(5)]
        (tmp_path / f"{name}/trials.json").write_text(json.dumps({"trials": rows}))
    read, opened = Path.read_text, list[Path]()

    def counted(path: Path, *args: Any, **options: Any) -> str:
        opened.append(path)
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    found = runs_in(tmp_path)
    assert [one.point for one in found] == [{"seed": [name, k]} for name in ("one", "two") for k in range(5)]
    assert [path for path in opened if path.suffix == ".json"] == [
        tmp_path / f"{n}/trials.json" for n in ("one", "two")
    ]


@pytest.mark.parametrize(
    "text",
    ['{"trials": [{"trial": 0, "point": "lr"}]}', '{"trials": [{"trial": 0, "point": 3}]}', '{"trials": ["x"]}',
     '{"trials": [{"trial": 0, "point": [1]}]}', '{"trials": [{"trial": "0"}]}', '{"trials": 3}', '{"trials"', "[]"],
)  # fmt: skip
def test_a_run_beside_what_no_sweep_wrote_is_listed_without_it(call: Call, tmp_path: Path, text: str) -> None:
    run = tmp_path / "runs/trial-00000"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{method: {name: mine}, train: {rounds: 4}}")
    (tmp_path / "runs/trials.json").write_text(text)
    status, out, err = call("list")
    assert (status, err) == (0, "")
    assert "trial-00000 mine unfinished 0/4" in " ".join(out.split())
    (row,) = json.loads(call("list", "--json")[1])
    assert (row["run"], row["point"]) == ("trial-00000", {})


@pytest.mark.long
def test_a_run_without_accuracies_lists_what_describes_its_features(call: Call, tmp_path: Path) -> None:
    status, out, _ = call("run", "tiny.yaml", "--executor", "local", "evaluation.protocols=[rank]")
    assert status == 0
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    assert (summary["accuracy"], summary["features"].keys()) == ({}, summary["untrained_features"].keys())
    assert f"evaluated the untrained encoder  alignment {summary['untrained_features']['alignment']:.3f}" in out
    assert f"rankme {summary['untrained_features']['rankme']:.3f} {summary['features']['rankme']:.3f}" in " ".join(
        out.split()
    )
    assert f"rankme {summary['features']['rankme']:.3f}" in call("list")[1]
    assert "spectrum" not in out
    found = verdict(summary).sentence
    assert "After 2 rounds, no accuracy was measured; of the features: " in found
    assert f"RankMe {number(summary['features']['rankme'])} (from " in found
    status, out, _ = call("evaluate", "runs/tiny", "--protocol", "cluster")
    assert status == 0
    assert "cluster_nmi" in out
    assert "fewshot" not in out  # of the raw pixels, which nothing beside it was measured by
    assert "raw pixels" in call("evaluate", "runs/tiny", "--protocol", "fewshot")[1]


def test_no_folder_no_runs_no_cluster(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("list") == (0, "no runs yet: there is no folder runs here\n", "")
    assert call("list", "--json") == (0, "[]\n", "")
    assert call("list", "run") == (2, "", "run: found no such folder; must be one that holds runs\n")
    (tmp_path / "runs").mkdir()
    assert call("list") == (0, "runs holds no run\n", "")
    assert call("list", "--json") == (0, "[]\n", "")
    status, _, err = call("list", "--cluster")
    assert status == 2
    assert err.startswith("RAY_ADDRESS: not set, and list --cluster needs a cluster that stays")
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")  # of a job server
    assert call("list") == (0, "runs holds no run\n", "")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # where another test of this process has connected
    status, out, err = call("list")
    assert (status, out) == (0, "runs holds no run\n")
    assert err.startswith("RAY_ADDRESS: found 127.0.0.1:1; ")


@pytest.mark.long
def test_detached_runs_are_listed_with_where_they_are(
    call: Call, ray_session: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actors import follow
    from actors.session import connect

    config = tiny("fedsimclr", train__rounds=1, evaluation__protocols=[], resources__actors=1)
    with connect() as session:
        driver, _ = follow.start(config, tmp_path / "left", session, detached="left-alone")
        try:
            follow.follow(driver, lambda progress: None)
            assert follow.detached("here") == [follow.Detached("left-alone", "done", 1, 1, str(tmp_path / "left"))]
            monkeypatch.setenv("RAY_ADDRESS", "here")  # where this process is connected already
            status, out, _ = call("list", str(tmp_path / "left"), "--cluster", "--json")
            (local, there) = json.loads(out)
            assert (status, local["detached"], local["status"]) == (0, False, "complete")
            assert there == {
                "run": "left-alone", "status": "done", "done": 1, "rounds": 1, "folder": str(tmp_path / "left"),
                "detached": True,
            }  # fmt: skip
            assert "left-alone" in call("list", "--cluster")[1]
        finally:
            ray_session.kill(driver)
