"""Text that came from outside, made fit for one line of a message or a table."""

from __future__ import annotations

LIMIT = 240


def printable(text: object, limit: int = LIMIT) -> str:
    r"""``text`` without anything that a terminal would act on, at most ``limit`` characters long.

    Control and formatting characters and bytes that are not UTF-8 (``os.fsdecode`` keeps them as surrogates) are
    written as ``\x1b``; of longer text the middle is left out.
    """
    shown = "".join(character if character.isprintable() else _escaped(character) for character in str(text))
    if len(shown) <= limit:
        return shown
    head = limit // 3
    return f"{shown[:head]}...{shown[len(shown) - (limit - head - 3) :]}"


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
