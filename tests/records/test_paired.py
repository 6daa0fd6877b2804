"""A run's accuracies over its untrained encoder's and raw pixels', image by image: against scipy's paired t test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from rayfed_ssl.evaluation import Outcomes
from rayfed_ssl.records.outcomes import ALL, FILE, PIXELS_FILE, UNTRAINED_FILE, write_outcomes
from rayfed_ssl.records.paired import paired
from rayfed_ssl.report.evaluated import verdict_of
from rayfed_ssl.report.verdict import verdict
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.tiny import run_locally, tiny

LABELS = np.arange(40) % 4


def written(folder: Path, file: str, right: Mapping[Any, np.ndarray], labels: np.ndarray = LABELS) -> None:
    outcomes = {client: Outcomes({"knn": counts.astype(np.uint8)}, {"knn": 1}) for client, counts in right.items()}
    write_outcomes(folder, 1, outcomes, labels, file=file)


def summary(last: Any, untrained: Any, **more: Any) -> dict[str, Any]:
    return {
        "rounds": 3, "status": "complete", "accuracy": {"knn": last}, "untrained": {"knn": untrained},
        "evaluation": {"test_images": 40}, **more,
    }  # fmt: skip


def test_the_interval_is_that_of_a_paired_t_test_over_images(tmp_path: Path) -> None:
    """Five images are gained and none lost: independent answers could not tell that from chance."""
    before = np.zeros(40, int)
    before[:28] = 1
    after = before.copy()
    after[28:33] = 1
    written(tmp_path, FILE, {None: after})
    written(tmp_path, UNTRAINED_FILE, {None: before})
    run = summary(0.825, 0.7)
    low, high = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert paired(tmp_path, run) == {"untrained": {"knn": pytest.approx([low, high])}}
    told = verdict({**run, "paired": paired(tmp_path, run)})
    assert told.kind == "better"
    assert f"+12.5 points (95 % interval [+{100 * low:.1f}, +{100 * high:.1f}] over 40 test images)" in told.sentence
    assert verdict(run).kind == "not told apart"  # without knowing which images were right


def test_of_several_encoders_the_mean_of_an_image_counts(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    before, after = ({client: draws.random(40) < p for client in (0, 1, 2)} for p in (0.5, 0.8))
    written(tmp_path, FILE, after)
    written(tmp_path, UNTRAINED_FILE, before)
    run = summary(*({str(c): float(of[c].mean()) for c in of} for of in (after, before)))
    means = [np.mean([of[c] for c in of], axis=0) for of in (after, before)]
    assert paired(tmp_path, run)["untrained"]["knn"] == pytest.approx(
        list(stats.ttest_rel(*means).confidence_interval(0.95))
    )


def test_there_is_none_where_the_answers_are_not_of_the_recorded_numbers_or_images(tmp_path: Path) -> None:
    right = LABELS > 0
    written(tmp_path, FILE, {None: right})
    assert paired(tmp_path, summary(0.75, 0.75)) == {}  # nothing was kept of before
    written(tmp_path, UNTRAINED_FILE, {None: right})
    assert paired(tmp_path, summary(0.75, 0.75))["untrained"]["knn"] == pytest.approx([-3 / 40, 3 / 40])
    assert paired(tmp_path, summary(0.75, 0.5)) == {}
    assert paired(tmp_path, summary({"0": 0.75, "1": None}, 0.75)) == {}
    written(tmp_path, UNTRAINED_FILE, {None: right}, labels=(LABELS + 1) % 4)
    assert paired(tmp_path, summary(0.75, 0.75)) == {}


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedsimclr", "local"])
def test_a_run_keeps_what_was_right_before_training_and_says_by_it(tmp_path: Path, method: str) -> None:
    """The second run remembers the untrained encoder's values and the pixels', and their outcomes with them."""
    config = tiny(method, train__rounds=1, clients__count=3, evaluation__protocols=["knn", "linear"])
    for name in ("first", "second"):
        made = run_locally(config, folder := tmp_path / name)
        for block, file in (("untrained", UNTRAINED_FILE), ("pixels", PIXELS_FILE)):
            table = pq.read_table(folder / file)
            for score in ("knn", "linear"):
                recorded = made[block][score]
                values = list(recorded.values()) if isinstance(recorded, dict) else [recorded]
                assert np.mean(table[score].to_numpy()) == pytest.approx(np.mean(values))
                low, high = made["paired"][block][score]
                ours = np.asarray(pq.read_table(folder / FILE)[score].to_numpy(), float).reshape(-1, 60).mean(0)
                theirs = np.asarray(table[score].to_numpy(), float).reshape(-1, 60).mean(0)
                if np.ptp(ours - theirs):
                    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
                    assert (low, high) == pytest.approx((expected.low, expected.high))
        assert json.loads((folder / "summary.json").read_text())["paired"] == made["paired"]
    for file in ALL:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


EVERY = {"evaluation__metrics": ["accuracy", "balanced_accuracy", "auc"], "evaluation__protocols": ["knn", "fewshot"]}


def shares_of(folder: Path, file: str, score: str) -> tuple[np.ndarray, np.ndarray]:
    """(M,) what a column says of each image, of encoders and draws the mean; and the labels."""
    table = pq.read_table(folder / file)
    draws = json.loads(table.schema.metadata[b"draws"])[score]
    return np.asarray(table[score].to_numpy(), float).reshape(-1, 60).mean(0) / draws, table["label"].to_numpy()[:60]


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedsimclr", "local"])
def test_balanced_accuracies_and_areas_have_intervals_in_a_run_and_once_it_is_evaluated_again(
    tmp_path: Path, method: str
) -> None:
    """Of several clients the mean; by the columns of the files, class by class for a balanced accuracy."""
    made = run_locally(tiny(method, train__rounds=1, clients__count=2, **EVERY), tmp_path)
    scores = {f"{protocol}{end}" for protocol in ("knn", "fewshot") for end in ("", "_balanced_accuracy", "_auc")}
    for block, file in (("untrained", UNTRAINED_FILE), ("pixels", PIXELS_FILE)):
        assert set(made["paired"][block]) == scores
        for protocol in ("knn", "fewshot"):
            (ours, labels), (theirs, _) = (shares_of(tmp_path, name, protocol) for name in (FILE, file))
            parts = [(ours - theirs)[labels == label] for label in set(labels.tolist())]
            pieces = [float(part.var(ddof=1)) / len(part) / len(parts) ** 2 for part in parts]
            low, high = made["paired"][block][f"{protocol}_balanced_accuracy"]
            assert (low + high) / 2 == pytest.approx(np.mean([part.mean() for part in parts]))
            assert high - low >= 2 * 1.96 * np.sqrt(sum(pieces))
            (ours, _), (theirs, _) = (shares_of(tmp_path, name, f"{protocol}_auc") for name in (FILE, file))
            expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
            assert made["paired"][block][f"{protocol}_auc"] == pytest.approx([expected.low, expected.high])
            for recorded, area in ((made["accuracy"], ours), (made[block], theirs)):
                value = recorded[f"{protocol}_auc"]
                mean = np.mean(list(value.values())) if isinstance(value, dict) else value
                assert area.mean() == pytest.approx(mean, abs=1e-9)
    again = reevaluate(tmp_path)
    for block in ("untrained", "pixels"):
        over = again[f"over {block}"]
        whole = over["mean of clients"] if method == "local" else next(iter(over.values()))
        assert {name: pytest.approx(ends) for name, ends in whole.items()} == made["paired"][block]


def test_a_balanced_accuracy_and_an_area_are_judged_by_their_intervals() -> None:
    """Their words are in the sentence; without ``paired``, as of an earlier version, they have none."""
    last = {"knn": 0.8, "knn_balanced_accuracy": 0.6, "knn_auc": 0.91}
    before = {"knn": 0.6, "knn_balanced_accuracy": 0.7, "knn_auc": 0.90}
    ends = {"knn": [0.1, 0.3], "knn_balanced_accuracy": [-0.15, -0.05], "knn_auc": [-0.02, 0.04]}
    run = {**summary(0, 0), "accuracy": last, "untrained": before, "pixels": before}
    told = verdict({**run, "paired": {"untrained": ends, "pixels": ends}}).sentence.replace("\N{MINUS SIGN}", "-")
    assert "but kNN AUC does not tell them apart (+0.010), kNN balanced accuracy says worse (-10.0)" in told
    assert "; kNN balanced accuracy is 10.0 points below the raw pixels" in told
    assert "; kNN AUC is not told apart from the raw pixels (+0.010)" in told
    assert "balanced" not in verdict(run).sentence
    above = {"knn_auc": [0.002, 0.018]}
    area = {**run, "accuracy": {"knn_auc": 0.91}, "untrained": {"knn_auc": 0.9}, "pixels": {"knn_auc": 0.9}}
    told = verdict({**area, "paired": {"untrained": above, "pixels": above}}).sentence
    assert "kNN AUC 0.910 against 0.900, +0.010 (95 % interval [+0.002, +0.018] over 40 test images)" in told
    assert told.endswith("; kNN AUC is 0.010 above the raw pixels.")


@pytest.mark.long
def test_evaluating_a_run_again_pairs_too_and_so_on_other_images(tmp_path: Path) -> None:
    made = run_locally(tiny("fedsimclr", train__rounds=1, evaluation__protocols=["knn", "linear"]), tmp_path / "run")
    found = reevaluate(tmp_path / "run", ["knn"])
    ((name, over),) = found["over untrained"].items()
    assert over == {"knn": pytest.approx(made["paired"]["untrained"]["knn"])}
    assert found["over pixels"] == {name: {"knn": pytest.approx(made["paired"]["pixels"]["knn"])}}
    told = verdict_of(tmp_path / "run", found)
    assert told is not None
    low, high = (f"{100 * end:+.1f}".replace("-", "\N{MINUS SIGN}") for end in over["knn"])
    assert f"(95 % interval [{low}, {high}] over 60 test images" in told.sentence
    found = reevaluate(tmp_path / "run", ["linear"], data="digits")
    other = found["other data"]["digits"]
    assert set(other["over untrained"]) == {name}
    assert other["over untrained"][name].keys() == other["over pixels"][name].keys() == {"linear"}
    assert set(reevaluate(tmp_path / "run", ["linear"])["over untrained"][name]) == {"knn", "linear"}


@pytest.mark.long
def test_a_resumed_run_has_kept_them(tmp_path: Path) -> None:
    config = tiny("fedsimclr", train__rounds=2, evaluation__every=0)
    whole = run_locally(config, tmp_path / "whole")
    seen = [0]
    run_locally(config, tmp_path / "run", report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= 1)
    assert run_locally(config, tmp_path / "run", resume=True)["paired"] == whole["paired"]
    for file in ALL:
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
