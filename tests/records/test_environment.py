"""environment.json names versions, host and revision, and gives away neither secrets nor the user's home."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rayfed_ssl.base.notes import Note
from rayfed_ssl.records.environment import (
    Recorded,
    RunFacts,
    command_line,
    environment,
    git_revision,
    recorded,
    write_environment,
)
from tests.places import ROOT


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_file_says_what_the_run_ran_on(tmp_path: Path) -> None:
    write_environment(tmp_path, RunFacts(device="cpu", threads=3, images="a1"), resumed=False)
    written = json.loads((tmp_path / "environment.json").read_text())
    assert written == environment(RunFacts(device="cpu", threads=3, images="a1"))
    assert written["images"] == "a1"
    assert written["python"] == platform.python_version()
    assert written["versions"]["torch"] == torch.__version__
    assert written["versions"]["numpy"] == np.__version__
    assert written["host"]["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert (written["device"], written["threads"]) == ("cpu", 3)


def test_what_a_run_began_with_is_read_back(tmp_path: Path) -> None:
    files = {"system.devices": "c3"}
    notes = [Note("class Ada", "a class"), Note("x"), Note("class Bob", "a class")]
    facts = RunFacts(device="cpu", threads=1, images="a1", public_images="b2", files=files, notes=notes)
    write_environment(tmp_path, facts, resumed=False)
    assert recorded(tmp_path) == Recorded("a1", "b2", files, ("class Ada", "x", "class Bob"), ("a class",))
    write_environment(tmp_path, RunFacts(device="cpu", threads=1, images="a1", notes=notes[1:2]), resumed=False)
    assert "card_notes" not in json.loads((tmp_path / "environment.json").read_text())


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "5", "[" * 100_000, "{}", '{"images": null, "public_images": 3, "files": ["a"]}',
     '{"files": {"system.devices": 7}}', '{"notes": 5, "card_notes": {"a": "b"}}'],
)  # fmt: skip
def test_of_a_damaged_or_an_older_file_nothing_is_known(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "environment.json").write_text(text)
    assert recorded(tmp_path) == Recorded()


def test_the_first_machines_file_is_kept_and_another_adds_its_own(tmp_path: Path) -> None:
    def write(device: str, resumed: bool) -> list[str]:
        write_environment(tmp_path, RunFacts(device=device, threads=1, images="a1"), resumed=resumed)
        return sorted(path.name for path in tmp_path.iterdir())

    assert write("cpu", False) == ["environment.json"]
    first = (tmp_path / "environment.json").read_bytes()
    assert write("cpu", True) == ["environment.json"]  # the same machine
    assert write("H200", True) == ["environment-2.json", "environment.json"]
    assert write("H200", True) == ["environment-2.json", "environment.json"]
    assert write("cpu", True) == ["environment-2.json", "environment-3.json", "environment.json"]
    for number in range(4, 12):  # in order of number, not of text
        write(str(number), True)
    assert json.loads((tmp_path / "environment-11.json").read_text())["device"] == "11"
    assert (tmp_path / "environment.json").read_bytes() == first
    assert write("L4", False) == ["environment.json"]  # a run that starts afresh


@pytest.mark.long
def test_ray_is_looked_up_and_not_imported() -> None:
    code = (
        "import sys; from rayfed_ssl.records.environment import RunFacts, environment; "
        "environment(RunFacts(device='cpu', threads=1, images='')); assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_revision_is_the_projects_own(tmp_path: Path) -> None:
    package = tmp_path / "project" / "rayfed_ssl"
    package.mkdir(parents=True)
    (package / "file.py").write_text("x = 1\n")
    assert git_revision(package) == (None, None)  # no checkout
    git(tmp_path / "project", "init", "-q")
    assert git_revision(package) == (None, None)  # nothing committed yet
    git(tmp_path / "project", "add", ".")
    git(tmp_path / "project", "commit", "-q", "-m", "first")
    revision = git(tmp_path / "project", "rev-parse", "HEAD")
    assert git_revision(package) == (revision, False)
    results = package.parent / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "rows.jsonl").write_text("{}")
    assert git_revision(package) == (revision, False)  # what a benchmark measured is no change of the code
    (package / "file.py").write_text("x = 2\n")
    assert git_revision(package) == (revision, True)
    installed = tmp_path / "project" / ".venv" / "rayfed_ssl"  # lies in the checkout, is not the checkout
    installed.mkdir(parents=True)
    assert git_revision(installed) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["/opt/env/bin/rayfed-ssl", "run", "configs/demo.yaml", "seed=3"], "rayfed-ssl run configs/demo.yaml seed=3"),
        (["rayfed-ssl", "run", "data.token=abc"], "rayfed-ssl run 'data.token=***'"),
        (["rayfed-ssl", "--api-key=abc"], "rayfed-ssl '--api-key=***'"),
        (["train.py", "--api-key", "abc", "--password", "hunter2", "x"], "train.py --api-key '***' --password '***' x"),
        (["train.py", "--use-token", "--seed", "3"], "train.py --use-token --seed 3"),
        (["rayfed-ssl", "data.path=s3://me:pass@bucket/x"], "rayfed-ssl 'data.path=s3://***@bucket/x'"),
        (["rayfed-ssl", "data.path=https://host/x?sig=abc"], "rayfed-ssl 'data.path=https://host/x?***'"),
        (["rayfed-ssl", "--out", "/home/bob/runs/a"], "rayfed-ssl --out '~/runs/a'"),
    ],
)
def test_the_command_line_is_discreet(monkeypatch: pytest.MonkeyPatch, arguments: list[str], shown: str) -> None:
    monkeypatch.setenv("HOME", "/home/bob")
    assert command_line(arguments) == shown
