"""``rayfed-ssl new``: writes a first version of a user's own method, plug-in and so on, and its test."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
from pathlib import Path
from shlex import quote
from string import Template
from typing import Annotated

import typer

from rayfed_ssl.base.user_error import UserError
from rayfed_ssl.commands.templates import STARTERS, Kind

NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")


def new(
    kind: Annotated[Kind, typer.Argument(help="What to begin.")],
    name: Annotated[str, typer.Argument(help="Its name in configurations: letters, digits and _.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path(),
) -> None:
    """Write NAME.py, a whole file to change, and test_NAME.py, its test. Files that exist are never written over."""
    file, test = begin(kind, name, out.expanduser())
    use = Template(STARTERS[kind].run).substitute(name=name)
    print(f"{kind.ljust(9)}  {file}")
    print(f"test       {test}")
    path = str(file.absolute())
    entry = path if re.fullmatch(r"[\w./ -]+", path) else json.dumps(path, ensure_ascii=False)  # as YAML reads it
    print(f"run it     rayfed-ssl run CONFIG.yaml {quote(f'imports=[{entry}]')} {use}")
    print(f"test it    pytest {quote(str(test))}")


def begin(kind: Kind, name: str, folder: Path) -> tuple[Path, Path]:
    """Write ``NAME.py`` and ``test_NAME.py`` into ``folder``, which is made if it is missing; returns both paths.

    Raises:
        UserError: the name is not allowed or is taken, a file exists, or the folder cannot be written to.
    """
    if not NAME.fullmatch(name):
        raise UserError(f"NAME: found {name!r}; must be lower-case letters, digits and _, a letter first, at most 60")
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise UserError(f"NAME: found {name!r}, a word of Python's own; must be another name")
    from rayfed_ssl.extensions import TABLES  # imports torch, which is slow; the mistakes above are found without it

    if name in TABLES[STARTERS[kind].table]:
        article = "an" if kind[0] in "aeiou" else "a"
        raise UserError(f"NAME: found {name!r}, which is {article} {kind} already; must be a new name")
    paths = folder / f"{name}.py", folder / f"test_{name}.py"
    for path in paths:
        if path.exists() or path.is_symlink():
            raise UserError(f"{path}: found a file, which is not written over; choose another NAME, or another --out")
    if importlib.util.find_spec(name) is not None:
        raise UserError(f"NAME: found {name!r}, a Python module that {name}.py would hide; must be another name")
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, STARTERS[kind].files(name), strict=True):
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UserError(f"--out: cannot write to {folder} ({error.strerror}); name a folder you may write to") from None
    return paths
