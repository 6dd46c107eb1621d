"""The same P samples at every step: derived floors against sums over modes and against random samples."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from scipy.optimize import brentq
from sympy import Function, Rational, Sum, Symbol, lambdify, simplify

from derive.calculus.symbols import L, ell
from derive.errors import NotApplicable
from derive.program.networks.random_data import M, P, k, sigma
from derive.program.networks.random_data import alpha as ratio
from derive.reduce.data import mode_sums
from derive.scale.lazy_responses import z
from derive.scale.modes import K, beta, capacity, lamda, lazy_modes, w_star
from derive.scale.modes import time as T
from derive.scale.power_laws import cut, cut_, data_law, fixed_data, lazy_law
from tests.chance import excess
from tests.derive.once import isotropic, mean_field, structured
from tests.derive.scale.derived import data, modes, population


def lazy(*at):
    return lazy_law(modes(), *at)


def finite_data(*at, **options):
    return data_law(data(), modes(), *at, **options)


def test_equal_eigenvalues_are_isotropic_data():
    """With lamda = 1/M the fields are those of isotropic data, h0 in units of 1/M."""
    ours = mode_sums(mean_field(structured(data="full-batch", noise=True)))
    iso = mean_field(isotropic(noise=True))
    v, h0 = Function("v"), Function("h0")

    def alike(e):
        return e.replace(lamda, lambda _: 1 / M).replace(v, lambda i, s: v(s)).replace(h0, lambda i, s: h0(s))

    assert ours.equation("Delta").rhs == iso.equation("Delta").rhs
    (memory,) = (x.expr for x in ours.equation("h0").terms if x.kind == "response")
    (expected,) = (x.expr for x in iso.equation("h0").terms if x.kind == "response")
    assert simplify(alike(memory) * M - expected) == 0
    shares = []
    for theory, unit in ((ours, M), (iso, 1)):
        (source,) = (x for x in theory.sources if str(x.symbol.func) == "u0")
        front = theory.equation("h0").rhs.coeff(source.symbol)
        shares.append(alike((unit * front) ** 2 * source.covariance))
    assert simplify(shares[0].subs(P, ratio * M) - shares[1]) == 0


def test_many_samples_are_the_population():
    """The equation for cut at order 0 in 1/P: each mode decays by itself."""
    rest = (data().balance.rhs / P).expand().replace(Sum, lambda *_: 0)
    assert simplify(rest.subs(cut, z / K) - 1) == 0


def test_equal_modes_by_hand():
    """M equal modes, fewer samples: P of M directions are learnt, label noise adds P/(M - P)."""
    found = data()
    alike = {lamda(k): 1, w_star(k): 1}
    rest = found.late_balance.rhs.subs(alike).doit()
    assert simplify(rest.subs(cut, M / P - 1) - P) == 0
    final = found.final.subs(alike).doit().subs(cut, M / P - 1)
    assert simplify(final - (M - P) - sigma**2 * P / (M - P)) == 0


# -- power laws against sums over modes ----------------------------------------------------------------------


def _solved(values, samples, modes=10**5, noise=0.0):
    """Return the cut-off and the final loss with many modes, from the derived sums."""
    found = data()
    j = np.arange(1, modes + 1.0)
    rates = j ** -float(values[capacity])
    targets = j ** (-float(values[capacity] * values[beta]) - 1) / rates
    x, y = Symbol("x", positive=True), Symbol("y", positive=True)
    put = {lamda(k): x, w_star(k) ** 2: y, P: samples}
    freedom = lambdify((x, cut), found.freedom.subs(put), "numpy")
    scale = brentq(lambda s: freedom(rates, s).sum() - samples, 1e-16, 1e6, xtol=1e-20, rtol=1e-12)
    signal, gain = (e.subs(cut_, cut).subs(put) for e in (found.signal, found.gain))
    bias = lambdify((x, y, cut), signal, "numpy")(rates, targets, scale).sum()
    share = lambdify((x, cut), gain, "numpy")(rates, scale).sum()
    return scale, (bias + share * noise**2) / (1 - share)


@pytest.mark.parametrize(
    ("source", "decay"), [("1/2", "3"), ("3/2", "2"), pytest.param("3", "2", marks=pytest.mark.slow)]
)
def test_the_floor_against_the_sums(source, decay):
    """Off by order 1/P: the deviation halves as P doubles."""
    values = {capacity: Rational(decay), beta: Rational(source)}
    off = []
    for samples in (30, 60):
        scale, end = _solved(values, samples)
        found = finite_data(1, source, decay)
        off.append(float(found.formula.subs(P, samples)) / end - 1)
        one = data().late_cutoff
        expected = float((one.coefficient * samples**one.power).subs(values))
        assert expected / scale == pytest.approx(1, abs=3 / samples)
    assert abs(off[0]) < 10 / 30
    assert off[1] / off[0] == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_the_floor_of_label_noise():
    values = {capacity: Rational(2), beta: Rational(3, 2)}
    _, clean = _solved(values, 100)
    _, noisy = _solved(values, 100, noise=0.3)
    expected = float(data().label_floor.subs(capacity, 2).subs(sigma, 0.3))
    assert noisy - clean == pytest.approx(expected, rel=3 / 100)


# -- against random samples ----------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _interpolated(source, samples, seeds=40, modes=600):
    """Return the smallest interpolation of random samples over its derived value, with errors.

    Signal and labels are separate. The mean over signs of the target and over label noise is exact; the
    errors are those over seeds of samples.
    """
    rng = np.random.default_rng(3)
    j = np.arange(1, modes + 1.0)
    rates, weight = j**-2.0, j ** (-2 * float(Rational(source)) - 1) * j**2
    values = {capacity: Rational(2), beta: Rational(source)}
    signal, labels = [], []
    for _ in range(seeds):
        X = rng.standard_normal((samples, modes)) * np.sqrt(rates)
        kernel, seen = X @ X.T, (X * rates) @ X.T
        S = np.linalg.solve(kernel, X)
        left = rates - 2 * rates * np.einsum("pj,pj->j", X, S) + np.einsum("pj,pj->j", S, seen @ S)
        signal.append(weight @ left)
        labels.append(np.trace(np.linalg.solve(kernel, np.linalg.solve(kernel, seen).T)))
    _, clean = _solved(values, samples, modes)
    _, noisy = _solved(values, samples, modes, noise=1.0)
    rows = np.array([np.array(signal) / clean, np.array(labels) / (noisy - clean)])
    return rows.mean(axis=1), rows.std(axis=1, ddof=1) / np.sqrt(seeds)


@pytest.mark.parametrize(("source", "order"), [("1/2", 1.0), ("3/2", 4.0)])
def test_interpolation_ends_at_the_derived_loss(source, order):
    """The theory is the limit of many samples: at P samples it is off by a number of order 1/P."""
    for samples in (40, 120):
        ratio, error = _interpolated(source, samples)
        assert excess(np.maximum(abs(ratio - 1) - order / samples, 0) / error) < 1
        assert np.all(error < 0.03)


def _flow(times, samples, seeds, modes=150):
    """Return the loss of lazy flow and its label noise by random samples (L = 1, capacity 2, source 3)."""
    rng = np.random.default_rng(5)
    j = np.arange(1, modes + 1.0)
    rates, weight = j**-2.0, j**-5.0
    root, loss, labels = np.sqrt(rates), [], []
    for _ in range(seeds):
        A = np.tril(rng.standard_normal((modes, modes)), -1)  # Bartlett: the covariance of the samples
        A[np.diag_indices(modes)] = np.sqrt(rng.chisquare(samples - np.arange(modes)))
        e, V = np.linalg.eigh((A @ A.T / samples) * root * root[:, None])
        left = [(V * np.exp(-2 * e * t)) @ V.T for t in times]
        loss.append([weight @ (rates @ E**2) for E in left])
        labels.append([rates @ (V**2 @ (np.expm1(-2 * e * t) ** 2 / e)) / samples for t in times])
    still = np.array([weight @ (rates * np.exp(-4 * rates * t)) for t in times])
    return np.array(loss) - still, np.array(labels)


def test_before_the_floor_against_random_samples():
    """Order 1/P of a steep task, and of label noise; next orders are ``t^-1/2`` and ``t^(1/2)/P``."""
    times, samples = np.array([300.0]), 16000
    loss, labels = _flow(times, samples, 60)
    values = {capacity: 2, beta: 3, L: 1, sigma: 1}
    for found, own in ((data().before_floor, loss), (data().label_before_floor, labels)):
        expected = float(
            (found.coefficient * T**found.power / P).subs(values).subs({P: samples, T: times[0]})
        )
        ratio = own[:, 0] / expected
        error = ratio.std(ddof=1) / np.sqrt(len(ratio))
        assert error < 0.03
        assert excess(max(abs(ratio.mean() - 1) - times[0] ** -0.5, 0) / error, len(ratio) - 1) < 1


@pytest.mark.parametrize(("name", "factor"), [("u_Delta", 2), ("u0", 2)])
def test_a_factor_in_the_theory_is_a_factor_of_the_gain(name, factor):
    theory = mean_field(structured(data="full-batch", noise=True, rule="flow"))
    sources = (
        replace(x, covariance=x.covariance * factor) if str(x.symbol.func) == name else x
        for x in theory.sources
    )
    other = fixed_data(replace(theory, sources=tuple(sources)))
    assert simplify(other.gain / data().gain) == factor
    assert simplify(other.signal - data().signal) == 0


@pytest.mark.parametrize("name", ["xi", "g"])
def test_a_factor_in_a_memory_moves_the_lazy_kernel(name):
    """That of one layer alone leaves a recursion that no longer closes, and is refused."""
    theory = population()
    wrong = theory.equation(name, *([] if name == "xi" else [ell]))
    terms = tuple(replace(x, coefficient=2 * x.coefficient) if x.kind == "memory" else x for x in wrong.terms)
    equations = tuple(replace(e, terms=terms) if e is wrong else e for e in theory.equations)
    changed = replace(theory, equations=equations)
    if name == "g":
        with pytest.raises(NotApplicable, match="recursion"):
            lazy_modes(changed)
    else:
        assert simplify(lazy_modes(changed).kernel - modes().kernel) == 1


# -- statements of the laws ----------------------------------------------------------------------------------


def test_crossovers_are_where_the_losses_meet():
    found = finite_data(2, "1/2", 2)
    assert simplify(lazy(2, "1/2", 2).formula.subs(T, found.crossover["lazy"]) - found.formula) == 0
    steep = finite_data(2, 3, 2)
    middle = data().before_floor
    before = (middle.coefficient * T**middle.power / P).subs({capacity: 2, beta: 3, L: 2})
    at = {P: 1000}
    first, last = (steep.crossover[name].subs(at).n() for name in ("lazy", "end"))
    assert float(before.subs(at).subs(T, first)) == pytest.approx(
        float(lazy(2, 3, 2).formula.subs(T, first)), rel=1e-9
    )
    assert float(before.subs(at).subs(T, last)) == pytest.approx(float(steep.formula.subs(at)), rel=1e-9)
    assert first < last


def test_symbols_stay():
    assert finite_data().exponent == capacity * beta
    assert finite_data(steep=True).exponent == 2 * capacity


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: finite_data(1, 2, 2), "logarithm"),
        (lambda: finite_data(1, 1, 1), "capacity = 1"),
        (lambda: finite_data(1, 3, 2, steep=False), "must be True"),
        (lambda: finite_data(0, 1, 2), "depth = 0"),
    ],
)
def test_refusals(call, says):
    with pytest.raises((ValueError, NotApplicable), match=says):
        call()
