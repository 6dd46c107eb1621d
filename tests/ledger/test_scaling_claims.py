"""linear2025 (112) to (116): how the printed steps hang together, and what the theory has in their place."""

import sympy
from sympy import Expr, Function, Integral, sympify

from derive.program import s, t
from derive.reduce.data import absorb_factors, mode_sums
from tests.derive.once import mean_field, structured
from tests.ledger.claims import claimed
from tests.ledger.claims.linear2025.notation import k, lamda
from tests.ledger.claims.linear2025.scaling import beta, chi

h0 = Function("h0")


def claim(number: str, name: str) -> Expr:
    return sympify(claimed("linear2025", number)[name])


def test_112_has_the_derived_memory_of_the_error_at_equal_times() -> None:
    theory = mode_sums(absorb_factors(mean_field(structured(data="population", rule="flow")), "r0"))
    memory = [x.function.coeff(h0(k, s)) for x in theory.equation("xi").rhs.atoms(Integral)]
    assert sympy.expand(sum(memory).subs(s, t) - claim("112", "K")) == 0


def test_114_solves_112_with_113_but_for_a_constant() -> None:
    rate = sympy.diff(sympy.log(claim("114", "v")), t) / -lamda(k)
    growth, ansatz = sympy.simplify(rate - 1), claim("113", "K") - 1
    assert sympy.simplify(growth / ansatz - chi) == 0


def test_115_and_116_follow_from_the_growth_after_114() -> None:
    (found,) = sympy.solve(claim("114 text", "power") - (chi - 1), chi)
    assert sympy.simplify(found - claim("115", "chi")) == 0
    assert sympy.simplify(claim("116", "hard") - beta * claim("115", "chi")) == 0
    assert claim("116", "hard") == claim("21", "hard")
    assert claim("116", "easy") == claim("21", "easy") == beta
