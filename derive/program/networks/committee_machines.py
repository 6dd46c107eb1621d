"""Committee machines that learn a teacher from random inputs: few hidden units with high-dimensional inputs.

The input dimension D is the reference size. Student and teacher have a vector of D weights for each hidden
unit. The samples of a step are a Gaussian matrix ``X`` with entries N(0, 1/D), which is used forwards for the
fields of both machines and backwards for the gradient.
"""

from __future__ import annotations

from typing import Any

from sympy import Function, KroneckerDelta, Mod, S, Sum, Symbol

from derive.calculus.symbols import IndexRange, expression, t
from derive.errors import ProgramError
from derive.program.language import Field, GaussianMatrix, GaussianVector, Mean, Population, layer_count
from derive.program.network import Network
from derive.program.networks.options import (
    NumberOrExpression,
    activation_of,
    rule_of,
)
from derive.program.networks.random_data import alpha, noise_variance
from derive.program.program import Program
from derive.program.rules import TrainingRule
from derive.program.training import Gradient, Parametrization

k, m, b = (Symbol(name, integer=True, positive=True) for name in "kmb")
"""Indices of the hidden units of the student and of the teacher, and of batches."""
mse, risk = Function("mse"), Function("risk")


def committee(  # noqa: PLR0913 (options of a network, most of them keywords)
    student: int = 2,
    teacher: int = 2,
    activation: str | Any = "erf",
    rule: str | TrainingRule = "gd",
    *,
    ratio: NumberOrExpression = alpha,
    batches: int = 1,
    online: bool = False,
    noise: bool | NumberOrExpression = 0,
    weight_decay: NumberOrExpression = 0,
) -> Program:
    """Return a committee machine of ``student`` hidden units that learns one of ``teacher`` units.

    Parameters
    ----------
    student, teacher : int
        The numbers of hidden units.
    activation : str, function or Expr
        Activation of both machines.
    rule : str or TrainingRule
        The training rule or its name.
    ratio : number or Expr
        The number of samples of a step over the dimension D of inputs.
    batches : int
        The number of batches that are used in turn.
    online : bool
        Whether every step has new samples.
    noise : bool, number or Expr
        Variance of the noise of targets, or True for the symbol ``sigma**2``.
    weight_decay : number or Expr
        Weight decay.

    Returns
    -------
    Program
        The trained student, with ``mse``, the mean of (y - f)^2 on the samples (of each batch b if there are
        several), and ``risk``, that on other inputs without noise.

    Raises
    ------
    ProgramError
        For several batches or new samples (``online``) in a flow, and options out of their ranges.

    Notes
    -----
    Inputs x, the initial weights ``v_k`` and the weights ``v_star_m`` of the teacher have D entries N(0, 1).
    With ``phi`` the ``activation``, the outputs of student and teacher are

        f = sum_k phi(v_k . x/sqrt(D)),    y = sum_m phi(v_star_m . x/sqrt(D)) + sqrt(noise) eps .

    A step descends the gradient in v_k of the mean of (y - f)^2/2 over ``ratio`` D samples, times D.

    Examples
    --------
    >>> [str(d.lhs) for d in committee(batches=3).causal_order()][:6]
    ['v(k, t)', 'v_star(m, t)', 'h(b, k, t)', 'h_star(b, m, t)', 'f(b, t)', 'y(b, t)']
    """
    variance = noise_variance(noise)
    phi, trained_by = activation_of(activation), rule_of(rule, "sum", weight_decay=weight_decay)
    counts = {k: ("student", student), m: ("teacher", teacher), b: ("batches", batches)}
    units, taught, turns = (IndexRange(i, S.One, layer_count(n, key)) for i, (key, n) in counts.items())
    if batches != 1 and not trained_by.discrete:
        raise ProgramError(
            f"batches = {batches}: several batches need discrete steps, and rule = {rule!r} trains in "
            "continuous time; use a rule such as 'gd'"
        )
    size, (at, turn) = expression(ratio, "ratio"), ((), ()) if batches == 1 else ((b,), (turns,))
    inputs, samples, others = Population("inputs"), Population("samples", size), Population("tests")
    X = GaussianMatrix("X", samples, inputs, others=turn, fresh=online)
    Z = GaussianMatrix("Z", others, inputs)
    w, w_star = (GaussianVector(n, inputs, indices=(r,)) for n, r in (("w", units), ("w_star", taught)))
    eps = GaussianVector("eps", samples, variance, indices=turn, fresh=online)
    v, v_star = Field("v", inputs), Field("v_star", inputs)
    h, h_star, f, y = (Field(name, samples) for name in ("h", "h_star", "f", "y"))
    h_test, h_test_star, gap = (Field(name, others) for name in ("h_test", "h_test_star", "Delta_test"))
    seen, errors = (X(b), eps(b)) if at else (X, eps.symbol)
    forward = {
        v(k, t): w(k),
        v_star(m, t): w_star(m),
        h(*at, k, t): seen @ v(k, t),
        h_star(*at, m, t): seen @ v_star(m, t),
        f(*at, t): Sum(phi(h(*at, k, t)), (k, 1, student)),
        y(*at, t): Sum(phi(h_star(*at, m, t)), (m, 1, teacher)) + (errors if variance != 0 else 0),
        mse(*at, t): Mean((y(*at, t) - f(*at, t)) ** 2),
        h_test(k, t): Z @ v(k, t),
        h_test_star(m, t): Z @ v_star(m, t),
        gap(t): Sum(phi(h_test_star(m, t)), (m, 1, teacher)) - Sum(phi(h_test(k, t)), (k, 1, student)),
        risk(t): Mean(gap(t) ** 2),
    }
    fields = (v, v_star, h, h_star, f, y, h_test, h_test_star, gap)
    frozen = (X, Z, w_star, *((eps,) if variance != 0 else ()))
    net = Network("committee machine", fields, forward, (w,), frozen, ranges=(units, taught, *turn))
    chosen = KroneckerDelta(b, Mod(t, batches) + 1) if at else S.One
    loss = chosen * Mean((y(*at, t) - f(*at, t)) ** 2) / 2
    named = {"f": Gradient("Delta", normal=size), "h": Gradient("g", normal=size)}
    return net.train(loss, trained_by, Parametrization(S.One), gradients=named)
