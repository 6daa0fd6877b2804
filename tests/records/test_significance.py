"""What a difference is called by its interval."""

from __future__ import annotations

import pytest

from rayfed_ssl.records.comparison import difference
from rayfed_ssl.records.significance import margin_of


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        ([0.1, 0.11, 0.12], "above"),
        ([-0.2, -0.21, -0.19], "below"),
        ([-0.3, 0.1, 0.2], "not told apart"),
        ([0.001, -0.001], "not told apart"),  # +- 0.013: two seeds show little, however near
        ([0.001, -0.001, 0.0], "level"),  # +- 0.0025
        ([0.0, 0.0], None),  # alike by chance, or because nothing differs: seeds do not say
        ([0.1, 0.1, 0.1], None),
        ([0.1], None),
    ],
)
def test_level_is_an_interval_near_zero_and_not_only_one_that_holds_it(pairs: list[float], word: str | None) -> None:
    found = difference(pairs)
    assert found is not None
    assert found.judged() == word
    unit = found.judged(margin_of("features/rankme"))
    assert unit == ("not told apart" if word == "level" else word)  # of what has no unit none is level, not even zero
