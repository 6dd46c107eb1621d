"""Networks with a new sample at every step, as in (N.10), against the derived theory at gamma0 = 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sympy import Expr, Function, S, tanh

from derive.calculus.symbols import ell, t
from derive.program import (
    Along,
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Outer,
    Population,
    Program,
    TrainedMatrix,
    TrainedVector,
)
from derive.theory import Theory
from tests.ledger.evidence.base import Evidence, conclude
from tests.ledger.evidence.edited import Experiment, off, right


def one_pass() -> Program:
    """Return a program with tanh layers and one input ``x(t)`` with target ``y(t)`` at step t.

    gamma0 and the rate are 1, and ``chi`` is the error with the sign of Tensor Programs, f - y.
    """
    rule, layer, inputs = GradientDescent(S.One), Population("layer"), Population("input", given=True)
    h, z, g = (Field(n, layer, layered=True) for n in "hzg")
    x = GivenVector("x", inputs, "K_x")
    f, y, chi = (Function(n) for n in ("f", "y", "chi"))
    inner, hidden = IndexRange(ell, S.One, L - 1), IndexRange(ell, S.One, L)
    first = GaussianMatrix("U", layer.at(1), inputs)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=inner, responses=("A", "B"))
    w = GaussianVector("w", layer.at(L))
    features = tanh(h(ell, t))
    return Program(
        name="one pass",
        rule=rule,
        fields=(h, z, g),
        definitions=(
            Definition(h(1, t), first @ x(t)),
            Definition(h(ell + 1, t), W(ell) @ features, (inner,)),
            Definition(f(t), Mean(z(L, t) * tanh(h(L, t)))),
            Definition(chi(t), f(t) - y(t)),
            Definition(z(L, t), w.symbol),
            Definition(z(ell, t), W(ell).T @ g(ell + 1, t), (inner,)),
            Definition(g(ell, t), (1 - features**2) * z(ell, t), (hidden,)),
        ),
        matrices=(
            TrainedMatrix(first, Outer(-chi(t), g(1, t), x(t)), rule),
            TrainedMatrix(W, Outer(-chi(t), g(ell + 1, t), features), rule),
        ),
        vectors=(TrainedVector(w, Along(-chi(t), tanh(h(L, t))), rule),),
        given=(x,),
        scalars=("f", "chi"),
        constants=("y",),
        notation={features: "Phi", g(ell, t): "G"},
    )


TRAINED = Experiment(
    one_pass().at_depth(3),
    {},
    {
        "x": np.array([[1.2, -0.4, 1.3], [0.2, 0.9, -0.8], [0.7, 1.1, 0.3], [-1.0, 0.3, 0.9]]),
        "y": np.array([1.0, -0.6, 0.5, 0.3]),
    },
    width=150,
    networks=120,
)


def one_pass_networks() -> Evidence:
    """Check (N.10): each of its terms, in networks of three hidden layers on four samples."""
    measured, theory = TRAINED.measured(), TRAINED.theory()
    return conclude(
        "tensor_programs:one_pass_networks",
        "Networks that see each sample once agree with the derived theory at gamma0 = 1; without the dotted "
        "parts, or with the other sign of chi, they do not.",
        right("one pass, L = 3", TRAINED, measured),
        off("no dotted parts", TRAINED, measured, _without(theory, "response")),
        off("chi for -chi", TRAINED, measured, _turned(theory)),
    )


def _without(theory: Theory, kind: str) -> Theory:
    """Return the theory without the terms of one kind."""
    return replace(
        theory,
        equations=tuple(
            replace(e, terms=tuple(x for x in e.terms if x.kind != kind)) for e in theory.equations
        ),
    )


def _turned(theory: Theory) -> Theory:
    """Return the theory with the opposite sign of the error in every memory term."""
    chi = Function("chi")

    def turned(e: Expr) -> Expr:
        return e.replace(chi, lambda time: -chi(time))

    return replace(
        theory,
        equations=tuple(
            replace(e, terms=tuple(x.rewrite(turned) if x.kind == "memory" else x for x in e.terms))
            for e in theory.equations
        ),
    )
