"""The tables of speed: the newest line of each figure, and nothing where nobody measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import json_lines
import pytest
import speed_table


def written(path: Path, *lines: dict[str, Any]) -> list[dict[str, Any]]:
    path.write_text("".join(json.dumps({"label": "now", **line}) + "\n" for line in lines))
    return json_lines.read(path)


def row(table: str, start: str) -> list[str]:
    (found,) = [line for line in table.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_the_newest_line_counts_and_what_nobody_measured_is_said(tmp_path: Path) -> None:
    zero = {"benchmark": "zero_work", "case": "large", "ours_cpu_ms_per_client": 9.0, "pss_mb": 2345, "load": 1.5}
    lines = written(
        tmp_path / "x.jsonl",
        {**zero, "ours_ms_per_client": 4.0, "ratio": 2.0},
        {**zero, "ours_ms_per_client": 3.0, "ratio": 1.5, "commit": "a2e60b4e"},
        {**zero, "ours_ms_per_client": 5.0, "ratio": 2.0, "label": "before"},
    )
    table = speed_table.table(lines)
    assert row(table, "zero-work `mean`, 45 MB")[3:] == ["3.00 ms (9.00 CPU), 1.5 x, 2.3 GB PSS", "1.5"]
    assert row(table, "a typo")[3:] == ["not measured", "-"]
    assert table.splitlines()[-1] == "Measured at a2e60b4e."


def test_many_actors_have_a_row_for_each_shape(tmp_path: Path) -> None:
    def line(nodes: int, actors: int, values: int, read: float) -> dict[str, Any]:
        return {
            "benchmark": "many_actors", "nodes": nodes, "actors": actors, "clients": 16 * actors, "values": values,
            "read_mb": read, "cpu_ms_per_client": 1.25,
        }  # fmt: skip

    lines = written(tmp_path / "x.jsonl", line(4, 8, 100_000, 1.6), line(1, 2, 10**7, 160), line(4, 8, 10**7, 161))
    table = speed_table.many_actors(lines).splitlines()
    assert table[0].startswith(
        "| nodes | actors | clients | 0.4 MB: sums read | 0.4 MB: CPU of a client | 40.0 MB: sums"
    )
    assert table[2:] == [
        "| 1 | 2 | 32 | - | - | 160.0 MB | 1.25 ms |",
        "| 4 | 8 | 128 | 1.6 MB | 1.25 ms | 161.0 MB | 1.25 ms |",
    ]


def test_what_the_driver_holds_is_said_of_every_method_of_the_project(tmp_path: Path) -> None:
    measured = {
        "benchmark": "driver_memory", "method": "flesd", "asked": 7, "bank_mb": 0.0, "states_mb": 0.4, "driver_mb": 2.7,
        "objects_mb": 130.2, "up_mb": 256.0, "replies_read_mb": 0.0, "sums_read_mb": 8.6,
    }  # fmt: skip
    table = speed_table.driver_memory(written(tmp_path / "x.jsonl", measured))
    assert row(table, "`flesd`")[1] == "7"
    assert row(table, "`flesd`")[3:] == ["0 MB, 0 MB", "3 MB", "130 MB", "256 MB", "0 MB, 9 MB"]
    for method in ("fedfoa", "fedsc", "fedca", "fedlinked"):
        assert row(table, f"`{method}`")[3:] == ["not measured"] * 5


def test_the_readmes_sentence_has_the_newest_figures(tmp_path: Path) -> None:
    rounds = {"benchmark": "round_time", "channels_last": True}
    lines = written(
        tmp_path / "x.jsonl",
        {**rounds, "clients": 8, "ratio": 1.5},
        {**rounds, "clients": 8, "ratio": 1.234},
        {**rounds, "clients": 64, "ratio": 0.987},
        {"benchmark": "zero_work", "case": "mean", "ours_ms_per_client": 0.456, "machine": "an abacus"},
    )
    text = " ".join(speed_table.sentence(lines).split())
    assert "on an abacus: compared with" in text
    assert "a round of 8 clients takes 1.23 times as long, and a round of 64 small clients 0.99 times;" in text
    assert "costs 0.46 ms" in text
    with pytest.raises(LookupError, match="no round of 64 clients"):
        speed_table.sentence(lines[:2])
