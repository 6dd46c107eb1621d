"""Recurrent networks trained on a task: units with memory that receive a sequence of inputs.

There are two times: the index k counts the steps of a task, during which the weights are constant, and t is
the training time.
"""

from __future__ import annotations

from typing import Any

from sympy import Function, Integer, S, Symbol

from derive.calculus.intervals import POSITIVE
from derive.calculus.symbols import IndexRange, expression, gamma0, mu, t
from derive.errors import ProgramError
from derive.program.language import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    Mean,
    Population,
    layer_count,
)
from derive.program.network import Network
from derive.program.networks.options import NumberOrExpression, activation_of, objective_of, rule_of
from derive.program.program import Program
from derive.program.rules import TrainingRule
from derive.program.training import Gradient

k, q = (Symbol(name, integer=True, positive=True) for name in "kq")
"""Indices of a step of the task, and of a step at which the output is trained."""


def recurrent_task(  # noqa: PLR0913 (options of a network, most of them keywords)
    steps: int = 5,
    activation: str | Any = "tanh",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    leak: NumberOrExpression = 1,
    gain: NumberOrExpression = 1,
    read: str = "last",
    objective: str = "square",
    bias: bool | NumberOrExpression = False,
    weight_decay: NumberOrExpression = 0,
    momentum: NumberOrExpression = 0,
) -> Program:
    """Return a recurrent network that receives a sequence of inputs and is trained on its outputs.

    Parameters
    ----------
    steps : int
        The number of inputs.
    activation : str, function or Expr
        The activation phi, as for :func:`.mlp`.
    rule : str or TrainingRule
        The training rule.
    loss : str
        "sum" or "mean" over samples.
    leak, gain : number or Expr
        The leak, the fraction of h that a step replaces, and the standard deviation of the recurrent weights
        times sqrt(N); both are positive.
    read : str
        "last" trains the output f(mu, t) at the last step to y(mu), "all" the outputs f(mu, q, t) at all
        steps q to y(mu, q).
    objective : str
        The loss of an output: "square", or "logistic" or "hinge" for labels that are signs.
    bias : bool, number or Expr
        The variance of b; True for 1.
    weight_decay, momentum : number or Expr
        As for :func:`.training_rule`.

    Returns
    -------
    Program
        The trained network.

    Raises
    ------
    ProgramError
        If an option does not describe a network.

    Notes
    -----
    With ``W`` of entries N(0, gain^2/N) at initialisation, the units follow

        h(k) = (1 - leak) h(k-1) + leak (W phi(h(k-1)) + U x(mu, k) + b),   f(k) = w . phi(h(k))/(gamma0 N) .

    The units start from rest, ``h(0) = 0``, so that ``h(1) = leak (W phi(0) + U x(mu, 1) + b)``. If phi(0) is
    not zero, the field ``rest`` is phi(0) at each unit. Without ``bias`` b is zero.

    Gradients pass through all steps of the task.

    Examples
    --------
    >>> [str(d.lhs) for d in recurrent_task(3).definitions][:3]
    ['h(1, mu, t)', 'h(k + 1, mu, t)', 'f(mu, t)']
    """
    if read not in ("last", "all"):
        raise ProgramError(f"read = {read!r}: must be 'last' or 'all'")
    POSITIVE.require(leak, "leak")
    POSITIVE.require(gain, "gain")
    last, phi, share = layer_count(steps, "steps"), activation_of(activation), expression(leak, "leak")
    trained_by = rule_of(rule, loss, weight_decay=weight_decay, momentum=momentum)
    units, channels = Population("units"), Population("input", given=True)
    h, x = Field("h", units, ordered=True), GivenVector("x", channels, "K_x")
    U, w = GaussianMatrix("U", units, channels), GaussianVector("w", units)
    W = GaussianMatrix("W", units, units, expression(gain, "gain") ** 2)
    b = GaussianVector(
        "b", units, expression(int(bias) if isinstance(bias, bool) else bias, "bias"), source="b"
    )
    shift = b.symbol if bias is not False else S.Zero
    f, y = Function("f"), Function("y")
    out, at = (f(mu, t), last) if read == "last" else (f(mu, q, t), q)
    kept = (1 - share) * h(k, mu, t) + share * (W @ phi(h(k, mu, t)))
    # The network starts from h(0) = 0. `rest` is the vector phi(h(0)), all of whose entries are `constant`.
    constant, rest = phi(S.Zero), Field("rest", units)
    starts = constant != 0
    forward = {
        **({rest(t): constant} if starts else {}),
        h(1, mu, t): share * ((W @ rest(t) if starts else S.Zero) + U @ x(mu, 1) + shift),
        h(k + 1, mu, t): kept + share * (U @ x(mu, k + 1) + shift),
        out: Mean(w.symbol * phi(h(at, mu, t))) / gamma0,
    }
    ranges = (IndexRange(k, Integer(1), last - 1), *((IndexRange(q, S.One, last),) if at is q else ()))
    weights = (U, W, w, *(() if bias is False else (b,)))
    net = Network(
        "recurrent network on a task",
        (h, rest) if starts else (h,),
        forward,
        weights,
        given=(x,),
        ranges=ranges,
        depth=last,
    )
    cost = objective_of(objective, y(*out.args[:-1]), out)
    return net.train(cost, trained_by, gradients={"h": Gradient("g", "z")}, together=read == "all")
