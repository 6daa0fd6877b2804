"""Text from outside in one printable line."""

from __future__ import annotations

import os

import pytest

from rayfed_ssl.base.text import amount, first_line, in_one_line, printable


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


def test_the_first_line_of_an_error_or_its_name():
    assert first_line(ValueError("\n one \n two")) == "one "
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_an_error_in_one_line_or_its_name() -> None:
    assert in_one_line(ValueError(" two\n  lines \x1b[31m")) == "two lines \\x1b[31m"
    assert in_one_line(AssertionError()) == "AssertionError"
    assert in_one_line(OSError("x" * 300), 20) == "xxxxxx...xxxxxxxxxxx"
