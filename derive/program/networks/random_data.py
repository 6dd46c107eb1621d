"""Networks on random data: deep linear networks on isotropic or structured inputs, and perceptrons.

Isotropic data (linear2025 sections 2, 3, appendices A, C, D, F, G): all sizes grow in proportion. The number
of features D is the reference size, so that the features have ratio 1, layer ell has ``nu`` (or ``nu(ell)``),
the samples ``alpha`` and a fresh batch ``alpha_B``. A weight ``W/sqrt(N_l)`` or data matrix ``X/sqrt(D)`` is
one matrix here, with its factor in the variance: 1 for X and W0, ``1/nu(ell)`` for ``W(ell)``. A linear
network multiplies inputs by the vector ``xi = W0^T W^T ... w/(nu_L gamma0)``. Its forward pass is

    g^L = w,  g^l = W^l^T g^{l+1},  v = w_star - W0^T g^1/(nu_L gamma0),  Delta = X v + sigma eps,

with the loss ``|Delta|^2/(2P)``. The chain rule gives (eq. 5) ``h0 = X^T Delta/alpha``, ``h^1 = W0 h0``,
``h^{l+1} = W^l h^l`` and the updates ``eta gamma0 g^1 h0^T/D``, ``(eta gamma0/nu_l) g^{l+1} h^l^T/D``, ``eta
gamma0 h^L``.

Structured data (section 4, appendix E): inputs have covariance ``diag(lamda(k))``. The eigenvalues may be
summable, so that the number M of modes is not proportional to other sizes: batch B and width N stay explicit.
M is the reference size (the modes have ratio 1, samples B/M, layers N/M), and the variances compensate, for
example M for the matrix of standard normal inputs. Every average over modes has a factor M, and
:func:`derive.reduce.data.mode_sums` writes the two as a sum over modes without M.

One layer of weights (perceptron): features are N units, samples ``ratio`` N; the data are one Gaussian matrix
``Z``, samples times features with entries N(0, 1/N), used forwards for predictions and backwards for the
gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sympy import Expr, Function, Integer, S, Symbol, exp, log, sign, sqrt

from derive.calculus.intervals import NONNEGATIVE, NONZERO
from derive.calculus.symbols import IndexRange, L, ell, expression, gamma0, t
from derive.errors import ProgramError
from derive.program.language import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    Mean,
    Population,
    layer_count,
)
from derive.program.network import Network
from derive.program.networks.options import (
    NumberOrExpression,
    activation_of,
    indices,
    rule_of,
    training_rule,
)
from derive.program.program import Program
from derive.program.rules import TrainingRule
from derive.program.training import Gradient, Parametrization

nu = Symbol("nu", positive=True)
"""Width over features, N/D."""
alpha = Symbol("alpha", positive=True)
"""Samples over features, P/D."""
alpha_B = Symbol("alpha_B", positive=True)
"""Batch size over features, B/D."""
sigma = Symbol("sigma", positive=True)
"""Standard deviation of the label noise."""
c = Symbol("c", integer=True, positive=True)
"""Index of output channels."""
B, P, N = (Symbol(n, positive=True) for n in "BPN")
"""Batch size, samples that are used at every step, and width, of structured data."""
M = Symbol("M", integer=True, positive=True)
"""The number of modes; it drops out when averages over modes are written as sums."""
k = Symbol("k", integer=True, positive=True)
"""Index of modes."""
kappa = Symbol("kappa", positive=True)
"""Samples over features of a perceptron."""
rho = Symbol("rho", positive=True)
"""Variance of each entry of the mean m of a mixture of Gaussians."""

DATA = {"full-batch": alpha, "online": alpha_B, "population": S.Infinity}
"""The values of the option ``data``, with the number of samples of a step over the number of features."""


NAMES: Any = {"sources": ("u_Delta", "u0"), "responses": ("R_vu", "R_Delta")}
"""Names of the sources and responses of products with a data matrix."""


def isotropic(  # noqa: PLR0913 (options of a network, most of them keywords)
    depth: int | Expr = L,
    *,
    data: str = "full-batch",
    noise: bool | Expr = False,
    center: bool = False,
    branch: Expr | float | None = None,
    widths: Expr | Callable[[Expr], Expr] = nu,
    outputs: int | Expr | None = None,
    parametrization: str = "mean-field",
    rule: str | TrainingRule = "gd",
) -> Program:
    """Return a deep linear network on isotropic data.

    Inputs x have D features, and labels are ``y = w_star . x/sqrt(D) + sigma eps``. The entries of x and of
    ``w_star``, and eps, are N(0, 1). Equations and appendices are those of linear2025.

    Parameters
    ----------
    depth : int or Expr
        The number of hidden layers, an integer or ``L``.
    data : {"full-batch", "online", "population"}
        alpha D samples used at every step (eq. 6), alpha_B D new ones at each step (eq. 7, 96), or the limit
        of infinitely many samples (eq. 71).
    noise : bool or Expr
        The standard deviation of label noise, or True for the symbol ``sigma``.
    center : bool
        Whether the output of the initial network is subtracted from the output (eq. 69).
    branch : number or Expr, optional
        Makes the network residual with this multiplier (eq. 16).
    widths : Expr or callable
        The number of units of a layer over the number of features, or this ratio as a function of the layer
        (eq. 118).
    outputs : int or Expr, optional
        The number of channels (eq. 120); their index ``c`` comes before the time.
    parametrization : {"mean-field", "ntk"}
        With "ntk" gamma0 becomes ``gamma0/sqrt(nu_L)`` (appendix B).
    rule : str or TrainingRule
        A training rule or its name. The loss is the mean over samples already, so that the rate is not
        divided by their number.

    Returns
    -------
    Program
        A program with these fields: on features ``v``, the target minus the vector ``xi`` by which the
        network multiplies inputs (a field too with ``center``), and ``h0``, proportional to minus the
        gradient of the loss by xi; on samples the errors ``Delta``; on units of layer ell the gradient
        ``g(ell)`` and ``h(ell)``, h0 multiplied by the weights below. With "population" there are no samples
        and no ``Delta``.

    Raises
    ------
    ProgramError
        For an unknown value of ``data`` or ``parametrization``, a depth below one, label noise without
        samples, a ``branch`` of zero or with ``widths`` as a function, or fresh batches in continuous time.

    Examples
    --------
    >>> [d.name for d in isotropic(data="online").causal_order()]
    ['g', 'g', 'v', 'Delta', 'h0', 'h', 'h']
    """
    build = _Linear(depth, rule, parametrization, widths, outputs, branch, center=center)
    if not isinstance(data, str) or data not in DATA:
        raise ProgramError(f"data = {data!r}: must be one of {', '.join(DATA)}")
    share, fresh = DATA[data], data == "online"
    w_star = GaussianVector("w_star", build.inputs, source="w_star", indices=build.over)
    name = f"deep linear network, isotropic data ({data})"
    v = build.at(build.v)
    if share == S.Infinity:
        require_samples(noise)
        return build.program(name, w_star.symbol, {v: "C_v"}, Mean(v**2) / 2, frozen=(w_star,))
    samples = Population("samples", ratio=share)
    X = GaussianMatrix("X", samples, build.inputs, fresh=fresh, **NAMES)
    eps = GaussianVector("eps", samples, source="eps", indices=build.over, fresh=fresh)
    return build.program(name, w_star.symbol, {v: "C_v"}, None, X, v, eps, noise_strength(noise), (w_star,))


def structured(
    depth: int | Expr = L,
    *,
    data: str = "online",
    noise: bool | Expr = False,
    center: bool = True,
    parametrization: str = "mean-field",
    rule: str | TrainingRule = "gd",
) -> Program:
    """Return a deep linear network on inputs whose covariance has the eigenvalues ``lamda(k)``.

    The target is the vector ``w_star(k)``, with one coefficient for each mode k. Equations are those of
    linear2025, here eq. 106.

    Parameters
    ----------
    depth : int or Expr
        The number of hidden layers, an integer or ``L``.
    data : {"online", "full-batch", "population"}
        B new samples at each step; the same P samples at every step (the data matrix of eq. 6 with these
        variances), in steps or in continuous time; or the gradient of very large batches (eq. 112).
    noise : bool or Expr
        The standard deviation of label noise, or True for the symbol ``sigma``.
    center : bool
        Whether the output of the initial network is subtracted from the output, as in eq. 106.
    parametrization : {"mean-field", "ntk"}
        With "ntk" gamma0 becomes ``gamma0/sqrt(N)``, so that features do not move as N grows.
    rule : str or TrainingRule
        As for :func:`isotropic`.

    Returns
    -------
    Program
        A program with these fields: on modes ``v``, the target minus the vector ``xi`` by which the network
        multiplies inputs (a field too if centred), and ``h0``, proportional to minus the gradient of the loss
        by xi; on samples the errors ``Delta``; on units of layer ell the gradient ``g(ell)`` and ``h(ell)``,
        h0 multiplied by the weights below. ``C_v`` is weighted by the eigenvalues (eq. 108), so that,
        as a sum over modes, it is the mean square of the error on new inputs without label noise. With
        "population" there are no samples: no ``Delta`` and no label noise.

    Raises
    ------
    ProgramError
        As :func:`isotropic`.

    Examples
    --------
    >>> structured().attribute_of("lamda").population.name
    'modes'
    """
    if data not in ("online", "full-batch", "population"):
        raise ProgramError(f"data = {data!r}: must be 'online', 'full-batch' or 'population'")
    modes = Population("modes")
    build = _Linear(depth, rule, parametrization, widths=N / M, inputs=modes, unit=M, center=center, ntk=N)
    lamda, target = Attribute("lamda", modes), Attribute("w_star", modes)
    v = build.at(build.v)
    seen = sqrt(lamda(k)) * v
    name = "deep linear network, structured data"
    of_modes = (lamda, target)
    if data == "population":
        require_samples(noise)
        loss = M * Mean(lamda(k) * v**2) / 2
        return build.program(f"{name} (population)", target(k), {seen: "C_v"}, loss, attributes=of_modes)
    fresh = data == "online"
    batch = Population("samples", ratio=(B if fresh else P) / M)
    Z = GaussianMatrix("Z", batch, modes, M, fresh=fresh, **NAMES)
    eps = GaussianVector("eps", batch, source="eps", fresh=fresh)
    name += "" if fresh else " (full-batch)"
    return build.program(
        name, target(k), {seen: "C_v"}, None, Z, seen, eps, noise_strength(noise), attributes=of_modes
    )


def noise_strength(noise: bool | Expr) -> Expr:
    """Return the standard deviation of label noise: the number, ``sigma`` for True, and zero for False.

    Raises ProgramError if it is negative.
    """
    strength = sigma if noise is True else expression(noise or 0, "noise")
    NONNEGATIVE.require(strength, "noise")
    return strength


def noise_variance(noise: bool | NumberOrExpression) -> Expr:
    """Return the variance of label noise: the number, ``sigma**2`` for True, and zero for False.

    Raises ProgramError if it is negative.
    """
    variance = sigma**2 if noise is True else expression(noise or 0, "noise")
    NONNEGATIVE.require(variance, "noise")
    return variance


def require_samples(noise: bool | Expr) -> None:
    """Raise ProgramError if ``noise`` is not zero; called for losses without samples.

    Label noise belongs to samples. ``noise`` is the standard deviation, or True for the symbol ``sigma``.
    """
    if noise_strength(noise) != 0:
        raise ProgramError(
            "noise with data = 'population': the population's loss has no samples, and so no labels with "
            "noise; leave noise out, or give samples with data = 'full-batch' or 'online'"
        )


class _Linear:
    """Deep linear network of any data: its weights, and the vector that inputs are multiplied by.

    ``inputs`` is the population of features (or modes). ``unit`` is the variance of the entries of W0 times
    the reference size (the number of features or modes). With the parametrization "ntk", gamma0 is divided by
    the root of ``ntk``, by default the width of the last layer over the reference size. Other arguments are
    those of :func:`isotropic`.
    """

    def __init__(  # noqa: PLR0913 (options of a network, most of them keywords)
        self,
        depth: int | Expr,
        rule: str | TrainingRule,
        parametrization: str,
        widths: Expr | Callable[[Expr], Expr] = nu,
        outputs: int | Expr | None = None,
        branch: Expr | float | None = None,
        inputs: Population | None = None,
        unit: Expr = S.One,
        center: bool = False,
        ntk: Expr | None = None,
    ) -> None:
        """Check the options and define populations and fields."""
        self.depth, self.unit, self.center = layer_count(depth), unit, center
        self.rule = training_rule(rule) if isinstance(rule, str) else rule
        uneven = callable(widths) and not isinstance(widths, Expr)
        if uneven and branch is not None:
            raise ProgramError(
                "widths with branch: all layers of a residual network have the same units; give one width "
                "for all layers instead of a function of the layer"
            )
        if parametrization not in ("mean-field", "ntk"):
            raise ProgramError(f"parametrization = {parametrization!r}: must be 'mean-field' or 'ntk'")
        self.width: Callable[[Expr], Expr] = widths if uneven else lambda _: expression(widths, "widths")
        self.last = self.width(self.depth)
        width = self.last if ntk is None else ntk
        self.gamma = gamma0 if parametrization == "mean-field" else gamma0 / sqrt(width)
        self.branch = None if branch is None else expression(branch, "branch")
        self.layer = Population("layer", ratio=self.width(ell), shared=branch is not None)
        self.inputs = Population("features") if inputs is None else inputs
        if branch is not None:
            NONZERO.require(branch, "branch")
        if outputs is not None:
            indices(outputs)
        self.channels = () if outputs is None else (c,)
        self.over = () if outputs is None else (IndexRange(c, Integer(1), expression(outputs, "outputs")),)
        self.v, self.xi = (Field(n, self.inputs) for n in ("v", "xi"))
        self.g = Field("g", self.layer, layered=True)

    def at(self, x: Field, layer: Any = None, time: Any = t) -> Expr:
        """Return a field at its indices: layer if given, channel if ``outputs`` is given, and time."""
        return x(*(() if layer is None else (expression(layer),)), *self.channels, expression(time))

    def program(  # noqa: PLR0913 (options of a network, most of them keywords)
        self,
        name: str,
        target: Expr,
        notation: dict[Expr, str],
        loss: Expr | None,
        data: GaussianMatrix | None = None,
        seen: Expr = S.Zero,
        eps: GaussianVector | None = None,
        noise: Expr = S.Zero,
        frozen: tuple[GaussianVector, ...] = (),
        attributes: tuple[Attribute, ...] = (),
    ) -> Program:
        """Return the network trained on the error ``v = target - xi``, plus ``xi(0)`` if centred.

        ``xi`` is the vector by which the network multiplies inputs, and ``target`` that of the teacher. With
        a matrix ``data`` the loss is half the mean square of ``Delta = data @ seen + noise * eps``, where
        ``seen`` is v times the standard deviation of each input; without it ``loss`` is given. ``notation``
        maps vectors to the names of their correlations. ``frozen`` are random vectors in ``target``, and
        ``attributes`` the constants of features.
        """
        at, g = self.at, self.g
        W0 = GaussianMatrix("W0", self.layer.at(1), self.inputs, self.unit, sources=("u", "r0"))
        interior = IndexRange(ell, Integer(1), self.depth - 1)
        below, above = self.layer.at(ell), self.layer.at(ell + 1)
        W = GaussianMatrix("W", above, below, 1 / self.width(ell), index=interior)
        w = GaussianVector("w", self.layer.at(self.depth), indices=self.over)
        readout = 1 / (self.last * self.unit * self.gamma)
        learnt, back = readout * (W0.T @ at(g, 1)), W(ell).T @ at(g, ell + 1)
        stream = back if self.branch is None else at(g, ell + 1) + self.branch * back
        gap = {at(self.v): target - learnt}
        if self.center:
            gap = {at(self.xi): learnt, at(self.v): target - at(self.xi) + at(self.xi, time=0)}
        lines = {at(g, self.depth): w.symbol, at(g, ell): stream, **gap}
        Delta = None
        if data is not None and eps is not None:
            Delta = Field("Delta", data.rows)
            lines[at(Delta)] = data @ seen + noise * eps.symbol
            loss, notation = Mean(at(Delta) ** 2) / 2, {**notation, at(Delta): "C_Delta"}
            frozen = (*frozen, *((eps,) if noise != 0 else ()))
        h0, h = Function("h0")(*self.channels, t), Function("h")(ell, *self.channels, t)
        fields = (*((self.xi,) if self.center else ()), self.v, *(() if Delta is None else (Delta,)), g)
        drawn = (*(() if data is None else (data,)), *frozen)
        net = Network(
            name, fields, lines, (W0, W, w), drawn, (), attributes, ranges=self.over, depth=self.depth
        )
        assert loss is not None
        return net.train(
            loss,
            self.rule,
            Parametrization(self.gamma, self.last, fan_in=(("W0", 1 / self.unit),)),
            gradients={
                "v": Gradient("h0", normal=-1 / self.unit),
                "g": Gradient("h", normal=self.last * self.gamma),
            },
            notation={**notation, h0: "C_h0", h: "C_h", at(g, ell): "C_g"},
        )


Loss = Callable[[Expr, Expr], Expr]

LOSSES: dict[str, Loss] = {
    "squared": lambda h, y: (h - y) ** 2 / 2,
    "logistic": lambda h, y: log(1 + exp(-h * y)),
}


def perceptron(  # noqa: PLR0913 (options of a network, most of them keywords)
    task: str = "teacher",
    loss: str | Any = "squared",
    rule: str | TrainingRule = "gd",
    *,
    ratio: NumberOrExpression = kappa,
    teacher: Any = None,
    noise: bool | NumberOrExpression = 0,
    signal: NumberOrExpression = rho,
    init_variance: NumberOrExpression = 1,
    weight_decay: NumberOrExpression = 0,
    momentum: NumberOrExpression = 0,
    temperature: NumberOrExpression = 0,
) -> Program:
    """Return full-batch descent of ``sum_i loss(h_i, y_i)`` with ``h = X v``, X samples times features.

    A step is ``v <- v - eta sum_i X_i loss'(h_i, y_i)``, where ``loss'`` is the derivative by the first
    argument.

    Parameters
    ----------
    task : {"teacher", "mixture"}
        "teacher": ``X = Z`` and ``y = teacher(Z v_star) + sqrt(noise) eps``, ``v_star`` and ``eps`` N(0, 1).
        "mixture": ``X_i = y_i m/N + Z_i`` with labels y = +1 or -1, equally likely, and a mean m with entries
        N(0, ``signal``); ``h = y M + Z v`` with the overlap ``M(t) = mean(m v)``.
    loss : str or callable
        "squared", "logistic" or a function of prediction and label (an undefined SymPy function too).
    rule : str or TrainingRule
        The training rule, for the summed loss.
    ratio : number or Expr
        The number of samples over N.
    teacher : callable, optional
        A function of an expression (``sign``, for example); the identity by default.
    noise : bool, number or Expr
        The variance of the label noise ("teacher"), or True for the symbol ``sigma**2``.
    signal : number or Expr
        The variance of the entries of the mean m ("mixture").
    init_variance : number or Expr
        The variance of the initial weights.
    weight_decay, momentum, temperature : number or Expr
        As for :func:`.training_rule`.

    Returns
    -------
    Program
        The trained perceptron.

    Raises
    ------
    ProgramError
        If the task or the loss is unknown, the loss does not depend on the prediction, a teacher or noise is
        given for a mixture, or a number is out of its range.

    Examples
    --------
    >>> [str(d.lhs) for d in perceptron().causal_order()]
    ['v(t)', 'h(t)', 'v_star(t)', 'h_star(t)', 'y(t)', 'Delta(t)', 'q(t)']
    """
    if task not in ("teacher", "mixture"):
        raise ProgramError(f"task = {task!r}: must be 'teacher' or 'mixture'")
    if task == "mixture" and (teacher is not None or noise != 0):
        raise ProgramError(
            "teacher and noise belong to task = 'teacher'; leave them out for task = 'mixture', whose labels "
            "are signs"
        )
    if isinstance(loss, str) and loss not in LOSSES:
        raise ProgramError(f"loss = {loss!r}: must be one of {', '.join(LOSSES)}, or a function of h and y")
    if not isinstance(loss, str) and not callable(loss):
        raise ProgramError(f"loss = {loss!r}: must be one of {', '.join(LOSSES)}, or a function of h and y")
    variance = noise_variance(noise)
    NONNEGATIVE.require(signal, "signal")
    trained_by = rule_of(rule, "sum", weight_decay=weight_decay, momentum=momentum, temperature=temperature)
    size = expression(ratio, "ratio")
    features, samples = Population("features"), Population("samples", size)
    v, h, y = Field("v", features), Field("h", samples), Field("y", samples)
    Z = GaussianMatrix("Z", samples, features)
    w = GaussianVector("w", features, expression(init_variance, "init_variance"), source="w")
    fields, lines, vectors, shift = (
        _teacher(Z, y, teacher, variance) if task == "teacher" else _mixture(y, v, signal)
    )
    cost = expression((LOSSES[loss] if isinstance(loss, str) else loss)(h(t), y(t)))
    if not cost.has(h(t)):
        raise ProgramError(f"loss = {loss!r}: does not depend on the prediction, its first argument")
    net = Network(
        f"perceptron on a {task}" if task == "mixture" else "perceptron with a teacher",
        (v, h, y, *fields),
        {v(t): w.symbol, h(t): Z @ v(t) + shift, **lines},
        (w,),
        (Z, *vectors),
    )
    named = {"h": "Delta", "v": "q"} | ({"M": "F"} if task == "mixture" else {})
    return net.train(
        size * Mean(cost),
        trained_by,
        Parametrization(S.One),
        gradients={x: Gradient(n, normal=S.One) for x, n in named.items()},
        notation={v(t): "C_v", Function("Delta")(t): "C_Delta"},
    )


LabelParts = tuple[tuple[Field, ...], dict[Expr, Expr], tuple[GaussianVector, ...], Expr]
"""Fields, definitions and initial vectors of the labels, and a term that predictions have because of them."""


def _teacher(Z: GaussianMatrix, y: Field, teacher: Any, noise: Expr) -> LabelParts:
    """Return the parts of a perceptron whose labels come from a teacher.

    The labels are ``y = teacher(Z v_star) + sqrt(noise) eps``, and ``teacher`` is the identity if it is None.
    The parts are the fields, the definitions and the random vectors of the labels. The last value is the term
    that the labels add to each prediction ``Z v``; it is zero here.
    """
    v_star, h_star = Field("v_star", Z.cols), Field("h_star", Z.rows)
    start = GaussianVector("w_star", Z.cols, source="w_star")
    eps = GaussianVector("eps", Z.rows, source="eps")
    answer = h_star(t) if teacher is None else activation_of(teacher)(h_star(t))
    label = answer + (sqrt(noise) * eps.symbol if noise != 0 else S.Zero)
    lines = {v_star(t): start.symbol, h_star(t): Z @ v_star(t), y(t): label}
    return (v_star, h_star), lines, (start, *((eps,) if noise != 0 else ())), S.Zero


def _mixture(y: Field, v: Field, signal: NumberOrExpression) -> LabelParts:
    """Return the parts of a perceptron on a mixture of two Gaussians with the means ``+m`` and ``-m``.

    The parts are the fields, the definitions and the random vectors of the mean m and of the labels ``y``,
    which are 1 or -1, equally likely. The last value is the term ``y M`` that the mean adds to each
    prediction ``Z v``, with the overlap ``M = mean(m v)``.
    """
    m, side = Field("m", v.population), Field("xi", y.population)
    mean = GaussianVector("m_0", v.population, expression(signal), source="m_0")
    coin = GaussianVector("xi_0", y.population, source="xi_0")
    M = Function("M")
    lines = {m(t): mean.symbol, side(t): coin.symbol, y(t): sign(side(t)), M(t): Mean(m(t) * v(t))}
    return (m, side), lines, (mean, coin), M(t) * y(t)
