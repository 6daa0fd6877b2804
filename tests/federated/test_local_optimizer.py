"""The learning rate of a round, with and without warm-up, against tables written out; and runs that have one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.local_optimizer import (
    moments,
    moments_of,
    new_optimizer,
    round_learning_rate,
    with_moments,
)
from rayfed_ssl.federated.steps import descend
from rayfed_ssl.methods import METHODS
from rayfed_ssl.settings.blocks import OptimizerConfig
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.simulation.worker import Worker
from tests.tiny import encoders, measured, run_locally, tiny

# (schedule, warmup) -> the learning rate of rounds 1 to 8 of 8, for lr 0.4; cosines of multiples of 45 and 60 degrees
HALF = math.sqrt(0.5)
TABLE = {
    ("constant", 0): [0.4] * 8,
    ("constant", 1): [0.4] * 8,
    ("constant", 4): [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4],
    ("constant", 7): [0.4 * t / 7 for t in range(1, 8)] + [0.4],
    ("cosine", 2): [0.2, 0.4, 0.4, 0.2 + 0.1 * math.sqrt(3), 0.3, 0.2, 0.1, 0.2 - 0.1 * math.sqrt(3)],
    ("cosine", 4): [0.1, 0.2, 0.3, 0.4, 0.4, 0.2 + 0.2 * HALF, 0.2, 0.2 - 0.2 * HALF],
    ("cosine", 7): [0.4 * t / 7 for t in range(1, 8)] + [0.4],
}


@pytest.mark.parametrize(("schedule", "warmup"), TABLE)
def test_the_learning_rate_of_every_round(schedule: Any, warmup: int) -> None:
    config = OptimizerConfig(lr=0.4, schedule=schedule, warmup=warmup)
    found = [round_learning_rate(config, t, 8) for t in range(1, 9)]
    assert found == pytest.approx(TABLE[schedule, warmup], rel=1e-12)
    assert round_learning_rate(config, 0, 8) == found[0]  # what a method trains before its first round


def test_without_warm_up_not_a_bit_is_another() -> None:
    for rounds in (1, 7, 100):
        config = OptimizerConfig(lr=0.032, schedule="cosine")
        for t in range(1, rounds + 1):
            assert round_learning_rate(config, t, rounds) == 0.032 / 2 * (1 + math.cos(math.pi * (t - 1) / rounds))


@pytest.mark.parametrize("rounds", [1, 2, 8])
def test_what_is_trained_before_the_first_round_has_that_rounds_rate(rounds: int) -> None:
    """The cosine is even: one round earlier it has the second round's rate, which is 0 in a run of one round."""
    config = OptimizerConfig(lr=0.4, schedule="cosine")
    assert round_learning_rate(config, 0, rounds) == round_learning_rate(config, 1, rounds) == 0.4


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_longer_cosine_alone_changes_the_rounds_after_the_warm_up(schedule: Any) -> None:
    config = OptimizerConfig(lr=0.4, schedule=schedule, warmup=3)
    short, long = ([round_learning_rate(config, t, rounds) for t in range(1, 7)] for rounds in (6, 12))
    assert short[:4] == long[:4]
    assert (short[4:] == long[4:]) == (schedule == "constant")


def test_clients_train_by_it_and_a_service_at_the_full_rate_does_not() -> None:
    config = tiny("fedca", train__rounds=4, train__optimizer={"lr": 0.4, "warmup": 2})
    worker = Worker(config, load_federation(config))
    client = EncoderClient[Any](worker, 0, 1, "train", {})
    assert client.learning_rate == 0.2
    assert client.optimizer(list(client.network.parameters())).param_groups[0]["lr"] == 0.2
    service = METHODS["fedca"].service
    assert service is not None
    assert service(worker, 0, 0, "align", {}).learning_rate == 0.4


@pytest.mark.parametrize(("warmup", "rounds"), [(3, 3), (4, 3), (1, 1)])
def test_a_warm_up_that_leaves_no_round_is_refused_in_one_line(warmup: int, rounds: int) -> None:
    with pytest.raises(ConfigError) as refusal:
        tiny("fedsimclr", train__rounds=rounds, train__optimizer__warmup=warmup)
    assert str(refusal.value) == f"train.optimizer.warmup: found {warmup}; allowed: below train.rounds={rounds}"
    assert tiny("fedsimclr", train__rounds=warmup + 1, train__optimizer__warmup=warmup).train.rounds == warmup + 1


@pytest.mark.parametrize("found", [-1, 1.5, None])
def test_a_warm_up_is_a_whole_number_of_rounds(found: object) -> None:
    with pytest.raises(ConfigError, match=r"^train\.optimizer\.warmup: found "):
        tiny("fedsimclr", train__optimizer__warmup=found)


LARS = {"name": "lars", "lr": 0.3, "trust_coefficient": 0.02, "weight_decay": 1e-4, "warmup": 2}


def rates(folder: Path, rounds: int) -> list[float]:
    """The learning rates that a run's metrics have."""
    values = measured(folder)
    return [values[t, None, "train/lr"] for t in range(1, rounds + 1)]


@pytest.mark.long
def test_a_run_in_its_warm_up_is_extended_to_the_bits_of_the_longer_one(tmp_path: Path) -> None:
    long, short = (tiny("fedsimclr", train__rounds=rounds, train__optimizer=LARS) for rounds in (4, 3))
    run_locally(long, tmp_path / "long")
    run_locally(short, tmp_path / "short")
    run_locally(long, tmp_path / "short", resume=True)
    assert encoders(tmp_path / "short") == encoders(tmp_path / "long")
    assert measured(tmp_path / "short") == measured(tmp_path / "long")
    assert rates(tmp_path / "long", 4) == pytest.approx([0.15, 0.3, 0.3, 0.3])


def test_fedbuff_goes_by_the_version_that_a_client_started_from(tmp_path: Path) -> None:
    """Clients of 10 and 25 seconds, an update at every reply: the third one's client started from the first model."""
    pq.write_table(pa.table({"client": [0, 1], "latency_s": [10.0, 25.0]}), tmp_path / "d.parquet")
    config = tiny(
        "fedsimclr", train__rounds=3, train__optimizer={"lr": 0.4, "warmup": 2}, evaluation__protocols=[],
        clients__count=2, system={"devices": str(tmp_path / "d.parquet")}, server__schedule="fedbuff",
        server__buffer=1,
    )  # fmt: skip
    run_locally(config, tmp_path / "run")
    assert rates(tmp_path / "run", 3) == pytest.approx([0.2, 0.4, 0.2])


# -- what is kept from round to round ----------------------------------------------------------------------------------

RULES: list[dict[str, Any]] = [
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"name": "sgd", "momentum": 0.0},
    {"name": "adam"},
    {"name": "adamw", "weight_decay": 0.1},
    {"name": "lars", "trust_coefficient": 0.1},
]


def little() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 2))
    network[4].requires_grad_(False)
    return network.to(memory_format=torch.channels_last)


def trained(network: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        images = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(step))
        descend(optimizer, network(images).square().mean())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule['name']} {rule.get('momentum', '')}".strip())
def test_two_optimisers_that_hand_over_are_one(rule: dict[str, Any]) -> None:
    """PyTorch's own over six steps, against one of three steps and a fresh one that goes on with its moments."""
    config = OptimizerConfig(lr=0.05, **rule)
    whole, parts = little(), little()
    trained(whole, new_optimizer(config, list(whole.parameters())[:4], 0.05, config.weight_decay), range(6))
    first = new_optimizer(config, list(parts.parameters())[:4], 0.05, config.weight_decay)
    trained(parts, first, range(3))
    kept = moments(first, parts)
    size = sum(value.size for values in kept.values() for name, value in values.items() if name != "step")
    assert size == moments_of(config) * sum(p.numel() for p in list(parts.parameters())[:4])
    trained(parts, first, range(7, 9))  # what is kept are copies
    parts.load_state_dict(little().state_dict())
    trained(parts, new_optimizer(config, list(parts.parameters())[:4], 0.05, config.weight_decay), range(3))
    second = new_optimizer(config, list(parts.parameters())[:4], 0.05, config.weight_decay)
    trained(parts, with_moments(second, parts, kept), range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_a_client_goes_on_where_it_was(tmp_path: Path) -> None:
    """Two rounds of a client that trains alone, against one Adam of PyTorch over the same batches and views."""
    keys = {"clients__count": 1, "train__optimizer": {"name": "adam", "lr": 0.01, "keep": True}}
    config = tiny("local", train__rounds=2, evaluation__protocols=[], data__partition__name="iid", **keys)
    worker = Worker(config, load_federation(config))
    state: dict[str, Any] = {}
    for t in (1, 2):
        worker.method.client(worker, 0, t, "train", state).perform({})
    first = worker.method.client(worker, 0, 1, "train", {})
    first.load_own()
    network = first.network.train()
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=0.01)
    for t in (1, 2):
        client = worker.method.client(worker, 0, t, "train", {})
        pixels, loss, draws = client.pixels(), client.objective_loss(), client.generator("views")
        for rows in client.batches(len(pixels)):
            descend(optimizer, loss(client.views(pixels[rows], draws, 2), rows).loss)
    assert first.weights.vector.tobytes() == state["model"].vector.tobytes()


@pytest.mark.parametrize("method", ["fedbyol", "fedca", "fedmd"])
def test_resumed_and_kept_are_the_same_bits(tmp_path: Path, method: str) -> None:
    adam = {"name": "adam", "lr": 0.003, "keep": True}
    long, short = (
        tiny(method, train__rounds=rounds, train__optimizer=adam, evaluation__protocols=[]) for rounds in (3, 2)
    )
    run_locally(long, tmp_path / "long")
    run_locally(short, tmp_path / "short")
    run_locally(long, tmp_path / "short", resume=True)
    assert encoders(tmp_path / "short") == encoders(tmp_path / "long")
    fresh = tiny(method, train__rounds=3, train__optimizer=adam | {"keep": False}, evaluation__protocols=[])
    run_locally(fresh, tmp_path / "fresh")
    assert encoders(tmp_path / "fresh") != encoders(tmp_path / "long")


def test_keeping_needs_something_to_keep() -> None:
    with pytest.raises(ConfigError) as refusal:
        tiny("fedsimclr", train__optimizer={"name": "sgd", "momentum": 0.0, "keep": True})
    assert "train.optimizer.keep" in str(refusal.value)
