"""What the recorder draws, and when it does not."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rayfed_ssl.testing.tiny import booked, encoders, measured, run_locally
from tests.tiny import tiny

DRAWN = {"partition.png", "accuracy.png", "accuracy_vs_trace.png", "fedfoa_distance.png"}


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "figures").iterdir()} if (folder / "figures").exists() else set()


def shown(folder: Path) -> list[str]:
    """The tags of TensorBoard's images."""
    events = EventAccumulator(str(folder))
    events.Reload()
    found: list[str] = events.Tags()["images"]
    return sorted(found)


def test_figures_change_nothing_else_and_may_be_asked_for_later(tmp_path: Path) -> None:
    drawn, bare = tmp_path / "drawn", tmp_path / "bare"
    run_locally(tiny("fedfoa", train__rounds=2, figures=True), drawn)
    rounds: list[int] = []
    run_locally(
        tiny("fedfoa", train__rounds=2, figures=False), bare, report=lambda p: rounds.append(p.round),
        stopping=lambda: max(rounds) >= 1,
    )  # fmt: skip
    assert names(drawn) == DRAWN
    assert shown(drawn) == ["clients/fedfoa_distance", "data/partition"]
    assert names(bare) == set()
    assert shown(bare) == []
    run_locally(tiny("fedfoa", train__rounds=2, figures=True), bare, resume=True)
    assert names(bare) == DRAWN - {"partition.png"}  # that belongs to a run's beginning
    assert (encoders(bare), measured(bare), booked(bare)) == (encoders(drawn), measured(drawn), booked(drawn))
