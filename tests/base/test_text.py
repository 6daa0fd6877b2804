"""Text from outside in one printable line."""

from __future__ import annotations

import math
import os
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayfed_ssl.base.text import (
    amount,
    bounded,
    bounds,
    first_line,
    four_digits,
    fraction,
    in_one_line,
    printable,
    signed,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Ünïcode 图", "plain Ünïcode 图"),
        ("\x1b[31m red\n", "\\x1b[31m red\\n"),
        (os.fsdecode(b"\xff.png"), "\\xff.png"),
        ("\ud800", "\\ud800"),
        ("a\u202egnp.exe", "a\\u202egnp.exe"),  # right-to-left override
        (7, "7"),
    ],
)
def test_only_what_a_terminal_does_not_act_on(text, shown):
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_long_text_keeps_both_ends():
    shown = printable("a" * 500 + "z" * 500, 50)
    assert len(shown) == 50
    assert shown.startswith("a" * 16)
    assert shown.endswith("z" * 31)
    assert printable("b" * 50, 50) == "b" * 50


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1 kB"), (19_654_321, "19.7 MB"), (999_499, "999 kB"), (999_501, "1 MB"),
        (2.5e11, "250 GB"), (1.5e12, "1.5 TB"), (9.996e14, "1,000 TB"), (2.5e16, "25,000 TB"),
    ],
)  # fmt: skip
def test_bytes_have_three_digits_and_a_unit_that_they_do_not_overflow(count, words):
    assert amount(count) == words


@given(st.floats(1e-9, 1e9), st.integers(2, 6))
def test_an_upper_bound_that_is_shown_is_one_and_the_smallest_of_so_many_digits(bound, digits):
    shown = Fraction(bounded(bound, digits))
    step = Fraction(10) ** (Decimal(bounded(bound, digits)).adjusted() - digits + 1)
    assert shown - step < Fraction(bound) <= shown


@pytest.mark.parametrize(
    ("bound", "words"),
    [(3.1401, "3.141"), (0.99991, "1"), (12345.1, "1.235e+04"), (0.0, "0"), (7.0, "7"), (math.inf, "inf")],
)
def test_an_upper_bound_in_four_digits(bound, words):
    assert bounded(bound) == words


@pytest.mark.parametrize(
    ("difference", "form", "words"),
    [
        (0.0124, ".3f", "+0.012"), (-0.0124, ".3f", "-0.012"), (-0.0004, ".3f", "0.000"), (0.0004, ".3f", "0.000"),
        (-0.0, ".3f", "0.000"), (-0.0006, ".3f", "-0.001"), (-0.4, ".0f", "0"), (-1234.4, ",.0f", "-1,234"),
        (-0.00012, ".3g", "-0.00012"), (-0.0, ".3g", "0"), (math.nan, ".3f", "+nan"),
    ],
)  # fmt: skip
def test_a_difference_has_a_sign_unless_it_is_shown_as_zero(difference, form, words):
    assert signed(difference, form) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.85, "0.850"), (0.9994, "0.999"), (0.99984, ">.999"), (1.0, "1.000"), (1.0002, "1.000"), (0.0, "0.000"),
        (0.00016, "<.001"), (0.0006, "0.001"), (-0.0002, "0.000"), (1e-17, "0.000"), (1 - 1e-16, "1.000"),
    ],
)  # fmt: skip
def test_an_accuracy_is_shown_as_nothing_or_all_only_where_it_is(value: float, words: str) -> None:
    assert fraction(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.99996, ">.9999"), (0.99994, "0.9999"), (1.0, "1"), (1 - 1e-16, "1"), (1.00002, "1"), (0.8, "0.8"),
        (0.00004, "4e-05"), (-0.00123456, "-0.001235"), (63.0, "63"), (1234.5, "1234"),
    ],
)  # fmt: skip
def test_four_digits_of_what_is_below_1_do_not_say_1(value: float, words: str) -> None:
    assert four_digits(value) == words


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.0124, 0.03, "[-0.012, +0.030]"),
        (-0.025, -0.0003, "[-0.0250, -0.0003]"),  # which side of zero it lies on is what it is read for
        (0.00001, 0.02, "[+0.00001, +0.02000]"),
        (0.0, 0.02, "[0.000, +0.020]"),
        (-1e-17, 1e-17, "[0.000, 0.000]"),  # what rounding leaves of nothing
        (-1e-17, 0.0003, "[0.0000, +0.0003]"),
    ],
)
def test_a_bound_is_shown_as_zero_only_where_it_is(low, high, words):
    assert bounds(low, high) == words


def test_the_first_line_of_an_error_or_its_name():
    assert first_line(ValueError("\n one \n two")) == "one "
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_an_error_in_one_line_or_its_name() -> None:
    assert in_one_line(ValueError(" two\n  lines \x1b[31m")) == "two lines \\x1b[31m"
    assert in_one_line(AssertionError()) == "AssertionError"
    assert in_one_line(OSError("x" * 300), 20) == "xxxxxx...xxxxxxxxxxx"
