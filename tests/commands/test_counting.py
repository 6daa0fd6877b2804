"""The progress of a long command where the output is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rayfed_ssl.terminal import counting


def test_elsewhere_than_on_a_terminal_a_line_is_printed_by_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr(counting.time, "monotonic", lambda: now[0])
    counter = counting.Counter(Console(file=out, width=80), "images")
    for done in range(64, 1281, 64):  # two seconds each
        now[0] += 2
        counter(done, 1280)
    assert out.getvalue().splitlines() == [f"{done} of 1,280 images" for done in (320, 640, 960)]
