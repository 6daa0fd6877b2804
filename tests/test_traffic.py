"""Bytes per client and round against what each method says it transmits: counted here from the networks themselves."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch

from rayfed_ssl.base.weights import pack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.objectives.base import target_modules
from tests.tiny import booked, run_locally, tiny

WAYS = ("down", "up")


def floats(config: RunConfig) -> tuple[int, int]:
    """(P, b): parameters and floating buffer values of the common network."""
    network = InitialWeights(config, load_federation(config)).network(config.clients.encoder(0))
    buffers = sum(b.numel() for b in network.buffers() if torch.is_floating_point(b))
    return sum(p.numel() for p in network.parameters()), buffers


def traffic(config: RunConfig, folder: Path) -> dict[tuple[int, int, str], dict[str, int]]:
    """(round, client, direction) -> field -> bytes."""
    run_locally(config, folder)
    found: dict[tuple[int, int, str], dict[str, int]] = defaultdict(dict)
    for round, client, direction, _, field, size in booked(folder):
        found[round, client, direction][field] = found[round, client, direction].get(field, 0) + size
    return found


AVERAGING = [
    "fedavg",
    "fedsimclr",
    "fedbyol",
    "fedmoco",
    "fedsimsiam",
    "fedae",
    "fedmae",
    "fedpr",
    "fedavg_sc",
    "feddecorr",
]
AVERAGING += ["fedu", "fedema", "ldawa", "fedu2", "fur"]  # which differ in what clients or the server do with them


@pytest.mark.parametrize("method", AVERAGING)
def test_fedavg_sends_weights_both_ways(method: str, tmp_path: Path) -> None:
    config = tiny(method, train__rounds=2, participation__fraction=1.0, evaluation__protocols=[])
    p, b = floats(config)
    expected = {"weights": 4 * p} | ({"weights.buffers": 4 * b} if b else {})
    assert (b == 0) == (method == "fedmae")  # whose transformer has no buffers
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


def test_fedmd_sends_outputs_both_ways_and_no_weights(tmp_path: Path) -> None:
    config = tiny("fedmd", train__rounds=2, participation__fraction=1.0)
    outputs = 4 * 32 * config.projection_dim
    found = traffic(config, tmp_path / "run")
    for c in range(4):
        assert found[1, c, "up"] == found[2, c, "up"] == {"outputs": outputs}
        assert (1, c, "down") not in found
        assert found[2, c, "down"] == {"consensus": outputs}
        assert found[0, c, "down"] == {"public": 32 * 8 * 8 * 3}  # once, as bytes


def test_feddf_sends_each_architectures_weights_and_no_public_images(tmp_path: Path) -> None:
    config = tiny("feddf", train__rounds=1, participation__fraction=1.0)
    found = traffic(config, tmp_path / "run")
    initial = InitialWeights(config, load_federation(config))
    for c in range(4):
        parts = initial(config.clients.encoder(c)).wire_bytes()
        assert found[1, c, "down"] == found[1, c, "up"] == {f"weights{part}": size for part, size in parts.items()}
    assert {t for t, _, _ in found} == {1}


def test_fedx_sends_weights_with_the_predictor_both_ways(tmp_path: Path) -> None:
    config = tiny("fedx", train__rounds=1)
    (p, b), d = floats(config), config.projection_dim
    without = floats(tiny("fedsimclr"))[0]
    assert p - without == (d * 16 + 16) + 2 * 16 + (16 * d + d)  # linear, BatchNorm, linear
    found = traffic(config, tmp_path / "run")
    assert found == {(1, c, way): {"weights": 4 * p, "weights.buffers": 4 * b} for c in range(4) for way in WAYS}


def test_orchestra_sends_two_networks_and_centroids_never_its_memory(tmp_path: Path) -> None:
    """Before the first round's training the networks are there already; the target is a copy and does not travel."""
    config = tiny("orchestra", train__rounds=2, participation__fraction=1.0)
    (p, b), d = floats(config), config.projection_dim
    online = {"weights": 4 * p, "weights.buffers": 4 * b}
    target = {"target": 4 * (p - (4 * d + 4)), "target.buffers": 4 * b}  # without the rotation head
    found = traffic(config, tmp_path / "run")
    for c in range(4):
        assert found[1, c, "down"] == online | {"centroids": 4 * 8 * d}
        assert found[2, c, "down"] == online | target | {"centroids": 4 * 8 * d}
        assert found[1, c, "up"] == online | target | {"centroids": 2 * 4 * 4 * d}  # clustered twice
        assert found[2, c, "up"] == online | target | {"centroids": 4 * 4 * d}


def test_fedmkd_sends_networks_up_and_targets_down(tmp_path: Path) -> None:
    config = tiny("fedmkd", train__rounds=1, participation__fraction=1.0)
    found = traffic(config, tmp_path / "run")
    initial = InitialWeights(config, load_federation(config))
    for c in range(4):
        network = initial.network(config.clients.encoder(c))
        parts, target = pack(network).wire_bytes(), pack(*target_modules(network)).wire_bytes()
        assert found[1, c, "up"] == {f"weights{part}": size for part, size in parts.items()}
        assert found[1, c, "down"] == {f"target{part}": size for part, size in target.items()}
    assert {t for t, _, _ in found} == {1}  # the public images stay at the server


def test_ssd_adds_a_clients_dimensions_once(tmp_path: Path) -> None:
    config = tiny("ssd", train__rounds=2, participation__fraction=1.0)
    p, b = floats(config)
    weights = {"weights": 4 * p, "weights.buffers": 4 * b}
    found = traffic(config, tmp_path / "run")
    for c in range(4):
        assert found[1, c, "down"] == weights | {"subspace": 8 * (config.projection_dim // 4)}
        assert found[2, c, "down"] == found[1, c, "up"] == found[2, c, "up"] == weights
