"""Slow, independent versions of the losses: plain Python loops over numpy float64, straight from the equations.

Shape legend: V views, B batch, D embedding, K bank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def cosine(a: Array, b: Array) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def nt_xent(z_a: ArrayLike, z_b: ArrayLike, temperature: float) -> float:
    """Chen et al. 2020: row i's positive is the other view of its image, its denominator all rows but itself."""
    rows = [*np.asarray(z_a, float), *np.asarray(z_b, float)]
    half = len(rows) // 2
    losses = []
    for i, row in enumerate(rows):
        positive = math.exp(cosine(row, rows[(i + half) % len(rows)]) / temperature)
        everything = sum(math.exp(cosine(row, other) / temperature) for j, other in enumerate(rows) if j != i)
        losses.append(-math.log(positive / everything))
    return sum(losses) / len(losses)


def info_nce(z_a: ArrayLike, z_b: ArrayLike, temperature: float, bank: ArrayLike = ()) -> float:
    """Anchors of view 1 against the B views 2 and K dictionary entries."""
    anchors, keys, extra = (np.asarray(z, float) for z in (z_a, z_b, bank))
    losses = []
    for i, anchor in enumerate(anchors):
        scores = [math.exp(cosine(anchor, key) / temperature) for key in [*keys, *extra]]
        losses.append(-math.log(scores[i] / sum(scores)))
    return sum(losses) / len(losses)


def byol(p_a: ArrayLike, p_b: ArrayLike, target_a: ArrayLike, target_b: ArrayLike) -> float:
    """Both directions of 2 - 2 cos, summed, mean over the batch."""
    quadruples = zip(*(np.asarray(z, float) for z in (p_a, p_b, target_a, target_b)), strict=True)
    losses = [(2 - 2 * cosine(pa, tb)) + (2 - 2 * cosine(pb, ta)) for pa, pb, ta, tb in quadruples]
    return sum(losses) / len(losses)


def _ordered_pairs(count: int) -> Iterator[tuple[int, int]]:
    return ((u, v) for u in range(count) for v in range(count) if u != v)


def spectral(z: ArrayLike) -> float:
    """-2 E z_a.z_b over views of one image + E (z.z')^2 over all pairs of rows: z (V, B, D). No correlation matrix."""
    z = np.asarray(z, float)
    views, batch, _ = z.shape
    attraction = [float(z[u, i] @ z[v, i]) for i in range(batch) for u, v in _ordered_pairs(views)]
    rows = z.reshape(views * batch, -1)
    contrast = [float(a @ b) ** 2 for a in rows for b in rows]
    return -2 * sum(attraction) / len(attraction) + sum(contrast) / len(contrast)


def spectral_against(z: ArrayLike, others: ArrayLike, alpha: float) -> float:
    """FedSC's local loss with the other clients' rows (M, D) at hand: z (V, B, D)."""
    z, others = np.asarray(z, float), np.asarray(others, float)
    views, batch, _ = z.shape
    attraction = [float(z[u, i] @ z[v, i]) for i in range(batch) for u, v in _ordered_pairs(views)]
    rows = z.reshape(views * batch, -1)
    within = [float(a @ b) ** 2 for a in rows for b in rows]
    between = [float(a @ b) ** 2 for a in rows for b in others]
    return (
        -2 * sum(attraction) / len(attraction)
        + alpha * sum(within) / len(within)
        + 2 * (1 - alpha) * sum(between) / len(between)
    )


def _unit(rows: ArrayLike) -> list[Array]:
    return [row / math.sqrt(float(row @ row)) for row in np.asarray(rows, float)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _moments(column: Array) -> tuple[float, float]:
    """Mean and sum of squared deviations."""
    mean = _mean([float(v) for v in column])
    return mean, sum((float(v) - mean) ** 2 for v in column)


def barlow_twins(z_a: ArrayLike, z_b: ArrayLike, redundancy: float, eps: float) -> float:
    """Zbontar et al. 2021, eq. 1-2, with the biased variance plus eps."""
    a, b = np.asarray(z_a, float), np.asarray(z_b, float)
    count, dim = a.shape
    loss = 0.0
    for i in range(dim):
        for j in range(dim):
            (mean_a, squares_a), (mean_b, squares_b) = _moments(a[:, i]), _moments(b[:, j])
            product = sum((float(a[r, i]) - mean_a) * (float(b[r, j]) - mean_b) for r in range(count)) / count
            c = product / math.sqrt((squares_a / count + eps) * (squares_b / count + eps))
            loss += (1 - c) ** 2 if i == j else redundancy * c**2
    return loss


def vicreg_terms(z_a: ArrayLike, z_b: ArrayLike) -> tuple[float, float, float]:
    """Bardes et al. 2022: mean squared difference, mean hinge of both views, sum of both views' covariances."""
    a, b = np.asarray(z_a, float), np.asarray(z_b, float)
    count, dim = a.shape
    invariance = _mean([(float(a[r, i]) - float(b[r, i])) ** 2 for r in range(count) for i in range(dim)])
    variance = covariance = 0.0
    for z in (a, b):
        means = [_moments(z[:, i])[0] for i in range(dim)]
        deviations = [math.sqrt(_moments(z[:, i])[1] / (count - 1) + 1e-4) for i in range(dim)]
        variance += _mean([max(0.0, 1 - d) for d in deviations]) / 2
        for i, j in _ordered_pairs(dim):
            products = [(float(z[r, i]) - means[i]) * (float(z[r, j]) - means[j]) for r in range(count)]
            covariance += (sum(products) / (count - 1)) ** 2 / dim
    return invariance, variance, covariance


def queue_contrast(q: ArrayLike, k: ArrayLike, queue: ArrayLike, temperature: float) -> float:
    """He et al. 2020, eq. 1: one positive, the queue's negatives."""
    losses = []
    for query, key in zip(np.asarray(q, float), np.asarray(k, float), strict=True):
        positive = math.exp(cosine(query, key) / temperature)
        negatives = sum(math.exp(cosine(query, other) / temperature) for other in np.asarray(queue, float))
        losses.append(-math.log(positive / (positive + negatives)))
    return _mean(losses)


def sinkhorn_codes(scores: ArrayLike, epsilon: float, iterations: int) -> Array:
    """Caron et al. 2020: prototypes' totals, then samples' totals, in turn."""
    q = [[math.exp(float(s) / epsilon) for s in row] for row in np.asarray(scores, float)]
    batch, prototypes = len(q), len(q[0])
    for _ in range(iterations):
        columns = [sum(row[c] for row in q) for c in range(prototypes)]
        q = [[row[c] / columns[c] / prototypes for c in range(prototypes)] for row in q]
        q = [[value / sum(row) / batch for value in row] for row in q]
    return np.array([[batch * value for value in row] for row in q])


def swav(s_a: ArrayLike, s_b: ArrayLike, temperature: float, epsilon: float, iterations: int) -> float:
    """Both directions of the swapped prediction, mean."""
    scores = [np.asarray(s, float) for s in (s_a, s_b)]
    losses = []
    for view in (0, 1):
        codes = sinkhorn_codes(scores[view], epsilon, iterations)
        for code, row in zip(codes, scores[1 - view], strict=True):
            total = sum(math.exp(float(s) / temperature) for s in row)
            losses.append(
                -sum(float(q) * (float(s) / temperature - math.log(total)) for q, s in zip(code, row, strict=True))
            )
    return _mean(losses)


def nnclr(
    z_a: ArrayLike, z_b: ArrayLike, p_a: ArrayLike, p_b: ArrayLike, queue: ArrayLike, temperature: float
) -> float:
    """Dwibedi et al. 2021, Algorithm 1: a view's neighbour in the queue, by distance, and the other's predictions."""
    losses = []
    for z, p in ((z_a, p_b), (z_b, p_a)):
        for i, query in enumerate(_unit(z)):
            distances = [float((query - row) @ (query - row)) for row in _unit(queue)]
            neighbour = np.asarray(queue, float)[distances.index(min(distances))]
            scores = [math.exp(cosine(neighbour, other) / temperature) for other in np.asarray(p, float)]
            losses.append(-math.log(scores[i] / sum(scores)))
    return _mean(losses)


def dino(
    students: tuple[ArrayLike, ArrayLike],
    teachers: tuple[ArrayLike, ArrayLike],
    center: ArrayLike,
    temperature: float,
    teacher_temperature: float,
) -> float:
    """Caron et al. 2021, Algorithm 1: H(t_1, s_2) / 2 + H(t_2, s_1) / 2 of scores (B, K)."""
    losses = []
    for teacher, student in ((teachers[0], students[1]), (teachers[1], students[0])):
        for t, s in zip(np.asarray(teacher, float), np.asarray(student, float), strict=True):
            sharp = [math.exp((v - c) / teacher_temperature) for v, c in zip(t, np.asarray(center, float), strict=True)]
            total = sum(math.exp(v / temperature) for v in s)
            log_p = [float(v) / temperature - math.log(total) for v in s]
            losses.append(-sum(p / sum(sharp) * q for p, q in zip(sharp, log_p, strict=True)))
    return _mean(losses)


def align_uniform(z_a: ArrayLike, z_b: ArrayLike, weight: float, t: float) -> float:
    """Wang and Isola 2020: squared distance of positives, log of the mean potential over pairs i < j."""
    a, b = _unit(z_a), _unit(z_b)
    align = _mean([float((x - y) @ (x - y)) for x, y in zip(a, b, strict=True)])
    uniform = 0.0
    for rows in (a, b):
        pairs = [(i, j) for i, j in _ordered_pairs(len(rows)) if i < j]
        potentials = [math.exp(-t * float((rows[i] - rows[j]) @ (rows[i] - rows[j]))) for i, j in pairs]
        uniform += math.log(_mean(potentials)) / 2
    return align + weight * uniform


def decorrelation(x: ArrayLike) -> float:
    """Shi et al. 2023, code form: ((N - 1)^2 / N) times the mean squared correlation of different columns."""
    rows = np.asarray(x, float)
    count, dim = rows.shape
    squares = []
    for i, j in _ordered_pairs(dim):
        (mean_i, spread_i), (mean_j, spread_j) = _moments(rows[:, i]), _moments(rows[:, j])
        product = sum((float(row[i]) - mean_i) * (float(row[j]) - mean_j) for row in rows)
        squares.append(product**2 / (spread_i * spread_j))
    return (count - 1) ** 2 / count * _mean(squares)


def sliced_wasserstein(z: ArrayLike, targets: ArrayLike, base: ArrayLike, directions: ArrayLike) -> list[float]:
    """Per base point: coordinates of tangent vectors along each direction, sorted, squared differences, mean."""

    def log(b: Array, y: Array) -> Array:
        u = y - float(b @ y) * b
        return math.acos(float(b @ y)) * u / math.sqrt(float(u @ u))

    found = []
    for b, along in zip(np.asarray(base, float), np.asarray(directions, float), strict=True):
        differences = []
        for w in along:
            mine = sorted(float(w @ log(b, y)) for y in np.asarray(z, float))
            theirs = sorted(float(w @ log(b, y)) for y in np.asarray(targets, float))
            differences += [(u - v) ** 2 for u, v in zip(mine, theirs, strict=True)]
        found.append(_mean(differences))
    return found


def _softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def relational(z_a: ArrayLike, z_b: ArrayLike, z_r: ArrayLike, temperature: float, target_temperature: float) -> float:
    """FedX's code: mean over views of KL(m || s), m the mean of both views' softmaxes at the target temperature."""
    losses = []
    for a, b in zip(np.asarray(z_a, float), np.asarray(z_b, float), strict=True):
        cosines = [[cosine(v, r) for r in np.asarray(z_r, float)] for v in (a, b)]
        first, second = (_softmax([c / target_temperature for c in row]) for row in cosines)
        m = [(p + q) / 2 for p, q in zip(first, second, strict=True)]
        for row in cosines:
            s = _softmax([c / temperature for c in row])
            losses.append(sum(p * math.log(p / q) for p, q in zip(m, s, strict=True)))
    return _mean(losses)


def balanced_assignment(scores: ArrayLike, sharpness: float, iterations: int) -> Array:
    """Orchestra's Sinkhorn without its early end: row softmaxes, then column and row totals in turn."""
    w = [_softmax([sharpness * float(s) for s in row]) for row in np.asarray(scores, float)]
    rows, columns = len(w), len(w[0])
    c = [1 / rows] * rows
    for _ in range(iterations):
        r = [1 / columns / sum(w[i][k] * c[i] for i in range(rows)) for k in range(columns)]
        c = [1 / rows / sum(w[i][k] * r[k] for k in range(columns)) for i in range(rows)]
    return np.array([[rows * w[i][k] * c[i] * r[k] for k in range(columns)] for i in range(rows)])


def masked_error(images: ArrayLike, masked: ArrayLike, predicted: ArrayLike, side: int) -> float:
    """He et al. 2022: images (B, C, S, S), numbers (B, M) of masked patches, row by row, and predictions of these
    (B, M, C side side): squared error of each masked patch's values, less their mean, over their unbiased deviation.
    """
    images, predicted = np.asarray(images, float), np.asarray(predicted, float)
    errors = []
    for i, numbers in enumerate(np.asarray(masked).tolist()):
        for j, number in enumerate(numbers):
            row, column = divmod(number, images.shape[3] // side)
            values = [
                images[i, c, row * side + y, column * side + x]
                for c in range(images.shape[1])
                for y in range(side)
                for x in range(side)
            ]
            mean = sum(values) / len(values)
            variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
            for value, guess in zip(values, predicted[i, j], strict=True):
                errors.append((guess - (value - mean) / math.sqrt(variance + 1e-6)) ** 2)
    return _mean(errors)
