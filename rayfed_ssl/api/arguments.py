"""Checks the arguments of a Python call before anything begins. A mistake is one line that names the argument."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

import numpy as np

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable

Place = str | os.PathLike[str]
Images = Place | Mapping[str, object]
"""A data set: one word, as on the command line, or a mapping of keys."""


def as_text(value: object, name: str, allowed: str) -> str:
    """A path or a name as text. Raises UserError if ``value`` is neither, such as None or the empty text of an unset
    variable; ``allowed`` says what it must be.
    """
    if not isinstance(value, str | os.PathLike) or not str(os.fspath(value)):
        raise _other(value, name, allowed)
    return str(os.fspath(value))


def in_one_word(data: Images) -> str:
    """A data set as the command line names it. Raises UserError if ``data`` is neither a path nor a mapping."""
    if isinstance(data, Mapping):
        return json.dumps(dict(data), default=str, ensure_ascii=False)
    return as_text(data, "data", "a folder, a file, hub:OWNER/NAME, or a mapping of keys")


def check_flag(value: object, name: str) -> None:
    """Raise UserError if ``value`` is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise _other(value, name, "True or False")


def check_count(value: object, name: str) -> None:
    """Raise UserError if ``value`` is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _other(value, name, "a whole number")


def check_callable(value: Callable[..., object] | None, name: str) -> None:
    """Raise UserError if ``value`` is neither callable nor None."""
    if value is not None and not callable(value):
        raise _other(value, name, "a function, or None")


def _other(value: object, name: str, allowed: str) -> UserError:
    return UserError(f"{name}: found {printable(repr(value), 80)}; must be {allowed}")
