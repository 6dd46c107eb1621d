"""selfconsistent2023, appendix P: orders of G in gamma0 as expressions, before their averages vanish."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr, Function, factorial

from derive.calculus.symbols import gamma0
from tests.ledger.claims.selfconsistent2023 import perturbation as claim
from tests.ledger.evidence.base import Evidence
from tests.ledger.evidence.identity import Pair, compared, difference, sides

SOURCE = "selfconsistent2023"
ORDERS = 3


def order_of_g(n: int) -> Expr:
    """Order n of ``g = phi'(h) z`` for h = u + gamma0 h^1 + .. and z = r + gamma0 z^1 + .."""
    moved = sum(gamma0**k * claim.h_n(k) for k in range(1, ORDERS + 1))
    field = claim.r + sum(gamma0**k * claim.z_n(k) for k in range(1, ORDERS + 1))
    slope = sum(claim.slope(1 + k) * moved**k / factorial(k) for k in range(ORDERS + 1))
    found: Expr = (slope * field).expand().coeff(gamma0, n)
    return found


def series_pairs() -> Iterator[Pair]:
    """(P.16), (P.17), (P.19): orders 1 and 3 of <g g^T>, and order 3 of g."""
    mean = claim.mean
    one = mean(order_of_g(0), order_of_g(1)) + mean(order_of_g(1), order_of_g(0))
    yield Pair("P.16", "G1", sides(SOURCE, "P.16")["G1"], one, up_to_transposes)
    three = sum(mean(claim.g_n(k), claim.g_n(3 - k)) for k in range(4))
    yield Pair("P.17", "G3", sides(SOURCE, "P.17")["G3"], three, difference)
    yield Pair("P.19", "g3", sides(SOURCE, "P.19")["g3"], order_of_g(3), difference)


def up_to_transposes(one: Expr, other: Expr) -> bool:
    """Equality of averages <x y^T> where x and y may be exchanged."""

    def sorted_pairs(e: Expr) -> Expr:
        return e.replace(
            claim.mean, lambda x, y: Function("pair")(*sorted((x.expand(), y.expand()), key=str))
        )

    return bool((sorted_pairs(one) - sorted_pairs(other)).expand() == 0)


def odd_orders() -> Evidence:
    """(P.16), (P.17), (P.19): the expressions whose averages vanish are those of the expansion."""
    return compared(
        "identities_series:odd_orders",
        "The first and third orders of <g g^T> are the printed averages, up to a transpose in (P.16), and "
        "the third order of g is the printed one. That the averages vanish is shown by "
        "perturbation_kernels:odd_orders; this piece shows which averages they are.",
        series_pairs(),
    )
