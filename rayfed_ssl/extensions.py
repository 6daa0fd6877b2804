"""A run's ``imports``: files and modules of the user that add methods, objectives, encoders, partitions and more.

    imports: [my_method.py]            # a path, relative to the config's folder; for 'imports=[..]' on the command
                                       # line, or imports=[..] in a call, relative to the working folder
    imports: [my_package.methods]      # an installed module

Such a module defines what it adds under the names of the tables: ``METHODS = {"mine": Method(...)}``, ``OBJECTIVES``,
``HEADS``, ``ENCODERS``, ``SOURCES``, ``PARTITIONS``, ``PROTOCOLS``. The source of a file is pickled with the run's
config, so every process that unpickles the config has the module, such as a driver or a client actor on another
machine. A run folder has a copy of the file beside its config.yaml.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import linecache
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.table import Table
from rayfed_ssl.data.partition import PARTITIONS
from rayfed_ssl.data.sources import SOURCES
from rayfed_ssl.evaluation import PROTOCOLS
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import ENCODERS, HEADS
from rayfed_ssl.objectives import OBJECTIVES

TABLES: dict[str, Table[Any]] = {
    "METHODS": METHODS,
    "OBJECTIVES": OBJECTIVES,
    "HEADS": HEADS,
    "ENCODERS": ENCODERS,
    "SOURCES": SOURCES,
    "PARTITIONS": PARTITIONS,
    "PROTOCOLS": PROTOCOLS,
}
_PYDANTIC = re.compile(r"\s+For further information visit \S+")  # ends its messages
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
loaded: dict[str, Extension] = {}  # name -> what this process has added to the tables


@dataclass(frozen=True)
class Extension:
    """One entry of ``imports``: its name as in the run's config.yaml, the digest of its source, and for a file the
    source itself.
    """

    name: str
    digest: str
    source: str | None = None

    @property
    def module(self) -> str:
        """The module's name in this process. For a file, it differs between versions of the file."""
        if self.source is None:
            return self.name
        stem = re.sub(r"\W", "_", Path(self.name).stem)
        return f"rayfed_ssl_imports.{stem}_{self.digest[:12]}"

    @property
    def origin(self) -> str:
        """How messages name the entry."""
        return f"imports: {self.name}"


def gather(entries: object, beside: Path) -> tuple[Extension, ...]:
    """Read the entries of ``imports`` without running them. Paths are relative to ``beside``, the config's folder.

    Raises:
        UserError: this is no list of paths and modules, a file cannot be read, a module is not installed, or a name
            stands twice.
    """
    if entries is None:
        return ()
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
        raise UserError(f"imports: found {entries!r}; must be a list of .py files and modules")
    gathered = tuple(_file(entry, beside) if entry.endswith(".py") else _module(entry) for entry in entries)
    names = [extension.name for extension in gathered]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"imports: found {', '.join(twice)} twice; each name once, also in different folders")
    return gathered


def _file(entry: str, beside: Path) -> Extension:
    path = beside / Path(entry).expanduser()
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"imports: found {entry!r}; {path} cannot be read ({reason})") from None
    return Extension(path.name, hashlib.sha256(source.encode()).hexdigest(), source)


def _module(entry: str) -> Extension:
    if not _MODULE.fullmatch(entry):
        raise UserError(f"imports: found {entry!r}; must be a path that ends in .py, or the name of a module")
    try:
        spec = importlib.util.find_spec(entry)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise UserError(f"imports: found {entry!r}; no module of that name is installed (a file's name ends in .py)")
    return Extension(entry, hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest())


def load(extensions: Iterable[Extension]) -> None:
    """Run each module, once per process, and add what it defines to the tables. A new version replaces the old one.

    Raises:
        UserError: a module raises, defines nothing for any table, or defines a name that is taken.
    """
    for extension in extensions:
        known = loaded.get(extension.name)
        if known == extension:
            continue
        if known is not None:
            unload(known)
            sys.modules.pop(known.module, None)  # so that an installed module is imported again from its new source
        rows = _rows(_executed(extension), extension)
        try:
            for table, found in rows:
                for name, row in found.items():
                    table.add(name, row, extension.origin)
        except BaseException:
            unload(extension)
            raise
        loaded[extension.name] = extension


def _rows(module: ModuleType, extension: Extension) -> list[tuple[Table[Any], Mapping[str, Any]]]:
    """The rows that a module defines for each table. Raises UserError if they are no mapping of names, or if there are
    none at all.
    """
    found = [(name, table, getattr(module, name, {})) for name, table in TABLES.items()]
    for name, _, rows in found:
        if not isinstance(rows, Mapping) or not all(isinstance(key, str) for key in rows):
            raise UserError(f"{extension.origin}: found {name} of type {type(rows).__name__}; must be a dict of names")
    if not any(rows for _, _, rows in found):
        raise UserError(f"{extension.origin}: defines none of {', '.join(TABLES)}; there is nothing to import")
    return [(table, rows) for _, table, rows in found]


def unload(extension: Extension) -> None:
    """Remove the rows that the extension added from the tables."""
    for table in TABLES.values():
        table.remove(extension.origin)
    loaded.pop(extension.name, None)


def _executed(extension: Extension) -> ModuleType:
    """Run the module and return it. Raises UserError, with the line of the module that raised."""
    try:
        if extension.source is None:
            importlib.invalidate_caches()
            return importlib.import_module(extension.name)
        module = ModuleType(extension.module)
        place = f"<{extension.name} {extension.digest[:12]}>"
        module.__file__ = place
        linecache.cache[place] = (len(extension.source), None, extension.source.splitlines(True), place)
        sys.modules[extension.module] = module
        exec(compile(extension.source, place, "exec"), module.__dict__)
    except Exception as error:
        sys.modules.pop(extension.module, None)
        line = _line_of(error, extension)
        said = " ".join(_PYDANTIC.sub("", f"{type(error).__name__}: {error}").split())
        raise UserError(f"{extension.origin}: cannot be imported{line} ({said})") from error
    return module


def _line_of(error: BaseException, extension: Extension) -> str:
    """``, line 3``: the last line of the extension in the error's traceback; empty if there is none."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f", line {error.lineno}"
    line, trace = 0, error.__traceback__
    while trace is not None:
        if extension.name in trace.tb_frame.f_code.co_filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f", line {line}" if line else ""


def save(extensions: Sequence[Extension], folder: Path) -> None:
    """Write copies of the files among ``extensions`` beside the run's config.yaml.

    Raises:
        UserError: another file of that name is there.
        OSError: the disk is full, or nothing may be written there.
    """
    copies = {folder / one.name: one.source.encode() for one in extensions if one.source is not None}
    for path, source in copies.items():
        if path.exists() and path.read_bytes() != source:
            raise UserError(f"--out: {path} is not the file that imports names, and a run would write over it")
    for path, source in copies.items():
        path.write_bytes(source)


def digests(extensions: Iterable[Extension]) -> dict[str, str]:
    """Name -> digest, for a run's records and to compare versions."""
    return {extension.name: extension.digest for extension in extensions}


def refuse_other(now: Sequence[Extension], folder: Path, entries: object) -> None:
    """Raise UserError if the imports of a run folder (``entries``) differ from those of ``now``. Runs no code."""
    before, after = digests(gather(entries, folder)), digests(now)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        raise UserError(
            f"{folder}: cannot resume with other imports: {', '.join(changed)} differs from what the run began with"
        )
