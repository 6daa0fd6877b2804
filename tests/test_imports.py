"""Imports point one way, tune -> actors -> rayfed_ssl, and the library works where Ray is not installed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from generate import LAYERS

from tests.places import ROOT

COMPOSITION_ROOTS = {Path("rayfed_ssl/api"), Path("rayfed_ssl/commands"), Path("rayfed_ssl/testing/contract.py")}
FORBIDDEN = {"rayfed_ssl": {"ray", "actors", "tune"}, "actors": {"tune"}}

IMPORT_EACH = """
import gc, importlib, os, sys
import torchvision, pydantic, pyarrow.parquet, pyarrow.fs, sklearn.linear_model, sklearn.datasets, matplotlib.figure
import pytest, pydantic.main, safetensors.torch, tensorboard, typer, rich.progress, yaml, PIL.Image, jinja2  # not ours
import matplotlib.backends.backend_agg, pyarrow.csv, safetensors.numpy, torch.utils.tensorboard.summary
pydantic.create_model("Any", field=(int, pydantic.Field(1, gt=0)))  # pydantic looks for its plugins at the first model
gc.disable()
failed = 0
for names in sys.stdin:  # a package, then its modules: circles between them are seen without running anything
    child = os.fork()  # an interpreter in which nothing of ours was imported yet
    if child == 0:
        for name in names.split():
            try:
                importlib.import_module(name)
            except BaseException as error:
                print(f"{name}: {error!r}", file=sys.stderr)
                os._exit(1)
            if loaded := {"ray", "actors", "tune"} & set(sys.modules):
                print(f"{name} also imports {sorted(loaded)}", file=sys.stderr)
                os._exit(1)
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
sys.exit(failed != 0)
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
    lazily = {"actors", "tune"} if {path, path.parent} & COMPOSITION_ROOTS else set()
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


@pytest.mark.long
def test_every_package_imports_first_and_alone() -> None:
    """And without Ray, as its modules do: those that it does not import itself after it, the last first."""
    names = [name for name in modules() if name.startswith("rayfed_ssl.") and not name.endswith("__main__")]
    packages: dict[str, list[str]] = {}
    for name in sorted(names, reverse=True):
        package = name if (ROOT / name.replace(".", "/")).is_dir() else name.rpartition(".")[0]
        packages.setdefault(package, []).append(name)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH],
        input="\n".join(" ".join(dict.fromkeys([package, *inside])) for package, inside in packages.items()),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(names) > 160
    assert len(packages) > 15


def modules() -> dict[str, Path]:
    """Dotted name -> file, of the library and the two packages above it."""
    found = {}
    for package in ("rayfed_ssl", "actors", "tune"):
        for path in sorted((ROOT / package).rglob("*.py")):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def imports_of(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that a file imports, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                inner if (inner := f"{node.module}.{alias.name}") in known else node.module for alias in node.names
            }
    return found & known.keys()


def circles(edges: dict[str, set[str]]) -> list[str]:
    """The modules that can be reached from themselves."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in edges[waiting.pop()] - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    return sorted(name for name in edges if name in reached(name))


def side_by_side(package: str, edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """What lies side by side in a package, modules and packages, and which of it imports which other."""

    def part(name: str) -> str:
        return name.removeprefix(f"{package}.").split(".")[0] if name.startswith(f"{package}.") else ""

    found: dict[str, set[str]] = {}
    for name, imported_names in edges.items():
        if here := part(name):
            found.setdefault(here, set()).update({part(other) for other in imported_names} - {"", here})
    return found


def upward(edges: dict[str, set[str]], layers: tuple[str, ...]) -> list[str]:
    """``importer -> imported`` where the imported module lies in a higher layer."""
    order = [layer.removesuffix(".py") for layer in layers]

    def height(name: str) -> int:
        package, _, rest = name.partition(".")
        if package != "rayfed_ssl":
            return len(order) + 1 + ["actors", "tune"].index(package)
        return order.index(layer) if (layer := rest.split(".")[0]) in order else len(order)

    return [f"{a} -> {b}" for a in edges for b in sorted(edges[a]) if height(b) > height(a)]


def test_no_circle_and_no_import_back_up() -> None:
    known = modules()
    edges = {name: imports_of(path, known) for name, path in known.items()}
    assert circles(edges) == []
    roots = ("rayfed_ssl.api.", "rayfed_ssl.commands.", "rayfed_ssl.testing.contract")  # held by the test above
    assert upward({name: found for name, found in edges.items() if not name.startswith(roots)}, LAYERS) == []


def test_no_circle_between_what_lies_side_by_side_in_a_package() -> None:
    """No two modules import each other, but two packages could, by different modules."""
    known = modules()
    edges = {name: imports_of(path, known) for name, path in known.items()}
    packages = [name for name, path in known.items() if path.name == "__init__.py"]
    assert {"rayfed_ssl", "rayfed_ssl.data", "rayfed_ssl.data.readers"} <= set(packages)
    assert {package: found for package in packages if (found := circles(side_by_side(package, edges)))} == {}


def test_within_data_what_is_read_what_is_decoded_and_what_is_kept_are_apart() -> None:
    """The sentences of docs/architecture.md."""
    known = modules()
    parts = side_by_side("rayfed_ssl.data", {name: imports_of(path, known) for name, path in known.items()})
    low = {"images", "source_notes", "holdout"}
    for name in low:
        assert parts[name] <= low
    assert parts["decoding"] <= low
    assert parts["pixels"] <= {*low, "decoding"}
    assert parts["readers"] <= {*low, "decoding"}
    assert not parts["sources"] & {"pixels", "loading"}
    assert {"decoding", "pixels", "readers", "sources"} <= parts["loading"]
    assert {name for name, found in parts.items() if "sources" in found} == {"catalogue", "loading"}
    for name in ("partition", "partition_base", "partition_rules", "partition_file", "feature_skew"):
        assert not parts[name] & {"readers", "sources", "loading"}


def test_no_import_is_for_types_only() -> None:
    guarded = re.compile(r"^\s*if (typing\.)?TYPE_CHECKING", re.MULTILINE)
    assert [str(path) for path in modules().values() if guarded.search(path.read_text(encoding="utf-8"))] == []


def test_circles_and_arrows_back_up_are_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]
    across = {
        "p.q.a": {"p.r.b", "p.q.z"},
        "p.q.z": set(),
        "p.r.b": {"o"},
        "o": set(),
        "p.r.c": {"p.q.z"},
        "p.s": {"p.q.a"},
    }
    assert circles(across) == []
    assert side_by_side("p", across) == {"q": {"r"}, "r": {"q"}, "s": {"q"}}
    assert circles(side_by_side("p", across)) == ["q", "r"]
    edges = {"rayfed_ssl.base.x": {"rayfed_ssl.config"}, "actors.y": {"rayfed_ssl.config", "tune.z"}, "tune.z": set()}
    assert upward(edges, LAYERS) == ["rayfed_ssl.base.x -> rayfed_ssl.config", "actors.y -> tune.z"]


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("rayfed_ssl/a.py", "def f():\n    import ray.util\n", 1),
        ("rayfed_ssl/a.py", "if 1:\n    from actors.client import x\n", 1),
        ("rayfed_ssl/a.py", "from . import tune\nimport raylike, rayfed_ssl\n", 0),
        ("rayfed_ssl/commands/run.py", "import tune\ndef f():\n    import actors\n    from tune import run\n", 1),
        ("rayfed_ssl/commands/run.py", "def f():\n    import ray\n", 1),
        ("rayfed_ssl/methods/cli.py", "def f():\n    import actors\n", 1),
        ("actors/a.py", "import ray, rayfed_ssl\ndef f():\n    from tune import run\n", 1),
        ("tune/a.py", "import ray, rayfed_ssl, actors\n", 0),
    ],
)
def test_the_check_itself_sees_what_it_should(path: str, source: str, count: int) -> None:
    assert len(violations(Path(path), source)) == count
