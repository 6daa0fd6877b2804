"""``rayfed-ssl new method``: what it writes runs at once, and its test passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.command_line import Call
from tests.conftest import ROOT
from tests.tiny import encoders


def test_a_new_method_runs_and_its_test_passes(call: Call, tmp_path: Path) -> None:
    status, out, _ = call("new", "method", "half_way", "--out", "mine")
    assert status == 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["half_way.py", "test_half_way.py"]
    assert len((tmp_path / "mine/half_way.py").read_text().splitlines()) < 50
    (line,) = [line for line in out.splitlines() if line.startswith("run it")]
    (imports,) = [word.strip("'") for word in line.split() if "imports=" in word]
    local = ("run", "tiny.yaml", "--executor", "local", "-q", "train.rounds=1", "evaluation.protocols=[]")
    for step in ("0.25", "0.5"):
        ran = (imports, "method.name=half_way", f"method.step={step}", "--out", f"runs/{step}")
        assert call(*local, *ran) == (0, "", "")
    assert encoders(tmp_path / "runs/0.25") != encoders(tmp_path / "runs/0.5")  # its own key reaches it
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(  # on Ray it is the suite's own business
        [sys.executable, "-m", "pytest", "-q", "-W", "error::pytest.PytestWarning", "-p", "no:cacheprovider",
         "-k", "not ray", "mine/test_half_way.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_nothing_is_written_over_and_names_are_checked(call: Call, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("precious")
    status, _, err = call("new", "method", "mine")
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith("test_mine.py: found a file, which is not written over")
    assert (tmp_path / "test_mine.py").read_text() == "precious"
    for name, said in (
        ("fedsc", "which is a method already"),
        ("Mine", "must be lower-case letters"),
        ("../mine", "must be lower-case letters"),
        ("random", "a Python module that random.py would hide"),
    ):
        status, _, err = call("new", "method", name)
        assert (status, err.count("\n")) == (2, 1)
        assert err.startswith("NAME: found ")
        assert said in err
    assert call("new", "objective", "mine")[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test_mine.py", "tiny.yaml"]
