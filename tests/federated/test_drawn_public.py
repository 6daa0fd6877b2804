"""Dealing: public images drawn out of a source of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.config import RunConfig, build, load
from rayfed_ssl.data import loading
from rayfed_ssl.data.sources import SourceConfig
from rayfed_ssl.federated.federation import load_federation
from rayfed_ssl.settings.files import ConfigError
from tests.places import ROOT


def config_of(seed: int = 0, **public: Any) -> RunConfig:
    document = {
        "seed": seed,
        "method": {"name": "fedsimclr"},
        "data": {"name": "digits", "image_size": 8, "limit": 100, "test_limit": 20,
                 "public": {"source": "source", "images": {"name": "digits", "image_size": 8}, **public}},
    }  # fmt: skip
    return build(document, {}, origin="test")


def test_a_sample_of_the_public_images_is_drawn_with_the_runs_seed() -> None:
    whole = loading.load(SourceConfig(name="digits", image_size=8)).train
    everything = load_federation(config_of()).public
    assert everything is not None
    np.testing.assert_array_equal(everything.pixels, whole.pixels)
    rows = []
    for seed in (0, 0, 1):
        drawn = load_federation(config_of(seed, sample=200)).public
        assert drawn is not None
        assert len(drawn) == len(drawn.pixels) == 200
        flat = [image.tobytes() for image in whole.pixels]
        found = [flat.index(image.tobytes()) for image in drawn.pixels]
        assert found == sorted(found)  # in their order
        np.testing.assert_array_equal(whole.labels[found], drawn.labels)
        rows.append(found)
    assert rows[0] == rows[1] != rows[2]
    assert max(rows[0]) > 1200  # from all 1,438, not the first
    assert len(set(rows[0])) > 190  # without replacement: digits has a few images twice


def test_a_sample_larger_than_its_source_and_one_of_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.public\.sample: found 5000; data\.public\.images holds 1438; allowed"):
        load_federation(config_of(sample=5000))
    with pytest.raises(ConfigError, match=r"data\.public\.sample: found 5; it is a sample of data\.public\.images"):
        config_of(source="share", images=None, sample=5)
    with pytest.raises(ConfigError, match=r"data\.public\.sample: found 0"):
        config_of(sample=0)


def test_the_paper_profile_of_fedca_draws_its_public_images() -> None:
    config = load(ROOT / "configs" / "fedca_cifar10.yaml", ["profile=paper"])
    assert config.data.public.sample == 3200
    assert config.data.public.images is not None
    assert config.data.public.images.limit is None
