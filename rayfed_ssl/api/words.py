"""Mistakes in the words of a Python call: the library's messages name the command line's options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rayfed_ssl.base.schema import UserError

ARGUMENTS = {
    "--out": "out", "--resume": "resume=True", "--executor": "executor", "--base": "base", "--seeds": "seeds",
    "--client": "client", "--data": "data", "--round": "round", "--protocol": "protocols",
    "--select": "select", "--skip-unfit": "skip_unfit=True", "--trust-imports": "trust_imports=True",
}  # fmt: skip
_OPTION = re.compile("|".join(rf"{option}\b" for option in ARGUMENTS))


@contextmanager
def python_words() -> Iterator[None]:
    """A UserError that names options of the command line names the arguments of a call instead."""
    try:
        yield
    except UserError as error:
        raise UserError(_OPTION.sub(lambda found: ARGUMENTS[found[0]], str(error))) from error.__cause__
