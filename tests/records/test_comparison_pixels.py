"""Raw pixels beside the rows of a comparison: who is below them, and runs that measured less of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from rayfed_ssl.records.comparison_files import markdown
from rayfed_ssl.records.comparison_notes import notes
from rayfed_ssl.records.comparison_rows import of_runs, of_variants
from rayfed_ssl.records.one_run import read_run
from rayfed_ssl.records.tables import Commit, metrics_parts
from tests.records.run_folders import PIXELS, A, run_folder, three, two_rows


def test_rows_below_raw_pixels_are_named(tmp_path: Path) -> None:
    """In the mean over the seeds that both have; pixels are worth 0.4."""
    mixed, below = [0.35, 0.5, 0.37], [0.35, 0.46, 0.38]
    runs = {name: three(tmp_path, name, of) for name, of in (("a", A), ("mixed", mixed), ("below", below))}
    told = [note for note in notes(of_variants(runs)) if "raw pixels" in note]
    assert told == ["Below raw pixels in the mean, chance not counted: below by knn."]
    runs["c"] = three(tmp_path, "c", [0.29, 0.3, 0.28])  # the untrained encoder's is 0.3
    told = [note for note in notes(of_variants(runs)) if note.startswith("Below")]
    assert told == [
        "Below the untrained encoder in the mean, chance not counted: c by knn.",
        "Below raw pixels in the mean, chance not counted: below, c by knn.",
    ]
    assert not any("raw pixels" in note for note in notes(two_rows(tmp_path / "others")))


def test_a_run_of_an_older_version_beside_a_new_one(tmp_path: Path) -> None:
    """It measured raw pixels by few-shot alone: its cell is empty, and nothing is said to differ."""
    old, new = run_folder(tmp_path / "old", 0, [0.3]), run_folder(tmp_path / "new", 1, [0.3], method="fedprox")
    part = metrics_parts(old).read()
    kept = part.filter([tag != "eval/pixels_knn" for tag in part["tag"].to_pylist()])
    shutil.rmtree(old / "metrics.parquet")
    metrics_parts(old).write(Commit(1, 0), kept)
    assert (read_run(old).pixels, read_run(new).pixels) == ({"fewshot": PIXELS}, {"knn": PIXELS, "fewshot": PIXELS})
    made = of_runs([old, new])
    assert made.rows[-1].values == {"knn": {1: PIXELS}, "fewshot": {0: PIXELS, 1: PIXELS}}
    assert not any("measured something else" in note for note in notes(made))
    assert "Below raw pixels in the mean, chance not counted: fedprox by knn." in notes(made)
    assert {f"fedsimclr: {old}.", f"fedprox: {new}."} <= set(notes(made))  # which folder is which row


def test_without_a_measure_of_raw_pixels_there_is_no_row_of_them(tmp_path: Path) -> None:
    """As with accuracies of clients' own tasks alone, or descriptions of features."""
    folders = [run_folder(tmp_path / name, 0, [0.3], method=name) for name in ("fedlinked", "local")]
    for folder in folders:
        part = metrics_parts(folder).read()
        kept = part.filter([not tag.startswith("eval/pixels_") for tag in part["tag"].to_pylist()])
        shutil.rmtree(folder / "metrics.parquet")
        metrics_parts(folder).write(Commit(1, 0), kept)
    made = of_runs(folders)
    assert [row.name for row in made.rows] == ["fedlinked", "local", "untrained encoder"]
    assert not any("pixels" in note.lower() for note in notes(made))
    assert "raw pixels" not in "\n".join(markdown(made))


def test_of_many_runs_of_a_row_the_first_folders_are_named(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / f"run-{seed}", seed, [0.3]) for seed in range(7)]
    told = ", ".join(map(str, folders[:5]))
    assert f"fedsimclr: {told} and 2 more." in notes(of_runs(folders))
    assert not any(str(tmp_path) in note for note in notes(of_variants({"a": folders})))  # named by the user
