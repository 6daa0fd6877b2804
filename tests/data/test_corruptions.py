"""Corruptions against numpy, scipy and colorsys; feature skew against the same change made by hand."""

from __future__ import annotations

import colorsys
from typing import get_args

import numpy as np
import pytest
from scipy import ndimage

from rayfed_ssl.base.notes import texts
from rayfed_ssl.base.seeding import numpy_generator
from rayfed_ssl.data import corruptions as C
from rayfed_ssl.data.feature_skew import skew_features
from rayfed_ssl.data.loading import load
from rayfed_ssl.data.partition import FeatureSkew, partition
from rayfed_ssl.data.sources import SourceConfig


def image(channels: int = 3, size: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (size, size, channels), dtype=np.uint8)


def draw() -> np.random.Generator:
    return np.random.default_rng(1)


def test_noise_is_gaussian_of_the_severitys_strength():
    grey = np.full((200, 200, 3), 128, np.uint8)
    for severity, strength in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1):
        change = C.noise(grey, severity, draw()).astype(float) - 128
        assert change.std() == pytest.approx(255 * strength, rel=0.02)
        assert abs(change.mean()) < 0.5
    assert not np.array_equal(change[..., 0], change[..., 1])


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_blur_is_close_to_a_gaussian(severity):
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1] * 2
    smooth = ndimage.gaussian_filter(image(size=64).astype(float), (2, 2, 0))
    smooth = np.rint((smooth - smooth.min()) / np.ptp(smooth) * 255).astype(np.uint8)
    expected = ndimage.gaussian_filter(smooth.astype(float), (sigma, sigma, 0), mode="nearest")
    found = C.blur(smooth, severity, draw()).astype(float)
    assert np.abs(found - expected).mean() < 0.25 * np.abs(smooth - expected).mean()


def test_brightness_raises_the_value_of_hsv():
    pixels = image()
    pixels[0, 0] = 0
    found = C.brightness(pixels, 4, draw())
    for row, column in ((0, 0), (3, 5), (20, 7), (31, 31)):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[row, column] / 255))
        expected = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.2, 1))
        assert np.abs(found[row, column] - 255 * np.array(expected)).max() <= 0.51


def test_contrast_draws_channels_to_their_means():
    pixels = image()
    for channel in range(3):
        mean = pixels[..., channel].mean()
        expected = np.rint((pixels[..., channel] - mean) * 0.15 + mean)
        assert np.array_equal(C.contrast(pixels, 5, draw())[..., channel], expected)


def test_rotation_turns_about_the_centre_counterclockwise():
    assert np.array_equal(C.rotation(image(), 4, draw()), C.rotation(image(), 4, draw()))
    pixels = np.zeros((33, 33, 1), np.uint8)
    pixels[16, 26] = 255  # ten pixels to the right
    found = C.rotation(pixels, 4, draw())[..., 0]  # 60 degrees: to the right by 5, up by 8.66
    weight = found.astype(float) / found.sum()
    assert (weight.sum(axis=0) @ np.arange(33), weight.sum(axis=1) @ np.arange(33)) == pytest.approx(
        (16 + 5, 16 - 8.66), abs=0.2
    )


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_bands_are_corrupted_as_each_is_alone_and_brightness_keeps_their_ratios(channels):
    pixels = image(channels)
    for name in ("blur", "contrast", "rotation"):
        found = C.CORRUPTIONS[name](pixels, 3, draw())
        for band in range(channels):
            alone = C.CORRUPTIONS[name](pixels[..., band : band + 1], 3, draw())
            assert np.array_equal(found[..., band], alone[..., 0])
    pixel = np.array([[[10, 100, 50, 0, 20][:channels]]], np.uint8)
    largest = max(pixel[0, 0])
    expected = np.rint(pixel * ((largest + 255 * 0.15) / largest))
    assert np.array_equal(C.brightness(pixel, 3, draw()), expected)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("name", [name for name in C.CORRUPTIONS if name != "none"])
def test_every_corruption_changes_more_with_severity_and_keeps_the_form(name, channels):
    smooth = np.asarray(ndimage.gaussian_filter(image(channels).astype(float), (1, 1, 0)), np.uint8)
    change = []
    for severity in (1, 5):
        found = C.CORRUPTIONS[name](smooth, severity, draw())
        assert (found.shape, found.dtype) == (smooth.shape, np.uint8)
        change.append(np.abs(found.astype(float) - smooth).mean())
    assert 0 < change[0] < change[1]


def test_the_configuration_names_the_table():
    (names, _) = get_args(FeatureSkew.model_fields["corruptions"].annotation)
    assert set(get_args(names)) == set(C.CORRUPTIONS)


def test_feature_skew_changes_each_clients_images_and_no_others(tmp_path):
    data = load(SourceConfig(name="digits", image_size=8, limit=100, test_limit=20), tmp_path)
    config = FeatureSkew(corruptions=("none", "noise", "rotation"), severity=5, seed=4)
    shards = partition(config, data.train.labels, 4, 9, indices=np.arange(80))
    skewed = skew_features(data, config, shards, 9, tmp_path)
    assert [len(shard) for shard in shards] == [20] * 4
    for client in (0, 3):  # four clients, three corruptions: the fourth client gets the first
        assert np.array_equal(skewed.train.pixels[shards[client]], data.train.pixels[shards[client]])
    for row in shards[1]:
        by_hand = C.noise(data.train.pixels[row], 5, numpy_generator(4, "corruption", int(row)))
        assert np.array_equal(skewed.train.pixels[row], by_hand)
    assert np.array_equal(skewed.train.pixels[shards[2][0]], C.rotation(data.train.pixels[shards[2][0]], 5, draw()))
    assert np.array_equal(skewed.train.pixels[80:], data.train.pixels[80:])  # public images
    assert np.array_equal(skewed.test.pixels, data.test.pixels)
    assert np.array_equal(skewed.train.labels, data.train.labels)
    assert skewed.digest != data.digest
    assert skewed.digest == skew_features(data, config, shards, 1, tmp_path).digest  # the partition's own seed counts
    other = config.model_copy(update={"seed": None})
    assert skewed.digest != skew_features(data, other, shards, 1, tmp_path).digest
    assert "severity 5" in texts(skewed.notes)[-1]
