"""Residual networks whose layers are normalised, before a branch or after it."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from sympy import Expr, Function, S, Symbol

from derive.calculus.symbols import IndexRange, L, ell, expression, gamma0, mu, t
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
from derive.program.networks.options import activation_of, indices
from derive.program.networks.stream import (
    Normalisation,
    StreamOptions,
    biases,
    normalised_by,
    require_known,
    trained,
    training_options,
)
from derive.program.program import Program
from derive.program.rules import TrainingRule

NormalisedPlace = Literal["before", "after"]
stream = Population("stream", shared=True)
h, n = (Field(name, stream, layered=True) for name in "hn")
f = Function("f")


def normalised(
    depth: int | Symbol = L,
    activation: str | Any = "tanh",
    rule: str | TrainingRule = "gd",
    *,
    place: NormalisedPlace = "before",
    named: bool = True,
    **options: Unpack[StreamOptions],
) -> Program:
    """Return a residual network with ``depth`` normalised branches ``W phi(...)``, on P fixed samples.

    Parameters
    ----------
    depth : int or Symbol
        The number of branches, an integer or the symbol ``L``.
    activation : str, function or Expr
        Activation of the branches.
    rule : str or TrainingRule
        The training rule or its name.
    place : {"before", "after"}
        Branches and readout are applied to the normalised stream, or the stream is normalised after each
        branch is added.
    named : bool
        Whether the averages in a normalisation, such as the mean square ``size``, are scalars, which results
        contain. Otherwise they are averages inside of fields.
    **options
        Other options: :class:`.StreamOptions`, except ``offsets``. Biases are added to the stream, not inside
        of activations.

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
    >>> normalised(2, place="after").depth
    2
    """
    require_known(options, without="offsets")
    if place not in ("before", "after"):
        raise ProgramError(f"place = {place!r}: must be 'before' or 'after'")
    blocks, channels = IndexRange(ell, S.One, layer_count(depth)), indices(options.get("outputs", 1))[0]
    x = GivenVector("x", Population("input", given=True), "K_x")
    W0, w = GaussianMatrix("W0", stream.at(0), x.population), GaussianVector("w", stream, indices=channels)
    W = GaussianMatrix("W", stream.at(ell), stream.at(ell - 1), index=blocks)
    b, phi, branch = biases(options, stream, blocks), activation_of(activation), options.get("branch", 1)
    lines, fed, top = _normalised_lines(place, blocks.upper, options.get("normalisation", "rms"), named)
    added = h(ell - 1, mu, t) + expression(branch, "branch") * (W(ell) @ phi(fed)) + sum(v(ell) for v in b)
    output = f(mu, *(r.index for r in channels), t)
    lines |= {h(0, mu, t): W0 @ x(mu), (h if place == "before" else n)(ell, mu, t): added}
    net = Network(
        f"residual network normalised {place} its branches",
        (h, n),
        {**lines, output: Mean(w.symbol * top) / gamma0},
        (W0, W, w, *b),
        given=(x,),
        ranges=(blocks, *channels),
        depth=blocks.upper,
    )
    return trained(net, output, rule, channels, **training_options(options))


def _normalised_lines(
    place: NormalisedPlace, depth: Expr, kind: Normalisation, named: bool
) -> tuple[dict[Expr, Expr], Expr, Expr]:
    """Return the definitions of normalised vectors, the input of a branch, and the input of the readout.

    Before a branch ``n(ell)`` is the normalised ``h(ell - 1)``; after it ``h(ell)`` is the normalised
    ``n(ell)``, the sum of the stream and its branch. ``kind`` and ``named`` are those of
    :func:`.normalised_by`.
    """
    inner, here = n(ell, mu, t), h(ell, mu, t)
    if place == "after":
        seen, sizes = normalised_by(kind, inner, "size", (ell, mu), named)
        return {**sizes, here: seen}, h(ell - 1, mu, t), h(depth, mu, t)
    seen, sizes = normalised_by(kind, h(ell - 1, mu, t), "size", (ell, mu), named)
    top, last = normalised_by(kind, h(depth, mu, t), "last_size", (mu,), named)
    return {**sizes, inner: seen, **last}, inner, top
