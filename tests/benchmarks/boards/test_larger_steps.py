"""The board of servers' and clients' steps against the main one."""

from __future__ import annotations

from typing import Any

import pytest
from boards import rows

BOARD, STEPS = rows.load_board(), rows.load_board(rows.SERVER_STEPS)
UNION = "centralized_equal_steps"


def built(board: Any, data: str, method: str) -> dict[str, Any]:
    (cell,) = rows.cells(board, [data], ["dirichlet"], [0], [method])
    found: dict[str, Any] = cell.built(rows.NOWHERE).model_dump()
    return found


@pytest.mark.parametrize("data", STEPS["data"])
@pytest.mark.parametrize("method", [name for name in STEPS["methods"] if name != UNION])
def test_a_row_differs_from_fedsimclr_by_one_step_alone(data: str, method: str) -> None:
    """By the server's optimiser, the clients' learning rate, or what clients keep: all else is the same."""
    one, two = built(BOARD, data, rows.REFERENCE), built(STEPS, data, method)
    pairs = [[found["server"].pop("optimizer") for found in (one, two)]]
    pairs += [[found["train"]["optimizer"].pop(key) for found in (one, two)] for key in ("lr", "keep")]
    assert one == two
    assert [a != b for a, b in pairs].count(True) == (method != rows.REFERENCE)


def test_names_say_how_many_times() -> None:
    whole = built(BOARD, "cifar10", rows.REFERENCE)["train"]["optimizer"]["lr"]
    assert built(STEPS, "cifar10", "client_lr_2")["train"]["optimizer"]["lr"] == 2 * whole
    assert built(STEPS, "cifar10", "step_2")["server"]["optimizer"] == {"name": "momentum", "lr": 2, "momentum": 0}
    assert built(STEPS, "cifar10", "momentum_05")["server"]["optimizer"]["momentum"] == 0.5


@pytest.mark.parametrize("data", STEPS["data"])
def test_the_union_is_the_leaderboards(data: str) -> None:
    assert built(STEPS, data, UNION) == built(BOARD, data, UNION)
