"""Several exports to one folder: each has a draft of its own, and the first that is done is kept."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.exporting.encoders import RunEncoder
from rayfed_ssl.exporting.folder import FORMS, export

pytestmark = pytest.mark.long


def test_an_export_does_not_touch_another_ones_draft(
    encoder: RunEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first writes its program a second begins and ends."""
    written: list[Path] = []

    def slowly(one: RunEncoder, path: Path) -> float:
        monkeypatch.setitem(FORMS, "torchscript", replace(FORMS["torchscript"], write=quickly))
        path.write_bytes(b"first")
        written.append(export(one, "torchscript", tmp_path / "x").folder)
        assert path.read_bytes() == b"first"
        return 0.0

    def quickly(one: RunEncoder, path: Path) -> float:
        path.write_bytes(b"second")
        return 0.0

    monkeypatch.setitem(FORMS, "torchscript", replace(FORMS["torchscript"], write=slowly))
    with pytest.raises(UserError, match=r"^--out: .*x exists; name another folder, or remove it$"):
        export(encoder, "torchscript", tmp_path / "x")
    assert written == [tmp_path / "x"]
    assert (tmp_path / "x/model.pt").read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_drafts_of_killed_exports_go_after_a_day(
    encoder: RunEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMS, "torchscript", replace(FORMS["torchscript"], write=lambda one, path: 0.0))
    names = [".x.0123abcd.tmp", ".x.4567abcd.tmp", ".x.y.0123abcd.tmp", ".x.tmp", "x.0123abcd.tmp"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pt").touch()
        age = 3600 if name == ".x.4567abcd.tmp" else 25 * 3600
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    export(encoder, "torchscript", tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["x", *names[1:]])
