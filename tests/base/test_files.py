"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rayfed_ssl.base.files import read_json, replace_file, write_json
from rayfed_ssl.base.schema import UserError


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "a" / "x.json"
    write_json(path, {"a": 1})
    for value in (float("nan"), object()):
        with pytest.raises((ValueError, TypeError)):
            write_json(path, {"a": value})

    def half(draft: Path) -> None:
        draft.write_text("{")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        replace_file(path, half)
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(FileNotFoundError):
        write_json(gone / "x.json", {}, within=gone)
    with pytest.raises(FileNotFoundError):
        write_json(gone / "deep" / "x.json", {}, within=gone)
    assert list(tmp_path.iterdir()) == []


def test_a_shared_file_is_each_processs_own_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str]
) -> None:
    """Another process, told by its number, begins and ends while this one writes."""
    path = tmp_path / "x"

    def other(draft: Path) -> None:
        monkeypatch.setattr(os, "getpid", lambda: 7)
        replace_file(path, lambda its: its.write_text("theirs"), shared=True)
        assert path.read_text() == "theirs"
        draft.write_text("mine")

    replace_file(path, other, shared=True)
    assert path.read_text() == "mine"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    assert named == ["x", "x"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"summary\.json: cannot be read \(Is a directory\)$"),
        ('{"a": ', r"summary\.json: cannot be read \(.*\); the file is damaged$"),
        ("[1]", r"summary\.json: found list; must be a mapping, so the file is damaged$"),
    ],
)
def test_json_that_cannot_be_read_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "summary.json"
    assert read_json(path) is None
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_json(path)
