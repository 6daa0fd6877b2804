"""Masked autoencoding against a loop-level reference and numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import forked, generator
from rayfed_ssl.models import ModelConfig, Network, build_network
from rayfed_ssl.models.base import chosen, patches
from rayfed_ssl.models.vit import PatchDecoder
from rayfed_ssl.objectives.base import Batch, Memory
from rayfed_ssl.objectives.mae import MAE, MAEConfig, masked_error, random_orders, shown_count, standardised
from rayfed_ssl.testing.tiny import run_locally, tiny_run
from tests import reference
from tests.tiny import OWN

close = torch.testing.assert_close
MODEL = ModelConfig.model_validate({"width": 0.1, "patch_decoder": {"dim": 8, "layers": 1, "heads": 2}})
PATCH = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])


def network() -> Network:
    with forked("tests", "mae"):
        return build_network("vit_tiny", MODEL, 16, heads={"patch_decoder"})


def memory(number: int = 0) -> Memory:
    return Memory(1, {}, generator(number, "draws"))


def view() -> Tensor:
    return torch.randn(3, 3, 16, 16, generator=generator("view"))


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_one_patch_by_hand() -> None:
    """(1, 2, 3, 4): squares about the mean add up to 5, the unbiased variance is 5/3."""
    loss = masked_error(torch.zeros(1, 1, 4), PATCH.double())
    assert loss.item() == pytest.approx(0.74999955, abs=1e-8)
    assert loss.item() != pytest.approx(0.9999992, abs=1e-3)  # of the biased variance
    root = (5 / 3 + 1e-6) ** 0.5
    close(standardised(PATCH), torch.tensor([[[-1.5, -0.5, 0.5, 1.5]]]) / root)


def test_a_patch_of_one_colour_has_a_target_of_zeros() -> None:
    assert not standardised(torch.full((1, 1, 48), 0.3)).any()


@pytest.mark.parametrize("ratio", [0.75, 0.4])
def test_a_step_is_the_loop_over_masked_patches(ratio: float) -> None:
    images, of, known = view(), network(), generator(0, "draws")
    loss, projections, (features,) = MAE(MAEConfig(mask_ratio=ratio)).step(of, Batch((images,), memory=memory()))
    order, shown = random_orders(3, 16, known), {0.75: 4, 0.4: 9}[ratio]
    tokens = of.patch_encoder.tokens(images, order[:, :shown])
    predicted = of.through("patch_decoder", tokens, order)
    assert predicted.shape == (3, 16 - shown, 48)
    expected = reference.masked_error(images, order[:, shown:], predicted.detach(), 4)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert projections == ()
    close(features, tokens.mean(1))
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in of.parameters())


def test_a_shown_patch_changes_the_loss_through_the_encoder_alone() -> None:
    """Where the decoder predicts the same whatever it is given, shown pixels count for nothing, and masked ones do."""
    of = network()
    with torch.no_grad():
        decoder = of.get_submodule("patch_decoder")
        assert isinstance(decoder, PatchDecoder)
        decoder.pixels.weight.zero_()
        decoder.pixels.bias.copy_(torch.linspace(-1, 1, 48))
    images, order = view(), random_orders(3, 16, generator(0, "draws"))

    def loss(changed: Tensor) -> float:
        return MAE(MAEConfig()).step(of, Batch((changed,), memory=memory())).loss.item()

    before = loss(images)
    for number, same in ((int(order[0, 0]), True), (int(order[0, 4]), False)):
        row, column = divmod(number, 4)
        other = images.clone()
        other[0, :, 4 * row : 4 * row + 2, 4 * column : 4 * column + 4] = 3.0
        assert (loss(other) == before) == same


def test_the_mean_is_over_masked_patches_alone() -> None:
    """A prediction that is right of 2 of 12 masked patches has 10/12 of the loss of one that is right of none."""
    rows = torch.randn(1, 12, 48, generator=generator("rows"))
    target = standardised(rows)
    right = torch.zeros_like(target)
    right[:, :2] = target[:, :2]
    close(masked_error(right, rows), masked_error(torch.zeros_like(target), rows) * 10 / 12, rtol=1e-4, atol=0)


# -- masks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "ratio", "shown"),
    [
        (64, 0.75, 16), (49, 0.75, 12), (4, 0.75, 1), (196, 0.6, 78), (10, 0.9, 1), (10, 0.7, 3), (100, 0.83, 17),
        (20, 0.85, 3), (64, 0.9999, 1), (4, 0.001, 3), (2, 0.5, 1),
    ],
)  # fmt: skip
def test_how_many_patches_are_shown(count: int, ratio: float, shown: int) -> None:
    assert shown_count(count, ratio) == shown


def test_every_patch_is_masked_alike_often_and_each_image_by_itself() -> None:
    orders = random_orders(4000, 16, generator("masks"))
    assert torch.equal(orders.sort(dim=1).values, torch.arange(16).expand(4000, -1))
    for place in (0, 7, 15):  # each patch stands at each place in a 16th of the orders
        share = torch.bincount(orders[:, place], minlength=16) / 4000
        assert (share - 1 / 16).abs().max() < 4 * (15 / 256 / 4000) ** 0.5
    shown = torch.zeros(4000, 16).scatter_(1, orders[:, :4], 1.0)
    together = (shown[:, 0] * shown[:, 1]).mean().item()  # two given patches are shown together: 4/16 * 3/15
    assert together == pytest.approx(1 / 20, abs=4 * (0.05 * 0.95 / 4000) ** 0.5)
    assert len({tuple(order) for order in orders.tolist()}) == 4000


def test_masks_follow_the_generator_and_move_on() -> None:
    of, known = network(), memory(5)
    first, second = (MAE(MAEConfig()).step(of, Batch((view(),), memory=known)).loss for _ in range(2))
    again = MAE(MAEConfig()).step(of, Batch((view(),), memory=memory(5))).loss
    other = MAE(MAEConfig()).step(of, Batch((view(),), memory=memory(6))).loss
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def test_pixels_of_masked_patches_reach_the_loss_as_targets_alone() -> None:
    """The gradient of the loss in a masked pixel is that of its standardised value."""
    of, images = network(), view().requires_grad_()
    order = random_orders(3, 16, generator(0, "draws"))
    MAE(MAEConfig()).step(of, Batch((images,), memory=memory())).loss.backward()
    assert images.grad is not None
    targets = chosen(patches(images.detach(), 4), order[:, 4:]).requires_grad_()
    predicted = of.through("patch_decoder", of.patch_encoder.tokens(images.detach(), order[:, :4]), order)
    masked_error(predicted, targets).backward()
    assert targets.grad is not None
    close(chosen(patches(images.grad, 4), order[:, 4:]), targets.grad)


# -- what it needs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, Memory(1)])
def test_a_memory_with_a_generator_is_needed(given: Memory | None) -> None:
    with pytest.raises(ValueError, match="mae needs a memory"):
        MAE(MAEConfig()).step(network(), replace(Batch((view(),)), memory=given))


@pytest.mark.parametrize("method", ["fedmae", "fedavg", "fedprox", "local", "centralized"])
def test_an_encoder_that_cannot_be_masked_is_one_line(method: str) -> None:
    with pytest.raises(UserError) as refused:
        tiny_run(method, {"objective.name": "mae"})
    assert str(refused.value) == (
        "clients.encoders: found 'small_cnn_bn'; the objective mae shows the encoder some of an image's patches; "
        "allowed: vit_tiny"
    )


def test_one_of_several_encoders_is_named_too() -> None:
    mixed = {"objective.name": "mae", "clients.encoders": ["vit_tiny", "vit_tiny", "small_cnn", "vit_tiny"]}
    with pytest.raises(UserError, match="found 'small_cnn'; the objective mae"):
        tiny_run("local", mixed)


@pytest.mark.parametrize("ratio", [0, 1, -0.1, 1.5])
def test_a_ratio_that_masks_all_or_nothing_is_refused(ratio: float) -> None:
    with pytest.raises(UserError, match=r"^objective\.mask_ratio: found"):
        tiny_run("fedmae", {**OWN["fedmae"], "objective.mask_ratio": ratio})


@pytest.mark.parametrize("size", [9, 30])
def test_an_image_size_that_does_not_fit_ends_the_run_before_it_has_a_folder(size: int, tmp_path: Path) -> None:
    changes: dict[str, Any] = {**OWN["fedmae"], "data.image_size": size, "model.patch": 4}
    with pytest.raises(UserError, match=rf"^data\.image_size: found {size}; encoder 'vit_tiny' cuts images") as refused:
        run_locally(tiny_run("fedmae", changes), tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()
