"""Placement groups that Tune asks for and cancels at once: what Ray reserved for them comes back."""

from __future__ import annotations

import time
from types import ModuleType

import pytest
from ray import PlacementGroupID
from ray.air.execution import ResourceRequest
from ray.tune.execution import tune_controller
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from actors.shares import await_scheduling, state
from tests.cluster.processes import until
from tune.groups import ScheduledGroups, scheduled_groups

pytestmark = pytest.mark.cluster


def test_no_bundle_is_lost_of_groups_that_are_cancelled_while_ray_places_them(ray_session: ModuleType) -> None:
    """Ray's own manager loses about one in sixty of these."""
    assert until(lambda: ray_session.available_resources().get("GPU") == 1.0, 60)
    manager, request = ScheduledGroups(), ResourceRequest([{"CPU": 0.001, "GPU": 0.001}])
    for number in range(300):
        manager.request_resources(resource_request=request)
        time.sleep(0.001 * (number % 4))
        manager.cancel_resource_request(request)
    for _ in range(5):
        manager.request_resources(resource_request=request)
    manager.clear()
    assert until(lambda: ray_session.available_resources().get("GPU") == 1.0, 20), ray_session.available_resources()


def test_what_is_waited_for_is_ray_s_decision_not_room(ray_session: ModuleType) -> None:
    """A group that fits, one that waits for others, one that never fits, and one that Ray knows no more."""
    assert until(lambda: ray_session.available_resources().get("GPU") == 1.0, 60)
    fits, waits, never = (placement_group([{"GPU": gpus}]) for gpus in (0.7, 0.6, 2))
    try:
        await_scheduling([fits, waits, never])
        assert [state(group) for group in (fits, waits, never)] == ["FINISHED", "NO_RESOURCES", "INFEASIBLE"]
    finally:
        for group in (fits, waits, never):
            remove_placement_group(group)
    assert state(PlacementGroup(PlacementGroupID.from_random())) == "REMOVED"


def test_tune_has_its_own_again() -> None:
    before = tune_controller.PlacementGroupResourceManager
    with scheduled_groups():
        assert tune_controller.PlacementGroupResourceManager is ScheduledGroups
    assert tune_controller.PlacementGroupResourceManager is before
