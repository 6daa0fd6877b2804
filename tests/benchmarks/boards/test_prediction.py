"""What foretells a run's end: Kendall's tau within groups, and intervals over methods."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from boards import prediction
from scipy import stats

from tests.benchmarks.made import row


def group(early: Any, final: Any, method: Any = None) -> prediction.Group:
    """Runs of a method each, unless ``method`` says otherwise."""
    names = np.arange(len(early)) if method is None else np.asarray(method)
    return prediction.Group(np.asarray(early, float), np.asarray(final, float), names.astype(str))


def test_tau_is_kendalls_within_groups() -> None:
    rng = np.random.default_rng(1)
    groups = [group(rng.integers(0, 6, n), rng.integers(0, 6, n)) for n in (9, 14)]
    for x, y, _ in groups:
        assert prediction.tau([group(x, y)]) == pytest.approx(stats.kendalltau(x, y).statistic)
    agree = xs = ys = 0.0
    for x, y, _ in groups:
        for i, j in itertools.combinations(range(len(x)), 2):
            a, b = np.sign(x[i] - x[j]), np.sign(y[i] - y[j])
            agree, xs, ys = agree + a * b, xs + abs(a), ys + abs(b)
    assert prediction.tau(groups) == pytest.approx(agree / np.sqrt(xs * ys))


def test_the_interval_covers_what_there_is() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=60)
    low, high = prediction.interval([group(x, x + 0.5 * rng.normal(size=60))], draws=300)
    assert 0.3 < low < high < 1
    low, high = prediction.interval([group(x, rng.normal(size=60))], draws=300)
    assert low < 0 < high


def test_a_methods_seeds_are_drawn_together() -> None:
    """Copies of a run tell nothing new: the interval stays as wide as that of one run per method."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=20)
    y = x + rng.normal(size=20)
    once = prediction.interval([group(x, y)], draws=400)
    thrice = prediction.interval([group(np.repeat(x, 3), np.repeat(y, 3), np.repeat(np.arange(20), 3))], draws=400)
    alone = prediction.interval([group(np.repeat(x, 3), np.repeat(y, 3))], draws=400)
    assert thrice == pytest.approx(once, abs=0.05)
    assert alone[1] - alone[0] < 0.8 * (once[1] - once[0])


def test_a_methods_runs_of_all_groups_are_drawn_together() -> None:
    """Other data sets' copies of the runs tell nothing new: every draw has the same tau, and so the interval."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=12)
    y = x + rng.normal(size=12)
    one, names = group(x, y), [f"m{i}" for i in range(12)]
    once = prediction.interval([one], draws=300)
    assert prediction.interval([one] * 4, draws=300) == pytest.approx(once)
    # groups that have only some of the methods: the draws by hand, one method after the other
    seen = [names, names[:7], names[5:]]
    groups = [group(x[: len(own)], y[-len(own) :], own) for own in seen]
    draws, taus = np.random.default_rng(prediction.SEED), []
    for _ in range(300):
        drawn = [sorted(names)[i] for i in draws.integers(12, size=12)]
        picked = [[i for name in drawn for i in np.flatnonzero(each.method == name)] for each in groups]
        taus.append(prediction.tau([group(g.early[i], g.final[i]) for g, i in zip(groups, picked, strict=True)]))
    assert prediction.interval(groups, draws=300) == pytest.approx(tuple(np.nanpercentile(taus, [2.5, 97.5])))


def test_losses_are_compared_within_an_objective() -> None:
    made = [
        row(m, s, 0.1 * s, early_loss=loss + s, objective=o, early_effective_rank=1.0 + s)
        for o, loss in (("simclr", 5), ("byol", 0))
        for m in (f"fed{o}", f"other_{o}")
        for s in range(5)
    ]
    assert [len(found.early) for found in prediction.grouped(made, "early_loss")] == [10, 10]
    assert [len(found.early) for found in prediction.grouped(made, "early_effective_rank")] == [20]
    assert prediction.grouped(made, "early_loss", references=["fedsimclr", "fedbyol"]) == []
    found = {one.predictor: one for one in prediction.predictions(made)}
    assert found["early_loss"].tau == pytest.approx(1.0)
    assert "early_uniformity" not in found  # no run has it
    assert "not run yet" in prediction.table(made[:9])
    other_way = [one | {"linear": -one["knn"], "fewshot": None} for one in made]
    cells = next(line for line in prediction.table(other_way).splitlines() if "training loss" in line).split(" | ")
    assert [cell.split()[0] for cell in cells[1:4]] == ["+1.00", "-1.00", "-"]
