"""Tests of structured terms: kernel and earlier field of each, and the properties that a theory states."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import Function, Integral, S, Sum, Symbol, symbols, tanh
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import alpha, ell, mu, s, t
from derive.program import L
from derive.theory import Term, Theory
from derive.theory.path_integral import path_integral
from tests.derive.once import (
    convolution,
    depth_program,
    feedback_alignment,
    isotropic,
    mean_field,
    mlp,
    structured,
)

phi = Function("phi")
beta, lam = Symbol("beta", positive=True), Symbol("lambda", positive=True)
X = Symbol("X", integer=True, positive=True)
PROGRAMS = {
    "plain": lambda: mlp(L, phi),
    "flow": lambda: mlp(L, phi, "flow", branch=beta, bias=True),
    "decay": lambda: mlp(2, tanh, weight_decay=lam, outputs=3),
    "convolution": lambda: convolution(L, phi, positions=X, receptive=1),
    "feedback": lambda: feedback_alignment(L, phi),
    "isotropic": lambda: isotropic(L, center=True),
    "online": lambda: isotropic(2, data="online", noise=True),
    "modes": lambda: structured(2),
    "depth": depth_program,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_term_is_its_kernel_on_its_field(name: str) -> None:
    theory = mean_field(PROGRAMS[name]())
    random = {e.name for e in theory.equations} | {u.name for u in theory.sources}
    for e in theory.equations:
        for x in e.terms:
            named = {str(a.func) for a in x.kernel.atoms(AppliedUndef)}
            assert not named & random, (e.lhs, x)  # a kernel is deterministic
            if x.kind in ("response", "memory"):
                assert {str(a.func) for a in x.field.atoms(AppliedUndef)} & random
                assert not x.coefficient.has(s)
            assert x.remembers == (x.reach != "")
            if x.reach == "flow":
                assert isinstance(x.expr, Integral)
            elif x.remembers:
                assert isinstance(x.expr, Sum)
                assert x.expr.limits[-1] == (s, S.Zero, t if x.reach == "past" else t - 1)


@pytest.mark.parametrize("name", ["decay", "online"])
def test_both_routes_structure_their_terms_alike(name: str) -> None:
    program = PROGRAMS[name]()
    one, two = mean_field(program), path_integral(program).theory()
    for e, f in zip(one.equations, two.equations, strict=True):
        for x in e.terms:
            same = (y for y in f.terms if (y.kind, y.field, y.reach) == (x.kind, x.field, x.reach))
            assert any((x.coefficient * x.kernel - y.coefficient * y.kernel).expand() == 0 for y in same), x


def test_a_change_part_by_part_keeps_the_parts() -> None:
    term = mean_field(mlp(L, phi)).equation("h", ell + 1).terms[-1]
    assert (term.kind, term.field, term.reach) == ("memory", Function("g")(ell + 1, alpha, s), "strict")
    fixed = term.rewrite(lambda e: e.subs(ell, 2))
    assert fixed.field == Function("g")(3, alpha, s)
    assert fixed.expr == term.expr.subs(ell, 2)
    a, b, c = symbols("a:c")  # 0.1 * 0.2 * 0.3 is not 0.1 * (0.2 * 0.3) to rounding
    factors = replace(term, coefficient=a, kernel=b * c * term.kernel)
    rounded = factors.rewrite(lambda e: e.subs({a: 0.1, b: 0.2, c: 0.3}))
    assert (rounded.field, rounded.reach) == (term.field, term.reach)
    twice = term.rewrite(lambda e: 2 * e)  # not part by part: the expression is all that is known
    assert (twice.field, twice.reach) == (2 * term.expr, "")
    assert term.times(2).expr.function == 2 * term.expr.function


def test_an_equation_for_every_member_that_there_is() -> None:
    theory = mean_field(mlp(L, phi))
    assert theory.equation("h", 1).terms[0].expr == Function("u")(1, mu, t)
    member = theory.equation("h", 4)
    assert member.lhs == Function("h")(4, mu, t)
    assert member.terms[1].field == Function("g")(4, alpha, s)
    for name, site in (("h", 0), ("x", 1), ("h", L + 1)):
        with pytest.raises(KeyError, match=r"no equation for .*; there are"):
            theory.equation(name, site)
    with pytest.raises(Exception, match="ell"):  # text is not evaluated
        theory.equation("h", "ell + 1")  # type: ignore[arg-type]


def test_the_symbols_of_a_theory_stand_in_its_equations() -> None:
    theory = mean_field(mlp(L, phi, weight_decay=lam))
    assert set(theory.symbols) == {"L", "P", "eta", "gamma0", "lambda"}
    memory = theory.equation("h", 1).terms[-1].expr
    assert not memory.subs(theory.symbols["gamma0"], 1).has(theory.symbols["gamma0"])
    assert set(mean_field(isotropic(2, noise=True)).symbols) == {"alpha", "eta", "gamma0", "nu", "sigma"}
    assert set(mean_field(structured()).symbols) == {"B", "L", "M", "N", "eta", "gamma0"}  # not the mode k


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bare_theory_says_in_ten_lines_what_it_is(name: str) -> None:
    theory = mean_field(PROGRAMS[name]())
    assert isinstance(theory, Theory)
    lines = repr(theory).split("\n")
    assert len(lines) <= 14
    assert max(map(len, lines)) <= 110
    assert ".render()" in repr(theory)
    for item in (
        theory.equations[0],
        theory.sources[0],
        theory.order_parameters[0],
        theory.equations[0].terms[0],
    ):
        assert item._repr_latex_().startswith("$")


def test_a_changed_theory_is_put_at_its_depth() -> None:
    """A part inserted into a theory at integer depth may still contain the symbol of the depth."""
    theory = mean_field(mlp(2))
    scalars = tuple(replace(e, terms=(*e.terms, Term.local(L, "source"))) for e in theory.scalars)
    found = replace(theory, scalars=scalars).at_depth(2)
    assert not any(e.rhs.has(L) for e in found.scalars)
    assert [e.rhs - x.rhs for e, x in zip(found.scalars, theory.scalars, strict=True)] == [2] * len(scalars)


def test_a_notebook_shows_the_single_site_equations_and_how_to_see_the_rest() -> None:
    shown = mean_field(mlp(2, "tanh"))._repr_latex_()
    assert "% Single-site process" in shown
    assert "% Action" not in shown
    assert r'\texttt{.render("order-parameters")}' in shown
