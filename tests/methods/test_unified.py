"""FedU2's aggregation: the min-norm point against hand-made numbers and its optimality condition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize

from rayfed_ssl.methods.parts.unified import equalised_epochs, min_norm_weights, sharpened, unified_step

MOVES = np.array([[4.0, 0], [0, 1], [3, 3]])
OLD = np.array([10.0, 10])


def units(d: np.ndarray) -> np.ndarray:
    return d / np.linalg.norm(d, axis=1, keepdims=True)


def gap(u: np.ndarray, alpha: np.ndarray) -> float:
    """||g||^2 - min_k <u_k, g>: at least the squared distance of g from the shortest point, which is the only one at 0,
    because for a point p of the hull <p, g> >= min_k <u_k, g>.
    """
    g = alpha @ u
    return float(g @ g - (u @ g).min())


def test_step_by_hand() -> None:
    new, alpha = unified_step(OLD, list(OLD - MOVES))
    np.testing.assert_allclose(alpha, [0.5, 0.5, 0], atol=1e-12)
    np.testing.assert_allclose(new, [2, 2], atol=1e-12)
    np.testing.assert_allclose(units(MOVES) @ (alpha @ units(MOVES)), [0.5, 0.5, 0.7071068], atol=1e-7)


def test_misreadings_differ() -> None:
    np.testing.assert_allclose(min_norm_weights(MOVES @ MOVES.T), [1 / 17, 16 / 17, 0], atol=1e-12)  # not normalised
    two = unified_step(OLD, list(OLD - MOVES[:2]))[1]
    np.testing.assert_allclose(two, [0.5, 0.5], atol=1e-12)  # not the shares (.9, .1) they might start from
    assert gap(units(MOVES), np.array([0.5995, 0.4005, 0])) > 0.01  # where the authors' solver stalls
    assert gap(units(MOVES), np.array([0.5, 0.5, 0])) < 1e-12


@pytest.mark.parametrize(("clients", "dim"), [(2, 3), (5, 40), (10, 6), (40, 200), (60, 20)])
def test_weights_are_optimal(clients: int, dim: int) -> None:
    draws = np.random.default_rng(clients)
    for shift in (0.0, 0.3, 3.0):
        u = units(draws.normal(size=(clients, dim)) + shift)
        alpha = min_norm_weights(u @ u.T)
        assert alpha.min() >= 0
        assert abs(alpha.sum() - 1) < 1e-9
        assert gap(u, alpha) < 1e-12
        for near in (1e-5, 1e-7, 1e-9):
            more = np.concatenate([u, u, u + near * draws.normal(size=u.shape)])
            assert gap(more, min_norm_weights(more @ more.T)) < 1e-12


@pytest.mark.parametrize(
    ("vectors", "point", "weights"),
    [
        ([[3, 4]], [3, 4], [1]),
        ([[1, 0], [1, 0]], [1, 0], None),  # twice the same
        ([[2, 0], [0, 1], [0, 1]], [0.4, 0.8], None),
        ([[2, 0], [0, 1]], [0.4, 0.8], [0.2, 0.8]),
        ([[0, 0], [3, 4]], [0, 0], [1, 0]),
        ([[0, 0], [0, 0]], [0, 0], None),
        ([[1, 1], [2, 2], [5, 5]], [1, 1], [1, 0, 0]),  # on a line through 0, which lies outside
        ([[-1, -1], [2, 2]], [0, 0], [2 / 3, 1 / 3]),
        ([[1, -1], [1, 0], [1, 3]], [1, 0], None),  # on a line beside 0
        ([[1, 1], [3, 1]], [1, 1], [1, 0]),
        ([[1, 0], [-1, 1], [-1, -1]], [0, 0], [0.5, 0.25, 0.25]),  # 0 lies inside
        ([[1, 2, 2], [2, 1, -2], [2, -2, 1]], [5 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 1 / 3]),
        ([[1e-150, 0], [0, 2e-150]], [0.8e-150, 0.4e-150], [0.8, 0.2]),
        ([[1e150, 0], [0, 2e150]], [0.8e150, 0.4e150], [0.8, 0.2]),
    ],
)
def test_the_shortest_point_by_hand(
    vectors: list[list[float]], point: list[float], weights: list[float] | None
) -> None:
    u = np.array(vectors, float)
    alpha = min_norm_weights(u @ u.T)
    np.testing.assert_allclose(alpha @ u, point, atol=1e-12 * max(1, np.abs(u).max()), rtol=1e-9)
    if weights is not None:
        np.testing.assert_allclose(alpha, weights, atol=1e-12)


def test_weights_that_are_not_optimal_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scipy.optimize.nnls", lambda a, b, maxiter: (np.ones(3), 0.0))
    with pytest.raises(ArithmeticError, match=r"from the optimum; at most 1e-09 is allowed"):
        min_norm_weights(MOVES @ MOVES.T)


def test_a_search_that_runs_out_of_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nnls = scipy.optimize.nnls
    monkeypatch.setattr("scipy.optimize.nnls", lambda a, b, maxiter: nnls(a, b, maxiter=1))
    with pytest.raises(ArithmeticError, match=r"min_norm_weights: Maximum number of iterations"):
        min_norm_weights(MOVES @ MOVES.T)


def test_same_moves_and_opposite_moves() -> None:
    same = np.tile([0.6, 0.8], (4, 1))
    assert gap(same, min_norm_weights(same @ same.T)) < 1e-9
    opposite = np.array([[1.0, 0], [-1, 0]])
    np.testing.assert_allclose(min_norm_weights(opposite @ opposite.T), [0.5, 0.5], atol=1e-12)
    np.testing.assert_allclose(min_norm_weights(np.array([[3.0]])), [1])


def test_order_and_length_of_moves_change_nothing() -> None:
    draws = np.random.default_rng(0)
    old, moves = draws.normal(size=50), draws.normal(size=(7, 50)) + 0.2
    new, alpha = unified_step(old, list(old - moves))
    order = draws.permutation(7)
    permuted, permuted_alpha = unified_step(old, list(old - moves[order]))
    np.testing.assert_allclose(permuted, new, atol=1e-9)
    np.testing.assert_allclose(permuted_alpha, alpha[order], atol=1e-9)
    scaled, scaled_alpha = unified_step(old, list(old - moves * np.geomspace(1e-3, 1e3, 7)[:, None]))
    np.testing.assert_allclose(scaled, new, atol=1e-8)
    np.testing.assert_allclose(scaled_alpha, alpha, atol=1e-8)


def test_no_clients_distance_grows_for_a_small_step() -> None:
    draws = np.random.default_rng(1)
    old, moves = draws.normal(size=50), draws.normal(size=(7, 50)) + 0.2
    new, _ = unified_step(old, list(old - moves), lr=1e-3)
    before, after = (np.linalg.norm(x - (old - moves), axis=1) for x in (old, new))
    assert (after < before).all()


def test_clients_that_did_not_move_are_left_out_and_float32_stays() -> None:
    old = OLD.astype(np.float32)
    still = [*(old - MOVES.astype(np.float32)), old]
    new, alpha = unified_step(old, still)
    assert new.dtype == np.float32
    np.testing.assert_allclose(new, [2, 2], atol=1e-5)
    assert alpha[3] == 0
    same, none = unified_step(old, [old, old])
    np.testing.assert_array_equal(same, old)
    np.testing.assert_array_equal(none, [0, 0])


def test_a_relative_step_is_as_long_as_the_moves() -> None:
    same = np.tile(MOVES[2], (3, 1))
    new, _ = unified_step(OLD, list(OLD - same), relative=np.full(3, 1 / 3))
    np.testing.assert_allclose(new, OLD - MOVES[2], atol=1e-9)  # all agree: where they are


def test_many_parameters_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(2)
    old, moves = draws.normal(size=23), draws.normal(size=(4, 23))
    whole = unified_step(old, list(old - moves))
    monkeypatch.setattr("rayfed_ssl.methods.parts.unified.CHUNK", 5)
    parts = unified_step(old, list(old - moves))
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-12)
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-12)


@pytest.mark.parametrize("gram", [np.ones((2, 3)), np.array([[np.nan]]), np.zeros((0, 0))])
def test_bad_matrices(gram: np.ndarray) -> None:
    with pytest.raises(ValueError, match="a finite square matrix is needed"):
        min_norm_weights(gram)


def test_sharpened_shares() -> None:
    shares = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(sharpened(shares, 0.5), [0.1052632, 0.2368421, 0.6578947], atol=1e-7)
    np.testing.assert_allclose(sharpened(shares, 1.0), shares, atol=1e-12)
    np.testing.assert_allclose(sharpened(shares, 0.1), [0.0001042, 0.0060096, 0.9938861], atol=1e-7)
    np.testing.assert_allclose(sharpened(np.array([0.0, 2.0, 6.0]), 1.0), [0, 0.25, 0.75], atol=1e-12)


def test_equalised_epochs() -> None:
    """Of clients with 10,000, 1,000 and 300 images in batches of 128, the short last ones counted (O-U2-4)."""
    batches = [math.ceil(images / 128) for images in (10000, 1000, 300)]
    assert [equalised_epochs(b, max(batches), 5) for b in batches] == [5, 10, 10]
    assert [equalised_epochs(b, max(batches), 5, most=1000) for b in batches] == [5, 49, 131]
    assert equalised_epochs(2, 2, 2) == 2
