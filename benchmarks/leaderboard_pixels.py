"""The accuracies of raw pixels by the protocols of the leaderboard: a rival that learns nothing.

    python benchmarks/leaderboard_pixels.py --data ../shared/data [--seeds 3 4 5]

Trains nothing. For every data set of ``leaderboard.yaml`` and every seed (by default its own), it measures raw pixels
as a run of this seed does, by the config's protocols and their settings. Appends a line for each to
``results/pixels.jsonl``, which ``python docs/generate.py`` reads. All partitions share these images. In the lines of
seeds 0 to 2, few-shot accuracy is of values divided by 255, while a run's is of bytes: they differ in the fourth digit,
and rows have the run's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parent))

import json_lines
from boards import rows
from boards.rows import load_board
from machine import described

from rayfed_ssl.federated.federation import Federation, load_federation
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.settings.run import RunSettings

RESULTS = rows.RESULTS.with_name("pixels.jsonl")
Line = dict[str, Any]


def measured(config: RunSettings, federation: Federation) -> dict[str, float]:
    """Measure -> accuracy of raw pixels, for each of the leaderboard's measures."""
    found = ProcessContext(config, federation).evaluate_pixels()
    return {measure: found[measure] for measure in rows.MEASURES}


def of_cell(board: dict[str, Any], data: str, seed: int, images: Path) -> Line:
    """The line of a data set and a seed. ``images``: the folder with a folder per data set."""
    (cell,) = rows.cells(board, [data], ["iid"], [seed], [rows.REFERENCE])
    config = cell.built(images)
    return {"data": data, "seed": seed, **measured(config, load_federation(config)), **described()}


def onto(found: Sequence[rows.Record], lines: Sequence[Line]) -> list[rows.Record]:
    """The rows with the accuracies of raw pixels added as ``pixels_<measure>``, from the lines of their data set and
    seed; few-shot accuracy is the run's own.
    """
    known = {(line["data"], line["seed"]): line for line in lines}
    return [_with(row, known.get((row["data"], row["seed"]), {})) for row in found]


def _with(row: rows.Record, line: Line) -> rows.Record:
    """One row with the accuracies of raw pixels that it lacks."""
    measured_alone = [measure for measure in rows.MEASURES if f"pixels_{measure}" not in row]
    return {**row, **{f"pixels_{measure}": line.get(measure) for measure in measured_alone}}


def main() -> None:
    board = load_board()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with a folder per data set")
    parser.add_argument("--seeds", type=int, nargs="+", default=board["seeds"])
    arguments = parser.parse_args()
    images = arguments.data.resolve()
    known = {(line["data"], line["seed"]) for line in json_lines.read(RESULTS)}
    for data in board["data"]:
        for seed in arguments.seeds:
            if (data, seed) not in known:
                line = of_cell(board, data, seed, images)
                json_lines.append(RESULTS, line)
                print({name: line[name] for name in ("data", "seed", *rows.MEASURES)}, flush=True)


if __name__ == "__main__":
    main()
