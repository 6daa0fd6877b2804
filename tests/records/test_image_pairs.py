"""Rows of a comparison paired image by image: what their differences rest on, and what is said where they cannot be."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.stats

from rayfed_ssl.base.files import write_json
from rayfed_ssl.evaluation import Outcomes
from rayfed_ssl.records.comparison import Comparison, Difference, Row
from rayfed_ssl.records.comparison_files import cells, markdown, records, write
from rayfed_ssl.records.comparison_notes import notes
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.records.image_intervals import balanced_half_width
from rayfed_ssl.records.image_pairs import (
    ALIKE,
    BY_SEED,
    HELD_ALIKE,
    IMAGES_ALIKE,
    LACKING,
    NO_RUN,
    NOT_COUNTED,
    NOT_OF_IMAGES,
    OTHER_CLIENTS,
    OTHER_IMAGES,
    OTHER_NUMBERS,
    DrawnInterval,
    client_differences,
    drawn,
    drawn_interval,
    image_differences,
)
from rayfed_ssl.records.intervals import of_difference
from rayfed_ssl.records.one_run import OneRun
from rayfed_ssl.records.outcomes import FILE, ImageShares, write_outcomes
from rayfed_ssl.records.seed_image_intervals import half_width
from rayfed_ssl.report import comparison as page
from rayfed_ssl.report.comparison_verdict import against
from tests.records.run_folders import run_folder

IMAGES = 200
LABELS = np.arange(IMAGES) % 4
Right = dict[str, list[np.ndarray]]


def answers(seed: int, seeds: int = 3) -> Right:
    """Row -> by seed (M,) whether it was right: of ``b`` on every image on which ``a`` was, and on some more."""
    rng = np.random.default_rng(seed)
    a = [rng.random(IMAGES) < 0.6 for _ in range(seeds)]
    return {"a": a, "b": [of | (rng.random(IMAGES) < 0.2) for of in a]}


def folder_of(root: Path, name: str, seed: int, right: np.ndarray, **how: Any) -> Path:
    """A run whose kNN is right where ``right`` says, (M,) or by client (E, M)."""
    by_client = {None: right} if right.ndim == 1 else dict(enumerate(right))
    method = "fedsimclr" if name == "a" else "fedprox"
    folder = run_folder(root / f"{name}-{seed}", seed, [0.1, float(right.mean())], method=method, **how)
    write_outcomes(
        folder, 2, {c: Outcomes({"knn": of.astype(np.uint8)}, {"knn": 1}) for c, of in by_client.items()}, LABELS
    )
    return folder


def compared(root: Path, right: Mapping[str, list[np.ndarray]]) -> Comparison:
    return of_variants(
        {name: [folder_of(root, name, seed, of) for seed, of in enumerate(each)] for name, each in right.items()}
    )


def second(made: Comparison, measure: str = "knn") -> Difference:
    found = made.rows[1].difference(made.first, measure)
    assert found is not None
    return found


def test_of_one_seed_the_interval_is_scipys_over_images(tmp_path: Path) -> None:
    right = answers(0, seeds=1)
    found = second(compared(tmp_path, right))
    theirs = scipy.stats.ttest_rel(right["b"][0].astype(float), right["a"][0].astype(float)).confidence_interval(0.95)
    assert isinstance(found.drawn, DrawnInterval)
    assert (found.drawn.low, found.drawn.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert (found.low, found.over, found.drawn.count) == (None, "test images of one seed", IMAGES)
    assert found.interval == (found.drawn.low, found.drawn.high)
    assert found.judged() == "above"


def test_of_several_seeds_it_is_around_the_paired_mean_and_they_are_judged_by_it(tmp_path: Path) -> None:
    right = answers(1)
    found = second(compared(tmp_path, right))
    apart = np.stack(right["b"]).astype(float) - np.stack(right["a"])
    assert isinstance(found.drawn, DrawnInterval)
    middle, half = (found.drawn.low + found.drawn.high) / 2, (found.drawn.high - found.drawn.low) / 2
    assert (middle, half) == (pytest.approx(apart.mean()), pytest.approx(half_width(apart)))
    assert found.mean == pytest.approx(apart.mean())
    assert found.low is not None
    assert found.drawn.low < found.low  # the interval over seeds is as it was, and narrower
    theirs = scipy.stats.ttest_1samp(apart.mean(axis=1), 0).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert found.over == "seeds and test images"


def steady(apart: int) -> Right:
    """Two rows whose difference is the same in every seed: ``apart`` images more right, of others as many less."""
    a = np.arange(IMAGES) < 120
    b = a.copy()
    b[:10], b[120 : 130 + apart] = False, True
    return {"a": [a] * 3, "b": [b] * 3}


def test_what_seeds_alone_would_call_above_images_do_not_tell_apart(tmp_path: Path) -> None:
    """In three seeds the same six images: an interval over seeds would have no width, so there is none."""
    made = compared(tmp_path, steady(6))
    found = second(made)
    assert (found.mean, found.low, found.high) == (pytest.approx(0.03), None, None)
    assert found.judged() == "not told apart"
    record = records(made)[1]
    assert (record["knn.verdict"], record["knn.verdict_over"]) == ("not told apart", "seeds and test images")
    assert record["knn.low"] is None
    half = 1.97196 * np.std([-1] * 10 + [1] * 16 + [0] * 174, ddof=1) / math.sqrt(IMAGES)  # t of 199, from a table
    assert (record["knn.images_low"], record["knn.images_high"]) == (
        pytest.approx(0.03 - half, rel=1e-5), pytest.approx(0.03 + half, rel=1e-5),
    )  # fmt: skip
    cell = cells(made)[1][1][1]
    assert cell == (
        "0.630 ± 0.000", "+0.030", f"images [{0.03 - half:+.3f}, {0.03 + half:+.3f}]",
        "not told apart",
    )  # fmt: skip


OWN = {"a": [0.0, 0.1, -0.1, 0.02, 0.0], "b": [0.1, 0.16, 0.02, 0.04, 0.03]}  # by client, beside ..
FINALS = {"a": [0.5, 0.6, 0.4], "b": [0.53, 0.61, 0.41]}  # .. these by seed


def own_rows(root: Path, seeds: int) -> tuple[Comparison, np.ndarray]:
    """Two rows with accuracies on clients' own test images, and (n, 5) the differences by seed and client."""
    rows: dict[str, list[Path]] = {}
    values = {
        row: np.array(finals[:seeds])[:, None] + np.outer(np.arange(1, seeds + 1), OWN[row])
        for row, finals in FINALS.items()
    }
    for row, finals in FINALS.items():
        method = "fedsimclr" if row == "a" else "fedprox"
        for seed, final in enumerate(finals[:seeds]):
            own = list(values[row][seed] - final)
            rows.setdefault(row, []).append(run_folder(root / f"{row}{seed}", seed, [final], method=method, own=own))
    return of_variants(rows), values["b"] - values["a"]


def test_of_one_seed_own_accuracies_are_paired_by_client(tmp_path: Path) -> None:
    made, apart = own_rows(tmp_path, 1)
    found = second(made, "own_knn")
    theirs = scipy.stats.ttest_1samp(apart[0], 0).confidence_interval(0.95)
    assert isinstance(found.drawn, DrawnInterval)
    assert (found.drawn.low, found.drawn.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert (found.over, found.drawn.count, found.judged()) == ("clients of one seed", 5, "above")
    assert "; clients: its 95% interval over those of this seed, so another seed may" in " ".join(notes(made))


def test_of_several_seeds_own_accuracies_are_paired_by_seed_and_client(tmp_path: Path) -> None:
    made, apart = own_rows(tmp_path, 3)
    found = second(made, "own_knn")
    assert isinstance(found.drawn, DrawnInterval)
    assert (found.drawn.high - found.drawn.low) / 2 == pytest.approx(half_width(apart))
    assert (found.mean, found.over) == (pytest.approx(apart.mean()), "seeds and clients")
    record = records(made)[1]
    assert (record["own_knn.clients_low"], record["own_knn.clients_high"]) == (found.drawn.low, found.drawn.high)
    assert "own_knn.images_low" not in record
    head, rows = cells(made)
    assert rows[1][head.index("own_knn")][2] == f"clients [{found.drawn.low:+.3f}, {found.drawn.high:+.3f}]"
    assert "; clients: its 95% interval that counts clients, too; the words rest on it" in " ".join(notes(made))
    other = dataclasses.replace(made.first.runs[1], by_client={"own_knn": {0: 0.5, 1: 0.5}})
    elsewhere = client_differences(made.rows[1].runs, {**made.first.runs, 1: other}, [0, 1, 2], "own_knn")
    assert elsewhere == OTHER_CLIENTS


@pytest.mark.parametrize("seeds", [1, 2])
def test_clients_that_differ_alike_say_nothing_of_others(seeds: int, tmp_path: Path) -> None:
    """0.8 - 0.7 and 0.5 - 0.4 differ by rounding alone."""
    rows: dict[str, list[Path]] = {}
    for row, own in (("a", [0.7, 0.8, 0.4]), ("b", [0.8, 0.9, 0.5])):
        method = "fedsimclr" if row == "a" else "fedprox"
        for seed in range(seeds):
            rows.setdefault(row, []).append(run_folder(tmp_path / f"{row}{seed}", seed, [0.0], method=method, own=own))
    found = second(of_variants(rows), "own_knn")
    assert (found.drawn, found.mean) == (ALIKE, pytest.approx(0.1))
    assert found.judged() != "above" or seeds > 1


def test_what_a_score_is_a_mean_over() -> None:
    assert {drawn(name) for name in ("own_knn", "task", "task_auc", "select/task")} == {"clients"}
    assert {drawn(name) for name in ("knn", "taskonomy")} == {"test images"}
    assert drawn("select/knn") == "held-out images"


@pytest.mark.long
def test_the_page_has_the_interval_that_counts_clients(tmp_path: Path) -> None:
    made, _ = own_rows(tmp_path, 3)
    drawn = second(made, "own_knn").drawn
    assert isinstance(drawn, DrawnInterval)
    write(made, tmp_path / "out")
    first, row = json.loads((tmp_path / "out/comparison.json").read_text())["rows"][:2]
    assert first["pairs"]["b"]["own_knn"]["clients"] == 5
    beside = against(row, first, "own_knn", ["0", "1", "2"])
    assert beside is not None
    assert (beside.low, beside.of) == (pytest.approx(drawn.low), "3 seeds and 5 clients")
    told = page.report(tmp_path / "out").read_text()
    assert "and the interval that counts clients too, by which it is judged" in told
    assert "clients [" in told


@pytest.mark.long
def test_of_one_seed_held_out_accuracies_have_what_their_number_allows(tmp_path: Path) -> None:
    finals, rows = {"a": 0.5, "b": 0.9}, {}
    for name, final in finals.items():
        method = "fedsimclr" if name == "a" else "fedprox"
        rows[name] = [run_folder(tmp_path / name, 0, [final], method=method, held_out=list(range(9)))]
    made = of_variants(rows)
    found = second(made, "select/knn")
    low, high = of_difference(0.45, 0.25, 9)
    assert found.drawn == DrawnInterval(low, high, 9, "held-out images")
    assert (found.over, found.judged()) == ("held-out images of one seed", "not told apart")
    column = cells(made)[0].index("select/knn")
    assert cells(made)[1][1][column] == (
        "0.450", "+0.200", f"images [{low:+.3f}, {high:+.3f}]", "not told apart, one seed",
    )  # fmt: skip
    assert records(made)[1]["select/knn.images_low"] == low
    told = " ".join(notes(made))
    assert "images: its 95% interval over the held-out images of this one seed, so another seed may" in told
    assert "An interval over them takes answers as independent, so it may be too wide." in told
    write(made, tmp_path / "out")
    assert "<small>not told apart, one seed</small>" in page.report(tmp_path / "out").read_text()


def test_without_a_share_and_its_number_held_out_accuracies_have_no_interval(tmp_path: Path) -> None:
    methods = ("fedsimclr", "fedprox")
    made = of_variants(
        {
            name: [run_folder(tmp_path / f"{name}{seed}", seed, [0.5], method=name, held_out=[seed]) for seed in (0, 1)]
            for name in methods
        }
    )
    a, b = made.first.runs, made.rows[1].runs
    assert drawn_interval(b, a, [0, 1], "select/knn") == BY_SEED
    older = {**b, 1: dataclasses.replace(b[1], held_out=None)}
    assert drawn_interval(older, a, [0, 1], "select/knn") == NOT_COUNTED
    for worth in (-3.0, 1.5, math.nan):
        odd = {0: dataclasses.replace(b[0], values={**b[0].values, "select/knn": worth})}
        assert drawn_interval(odd, a, [0], "select/knn") == NOT_COUNTED


@pytest.mark.parametrize(
    ("held_out", "why", "told"),
    [
        (([0, 1], [2, 3]), BY_SEED, "Each seed holds out other ones, so intervals over seeds count which were drawn."),
        (([0, 1], [0, 1]), HELD_ALIKE, "Intervals of differences count seeds alone, and of few images may be far too"),
    ],
)
def test_of_several_seeds_held_out_images_are_counted_by_seeds(
    held_out: tuple[list[int], ...], why: str, told: str, tmp_path: Path
) -> None:
    made = of_variants(
        {
            method: [
                run_folder(tmp_path / f"{method}{seed}", seed, [0.5 + apart * seed], method=method, held_out=chosen)
                for seed, chosen in enumerate(held_out)
            ]
            for method, apart in (("fedsimclr", 0.1), ("fedprox", 0.2))
        }
    )
    found = second(made, "select/knn")
    assert (found.drawn, found.over) == (why, "seeds")
    assert told in " ".join(notes(made))


def test_the_main_accuracy_is_the_first_column_and_own_ones_stand_behind() -> None:
    names = ["features/rankme", "fewshot", "knn", "linear", "own_knn", "select/knn", "select/linear", "semi_1", "task"]
    rows = (Row("a", {name: {0: 0.5} for name in names}, unfinished={"seed 1": "waiting"}),)
    assert Comparison(rows).measures == [
        "linear", "knn", "fewshot", "task", "semi_1", "own_knn", "select/linear", "select/knn", "features/rankme",
    ]  # fmt: skip


def test_clients_with_encoders_of_their_own_count_by_their_mean(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    own, a = rng.random((3, IMAGES)) < 0.7, rng.random(IMAGES) < 0.6
    made = of_variants({"a": [folder_of(tmp_path, "a", 0, a)], "b": [folder_of(tmp_path, "b", 0, own)]})
    (row,) = np.asarray(image_differences(made.rows[1].runs, made.first.runs, [0], "knn"))
    assert row == pytest.approx((own[0].astype(float) + own[1] + own[2]) / 3 - a)


def test_balanced_accuracies_and_areas_are_paired_over_seeds_and_images(tmp_path: Path) -> None:
    """The balanced one by its accuracy's answers and the labels, an area by what each image contributes to it."""
    rng, labels, index = np.random.default_rng(9), np.repeat(np.arange(3), (120, 60, 20)), np.arange(IMAGES)
    (known,) = compared(tmp_path, answers(0, seeds=1)).first.runs.values()

    def run(share: float) -> tuple[OneRun, np.ndarray, np.ndarray]:
        right, area = (rng.random(IMAGES) < share).astype(float), 0.8 + rng.normal(0, 0.3, IMAGES)
        balanced = float(np.mean([right[labels == label].mean() for label in range(3)]))
        values = {"knn": float(right.mean()), "knn_balanced_accuracy": balanced, "knn_auc": float(area.mean())}
        outcomes = ImageShares(2, index, labels, {"knn": right, "knn_auc": area})
        return dataclasses.replace(known, values=values, outcomes=outcomes), right, area

    a, b = ([run(share) for _ in range(3)] for share in (0.6, 0.7))
    own, theirs = (dict(enumerate(one for one, _, _ in each)) for each in (b, a))
    rights, areas = (np.array([mine[k] - its[k] for mine, its in zip(b, a, strict=True)]) for k in (1, 2))
    for measure, half in (
        ("knn_balanced_accuracy", balanced_half_width(rights, labels)),
        ("knn_auc", half_width(areas)),
    ):
        found = drawn_interval(own, theirs, [0, 1, 2], measure)
        assert isinstance(found, DrawnInterval)
        assert found.count == IMAGES
        apart = np.mean([own[seed].values[measure] - theirs[seed].values[measure] for seed in range(3)])
        assert (found.low + found.high) / 2 == pytest.approx(apart)
        assert (found.high - found.low) / 2 == pytest.approx(half)
        wrong = {0: dataclasses.replace(own[0], values={**own[0].values, measure: 0.5})}
        assert image_differences(wrong, theirs, [0], measure) == OTHER_NUMBERS
    assert drawn_interval(own, own, [0], "knn_auc") == IMAGES_ALIKE
    assert isinstance(drawn_interval(own, own, [0], "knn_balanced_accuracy"), DrawnInterval)


def test_why_there_is_no_such_interval_is_said(tmp_path: Path) -> None:
    made = compared(tmp_path / "whole", answers(4))
    assert second(made, "select/knn").drawn == NOT_COUNTED
    assert second(made, "features/rank").drawn == NOT_OF_IMAGES
    untrained = made.rows[2].difference(made.first, "knn")
    assert untrained is not None
    assert (untrained.drawn, untrained.over) == (LACKING, "seeds")
    assert drawn_interval({}, made.first.runs, [0], "knn") == NO_RUN
    of_one = made.rows[1].runs, made.first.runs

    def reason(change: Mapping[str, Any]) -> object:
        runs = dict(of_one[0])
        runs[1] = dataclasses.replace(runs[1], **change)
        return image_differences(runs, of_one[1], [0, 1, 2], "knn")

    outcomes = of_one[0][1].outcomes
    assert outcomes is not None
    assert not isinstance(reason({}), str)
    assert reason({"outcomes": None}) == LACKING
    assert reason({"values": {**of_one[0][1].values, "knn": 0.5}}) == OTHER_NUMBERS
    assert reason({"outcomes": dataclasses.replace(outcomes, labels=outcomes.labels[::-1])}) == OTHER_IMAGES
    assert reason({"images": "x", "settings": {**of_one[0][1].settings, "data": {"path": "elsewhere"}}}) == OTHER_IMAGES
    assert image_differences(*of_one, [0, 1, 2], "knn_auc") == NOT_OF_IMAGES


@pytest.mark.long
def test_a_table_says_which_of_two_intervals_it_has(tmp_path: Path) -> None:
    whole = compared(tmp_path / "whole", answers(5))
    assert any(
        note.startswith(
            "Second line: paired difference to a with its 95% interval (Student's t over seeds); images: its"
        )
        for note in notes(whole)
    )
    assert "Intervals count seeds" not in " ".join(notes(whole))
    assert "because" not in " ".join(notes(whole))
    (tmp_path / "whole" / "b-1" / FILE).unlink()
    runs = {name: [tmp_path / "whole" / f"{name}-{seed}" for seed in range(3)] for name in ("a", "b")}
    older = of_variants(runs)
    assert second(older).over == "seeds"
    assert f"Of b (knn): the interval counts seeds alone, because {LACKING}." in notes(older)
    assert any(note.startswith("Intervals count seeds, not which test images were drawn") for note in notes(older))
    assert "images [" not in markdown(older)
    one = compared(tmp_path / "one", answers(5, seeds=1))
    assert any("images: its 95% interval over the test images of this one seed" in note for note in notes(one))
    level = compared(tmp_path / "level", {name: each[:1] for name, each in steady(0).items()})
    assert cells(level)[1][1][1][1:] == ("0.000", "images [-0.044, +0.044]", "not told apart, one seed")


def test_a_file_of_shares_that_is_damaged_is_named(tmp_path: Path) -> None:
    from rayfed_ssl.base.schema import UserError

    folder = folder_of(tmp_path, "a", 0, answers(6)["a"][0])
    (folder / FILE).write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"outcomes\.parquet: cannot be read"):
        of_variants({"a": [folder]})


@pytest.mark.long
def test_the_files_hold_every_pair_of_rows(tmp_path: Path) -> None:
    right = answers(7)
    right["c"] = right["b"][::-1]
    made = compared(tmp_path, right)
    write(made, tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "comparison.parquet").to_pylist() == records(made)
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())["rows"]
    assert [sorted(row["pairs"]) for row in rows] == [["b", "c"], ["c"], [], [], []]
    apart = np.stack(right["b"]).astype(float) - np.stack(right["c"])
    found = rows[1]["pairs"]["c"]["knn"]
    assert (found["seeds"], found["test_images"]) == (["0", "1", "2"], IMAGES)
    assert found["low"] == pytest.approx(apart.mean() - half_width(apart))
    assert found["high"] == pytest.approx(apart.mean() + half_width(apart))


@pytest.mark.long
def test_the_page_judges_by_the_same_intervals(tmp_path: Path) -> None:
    made = compared(tmp_path, steady(6))
    write(made, tmp_path / "out")
    text = page.report(tmp_path / "out").read_text()
    assert "over 3 seeds and 200 test images contains" in text
    lines = ("+3.0", "images [−2.0, +8.0]", "not told apart")
    assert " ".join(f"<small>{line}</small>" for line in lines) in text
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())["rows"]
    trained = [row for row in rows if row["runs"]]
    sentence = page.verdict(trained, ["knn"]).sentence
    assert "of the others 1 is not told apart from it" in sentence
    assert "counts seeds, not which test images were drawn" not in sentence
    one, other = (against(*pair, "knn", ["0", "1", "2"]) for pair in (trained, trained[::-1]))
    assert one is not None
    assert other is not None
    assert (one.mean, other.mean) == (pytest.approx(-0.03), pytest.approx(0.03))
    assert (other.low, other.high) == (-(one.high or 0.0), -(one.low or 0.0))
    trained[0]["pairs"]["b"]["knn"]["seeds"] = ["0", "1"]  # not those that the rows are ordered by
    assert "3.0 points before a" in page.verdict(trained, ["knn"]).sentence
    for row in trained:
        row["pairs"] = {}
    told = page.verdict(trained, ["knn"]).sentence
    assert "3.0 points before a" in told
    assert "All seeds in common differ alike, so there is no interval: what is apart may be so by chance" in told
    write_json(tmp_path / "out" / "comparison.json", {"rows": rows, "measures": ["knn"]})
    assert "seeds and 200" not in page.report(tmp_path / "out").read_text()
