"""Formulas in time against the solver's evaluation of the same expansion on a grid."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from sympy import Matrix, Rational, diag, eye, lambdify

from derive.expansion import LinearExpansion, expand_linear
from derive.program import L, s, t
from numerics.expansion import expand
from numerics.experiment import Experiment
from tests.derive.once import mean_field, mlp

R = Rational
RTOL = 1e-8


@lru_cache(maxsize=4)
def words(order: int, loss: str) -> LinearExpansion:
    return expand_linear(mean_field(mlp(rule="flow", loss=loss)), order)


def array(e: Any, times: Any) -> Any:
    """Return values at pairs of times."""
    grid = np.meshgrid(times, times, indexing="ij")
    return np.broadcast_to(lambdify((t, s), e, "numpy")(*grid), grid[0].shape)


@pytest.mark.parametrize(
    ("samples", "depth", "order", "loss"),
    [
        (1, 1, 2, "sum"),
        pytest.param(2, 3, 2, "mean", marks=pytest.mark.slow),
        pytest.param(3, 2, 4, "sum", marks=pytest.mark.slow),
        pytest.param(2, 4, 4, "mean", marks=pytest.mark.slow),
    ],
)
def test_the_flow_in_time(samples: int, depth: int, order: int, loss: str) -> None:
    v = Matrix([1] * samples)
    basis = eye(samples) - 2 * v * v.T / samples if samples > 1 else eye(1)
    values, targets = [R(7, 5), R(3, 5), R(1, 3)][:samples], [R(1), R(-1, 2), R(3, 4)][:samples]
    found = words(order, loss).in_time(values, targets)
    e = Experiment.from_dict(
        {
            "network": {"depth": depth},
            "training": {"rule": "flow", "time": 1.5, "points": 4, "loss": loss},
            "solver": {"rtol": RTOL},
        },
        kernel=np.array((basis * diag(*values) * basis.T).tolist(), dtype=float),
        targets=np.array((basis * Matrix(targets)).tolist(), dtype=float).ravel(),
    )
    expected = expand(e, order)
    times, q = expected.time.values, np.array(basis.tolist(), dtype=float)
    past = np.tril(np.ones((len(times), len(times))))[:, :, None]

    def entries(name: str, n: int, layer: int = 1) -> Any:
        out = []
        for i in range(1 if name in ("G", "B") else samples):
            row = []
            for j in range(1 if name in ("G", "A") else samples):
                modes = {"G": (), "A": (i,), "B": (j,)}.get(name, (i, j))
                e = found.coefficient(name, n, *modes, layer=layer)
                row.append(array(e.subs(L, depth), times))
            out.append(row)
        return np.moveaxis(np.array(out), (0, 1), (2, 3))

    def close(mine: Any, name: str, solver: Any) -> None:
        # the solver stops when Delta settles to rtol; order by order that is an absolute error of that size
        assert np.abs(mine - solver).max() <= 30 * RTOL * max(1, np.abs(solver).max()), name

    for n in range(0, order + 1, 2):
        at = expected.sel(order=n)
        error = np.stack(
            [array(found.Delta(n, k).subs(L, depth), times)[:, 0] for k in range(samples)], axis=1
        )
        close(error @ q.T, "error", at.error.values)
        close(array(found.loss(n).subs(L, depth), times)[:, 0], "train_loss", at.train_loss.values)
        close(np.einsum("mi,tsij,nj->tsmn", q, entries("K", n), q), "K", at.tangent_kernel.values)
        for layer in range(1, depth + 1):
            H = np.einsum("mi,tsij,nj->tsmn", q, entries("H", n, layer), q)
            close(H, "Phi", at.Phi.values[layer - 1])
            close(entries("G", n, layer)[..., 0, 0], "G", at.G.values[layer - 1])
            close(entries("A", n, layer)[..., 0] @ q.T * past, "A", at.A.values[layer - 1])
            close(entries("B", n, layer)[..., 0, :] @ q.T * past, "B", at.B.values[layer - 1])
