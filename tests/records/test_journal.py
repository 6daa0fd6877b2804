"""A run's tables and event files: round trip, resume without repetition, aggregation over many clients."""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rayfed_ssl.federated.ledger import Booking, Ledger
from rayfed_ssl.records.journal import Journal
from rayfed_ssl.records.tables import (
    COMMUNICATION,
    METRICS,
    PartitionRows,
    communication_totals,
    read_communication,
    read_metrics,
    write_partition,
)

Row = tuple[int, int | None, str, float]


def rows_of(folder: Path) -> list[Row]:
    return [(r["round"], r["client"], r["tag"], r["value"]) for r in read_metrics(folder).to_pylist()]


def events_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: tag -> [(step, value to six places)], after its own purging."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, round(e.value, 6)) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def train(records: Journal, rounds: range, *, commit_every: int = 1, clients: int = 2) -> None:
    for t in rounds:
        for client in range(clients):
            records.metric(t, "train/loss", t + client / 10, client)
        records.metric(t, "train/loss", t + 0.5)
        records.communication(
            [Booking(t, c, d, "train", "weights", 10**6) for c in range(clients) for d in ("down", "up")]
        )
        if t % commit_every == 0:
            records.commit(t)


def test_the_tables_are_read_whole_by_anybodys_parquet_reader(tmp_path: Path) -> None:
    records = Journal(tmp_path, clients=2)
    train(records, range(1, 5), commit_every=2)
    records.close()
    assert sorted(p.name for p in (tmp_path / "metrics.parquet").iterdir()) == [
        "part-00002.parquet",
        "part-00004.parquet",
    ]
    metrics, bookings = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("metrics", "communication"))
    assert metrics.schema.remove_metadata() == METRICS
    assert bookings.schema.remove_metadata() == COMMUNICATION
    losses = metrics.to_pylist()
    assert [(r["round"], r["client"], r["value"]) for r in losses if r["tag"] == "train/loss"] == [
        row for t in range(1, 5) for row in ((t, 0, float(t)), (t, 1, t + 0.1), (t, None, t + 0.5))
    ]
    assert bookings.num_rows == 4 * 2 * 2
    assert metrics.sort_by("wall_s")["wall_s"].to_pylist() == metrics["wall_s"].to_pylist()


def test_uncommitted_rows_are_not_on_disk_and_an_interrupted_write_is_not_read(tmp_path: Path) -> None:
    records = Journal(tmp_path, clients=2)
    assert read_metrics(tmp_path).num_rows == 0
    train(records, range(1, 4), commit_every=2)
    (tmp_path / "metrics.parquet" / ".part-00004.parquet.tmp").write_bytes(b"half")
    assert {r[0] for r in rows_of(tmp_path)} == {1, 2}
    assert set(pq.read_table(tmp_path / "metrics.parquet")["round"].to_pylist()) == {1, 2}
    Journal(tmp_path, resume_round=2, clients=2)
    assert sorted(p.name for p in (tmp_path / "metrics.parquet").iterdir()) == ["part-00002.parquet"]


def test_nan_and_infinity_are_stored_as_they_are(tmp_path: Path) -> None:
    records = Journal(tmp_path, clients=100)
    for client in range(100):
        records.metric(1, "train/loss", math.nan if client else 2.0, client)
        records.metric(1, "train/gone", math.nan, client)
    records.metric(1, "eval/knn", math.inf)
    records.commit(1)
    records.close()
    values = read_metrics(tmp_path)["value"]
    assert values.null_count == 0
    assert np.isnan(values.to_numpy()).sum() == 199
    events = events_of(tmp_path)
    assert events["client/train/loss/mean"] == [(1, 2.0)]
    assert math.isnan(events["client/train/gone/mean"][0][1])
    assert events["eval/knn"] == [(1, math.inf)]


@pytest.mark.parametrize("crash_after", ["uncommitted rows", "an unmarked commit"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, crash_after: str) -> None:
    whole = Journal(tmp_path / "whole", clients=2)
    train(whole, range(1, 9), commit_every=2)
    whole.close()
    crashed = Journal(tmp_path / "run", clients=2)
    train(crashed, range(1, 6), commit_every=2)  # committed at 2 and 4, round 5 only in TensorBoard
    if crash_after == "an unmarked commit":
        train(crashed, range(6, 7), commit_every=2)
    crashed.close()
    resumed = Journal(tmp_path / "run", resume_round=4, clients=2)
    before = read_metrics(tmp_path / "run")["wall_s"].to_numpy().max()
    assert {r[0] for r in rows_of(tmp_path / "run")} == {1, 2, 3, 4}
    train(resumed, range(5, 9), commit_every=2)
    resumed.close()
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")
    assert read_communication(tmp_path / "run").equals(read_communication(tmp_path / "whole"))
    assert events_of(tmp_path / "run") == events_of(tmp_path / "whole")
    wall = read_metrics(tmp_path / "run")
    assert all(r["wall_s"] >= before for r in wall.to_pylist() if r["round"] > 4)


def test_late_evaluations_appear_once_wherever_the_run_was_interrupted(tmp_path: Path) -> None:
    """Round 4's evaluation is pending at checkpoint 4 and comes in while round 5 runs, or after the last round."""

    def evaluate(records: Journal, t: int) -> None:
        records.metric(t, "eval/knn", t / 10)

    expected = [(0, 0.0), (2, 0.2), (4, 0.4)]
    records = Journal(tmp_path, clients=2)
    evaluate(records, 0)
    train(records, range(1, 3), commit_every=2)
    evaluate(records, 2)  # after commit 2
    train(records, range(3, 5), commit_every=2)  # commit 4 holds rounds 3, 4 and the evaluation of 2
    evaluate(records, 4)
    records.commit(4)  # the run ends: a part of its own, past checkpoint 4
    records.close()
    assert events_of(tmp_path)["eval/knn"] == expected
    assert (tmp_path / "metrics.parquet" / "part-00004_1.parquet").exists()

    resumed = Journal(tmp_path, resume_round=4, clients=2)  # more rounds; the pending evaluation runs again
    assert [r for r in rows_of(tmp_path) if r[2] == "eval/knn" and r[0] == 4] == []
    evaluate(resumed, 4)
    resumed.close()  # interrupted before the next commit
    resumed = Journal(tmp_path, resume_round=4, clients=2)
    evaluate(resumed, 4)
    train(resumed, range(5, 7), commit_every=2)
    resumed.close()
    assert events_of(tmp_path)["eval/knn"] == expected
    again = Journal(tmp_path, resume_round=2, clients=2)  # later checkpoints were lost: back to 2
    evaluate(again, 2)
    train(again, range(3, 5), commit_every=2)
    evaluate(again, 4)
    train(again, range(5, 7), commit_every=2)
    again.close()
    assert max(Counter((r[0], r[1], r[2]) for r in rows_of(tmp_path)).values()) == 1
    shown = events_of(tmp_path)
    assert shown["eval/knn"] == expected
    assert [step for step, _ in shown["train/loss"]] == list(range(1, 7))
    assert [step for step, _ in shown["client/train/loss/1"]] == list(range(1, 7))


def test_curves_are_in_the_order_of_rounds_where_a_checkpoint_comes_before_its_evaluation(tmp_path: Path) -> None:
    records = Journal(tmp_path, clients=2)
    for t in (5, 10, 15, 20):
        records.metric(t, "train/loss", 1 / t)
        if t % 10 == 0:
            records.commit(t)
        records.metric(t, "eval/knn", t / 100)
    records.close()
    assert [step for step, _ in events_of(tmp_path)["eval/knn"]] == [5, 10, 15, 20]
    again = Journal(tmp_path, resume_round=20, clients=2)
    again.metric(20, "eval/knn", 0.2)
    again.commit(20)
    again.close()
    assert events_of(tmp_path)["eval/knn"] == [(t, pytest.approx(t / 100)) for t in (5, 10, 15, 20)]
    assert [step for step, _ in events_of(tmp_path)["train/loss"]] == [5, 10, 15, 20]


def test_a_run_begun_anew_forgets_the_earlier_attempt(tmp_path: Path) -> None:
    first = Journal(tmp_path, clients=2)
    train(first, range(1, 4))
    first.close()
    second = Journal(tmp_path, clients=2)
    train(second, range(1, 2))
    second.close()
    assert {r[0] for r in rows_of(tmp_path)} == {1}
    assert events_of(tmp_path)["train/loss"] == [(1, 1.5)]


def test_commits_do_not_go_back(tmp_path: Path) -> None:
    records = Journal(tmp_path, clients=2)
    train(records, range(1, 4))
    with pytest.raises(ValueError, match="round 3 is committed: round 2"):
        records.commit(2)


@pytest.mark.parametrize("clients", [64, 65])
def test_clients_have_curves_up_to_64_and_quartiles_beyond(tmp_path: Path, clients: int) -> None:
    values = np.random.default_rng(0).normal(size=clients).astype(np.float32)
    records = Journal(tmp_path, clients=clients)
    for t in (1, 2):
        for client in range(clients):
            records.metric(t, "client/drift", float(values[client]) * t, client)
    records.commit(2)
    records.close()
    events = events_of(tmp_path)
    assert read_metrics(tmp_path).num_rows == 2 * clients
    if clients == 64:
        assert set(events) == {f"client/drift/{client}" for client in range(64)}
        np.testing.assert_allclose(events["client/drift/7"], [(1, values[7]), (2, 2 * values[7])], atol=1e-6)
        return
    middle = {f"p{q}": float(np.percentile(values, q)) for q in (25, 50, 75)}
    truth = {"mean": values.mean(), "min": values.min(), "max": values.max(), **middle}
    assert set(events) == {f"client/drift/{name}" for name in truth}
    for name, value in truth.items():
        assert events[f"client/drift/{name}"][1] == (2, pytest.approx(2 * value, abs=2e-6))


def test_the_ledgers_totals_are_the_tables_and_the_curves(tmp_path: Path) -> None:
    ledger, records = Ledger(), Journal(tmp_path, clients=3)
    ledger.publish(range(3), "public", np.zeros(1000, np.uint8))
    for t in (1, 2, 3):
        ledger.begin_round(t)
        for client in range(3):
            ledger.book_down(client, "train", {"weights": np.zeros(50 * t)})
            ledger.book_up(client, "train", {"weights": 200 * t})
        records.communication(ledger.drain())
        records.commit(t)
        if t == 2:
            records.close()
            records = Journal(tmp_path, resume_round=2, clients=3)
    records.close()
    booked = read_communication(tmp_path)
    assert communication_totals(booked) == {"up_bytes": ledger.up_bytes, "down_bytes": ledger.down_bytes}
    assert ledger.down_bytes == 3 * 1000 + 3 * 4 * 50 * (1 + 2 + 3)
    assert sum(booked.filter(pa.compute.equal(booked["round"], 0))["bytes"].to_pylist()) == 3000
    shown = events_of(tmp_path)
    assert shown["communication/up_mb"] == [(0, 0.0), (1, 6e-4), (2, 1.8e-3), (3, 3.6e-3)]
    assert shown["communication/down_mb"][-1] == (3, ledger.down_bytes / 1e6)


def test_text_and_images_are_written_once(tmp_path: Path) -> None:
    for resume_round in (None, 1):
        records = Journal(tmp_path, resume_round=resume_round, clients=2)
        records.text("config", "| key | value |\n|---|---|\n| seed | 3 |")
        records.image("images/views", np.zeros((4, 6, 3), np.uint8))
        train(records, range((resume_round or 0) + 1, (resume_round or 0) + 2))
        records.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    (text,) = events.Tensors("config/text_summary")
    assert b"| seed | 3 |" in text.tensor_proto.string_val[0]
    (image,) = events.Images("images/views")
    assert (image.height, image.width) == (4, 6)


def test_partition_table(tmp_path: Path) -> None:
    labels = np.arange(10) % 3
    shards = {
        0: {"train": np.array([4, 2]), "test": np.array([9])},
        1: {"train": np.array([0]), "es": np.zeros(0, np.int64)},
    }
    write_partition(tmp_path, PartitionRows(shards, labels=labels, public=np.array([7, 8])))
    rows = [tuple(row.values()) for row in pq.read_table(tmp_path / "partition.parquet").to_pylist()]
    assert rows == [
        (0, "train", 4, 1),
        (0, "train", 2, 2),
        (0, "test", 9, 0),
        (1, "train", 0, 0),
        (None, "public", 7, None),
        (None, "public", 8, None),
    ]
    write_partition(tmp_path, PartitionRows(shards, labels=labels, public=np.array([7]), public_labels=labels[[7]]))
    table = pq.read_table(tmp_path / "partition.parquet")
    assert table["label"].to_pylist() == [1, 2, 0, 0, 1]
    assert table.column_names == ["client", "split", "index", "label"]


def test_event_files_are_read_in_the_order_in_which_they_were_begun(tmp_path: Path) -> None:
    """Resumed many times within a second, by other processes, on a clock that was put back."""
    ahead = f"events.out.tfevents.{int(time.time()) + 3600:010d}.another-host.99999.0"
    Journal(tmp_path, clients=2).close()
    (first,) = tmp_path.glob("events.*")
    first.rename(tmp_path / ahead)
    for t in range(12):
        records = Journal(tmp_path, resume_round=t, clients=2)
        train(records, range(t + 1, t + 3))  # the second is recorded again by the next
        records.close()
    assert [step for step, _ in events_of(tmp_path)["train/loss"]] == list(range(1, 14))
    assert len(list(tmp_path.glob("events.*"))) == 13
