"""FedCA: the printed numbers, the dictionary's properties, the ablations, and the bytes of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.base.weights import Weights, unpack
from rayfed_ssl.config import RunConfig, build
from rayfed_ssl.data.augment import clean
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.messages import SERVER, OperationResult, State
from rayfed_ssl.methods import fedca
from rayfed_ssl.methods.fedca import alignment_loss, draw_rows, ensemble, unit_rows
from rayfed_ssl.simulation import loop
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from tests import reference
from tests.dotted import dotted
from tests.methods.rounds import started

K = 20
FOUR: dict[str, Any] = {"clients__count": 4, "data__partition": {"name": "iid"}}
BASE: dict[str, Any] = {
    "data": {
        "name": "digits", "image_size": 8, "limit": 100, "test_limit": 40,
        "partition": {"name": "class_blocks", "classes": 3}, "public": {"source": "share", "share": 0.2},
    },
    "clients": {"count": 3, "encoders": "small_cnn_bn"},
    "model": {"width": 0.25, "projector": {"hidden": [], "dim": 4}},
    "augment": {"preset": "digits"},
    "objective": {"name": "simclr", "directional": True},
    "train": {"rounds": 2, "batch_size": 8, "optimizer": {"lr": 0.01}},
    "evaluation": {"protocols": ["knn"], "every": 0, "fewshot": {"draws": 1}},
}  # fmt: skip


def config_of(name: str = "fedca", /, **changes: Any) -> RunConfig:
    own = {"dictionary_size": K, "alignment_epochs": 1, "alignment_batch": 8} if name == "fedca" else {}
    return build({**BASE, "method": {"name": name, **own}}, dotted(**changes), origin="test")


def run(config: RunConfig, folder: Path) -> dict[str, Any]:
    return loop.run(config, folder, LocalCohort)


def perturbed(weights: Weights) -> Weights:
    noise = numpy_generator(0, "noise").standard_normal(weights.vector.size).astype(np.float32)
    noise[weights.parameters :] = 0  # running variances stay positive
    return weights.with_vector(weights.vector + 0.05 * noise)


def context_of(config: RunConfig) -> Worker:
    """A context that was sent the public images and an alignment model unlike the initial one."""
    context = Worker(config, load_federation(config))
    context.published["alignment_model"] = perturbed(context.initial(config.clients.encoder(0)))
    public = context.federation.public
    context.published["public_images"] = None if public is None else public.pixels
    return context


def train(context: Worker, t: int, state: State | None = None, dictionary: Any = None) -> tuple[OperationResult, State]:
    message = {"weights": context.initial(context.config.clients.encoder(0)), "dictionary": dictionary}
    return context.execute("train", 0, t, message, state)


def play(server: Any, cohort: LocalCohort, t: int, clients: tuple[int, ...] = (0, 1, 2)) -> None:
    cohort.begin_round(t, clients)
    server.round(t, cohort)
    cohort.end_round()


# -- temporal ensembling -----------------------------------------------------------------------------------------------


def test_ensemble_of_three_rounds_is_the_printed_one() -> None:
    z, entries = None, []
    for new in ((1, 0), (0, 1), (3, 4)):
        z = ensemble(z, np.array([new], np.float32), 0.5)
        entries.append((z[0].tolist(), unit_rows(z)[0]))
    assert [raw for raw, _ in entries] == [[0.5, 0], [0.25, 0.5], [1.625, 2.25]]
    for (_, unit), wanted in zip(entries, ((1, 0), (0.447214, 0.894427), (0.585491, 0.810679)), strict=True):
        np.testing.assert_allclose(unit, wanted, atol=1e-6)


def test_bias_correction_cancels_and_normalising_first_does_not() -> None:
    z = [np.array([row], np.float32) for row in ((1.0, 0.0), (0.0, 1.0), (3.0, 4.0))]
    raw: np.ndarray | None = None
    early: np.ndarray | None = None
    for t, new in enumerate(z, start=1):
        raw, early = ensemble(raw, new, 0.5), ensemble(early, unit_rows(new), 0.5)
        np.testing.assert_allclose(unit_rows(raw / (1 - 0.5**t)), unit_rows(raw), atol=1e-6)
    assert raw is not None
    assert early is not None
    assert np.abs(unit_rows(raw) - unit_rows(early)).max() > 0.01


def test_no_ensembling_forgets() -> None:
    old, new = np.ones((2, 3), np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(ensemble(old, new, 0.0), new)


# -- the local loss ----------------------------------------------------------------------------------------------------


def test_alignment_is_the_sum_over_dimensions_and_the_mean_over_images() -> None:
    draws = numpy_generator(0, "alignment")
    h, h_al, z, z_al = (draws.standard_normal((4, width)) for width in (6, 6, 3, 3))
    by_image = [
        sum((h[i, d] - h_al[i, d]) ** 2 for d in range(6)) + sum((z[i, d] - z_al[i, d]) ** 2 for d in range(3))
        for i in range(4)
    ]
    loss = alignment_loss(*(torch.tensor(x) for x in (h, z, h_al, z_al)))
    assert float(loss) == pytest.approx(sum(by_image) / 4, rel=1e-12)
    assert float(loss) != pytest.approx(sum(by_image), rel=0.1)  # eq. 11-12 as printed, over this subset


@pytest.mark.parametrize("encoder", ["small_cnn", "small_cnn_bn"])
def test_alignment_is_zero_only_at_the_alignment_model_which_gets_no_gradient(encoder: str) -> None:
    config = config_of(clients__encoders=encoder)
    context = context_of(config)
    initial = context.initial(encoder)
    client = fedca.Client(context, 0, 1, "train", {})
    client.load(initial)
    client.network.train()
    away = client.alignment()()
    assert float(away.detach()) > 0.01
    away.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in client.network.encoder.parameters())
    assert all(p.grad is None and not p.requires_grad for p in context.network(encoder, "alignment").parameters())
    assert np.array_equal(client.weights.vector, initial.vector)  # BatchNorm's statistics, too
    assert client.network.training
    context.published["alignment_model"] = initial
    assert float(client.alignment()().detach()) == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("entries", [0, 7])
@pytest.mark.parametrize("aligned", [True, False])
def test_a_step_minimises_contrast_plus_beta_alignment(entries: int, aligned: bool) -> None:
    weight = {"method__beta": 0.05} if aligned else {}
    config = config_of(train__local_steps=1, method__alignment=aligned, **weight)
    context = context_of(config)
    bank = numpy_generator(0, "bank").standard_normal((entries, 4)).astype(np.float32) if entries else None
    result, _ = train(context, 2, dictionary=bank)

    worker = fedca.Client(context, 0, 2, "train", {})
    network = InitialWeights(config, context.federation).network("small_cnn_bn").train()
    rows = next(worker.batches(len(worker.indices)))
    views = worker.views(worker.pixels()[rows], worker.generator("views"), 2)
    with torch.no_grad():
        z_a, z_b = network.project(torch.cat(views)).double().numpy().reshape(2, 8, 4)
        wanted = reference.info_nce(z_a, z_b, 0.1, () if bank is None else bank)
        network.eval()  # with the running statistics that the views have just moved
        if aligned:
            frozen = InitialWeights(config, context.federation).network("small_cnn_bn")
            unpack(context.published["alignment_model"], frozen)
            frozen.eval()
            chosen = torch.randperm(20, generator=worker.generator("public"))[:8].numpy()
            images = context.clean(context.images(context.federation.public.pixels, chosen))  # type: ignore[union-attr]
            pairs = [(network.represent(images), frozen.represent(images))]
            pairs += [(network.project(images), frozen.project(images))]
            wanted += 0.05 * sum(float((a[i] - b[i]) @ (a[i] - b[i])) for a, b in pairs for i in range(8)) / 8
    assert result.metrics["loss"] == pytest.approx(wanted, rel=1e-5)


# -- what goes up ------------------------------------------------------------------------------------------------------


def projected(context: Worker, weights: Weights) -> Tensor:
    """Raw projections (n_u, D) of client 0's clean images in eval mode, in one batch."""
    network = InitialWeights(context.config, context.federation).network("small_cnn_bn").eval()
    unpack(weights, network)
    pixels = context.federation.dataset.train.pixels[context.federation.shards[0]["train"]]
    with torch.no_grad():
        return network.project(clean(torch.tensor(pixels).permute(0, 3, 1, 2), context.recipe))


def test_entries_are_ensembles_of_the_trained_models_raw_projections_and_survive_rounds() -> None:
    context = context_of(config_of())
    first, state = train(context, 1)
    z1 = projected(context, first.reply["weights"]).numpy()
    assert first.reply["dictionary"].shape == (len(context.federation.shards[0]["train"]), 4)
    np.testing.assert_allclose(first.reply["dictionary"], z1 / np.linalg.norm(z1, axis=1)[:, None], atol=1e-5)
    downloaded = projected(context, context.initial("small_cnn_bn")).numpy()  # "the global model" of the paper's text
    assert np.abs(first.reply["dictionary"] - unit_rows(downloaded)).max() > 0.01

    second, state = train(context, 2, state)
    z2 = projected(context, second.reply["weights"]).numpy()
    z = 0.5 * (0.5 * z1) + 0.5 * z2
    np.testing.assert_allclose(state["ensemble"], z, atol=1e-5)
    np.testing.assert_allclose(second.reply["dictionary"], z / np.linalg.norm(z, axis=1)[:, None], atol=1e-5)
    assert np.abs(second.reply["dictionary"] - unit_rows(z2)).max() > 1e-3


def test_without_ensembling_or_dictionary_a_client_keeps_nothing() -> None:
    assert train(context_of(config_of(method__ensembling=0)), 1)[1] == {}
    result, state = train(context_of(config_of(method__dictionary_size=0)), 1)
    assert state == {}
    assert set(result.reply) == {"weights"}


# -- what comes down ---------------------------------------------------------------------------------------------------


def test_rows_are_drawn_uniformly_without_replacement_and_none_of_the_own() -> None:
    counts = np.zeros(12)
    for t in range(2000):
        rows = draw_rows(12, 4, numpy_generator(0, t), own=(3, 6))
        assert len(set(rows.tolist())) == 4
        counts[rows] += 1
    assert counts[3:6].sum() == 0
    others = np.delete(counts, [3, 4, 5])
    assert np.abs(others - 2000 * 4 / 9).max() < 4 * np.sqrt(2000 * 4 / 9 * 5 / 9)  # four standard deviations
    assert sorted(draw_rows(12, 9, numpy_generator(0), own=(3, 6)).tolist()) == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    assert len(draw_rows(12, 50, numpy_generator(0), own=(3, 6))) == 9  # clients were dropped


@pytest.fixture
def uploads() -> dict[int, np.ndarray]:
    """Entries that name their owner and row; client 1 has none yet."""
    return {c: np.array([[c, row] for row in range(n)], np.float32) for c, n in ((0, 30), (2, 10), (3, 40))}


@pytest.mark.parametrize("own", [True, False])
def test_the_servers_draw(own: bool, uploads: dict[int, np.ndarray]) -> None:
    server, _ = started(config_of(method__exclude_own=not own, method__dictionary_size=45, **FOUR))
    assert server.dictionary(1)(0) is None
    server.state["dictionaries"] = uploads
    draws = {client: server.dictionary(2)(client) for client in (3, 0, 1, 2)}
    every = {tuple(row) for entries in uploads.values() for row in entries.tolist()}
    for client, entries in draws.items():
        assert entries is not None
        rows = {tuple(row) for row in entries.tolist()}
        assert entries.shape == (min(45, 80 if own else 80 - len(uploads.get(client, ()))), 2)
        assert len(rows) == len(entries)
        assert rows <= every
        assert any(row[0] == client for row in rows) == (own and client != 1)
    again, later = server.dictionary(2)(0), server.dictionary(3)(0)
    np.testing.assert_array_equal(again, draws[0])
    assert not np.array_equal(later, draws[0])
    common = server.dictionary(2)
    assert (common(0) is common(3)) == own  # one array for all, or one each


def test_absent_clients_are_represented_by_their_last_upload() -> None:
    server, cohort = started(config_of())
    play(server, cohort, 1)
    before = {client: entries.copy() for client, entries in server.state["dictionaries"].items()}
    play(server, cohort, 2, clients=(0, 2))
    after = server.state["dictionaries"]
    np.testing.assert_array_equal(after[1], before[1])
    assert not np.array_equal(after[0], before[0])
    assert {c: len(entries) for c, entries in after.items()} == dict(enumerate(cohort.federation.sizes))


def test_the_alignment_model_is_trained_once_on_the_public_images() -> None:
    server, cohort = started(config_of())
    public = cohort.federation.public
    assert public is not None
    np.testing.assert_array_equal(cohort.published["public_images"], public.pixels)
    model = cohort.published["alignment_model"]
    assert not np.array_equal(model.vector, server.weights.vector)
    longer = started(config_of(method__alignment_epochs=2))[1].published["alignment_model"]
    assert not np.array_equal(model.vector, longer.vector)
    alone = started(config_of(data__partition={"name": "iid"}))[1].published["alignment_model"]
    np.testing.assert_array_equal(model.vector, alone.vector)  # the clients' shards play no part
    play(server, cohort, 1)
    assert cohort.published["alignment_model"] is model


def test_the_alignment_model_learns_at_the_full_rate_whatever_the_schedule() -> None:
    found = {}
    for schedule in ("constant", "cosine"):
        _, cohort = started(config_of(train__optimizer={"lr": 0.01, "schedule": schedule}))
        found[schedule] = cohort.published["alignment_model"].vector
        assert cohort.metrics[SERVER]["lr"] == 0.01
    np.testing.assert_array_equal(found["constant"], found["cosine"])


# -- whole runs --------------------------------------------------------------------------------------------------------


def trained(config: RunConfig, rounds: int = 3) -> bytes:
    server, cohort = started(config)
    for t in range(1, rounds + 1):
        play(server, cohort, t)
    return bytes(server.weights.vector.tobytes())


@pytest.mark.long
def test_each_module_can_be_switched_off_alone() -> None:
    variants: dict[str, dict[str, Any]] = {
        "whole": {},
        "own": {"exclude_own": False},
        "no_dictionary": {"dictionary_size": 0},
        "no_ensembling": {"ensembling": 0},
        "no_alignment": {"alignment": False},
        "nothing": {"dictionary_size": 0, "ensembling": 0, "alignment": False},
    }
    found = {
        name: trained(config_of(**{f"method__{key}": value for key, value in changes.items()}))
        for name, changes in variants.items()
    }
    assert len(set(found.values())) == len(variants)
    assert found["nothing"] == trained(config_of("fedsimclr"))
    assert found["nothing"] != trained(config_of("fedsimclr", objective__directional=False))


def test_two_rounds_book_what_a_deployment_would_send(tmp_path: Path) -> None:
    config = config_of()
    summary = run(config, tmp_path / "run")
    assert 0 <= summary["accuracy"]["knn"] <= 1
    federation = load_federation(config)
    weights = InitialWeights(config, federation)("small_cnn_bn").wire_bytes()
    rows = pq.read_table(tmp_path / "run" / "communication.parquet").to_pylist()
    found = {(r["round"], r["client"], r["direction"], r["operation"], r["field"]): r["bytes"] for r in rows}
    wanted = {}
    for client in range(3):
        wanted[0, client, "down", "publish", "public_images"] = 20 * 8 * 8 * 3
        for suffix, size in weights.items():
            wanted[0, client, "down", "publish", f"alignment_model{suffix}"] = size
            for t in (1, 2):
                for direction in ("down", "up"):
                    wanted[t, client, direction, "train", f"weights{suffix}"] = size
        wanted[2, client, "down", "train", "dictionary"] = K * 4 * 4
        for t in (1, 2):
            wanted[t, client, "up", "train", "dictionary"] = int(federation.sizes[client]) * 4 * 4
    assert found == wanted
    assert len(rows) == len(wanted)
    start = {r["tag"] for r in pq.read_table(tmp_path / "run" / "metrics.parquet").to_pylist() if r["round"] == 0}
    assert "server/loss" in start  # of the alignment model


# -- refused -----------------------------------------------------------------------------------------------------------


def test_a_dictionary_larger_than_the_union_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"method.dictionary_size: found 1000, .* allowed: 0 \(no dictionary\) to \d+$"):
        run(config_of(method__dictionary_size=1000), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("exclude", [True, False])
@pytest.mark.parametrize("fraction", [1.0, 0.7])
def test_the_largest_dictionary(exclude: bool, fraction: float) -> None:
    """Whatever a round asks: the server keeps what each client uploaded last. The largest client draws from fewest."""
    federation = load_federation(config_of())
    sizes = sorted(federation.sizes.tolist())
    largest = sum(sizes[:-1] if exclude else sizes)
    for size, fits in ((largest, True), (largest + 1, False)):
        config = config_of(method__dictionary_size=size, method__exclude_own=exclude, participation__fraction=fraction)
        if fits:
            fedca.check_federation(config, federation)
        else:
            with pytest.raises(UserError, match=f"to {largest}$"):
                fedca.check_federation(config, federation)


@pytest.mark.long
def test_the_default_dictionary_is_as_large_as_the_shards_allow() -> None:
    """Small shards: the largest number that may be given; larger ones: 1024. The same bits, bytes and room as given."""
    iid = {
        "data__partition": {"name": "iid"},
        "data__public__share": 0.05,
        "clients__count": 6,
        "train__local_steps": 1,
    }
    large: dict[str, Any] = {"data__limit": None, **iid}
    cases: list[tuple[dict[str, Any], int | None]] = [({}, None), (large, 1024)]
    for changes, entries in cases:
        default = config_of(**{"method__dictionary_size": None, **changes})
        sizes = sorted(load_federation(default).sizes.tolist())
        size = min(1024, sum(sizes[:-1])) if entries is None else entries
        assert (size == 1024) == (entries is not None)
        given = default.model_copy(update={"method": default.method.model_copy(update={"dictionary_size": size})})
        servers = [started(config)[0] for config in (default, given)]
        met = set(range(len(sizes)))
        assert servers[0].traffic(2, 0, met) == servers[1].traffic(2, 0, met)
        assert fedca.footprint(default, 30) == fedca.footprint(given, 30) != fedca.footprint(config_of(**NONE), 30)
        assert servers[1].notes() == []
        said = f"method.dictionary_size: {size} entries, not 1024: all clients but the largest have no more images"
        assert servers[0].notes() == ([said] if entries is None else [])
        ran = [played(config, tuple(met)) for config in (default, given)]
        assert ran[0] == ran[1]


NONE = {"method__dictionary_size": 0}


def played(config: RunConfig, clients: tuple[int, ...]) -> tuple[bytes, int]:
    """The weights after two rounds, and the rows that client 0 got in the second."""
    server, cohort = started(config)
    play(server, cohort, 1, clients)
    rows = len(server.dictionary(2)(0))
    play(server, cohort, 2, clients)
    return bytes(server.weights.vector.tobytes()), rows


def test_a_default_dictionary_without_anybody_to_draw_from_is_refused() -> None:
    alone = config_of(method__dictionary_size=None, clients__count=1, data__partition={"name": "iid"})
    with pytest.raises(UserError, match=r"dictionary_size: found null, .* have 0 entries, .* 0 \(no dictionary\)$"):
        fedca.check_federation(alone, load_federation(alone))


def test_with_one_client_a_round_the_dictionary_grows_with_the_clients_that_have_been_asked() -> None:
    """A client gets what others uploaded in earlier rounds, up to K; as many rows are predicted as are sent."""
    config = config_of(method__dictionary_size=None, participation__fraction=0.3)  # one of three a round
    server, cohort = started(config)
    sizes, met, before = cohort.federation.sizes, set[int](), server.setup.weight_bytes(config.clients.encoder(0))
    for t, client, others in ((1, 0, []), (2, 0, []), (3, 1, [0]), (4, 2, [0, 1]), (5, 0, [1, 2])):
        rows = min(sum(sizes[others]), sum(sizes) - max(sizes))
        given = server.dictionary(t)(client)
        assert (0 if given is None else len(given)) == rows
        traffic = server.traffic(t, client, met)
        assert traffic is not None
        assert traffic.down == before + 4 * config.projection_dim * rows
        play(server, cohort, t, clients=(client,))
        met.add(client)


def test_public_images_are_needed_for_the_alignment_only() -> None:
    none: dict[str, Any] = {"data__public": {"source": "none"}}
    with pytest.raises(UserError, match=r"data.public.source: fedca needs public images"):
        config_of(**none)
    assert config_of(method__alignment=False, **none).data.public.source == "none"
    one = config_of(data__public__share=0.01)
    federation = load_federation(one)
    with pytest.raises(UserError, match=r"data.public: found 1 public images"):
        fedca.check_federation(one, federation)


@pytest.mark.parametrize(("key", "value"), [("dictionary_size", -1), ("ensembling", 1.0), ("beta", -0.1)])
def test_values_out_of_range_are_refused(key: str, value: float) -> None:
    with pytest.raises(UserError, match=f"method.{key}"):
        config_of(**{f"method__{key}": value})
