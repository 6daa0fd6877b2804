"""The contract that every method keeps, on a GPU: same bits again, resumed, and on actors that share it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfed_ssl.federated import steps
from rayfed_ssl.methods import METHODS
from rayfed_ssl.testing import contract
from rayfed_ssl.testing.tiny import encoders, measured, run_locally
from tests.tiny import OWN, RESEEDED, tiny

ON_GPU = {"resources.device": "cuda"}

pytestmark = pytest.mark.gpu

for _name in sorted(METHODS):
    globals()[f"Test_{_name}"] = contract(_name, OWN.get(_name, {}) | ON_GPU, reseeded=RESEEDED.get(_name))


RECORDED = {"fedsimclr", "fedbyol", "fedavg", "local"}
"""Some of those that train by their objective alone, whose steps are recorded."""


@pytest.mark.parametrize("method", sorted(METHODS))
def test_bits_stay_with_graphs_and_in_bfloat16(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method's steps recorded as CUDA graphs, where they can be, give eager mode's bits, in half precision, too."""
    recorded, graphs_made = steps.recorded, []
    monkeypatch.setattr(steps, "recorded", lambda *given: graphs_made.append(given) or recorded(*given))
    runs = {}
    for graphs in ("off", "auto"):
        changes = {"resources__device": "cuda", "resources__cuda_graphs": graphs, "train__precision": "bfloat16"}
        runs[graphs] = tmp_path / graphs
        run_locally(tiny(method, **changes, train__local_steps=10), runs[graphs])
    assert graphs_made or method not in RECORDED
    assert encoders(runs["auto"]) == encoders(runs["off"])
    assert measured(runs["auto"]) == measured(runs["off"])
