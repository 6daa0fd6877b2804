"""What every method promises, over the whole table: finite, deterministic, the same wherever it runs and however it was
interrupted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import Federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.methods import METHODS
from rayfed_ssl.simulation import loop
from tests.tiny import booked, encoders, measured, run_locally, tiny

EVERY = sorted(METHODS)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each method's run in process, once per session: method -> run folder."""
    folders: dict[str, Path] = {}

    def of(method: str) -> Path:
        if method not in folders:
            folder = tmp_path_factory.mktemp("local") / method
            run_locally(tiny(method), folder)
            folders[method] = folder
        return folders[method]

    return of


@pytest.mark.parametrize("method", EVERY)
def test_finite_and_complete(method: str, undisturbed: Any) -> None:
    folder: Path = undisturbed(method)
    values = measured(folder)
    assert all(math.isfinite(value) for value in values.values())
    assert {round for round, _, tag in values if tag.startswith("eval/")} == set(range(tiny(method).train.rounds + 1))
    assert (folder / "summary.json").exists()
    assert (folder / "partition.parquet").exists()


@pytest.mark.parametrize("method", EVERY)
def test_same_seed_same_bits_other_seed_other_bits(method: str, undisturbed: Any, tmp_path: Path) -> None:
    run_locally(tiny(method), tmp_path / "again")
    run_locally(tiny(method, seed=1), tmp_path / "other")
    first = encoders(undisturbed(method))
    assert encoders(tmp_path / "again") == first
    other = encoders(tmp_path / "other")
    assert all(other[name] != first[name] for name in first)


@pytest.mark.parametrize("method", EVERY)
def test_resumed_equals_uninterrupted(method: str, undisturbed: Any, tmp_path: Path) -> None:
    after = min(1, tiny(method).train.rounds - 1)  # a method of one round is stopped before it
    seen: list[int] = []
    stopped = run_locally(
        tiny(method), tmp_path / "run", report=lambda p: seen.append(p.round), stopping=lambda: max(seen) >= after
    )
    assert stopped["status"] == "stopped"
    assert stopped["rounds"] == after
    lines: list[str] = []
    summary = run_locally(tiny(method), tmp_path / "run", resume=True, report=lambda p: lines.append(p.line))
    assert any(f"resumed from round {after}" in line for line in lines)
    whole: Path = undisturbed(method)
    assert encoders(tmp_path / "run") == encoders(whole)
    assert measured(tmp_path / "run") == measured(whole)
    assert booked(tmp_path / "run") == booked(whole)
    assert summary["status"] == "complete"


@pytest.fixture(scope="module")
def pools(ray_session: ModuleType) -> Iterator[dict[int, Any]]:
    """Warm pools of one and of two actors: starting processes is most of what a tiny run costs."""
    from actors.plan import plan, reserve
    from actors.pool import Pool

    config = tiny("fedsimclr", resources__cpus_per_client=0.5, resources__device="cpu")
    made = {n: plan(config.resources.model_copy(update={"actors": n}), 2, [{"CPU": 2.0}]) for n in (1, 2)}
    opened = {n: Pool(each, reserve(each, 60.0)) for n, each in made.items()}
    yield opened
    for pool in opened.values():
        pool.close()


@pytest.mark.parametrize("actors", [1, 2])
@pytest.mark.parametrize("method", EVERY)
def test_on_ray_equals_in_process(
    method: str, actors: int, undisturbed: Any, tmp_path: Path, pools: dict[int, Any]
) -> None:
    from actors.cohort import RayCohort

    cohorts: list[RayCohort] = []

    def connect(config: RunConfig, federation: Federation, ledger: Ledger) -> RayCohort:
        cohorts.append(RayCohort(config, federation, ledger, pools[actors], keep=True))
        return cohorts[-1]

    loop.run(tiny(method, resources__device="cpu"), tmp_path / "ray", connect)
    assert len({info.pid for info in cohorts[0].infos} - {os.getpid()}) == actors
    whole: Path = undisturbed(method)
    assert encoders(tmp_path / "ray") == encoders(whole)
    assert measured(tmp_path / "ray") == measured(whole)
    assert booked(tmp_path / "ray") == booked(whole)


def test_dropout_and_batchnorm_and_momentum_target_are_covered() -> None:
    """The suite above means what it says only if the tiny runs have state that could go wrong."""
    assert tiny("fedbyol").clients.encoders == "small_cnn_bn"
    assert tiny("fedbyol").objective.target == "local"  # type: ignore[union-attr]
    assert "fedlinked_cnn" in tiny("fedfoa").clients.encoders
