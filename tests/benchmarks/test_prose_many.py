"""What the pages say of fifty clients, of whom ten take part in a round: each sentence computed from the rows."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest
from boards import many, pairing, rows

from tests.benchmarks.pages import ABOVE, BELOW, LEADERBOARD, OPEN, README, RESULTS, between, stands
from tests.benchmarks.prose_boards import OfBoard

MADE = OfBoard(rows.MANY)
BOARD, RANKED = MADE.board, MADE.ranked
KNN, LINEAR, FEWSHOT = rows.MEASURES
SPECTRAL_OR_BYOL = ("fedsc", "fedavg_sc", "fedbyol", "fedema")
found, words, points = MADE.found, MADE.words, MADE.points


def with_few(method: str, data: str) -> float:
    """The mean difference by kNN in points with five clients of two classes each, all in every round."""
    runs = pairing.of_table(rows.read(), data, many.FEW, rows.ONE)
    return 100 * fmean(pairing.paired(runs[method], runs[rows.REFERENCE], KNN))


def moved(method: str) -> list[float]:
    """On each data set, how far the mean difference by kNN is from that with five clients, in points."""
    return [abs(100 * found(data=data)[KNN][method].mean - with_few(method, data)) for data in BOARD["data"]]


def above_on_one() -> dict[tuple[str, str, str], float]:
    """(method, data set, measure) -> the mean difference in points, of every one that is above on a single data set."""
    return {
        (method, data, measure): points(method, measure, data=data)[0]
        for data in BOARD["data"] for method in RANKED
        for measure, word in zip(rows.MEASURES, words(method, data=data), strict=True) if word == ABOVE
    }  # fmt: skip


SENTENCES: list[tuple[str, str, Callable[[], bool]]] = [
    (RESULTS, "No method is above FedSimCLR there.",
     lambda: all(ABOVE not in words(method) for method in RANKED)),
    (README, "clients that train alone for as many steps (local). Many do not. "
     "FedSimCLR does by kNN, with five clients and with fifty, of which ten train in a round, but not by "
     "linear probe.", lambda: words("local_every_round")[:2] == [BELOW, OPEN]),
    (LEADERBOARD, "No method is above FedSimCLR by any protocol. On one data set two are, by linear probe: FedDF on "
     "CIFAR-10, by 2.2 points, and FLESD on Fashion-MNIST, by 1.5.",
     lambda: all(ABOVE not in words(method) for method in RANKED)
     and above_on_one() == {("feddf", "cifar10", LINEAR): 2.2, ("flesd", "fashion_mnist", LINEAR): 1.5}),
    (LEADERBOARD, "Over both data sets these are 1.5 [-0.1, +3.1] and 1.3 [-0.2, +2.8], and by kNN FLESD is below by "
     "1.5.",
     lambda: points("feddf", LINEAR) == [1.5, -0.1, 3.1] and points("flesd", LINEAR) == [1.3, -0.2, 2.8]
     and words("flesd")[0] == BELOW and points("flesd", KNN)[0] == -1.5),
    (LEADERBOARD, "Their servers take steps on public images, FedDF's as many as a round's clients.",
     lambda: BOARD["methods"]["feddf"]["method.steps"] == 10 * BOARD["partitions"][many.MANY]["train.local_steps"]),
    (LEADERBOARD, "it is below by all three protocols, by 4.0 points by kNN.",
     lambda: words("local") == [BELOW] * 3 and points("local", KNN)[0] == -4.0),
    (LEADERBOARD, "It is below by kNN, by 2.0 points, about what five clients lose alone, and barely by few-shot; by "
     "linear probe it is not told apart.",
     lambda: words("local_every_round") == [BELOW, OPEN, BELOW] and points("local_every_round", KNN)[0] == -2.0
     and abs(fmean(with_few("local", data) for data in BOARD["data"]) + 2.0) < 0.3
     and between(-0.1, points("local_every_round", FEWSHOT)[2:], 0)),
    (LEADERBOARD, "are within a point of where they stood beside FedSimCLR with five clients, on both data sets. "
     "FedFoA stands beside local, as it did.",
     lambda: all(between(0, moved(method), 1) for method in ("fedsc", "fedca", "orchestra"))
     and all(abs(points("fedfoa", measure, "local")[0]) <= 0.2 for measure in rows.MEASURES)),
    (LEADERBOARD, "Methods that train with BYOL's or the spectral loss are below FedSimCLR by kNN, by about five "
     "points, and all but FedSC by few-shot.",
     lambda: all(words(method)[0] == BELOW and between(-5.6, points(method, KNN)[:1], -4.7)
                 for method in SPECTRAL_OR_BYOL)
     and [method for method in SPECTRAL_OR_BYOL if words(method)[2] != BELOW] == ["fedsc"]),
]  # fmt: skip


@pytest.mark.parametrize(("page", "sentence", "holds"), SENTENCES, ids=[sentence[:60] for _, sentence, _ in SENTENCES])
def test_what_the_pages_say_follows_from_the_rows(page: str, sentence: str, holds: Callable[[], bool]) -> None:
    assert stands(page, sentence)
    assert holds()
