"""What ``compare`` prints: its first screen against the report's sentence and NumPy, the rest against the files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from rayfed_ssl.records.comparison import Comparison, Row
from rayfed_ssl.records.comparison_choice import choice, selected
from rayfed_ssl.records.comparison_files import cells, write
from rayfed_ssl.records.comparison_notes import cautions, notes
from rayfed_ssl.records.comparison_rows import _compared, of_variants
from rayfed_ssl.report import comparison as page
from rayfed_ssl.terminal.comparison import print_comparison, short_measures
from tests.records.test_comparison import run_folder

ENDS = {"a": (0.50, 0.54, 0.55), "b": (0.60, 0.61, 0.66), "c": (0.49, 0.56, 0.54)}


@pytest.fixture
def made(tmp_path: Path) -> Comparison:
    """Three rows over three seeds; of the third a seed is on another split, and its objective is another."""
    folders = {
        name: [
            run_folder(
                tmp_path / f"{name}-{seed}", seed, [0.2, end], method="fedbyol" if name == "c" else "fedsimclr",
                images=(9, 8) if (name, seed) == ("c", 2) else (3, 1, 2),
            )
            for seed, end in enumerate(ends)
        ]
        for name, ends in ENDS.items()
    }  # fmt: skip
    return of_variants(folders, {"d": "it needs public images"})


def printed(comparison: Comparison, width: int, *, full: bool = False, select: str | None = None) -> list[str]:
    text = io.StringIO()
    selection = None if select is None else choice(comparison, select)
    print_comparison(Console(file=text, width=width), comparison, selection, full=full)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_the_first_line_is_the_reports_sentence(made: Comparison, tmp_path: Path) -> None:
    write(made, tmp_path)
    sentence = printed(made, 120)[0]
    assert sentence.startswith("By kNN, b is first of 3 with 62.3 %")
    assert sentence == printed(made, 120, full=True)[0]
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert sentence == page.verdict(rows, ["knn"]).sentence


@pytest.mark.parametrize("width", [80, 120])
def test_a_row_of_the_short_table_is_mean_deviation_paired_difference_and_bytes(made: Comparison, width: int) -> None:
    lines = printed(made, width)
    apart = np.array(ENDS["b"]) - np.array(ENDS["a"])
    low, high = scipy.stats.ttest_1samp(apart, 0).confidence_interval(0.95)
    spread = f"{np.mean(ENDS['b']):.3f} ± {np.std(ENDS['b'], ddof=1):.3f}"
    further = f"{apart.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
    (at,) = (place for place, line in enumerate(lines) if line.split()[:1] == ["b"])
    assert lines[at].split() == [*f"b {spread} {further}".split(), "0.00042"]
    table = lines[1 : next(place for place, line in enumerate(lines) if line.startswith("Last round"))]
    assert len(table) == 9  # a line for each row, the head and its rule, and an empty line before and after
    assert max(map(len, table)) <= 80


def test_three_protocols_fit_a_narrow_terminal_with_the_difference_below_the_mean(tmp_path: Path) -> None:
    """As many as a run measures by default; nothing is cut, and no part of the table is printed apart."""
    rng = np.random.default_rng(0)
    whole = of_variants({name: [run_folder(tmp_path / name, 0, [0.2, 0.5])] for name in ("fedsimclr", "fedprox")})
    rows = []
    for row in whole.trained:
        values = {m: dict(enumerate(rng.random(3))) for m in ("linear", "knn", "fewshot", "own_knn", "knn_auc")}
        rows.append(Row(row.name, values, dict.fromkeys(range(3), row.runs[0])))
    found = _compared(rows, {})
    assert short_measures(found) == ["linear", "knn", "fewshot"]
    narrow, wide = printed(found, 80), printed(found, 120)
    assert not any("difference" in line for line in narrow[1:4])
    (at,) = (place for place, line in enumerate(wide) if line.split()[:1] == ["fedprox"])
    (below,) = (place for place, line in enumerate(narrow) if line.split()[:1] == ["fedprox"])
    mean, difference = wide[at].split()[1:4], wide[at].split()[10:13]
    assert narrow[below].split()[1] == "".join(mean)
    assert narrow[below + 1].split() == difference
    end = next(place for place, line in enumerate(narrow) if line.startswith("Last round"))
    assert max(map(len, narrow[1:end])) <= 80
    assert sum("fedprox" in line for line in narrow[1:end]) == 1


def test_what_marks_mean_is_never_left_out(made: Comparison) -> None:
    lines = printed(made, 120)
    assert set(cautions(made)) < set(notes(made))
    assert set(cautions(made)) < set(lines)
    for start in ("+ c: another split than a in seed(s) 2", "* c: beyond the method", "Left out, d: it needs public"):
        assert any(line.startswith(start) for line in lines)
    assert any(line.split()[:1] == ["c*+"] for line in lines)
    assert lines[-1] == "All measures, intervals, costs and notes: --full"
    assert not any(line.startswith("Second line") for line in lines)


def test_the_whole_table_has_every_cell_and_every_note(made: Comparison) -> None:
    lines = printed(made, 400, full=True)
    text = "\n".join(lines)
    head, rows = cells(made)
    assert all(name in text for name in head)
    assert all(line in text for row in rows for cell in row for line in cell)
    assert lines[-len(notes(made)) :] == notes(made)


def test_what_was_chosen_is_printed_and_stays_where_tables_are_written_again(made: Comparison, tmp_path: Path) -> None:
    asked = choice(made, "select.knn")
    assert asked.sentence in printed(made, 120, select="select.knn")
    assert selected(made, None, None) is None
    assert selected(made, None, tmp_path) is None
    write(made, tmp_path, selected(made, "select.knn", tmp_path))
    assert selected(made, None, tmp_path) == asked
    write(made, tmp_path, selected(made, None, tmp_path))
    kept = json.loads((tmp_path / "comparison.json").read_text())["selection"]
    assert (kept["row"], kept["measure"], kept["labels"]) == ("b", "select/knn", "held-out labels")
    assert "partly by chance" in kept["sentence"]
    text = (tmp_path / "comparison.json").read_text()
    (tmp_path / "comparison.json").write_text(text.replace('"asked": "select.knn"', '"asked": "select.linear"'))
    assert selected(made, None, tmp_path) is None  # by which these rows were not measured
    (tmp_path / "comparison.json").write_text("{")
    assert selected(made, None, tmp_path) is None
