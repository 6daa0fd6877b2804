"""Whole runs with unequal, unreliable clients: who is lost, what is booked, what is recorded; and that nothing of it
depends on interruptions or on where clients run.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.workload import Workload
from rayfed_ssl.methods import METHODS, fedavg
from rayfed_ssl.records.summary import virtual_seconds
from rayfed_ssl.records.tables import read_metrics
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.simulation import loop
from tests.tiny import UNPREDICTED, booked, encoders, measured, run_locally, tiny

SPEEDS = {
    "seconds_per_image": {"median": 0.05, "sigma": 0.5}, "down_mbps": {"median": 1.0, "sigma": 0.5}, "up_mbps": 0.5,
    "latency_s": 0.2,
}  # fmt: skip
UNRELIABLE = {**SPEEDS, "availability": {"name": "bernoulli", "probability": 0.6}, "drop_out": 0.2, "deadline_s": 6.0}
SYNC = {"system": UNRELIABLE, "clients__count": 6, "participation__fraction": 0.5, "participation__over": 1.5,
        "train__rounds": 6}  # fmt: skip
FEDBUFF = {"system": UNRELIABLE, "clients__count": 6, "server": {"schedule": "fedbuff", "buffer": 2, "concurrency": 3},
           "train__rounds": 6}  # fmt: skip
LOOKED = {"evaluation__protocols": ["knn", "angles"]}
CASES = {
    "sync": ("fedbyol", {**SYNC, **LOOKED}),
    "two exchanges": ("fedsc", SYNC),
    "fedbuff": ("fedbyol", {**FEDBUFF, **LOOKED}),
    "server work": ("fedmkd", {**SYNC, "system": {**UNRELIABLE, "server_seconds_per_image": 0.05}, "clients__encoders":
                               "small_cnn_bn", "model__width": 0.25}),
}  # fmt: skip


def blind(method: str, **changes: object) -> RunConfig:
    """A tiny run that evaluates nothing."""
    return tiny(method, **{"evaluation__protocols": [], **changes})


def latencies(folder: Path, *seconds: float) -> str:
    """A devices file in which clients differ in latency."""
    table = pa.table({"client": range(len(seconds)), "latency_s": list(seconds)})
    pq.write_table(table, folder / "d.parquet")
    return str(folder / "d.parquet")


def trace(folder: Path, *rows: str, **more: object) -> dict[str, object]:
    (folder / "t.csv").write_text("\n".join(["client,start,end", *rows]))
    return {"name": "trace", "path": str(folder / "t.csv"), **more}


def refusal(config: RunConfig, folder: Path, **options: Any) -> str | None:
    """The line with which a run is refused before anything is written; None where it ran."""
    try:
        run_locally(config, folder, **options)
    except UserError as refused:
        line = str(refused)
    else:
        return None
    assert "\n" not in line
    assert not folder.exists()
    return line


def refused(config: RunConfig, folder: Path) -> str:
    line = refusal(config, folder / "refused")
    assert line is not None
    return line


def values_of(folder: Path, tag: str) -> dict[int, float]:
    return {t: value for (t, client, name), value in measured(folder).items() if name == tag and client is None}


# -- the same bits and the same hours ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folders: dict[str, Path] = {}

    def of(case: str) -> Path:
        if case not in folders:
            method, changes = CASES[case]
            folders[case] = tmp_path_factory.mktemp("whole") / "run"
            run_locally(tiny(method, **changes), folders[case])
        return folders[case]

    return of


def assert_equal(folder: Path, whole: Path) -> None:
    assert encoders(folder) == encoders(whole)
    assert measured(folder) == measured(whole)
    assert booked(folder) == booked(whole)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_the_cases_lose_clients(case: str, undisturbed: Any) -> None:
    """What follows means what it says only if there is something to lose."""
    tags = Counter[str]()
    for (_, _, tag), value in measured(undisturbed(case)).items():
        tags[tag] += value > 0
    expected = ["system/lost"] if case == "fedbuff" else ["system/late", "system/dropped_out"]
    assert all(tags[tag] for tag in expected), tags
    hours = list(values_of(undisturbed(case), "time/virtual_s").values())
    assert len(hours) == 6
    assert hours == sorted(hours)
    assert hours[-1] > 0


def run_until(after: int, config: RunConfig, folder: Path, *, resume: bool) -> None:
    seen = [0]
    run_locally(
        config, folder, resume=resume, report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= after
    )


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_stopped_and_resumed_twice_equals_undisturbed(case: str, undisturbed: Any, tmp_path: Path) -> None:
    method, changes = CASES[case]
    for after in (2, 3, 6):
        run_until(after, tiny(method, **changes), tmp_path / "run", resume=after > 2)
    assert_equal(tmp_path / "run", undisturbed(case))


class Killed(BaseException):
    """Ends a run wherever it is, as a signal would."""


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_killed_in_mid_round_equals_undisturbed(
    case: str, undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, changes = CASES[case]
    client = METHODS[method].client
    trained, left = client.train, [7]  # type: ignore[attr-defined]

    def train(self: Any, *args: Any, **fields: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return trained(self, *args, **fields)

    monkeypatch.setattr(client, "train", train)
    with pytest.raises(Killed):
        run_locally(tiny(method, **changes, checkpoint__every=2), tmp_path / "run")
    run_locally(tiny(method, **changes, checkpoint__every=2), tmp_path / "run", resume=True)
    assert_equal(tmp_path / "run", undisturbed(case))


@pytest.fixture(scope="module")
def pool(ray_session: ModuleType) -> Iterator[Any]:
    """Two actors, whose clients are done in another order than they were asked."""
    from tests.actor_pools import two_actors

    with two_actors() as pool:
        yield pool


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_on_ray_equals_in_process(case: str, undisturbed: Any, tmp_path: Path, pool: Any) -> None:
    from actors.cohort import RayCohort

    def connect(config: RunConfig, federation: Federation, ledger: Ledger) -> RayCohort:
        return RayCohort(config, federation, ledger, pool, keep=True)

    method, changes = CASES[case]
    loop.run(tiny(method, **changes, resources__device="cpu"), tmp_path / "ray", connect)
    assert_equal(tmp_path / "ray", undisturbed(case))


# -- what is predicted, and what happens -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_deadline_is_refused_where_nothing_is_predicted(method: str, tmp_path: Path) -> None:
    """That a clock changes nothing else, and that what is predicted is what then happens, a method's contract says."""
    config = blind(method, system={**SPEEDS, "deadline_s": 1e6})
    line = refusal(config, tmp_path / "run", stopping=lambda: True)
    assert (line is not None) == (method in UNPREDICTED)
    assert line is None or line.startswith(f"system.deadline_s: {method} does not know beforehand")


@pytest.mark.long
def test_time_is_the_same_predicted_or_not(tmp_path: Path) -> None:
    for name, more in (("after", {}), ("before", {"deadline_s": 1e6})):
        run_locally(blind("fedsc", system={**SPEEDS, **more}), tmp_path / name)
    assert values_of(tmp_path / "after", "time/virtual_s") == values_of(tmp_path / "before", "time/virtual_s")


@pytest.mark.long
@pytest.mark.parametrize("options", [{"train__local_steps": 5}, {"train__local_epochs": 2, "train__batch_size": 200}])
def test_steps_and_large_batches_are_predicted_too(options: dict[str, object], tmp_path: Path) -> None:
    config = blind("fedsimclr", **options, plugins=[{"name": "fedfoa", "warmup": 0, "correlation": "round"}],
                  train__rounds=2, system={**SPEEDS, "deadline_s": 1e6}, data__partition__name="iid")  # fmt: skip
    assert run_locally(config, tmp_path / "run")["status"] == "complete"


def test_a_wrong_prediction_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedavg.Server, "workload", lambda self, operation, client: Workload(16, {"weights": 4}))
    with pytest.raises(RuntimeError, match=r"fedsimclr: 'train' of client 0 was predicted to cost .*`workload` is"):
        run_locally(blind("fedsimclr", system={**SPEEDS, "deadline_s": 1e6}), tmp_path / "run")


def test_seconds_of_a_round_are_those_of_its_slowest_client(tmp_path: Path) -> None:
    """From the tables alone: images of the partition, bytes of the communication table."""
    config = blind("fedsimclr", system={"seconds_per_image": 0.5, "down_mbps": 8e-3, "up_mbps": 4e-3, "latency_s": 3})
    run_locally(config, tmp_path / "run")
    traffic = Counter[tuple[int, int, str]]()
    for t, client, direction, _, _, count in booked(tmp_path / "run"):
        traffic[t, client, direction] += count
    sizes = Counter(pq.read_table(tmp_path / "run" / "partition.parquet")["client"].to_pylist())
    now, expected = 0.0, {}
    for t in (1, 2, 3):
        now += max(
            3 + traffic[t, c, "down"] / 1000 + sizes[c] // 16 * 16 * 0.5 + traffic[t, c, "up"] / 500 for c in range(4)
        )
        expected[t] = pytest.approx(now)
    assert values_of(tmp_path / "run", "time/virtual_s") == expected


def test_a_late_client_is_sent_to_and_neither_trains_nor_replies(tmp_path: Path) -> None:
    latencies(tmp_path, 1.0, 1.0, 30.0, 1.0)
    lines: list[str] = []
    config = blind("fedsimclr", system={"devices": str(tmp_path / "d.parquet"), "deadline_s": 20.0})
    run_locally(config, tmp_path / "run", report=lambda p: lines.append(p.line))
    rows = booked(tmp_path / "run")
    assert {row[1] for row in rows if row[2] == "down"} == {0, 1, 2, 3}
    assert {row[1] for row in rows if row[2] == "up"} == {0, 1, 3}
    assert {client for _, client, tag in measured(tmp_path / "run") if tag == "client/loss"} == {0, 1, 3}
    assert values_of(tmp_path / "run", "system/late") == {1: 1.0, 2: 1.0, 3: 1.0}
    assert values_of(tmp_path / "run", "time/virtual_s") == {1: 20.0, 2: 40.0, 3: 60.0}
    assert sum("client 2: needs longer to train than system.deadline_s=20" in line for line in lines) == 1


def test_without_the_late_one_the_mean_is_that_of_the_others(tmp_path: Path) -> None:
    """The round equals one in which only the others were asked."""
    latencies(tmp_path, 1.0, 1.0, 30.0, 1.0)
    there = trace(tmp_path, "0,0,999", "1,0,999", "3,0,999")
    run_locally(
        blind("fedsimclr", system={"devices": str(tmp_path / "d.parquet"), "deadline_s": 20.0}), tmp_path / "late"
    )
    lines: list[str] = []
    away = {"availability": there, "latency_s": 20.0}
    run_locally(blind("fedsimclr", system=away), tmp_path / "away", report=lambda p: lines.append(p.line))
    assert encoders(tmp_path / "late") == encoders(tmp_path / "away")
    assert sum("client 2: never available" in line for line in lines) == 1


def test_a_round_with_nobody_is_recorded_and_skipped(tmp_path: Path) -> None:
    """Everybody is there until 15 and again from 100: round 1 fits, round 2 would end at 20, round 3 finds nobody."""
    there = trace(tmp_path, *(f"{c},{s},{e}" for c in range(4) for s, e in ((0, 15), (100, 1000))))
    system = {"availability": there, "latency_s": 10.0}
    lines: list[str] = []
    config = tiny("fedsimclr", system=system, train__rounds=4)
    summary = run_locally(config, tmp_path / "run", report=lambda p: lines.append(p.line))
    assert summary["void_rounds"] == 2
    assert summary["replies"] == {
        "asked": 12,
        "late": 0,
        "dropped_out": 0,
        "gone": 4,
    }  # of four clients in rounds 1, 2, 4
    assert values_of(tmp_path / "run", "system/void_round") == {2: 1.0, 3: 1.0}
    assert values_of(tmp_path / "run", "time/virtual_s") == {1: 10.0, 2: 20.0, 3: 100.0, 4: 110.0}
    assert set(values_of(tmp_path / "run", "train/loss")) == {1, 4}
    assert values_of(tmp_path / "run", "system/gone")[2] == 4.0
    assert values_of(tmp_path / "run", "system/clients") == {1: 4.0, 2: 0.0, 3: 0.0, 4: 4.0}
    assert "round 2/4 came to nothing: nobody replied" in lines
    assert "round 3/4 came to nothing: nobody can be reached" in lines
    knn = values_of(tmp_path / "run", "eval/knn")
    assert knn[1] == knn[2] == knn[3]  # evaluated, and unchanged
    per_round = Counter((row[0], row[2]) for row in booked(tmp_path / "run"))
    assert (2, "down") in per_round
    assert (2, "up") not in per_round
    assert not any(t == 3 for t, _ in per_round)


@pytest.mark.parametrize(("schedule", "trained"), [("sync", {2, 5, 8}), ("fedbuff", {2, 4, 6, 8})])
def test_a_repeated_trace_of_fractions_of_seconds_does_not_stop_the_clock(
    schedule: str, trained: set[int], tmp_path: Path
) -> None:
    """A day has 9.5 seconds, which is one round of 9: the next one loses everybody, and one waits for the next day.
    FedBuff's next round is both.
    """
    there = trace(tmp_path, *(f"{c},67120.8,67130.3" for c in range(4)), repeat_s=86400.0)
    system = {"availability": there, "latency_s": 9.0}
    given = {"server__schedule": schedule, "train__rounds": 9}
    if schedule == "fedbuff":
        given |= {"server__buffer": 4, "server__concurrency": 4}
    summary = run_locally(blind("fedsimclr", system=system, **given), tmp_path / "run")
    hours = values_of(tmp_path / "run", "time/virtual_s")
    assert len(set(hours.values())) == 9
    assert set(values_of(tmp_path / "run", "train/loss")) == trained
    assert summary["void_rounds"] == 9 - len(trained)
    assert hours[8] == pytest.approx((len(trained) - 1) * 86400 + 67120.8 + 9)


def test_a_client_that_leaves_between_two_exchanges_is_out_of_the_round(tmp_path: Path) -> None:
    """From its second round on FedSC asks twice. There client 0 replies at 30 s, is away from 35 s on, and the second
    exchange begins at 40 s.
    """
    there = trace(tmp_path, "0,0,35", *(f"{c},0,1000" for c in (1, 2, 3)))
    system = {"devices": latencies(tmp_path, 10.0, 20.0, 20.0, 20.0), "availability": there}
    run_locally(blind("fedsc", system=system, train__rounds=2, participation__fraction=1.0), tmp_path / "run")
    assert values_of(tmp_path / "run", "time/virtual_s") == {1: 20.0, 2: 60.0}
    assert values_of(tmp_path / "run", "system/gone") == {1: 0.0, 2: 1.0}
    assert values_of(tmp_path / "run", "system/clients") == {1: 4.0, 2: 3.0}
    up = {client: {row[3] for row in booked(tmp_path / "run") if row[:3] == (2, client, "up")} for client in range(4)}
    assert len(up[1]) == 2
    assert len(up[0]) == 1


def test_too_few_replies_are_booked_and_not_used(tmp_path: Path) -> None:
    latencies(tmp_path, 1.0, 1.0, 30.0, 30.0)
    system = {"devices": str(tmp_path / "d.parquet"), "deadline_s": 20.0, "minimum_replies": 3}
    run_locally(tiny("fedsimclr", system=system, train__rounds=1), tmp_path / "run")
    assert {row[1] for row in booked(tmp_path / "run") if row[2] == "up"} == {0, 1}
    assert not values_of(tmp_path / "run", "train/loss")
    knn = values_of(tmp_path / "run", "eval/knn")
    assert knn[0] == knn[1]


def test_a_round_that_reaches_too_few_comes_to_nothing(tmp_path: Path) -> None:
    """Nobody is lost: of four clients, two are there in round 1 and all in round 2."""
    there = trace(tmp_path, "0,0,1000", "1,0,1000", "2,10,1000", "3,10,1000")
    lines: list[str] = []
    system = {"availability": there, "latency_s": 10.0, "minimum_replies": 3}
    run_locally(
        tiny("fedsimclr", system=system, train__rounds=2), tmp_path / "run", report=lambda p: lines.append(p.line)
    )
    assert "round 1/2 came to nothing: 2 of 2 replied" in lines
    assert {row[:2] for row in booked(tmp_path / "run") if row[2] == "up"} >= {(1, 0), (1, 1)}  # they did arrive
    assert set(values_of(tmp_path / "run", "train/loss")) == {2}


@pytest.mark.long
def test_summary_and_figure_know_the_hours(tmp_path: Path) -> None:
    summary = run_locally(tiny("fedsimclr", system={"latency_s": 1800}, figures=True), tmp_path / "run")
    assert summary["virtual_s"] == 5400.0
    assert virtual_seconds(read_metrics(tmp_path / "run")) == {0: 0.0, 1: 1800.0, 2: 3600.0, 3: 5400.0}
    assert (tmp_path / "run" / "figures" / "accuracy_vs_hours.png").stat().st_size > 1000
    assert "virtual_s" not in run_locally(tiny("fedsimclr", figures=True), tmp_path / "plain")
    assert (tmp_path / "plain" / "figures" / "accuracy.png").exists()
    assert not (tmp_path / "plain" / "figures" / "accuracy_vs_hours.png").exists()


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"participation.over": 1.3}, "participation.over: found 1.3; it needs a system block"),
        ({"participation.over": 0.5}, "participation.over: found 0.5; must be at least 1"),
        ({"system.drop_out": 1.0}, "system.drop_out: found 1.0; must be less than 1"),
        ({"system.deadline_s": 0}, "system.deadline_s: found 0; must be greater than 0"),
        ({"system.seconds_per_image": -1}, "system.seconds_per_image: found -1; must be at least 0"),
        ({"system.latency_s": {"median": 1}}, "system.latency_s.sigma: found nothing; must be given"),
        ({"system.availability": {"name": "never"}}, "system.availability.name: found 'never'; must be one of always"),
        ({"system.availability": {"name": "bernoulli", "probability": 0}}, "probability: found 0; must be greater"),
        ({"server.buffer": 3}, "server.buffer: found 3; it needs server.schedule=fedbuff"),
        ({"server.schedule": "fedbuff"}, "server.schedule: found 'fedbuff'; it needs a system block"),
        ({"server.schedule": "fedbuff", "system.latency_s": 1, "participation.over": 2}, "participation.over: found 2"),
        ({"server.schedule": "fedbuff", "system.latency_s": 1, "server.concurrency": 9}, "server.concurrency: found 9"),
        (
            {"server.schedule": "fedbuff", "system.latency_s": 1, "method.name": "fedsc"},
            "but a round of fedsc is not one exchange of weights that ends with their plain mean; allowed: sync "
            "(fedbuff goes with fedsimclr, fedbyol",
        ),
        (
            {"server.schedule": "fedbuff", "system.latency_s": 1, "method.name": "local"},
            "fedpr, feddecorr, fedu, fedema, fur, fedx)",
        ),
        (
            {"server.schedule": "fedbuff", "system.latency_s": 1, "plugins": [{"name": "fedfoa"}]},
            "plugins: found fedfoa; server.schedule=fedbuff allows only those that exchange nothing",
        ),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_one_line(changes: dict[str, object], line: str) -> None:
    document = {"method": {"name": "fedsimclr"}, "clients": {"count": 5}}
    with pytest.raises(configfile.ConfigError) as caught:
        build(document, changes, origin="x.yaml")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_that_ends_too_early_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    there = trace(tmp_path, *(f"{c},0,25" for c in range(4)))
    line = refused(blind("fedsimclr", system={"availability": there, "latency_s": 10.0}), tmp_path)
    assert "system.availability.path: found a trace that ends at 25 s; 3 rounds take at least 30 s" in line


def test_a_trace_that_ends_on_the_way_is_one_line_and_the_checkpoint_is_kept(tmp_path: Path) -> None:
    """Client 0 would be done in a second and leaves after 11; rounds of the others take longer than could be known."""
    latencies(tmp_path, 1.0, 11.0, 11.0, 11.0)
    there = trace(tmp_path, *(f"{c},0,{35 if c else 11}" for c in range(4)))
    system = {"availability": there, "devices": str(tmp_path / "d.parquet")}
    with pytest.raises(UserError, match=r"found a trace that ends at 35 s; round 5 begins at 44 s") as caught:
        run_locally(blind("fedsimclr", system=system, train__rounds=6), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "run" / "checkpoints" / "round-00004" / "complete.json").exists()


@pytest.mark.parametrize("changed", ["system.devices", "system.availability.path", "data.partition.path", None])
def test_a_file_that_changed_is_noticed_at_the_resume(changed: str | None, tmp_path: Path) -> None:
    def config() -> RunConfig:
        there = {"name": "trace", "path": str(tmp_path / "t.csv")}
        return blind(
            "fedsimclr", system={"availability": there, "devices": str(tmp_path / "d.parquet")},
            data__partition={"name": "file", "path": str(tmp_path / "p.json")},
        )  # fmt: skip

    (tmp_path / "p.json").write_text(json.dumps([list(range(c, 160, 4)) for c in range(4)]))
    latencies(tmp_path, 1.0, 2.0, 3.0, 4.0)
    trace(tmp_path, *(f"{c},0,500" for c in range(4)))
    run_until(1, config(), tmp_path / "run", resume=False)
    written = json.loads((tmp_path / "run" / "environment.json").read_text())["files"]
    assert written["system.devices"] == blake2b((tmp_path / "d.parquet").read_bytes(), digest_size=16).hexdigest()
    if changed is None:
        assert run_locally(config(), tmp_path / "run", resume=True)["status"] == "complete"
        return
    if changed == "system.devices":
        latencies(tmp_path, 1.0, 2.0, 3.0, 4.5)
    elif changed == "data.partition.path":
        (tmp_path / "p.json").write_text(json.dumps([list(range(3 - c, 160, 4)) for c in range(4)]))
    else:
        trace(tmp_path, *(f"{c},0,501" for c in range(4)))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(
        UserError, match=rf"^{re.escape(changed)}: found .* with digest \w+, but the run in .*; restore"
    ):
        run_locally(config(), tmp_path / "run", resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_nobody_who_could_ever_reply_is_refused(tmp_path: Path) -> None:
    line = refused(blind("fedsimclr", system={"latency_s": 30.0, "deadline_s": 20.0}), tmp_path)
    assert "system: found no client that could ever reply (clients 0, 1, 2, 3: needs longer" in line
    there = trace(tmp_path, "0,0,20", "1,50,60")
    line = refused(blind("fedsimclr", system={"latency_s": 30.0, "availability": there}), tmp_path)
    assert "clients 2, 3: never available" in line
    assert "clients 0, 1: needs longer to train than it ever stays" in line


@pytest.mark.long
def test_losses_are_drawn_by_seed(tmp_path: Path) -> None:
    method, changes = CASES["sync"]
    runs = {}
    for seed in (0, 1):
        run_locally(blind(method, **changes, seed=seed), tmp_path / str(seed))
        runs[seed] = values_of(tmp_path / str(seed), "time/virtual_s")
    assert not np.allclose(list(runs[0].values()), list(runs[1].values()))
