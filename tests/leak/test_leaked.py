"""What an audit found is read again: in a run's report, in a comparison's tables and on its page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records.comparison_files import cells, markdown, records
from rayfed_ssl.records.comparison_notes import notes
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.records.leaked import BY_CHANCE, INTERVAL, UNTRAINED, largest, read_leak
from rayfed_ssl.report.dispatch import report_of
from tests.command_line import command
from tests.records.run_folders import run_folder
from tests.report.parsed import Parsed
from tests.tiny import tiny_run
from tune.comparison import run_comparison
from tune.variants import from_methods


def audited(run: Path, *areas: tuple[int, str, float], members: int = 120, null: float | None = 0.03) -> Path:
    rows = [
        {"client": client, "round": 2, "field": field, "score": "agreement of views", "members": members, "auc": auc,
         "low": auc - 0.1, "high": auc + 0.1, "tpr_at_1_percent": 0.025}
        for client, field, auc in areas
    ]  # fmt: skip
    found = {"findings": rows, "unaudited": ["rest"], "null_deviation": null, "privacy": None}
    (run / "leak.json").write_text(json.dumps(found))
    return run


def test_the_largest_area_is_of_what_crossed(tmp_path: Path) -> None:
    assert read_leak(tmp_path) is None
    found = read_leak(audited(tmp_path, (0, UNTRAINED, 0.9), (0, "weights", 0.4), (3, "weights", 0.55)))
    assert found is not None
    assert found.largest is not None
    assert (found.largest.client, found.largest.auc, found.largest.low) == (3, 0.55, pytest.approx(0.45))
    nothing = read_leak(audited(tmp_path, (0, UNTRAINED, 0.9)))
    assert nothing is not None
    assert (nothing.largest, largest([nothing, found])) == (None, found.largest)


@pytest.mark.long
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"findings": [{}], "unaudited": [], "null_deviation": 0}'])
def test_a_damaged_audit_is_one_line(tmp_path: Path, text: str) -> None:
    run = run_folder(tmp_path / "run", 0, [0.2, 0.6])
    (run / "leak.json").write_text(text)
    with pytest.raises(
        UserError, match=r"leak\.json: cannot be read .*; mend it, or move it away and give rayfed-ssl leak \S+$"
    ):
        read_leak(run)
    assert "leak.json: cannot be read" in Parsed(report_of(run, images=False)).words


@pytest.mark.long
def test_a_runs_report_shows_what_was_found(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", 0, [0.2, 0.6])
    assert "What messages give away" not in Parsed(report_of(run, images=False)).words
    words = Parsed(report_of(audited(run, (0, UNTRAINED, 0.5), (1, "weights", 0.625)), images=False)).words
    assert "client 1 weights agreement of views 120 0.625 [0.525, 0.725] 0.025" in words
    assert "A score that knows nothing spreads by 0.030 around 0.5." in words
    assert "Crossed, but no attack reads it: rest." in words
    assert f"An interval is {INTERVAL}; {BY_CHANCE}." in words
    few = Parsed(report_of(audited(run, (1, "weights", 0.625), members=99, null=None), images=False)).words
    assert "99 0.625 [0.525, 0.725] –" in few
    assert "spreads" not in few


@pytest.mark.long
def test_a_runs_report_says_of_which_round_an_area_is_where_there_are_several(tmp_path: Path) -> None:
    run = audited(run_folder(tmp_path / "run", 0, [0.2, 0.6]), (0, "weights", 0.5), (1, "weights", 0.625))
    found = json.loads((run / "leak.json").read_text())
    found["findings"][0]["round"] = 1
    (run / "leak.json").write_text(json.dumps(found))
    words = Parsed(report_of(run, images=False)).words
    assert "by messages of round 1, 2" in words
    assert "client 0, round 1 weights agreement of views 120 0.500" in words
    assert "client 1, round 2 weights agreement of views 120 0.625" in words


def test_a_comparison_has_a_column_once_all_runs_were_audited(tmp_path: Path) -> None:
    folders = {name: [run_folder(tmp_path / f"{name}{s}", s, [0.2, 0.6]) for s in (0, 1)] for name in ("a", "b")}
    audited(folders["a"][0], (0, UNTRAINED, 0.7), (0, "weights", 0.5))
    audited(folders["a"][1], (0, "weights", 0.6), (2, "dictionary", 0.58))
    audited(folders["b"][0], (0, UNTRAINED, 0.5))
    assert "leak" not in markdown(of_variants(folders))
    assert "leak.auc" not in records(of_variants(folders))[0]
    audited(folders["b"][1], (0, UNTRAINED, 0.5))
    made = of_variants(folders)
    head, rows = cells(made)
    assert [row[head.index("leak AUC")] for row in rows] == [("0.600", "[0.500, 0.700]"), ("-",), ("-",), ("-",)]
    assert [(row["leak.auc"], row["leak.low"]) for row in records(made)[:2]] == [(0.6, 0.5), (None, None)]
    (note,) = [line for line in notes(made) if line.startswith("leak AUC")]
    assert note.endswith(f" by chance. The interval is {INTERVAL}.")
    assert "(a: weights (agreement of views) of client 0)" in note


@pytest.mark.long
def test_a_comparison_is_audited_run_by_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, out = tmp_path / "run.yaml", tmp_path / "out"
    changes: dict[str, Any] = {
        "data.limit": 240, "data.partition.name": "iid", "evaluation.select": {"share": 0.35}, "train.rounds": 1,
    }  # fmt: skip
    base.write_text(yaml.safe_dump(tiny_run("fedsimclr", changes).model_dump(mode="json")))
    run_comparison(from_methods(base, ["fedsimclr", "fedprox"]), out, local=True)
    status, said, _ = command(capsys, "leak", out, "--images", "20")
    assert status == 0
    assert [name for name in ("fedsimclr", "fedprox") if re.search(rf"^{name}, seed 0: ", said, re.MULTILINE)] == [
        "fedsimclr", "fedprox",
    ]  # fmt: skip
    words = Parsed(report_of(out)).words
    for n in (0, 1):
        assert (found := read_leak(out / f"trial-0000{n}")) is not None
        assert (area := found.largest) is not None
        assert f"{area.auc:.3f} [{area.low:.3f}, {area.high:.3f}] weights ({area.score}) of client 0" in words
    status, said, _ = command(capsys, "leak", out, "--client", "99")
    assert status == 1
    assert "fedprox, seed 0: --client: found 99; this run has clients 0 to 3" in said
    assert "2 run(s) could not be audited" in said
