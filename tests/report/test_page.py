"""A page holds the summary's numbers and nothing from outside; what is missing or damaged is said in its place."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.images import Scaling
from rayfed_ssl.report import accuracy
from rayfed_ssl.report.dispatch import report_of
from rayfed_ssl.report.folder import read
from rayfed_ssl.report.formats import percent
from rayfed_ssl.report.style import Studio, inline
from tests.report.conftest import told
from tests.report.parsed import Parsed

Copy = Callable[..., Path]


def test_every_number_is_that_of_the_summary(fedfoa: Path) -> None:
    page = Parsed(fedfoa / "report.html")
    values = {a["data-key"]: float(a["value"] or "nan") for a in page.of("data") if "data-key" in a}
    assert {"accuracy/knn", "untrained/knn", "best/knn/value", "pixels/fewshot", "communication/up_bytes",
            "accuracy/knn/2", "wall_s"} <= values.keys()  # fmt: skip
    for key, value in values.items():
        assert value == pytest.approx(told(fedfoa / "summary.json", str(key)), rel=1e-12), key
    assert percent(values["accuracy/knn"]) in page.words


def test_nothing_comes_from_outside_and_nothing_runs(fedfoa: Path) -> None:
    page = Parsed(fedfoa / "report.html")
    assert {"script", "iframe", "object", "embed", "form"}.isdisjoint(tag for tag, _ in page.tags)
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:", "figures/")), value
    style = (fedfoa / "report.html").read_text().split("<style>")[1].split("</style>")[0]
    assert "@import" not in style
    assert "url(" not in style


def test_figures_are_whole_and_one_column_wide(fedfoa: Path) -> None:
    page = Parsed(fedfoa / "report.html")
    names = [str(a["id"]).removeprefix("figure-") for a in page.of("figure") if "id" in a]
    assert {"accuracy_rounds", "accuracy_bytes", "clients_knn", "who_holds_what", "map_trained", "map_untrained",
            "similarities", "features_rankme", "features_spectrum", "communication", "time", "fedfoa_distance_round_2",
            "tag_fedfoa_trace", "tag_client_trace"} <= set(names)  # fmt: skip
    assert len(set(names)) == len(names)
    for name in names:
        files = {suffix: fedfoa / "figures" / f"{name}.{suffix}" for suffix in ("svg", "pdf", "png")}
        with Image.open(files["png"]) as image:
            assert image.width == 990  # 3.3 inches at 300 dots
        assert re.search(r'viewBox="0 0 237\.6 ', files["svg"].read_text())
        assert b"/MediaBox [ 0 0 237.6 " in files["pdf"].read_bytes()
    labels = [a.get("aria-label") for a in page.of("svg")]
    assert len(labels) == len(names)
    assert all(label and len(label) > 20 for label in labels)
    assert all(a.get("alt") for a in page.of("img"))
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(set(ids)) == len(ids)


@pytest.mark.long
@pytest.mark.usefixtures("only_svg")
def test_what_a_folder_says_is_text(copy: Copy) -> None:
    folder = copy("<b onmouseover=alert(1)>&amp;$x_")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["name"] = "<script>alert(1)</script>"
    config["method"]["<i>"] = "</style><script>alert(2)</script>"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    summary = json.loads((folder / "summary.json").read_text())
    summary["dataset"] = '"><script>alert(3)</script>'
    summary["accuracy"]['x" onload="alert(4)'] = 0.5
    (folder / "summary.json").write_text(json.dumps(summary))
    page = Parsed(report_of(folder, images=False))
    assert "script" not in {tag for tag, _ in page.tags}
    assert not [name for _, a in page.tags for name in a if name.startswith("on")]
    assert folder.name in page.words
    assert summary["dataset"] in page.words


@pytest.mark.long
def test_texts_in_figures_are_escaped_and_no_mathematics(tmp_path: Path) -> None:
    hostile = r"<script>$\frac{$&"

    def paint(figure) -> None:  # type: ignore[no-untyped-def]
        figure.add_subplot().set_title(hostile)

    studio = Studio(tmp_path)
    drawing = studio.draw("a/../b", "x", paint, alt='"><script>')
    assert drawing.name == "a_b"
    assert "<script>" not in drawing.svg
    assert "&lt;script&gt;$\\frac{$&amp;" in drawing.svg
    assert studio.draw("a b", "x", paint, alt="x").name == "a_b_2"
    assert {path.name for path in tmp_path.rglob("*.*")} == {
        f"a_b{n}.{s}" for n in ("", "_2") for s in ("svg", "pdf", "png")
    }


def test_an_inlined_figure_follows_the_page() -> None:
    svg = (
        '<?xml version="1.0"?><svg width="2pt" viewBox="0 0 2 2"><style>*{x: y}</style><defs><path id="p"/></defs>'
        '<use xlink:href="#p" style="fill: #0072b2; stroke: #1c2126" clip-path="url(#q)"/></svg>'
    )
    found = inline(svg, "n", "what it shows")
    assert 'id="n-p"' in found
    assert '"#n-p" style="fill: var(--c0); stroke: var(--ink)" clip-path="url(#n-q)"' in found
    assert "<style" not in found
    assert "width=" not in found
    assert 'role="img" aria-label="what it shows"' in found


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a summary cut short": (lambda f: (f / "summary.json").write_text('{"method": "fed'), "summary.json"),
    "a summary that is a list": (lambda f: (f / "summary.json").write_text("[1]"), "must be a mapping"),
    "a summary of other kinds": (lambda f: _other_kinds(f / "summary.json"), "holds what a run does not write there"),
    "no summary": (lambda f: (f / "summary.json").unlink(), "the run has not ended"),
    "broken metrics": (lambda f: next((f / "metrics.parquet").iterdir()).write_bytes(b"PAR1"), "records are damaged"),
    "metrics that are a file": (lambda f: _replaced(f / "metrics.parquet"), "not a folder of parts"),
    "no partition": (lambda f: (f / "partition.parquet").unlink(), "partition.parquet"),
    "a broken partition": (lambda f: (f / "partition.parquet").write_bytes(b"x"), "parquet"),
    "no config": (lambda f: (f / "config.yaml").unlink(), "config.yaml"),
    "a broken config": (lambda f: (f / "config.yaml").write_text("a: [1"), "config.yaml"),
    "no encoder": (lambda f: [path.unlink() for path in (f / "encoder").iterdir()], "found no exported encoder"),
    "a broken encoder": (lambda f: (f / "encoder/global.json").write_text("{"), "damaged"),
}


def _other_kinds(path: Path) -> None:
    summary = json.loads(path.read_text())
    summary |= {"rounds": "many", "accuracy": [1], "best": 3, "communication": 4, "privacy": {"epsilon": {"x": 1}}}
    path.write_text(json.dumps(summary))


def _replaced(path: Path) -> None:
    for part in path.iterdir():
        part.unlink()
    path.rmdir()
    path.write_bytes(b"no folder")


@pytest.mark.long
@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_a_damaged_run_gives_a_report_of_what_is_there(
    copy: Copy, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))  # enough here
    folder = copy()
    do, said = DAMAGES[damage]
    do(folder)
    page = Parsed(report_of(folder, images="encoder" in damage))
    assert said in page.words
    assert len(page.of("section")) >= 3


@pytest.mark.long
@pytest.mark.usefixtures("only_svg")
@pytest.mark.parametrize("void", [0, 1, None])
def test_rounds_that_came_to_nothing_are_told_where_there_are_any(void: int | None, copy: Copy) -> None:
    folder = copy()
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("void_rounds")
    (folder / "summary.json").write_text(json.dumps(summary | ({} if void is None else {"void_rounds": void})))
    told = re.search(r"rounds that came to nothing (\d+) of 2", Parsed(report_of(folder, images=False)).words)
    assert (told and told[1]) == ("1" if void else None)


@pytest.mark.usefixtures("only_svg")
def test_a_best_round_below_the_last_is_explained(copy: Copy) -> None:
    folder = copy()
    summary = json.loads((folder / "summary.json").read_text())
    last = summary["accuracy"]["knn"]
    for value, hints in ((last, 0), (last - 0.1, 1)):
        summary["best"]["knn"] |= {"value": value, "by": "held-out labels"}
        (folder / "summary.json").write_text(json.dumps(summary))
        page = Parsed(report_of(folder, images=False))
        assert page.words.count("By kNN, the best round is below the last: it was chosen on held-out images") == hints


@pytest.mark.long
@pytest.mark.usefixtures("only_svg")
def test_late_and_lost_replies_and_failed_clients_are_two_tiles(copy: Copy) -> None:
    folder = copy()
    summary = json.loads((folder / "summary.json").read_text())
    words = Parsed(report_of(folder, images=False)).words
    assert "late or lost" not in words
    assert "clients that failed" not in words
    summary |= {"replies": {"asked": 9, "late": 0, "dropped_out": 2}, "dropped": {"clients": 1, "times": 3}}
    (folder / "summary.json").write_text(json.dumps(summary))
    words = Parsed(report_of(folder, images=False)).words
    assert "late or lost 2 9 asked for; 2 lost in mid-round" in words
    assert "clients that failed 3 times left out" in words


def test_a_figure_says_how_many_measures_it_leaves_out(fedfoa: Path) -> None:
    run = read(fedfoa)
    assert accuracy.curves_caption(run, ["knn"] * 6).endswith(" The first 5 of 6 measures; the table has all.")
    assert "measures" not in accuracy.curves_caption(run, ["knn"] * 5)


@pytest.mark.long
@pytest.mark.usefixtures("only_svg")
def test_what_was_done_to_deep_images_is_told_once(copy: Copy) -> None:
    """A run notes it, and records it beside; runs of earlier versions have the record alone."""
    folder, told = copy(), Scaling(60, "data.range")
    environment = json.loads((folder / "environment.json").read_text())
    environment["scaled"] = {"data": asdict(told), "data.public.images": asdict(told)}
    for notes in ([str(told), f"data.public.images: {told}"], []):
        (folder / "environment.json").write_text(json.dumps(environment | {"notes": notes}))
        page = Parsed(report_of(folder, images=False))
        section = page.words.rpartition("Notes")[2]
        assert section.count(str(told)) == 2
        assert section.count(f"data.public.images: {told}.") == 1


def test_a_run_that_has_not_ended_has_the_numbers_so_far(copy: Copy) -> None:
    folder = copy()
    whole = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").unlink()
    run = read(folder)
    assert run.summary["status"] == "unfinished"
    for key in ("accuracy", "untrained", "communication", "rounds", "method", "clients"):
        assert run.summary[key] == whole[key], key


@pytest.mark.usefixtures("only_svg")
@pytest.mark.parametrize("ended", [True, False])
def test_a_run_that_began_with_an_encoder_has_none_that_is_untrained(ended: bool, copy: Copy) -> None:
    folder = copy()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["model"]["start"] = {"path": "earlier.safetensors", "sha256": "0" * 64}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"start": {"path": "earlier", "digest": "0"}}))
    (folder / "environment.json").unlink()  # its command line may have the word
    if not ended:
        (folder / "summary.json").unlink()
    page = Parsed(report_of(folder, images=False))
    assert "Dashed: the encoder it started from." in page.words
    assert "untrained" not in page.words


@pytest.mark.long
def test_images_that_are_gone_leave_a_line_in_their_place(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))
    folder = copy()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"] |= {"name": "imagefolder", "path": str(folder / "gone")}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    page = Parsed(report_of(folder))
    assert "the images or the encoder could not be had" in page.words
    assert not (folder / "projector_config.pbtxt").exists()
    assert "Not asked for: --no-images." in Parsed(report_of(folder, images=False)).words


@pytest.mark.long
@pytest.mark.parametrize("late", ["run.accuracy_section", "maps.strips", "run.configuration_section"])
def test_a_run_that_is_removed_while_its_report_is_made_does_not_come_back(
    late: str, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first figure, before the projector's files, before the page."""
    monkeypatch.setattr("rayfed_ssl.report.style.FORMATS", ("svg",))
    folder, module = copy(), importlib.import_module(f"rayfed_ssl.report.{late.split('.')[0]}")
    make = getattr(module, late.split(".")[1])

    def removing(*given: Any) -> Any:
        shutil.rmtree(folder)
        return make(*given)

    monkeypatch.setattr(module, make.__name__, removing)
    with pytest.raises(UserError, match=f"^{folder}: was removed or moved meanwhile, and no report was written$"):
        report_of(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "must be the folder of a run, a comparison or a sweep"),
        ("notes.txt", "must be the folder of a run, a comparison or a sweep"),
        ("sweep.yaml", "found a sweep of which no trial has ended: nothing to report yet"),
        ("comparison.yaml", "found a comparison of which no run has ended"),
    ],
)
def test_no_run_is_one_line_and_writes_nothing(tmp_path: Path, contents: str | None, message: str) -> None:
    folder = tmp_path / "there"
    if contents is not None:
        folder.mkdir()
        (folder / contents).write_text("")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=message):
        report_of(folder)
    assert sorted(tmp_path.rglob("*")) == before
