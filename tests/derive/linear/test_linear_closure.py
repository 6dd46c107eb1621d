"""The operator closure: equations (15), (F.1)-(F.4) and its numbers against an independent causal solver."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import numpy as np
import pytest
from sympy import (
    Eq,
    Expr,
    Function,
    Indexed,
    MatrixSymbol,
    Sum,
    Symbol,
    lambdify,
    srepr,
    sympify,
    tanh,
    transpose,
)

from derive.errors import NotApplicable
from derive.expansion.linear import expand_linear
from derive.expansion.order_recursions import Orders
from derive.linear import operators
from derive.linear.closure import linear_closure as closure_of
from derive.linear.lazy import lazy
from derive.linear.operators import J, Operator, T, coefficient, operator, operator_latex, solve_for
from derive.linear.propagators import cross_layer
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    L,
    Mean,
    Network,
    P,
    Population,
    alpha,
    ell,
    eta,
    gamma0,
    isotropic,
    mu,
    recurrent,
    s,
    structured,
    t,
)
from derive.program.networks.task import recurrent_task
from derive.scale.modes import wide
from tests.derive.once import error_projected, linear_closure, mean_field, mlp
from tests.derive.reduce.evaluate import solve_steps, word_value
from tests.reference.dense_causal import dense_causal

C, D, H, G, A, B, u, r = (operator(x, ell) for x in ("C", "D", "H", "G", "A", "B", "u", "r"))
g2 = gamma0**2


@pytest.fixture(scope="module")
def closure():
    return linear_closure(mean_field(mlp()))


def test_fields_are_those_of_f3(closure):
    """(F.3), right as printed."""
    h, g = (operator(x, ell) for x in "hg")
    assert {e.lhs: e.rhs for e in closure.fields} == {
        h: (1 - g2 * C * D) ** -1 * (u + gamma0 * C * r),
        g: (1 - g2 * D * C) ** -1 * (r + gamma0 * D * u),
    }


def test_correlations_and_responses_are_those_of_15_and_f4(closure):
    """(15) and (F.4), right as printed."""
    below, above = operator("H", ell - 1), operator("G", ell + 1)
    left, right = (1 - g2 * C * D) ** -1, (1 - g2 * D * C) ** -1
    found = {e.lhs: e.rhs for e in (*closure.covariances, *closure.responses)}
    assert found[H] == left * (below + g2 * C * above * transpose(C)) * transpose(left)
    assert found[G] == right * (above + g2 * D * below * transpose(D)) * transpose(right)
    assert found[A] == left * C
    assert found[operator("B", ell - 1)] == (right * D)
    assert closure.covariance("H") == closure.matrix(found[H])
    assert closure.response("B") == closure.matrix(right * D)
    assert [e.lhs for e in closure.responses] == [A, operator("B", ell - 1)]


def test_operators_differ_from_f1_and_f2(closure):
    """(F.1), (F.2) multiply A and B by the error and sum A over samples; derived, they stand alone."""
    a, b, delta = Function("A"), Function("B"), Function("Delta")
    h, g = Function("H"), Function("G")
    derived = closure.kernel("C").definition
    right = a(ell - 1, mu, t, s) + eta * Sum(delta(alpha, s) * h(ell - 1, mu, alpha, t, s), (alpha, 1, P))
    printed = Sum(
        (a(ell - 1, mu, alpha, t, s) + h(ell - 1, mu, alpha, t, s)) * eta * delta(alpha, s), (alpha, 1, P)
    )
    assert derived == right
    assert derived != printed
    assert closure.kernel("D").definition == b(ell, alpha, t, s) + eta * delta(alpha, s) * g(ell + 1, t, s)
    assert closure.kernel("C").causal == closure.kernel("D").causal == "strict"


def test_base_cases_are_found_from_the_ends(closure):
    assert set(closure.base) == {
        Eq(operator("H", 0), operator("K_x"), evaluate=False),
        Eq(operator("A", 0), 0, evaluate=False),
        Eq(operator("G", L + 1), J, evaluate=False),
        Eq(operator("B", L), 0, evaluate=False),
    }


@pytest.mark.parametrize(("depth", "gamma"), [(1, 1.7), (2, 1.7), (3, 0.3)])
def test_sweeps_reach_the_causal_solution(depth, gamma):
    rng = np.random.default_rng(depth)
    x = rng.normal(size=(2, 4))
    kernel, targets, steps, rate = x @ x.T / 4, np.array([0.7, -1.1]), 5, 0.15
    found = solve_steps(
        linear_closure(mean_field(mlp(depth))), kernel, targets, gamma=gamma, rate=rate, steps=steps
    )
    weights = rate * np.tril(np.ones((steps, steps)), -1)
    exact = dense_causal(kernel, targets, weights, depth=depth, gamma0=gamma)
    np.testing.assert_allclose(found.error, exact.error, atol=1e-10)
    for layer in range(1, depth + 1):
        h = found.table[("H", layer)].reshape(2, steps, 2, steps).transpose(1, 3, 0, 2)
        np.testing.assert_allclose(h, exact.Phi[layer - 1], atol=1e-9)
        np.testing.assert_allclose(found.table[("G", layer)], exact.G[layer - 1], atol=1e-9)


def test_rotating_the_samples_rotates_the_solution():
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    kernel, targets = np.array([[1.0, 0.3], [0.3, 0.5]]), np.array([1.0, 0.4])
    closure = linear_closure(mean_field(mlp(2)))
    first = solve_steps(closure, kernel, targets, gamma=1.0, rate=0.2, steps=4)
    second = solve_steps(closure, turn @ kernel @ turn.T, turn @ targets, gamma=1.0, rate=0.2, steps=4)
    np.testing.assert_allclose(second.error, first.error @ turn.T, atol=1e-12)


def test_every_form_of_depth_gives_the_same_closure(closure):
    written = linear_closure(mean_field(mlp()).at_depth(2))
    family = linear_closure(mean_field(mlp(2)))
    assert family.layers.upper == 2
    assert closure.covariance("H") == family.covariance("H")
    at = {e.lhs: e.rhs for e in written.covariances}
    assert at[operator("H", 2)] == closure.covariances[0].rhs.subs(ell, 2).subs(operator("G", 3), J)


def test_without_responses_the_operators_are_memory_only():
    """Gradient independence (O): C and D without A and B."""
    free = linear_closure(mean_field(mlp(tied=False)))
    assert not free.responses
    assert not free.kernel("C").definition.has(Function("A"))


def test_error_projected_theory_closes_on_three_fields():
    projected = linear_closure(error_projected(mean_field(mlp())))
    p = operator("C_p", ell)
    assert projected.response("b") == projected.matrix((1 - g2 * D * p) ** -1 * D)
    assert projected.response("A") == projected.matrix(C * (1 - g2 * D * p) ** -1)


def test_nonlinear_theories_are_refused():
    with pytest.raises(NotApplicable, match="linear"):
        linear_closure(mean_field(mlp(2, tanh)))
    with pytest.raises(KeyError, match="no kernel Z"):
        linear_closure(mean_field(mlp(1))).kernel("Z")


@pytest.mark.parametrize("projected", [False, True])
def test_what_is_printed_can_be_computed(projected: bool) -> None:
    """Every public expression, through plain ``lambdify``, at the numbers that solve the closure."""
    theory = mean_field(mlp(3))
    closure = linear_closure(error_projected(theory) if projected else theory)
    samples, steps, gamma = 2, 3, 0.7
    rng = np.random.default_rng(3)
    data = rng.normal(size=(samples, 4))
    plain = linear_closure(theory)
    solved = solve_steps(
        plain, data @ data.T / 4, rng.normal(size=samples), gamma=gamma, rate=0.3, steps=steps
    )
    table = solved.table
    names = ["H", "G", "A", "B"] if not projected else ["H", "G", "A", "b"]
    sizes = {P: samples, T: steps}
    for name, layer in ((n, k) for n in names for k in (1, 3)):
        e = closure.covariance(name) if name in "HG" else closure.response(name)
        rng = np.random.default_rng(layer)
        e = e.subs(ell, layer)
        letters = sorted(e.atoms(MatrixSymbol), key=str)
        shapes = [tuple(int(n.subs(sizes)) for n in x.shape) for x in letters]
        if projected:  # any matrices will do: the words are evaluated by hand below
            values = [rng.normal(size=shape) for shape in shapes]
        else:
            values = [table[_place(x)] for x in letters]
        assert [v.shape for v in values] == shapes
        given = {"numpy": values, "mpmath": [mpmath.matrix(v.tolist()) for v in values]}
        found, other = (
            np.array(f(steps, samples, gamma, *own).tolist(), float)
            for module, own in given.items()
            for f in [lambdify([T, P, gamma0, *letters], e, module)]
        )
        np.testing.assert_allclose(other, found, rtol=1e-10)
        own = {_place(x): v for x, v in zip(letters, values, strict=True)}
        word = next(
            y.rhs for y in (*closure.covariances, *closure.responses) if str(y.lhs.args[0]) == name
        ).subs(ell, layer)
        expected = word_value(word, own, lambda y: float(y.subs(gamma0, gamma)), _resolvent)
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        if not projected and name in "HGA":
            np.testing.assert_allclose(found, table[name, layer], atol=1e-11)


def _place(x: MatrixSymbol) -> tuple[str, int | None]:
    return (str(x.args[0]), int(x.layer)) if isinstance(x, Operator) else (x.name, None)


def _resolvent(one: Expr, m: np.ndarray) -> np.ndarray:
    return np.linalg.inv(float(one) * np.eye(len(m)) + m)


def test_words_refuse_to_be_computed_as_numbers(closure):
    """``lambdify`` would multiply them entry by entry, and drop transposes."""
    word = closure.covariances[0].rhs
    letters = sorted(word.atoms(Indexed), key=str)
    for options in ({}, {"dummify": True}, {"modules": "mpmath"}, {"modules": "math"}, {"cse": True}):
        with pytest.raises(TypeError, match="letter of an operator word"):
            lambdify([gamma0, *letters], word, **options)
    with pytest.raises(TypeError, match="letter of an operator word"):
        lambdify([J, operator("K_x")], J * operator("K_x"))


def test_fields_are_computed_from_sources(closure) -> None:
    """The solved fields obey the equations that they solve."""
    rng, samples, steps = np.random.default_rng(4), 2, 3
    sizes = {P: samples, T: steps}
    h, g = closure.field("h"), closure.field("g")
    letters = sorted(h.atoms(MatrixSymbol) | g.atoms(MatrixSymbol), key=str)
    values = [rng.normal(size=[int(n.subs(sizes)) for n in x.shape]) for x in letters]
    named = {str(x): v for x, v in zip(letters, values, strict=True)}
    at = [lambdify([T, P, gamma0, *letters], e)(steps, samples, 0.4, *values) for e in (h, g)]
    np.testing.assert_allclose(at[0], named["u[ell]"] + 0.4 * named["C[ell]"] @ at[1])
    np.testing.assert_allclose(at[1], named["r[ell]"] + 0.4 * named["D[ell]"] @ at[0])


def test_expressions_are_plain_sympy(closure):
    for e in (*closure.fields, *closure.covariances, *closure.responses):
        for x in (e.rhs, e.rhs.subs(gamma0, 2), closure.matrix(e.rhs), closure.matrix(e.rhs).subs(ell, 2)):
            assert sympify(srepr(x), locals=vars(operators)) == x
    assert closure.latex().count("&=") == closure.latex().count("\n") - 1
    assert operator_latex(transpose(C) * J) == (
        r"{\boldsymbol{C}^{\ell}}^{\top} \boldsymbol{1}\boldsymbol{1}^{\top}"
    )


def test_elimination_keeps_the_order_of_factors():
    x, y, z, a, b, c = (Symbol(n, commutative=False) for n in "xyzabc")
    found = solve_for({x: a + 2 * y, y: b + c * z, z: c * x}, x)
    assert found == (1 - 2 * c**2) ** -1 * (a + 2 * b)
    assert coefficient(a * b * x + x * y, x) == a * b


def one_layer(layered):
    """Return the theory of one hidden layer, whose field h has a layer as first argument or not."""
    units, inputs = Population("units"), Population("inputs", given=True)
    field, x = Field("h", units, layered=layered), GivenVector("x", inputs, "K_x")
    W, w = GaussianMatrix("W", units, inputs), GaussianVector("w", units)
    f, y = Function("f")(mu, t), Function("y")(mu)
    h = field(1, mu, t) if layered else field(mu, t)
    net = Network("one layer", (field,), {h: W @ x(mu), f: Mean(w.symbol * h) / gamma0}, (W, w), given=(x,))
    return mean_field(net.train((y - f) ** 2 / 2, GradientDescent(eta)))


@pytest.mark.parametrize("result", [closure_of, lazy])
def test_the_first_argument_of_a_field_without_layers_is_not_its_layer(result):
    with pytest.raises(NotApplicable, match=r"h\(mu, t\) has no layer"):
        result(one_layer(layered=False))


def test_a_layer_makes_the_field_of_a_network_of_ones_own_one_of_a_closure():
    found, known = linear_closure(one_layer(layered=True)), linear_closure(mean_field(mlp(1)))
    assert found.covariances == known.covariances
    assert {"C", "D"} <= {k.name for k in found.kernels}


@pytest.mark.parametrize("result", [closure_of, lazy, expand_linear])
def test_steps_of_a_recurrent_network_are_not_its_layers(result):
    with pytest.raises(NotApplicable, match="step after step by the same matrices"):
        result(mean_field(recurrent(activation="linear")))


def test_a_correlation_keeps_the_factor_of_its_definition():
    theory = mean_field(mlp(1))
    H, rest = theory.order_parameter("H"), [q for q in theory.order_parameters if q.name != "H"]
    scaled = replace(theory, order_parameters=(replace(H, definition=3 * H.definition), *rest))
    once, thrice = linear_closure(theory).covariances, closure_of(scaled).covariances
    assert [e.rhs for e in thrice if "H" in str(e.lhs)] == [3 * e.rhs for e in once if "H" in str(e.lhs)]


def test_an_integer_depth_is_that_of_the_theory():
    series = expand_linear(mean_field(mlp(2)), 2)
    for call in (series.given, series.lambdify):
        with pytest.raises(ValueError, match="depth = 5: the theory has depth 2"):
            call("H", layer=1, depth=5)


def test_orders_beyond_the_highest_are_refused():
    found = Orders(linear_closure(mean_field(mlp())), 2)
    for n in (-1, 3):
        with pytest.raises(IndexError, match=f"n = {n}: the series is known for orders 0 to 2"):
            found.coefficient("A", n)
    with pytest.raises(KeyError, match="no series 'typo'"):
        found.coefficient("typo", 1)


@pytest.mark.parametrize("options", [{"weight_decay": Symbol("lam")}, {"temperature": Symbol("T")}])
def test_a_lazy_limit_with_decay_or_noise_needs_one_hidden_layer(options):
    """The kernel S_uu took the layer of the correlation for its sample: H(mu - 1, alpha, t, s, s)."""
    with pytest.raises(NotApplicable, match=r"H\[ell\] is .*H\(ell - 1, mu, alpha, t, s\).*one hidden layer"):
        lazy(mean_field(mlp(2, **options)))
    assert lazy(mean_field(mlp(1, **options))).output.rhs.has(*options.values())


@pytest.mark.parametrize("builder", [recurrent, recurrent_task])
def test_cross_layer_responses_need_layers(builder):
    with pytest.raises(NotApplicable, match="one value of its first index after another"):
        cross_layer(mean_field(builder(activation="linear")))


def test_a_layer_without_an_equation_is_named():
    found = cross_layer(mean_field(mlp(2)))
    with pytest.raises(
        KeyError, match="site = 99: R_hu has no equation at this layer; it has equations at 1, ell"
    ):
        found.response("R_hu", 99)
    with pytest.raises(KeyError, match="site = 1: v has no layers: leave site out"):
        cross_layer(mean_field(isotropic(2))).response("R_vr0", 1)


@pytest.mark.parametrize("data", ["population", "online"])
def test_units_with_numbers_of_their_own_have_no_cross_layer_responses(data):
    """Correlations were those of one mode, and lacked the part of the target."""
    with pytest.raises(NotApplicable, match=r"contains (lamda|w_star)\(k\), a number of each unit"):
        cross_layer(mean_field(structured(2, data=data)))


def test_a_part_of_the_target_has_no_cross_layer_response():
    """With an index of modes the numbers are known for each one, but no response gives this part."""
    with pytest.raises(NotApplicable, match=r"v\(k, t\) contains w_star\(k\), which is no Gaussian source"):
        cross_layer(wide(mean_field(structured(data="online"))))
