"""Every committed number names a commit that can be checked out, of a tree without changes."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest
from boards.rows import BOARDS, read, results_of

from tests.places import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def made_at() -> Counter[tuple[str, str, bool]]:
    """(file, commit, whether the tree had changes) -> rows."""
    found: Counter[tuple[str, str, bool]] = Counter()
    for path in sorted(RESULTS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            known = json.loads(line)
            if commit := known.get("commit"):
                name, _, more = commit.partition("-")
                found[path.name, name, more == "dirty" or bool(known.get("changed"))] += 1
    for path in map(results_of, BOARDS):
        found.update((path.name, row["commit"], row["changed"]) for row in read(path))
    return found


def test_every_number_names_a_commit_of_this_history() -> None:
    try:
        if git("rev-parse", "--is-shallow-repository").strip() == "true":
            pytest.skip("the history is not all here")
        known = {commit[:8] for commit in git("rev-list", "HEAD").split()}
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git history here")
    assert {(file, commit): count for (file, commit, _), count in made_at().items() if commit not in known} == {}


def test_no_number_was_made_from_a_tree_with_changes() -> None:
    assert {(file, commit): count for (file, commit, changed), count in made_at().items() if changed} == {}
