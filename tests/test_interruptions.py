"""Runs that end early, and runs that go on from damaged checkpoints."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.messages import ClientError
from rayfed_ssl.simulation.loop import Progress
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


def damage(checkpoint_folder: Path) -> None:
    victim = checkpoint_folder / "server.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1] + b"!")


def test_damaged_checkpoints_are_set_aside_and_neither_count_nor_hide_what_is_saved_later(tmp_path: Path) -> None:
    """Rounds 4 and 3 damaged, keep=1: from round 2 on, every new checkpoint is kept, is the newest, and resumes."""
    config = tiny("fedbyol", train__rounds=5, checkpoint__keep=1)
    run_locally(config, tmp_path / "whole")
    folder, root = tmp_path / "run", tmp_path / "run" / "checkpoints"
    stopped_at(tiny("fedbyol", train__rounds=5, checkpoint__keep=9), folder, 4)
    for t in (3, 4):
        damage(root / f"round-{t:05d}")
    lines: list[str] = []

    def report(progress: Progress) -> None:
        lines.append(progress.line)

    seen = run_locally(config, folder, resume=True, report=report, stopping=lambda: "round 3/5" in lines)
    assert seen["rounds"] == 3
    assert [line for line in lines if "passed over" in line and "server.safetensors" in line]
    assert [line.split(":")[0] for line in lines if "set aside" in line] == [
        "checkpoints/round-00003.damaged", "checkpoints/round-00004.damaged",
    ]  # fmt: skip
    assert sorted(path.name for path in root.iterdir()) == ["round-00003", "round-00004.damaged"]
    lines.clear()
    run_locally(config, folder, resume=True, report=report)
    assert "resumed from round 3 (round-00003)" in lines
    assert not [line for line in lines if "passed over" in line]
    assert [path.name for path in root.iterdir()] == ["round-00005"]
    assert encoders(folder) == encoders(tmp_path / "whole")
    assert measured(folder) == measured(tmp_path / "whole")
    assert booked(folder) == booked(tmp_path / "whole")


def test_with_no_intact_checkpoint_the_run_starts_again(tmp_path: Path) -> None:
    config, folder = tiny("fedsimclr", train__rounds=2), tmp_path / "run"
    run_locally(config, folder)
    before = encoders(folder), measured(folder)
    for t in (1, 2):
        damage(folder / "checkpoints" / f"round-{t:05d}")
    run_locally(config, folder, resume=True)
    assert (encoders(folder), measured(folder)) == before
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["round-00001", "round-00002"]


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


# -- folders that are not what they should be --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics.parquet", "events.out.tfevents.1.host", "checkpoints/round-00001/x"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_holds_something_else_is_not_written_over(name: str, resume: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("somebody's")
    with pytest.raises(UserError, match=rf"--out: .*run holds {name.partition('/')[0]} and no config.yaml"):
        run_locally(tiny("fedsimclr"), folder, resume=resume)
    assert [path.name for path in folder.iterdir()] == [name.partition("/")[0]]
    assert (folder / name).read_text() == "somebody's"


def test_a_run_without_a_checkpoint_may_begin_again_with_other_keys(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ClientError):
        run_locally(tiny("fedsimclr", train__optimizer__lr=1e30, checkpoint__every=0), folder)
    assert (folder / "config.yaml").exists()
    run_locally(tiny("fedsimclr"), folder, resume=True)
    run_locally(tiny("fedsimclr"), tmp_path / "plain")
    assert encoders(folder) == encoders(tmp_path / "plain")
    assert measured(folder) == measured(tmp_path / "plain")
    with pytest.raises(UserError, match=r"cannot resume with changed train\.optimizer\.lr"):
        run_locally(tiny("fedsimclr", train__optimizer__lr=0.01), folder, resume=True)


def test_damaged_records_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_locally(tiny("fedsimclr"), folder)
    part = folder / "metrics.parquet" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(UserError, match=r"part-00001\.parquet: cannot be read .*damaged"):
        run_locally(tiny("fedsimclr"), folder, resume=True)
