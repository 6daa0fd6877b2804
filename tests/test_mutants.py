"""The list of broken lines still fits the tree; running it is `make mutants`."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from benchmarks.mutants import ROOT, BadTable, Mutant, load


@cache
def parsed(path: Path) -> str:
    return ast.dump(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("mutant", load(), ids=str)
def test_every_mutant_still_applies(mutant: Mutant) -> None:
    """Its text is found exactly once, what comes out is another valid program, and its tests exist."""
    path, broken = mutant.applied(ROOT)
    assert ast.dump(ast.parse(broken)) != parsed(path)
    assert mutant.test_files(ROOT)


def test_there_are_many_and_no_two_are_the_same() -> None:
    mutants = load()
    assert len(mutants) >= 60
    assert len({(m.file, m.text, m.replacement) for m in mutants}) == len(mutants)


def test_a_text_that_is_not_there_once_and_a_test_that_is_not_there_are_refused(tmp_path: Path) -> None:
    for folder in ("rayfed_ssl/a", "rayfed_ssl/b", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "rayfed_ssl" / "a" / "x.py").write_text("y = 1\nz = 2\n")
    (tmp_path / "rayfed_ssl" / "b" / "x.py").write_text("z = 2\n")
    path, broken = Mutant("x.py", "", "y = 1", "y = 3", ()).applied(tmp_path)
    assert (path, broken) == (tmp_path / "rayfed_ssl" / "a" / "x.py", "y = 3\nz = 2\n")
    assert "y = 1" in path.read_text()
    for text, found in (("z = 2", 2), ("w = 2", 0)):
        with pytest.raises(BadTable, match=f"found {found} times in files named x.py, wanted once: '{text}'"):
            Mutant("x.py", "", text, "", ()).applied(tmp_path)
    with pytest.raises(BadTable, match=r"found 0 test files named test_x\.py, wanted one"):
        Mutant("x.py", "", "", "", ("test_x.py",)).test_files(tmp_path)
