"""Nonlinear networks: (12)-(14), (D.21), (D.24) text, (D.44)-(D.55), (E.1), (N.10) against the engine."""

import pytest
from sympy import Expr, Function, S

from derive.calculus.averages import Response
from derive.ledger import find
from derive.program import L, Product, ell, mu, s, t
from derive.theory.tensor_programs import Dot, Z, tensor_program
from derive.theory.unfold import unfold
from tests.derive.once import mean_field, mlp
from tests.derive.show.test_tensor_programs import NAMES, dh, one_pass, x
from tests.ledger.evidence.identities_nonlinear import unscaled, velocity, wide, with_error
from tests.ledger.printed_forms import at, canonical, numbered, phi, printed, same

NEXT = {"h": ell + 1, "z": ell}
ENDS = {"h": S.One, "z": L}


def test_the_backward_response_has_an_equal_time_part_and_the_text_denies_it() -> None:
    """g(t) responds to u(t) through phi'(h(t)), which phi'' = 0 of linear networks only prevents."""
    theory = mean_field(mlp(L, phi, "gd"))
    assert (theory.order_parameter("A").causal, theory.order_parameter("B").causal) == ("strict", "past")
    g, u, h = (Function(n) for n in "guh")
    now = unfold(theory, Response(g(ell + 1, mu, t), u(ell + 1, mu, t)), 2)
    assert now.has(phi(h(ell + 1, mu, t)).diff(h(ell + 1, mu, t), 2))
    limits = {q.kind: q.expr.limits for q in theory.equation("z", ell).terms if q.kind != "source"}
    assert (s, 0, t) in map(tuple, limits["response"])
    assert (s, 0, t - 1) in map(tuple, limits["memory"])
    assert mean_field(mlp(L, "linear", "gd")).order_parameter("B").causal == "strict"
    assert printed("D.24 text")["B_equal_time"] == 0


# -- widths and variances ------------------------------------------------------------------------------------


def equal_at(printed_side: Expr, derived: Expr) -> bool:
    return canonical(numbered(printed_side, "a")) == canonical(numbered(derived, "a"))


@pytest.mark.parametrize("name", ["h", "z"])
def test_fields_with_unequal_widths_need_the_error(name: str) -> None:
    derived = wide().equation(name, NEXT[name]).rhs
    for claim in (printed("D.54")[name], unscaled(printed("D.55")[name])):
        assert equal_at(at(with_error(claim), NEXT[name]), derived)
        assert not equal_at(at(claim, NEXT[name]), derived)


# -- Tensor Programs -----------------------------------------------------------------------------------------


def test_the_table_calls_g_by_the_name_of_z() -> None:
    """In the printer's names z is dx and g is dh; the table has dx for g, and dh in its own G."""
    claim = printed("Table N1")
    assert claim["g"] == printed("N.10")["dx_is"].replace(
        Function("dx"), lambda v: Function("Z")(Function("dx")(v))
    )
    assert claim["G"].has(Function("dh"))
    assert not claim["g"].has(Function("dh"))
    assert NAMES[Function("g")(ell, t)] == dh(ell, t)


def test_the_dotted_part_has_a_field_and_no_error() -> None:
    tp = tensor_program(mean_field(one_pass()), NAMES)
    dots = {e.lhs: e.rhs for e in tp.dots}
    mine = dots[Dot(Product(Function("W")(ell), False, x(ell, t)))]
    assert mine.has(Z(dh(ell + 1, s)))
    assert not mine.has(Function("chi"))
    said = printed("N.10 text")["dot"]
    assert said.has(Function("Delta"))
    assert not said.has(Function("Z"))


# -- independent backward matrices ---------------------------------------------------------------------------


def test_without_responses_the_fields_are_those_of_independent_matrices() -> None:
    tied, untied = mean_field(mlp(L, phi, "flow")), mean_field(mlp(L, phi, "flow", tied=False))
    claim = printed("O.1 text")

    def silent(e: Expr) -> Expr:
        return e.replace(Function("A"), lambda *_: claim["A"]).replace(Function("B"), lambda *_: claim["B"])

    for name in ("h", "z"):
        for site in (NEXT[name], ENDS[name]):
            assert same(silent(tied.equation(name, site).rhs), untied.equation(name, site).rhs)
    assert tied.equation("f").rhs == untied.equation("f").rhs
    assert {str(q.func) for q in (p.symbol for p in untied.order_parameters)} == {"Phi", "G"}
    assert not untied.observables
    assert same(claim["df"], velocity(tied))


@pytest.mark.parametrize("number", ["12", "13", "14", "D.21", "D.44", "D.46", "D.53", "E.1", "N.10"])
def test_verdicts(number: str) -> None:
    assert find("selfconsistent2023", number).verdict == "agrees"
