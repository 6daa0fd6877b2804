"""The leaderboard's tables: means, paired differences, ranks, captions, and what is missing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from boards import budget, markdown, pairing, tables, tuning_tables
from scipy import stats

from tests.benchmarks.made import row, rows

BOARD = rows.load_board()


def lines_of(made: list[rows.Record]) -> dict[str, dict[str, str]]:
    """First cell -> column -> cell of the table of these rows."""
    text = tables.table(made, BOARD, "cifar10", "iid", rows.ONE)
    heads, _, *found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {cells[0]: dict(zip(heads, cells, strict=True)) for cells in found}


def test_a_table_shows_means_paired_differences_and_what_is_missing() -> None:
    ours, theirs = (0.52, 0.58, 0.55), (0.50, 0.51, 0.53)
    made = [row("fedca", s, v) for s, v in enumerate(ours)] + [row("fedsimclr", s, v) for s, v in enumerate(theirs)]
    found = lines_of([*made, row("fedprox", 0, None, status="diverged"), row("centralized", 0, 0.9)])
    pairs = np.subtract(ours, theirs)
    low, high = stats.t.interval(0.95, 2, pairs.mean(), stats.sem(pairs))
    cells = found["`fedca`"]
    assert cells["kNN"] == f"{np.mean(ours):.3f} ± {np.std(ours, ddof=1):.3f}"
    assert cells["kNN over fedsimclr"] == f"{pairs.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
    assert found["`fedsimclr`"]["kNN over fedsimclr"] == "-"
    assert found["`fedprox`"]["kNN"] == "diverged"
    assert [found[f"`{name}`"]["rank"] for name in ("fedca", "fedsimclr", "centralized")] == ["1", "2", "-"]
    (absent,) = [first for first, cells in found.items() if cells["kNN"] == "not run yet"]
    assert "`fedbyol`" in absent
    assert "`fedca`" not in absent
    assert list(found).index("`fedca`") < list(found).index("`fedsimclr`") < list(found).index("`centralized`")


@pytest.mark.parametrize("elsewhere", [{"machine": "another kind"}, {"torch": "1.0"}, {}])
def test_pairs_that_were_made_on_other_machines_or_by_another_torch_are_marked(elsewhere: dict[str, str]) -> None:
    made = [row("fedsimclr", 0, 0.5), row("fedsimclr", 1, 0.5), row("fedca", 0, 0.6), row("fedca", 1, 0.6, **elsewhere)]
    text = tables.table([*made, row("fedprox", 7, 0.9, **elsewhere)], BOARD, "cifar10", "iid", rows.ONE)
    assert ("| `fedca` * |" in text) == bool(elsewhere)
    assert ("Paired with runs of `fedsimclr` that were made on another kind of processor" in text) == bool(elsewhere)
    assert "| `fedprox` |" in text  # no pair


def test_a_column_stands_where_some_run_of_the_table_has_a_value() -> None:
    """1% of the labels is measured by a later command: it stands where all runs have it, untrained too."""
    made = [row("fedca"), row("fedsimclr", linear=0.6)]
    assert {"1% labels", "epsilon", "few-shot"}.isdisjoint(lines_of(made)["`fedca`"])
    assert [lines_of(made)[name]["linear"] for name in ("`fedca`", "`fedsimclr`")] == ["-", "0.600"]
    assert "1% labels" not in lines_of([row("fedca"), row("fedsimclr", semi_1=0.3, untrained_semi_1=0.1)])["`fedca`"]
    found = lines_of([row("fedca", semi_1=0.4), row("fedsimclr", semi_1=0.3, untrained_semi_1=0.1)])
    assert [found[name]["1% labels"] for name in ("untrained", "`fedca`", "`fedsimclr`")] == ["0.100", "0.400", "0.300"]


def test_among_mixed_architectures_those_that_both_end_with_are_compared() -> None:
    """A student is compared with the clients of its architecture: the others gain less whatever trains them."""

    def scores(**knn: float) -> str:
        return json.dumps({name: {"knn": value, "linear": value + 0.1} for name, value in knn.items()})

    alone, student, both = (0.50, 0.52, 0.54), (0.52, 0.55, 0.55), (0.51, 0.51, 0.57)
    made = [
        row(method, seed, 0.9, linear=0.9, table=rows.MIXED, by_encoder=by)
        for seed in range(3)
        for method, by in (
            ("local", scores(a=alone[seed], b=0.3)), ("flesd", scores(a=student[seed])),
            ("feddf", scores(b=0.3, a=both[seed], c=0.7)),
        )
    ]  # fmt: skip
    text = tables.table(made, BOARD, "cifar10", "iid", rows.MIXED)
    heads, _, *found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    lines = {cells[0]: dict(zip(heads, cells, strict=True)) for cells in found}
    for method, pairs in (
        ("flesd", np.subtract(student, alone)),
        ("feddf", np.subtract(both, alone) / 2),  # b is the same; c is nobody's in the other
    ):
        low, high = stats.t.interval(0.95, 2, pairs.mean(), stats.sem(pairs))
        for measure in ("kNN", "linear"):
            assert lines[f"`{method}`"][f"{measure} over local"] == f"{pairs.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
    assert [lines[f"`{method}`"]["rank"] for method in ("flesd", "feddf", "local")] == ["1", "2", "-"]
    assert pairing.beyond(made[1], {**made[0], "by_encoder": scores(b=0.3)}, "knn") is None  # none in common


def test_the_untrained_encoder_of_a_mixed_table_is_that_of_training_alone() -> None:
    made = [row("flesd", untrained_knn=0.3, table=rows.MIXED), row("local", table=rows.MIXED)]
    untrained = tables.table(made, BOARD, "cifar10", "iid", rows.MIXED).splitlines()[2]
    assert untrained.split("|")[3].strip() == "0.250"


def test_a_value_that_one_seed_lacks_is_no_mean() -> None:
    assert markdown.number([0.5, None]) == "-"
    assert markdown.number([], none="not run yet") == "not run yet"
    assert markdown.number([0.5]) == "0.500"


EFFECTS = {"fedca": 0.03, "fedprox": 0.01, "fedsimclr": 0.0, "fedsc": -0.02, "flesd": -0.05}  # the truth, best first
SEEN = {"fedca": (1,), "fedprox": (0, 1), "fedsimclr": (0, 1, 2, 3, 4), "fedsc": (0,), "flesd": (0, 1)}
OF_SEEDS = (0.1, -0.1, 0.02, 0.05, -0.03)  # what a seed adds to every method's accuracy


def additive(seen: dict[str, tuple[int, ...]], **others: Any) -> list[rows.Record]:
    """Rows whose accuracy is the method's effect and the seed's."""
    return [
        row(method, seed, value := 0.5 + EFFECTS[method] + OF_SEEDS[seed], linear=value, fewshot=value, **others)
        for method, seeds in seen.items()
        for seed in seeds
    ]


def test_ranks_are_of_the_methods_whatever_seeds_they_have() -> None:
    made = [*additive(SEEN), row("fedbyol", 0, None, status="diverged"), row("fedx", 9, 0.95), row("local", 0, 0.9)]
    methods = pairing.of_table(made, "cifar10", "iid", rows.ONE)
    found = pairing.over(methods, "fedsimclr")
    assert {method: found[method] for method in EFFECTS} == pytest.approx(EFFECTS)
    assert found.keys() == {*EFFECTS, "local"}  # the others have no seed in common with FedSimCLR
    cells = lines_of(made)
    order = [f"`{method}`" for method in (*EFFECTS, "fedx", "local", "fedbyol")]
    assert [name for name in cells if name in order] == order
    assert [cells[name]["rank"] for name in order] == ["1", "2", "3", "4", "5", "-", "-", ""]
    means = {m: np.mean([r["knn"] for r in s.values()]) for m, s in methods.items() if m in EFFECTS}
    assert sorted(means, key=lambda m: -means[m])[0] == "fedsc"  # what the seeds alone would say
    assert pairing.ranks({"a": 0.1, "b": 0.1, "c": 0.3}) == {"a": 2.5, "b": 2.5, "c": 1}


def test_equal_means_share_a_rank_whatever_floating_point_makes_of_their_sums() -> None:
    """In images of 5,000, both methods have 3 + 5 + 7 more right than the reference."""
    right = {"fedsimclr": (3000, 3100, 3200), "fedca": (3003, 3105, 3207), "fedsc": (3007, 3103, 3205)}
    made = [row(method, seed, n / 5000) for method, each in right.items() for seed, n in enumerate(each)]
    of_seeds = [[n / 5000 - base / 5000 for n, base in zip(right[m], right["fedsimclr"], strict=True)] for m in right]
    assert np.mean(of_seeds[1]) != np.mean(of_seeds[2])  # else this tests nothing
    found = pairing.over(pairing.of_table(made, "cifar10", "iid", rows.ONE), "fedsimclr")
    assert found["fedca"] == found["fedsc"] == pytest.approx(0.001, abs=1e-12)
    assert pairing.ranks(found) == {"fedsimclr": 3, "fedca": 1.5, "fedsc": 1.5}


def test_readmes_table_and_the_tuned_ones_have_the_order_of_the_tables() -> None:
    made = additive(SEEN, partition="dirichlet", minutes=1.0, keys="{}")
    shown = tables.short(made, BOARD).splitlines()[5:]
    assert [line.split("`")[1] for line in shown] == ["fedca", "fedprox", "fedsimclr", "fedsc", "flesd"]
    tuned = tuning_tables.gained([{**each, "table": rows.TUNED} for each in made], BOARD).splitlines()[2:]
    assert [line.split("`")[1] for line in tuned] == list(EFFECTS)


def test_stability_is_of_the_methods_that_two_seeds_have() -> None:
    values = {0: [0.5, 0.4, 0.3, 0.2], 1: [0.5, 0.4, 0.2, 0.3], 2: [0.2, 0.4, 0.3, 0.5]}
    methods = {m: {s: row(m, s, values[s][i]) for s in values} for i, m in enumerate("abcd")}
    taus = [stats.kendalltau(values[a], values[b]).statistic for a, b in ((0, 1), (0, 2), (1, 2))]
    assert pairing.stability(methods) == pytest.approx(np.mean(taus))
    assert pairing.stability({m: {0: seeds[0]} for m, seeds in methods.items()}) is None
    methods |= {"e": {0: row("e", 0, 0.1)}, "f": {1: row("f", 1, 0.9)}, "g": {2: row("g", 2, 0.9, status="diverged")}}
    assert pairing.stability(methods) == pytest.approx(np.mean(taus))  # of one seed each: no pair has them
    two = {m: {s: row(m, s, values[s][i]) for s in values} for i, m in enumerate("ab")}
    assert pairing.stability(two) is None


def test_a_caption_says_what_ranks_are_and_how_settings_were_chosen() -> None:
    def told(made: list[rows.Record], kind: str = rows.ONE, board: Any = BOARD) -> str:
        return tables.caption([{**each, "table": kind} for each in made], board, "cifar10", "iid", kind)

    made = additive(SEEN)
    stable = "; Kendall's tau between two seeds, over the methods both have, is 1.00 in the mean."
    assert told(made).endswith(f"Ranks by kNN over `fedsimclr`{stable}")
    one = [each for each in made if each["seed"] == 0]
    assert "Ranks by kNN over `fedsimclr`, of one seed: how stable they are is not known." in told(one)
    assert "Ranks by kNN over `local`, of one seed:" in told(one, rows.MIXED)
    apart = [each for each in made if each["method"] == ("fedca" if each["seed"] == 1 else "fedsc")]
    assert "of seeds that share fewer than three methods: how stable" in told(apart)
    assert told(made).startswith(f"{len(made)} runs, made at abc. Ranks")
    assert told([{**made[0], "changed": True}, *made[1:]]).startswith(
        f"{len(made)} runs, made at abc, 1 of them with changes that were not committed."
    )
    assert "as its grid chose on another split" in told(made, rows.TUNED)
    other = [{**each, "table": rows.TUNED, "data": "fashion_mnist"} for each in made]
    caption = tables.caption(other, BOARD, "fashion_mnist", "iid", rows.TUNED)
    assert "as its grid chose on images of CIFAR-10, see" in caption
    gain = "views, temperature and learning rate were chosen by FedSimCLR's gain; no other method was tuned"
    for path, chosen in ((rows.BOARD, gain), (rows.FIELD, "views and optimiser are EasyFL's; no method was tuned")):
        board = rows.load_board(path)
        untuned = " ".join(tables.page(made, board).split("\n\n")[0].split())
        assert chosen in untuned
        assert untuned.endswith(f"each has its defaults and the keys of `benchmarks/{path.name}`.")


def test_the_page_names_tables_without_a_row() -> None:
    text = tables.page([row("fedsimclr")], BOARD)
    assert text.count("| method |") == 1
    assert "Fashion-MNIST, Dirichlet 0.1, mixed architectures" in text.splitlines()[-1]
    assert "CIFAR-10, IID, one architecture" not in text.splitlines()[-1]
    assert "no other method was tuned" in text


def test_the_criterion_is_of_gain_and_spread() -> None:
    assert budget.criterion([0.08, 0.09, 0.10]) == "holds"  # deviation 0.01, a quarter of the gain 0.0225
    assert budget.criterion([0.05, 0.09, 0.13]) == "spread too large: 0.0400 of 0.0225"
    assert budget.criterion([0.07, 0.08]) == "gain too small"
    assert budget.criterion([0.5]) == "spread not run yet"


def test_confirmed_shows_gains_by_seed() -> None:
    text = budget.confirmed([row("fedsimclr", 0, 0.35, **SCORES), row("fedsimclr", 1, 0.30, **SCORES)], BOARD)
    (line,) = [line for line in text.splitlines() if "| CIFAR-10 | 0, 1 | knn " in line]
    assert "+0.100, +0.050 | 0.075 ± 0.035" in line
    assert "not run yet" in text


SCORES = {"linear": 0.4, "untrained_linear": 0.3, "fewshot": 0.3, "untrained_fewshot": 0.2, "minutes": 2.0}
