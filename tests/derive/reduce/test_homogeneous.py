"""Tests of homogeneous networks: degrees of functions and networks, ridge regression at rest points (J)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from sympy import (
    Expr,
    Function,
    Lambda,
    Matrix,
    MatrixSymbol,
    Max,
    Rational,
    S,
    Symbol,
    eye,
    simplify,
    sqrt,
    symbols,
)

from derive.errors import NotApplicable
from derive.program import GradientFlow, L, P, Parametrization, Program, gamma0, mu, t
from derive.program.networks.options import activation_of
from derive.reduce.homogeneous import NotHomogeneous, exponent
from derive.reduce.ridge import Representer, rest_points
from derive.theory import Average
from tests.derive.once import (
    convolution,
    feedback_alignment,
    mean_field,
    mlp,
    network_degree,
    output_rate,
    perceptron,
    recurrent,
    representer,
)
from tests.derive.programs import hidden_layer
from tests.numerics.renaming import with_names

lam, q = symbols("lam q", positive=True)
x = Symbol("x", real=True)
POWER = Lambda(x, Max(0, x) ** q)


# -- functions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "power"),
    [
        ("linear", 1),
        ("relu", 1),
        ("abs", 1),
        ("quadratic", 2),
        ("cubic", 3),
        (POWER, q),
        (Lambda(x, Max(0, x) + x / 10), 1),
        (Lambda(x, sqrt(abs(x))), Rational(1, 2)),
    ],
    ids=str,
)
def test_degree_of_a_function(activation: object, power: Expr) -> None:
    found = exponent(activation_of(activation).phi(x), {x: S.One})
    assert simplify(found - power) == 0
    phi = activation if isinstance(activation, Lambda) else None
    if phi is not None and not found.has(q):
        for at in (Rational(-3, 2), Rational(7, 3)):
            assert simplify(phi(4 * at) - 4**found * phi(at)) == 0


@pytest.mark.parametrize(
    ("activation", "reason"),
    [
        ("tanh", "not homogeneous"),
        ("erf", "not homogeneous"),
        ("gelu", "not homogeneous"),
        (Lambda(x, x + 1), "not homogeneous"),
        (Lambda(x, Max(0, x) ** 2 - Max(0, -x)), "different powers of c, .* for different signs"),
        (Function("phi"), "phi has no definition"),
    ],
    ids=str,
)
def test_other_functions_are_refused(activation: object, reason: str) -> None:
    with pytest.raises(NotHomogeneous, match=reason):
        exponent(activation_of(activation).phi(x), {x: S.One})


def test_exponents_of_products_add() -> None:
    a, b = symbols("a b", real=True)
    assert exponent(a**2 * b, {a: q, b: 1}) == 2 * q + 1
    with pytest.raises(NotHomogeneous):
        exponent(a**2 + b, {a: 1, b: 1})


# -- networks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [2, *(pytest.param(x, marks=pytest.mark.slow) for x in (1, 3))])
def test_degree_of_a_network_counts_weights(depth: int) -> None:
    assert network_degree(mlp(depth, "relu")).kappa == depth + 1
    assert network_degree(mlp(depth, "quadratic")).kappa == 2 ** (depth + 1) - 1
    total = sum(q**k for k in range(depth + 1))
    assert simplify(network_degree(mlp(depth, POWER)).kappa - total) == 0


def test_degree_for_symbolic_depth_agrees_with_each_depth() -> None:
    kappa = network_degree(mlp(L, POWER)).kappa
    assert simplify(kappa - (q ** (L + 1) - 1) / (q - 1)) == 0
    assert simplify(kappa.subs(L, 2) - network_degree(mlp(2, POWER)).kappa) == 0


@pytest.mark.slow
def test_degrees_of_other_architectures() -> None:
    """Every layer's weights count once, wherever they are used."""
    assert network_degree(convolution(L, "relu", "flow", positions=4, receptive=1)).kappa == L + 1
    assert network_degree(mlp(L, "relu", outputs=3)).kappa == L + 1
    assert network_degree(recurrent(3, "relu", "flow")).kappa == 4
    assert network_degree(feedback_alignment(L, "relu")).kappa == L + 1


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda: mlp(L, "relu", bias=True), "adds terms of degrees"),
        (lambda: mlp(L, "relu", branch=Symbol("b", positive=True)), "adds terms of degrees"),
        (lambda: mlp(2, "tanh"), "not homogeneous"),
        (lambda: mlp(2, Function("phi")), "phi has no definition"),
        (lambda: perceptron(), "one output that is an average over units"),
    ],
    ids=["bias", "residual", "tanh", "phi", "perceptron"],
)
def test_other_networks_are_refused(program: object, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        network_degree(program())  # type: ignore[operator]


@pytest.mark.parametrize(("activation", "power"), [("relu", 1), ("quadratic", 2), ("cubic", 3)])
def test_the_degree_is_that_of_a_network_of_numbers(activation: str, power: int) -> None:
    """f(c theta) = c^kappa f(theta) for three units and exact numbers."""
    rng = random.Random(7)
    n, inputs = 3, Matrix([2, -1])
    first = Matrix(n, 2, lambda *_: rng.randint(-4, 4))
    inner = Matrix(n, n, lambda *_: rng.randint(-4, 4))
    readout = Matrix(1, n, lambda *_: rng.randint(1, 4))

    def output(c: int) -> Expr:
        h = (c * first * inputs).applyfunc(lambda a: _phi(a, power))
        return (c * readout * (c * inner * h).applyfunc(lambda a: _phi(a, power)))[0, 0]

    kappa = network_degree(mlp(2, activation)).kappa
    assert output(1) != 0
    assert output(3) == 3**kappa * output(1)


def _phi(a: Expr, power: int) -> Expr:
    return Max(0, a) if power == 1 else a**power


# -- ridge regression ----------------------------------------------------------------------------------------


def written(found: Representer, samples: int) -> tuple[Matrix, Matrix]:
    """Return the outputs on samples and elsewhere, with kernels and targets entry by entry."""
    trained, anywhere = (
        Matrix(e.subs(P, samples).doit().as_explicit()) for e in (found.trained, found.anywhere)
    )
    return trained, anywhere


def test_output_at_rest_solves_the_rate() -> None:
    """Two samples, by hand: K (y - f) = lambda kappa f; elsewhere k (y - f) = lambda kappa f(x).

    Compared in rational numbers.
    """
    found = representer(mean_field(mlp(2, "relu", "flow", weight_decay=lam)))
    trained, (anywhere,) = written(found, 2)
    K, y, k = (MatrixSymbol(n, 2, m).as_explicit() for n, m in (("K", 2), ("y", 1), ("k", 1)))
    assert found.ridge == 3 * lam
    at = {x: Rational(3 + n, 7 - 2 * n) for n, x in enumerate((*K, *y, *k))}
    assert trained.subs({lam: 0, **at}) == y.subs(at)
    at[lam] = Rational(2, 11)
    K, y, k, trained = (x.subs(at) for x in (K, y, k, trained))
    ridge, anywhere = 3 * at[lam], anywhere.subs(at)
    assert K * (y - trained) - ridge * trained == Matrix([0, 0])
    assert (k.T * (y - trained))[0] - ridge * anywhere == 0
    assert anywhere == (k.T * (K + ridge * eye(2)).inv() * y)[0]


OTHER_NAMES = {"y": "Y", "K_x": "S", "f": "out", "Delta": "err"}


def test_targets_of_another_name_are_fitted() -> None:
    """Only targets called y were targets, and the square loss of others was not linear in the output."""
    network = mlp(2, "relu", "flow", weight_decay=lam)
    found = representer(mean_field(with_names(network, OTHER_NAMES)))
    assert str(found.anywhere) == str(representer(mean_field(network)).anywhere).replace("y", "Y")


def test_fixed_points_of_other_names() -> None:
    """They were searched without end."""
    linear = mlp(1, "linear", "flow", weight_decay=lam)
    target = {Symbol("Y", positive=True): Symbol("y", positive=True)}
    points = rest_points(mean_field(with_names(linear, OTHER_NAMES)))
    assert {tuple(x.xreplace(target) for x in p) for p in points} == {*rest_points(mean_field(linear))}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda: mlp(2, "relu", "flow"), "needs weight decay and an equation of motion"),
        (lambda: mlp(2, "relu", "flow", weight_decay=lam, temperature=1), "without noise"),
        pytest.param(
            lambda: mlp(2, "relu", momentum=lam),
            "needs weight decay and an equation of motion",
            marks=pytest.mark.slow,
        ),
        (lambda: mlp(2, "relu", "flow", momentum=lam), "needs weight decay and an equation of motion"),
        (lambda: mlp(2, "tanh", "flow", weight_decay=lam), "not homogeneous"),
        (lambda: mlp(2, "relu", bias=True, weight_decay=lam), "adds terms of degrees"),
        pytest.param(
            lambda: mlp(2, branch=Rational(1, 2), weight_decay=lam),
            "adds terms of degrees",
            marks=pytest.mark.slow,
        ),
        (lambda: feedback_alignment(2, "relu", weight_decay=lam), "must be the gradient"),
    ],
    ids=["no decay", "noise", "steps", "momentum", "tanh", "biases", "residual", "feedback"],
)
def test_ridge_regression_has_conditions(program: object, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        representer(mean_field(program()))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("network", "ridge"),
    [
        (partial(mlp, 2, "relu", weight_decay=lam), 3 * lam),
        (partial(mlp, 2, "relu", "gd", "mean", weight_decay=lam), 3 * lam * P),
        (partial(mlp, 2, "relu", momentum=Rational(2, 5), weight_decay=lam), 3 * lam * Rational(3, 5)),
        pytest.param(
            partial(mlp, L, "relu", relative_widths="a", weight_decay=lam),
            (L + 1) * lam,
            marks=pytest.mark.slow,
        ),
        (partial(mlp, L, "relu", init_variance="sigma", weight_decay=lam), (L + 1) * lam),
        (partial(mlp, 1, "relu", bias=True, weight_decay=lam), 2 * lam),
        pytest.param(
            partial(convolution, L, "relu", positions=4, receptive=1, weight_decay=lam),
            (L + 1) * lam,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["steps", "mean loss", "momentum", "widths", "variances", "one layer with biases", "convolution"],
)
def test_the_ridge_of_other_rules_and_networks(network: Callable[[], Program], ridge: Expr) -> None:
    """A weight at the fixed point decays by eta lambda W in a step; its update is eta U, or eta U/(1 - m)."""
    found = representer(mean_field(network()))
    assert simplify(found.ridge - ridge) == 0
    assert found.rate is None
    sides = found.balance.lhs - found.balance.rhs
    assert simplify(sides.coeff(Function("f")(mu, t)) - ridge) == 0


def test_biases_of_one_layer_scale_like_its_weights() -> None:
    """In deeper networks biases do not scale like weights, and are refused."""
    assert network_degree(mlp(1, "relu", bias=True)).kappa == network_degree(mlp(1, "relu")).kappa == 2


@pytest.mark.slow
def test_channels_are_regressed_together() -> None:
    """One sample, two outputs: the kernel is a matrix between channels, the targets are stacked."""
    found = representer(mean_field(mlp(1, "relu", "flow", outputs=2, weight_decay=lam)))
    trained, (anywhere,) = written(found, 1)
    K, y, k = (MatrixSymbol(n, 2, m).as_explicit() for n, m in (("K", 2), ("y", 1), ("k", 1)))
    solved = (K + 2 * lam * eye(2)).inv() * y
    assert (trained - K * solved).applyfunc(simplify) == Matrix([0, 0])
    assert simplify(anywhere - (k.T * solved)[0]) == 0


def test_the_rate_is_that_of_itos_rule() -> None:
    """The gain is that of the output's rate, and the degree of the network gives the loss."""
    program = mlp(L, "relu", "flow", weight_decay=lam)
    found, rate = representer(mean_field(program)), output_rate(mean_field(program))
    lost = lam * network_degree(program).kappa * rate.output
    assert simplify(found.rate.rhs - (rate.gain - lost)) == 0  # type: ignore[union-attr]


@pytest.mark.slow
def test_rest_points_of_one_linear_layer() -> None:
    """Hand derivation: gamma0 D X K = lam H, gamma0 D X = lam G, gamma0 D (H + K G) = 2 lam X, X = <h z>."""
    K, y = symbols("K y", positive=True)
    found = rest_points(mean_field(mlp(1, "linear", "flow", weight_decay=lam)))
    outputs = {simplify(f) for *_, f in found}
    # at y + lam/(gamma0 sqrt(K)) both mean squares would be negative
    assert outputs == {0, simplify(y - lam / (gamma0 * sqrt(K)))}
    for H, G, f in found:
        error, product = y - f, gamma0 * f
        assert simplify(gamma0 * error * product * K - lam * H) == 0
        assert simplify(gamma0 * error * product - lam * G) == 0
        assert simplify(gamma0 * error * (H + K * G) - 2 * lam * product) == 0


def test_rest_points_need_closed_moments() -> None:
    with pytest.raises(NotApplicable, match="averages that are not moments"):
        rest_points(mean_field(mlp(1, "relu", "flow", weight_decay=lam)))


def test_rest_points_need_decay() -> None:
    """Every network without error is at rest: a KeyError, or a search without an end."""
    for loss in ("sum", "mean"):
        with pytest.raises(NotApplicable, match=r"every network with Delta\(mu, t\) = 0 is at rest"):
            rest_points(mean_field(mlp(1, "linear", "flow", loss=loss)))


def test_rest_points_are_those_of_one_sample() -> None:
    """Two samples were taken to be equal."""
    program = hidden_layer(GradientFlow(decay=lam), samples=S(2))
    with pytest.raises(NotApplicable, match=r"the indices of Delta\(mu, t\) are mu = 1\.\.2"):
        rest_points(mean_field(program))


def test_rest_points_with_negative_mean_squares_are_left_out() -> None:
    points = rest_points(mean_field(hidden_layer(GradientFlow(decay=lam))))
    assert len(points) == 2
    assert not any(simplify(x).is_negative for point in points for x in point[:2])


@pytest.mark.parametrize(
    "parametrization",
    [Parametrization(rate=S(3)), Parametrization(rates={"w": S(3)})],
    ids=["all weights", "readout"],
)
def test_learning_rates_do_not_change_the_decay_of_the_output(parametrization: Parametrization) -> None:
    """The output is of degree 2, so that it loses 2 lam f; this was multiplied by the factors of rates."""
    rate = output_rate(mean_field(hidden_layer(GradientFlow(decay=lam), parametrization)))
    for share in rate.shares:
        (average,) = share.contraction.atoms(Average)
        assert share.contraction == average / gamma0


def test_rates_of_the_output_need_one_rule() -> None:
    """The rule of the program was used for all weights; here W is twice as fast."""
    fast = {"W": GradientFlow(S(2), decay=2 * lam)}
    theory = mean_field(hidden_layer(GradientFlow(decay=lam), rules=fast))
    with pytest.raises(NotApplicable, match="one rule for all weights"):
        output_rate(theory)
    assert representer(theory).rate is None
    assert representer(theory).ridge == 2 * lam


def test_the_rate_of_the_output_needs_layers() -> None:
    with pytest.raises(NotApplicable, match="an index of layers, and h has none"):
        output_rate(mean_field(hidden_layer(GradientFlow(decay=lam), layered=False)))
