"""Rewrites error messages for Python calls, because the library's messages name command-line options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rayfed_ssl.base.schema import UserError

ARGUMENTS = {
    "--out": "out", "--resume": "resume=True", "--executor": "executor", "--base": "base", "--seeds": "seeds",
    "--client": "client", "--data": "data", "--round": "round", "--protocol": "protocols",
    "--select": "select", "--skip-unfit": "skip_unfit=True", "--trust-imports": "trust_imports=True",
    "--to": "to", "--license": "license", "--id": "id_column", "--skip-bad": "skip_bad=True",
    "--overwrite": "overwrite=True", "--exclude-trained": "exclude_trained=True",
}  # fmt: skip
_NAMES = "|".join(map(re.escape, ARGUMENTS))
_OPTION = re.compile(rf"""(?:^|(?<=[\s"'`(]))(?:{_NAMES})(?![\w-])""", re.MULTILINE)  # not within a path
_FORM = re.compile(r"^--to ([\w-]+)(?=:)")


@contextmanager
def python_words() -> Iterator[None]:
    """Rewrites a UserError that is raised within this context, in place: it names the arguments of a call instead of
    the options of the command line.
    """
    try:
        yield
    except UserError as error:
        error.args = tuple(in_python_words(part) if isinstance(part, str) else part for part in error.args)
        raise


def in_python_words(text: str) -> str:
    """``text`` with a call's arguments in place of options. Paths are not changed."""
    return _OPTION.sub(lambda found: ARGUMENTS[found[0]], _FORM.sub(r"to='\1'", text))
