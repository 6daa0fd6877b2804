"""What Orchestra, SSD, FedDF, FedMD and FedMKD say beforehand of images and bytes: against images counted where they
are augmented or cleaned, numbers worked out by hand, and runs whose clients are late, lost or met for the first time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated import client, process_context
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.simulation.worker import Worker
from tests.tiny import booked, encoders, measured, run_locally, tiny

Read = dict[tuple[int, int, str], int]  # round, client, operation -> images
SPEEDS = {
    "seconds_per_image": {"median": 0.05, "sigma": 0.5}, "down_mbps": {"median": 1.0, "sigma": 0.5}, "up_mbps": 0.5,
    "latency_s": 0.2,
}  # fmt: skip
METHODS = ["orchestra", "ssd", "feddf", "fedmd", "fedmkd"]


def blind(method: str, **changes: object) -> RunConfig:
    return tiny(method, **{"evaluation__protocols": [], **changes})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The images that every operation takes, counted at the two functions through which all of them go."""
    found: Read = Counter()
    now: list[tuple[int, int, str]] = []
    execute = Worker.execute

    def executing(self: Worker, operation: str, whom: int, round: int, *rest: Any) -> Any:
        now[:] = [(round, whom, operation)]
        found[now[0]] += 0
        return execute(self, operation, whom, round, *rest)

    def counting(function: Any) -> Any:
        def counted(pixels: Any, *rest: Any, **more: Any) -> Any:
            found[now[0]] += len(pixels)
            return function(pixels, *rest, **more)

        return counted

    monkeypatch.setattr(Worker, "execute", executing)
    monkeypatch.setattr(client, "augment", counting(client.augment))
    monkeypatch.setattr(process_context, "clean", counting(process_context.clean))
    return found


def by_hand(method: str, operation: str, round: int, images: int) -> int:
    """Of a client with so many images: full batches of 16, or one of all; 32 public images, memory 24."""
    fit = images // 16 * 16 if images >= 16 else images
    return {
        ("orchestra", "cluster"): min(24, images),
        ("orchestra", "train"): min(24, images) + 2 * fit,  # a view of each for the turns
        ("ssd", "train"): fit,
        ("feddf", "train"): fit,
        ("fedmkd", "train"): fit,
        ("fedmkd", "adopt"): 0,
        ("fedmd", "pretrain"): 32,
        ("fedmd", "train"): fit + 32 + (32 if round > 1 else 0),
    }[method, operation]


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_images_are_those_counted_by_hand_and_where_they_are_read(method: str, read: Read, tmp_path: Path) -> None:
    """With a deadline, so that each prediction is held against what the operation did."""
    config = blind(method, system={**SPEEDS, "deadline_s": 1e9})
    run_locally(config, tmp_path / "run")
    sizes = load_federation(config).sizes.tolist()
    assert len(set(sizes)) == 4
    asked = {key: images for key, images in read.items() if key[1] >= 0}
    assert asked == {(t, c, name): by_hand(method, name, t, sizes[c]) for t, c, name in asked}
    first = {c: min(t for t, who, _ in asked if who == c) for _, c, _ in asked}
    assert len(set(first.values())) > 1, "some client has to be met later than others"
    if method == "fedmd":
        assert {(t, c) for t, c, name in asked if name == "pretrain"} == {(t, c) for c, t in first.items()}


def by_field(folder: Path) -> Mapping[tuple[int, int], Mapping[str, int]]:
    """(round, client) -> field -> bytes down."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    for t, c, direction, _, field, size in booked(folder):
        if direction == "down":
            found.setdefault((t, c), {})[field] = size
    return found


def test_a_client_gets_its_dimensions_when_it_is_first_asked_and_again_where_it_was_late(tmp_path: Path) -> None:
    """Eight dimensions of 32 for each of four, as int64. With over-selection a late client trained nothing, so that it
    does not know them.
    """
    config = blind("ssd", train__rounds=5, participation__over=1.5, participation__fraction=0.5, system=SPEEDS)
    run_locally(config, tmp_path / "run")
    down = by_field(tmp_path / "run")
    replied = {(t, c) for t, c, direction, *_ in booked(tmp_path / "run") if direction == "up"}
    assert any(key not in replied for key in down)
    for t, c in down:
        knows = any(earlier < t and who == c for earlier, who in replied)
        assert down[t, c].get("subspace", 0) == (0 if knows else 64)


VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "orchestra, no turns": ("orchestra", {"method__rotation": 0.0}),
    "orchestra, few rows": ("orchestra", {"method__local_clusters": 30, "method__memory": 24, "clients__count": 6}),
    "orchestra, steps": ("orchestra", {"train__local_steps": 3, "participation__fraction": 1.0}),
    "ssd, large batches": ("ssd", {"train__batch_size": 200, "method__weights": "uniform"}),
    "fedmd, a subset": ("fedmd", {"method__subset": 20}),
    "fedmd, all public": ("fedmd", {"method__subset": None, "method__digest_epochs": 2, "method__digest_batch": 5}),
    "fedmd, no epochs on them": ("fedmd", {"method__public_epochs": 0, "method__distance": "mse"}),
    "fedmd, steps": ("fedmd", {"train__local_steps": 5, "method__public_epochs": 2}),
    "fedmd, own values": ("fedmd", {"model__initial": "own", "objective__name": "moco", "objective__queue": 48}),
    "feddf, own targets": ("feddf", {"objective__target": "local", "plugins": [{"name": "feddecorr"}]}),
    "feddf, no predictor": ("feddf", {"objective__name": "simclr", "method__distance": "cosine"}),
    "fedmkd, a plug-in": ("fedmkd", {"plugins": [{"name": "fedfoa", "warmup": 0}], "train__batch_size": 12}),
    "fedbyol, averaged": ("fedbyol", {"objective__target": "averaged", "participation__fraction": 0.75}),
    "fedmoco, averaged": ("fedmoco", {"objective__target": "averaged"}),
    "fedavg, dino averaged": ("fedavg", {"objective__name": "dino", "objective__target": "averaged"}),
    "fedprox, averaged": ("fedprox", {"objective__name": "byol", "objective__target": "averaged"}),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", VARIANTS)
def test_predictions_hold_whatever_the_options(case: str, tmp_path: Path) -> None:
    """A clock with a deadline ends a run whose operation read other images, or replied with other bytes, than it
    predicted; and changes nothing.
    """
    method, changes = VARIANTS[case]
    run_locally(blind(method, **changes, system={**SPEEDS, "deadline_s": 1e9}), tmp_path / "timed")
    run_locally(blind(method, **changes), tmp_path / "plain")
    assert encoders(tmp_path / "timed") == encoders(tmp_path / "plain")
    assert booked(tmp_path / "timed") == booked(tmp_path / "plain")


UNRELIABLE = {**SPEEDS, "availability": {"name": "bernoulli", "probability": 0.7}, "drop_out": 0.2, "deadline_s": 9.0}


def run_until(after: int, config: RunConfig, folder: Path) -> None:
    seen = [0]
    run_locally(
        config, folder, resume=folder.exists(), report=lambda p: seen.append(p.round),
        stopping=lambda: max(seen) >= after,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_with_unreliable_clients_stopped_and_resumed_equals_undisturbed(method: str, tmp_path: Path) -> None:
    mixed = {"feddf", "fedmd", "fedmkd"}
    encoder = ["small_cnn", "small_cnn_bn", "small_cnn", "fedlinked_cnn", "small_cnn_bn", "small_cnn"]
    config = blind(
        method, system=UNRELIABLE, clients__count=6, participation__fraction=0.5,
        participation__over=1.5, train__rounds=6, **({"clients__encoders": encoder} if method in mixed else {}),
    )  # fmt: skip
    run_locally(config, tmp_path / "whole")
    values = measured(tmp_path / "whole")
    lost = {
        tag: sum(v for (_, _, name), v in values.items() if name == f"system/{tag}") for tag in ("late", "dropped_out")
    }
    assert all(lost.values()), lost
    for after in (2, 6):
        run_until(after, config, tmp_path / "run")
    assert encoders(tmp_path / "run") == encoders(tmp_path / "whole")
    assert measured(tmp_path / "run") == values
    assert booked(tmp_path / "run") == booked(tmp_path / "whole")
    assert np.diff([values[t, None, "time/virtual_s"] for t in range(1, 7)]).min() >= 0
