"""What the pages say of the leaderboard in words: each sentence stands in its page, and the committed rows say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import leaderboard_overall as overall
import leaderboard_rows as rows
import leaderboard_tables as tables
import pytest
import scipy.stats
from leaderboard_clusters import OverSets

from rayfed_ssl.records.comparison import Difference, difference
from tests.benchmarks.pages import ABOVE, BELOW, LEADERBOARD, LEVEL, OPEN, README, RESULTS, between, stands

BOARD = tables.load_board()
RANKED = [method for method in BOARD["methods"] if method not in BOARD["references"]]
SETS = list(BOARD["data"])
KNN, LINEAR, FEWSHOT = rows.MEASURES


@cache
def made() -> tuple[rows.Record, ...]:
    return tuple(rows.read())


@cache
def found(reference: str, table: str, data: str | None) -> overall.Differences:
    board = BOARD if data is None else {**BOARD, "data": {data: None}}
    return overall.differences(made(), board, reference, table)


def over(
    method: str, reference: str = rows.REFERENCE, table: str = rows.ONE, data: str | None = None
) -> dict[str, OverSets]:
    """Measure -> the difference over both data sets, or of one."""
    return {measure: each[method] for measure, each in found(reference, table, data).items() if method in each}


def words(method: str, reference: str = rows.REFERENCE, table: str = rows.ONE, data: str | None = None) -> list[str]:
    """What it is called by kNN, linear probe and few-shot."""
    return [overall.verdict(one) for one in over(method, reference, table, data).values()]


def mean(method: str, measure: str, reference: str = rows.REFERENCE, **where: Any) -> float:
    """The mean difference in points."""
    return 100 * over(method, reference, **where)[measure].mean


def are(word: str, measure: str, reference: str = rows.REFERENCE, **where: Any) -> set[str]:
    """The ranked methods that are so by a protocol."""
    at = list(rows.MEASURES).index(measure)
    return {method for method in RANKED if words(method, reference, **where)[at:][:1] == [word]}


def by_all(word: str, reference: str = rows.REFERENCE, **where: Any) -> set[str]:
    return set.intersection(*(are(word, measure, reference, **where) for measure in rows.MEASURES))


def rounded(method: str, measure: str, **where: Any) -> float:
    """The mean difference to FedSimCLR of tuned methods in points, to a tenth."""
    return round(mean(method, measure, table=rows.TUNED, **where), 1)


def iid_tuned(table: str = rows.TUNED) -> dict[str, tables.Seeds]:
    """Method -> its runs on Fashion-MNIST's IID clients."""
    return tables.of_table(made(), "fashion_mnist", "iid", table)


def by_tuning(method: str, measure: str) -> Difference:
    """What tuning gave a method there, over its defaults, in points."""
    pairs = tables.paired(iid_tuned()[method], iid_tuned(rows.ONE)[method], measure)
    found = difference([100 * each for each in pairs])
    assert found is not None
    return found


def apart(pairs: Sequence[float]) -> bool:
    """Whether Student's t interval over seeds excludes zero."""
    return bool(scipy.stats.ttest_1samp(pairs, 0).pvalue < 0.05)


def iid_over() -> dict[str, float]:
    """Method -> its mean difference to FedSimCLR there, by kNN."""
    return tables.over(iid_tuned(), rows.REFERENCE)


def iid_apart(method: str) -> list[bool]:
    """Whether each protocol tells a method from FedSimCLR there."""
    runs = iid_tuned()
    return [apart(tables.paired(runs[method], runs[rows.REFERENCE], m)) for m in rows.MEASURES]


def of_losses(measure: str) -> dict[str, tuple[float, bool]]:
    """Loss -> its mean difference to SimCLR in points, and whether its interval excludes zero."""
    board = tables.load_board(rows.LOSSES)
    runs = tables.of_table(rows.read(rows.results_of(rows.LOSSES)), "cifar10", "dirichlet", rows.ONE)
    pairs = {m: tables.paired(runs[m], runs[rows.REFERENCE], measure) for m in board["methods"] if m != rows.REFERENCE}
    return {m: (100 * sum(each) / len(each), apart(each)) for m, each in pairs.items()}


def of_board(board: Path, data: str) -> dict[str, tables.Seeds]:
    """Row -> its runs with Dirichlet 0.1, of a board of FedSimCLR's exchanges."""
    return tables.of_table(rows.read(rows.results_of(board)), data, "dirichlet", rows.ONE)


def beside_whole(board: Path, data: str) -> dict[tuple[str, str], tuple[float, bool]]:
    """(row, measure) -> its mean difference to the whole one in points, and whether it is told apart."""
    runs = of_board(board, data)
    pairs = {
        (name, m): tables.paired(runs[name], runs[rows.REFERENCE], m)
        for name in runs
        if name != rows.REFERENCE
        for m in rows.MEASURES
    }
    return {key: (100 * sum(each) / len(each), apart(each)) for key, each in pairs.items()}


def told_from_whole(board: Path, data: str) -> dict[tuple[str, str], float]:
    """(row, measure) -> the difference in points, to a tenth, of those that are told apart from the whole one."""
    return {key: round(points, 1) for key, (points, told) in beside_whole(board, data).items() if told}


def most_lost(board: Path, data: str, measure: str = KNN) -> dict[str, float]:
    """Row -> what it may lose against the whole one in points, by its interval's lower end."""
    runs = of_board(board, data)
    found = {name: difference(tables.paired(runs[name], runs[rows.REFERENCE], measure)) for name in runs}
    return {name: -100 * each.low for name, each in found.items() if each is not None and each.low is not None}


def of_rounds(name: str, measure: str) -> str:
    """The word for fewer rounds beside 25."""
    runs = of_board(rows.ROUNDS, "cifar10")
    found = difference(tables.paired(runs[name], runs[rows.REFERENCE], measure))
    assert found is not None
    return str(found.judged())


def times_less(name: str, data: str) -> float:
    runs = of_board(rows.BYTES, data)
    total, less = (sum(row["bytes_total"] for row in tables.complete(runs[each])) for each in (rows.REFERENCE, name))
    return float(total / less)


def told_by_tuning() -> dict[tuple[str, str], float]:
    """(method, measure) -> the gain in points, of those whose interval excludes zero."""
    gains = {(method, m): by_tuning(method, m) for method in iid_tuned() for m in rows.MEASURES}
    return {
        key: round(gain.mean, 1)
        for key, gain in gains.items()
        if gain.low is not None and gain.high is not None and gain.low * gain.high > 0
    }


def times_above(method: str, **where: Any) -> int:
    return words(method, **where).count(ABOVE)


def holm(reference: str = rows.REFERENCE, table: str = rows.ONE) -> set[tuple[str, str]]:
    return overall.survive(found(reference, table, None), RANKED)


def survivors_above(table: str) -> set[str]:
    return {method for measure, method in holm(table=table) if over(method, table=table)[measure].mean > 0}


CODES = ("float16", "up8_down8", "up4_down8", "up2_down8", "up4_down4")
OWN_LOSS = {"fedbyol", "fedu", "fedema", "fedmkd", "fedsimsiam", "fedmoco", "fedsc", "fedavg_sc"}  # not SimCLR's

AT_DEFAULTS: list[tuple[str, str, Callable[[], bool]]] = [
    (RESULTS, "At its defaults no method is above FedSimCLR by more than one protocol",
     lambda: max(map(times_above, RANKED)) == 1),
    (RESULTS, "No method at its defaults is above it by more than one protocol, and none after Holm's correction",
     lambda: max(map(times_above, RANKED)) == 1 and not survivors_above(rows.ONE)),
    (RESULTS, "is above FedSimCLR by two to six points, by every protocol on both data sets",
     lambda: between(2, [mean("centralized_equal_steps", m, data=d) for m in rows.MEASURES for d in SETS], 6.4)
     and all(words("centralized_equal_steps", data=d) == [ABOVE] * 3 for d in SETS)),
    (RESULTS, "Level with FedSimCLR by linear probe, below it by kNN and few-shot.",
     lambda: words("local") == [BELOW, LEVEL, BELOW]),
    (RESULTS, "More than a third of the methods are below it by all three protocols",
     lambda: len(by_all(BELOW, "local")) > len(RANKED) / 3),
    (RESULTS, "all that train with BYOL's, SimSiam's, MoCo's or the spectral loss, FedX and FedAE",
     lambda: by_all(BELOW, "local") == OWN_LOSS | {"fedx", "fedae"}),
    (RESULTS, "That FedProx and L-DAWA are level with FedSimCLR, and FedFoA within a tenth of a point of `local`",
     lambda: words("fedprox") == words("ldawa") == [LEVEL] * 3
     and between(-0.1, [mean("fedfoa", m, "local") for m in rows.MEASURES], 0.1)),
    (RESULTS, "Over all tables FedDecorr is above FedSimCLR by kNN, and below by linear probe and few-shot, by more.",
     lambda: words("feddecorr") == [ABOVE, BELOW, BELOW]
     and max(mean("feddecorr", LINEAR), mean("feddecorr", FEWSHOT)) < -mean("feddecorr", KNN)),
    (RESULTS, "FedDF's means are above by all three protocols on CIFAR-10; on Fashion-MNIST they are above by kNN and "
     "below by the others. On neither does an interval tell it apart.",
     lambda: [mean("feddf", m, data="cifar10") > 0 for m in rows.MEASURES] == [True] * 3
     and [mean("feddf", m, data="fashion_mnist") > 0 for m in rows.MEASURES] == [True, False, False]
     and all(words("feddf", data=d) == [OPEN] * 3 for d in SETS)),
    (RESULTS, "not told apart from FedSimCLR on Fashion-MNIST, below it on CIFAR-10. Over both it is level by few-shot "
     "and not told apart by linear probe. By linear probe it is below training alone.",
     lambda: words("flesd_cc", data="fashion_mnist")[0] == OPEN and words("flesd_cc", data="cifar10")[0] == BELOW
     and words("flesd_cc")[1:] == [OPEN, LEVEL] and words("flesd_cc", "local")[1] == BELOW),
    (README, "FedSimCLR does by kNN, with five clients and",
     lambda: words("local")[0] == BELOW and words("local")[1] != BELOW),
    (RESULTS, "FLESD's student is above it by few-shot, though not after Holm's correction",
     lambda: overall.verdict(over("flesd", "local", rows.MIXED)[FEWSHOT]) == ABOVE
     and (FEWSHOT, "flesd") not in overall.survive(found("local", rows.MIXED, None), list(BOARD["mixed"]["methods"]))),
    (RESULTS, "By kNN and linear probe no method is above training alone here.",
     lambda: all(ABOVE not in words(m, "local", rows.MIXED)[:2] for m in BOARD["mixed"]["methods"] if m != "local")),
    (RESULTS, "FedMKD, which trains with BYOL's loss, is below by all three.",
     lambda: words("fedmkd", "local", rows.MIXED) == [BELOW] * 3),
]  # fmt: skip


TUNED: list[tuple[str, str, Callable[[], bool]]] = [
    (RESULTS, 'Tuned, no "above" over FedSimCLR survives Holm\'s correction either',
     lambda: not survivors_above(rows.TUNED)),
    (RESULTS, "none is above it by more than one protocol over both data sets either, and none after Holm's "
     "correction.",
     lambda: max(times_above(m, table=rows.TUNED) for m in RANKED) == 1 and not survivors_above(rows.TUNED)),
    (RESULTS, "By the intervals alone five methods are above over both data sets, by one protocol each:",
     lambda: {m for m in RANKED if times_above(m, table=rows.TUNED)} == {"ldawa", "fedmd", "fedca", "fur", "fedprox"}),
    (RESULTS, "L-DAWA by linear probe, by two points", lambda: rounded("ldawa", LINEAR) == 2.1),
    (RESULTS, "FedMD, which needs public images, by linear probe, by 0.7", lambda: rounded("fedmd", LINEAR) == 0.7),
    (RESULTS, "with L-DAWA it is the only one above `local` by all three protocols",
     lambda: by_all(ABOVE, "local", table=rows.TUNED) == {"fedmd", "ldawa"}),
    (RESULTS, "FedCA by few-shot, by 1.2 points. FUR by kNN, by 0.6, and FedProx by kNN, by 0.3.",
     lambda: (rounded("fedca", FEWSHOT), rounded("fur", KNN), rounded("fedprox", KNN)) == (1.2, 0.6, 0.3)),
    (RESULTS, "On Fashion-MNIST alone two methods are above by two protocols: FedProx by kNN (0.7 points) and linear "
     "probe (0.2), FedCA by kNN (0.4) and few-shot (1.8).",
     lambda: {m for m in RANKED if times_above(m, table=rows.TUNED, data="fashion_mnist") > 1} == {"fedprox", "fedca"}
     and [rounded("fedprox", m, data="fashion_mnist") for m in (KNN, LINEAR)] == [0.7, 0.2]
     and [rounded("fedca", m, data="fashion_mnist") for m in (KNN, FEWSHOT)] == [0.4, 1.8]),
    (RESULTS, "FedDecorr is above by kNN on CIFAR-10, by one point, and below by few-shot on both data sets, by two.",
     lambda: words("feddecorr", table=rows.TUNED, data="cifar10")[0] == ABOVE
     and between(0.5, [mean("feddecorr", KNN, table=rows.TUNED, data="cifar10")], 1.5)
     and all(words("feddecorr", table=rows.TUNED, data=d)[2] == BELOW for d in SETS)
     and between(-2.5, [mean("feddecorr", FEWSHOT, table=rows.TUNED, data=d) for d in SETS], -1.5)),
    (RESULTS, "over both data sets linear probe does not tell them apart",
     lambda: words("fedca", table=rows.TUNED)[1] == OPEN),
    (LEADERBOARD, "On Fashion-MNIST's IID clients FedMoCo gains 1.9 points by kNN over its defaults and FedCA 1.7 by "
     "few-shot. SSD loses by all three protocols, 2.4 points to 8.7, FedMKD and FedDF by kNN and few-shot, FedX 1.4 by "
     "linear probe, FedU2 and FedFoA less than one by kNN. FedAvg with labels gains by all three protocols, two to "
     "three points. No interval tells another from its defaults: FedSimCLR loses 0.8 points by kNN",
     lambda: (told := told_by_tuning()) == {
         ("fedmoco", KNN): 1.9, ("fedca", FEWSHOT): 1.7, ("fedx", LINEAR): -1.4,
         ("ssd", KNN): -2.4, ("ssd", LINEAR): -4.6, ("ssd", FEWSHOT): -8.7,
         **{(m, each): told[m, each] for m in ("fedmkd", "feddf") for each in (KNN, FEWSHOT)},
         **{(m, KNN): told[m, KNN] for m in ("fedu2", "fedfoa")},
         **{("fedavg_supervised", m): told["fedavg_supervised", m] for m in rows.MEASURES}}
     and max(told[m, each] for m in ("fedmkd", "feddf") for each in (KNN, FEWSHOT)) < 0
     and between(-1, [told[m, KNN] for m in ("fedu2", "fedfoa")], 0)
     and between(1.5, [told["fedavg_supervised", m] for m in rows.MEASURES], 3.5)
     and round(by_tuning("fedsimclr", KNN).mean, 1) == -0.8),
    (LEADERBOARD, "FedDecorr is first there by kNN, but no interval tells it from FedSimCLR, and it is below it by the "
     "other protocols. FLESD, third, is 1.2 points above FedSimCLR by kNN, and by the other protocols it is not told "
     "apart.",
     lambda: sorted(RANKED, key=iid_over().__getitem__)[:-4:-1] == ["feddecorr", "flesd_cc", "flesd"]
     and iid_apart("feddecorr") == [False, True, True]
     and tables.over(iid_tuned(), rows.REFERENCE, LINEAR)["feddecorr"] < 0
     and tables.over(iid_tuned(), rows.REFERENCE, FEWSHOT)["feddecorr"] < 0
     and round(100 * iid_over()["flesd"], 1) == 1.2 and iid_apart("flesd") == [True, False, False]),
    (LEADERBOARD, "None of the five comes near SimCLR by kNN at this budget: their means are four to six points below "
     "it, and below those of SimCLR on clients that train alone. NNCLR's interval contains zero. By linear probe "
     "intervals tell only VICReg and DINO from SimCLR, by one and two points.",
     lambda: {m: told for m, (_, told) in of_losses(KNN).items()}
     == {"nnclr": False, "vicreg": True, "swav": True, "barlow": True, "dino": True}
     and {round(points) for points, _ in of_losses(KNN).values()} == {-4, -5, -6}
     and max(points for points, _ in of_losses(KNN).values())
     < 100 * tables.over(tables.of_table(made(), "cifar10", "dirichlet", rows.ONE), rows.REFERENCE)["local"]
     and {m: round(points) for m, (points, told) in of_losses(LINEAR).items() if told} == {"vicreg": -1, "dino": -2}),
    (LEADERBOARD, "A sixth of the bytes costs a point by kNN at most: with replies in 2 bits and downloads in 8, as "
     "with float16, 8 bits both ways, and 4 bits up and 8 down, intervals by kNN exclude a loss of more than one point "
     "on both data sets.",
     lambda: between(6, [times_less("up2_down8", data) for data in SETS], 6.5)
     and between(0, [most_lost(rows.BYTES, data)[name] for data in SETS for name in CODES[:-1]], 1)),
    (LEADERBOARD, "Of 30 intervals of the five codes one excludes zero: 8 bits both ways are below by few-shot on "
     "Fashion-MNIST, by 0.4 points.",
     lambda: len(CODES) * len(SETS) * len(rows.MEASURES) == 30
     and {(data, *key): value for data in SETS for key, value in told_from_whole(rows.BYTES, data).items()
          if key[0] in CODES} == {("fashion_mnist", "up8_down8", FEWSHOT): -0.4}),
    (LEADERBOARD, "4 bits both ways are not told apart, but their intervals by kNN reach a loss of two to three points",
     lambda: between(2, [most_lost(rows.BYTES, data)["up4_down4"] for data in SETS], 3)),
    (LEADERBOARD, "On CIFAR-10 five and two rounds are above ten by kNN, by 0.8 points, and one is not told apart. On "
     "Fashion-MNIST the means of five and two are below, by 0.3 and 0.7 points, and not told apart; one is below, by "
     "1.7.",
     lambda: {key: value for key, value in told_from_whole(rows.BYTES, "cifar10").items() if "rounds" in key[0]}
     == {("rounds_5", KNN): 0.8, ("rounds_2", KNN): 0.8}
     and {key: value for key, value in told_from_whole(rows.BYTES, "fashion_mnist").items() if "rounds" in key[0]}
     == {("rounds_1", KNN): -1.7}
     and [round(beside_whole(rows.BYTES, "fashion_mnist")[name, KNN][0], 1) for name in ("rounds_5", "rounds_2")]
     == [-0.3, -0.7]),
    (LEADERBOARD, "A thirtieth of the bytes (two rounds, replies in 2 bits, downloads in 8) is not told apart by any "
     "protocol on either. By kNN that excludes a loss of more than one point on CIFAR-10; on Fashion-MNIST the mean is "
     "1.1 points below, and the interval reaches 3.4.",
     lambda: between(30, [times_less("rounds_2_up2_down8", data) for data in SETS], 32)
     and not any(beside_whole(rows.BYTES, data)["rounds_2_up2_down8", m][1] for data in SETS for m in rows.MEASURES)
     and most_lost(rows.BYTES, "cifar10")["rounds_2_up2_down8"] < 1
     and round(beside_whole(rows.BYTES, "fashion_mnist")["rounds_2_up2_down8", KNN][0], 1) == -1.1
     and round(most_lost(rows.BYTES, "fashion_mnist")["rounds_2_up2_down8"], 1) == 3.4),
    (README, "A single average at the end costs 1.3 points by kNN on CIFAR-10.",
     lambda: of_rounds("rounds_1", KNN) == BELOW
     and round(beside_whole(rows.ROUNDS, "cifar10")["rounds_1", KNN][0], 1) == -1.3),
    (LEADERBOARD, "Five rounds are level with 25 by all three protocols, at a fifth of the bytes. Two, at a twelfth, "
     "are level by kNN and few-shot, and below by linear probe, by 0.6 points. One, which averages after the last "
     "step, is below by kNN, by 1.3 points, and by few-shot, by 0.6; its means by kNN and linear probe are below those "
     "of clients that train alone.",
     lambda: all(of_rounds("rounds_5", m) == LEVEL for m in rows.MEASURES)
     and [of_rounds("rounds_2", m) for m in (KNN, LINEAR, FEWSHOT)] == [LEVEL, BELOW, LEVEL]
     and {key: value for key, value in told_from_whole(rows.ROUNDS, "cifar10").items() if "rounds" in key[0]}
     == {("rounds_2", LINEAR): -0.6, ("rounds_1", KNN): -1.3, ("rounds_1", FEWSHOT): -0.6}
     and all(fmean(tables.paired(of_board(rows.ROUNDS, "cifar10")["rounds_1"],
                                 of_board(rows.ROUNDS, "cifar10")["local"], m)) < 0 for m in (KNN, LINEAR))),
]  # fmt: skip


@pytest.mark.parametrize(("page", "sentence", "holds"), [*AT_DEFAULTS, *TUNED])
def test_a_sentence_stands_in_its_page_and_the_rows_say_so(page: str, sentence: str, holds: Callable[[], bool]) -> None:
    assert stands(page, sentence)
    assert holds()
