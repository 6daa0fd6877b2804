"""A sweep's results, how a cluster is divided among trials, how a member of a population takes a checkpoint over."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.stats

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig
from rayfed_ssl.config import load as load_run
from rayfed_ssl.records.sweep_choice import choose, labels_of, starts_of
from rayfed_ssl.records.tables import METRICS, Commit, Metric, PartitionRows, metrics_parts, write_partition
from rayfed_ssl.records.tables import table as metrics_table
from rayfed_ssl.report.dispatch import report_of
from rayfed_ssl.report.sweep_verdict import verdict
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.settings.blocks import ResourcesConfig
from rayfed_ssl.storage import checkpoint
from tests.tune.sweeps import GRID, LR, sweep
from tune import files as sweep_files
from tune import room as room_module
from tune.book import Book, scheduled
from tune.config import Sweep
from tune.results import Results, answer, axis, collect, legend, ranked, table
from tune.room import trial_slots
from tune.sweep import run_sweep, trial_line
from tune.trial import exploit


def booked(made: Sweep, folder: Path, values: dict[int, tuple[str, float | None]]) -> Book:
    """A book whose trials ended so: number -> (status, accuracy)."""
    book = Book(folder, made.settings.repeat)
    for point in made.configurations or []:
        book.add(point)
    for number, (status, value) in values.items():
        entry = book.entries[number]
        entry.status = status
        if value is not None:
            (folder / entry.name).mkdir(parents=True)
            summary = {"status": status, "rounds": 3, "accuracy": {"knn": value}, "wall_s": 1.0,
                       "communication": {"up_bytes": 10, "down_bytes": 20}}  # fmt: skip
            (folder / entry.name / "summary.json").write_text(json.dumps(summary))
    return book


def told(results: Results) -> list[str]:
    return results.remarks


def test_the_winner_has_the_best_worst_repeat_among_complete_configurations(tmp_path: Path) -> None:
    made = sweep(tmp_path, "overrides.seed=5", space={LR: {"grid": [0.1, 0.2, 0.3, 0.4]}}, repeat=2, score="worst")
    out = tmp_path / "out"
    statuses = ["complete"] * 5 + ["stopped", "complete", "failed"]
    ends = list(zip(statuses, [0.9, 0.1, 0.5, 0.4, 0.99, 0.98, 0.7, None], strict=True))
    results = collect(made, booked(made, out, dict(enumerate(ends))))
    assert results.choice.ranking == (2, 1, 0)  # worst repeats: 0.98, 0.4, 0.1; the last configuration has none
    assert results.choice.winner == 1  # the first in rank did not run to its end
    best = load_run(out / "best.yaml")
    assert (best.train.optimizer.lr, best.seed, best.name) == (0.2, 5, "out-best")
    rows = pq.read_table(out / "results.parquet").to_pylist()
    assert [row["score"] for row in rows] == [0.1, 0.1, 0.4, 0.4, 0.98, 0.98, None, None]
    assert [row["accuracy.knn"] for row in rows] == [value for _, value in ends]
    assert rows[0][LR] == 0.1
    assert rows[0]["up_bytes"] == 10
    assert results.counts == {"complete": 6, "stopped": 1, "failed": 1}
    assert results.left == 1
    assert (out / "figures" / "parallel.png").exists()
    assert ranked(results).row_count == 3


def test_repeats_are_judged_by_their_paired_differences(tmp_path: Path) -> None:
    """Seeds move all values by far more than configurations differ: separate intervals would overlap."""
    hard = np.array([0.0, -0.2, 0.1])  # what a seed's split adds to everybody
    values = {
        0: 0.80 + hard,
        1: 0.75 + hard + [0.001, 0.0, -0.001],
        2: 0.799 + hard + [0.002, -0.002, 0.0],
        3: 0.78 + hard + [0.02, 0.0, -0.02],
    }
    made = sweep(tmp_path, space={LR: {"grid": [0.1, 0.2, 0.3, 0.4]}}, repeat=3)
    ends = enumerate(("complete", float(value)) for of in values.values() for value in of)
    results = collect(made, booked(made, out := tmp_path / "out", dict(ends)))
    choice = results.choice
    assert (choice.winner, choice.level, choice.apart, choice.ahead) == (0, (2,), (3,), ())
    low, high = scipy.stats.ttest_rel(values[3], values[0]).confidence_interval(0.95)
    assert low < 0 < high
    assert scipy.stats.ttest_rel(values[1], values[0]).confidence_interval(0.95).high < 0
    alone = [scipy.stats.t.interval(0.95, 2, loc=np.mean(of), scale=scipy.stats.sem(of)) for of in values.values()]
    assert alone[1][1] > alone[0][0]  # by which the second would not have been told apart
    shown = ranked(results)
    assert list(shown.columns[0].cells) == ["*", "=", "~", ""]
    interval = "the 95% interval of their paired differences over repeats (Student's t) contains zero and"
    assert told(results) == [
        "Chosen by test labels.",
        f"Level with number 0: number 2, because {interval} lies within ±0.01.",
        f"Not told apart from number 0: number 3, because {interval} reaches further.",
        "The best of 4 is so partly by chance, and one as good may be told apart from it.",
    ]
    assert legend(results) == "* chosen; = level with it; ~ not told apart from it"
    assert answer(results) == (
        f"Of 4 configurations that ran to the end, number 0 is first by accuracy.knn (chosen by test labels): "
        f"{100 * np.mean(values[0]):.1f} %, the mean of 3 repeats, with {LR} = 0.1."
    )
    assert [next(iter(column.cells)) for column in list(shown.columns)[3:5]] == ["0.7667 ± 0.15", "3"]
    assert pq.read_table(out / "results.parquet")["score"][0].as_py() == pytest.approx(np.mean(values[0]))


def test_what_is_better_by_the_mean_than_the_best_worst_is_named() -> None:
    """And what has no unit is never level, unless it is the same."""
    ends = {0: [5.0, 5.0, 5.0], 1: [4.9, 19.0, 19.1], 2: [5.0, 5.0, 5.0], 3: [4.8, 15.0, 25.0], 4: [9.0, 9.1, 4.5]}
    for sign, mode in ((1, "max"), (-1, "min")):
        rows = [
            {"configuration": c, "repeat": repeat, "status": "complete", "score": sign * min(of), "x": sign * value}
            for c, of in ends.items()
            for repeat, value in enumerate(of)
        ]
        found = choose(rows, "x", mode)
        assert (found.winner, found.level, found.apart, found.ahead) == (0, (2,), (1, 3, 4), ())
        assert "reaches" not in found.why_apart
        high = [{**row, "x": sign * (9.0 + 0.1 * row["repeat"])} if row["configuration"] == 1 else row for row in rows]
        assert choose(high, "x", mode).ahead == (1,)


def test_one_training_each_is_level_only_with_its_equals(tmp_path: Path) -> None:
    space = {LR: {"grid": [0.1, 0.2, 0.3]}}
    for name, values, level, mark in (("a", [0.5, 0.5, 0.4], (1,), "="), ("b", [0.5, 0.49, 0.4], (), "")):
        made = sweep(tmp_path / name, space=space)
        ends = {n: ("complete", value) for n, value in enumerate(values)}
        results = collect(made, booked(made, tmp_path / name / "out", ends))
        assert (results.choice.winner, results.choice.level) == (0, level)
        assert list(ranked(results).columns[0].cells) == ["*", mark, ""]
        assert ("same" in told(results)[1]) == bool(level)
        assert ("trained once" in told(results)[1]) == (not level)


def test_a_score_below_1_is_nowhere_shown_as_1(tmp_path: Path) -> None:
    made = sweep(tmp_path, space={LR: {"grid": [0.1, 0.2]}}, repeat=2)
    book = booked(made, tmp_path / "out", {n: ("complete", value) for n, value in enumerate((0.99996, 0.99996, 1, 1))})
    results = collect(made, book)
    assert [cell.partition(" ")[0] for cell in ranked(results).columns[3].cells] == ["1", ">.9999"]
    assert "accuracy.knn >.9999" in trial_line(made, book, book.entries[0])
    assert axis([0.5, 0.99996], "linear")[1] == [(0.0, "0.5"), (1.0, ">.9999")]


def test_the_table_says_whose_labels_chose(tmp_path: Path) -> None:
    for metric, words in (
        ("accuracy.knn", "Chosen by test labels."),
        ("best.knn.value", "Chosen by test labels."),
        ("select.knn", "Chosen by held-out labels, of 24 images in each trial."),
        ("features.rankme", "Chosen without labels."),
    ):
        made = sweep(tmp_path / metric, f"metric={metric}", "evaluation.select={share: 0.2}", **GRID)
        out = tmp_path / metric / "out"
        book = booked(made, out, {0: ("complete", 0.9), 1: ("complete", 0.1)})
        for entry, value in zip(book.entries[:2], (0.2, 0.7), strict=True):
            path = out / entry.name / "summary.json"
            summary = json.loads(path.read_text())
            summary |= {
                "select": {"knn": value},
                "features": {"rankme": 9 * value},
                "best": {"knn": {"value": 0.9 - value, "by": "test labels"}},
            }
            path.write_text(json.dumps(summary))
            write_partition(path.parent, PartitionRows({}, np.zeros(120, np.int64), held_out=np.arange(24)))
        results = collect(made, book)
        assert json.loads((out / "choice.json").read_text())["remarks"] == told(results)
        assert results.choice.winner == (1 if metric in ("select.knn", "features.rankme") else 0)
        assert told(results)[0] == words
        assert pq.read_table(out / "results.parquet").to_pylist()[1]["select.knn"] == 0.7
    made = sweep(tmp_path, "metric=communication.up_bytes", space={LR: {"grid": [0.1]}})
    assert (
        collect(made, booked(made, tmp_path / "bytes", {0: ("complete", 0.9)})).sweep.settings.metric
        == "communication.up_bytes"
    )
    assert labels_of("communication.up_bytes") is None


@pytest.mark.long
@pytest.mark.parametrize("metric", ["accuracy.knn", "best.knn.value", "select.knn", "features.rankme"])
@pytest.mark.parametrize("before", ["untrained encoder", "starting encoder"])
def test_the_encoder_before_training_is_a_row_and_who_is_worse_is_named(
    metric: str, before: str, tmp_path: Path
) -> None:
    """On a terminal and on the page; no rank is worse than another."""
    made = sweep(tmp_path, f"metric={metric}", "evaluation.select={share: 0.2}", space={LR: {"grid": [0.1, 3.0]}})
    out = tmp_path / "out"
    book = booked(made, out, {0: ("complete", 0.9), 1: ("complete", 0.44)})
    for entry, value in zip(book.entries, (0.9, 0.44), strict=True):
        path = out / entry.name / "summary.json"
        more = {
            "untrained": {"knn": 0.89}, "best": {"knn": {"value": value}}, "select": {"knn": value},
            "features": {"rankme": value}, "untrained_features": {"rankme": 0.89},
        }  # fmt: skip
        start = {} if before == "untrained encoder" else {"start": {"path": "runs/first", "digest": None}}
        path.write_text(json.dumps(json.loads(path.read_text()) | more | start))
        measured = [Metric(t, None, "select/knn", v, 0.0) for t, v in ((0, 0.89), (3, value))]
        metrics_parts(path.parent).write(Commit(3, 0), metrics_table(measured, METRICS))
    results = collect(made, book)
    shown = ranked(results)
    assert list(shown.columns[1].cells)[-1] == before
    assert list(shown.columns[3].cells) == ["0.9", "0.44", "0.89"]
    worse = f"Worse than the {before} (89.0 %), chance not counted: number 1."
    assert (worse in answer(results)) == (metric != "features.rankme")
    sweep_files.dump(made, out)
    book.save()
    page = report_of(out).read_text()
    assert f">{before}<" in page
    assert {*re.findall("untrained encoder|starting encoder", page)} == {before}
    assert (worse in page) == (metric != "features.rankme")
    assert "runs/first" not in page  # it is no key that varied


def test_the_encoder_before_training_has_the_score_of_its_repeats(tmp_path: Path) -> None:
    """As configurations have: the mean of the seeds, and which of several are worse, all of them too."""
    made = sweep(tmp_path, "metric=select.knn", "evaluation.select={share: 0.2}", space={LR: {"grid": [0.1, 0.2]}},
                 repeat=2)  # fmt: skip
    out = tmp_path / "out"
    for last, said in (
        (
            (0.7, 0.8, 0.6, 0.5),
            "Both are worse than the untrained encoder (80.0 %) by the mean of repeats, chance not counted.",
        ),
        (
            (0.9, 0.8, 0.6, 0.5),
            "Worse than the untrained encoder (80.0 %) by the mean of repeats, chance not counted: number 1.",
        ),
        ((0.9, 0.8, 0.8, 0.8), None),
    ):
        shutil.rmtree(out, ignore_errors=True)
        book = booked(made, out, dict.fromkeys(range(4), ("complete", 0.5)))
        for entry, value in zip(book.entries, last, strict=True):
            path, began = out / entry.name / "summary.json", (0.75, 0.85)[entry.repetition]
            path.write_text(json.dumps(json.loads(path.read_text()) | {"select": {"knn": value}}))
            measured = [Metric(t, None, "select/knn", v, 0.0) for t, v in ((0, began), (3, value))]
            metrics_parts(path.parent).write(Commit(3, 0), metrics_table(measured, METRICS))
        results = collect(made, book)
        assert list(ranked(results).columns[3].cells)[-1] == f"0.8 ± {np.std([0.75, 0.85], ddof=1):.2g}"
        assert answer(results).endswith(said or f"with {LR} = 0.1.")
    sweep_files.dump(made, out)
    book.save()
    page = html.unescape(report_of(out).read_text())
    assert "75.0 % to 85.0 %" in page
    assert "Dashed: the untrained encoder, in the mean." in page


def test_what_training_made_worse_is_beside_its_own_start() -> None:
    """Not beside the mean of all; and what was stopped is not among those that ran to the end."""

    def rows(*known: tuple[float, float | None, str]) -> list[dict[str, Any]]:
        return [
            {"configuration": c, "trial": c, "repeat": 0, "status": status, "score": last, "select.knn": last,
             "untrained.select.knn": began, LR: 0.1}
            for c, (last, began, status) in enumerate(known)
        ]  # fmt: skip

    def said(made: list[dict[str, Any]]) -> str:
        return verdict(made, choose(made, "select.knn", "max"), [LR], "select.knn").sentence

    own = said(rows((0.45, 0.50, "complete"), (0.44, 0.30, "complete")))
    assert own.endswith(f"with {LR} = 0.1. Worse than the untrained encoder (50.0 %), chance not counted: number 0.")
    stopped = said(rows((0.45, 0.50, "complete"), (0.44, 0.50, "stopped")))
    assert "Worse than the untrained encoder (50.0 %), chance not counted: numbers 0 and 1." in stopped
    alike = rows((0.45, 0.40, "complete"), (0.45, 0.40, "complete"))
    assert said(alike).startswith("Of 2 configurations that ran to the end, number 0 is first by select.knn: 45.0 %")
    seeds = [*alike[:1], {**alike[0], "repeat": 1, "untrained.select.knn": 0.6}, alike[1]]
    assert starts_of(seeds, "select.knn") == [[0.40, 0.6]]  # of configuration 1 a repeat is not known yet


def test_a_smaller_value_wins_with_mode_min(tmp_path: Path) -> None:
    made = sweep(tmp_path, "mode=min", "metric=communication.up_bytes", space={LR: {"grid": [0.1, 0.2]}})
    out = tmp_path / "out"
    book = booked(made, out, {0: ("complete", 0.9), 1: ("complete", 0.1)})
    path = out / "trial-00001" / "summary.json"
    path.write_text(path.read_text().replace('"up_bytes": 10', '"up_bytes": 5'))
    choice = collect(made, book).choice
    assert (choice.winner, choice.level) == (1, ())


def test_nothing_finished_is_a_table_and_no_winner(tmp_path: Path) -> None:
    made = sweep(tmp_path)
    (tmp_path / "out").mkdir()
    results = collect(made, booked(made, tmp_path / "out", {}))
    assert (results.choice.winner, results.choice.ranking, results.left) == (None, (), 6)
    assert not (tmp_path / "out" / "best.yaml").exists()


def test_what_was_interrupted_is_not_ranked_by_what_it_had_reached(tmp_path: Path) -> None:
    made = sweep(tmp_path, space={LR: {"grid": [0.1, 0.2, 0.3]}})
    out = tmp_path / "out"
    results = collect(made, booked(made, out, {0: ("waiting", 0.9), 1: ("complete", 0.4), 2: ("stopped", 0.5)}))
    assert results.choice.ranking == (2, 1)
    assert list(ranked(results).columns[-1].cells) == ["stopped", "complete"]
    rows = pq.read_table(out / "results.parquet").to_pylist()
    assert [(row["accuracy.knn"], row["score"]) for row in rows] == [(0.9, None), (0.4, 0.4), (0.5, 0.5)]


def test_who_was_stopped_in_the_last_round_has_run_to_the_end(tmp_path: Path) -> None:
    """The scheduler's word comes while the next round is under way; what is read again must choose alike."""
    made = sweep(tmp_path, space={LR: {"grid": [0.1, 0.2, 0.3]}})
    out = tmp_path / "out"
    book = booked(made, out, {0: ("complete", 0.4), 1: ("complete", 0.6), 2: ("stopped", 0.5)})
    book.entries[1].status = "stopped"
    first = collect(made, book).choice
    assert (first.ranking, first.finished) == ((1, 2, 0), (1, 0))
    assert collect(made, Book(out, 1)).choice == first


def test_columns_of_the_table_have_one_type() -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1, "b": "x", "c": ["r", "s"], "d": 1},
        {"a": 0.5, "b": None, "c": ["r"], "d": None},
    ]
    found = table(rows)
    assert found.to_pydict() == {"a": [1.0, 0.5], "b": ["x", None], "c": ['["r", "s"]', '["r"]'], "d": [1, None]}
    assert table([{"a": True}, {"a": "yes"}]).to_pydict() == {"a": ["true", '"yes"']}


def test_axes_of_parallel_coordinates() -> None:
    assert axis([1, 9, 2]) == ([0.0, 1.0, 0.5], [(0.0, "1"), (0.5, "2"), (1.0, "9")])
    assert axis([1, 9, 3], "linear") == ([0.0, 1.0, 0.25], [(0.0, "1"), (1.0, "9")])
    heights, _ = axis([1e-4, 1e-3, 1e-2], "log")
    assert np.allclose(heights, [0.0, 0.5, 1.0])
    assert axis([4.0, 4.0], "linear")[0] == [0.5, 0.5]
    assert axis([4])[0] == [0.0]
    assert axis(["b", "a", "b"]) == ([1.0, 0.0, 1.0], [(0.0, "a"), (1.0, "b")])
    near = [0.12341, 0.5, 0.12342, 0.12341]
    assert axis(near) == ([0.0, 1.0, 0.5, 0.0], [(0.0, "0.12341"), (0.5, "0.12342"), (1.0, "0.5")])
    assert axis([1, 1.0, 2]) == ([0.0, 0.0, 1.0], [(0.0, "1"), (1.0, "2")])
    assert axis([True, "true", None]) == ([1.0, 0.5, 0.0], [(0.0, "null"), (0.5, '"true"'), (1.0, "true")])


@pytest.mark.parametrize(
    ("resources", "concurrent", "trials", "expected"),  # expected: trials at a time, actors, CPUs and GPUs of each
    [
        ({}, None, 6, (1, 1, 1.0, 1.0)),  # a GPU belongs to one trial unless the user says otherwise
        ({}, 4, 6, (4, 1, 1.0, 0.25)),
        ({"actors": 2}, 3, 6, (3, 2, 1.0, 0.1666)),
        ({"gpus_per_client": 0.25}, None, 6, (4, 1, 1.0, 0.25)),
        ({"gpus_per_client": 0.25}, None, 3, (3, 1, 1.0, 0.25)),
        ({"gpus_per_client": 0.25}, 2, 6, (2, 1, 1.0, 0.25)),
        ({"gpus_per_client": 0, "actors": 3}, None, 6, (2, 3, 1.0, 0.0)),
        ({"device": "cpu", "cpus_per_client": 2}, None, 6, (4, 1, 2.0, 0.0)),
    ],
)
def test_trials_share_a_cluster_of_8_cpus_and_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    resources: dict[str, Any],
    concurrent: int | None,
    trials: int,
    expected: tuple[Any, ...],
) -> None:
    monkeypatch.setattr(room_module, "living_nodes", lambda: [{"CPU": 8.0, "GPU": 1.0}])
    monkeypatch.setattr(room_module, "autoscaling_ceiling", lambda declared: None)
    found = trial_slots(ResourcesConfig.model_validate(resources), concurrent, trials, "node:1.2.3.4")
    assert (found.trials, found.plan.actors, found.plan.cpus, found.plan.gpus) == expected
    assert len(found.bundles) == 1 + found.plan.actors
    assert found.bundles[0] == {"node:1.2.3.4": 0.001}
    assert found.line.startswith(f"{expected[0]} trial(s) at a time, each with {expected[1]} client actor(s)")


def test_more_trials_at_a_time_than_fit_are_refused_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_module, "living_nodes", lambda: [{"CPU": 2.0}])
    monkeypatch.setattr(room_module, "autoscaling_ceiling", lambda declared: None)
    with pytest.raises(UserError, match=r"3 actors x 1 CPU = 3\.0 CPUs, the cluster has 2\.0"):
        trial_slots(ResourcesConfig(), 3, 6)


def test_a_sweep_is_not_written_over_and_refusals_write_nothing(tmp_path: Path) -> None:
    made = sweep(tmp_path, "clients.count=119")
    with pytest.raises(UserError, match=r"clients\.count"):
        run_sweep(made, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "sweep.yaml").write_text("")
    with pytest.raises(UserError, match="already holds a sweep; add --resume"):
        run_sweep(made, tmp_path / "old")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    with pytest.raises(UserError, match="holds a run"):
        run_sweep(made, tmp_path / "run")


def test_exploiting_takes_the_donors_checkpoint_and_writes_down_what_changed(tmp_path: Path) -> None:
    made = sweep(tmp_path)
    mine, donor = tmp_path / "trial-00001", tmp_path / "donor"
    mine.mkdir()
    configfile.dump(made.config_of({LR: 0.1}), mine / "config.yaml")
    checkpoint.save(mine / "checkpoints", 7, {"w": np.zeros(2, np.float32)}, [])
    checkpoint.save(donor, 4, {"w": np.ones(2, np.float32)}, [(0, {"own": 3})])
    point = {LR: 0.4}
    config: RunConfig = made.config_of(point)
    exploit(mine, checkpoint.complete(donor)[0], {"trial": 5, "point": {LR: 0.5}}, config, point)
    found, damaged = checkpoint.newest(mine / "checkpoints")
    assert found is not None
    assert (found[0], damaged) == (4, [])
    server, clients = checkpoint.load(found[1])
    assert server["w"].tolist() == [1.0, 1.0]
    assert dict(clients) == {0: {"own": 3}}
    assert load_run(mine / "config.yaml") == config
    assert json.loads((mine / "schedule.json").read_text()) == {
        "changes": [{"round": 4, "from": "trial-00005", "from_point": {LR: 0.5}, "point": {LR: 0.4}}]
    }
    assert scheduled(mine, {LR: 0.1}) == point
    assert scheduled(donor, {LR: 0.1}) == {LR: 0.1}


@pytest.mark.long
def test_the_report_names_the_configuration_of_best_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses, values, repeats and directions at random, as the book has them and as the written table has."""
    monkeypatch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))
    draws, named = np.random.default_rng(7), 0
    for case in range(12):
        mode, repeat = ("max", "min")[case % 2], (1, 2)[case % 3 == 0]
        made = sweep(
            tmp_path / str(case),
            f"mode={mode}",
            space={LR: {"grid": [0.1, 0.2, 0.3, 0.4]}},
            repeat=repeat,
            score="worst",
        )
        statuses = draws.choice(["complete", "complete", "stopped", "waiting"], 4 * repeat)
        ends = {n: (str(s), round(float(draws.integers(1, 8)) / 10, 1)) for n, s in enumerate(statuses)}
        out = tmp_path / str(case) / "out"
        book = booked(made, out, ends)
        sweep_files.dump(made, out)
        book.save()
        results = collect(made, book)
        text = report_of(out).read_text()
        if (winner := results.choice.winner) is None:
            scored = any("waiting" not in statuses[c * repeat : (c + 1) * repeat] for c in range(4))
            assert ("has run to its end yet" if scored else "has a score yet") in text
            continue
        named += 1
        assert load_run(out / "best.yaml").train.optimizer.lr == pytest.approx(0.1 * (winner + 1))
        best = "first" if results.choice.level or results.choice.apart else "the best"
        assert f"number {winner} is {best} by" in text
        kept = json.loads((out / "choice.json").read_text())
        assert (kept["configuration"], kept["mode"]) == (winner, mode)
        assert kept["keys"] == {LR: pytest.approx(0.1 * (winner + 1))}
        assert kept["remarks"] == told(results)
        assert all(html.escape(remark) in text for remark in kept["remarks"])
        assert f"Number {winner}: {LR} = {kept['keys'][LR]:.4g}" in text
        assert (f"Level with number {winner}" in text) == bool(results.choice.level)
        assert (f"Not told apart from number {winner}" in text) == bool(results.choice.apart)
        chosen = [c for c in range(4) if all(ends[c * repeat + r][0] == "complete" for r in range(repeat))]
        worst = {c: (min if mode == "max" else max)(ends[c * repeat + r][1] for r in range(repeat)) for c in chosen}
        assert worst[winner] == (max if mode == "max" else min)(worst.values())
    assert named > 6


@pytest.mark.long
def test_of_ten_alike_about_one_in_ten_is_told_apart_from_the_best() -> None:
    """What docs/sweeps.md says of a winner that was chosen out of many: three repeats each, drawn alike."""
    draws, apart = np.random.default_rng(0), []
    for _ in range(1000):
        values = draws.normal(size=(10, 3))
        rows = [
            {"configuration": c, "repeat": r, "status": "complete", "score": values[c].mean(), "features.rankme": value}
            for c in range(10) for r, value in enumerate(values[c])
        ]  # fmt: skip
        choice = choose(rows, "features.rankme", "max")
        apart.append(9 - len(choice.apart) - len(choice.level))
    assert np.mean(apart) / 9 == pytest.approx(0.1, abs=0.015)
