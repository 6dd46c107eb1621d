"""Random forward passes against their own gradients, by both routes, and against wide networks.

A network is a list of words.  It is read twice: as a program, whose backward pass the engine finds, and as an
array computation that is trained by complex steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Add, Expr, Function, exp, sqrt, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.theory.routes import check_routes
from numerics.simulation import simulate_program
from tests.derive.program.test_forward import INPUTS, KERNEL, LABELS, VALUES, D, N, read, squared, trained
from tests.numerics.theories.programs import compare_with_networks

OPERATIONS = ("matrix", "frozen", "again", "transposed", "product", "skip", "norm", "mean")
SHAPES = ("linear", "tanh", "sigmoid", "sum")
Word = tuple[str, int, int, str]
SYMBOLS = SimpleNamespace(exp=exp, sqrt=sqrt, tanh=tanh)
networks = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 3), st.sampled_from(SHAPES)),
    min_size=1,
    max_size=4,
)


def bent(shape: str, z: Any, lib: Any) -> Any:
    """An activation of an expression or of an array; ``lib`` has the functions."""
    if shape == "sigmoid":
        return 1 / (1 + lib.exp(-z))
    return {"linear": z, "tanh": lib.tanh(z), "sum": z + lib.tanh(z) / 2}[shape]


def matrices(words: Sequence[Word]) -> list[tuple[int, bool]]:
    """For each word the matrix that it applies and whether transposed; matrix n is new with word n."""
    found: list[tuple[int, bool]] = []
    for n, (word, _, j, _) in enumerate(words, start=1):
        known = [k for k, (m, _) in enumerate(found, start=1) if m == k]
        old = word in ("again", "transposed") and bool(known)
        found.append((known[j % len(known)] if old else n, word == "transposed" and old))
        if word not in OPERATIONS[:4]:
            found[-1] = (0, False)
    return found


def computed(
    words: Sequence[Word],
    lib: Any,
    values: list[Any],
    apply: Callable[[int, bool, Any], Any],
    mean: Callable[[Any], Any],
    name: Callable[[int, Any], Any],
) -> list[Any]:
    """The values that nothing later uses; ``values`` holds the first, ``name`` gives a later one a name.

    Factors are bounded, so that networks train at one learning rate.
    """
    unread = [0]
    for n, (word, pair) in enumerate(zip(words, matrices(words), strict=True), start=1):
        operation, i, j, shape = word
        a, b = unread[i % len(unread)], j % len(values)
        one, two, used = values[a], lib.tanh(bent(shape, values[b], lib)), {a, b}
        if operation in OPERATIONS[:4]:
            value, used = apply(*pair, bent(shape, one, lib)), {a}
        elif operation == "norm":
            value, used = bent(shape, one, lib) / lib.sqrt(1 + mean(one**2)), {a}
        elif operation == "mean":
            value = one + two * mean(two * lib.tanh(one))
        else:
            value = one * two if operation == "product" else one + two / 2
        values.append(name(n, value))
        unread = [x for x in unread if x not in used] + [n]
    return [values[x] for x in unread]


def program(words: Sequence[Word]) -> Program:
    units, pixels = Population("units"), Population("input", given=True)
    x, w = GivenVector("x", pixels, "K_x"), GaussianVector("w", units)
    W0 = GaussianMatrix("W0", units, pixels)
    fields = [Field(f"h{n}", units) for n in range(len(words) + 1)]
    Ws = {k: GaussianMatrix(f"W{k}", units, units) for k, _ in matrices(words) if k}
    forward: dict[Expr, Expr] = {fields[0](mu, t): W0 @ x(mu)}

    def apply(k: int, transposed: bool, v: Expr) -> Expr:
        return (Ws[k].T if transposed else Ws[k]) @ v

    def name(n: int, value: Expr) -> Expr:
        forward[fields[n](mu, t)] = value
        return fields[n](mu, t)

    last = computed(words, SYMBOLS, [fields[0](mu, t)], apply, Mean, name)
    f, y = Function("f"), Function("y")
    forward[f(mu, t)] = Mean(w.symbol * Add(*last)) / gamma0
    fixed = {k for k in Ws if words[k - 1][0] == "frozen"}
    net = Network(
        "random",
        tuple(fields),
        forward,
        (W0, *(W for k, W in Ws.items() if k not in fixed), w),
        tuple(Ws[k] for k in fixed),
        (x,),
    )
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def outputs(words: Sequence[Word], weights: dict[str, Any]) -> Any:
    def apply(k: int, transposed: bool, v: Any) -> Any:
        W = weights[f"W{k}"]
        return v @ (W if transposed else W.T) / np.sqrt(N)

    first = INPUTS @ weights["W0"].T / np.sqrt(D)
    last = computed(words, np, [first], apply, lambda v: v.mean(axis=1, keepdims=True), lambda n, v: v)
    return read(weights, sum(last))


def gap(words: Sequence[Word]) -> Any:
    """Outputs of the program as it is simulated, minus those of a network trained by complex steps."""
    rng = np.random.default_rng(5)
    names = sorted({f"W{k}" for k, _ in matrices(words) if k})
    weights = {"W0": rng.standard_normal((N, D)), **{n: rng.standard_normal((N, N)) for n in names}}
    weights["w"] = rng.standard_normal(N)
    applied = {n: v / np.sqrt(v.shape[-1]) if v.ndim == 2 else v for n, v in weights.items()}
    run = simulate_program(
        program(words),
        width=N,
        steps=2,
        seeds=1,
        values=VALUES,
        data={"x": INPUTS, "y": LABELS},
        initial=applied,
    )
    frozen = tuple(n for n in names if words[int(n[1:]) - 1][0] == "frozen")
    expected = trained(lambda w: outputs(words, w), squared, weights, frozen)
    return (run["f"].mean - expected) / np.maximum(1, np.abs(expected))


@settings(max_examples=5, deadline=None, derandomize=True)
@given(networks)
def test_any_network_goes_down_its_gradient(words: list[Word]) -> None:
    assert np.abs(gap(words)).max() < 1e-10


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(networks)
def test_both_routes_derive_any_network(words: list[Word]) -> None:
    assert np.abs(gap(words)).max() < 1e-10
    assert check_routes(program(words)) == []


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True)  # a search would find chance
@given(networks)
def test_wide_networks_follow_the_theory_of_any(words: list[Word]) -> None:
    found = compare_with_networks(
        program(words), VALUES, KERNEL, steps=2, widths=(60, 120), seeds=(200, 100), samples=2**12
    )
    assert found.agrees, found
