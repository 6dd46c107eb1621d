"""Deep networks: whitened data (F.15), (F.16) and the lazy limit of every depth."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Function, Sum, Symbol, powsimp

from derive.errors import NotApplicable
from derive.linear.lazy import lazy
from derive.linear.operators import J, operator
from derive.program import L, P, alpha, ell, eta, gamma0, mu, s, t
from derive.reduce.whitened import norm, whitened_deep
from tests.derive.once import linear_closure, mean_field, mlp, two_layer, whitened
from tests.derive.reduce.evaluate import RING, T_, Y_, solve_series, solve_steps
from tests.reference.dense_causal import dense_causal

H, G, A, B, Delta = (Function(x) for x in ("H_y", "G", "A_y", "B_y", "Delta"))


@pytest.fixture(scope="module")
def reduced():
    return whitened_deep(mean_field(mlp(rule="flow")))


def test_operators_f15(reduced):
    """(F.15) prints B^{ell-1} in D^ell; derived, it is B^ell."""
    closure = linear_closure(reduced)
    assert closure.kernel("C").definition == A(ell - 1, t, s) + Delta(s) * H(ell - 1, t, s)
    assert closure.kernel("D").definition == B(ell, t, s) + Delta(s) * G(ell + 1, t, s)
    assert closure.kernel("D").definition != B(ell - 1, t, s) + Delta(s) * G(ell + 1, t, s)


def test_responses_f16_text(reduced):
    """The text below (F.16) prints B^ell for the response of layer ell; it is B^{ell-1}, and B^L = 0."""
    closure = linear_closure(reduced)
    c, d = operator("C", ell), operator("D", ell)
    responses = {e.lhs: e.rhs for e in closure.responses}
    assert responses[operator("A_y", ell)] == (1 - gamma0**2 * c * d) ** -1 * c
    assert responses[operator("B_y", ell - 1)] == (1 - gamma0**2 * d * c) ** -1 * d
    base = {e.lhs: e.rhs for e in closure.base}
    assert base[operator("H_y", 0)] == base[operator("G", L + 1)] == J
    assert base[operator("B_y", L)] == 0


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("depth", "order"),
    [
        (3, 2),
        *(pytest.param(*x, marks=SLOW) for x in ((1, 4), (1, 6), (2, 5), (3, 4))),
    ],
)
def test_output_moves_by_the_tangent_kernel(depth, order):
    """df/dt = K(t, t) Delta, with f defined as an average: as power series in t, for all gamma0 and y."""
    closure = linear_closure(whitened_deep(mean_field(mlp(depth, rule="flow"))))
    table, error = solve_series(closure, order)

    def at(name: str, layer: int):
        edge = (0, depth + 1)
        return RING.one if layer in edge else table[(name, layer)].kernel.compose([(RING.gens[1], T_)])

    kernel = sum((at("G", k + 1) * at("H_y", k) for k in range(depth + 1)), RING.zero)
    gap = error.diff(T_) + kernel * error
    assert error.coeff(Y_) == 1
    assert all(m[0] >= order for m in gap.monoms())
    assert error.diff(T_).coeff(Y_) == -(depth + 1)


@pytest.mark.slow
def test_one_layer_agrees_with_the_closed_form():
    curve = whitened(two_layer(mean_field(mlp(1, rule="flow")))).solution.rhs
    _, error = solve_series(linear_closure(whitened_deep(mean_field(mlp(1, rule="flow")))), 5)
    values = {gamma0: Symbol("g"), norm: Symbol("y")}
    series = curve.series(t, 0, 6).removeO()
    exact = error.as_expr().subs(Symbol("t"), t)
    assert (series.subs(values) - exact).simplify() == 0


@pytest.mark.parametrize("depth", [1, 3])
def test_samples_drop_out(depth):
    """The theory without samples against the full one on whitened data."""
    targets, steps, rate, gamma = np.array([0.6, -0.8, 1.2]), 5, 0.1, 1.3
    length = float(np.linalg.norm(targets))
    closure = linear_closure(whitened_deep(mean_field(mlp(depth))))
    found = solve_steps(
        closure, np.eye(1), np.array([length]), gamma=gamma, rate=rate, steps=steps, scalar=True
    )
    weights = rate * np.tril(np.ones((steps, steps)), -1)
    exact = dense_causal(np.eye(3), targets, weights, depth=depth, gamma0=gamma)
    np.testing.assert_allclose(found.error[:, 0], exact.error @ targets / length, atol=1e-11)


# -- gamma0 -> 0 ------------------------------------------------


def test_lazy_operators_grow_with_the_layer():
    """A and B do not vanish at gamma0 = 0: C^ell = ell c, D^ell = (L + 1 - ell) d; (P.2) omits this."""
    ends = lazy(mean_field(mlp(rule="flow")))
    first, second = ends.kernels
    delta, kernel = Function("Delta"), Function("K_x")
    assert first.rhs == ell * Sum(delta(alpha, s) * kernel(mu, alpha), (alpha, 1, P))
    assert (second.rhs - (L + 1 - ell) * delta(alpha, s)).expand() == 0
    assert [e.rhs for e in ends.fields] == [operator("u", ell), operator("r", ell)]


@pytest.mark.parametrize("rule", ["gd", "flow", "multistep"])
@pytest.mark.parametrize("depth", [L, 2, *(pytest.param(x, marks=SLOW) for x in (1, 4))])
def test_lazy_error_feels_every_layer(depth, rule):
    ends = lazy(mean_field(mlp(depth, rule=rule)))
    delta, kernel = Function("Delta"), Function("K_x")
    memory = {"gd": eta, "flow": 1, "multistep": Function("w")(t, s)}[rule]
    expected = (depth + 1) * memory * Sum(delta(alpha, s) * kernel(mu, alpha), (alpha, 1, P))
    assert (ends.output.rhs.function - expected).expand() == 0
    if rule == "flow":
        assert (ends.error.rhs + expected.xreplace({s: t})).expand() == 0


def test_independent_backward_pass_learns_from_two_layers_only():
    """At gamma0 = 0 updates of lower layers are not aligned with the output if the backward pass is not."""
    ends = lazy(mean_field(mlp(tied=False, rule="flow")))
    delta, kernel = Function("Delta"), Function("K_x")
    assert (ends.error.rhs + 2 * Sum(delta(alpha, t) * kernel(mu, alpha), (alpha, 1, P))).expand() == 0


def test_lazy_limit_is_the_limit():
    kernel, targets = np.array([[1.0, 0.4], [0.4, 0.8]]), np.array([1.0, -0.5])
    steps, rate = 6, 0.1
    weights = rate * np.tril(np.ones((steps, steps)), -1)
    near = dense_causal(kernel, targets, weights, depth=3, gamma0=1e-4).error
    step = np.eye(2) - rate * 4 * kernel
    exact = np.array([np.linalg.matrix_power(step, k) @ targets for k in range(steps)])
    np.testing.assert_allclose(near, exact, atol=1e-6)


@pytest.mark.parametrize("objective", ["logistic", "hinge"])
def test_lazy_errors_that_are_not_linear_in_the_output_are_those_of_the_next_output(objective):
    """A step was the slope times the change of the output, which is first order in the rate only."""
    theory = mean_field(mlp(L, rule="gd", objective=objective))
    ends, law = lazy(theory), theory.equation("Delta").rhs
    output = ends.output.lhs
    step = output + ends.output.rhs.function.xreplace({s: t})
    assert ends.error.lhs == Delta(mu, t + 1)
    assert (ends.error.rhs - law.xreplace({output: step})).simplify() == 0
    assert ends.error.rhs.has(eta)


@pytest.mark.parametrize("depth", [1, 2])
def test_lazy_limit_is_that_of_one_output(depth):
    with pytest.raises(NotApplicable):
        lazy(mean_field(mlp(depth, outputs=2)))


def test_lazy_limit_of_one_layer_with_decay():
    """Hand derivation: fields decay by k**t, an update at s by k**(t - s - 1); both layers move equally."""
    lam = Symbol("lam", positive=True)
    kept = 1 - eta * lam
    errors = Sum(Function("Delta")(alpha, s) * Function("K_x")(mu, alpha), (alpha, 1, P))
    told = Sum(2 * eta * kept ** (t - s - 1) * kept ** (t + s) * errors, (s, 0, t - 1))
    found = lazy(mean_field(mlp(1, weight_decay=lam))).output.rhs
    assert powsimp(found.function / told.function).simplify() == 1
    assert found.limits == told.limits
