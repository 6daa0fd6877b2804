"""How a run ends on a terminal: the table, the report's verdict below it, what describes the features beside it."""

from __future__ import annotations

import json
from pathlib import Path

from rayfed_ssl.report.verdict import verdict
from tests.command_line import Call
from tests.data.files import pictures, write_parquet

LOCAL = ("run", "tiny.yaml", "--executor", "local")


def test_the_verdict_of_the_report_and_the_effective_rank(call: Call, tmp_path: Path) -> None:
    status, out, _ = call(*LOCAL, "evaluation.protocols=[knn,rank]")
    assert status == 0
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    sentence = verdict(summary).sentence
    assert sentence.startswith("After 2 rounds, the encoder is ")
    assert sentence.replace("−", "-") in out.splitlines()
    before, last = (f"{summary[block]['rankme']:.3f}" for block in ("untrained_features", "features"))
    (row,) = (line for line in out.splitlines() if line.startswith("  effective rank"))
    assert row.split() == ["effective", "rank", "-", before, last, "-"]
    assert f"rankme {before}" in out  # the line of the untrained encoder


def test_without_accuracies_there_is_no_verdict(call: Call) -> None:
    status, out, _ = call(*LOCAL, "evaluation.protocols=[rank]", "train.rounds=1")
    assert status == 0
    assert "After 1 round" not in out
    assert "rankme" in out


def test_a_large_class_is_recalled_at_the_end(call: Call, tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / "odd" / f"{split}.parquet", pictures(60), ["a"] * 54 + ["b"] * 6)
    status, out, _ = call(*LOCAL, "train.rounds=1", "data.name=parquet", "data.path=odd", "data.test_limit=null")
    assert status == 0
    assert json.loads((tmp_path / "runs/tiny/summary.json").read_text())["largest_class"] == {"name": "a", "share": 0.9}
    assert "; always naming the largest class, a, is right for 90.0 % of the test images" in out
