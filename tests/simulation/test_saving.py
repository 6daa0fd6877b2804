"""Checkpoints by rounds and by minutes: which rounds are saved, and that no result depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.settings.blocks import CheckpointConfig
from rayfed_ssl.simulation import saving
from rayfed_ssl.simulation.saving import Saving
from rayfed_ssl.testing.tiny import booked, encoders, measured, outcomes, run_locally
from tests.tiny import tiny


class Clock:
    """Minutes that pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.minutes = 1000.0
        monkeypatch.setattr(saving.time, "monotonic", lambda: 60 * self.minutes)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"every": 4, "minutes": None}, [4, 8, 10]),
        ({"every": 4, "minutes": 2.5}, [3, 4, 7, 8, 10]),  # the minutes count anew from every checkpoint
        ({"every": 100, "minutes": 2.5}, [3, 6, 9, 10]),
        ({"every": 100, "minutes": 10.0}, [10]),
        ({"every": 0, "minutes": 2.5}, [10]),
    ],
)
def test_rounds_are_saved_by_number_or_when_minutes_have_passed(
    config: dict[str, Any], expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    kept, saved = Saving(CheckpointConfig(**config), tmp_path / "checkpoints", 10), []
    for t in range(1, 11):
        clock.minutes += 1
        if kept.due(t):
            kept.write(t, {"t": t}, [])
            saved.append(t)
            assert kept.round == t
    assert saved == expected


def test_a_run_is_saved_by_minutes_and_is_the_same_run(tmp_path: Path) -> None:
    few = tiny("fedbyol", train__rounds=3, checkpoint__every=2, checkpoint__minutes=None, checkpoint__keep=9)
    often = tiny("fedbyol", train__rounds=3, checkpoint__every=2, checkpoint__minutes=1e-9, checkpoint__keep=9)
    folders = {"few": few, "often": often}
    for name, config in folders.items():
        run_locally(config, tmp_path / name)
    found = {name: sorted(p.name for p in (tmp_path / name / "checkpoints").iterdir()) for name in folders}
    assert found["few"] == ["round-00002", "round-00003"]
    assert found["often"] == ["round-00001", "round-00002", "round-00003"]
    for left in (encoders, measured, booked, outcomes):
        assert left(tmp_path / "few") == left(tmp_path / "often")
