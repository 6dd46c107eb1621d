"""selfconsistent2023, appendix P: the tangent kernel, and odd orders of G before their averages vanish."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr, Function, factorial

from derive.calculus.symbols import L, alpha, gamma0, mu, s, t
from tests.derive.once import mean_field, mlp
from tests.ledger.claims.selfconsistent2023 import perturbation as claim
from tests.ledger.claims.selfconsistent2023.notation import Kx
from tests.ledger.evidence.base import Evidence
from tests.ledger.evidence.identity import Pair, compared, difference, sides

SOURCE = "selfconsistent2023"
ORDERS = 3


def order_of_g(n: int) -> Expr:
    """Return order n of ``g = phi'(h) z`` for h = u + gamma0 h^1 + .. and z = r + gamma0 z^1 + .."""
    moved = sum(gamma0**k * claim.h_n(k) for k in range(1, ORDERS + 1))
    field = claim.r + sum(gamma0**k * claim.z_n(k) for k in range(1, ORDERS + 1))
    slope = sum(claim.slope(1 + k) * moved**k / factorial(k) for k in range(ORDERS + 1))
    found: Expr = (slope * field).expand().coeff(gamma0, n)
    return found


def series_pairs() -> Iterator[Pair]:
    """Yield the pairs of (P.16), (P.17), (P.19): orders 1 and 3 of <g g^T>, and order 3 of g."""
    mean = claim.mean
    one = mean(order_of_g(0), order_of_g(1)) + mean(order_of_g(1), order_of_g(0))
    yield Pair("P.16", "G1", sides(SOURCE, "P.16")["G1"], one, up_to_transposes)
    three = sum(mean(claim.g_n(k), claim.g_n(3 - k)) for k in range(4))
    yield Pair("P.17", "G3", sides(SOURCE, "P.17")["G3"], three, difference)
    yield Pair("P.19", "g3", sides(SOURCE, "P.19")["g3"], order_of_g(3), difference)


def up_to_transposes(one: Expr, other: Expr) -> bool:
    """Return whether averages <x y^T> are equal if x and y may be exchanged."""

    def sorted_pairs(e: Expr) -> Expr:
        return e.replace(
            claim.mean, lambda x, y: Function("pair")(*sorted((x.expand(), y.expand()), key=str))
        )

    return bool((sorted_pairs(one) - sorted_pairs(other)).expand() == 0)


def tangent_pairs() -> Iterator[Pair]:
    """Yield the pairs of (P.5): the tangent kernel of a linear network, and its second order."""
    printed = sides(SOURCE, "P.5")
    (kernel,) = mean_field(mlp(L, "linear", "flow")).observables
    assert kernel.lhs.args == (mu, alpha, t, s)
    yield Pair("P.5", "K", printed["K"], kernel.rhs, _at_depth_three)
    orders = {name: Function(name) for name in ("H2", "G2")}
    moved = kernel.rhs.replace(
        Function("H"), lambda n, a, b, *x: Kx(a, b) + gamma0**2 * orders["H2"](n, a, b, *x)
    ).replace(Function("G"), lambda n, *x: 1 + gamma0**2 * orders["G2"](n, *x))
    opened = moved.subs(L, DEPTH).doit().expand().replace(Function("K_x"), Kx)
    second = opened.coeff(gamma0, 0) + gamma0**2 * opened.coeff(gamma0, 2)
    yield Pair("P.5", "K_expanded", printed["K_expanded"], second, _at_depth_three)


DEPTH = 3


def _at_depth_three(one: Expr, other: Expr) -> bool:
    """Return whether both are equal for three hidden layers.

    H^0 = K_x, G^{L+1} = 1, and their second orders are zero.
    """
    H, G = Function("H"), Function("G")

    def opened(e: Expr) -> Expr:
        e = e.subs(L, DEPTH).doit().replace(Function("K_x"), Kx)
        e = e.replace(H, lambda n, a, b, *x: Kx(a, b) if n == 0 else H(n, a, b, *x))
        return e.replace(G, lambda n, *x: 1 if n == DEPTH + 1 else G(n, *x))

    return bool((opened(one) - opened(other)).expand() == 0)


def tangent_kernel() -> Evidence:
    """Check (P.5): the tangent kernel of a linear network as a sum over layers, and its second order."""
    return compared(
        "identities_series:tangent_kernel",
        "The tangent kernel is the derived sum over layers, and its second order the printed one.",
        tangent_pairs(),
    )


def odd_orders() -> Evidence:
    """Check (P.16), (P.17), (P.19): the expressions whose averages vanish are those of the expansion."""
    return compared(
        "identities_series:odd_orders",
        "The first and third orders of <g g^T> are the printed averages, up to a transpose in (P.16), and "
        "the third order of g is the printed one. That the averages vanish is shown by "
        "perturbation_kernels:odd_orders; this piece shows which averages they are.",
        series_pairs(),
    )
