"""Data sets of the Hugging Face Hub that hold Parquet files (extra ``hub``).

``data.path`` is ``OWNER/NAME``, or ``OWNER/NAME/FOLDER`` if a repository holds several data sets. The Parquet files
are downloaded once into the cache's ``hub/`` folder and read by the source ``parquet``. ``data.revision`` is a branch,
tag or commit; data sets without Parquet files of their own have them at ``refs/convert/parquet``. ``HF_ENDPOINT`` and
``HF_TOKEN`` are respected.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import in_one_line, printable
from rayfed_ssl.data.images import Source
from rayfed_ssl.data.readers.columns import Columns
from rayfed_ssl.data.readers.parquet.source import parquet_source


def hub_source(
    name: str,
    revision: str | None,
    cache: Path,
    limits: dict[str, int | None],
    key: str,
    columns: Columns,
    test_split: str | None = None,
) -> Source:
    """The source of the repository ``name``, downloaded first unless the cache has that revision.

    Args:
        test_split: as in ``parquet_source``.
    Raises:
        UserError: the repository, revision or folder does not exist, has no Parquet files, is not accessible, or is not
            cached and there is no network; or the extra ``hub`` is not installed.
    """
    snapshot, where = hub_folder(name, revision, cache, key)
    source = parquet_source(where, limits, key, columns, shown=printable(name), test_split=test_split)
    return replace(source, notes=(f"{name} of the Hugging Face Hub at commit {snapshot.name}", *source.notes))


def hub_folder(name: str, revision: str | None, cache: Path, key: str) -> tuple[Path, Path]:
    """The folder of the newest commit of ``revision``, and the folder in it that holds the data set's Parquet files.
    Raises UserError as ``hub_source`` does.
    """
    owner_and_name, folder = _split_name(name, key)
    snapshot = _downloaded(owner_and_name, folder, revision, cache / "hub", key)
    where = snapshot.joinpath(*folder)
    if not where.is_dir() or not next(where.rglob("*.parquet"), None):
        raise UserError(
            f"{key}.path: {printable(name)} holds no Parquet files on the Hub; {key}.revision=refs/convert/parquet has "
            "them for many data sets"
        )
    return snapshot, where


def _split_name(name: str, key: str) -> tuple[str, tuple[str, ...]]:
    parts = name.split("/")
    if len(parts) < 2 or not all(part not in ("", ".", "..") for part in parts):
        raise UserError(f"{key}.path: found {printable(name)!r}; a data set of the Hub is OWNER/NAME")
    return "/".join(parts[:2]), tuple(parts[2:])


def _downloaded(name: str, folder: tuple[str, ...], revision: str | None, cache: Path, key: str) -> Path:
    """The folder in the cache of the newest commit of ``revision``, with its Parquet files."""
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise UserError(f"{key}.name: hub needs huggingface_hub; pip install 'rayfed-ssl[hub]'") from error
    disable_progress_bars()
    pattern = "/".join((*folder, "*.parquet"))  # the star crosses folders
    endpoint = os.environ.get("HF_ENDPOINT") or None
    try:
        snapshot = hub.snapshot_download(
            name, repo_type="dataset", revision=revision, cache_dir=cache, allow_patterns=[pattern], endpoint=endpoint
        )
    except GatedRepoError as error:
        raise UserError(f"{key}.path: {name} wants its terms accepted on the Hub, and HF_TOKEN set") from error
    except RepositoryNotFoundError as error:
        raise UserError(f"{key}.path: {name} is no data set of the Hub, or a private one (set HF_TOKEN)") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{key}.revision: found {printable(repr(revision))}; {name} has no such revision") from error
    except HFValidationError as error:
        raise UserError(f"{key}.path: found {printable(name)!r}; a data set of the Hub is OWNER/NAME") from error
    except LocalEntryNotFoundError as error:
        raise UserError(
            f"{key}.path: {name} is not in the cache {printable(cache)}, and the Hub cannot be reached"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = in_one_line(error, 200)
        raise UserError(f"{key}.path: {name} could not be downloaded ({reason})") from error
    return Path(snapshot)
