"""TensorBoard over its HTTP API: tags, heat maps, the projector, HParams; and docs/tensorboard.md says each tag."""

from __future__ import annotations

import io
import json
import re
import sys
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from tensorboard import program
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from rayfed_ssl.methods import METHODS
from rayfed_ssl.records import hparams
from rayfed_ssl.records.settings_table import flat, markdown
from rayfed_ssl.report.representations import look
from tests.places import ROOT
from tests.tune.sweeps import RUN
from tune.comparison import run_comparison
from tune.variants import from_methods

DOCS = ROOT / "docs/tensorboard.md"
ROW = re.compile(r"^\| `([^`]+)` \| (\w+) \|", re.MULTILINE)
KINDS = {"scalars": "Scalars", "images": "Images", "text": "Text"}
CONDITIONAL = {
    "notes",
    "privacy",
    "eval/<protocol>",
    "select/<protocol>",
    "features/<name>",
    "time/virtual_s",
    "time/server_s",
    "features/spectrum/<number>",
    "client/select/<protocol>/<client>",
    "server/<name>",
    "privacy/<name>",
    "sweep/<metric>",
    "comparison/<metric>",
}  # fmt: skip - of runs other than the one looked at


@pytest.fixture(scope="module")
def ask(fedfoa: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """A TensorBoard on loopback over the run ``fedfoa`` and a sweep of two trials; ask(path) is the answer's bytes."""
    logs = tmp_path_factory.mktemp("logs")
    (logs / "fedfoa").symlink_to(fedfoa)
    for trial, (lr, value) in enumerate(((0.1, 0.5), (0.01, 0.75))):
        varied = {"train.optimizer.lr": lr, "augment.preset": "digits", "clients.encoders": ["a", "b"]}
        for _ in range(2):  # written anew, not twice
            hparams.write(logs / f"trial-{trial:05d}", varied, {"select.knn": value}, 2, over=trial == 0)
    board = program.TensorBoard()
    board.configure(
        argv=["tensorboard", "--logdir", str(logs), "--host", "127.0.0.1", "--port", "0", "--load_fast", "false"]
    )
    url = board.launch()
    assert url.startswith("http://127.0.0.1:")

    def answer(path: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(
            f"{url}{path}", None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return bytes(response.read())

    until = time.monotonic() + 60
    while len(json.loads(answer("data/plugin/scalars/tags"))) < 3 and time.monotonic() < until:
        time.sleep(0.2)
    return answer  # its threads are daemons and end with the tests


def tags(ask: Callable[..., bytes], kind: str, run: str) -> list[str]:
    return list(json.loads(ask(f"data/plugin/{kind}/tags")).get(run, ()))


def pattern(tag: str) -> re.Pattern[str]:
    """What a tag of the table stands for; ``<method>`` only for methods that there are."""
    methods = "|".join(METHODS)
    whole = re.escape(tag).replace("<method>", f"({methods})")
    return re.compile(re.sub(r"<\w+>", "[^/]+", whole))


def test_the_documentation_says_each_tag(ask: Callable[..., bytes]) -> None:
    rows = ROW.findall(DOCS.read_text(encoding="utf-8"))
    assert len(rows) > 20
    used = set()
    for kind, where in KINDS.items():
        found = tags(ask, kind, "fedfoa")
        assert found, kind
        patterns = {tag: pattern(tag) for tag, place in rows if place == where}
        for tag in found:
            name = tag.removesuffix("/text_summary")
            matching = [said for said, found in patterns.items() if found.fullmatch(name)]
            assert matching, f"docs/tensorboard.md does not say {where} {name}"
            used.add(max(matching, key=lambda said: len(re.sub(r"<\w+>", "", said))))  # the one that says most
    unseen = {tag for tag, _ in rows} - used
    assert unseen <= CONDITIONAL, "said, but not written"
    assert {"sweep/select.knn"} == set(tags(ask, "scalars", "trial-00000"))


def test_scalars_are_those_of_the_table(ask: Callable[..., bytes], fedfoa: Path) -> None:
    points = json.loads(ask("data/plugin/scalars/scalars?run=fedfoa&tag=" + quote("client/eval/knn/1")))
    rows = [
        (row["round"], row["value"])
        for row in pq.read_table(fedfoa / "metrics.parquet").to_pylist()
        if (row["tag"], row["client"]) == ("eval/knn", 1)
    ]
    assert [(step, pytest.approx(value, abs=1e-6)) for _, step, value in points] == sorted(rows)


def test_a_heat_map_at_every_evaluation_and_the_partition(ask: Callable[..., bytes]) -> None:
    shown = json.loads(ask("data/plugin/images/images?run=fedfoa&tag=" + quote("clients/fedfoa_distance")))
    assert [image["step"] for image in shown] == [1, 2]
    (partition,) = json.loads(ask("data/plugin/images/images?run=fedfoa&tag=" + quote("data/partition")))
    with Image.open(io.BytesIO(ask("data/plugin/images/individualImage?" + partition["query"]))) as image:
        assert image.width > 300
        assert np.asarray(image).std() > 10


def test_the_settings_are_a_table(ask: Callable[..., bytes], fedfoa: Path) -> None:
    (text,) = json.loads(ask("data/plugin/text/text?run=fedfoa&tag=" + quote("config/text_summary")))
    assert text["text"].count("<tr>") == 2 + len(flat(yaml.safe_load((fedfoa / "config.yaml").read_text())))
    assert "<td><code>train.rounds</code></td>" in text["text"]


def test_a_setting_is_never_markup() -> None:
    table = markdown({"a|b": "x | `y`\n<b>", "c": {"d": [1, "e"], "f": {}}, "g": None})
    assert table.splitlines() == [
        "| key | value |", "|---|---|", "| `a\\|b` | `x \\| 'y' <b>` |", '| `c.d` | `[1, "e"]` |', "| `c.f` | `{}` |",
        "| `g` | `null` |",
    ]  # fmt: skip


def test_the_projector_has_the_features_labels_and_thumbnails(ask: Callable[..., bytes], fedfoa: Path) -> None:
    assert json.loads(ask("data/plugin/projector/runs")) == ["fedfoa"]
    (embedding,) = json.loads(ask("data/plugin/projector/info?run=fedfoa"))["embeddings"]
    name, seen = quote(embedding["tensorName"]), look(fedfoa)
    assert embedding["tensorShape"] == list(seen.features.shape)
    values = np.frombuffer(ask(f"data/plugin/projector/tensor?run=fedfoa&name={name}"), np.float32)
    np.testing.assert_allclose(values.reshape(seen.features.shape), seen.features, rtol=1e-4, atol=1e-6)
    labels = ask(f"data/plugin/projector/metadata?run=fedfoa&name={name}").decode().splitlines()
    assert labels == [seen.class_name(row) for row in range(len(seen.labels))]
    side = embedding["sprite"]["singleImageDim"][0]
    with Image.open(io.BytesIO(ask(f"data/plugin/projector/sprite_image?run=fedfoa&name={name}"))) as sheet:
        across = sheet.width // side
        assert across**2 >= len(labels) > (across - 1) ** 2
        last = len(labels) - 1
        box = (last % across * side, last // across * side)
        found = np.asarray(sheet.crop((*box, box[0] + side, box[1] + side)))
    np.testing.assert_array_equal(found[::2, ::2], seen.pixels[last])  # 16 pixels, each as four


def test_hparams_shows_what_varied_and_what_came_of_it(ask: Callable[..., bytes]) -> None:
    asked = {"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS", "STATUS_UNKNOWN"], "sliceSize": 10,
             "colParams": [{"hparam": "train.optimizer.lr", "order": "ORDER_ASC"}]}  # fmt: skip
    groups = json.loads(ask("data/plugin/hparams/session_groups", asked))["sessionGroups"]
    found = [
        (group["hparams"]["train.optimizer.lr"], group["metricValues"][0]["value"], group["sessions"][0]["status"])
        for group in groups
    ]
    assert found == [(0.01, 0.75, "STATUS_UNKNOWN"), (0.1, 0.5, "STATUS_SUCCESS")]
    assert groups[0]["hparams"]["clients.encoders"] == '["a", "b"]'
    assert groups[0]["metricValues"][0]["name"]["tag"] == "sweep/select.knn"


@pytest.mark.long
def test_hparams_of_a_comparison_say_which_variant_each_trial_is(tmp_path: Path) -> None:
    """With its seed and all its accuracies; a run that has not begun has no file."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**RUN, "evaluation": {"protocols": ["knn", "fewshot"]}}))
    made = from_methods(tmp_path / "run.yaml", ["fedsimclr", "local"], ["train.rounds=1"], seeds=2)
    out = tmp_path / "out"
    result = run_comparison(made, out, local=True)
    assert result.left == 0
    for trial, (variant, seed) in enumerate(product(("fedsimclr", "local"), (0, 1))):
        folder = out / f"trial-{trial:05d}"
        found = EventAccumulator(str(folder / hparams.FILE)).Reload()
        summary = json.loads((folder / "summary.json").read_text())
        for protocol in ("knn", "fewshot"):
            (event,) = found.Scalars(f"comparison/accuracy.{protocol}")
            said = summary["accuracy"][protocol]  # of clients' encoders one each
            value = np.mean(list(said.values())) if isinstance(said, dict) else said
            assert (event.step, event.value) == (1, pytest.approx(value))
        start = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        kept = HParamsPluginData.FromString(start).session_start_info.hparams
        assert (kept["variant"].string_value, kept["seed"].number_value) == (variant, seed)


class Recorded:
    """Stands where a package that is not installed would: what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Recorded]:
        return lambda *given, **named: self.calls.append((name, given, named)) or self  # type: ignore[func-returns-value]

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_the_lines_for_wandb_and_mlflow_find_what_they_read(
    fedfoa: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/demo").symlink_to(fedfoa)
    monkeypatch.chdir(tmp_path)
    made = {name: Recorded() for name in ("wandb", "mlflow")}
    for name, recorded in made.items():
        module = types.ModuleType(name)
        for function in ("init", "start_run", "log_artifact", "log_metric"):
            setattr(module, function, getattr(recorded, function))
        monkeypatch.setitem(sys.modules, name, module)
    space: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, space)
    summary = json.loads((fedfoa / "summary.json").read_text())
    (start, *logged) = made["wandb"].calls
    assert start[2]["config"]["method"]["name"] == "fedfoa"
    rows = [given[0] for name, given, _ in logged if name == "log"]
    assert {"eval/pixels_fewshot": summary["pixels"]["fewshot"], "round": 0} in rows
    assert sum("train/loss" in row for row in rows) == summary["rounds"]
    metrics = {
        (given[0], named["step"]): given[1] for name, given, named in made["mlflow"].calls if name == "log_metric"
    }
    assert metrics["eval/pixels_fewshot", 0] == summary["pixels"]["fewshot"]
    assert metrics["communication/up_mb", 2] == summary["communication"]["up_bytes"] / 1e6
    (artifact,) = (given[0] for name, given, _ in made["mlflow"].calls if name == "log_artifact")
    assert Path(artifact).is_file()
