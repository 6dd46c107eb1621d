"""Unfolded responses and Stein's lemma against derivatives of a process computed step by step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from mpmath import mp
from sympy import (
    Derivative,
    DiracDelta,
    Expr,
    Function,
    Integer,
    Integral,
    KroneckerDelta,
    Number,
    Pow,
    Sum,
    Symbol,
    sympify,
    tanh,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.program import (
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GradientDescent,
    L,
    P,
    Population,
    Program,
    alpha,
    ell,
    eta,
    gamma0,
    mu,
    s,
    t,
)
from derive.theory import Equation, Theory
from derive.theory.unfold import covariance, stein
from tests.derive.once import convolution, mean_field, mlp
from tests.derive.programs import g as coupling
from tests.derive.programs import recurrent, tau, there_and_back, trained_between_sizes

h, g, z, u, r, A, B = (Function(n) for n in ("h", "g", "z", "u", "r", "A", "B"))
phi, x = Function("phi"), Function("x")


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    with mp.workdps(50):
        yield


# -- a process computed step by step -------------------------------------------------------------------------


@dataclass
class Process:
    """One path of a theory's single-site process for two samples: all kernels and sources are random numbers.

    Responses are derivatives with respect to one number: the imaginary part after a tiny imaginary push.
    """

    theory: Theory
    pushed: str = ""
    known: dict[str, Any] = field(default_factory=dict)

    @property
    def equations(self) -> tuple[Equation, ...]:
        return members(self.theory.program.name)

    def response(self, body: Expr, source: Expr) -> Any:
        return mp.im(Process(self.theory, str(source)).number(body)) / mp.mpf(10) ** -40

    def draw(self, name: str) -> Any:
        return mp.mpf(random.Random(name).uniform(-1, 1))

    def atom(self, a: Expr) -> Any:
        key = str(a)
        if key not in self.known:
            self.known[key] = self.field(a) if self.is_field(a) else self.draw(key)
            if key == self.pushed:
                self.known[key] += mp.mpc(0, mp.mpf(10) ** -40)
        return self.known[key]

    def is_field(self, a: Expr) -> bool:
        return any(e.name == str(a.func) for e in self.equations)

    def field(self, a: Expr) -> Any:
        for e in self.equations:
            if e.name == str(a.func) and len(e.lhs.args) == len(a.args):
                values = {p: v for p, v in zip(e.lhs.args, a.args, strict=True) if p.is_Symbol}
                if all(p.is_Symbol or p == v for p, v in zip(e.lhs.args, a.args, strict=True)):
                    return self.number(e.rhs, values)
        raise KeyError(a)

    def number(self, e: Expr, at: dict[Any, Any] | None = None) -> Any:  # noqa: PLR0911 (one return for each kind of expression)
        """Return the value of an expression of the few kinds that occur."""
        at = at or {}
        e = sympify(e)
        if isinstance(e, Number):
            return mp.mpf(e.p) / e.q
        if isinstance(e, Symbol):
            return self.draw(str(e)) + 2
        if isinstance(e, Sum):
            (v, lower, upper), *others = [(lim[0], *lim[1:]) for lim in reversed(e.limits)]
            inner = Sum(e.function, *reversed(others)) if others else e.function
            lower, upper = (int(w.xreplace({**at, P: Integer(2)})) for w in (lower, upper))
            return mp.fsum(self.number(inner, {**at, v: Integer(i)}) for i in range(lower, upper + 1))
        if isinstance(e, AppliedUndef):
            return self.atom(e.xreplace(at))
        if isinstance(e, Response):
            return self.response(e.body.xreplace(at), e.source.xreplace(at))
        if isinstance(e, KroneckerDelta):
            return mp.mpf(int(e.xreplace(at)))
        if isinstance(e, Pow):
            return self.number(e.base, at) ** int(e.exp)
        if isinstance(e, tanh):
            return mp.tanh(self.number(e.args[0], at))
        parts = [self.number(y, at) for y in e.args]
        return mp.fsum(parts) if e.is_Add else mp.fprod(parts)


@cache
def members(name: str) -> tuple[Equation, ...]:
    """Return the equations of every single layer."""
    theory = {x.program.name: x for x in (tanh_network(), linear_network())}[name]
    return theory.at_depth(3).equations


def tanh_network() -> Theory:
    return mean_field(mlp(3, tanh))


def linear_network() -> Theory:
    return mean_field(mlp(3))


FOLDED = [
    (tanh(h(2, 1, 2)), r(2, 2, 0)),
    (g(2, 1, 2), u(2, 2, 0)),
    (g(2, 1, 1), u(2, 1, 1)),
    (h(3, 2, 2) * z(3, 1, 1), r(3, 1, 1)),
    (z(2, 1, 0), u(2, 1, 0)),
    (tanh(h(2, 1, 1)), r(2, 2, 1)),
]


@pytest.mark.parametrize(
    ("body", "source", "levels"),
    [
        *((*x, 1) for x in FOLDED),
        *((*x, 2) for x in FOLDED[2:]),
        *(pytest.param(*x, 2, marks=pytest.mark.slow) for x in FOLDED[:2]),
        *(pytest.param(*x, 3, marks=pytest.mark.slow) for x in FOLDED),
    ],
)
def test_unfolded_responses_are_derivatives_of_the_process(body: Expr, source: Expr, levels: int) -> None:
    found = tanh_network().unfold(Response(body, source), levels)
    process = Process(tanh_network())
    assert abs(process.number(found) - process.response(body, source)) < mp.mpf(10) ** -30


def test_deeper_levels_leave_sources_only() -> None:
    """Each level goes one step back, so after enough of them nothing responds any more."""
    found = linear_network().unfold(Response(h(2, 1, 2), r(2, 0)), 4)
    process = Process(linear_network())
    assert abs(process.number(found) - process.response(h(2, 1, 2), r(2, 0))) < mp.mpf(10) ** -30
    assert found != 0


@pytest.mark.parametrize("levels", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_symbolic_layer_and_symbolic_times(levels: int) -> None:
    """The family's equation at a symbolic layer is that of each layer; sums begin at the source."""
    theory = mean_field(mlp(activation=tanh))
    folded = Response(tanh(h(ell, mu, t)), r(ell, alpha, s))
    found = theory.unfold(folded, levels)
    process = Process(tanh_network())
    for now, then in ((2, 0), (2, 1), (1, 1)):
        at = {ell: Integer(2), mu: Integer(1), alpha: Integer(2), t: Integer(now), s: Integer(then)}
        exact = process.response(tanh(h(2, 1, now)), r(2, 2, then))
        numbers = found.xreplace(at) if not found.atoms(Sum) else found.subs(at)
        assert abs(process.number(numbers) - exact) < mp.mpf(10) ** -30


def shadowed(e: Expr, outer: frozenset[Expr] = frozenset()) -> set[Expr]:
    """Return variables of sums with the name of one of an outer sum, or of one in their own bounds."""
    found: set[Expr] = set()
    if isinstance(e, Sum | Integral):
        own = {v for v, *_ in e.limits}
        found, outer = own & (outer | e.free_symbols), outer | own
    return found.union(*[shadowed(x, outer) for x in e.args])


@pytest.mark.parametrize("name", ["f", "A", pytest.param("H", marks=pytest.mark.slow)])
def test_sums_within_sums_have_variables_of_their_own(name: str) -> None:
    K = Function("K")
    assert shadowed(Sum(K(s), (s, 0, s - 1))) == shadowed(Sum(K(s) * Sum(K(s), (s, 0, 1)), (s, 0, t))) == {s}
    found = mean_field(mlp()).unfold(name, 2)
    assert not shadowed(found)
    assert max(len(list(x.atoms(Sum))) for x in found.atoms(Sum)) > 1


def test_offsets_out_of_range_are_not_summed_out() -> None:
    """A position and an offset may lie outside the positions of a sum; a single index may not."""
    from derive.theory.unfold import _Unfolder

    p, q, k = (Symbol(n, integer=True, positive=True) for n in "pqk")
    tidy = _Unfolder(linear_network()).tidy
    K = Function("K")
    assert tidy(Sum(KroneckerDelta(q, p) * K(q), (q, 1, P))) == K(p)
    kept = Sum(KroneckerDelta(q, p + k) * K(q), (q, 1, P))
    assert tidy(kept) == kept
    assert tidy(Sum(KroneckerDelta(q, P + 1) * K(q), (q, 1, P))) == 0


def test_the_recursion_of_a_response_function() -> None:
    theory = mean_field(mlp(activation=phi))
    found = theory.unfold("A")
    assert not found.has(gamma0)  # what is factored out of A and of A^{ell-1} cancels
    sums = sorted(found.atoms(Sum), key=str)
    assert [x.limits[-1][1:] for x in sums] == [(s, t - 1)] * 2  # g at s already moves with r at s
    assert all(len(x.atoms(Average)) == 1 for x in sums)
    (field_,) = {x.body for x in found.atoms(Response)}
    assert field_.func == g


def test_sources_and_later_times_drop_out() -> None:
    assert tanh_network().unfold(Response(u(2, 1, 2), r(2, 1, 0))) == 0
    assert tanh_network().unfold(Response(h(2, 1, 0), r(2, 1, 1))) == 0
    assert tanh_network().unfold(Response(h(2, 1, 1), r(2, 1, 1))) == 0
    assert mean_field(there_and_back()).unfold("R_phi_h_r") == 0  # h = W x, and x never changes


def test_a_rate_of_change_unfolds_to_its_equation() -> None:
    """Sompolinsky and Zippelius: the response of a symmetric network in time."""
    theory = mean_field(recurrent(tau))
    field_, noise, R = Function("x"), Function("eta"), Function("R_phieta")
    folded = Response(field_(t), noise(s))
    found = theory.unfold(folded.diff(t))
    (memory,) = found.atoms(Integral)
    ((v, *_),) = memory.limits
    kernel = R(t, v) * Derivative(phi(field_(v)), field_(v)) * Response(field_(v), noise(s))
    assert memory == Integral(kernel, (v, s, t))
    assert (found - (DiracDelta(s - t) - folded + coupling**2 * tau * memory)).expand() == 0


def test_an_evolving_field_unfolds_to_an_integral() -> None:
    theory = mean_field(trained_between_sizes())
    found = theory.unfold(Response(x(t), u(s)))
    assert found.has(Integral)
    assert found.subs(t, s).doit() == 1


def test_averages_unfold_through_products_not_through_functions() -> None:
    theory = mean_field(mlp(activation=phi))
    assert theory.unfold("Phi") == theory.order_parameter("Phi").definition
    assert not theory.unfold("G").has(g)
    first = linear_network().unfold(Average(h(1, mu, 0) * h(1, alpha, 0)))
    assert first.subs(t, 0).doit() in (Function("K_x")(mu, alpha), Function("K_x")(alpha, mu))
    assert linear_network().unfold(Average(g(3, 0) ** 4)).doit() == 3  # the readout is a standard normal
    with pytest.raises(KeyError, match="no order parameter or scalar Q"):
        theory.unfold("Q")


# -- Stein's lemma over the sources of a theory --------------------------------------------------------------


def coefficients(body: Expr, sources: Iterable[Expr]) -> dict[Expr, Any]:
    process = Process(linear_network())
    return {v: process.response(body, v) for v in sources}


@pytest.mark.parametrize(
    ("factor", "other"),
    [
        (r(2, 1), h(2, 1, 2)),
        (u(2, 1, 0), g(2, 2)),
        (u(2, 2, 1), h(2, 1, 2)),
        (r(3, 2), g(3, 1)),
    ],
)
def test_stein_is_the_covariance_in_a_linear_theory(factor: Expr, other: Expr) -> None:
    """Fields that are linear in the sources: <u F> is the covariance summed over F's coefficients."""
    sources = [r(factor.args[0], i) for i in range(3)]
    sources += [u(factor.args[0], k, i) for k in (1, 2) for i in range(3)]
    process = Process(linear_network())
    direct = mp.fsum(
        weight * process.number(covariance(factor, v, linear_network().sources))
        for v, weight in coefficients(other, sources).items()
    )
    traded = stein(Average(factor * other), linear_network().sources)
    assert traded.has(Response)
    assert not traded.has(factor)
    found = process.number(traded.replace(lambda e: isinstance(e, Average), lambda e: e.body))
    assert abs(found - direct) < mp.mpf(10) ** -30


def test_stein_over_samples_and_time() -> None:
    theory = mean_field(mlp(activation=phi))
    found = stein(Average(r(ell, mu, t) * phi(h(ell, alpha, 2))), theory.sources)
    (whole,) = found.atoms(Sum)
    assert [lim[1:] for lim in whole.limits] == [(1, P), (0, 2)]
    flow = mean_field(mlp(1, phi, rule="flow"))
    found = stein(Average(r(1, mu, t) * h(1, alpha, s)), flow.sources, discrete=False)
    (whole,) = found.atoms(Integral)
    assert whole.limits[0][1:] == (0, s)
    assert found.has(Sum)  # over the samples: all of them see the same readout


def test_stein_of_a_correlated_pair_of_sources_sums_over_both() -> None:
    """In there_and_back the matrix M multiplies two vectors forwards, so that both sources contribute."""
    sources = mean_field(there_and_back()).sources
    first, second, q = Function("u_M_phi_h"), Function("u_M_phi_q"), Function("q")
    found = stein(Average(first(t) * q(t)), sources)
    assert {str(x.source.func) for x in found.atoms(Response)} == {"u_M_phi_h", "u_M_phi_q"}
    assert stein(Average(second(t) * q(t)), sources).has(first)


def test_stein_leaves_averages_without_a_source() -> None:
    plain = Average(h(1, mu, t) ** 2)
    assert stein(plain, linear_network().sources) == plain
    assert stein(Average(r(2, t)), linear_network().sources) == 0


# -- explanations --------------------------------------------------------------------------------------------


def test_every_term_is_explained_by_its_matrix() -> None:
    theory = mean_field(mlp(activation=phi))
    said = theory.explain("z")
    assert "W(ell).T @ g(ell + 1, mu, t) and W(ell) @ phi(h(ell, mu, t)) share the entries of W" in said
    assert "already within the step" in said
    assert "updates of w by GradientDescent" in said
    for e in (*theory.equations, *theory.scalars, *theory.observables):
        assert e.name in theory.explain(e.name)
        for term in e.terms:
            told = theory.explain_term(term)
            assert term.matrix in told
            assert str(term.expr) in told


def test_parts_of_terms_and_order_parameters_are_explained() -> None:
    theory = mean_field(mlp(activation=phi))
    told = theory.explain_term(A(ell, mu, alpha, t, s))
    assert "h(ell + 1, mu, t)" in told
    assert "the response multiplies g(ell + 1, mu, t)" in told
    assert "covariance of u, from W" in theory.explain("Phi")
    assert "0 unless s <= t" in theory.explain("B")
    renamed = theory.equation("h", 1).terms[1].expr.subs(eta, eta)
    assert "GradientDescent" in theory.explain_term(renamed)
    assert "have the correlation tau" in mean_field(recurrent(tau)).explain("x")
    with pytest.raises(KeyError, match="the theory has"):
        theory.explain("nothing")
    with pytest.raises(KeyError, match="does not occur in any"):
        theory.explain_term(Function("nothing")(t))


def test_each_term_names_its_own_one_of_two_products_with_a_matrix() -> None:
    """Once every term of M and of its transpose was explained by the first of both products."""
    units, b = Population("units"), Symbol("b", positive=True)
    x, M, w = Field("x", units), GaussianMatrix("M", units, units), GaussianVector("w", units)
    line = Definition(x(t), w.symbol + M @ phi(x(t - 1)) + b * (M.T @ phi(x(t - 1))))
    theory = mean_field(Program("both ways", GradientDescent(eta), (x,), (line,), (M,), (w,)))
    both = "M @ phi(x(t - 1))", "M.T @ phi(x(t - 1))"
    for term in theory.equation("x").terms:
        if term.matrix == "M":
            one, other = reversed(both) if term.expr.has(b) else both
            beginning = {"source": f"the Gaussian part of {one};", "response": f"{one} and {other} share"}
            assert f"    {beginning[term.kind]}" in theory.explain_term(term)


def test_the_variance_of_a_matrix_is_divided_by_the_number_of_inputs() -> None:
    said = mean_field(mlp(2)).explain("h")
    assert "W0 has entries N(0, 1/D) for the D units of input" in said
    assert "W has entries N(0, 1/N)" in said


def test_a_term_of_one_layer_is_explained_at_symbolic_depth() -> None:
    """Once refused, because the theory has the layers of a family in one equation."""
    theory = mean_field(mlp())
    for layer in (3, L - 1):
        response = theory.equation("h", layer).terms[1]
        assert str(response.expr) in theory.explain_term(response)
    said = theory.explain_term(theory.equation("h", 3).terms[0])
    assert "its covariance is H(2, mu, alpha, t, s)" in said
    with pytest.raises(KeyError, match="does not occur in any"):
        mean_field(mlp(2)).explain_term(Function("u")(9, mu, t))


def test_the_list_of_equations_has_those_of_scalars() -> None:
    with pytest.raises(KeyError, match="there are h, g, f, Delta"):
        mean_field(mlp()).equation("q")


def test_the_products_of_a_convolution_are_explained_by_their_sum() -> None:
    """Its product at one offset k was named, with k a free index."""
    theory = mean_field(convolution(2, positions=3, receptive=1))
    product = "Sum(W(ell, k) @ h(ell, mu, k + p, t), (k, -1, 1))"
    source, response, memory = theory.equation("h", ell + 1).terms
    assert f"the Gaussian part of {product};" in theory.explain_term(source)
    assert f"{product} and Sum(W(ell, k).T @ " in theory.explain_term(response)
    assert f"applied in {product}" in theory.explain_term(memory)
