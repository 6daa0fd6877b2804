"""When a run whose failed clients are left out (``on_client_error: drop``) gives up.

A round in which every client asked failed comes to nothing, and the next one asks others. One client that always fails
must not end a run, however often it is drawn. So what counts is how many different clients have failed since one last
succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

ROUNDS = 3  # rounds in a row, and more of them until as many different clients have failed
CLIENTS = 10  # or all there are


class FailurePolicy:
    """Counts the rounds in a row in which every client failed. Checkpoints keep ``state``.

    Args:
        clients: how many the federation has.
    """

    def __init__(self, clients: int) -> None:
        self.least_clients = min(clients, CLIENTS)
        self.rounds = 0
        self.clients: set[int] = set()  # who failed in them
        self.success = False  # whether any client ever did what it was asked

    @property
    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "clients": sorted(self.clients), "success": self.success}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        self.rounds, self.clients, self.success = state["rounds"], set(state["clients"]), state["success"]

    def succeeded(self) -> None:
        """Note a round in which some client succeeded: counting starts again."""
        self.rounds, self.success = 0, True
        self.clients.clear()

    def failed(self, clients: Iterable[int], *, last: bool) -> bool:
        """Whether a round in which all these clients failed is one too many: enough rounds and clients in a row, or the
        last round of a run in which nobody has ever succeeded.
        """
        self.rounds += 1
        self.clients.update(clients)
        many = self.rounds >= ROUNDS and len(self.clients) >= self.least_clients
        return many or (last and not self.success)

    @property
    def reason(self) -> str:
        """``3 rounds in a row came to nothing, 4 different clients failed and none succeeded: the run gives up``."""
        row = "1 round" if self.rounds == 1 else f"{self.rounds} rounds in a row"
        who = "1 client" if len(self.clients) == 1 else f"{len(self.clients)} different clients"
        return f"{row} came to nothing, {who} failed and none succeeded: the run gives up"
