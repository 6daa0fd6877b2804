"""The best row of a comparison by what reads no test label."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records.comparison import Comparison, Row
from rayfed_ssl.records.comparison_choice import Order, choice, in_order, named
from rayfed_ssl.records.comparison_rows import of_runs
from rayfed_ssl.testing.tiny import run_locally, tiny_run

RANKS = {"a": [50.0, 54.0, 52.0], "b": [60.0, 63.0, 66.0], "c": [61.0, 61.0, 64.0]}

CHANCE = "; the best of 3 is so partly by chance, and one as good may be told apart from it"


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


def test_the_highest_mean_wins_and_what_is_not_told_apart_is_named() -> None:
    pairs = np.array(RANKS["c"]) - np.array(RANKS["b"])
    low, high = stats.t.interval(0.95, 2, loc=pairs.mean(), scale=stats.sem(pairs))
    assert low < 0 < high
    assert choice(rows(), "rankme").sentence == (
        "chosen by rankme, by no labels: b (63); not told apart from it: c" + CHANCE
    )
    assert choice(rows(), "rankme").level == ()
    near = {"a": [0.5, 0.52, 0.51], "b": [0.501, 0.519, 0.509]}
    made = Comparison(
        tuple(Row(n, {"select/knn": dict(enumerate(of))}, unfinished={"s": "w"}) for n, of in near.items())
    )
    assert choice(made, "select.knn").sentence == "chosen by select.knn, by held-out labels: a (0.51); level with it: b"
    made = Comparison(tuple(Row(n, {"select/knn": {0: 0.99996}}, unfinished={"s": "w"}) for n in near))
    assert choice(made, "select.knn").sentence.startswith("chosen by select.knn, by held-out labels: a (>.9999); of ")


def test_smaller_is_better_for_uniformity_and_labels_are_named() -> None:
    assert choice(rows(), "uniformity").sentence.startswith("chosen by uniformity, by no labels: b (-63)")
    told = choice(rows(), "select.knn").sentence
    assert told == "chosen by select.knn, by held-out labels: a (-52); every other is told apart from it" + CHANCE


def test_one_seed_decides_nothing() -> None:
    assert choice(rows(1), "rankme").sentence == (
        "chosen by rankme, by no labels: c (61); of one seed, so differences may be chance"
    )


def test_a_measure_is_asked_for_as_the_table_names_it_too() -> None:
    assert named("select/knn") == named("select.knn") == "select/knn"


@pytest.mark.parametrize("asked", ["select/a/b", "select", "knn", "spectrum/000", "features/rankme", "select.a.b", ""])
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

    assert choice(Elsewhere(rows().rows), "rankme").sentence.startswith("chosen by rankme, by no labels: c (62)")


def seen(name: str, values: dict[int, float], missing: int = 0) -> Row:
    return Row(name, {"features/rankme": values}, unfinished={f"seed {90 + i}": "diverged" for i in range(missing)})


def chosen(*made: Row) -> str:
    return choice(Comparison(made), "rankme").sentence.removeprefix("chosen by rankme, by no labels: ")


def test_rows_are_ordered_over_the_seeds_that_all_have() -> None:
    seed = {0: 20.0, 1: 0.0, 2: -10.0}  # what a seed adds to everybody; b is better by two in each
    a, b = seen("a", {0: 50 + seed[0]}), seen("b", {s: 52 + of for s, of in seed.items()})
    # none is whole in these rows, whose runs are not given: all that is there counts
    a, b = (Row(row.name, row.values, unfinished={"seed 90": "waiting"}) for row in (a, b))
    assert chosen(a, b) == "b (72 over 1 seed that all have); of one seed, so differences may be chance"
    assert chosen(b, seen("c", {0: 71.5, 1: 51.5, 2: 41.6, 3: 99.0}, 1)) == (
        "b (55.33 over 3 seeds that all have); every other is told apart from it"  # below by 0.5, 0.5 and 0.4
    )
    assert chosen(a, seen("d", {7: 1.0}, 1)) == "none, because the rows have no seed in common"


def test_a_row_whose_runs_diverged_is_not_chosen() -> None:
    found = in_order(
        {"a": {"0": 0.9, "1": 0.6}, "b": {"0": 0.95}, "c": {"1": 0.5, "0": 0.9}, "d": {}},
        {"a": 0, "b": 2, "c": 0, "d": 3},
    )
    assert found == Order({"a": 0.75, "c": 0.7}, ("0", "1"), False, {"b": "1 of 3 seeds", "d": "0 of 3 seeds"})
    assert list(in_order({"a": {"0": 2.0}, "b": {"0": 1.0}}, {"a": 0, "b": 0}, smaller=True).means) == ["b", "a"]
    assert in_order({"a": {"0": 2.0}, "b": {"1": 1.0}}, {"a": 0, "b": 0}).means == {}
    assert in_order({"d": {}}, {"d": 1}) == Order({}, (), False, {"d": "0 of 1 seeds"})


@pytest.mark.long
def test_what_diverged_is_named_beside_the_choice(tmp_path: Path) -> None:
    """Of runs on disk: the one whose other seed diverged has the highest rank."""
    for name, rounds in (("one", 1), ("two", 2)):
        for seed in (0, 1):
            run_locally(
                tiny_run("fedsimclr", {"train.rounds": rounds, "seed": seed, "evaluation.protocols": ["rank"]}),
                tmp_path / f"{name}{seed}",
            )
    folders = [tmp_path / f"{name}{seed}" for name in ("one", "two") for seed in (0, 1)]
    names = {"two": "fedsimclr (train.rounds=2)", "one": "fedsimclr"}
    before = choice(of_runs(folders), "rankme").sentence.split("labels: ")[1]
    best = next(folder for folder, name in names.items() if before.startswith(f"{name} ("))
    path = tmp_path / f"{best}1" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "diverged"}))
    after = choice(of_runs(folders), "rankme").sentence
    assert not after.split("labels: ")[1].startswith(before.split(";")[0])
    assert after.endswith(f"; not ranked: {names[best]} (1 of 2 seeds)")
