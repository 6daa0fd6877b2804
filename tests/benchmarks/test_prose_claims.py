"""What docs/results.md says of FedSC's claim, on Fashion-MNIST above all: each sentence computed from the runs."""

from __future__ import annotations

from collections.abc import Callable

import claims
import claims_tables as tables
import json_lines
import pytest

from tests.benchmarks.pages import ABOVE, BELOW, OPEN, RESULTS, stands

CLAIMS, LINES = claims.load()["claims"], json_lines.read(claims.RESULTS)
DIGITS, FASHION = "fedsc", "fedsc_fashion"
CLAIM = CLAIMS[FASHION]
RUNS = tables.runs_of(LINES, FASHION, CLAIM)
SC, FAST_SC = "FedAvg+SC, 1 step", "FedAvg+SC, 1 step, lr 0.1"
FEDSC, FAST_FEDSC = "FedSC, 1 step, alpha q_j", "FedSC, 1 step, alpha q_j, lr 0.1"
CHOSEN = [tables.chosen(RUNS, pair, "select/knn") for pair in ((FEDSC, FAST_FEDSC), (SC, FAST_SC))]


def words(first: str | None, second: str | None) -> list[str]:
    """What the first is over the second by kNN, few-shot and linear probe."""
    assert first is not None
    assert second is not None
    return [tables.verdict(tables.apart(RUNS, first, second, measure)) for measure in CLAIM["measures"]]


def on_digits(pair: list[str]) -> list[str]:
    found = tables.compared(tables.runs_of(LINES, DIGITS, CLAIMS[DIGITS]), CLAIMS[DIGITS], pair)
    return [tables.verdict(one) for one in found.differences.values()]


SENTENCES: list[tuple[str, Callable[[], bool]]] = [
    ("On Fashion-MNIST it holds, too, with an exchange at every step and alpha q_j, by kNN and few-shot at one "
     "learning rate.",
     lambda: words(FEDSC, SC) == [ABOVE, ABOVE, OPEN]),
    ("FedSC bears a larger one, which lifts it by both and makes FedAvg+SC lower by few-shot and linear probe.",
     lambda: words(FAST_FEDSC, FEDSC) == [ABOVE, ABOVE, OPEN] and words(FAST_SC, SC) == [OPEN, BELOW, BELOW]),
    ("Each at the rate that held-out kNN chooses, FedSC is above by all three protocols.",
     lambda: CHOSEN == [FAST_FEDSC, FAST_SC] and words(*CHOSEN) == [ABOVE] * 3),
    ("Held-out kNN hardly tells FedAvg+SC's two rates apart; over the smaller one FedSC is above by all three, too.",
     lambda: tables.verdict(tables.apart(RUNS, FAST_SC, SC, "select/knn")) == OPEN
     and words(FAST_FEDSC, SC) == [ABOVE] * 3),
    ("With one class per client and method.alpha=share it is then above averaging with its loss by kNN and few-shot, "
     "on the digits and on Fashion-MNIST; with five steps between exchanges it is not, on the digits.",
     lambda: all(each["base"]["data"]["partition"] == {"name": "class_blocks", "classes": 1}
                 for each in (CLAIMS[DIGITS], CLAIM))
     and all(each["variants"][FEDSC]["method.alpha"] == "share" for each in (CLAIMS[DIGITS], CLAIM))
     and on_digits([FEDSC, SC])[:2] == words(FEDSC, SC)[:2] == [ABOVE] * 2
     and all(ABOVE not in on_digits(pair) for pair in CLAIMS[DIGITS]["compare"]
             if pair[0].startswith("FedSC, 5 steps") and pair[1].startswith("FedAvg+SC, 5 steps"))),
    ("0.1 is the largest rate that ran.",
     lambda: {keys.get("train.optimizer.lr", 0.03) for name, keys in CLAIM["variants"].items() if RUNS.get(name)}
     == {0.03, 0.1}
     and CLAIM["base"]["train"]["optimizer"]["lr"] == 0.03),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "holds"), SENTENCES, ids=[sentence[:60] for sentence, _ in SENTENCES])
def test_what_the_page_says_follows_from_the_runs(sentence: str, holds: Callable[[], bool]) -> None:
    assert stands(RESULTS, sentence)
    assert holds()
