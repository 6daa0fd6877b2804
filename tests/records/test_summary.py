"""summary.json from a run's tables: the fixed keys, best and last, and values that JSON cannot hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rayfed_ssl.federated.ledger import Booking
from rayfed_ssl.records.journal import Journal
from rayfed_ssl.records.summary import (
    best_and_last,
    evaluated_rounds,
    last_of,
    replies,
    rounds_to,
    summarise,
)
from rayfed_ssl.records.summary_file import write_summary
from rayfed_ssl.records.tables import METRICS, table

KEYS = """method dataset seed rounds clients accuracy best untrained pixels dropped void_rounds communication epsilon
wall_s train_images_per_s status"""
TEST = {"by": "test labels"}


def record(folder: Path, rounds: range, resume_round: int | None = None) -> None:
    records = Journal(folder, resume_round=resume_round, clients=2)
    if resume_round is None:
        records.metric(0, "eval/knn", 0.2)
        records.metric(0, "eval/pixels_fewshot", 0.25)
        for client in range(2):
            records.metric(0, "eval/task", 0.1 * client, client)
        records.commit(0)
    for t in rounds:
        records.metric(t, "train/images", 100.0)
        records.metric(t, "train/images", 50.0, client=0)  # part of the 100, not on top of it
        records.metric(t, "system/round_s", 0.5 * t)
        records.metric(t, "eval/knn", [0.0, 0.5, 0.7, 0.6, math.nan][t])
        for client, value in enumerate([[0, 0], [0.2, 0.4], [0.9, 0.1], [0.3, 0.4], [0.6, 0.2]][t]):
            records.metric(t, "eval/task", value, client)
        records.communication(
            [Booking(t, 0, "up", "train", "weights", 7), Booking(t, 0, "down", "train", "weights", 9)]
        )
        records.commit(t)
    records.close()


def summary_of(folder: Path) -> dict[str, object]:
    return summarise(folder, method="fedsc", dataset="digits", seed=3, rounds=4, clients=2, status="complete")


def test_the_summary_of_a_run(tmp_path: Path) -> None:
    record(tmp_path, range(1, 5))
    summary = summary_of(tmp_path)
    assert list(summary) == KEYS.split()
    wall_s = summary.pop("wall_s")
    assert isinstance(wall_s, float)
    assert 0 < wall_s < 60
    assert summary == {
        "method": "fedsc",
        "dataset": "digits",
        "seed": 3,
        "rounds": 4,
        "clients": 2,
        "accuracy": {"knn": None, "task": {"0": 0.6, "1": 0.2}},
        "best": {
            "knn": {"value": 0.7, "round": 2, "by": "test labels"},
            "task": {"value": 0.5, "round": 2, "by": "test labels"},
        },
        "untrained": {"knn": 0.2, "task": {"0": 0.0, "1": 0.1}},
        "dropped": {"clients": 0, "times": 0},
        "void_rounds": 0,
        "pixels": {"fewshot": 0.25},
        "communication": {"up_bytes": 28, "down_bytes": 36},
        "epsilon": None,
        "train_images_per_s": 400 / 5.0,
        "status": "complete",
    }
    write_summary(tmp_path, summary)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_a_resumed_run_gives_the_same_summary(tmp_path: Path) -> None:
    record(tmp_path / "whole", range(1, 5))
    record(tmp_path / "run", range(1, 4))
    record(tmp_path / "run", range(3, 5), resume_round=2)
    whole, run = summary_of(tmp_path / "whole"), summary_of(tmp_path / "run")
    assert {**whole, "wall_s": 0} == {**run, "wall_s": 0}


def test_what_became_of_the_clients_asked_is_summed_over_rounds() -> None:
    rows = [(1, "asked", 6.0), (1, "late", 1.0), (2, "asked", 5.0), (2, "late", 0.0), (2, "dropped_out", 2.0)]
    metrics = table([(t, None, f"system/{kind}", value, 0.0) for t, kind, value in rows], METRICS)
    assert replies(metrics) == {"asked": 11, "late": 1, "dropped_out": 2}
    assert replies(table([(1, None, "system/dropped_clients", 1.0, 0.0)], METRICS)) == {}  # failures, without a clock


def test_best_is_of_trained_rounds_and_the_earlier_of_equals() -> None:
    rows = [(0, 0.9), (1, 0.4), (2, 0.6), (3, 0.6), (4, 0.5)]
    metrics = table([(t, None, "eval/linear", value, 0.0) for t, value in rows], METRICS)
    assert best_and_last(metrics) == ({"linear": {"value": 0.6, "round": 2, **TEST}}, {"linear": 0.5})


def test_held_out_images_choose_the_best_round_whatever_the_test_labels_say() -> None:
    select = [(1, 0.5), (2, 0.3), (3, 0.6), (4, 0.6), (0, 0.9)]
    tests = [(1, 0.99), (2, 0.2), (3, 0.1), (4, 0.8), (0, 1.0)]
    rows = [(t, None, "select/knn", value, 0.0) for t, value in select]
    rows += [(t, None, "eval/knn", value, 0.0) for t, value in tests]
    rows += [(t, c, "eval/task", 0.1 * t * c, 0.0) for t in (1, 2) for c in (0, 1)]
    rows += [(t, c, "select/task", 0.5 - 0.1 * t + 0.2 * c, 0.0) for t in (1, 2) for c in (0, 1)]
    best, last = best_and_last(table(rows, METRICS))
    assert best["knn"] == {"value": 0.1, "round": 3, "by": "held-out labels", "select": 0.6}
    assert best["task"] == {"value": 0.05, "round": 1, "by": "held-out labels", "select": 0.5}
    assert last == {"knn": 0.8, "task": {"0": 0.0, "1": 0.2}}
    assert last_of(table(rows, METRICS), "select") == {"knn": 0.6, "task": {"0": 0.3, "1": 0.5}}
    rows += [(5, None, "features/rankme", 3.0, 0.0), (6, None, "features/spectrum/000", 3.0, 0.0)]
    assert evaluated_rounds(table(rows, METRICS)) == {0, 1, 2, 3, 4, 5, 6}
    assert last_of(table(rows, METRICS), "features") == {"rankme": 3.0}


def test_untrained_is_not_passed_off_as_trained() -> None:
    untrained = (0, None, "eval/linear", 0.9, 0.0)
    assert best_and_last(table([untrained, (1, None, "train/loss", 2.0, 0.0)], METRICS)) == ({}, {})
    for group in ("features", "select"):
        before = (0, None, f"{group}/rankme", 3.0, 0.0)
        assert last_of(table([before], METRICS), group) == {"rankme": 3.0}
        assert last_of(table([before, (1, None, "train/loss", 2.0, 0.0)], METRICS), group) == {}
    assert best_and_last(table([untrained], METRICS)) == (
        {"linear": {"value": 0.9, "round": 0, **TEST}},
        {"linear": 0.9},
    )


def test_protocols_evaluated_at_different_rounds_and_a_global_value_beside_its_clients() -> None:
    rows = [(2, None, "eval/knn", 0.3, 0.0), (4, None, "eval/knn", 0.5, 0.0), (2, None, "eval/linear", 0.7, 0.0)]
    rows += [(4, client, "eval/knn", 0.1, 0.0) for client in range(3)] + [(4, None, "eval/knn/top5", 0.9, 0.0)]
    best, last = best_and_last(table(rows, METRICS))
    assert last == {"knn": 0.5, "linear": 0.7}
    assert best == {"knn": {"value": 0.5, "round": 4, **TEST}, "linear": {"value": 0.7, "round": 2, **TEST}}


def test_rounds_to_an_accuracy_are_of_the_clients_mean_and_not_of_round_0() -> None:
    rows = [(t, None, "eval/knn", value, 0.0) for t, value in ((4, 0.5), (0, 0.9), (2, 0.3), (6, 0.45))]
    rows += [(t, c, "eval/task", 0.1 * t + 0.2 * c, 0.0) for t in (2, 4) for c in (0, 1)]
    rows += [(0, None, "eval/pixels_fewshot", 0.9, 0.0)]
    assert rounds_to(table(rows, METRICS), (0.3, 0.4, 0.95)) == {
        "knn": {"0.3": 2, "0.4": 4, "0.95": None},
        "task": {"0.3": 2, "0.4": 4, "0.95": None},
    }


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [(None, None), (3.5, 3.5), (math.inf, None), ({1: 2.0, 0: math.inf}, {"0": None, "1": 2.0})],
)
def test_epsilon_and_an_empty_run(tmp_path: Path, epsilon: object, expected: object) -> None:
    Journal(tmp_path, clients=2).close()
    common = {"method": "m", "dataset": "d", "seed": 0, "rounds": 0, "clients": 2, "status": "failed"}
    summary = summarise(tmp_path, **common, epsilon=epsilon)  # type: ignore[arg-type]
    assert summary["epsilon"] == expected
    assert summary["train_images_per_s"] is None
    assert summary["accuracy"] == summary["best"] == summary["untrained"] == summary["pixels"] == {}
    write_summary(tmp_path, summary)
