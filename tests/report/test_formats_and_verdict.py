"""Numbers as readers see them, and the sentence on top of a report."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from rayfed_ssl.report import accuracy, formats, measures
from rayfed_ssl.report.verdict import beside_pixels, best_below_last, verdict
from rayfed_ssl.terminal.progress import conclude


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formats.percent(0.84123), "84.1 %"),
        (formats.percent(0.99984), ">99.9 %"),
        (formats.percent(0.0002), "<0.1 %"),
        (formats.percent(1.0), "100.0 %"),
        (formats.percent(0.0), "0.0 %"),
        (measures.shown("knn_auc", 0.99984), ">.999"),
        (formats.percent(None), "–"),
        (formats.percent(float("nan")), "–"),
        (formats.points(-0.0123), "−1.2"),
        (formats.points(0.1), "+10.0"),
        (formats.points(-0.0002), "0.0"),
        (measures.shown("cluster_ari", -0.0002), "0.000"),
        (measures.change("cluster_ari", -0.0002), "0.000"),
        (measures.within("cluster_ari", -0.0302, -0.0002), "[−0.0302, −0.0002]"),
        (formats.bounds(-0.0123, 0.1), "[−1.2, +10.0]"),
        (formats.bounds(0.0002, 0.031), "[+0.02, +3.10]"),
        (formats.bounds(-0.031, -0.00003), "[−3.100, −0.003]"),
        (formats.bounds(0.0, 0.02), "[0.0, +2.0]"),
        (formats.number(1797.0), "1,797"),
        (formats.number(0.000123456), "0.0001235"),
        (formats.number(-3.0), "−3"),
        (formats.size(999), "999 B"),
        (formats.size(19_654_321), "19.7 MB"),
        (formats.span(9.94), "9.9 s"),
        (formats.span(75.2), "1 min 15 s"),
        (formats.span(3599.6), "1 h 00 min"),
        (formats.span(90_000), "1 d 1 h"),
        (formats.how_many(1, "client"), "1 client"),
        (formats.how_many(1200, "client"), "1,200 clients"),
    ],
)
def test_numbers_in_words(shown: str, expected: str) -> None:
    assert shown == expected


def summary(accuracy: Any, untrained: Any, **more: Any) -> dict[str, Any]:
    return {"accuracy": accuracy, "untrained": untrained, "rounds": 20, "status": "complete", **more}


@pytest.mark.parametrize(
    ("last", "before", "images", "kind"),
    [
        (0.90, 0.80, 359, "better"),
        (0.90, 0.80, 30, "not told apart"),  # 3 images of 30
        (0.83, 0.80, 359, "not told apart"),
        (0.801, 0.80, 359, "not told apart"),  # as near as an image, but these images allow six points
        (0.801, 0.80, 100_000, "level"),
        (0.83, 0.80, 10_000, "better"),
        (0.805, 0.80, 100_000, "better"),  # half a point
        (0.70, 0.80, 359, "worse"),
        (0.805, 0.80, None, None),  # not recorded: no interval, so no word
        (0.95, 0.80, None, None),
        ({"0": 0.9, "1": 0.92, "2": 0.91}, {"0": 0.8, "1": 0.81, "2": 0.8}, 1000, "better"),
        ({"0": 0.9, "1": 0.92, "2": 0.91}, {"0": 0.8, "1": 0.81, "2": 0.8}, 40, "not told apart"),  # so few images
        (
            {"0": 0.9, "1": 0.5},
            {"0": 0.5, "1": 0.8},
            1000,
            "not told apart",
        ),  # +40 and -30 points: the interval contains zero
    ],
)
def test_better_level_not_told_apart_or_worse(last: Any, before: Any, images: int | None, kind: str | None) -> None:
    evaluation = {} if images is None else {"test_images": images}
    assert verdict(summary({"knn": last}, {"knn": before}, evaluation=evaluation)).kind == kind


def test_the_sentence_says_by_what_and_what_disagrees() -> None:
    told = summary({"knn": 0.7, "fewshot": 0.9}, {"knn": 0.8, "fewshot": 0.8}, pixels={"fewshot": 0.95})
    found = verdict({**told, "evaluation": {"test_images": 400}})
    assert found.sentence == (
        "After 20 rounds, the encoder is worse than the untrained encoder: kNN accuracy 70.0 % against 80.0 %, −10.0 "
        "points (95 % interval [−15.9, −4.0] over 400 test images); but few-shot says better (+10.0); few-shot is 5.0 "
        "points below the raw pixels."
    )
    assert found.protocol == "knn"
    other = verdict(
        {**told, "pixels": {}, "accuracy": {"knn": 0.7, "fewshot": 0.81}, "evaluation": {"test_images": 400}}
    )
    assert other.sentence.endswith("; but few-shot does not tell them apart (+1.0).")
    alike = {"evaluation": {"test_images": 10**6}, "pixels": {"fewshot": 0.9}}
    assert verdict({**summary({"fewshot": 0.9001}, {"fewshot": 0.9}), **alike}).sentence == (
        "After 20 rounds, the encoder is level with the untrained encoder: few-shot accuracy 90.0 % against 90.0 %, "
        "0.0 points (95 % interval [−0.1, +0.1] over 1,000,000 test images, contains zero and lies within ±1 point); "
        "few-shot is level with the raw pixels (0.0)."
    )
    level = verdict({**told, "evaluation": {"test_images": 20}}).sentence
    assert (
        "[−34.9, +16.6] over 20 test images, contains zero); few-shot is not told apart from the raw pixels (−5.0)."
        in level
    )
    assert verdict(told).sentence == (
        "After 20 rounds, kNN accuracy is 70.0 %, and 80.0 % with the untrained encoder: −10.0 points, with no "
        "interval, so neither is called better."
    )


@pytest.mark.parametrize(
    ("knn", "fewshot", "kind", "by"),
    [
        (0.90, 0.90, "better", "knn"),  # the linear probe, which is not told apart here, comes first otherwise
        (0.80, 0.90, "not told apart", "linear"),  # one of three may be chance
        (0.70, 0.70, "worse", "knn"),
        (0.90, 0.70, "not told apart", "linear"),  # they contradict each other
        (0.80, 0.80, "not told apart", "linear"),
    ],
)
def test_a_measure_that_cannot_tell_does_not_open_the_sentence_where_others_agree(
    knn: float, fewshot: float, kind: str, by: str
) -> None:
    last, before = {"linear": 0.82, "knn": knn, "fewshot": fewshot}, dict.fromkeys(("linear", "knn", "fewshot"), 0.8)
    found = verdict({**summary(last, before), "evaluation": {"test_images": 400}})
    assert (found.kind, found.protocol) == (kind, by)
    if by != "linear":
        assert "linear probe does not tell them apart (+2.0)" in found.sentence
    areas = {"knn_auc": knn, "knn_balanced": knn}  # say no more than the accuracy they belong to
    more = summary(last | areas, before | dict.fromkeys(areas, 0.8))
    assert verdict({**more, "evaluation": {"test_images": 400}}).protocol == by


def test_a_level_measure_opens_the_sentence() -> None:
    told = summary({"linear": 0.8, "knn": 0.9, "fewshot": 0.9}, {"linear": 0.8, "knn": 0.8, "fewshot": 0.8})
    assert verdict({**told, "evaluation": {"test_images": 10**5}}).protocol == "linear"


def test_every_measure_is_told_beside_raw_pixels_what_is_below_them_first() -> None:
    last = {"knn": 0.7, "linear": 0.9, "fewshot": 0.6, "knn_auc": 0.1, "semi_1": 0.2}
    worth = {"knn": 0.8, "linear": 0.8, "fewshot": 0.65, "knn_auc": 0.9, "cluster_nmi": 0.5}
    told = summary(last, last, evaluation={"test_images": 10_000}, pixels=worth)
    assert verdict(told).sentence.endswith(
        "; kNN and few-shot are 10.0 and 5.0 points below the raw pixels; linear probe is 10.0 points above the raw "
        "pixels."
    )
    assert list(beside_pixels(told)) == ["linear", "knn", "fewshot"]  # an area has no interval
    few = {**told, "evaluation": {"test_images": 40}}
    assert verdict(few).sentence.endswith(
        "; linear probe, kNN and few-shot are not told apart from the raw pixels (+10.0, −10.0, −5.0)."
    )


def test_the_sentence_recalls_what_naming_the_largest_class_is_worth() -> None:
    largest = {"largest_class": {"name": "normal", "share": 0.9667}}
    worth = {"linear": 0.9667, "knn": 0.95, "linear_balanced_accuracy": 0.99}
    told = {**summary(worth, worth, evaluation={"test_images": 300}), **largest}
    right = "; always naming the largest class, normal, is right for 96.7 % of the test images"
    assert verdict(told).sentence.endswith(f"{right}, and no accuracy here is higher.")
    better = {**summary({"linear": 0.98, "knn": 0.95}, worth, evaluation={"test_images": 300}), **largest}
    assert verdict(better).sentence.endswith(f"{right}.")
    assert "largest class" not in verdict(summary(worth, worth)).sentence
    areas = {**summary({"cluster_nmi": 0.4}, {"cluster_nmi": 0.3}, evaluation={"test_images": 300}), **largest}
    assert verdict(areas).sentence.endswith(f"{right}.")  # without an accuracy, none is said to be lower


def test_accuracies_of_classifiers_that_recognise_one_class_alone_are_called_no_results() -> None:
    alone, other = {"name": "well", "share": 0.6}, {"name": "sick", "share": 0.4}
    worth = {"linear": 0.6, "knn": 0.6, "fewshot": 0.4}
    told = summary(worth, worth, evaluation={"test_images": 300})
    two = verdict({**told, "one_class": {"fewshot": other, "knn": alone, "linear": alone}}).sentence
    assert two.endswith(
        "; linear probe and kNN are right about images of class well and hardly any other: that is about this class's "
        "share of the test images, 60.0 %, and no result; few-shot is right about images of class sick and hardly any "
        "other: that is about this class's share of the test images, 40.0 %, and no result."
    )
    assert "hardly any" not in verdict(told).sentence


def test_a_run_ends_with_the_table_of_pixels_and_the_sentence_below_it() -> None:
    last, worth = {"knn": 0.7, "linear": 0.9}, {"linear": 0.8}  # an older run's would have no kNN of pixels
    told = summary(last, last, best={}, evaluation={"test_images": 10_000}, wall_s=1.0)
    told |= {"communication": {"up_bytes": 0, "down_bytes": 0}}
    for pixels, sentence in ((worth, False), ({**worth, "knn": 0.8}, True)):
        text = io.StringIO()
        conclude(Console(file=text, width=200), {**told, "pixels": pixels}, "runs/x")
        rows = [line.split() for line in text.getvalue().splitlines()]
        assert ["knn", f"{pixels['knn']:.3f}" if sentence else "-", "0.700", "0.700", "-"] in rows
        assert ["linear", "0.800", "0.900", "0.900", "-"] in rows
        assert ("kNN is 10.0 points below the raw pixels" in text.getvalue()) == sentence


@pytest.mark.parametrize(
    ("by", "linear", "knn", "told"),
    [
        ("held-out labels", 0.85, 0.7, "By linear probe, the best round is below the last: it was chosen on held-out "),
        ("held-out labels", 0.85, 0.6, "By linear probe and kNN, the best round is below the last: it was chosen on "),
        ("held-out labels", 0.9, 0.75, ""),
        ("held-out labels", 0.95, {"0": 0.65, "1": 0.75}, ""),
        ("test labels", 0.85, 0.6, ""),  # as of a run whose last value is of another evaluation
    ],
)
def test_why_the_best_round_is_below_the_last_is_told_where_it_is(by: str, linear: float, knn: Any, told: str) -> None:
    values = {"linear": linear, "knn": 0.7 if isinstance(knn, dict) else knn}
    best = {name: {"value": value, "round": 2, "by": by} for name, value in values.items()}
    last = {"linear": 0.9, "knn": knn if isinstance(knn, dict) else 0.7}
    ended = summary(last, last, best=best, evaluation={"test_images": 10_000}, wall_s=1.0, pixels={})
    assert best_below_last(ended)[: len(told)] == told
    assert bool(best_below_last(ended)) == bool(told)
    text = io.StringIO()
    conclude(Console(file=text, width=200), ended | {"communication": {"up_bytes": 0, "down_bytes": 0}}, "runs/x")
    assert ("the best round is below the last" in text.getvalue()) == bool(told)


def test_every_curve_has_its_own_line_of_raw_pixels() -> None:
    scores = {"knn": {0: 0.3, 1: 0.5}, "linear": {0: 0.4, 1: 0.6}, "pixels_knn": {0: 0.45}, "pixels_fewshot": {0: 0.2}}
    shown = {name: {t: {None: v} for t, v in of.items()} for name, of in scores.items()}
    run: Any = SimpleNamespace(scores=shown, summary={})
    figure = Figure()
    accuracy.paint_curves(figure, run, ["linear", "knn"], float, "round")
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert [list(line.get_ydata()) for line in dotted] == [[45.0, 45.0]]  # few-shot has no curve here
    (curve,) = (line for line in figure.axes[0].lines if line.get_label() == "kNN")
    assert dotted[0].get_color() == curve.get_color()
    assert accuracy.curves_caption(run, ["linear", "knn"]).startswith(
        "Dashed: the untrained encoder. Dotted: raw pixels."
    )
    assert "Dotted" not in accuracy.curves_caption(run, ["linear"])
    run.summary = {"start": {"path": "earlier"}}
    assert accuracy.curves_caption(run, ["linear"]) == "Dashed: the encoder it started from."


def test_a_curve_is_seen_where_clients_own_images_give_the_same() -> None:
    same = {0: {None: 0.3}, 1: {None: 0.5}}
    run: Any = SimpleNamespace(scores={"fewshot": same, "own_fewshot": same}, summary={})
    figure = Figure()
    accuracy.paint_curves(figure, run, ["fewshot", "own_fewshot"], float, "round")
    curve, own = (line for line in figure.axes[0].lines if not str(line.get_label()).startswith("_"))
    assert own.get_zorder() < curve.get_zorder()  # below it, and to be seen on both sides of it
    assert own.get_linewidth() > 2 * curve.get_linewidth()
    assert own.get_markersize() > curve.get_markersize()


def test_areas_have_no_interval_and_so_no_word() -> None:
    last, before = ({"linear": of, "linear_auc": of, "linear_balanced_accuracy": of} for of in (0.85, 0.80))
    found = verdict(summary({**last, "linear_auc": 0.60}, before, evaluation={"test_images": 20}))
    assert found.kind == "not told apart"
    assert "says" not in found.sentence
    alone = verdict(summary({"fewshot_auc": 0.90412}, {"fewshot_auc": 0.8}, evaluation={"test_images": 20}))
    assert alone.kind is None
    assert "few-shot AUC is 0.904, and 0.800 with the untrained encoder: +0.104, with no" in alone.sentence


@pytest.mark.parametrize(
    ("measure", "name", "value", "difference", "interval"),
    [
        ("linear", "linear probe", "90.4 %", "−3.2", "[−4.0, +1.0]"),
        ("select/fewshot_balanced_accuracy", "few-shot balanced accuracy", "90.4 %", "−3.2", "[−4.0, +1.0]"),
        ("own_knn_auc", "own kNN AUC", "0.904", "−0.032", "[−0.040, +0.010]"),
        ("cluster_nmi", "cluster NMI", "0.904", "−0.032", "[−0.040, +0.010]"),
        ("features/rankme", "RankMe", "0.9041", "−0.0321", "[−0.04, +0.01]"),
    ],
)
def test_a_measure_is_written_by_its_kind(measure: str, name: str, value: str, difference: str, interval: str) -> None:
    assert measures.measure_name(measure) == name
    assert measures.shown(measure, 0.90412) == value
    assert measures.change(measure, -0.0321) == difference
    assert measures.within(measure, -0.04, 0.01) == interval
    assert [f(measure, None) for f in (measures.shown, measures.change)] == ["–", "–"]


def test_own_tasks_count_their_own_images() -> None:
    told = summary({"task": {"0": 0.9}}, {"task": {"0": 0.8}})
    for images, kind in ((1000, "better"), (30, "not told apart")):
        assert verdict({**told, "evaluation": {"test_images": 99_999, "task_test_images": images}}).kind == kind


@pytest.mark.parametrize(
    ("status", "words"), [("stopped", "Stopped early, after"), ("diverged", "diverged"), ("unfinished", "Not finished")]
)
def test_a_run_that_did_not_end_well_says_so_first(status: str, words: str) -> None:
    assert (
        words in verdict({**summary({"knn": 0.9}, {"knn": 0.8}), "status": status}).sentence.split(",")[0] + ", after"
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("stopped", "Stopped before a round was over"),
        ("diverged", "Training diverged in its first round"),
        ("unfinished", "Not finished, and no round is over yet"),
        ("unknown", "No round is over"),
    ],
)
def test_without_a_trained_round_nothing_is_compared_with_itself(status: str, words: str) -> None:
    found = verdict({**summary({"knn": 0.8}, {"knn": 0.8}), "status": status, "rounds": 0})
    assert (found.sentence, found.kind) == (f"{words}: what was measured is the untrained encoder alone.", None)


def test_without_an_evaluation_there_is_no_judgement() -> None:
    found = verdict({"rounds": 1})
    assert found.kind is None
    assert "nothing was evaluated" in found.sentence
