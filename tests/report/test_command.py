"""``rayfed-ssl report``: where the page is, or one line and exit status 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import command


@pytest.mark.long
def test_the_command_says_where_the_page_is(
    copy: Callable[[], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))
    folder = copy()
    status, out, _ = command(capsys, "report", folder, "--no-images")
    assert status == 0
    assert str(folder / "report.html") in out
    assert (folder / "report.html").is_file()
    assert not (folder / "projector_config.pbtxt").exists()


@pytest.mark.long
def test_a_report_that_takes_long_says_how_far_it_is(
    copy: Callable[[], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))
    monkeypatch.setattr("rayfed_ssl.terminal.counting.TOLD_S", 0.0)
    folder = copy()
    _, out, _ = command(capsys, "report", folder, "--no-images")
    *told, _, figures = out.splitlines()
    assert told == [f"{done} of 10 sections of the report" for done in range(10)]
    assert figures.split()[0] == "figures"


def test_what_is_no_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = command(capsys, "report", tmp_path)
    assert (status, err.count("\n")) == (2, 1)
