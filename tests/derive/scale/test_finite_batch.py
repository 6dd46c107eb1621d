"""Fresh batches: the renewal equation from the correlations, its sums as numbers, and planted factors."""

from dataclasses import replace

import numpy as np
import pytest
from sympy import Function, Rational, Sum, Symbol, lambdify, simplify

from derive.calculus.symbols import L, eta, s, t
from derive.errors import NotApplicable
from derive.program.networks.random_data import B, sigma
from derive.scale.finite_batch import A, batch_noise, q
from derive.scale.modes import K, capacity, lamda, w_star
from derive.scale.power_laws import batch_law
from derive.theory import Theory
from tests.derive.once import mean_field, structured
from tests.derive.scale.derived import batches


def with_covariance(name: str, factor: object) -> Theory:
    """Return the online theory with the covariance of one source multiplied."""
    theory = mean_field(structured(noise=True))
    sources = (
        replace(x, covariance=x.covariance * factor) if str(x.symbol.func) == name else x
        for x in theory.sources
    )
    return replace(theory, sources=tuple(sources))


def test_the_renewal_equation_is_that_of_a_mode() -> None:
    """By hand: v(t + 1) = (1 - K lamda) v(t) - K sqrt(lamda) u0(t)/B, <u0 u0> = B (loss + sigma^2)."""
    found = batches().renewal.rhs
    k = Symbol("k", integer=True, positive=True)
    keeps, C = 1 - K * lamda(k), Function("C_Delta")
    (past,) = (x for x in found.args if x.has(C))
    earlier = past.limits[0][0]
    gain = (past.function / C(earlier, earlier)).function.subs(earlier, s)
    assert simplify(gain - lamda(k) ** 2 * K**2 * keeps ** (2 * (t - s - 1)) / B) == 0
    (start,) = (x for x in found.args if not x.has(C))
    assert simplify(start.function - lamda(k) * w_star(k) ** 2 * keeps ** (2 * t)) == 0
    assert batches().errors == Function("C_v")(t, t) + sigma**2


@pytest.mark.parametrize(("name", "what"), [("u0", "gain"), ("u_Delta", "errors")])
def test_a_factor_in_the_theory_is_a_factor_of_the_law(name: str, what: str) -> None:
    ours, other = batches(), batch_noise(with_covariance(name, 2))
    if what == "gain":
        assert simplify(other.gain.terms[0].coefficient / ours.gain.terms[0].coefficient) == 2
        assert simplify(other.amplification.function / ours.amplification.function) == 2
    else:
        loss = Function("C_v")(t, t)
        assert (other.errors - ours.errors).expand() == loss
        assert simplify(other.floor(q) - q * sigma**2 / (1 - 2 * q)) == 0


def test_sources_that_are_kept_are_refused() -> None:
    """Samples that are used again are not a fresh drive."""
    with pytest.raises(NotApplicable):
        batch_noise(mean_field(structured(data="full-batch", noise=True)))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["1/2", "5/2"])
def test_constants_are_numbers_or_zeta_functions(source: str) -> None:
    """The two sums over modes: their values beside sums of many modes, and their expansions."""
    law = batch_law(batches(), 1, source, "3/2")
    known = batch_law(batches(), 1, source, "3/2", learning_rate="1/50", batch=4)
    values = {eta: Rational(1, 50), B: 4}
    k, tail = np.arange(1.0, 3e5), 3e5
    for name, summed in law.names.items():
        inside = lambdify(Symbol("k", integer=True, positive=True), summed.function.subs(values), "numpy")
        # the rest of a sum of powers -3/2 and -13/4
        direct = inside(k).sum() + inside(tail) * tail / (0.5 if name == q else 2.25)
        (said,) = (x for x in known.conditions() if f"{name} = " in x)
        assert float(said.rsplit("= ", 1)[1]) == pytest.approx(direct, rel=1e-6)
    assert not known.constant.free_symbols
    put = {x: e.subs(values).evalf() for x, e in law.names.items()}
    assert float(law.constant.subs(values).subs(put)) == pytest.approx(float(known.constant), rel=1e-9)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"learning_rate": 1, "batch": 1}, "learning_rate = 1: the first mode diverges"),
        ({"learning_rate": "1/2", "batch": 1}, "the loss diverges, because q = "),
        ({"learning_rate": -1}, "learning_rate = -1: must be positive"),
        ({"batch": 0}, "batch = 0: must be a whole number, at least 1"),
    ],
)
def test_refusals(numbers: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        batch_law(batches(), 1, "5/2", "3/2", **numbers)


def test_sums_over_modes_are_named_in_the_constant() -> None:
    law = batch_law(batches(), 1, "5/2", "3/2")
    assert {q, A} == set(law.names) <= law.constant.free_symbols
    assert not law.constant.has(Sum)
    (said,) = (x for x in law.conditions() if "q = " in x)
    assert "zeta(3/2)" in said
    assert batches().gain.terms[0].coefficient.subs({L: 2, capacity: 2}).has(B)
