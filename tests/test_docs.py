"""The generated parts of the documentation are those the code gives."""

from __future__ import annotations

import re
from pathlib import Path

import generate
import pytest

from rayfed_ssl.config import load
from rayfed_ssl.simulation.forecast import forecast

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", sorted(generate.PARTS))
def test_generated_parts_are_fresh(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert generate.filled(page, generate.PARTS[name]) == page, "run: python docs/generate.py"


@pytest.mark.parametrize("name", sorted(generate.FILES))
def test_generated_files_are_fresh(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == generate.FILES[name](), "run: python docs/generate.py"


def test_the_readmes_numbers_are_those_of_the_results_page() -> None:
    """The demo's few-shot accuracies, in its table and in the sentence below it, are seed 0's of docs/results.md."""
    readme, results = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/results.md"))
    section = results.split("## The demo")[1].split("\n## ")[0]
    row = re.search(r"\| 0 [^|]*\|([^\n]*)\|", section)
    shown = re.search(r"^ +fewshot +([\d. ]+) ", readme, re.MULTILINE)
    assert row
    assert shown
    measured = [float(cell) for cell in row[1].split("|")]
    assert [float(cell) for cell in shown[1].split()][:3] == measured
    sentence = readme.split("Read it as:")[1].split("\n\n")[0]
    percent = [int(found) for found in re.findall(r"(\d+)%", sentence)]
    assert percent == pytest.approx([100 * value for value in measured], abs=0.501)  # rounded, a half either way


def test_the_readmes_bytes_are_those_of_the_demo() -> None:
    sent = forecast(load(ROOT / "configs" / "demo.yaml")).traffic
    assert sent is not None
    text = f"clients sent  {sent.up / 1e6:.1f} MB up, {sent.down / 1e6:.1f} MB down"
    assert text in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_module_says_what_it_is() -> None:
    files = [path for package in ("rayfed_ssl", "actors", "tune") for path in (ROOT / package).rglob("*.py")]
    silent = [str(path) for path in files if path.stat().st_size and not generate.first_sentence(path)]
    assert silent == []
