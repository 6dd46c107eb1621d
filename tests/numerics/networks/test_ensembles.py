"""Ensembles of random features: two readouts on projections of their own, trained on the same samples.

The overlap of the errors of two members is an order parameter of the theory of both.  So the loss of the
mean of E members is the bias, which is the overlap, plus the variance over projections divided by E.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sympy import Expr, Function, S, Symbol, sqrt

from derive.calculus.symbols import t
from derive.program import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    Gradient,
    GradientDescent,
    Mean,
    Network,
    Parametrization,
    Population,
    Program,
    eta,
)
from derive.program.networks.random_data import M, N, P, k
from derive.theory import mean_field
from numerics.experiment.schema import Solver
from tests.numerics.networks.case import Case
from tests.numerics.networks.random_features import power_law_arrays

MODES = 24
one, cross = Function("one"), Function("cross")
"""The loss of one member on new data, and the overlap of the errors of two, over the number of modes."""


def two_projections(same: bool = False) -> Program:
    """Return two readouts of random features on the same samples; with ``same`` their projections are one."""
    modes, features = Population("modes"), Population("features", ratio=N / M)
    samples = Population("samples", ratio=P / M)
    lamda, target = Attribute("lamda", modes), Attribute("w_star", modes)
    Z, eps = GaussianMatrix("Z", samples, modes, M), GaussianVector("eps", samples, source="eps")
    lines: dict[Expr, Expr] = {}
    fields: list[Field] = []
    starts: list[GaussianVector] = []
    projections: dict[str, GaussianMatrix] = {}
    for i in "12":
        a, v, Delta = Field(f"a{i}", features), Field(f"v{i}", modes), Field(f"Delta{i}", samples)
        A = projections.setdefault(
            "A" if same else f"A{i}", GaussianMatrix("A" if same else f"A{i}", features, modes, M)
        )
        starts.append(GaussianVector(f"w{i}", features, variance=0))
        lines[a(t)] = starts[-1].symbol
        lines[v(t)] = target(k) - (A.T @ a(t)) / N
        lines[Delta(t)] = Z @ (sqrt(lamda(k)) * v(t)) + Symbol("sigma", positive=True) * eps.symbol
        fields += [a, v, Delta]
    seen = [sqrt(lamda(k)) * Function(f"v{i}")(t) for i in "12"]
    lines |= {one(t): Mean(seen[0] ** 2), cross(t): Mean(seen[0] * seen[1])}
    loss = sum((Mean(Function(f"Delta{i}")(t) ** 2) / 2 for i in "12"), S.Zero)
    drawn = (*projections.values(), Z, eps)
    net = Network("two projections", tuple(fields), lines, tuple(starts), drawn, attributes=(lamda, target))
    named = {f"v{i}": Gradient(f"h{i}", normal=-1 / M) for i in "12"}
    named |= {f"a{i}": Gradient(f"g{i}", normal=N / M) for i in "12"}
    return net.train(loss, GradientDescent(eta), Parametrization(S.One, rate=N / M), gradients=named)


def case(same: bool = False) -> Case:
    """Return both members with half as many features as modes, on twice as many samples."""
    numbers = {"eta": 0.5, "N": MODES / 2, "P": 2.0 * MODES, "sigma": 0.3, "M": MODES}
    sizes = {"widths": (4 * MODES, 8 * MODES), "seeds": (200, 100)}
    arrays = power_law_arrays(MODES)
    return Case(
        two_projections(same), numbers, arrays, 10, solver=Solver(samples=2**10), kernels="none", **sizes
    )


def test_members_share_samples_and_nothing_else() -> None:
    theory = mean_field(two_projections())
    pairs = {(str(u.symbol.func), str(u.partner.func)) for u in theory.sources}
    mixed = {pair for pair in pairs if pair[0] != pair[1]}
    assert all("_Z_" in first and "_Z_" in second for first, second in mixed)
    assert mixed


@pytest.mark.slow
def test_bias_and_variance_over_projections_agree_with_networks() -> None:
    theory = case().theory()
    variance = (theory.one - theory.cross).values
    assert abs(variance[0]) < 1e-9
    assert variance[-1] > 0.1 * float(theory.one[-1])
    assert np.all(np.diff(theory.cross) < 0)
    report = case().compared()
    assert report.passed, report


@pytest.mark.slow
def test_networks_with_one_projection_have_no_variance() -> None:
    assert not case().compared(replace(case(same=True)).program).passed
