"""Tests of ensembles of random features: two readouts on separate projections, with the same samples.

The overlap of the errors of two members is an order parameter of the theory of both.  So the loss of the
mean of E members is the bias, which is the overlap, plus the variance over projections divided by E.  A
family of members has an index of its own, and is marched exactly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from numpy.typing import NDArray
from sympy import Expr, Function, Integer, S, Sum, Symbol, sqrt

import numerics
from derive.calculus.symbols import t
from derive.program import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    Gradient,
    GradientDescent,
    GradientFlow,
    IndexRange,
    Mean,
    Network,
    Parametrization,
    Population,
    Program,
    eta,
)
from derive.program.networks import random_features
from derive.program.networks.random_data import B, M, N, P, k
from derive.reduce.data import mode_sums
from derive.theory import mean_field
from numerics.errors import SpecError
from numerics.experiment.schema import Solver
from numerics.lowering.linear import NotLinear, lower
from tests.chance import excess
from tests.numerics.networks.case import Case
from tests.numerics.networks.random_features import power_law_arrays

Array = NDArray[np.float64]

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


ROUNDING = 1e-12
"""Relative rounding error of a march of a few steps."""
e = Symbol("e", integer=True)
"""A member of the family."""


def family(members: int, data: str = "full-batch", *, same: bool = False, scale: Expr = S.One) -> Program:
    """Return members e of one family; ``same`` is one projection for all, ``scale`` multiplies targets."""
    own, fresh = IndexRange(e, S.One, Integer(members)), data == "online"
    modes, features = Population("modes"), Population("features", ratio=N / M)
    samples = Population("samples", ratio=(B if fresh else P) / M)
    lamda, target = Attribute("lamda", modes), Attribute("w_star", modes)
    a, v, Delta = Field("a", features), Field("v", modes), Field("Delta", samples)
    A = GaussianMatrix("A", features, modes, M, others=() if same else (own,))
    Z = GaussianMatrix("Z", samples, modes, M, fresh=fresh)
    w = GaussianVector("w", features, variance=0, indices=(own,))
    eps = GaussianVector("eps", samples, source="eps", fresh=fresh)
    seen, projected = sqrt(lamda(k)) * v(e, t), (A if same else A(e)).T @ a(e, t)
    lines = {a(e, t): w.symbol, v(e, t): scale * target(k) - projected / N}
    fields: tuple[Field, ...] = (a, v)
    drawn: tuple[GaussianMatrix | GaussianVector, ...] = (A,)
    loss, notation = M * Mean(seen**2) / 2, {seen: "C_v"}
    if data != "population":
        lines[Delta(e, t)] = Z @ seen + Symbol("sigma", positive=True) * eps.symbol
        fields, drawn, loss = (a, v, Delta), (A, Z, eps), Mean(Delta(e, t) ** 2) / 2
        notation[Delta(e, t)] = "C_Delta"
    attributes = (lamda, target)
    net = Network("members", fields, lines, (w,), drawn, attributes=attributes, ranges=(own,))
    named = {"v": Gradient("h0", normal=-1 / M), "a": Gradient("g_a", normal=N / M)}
    rule = GradientFlow() if data == "population" else GradientDescent(eta)
    scaling = Parametrization(S.One, rate=N / M)
    return net.train(Sum(loss, (e, 1, members)), rule, scaling, gradients=named, notation=notation)


def family_case(modes: int, steps: int, data: str = "full-batch", *, same: bool = False) -> Case:
    """Return two members of a family, on data of :func:`case`."""
    samples = {"online": "B"}.get(data, "P")
    numbers = {"eta": 0.5, "N": modes / 2, samples: 2.0 * modes, "sigma": 0.3}
    sizes = {"widths": (8 * modes, 16 * modes), "seeds": (400, 200)}
    return Case(family(2, data, same=same), numbers, power_law_arrays(modes), steps, kernels="full", **sizes)


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


@pytest.mark.parametrize("data", ["full-batch", "online"])
def test_each_member_of_a_family_has_the_theory_of_one(data: str) -> None:
    """Each member has the correlations of one network, and all pairs of members have the same overlap."""
    few = family_case(8, 6, data)
    one = few.theory(random_features(data=data, rule="gd", noise=True)).C_v.values
    found = few.theory(family(3, data)).C_v.values
    for i in range(3):
        np.testing.assert_allclose(found[..., i, i], one, rtol=ROUNDING)
    overlap = found[..., 0, 1]
    for i, j in ((1, 0), (0, 2), (2, 1)):
        np.testing.assert_allclose(found[..., i, j], overlap, rtol=ROUNDING)
    assert overlap[-1, -1] < 0.95 * one[-1, -1]


@pytest.mark.parametrize("data", ["full-batch", "online"])
def test_members_with_one_projection_are_one_network(data: str) -> None:
    few = family_case(8, 6, data, same=True)
    found = few.theory().C_v.values
    np.testing.assert_allclose(found, np.broadcast_to(found[..., :1, :1], found.shape), rtol=ROUNDING)


def test_flow_of_a_family_on_the_population_is_that_of_one() -> None:
    """The implicit rule iterates all members together."""
    given: dict[str, Any] = {"numbers": {"N": 4.0}, "arrays": power_law_arrays(8), "times": [0.0, 1.0, 2.0]}
    solver = Solver(method="march", rtol=1e-6)
    found = numerics.solve(family(2, "population"), **given, solver=solver, kernels="full")
    pair = found.C_v.values
    np.testing.assert_allclose(found.train_loss, np.einsum("ttcc->t", pair), rtol=1e-12)
    one = numerics.solve(
        random_features(data="population"), **given, solver=solver, kernels="full"
    ).C_v.values
    for i in range(2):
        np.testing.assert_allclose(pair[..., i, i], one, rtol=2 * solver.rtol)
    assert pair[-1, -1, 0, 1] < 0.95 * one[-1, -1]


def test_members_with_names_of_their_own_have_correlated_sources_and_are_refused() -> None:
    """Samples that two fields of modes share drive both, by sources that correlate."""
    theory = mode_sums(mean_field(two_projections()))
    with pytest.raises(NotLinear, match="correlated sources of units with attributes"):
        lower(theory)


def test_members_with_targets_that_depend_on_their_index_are_refused() -> None:
    few = family_case(8, 6)
    with pytest.raises(SpecError, match=r"coefficient e\*w_star\(k\) depends on e"):
        few.theory(family(2, scale=e))


def distances(theory: Array, networks: list[xr.Dataset]) -> Array:
    """Return theory minus networks extrapolated in width, in standard errors, for ``C_v`` at equal times."""
    values = [np.einsum("ttij->tij", x.C_v.values)[1:] for x in networks]
    errors = [np.einsum("ttij->tij", x.C_v_stderr.values)[1:] for x in networks]
    extrapolated, error = 2 * values[1] - values[0], np.hypot(2 * errors[1], errors[0])
    z: Array = (np.einsum("ttij->tij", theory)[1:] - extrapolated) / error
    return z


@pytest.mark.slow
@pytest.mark.parametrize("data", ["full-batch", "online"])
def test_members_and_their_overlaps_agree_with_networks(data: str) -> None:
    """``C_v`` of each pair of members, against networks of two widths; one projection for all is seen."""
    few = family_case(MODES, 10, data)
    networks, dof = few.networks(), min(few.seeds) - 1
    assert excess(distances(few.theory().C_v.values, networks), dof) <= 1
    shared = few.theory(family(2, data, same=True)).C_v.values
    assert excess(distances(shared, networks), dof) > 1
