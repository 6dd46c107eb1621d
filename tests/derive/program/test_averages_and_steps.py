"""Own networks with averages inside functions, steps, and weights that start at zero or behind a matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import DiracDelta, Expr, Function, Heaviside, S, Sum, Symbol, sign, sin, sqrt, tanh

from derive.program import (
    Definition,
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
    Product,
    Program,
    ProgramError,
    alpha,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.gradient_check import check_gradients
from derive.program.training import Along, TrainedVector
from derive.theory import mean_field
from derive.theory.routes import check_routes
from numerics.averages.existence import singularities
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.chance import excess, in_errors

units, pixels = Population("units"), Population("input", given=True)
x = GivenVector("x", pixels, "K_x")
h, q = Field("h", units), Field("q", units)
W0, W, A = (
    GaussianMatrix("W0", units, pixels),
    GaussianMatrix("W", units, units),
    GaussianMatrix("A", units, units),
)
w, zero = GaussianVector("w", units), GaussianVector("w", units, variance=0)
v = GaussianVector("v", units)
m, f, y = (Function(n) for n in "mfy")
p, r = (Symbol(n, integer=True) for n in "pr")
SQUARE = (y(mu) - f(mu, t)) ** 2 / 2
INPUT: dict[Expr, Expr] = {h(mu, t): W0 @ x(mu)}


def normal(e: Expr) -> Expr:
    return e / sqrt(Mean(e**2))


def shallow(lines: dict[Expr, Expr], *weights: Any, frozen: Any = (), out: Expr | None = None) -> Program:
    """Return a network that reads ``tanh(q)``, or the given output."""
    fields = (h, q) if q(mu, t) in lines else (h,)
    read = Mean(w.symbol * tanh(q(mu, t))) if out is None else out
    net = Network("own", fields, INPUT | lines | {f(mu, t): read / gamma0}, weights, frozen, given=(x,))
    return net.train(SQUARE, GradientDescent(eta))


def layered() -> Program:
    """Return layers whose input is a function of the normalised layer below."""
    layer = Population("layer")
    inner = Field("h", layer, layered=True)
    first, top = GaussianMatrix("W0", layer.at(1), pixels), GaussianVector("w", layer.at(L))
    deep = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, L - 1))
    forward = {
        inner(1, mu, t): first @ x(mu),
        inner(ell + 1, mu, t): deep(ell) @ tanh(normal(inner(ell, mu, t))),
        f(mu, t): Mean(top.symbol * normal(inner(L, mu, t))) / gamma0,
    }
    net = Network("normalised layers", (inner,), forward, (first, deep, top), given=(x,))
    return net.train(SQUARE, GradientDescent(eta))


def positions() -> Program:
    """Return averages over units at each position, inside a product inside a sum over positions."""
    forward = {
        h(mu, p, t): W0 @ x(mu, p),
        f(mu, t): Sum(Mean(w.symbol * tanh(h(mu, p, t) - Mean(h(mu, p, t)))), (p, 1, 2)) / gamma0,
    }
    net = Network("centred", (h,), forward, (W0, w), given=(x,), ranges=(IndexRange(p, S.One, S(2)),))
    return net.train(SQUARE, GradientDescent(eta))


AVERAGES: dict[str, Callable[[], Program]] = {
    "by a matrix": lambda: shallow({q(mu, t): W @ normal(h(mu, t))}, W0, W, w),
    "by a matrix, with a name": lambda: shallow(
        {m(mu, t): Mean(h(mu, t) ** 2), q(mu, t): W @ (h(mu, t) / sqrt(m(mu, t)))}, W0, W, w
    ),
    "entry by entry": lambda: shallow({q(mu, t): normal(h(mu, t))}, W0, w),
    "in a function by a matrix": lambda: shallow({q(mu, t): W @ tanh(h(mu, t) - Mean(h(mu, t)))}, W0, W, w),
    "in an average": lambda: shallow({}, W0, w, out=Mean(w.symbol * tanh(normal(h(mu, t))))),
    "in an average in an average": lambda: shallow(
        {}, W0, w, out=Mean(w.symbol * h(mu, t) * Mean(tanh(normal(h(mu, t))) ** 2))
    ),
}
READ = Mean(w.symbol * tanh(h(mu, t)))
AVERAGES |= {
    "in a number": lambda: shallow({}, W0, w, out=tanh(READ)),
    "in an average in a number": lambda: shallow(
        {}, W0, w, out=tanh(Mean(w.symbol * h(mu, t) * Mean(h(mu, t) ** 2)))
    ),
    "in a product": lambda: shallow({}, W0, w, out=READ * Mean(h(mu, t) ** 2) / sqrt(1 + Mean(w.symbol**2))),
    "of weights in a field": lambda: shallow({q(mu, t): h(mu, t) * (1 + tanh(READ))}, W0, w),
}
DEEP: dict[str, Callable[[], Program]] = {"layers": layered, "positions": positions}

RNG = np.random.default_rng(8)
INPUTS = RNG.standard_normal((2, 4))
KERNEL, LABELS = INPUTS @ INPUTS.T / 4, np.array([1.0, -0.5])
VALUES = {"eta": 0.1, "gamma0": 1.0, "P": 2}


@pytest.mark.parametrize("name", AVERAGES | DEEP)
def test_gradients_pass_through_averages_inside_functions(name: str) -> None:
    program = (AVERAGES | DEEP)[name]()
    assert check_gradients(program) == []
    assert program.map(lambda e: e).definitions == program.definitions
    for d in program.definitions:  # what a matrix or an average is taken of holds no average
        assert not any(e.args[-1].has(Mean) for e in d.rhs.atoms(Product, Mean))


@pytest.mark.parametrize(
    "name", ["by a matrix", "in an average", "in a number", "in a product", "of weights in a field"]
)
def test_updates_through_averages_are_differences_of_the_loss(name: str) -> None:
    program = AVERAGES[name]()
    same: dict[str, Any] = {"width": 3, "steps": 2, "seeds": 1, "values": VALUES}
    same["data"] = {"x": INPUTS, "y": LABELS}
    run = simulate_program(program, **same)["f"].mean
    by_loss = simulate_program(program, **same, loss=program.loss, parametrization=program.descent)["f"].mean
    assert np.abs(run[-1] - run[0]).max() > 1e-3
    np.testing.assert_allclose(run, by_loss, rtol=0, atol=1e-8)


def test_both_routes_derive_an_average_by_a_matrix() -> None:
    assert check_routes(AVERAGES["by a matrix"]()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGES | DEEP)
def test_both_routes_derive_averages_inside_functions(name: str) -> None:
    assert check_routes((AVERAGES | DEEP)[name]()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGES)
def test_networks_follow_the_theory_of_averages_inside_functions(name: str) -> None:
    program = AVERAGES[name]()
    data = {"K_x": KERNEL, "y": LABELS}
    theory = mean_field(program)
    solved = evaluate(theory, steps=3, values=VALUES, data=data, samples=2**11, replicas=8)
    runs = [
        simulate_program(
            program, width=n, steps=2, seeds=k, values=VALUES, data={"x": INPUTS, "y": LABELS}, seed=n
        )["f"]
        for n, k in ((64, 400), (128, 200))
    ]
    error = np.sqrt(4 * runs[1].stderr ** 2 + runs[0].stderr ** 2 + solved.stderr("f") ** 2)
    gap = solved.value("f") - (2 * runs[1].mean - runs[0].mean)
    assert excess(in_errors(gap, error), dof=7) <= 1


def test_a_number_in_a_denominator_is_no_average_that_does_not_exist() -> None:
    """It is the same for all units, and not zero for some of them."""
    assert singularities(mean_field(AVERAGES["by a matrix"]())) == ()


def gated(*, named: bool = False) -> Program:
    """Return a network whose backward pass and updates have an average as a factor of random weights."""
    layer, scaled = Field("k", units), Field("q", units)
    gain = {m(mu, t): Mean(h(mu, t) ** 2)} if named else {}
    forward = INPUT | gain | {layer(mu, t): W @ h(mu, t), scaled(mu, t): layer(mu, t) * Mean(h(mu, t) ** 2)}
    forward |= {f(mu, t): Mean(w.symbol * scaled(mu, t)) / gamma0}
    net = Network("gated", (h, layer, scaled), forward, (W0, W, w), given=(x,))
    return net.train(SQUARE, GradientDescent(eta))


@pytest.mark.parametrize(("named", "name"), [(False, "average_1"), (True, "m")])
def test_an_average_that_multiplies_weights_is_one_number(named: bool, name: str) -> None:
    """It has the name that the user gave to the same average, and one name in definitions and updates."""
    program = gated(named=named)
    assert check_gradients(program) == []
    number = Function(name)
    means = {d.lhs: d.rhs for d in program.definitions if isinstance(d.rhs, Mean)}
    assert means == {number(mu, t): Mean(h(mu, t) ** 2)}
    (update,) = (v.update for v in program.trained() if v.name == "W")
    assert update.coefficient.has(number(alpha, t))
    assert not update.coefficient.has(Mean)


def test_an_average_that_multiplies_weights_is_a_number_of_programs_written_line_by_line() -> None:
    derived = gated()
    inline = {Function("average_1")(k, t): Mean(h(k, t) ** 2) for k in (mu, alpha)}
    lines = [replace(d, rhs=d.rhs.xreplace(inline)) for d in derived.definitions if d.name != "average_1"]
    matrices = (replace(v, update=v.update.map(lambda e: e.xreplace(inline))) for v in derived.matrices)
    scalars = tuple(x for x in derived.scalars if x != "average_1")
    assert replace(derived, definitions=tuple(lines), matrices=tuple(matrices), scalars=scalars) == derived


def test_an_average_that_multiplies_weights_has_a_number_without_training() -> None:
    line = Definition(q(mu, t), Mean(h(mu, t) ** 2) * (W @ h(mu, t)), (IndexRange(mu, S.One, P),))
    program = Program(
        "by hand",
        GradientDescent(eta),
        (h, q),
        (Definition(h(mu, t), W0 @ x(mu), line.ranges), line),
        (W0, W),
        given=(x,),
    )
    assert program.scalars == ("average_1",)
    assert mean_field(program).equation("q").terms[0].coefficient == Function("average_1")(mu, t)


def test_an_average_has_the_indices_that_it_contains_as_numbers() -> None:
    """The index was dropped, and training then said that it has no range."""
    runs = IndexRange(r, S.One, S(2))
    lines = {
        **INPUT,
        q(mu, r, t): Mean(sin(r * h(mu, t))) * (W @ h(mu, t)),
        f(mu, r, t): Mean(w.symbol * tanh(q(mu, r, t))) / gamma0,
    }
    net = Network("numbers", (h, q), lines, (W, w), (W0,), given=(x,), ranges=(runs,))
    program = net.train((y(mu, r) - f(mu, r, t)) ** 2 / 2, GradientDescent(eta))
    assert str(program.definitions[0].lhs) == "average_1(mu, r, t)"
    assert not check_routes(program)


def test_factors_of_sums_of_products_are_factors_of_their_terms() -> None:
    members = IndexRange(r, S.One, S(2))
    family = GaussianMatrix("W", units, pixels, others=(members,))

    def trained(first: Expr) -> Program:
        """Return the program of a network whose layer is this sum."""
        lines = {h(mu, t): first, f(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0}
        net = Network("sum", (h,), lines, (family, w), given=(x,), ranges=(members,))
        return net.train(SQUARE, GradientDescent(eta))

    product, limits = family(r) @ x(mu), (r, 1, 2)
    assert trained(2 * Sum(product, limits)) == trained(Sum(2 * product, limits))


def test_an_average_that_multiplies_weights_stands_beside_numbers_of_python() -> None:
    lines = (Definition(q(t), v.symbol), Definition(h(t), Mean(q(t) ** 2) * w.symbol))
    trained = TrainedVector(w, Along(1, q(t)), GradientDescent(eta))  # type: ignore[arg-type]
    program = Program("numbers", GradientDescent(eta), (h, q), lines, vectors=(v, trained))
    assert program.scalars == ("average_1",)


def test_weights_that_start_at_zero_have_one_theory() -> None:
    program = shallow({}, W0, zero, out=Mean(zero.symbol * tanh(h(mu, t))))
    assert check_routes(program) == []


# -- steps: the derivative of sign and Heaviside is zero where a unit can be ---------------------------------


def test_no_gradient_passes_through_a_step() -> None:
    gated = shallow({q(mu, t): W @ Heaviside(h(mu, t))}, W0, W, w, out=Mean(w.symbol * h(mu, t) * q(mu, t)))
    assert not any(d.rhs.has(DiracDelta) for d in gated.definitions)
    assert check_gradients(gated) == []
    given = {"values": VALUES, "data": {"K_x": KERNEL, "y": LABELS}}
    solved = evaluate(mean_field(gated), steps=2, samples=64, replicas=2, **given)  # type: ignore[arg-type]
    assert np.isfinite(solved.value("f")).all()


def test_weights_before_a_step_are_frozen() -> None:
    lines = {q(mu, t): W @ sign(h(mu, t))}
    with pytest.raises(
        ProgramError, match=r"by W0 is zero, because .*step functions.*list it among the frozen"
    ):
        shallow(lines, W0, W, w)
    program = shallow(lines, W, w, frozen=(W0,))
    assert [v.name for v in program.trained()] == ["W", "w"]
    assert check_routes(program) == []


# -- weights behind a matrix ---------------------------------------------------------------------------------


def test_trained_weights_behind_a_matrix_need_a_field() -> None:
    read = Mean(q(mu, t) * tanh(h(mu, t)))
    with pytest.raises(ProgramError, match="applied to the trained weights w; define a field that is w"):
        shallow({q(mu, t): h(mu, t) * (A.T @ w.symbol)}, W0, w, frozen=(A,), out=read)
    v = Field("v", units)
    forward = INPUT | {
        v(t): w.symbol,
        q(mu, t): h(mu, t) * (A.T @ v(t)),
        f(mu, t): read / gamma0,
    }
    net = Network("behind a matrix", (h, v, q), forward, (W0, w), (A,), given=(x,))
    assert check_gradients(net.train(SQUARE, GradientDescent(eta))) == []


phi = Function("phi")
INSIDE: dict[str, Callable[[Expr], Expr]] = {"twice": lambda e: 2 * e, "normal": normal}


@pytest.mark.parametrize("name", INSIDE)
def test_an_activation_may_stay_open_around_an_expression(name: str) -> None:
    program = shallow({q(mu, t): W @ phi(INSIDE[name](h(mu, t)))}, W0, W, w)
    assert program.constants == ("y",)
    assert check_gradients(program) == []


@pytest.mark.parametrize("name", INSIDE)
def test_an_open_activation_trains_as_the_function_in_its_place(name: str) -> None:
    chosen = {"width": 8, "steps": 2, "seeds": 2, "seed": 3, "data": {"x": INPUTS, "y": LABELS}, "wanted": {}}
    left, right = (
        simulate_program(
            shallow({q(mu, t): W @ act(INSIDE[name](h(mu, t)))}, W0, W, w), values=VALUES | more, **chosen
        )
        for act, more in ((phi, {"phi": sin}), (sin, {}))
    )
    np.testing.assert_allclose(left["f"].mean, right["f"].mean, rtol=1e-12)


@pytest.mark.parametrize("name", INSIDE)
def test_both_routes_derive_an_open_activation_around_an_expression(name: str) -> None:
    assert check_routes(shallow({q(mu, t): W @ phi(INSIDE[name](h(mu, t)))}, W0, W, w)) == []


def test_a_sum_over_the_index_of_the_field_it_multiplies() -> None:
    """In the backward pass the sum is beside the index, so that it runs over another letter."""
    i, units, pixels = Symbol("i", integer=True), Population("units"), Population("pixels", given=True)
    x, b, pull, near = GivenVector("x", pixels, "K_x"), Field("b", units), Function("pull"), Function("near")
    mean = Mean(Sum(pull(i) * b(mu, i, t), (i, 1, 2)) ** 2)
    ranges, A = (IndexRange(i, S.One, S(2)),), GaussianMatrix("A", units, pixels)
    forward = {b(mu, i, t): A @ x(mu, i), near(mu, t): mean}
    network = Network("sum", (b,), forward, weights=(A,), given=(x,), ranges=ranges)
    program = network.train(near(mu, t) ** 2, GradientDescent(eta))
    lines = [d for d in program.definitions if d.name not in program.scalars]
    sums = [(d.lhs, v.name) for d in lines for x in d.rhs.atoms(Sum) for v, *_ in x.limits]
    assert sums
    assert not any(name in {y.name for y in lhs.free_symbols} for lhs, name in sums)
