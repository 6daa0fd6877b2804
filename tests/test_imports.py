"""Imports point one way, tune -> actors -> rayfed_ssl, and the library works where Ray is not installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMPOSITION_ROOT = Path("rayfed_ssl/cli.py")
FORBIDDEN = {"rayfed_ssl": {"ray", "actors", "tune"}, "actors": {"tune"}}

IMPORT_ALL = """
import importlib, pkgutil, sys
import rayfed_ssl
names = [module.name for module in pkgutil.walk_packages(rayfed_ssl.__path__, "rayfed_ssl.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
        if loaded := {"ray", "actors", "tune"} & set(sys.modules):
            sys.exit(f"importing {name} also imports {sorted(loaded)}")
print(len(names))
"""


def imported(source: str) -> Iterator[tuple[str, bool]]:
    """(top-level package, inside a function?) of every absolute import in Python source."""

    def visit(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0], inside
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    return visit(ast.parse(source), False)


def violations(path: Path, source: str) -> list[str]:
    """The forbidden imports of one file; the command line may reach ``actors`` and ``tune``, inside functions."""
    forbidden = FORBIDDEN.get(path.parts[0], set())
    lazily = {"actors", "tune"} if path == COMPOSITION_ROOT else set()
    return [
        f"{path} imports {package}"
        for package, inside in imported(source)
        if package in forbidden and not (inside and package in lazily)
    ]


@pytest.mark.parametrize("package", ["rayfed_ssl", "actors", "tune"])
def test_imports_point_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = [line for file in files for line in violations(file.relative_to(ROOT), file.read_text(encoding="utf-8"))]
    assert wrong == []


def test_importing_the_whole_library_leaves_ray_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    modules = [file for file in (ROOT / "rayfed_ssl").rglob("*.py") if file != ROOT / "rayfed_ssl" / "__init__.py"]
    assert int(done.stdout) == len(modules)  # none was passed over for want of an __init__.py


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("rayfed_ssl/a.py", "def f():\n    import ray.util\n", 1),
        ("rayfed_ssl/a.py", "if 1:\n    from actors.client import x\n", 1),
        ("rayfed_ssl/a.py", "from . import tune\nimport raylike, rayfed_ssl\n", 0),
        ("rayfed_ssl/cli.py", "import tune\ndef f():\n    import actors\n    from tune import run\n", 1),
        ("rayfed_ssl/cli.py", "def f():\n    import ray\n", 1),
        ("rayfed_ssl/methods/cli.py", "def f():\n    import actors\n", 1),
        ("actors/a.py", "import ray, rayfed_ssl\ndef f():\n    from tune import run\n", 1),
        ("tune/a.py", "import ray, rayfed_ssl, actors\n", 0),
    ],
)
def test_the_check_itself_sees_what_it_should(path: str, source: str, count: int) -> None:
    assert len(violations(Path(path), source)) == count
