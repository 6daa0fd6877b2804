"""Augmentation recipes: those of the papers, and the ``augment:`` block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rayfed_ssl.base.schema import Block

WHOLE = (1.0, 1.0)  # the crop scale that takes the whole image: no cropping
RATIO = (3 / 4, 4 / 3)  # width / height of a crop

Pair = tuple[float, float]
HALF = (0.5, 0.5, 0.5)
CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Recipe:
    """What may be done to an image, and how often; :class:`AugmentConfig` says what each value is. Probability 0,
    strength 0 or ``WHOLE`` leaves an operation out.
    """

    crop_scale: Pair = WHOLE
    pad: int = 0
    flip: bool = False
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    jitter_p: float = 0.0
    gray_p: float = 0.0
    blur_p: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize_p: float = 0.0
    mean: tuple[float, ...] = CIFAR10_MEAN
    std: tuple[float, ...] = CIFAR10_STD
    crop_ratio: Pair = RATIO  # width / height of a random resized crop
    second_blur_p: float | None = None  # of the second view; None: as of the others
    second_solarize_p: float | None = None  # likewise

    @property
    def jitters(self) -> bool:
        return self.jitter_p > 0 and any(self.jitter)

    @property
    def second_view_differs(self) -> bool:
        """Whether the second view of an image is made in another way than the others."""
        return (self.second_blur_p, self.second_solarize_p) != (None, None)


def per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """A mean or deviation for each channel: ``values`` if their number fits, else their mean for every channel, such as
    the mean of a preset's three values for grey images and for bands.
    """
    return values if len(values) == channels else (sum(values) / len(values),) * channels


# SimCLR's views at colour strength 1; each paper's recipe says what differs
SIMCLR = Recipe(crop_scale=(0.2, 1.0), flip=True, jitter=(0.8, 0.8, 0.8, 0.2), jitter_p=0.8, gray_p=0.2)
PRESETS: dict[str, Recipe] = {
    # FLESD on CIFAR, then on Tiny-ImageNet and ImageNet-100
    "flesd": replace(SIMCLR, mean=HALF, std=HALF),
    "flesd_large": replace(
        SIMCLR, jitter=(0.8, 0.8, 0.8, 0.4), gray_p=0.5, blur_p=0.5, mean=IMAGENET_MEAN, std=IMAGENET_STD
    ),
    "fedsc": replace(SIMCLR, jitter=(0.4, 0.4, 0.4, 0.1)),  # FedSC, official code
    # FedCA names crop-resize, colour distortion, flip and blur without strengths: SimCLR's are taken
    "fedca": replace(SIMCLR, crop_scale=(0.08, 1.0), blur_p=0.5),
    # EasyFL, for FedU, FedEMA and FedFoA: no normalisation
    "easyfl": replace(SIMCLR, crop_scale=(0.08, 1.0), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    "fedx": Recipe(pad=4, flip=True),  # FedX, official code, CIFAR-10
    # solo-learn's on CIFAR, from BYOL's (Grill et al. 2020, appendix B) without its blur
    "barlow": replace(SIMCLR, crop_scale=(0.08, 1.0), jitter=(0.4, 0.4, 0.2, 0.1), second_solarize_p=0.2),
    "vicreg": replace(SIMCLR, jitter=(0.4, 0.4, 0.2, 0.1), solarize_p=0.1),
    "mae": Recipe(crop_scale=(0.2, 1.0), flip=True),  # He et al. 2022, official code; CIFAR-10's mean and deviation
    # Orchestra, official code, CIFAR-10
    "orchestra": replace(
        SIMCLR,
        crop_scale=(0.5, 1.0),
        jitter=(0.4, 0.4, 0.2, 0.1),
        blur_p=0.5,
        second_blur_p=0.1,
        second_solarize_p=0.2,
        mean=HALF,
        std=HALF,
    ),
    "digits": Recipe(crop_scale=(0.6, 1.0), jitter=(0.2, 0.2, 0.0, 0.0), jitter_p=0.8, mean=HALF, std=HALF),  # no flip
    "none": Recipe(),
}

Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class AugmentConfig(Block):
    """How views are made: a preset, and any of its values replaced; null: the preset's value."""

    preset: Literal[
        "flesd",
        "flesd_large",
        "fedsc",
        "fedca",
        "easyfl",
        "fedx",
        "barlow",
        "vicreg",
        "mae",
        "orchestra",
        "digits",
        "none",
    ] = "fedsc"
    """The recipe of a paper's views, whose values the keys below replace."""
    crop_scale: tuple[Share, Share] | None = None
    """(Smallest, largest) share of the area kept by a random resized crop; [1, 1]: no crop."""
    pad: Annotated[int, Field(ge=0)] | None = None
    """Reflect-pad by so many pixels and crop back to size."""
    flip: bool | None = None
    """Whether views are mirrored with probability 1/2."""
    jitter: tuple[Strength, Strength, Strength, Annotated[float, Field(ge=0, le=0.5)]] | None = None
    """Strengths of brightness, contrast, saturation and hue; the last two change neither grey images nor bands."""
    jitter_p: Probability | None = None
    """Probability of the jitter."""
    gray_p: Probability | None = None
    """Probability that a view of an image with colours is made grey."""
    blur_p: Probability | None = None
    """Probability of a Gaussian blur."""
    blur_sigma: tuple[Positive, Positive] | None = None
    """(Smallest, largest) width of the blur, in pixels."""
    solarize_p: Probability | None = None
    """Probability that values above 1/2 are inverted."""
    second_blur_p: Probability | None = None
    """Probability of a blur in the second view of an image, where it is another than ``blur_p``."""
    second_solarize_p: Probability | None = None
    """Probability that values above 1/2 are inverted in the second view, where it is another than ``solarize_p``."""
    mean: tuple[float, ...] | None = Field(None, min_length=1)
    """Subtracted from each channel: three values, or one for each of ``data.channels``. If their number is another than
    that of the channels, as a preset's three may be, their mean is subtracted from all channels.
    """
    std: tuple[Positive, ...] | None = Field(None, min_length=1)
    """Divides each channel, once ``mean`` is subtracted; as many values as ``mean`` may have, treated in the same way.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        recipe = self.recipe()
        for key, (low, high) in (("crop_scale", recipe.crop_scale), ("blur_sigma", recipe.blur_sigma)):
            if low > high:
                raise ValueError(f"{key} is [{low}, {high}]; allowed: [low, high] with low <= high")
        if recipe.pad and recipe.crop_scale != WHOLE:
            raise ValueError(
                f"pad is {recipe.pad} and crop_scale {recipe.crop_scale}; allowed: pad 0 or crop_scale [1, 1]"
            )
        return self

    def recipe(self) -> Recipe:
        """The preset with the values that this block sets."""
        own = {key: value for key, value in self if key != "preset" and value is not None}
        return replace(PRESETS[self.preset], **own)
