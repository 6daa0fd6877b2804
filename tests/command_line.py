"""The command line in this process: the configuration that its tests begin with, and a way to call it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rayfed_ssl import cli

Call = Callable[..., tuple[int, str, str]]

CONFIG = """
method: {name: fedsimclr}
data: {name: digits, image_size: 8, limit: 60, test_limit: 30}
clients: {count: 3}
model: {width: 0.25}
augment: {preset: digits}
train: {rounds: 2, batch_size: 16}
evaluation: {protocols: [knn], fewshot: {draws: 1}}
checkpoint: {every: 1}
resources: {device: cpu}
figures: false
"""


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Runs a command to its end: exit status, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def caller(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls it in ``folder``, where tiny.yaml holds CONFIG; a call returns exit status, stdout, stderr."""
    monkeypatch.chdir(folder)
    for name in ("PYTHONWARNINGS", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):  # set by main; undone after the test
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)
    (folder / "tiny.yaml").write_text(CONFIG)

    return functools.partial(command, capsys)
