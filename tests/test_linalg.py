"""Linear algebra against printed numbers, scipy, SVD, autograd and random search.

Shape legend: m rows, n projection dimensions, P peers, N public samples, r representation dimension.
"""

from __future__ import annotations

import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from torch import Tensor

from rayfed_ssl.base.linalg import canonical_r, orthogonal_map, polar_factor
from tests.tensors import normal

close = torch.testing.assert_close
F64 = torch.float64
Z = torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=F64)
R = torch.tensor([[2.0, 1], [0, 1]], dtype=F64)


def orthonormal(rows: int, columns: int, seed: int = 0) -> Tensor:
    q, r = torch.linalg.qr(normal(rows, columns, seed=seed))
    return q * r.diagonal().sign()


def conditioned(rows: int, columns: int, condition: float, seed: int) -> Tensor:
    spectrum = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), columns, dtype=F64)
    return orthonormal(rows, columns, seed) @ torch.diag(spectrum) @ orthonormal(columns, columns, seed + 1).T


def distance(z: Tensor, r: Tensor) -> Tensor:
    """||Z - Q* R||_F per peer."""
    return torch.linalg.matrix_norm(z - polar_factor(z, r) @ r)


# -------------------------------------------------------------------------------------------- canonical R (FedFoA)


def test_canonical_r_oracle() -> None:
    expected = torch.tensor([[1.41421356, 0.70710678], [0, 1.22474487]], dtype=F64)
    close(canonical_r(Z), expected, rtol=0, atol=1e-8)
    close(canonical_r(Z), torch.linalg.cholesky(Z.T @ Z).T, rtol=0, atol=1e-12)
    close(canonical_r(Z).trace().item(), 2.638958434, rtol=0, atol=1e-9)


def test_canonical_r_does_not_order_the_diagonal() -> None:
    r = canonical_r(torch.tensor([[0.1, 0], [0, 5], [0, 0]], dtype=F64))
    close(r.diagonal(), torch.tensor([0.1, 5], dtype=F64), rtol=0, atol=1e-12)


def test_stacking_a_batch_twice_scales_r() -> None:
    z = normal(9, 4)
    close(canonical_r(torch.cat([z, z])), 2**0.5 * canonical_r(z), rtol=0, atol=1e-12)


def test_canonical_r_is_upper_triangular_with_the_gram_matrix_of_its_input() -> None:
    z = normal(20, 7)
    r = canonical_r(z)
    close(r.T @ r, z.T @ z, rtol=0, atol=1e-12)
    assert (r.diagonal() >= 0).all()
    assert torch.equal(r, r.triu())
    assert canonical_r(z.float()).dtype == torch.float32


def test_canonical_r_takes_rank_deficient_input_and_refuses_wide_input() -> None:
    z = torch.zeros(5, 3, dtype=F64)
    assert torch.equal(canonical_r(z).abs(), torch.zeros(3, 3, dtype=F64))
    with pytest.raises(ValueError, match="2 rows for 3 columns"):
        canonical_r(torch.ones(2, 3))


# ------------------------------------------------------------------------------------------- polar factor (FedFoA)


def test_polar_factor_oracle() -> None:
    (q,) = polar_factor(Z, R[None])
    expected = [[0.658829639, -0.482296769], [0.088266435, 0.811711589], [0.747096074, 0.329414819]]
    close(q, torch.tensor(expected, dtype=F64), rtol=0, atol=1e-9)
    close(q.T @ q, torch.eye(2, dtype=F64), rtol=0, atol=1e-12)
    close((Z - q @ R).square().sum().item(), 0.423319316115, rtol=0, atol=1e-12)
    close((Z - q @ R).norm().item(), 0.650629938, rtol=0, atol=1e-9)


def test_no_random_orthonormal_q_beats_it() -> None:
    q, r = torch.linalg.qr(normal(20_000, 3, 2))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    best = (Z - q @ R).square().sum(dim=(1, 2)).min().item()
    assert 0.423319316115 <= best < 0.47


def test_own_r_fits_exactly() -> None:
    q, r = polar_factor(Z, canonical_r(Z)[None])[0], canonical_r(Z)
    close(q @ r, Z, rtol=0, atol=1e-12)
    close(torch.linalg.matrix_norm(r @ Z.T, ord="nuc").item(), 4.0, rtol=0, atol=1e-12)


def test_distance_ignores_rotations_of_r_and_of_the_batch() -> None:
    z, r = normal(12, 5), canonical_r(normal(12, 5, seed=1))[None]
    flips = torch.diag(torch.tensor([-1.0, 1, -1, 1, 1], dtype=F64))
    for rotation in (orthonormal(5, 5, seed=2), flips):
        close(distance(z, rotation @ r), distance(z, r), rtol=1e-12, atol=0)
    close(distance(orthonormal(12, 12, seed=3) @ z, r), distance(z, r), rtol=1e-12, atol=0)


def test_constant_q_gives_the_exact_gradient() -> None:
    z = Z.clone().requires_grad_()
    (z - polar_factor(z, R[None])[0] @ R).square().sum().backward()
    expected = [[-0.635318556, -0.353065739], [-0.353065739, 0.200043953], [-0.988384295, -0.153021786]]
    close(z.grad, torch.tensor(expected, dtype=F64), rtol=0, atol=1e-9)
    through_svd = Z.clone().requires_grad_()
    nuclear = torch.linalg.svdvals(R @ through_svd.T).sum()
    (through_svd.square().sum() + R.square().sum() - 2 * nuclear).backward()
    close(z.grad, through_svd.grad, rtol=0, atol=1e-12)


def assert_optimal(z: Tensor, r: Tensor) -> None:
    """Orthonormal columns, and the attained value is the closed form's."""
    q = polar_factor(z, r)
    close(q.mT @ q, torch.eye(z.shape[1], dtype=F64).expand(len(r), -1, -1), rtol=0, atol=1e-10)
    scale = z.square().sum() + r.square().sum(dim=(1, 2))
    closed = scale - 2 * torch.linalg.svdvals(r @ z.T).sum(dim=1)
    assert (((z - q @ r).square().sum(dim=(1, 2)) - closed).abs() <= 1e-9 * scale).all()


@pytest.mark.parametrize("power", range(11))
def test_polar_factor_of_ill_conditioned_features(power: int) -> None:
    z = conditioned(40, 16, 10.0**power, seed=power)
    r = torch.stack([canonical_r(normal(40, 16, seed=s)) for s in range(3)])
    assert_optimal(z, r)
    assert_optimal(normal(40, 16), torch.stack([canonical_r(z), canonical_r(conditioned(40, 16, 1e3, seed=7))]))
    assert_optimal(z, canonical_r(z)[None])


def test_polar_factor_of_collapsed_features() -> None:
    healthy = canonical_r(normal(40, 16))
    rank_one = normal(40, 1) @ normal(1, 16, seed=1)
    r = torch.stack([healthy, canonical_r(rank_one), torch.zeros_like(healthy), torch.eye(16, dtype=F64)])
    for z in (normal(40, 16), rank_one, torch.zeros(40, 16, dtype=F64), normal(16, 16), 1e-30 * normal(40, 16)):
        assert_optimal(z, r)


def test_only_weak_peers_take_an_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    z, good = normal(30, 8), torch.stack([canonical_r(normal(30, 8, seed=s)) for s in range(4)])
    u, _, vh = torch.linalg.svd(z @ good.mT, full_matrices=False)
    sizes: list[int] = []
    svd = torch.linalg.svd
    monkeypatch.setattr(torch.linalg, "svd", lambda a, **kwargs: (sizes.append(len(a)), svd(a, **kwargs))[1])
    close(polar_factor(z, good), u @ vh, rtol=0, atol=1e-11)
    assert sizes == []
    mixed = torch.cat([good, torch.zeros(1, 8, 8, dtype=F64)])
    close(polar_factor(z, mixed)[:4], u @ vh, rtol=0, atol=1e-11)
    assert sizes == [1]


def test_polar_factor_of_float32_under_autocast_is_computed_in_float64() -> None:
    z, r = conditioned(40, 16, 1e4, seed=0).float(), canonical_r(normal(40, 16)).float()[None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = polar_factor(z, r)
    assert q.dtype == torch.float32
    close(q, polar_factor(z.double(), r.double()).float(), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="4 rows for 16 columns"):
        polar_factor(z[:4], r)


# -------------------------------------------------------------------------------------- orthogonal map (FedLinked)


def test_orthogonal_map_oracle() -> None:
    p_k = torch.tensor([[1.0, 0], [0, 2], [1, 1]], dtype=F64)
    quarter_turn = torch.tensor([[0.0, -1], [1, 0]], dtype=F64)
    p_j = p_k @ quarter_turn.T
    b, value = orthogonal_map(p_k, p_j)
    close(b, quarter_turn, rtol=0, atol=1e-12)
    close(value.item(), 7.0, rtol=0, atol=1e-12)
    close(p_k @ b.T, p_j, rtol=0, atol=1e-12)
    close((p_k * p_j).sum().item(), 0.0)  # the untransformed utility


def test_orthogonal_map_against_scipy() -> None:
    p_k, p_j = normal(50, 6), normal(50, 6, seed=1)
    b, value = orthogonal_map(p_k, p_j)
    transformation, nuclear = orthogonal_procrustes(p_k.numpy(), p_j.numpy())
    close(b.T, torch.as_tensor(transformation), rtol=0, atol=1e-12)
    close(value.item(), float(nuclear), rtol=1e-12, atol=0)


def test_utility_is_symmetric_and_maximal() -> None:
    p_k, p_j = normal(30, 4), normal(30, 4, seed=1)
    b, value = orthogonal_map(p_k, p_j)
    r = p_k.T @ p_j
    close((b @ r).trace(), value, rtol=1e-12, atol=0)
    close(value, torch.linalg.matrix_norm(r, ord="nuc"), rtol=1e-12, atol=0)
    close(orthogonal_map(p_j, p_k)[1], value, rtol=1e-12, atol=0)
    assert all((orthonormal(4, 4, seed=s) @ r).trace() <= value for s in range(200))


def test_orthogonal_map_may_reflect_and_takes_degenerate_input() -> None:
    p = normal(20, 3)
    b, _ = orthogonal_map(p, p * torch.tensor([1.0, 1, -1], dtype=F64))
    close(torch.linalg.det(b).item(), -1.0, rtol=0, atol=1e-12)
    for degenerate in (torch.zeros_like(p), p[:, :1].expand(-1, 3)):
        b, _ = orthogonal_map(p, degenerate)
        close(b @ b.T, torch.eye(3, dtype=F64), rtol=0, atol=1e-12)
    assert orthogonal_map(p.float(), p.float())[0].dtype == torch.float32
    with pytest.raises(ValueError, match="differ"):
        orthogonal_map(p, p[:, :2])
