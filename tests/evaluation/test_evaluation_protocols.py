"""Extraction, the choice of rows, and the protocols together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import Field, ValidationError

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.evaluation import (
    PROTOCOLS,
    EvaluationConfig,
    Material,
    Protocol,
    Split,
    check,
    evaluate,
    extract,
    labelled_rows,
    recorded,
    settings,
    settings_of,
)
from rayfed_ssl.simulation.reevaluation import reevaluate
from tests.evaluation.materials import digits, fewshot_accuracy, knn_accuracy, linear_accuracy, of_features
from tests.tiny import run_locally, tiny

FAST = EvaluationConfig.model_validate({"linear": {"epochs": 30, "batch_size": 128}, "fewshot": {"draws": 2}})


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
    material = of_features(*data)
    result = evaluate(material, FAST)
    assert list(result) == ["knn", "linear", "fewshot"] == list(FAST.scores)
    assert result["knn"] == knn_accuracy(*data, classes=10)
    assert result["linear"] == linear_accuracy(*data, classes=10, seed=3, epochs=30, batch_size=128)
    assert result["fewshot"] == fewshot_accuracy(*data, draws=2)
    assert result == evaluate(material, FAST)
    assert evaluate(material, FAST.model_copy(update={"protocols": ()})) == {}
    every = FAST.model_copy(update={"metrics": ("accuracy", "balanced_accuracy", "auc")})
    more = evaluate(of_features(*data, metrics=every.metrics), every)
    assert tuple(more) == every.scores
    assert {name: value for name, value in more.items() if name in result} == result


def test_unlabelled_rows_take_no_part() -> None:
    train_x, train_y, test_x, test_y = digits()
    hidden = train_y.clone()
    hidden[::2] = -1
    spoiled = torch.full_like(train_x, torch.nan)
    spoiled[1::2] = train_x[1::2]  # whatever else is read would be noticed
    chosen = evaluate(of_features(train_x[1::2], train_y[1::2], test_x, test_y), FAST)
    assert evaluate(of_features(spoiled, hidden, test_x, test_y), FAST) == chosen
    assert chosen["knn"] > 0.8


def test_what_cannot_be_measured_is_one_line() -> None:
    train_x, train_y, test_x, test_y = digits()
    broken, large = train_x.clone(), train_y.clone()
    broken[7, 3] = torch.inf
    large[3] = 10
    cases = [
        ((train_x, torch.full_like(train_y, -1), test_x, test_y), r"evaluation\.protocols: .*1200 train images, none"),
        ((train_x, train_y, test_x, torch.full_like(test_y, -1)), r"evaluation\.protocols: .*597 test images, none"),
        ((train_x, large, test_x, test_y), "found label 10 in the train images, allowed: 0 to 9"),
        ((broken, train_y, test_x, test_y), "not finite for 1 of 1200 train images"),
        ((train_x, train_y, test_x * torch.nan, test_y), "not finite for 597 of 597 test images"),
    ]
    for data, message in cases:
        with pytest.raises(UserError, match=message) as caught:
            evaluate(of_features(*data), FAST)
        assert "\n" not in str(caught.value)


def test_settings_name_every_number_behind_a_result() -> None:
    written = settings(EvaluationConfig(protocols=("knn", "linear", "fewshot")))
    assert json.loads(json.dumps(written)) == {
        "features": "backbone, clean images, eval mode",
        "train_images": None,
        "knn": {"k": 200, "temperature": 0.1},
        "linear": {"recipes": ["ours"], "epochs": 200, "lr": 3e-3, "batch_size": 2048},
        "fewshot": {"labels_per_class": 5, "draws": 20, "C": 1.0},
    }
    assert set(settings(EvaluationConfig(protocols=("knn",)))) == {"features", "train_images", "knn"}
    config = EvaluationConfig.model_validate({"metrics": ["accuracy", "auc"], "select": {"share": 0.2}})
    assert settings_of(config, "knn") == {
        "features": "backbone, clean images, eval mode",
        "train_images": None,
        "metrics": ["accuracy", "auc"],
        "select": {"share": 0.2},
        "k": 200,
        "temperature": 0.1,
    }
    assert settings_of(config, "knn", train=345)["k_used"] == 34  # a tenth, as is voted by
    assert settings(config, train=5000)["knn"] == {"k": 200, "temperature": 0.1, "k_used": 200}
    assert settings(config, train=5000)["linear"]["batch_size_used"] == 500
    probes = EvaluationConfig.model_validate({"linear": {"recipes": ["easyfl", "ours"], "batch_size": 30}})
    written = settings_of(probes, "linear", train=400)
    assert (written["batch_size"], written["batch_size_used"]) == (30, 30)
    assert written["batch_size_used_easyfl"] == 400  # a paper's 2048 is cut by nothing but the images
    for name in PROTOCOLS:
        json.dumps(settings_of(EvaluationConfig(), name))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"every": -1}, "greater than or equal to 0"),
        ({"knn": {"k": 0}}, "greater than or equal to 1"),
        ({"fewshot": {"shots": 5}}, "not permitted"),
        (
            {"protocols": ["linaer"]},
            r"evaluation\.protocols: found 'linaer'; must be one of knn, .*did you mean linear\?",
        ),
        ({"angles": {"clients": 1}}, "greater than or equal to 2"),
        ({"metrics": ["auc"]}, r"evaluation\.metrics: found auc; must include accuracy"),
        ({"options": {"knn": {}}}, r"evaluation\.options: found knn; must be a protocol that another package adds"),
        ({"select": {"share": 1.0}}, "less than 1"),
        ({"semi": {"fractions": []}}, "at least 1"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EvaluationConfig.model_validate(wrong)


class Centroid(Block):
    """Settings of a third-party protocol."""

    power: int = Field(2, ge=1)


def nearest_centroid(material: Material, config: Centroid) -> dict[str, float]:
    train = material.train
    centres = torch.stack([train.features[train.labels == c].mean(dim=0) for c in range(material.classes)])

    def answer(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        distance = torch.cdist(split.features, centres, p=config.power)
        return distance.argmin(dim=1), (-distance).softmax(dim=1)

    return material.classified("centroid", answer)


def test_a_protocol_of_another_package_is_a_row_with_settings_of_its_own() -> None:
    row = Protocol(
        Centroid, nearest_centroid, lambda settings: ("centroid",),
        effective=lambda settings, train: {"power_used": min(settings.power, train)},
    )  # fmt: skip
    PROTOCOLS.add("centroid", row, "a test")
    try:
        config = EvaluationConfig.model_validate({"protocols": ["centroid"], "options": {"centroid": {"power": 1}}})
        assert config.scores == ("centroid",)
        assert settings(config)["centroid"] == {"power": 1}
        assert settings(config, train=9)["centroid"] == {"power": 1, "power_used": 1}
        assert config.labelled == ("centroid",)
        train_x, train_y, test_x, test_y = digits()
        values = evaluate(of_features(train_x, train_y, test_x, test_y), config)
        x, y, test = train_x.double().numpy(), train_y.numpy(), test_x.double().numpy()
        centres = [x[y == label].mean(axis=0) for label in range(10)]
        nearest = [min(range(10), key=lambda c: np.abs(row - centres[c]).sum()) for row in test]
        assert values == {"centroid": pytest.approx(np.mean(nearest == test_y.numpy()))}
        with pytest.raises(ValidationError, match=r"evaluation\.options\.centroid\.power: found 0; input should be"):
            EvaluationConfig.model_validate({"options": {"centroid": {"power": 0}}})
    finally:
        PROTOCOLS.remove("a test")


class Theirs(Block):
    width: int = Field(2, ge=1)


def test_evaluate_answers_to_the_keys_of_a_protocol_of_another_package(tmp_path: Path) -> None:
    """As to those of our own protocols, except that they are in ``evaluation.options``."""
    run, key = tmp_path / "run", "evaluation.options.theirs.width"
    run_locally(tiny("fedsimclr", train__rounds=1), run)
    row = Protocol(Theirs, lambda _, settings: {"theirs": settings.width / 10}, lambda _: ("theirs",), classifies=False)
    PROTOCOLS.add("theirs", row, "a test")
    try:
        found = reevaluate(run, ["theirs"], [f"{key}=3"])
        assert found["accuracy"]["global"]["theirs"] == 0.3
        assert found["evaluation"]["theirs"]["width"] == 3
        before = (run / "evaluation.json").read_bytes()
        for protocol, change, message in (
            ("knn", f"{key}=3", rf"^{key}: found without the protocol theirs; allowed with --protocol theirs$"),
            (
                "knn",
                "evaluation.options={theirs: {width: 3}}",
                rf"^{key}: found without the protocol theirs; allowed w",
            ),
            ("theirs", f"{key}=0", rf"^{key}: found 0; input should be greater than or equal to 1$"),
            (
                "theirs",
                "evaluation.theirs.width=3",
                r"^evaluation\.theirs: found {'width': 3}; unknown key, allowed here",
            ),
            ("theirs", "evaluation.their.width=3", r"^evaluation\.their\.width: .* evaluation\.angles$"),
        ):
            with pytest.raises(UserError, match=message):
                reevaluate(run, [protocol], [change])
        assert (run / "evaluation.json").read_bytes() == before
    finally:
        PROTOCOLS.remove("a test")


def test_images_are_checked_before_a_run() -> None:
    known, blank = np.array([0, 1, 0]), np.array([-1, -1])
    check(EvaluationConfig(), known, known, 8)
    check(EvaluationConfig(protocols=("rank",)), blank, blank[:0], 8)
    cases = [
        ({}, known, blank, "but none of the 2 test images has a label; allowed without labels: rank"),
        ({"protocols": ["rank", "cluster"]}, blank, known, "found cluster, but none of the 2 train images"),
        ({}, known[:1], known, "but the training images are of 1 class"),
        ({"protocols": ["transfer"]}, known, known, r"evaluation\.transfer\.data: found nothing"),
    ]
    for document, train, test, message in cases:
        with pytest.raises(UserError, match=message):
            check(EvaluationConfig.model_validate(document), train, test, 8)


def test_other_images_without_labels_are_refused_in_a_commands_words() -> None:
    known, blank = np.array([0, 1, 0]), np.array([-1, -1])
    both = EvaluationConfig.model_validate({"protocols": ["rank", "knn", "cluster"], "select": {"share": 0.1}})
    check(both, known, known, 8, "d/flat")
    check(EvaluationConfig(protocols=("rank",)), blank, blank, 8, "d/flat")
    for train, test, found in (
        (blank, blank[:0], "d/flat has no labels"),
        (known, blank, "none of the 2 test images of d/flat has a label"),
        (blank, known, "none of the 2 train images of d/flat has a label"),
        (known[:1], known, "the training images of d/flat are of 1 class, which is every answer"),
    ):
        with pytest.raises(UserError) as error:
            check(both, train, test, 8, "d/flat")
        assert str(error.value) == f"--protocol: found knn, cluster; {found}; allowed: rank"


def test_tags_with_a_slash_are_recorded_as_they_are() -> None:
    assert [recorded(tag) for tag in ("knn", "select/knn", "features/rankme")] == [
        "eval/knn", "select/knn", "features/rankme",
    ]  # fmt: skip
