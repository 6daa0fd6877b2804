"""The driver's actor in the form that Ray starts. It starts its client actors before it imports anything itself, so
that all of them import at the same time, and images are read meanwhile. They belong to the driver and end with it.
"""

from __future__ import annotations

import gc
import os
import pickle
from typing import Any

from actors.client_process import begin
from actors.ending import end_at_sigterm
from actors.shares import Plan, restarted
from rayfed_ssl.base.lazy import importing


class DriverProcess:
    """The process of a :class:`actors.driver.Driver`, whose methods these are.

    Args:
        variables: the variables of its environment.
        early: the plan and the name of its placement group, to start client actors before anything is imported; None
            for the successor of a driver that died, which first checks what is left.
        order: the pickled :class:`actors.driver.RunOrder`; reading it imports all of its classes.
    """

    def __init__(self, variables: dict[str, str], early: tuple[Plan, str] | None, order: bytes) -> None:
        end_at_sigterm()
        os.environ.update(variables)
        begun = None
        if early is not None and not restarted():
            begun = begin(*early)
        with importing():
            from actors.driver import Driver
        gc.freeze()  # later collections leave alone what was imported
        self.driver = Driver(pickle.loads(order), begun)

    def run(self) -> Any:
        return self.driver.run()

    def progress(self, since: int = 0) -> Any:
        return self.driver.progress(since)

    def state(self) -> tuple[str, int]:
        return self.driver.state()

    def stop(self) -> str | None:
        return self.driver.stop()

    def target(self) -> tuple[str, int]:
        return self.driver.target()
