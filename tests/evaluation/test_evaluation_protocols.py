"""Extraction, the choice of rows, and the protocols together."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.datasets import load_digits

from rayfed_ssl import evaluation
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.evaluation import EvaluationConfig, evaluate, extract, labelled_rows, settings

FAST = EvaluationConfig.model_validate({"linear": {"epochs": 30, "batch_size": 128}, "fewshot": {"draws": 2}})


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)
    return x[:1200], y[:1200], x[1200:], y[1200:]


def test_extract_sees_clean_images_in_order_whatever_the_batch() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (23, 4, 5, 3), dtype=np.uint8)
    pixels.setflags(write=False)
    seen = []

    def clean(images: torch.Tensor) -> torch.Tensor:
        assert images.dtype == torch.uint8
        seen.append(tuple(images.shape))
        return images.float() / 255

    def represent(images: torch.Tensor) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        return images.double()

    features = extract(represent, pixels, clean, 10, "cpu")
    assert seen == [(10, 3, 4, 5), (10, 3, 4, 5), (3, 3, 4, 5)]
    assert features.dtype == torch.float32
    expected = pixels.transpose(0, 3, 1, 2).reshape(23, -1).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(features.numpy(), expected)
    features.requires_grad_()  # an ordinary tensor, not an inference tensor


def test_labelled_rows_are_a_seeded_choice_of_known_labels() -> None:
    labels = np.where(np.arange(100) % 3 == 0, -1, np.arange(100) % 7)
    everything = labelled_rows(labels, None, 0)
    assert everything.tolist() == [i for i in range(100) if i % 3]
    some, fewer, other = labelled_rows(labels, 20, 0), labelled_rows(labels, 10, 0), labelled_rows(labels, 20, 1)
    assert len(some) == 20
    assert set(fewer.tolist()) < set(some.tolist()) < set(everything.tolist())
    assert some.tolist() == sorted(some.tolist())
    assert some.tolist() != other.tolist()
    assert labelled_rows(labels, 1000, 0).tolist() == everything.tolist()


def test_evaluate_equals_the_protocols_one_by_one() -> None:
    data = digits()
    result = evaluate(*data, FAST, 10, 3)
    assert list(result) == ["knn", "linear", "fewshot"]
    assert result["knn"] == evaluation.knn_accuracy(*data, classes=10)
    assert result["linear"] == evaluation.linear_probe(*data, classes=10, seed=3, epochs=30, batch_size=128)
    assert result["fewshot"] == evaluation.fewshot_accuracy(*data, draws=2)
    assert result == evaluate(*data, FAST, 10, 3)
    assert evaluate(*data, FAST.model_copy(update={"protocols": ()}), 10, 3) == {}


def test_unlabelled_rows_and_rows_over_the_limit_take_no_part() -> None:
    train_x, train_y, test_x, test_y = digits()
    config = FAST.model_copy(update={"train_images": 300})
    hidden = train_y.clone()
    hidden[::2] = -1
    rows = torch.from_numpy(labelled_rows(hidden.numpy(), 300, 3))
    spoiled = torch.full_like(train_x, torch.nan)
    spoiled[rows] = train_x[rows]  # whatever else is read would be noticed
    chosen = evaluate(train_x[rows], train_y[rows], test_x, test_y, config, 10, 3)
    assert evaluate(spoiled, hidden, test_x, test_y, config, 10, 3) == chosen
    assert chosen["knn"] > 0.8


def test_what_cannot_be_measured_is_one_line() -> None:
    train_x, train_y, test_x, test_y = digits()
    broken = train_x.clone()
    broken[7, 3] = torch.inf
    cases = [
        ((train_x, torch.full_like(train_y, -1), test_x, test_y, FAST, 10, 0), r"evaluation\.protocols: .*train"),
        ((train_x, train_y, test_x, torch.full_like(test_y, -1), FAST, 10, 0), r"evaluation\.protocols: .*test"),
        ((train_x, train_y, test_x, test_y, FAST, 9, 0), "found label 9"),
        ((broken, train_y, test_x, test_y, FAST, 10, 0), "not finite for 1 of 1200 train images"),
        ((train_x, train_y, test_x * torch.nan, test_y, FAST, 10, 0), "not finite for 597 of 597 test images"),
    ]
    for arguments, message in cases:
        with pytest.raises(UserError, match=message) as caught:
            evaluate(*arguments)
        assert "\n" not in str(caught.value)


def test_settings_name_every_number_behind_a_result() -> None:
    written = settings(EvaluationConfig(protocols=("knn", "linear", "fewshot")))
    assert json.loads(json.dumps(written)) == {
        "features": "backbone, clean images, eval mode",
        "train_images": None,
        "knn": {"k": 200, "temperature": 0.1},
        "linear": {"epochs": 200, "lr": 3e-3, "batch_size": 2048},
        "fewshot": {"labels_per_class": 5, "draws": 20, "C": 1.0},
    }
    assert set(settings(EvaluationConfig(protocols=("knn",)))) == {"features", "train_images", "knn"}


@pytest.mark.parametrize(
    "wrong", [{"every": -1}, {"knn": {"k": 0}}, {"protocols": ["semi"]}, {"fewshot": {"shots": 5}}]
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EvaluationConfig.model_validate(wrong)
