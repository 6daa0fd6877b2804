"""Where states lie on Ray, and that a run whose states do not fit there is refused before an actor starts."""

from __future__ import annotations

from types import ModuleType

import pytest

from actors import cohort as cohorts
from actors.cohort import RayCohort, place_of
from actors.pool import Pool
from actors.shares import Plan, Reservation
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.simulation.memory import Room
from tests.tiny import tiny

STORE = 300 * 1024**2  # of the tests' Ray instance


def test_small_states_lie_in_memory_and_large_ones_beside_the_images(ray_session: ModuleType) -> None:
    federation = load_federation(tiny("fedbyol"))
    images = federation.dataset.train.pixels.nbytes + federation.dataset.test.pixels.nbytes
    assert place_of(1e5, federation).name == "memory"
    large = place_of(1e5 + 1, federation)
    assert large.name == "the object store"
    assert large.bytes == pytest.approx(STORE - images, rel=1e-6)


def test_states_that_do_not_fit_are_refused_before_an_actor_starts(
    ray_session: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(
        "local",
        clients__count=120,
        data__partition={"name": "iid"},
        model__width=1.0,
        model__projector__hidden=[2048, 512],
    )
    pool = Pool(Plan(1, cpus=0.5, gpus=0.0, threads=1, strategy="PACK"), Reservation(None))
    monkeypatch.setattr(Pool, "open", lambda *_: pytest.fail("an actor was started"))
    with pytest.raises(
        UserError, match=r"clients\.count: found 120; local keeps .* MB of each client .* the object store"
    ):
        RayCohort(config, load_federation(config), Ledger(), pool)
    monkeypatch.setattr(cohorts, "place_of", lambda *_: Room("the object store", 1e12))
    monkeypatch.setattr(Pool, "open", lambda *_: [])
    RayCohort(config, load_federation(config), Ledger(), pool).close()
