"""Logistic regression in the span of its rows against scikit-learn's, step by step."""

import numpy as np
import pytest
import scipy.optimize
from sklearn.linear_model import LogisticRegression

from rayfed_ssl.evaluation import logistic
from rayfed_ssl.evaluation.logistic import logistic_regression


def problem(rows: int = 40, features: int = 300, classes: int = 5, shared: float = 0.2):
    draw = np.random.default_rng(rows)
    x = draw.normal(size=(rows, features)) + shared * draw.normal(size=(rows, 1)) * draw.normal(size=features)
    return x, 3 * draw.permutation(np.arange(rows) % classes) + 1


@pytest.mark.parametrize("C", [0.1, 1.0])
@pytest.mark.parametrize("copies", [0, 15])
def test_it_takes_scikit_learns_steps_and_stops_where_that_stops(monkeypatch, C, copies):
    x, y = problem()
    x[len(x) - copies :] = x[:copies]  # rows that span less than their number
    wanted = LogisticRegression(C=C, max_iter=1000).fit(x, y)
    sizes, minimize = [], scipy.optimize.minimize
    monkeypatch.setattr(
        scipy.optimize, "minimize", lambda of, x0, **rest: (sizes.append(len(x0)), minimize(of, x0, **rest))[1]
    )
    monkeypatch.setattr(logistic, "LARGE", 0)
    monkeypatch.setattr(logistic, "PROBES", 1)
    found = logistic_regression(x, y, C)
    assert sizes == [5 * (40 + 1)]  # not 5 x 301
    assert found.n_iter_ == wanted.n_iter_
    assert found.coef_ == pytest.approx(wanted.coef_, rel=0, abs=1e-6 * abs(wanted.coef_).max())
    assert found.intercept_ == pytest.approx(wanted.intercept_, rel=0, abs=1e-6)
    unseen = np.random.default_rng(1).normal(size=(50, 300))
    assert (found.predict(unseen) == wanted.predict(unseen)).all()
    assert found.predict_proba(unseen) == pytest.approx(wanted.predict_proba(unseen), abs=1e-6)


@pytest.mark.parametrize(
    "shape", [{}, {"rows": 40, "features": 30}, {"classes": 2}], ids=["small", "few features", "two classes"]
)
def test_other_problems_are_scikit_learns_to_the_bit(monkeypatch, shape):
    monkeypatch.setattr(logistic, "LARGE", 0 if shape else logistic.LARGE)
    x, y = problem(**shape)
    assert (logistic_regression(x, y, 1.0).coef_ == LogisticRegression(max_iter=1000).fit(x, y).coef_).all()
