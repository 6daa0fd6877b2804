"""``rayfed-ssl doctor``: what this machine or cluster can run, and what is missing. It changes nothing."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import torch

from rayfed_ssl import config
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.pixels.store import default_cache
from rayfed_ssl.data.sources import SOURCES, SourceConfig
from rayfed_ssl.records.environment import installed
from rayfed_ssl.settings import files as configfile
from rayfed_ssl.storage.claim import writable

EXTRAS = {"privacy": "dp-accounting", "viz": "openTSNE", "dicom": "pydicom", "heic": "pillow-heif", "tiff": "tifffile"}
GPU_PROFILE = "paper"  # the profile with the authors' networks and rounds; `cpu` is made for two cores
CONNECT_S = 3.0  # seconds to wait for a cluster's answer


@dataclass(frozen=True)
class Check:
    """One line: what was examined and what was found. ``ok`` is None if it is neither good nor bad."""

    name: str
    found: str
    ok: bool | None = None


def examine(configs: Path = Path("configs")) -> list[Check]:
    """All checks, the most basic first."""
    return [
        *_software(),
        *_machine(),
        _cluster(os.environ.get("RAY_ADDRESS")),
        _cache(),
        *_extras(),
        *_configs(configs),
    ]


def _software() -> Iterator[Check]:
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    yield Check("python", platform.python_version(), True)
    yield Check("torch", f"{torch.__version__}, {cuda}", True)
    ray = installed("ray")
    yield Check(
        "ray",
        ray or "not installed; without it only --executor local works: pip install 'ray[default,tune]'",
        ray is not None,
    )


def _machine() -> Iterator[Check]:
    cores, whole = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(), os.cpu_count()
    yield Check("cores", str(cores) + (f" of {whole}" if cores != whole else ""))
    yield Check("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(i)
            yield Check(f"GPU {i}", f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB", True)
    else:
        yield Check("GPU", "none that torch can use: training on CPU")


def _cluster(address: str | None) -> Check:
    if address is None:
        return Check("cluster", "RAY_ADDRESS is not set: runs start a Ray of their own on this machine")
    if address in ("auto", "local"):
        return Check("cluster", f"RAY_ADDRESS={address}")
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 6379), timeout=CONNECT_S):
            return Check("cluster", f"RAY_ADDRESS={address} answers", True)
    except (OSError, ValueError) as error:
        return Check(
            "cluster", f"RAY_ADDRESS={address} does not answer ({error}); unset it to run on this machine", False
        )


def _cache() -> Check:
    cache = default_cache()
    files = [path for path in cache.rglob("*") if path.is_file()] if cache.is_dir() else []
    size = f"{len(files)} files, {sum(path.stat().st_size for path in files) / 2**20:.1f} MiB"
    try:
        writable(cache)
    except UserError:
        return Check("cache", f"{cache} cannot be written; set RAYFED_SSL_CACHE", False)
    return Check("cache", f"{cache} ({size})", True)


def _extras() -> Iterator[Check]:
    for extra, package in EXTRAS.items():
        version = installed(package)
        missing = f"not installed (optional): pip install 'rayfed-ssl[{extra}]'"
        yield Check(f"extra {extra}", f"{package} {version}" if version else missing, True if version else None)


def _configs(folder: Path) -> Iterator[Check]:
    """Which configs in this folder run here. The profile `paper` needs a GPU: on a CPU it would take too long."""
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        yield Check("configs", f"none in {folder.resolve()}: this is no checkout of rayfed-ssl, so none was examined")
    for path in paths:
        try:
            settings = config.load(path)
            profiles = tuple(configfile.read(path).get("profiles") or ("cpu",))
            for profile in profiles if len(profiles) > 1 else ():
                config.load(path, [f"profile={profile}"])
        except UserError as error:
            yield Check(path.stem, str(error).splitlines()[0], False)
            continue
        if missing := _missing(settings):
            yield Check(path.stem, missing)
            continue
        slow = GPU_PROFILE in profiles and not torch.cuda.is_available()
        here = [profile for profile in profiles if not (slow and profile == GPU_PROFILE)]
        yield Check(
            path.stem, f"runs here ({', '.join(here)})" + (f"; profile={GPU_PROFILE} wants a GPU" if slow else ""), True
        )


def _missing(settings: config.RunConfig) -> str:
    """What a config needs before it can run: images that it does not name, or that are not where it says; "" if
    nothing.
    """
    sources: list[tuple[str, SourceConfig]] = [("data", settings.data)]
    if settings.data.public.images is not None:
        sources.append(("data.public.images", settings.data.public.images))
    for key, source in sources:
        if source.download or source.name == "hub":  # opening it would download the images
            continue
        try:
            SOURCES[source.name].open(source, default_cache(), key)
        except UserError as error:
            return f"valid, but without its images: {printable(error)}"
    return ""
