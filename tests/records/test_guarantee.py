"""An epsilon is never shown without its delta and what it covers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rayfed_ssl.base.files import write_json
from rayfed_ssl.records.comparison_files import markdown, write
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.records.guarantee import Guarantee, guarantee
from rayfed_ssl.report.dispatch import report_of
from tests.records.run_folders import run_folder
from tests.report.parsed import Parsed


def test_the_largest_of_clients_counts_and_one_without_leaves_none() -> None:
    assert guarantee({"epsilon": {"0": 1.0, "1": 2.5}, "privacy": {"delta": 0.1}}) == Guarantee(2.5, 0.1)
    assert guarantee({"epsilon": 2, "privacy": None}) == Guarantee(2.0)
    for nothing in (None, {}, {"0": 1.0, "1": None}):
        assert guarantee({"epsilon": nothing, "privacy": {"delta": 0.1}}) is None
    assert Guarantee(0.6198, 0.01, "sums", "weights").sentence == (
        "epsilon 0.62 at delta 0.01, of sums alone; weights are sent without noise"
    )


@pytest.mark.long
def test_an_epsilon_is_never_without_what_it_covers(tmp_path: Path) -> None:
    runs = {name: [run_folder(tmp_path / name, 0, [0.2], epsilon={"0": of})] for name, of in (("a", 2.0), ("b", 3.0))}
    for name, (folder,) in runs.items():
        summary = json.loads((folder / "summary.json").read_text())
        privacy = {"delta": 0.05, "covers": "sums", "not_covered": f"weights of {name}"}
        write_json(folder / "summary.json", {**summary, "privacy": privacy})
    made = of_variants({**runs, "c": [run_folder(tmp_path / "c", 0, [0.2, 0.6])]})
    for name in ("a", "b"):
        note = f"epsilon of {name}: of the client that spent most, at delta 0.05, of sums alone; weights of {name} are "
        assert f"- {note}sent without noise." in markdown(made).splitlines()
    assert "epsilon of c" not in markdown(made)
    write(made, tmp_path / "out")
    rows = json.loads((tmp_path / "out/comparison.json").read_text())["rows"]
    told = {"epsilon": 3.0, "delta": 0.05, "covers": "sums", "not_covered": "weights of b"}
    assert [row["privacy"] for row in rows[1:3]] == [told, None]
    words = Parsed(report_of(tmp_path / "out")).words
    assert "2 at delta 0.05, of sums alone; weights of a are sent without noise" in words
    report_of(runs["a"][0], images=False)
    tile = "epsilon, largest of clients 2 at delta 0.05, of sums alone; weights of a are sent without noise"
    assert tile in Parsed(runs["a"][0] / "report.html").words
