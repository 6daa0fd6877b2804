"""Image augmentation: one batched call for all views of a batch, on CPU or GPU, from one explicit generator.

``draw`` draws every sample's own parameters, ``apply`` turns uint8 pixels and parameters into a normalised float32
batch, ``augment`` is both. Each operation is a pure function of float images in [0, 1] and per-sample parameters and
agrees with its namesake in ``torchvision.transforms.v2.functional``. A sample that an operation was not drawn for has
the neutral parameter (factor 1, shift 0, sigma 0, False) and keeps its bits. Nothing here waits for the device.

Shapes: B images in a batch, N = views * B samples, H height, W width, C channels: 3 for colours, 1 for grey, any other
number for bands. Grey images have no hue. Bands have no colours: saturation, hue and grey leave them as they are.

Differs from torchvision: the order of the jitter operations is random per call, not per image; blur uses the full
Gaussian (radius 3 sigma_max). Crops are taken from images at the run's size, so they are only ever enlarged, and
antialiasing never arises.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.data.images import are_bands
from rayfed_ssl.data.recipes import RATIO, WHOLE, Pair, Recipe, per_channel

TRIES = 10  # RandomResizedCrop falls back on the centre crop after so many misfits
GRAY_WEIGHTS = (0.2989, 0.587, 0.114)  # ITU-R 601-2 luma, the digits torchvision uses


@dataclass(frozen=True)
class Parameters:
    """One draw for N samples; None where the recipe leaves the operation out."""

    box: Tensor | None = None  # (N, 4) top, left, height, width in pixels
    flip: Tensor | None = None  # (N,) bool
    brightness: Tensor | None = None  # (N,) factor
    contrast: Tensor | None = None  # (N,) factor
    saturation: Tensor | None = None  # (N,) factor
    hue: Tensor | None = None  # (N,) shift in turns
    order: tuple[str, ...] = ()  # of the four jitter operations
    gray: Tensor | None = None  # (N,) bool
    sigma: Tensor | None = None  # (N,) pixels
    solarize: Tensor | None = None  # (N,) bool


def draw(recipe: Recipe, n: int, size: tuple[int, int], generator: torch.Generator, views: int = 1) -> Parameters:
    """Parameters of ``n`` samples of ``size`` (H, W), on the generator's device; a pure function of its state.

    ``views``: how many views the samples make up. They are ordered view by view: samples n / views to 2 n / views - 1
    are the second view.

    Raises UserError if the recipe pads by a whole image or more, which reflection cannot fill.
    """
    if recipe.pad >= min(size):
        raise UserError(f"augment.pad: {recipe.pad} for images of {size[0]} x {size[1]}; allowed: below {min(size)}")

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(n, generator=generator, device=generator.device) * (high - low) + low

    def coin(p: float, second: float | None = None) -> Tensor:  # (n,) True with probability p; second: of view 2
        drawn = uniform(0.0, 1.0)
        if second is None:
            return drawn < p
        per_view = n // views
        return torch.cat([drawn[:per_view] < p, drawn[per_view : 2 * per_view] < second, drawn[2 * per_view :] < p])

    values: dict[str, Tensor] = {}
    if recipe.crop_scale != WHOLE:
        values["box"] = resized_crop_boxes(n, size, recipe.crop_scale, generator, recipe.crop_ratio)
    elif recipe.pad:
        values["box"] = pad_crop_boxes(n, size, recipe.pad, generator)
    if recipe.flip:
        values["flip"] = coin(0.5)
    order: tuple[str, ...] = ()
    if recipe.jitters:
        jittered = coin(recipe.jitter_p)
        for name, strength in zip(("brightness", "contrast", "saturation"), recipe.jitter[:3], strict=True):
            if strength:
                values[name] = torch.where(jittered, uniform(max(0.0, 1 - strength), 1 + strength), 1.0)
        if recipe.jitter[3]:
            values["hue"] = torch.where(jittered, uniform(-recipe.jitter[3], recipe.jitter[3]), 0.0)
        order = _jitter_order(generator)
    if recipe.gray_p:
        values["gray"] = coin(recipe.gray_p)
    if recipe.blur_p or recipe.second_blur_p:
        values["sigma"] = torch.where(coin(recipe.blur_p, recipe.second_blur_p), uniform(*recipe.blur_sigma), 0.0)
    if recipe.solarize_p or recipe.second_solarize_p:
        values["solarize"] = coin(recipe.solarize_p, recipe.second_solarize_p)
    return Parameters(order=order, **values)


def _jitter_order(generator: torch.Generator) -> tuple[str, ...]:
    """One of the 24 orders, from a hash of the generator's state: a host value on every device, without waiting."""
    digest = hashlib.blake2b(generator.get_state().numpy().tobytes(), digest_size=8).digest()
    orders = list(itertools.permutations(JITTER))
    return orders[int.from_bytes(digest, "big") % len(orders)]


def resized_crop_boxes(n: int, size: tuple[int, int], scale: Pair, draws: Generator, aspect: Pair = RATIO) -> Tensor:
    """``n`` boxes (n, 4) with torchvision's ``RandomResizedCrop`` distribution.

    Area uniform in ``scale``, width / height log-uniform in ``aspect``, the first of ten tries that fits, else the
    largest centre crop of an allowed ratio; the position is uniform among the whole pixels.
    """
    height, width = size
    u = torch.rand(4, n, TRIES, generator=draws, device=draws.device)
    area = (scale[0] + u[0] * (scale[1] - scale[0])) * (height * width)
    ratio = torch.exp(math.log(aspect[0]) + u[1] * math.log(aspect[1] / aspect[0]))
    h, w = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (h > 0) & (h <= height) & (w > 0) & (w <= width)
    top, left = (u[2] * (height - h + 1)).floor(), (u[3] * (width - w + 1)).floor()
    first = fits.to(torch.uint8).argmax(dim=1).view(n, 1, 1).expand(n, 1, 4)
    box = torch.stack([top, left, h, w], dim=2).gather(1, first).squeeze(1)
    centre_h, centre_w = min(height, round(width / aspect[0])), min(width, round(height * aspect[1]))
    for column, value in enumerate(((height - centre_h) // 2, (width - centre_w) // 2, centre_h, centre_w)):
        box[:, column] = torch.where(fits.any(dim=1), box[:, column], value)
    return box


def pad_crop_boxes(n: int, size: tuple[int, int], pad: int, generator: torch.Generator) -> Tensor:
    """``n`` boxes (n, 4) of full ``size``, shifted by up to ``pad`` pixels each way (pad 0: the whole image)."""
    box = torch.empty(n, 4, device=generator.device)
    box[:, :2] = (torch.rand(n, 2, generator=generator, device=generator.device) * (2 * pad + 1)).floor() - pad
    box[:, 2], box[:, 3] = size
    return box


def _per_sample(values: Tensor) -> Tensor:
    """``values`` (N,) as (N, 1, 1, 1), which applies each to all pixels of its sample."""
    return values.view(-1, 1, 1, 1)


def _chosen(mask: Tensor, changed: Tensor, images: Tensor) -> Tensor:
    """``changed`` where ``mask`` (N,) holds, else ``images``, written into ``changed``.

    lerp is exact at weights 0 and 1, and on CPU several times faster than ``torch.where``.
    """
    return torch.lerp(images, changed, _per_sample(mask).to(images.dtype), out=changed)


def _mirrored(index: Tensor, size: int) -> Tensor:
    """Positions beyond the first or last pixel reflected at its centre, as ``mode="reflect"`` padding does."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def crop_resize(images: Tensor, box: Tensor, flip: Tensor | None = None) -> Tensor:
    """Each sample's ``box`` (N, 4), enlarged bilinearly to the full (H, W), then mirrored where ``flip`` (N,) says.

    Equals ``resized_crop(..., antialias=False)`` with the edge pixels of the box repeated, not its neighbours read; a
    box that reaches out of the image sees it reflected, which makes pad-and-crop the same operation.
    """
    n, _, height, width = images.shape

    def positions(start: Tensor, length: Tensor, size: int) -> Tensor:  # (N, size), in source pixels
        steps = torch.arange(size, device=images.device) + 0.5
        inside = (steps * (length / size) - 0.5).clamp_min(0.0)
        return _mirrored(torch.minimum(inside, length - 1) + start, size)

    top, left, h, w = (box[:, column : column + 1] for column in range(4))
    ys, xs = positions(top, h, height), positions(left, w, width)
    if flip is not None:
        xs = torch.where(flip.unsqueeze(1), xs.flip(1), xs)
    grid = torch.empty(n, height, width, 2, device=images.device)
    grid[..., 0] = ((2 * xs + 1) / width - 1).unsqueeze(1)
    grid[..., 1] = ((2 * ys + 1) / height - 1).unsqueeze(2)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False).clamp_(0.0, 1.0)


def flip(images: Tensor, mask: Tensor) -> Tensor:
    """The samples in ``mask`` (N,) mirrored left to right."""
    return _chosen(mask, images.flip(3), images)


def _luma(images: Tensor) -> Tensor:
    """The grey values (N, 1, H, W) of (N, 3, H, W); images of any other number of channels are returned as they are."""
    if images.shape[1] != 3:
        return images
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    return (red * GRAY_WEIGHTS[0]).add_(green, alpha=GRAY_WEIGHTS[1]).add_(blue, alpha=GRAY_WEIGHTS[2])


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """factor * image, clipped to [0, 1]; ``factor`` (N,)."""
    return (images * _per_sample(factor)).clamp_(0.0, 1.0)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image's mean grey value (for bands, the mean over all of them): factor * image + (1 - factor) *
    mean, clipped; ``factor`` (N,).
    """
    return torch.lerp(_luma(images).mean(dim=(1, 2, 3), keepdim=True), images, _per_sample(factor)).clamp_(0.0, 1.0)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image: factor * image + (1 - factor) * grey, clipped; ``factor`` (N,)."""
    if are_bands(images.shape[1]):
        return images
    return torch.lerp(_luma(images), images, _per_sample(factor)).clamp_(0.0, 1.0)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """The HSV hue turned by ``shift`` (N,) in turns, -1/2 to 1/2.

    Both ways are closed forms without case distinction. With V the largest channel, m the smallest and S = V - m, the
    hue's distance from red is ((V - R) + (G - m) + (B - m)) / 6S turns, on green's side where G >= B; back, a channel
    is V - S clamp(2 - 6 |d|, 0, 1), where d is the distance in turns from the hue opposite to that channel.
    """
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(dim=1)
    largest = torch.maximum(torch.maximum(red, green), blue)
    smallest = torch.minimum(torch.minimum(red, green), blue)
    spread = largest - smallest
    hue = (largest - red).add_(green - smallest).add_(blue - smallest).div_(spread.mul(6.0).clamp_min_(1e-12))
    hue = hue.copysign_(green - blue).add_(shift.view(-1, 1, 1))
    turned, distance = torch.empty_like(images), torch.empty_like(hue)
    for channel, opposite in enumerate((1 / 2, 5 / 6, 1 / 6)):
        out = turned[:, channel]
        torch.sub(hue, opposite, out=distance)
        distance.sub_(torch.round(distance, out=out)).abs_().mul_(-6.0).add_(2.0).clamp_(0.0, 1.0)
        torch.addcmul(largest, distance, spread, value=-1.0, out=out)
    return _chosen(shift != 0, turned, images)


_ADJUST = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
JITTER = dict(zip(("brightness", "contrast", "saturation", "hue"), _ADJUST, strict=True))


def grayscale(images: Tensor, mask: Tensor) -> Tensor:
    """The samples in ``mask`` (N,) with all channels replaced by the grey value."""
    if are_bands(images.shape[1]):
        return images
    return torch.lerp(images, _luma(images), _per_sample(mask).to(images.dtype))


def gaussian_blur(images: Tensor, sigma: Tensor, radius: int) -> Tensor:
    """Gaussian blur of ``sigma`` (N,) pixels, cut off at ``radius``, reflected at the border; sigma 0 keeps a sample.

    Written as K_y image K_x^T with one (size, size) matrix per sample and axis, whose cost does not grow with radius.
    """
    n, channels, height, width = images.shape
    steps = torch.arange(-radius, radius + 1, device=images.device)
    exponents = -0.5 * (steps / sigma.clamp_min(1e-3).unsqueeze(1)).square()
    taps = torch.softmax(exponents.clamp_min(-30.0), dim=1)  # (N, 2 radius + 1); denormal taps would be slow

    def matrices(size: int) -> Tensor:  # (N, size, size)
        pixels = torch.arange(size, device=images.device)
        source = _mirrored(pixels.view(1, -1) + steps.view(-1, 1), size)
        return (taps @ (source.unsqueeze(2) == pixels).float().flatten(1)).view(n, size, size)

    columns = matrices(width)
    rows = columns if height == width else matrices(height)
    across = torch.bmm(images.reshape(n, channels * height, width), columns.mT).view_as(images)
    return _chosen(sigma > 0, rows.unsqueeze(1) @ across, images)


def solarize(images: Tensor, mask: Tensor) -> Tensor:
    """The samples in ``mask`` (N,) with every value from 1/2 up inverted."""
    return _chosen(mask, torch.minimum(images, 1 - images), images)


def normalize_(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(images - mean) / std per channel, in place. If the number of channels is not the number of values, the values'
    means are used.
    """
    mean, std = (per_channel(values, images.shape[1]) for values in (mean, std))
    for channel in range(images.shape[1]):
        images[:, channel].sub_(mean[channel]).div_(std[channel])
    return images


def _memory_format(pixels: Tensor) -> torch.memory_format:
    """The memory format of ``pixels``, which the views are to have, too. Raises TypeError unless ``pixels`` is
    (B, C, H, W) uint8, or if it seems to be (B, H, W, C) with 1 or 3 channels.
    """
    channels_at_end = pixels.ndim == 4 and are_bands(pixels.shape[1]) and not are_bands(pixels.shape[3])
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or channels_at_end:
        raise TypeError(f"pixels are {tuple(pixels.shape)} {pixels.dtype}; expected (B, C, H, W) torch.uint8")
    return torch.channels_last if pixels.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format


@torch.no_grad()
def apply(pixels: Tensor, parameters: Parameters, recipe: Recipe) -> Tensor:
    """Augment (N, C, H, W) uint8 by ``parameters`` and normalise: float32 of the same shape and memory format.

    The order is crop, flip, jitter, grey, blur, solarise, normalise (SimCLR's).
    """
    memory_format = _memory_format(pixels)
    with torch.autocast(pixels.device.type, enabled=False):
        images = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        if parameters.box is not None:
            images = crop_resize(images, parameters.box, parameters.flip)
        elif parameters.flip is not None:
            images = flip(images, parameters.flip)
        for name in parameters.order:
            value = getattr(parameters, name)
            if value is not None:
                images = JITTER[name](images, value)
        if parameters.gray is not None:
            images = grayscale(images, parameters.gray)
        if parameters.sigma is not None:
            radius = min(math.ceil(3 * recipe.blur_sigma[1]), min(images.shape[2:]) - 1)
            images = gaussian_blur(images, parameters.sigma, radius)
        if parameters.solarize is not None:
            images = solarize(images, parameters.solarize)
        return normalize_(images, recipe.mean, recipe.std).contiguous(memory_format=memory_format)


def augment(pixels: Tensor, recipe: Recipe, generator: torch.Generator, views: int = 2) -> Tensor:
    """``views`` independent augmentations of each image, in one batched call. The second view may have its own
    probabilities.

    ``pixels`` (B, C, H, W) uint8, commonly a permuted (B, H, W, C) array; ``generator`` on the same device. Returns
    (views * B, C, H, W) float32, view by view: rows 0..B-1 are view 1. The memory format of ``pixels`` is kept.
    """
    many = torch.cat([pixels] * views)
    return apply(many, draw(recipe, len(many), (pixels.shape[2], pixels.shape[3]), generator, views), recipe)


def clean(pixels: Tensor, recipe: Recipe) -> Tensor:
    """(B, C, H, W) uint8 normalised as ``recipe`` says and otherwise untouched: float32 of the same shape."""
    return apply(pixels, Parameters(), recipe)
