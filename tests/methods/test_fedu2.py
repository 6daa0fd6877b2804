"""FedU2 and FUR in clients and server: the parts apart, a step by hand, and what each key changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

from rayfed_ssl.base.notes import as_notes, public_lines
from rayfed_ssl.base.weights import Weights
from rayfed_ssl.config import RunConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.federated.initial_weights import InitialWeights
from rayfed_ssl.federated.ledger import Ledger
from rayfed_ssl.federated.setup import Setup
from rayfed_ssl.methods import METHODS
from rayfed_ssl.objectives.fur import sphere_uniformity
from rayfed_ssl.settings.files import ConfigError
from rayfed_ssl.simulation.local import LocalCohort
from rayfed_ssl.simulation.worker import Worker
from tests.tiny import tiny

FAST: dict[str, Any] = {"data__limit": 120, "train__local_steps": 2}
OFF: dict[str, Any] = {"method__uniformity": 0, "method__rotation": 0}


def trained(config: RunConfig, round: int = 1) -> tuple[np.ndarray, dict[str, float]]:
    worker = Worker(config, load_federation(config))
    outcome, state = worker.execute("train", 0, round, {"weights": worker.initial("small_cnn_bn")}, None)
    assert not state
    return outcome.reply["weights"].vector, outcome.metrics


def served(config: RunConfig) -> tuple[Weights, Weights, list[np.ndarray], np.ndarray, dict[str, float]]:
    """A round: the global model before and after, the clients' vectors, their shares, and the server's metrics."""
    federation = load_federation(config)
    cohort, worker = LocalCohort(config, federation, Ledger()), Worker(config, federation)
    server = METHODS[config.method.name].server(Setup(config, federation, InitialWeights(config, federation)))
    server.start(cohort)
    old = server.weights
    cohort.begin_round(1, federation.clients)
    server.round(1, cohort)
    each = getattr(server, "epochs", lambda client: {})
    replies = [worker.execute("train", c, 1, {"weights": old, **each(c)}, None)[0] for c in federation.clients]
    vectors = [np.asarray(outcome.reply["weights"].vector, np.float64) for outcome in replies]
    return old, server.weights, vectors, np.array(federation.shares), server.metrics


def test_all_parts_off_is_fedavg_bit_for_bit() -> None:
    plain = served(tiny("fedavg", **FAST))[1]
    off = served(tiny("fedu2", method__eua=False, method__lr=None, **OFF, **FAST))[1]
    np.testing.assert_array_equal(off.vector, plain.vector)
    zero = trained(tiny("fur", method__weight=0, **FAST))[0]
    np.testing.assert_array_equal(zero, trained(tiny("fedavg", **FAST))[0])


def test_a_client_that_is_asked_again_in_a_round_draws_other_directions() -> None:
    """As under FedBuff, where it may start twice from one version of the model."""
    config = tiny("fedavg", plugins=[{"name": "fur"}], **FAST)
    worker = Worker(config, load_federation(config))
    drawn = []
    for visit in (0, 1, 0):
        half: Any = worker.client(METHODS["fedavg"].client, 0, 1, "train", {}, visit).plugins["fur"]
        drawn.append(torch.rand(8, generator=half.draws).tolist())
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize("uniformity", [0.5, 0])
def test_the_plug_in_beside_fedu2s_own_regulariser_draws_other_directions(uniformity: float) -> None:
    config = tiny("fedu2", plugins=[{"name": "fur"}], method__uniformity=uniformity, **FAST)
    client = Worker(config, load_federation(config)).client(METHODS["fedu2"].client, 0, 1, "train", {})
    half: Any = client.plugins["fur"]
    alike = torch.rand(8, generator=half.draws).equal(torch.rand(8, generator=client.generator("fur")))
    assert alike == (uniformity == 0)


@pytest.mark.parametrize(
    ("lr", "relative", "wanted"),
    [
        (0.3, None, 0.3),
        (0.3, False, 0.3),
        (None, False, 8.0),
        (None, None, None),
        (None, True, None),
    ],
)
def test_the_servers_step_is_the_min_norm_points(lr: float | None, relative: bool | None, wanted: float | None) -> None:
    """theta - 2 lr sum a_k u_k with a from scipy's minimiser, and statistics by images. Without a fixed rate lr is half
    the mean distance that clients moved.
    """
    config = tiny("fedu2", method__lr=lr, method__relative=relative, **FAST)
    old, new, vectors, shares, metrics = served(config)
    count = old.parameters
    d = np.stack([old.vector[:count] - v[:count] for v in vectors])
    lengths = np.linalg.norm(d, axis=1)
    u = d / lengths[:, None]
    n = len(u)
    found = minimize(
        lambda a: float((a @ u) @ (a @ u)), np.full(n, 1 / n), jac=lambda a: 2 * u @ (a @ u), method="SLSQP",
        bounds=[(0, 1)] * n, constraints={"type": "eq", "fun": lambda a: a.sum() - 1}, options={"ftol": 1e-14},
    )  # fmt: skip
    lr = 0.5 * float(shares @ lengths) if wanted is None else wanted
    np.testing.assert_allclose(new.vector[:count], old.vector[:count] - 2 * lr * (found.x @ u), atol=2e-5, rtol=1e-4)
    np.testing.assert_allclose(new.vector[count:], sum(q * v[count:] for q, v in zip(shares, vectors, strict=True)),
                               rtol=1e-5, atol=1e-6)  # fmt: skip
    direction = found.x @ u
    assert metrics["fedu2/agreement"] == pytest.approx(min(u @ direction) / np.linalg.norm(direction), rel=1e-3)
    assert metrics["fedu2/step"] == pytest.approx(2 * lr * np.linalg.norm(found.x @ u), rel=1e-3)
    # No client's distance grows to first order; the mean of the models is another point.
    step = old.vector[:count] - new.vector[:count]
    assert (u @ step >= (step @ step / (2 * lr) - 1e-5) * (1 - 1e-4)).all()
    mean = sum(q * v[:count] for q, v in zip(shares, vectors, strict=True))
    assert np.abs(new.vector[:count] - mean).max() > 1e-4


def test_sharpened_shares_count_in_statistics() -> None:
    old, new, vectors, shares, _ = served(tiny("fedu2", method__lr=0.3, method__temperature=0.5, **FAST))
    sharp = shares**2 / (shares**2).sum()
    found = new.vector[old.parameters :]
    wanted, plain = (sum(q * v[old.parameters :] for q, v in zip(w, vectors, strict=True)) for w in (sharp, shares))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert np.abs(found - plain).max() > 1e-4


def test_steps_are_equalised_by_epochs_unless_they_are_set() -> None:
    config = tiny("fedu2", train__local_epochs=2)
    federation = load_federation(config)
    server = METHODS["fedu2"].server(Setup(config, federation, InitialWeights(config, federation)))
    sizes, batch = federation.sizes, config.train.batch_size
    batches = [max(1, n // batch) for n in sizes]  # that are run in an epoch: a short last one is not
    wanted = [min(max(batches) * 2 // own, 10) for own in batches]
    assert any(n > batch and n % batch for n in sizes)
    assert [server.epochs(c)["epochs"] for c in federation.clients] == wanted  # type: ignore[attr-defined]
    assert len(set(wanted)) > 1
    client = int(np.argmin(sizes))
    worker = Worker(config, federation)
    message = {"weights": worker.initial("small_cnn_bn"), "epochs": wanted[client]}
    outcome, _ = worker.execute("train", client, 1, message, None)
    size = min(batch, sizes[client])
    assert outcome.metrics["images"] == wanted[client] * (sizes[client] // size) * size
    same, steps = tiny("fedu2", method__equalise=False), tiny("fedu2", train__local_steps=2)
    mean = tiny("fedu2", method__eua=False, method__lr=None)  # part 2, 21.1: "with plain averaging simply E"
    for other, field in ((same, {"epochs": 1}), (mean, {"epochs": 1}), (steps, {})):
        setup = Setup(other, federation, InitialWeights(other, federation))
        assert METHODS["fedu2"].server(setup).epochs(client) == field  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({"train__local_epochs": 12}, 10),
        ({"train__local_epochs": 10}, 10),
        ({"train__local_epochs": 12, "method__equalise": False}, 12),
        ({"train__local_epochs": 12, "method__eua": False, "method__lr": None}, 12),
        ({"train__local_steps": 30}, None),
    ],
)
def test_epochs_that_are_cut_are_said(changes: dict[str, object], epochs: int | None) -> None:
    config = tiny("fedu2", **changes)
    federation = load_federation(config)
    server = METHODS["fedu2"].server(Setup(config, federation, InitialWeights(config, federation)))
    largest = int(np.argmax(federation.sizes))
    assert server.epochs(largest).get("epochs") == epochs  # type: ignore[attr-defined]
    said = ["clients train 10 local epochs a round at most, of train.local_epochs=12"]
    cut = epochs is not None and epochs < config.train.local_epochs
    assert list(public_lines(as_notes(server.notes()))) == (said if cut else [])


def test_one_steps_loss_is_objective_plus_uniformity_plus_rotation() -> None:
    one: dict[str, Any] = {"train__local_steps": 1, "data__limit": 120}
    base = trained(tiny("fedu2", **OFF, **one))[1]["loss"]
    config = tiny("fedu2", method__uniformity=0.7, method__rotation=0.4, **one)
    found = trained(config)[1]["loss"]

    worker = Worker(config, load_federation(config))
    client = worker.method.client(worker, 0, 1, "train", {})
    client.load(worker.initial("small_cnn_bn"))
    network = client.network.train()
    rows = next(client.batches(len(client.indices)))
    views = client.views(client.pixels()[rows], client.generator("views"), 2)
    (third,) = client.views(client.pixels()[rows], client.generator("third view"), 1)
    with torch.no_grad():
        projections, draws = network.project(torch.cat(views)).chunk(2), client.generator("fur")
        uniform = sum(sphere_uniformity(z, 6, 6, draws).item() for z in projections)
        turns = torch.randint(4, (len(third),), generator=client.generator("turns"))
        images = torch.stack([torch.rot90(x, int(k), (1, 2)) for x, k in zip(third, turns, strict=True)])
        logits = network.projected_rotation(network.project(images))  # type: ignore[misc]
    assert found == pytest.approx(base + 0.7 * uniform + 0.4 * F.cross_entropy(logits, turns).item(), rel=1e-4)


def test_the_regulariser_alone_is_the_same_as_a_plug_in() -> None:
    """As method, as plug-in, and as FedU2 without rotation and EUA: one loss."""
    fedu2 = trained(tiny("fedu2", method__rotation=0, method__uniformity=0.5, **FAST))[0]
    as_method = trained(tiny("fur", method__weight=0.5, **FAST))[0]
    as_plugin = trained(tiny("fedavg", plugins=[{"name": "fur", "weight": 0.5}], **FAST))[0]
    np.testing.assert_array_equal(as_method, fedu2)
    np.testing.assert_array_equal(as_plugin, fedu2)
    assert np.abs(fedu2 - trained(tiny("fedavg", **FAST))[0]).max() > 1e-4


def test_the_head_is_there_where_it_is_used_and_changes_no_other_value() -> None:
    """4 (D + 1) values more travel; the encoder and the other heads begin as they do without."""
    configs = {name: tiny("fedu2", method__rotation=weight) for name, weight in (("with", 1), ("without", 0))}
    networks = {name: InitialWeights(c, load_federation(c)).network("small_cnn_bn") for name, c in configs.items()}
    named = {name: dict(network.named_parameters()) for name, network in networks.items()}
    added = set(named["with"]) - set(named["without"])
    assert sum(named["with"][name].numel() for name in added) == 4 * (configs["with"].projection_dim + 1)
    assert all(value.equal(named["with"][name]) for name, value in named["without"].items())
    with pytest.raises(RuntimeError, match="without a projected_rotation"):
        networks["without"].classify_projected_rotation(torch.zeros(2, 3, 16, 16))


@pytest.mark.parametrize("objective", ["byol", "simsiam"])
def test_other_objectives_train(objective: str) -> None:
    config = tiny("fedu2", objective={"name": objective}, **FAST)
    worker = Worker(config, load_federation(config))
    outcome, state = worker.execute("train", 0, 1, {"weights": worker.initial("small_cnn_bn")}, None)
    assert np.isfinite(outcome.metrics["loss"])
    assert set(state) == ({"target"} if objective == "byol" else set())


def test_bad_input_names_the_key() -> None:
    for key, value in {"lr": 0, "uniformity": -1, "temperature": 0, "tangent_spaces": 0}.items():
        with pytest.raises(ConfigError, match=rf"method\.{key}: found {value}"):
            tiny("fedu2", **{f"method__{key}": value})
    with pytest.raises(ConfigError, match=r"objective\.name: found 'rotation'; fedu2 allows simclr"):
        tiny("fedu2", objective={"name": "rotation"})
