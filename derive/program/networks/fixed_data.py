"""Networks on P fixed samples: multilayer perceptrons, convolutions, feedback alignment, recurrent networks.

Conventions (selfconsistent2023 D.1-D.8): ``f = w . phi(h^L)/(gamma0 N)``, weights N(0, 1) at initialisation,
the update ``theta <- theta - eta gamma0^2 N grad(loss)`` and backward fields ``g^l = gamma0 sqrt(N N_l)
df/dh^l``, ``z^l`` those with respect to ``phi(h^l)``. A field has only the indices that its network needs:
``g(ell, mu, p, c, t)`` has layer, sample, position in an image, output channel and time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

from sympy import Expr, Function, Integer, S, Symbol

from derive.calculus.intervals import NONZERO
from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, L, P, ell, expression, gamma0, mu, t
from derive.errors import ProgramError
from derive.program.language import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    Mean,
    P_train,
    Population,
    layer_count,
)
from derive.program.network import Network
from derive.program.networks.options import (
    SAMPLE_WEIGHT,
    NumberOrExpression,
    PerLayer,
    SymbolicCount,
    activation_of,
    indices,
    k,
    objective_of,
    per_layer,
    rule_of,
    rules_of,
)
from derive.program.program import Program
from derive.program.rules import TrainingRule
from derive.program.training import Gradient

Backward = Literal["transposed", "independent", "fixed"]
f, y = Function("f"), Function("y")


class Options(TypedDict, total=False):
    """Keyword arguments that the builders mlp, convolution and feedback_alignment pass on to `network`."""

    outputs: SymbolicCount
    bias: bool | NumberOrExpression
    branch: NumberOrExpression | None
    relative_widths: PerLayer
    init_variance: PerLayer
    weight_decay: NumberOrExpression
    momentum: NumberOrExpression
    temperature: NumberOrExpression
    sample_weights: bool
    objective: str
    rules: Mapping[str, TrainingRule]


def network(  # noqa: PLR0913 (options of a network, most of them keywords)
    depth: int | Symbol = L,
    activation: str | Any = "linear",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    backward: Backward = "transposed",
    outputs: SymbolicCount = 1,
    bias: bool | NumberOrExpression = False,
    branch: NumberOrExpression | None = None,
    relative_widths: PerLayer = None,
    init_variance: PerLayer = None,
    positions: SymbolicCount = 1,
    receptive: SymbolicCount = 0,
    weight_decay: NumberOrExpression = 0,
    momentum: NumberOrExpression = 0,
    temperature: NumberOrExpression = 0,
    sample_weights: bool = False,
    objective: str = "square",
    rules: Mapping[str, TrainingRule] | None = None,
) -> Program:
    """Return a network with ``depth`` hidden layers on P fixed samples.

    Equations and appendices are those of selfconsistent2023, unless another paper is named.

    Parameters
    ----------
    depth : int or Symbol
        The number of hidden layers, an integer or the symbol ``L``.
    activation : str, function or Expr
        A name, a SymPy function or an expression in one symbol (:func:`.activation_of`).
    rule : str or TrainingRule
        The training rule or its name, see :func:`.training_rule`.
    loss : str
        "sum" or "mean" over samples. The mean loss divides the gradients in all rules by the number of
        samples.
    backward : {"transposed", "independent", "fixed"}
        The matrices in ``z^l = W^T g^{l+1}``: the forward ones; independent ones that receive the same
        updates (gradient independence, appendix O); or fixed random ones, with a fixed vector in place of the
        readout too (feedback alignment).
    outputs : int or Expr
        The number C of channels, each with its readout ``w(c)``, error ``Delta(mu, c, t)`` and backward
        fields; updates sum over channels (appendix I). With one channel there is no index c.
    bias : bool, number or Expr
        Adds a trained ``b(ell)`` to ``h(ell)``, ell = 1..L, the same at all positions, with this variance at
        initialisation; True for 1, False for no bias (H.1, H.2, where ``b(ell + 1)`` is called b^l).
    branch : number or Expr, optional
        Makes a residual network, ``h(ell+1) = h(ell) + branch W(ell) phi(h(ell))`` and ``g(ell) = g(ell+1) +
        branch phi'(h(ell)) W(ell)^T g(ell+1)`` (linear2025 71). All layers are then the same units. A bias is
        added to the stream, not to the branch.
    relative_widths : str, number or list, optional
        The ratios ``a_l = N_l/N`` as a name (a function of ell), one number, or a list for l = 1..L. Layers
        divide by the root of their fan-in, ``W/sqrt(N_l)``, so that ``h^{l+1}`` has the initial variance
        ``sigma_l^2 Phi^l`` at any width; then ``z^l = W^T g^{l+1}/sqrt(N_{l+1})``, and ``h^l`` and ``z^l``
        move by ``gamma0/sqrt(a_l)`` (D.45-D.54; there N is the width of the last layer, a_L = 1).
    init_variance : str, number or list, optional
        The variance of ``W^0 ... W^{L-1}, w``: a name for the standard deviation, ``"sigma"`` for
        ``sigma(l)^2`` with l = 0..L (D.50), one number, or a list of L + 1.
    positions, receptive : int or Expr
        As for :func:`.convolution`.
    weight_decay, momentum, temperature : number or Expr
        As for :func:`.training_rule`.
    sample_weights : bool
        Whether the loss of sample mu is multiplied by a given weight ``rho(mu)``. For the square loss the
        error, minus the derivative of the loss by the output (eq. 4), is then ``rho(mu) (y(mu) - f(mu, t))``.
        A sample with ``rho = 0`` is a test point: it has fields, kernels and an output, and does not move
        weights. The mean loss then divides by ``P_train``, the sum of all weights, instead of P.
    objective : str
        The loss of an output: ``square``; ``logistic`` or ``hinge`` for labels that are signs; or
        ``cross-entropy`` for outputs as classes.
    rules : mapping of str to TrainingRule, optional
        Training rules of single weights, by their names ``W0``, ``W`` (the family of hidden matrices), ``w``
        and ``b``, such as ``{"W": muon(eta)}``.

    Returns
    -------
    Program
        The trained network.

    Raises
    ------
    ProgramError
        If an option does not describe a network; the message names it.

    Examples
    --------
    >>> network(2, "tanh", bias=True).name
    'multilayer perceptron with biases'
    """
    last = layer_count(depth)
    if backward not in ("transposed", "fixed", "independent"):
        raise ProgramError(f"backward = {backward!r}: must be 'transposed', 'fixed' or 'independent'")
    if branch is not None:
        NONZERO.require(branch, "branch")
    if branch is not None and relative_widths is not None:
        raise ProgramError(
            "relative_widths with branch: all layers of a residual network have the same units, and so one "
            "width; leave relative_widths out"
        )
    size = per_layer("init_variance", init_variance, 0, last)
    variance = size**2 if isinstance(init_variance, str) else size
    numbers = {"weight_decay": weight_decay, "momentum": momentum, "temperature": temperature}
    samples = P_train if sample_weights else P
    trained_by = rule_of(rule, loss, samples, **numbers)
    phi = activation_of(activation)
    channels, places, offsets = indices(outputs, positions, receptive)
    width = per_layer("relative_widths", relative_widths, 1, last)

    # Populations, fields and initial weights. With a residual branch all layers share their units, so that
    # their fields can be added.
    layer = Population("layer", ratio=width, shared=branch is not None)
    x, h = GivenVector("x", Population("input", given=True), "K_x"), Field("h", layer, layered=True)
    interior, hidden = IndexRange(ell, Integer(1), last - 1), IndexRange(ell, Integer(1), last)
    W0 = GaussianMatrix("W0", layer.at(1), x.population, variance.subs(ell, 0), others=offsets)
    family = {"index": interior, "responses": ("A", "B"), "others": offsets}
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), variance / width, **family)  # type: ignore[arg-type]
    w = GaussianVector("w", layer.at(last), variance.subs(ell, last), indices=(*places, *channels))
    start = expression(0 if bias is False else 1 if bias is True else bias, "bias")
    b = GaussianVector("b", layer.at(ell), start, "b", (hidden,))

    # The forward pass (selfconsistent2023 D.1, G.1, H.1). The indices of a field are `at`: the sample and, if
    # there are positions, the position. `channel` has the index of the channel of the output, if there is
    # one.
    at, channel = (mu, *(r.index for r in places)), tuple(r.index for r in channels)
    near = (mu, *(r.index + (k if offsets else 0) for r in places))
    first, later = W0(k) if offsets else W0, W(ell, k) if offsets else W(ell)

    def added(site: Expr) -> Expr:
        """Return the bias that is added to the field of the layer ``site``; zero without biases."""
        return S.Zero if bias is False else b(site)

    stream = S.Zero if branch is None else h(ell, *at, t)
    through = S.One if branch is None else expression(branch, "branch")
    handed = over(through * (later @ phi(h(ell, *near, t))), offsets)
    read = Mean(w.symbol * phi(h(last, *at, t)))
    out = f(mu, *channel, t)
    forward = {
        h(1, *at, t): over(first @ x(*near), offsets) + added(S.One),
        h(ell + 1, *at, t): stream + handed + added(ell + 1),
        out: width.subs(ell, last) * over(read, places) / gamma0,
    }
    net = Network(
        _name(phi.linear, branch, places, bias, channels, backward),
        (h,),
        forward,
        (W0, W, w, *(() if bias is False else (b,))),
        given=(x,),
        ranges=(*places, *channels, interior),
        depth=last,
    )
    counts = Function(SAMPLE_WEIGHT)(mu) if sample_weights else S.One
    feedback: dict[str, Any] = {} if backward == "transposed" else {"W": replace(W, name="V", responses=None)}
    if backward == "fixed":
        feedback["w"] = replace(w, name="v")
    return net.train(
        counts * objective_of(objective, y(mu, *channel), out, channels),
        trained_by,
        gradients={"h": Gradient("g", "z")},
        feedback=feedback,
        learning_feedback=backward == "independent",
        rules=rules_of(rules, loss, samples),
    )


def _name(linear: bool, branch: Any, places: Any, bias: Any, channels: Any, backward: str) -> str:
    """Return the name of a network from its options."""
    residual = branch is not None
    plain = "network" if linear or residual else "multilayer perceptron"
    kind = "convolutional network" if places else plain
    extras = {"biases": bias is not False, "several outputs": channels, "fixed feedback": backward == "fixed"}
    with_extras = " and ".join(x for x, there in extras.items() if there)
    words = ["deep linear"] * linear + ["residual"] * residual + [kind]
    return " ".join(words) + (f" with {with_extras}" if with_extras else "")


def mlp(
    depth: int | Symbol = L,
    activation: str | Any = "linear",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    tied: bool = True,
    **options: Unpack[Options],
) -> Program:
    """Return a multilayer perceptron trained on P fixed samples (selfconsistent2023 eq. 1, 2).

    Parameters
    ----------
    depth : int or Symbol
        The number of hidden layers, an integer or the symbol ``L``.
    activation : str, function or Expr
        A name, a SymPy function or an expression in one symbol.
    rule : str or TrainingRule
        The training rule or its name, see :func:`.training_rule`.
    loss : str
        "sum" or "mean" over samples, as for :func:`.network`.
    tied : bool
        Whether the backward pass uses the forward matrices; otherwise independent ones that receive the same
        updates (appendix O).
    **options
        Other options of :func:`.network`: outputs, bias, branch, relative_widths, init_variance,
        weight_decay, momentum, temperature, sample_weights, objective, rules.

    Returns
    -------
    Program
        The trained network.

    Raises
    ------
    ProgramError
        If the depth is below one, an activation, rule or loss is unknown, or another option is invalid.

    Examples
    --------
    >>> mlp(2).depth
    2
    >>> mlp(L, "relu", branch=Symbol("beta"), bias=True).name
    'residual network with biases'
    """
    return network(depth, activation, rule, loss, backward="transposed" if tied else "independent", **options)


def convolution(
    depth: int | Symbol = L,
    activation: str | Any = "linear",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    positions: SymbolicCount,
    receptive: SymbolicCount,
    tied: bool = True,
    **options: Unpack[Options],
) -> Program:
    """Return a convolutional network with infinitely many channels (selfconsistent2023 G.1-G.6).

    Parameters
    ----------
    depth : int or Symbol
        The number of hidden layers, an integer or the symbol ``L``.
    activation : str, function or Expr
        As for :func:`.mlp`.
    rule : str or TrainingRule
        The training rule or its name, see :func:`.training_rule`.
    loss : str
        "sum" or "mean" over samples, as for :func:`.network`.
    positions : int or Expr
        The number of positions ``p``, on a ring: positions are counted modulo this number.
    receptive : int or Expr
        The number S of neighbours on each side: filters ``W(ell, k)`` have the offsets ``k`` = -S..S.
        One position removes the index p, and ``receptive=0`` removes k.
    tied : bool
        As for :func:`.mlp`.
    **options
        Other options of :func:`.network`.

    Returns
    -------
    Program
        The trained network.

    Raises
    ------
    ProgramError
        If an option does not describe a network, or a filter is wider than the ring.

    Notes
    -----
    The layers are

        h(ell+1, mu, p) = sum_k W(ell, k) phi(h(ell, mu, p + k)),
        z(ell, mu, p) = sum_k W(ell, k)^T g(ell+1, mu, p - k),

    and ``h(1, mu, p) = sum_k W0(k) x(mu, p + k)``, with inputs known by ``K_x(mu, p, alpha, q)``. Each
    position has its own readout ``w(p)``, and ``f = sum_p w(p) . phi(h(L, mu, p))/(gamma0 N)``, as the
    indices of the paper imply (its sum over positions is not written); nothing is divided by the number of
    positions or offsets.

    Examples
    --------
    >>> X, S = (Symbol(n, integer=True, positive=True) for n in "XS")
    >>> convolution(positions=X, receptive=S).definitions[1].rhs
    Sum(W(ell, k) @ h(ell, mu, k + p, t), (k, -S, S))
    """
    return network(
        depth,
        activation,
        rule,
        loss,
        backward="transposed" if tied else "independent",
        positions=positions,
        receptive=receptive,
        **options,
    )


def feedback_alignment(
    depth: int | Symbol = L,
    activation: str | Any = "linear",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    **options: Unpack[Options],
) -> Program:
    """Return a network whose backward pass uses fixed random weights: feedback alignment.

    Parameters
    ----------
    depth : int or Symbol
        The number of hidden layers, an integer or the symbol ``L``.
    activation : str, function or Expr
        As for :func:`.mlp`.
    rule : str or TrainingRule
        The training rule or its name, see :func:`.training_rule`.
    loss : str
        "sum" or "mean" over samples, as for :func:`.network`.
    **options
        Other options of :func:`.network`.

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
    The backward pass is ``z(ell) = V(ell)^T g(ell + 1)`` and ``z(L) = v``. The matrices ``V(ell)`` and the
    vector ``v`` (one for each output) are independent of ``W(ell)`` and ``w``, have the same variances and
    are never trained. The readout is the field ``omega(L) = w``. With one hidden layer only ``v`` differs
    from gradient descent.

    Examples
    --------
    >>> [x.name for x in feedback_alignment(3, "tanh").trained()]
    ['W0', 'W', 'w']
    """
    return network(depth, activation, rule, loss, backward="fixed", **options)


def recurrent(  # noqa: PLR0913 (options of a network, most of them keywords)
    steps: int | Symbol = L,
    activation: str | Any = "tanh",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    outputs: SymbolicCount = 1,
    bias: bool | NumberOrExpression = False,
    branch: NumberOrExpression | None = None,
    init_variance: NumberOrExpression = 1,
    weight_decay: NumberOrExpression = 0,
    momentum: NumberOrExpression = 0,
    temperature: NumberOrExpression = 0,
) -> Program:
    """Return a network whose hidden layers are one layer of units that applies one matrix repeatedly.

    Parameters
    ----------
    steps : int or Symbol
        The number of hidden layers, an integer or the symbol ``L``.
    activation : str, function or Expr
        As for :func:`.mlp`.
    rule : str or TrainingRule
        The training rule or its name, see :func:`.training_rule`.
    loss : str
        "sum" or "mean" over samples, as for :func:`.network`.
    outputs : int or Expr
        The number of channels.
    bias : bool, number or Expr
        The variance of the bias; True for 1, False for no bias.
    branch : number or Expr, optional
        Adds ``h(k)`` to ``h(k+1)`` and multiplies ``W`` by this factor, which must not be zero.
    init_variance : number or Expr
        The variance of every weight except ``b``.
    weight_decay, momentum, temperature : number or Expr
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
    The network is

        h(1, mu) = W0 x(mu) + b,   h(k+1, mu) = W phi(h(k, mu)) + b,   f = w . phi(h(steps, mu))/(gamma0 N),

    trained by backpropagation through all k: ``z(k) = W^T g(k+1)``, and the update of ``W`` sums ``g(k+1)
    phi(h(k))^T`` over k, that of ``b`` sums ``g(k)``. The input enters at k = 1 only.

    Examples
    --------
    >>> [str(d.lhs) for d in recurrent(3, bias=True).definitions if d.name == "h"]
    ['h(1, mu, t)', 'h(k + 1, mu, t)']
    """
    last = layer_count(steps, "steps")
    trained_by = rule_of(rule, loss, weight_decay=weight_decay, momentum=momentum, temperature=temperature)
    phi, (channels, *_) = activation_of(activation), indices(outputs)
    if branch is not None:
        NONZERO.require(branch, "branch")
    start, residual = expression(init_variance, "init_variance"), branch is not None
    units, inputs = Population("units"), Population("input", given=True)
    h, x = Field("h", units, ordered=True), GivenVector("x", inputs, "K_x")
    W0, W = GaussianMatrix("W0", units, inputs, start), GaussianMatrix("W", units, units, start)
    w = GaussianVector("w", units, start, indices=channels)
    b = GaussianVector(
        "b", units, expression(int(bias) if isinstance(bias, bool) else bias, "bias"), source="b"
    )
    shift = b.symbol if bias is not False else S.Zero
    stream, scale = (h(k, mu, t), expression(branch, "branch")) if residual else (S.Zero, S.One)
    out = f(mu, *(r.index for r in channels), t)
    net = Network(
        "recurrent network",
        (h,),
        {
            h(1, mu, t): W0 @ x(mu) + shift,
            h(k + 1, mu, t): stream + scale * (W @ phi(h(k, mu, t))) + shift,
            out: Mean(w.symbol * phi(h(last, mu, t))) / gamma0,
        },
        (W0, W, w, *(() if bias is False else (b,))),
        given=(x,),
        ranges=(*channels, IndexRange(k, Integer(1), last - 1)),
        depth=last,
    )
    square = (y(*out.args[:-1]) - out) ** 2 / 2
    return net.train(square, trained_by, gradients={"h": Gradient("g", "z")})
