"""Checks where a run may be written: not among the images that it reads, and with a note if other files are there."""

from __future__ import annotations

import os
from pathlib import Path

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.sources import SOURCES
from rayfed_ssl.settings.run import IMAGES, OTHER_IMAGES
from rayfed_ssl.storage.failure import ERROR


def refuse_among_images(config: RunConfig, folder: Path | str) -> None:
    """Raise UserError if ``folder``, or the folder of a file:// URI, is or lies within a folder that the run's images
    are read from: the next run would read the figures in it as images. Links are followed.
    """
    place = str(folder).removeprefix("file://")
    if "://" in place:
        return
    for key, images in _read_whole(config).items():
        where = images.expanduser()
        if where.is_dir() and any(inner.is_relative_to(outer) for outer in _ways(where) for inner in _ways(place)):
            raise UserError(
                f"--out: found {printable(folder)}, which lies within {key}={printable(images)}: what a run writes "
                "there would be read as images; name a folder outside of it"
            )


def of_others(folder: Path) -> str | None:
    """A line if the folder holds files that belong to no run; hidden files do not count."""
    try:
        count = sum(not name.startswith(".") and name != ERROR for name in os.listdir(folder))
    except OSError:
        return None
    if not count:
        return None
    what = "1 file or folder that is of no run; the run's are written beside it"
    many = f"{count} files or folders that are of no run; the run's are written beside them"
    return f"--out: {printable(folder)} holds {what if count == 1 else many}"


def _read_whole(config: RunConfig) -> dict[str, Path]:
    """The folders that are read as a whole for images, by key. Torchvision's sources are left out: they read files of
    fixed names in theirs, and may download them.
    """
    sources = (config.data, config.data.public.images, config.evaluation.transfer.data)
    return {
        key: source.path
        for key, source in zip((*IMAGES, OTHER_IMAGES), sources, strict=True)
        if source is not None and source.path is not None and "download" not in SOURCES[source.name].reads
    }


def _ways(place: Path | str) -> set[Path]:
    """A path as it was written, and with links resolved."""
    return {Path(os.path.abspath(place)), Path(os.path.realpath(place))}
