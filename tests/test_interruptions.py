"""Runs that end early, and runs that go on from damaged checkpoints."""

from __future__ import annotations

import builtins
import hashlib
import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from rayfed_ssl.api.call_arguments import run_folder
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import load_of_run
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation.memory import Room
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.simulation.resuming import WRITTEN
from rayfed_ssl.storage import checkpoint
from tests.tiny import booked, encoders, measured, run_locally, tiny


def stopped_at(config: Any, folder: Path, round: int) -> dict[str, Any]:
    seen: list[int] = [0]
    return run_locally(config, folder, report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= round)


@pytest.mark.parametrize("after", [0, 2])
def test_stopped_between_checkpoints(after: int, tmp_path: Path) -> None:
    """A stop saves; what was evaluated before the stop is not evaluated, nor recorded, a second time."""
    config = tiny("fedsimclr", checkpoint__every=0)
    run_locally(config, tmp_path / "whole")
    assert stopped_at(config, tmp_path / "run", after)["rounds"] == after
    run_locally(config, tmp_path / "run", resume=True)
    assert encoders(tmp_path / "run") == encoders(tmp_path / "whole")
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")
    assert booked(tmp_path / "run") == booked(tmp_path / "whole")


def damage(checkpoint_folder: Path) -> None:
    victim = checkpoint_folder / "server.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1] + b"!")


def test_damaged_checkpoints_are_set_aside_and_neither_count_nor_hide_what_is_saved_later(tmp_path: Path) -> None:
    """Rounds 4 and 3 damaged, keep=1: from round 2 on, every new checkpoint is kept, is the newest, and resumes."""
    config = tiny("fedbyol", train__rounds=5, checkpoint__keep=1)
    run_locally(config, tmp_path / "whole")
    folder, root = tmp_path / "run", tmp_path / "run" / "checkpoints"
    stopped_at(tiny("fedbyol", train__rounds=5, checkpoint__keep=9), folder, 4)
    for t in (3, 4):
        damage(root / f"round-{t:05d}")
    lines: list[str] = []

    def report(progress: Progress) -> None:
        lines.append(progress.line)

    seen = run_locally(config, folder, resume=True, report=report, stopping=lambda: "round 3/5" in lines)
    assert seen["rounds"] == 3
    assert [line for line in lines if "passed over" in line and "server.safetensors" in line]
    assert [line.split(":")[0] for line in lines if "set aside" in line] == [
        "checkpoints/round-00003.damaged", "checkpoints/round-00004.damaged",
    ]  # fmt: skip
    assert sorted(path.name for path in root.iterdir()) == ["round-00003", "round-00004.damaged"]
    lines.clear()
    run_locally(config, folder, resume=True, report=report)
    assert "resumed from round 3 (round-00003)" in lines
    assert not [line for line in lines if "passed over" in line]
    assert [path.name for path in root.iterdir()] == ["round-00005"]
    assert encoders(folder) == encoders(tmp_path / "whole")
    assert measured(folder) == measured(tmp_path / "whole")
    assert booked(folder) == booked(tmp_path / "whole")


def test_with_no_intact_checkpoint_the_run_starts_again(tmp_path: Path) -> None:
    config, folder = tiny("fedsimclr", train__rounds=2), tmp_path / "run"
    run_locally(config, folder)
    before = encoders(folder), measured(folder)
    for t in (1, 2):
        damage(folder / "checkpoints" / f"round-{t:05d}")
    run_locally(config, folder, resume=True)
    assert (encoders(folder), measured(folder)) == before
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["round-00001", "round-00002"]


def files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """When each file was written, and what it holds."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_a_run_has_begun_once_nothing_can_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, said = tiny("fedbyol", train__rounds=1), list[str]()

    def told(folder: Path) -> dict[str, Any]:
        return {
            "report": lambda progress: said.append(progress.line),
            "begun": lambda: said.append(f"begun: {sorted(path.name for path in folder.glob('*.yaml'))}"),
        }

    with monkeypatch.context() as patch:
        patch.setattr("rayfed_ssl.simulation.local.free_memory", lambda: Room("memory", 1e4))
        with pytest.raises(UserError, match="memory"):
            run_locally(config, tmp_path / "refused", **told(tmp_path / "refused"))
    (line,) = said
    assert line.startswith("fedbyol on ")  # its images had been read
    run_locally(config, tmp_path / "run", **told(tmp_path / "run"))
    assert said.index("begun: ['config.yaml']") < said.index("evaluated the untrained encoder")


def test_a_complete_run_resumed_stays_as_it_is_and_says_so(tmp_path: Path) -> None:
    config, run, lines = tiny("fedsimclr"), tmp_path / "run", list[str]()
    summary = run_locally(config, run)
    before = files(run)
    assert run_locally(config, run, resume=True, report=lambda p: lines.append(p.line)) == summary
    assert lines == [f"{run} holds the whole run: nothing is left to do, and it stays as it is"]
    assert files(run) == before
    with pytest.raises(UserError, match="already holds a run"):
        run_locally(config, run)


def test_a_complete_run_resumed_gets_what_it_lacks(tmp_path: Path) -> None:
    """The evaluation of its last round, its encoder, or figures that it was not asked for before."""
    config, run = tiny("fedsimclr"), tmp_path / "run"
    run_locally(config, run)
    before = encoders(run), measured(run), booked(run)
    (late,) = (run / "metrics.parquet").glob("part-00003_*.parquet")
    late.unlink()
    assert measured(run) != before[1]
    run_locally(config, run, resume=True)
    assert (encoders(run), measured(run), booked(run)) == before
    shutil.rmtree(run / "encoder")
    run_locally(config, run, resume=True)
    assert (encoders(run), measured(run), booked(run)) == before
    for _ in range(2):  # asked for, and lost
        run_locally(tiny("fedsimclr", figures=True), run, resume=True)
        (run / "figures/accuracy.png").unlink()
    run_locally(tiny("fedsimclr", figures=True), run, resume=True)
    assert (run / "figures/accuracy.png").exists()
    run_locally(tiny("fedsimclr", figures=True, name="renamed"), run, resume=True)
    assert load_of_run(run / "config.yaml").name == "renamed"


def test_resume_refuses_a_changed_result_and_allows_changed_resources(tmp_path: Path) -> None:
    stopped_at(tiny("fedsimclr"), tmp_path / "run", 1)
    with pytest.raises(UserError, match=r"train\.optimizer\.lr"):
        run_locally(tiny("fedsimclr", train__optimizer__lr=0.1), tmp_path / "run", resume=True)
    summary = run_locally(tiny("fedsimclr", resources__actors=3, checkpoint__keep=5), tmp_path / "run", resume=True)
    assert summary["status"] == "complete"


def test_encoders_do_not_need_the_network_that_trained_them(tmp_path: Path) -> None:
    """The README's three lines."""
    import json

    import safetensors.torch
    import torch

    from rayfed_ssl.models import rebuild

    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run")
    with builtins.open(tmp_path / "run/encoder/global.json") as file:
        encoder = rebuild(json.load(file))
    missing, unexpected = encoder.load_state_dict(
        safetensors.torch.load_file(tmp_path / "run/encoder/global.safetensors"), strict=False
    )
    assert unexpected == []
    assert all(name.endswith("num_batches_tracked") for name in missing)
    assert encoder(torch.rand(2, 3, 16, 16)).shape == (2, encoder.dim)


# -- folders that are not what they should be --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics.parquet", "events.out.tfevents.1.host", "checkpoints/round-00001/x"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_holds_something_else_is_not_written_over(name: str, resume: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("another program's")
    with pytest.raises(UserError, match=rf"--out: .*run holds {name.partition('/')[0]} and no config.yaml"):
        run_locally(tiny("fedsimclr"), folder, resume=resume)
    assert [path.name for path in folder.iterdir()] == [name.partition("/")[0]]
    assert (folder / name).read_text() == "another program's"


@pytest.mark.parametrize("text", ["theme: dark\n", "method: {name: fedsimclr}\n", "\x00", "[1", ""])
def test_a_foreign_config_is_not_written_over(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"--out: .* holds a config.yaml that no run has written"):
        run_locally(tiny("fedsimclr"), tmp_path, resume=True)
    assert (tmp_path / "config.yaml").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_run_killed_before_its_first_record_can_be_resumed(tmp_path: Path) -> None:
    configfile.dump(tiny("fedsimclr", train__rounds=1), tmp_path / "config.yaml")
    assert run_locally(tiny("fedsimclr", train__rounds=1), tmp_path, resume=True)["status"] == "complete"


def test_a_runs_own_config_means_that_run_from_its_first_record_on(tmp_path: Path) -> None:
    """Killed before its first checkpoint, it is not resumed into the folder of its name."""
    with pytest.raises(KeyboardInterrupt):
        run_locally(tiny("fedsimclr", checkpoint__every=0), tmp_path / "mine", report=_interrupting)
    mine = tmp_path / "mine" / "config.yaml"
    assert not (tmp_path / "mine" / "checkpoints").exists()
    assert run_folder(mine, "tiny", resume=True) == tmp_path / "mine"
    assert run_folder(mine, "tiny", resume=False) == Path("runs/tiny")
    (tmp_path / "alone").mkdir()
    shutil.copy(mine, tmp_path / "alone")
    assert run_folder(tmp_path / "alone/config.yaml", "tiny", resume=True) == Path("runs/tiny")


def _interrupting(progress: Progress) -> None:
    if progress.round == 1:
        raise KeyboardInterrupt


def test_a_run_killed_before_its_first_checkpoint_can_be_resumed_by_a_later_version(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def report(progress: Progress) -> None:
        if progress.round == 1:
            raise Killed

    config, folder = tiny("fedsimclr", train__rounds=2, checkpoint__every=0), tmp_path / "run"
    with pytest.raises(Killed):
        run_locally(config, folder, report=report)
    assert not (folder / "metrics.parquet").exists()
    began = configfile.read(folder / "config.yaml")
    del began["server"]["optimizer"]  # a key that this version has, and that one had not
    (folder / "config.yaml").write_text(yaml.safe_dump(began))
    assert run_locally(config, folder, resume=True)["status"] == "complete"


def test_figures_of_other_programs_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/accuracy.png").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"holds figures and no config.yaml"):
        run_locally(tiny("fedsimclr"), tmp_path)
    assert (tmp_path / "figures/accuracy.png").read_bytes() == b"mine"


def test_resume_wants_a_run_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"holds thesis.tex and no config.yaml, so there is no run to --resume"):
        run_locally(tiny("fedsimclr"), tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    config = tiny("fedsimclr", train__rounds=1)
    assert run_locally(config, tmp_path / "new", resume=True)["status"] == "complete"


def test_everything_a_run_writes_is_looked_for_first(tmp_path: Path) -> None:
    run_locally(tiny("fedfoa", train__rounds=2), tmp_path / "run")
    left = {path.name for path in (tmp_path / "run").iterdir()} - {"config.yaml"}
    assert {name for name in left if not any(fnmatch(name, pattern) for pattern in WRITTEN)} == set()


def test_other_images_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for split, count in (("train", 40), ("test", 10)):
        for k in range(count):
            folder = data / split / "ab"[k % 2]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng([k, len(split)]).integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{k:02d}.png")
    own = {"data__name": "imagefolder", "data__path": str(data), "data__limit": None, "data__test_limit": None}
    config = tiny("fedsimclr", clients__count=2, train__batch_size=4, **own)
    stopped_at(config, tmp_path / "run", 1)
    recorded = json.loads((tmp_path / "run/environment.json").read_text())["images"]
    (data / "train/a/00.png").write_bytes((data / "train/b/01.png").read_bytes())
    with pytest.raises(UserError, match=rf"data\.path: found images with digest \w+, but the run .* with {recorded}"):
        run_locally(config, tmp_path / "run", resume=True)
    fresh = run_locally(config, tmp_path / "other")
    assert fresh["status"] == "complete"
    (data / "train/a/00.png").unlink()
    with pytest.raises(UserError, match=r"data\.path: found images with digest"):
        reevaluate(tmp_path / "other", ())


def test_other_public_images_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "public" / "train"
    place.mkdir(parents=True)
    for k in range(40):
        pixels = np.random.default_rng(k).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{k:02d}.png")
    images = {"name": "imagefolder", "path": str(place.parent), "layout": "flat"}
    public = {"source": "source", "images": images, "share": 0.1}
    config = tiny("feddf", data__public=public)
    stopped_at(config, tmp_path / "run", 1)
    first = (place / "00.png").read_bytes()
    (place / "00.png").write_bytes((place / "01.png").read_bytes())
    with pytest.raises(UserError, match=r"data\.public\.images: found images with digest \w+, but the run in .* began"):
        run_locally(config, tmp_path / "run", resume=True)
    (place / "00.png").write_bytes(first)
    assert run_locally(config, tmp_path / "run", resume=True)["status"] == "complete"


# -- damaged checkpoints -----------------------------------------------------------------------------------------------


def replaced(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change a JSON file of a checkpoint, and its marker with it."""
    path, marker = folder / name, folder / "complete.json"
    text = change(json.loads(path.read_text()))
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    listed = json.loads(marker.read_text())
    listed["files"][name] = {"bytes": path.stat().st_size, "blake2b": hashlib.blake2b(path.read_bytes()).hexdigest()}
    marker.write_text(json.dumps(listed))


def without(key: str) -> Callable[[Any], Any]:
    """A tree's skeleton less one key of whatever map has it."""

    def change(tree: Any) -> Any:
        if isinstance(tree, dict) and "$map" in tree:
            return {"$map": [[k, change(v)] for k, v in tree["$map"] if k != key]}
        return tree

    return change


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("server.json", lambda tree: {}, "server.json: not what a checkpoint holds (found an object with no keys"),
        ("server.json", lambda tree: [], "server.json: holds no server, plugins, ledger, published"),
        ("server.json", lambda tree: "null", "server.json: holds no server"),
        ("server.json", lambda tree: "{", "server.json: not what a checkpoint holds"),
        ("server.json", lambda tree: "[" * 5000 + "]" * 5000, "server.json: not what a checkpoint holds"),
        ("server.json", without("server"), "server.json: holds no server"),
        ("server.json", without("weights"), "server.json: the state of server lacks 'weights'"),
        ("server.json", without("ledger"), "server.json: holds no server"),
        ("server.json", without("up_bytes"), "the state of ledger cannot be read (KeyError: 'up_bytes')"),
        ("server.json", without("success"), "the state of setbacks cannot be read (KeyError: 'success')"),
        ("server.json", without("outcomes"), "the state of outcomes cannot be read (KeyError: 'outcomes')"),
        ("server.json", lambda tree: json.dumps(tree).replace('"000000"', '"000099"'), "array '000099' is missing"),
        ("server.json", lambda tree: json.dumps(tree).replace('"000000"', "null"), "array None is missing"),
        ("clients-00000.json", lambda tree: {}, "clients-00000.json: not what a checkpoint holds"),
        ("clients-00000.json", lambda tree: [1], "clients-00000.json: holds no clients' states"),
        ("clients-00000.json", lambda tree: {"$map": [["0", 1, 2]]}, "clients-00000.json: not what a checkpoint holds"),
    ],
)
def test_a_checkpoint_that_does_not_hold_what_it_should_is_refused_by_name(
    stopped: Path, name: str, change: Callable[[Any], Any], said: str, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    replaced(tmp_path / "run/checkpoints/round-00001", name, change)
    with pytest.raises(UserError) as caught:
        run_locally(tiny("fedbyol"), tmp_path / "run", resume=True)
    assert said in str(caught.value)
    assert "round-00001" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert json.loads((tmp_path / "run/summary.json").read_text())["rounds"] == 1  # as it was


def test_a_checkpoint_holds_these_parts(stopped: Path) -> None:
    parts = ["server", "plugins", "published", "ledger", "clock", "schedule", "setbacks", "outcomes"]
    saved = json.loads((stopped / "checkpoints/round-00001/server.json").read_text())
    assert sorted(name for name, _ in saved["$map"]) == sorted(parts)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    stopped_at(tiny("fedbyol"), folder, 1)
    return folder


@pytest.mark.parametrize(
    "marker",
    [
        '{"round": 1, "files": {}}',
        '{"round": 1}',
        "[]",
        "null",
        "",
        "[" * 5000,
        '{"files": {"server.json": 3}}',
        "\udcff",
    ],
)
def test_a_marker_that_does_not_list_the_files_passes_its_checkpoint_over(
    stopped: Path, marker: str, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    path = tmp_path / "run/checkpoints/round-00001/complete.json"
    path.write_bytes(marker.encode("utf-8", "surrogateescape"))
    found, passed_over = checkpoint.newest(tmp_path / "run/checkpoints")
    assert found is None
    assert len(passed_over) == 1
    assert "complete.json" in passed_over[0]


@pytest.mark.parametrize("kind", ["empty", "other columns", "a folder", "other types", "not parts"])
def test_each_kind_of_damaged_metrics_is_one_line(stopped: Path, kind: str, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    part = tmp_path / "run/metrics.parquet/part-00001.parquet"
    part.unlink()
    match kind:
        case "empty":
            part.write_bytes(b"")
        case "other columns":
            pq.write_table(pa.table({"x": [1]}), part)
        case "a folder":
            part.mkdir()
        case "other types":
            columns = {"round": ["one"], "client": [0], "tag": ["a"], "value": [1.0], "wall_s": [0.0]}
            pq.write_table(pa.table(columns), part)
        case "not parts":
            shutil.rmtree(part.parent)
            part.parent.write_text("")
    with pytest.raises(UserError, match=r"metrics\.parquet\S*: (cannot be read|found a file)") as caught:
        run_locally(tiny("fedbyol"), tmp_path / "run", resume=True)
    assert "\n" not in str(caught.value)


def test_a_run_without_a_checkpoint_may_begin_again_with_other_keys(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_locally(tiny("fedsimclr", train__optimizer__lr=1e30, checkpoint__every=0), folder)
    assert (folder / "config.yaml").exists()
    run_locally(tiny("fedsimclr"), folder, resume=True)
    run_locally(tiny("fedsimclr"), tmp_path / "plain")
    assert encoders(folder) == encoders(tmp_path / "plain")
    assert measured(folder) == measured(tmp_path / "plain")
    with pytest.raises(UserError, match=r"cannot resume with changed train\.optimizer\.lr"):
        run_locally(tiny("fedsimclr", train__optimizer__lr=0.01), folder, resume=True)


def test_damaged_records_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_locally(tiny("fedsimclr"), folder)
    part = folder / "metrics.parquet" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(UserError, match=r"part-00001\.parquet: cannot be read .*damaged"):
        run_locally(tiny("fedsimclr"), folder, resume=True)
