"""Membership inference on the messages of tiny runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl import cli
from rayfed_ssl.base.linalg import canonical_r
from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.federation import deal
from rayfed_ssl.leak.auc import Told
from rayfed_ssl.leak.audit import LEAST, UNTRAINED, Audit, Finding, draw_sets, summary, suspicious
from rayfed_ssl.leak.replay import replayed
from rayfed_ssl.leak.run import leak
from rayfed_ssl.methods.fedfoa import pack_triangle
from rayfed_ssl.simulation.resuming import load_moved
from rayfed_ssl.storage import checkpoint
from tests.tiny import OWN, run_locally
from tests.tiny import tiny_run as tiny

HELD_OUT = {
    "data.limit": 240, "data.partition.name": "iid", "evaluation.select": {"share": 0.35}, "evaluation.protocols": [],
}  # fmt: skip


def finished(folder: Path, method: str, **changes: Any) -> Path:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    run_locally(tiny(method, {**OWN.get(method, {}), **HELD_OUT, **dotted}), folder)
    return folder


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("leak") / "run", "fedsimclr")


def test_a_round_repeated_makes_the_messages_that_the_run_averaged(averaged: Path) -> None:
    config = tiny("fedsimclr", HELD_OUT)
    before = {path.name: path.stat().st_mtime_ns for path in averaged.rglob("*")}
    tap, heard = replayed(config, averaged, 2, lambda federation: federation.clients)
    assert [(one.client, one.operation, one.round) for one in heard] == [(c, "train", 2) for c in range(4)]
    shares = tap.federation.shares
    mean = sum(shares[one.client] * one.reply["weights"].vector.astype(np.float64) for one in heard)
    tree, _ = checkpoint.load(dict(checkpoint.complete(averaged / "checkpoints"))[2])
    np.testing.assert_allclose(tree["server"]["weights"].vector, mean, atol=1e-6)
    assert before == {path.name: path.stat().st_mtime_ns for path in averaged.rglob("*")}  # the folder is as it was


def test_members_and_others_are_of_the_same_classes_and_disjoint(averaged: Path) -> None:
    tap, _ = replayed(tiny("fedsimclr", HELD_OUT), averaged, 1, lambda federation: [])
    sets = draw_sets(tap.federation, 1, 1000, 0)
    labels = tap.federation.dataset.train.labels
    np.testing.assert_array_equal(np.bincount(labels[sets.members]), np.bincount(labels[sets.others]))
    assert set(sets.members) <= set(tap.federation.shards[1]["train"])
    assert tap.federation.held_out is not None
    assert set(sets.others) | set(sets.reference) <= set(tap.federation.held_out)
    assert not set(sets.others) & set(sets.reference)
    assert len(draw_sets(tap.federation, 1, LEAST, 0).members) == LEAST


def test_natural_clients_are_told_apart_by_no_group(averaged: Path) -> None:
    """Each client's shard is mostly of one hospital, and so are the images held out that it is compared with."""
    tap, _ = replayed(tiny("fedsimclr", HELD_OUT), averaged, 1, lambda federation: [])
    federation, train = tap.federation, tap.federation.dataset.train
    groups = np.full(len(train), 2, np.int64)
    groups[federation.shards[1]["train"]] = 0
    assert federation.held_out is not None
    groups[federation.held_out[::2]] = 0
    groups[federation.shards[1]["train"][::7]] = 1
    groups[federation.held_out[1::4]] = 1
    grouped = replace(train, groups=groups, group_names=("a", "b", "c"))
    natural = replace(federation, dataset=replace(federation.dataset, train=grouped))
    sets = draw_sets(natural, 1, 1000, 0)
    kinds = [sorted(zip(train.labels[rows], groups[rows], strict=True)) for rows in (sets.members, sets.others)]
    assert kinds[0] == kinds[1]
    assert set(groups[sets.members]) == {0, 1}
    assert 2 not in groups[sets.reference]


def test_corruptions_of_a_client_are_no_membership(tmp_path: Path) -> None:
    skew = {"name": "feature_skew", "severity": 5, "corruptions": ["noise"]}
    run = finished(tmp_path / "run", "fedsimclr", data__partition=skew, train__rounds=1)
    found = leak(run, None, [0], 1000)
    area = next(one.found for one in found.findings if one.field == UNTRAINED)
    assert area.low <= 0.5 <= area.high
    assert not suspicious(found.findings)
    config = tiny("fedsimclr", {**HELD_OUT, "data.partition": skew, "train.rounds": 1})
    tap, _ = replayed(config, run, 1, lambda federation: [])
    audit = Audit(tap, 0, 1, draw_sets(tap.federation, 0, 1000, 0))
    train, plain = tap.federation.dataset.train, deal(tiny("fedsimclr", HELD_OUT)).dataset.train
    mine = tap.federation.shards[0]["train"][:5]
    np.testing.assert_array_equal(audit._as_the_clients(mine), train.pixels[mine])
    others = audit.sets.others[:5]
    np.testing.assert_array_equal(train.pixels[others], plain.pixels[others])  # as they are kept
    assert np.abs(audit._as_the_clients(others).astype(int) - plain.pixels[others]).mean() > 10


def test_chance_is_that_of_the_fewest_members_and_a_client_named_twice_counts_once(tmp_path: Path) -> None:
    few = {"clients.count": 2, "data.limit": 400, "train.rounds": 1, "evaluation.select": {"share": 0.4}}
    run_locally(tiny("fedsimclr", {**few, "data.partition.name": "dirichlet"}), tmp_path / "run")
    found = leak(tmp_path / "run", clients=[0, 1, 0])
    (client, first), (other, second) = [(f.client, f.members) for f in found.findings if f.field == UNTRAINED]
    assert (client, other) == (0, 1)
    assert first > second
    assert found.null_deviation == pytest.approx(((2 * second + 1) / (12 * second**2)) ** 0.5)


def test_what_knows_nothing_and_tells_members_apart_is_named() -> None:
    def one(field: str, low: float, high: float) -> Finding:
        return Finding(0, 1, field, "agreement of views", 50, Told((low + high) / 2, low, high, 0.1, 0.0))

    odd = one(UNTRAINED, 0.1, 0.3)
    assert suspicious([odd, one(UNTRAINED, 0.4, 0.6), one("weights", 0.6, 0.7)]) == [odd]


def test_the_command_writes_and_shows_what_was_found(averaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["leak", str(averaged), "--client", "1", "--client", "2"])
    assert exit.value.code == 0
    out = capsys.readouterr().out
    assert "repeating round 3" in out
    assert "0.5 is chance" in out
    document = json.loads((averaged / "leak.json").read_text())
    assert [(row["client"], row["field"]) for row in document["findings"]] == [
        (1, UNTRAINED), (1, "weights"), (2, UNTRAINED), (2, "weights"),
    ]  # fmt: skip
    for row in document["findings"]:
        assert 0 <= row["low"] <= row["auc"] <= row["high"] <= 1
        if row["field"] == UNTRAINED:  # within its interval of chance, or close to it
            assert abs(row["auc"] - 0.5) < 5 * document["null_deviation"]


def test_correlation_matrices_of_few_images_give_them_away_and_noise_hides_them(tmp_path: Path) -> None:
    few = {
        "train__rounds": 2, "clients__count": 12, "model__projector__dim": 64, "method__sharing_passes": 4,
        "participation__fraction": 1.0, "data__limit": 480,
    }  # fmt: skip
    clients = [0, 1, 2, 3]
    bare = leak(finished(tmp_path / "bare", "fedsc", **few), clients=clients)
    noisy = leak(finished(tmp_path / "noisy", "fedsc", method__privacy={"epsilon": 1.0}, **few), clients=clients)
    assert bare.unaudited == []
    assert (bare.epsilon, noisy.epsilon) == (None, pytest.approx(1.0, rel=0.5))
    deviation = bare.null_deviation / len(clients) ** 0.5  # of a mean over clients, by chance
    given = summary(bare.findings)["correlation", "in the correlation matrix"]["mean"]
    assert given > 0.5 + 2 * deviation
    hidden = summary(noisy.findings)["correlation", "in the correlation matrix"]["mean"]
    assert abs(hidden - 0.5) < 2 * deviation


def audited(run: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Audit, list[tuple[Any, Any]]]:
    """An audit of client 0, and what its attacks on matrices are given: the client's matrix, and the projections."""
    tap, _ = replayed(load_moved(run, ()), run, 1, lambda federation: [])
    audit, given = Audit(tap, 0, 1, draw_sets(tap.federation, 0, 1000, 0)), []
    monkeypatch.setattr(audit, "_in_matrix", lambda matrix, z: given.append((matrix, z)))
    return audit, given


def test_r_is_taken_back_to_the_mean_over_the_rows_it_was_factored_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard smaller than the batch: R'R is a sum over the shard's rows, not over ``train.batch_size``."""
    run = finished(tmp_path / "run", "fedfoa", train__rounds=1, train__batch_size=128, clients__encoders="small_cnn")
    audit, given = audited(run, monkeypatch)
    count = len(audit.tap.federation.shards[0]["train"])
    assert count < 128
    z = torch.randn(count, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    audit.factored(audit.tap.initial("small_cnn", client=0), pack_triangle(canonical_r(z).numpy()))
    torch.testing.assert_close(given[0][0].double(), z.T @ z / count, rtol=1e-5, atol=1e-6)


def test_correlation_matrices_are_searched_for_projections_clipped_as_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(tmp_path / "run", "fedsc", train__rounds=1, objective__clip=1e-3)
    audit, given = audited(run, monkeypatch)
    audit.spectral(audit.tap.initial(audit.encoder, client=0), np.zeros((8, 8)))
    norms = given[0][1](audit.sets.members).double().square().sum(-1)
    torch.testing.assert_close(norms, torch.full_like(norms, 1e-3), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("fedca", {"weights", "dictionary"}),
        ("flesd", {"representations"}),
        ("orchestra", {"weights", "centroids"}),
    ],
)
def test_every_kind_of_message_has_an_attack(method: str, fields: set[str], tmp_path: Path) -> None:
    found = leak(finished(tmp_path / "run", method, train__rounds=1, data__limit=480))
    assert {one.field for one in found.findings} == fields | {UNTRAINED}


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
    with pytest.raises(UserError, match=r"evaluation\.select: found none"):
        leak(tmp_path / "none")
