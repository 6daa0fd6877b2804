"""Updates that are not finite: refused, or dropped and counted, whatever the method asks of its clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.numpy

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.messages import SERVER, ClientError
from rayfed_ssl.methods import METHODS
from rayfed_ssl.storage import checkpoint
from tests.tiny import encoders, measured, run_locally, tiny

DROPPED = "system/dropped_clients"
ASKING = sorted(set(METHODS) - {"centralized", "local"})  # which have one client, or clients that send nothing
Spoil = Callable[[int, int, str], bool]
Poison = Callable[[Spoil], list[dict[str, Any]]]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """Puts a NaN into what some client replies; (client, round, operation) says whose. Collects the replies."""
    perform = EncoderClient.perform

    def start(spoil: Spoil) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = []

        def poisoned(self: EncoderClient, message: dict[str, Any]) -> dict[str, Any]:
            reply = perform(self, message)
            if self.id != SERVER and spoil(self.id, self.round, self.operation):
                reply = {name: with_nan(value) for name, value in reply.items()}
            replies.append({"client": self.id, "round": self.round, "operation": self.operation, **reply})
            return reply

        monkeypatch.setattr(EncoderClient, "perform", poisoned)
        return replies

    return start


def with_nan(value: Any) -> Any:
    """The value, the first of its numbers NaN where it has floating ones."""
    if isinstance(value, Weights):
        return replace(value, vector=with_nan(value.vector))
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    spoilt = value.copy()
    spoilt.flat[0] = np.nan
    return spoilt


def states(folder: Path, round: int) -> dict[int, Any]:
    return dict(checkpoint.load(folder / "checkpoints" / f"round-{round:05d}")[1])


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_learning_rate_that_explodes_ends_the_run_and_says_why(policy: str, tmp_path: Path) -> None:
    """Under ``drop``, too: of no client at all there is no mean."""
    config = tiny("fedsimclr", train__optimizer__lr=1e30, on_client_error=policy)
    with pytest.raises(ClientError, match=r"client \d failed in round 1, operation 'train'") as caught:
        run_locally(config, tmp_path / "run")
    assert "NonFinite" in str(caught.value)
    assert not (tmp_path / "run/encoder").exists()


def test_one_bad_update_fails_the_run_by_default(poison: Poison, tmp_path: Path) -> None:
    poison(lambda client, round, operation: (client, round) == (2, 2))
    with pytest.raises(ClientError, match="client 2 failed in round 2, operation 'train'") as caught:
        run_locally(tiny("fedbyol"), tmp_path / "run")
    assert "NonFinite: operation 'train' replied with NaN or infinity in 'weights'" in str(caught.value)
    assert [round for round, _ in checkpoint.complete(tmp_path / "run/checkpoints")] == [1]


def test_a_dropped_update_leaves_the_mean_of_the_others_and_its_clients_old_state(
    poison: Poison, tmp_path: Path
) -> None:
    replies = poison(lambda client, round, operation: (client, round) == (2, 2))
    config = tiny("fedbyol", train__rounds=2, on_client_error="drop")
    run_locally(config, tmp_path / "run")
    values = measured(tmp_path / "run")
    assert {round: value for (round, _, tag), value in values.items() if tag == DROPPED} == {2: 1.0}
    assert {client for round, client, tag in values if (round, tag) == (2, "client/loss")} == {0, 1, 3}

    good = [r for r in replies if r["round"] == 2 and r["client"] != 2]
    sizes = np.bincount([row["client"] for row in partition(tmp_path / "run")])
    mean = np.average([r["weights"].vector for r in good], axis=0, weights=[sizes[r["client"]] for r in good])
    tree, _ = checkpoint.load(tmp_path / "run/checkpoints/round-00002")
    np.testing.assert_allclose(tree["server"]["weights"].vector, mean, rtol=0, atol=1e-6)

    before, after = states(tmp_path / "run", 1), states(tmp_path / "run", 2)
    same = {c: np.array_equal(before[c]["target"].vector, after[c]["target"].vector) for c in before}
    assert same == {0: False, 1: False, 2: True, 3: False}


def partition(folder: Path) -> list[dict[str, Any]]:
    """The rows of partition.parquet that are training images."""
    rows: list[dict[str, Any]] = pq.read_table(folder / "partition.parquet").to_pylist()
    return [row for row in rows if row["split"] == "train"]


@pytest.mark.parametrize("method", ASKING)
def test_every_method_goes_on_without_a_client_that_replies_nonsense(
    method: str, poison: Poison, tmp_path: Path
) -> None:
    """Client 1 never sends anything usable, from whatever it is asked first to the end."""
    replies = poison(lambda client, round, operation: client == 1)
    config = tiny(method, on_client_error="drop")
    summary = run_locally(config, tmp_path / "run")
    assert summary["status"] == "complete"
    spoilt = {r["round"] for r in replies if r["client"] == 1 and r["round"]}
    found = {round: value for (round, _, tag), value in measured(tmp_path / "run").items() if tag == DROPPED}
    assert set(found) == spoilt
    for name in encoders(tmp_path / "run"):
        arrays = safetensors.numpy.load_file(tmp_path / "run/encoder" / name)
        assert all(np.isfinite(array).all() for array in arrays.values())
