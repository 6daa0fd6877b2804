"""Finds out whether a change that should change no number has changed one. One JSON line per method: digests of its
tiny run.

    python benchmarks/digests.py > before.jsonl      # at the old commit python benchmarks/digests.py --against
    before.jsonl

Digested are the exported encoders, every measured value except clocks, every booking, and config.yaml. Digests can be
compared on one CPU model, with one thread and one version of torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rayfed_ssl.methods import METHODS
from tests.tiny import booked, encoders, measured, run_locally, tiny


def digest(value: object) -> str:
    """16 hexadecimal digits."""
    return hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).hexdigest()[:16]


def digests(method: str, folder: Path) -> dict[str, str]:
    """The digests of each part of what a tiny run leaves behind."""
    run_locally(tiny(method), folder)
    return {
        "encoders": digest(sorted((name, digest(values)) for name, values in encoders(folder).items())),
        "measured": digest(sorted(measured(folder).items(), key=repr)),
        "booked": digest(booked(folder)),
        "config": digest((folder / "config.yaml").read_bytes()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="digests to compare with; exit status 1 where one differs")
    parser.add_argument("methods", nargs="*", default=sorted(METHODS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = options.against.read_text(encoding="utf-8").splitlines() if options.against else []
    known = {row.pop("method"): row for row in map(json.loads, lines)}
    differing = 0
    for method in options.methods:
        with tempfile.TemporaryDirectory() as folder:
            found = digests(method, Path(folder) / "tiny")
        wrong = [part for part, value in found.items() if known.get(method, found).get(part) != value]
        differing += bool(wrong)
        print(json.dumps({"method": method, **found, **({"differs": wrong} if wrong else {})}), flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
