"""The generated parts of the documentation are those the code gives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import generate  # noqa: E402


@pytest.mark.parametrize("name", sorted(generate.PARTS))
def test_generated_parts_are_fresh(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert generate.filled(page, generate.PARTS[name]) == page, "run: python docs/generate.py"


@pytest.mark.parametrize("name", sorted(generate.FILES))
def test_generated_files_are_fresh(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == generate.FILES[name](), "run: python docs/generate.py"


def test_every_module_says_what_it_is() -> None:
    files = [path for package in ("rayfed_ssl", "actors", "tune") for path in (ROOT / package).rglob("*.py")]
    silent = [str(path) for path in files if path.stat().st_size and not generate.first_sentence(path)]
    assert silent == []
