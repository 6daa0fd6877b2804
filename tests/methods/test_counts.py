"""`Server.counts`: what the key says, and what the mean is asked with, where the contract does not look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.testing.tiny import counted
from tests.tiny import tiny


@pytest.mark.parametrize(
    ("method", "changes", "alike"),
    [
        ("fedavg_trunk", {"method__weights": "size"}, False),
        ("fedavg_trunk", {"method__weights": "uniform"}, True),
        ("orchestra", {"method__weights": "size"}, False),
        ("orchestra", {"method__weights": "uniform"}, True),
        ("fedmd", {}, True),
        ("fedu2", {"method__eua": False, "method__lr": None, "method__temperature": 0.1}, False),
    ],
    ids=str,
)
def test_clients_count_as_the_server_says(method: str, changes: dict[str, Any], alike: bool) -> None:
    assert not METHODS[method].optimizable  # else the contract would do
    (mean,), said = counted(tiny(method, train__local_steps=1, **changes))
    assert mean.shares == pytest.approx(said)
    assert (said == pytest.approx(dict.fromkeys(said, 1 / len(said)))) == alike


@pytest.mark.parametrize("method", sorted(m for m, row in METHODS.items() if "weights" in row.config.model_fields))
def test_the_key_decides_who_counts(method: str) -> None:
    for weights, expected in (("uniform", [0.5, 0.5]), ("size", None)):
        config = tiny(method, method__weights=weights)
        federation = load_federation(config)
        server = METHODS[method].server(Setup(config, federation, InitialWeights(config, federation)))
        counts = server.counts([1, 3])
        shares = federation.shares[[1, 3]] if counts is None else np.array([counts[1], counts[3]])
        by_size = federation.shares[[1, 3]] / federation.shares[[1, 3]].sum()
        assert (shares / shares.sum()).tolist() == pytest.approx(expected or by_size.tolist())
