"""What messages give away: variants can be configured, and lines become areas with the right arithmetic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import claims
import json_lines
import leaks
import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from rayfed_ssl.config import build
from rayfed_ssl.leak.run import leak
from rayfed_ssl.testing.tiny import run_locally, tiny_run

PRIVATE = {"method.name": "fedsc", "method.privacy.epsilon": 8, "method.privacy.delta": 0.002}
DOCUMENT = {**leaks.load(), "variants": {"a": PRIVATE, "b": {}}}
DATA, OTHER = DOCUMENT["sets"]
AREAS = {
    ("weights", "views"): [[0.6, 0.7], [0.5, 0.6], [0.8, 0.6]],
    ("weights", "loss"): [[0.5, 0.6], [0.4, 0.6], [0.5, 0.5]],
    ("correlation", "matrix"): [[0.4, 0.5], [0.5, 0.6], [0.5, 0.5]],
}


def line(variant: str, seed: int, data: str = DATA, **other: Any) -> claims.Line:
    (attempt,) = [one for one in leaks.attempts(DOCUMENT, sets=[data]) if (one.variant, one.seed) == (variant, seed)]
    findings = [
        {
            "client": client, "field": field, "score": score, "members": 135, "auc": auc, "low": auc - 0.1,
            "high": auc + 0.1,
        }
        for (field, score), seeds in AREAS.items()
        for client, auc in enumerate(seeds[seed])
    ]  # fmt: skip
    return {
        "variant": variant, "seed": seed, "settings": attempt.settings, "findings": findings, "commit": "abc",
        "epsilon": None, "knn": 0.5 + 0.1 * seed, "bytes": 10**6 * (1 + seed), "minutes": 1.0 + seed, **other,
    }  # fmt: skip


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines() if row.startswith("|")]


def test_every_variant_can_be_configured_and_has_settings_of_its_own() -> None:
    found = list(leaks.attempts(leaks.load(), seeds=1))
    assert len({one.settings for one in found}) == len(found) > 5
    assert {one.claim for one in found} == {DATA, OTHER}
    for one in found:
        config = build(one.base, {**one.keys, "seed": 0, "data.path": "images"}, origin=one.variant)
        assert config.train.rounds == 10


def test_an_area_is_over_seeds_each_the_mean_over_clients() -> None:
    table = leaks.table([line("a", seed, epsilon=1.5 + seed) for seed in range(3)], DOCUMENT, DATA)
    _, _, weights, loss, correlation, absent = cells(table)
    for row, attack in zip((weights, loss, correlation), AREAS, strict=True):
        means = np.mean(AREAS[attack], axis=1)
        low, high = stats.ttest_1samp(means, 0.5).confidence_interval(0.95)
        text = f"{means.mean():.3f} [{low:.3f}, {high:.3f}]"
        assert row[1:5] == [*attack, "3", f"**{text}**" if low > 0.5 else text]
    assert weights[5:] == ["2 of 6", "", "0.600", "2.0"]  # 0.7 and 0.8 less 0.1 are above chance
    assert correlation[5:] == ["0 of 6", "3.50 at delta 0.002", "", ""]  # an epsilon is of the correlation alone
    assert absent[:2] == ["b", "not run yet"]
    assert "135 members and as many others each. Made at abc, 1.0 to 3.0 minutes a run beside other work." in table


def test_lines_of_other_settings_do_not_count() -> None:
    other = leaks.table([line("a", 0, settings="other")], DOCUMENT, DATA)
    assert [row[1] for row in cells(other)[2:]] == ["not run yet"] * 2
    assert "Made at" not in other
    assert leaks.accuracy({"knn": {"0": 0.2, "1": 0.4}}) == pytest.approx(0.3)  # of encoders of their own
    one = leaks.table([line("a", 0)], DOCUMENT, DATA)
    assert cells(one)[2][3:7] == ["1", "0.650", "1 of 2", ""]  # of one seed there is no interval
    assert cells(one)[4][6] == "none"
    assert leaks.said(line("a", 0)).startswith("weights (views) 0.650, weights (loss) 0.550, correlation (matrix) 0.45")


def test_each_set_of_images_has_a_table_of_its_own_lines() -> None:
    lines = [line("a", 0), line("a", 1), line("a", 0, data=OTHER, commit="def")]
    first, second = leaks.tables(lines, DOCUMENT).split("\n\n**")
    assert (cells(first)[2][3], cells(second)[2][3]) == ("2", "1")
    assert ("Fashion-MNIST" in first, "CIFAR-10" in second) == (True, True)
    assert ("def" in first.split("|")[0], "abc" in second.split("|")[0]) == (False, False)


@pytest.mark.long
def test_a_line_says_what_the_audit_found(tmp_path: Path) -> None:
    changes = {
        "data.limit": 240, "data.partition.name": "iid", "evaluation.select": {"share": 0.35}, "train.rounds": 2,
        "evaluation.protocols": ["knn"],
    }  # fmt: skip
    run = tmp_path / "run"
    summary = run_locally(tiny_run("fedsc", changes), run)
    found = leak(run, clients=[0, 1])
    made = leaks.line_of(next(leaks.attempts(DOCUMENT)), run)
    told = {(one["client"], *leaks.attack(one)): (one["auc"], one["low"], one["high"]) for one in made["findings"]}
    assert told == {(f.client, f.field, f.score): (f.found.auc, f.found.low, f.found.high) for f in found.findings}
    assert {field for _, field, _ in told} >= {"(untrained encoder)", "correlation", "weights"}
    assert made["bytes"] == sum(pq.read_table(run / "communication.parquet")["bytes"].to_pylist())
    assert (made["knn"], made["epsilon"]) == (summary["accuracy"]["knn"], None)
    json.dumps(made)


def test_the_table_has_all_that_was_measured() -> None:
    if not (lines := json_lines.read(leaks.RESULTS)):
        pytest.skip("no lines yet")
    document = leaks.load()
    for data in document["sets"]:
        table = leaks.table(lines, document, data)
        assert "not run yet" not in table or "Made at" not in table  # all of a set's runs are there, or none
    wanted = {one.address[1:] for one in leaks.attempts(document)}
    assert {(one["variant"], one["seed"], one["settings"]) for one in lines} <= wanted  # none of other settings
