"""The leaderboard's signs: what is told apart, where data sets differ, what did nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from boards import absolute, rows, verdicts
from scipy import stats

from tests.benchmarks.boards.test_overall import DOWN, OPEN, SAME, UNSURE, UP, cells, made
from tests.benchmarks.made import row

BOARD = rows.load_board()
ODD = [0.03, 0.031, 0.029, -0.03, -0.031, -0.029]  # above on one data set, below on the other


def signs(gains: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    text = verdicts.verdicts(made(gains), BOARD)
    return {method: cells(text, f"`{method}`")[1:] for method in gains if method not in BOARD["references"]}


def test_a_sign_is_by_the_interval_alone() -> None:
    found = signs({"fedca": UP, "fedsc": DOWN, "fedx": OPEN, "fedprox": SAME, "fedu": UNSURE, "local": DOWN})
    for method, sign in (("fedca", "+†"), ("fedsc", "−†"), ("fedx", "?"), ("fedprox", "="), ("fedu", "+")):
        assert found[method][:3] == [sign] * 3
    assert found["fedprox"][3:5] == ["= = =", "= = ="]
    assert found["fedprox"][5:] == ["+†"] * 3
    assert found["fedsc"][5:] == ["="] * 3


def test_where_data_sets_differ_in_sign_there_is_none_for_both_and_a_mark_where_in_size() -> None:
    assert stats.ttest_ind(ODD[:3], ODD[3:], equal_var=False).pvalue < 0.05
    assert stats.ttest_ind(UP[:3], UP[3:], equal_var=False).pvalue > 0.05
    gains = {"fedca": ODD, "fedsc": UP, "fedx": [0.03, 0.031, 0.029, 0.06, 0.061, 0.059], "local": DOWN}
    found = signs(gains)
    assert found["fedx"][:3] == ["+† ≠"] * 3
    assert found["fedca"][:5] == ["≠", "≠", "≠", "+ + +", "− − −"]
    assert found["fedsc"][0] == "+†"
    text = verdicts.verdicts(made(gains), BOARD)
    assert "(Welch's t test at 5%, 6 of 9, where chance alone would make about 0)" in text


def test_tuned_methods_of_one_data_set_are_told_apart_from_the_tuned_reference() -> None:
    plain = made({"fedca": DOWN})
    tuned = [{**each, "table": rows.TUNED} for each in made({"fedca": UP}) if each["data"] == "cifar10"]
    shown = {kind: verdicts.verdicts([*plain, *tuned], BOARD, kind) for kind in (rows.ONE, rows.TUNED)}
    assert cells(shown[rows.ONE], "`fedca`")[1].startswith("−")
    assert cells(shown[rows.TUNED], "`fedca`")[1:] == ["+"] * 3 + ["-"] * 3  # Holm's correction of three leaves none
    assert "alone" not in shown[rows.TUNED].splitlines()[0]


def test_accuracies_are_means_over_partitions_of_seeds_that_are_complete_in_all() -> None:
    known = made({"centralized": UP})
    known = [one for one in known if (one["method"], one["partition"], one["seed"]) != ("centralized", "iid", 2)]
    text = absolute.absolute(known, BOARD)
    of_seeds = [fmean(0.4 + 0.02 * place + 0.03 * seed for place in range(3)) for seed in range(3)]
    assert cells(text, "`fedsimclr`")[1] == f"{fmean(of_seeds):.3f} ± {stdev(of_seeds):.3f}"
    pooled = [of_seeds[0] + UP[0], of_seeds[1] + UP[1]]  # seed 2 lacks a partition
    assert cells(text, "`centralized`")[1] == f"{fmean(pooled):.3f} ± {stdev(pooled):.3f}"
    assert cells(text, "raw pixels")[1:4] == ["-", "-", "0.100 ± 0.000"]
    assert absolute.absolute([], BOARD) == "Accuracies: not run yet."


def test_a_method_that_ends_where_another_does_is_named_by_the_size_of_its_differences() -> None:
    swings = [0.02, -0.02, 0.02, -0.02, 0.02, -0.02]  # zero in the mean, and far from doing nothing
    text = absolute.inert(made({"fedprox": SAME, "fedx": swings, "local": DOWN}), BOARD)
    mean, largest = fmean(map(abs, SAME)), max(map(abs, SAME))
    assert cells(text, "`fedprox`")[1:] == ["`fedsimclr`", "18", *[f"{mean:.4f} ({largest:.4f})"] * 3]
    assert "fedx" not in text
    assert len(text.splitlines()) == 3
    assert absolute.inert(made({"fedx": swings}), BOARD) == "No method ends within that of a simpler one."


def test_what_made_the_rows_is_counted() -> None:
    known = [row("fedca", seed, machine="a", torch="2.1" if seed else "2.0") for seed in range(3)]
    assert absolute.made_with(known, BOARD) == "Of the leaderboard's 3 rows 3 on a; 2 with torch 2.1, 1 with torch 2.0."
