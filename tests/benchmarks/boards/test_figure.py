"""The leaderboard's figures: what is drawn where, against rows made by hand and SciPy's intervals."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import leaderboard
import numpy as np
import pytest
from boards import figure, forest, rows
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Annotation
from PIL import Image
from scipy import stats

from tests.benchmarks import made

PARTITIONS = ("even", "skewed")
BOARD: dict[str, Any] = {
    "data": {"shoes": "a.yaml", "birds": "b.yaml"},
    "partitions": {name: {} for name in PARTITIONS},
    "seeds": [0, 1, 2],
    "references": ["local"],
}
SENT = {"fedsimclr": 50, "fedca": 100, "flesd": 10, "fedsc": 50, "local": 0}  # MB
OF_SEEDS = (0.50, 0.40, 0.45)  # the reference's accuracy
# Method -> seed -> differences in the two partitions; None: not run. Worked out by hand below.
GAINS: dict[str, tuple[tuple[float | None, float | None], ...]] = {
    "fedca": ((0.02, 0.04), (0.06, 0.02), (0.05, None)),
    "flesd": ((-0.02, -0.02), (-0.01, -0.03), (-0.03, -0.02)),
    "fedsc": ((-0.20, -0.22), (-0.20, -0.20), (-0.21, -0.22)),
    "local": ((-0.05, -0.03), (-0.04, -0.06), (-0.05, -0.04)),
}
CLUSTERS = {
    "fedca": (0.03, 0.04, 0.05),
    "flesd": (-0.02, -0.02, -0.025),
    "fedsc": (-0.21, -0.20, -0.215),
    "local": (-0.04, -0.05, -0.045),
}


def row(method: str, seed: int, partition: str, value: float, data: str, **others: Any) -> rows.Record:
    sent = 10**6 * SENT.get(method, 1)
    scores = {"linear": value + 0.1, "fewshot": 0.5 * value}
    return made.row(method, seed, value, data=data, partition=partition, bytes_total=sent, **scores, **others)


def made_rows(data: str = "shoes", scale: float = 1.0) -> list[rows.Record]:
    """Every method on three seeds; the reference has another 0.1 on skewed clients and a fourth, poor seed there."""
    base = {"even": 0.0, "skewed": 0.1}
    made = [row("fedsimclr", s, p, OF_SEEDS[s] + base[p], data) for p in PARTITIONS for s in range(3)]
    made.append(row("fedsimclr", 3, "skewed", 0.31, data))
    for method, gains in GAINS.items():
        for seed, each in enumerate(gains):
            for p, gain in zip(PARTITIONS, each, strict=True):
                if gain is not None:
                    made.append(row(method, seed, p, OF_SEEDS[seed] + base[p] + scale * gain, data))
    return made


def interval(values: Any) -> tuple[float, float]:
    found = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    return float(found.low), float(found.high)


def bars(axes: Axes, vertical: bool) -> dict[str, tuple[float, float, float] | tuple[float]]:
    """Method -> the point's accuracy or difference, and the ends of its bar, as they are drawn."""
    found: dict[str, tuple[float, float, float] | tuple[float]] = {}
    for each in axes.containers:
        assert isinstance(each, ErrorbarContainer)
        point, _, lines = each.lines
        assert point is not None
        at = float((point.get_ydata() if vertical else point.get_xdata())[0])  # type: ignore[index,arg-type]
        ends = [segment[:, int(vertical)] for line in lines for segment in line.get_segments()]
        found[str(each.get_label())] = (at, float(ends[0].min()), float(ends[0].max())) if ends else (at,)
    return found


# -- accuracy against bytes --------------------------------------------------------------------------------------------

BASE = (0.45 + 0.55) / 2  # the reference's: the mean over partitions of that over the board's seeds, not the poor one


def test_points_are_the_references_mean_and_paired_differences() -> None:
    found = figure.points(made_rows(), BOARD, "shoes")
    assert [p.method for p in found] == ["fedca", "fedsimclr", "flesd", "local", "fedsc"]
    for point in found:
        pairs = CLUSTERS.get(point.method, (0.0,))
        assert point.accuracy == pytest.approx(BASE + np.mean(pairs))
        assert point.megabytes == SENT[point.method]
        if point.method == "fedsimclr":
            assert (point.low, point.high) == (None, None)
        else:
            assert (point.low, point.high) == pytest.approx(tuple(BASE + end for end in interval(pairs)))
    others = [row("fedmd", 0, "even", 0.9, "shoes", table=rows.MIXED), row("fedx", 9, "even", 0.9, "shoes")]
    others += [row("fedur", 0, "even", 0.9, "shoes", status="stopped")]
    assert figure.points([*made_rows(), *others], BOARD, "shoes") == found
    (one,) = (p for p in figure.points([*made_rows(), row("fedx", 0, "even", 0.6, "shoes")], BOARD, "shoes")
              if p.method == "fedx")  # fmt: skip
    assert (one.accuracy, one.low) == (pytest.approx(BASE + 0.1), None)  # one seed: no interval


def test_the_figure_shows_these_points_and_intervals() -> None:
    made = figure.figure([*made_rows(), *made_rows("birds", 0.5)], BOARD)
    assert made is not None
    for axes, scale in zip(made.axes, (1.0, 0.5), strict=True):
        drawn = bars(axes, vertical=True)
        assert drawn["fedsimclr"] == (pytest.approx(100 * BASE),)
        for method, pairs in CLUSTERS.items():
            own = np.multiply(pairs, scale)
            wanted = [BASE + own.mean(), *(BASE + end for end in interval(own))]
            assert drawn[method] == pytest.approx([100 * each for each in wanted])


def test_the_pareto_front_is_what_no_other_beats() -> None:
    rng = np.random.default_rng(5)
    found = [figure.Point(str(i), float(x), float(y)) for i, (x, y) in enumerate(rng.integers(1, 9, (40, 2)))]

    def is_beaten(p: figure.Point) -> bool:
        return any(
            (q.megabytes <= p.megabytes and q.accuracy > p.accuracy)
            or (q.megabytes < p.megabytes and q.accuracy >= p.accuracy)
            for q in found
        )

    wanted = {(p.megabytes, p.accuracy) for p in found if not is_beaten(p)}
    assert {(p.megabytes, p.accuracy) for p in figure.pareto(found)} == wanted
    assert len(wanted) > 1


def test_beaten_is_what_the_front_beats_by_an_interval_with_no_more_bytes() -> None:
    found = figure.federated(figure.points(made_rows(), BOARD, "shoes"), BOARD)
    front = figure.pareto(found)
    assert [p.method for p in front] == ["flesd", "fedsimclr", "fedca"]  # 10, 50, 100 MB
    # fedsc is worse than fedsimclr and flesd, which send no more; flesd is worse than fedsimclr, which sends more
    assert interval(CLUSTERS["flesd"])[1] < 0
    assert figure.beaten(made_rows(), BOARD, "shoes", found, front) == {"fedsc"}
    # of a method that is worse by -0.02, -0.02 and 0.01 than fedsimclr the interval contains zero
    unsure = [row("fedx", s, "even", OF_SEEDS[s] + gain, "shoes") for s, gain in enumerate((-0.02, -0.02, 0.01))]
    unsure = [each | {"bytes_total": 60 * 10**6} for each in unsure]
    assert interval((-0.02, -0.02, 0.01))[1] > 0
    found = figure.federated(figure.points([*made_rows(), *unsure], BOARD, "shoes"), BOARD)
    assert "fedx" not in {p.method for p in figure.pareto(found)}
    only = [p for p in front if p.method == "fedsimclr"]
    assert figure.beaten([*made_rows(), *unsure], BOARD, "shoes", found, only) == {"fedsc"}


def test_the_axis_is_logarithmic_but_where_points_would_overprint() -> None:
    assert figure.stretched([10, 100, 101, 101, 1010], 0.25) == pytest.approx([1, 2, 2.25, 2.5, 3.5])
    assert figure.stretched([]) == []


def test_front_untrained_encoder_and_ticks_stand_where_they_belong() -> None:
    made = figure.figure(made_rows(), BOARD)
    assert made is not None
    (axes,) = made.axes
    place = {str(each.get_label()): float(each.lines[0].get_xdata()[0]) for each in axes.containers}
    (front,) = [line for line in axes.lines if line.get_drawstyle() == "steps-post"]
    corners = [
        (place[m], 100 * (BASE + gain)) for m, gain in (("flesd", -0.065 / 3), ("fedsimclr", 0), ("fedca", 0.04))
    ]
    assert front.get_xydata()[:3].tolist() == pytest.approx(np.array(corners))
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [25]
    ticks = {float(text.get_text()): at for text, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)}
    assert set(ticks) >= {0, 10, 20, 100}
    for (tick, at), (method, sent) in itertools.product(ticks.items(), SENT.items()):
        assert at == pytest.approx(place[method]) if tick == sent else (at < place[method]) == (tick < sent)


@pytest.mark.long
@pytest.mark.parametrize("sent", [(50, 100, 10), (20, 21, 22), (1000, 1100, 1200), (4, 900, 1000)], ids=str)
def test_no_ticks_text_touches_another(sent: tuple[int, int, int]) -> None:
    bytes_of = dict(zip(("fedsimclr", "fedca", "flesd"), sent, strict=True))
    some = [
        each | {"bytes_total": 10**6 * bytes_of.get(each["method"], 3000), "data": data}
        for each in made_rows() for data in BOARD["data"]
    ]  # fmt: skip
    for each, board in ((some, BOARD), (rows.read(), leaderboard.load_board())):
        drawn = figure.figure(each, board)
        assert drawn is not None
        FigureCanvasAgg(drawn).draw()
        for axes in drawn.axes:
            boxes = [text.get_window_extent() for text in axes.get_xticklabels()]
            assert len(boxes) > 1
            assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_names_stand_in_order_of_accuracy_and_their_lines_do_not_cross() -> None:
    made = figure.figure(rows.read(), board := leaderboard.load_board())
    assert made is not None
    for axes, data in zip(made.axes, board["data"], strict=True):
        found = figure.points(rows.read(), board, data)
        heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
        column = [heights[point.method] for point in found]
        assert column == sorted(column, reverse=True)
        assert np.ptp(np.diff(column)) < 1e-9
        lines = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) == 3 and not line.get_clip_on()]
        assert len(lines) == len(found)
        ends = sorted(lines, key=lambda xy: -xy[-1][1])
        assert all(a[1][1] >= b[1][1] and a[2][1] > b[2][1] for a, b in itertools.pairwise(ends))
        places = sorted(float(each.lines[0].get_xdata()[0]) for each in axes.containers)
        assert min(np.diff(places)) >= figure.GAP - 1e-9


@pytest.mark.long
def test_no_name_runs_into_the_number_beside_it() -> None:
    drawn = figure.figure(rows.read(), leaderboard.load_board())
    assert drawn is not None
    FigureCanvasAgg(drawn).draw()
    for axes in drawn.axes:
        rows_of: dict[float, list[Any]] = {}
        for text in (text for text in axes.texts if not isinstance(text, Annotation)):
            rows_of.setdefault(text.get_position()[1], []).append(text.get_window_extent())
        beside = list(rows_of.values())
        assert len(beside) == len(figure.points(rows.read(), leaderboard.load_board(), "cifar10"))
        assert all(name.x1 < number.x0 for name, number in beside)
        assert max(number.x1 for _, number in beside) < drawn.bbox.x1


# -- protocols ---------------------------------------------------------------------------------------------------------


def test_the_longest_name_fits_on_the_forest() -> None:
    name = "centralized_equal_steps_and_more"
    renamed = [{**each, "method": name} if each["method"] == "local" else each for each in made_rows()]
    made = forest.figure(renamed, {**BOARD, "references": [name]})
    made.draw_without_rendering()
    labels = {label.get_text(): label.get_window_extent() for label in made.axes[0].get_yticklabels()}
    assert labels[name].x0 > 0
    assert labels[name].x1 < made.axes[0].get_window_extent().x0


def test_the_forest_shows_tables_means_and_intervals_over_clusters() -> None:
    made = forest.figure([*made_rows(), *made_rows("birds", 0.5)], BOARD)
    order = ["fedca", "flesd", "local", "fedsc"]
    assert [label.get_text() for label in made.axes[0].get_yticklabels()] == order
    for axes, factor in zip(made.axes, (1.0, 1.0, 0.5), strict=True):  # few-shot is half of kNN
        drawn = bars(axes, vertical=False)
        assert list(drawn) == order
        for method, pairs in CLUSTERS.items():
            one, other = factor * np.array(pairs), factor * np.multiply(pairs, 0.5)
            twice = stats.ttest_ind(one, -other, equal_var=False).confidence_interval(0.95)
            expected = (float(np.mean([one, other])), twice.low / 2, twice.high / 2)
            assert drawn[method] == pytest.approx([100 * each for each in expected])
    dots = {
        round(float(line.get_xdata()[0]), 6) for line in made.axes[0].lines if line.get_alpha() and
        round(float(line.get_ydata()[0])) == 0
    }  # fmt: skip
    # fedca's four tables: (2 + 6 + 5) / 3 on even clients, (4 + 2) / 2 on skewed ones, and half of both
    assert dots == {round(13 / 3, 6), 3.0, round(13 / 6, 6), 1.5}
    dashed = [line for line in made.axes[0].lines if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in dashed] == pytest.approx([75 * np.mean(CLUSTERS["local"])])


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_both_figures_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "board.png"
    assert leaderboard.draw(made_rows(), BOARD, path) == [path, path.with_name("board_protocols.png")]
    assert all(Image.open(each).size[0] >= 1000 for each in path.parent.iterdir())
    assert leaderboard.draw([], BOARD, tmp_path / "none.png") == []
    assert not (tmp_path / "none.png").exists()


def test_the_command_says_where_there_is_nothing_to_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "--figure", "--rows", str(tmp_path / "rows.parquet")])
    with pytest.raises(SystemExit) as ended:
        leaderboard.main()
    assert ended.value.code == 2
    assert f"--figure: {tmp_path / 'rows.parquet'} has no two methods of a data set" in capsys.readouterr().err
