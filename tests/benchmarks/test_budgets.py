"""The search for budgets: its attempts are runs that can be configured, and its lines make a table."""

from __future__ import annotations

import json

import budgets
import json_lines
import pytest
import yaml

from rayfed_ssl.config import build

DOCUMENT = yaml.safe_load(budgets.ATTEMPTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("data", "name", "keys", "seed"), list(budgets.attempts(DOCUMENT)))
def test_every_attempt_can_be_configured(data: str, name: str, keys: dict[str, object], seed: int) -> None:
    config = build(DOCUMENT[data]["base"], {**keys, "seed": seed, "data.path": data}, origin=name)
    assert config.evaluation.select is not None  # what is chosen by


def test_seeds_are_attempts_of_their_own() -> None:
    document = {"cifar10": {"base": {}, "attempts": {"a": {"train.rounds": 3, "seeds": [4, 5]}, "b": {}}}}
    assert list(budgets.attempts(document)) == [
        ("cifar10", "a", {"train.rounds": 3}, 4),
        ("cifar10", "a", {"train.rounds": 3}, 5),
        ("cifar10", "b", {}, 0),
    ]


def test_a_line_is_a_row_of_the_table() -> None:
    line = {
        "data": "cifar10", "attempt": "a", "keys": {"train.rounds": 3}, "seed": 4, "minutes": 2.0, "cpu_minutes": 1.26,
        "trained": {"knn": 0.5, "linear": 0.6, "select/knn": 0.48}, "commit": "abc",
        "untrained": {"knn": 0.4, "linear": 0.55, "select/knn": 0.33},
    }  # fmt: skip
    _, _, row = budgets.table([line]).splitlines()
    wanted = ["cifar10", "a", "`train.rounds=3`", "4", "0.400 -> 0.500", "0.550 -> 0.600", "0.330 -> 0.480", "+0.150"]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [*wanted, "2.0 (1.3)", "abc"]


def test_every_line_that_was_written_can_be_read() -> None:
    lines = json_lines.read(budgets.RESULTS)
    assert len(budgets.table(lines).splitlines()) == 2 + len(lines)
    assert all(json.loads(json.dumps(line)) == line for line in lines)
