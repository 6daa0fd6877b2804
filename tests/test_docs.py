"""The generated parts of the documentation are those the code gives."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap

import generate
import pytest

from rayfed_ssl.config import load
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.method import Method
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.simulation.forecast import forecast
from tests.places import ROOT


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


def test_a_modules_first_sentence_does_not_end_within_a_reference() -> None:
    """``Li et al. 2020, eq. 2`` has two full stops, and neither of them is the sentence's."""
    said = generate.first_sentence(ROOT / "rayfed_ssl" / "methods" / "fedprox.py")
    assert said == "FedProx: FedAvg whose clients are held near the global model (Li et al. 2020, eq. 2)"


MEMBERS = {"EncoderClient": EncoderClient, "MethodServer": MethodServer, "Cohort": Cohort}


def public_members(kind: type) -> set[str]:
    """What the class and its instances have, but for what begins with _: from its source and as Python sees it."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("rayfed_ssl")]
    targets = [
        target
        for base in bases
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base))))
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    attributes = [target for target in targets if isinstance(target, ast.Attribute)]
    own = {found.attr for found in attributes if isinstance(found.value, ast.Name) and found.value.id == "self"}
    inherited = {name for base in bases for name in vars(base)}
    return {name for name in own | inherited if not name.startswith("_")}


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_that_a_method_can_use_has_its_line(name: str) -> None:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- members of {name} -->(.*?)<!-- end members of {name} -->", page, re.DOTALL)
    assert found
    rows = [line.split(" | ") for line in found[1].strip().splitlines()[2:]]
    assert all(len(row) == 2 and len(row[1]) > 5 for row in rows)
    listed = [member for row in rows for member in re.findall(r"`(?:self|cohort)\.(\w+)", row[0])]
    assert len(listed) == len(set(listed))
    assert set(listed) == public_members(MEMBERS[name])
    for row in rows:
        for member, given in re.findall(r"`(?:self|cohort)\.(\w+)\(([^`]*)\)`", row[0]):
            accepts = inspect.signature(getattr(MEMBERS[name], member)).parameters
            assert {part.strip(" *=") for part in given.split(",") if part} <= set(accepts)


def test_every_field_of_a_methods_row_has_its_line() -> None:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    table = page.split("<!-- fields of Method -->")[1].split("<!-- end fields of Method -->")[0]
    listed = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.partition(" | ")[0])]
    assert sorted(listed) == sorted(field.name for field in dataclasses.fields(Method))
