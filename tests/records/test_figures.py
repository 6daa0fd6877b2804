"""Figures say what the numbers say: the artists are checked against the data, and the files are real images."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from rayfed_ssl.records.figures import accuracy_against_trace, accuracy_curve, label_histogram, pixels, save_figure
from rayfed_ssl.records.tables import METRICS, table
from rayfed_ssl.report.style import lines
from tests.places import ROOT


def test_stacked_bars_have_the_counts_as_lengths() -> None:
    counts = np.array([[3, 0, 5], [2, 2, 2]])
    (axes,) = label_histogram(counts, ["a", "b", "c"]).axes
    widths = np.array([[bar.get_width() for bar in group] for group in axes.containers])  # (C, N)
    starts = np.array([[bar.get_x() for bar in group] for group in axes.containers])
    np.testing.assert_array_equal(widths.T, counts)
    np.testing.assert_array_equal(starts.T, [[0, 3, 3], [0, 2, 4]])
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]


@pytest.mark.parametrize(("clients", "classes"), [(100, 10), (5, 100)])
def test_a_map_has_the_shares_of_each_client(clients: int, classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 9, (clients, classes))
    counts[3] = 0  # a client without images
    figure = label_histogram(counts, [f"class {c}" for c in range(classes)])
    (image,) = figure.axes[1].images
    shown = np.asarray(image.get_array())
    np.testing.assert_allclose(shown[:, 0], 100 * counts[0] / counts[0].sum())
    np.testing.assert_array_equal(shown[:, 3], 0)


def test_more_clients_than_can_be_named_are_ordered_by_class() -> None:
    counts = np.random.default_rng(0).integers(0, 9, (300, 4))
    (image,) = label_histogram(counts, list("abcd")).axes[1].images
    shown = np.asarray(image.get_array()).T  # (N, C)
    tops = shown.argmax(1)
    assert (np.diff(tops) >= 0).all()
    assert sorted(map(tuple, np.round(shown, 6))) == sorted(
        map(tuple, np.round(100 * counts / np.maximum(counts.sum(1, keepdims=True), 1), 6))
    )


@pytest.mark.parametrize("clients", [2, 25])
def test_names_of_classes_and_clients_are_no_mathematics(clients: int) -> None:
    """Names of folders: matplotlib would set what stands between dollar signs, and fail where it cannot be set. Its
    legend leaves out labels that begin with _.
    """
    names = [r"$\foo$", "US$5_$10", "_background"]
    counts = np.arange(3 * clients).reshape(clients, 3)
    figure = label_histogram(counts, names, [f"$ward_${client}" for client in range(clients)])
    assert pixels(figure).shape[2] == 3
    labels = [text.get_text() for axes in figure.axes for text in axes.get_yticklabels()]
    legend = figure.axes[0].get_legend()
    if clients == 2:
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == names
        assert labels == ["$ward_$0", "$ward_$1"]
    else:
        assert set(names) <= set(labels)


def test_class_names_must_fit() -> None:
    with pytest.raises(ValueError, match="2 class names"):
        label_histogram(np.ones((2, 3)), ["a", "b"])


def test_accuracy_lines_and_the_clients_band() -> None:
    rows = [(t, None, "eval/knn", 0.1 * t, 0.0) for t in (0, 2, 4)]
    rows += [(t, client, "eval/task", 0.2 + 0.1 * client, 0.0) for t in (2, 4) for client in range(3)]
    rows += [(0, None, "eval/pixels_fewshot", 0.3, 0.0), (2, None, "train/loss", 5.0, 0.0)]
    (axes,) = accuracy_curve(table(rows, METRICS)).axes
    lines = {str(line.get_label()): np.asarray(line.get_xydata()) for line in axes.lines}
    assert set(lines) == {"knn", "task (mean of clients)"}
    np.testing.assert_allclose(lines["knn"], [[0, 0], [2, 20], [4, 40]])
    np.testing.assert_allclose(lines["task (mean of clients)"], [[2, 30], [4, 30]])
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (pytest.approx(20), pytest.approx(40))


@pytest.mark.parametrize(("rounds", "marks"), [([0], [0]), ([7], [7]), ([0, 1], [0, 1]), ([0, 2], [0, 1, 2])])
def test_an_axis_of_rounds_is_marked_at_rounds_also_if_there_is_one(rounds: list[int], marks: list[int]) -> None:
    of_run = accuracy_curve(table([(t, None, "eval/knn", 0.1, 0.0) for t in rounds], METRICS)).axes[0]
    of_report = lines(Figure(), {"knn": {float(t): 0.1 for t in rounds}}, xlabel="round", ylabel="accuracy (%)")
    of_bytes = lines(Figure(), {"knn": {0.1 * t: 0.1 for t in (1, 2, 3)}}, xlabel="MB", ylabel="accuracy (%)")
    for axes, expected in ((of_run, marks), (of_report, marks)):
        low, high = axes.get_xlim()
        assert [mark for mark in axes.get_xticks() if low <= mark <= high] == expected
    assert len([mark for mark in of_bytes.get_xticks() if 0.1 <= mark <= 0.3]) > 2


def test_many_measures_leave_the_curves_their_room() -> None:
    names = [f"own_protocol_{n:02}_balanced_accuracy" for n in range(30)]
    rows = [(t, c, f"eval/{name}", 0.1 * t, 0.0) for name in names for t in (0, 2) for c in (0, 1)]
    figure = accuracy_curve(table(rows, METRICS))
    (height, width, _) = pixels(figure).shape
    (axes,) = figure.axes
    place, legend = axes.get_window_extent(), axes.get_legend().get_window_extent()
    assert place.height > 0.5 * height
    assert place.width > 0.25 * width
    assert legend.y0 >= 0
    assert legend.y1 <= height
    assert legend.x1 <= width
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(names)
    few = accuracy_curve(table([row for row in rows if row[2] < "eval/own_protocol_10"], METRICS))
    assert tuple(few.get_size_inches()) == (7.0, 4.0)


def test_accuracy_against_trace_joins_the_values_of_a_round() -> None:
    rows = [(t, c, "client/trace", t + 10.0 * c, 0.0) for t in (1, 2, 3) for c in (0, 1)]
    rows += [(t, c, "eval/linear", 0.1 * t + 0.01 * c, 0.0) for t in (0, 1, 3) for c in (0, 1)]
    rows += [(3, None, "eval/knn", 0.5, 0.0), (0, None, "eval/pixels_fewshot", 0.3, 0.0)]
    figure = accuracy_against_trace(table(rows, METRICS))
    assert figure is not None
    knn, linear = figure.axes
    np.testing.assert_allclose(knn.lines[0].get_xydata(), [[8, 50]])  # the global encoder, the clients' mean trace
    np.testing.assert_allclose(linear.lines[0].get_xydata(), [[1, 10], [3, 30]])
    np.testing.assert_allclose(linear.lines[1].get_xydata(), [[11, 11], [13, 31]])
    assert accuracy_against_trace(table([row for row in rows if row[2] != "client/trace"], METRICS)) is None


@pytest.mark.long
def test_saved_and_drawn_figures_are_images(tmp_path: Path) -> None:
    def figure() -> Figure:
        return label_histogram(np.ones((5, 3)), list("abc"))

    saved = save_figure(tmp_path, "partition", figure())
    assert saved.dtype == np.uint8
    assert saved.std() > 10
    np.testing.assert_array_equal(pixels(figure()), saved)
    figure().savefig(tmp_path / "by_matplotlib.png")
    path = tmp_path / "figures" / "partition.png"
    with Image.open(path) as image, Image.open(tmp_path / "by_matplotlib.png") as expected:
        np.testing.assert_array_equal(np.array(image), saved)
        np.testing.assert_array_equal(np.array(image), np.array(expected.convert("RGB")))
        np.testing.assert_allclose(image.info["dpi"], expected.info["dpi"])
    assert [p.name for p in path.parent.iterdir()] == ["partition.png"]


@pytest.mark.long
def test_matplotlib_is_loaded_only_to_draw() -> None:
    code = "import sys, rayfed_ssl.simulation.loop; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
