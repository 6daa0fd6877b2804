"""A user's own ``tune.py`` beside a script is named by ``rayfed_ssl.compare``, and not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import rayfed_ssl
try:
    rayfed_ssl.compare("fedsimclr", base="none.yaml")
except rayfed_ssl.UserError as mistake:
    print(mistake)
"""


@pytest.mark.long
def test_a_tune_py_beside_a_script_is_named_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "tune.py").write_text("print('it ran')\n")
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        f"{tmp_path / 'tune.py'}: found in the place of rayfed-ssl's own package 'tune', which it hides; rename it, or "
        "start rayfed-ssl in another folder"
    ]
