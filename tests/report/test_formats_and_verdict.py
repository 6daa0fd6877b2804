"""Numbers as readers see them, and the sentence on top of a report."""

from __future__ import annotations

from typing import Any

import pytest

from rayfed_ssl.report import formats
from rayfed_ssl.report.verdict import verdict


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formats.percent(0.84123), "84.1 %"),
        (formats.percent(None), "–"),
        (formats.percent(float("nan")), "–"),
        (formats.points(-0.0123), "−1.2"),
        (formats.points(0.1), "+10.0"),
        (formats.bounds(-0.0123, 0.1), "[−1.2, +10.0]"),
        (formats.bounds(0.0002, 0.031), "[+0.02, +3.10]"),
        (formats.bounds(-0.031, -0.00003), "[−3.100, −0.003]"),
        (formats.bounds(0.0, 0.02), "[+0.0, +2.0]"),
        (formats.number(1797.0), "1,797"),
        (formats.number(0.000123456), "0.0001235"),
        (formats.number(-3.0), "−3"),
        (formats.size(999), "999 B"),
        (formats.size(19_654_321), "19.7 MB"),
        (formats.span(9.94), "9.9 s"),
        (formats.span(75.2), "1 min 15 s"),
        (formats.span(3599.6), "1 h 00 min"),
        (formats.span(90_000), "1 d 1 h"),
        (formats.plural(1, "client"), "1 client"),
        (formats.plural(1200, "client"), "1,200 clients"),
    ],
)
def test_numbers_in_words(shown: str, expected: str) -> None:
    assert shown == expected


def summary(accuracy: Any, untrained: Any, **more: Any) -> dict[str, Any]:
    return {"accuracy": accuracy, "untrained": untrained, "rounds": 20, "status": "complete", **more}


@pytest.mark.parametrize(
    ("last", "before", "images", "kind"),
    [
        (0.90, 0.80, 359, "better"),
        (0.90, 0.80, 30, "level"),  # 3 images of 30
        (0.83, 0.80, 359, "level"),
        (0.83, 0.80, 10_000, "better"),
        (0.805, 0.80, 100_000, "better"),  # half a point
        (0.70, 0.80, 359, "worse"),
        (0.805, 0.80, None, "level"),  # not recorded: one point
        (0.83, 0.80, None, "better"),
        ({"0": 0.9, "1": 0.92, "2": 0.91}, {"0": 0.8, "1": 0.81, "2": 0.8}, 1000, "better"),
        ({"0": 0.9, "1": 0.92, "2": 0.91}, {"0": 0.8, "1": 0.81, "2": 0.8}, 40, "level"),  # so few images
        ({"0": 0.9, "1": 0.5}, {"0": 0.5, "1": 0.8}, 1000, "level"),  # +40 and -30 points: the interval holds zero
    ],
)
def test_better_level_or_worse(last: Any, before: Any, images: int | None, kind: str) -> None:
    evaluation = {} if images is None else {"test_images": images}
    assert verdict(summary({"knn": last}, {"knn": before}, evaluation=evaluation)).kind == kind


def test_the_sentence_says_by_what_and_what_disagrees() -> None:
    told = summary({"knn": 0.7, "fewshot": 0.9}, {"knn": 0.8, "fewshot": 0.8}, pixels={"fewshot": 0.95})
    found = verdict({**told, "evaluation": {"test_images": 400}})
    assert found.sentence == (
        "After 20 rounds, the encoder is worse than the untrained encoder: kNN accuracy 70.0 % against 80.0 %, −10.0 "
        "points (95 % interval [−15.9, −4.0] over 400 test images); but few-shot says better (+10.0); few-shot is 5.0 "
        "points below the raw pixels."
    )
    assert found.protocol == "knn"
    level = verdict({**told, "evaluation": {"test_images": 20}}).sentence
    assert "[−34.9, +16.6] over 20 test images, holds zero); few-shot is level with the raw pixels (−5.0)." in level
    assert "no interval is known: below one point is called level" in verdict(told).sentence


def test_own_tasks_count_their_own_images() -> None:
    told = summary({"task": {"0": 0.9}}, {"task": {"0": 0.8}})
    for images, kind in ((1000, "better"), (30, "level")):
        assert verdict({**told, "evaluation": {"test_images": 99_999, "task_test_images": images}}).kind == kind


@pytest.mark.parametrize(
    ("status", "words"), [("stopped", "Stopped early, after"), ("diverged", "diverged"), ("unfinished", "Not finished")]
)
def test_a_run_that_did_not_end_well_says_so_first(status: str, words: str) -> None:
    assert (
        words in verdict({**summary({"knn": 0.9}, {"knn": 0.8}), "status": status}).sentence.split(",")[0] + ", after"
    )


def test_without_an_evaluation_there_is_no_judgement() -> None:
    found = verdict({"rounds": 1})
    assert found.kind is None
    assert "nothing was evaluated" in found.sentence
