"""DP-CalR accounting for FedSC: a bound on what noisy correlation matrices reveal about one image of a client.

The mechanism releases R~_j = (1/(n V')) sum_x sum_v z z^T + E with ||z||^2 <= mu and E_ab ~ N(0, sigma^2) i.i.d. (Jing
et al. 2024, Algorithm 2). This file holds its sensitivity, its Renyi curve, two conversions to (epsilon, delta) and
the noise. The spectral loss clips z with the same mu.

The bound holds if each z depends on one image only (eval mode, no batch statistics). It takes n as public and the
float32 Gaussian sampler as ideal. It covers the correlation matrices only: weights and BatchNorm's running statistics
are released without noise.

Shapes: D embedding; n images of the client; mu bound on the squared norm of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rayfed_ssl.base.schema import Block, UserError

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
"""The Renyi orders that ``epsilon_tight`` tries: the default grid of dp-accounting 0.6."""


class PrivacyConfig(Block):
    """Noise on FedSC's correlation matrices (DP-CalR); null: none. Exactly one of ``sigma`` and ``epsilon`` is given.

    mu, the bound on the squared norm of an embedding, is ``objective.clip``: sharing and training clip alike.
    """

    sigma: float | None = Field(None, ge=1e-30, allow_inf_nan=False)
    """Standard deviation of the noise on each entry of R_j."""
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)
    """In place of ``sigma``: what a client may spend over the whole run; sigma follows from the closed form."""
    delta: float = Field(1e-2, gt=0, lt=1)
    """The delta that epsilon is stated for."""

    @model_validator(mode="after")
    def _one_of_two(self) -> PrivacyConfig:
        if (self.sigma is None) == (self.epsilon is None):
            found = "neither" if self.sigma is None else "both"
            raise ValueError(f"give exactly one of sigma and epsilon, found {found}")
        return self

    def noise_scale(self, mu: float, n: int, releases: int) -> float:
        """The sigma that a client of ``n`` images adds if it shares its matrix at most ``releases`` times."""
        if self.sigma is not None:
            return self.sigma
        assert self.epsilon is not None
        return sigma_for(self.epsilon, mu, n, releases, self.delta)


class Mechanism(NamedTuple):
    """The parameters of the Renyi curve of a client's noisy matrices."""

    mu: float  # the bound on the squared norm of an embedding
    sigma: float  # the noise's standard deviation in each entry
    images: int  # n, the client's number of images
    releases: int  # the number of matrices released


def sensitivity(mu: float, n: int) -> float:
    """Frobenius sensitivity of R_j when one image is replaced: sqrt(2) mu / n.

    One image contributes a positive semi-definite matrix of trace at most mu, and for such S, S' it holds that
    ||S - S'||^2 <= ||S||^2 + ||S'||^2 <= 2 mu^2. Two orthogonal embeddings of squared norm mu attain it.
    Differs: the triangle inequality alone would give 2 mu / n.
    """
    _check(mu=mu, n=n)
    return math.sqrt(2) * mu / n


def rho(m: Mechanism) -> float:
    """Slope of the Renyi curve after T releases: T Delta^2 / (2 sigma^2) = T mu^2 / (sigma n)^2.

    At order a > 1 the curve is a rho (Gaussian mechanism, Mironov 2017, Corollary 3).
    """
    _check(sigma=m.sigma, releases=m.releases)
    return m.releases * sensitivity(m.mu, m.images) ** 2 / (2 * m.sigma**2)


def epsilon_closed_form(m: Mechanism, delta: float) -> float:
    """The paper's epsilon: min over a of a rho + log(1/delta)/(a-1) = rho + 2 sqrt(rho log(1/delta)).

    Raises:
        UserError: if mu, sigma or delta is out of range.
    """
    _check(delta=delta)
    slope = rho(m)
    return slope + 2 * math.sqrt(slope * math.log(1 / delta))


def epsilon_tight(m: Mechanism, delta: float) -> float:
    """The epsilon of dp-accounting's ``RdpAccountant``, never above the closed form.

    The same Renyi curve with the improved conversion of Canonne, Kamath and Steinke (2020, Proposition 12):
    epsilon = RDP(a) + log(1 - 1/a) - log(delta a)/(a - 1), minimised over ``ORDERS`` and the closed form's own best
    order 1 + sqrt(log(1/delta)/rho). The library uses this conversion only above order 1.01; if the best order is
    lower (epsilon in the tens of thousands), the closed form is the result.
    Differs: the paper uses the closed form. The library's PLD accountant cannot stand in: for replace-one neighbours
    it reads the noise as relative to the add-or-remove sensitivity and doubles ours.

    Raises:
        UserError: if mu, sigma or delta is out of range, or dp-accounting is not installed.
    """
    closed = epsilon_closed_form(m, delta)
    slope = rho(m)
    if slope == 0:
        return 0.0
    accounting = _dp_accounting()
    orders = [*ORDERS, 1 + math.sqrt(math.log(1 / delta) / slope)]
    accountant = accounting.rdp.RdpAccountant(orders, accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(accounting.GaussianDpEvent(m.sigma / sensitivity(m.mu, m.images)), m.releases)
    return min(closed, float(accountant.get_epsilon(delta)))


def sigma_for(epsilon: float, mu: float, n: int, releases: int, delta: float) -> float:
    """The sigma at which the closed form spends exactly ``epsilon``: mu sqrt(T) / (n (sqrt(L+epsilon) - sqrt(L))).

    L = log(1/delta). The tight epsilon at this sigma is smaller still, so a client spends at most ``epsilon``.

    Raises:
        UserError: if epsilon, mu or delta is out of range.
    """
    _check(mu=mu, n=n, delta=delta, epsilon=epsilon)
    if releases < 1:
        raise ValueError(f"releases: found {releases}, allowed: at least 1 where noise is to be chosen")
    log = math.log(1 / delta)
    root = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))  # = sqrt(L+eps) - sqrt(L), without cancellation
    return mu * math.sqrt(releases) / (n * root)


def noise(shape: Sequence[int], sigma: float, generator: torch.Generator) -> Tensor:
    """E (``shape``), float32, i.i.d. N(0, sigma^2), on the generator's device.

    It is not symmetrised here: (E + E^T)/2 is free post-processing, and the caller's choice.
    """
    _check(sigma=sigma)
    return torch.randn(tuple(shape), generator=generator, device=generator.device) * sigma


@dataclass(frozen=True)
class Spent:
    """What one client has spent so far, with what the statement covers."""

    epsilon: float
    epsilon_closed_form: float
    delta: float
    releases: int
    neighbours: str = "replace one image of one client"
    covers: str = "correlation matrices R_j"
    not_covered: str = "weights theta_j and the running statistics of BatchNorm"


def spent(m: Mechanism, delta: float) -> Spent:
    """What a client has spent on its noisy matrices.

    Raises:
        UserError: as ``epsilon_tight``.
    """
    return Spent(
        epsilon=epsilon_tight(m, delta),
        epsilon_closed_form=epsilon_closed_form(m, delta),
        delta=delta,
        releases=m.releases,
    )


def statement(mechanisms: Mapping[int, Mechanism], delta: float, planned: int) -> dict[str, Any]:
    """What a run's summary states about its clients' noisy matrices, with what the statement covers.

    Args:
        mechanisms: client -> its matrices so far, for at least one client.
        planned: the number of releases of a client that is asked in every sharing round.
    Raises:
        UserError: as ``epsilon_tight``.
    """
    records = {m: spent(m, delta) for m in set(mechanisms.values())}  # equal clients are computed once
    by_client = {client: records[m] for client, m in mechanisms.items()}
    scope = next(iter(by_client.values()))
    return {
        "epsilon": {client: record.epsilon for client, record in by_client.items()},
        "epsilon_closed_form": {client: record.epsilon_closed_form for client, record in by_client.items()},
        "rho": {client: rho(m) for client, m in mechanisms.items()},
        "delta": scope.delta,
        "neighbours": scope.neighbours,
        "covers": scope.covers,
        "not_covered": scope.not_covered,
        "releases": {client: record.releases for client, record in by_client.items()},
        "planned_releases": planned,
        "sigma": {client: m.sigma for client, m in mechanisms.items()},
        "clip": next(iter(mechanisms.values())).mu,
    }


def require_accountant() -> None:
    """Fail before the first round, rather than after it, if dp-accounting is missing.

    Raises:
        UserError: naming the extra to install.
    """
    _dp_accounting()


def _dp_accounting() -> Any:
    """The package. Raises UserError if it is not installed."""
    try:
        import dp_accounting
    except ImportError as error:
        raise UserError(
            "method.privacy: the package dp-accounting is not installed; allowed: pip install 'rayfed-ssl[privacy]'"
        ) from error
    return dp_accounting


def _check(
    *, mu: float = 1, sigma: float = 1, n: int = 1, releases: int = 0, delta: float = 0.5, epsilon: float = 1
) -> None:
    """Raise UserError if a setting is out of range, and ValueError if a count is."""
    keys = {"objective.clip": mu, "method.privacy.sigma": sigma, "method.privacy.epsilon": epsilon}
    for key, value in keys.items():
        if not (value > 0 and math.isfinite(value)):
            raise UserError(f"{key}: found {value}, allowed: a finite number above 0")
    if not 0 < delta < 1:
        raise UserError(f"method.privacy.delta: found {delta}, allowed: between 0 and 1, both excluded")
    if n < 1 or releases < 0:
        raise ValueError(f"found {n} images and {releases} releases, allowed: n >= 1 and releases >= 0")
