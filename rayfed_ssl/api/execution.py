"""Carries out a run in this process or on Ray, and checks its place before it begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayfed_ssl.api.executor import Executor
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.sources import existing
from rayfed_ssl.simulation.checks import with_start
from rayfed_ssl.simulation.placing import refuse_among_images
from rayfed_ssl.simulation.resuming import as_begun, began_earlier, examine_folder
from rayfed_ssl.storage.claim import refuse_busy
from rayfed_ssl.storage.mirror import Mirror, mirrored


def execute(executor: Executor) -> Callable[..., dict[str, Any]]:
    """The function that carries out a run: (config, folder, uri=, resume=, report=, stopping=) -> summary."""
    if executor is Executor.local:
        from rayfed_ssl.simulation import loop
        from rayfed_ssl.simulation.local import LocalCohort

        def here(config: RunConfig, folder: Path, *, uri: str | None, resume: bool, **how: Any) -> dict[str, Any]:
            _examine_uri(config, uri)
            with mirrored(folder, uri, resume=resume) as saved:
                return loop.run(config, folder, LocalCohort, resume=resume, saved=saved, **how)

        return here

    def on_ray(config: RunConfig, folder: Path, *, uri: str | None, resume: bool, **how: Any) -> dict[str, Any]:
        preflight(config, folder, uri=uri, resume=resume)
        from actors.follow import run_on_ray

        return run_on_ray(config, folder, uri=uri, resume=resume, **how)

    return on_ray


def quiet(line: str) -> None:
    """Ignore a line, because the driver will say it again."""


def examined(
    config: RunConfig, folder: Path, *, uri: str | None, resume: bool, say: Callable[[str], None]
) -> RunConfig:
    """Check a run's folder or URI as the run would, and leave nothing there. Returns the configuration that the run
    would have.

    Raises:
        UserError: the run would refuse its folder, or the URI.
    """
    config = with_start(config)
    if uri is not None:
        _examine_uri(config, uri)
        Mirror(folder, uri).examine(resume=resume)
        return config
    config = as_begun(config, folder, say) if resume else config
    examine_folder(config, folder, resume, say)
    refuse_busy(folder)
    return config


def _examine_uri(config: RunConfig, uri: str | None) -> None:
    """Raise UserError if the URI is a folder of this machine among the run's images, unless it holds a run already."""
    if uri is not None and not Path(uri.removeprefix("file://"), "config.yaml").exists():
        refuse_among_images(config, uri)


def preflight(config: RunConfig, folder: Path, *, uri: str | None, resume: bool) -> None:
    """Check the run folder and the places of images before Ray starts on this machine. The driver checks both again.

    Nothing is checked if RAY_ADDRESS names a cluster: it is running already, and paths are those of the cluster.

    Raises:
        UserError: the folder holds a run that is not to be resumed, cannot be written to, or lies among the images; or
            there are no images.
    """
    if os.environ.get("RAY_ADDRESS"):
        return
    _examine_uri(config, uri)
    if uri is None:
        begun = with_start(config)
        examine_folder(as_begun(begun, folder, quiet) if resume else begun, folder, resume, quiet)
    with began_earlier(config, uri is None and (folder / "config.yaml").exists()):
        for key, source in (("data", config.data), ("data.public.images", config.data.public.images)):
            if source is None:
                continue
            given = source.path is not None and source.name != "hub" and not source.download
            if given or source.name in ("parquet", "imagefolder", "table", "arrays"):  # these need a path
                existing(source, key)
