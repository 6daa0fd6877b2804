"""Classifiers that recognise one class alone, against right answers that the test wrote itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfed_ssl.evaluation.outcomes import Outcomes
from rayfed_ssl.records.one_class import of_one_class, recognised
from rayfed_ssl.records.outcomes import write_outcomes

LABELS = np.repeat([0, 1, 2], [20, 60, 20])


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        ([0, 60, 0], 1),  # it names class 1 for all images
        ([0, 57, 1], 1),  # for nearly all: 95 % of class 1, and 1 of 40 others
        ([0, 56, 0], None),  # 93 %
        ([2, 60, 1], None),  # 3 of 40 others
        ([20, 0, 0], 0),
        ([20, 60, 20], None),
    ],
)
def test_the_class_that_alone_is_recognised(right: list[int], expected: int | None) -> None:
    shares = np.concatenate([np.arange(many) < few for few, many in zip(right, (20, 60, 20), strict=True)])
    assert recognised(shares.astype(float), LABELS) == expected


def test_of_many_classes_the_others_count_against_the_images_of_the_one() -> None:
    """Two of two images of a class, and seven of 198 others: 4.5% is far above the class's share, 1%."""
    labels, right = np.repeat(np.arange(100), 2), np.zeros(200)
    right[:2] = 1
    assert recognised(right, labels) == 0
    right[3:17:2] = 1
    assert recognised(right, labels) is None


def test_a_class_of_one_image_that_is_recognised_hides_no_other() -> None:
    labels = np.array([0] + [1] * 60 + [2] * 30)
    assert recognised((labels <= 1).astype(float), labels) == 1


def test_with_test_images_of_one_class_nothing_is_said() -> None:
    assert recognised(np.ones(5), np.full(5, 2)) is None


def test_scores_that_count_images_are_told_by_name_and_share(tmp_path: Path) -> None:
    named = (LABELS == 1).astype(np.uint8)  # the right answers of who names class 1 alone
    right = {"knn": named, "linear": np.ones(100, np.uint8), "fewshot": 5 * named, "knn_auc": named.astype(float)}
    outcomes = Outcomes(right, {"knn": 1, "linear": 1, "fewshot": 5, "knn_auc": 1})
    assert of_one_class(tmp_path, ()) == {}
    write_outcomes(tmp_path, 3, {None: outcomes}, LABELS)
    told = {"name": "well", "share": 0.6}
    assert of_one_class(tmp_path, ("sick", "well", "other")) == {"knn": told, "fewshot": told}
    assert of_one_class(tmp_path, ())["knn"]["name"] == "1"
