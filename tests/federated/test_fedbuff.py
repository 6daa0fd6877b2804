"""FedBuff's schedule and step against an example worked out by hand, and whole runs against what they must equal."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from rayfed_ssl.base.weights import Weights
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.fedbuff import (
    Arrival,
    Attempt,
    Contribution,
    FedBuff,
    Slots,
    staleness_weight,
    stepped,
    waves,
)
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import fedavg
from rayfed_ssl.simulation.assembly import rehearse
from rayfed_ssl.simulation.local import LocalCohort
from tests.tiny import booked, encoders, measured, run_locally, tiny

A, B, C, D, E = range(5)
SECONDS = {A: 13.0, B: 11.5, C: 42.0, D: 9.0, E: 22.0}
DELTA = {A: 1.0, B: 2.0, C: -1.0, D: 4.0, E: 3.0}
ARRIVALS = [  # time, client, how stale: three at work, an update after every second reply
    (11.5, B, 0), (13, A, 0), (20.5, D, 1), (32, B, 0), (35, E, 1), (42, C, 2), (44, D, 1), (45, A, 1), (53.5, B, 1),
]  # fmt: skip
STEPS = [1.5, 3.9142136, 4.6861986, 6.4539656]
WRONG = {
    "no staleness": [1.5, 4.5, 5.5, 8],
    "divided by the sum of s": [1.5, 4.3284271, 5.5304682, 8.0304682],
    "averaging models": [1.5, 3.7071068, 2.0278064, 6.2071068],
    "difference to the current model": [1.5, 3.3838835, 2.5129721, 4.8965664],
    "a sum, normalised at tau 1": [4.2426407, 11.0710678, 13.2545712, 18.2545712],
}


def play(arrivals: int) -> list[tuple[float, int, int]]:
    """The arrivals of the example, the version being raised after every second one."""
    slots, now, seen = Slots([A, B, C, D, E], 3), 0.0, []
    while len(seen) < arrivals:
        slots.start(now, [True] * 5, lambda client, visit: Attempt(SECONDS[client], lost=False))
        arrival = slots.pop_next_arrival()
        now = arrival.time
        seen.append((now, arrival.client, slots.version - arrival.version))
        if len(seen) % 2 == 0:
            slots.update()
    return seen


def test_arrivals_are_those_worked_out_by_hand() -> None:
    assert play(9) == [(pytest.approx(at), client, tau) for at, client, tau in ARRIVALS]


def ours(replies: list[tuple[int, int]], thetas: list[float]) -> float:
    """One step of the library over replies (client, tau), the newest version being the last of ``thetas``."""
    version = len(thetas) - 1
    counted = [Contribution(version - tau, staleness_weight(tau), 1.0) for _, tau in replies]
    models = np.array([thetas[version - tau] + DELTA[client] for client, tau in replies])
    s = np.array([count.discount for count in counted])
    mean = np.array([(s * models).sum() / s.sum()])
    anchors = {v: np.array([theta]) for v, theta in enumerate(thetas[:-1])}
    return float(stepped(np.array([thetas[-1]]), version, mean, counted, anchors, 1.0)[0])


def by_the_book(replies: list[tuple[int, int]], thetas: list[float], variant: str = "") -> float:
    """The server's step as a loop over the buffer, right or wrong in a named way."""
    now, total, weights = thetas[-1], 0.0, 0.0
    for client, tau in replies:
        s = 1.0 if variant == "no staleness" else (1 + tau) ** -0.5
        s *= 2**0.5 if variant == "a sum, normalised at tau 1" else 1.0
        model = thetas[-1 - tau] + DELTA[client]
        add = {"averaging models": model, "difference to the current model": model - now}.get(variant, DELTA[client])
        total, weights = total + s * add, weights + s
    match variant:
        case "averaging models":
            return total / weights
        case "divided by the sum of s":
            return now + total / weights
        case "a sum, normalised at tau 1":
            return now + total
    return now + total / len(replies)


def steps(step: Callable[[list[tuple[int, int]], list[float]], float]) -> list[float]:
    thetas = [0.0]
    for first in range(0, 8, 2):
        thetas.append(step([(client, tau) for _, client, tau in ARRIVALS[first : first + 2]], thetas))
    return thetas[1:]


def test_steps_are_those_worked_out_by_hand() -> None:
    np.testing.assert_allclose(steps(ours), STEPS, atol=5e-8)
    np.testing.assert_allclose(steps(by_the_book), STEPS, atol=5e-8)


@pytest.mark.parametrize("variant", WRONG)
def test_other_readings_of_the_paper_give_other_numbers(variant: str) -> None:
    wrong = steps(lambda replies, thetas: by_the_book(replies, thetas, variant))
    np.testing.assert_allclose(wrong, WRONG[variant], atol=5e-8)
    assert not np.allclose(steps(ours), wrong, atol=1e-3)


def test_a_step_with_shares_lr_and_old_anchors_equals_the_loop() -> None:
    draws = np.random.default_rng(0)
    anchors = {v: draws.normal(size=6) for v in range(4)}
    replies = [(Contribution(v, staleness_weight(3 - v), float(draws.uniform(0.1, 1))), draws.normal(size=6)) for v in
               (0, 3, 1, 3, 1)]  # fmt: skip
    weight = sum(c.discount * c.share for c, _ in replies)
    mean = sum(c.discount * c.share * theta for c, theta in replies) / weight
    expected = anchors[3].copy()
    for count, theta in replies:
        step = count.discount * count.share * (theta - anchors[count.version])
        expected += 0.7 * step / sum(c.share for c, _ in replies)
    got = stepped(anchors[3], 3, np.asarray(mean), [c for c, _ in replies], anchors, 0.7)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    with_buffers = stepped(anchors[3], 3, np.asarray(mean), [c for c, _ in replies], anchors, 0.7, 4)
    np.testing.assert_allclose(with_buffers, [*expected[:4], *np.asarray(mean)[4:]], atol=1e-12)


def test_fresh_replies_give_their_mean_to_the_bit() -> None:
    draws = np.random.default_rng(1)
    mean = draws.normal(size=1000).astype(np.float32)
    current = (draws.normal(size=1000) * 1e9).astype(np.float32)  # of another size: a difference would round
    replies = [Contribution(5, 1.0, share) for share in (0.1, 0.2, 0.3)]
    np.testing.assert_array_equal(stepped(current, 5, mean, replies, {}, 1.0).astype(np.float32), mean)


def test_what_arrives_at_one_instant_is_taken_before_anybody_starts() -> None:
    slots = Slots([2, 0, 1], 3)
    slots.start(0.0, [True] * 3, lambda client, visit: Attempt(5.0, lost=False))
    assert slots.pop_next_arrival().client == 0
    slots.start(5.0, [True] * 3, lambda client, visit: Attempt(0.5, lost=False))
    assert [slots.pop_next_arrival()[:3] for _ in range(2)] == [(5.0, 1, 0), (5.0, 2, 0)]
    slots.update()
    slots.start(5.0, [True] * 3, lambda client, visit: Attempt(5.0, lost=False))
    assert [slots.pop_next_arrival()[:3] for _ in range(3)] == [(10.0, 0, 1), (10.0, 1, 1), (10.0, 2, 1)]


def test_a_checkpoint_of_an_earlier_version_is_read() -> None:
    """The keys that every version has written; the order of a row's values is (time, client, version, visit, lost)."""
    written = {
        "idle": [3], "free": 0, "flights": [[2.0, 0, 1, 0, False], [4.0, 2, 0, 1, True]],
        "visits": {0: 1}, "version": 1,
    }  # fmt: skip
    slots = Slots([0, 1, 2, 3], 2)
    slots.restore(written)
    assert slots.state == written
    first, second = slots.pop_next_arrival(), slots.pop_next_arrival()
    assert (first.time, first.client, first.version, first.visit, first.lost) == (2.0, 0, 1, 0, False)
    assert (second.time, second.client, second.version, second.visit, second.lost) == (4.0, 2, 0, 1, True)


def test_who_cannot_be_reached_keeps_its_place_in_the_queue() -> None:
    slots = Slots([0, 1, 2, 3], 2)
    slots.start(0.0, [False, True, False, True], lambda client, visit: Attempt(1.0 + client, lost=False))
    assert [arrival.client for arrival in sorted(slots.arrivals)] == [1, 3]
    assert list(slots.idle) == [0, 2]
    again = Slots([0, 1, 2, 3], 2)
    again.restore(slots.state)
    assert again.state == slots.state
    assert again.pop_next_arrival() == slots.pop_next_arrival()


def test_a_client_that_replies_twice_is_run_in_two_waves() -> None:
    arrivals = [Arrival(float(i), client, 0, 0, False) for i, client in enumerate([2, 1, 2, 3, 2, 1])]
    assert [list(group) for group in waves(arrivals)] == [[1, 2, 3], [1, 2], [2]]
    assert waves(arrivals)[2][2].time == 4.0


# -- whole runs --------------------------------------------------------------------------------------------------------


def buffered(method: str = "fedbyol", **changes: object) -> RunConfig:
    given = {"system": {"latency_s": 10.0}, "server__schedule": "fedbuff", "server__buffer": 4, **changes}
    return tiny(method, **given)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        *((method, {}) for method in ("fedbyol", "fedprox", "fedema", "fedx")),
        ("fedbyol", {"transport": {"up": {"name": "quantized", "bits": 4}, "down": {"name": "quantized"}}}),
    ],
)
def test_all_clients_at_equal_speed_is_the_synchronous_mean_bit_for_bit(
    method: str, changes: dict[str, object], tmp_path: Path
) -> None:
    run_locally(tiny(method, system={"latency_s": 10.0}, participation__fraction=1.0, **changes), tmp_path / "sync")
    run_locally(buffered(method, participation__fraction=1.0, **changes), tmp_path / "buffered")
    assert encoders(tmp_path / "buffered") == encoders(tmp_path / "sync")
    assert booked(tmp_path / "buffered") == booked(tmp_path / "sync")
    found, expected = measured(tmp_path / "buffered"), measured(tmp_path / "sync")
    same = {key: value for key, value in found.items() if not key[2].startswith(("fedbuff/", "system/"))}
    assert same == {key: value for key, value in expected.items() if not key[2].startswith("system/")}
    assert found[3, None, "time/virtual_s"] == 30.0


@pytest.mark.long
def test_clients_count_in_a_buffered_mean_as_the_server_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By images, all the same, or by a rule of the server's own: synchronous or buffered, the same mean to the bit."""

    def mean(name: str, **changes: object) -> bytes:
        config = buffered("fedsimclr", participation__fraction=1.0, **changes)
        run_locally(config, tmp_path / name)
        plain = {"server__schedule": "sync", "server__buffer": 10}
        run_locally(
            buffered("fedsimclr", participation__fraction=1.0, **{**changes, **plain}), tmp_path / f"{name} sync"
        )
        assert encoders(tmp_path / name) == encoders(tmp_path / f"{name} sync")
        return final(tmp_path / name, config)

    found = {mean("images"), mean("uniform", method__weights="uniform")}
    monkeypatch.setattr(fedavg.Server, "counts", lambda self, clients: {client: 1.0 + client for client in clients})
    assert len(found | {mean("own rule")}) == 3


def test_one_at_work_and_one_reply_is_sequential_training(tmp_path: Path) -> None:
    """Each client in turn from the model of the one before, by the synchronous verbs; nothing is ever stale."""
    config = buffered("fedsimclr", server__buffer=1, server__concurrency=1, train__rounds=6)
    run_locally(config, tmp_path / "run")
    federation = load_federation(config)
    cohort = LocalCohort(config, federation, Ledger())
    server = fedavg.Server(Setup(config, federation, cohort.worker.initial))
    server.start(cohort)
    weights: Weights = server.weights
    for t in range(1, 7):
        cohort.begin_round(t, [(t - 1) % 4])
        weights = cohort.mean("train", weights=weights)["weights"]
    assert final(tmp_path / "run", config) == weights.vector.tobytes()
    values = measured(tmp_path / "run")
    assert [values[t, None, "fedbuff/staleness"] for t in range(1, 7)] == [0.0] * 6


def test_stale_replies_are_differences_to_what_they_started_from(tmp_path: Path) -> None:
    """Clients of 10 and 25 seconds, an update at every reply: at 10, 20 and 25, the last one two versions late."""
    pq.write_table(pa.table({"client": [0, 1], "latency_s": [10.0, 25.0]}), tmp_path / "d.parquet")
    config = buffered("fedsimclr", clients__count=2, server__buffer=1, train__rounds=3,
                      system={"devices": str(tmp_path / "d.parquet")})  # fmt: skip
    run_locally(config, tmp_path / "run")
    federation = load_federation(config)
    cohort = LocalCohort(config, federation, Ledger())
    start = cohort.worker.initial(config.clients.encoder(0))

    def trained(client: int, version: int, weights: Weights) -> np.ndarray:
        cohort.begin_round(version + 1, [client])
        (reply,) = cohort.ask("train", weights=weights)
        return np.asarray(reply["weights"].vector, np.float64)

    buffers = slice(start.parameters, None)
    zero = start.vector.astype(np.float64)
    one = trained(0, 0, start)
    two = trained(0, 1, start.with_vector(one.astype(np.float32)))
    model = trained(1, 0, start)
    three = two + 3**-0.5 * (model - zero)
    three[buffers] = model[buffers]
    np.testing.assert_allclose(np.frombuffer(final(tmp_path / "run", config), np.float32), three, rtol=0, atol=2e-6)
    assert [values for (_, _, tag), values in sorted(measured(tmp_path / "run").items(), key=str)
            if tag == "fedbuff/staleness"] == [0.0, 0.0, 2.0]  # fmt: skip


def final(folder: Path, config: RunConfig) -> bytes:
    """The global weights in the last checkpoint."""
    from rayfed_ssl.storage import checkpoint

    tree, _ = checkpoint.load(folder / "checkpoints" / f"round-{config.train.rounds:05d}")
    found: Weights = tree["server"]["weights"]
    return found.vector.tobytes()


def test_who_drops_out_is_given_up_at_the_deadline_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trips of 10 and of 100 seconds, a deadline of 20: whether or not a client drops out, its slot is free by then."""
    pq.write_table(pa.table({"client": range(4), "latency_s": [10.0, 100.0, 10.0, 100.0]}), tmp_path / "d.parquet")
    found: dict[bool, dict[int, Attempt]] = {}
    for drops in (False, True):
        system = {"devices": str(tmp_path / "d.parquet"), "deadline_s": 20.0, "drop_out": 0.5}
        config = buffered(system=system)
        parts = rehearse(config, load_federation(config))[0]
        assert parts.clock is not None
        schedule = FedBuff(parts.server, parts.clock)
        monkeypatch.setattr(FedBuff, "drops_out", lambda self, client, visit, drops=drops: drops)
        ledger = Ledger()
        cohort = LocalCohort(config, load_federation(config), ledger)
        cohort.attach({}, parts.clock)
        cohort.begin_round(1, ())
        found[drops] = {client: schedule.begin(cohort, client, 0) for client in range(4)}
    assert found[False] == {c: Attempt(20.0, lost=True) if c % 2 else Attempt(10.0, lost=False) for c in range(4)}
    assert found[True] == {c: Attempt(20.0 if c % 2 else 10.0, lost=True) for c in range(4)}


@pytest.mark.long
def test_the_rate_of_an_update_is_the_mean_over_the_versions_that_clients_started_from(tmp_path: Path) -> None:
    """Clients of 10 and 25 seconds, an update at every second reply: at 20 client 0's two; at 30 client 1's, which
    began in round 1, and client 0's, which began in round 2; each client has as many images.
    """
    pq.write_table(pa.table({"client": [0, 1], "latency_s": [10.0, 25.0]}), tmp_path / "d.parquet")
    config = buffered("fedsimclr", clients__count=2, server__buffer=2, train__rounds=3,
                      system={"devices": str(tmp_path / "d.parquet")}, train__optimizer__schedule="cosine",
                      train__local_steps=1)  # fmt: skip
    run_locally(config, tmp_path / "run")
    first, second, _ = (0.05 / 2 * (1 + math.cos(math.pi * (t - 1) / 3)) for t in (1, 2, 3))
    found = [measured(tmp_path / "run")[t, None, "train/lr"] for t in (1, 2)]
    assert found == pytest.approx([first, (first + second) / 2])


@pytest.mark.long
def test_stale_replies_count_less_and_very_stale_ones_not(tmp_path: Path) -> None:
    """Client 3 is slow: its replies come in three or more updates late."""
    pq.write_table(pa.table({"client": range(4), "latency_s": [10.0, 10.5, 11.0, 36.0]}), tmp_path / "d.parquet")
    given: dict[str, Any] = {"system": {"devices": str(tmp_path / "d.parquet")}, "server__buffer": 2}
    given |= {"train__rounds": 8, "method__weights": "uniform"}
    run_locally(buffered("fedsimclr", **given), tmp_path / "patient")
    values = measured(tmp_path / "patient")
    assert max(values[t, None, "fedbuff/staleness"] for t in range(1, 9)) >= 1.5
    run_locally(buffered("fedsimclr", **given, server__staleness_max=2), tmp_path / "strict")
    strict = measured(tmp_path / "strict")
    assert sum(value for (_, _, tag), value in strict.items() if tag == "system/stale") >= 1
    used = {client for _, client, tag in strict if tag == "client/loss"}
    assert used == {0, 1, 2}
    assert any(row[1] == 3 and row[2] == "up" for row in booked(tmp_path / "strict"))  # it did reply


@pytest.mark.parametrize(("most", "used"), [(4, {0, 1, 2, 3}), (3, {0, 1, 2})])
def test_a_reply_as_late_as_allowed_is_used(most: int, used: set[int], tmp_path: Path) -> None:
    """By 36 s the others replied three times each, which made four updates: client 3 comes in exactly four late."""
    pq.write_table(pa.table({"client": range(4), "latency_s": [10.0, 10.5, 11.0, 36.0]}), tmp_path / "d.parquet")
    given: dict[str, Any] = {"system": {"devices": str(tmp_path / "d.parquet")}, "server__buffer": 2}
    run_locally(buffered("fedsimclr", **given, server__staleness_max=most, train__rounds=5), tmp_path / "run")
    assert {client for _, client, tag in measured(tmp_path / "run") if tag == "client/loss"} == used


def test_a_fast_client_that_starts_twice_from_one_model_learns_two_different_things(tmp_path: Path) -> None:
    """One client, an update after every second reply: both start from the same model."""
    config = buffered("fedsimclr", clients__count=1, data__partition__name="iid", server__buffer=2, train__rounds=1)
    run_locally(config, tmp_path / "run")
    images = sum(v for (_, _, tag), v in measured(tmp_path / "run").items() if tag == "train/images")
    run_locally(tiny("fedsimclr", clients__count=1, data__partition__name="iid", train__rounds=1), tmp_path / "once")
    one, two = (load_file(tmp_path / name / "encoder" / "global.safetensors") for name in ("once", "run"))
    assert max(np.abs(one[key] - two[key]).max() for key in one) > 1e-3  # their mean is not what one of them learnt
    assert images == 2 * measured(tmp_path / "once")[1, None, "train/images"]
