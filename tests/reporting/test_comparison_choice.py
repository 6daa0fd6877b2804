"""The best row of a comparison by what reads no test label."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.reporting.comparison import Comparison, Row
from rayfed_ssl.reporting.comparison_choice import choice, named

RANKS = {"a": [50.0, 54.0, 52.0], "b": [60.0, 63.0, 66.0], "c": [61.0, 61.0, 64.0]}


def rows(seeds: int = 3) -> Comparison:
    made = []
    for name, ranks in RANKS.items():
        seen = dict(enumerate(ranks[:seeds]))
        values = {
            "knn": {seed: 1 - rank / 100 for seed, rank in seen.items()},
            "features/rankme": seen,
            "features/uniformity": {seed: -rank for seed, rank in seen.items()},
            "features/spectrum/000": seen,
            "select/knn": {seed: -rank for seed, rank in seen.items()},
        }
        made.append(Row(name, values, unfinished={"seed 9": "waiting"}))
    return Comparison(tuple(made))


def test_the_highest_mean_wins_and_what_is_level_is_named() -> None:
    pairs = np.array(RANKS["c"]) - np.array(RANKS["b"])
    low, high = stats.t.interval(0.95, 2, loc=pairs.mean(), scale=stats.sem(pairs))
    assert low < 0 < high
    assert choice(rows(), "rankme") == "chosen by rankme, by no labels: b (63); level with it: c"


def test_smaller_is_better_for_uniformity_and_labels_are_named() -> None:
    assert choice(rows(), "uniformity").startswith("chosen by uniformity, by no labels: b (-63)")
    told = choice(rows(), "select.knn")
    assert told == "chosen by select.knn, by held-out labels: a (-52); no other is level with it"


def test_one_seed_decides_nothing() -> None:
    assert choice(rows(1), "rankme") == (
        "chosen by rankme, by no labels: c (61); of one seed each, so differences may be chance"
    )


@pytest.mark.parametrize("asked", ["knn", "spectrum/000", "features/rankme", "select.a.b", ""])
def test_what_reads_test_labels_or_is_no_measure_is_refused_before_anything_runs(asked: str) -> None:
    with pytest.raises(
        UserError, match=r"--select: found '.*'; allowed: alignment, uniformity, rankme, select.PROTOCOL"
    ):
        named(asked)
    with pytest.raises(UserError, match=r"allowed: alignment"):
        choice(rows(), asked)


def test_what_the_runs_do_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"found select\.linear; these runs have select\.knn, rankme, uniformity$"):
        choice(rows(), "select.linear")
    bare = Comparison((Row("a", {"knn": {0: 0.5}}, unfinished={"seed 1": "waiting"}),))
    with pytest.raises(UserError, match=r"nothing without test labels: name rank"):
        choice(bare, "rankme")


def test_rows_on_other_images_are_left_out() -> None:
    class Elsewhere(Comparison):
        @property
        def other_images(self) -> dict[str, list[int]]:
            return {"b": [0, 1, 2]}

    assert choice(Elsewhere(rows().rows), "rankme").startswith("chosen by rankme, by no labels: c (62)")
