"""The rich regime: reduction, transforms, powers with constants and corrections, and what was left out."""

from dataclasses import replace
from typing import Any

import mpmath
import pytest
from sympy import (
    Derivative,
    Eq,
    Function,
    N,
    Poly,
    Rational,
    Symbol,
    expand,
    nan,
    series,
    simplify,
    solve,
    symbols,
    sympify,
)

from derive.calculus.symbols import L, ell, gamma0, t
from derive.errors import NotApplicable
from derive.reduce.closed_forms import conserved
from derive.scale.modes import beta, capacity
from derive.scale.modes import time as late
from derive.scale.rich import (
    check_transforms,
    dropped,
    kappa,
    memory,
    missing,
    now,
    phi,
    product_transform,
    profile,
    profile_slope,
    rank_one,
    rich_scaling,
    sigma,
    then,
    transform,
    x,
)
from tests.derive.scale.derived import modes, population, reduced, rich_at
from tests.derive.scale.derived import rich as hard
from tests.ledger.claims import claimed


def test_closed_equations() -> None:
    """Hand derivation for rank one: f = b phi, phi' = lamda b v, sigma^2 = gamma0^2 |phi|^2, b = sigma^L."""
    one, k = reduced(), Symbol("k", integer=True, positive=True)
    b, w, lamda = sigma(t) ** L, Function("w_star")(k), Function("lamda")(k)
    assert one.modes.lhs == Derivative(phi(k, t), t)
    assert simplify(one.modes.rhs - lamda * b * (w - b * phi(k, t))) == 0
    assert simplify(one.kernel.rhs - b**2) == 0
    (total,) = (y for y in one.norm.rhs.args if y != kappa)
    assert total.args[0] == gamma0**2
    assert total.args[1].function == phi(k, t) ** 2
    kinds = sorted((x.kind, str(e.lhs)) for e, x in one.dropped)
    assert kinds == [
        ("response", "g(ell, t)"),
        ("response", "h(ell + 1, t)"),
        ("response", "xi(k, t)"),
        ("source", "g(L, t)"),
        ("source", "g(ell, t)"),
        ("source", "h(1, t)"),
        ("source", "h(ell + 1, t)"),
    ]


def test_inner_fields_answer_as_their_singular_value_moves() -> None:
    """A field of a layer and sigma move alike, both by gamma0 c_h c_g: y' = z, z' = y in x = log sigma."""
    assert expand(reduced().inner_response() - (now**-2 + then**-2) / 2) == 0


F, Q = symbols("F q")


def test_closed_forms_of_moments_obey_the_equation_of_a_mode() -> None:
    found = profile_slope(reduced(), Q)
    assert expand(found - (Q * F + x * (1 - F))) == 0
    check_transforms(found)


@pytest.mark.parametrize("factors", [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_closed_forms_of_moments_do_not_obey_another_one(factors: tuple[int, int, int]) -> None:
    """With a factor of two at any term of the equation."""
    a, b, c = factors
    with pytest.raises(NotApplicable, match="closed forms"):
        check_transforms(a * Q * F + b * x - c * x * F)


def test_assumptions_stand_in_the_conditions() -> None:
    said = rich_at(1, "1/2").conditions()
    for assumed in ("rank one", "c_h, c_g and phi are not negative", "c_g(1, t) = B*X**q"):
        assert any(assumed in y for y in said)


def test_when_modes_are_learnt_is_read_from_the_integrated_kernel() -> None:
    """The first mode at an integrated kernel of one, the last of M modes at M^capacity."""
    law, modes = rich_at(1, "1/2"), Symbol("M", integer=True, positive=True)
    (said,) = (y for y in law.conditions() if "<< t <<" in y)
    first, last = (
        sympify(y.split(":")[0], locals={"M": modes, "gamma0": gamma0}) for y in said.split("<< t <<")
    )
    for end, integral in ((first, 1), (last, modes**2)):
        ratio = (law.integrated_kernel.subs(late, end) / integral).subs({gamma0: Rational(1, 3), modes: 7})
        assert float(ratio.n()) == pytest.approx(1, rel=1e-4)


def test_conserved_at_depth_two() -> None:
    """The polynomial invariants of the layers, found by linear algebra, are the balance that was read off."""
    f1, f2, s1, s2 = (Function(n)(t) for n in ("phi1", "phi2", "s1", "s2"))
    w1, w2, l1, l2 = symbols("w1 w2 l1 l2", positive=True)
    b1 = s1 * s2
    modes = ((f1, w1, l1), (f2, w2, l2))
    rates = [lam * b1 * (w - b1 * f) for f, w, lam in modes]
    a1 = gamma0 * sum(lam * f * (w - b1 * f) for f, w, lam in modes)
    odes = [Eq(f.diff(t), r) for f, r in zip((f1, f2), rates, strict=True)]
    odes += [Eq(s1.diff(t), gamma0 * a1 * s2), Eq(s2.diff(t), gamma0 * a1 * s1)]
    found = conserved(odes)
    names = {f1: Symbol("A"), f2: Symbol("B"), s1: Symbol("C"), s2: Symbol("D")}
    A, B, C, D = names.values()
    ours = [expand(e.xreplace(names)) for e in found]
    assert len(ours) == 2
    for e in (C**2 - D**2, gamma0**2 * (A**2 + B**2) - C**2):
        a, b = symbols("a b")
        assert solve(Poly(a * ours[0] + b * ours[1] - e, A, B, C, D).coeffs(), (a, b))


@pytest.mark.parametrize(("name", "site"), [("h", ell + 1), ("g", ell)])
def test_unequal_memories_are_refused(name: str, site: object) -> None:
    """An error planted in one memory: the singular values would not grow alike."""
    theory = population()
    wrong = theory.equation(name, site)
    terms = tuple(replace(y, kernel=2 * y.kernel) if y.kind == "memory" else y for y in wrong.terms)
    bad = replace(
        theory,
        equations=tuple(replace(e, terms=terms) if e is wrong else e for e in theory.equations),
    )
    with pytest.raises(NotApplicable, match="the rate at which a weight matrix grows"):
        rank_one(bad)


def test_unequal_last_layer_is_refused() -> None:
    theory = population()
    wrong = theory.equation("g", L)
    terms = tuple(replace(y, kernel=2 * y.kernel) if y.kind == "memory" else y for y in wrong.terms)
    bad = replace(
        theory, equations=tuple(replace(e, terms=terms) if e is wrong else e for e in theory.equations)
    )
    with pytest.raises(NotApplicable, match="must grow at the rate"):
        rank_one(bad)


def test_profile_solves_the_equation_of_a_mode() -> None:
    q, u = Rational(1, 8), Symbol("u", positive=True)
    F = series(profile(q), x, 0, 8).removeO()
    rest = expand(x * F.diff(x) - q * F - x * (1 - F))
    assert all(rest.coeff(x, n) == 0 for n in range(8))
    value = memory(reduced(), q)
    exact = mpmath.quad(lambda y: value.function.subs({x: 3, u: y}).evalf(), [0, 0.01, 1])
    assert abs(exact - N(profile(q).subs(x, 3), 20)) < 1e-6


@pytest.mark.parametrize(
    ("q", "r", "at"),
    [
        ("1/10", "1/2", "-7/5"),
        ("1/4", "2/5", "-1/2"),
        pytest.param("1/8", "1/8", "-1/2", marks=pytest.mark.slow),
    ],
)
def test_transforms(q: str, r: str, at: str) -> None:
    """Closed forms against quadrature, which need not have more digits than are compared."""
    q, r, at = (Rational(y) for y in (q, r, at))
    with mpmath.workdps(10):
        compare_transforms(q, r, at)


def compare_transforms(q: Rational, r: Rational, at: Rational) -> None:

    def F(p: Rational, y: mpmath.mpf) -> mpmath.mpf:
        return y / (1 - float(p)) * mpmath.hyp1f1(1, 2 - float(p), -y)

    pieces = [0, 0.1, 1, 10, 100, mpmath.inf]
    found = mpmath.quad(lambda y: y ** (float(at) - 1) * F(q, y) * F(r, y), pieces)
    assert abs(N(product_transform(q, r, at)) - found) < 1e-5 * found
    if at > -1:
        found = mpmath.quad(lambda y: y ** (float(at) - 1) * F(q, y), pieces)
        assert abs(N(transform(q, at)) - found) < 1e-5 * abs(found)
    up = at + 2 if at < -1 else at + 1
    found = mpmath.quad(lambda y: y ** (float(up) - 1) * (1 - F(q, y)) * (1 - F(r, y)), pieces)
    assert abs(N(missing(q, r, up)) - found) < 1e-5 * abs(found)


@pytest.mark.parametrize(("depth", "source"), [(1, Rational(1, 2)), (4, Rational(1, 4))])
def test_exponents_of_one_depth(depth: int, source: Rational) -> None:
    found, below = rich_at(depth, str(source)), 1 + depth * source
    assert found.exponent == (depth + 1) * source / below
    assert found.growth == depth * (1 - source) / below
    assert simplify(gamma0 * found.named_kernel.diff(gamma0) / found.named_kernel) == 2 * depth / below


@pytest.mark.slow
def test_exponent_of_any_depth() -> None:
    """Hand derivation (docs/examples/scaling_laws.md); for one hidden layer linear2025 (21) has the same."""
    found = hard()
    assert simplify(found.exponent - (L + 1) * beta / (1 + L * beta)) == 0
    assert simplify(found.growth - L * (1 - beta) / (1 + L * beta)) == 0
    assert (
        simplify(gamma0 * found.named_kernel.diff(gamma0) / found.named_kernel - 2 * L / (1 + L * beta)) == 0
    )
    printed = {str(k): v for k, v in claimed("linear2025", "21").items()}["hard"]
    own = Symbol("beta", positive=True)
    assert simplify(found.exponent.subs(L, 1) - printed.subs(own, beta)) == 0
    assert simplify(found.exponent.subs(L, 2) - printed.subs(own, beta)) != 0


@pytest.mark.slow
def test_exponent_of_easy_tasks() -> None:
    assert rich_scaling(reduced(), 2, "3/2").exponent == Rational(3, 2)


@pytest.mark.slow
def test_powers_of_what_was_left_out() -> None:
    """All of it is 1/sigma^2 of what was kept, up to starts of sigma."""
    law = hard()
    parts = dropped(law)
    expected = -(1 - beta) / (1 + L * beta)
    assert len(parts) == 8
    assert all(simplify(p.power - expected) == 0 for p in parts)
    assert {str(p.equation) for p in parts if not p.solved} == {"h(1, t)", "h(2, t)", "xi(k, t)"}
    starts = [c for c in law.corrections if not c.known]
    assert [simplify(c.power - expected) for c in starts] == [0]
    now, then = (Symbol(n, positive=True) for n in ("sigma", "sigma_s"))
    assert simplify(reduced().inner_response() - (1 / now**2 + 1 / then**2) / 2) == 0
    with pytest.raises(NotApplicable, match="easy tasks"):
        dropped(rich_scaling(reduced(), 1, "3/2"))


def test_crossover_from_lazy() -> None:
    law = rich_at(1, "1/2")
    lazy = modes().loss().expr.subs({L: 1, beta: law.source, capacity: 2})
    at = law.crossover(lazy)
    assert simplify(gamma0 * at.diff(gamma0) / at) == -4
    ratio = (law.loss / lazy).subs(late, at).subs(gamma0, Rational(1, 10))
    assert abs(N(ratio) - 1) < 1e-12
    with pytest.raises(NotApplicable, match="do not cross"):
        law.crossover(3 * law.loss.subs(gamma0, 1))
    with pytest.raises(NotApplicable, match="not a constant times a power"):
        law.crossover(lazy + 1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"depth": 0}, "at least 1"),
        ({"source": -1}, "positive"),
        ({"capacity": 0}, "positive"),
        ({"source": "1/2", "task": "easy"}, "makes the task 'hard'"),
        ({"task": "odd"}, "must be 'hard'"),
        ({"source": 1}, "logarithm"),
    ],
)
def test_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        rich_scaling(reduced(), **given)


def test_logarithms_are_not_given_amplitudes() -> None:
    """At source L/(2L + 1) the integrated kernel has a logarithm; below L/(3L + 2) early times count."""
    assert not any(c.known for c in rich_at(1, "1/3").corrections)
    modes_, weights = rich_at(4, "1/4").corrections
    assert not modes_.known
    start = Symbol("start", positive=True)
    change = rich_at(4, "1/4").corrected(start=start) / rich_at(4, "1/4").loss - 1
    assert simplify(change - weights.size.subs(kappa, start)) == 0
    assert rich_at(4, "1/4").slope(start=start).diff(start) == -weights.power * weights.size.diff(kappa)


@pytest.mark.parametrize(
    ("q", "r", "at"), [(Rational(1, 2), Rational(1, 4), Rational(1, 2)), (0.125, 0.25, 0.875)]
)
def test_a_transform_is_no_number_where_zero_times_infinity_stands(q: Any, r: Any, at: Any) -> None:
    """SymPy set the product to zero: 0.345 instead of 0.931."""
    assert missing(q, r, at) is nan
    assert missing(r, q, at) is nan
    assert abs(N(missing(Rational(1, 2), Rational(1, 4), 0.50001)) - 0.9307) < 1e-3
