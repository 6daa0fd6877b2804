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

from rayfed_ssl.evaluation import Outcomes
from rayfed_ssl.records.comparison import Comparison, Difference
from rayfed_ssl.records.comparison_files import cells, markdown, records, write
from rayfed_ssl.records.comparison_notes import notes
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.records.crossed import half_width
from rayfed_ssl.records.image_pairs import (
    LACKING,
    NO_RUN,
    NOT_OF_IMAGES,
    OTHER_IMAGES,
    OTHER_NUMBERS,
    ImageInterval,
    image_differences,
)
from rayfed_ssl.records.outcomes import FILE, write_outcomes
from rayfed_ssl.records.tables import write_json
from rayfed_ssl.report import comparison as page
from rayfed_ssl.report.comparison_verdict import against
from tests.records.test_comparison import run_folder

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
    assert isinstance(found.images, ImageInterval)
    assert (found.images.low, found.images.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert (found.low, found.over, found.images.images) == (None, "test images of one seed", IMAGES)
    assert found.interval == (found.images.low, found.images.high)
    assert found.judged() == "above"


def test_of_several_seeds_it_is_around_the_paired_mean_and_they_are_judged_by_it(tmp_path: Path) -> None:
    right = answers(1)
    found = second(compared(tmp_path, right))
    apart = np.stack(right["b"]).astype(float) - np.stack(right["a"])
    assert isinstance(found.images, ImageInterval)
    middle, half = (found.images.low + found.images.high) / 2, (found.images.high - found.images.low) / 2
    assert (middle, half) == (pytest.approx(apart.mean()), pytest.approx(half_width(apart)))
    assert found.mean == pytest.approx(apart.mean())
    assert found.low is not None
    assert found.images.low < found.low  # the interval over seeds is as it was, and narrower
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
    """In three seeds the same six images: the interval over seeds has no width."""
    made = compared(tmp_path, steady(6))
    found = second(made)
    assert found.low == pytest.approx(found.high)
    assert (found.mean, found.low) == (pytest.approx(0.03), pytest.approx(0.03))
    assert found.judged() == "not told apart"
    record = records(made)[1]
    assert (record["knn.verdict"], record["knn.verdict_over"]) == ("not told apart", "seeds and test images")
    assert record["knn.low"] == pytest.approx(0.03)
    half = 1.97196 * np.std([-1] * 10 + [1] * 16 + [0] * 174, ddof=1) / math.sqrt(IMAGES)  # t of 199, from a table
    assert (record["knn.images_low"], record["knn.images_high"]) == (
        pytest.approx(0.03 - half, rel=1e-5), pytest.approx(0.03 + half, rel=1e-5),
    )  # fmt: skip
    cell = cells(made)[1][1][1]
    assert cell == (
        "0.630 ± 0.000", "+0.030 [+0.030, +0.030]", f"images [{0.03 - half:+.3f}, {0.03 + half:+.3f}]",
        "not told apart",
    )  # fmt: skip


def test_clients_with_encoders_of_their_own_count_by_their_mean(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    own, a = rng.random((3, IMAGES)) < 0.7, rng.random(IMAGES) < 0.6
    made = of_variants({"a": [folder_of(tmp_path, "a", 0, a)], "b": [folder_of(tmp_path, "b", 0, own)]})
    (row,) = np.asarray(image_differences(made.rows[1].runs, made.first.runs, [0], "knn"))
    assert row == pytest.approx((own[0].astype(float) + own[1] + own[2]) / 3 - a)


def test_why_there_is_no_such_interval_is_said(tmp_path: Path) -> None:
    made = compared(tmp_path / "whole", answers(4))
    assert second(made, "select/knn").images == NOT_OF_IMAGES
    untrained = made.rows[2].difference(made.first, "knn")
    assert untrained is not None
    assert (untrained.images, untrained.over) == (NO_RUN, "seeds")
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
    assert cells(level)[1][1][1][1:] == ("+0.000", "images [-0.044, +0.044]", "not told apart, one seed")


def test_a_file_of_shares_that_is_damaged_is_named(tmp_path: Path) -> None:
    from rayfed_ssl.base.schema import UserError

    folder = folder_of(tmp_path, "a", 0, answers(6)["a"][0])
    (folder / FILE).write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"outcomes\.parquet: cannot be read"):
        of_variants({"a": [folder]})


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


def test_the_page_judges_by_the_same_intervals(tmp_path: Path) -> None:
    made = compared(tmp_path, steady(6))
    write(made, tmp_path / "out")
    text = page.report(tmp_path / "out").read_text()
    assert (
        "over 3 seeds and 200 test images (over 3 seeds alone where no answers image by image are kept) holds" in text
    )
    assert "[+3.0, +3.0] images [−2.0, +8.0] not told apart" in text
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
    assert "counts seeds, not which test images were drawn" in told
    write_json(tmp_path / "out" / "comparison.json", {"rows": rows, "measures": ["knn"]})
    assert "seeds and 200" not in page.report(tmp_path / "out").read_text()
