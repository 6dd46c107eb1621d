"""Mixtures of experts on a residual stream: in each block a softmax gate weighs the outputs of E experts."""

from __future__ import annotations

from typing import Any, Unpack

from sympy import Expr, Function, S, Sum, Symbol

from derive.calculus.symbols import IndexRange, L, ell, expression, gamma0, mu, t
from derive.program.language import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GaussianWeight,
    GivenVector,
    Mean,
    Population,
    layer_count,
)
from derive.program.network import Network
from derive.program.networks.options import Activation, SymbolicCount, activation_of, indices
from derive.program.networks.stream import (
    StreamOptions,
    biases,
    normalised_by,
    require_known,
    softmax,
    trained,
    training_options,
)
from derive.program.program import Program
from derive.program.rules import TrainingRule

e = Symbol("e", integer=True, positive=True)
stream = Population("stream", shared=True)
h, n, q, answer, route = (Field(name, stream, layered=True) for name in ("h", "n", "q", "answer", "route"))
f, gate, weight = Function("f"), Function("gate"), Function("share")


def experts(
    depth: int | Symbol = L,
    activation: str | Any = "tanh",
    rule: str | TrainingRule = "gd",
    *,
    count: SymbolicCount = 2,
    **options: Unpack[StreamOptions],
) -> Program:
    """Return a residual network of mixtures of experts, on P fixed samples.

    By default each block adds ``sum_e p_e D(e) phi(U(e) n)`` to the stream, where n is the normalised stream
    and U(e), D(e) are trained matrices. The weights p are a softmax over the gates ``r(e).n/N``, which are
    scalars of each sample, with trained vectors r(e).

    Parameters
    ----------
    depth : int or Symbol
        The number of blocks, an integer or the symbol ``L``.
    activation : str, function or Expr
        Activation of the experts.
    rule : str or TrainingRule
        The training rule or its name.
    count : int or Expr
        The number of experts of a block.
    **options
        Other options: :class:`.StreamOptions`. With ``offsets`` a given number ``offset(e, mu)`` is added to
        each gate. Without offsets all experts of a block are equal at infinite width, and ``p_e = 1/count``.

    Returns
    -------
    Program
        The trained network.

    Raises
    ------
    ProgramError
        If an option is unknown or out of its range.

    Examples
    --------
    >>> experts(2, count=3).depth
    2
    """
    require_known(options)
    blocks, members = (
        IndexRange(i, S.One, layer_count(n, key))
        for i, n, key in ((ell, depth, "depth"), (e, count, "count"))
    )
    kind, channels = options.get("normalisation", "rms"), indices(options.get("outputs", 1))[0]
    x = GivenVector("x", Population("input", given=True), "K_x")
    W0, w = GaussianMatrix("W0", stream.at(0), x.population), GaussianVector("w", stream, indices=channels)
    lines, weights = _block(blocks, members, activation_of(activation), options)
    top, last = normalised_by(kind, h(blocks.upper, mu, t), "last_size", (mu,))
    output = f(mu, *(i.index for i in channels), t)
    net = Network(
        "residual network of experts",
        (h, n, q, answer, route),
        {h(0, mu, t): W0 @ x(mu), **lines, **last, output: Mean(w.symbol * top) / gamma0},
        (W0, *weights, w),
        given=(x,),
        ranges=(blocks, members, *channels),
        depth=blocks.upper,
    )
    return trained(net, output, rule, channels, **training_options(options))


def _block(
    blocks: IndexRange, members: IndexRange, activation: Activation, options: StreamOptions
) -> tuple[dict[Expr, Expr], tuple[GaussianWeight, ...]]:
    """Return the equations of a block with a mixture of experts, and its weights.

    The equations give the residual stream after the block from the stream before it. ``members`` is the range
    of the index of experts.
    """
    family: dict[str, Any] = {"index": blocks, "others": (members,)}
    U = GaussianMatrix("U", stream.at(ell), stream.at(ell - 1), **family)
    D = GaussianMatrix("D", stream.at(ell), stream.at(ell), **family)
    r, b = GaussianVector("r", stream, indices=(blocks, members)), biases(options, stream, blocks, members)
    below, at = h(ell - 1, mu, t), (ell, e, mu, t)
    seen, sizes = normalised_by(options.get("normalisation", "rms"), below, "size", (ell, mu))
    offset = Function("offset")(e, mu) if options.get("offsets", False) else S.Zero
    mixture = Sum(weight(*at) * answer(*at), (e, members.lower, members.upper))
    lines = {
        **sizes,
        n(ell, mu, t): seen,
        route(ell, e, t): r(ell, e),
        gate(*at): Mean(route(ell, e, t) * n(ell, mu, t)),
        weight(*at): softmax(gate(*at) + offset, members),
        q(*at): U(ell, e) @ n(ell, mu, t) + sum(v(ell, e) for v in b),
        answer(*at): D(ell, e) @ activation(q(*at)),
        h(ell, mu, t): below + expression(options.get("branch", 1), "branch") * mixture,
    }
    return lines, (U, D, r, *b)
