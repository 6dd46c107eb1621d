"""Appendix K: printed equations against the engine, term by term."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import pytest
from sympy import (
    Abs,
    Add,
    Expr,
    Function,
    I,
    Integral,
    Matrix,
    MatrixSymbol,
    Min,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    limit,
    oo,
    simplify,
    sqrt,
    symbols,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.gaussian import GaussianAverage
from derive.program import GradientFlow, L, P, alpha, ell, gamma0, mu, s, t
from derive.reduce.equilibrium import Equilibrium, equilibrium
from derive.reduce.ridge import output_rate
from derive.reduce.stationary import Stationary, TwoSources, stationary, two_sources
from tests.derive.once import mean_field, mlp
from tests.ledger.claims.selfconsistent2023.langevin import N
from tests.ledger.jklm import (
    ENDS,
    NEXT,
    B,
    Delta,
    Phi,
    beta,
    g,
    h,
    lam,
    printed,
    u,
    z,
)
from tests.ledger.printed_forms import at, canonical, covariance, phi, same

# -- K: dynamics ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy() -> TwoSources:
    return two_sources(mean_field(mlp(L, phi, "flow", weight_decay=lam / beta, temperature=1 / beta)))


def test_weights_with_an_integrating_factor() -> None:
    """(K.2): the rule's memory times exp(lambda t/beta) does not depend on the time t."""
    rule = GradientFlow(decay=lam / beta, diffusion=2 / beta)
    claim, (kept, fed) = printed("K.2"), rule.memory(t, s)
    grown = claim["noise"] / claim["noise"].subs(t, 0)
    assert simplify(kept * grown) == 1
    assert simplify(fed * grown - grown.subs(t, s)) == 0
    noise = simplify(rule.noise(t, t) * grown**2)
    assert simplify(noise.diff(t) - claim["noise"] ** 2) == 0
    (w,) = [x for x in mlp(L, phi, "flow").trained() if x.name == "W"]
    moved = Function("outer")(w.update.left, w.update.right).subs(alpha, mu)
    told = Sum(w.update.coefficient.subs(alpha, mu) * moved, (mu, 1, P)) / sqrt(N)
    assert simplify((claim["dt"] / grown - told).subs(P, 2).doit()) == 0


def test_output_lacks_gamma0() -> None:
    """(K.3): with 1/gamma0 and the correct z and phi of layer 0 it is the derived rate."""
    claim = printed("K.3")["df"].subs(L, 2).doit()
    derived = output_rate(
        mean_field(mlp(2, phi, "flow", weight_decay=lam / beta, temperature=1 / beta))
    ).eq.rhs.doit()
    assert _repaired(claim, S.One) != _spelled(derived)
    assert simplify(_repaired(claim, 1 / gamma0) - _spelled(derived)) == 0


def _spelled(e: Expr) -> Expr:
    """Return averages of the engine as those of print.

    <g h> becomes <z phi> of the layer below, Phi becomes <phi^2>.
    """
    average = Function("average")

    def name(x: Average) -> Expr:
        (site,) = {a.args[0] for a in x.body.atoms(AppliedUndef) if str(a.func) == "h"}
        return average(Symbol(f"z phi {site - 1 if x.body.has(g) else site}"))

    e = e.replace(lambda x: isinstance(x, Average), name)
    return e.replace(Phi, lambda n, *_: average(Symbol(f"phi^2 {n}"))).expand()


def _repaired(claim: Expr, factor: Expr) -> Expr:
    """Return the claim with the inner sums times ``factor`` and dg/dh as ``slope``.

    The output's own field is zero.
    """
    average, slope = Function("average"), Function("slope")

    def named(x: AppliedUndef) -> Expr:
        body = x.args[0]
        if str(body.func) == "dg_dh":
            return S.Zero if body.args[0] == 3 else slope(*body.args)
        (site,) = {a.args[0] for a in body.atoms(AppliedUndef) if str(a.func) == "h"}
        if not body.has(z):
            return Function("K_x")(mu, mu) if site == 0 else average(Symbol(f"phi^2 {site}"))
        return average(Symbol(f"z phi {site}"))

    gained = sum(x for x in Add.make_args(claim.expand()) if x.has(Delta))
    return (
        gained + factor * (claim.expand() - gained).replace(average, lambda x: named(average(x)))
    ).expand()


@pytest.mark.slow
def test_covariance_of_the_noise() -> None:
    """(K.7): the integral, done, is C, the engine's noise; so is its late form."""
    claim, noise = printed("K.7"), GradientFlow(decay=lam / beta, diffusion=2 / beta).noise(t, s)
    assert simplify((claim["integral"].doit() - claim["C"]).rewrite(exp)) == 0
    early, lag = symbols("early lag", positive=True)
    for now, then in ((early + lag, early), (early, early + lag)):
        there = {t: now, s: then}
        mine, theirs = (e.subs(there, simultaneous=True) for e in (claim["C"], noise))
        assert (
            simplify(mine.subs(Min(early, early + lag), early) - theirs.subs(Min(early, early + lag), early))
            == 0
        )
        late = claim["C_late"].subs(there, simultaneous=True)
        assert simplify(limit(simplify(mine), early, oo) - late) == 0
    assert claim["C_late"].has(Abs)


def test_log_of_the_average_over_the_noise() -> None:
    """(K.7): half the second cumulant of the noise in one matrix, for two units, two times and one sample.

    The matrix is contracted with ``X(t) = chi_hat phi^T + g xi_hat^T`` at the time t, and ``phi . xi_hat = i
    N A_eps``.
    """
    rng, times, units = Random(5), (1, 2), (0, 1)
    chi, xi, field, g_ = (
        {(k, i): Rational(rng.randint(-9, 9), 7) for k in times for i in units} for _ in range(4)
    )

    def inner(a: dict[tuple[int, int], Expr], b: dict[tuple[int, int], Expr], x: int, y: int) -> Expr:
        return sum(a[x, i] * b[y, i] for i in units)

    def matrix(k: int) -> Matrix:
        return Matrix(2, 2, lambda i, j: chi[k, i] * field[k, j] + g_[k, i] * xi[k, j])

    claim = printed("K.7")
    (body,) = [x for x in claim["log"].atoms(Sum)]
    vectors = {"chihat_eps": chi, "xihat_eps": xi, "g": g_}
    numbers = {
        "dot": lambda x, y: inner(
            vectors[str(x.func)], vectors[str(y.func)], int(x.args[-1]), int(y.args[-1])
        ),
        "Phi": lambda *i: inner(field, field, int(i[-2]), int(i[-1])) / 2,
        "G": lambda *i: inner(g_, g_, int(i[-2]), int(i[-1])) / 2,
        "A_eps": lambda *i: inner(field, xi, int(i[-2]), int(i[-1])) / (2 * I),
    }
    total, squares = S.Zero, S.Zero
    for x, y in product(times, times):
        at_times = body.subs(P, 1).doit().subs({t: x, s: y}, simultaneous=True)
        total -= claim["C"].subs({t: x, s: y}, simultaneous=True) * _valued(at_times, numbers) / 2
        squares -= claim["C"].subs({t: x, s: y}, simultaneous=True) * (matrix(x) * matrix(y).T).trace() / 4
    assert simplify(total - squares) == 0
    (integrals,) = claim["log"].atoms(Integral)
    assert simplify(integrals.function / body - claim["C"]) == 0
    assert claim["log"] == -integrals / 2


def _valued(e: Expr, numbers: dict[str, Callable[..., Expr]]) -> Expr:
    for name, value in numbers.items():
        e = e.replace(Function(name), value)
    return e


def test_saddle_point_of_the_responses_to_the_noise() -> None:
    """(K.9): from the cross term of (K.7), per N, and ``-A_eps B_eps``; the second has a C too many."""
    claim, C = printed("K.9"), Function("C")(t, s)
    chihat, xihat = Function("chihat_eps")(ell + 1, mu, t), Function("xihat_eps")(ell, alpha, s)
    A_eps, B_eps = (Function(n)(ell, mu, alpha, t, s) for n in ("A_eps", "B_eps"))
    (body,) = printed("K.7")["log"].atoms(Sum)
    back, feature = chihat * g(ell + 1, alpha, s), phi(h(ell, mu, t)) * xihat
    average = Function("average")
    crossed = body.function.expand().coeff(A_eps).replace(Function("dot"), lambda x, y: average(x * y))
    assert claim["A_eps"] == -B_eps - C * crossed / 2
    assert crossed == 2 * I * average(back)
    assert claim["B_eps"] == -A_eps - I * C * average(feature)


def test_sources_of_the_noise(noisy: TwoSources) -> None:
    """(K.10), (K.11), (K.14): covariances, C being the rule's noise."""
    theory, C = noisy.theory, Function("C")

    def known(e: Expr) -> Expr:
        return e.replace(C, lambda *_: noisy.noise)

    assert simplify(known(printed("K.10")["cov_u_eps"]) - covariance(theory, "u_eps", ell + 1)) == 0
    assert simplify(known(printed("K.11")["cov_r_eps"]) - covariance(theory, "r_eps", ell)) == 0
    claim = printed("K.14")
    for source, site in (("u", ell + 1), ("r", ell), ("u_eps", ell + 1), ("r_eps", ell)):
        said = known(at(claim[f"cov_{source}"], site))
        assert simplify(said - covariance(theory, source, site)) == 0


def test_responses_to_the_noise(noisy: TwoSources) -> None:
    """(K.13): A_eps as derived (one layer on, before 1/gamma0); B_eps must be the response to u_eps."""
    claim, C = printed("K.13"), Function("C")
    said = {k: (v / gamma0).replace(C, lambda *_: noisy.noise) for k, v in claim.items()}
    assert _is(said["A_eps"], noisy, "A_eps")
    assert not _is(said["B_eps"], noisy, "B_eps")
    assert _is(said["B_eps"].replace(u, Function("u_eps")), noisy, "B_eps")


def _is(e: Expr, split: TwoSources, name: str) -> bool:
    return canonical(e) == canonical(split.theory.order_parameter(name).definition)


def test_c_enters_once(noisy: TwoSources) -> None:
    """(K.7) has C in front of A_eps g, (K.9) in A_eps: the derived theory has one factor in all."""
    assert printed("K.9")["B_eps"].has(Function("C"))
    (cross,) = [x for x in Add.make_args(printed("K.7")["log"].atoms(Sum).pop().function) if x.has(I)]
    assert cross.has(Function("A_eps"))
    in_field = [x.expr for x in noisy.theory.equation("h", ell + 1).terms if x.expr.has(Function("A_eps"))]
    assert len(in_field) == 1
    assert not in_field[0].has(lam)
    assert noisy.theory.order_parameter("A_eps").definition.has(lam)


@pytest.mark.parametrize("name", ["h", "z"])
def test_fields_with_noise(noisy: TwoSources, name: str) -> None:
    claim = printed("K.14")[name].expand()
    for site in (NEXT[name], ENDS[name]):
        derived = noisy.theory.equation(name, site).rhs
        said = _closed(claim, site)
        assert same(said, derived) == (name == "h" or site == L)
        if name == "z":
            bare = claim.replace(
                lambda x: isinstance(x, Integral) and x.has(B) and not x.has(Function("B_eps")),
                lambda x: x.replace(g, lambda *i: phi(h(*i))),
            )
            assert same(_closed(bare, site), derived)


def _closed(e: Expr, site: Expr) -> Expr:
    """Return the expression at one layer; the responses to the noise vanish at the end layers like others."""
    ends = {"A_eps": S.Zero, "B_eps": L}

    def end(x: AppliedUndef) -> Expr:
        return S.Zero if x.args and ends.get(str(x.func)) == x.args[0] else x

    return at(e, site).replace(lambda x: isinstance(x, AppliedUndef), end)


def test_brownian_fields(noisy: TwoSources) -> None:
    """(K.12): with A_eps of the layer below, divided by gamma0, as in (K.14)."""
    claim = printed("K.12")
    there = noisy.theory.equation("h", ell + 1)
    derived = Add(*[x.expr for x in there.terms if x.expr.has(Function("A_eps"), Function("u_eps"))])
    said = claim["chi_eps"].replace(Function("A_eps"), lambda n, *i: gamma0 * Function("A_eps")(n - 1, *i))
    assert same(said, derived)
    back = noisy.theory.equation("z", ell)
    derived = Add(*[x.expr for x in back.terms if x.expr.has(Function("B_eps"), Function("r_eps"))])
    said = claim["xi_eps"].replace(
        Function("B_eps"), lambda n, a, b, x, y: gamma0 * Function("B_eps")(n, b, a, y, x)
    )
    assert same(said, derived)


def test_labels_of_layers(noisy: TwoSources) -> None:
    """(K.4), (K.5): the product with W^l transposed is z^l; the product with phi(h^l) enters h^{l+1}."""
    (field,) = {a.args[0] for a in printed("K.4")["field"].atoms(AppliedUndef)}
    assert field != noisy.theory.equation("z", ell).lhs.args[0]
    (name,) = {a.args[0] for a in printed("K.5")["field"].atoms(AppliedUndef)}
    source = next(x for x in noisy.theory.sources if str(x.symbol.func) == "u_eps" and x.covariance.has(Phi))
    assert source.covariance.atoms(Phi).pop().args[0] == source.symbol.args[0] - 1 != name - 1


# -- K: long times -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def late() -> Stationary:
    return stationary(mean_field(mlp(L, phi, "flow", weight_decay=lam / beta, temperature=1 / beta)))


def test_stationary_kernels(late: Stationary) -> None:
    claim = {**printed("K.15"), **printed("K.16")}
    fields = {(str(e.lhs.func), e.lhs.args[0]): e.rhs for e in late.fields}
    where = {"H_first": ("H", 1), "H": ("H", ell + 1), "Z_last": ("Z", L), "Z": ("Z", ell)}
    for name, place in where.items():
        assert simplify(claim[name] - fields[place]) == 0, name
    kernels = {str(e.lhs.func): e.rhs for e in late.kernels}
    for name in ("Phi", "G"):
        assert simplify(claim[name] - _gaussians_named(kernels[name])) == 0, name


def _gaussians_named(e: Expr) -> Expr:
    x, y = Symbol("x", real=True), Symbol("y", real=True)

    def named(a: GaussianAverage) -> Expr:
        return Function("gaussian")(a.body, *(a.covariance(*p) for p in ((x, x), (x, y), (y, y))))

    return e.replace(lambda a: isinstance(a, GaussianAverage), named)


# -- K: equilibrium ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rest() -> Equilibrium:
    return equilibrium(mean_field(mlp(L, phi, "flow", weight_decay=lam / beta, temperature=1 / beta)))


def alike(said: Expr, derived: Expr) -> bool:
    """Return whether both are equal for two samples and one or two layers, with products of sums opened."""
    return simplify(_opened(said) - _opened(derived)) == 0


def _opened(e: Expr) -> Expr:
    e = e.replace(Function("average"), lambda x: Average(x).linear(frozenset({"h", "hhat"})))
    return e.subs(L, 2).subs(P, 2).doit().expand()


def test_action_at_equilibrium(rest: Equilibrium) -> None:
    claim = printed("K.17")
    assert alike(claim["exponent"], rest.algebra)
    assert alike(claim["Z"], rest.exponent)
    logs = Sum(Function("lnZ")(ell), (ell, 1, L))
    assert alike(printed("K.18")["S"], rest.algebra + logs)
    assert not alike(claim["exponent"], rest.algebra.subs(lam, 2 * lam))


def test_conditions_at_equilibrium(rest: Equilibrium) -> None:
    claim, derived = printed("K.19"), rest.variations
    negated = -derived["f"].xreplace(_errors())
    assert alike(claim["f"], negated)
    for name in ("fhat", "Phi_last", "Phihat"):
        assert alike(claim[name], derived[name]), name
    assert not alike(claim["Phi"], derived["Phi"])
    above = claim["Phi"].coeff(Function("average")(*_above()))
    assert alike(claim["Phi"] + above * (1 / lam - 1) * Function("average")(*_above()), derived["Phi"])
    assert not alike(claim["Phihat_last"], derived["Phihat"].subs(ell, L))
    mended = claim["Phihat_last"].replace(Phi, lambda n, *i: Phi(L, *i))
    assert alike(mended, derived["Phihat"].subs(ell, L))


def _errors() -> dict[Expr, Expr]:
    f, y, loss = (Function(n) for n in ("f", "y", "loss"))
    return {loss(f(mu), y(mu)).diff(f(mu)): -Delta(mu)}


def _above() -> tuple[Expr, ...]:
    hhat = Function("hhat")
    return (hhat(ell + 1, mu) * hhat(ell + 1, alpha),)


def test_outputs_and_conjugate_kernels(rest: Equilibrium) -> None:
    assert alike(printed("K.20")["f"], rest.solved["f"].rhs)
    last = rest.solved["Phihat_last"].rhs
    assert simplify(printed("K.20 text")["Phihat_last"] / last) == S.Half
    exponent = rest.exponent.subs(ell, L).replace(Function("Phihat"), lambda n, a, b: _at(last, a, b))
    assert alike(printed("K.21")["Z"], exponent)


def _at(e: Expr, a: Expr, b: Expr) -> Expr:
    return e.subs({mu: a, alpha: b}, simultaneous=True)


@pytest.mark.parametrize("number", ["K.22", "K.23"])
def test_recursion_of_conjugate_kernels(rest: Equilibrium, number: str) -> None:
    said = sympify(printed(number)["Phihat"])
    one = {MatrixSymbol("Phi", P, P): Symbol("k"), MatrixSymbol("C", P, P): Symbol("c")}

    def numbers(e: Expr) -> Expr:
        sized = e.subs(P, 1)
        names = {x: Matrix([[one[MatrixSymbol(x.name, P, P)]]]) for x in sized.atoms(MatrixSymbol)}
        return Matrix(sized.subs(names).doit())[0, 0]

    assert simplify(numbers(said) / numbers(rest.conjugate_kernel)) == lam
    if number == "K.23":
        assert same(printed(number)["Phi"], rest.solved["Phi"].rhs)
