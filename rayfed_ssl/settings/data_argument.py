"""Turns a command's DATA argument, which names a data set in one word, into the ``data`` block that reads it.

digits                     a source that needs no path, by its name: digits, cifar10, ..
/data/scans  x.parquet     a folder of images; a Parquet file, or a folder with Parquet files
x.csv  x.jsonl             a table that names images
x.npz                      NumPy's arrays, also a folder with .npy files of images
hub:OWNER/NAME             a source and its path
"{name: parquet, path: x.parquet, columns: {label: disease}}"      a block as in a run's YAML
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rayfed_ssl.base.schema import Block, UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.decoding.formats import SUFFIXES
from rayfed_ssl.data.readers.arrays.names import holds_images
from rayfed_ssl.data.readers.column_values import Unnamed
from rayfed_ssl.data.readers.walking import ARRAYS, READ_TABLES
from rayfed_ssl.data.sources import SOURCES, SourceConfig
from rayfed_ssl.settings.files import validate
from rayfed_ssl.settings.plain_yaml import parse, problem

PARQUET = ("*.parquet", "data/*.parquet", "*/*.parquet")
LAYOUT_SET = re.compile(r"\bdata\.layout=(\w+)")  # an advice in a note
NEED_A_PATH = frozenset({"parquet", "imagefolder", "hub", "table", "arrays"})


class _Argument(Block):
    data: SourceConfig


def parse_data_argument(text: str, key: str = "data") -> SourceConfig:
    """The block that reads the data set that ``text`` names. Only names of files are read.

    Args:
        key: begins the lines of errors.
    Raises:
        UserError: there is no such source, file or folder, or the block has a mistake.
    """
    text = text.strip()
    if text.startswith("{"):
        try:
            block = parse(text)
        except yaml.YAMLError as error:
            raise UserError(f"{key}: found {printable(text)!r}; must be YAML ({problem(error)})") from None
    else:
        block = _block(text, key)
    return validate(_Argument, {"data": block}, origin=key).data


def parse_data_argument_of_run(text: str, own: SourceConfig, key: str = "data") -> SourceConfig:
    """Like :func:`parse_data_argument`, except if ``text`` names the place of a run's own images: these are read with
    the run's block ``own``, which knows their columns and folders.
    """
    return _if_own(text.strip(), own) or parse_data_argument(text, key)


def _if_own(text: str, own: SourceConfig) -> SourceConfig | None:
    """The run's block ``own`` if ``text`` names its place, else None; also None if ``text`` is a block itself."""
    if own.path is None or text.startswith("{"):
        return None
    place = Path(text).expanduser()
    if own.name == "hub" or not place.exists():
        same = text == title(own)
    else:
        same = place.resolve() == Path(own.path).expanduser().resolve()
    keys = {name: getattr(own, name) for name in SourceConfig.model_fields}
    return SourceConfig(**keys) if same else None


def in_block(block: Mapping[str, Any]) -> str:
    """The block in one line, quoted for a shell."""
    text = yaml.safe_dump(dict(block), default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return shlex.quote(text.strip())


@contextlib.contextmanager
def columns_in_block(block: Mapping[str, Any], option: str = "") -> Iterator[None]:
    """Rewrites errors within this context that ask to name a column or to set a key (``data.layout``, ``data.range``).
    A command's data set has no keys, so the new error shows a block that sets them, after ``option``.

    Raises:
        UserError: replaces ``Unnamed``, and any error with ``to_set``.
    """
    try:
        yield
    except Unnamed as error:
        columns = {**block.get("columns", {}), **error.columns}
        raise UserError(
            f"{error.problem}{error.remedy}, as {option}{in_block({**block, 'columns': columns})}"
        ) from None
    except UserError as error:
        if error.to_set is None:
            raise
        how = in_block({**block, error.to_set: "VALUE"})
        raise UserError(f"{error}; here data.{error.to_set} stands in a block: {option}{how}") from None


def layout_in_block(note: str, block: Mapping[str, Any], option: str) -> str:
    """``note``, which says how folders were read, with a block after ``option`` in place of ``data.layout=VALUE``: a
    command's data set has no keys.
    """
    return LAYOUT_SET.sub(lambda found: f"{option}{in_block({**block, 'layout': found[1]})}", note)


def title(config: SourceConfig) -> str:
    """The data set in one word, as :func:`parse_data_argument` reads it: its source, and its path if it has one."""
    return config.name if config.path is None else f"{config.name}:{config.path}"


def _block(text: str, key: str) -> dict[str, str]:
    """The keys of the block for a text that is no block itself. Raises UserError."""
    name, colon, rest = text.partition(":")
    path = os.path.expanduser(text)
    if os.path.isfile(path):
        if Path(path).suffix.lower() in SUFFIXES:
            raise UserError(f"{key}: found the image {printable(text)!r}; must be a data set: give its folder")
        suffix = Path(path).suffix.lower()
        return {"name": "arrays" if suffix in ARRAYS else "table" if suffix in READ_TABLES else "parquet", "path": text}
    if os.path.isdir(path):
        holds_parquet = any(next(Path(path).glob(pattern), None) is not None for pattern in PARQUET)
        holds_arrays = holds_images(file.stem for file in Path(path).glob("*.npy"))
        return {"name": "parquet" if holds_parquet else "arrays" if holds_arrays else "imagefolder", "path": text}
    if colon and rest and name in SOURCES:
        return {"name": name, "path": rest}
    if text in SOURCES and text not in NEED_A_PATH:
        return {"name": text}
    named = ", ".join(name for name in SOURCES if name not in NEED_A_PATH)
    raise UserError(
        f"{key}: found {printable(text)!r}, which does not exist (seen from {Path.cwd()}); must be a folder of images, "
        f"a Parquet, .csv, .jsonl or .npz file, one of {named}, SOURCE:PATH such as hub:OWNER/NAME, or a block "
        "{name: .., path: ..}"
    )
