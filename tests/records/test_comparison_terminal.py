"""What ``compare`` prints: its first screen against the report's sentence and NumPy, the rest against the files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records.comparison import Comparison, Difference, Row
from rayfed_ssl.records.comparison_choice import choice, selected
from rayfed_ssl.records.comparison_files import cells, latex, markdown, write
from rayfed_ssl.records.comparison_notes import cautions, notes
from rayfed_ssl.records.comparison_rows import compare_rows, of_variants
from rayfed_ssl.records.image_pairs import DrawnInterval
from rayfed_ssl.report import comparison as page
from rayfed_ssl.terminal.comparison import intervals_in_words, print_comparison, short_measures
from tests.records.run_folders import run_folder

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
    print_comparison(Console(file=text, width=width), comparison, selection, [Path("runs/a b")], full=full)
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.long
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


def test_an_accuracy_that_is_almost_1_does_not_read_as_1(tmp_path: Path) -> None:
    ends = {"a": 0.99984, "b": 1.0}
    near = of_variants({name: [run_folder(tmp_path / name, 0, [0.2, end])] for name, end in ends.items()}, {})
    assert [line.split()[:2] for line in printed(near, 120) if line.split()[:1] in (["a"], ["b"])] == [
        ["a", ">.999"], ["b", "1.000"],
    ]  # fmt: skip
    assert "| a | >.999 |" in markdown(near)
    assert "a & $>$.999 &" in latex(near)


def test_three_protocols_fit_a_narrow_terminal_with_the_difference_below_the_mean(tmp_path: Path) -> None:
    """As many as a run measures by default; nothing is cut, and no part of the table is printed apart."""
    rng = np.random.default_rng(0)
    whole = of_variants({name: [run_folder(tmp_path / name, 0, [0.2, 0.5])] for name in ("fedsimclr", "fedprox")})
    rows = []
    for row in whole.trained:
        values = {m: dict(enumerate(rng.random(3))) for m in ("linear", "knn", "fewshot", "own_knn", "knn_auc")}
        rows.append(Row(row.name, values, dict.fromkeys(range(3), row.runs[0])))
    found = compare_rows(rows, {})
    assert short_measures(found, "linear") == ["linear", "knn", "fewshot"]
    narrow, wide = printed(found, 80), printed(found, 120)
    assert not any("difference" in line for line in narrow[1:4])
    (at,) = (place for place, line in enumerate(wide) if line.split()[:1] == ["fedprox"])
    (below,) = (place for place, line in enumerate(narrow) if line.split()[:1] == ["fedprox"])
    mean, difference = wide[at].split()[1:4], wide[at].split()[10:13]
    assert narrow[below].split()[1] == "".join(mean)
    assert narrow[below + 1].split() == difference
    told = "to fedsimclr {}: paired, with its 95% interval over seeds."
    assert "The difference in linear " + told.format("is below it") in narrow
    assert "The column difference is in linear " + told.replace(" {}", "") in wide
    end = next(place for place, line in enumerate(narrow) if line.startswith("Last round"))
    assert max(map(len, narrow[1:end])) <= 80
    assert sum("fedprox" in line for line in narrow[1:end]) == 1


def test_where_features_alone_were_measured_the_table_begins_with_what_the_answer_goes_by(tmp_path: Path) -> None:
    whole = of_variants({name: [run_folder(tmp_path / name, 0, [0.2, 0.5])] for name in ("fedsimclr", "fedprox")})
    ranks = {"fedsimclr": (30.0, 31.0, 33.0), "fedprox": (40.0, 42.0, 41.0)}
    rows = [
        Row(
            row.name,
            {"features/alignment": {0: 1.0, 1: 2.0, 2: 4.0}, "features/rankme": dict(enumerate(ranks[row.name]))},
            dict.fromkeys(range(3), row.runs[0]),
        )
        for row in whole.trained
    ]  # fmt: skip
    lines = printed(compare_rows(rows, {}), 120)
    assert lines[0].startswith("No accuracy was measured; by RankMe, fedprox is first of 2 with 41")
    (head,) = (line for line in lines if "alignment" in line)
    assert head.split()[:2] == ["rankme", "alignment"]
    (row,) = (line for line in lines if line.split()[:1] == ["fedprox"])
    apart = np.mean(ranks["fedprox"]) - np.mean(ranks["fedsimclr"])
    assert f" {apart:+.3f} [" in row
    assert any(line.startswith("The column difference is in rankme to fedsimclr: paired, with its") for line in lines)


def test_no_number_is_a_negative_zero_and_a_bound_says_on_which_side_of_zero_it_lies(tmp_path: Path) -> None:
    whole = of_variants({name: [run_folder(tmp_path / name, 0, [0.2, 0.5])] for name in ("fedsimclr", "fedprox")})
    scores = {"fedsimclr": (-0.0001, -0.0002, -0.0003), "fedprox": (-0.0003, -0.0004, -0.0006)}
    rows = [
        Row(row.name, {"knn": dict(enumerate(scores[row.name]))}, dict.fromkeys(range(3), row.runs[0]))
        for row in whole.trained
    ]
    expected = "0.000 ± 0.000 0.000 [-0.0004, -0.0001]"
    (line,) = (line for line in printed(compare_rows(rows, {}), 120) if line.split()[:1] == ["fedprox"])
    assert " ".join(line.split()[1:7]) == expected
    assert " ".join(cells(compare_rows(rows, {}))[1][1][1][:2]) == expected


def test_intervals_over_unlike_things_are_told_row_by_row() -> None:
    over = {name: Difference(0.1, 0.0, 0.2, 3) for name in "abcdefg"}
    assert intervals_in_words(over) == "with its 95% interval over seeds"
    images = Difference(0.1, None, None, 1, DrawnInterval(0.0, 0.2, 60))
    told = intervals_in_words({"fedprox": images, **over, "local": Difference(0.1, None, None, 1)})
    assert told == (
        "with its 95% interval over test images of this one seed (fedprox); with its 95% interval over seeds "
        "(a, b, c, d, e and 2 more); without an interval, so it may be chance (local)"
    )
    assert intervals_in_words({"b": Difference(0.1, None, None, 1)}) == "without an interval, so it may be chance"


def test_what_marks_mean_is_never_left_out(made: Comparison) -> None:
    lines = printed(made, 120)
    assert set(cautions(made)) < set(notes(made))
    assert set(cautions(made)) < set(lines)
    for start in ("+ c: another split than a in seed(s) 2", "* c: beyond the method", "Left out, d: it needs public"):
        assert any(line.startswith(start) for line in lines)
    assert any(line.split()[:1] == ["c*+"] for line in lines)
    assert lines[-1] == "All measures, intervals, costs and notes: rayfed-ssl compare 'runs/a b' --full"
    chosen = printed(made, 120, select="select.knn")[-1]
    assert chosen.endswith(": rayfed-ssl compare 'runs/a b' --select select.knn --full")
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
    gone = selected(made, None, tmp_path)  # these rows were not measured by it
    assert gone is not None
    with pytest.raises(UserError, match="these runs have ") as refused:
        choice(made, "select.linear")
    known = str(refused.value).partition("these runs have ")[2]
    assert "select.knn" in known
    assert gone.sentence == f"no row is chosen: --select was select.linear before, and these runs have {known}"
    write(made, tmp_path, gone)
    assert selected(made, None, tmp_path) == gone  # and where they have it later, it chooses again
    assert gone.sentence in (tmp_path / "comparison.md").read_text().replace("\\", "")
    (tmp_path / "comparison.json").write_text("{")
    assert selected(made, None, tmp_path) is None
