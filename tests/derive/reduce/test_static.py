"""The limit gamma0 -> 0 of any theory: what does not move, and the output to first order in gamma0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from sympy import Expr, Function, Integral, Rational, S, Sum, Symbol, sqrt, tanh
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.errors import NotApplicable
from derive.linear.lazy import lazy
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
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
from derive.reduce.stationary import static
from tests.derive.once import isotropic, mean_field, mlp, perceptron

u, r, h, z = (Function(n) for n in "urhz")


def test_the_recursion_of_the_kernels() -> None:
    """Jacot et al. 2018, prop. 1 and thm. 1, before any average is taken."""
    end = static(mean_field(mlp(activation="tanh")))
    Phi, G, K_x = (Function(n) for n in ("Phi", "G", "K_x"))
    assert [x.covariance for x in end.sources] == [
        K_x(mu, alpha),
        Phi(ell, mu, alpha),
        1,
        G(ell + 1, mu, alpha),
    ]
    assert {e.lhs: e.rhs for e in end.fields}[h(ell + 1, mu)] == u(ell + 1, mu)
    assert end.kernels[0].definition == Average(tanh(h(ell, mu)) * tanh(h(ell, alpha)))
    assert end.tangent is not None
    inner = Sum(G(ell + 1, mu, alpha) * Phi(ell, mu, alpha), (ell, 1, L - 1))
    assert end.tangent.rhs == G(1, mu, alpha) * K_x(mu, alpha) + Phi(L, mu, alpha) + inner


def still(e: Expr) -> Expr:
    """Return sources without time, because they do not depend on it at gamma0 = 0."""
    return e.replace(
        lambda x: isinstance(x, AppliedUndef) and str(x.func) in "ur", lambda x: x.func(*x.args[:-1])
    )


def test_the_output_is_the_first_order_of_the_theory() -> None:
    """One hidden layer, after one step: fields moved to first order in gamma0 put into the output."""
    theory = mean_field(mlp(1, "tanh"))

    def put(e: Expr, sample: Expr) -> Expr:
        return e.subs(mu, sample).subs(t, 1).doit()

    one = {x.name: x.rhs.subs(P, 1) for x in theory.equations}
    start = {h(1, 1, 0): u(1, 1, 0), z(1, 1, 0): r(1, 1, 0)}
    g = one["g"].subs(Symbol("ell", integer=True), 1).subs({mu: 1, t: 0}).xreplace(start)
    moved = {
        name: put(one[name], 2).subs(Function("g")(1, 1, 0), g).subs(h(1, 1, 0), u(1, 1, 0)) for name in "hz"
    }
    body = moved["z"] * tanh(moved["h"])
    first = still(body.diff(gamma0).subs(gamma0, 0))
    found = Average(first).linear({"u", "r"})

    end = static(theory)
    assert end.output is not None
    assert end.tangent is not None
    fields = {str(e.lhs.func): e.rhs for e in end.fields}
    slope = fields["g"].subs(Symbol("ell", integer=True), 1).subs({h(1, mu): u(1, mu), z(1, mu): r(1, mu)})
    kernels = {
        "Phi": Average(tanh(u(1, 2)) * tanh(u(1, 1))),
        "G": Average((slope.subs(mu, 2) * slope.subs(mu, 1)).expand()),
    }
    tangent = end.tangent.rhs.subs({mu: 2, alpha: 1}, simultaneous=True)
    for name, value in kernels.items():
        tangent = tangent.subs(Function(name)(1, 2, 1), value)
    expected = put(end.output.rhs.subs(P, 1), 2).subs(Function("K")(2, 1), tangent)
    assert expected.has(Average, eta)
    assert (found - expected.replace(Average, lambda x: Average(x).linear({"u", "r"}))).expand() == 0


def test_linear_networks_are_those_of_the_lazy_limit() -> None:
    """The solved recursion of the closure: (L + 1) times the kernel of the data."""
    end = static(mean_field(mlp(3, rule="flow")))
    assert end.tangent is not None
    K_x, H, G = (Function(n) for n in ("K_x", "H", "G"))
    tangent = end.tangent.rhs.doit()
    for layer in (1, 2, 3):
        tangent = tangent.subs({H(layer, mu, alpha): K_x(mu, alpha), G(layer): 1})
    closed = lazy(mean_field(mlp(rule="flow"))).error.rhs
    assert -closed.subs(L, 3).coeff(Sum(Function("Delta")(alpha, t) * K_x(mu, alpha), (alpha, 1, P))) == 4
    assert tangent == 4 * K_x(mu, alpha)
    assert end.output is not None
    assert isinstance(end.output.rhs, Integral)
    assert s in end.output.rhs.variables


@pytest.mark.parametrize(
    "program",
    [
        partial(mlp, 2, "tanh", weight_decay=Rational(1, 2)),
        partial(mlp, 2, "tanh", temperature=Rational(1, 2)),
        partial(isotropic, 2),
        partial(perceptron),
    ],
)
def test_what_moves_is_named(program: Callable[[], Program]) -> None:
    with pytest.raises(NotApplicable, match="at gamma0 = 0: its"):
        static(mean_field(program()))


@pytest.mark.parametrize("depth", [1, 2])
def test_the_output_of_normalised_layers_moves_along_its_tangent_kernel(depth: int) -> None:
    """Of all numbers with averages the output is the one in the loss, not the first one."""
    layer = Population("layer")
    x, field = GivenVector("x", Population("input", given=True), "K_x"), Field("h", layer, layered=True)
    W0, w = GaussianMatrix("W0", layer.at(1), x.population), GaussianVector("w", layer.at(depth))
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, S(depth - 1)))
    m, f, y = (Function(n) for n in "mfy")
    phi = [tanh(field(k, mu, t) / sqrt(m(k, mu, t))) for k in (ell, depth)]
    forward = {field(1, mu, t): W0 @ x(mu), m(ell, mu, t): Mean(field(ell, mu, t) ** 2)}
    forward |= {field(ell + 1, mu, t): W(ell) @ phi[0]} if depth > 1 else {}
    forward |= {f(mu, t): Mean(w.symbol * phi[1]) / gamma0}
    weights = (W0, W, w) if depth > 1 else (W0, w)
    ranges = (IndexRange(ell, S.One, S(depth)),)
    net = Network("normalised", (field,), forward, weights, given=(x,), ranges=ranges, depth=S(depth))
    program = net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    assert isinstance(program.roles.feature, Expr)
    assert program.roles.feature.atoms(Function("m")) <= {m(k, mu, t) for k in (1, ell)}
    end = static(mean_field(program))
    assert end.output is not None
    moved = Sum(eta * Function("Delta")(alpha, s) * Function("K")(mu, alpha), (alpha, 1, P), (s, 0, t - 1))
    assert (end.output.lhs, end.output.rhs) == (f(mu, t), moved)


def test_weights_with_rules_of_their_own_have_no_single_memory() -> None:
    """The sum over past errors has one factor for all weights."""
    with pytest.raises(NotApplicable, match="one training rule for all weights, and w has a rule of its own"):
        static(mean_field(mlp(1, "tanh", rules={"w": GradientDescent(2 * eta)})))


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (lambda f, b: f + b, r"has the offset b\(mu\): leave the offset out of the output"),
        (lambda f, b: tanh(f), "linear in averages"),
    ],
    ids=["offset", "function"],
)
def test_outputs_are_sums_over_past_errors_only(output: Callable[..., Expr], reason: str) -> None:
    program = mlp(1, "tanh")
    k, d = next((k, d) for k, d in enumerate(program.definitions) if d.name == "f")
    changed = replace(d, rhs=output(d.rhs, Function("b")(mu)))
    definitions = (*program.definitions[:k], changed, *program.definitions[k + 1 :])
    constants = (*program.constants, "b")
    with pytest.raises(NotApplicable, match=reason):
        static(mean_field(replace(program, definitions=definitions, constants=constants)))
