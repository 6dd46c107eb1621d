"""Sums whose limits hold an index, as a causal mask: their gradients are sums over the transposed domain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, Max, Min, S, Sum, Symbol, exp, floor, tanh

from derive.program import (
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    P,
    Population,
    Program,
    ProgramError,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.domains import hull, summed
from derive.program.gradient_check import check_gradients
from derive.theory import mean_field
from derive.theory.routes import check_routes
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.chance import excess, in_errors

T = 3
units, pixels = Population("units"), Population("input", given=True)
x = GivenVector("x", pixels, "K_x")
h, v, o = (Field(n, units) for n in "hvo")
p, r, q, k = (Symbol(n, integer=True) for n in "prqk")
W0, V, w = GaussianMatrix("W0", units, pixels), GaussianMatrix("V", units, units), GaussianVector("w", units)
a, b, c, f, y = (Function(n) for n in "abcfy")
POSITIONS = (IndexRange(p, S.One, S(T)), IndexRange(r, S.One, S(T)))
SQUARE = (y(mu, p) - f(mu, p, t)) ** 2 / 2

INPUT: dict[Expr, Expr] = {h(mu, p, t): W0 @ x(mu, p)}
SCORES: dict[Expr, Expr] = {a(mu, p, r, t): Mean(h(mu, p, t) * h(mu, r, t))}
OUTPUT: dict[Expr, Expr] = {f(mu, p, t): Mean(w.symbol * o(mu, p, t)) / gamma0}


def trained(forward: Any, fields: Any, weights: Any, loss: Expr = SQUARE, together: bool = True) -> Program:
    net = Network("masked", fields, forward, weights, given=(x,), ranges=POSITIONS)
    return net.train(loss, GradientDescent(eta), together=together)


def attention(*limits: Any) -> Program:
    """Return scores that are averages over units, and values with a separate matrix."""
    values = {v(mu, p, t): V @ tanh(h(mu, p, t)), o(mu, p, t): Sum(a(mu, p, r, t) * v(mu, r, t), limits)}
    return trained(INPUT | SCORES | values | OUTPUT, (h, v, o), (W0, V, w))


def softmax() -> Program:
    """Return scores that are normalised over earlier positions."""
    s, total = Function("s"), Sum(exp(Function("s")(mu, p, q, t)), (q, 1, p))
    scores = {s(mu, p, r, t): SCORES[a(mu, p, r, t)], a(mu, p, r, t): exp(s(mu, p, r, t)) / total}
    mixed = {o(mu, p, t): Sum(a(mu, p, r, t) * h(mu, r, t), (r, 1, p))}
    return trained(INPUT | scores | mixed | OUTPUT, (h, o), (W0, w))


def mixed(e: Expr) -> Program:
    """Return a program with ``o`` given in numbers ``a`` of each pair of positions and fields ``h``."""
    uses_scores = e.has(a)
    return trained(INPUT | (SCORES if uses_scores else {}) | {o(mu, p, t): e} | OUTPUT, (h, o), (W0, w))


def readouts() -> Program:
    """Return positions that read all earlier ones, with a readout for each."""
    each = GaussianVector("w", units, indices=(IndexRange(r, S.One, S(T)),))
    out = {f(mu, p, t): Sum(Mean(each(r) * h(mu, r, t)), (r, 1, p)) / gamma0}
    return trained(INPUT | out, (h,), (W0, each))


def differences() -> Program:
    """Return differences of neighbours, which are one fewer than positions."""
    samples, every = IndexRange(mu, S.One, P), POSITIONS[0]
    lines = (
        Definition(h(mu, p, t), W0 @ x(mu, p), (samples, every)),
        Definition(o(mu, p, t), h(mu, p, t) - h(mu, p - 1, t), (samples, IndexRange(p, S(2), S(T)))),
        Definition(f(mu, t), Sum(Mean(w.symbol * tanh(o(mu, p, t))), (p, 2, T)) / gamma0, (samples,)),
    )
    return trained(lines, (h, o), (W0, w), (y(mu) - f(mu, t)) ** 2 / 2, together=False)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "causal attention": lambda: attention(r, 1, p),
    "strictly causal": lambda: attention(r, 1, p - 1),
    "anticausal": lambda: attention(r, p, T),
    "window": lambda: attention(r, Max(1, p - 1), Min(T, p + 1)),
    "causal softmax": softmax,
    "causal convolution": lambda: mixed(Sum(c(k) * h(mu, p - k, t), (k, 0, p - 1))),
    "two sums": lambda: mixed(Sum(a(mu, p, r, t) * h(mu, q, t) * c(q), (q, 1, r), (r, 1, p))),
    "counted": lambda: mixed(Sum(a(mu, p, p, t) * h(mu, r, t), (q, 1, r), (r, 1, p))),
    "reversed": lambda: mixed(h(mu, p, t) + Sum(tanh(h(mu, T + 1 - r, t)), (r, 1, p))),
    "readouts of earlier positions": readouts,
    "differences": differences,
}
ONE_TARGET = ("differences",)
WEIGHED = ("causal convolution", "two sums")

RNG = np.random.default_rng(3)
INPUTS = RNG.standard_normal((1, T, 4))
KERNEL = np.einsum("akd,bld->akbl", INPUTS, INPUTS) / 4
VALUES = {"eta": 0.2, "gamma0": 1.0, "P": 1}


def data(name: str) -> dict[str, Any]:
    """Return targets and weights."""
    targets = np.array([0.7]) if name in ONE_TARGET else np.array([[0.8, -0.6, 0.5]])
    return {"y": targets} | ({"c": np.array([1.0, 0.5, -0.7])} if name in WEIGHED else {})


@pytest.mark.parametrize("name", PROGRAMS)
def test_updates_are_differences_of_the_loss(name: str) -> None:
    program = PROGRAMS[name]()
    assert check_gradients(program) == []
    slow = VALUES | {"eta": 0.01}  # so narrow networks take no longer steps
    same = {"width": 4, "steps": 2, "seeds": 1, "values": slow, "data": data(name) | {"x": INPUTS}}
    run = simulate_program(program, **same)
    by_loss = simulate_program(program, **same, loss=program.loss, parametrization=program.descent)
    assert np.abs(run["f"].mean[-1] - run["f"].mean[0]).max() > 1e-3  # it learns something
    size = np.maximum(1, np.abs(run["f"].mean))  # central differences are right to 1e-10
    assert (np.abs(run["f"].mean - by_loss["f"].mean) / size).max() < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_both_routes_derive_it_and_networks_follow(name: str) -> None:
    program = PROGRAMS[name]()
    assert check_routes(program) == []
    solved = evaluate(
        mean_field(program),
        steps=3,
        values=VALUES,
        data=data(name) | {"K_x": KERNEL},
        samples=2**11,
        replicas=8,
    )
    runs = [
        simulate_program(
            program, width=n, steps=2, seeds=seeds, values=VALUES, data=data(name) | {"x": INPUTS}, seed=n
        )["f"]
        for n, seeds in ((64, 400), (128, 200))
    ]
    limit = 2 * runs[1].mean - runs[0].mean
    error = np.sqrt(4 * runs[1].stderr ** 2 + runs[0].stderr ** 2 + solved.stderr("f") ** 2)
    assert excess(in_errors(solved.value("f") - limit, error), dof=7) <= 1


def test_both_routes_derive_causal_attention() -> None:
    assert check_routes(attention(r, 1, p)) == []


def right(program: Program, name: str) -> Expr:
    return next(d.rhs for d in program.definitions if d.name == name)


def test_a_causal_mask_is_transposed() -> None:
    """The value at r is read at all p >= r."""
    program, later = attention(r, 1, p), Symbol("p_", integer=True)
    assert right(program, "g_v") == Sum(a(mu, later, p, t) * Function("g_o")(mu, later, t), (later, p, T))
    assert {s.limits[0][1:] for s in right(program, "g").atoms(Sum)} == {(S.One, p), (p, S(T))}


def test_a_sum_over_the_whole_range_has_no_conditions() -> None:
    g_a = right(attention(r, 1, T), "g_a")
    assert g_a == Mean(Function("g_o")(mu, p, t) * v(mu, r, t))


def test_a_family_that_is_used_in_parts_is_updated_in_parts() -> None:
    """Each member by its own use, though they are one family."""
    layer, samples = Population("layer"), IndexRange(mu, S.One, P)
    inner = Field("h", layer, layered=True)
    first = GaussianMatrix("W0", layer.at(1), pixels)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, S(3)))
    top = GaussianVector("w", layer.at(4))
    below = IndexRange(ell, S.One, S(2))
    lines = (
        Definition(inner(1, mu, t), first @ x(mu), (samples,)),
        Definition(inner(ell + 1, mu, t), W(ell) @ tanh(inner(ell, mu, t)), (samples, below)),
        Definition(inner(4, mu, t), W(3) @ inner(3, mu, t) ** 2, (samples,)),
        Definition(f(mu, t), Mean(top.symbol * inner(4, mu, t)) / gamma0, (samples,)),
    )
    net = Network("parts", (inner,), lines, (first, W, top), given=(x,), depth=S(4))
    assert check_gradients(net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))) == []


REFUSED: dict[str, tuple[Callable[[], Program], str]] = {
    "a limit that is not a shift": (
        lambda: mixed(Sum(h(mu, r, t), (r, 1, floor(p / 2)))),
        r"o\(mu, p, t\): its gradient needs a sum over the values of p_ .*floor.*, in which p_ must have",
    ),
    "a limit with a factor": (
        lambda: mixed(Sum(h(mu, r, t), (r, 1, Min(2 * p, T)))),
        "in which p_ must have the factor 1 or -1; let limits of sums",
    ),
    "a union of ranges": (
        lambda: mixed(Sum(h(mu, r, t), (r, Min(p, 2), T))),
        r"the sum from Min\(2, p\) to 3 has a minimum in its lower .* write it as several sums",
    ),
    "part of a ring": (
        lambda: mixed(Sum(h(mu, p - k, t), (k, 0, p))),
        "a limit of the index k contains an index that is shifted in h.* and periodic",
    ),
    "outputs that are mixed": (
        lambda: trained(
            INPUT | {f(mu, p, t): Sum(Mean(w.symbol * h(mu, r, t)), (r, 1, p)) / gamma0},
            (h,),
            (W0, w),
            together=False,
        ),
        "take the gradient of the loss, together=True",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_transposed_sum_is_refused(name: str) -> None:
    build, reason = REFUSED[name]
    with pytest.raises(ProgramError, match=reason):
        build()


def written_out(total: Sum) -> list[tuple[int, ...]]:
    """Return the arguments of the summand, term by term.

    A range that ends before it begins is empty.
    """
    *inner, (index, lower, upper) = total.limits
    found: list[tuple[int, ...]] = []
    for at in range(int(lower), int(upper) + 1):
        body = total.function.subs(index, at)
        rest = [(i, low.subs(index, at), high.subs(index, at)) for i, low, high in inner]
        found += written_out(Sum(body, *rest)) if rest else [tuple(int(i) for i in body.args)]
    return found


def test_domains_are_those_of_the_integers_in_them() -> None:
    """Solved limits are compared with all integer points, for every value of the other indices."""
    i, j, n = (Symbol(name, integer=True) for name in "ijn")
    g = Function("g")
    domain = [i - 1, j - i + 1, j - 1, n - j, 4 - i]  # 1 <= i <= min(j + 1, 4), 1 <= j <= n
    for order in ((i, j), (j, i)):
        total, conditions = summed(g(i, j), order, domain, [], [n - 1, 6 - n], "")
        for size in range(1, 6):
            points = {(x, z) for x in range(1, 8) for z in range(1, 8)}
            inside = {(x, z) for x, z in points if x <= min(z + 1, 4) and z <= size}
            assert sorted(written_out(total.subs(n, size))) == sorted(inside)
        assert conditions == []
    assert hull(i, [j, n], [*domain, 6 - n], "") == (1, 4)
