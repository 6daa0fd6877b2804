"""The DP-CalR accountant against printed numbers, brute force, dp-accounting and the exact Gaussian trade-off."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.optimize import brentq
from scipy.stats import norm

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.base.seeding import generator
from rayfed_ssl.methods.parts import privacy
from rayfed_ssl.methods.parts.privacy import Mechanism

needs_accounting = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting (extra [privacy]) is not installed"
)
# mu, sigma, n, releases -> closed form (the paper's conversion) and what dp-accounting 0.6 gives, at delta = 1e-2
SETTINGS = [
    ((1.0, 0.01, 10_000, 10), 0.136722808, 0.0368382387),
    ((4.0, 0.00104, 5_000, 1), 3.893202171, 3.0724421062),
    ((4.0, 0.00104, 5_000, 200), 165.0332608, 162.3343179963),
]
WIDE = [(mu, s, n, t, d) for mu, s, n in [(4, 1e-3, 5000), (1, 1e-6, 100), (1, 10.0, 50_000), (0.5, 0.1, 1)]
        for t in (1, 37, 5000) for d in (1e-9, 1e-5, 1e-2, 0.5)]  # fmt: skip


def exact_epsilon(mu: float, sigma: float, n: int, releases: int, delta: float) -> float:
    """The smallest epsilon of T Gaussian releases (Balle and Wang 2018, theorem 8): nothing valid lies below it."""
    m = math.sqrt(releases) * math.sqrt(2) * mu / n / sigma

    def excess(epsilon: float) -> float:
        far = math.exp(epsilon + norm.logcdf(-m / 2 - epsilon / m))
        return float(norm.cdf(m / 2 - epsilon / m)) - far - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, m * m + 20 * m + 1))


def test_sensitivity_is_attained_by_orthogonal_embeddings_and_never_exceeded() -> None:
    mu, n = 4.0, 5000
    assert privacy.sensitivity(mu, n) == pytest.approx(0.001131371, abs=5e-10)
    z, other = np.array([2.0, 0.0]), np.array([0.0, 2.0])
    change = np.outer(z, z) - np.outer(other, other)
    assert np.linalg.norm(change) / n == pytest.approx(privacy.sensitivity(mu, n), rel=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(500):  # two images, three views each, clipped
        first, second = (rng.normal(size=(3, 4)) * rng.uniform(0.1, 5) for _ in range(2))
        first, second = (v * np.minimum(1, 2 / np.linalg.norm(v, axis=1, keepdims=True)) for v in (first, second))
        moved = np.linalg.norm(first.T @ first / 3 - second.T @ second / 3) / n
        assert moved <= privacy.sensitivity(mu, n) * (1 + 1e-12)


@pytest.mark.parametrize(("setting", "closed", "_tight"), SETTINGS)
def test_closed_form_is_the_minimum_over_orders(
    setting: tuple[float, float, int, int], closed: float, _tight: float
) -> None:
    delta = 1e-2
    assert privacy.epsilon_closed_form(Mechanism(*setting), delta) == pytest.approx(closed, rel=1e-8)
    orders = 1 + np.geomspace(1e-3, 1e4, 200_000)
    grid = orders * privacy.rho(Mechanism(*setting)) + math.log(1 / delta) / (orders - 1)
    assert privacy.epsilon_closed_form(Mechanism(*setting), delta) == pytest.approx(grid.min(), rel=1e-6)


def test_first_oracle_setting_has_the_printed_rho_and_order() -> None:
    slope = privacy.rho(Mechanism(1.0, 0.01, 10_000, 10))
    assert slope == pytest.approx(0.001, rel=1e-12)
    assert 1 + math.sqrt(math.log(100) / slope) == pytest.approx(68.861404, abs=1e-6)


@needs_accounting
@pytest.mark.parametrize(("setting", "closed", "tight"), SETTINGS)
def test_tight_epsilon_has_the_known_values(
    setting: tuple[float, float, int, int], closed: float, tight: float
) -> None:
    ours = privacy.epsilon_tight(Mechanism(*setting), 1e-2)
    assert ours == pytest.approx(tight, rel=2e-4)
    assert ours <= tight * (1 + 1e-9)  # one order more than the accountant's default grid: never worse
    assert ours < closed


@needs_accounting
@pytest.mark.parametrize(("setting", "_closed", "_tight"), SETTINGS)
def test_renyi_curve_equals_dp_accounting(
    setting: tuple[float, float, int, int], _closed: float, _tight: float
) -> None:
    import dp_accounting

    mu, sigma, n, releases = setting
    accountant = dp_accounting.rdp.RdpAccountant(privacy.ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    for _ in range(releases):
        accountant.compose(dp_accounting.GaussianDpEvent(sigma * n / (math.sqrt(2) * mu)))
    curve = np.array(privacy.ORDERS) * privacy.rho(Mechanism(*setting))
    np.testing.assert_allclose(curve, accountant._rdp, rtol=1e-9, atol=1e-9)


@needs_accounting
@pytest.mark.parametrize("setting", WIDE)
def test_tight_lies_between_the_exact_trade_off_and_the_closed_form(
    setting: tuple[float, float, int, int, float],
) -> None:
    tight = privacy.epsilon_tight(Mechanism(*setting[:4]), setting[4])
    assert tight <= privacy.epsilon_closed_form(Mechanism(*setting[:4]), setting[4])
    if privacy.rho(Mechanism(*setting[:4])) < 1e4:  # the exact formula leaves double precision beyond
        assert tight >= exact_epsilon(*setting) - 1e-9


@needs_accounting
def test_spent_says_what_it_covers_and_nothing_released_costs_nothing() -> None:
    record = asdict(privacy.spent(Mechanism(4.0, 0.00104, 5_000, 1), 1e-2))
    assert record == {
        "epsilon": pytest.approx(3.0724421, rel=1e-7),
        "epsilon_closed_form": pytest.approx(3.8932022, rel=1e-7),
        "delta": 1e-2,
        "releases": 1,
        "neighbours": "replace one image of one client",
        "covers": "correlation matrices R_j",
        "not_covered": "weights theta_j and the running statistics of BatchNorm",
    }
    nothing = privacy.spent(Mechanism(4.0, 0.00104, 5_000, 0), 1e-2)
    assert (nothing.epsilon, nothing.epsilon_closed_form) == (0.0, 0.0)


def test_missing_package_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'rayfed-ssl\[privacy\]'"):
        privacy.epsilon_tight(Mechanism(1.0, 1.0, 10, 1), 1e-2)
    with pytest.raises(UserError, match="dp-accounting"):
        privacy.require_accountant()


def test_sigma_for_inverts_the_closed_form() -> None:
    assert privacy.sigma_for(3.0, 4.0, 5_000, 1, 1e-2) == pytest.approx(1.307657e-3, abs=5e-10)
    for epsilon in (1e-6, 0.1, 3.0, 165.0):
        sigma = privacy.sigma_for(epsilon, 2.0, 700, 30, 1e-5)
        assert privacy.epsilon_closed_form(Mechanism(2.0, sigma, 700, 30), 1e-5) == pytest.approx(epsilon, rel=1e-9)


def test_noise_is_addressed_gaussian_and_not_symmetrised() -> None:
    sample = privacy.noise((400, 400), 0.25, generator(3, "noise"))
    assert torch.equal(sample, privacy.noise((400, 400), 0.25, generator(3, "noise")))
    assert not torch.equal(sample, privacy.noise((400, 400), 0.25, generator(4, "noise")))
    assert not torch.allclose(sample, sample.T)
    assert sample.mean().item() == pytest.approx(0, abs=5 * 0.25 / 400)
    assert sample.std().item() == pytest.approx(0.25, rel=0.01)
    fourth = (sample / 0.25).pow(4).mean().item()
    assert fourth == pytest.approx(3, rel=0.05)  # Gaussian kurtosis


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: privacy.epsilon_closed_form(Mechanism(1.0, 0.0, 10, 1), 1e-2), "method.privacy.sigma"),
        (lambda: privacy.epsilon_tight(Mechanism(1.0, -1.0, 10, 1), 1e-2), "method.privacy.sigma"),
        (lambda: privacy.noise((2, 2), math.nan, generator(0)), "method.privacy.sigma"),
        (lambda: privacy.epsilon_closed_form(Mechanism(1.0, 1.0, 10, 1), 0.0), "method.privacy.delta"),
        (lambda: privacy.epsilon_tight(Mechanism(1.0, 1.0, 10, 1), 1.0), "method.privacy.delta"),
        (lambda: privacy.sigma_for(1.0, 1.0, 10, 1, 2.0), "method.privacy.delta"),
        (lambda: privacy.sigma_for(0.0, 1.0, 10, 1, 1e-2), "method.privacy.epsilon"),
        (lambda: privacy.sensitivity(-1.0, 10), "objective.clip"),
    ],
)
def test_out_of_range_values_name_the_key(call: object, key: str) -> None:
    assert callable(call)
    with pytest.raises(UserError, match=key.replace(".", r"\.")) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_config_takes_sigma_or_epsilon_but_not_both() -> None:
    given = privacy.PrivacyConfig(sigma=1e-3)
    assert given.noise_scale(4.0, 5_000, 7) == 1e-3
    target = privacy.PrivacyConfig(epsilon=3)
    assert target.noise_scale(4.0, 5_000, 1) == pytest.approx(1.307657e-3, abs=5e-10)
    for wrong in (
        {},
        {"sigma": 1, "epsilon": 1},
        {"sigma": 0},
        {"sigma": 1e-160},
        {"sigma": 1, "delta": 1},
        {"sigma": 1, "clip": 4},
    ):
        with pytest.raises(ValidationError):
            privacy.PrivacyConfig(**wrong)
