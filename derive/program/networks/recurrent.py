"""A network with tied weights, one matrix for every layer: a recurrent network unrolled in depth."""

from __future__ import annotations

from typing import Any

from sympy import Expr, Function, Integer, S, Symbol, sympify

from derive.errors import ProgramError
from derive.program.networks.activations import activation_of
from derive.program.networks.indices import Count, indices
from derive.program.networks.network import with_noise
from derive.program.networks.rules import Number, rule_of
from derive.program.program import Definition, Program
from derive.program.training import Along, Outer, TrainedMatrix, TrainedVector, TrainingRule
from derive.program.words import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    IndexRange,
    L,
    Mean,
    Population,
    alpha,
    gamma0,
    mu,
    t,
)

k = Symbol("k", integer=True)


def recurrent(
    steps: int | Symbol = L,
    activation: str | Any = "tanh",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    outputs: Count = 1,
    bias: bool | Number = False,
    branch: Number | None = None,
    init_variance: Number = 1,
    weight_decay: Number = 0,
    momentum: Number = 0,
    temperature: Number = 0,
) -> Program:
    """A network whose ``steps`` hidden layers are one layer of units that applies one matrix again and again.

        h(1, mu) = W0 x(mu) + b,   h(k+1, mu) = W phi(h(k, mu)) + b,   f = w . phi(h(steps, mu))/(gamma0 N),

    trained by backpropagation through all k: ``z(k) = W^T g(k+1)``, and the update of ``W`` sums ``g(k+1)
    phi(h(k))^T`` over k, that of ``b`` sums ``g(k)``.  The input enters only at k = 1.  ``branch`` adds
    ``h(k)`` to ``h(k+1)`` and multiplies ``W`` by it; ``init_variance`` is that of every weight but ``b``,
    which has ``bias`` (1 if True). Everything else is as in :func:`.network`.  Raises :class:`ProgramError`
    like it.

    >>> [str(d.lhs) for d in recurrent(3, bias=True).definitions if d.name == "h"]
    ['h(1, mu, t)', 'h(k + 1, mu, t)']
    """
    last = sympify(steps)
    if isinstance(last, Integer) and last < 1:
        raise ProgramError(f"steps = {steps}: a network has at least one hidden layer")
    rule = rule_of(rule, loss, weight_decay=weight_decay, momentum=momentum, temperature=temperature)
    phi, i = activation_of(activation), indices(outputs)
    start, scale = sympify(init_variance), S.One if branch is None else sympify(branch)
    inside, all_steps = IndexRange(k, Integer(1), last - 1), IndexRange(k, Integer(1), last)

    units, inputs = Population("units"), Population("input", given=True)
    h, g = (Field(n, units, ordered=True) for n in "hg")
    z = g if phi.linear else Field("z", units, ordered=True)
    x = GivenVector("x", inputs, "K_x")
    f, Delta, y = (Function(n) for n in ("f", "Delta", "y"))
    W0, W = GaussianMatrix("W0", units, inputs, start), GaussianMatrix("W", units, units, start)
    w = GaussianVector("w", units, start, indices=i.channels)
    b = GaussianVector("b", units, sympify(1 if bias is True else bias), source="b")
    shift = b.symbol if bias is not False else S.Zero

    def stream(field: Field, *indices: Expr) -> Expr:
        return field(k if field == h else k + 1, *indices, t) if branch is not None else S.Zero

    def chain(site: Expr) -> Expr:
        return phi.slope(h(site, mu, t)) * z(site, mu, *i.channel, t)

    ranges = (*i.samples, *i.channels)
    value = Mean(z(last, mu, *i.channel, t) * phi.phi(h(last, mu, t))) / gamma0
    definitions = [
        Definition(h(1, mu, t), W0 @ x(mu) + shift, i.samples),
        Definition(
            h(k + 1, mu, t),
            stream(h, mu) + scale * (W @ phi.phi(h(k, mu, t))) + shift,
            (*i.samples, inside),
        ),
        Definition(f(mu, *i.channel, t), value, ranges),
        Definition(Delta(mu, *i.channel, t), y(mu, *i.channel) - f(mu, *i.channel, t), ranges),
        Definition(z(last, mu, *i.channel, t), w.symbol, ranges),
    ]
    back = W.T @ g(k + 1, mu, *i.channel, t)
    if phi.linear:
        definitions.append(
            Definition(g(k, mu, *i.channel, t), stream(g, mu, *i.channel) + scale * back, (*ranges, inside))
        )
    else:
        moved = stream(g, mu, *i.channel) + scale * chain(k)
        definitions += [
            Definition(z(k, mu, *i.channel, t), back, (*ranges, inside)),
            Definition(g(last, mu, *i.channel, t), chain(last), ranges),
            Definition(g(k, mu, *i.channel, t), moved, (*ranges, inside)),
        ]

    error, over = gamma0 * Delta(alpha, *i.other_channel, t), (*i.other_samples, *i.other_channels)

    def g_there(site: Expr) -> Expr:
        return g(site, alpha, *i.other_channel, t)

    through = Outer(error * scale, g_there(k + 1), phi.phi(h(k, alpha, t)), (*over, inside))
    read = Along(gamma0 * Delta(alpha, *i.channel, t), phi.phi(h(last, alpha, t)), i.other_samples)
    biased = TrainedVector(b, Along(error, g_there(k), (*over, all_steps)), with_noise(rule, b.variance, "b"))
    return Program(
        name="recurrent network",
        rule=rule,
        fields=tuple(dict.fromkeys((h, z, g))),
        definitions=tuple(definitions),
        matrices=(
            TrainedMatrix(W0, Outer(error, g_there(S.One), x(alpha), over), with_noise(rule, start, "W0")),
            TrainedMatrix(W, through, with_noise(rule, start, "W")),
        ),
        vectors=(
            TrainedVector(w, read, with_noise(rule, start, "w")),
            *((biased,) if bias is not False else ()),
        ),
        given=(x,),
        scalars=("f", "Delta"),
        constants=("y",),
        notation={phi.phi(h(k, mu, t)): "H" if phi.linear else "Phi", g(k, mu, *i.channel, t): "G"},
        scale=gamma0,
        depth=last,
    ).drop_idle_indices()
