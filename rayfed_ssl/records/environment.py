"""``environment.json``: versions, host, device, threads, git revision and command line of a run."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from rayfed_ssl.base.files import write_json
from rayfed_ssl.base.notes import NOTES, Note, recorded_notes
from rayfed_ssl.base.text import printable
from rayfed_ssl.data.images import Scaling

PACKAGES = ("rayfed-ssl", "torchvision", "ray", "numpy", "pyarrow", "scikit-learn")
SECRET_KEY = re.compile(r"(?i)([\w.-]*(?:token|secret|password|passwd|credential|api[_-]?key)[\w.-]*=).*")
SECRET_OPTION = re.compile(r"(?i)--?[\w-]*(?:token|secret|password|passwd|credential|api[_-]?key)[\w-]*")
URI_SECRET = re.compile(r"(\w+://)[^/@\s]+@")
URI_QUERY = re.compile(r"(\w+://[^\s?]+)\?\S+")


@dataclass(frozen=True)
class RunFacts:
    """What ``environment.json`` records of a run, besides this machine and this version of the code.

    Args:
        device: the hardware that clients train on, in words; it need not be of this machine.
        threads: the number of PyTorch's threads in each process that trains.
        images: the digest of the data set.
        public_images: the digest of public images of another source.
        imports: digests of the code that the run brought along, by name.
        files: digests of the other files that the run read, by key.
        scaled: how images of more than 8 bits were scaled, by configuration block.
        notes: what the run printed before its first round.
    """

    device: str
    threads: int
    images: str
    public_images: str | None = None
    imports: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    scaled: Mapping[str, Scaling] = field(default_factory=dict)
    notes: Sequence[Note] = ()


def environment(run: RunFacts) -> dict[str, Any]:
    """Versions, host, device, threads, git revision and command line; a package that is not installed is null.

    Bits depend on the CPU's instruction set and on the thread count (see ``seeding``), so both are here. Ray's version
    is looked up, without importing Ray. Notes are recorded as texts and, under ``card_notes``, as the parts that a
    model card shows. A run without public images of another source, without files, images of more than 8 bits or notes,
    has no such key.
    """
    revision, changed = git_revision()
    return {
        "python": platform.python_version(),
        "versions": {"torch": str(torch.__version__)} | {name: installed(name) for name in PACKAGES},
        "host": host(),
        "device": run.device,
        "cuda": torch.version.cuda,
        "threads": run.threads,
        "images": run.images,
        **({} if run.public_images is None else {"public_images": run.public_images}),
        **({"scaled": {key: asdict(scaling) for key, scaling in run.scaled.items()}} if run.scaled else {}),
        **({"files": dict(run.files)} if run.files else {}),
        **recorded_notes(run.notes),
        "git_revision": revision,
        "git_changed": changed,
        "imports": dict(run.imports),
        "command": command_line(sys.argv),
    }


def host() -> dict[str, Any]:
    """This machine: platform, processor, cores, and the instructions that torch uses."""
    return {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def write_environment(folder: Path, run: RunFacts, *, resumed: bool) -> None:
    """Write ``environment.json`` into the run folder, atomically.

    A resumed run keeps the file. If anything but the command line differs from what was written last, it adds
    ``environment-2.json``, ``environment-3.json``, ...; a run that starts afresh removes those of an earlier attempt.
    """
    found = environment(run)
    later = sorted(folder.glob("environment-*.json"), key=_number)
    if not resumed:
        for path in later:
            path.unlink()
    first = folder / "environment.json"
    if not resumed or not first.exists():
        write_json(first, found)
    elif not _same(later[-1] if later else first, found):
        write_json(folder / f"environment-{_number(later[-1]) + 1 if later else 2}.json", found)


@dataclass(frozen=True)
class Recorded:
    """The digests a run began with: of its images, of public images of another source, of its other files by key. And
    what it said before its first round, and what a model card has of that: nothing of a run of an earlier version.
    """

    images: str | None = None
    public_images: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    card_notes: tuple[str, ...] = ()


def recorded(folder: Path) -> Recorded:
    """The digests and notes in the ``environment.json`` of a run folder.

    Empty if the file is missing or damaged, or was written by a version that did not record them.
    """
    try:
        found = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return Recorded()
    if not isinstance(found, dict):
        return Recorded()
    images, public, files = (found.get(key) for key in ("images", "public_images", "files"))
    return Recorded(
        images if isinstance(images, str) else None,
        public if isinstance(public, str) else None,
        {key: digest for key, digest in files.items() if isinstance(digest, str)} if isinstance(files, dict) else {},
        _lines(found.get("notes")),
        _lines(found.get("card_notes")),
    )


def _lines(found: Any) -> tuple[str, ...]:
    """The strings of a list; empty for anything else."""
    return tuple(line for line in found if isinstance(line, str)) if isinstance(found, list) else ()


def scalings(environment: Mapping[str, Any]) -> list[str]:
    """What an ``environment.json`` says of images of more than 8 bits, a sentence for each configuration block.

    Raises TypeError, AttributeError or ValueError for what a run does not write there.
    """
    found = environment.get("scaled", {}).items()
    return [f"{printable(key)}: {printable(Scaling(**scaling))}" for key, scaling in found]


def _number(path: Path) -> int:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _same(path: Path, found: dict[str, Any]) -> bool:
    """Whether the file says the same, apart from the command line and what was derived from the images."""

    def compared(said: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in said.items() if key not in ("command", *NOTES)}

    try:
        return compared(json.loads(path.read_text(encoding="utf-8"))) == compared(found)
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def git_revision(package: Path | None = None) -> tuple[str | None, bool | None]:
    """The revision of the project's checkout and whether files differ from it; (None, None) without a checkout.

    Results of benchmarks do not count as changes. A package installed into an environment inside another checkout does
    not belong to that checkout.
    """
    root = (package or Path(__file__).parents[1]).resolve().parent
    top = _git(root, "rev-parse", "--show-toplevel")
    revision = _git(root, "rev-parse", "HEAD")
    if top is None or revision is None or Path(top).resolve() != root:
        return None, None
    return revision, bool(_git(root, "status", "--porcelain", "--", ".", ":(exclude)benchmarks/results"))


def command_line(arguments: list[str]) -> str:
    """The command as the user typed it, without secrets and the home directory's name."""
    program, *rest = arguments or [""]
    shown = [
        "***" if SECRET_OPTION.fullmatch(before) and not argument.startswith("-") else _discreet(argument)
        for before, argument in pairwise(["", *rest])
    ]
    return shlex.join([Path(program).name, *shown])


def _discreet(argument: str) -> str:
    argument = SECRET_KEY.sub(r"\1***", argument)
    argument = URI_QUERY.sub(r"\1?***", URI_SECRET.sub(r"\1***@", argument))
    home = str(Path.home())
    return argument.replace(home, "~") if len(home) > 1 else argument


@cache
def installed(package: str) -> str | None:
    """The version of an installed package; looked up, never imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
