"""Makes text from outside safe for one line of a message or a table, and formats counts, bytes and differences."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Context

LIMIT = 240
FILE_LIMIT = 40
FURTHER = 3  # at most so many further decimals are shown of a bound that is nearly zero
LEFT_BY_ROUNDING = 1e-7  # an accuracy so near to 0 or 1 is 0 or 1
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def printable(text: object, limit: int = LIMIT) -> str:
    r"""``text`` without characters that control a terminal, at most ``limit`` characters long.

    Control and formatting characters, and bytes that are not UTF-8 (``os.fsdecode`` keeps them as surrogates), are
    written as escapes such as ``\x1b``. The middle of a longer text is left out.
    """
    shown = "".join(character if character.isprintable() else _escaped(character) for character in str(text))
    if len(shown) <= limit:
        return shown
    head = limit // 3
    return f"{shown[:head]}...{shown[len(shown) - (limit - head - 3) :]}"


def as_utf8(name: str) -> str:
    """A file name as valid UTF-8: bytes that are not UTF-8 are written as escapes such as ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def composed(text: str) -> str:
    """``text`` in Unicode's normal form C, where an accented letter is one character. File names of macOS, for example,
    may have two.
    """
    return unicodedata.normalize("NFC", text)


def plural(count: int, one: str, many: str) -> str:
    """``count`` followed by the words for one or for many: "1 image is", "2 images are"."""
    return f"{count} {one if count == 1 else many}"


def in_file_name(text: str) -> str:
    """``text`` as part of a file name on any system: at most 40 ASCII letters, digits, ``_`` and ``-``. Accents are
    dropped, and all other characters become ``-``. Text without any allowed character gives "".
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9_]+", "-", plain).strip("-")[:FILE_LIMIT].rstrip("-")


def nearest(name: str, choices: Iterable[str], most: int = 3) -> str:
    """``; did you mean x, y?`` with the ``choices`` that are most like ``name``, at most ``most`` of them, whatever the
    case of letters; "" if none is similar.
    """
    written = {choice.casefold(): choice for choice in choices}
    near = difflib.get_close_matches(name.casefold(), written, n=most, cutoff=0.6)
    return f"; did you mean {', '.join(printable(written[one]) for one in near)}?" if near else ""


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def in_one_line(error: BaseException, limit: int = LIMIT) -> str:
    """An error's message in one ``printable`` line of at most ``limit`` characters; its class's name if it has none."""
    return printable(" ".join(str(error).split()) or type(error).__name__, limit)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its class's name if it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def last_line(trace: str) -> str:
    """The last line of a traceback that has text, which names the exception."""
    lines = [line.strip() for line in trace.split("\n") if line.strip(" ^~\r\t")]
    return lines[-1] if lines else "no reason given"


def listed(words: Sequence[str]) -> str:
    """The words as ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), *words[-1:]] if len(words) > 1 else words)


def bounded(bound: float, digits: int = 4) -> str:
    """An upper bound in ``digits`` significant digits: ``3.143``. It is rounded up, so the text is a bound, too."""
    up = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(bound)
    return f"{float(up):.{digits}g}"


def signed(difference: float, form: str = ".3f") -> str:
    """A difference with its sign, except if it is shown as zero: ``+0.012``, ``-0.001``, ``0.000``."""
    text = format(difference, f"+{form}")
    return text if float(text.replace(",", "")) else text[1:]


def fraction(value: float) -> str:
    """An accuracy with three decimals, without a sign for zero. A value that would be rounded to 0 or 1 but is neither
    is shown as ``<.001`` or ``>.999``, which have the same width.
    """
    text = f"{value:z.3f}"
    if text == "0.000" and value > LEFT_BY_ROUNDING:
        return "<.001"
    return ">.999" if text == "1.000" and 1 - value > LEFT_BY_ROUNDING else text


def four_digits(value: float) -> str:
    """A number in four significant digits; one below 1 that would be shown as 1, as of an accuracy, is ``>.9999``."""
    text = f"{value:.4g}"
    return ">.9999" if text == "1" and 1 - value > LEFT_BY_ROUNDING else text


def bounds(low: float, high: float, decimals: int = 3) -> str:
    """An interval as ``[-0.012, +0.030]``. It has more decimals if a bound that is not zero would be shown as zero."""
    least = 0.5 * 10 ** -(decimals + FURTHER)
    sizes = [abs(bound) for bound in (low, high) if abs(bound) >= least]
    while any(size < 0.5 * 10**-decimals for size in sizes):
        decimals += 1
    return f"[{signed(low, f'.{decimals}f')}, {signed(high, f'.{decimals}f')}]"


def amount(count: float) -> str:
    """A number of bytes in three significant digits with its unit: ``1.5 GB``."""
    for unit, name in UNITS:
        if count >= 0.9995 * unit:  # 0.9995 is rounded to 1.00
            return f"{count / unit:.3g} {name}" if count < 999.5 * unit else f"{count / unit:,.0f} {name}"
    return f"{count:.0f} B"
