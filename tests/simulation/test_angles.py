"""Angles between the encoders that a round's clients ended with, recorded while the run goes on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.augment import clean
from rayfed_ssl.evaluation.angles import ANGLES
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.simulation.worker import Worker
from tests.tiny import encoders, measured, run_locally, tiny

TAG = "features/angle"


def looking(method: str, **changes: object) -> RunConfig:
    return tiny(method, **{"evaluation__protocols": ["knn", "angles"], "evaluation__angles": {"images": 40}, **changes})


def recorded(folder: Path) -> dict[int, float]:
    return {t: value for (t, client, tag), value in measured(folder).items() if tag == TAG and client is None}


def trained(config: RunConfig, round: int, weights: Weights | None = None) -> Iterator[np.ndarray]:
    """Unit features of 40 test images by each client's network after its local training, by hand."""
    worker = Worker(config, load_federation(config))
    test = worker.federation.dataset.test.pixels
    drawn = test[numpy_generator(config.seed, "evaluation", "angles").permutation(len(test))[:40]]
    for client in worker.federation.clients:
        start = worker.initial("small_cnn_bn") if weights is None else weights
        reply = worker.execute("train", client, round, {"weights": start}, None)[0].reply
        network = worker.network("small_cnn_bn", "evaluated")
        unpack(reply["weights"], network)
        network.eval()
        pixels = torch.tensor(drawn).permute(0, 3, 1, 2)
        features = network.encoder(clean(pixels, worker.recipe)).detach().double().numpy()
        yield features / np.linalg.norm(features, axis=1, keepdims=True)


def mean_over_pairs(units: list[np.ndarray]) -> float:
    pairs = itertools.combinations(units, 2)
    return float(np.mean([math.degrees(math.acos(min(1.0, float(x @ y)))) for a, b in pairs for x, y in zip(a, b)]))  # noqa: B905


@pytest.mark.long
def test_it_is_the_mean_over_pairs_of_clients_after_their_training(tmp_path: Path) -> None:
    config = looking("fedsimclr", train__rounds=1)
    summary = run_locally(config, tmp_path / "run")
    expected = mean_over_pairs(list(trained(config, 1)))
    assert expected > 1
    assert recorded(tmp_path / "run") == {1: pytest.approx(expected, rel=1e-4)}
    assert summary["features"]["angle"] == recorded(tmp_path / "run")[1]
    two = looking("fedsimclr", train__rounds=1, evaluation__angles={"images": 40, "clients": 2})
    run_locally(two, tmp_path / "two")
    assert recorded(tmp_path / "two")[1] == pytest.approx(mean_over_pairs(list(trained(config, 1))[:2]), rel=1e-4)


@pytest.mark.long
def test_it_comes_when_encoders_are_evaluated_and_changes_nothing_else(tmp_path: Path) -> None:
    rounds = {"train__rounds": 5, "evaluation__every": 2}
    run_locally(looking("fedbyol", **rounds), tmp_path / "run")
    run_locally(looking("fedbyol", **rounds, evaluation__protocols=["knn"]), tmp_path / "without")
    assert sorted(recorded(tmp_path / "run")) == [2, 4, 5]
    others = {key: value for key, value in measured(tmp_path / "run").items() if key[2] != TAG}
    assert others == measured(tmp_path / "without")
    assert encoders(tmp_path / "run") == encoders(tmp_path / "without")


@pytest.mark.parametrize("method", ["fedca", "fedmd", "local", "fedsc"])
def test_methods_of_every_kind_have_angles(method: str, tmp_path: Path) -> None:
    run_locally(
        looking(method, train__rounds=2, **({"clients__encoders": "small_cnn"} if method == "fedmd" else {})),
        tmp_path / "run",
    )
    assert all(0 < angle < 180 for angle in recorded(tmp_path / "run").values())
    assert sorted(recorded(tmp_path / "run")) == [1, 2]


def test_a_client_that_keeps_its_own_encoder_ends_a_run_as_it_was_looked_at(tmp_path: Path) -> None:
    run_locally(looking("local", train__rounds=1), tmp_path / "run")
    again = reevaluate(tmp_path / "run", ["angles"])
    assert again["features"]["between encoders"]["angle"] == pytest.approx(recorded(tmp_path / "run")[1], rel=1e-6)
    default = reevaluate(tmp_path / "run")
    assert default["features"]["between encoders"] == again["features"]["between encoders"]


def test_evaluate_leaves_out_what_one_encoder_cannot_show(tmp_path: Path) -> None:
    run_locally(looking("fedsimclr", train__rounds=1), tmp_path / "run")
    assert set(reevaluate(tmp_path / "run")["evaluation"]) == {"knn"}


@pytest.mark.long
def test_an_evaluation_after_a_resume_is_not_forgotten(tmp_path: Path) -> None:
    config = looking("fedsimclr", train__rounds=3, checkpoint__every=1)
    run_locally(config, tmp_path / "whole")
    told: list[int] = []
    run_locally(config, tmp_path / "run", report=lambda p: told.append(p.round), stopping=lambda: max(told) >= 2)
    run_locally(config, tmp_path / "run", resume=True)
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")
    assert sorted(recorded(tmp_path / "run")) == [1, 2, 3]


@pytest.mark.parametrize(
    ("method", "changes", "line"),
    [
        ("centralized", {}, "which compares the encoders of a round's clients; centralized trains one"),
        ("fedsimclr", {"participation__fraction": 0.25}, "a round has 1 of 4; must be at least 2"),
        (
            "fedsimclr",
            {"server": {"schedule": "fedbuff", "buffer": 1}, "system": {"latency_s": 1.0}},
            "a round has 1 of 4; must be at least 2",
        ),
        (
            "local",
            {"clients__count": 2, "clients__encoders": ["small_cnn", "fedlinked_cnn"]},
            "of small_cnn, fedlinked_cnn no two have features of one dimension",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_line_before_anything_is_written(
    method: str, changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"^evaluation\.protocols: found angles") as refused:
        run_locally(looking(method, **changes), tmp_path / "run")
    assert line in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_the_row_says_what_it_records() -> None:
    assert ANGLES.tag == TAG
    assert ANGLES.clients(ANGLES.config()) == 10
