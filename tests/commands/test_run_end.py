"""How a run ends on a terminal: the table, the report's verdict below it, what describes the features beside it."""

from __future__ import annotations

import io
import json
import re
import shutil
from html import unescape
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console

import rayfed_ssl
from rayfed_ssl import Progress
from rayfed_ssl.report.dispatch import report_of
from rayfed_ssl.report.evaluated import sentence_of, verdict_of
from rayfed_ssl.report.verdict import DAMAGED, verdict
from rayfed_ssl.terminal.progress import conclude
from tests.command_line import Call
from tests.data.files import pictures, write_parquet
from tests.report.parsed import Parsed

LOCAL = ("run", "tiny.yaml", "--executor", "local")


def test_the_verdict_of_the_report_and_rankme(call: Call, tmp_path: Path) -> None:
    status, out, _ = call(*LOCAL, "evaluation.protocols=[knn,rank]")
    assert status == 0
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    sentence = verdict(summary).sentence
    assert sentence.startswith("After 2 rounds, the encoder is ")
    assert sentence.replace("−", "-") in out.splitlines()
    before, last = (f"{summary[block]['rankme']:.3f}" for block in ("untrained_features", "features"))
    (row,) = (line for line in out.splitlines() if line.startswith("  rankme"))
    assert row.split() == ["rankme", "-", before, last, "-"]
    assert f"rankme {before}" in out  # the line of the untrained encoder


def test_without_accuracies_there_is_no_verdict_but_the_command_that_measures_one(call: Call) -> None:
    status, out, _ = call(*LOCAL, "evaluation.protocols=[rank]", "train.rounds=1")
    assert status == 0
    assert "After 1 round" not in out
    assert "rankme" in out
    (line,) = (line for line in out.splitlines() if line.startswith("accuracy"))
    said, command = line.removeprefix("accuracy").split(": rayfed-ssl ")
    assert said.strip() == "not measured; on labelled images"
    status, out, _ = call(*command.replace("IMAGES", "digits").split())
    assert status == 0
    assert "knn" in out


@pytest.mark.usefixtures("only_svg")
def test_a_run_stopped_before_an_evaluation_names_the_command_that_makes_it(call: Call, tmp_path: Path) -> None:
    def stop(told: Progress) -> bool:
        return told.round == 1

    run = rayfed_ssl.run("tiny.yaml", out="runs/tiny", executor="local", evaluation__every=2, on_progress=stop)
    assert (run.status, run.summary["accuracy"]) == ("stopped", {})
    text = io.StringIO()
    conclude(Console(file=text, width=160), run.summary, "runs/tiny")
    (line,) = (line for line in text.getvalue().splitlines() if line.startswith("accuracy"))
    said, command = line.removeprefix("accuracy").split("; now: rayfed-ssl ")
    assert said.strip() == "not measured yet, as evaluation.every evaluates later rounds"
    page = Parsed(report_of(run.folder, images=False))
    assert f"Accuracy was {said.strip()}." in page.words
    assert "Now: rayfed-ssl evaluate FOLDER, where FOLDER is this folder." in page.words
    status, out, _ = call(*command.split())
    assert status == 0
    assert "knn" in out
    assert "evaluate FOLDER" not in Parsed(report_of(run.folder, images=False)).words  # it has the values
    for file in ("summary.json", "evaluation.json"):
        (run.folder / file).unlink()
    assert "evaluate FOLDER" not in Parsed(report_of(run.folder, images=False)).words  # it has not ended


def test_a_run_that_diverged_has_no_encoder_to_evaluate() -> None:
    text = io.StringIO()
    sent = {"up_bytes": 0, "down_bytes": 0}
    summary = {"status": "diverged", "accuracy": {}, "rounds": 1, "communication": sent, "wall_s": 1.0}
    conclude(Console(file=text, width=160), summary, "runs/tiny")
    assert "accuracy      not measured" in text.getvalue().splitlines()


def test_a_large_class_is_recalled_at_the_end(call: Call, tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / "odd" / f"{split}.parquet", pictures(60), ["a"] * 54 + ["b"] * 6)
    status, out, _ = call(*LOCAL, "train.rounds=1", "data.name=parquet", "data.path=odd", "data.test_limit=null")
    assert status == 0
    assert json.loads((tmp_path / "runs/tiny/summary.json").read_text())["largest_class"] == {"name": "a", "share": 0.9}
    assert "; always naming the largest class, a, is right for 90.0 % of the test images" in out


@pytest.mark.long
def test_evaluate_ends_with_the_sentence_of_the_run(call: Call, tmp_path: Path) -> None:
    assert call(*LOCAL)[0] == 0
    run, file = tmp_path / "runs/tiny", tmp_path / "runs/tiny/evaluation.json"
    sentence = verdict(json.loads((run / "summary.json").read_text())).sentence
    assert "over 30 test images" in sentence
    status, out, _ = call("evaluate", "runs/tiny")
    assert status == 0
    assert out.splitlines()[-1] == sentence.replace("−", "-")
    known = json.loads(file.read_text())
    assert known["evaluation"]["knn"].pop("test_images") == 30
    file.write_text(json.dumps(known))  # as an earlier version wrote it
    found = verdict_of(run, known)
    assert found is not None
    assert found.sentence.startswith("After 2 rounds, kNN accuracy is ")
    assert "with no interval, so neither is called better" in found.sentence
    status, out, _ = call("evaluate", "runs/tiny", "--protocol", "linear", "evaluation.linear.epochs=1")
    assert status == 0
    assert "over 30 test images" in out.splitlines()[-1]  # the images are the same: their number holds for kNN, too
    status, out, _ = call("evaluate", "runs/tiny", "--protocol", "rank", "--data", "digits")
    assert "After 2 rounds" not in out  # no accuracy was measured on these


@pytest.mark.long
def test_the_report_shows_what_evaluate_measured(call: Call, tmp_path: Path) -> None:
    assert call(*LOCAL, "method.name=local", "clients.count=2", "train.rounds=1", "evaluation.protocols=[rank]")[0] == 0
    for split in ("train", "test"):
        write_parquet(tmp_path / "odd" / f"{split}.parquet", pictures(20), ["a"] * 10 + ["b"] * 10)
    assert call("evaluate", "runs/tiny", "--protocol", "rank")[0] == 0
    assert call("report", "runs/tiny", "--no-images")[0] == 0
    page = tmp_path / "runs/tiny/report.html"
    assert 'id="evaluated"' not in page.read_text()  # no accuracy
    knn = ("evaluate", "runs/tiny", "--protocol", "knn")
    status, out, _ = call(*knn, "--data", "{name: parquet, path: odd}")
    assert status == 0
    assert call(*knn)[0] == 0
    assert call("report", "runs/tiny", "--no-images")[0] == 0
    found = json.loads((tmp_path / "runs/tiny/evaluation.json").read_text())
    of = _tables(page.read_text().partition('id="evaluated"')[2].partition("</section>")[0])
    own, other = of
    assert own.startswith("On the run's own images. After 1 round, ")
    assert other.startswith("On odd: 20 test images, 20 to learn from. After 1 round, ")
    assert out.splitlines()[-1].replace("-", "−") in other.replace("-", "−")
    for name, accuracy, pixels in (
        (own, found["accuracy"], found["pixels"]),
        (other, *(found["other data"]["parquet:odd"][key] for key in ("accuracy", "pixels"))),
    ):
        mean = fmean(values["knn"] for values in accuracy.values())
        (row,) = of[name]
        assert row[0] == "kNN"
        assert row[1].startswith(f"{100 * pixels['knn']:.1f} %")
        assert row[3].startswith(f"{100 * mean:.1f} %")


def _tables(html: str) -> dict[str, list[list[str]]]:
    """Caption -> the cells of each row below the head, in order."""
    found = {}
    for table in html.split("<table")[1:]:
        caption = unescape(table.partition("<caption><span>")[2].partition("</span>")[0])
        body = table.partition("<tbody")[2]
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in body.split("<tr")[1:]]
        found[caption] = [[unescape(re.sub(r"<[^>]+>", " ", cell)).strip() for cell in row] for row in cells]
    return found


@pytest.mark.long
def test_evaluate_compares_with_untrained_encoders_also_where_a_run_began_with_one(call: Call, tmp_path: Path) -> None:
    assert call(*LOCAL, "--out", "first")[0] == 0
    assert call(*LOCAL, "model.start=first", "--out", "second")[0] == 0
    assert "the encoder it started from" in verdict(json.loads((tmp_path / "second/summary.json").read_text())).sentence
    status, out, _ = call("evaluate", "second")
    assert status == 0
    assert "the untrained encoder" in out.splitlines()[-1]
    assert "started from" not in out.splitlines()[-1]
    (tmp_path / "second/summary.json").write_text('{"rounds": 2, "largest_class": {"name": "a"}}')
    found = json.loads((tmp_path / "second/evaluation.json").read_text())
    assert sentence_of(tmp_path / "second", found) is DAMAGED  # it costs the sentence, not the numbers
    assert DAMAGED.sentence == "The summary is damaged: no verdict."


@pytest.mark.long
def test_evaluate_tells_of_clients_encoders_and_of_the_largest_class_of_other_images(
    call: Call, tmp_path: Path
) -> None:
    assert call(*LOCAL, "method.name=local", "clients.count=2", "train.rounds=1")[0] == 0
    sentence = verdict(json.loads((tmp_path / "runs/tiny/summary.json").read_text())).sentence
    assert "(mean of clients)" in sentence
    status, out, _ = call("evaluate", "runs/tiny")
    assert (status, out.splitlines()[-1]) == (0, sentence.replace("−", "-"))
    for split in ("train", "test"):
        write_parquet(tmp_path / "odd" / f"{split}.parquet", pictures(20), ["a"] * 18 + ["b"] * 2)
    status, out, _ = call("evaluate", "runs/tiny", "--data", "{name: parquet, path: odd}")
    assert status == 0
    assert "; always naming the largest class, a, is right for 90.0 % of the test images" in out.splitlines()[-1]
    assert "over 20 test images" in out.splitlines()[-1] or "over 2 clients" in out.splitlines()[-1]
    found = json.loads((tmp_path / "runs/tiny/evaluation.json").read_text())["other data"]["parquet:odd"]
    assert found["images"]["largest_class"] == {"name": "a", "share": 0.9}
    shutil.rmtree(tmp_path / "runs/tiny/encoder")
    assert verdict_of(tmp_path / "runs/tiny", {"other data": {"x": found}}, other=True) is None
