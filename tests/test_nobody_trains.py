"""Rounds in which every client failed, under ``on_client_error: drop``. One comes to nothing and the run goes on; a run
whose clients all fail ends with their error, for it would otherwise finish with encoders that nobody trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.failure_policy import FailurePolicy
from rayfed_ssl.federated.messages import ClientError
from rayfed_ssl.simulation.progress import Progress
from rayfed_ssl.storage import checkpoint
from tests.tiny import encoders, measured, run_locally, tiny

Failing = Callable[[Collection[int]], None]
BUFFERED: dict[str, Any] = {"system": {"latency_s": 10.0}, "server__schedule": "fedbuff", "server__buffer": 1}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Makes the training of some clients fail, from now on."""
    fit = EncoderClient.fit

    def start(clients: Collection[int]) -> None:
        def fails(self: EncoderClient, *args: Any, **options: Any) -> None:
            if self.id in clients:
                raise RuntimeError("no room")
            fit(self, *args, **options)

        monkeypatch.setattr(EncoderClient, "fit", fails)

    return start


def one_a_round(method: str = "fedsimclr", **changes: Any) -> RunConfig:
    given = {"participation__fraction": 0.25, "train__rounds": 8, "evaluation__protocols": [], **changes}
    return tiny(method, on_client_error="drop", **given)


def dropped(folder: Path) -> set[int]:
    return {round for round, _, tag in measured(folder) if tag == "system/dropped_clients"}


@pytest.mark.parametrize("method", ["local", "fedfoa", "fedlinked", "fedsc", "fedsimclr"])
def test_a_run_whose_clients_all_fail_ends_in_a_few_rounds(method: str, failing: Failing, tmp_path: Path) -> None:
    failing(range(4))
    lines: list[str] = []
    config = tiny(method, on_client_error="drop", participation__fraction=1.0, train__rounds=5)
    with pytest.raises(ClientError, match=r"client 3 failed in round 3, operation 'train'[^$]*no room"):
        run_locally(config, tmp_path / "run", report=lambda p: lines.append(p.line))
    assert lines[-1] == (
        "3 rounds in a row came to nothing, 4 different clients failed and none succeeded: the run gives up"
    )
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_of_few_rounds_does_not_finish_with_what_nobody_trained(
    rounds: int, failing: Failing, tmp_path: Path
) -> None:
    failing(range(4))
    with pytest.raises(ClientError, match=f"failed in round {rounds}, operation 'train'"):
        run_locally(one_a_round(train__rounds=rounds), tmp_path / "run")


def test_one_client_that_trains_is_enough(failing: Failing, tmp_path: Path) -> None:
    failing((1, 2, 3))
    assert run_locally(tiny("local", on_client_error="drop"), tmp_path / "run")["status"] == "complete"


@pytest.mark.parametrize("schedule", ["sync", "fedbuff"])
@pytest.mark.parametrize("method", ["fedsimclr", "fedbyol"])
def test_a_client_that_always_fails_ends_no_run_though_it_is_asked_alone(
    method: str, schedule: str, failing: Failing, tmp_path: Path
) -> None:
    failing((1,))
    lines: list[str] = []
    config = one_a_round(method, **(BUFFERED if schedule == "fedbuff" else {}))
    summary = run_locally(config, tmp_path / "run", report=lambda p: lines.append(p.line))
    assert (summary["status"], summary["rounds"]) == ("complete", 8)
    void = dropped(tmp_path / "run")
    assert 1 <= len(void) < 8
    assert summary["dropped"] == {"clients": 1, "times": len(void)}
    assert summary["void_rounds"] == len(void)
    told = {f"round {t}/8 came to nothing: every client that was asked failed" for t in void}
    assert {line for line in lines if "came to nothing" in line} == told
    models = [
        checkpoint.load(path)[0]["server"]["weights"].vector.tobytes()
        for path in sorted((tmp_path / "run/checkpoints").glob("round-*"))
    ]
    assert len(set(models)) > 1


class StopAfter:
    """Asks a run to stop once it has reported round ``at``."""

    def __init__(self, at: int) -> None:
        self.at, self.asked = at, False

    def hear(self, progress: Progress) -> None:
        self.asked = self.asked or f"round {self.at}/" in progress.line

    def __call__(self) -> bool:
        return self.asked


@pytest.mark.parametrize("schedule", ["sync", "fedbuff"])
def test_a_run_with_such_rounds_resumes_to_the_same_end(schedule: str, failing: Failing, tmp_path: Path) -> None:
    failing((1, 2))
    config = one_a_round(**(BUFFERED if schedule == "fedbuff" else {}))
    run_locally(config, tmp_path / "whole")
    void = dropped(tmp_path / "whole")
    for name, at in {"after a void round": min(void), "before one": max(void) - 1}.items():
        stop = StopAfter(at)
        run_locally(config, tmp_path / name, report=stop.hear, stopping=stop)
        run_locally(config, tmp_path / name, resume=True)
        assert encoders(tmp_path / name) == encoders(tmp_path / "whole")
        assert measured(tmp_path / name) == measured(tmp_path / "whole")


def test_what_counts_is_how_many_clients_failed_since_one_succeeded() -> None:
    alone = FailurePolicy(4)
    alone.succeeded()
    assert not any(alone.failed((1,), last=t == 99) for t in range(100))
    assert not alone.failed((0, 2), last=False)
    assert alone.failed((3,), last=False)
    alone.succeeded()
    assert [alone.failed(range(4), last=False) for _ in range(3)] == [False, False, True]


def test_of_many_clients_ten_are_enough_and_a_checkpoint_keeps_the_count() -> None:
    many = FailurePolicy(1000)
    assert not any(many.failed((client,), last=False) for client in range(9))
    again = FailurePolicy(1000)
    again.restore(many.state)
    assert again.state == many.state
    assert not again.failed((8,), last=False)
    assert again.failed((9,), last=False)


def test_the_last_round_is_one_too_many_only_where_nobody_has_ever_succeeded() -> None:
    assert FailurePolicy(4).failed((1,), last=True)
    once = FailurePolicy(4)
    once.succeeded()
    assert not once.failed((1,), last=True)
