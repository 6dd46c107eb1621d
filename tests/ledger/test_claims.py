"""Claims are plain SymPy: they survive an srepr round trip and print."""

import pytest
import sympy
from sympy.core.symbol import Str

from derive.ledger import entries, find
from tests.ledger.claims import build, claimed

NEEDED = (
    ["4", "15", "16", "F.1", "F.2", "F.4"]
    + [f"F.{k}" for k in range(5, 15)]
    + ["F.16", "P.2", "P.3", "P.4", "P.5"]
)


@pytest.mark.slow
def test_claims_are_expressions_that_survive_srepr() -> None:
    names = {**vars(sympy), "Str": Str}
    for entry in entries():
        built = build(entry)
        assert bool(built) == bool(entry.claim), entry.number
        for name, expression in built.items():
            assert isinstance(expression, sympy.Basic), (entry.number, name)
            assert eval(sympy.srepr(expression), names) == expression, (entry.number, name)
            assert sympy.latex(expression)


def test_equations_with_numerical_content_have_a_claim() -> None:
    assert [x for x in NEEDED if not find("selfconsistent2023", x).claim] == []


def test_closed_equations_evaluate_on_explicit_matrices() -> None:
    """One sample, two times, the first layer: (F.4) on numbers equals the fields (F.3) put in by hand."""
    claim = claimed("selfconsistent2023", "F.4")
    gamma0 = sympy.Rational(1, 2)
    c = sympy.Matrix([[0, 0], [3, 0]])
    d = sympy.Matrix([[0, 0], [2, 0]])
    h_below, g_above = sympy.Matrix([[2, 1], [1, 2]]), sympy.Matrix([[1, 1], [1, 1]])
    values = {"C": c, "D": d, "H_below": h_below, "G_above": g_above}
    sizes = {x: 1 if x.name == "P" else 2 for x in claim["H"].free_symbols if x.name in "PT"}

    def evaluate(expression: sympy.Basic) -> sympy.Matrix:
        expression = expression.subs(sizes).subs(sympy.Symbol("gamma0", positive=True), gamma0)
        for name, matrix in values.items():
            expression = expression.subs(sympy.MatrixSymbol(name, *matrix.shape), matrix)
        return sympy.Matrix(expression.doit())

    # C D = D C = 0 here, so the inverses are one.
    assert evaluate(claim["H"]) == h_below + gamma0**2 * c * g_above * c.T
    assert evaluate(claim["G"]) == g_above + gamma0**2 * d * h_below * d.T
    assert evaluate(claim["A"]) == c
    assert evaluate(claim["B_below"]) == d


def test_the_tangent_kernel_sum_is_the_same_in_both_places() -> None:
    assert (
        claimed("selfconsistent2023", "4 text")["grad_f_grad_f"] == claimed("selfconsistent2023", "P.5")["K"]
    )
