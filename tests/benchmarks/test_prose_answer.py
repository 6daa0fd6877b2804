"""The short answer at the top of docs/results.md and in README.md: the committed rows say each of its sentences."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import json_lines
import leaderboard_pixels as pixels
import leaks
import pytest
from boards import absolute, overall, pairing, rows, tables
from boards import clusters as clustered
from boards.clusters import OverSets, over_board, over_sets

from rayfed_ssl.records.comparison import difference
from tests.benchmarks.pages import ABOVE, BELOW, LEVEL, OPEN, README, RESULTS, between, stands
from tests.benchmarks.prose_rows import (
    BOARD,
    FEWSHOT,
    KNN,
    LINEAR,
    RANKED,
    SETS,
    by_all,
    interval,
    made,
    mean,
    of_totals,
    survivors_above,
    times_above,
    words,
)

OWN_LOSS = {"fedbyol", "fedu", "fedema", "fedmkd", "fedsimsiam", "fedmoco", "fedsc", "fedavg_sc"}  # not SimCLR's


def gap_left(measure: str) -> float:
    """The gap to all steps in one place on IID clients, as a part of that with two classes per client."""
    iid, two = (
        over_board(made(), BOARD, measure, partition=split)["centralized_equal_steps"].mean
        for split in ("iid", "two_classes")
    )
    return iid / two


def beyond_iid(measure: str, method: str, reference: str = rows.REFERENCE) -> OverSets:
    """How much more a method gains over another with two classes per client than on IID clients."""
    found = clustered.between(made(), BOARD, measure, method, ("two_classes", "iid"), reference)
    assert found is not None
    return found


def federating(measure: str) -> OverSets:
    """How much more federating SimCLR gains over training alone with two classes per client than on IID clients."""
    return beyond_iid(measure, rows.REFERENCE, "local")


def by_each(told: Callable[[str], OverSets]) -> list[str]:
    """What kNN, linear probe and few-shot say of it."""
    return [overall.verdict(told(measure)) for measure in rows.MEASURES]


def below_pixels(data: str, measure: str) -> int:
    """How many rows raw pixels are above, by the interval."""
    beside = overall.with_baselines(pixels.onto(made(), json_lines.read(pixels.RESULTS)), BOARD)
    pairs = clustered.clusters(beside, BOARD, measure, data=data, reference=overall.PIXELS)
    known = [over_sets([pairs[name]]) for name in BOARD["methods"]]
    assert len(known) == 29
    return sum(one.mean < 0 and overall.excludes_zero(one) for one in known)


def size(method: str, reference: str, measure: str) -> float:
    """The mean size of its runs' differences to another method's."""
    return fmean(absolute.differing(made(), BOARD, rows.ONE, method, reference, measure))


def audits(variant: str, field: str) -> list[float]:
    """The largest AUC of a field's scores, on Fashion-MNIST and CIFAR-10."""
    document = leaks.load()
    assert list(document["sets"]) == ["fashion_mnist", "cifar10"]
    found = []
    for data in document["sets"]:
        wanted = {one.address[1:] for one in leaks.attempts(document, sets=[data]) if one.variant == variant}
        lines = json_lines.read(leaks.RESULTS)
        own = [line for line in lines if (line["variant"], line["seed"], line["settings"]) in wanted]
        areas = [leaks.area(own, what) for what in leaks.attacks(own) if what[0] == field]
        found.append(round(leaks.CHANCE + max(area.mean for area in areas if area is not None), 2))
    return found


def labels_apart() -> dict[tuple[str, str], dict[str, str]]:
    """Each table that was measured by 1% of the labels, and what the methods told apart by it are called."""
    found = {}
    for data in BOARD["data"]:
        for partition in BOARD["partitions"]:
            methods = pairing.of_table(made(), data, partition, rows.ONE)
            if all(row[tables.LABELS] is not None for seeds in methods.values() for row in seeds.values()):
                pairs = {name: pairing.paired(methods[name], methods[rows.REFERENCE], tables.LABELS) for name in RANKED}
                known = {name: one for name, values in pairs.items() if (one := difference(values)) is not None}
                told = {name: str(one.judged()) for name, one in known.items()}
                found[data, partition] = {name: verdict for name, verdict in told.items() if verdict in (ABOVE, BELOW)}
    return found


def more_by_fewshot(data: str, partition: str) -> int:
    """How many more methods few-shot tells apart than fine-tuning with 1% of the labels does."""
    methods = pairing.of_table(made(), data, partition, rows.ONE)
    told = [difference(pairing.paired(methods[name], methods[rows.REFERENCE], FEWSHOT)) for name in RANKED]
    apart = sum(one is not None and one.judged() in (ABOVE, BELOW) for one in told)
    return apart - len(labels_apart()[data, partition])


def labels_range(data: str, partition: str) -> float:
    """By how much FedSimCLR's seeds differ at most after fine-tuning with 1% of the labels."""
    seeds = pairing.of_table(made(), data, partition, rows.ONE)[rows.REFERENCE].values()
    accuracies = [row[tables.LABELS] for row in seeds]
    return float(max(accuracies) - min(accuracies))


SENTENCES: list[tuple[str, str, Callable[[], bool]]] = [
    (RESULTS, "At its defaults no method is above FedSimCLR by more than one protocol",
     lambda: max(map(times_above, RANKED)) == 1),
    (RESULTS, "None of 24 methods is above it after Holm's correction, at their defaults or tuned.",
     lambda: len(RANKED) == 1 + 24 and not survivors_above(rows.ONE) and not survivors_above(rows.TUNED)),
    (RESULTS, "FedDF is not told apart: +0.6 points by kNN [-0.1, +1.3]. By linear probe it is above by 0.4 [+0.07, "
     "+0.74], not after Holm's correction.",
     lambda: words("feddf")[:2] == [OPEN, ABOVE] and interval("feddf", KNN) == [0.6, -0.1, 1.3]
     and interval("feddf", LINEAR, digits=2)[1:] == [0.07, 0.74] and interval("feddf", LINEAR)[0] == 0.4
     and not survivors_above(rows.ONE)),
    (RESULTS, "A fifth (Fashion-MNIST) or half (CIFAR-10) of FedSimCLR's bytes; by kNN below it on CIFAR-10, by 0.6 "
     "points, and not told apart on Fashion-MNIST.",
     lambda: between(0.18, [of_totals("flesd_cc", "fashion_mnist")], 0.22)
     and between(0.48, [of_totals("flesd_cc", "cifar10")], 0.52)
     and [words("flesd_cc", data=d)[0] for d in ("cifar10", "fashion_mnist")] == [BELOW, OPEN]
     and interval("flesd_cc", KNN, data="cifar10")[0] == -0.6),
    (RESULTS, "1.3 points below FedSimCLR by kNN [-1.7, -0.8] and 0.7 by few-shot; level by linear probe.",
     lambda: interval("local", KNN) == [-1.3, -1.7, -0.8] and interval("local", FEWSHOT)[0] == -0.7
     and words("local") == [BELOW, LEVEL, BELOW]),
    (RESULTS, "No method is above `local` by kNN or linear probe. FLESD is by few-shot: +1.1 points [+0.1, +2.2], not "
     "after Holm's correction.",
     lambda: all(ABOVE not in words(m, "local", rows.MIXED)[:2] for m in BOARD["mixed"]["methods"] if m != "local")
     and interval("flesd", FEWSHOT, "local", table=rows.MIXED) == [1.1, 0.1, 2.2]),
    (RESULTS, "AUC on Fashion-MNIST and CIFAR-10: FLESD's representations 0.50 and 0.51 (chance is 0.5), FedSimCLR's "
     "weights 0.56 and 0.56, FedCA's dictionary 0.91 and 0.83.",
     lambda: [audits("FLESD", "representations"), audits("FedSimCLR", "weights"), audits("FedCA", "dictionary")]
     == [[0.5, 0.51], [0.56, 0.56], [0.91, 0.83]]),
    (RESULTS, "Over `local` it is +1.3 points [+0.8, +1.7] and -0.1 [-0.7, +0.4]. Where clients have two classes each "
     "it gains more than on IID clients by few-shot; by kNN the two are not told apart.",
     lambda: interval(rows.REFERENCE, KNN, "local") == [1.3, 0.8, 1.7] and by_each(federating) == [OPEN, LEVEL, ABOVE]
     and interval(rows.REFERENCE, LINEAR, "local") == [-0.1, -0.7, 0.4]),
    (RESULTS, "By kNN it gains 1.0 points more in the mean, which an interval does not tell from zero. By both, more "
     "is left to gain by pooling the images, at equal steps or at a fifth of them",
     lambda: round(100 * federating(KNN).mean, 1) == 1.0
     and all(by_each(lambda measure: beyond_iid(measure, method)) == [ABOVE, OPEN, ABOVE]  # noqa: B023
             for method in ("centralized_equal_steps", "centralized"))),
    (RESULTS, "By linear probe federating gains nothing on any partition, and no more with two classes than on IID "
     "clients.",
     lambda: overall.verdict(federating(LINEAR)) == LEVEL and ABOVE not in [
         overall.verdict(over_board(made(), BOARD, LINEAR, partition=split, reference="local")[rows.REFERENCE])
         for split in BOARD["partitions"]]),
    (RESULTS, "Labels help most where all clients have all classes, by linear probe in the mean only; with two classes "
     "per client supervised FedAvg is not above FedSimCLR by any protocol.",
     lambda: by_each(lambda measure: beyond_iid(measure, "fedavg_supervised")) == [BELOW, OPEN, BELOW]
     and beyond_iid(LINEAR, "fedavg_supervised").mean < 0 and ABOVE not in by_each(
         lambda measure: over_board(made(), BOARD, measure, partition="two_classes")["fedavg_supervised"])),
    (RESULTS, "On IID clients that gap is half to five sixths of what it is with two classes each.",
     lambda: between(0.48, [gap_left(measure) for measure in rows.MEASURES], 0.85)),
    (RESULTS, "Run by run they end within 0.3 points of FedSimCLR (FedFoA: of `local`) in the mean, by every protocol.",
     lambda: all(size(method, other, measure) < absolute.NOTHING == 0.003 for measure in rows.MEASURES
                 for method, other in (("fedprox", rows.REFERENCE), ("ldawa", rows.REFERENCE), ("fedfoa", "local")))),
    (RESULTS, "FedDecorr is above FedSimCLR by kNN, by 1.1 points [+0.3, +1.8], and below by linear probe, by 1.8 "
     "[-2.7, -0.9].",
     lambda: interval("feddecorr", KNN) == [1.1, 0.3, 1.8] and interval("feddecorr", LINEAR) == [-1.8, -2.7, -0.9]),
    (RESULTS, "On Fashion-MNIST they beat 12 of 29 rows by kNN and 27 by few-shot; on CIFAR-10 none by kNN or linear "
     "probe.",
     lambda: [below_pixels("fashion_mnist", measure) for measure in (KNN, FEWSHOT)] == [12, 27]
     and [below_pixels("cifar10", measure) for measure in (KNN, LINEAR)] == [0, 0]),
    (RESULTS, "so seeds differ by more than most methods do. On CIFAR-10 it tells three methods apart from "
     "FedSimCLR with IID clients, one with Dirichlet 0.1 and three with two classes per client; on Fashion-MNIST five "
     "with IID clients, none with Dirichlet 0.1, but twelve with two classes per client. All that it tells apart on "
     "Fashion-MNIST are below FedSimCLR, whose own seeds are within two points of each other with two classes, and up "
     "to 16 apart with IID clients.",
     lambda: {table: len(methods) for table, methods in labels_apart().items()}
     == {("fashion_mnist", "iid"): 5, ("fashion_mnist", "dirichlet"): 0, ("fashion_mnist", "two_classes"): 12,
         ("cifar10", "iid"): 3, ("cifar10", "dirichlet"): 1, ("cifar10", "two_classes"): 3}
     and {word for (data, _), told in labels_apart().items() if data == "fashion_mnist" for word in told.values()}
     == {BELOW}
     and between(0.01, [labels_range("fashion_mnist", "two_classes")], 0.02)
     and between(0.16, [labels_range("fashion_mnist", "iid")], 0.17)),
    (RESULTS, "Few-shot, the mean of 20 draws of 50 labels, tells more apart in five of the six tables, and as many "
     "with two classes of Fashion-MNIST:",
     lambda: {table for table in labels_apart() if more_by_fewshot(*table) <= 0} == {("fashion_mnist", "two_classes")}
     and more_by_fewshot("fashion_mnist", "two_classes") == 0),
    (README, "on Fashion-MNIST they beat nearly half of the methods by kNN.",
     lambda: between(0.4, [below_pixels("fashion_mnist", KNN) / 29], 0.5)),
    (RESULTS, "are above FedSimCLR by two to six points, by every protocol on both data sets",
     lambda: between(2, [mean("centralized_equal_steps", m, data=d) for m in rows.MEASURES for d in SETS], 6.4)
     and all(words("centralized_equal_steps", data=d) == [ABOVE] * 3 for d in SETS)),
    (RESULTS, "More than a third of the methods are below `local` by all three protocols",
     lambda: len(by_all(BELOW, "local")) > len(RANKED) / 3),
    (RESULTS, "all that train with BYOL's, SimSiam's, MoCo's or the spectral loss, FedX and FedAE",
     lambda: by_all(BELOW, "local") == OWN_LOSS | {"fedx", "fedae"}),
    (README, "none of 24 other methods is above it once the number of comparisons is allowed for.",
     lambda: len(RANKED) == 1 + 24 and not survivors_above(rows.ONE)),
    (README, "is 0.56 for FedSimCLR's weights on both data sets, 0.91 and 0.83 for FedCA's dictionary.",
     lambda: [audits("FedSimCLR", "weights"), audits("FedCA", "dictionary")] == [[0.56, 0.56], [0.91, 0.83]]),
    (README, "FedSimCLR does by kNN, with five clients and",
     lambda: words("local")[0] == BELOW and words("local")[1] != BELOW),
]  # fmt: skip


@pytest.mark.parametrize(("page", "sentence", "holds"), SENTENCES)
def test_a_sentence_stands_in_its_page_and_the_rows_say_so(page: str, sentence: str, holds: Callable[[], bool]) -> None:
    assert stands(page, sentence)
    assert holds()
