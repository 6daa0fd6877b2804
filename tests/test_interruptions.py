"""Runs that end early: stopped between checkpoints, and a disk that takes no more."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl import checkpoint
from rayfed_ssl.schema import UserError
from tests.tiny import booked, encoders, measured, run_locally, tiny


def stopped_at(config: Any, folder: Path, round: int) -> dict[str, Any]:
    seen: list[int] = [0]
    return run_locally(config, folder, report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= round)


@pytest.mark.parametrize("after", [0, 2])
def test_stopped_between_checkpoints(after: int, tmp_path: Path) -> None:
    """A stop saves; what was evaluated before the stop is not evaluated, nor recorded, a second time."""
    config = tiny("fedsimclr", checkpoint__every=0)
    run_locally(config, tmp_path / "whole")
    assert stopped_at(config, tmp_path / "run", after)["rounds"] == after
    run_locally(config, tmp_path / "run", resume=True)
    assert encoders(tmp_path / "run") == encoders(tmp_path / "whole")
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")
    assert booked(tmp_path / "run") == booked(tmp_path / "whole")


def test_full_disk_names_the_checkpoint_and_keeps_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("fedsimclr")
    run_locally(config, tmp_path / "whole")
    real = checkpoint.save_file

    def full(arrays: Any, path: Path) -> None:
        if "00002" in str(path):
            raise OSError(28, "No space left on device")
        real(arrays, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(UserError, match=r"round 2 .*No space left on device.*round 1 is intact"):
        run_locally(config, tmp_path / "run")
    monkeypatch.setattr(checkpoint, "save_file", real)
    run_locally(config, tmp_path / "run", resume=True)
    assert encoders(tmp_path / "run") == encoders(tmp_path / "whole")
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")


def test_a_finished_run_resumed_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("fedsimclr")
    run_locally(config, tmp_path / "run")
    before = encoders(tmp_path / "run"), measured(tmp_path / "run"), booked(tmp_path / "run")
    summary = run_locally(config, tmp_path / "run", resume=True)
    assert summary["status"] == "complete"
    assert (encoders(tmp_path / "run"), measured(tmp_path / "run"), booked(tmp_path / "run")) == before
    with pytest.raises(UserError, match="already holds a run"):
        run_locally(config, tmp_path / "run")


def test_resume_refuses_a_changed_result_and_allows_changed_resources(tmp_path: Path) -> None:
    stopped_at(tiny("fedsimclr"), tmp_path / "run", 1)
    with pytest.raises(UserError, match=r"train\.optimizer\.lr"):
        run_locally(tiny("fedsimclr", train__optimizer__lr=0.1), tmp_path / "run", resume=True)
    summary = run_locally(tiny("fedsimclr", resources__actors=3, checkpoint__keep=5), tmp_path / "run", resume=True)
    assert summary["status"] == "complete"


def test_encoders_do_not_need_the_network_that_trained_them(tmp_path: Path) -> None:
    """The README's three lines."""
    import json

    import safetensors.torch
    import torch

    from rayfed_ssl.models import rebuild

    run_locally(tiny("fedsimclr", train__rounds=1), tmp_path / "run")
    with builtins.open(tmp_path / "run/encoder/global.json") as file:
        encoder = rebuild(json.load(file))
    missing, unexpected = encoder.load_state_dict(
        safetensors.torch.load_file(tmp_path / "run/encoder/global.safetensors"), strict=False
    )
    assert unexpected == []
    assert all(name.endswith("num_batches_tracked") for name in missing)
    assert encoder(torch.rand(2, 3, 16, 16)).shape == (2, encoder.dim)
