"""The series of the linear theory: words and the polynomials in front of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import pytest
from sympy import Add, Expr, MatrixSymbol, Mul, S, expand, lambdify, srepr, sympify
from sympy.functions.elementary.complexes import transpose

from derive.calculus.recurrences import factored
from derive.errors import NotApplicable
from derive.expansion import LinearExpansion, Memory
from derive.expansion.operator_words import Transposes, letters, linear_series, terms
from derive.linear import operators
from derive.linear.operators import J, T, operator
from derive.program import L, P, ell, gamma0
from tests.derive.expansion import brute_force
from tests.derive.once import expand_linear, linear_closure, mean_field, mlp
from tests.ledger.claims import claimed

K = operator("K_x")
c, d = Memory("C", 0, K), Memory("D", 0, J)
NAMES = ("H", "G", "A", "B", "C", "D")


@lru_cache(maxsize=8)
def series(order: int = 2, rule: str = "flow", tied: bool = True) -> LinearExpansion:
    return expand_linear(mean_field(mlp(rule=rule, tied=tied)), order)


def t_(*xs: Expr) -> Expr:
    """Return a transposed product."""
    return Mul(*[x if x in (K, J) else transpose(x) for x in reversed(xs)])


# -- limits ------------------------------------------------------------------------------------------------


def test_gamma0_to_zero_is_the_lazy_theory() -> None:
    x = series()
    expected = {"H": K, "G": J, "A": ell * c, "B": (L - ell) * d, "C": ell * c, "D": (L + 1 - ell) * d}
    assert {n: expand(x.coefficient(n, 0) - expected[n]) for n in NAMES} == dict.fromkeys(NAMES, 0)
    assert x.tangent[0] == [(L + 1, J, K)]
    assert expand(x.output[0] - L * c * J - t_(d, K)) == 0


@pytest.mark.parametrize("order", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_ends_of_the_network_have_no_correction(order: int) -> None:
    x = series(order)
    ends = {"H": 0, "G": L + 1, "A": 0, "B": L, "C": 0, "D": L + 1}
    for n in range(1, order + 1):
        assert {name: x.coefficient(name, n, at) for name, at in ends.items()} == dict.fromkeys(ends, 0)


def test_odd_orders_vanish() -> None:
    x = series(3)
    for n in (1, 3):
        assert all(x.coefficient(name, n) == 0 for name in NAMES)
        assert x.output[n] == 0
        assert x.tangent[n] == []


def test_odd_orders_are_not_assumed_to_vanish() -> None:
    closure = linear_closure(mean_field(mlp(rule="flow")))

    def odd(e: Any) -> Any:
        return e.func(e.lhs, e.rhs.subs(gamma0**2, gamma0**3), evaluate=False)

    changed = replace(
        closure,
        covariances=tuple(map(odd, closure.covariances)),
        responses=tuple(map(odd, closure.responses)),
    )
    found = linear_series(changed, 3)
    assert not found.words["H"][2]
    assert found.words["H"][3]
    assert found.words["A"][3]


# -- coefficients ------------------------------------------------------------------------------------------


def as_tuple(w: Expr) -> brute_force.Word:
    def letter(x: Expr) -> Any:
        if isinstance(x, transpose):
            return ("T", letter(x.args[0]))
        if isinstance(x, Memory):
            return (x.kernel, x.order, as_tuple(x.body))
        return "1" if x == J else "K"

    return tuple(letter(x) for x in letters(w))


def at_depth(e: Expr, depth: int) -> brute_force.Sum:
    found: brute_force.Sum = {}
    for k, w in terms(e.subs(L, depth)):
        found[as_tuple(w)] = Fraction(int(k.p), int(k.q))
    return found


@pytest.mark.parametrize(
    ("depth", "order"),
    [
        *((k, 2) for k in range(1, 5)),
        (1, 4),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in ((5, 2), (6, 2), (2, 4), (3, 4))),
    ],
)
def test_polynomials_are_those_of_the_recursion_at_integer_depth(depth: int, order: int) -> None:
    direct = brute_force.solve(depth, order)
    x = series(order)
    for n in range(order + 1):
        for name in NAMES:
            for layer in range(1, depth + 1):
                found = at_depth(x.coefficient(name, n, layer), depth)
                assert found == direct[name][layer].get(n, {}), (name, n, layer)


def test_second_order_in_closed_form() -> None:
    x = series()
    nested, product = ell * (ell + 1) * (3 * L + 2 - 2 * ell) / 6, ell * (ell + 1) * (2 * ell + 1) / 6
    expected = nested * (c * d * K + t_(c, d, K)) + product * c * J * t_(c)
    assert expand(x.coefficient("H", 2) - expected) == 0
    by_word = {(a, b): k for k, a, b in x.tangent[2]}
    pairs = [(w, K) for w in (d * c * J, t_(d, c, J), d * K * t_(d))]
    pairs += [(J, w) for w in (c * d * K, t_(c, d, K), c * J * t_(c))]
    assert set(by_word) == set(pairs)
    assert all(expand(k - L * (L + 1) ** 2 * (L + 2) / 12) == 0 for k in by_word.values())


def mirrored(e: Expr) -> Expr:
    """Return the network read backwards: C and D, the data and 1 exchanged."""

    def letter(x: Expr) -> Expr:
        if isinstance(x, transpose):
            return transpose(letter(x.args[0]))
        if isinstance(x, Memory):
            return Memory({"C": "D", "D": "C"}[x.kernel], x.order, Mul(*map(letter, letters(x.body))))
        return {K: J, J: K}[x]

    return sum((k * Mul(*map(letter, letters(w))) for k, w in terms(e)), S.Zero)


@pytest.mark.parametrize("n", [0, 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("one", "other", "place"),
    [("H", "G", L + 1 - ell), ("C", "D", L + 1 - ell), ("A", "B", L - ell)],
)
def test_the_network_read_backwards(one: str, other: str, place: Expr, n: int) -> None:
    x = series(max(n, 2))
    assert expand(mirrored(x.coefficient(one, n)) - x.coefficient(other, n, place)) == 0


@pytest.mark.parametrize("n", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_correlations_are_symmetric(n: int) -> None:
    x, flipped = series(n), Transposes([K])
    for name in ("H", "G"):
        e = x.coefficient(name, n)
        other = (c * Mul(*flipped.word(tuple(letters(w)))) for c, w in terms(e))
        assert expand(Add(*other) - e) == 0


def test_one_layer_by_hand() -> None:
    """H^1 = (1 - g^2 C D)^-1 (K + g^2 C 1 1^T C^T) (1 - g^2 D^T C^T)^-1 with C, D linear in the error."""
    x = series(4)
    c2, d2 = Memory("C", 2, K), Memory("D", 2, J)

    def flow_of(a: Expr, b: Expr) -> Expr:
        return a * b * K + t_(a, b, K) + c * J * t_(c)

    second = flow_of(c, d)
    fourth = (
        c * d * c * d * K
        + t_(c, d, c, d, K)
        + c * d * K * t_(c, d)
        + c * d * c * J * t_(c)
        + c * J * t_(c) * t_(c, d)
        + c2 * d * K
        + c * d2 * K
        + t_(c2, d, K)
        + t_(c, d2, K)
        + c2 * J * t_(c)
        + c * J * t_(c2)
    )
    assert expand(x.coefficient("H", 2, 1).subs(L, 1) - second) == 0
    assert expand(x.coefficient("H", 4, 1).subs(L, 1) - fourth) == 0


def test_the_tangent_kernel_is_the_sum_over_layers() -> None:
    x = series()
    total = {(a, b): k for k, a, b in x.tangent[2]}
    for depth in (1, 2, 5):
        found: dict[tuple[Expr, Expr], Expr] = {}
        for layer in range(depth + 1):
            for m in (0, 2):
                for k, a in terms(x.coefficient("G", m, layer + 1).subs(L, depth)):
                    for j, b in terms(x.coefficient("H", 2 - m, layer).subs(L, depth)):
                        found[a, b] = found.get((a, b), 0) + k * j
        assert found == {pair: k.subs(L, depth) for pair, k in total.items()}


def test_without_tied_weights_the_printed_factors_come_out() -> None:
    """(P.2) as printed is the expansion with A = B = 0, which independent backward matrices have."""
    from tests.ledger.claims.selfconsistent2023 import expansion as claim

    names = {claim.c: c, claim.d: d, claim.c_T: t_(c), claim.d_T: t_(d), claim.H0: K, claim.ones: J}
    printed = claimed("selfconsistent2023", "P.2")
    free, tied = series(tied=False), series()
    for name in ("H", "G"):
        second = printed[name].expand().coeff(gamma0, 2).xreplace(names).expand()
        assert expand(free.coefficient(name, 2) - second) == 0
        gap = expand(tied.coefficient(name, 2) - second)
        assert gap.subs({L: 1, ell: 1}).expand() == 0
        assert all(gap.subs({L: n, ell: k}).expand() != 0 for n in (2, 3) for k in range(1, n + 1))


# -- the object --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 2])
def test_coefficients_survive_srepr(order: int) -> None:
    x = series(2)
    for e in (x.coefficient("H", order), x.coefficient("A", order), x.output[order]):
        assert sympify(srepr(e), locals={"Memory": Memory, **vars(operators)}) == e


def test_truncation_and_refusals() -> None:
    x = series(4)
    assert x.truncate(2) == series(2)
    with pytest.raises(IndexError, match="n = 5"):
        x.truncate(5)
    with pytest.raises(IndexError, match="n = -1"):
        x.coefficient("H", -1)
    with pytest.raises(KeyError, match="no series 'Phi'"):
        x.coefficient("Phi", 0)
    with pytest.raises(ValueError, match="order = -1"):
        expand_linear(mean_field(mlp()), -1)
    with pytest.raises(NotApplicable, match="a symbol as depth"):
        expand_linear(mean_field(mlp()).at_depth(2), 2)


def test_integer_depth() -> None:
    two = expand_linear(mean_field(mlp(2, rule="flow")), 2)
    assert all(expand(two.coefficient(n, 2) - series().coefficient(n, 2).subs(L, 2)) == 0 for n in NAMES)


def test_the_series_does_not_depend_on_the_rule() -> None:
    flow, steps = series(2, "flow"), series(2, "gd")
    assert flow.words == steps.words
    assert flow.tangent == steps.tangent


def test_coefficients_factor_over_the_integers() -> None:
    k, _ = terms(series().coefficient("G", 2))[0]
    assert factored(k).is_Mul


@pytest.mark.parametrize("module", ["numpy", "mpmath"])
def test_coefficients_can_be_computed(module: str) -> None:
    """Plain ``lambdify`` of every coefficient multiplies and transposes in the order of the word."""
    rng, samples, steps, depth = np.random.default_rng(6), 2, 3, 3
    expansion = series(4)
    numbers: dict[str, np.ndarray] = {}
    for name, order in ((x, n) for x in "HGABCD" for n in range(3)):
        word, e = expansion.coefficient(name, order, 2).subs(L, depth), expansion.matrix(name, order, 2)
        e = e.subs(L, depth)
        symbols = sorted(e.atoms(MatrixSymbol), key=str)
        for x in symbols:
            shape = [int(n.subs({P: samples, T: steps})) for n in x.shape]
            numbers.setdefault(str(x), rng.normal(size=shape))
        if word == 0:
            assert e == 0
            continue
        given = [numbers[str(x)] for x in symbols]
        if module == "mpmath":
            given = [mpmath.matrix(v.tolist()) for v in given]
        plain = sorted(e.free_symbols - {P, T} - e.atoms(MatrixSymbol), key=str)
        plain = [x for x in plain if x.is_commutative]
        value = lambdify([T, P, *plain, *symbols], e, module)(steps, samples, *[0.3] * len(plain), *given)
        expected = sum(float(c.subs({x: 0.3 for x in plain})) * _product(w, numbers) for c, w in terms(word))
        np.testing.assert_allclose(np.array(value.tolist(), float), expected, rtol=1e-10)
        with pytest.raises(TypeError, match="letter of an operator word"):
            lambdify([], word)


def _product(word: Expr, numbers: dict[str, np.ndarray]) -> np.ndarray:
    found = [
        numbers[str(x.args[0])].T if isinstance(x, transpose) else numbers[str(x)] for x in letters(word)
    ]
    return found[0] if len(found) == 1 else np.linalg.multi_dot(found)
