"""Built programs derive by both routes and have the right limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sympy import (
    Expr,
    Function,
    KroneckerDelta,
    S,
    Sum,
    Symbol,
    exp,
    symbols,
)
from sympy.core.function import AppliedUndef

from derive.calculus.sums import normal_form
from derive.program import L, Program, TrainedVector, ell, gamma0, mu, network, s, t
from derive.theory import Theory
from derive.theory.compare import compare
from derive.theory.routes import check_routes
from tests.derive.once import convolution, feedback_alignment, mean_field, mlp, perceptron, recurrent

phi = Function("phi")
X, S_, C = (Symbol(n, integer=True, positive=True) for n in "XSC")
beta, lam, T, tau = symbols("beta lam T tau", positive=True)
k = Symbol("k", integer=True)
h, g, b, A, Delta = (Function(n) for n in ("h", "g", "b", "A", "Delta"))

FAMILIES: dict[str, Callable[[], Program]] = {
    "decay flow": lambda: mlp(L, phi, "flow", weight_decay=lam),
    "lists": lambda: mlp(3, phi, relative_widths=[2, 3, 1], init_variance=[1, 2, 3, 4]),
    "linear recurrent": lambda: recurrent(L, "linear"),
    "perceptron": lambda: perceptron(loss=Function("loss"), teacher=phi, noise=T, weight_decay=lam),
    "mixture": lambda: perceptron("mixture", "logistic", momentum=tau),
}
"""Plain networks: ``theory/test_routes.py``; options put together: ``test_builders_compositions.py``."""
LONG: dict[str, Callable[[], Program]] = {
    "perceptron flow": lambda: perceptron(rule="flow", temperature=T, weight_decay=lam),
    "channels": lambda: mlp(L, phi, outputs=C),
    "linear channels": lambda: mlp(L, outputs=C),
    "bias": lambda: mlp(L, phi, bias=True),
    "residual": lambda: mlp(L, phi, branch=beta),
    "linear residual flow": lambda: mlp(L, "linear", "flow", branch=beta),
    "widths and variances": lambda: mlp(L, phi, relative_widths="a", init_variance="sigma"),
    "decay": lambda: mlp(L, phi, weight_decay=lam),
    "Langevin steps": lambda: mlp(L, phi, weight_decay=lam, temperature=T),
    "convolution": lambda: convolution(L, phi, positions=X, receptive=S_),
    "linear convolution": lambda: convolution(positions=X, receptive=S_),
    "five positions": lambda: convolution(L, phi, positions=5, receptive=1),
    "feedback alignment": lambda: feedback_alignment(L, phi),
    "recurrent": lambda: recurrent(L, phi),
    "recurrent, bias": lambda: recurrent(L, phi, bias=True),
    "widths, variances, momentum": lambda: mlp(
        L, phi, relative_widths="a", init_variance="sigma", momentum=tau
    ),
    "convolution, channels, widths": lambda: convolution(
        L, phi, positions=X, receptive=S_, outputs=C, relative_widths="a"
    ),
    "convolution, residual, decay": lambda: convolution(
        L, phi, positions=X, receptive=S_, branch=beta, weight_decay=lam
    ),
    "convolution, fixed feedback, bias": lambda: network(
        L, phi, backward="fixed", positions=X, receptive=S_, bias=True
    ),
    "recurrent, residual, channels, decay": lambda: recurrent(
        L, phi, branch=beta, outputs=C, weight_decay=lam
    ),
    "widths, variances, Langevin": lambda: mlp(
        L, phi, "flow", relative_widths="a", init_variance="sigma", weight_decay=lam, temperature=T
    ),
}


@pytest.mark.parametrize("name", [*FAMILIES, *(pytest.param(x, marks=pytest.mark.slow) for x in LONG)])
def test_both_routes_agree(name: str) -> None:
    assert check_routes((FAMILIES | LONG)[name]()) == []


# -- limits --------------------------------------------------------------------------------------------------


def collapse(e: Expr, sizes: dict[Any, Expr], idle: str) -> Expr:
    """Return ``e`` where each index named in ``idle`` has one value, out of sums, deltas and arguments."""

    def runs(x: Expr) -> bool:
        return isinstance(x, Symbol) and x.name.rstrip("_") in idle.split()

    e = e.xreplace(sizes)
    limits = {
        x: Sum(x.function, *kept) if (kept := [m for m in x.limits if not runs(m[0])]) else x.function
        for x in e.atoms(Sum)
    }
    e = e.xreplace(limits).replace(
        KroneckerDelta, lambda *x: S.One if any(map(runs, x)) else KroneckerDelta(*x)
    )
    centred = e.xreplace({k: S.Zero})
    return centred.replace(
        lambda x: isinstance(x, AppliedUndef), lambda x: x.func(*[a for a in x.args if not runs(a)])
    )


def agree(general: Theory, simple: Theory, fun: Callable[[Expr], Expr]) -> None:
    """Require that each equation, source and order parameter of ``general`` becomes that of ``simple``."""

    def said(theory: Theory, fun: Callable[[Expr], Expr]) -> dict[str, Expr]:
        every = (*theory.equations, *theory.scalars, *theory.observables)
        found = {f"{fun(e.lhs)}": fun(e.rhs) for e in every}
        found |= {f"<{fun(x.symbol)} {fun(x.partner)}>": fun(x.covariance) for x in theory.sources}
        return found | {f"{fun(q.symbol)}": fun(q.definition) for q in theory.order_parameters}

    one, two = said(general, fun), said(simple, lambda e: e)
    assert one.keys() == two.keys()
    for name in two:
        assert normal_form((one[name] - two[name]).doit(sums=False, integrals=False).expand()) == 0, name


def subs(**values: Any) -> Callable[[Expr], Expr]:
    return lambda e: e.subs({Symbol(n, positive=True): x for n, x in values.items()})


LIMITS: dict[str, tuple[Callable[[], Program], Callable[[], Program], Callable[[Expr], Expr]]] = {
    "one channel": (
        lambda: mlp(L, phi, outputs=C),
        lambda: mlp(L, phi),
        lambda e: collapse(e, {C: S.One}, "c"),
    ),
    "one channel, linear": (lambda: mlp(outputs=C), mlp, lambda e: collapse(e, {C: S.One}, "c")),
    "one position": (
        lambda: convolution(L, phi, positions=X, receptive=S_),
        lambda: mlp(L, phi),
        lambda e: collapse(e, {X: S.One, S_: S.Zero}, "p k"),
    ),
    "one position, bias": (
        lambda: convolution(L, phi, positions=X, receptive=S_, bias=True),
        lambda: mlp(L, phi, bias=True),
        lambda e: collapse(e, {X: S.One, S_: S.Zero}, "p k"),
    ),
    "unit variance": (
        lambda: mlp(L, phi, init_variance="sigma"),
        lambda: mlp(L, phi),
        lambda e: e.replace(Function("sigma"), lambda *_: S.One),
    ),
    "no decay": (lambda: mlp(L, phi, weight_decay=lam), lambda: mlp(L, phi), subs(lam=0)),
    "no decay, flow": (
        lambda: mlp(L, phi, "flow", weight_decay=lam),
        lambda: mlp(L, phi, "flow"),
        subs(lam=0),
    ),
    "cold": (
        lambda: mlp(L, phi, "flow", weight_decay=lam, temperature=T),
        lambda: mlp(L, phi, "flow", weight_decay=lam),
        subs(T=0),
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_gives_back_the_simpler_theory(name: str) -> None:
    general, simple, fun = LIMITS[name]
    agree(mean_field(general()), mean_field(simple()), fun)


def test_equal_widths() -> None:
    """a_l = 1 in every equation."""

    def equal(e: Expr) -> Expr:
        return e.replace(Function("a"), lambda *_: S.One)

    general, simple = mean_field(mlp(L, phi, relative_widths="a")), mean_field(mlp(L, phi))
    agree(general, simple, equal)


def test_fast_momentum() -> None:
    """Check tau -> 0: the memory of L.2 is 1 - exp(-(t - s)/tau).

    No other part depends on tau.
    """
    slow = mean_field(mlp(L, phi, "flow", momentum=tau))
    memory = slow.program.rule.memory(t, s)[1]

    def fast(e: Expr) -> Expr:
        return e.expand().replace(lambda x: isinstance(x, exp) and x.has(tau), lambda _: S.Zero)

    assert fast(memory) == 1
    agree(slow, mean_field(mlp(L, phi, "flow")), fast)


def test_without_the_stream_a_branch_is_a_layer() -> None:
    residual, plain = mean_field(mlp(L, phi, branch=beta)), mean_field(mlp(L, phi))
    for name, site, stream in (("h", ell + 1, h(ell, mu, t)), ("g", ell, g(ell + 1, mu, t)), ("z", ell, 0)):
        found = (residual.equation(name, site).rhs - stream).subs(beta, 1)
        expected = plain.equation(name, ell if name == "g" else site).rhs
        assert normal_form((found - expected).doit(sums=False).expand()) == 0


def test_a_branch_of_nothing_leaves_the_stream() -> None:
    theory = mean_field(mlp(L, phi, branch=beta))
    assert theory.equation("h", ell + 1).rhs.subs(beta, 0).doit() == h(ell, mu, t)
    assert theory.equation("g", ell).rhs.subs(beta, 0).doit() == g(ell + 1, mu, t)


def test_a_bias_that_stays_at_zero_is_none() -> None:
    program = mlp(L, phi, bias=0)
    still = replace(
        program,
        vectors=tuple(
            v.initial if isinstance(v, TrainedVector) and v.name == "b" else v for v in program.vectors
        ),
    )
    theory, plain = mean_field(still), mean_field(mlp(L, phi))
    assert all(x.covariance == 0 for x in theory.sources if x.matrix == "b")
    for e in plain.equations:
        found = theory.equation(str(e.lhs.func), e.lhs.args[0]).rhs
        assert normal_form(found.replace(b, lambda *_: S.Zero) - e.rhs) == 0


def test_no_features_without_gamma0_in_any_family() -> None:
    """The lazy limit: at gamma0 = 0 hidden fields are Gaussian, whatever the options."""
    for build in (
        lambda: mlp(L, phi, branch=beta, bias=True, outputs=C),
        lambda: convolution(L, phi, positions=X, receptive=S_),
    ):
        theory = mean_field(build())
        rest = theory.equation("h", ell + 1).rhs.subs(gamma0, 0).doit()
        assert not rest.has(Delta)
        assert not rest.has(A)


def test_compare_sees_every_option() -> None:
    plain = mean_field(mlp(L, phi))
    for options in ({"bias": 1}, {"branch": beta}, {"weight_decay": lam}, {"init_variance": 2}):
        assert compare(plain, mean_field(mlp(L, phi, **options)))  # type: ignore[arg-type]
