"""Makes sure that none of Tune's placement groups is removed while Ray is placing it.

Ray would lose what it reserved (:func:`actors.shares.await_scheduling`), and Tune removes groups within milliseconds of
asking, whenever a waiting trial can take over the process of a trial that is over or paused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import ray
from ray.air.execution import PlacementGroupResourceManager
from ray.tune.execution import tune_controller

from actors.shares import await_scheduling


class ScheduledGroups(PlacementGroupResourceManager):  # type: ignore[misc]
    """Removes a group only after Ray has placed it, or found no room for it."""

    def cancel_resource_request(self, resource_request: object) -> None:
        await_scheduling(self._request_to_staged_pgs[resource_request])
        super().cancel_resource_request(resource_request)

    def clear(self) -> None:
        for groups in self._request_to_staged_pgs.values() if ray.is_initialized() else ():
            await_scheduling(groups)
        super().clear()


@contextlib.contextmanager
def scheduled_groups() -> Iterator[None]:
    """A context in which Tune asks for its placement groups through :class:`ScheduledGroups`: no argument of Tune's
    sets the manager.
    """
    before = tune_controller.PlacementGroupResourceManager
    tune_controller.PlacementGroupResourceManager = ScheduledGroups
    try:
        yield
    finally:
        tune_controller.PlacementGroupResourceManager = before
