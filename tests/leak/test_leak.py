"""Membership inference on the messages of tiny runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score

from rayfed_ssl.base.linalg import canonical_r
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.base.weights import unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.data.augment import augment
from rayfed_ssl.data.holdout import stratified_share
from rayfed_ssl.data.pixels.copies import copies
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.uploads import Correlation
from rayfed_ssl.leak.auc import AucEstimate, null_deviation
from rayfed_ssl.leak.audit import AGREEMENT, FALL, LOSS, VIEWS, Audit
from rayfed_ssl.leak.findings import Finding, summary, suspicious
from rayfed_ssl.leak.members import LEAST, draw_sets
from rayfed_ssl.leak.replay import replayed
from rayfed_ssl.leak.run import added, leak, numbered
from rayfed_ssl.leak.scores import agreement
from rayfed_ssl.methods import METHODS
from rayfed_ssl.methods.fedfoa import pack_triangle
from rayfed_ssl.methods.fedmd import subset
from rayfed_ssl.records.leaked import BY_CHANCE, INTERVAL, UNTRAINED
from rayfed_ssl.simulation.checks import describe
from rayfed_ssl.simulation.resuming import load_moved
from rayfed_ssl.simulation.worker import Worker
from rayfed_ssl.storage import checkpoint, claim
from rayfed_ssl.storage.claim import rewriting
from tests.command_line import command
from tests.data.columns import write
from tests.leak.runs import HELD_OUT, finished
from tests.tiny import OWN, run_locally
from tests.tiny import tiny_run as tiny


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("leak") / "run", "fedsimclr")


def test_a_round_repeated_makes_the_messages_that_the_run_averaged(averaged: Path) -> None:
    config = tiny("fedsimclr", HELD_OUT)
    before = {path.name: path.stat().st_mtime_ns for path in averaged.rglob("*")}
    worker, recorded = replayed(config, averaged, 2, lambda federation: federation.clients)
    assert [(one.client, one.operation, one.round) for one in recorded] == [(c, "train", 2) for c in range(4)]
    shares = worker.federation.shares
    mean = sum(shares[one.client] * one.reply["weights"].vector.astype(np.float64) for one in recorded)
    tree, _ = checkpoint.load(dict(checkpoint.complete(averaged / "checkpoints"))[2])
    np.testing.assert_allclose(tree["server"]["weights"].vector, mean, atol=1e-6)
    assert before == {path.name: path.stat().st_mtime_ns for path in averaged.rglob("*")}  # the folder is as it was


def test_of_weights_in_fewer_bytes_the_audit_hears_what_arrived(tmp_path: Path) -> None:
    changes = {"transport": {"up": {"name": "quantized", "bits": 3, "bucket": 64}, "down": {"name": "float16"}}}
    run = finished(tmp_path / "run", "fedsimclr", **changes)
    worker, recorded = replayed(
        tiny("fedsimclr", {**HELD_OUT, **changes}), run, 2, lambda federation: federation.clients
    )
    mean = sum(
        worker.federation.shares[one.client] * one.reply["weights"].vector.astype(np.float64) for one in recorded
    )
    tree, _ = checkpoint.load(dict(checkpoint.complete(run / "checkpoints"))[2])
    np.testing.assert_allclose(tree["server"]["weights"].vector, mean, atol=1e-6)  # what was not coded is farther off


@pytest.mark.long
def test_a_reply_that_began_rounds_ago_is_heard_in_the_round_that_uses_it(tmp_path: Path) -> None:
    """FedBuff, two replies a round of four clients at work: the ledger says whose came."""
    changes = {
        "server": {"schedule": "fedbuff", "buffer": 2}, "system": {"latency_s": 1.0},
        "participation.fraction": 1.0, "train.rounds": 3,
    }  # fmt: skip
    run = finished(tmp_path / "run", "fedsimclr", **changes)
    sent = pq.read_table(run / "communication.parquet").to_pylist()
    came = {row["client"] for row in sent if row["round"] == 2 and row["direction"] == "up"}
    config = tiny("fedsimclr", {**HELD_OUT, **changes})
    worker, recorded = replayed(config, run, 2, lambda federation: federation.clients)
    assert {one.client for one in recorded} == worker.present == came
    assert len(recorded) == 2
    assert min(one.round for one in recorded) == 1  # it began before the first step was taken
    (late,) = sorted(came)[:1]
    found = leak(run, round=2, clients=[late])
    assert {one.field for one in found.findings} == {UNTRAINED, "weights"}
    (away,) = sorted(set(range(4)) - came)[:1]
    with pytest.raises(UserError, match=rf"client {away} took no part in round 2; who did: {late}, {max(came)}$"):
        leak(run, round=2, clients=[away])


@pytest.mark.long
def test_who_returns_to_its_best_after_the_last_round_took_no_part_in_it(tmp_path: Path) -> None:
    """Every client does, asked or not, and sends nothing."""
    changes = {"objective.name": "supervised", "evaluation.protocols": [], "participation.fraction": 0.5}
    config = tiny("fedavg_trunk", {**OWN["fedavg_trunk"], **changes, "train.rounds": 2})
    run_locally(config, tmp_path / "run")
    sent = pq.read_table(tmp_path / "run" / "communication.parquet").to_pylist()
    asked = {row["client"] for row in sent if row["round"] == 2}
    assert len(asked) == 2
    worker, recorded = replayed(
        load_moved(tmp_path / "run", ()), tmp_path / "run", 2, lambda federation: federation.clients
    )
    assert worker.present == {one.client for one in recorded} == asked
    assert {one.operation for one in recorded} == {"train", "adopt"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedsimclr", {"system": {"drop_out": 0.5}, "seed": 28}),
        ("centralized", {}),
    ],  # all are lost in round 2; no clients
)
def test_a_round_in_which_nobody_took_part_is_one_line(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    run = finished(tmp_path / "run", method, train__rounds=2, **changes)
    for clients in ([], [1]):
        with pytest.raises(UserError, match=r"^--round: found 2, in which no client took part, .* [^\n]*$"):
            leak(run, clients=clients)
    assert not (run / "leak.json").exists()


def test_members_and_others_are_of_the_same_classes_and_disjoint(averaged: Path) -> None:
    worker, _ = replayed(tiny("fedsimclr", HELD_OUT), averaged, 1, lambda federation: [])
    sets = draw_sets(worker.federation, 1, 1000, 0)
    labels = worker.federation.dataset.train.labels
    np.testing.assert_array_equal(np.bincount(labels[sets.members]), np.bincount(labels[sets.others]))
    assert set(sets.members) <= set(worker.federation.shards[1]["train"])
    assert worker.federation.held_out is not None
    assert set(sets.others) | set(sets.reference) <= set(worker.federation.held_out)
    assert not set(sets.others) & set(sets.reference)
    assert len(draw_sets(worker.federation, 1, LEAST, 0).members) == LEAST


@pytest.mark.parametrize("natural", [False, True])
def test_so_many_images_give_so_many_members_as_the_page_says(natural: bool) -> None:
    """650 images of five IID clients with a share of 0.23; or 500 images of each client of the data with 0.3."""
    share, limit = (0.3, 1000) if natural else (0.23, 650)
    changes = {**HELD_OUT, "data.limit": limit, "clients.count": 5, "evaluation.select": {"share": share}}
    config = tiny("fedsimclr", changes)
    federation = load_federation(config)
    if natural:
        train = federation.dataset.train
        owners = np.arange(len(train)) % 2
        held_out = stratified_share(train.labels, share, 0, owners)
        kept = np.setdiff1d(np.arange(len(train)), held_out)
        shards = tuple({"train": kept[owners[kept] == client]} for client in (0, 1))
        owned = replace(train, clients=owners, client_names=("a", "b"))
        federation = replace(
            federation, dataset=replace(federation.dataset, train=owned), shards=shards, held_out=held_out
        )
    for client in range(len(federation.shards)):
        members = len(draw_sets(federation, client, 1000, 0).members)
        assert abs(members - (100 if natural else 90)) <= 5


def test_a_copy_of_an_image_that_is_trained_on_is_no_non_member(averaged: Path) -> None:
    """Copies of images of the client itself, of another one and of the public ones are among the images held out; so
    is one of a test image, and two that are copies of each other, which nobody trains on.
    """
    worker, _ = replayed(tiny("fedsimclr", HELD_OUT), averaged, 1, lambda federation: [])
    whole, held_out = worker.federation, worker.federation.held_out
    assert held_out is not None
    shards = [np.array(shard["train"]) for shard in whole.shards]
    public, shards[3] = shards[3][:5], shards[3][5:]
    train, test = whole.dataset.train, whole.dataset.test
    pixels = np.array(train.pixels)
    trained = np.concatenate([shards[1][:10], shards[2][:10], public])
    pixels[held_out[:25]] = pixels[trained]
    pixels[held_out[30]], pixels[held_out[31]] = test.pixels[0], pixels[held_out[32]]
    dataset = replace(whole.dataset, train=replace(train, pixels=pixels), copies=copies(pixels, test.pixels))
    federation = replace(
        whole, dataset=dataset, shards=tuple({"train": shard} for shard in shards), public_indices=public
    )
    sets = draw_sets(federation, 1, 1000, 0)
    seen = {pixels[row].tobytes() for row in np.concatenate([*shards, public])}
    drawn = np.concatenate([sets.others, sets.reference])
    assert not any(pixels[row].tobytes() in seen for row in drawn)
    assert not set(drawn) & set(held_out[:25])
    unlike = draw_sets(replace(federation, dataset=whole.dataset), 1, 1000, 0)
    assert set(np.concatenate([unlike.others, unlike.reference])) & set(held_out[:25])  # of images that are no copies
    left = [row for row in held_out if pixels[row].tobytes() not in seen]
    assert set(held_out[30:33]) <= set(left)
    assert len(sets.reference) == len(left) // 3


def test_members_are_told_apart_by_no_client_of_the_data(averaged: Path) -> None:
    """Each client's shard is mostly of one hospital, and so are the images held out that it is compared with."""
    worker, _ = replayed(tiny("fedsimclr", HELD_OUT), averaged, 1, lambda federation: [])
    federation, train = worker.federation, worker.federation.dataset.train
    hospitals = np.full(len(train), 2, np.int64)
    hospitals[federation.shards[1]["train"]] = 0
    assert federation.held_out is not None
    hospitals[federation.held_out[::2]] = 0
    hospitals[federation.shards[1]["train"][::7]] = 1
    hospitals[federation.held_out[1::4]] = 1
    owned = replace(train, clients=hospitals, client_names=("a", "b", "c"))
    natural = replace(federation, dataset=replace(federation.dataset, train=owned))
    sets = draw_sets(natural, 1, 1000, 0)
    kinds = [sorted(zip(train.labels[rows], hospitals[rows], strict=True)) for rows in (sets.members, sets.others)]
    assert kinds[0] == kinds[1]
    assert set(hospitals[sets.members]) == {0, 1}
    assert 2 not in hospitals[sets.reference]


@pytest.mark.long
def test_corruptions_of_a_client_are_no_membership(tmp_path: Path) -> None:
    skew = {"name": "feature_skew", "severity": 5, "corruptions": ["noise"]}
    run = finished(tmp_path / "run", "fedsimclr", data__partition=skew, train__rounds=1)
    found = leak(run, None, [0], 1000)
    area = next(one.found for one in found.findings if one.field == UNTRAINED)
    assert area.low <= 0.5 <= area.high
    assert not suspicious(found.findings)
    config = tiny("fedsimclr", {**HELD_OUT, "data.partition": skew, "train.rounds": 1})
    worker, _ = replayed(config, run, 1, lambda federation: [])
    audit = Audit(worker, 0, 1, draw_sets(worker.federation, 0, 1000, 0))
    train, plain = worker.federation.dataset.train, load_federation(tiny("fedsimclr", HELD_OUT)).dataset.train
    mine = worker.federation.shards[0]["train"][:5]
    np.testing.assert_array_equal(audit.as_the_clients(mine), train.pixels[mine])
    others = audit.sets.others[:5]
    np.testing.assert_array_equal(train.pixels[others], plain.pixels[others])  # as they are kept
    assert np.abs(audit.as_the_clients(others).astype(int) - plain.pixels[others]).mean() > 10


@pytest.mark.long
def test_chance_is_that_of_the_fewest_members_and_a_client_named_twice_counts_once(tmp_path: Path) -> None:
    few = {"clients.count": 2, "data.limit": 400, "train.rounds": 1, "evaluation.select": {"share": 0.4}}
    run_locally(tiny("fedsimclr", {**few, "data.partition.name": "dirichlet"}), tmp_path / "run")
    found = leak(tmp_path / "run", clients=[0, 1, 0])
    (client, first), (other, second) = [
        (f.client, f.members) for f in found.findings if (f.field, f.score) == (UNTRAINED, AGREEMENT)
    ]
    assert (client, other) == (0, 1)
    assert first > second
    assert found.null_deviation == pytest.approx(((2 * second + 1) / (12 * second**2)) ** 0.5)


@pytest.mark.long
def test_what_was_found_is_not_written_while_another_command_writes_it(
    averaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "REWRITING_S", 0.0)
    with rewriting(averaged / "leak.json"), pytest.raises(UserError, match=r"leak\.json: is being written by another "):
        leak(averaged)
    assert [path.name for path in averaged.glob("*leak*")] == []
    leak(averaged)
    assert [path.name for path in averaged.glob("*leak*")] == ["leak.json"]
    (averaged / "leak.json").unlink()


@pytest.mark.long
def test_what_was_found_of_other_clients_and_rounds_stays(averaged: Path, tmp_path: Path) -> None:
    run = shutil.copytree(averaged, tmp_path / "run")

    def rows() -> list[dict[str, Any]]:
        return list(json.loads((run / "leak.json").read_text())["findings"])

    leak(run, clients=[1])
    first = rows()
    leak(run, clients=[0])
    assert [(row["round"], row["client"]) for row in rows()[:: len(first)]] == [(3, 0), (3, 1)]
    assert rows()[len(first) :] == first
    leak(run, 1, clients=[1])
    assert {(row["round"], row["client"]) for row in rows()} == {(1, 1), (3, 0), (3, 1)}
    before = rows()
    fewer = leak(run, clients=[1], images=20)
    again = rows()
    assert again[:-5] == before[:-5]
    assert [row["members"] for row in again[-5:]] == [20] * 5
    assert json.loads((run / "leak.json").read_text())["null_deviation"] == fewer.null_deviation
    assert leak(run, clients=[0]).null_deviation < fewer.null_deviation
    assert (
        json.loads((run / "leak.json").read_text())["null_deviation"] == fewer.null_deviation
    )  # of the fewest members


def test_fields_that_no_attack_reads_are_those_of_all_audits_that_stand() -> None:
    def audit(client: int, unaudited: list[str], field: str = UNTRAINED) -> dict[str, Any]:
        row = {"round": 1, "client": client, "field": field, "members": 50}
        return {"findings": [row], "unaudited": unaudited, "null_deviation": 0.1, "privacy": None}

    both = added(audit(0, ["rest", "weights"]), audit(1, ["more"], "weights"))
    assert both["unaudited"] == ["more", "rest"]  # of one client weights were read
    assert added(audit(0, ["rest"]), audit(0, ["more"]))["unaudited"] == ["more"]
    assert added({}, audit(0, [])) == audit(0, []) | {"null_deviation": null_deviation(50, 50)}
    nothing = {"findings": [], "unaudited": ["more"], "null_deviation": float("nan"), "privacy": None}
    assert added({}, nothing) == nothing | {"null_deviation": None}  # which JSON has, and no not-a-number


def test_a_damaged_file_is_refused_before_anything_is_repeated(averaged: Path, tmp_path: Path) -> None:
    run = shutil.copytree(averaged, tmp_path / "run")
    (run / "leak.json").write_text("{")
    said = list[str]()
    with pytest.raises(UserError, match=r"leak\.json: cannot be read .*; mend it, or move it away"):
        leak(run, say=said.append)
    assert said == []
    assert (run / "leak.json").read_text() == "{"


@pytest.mark.long
def test_a_run_that_is_removed_while_it_is_audited_does_not_come_back(averaged: Path, tmp_path: Path) -> None:
    run = shutil.copytree(averaged, tmp_path / "runs" / "run")

    def removing(line: str) -> None:
        if "members" in line:
            shutil.rmtree(run.parent)

    with pytest.raises(UserError, match=r"runs/run: found no run any more; .*, and leak\.json was not written$"):
        leak(run, say=removing)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_who_has_too_few_images_is_passed_over_or_told_who_has_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"clients.count": 2, "data.limit": 400, "train.rounds": 1, "evaluation.select": {"share": 0.4}, "seed": 6}
    run_locally(tiny("fedsimclr", {**few, "data.partition.name": "dirichlet"}), tmp_path / "run")
    sizes = {f.client: f.members for f in leak(tmp_path / "run", clients=[0, 1]).findings}
    assert sizes[0] < sizes[1]
    monkeypatch.setattr("rayfed_ssl.leak.members.LEAST", sizes[0] + 1)
    said: list[str] = []
    assert {f.client for f in leak(tmp_path / "run", say=said.append).findings} == {1}
    assert said[-1] == "1 other client not audited: --client NUMBER or NAME, which may be repeated, chooses"
    with pytest.raises(
        UserError, match=r"client 0 has \d+ training images with a held-out image .*; clients that have enough: 1$"
    ):
        leak(tmp_path / "run", clients=[0, 1])
    monkeypatch.setattr("rayfed_ssl.leak.members.LEAST", sizes[1] + 1)
    with pytest.raises(
        UserError, match=rf"client 1 has {sizes[1]} training images .*; no client has enough, this one has most$"
    ):
        leak(tmp_path / "run")
    with pytest.raises(UserError, match=rf"client 0 has {sizes[0]} training images .*; no client has enough$"):
        leak(tmp_path / "run", clients=[0])


def test_clients_are_named_by_number_or_by_the_name_of_their_folder() -> None:
    named: Any = SimpleNamespace(given_names=("north", "7", "south"), sizes=np.array([9, 9, 9]))
    assert numbered(["south", 0, "1", "7"], named) == [2, 0, 1, 7]
    with pytest.raises(UserError, match=r"'Noth'; this run has 3 clients; names: .*; did you mean north, south\?$"):
        numbered(["Noth"], named)
    with pytest.raises(UserError, match=r"^--client: found 'west'; this run has 3 clients; names: north, 7, south$"):
        numbered(["west"], named)
    nameless: Any = SimpleNamespace(given_names=None, sizes=np.array([9, 9]))
    with pytest.raises(UserError, match=r"^--client: found 'west'; this run has 2 clients, which have no names$"):
        numbered(["west"], nameless)


def test_what_knows_nothing_and_tells_members_apart_is_named() -> None:
    def one(field: str, low: float, high: float) -> Finding:
        return Finding(0, 1, field, "agreement of views", 50, AucEstimate((low + high) / 2, low, high, 0.1, 0.0))

    odd = one(UNTRAINED, 0.1, 0.3)
    assert suspicious([odd, one(UNTRAINED, 0.4, 0.6), one("weights", 0.6, 0.7)]) == [odd]


def test_the_command_writes_and_shows_what_was_found(averaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = command(capsys, "leak", averaged, "--client", "1", "--client", "2")
    assert status == 0
    assert "repeating round 3" in out
    assert "0.5 is chance" in out
    assert f"95%: {INTERVAL}; {BY_CHANCE}" in out.replace("\n", " ")
    document = json.loads((averaged / "leak.json").read_text())
    assert [(row["client"], row["field"], row["score"]) for row in document["findings"]] == [
        (client, field, score)
        for client in (1, 2)
        for field, scores in ((UNTRAINED, (AGREEMENT, LOSS)), ("weights", (AGREEMENT, LOSS, FALL)))
        for score in scores
    ]
    for row in document["findings"]:
        assert 0 <= row["low"] <= row["auc"] <= row["high"] <= 1
        if row["field"] == UNTRAINED:  # within its interval of chance, or close to it
            assert abs(row["auc"] - 0.5) < 5 * document["null_deviation"]


@pytest.mark.long
def test_correlation_matrices_of_few_images_give_them_away_and_noise_hides_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {
        "train__rounds": 2, "clients__count": 12, "model__projector__dim": 64, "method__sharing_passes": 4,
        "participation__fraction": 1.0, "data__limit": 480, "data__image_size": 16,
    }  # fmt: skip
    clients = [0, 1, 2, 3]
    bare = leak(finished(tmp_path / "bare", "fedsc", **few), clients=clients)
    noisy = leak(finished(tmp_path / "noisy", "fedsc", method__privacy={"epsilon": 1.0}, **few), clients=clients)
    assert bare.unaudited == []
    assert bare.guarantee is None
    assert noisy.guarantee is not None
    assert noisy.guarantee.epsilon == pytest.approx(1.0, rel=0.5)
    _, out, _ = command(capsys, "leak", tmp_path / "noisy")
    told = json.loads((tmp_path / "noisy" / "summary.json").read_text())["privacy"]
    said = f"epsilon {max(told['epsilon'].values()):.3g} at delta 0.01, of correlation matrices R_j alone; weights "
    said += "theta_j and the running statistics of BatchNorm are sent without noise"
    assert said in out.splitlines()
    document = json.loads((tmp_path / "noisy" / "leak.json").read_text())
    assert document["privacy"]["not_covered"] == told["not_covered"]
    deviation = bare.null_deviation / len(clients) ** 0.5  # of a mean over clients, by chance
    given = summary(bare.findings)["correlation", "in the correlation matrix"]["mean"]
    assert given > 0.5 + 2 * deviation
    hidden = summary(noisy.findings)["correlation", "in the correlation matrix"]["mean"]
    assert abs(hidden - 0.5) < 2 * deviation


def correlation_of(config: RunConfig, field: str) -> tuple[Correlation, EncoderClient[Any]]:
    """What a table's row says of a matrix, and client 0."""
    worker = Worker(config, load_federation(config))
    uploads = {
        name: upload for plugin in config.active_plugins for name, upload in METHODS[plugin.name].uploads.items()
    }
    upload = {**uploads, **worker.method.uploads}[field]
    assert isinstance(upload, Correlation)
    return upload, worker.client(worker.method.client, 0, 1, "audit", {})


@pytest.mark.parametrize("scale", [False, True])
def test_r_is_taken_back_to_the_mean_over_the_rows_it_was_factored_from(scale: bool) -> None:
    """A shard smaller than the batch: R'R is a sum over the shard's rows, not over ``train.batch_size``."""
    plugin = {"name": "fedfoa", "scale": scale, "normalize": "rows"}
    config = tiny("fedsimclr", {"data.limit": 240, "train.batch_size": 128, "plugins": [plugin]})
    upload, client = correlation_of(config, "fedfoa.correlation")
    count = len(client.indices)
    assert count < 128
    z = torch.randn(count, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = z / z.norm(dim=1, keepdim=True)
    sent = pack_triangle(canonical_r(z / count**0.5 if scale else z).numpy())
    torch.testing.assert_close(upload.matrix(client, sent).double(), z.T @ z / count, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(upload.summed(client, 3 * z[None]), z[None])
    assert upload.views(config) == 2
    once = tiny("fedsimclr", {"data.limit": 240, "plugins": [{**plugin, "correlation": "round"}]})
    assert correlation_of(once, "fedfoa.correlation")[0].views(once) == 0  # of clean images, one each


@pytest.mark.parametrize(("views", "looked_at"), [("first", 1), ("both", 2)])
def test_no_second_view_of_another_kind_is_looked_for_in_matrices_of_first_views(views: str, looked_at: int) -> None:
    plugin = {"name": "fedfoa", "views": views}
    config = tiny("fedsimclr", {"data.limit": 240, "augment.second_solarize_p": 0.2, "plugins": [plugin]})
    assert correlation_of(config, "fedfoa.correlation")[0].views(config) == looked_at


@pytest.mark.long
def test_centroids_are_looked_up_by_the_network_that_they_are_of(tmp_path: Path) -> None:
    """Orchestra clusters what the momentum target makes of images."""
    run = finished(tmp_path / "run", "orchestra", train__rounds=1, data__limit=480)
    config = load_moved(run, ())
    worker, recorded = replayed(config, run, 1, lambda federation: [0])
    audit = Audit(worker, 0, 1, draw_sets(worker.federation, 0, 1000, 0))
    reply = next(one.reply for one in recorded if "target" in one.reply)
    network = worker.network(audit.encoder).eval()
    scores = {}
    for name in ("target", "weights"):
        unpack(reply[name], *([network.encoder, network.projector] if name == "target" else [network]))
        with torch.no_grad():
            z = network.project(worker.clean(worker.images(worker.federation.dataset.train.pixels[audit.sets.members])))
        scores[name] = (F.normalize(z, dim=1) @ F.normalize(torch.tensor(reply["centroids"]), dim=1).T).amax(1)
    found = next(scored for field, _, scored in audit.scores(recorded) if field == "centroids")
    torch.testing.assert_close(found(audit.sets.members).float(), scores["target"], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(scores["weights"], scores["target"], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_an_averaged_target_is_audited_as_weights_are(tmp_path: Path) -> None:
    """By the target's own values; a target alone has no loss."""
    for method in ("fedbyol", "fedmoco"):
        run = finished(tmp_path / method, method, train__rounds=2, **{"objective.target": "averaged"})
        worker, recorded = replayed(load_moved(run, ()), run, 2, lambda federation: [0])
        audit = Audit(worker, 0, 2, draw_sets(worker.federation, 0, 1000, 0))
        scored = {(field, score): by for field, score, by in audit.scores(recorded)}
        assert [score for field, score in scored if field == "target"] == [AGREEMENT]
        network = worker.network(audit.encoder).eval()
        unpack(recorded[0].reply["target"], network.encoder, network.projector)
        pixels = worker.images(worker.federation.dataset.train.pixels[audit.sets.members])
        draws = generator(worker.config.seed, "leak", "views")
        with torch.no_grad():
            views = augment(pixels, worker.recipe, draws, VIEWS).chunk(VIEWS)
            expected = agreement(torch.stack([network.represent(view) for view in views]))
        found = {field: scored[field, AGREEMENT](audit.sets.members) for field in ("target", "weights")}
        torch.testing.assert_close(found["target"], expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(found["weights"], expected, rtol=1e-4, atol=1e-5)


def test_correlation_matrices_are_searched_for_projections_clipped_as_the_clients() -> None:
    changes = {**OWN["fedsc"], "objective.clip": 1e-3, "method.sharing_passes": 3}
    config = tiny("fedsc", changes)
    upload, client = correlation_of(config, "correlation")
    z = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    norms = upload.summed(client, z).double().square().sum(-1)
    torch.testing.assert_close(norms, torch.full_like(norms, 1e-3), rtol=1e-4, atol=0)
    assert upload.views(config) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "fields", "changes"),
    [
        ("fedca", {"weights", "dictionary"}, {}),
        ("flesd", {"representations"}, {}),
        ("fedmd", {"outputs"}, {}),
        ("orchestra", {"weights", "target", "centroids"}, {}),
        ("fedbyol", {"weights", "target"}, {"objective.target": "averaged"}),
        ("fedsimclr", {"weights", "fedfoa.correlation"}, {"plugins": [{"name": "fedfoa"}]}),
    ],
)
def test_every_kind_of_message_has_an_attack(
    method: str, fields: set[str], changes: dict[str, Any], tmp_path: Path
) -> None:
    found = leak(finished(tmp_path / "run", method, train__rounds=1, data__limit=480, **changes))
    assert {one.field for one in found.findings} == fields | {UNTRAINED}


@pytest.mark.long
def test_clients_with_tasks_of_their_own_begin_with_heads_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfed_ssl.leak.members.LEAST", 2)
    changes = {**OWN["fedlinked"], "data.limit": 700, "train.rounds": 1, "evaluation.protocols": []}
    run_locally(tiny("fedlinked", changes), tmp_path / "run")
    found = leak(tmp_path / "run")
    assert [one.field for one in found.findings] == [UNTRAINED, "representations"]
    assert found.unaudited == []


@pytest.mark.long
def test_too_few_images_of_a_task_are_said_by_the_key_that_decides_it(tmp_path: Path) -> None:
    """``evaluation.select`` is refused beside tasks, so it is no way out."""
    changes = {**OWN["fedlinked"], "data.limit": 700, "train.rounds": 1, "evaluation.protocols": []}
    run_locally(tiny("fedlinked", changes), tmp_path / "run")
    with pytest.raises(
        UserError,
        match=r"^data\.task_images: client \d has \d images to train on .* of each class .*, this one has most$",
    ) as error:
        leak(tmp_path / "run")
    assert "evaluation.select" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("flesd", {}),
        ("flesd", {"method__upload": "int8"}),
        ("fedmd", {"method__subset": 24, "clients__encoders": "small_cnn"}),
        ("fedmd", {"method__subset": 24, "clients__encoders": "small_cnn", "model__initial": "own"}),  # unknown to it
    ],
)
def test_outputs_for_public_images_are_read_as_the_server_reads_them(
    method: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """The surrogate fitted by hand: to unit rows, whatever scaled each as it was rounded, of the images asked."""
    run = finished(tmp_path / "run", method, train__rounds=2, data__limit=480, **changes)
    config = load_moved(run, ())
    worker, recorded = replayed(config, run, 2, lambda federation: [0])
    audit = Audit(worker, 0, 2, draw_sets(worker.federation, 0, 1000, 0))
    (reply,) = (one.reply for one in recorded)
    public = worker.federation.public
    assert public is not None
    if method == "flesd":
        sent, positions = reply["representations"].astype(np.float64), np.arange(len(public))
        if "method__upload" in changes:
            assert sent.max() == 127
            sent = sent / np.sqrt((sent**2).sum(1, keepdims=True))
    else:
        sent, positions = reply["outputs"].astype(np.float64), subset(config, 2, len(public))
        assert not np.array_equal(positions, np.arange(24))
    begun = worker.network(audit.encoder).eval()
    unpack(worker.initial(audit.encoder), begun)
    with torch.no_grad():
        x = begun.represent(worker.clean(worker.images(public.pixels[positions]))).double().numpy()
    ridge = np.sqrt(1e-3 * (x**2).sum(0).mean()) * np.eye(x.shape[1])
    w = np.linalg.lstsq(np.vstack([x, ridge]), np.vstack([sent, np.zeros((x.shape[1], sent.shape[1]))]), rcond=None)[0]
    scores = []
    for rows in (audit.sets.members, audit.sets.others):
        views = audit.features(worker.initial(audit.encoder), rows).double().numpy() @ w  # (10, n, K)
        views /= np.sqrt((views**2).sum(2, keepdims=True))
        cosines = np.einsum("vnd,wnd->vwn", views, views)
        scores.append(cosines[np.triu_indices(10, 1)].mean(0))
    wanted = roc_auc_score(np.repeat([1, 0], [len(part) for part in scores]), np.concatenate(scores))
    found = next(one.found for one in audit.findings(recorded) if one.field != UNTRAINED)
    assert found.auc == pytest.approx(wanted, abs=1e-3)


OURS = """
from rayfed_ssl.federated.uploads import Entries
from rayfed_ssl.methods.fedavg import Client, Config as Averaging, Server
from rayfed_ssl.federated.method import Info, Method, unlabelled
from typing import Literal
import torch


class Config(Averaging):
    name: Literal["tabled"] = "tabled"


class Tabled(Client):
    def train(self, **message):
        reply = super().train(**message)
        table = torch.cat(list(self.projections(self.pixels()))).cpu().numpy()
        return {**reply, "table": table, "unsaid": table, "table_of_none": None}


DECLARED = {"table": Entries(), "table_of_none": Entries()}
METHODS = {
    "tabled": Method(
        Config, Tabled, Server, Info("nobody's", "a table"), objective="simclr", accepts=unlabelled, uploads=DECLARED
    )
}
"""


@pytest.mark.long
def test_a_method_of_ones_own_says_what_its_uploads_are(tmp_path: Path) -> None:
    (tmp_path / "tabled.py").write_text(OURS)
    imports = {"imports": ["tabled.py"], "train.rounds": 1}
    run_locally(tiny("tabled", {**HELD_OUT, **imports}, beside=tmp_path), tmp_path / "run")
    found = leak(tmp_path / "run", trust_imports=True)
    assert [(one.field, one.score) for one in found.findings[5:]] == [("table", "nearest entry")]
    assert found.findings[5].found.auc > 0.9  # every member's own projection is in it
    assert found.unaudited == ["table_of_none", "unsaid"]


@pytest.mark.long
def test_only_rounds_that_are_finished_are_audited(averaged: Path, tmp_path: Path) -> None:
    """Of a run that was stopped, and of one that was killed: neither goes on for it."""
    config = tiny("fedsimclr", {**HELD_OUT, "train.rounds": 50, "checkpoint.every": 1})
    seen: list[int] = []
    run = tmp_path / "run"
    run_locally(config, run, report=lambda p: seen.append(p.round), stopping=lambda: max(seen, default=0) >= 2)
    said: list[str] = []
    for _ in range(2):
        leak(run, say=said.append)
        assert said[0] == "repeating round 2"
        with pytest.raises(
            UserError, match=r"^--round: found 3; allowed: 1 to 2, the rounds that the run has finished"
        ):
            leak(run, 3)
        (run / "summary.json").unlink(missing_ok=True)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"run: found no finished round, so no message to audit$"):
        leak(run)


def test_what_is_missing_is_said_in_one_line(averaged: Path, tmp_path: Path) -> None:
    for problem, arguments in (
        ("--round: found 9; allowed: 1 to 3", {"round": 9}),
        ("--client: found 7; this run has clients 0 to 3", {"clients": [7]}),
    ):
        with pytest.raises(UserError, match=problem):
            leak(averaged, **arguments)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must be a run folder"):
        leak(tmp_path)
    run_locally(tiny("fedsimclr", {"train.rounds": 1, "evaluation.protocols": []}), tmp_path / "none")
    with pytest.raises(UserError, match=r"^evaluation\.select: found null; .* \(not file\)$"):
        leak(tmp_path / "none")


@pytest.mark.long
def test_a_run_on_images_without_labels_is_audited(tmp_path: Path) -> None:
    write(tmp_path / "scans.parquet", patient=list(range(240)))
    plain = {
        "data.name": "parquet",
        "data.path": str(tmp_path / "scans.parquet"),
        "data.limit": None,
        "clients.count": 2,
    }
    changes = plain | {"data.test_limit": None, "evaluation.protocols": ["rank"], "evaluation.select": {"share": 0.4}}
    run = finished(tmp_path / "run", "fedsimclr", **changes)
    config = load_moved(run, ())
    federation = load_federation(config)
    assert federation.held_out is not None
    assert len(federation.held_out) == 96
    assert "96 training images held out for `rayfed-ssl leak` alone" in describe(config, federation)
    sets = draw_sets(federation, 1, 1000, 0)
    assert set(sets.members.tolist()) <= set(federation.shards[1]["train"].tolist())
    assert set(sets.others.tolist()) | set(sets.reference.tolist()) == set(federation.held_out.tolist())
    found = leak(run)
    assert {(one.field, one.members) for one in found.findings} == {(UNTRAINED, 64), ("weights", 64)}
