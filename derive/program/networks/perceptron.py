"""One layer of weights on random data, all samples at every step: with a teacher, or on a mixture.

Features are N units, samples ``ratio`` N; the data are one Gaussian matrix ``Z``, samples times features with
entries N(0, 1/N), used forwards for the predictions and backwards for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sympy import Dummy, Expr, Function, S, Symbol, exp, log, sign, sqrt, sympify

from derive.errors import ProgramError
from derive.program.networks.activations import activation_of
from derive.program.networks.network import with_noise
from derive.program.networks.rules import Number, rule_of
from derive.program.program import Definition, Program
from derive.program.training import Along, TrainedVector, TrainingRule
from derive.program.words import Field, GaussianMatrix, GaussianVector, Mean, Population, t

alpha, rho = Symbol("alpha", positive=True), Symbol("rho", positive=True)

Loss = Callable[[Expr, Expr], Expr]

LOSSES: dict[str, Loss] = {
    "squared": lambda h, y: (h - y) ** 2 / 2,
    "logistic": lambda h, y: log(1 + exp(-h * y)),
}


def perceptron(
    task: str = "teacher",
    loss: str | Any = "squared",
    rule: str | TrainingRule = "gd",
    *,
    ratio: Number = alpha,
    teacher: Any = None,
    noise: Number = 0,
    signal: Number = rho,
    init_variance: Number = 1,
    weight_decay: Number = 0,
    momentum: Number = 0,
    temperature: Number = 0,
) -> Program:
    """Full-batch descent of ``sum_i loss(h_i, y_i)`` with ``h = X v``, X samples times features.

    A step is ``v <- v - eta sum_i X_i loss'(h_i, y_i)``, where ``loss'`` is the slope in its first argument.

    - ``task="teacher"``: ``X = Z`` and ``y = teacher(Z v_star) + sqrt(noise) eps``, ``v_star`` and ``eps``
      N(0, 1). ``teacher`` is a function of an expression (``sign``, say); the identity if there is none.
    - ``task="mixture"``: ``X_i = y_i m/N + Z_i`` with labels y = +1 or -1, equally likely, and a mean m whose
      entries are N(0, ``signal``); ``h = y M + Z v`` with the overlap ``M(t) = mean(m v)``.

    ``loss`` is ``"squared"``, ``"logistic"`` or a function of prediction and label (an undefined SymPy
    function too). ``ratio`` is the number of samples over N; ``rule`` and the rest as in
    :func:`.training_rule`, with the summed loss.  Raises :class:`ProgramError` for an unknown task or loss.

    >>> [str(d.lhs) for d in perceptron().causal_order()]
    ['v(t)', 'h(t)', 'v_star(t)', 'h_star(t)', 'y(t)', 'Delta(t)', 'q(t)']
    """
    if task not in ("teacher", "mixture"):
        raise ProgramError(f"task = {task!r}: must be 'teacher' or 'mixture'")
    if task == "mixture" and (teacher is not None or noise != 0):
        raise ProgramError("teacher and noise belong to task = 'teacher'; the labels of a mixture are signs")
    rule = rule_of(rule, "sum", weight_decay=weight_decay, momentum=momentum, temperature=temperature)
    size = sympify(ratio)
    features, samples = Population("features"), Population("samples", size)
    v, q = Field("v", features), Field("q", features)
    h, y, Delta = (Field(n, samples) for n in ("h", "y", "Delta"))
    Z = GaussianMatrix("Z", samples, features)
    w = GaussianVector("w", features, sympify(init_variance), source="w")
    trained = TrainedVector(w, Along(S.One, q(t)), with_noise(rule, w.variance, "w"))
    force = -_slope(loss)(h(t), y(t))
    world = (
        _teacher(Z, y, teacher, sympify(noise)) if task == "teacher" else _mixture(y, Delta, v, signal, size)
    )
    return Program(
        name=f"perceptron on a {task}" if task == "mixture" else "perceptron with a teacher",
        rule=rule,
        fields=(v, h, y, Delta, q, *world.fields),
        definitions=(
            Definition(v(t), w.symbol),
            Definition(h(t), Z @ v(t) + world.prediction),
            *world.definitions,
            Definition(Delta(t), force),
            Definition(q(t), Z.T @ Delta(t) + world.gradient),
        ),
        matrices=(Z,),
        vectors=(trained, *world.vectors),
        scalars=world.scalars,
        notation={v(t): "C_v", Delta(t): "C_Delta"},
    )


@dataclass(frozen=True)
class _World:
    """Where labels come from, and what their correlation with the inputs adds to predictions and gradient."""

    fields: tuple[Field, ...]
    definitions: tuple[Definition, ...]
    vectors: tuple[GaussianVector, ...]
    scalars: tuple[str, ...] = ()
    prediction: Expr = S.Zero
    gradient: Expr = S.Zero


def _teacher(Z: GaussianMatrix, y: Field, teacher: Any, noise: Expr) -> _World:
    v_star, h_star = Field("v_star", Z.cols), Field("h_star", Z.rows)
    start, eps = (
        GaussianVector("w_star", Z.cols, source="w_star"),
        GaussianVector("eps", Z.rows, source="eps"),
    )
    answer = h_star(t) if teacher is None else activation_of(teacher).phi(h_star(t))
    label = answer + (sqrt(noise) * eps.symbol if noise != 0 else S.Zero)
    return _World(
        (v_star, h_star),
        (Definition(v_star(t), start.symbol), Definition(h_star(t), Z @ v_star(t)), Definition(y(t), label)),
        (start, *((eps,) if noise != 0 else ())),
    )


def _mixture(y: Field, Delta: Field, v: Field, signal: Number, size: Expr) -> _World:
    m, side = Field("m", v.population), Field("xi", y.population)
    mean = GaussianVector("m_0", v.population, sympify(signal), source="m_0")
    coin = GaussianVector("xi_0", y.population, source="xi_0")
    M, F = Function("M"), Function("F")
    return _World(
        (m, side),
        (
            Definition(m(t), mean.symbol),
            Definition(side(t), coin.symbol),
            Definition(y(t), sign(side(t))),
            Definition(M(t), Mean(m(t) * v(t))),
            Definition(F(t), size * Mean(y(t) * Delta(t))),
        ),
        (mean, coin),
        ("M", "F"),
        prediction=M(t) * y(t),
        gradient=F(t) * m(t),
    )


def _slope(loss: str | Any) -> Loss:
    """The derivative of the loss with respect to the prediction."""
    if isinstance(loss, str) and loss not in LOSSES:
        raise ProgramError(f"loss = {loss!r}: must be one of {', '.join(LOSSES)}, or a function of h and y")
    function = LOSSES[loss] if isinstance(loss, str) else loss
    a, b = Dummy("h", real=True), Dummy("y", real=True)
    slope = sympify(function(a, b)).diff(a)
    if slope == 0:
        raise ProgramError(f"loss = {loss!r}: does not depend on the prediction")
    return lambda h, y: slope.subs({a: h, b: y})
