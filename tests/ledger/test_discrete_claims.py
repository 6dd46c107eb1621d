"""Appendix M: printed equations against the engine and against each other, term by term."""

from __future__ import annotations

from itertools import product

import pytest
from sympy import Add, Expr, Function, Heaviside, I, S, Sum, Symbol, simplify, sympify

from derive.calculus.averages import Average
from derive.program import L, P, alpha, ell, gamma0, mu, s, t
from derive.theory import Theory
from tests.derive.once import mean_field, mlp
from tests.ledger.claims.selfconsistent2023.discrete import N, T, fhat, i, w, xihat
from tests.ledger.jklm import ENDS, NEXT, A, B, Delta, G, Phi, h, printed, r, u, z
from tests.ledger.printed_forms import at, covariance, phi, same

ETA = Symbol("eta", positive=True)
f = Function("f")


@pytest.fixture(scope="module")
def steps() -> Theory:
    return mean_field(mlp(L, phi, "gd"))


def after(x: Expr) -> Expr:
    """Return Theta, with Theta(0) = 0."""
    return S.One if x.is_positive else S.Zero


# -- the output ----------------------------------------------------------------------------------------------


def test_output_by_units_and_by_kernels() -> None:
    """(M.1), two units, two samples, at t = 2: the kernel is the average over the units."""
    claim, size = printed("M.1"), {N: 2, P: 2, t: 2}
    kernels = claim["f"].subs(size).doit()
    opened = kernels.replace(
        Phi,
        lambda n, a, b, now, then: Sum(phi(h(n, a, i, now)) * phi(h(n, b, i, then)), (i, 1, 2)).doit() / 2,
    )
    assert simplify(claim["f_by_units"].subs(size).doit() - opened) == 0


def test_output_by_units_is_the_programs() -> None:
    """(M.1): the readout's memory, at unit learning rate, and the scale of the output."""
    program = mlp(L, phi, "gd")
    kept, fed = (x.subs(ETA, 1) for x in program.rule.memory(t, s))
    (readout,) = [x for x in program.trained() if x.name == "w"]
    assert readout.update.vector == phi(h(L, alpha, t))
    update = readout.update.coefficient.subs(t, s) * phi(h(L, alpha, i, s))
    told = kept * w(i, 0) + Sum(fed * update, (alpha, 1, P), (s, 0, t - 1))
    said = printed("M.1")["f_by_units"] * N * gamma0
    assert simplify((said - Sum(told * phi(h(L, mu, i, t)), (i, 1, N))).subs({N: 2, P: 2, t: 2}).doit()) == 0


def test_output_is_the_derived_one(steps: Theory) -> None:
    """(M.8): f is <phi z>/gamma0 with z of the last layer put in, <phi r> = gamma0 sum A by Stein's lemma."""
    (scalar,) = [x for x in steps.scalars if x.name == "f"]
    body = scalar.rhs.subs(ETA, 1)
    (average,) = body.atoms(Average)
    feature, field = simplify(average.body / z(L, mu, t)), steps.equation("z", L).rhs.subs(ETA, 1)
    total = S.Zero
    for x in Add.make_args(field.expand()):
        if x.func == r:
            assert covariance(steps, "r", L) == 1
            total += body.coeff(average) * gamma0 * Sum(A(L, mu, alpha, t, s), (alpha, 1, P), (s, 0, t - 1))
        else:
            kernel = x.replace(phi, lambda a: Phi(L, mu, a.args[1], t, a.args[2]))
            total += body.coeff(average) * kernel
    assert feature == phi(h(L, mu, t))
    claim = causal(printed("M.8")["f"])
    size = {P: 2, t: 2}
    assert simplify((claim - total).subs(size).doit()) == 0


# -- the average over the readout and the action -------------------------------------------------------------


def test_average_over_the_readout() -> None:
    """(M.3): minus half the squared length of what multiplies w(0); two units, times and samples."""
    hat, feature = Function("x"), Function("y")  # entries of xi_hat and phi(h)
    places = list(product((1, 2), (0, 1)))
    total = S.Zero
    for unit in (1, 2):
        pushed = sum(hat(a, k, unit) + fhat(a, k) * feature(a, k, unit) / gamma0 for a, k in places)
        total -= pushed**2 / 2

    def entries(v: Expr, unit: int) -> Expr:
        if v.func == xihat:
            return hat(*v.args, unit)
        field = v.args[0]
        return feature(*field.args[1:], unit)

    def dot(a: Expr, b: Expr) -> Expr:
        return sum(entries(a, unit) * entries(b, unit) for unit in (1, 2))

    claim = printed("M.3")["log"].subs({P: 2, T: 1, N: 2}).doit()
    claim = claim.replace(
        Phi, lambda _, a, b, x, y: sum(feature(a, x, k) * feature(b, y, k) for k in (1, 2)) / 2
    )
    assert (claim.replace(Function("dot"), dot) - total).expand() == 0


@pytest.fixture(scope="module")
def action() -> Expr:
    """Return (M.4) for two samples and two times, one layer, sums carried out."""
    return opened(printed("M.4")["S"])


def opened(e: Expr) -> Expr:
    e = sympify(e).subs({P: 2, T: 1, L: 1}).doit().replace(Heaviside, after)

    def symmetric(n: Expr, a: Expr, b: Expr, x: Expr, y: Expr) -> Expr:
        first, second = sorted(((a, x), (b, y)), key=str)
        return Phi(n, first[0], second[0], first[1], second[1])

    return e.replace(Phi, symmetric)


def test_outputs_in_the_action(action: Expr) -> None:
    """(M.4): i f_hat times what (M.2) keeps at zero; w(0) averaged as (M.3), phi.xi_hat = i N gamma0 A."""
    log = printed("M.3")["log"] / N
    log = log.replace(
        Function("dot"),
        lambda a, b: (
            I * N * gamma0 * A(1, a.args[0].args[1], b.args[0], a.args[0].args[2], b.args[1])
            if a.func == phi
            else S.Zero
        ),
    )
    kept = f(mu, t) - Sum(
        Heaviside(t - s) * Delta(alpha, s) * Phi(L, mu, alpha, t, s), (alpha, 1, P), (s, 0, T)
    )
    averaged = opened(log).subs(N, 1) + opened(I * Sum(fhat(mu, t) * kept, (mu, 1, P), (t, 0, T)))
    with_outputs = Add(*[x for x in Add.make_args(action.expand()) if x.has(fhat)])
    assert (with_outputs - averaged).expand() == 0


def test_pairs_in_the_action(action: Expr) -> None:
    """(M.4): each kernel times its conjugate, responses with a minus."""
    place = (1, 1, 2, 1, 0)
    Phihat, Ghat = Function("Phihat"), Function("Ghat")
    assert action.diff(Phihat(*place)).func == Phi
    assert action.diff(Ghat(*place)) == G(*place)
    assert action.diff(B(*place)) == -A(*place)


def test_derivatives_of_the_action(action: Expr) -> None:
    """(M.5), (M.6)."""
    here = {mu: 1, alpha: 2, t: 1, s: 0, L: 1}
    claim = {**printed("M.5"), **printed("M.6")}
    assert action.diff(f(1, 1)) == claim["f"].subs(here)
    slope = (action.diff(fhat(1, 1)) / I).expand()
    assert (slope - opened(claim["i_fhat"].subs({mu: 1, t: 1}))).expand() == 0
    assert action.diff(A(1, 1, 2, 1, 0)) == claim["A"].subs(here)


def test_response_of_the_features_has_the_wrong_sign() -> None:
    """(M.7): from ``B (i A - phi.xi_hat/gamma0)`` with a factor i, as below (M.3)."""
    body = Function("average")(phi(h(L, mu, t)) * xihat(alpha, s))
    derived = -A(L, mu, alpha, t, s) - I * body / gamma0
    assert printed("M.7")["B"] - derived == 2 * I * body / gamma0


# -- the equations -------------------------------------------------------------------------------------------


def causal(e: Expr) -> Expr:
    """Return a sum over all times restricted to s < t, or to s <= t in the case of B."""

    def cut(x: Sum) -> Expr:
        if s not in [v for v, *_ in x.limits]:
            return x
        inner = [(v, a, b) for v, a, b in x.limits if v != s]
        parts = []
        for part in Add.make_args(x.function.expand()):
            top = t if part.has(B) else t - 1
            parts.append(Sum(part.replace(Heaviside, lambda *_: S.One), *inner, (s, 0, top)))
        return Add(*parts)

    return e.replace(lambda x: isinstance(x, Sum), cut)


@pytest.mark.parametrize("name", ["h", "z"])
def test_fields(steps: Theory, name: str) -> None:
    claim = causal(printed("M.8")[name])
    for site in (NEXT[name], ENDS[name]):
        assert same(at(claim, site), steps.equation(name, site).rhs.subs(ETA, 1))


def test_kernels(steps: Theory) -> None:
    claim = printed("M.8")
    for name in ("Phi", "G"):
        assert same(claim[name], steps.order_parameter(name).definition)
    assert covariance(steps, "u", ell + 1) == at(claim["cov_u"], ell + 1)
    assert covariance(steps, "r", ell) == at(claim["cov_r"], ell)


def test_sources_in_the_responses_are_exchanged(steps: Theory) -> None:
    claim = printed("M.8")
    for name in ("A", "B"):
        derived = steps.order_parameter(name).definition
        assert not same(claim[name], derived)
        there = {"A": (u, r), "B": (r, u)}[name]
        assert same(claim[name].replace(*there), derived)
    assert same(printed("M.7")["A"], steps.order_parameter("A").definition.subs(ell, L))


def test_times_of_the_responses(steps: Theory) -> None:
    """A acts for s < t, B up to s = t."""
    for name, field, top in (("A", "h", t - 1), ("B", "z", t)):
        (term,) = [x.expr for x in steps.equation(field, NEXT[field]).terms if x.kind == "response"]
        limits = [lim for x in term.atoms(Sum) for lim in x.limits if lim[0] == s]
        assert term.has(Function(name))
        assert [b for _, _, b in limits] == [top]
