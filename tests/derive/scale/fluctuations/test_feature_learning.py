"""Order gamma0^2 of fluctuations against one exact layer and against adjoint sweeps of small steps."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from sympy import Expr, Symbol, symbols

from derive.calculus.symbols import eta, gamma0, s, t
from derive.errors import NotApplicable
from derive.program import Program
from derive.program.centring import centred
from derive.program.rules import GradientDescent
from derive.scale.fluctuations import FeatureLearning, ascent_coefficients, feature_learning, one_layer_flow
from derive.scale.fluctuations.feature_learning import K_x, y
from derive.scale.fluctuations.one_layer import A, B, last
from derive.theory.fluctuations import fluctuations
from numerics.fluctuations.adjoint import AdjointFluctuations
from numerics.fluctuations.linear import GradientBlock
from numerics.fluctuations.lowered import LoweredFluctuations, TheorySizes
from numerics.lowering.expressions import KnownArrays
from tests.derive.once import mlp

NUMBERS = {K_x: 1.3, y: 0.9}
OPTIONS = pytest.mark.parametrize("option", [False, True], ids=["plain", "centred"])


@lru_cache(maxsize=8)
def series(depth: int, option: bool) -> FeatureLearning:
    program = mlp(depth, rule="flow")
    return feature_learning(centred(program) if option else program)


def total(parts: dict[int, Expr], richness: float, now: float, past: float) -> float:
    """Return the sum of a series in gamma0 at two times."""
    return sum(float(e.subs({**NUMBERS, t: now, s: past})) * richness**k for k, e in parts.items())


def test_the_ascent_of_one_layer() -> None:
    """``F = (A exp(2 x) - B exp(-2 x))/2``: ``c_n = 2^(n - 1) (A - (-1)^n B)`` and N Var A = 2."""
    found = ascent_coefficients(mlp(1, rule="flow"))
    assert found.means == {n: 2**n for n in (1, 3, 5)}
    assert found.covariances == {mn: 2 ** sum(mn) for mn in found.covariances}


def test_the_ascent_of_two_layers() -> None:
    """The output at the start is linear in the readout: its covariances are derivatives of means (Stein)."""
    found = ascent_coefficients(mlp(2))
    for n in (0, 2, 4):
        assert found.covariance(0, n) * found.means[1] == found.means[n + 1]
    assert found.covariance(1, 1) == 20


def test_the_end_of_training_of_one_layer() -> None:
    """The series of 4 K_x^3/(K_x + gamma0^2 y^2), and 4 K_x^2 for centred outputs."""
    assert str(series(1, False).kernel_variance_at_end()) == "4*K_x**2 - 4*K_x*gamma0**2*y**2"
    assert series(1, True).kernel_variance_at_end() == 4 * K_x**2
    assert "two more depths" in series(1, True).conditions()[1]


def test_refusals() -> None:
    with pytest.raises(NotApplicable, match="gradient flow and not for steps"):
        feature_learning(mlp(1))
    with pytest.raises(NotApplicable, match="as in a linear network"):
        feature_learning(mlp(1, "quadratic", rule="flow"))
    with pytest.raises(NotApplicable, match="natural numbers"):
        feature_learning(mlp(2, rule="flow", init_variance=Symbol("c", positive=True)))
    with pytest.raises(NotApplicable, match="without decay"):
        ascent_coefficients(mlp(1, weight_decay=Symbol("lam", positive=True)))


@pytest.mark.slow
@OPTIONS
def test_one_layer_at_all_times(option: bool) -> None:
    """The difference of the series from the exact closed form is of order gamma0^4."""
    program = mlp(1, rule="flow")
    exact, found = one_layer_flow(centred(program) if option else program), series(1, option)
    ends = {last: exact.growth_at_end.subs({A: 1, B: 1})}
    z = [exact.growth_at(x).subs({A: 1, B: 1}) for x in (0.7, 0.3)]
    for sensitivity, parts in (
        (exact.error_sensitivity, found.error_covariance()),
        (exact.kernel_sensitivity, found.kernel_covariance()),
    ):
        whole = exact.covariance(sensitivity, sensitivity, *z)
        gaps = []
        for richness in (0.1, 0.05):
            put = {**NUMBERS, gamma0: richness}
            value = float(whole.subs({k: v.subs(put) for k, v in ends.items()}).subs(put))
            gaps.append(value - total(parts, richness, 0.7, 0.3))
        assert np.log2(abs(gaps[0] / gaps[1])) == pytest.approx(4, abs=0.1)  # the next order is gamma0^6


@pytest.mark.slow
def test_any_depth() -> None:
    """Polynomials in the number of layers; that of the kernel at the start is a sum over layers."""
    plain, difference = (feature_learning(p) for p in (mlp(rule="flow"), centred(mlp(rule="flow"))))
    L = symbols("L", integer=True, positive=True)
    assert str(plain.ascent.covariance(1, 1)) == "2*L*(L + 1)*(2*L + 1)/3"
    assert str(plain.ascent.means[3]) == "2*L*(L + 1)**2*(L + 2)/3"
    start = 2 * K_x**2 * L * (L + 1) * (2 * L + 1) / 3
    learnt = gamma0**2 * y**2 * K_x * 2 * L * (L + 2) / 45
    for found, share in ((plain, -(L + 9) * (2 * L + 1)), (difference, (L - 1) * (8 * L + 9))):
        assert (found.kernel_variance_at_end() - start - learnt * share).expand() == 0


def solved(program: Program, depth: int, richness: float, time: float, steps: int) -> np.ndarray:
    """Return N Var of the error and of the tangent kernel at the last of some steps."""
    values = {"eta": time / steps, "gamma0": richness, "P": 1, "L": depth}
    data = {"K_x": np.full((1, 1), NUMBERS[K_x]), "y": np.array([NUMBERS[y]])}
    sizes = TheorySizes(values, steps + 1)
    found = AdjointFluctuations(LoweredFluctuations(fluctuations(program), sizes, KnownArrays(values, data)))
    G = [found.number("G", k, steps, steps) for k in range(1, depth + 1)]
    H = [found.number("H", k, 1, 1, steps, steps) for k in range(1, depth + 1)]
    columns = np.array([found.number("Delta", 1, steps), *G, *H])
    lower = [NUMBERS[K_x], *found.values[H[:-1]]]  # what multiplies each G in the tangent kernel
    upper = [*found.values[G[1:]], 1.0]
    gradients = np.zeros((2, len(columns)))
    gradients[0, 0], gradients[1, 1:] = 1.0, [*lower, *upper]
    order = np.argsort(columns)
    (covariance,) = found.covariances_of([GradientBlock(gradients[:, order], columns[order])])
    return np.diag(covariance)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "option"), [(2, False), (2, True), (3, False)])
def test_deep_networks_against_small_steps(depth: int, option: bool) -> None:
    """Variances at seven step sizes, extrapolated to zero: the difference is of order gamma0^4."""
    time, counts = 0.8, (12, 16, 20, 24, 32, 40, 48)
    program = mlp(depth).with_rule(GradientDescent(eta))
    program = centred(program) if option else program
    weights = np.linalg.solve(np.vander(1 / np.array(counts), increasing=True).T, np.eye(len(counts))[0])
    found = series(depth, option)
    parts = (found.error_covariance(), found.kernel_covariance())
    gaps = []
    for richness in (0.3, 0.2):
        flow = weights @ np.array([solved(program, depth, richness, time, n) for n in counts])
        gaps.append(flow - [total(x, richness, time, time) for x in parts])
    powers = np.log(np.abs(gaps[0] / gaps[1])) / np.log(0.3 / 0.2)
    # the next order is gamma0^6, a tenth of the rest at these values; where the rest of order four is small
    # beside it the power is larger
    assert (powers > 3.7).all()
