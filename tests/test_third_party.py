"""A third-party package, installed beside ours: its rows are found, and the contract suite runs over them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rayfed_ssl.testing.tiny import tiny_run
from tests.places import ROOT

PACKAGE = ROOT / "tests" / "third_party"
COMMANDS = """
import sys
from rayfed_ssl.cli import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        print("status", end.code)
"""


FAILING = """
import pytest
from rayfed_ssl.testing import contract
from rayfed_ssl.testing.tiny import measured, run_locally

class TestMine(contract("fedsimclr")):
    @pytest.fixture(scope="class")
    @classmethod
    def undisturbed(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("short")
        run_locally(cls.config(train__rounds=cls.config().train.rounds - 1), folder)
        return folder

def test_tiny(tmp_path):
    from rayfed_ssl.testing import tiny
    (tmp_path / "encoder").mkdir()
    tiny.encoders(tmp_path)
"""
"""A contract that is broken: a run of one round too few. And a folder without an encoder."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the small package was installed into, without a network."""
    work = tmp_path_factory.mktemp("third_party")
    shutil.copytree(PACKAGE, work / "package", ignore=shutil.ignore_patterns("__pycache__", "test_*"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps"]
    options = ["--no-build-isolation", "--target", str(work / "site"), str(work / "package")]
    subprocess.run([*pip, *options], check=True, timeout=120)
    return work / "site"


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # only pytest itself is needed
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.long
@pytest.mark.parametrize(("which", "count"), [("not on_ray", 4), pytest.param("on_ray", 2, marks=pytest.mark.cluster)])
def test_the_contract_suite_runs_over_an_installed_method(which: str, count: int, site: Path) -> None:
    done = run(site, "-m", "pytest", "-rA", "-k", which, "-p", "no:cacheprovider", str(PACKAGE / "test_halfway.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nPASSED ") == count, done.stdout


@pytest.mark.long
def test_a_broken_contract_says_which_values_differ(tmp_path: Path) -> None:
    """pytest rewrites the asserts of test files alone, unless it is told of others."""
    (tmp_path / "test_mine.py").write_text(FAILING)
    chosen = ["-k", "finite or tiny", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = run(tmp_path, "-m", "pytest", *chosen, str(tmp_path))
    rounds = tiny_run("fedsimclr", {}, None).train.rounds
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"assert {set(range(rounds))} == {set(range(rounds + 1))}" in done.stdout
    assert "holds no encoder\nE       assert {}\n" in done.stdout


@pytest.mark.long
def test_an_installed_package_stands_in_every_list(site: Path) -> None:
    done = run(
        site, "-c", COMMANDS,
        "methods --json", "config method.halfway objective data.partition.striped",
        "run configs/demo.yaml objective.name=cosin",
    )  # fmt: skip
    methods, keys, refused = done.stdout.split("status 0\n")
    assert '"halfway"' in methods
    assert "method.step: 0.5\n    number\n    How far the server goes towards the mean.\n" in keys
    assert "objective.name=cosine\n" in keys
    assert "data.partition.skipped: 0\n    whole number\n    So many images at the front are nobody's.\n" in keys
    assert refused == "status 2\n"
    assert "cosine" in done.stderr


@pytest.mark.long
def test_an_installed_name_that_is_taken_is_one_line(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "site"
    shutil.copytree(site, other)
    (points,) = other.glob("*.dist-info/entry_points.txt")
    points.write_text(points.read_text().replace("halfway =", "fedsc ="))
    done = run(other, "-m", "rayfed_ssl", "methods")
    assert done.returncode == 2
    assert "found method 'fedsc', which rayfed-ssl itself defines" in done.stderr
    assert done.stderr.count("\n") == 1
