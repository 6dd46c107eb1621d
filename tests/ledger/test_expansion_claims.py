"""(16), (P.2)-(P.5) against the recursion (F.4), expanded here by hand with operator words.

Expectation (F.4 at order gamma0^0 and gamma0^2, with A and B entering C and D without the error):
C_l = A_{l-1} + c, A_l = C_l, D_l = B_l + d, B_{l-1} = D_l, and the steps H_l - H_{l-1}, G_l - G_{l+1}.
"""

import pytest
import sympy
from sympy import Integer, Rational, Symbol, expand, factor, summation

from derive.program import L, ell, gamma0
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023.expansion import H0, K, c, c_T, d, d_T, ones

FORWARD_NESTED = c * d * H0 + H0 * d_T * c_T
FORWARD_PRODUCT = c * ones * c_T
BACKWARD_NESTED = d * c * ones + ones * c_T * d_T
BACKWARD_PRODUCT = d * H0 * d_T
n = Symbol("n", integer=True, positive=True)
NESTED = n * (n + 1) * (3 * L + 2 - 2 * n) / 6
PRODUCT = n * (n + 1) * (2 * n + 1) / 6
TANGENT = L * (L + 1) ** 2 * (L + 2) / 12


def printed(number: str) -> dict[str, sympy.Basic]:
    return claimed("selfconsistent2023", number)


def second_order(depth: int, responses: bool = True) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Return H_l (l = 0..depth) and G_l (l = 1..depth+1, from index 0) at order gamma0^2."""
    keep = int(responses)
    forward, backward = [Integer(0)], [Integer(0)]  # multiples of c and d: C_l = forward[l] c
    for _ in range(depth):
        forward.append(keep * forward[-1] + 1)
        backward.append(keep * backward[-1] + 1)
    multiples = [(forward[k], backward[depth + 1 - k]) for k in range(1, depth + 1)]
    h, g = [Integer(0)], [Integer(0)]
    for a, b in multiples:
        h.append(expand(h[-1] + a * b * FORWARD_NESTED + a**2 * FORWARD_PRODUCT))
    for a, b in reversed(multiples):
        g.append(expand(g[-1] + a * b * BACKWARD_NESTED + b**2 * BACKWARD_PRODUCT))
    return h, list(reversed(g))


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_printed_layer_coefficients_hold_for_one_layer_or_without_responses(depth: int) -> None:
    claim = printed("P.2")
    for responses in (True, False):
        h, g = second_order(depth, responses)
        for layer in range(1, depth + 1):
            at = {L: depth, ell: layer}
            same_h = expand(claim["H"].subs(at) - H0 - gamma0**2 * h[layer]) == 0
            same_g = expand(claim["G"].subs(at) - ones - gamma0**2 * g[layer - 1]) == 0
            expected = depth == 1 or not responses
            assert (same_h, same_g) == (expected, expected)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_right_layer_coefficients_are_the_polynomials_of_the_ledger(depth: int) -> None:
    h, g = second_order(depth)
    for layer in range(1, depth + 1):
        up, down = {L: depth, n: layer}, {L: depth, n: depth + 1 - layer}
        mine_h = NESTED.subs(up) * FORWARD_NESTED + PRODUCT.subs(up) * FORWARD_PRODUCT
        mine_g = NESTED.subs(down) * BACKWARD_NESTED + PRODUCT.subs(down) * BACKWARD_PRODUCT
        assert expand(h[layer] - mine_h) == 0
        assert expand(g[layer - 1] - mine_g) == 0


def test_the_polynomials_are_sums_over_layers_for_every_depth() -> None:
    k = Symbol("k", integer=True, positive=True)
    assert factor(summation(k * (L + 1 - k), (k, 1, n)) - NESTED) == 0
    assert factor(summation(k**2, (k, 1, n)) - PRODUCT) == 0
    for polynomial in (NESTED, PRODUCT):
        assert factor(summation(polynomial, (n, 1, L)) - TANGENT) == 0


def test_printed_tangent_kernel_factor() -> None:
    claim = printed("16")["K"]
    sums = {x: sympy.Dummy() for x in claim.atoms(sympy.Sum)}
    assert len(sums) == 3
    for mark in sums.values():
        slope = claim.subs(sums).diff(mark)
        printed_factor = slope / slope.subs(L, 1)
        assert [printed_factor.subs(L, k) for k in (1, 2, 5)] == [1, 3, 15]
    assert [TANGENT.subs(L, k) for k in (1, 2, 5)] == [1, 6, 105]


def test_printed_16_is_the_layer_sum_p5_of_the_printed_p4() -> None:
    """The paper is consistent with itself: (16) follows from (P.4) through (P.5)."""
    four, sixteen = printed("P.4"), printed("16")["K"]
    mu, nu = (Symbol(name, integer=True, positive=True) for name in ("mu", "nu"))
    kernel = sympy.Function("Kx")(mu, nu)
    for depth in (1, 2, 3):
        total = (depth + 1) * kernel
        for layer in range(1, depth + 1):
            at = {L: depth, ell: layer}
            total += (four["H"] - kernel).subs(at) + (four["G"] - 1).subs(at) * kernel
        assert (
            expand((total - sixteen.subs(L, depth)).subs(Symbol("P", integer=True, positive=True), 2).doit())
            == 0
        )


def test_printed_p2_counts_one_layer_too_few() -> None:
    assert printed("P.2")["K_forward"].subs(gamma0, 0) == L * H0
    assert printed("16")["K"].subs(gamma0, 0) == (L + 1) * sympy.Function("Kx")(
        *(Symbol(name, integer=True, positive=True) for name in ("mu", "nu"))
    )
    assert K in printed("P.2")["K_forward"].free_symbols


def test_relative_change_grows_with_depth_after_training_only_because_v_shrinks() -> None:
    """v(infinity) goes as 1/(L+1): the ratio is linear in L; with the printed factor it would fall."""
    right = TANGENT / (L + 1) / (L + 1) ** 2
    wrong = L * (L + 1) / 2 / (L + 1) / (L + 1) ** 2
    assert sympy.limit(right / L, L, sympy.oo) == Rational(1, 12)
    assert sympy.limit(wrong * L, L, sympy.oo) == Rational(1, 2)
    assert printed("16 text")["relative_change"] == gamma0**2 * L


def test_printed_p3_leaves_an_index_free() -> None:
    mu = Symbol("mu", integer=True, positive=True)
    assert mu in printed("P.3")["G"].free_symbols
    assert mu not in printed("P.4")["G"].free_symbols
