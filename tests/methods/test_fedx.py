"""FedX: each term by itself, its local loss, FedSimCLR without any of them, a teacher that learns nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.config import RunConfig
from rayfed_ssl.methods import fedx
from rayfed_ssl.objectives.relational import relational
from rayfed_ssl.objectives.simclr import nt_xent
from tests.methods.rounds import client, config_of, played, worker

close = torch.testing.assert_close
NONE = {"method__local_relation": 0, "method__global_contrast": 0, "method__global_relation": 0}


def config(**changes: object) -> RunConfig:
    return config_of("fedx", **{"clients__encoders": "small_cnn", **changes})


def local_loss(p: dict[str, torch.Tensor], target_temperature: float = 0.1) -> float:
    relation = relational(p["z_a"], p["z_b"], p["z_r"], 0.1, target_temperature)
    return (nt_xent(p["z_a"], p["z_b"], 0.1) + relation).item()


def global_loss(u_a: torch.Tensor, u_b: torch.Tensor, t_b: torch.Tensor, t_r: torch.Tensor) -> float:
    return (nt_xent(u_a, t_b, 0.1) + relational(u_a, u_b, t_r, 0.1, 0.1)).item()


def other(weights: Weights) -> Weights:
    """A model that sees other things in the same images."""
    noise = np.random.default_rng(0).normal(scale=0.2, size=weights.vector.shape)
    return weights.with_vector(weights.vector + noise.astype(np.float32))


def value_of(**changes: object) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of one batch, and what it is made of: z_a, z_b, z_r, u_a, u_b, t_b, t_r."""
    context = worker(config(**changes))
    member = client(context)
    assert isinstance(member, fedx.Client)
    weights = context.initial("small_cnn")
    member.load(weights)
    teacher = context.network("small_cnn", "teacher")
    unpack(other(weights), teacher)
    rows = torch.arange(6)
    views = member.views(member.pixels()[rows], member.generator("test"), 2)
    step = member.loss(teacher.eval())(views, rows)
    random, network = member.random_views()(6), member.network
    with torch.no_grad():
        z_a, z_b, z_r = (network.project(x) for x in (*views, random))
        parts = {"z_a": z_a, "z_b": z_b, "z_r": z_r, "u_a": network.predict(z_a), "u_b": network.predict(z_b)}
        parts |= {"t_b": teacher.project(views[1]), "t_r": teacher.project(random)}
    return float(step.loss.detach()), parts


def test_the_loss_is_local_plus_global() -> None:
    total, p = value_of()
    expected = local_loss(p) + global_loss(p["u_a"], p["u_b"], p["t_b"], p["t_r"])
    assert total == pytest.approx(expected, rel=1e-5)
    # Must not be: the model itself as its teacher, view 1 for view 2, projections for predictions.
    for u_a, u_b, t_b in (("u_a", "u_b", "z_b"), ("u_b", "u_a", "t_b"), ("z_a", "z_b", "t_b")):
        assert total != pytest.approx(local_loss(p) + global_loss(p[u_a], p[u_b], p[t_b], p["t_r"]), rel=1e-5)


def test_the_global_relation_is_to_the_teachers_random_images() -> None:
    total, p = value_of(**{**NONE, "method__global_relation": 1, "objective__temperature": 0.01})
    alone = nt_xent(p["z_a"], p["z_b"], 0.01)
    by_teacher, by_itself = (relational(p["u_a"], p["u_b"], p[random], 0.01, 0.1) for random in ("t_r", "z_r"))
    assert total == pytest.approx((alone + by_teacher).item(), rel=1e-5)
    assert total != pytest.approx((alone + by_itself).item(), rel=1e-4)


def test_without_global_terms_it_is_the_local_loss() -> None:
    total, p = value_of(method__global_contrast=0, method__global_relation=0, method__target_temperature=0.3)
    assert total == pytest.approx(local_loss(p, 0.3), rel=1e-5)
    total, p = value_of(**NONE)
    assert total == pytest.approx(nt_xent(p["z_a"], p["z_b"], 0.1).item(), rel=1e-5)


@pytest.mark.parametrize("term", ["local_relation", "global_contrast", "global_relation"])
def test_each_weight_scales_its_term(term: str) -> None:
    sharp = {**NONE, "objective__temperature": 0.01}
    none, once, thrice = (value_of(**{**sharp, f"method__{term}": weight})[0] for weight in (0, 1, 3))
    once, thrice = once - none, thrice - none
    assert abs(once) > 1e-3
    assert thrice == pytest.approx(3 * once, rel=1e-4)


def test_without_any_term_of_its_own_it_is_fedsimclr_bit_for_bit() -> None:
    changes = {"clients__encoders": "small_cnn_bn"}
    fedsimclr, _ = played(config_of("fedsimclr", **changes))
    none, _ = played(config(**changes, **NONE))
    some, _ = played(config(**changes))
    one = fedsimclr.weights
    shared = none.weights.vector[: one.parameters]  # the predictor's come after
    np.testing.assert_array_equal(shared, one.vector[: one.parameters])
    assert np.abs(some.weights.vector[: one.parameters] - one.vector[: one.parameters]).max() > 1e-3


def test_the_teacher_is_what_was_downloaded_and_gets_no_gradient() -> None:
    context = worker(config(clients__encoders="small_cnn_bn"))
    weights = other(context.initial("small_cnn_bn"))
    context.execute("train", 1, 1, {"weights": weights}, None)
    teacher = context.network("small_cnn_bn", "teacher")
    assert not teacher.training
    np.testing.assert_array_equal(pack(teacher).vector, weights.vector)  # running statistics, too
    start = 0
    for parameter in teacher.parameters():
        expected = weights.vector[start : start + parameter.numel()]
        np.testing.assert_array_equal(parameter.detach().numpy().ravel(), expected)
        assert not parameter.requires_grad
        start += parameter.numel()


def test_random_images_are_another_draw_each_step() -> None:
    member = client(worker(config()))
    assert isinstance(member, fedx.Client)
    another = member.random_views()
    assert not torch.equal(another(6), another(6))
    close(member.random_views()(6), member.random_views()(6))  # of one address
