"""Cells of the leaderboard, and the rows made of their runs: one row per run, kept in one Parquet file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rayfed_ssl.config import RunConfig, load
from rayfed_ssl.records.comparison import Row
from rayfed_ssl.records.comparison_rows import of_variants
from rayfed_ssl.records.environment import host
from rayfed_ssl.records.one_run import OneRun
from rayfed_ssl.records.tables import read_metrics
from rayfed_ssl.settings import files as configfile

HERE = Path(__file__).resolve().parent.parent
CONFIGS = HERE.parent / "configs"
BOARD = HERE / "leaderboard.yaml"
RESULTS = HERE / "results" / "leaderboard.parquet"
FIELD, SHORT = HERE / "field.yaml", HERE / "field_short.yaml"  # boards for a GPU
LONGER, MANY = HERE / "longer.yaml", HERE / "many_clients.yaml"  # other boards
LOSSES, BYTES, ROUNDS = HERE / "losses.yaml", HERE / "bytes.yaml", HERE / "rounds.yaml"
SERVER_STEPS, MOMENTUM = HERE / "server_steps.yaml", HERE / "momentum.yaml"
MOMENTUM_LONGER, MOMENTUM_METHODS = HERE / "momentum_longer.yaml", HERE / "momentum_methods.yaml"
MOMENTUM_MANY, MOMENTUM_MANY_LONGER = HERE / "momentum_many.yaml", HERE / "momentum_many_longer.yaml"
RECIPE, TRANSFORMER = HERE / "recipe.yaml", HERE / "transformer.yaml"
BOARDS = (
    BOARD, FIELD, SHORT, LONGER, MANY, LOSSES, BYTES, ROUNDS, SERVER_STEPS, MOMENTUM, MOMENTUM_LONGER, MOMENTUM_METHODS,
    MOMENTUM_MANY, MOMENTUM_MANY_LONGER, RECIPE, TRANSFORMER,
)  # fmt: skip
ONE, TUNED, MIXED = "one architecture", "tuned", "mixed architectures"
REFERENCE = "fedsimclr"
NOWHERE = Path("images")  # a path of images for configurations that are only compared
EARLY = 0.1  # of the rounds, after which a run's end is predicted
SCORES = ("linear", "knn", "fewshot", "semi_1")
MEASURE = "knn"  # the main measure; bytes and hours are counted to 90% of its gain
MEASURES = {"knn": "kNN", "linear": "linear", "fewshot": "few-shot"}  # what methods are compared by, in words
TEXTS = (
    "data", "partition", "table", "method", "objective", "status", "keys", "settings", "commit", "machine", "torch",
    "split", "by_encoder",
)  # fmt: skip
COUNTS = ("seed", "rounds", "bytes_total", "early_round")
FLAGS = ("tuned", "changed")
NUMBERS = (
    *SCORES, "effective_rank", "uniformity", "alignment",
    "select_linear", "select_knn", "untrained_linear", "untrained_knn", "untrained_fewshot", "untrained_semi_1",
    "untrained_effective_rank", "pixels_fewshot",
    "bytes_per_round", "bytes_to_90", "hours_to_90", "hours_total", "epsilon",
    "early_loss", "early_effective_rank", "early_uniformity", "minutes",
)  # fmt: skip
SCHEMA = pa.schema(
    [(name, pa.string()) for name in TEXTS]
    + [(name, pa.int64()) for name in COUNTS]
    + [(name, pa.bool_()) for name in FLAGS]
    + [(name, pa.float64()) for name in NUMBERS]
)
Record = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A run that the leaderboard needs. ``keys``: dotted keys that change the data set's config; the seed is among
    them.
    """

    data: str
    partition: str
    table: str
    method: str
    seed: int
    config: Path
    keys: Mapping[str, Any]
    tuned: bool = False

    @property
    def address(self) -> tuple[str, str, str, str, int]:
        return self.data, self.partition, self.table, self.method, self.seed

    @property
    def folder(self) -> Path:
        """The run's folder, relative to that of the leaderboard."""
        own = {ONE: self.method, TUNED: f"{self.method}-tuned", MIXED: f"{self.method}-mixed"}[self.table]
        return Path(self.data) / self.partition / own / f"seed-{self.seed}"

    @property
    def settings(self) -> str:
        """A digest of the config's keys and the cell's. What the code makes of them is identified by the row's
        commit.
        """
        document = _parsed(self.config, self.config.read_text(encoding="utf-8"))
        text = json.dumps([document, dict(self.keys)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def built(self, data: Path) -> RunConfig:
        """The run's configuration with images below ``data``. Raises UserError if it cannot be built."""
        changes = {**self.keys, "data.path": str(data / self.data)}
        return load(self.config, [f"{key}={json.dumps(value)}" for key, value in changes.items()])


@lru_cache
def _parsed(path: Path, text: str) -> dict[str, Any]:
    """A configuration file that holds ``text``. It is cached, because hundreds of cells have the same file."""
    return configfile.read(path)


def cells(
    board: Mapping[str, Any],
    data: Sequence[str],
    partitions: Sequence[str],
    seeds: Sequence[int],
    methods: Sequence[str] = (),
    winners: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
) -> Iterator[Cell]:
    """The cells of ``board`` in the order in which they are run: by data set, partition, seed, table, method. A method
    of one architecture is followed by the same with the keys that tuning chose, if its grid has been run.

    Args:
        methods: only these; none given: all.
        winners: (data set, method) -> the keys that tuning chose.
    """
    chosen = {} if winners is None else winners
    nothing: dict[str, Any] = {}
    blocks = ((ONE, nothing, board["methods"]), (MIXED, board["mixed"]["keys"], board["mixed"]["methods"]))
    for name in data:
        for partition in partitions:
            for seed in seeds:
                for table, shared, rows in blocks:
                    for method, own in rows.items():
                        if methods and method not in methods:
                            continue
                        keys = {**board["partitions"][partition], **shared, "method.name": method, **own, "seed": seed}
                        cell = Cell(name, partition, table, method, seed, CONFIGS / board["data"][name], keys)
                        yield cell
                        if table == ONE and (best := chosen.get((name, method))):
                            yield replace(cell, table=TUNED, keys={**keys, **other(cell, best)}, tuned=True)


def other(cell: Cell, best: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ``best`` whose values change the cell. A grid that confirms a default therefore needs no other
    run.
    """
    found: dict[str, Any] = {}
    for key, value in best.items():
        now = replace(cell, keys={**cell.keys, **found})
        if replace(now, keys={**now.keys, key: value}).built(NOWHERE) != now.built(NOWHERE):
            found[key] = value
    return found


# -- rows --------------------------------------------------------------------------------------------------------------


def record(cell: Cell, folder: Path, config: RunConfig) -> Record:
    """The row of the run in ``folder``, which is complete or diverged; a diverged one has no accuracies."""
    made = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    found: Record = dict.fromkeys(SCHEMA.names)
    found |= {
        "data": cell.data, "partition": cell.partition, "table": cell.table, "method": cell.method, "seed": cell.seed,
        "objective": config.objective.name, "status": summary["status"], "keys": json.dumps(dict(cell.keys)),
        "tuned": cell.tuned,
        "settings": cell.settings, "rounds": summary["rounds"], "minutes": summary["wall_s"] / 60,
        "commit": str(made["git_revision"] or "unknown")[:8], "changed": bool(made["git_changed"]),
        "machine": machine(made["host"], made["device"]), "torch": made["versions"]["torch"].split("+")[0],
    }  # fmt: skip
    if summary["status"] != "complete":
        return found
    row = of_variants({cell.method: [folder]}).first
    run = row.runs[cell.seed]
    if cell.table == MIXED:
        found["by_encoder"] = json.dumps(_by_encoder(summary["accuracy"], config))
    return found | _measured(run, row) | _early(run) | _labels(folder)


def _by_encoder(accuracy: Mapping[str, Any], config: RunConfig) -> dict[str, dict[str, float]]:
    """Architecture -> measure -> accuracy: the mean over the clients that have it, or that of a student."""
    found: dict[str, dict[str, list[float]]] = {}
    student = getattr(config.method, "student", None) or config.clients.encoder(0)
    for measure in MEASURES:
        values = accuracy.get(measure)
        each = values.items() if isinstance(values, Mapping) else [(None, values)]
        for client, value in each:
            if value is not None:
                encoder = student if client is None else config.clients.encoder(int(client))
                found.setdefault(encoder, {}).setdefault(measure, []).append(value)
    return {encoder: {name: fmean(of) for name, of in values.items()} for encoder, values in found.items()}


def here() -> str:
    """The name that rows give this machine if clients train on the CPU."""
    return machine(host())


def machine(host: Mapping[str, Any], device: str = "cpu") -> str:
    """What a run's bits depend on: the processor, the instructions that torch uses, and the GPU if one trained."""
    found = f"{host['cpu']}, {host['cpu_capability']}, {host['cores']} cores"
    return found if device == "cpu" else f"{found}; {device}"


def _measured(run: OneRun, row: Row) -> Record:
    """The fields of a row that come from the run's last values, its costs and the values before training."""
    values, before = run.values, run.untrained
    return {
        "linear": values.get("linear"), "knn": values.get("knn"), "fewshot": values.get("fewshot"),
        "select_linear": values.get("select/linear"), "select_knn": values.get("select/knn"),
        "effective_rank": values.get("features/rankme"), "uniformity": values.get("features/uniformity"),
        "alignment": values.get("features/alignment"),
        "untrained_linear": before.get("linear"), "untrained_knn": before.get("knn"),
        "untrained_fewshot": before.get("fewshot"), "untrained_effective_rank": before.get("features/rankme"),
        "pixels_fewshot": run.pixels.get("fewshot"),
        "bytes_total": run.total_bytes, "bytes_per_round": row.bytes_per_round, "bytes_to_90": row.bytes_to(MEASURE),
        "hours_to_90": row.hours_to(MEASURE), "hours_total": row.virtual_hours, "epsilon": row.epsilon,
        "split": run.split,
    }  # fmt: skip


def _early(run: OneRun) -> Record:
    """Loss after a tenth of the rounds, and what describes features in the first evaluated round from then on."""
    wanted = max(1, math.ceil(EARLY * run.rounds))
    metrics = read_metrics(run.folder).to_pylist()

    def of(tag: str) -> dict[int, float]:
        rows = [row for row in metrics if row["tag"] == tag]
        rounds = {row["round"] for row in rows}
        return {
            t: sum(values) / len(values) for t in rounds if (values := [r["value"] for r in rows if r["round"] == t])
        }

    rank, uniformity, loss = of("features/rankme"), of("features/uniformity"), of("train/loss")
    at = min((t for t in rank if wanted <= t < run.rounds), default=None)
    return {
        "early_round": at,
        "early_loss": loss.get(wanted) if run.rounds > 1 else None,
        "early_effective_rank": None if at is None else rank[at],
        "early_uniformity": None if at is None else uniformity.get(at),
    }


def _labels(folder: Path) -> Record:
    """The fields that a later evaluation added to the run folder: accuracy after fine-tuning with 1% of the labels."""
    path = folder / "evaluation.json"
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    trained = [values["semi_1"] for values in found["accuracy"].values() if "semi_1" in values]
    before = [values["semi_1"] for values in found["untrained"].values() if "semi_1" in values]
    return {
        "semi_1": sum(trained) / len(trained) if trained else None,
        "untrained_semi_1": sum(before) / len(before) if before else None,
    }


# -- the file ----------------------------------------------------------------------------------------------------------


def read(path: Path = RESULTS) -> list[Record]:
    """All rows; none if the file does not exist yet."""
    rows: list[Record] = pq.read_table(path, schema=SCHEMA).to_pylist() if path.exists() else []
    return rows


def load_board(path: Path = BOARD) -> dict[str, Any]:
    """``leaderboard.yaml``, or another board."""
    board: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return board


def results_of(board: Path) -> Path:
    """The file with the rows of a board."""
    return RESULTS.with_stem(board.stem)


def address(row: Record) -> tuple[str, str, str, str, int]:
    return row["data"], row["partition"], row["table"], row["method"], row["seed"]


def write(rows: Sequence[Record], path: Path = RESULTS) -> None:
    """Write all rows, in the order of their addresses; a reader never sees half of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    pq.write_table(pa.Table.from_pylist(sorted(rows, key=address), SCHEMA), draft, compression="zstd")
    draft.replace(path)


def put(row: Record, path: Path = RESULTS) -> None:
    """Write a row in place of the one with the same data set, partition, table, method and seed."""
    write([other for other in read(path) if address(other) != address(row)] + [row], path)
