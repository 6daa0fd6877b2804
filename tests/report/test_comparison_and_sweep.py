"""Reports of comparisons and sweeps hold the numbers of their files, and say what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from matplotlib.figure import Figure

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.records import comparison_files
from rayfed_ssl.records.comparison_choice import choice, selected
from rayfed_ssl.records.comparison_rows import of_runs
from rayfed_ssl.report import comparison
from rayfed_ssl.report.comparison_verdict import against
from rayfed_ssl.report.dispatch import report_of
from rayfed_ssl.testing.tiny import run_locally, tiny_run
from tests.report.conftest import told
from tests.report.parsed import Parsed


@pytest.fixture(autouse=True)
def _one_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))


def test_a_comparison_of_runs(bare: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    run_locally(tiny_run("local", {"train.rounds": 2, "clients.count": 3, "seed": 0}), other)
    comparison_files.write(of_runs([bare, other]), tmp_path / "out")
    page = Parsed(report_of(tmp_path / "out"))
    values = {a["data-key"]: float(a["value"] or "nan") for a in page.of("data") if "data-key" in a}
    assert {"rows/0/knn.mean", "rows/1/knn.mean", "rows/2/knn.mean", "rows/0/bytes_total"} <= values.keys()
    for key, value in values.items():
        assert value == pytest.approx(told(tmp_path / "out/comparison.json", str(key))), key
    document = json.loads((tmp_path / "out/comparison.json").read_text())
    assert [one["test_images"] for one in document["rows"][:2]] == [{"knn": 60}, {"knn": 60}]
    assert "over 60 test images contains zero" in page.words
    names = [str(a["id"]) for a in page.of("figure") if "id" in a]
    assert names == ["figure-comparison_knn", "figure-comparison_knn_rounds", "figure-comparison_knn_bytes"]
    figures = [str(a["aria-label"]) for a in page.of("svg")]
    assert "kNN accuracy over bytes of fedsimclr, local." in figures  # which sent nothing
    assert "Dashed: the untrained encoder." in page.words
    assert "Dotted: raw pixels." in page.words
    assert "small: each seed" not in page.words  # of one seed only the mean is drawn
    document = json.loads((tmp_path / "out/comparison.json").read_text())
    for note in document["notes"]:
        assert " ".join(note.split()) in page.words

    document["rows"][0]["seeds"]["0"]["folder"] = "gone"
    (tmp_path / "out/comparison.json").write_text(json.dumps(document))
    page = Parsed(report_of(tmp_path / "out"))
    assert "fedsimclr: a run has no curve" in page.words


@pytest.mark.parametrize("most", [3.0, 40.0, 3e4])
def test_bytes_begin_at_zero_and_who_sends_none_stands_there(most: float) -> None:
    figure = Figure()
    values = {"a": {0.0: 70.0, 1.5: 80.0, most: 81.0}, "local": {0.0: 75.0}}
    comparison.paint_curves(figure, values, "MB", "accuracy (%)")
    (axes,) = figure.axes
    assert axes.get_xlim()[0] == 0.0
    assert [list(line.get_xdata()) for line in axes.lines] == [[0.0, 1.5, most], [0.0]]
    assert axes.get_xscale() == ("linear" if most < 30 else "symlog")
    figure.draw_without_rendering()
    shown = [text.get_text() for text in axes.get_xticklabels()]
    assert shown[0] == "0"
    assert 3 <= len(shown) <= 9


def row(name: str, values: tuple[float, ...], runs: int = 1, images: int | None = None) -> dict[str, Any]:
    of = {str(seed): value for seed, value in enumerate(values)}
    known = {} if images is None else {"knn": images}
    mean = sum(values) / len(values) if values else None
    return {"row": name, "runs": runs, "knn.mean": mean, "values": {"knn": of}, "seeds": of, "test_images": known}


def test_of_one_seed_the_test_images_say_what_is_level() -> None:
    rows = [row("a", (0.80,), 1, 1000), row("b", (0.903,), 1, 1000), row("c", (0.89,), 1, 1000)]
    rows.append(row("untrained encoder", (0.79,), 0))
    found = comparison.verdict(rows, ["knn"])
    assert found.kind is None  # not all rows are
    assert comparison.verdict(rows[1:], ["knn"]).kind == "better"
    assert found.sentence == (
        "By kNN, b is first of 3 with 90.3 %; of the others 1 is not told apart from it; 2 of 3 beat the untrained "
        "encoder (79.0 %), 1 not told apart from it. Level: the 95 % interval of the difference over 1,000 test images "
        "contains zero and lies within ±1 point; not told apart: it contains zero and reaches further; of one seed, so "
        "another may order them otherwise. The best of 3 is so partly by chance, and one as good may be told apart "
        "from it."
    )
    few = [{**one, "test_images": {"knn": 20}} for one in rows]
    assert comparison.verdict(few, ["knn"]).kind == "not told apart"
    unknown = comparison.verdict([{**one, "test_images": {}} for one in rows], ["knn"])
    assert unknown.kind is None
    assert unknown.sentence == (
        "By kNN, b is first of 3 with 90.3 %, 1.3 points before c, no interval; the untrained encoder has 79.0 %. One "
        "seed and no interval: what is apart may be so by chance."
    )
    worse = [row("a", (0.5,), 1, 1000), row("untrained encoder", (0.6,), 0)]
    assert comparison.verdict(worse, ["knn"]).kind == "worse"
    assert comparison.verdict([row("a", ())], ["knn"]).kind is None
    here, elsewhere = row("a", (0.5, 0.51)), {**row("b", (0.9, 0.91)), "same_images": False}
    assert comparison.verdict([here, elsewhere], ["knn"]).sentence.startswith("By kNN, a is first of 1 with 50.5 %")


def test_a_difference_is_that_of_the_values_where_its_interval_ends_at_one() -> None:
    best, other = row("a", (0.95, 0.85)), row("b", (0.15, 0.05))
    best["pairs"] = {"b": {"knn": {"low": 0.3, "high": 1.0, "seeds": ["0", "1"], "test_images": 12}}}
    for one, beside, sign in ((best, other, 1), (other, best, -1)):
        found = against(one, beside, "knn", ["0", "1"])
        assert found is not None
        assert (found.mean, *sorted((sign * (found.low or 0), sign * (found.high or 0)))) == (
            pytest.approx(sign * 0.8), 0.3, 1.0,
        )  # fmt: skip


@pytest.mark.long
def test_a_choice_that_can_no_longer_be_made_is_told_on_the_page(bare: Path, tmp_path: Path) -> None:
    runs = of_runs([bare])
    (tmp_path / "comparison.json").write_text('{"selection": {"asked": "select.linear"}}')
    comparison_files.write(runs, tmp_path, selected(runs, None, tmp_path))
    page = Parsed(report_of(tmp_path))
    assert "no row is chosen: --select was select.linear before, and these runs have " in page.words
    assert "why is said under Choice without test labels" in page.words


def test_of_several_seeds_paired_differences_say_what_is_level() -> None:
    base = row("untrained encoder", (0.70, 0.71, 0.72), 0)
    steady, jumping = row("a", (0.80, 0.81, 0.821), 3, 50), row("b", (0.78, 0.80, 0.80), 3, 50)
    found = comparison.verdict([steady, jumping, base], ["knn"])
    assert found.kind == "better"  # although 50 images allow ten points
    assert found.sentence == (
        "By kNN, a is first of 2 with 81.0 %, 1.7 points before b; 2 of 2 beat the untrained encoder (71.0 %). Level: "
        "the 95 % interval of the difference over 3 seeds contains zero and lies within ±1 point; not told apart: it "
        "contains zero and reaches further; it counts seeds, not which test images were drawn."
    )
    wild = row("b", (0.90, 0.60, 0.90), 3, 50)  # 10, 21 and 8 points apart, up and down
    found = comparison.verdict([steady, wild, base], ["knn"])
    assert (
        "; of the others 1 is not told apart from it; 1 of 2 beat the untrained encoder (71.0 %), 1 not told apart "
        "from it." in found.sentence
    )
    near, alike = row("c", (0.799, 0.811, 0.818), 3, 50), row("d", (0.70, 0.712, 0.718), 3, 50)
    assert (
        "; of the others 1 is level with it and 1 is not told apart from it; 2 of 4 beat the untrained encoder (71.0 "
        "%), 1 level with it, 1 not told apart from it."
        in comparison.verdict([steady, near, wild, alike, base], ["knn"]).sentence
    )


def test_rows_are_told_beside_raw_pixels_too() -> None:
    rows = [row("a", (0.80,), 1, 1000), row("b", (0.903,), 1, 1000), row("untrained encoder", (0.79,), 0)]
    found = comparison.verdict([*rows, row("raw pixels", (0.85,), 0)], ["knn"])
    assert (
        "; 1 of 2 beat the untrained encoder (79.0 %), 1 not told apart from it; 1 of 2 beat raw pixels (85.0 %), 1 "
        "worse. " in found.sentence
    )
    assert (
        comparison.verdict([*rows[1:], row("raw pixels", (0.95,), 0)], ["knn"]).kind == "better"
    )  # than the untrained encoder
    assert "pixels" not in comparison.verdict([*rows, row("raw pixels", (), 0)], ["knn"]).sentence  # an older run's
    unknown = [{**one, "test_images": {}} for one in (*rows, row("raw pixels", (0.85,), 0))]
    assert (
        "; the untrained encoder has 79.0 %; raw pixels have 85.0 %. " in comparison.verdict(unknown, ["knn"]).sentence
    )


def described(name: str, runs: int, **features: tuple[float, ...]) -> dict[str, Any]:
    values = {f"features/{key}": {str(s): v for s, v in enumerate(of)} for key, of in features.items()}
    means = {f"{key}.mean": sum(of.values()) / len(of) for key, of in values.items()}
    return {"row": name, "runs": runs, "values": values, **means}


def test_without_an_accuracy_features_order_the_rows_and_nobody_is_better() -> None:
    rows = [
        described("a", 3, rankme=(36.0, 37.0, 38.0), uniformity=(-1.0, -1.1, -1.2)),
        described("b", 3, rankme=(38.0, 36.5, 38.5), uniformity=(-2.0, -2.2, -2.2)),
        described("untrained encoder", 0, rankme=(20.0, 21.0, 22.0)),
    ]
    found = comparison.verdict(rows, [])
    assert (found.kind, found.protocol) == (None, "features/rankme")
    assert found.sentence == (
        "No accuracy was measured; by RankMe, b is first of 2 with 37.67; of the others 1 is not told apart "
        "from it; the untrained encoder has 21. Not told apart: the 95 % interval of the difference over 3 seeds "
        "contains zero."
    )
    for one in rows:
        del one["values"]["features/rankme"]
    assert comparison.verdict(rows, []).sentence.startswith(
        "No accuracy was measured; by uniformity, b is first of 2 with −2.133, −1.03 to a. Not told apart:"
    )
    assert comparison.verdict([row("a", (0.5,))], []).sentence == "Nothing was measured that could be compared."


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods of which only features are described, compared and chosen by RankMe."""
    folder = tmp_path_factory.mktemp("unlabelled")
    runs = [folder / "fedsimclr", folder / "local"]
    for run in runs:
        changes = {"train.rounds": 1, "clients.count": 3, "seed": 0, "evaluation.protocols": ["rank"]}
        run_locally(tiny_run(run.name, changes), run)
    compared = of_runs(runs)
    comparison_files.write(compared, folder / "out", choice(compared, "rankme"))
    return folder / "out"


@pytest.mark.long
def test_a_comparison_without_labels_shows_what_was_measured_and_chosen(unlabelled: Path) -> None:
    page = Parsed(report_of(unlabelled))
    document = json.loads((unlabelled / "comparison.json").read_text())
    ranks = {one["row"]: one["features/rankme.mean"] for one in document["rows"][:2]}
    best = max(ranks, key=lambda name: ranks[name])
    assert document["selection"]["row"] == best
    assert document["selection"]["mean"] == ranks[best]
    assert document["selection"]["level"] is None  # of one seed
    values = {a["data-key"]: float(a["value"] or "nan") for a in page.of("data") if "data-key" in a}
    for place, name in enumerate(ranks):
        assert values[f"rows/{place}/features/rankme.mean"] == ranks[name]
    assert f"No accuracy was measured; by RankMe, {best} is first of 2 with" in page.words
    assert f"chosen by RankMe {best}" in page.words
    said = f"chosen by rankme, by no labels: {best} ({ranks[best]:.4g}); of one seed, so differences may be chance"
    assert document["selection"]["sentence"] == said
    assert said in page.words
    assert f"- {said}." in (unlabelled / "comparison.md").read_text().splitlines()
    names = {str(a["id"]) for a in page.of("figure") if "id" in a}
    assert {f"figure-comparison_features_{name}" for name in ("rankme", "alignment", "uniformity")} <= names


def of_seeds(name: str, values: dict[int, float], unfinished: str | None = None) -> dict[str, Any]:
    known = {str(seed): value for seed, value in values.items()}
    return {
        "row": name, "runs": len(known), "unfinished": unfinished, "values": {"knn": known}, "test_images": {"knn": 50},
        "knn.mean": sum(known.values()) / len(known) if known else None,
    }  # fmt: skip


def test_rows_are_ordered_over_the_seeds_that_all_have() -> None:
    seed = {0: 0.2, 1: 0.0, 2: -0.1}  # what a seed adds to everybody; b is better by two points in each
    a, b = of_seeds("a", {0: 0.7 + seed[0]}), of_seeds("b", {s: 0.72 + of for s, of in seed.items()})
    found = comparison.verdict([a, b, {**of_seeds("untrained encoder", {0: 0.5, 1: 0.1}), "runs": 0}], ["knn"])
    assert found.sentence.startswith(
        "By kNN, b is first of 2 with 92.0 % over the 1 seed that all have; of the others 1 is not told apart from "
        "it; 2 of 2 beat the untrained encoder (50.0 %)."
    )
    shared = of_seeds("a", {0: 0.90, 1: 0.70, 9: 0.99})
    assert (
        "b is first of 2 with 82.0 % over the 2 seeds that all have, 2.0 points"
        in comparison.verdict([shared, b], ["knn"]).sentence
    )
    apart = comparison.verdict([a, of_seeds("c", {7: 0.5})], ["knn"])
    assert apart.sentence == "By kNN, no row is first: they have no seed in common."
    assert apart.kind is None


def test_a_row_whose_runs_diverged_is_not_first() -> None:
    whole = of_seeds("b", {0: 0.93, 1: 0.70, 2: 0.71})
    lucky = of_seeds("a", {0: 0.95}, "seed 1: diverged, seed 2: diverged")
    never = of_seeds("c", {}, "seed 0: diverged, seed 1: diverged, trial-00005: not finished")
    said = comparison.verdict([lucky, whole, never], ["knn"]).sentence
    assert said == "By kNN, b is first of 1 with 78.0 %; not ranked: a (1 of 3 seeds); not ranked: c (0 of 3 seeds)."
    waiting = {**whole, "unfinished": "trial-00004: not finished"}  # none is whole: all that is there counts
    said = comparison.verdict([of_seeds("a", {0: 0.9}, "seed 1: diverged"), waiting], ["knn"]).sentence
    assert said.startswith(
        "By kNN, b is first of 2 with 93.0 % over the 1 seed that all have; of the others 1 is not told"
    )
    assert "not ranked" not in said


@pytest.mark.parametrize("text", ["", "[]", '{"rows": 3}', '{"rows": []}', '{"rows": [{"row": "a"}]}'])
def test_a_damaged_comparison_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(UserError, match=r"comparison\.json: .*damaged"):
        report_of(tmp_path)
    assert not (tmp_path / "report.html").exists()


def results(folder: Path, *, scores: tuple[float | None, ...] = (0.5, 0.75, None)) -> Path:
    """A sweep's files: three configurations, of which one failed."""
    rows = [
        {"trial": c, "configuration": c, "repeat": 0, "folder": f"trial-{c:05d}", "status": "failed" if s is None else
         "complete", "rounds": 2, "select.knn": s, "score": s, "train.optimizer.lr": 10.0**-c,
         "augment.preset": "<b>digits", "accuracy.knn": s, "up_bytes": 1000, "down_bytes": 10, "wall_s": 2.0}
        for c, s in enumerate(scores)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), folder / "results.parquet")
    settings = {"base": "run.yaml", "metric": "select.knn", "mode": "max"}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(settings))
    trials = [{"trial": c, "reports": [[1, 0.4], [2, s]]} for c, s in enumerate(scores) if s is not None]
    (folder / "trials.json").write_text(json.dumps({"trials": trials}))
    return folder


def test_a_sweep(tmp_path: Path) -> None:
    page = Parsed(report_of(results(tmp_path)))
    assert "Of 2 configurations that ran to the end, number 1 is the best by select.knn: 75.0 % with" in page.words
    assert "train.optimizer.lr = 0.1, augment.preset = <b>digits." in page.words
    assert "b" not in {tag for tag, _ in page.tags}
    scores = [float(a["value"] or "nan") for a in page.of("data") if str(a.get("data-key")).endswith("/score")]
    assert scores == [0.75, 0.5]
    names = [str(a["id"]) for a in page.of("figure") if "id" in a]
    assert names == ["figure-sweep_key_0", "figure-sweep_key_1", "figure-sweep_course"]


def test_the_smallest_is_the_best_where_the_sweep_says_so(tmp_path: Path) -> None:
    path = results(tmp_path) / "sweep.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "mode": "min"}))
    assert "number 0 is the best by select.knn: 50.0 % with" in Parsed(report_of(tmp_path)).words


@pytest.mark.long
def test_what_did_not_run_to_the_end_is_not_chosen(tmp_path: Path) -> None:
    for statuses, scores, said in (
        (("complete", "stopped", "waiting"), (0.5, 0.6, 0.7),
         "Of 1 configuration that ran to the end, number 0 is the best by select.knn: 50.0 % with train.optimizer.lr = "
         "1, augment.preset = <b>digits. 2 others with a score did not run to the end and cannot be chosen."),
        (("stopped", "waiting", "failed"), (0.5, 0.6, None),
         "No configuration has run to its end yet; 2 configurations with a score so far."),
        (("complete", "complete", "complete"), (0.4, 0.5, 0.5),
         "number 1 is first by select.knn: 50.0 % with train.optimizer.lr = 0.1, augment.preset = <b>digits."),
    ):  # fmt: skip
        rows = pq.read_table(results(tmp_path, scores=scores) / "results.parquet").to_pylist()
        rows = [{**row, "status": status} for row, status in zip(rows, statuses, strict=True)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "results.parquet")
        words = Parsed(report_of(tmp_path)).words
        assert said in words
        assert words.count("complete chosen") == (said[:2] != "No")
        level = "number 1 is" in said
        assert words.count("complete level") == level
        assert ("Level with number 1: number 2, because their values are the same." in words) == level
        assert "Each was trained once, so differences may be chance" not in words  # of one, or of equals


@pytest.mark.long
def test_a_damaged_sweep_is_one_line_or_a_note(tmp_path: Path) -> None:
    results(tmp_path)
    (tmp_path / "trials.json").write_text("{")
    (tmp_path / "sweep.yaml").unlink()
    page = Parsed(report_of(tmp_path))
    assert "trials.json: cannot be read" in page.words
    assert "sweep.yaml" in page.words
    (tmp_path / "results.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"results\.parquet: cannot be read .* damaged"):
        report_of(tmp_path)


@pytest.mark.long
def test_a_sweep_without_a_score_says_so(tmp_path: Path) -> None:
    page = Parsed(report_of(results(tmp_path, scores=(None, None))))
    assert "No configuration has a score yet." in page.words
