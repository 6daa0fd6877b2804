"""What a document leaves to its method and its objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.models.heads import HEAD_SHAPES, ModelConfig
from rayfed_ssl.settings.files import dump, read
from rayfed_ssl.testing.tiny import BASE
from tests.dotted import dotted

DOCUMENT = {**BASE, "model": {"width": 0.25, "projector": {"hidden": [16], "dim": 8}}}


def made(**changes: object) -> RunConfig:
    return build(DOCUMENT, dotted(**changes), origin="a test")


@pytest.mark.parametrize(
    ("changes", "norm"),
    [
        ({"method__name": "fedsimsiam"}, "all"),
        ({"method__name": "fedprox", "objective__name": "simsiam"}, "all"),
        ({"method__name": "fedsimsiam", "model__projector__batch_norm": "none"}, "none"),
        ({"method__name": "fedsimsiam", "model__projector": "fedx"}, "none"),  # a paper's heads, as they are
        ({"method__name": "fedsimclr"}, "none"),
        ({"method__name": "fedbyol"}, "none"),
    ],
)
def test_simsiam_has_batchnorm_in_its_heads_unless_the_run_says_otherwise(changes: dict[str, Any], norm: str) -> None:
    assert made(**changes).model.projector.batch_norm == norm


def test_a_document_without_a_projector_gets_the_usual_one_with_batchnorm() -> None:
    given = ModelConfig().projector
    for document in ({**BASE, "model": {"width": 0.25}}, {key: BASE[key] for key in BASE if key != "model"}):
        config = build(document, {"method.name": "fedsimsiam"}, origin="a test")
        assert config.model.projector == given.model_copy(update={"batch_norm": "all"})


def test_what_was_filled_in_is_written_down_and_read_again(tmp_path: Path) -> None:
    config = made(method__name="fedsimsiam")
    dump(config, tmp_path / "config.yaml")
    assert read(tmp_path / "config.yaml")["model"]["projector"]["batch_norm"] == "all"
    assert build(read(tmp_path / "config.yaml"), {}, origin="again") == config
    assert HEAD_SHAPES["fedx"].batch_norm == "none"


def test_the_projectors_shape_stays_and_its_output_is_normalised() -> None:
    config, plain = made(method__name="fedsimsiam"), made(method__name="fedbyol")
    assert config.model.projector.model_copy(update={"batch_norm": "none"}) == plain.model.projector
    network = InitialWeights(config, load_federation(config)).network(config.clients.encoder(0), None)
    names = [type(layer).__name__ for layer in network.projector]
    assert names[-1] == "BatchNorm1d"
    assert names.count("BatchNorm1d") == 1 + len(config.model.projector.hidden)
