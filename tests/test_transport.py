"""Every method with weights in fewer bytes: its predictions stay exact, and its row says which way weights cross."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.config import RunConfig, sends_weights
from rayfed_ssl.federated import coding
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.workload import Traffic
from rayfed_ssl.methods import METHODS
from rayfed_ssl.settings.transport import TransportConfig
from rayfed_ssl.simulation.assembly import rehearse
from rayfed_ssl.simulation.checks import coded_weights
from tests.tiny import UNPREDICTED, booked, run_locally, tiny

CODED = TransportConfig.model_validate(
    {"up": {"name": "quantized", "bits": 4, "bucket": 100}, "down": {"name": "float16"}}
)
CASES: dict[str, dict[str, object]] = {
    **{name: {} for name in METHODS},
    "fedbyol, averaged": {"objective__target": "averaged"},
    "fedbyol, fedfoa": {"plugins": [{"name": "fedfoa", "warmup": 0}]},
    "flesd, mixed": {"clients__encoders": ["small_cnn", "small_cnn_bn"] * 2, "method__student": "small_cnn"},
}


def coded(case: str) -> RunConfig:
    """Two rounds of one local step, weights coded both ways, even where that is refused as nothing would read it."""
    method = case.split(",")[0]
    short = {"train__rounds": 1 if method == "flesd_cc" else 2, "train__local_steps": 1, "checkpoint__every": 0}
    timed = {} if method in UNPREDICTED else {"system": {"latency_s": 0.1, "up_mbps": 1.0, "deadline_s": 1e9}}
    config = tiny(method, **{**short, **timed, **CASES[case], "evaluation__protocols": []})
    return config.model_copy(update={"transport": CODED})


def predicted(config: RunConfig) -> Traffic | None:
    """The bytes of the whole run, by what the method and its plug-ins say."""
    parts, total, met = rehearse(config, load_federation(config))[0], Traffic(0, 0), set[int]()
    for t in range(config.train.rounds + 1):
        clients = parts.server.asked(t) if t else parts.server.setup.clients
        for client, part in product(clients, [parts.server, *parts.plugins.values()]):
            if (traffic := part.traffic(t, client, met)) is None:
                return None
            total += traffic
        met |= set(clients) if t else set()
    return total


@pytest.mark.parametrize("case", CASES)
def test_predictions_are_exact_and_weights_cross_as_the_row_says(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``traffic`` against the ledger; ``workload`` against each reply, which a deadline that nobody misses compares."""
    seen, received = set[str](), coding.received

    def watched(weights: Weights, code: Any, *rest: Any) -> Weights:
        seen.add("up" if code == CODED.up else "down")
        return received(weights, code, *rest)

    monkeypatch.setattr(coding, "received", watched)
    config = coded(case)
    run_locally(config, tmp_path / "run")
    rows = booked(tmp_path / "run")
    found = Traffic(*(sum(row[-1] for row in rows if row[2] == way) for way in ("down", "up")))
    assert predicted(config) == (None if case in UNPREDICTED else found)
    assert seen == sends_weights(config), f"Method.sends_weights of {case} is wrong"
    plain = predicted(config.model_copy(update={"transport": TransportConfig()}))
    if plain is not None:
        assert (found.down < plain.down) == ("down" in seen)
        assert (found.up < plain.up) == ("up" in seen)


def test_a_run_says_how_weights_cross_where_they_do() -> None:
    found = {
        name: [note.text for note in coded_weights(tiny(name).model_copy(update={"transport": CODED}))]
        for name in ("fedsimclr", "flesd", "local")
    }
    ends = " (transport): receivers compute with what arrives"
    assert found == {
        "fedsimclr": [f"weights go up as 4-bit QSGD in buckets of 100, down as float16{ends}"],
        "flesd": [f"weights go down as float16{ends}"],
        "local": [],
    }
    assert coded_weights(tiny("fedsimclr")) == []
