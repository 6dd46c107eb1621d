"""Tests of the programs of the builders, and of the refusals of the builders."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sympy import (
    Derivative,
    Expr,
    Function,
    Integer,
    Lambda,
    Rational,
    Sum,
    Symbol,
    diff,
    exp,
    simplify,
    symbols,
    tanh,
)

from derive.program import (
    Along,
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
    IndexRange,
    L,
    Mean,
    Outer,
    P,
    Parametrization,
    Population,
    Program,
    ProgramError,
    TrainedMatrix,
    TrainedVector,
    alpha,
    ell,
    eta,
    gamma0,
    isotropic,
    mu,
    network,
    sign_descent,
    t,
)
from derive.program.networks import attention, committee, random_features, recurrent_task
from derive.program.networks.options import Listed
from derive.program.networks.residual import block_program
from tests.derive.once import convolution, feedback_alignment, mlp, perceptron, recurrent

phi = Function("phi")
X, S, C = (Symbol(n, integer=True, positive=True) for n in "XSC")
beta, lam, T, tau = symbols("beta lam T tau", positive=True)
h, g, z, f, Delta, y, x = (Function(n) for n in ("h", "g", "z", "f", "Delta", "y", "x"))
c, p = (Symbol(n, integer=True, positive=True) for n in "cp")
k = Symbol("k", integer=True)


def line(program: Program, name: str, site: Expr | int | None = None) -> Expr:
    """Return the right-hand side that defines a field at a layer."""
    found = [d for d in program.definitions if d.name == name and (site is None or d.lhs.args[0] == site)]
    assert len(found) == 1
    return found[0].rhs


def weight(program: Program, name: str) -> TrainedMatrix | TrainedVector:
    return next(w for w in program.trained() if w.name == name)


# -- mlp is the program written by hand ----------------------------------------------------------------------


def by_hand(last: Expr, tied: bool) -> Program:
    """Return a multilayer perceptron from the parts of the public language (eq. 1, 2, D.1-D.9)."""
    layer, inputs, rule = Population("layer"), Population("input", given=True), GradientDescent(eta)
    vector = GivenVector("x", inputs, "K_x")
    inside, hidden = IndexRange(ell, Integer(1), last - 1), IndexRange(ell, Integer(1), last)
    samples, past = (IndexRange(mu, Integer(1), P),), (IndexRange(alpha, Integer(1), P),)
    W0 = GaussianMatrix("W0", layer.at(1), inputs)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=inside, responses=("A", "B"))
    V = W if tied else GaussianMatrix("V", layer.at(ell + 1), layer.at(ell), index=inside)
    w = GaussianVector("w", layer.at(last))
    error = gamma0 * Delta(alpha, t)
    hebb = Outer(error, g(ell + 1, alpha, t), phi(h(ell, alpha, t)), past)
    return Program(
        "multilayer perceptron",
        rule,
        tuple(Field(n, layer, layered=True) for n in ("h", "z", "g")),
        (
            Definition(h(1, mu, t), W0 @ vector(mu), samples),
            Definition(h(ell + 1, mu, t), W(ell) @ phi(h(ell, mu, t)), (*samples, inside)),
            Definition(f(mu, t), Mean(z(last, mu, t) * phi(h(last, mu, t))) / gamma0, samples),
            Definition(Delta(mu, t), y(mu) - f(mu, t), samples),
            Definition(z(last, mu, t), w.symbol, samples),
            Definition(z(ell, mu, t), V(ell).T @ g(ell + 1, mu, t), (*samples, inside)),
            Definition(
                g(ell, mu, t),
                diff(phi(h(ell, mu, t)), h(ell, mu, t)) * z(ell, mu, t),
                (*samples, hidden),
            ),
        ),
        (
            TrainedMatrix(W0, Outer(error, g(1, alpha, t), vector(alpha), past), rule),
            TrainedMatrix(W, hebb, rule),
            *(() if tied else (TrainedMatrix(V, hebb, rule),)),
        ),
        (TrainedVector(w, Along(error, phi(h(last, alpha, t)), past), rule),),
        (vector,),
        scalars=("f", "Delta"),
        constants=("y",),
        notation={phi(h(ell, mu, t)): "Phi", g(ell, mu, t): "G"},
        scale=gamma0,
        depth=last,
        loss=(y(mu) - f(mu, t)) ** 2 / 2,
        descent=Parametrization() if tied else None,
    )


@pytest.mark.parametrize("depth", [L, 1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_a_perceptron_is_what_one_would_write(depth: Any, tied: bool) -> None:
    assert mlp(depth, phi, tied=tied) == by_hand(Integer(depth) if depth != L else L, tied)


NEUTRAL: dict[str, dict[str, Any]] = {
    "one output": {"outputs": 1},
    "no bias": {"bias": False},
    "unit variance": {"init_variance": 1},
    "a list of ones": {"init_variance": [1, 1, 1, 1]},
    "equal widths": {"relative_widths": [1, 1, 1]},
    "no decay": {"weight_decay": 0.0},
    "no momentum": {"momentum": 0.0},
    "cold": {"temperature": 0.0},
}


@pytest.mark.parametrize("option", NEUTRAL)
def test_an_option_without_effect_leaves_the_program_alone(option: str) -> None:
    assert mlp(3, phi, **NEUTRAL[option]) == mlp(3, phi)


def test_one_position_is_no_position() -> None:
    assert convolution(L, phi, positions=1, receptive=0) == mlp(L, phi)
    pointwise = convolution(L, phi, positions=X, receptive=0)
    assert line(pointwise, "h", ell + 1) == GaussianMatrix("W", *_layers(), index=None)(ell) @ phi(
        h(ell, mu, p, t)
    )


def _layers() -> tuple[Population, Population]:
    layer = Population("layer")
    return layer.at(ell + 1), layer.at(ell)


# -- each option's lines -------------------------------------------------------------------------------------


def test_channels() -> None:
    program = mlp(L, phi, outputs=C)
    lhs = {d.name: d.lhs for d in program.definitions}
    assert lhs["Delta"] == Delta(mu, c, t)
    assert lhs["g"] == g(ell, mu, c, t)
    assert lhs["h"].args[1:] == (mu, t)
    assert line(program, "Delta") == y(mu, c) - f(mu, c, t)
    assert line(program, "z", L) == Function("w")(c)
    over = weight(program, "W").update.over
    assert [(r.index.name, r.upper) for r in over] == [("alpha", P), ("c_", C)]
    assert [r.index for r in weight(program, "w").update.over] == [alpha]


def test_the_backward_pass_of_a_linear_network_with_channels_has_no_samples() -> None:
    program = mlp(outputs=3)
    assert {d.lhs for d in program.definitions if d.name == "g"} == {g(L, c, t), g(ell, c, t)}


def test_biases_are_added_to_every_hidden_layer_and_trained() -> None:
    program, b = mlp(L, phi, bias=tau), Function("b")
    assert line(program, "h", 1) - line(mlp(L, phi), "h", 1) == b(1)
    assert line(program, "h", ell + 1) - line(mlp(L, phi), "h", ell + 1) == b(ell + 1)
    bias = weight(program, "b")
    assert (bias.initial.variance, bias.initial.indices) == (tau, (IndexRange(ell, Integer(1), L),))
    assert (bias.update.coefficient, bias.update.vector) == (gamma0 * Delta(alpha, t), g(ell, alpha, t))
    assert weight(mlp(L, phi, bias=True), "b").initial.variance == 1


def test_a_residual_network_adds_branches_both_ways() -> None:
    """linear2025 (71) and its chain rule with a nonlinearity."""
    program, plain = mlp(L, phi, branch=beta), mlp(L, phi)
    assert line(program, "h", ell + 1) == h(ell, mu, t) + beta * line(plain, "h", ell + 1)
    assert line(program, "z", ell) == line(plain, "z", ell)
    slope = Derivative(phi(h(ell, mu, t)), h(ell, mu, t)) * z(ell, mu, t)
    assert line(program, "g", ell) == g(ell + 1, mu, t) + beta * slope
    assert line(program, "g", L) == slope.subs(ell, L)
    assert weight(program, "W").update.coefficient == beta * gamma0 * Delta(alpha, t)
    assert weight(program, "W0").update == weight(plain, "W0").update
    linear = mlp(branch=beta)
    assert line(linear, "g", ell) == g(ell + 1, t) + beta * line(mlp(), "g", ell)
    assert all(x.population.shared for x in program.fields)


def test_widths_divide_by_the_fan_in() -> None:
    """D.46, D.47: W/sqrt(N_l) forwards, W^T/sqrt(N_{l+1}) backwards."""
    program, a = mlp(L, phi, relative_widths="a", init_variance="sigma"), Function("a")
    sigma = Function("sigma")
    W, W0, w = (weight(program, n).initial for n in ("W", "W0", "w"))
    assert (W.cols.ratio, W.rows.ratio, W.variance) == (a(ell), a(ell + 1), sigma(ell) ** 2 / a(ell))
    assert (W0.variance, w.variance) == (sigma(0) ** 2, sigma(L) ** 2)
    factor = line(program, "z", ell) / line(mlp(L, phi), "z", ell)
    assert factor**2 == a(ell) / a(ell + 1)
    share = weight(program, "W").update.coefficient / weight(mlp(L, phi), "W").update.coefficient
    assert simplify(share * a(ell) * a(ell + 1) ** Rational(1, 2)) == 1
    assert mlp(3, phi, relative_widths=2) != mlp(3, phi)


def test_lists_are_known_layer_by_layer() -> None:
    program = mlp(3, phi, relative_widths=[2, 3, 1], init_variance=[4, 5, 6, 7])
    W, W0, w = (weight(program, n).initial for n in ("W", "W0", "w"))
    assert [W.variance.subs(ell, i) for i in (1, 2)] == [Rational(5, 2), 2]
    assert (W0.variance, w.variance, W0.rows.ratio) == (4, 7, 2)
    entry = Listed(ell, 1, 2, 3)
    assert (entry.subs(ell, 2), entry.subs(ell, 5), str(entry)) == (3, Listed(5, 1, 2, 3), "[2, 3](ell)")


def test_filters_look_both_ways() -> None:
    """G.1-G.3."""
    program = convolution(L, phi, positions=X, receptive=S)
    W = weight(program, "W").initial
    assert W.others == (IndexRange(k, -S, S),)
    assert line(program, "h", ell + 1) == Sum(W(ell, k) @ phi(h(ell, mu, p + k, t)), (k, -S, S))
    assert line(program, "z", ell) == Sum(W(ell, k).T @ g(ell + 1, mu, p - k, t), (k, -S, S))
    assert line(program, "h", 1) == Sum(weight(program, "W0").initial(k) @ x(mu, p + k), (k, -S, S))
    p_ = Symbol("p_", integer=True, positive=True)
    update = weight(program, "W").update
    assert (update.left, update.right) == (g(ell + 1, alpha, p_, t), phi(h(ell, alpha, p_ + k, t)))
    assert [r.index for r in update.over] == [alpha, p_]
    assert line(program, "f") == Sum(Mean(z(L, mu, p, t) * phi(h(L, mu, p, t))), (p, 1, X)) / gamma0
    assert line(program, "z", L) == Function("w")(p)


def test_one_bias_serves_all_positions() -> None:
    bias = weight(convolution(L, phi, positions=X, receptive=S, bias=True), "b")
    assert [r.index for r in bias.initial.indices] == [ell]
    assert [r.index.name for r in bias.update.over] == ["alpha", "p_"]


def test_fixed_feedback_is_not_trained_and_not_the_transpose() -> None:
    program = feedback_alignment(L, phi)
    assert [w.name for w in program.trained()] == ["W0", "W", "w"]
    assert line(program, "z", L) == Symbol("v")
    assert "V(ell).T" in str(line(program, "z", ell))
    omega = Function("omega")
    assert line(program, "omega") == Symbol("w")
    assert line(program, "f") == Mean(omega(L, t) * phi(h(L, mu, t))) / gamma0
    assert weight(program, "W").update == weight(mlp(L, phi), "W").update


def test_tied_weights_sum_their_updates_over_depth() -> None:
    program = recurrent(L, phi, bias=True)
    W, b = weight(program, "W"), weight(program, "b")
    assert W.initial.index is None
    assert [r.index for r in W.update.over] == [alpha, k]
    assert [(r.lower, r.upper) for r in (W.update.over[1], b.update.over[1])] == [(1, L - 1), (1, L)]
    assert line(program, "h", k + 1) == W.initial @ phi(h(k, mu, t)) + Symbol("b")
    assert not any(x.layered for x in program.fields)


def test_perceptrons() -> None:
    v, q = Function("v"), Function("q")
    program = perceptron()
    assert line(program, "Delta") == y(t) - h(t)
    assert weight(program, "w").update == Along(Integer(1), q(t))
    generic = perceptron(loss=Function("loss"), teacher=phi)
    assert line(generic, "Delta") == -Derivative(Function("loss")(h(t), y(t)), h(t))
    assert line(generic, "y") == phi(Function("h_star")(t))
    mixture = perceptron("mixture", "logistic")
    assert line(mixture, "M") == Mean(Function("m")(t) * v(t))
    assert simplify(line(mixture, "Delta") - y(t) / (1 + exp(h(t) * y(t)))) == 0


def test_noise_is_true_for_a_symbol() -> None:
    """True was a TypeError in builders whose option is the variance."""
    assert perceptron(noise=True) == perceptron(noise=Symbol("sigma", positive=True) ** 2)
    assert committee(noise=True) == committee(noise=Symbol("sigma", positive=True) ** 2)
    assert perceptron(noise=False) == perceptron()


def test_rules_of_random_data_have_names() -> None:
    for build in (perceptron, committee, random_features, partial(isotropic, 1)):
        assert build(rule="sign") == build(rule=sign_descent(eta))


def test_defaults_of_builders_go_together() -> None:
    assert random_features(data="online") == random_features(data="online", rule="gd")
    assert recurrent_task(3).depth == recurrent(3).depth == 3


# -- refusals ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "functions of numbers": (lambda: mlp(2, math.tanh), "activation = .*: is not a function of one SymPy"),
    "two arguments": (
        lambda: mlp(2, Lambda((tau, lam), tau * lam)),
        "activation = .*: is not a function of one",
    ),
    "one exponent": (lambda: block_program(gammas=(1,)), r"gammas = \(1,\): must be two exponents"),
    "listed data": (lambda: isotropic(data=["x"]), r"data = \['x'\]: must be"),  # type: ignore[arg-type]
    "listed scores": (lambda: attention(2, scores=["x"]), r"scores = \['x'\]: must be"),  # type: ignore[arg-type]
    "listed positions": (lambda: attention(2, read=["x"]), r"read = \['x'\]: must be"),  # type: ignore[arg-type]
    "listed objective": (lambda: mlp(2, objective=["x"]), r"objective = \['x'\]: must be"),  # type: ignore[arg-type]
    "AdaGrad": (lambda: recurrent(rule="AdaGrad"), "Entrywise makes a rule.*must be 'gd'"),
    "unknown rule": (lambda: perceptron(rule="sgd"), "rule = 'sgd': must be 'gd'"),
    "momentum and noise": (lambda: mlp(momentum=0.9, temperature=1), "momentum = 0.9.* with temperature = 1"),
    "momentum and decay in flow": (
        lambda: mlp(rule="flow", momentum=tau, weight_decay=lam),
        "momentum = tau with weight_decay = lam: the rules",
    ),
    "multistep with momentum and decay": (
        lambda: mlp(rule="multistep", momentum=tau, weight_decay=lam),
        "momentum = tau with weight_decay = lam: the rules",
    ),
    "rule given twice": (
        lambda: mlp(rule=GradientFlow(), momentum=1),
        "only for rules that are given by their names",
    ),
    "rule given twice, tied": (
        lambda: recurrent(rule=GradientFlow(), weight_decay=1),
        "only for rules that are given by their names",
    ),
    "rule given twice, perceptron": (
        lambda: perceptron(rule=GradientFlow(), weight_decay=1),
        "only for rules that are given by their names",
    ),
    "unequal residual": (lambda: mlp(3, branch=1, relative_widths=[1, 2, 1]), "relative_widths with branch"),
    "depth": (lambda: convolution(0, positions=4, receptive=1), "depth = 0"),
    "no steps": (lambda: recurrent(0), "steps = 0"),
    "too few widths": (lambda: mlp(3, relative_widths=[1, 1]), "relative_widths has 2 entries: must have 3"),
    "too few variances": (lambda: mlp(3, init_variance=[1, 1]), "init_variance has 2 entries: must have 4"),
    "list without depth": (lambda: mlp(L, relative_widths=[1, 1]), "a list needs a depth that is a number"),
    "negative width": (lambda: mlp(2, relative_widths=[1, -1]), "relative_widths = -1: must be positive"),
    "no outputs": (lambda: mlp(outputs=0), "outputs = 0: must be an integer, at least 1"),
    "half an output": (lambda: mlp(outputs=Rational(1, 2)), "outputs = 1/2: must be an integer"),
    "filter too wide": (lambda: convolution(positions=4, receptive=2), "receptive = 2 with positions = 4"),
    "negative reach": (lambda: convolution(positions=4, receptive=-1), "receptive = -1: must be an integer"),
    "activation": (lambda: mlp(2, "swish"), "activation = 'swish': must be one of linear, relu"),
    "text is not parsed": (lambda: mlp(2, "tanh(h)"), "activation = 'tanh.h.'"),
    "constant activation": (lambda: mlp(2, lambda x: Integer(1)), "must depend on the field"),
    "two symbols": (lambda: mlp(2, beta * tanh(lam)), "must contain exactly one symbol"),
    "no activation": (lambda: mlp(2, 3.0), "activation = 3.0: must be a name or a SymPy function"),
    "noise from zero": (
        lambda: mlp(rule="flow", temperature=T, bias=0),
        "b starts at zero: noise is counted in units",
    ),
    "task": (lambda: perceptron("parity"), "task = 'parity': must be 'teacher' or 'mixture'"),
    "teacher of a mixture": (lambda: perceptron("mixture", noise=1), "belong to task = 'teacher'"),
    "loss of a perceptron": (lambda: perceptron(loss="hinge"), "loss = 'hinge': must be one of squared"),
    "constant loss": (lambda: perceptron(loss=lambda h, y: y**2), "does not depend on the prediction"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_network_is_refused_with_the_reason(what: str) -> None:
    make, reason = REFUSED[what]
    with pytest.raises(ProgramError, match=reason):
        make()


def test_ill_posed_variants_of_built_programs_are_refused() -> None:
    program = convolution(L, phi, positions=X, receptive=S)
    W = weight(program, "W")
    fresh = tuple(
        replace(m, initial=replace(m.initial, fresh=True)) if m is W else m for m in program.matrices
    )
    with pytest.raises(ProgramError, match="W is drawn anew at every step, so that it cannot be trained"):
        replace(program, matrices=fresh)
    looped = tuple(
        replace(d, rhs=d.rhs + h(ell + 1, mu, p, t)) if d.lhs == h(ell + 1, mu, p, t) else d
        for d in program.definitions
    )
    with pytest.raises(ProgramError, match="depends on itself within a step"):
        replace(program, definitions=looped)

    class Adam:
        discrete = True

    with pytest.raises(ProgramError, match="or Entrywise for a rule that is not linear in the updates"):
        mlp(2, rule=Adam())  # type: ignore[arg-type]


def test_names_say_what_was_put_together() -> None:
    assert mlp().name == "deep linear network"
    assert mlp(L, phi).name == "multilayer perceptron"
    assert network(L, phi, branch=beta, bias=True, outputs=C).name == (
        "residual network with biases and several outputs"
    )
    assert feedback_alignment(L, branch=beta).name == "deep linear residual network with fixed feedback"
    assert convolution(L, phi, positions=X, receptive=S).name == "convolutional network"
