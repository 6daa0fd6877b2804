"""Bytes per client and round against what each method says it transmits: counted here from the networks themselves."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch

from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.bench import Initial
from rayfed_ssl.federated.federation import deal
from tests.tiny import booked, run_locally, tiny


def floats(config: RunConfig) -> tuple[int, int]:
    """(P, b): parameters and floating buffer values of the common network."""
    network = Initial(config, deal(config)).network(config.clients.encoder(0))
    buffers = sum(b.numel() for b in network.buffers() if torch.is_floating_point(b))
    return sum(p.numel() for p in network.parameters()), buffers


def traffic(config: RunConfig, folder: Path) -> dict[tuple[int, int, str], dict[str, int]]:
    """(round, client, direction) -> field -> bytes."""
    run_locally(config, folder)
    found: dict[tuple[int, int, str], dict[str, int]] = defaultdict(dict)
    for round, client, direction, _, field, size in booked(folder):
        found[round, client, direction][field] = found[round, client, direction].get(field, 0) + size
    return found


@pytest.mark.parametrize("method", ["fedsimclr", "fedbyol", "fedavg_sc"])
def test_fedavg_sends_weights_both_ways(method: str, tmp_path: Path) -> None:
    config = tiny(method, train__rounds=2)
    p, b = floats(config)
    expected = {"weights": 4 * p, "weights.buffers": 4 * b}
    found = traffic(config, tmp_path / "run")
    assert found == {(t, c, way): expected for t in (1, 2) for c in range(4) for way in ("down", "up")}


def test_fedsc_adds_one_matrix_each_way(tmp_path: Path) -> None:
    """P + d^2 down and up; the weights go down once although two operations use them. In round 1 alpha is 1: no
    matrix is of use, none is sent.
    """
    config = tiny("fedsc", train__rounds=3, participation__fraction=1.0)
    (p, b), d = floats(config), config.projection_dim
    weights = {"weights": 4 * p, "weights.buffers": 4 * b}
    found = traffic(config, tmp_path / "run")
    for c in range(4):
        assert found[1, c, "down"] == found[1, c, "up"] == weights
        for t in (2, 3):
            assert found[t, c, "down"] == weights | {"rest": 4 * d * d}
            assert found[t, c, "up"] == weights | {"correlation": 4 * d * d}


def test_fedsc_asks_everybody_first_and_then_the_sampled(tmp_path: Path) -> None:
    found = traffic(tiny("fedsc", train__rounds=2, method__alpha="share"), tmp_path / "run")
    assert {c for t, c, _ in found if t == 1} == {0, 1, 2, 3}
    assert len({c for t, c, _ in found if t == 2}) == 2


def test_fedfoa_sends_triangles_only(tmp_path: Path) -> None:
    """(N - 1) n (n + 1) / 2 down after the warm-up, n (n + 1) / 2 up, no weights."""
    config = tiny("fedfoa", train__rounds=2, method__warmup=1)
    n = config.projection_dim
    triangle = 4 * n * (n + 1) // 2
    found = traffic(config, tmp_path / "run")
    for c in range(4):
        assert found[1, c, "up"] == found[2, c, "up"] == {"fedfoa.correlation": triangle}
        assert (1, c, "down") not in found
        assert found[2, c, "down"] == {"fedfoa.peers": 3 * triangle}


def test_fedfoa_as_a_plugin_adds_its_triangles_to_the_method(tmp_path: Path) -> None:
    config = tiny("fedbyol", train__rounds=2, plugins=[{"name": "fedfoa", "warmup": 0}])
    (p, b), n = floats(config), config.projection_dim
    weights, triangle = {"weights": 4 * p, "weights.buffers": 4 * b}, 4 * n * (n + 1) // 2
    found = traffic(config, tmp_path / "run")
    assert found[1, 0, "down"] == weights
    assert found[2, 0, "down"] == weights | {"fedfoa.peers": 3 * triangle}
    assert found[2, 0, "up"] == weights | {"fedfoa.correlation": triangle}
