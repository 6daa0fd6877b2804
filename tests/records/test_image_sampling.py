"""What intervals over seeds leave out is said below the table, with its size."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from statistics import fmean

import pytest
from scipy import stats

from rayfed_ssl.records.comparison import Comparison
from rayfed_ssl.records.comparison_files import latex, markdown
from rayfed_ssl.records.comparison_notes import notes
from rayfed_ssl.records.comparison_rows import of_runs
from rayfed_ssl.records.image_pairs import LACKING
from rayfed_ssl.records.image_sampling import counted, not_counted, rows_in_words
from rayfed_ssl.testing.tiny import run_locally, tiny_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two methods of one round, two seeds each, on the same 60 test images."""
    root = tmp_path_factory.mktemp("runs")
    folders = [root / f"{method}-{seed}" for method in ("fedsimclr", "local") for seed in (0, 1)]
    for folder in folders:
        method, seed = folder.name.split("-")
        run_locally(tiny_run(method, {"train.rounds": 1, "clients.count": 3, "seed": int(seed)}), folder)
    return folders


def of_earlier_runs(folders: list[Path], images: int | None = 60) -> Comparison:
    """The comparison of runs that kept no answers image by image, on so many test images."""
    made = of_runs(folders)
    rows = [
        dataclasses.replace(
            row,
            runs={seed: dataclasses.replace(run, test_images=images, outcomes=None) for seed, run in row.runs.items()},
        )
        for row in made.rows
    ]
    return Comparison(tuple(rows))


@pytest.mark.long
def test_several_seeds_are_told_what_their_intervals_leave_out(runs: list[Path]) -> None:
    made = of_earlier_runs(runs)
    told, why = not_counted(made)
    assert why == f"Of local (knn): the interval counts seeds alone, because {LACKING}."
    mean = fmean(made.first.values["knn"].values())
    assert told.startswith("Intervals count seeds, not which test images were drawn: one of 60 is 0.017 of an accuracy")
    begin, end = (float(text) for text in told.split("may be ")[1].split(" (95%)")[0].split(" to "))
    assert begin < mean < end
    assert 0.1 < end - begin < 0.26
    assert told in notes(made)
    assert told in latex(made)
    assert told.split(":")[0] in markdown(made)


def test_more_images_leave_less_out(runs: list[Path]) -> None:
    made = of_runs(runs)
    told, _ = not_counted(of_earlier_runs(runs, 10_000))
    mean = fmean(made.first.values["knn"].values())
    low, high = stats.binomtest(round(10_000 * mean), 10_000).proportion_ci(method="wilson")
    assert f"one of 10,000 is 0.0001 of an accuracy, and with others {mean:.3f} of knn may be {low:.3f} to" in told
    assert f" to {high:.3f} (95%)" in told
    assert (
        not_counted(of_earlier_runs(runs, None))[0]
        == "Intervals count seeds, not which test images were drawn; how many there are is not recorded."
    )


def test_one_seed_has_no_interval_that_could_leave_something_out(runs: list[Path]) -> None:
    made = of_earlier_runs([runs[0], runs[2]])
    assert "Intervals count" not in " ".join(notes(made))
    assert f"Of local (knn): there is no interval, because {LACKING}." in notes(made)


def test_the_untrained_encoders_intervals_are_explained_where_no_method_has_one(runs: list[Path]) -> None:
    """One row of one seed: what is compared with it is what it began with, by the answers that its run kept."""
    made = of_runs(runs[:1])
    untrained = made.rows[1].difference(made.first, "knn")
    assert untrained is not None
    assert not isinstance(untrained.drawn, str)
    told = " ".join(notes(made))
    assert "images: its 95% interval over the test images of this one seed" in told
    assert "of one seed there is no interval" not in told


def test_runs_as_they_are_leave_no_test_image_out(runs: list[Path]) -> None:
    for folders in (runs, [runs[0], runs[2]]):
        made = of_runs(folders)
        assert counted(made) == {"test images"}
        assert not_counted(made) == []
        assert "images [" in markdown(made)


def test_rows_of_the_same_measures_are_told_together() -> None:
    several = {"a": ["own_knn"], "b": ["knn", "own_knn"], "c": ["own_knn"]}
    assert rows_in_words(several, 3) == "a, c (own_knn); b (knn, own_knn)"
    assert rows_in_words({"a": ["own_knn"], "b": ["own_knn"]}, 2) == "own_knn of every other row"
    assert rows_in_words({"a": ["own_knn"], "b": ["own_knn"]}, 3) == "a, b (own_knn)"
