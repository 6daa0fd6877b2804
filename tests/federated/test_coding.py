"""What arrives of weights that cross in fewer bytes: by the formula, and in rounds worked out beside the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from rayfed_ssl.base.quantizing import dequantized, quantized
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.federated.aggregation import NonFinite
from rayfed_ssl.federated.coding import RECENT, Downloads, OutOfRange, received, reply_received
from rayfed_ssl.federated.ledger import sizes
from rayfed_ssl.federated.messages import Diverged, Fields, Start, Unread
from rayfed_ssl.settings.transport import FULL, Float16, Quantized
from rayfed_ssl.simulation.worker import Worker
from tests.methods.rounds import config_of, played, started
from tests.tiny import booked, encoders, measured, run_locally, tiny

FOUR = Quantized(bits=4, bucket=16)
EIGHT = {"name": "quantized", "bits": 8, "bucket": 32}
HALF = {"name": "float16"}
UP = {"name": "quantized", "bits": 4, "bucket": 16}


class Pair(NamedTuple):
    first: Any
    second: Any


def some(seed: int = 0, layout: str = "a", scale: float = 1.0) -> Weights:
    """40 parameters and 5 buffers."""
    values = np.random.default_rng(seed).normal(0, scale, 45).astype(np.float32)
    return Weights(layout, values, 40)


def fresh() -> np.random.Generator:
    return np.random.default_rng(7)


def by_hand(vector: np.ndarray) -> np.ndarray:
    return dequantized(*quantized(vector, 4, 16, fresh()), 4, 16)


# -- one way -----------------------------------------------------------------------------------------------------------


def test_weights_alone_are_coded_but_for_their_buffers() -> None:
    weights = some()
    for code, expected in ((FOUR, by_hand(weights.vector[:40])), (Float16(), np.float16(weights.vector[:40]))):
        arrived = received(weights, code, fresh)
        assert np.array_equal(arrived.vector[:40], expected.astype(np.float32))
        assert np.array_equal(arrived.vector[40:], weights.vector[40:])
        assert (arrived.layout, arrived.parameters, arrived.vector.dtype.name) == ("a", 40, "float32")
        assert not np.array_equal(arrived.vector[:40], weights.vector[:40])


def test_beside_weights_of_the_same_layout_the_difference_is() -> None:
    known, moved = some(1), some(1)
    moved.vector[:] += np.random.default_rng(2).normal(0, 1e-4, 45).astype(np.float32)
    arrived = received(moved, FOUR, fresh, known)
    expected = known.vector[:40] + by_hand(moved.vector[:40] - known.vector[:40])
    assert np.array_equal(arrived.vector[:40], expected)
    assert np.array_equal(arrived.vector[40:], moved.vector[40:])
    assert np.abs(arrived.vector - moved.vector).max() < 1e-4
    assert np.array_equal(received(known, FOUR, fresh, known).vector, known.vector)
    for other in (some(1, layout="b"), known.vector, None):
        assert np.array_equal(received(moved, FOUR, fresh, other).vector[:40], by_hand(moved.vector[:40]))


@pytest.mark.parametrize("code", [FOUR, Float16(), FULL])
def test_bytes_are_those_of_the_formula(code: Any) -> None:
    expected = {"quantized": 4 * 40 // 8 + 4 * 3, "float16": 80, "float32": 160}[code.name]
    assert sizes({"w": some()}, code) == {"w": expected, "w.buffers": 20}
    assert sizes({"all": {"x": [some()], "y": np.zeros(3)}}, code) == {"all": expected + 12, "all.buffers": 20}


def test_float16_has_an_end_and_buffers_do_not_go_there() -> None:
    edge = Weights("a", np.array([65504, -65504, 1e9], np.float32), 2)
    assert received(edge, Float16(), fresh).vector.tolist() == [65504, -65504, 1e9]
    for beyond in (65520.0, -1e9):
        with pytest.raises(OutOfRange, match=r"values beyond float16's 65504$"):
            received(Weights("a", np.array([beyond], np.float32), 1), Float16(), fresh)
    far = [Weights("a", np.array([sign * 3e38], np.float32), 1) for sign in (1, -1)]
    with pytest.raises(OutOfRange, match="beyond float32's"):
        received(far[0], FOUR, fresh, far[1])


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_reply_has_each_of_its_weights_coded_from_an_address_of_its_own() -> None:
    purposes: list[str] = []

    def draws(purpose: str) -> np.random.Generator:
        purposes.append(purpose)
        return fresh()

    sent = {"weights": some(1), "nested": {"x": some(2)}, "other": some(3, layout="b")}
    rows = np.ones(3)
    reply = {"weights": some(4), "nested": {"x": some(5)}, "other": some(6), "list": [some(7), rows], "rows": rows}
    arrived = reply_received(reply, sent, FOUR, draws, "said")
    assert purposes == [f"transport {path}" for path in ("weights", "nested.x", "other", "list.0")]
    assert np.array_equal(arrived["weights"].vector, received(some(4), FOUR, fresh, some(1)).vector)
    assert np.array_equal(arrived["nested"]["x"].vector, received(some(5), FOUR, fresh, some(2)).vector)
    assert np.array_equal(arrived["other"].vector, received(some(6), FOUR, fresh).vector)
    assert np.array_equal(arrived["list"][0].vector, received(some(7), FOUR, fresh).vector)
    assert arrived["rows"] is rows
    assert arrived["list"][1] is rows
    assert reply_received(reply, sent, FULL, draws, "said") is reply


class Elsewhere(Unread):
    """A reply's value that another client is sent."""

    nbytes = 180

    def __init__(self, value: object) -> None:
        self.value = value

    def read(self) -> object:
        return self.value


def test_a_download_is_coded_once_wherever_it_stands() -> None:
    downloads, weights, rows = Downloads(FOUR, seed=3), some(), np.ones(3)
    first = downloads.received({"weights": weights, "rows": rows, "none": None, "list": [rows]})
    assert first["rows"] is rows
    assert not np.array_equal(first["weights"].vector, weights.vector)
    again = downloads.received({"other": Pair(weights, 1), "deep": {"x": [weights]}, "unread": Elsewhere(weights)})
    found = [again["other"].first, again["deep"]["x"][0], again["unread"]]
    assert all(value is first["weights"] for value in found)
    assert again["other"].second == 1
    unread = Elsewhere(rows)
    assert downloads.received({"x": unread, "y": Fields({"z": unread})})["x"] is unread
    assert Downloads(FULL, seed=3).received(again) is again


def test_what_a_download_becomes_follows_from_the_seed_and_its_values() -> None:
    """Not from its name, from who is sent it first, or from what was sent before."""

    def arrives(seed: int, values: Weights, before: int = 0) -> list[float]:
        downloads = Downloads(FOUR, seed)
        for n in range(before):
            downloads.received({"x": some(100 + n)})
        (arrived,) = downloads.received({f"field {before}": values}).values()
        return list(arrived.vector.tolist())

    assert arrives(3, some()) == arrives(3, some(), before=RECENT + 2)
    assert arrives(3, some()) != arrives(4, some())
    downloads = Downloads(FOUR, 3)
    weights = some()
    first = downloads.received({"x": weights})["x"]
    for n in range(RECENT):
        downloads.received({"x": some(100 + n)})
    assert len(downloads.recent) == RECENT
    anew = downloads.received({"x": weights})["x"]
    assert anew is not first
    assert np.array_equal(anew.vector, first.vector)


def test_levels_of_one_model_say_nothing_about_anothers() -> None:
    """Rounding errors of two models of one layout are no copies of each other."""
    downloads = Downloads(Quantized(bits=2, bucket=1000), 0)
    one = Weights("a", np.full(2000, 0.5, np.float32), 2000)
    two = Weights("a", np.full(2000, 0.25, np.float32), 2000)
    one.vector[0] = two.vector[0] = 1.0  # every other value is between the levels 0 and 1
    one.vector[1000] = two.vector[1000] = 1.0
    up, also = (downloads.received({"x": w})["x"].vector > 0 for w in (one, two))
    both = (up & also).mean()
    assert abs(both - 0.125) < 0.04  # with one stream for both it would be 0.25


# -- rounds ------------------------------------------------------------------------------------------------------------


def mean_of_round(down: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The model after a round of FedAvg in which the server's values cross by ``down`` and clients' moves take four
    bits: with clients of a run that knows of no transport.
    """
    config = config_of("fedsimclr")
    server, cohort = started(config)
    weights, worker = server.weights, Worker(config, cohort.federation)
    sent = weights.with_vector(weights.vector.copy())
    sent.vector[: weights.parameters] = down(sent.vector[: weights.parameters])
    total = np.zeros(weights.count)
    for client in cohort.federation.clients:
        result, _ = worker.execute("train", client, 1, {"weights": sent}, None)
        vector, count = np.array(result.reply["weights"].vector), weights.parameters
        draws = numpy_generator(config.seed, 1, client, "train", "transport weights")
        moved = vector[:count] - sent.vector[:count]
        vector[:count] = sent.vector[:count] + dequantized(*quantized(moved, 4, 16, draws), 4, 16)
        total += cohort.shares[client] * vector.astype(np.float64)
    return total


def test_a_round_is_the_mean_of_coded_moves_from_the_coded_model() -> None:
    expected = mean_of_round(lambda vector: vector.astype(np.float16).astype(np.float32))
    server, cohort = started(config_of("fedsimclr", transport={"up": UP, "down": HALF}))
    before = server.weights.vector.copy()
    cohort.begin_round(1, cohort.federation.clients)
    server.round(1, cohort)
    np.testing.assert_allclose(server.weights.vector, expected, rtol=0, atol=1e-6)
    plain = mean_of_round(lambda vector: vector)
    assert np.abs(plain - expected).max() > 1e-5, "the server's rounding would not be noticed"
    assert np.abs(before - expected).max() > 1e-3
    count, buffers = server.weights.parameters, server.weights.count - server.weights.parameters
    rows = {(row.direction, row.field): row.bytes for row in cohort.ledger.drain()}
    assert rows == {
        ("down", "weights"): 2 * count,
        ("down", "weights.buffers"): 4 * buffers,
        ("up", "weights"): -(-4 * count // 8) + 4 * -(-count // 16),
        ("up", "weights.buffers"): 4 * buffers,
    }


def test_the_server_keeps_its_own_values() -> None:
    """What is evaluated, exported and in checkpoints has not crossed."""
    server, cohort = started(config_of("fedsimclr", transport={"down": EIGHT}))
    before = server.weights
    kept = before.vector.copy()
    cohort.begin_round(1, cohort.federation.clients)
    server.round(1, cohort)
    assert np.array_equal(before.vector, kept)
    (encoder,) = server.evaluated_encoders()
    assert encoder.weights is server.weights
    half = server.weights.vector.astype(np.float16).astype(np.float32)
    assert not np.array_equal(half, server.weights.vector)


def test_what_a_client_keeps_has_not_crossed() -> None:
    """FedEMA's clients mix the model that they come from with their own, whatever of it the server has."""
    config = config_of("fedema", transport={"up": UP})
    cohort = started(config)[1]
    worker = Worker(config, cohort.federation)
    sent = worker.initial("small_cnn_bn")
    result, state = worker.execute("train", 0, 1, {"weights": sent}, None)
    plain, own = Worker(config_of("fedema"), cohort.federation).execute("train", 0, 1, {"weights": sent}, None)
    assert np.array_equal(state["model"].vector, own["model"].vector)
    assert np.array_equal(own["model"].vector, plain.reply["weights"].vector)
    assert not np.array_equal(result.reply["weights"].vector, plain.reply["weights"].vector)


@pytest.mark.parametrize("visit", [0, 1])
def test_each_visit_of_a_client_is_coded_from_an_address_of_its_own(visit: int) -> None:
    config = config_of("fedsimclr", transport={"up": UP})
    federation = started(config)[1].federation
    worker, plain = Worker(config, federation), Worker(config_of("fedsimclr"), federation)
    sent = worker.initial("small_cnn_bn")
    result, whole = (w.execute("train", 0, 1, {"weights": sent}, None, visit)[0].reply for w in (worker, plain))
    address = (config.seed, 1, 0, "train", "transport weights", *([visit] if visit else []))
    expected = received(whole["weights"], Quantized(**UP), lambda: numpy_generator(*address), sent)  # type: ignore[arg-type]
    assert np.array_equal(result["weights"].vector, expected.vector)


def test_the_servers_own_work_crosses_nowhere() -> None:
    """FedCA's alignment model is what the server's epochs make of its own weights, and goes out coded."""
    changes = {"data__public__source": "share", "data__public__share": 0.3, "method__alignment_epochs": 1}
    server, cohort = started(config_of("fedca", transport={"up": UP, "down": HALF}, **changes))
    plain_server, plain = started(config_of("fedca", **changes))
    model, own = cohort.published["alignment_model"], plain.published["alignment_model"]
    assert np.array_equal(model.vector, own.vector)
    assert np.array_equal(server.weights.vector, plain_server.weights.vector)
    arrived = cohort.worker.published["alignment_model"].vector
    count = model.parameters
    assert np.array_equal(arrived[:count], model.vector[:count].astype(np.float16).astype(np.float32))
    assert np.array_equal(arrived[count:], model.vector[count:])
    booked_bytes = {row.field: row.bytes for row in cohort.ledger.drain() if row.operation == "publish"}
    assert booked_bytes["alignment_model"] == 2 * count
    cohort.begin_round(1, (0,))
    cohort.tell("train", weights=model, dictionary=None)
    assert not [row for row in cohort.ledger.drain() if row.direction == "down"], "everybody has it already"


def test_what_is_sent_twice_in_a_round_is_coded_and_booked_once() -> None:
    """FedSC's model goes out for matrices and, in the same round, for training."""
    changes = {"model__projector__hidden": [8], "transport": {"down": EIGHT, "up": UP}}
    server, cohort = started(config_of("fedsc", **changes))
    seen: list[bytes] = []
    execute = cohort.worker.execute

    def watched(operation: str, client: int, round: int, message: Any, *rest: Any) -> Any:
        seen.append(np.array(message["weights"].vector).tobytes())
        return execute(operation, client, round, message, *rest)

    cohort.worker.execute = watched  # type: ignore[method-assign, assignment]
    t = server.sharing[0]  # type: ignore[attr-defined]
    cohort.begin_round(t, cohort.federation.clients)
    server.round(t, cohort)
    assert len(seen) == 2 * len(cohort.federation.clients)
    assert len(set(seen)) == 1
    rows = [row for row in cohort.ledger.drain() if row.direction == "down" and row.field == "weights"]
    assert [row.client for row in rows] == list(cohort.federation.clients)


def test_values_that_float16_cannot_hold_are_one_line() -> None:
    config = config_of("fedsimclr", transport={"up": HALF, "down": HALF})
    server, cohort = started(config)
    cohort.begin_round(1, cohort.federation.clients)
    server.weights.vector[3] = 7e4
    line = r"^transport\.down: found float16, but the server sends values beyond float16's 65504 in 'weights'; allowed"
    with pytest.raises(UserError, match=line) as refused:
        server.round(1, cohort)
    assert "\n" not in str(refused.value)
    with pytest.raises(NonFinite, match=r"said values beyond float16's 65504 in 'x', as transport\.up has it cross"):
        reply_received({"x": some(scale=1e6)}, {}, Float16(), lambda purpose: fresh(), "said")


def test_a_client_whose_reply_does_not_fit_has_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    server, cohort = started(config_of("fedsimclr", transport={"up": HALF}))
    cohort.begin_round(1, cohort.federation.clients)
    far = server.weights.with_vector(server.weights.vector + np.float32(1e5))
    monkeypatch.setattr(cohort.worker.method.client, "train", lambda self, weights, target=None: {"weights": far})
    with pytest.raises(Diverged, match=r"diverged in round 1: client 0, operation 'train' replied with values beyond"):
        server.round(1, cohort)


# -- schedules and runs ------------------------------------------------------------------------------------------------


def test_fedbuffs_clients_start_from_the_model_as_it_arrived_however_late_they_reply() -> None:
    """The clients' messages, which are made again when replies are taken, are those that were sent."""
    config = config_of("fedsimclr", transport={"down": EIGHT})
    server, cohort = started(config)
    model, seen = server.weights, list[bytes]()
    execute = cohort.worker.execute

    def watched(operation: str, client: int, round: int, message: Any, *rest: Any) -> Any:
        seen.append(np.array(message["weights"].vector).tobytes())
        return execute(operation, client, round, message, *rest)

    cohort.worker.execute = watched  # type: ignore[method-assign, assignment]
    for t in (1, 5):
        cohort.begin_round(t, (0,))
        cohort.send("train", 0, weights=model)
        restored = model.with_vector(model.vector.copy())  # as an anchor is, out of a checkpoint
        list(cohort.take_up("train", {0: Start(1, 0)}, lambda client, w=restored: {"weights": w}))  # type: ignore[misc]
    arrived = Downloads(Quantized(**EIGHT), config.seed).received({"x": model})["x"]
    assert seen == [arrived.vector.tobytes()] * 2


@pytest.mark.parametrize("changes", [{}, {"transport": {}}, {"transport": {"up": {"name": "float32"}}}])
def test_float32_changes_no_bit(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfed_ssl.federated.coding.received", None)  # nothing is coded
    server, cohort = played(config_of("fedsimclr", **changes))
    reference, same = played(config_of("fedsimclr"))
    assert server.weights.vector.tobytes() == reference.weights.vector.tobytes()
    assert (rows := cohort.ledger.drain()) == same.ledger.drain()
    assert rows


def test_a_run_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    """Its config.yaml has no ``transport``."""
    config = tiny("fedsimclr", evaluation__protocols=[])
    run_locally(config, tmp_path / "whole")
    stops: list[int] = []
    run_locally(
        config,
        tmp_path / "run",
        report=lambda p: stops.append(p.round),
        stopping=lambda: bool(stops) and max(stops) > 0,
    )
    path = tmp_path / "run/config.yaml"
    document = yaml.safe_load(path.read_text())
    del document["transport"]
    path.write_text(yaml.safe_dump(document))
    run_locally(config, tmp_path / "run", resume=True)
    assert encoders(tmp_path / "run") == encoders(tmp_path / "whole")
    assert booked(tmp_path / "run") == booked(tmp_path / "whole")


def test_coded_runs_of_fedbuff_go_on_as_they_were(tmp_path: Path) -> None:
    """Two of four clients at work at unequal speed, stopped where replies are under way."""
    config = tiny(
        "fedsimclr", transport={"up": UP, "down": EIGHT}, server={"schedule": "fedbuff", "buffer": 2, "concurrency": 3},
        system={"latency_s": {"median": 10.0, "sigma": 1.0}}, train__rounds=4, evaluation__protocols=[],
    )  # fmt: skip
    run_locally(config, tmp_path / "whole")
    seen: list[int] = []
    run_locally(
        config, tmp_path / "run", report=lambda p: seen.append(p.round), stopping=lambda: bool(seen) and max(seen) > 1
    )
    run_locally(config, tmp_path / "run", resume=True)
    values = measured(tmp_path / "whole")
    assert max(value for (_, _, tag), value in values.items() if tag == "fedbuff/staleness") > 0
    assert measured(tmp_path / "run") == values
    assert encoders(tmp_path / "run") == encoders(tmp_path / "whole")
    assert booked(tmp_path / "run") == booked(tmp_path / "whole")
