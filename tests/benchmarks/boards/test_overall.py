"""What the leaderboard comes to: differences over data sets and seeds, what is told apart, whether tables agree."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from boards import agreement, overall, rows, verdicts
from boards.rows import MIXED
from scipy import stats

from tests.benchmarks.made import row

BOARD = rows.load_board()
DATA, PARTITIONS = ("fashion_mnist", "cifar10"), ("iid", "dirichlet", "two_classes")
PLACES = [(data, partition) for data in DATA for partition in PARTITIONS]


def made(gains: Mapping[str, Sequence[float]], seeds: Sequence[int] = (0, 1, 2)) -> list[rows.Record]:
    """FedSimCLR, whose accuracy depends on table and seed, and methods above it by ``gains``, one per (data set, seed),
    the same by every protocol in all partitions.
    """
    found = []
    for place, (data, partition) in enumerate(PLACES):
        for at, seed in enumerate(seeds):
            base = 0.4 + 0.02 * place + 0.03 * seed
            where = {"data": data, "partition": partition, "pixels_fewshot": 0.1, "untrained_fewshot": 0.2}
            for method, each in {"fedsimclr": [0.0] * 6, **gains}.items():
                value = base + each[len(seeds) * DATA.index(data) + at]
                scores = {"linear": value, "fewshot": value}
                costs = {"bytes_total": 10**6 * (1 + len(method)), "hours_total": len(method) / 360}
                found.append(row(method, seed, value, **where, **scores, **costs))
    return found


def cells(text: str, method: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {method} ")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def t_interval(gains: Any) -> tuple[float, float]:
    """Of the mean over two data sets of three clusters each: half of Welch's for the difference of one and minus the
    other.
    """
    one, other = np.split(np.asarray(gains), 2)
    twice = stats.ttest_ind(one, -other, equal_var=False).confidence_interval(0.95)
    return float(twice.low) / 2, float(twice.high) / 2


def p_value(gains: Any) -> float:
    one, other = np.split(np.asarray(gains), 2)
    return float(stats.ttest_ind(one, -other, equal_var=False).pvalue)


UP, DOWN = [0.02, 0.03, 0.025, 0.01, 0.02, 0.015], [-0.02, -0.015, -0.03, -0.03, -0.02, -0.04]
UNSURE = [0.06, 0.05, 0.01, 0.02, 0.06, 0.01]  # excludes zero alone, not among twelve
OPEN, SAME = [0.05, -0.05, 0.04, -0.03, 0.02, -0.01], [0.001, -0.001, 0.002, -0.002, 0.001, -0.001]


def test_where_architectures_differ_methods_are_over_training_alone_by_architecture() -> None:
    found = []
    for place, (data, partition) in enumerate(PLACES):
        for seed in (0, 1, 2):
            where = {"data": data, "partition": partition, "table": MIXED, "bytes_per_round": 2e6}
            alone = 0.4 + 0.01 * place
            extra = UP[3 * DATA.index(data) + seed]
            for method, of in (
                ("local", {"a": alone, "b": 0.1}), ("flesd", {"a": alone + extra}), ("feddf", {"a": alone, "b": 0.1}),
            ):  # fmt: skip
                by = {encoder: dict.fromkeys(("knn", "linear", "fewshot"), value) for encoder, value in of.items()}
                found.append(row(method, seed, 0.9, by_encoder=json.dumps(by), **where))
    found.append(row("flesd", 9, 0.9, table=MIXED))  # no seed of the board
    low, high = t_interval(UP)
    interval = f"**{np.mean(UP):+.3f} [{low:+.3f}, {high:+.3f}]**"
    text = overall.mixed(found, BOARD)
    assert cells(text, "`flesd`") == ["`flesd`", "6", *[f"{interval} †"] * 3, "2.00"]
    assert "Of 6 intervals 3 exclude zero (bold), where chance alone would make about 0; 3 do" in text
    assert cells(text, "`feddf`")[1:3] == ["6", "0.000 [0.000, 0.000]"]
    assert [line.split("`")[1] for line in text.splitlines()[2:4]] == ["flesd", "feddf"]
    assert overall.mixed(found[:2], BOARD) == "No method has 3 clusters yet."


def test_an_interval_is_students_over_data_sets_and_seeds() -> None:
    text = overall.overall(made({"fedca": UP, "fedx": OPEN, "local": DOWN}), BOARD)
    for method, gains, above in (("fedca", UP, "6 of 6"), ("fedx", OPEN, "3 of 6"), ("local", DOWN, "0 of 6")):
        low, high = t_interval(gains)
        interval = f"{np.mean(gains):+.3f} [{low:+.3f}, {high:+.3f}]"
        shown = cells(text, f"`{method}`")
        assert shown[1] == "6"
        if low > 0 or high < 0:
            assert shown[2].startswith(f"**{interval}**")
        else:
            assert shown[2:5] == [interval] * 3
        if method != "fedx":
            assert shown[-1] == above
    assert [line.split(" |")[0] for line in text.splitlines()[2:7]] == [
        "| `fedca`", "| `fedx`", "| `local`", "| raw pixels", "| untrained encoder",
    ]  # fmt: skip


def test_raw_pixels_and_the_untrained_encoder_stand_beside_the_methods() -> None:
    text = overall.overall(made({"fedca": UP}, seeds=(0, 1, 2)), BOARD)
    accuracies = [[0.4 + 0.02 * place + 0.03 * seed for place in range(6)] for seed in range(3)]
    of_clusters = [np.mean(each[half : half + 3]) for half in (0, 3) for each in accuracies]
    for name, before, column in (("raw pixels", 0.1, 4), ("untrained encoder", 0.2, 4), ("untrained encoder", 0.25, 2)):
        low, high = t_interval(before - np.array(of_clusters))
        mean = np.mean(before - np.array(of_clusters))
        assert cells(text, name)[column].startswith(f"**{mean:+.3f} [{low:+.3f}, {high:+.3f}]**")
    assert cells(text, "raw pixels")[2:4] == ["-", "-"]
    other = [{**each, "seed": each["seed"] + 7} for each in made({"fedca": UP})]  # of no seed of the board's
    assert overall.overall(other, BOARD) == "No method has 3 clusters yet."


def test_a_dagger_is_for_what_holm_leaves() -> None:
    gains = {"fedca": UP, "fedsc": DOWN, "fedx": OPEN, "fedu": UNSURE, "local": UP}
    ranked = [method for method in gains if method != "local"]
    found = overall.survive(overall.differences(made(gains), BOARD), ranked)
    p = sorted((p_value(gains[method]), method) for method in ranked for _ in rows.MEASURES)
    expected = set()
    for place, (value, method) in enumerate(p):
        if value > 0.05 / (len(p) - place):
            break
        expected.add(method)
    assert {method for _, method in found} == expected
    assert expected == {"fedca", "fedsc"}
    assert p_value(gains["fedu"]) < 0.05  # its interval excludes zero, but not of so many
    text = overall.overall(made(gains), BOARD)
    assert cells(text, "`fedca`")[2].endswith("** †")
    assert cells(text, "`local`")[2].endswith("]**")  # a reference is not tested
    assert (
        "Of 12 intervals of ranked methods 9 exclude zero (bold), where chance alone would make about 1; 6 do" in text
    )


def test_each_data_set_has_its_own_means() -> None:
    shown = cells(overall.by_data(made({"fedca": UP, "local": DOWN}), BOARD), "`fedca`")
    means = [f"{np.mean(UP[:3]):+.3f}", f"{np.mean(UP[3:]):+.3f}"]
    letters = len("fedca") - len("fedsimclr")
    more = [f"{letters:+.1f}", f"{10 * letters:+d}"]  # MB and virtual seconds
    assert shown[1:] == [*[means[0]] * 3, *more, *[means[1]] * 3, *more]


def test_each_partition_has_its_own_intervals_against_training_alone() -> None:
    known = [each for each in made({"local": DOWN, "centralized": UP}) if each["partition"] != "dirichlet"]
    for each in known:  # where each client has two classes, training alone loses twice as much
        if (each["partition"], each["method"]) == ("two_classes", "local"):
            base = next(
                other["knn"] for other in known
                if other["method"] == "fedsimclr" and all(other[k] == each[k] for k in ("data", "partition", "seed"))
            )  # fmt: skip
            each["knn"] = base + 2 * (each["knn"] - base)
    text = overall.by_partition(known, BOARD)

    def shown(gains: Sequence[float]) -> str:
        low, high = t_interval(gains)
        return f"**{np.mean(gains):+.3f} [{low:+.3f}, {high:+.3f}]**"

    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    own, twice, pooled = shown([-x for x in DOWN]), shown([-2 * x for x in DOWN]), shown(UP)
    alike = "0.000 [0.000, 0.000]"  # over the same seeds, which is more where a client has two classes
    less = "two classes per client less IID"
    assert found == [
        ["IID", "`fedsimclr` over `local`", "6", own, own, own],
        ["two classes per client", "`fedsimclr` over `local`", "6", twice, own, own],
        [less, "`fedsimclr` over `local`", "6", own, alike, alike],
        ["IID", "`centralized` over `fedsimclr`", "6", pooled, pooled, pooled],
        ["two classes per client", "`centralized` over `fedsimclr`", "6", pooled, pooled, pooled],
        [less, "`centralized` over `fedsimclr`", "6", alike, alike, alike],
    ]


# -- do tables agree? --------------------------------------------------------------------------------------------------


def ordered(data: str, values: Mapping[str, float], partition: str = "iid") -> list[rows.Record]:
    return [row(m, 0, v, data=data, partition=partition, linear=v, fewshot=-v) for m, v in values.items()]


def test_tables_that_order_methods_alike() -> None:
    methods = ("fedsimclr", "fedbyol", "fedca", "fedsc", "flesd", "local")  # the last is a reference: not ranked
    here = dict(zip(methods, [0.5, 0.4, 0.3, 0.2, 0.1, 0.9], strict=True))
    there = {**here, "fedbyol": 0.3, "fedca": 0.4, "local": 0.0}  # of ten pairs one is turned round
    known = [*ordered("fashion_mnist", here), *ordered("cifar10", there)]
    known += [row("fedx", data=data) for data in DATA]  # without a linear probe
    text = agreement.agreement(known, BOARD)
    assert cells(text, "Fashion-MNIST, IID")[1:] == ["+0.80 / +0.80 / +0.80"]
    assert text.endswith("In the mean: between data sets +0.80 / +0.80 / +0.80.")  # two methods are too few
    assert agreement.agreement(known[2:], BOARD) == "No two tables have 5 methods in common yet."
    other = [{**each, "seed": 1} for each in ordered("cifar10", {m: v + 0.1 for m, v in here.items()})]
    shifted = agreement.agreement([*ordered("fashion_mnist", here), *other], BOARD)  # the same effects, on another seed
    assert cells(shifted, "Fashion-MNIST, IID")[1:] == ["+1.00 / +1.00 / +1.00"]


def test_two_groups_far_apart_make_a_high_tau() -> None:
    rng = np.random.default_rng(0)
    names = [method for method in BOARD["methods"] if method not in BOARD["references"]][:20]

    def table(data: str, partition: str) -> tuple[list[rows.Record], list[float]]:
        values = [0.5 * (at < 10) + 0.1 * float(rng.random()) for at in range(20)]
        return ordered(data, dict(zip(names, values, strict=True)), partition), values

    places = [("fashion_mnist", "iid"), ("fashion_mnist", "dirichlet"), ("cifar10", "iid")]
    known = {place: table(*place) for place in places}
    text = agreement.agreement([each for found, _ in known.values() for each in found], BOARD)
    values = {place: found for place, (_, found) in known.items()}

    def tau(a: Any, b: Any, among: slice = slice(None)) -> float:
        return float(stats.kendalltau(values[a][among], values[b][among]).statistic)

    between = [tau(places[at], places[2]) for at in (0, 1)]
    beneath = [tau(places[at], places[2], slice(10, None)) for at in (0, 1)]
    for words, found in (
        ("within a data set", [tau(places[0], places[1])]),
        ("between data sets", between),
        ("between data sets, of the 10 lowest methods by kNN", beneath),
    ):
        assert f"{words} {' / '.join([f'{np.mean(found):+.2f}'] * 3)}" in text
    assert np.mean(between) > np.mean(beneath) + 0.2


@pytest.mark.parametrize("page", [overall.overall, verdicts.verdicts, overall.by_data, overall.by_partition])
def test_without_enough_clusters_there_is_no_table(page: Any) -> None:
    one = [each for each in made({"fedca": UP}) if each["seed"] == 0]
    assert page(one, BOARD) == "No method has 3 clusters yet."
