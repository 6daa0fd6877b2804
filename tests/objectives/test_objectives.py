"""One contract suite over the whole table of objectives, and what only some of them do."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from rayfed_ssl.base.seeding import forked, generator
from rayfed_ssl.federated.method import anything, projecting, unlabelled
from rayfed_ssl.leak.loss import taking_features
from rayfed_ssl.models import HeadConfig, ModelConfig, PatchEncoder
from rayfed_ssl.models import base as encoders
from rayfed_ssl.models.network import HEADS
from rayfed_ssl.objectives import (
    OBJECTIVES,
    Memory,
    Objective,
    ObjectiveConfig,
    Step,
    base,
    build,
)
from rayfed_ssl.objectives.base import Batch
from rayfed_ssl.objectives.rotation import rotations, turned
from tests import reference

close = torch.testing.assert_close
CLASSES, DIM, PROTOTYPES = 3, 5, 7
MODEL = ModelConfig(projector=HeadConfig(dim=DIM), prototypes=PROTOTYPES)
PIXELS = {"autoencoder", "rotation", "mae"}  # what they read beside features


class TinyNetwork(nn.Module):
    """The network contract in miniature, with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.projector, self.predictor = nn.Linear(8, DIM), nn.Linear(DIM, DIM)
        self.classifier, self.rotation, self.decoder = nn.Linear(8, CLASSES), nn.Linear(8, 4), nn.Linear(8, 48)
        self.prototypes = nn.Linear(DIM, PROTOTYPES, bias=False)

    @property
    def prototype_rows(self) -> Tensor:
        return self.prototypes.weight

    def represent(self, images: Tensor) -> Tensor:
        return self.encoder(images)

    def project_features(self, features: Tensor) -> Tensor:
        return self.projector(features)

    def project(self, images: Tensor) -> Tensor:
        return self.projector(self.encoder(images))

    def predict(self, projections: Tensor) -> Tensor:
        return self.predictor(projections)

    def through(self, head: str, inputs: Tensor) -> Tensor:
        outputs = getattr(self, head)(inputs)
        return outputs.unflatten(1, (3, 4, 4)) if head == "decoder" else outputs


class TinyPatchEncoder(PatchEncoder):
    """A token of each 2 x 2 patch by itself."""

    patch, dim = 2, 8

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 8), nn.ReLU())

    def tokens(self, images: Tensor, shown: Tensor | None = None) -> Tensor:
        rows = encoders.patches(images, 2)
        return self.layers(rows if shown is None else encoders.chosen(rows, shown))


class TinyPatchNetwork(TinyNetwork):
    """The network contract in miniature, of an encoder that can be shown some patches."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = self.patch_encoder = TinyPatchEncoder()
        self.patch_decoder = nn.Linear(8, 12)

    def through(self, head: str, *inputs: Tensor) -> Tensor:
        if head != "patch_decoder":
            return super().through(head, *inputs)
        tokens, order = inputs
        masked = order.shape[1] - tokens.shape[1]
        return self.patch_decoder(tokens.mean(1, keepdim=True)).expand(-1, masked, -1)


def tiny(seed: int = 0, *, patched: bool = False) -> Any:
    with forked(seed, "tiny network"):
        return TinyPatchNetwork() if patched else TinyNetwork()


def views(count: int, size: int = 6) -> tuple[Tensor, ...]:
    return tuple(torch.randn(count, size, 3, 4, 4, generator=generator(count, size, "views")).unbind())


def objective(name: str, **options: Any) -> Any:
    return build(TypeAdapter(ObjectiveConfig).validate_python({"name": name, **options}))


def memory(of: Any, round: int = 2) -> Memory | None:
    draws = generator("draws") if of.draws else None
    return Memory(round, of.remember(of.memory_dim(MODEL), generator("memory")), draws) if of.memory else None


def arguments(of: Any, size: int = 6) -> tuple[Any, Batch]:
    """network, batch"""
    labels = torch.arange(size) % CLASSES if of.labelled else None
    target = None if of.config.momentum_target is None else tiny(1)
    return tiny(patched=of.shows_patches), Batch(views(of.views, size), labels, target, memory(of))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_step_gives_a_loss_that_reaches_the_encoder(name: str) -> None:
    chosen = objective(name)
    network, batch = arguments(chosen)
    loss, projections, _ = chosen.step(network, batch)
    assert loss.shape == ()
    assert [z.shape for z in projections] == [(6, DIM)] * (chosen.views if "projector" in chosen.heads else 0)
    loss.backward(retain_graph=True)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.encoder.parameters())
    there = ("projector", "predictor", "prototypes", "classifier", "rotation", "decoder", "patch_decoder")
    used = {head for head in there
            if hasattr(network, head) and next(getattr(network, head).parameters()).grad is not None}  # fmt: skip
    assert used == chosen.heads
    if projections:  # a plug-in's term on the projections must reach the encoder, too
        network.zero_grad()
        sum(z.square().sum() for z in projections).backward()
        assert all(p.grad.abs().sum() > 0 for p in network.encoder[1].parameters())


@pytest.mark.parametrize("name", [n for n, of in OBJECTIVES.items() if not of.shows_patches])
def test_step_gives_the_encoders_features_of_its_views_and_of_nothing_else(name: str) -> None:
    """In eval mode, where an image's features do not depend on what goes through the network with it."""
    chosen = objective(name)
    network, batch = arguments(chosen)
    network.eval()
    shown = [batch.views[0].rot90(turns, (2, 3)) for turns in range(4)] if name == "rotation" else list(batch.views)
    features = chosen.step(network, batch).features
    assert [h.shape for h in features] == [(6, 8)] * len(shown)
    for h, view in zip(features, shown, strict=True):
        close(h, torch.cat([network.encoder(view[i : i + 1]) for i in range(6)]))
        assert h.requires_grad


@pytest.mark.parametrize("name", OBJECTIVES)
def test_step_is_deterministic_to_the_bit(name: str) -> None:
    chosen = objective(name)
    first, second = (chosen.step(*arguments(chosen)).loss for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_smallest_batch_trains(name: str) -> None:
    chosen = objective(name)
    loss = chosen.step(*arguments(chosen, size=chosen.minimum_batch)).loss
    loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_step_never_waits_for_the_device(name: str) -> None:
    """Fake tensors hold no values: a step that looked at one would raise."""
    chosen = objective(name)
    with FakeTensorMode():
        network, batch = arguments(chosen)
        with pytest.raises(DataDependentOutputException):
            batch.views[0].sum().item()
        chosen.step(network, batch).loss.backward()
        chosen.after_step(network, batch.target)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_autocast_loss_is_float32_and_close(name: str) -> None:
    chosen = objective(name)
    exact = chosen.step(*arguments(chosen)).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = chosen.step(*arguments(chosen)).loss
    assert loss.dtype == torch.float32
    close(loss, exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("name", [n for n in OBJECTIVES if n not in ("byol", "moco", "swav", "dino")])
def test_after_step_leaves_the_network_alone(name: str) -> None:
    network = tiny()
    before = copy.deepcopy(network.state_dict())
    objective(name).after_step(network)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_networks_have_the_heads_that_objectives_ask_for() -> None:
    assert all(objective.heads <= HEADS.keys() for objective in OBJECTIVES.values())


def test_what_objectives_need_is_asked_of_them() -> None:
    assert set(filter(anything, OBJECTIVES)) - set(filter(unlabelled, OBJECTIVES)) == {"supervised"}
    assert set(OBJECTIVES) - set(filter(projecting, OBJECTIVES)) == {"autoencoder", "mae", "rotation", "supervised"}
    rules = {name: objective.block().momentum_target for name, objective in OBJECTIVES.items()}
    assert {name: rule for name, rule in rules.items() if rule} == {"byol": "local", "moco": "reset", "dino": "local"}
    remembering = ["moco", "swav", "nnclr", "dino", "mae"]
    assert [name for name, objective in OBJECTIVES.items() if objective.memory] == remembering
    assert [name for name, objective in OBJECTIVES.items() if objective.draws] == ["mae"]
    assert [name for name, objective in OBJECTIVES.items() if objective.shows_patches] == ["mae"]
    assert {name: set(o.target_heads) for name, o in OBJECTIVES.items() if o.target_heads != {"projector"}} == {
        "dino": {"projector", "prototypes"}
    }


def test_an_added_objective_is_an_objective() -> None:
    class ShrinkConfig(base.ObjectiveConfig):
        name: Literal["shrink"] = "shrink"
        weight: float = 2.0

    class Shrink(Objective):
        config: ShrinkConfig
        block = ShrinkConfig
        heads = frozenset({"projector"})

        def step(self, network: Any, batch: Batch) -> Step:
            z = network.project(batch.views[0])
            return Step(self.config.weight * z.square().mean(), (z,))

    OBJECTIVES.add("shrink", Shrink, "this test")
    try:
        chosen = objective("shrink", weight=3)
        assert chosen.config == ShrinkConfig(weight=3)
        assert projecting("shrink")
        close(chosen.step(*arguments(chosen)).loss, 3 * tiny().project(views(2)[0]).square().mean())
    finally:
        OBJECTIVES.remove("this test")
    with pytest.raises(ValidationError, match="shrink"):
        objective("shrink")


def test_unknown_names_and_keys_are_refused() -> None:
    for wrong in ({"name": "simcrl"}, {"name": "byol", "temperature": 1}, {"name": "simclr", "temperature": 0}):
        with pytest.raises(ValidationError):
            objective(**wrong)


def test_simclr_forwards_both_views_together() -> None:
    network, (a, b) = tiny(), views(2)
    loss, (z_a, z_b), _ = objective("simclr", temperature=0.3).step(network, Batch((a, b)))
    close(loss.item(), reference.nt_xent(z_a.detach(), z_b.detach(), 0.3), rtol=1e-5, atol=0)
    assert network.encoder[2].num_batches_tracked == 1
    close(torch.cat([z_a, z_b]), tiny().project(torch.cat([a, b])))
    directed, _, _ = objective("simclr", temperature=0.3, directional=True).step(tiny(), Batch((a, b)))
    close(directed.item(), reference.info_nce(z_a.detach(), z_b.detach(), 0.3), rtol=1e-5, atol=0)


def test_byol_predicts_the_other_view_of_the_target() -> None:
    network, target, (a, b) = tiny(), tiny(1), views(2)
    loss, _, _ = objective("byol").step(network, Batch((a, b), target=target))
    other, twin = tiny(), tiny(1)
    with torch.no_grad():
        p_a, p_b = (other.predict(other.project(x)) for x in (a, b))
        t_a, t_b = (twin.project(x) for x in (a, b))
    close(loss.item(), reference.byol(p_a, p_b, t_a, t_b), rtol=1e-5, atol=0)
    loss.backward()
    assert all(p.grad is None for p in target.parameters())
    assert network.encoder[2].num_batches_tracked == 2  # one forward per view
    assert torch.equal(target.encoder[2].running_mean, twin.encoder[2].running_mean)  # moved by its own forwards


def test_byol_target_follows_after_each_step() -> None:
    network, target = tiny(), tiny(1)
    before = copy.deepcopy(target)
    objective("byol", decay=0.75).after_step(network, target)
    for name, value in target.named_parameters():
        close(value, 0.75 * before.get_parameter(name) + 0.25 * network.get_parameter(name), rtol=1e-6, atol=1e-7)
    for call in (
        lambda: objective("byol").step(network, Batch(views(2))),
        lambda: objective("byol").after_step(network),
    ):
        with pytest.raises(ValueError, match="target"):
            call()


def test_simsiam_is_byol_with_itself_as_target() -> None:
    both = views(2)
    simsiam, _, _ = objective("simsiam").step(tiny(), Batch(both))
    byol, _, _ = objective("byol").step(tiny(), Batch(both, target=tiny()))
    close(simsiam, byol / 4 - 1)  # -cos of each direction, halved


@pytest.mark.parametrize("count", [2, 4])
def test_spectral_clips_and_takes_any_number_of_views(count: int) -> None:
    network, images = tiny(), views(count)
    with torch.no_grad():
        network.projector.weight.mul_(20)
    loss, z, _ = objective("spectral", views=count, clip=2.0).step(network, Batch(images))
    stacked = torch.stack(z).detach()
    close(stacked.square().sum(dim=-1).max().item(), 2.0, rtol=1e-5, atol=0)
    close(loss.item(), reference.spectral(stacked), rtol=1e-4, atol=1e-4)
    assert network.encoder[2].num_batches_tracked == 1
    _, free, _ = objective("spectral", views=count, clip=None).step(network.eval(), Batch(images))
    close(torch.stack(free)[1], network.project(images[1]))


def test_supervised_is_cross_entropy() -> None:
    (view,), labels = views(1), torch.arange(6) % CLASSES
    loss, _, _ = objective("supervised").step(tiny(), Batch((view,), labels))
    probabilities = tiny().through("classifier", tiny().represent(view)).softmax(dim=1)
    close(loss.item(), -sum(math.log(p[y]) for p, y in zip(probabilities.tolist(), labels, strict=True)) / 6)
    with pytest.raises(ValueError, match="labels"):
        objective("supervised").step(tiny(), Batch((view,)))


def test_images_are_turned_one_by_one() -> None:
    images, turns = torch.arange(6 * 3 * 25.0).reshape(6, 3, 5, 5), torch.tensor([2, 0, 3, 1, 1, 0])
    expected = torch.stack([torch.rot90(x, int(k), dims=(-2, -1)) for x, k in zip(images, turns, strict=True)])
    assert torch.equal(turned(images, turns), expected)


def test_rotations() -> None:
    x = torch.arange(2 * 3 * 4 * 4.0).reshape(2, 3, 4, 4)
    images, turns = rotations(x)
    assert turns.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert torch.equal(images[:2], x)
    for quarter in range(4):
        assert torch.equal(
            rotations(images[2 * quarter : 2 * quarter + 2])[0][2:4], images.roll(-2, 0)[2 * quarter :][:2]
        )
    assert images[2, 0, 0, 0] == x[0, 0, 0, 3]  # counter-clockwise: the top right corner comes to the top left
    network = tiny()
    nn.init.zeros_(network.rotation.weight)
    nn.init.zeros_(network.rotation.bias)
    close(objective("rotation").step(network, Batch((x,))).loss.item(), 1.386294361, rtol=1e-6, atol=0)


def test_rotation_head_sees_every_image_in_every_rotation() -> None:
    (x,) = views(1)
    network = tiny().eval()
    by_hand = [
        F.cross_entropy(network.rotation(network.encoder(torch.rot90(x, k, (2, 3)))), torch.full((6,), k))
        for k in range(4)
    ]
    close(objective("rotation").step(network, Batch((x,))).loss, torch.stack(by_hand).mean())


def test_autoencoder_is_the_mean_squared_error() -> None:
    (view,) = views(1)
    network = tiny().eval()
    expected = (network.through("decoder", network.encoder(view)) - view).square().mean()
    close(objective("autoencoder").step(network, Batch((view,))).loss, expected)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_who_says_so_needs_features_alone(name: str) -> None:
    """A step over features that the encoder made beforehand is the step over their images."""
    of = objective(name)
    assert of.by_features == (name not in PIXELS)
    if name in PIXELS:
        return
    network, batch = arguments(of)
    network.eval()
    network.encoder.dim = 8
    target = None if batch.target is None else network
    whole = of.step(network, replace(batch, target=target)).loss
    seen = tuple(network.represent(view) for view in batch.views)
    with taking_features(network):
        close(of.step(network, replace(batch, views=seen, target=target, memory=memory(of))).loss, whole)
