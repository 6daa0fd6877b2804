"""What `ray job submit --working-dir .` uploads: the project's sources, uncompressed about three megabytes."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.places import ROOT


@pytest.fixture
def packaging() -> ModuleType:
    """Ray's own packing of working directories."""
    return pytest.importorskip("ray._private.runtime_env.packaging")


def test_the_working_directory_of_a_job_is_its_sources(packaging: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    packaging.create_package(str(ROOT), package, include_gitignore=True)
    names = set(zipfile.ZipFile(package).namelist())
    assert package.stat().st_size < 3e6
    for needed in ("rayfed_ssl/cli.py", "actors/driver.py", "tune/sweep.py", "configs/demo.yaml"):
        assert needed in names
    assert not [name for name in names if name.startswith((".git/", ".venv/", "runs/", "tests/"))]


def test_runs_and_weights_stay_at_home(packaging: ModuleType, tmp_path: Path) -> None:
    project, package = tmp_path / "project", tmp_path / "package.zip"
    kept = ["rayfed_ssl/cli.py", "configs/mine.yaml"]
    large = [".venv/lib/torch.so", "runs/a/metrics.parquet/part.parquet", "images.parquet", "encoder.safetensors"]
    for name in kept + large:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(b"x" * 1000)
    (project / ".rayignore").write_bytes((ROOT / ".rayignore").read_bytes())
    packaging.create_package(str(project), package, include_gitignore=False)
    names = set(zipfile.ZipFile(package).namelist())
    assert set(kept) <= names
    assert not names & set(large)
