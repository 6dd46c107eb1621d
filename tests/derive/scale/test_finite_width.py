"""Order 1/N of the lazy loss: against linearised networks, and against theories with a planted factor."""

from dataclasses import replace

import numpy as np
import pytest
from sympy import Rational, Symbol, lambdify, simplify

from derive.calculus.symbols import L, ell
from derive.errors import NotApplicable
from derive.program.networks.random_data import N
from derive.scale.finite_width import driver, first_in_width, width_noise
from derive.scale.lazy_responses import z
from derive.scale.modes import HARD, beta, capacity, lamda, lazy_modes, w_star
from derive.scale.modes import time as T
from derive.scale.power_laws import fixed_data, width_law
from derive.theory import Theory
from tests.chance import excess
from tests.derive.once import mean_field, structured
from tests.derive.scale.derived import modes, population, samples, width

k = Symbol("k", integer=True, positive=True)


def doubled(name: str, site: object, kind: str) -> Theory:
    """Return the theory with the terms of one kind in one equation multiplied by two."""
    theory = population()
    wrong = theory.equation(name, site)
    terms = tuple(x.map(lambda e: e) if x.kind != kind else twice(x) for x in wrong.terms)
    equations = tuple(replace(e, terms=terms) if e is wrong else e for e in theory.equations)
    return replace(theory, equations=equations)


def twice(term):
    return replace(term, coefficient=2 * term.coefficient)


@pytest.mark.parametrize(("name", "site"), [("h", 1), ("xi", None)])
def test_a_factor_in_the_theory_is_a_factor_of_the_mean(name: str, site: object) -> None:
    """The response of the inputs is linear in the first layer; that of g(1) enters the kernel of modes."""
    ours, other = first_in_width(population()), first_in_width(doubled(name, site, "response"))
    assert simplify(other.kernel.subs(L, 1) / ours.kernel.subs(L, 1)) != 1


@pytest.mark.slow
def test_a_factor_in_the_mean_alone_is_refused() -> None:
    """Variance and mean are then no longer one convolution."""
    with pytest.raises(NotApplicable, match="one convolution over time"):
        width_noise(doubled("h", 1, "response"), samples(), modes())


@pytest.mark.parametrize(
    ("name", "site", "says"), [("h", ell + 1, "of the layer below"), ("g", ell, "must be a constant")]
)
def test_a_factor_in_a_response_of_a_layer_is_refused(name: str, site: object, says: str) -> None:
    with pytest.raises(NotApplicable, match=says):
        first_in_width(doubled(name, site, "response"))


@pytest.mark.parametrize("source", ["1/2", "7/10", "3/2"])
def test_variance_and_mean_are_the_total(source: str) -> None:
    """Their closed forms, hypergeometric functions, add up to the gamma functions of one convolution."""
    at = {L: 2, capacity: 2, beta: Rational(source), T: 10**6}
    parts = [x.expr.subs(at).n(20) for x in (width().variance, width().mean, width().total)]
    left_out = 1e6 ** float(width().total.error.subs(at))
    assert abs(parts[0] + parts[1] - parts[2]) < 10 * left_out
    assert abs(parts[1]) > 50 * left_out


def test_the_bound_is_where_the_orders_of_the_kernel_are_alike() -> None:
    """A sum over modes gives order 1/N of the kernel over the kernel at the rate 1/t."""
    at, depth = 1e5, 2
    first = first_in_width(population()).kernel.subs({L: depth, z: 1 / at})
    j = np.arange(1.0, 1e6)
    summed = np.sum(lambdify(driver, first, "numpy")(j**-2.0)) / (3 * at)
    values = {L: depth, capacity: 2, N: abs(summed)}
    assert float(width().end().subs(values)) == pytest.approx(at, rel=10 * at**-0.5 / 3)
    law = width_law(width(), depth, "1/2", 2)
    assert any(str(law.crossover["order 1/N**2"]) in x for x in law.conditions())


def test_the_law_of_hard_tasks_has_the_mean_in_its_constant() -> None:
    law = width_law(width(), 2, "1/2", 2)
    parts = [x.largest({}) for x in (width().variance.subs(AT), width().mean.subs(AT))]
    assert all(x.power == 0 for x in parts)
    assert float(law.constant) == pytest.approx(sum(float(x.coefficient.n()) for x in parts), rel=1e-12)
    assert width().crossover(HARD).subs(AT) == law.crossover["width"]


AT = {L: 2, capacity: 2, beta: Rational(1, 2)}


@pytest.mark.slow
def test_the_mean_error_of_linearised_networks() -> None:
    """One hidden layer: the kernel is 1 + W^T W/N, W of N rows; the mean error over draws of W.

    The mean-field theory has the sums over modes of order 1/N, and not 1/N alone.  Complex entries have the
    same sums, and no order 1/N beside them.  The share of the kernel's order 1/N bounds order 1/N**2.
    """
    units, count, draws, at = 100, 8, 40_000, 6.0
    rng = np.random.default_rng(5)
    rates = np.arange(1.0, count + 1) ** -2.0
    errors = np.zeros((draws, count))
    for n in range(0, draws, 2000):
        W = rng.normal(size=(2000, 2, units, count)) * np.sqrt(rates / 2)
        W = W[:, 0] + 1j * W[:, 1]
        kernel = np.einsum("dij,dik->djk", W.conj(), W) / units + np.diag(rates)
        values, vectors = np.linalg.eigh(kernel)
        # the diagonal of exp(-kernel t): targets of other modes enter with a mean of zero
        errors[n : n + 2000] = np.einsum("dik,dk->di", abs(vectors) ** 2, np.exp(-values * at))
    first = first_in_width(population())
    own, driving = (x.subs({L: 1, w_star(k): 1}) for x in first.split())
    x, age = Symbol("x", positive=True), Symbol("age", positive=True)
    both = own.subs(lamda(k), x).subs(age, T) * driving.subs(age, at - T)
    u, weight = np.polynomial.legendre.leggauss(60)
    u, weight = (u + 1) * at / 2, weight * at / 2
    inside = lambdify((T, x, driver), both, "numpy")
    derived = np.array([sum(weight @ inside(u, a, b) for b in rates) for a in rates])
    measured = units * (errors - np.exp(-2 * rates * at)).mean(axis=0)
    error = units * errors.std(axis=0) / np.sqrt(draws)
    orders = [float(first.kernel.subs({L: 1, z: 1 / at, driver: b})) for b in rates]
    share = abs(sum(orders)) / (2 * at) / units
    assert share < 0.05
    slack = np.maximum(abs(measured - derived) - 3 * share * abs(derived), 0)
    assert excess(slack / error, draws - 1) < 1
    assert abs(measured[2] - 2 * derived[2]) > 10 * error[2]


@pytest.mark.parametrize(
    ("data", "rule", "remedy"),
    [("full-batch", "flow", "data='population'"), ("population", "gd", "rule='flow'")],
)
def test_other_data_and_steps_are_refused(data: str, rule: str, remedy: str) -> None:
    """Fixed samples had order 1/N equal to zero, and steps Laplace transforms."""
    with pytest.raises(NotApplicable, match=remedy):
        first_in_width(mean_field(structured(data=data, rule=rule)))


def test_networks_that_keep_their_initial_output_are_refused() -> None:
    """They have no vector xi, which ended in a KeyError."""
    with pytest.raises(NotApplicable, match="derive it with center=True"):
        lazy_modes(mean_field(structured(data="population", rule="flow", center=False)))


def test_a_law_of_fixed_samples_needs_samples() -> None:
    with pytest.raises(NotApplicable, match="data='full-batch'"):
        fixed_data(population())
