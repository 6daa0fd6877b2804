"""Protocols within runs: eval mode, held-out images that choose, resumed diagnostics, encoders measured again."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.weights import pack
from rayfed_ssl.config import load
from rayfed_ssl.data.augment import clean
from rayfed_ssl.data.holdout import stratified_share
from rayfed_ssl.data.loading import load as load_images
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.process_context import ProcessContext
from rayfed_ssl.models import load_exported
from rayfed_ssl.settings.data_argument import parse_data_argument
from rayfed_ssl.simulation import reevaluation
from rayfed_ssl.simulation.forecast import forecast
from rayfed_ssl.simulation.reevaluation import reevaluate
from rayfed_ssl.storage import claim
from rayfed_ssl.storage.claim import rewriting
from rayfed_ssl.terminal.progress import evaluation_tables
from tests.command_line import Call
from tests.evaluation.materials import knn_accuracy
from tests.tiny import measured, run_locally, tiny

SELECT = {"evaluation__select": {"share": 0.2}}
SEMI = {"fractions": [0.5], "epochs": 1, "batch_size": 16}


def test_encoders_are_measured_in_eval_mode_and_left_as_they_were() -> None:
    config = tiny("fedsimclr")
    context = ProcessContext(config, load_federation(config))
    network = context.network("small_cnn_bn")
    draws = torch.Generator().manual_seed(0)
    for name, buffer in network.encoder.named_buffers():  # running statistics that no batch has
        if "running" in name:
            buffer.uniform_(0.5, 2.0, generator=draws)
    weights = pack(network)
    context.network("small_cnn_bn", "evaluated").train()
    value = context.evaluate("small_cnn_bn", weights)["knn"]
    evaluated = context.network("small_cnn_bn", "evaluated")
    assert np.array_equal(pack(evaluated).vector, weights.vector)

    network.eval()
    data = context.federation.dataset
    features = []
    for images in (data.train, data.test):
        pixels = torch.tensor(np.array(images.pixels)).permute(0, 3, 1, 2)
        with torch.no_grad():
            features.append(network.encoder(clean(pixels, context.recipe)))
    labels = [torch.tensor(images.labels) for images in (data.train, data.test)]
    assert value == knn_accuracy(features[0], labels[0], features[1], labels[1], classes=10)
    network.train()
    with torch.no_grad():
        wrong = [
            network.encoder(clean(torch.tensor(np.array(p.pixels)).permute(0, 3, 1, 2), context.recipe))
            for p in (data.train, data.test)
        ]
    assert value != knn_accuracy(wrong[0], labels[0], wrong[1], labels[1], classes=10)


def test_a_share_of_each_class_is_held_out_before_images_are_dealt() -> None:
    labels = np.repeat([-1, 0, 1, 2, 3], [10, 50, 20, 2, 1])
    rows = stratified_share(labels, 0.1, 0)
    assert np.unique(labels[rows], return_counts=True)[0].tolist() == [0, 1, 2]
    assert np.unique(labels[rows], return_counts=True)[1].tolist() == [5, 2, 1]
    assert rows.tolist() == sorted(set(rows.tolist())) == stratified_share(labels, 0.1, 0).tolist()
    assert rows.tolist() != stratified_share(labels, 0.1, 1).tolist()
    for none, found in (
        (np.arange(9), "no class has two labelled"),
        (np.array([-1]), "there are no two training images"),
    ):
        with pytest.raises(UserError, match=rf"^evaluation\.select: found a share of 0\.1, but {found}"):
            stratified_share(none, 0.1, 0)


def test_a_share_of_images_without_labels_is_one_of_them_all() -> None:
    rows = stratified_share(np.full(90, -1), 0.3, 0)
    assert len(set(rows.tolist())) == 27
    assert rows.min() >= 0
    assert rows.max() < 90
    assert rows.tolist() != stratified_share(np.full(90, -1), 0.3, 1).tolist()
    few = np.r_[np.full(88, -1), 4, 4]
    assert stratified_share(few, 0.3, 0).tolist() in ([88], [89])  # beside labelled ones they stay with the clients


@pytest.mark.parametrize("public", [{}, {"data__public": {"source": "share", "share": 0.2}}])
def test_nobody_holds_what_is_held_out(public: dict[str, object]) -> None:
    config = tiny("fedsimclr", **SELECT, **public)
    federation = load_federation(config)
    held_out = federation.held_out
    assert held_out is not None
    assert held_out.tolist() == stratified_share(federation.dataset.train.labels, 0.2, config.seed).tolist()
    others = [shard["train"] for shard in federation.shards]
    if public:
        assert federation.public_indices is not None
        others.append(federation.public_indices)
    assert sorted(np.concatenate([held_out, *others]).tolist()) == list(range(160))
    context = ProcessContext(config, federation)
    frozen = context.frozen(context.network("small_cnn_bn"))
    material = context.material(frozen)
    assert sorted([*material.train.rows.tolist(), *held_out.tolist()]) == list(range(160))
    assert (
        material.tests["select/"].rows.tolist()
        == held_out.tolist()
        == sorted(set(range(160)) - set(material.pool_rows))
    )
    assert list(context.material(None).tests) == [""]


@pytest.mark.long
def test_a_run_records_held_out_values_features_and_what_chose_the_best(tmp_path: Path) -> None:
    config = tiny(
        "fedsimclr", evaluation__protocols=["knn", "semi", "cluster", "rank"], evaluation__semi=SEMI,
        evaluation__metrics=["accuracy", "auc"], evaluation__rank={"images": 40, "spectrum": 2}, **SELECT,
    )  # fmt: skip
    summary = run_locally(config, tmp_path / "run")
    found = measured(tmp_path / "run")
    scores = ["knn", "knn_auc", "semi_50", "semi_50_auc", "cluster_nmi", "cluster_ari"]
    features = ["alignment", "uniformity", "rankme"]
    for round in range(4):
        tags = {tag for t, _, tag in found if t == round and tag.startswith(("eval/", "select/", "features/"))}
        alone = {f"eval/pixels_{name}" for name in scores if not name.startswith("semi")}  # which trains an encoder
        pixels = alone if round == 0 else set()
        described = {f"features/{name}" for name in (*features, "spectrum/000", "spectrum/001")}
        assert tags == pixels | described | {f"{group}/{name}" for group in ("eval", "select") for name in scores}
    assert list(summary["accuracy"]) == sorted(scores) == list(summary["select"])
    assert list(summary["features"]) == sorted(features)
    select = {t: found[t, None, "select/knn"] for t in (1, 2, 3)}
    chosen = max(select, key=lambda t: (select[t], -t))
    assert summary["best"]["knn"] == {
        "value": found[chosen, None, "eval/knn"], "round": chosen, "by": "held-out labels", "select": select[chosen],
    }  # fmt: skip
    rows = pq.read_table(tmp_path / "run" / "partition.parquet").to_pylist()
    held_out = load_federation(config).held_out
    assert held_out is not None
    assert [row["index"] for row in rows if row["split"] == "select"] == held_out.tolist()
    assert all(row["client"] is None and row["label"] >= 0 for row in rows if row["split"] == "select")

    again = reevaluate(tmp_path / "run", ["knn"])
    assert again["accuracy"]["global"]["knn"] == summary["accuracy"]["knn"]
    assert again["select"]["global"]["knn"] == summary["select"]["knn"]


@pytest.mark.long
def test_diagnostics_alone_need_no_label_and_appear_once_after_a_resume(tmp_path: Path) -> None:
    config = tiny("fedsimclr", evaluation__protocols=["rank"])
    run_locally(config, tmp_path / "whole")
    seen = 0

    def stopping() -> bool:
        nonlocal seen
        seen += 1
        return seen == 3

    assert run_locally(config, tmp_path / "run", stopping=stopping)["status"] == "stopped"
    summary = run_locally(config, tmp_path / "run", resume=True)
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")
    assert summary["accuracy"] == {}
    assert set(summary["features"]) == {"alignment", "uniformity", "rankme"}


def test_task_clients_are_measured_on_their_roll_back_split_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = tiny("fedavg_trunk", evaluation__protocols=[], method__rollback=False)
    summary = run_locally(config, run)
    found = measured(run)
    for client in range(4):
        assert found[3, client, "select/task"] == found[3, client, "client/rb_accuracy"]
    assert summary["best"]["task"]["by"] == "held-out labels"
    with pytest.raises(UserError, match=r"^evaluation\.select: found a share beside data\.tasks"):
        tiny("fedavg_trunk", **SELECT)


@pytest.mark.long
def test_a_finished_run_is_measured_by_other_protocols_one_after_another(tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary = run_locally(tiny("fedfoa", train__rounds=1), run)
    first = reevaluate(run)
    assert first["accuracy"]["client-00000"] == {"knn": summary["accuracy"]["knn"]["0"]}
    old = json.loads((run / "evaluation.json").read_text())
    old["evaluation"] = {"features": "backbone, clean images, eval mode", "train_images": None, "knn": {"k": 200}}
    (run / "evaluation.json").write_text(json.dumps(old))  # as an earlier version wrote it
    found = reevaluate(run, ["semi", "angles"], ["evaluation.semi={fractions: [0.5], epochs: 1, batch_size: 16}"])
    assert found == json.loads((run / "evaluation.json").read_text())
    for name in [f"client-{client:05d}" for client in range(4)]:
        assert found["accuracy"][name]["knn"] == first["accuracy"][name]["knn"]
        assert 0 <= found["accuracy"][name]["semi_50"] <= 1
    assert found["evaluation"]["knn"] == {"features": old["evaluation"]["features"], "train_images": None, "k": 200}
    assert found["evaluation"]["semi"]["epochs"] == 1
    assert set(found["untrained"]) == set(found["accuracy"]) - {"between encoders"}  # clients began with own values
    assert all(set(values) == {"knn", "semi_50"} for values in found["untrained"].values())
    angles = found["features"]["between encoders"]
    assert angles["angle"] == pytest.approx(np.mean([v for tag, v in angles.items() if tag != "angle"]))
    again = reevaluate(run, ["semi"], ["evaluation.semi={fractions: [0.2], epochs: 1, batch_size: 16}"])
    assert set(again["accuracy"]["client-00000"]) == {"knn", "semi_20"}  # other settings, other numbers
    assert again["features"] == found["features"]


@pytest.mark.long
def test_what_another_command_adds_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run_locally(tiny("fedsimclr", train__rounds=1), run)

    @contextmanager
    def late(file: Path) -> Iterator[Callable[[Mapping[str, object]], None]]:
        monkeypatch.setattr(reevaluation, "rewriting", rewriting)
        reevaluate(run, ["linear"])  # begins after the first has measured, and ends before it has the file
        with rewriting(file) as write:
            yield write

    monkeypatch.setattr(reevaluation, "rewriting", late)
    assert set(reevaluate(run, ["knn"])["accuracy"]["global"]) == {"knn", "linear"}
    assert [path.name for path in run.glob(".*")] == []


def test_results_are_not_written_while_another_command_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run_locally(tiny("fedsimclr", train__rounds=1), run)
    monkeypatch.setattr(claim, "REWRITING_S", 0.0)
    file = run / "evaluation.json"
    with rewriting(file), pytest.raises(UserError) as caught:
        reevaluate(run, ["knn"])
    assert re.fullmatch(
        rf"{re.escape(str(file))}: is being written by another command \(\S+, pid {os.getpid()}\); "
        "try again when it has ended",
        str(caught.value),
    )
    assert not file.exists()
    assert reevaluate(run, ["knn"])["accuracy"]["global"]


def test_a_run_that_is_removed_while_it_is_evaluated_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    run, other = tmp_path / "runs" / "run", pictures(tmp_path / "squares", {"train": 20, "test": 10})
    run_locally(tiny("fedsimclr", train__rounds=1), run)
    kept, measured_now = shutil.copytree(run, tmp_path / "kept"), reevaluation.measure

    def removing(*given: Any) -> dict[str, Any]:
        found = measured_now(*given)
        shutil.rmtree(removed)
        return found

    monkeypatch.setattr(reevaluation, "measure", removing)
    said = "found no run any more; it was removed or moved meanwhile, and evaluation.json was not written\n"
    for removed, arguments in ((run, ()), (tmp_path / "runs", ("--data", str(other)))):
        shutil.copytree(kept, run, dirs_exist_ok=True)
        assert call("evaluate", str(run), *arguments) == (2, "", f"{run}: {said}")
        assert not removed.exists()


def test_what_evaluate_refuses_is_one_line_and_leaves_the_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_locally(tiny("fedsimclr", train__rounds=1), run)
    reevaluate(run)
    before = (run / "evaluation.json").read_bytes()
    cases = [
        (["smi"], [], r"^--protocol: found 'smi'; must be one of knn, .*did you mean semi\?"),
        (
            ["knn"],
            ["evaluation.select={share: 0.5}"],
            r"^evaluation\.select\.share: found a change of what the run was; allowed",
        ),
        (["knn"], ["train.rounds=2"], r"^train\.rounds: found a change of what the run was"),
        (
            ["knn"],
            ["evaluation.linear.epochs=2"],
            r"^evaluation\.linear\.epochs: found without the protocol linear; allowed with --protocol linear$",
        ),
        (["knn"], ["evaluation.knn.k=0"], r"^evaluation\.knn\.k: found 0; must be at least 1"),
        (["transfer"], [], r"^evaluation\.transfer\.data: found nothing; transfer needs another data set"),
        (
            ["knn"],
            ["evaluation.train_images=1"],
            r"^evaluation\.train_images: found 1, which draws images of 1 class, ",
        ),
        (["angles"], [], r"found angles with encoders global \(\d+ dimensions\); it needs at least two"),
    ]
    for protocols, changes, message in cases:
        with pytest.raises(UserError, match=message) as caught:
            reevaluate(run, protocols, changes)
        assert "\n" not in str(caught.value)
    assert (run / "evaluation.json").read_bytes() == before
    for damage in ("{", "[1]", '{"accuracy": 3}'):
        (run / "evaluation.json").write_text(damage)
        with pytest.raises(UserError, match=r"evaluation\.json: cannot be read .*; mend it, or move it away"):
            reevaluate(run)
        assert (run / "evaluation.json").read_text() == damage


def test_clustering_needs_no_two_classes_among_the_training_images_it_is_given(tmp_path: Path) -> None:
    one = tiny("fedsimclr", train__rounds=1, evaluation__protocols=["cluster"], evaluation__train_images=1)
    all_of_them = tiny("fedsimclr", train__rounds=1, evaluation__protocols=["cluster"])
    found = [run_locally(config, tmp_path / str(n))["accuracy"] for n, config in enumerate((one, all_of_them))]
    assert found[0] == found[1]
    both = tiny("fedsimclr", evaluation__protocols=["cluster", "knn"], evaluation__train_images=1)
    with pytest.raises(UserError, match=r"^evaluation\.train_images: found 1, which draws images of 1 class, "):
        run_locally(both, tmp_path / "both")


def pictures(root: Path, sizes: dict[str, int], size: int = 12) -> Path:
    """An image folder of dark and bright squares: ``sizes`` are images per class of a split."""
    rng = np.random.default_rng(0)
    for split, count in sizes.items():
        for label, level in (("bright", 200), ("dark", 40)):
            for i in range(count):
                path = root / split / label / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray((level + rng.integers(0, 40, (size, size, 3))).astype(np.uint8)).save(path)
    return root


@pytest.mark.parametrize("initial", ["own", "common"])
def test_untrained_is_what_each_client_began_with(initial: str, tmp_path: Path) -> None:
    """As round 0 of the run measured it, client by client."""
    config = tiny("local", model__initial=initial, train__rounds=1, clients__count=2, data__limit=80)
    summary = run_locally(config, tmp_path)
    stale, other = {"knn": 0.1, "linear": 0.2}, "vgg9"  # of an earlier version, which nobody began with
    features = {f"untrained {other}": {"rankme": 1.0}, "client-00000": {"rankme": 2.0}}
    document = {"untrained": {other: stale}, "features": features, "other data": {"x": {"untrained": {other: stale}}}}
    (tmp_path / "evaluation.json").write_text(json.dumps(document))
    whole = reevaluate(tmp_path)
    assert whole["features"] == {"client-00000": {"rankme": 2.0}}
    assert whole["other data"] == {"x": {"untrained": {}}}
    found = whole["untrained"]
    names = {"0": "client-00000", "1": "client-00001"} if initial == "own" else dict.fromkeys("01", "small_cnn_bn")
    assert set(found) == set(names.values())
    for protocol, values in summary["untrained"].items():
        assert {client: found[name][protocol] for client, name in names.items()} == values


def test_a_run_is_measured_on_other_images_beside_its_own(tmp_path: Path) -> None:
    run, other = tmp_path / "run", pictures(tmp_path / "squares", {"train": 20, "test": 10})
    run_locally(tiny("fedsimclr", train__rounds=1), run)
    own = reevaluate(run)
    found = reevaluate(run, ["knn", "rank"], data=parse_data_argument(str(other)))
    assert {key: value for key, value in found.items() if key != "other data"} == own
    ((name, there),) = found["other data"].items()
    assert name == f"imagefolder:{other}"
    assert there["images"] == {
        "source": {"name": "imagefolder", "path": str(other)}, "digest": there["images"]["digest"],
        "train": 40, "test": 20, "notes": [],
    }  # fmt: skip
    assert set(there["evaluation"]) == {"knn", "rank"}
    assert set(there["accuracy"]["global"]) == {"knn"}
    assert set(there["untrained"]) == {"small_cnn_bn"}
    assert set(there["pixels"]) == {"knn"}
    assert "rankme" in there["features"]["global"]

    config = load(run / "config.yaml")
    images = load_images(parse_data_argument(str(other)).model_copy(update={"image_size": config.data.image_size}))
    encoder = load_exported(run)
    recipe = config.augment.recipe()

    def features(pixels: np.ndarray) -> torch.Tensor:
        with torch.no_grad():
            return F.normalize(encoder(clean(torch.tensor(pixels).permute(0, 3, 1, 2), recipe)), dim=1)

    train, test = features(images.train.pixels), features(images.test.pixels)
    labels = torch.tensor(images.train.labels)
    similar, nearest = (test @ train.T).topk(4, dim=1)  # a tenth of the train images
    votes = torch.zeros(20, 2).scatter_add_(1, labels[nearest], (similar / 0.1).exp())
    accuracy = float((votes.argmax(1) == torch.tensor(images.test.labels)).float().mean())
    assert there["accuracy"]["global"]["knn"] == pytest.approx(accuracy)

    again = reevaluate(run, ["rank"], data=parse_data_argument(str(other)))["other data"][name]
    assert again["accuracy"] == there["accuracy"]  # the same images: what is known stays
    shutil.rmtree(other / "test")
    pictures(other, {"test": 3})
    changed = reevaluate(run, ["rank"], data=parse_data_argument(str(other)))["other data"][name]
    assert "accuracy" not in changed  # other images: what was known goes
    gone = (
        f"what evaluation.json held of {name} was of other images, or of another form of them, and has gone: knn, rank"
    )
    assert gone in changed["images"]["notes"]
    assert changed["images"]["test"] == 6
    two = reevaluate(run, ["knn"], data=parse_data_argument("digits"))["other data"]
    assert list(two) == [name, "digits"]
    found = reevaluate(run, ["rank"], data=parse_data_argument(str(other)))
    assert list(found["other data"]) == ["digits", name]  # the newest last
    told, tables = evaluation_tables(found, other=True)
    assert told is not None
    assert told.splitlines() == [
        f"on imagefolder:{other}: 40 training and 6 test images",
        "3 of 6 test images are also among the training images (the same pixels): accuracy on them is memory",
        "classes bright, dark have fewer than 5 of 6 test images (the fewest: 3): one image is up to 33 points of a "
        "class's accuracy, and balanced accuracy and AUC weigh it as the largest class",
    ]
    assert [column.header for column in tables[-1].columns] == ["encoder", "alignment", "uniformity", "rankme"]
    told, own = evaluation_tables(found)
    assert (told, len(own)) == (None, 1)  # on the run's own images alone


def test_other_images_without_labels_have_no_accuracy(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "plain"
    run_locally(tiny("fedsimclr", train__rounds=1), run)
    for i in range(12):
        (other / "train").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 9, 3), 20 * i, np.uint8)).save(other / "train" / f"{i}.png")
    before = (run / "evaluation.json").exists()
    table = tmp_path / "plain.csv"  # whose columns may name labels; a folder has none
    table.write_text(
        "path,split\n" + "".join(f"plain/train/{i}.png,{'test' if i > 8 else 'train'}\n" for i in range(12))
    )
    unlabelled = f"{{name: table, path: '{table}', columns: {{label: false}}}}"
    for argument, shown, unless in (
        (str(other), other, ""),
        (unlabelled, table, ", unless columns.label of --data names them"),
    ):
        with pytest.raises(UserError) as error:
            reevaluate(run, ["knn"], data=parse_data_argument(argument))
        assert str(error.value) == f"--protocol: found knn; {shown} has no labels{unless}; allowed: rank"
    assert (run / "evaluation.json").exists() is before
    found = reevaluate(run, ["rank"], data=parse_data_argument(str(other)))["other data"][f"imagefolder:{other}"]
    assert set(found) == {"images", "features", "evaluation"}


def test_what_leaves_out_broken_images_of_another_data_set_can_be_given_there(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    """The line's own words, as a shell reads them, are what works."""
    run, other = tmp_path / "run", tmp_path / "ot her: images"
    run_locally(tiny("fedsimclr", train__rounds=1), run)
    pictures(other, {"train": 3, "test": 2})
    (other / "train" / "dark" / "broken.png").write_bytes(b"no image")
    status, _, said = call("evaluate", str(run), "--data", str(other), "--protocol", "knn")
    assert status == 2
    given = re.search(r"mend or remove it, or give (--data .*) to leave such images out$", said.strip())
    assert given is not None
    assert call("evaluate", str(run), *shlex.split(given[1]), "--protocol", "knn")[0] == 0
    found = json.loads((run / "evaluation.json").read_text())["other data"][f"imagefolder:{other}"]
    assert found["images"]["train"] == len([*(other / "train").rglob("*.png")]) - 1


def test_what_is_noticed_about_another_data_set_is_said_and_recorded(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    """The test images of ``other`` are its first training images, and a file beside them is no image."""
    other = pictures(tmp_path / "other", {"train": 6})
    for path in sorted(other.rglob("[0-2].png")):
        copy = other / "test" / path.relative_to(other / "train")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (other / "train" / "scan.raw").write_bytes(b"raw")
    block = {"data": {"name": "imagefolder", "path": str(other)}, "linear": {"epochs": 1}}
    evaluation = {"evaluation__protocols": ["transfer"], "evaluation__transfer": block}
    config, said = tiny("fedsimclr", train__rounds=1, **evaluation), list[str]()
    run_locally(config, tmp_path / "run", report=lambda progress: said.append(progress.line))
    noted = json.loads((tmp_path / "run" / "environment.json").read_text())["notes"]
    mine = [note for note in noted if note.startswith("evaluation.transfer.data: ")]
    assert len(mine) == 3
    assert "1 file is not read: 1 .raw" in mine[0]
    assert "6 of 6 test images are also among the training images (the same pixels)" in mine[1]
    assert "classes bright, dark have fewer than 5 of 6 test images (the fewest: 3)" in mine[2]
    assert [line for line in said if line in mine] == mine
    assert [note for note in forecast(config).notes if note in mine] == mine

    status, shown, _ = call("evaluate", str(tmp_path / "run"), "--data", str(other))
    assert status == 0
    found = json.loads((tmp_path / "run/evaluation.json").read_text())["other data"][f"imagefolder:{other}"]
    *again, hint = found["images"]["notes"]
    assert again == [note.removeprefix("evaluation.transfer.data: ") for note in mine]
    assert hint.startswith("these images have labels: --protocol knn")
    assert shown.splitlines()[1:5] == [*again, hint]
    (other / "test" / "dark" / "0.png").unlink()
    reevaluate(tmp_path / "run", ["knn"], data=parse_data_argument(str(other)))
    found = json.loads((tmp_path / "run/evaluation.json").read_text())["other data"][f"imagefolder:{other}"]
    assert not any(note.startswith("these images have labels") for note in found["images"]["notes"])
    (other / "test" / "dark" / "1.png").unlink()
    for changes, end in (([], "tells more"), (["evaluation.metrics=[accuracy,balanced_accuracy]"], "says little")):
        found = reevaluate(tmp_path / "run", ["knn"], changes, data=parse_data_argument(str(other)))["other data"]
        (large,) = (note for note in found[f"imagefolder:{other}"]["images"]["notes"] if "always naming it" in note)
        assert large.endswith(end)
