"""A file of the library or its benchmarks has at most 400 lines, a function 60: longer ones hold more than one idea."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.places import ROOT

FILE_LINES, FUNCTION_LINES = 400, 60


def functions(source: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function and method, its decorators not counted."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("package", ["rayfed_ssl", "actors", "tune", "benchmarks"])
def test_no_file_and_no_function_is_too_long(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    long = []
    for path in files:
        source, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        if (lines := len(source.splitlines())) > FILE_LINES:
            long.append(f"{name}: {lines} lines")
        long += [f"{name}: {f} has {count} lines" for f, count in functions(source) if count > FUNCTION_LINES]
    assert long == []


def test_the_measure_sees_methods_and_inner_functions() -> None:
    source = "class A:\n    async def f(self):\n        def g():\n            pass\n        return g\n"
    assert dict(functions(source)) == {"f": 4, "g": 2}
