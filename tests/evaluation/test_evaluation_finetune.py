"""Fine-tuning against a plainly written loop, and what it must and must not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rayfed_ssl.base.seeding import generator, seed_of
from rayfed_ssl.evaluation.finetune import FineTuneConfig, fine_tune, label_fraction


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def images(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise whose red and green channels are brightened for classes 1 and 2."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    pixels = rng.integers(0, 120, (n, 4, 4, 3))
    for channel in (0, 1):
        pixels[labels == channel + 1, :, :, channel] += 60
    return pixels.astype(np.uint8), labels


def clean(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.float() / 255


def small_encoder() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_equals_a_plain_loop_and_leaves_the_encoder_alone() -> None:
    train, test = images(33, 0), images(60, 1)
    config = FineTuneConfig(epochs=4, batch_size=16, hidden=8, lr=1e-2)  # batches of 16, 16 and a lone one
    encoder = small_encoder().eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    got = fine_tune(encoder, train, test, clean, dim=6, classes=3, config=config, seed=5, device="cpu")
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert not encoder.training

    torch.manual_seed(seed_of(5, "finetune"))
    head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    encoder.train()
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-2)
    order = generator(5, "finetune", "order")
    x, y = torch.tensor(train[0].transpose(0, 3, 1, 2) / 255, dtype=torch.float32), torch.tensor(train[1])
    for _ in range(4):
        shuffled = torch.randperm(33, generator=order)
        for rows in (shuffled[:16], shuffled[16:32]):
            optimizer.zero_grad()
            F.cross_entropy(head(encoder(x[rows])), y[rows]).backward()
            optimizer.step()
    encoder.eval()
    predicted = head(encoder(torch.tensor(test[0].transpose(0, 3, 1, 2) / 255, dtype=torch.float32))).argmax(dim=1)
    assert got == pytest.approx((predicted.numpy() == test[1]).mean(), abs=1e-9)


def test_the_encoder_learns_too() -> None:
    blind = small_encoder()
    with torch.no_grad():
        blind[0].weight.zero_()  # every image looks alike: a head alone could do no better than chance
    config = FineTuneConfig(epochs=40, batch_size=32, hidden=16, lr=1e-2)
    got = fine_tune(blind, images(200, 0), images(200, 1), clean, dim=6, classes=3, config=config, seed=0, device="cpu")
    assert got > 0.9


def test_same_seed_same_result_whatever_the_global_generator_did() -> None:
    config = FineTuneConfig(epochs=2, batch_size=16, hidden=8)
    results = []
    encoder = small_encoder()
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        state = torch.get_rng_state()
        with torch.inference_mode():
            results.append(
                fine_tune(
                    encoder, images(40, 0), images(300, 1), clean, dim=6, classes=3, config=config, seed=9, device="cpu"
                )
            )
        assert torch.equal(state, torch.get_rng_state())
    assert results[0] == results[1]


def test_label_fraction_is_stratified_seeded_and_skips_the_unlabelled() -> None:
    labels = np.repeat([-1, 0, 1, 2], [50, 1000, 200, 3])
    rows = label_fraction(labels, 0.01, 0)
    assert np.unique(labels[rows], return_counts=True)[1].tolist() == [10, 2, 1]
    assert labels[rows].min() == 0
    assert rows.tolist() == sorted(set(rows.tolist())) == label_fraction(labels, 0.01, 0).tolist()
    assert rows.tolist() != label_fraction(labels, 0.01, 1).tolist()
    assert set(rows.tolist()) < set(label_fraction(labels, 0.1, 0).tolist())
    assert label_fraction(labels, 1.0, 0).tolist() == list(range(50, 1253))
    assert len(label_fraction(np.full(5, -1), 0.1, 0)) == 0
