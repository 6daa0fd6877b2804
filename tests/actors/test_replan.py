"""Waiting for a cluster is announced, and a run whose nodes do not come back goes on with what is left."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import pytest

from actors import driver as module
from actors import follow as following
from actors import plan as plans
from actors import pool as pools
from actors.driver import Driver, ProgressLog
from actors.failures import StateLost
from actors.order import Update
from actors.plan import reserve, what_is_left
from actors.pool import Pool
from actors.shares import Plan, Reservation
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.user_error import StoppedAtOnce
from rayfed_ssl.settings.blocks import ResourcesConfig
from rayfed_ssl.simulation.progress import Progress
from tests.cluster.processes import until
from tests.tiny import tiny

FOUR = Plan(4, cpus=1.0, gpus=0.5, threads=1, strategy="PACK")


@pytest.mark.long
def test_a_long_wait_says_once_what_is_awaited(ray_session: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SILENT_S", 0.5)
    said: list[str] = []
    too_much = Plan(9, cpus=1.0, gpus=0.0, threads=1, strategy="PACK")
    with pytest.raises(UserError, match="waited 2 s for 9 x 1 CPU; free now"):
        reserve(too_much, 2, say=said.append)
    assert len(said) == 1
    assert said[0].startswith("waiting up to 2 s for 9 x 1 CPU; free now: ")
    said.clear()
    monkeypatch.setattr(plans, "SILENT_S", 30.0)
    reserve(Plan(1, cpus=0.5, gpus=0.0, threads=1, strategy="PACK"), 30, say=said.append).release()
    assert not said
    with pytest.raises(StoppedAtOnce):
        reserve(too_much, 600, "nobody's", stopping=lambda: True)
    with pytest.raises(ValueError, match="nobody's"):
        ray_session.util.get_placement_group("nobody's")


class Awaited:
    """A reservation whose bundles others hold for ever; a wait for them takes no time."""

    owned = True

    def __init__(self) -> None:
        self.group, self.released = self, False
        self.waits: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return False

    def release(self) -> None:
        self.released = True


@pytest.mark.parametrize("after", [1, 3])
def test_a_stop_ends_the_wait_for_bundles(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at it waits a whole second: Ray cuts off fractions, so half a second would be none."""
    monkeypatch.setattr(plans, "SILENT_S", 0.5)
    awaited: Any = Awaited()
    with pytest.raises(StoppedAtOnce, match=r"^stopped at once, while it waited for 4 x 1 CPU, 0\.5 GPU; --resume"):
        plans.await_ready(FOUR, awaited, 600, stopping=lambda: len(awaited.waits) >= after)
    assert (awaited.waits, awaited.released) == ([1] * after, True)


def test_a_run_under_way_that_is_stopped_while_it_waits_does_not_go_on_with_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    awaited = Awaited()
    monkeypatch.setattr(plans, "request_bundles", lambda plan, name: awaited)
    driver = Driver.__new__(Driver)
    order: Any = type("Order", (), {"config": tiny("fedsimclr", resources__wait_s=600), "group": "a"})
    driver.order, driver.plan, driver.under_way, driver.reported = order, FOUR, True, ProgressLog()
    driver.stop_wanted = threading.Event()
    driver.stop_wanted.set()
    with pytest.raises(StoppedAtOnce):
        driver.reserve_bundles(order.config)
    assert (awaited.waits, awaited.released) == ([1], True)


def test_what_is_left_keeps_the_shares() -> None:
    left = what_is_left(FOUR, ResourcesConfig(actors=4), [{"CPU": 8.0, "GPU": 1.0}])
    assert (left.actors, left.cpus, left.gpus) == (2, 1.0, 0.5)
    more = what_is_left(FOUR, ResourcesConfig(), [{"CPU": 8.0, "GPU": 8.0}])
    assert more.actors == 4
    with pytest.raises(UserError, match="the largest node has 0 GPUs"):
        what_is_left(FOUR, ResourcesConfig(), [{"CPU": 8.0}])


@pytest.mark.parametrize(("under_way", "nodes", "actors"), [(True, 1, 2), (False, 1, None)])
def test_only_a_run_under_way_goes_on_with_fewer(
    under_way: bool, nodes: int, actors: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def reserved(plan: Plan, wait_s: float, name: str, say: Any, stopping: Any) -> Reservation:
        asked.append(plan.actors)
        if plan.actors > 2:
            raise UserError("resources.wait_s: waited 9 s")
        return Reservation(None)

    monkeypatch.setattr(module, "reserve", reserved)
    monkeypatch.setattr(module, "living_nodes", lambda: [{"CPU": 8.0, "GPU": 1.0}] * nodes)
    monkeypatch.setattr(module, "free_nodes", lambda: [{"CPU": 8.0, "GPU": 1.0}] * nodes)
    driver = Driver.__new__(Driver)
    order: Any = type("Order", (), {"config": tiny("fedsimclr", resources__wait_s=9), "group": "a"})
    driver.order, driver.plan, driver.under_way, driver.reported = order, FOUR, under_way, ProgressLog()
    driver.stop_wanted = threading.Event()
    if actors is None:  # nothing was lost: others hold the resources, and the user hears of it
        with pytest.raises(UserError, match="waited 9 s"):
            driver.reserve_bundles(order.config)
        assert asked == [4]
        return
    assert driver.reserve_bundles(order.config).group is None
    assert asked == [4, actors]
    assert driver.plan.actors == actors
    assert driver.reported.since(0)[0][-1].line.endswith("going on with 2 of 4 actors")


class Nowhere:
    """A reservation whose node is gone for good."""

    def options(self, actor: int) -> dict[str, Any]:
        return {"resources": {"a node that is gone": 1}}

    def release(self) -> None:
        pass


@pytest.mark.long
@pytest.mark.parametrize(("was_open", "error"), [(True, StateLost), (False, UserError)])
def test_the_last_actor_without_a_place_sends_a_run_back_but_a_start_to_the_user(
    was_open: bool, error: type[Exception], ray_session: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "START_S", 1.0)
    nowhere: Any = Nowhere()
    pool = Pool(Plan(1, cpus=0.5, gpus=0.0, threads=1, strategy="PACK"), nowhere)
    pool.opened = was_open
    with pytest.raises(error, match="within 1 s"):
        pool.open(lambda: (None,) * 5, lambda line: None)  # nobody will read them
    pool.close()


HALF = [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}]  # all four fit on what there is


@pytest.mark.parametrize(
    ("free", "actors"),
    [
        ([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 0.0, "GPU": 1.0}], 2),  # others hold the CPUs of one node
        ([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 0.5}], 3),  # half of a GPU is left
        ([{"CPU": 8.0, "GPU": 0.4}, {"CPU": 1.0, "GPU": 0.9}], 1),
        ([{"CPU": 8.0}, {}], 1),  # none is free: one is waited for
        (HALF, 3),  # they were waited for in vain, whatever is free now
    ],
)
def test_what_is_left_of_a_cluster_that_others_use_is_what_is_free(free: list[dict[str, float]], actors: int) -> None:
    left = what_is_left(FOUR, ResourcesConfig(actors=4), HALF, free)
    assert (left.actors, left.cpus, left.gpus) == (actors, 1.0, 0.5)


def test_a_run_under_way_shrinks_until_it_has_a_place_or_even_one_actor_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def reserved(plan: Plan, wait_s: float, name: str, say: Any, stopping: Any) -> Reservation:
        asked.append(plan.actors)
        if plan.actors > most:
            raise UserError("resources.wait_s: waited 9 s")
        return Reservation(None)

    monkeypatch.setattr(module, "reserve", reserved)
    monkeypatch.setattr(module, "living_nodes", lambda: HALF)
    monkeypatch.setattr(module, "free_nodes", lambda: [{"CPU": 8.0, "GPU": 1.5}, {"CPU": 1.0}])  # two halves, not 1.5
    order: Any = type("Order", (), {"config": tiny("fedsimclr", resources__wait_s=9), "group": "a"})
    for most, expected in ((2, [4, 3, 2]), (0, [4, 3, 2, 1])):
        driver = Driver.__new__(Driver)
        driver.order, driver.plan, driver.under_way, driver.reported = order, FOUR, True, ProgressLog()
        driver.stop_wanted = threading.Event()
        asked.clear()
        if most:
            driver.reserve_bundles(order.config)
            assert driver.plan.actors == most
        else:
            with pytest.raises(UserError, match="waited 9 s"):
                driver.reserve_bundles(order.config)
        assert asked == expected


def test_free_nodes_are_what_nobody_has_taken(ray_session: ModuleType) -> None:
    def cpus() -> float:
        return sum(node.get("CPU", 0.0) for node in plans.free_nodes())

    assert until(lambda: cpus() == 4.0, 60)
    held = reserve(Plan(1, cpus=3.0, gpus=0.0, threads=1, strategy="PACK"), 30)
    assert until(lambda: cpus() == 1.0, 60)
    left = what_is_left(Plan(4, 1.0, 0.0, 1, "PACK"), ResourcesConfig(), plans.living_nodes(), plans.free_nodes())
    assert left.actors == 1
    held.release()


class Looked:
    """A driver whose answers are written down: each is an update for the round asked since, or nothing in time."""

    def __init__(self, *answers: tuple[int, Update | None]) -> None:
        self.answers = list(answers)

    def look(self, driver: Any, since: int) -> Update | None:
        expected, update = self.answers.pop(0)
        assert since == expected
        return update


def test_a_restarted_drivers_first_lines_are_not_lost_to_a_look_that_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three, four = (Progress(n, 9, f"round {n}/9") for n in (1, 2, 3, 4))
    looks = Looked(
        (0, Update("first", [one, two], 2, "running")),
        (2, Update("second", [], 1, "running")),  # its list has one line so far, so there is nothing since the second
        (0, None),
        (0, None),  # not what the first one had told: the second would take its own lines for known
        (0, Update("second", [two, three, four], 3, "running")),
        (3, Update("second", [], 3, "done")),
    )
    monkeypatch.setattr(following, "look", looks.look)
    monkeypatch.setattr(following, "POLL_S", 0.0)
    seen: list[Progress] = []
    driver: Any = None
    assert following.follow(driver, seen.append).status == "done"
    assert seen == [one, two, two, three, four]
    assert looks.answers == []
