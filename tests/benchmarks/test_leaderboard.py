"""The leaderboard: cells, rows, runs, and the grid."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import json_lines
import leaderboard
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from boards import pairing, rows, tables, tuning, tuning_tables
from PIL import Image
from sklearn.datasets import load_digits

from rayfed_ssl.models import build_encoder
from tests.benchmarks.made import row

BOARD = rows.load_board()
MODEL = {"width": 0.25, "projector": {"hidden": [16], "dim": 8}}


# -- cells -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", rows.BOARDS, ids=lambda path: path.stem)
def test_every_method_of_the_board_fits_its_configs(path: Path) -> None:
    board = rows.load_board(path)
    for name in board["data"]:
        for cell in rows.cells(board, [name], list(board["partitions"]), [0]):
            config = cell.built(Path("images"))
            assert config.method.name == board["methods"].get(cell.method, {}).get("method.name", cell.method)
            assert config.data.partition.name == board["partitions"][cell.partition]["data.partition.name"]
            assert config.clients.heterogeneous == (cell.table == rows.MIXED)
            if cell.table == rows.MIXED and cell.partition == "iid":
                for encoder in {config.clients.encoder(c) for c in range(config.clients.count)}:
                    assert build_encoder(encoder, config.model, config.data.image_size).dim > 0


def test_a_board_without_mixed_architectures_lists_no_such_table() -> None:
    text = tables.page([], rows.load_board(rows.FIELD))
    assert "CIFAR-100, Dirichlet 0.1, 50 clients of which 10 a round, one architecture" in text
    assert rows.MIXED not in text


@pytest.mark.parametrize("data", sorted(BOARD["data"]))
def test_a_configs_header_has_the_numbers_of_the_rows(data: str) -> None:
    header = (rows.CONFIGS / BOARD["data"][data]).read_text(encoding="utf-8").split("\nmethod:")[0]
    shown = re.search(r"IID, (\d) seeds: kNN ([\d.]+) -> ([\d.]+)", " ".join(header.replace("#", "").split()))
    runs = pairing.complete(pairing.of_table(rows.read(), data, "iid", rows.ONE).get(rows.REFERENCE, {}))
    assert shown, "the header says what FedSimCLR comes to"
    assert int(shown[1]) == len(runs)
    means = [np.mean([row[name] for row in runs]) for name in ("untrained_knn", "knn")]
    assert [float(shown[2]), float(shown[3])] == pytest.approx(means, abs=0.000501)


def test_one_budget_of_local_steps() -> None:
    for name in BOARD["data"]:
        cells = list(rows.cells(BOARD, [name], ["iid"], [0]))
        configs = [cell.built(Path("images")) for cell in cells]
        steps = {
            cell.method: c.train.rounds * (c.train.local_steps or 0) for cell, c in zip(cells, configs, strict=True)
        }
        assert steps.pop("centralized_equal_steps") == 200 * configs[0].clients.count
        assert set(steps.values()) == {200}
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
            keys = {"settings": cell.settings, "keys": json.dumps(dict(cell.keys)), "minutes": 2.0}
            rows.put(row(cell.method, **keys, machine="another kind"), path)
    leaderboard.confirm_defaults(found, path)
    assert len(leaderboard.missing(found, rows.read(path))) == 2  # rows of one table are of one kind of processor
    for each in rows.read(path):
        rows.put({**each, "machine": rows.here()}, path)
    leaderboard.confirm_defaults(found, path)
    (left,) = leaderboard.missing(found, rows.read(path))
    assert left.address == ("cifar10", "iid", rows.TUNED, "fedprox", 0)
    plain, tuned = (r for r in rows.read(path) if r["method"] == "fedca")
    assert tuned == {**plain, "table": rows.TUNED, "tuned": True}
    rows.put(row("fedprox", knn=0.55, table=rows.TUNED, keys=json.dumps(dict(left.keys)), minutes=2.0), path)
    text = tuning_tables.gained(rows.read(path), BOARD)
    assert "| `fedca` | its defaults | 1 | 0.500 | the same run | the same run |" in text
    assert "| `fedprox` * | `train.optimizer.lr=0.1` | 1 | 0.550 | +0.050 | - |" in text
    rows.put({**tuned, "machine": "another kind", "knn": tuned["knn"] + 0.01}, path)
    assert "| `fedca` * | its defaults | 1 | 0.510 | +0.010 |" in tuning_tables.gained(rows.read(path), BOARD)


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


@pytest.mark.long
def test_no_row_was_made_with_other_settings_than_the_boards() -> None:
    chosen = tuning.settings(json_lines.read(tuning.RESULTS), BOARD)
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


@pytest.mark.long
def test_a_row_says_what_the_run_folder_says(cell: rows.Cell, images: Path, ended: Path) -> None:
    found = rows.record(cell, ended, cell.built(images))
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
    assert found["machine"].endswith(f", {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores")


@pytest.mark.long
def test_a_row_of_mixed_architectures_has_the_accuracies_of_each(
    cell: rows.Cell, images: Path, ended: Path, tmp_path: Path
) -> None:
    """The mean over the clients of an architecture; a single encoder is the server's student."""
    assert rows.record(cell, ended, cell.built(images))["by_encoder"] is None
    folder = shutil.copytree(ended, tmp_path / "run")
    mixed = rows.Cell(cell.data, cell.partition, rows.MIXED, "flesd", cell.seed, cell.config, cell.keys)
    summary = json.loads((folder / "summary.json").read_text())
    encoders = ["small_cnn", "vgg9", "small_cnn"]
    keys = {**cell.keys, "method.name": "local", "clients.encoders": encoders, "clients.count": 3}
    config = rows.Cell(*mixed.address, cell.config, keys).built(images)
    for accuracy, expected in (
        ({"knn": {"0": 0.1, "1": 0.5, "2": 0.2}}, {"small_cnn": {"knn": pytest.approx(0.15)}, "vgg9": {"knn": 0.5}}),
        ({"knn": 0.3, "linear": 0.6, "fewshot": None}, {"small_cnn": {"knn": 0.3, "linear": 0.6}}),
    ):
        (folder / "summary.json").write_text(json.dumps({**summary, "accuracy": accuracy}))
        assert json.loads(rows.record(mixed, folder, config)["by_encoder"]) == expected


def test_a_row_names_the_gpu_that_trained(cell: rows.Cell, images: Path, ended: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(ended, tmp_path / "run")
    words = folder / "environment.json"
    words.write_text(json.dumps(json.loads(words.read_text()) | {"device": "NVIDIA H200"}))
    assert rows.record(cell, folder, cell.built(images))["machine"].endswith(" cores; NVIDIA H200")


@pytest.mark.long
def test_labels_are_added_to_a_row(cell: rows.Cell, images: Path, ended: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(ended, tmp_path / "run")
    assert leaderboard.add_labels(folder) is None
    found = rows.record(cell, folder, cell.built(images))
    again = json.loads((folder / "evaluation.json").read_text())
    assert found["semi_1"] == again["accuracy"]["global"]["semi_1"]
    assert again["evaluation"]["semi"]["fractions"] == [0.01]


def test_a_cell_is_run_once_and_again_with_other_settings(cell: rows.Cell, images: Path, ended: Path) -> None:
    known = [rows.record(cell, ended, cell.built(images))]
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


@pytest.mark.long
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
    scores = {line["value"]: line["score"] for line in json_lines.read(lines)}
    (best,) = tuning.winners(json_lines.read(lines), board).values()
    assert scores[best["objective.temperature"]] == max(scores.values())
    assert set(scores) == {0.1, 0.5}
    _, tuned = rows.cells({**board, "mixed": {"keys": {}, "methods": {}}}, ["digits"], ["iid"], [0], (),
                          tuning.winners(json_lines.read(lines), board))  # fmt: skip
    assert tuned.built(images).objective.temperature == best["objective.temperature"]
    default = tuned.built(images).train.optimizer.lr
    board["tuning"]["methods"] = {"fedsimclr": {"train.optimizer.lr": [default]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaderboard, "run_cell", None)  # what is there already is not run again
        assert leaderboard.tune(board, ["digits"], [], images, tmp_path, 1, lines) == 0
    *_, added = json_lines.read(lines)
    assert (added["key"], added["value"], added["score"]) == ("train.optimizer.lr", default, max(scores.values()))
    assert len(json_lines.read(lines)) == 3


# -- the grid ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", BOARD["methods"])
def test_every_value_of_a_grid_makes_a_run(method: str) -> None:
    for key, values in tuning.grid(BOARD, method).items():
        for value in values:
            keys = {"method.name": method, **BOARD["methods"][method], key: value}
            cell = rows.Cell("cifar10", "iid", rows.ONE, method, 100, rows.CONFIGS / BOARD["data"]["cifar10"], keys)
            assert cell.built(rows.NOWHERE).method.name == keys["method.name"]


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
    shown = tuning_tables.tuning(lines, lambda data, method: tuning.winners(lines, board)[data, method])
    assert "| 0.1: 0.300, 0.2: 0.400 | 0.2 |" in shown
    assert "1: diverged" in shown


def test_a_grid_is_shown_method_by_method_and_says_where_its_edge_won() -> None:
    def line(method: str, key: str, value: object, score: float) -> dict[str, Any]:
        return {"data": "cifar10", "method": method, "key": key, "value": value, "score": score}

    lines = [line("fedx", "lr", value, value) for value in (2, 1, 4)] + [line("fedca", "lr", 1, 0.5)]
    lines += [line("fedx", "t", value, 0.1) for value in (3, 1, 2)] + [line("fedx", "how", "all", 0.2)]
    wins: dict[str, dict[str, object]] = {"fedx": {"lr": 4, "t": 2, "how": "all"}, "fedca": {}}
    shown = tuning_tables.tuning(lines, lambda data, method: wins[method]).splitlines()[2:]
    assert [row.split("|")[2:4] for row in shown] == [
        [f" `{method}` ", f" `{key}` "]
        for method, key in (("fedx", "lr"), ("fedx", "t"), ("fedx", "how"), ("fedca", "lr"))
    ]
    assert [row.split("|")[-2].strip() for row in shown] == ["4 (edge)", "2", '"all"', "not run to its end"]
    assert "| 1: 1.000, 2: 2.000, 4: 4.000 |" in shown[0]


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


def test_a_data_set_takes_what_the_grids_of_the_one_named_chose() -> None:
    lines = json_lines.read(tuning.RESULTS)
    of, found = tuning.winners(lines, BOARD), tuning.settings(lines, BOARD)
    assert {data for data, _ in of} == {"cifar10"}
    assert {own: found["fashion_mnist", own] for _, own in of} == {own: best for (_, own), best in of.items()}
    assert len(found) == 2 * len(of)
    alone = {**BOARD, "tuning": {**BOARD["tuning"], "chosen_on": {"cifar10": "cifar10"}}}
    assert tuning.settings(lines, alone) == of
    assert tuning.with_grids(BOARD, ["fashion_mnist", "cifar10"]) == ["cifar10"]
    assert tuning.with_grids(BOARD, ["fashion_mnist"]) == []
