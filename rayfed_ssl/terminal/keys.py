"""Prints the keys of a schema: defaults, allowed values and meanings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rayfed_ssl.settings.keys import KIND, Key, first_sentence

WIDTH = 100


def overview(everything: Sequence[Key]) -> list[str]:
    """A line for every key and block at the top."""
    top = [key for key in everything if "." not in key.path and key.type != KIND]
    longest = max(len(key.path) for key in top)
    lines = [f"{key.path:<{longest}}  {key.sentence}" for key in top]
    return [
        *lines,
        "",
        "rayfed-ssl config KEY says more of a key, a block or a kind (method.fedca); --all of every key",
    ]


def explained(found: Sequence[Key], heading: object = None) -> list[str]:
    """Two or more lines for every key; a single key is explained in full. ``heading`` is the ``when`` of the kind that
    was listed before, if one was.
    """
    lines: list[str] = []
    for key in found:
        heading = key.when if key.type == KIND else heading
        lines += _lines(key, under=heading, whole=len(found) == 1)
    if blocks := dict.fromkeys(key.path for key in found if key.type == KIND and _alone(key, found)):
        lines.append(f"rayfed-ssl config {next(iter(blocks))}.NAME has the keys of each")
    return lines


def _alone(kind: Key, found: Sequence[Key]) -> bool:
    """Whether the kinds are listed without their keys."""
    return all(key.type == KIND for key in found if key.when)


def _lines(key: Key, *, under: object, whole: bool) -> Iterator[str]:
    """The lines of one key. ``under`` is the ``when`` of the kind below which it is listed."""
    indent = "    "
    if key.type == KIND:
        block, name = key.when[-1]
        yield f"{block}.name={name}"
    else:
        kinds = ", ".join(f"{block}.name={name}" for block, name in key.when)
        where = f"  (with {kinds})" if kinds and key.when != under else ""
        default = "" if key.default == {} else f": {key.default_text}"
        yield f"{key.path}{default}{where}"
        yield from _wrapped(f"{key.type}; {key.allowed}" if key.allowed else key.type, indent)
    yield from _wrapped(key.sentence, indent)
    if whole:
        for paragraph in _rest(key):
            yield from _wrapped(paragraph, indent)


def _rest(key: Key) -> list[str]:
    """The paragraphs of a key's text, without its first sentence."""
    first, *others = (" ".join(paragraph.split()) for paragraph in key.text.split("\n\n"))
    rest = first_sentence(first).rstrip(".")
    first = first.replace("``", "`")[len(rest) :].lstrip(". ")
    return [paragraph.replace("``", "`") for paragraph in (first, *others) if paragraph]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
