"""The contract that every method keeps, over the whole table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.federated.workload import Traffic
from rayfed_ssl.methods import METHODS
from rayfed_ssl.testing import contract
from tests.tiny import OWN, RESEEDED, UNPREDICTED, tiny


@pytest.fixture(autouse=True, scope="module")
def _pools_end_with_the_module() -> Iterator[None]:
    """Tests elsewhere ask for more CPUs than warm pools leave."""
    yield
    from actors.testing import close_pools

    close_pools()


OFTEN = ("fedsc", "fedfoa", "flesd", "fedca", "fedlinked", "fedsimclr", "fedbyol", "fedmd")
"""Of every kind one: what `make test` asks of these, `make test-long` asks of all others."""

for _name in sorted(METHODS):
    _suite = contract(_name, OWN.get(_name), reseeded=RESEEDED.get(_name))
    globals()[f"Test_{_name}"] = _suite if _name in OFTEN else pytest.mark.long(_suite)


LARS = {"name": "lars", "lr": 0.3, "trust_coefficient": 0.02, "weight_decay": 1e-4, "schedule": "cosine", "warmup": 2}
Test_fedbyol_with_lars = pytest.mark.long(contract("fedbyol", {"train.optimizer": LARS}))

FEW_BYTES = {"up": {"name": "quantized", "bits": 4, "bucket": 64}, "down": {"name": "quantized", "bits": 8}}
Test_fedbyol_in_few_bytes = contract(
    "fedbyol", {"transport": FEW_BYTES, "objective.target": "averaged", "participation.fraction": 0.75}
)
Test_feddf_in_few_bytes = pytest.mark.long(
    contract(
        "feddf",
        {**OWN["feddf"], "transport": {"up": {"name": "float16"}, "down": FEW_BYTES["down"]}},
        reseeded=RESEEDED["feddf"],
    )
)


def test_predictions_that_are_left_out_are_known() -> None:
    """The suite passes over a prediction that is None: those that were there before have to stay."""
    assert {name for name in METHODS if bytes_of_round_one(name) is None} == set(UNPREDICTED)


def bytes_of_round_one(name: str) -> Traffic | None:
    config = tiny(name)
    federation = load_federation(config)
    server: MethodServer[Any] = METHODS[name].server(Setup(config, federation, InitialWeights(config, federation)))
    return server.traffic(1, federation.clients[0], ())


def test_dropout_and_batchnorm_and_momentum_target_are_covered() -> None:
    """The suite above means what it says only if the tiny runs have state that could go wrong."""
    assert tiny("fedbyol").clients.encoders == "small_cnn_bn"
    assert tiny("fedbyol").keeps_target
    assert "fedlinked_cnn" in tiny("fedfoa").clients.encoders
