"""How many clients a fraction of them is."""

from __future__ import annotations

import pytest

from tests.tiny import tiny


@pytest.mark.parametrize(
    ("fraction", "clients", "wanted"),
    [(0.5, 5, 2), (0.5, 7, 4), (0.3, 5, 2), (0.5, 4, 2), (0.35, 4, 1), (0.01, 4, 1), (1.0, 9, 9)],
)
def test_a_fraction_is_rounded_halves_to_the_even_number_and_is_somebody(
    fraction: float, clients: int, wanted: int
) -> None:
    assert tiny("fedavg", participation__fraction=fraction).participants(clients) == wanted
