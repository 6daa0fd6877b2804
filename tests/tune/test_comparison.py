"""Comparisons of variants: what fits, what is refused, what is run and what is not run twice."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest
import yaml
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import load as load_run
from rayfed_ssl.methods import METHODS
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.storage import failure
from rayfed_ssl.storage.claim import LOCK
from rayfed_ssl.storage.listing import runs_in
from tests.command_line import caller, command
from tests.tiny import encoders, measured
from tests.tune.sweeps import RUN
from tune import comparison as module
from tune.comparison import run_comparison
from tune.variants import from_file, from_methods, refusal, shown_metric

SMALL = {**RUN, "data": {"name": "digits", "image_size": 8, "limit": 60, "test_limit": 30}, "checkpoint": {"every": 1}}
CHEAP = {"resources": {"device": "cpu", "cpus_per_client": 0.5}}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **CHEAP}, sort_keys=False))
    return path


def variants_file(base: Path, **keys: Any) -> Path:
    path = base.parent / "fight.yaml"
    path.write_text(yaml.safe_dump({"base": "run.yaml", **keys}, sort_keys=False))
    return path


def stamps(out: Path) -> dict[str, int]:
    """When each complete run ended."""
    ended = [path for path in out.glob("trial-*/summary.json") if json.loads(path.read_text())["status"] == "complete"]
    return {path.parent.name: path.stat().st_mtime_ns for path in ended}


def stop_after(count: int) -> tuple[Callable[[], bool], Callable[[str], None], list[str]]:
    """Stop once so many trials are complete."""
    lines: list[str] = []
    return lambda: sum("  complete  " in line for line in lines) >= count, lines.append, lines


@pytest.mark.long
def test_methods_over_seeds_interrupted_and_resumed_run_nothing_twice(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stopping, say, lines = stop_after(2)
    made = from_methods(base, ["fedsimclr", "fedbyol"], ["train.rounds=2"], seeds=2)
    first = run_comparison(made, out, local=True, say=say, stopping=stopping)
    assert (first.left, first.failed) == (2, 0)
    assert lines[0] == "4 trials; one at a time, in this process"
    assert first.comparison is not None
    assert first.comparison.rows[1].unfinished == {"trial-00002": "not finished", "trial-00003": "not finished"}
    before = stamps(out)
    assert set(before) == {"trial-00000", "trial-00001"}
    again = run_comparison(made, out, local=True, resume=True, say=lines.append)
    assert "4 trials, 2 of them over already; one at a time, in this process" in lines
    assert {name: stamp for name, stamp in stamps(out).items() if name in before} == before
    assert again.comparison is not None
    assert (again.left, again.comparison.seeds) == (0, [0, 1])
    assert [row.name for row in again.comparison.trained] == ["fedsimclr", "fedbyol"]
    assert again.comparison.other_splits == {}
    whole = stamps(out)
    third = run_comparison(from_file(out / "comparison.yaml"), out, local=True, resume=True)
    assert stamps(out) == whole
    assert third.comparison is not None
    assert third.comparison.rows[1].values == again.comparison.rows[1].values
    found = load_run(out / "trial-00003" / "config.yaml")
    assert (found.method.name, found.objective.name, found.seed, found.train.rounds) == ("fedbyol", "byol", 1, 2)
    assert not (out / "best.yaml").exists()  # nothing is chosen
    told = json.loads((out / "comparison.json").read_text())
    assert told["rows"][1]["seeds"]["1"]["folder"] == "trial-00003"


@pytest.mark.long
def test_lines_about_runs_show_what_chooses_and_no_test_labels(base: Path, tmp_path: Path) -> None:
    """Whoever watches runs that are to be chosen from must not know what test labels say of them."""
    made, out = (
        from_methods(base, ["fedsimclr", "local"], ["evaluation.protocols=[knn, rank]", "train.rounds=1"]),
        tmp_path,
    )
    stopping, say, lines = stop_after(1)
    run_comparison(made, out / "out", local=True, select="uniformity", say=say, stopping=stopping)
    run_comparison(made, out / "out", local=True, resume=True, say=say)  # which chooses as before
    for number, line in enumerate(line for line in lines if line.startswith("trial-")):
        found = json.loads((out / f"out/trial-0000{number}/summary.json").read_text())["features"]["uniformity"]
        mean = fmean(found.values()) if number else found  # of the clients' encoders
        assert line.split("  ")[:3] == [f"trial-0000{number}", "complete", f"features.uniformity {mean:.4g}"]
    assert number == 1


def test_where_not_all_runs_have_what_chooses_lines_show_the_time(base: Path) -> None:
    held_out = {"method.name": "local", "evaluation.select": {"share": 0.2}}
    made = from_file(variants_file(base, variants={"fedsimclr": None, "held out": held_out}))
    assert shown_metric(made, None) == "accuracy.knn"
    assert shown_metric(made, "select.knn") == "wall_s"
    tasks = {"data.tasks": [[0, 1], [2, 3]], "data.public.source": "share"}
    linked, alone, without = (
        {**tasks, "method.name": "fedlinked"},
        {**tasks, "method.name": "local", "objective.name": "supervised"},
        {**tasks, "method.name": "local"},
    )
    for other, metric in ((alone, "accuracy.task"), (without, "accuracy.knn")):
        made_of_two = from_file(variants_file(base, variants={"linked": linked, "local": other}))
        assert shown_metric(made_of_two, None) == metric
    assert shown_metric(from_file(variants_file(base, variants={"held out": held_out})), "select.knn") == "select.knn"


@pytest.mark.long
def test_a_run_stopped_in_the_middle_goes_on_from_its_checkpoint(base: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    made = from_methods(base, ["fedprox"])
    run_comparison(made, whole, local=True)
    asked: list[int] = []

    def stopping() -> bool:
        asked.append(1)
        return len(asked) > 2  # the trial's start and its first round have asked before

    found = run_comparison(made, out, local=True, stopping=stopping)
    assert (found.comparison, found.left) == (None, 1)
    assert json.loads((out / "trial-00000" / "summary.json").read_text())["rounds"] == 1
    assert run_comparison(made, out, local=True, resume=True).left == 0
    assert encoders(out / "trial-00000") == encoders(whole / "trial-00000")
    assert measured(out / "trial-00000") == measured(whole / "trial-00000")


@pytest.mark.long
def test_a_second_command_in_the_folder_is_refused_and_the_first_is_undisturbed(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call, out = caller(base.parent, monkeypatch, capsys), Path("runs/c")
    made = from_methods(base, ["fedsimclr", "fedprox", "local"], ["train.rounds=2"])
    stopping, say, _ = stop_after(1)
    run_comparison(made, out, local=True, say=say, stopping=stopping)
    refused = list[str]()

    def meanwhile() -> bool:
        """While the second run goes on: one command more, and those that only read."""
        if not refused and (out / "trial-00001/config.yaml").exists():
            before = {path: path.read_bytes() for path in out.rglob("*.json")}
            status, _, err = call("compare", "--resume", "--out", "runs/c", "--executor", "local")
            refused.append(err)
            assert status == 2
            assert {path: path.read_bytes() for path in out.rglob("*.json")} == before
            assert call("compare", "runs/c")[0] == 0
            assert call("report", "runs/c")[0] == 0
            assert [row["status"] for row in json.loads(call("list", "--json")[1])] == ["complete", "running"]
        return False

    assert run_comparison(made, out, local=True, resume=True, stopping=meanwhile).left == 0
    assert re.fullmatch(
        rf"--out: {out.absolute()} is being written by another run \(\S+, pid {os.getpid()}\); "
        "wait for it, stop it, or name another folder\n",
        refused[0],
    )
    assert len(stamps(out)) == 3
    assert not list(out.rglob("error.txt"))
    assert not list(out.rglob(LOCK))
    assert {row["status"] for row in json.loads((out / "trials.json").read_text())["trials"]} == {"complete"}


def test_where_there_are_no_locks_the_comparison_says_so(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*args: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    made, said = (
        from_methods(base, ["fedsimclr"], ["train.rounds=1"]),
        list[str](),
    )  # decodes images into a locked cache
    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert run_comparison(made, tmp_path / "out", local=True, say=said.append, stopping=lambda: True).left == 1
    assert said[0] == (
        f"{tmp_path / 'out'} cannot be locked (Operation not supported): nothing keeps a second command from writing "
        "there"
    )
    assert not list(tmp_path.rglob(LOCK))


@pytest.mark.cluster
def test_on_ray_as_in_this_process(base: Path, tmp_path: Path, ray_session: ModuleType) -> None:
    made = from_methods(base, ["fedsimclr", "local"], ["train.rounds=1"])
    stopping, say, _ = stop_after(1)
    run_comparison(made, tmp_path / "ray", say=say, stopping=stopping)
    before = stamps(tmp_path / "ray")
    on_ray = run_comparison(made, tmp_path / "ray", resume=True)
    assert before.items() <= stamps(tmp_path / "ray").items()
    here = run_comparison(made, tmp_path / "here", local=True)
    assert on_ray.comparison is not None
    assert here.comparison is not None
    assert [row.values for row in on_ray.comparison.rows] == [row.values for row in here.comparison.rows]
    assert on_ray.comparison.rows[1].bytes_total == 0


@pytest.mark.long
def test_a_run_that_fails_is_told_and_the_others_go_on(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out, lines = module.loop.run, list[str]()

    def run(config: Any, *args: Any, **how: Any) -> Any:
        if config.method.name == "fedprox" and not how["resume"]:
            raise RuntimeError("no luck")
        return carry_out(config, *args, **how)

    monkeypatch.setattr(module.loop, "run", run)
    made = from_methods(base, ["fedprox", "fedsimclr"], ["train.rounds=1"])
    found = run_comparison(made, tmp_path / "out", local=True, say=lines.append)
    assert (found.failed, found.left) == (1, 1)
    assert any(line.startswith("trial-00000 failed: no luck (") for line in lines)
    assert "RuntimeError: no luck" in (tmp_path / "out" / "trial-00000" / "error.txt").read_text()
    assert found.comparison is not None
    assert found.comparison.rows[1].runs.keys() == {0}
    monkeypatch.undo()
    assert run_comparison(made, tmp_path / "out", local=True, resume=True).left == 0
    assert not (tmp_path / "out" / "trial-00000" / "error.txt").exists()
    failure.keep(tmp_path / "out" / "trial-00000", OSError("of another command, before there were locks"))
    assert run_comparison(made, tmp_path / "out", local=True, resume=True).failed == 0
    assert [(one.status, one.problem) for one in runs_in(tmp_path / "out")] == [("complete", None)] * 2


def test_what_does_not_fit_is_all_told_before_anything_runs(base: Path) -> None:
    made = from_methods(base, ["fedca", "fedsimclr", "fedlinked", "flesd"])
    said = (refusal(made) or "").splitlines()
    assert [line.split(": ")[0] for line in said] == ["fedca", "fedlinked", "flesd"]
    assert "data.public.source: fedca needs public images" in said[0]
    assert "data.tasks" in said[1]
    assert list(made.points) == ["fedsimclr"]
    assert refusal(from_methods(base, ["fedprox"])) is None
    assert from_methods(base, ["all"]).settings.variants.keys() == METHODS.keys()


def test_missing_labels_and_too_small_shards_do_not_fit(base: Path) -> None:
    made = from_methods(base, ["fedsimclr"], ["clients.count=59"])
    assert "fedsimclr: clients.count: client" in (refusal(made) or "")
    (base.parent / "pictures/train").mkdir(parents=True)
    for number in range(40):
        Image.new("RGB", (8, 8), (number, number, 0)).save(base.parent / f"pictures/train/{number}.png")
    given = ["data.name=imagefolder", f"data.path={base.parent / 'pictures'}", "evaluation.protocols=[]"]
    unlabelled = from_methods(base, ["fedsimclr", "fedavg_supervised"], [*given, "train.batch_size=4"])
    assert list(unlabelled.unfit) == ["fedavg_supervised"]
    assert "have no label" in unlabelled.unfit["fedavg_supervised"]
    angles = from_methods(base, ["fedsimclr", "centralized"], ["evaluation.protocols=[knn,angles]"])
    assert list(angles.unfit) == ["centralized"]
    assert "found angles, which compares the encoders of a round's clients" in angles.unfit["centralized"]


def test_a_file_lists_variants(base: Path) -> None:
    variants = {"plain": {}, "fedprox": None, "near": {"method": {"name": "fedprox", "mu": 0.5}, "train.batch_size": 8}}
    path = variants_file(base, overrides={"train.rounds": 2}, seeds=3, variants=variants)
    made = from_file(path, ["train.optimizer.lr=0.1"])
    assert (made.settings.seeds, from_file(path, seeds=1).settings.seeds) == (3, 1)
    built = {name: made.sweep().config_of(point) for name, point in made.points.items()}
    assert [config.method.name for config in built.values()] == ["fedsimclr", "fedprox", "fedprox"]
    assert [config.train.batch_size for config in built.values()] == [16, 16, 8]
    assert all(c.train.rounds == 2 and c.train.optimizer.lr == 0.1 for c in built.values())
    assert made.points["near"] == {"method.name": "fedprox", "method.mu": 0.5, "train.batch_size": 8}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"variants": {}}, "variants"),
        (
            {"variants": {"fedproks": None}},
            r"variants\.fedproks: found 'fedproks'; must be one of .*did you mean fedprox",
        ),
        ({"variants": {"a": {"seed": 3}}}, r"variants\.a\.seed: found; variants share their seeds"),
        ({"variants": {"a": {"resources.actors": 3}}}, r"variants\.a\.resources\.actors: found a key that changes no"),
        ({"variants": {"a": {}, "b": {}}}, "found a and b with the same keys"),
        ({"variants": {"a": {}}, "seeds": 0}, "seeds: found 0"),
        ({"variants": {"a": {}}, "vraiants": 1}, "vraiants"),
    ],
)
def test_a_files_mistakes_are_named(base: Path, keys: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        from_file(variants_file(base, **keys))


@pytest.mark.long
def test_another_comparison_is_not_gone_on_with(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = from_methods(base, ["fedsimclr"], ["train.rounds=1", "train.optimizer.clip_norm=null"])
    run_comparison(made, out, local=True)
    with pytest.raises(UserError, match="already holds a comparison; add --resume"):
        run_comparison(made, out, local=True)
    for other, keys in (
        (
            from_methods(base, ["fedsimclr"], ["train.rounds=2", "train.optimizer.clip_norm=null"], seeds=2),
            r"overrides\.train\.rounds, seeds",
        ),
        (
            from_methods(base, ["local"], ["train.rounds=1", "train.optimizer.clip_norm=null"]),
            r"variants\.fedsimclr, variants\.local",
        ),
    ):
        with pytest.raises(UserError, match=f"cannot resume with changed {keys};"):
            run_comparison(other, out, local=True, resume=True)
    before = (out / "trial-00000" / "summary.json").read_bytes()
    common = ["train.rounds=1", "train.optimizer.clip_norm=null"]
    more = run_comparison(from_methods(base, ["fedsimclr", "local"], common), out, local=True, resume=True)
    assert more.comparison is not None
    assert [row.name for row in more.comparison.trained] == ["fedsimclr", "local"]
    assert (out / "trial-00000" / "summary.json").read_bytes() == before  # only the added one ran
    probe = {"method.name": "fedsimclr", "evaluation.protocols": ["linear"]}
    variants = {"fedsimclr": None, "local": None, "probed": probe}
    keys = {"overrides": {"train.rounds": 1, "train.optimizer.clip_norm": None}, "variants": variants}
    probed = run_comparison(from_file(variants_file(base, **keys)), out, local=True, resume=True)
    assert probed.comparison is not None  # though they share no measure to show in lines
    assert [row.name for row in probed.comparison.trained] == ["fedsimclr", "local", "probed"]
    with pytest.raises(UserError, match=r"cannot resume with changed variants\.local, variants\.probed"):
        run_comparison(made, out, local=True, resume=True)
    with pytest.raises(UserError, match="cannot resume with changed"):  # their order numbers the runs
        run_comparison(from_methods(base, ["local", "fedsimclr"], common), out, local=True, resume=True)
    base.write_text(base.read_text().replace("lr: 0.05", "lr: 0.06"))
    changed = from_file(variants_file(base, **keys))
    with pytest.raises(UserError, match="cannot resume with changed base"):
        run_comparison(changed, out, local=True, resume=True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--base", "run.yaml", "fedsimclr", "--seeds", "0"], "--seeds: found 0; must be at least 1"),
        ([], "compare: found nothing; name methods"),
        (["--base", "run.yaml"], "compare: found no method beside --base"),
        (["--base", "run.yaml", "fedprocks"], "compare: found 'fedprocks'; must be one of"),
        (["--base", "run.yaml", "local", "local"], "compare: found local twice"),
        (["--base", "run.yaml", "local", "--out", "s3://bucket/x"], "--out: found s3:"),
        (
            ["fedsimclr", "fedca"],
            "compare: fedsimclr is a method, and there is no --base; allowed: folders of runs, of",
        ),
        (["runs/nowhere"], "compare: runs/nowhere does not exist; allowed: folders of runs, of a comparison or of a"),
        (["run.yaml", "some"], "compare: run.yaml is a file; allowed: "),
        (["some"], "some: found no config.yaml; must be a run folder"),
        (["some", "train.rounds=1"], "compare: found key=value beside run folders"),
        (["--base", "run.yaml", "local", "train.rouns=1"], "local: train.rouns"),
        (["--base", "gone.yaml", "local"], "gone.yaml: found no such file"),
        (["gone.yaml"], "gone.yaml: found no such file"),
    ],
)
def test_the_command_line_refuses_in_one_line_and_writes_nothing(
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(base.parent)
    (base.parent / "some").mkdir()
    status, _, err = command(capsys, "compare", *arguments)
    assert status == 2
    assert text in err.splitlines()[0]
    assert {path.name for path in base.parent.iterdir()} == {"run.yaml", "some"}


def test_the_command_runs_what_fits_and_compares_what_has_run(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = partial(caller(base.parent, monkeypatch, capsys), "compare")
    protocols = "evaluation.protocols=[knn, rank]"
    asked = ("--base", "run.yaml", "fedsimclr", "fedca", "local", "train.rounds=1", protocols, "--executor", "local")
    status, _, err = call(*asked)
    assert status == 2
    assert err.splitlines()[-1] == "compare: 1 of 3 do not fit the base; --skip-unfit runs the others"
    _, _, err = call("--base", "run.yaml", "fedca", "--executor", "local")
    assert err.splitlines()[-1] == "compare: 1 of 1 do not fit the base"  # there are no others
    status, _, err = call(*asked, "--skip-unfit", "--select", "select.knn")  # before anything runs
    assert (status, err) == (2, "--select: found knn; these runs will have none: set evaluation.select.share\n")
    assert not (base.parent / "runs").exists()
    status, out, _ = call(*asked, "--skip-unfit", "--select", "uniformity")
    assert status == 0
    chosen = json.loads(Path("runs/run-compare/comparison.json").read_text())["selection"]
    assert chosen["sentence"] in out.splitlines()
    assert (chosen["asked"], chosen["measure"]) == ("uniformity", "features/uniformity")
    assert "untrained encoder" in out
    assert "raw pixels" in out
    assert "Left out, fedca: data.public.source" in out
    made = Path("runs/run-compare")
    assert "Left out, fedca" in (made / "comparison.md").read_text()
    for again in ((str(made),), ("--resume", "--out", str(made), "--executor", "local")):  # and it is not forgotten
        status, out, _ = call(*again)
        assert (status, "Left out, fedca: data.public.source" in out) == (0, True)
        assert (chosen["sentence"] in out.splitlines()) == (len(again) > 1)  # where the tables are written again
        assert json.loads((made / "comparison.json").read_text())["selection"] == chosen
    assert "Left out, fedca" in (made / "comparison.md").read_text()
    assert chosen["sentence"] in (made / "comparison.md").read_text().replace("\\", "")
    short, whole = (call(str(made), *option)[1] for option in ((), ("--full",)))
    assert ("--full" in short, "--full" in whole) == (True, False)
    (again,) = (line.partition("rayfed-ssl compare ")[2] for line in short.splitlines() if "--full" in line)
    assert again.split() == [str(made), "--full"]
    (told,) = (line.partition("rayfed-ssl compare ")[2] for line in out.splitlines() if "--full" in line)
    assert told.split() == [str(made), "--select", "uniformity", "--full"]
    assert call(*told.split())[1].replace(chosen["sentence"] + "\n", "") == whole
    assert ("seconds" in short, "seconds" in whole) == (False, True)
    assert short.splitlines()[0] == whole.splitlines()[0]
    runs = [str(made / f"trial-0000{n}") for n in (1, 0)]
    status, out, _ = call(*runs, "--out", "again", "--select", "rankme")
    assert status == 0
    assert json.loads(Path("again/comparison.json").read_text())["selection"]["sentence"] in out.splitlines()
    assert "chosen by rankme, by no labels: " in out
    status, _, err = call(*runs, "--select", "knn")  # which reads test labels
    assert (status, err) == (2, "--select: found 'knn'; allowed: alignment, uniformity, rankme, select.PROTOCOL\n")
    told = json.loads(Path("again/comparison.json").read_text())
    assert [row["row"] for row in told["rows"]] == ["local", "fedsimclr", "untrained encoder", "raw pixels"]
    assert told["rows"][0]["seeds"]["0"]["folder"] == "../runs/run-compare/trial-00001"


@pytest.mark.long
def test_the_folder_of_a_comparison_says_enough(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = partial(caller(base.parent, monkeypatch, capsys), "compare")
    out = Path("runs/c")
    stopping, say, _ = stop_after(1)
    path = variants_file(
        base,
        overrides={"train.rounds": 1},
        variants={"first": {"method.name": "fedsimclr"}, "other": {"method.name": "fedprox"}},
    )
    assert run_comparison(from_file(path), out, local=True, say=say, stopping=stopping).left == 1

    status, said, _ = call("runs/c")  # shown as far as it has come, by its variants' names
    assert status == 0
    assert "! other: trial-00001 not finished; not counted." in said
    assert not (out / "trial-00001").exists()
    before = stamps(out)
    status, said, _ = call("--resume", "--out", "runs/c", "--executor", "local")
    assert status == 0
    assert "2 trials, 1 of them over already" in said
    assert set(stamps(out)) == {"trial-00000", "trial-00001"}
    assert stamps(out)["trial-00000"] == before["trial-00000"]
    whole = stamps(out)
    assert call("runs/c", "--resume", "--executor", "local")[0] == 0
    assert call("--resume", "--out", "runs/c", "--executor", "local")[0] == 0
    assert stamps(out) == whole
    assert {path.name for path in Path("runs").iterdir()} == {"c"}

    status, _, _ = call("runs/c", "--out", "again")
    assert status == 0
    rows = json.loads(Path("again/comparison.json").read_text())["rows"]
    mine = json.loads((out / "comparison.json").read_text())["rows"]
    assert [row["row"] for row in rows[:2]] == ["first", "other"]
    assert [row["values"] for row in rows] == [row["values"] for row in mine]
    sole = load_run(out / "trial-00000" / "config.yaml", ["method.name=local"])
    loop.run(sole, base.parent / "alone", LocalCohort)
    assert call("alone", "runs/c", "--out", "three")[0] == 0
    rows = json.loads(Path("three/comparison.json").read_text())["rows"]
    assert [row["row"] for row in rows[:3]] == ["local", "fedsimclr", "fedprox"]

    (base.parent / "file").touch()
    for arguments, text in (
        (("alone", "--out", "runs/c"), "--out: runs/c holds a comparison of its own, whose tables would be lost"),
        (("runs/c", "--out", "file"), "--out: cannot write to file (File exists); name another folder"),
        (("--resume", "--out", "runs"), "--out: runs holds no comparison to --resume, of which there would be a "),
        (("--resume",), "compare: found nothing; name methods"),
        (("--resume", "--out", "runs/c", "seed=7"), "runs/c: cannot resume with changed overrides.seed; only "),
    ):
        status, _, err = call(*arguments, "--executor", "local")
        assert (status, err.count("\n")) == (2, 1)
        assert err.removeprefix(f"{base.parent}/").startswith(text)
    assert call("runs/c", "--out", "runs/c")[0] == 0  # its own tables made anew
    for name in ("trial-00001/summary.json", "trials.json"):
        (out / name).write_text((out / name).read_text()[:50])
        for arguments in (("runs/c",), ("--resume", "--out", "runs/c", "--executor", "local")):
            status, said, err = call(*arguments)
            assert (status, said) == (2, "")
            assert err.removeprefix(f"{base.parent}/").startswith(f"runs/c/{name}: cannot be read (")
            assert err.endswith("; the file is damaged\n")


def test_a_full_disk_is_one_line_and_any_other_error_stays_itself(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line took it for one of standard output."""
    out = tmp_path / "out"

    def refused(number: int, kind: type[Exception], file: Path | None = None) -> str:
        def full(*_: Any) -> Any:
            raise OSError(number, os.strerror(number), *([] if file is None else [str(file)]))

        monkeypatch.setattr(module, "_run_here", full)
        with pytest.raises(kind) as caught:
            run_comparison(from_methods(base, ["fedsimclr"]), out, local=True)
        return str(caught.value)

    said = refused(errno.ENOSPC, UserError)
    assert said.startswith("--out: cannot write into ")
    assert said.endswith(" (No space left on device); make room: --resume goes on")
    assert "Input/output error" in refused(errno.EIO, OSError)
    later = "; --resume goes on once it can be written to"
    for number, file, reason in (
        (errno.EROFS, None, "Read-only file system"),
        (errno.EFBIG, None, "File too large"),
        (errno.EACCES, out / ".trials.json.tmp", "Permission denied"),
        (errno.EPERM, out / "trial-00000" / "trial.log", "Operation not permitted"),
    ):
        assert refused(number, UserError, file) == f"--out: cannot write into {out} ({reason}){later}"
    for number in (errno.EACCES, errno.EROFS):
        assert os.strerror(number) in refused(number, OSError, tmp_path / "elsewhere")
    assert "Permission denied" in refused(errno.EACCES, PermissionError)
