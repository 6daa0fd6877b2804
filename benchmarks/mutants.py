"""Checks whether the tests would notice wrong equations: breaks lines on purpose, one at a time, and runs tests.

    python benchmarks/mutants.py                        # all of benchmarks/mutants.toml; make mutants
    python benchmarks/mutants.py --only flesd --jobs 2  # those whose file, text or equation holds "flesd"
    python benchmarks/mutants.py --short                # with the tests of `make test` only

A mutant is applied to a temporary copy of the tree, never to the working tree. One line per mutant: which test killed
it, or SURVIVED. Exit status 1 if one survives, 2 if the list or the unbroken tree is at fault.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import re
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
SOURCES = ("rayfed_ssl", "actors", "tune", "benchmarks")  # where files are looked for
COPIED = ("rayfed_ssl", "actors", "tune", "tests", "benchmarks", "configs", "docs", "pyproject.toml")
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "torchvision", "sklearn.linear_model", "scipy.optimize", "pyarrow.parquet", "pydantic", "pytest"]
NOTHING_CHOSEN = 5  # pytest's exit status
LIMIT_S = 600  # seconds of CPU; a mutant that never ends counts as killed
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class BadTable(ValueError):
    """An entry of the table does not fit the tree. The message names the entry."""


@dataclass(frozen=True)
class Mutant:
    """One broken line."""

    file: str  # name of a file anywhere below SOURCES; with its folder's name if another file has the same name
    breaks: str  # the equation, and what is wrong without the line
    text: str  # found once in the files of that name
    replacement: str
    tests: tuple[str, ...]  # names of test files anywhere below tests/

    def __str__(self) -> str:
        return f"{self.file}: {self.breaks}"

    def applied(self, root: Path) -> tuple[Path, str]:
        """The file below ``root`` that this changes, and its new content. Raises BadTable if the text is not found
        once.
        """
        paths = [path for source in SOURCES for path in sorted((root / source).rglob(self.file))]
        holders = [(path, source) for path in paths if self.text in (source := read(path))]
        found = sum(source.count(self.text) for _, source in holders)
        if found != 1:
            raise BadTable(f"{self}: found {found} times in files named {self.file}, wanted once: {self.text!r}")
        ((path, source),) = holders
        return path, source.replace(self.text, self.replacement)

    def test_files(self, root: Path) -> list[Path]:
        """The paths of the test files. Raises BadTable if no test file has a name, or several have it."""
        chosen = []
        for name in self.tests:
            found = sorted((root / "tests").rglob(name))
            if len(found) != 1:
                raise BadTable(f"{self}: found {len(found)} test files named {name}, wanted one")
            chosen += found
        return chosen


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def load(table: Path = TABLE) -> list[Mutant]:
    """The mutants of a table: groups of one file and its tests, each with rows [what breaks, text, replacement]."""
    groups = tomllib.loads(read(table))["group"]
    return [Mutant(g["file"], *row, tuple(g["tests"])) for g in groups for row in g["mutants"]]


def pytest(root: Path, tests: Sequence[Path], marks: str = "") -> tuple[int, str]:
    """The exit status and the output of tests of the tree at ``root``, in a fresh process: those tests that pytest's
    ``-m`` chooses by ``marks``.

    The process is forked from one that has loaded the large libraries, because loading takes longer than most tests.
    """
    output = root / "output.txt"
    process = CONTEXT.Process(target=run_tests, args=(root, ["-m", marks, *map(str, tests)], output))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, read(output)


def run_tests(root: Path, arguments: Sequence[str], output: Path) -> None:
    """Run the tests; the body of that process. It writes no bytecode, whose date could hide a change."""
    import pytest

    os.environ |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 5))
    os.chdir(root)
    sys.path.insert(0, str(root))
    with output.open("w", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        import rayfed_ssl.config

        if not Path(rayfed_ssl.config.__file__).is_relative_to(root):
            sys.exit(f"not the copy below {root} was imported, but {rayfed_ssl.config.__file__}")
        status = pytest.main(["-x", "-rfE", "-p", "no:cacheprovider", *arguments])
        sys.stdout.flush()
    os._exit(int(status))  # nothing is left to do


@contextmanager
def copies(count: int) -> Iterator[list[Path]]:
    """``count`` temporary copies of the tree."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        roots = [Path(folder).resolve() / str(i) for i in range(count)]
        for root in roots:
            root.mkdir()
            for name in COPIED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(source, root / name)
        yield roots


def verdict(mutant: Mutant, root: Path, marks: str = "") -> tuple[bool, str]:
    """Whether the tests that ``marks`` chooses killed it, and which one did."""
    path, broken = mutant.applied(root)
    whole = read(path)
    path.write_text(broken, encoding="utf-8")
    try:
        status, output = pytest(root, mutant.test_files(root), marks)
    finally:
        path.write_text(whole, encoding="utf-8")
    if status in (0, NOTHING_CHOSEN):
        return False, ""
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return True, f"{LIMIT_S} s without an end"
    killer = FAILED.search(output)
    if status != 1 or killer is None:  # a mutant that cannot be imported shows nothing
        raise BadTable(f"{mutant}: the tests did not run: {output.strip()[-400:]}")
    return True, killer[1]


def check_whole(test: Path, root: Path) -> None:
    """Raise BadTable if a test file fails without any mutant."""
    status, output = pytest(root, [root / test])
    if status:
        raise BadTable(f"the unbroken tree fails {test}:\n{output[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression over file, equation, text")
    parser.add_argument(
        "--jobs", type=int, default=1, help="mutants at a time, each with a core and a copy of the tree"
    )
    parser.add_argument("--short", action="store_true", help="by the tests of make test alone, none of make test-long")
    options = parser.parse_args()
    marks = "not long" if options.short else ""
    wanted = re.compile(options.only, re.IGNORECASE)
    mutants = [m for m in load() if wanted.search(f"{m}\n{m.text}")]
    survivors = 0
    os.environ["OMP_NUM_THREADS"] = "1"  # read by torch when it is imported
    CONTEXT.set_forkserver_preload(PRELOADED)
    try:
        for mutant in mutants:
            mutant.applied(ROOT)
            mutant.test_files(ROOT)
        with copies(options.jobs) as roots, ThreadPoolExecutor(options.jobs) as pool:
            free: queue.Queue[Path] = queue.Queue()
            for root in roots:
                free.put(root)

            def lent(work: Callable[[Any, Path], Any], item: Any) -> Any:
                root = free.get()
                try:
                    return work(item, root)
                finally:
                    free.put(root)

            files = sorted({test.relative_to(ROOT) for mutant in mutants for test in mutant.test_files(ROOT)})
            list(pool.map(partial(lent, check_whole), files))
            verdicts = pool.map(partial(lent, partial(verdict, marks=marks)), mutants)
            for mutant, (killed, by) in zip(mutants, verdicts, strict=True):
                survivors += not killed
                print(f"killed    {mutant}  [{by}]" if killed else f"SURVIVED  {mutant}", flush=True)
    except BadTable as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    print(f"{len(mutants)} mutants, {len(mutants) - survivors} killed, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
