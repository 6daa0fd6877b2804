"""Refuses a run before libraries are imported that take seconds, if the mistake can be found without them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_ssl.base.user_error import UserError
from rayfed_ssl.data.readers.places import existing_place
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.storage.claim import refuse_taken

SCHEMA = Path(__file__).parents[1] / "schemas" / "run.json"
READ_FROM_PATH = ("parquet", "imagefolder", "table", "arrays")  # sources that read ``data.path`` and nothing else


def refuse_early(config: Path, changes: Sequence[str], out: str | None, resume: bool) -> None:
    """Raise UserError if the folder holds a run that is not to be resumed, or if the images are not there."""
    if out is not None and "://" not in out:
        refuse_taken(Path(out).expanduser(), resume)
    if not resume:
        refuse_absent(config, changes)


def refuse_absent(config: Path, changes: Sequence[str]) -> None:
    """Raise UserError if the images of a run are not there, with a line before for each key that is wrong; also for a
    file that is no YAML, and for ``changes`` that cannot be parsed, as ``rayfed_ssl.config.load`` does.

    Nothing is refused if RAY_ADDRESS names a cluster, whose paths are its own, or if ``?`` asks what a key may be.
    """
    overrides = configfile.parse_overrides(changes)
    document = configfile.read(config)
    if os.environ.get("RAY_ADDRESS") or "?" in overrides.values():
        return
    profile = overrides.get("profile", document.get("profile"))
    merged = configfile.merge(configfile.overlay(document, None if profile is None else str(profile)), overrides)
    data = merged.get("data")
    if not isinstance(data, Mapping) or data.get("name") not in READ_FROM_PATH:
        return
    if isinstance(path := data.get("path"), str):
        try:
            existing_place(Path(path), str(data["name"]), "data")
        except UserError as absent:
            keys = "" if _fits_schema(merged) else _wrong_keys(config, changes)
            raise UserError("\n".join(filter(None, (keys, str(absent))))) from None


def _fits_schema(document: Mapping[str, Any]) -> bool:
    """Whether a config fits the schema that editors use, which does not know what ``imports`` add."""
    from jsonschema import Draft202012Validator  # takes a fraction of a second; torch and the loader take several

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return bool(Draft202012Validator(schema).is_valid(dict(document)))


def _wrong_keys(config: Path, changes: Sequence[str]) -> str:
    """The loader's lines on keys that are wrong; "" if it accepts the file after all."""
    from rayfed_ssl.config import load

    try:
        load(config, changes)
    except UserError as error:
        return str(error)
    return ""
