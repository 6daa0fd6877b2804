"""How a run is carried out: in this process, or on Ray."""

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
    """How a run is carried out: (config, folder, uri=, resume=, report=, stopping=) -> summary."""
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
    """For what the driver will say again."""


def examined(
    config: RunConfig, folder: Path, *, uri: str | None, resume: bool, say: Callable[[str], None]
) -> RunConfig:
    """Look at a run's place as the run will look at it, and leave nothing there. Returns the configuration that it has.

    Raises:
        UserError: what the run would say of its folder, or of the URI.
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
    """Raise UserError where a URI of this machine lies among the run's images, and no run is there yet."""
    if uri is not None and not Path(uri.removeprefix("file://"), "config.yaml").exists():
        refuse_among_images(config, uri)


def preflight(config: RunConfig, folder: Path, *, uri: str | None, resume: bool) -> None:
    """Look, before Ray starts here, at what the driver will look at again: the run folder, and where images should be.

    Nothing is looked at where RAY_ADDRESS names a cluster: it is there already, and a job's paths are its own.

    Raises:
        UserError: a run is in the folder and is not to be resumed; the folder cannot be written to, or lies among the
            images; no images there.
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
            if given or source.name in ("parquet", "imagefolder", "table", "arrays"):  # which have no other place
                existing(source, key)
