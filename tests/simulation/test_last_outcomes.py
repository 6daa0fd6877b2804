"""A run's outcomes are those of the round that its summary's accuracies are of, resumed or not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from rayfed_ssl.evaluation import EncoderValues, Outcomes
from rayfed_ssl.records.outcomes import ALL, FILE
from rayfed_ssl.records.tables import METRICS, Commit, Metric, metrics_parts, table
from rayfed_ssl.simulation.last_outcomes import LastOutcomes
from rayfed_ssl.storage import checkpoint
from rayfed_ssl.storage.mirror import Mirror
from tests.tiny import run_locally, tiny

SCORES = {
    "evaluation__protocols": ["knn", "linear", "fewshot", "semi"],
    "evaluation__linear__epochs": 5,
    "evaluation__fewshot__draws": 3,
    "evaluation__semi": {"fractions": [0.5], "epochs": 1},
}


def means(folder: Path) -> dict[str, dict[str | None, float]]:
    """Score -> client -> the mean of its column divided by the draws, by plain Python."""
    found: dict[str, dict[str | None, float]] = {}
    for name, draws in {"knn": 1, "linear": 1, "fewshot": 3, "semi_50": 1}.items():
        by_client: dict[str | None, list[float]] = {}
        for row in pq.read_table(folder / FILE).to_pylist():
            client = None if row["client"] is None else str(row["client"])
            by_client.setdefault(client, []).append(row[name] / draws)
        found[name] = {client: sum(values) / len(values) for client, values in by_client.items()}
    return found


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedsimclr", "local"])
def test_the_mean_of_a_column_is_the_recorded_accuracy(tmp_path: Path, method: str) -> None:
    summary = run_locally(tiny(method, **SCORES, train__rounds=2, clients__count=3), tmp_path)
    for name, by_client in means(tmp_path).items():
        recorded = summary["accuracy"][name]
        assert by_client == pytest.approx(recorded if isinstance(recorded, dict) else {None: recorded}, abs=1e-12)
    table = pq.read_table(tmp_path / FILE)
    assert table.schema.metadata[b"round"] == b"2"
    assert table["index"].to_pylist()[:60] == list(range(60))


def stopped_after(folder: Path, t: int, *, resume: bool = False, method: str = "fedsimclr", **changes: object) -> None:
    seen = [0]
    run_locally(
        tiny(method, **changes), folder, resume=resume,
        report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= t,
    )  # fmt: skip


@pytest.mark.long
def test_an_evaluation_before_the_checkpoint_is_not_lost_by_a_resume(tmp_path: Path) -> None:
    """Rounds 2 and 4 are evaluated, and the run stops after round 3: its accuracy is that of round 2."""
    changes = {"evaluation__every": 2, "train__rounds": 6, "checkpoint__keep": 9}
    stopped_after(tmp_path / "run", 3, **changes)
    second = (tmp_path / "run" / FILE).read_bytes()
    assert pq.read_schema(tmp_path / "run" / FILE).metadata[b"round"] == b"2"
    stopped_after(tmp_path / "run", 3, resume=True, **changes)  # begins to go on, and is stopped at once
    assert (tmp_path / "run" / FILE).read_bytes() == second
    run_locally(tiny("fedsimclr", **changes), tmp_path / "run", resume=True)
    run_locally(tiny("fedsimclr", **changes), tmp_path / "whole")
    assert pq.read_schema(tmp_path / "run" / FILE).metadata[b"round"] == b"6"
    assert (tmp_path / "run" / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes() != second


@pytest.mark.long
def test_what_a_later_round_wrote_goes_where_an_earlier_checkpoint_is_resumed(tmp_path: Path) -> None:
    """The run ended after round 4; its checkpoints of rounds 3 and 4 are lost, and what goes on from 2 is stopped."""
    import shutil

    changes = {"evaluation__every": 0, "train__rounds": 4, "checkpoint__keep": 9}
    run_locally(tiny("fedsimclr", **changes), tmp_path)
    assert (tmp_path / FILE).exists()
    for name in ("round-00003", "round-00004"):
        shutil.rmtree(tmp_path / "checkpoints" / name)
    stopped_after(tmp_path, 0, resume=True, **changes)
    assert not (tmp_path / FILE).exists()


def test_it_goes_as_the_summary_does_while_a_run_goes_on(tmp_path: Path) -> None:
    """A kill then leaves neither, of rounds that are the last no more."""
    there: list[tuple[bool, bool]] = []
    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path)
    run_locally(
        tiny("fedsimclr", train__rounds=2), tmp_path, resume=True,
        report=lambda p: there.append(((tmp_path / "summary.json").exists(), (tmp_path / FILE).exists()))
        if p.finishes_a_round else None,
    )  # fmt: skip
    assert there == [(False, False)]
    assert pq.read_schema(tmp_path / FILE).metadata[b"round"] == b"2"


def test_a_run_without_a_score_has_no_file(tmp_path: Path) -> None:
    run_locally(tiny("fedsimclr", evaluation__protocols=["rank"], train__rounds=1), tmp_path)
    assert not (tmp_path / FILE).exists()


def test_of_rounds_that_come_in_late_the_last_counts() -> None:
    last = LastOutcomes()

    def values(*right: int) -> EncoderValues:
        return EncoderValues({"knn": sum(right) / len(right)}, Outcomes({"knn": np.array(right, np.uint8)}, {"knn": 1}))

    last.take(0, None, values(0, 0))
    last.take(0, None, EncoderValues({"pixels_knn": 0.5}, Outcomes({"knn": np.array([1, 0], np.uint8)}, {"knn": 1})))
    assert (last.round, last.state["encoders"]) == (0, [])
    last.take(2, 1, values(1, 0))
    last.take(1, 0, values(1, 1))
    assert (last.round, set(last.by_client)) == (2, {1})
    last.take(2, 0, {"knn": 0.5})  # a third-party evaluation, of which no outcomes are known
    again = LastOutcomes()
    again.restore(last.state)
    assert again.by_client[0].right == {}
    assert again.by_client[1].right["knn"].tolist() == [1, 0]
    assert again.untrained[None].right["knn"].tolist() == [0, 0]
    assert again.pixels[None].right["knn"].tolist() == [1, 0]
    last.take(3, None, values(1, 1))
    assert (last.round, set(last.by_client)) == (3, {None})


def test_a_checkpoint_keeps_equal_outcomes_once(tmp_path: Path) -> None:
    """Three clients hold one encoder and the fourth another; the arrays in the file are counted."""
    last, same = LastOutcomes(), Outcomes({"knn": np.array([1, 0, 1], np.uint8)}, {"knn": 1})
    for client in (2, 0):
        last.take(0, client, EncoderValues({"knn": 2 / 3}, same))
    last.take(0, 1, EncoderValues({"knn": 2 / 3}, Outcomes({"knn": np.array([1, 0, 1], np.uint8)}, {"knn": 1})))
    last.take(0, 3, EncoderValues({"knn": 2 / 3}, Outcomes({"knn": np.array([1, 1, 0], np.uint8)}, {"knn": 1})))
    last.take(0, 4, EncoderValues({"knn": 1 / 3}, Outcomes({"knn": np.array([1, 0, 1], np.uint8)}, {"knn": 2})))
    checkpoint.save(tmp_path, 1, {"outcomes": last.state}, [])
    folder = next(tmp_path.glob("round-*"))
    assert len(load_file(folder / "server.safetensors")) == 3
    again = LastOutcomes()
    again.restore(checkpoint.load(folder)[0]["outcomes"])
    assert {client: of.right["knn"].tolist() for client, of in again.untrained.items()} == {
        2: [1, 0, 1], 0: [1, 0, 1], 1: [1, 0, 1], 3: [1, 1, 0], 4: [1, 0, 1],
    }  # fmt: skip
    assert {client: of.draws["knn"] for client, of in again.untrained.items()} == {2: 1, 0: 1, 1: 1, 3: 1, 4: 2}


@pytest.mark.long
def test_a_run_of_clients_that_begin_alike_keeps_one_copy_and_resumes_to_the_same_file(tmp_path: Path) -> None:
    changes = {"train__rounds": 2, "clients__count": 3, "checkpoint__keep": 9}
    run_locally(tiny("local", **changes), tmp_path / "whole")
    tree = json.loads((tmp_path / "whole" / "checkpoints" / "round-00001" / "server.json").read_text())
    kept = dict(dict(tree["$map"])["outcomes"]["$map"])
    assert [clients for clients, _, _ in kept["untrained"]] == [[0, 1, 2]]
    stopped_after(tmp_path / "run", 1, method="local", **changes)
    run_locally(tiny("local", **changes), tmp_path / "run", resume=True)
    for file in ALL:
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_outcomes_of_another_round_than_the_recorded_one_are_not_written(tmp_path: Path) -> None:
    """As after a population's exchange of checkpoints, where records and states may be of two runs."""
    last, labels = LastOutcomes(), np.array([0, 1])
    last.take(2, None, EncoderValues({"knn": 0.5}, Outcomes({"knn": np.array([1, 0], np.uint8)}, {"knn": 1})))
    for t, there in ((2, True), (3, False)):
        rows = [Metric(t, None, "eval/knn", 0.5, 0.0)]
        metrics_parts(tmp_path).write(Commit(t, 0), table(rows, METRICS))
        last.write(tmp_path, labels, None)
        assert (tmp_path / FILE).exists() == there


def test_a_uri_holds_it_and_loses_it_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    mirror = Mirror(tmp_path / "run", (tmp_path / "uri").as_uri())
    (tmp_path / "run" / FILE).write_bytes(b"x")
    mirror.push()
    assert (tmp_path / "uri" / FILE).read_bytes() == b"x"
    (tmp_path / "run" / FILE).unlink()
    mirror.push()
    assert not (tmp_path / "uri" / FILE).exists()
