"""What is tried next, what repeats come to, what schedulers and optimisers are told after a restart."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search import Searcher

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import last_line
from tests.tune.sweeps import LR, sweep
from tune import search
from tune import sweep as sweep_module
from tune.book import Book, Entry, history, measured, scheduled, score, trial_name
from tune.config import Sweep
from tune.schedulers import WithinRanges, scheduler
from tune.search import Proposals, domain, optimiser
from tune.watch import Population, Watch

ONE = {LR: {"grid": [0.1, 0.2, 0.3]}}
RANGE: dict[str, Any] = {"space": {LR: {"uniform": [0.1, 0.9]}, "train.rounds": {"randint": [1, 4]}}, "trials": 3}


def finish(folder: Path, number: int, value: float, status: str = "complete") -> None:
    """A run folder's summary, as far as a sweep looks at it."""
    run = folder / trial_name(number)
    run.mkdir(exist_ok=True)
    (run / "summary.json").write_text(json.dumps({"status": status, "rounds": 3, "accuracy": {"knn": value}}))


def proposals(made: Sweep, folder: Path, stopping: Callable[[], bool] = lambda: False) -> tuple[Proposals, list[Entry]]:
    finished: list[Entry] = []
    return Proposals(made, Book(folder, made.settings.repeat), finished.append, stopping), finished


def drained(given: Proposals) -> list[dict[str, Any]]:
    """Everything that is suggested when nothing ends."""
    out = []
    while (point := given.suggest(f"id-{len(out)}")) not in (Searcher.FINISHED, None):
        out.append(point)
    return out


def test_repeats_are_trials_of_their_own_with_seeds_one_apart(tmp_path: Path) -> None:
    made = sweep(tmp_path, "overrides.seed=10", space={LR: {"grid": [0.1, 0.2]}}, repeat=3)
    given, _ = proposals(made, tmp_path)
    assert given.left == 6
    points = drained(given)
    assert points == [{"trial": n, LR: lr} for n, lr in enumerate([0.1] * 3 + [0.2] * 3)]
    assert [made.config_of({}, entry.repetition).seed for entry in given.book.entries] == [10, 11, 12] * 2


def test_a_restored_sweep_gives_what_is_not_over_and_nothing_else(tmp_path: Path) -> None:
    made = sweep(tmp_path, space={LR: {"grid": [1, 2, 3, 4, 5]}})
    given, finished = proposals(made, tmp_path)
    for number in range(4):
        given.suggest(f"id-{number}")
    finish(tmp_path, 0, 0.5)
    given.on_trial_complete("id-0", {"round": 3, "score": 0.5, "done": True})
    given.on_trial_result("id-1", {"round": 1, "score": 0.2})
    given.on_trial_complete("id-1", {"round": 2, "score": 0.3})  # by the scheduler: no complete summary
    given.on_trial_complete("id-2", None, error=True)
    assert [entry.status for entry in finished] == ["complete", "stopped", "failed"]
    finish(tmp_path, 3, 0.7)  # it ended, and the command was killed before it heard of it
    again, _ = proposals(made, tmp_path)
    assert [e.status for e in again.book.entries] == ["complete", "stopped", "waiting", "complete", "waiting"]
    assert again.book.entries[1].reports == [[1, 0.2], [2, 0.3]]
    assert [point["trial"] for point in drained(again)] == [2, 4]


@pytest.mark.parametrize("damage", [{"point": "lr"}, {"point": 3}, {"trail": 0}])
def test_a_damaged_record_is_one_line(tmp_path: Path, damage: dict[str, Any]) -> None:
    row = {"trial": 0, "configuration": 0, "repetition": 0, "point": {LR: 0.1}}
    path = tmp_path / "trials.json"
    path.write_text(json.dumps({"trials": [row]}))
    assert Book(tmp_path, 1).entries == [Entry(0, 0, 0, {LR: 0.1})]
    path.write_text(json.dumps({"trials": [row | damage]}))
    with pytest.raises(UserError, match=rf"^{path}: cannot be read \(.+\); the file is damaged$"):
        Book(tmp_path, 1)


@pytest.mark.parametrize(
    "text",
    ["", '{"changes": [', "[]", "{}", '{"changes": 3}', '{"changes": [4]}', '{"changes": [{"point": "lr"}]}', "\xff"],
)
def test_a_damaged_record_of_exchanges_is_one_line(tmp_path: Path, text: str) -> None:
    run = tmp_path / "trial-00000"
    path = run / "schedule.json"
    assert (history(run), scheduled(run, {LR: 0.1})) == ([], {LR: 0.1})
    run.mkdir()
    path.write_text('{"changes": [{"round": 1, "point": {"lr": 0.2}}]}')
    assert scheduled(run, {LR: 0.1}) == {"lr": 0.2}
    book = Book(tmp_path, 1)
    book.add({LR: 0.1})
    book.save()
    path.write_bytes(text.encode("latin-1"))
    for read in (lambda: history(run), lambda: scheduled(run, {LR: 0.1}), lambda: Book(tmp_path, 1)):
        with pytest.raises(UserError, match=rf"^{path}: .+ the file is damaged$"):
            read()


def test_a_trial_that_diverged_is_over_and_has_no_score(tmp_path: Path) -> None:
    made = sweep(tmp_path, space={LR: {"grid": [0.1, 0.2, 0.3]}})
    given, finished = proposals(made, tmp_path)
    for number in range(3):
        given.suggest(f"id-{number}")
    given.on_trial_result("id-0", {"round": 1, "score": 0.9})  # before it did
    finish(tmp_path, 0, 0.9, status="diverged")
    given.on_trial_complete("id-0", {"round": 1, "done": True})
    assert [entry.status for entry in finished] == ["diverged"]
    finish(tmp_path, 1, 0.2, status="diverged")  # the command was killed before it heard of it
    again, _ = proposals(made, tmp_path)
    assert [e.status for e in again.book.entries] == ["diverged", "diverged", "waiting"]
    assert [point["trial"] for point in drained(again)] == [2]
    assert [search.configuration_score(made, again.book, c) for c in range(3)] == [None, None, None]


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        ("Traceback\n  x = 1\nValueError: no room\n\n   \n", "ValueError: no room"),
        ("AssertionError\n    ^^^^~~\n", "AssertionError"),
        ("\n\n", "no reason given"),
        ("", "no reason given"),
    ],
)
def test_a_trials_reason_is_never_blank(trace: str, reason: str) -> None:
    assert last_line(trace) == reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RayTaskError("train", "Traceback ..\nOSError: [Errno 30] Read-only file system", OSError(30, "")),
            "OSError: [E",
        ),
        (ActorDiedError(), "its process died"),
        (None, "its process died"),
    ],
)
def test_a_trial_that_could_not_write_why_it_failed_did_not_die(
    error: Exception | None, reason: str, tmp_path: Path
) -> None:
    class Failed:
        pickled_error_file = None if error is None else tmp_path / "error.pkl"

        def __str__(self) -> str:
            return trial_name(0)

    if error is not None:
        (tmp_path / "error.pkl").write_bytes(ray.cloudpickle.dumps(error))
    given, _ = proposals(sweep(tmp_path, space=ONE), tmp_path)
    said: list[str] = []
    Watch(tmp_path, given, said.append, lambda: False).on_trial_error(1, [], Failed())
    assert len(said) == 1
    assert said[0].startswith(f"trial-00000 failed: {reason}")


def test_nothing_new_starts_once_a_stop_was_asked_for(tmp_path: Path) -> None:
    stop: list[bool] = []
    given, finished = proposals(sweep(tmp_path, space=ONE), tmp_path, lambda: bool(stop))
    given.suggest("a")
    stop.append(True)
    assert given.suggest("b") == Searcher.FINISHED
    finish(tmp_path, 0, 0.5, status="stopped")
    given.on_trial_complete("a", {"round": 1, "done": True})
    assert finished[0].status == "waiting"


def test_a_trial_that_is_resumed_reports_a_round_once(tmp_path: Path) -> None:
    given, _ = proposals(sweep(tmp_path, space=ONE), tmp_path)
    given.suggest("a")
    for round, value in [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35)]:
        given.on_trial_result("a", {"round": round, "score": value})
    assert given.book.entries[0].reports == [(1, 0.1), (2, 0.25), (3, 0.35)]


def test_scores_of_repeats() -> None:
    values: list[float | None] = [0.3, 0.1, 0.2]
    ordered = {"max": sorted(values), "min": sorted(values, reverse=True)}  # the worst first
    for mode, (worst, _, best) in ordered.items():
        assert score(values, "worst", mode) == worst
        assert score(values, "best", mode) == best
        assert score(values, "mean", mode) == pytest.approx(0.2)
    assert score([0.3, None], "worst", "max") is None
    assert score([], "worst", "max") is None


def test_of_a_metric_to_be_small_the_worst_is_the_largest(tmp_path: Path) -> None:
    made = sweep(tmp_path, "metric=communication.up_bytes", space={LR: {"grid": [0.1]}}, repeat=3, score="worst")
    book = Book(tmp_path, 3)
    for entry, value in zip(book.add({LR: 0.1}), (1, 9, 9), strict=True):
        finish(tmp_path, entry.trial, 0.5)
        entry.status = "complete"
        path = tmp_path / entry.name / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "communication": {"up_bytes": value}}))
    assert search.configuration_score(made, book, 0) == 9


@pytest.mark.parametrize(
    ("status", "has_a_score"),
    [("complete", True), ("stopped", True), ("waiting", False), ("running", False), ("failed", False)],
)
def test_a_configuration_has_a_score_when_all_its_repeats_are_over(
    tmp_path: Path, status: str, has_a_score: bool
) -> None:
    made, book = sweep(tmp_path, space={LR: {"grid": [0.1]}}, repeat=2, score="worst"), Book(tmp_path, 2)
    for entry, state in zip(book.add({LR: 0.1}), ("complete", status), strict=True):
        finish(tmp_path, entry.trial, 0.5 - entry.trial / 10, "complete" if state == "complete" else "stopped")
        entry.status = state
    assert search.configuration_score(made, book, 0) == (0.4 if has_a_score else None)


def test_a_metric_of_several_clients_is_their_mean() -> None:
    summary = {"accuracy": {"task": {"0": 0.5, "1": 0.7}}, "best": {"knn": {"value": 0.9, "round": 2}}, "epsilon": None}
    assert measured(summary, "accuracy.task") == pytest.approx(0.6)
    assert measured(summary, "accuracy.task.1") == 0.7
    assert measured(summary, "best.knn.value") == 0.9
    assert measured(summary, "epsilon") is None
    assert measured(summary, "accuracy.linear") is None


class Fake(Searcher):  # type: ignore[misc]
    """An optimiser that proposes 0.1, 0.2, ... and notes what it is told."""

    def __init__(self) -> None:
        super().__init__(metric="score", mode="max")
        self.told: list[tuple[str, Any, bool]] = []

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {LR: 0.1 * (int(trial_id.rpartition("-")[2]) + 1), "train.rounds": 2}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.told.append((trial_id, result and result["score"], error))


def test_an_optimiser_is_told_the_worst_repeat_once_all_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(search, "optimiser", lambda made, book: fake)
    given, _ = proposals(sweep(tmp_path, search="optuna", repeat=2, score="worst", **RANGE), tmp_path)
    assert given.left == 6
    first, second, third = (given.suggest(name) for name in "abc")
    assert (first["trial"], second["trial"], third["trial"]) == (0, 1, 2)
    assert first[LR] == second[LR] == 0.1
    assert third[LR] == 0.2
    for number, name, value in [(0, "a", 0.6), (1, "b", 0.4)]:
        assert fake.told == []
        finish(tmp_path, number, value)
        given.on_trial_complete(name, {"round": 3, "score": value})
    assert fake.told == [("configuration-0", 0.4, False)]
    given.on_trial_complete("c", None, error=True)
    given.suggest("d")
    finish(tmp_path, 3, 0.9)
    given.on_trial_complete("d", {"round": 3, "score": 0.9})
    assert fake.told[1:] == [("configuration-1", None, True)]


class Proposer(Fake):
    """In Optuna's place: it proposes what it is to evaluate first."""

    def __init__(self, space: Any, *, points_to_evaluate: list[dict[str, Any]], **settings: Any) -> None:
        super().__init__()
        self.first = list(points_to_evaluate)
        self.proposed: dict[str, dict[str, Any]] = {}

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.proposed[trial_id] = self.first.pop(0) if self.first else super().suggest(trial_id)
        return self.proposed[trial_id]

    @staticmethod
    def convert_search_space(space: Any) -> Any:
        return space


def test_an_optimiser_is_told_the_final_score_of_what_was_interrupted_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.tune.search.optuna.OptunaSearch", Proposer)
    monkeypatch.setattr(search, "installed", lambda package: SimpleNamespace(logging=SimpleNamespace(
        WARNING=30, set_verbosity=lambda level: None)))  # fmt: skip
    made, stop = sweep(tmp_path, search="optuna", **RANGE), list[bool]()
    given, _ = proposals(made, tmp_path, lambda: bool(stop))
    points = [given.suggest(name) for name in "ab"]
    finish(tmp_path, 0, 0.6)
    given.on_trial_complete("a", {"round": 3, "score": 0.6})
    stop.append(True)
    finish(tmp_path, 1, 0.2, status="stopped")  # Ctrl-C: what it has reached so far
    given.on_trial_complete("b", {"round": 1, "score": 0.2})
    assert isinstance(given.optimiser, Proposer)
    assert given.optimiser.told == [("configuration-0", 0.6, False)]

    again, _ = proposals(made, tmp_path)
    told = again.optimiser
    assert isinstance(told, Proposer)
    assert told.proposed == {f"configuration-{n}": {k: v for k, v in p.items() if k != "trial"}
                             for n, p in enumerate(points)}  # fmt: skip
    assert told.told == [("configuration-0", 0.6, False)]
    assert again.suggest("b again") == points[1]
    assert again.suggest("c")["trial"] == 2
    finish(tmp_path, 1, 0.9)
    again.on_trial_complete("b again", {"round": 3, "score": 0.9})
    assert told.told[1:] == [("configuration-1", 0.9, False)]


@pytest.mark.parametrize("package", ["optuna", "hyperopt"])
def test_an_optimiser_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, package, None)
    made = sweep(tmp_path, search=package, **RANGE)
    said = f"search: found {package}, which is not installed; pip install {package}"
    with pytest.raises(UserError, match=said):
        optimiser(made, Book(tmp_path, 1))
    monkeypatch.setattr(sweep_module, "connect", None)  # it is said before Ray starts
    with pytest.raises(UserError, match=said):
        sweep_module.run_sweep(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ["optuna", "hyperopt"])
def test_an_optimiser_proposes_within_the_ranges_and_learns_the_past(tmp_path: Path, package: str) -> None:
    pytest.importorskip(package)
    space = {**RANGE["space"], "objective.temperature": {"choice": [0.5, 0.1]}}
    made = sweep(tmp_path, search=package, space=space, trials=12)
    first, _ = proposals(made, tmp_path)
    points = []
    for number in range(8):
        point = first.suggest(f"id-{number}")
        assert 0.1 <= point[LR] <= 0.9
        assert point["train.rounds"] in (1, 2, 3, 4)
        assert point["objective.temperature"] in (0.1, 0.5)
        if number == 7:
            finish(tmp_path, number, 0.65, status="stopped")
            break  # begun, and the command was killed
        finish(tmp_path, number, number / 10)
        first.on_trial_complete(f"id-{number}", {"round": 3, "score": number / 10})
        points.append(point)
    assert len({point[LR] for point in points}) == 7
    again, _ = proposals(made, tmp_path)
    assert again.left == 5
    expected = [(point[LR], point["objective.temperature"], number / 10) for number, point in enumerate(points)]
    assert learnt(again.optimiser, package) == expected
    redone = again.suggest("redone")
    assert redone == first.running["id-7"].point | {"trial": 7}
    fresh = again.suggest("fresh")
    assert fresh["trial"] == 8
    assert fresh[LR] not in {point[LR] for point in [*points, redone]}
    finish(tmp_path, 7, 0.95)
    again.on_trial_complete("redone", {"round": 3, "score": 0.95})
    expected.append((redone[LR], redone["objective.temperature"], 0.95))
    assert learnt(again.optimiser, package) == expected


def learnt(optimiser: Any, package: str) -> list[tuple[float, float, float]]:
    """Learning rate, temperature and score of every configuration that has a score, the smallest score first."""
    if package == "optuna":
        done = [trial for trial in optimiser._ot_study.trials if trial.value is not None]
        told = [(trial.params[LR], trial.params["objective.temperature"], trial.value) for trial in done]
    else:
        done = [trial for trial in optimiser._hpopt_trials.trials if "loss" in trial["result"]]
        values = [(trial["misc"]["vals"], -trial["result"]["loss"]) for trial in done]
        told = [(v[LR][0], [0.5, 0.1][v["objective.temperature"][0]], score) for v, score in values]
    return sorted(told, key=lambda row: row[2])


def test_what_tune_pickles_may_hold_a_terminal(tmp_path: Path) -> None:
    lock = threading.RLock()  # a rich console has one

    def say(line: object) -> None:
        with lock:
            pass

    given = Proposals(sweep(tmp_path, space=ONE), Book(tmp_path, 1), say, lambda: False)
    for each in (given, Watch(tmp_path, given, say, lambda: False), Population(tmp_path, given, say, lambda: False)):
        assert ray.cloudpickle.dumps(each)


def test_domains_include_both_ends() -> None:
    from tune.blocks import Dimension

    drawn = {domain(Dimension(randint=(2, 4))).sample() for _ in range(200)}
    assert drawn == {2, 3, 4}


def test_asha_remembers_finished_trials_after_a_restart(tmp_path: Path) -> None:
    made = sweep(tmp_path, space=ONE, scheduler={"name": "asha", "grace": 1, "reduction": 2})
    verdicts = []
    for past in ([], [(0, 0.9), (1, 0.8)]):
        book = Book(tmp_path, 1)
        book.entries = [Entry(n, n, 0, {LR: 0.1}, "complete", [(1, value)]) for n, value in past]
        asha = scheduler(made, book)
        trial = SimpleNamespace(trial_id="new")
        asha.on_trial_add(None, trial)
        verdicts.append(asha.on_trial_result(None, trial, {"round": 1, "score": 0.1}))
    assert verdicts == ["CONTINUE", "STOP"]


class Trial:
    """What Tune hands to schedulers: a name of ours, and an id of its own that is new in every session."""

    def __init__(self, number: int) -> None:
        self.number, self.trial_id = number, f"tune-{id(self)}"

    def __str__(self) -> str:
        return trial_name(self.number)


@pytest.mark.parametrize("cut", range(12))
def test_asha_interrupted_anywhere_stops_what_it_stops_uninterrupted(cut: int, tmp_path: Path) -> None:
    """Two trials at a time; the second session's Tune knows nothing of the first. Ray's own scheduler is the truth."""
    values = {0: [0.30, 0.35, 0.40, 0.60], 1: [0.50, 0.55, 0.60, 0.70], 2: [0.45, 0.30], 3: [0.35]}
    pairs = [((0, 1), 1), ((0, 1), 2), ((0, 1), 3), ((0, 1), 4), ((2, 3), 1), ((2,), 2)]
    told = [(n, round, values[n][round - 1]) for trials, round in pairs for n in trials]
    made = sweep(
        tmp_path, "train.rounds=8", space=ONE, mode="max", scheduler={"name": "asha", "grace": 1, "reduction": 2}
    )
    truth = AsyncHyperBandScheduler(
        time_attr="round", metric="score", mode="max", grace_period=1, reduction_factor=2, max_t=8
    )
    known = {n: SimpleNamespace(trial_id=f"{n}") for n in values}
    for trial in known.values():
        truth.on_trial_add(None, trial)
    expected = [truth.on_trial_result(None, known[n], {"round": r, "score": value}) for n, r, value in told]
    assert {(n, r) for (n, r, _), verdict in zip(told, expected, strict=True) if verdict == "STOP"} == {(3, 1), (2, 2)}

    verdicts = []
    book = Book(tmp_path, 1)
    book.entries = [Entry(n, n, 0, {LR: 0.1}) for n in values]
    for session in (told[:cut], told[cut:]):
        asha, trials = scheduler(made, book), {n: Trial(n) for n in values}
        for trial in trials.values():
            asha.on_trial_add(None, trial)
        for n, r, value in session:
            verdicts.append(asha.on_trial_result(None, trials[n], {"round": r, "score": value}))
            book.entries[n].reports.append((r, value))
    assert verdicts == expected


@pytest.mark.parametrize("mode", ["max", "min"])
def test_asha_interrupted_where_a_rung_is_between_two_measured_rounds(mode: str, tmp_path: Path) -> None:
    """Every fifth round is measured, so a trial comes to the rungs 3, 9 and 1 in this order. Those that go on come from
    a checkpoint before their last report, which they give again. Ray's own scheduler is the truth.
    """
    rng, asha = random.Random(0), {"name": "asha", "grace": 1, "reduction": 3}
    made = sweep(tmp_path, "train.rounds=21", "evaluation.every=5", space=ONE, mode=mode, scheduler=asha)
    again = 0
    for _ in range(10):
        truth = AsyncHyperBandScheduler(
            time_attr="round", metric="score", mode=mode, grace_period=1, reduction_factor=3, max_t=21
        )
        known = [SimpleNamespace(trial_id=f"{n}") for n in range(6)]
        for trial in known:
            truth.on_trial_add(None, trial)
        told: list[tuple[int, dict[str, Any], str]] = []
        reached, live = [0] * 6, set(range(6))
        while live:
            n = rng.choice(sorted(live))
            reached[n] += 5
            result = {"round": reached[n], "score": round(rng.random(), 1)}
            verdict = truth.on_trial_result(None, known[n], result)
            told.append((n, result, verdict))
            if verdict == "STOP":
                truth.on_trial_complete(None, known[n], result)
            if verdict == "STOP" or reached[n] == 20:
                live.remove(n)

        cut = rng.randrange(len(told))
        book = Book(tmp_path, 1)
        book.entries = [Entry(n, n, 0, {LR: 0.1}) for n in range(6)]
        for session in (told[:cut], told[cut:]):
            lasting, trials = scheduler(made, book), [Trial(n) for n in range(6)]
            for trial, entry in zip(trials, book.entries, strict=True):
                lasting.on_trial_add(None, trial)
                for r, value in entry.reports[-1:] if entry.status != "stopped" else ():
                    assert lasting.on_trial_result(None, trial, {"round": r, "score": value}) == "CONTINUE"
                    again += 1
            for n, result, verdict in session:
                assert lasting.on_trial_result(None, trials[n], result) == verdict
                book.entries[n].reports.append((result["round"], result["score"]))
                if verdict == "STOP":
                    lasting.on_trial_complete(None, trials[n], result)
    assert again


def test_what_asha_stops_stays_stopped_where_a_stop_of_all_comes_at_the_same_time(tmp_path: Path) -> None:
    stop: list[bool] = []
    made = sweep(tmp_path, space=ONE, mode="max", scheduler={"name": "asha", "grace": 1, "reduction": 2})
    given, finished = proposals(made, tmp_path, lambda: bool(stop))
    asha, trials = scheduler(made, given.book), [Trial(0), Trial(1)]
    for trial in trials:
        given.suggest(trial.trial_id)
        asha.on_trial_add(None, trial)
    stop.append(True)
    better, worse = {"round": 1, "score": 0.9}, {"round": 1, "score": 0.1}
    verdicts = [asha.on_trial_result(None, t, r) for t, r in zip(trials, (better, worse), strict=True)]
    assert verdicts == ["CONTINUE", "STOP"]
    given.on_trial_result(trials[0].trial_id, better)
    given.on_trial_complete(trials[1].trial_id, worse | {"done": True})
    given.on_trial_complete(trials[0].trial_id, {"round": 2, "score": 0.9, "done": True})  # measured in round 1
    assert [(entry.name, entry.status) for entry in finished] == [
        ("trial-00001", "stopped"),
        ("trial-00000", "waiting"),
    ]
    assert [entry.reports for entry in given.book.entries[:2]] == [[(1, 0.9)], [(1, 0.1)]]
    again, _ = proposals(made, tmp_path)
    assert [point["trial"] for point in drained(again)] == [0, 2]


def test_perturbed_values_stay_within_the_ranges(tmp_path: Path) -> None:
    space = {
        LR: {"uniform": [0.1, 0.9]},
        "train.local_epochs": {"randint": [1, 4]},
        "objective.temperature": {"choice": [7, 8]},
    }
    made = sweep(tmp_path, space=space, search="random", trials=2, scheduler="pbt")
    new = {"trial": 3, LR: 1.08, "train.local_epochs": 4.8, "objective.temperature": 8}
    assert WithinRanges(made)(new) == {"trial": 3, LR: 0.9, "train.local_epochs": 4, "objective.temperature": 8}
    assert made.config_of({}).checkpoint.every == 1
