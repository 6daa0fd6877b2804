"""The leaderboard: cells, rows, tables, ranks, the grid, and what foretells a run's end."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from scipy import stats
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import leaderboard  # noqa: E402
import leaderboard_prediction as prediction  # noqa: E402
import leaderboard_rows as rows  # noqa: E402
import leaderboard_tables as tables  # noqa: E402
import leaderboard_tuning as tuning  # noqa: E402

from rayfed_ssl.models import build_encoder  # noqa: E402

BOARD = tables.load_board()
MODEL = {"width": 0.25, "projector": {"hidden": [16], "dim": 8}}


def row(method: str, seed: int = 0, knn: float | None = 0.5, **others: Any) -> rows.Record:
    """A row with these numbers; of what is not given there is none."""
    made: rows.Record = dict.fromkeys(rows.SCHEMA.names)
    made |= {
        "data": "cifar10", "partition": "iid", "table": rows.ONE, "method": method, "seed": seed, "knn": knn,
        "status": "complete", "commit": "abc", "changed": False, "tuned": False, "untrained_knn": 0.25,
        "bytes_total": 1_000_000, "objective": "simclr",
    }  # fmt: skip
    return made | others


# -- cells -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [rows.BOARD, rows.FIELD, rows.LONGER], ids=lambda path: path.stem)
def test_every_method_of_the_board_fits_its_configs(path: Path) -> None:
    board = tables.load_board(path)
    for name in board["data"]:
        for cell in rows.cells(board, [name], list(board["partitions"]), [0]):
            config = cell.built(Path("images"))
            assert config.method.name == cell.method
            assert config.data.partition.name == board["partitions"][cell.partition]["data.partition.name"]
            assert config.clients.heterogeneous == (cell.table == rows.MIXED)
            if cell.table == rows.MIXED and cell.partition == "iid":
                for encoder in {config.clients.encoder(c) for c in range(config.clients.count)}:
                    assert build_encoder(encoder, config.model, config.data.image_size).dim > 0


def test_a_board_without_mixed_architectures_lists_no_such_table() -> None:
    text = tables.page([], tables.load_board(rows.FIELD))
    assert "CIFAR-100, Dirichlet 0.1, 50 clients of which 10 a round, one architecture" in text
    assert rows.MIXED not in text


@pytest.mark.parametrize("data", sorted(BOARD["data"]))
def test_a_configs_header_has_the_numbers_of_the_rows(data: str) -> None:
    header = (rows.CONFIGS / BOARD["data"][data]).read_text(encoding="utf-8").split("\nmethod:")[0]
    shown = re.search(r"IID, (\d) seeds: kNN ([\d.]+) -> ([\d.]+)", " ".join(header.replace("#", "").split()))
    runs = tables.complete(tables.of_table(rows.read(), data, "iid", rows.ONE).get(rows.REFERENCE, {}))
    assert shown, "the header says what FedSimCLR comes to"
    assert int(shown[1]) == len(runs)
    means = [np.mean([row[name] for row in runs]) for name in ("untrained_knn", "knn")]
    assert [float(shown[2]), float(shown[3])] == pytest.approx(means, abs=0.000501)


def test_one_budget_of_local_steps() -> None:
    for name in BOARD["data"]:
        configs = [cell.built(Path("images")) for cell in rows.cells(BOARD, [name], ["iid"], [0])]
        assert {c.train.rounds * (c.train.local_steps or 0) for c in configs} == {200}
        assert len({(c.train.batch_size, c.data.limit, c.evaluation.train_images) for c in configs}) == 1


def test_cells_come_in_order_and_winners_go_over_the_boards_keys() -> None:
    chosen = {("cifar10", "fedca"): {"method.alignment_epochs": 7, "train.optimizer.lr": 0.5}}
    found = list(rows.cells(BOARD, ["cifar10"], ["iid", "dirichlet"], [0, 1], ["fedca", "flesd"], chosen))
    assert [cell.address for cell in found][:4] == [
        ("cifar10", "iid", rows.ONE, "fedca", 0),
        ("cifar10", "iid", rows.TUNED, "fedca", 0),
        ("cifar10", "iid", rows.ONE, "flesd", 0),
        ("cifar10", "iid", rows.MIXED, "flesd", 0),
    ]
    plain, tuned, *others = found
    assert plain.keys["method.alignment_epochs"] == BOARD["methods"]["fedca"]["method.alignment_epochs"] != 7
    assert tuned.keys == {**plain.keys, "method.alignment_epochs": 7, "train.optimizer.lr": 0.5}
    assert (plain.tuned, tuned.tuned, others[0].tuned) == (False, True, False)
    assert len({cell.folder for cell in found}) == len(found) == 16


def test_a_grid_that_confirms_a_default_asks_for_no_other_run() -> None:
    def cell(winners: dict[str, float]) -> rows.Cell:
        *_, found = rows.cells(BOARD, ["cifar10"], ["iid"], [0], ["fedca"], {("cifar10", "fedca"): winners})
        return found

    plain = cell({})
    same, other = cell({"train.optimizer.lr": 0.002}), cell({"train.optimizer.lr": 0.002, "method.beta": 0.1})
    assert (plain.tuned, same.tuned, other.tuned) == (False, True, True)
    assert same.settings == plain.settings
    assert other.keys == {**plain.keys, "method.beta": 0.1}


def test_a_tuned_row_that_is_the_default_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    chosen = {("cifar10", "fedca"): {"train.optimizer.lr": 0.002}, ("cifar10", "fedprox"): {"train.optimizer.lr": 0.1}}
    found = list(rows.cells(BOARD, ["cifar10"], ["iid"], [0], ["fedca", "fedprox"], chosen))
    for cell in found:
        if cell.table == rows.ONE:
            rows.put(row(cell.method, settings=cell.settings, keys=json.dumps(dict(cell.keys)), minutes=2.0), path)
    leaderboard.confirm_defaults(found, path)
    (left,) = leaderboard.missing(found, rows.read(path))
    assert left.address == ("cifar10", "iid", rows.TUNED, "fedprox", 0)
    plain, tuned = (r for r in rows.read(path) if r["method"] == "fedca")
    assert tuned == {**plain, "table": rows.TUNED, "tuned": True}
    rows.put(row("fedprox", knn=0.55, table=rows.TUNED, keys=json.dumps(dict(left.keys)), minutes=2.0), path)
    text = tables.gained(rows.read(path), BOARD)
    assert "| `fedca` | its defaults | 1 | 0.500 | the same run | the same run |" in text
    assert "| `fedprox` | `train.optimizer.lr=0.1` | 1 | 0.550 | +0.050 | - |" in text


def test_the_digest_is_of_the_configs_keys_and_the_cells(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("train: {rounds: 3}\n")
    cell = rows.Cell("cifar10", "iid", rows.ONE, "fedca", 0, config, {"seed": 0})
    before = cell.settings
    config.write_text("# a comment\ntrain:\n  rounds: 3\n")
    assert cell.settings == before
    assert rows.Cell(*cell.address, config, {"seed": 1}).settings != before
    config.write_text("train: {rounds: 4}\n")
    assert cell.settings != before


def test_no_row_was_made_with_other_settings_than_the_boards() -> None:
    chosen = tuning.winners(tuning.read(), BOARD)
    seeds = sorted({row["seed"] for row in rows.read()})  # also those that only the budgets were confirmed on
    wanted = rows.cells(BOARD, list(BOARD["data"]), list(BOARD["partitions"]), seeds, (), chosen)
    known = {cell.address: cell.settings for cell in wanted}
    found = {rows.address(row): row["settings"] for row in rows.read()}
    assert {address: known.get(address) for address in found} == found


# -- a run -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``digits/train.parquet`` and ``test.parquet`` with scikit-learn's digits as PNG files."""
    folder = tmp_path_factory.mktemp("images") / "digits"
    folder.mkdir()
    found = load_digits()
    for name, part in (("train", slice(0, 240)), ("test", slice(240, 300))):
        pngs = []
        for pixels in found.images[part]:
            buffer = io.BytesIO()
            Image.fromarray((pixels * 15).astype(np.uint8)).save(buffer, "PNG")
            pngs.append({"bytes": buffer.getvalue(), "path": None})
        pq.write_table(pa.table({"img": pngs, "label": found.target[part]}), folder / f"{name}.parquet")
    return folder.parent


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> rows.Cell:
    config = tmp_path_factory.mktemp("config") / "tiny.yaml"
    document = {
        "method": {"name": "fedsimclr"}, "data": {"name": "parquet", "image_size": 8, "channels": 1},
        "clients": {"count": 2, "encoders": "small_cnn_bn"}, "model": MODEL, "augment": {"preset": "digits"},
        "train": {"rounds": 4, "local_steps": 2, "batch_size": 16},
        "system": {"seconds_per_image": 0.5}, "checkpoint": {"every": 0},
        "evaluation": {"protocols": ["knn", "linear", "rank"], "every": 2, "select": {"share": 0.2}},
    }  # fmt: skip
    config.write_text(yaml.safe_dump(document))
    return rows.Cell("digits", "iid", rows.ONE, "fedsimclr", 3, config, {"seed": 3, "method.name": "fedsimclr"})


@pytest.fixture(scope="module")
def ended(cell: rows.Cell, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    assert leaderboard.run_cell(cell, images, folder) is None
    return folder


def test_a_row_says_what_the_run_folder_says(cell: rows.Cell, images: Path, ended: Path) -> None:
    found = rows.record(cell, ended, cell.built(images), "a machine")
    summary = json.loads((ended / "summary.json").read_text())
    measured = pq.read_table(ended / "metrics.parquet").to_pylist()

    def of(tag: str, t: int) -> float:
        (value,) = [r["value"] for r in measured if r["tag"] == tag and r["round"] == t and r["client"] is None]
        return float(value)

    assert set(found) == set(rows.SCHEMA.names)
    assert found["knn"] == summary["accuracy"]["knn"]
    assert found["untrained_linear"] == summary["untrained"]["linear"]
    assert found["select_knn"] == of("select/knn", 4)
    assert found["effective_rank"] == of("features/rankme", 4)
    assert (found["early_round"], found["early_effective_rank"]) == (2, of("features/rankme", 2))
    assert found["early_loss"] == of("train/loss", 1)  # a tenth of four rounds, rounded up
    sent = sum(r["bytes"] for r in pq.read_table(ended / "communication.parquet").to_pylist())
    assert (found["bytes_total"], found["bytes_per_round"]) == (sent, sent / 4)
    assert found["hours_total"] == pytest.approx(4 * 2 * 16 * 0.5 / 3600)
    assert found["semi_1"] is None


def test_labels_are_added_to_a_row(cell: rows.Cell, images: Path, ended: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(ended, tmp_path / "run")
    assert leaderboard.add_labels(folder) is None
    found = rows.record(cell, folder, cell.built(images), "a machine")
    again = json.loads((folder / "evaluation.json").read_text())
    assert found["semi_1"] == again["accuracy"]["global"]["semi_1"]
    assert again["evaluation"]["semi"]["fractions"] == [0.01]


def test_a_cell_is_run_once_and_again_with_other_settings(cell: rows.Cell, images: Path, ended: Path) -> None:
    known = [rows.record(cell, ended, cell.built(images), "a machine")]
    other = rows.Cell(*cell.address, cell.config, {**cell.keys, "train.optimizer.lr": 0.5})
    assert leaderboard.missing([cell], known) == []
    assert leaderboard.missing([cell, other], known) == [other]
    assert leaderboard.missing([cell], []) == [cell]


def test_a_cell_that_fails_says_why(cell: rows.Cell, images: Path, tmp_path: Path) -> None:
    wrong = rows.Cell(*cell.address, cell.config, {**cell.keys, "method.mu": 1})
    assert "method.mu" in (leaderboard.run_cell(wrong, images, tmp_path / "run") or "")
    assert "method.mu" in (tmp_path / "run" / leaderboard.ERROR).read_text()


def test_a_row_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    for new in (
        row("fedca", 1, 0.1),
        row("fedca", 0, 0.2),
        row("fedca", 1, 0.3),
        row("fedca", 1, 0.4, table=rows.MIXED),
    ):
        rows.put(new, path)
    assert [(r["table"], r["seed"], r["knn"]) for r in rows.read(path)] == [
        (rows.MIXED, 1, 0.4),
        (rows.ONE, 0, 0.2),
        (rows.ONE, 1, 0.3),
    ]
    assert rows.read(path)[1] == row("fedca", 0, 0.2)


# -- tables ------------------------------------------------------------------------------------------------------------


def lines_of(made: list[rows.Record]) -> dict[str, dict[str, str]]:
    """First cell -> column -> cell of the table of these rows."""
    text = tables.table(made, BOARD, "cifar10", "iid", rows.ONE)
    heads, _, *found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {cells[0]: dict(zip(heads, cells, strict=True)) for cells in found}


def test_a_table_shows_means_paired_differences_and_what_is_missing() -> None:
    ours, theirs = (0.52, 0.58, 0.55), (0.50, 0.51, 0.53)
    made = [row("fedca", s, v) for s, v in enumerate(ours)] + [row("fedsimclr", s, v) for s, v in enumerate(theirs)]
    found = lines_of([*made, row("fedprox", 0, None, status="diverged"), row("centralized", 0, 0.9)])
    pairs = np.subtract(ours, theirs)
    low, high = stats.t.interval(0.95, 2, pairs.mean(), stats.sem(pairs))
    cells = found["`fedca`"]
    assert cells["kNN"] == f"{np.mean(ours):.3f} ± {np.std(ours, ddof=1):.3f}"
    assert cells["kNN over fedsimclr"] == f"{pairs.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
    assert found["`fedsimclr`"]["kNN over fedsimclr"] == "-"
    assert found["`fedprox`"]["kNN"] == "diverged"
    assert [found[f"`{name}`"]["rank"] for name in ("fedca", "fedsimclr", "centralized")] == ["1", "2", "-"]
    (absent,) = [first for first, cells in found.items() if cells["kNN"] == "not run yet"]
    assert "`fedbyol`" in absent
    assert "`fedca`" not in absent
    assert list(found).index("`fedca`") < list(found).index("`fedsimclr`") < list(found).index("`centralized`")


def test_a_column_stands_where_some_run_of_the_table_has_a_value() -> None:
    """1% of the labels is measured by a later command: no row has it, or some have and the others say so."""
    made = [row("fedca"), row("fedsimclr", linear=0.6)]
    assert {"1% labels", "epsilon", "few-shot"}.isdisjoint(lines_of(made)["`fedca`"])
    assert [lines_of(made)[name]["linear"] for name in ("`fedca`", "`fedsimclr`")] == ["-", "0.600"]
    found = lines_of([row("fedca"), row("fedsimclr", semi_1=0.3)])
    assert [found[name]["1% labels"] for name in ("`fedca`", "`fedsimclr`")] == ["not run yet", "0.300"]


def test_a_value_that_one_seed_lacks_is_no_mean() -> None:
    assert tables.number([0.5, None]) == "-"
    assert tables.number([], none="not run yet") == "not run yet"
    assert tables.number([0.5]) == "0.500"


EFFECTS = {"fedca": 0.03, "fedprox": 0.01, "fedsimclr": 0.0, "fedsc": -0.02, "flesd": -0.05}  # the truth, best first
SEEN = {"fedca": (1,), "fedprox": (0, 1), "fedsimclr": (0, 1, 2, 3, 4), "fedsc": (0,), "flesd": (0, 1)}
OF_SEEDS = (0.1, -0.1, 0.02, 0.05, -0.03)  # what a seed adds to every method's accuracy


def additive(seen: dict[str, tuple[int, ...]], **others: Any) -> list[rows.Record]:
    """Rows whose accuracy is the method's effect and the seed's."""
    return [
        row(method, seed, value := 0.5 + EFFECTS[method] + OF_SEEDS[seed], linear=value, fewshot=value, **others)
        for method, seeds in seen.items()
        for seed in seeds
    ]


def test_ranks_are_of_the_methods_whatever_seeds_they_have() -> None:
    made = [*additive(SEEN), row("fedbyol", 0, None, status="diverged"), row("fedx", 9, 0.95), row("local", 0, 0.9)]
    methods = tables.of_table(made, "cifar10", "iid", rows.ONE)
    found = tables.over(methods, "fedsimclr")
    assert {method: found[method] for method in EFFECTS} == pytest.approx(EFFECTS)
    assert found.keys() == {*EFFECTS, "local"}  # the others have no seed in common with FedSimCLR
    cells = lines_of(made)
    order = [f"`{method}`" for method in (*EFFECTS, "fedx", "local", "fedbyol")]
    assert [name for name in cells if name in order] == order
    assert [cells[name]["rank"] for name in order] == ["1", "2", "3", "4", "5", "-", "-", ""]
    means = {m: np.mean([r["knn"] for r in s.values()]) for m, s in methods.items() if m in EFFECTS}
    assert sorted(means, key=lambda m: -means[m])[0] == "fedsc"  # what the seeds alone would say
    assert tables.ranks({"a": 0.1, "b": 0.1, "c": 0.3}) == {"a": 2.5, "b": 2.5, "c": 1}


def test_readmes_table_and_the_tuned_ones_have_the_order_of_the_tables() -> None:
    made = additive(SEEN, partition="dirichlet", minutes=1.0, keys="{}")
    shown = tables.short(made, BOARD).splitlines()[5:]
    assert [line.split("`")[1] for line in shown] == ["fedca", "fedprox", "fedsimclr", "fedsc", "flesd"]
    tuned = tables.gained([{**each, "table": rows.TUNED} for each in made], BOARD).splitlines()[2:]
    assert [line.split("`")[1] for line in tuned] == list(EFFECTS)


def test_stability_is_of_the_methods_that_two_seeds_have() -> None:
    values = {0: [0.5, 0.4, 0.3, 0.2], 1: [0.5, 0.4, 0.2, 0.3], 2: [0.2, 0.4, 0.3, 0.5]}
    methods = {m: {s: row(m, s, values[s][i]) for s in values} for i, m in enumerate("abcd")}
    taus = [stats.kendalltau(values[a], values[b]).statistic for a, b in ((0, 1), (0, 2), (1, 2))]
    assert tables.stability(methods) == pytest.approx(np.mean(taus))
    assert tables.stability({m: {0: seeds[0]} for m, seeds in methods.items()}) is None
    methods |= {"e": {0: row("e", 0, 0.1)}, "f": {1: row("f", 1, 0.9)}, "g": {2: row("g", 2, 0.9, status="diverged")}}
    assert tables.stability(methods) == pytest.approx(np.mean(taus))  # of one seed each: no pair has them


def test_a_caption_says_what_ranks_are_and_how_settings_were_chosen() -> None:
    def told(made: list[rows.Record], kind: str = rows.ONE, board: Any = BOARD) -> str:
        return tables.caption([{**each, "table": kind} for each in made], board, "cifar10", "iid", kind)

    made = additive(SEEN)
    stable = "; Kendall's tau between two seeds, over the methods both have, is 1.00 in the mean."
    assert told(made).endswith(f"Ranks by kNN over `fedsimclr`{stable}")
    one = [each for each in made if each["seed"] == 0]
    assert "Ranks by kNN over `fedsimclr`, of one seed: how stable they are is not known." in told(one)
    assert "Ranks by kNN over `local`, of one seed:" in told(one, rows.MIXED)
    apart = [each for each in made if each["method"] == ("fedca" if each["seed"] == 1 else "fedsc")]
    assert "of seeds that share no two methods: how stable" in told(apart)
    assert told(made).startswith(f"{len(made)} runs, made at abc. Ranks")
    assert told([{**made[0], "changed": True}, *made[1:]]).startswith(
        f"{len(made)} runs, made at abc, 1 of them with changes that were not committed."
    )
    assert "as its grid chose on another split" in told(made, rows.TUNED)
    gain = "views, temperature and learning rate were chosen by FedSimCLR's gain; no other method was tuned"
    for path, chosen in ((rows.BOARD, gain), (rows.FIELD, "views and optimiser are EasyFL's; no method was tuned")):
        board = tables.load_board(path)
        untuned = " ".join(tables.page(made, board).split("\n\n")[0].split())
        assert chosen in untuned
        assert untuned.endswith(f"each has its defaults and the keys of `benchmarks/{path.name}`.")


def test_the_page_names_tables_without_a_row() -> None:
    text = tables.page([row("fedsimclr")], BOARD)
    assert text.count("| method |") == 1
    assert "Fashion-MNIST, Dirichlet 0.1, mixed architectures" in text.splitlines()[-1]
    assert "CIFAR-10, IID, one architecture" not in text.splitlines()[-1]
    assert "no other method was tuned" in text


def test_the_criterion_is_of_gain_and_spread() -> None:
    assert tables.criterion([0.08, 0.09, 0.10]) == "holds"  # deviation 0.01, a quarter of the gain 0.0225
    assert tables.criterion([0.05, 0.09, 0.13]) == "spread too large: 0.0400 of 0.0225"
    assert tables.criterion([0.07, 0.08]) == "gain too small"
    assert tables.criterion([0.5]) == "spread not run yet"


def test_confirmed_shows_gains_by_seed() -> None:
    text = tables.confirmed([row("fedsimclr", 0, 0.35, **SCORES), row("fedsimclr", 1, 0.30, **SCORES)], BOARD)
    (line,) = [line for line in text.splitlines() if "| CIFAR-10 | 0, 1 | knn " in line]
    assert "+0.100, +0.050 | 0.075 ± 0.035" in line
    assert "not run yet" in text


SCORES = {"linear": 0.4, "untrained_linear": 0.3, "fewshot": 0.3, "untrained_fewshot": 0.2, "minutes": 2.0}


def test_cells_and_grids_are_run(cell: rows.Cell, images: Path, tmp_path: Path) -> None:
    path, lines = tmp_path / "rows.parquet", tmp_path / "lines.jsonl"
    wrong = rows.Cell("digits", "iid", rows.ONE, "fedprox", 0, cell.config, {"data.limit": 3, "train.rounds": 1})
    short = rows.Cell(*cell.address, cell.config, {**cell.keys, "train.rounds": 1})
    assert leaderboard.run_missing([short, wrong], images, tmp_path, 1, path) == 1
    (found,) = rows.read(path)
    assert (found["method"], found["rounds"], found["status"]) == ("fedsimclr", 1, "complete")
    assert leaderboard.run_missing([short], images, tmp_path, 1, path) == 0  # nothing is left
    board = {
        "data": {"digits": cell.config}, "partitions": {"iid": {}}, "methods": {"fedsimclr": {"train.rounds": 1}},
        "tuning": {"seed": 9, "partition": "iid", "measure": "knn", "all": {"objective.temperature": [0.1, 0.5]},
                   "methods": {}},
    }  # fmt: skip
    assert leaderboard.tune(board, ["digits"], [], images, tmp_path, 1, lines) == 0
    scores = {line["value"]: line["score"] for line in tuning.read(lines)}
    (best,) = tuning.winners(tuning.read(lines), board).values()
    assert scores[best["objective.temperature"]] == max(scores.values())
    assert set(scores) == {0.1, 0.5}
    _, tuned = rows.cells({**board, "mixed": {"keys": {}, "methods": {}}}, ["digits"], ["iid"], [0], (),
                          tuning.winners(tuning.read(lines), board))  # fmt: skip
    assert tuned.built(images).objective.temperature == best["objective.temperature"]
    default = tuned.built(images).train.optimizer.lr
    board["tuning"]["methods"] = {"fedsimclr": {"train.optimizer.lr": [default]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaderboard, "run_cell", None)  # what is there already is not run again
        assert leaderboard.tune(board, ["digits"], [], images, tmp_path, 1, lines) == 0
    *_, added = tuning.read(lines)
    assert (added["key"], added["value"], added["score"]) == ("train.optimizer.lr", default, max(scores.values()))
    assert len(tuning.read(lines)) == 3


# -- the grid ----------------------------------------------------------------------------------------------------------


def test_the_grid_is_run_key_by_key_over_the_winners() -> None:
    board = {**BOARD, "tuning": {**BOARD["tuning"], "all": {"train.optimizer.lr": [0.1, 0.2]},
                                 "methods": {"fedprox": {"method.mu": [1, 2]}}}}  # fmt: skip
    lines: list[dict[str, Any]] = []
    scores = {
        ("train.optimizer.lr", 0.1): 0.3,
        ("train.optimizer.lr", 0.2): 0.4,
        ("method.mu", 1): None,
        ("method.mu", 2): 0.1,
    }
    asked = []
    while todo := list(tuning.tuned_cells(board, "cifar10", "fedprox", lines)):
        assert ("cifar10", "fedprox") not in tuning.winners(lines, board)
        for key, cell in todo:
            asked.append({k: cell.keys.get(k) for k in ("train.optimizer.lr", "method.mu")})
            made = row("fedprox", select_linear=scores[key, cell.keys[key]], settings="x", minutes=1.0)
            lines.append(tuning.line_of(cell, key, made, "linear"))
    lr, mu = "train.optimizer.lr", "method.mu"
    assert asked == [{lr: 0.1, mu: None}, {lr: 0.2, mu: None}, {lr: 0.2, mu: 1}, {lr: 0.2, mu: 2}]
    assert tuning.winners(lines, board) == {("cifar10", "fedprox"): {lr: 0.2, mu: 2}}
    assert all(line["seed"] not in BOARD["seeds"] for line in lines)
    shown = tables.tuning(lines, lambda data, method: tuning.winners(lines, board)[data, method])
    assert "| 0.1: 0.300, 0.2: 0.400 | 0.2 |" in shown
    assert "1: diverged" in shown


# -- what foretells a run's end ----------------------------------------------------------------------------------------


def group(early: Any, final: Any, method: Any = None) -> prediction.Group:
    """Runs of a method each, unless ``method`` says otherwise."""
    names = np.arange(len(early)) if method is None else np.asarray(method)
    return prediction.Group(np.asarray(early, float), np.asarray(final, float), names.astype(str))


def test_tau_is_kendalls_within_groups() -> None:
    rng = np.random.default_rng(1)
    groups = [group(rng.integers(0, 6, n), rng.integers(0, 6, n)) for n in (9, 14)]
    for x, y, _ in groups:
        assert prediction.tau([group(x, y)]) == pytest.approx(stats.kendalltau(x, y).statistic)
    agree = xs = ys = 0.0
    for x, y, _ in groups:
        for i, j in itertools.combinations(range(len(x)), 2):
            a, b = np.sign(x[i] - x[j]), np.sign(y[i] - y[j])
            agree, xs, ys = agree + a * b, xs + abs(a), ys + abs(b)
    assert prediction.tau(groups) == pytest.approx(agree / np.sqrt(xs * ys))


def test_the_interval_covers_what_there_is() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=60)
    low, high = prediction.interval([group(x, x + 0.5 * rng.normal(size=60))], draws=300)
    assert 0.3 < low < high < 1
    low, high = prediction.interval([group(x, rng.normal(size=60))], draws=300)
    assert low < 0 < high


def test_a_methods_seeds_are_drawn_together() -> None:
    """Copies of a run tell nothing new: the interval stays as wide as that of one run per method."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=20)
    y = x + rng.normal(size=20)
    once = prediction.interval([group(x, y)], draws=400)
    thrice = prediction.interval([group(np.repeat(x, 3), np.repeat(y, 3), np.repeat(np.arange(20), 3))], draws=400)
    alone = prediction.interval([group(np.repeat(x, 3), np.repeat(y, 3))], draws=400)
    assert thrice == pytest.approx(once, abs=0.05)
    assert alone[1] - alone[0] < 0.8 * (once[1] - once[0])


def test_a_methods_runs_of_all_groups_are_drawn_together() -> None:
    """Other data sets' copies of the runs tell nothing new: every draw has the same tau, and so the interval."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=12)
    y = x + rng.normal(size=12)
    one, names = group(x, y), [f"m{i}" for i in range(12)]
    once = prediction.interval([one], draws=300)
    assert prediction.interval([one] * 4, draws=300) == pytest.approx(once)
    # groups that have only some of the methods: the draws by hand, one method after the other
    seen = [names, names[:7], names[5:]]
    groups = [group(x[: len(own)], y[-len(own) :], own) for own in seen]
    draws, taus = np.random.default_rng(prediction.SEED), []
    for _ in range(300):
        drawn = [sorted(names)[i] for i in draws.integers(12, size=12)]
        picked = [[i for name in drawn for i in np.flatnonzero(each.method == name)] for each in groups]
        taus.append(prediction.tau([group(g.early[i], g.final[i]) for g, i in zip(groups, picked, strict=True)]))
    assert prediction.interval(groups, draws=300) == pytest.approx(tuple(np.nanpercentile(taus, [2.5, 97.5])))


def test_losses_are_compared_within_an_objective() -> None:
    made = [
        row(m, s, 0.1 * s, early_loss=loss + s, objective=o, early_effective_rank=1.0 + s)
        for o, loss in (("simclr", 5), ("byol", 0))
        for m in (f"fed{o}", f"other_{o}")
        for s in range(5)
    ]
    assert [len(found.early) for found in prediction.grouped(made, "early_loss")] == [10, 10]
    assert [len(found.early) for found in prediction.grouped(made, "early_effective_rank")] == [20]
    assert prediction.grouped(made, "early_loss", references=["fedsimclr", "fedbyol"]) == []
    found = {one.predictor: one for one in prediction.predictions(made)}
    assert found["early_loss"].tau == pytest.approx(1.0)
    assert "early_uniformity" not in found  # no run has it
    assert "not run yet" in prediction.table(made[:9])
    other_way = [one | {"linear": -one["knn"], "fewshot": None} for one in made]
    cells = next(line for line in prediction.table(other_way).splitlines() if "training loss" in line).split(" | ")
    assert [cell.split()[0] for cell in cells[1:4]] == ["+1.00", "-1.00", "-"]


def test_images_that_are_not_there_are_missed_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cifar10").mkdir()
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        leaderboard.main()
    assert ended.value.code == 2
    assert f"--data: found no folder {tmp_path / 'fashion_mnist'}; one for each of --sets" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
