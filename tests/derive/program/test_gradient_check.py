"""Tests of the gradient check of a program: it detects wrong gradients and lists omitted comparisons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sympy import Expr, Function, Integer, S, Sum, Symbol, tanh

from derive.errors import NotApplicable, ProgramError
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
    Outer,
    P,
    Population,
    Product,
    Program,
    TrainedMatrix,
    ell,
    eta,
    feedback_alignment,
    gamma0,
    gradient_check,
    mu,
    t,
)
from derive.program.gradient_check import check_gradients
from derive.program.networks.residual import block_program, nonlinear_program
from derive.theory.routes import RoutesDisagree, check_routes
from tests.derive.once import (
    convolution,
    depth_program,
    isotropic,
    mlp,
    perceptron,
    recurrent,
    structured,
)
from tests.derive.programs import excitatory_inhibitory, two_layers

phi = Function("phi")
X, R = (Symbol(n, integer=True, positive=True) for n in "XR")

BUILDERS: dict[str, Callable[[], Program]] = {
    "mlp": lambda: mlp(L, phi),
    "mlp, linear": lambda: mlp(),
    "mlp, options": lambda: mlp(2, "relu", loss="mean", bias=True, outputs=2, weight_decay=Symbol("lambda")),
    "widths": lambda: mlp(L, "tanh", relative_widths="a", init_variance="sigma"),
    "list of widths": lambda: mlp(3, "tanh", relative_widths=[2, 3, 1]),
    "residual": lambda: mlp(L, "tanh", branch=Symbol("beta")),
    "logistic": lambda: mlp(1, "erf", objective="logistic"),
    "hinge": lambda: mlp(1, "gelu", objective="hinge", sample_weights=True),
    "cross-entropy": lambda: mlp(1, "tanh", outputs=3, objective="cross-entropy"),
    "convolution": lambda: convolution(2, "tanh", positions=3, receptive=1),
    "convolution, symbolic": lambda: convolution(1, "tanh", positions=X, receptive=R),
    "recurrent": lambda: recurrent(L, bias=True, branch=Symbol("beta"), outputs=2),
    "isotropic": lambda: isotropic(L, noise=True, center=True),
    "isotropic, online": lambda: isotropic(2, data="online", outputs=2, branch=S.Half),
    "isotropic, population": lambda: isotropic(2, data="population", widths=Function("nu")),
    "isotropic, NTK": lambda: isotropic(1, parametrization="ntk"),
    "structured": lambda: structured(2, data="full-batch", noise=True),
    "structured, population": lambda: structured(2, data="population", parametrization="ntk"),
    "perceptron": lambda: perceptron(teacher="tanh", noise=Symbol("s2")),
    "perceptron, mixture": lambda: perceptron("mixture", "logistic"),
    "perceptron, loss without a name": lambda: perceptron(loss=Function("cost")),
    "depth": depth_program,
    "depth, nonlinear": nonlinear_program,
    "depth, blocks": block_program,
}


@pytest.mark.parametrize("name", BUILDERS)
def test_every_builder_goes_down_its_loss(name: str) -> None:
    assert check_gradients(BUILDERS[name]()) == []  # and was compared: nothing was raised


# -- wrong gradients -----------------------------------------------------------------------------------------

layer, pixels = Population("layer"), Population("input", given=True)
x = GivenVector("x", pixels, "K_x")
h, q = Field("h", layer), Field("q", layer)
p, r = (Symbol(n, integer=True) for n in "pr")
T = Symbol("T", integer=True, positive=True)
W0, W, w = GaussianMatrix("W0", layer, pixels), GaussianMatrix("W", layer, layer), GaussianVector("w", layer)
f, y = Function("f"), Function("y")


def masked() -> Program:
    """Return a sum over earlier positions of averages over units, and one matrix in two places."""
    forward: dict[Expr, Expr] = {
        h(mu, p, t): W0 @ x(mu, p),
        Function("a")(mu, p, r, t): Mean(h(mu, p, t) * tanh(h(mu, r, t))),
        Function("b")(mu, p, t): Mean(h(mu, p, t) ** 2),
        q(mu, p, t): W @ h(mu, p, t)
        + Function("b")(mu, p, t) * Sum(Function("a")(mu, p, r, t) * h(mu, r, t), (r, 1, p)),
        f(mu, p, t): Mean(w.symbol * tanh(q(mu, p, t))) / gamma0,
    }
    ranges = (IndexRange(p, S.One, T), IndexRange(r, S.One, T))
    net = Network("masked", (h, q), forward, (W0, W, w), given=(x,), ranges=ranges)
    return net.train((y(mu, p) - f(mu, p, t)) ** 2 / 2, GradientDescent(eta), together=True)


def shared() -> Program:
    """Return one matrix that is applied twice, so that its update is a sum."""
    forward: dict[Expr, Expr] = {
        h(mu, t): W0 @ x(mu),
        q(mu, t): W @ tanh(h(mu, t)) + W.T @ h(mu, t),
        f(mu, t): Mean(w.symbol * q(mu, t) * h(mu, t)) / gamma0,
    }
    net = Network("shared", (h, q), forward, (W0, W, w), given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def edited(program: Program, name: str, change: Callable[[Expr], Expr]) -> Program:
    """Return the program with another right-hand side for ``name``."""
    assert any(d.name == name and change(d.rhs) != d.rhs for d in program.definitions)
    lines = (replace(d, rhs=change(d.rhs)) if d.name == name else d for d in program.definitions)
    return replace(program, definitions=tuple(lines))


def updated(program: Program, name: str, change: Callable[[Any], Any]) -> Program:
    """Return the program with another update of the matrix ``name``."""
    matrices = (
        replace(m, update=change(m.update)) if isinstance(m, TrainedMatrix) and m.name == name else m
        for m in program.matrices
    )
    return replace(program, matrices=tuple(matrices))


def limits(*bounds: Any) -> Callable[[Expr], Expr]:
    """Return a change of the limits of every sum."""
    return lambda e: e.replace(
        lambda s: isinstance(s, Sum), lambda s: Sum(s.function, (s.limits[0][0], *bounds))
    )


def doubled(u: Outer) -> Outer:
    return replace(u, coefficient=2 * u.coefficient)


WRONG: dict[str, Callable[[], Program]] = {
    "a factor of two": lambda: updated(mlp(2, phi), "W", doubled),
    "a sign": lambda: edited(mlp(2, phi), "Delta", lambda e: -e),
    "a layer": lambda: edited(
        mlp(3, "linear", branch=S.Half),
        "g",
        lambda e: e.xreplace({Function("g")(ell + 1, t): Function("g")(3, t)}) if e.has(Product) else e,
    ),
    "a matrix for its transpose": lambda: edited(
        shared(),
        "g",
        lambda e: e.replace(
            lambda v: isinstance(v, Product), lambda v: Product(v.matrix, not v.transposed, v.vector)
        ),
    ),
    "a derivative": lambda: edited(mlp(2, "tanh"), "g", lambda e: e.subs(tanh(Function("h")(ell, mu, t)), 0)),
    "a lost skip": lambda: edited(
        mlp(L, "tanh", branch=S.Half),
        "g",
        lambda e: e - Function("g")(ell + 1, mu, t) if e.has(Function("g")(ell + 1, mu, t)) else e,
    ),
    "the width": lambda: updated(
        mlp(L, phi, relative_widths="a"),
        "W",
        lambda u: replace(u, coefficient=u.coefficient * Function("a")(ell + 1)),
    ),
    "a lost use": lambda: updated(shared(), "W", lambda u: replace(u, more=())),
    "a use twice": lambda: updated(shared(), "W", lambda u: replace(u, more=(*u.more, *u.more))),
    "sides exchanged": lambda: updated(shared(), "W", lambda u: replace(u, left=u.right, right=u.left)),
    "samples counted by one": lambda: updated(
        mlp(2, phi), "W", lambda u: replace(u, over=tuple(IndexRange(v.index, S.One, S.One) for v in u.over))
    ),
    "sums over all positions": lambda: edited(masked(), "g", limits(1, T)),
    "sums over the wrong half": lambda: edited(masked(), "g", limits(1, p)),
    "sums that leave the end out": lambda: edited(masked(), "g", limits(p + 1, T)),
    "a number outside of its sum": lambda: edited(masked(), "g_a", lambda e: e.xreplace({p: T})),
    "a missing average": lambda: edited(
        masked(), "g_b", lambda e: e.replace(lambda m: isinstance(m, Mean), lambda _: S.One)
    ),
    "the mean over samples": lambda: edited(isotropic(2), "h0", lambda e: 2 * e),
    "positions on their ring": lambda: edited(
        convolution(2, "tanh", positions=3, receptive=1),
        "z",
        lambda e: e.replace(Function("g"), lambda i, m, at, _: Function("g")(i, m, at + 1, t)),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_gradient_is_seen(name: str) -> None:
    assert check_gradients(WRONG[name]())


def test_the_programs_that_are_made_wrong_are_right() -> None:
    assert check_gradients(masked()) == check_gradients(shared()) == []


def test_check_routes_names_the_weight_whose_update_is_wrong() -> None:
    """Both routes read the same updates, so they agree on a wrong one."""
    with pytest.raises(RoutesDisagree, match=r"gradient along W\(1\) in a network of two units"):
        check_routes(updated(mlp(2, "linear"), "W", doubled))
    with pytest.raises(RoutesDisagree) as told:
        check_routes(updated(mlp(2, "linear"), "W0", doubled))
    assert len(str(told.value).splitlines()) == 3  # the program, one weight and a hint


# -- losses that are summed over an index --------------------------------------------------------------------

b, c = Function("b"), Symbol("c", integer=True)
CHANNELS = IndexRange(c, S.One, Integer(3))
FORWARD: dict[Expr, Expr] = {h(mu, t): W0 @ x(mu), f(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0}
NO_DATA: dict[str, tuple[dict[Expr, Expr], Expr]] = {
    "an output": (
        {h(mu, t): W0 @ x(mu), f(mu, c, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0},
        (y(mu) - f(mu, c, t)) ** 2 / 2,
    ),
    "one of two outputs": (
        {**FORWARD, b(mu, c, t): Mean(h(mu, t) ** 2)},
        (y(mu) - f(mu, t)) ** 2 / 2 + b(mu, c, t) ** 2,
    ),
    "an output at the next place": (
        {**FORWARD, b(mu, c, t): Mean(h(mu, t) ** 2)},
        (y(mu) - f(mu, t)) ** 2 / 2 + b(mu, c + 1, t) ** 2,
    ),
    "a field": (
        {**FORWARD, q(mu, c, t): tanh(h(mu, t))},
        (y(mu) - f(mu, t)) ** 2 / 2 + Mean(q(mu, c, t) ** 2),
    ),
}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("case", NO_DATA)
def test_a_loss_counts_every_value_of_an_index_that_no_data_have(case: str, together: bool) -> None:
    """Three equal terms are three times one, so that the index must stay in the loss."""
    forward, loss = NO_DATA[case]
    fields = (h, q) if q(mu, c, t) in forward else (h,)
    net = Network("equal terms", fields, forward, (W0, w), given=(x,), ranges=(CHANNELS,))
    program = net.train(loss, GradientDescent(eta), together=together)
    number = Function("average_1")(mu, c, t)  # what an average in a loss becomes
    assert program.loss == loss.replace(lambda e: isinstance(e, Mean), lambda _: number)
    assert check_gradients(program) == []


@pytest.mark.parametrize(("index", "limits"), [(c, "c, 1, 3"), (p, "p, ...")])
def test_an_index_of_the_loss_alone_is_refused(index: Symbol, limits: str) -> None:
    net = Network("targets", (h,), FORWARD, (W0, w), given=(x,), ranges=(CHANNELS,))
    said = rf"is not summed over {index}: write the sum in the loss, Sum\(\.\.\., \({limits}\)\)"
    with pytest.raises(ProgramError, match=said):
        net.train((y(mu, index) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    summed = Sum((y(mu, c) - f(mu, t)) ** 2 / 2, (c, 1, 3))
    assert check_gradients(net.train(summed, GradientDescent(eta))) == []


# -- omitted comparisons -------------------------------------------------------------------------------------


def test_a_gradient_that_was_compared_leaves_an_empty_list() -> None:
    found = check_routes(mlp(1))
    assert (found, repr(found), found.gradients) == ([], "[]", "compared")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (feedback_alignment(1), "not the gradient"),
        (mlp(2, tied=False), "not the gradient"),
        (two_layers(True), "states no loss"),
        (excitatory_inhibitory(), "states no loss"),
    ],
)
def test_a_gradient_that_was_not_compared_is_named(program: Program, reason: str) -> None:
    found = check_routes(program)
    assert found == []
    assert reason in found.gradients
    assert repr(found).startswith("[], but gradients were not compared: ")
    with pytest.raises(NotApplicable, match=reason):
        check_gradients(program)


def test_sizes_are_those_of_samples_by_their_index_and_not_by_their_name() -> None:
    pixels, samples = (Symbol(n, integer=True, positive=True) for n in ("Pixels", "n"))
    image = gradient_check._Numbers(convolution(1, "tanh", positions=pixels, receptive=1))
    assert (image.symbol(P), image.symbol(pixels)) == (gradient_check.SAMPLES, gradient_check.EXTENT)
    i, layer = Symbol("i", integer=True, positive=True), Population("layer")
    x, h = GivenVector("x", Population("input", given=True), "K_x"), Field("h", layer)
    W, w, f = GaussianMatrix("W", layer, x.population), GaussianVector("w", layer), Function("f")(i, t)
    forward = {h(i, t): W @ x(i), f: Mean(w.symbol * tanh(h(i, t)))}
    network = Network("x", (h,), forward, (W, w), given=(x,), ranges=(IndexRange(i, S.One, samples),))
    program = network.train((Function("y")(i) - f) ** 2 / 2, GradientDescent(eta))
    assert gradient_check._Numbers(program).symbol(samples) == gradient_check.SAMPLES
    assert check_gradients(program) == []


def test_an_edit_on_purpose_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = updated(mlp(2, phi), "W", doubled)
    with pytest.raises(NotApplicable, match="descent = None"):
        check_gradients(replace(wrong, descent=None))
    monkeypatch.setattr(gradient_check, "LARGEST", 10)
    with pytest.raises(NotApplicable, match="too large to evaluate"):
        check_gradients(mlp(2, phi))
