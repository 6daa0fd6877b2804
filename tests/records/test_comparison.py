"""A comparison's numbers on run folders written by hand: spreads, paired intervals, bytes and hours to 90%, marks."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats

from rayfed_ssl.base.files import write_json
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records.comparison import Comparison, Row, difference, spread
from rayfed_ssl.records.comparison_figures import figure, line
from rayfed_ssl.records.comparison_files import document, latex, markdown, records, write
from rayfed_ssl.records.comparison_notes import notes
from rayfed_ssl.records.comparison_rows import differing, of_runs, of_variants
from rayfed_ssl.records.gains import reached
from rayfed_ssl.records.one_run import HeldOutImages, read_run
from rayfed_ssl.records.tables import (
    METRICS,
    Commit,
    Metric,
    metrics_parts,
    table,
)
from rayfed_ssl.report.comparison import report
from rayfed_ssl.report.comparison_verdict import verdict
from tests.records.run_folders import PIXELS, UNTRAINED, A, B, run_folder, three, two_rows
from tests.tiny import tiny

SPLITS = {"a": (3, 1, 2), "b": (3, 1, 4)}


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        ([], [], None),
        ([], [2], "b 3 of 9; of other rows none. They count as rounds and train nobody, so runs are compared that did"),
        ([1], [2, 3], "a 3 of 9, b 6 of 9. They count as rounds and train nobody, so runs are compared that did not"),
        ([1], [2], "a 3 of 9, b 3 of 9. They count as rounds and train nobody."),
        ([[1], [], []], [[1], [], []], "a 1 of 9, b 1 of 9. They count as rounds and train nobody."),
        (
            [[1], [], []],
            [[], [1], []],
            "a 1 of 9, b 1 of 9. They count as rounds and train nobody, so runs are compared",
        ),
    ],
)
def test_rounds_that_came_to_nothing_are_noted(a: list[Any], b: list[Any], told: str | None, tmp_path: Path) -> None:
    """``a``, ``b``: these rounds, of each seed or by seed."""
    rows: dict[str, list[Path]] = {}
    for name, method, void in (("a", "fedsimclr", a), ("b", "fedprox", b)):
        by_seed = void if void and isinstance(void[0], list) else [void] * 3
        rows[name] = [
            run_folder(tmp_path / f"{name}{s}", s, [0.1, 0.4, 0.5], method=method, void=of)
            for s, of in enumerate(by_seed)
        ]
    lines = [line for line in notes(of_variants(rows)) if "came to nothing" in line]
    assert len(lines) == (told is not None)
    assert all(line.startswith(f"Rounds that came to nothing: {told}") for line in lines)


def test_mean_spread_and_paired_interval_are_scipys(tmp_path: Path) -> None:
    made = two_rows(tmp_path)
    first, second = made.rows[:2]
    found = second.spread("knn")
    assert found is not None
    assert (found.mean, found.deviation) == (pytest.approx(np.mean(B)), pytest.approx(np.std(B, ddof=1)))
    to_first = second.difference(first, "knn")
    assert to_first is not None
    theirs = scipy.stats.ttest_rel(B, A).confidence_interval(0.95)
    assert (to_first.low, to_first.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert to_first.mean == pytest.approx(np.mean(B) - np.mean(A))
    assert to_first.judged() == "not told apart"  # +0.073 with n = 3 is within chance
    assert first.difference(first, "knn") is None
    assert second.spread("select/knn") == spread([v / 2 for v in B])
    assert made.scores == ["knn"]
    assert made.measures == ["knn", "select/knn", "features/rank"]  # none that only the raw pixels have


def test_an_interval_is_students() -> None:
    assert difference([]) is None
    half = 12.7062 * np.std([0.0, 0.2], ddof=1) / np.sqrt(2)  # t of one degree of freedom, from a table
    assert difference([0.0, 0.2]).high == pytest.approx(0.1 + half, rel=1e-5)  # type: ignore[union-attr]


def test_differences_pair_the_seeds_that_both_have(tmp_path: Path) -> None:
    b = [
        run_folder(tmp_path / f"b{s}", s, [v], method="fedprox", sent=[(1, 1)])
        for s, v in ((2, 0.8), (1, 0.9), (7, 0.1))
    ]
    made = of_variants({"a": three(tmp_path, "a", A), "b": b})
    found = made.rows[1].difference(made.first, "knn")
    assert found is not None
    assert (found.mean, found.count) == (pytest.approx(((0.9 - A[1]) + (0.8 - A[2])) / 2), 2)


def test_bytes_and_hours_until_ninety_percent_of_the_runs_own_gain(tmp_path: Path) -> None:
    sent = ((100, 0), (10, 5), (1, 2), (1000, 1000))
    end = UNTRAINED + 0.2
    values = [UNTRAINED + 0.1, UNTRAINED + 0.179, UNTRAINED + 0.181, end]
    assert values[0] > 0.6 * end  # of the accuracy itself, which is not what was learned
    run = run_folder(tmp_path / "r", 0, values, sent=sent, virtual=(3600.0, 7200.0, 9000.0, 9001.0))
    row = of_variants({"r": [run]}).first
    assert row.bytes_to("knn") == 100 + 15 + 3  # the third round is the first with nine tenths of the gain
    assert row.hours_to("knn") == 2.5
    assert row.virtual_hours == pytest.approx(9001 / 3600)
    assert (row.bytes_total, row.bytes_per_round) == (2118, 2118 / 4)
    assert reached({0: 0.8, 1: 0.81, 2: 0.89, 3: 0.9}) == 2  # absolutely, the first round has 90% already
    assert reached({0: 0.8, 1: 0.95, 2: 0.8}) is None  # nothing gained in the end
    assert reached({0: 5.0, 2: 0.5, 4: 0.1}) is None
    assert reached({1: 0.5, 2: 0.6}) is None  # from where is not known
    assert reached({0: 0.5}) is None
    assert reached({0: 0.1, 1: 0.5, 2: float("nan")}) is None
    without = of_variants({"r": [run_folder(tmp_path / "s", 0, [0.1])]}).first
    assert (without.virtual_hours, without.hours_to("knn"), without.epsilon) == (None, None, None)


def test_of_clients_values_the_mean_counts_and_of_epsilons_the_largest(tmp_path: Path) -> None:
    row = of_variants(
        {"r": [run_folder(tmp_path / "r", 0, [0.2, 0.6], clients=True, epsilon={"0": 1.5, "1": 4.0})]}
    ).first
    assert row.values["knn"] == {0: pytest.approx(0.6)}
    assert row.epsilon == 4.0
    assert row.guarantee is not None
    assert row.guarantee.scope == "at a delta that is not recorded; what it covers is not recorded"
    one = run_folder(tmp_path / "s", 0, [0.2], epsilon={"0": 1.5, "1": None})
    assert of_variants({"s": [one]}).first.epsilon is None


def test_an_encoder_on_clients_own_images_is_no_encoder_of_clients(tmp_path: Path) -> None:
    """The words about clients' own encoders stand where there are such encoders."""
    words = "each measured with its own encoder"
    for name, clients in (("global", False), ("own", True)):
        found = of_variants({"r": [run_folder(tmp_path / name, 0, [0.2, 0.6], clients=clients, own=True)]})
        assert any(words in note for note in notes(found)) == clients


def test_the_baselines_are_rows_wherever_they_were_measured(tmp_path: Path) -> None:
    rows = two_rows(tmp_path).rows
    assert [row.name for row in rows] == ["a", "b", "untrained encoder", "raw pixels"]
    assert rows[2].values == {"knn": dict.fromkeys(range(3), UNTRAINED)}
    assert rows[3].values == dict.fromkeys(("knn", "fewshot"), dict.fromkeys(range(3), PIXELS))
    found = rows[3].difference(rows[0], "knn")
    assert found is not None
    assert found.mean == pytest.approx(PIXELS - np.mean(A))
    assert rows[2].bytes_total is None


def test_what_runs_began_with_is_not_called_untrained_where_it_is_an_encoder(tmp_path: Path) -> None:
    """``model.start``: everybody's first values are an earlier run's."""
    begun = {"changes": {"model.start": "earlier.safetensors"}}
    made = of_variants(
        {"a": three(tmp_path, "a", A, **begun), "b": three(tmp_path, "b", [0.2] * 3, method="fedprox", **begun)}
    )
    assert [row.name for row in made.rows] == ["a", "b", "starting encoder", "raw pixels"]
    assert made.began is made.rows[2]
    assert made.rows[2].values == {"knn": dict.fromkeys(range(3), UNTRAINED)}
    told = notes(made)
    assert not any("untrained encoder" in line for line in told)
    assert any("90% of the way from the starting encoder's knn to the run's last one" in line for line in told)
    levels = {line.get_label() for line in figure(made, "round", lambda run, t: float(t)).axes[0].lines}
    assert "starting encoder" in levels
    found = verdict(document(made, Path())["rows"], made.scores)
    assert "1 of 2 beat the starting encoder (30.0 %)" in found.sentence
    assert "untrained" not in found.sentence


@pytest.mark.long
def test_another_split_is_told(tmp_path: Path) -> None:
    same = two_rows(tmp_path / "same")
    assert same.other_splits == {}
    assert "The split is the same for all rows, seed by seed." in notes(same)
    other = two_rows(tmp_path / "other", images=(3, 1, 4))
    assert other.other_splits == {"b": [0, 1, 2]}
    assert not any("same for all rows" in note for note in notes(other))
    told = "+ b: another split than a in seed(s) 0, 1, 2, so a difference includes what the split does"
    unlike = "select/knn is of other images there, and not subtracted"
    assert f"{told}; {unlike}." in notes(other)  # no row of the partition says what was held out
    assert records(other)[1]["knn.difference"] == pytest.approx(np.mean(B) - np.mean(A))
    assert records(other)[1]["select/knn.difference"] is None
    held = {
        name: three(tmp_path / "held", name, A, images=of, held_out=(7, 8), own=True) for name, of in SPLITS.items()
    }
    known = of_variants(held)
    assert f"{told}; own_knn is of other images there, and not subtracted." in notes(known)
    assert records(known)[1]["select/knn.difference"] == 0.0  # the same images are held out
    low, high = (f"{end:.3f}" for end in scipy.stats.binomtest(1, 2).proportion_ci(0.95, "wilson"))
    of_two = next(note for note in notes(known) if note.startswith("select/.."))
    assert "held out to choose by, 2 in each run: one is 0.5 of an accuracy, and with others 0.275 of" in of_two
    unlike = {"a": [run_folder(tmp_path / "unlike", 0, [1.0], held_out=(6, 7, 8, 9))]}
    unlike["b"] = [run_folder(tmp_path / "unlike" / "other", 0, [1.0], held_out=(7, 8))]
    lower, upper = (f"{end:.3f}" for end in scipy.stats.binomtest(2, 4).proportion_ci(0.95, "wilson"))
    of_first = next(note for note in notes(of_variants(unlike)) if note.startswith("select/.."))
    assert "held out to choose by, 2 to 4 in a run: one is 0.5 of an accuracy or less, and with" in of_first
    assert f"0.500 of select/knn may be {lower} to {upper} in one run" in of_first
    half = of_variants({"a": [run_folder(tmp_path / "half", 0, [1.0], held_out=(7, 8))]})
    assert any(f"0.500 of select/knn may be {low} to {high} in one run (95%)" in note for note in notes(half))
    assert records(other)[1]["same_split"] is False
    assert "| b+ |" in markdown(other)
    (tmp_path / "same" / "b-1" / "partition.parquet").unlink()
    runs = {name: [tmp_path / "same" / f"{name}-{s}" for s in range(3)] for name in ("a", "b")}
    assert of_variants(runs).other_splits == {"b": [1]}  # what nobody has said is not the same


def test_runs_that_choose_by_nothing_do_not_hide_how_many_images_others_choose_by(tmp_path: Path) -> None:
    rows = {"a": [run_folder(tmp_path / "a", 0, [1.0], held_out=(7, 8))], "b": [run_folder(tmp_path / "b", 0, [1.0])]}
    made = of_variants(rows)
    (run,) = made.rows[1].runs.values()
    none = {name: value for name, value in run.values.items() if name != "select/knn"}
    for held_out in (None, HeldOutImages(1, "for leak alone")):
        alone = replace(made.rows[1], runs={0: replace(run, values=none, held_out=held_out)})
        beside = replace(made, rows=[made.rows[0], alone, *made.rows[2:]])
        told = next(note for note in notes(beside) if note.startswith("select/.."))
        assert "held out to choose by, 2 in each run: one is 0.5 of an accuracy" in told


def of_images(root: Path, mine: str | None, theirs: str | None, **changes: Any) -> Comparison:
    """Two rows whose runs recorded these digests of their images; ``changes`` are the second row's."""
    made = {"a": three(root, "a", A), "b": three(root, "b", B, method="fedprox", changes=changes)}
    for name, digest in (("a", mine), ("b", theirs)):
        for folder in made[name] if digest is not None else ():
            write_json(folder / "environment.json", {"images": digest})
    return of_variants(made)


@pytest.mark.long
def test_what_was_measured_on_other_images_is_not_subtracted(tmp_path: Path) -> None:
    moved = {"data__name": "imagefolder", "data__path": "there"}
    for case, (mine, theirs, changes) in enumerate(
        [("x", "y", moved), ("x", "y", {}), (None, "y", moved), (None, None, {"data__test_limit": 7})]
    ):
        made = of_images(tmp_path / f"other-{case}", mine, theirs, **changes)
        assert made.other_images == {"b": [0, 1, 2]}, case
        assert made.rows[1].difference(made.first, "knn") is None
        assert made.rows[1].spread("knn") == spread(B)
        assert notes(made)[0] == (
            "# b: other images than a in seed(s) 0, 1, 2, so accuracies cannot be compared, and no difference counts "
            "them."
        )
        assert not any("+ b" in note or "same for all rows" in note for note in notes(made))
        record = records(made)[1]
        assert (record["same_images"], record["same_split"], record["knn.difference"]) == (False, False, None)
        assert f"| b#{'*' if changes else ''} |" in markdown(made)
        assert [cell for cell in markdown(made).splitlines()[3].split(" | ") if "<br>" in cell] == []
    for case, (mine, theirs, changes) in enumerate(
        [("x", "x", moved), ("x", "y", {"data__limit": 100}), ("x", "y", {"data__image_size": 12}), (None, "y", {})]
    ):
        made = of_images(tmp_path / f"same-{case}", mine, theirs, **changes)
        assert made.other_images == {}, case
        assert made.rows[1].difference(made.first, "knn") is not None
        assert not notes(made)[0].startswith("#")
        assert records(made)[1]["same_images"] is True


def test_rows_are_marked_with_what_differs_beyond_the_method(tmp_path: Path) -> None:
    changes = {"train__batch_size": 32, "method__mu": 0.5, "resources__actors": 2, "checkpoint__every": 2}
    made = two_rows(tmp_path, changes=changes)
    assert made.rows[0].differing == {}
    assert made.rows[1].differing == {"train.batch_size": (16, 32)}
    assert "* b: beyond the method, train.batch_size is 32 (not 16)." in notes(made)
    folders = three(tmp_path, "c", B, method="fedprox", changes={**changes, "method__mu": 0.1})
    both = of_variants({"a": [tmp_path / "a-0"], "b": [tmp_path / "b-0"], "c": folders})
    assert "* b, c: beyond the method, train.batch_size is 32 (not 16)." in notes(both)
    byol = tiny("fedbyol").model_dump(mode="json")
    assert set(differing(tiny("fedsimclr").model_dump(mode="json"), byol)) == {"objective.name"}
    warm = tiny("fedsimclr", objective__temperature=0.9, data__partition__alpha=2.0, resources__threads=2)
    found = set(differing(tiny("fedsimclr").model_dump(mode="json"), warm.model_dump(mode="json")))
    assert found == {"objective.temperature", "data.partition.alpha", "resources.threads"}


def test_of_images_that_one_row_alone_has_only_their_source_is_told(tmp_path: Path) -> None:
    public = {"source": "source", "images": {"name": "arrays", "path": "x.npz", "columns": {"label": "y"}}}
    folders = three(tmp_path, "a", A) + three(tmp_path, "b", B, changes={"data__public": public, "train__rounds": 9})
    made = of_runs(folders)
    keys = "data.public.images.name=arrays, data.public.images.path=x.npz, .."
    assert [row.name for row in made.trained] == ["fedsimclr", f"fedsimclr ({keys})"]
    assert made.rows[1].differing == {
        "data.public.images.name": (None, "arrays"),
        "data.public.images.path": (None, "x.npz"),
        "data.public.source": ("none", "source"),
        "train.rounds": (made.rows[0].runs[0].settings["train"]["rounds"], 9),
    }


def test_run_folders_that_differ_in_the_seed_alone_are_one_row(tmp_path: Path) -> None:
    folders = three(tmp_path, "a", A) + three(tmp_path, "b", B, changes={"train__batch_size": 32})
    made = of_runs([folders[3], *folders[:3], *folders[4:]])
    assert [row.name for row in made.trained] == ["fedsimclr", "fedsimclr (train.batch_size=16)"]
    assert made.first.values["knn"] == dict(enumerate(B))
    twice = run_folder(tmp_path / "again", 1, [0.5], changes={"checkpoint__every": 7})
    with pytest.raises(UserError, match=r"again: found the settings and the seed of .*a-1; each run once"):
        of_runs([*folders, twice])


@pytest.mark.parametrize(
    ("block", "row", "why"),
    [
        ("untrained", "Untrained encoder", "with other encoders or images, and gains are over that"),
        ("pixels", "Raw pixels", "of other images"),
    ],
)
def test_what_a_row_measured_otherwise_before_training_is_told(block: str, row: str, why: str, tmp_path: Path) -> None:
    made = two_rows(tmp_path)
    first, second, *others = made.rows
    runs = {seed: replace(run, **{block: {"knn": 0.123}}) for seed, run in second.runs.items()}
    told = notes(replace(made, rows=(first, replace(second, runs=runs), *others)))
    assert [note for note in told if "something else" in note] == [
        f"{row}: what the first row with that seed measured; b measured something else, as {why} (untrained, pixels in "
        "the summary.json of their runs)."
    ]


def test_a_row_is_compared_with_its_own_encoders_before_training(tmp_path: Path) -> None:
    """Row b, of 0.2 to 0.3, is below the first row's encoders of 0.35 and above its own of 0.05."""
    values = {"a": (0.35, [0.5, 0.6, 0.55]), "b": (0.05, [0.2, 0.3, 0.25])}
    runs = {}
    for name, (before, finals) in values.items():
        runs[name] = three(tmp_path, name, finals)
        for folder, final in zip(runs[name], finals, strict=True):
            part = metrics_parts(folder).read()
            began = [Metric(0, None, "eval/linear", before, 0.0), Metric(3, None, "eval/linear", final, 0.0)]
            metrics_parts(folder).write(Commit(3, 0), pa.concat_tables([part, table(began, METRICS)]))
    made = of_variants(runs)
    assert not any("untrained encoder in the mean" in note and "linear" in note for note in notes(made))
    rows = document(made, tmp_path)["rows"]
    assert [row["began"] and row["began"]["linear"] for row in rows[:2]] == [None, {"0": 0.05, "1": 0.05, "2": 0.05}]
    told = verdict(rows, ["linear"]).sentence
    assert "; 2 of 2 beat the untrained encoder (35.0 % of the first row; each is compared with its own)" in told


def test_runs_that_are_not_complete_are_told_and_not_counted(tmp_path: Path) -> None:
    folders = three(tmp_path, "a", A)
    lost = run_folder(tmp_path / "lost", 3, [0.99], status="diverged")
    (tmp_path / "begun").mkdir()
    made = of_variants({"a": [*folders, lost, tmp_path / "begun"]})
    assert made.first.values["knn"] == dict(enumerate(A))
    assert made.first.unfinished == {"seed 3": "diverged", "begun": "not finished"}
    assert "! a: seed 3 diverged, begun not finished; not counted." in notes(made)
    stopped = run_folder(tmp_path / "stopped", 0, [0.5], status="stopped", held_out=(7, 8))
    beside = of_variants({"a": [stopped], "b": three(tmp_path, "b", B, held_out=(7, 8))})  # nothing to compare with
    assert records(beside)[1]["select/knn.difference"] is None
    assert any("2 in each run: one is 0.5 of an accuracy. " in note for note in notes(beside))
    assert "a has no complete run, so nothing is subtracted." in notes(beside)
    assert not any("paired difference" in note for note in notes(beside))
    assert "| a! | - | - |" in markdown(beside)
    with pytest.raises(UserError, match="no run that is complete"):
        of_variants({"a": [lost]})
    with pytest.raises(UserError, match=r"begun: found no config\.yaml"):
        of_runs([tmp_path / "begun"])
    (lost / "summary.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        read_run(lost)
    (lost / "summary.json").unlink()
    with pytest.raises(UserError, match=r"found no summary\.json, so the run has not ended"):
        read_run(lost)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"communication": None}, "cannot be read"),
        ({"communication": {"up_bytes": 1}}, "found no 'down_bytes'"),
        ({"rounds": "x"}, "cannot be read"),
        ({"wall_s": None}, "cannot be read"),
        ({"epsilon": "much"}, "cannot be read"),
    ],
)
def test_a_damaged_summary_is_one_line(change: dict[str, Any], line: str, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", 0, A)
    known = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", {**known, **change})
    with pytest.raises(UserError, match=rf"summary\.json: {line}.*; the file is damaged$"):
        read_run(folder)


def test_a_damaged_partition_is_one_line(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "a", 0, A)
    (folder / "partition.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match=r"partition\.parquet: cannot be read \(.*\); the run's records are damaged"):
        of_runs([folder])


@pytest.mark.long
def test_the_files_hold_the_same_numbers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = two_rows(tmp_path, virtual=(60.0, 120.0, 180.0))
    write(made, out)
    expected = records(made)
    read = pq.read_table(out / "comparison.parquet").to_pylist()
    assert read == expected
    assert expected[1]["knn.mean"] == pytest.approx(np.mean(B))
    with (out / "comparison.csv").open() as file:
        texts = list(csv.DictReader(file))
    assert float(texts[1]["knn.low"]) == pytest.approx(expected[1]["knn.low"])
    told = json.loads((out / "comparison.json").read_text())
    assert told["rows"][1]["values"]["knn"] == {str(seed): value for seed, value in enumerate(B)}
    assert told["rows"][1]["seeds"]["2"]["folder"] == "../b-2"
    assert (told["same_split"], told["seeds"], told["first"]) == (True, [0, 1, 2], "a")
    lines = (out / "comparison.md").read_text().splitlines()
    assert lines[3].startswith("| b | 0.623 ± 0.040<br>+0.073 [-0.027, +0.174]<br>not told apart |")
    assert (expected[0]["knn.verdict"], expected[1]["knn.verdict"]) == (None, "not told apart")
    assert {line.count("|") for line in lines[:6]} == {lines[0].count("|")}
    tex = (out / "comparison.tex").read_text()
    columns = tex.split(r"\begin{tabular}{")[1].split("}")[0]
    body = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in body} == {len(columns) - 1}
    assert r"0.623 $\pm$ 0.040" in tex
    assert r"\scriptsize not told apart &" in tex
    drawn = {path.name for path in (out / "figures").iterdir()}
    assert drawn == {f"accuracy_vs_{x}.png" for x in ("rounds", "bytes", "virtual_hours")}


@pytest.mark.parametrize(("seconds", "shown"), [(0.42, "0.4"), (9.94, "9.9"), (9.96, "10"), (61.4, "61")])
def test_short_runs_have_a_decimal_of_their_seconds(seconds: float, shown: str, tmp_path: Path) -> None:
    made = of_variants({"a": [run_folder(tmp_path / "a", 0, [0.5])]})
    run = replace(made.first.runs[0], rounds_s=seconds)
    told = markdown(replace(made, rows=(replace(made.first, runs={0: run}), *made.rows[1:]))).splitlines()
    assert told[2].split(" | ")[-1] == f"{shown} |"


@pytest.mark.long
def test_without_a_clock_there_are_no_hours(tmp_path: Path) -> None:
    made = two_rows(tmp_path)
    write(made, tmp_path / "out")
    assert not (tmp_path / "out" / "figures" / "accuracy_vs_virtual_hours.png").exists()
    assert "virtual" not in markdown(made)
    assert "epsilon" not in markdown(made)
    assert "h: hours of the virtual clock" in " ".join(notes(two_rows(tmp_path / "timed", virtual=(1.0, 2.0, 3.0))))


def test_two_seeds_are_told_how_wide_their_intervals_are(tmp_path: Path) -> None:
    """The quantiles are those of printed tables of Student's t."""
    told = "an interval over seeds is 12.7 standard errors wide on either side, of three 4.3."
    for seeds in (2, 3):
        rows = {"a": three(tmp_path / f"{seeds}", "a", A[:seeds]), "b": three(tmp_path / f"{seeds}", "b", B[:seeds])}
        assert (told in " ".join(notes(of_variants(rows)))) == (seeds == 2)


def test_what_ninety_percent_of_a_doubtful_gain_cost_says_little(tmp_path: Path) -> None:
    gains = {"clear": [0.12, 0.13, 0.11], "doubtful": [0.30, 0.02, 0.01]}
    rows = {name: three(tmp_path, name, [UNTRAINED + gain for gain in of]) for name, of in gains.items()}
    for name, of in gains.items():
        assert (scipy.stats.ttest_1samp(of, 0).pvalue < 0.05) == (name == "clear")
    told = "The knn gain of doubtful is not told apart from none, so the cost of 90% of it says little."
    assert told in notes(of_variants(rows))
    assert "gain of" not in " ".join(notes(of_variants({"clear": rows["clear"]})))


def test_a_reader_is_told_what_a_value_is(tmp_path: Path) -> None:
    runs = three(tmp_path, "own", B, method="local", clients=True)
    made = of_variants({"a": three(tmp_path, "a", A), "own": runs})
    assert "Of own: the mean over clients, each measured with its own encoder." in notes(made)
    told = " ".join(notes(made))
    assert (
        "seconds: those of a run's rounds; to 90% of knn gain: until the first evaluation that was 90% of the way"
        in told
    )
    head, first = markdown(made).splitlines()[0:3:2]
    goal = np.mean([UNTRAINED + 0.9 * (v - UNTRAINED) for v in A])
    until = f"MB to 90% of knn gain | MB to knn {goal:.3f}"
    assert head == f"|  | knn | select/knn | rank | MB/round | MB total | {until} | seconds |"
    assert first.split(" | ")[3].startswith("5.500 ± 0.500")  # what describes features has its column, too


def test_clients_that_begin_with_one_encoder_have_its_values(tmp_path: Path) -> None:
    """The mean of five clients' 0.9666666666666667 is that number, and not the one before it."""
    value = 0.9666666666666667
    assert sum([value] * 5) / 5 != value
    runs = {}
    for name, clients in (("a", [None]), ("own", range(5))):
        runs[name] = [run_folder(tmp_path / name, 0, [0.5], method="local" if name == "own" else "fedsimclr")]
        part = metrics_parts(runs[name][0]).read()
        began = [Metric(0, client, "eval/linear", value, 0.0) for client in clients]
        metrics_parts(runs[name][0]).write(Commit(1, 0), pa.concat_tables([part, table(began, METRICS)]))
    made = of_variants(runs)
    assert made.rows[-2].values["linear"] == {0: value}
    assert not any("measured something else" in note for note in notes(made))


@pytest.mark.parametrize("end", [math.nan, 0.7])
def test_what_is_no_number_is_missing(end: float, tmp_path: Path) -> None:
    """An area is NaN where test images are of one class: before training alone, or in the end, too."""
    runs, out = {"a": three(tmp_path, "a", A), "b": three(tmp_path, "b", B, method="fedprox")}, tmp_path / "out"
    for folder in [*runs["a"], *runs["b"]]:
        more = [Metric(0, None, tag, math.nan, 0.0) for tag in ("eval/knn_auc", "eval/pixels_knn_auc")]
        more += [Metric(t, None, "eval/knn_auc", value, float(t)) for t, value in ((1, 0.6), (3, end))]
        part = metrics_parts(folder).read()
        metrics_parts(folder).write(Commit(3, 0), pa.concat_tables([part, table(more, METRICS)]))
    made = of_variants(runs)
    assert (made.rows[0].began, made.rows[1].began) == (None, None)  # NaN is not another value than NaN
    assert ("knn_auc" in made.measures) == math.isfinite(end)
    write(made, out)
    assert pq.read_table(out / "comparison.parquet").to_pylist() == records(made)  # NaN would not equal itself
    assert all(record.get("knn_auc.mean") is None for record in records(made)[-2:])
    report(out)
    for name in ("comparison.csv", "comparison.md", "comparison.tex", "comparison.json", "report.html"):
        assert not re.search(r"\bnan\b", (out / name).read_text(), re.IGNORECASE), name
    head, *rows = [line.split(" | ") for line in markdown(made).splitlines() if line.startswith("| ")]
    if math.isfinite(end):
        assert [row[head.index("knn_auc")] for row in rows[-2:]] == ["-", "-"]


def test_a_figure_names_every_row_once(tmp_path: Path) -> None:
    made = of_variants({"a": three(tmp_path, "a", A), "b": three(tmp_path, "b", B, method="fedprox", sent=[])})
    drawn = figure(made, "MB", lambda run, t: run.bytes_until(t) or None, log=True)
    (axes,) = drawn.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "a", "b (final)", "untrained encoder", "raw pixels",
    ]  # fmt: skip
    levels = {line.get_label(): line.get_ydata()[0] for line in axes.lines if len(line.get_xdata()) == 2}
    assert levels["untrained encoder"] == pytest.approx(100 * UNTRAINED)
    assert levels["raw pixels"] == pytest.approx(100 * PIXELS)
    assert levels["b (final)"] == pytest.approx(100 * np.mean(B))
    rounds = figure(made, "round", lambda run, t: float(t)).axes[0]
    assert all(tick == int(tick) for tick in rounds.get_xticks())


def test_names_cannot_break_a_table(tmp_path: Path) -> None:
    made = of_variants({"a|b_\\&\x1b[31m": three(tmp_path, "a", A)}, {"left": "no\nimages"})
    assert r"| a\|b_\&\x1b[31m |" in markdown(made)
    assert "\x1b" not in markdown(made) + latex(made)
    assert r"a|b\_\textbackslash{}\&\textbackslash{}x1b[31m" in latex(made)
    assert "Left out, left: no images" in notes(made)


def test_a_line_is_the_mean_over_seeds_of_the_rounds_that_all_evaluated(tmp_path: Path) -> None:
    runs = [run_folder(tmp_path / "x", 0, [0.2, 0.4], sent=[(10, 0), (30, 0)])]
    runs.append(run_folder(tmp_path / "y", 1, [0.4, 0.8, 0.9], sent=[(20, 0), (20, 0), (1, 0)]))
    row: Row = of_variants({"a": runs}).first
    found = line(row, "knn", lambda run, t: run.bytes_until(t) or None)
    assert found == [
        (15.0, pytest.approx(0.3), pytest.approx(np.std([0.2, 0.4], ddof=1))),
        (40.0, pytest.approx(0.6), pytest.approx(np.std([0.4, 0.8], ddof=1))),
    ]
    silent = of_variants({"s": [run_folder(tmp_path / "s", 0, [0.5], sent=[])]})
    assert line(silent.first, "knn", lambda run, t: run.bytes_until(t) or None) == []
    write(silent, tmp_path / "out")  # nobody sends: a figure without a line of bytes


def test_what_runs_noted_of_their_images_is_said_below_the_table(tmp_path: Path) -> None:
    """A table of accuracies says nothing where client folders were taken for classes."""
    everywhere, one = "99% of the test images are of class ok", "small_cnn uploads\x1b"
    variants = {"a": [run_folder(tmp_path / f"a{seed}", seed, [0.5]) for seed in (3, 4)]}
    variants |= {"b": [run_folder(tmp_path / "b", 3, [0.5])], "c": [run_folder(tmp_path / "c", 3, [0.5])]}
    for folder, said in {"a3": [everywhere], "a4": ["of another split"], "b": [everywhere, one]}.items():
        (tmp_path / folder / "environment.json").write_text(json.dumps({"notes": said}))
    (tmp_path / "c/environment.json").write_text(json.dumps({"notes": [everywhere, 5]}))
    lines = [note for note in notes(of_variants(variants)) if note.startswith("Noted")]
    assert lines == [f"Noted at seed 3: {everywhere}", "Noted at seed 3 of b: small_cnn uploads\\x1b"]
    later = run_folder(tmp_path / "d", 4, [0.5])  # a row without the first seed tells of its own
    (later / "environment.json").write_text(json.dumps({"notes": [everywhere]}))
    lines = [note for note in notes(of_variants({**variants, "d": [later]})) if note.startswith("Noted at seed 4")]
    assert lines == [f"Noted at seed 4 of d: {everywhere}"]
    only = of_variants({"a": variants["a"][:1], "b": variants["b"]})
    assert f"Noted: {everywhere}" in notes(only)
    assert f"Noted: {everywhere}" in markdown(only)
