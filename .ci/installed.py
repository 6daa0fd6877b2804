"""Exit status 0 if this environment already holds the project, from this tree, and all it requires in [dev,privacy].

    .venv/bin/python .ci/installed.py

Asking pip itself takes a network and most of a minute, because it builds the project before it compares.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def installed(extras: tuple[str, ...]) -> bool:
    """Whether the project's packages and commands come from this tree and every requirement is met."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    table = project["project"]
    lines = [*table["dependencies"], *(line for extra in extras for line in table["optional-dependencies"][extra])]
    requirements = [Requirement(line) for line in lines]
    met = all(
        requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate()
    )
    found = importlib.metadata.distribution(table["name"])
    commands = {entry.name: entry.value for entry in found.entry_points if entry.group == "console_scripts"}
    packages = {name.split(".")[0] for name in project["tool"]["setuptools"]["packages"]}
    origins = [spec.origin if (spec := importlib.util.find_spec(name)) else None for name in packages]
    ours = all(origin is not None and Path(origin).is_relative_to(ROOT) for origin in origins)
    return met and ours and found.version == table["version"] and commands == table["scripts"]


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).resolve().parent))  # only what is installed counts
    try:
        sys.exit(0 if installed(("dev", "privacy")) else 1)
    except (ImportError, importlib.metadata.PackageNotFoundError):
        sys.exit(1)
