"""A cache for evaluations of untrained encoders and raw pixels: they depend on no training, so runs of a sweep or a
comparison share them.

An entry is a small JSON file beside the pixel cache, ``evaluations/KEY.json``. The key is a digest of everything that
the values depend on: what the caller names (weights, images, protocols), the library's own source, the versions of the
packages that compute, and the processor's instructions and threads, because these change bits. Values come back bit for
bit, with the test images that were classified rightly if these were counted. A damaged entry is computed again. With
``RAYFED_SSL_EVALUATIONS=off`` the cache is neither read nor written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rayfed_ssl.base.files import replace_file
from rayfed_ssl.data.pixels.store import default_cache
from rayfed_ssl.evaluation.outcomes import EncoderValues, as_json, from_json, outcomes_of
from rayfed_ssl.evaluation.protocol import Protocol
from rayfed_ssl.evaluation.transfer import TRANSFER

SWITCH = "RAYFED_SSL_EVALUATIONS"
OFF = "off"
CODE = (
    "base", "data", "evaluation", "models", "federated/process_context.py", "federated/initial_weights.py",
    "federated/measured_rows.py",
)  # fmt: skip
"""Whose source decides."""
VERSIONS = ("torch", "numpy", "scipy", "scikit-learn", "torchvision", "timm")
VARIABLES = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "CUBLAS_WORKSPACE_CONFIG")

Values = dict[str, float]
Row = Protocol[Any]


def digest(*parts: object) -> str:
    """A digest of arrays by type, shape and content, and of everything else by its text."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            hasher.update(f"{part.dtype}{part.shape}".encode())
            hasher.update(np.ascontiguousarray(part).tobytes())
        else:
            hasher.update(str(part).encode())
        hasher.update(b"\0")
    return hasher.hexdigest()


def repeatable(rows: Iterable[Row], *others: object) -> bool:
    """Whether a key can hold everything that decides the values. The protocols must be this library's and read no other
    images, and ``others`` (encoders) must be this library's, too: a change of third-party code would not be noticed.
    """
    protocols = list(rows)
    known = of_this_library(protocols) and not any(row is TRANSFER for row in protocols)
    return known and all(type(other).__module__.startswith("rayfed_ssl.") for other in others)


def of_this_library(rows: Iterable[Row]) -> bool:
    """Whether all of the protocols are this library's."""
    parts = [part for row in rows for part in (row.measure, row.pixels) if part is not None]
    return all(part.__module__.startswith("rayfed_ssl.") for part in parts)


def remembered(key: Mapping[str, object], compute: Callable[[], Values]) -> Values:
    """What ``compute`` returns, or returned before under the same key.

    Args:
        key: what the values depend on besides the code and the machine; each part's text must say all of it.
    """
    if os.environ.get(SWITCH) == OFF:
        return compute()
    name = digest(json.dumps({**key, "with": _surroundings()}, sort_keys=True, default=str))
    path = default_cache() / "evaluations" / f"{name}.json"
    if (entry := _read(path)) is not None:
        return entry
    computed = compute()
    values = EncoderValues({tag: float(value) for tag, value in computed.items()}, outcomes_of(computed))
    _write(path, values)
    return values


def _read(path: Path) -> Values | None:
    """The values of an entry; None if there is no entry, or a damaged one."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        if entry["digest"] != digest(json.dumps([entry["values"], entry["outcomes"]])):
            return None
        values = {str(tag): float(value) for tag, value in entry["values"].items()}
        return EncoderValues(values, None if entry["outcomes"] is None else from_json(entry["outcomes"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, zlib.error):
        return None


def _write(path: Path, values: Values) -> None:
    """Write an entry atomically. If the disk is full, nothing is kept and the next run computes again."""
    outcomes = outcomes_of(values)
    content = [dict(values), None if outcomes is None else as_json(outcomes)]
    text = json.dumps({"values": content[0], "outcomes": content[1], "digest": digest(json.dumps(content))})
    with contextlib.suppress(OSError):
        replace_file(path, lambda draft: draft.write_text(text, encoding="utf-8"), shared=True)


def _source() -> str:
    """A digest of the source that computes the values."""
    root = Path(__file__).resolve().parents[1]
    files = [path for part in CODE for path in ([root / part] if part.endswith(".py") else (root / part).glob("*.py"))]
    return digest(*(path.read_bytes() for path in sorted(files)))


@cache
def _installed() -> dict[str, object]:
    """The part of the key that is constant in a process: the source, the packages, the processor."""
    facts: dict[str, object] = {"source": _source(), "machine": platform.machine()}
    for name in VERSIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        facts["processor"] = next(line for line in lines if line.startswith("model name"))
    return facts | {"instructions": torch.backends.cpu.get_cpu_capability()}


def _surroundings() -> dict[str, object]:
    facts = {**_installed(), "threads": torch.get_num_threads(), "mkldnn": bool(torch.backends.mkldnn.enabled)}
    return facts | {name: os.environ.get(name, "") for name in VARIABLES}
