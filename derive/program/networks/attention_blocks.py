"""Blocks of attention and perceptrons on a residual stream, at any depth.

A block adds to the stream of each position the output of its attention heads, then that of a perceptron. The
weights of attention are a softmax of scores over positions. The score of key k and query q is ``k.q/N``, a
deterministic number for each head and pair of positions, or ``sum_i Z_i k_i q_i/sqrt(n)`` with normal numbers
``Z`` of the head. Scores of the second kind differ at random between infinitely many heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Unpack

from sympy import Expr, Function, KroneckerDelta, S, Sum, Symbol

from derive.calculus.intervals import POSITIVE
from derive.calculus.symbols import IndexRange, IndexRanges, L, ell, expression, gamma0, mu, t
from derive.errors import ProgramError
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
from derive.program.networks.options import SymbolicCount, activation_of, indices, p
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

Scores = Literal["numbers", "random"]
ReadPositions = Literal["mean", "last", "each"]
e, q = (Symbol(name, integer=True, positive=True) for name in ("e", "q"))
kappa = Symbol("kappa", positive=True)
stream = Population("stream", shared=True)
h, n, a = (Field(name, stream, layered=True) for name in "hna")
here, f, score = (mu, p, t), Function("f"), Function("score")


@dataclass(frozen=True)
class _Heads:
    """Attention heads of a block, as parts of a network.

    ``added`` is the expression that the heads add to the residual stream. ``lines`` are the definitions of
    the ``fields`` and scalars in this expression, ``weights`` the trained and ``frozen`` the other weights,
    and ``ranges`` those of the index of heads.
    """

    added: Expr
    lines: dict[Expr, Expr]
    fields: tuple[Field, ...]
    weights: tuple[GaussianWeight, ...]
    frozen: tuple[GaussianWeight, ...] = ()
    ranges: IndexRanges = ()


@dataclass(frozen=True)
class _Places:
    """Positions of the sequences and blocks of an attention network.

    Position p attends to all positions, or to those up to p if the network is causal. ``offsets`` says
    whether given numbers are added to the scores.
    """

    blocks: IndexRange
    positions: Expr
    causal: bool
    offsets: bool

    @cached_property
    def ranges(self) -> IndexRanges:
        """The ranges of the position p that attends, and of the position q that is attended to."""
        return tuple(IndexRange(x, S.One, self.positions) for x in (p, q))

    @cached_property
    def last(self) -> Expr:
        """The last position that position p attends to."""
        return p if self.causal else self.positions

    def attended(self, at: tuple[Expr, ...], value: Expr) -> Expr:
        """Return the average of ``value`` over positions q, weighted by the softmax of a head's scores.

        With ``offsets`` given numbers ``offset(p, q)`` are added to the scores. ``at`` is a tuple with the
        index of the head, which is then the first index of the offset; it is empty if heads have no index.
        """
        offset = Function("offset")(*at, p, q) if self.offsets else S.Zero
        weight = softmax(score(ell, *at, mu, p, q, t) + offset, self.ranges[1], self.last)
        return Sum(weight * value, (q, S.One, self.last))


def _of_numbers(places: _Places, count: Expr) -> _Heads:
    """Return ``count`` attention heads, each with its own matrices Q, K and V, as parts of a network.

    The score of a query and a key is their mean ``k.q/N``, which is deterministic at infinite width. With
    more than one head, the index ``e`` counts the heads.
    """
    heads = IndexRange(e, S.One, count)
    at, block = () if count == 1 else (e,), {"index": places.blocks}
    others: Any = {"others": () if count == 1 else (heads,), **block}
    query, key, value = (Field(name, stream, layered=True) for name in ("query", "key", "value"))
    Q, K, V = (GaussianMatrix(x, stream.at(ell), stream.at(ell - 1), **others) for x in "QKV")
    lines = {x(ell, *at, *here): M(ell, *at) @ n(ell, *here) for x, M in ((query, Q), (key, K), (value, V))}
    lines[score(ell, *at, mu, p, q, t)] = Mean(query(ell, *at, *here) * key(ell, *at, mu, q, t))
    read = places.attended(at, value(ell, *at, mu, q, t))
    return _Heads(
        Sum(read, (e, S.One, count)) if at else read,
        lines,
        (query, key, value),
        (Q, K, V),
        ranges=(heads,) if at else (),
    )


def _of_random_numbers(places: _Places, ratio: Expr) -> _Heads:
    """Return a population of ``ratio`` N attention heads with random scores, as parts of a network.

    All heads have the same ``n = kappa N`` components of queries q and keys k. The score of a head is
    ``sum_i Z_i k_i q_i/sqrt(n)``, where the row ``Z`` of standard normal numbers belongs to the head and is
    not trained. The value of a head is one number at each position.
    """
    keys, each = Population("keys", kappa), Population("heads", ratio)
    query, key, pair = (Field(name, keys, layered=True) for name in ("query", "key", "pair"))
    scores, value, mixed = (Field(name, each, layered=True) for name in ("score", "value", "mixed"))
    block: Any = {"index": places.blocks}
    Q, K, V = (
        GaussianMatrix(name, rows.at(ell), stream.at(ell - 1), **block)
        for name, rows in (("Q", keys), ("K", keys), ("V", each))
    )
    Z = GaussianMatrix("Z", each.at(ell), keys.at(ell), variance=1 / kappa, **block)
    out = GaussianMatrix("O", stream.at(ell), each.at(ell), variance=1 / ratio, **block)
    lines = {x(ell, *here): M(ell) @ n(ell, *here) for x, M in ((query, Q), (key, K), (value, V))}
    lines |= {
        pair(ell, mu, p, q, t): query(ell, *here) * key(ell, mu, q, t),
        score(ell, mu, p, q, t): Z(ell) @ pair(ell, mu, p, q, t),
        mixed(ell, *here): places.attended((), value(ell, mu, q, t)),
    }
    fields = (query, key, pair, scores, value, mixed)
    return _Heads(out(ell) @ mixed(ell, *here), lines, fields, (Q, K, V, out), (Z,))


def attention(  # noqa: PLR0913 (options of a network, most of them keywords)
    depth: int | Symbol = L,
    activation: str | Any = "tanh",
    rule: str | TrainingRule = "gd",
    *,
    positions: int = 2,
    heads: SymbolicCount = 1,
    scores: Scores = "numbers",
    causal: bool = False,
    read: ReadPositions = "mean",
    **options: Unpack[StreamOptions],
) -> Program:
    """Return a stack of ``depth`` blocks of attention and perceptrons, trained on P sequences of inputs.

    Parameters
    ----------
    depth : int or Symbol
        The number of blocks, an integer or the symbol ``L``.
    activation : str, function, Expr or None
        Activation of the perceptrons; None for blocks without perceptrons.
    rule : str or TrainingRule
        The training rule or its name.
    positions : int
        The number of positions of a sequence.
    heads : int or Expr
        The number of heads, or with random scores the number of heads over N.
    scores : {"numbers", "random"}
        Deterministic scores ``k.q/N``, or random scores ``sum_i Z_i k_i q_i/sqrt(n)`` of a population of
        heads, with normal numbers ``Z_i`` of each head that are not trained, and ``n = kappa N``.
    causal : bool
        Whether position p attends to positions up to p only.
    read : {"mean", "last", "each"}
        Readout of the mean over positions, of the last position, or of each, with a target ``y(mu, p)``.
    **options
        Other options: :class:`.StreamOptions`.

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
    >>> attention(2, heads=3, causal=True).depth
    2
    """
    require_known(options)
    blocks = IndexRange(ell, S.One, layer_count(depth))
    places = _Places(blocks, layer_count(positions, "positions"), causal, options.get("offsets", False))
    makers = {"numbers": _of_numbers, "random": _of_random_numbers}
    if not isinstance(scores, str) or scores not in makers:
        raise ProgramError(f"scores = {scores!r}: must be 'numbers' or 'random'")
    POSITIVE.require(heads, "heads")
    count = layer_count(heads, "heads") if scores == "numbers" else expression(heads, "heads")
    added = makers[scores](places, count)
    return _stack(places, added, activation, read, rule, options)


def _stack(
    places: _Places,
    heads: _Heads,
    activation: Any,
    read: ReadPositions,
    rule: str | TrainingRule,
    options: StreamOptions,
) -> Program:
    """Return the trained network of attention blocks between an embedding of inputs and a readout.

    ``heads`` are the parts of attention in a block, and ``read`` says at which positions the output is read.
    """
    kind, channels = options.get("normalisation", "rms"), indices(options.get("outputs", 1))[0]
    x, depth = GivenVector("x", Population("input", given=True), "K_x"), places.blocks.upper
    E, w = GaussianMatrix("E", stream.at(0), x.population), GaussianVector("w", stream, indices=channels)
    seen, sizes = normalised_by(kind, h(ell - 1, *here), "size", (ell, mu, p))
    lines = {h(0, *here): E @ x(mu, p), **sizes, n(ell, *here): seen, **heads.lines}
    below, weights, fields = _branches(places.blocks, heads, activation, options)
    lines |= below
    read_out, sizes = normalised_by(kind, h(depth, *here), "last_size", (mu, p))
    number = Mean(w.symbol * read_out) / gamma0
    output, value = _outputs(read, number, places.positions, tuple(r.index for r in channels))
    net = Network(
        "attention" if activation is None else "attention and perceptrons",
        (h, n, *heads.fields, *fields),
        {**lines, **sizes, output: value},
        (E, *heads.weights, *weights, w),
        heads.frozen,
        (x,),
        ranges=(places.blocks, *places.ranges, *heads.ranges, *channels),
        depth=depth,
    )
    return trained(net, output, rule, channels, **training_options(options))


BranchParts = tuple[dict[Expr, Expr], tuple[GaussianWeight, ...], tuple[Field, ...]]


def _branches(blocks: IndexRange, heads: _Heads, activation: Any, options: StreamOptions) -> BranchParts:
    """Return the equations of a block of attention and perceptron, with weights and fields of the perceptron.

    The equations give the stream after the block from the stream before it and the contribution of the
    attention heads; without an ``activation`` there is no perceptron, so that weights and fields are empty.
    """
    branch = expression(options.get("branch", 1), "branch")
    attended = h(ell - 1, *here) + branch * heads.added
    if activation is None:
        return {h(ell, *here): attended}, (), ()
    m, u = (Field(name, stream, layered=True) for name in "mu")
    U, D = (GaussianMatrix(name, stream.at(ell), stream.at(ell), index=blocks) for name in "UD")
    seen, sizes = normalised_by(
        options.get("normalisation", "rms"), a(ell, *here), "inner_size", (ell, mu, p)
    )
    b = biases(options, stream, blocks)
    lines = {
        a(ell, *here): attended,
        **sizes,
        m(ell, *here): seen,
        u(ell, *here): U(ell) @ m(ell, *here) + sum(x(ell) for x in b),
        h(ell, *here): a(ell, *here) + branch * (D(ell) @ activation_of(activation)(u(ell, *here))),
    }
    return lines, (U, D, *b), (a, m, u)


def _outputs(
    read: ReadPositions, number: Expr, positions: Expr, channel: tuple[Symbol, ...]
) -> tuple[Expr, Expr]:
    """Return the left- and right-hand side of the definition of the output.

    ``number`` is the readout at each position p. ``read`` is "each" for one output at each position, "mean"
    for the mean over positions, "last" for the last position; anything else raises ProgramError.
    ``positions`` is their number, and ``channel`` a tuple of the index of channels, or empty.
    """
    if read == "each":
        return f(mu, p, *channel, t), number
    weights = {"mean": 1 / positions, "last": KroneckerDelta(p, positions)}
    if not isinstance(read, str) or read not in weights:
        raise ProgramError(f"read = {read!r}: must be 'mean', 'last' or 'each'")
    return f(mu, *channel, t), Sum(weights[read] * number, (p, S.One, positions))
