"""Where ``--out`` may lead: not among the images of the run, and nowhere that ``--check`` would not say, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from PIL import Image

import rayfed_ssl
from rayfed_ssl.base.lock import Lock
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.storage.claim import LOCK
from tests.command_line import CONFIG, Call
from tests.tiny import run_locally, tiny

RUN = ("run", "own.yaml", "--executor", "local", "-q")
TOLD = "a run writes there would be read as images; name a folder outside of it\n"


@pytest.fixture
def own(call: Call, tmp_path: Path) -> Path:
    """own.yaml, whose images are those of the folder ``d``."""
    for number in range(40):
        path = tmp_path / f"d/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    own = yaml.safe_load(CONFIG)
    own |= {"data": {"name": "imagefolder", "path": "d", "image_size": 8}, "clients": {"count": 2}}
    own["train"]["rounds"] = 1
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    (tmp_path / "link").symlink_to("d")
    return tmp_path / "own.yaml"


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("check", [[], ["--check"]], ids=["run", "check"])
@pytest.mark.parametrize("out", ["d", "d/deep/out", "link/out", "d/../link/out", "file://{here}/d/out"])
def test_a_run_is_not_written_among_its_images(
    out: str, check: list[str], call: Call, own: Path, tmp_path: Path
) -> None:
    before, out = below(tmp_path), out.format(here=tmp_path)
    status, _, said = call(*RUN, "--out", out, *check)
    assert (status, said) == (2, f"--out: found {out}, which lies within data.path=d: what {TOLD}")
    assert below(tmp_path) == before


def test_nor_where_it_would_be_by_default_nor_on_ray(call: Call, own: Path, tmp_path: Path) -> None:
    before = below(tmp_path)
    status, _, said = call("run", "own.yaml", "data.path=.")
    assert (status, said) == (2, f"--out: found runs/own, which lies within data.path=.: what {TOLD}")
    with pytest.raises(UserError, match=r"^out: found d/x, which lies within data\.path=d: "):
        rayfed_ssl.run(own, out="d/x", executor="local", progress=False)
    assert below(tmp_path) == before


@pytest.mark.parametrize("key", ["evaluation.transfer.data", "data.public.images"])
def test_nor_among_other_images_that_it_reads(key: str, call: Call, own: Path, tmp_path: Path) -> None:
    block = "{name: imagefolder, path: d, image_size: 8}"
    public = ["method.name=flesd", "data.public.source=source"]
    changes = ["evaluation.protocols=[transfer]"] if "transfer" in key else public
    status, _, said = call("run", "tiny.yaml", *changes, f"{key}={block}", "--executor", "local", "--out", "d/x")
    assert (status, said) == (2, f"--out: found d/x, which lies within {key}.path=d: what {TOLD}")


def test_images_within_the_run_folder_or_of_fixed_names_are_no_matter(call: Call, own: Path, tmp_path: Path) -> None:
    (tmp_path / "prepared").mkdir()
    (tmp_path / "d").rename(tmp_path / "prepared/images")
    assert call(*RUN, "data.path=prepared/images", "--out", "prepared") == (0, "", "")
    status, _, said = call("run", "tiny.yaml", "data={name: cifar10, path: .}", "--out", "x", "--executor", "local")
    assert status == 2
    assert said.startswith("data.path: ")  # these files are not there


@pytest.mark.long
def test_a_run_that_lies_among_its_images_goes_on(
    call: Call, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("rayfed_ssl.simulation.resuming.refuse_among_images", lambda config, folder: None)
        assert call(*RUN, "--out", "d/x") == (0, "", "")
    assert call(*RUN, "--out", "d/x", "--resume", "--check")[0] == 0
    assert call(*RUN, "--out", "d/x", "--resume", "train.rounds=2") == (0, "", "")
    assert call("run", "own.yaml", "--executor", "local", "-q", "--out", "d/y")[0] == 2


def test_neither_is_a_sweep_nor_a_comparison(call: Call, own: Path, tmp_path: Path) -> None:
    lr = "train.optimizer.lr"
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"base": "own.yaml", "points": [{lr: 0.01}, {lr: 0.02}]}))
    before = below(tmp_path)
    for command in (
        ("tune", "sweep.yaml"),
        ("compare", "fedsimclr", "fedbyol", "--base", "own.yaml"),
        ("compare", "fedsimclr", "fedbyol", "--base", "own.yaml", "--executor", "local"),
    ):
        status, _, said = call(*command, "--out", "d/out")
        assert status == 2
        assert said.startswith("--out: found ")
        assert said.endswith(f"d/out, which lies within data.path=d: what {TOLD}")
        assert below(tmp_path) == before
    assert call(*RUN, "--out", "runs/a") == (0, "", "")
    status, _, said = call("compare", "runs/a", "--out", "d/table")
    assert (status, said) == (2, f"--out: found d/table, which lies within data.path=d: what {TOLD}")
    assert not (tmp_path / "d/table").exists()


@pytest.mark.long
def test_a_check_says_of_the_place_what_the_run_would_say(call: Call, tmp_path: Path) -> None:
    tiny_run = ("run", "tiny.yaml", "--executor", "local")
    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "taken")
    (tmp_path / "theirs/checkpoints").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote/config.yaml").write_text("{}")
    before = below(tmp_path)
    for arguments, line in (
        (["--out", "/proc/xyz"], "--out: cannot write to /proc/xyz ("),
        (["--out", "file/x"], "--out: cannot write to file/x ("),
        (["--out", "taken"], "--out: taken already holds a run; add --resume"),
        (["--out", "taken", "--resume"], "taken: cannot resume with changed "),
        (["--out", "theirs"], "--out: theirs holds checkpoints and no config.yaml"),
        (["--out", f"file://{tmp_path}/remote"], f"--out: file://{tmp_path}/remote already holds a run; add --resume"),
        (["--out", "nothing://x/y"], "--out: found nothing://x/y; allowed: a folder, or a URI"),
    ):
        status, _, said = call(*tiny_run, *arguments)
        assert (status, said[: len(line)]) == (2, line)
        assert call(*tiny_run, *arguments, "--check") == (2, "", said)
        assert below(tmp_path) == before
    assert call(*tiny_run, "--out", "made/for/it", "--check")[0] == 0
    assert call(*tiny_run, "--out", f"file://{tmp_path}/made", "--check")[0] == 0
    assert below(tmp_path) == before


def test_a_check_names_a_run_that_is_being_written(call: Call, tmp_path: Path) -> None:
    lock = Lock(tmp_path / "mine" / LOCK)
    try:
        status, _, said = call("run", "tiny.yaml", "--executor", "local", "--out", "mine", "--check")
    finally:
        lock.release()
    assert status == 2
    assert said.startswith("--out: mine is being written by another run (")
    assert said.endswith(f", pid {os.getpid()}); wait for it, stop it, or name another folder\n")


def test_a_run_folder_in_place_of_a_file_is_told_of_its_configuration(call: Call, tmp_path: Path) -> None:
    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "runs/hosp")
    line = "found a folder; must be a readable YAML file"
    for command in ("run", "tune"):
        status, _, said = call(command, "runs/hosp", "--resume")
        assert (status, said) == (2, f"runs/hosp: {line}; did you mean runs/hosp/config.yaml?\n")
    assert call("run", "runs")[::2] == (2, f"runs: {line}\n")


@pytest.mark.long
def test_files_of_others_in_a_run_folder_are_counted(call: Call, tmp_path: Path) -> None:
    (tmp_path / "prepared/more").mkdir(parents=True)
    (tmp_path / "prepared/trace.json").write_text("{}")
    (tmp_path / "prepared/.hidden").write_text("")
    line = "--out: prepared holds 2 files or folders that are of no run; the run's are written beside them"
    arguments = ("run", "tiny.yaml", "--executor", "local", "--out", "prepared")
    status, out, _ = call(*arguments, "--check")
    assert (status, f"note          {line}" in out.splitlines()) == (0, True)
    status, out, _ = call(*arguments)
    assert (status, out.splitlines()[0]) == (0, line)
    status, out, _ = call(*arguments, "--resume", "train.rounds=3")
    assert (status, line in out) == (0, False)
    (tmp_path / "one").mkdir()
    (tmp_path / "one/notes.txt").write_text("")
    assert call(*arguments[:-1], "one")[1].startswith(
        "--out: one holds 1 file or folder that is of no run; the run's are written beside it\n"
    )
    (tmp_path / "none").mkdir()
    assert " of no run" not in call(*arguments[:-1], "none")[1]
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed/error.txt").write_text("why a run before did not begin")
    assert " of no run" not in call(*arguments[:-1], "failed")[1]
