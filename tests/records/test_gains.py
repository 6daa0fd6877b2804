"""What it costs rows to reach one accuracy, 90% of the first row's gain: on run folders written by hand."""

from __future__ import annotations

from pathlib import Path

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.records.comparison import Comparison
from rayfed_ssl.records.comparison_files import cells, latex, markdown, records, write
from rayfed_ssl.records.comparison_notes import notes
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.records.gains import goal, never
from rayfed_ssl.records.tables import METRICS, Commit, Metric, metrics_parts, table
from rayfed_ssl.report.dispatch import report_of
from tests.records.run_folders import UNTRAINED, run_folder

SENT = ((10, 0), (20, 5), (30, 0), (40, 0))
CLOCK = (3600.0, 7200.0, 10800.0, 14400.0)


def rows(root: Path, **curves: list[list[float]]) -> Comparison:
    """A row for each name, with a run for each curve, whose seeds are 0, 1, ..; 10, 35, 65, 105 bytes, 1 to 4 hours."""
    made = {}
    for name, of in curves.items():
        folders = (root / f"{name}-{seed}" for seed in range(len(of)))
        made[name] = [
            run_folder(folder, seed, curve, sent=SENT[: len(curve)], virtual=CLOCK[: len(curve)])
            for seed, (folder, curve) in enumerate(zip(folders, of, strict=True))
        ]
    return of_variants(made)


def column(made: Comparison, head: str) -> dict[str, str]:
    heads, body = cells(made)
    return {row[0][0]: row[heads.index(head)][0] for row in body}


def test_all_rows_are_asked_for_the_accuracy_of_the_first(tmp_path: Path) -> None:
    """Who gains little is soon at 90% of that, and never at the first row's accuracy."""
    first = [0.4, 0.5, 0.68, 0.7]  # from 0.3: 90% of the way is 0.66
    made = rows(tmp_path, first=[first], little=[[0.31, 0.32, 0.32, 0.32]], quick=[[0.67, 0.1, 0.1, 0.65]])
    told = {row["row"]: row for row in records(made)}
    assert goal({0: UNTRAINED, **dict(enumerate(first, 1))}) == pytest.approx(0.66)
    assert told["first"]["bytes_to_goal.knn"] == told["first"]["bytes_to_90.knn"] == 65
    assert told["first"]["virtual_hours_to_goal.knn"] == told["first"]["virtual_hours_to_90.knn"] == 3.0
    assert (told["little"]["bytes_to_90.knn"], told["little"]["bytes_to_goal.knn"]) == (35, None)
    assert told["little"]["virtual_hours_to_goal.knn"] is None
    assert (told["quick"]["bytes_to_goal.knn"], told["quick"]["virtual_hours_to_goal.knn"]) == (10, 1.0)
    counted = {name: (row["goal_seeds.knn"], row["goal_reached.knn"]) for name, row in told.items() if row["runs"]}
    assert counted == {"first": (1, 1), "little": (1, 0), "quick": (1, 1)}
    assert {row["goal.knn"] for row in told.values() if row["runs"]} == {told["first"]["goal.knn"]}
    assert told["untrained encoder"]["goal.knn"] is None
    assert column(made, "MB to knn 0.660") == {
        "first": "6.5e-05", "little": "never", "quick": "1e-05", "untrained encoder": "-", "raw pixels": "-",
    }  # fmt: skip
    assert column(made, "h to knn 0.660")["little"] == "never"
    assert column(made, "h to knn 0.660")["quick"] == "1"
    said = " ".join(notes(made))
    assert "to knn 0.660: until the first evaluation with an accuracy that all rows are asked for" in said
    assert "to the last round of first at the same seed, never: not in a run's rounds" in said


def test_goals_are_those_of_the_same_seed_and_a_mean_is_of_all_or_none(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        first=[[0.4, 0.5], [0.6, 0.9], [0.2, 0.1]],  # goals 0.48 and 0.84; the last gained nothing
        both=[[0.48, 0.5], [0.5, 0.85], [0.9, 0.9]],
        one=[[0.49, 0.5], [0.5, 0.83], [0.9, 0.9]],
        unpaired=[[0.5, 0.5]],
    )
    told = {row["row"]: row for row in records(made)}
    assert told["first"]["goal.knn"] == pytest.approx((0.48 + 0.84) / 2)
    assert (told["both"]["goal_seeds.knn"], told["both"]["goal_reached.knn"]) == (2, 2)
    assert told["both"]["bytes_to_goal.knn"] == (10 + 35) / 2
    assert told["both"]["virtual_hours_to_goal.knn"] == 1.5
    assert (told["one"]["goal_seeds.knn"], told["one"]["goal_reached.knn"]) == (2, 1)
    assert (told["one"]["bytes_to_goal.knn"], told["one"]["virtual_hours_to_goal.knn"]) == (None, None)
    assert (told["unpaired"]["goal.knn"], told["unpaired"]["bytes_to_goal.knn"]) == (pytest.approx(0.48), 10)
    shown = column(made, "MB to knn 0.660")
    assert (shown["one"], shown["both"]) == ("never in 1 of 2", "2.25e-05")
    assert "at the same seed, here the mean over seeds, never" in " ".join(notes(made))
    assert (never(3, 3), never(3, 2), never(3, 0)) == ("", "never in 1 of 3", "never")


def test_who_begins_above_the_goal_needs_nothing(tmp_path: Path) -> None:
    """Its own untrained encoder has that accuracy, as one that began with trained values."""
    made = rows(tmp_path, first=[[0.31, 0.32]], other=[[0.5, 0.5]])
    parts = metrics_parts(tmp_path / "other-0")
    began = [Metric(0, None, "eval/knn", 0.45, 0.0)]
    began += [Metric(t, None, "eval/knn", 0.2, float(t)) for t in (1, 2)]
    began += [Metric(t, None, "time/virtual_s", CLOCK[t - 1], 0.0) for t in (1, 2)]
    parts.write(Commit(2, 0), table(began, METRICS))
    made = of_variants({"first": [tmp_path / "first-0"], "other": [tmp_path / "other-0"]})
    cost = made.rows[1].to_goal(made.first, "knn")
    assert cost is not None
    assert (cost.bytes, cost.hours, cost.never) == (0, 0.0, "")


def test_evaluations_far_apart_bound_the_cost_from_above(tmp_path: Path) -> None:
    """What was between two evaluations nobody knows: the first of them that has the accuracy counts."""
    made = rows(tmp_path, first=[[0.6, 0.7, 0.7, 0.7]], sparse=[[0.7, 0.7, 0.7, 0.7]])
    parts = metrics_parts(tmp_path / "sparse-0")
    kept = [row for row in parts.read().to_pylist() if row["tag"] != "eval/knn" or row["round"] in (0, 4)]
    parts.write(Commit(4, 0), table([Metric(**row) for row in kept], METRICS))
    folders = {"first": [tmp_path / "first-0"], "sparse": [tmp_path / "sparse-0"]}
    assert made.rows[1].to_goal(made.first, "knn").bytes == 10  # type: ignore[union-attr]
    made = of_variants(folders)
    assert made.rows[1].to_goal(made.first, "knn").bytes == 105  # type: ignore[union-attr]


def test_without_a_gain_there_is_no_common_accuracy(tmp_path: Path) -> None:
    made = rows(tmp_path, first=[[0.4, 0.2]], other=[[0.5, 0.6]])
    assert not any("MB to knn" in head for head in cells(made)[0])
    assert [row["goal.knn"] for row in records(made)] == [None] * 4
    assert "all rows are asked" not in " ".join(notes(made))


def test_of_other_images_nothing_is_asked(tmp_path: Path) -> None:
    first = run_folder(tmp_path / "a", 0, [0.5, 0.6])
    other = run_folder(tmp_path / "b", 0, [0.7, 0.8], changes={"data.test_limit": 7})
    made = of_variants({"a": [first], "b": [other]})
    assert made.other_images
    assert made.rows[1].to_goal(made.first, "knn") is None
    assert column(made, "MB to knn 0.570")["b#*"] == "-"


def test_a_goal_of_a_gain_that_may_be_chance_is_told(tmp_path: Path) -> None:
    made = rows(tmp_path, doubtful=[[0.31], [0.5], [0.29]], clear=[[0.5], [0.51], [0.52]])
    said = [line for line in notes(made) if "rests on the gain of" in line]
    told = "rests on the gain of doubtful, which is not told apart from none, so the cost of it says little."
    assert said == [f"knn {(0.309 + 0.48) / 2:.3f} {told}"]  # of the seeds that gained something
    turned = of_variants({"clear": list_of(tmp_path, "clear"), "doubtful": list_of(tmp_path, "doubtful")})
    assert not any("rests on the gain" in line for line in notes(turned))


def list_of(root: Path, name: str) -> list[Path]:
    return [root / f"{name}-{seed}" for seed in range(3)]


@pytest.mark.long
def test_every_format_and_the_page_say_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))
    made = rows(tmp_path, first=[[0.4, 0.7]], little=[[0.31, 0.32]])
    write(made, tmp_path / "out")
    assert "| never |" in markdown(made)
    assert "& never &" in latex(made)
    read = pq.read_table(tmp_path / "out/comparison.parquet").to_pylist()
    assert [row["goal_reached.knn"] for row in read] == [1, 0, None, None]
    assert [row["bytes_to_goal.knn"] for row in read] == [35, None, None, None]
    assert pa_csv.read_csv(tmp_path / "out/comparison.csv")["goal_reached.knn"].to_pylist() == [1, 0, None, None]
    page = report_of(tmp_path / "out").read_text()
    assert page.count(">never<") == 2  # bytes and hours
    assert "to kNN 66.0 %" in page
    assert "kNN 66.0 % is 90 % of the way from the untrained encoder to the last round of first, seed by seed" in page
