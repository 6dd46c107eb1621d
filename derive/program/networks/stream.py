"""Parts that networks with a residual stream share: normalisations, softmax, options of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack, cast

from sympy import Expr, Function, Sum, Symbol, exp, sqrt

from derive.calculus.intervals import NONZERO
from derive.calculus.symbols import IndexRange, IndexRanges, P, expression, t
from derive.errors import ProgramError
from derive.program.language import GaussianVector, Mean, Population
from derive.program.network import Network
from derive.program.networks.options import (
    NumberOrExpression,
    SymbolicCount,
    objective_of,
    rule_of,
    rules_of,
)
from derive.program.program import Program
from derive.program.rules import TrainingRule

Normalisation = Literal["rms", "layer", "none"]
j = Symbol("j", integer=True, positive=True)
y = Function("y")


class TrainingOptions(TypedDict, total=False):
    """Keyword arguments of training, such as weight decay, that builders of residual streams accept.

    :func:`trained` uses them. Their meanings and defaults are those of
    :func:`~derive.program.networks.fixed_data.network`.
    """

    loss: str
    objective: str
    weight_decay: NumberOrExpression
    momentum: NumberOrExpression
    temperature: NumberOrExpression
    rules: Mapping[str, TrainingRule]


class StreamOptions(TrainingOptions, total=False):
    """Keyword arguments of the builders attention, experts and normalised, which have a residual stream.

    ``outputs`` is the number of channels C, ``bias`` the variance of trained biases (True for 1), ``branch``
    the factor of every branch. Biases are inside of activations, but ``normalised`` adds them to the stream.
    ``normalisation`` is "rms" (the default), "layer" or "none", and acts on the stream before branches and
    readout (:func:`normalised_by`), or after branches if the builder says so. ``offsets`` adds given numbers
    to the logits of a softmax. By default there is one channel, there are no biases and no offsets, and
    branches have the factor 1.
    """

    outputs: SymbolicCount
    bias: bool | NumberOrExpression
    branch: NumberOrExpression
    normalisation: Normalisation
    offsets: bool


def trained(
    net: Network,
    output: Expr,
    rule: str | TrainingRule,
    channels: IndexRanges,
    **options: Unpack[TrainingOptions],
) -> Program:
    """Return the program that trains the network's ``output`` towards targets ``y`` at the same indices.

    The loss is the option ``objective``, by default the square loss. Backward fields are gradients of minus
    this loss, not of the output.
    ``channels`` contains the range of the index of channels, and is empty for a single output.
    """
    numbers: dict[str, Any] = {
        key: options.get(key, 0) for key in ("weight_decay", "momentum", "temperature")
    }
    loss = options.get("loss", "sum")
    trained_by = rule_of(rule, loss, P, **numbers)
    cost = objective_of(options.get("objective", "square"), y(*output.args[:-1]), output, channels)
    return net.train(cost, trained_by, together=True, rules=rules_of(options.get("rules"), loss))


def require_known(options: StreamOptions, without: str = "") -> None:
    """Raise :class:`ProgramError` for a keyword that is not an option, and for a ``branch`` of zero.

    ``without`` is the name of an option that the calling builder does not have.

    >>> require_known({"branch": 2})
    """
    names = {*StreamOptions.__annotations__, *TrainingOptions.__annotations__} - {without}
    for key, value in options.items():
        if key not in names:
            raise ProgramError(
                f"{key} = {value!r}: the network has no option of this name; its options, beside the named "
                f"parameters of its function, are {', '.join(sorted(names))}"
            )
    NONZERO.require(options.get("branch", 1), "branch")


def training_options(options: StreamOptions) -> TrainingOptions:
    """Return those of the options that concern training: the keyword arguments of :func:`trained`."""
    kept: Any = {key: value for key, value in options.items() if key in TrainingOptions.__annotations__}
    return cast(TrainingOptions, kept)


def biases(options: StreamOptions, units: Population, *over: IndexRange) -> tuple[GaussianVector, ...]:
    """Return the family ``b`` of biases of units in a tuple, empty if the option ``bias`` is absent or False.

    The family has an independent vector for each value of the indices in ``over``.
    """
    bias = options.get("bias", False)
    if bias is False:
        return ()
    variance = expression(int(bias) if isinstance(bias, bool) else bias, "bias")
    return (GaussianVector("b", units, variance, "b", over),)


def normalised_by(
    kind: Normalisation, stream: Expr, name: str, indices: tuple[Expr, ...], named: bool = True
) -> tuple[Expr, dict[Expr, Expr]]:
    """Return a normalised vector, and the definitions of the scalars in its normalisation.

    ``"rms"`` divides by the root mean square, ``"layer"`` by the standard deviation after subtraction of the
    mean, and ``"none"`` returns the vector unchanged. The scalar ``name`` is the mean square, for
    ``"layer"`` after subtraction of the mean ``name_mean``; ``indices`` are the arguments of both before the
    time. If not ``named``, these averages are written into the vector, without definitions.
    Raises :class:`ProgramError` for another kind.

    >>> from derive.program import Field, Population, mu
    >>> h = Field("h", Population("units"))
    >>> normalised_by("rms", h(mu, t), "size", (mu,))
    (h(mu, t)/sqrt(size(mu, t)), {size(mu, t): Mean(h(mu, t)**2)})
    """
    if kind not in ("rms", "layer", "none"):
        raise ProgramError(f"normalisation = {kind!r}: must be 'rms', 'layer' or 'none'")
    if kind == "none":
        return stream, {}
    lines: dict[Expr, Expr] = {}

    def number(name: str, value: Expr) -> Expr:
        """Return a scalar of this name, whose definition is stored; the average itself if not ``named``."""
        if named:
            lines[Function(name)(*indices, t)] = value
        return Function(name)(*indices, t) if named else value

    centred = stream - number(f"{name}_mean", Mean(stream)) if kind == "layer" else stream
    return centred / sqrt(number(name, Mean(centred**2))), lines


def softmax(logit: Expr, among: IndexRange, last: Expr | None = None) -> Expr:
    """Return the softmax of a logit over one of its indices, whose range is ``among``.

    The sum in the denominator ends at the value ``last`` of the index if ``last`` is given, else at the end
    of the range.

    >>> from sympy import S
    >>> e = Symbol("e", integer=True, positive=True)
    >>> softmax(Function("z")(e, t), IndexRange(e, S.One, S(2)))
    exp(z(e, t))/Sum(exp(z(j, t)), (j, 1, 2))
    """
    end = among.upper if last is None else last
    return exp(logit) / Sum(exp(logit.subs(among.index, j)), (j, among.lower, end))
