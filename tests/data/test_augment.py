"""Augmentation against torchvision: every operation, the crop distribution, the drawing, and the whole pipeline."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from torch import Tensor
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as TF

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.data import augment as A
from rayfed_ssl.data import recipes as R

N, H, W = 24, 20, 16


def pixels(n: int = N, height: int = H, width: int = W, seed: int = 0) -> Tensor:
    """(n, 3, height, width) uint8, a permuted (n, height, width, 3) array as the store hands out."""
    draws = torch.randint(0, 256, (n, height, width, 3), generator=generator("pixels", seed), dtype=torch.uint8)
    draws[0] = 128  # one grey image: hue undefined
    draws[1, ..., 1] = draws[1, ..., 2]  # ties between channels
    draws[2, ..., 0] = draws[2, ..., 1]
    return draws.permute(0, 3, 1, 2)


def images() -> Tensor:
    return pixels().float().contiguous() / 255


def uniform(low: float, high: float) -> Tensor:
    return torch.rand(N, generator=generator("parameters")) * (high - low) + low


def each(operation, values) -> Tensor:
    """The loop: a torchvision function applied image by image."""
    return torch.stack([operation(image, value) for image, value in zip(images(), values, strict=True)])


# ---------------------------------------------------------------------------------------------- one operation each

FACTORS = torch.cat([torch.tensor([0.0, 1.0, 2.0]), uniform(0.2, 1.8)[3:]])
SHIFTS = torch.cat([torch.tensor([-0.5, 0.0, 0.5, 1 / 3]), uniform(-0.5, 0.5)[4:]])


@pytest.mark.parametrize("name", ["adjust_brightness", "adjust_contrast", "adjust_saturation"])
def test_jitter_factors_equal_torchvision(name: str) -> None:
    expected = each(lambda image, f: getattr(TF, name)(image, float(f)), FACTORS)
    torch.testing.assert_close(getattr(A, name)(images(), FACTORS), expected, atol=1e-6, rtol=0)


def test_hue_equals_torchvision_through_hsv() -> None:
    expected = each(lambda image, shift: TF.adjust_hue(image, float(shift)), SHIFTS)
    torch.testing.assert_close(A.adjust_hue(images(), SHIFTS), expected, atol=3e-6, rtol=0)


def test_hue_turns_pure_colours() -> None:
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    for shift, colour in ((1 / 3, (0, 1, 0)), (-1 / 3, (0, 0, 1)), (1 / 6, (1, 1, 0)), (0.5, (0, 1, 1))):
        turned = A.adjust_hue(red, torch.tensor([shift])).flatten()
        torch.testing.assert_close(turned, torch.tensor(colour, dtype=torch.float32), atol=1e-6, rtol=0)


def test_grayscale_flip_and_solarize_equal_torchvision() -> None:
    mask = uniform(0, 1) < 0.5
    for ours, theirs in (
        (A.grayscale, lambda image: TF.rgb_to_grayscale(image, 3)),
        (A.flip, TF.horizontal_flip),
        (A.solarize, lambda image: TF.solarize(image, 0.5)),
    ):
        expected = each(lambda image, on, theirs=theirs: theirs(image) if on else image, mask)
        torch.testing.assert_close(ours(images(), mask), expected, atol=2e-7, rtol=0)


def test_blur_equals_torchvision() -> None:
    radius, sigma = 6, uniform(0.1, 2.0)
    expected = each(lambda image, s: TF.gaussian_blur(image, [2 * radius + 1] * 2, [float(s)] * 2), sigma)
    torch.testing.assert_close(A.gaussian_blur(images(), sigma, radius), expected, atol=1e-5, rtol=0)


def test_crop_and_flip_equal_torchvision_to_the_edge() -> None:
    boxes = A.resized_crop_boxes(N, (H, W), (0.1, 1.0), generator("boxes"))
    mask = uniform(0, 1) < 0.5

    def reference(image: Tensor, box_and_flip: tuple[Tensor, Tensor]) -> Tensor:
        top, left, height, width = (int(value) for value in box_and_flip[0])
        crop = TF.resized_crop(image, top, left, height, width, [H, W], antialias=False)
        return TF.horizontal_flip(crop) if box_and_flip[1] else crop

    expected = each(reference, list(zip(boxes, mask, strict=True)))
    torch.testing.assert_close(A.crop_resize(images(), boxes, mask), expected, atol=1e-5, rtol=0)


def test_a_shifted_whole_box_is_reflect_pad_and_crop() -> None:
    boxes = A.pad_crop_boxes(N, (H, W), 4, generator("boxes"))
    padded = TF.pad(images(), [4], padding_mode="reflect")
    expected = torch.stack(
        [
            padded[i, :, 4 + top : 4 + top + H, 4 + left : 4 + left + W]
            for i, (top, left) in enumerate(boxes[:, :2].int().tolist())
        ]
    )
    torch.testing.assert_close(A.crop_resize(images(), boxes), expected, atol=1e-5, rtol=0)


def test_neutral_parameters_keep_every_bit() -> None:
    ones, zeros, nobody = torch.ones(N), torch.zeros(N), torch.zeros(N, dtype=torch.bool)
    for operation in (A.adjust_brightness, A.adjust_contrast, A.adjust_saturation):
        assert torch.equal(operation(images(), ones), images())
    assert torch.equal(A.adjust_hue(images(), zeros), images())
    assert torch.equal(A.gaussian_blur(images(), zeros, 6), images())
    for operation in (A.grayscale, A.flip, A.solarize):
        assert torch.equal(operation(images(), nobody), images())


def test_operations_leave_their_input_alone() -> None:
    source = images()
    for operation in (A.adjust_brightness, A.adjust_contrast, A.adjust_saturation, A.adjust_hue):
        operation(source, uniform(0.1, 0.4))
    for operation in (A.grayscale, A.flip, A.solarize):
        operation(source, uniform(0, 1) < 0.5)
    A.gaussian_blur(source, uniform(0.1, 2.0), 6)
    A.crop_resize(source, A.pad_crop_boxes(N, (H, W), 4, generator("boxes")))
    assert torch.equal(source, images())


# --------------------------------------------------------------------------------------------------------- drawing


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "scale"), [((32, 32), (0.2, 1.0)), ((32, 32), (0.08, 1.0)), ((24, 40), (0.5, 1.0)), ((60, 20), (0.8, 1.0))]
)
def test_crop_boxes_have_torchvisions_distribution(size: tuple[int, int], scale: tuple[float, float]) -> None:
    draws, image = 6000, torch.zeros(1, *size)
    ours = A.resized_crop_boxes(draws, size, scale, generator("crops", 1)).double().numpy()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        theirs = np.array([RandomResizedCrop.get_params(image, list(scale), [3 / 4, 4 / 3]) for _ in range(draws)])
    for statistic in (
        lambda box: box[:, 0],
        lambda box: box[:, 1],
        lambda box: box[:, 2],
        lambda box: box[:, 3],
        lambda box: box[:, 2] * box[:, 3],
        lambda box: box[:, 3] / box[:, 2],
    ):
        a, b = statistic(ours), statistic(theirs)
        assert stats.ks_2samp(a, b).pvalue > 1e-3
        spread = math.hypot(a.std(), b.std()) / math.sqrt(draws)
        assert abs(a.mean() - b.mean()) < 4 * spread + 1e-9
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= np.array(size)).all()


@pytest.mark.parametrize("size", [(100, 10), (10, 100), (16, 16)])
def test_crop_fallback_is_torchvisions_centre_crop(size: tuple[int, int]) -> None:
    """A scale above 1 fits never, so every draw falls back."""
    expected = RandomResizedCrop.get_params(torch.zeros(1, *size), [3.0, 3.0], [3 / 4, 4 / 3])
    boxes = A.resized_crop_boxes(5, size, (3.0, 3.0), generator("crops"))
    assert boxes.int().tolist() == [list(expected)] * 5


def test_draws_have_the_recipes_rates_and_ranges() -> None:
    n = 20000
    recipe = R.Recipe((0.2, 1.0), 0, True, (0.4, 0.4, 1.5, 0.1), 0.8, 0.2, 0.5, (0.1, 2.0), 0.3)
    drawn = A.draw(recipe, n, (32, 32), generator("draw"))
    for mask, p in ((drawn.flip, 0.5), (drawn.gray, 0.2), (drawn.sigma > 0, 0.5), (drawn.solarize, 0.3)):
        assert abs(mask.double().mean().item() - p) < 0.015
    for factor, low, high, neutral in (
        (drawn.brightness, 0.6, 1.4, 1.0),
        (drawn.contrast, 0.6, 1.4, 1.0),
        (drawn.saturation, 0.0, 2.5, 1.0),
        (drawn.hue, -0.1, 0.1, 0.0),
    ):
        moved = factor[factor != neutral].double()
        assert abs(len(moved) / n - 0.8) < 0.015
        assert stats.kstest(moved, "uniform", args=(low, high - low)).pvalue > 1e-3
        assert torch.equal(factor != neutral, drawn.hue != 0)  # all four or none, as RandomApply([ColorJitter])
    sigma = drawn.sigma[drawn.sigma > 0].double()
    assert stats.kstest(sigma, "uniform", args=(0.1, 1.9)).pvalue > 1e-3


@pytest.mark.parametrize("views", [2, 3])
def test_the_second_view_has_rates_of_its_own(views: int) -> None:
    """And the same draws as without them: the first view's and a third's parameters do not change."""
    n, plain = 8000, dataclasses.replace(R.PRESETS["orchestra"], second_blur_p=None, second_solarize_p=None)
    own = A.draw(R.PRESETS["orchestra"], views * n, (32, 32), generator("second"), views)
    same = A.draw(dataclasses.replace(plain, solarize_p=1e-9), views * n, (32, 32), generator("second"), views)
    assert own.sigma is not None
    assert own.solarize is not None
    for view in range(views):
        part = slice(view * n, (view + 1) * n)
        blurred, solarized = (0.1, 0.2) if view == 1 else (0.5, 0.0)
        assert abs((own.sigma[part] > 0).double().mean().item() - blurred) < 0.02
        assert abs(own.solarize[part].double().mean().item() - solarized) < 0.02
        if view != 1:
            assert torch.equal(own.sigma[part], same.sigma[part])
    assert torch.equal(own.box, same.box)
    alone = A.draw(R.PRESETS["orchestra"], n, (32, 32), generator("alone"))  # one view: the first
    assert abs((alone.sigma > 0).double().mean().item() - 0.5) < 0.02
    assert not alone.solarize.any()


def test_pad_crop_shifts_are_uniform() -> None:
    shifts = A.pad_crop_boxes(9000, (32, 32), 4, generator("shifts"))[:, :2]
    for axis in range(2):
        values, counts = shifts[:, axis].unique(return_counts=True)
        assert values.tolist() == list(range(-4, 5))
        assert stats.chisquare(counts).pvalue > 1e-3


def test_all_jitter_orders_occur_about_equally() -> None:
    source, recipe = generator("orders"), R.PRESETS["fedsc"]
    orders = [A.draw(recipe, 2, (8, 8), source).order for _ in range(1200)]
    counts = [orders.count(order) for order in itertools.permutations(A.JITTER)]
    assert sum(counts) == 1200
    assert stats.chisquare(counts).pvalue > 1e-3


# ------------------------------------------------------------------------------------------------------ everything

FULL = R.Recipe(
    (0.2, 1.0), 0, True, (0.8, 0.8, 0.8, 0.2), 0.8, 0.3, 0.5, (0.1, 2.0), 0.3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
)


def reference(image: Tensor, p: A.Parameters, i: int, recipe: R.Recipe) -> Tensor:
    """One uint8 image through torchvision's functions, with sample i's parameters."""
    out = TF.to_dtype(image, torch.float32, scale=True)
    if recipe.crop_scale != R.WHOLE:
        out = TF.resized_crop(out, *(int(v) for v in p.box[i]), list(image.shape[1:]), antialias=False)
    if p.flip is not None and p.flip[i]:
        out = TF.horizontal_flip(out)
    for name in p.order:
        if getattr(p, name) is not None:
            out = getattr(TF, f"adjust_{name}")(out, float(getattr(p, name)[i]))
    if p.gray is not None and p.gray[i]:
        out = TF.rgb_to_grayscale(out, 3)
    if p.sigma is not None and p.sigma[i] > 0:
        out = TF.gaussian_blur(out, [13, 13], [float(p.sigma[i])] * 2)
    if p.solarize is not None and p.solarize[i]:
        out = TF.solarize(out, 0.5)
    return TF.normalize(out, list(recipe.mean), list(recipe.std))


@pytest.mark.parametrize("name", ["full", "flesd", "flesd_large", "fedsc", "fedca", "easyfl", "digits", "none"])
def test_pipeline_equals_the_loop_over_images(name: str) -> None:
    # Without solarise: it jumps at 1/2, where rounding decides. It has its own test above.
    recipe = dataclasses.replace(FULL, solarize_p=0.0) if name == "full" else R.PRESETS[name]
    drawn = A.draw(recipe, 2 * N, (H, W), generator("all", name))
    many = torch.cat([pixels(), pixels()])
    expected = torch.stack([reference(image, drawn, i, recipe) for i, image in enumerate(many)])
    torch.testing.assert_close(A.apply(many, drawn, recipe), expected, atol=5e-5, rtol=0)
    torch.testing.assert_close(A.augment(pixels(), recipe, generator("all", name)), expected, atol=5e-5, rtol=0)


def test_generator_state_alone_decides() -> None:
    first = A.augment(pixels(), FULL, generator("run", 3))
    torch.manual_seed(99)
    assert torch.equal(first, A.augment(pixels(), FULL, generator("run", 3)))
    assert not torch.equal(first, A.augment(pixels(), FULL, generator("run", 4)))
    source = generator("run", 3)
    A.augment(pixels(), FULL, source)
    state = source.get_state()
    second = A.augment(pixels(), FULL, source)
    assert not torch.equal(first, second)
    assert torch.equal(second, A.augment(pixels(), FULL, source.set_state(state)))


def test_every_sample_and_view_has_its_own_parameters() -> None:
    same = pixels()[3:4].expand(8, 3, H, W)
    views = A.augment(same, FULL, generator("own"), views=3)
    assert views.shape == (24, 3, H, W)
    distances = torch.cdist(views.flatten(1), views.flatten(1)) + torch.eye(24) * 100
    assert distances.min() > 0.1


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    drawn = A.draw(FULL, N, (H, W), generator("own"))
    whole = A.apply(pixels(), drawn, FULL)
    fields = {f.name: getattr(drawn, f.name) for f in dataclasses.fields(drawn) if f.name != "order"}
    for i in (0, 7, N - 1):
        alone = A.Parameters(order=drawn.order, **{name: value[i : i + 1] for name, value in fields.items()})
        torch.testing.assert_close(A.apply(pixels()[i : i + 1], alone, FULL)[0], whole[i], atol=1e-6, rtol=0)


def test_rows_are_view_major() -> None:
    out = A.augment(pixels(), R.PRESETS["none"], generator("views"), views=2)
    torch.testing.assert_close(out, torch.cat([A.clean(pixels(), R.PRESETS["none"])] * 2), atol=0, rtol=0)


@pytest.mark.parametrize("name", sorted(R.PRESETS))
def test_layout_and_type_are_kept_and_do_not_matter(name: str) -> None:
    recipe = R.PRESETS[name]
    interleaved = A.augment(pixels(), recipe, generator("layout"))
    planar = A.augment(pixels().contiguous(), recipe, generator("layout"))
    assert interleaved.dtype == planar.dtype == torch.float32
    assert interleaved.is_contiguous(memory_format=torch.channels_last)
    assert planar.is_contiguous()
    assert torch.equal(interleaved, planar)
    assert A.augment(pixels(6, 8, 8), recipe, generator("layout")).isfinite().all()


def test_fedx_views_are_shifted_mirrored_originals() -> None:
    recipe = R.AugmentConfig(preset="fedx", mean=(0, 0, 0), std=(1, 1, 1)).recipe()
    padded = TF.pad(images(), [4], padding_mode="reflect")
    out = A.augment(pixels(), recipe, generator("fedx"), views=1)
    for i in range(N):
        windows = padded[i].unfold(1, H, 1).unfold(2, W, 1).permute(1, 2, 0, 3, 4).reshape(-1, 3, H, W)
        assert (torch.cat([windows, windows.flip(3)]) - out[i]).abs().amax(dim=(1, 2, 3)).min() < 1e-5


def test_clean_only_normalises() -> None:
    expected = TF.normalize(images(), [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    torch.testing.assert_close(A.clean(pixels(), FULL), expected, atol=1e-6, rtol=0)


def test_autocast_does_not_lower_the_precision() -> None:
    plain = A.augment(pixels(), FULL, generator("amp"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(A.augment(pixels(), FULL, generator("amp")), plain)


def banded(channels: int) -> Tensor:
    """(N, channels, H, W) uint8, permuted likewise."""
    drawn = torch.randint(0, 256, (N, H, W, channels), generator=generator("bands", channels), dtype=torch.uint8)
    return drawn.permute(0, 3, 1, 2)


@pytest.mark.parametrize("channels", [2, 4, 5, 13])
def test_bands_keep_brightness_and_contrast_alone_of_the_jitter(channels: int) -> None:
    bands = banded(channels).float().contiguous() / 255
    brighter = A.adjust_brightness(bands, FACTORS)
    starker = A.adjust_contrast(bands, FACTORS)
    for image, factor, bright, stark in zip(bands, FACTORS, brighter, starker, strict=True):
        mean = image.double().mean()  # of all bands together: one value for the image
        torch.testing.assert_close(bright, (image * factor).clip(0, 1), atol=1e-6, rtol=0)
        expected = (factor * image.double() + (1 - factor) * mean).clip(0, 1).float()
        torch.testing.assert_close(stark, expected, atol=1e-6, rtol=0)
    assert torch.equal(A.adjust_saturation(bands, FACTORS), bands)
    assert torch.equal(A.adjust_hue(bands, SHIFTS), bands)
    assert torch.equal(A.grayscale(bands, torch.ones(N)), bands)


@pytest.mark.parametrize("channels", [2, 4, 5, 13])
def test_views_of_bands_are_those_of_each_band_alone_with_the_same_draws(channels: int) -> None:
    recipe = dataclasses.replace(FULL, jitter=(0.4, 0.0, 0.0, 0.0), mean=R.HALF, std=R.HALF)
    drawn = A.draw(recipe, N, (H, W), generator("bands"))
    pixels = banded(channels)
    found = A.apply(pixels, drawn, recipe)
    assert found.is_contiguous(memory_format=torch.channels_last)
    for band in range(channels):
        alone = A.apply(pixels[:, band : band + 1], drawn, recipe)
        torch.testing.assert_close(found[:, band : band + 1], alone, atol=1e-6, rtol=0)


def test_bands_are_normalised_by_the_mean_of_three_values_or_by_their_own() -> None:
    pixels = banded(5)
    shared = A.clean(pixels, dataclasses.replace(FULL, mean=(0.1, 0.2, 0.6), std=(0.2, 0.3, 0.4)))
    torch.testing.assert_close(shared, (pixels / 255 - 0.3) / 0.3, atol=1e-5, rtol=0)
    mean, std = (0.1, 0.2, 0.3, 0.4, 0.5), (0.5, 0.4, 0.3, 0.2, 0.1)
    own = A.clean(pixels, dataclasses.replace(FULL, mean=mean, std=std))
    expected = (pixels / 255 - torch.tensor(mean).view(5, 1, 1)) / torch.tensor(std).view(5, 1, 1)
    torch.testing.assert_close(own, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, 8, 3, dtype=torch.uint8)])
def test_other_types_and_orders_of_axes_are_refused(wrong: Tensor) -> None:
    with pytest.raises(TypeError, match=r"expected \(B, C, H, W\) torch.uint8"):
        A.clean(wrong, FULL)


@pytest.mark.gpu
def test_cuda_equals_cpu_and_never_waits() -> None:
    recipe = dataclasses.replace(FULL, solarize_p=0.0)
    drawn = A.draw(recipe, N, (H, W), generator("cuda"))
    fields = {f.name: getattr(drawn, f.name) for f in dataclasses.fields(drawn) if f.name != "order"}
    on_device = A.Parameters(order=drawn.order, **{k: v if v is None else v.cuda() for k, v in fields.items()})
    source, device_pixels = generator("cuda", device="cuda"), pixels().cuda()
    A.augment(device_pixels, recipe, source)  # first use of cuBLAS may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = A.apply(device_pixels, on_device, recipe)
        A.augment(device_pixels, recipe, source)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(out.cpu(), A.apply(pixels(), drawn, recipe), atol=5e-5, rtol=0)


# ---------------------------------------------------------------------------------------------------- configuration


def test_presets_are_the_papers() -> None:
    table = {
        "flesd": ((0.2, 1.0), 0, (0.8, 0.8, 0.8, 0.2), 0.2, 0.0, 0.5),
        "flesd_large": ((0.2, 1.0), 0, (0.8, 0.8, 0.8, 0.4), 0.5, 0.5, 0.485),
        "fedsc": ((0.2, 1.0), 0, (0.4, 0.4, 0.4, 0.1), 0.2, 0.0, 0.4914),
        "fedca": ((0.08, 1.0), 0, (0.8, 0.8, 0.8, 0.2), 0.2, 0.5, 0.4914),
        "easyfl": ((0.08, 1.0), 0, (0.8, 0.8, 0.8, 0.2), 0.2, 0.0, 0.0),
        "fedx": ((1.0, 1.0), 4, (0.0, 0.0, 0.0, 0.0), 0.0, 0.0, 0.4914),
        "barlow": ((0.08, 1.0), 0, (0.4, 0.4, 0.2, 0.1), 0.2, 0.0, 0.4914),
        "vicreg": ((0.2, 1.0), 0, (0.4, 0.4, 0.2, 0.1), 0.2, 0.0, 0.4914),
        "orchestra": ((0.5, 1.0), 0, (0.4, 0.4, 0.2, 0.1), 0.2, 0.5, 0.5),
    }
    solarised = {"barlow": (0.0, 0.2), "vicreg": (0.1, None), "orchestra": (0.0, 0.2)}
    for name, row in table.items():
        r = R.AugmentConfig(preset=name).recipe()
        assert (r.crop_scale, r.pad, r.jitter, r.gray_p, r.blur_p, r.mean[0]) == row
        assert r.flip
        assert (r.solarize_p, r.second_solarize_p) == solarised.get(name, (0.0, None))
        assert r.second_blur_p == (0.1 if name == "orchestra" else None)
    assert not R.PRESETS["digits"].flip
    assert set(R.PRESETS) == set(R.AugmentConfig.model_fields["preset"].annotation.__args__)


def test_overrides_replace_the_presets_values() -> None:
    recipe = R.AugmentConfig(preset="flesd", flip=False, gray_p=0, crop_scale=(0.5, 1)).recipe()
    assert recipe == dataclasses.replace(R.PRESETS["flesd"], flip=False, gray_p=0.0, crop_scale=(0.5, 1.0))
    assert R.AugmentConfig().recipe() == R.PRESETS["fedsc"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preset": "simsiam"}, "preset"),
        ({"crop_scale": (0.9, 0.2)}, "crop_scale is"),
        ({"crop_scale": (0.0, 1.0)}, "crop_scale"),
        ({"blur_sigma": (2.0, 0.1)}, "blur_sigma is"),
        ({"jitter": (0.1, 0.1, 0.1, 0.6)}, "jitter"),
        ({"gray_p": 1.5}, "gray_p"),
        ({"std": (0.0, 1.0, 1.0)}, "std"),
        ({"pad": 4}, "pad is 4 and crop_scale"),
        ({"colour": 1}, "colour"),
    ],
)
def test_wrong_configurations_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        R.AugmentConfig(**values)


def test_padding_beyond_the_image_is_refused() -> None:
    with pytest.raises(UserError, match=r"augment.pad: 4 for images of 4 x 8; allowed: below 4"):
        A.augment(pixels(4, 4, 8), R.PRESETS["fedx"], generator("pad"))


def test_grey_images_of_one_channel_see_what_three_equal_channels_see():
    """All operations of the preset on (B, 1, H, W) equal those on the same image three times over."""
    grey = pixels()[:, :1].contiguous()
    recipe = dataclasses.replace(
        R.PRESETS["flesd_large"], jitter=(0.8, 0.8, 0.8, 0.0), blur_p=1.0, solarize_p=0.5, mean=R.HALF, std=R.HALF
    )
    one = A.augment(grey, recipe, torch.Generator().manual_seed(3))
    three = A.augment(grey.expand(-1, 3, -1, -1).contiguous(), recipe, torch.Generator().manual_seed(3))
    assert one.shape == (2 * len(grey), 1, *grey.shape[2:])
    torch.testing.assert_close(one, three[:, :1], atol=2e-3, rtol=0)  # luma's weights sum to 0.9999
    hue = dataclasses.replace(recipe, jitter=(0.0, 0.0, 0.0, 0.5), jitter_p=1.0)
    torch.testing.assert_close(
        A.augment(grey, hue, torch.Generator().manual_seed(4)),
        A.augment(grey.expand(-1, 3, -1, -1).contiguous(), hue, torch.Generator().manual_seed(4))[:, :1],
        atol=2e-3,
        rtol=0,
    )
    mean = sum(R.PRESETS["fedsc"].mean) / 3
    std = sum(R.PRESETS["fedsc"].std) / 3
    torch.testing.assert_close(A.clean(grey, R.PRESETS["fedsc"]), (grey / 255 - mean) / std)
