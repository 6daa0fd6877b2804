"""The leaderboard: every method on every partition and data set at one budget of local steps.

    python benchmarks/leaderboard.py --data ../shared/data [--sets fashion_mnist ..] [--partitions iid ..]
        [--methods fedsimclr fedca ..] [--tables one mixed] [--seeds 0 1 2] [--jobs 2] [--out runs/leaderboard]
    python benchmarks/leaderboard.py --data ../shared/data --tune        # each method's own small grid
    python benchmarks/leaderboard.py --data ../shared/data --labels      # 1% of the labels, for rows that lack it
    python benchmarks/leaderboard.py --data ../shared/data --again       # rows from the run folders, without running
    python benchmarks/leaderboard.py --figure                            # docs/figures/leaderboard*.png
    python benchmarks/leaderboard.py --data ../shared/data --board benchmarks/longer.yaml       # five times the rounds
    python benchmarks/leaderboard.py --data ../shared/data --board benchmarks/many_clients.yaml # 50 clients, 10 a round
    python benchmarks/leaderboard.py --data ../shared/data --board benchmarks/losses.yaml       # more local losses
    python benchmarks/leaderboard.py --data ../shared/data --board benchmarks/bytes.yaml        # FedSimCLR in few bytes
    python benchmarks/leaderboard.py --data ../shared/data --board benchmarks/rounds.yaml       # and in few rounds
    python benchmarks/leaderboard.py --data ../shared/data --board benchmarks/server_steps.yaml # and with larger steps
    python benchmarks/leaderboard.py --data ../shared/data --board benchmarks/momentum.yaml     # and one again
    python benchmarks/leaderboard.py --data ../shared/data --board benchmarks/recipe.yaml       # and all together
    python benchmarks/leaderboard.py --data ../shared/data --board benchmarks/transformer.yaml  # an encoder of patches
    python benchmarks/leaderboard.py --data FOLDER --board benchmarks/field.yaml        # the papers' sizes, on a GPU
    python benchmarks/leaderboard.py --data FOLDER --board benchmarks/field_short.yaml  # a 25th of its local epochs

Cells, keys and grid stand in ``leaderboard.yaml``. A cell is an ordinary run folder below ``--out``; stopped at any
moment, the command goes on where it was. A row of ``results/leaderboard.parquet`` is written as its run ends; a cell is
run again where its row was made with other settings. ``python docs/generate.py`` writes the tables of
docs/leaderboard.md and what they come to in docs/results.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # for this process and those it starts
sys.path.insert(0, str(Path(__file__).resolve().parent))

import json_lines
from boards import rows, tuning
from boards.rows import Cell, Record, load_board
from processes import end_with_parent

LABELS = ("evaluation.semi.fractions=[0.01]", "evaluation.semi.epochs=50", "evaluation.train_images=null")
TABLES = {"one": rows.ONE, "tuned": rows.TUNED, "mixed": rows.MIXED}
FIGURES = rows.HERE.parent / "docs" / "figures"
SUMMARY, ERROR = "summary.json", "error.txt"


def run_cell(cell: Cell, data: Path, folder: Path) -> str | None:
    """Run a cell to its end in this process, in ``folder``. Returns None, or in one line why it failed.

    A folder with a part of the run is continued. Raises KeyboardInterrupt if the run was stopped.
    """
    import rayfed_ssl

    changes = {**cell.keys, "data.path": str(data / cell.data), "resources.threads": 1}
    changes = {key.replace(".", "__"): value for key, value in changes.items()}
    try:
        resume = (folder / "config.yaml").exists()
        run = rayfed_ssl.run(cell.config, out=folder, resume=resume, executor="local", progress=False, **changes)
    except Exception as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        return " ".join(str(error).split()) or type(error).__name__
    if run.status == "stopped":
        raise KeyboardInterrupt
    (folder / ERROR).unlink(missing_ok=True)
    return None


def add_labels(folder: Path) -> str | None:
    """Fine-tune a finished run with 1% of the labels and measure it. Returns None, or in one line why that failed."""
    from rayfed_ssl.simulation.reevaluation import reevaluate

    try:
        reevaluate(folder, ["semi"], LABELS)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


def ended(
    call: Callable[..., str | None], arguments: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[tuple[int, str | None]]:
    """Make the calls and yield (number, None or why it failed) as each ends: in this process one by one, or with
    several ``jobs`` in other processes.
    """
    if jobs == 1:
        for number, given in enumerate(arguments):
            yield number, call(*given)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=end_with_parent) as executor:
        pending = {executor.submit(call, *given): number for number, given in enumerate(arguments)}
        for future in as_completed(pending):
            yield pending[future], future.result()


def missing(wanted: Sequence[Cell], known: Sequence[Record]) -> list[Cell]:
    """The cells without a row that has their settings."""
    have = {(rows.address(row), row["settings"]) for row in known}
    return [cell for cell in wanted if (cell.address, cell.settings) not in have]


def run_missing(wanted: Sequence[Cell], data: Path, out: Path, jobs: int, path: Path) -> int:
    """Run the cells without a row, and write each row when its run ends. Returns how many failed."""
    confirm_defaults(wanted, path)
    todo = [(cell, folder_of(cell, cell.settings, out)) for cell in missing(wanted, rows.read(path))]
    print(f"{len(todo)} of {len(wanted)} cells to run, {jobs} at a time", flush=True)
    failed = 0
    for number, why in ended(run_cell, [(cell, data, folder) for cell, folder in todo], jobs):
        cell, folder = todo[number]
        if why is not None:
            failed += 1
            print(f"{cell.folder} failed: {why} ({folder / ERROR})", flush=True)
            continue
        row = rows.record(cell, folder, cell.built(data))
        rows.put(row, path)
        print(told(row), flush=True)
    return failed


def confirm_defaults(wanted: Sequence[Cell], path: Path) -> None:
    """Copy a method's row to its tuned row if tuning chose the method's defaults, provided that a processor of this
    kind made the row, because the rows of a table are compared.
    """
    known, here = rows.read(path), rows.here()
    plain = {(rows.address(row), row["settings"]): row for row in known}
    for cell in missing(wanted, known):
        own = plain.get((replace(cell, table=rows.ONE).address, cell.settings))
        if cell.table == rows.TUNED and own is not None and own["machine"] == here:
            rows.put({**own, "table": rows.TUNED, "tuned": True}, path)


def folder_of(cell: Cell, settings: str, out: Path) -> Path:
    """The run folder of a cell; ``settings`` is the digest of its settings."""
    return out / cell.folder.with_name(f"{cell.folder.name}-{settings}")


def told(row: Record) -> str:
    """A row's results on one line."""
    values = [f"{name} {row[name]:.3f} ({row[f'untrained_{name}']:.3f})" for name in ("linear", "knn") if row[name]]
    kind = "" if row["table"] == rows.ONE else f" {row['table']}"
    where = f"{row['data']} {row['partition']} {row['method']}{kind}"
    return f"{where} seed {row['seed']}: {row['status']}, {', '.join(values)}, {row['minutes']:.1f} min"


def label_missing(wanted: Sequence[Cell], data: Path, out: Path, jobs: int, path: Path) -> int:
    """Fine-tune with 1% of the labels the runs whose rows lack that and whose folders are here. Returns how many
    failed.
    """
    todo = [(c, r, f) for c, r, f in at_hand(wanted, out, path) if r["semi_1"] is None and r["status"] == "complete"]
    failed = 0
    for number, why in ended(add_labels, [(folder,) for _, _, folder in todo], jobs):
        cell, row, folder = todo[number]
        if why is None:
            rows.put(again(cell, row, folder, data), path)
        failed += why is not None
        print(f"{cell.folder}: 1% of the labels{'' if why is None else f' failed: {why}'}", flush=True)
    return failed


def at_hand(wanted: Sequence[Cell], out: Path, path: Path) -> Iterator[tuple[Cell, Record, Path]]:
    """The cells that have a row and whose run folder is here."""
    known = {rows.address(row): row for row in rows.read(path)}
    for cell in wanted:
        row = known.get(cell.address)
        if row is not None and ((folder := folder_of(cell, row["settings"], out)) / SUMMARY).exists():
            yield cell, row, folder


def again(cell: Cell, row: Record, folder: Path, data: Path) -> Record:
    """A row made again from its run folder; fields that the folder does not have keep their values."""
    made = {name: row[name] for name in ("settings", "keys")}
    made["tuned"] = cell.tuned if cell.settings == row["settings"] else row["tuned"]
    return rows.record(cell, folder, cell.built(data)) | made


def row_again(wanted: Sequence[Cell], data: Path, out: Path, jobs: int, path: Path) -> int:
    """Make the rows again from the run folders that are here, for example after the library counts differently. Runs
    nothing.
    """
    for cell, row, folder in list(at_hand(wanted, out, path)):
        rows.put(again(cell, row, folder, data), path)
    return 0


def tune(
    board: Mapping[str, Any],
    sets: Sequence[str],
    methods: Sequence[str],
    data: Path,
    out: Path,
    jobs: int,
    path: Path = tuning.RESULTS,
) -> int:
    """Run the grids, each method's next key at a time, and append a line to ``path`` for every value. Returns how many
    methods failed; their other keys are left for the next call.
    """
    failed: set[tuple[str, str]] = set()
    wanted = [(name, method) for name in sets for method in methods or board["methods"]]
    while True:
        lines = json_lines.read(path)
        todo = [step for own in wanted if own not in failed for step in tuning.tuned_cells(board, *own, lines)]
        for key, cell, line in [(*step, line) for step in todo if (line := tuning.known(*step, lines)) is not None]:
            json_lines.append(path, line)
            todo.remove((key, cell))
            _tell(cell, key, line["score"])
        failed |= _tune_keys(todo, board["tuning"]["measure"], data, out / "tuning", jobs, path)
        if not todo and len(json_lines.read(path)) == len(lines):
            return len(failed)


def _tune_keys(
    todo: Sequence[tuple[str, Cell]], measure: str, data: Path, out: Path, jobs: int, path: Path
) -> set[tuple[str, str]]:
    """Run these values of keys. Returns the (data set, method) of those that failed."""
    failed = set()
    folders = [out / cell.data / f"{cell.method}-{cell.settings}" for _, cell in todo]
    calls = [(cell, data, folder) for (_, cell), folder in zip(todo, folders, strict=True)]
    for number, why in ended(run_cell, calls, jobs):
        (key, cell), folder = todo[number], folders[number]
        if why is None:
            row = rows.record(cell, folder, cell.built(data))
            json_lines.append(path, tuning.line_of(cell, key, row, measure))
            _tell(cell, key, row[f"select_{measure}"])
        else:
            failed.add((cell.data, cell.method))
            _tell(cell, key, f"failed: {why}")
    return failed


def _tell(cell: Cell, key: str, what: object) -> None:
    print(f"tuning {cell.data} {cell.method} {key}={cell.keys[key]}: {what}", flush=True)


def draw(known: Sequence[Record], board: Mapping[str, Any], path: Path) -> list[Path]:
    """Write the figure of accuracy against bytes to ``path`` and that of the protocols beside it. Returns the paths;
    none if no data set has two federated methods with runs beside the reference's.
    """
    from boards import figure, forest

    if (first := figure.figure(known, board)) is None:
        return []
    second = forest.figure(known, board)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = {path: first, path.with_stem(f"{path.stem}_protocols"): second}
    for each, made in drawn.items():
        made.savefig(each)
    return list(drawn)


def main() -> None:
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--board", type=Path, default=rows.BOARD, help="another file of cells, such as field.yaml")
    if not (chosen := first.parse_known_args()[0].board).is_file():
        first.error(f"--board: {chosen} is no file")
    board = load_board(chosen)
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how, parents=[first])
    methods = list(dict.fromkeys([*board["methods"], *board["mixed"]["methods"]]))
    parser.add_argument("--data", type=Path, help="the folder with a folder per data set")
    parser.add_argument("--sets", nargs="+", choices=list(board["data"]), default=list(board["data"]))
    parser.add_argument("--partitions", nargs="+", choices=list(board["partitions"]), default=list(board["partitions"]))
    parser.add_argument("--methods", nargs="+", choices=methods, default=[])
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=board["seeds"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/leaderboard"))
    parser.add_argument("--rows", type=Path, help="the Parquet file of the rows; by default results/BOARD.parquet")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tune", action="store_true")
    what.add_argument("--labels", action="store_true")
    what.add_argument("--again", action="store_true")
    what.add_argument("--figure", action="store_true")
    a = parser.parse_args()
    a.rows = a.rows or rows.results_of(a.board)
    if a.figure:
        if not (drawn := draw(rows.read(a.rows), board, FIGURES / f"{a.board.stem}.png")):
            parser.error(f"--figure: {a.rows} has no two methods of a data set of {a.board.name} to compare")
        print("\n".join(str(path) for path in drawn))
        return
    if a.data is None:
        parser.error("--data: the folder with a folder per data set")
    data, out = a.data.resolve(), a.out.resolve()
    if absent := [str(a.data / name) for name in a.sets if not (data / name).is_dir()]:
        parser.error(f"--data: found no folder {', '.join(absent)}; one for each of --sets is needed")
    if a.tune and "tuning" not in board:
        parser.error(f"--tune: {a.board.name} has no grids")
    if a.tune and not (sets := tuning.with_grids(board, a.sets)):
        parser.error(f"--tune: other data sets choose the settings of {', '.join(a.sets)}: chosen_on in {a.board.name}")
    if a.tune:
        raise SystemExit(1 if tune(board, sets, a.methods, data, out, a.jobs) else 0)
    winners = tuning.settings(json_lines.read(tuning.RESULTS), board) if "tuning" in board else {}
    found = rows.cells(board, a.sets, a.partitions, a.seeds, a.methods, winners)
    wanted = [cell for cell in found if cell.table in {TABLES[name] for name in a.tables}]
    carry_out = label_missing if a.labels else row_again if a.again else run_missing
    raise SystemExit(1 if carry_out(wanted, data, out, a.jobs, a.rows) else 0)


if __name__ == "__main__":
    main()
