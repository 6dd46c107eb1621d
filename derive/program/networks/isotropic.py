"""Deep linear networks on isotropic random data, in proportion: width, samples and features grow together
(linear2025 sections 2, 3, appendices A, C, D, F, G).

The number of features D is the reference size, so the features have ratio 1, layer ell has ``nu`` (or
``nu(ell)``), the samples ``alpha`` and a fresh batch ``alpha_B``.  A weight ``W/sqrt(N_l)`` or
data matrix ``X/sqrt(D)`` is one matrix here, its factor in the variance: 1 for X and W0, ``1/nu(ell)`` for
``W(ell)``.  With this, eq. 5 reads, entry by entry,

    h0 = X^T Delta / alpha,  h^1 = W0 h0,  h^{l+1} = W^l h^l,  v = w_star - W0^T g^1 / (nu_L gamma0),

and the updates ``eta gamma0 g^1 h0^T / D`` of W0, ``(eta gamma0 / nu_l) g^{l+1} h^l^T / D`` of ``W^l`` and
``eta gamma0 h^L`` of the readout.  The mean over samples of the loss is in h0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sympy import Expr, Integer, S, Symbol, sqrt, sympify
from sympy.core.function import AppliedUndef

from derive.errors import ProgramError
from derive.program.networks.rules import training_rule
from derive.program.program import Definition, Program
from derive.program.training import Along, Outer, TrainedMatrix, TrainedVector, TrainingRule
from derive.program.words import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    IndexRange,
    L,
    Population,
    ell,
    gamma0,
    t,
)

nu = Symbol("nu", positive=True)
"""Width over features, N/D."""
alpha = Symbol("alpha", positive=True)
"""Samples over features, P/D."""
alpha_B = Symbol("alpha_B", positive=True)
"""Batch size over features, B/D."""
sigma = Symbol("sigma", positive=True)
"""Standard deviation of the label noise."""
c = Symbol("c", integer=True, positive=True)
"""An output channel."""

DATA = {"full-batch": alpha, "online": alpha_B, "population": S.Infinity}
"""How the loss is averaged over data, and the number of samples at each step over that of features."""


def isotropic(
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
    """A deep linear network on isotropic data, ``x ~ N(0, 1)``, ``y = w_star . x/sqrt(D) + sigma eps``.

    ``depth`` is the number of hidden layers, an integer or ``L``.  ``data`` is ``"full-batch"`` (alpha D
    samples used at every step, eq. 6), ``"online"`` (alpha_B D new ones, eq. 7, 96) or ``"population"``
    (their limit, eq. 71).  ``noise`` is sigma, or True for a symbol.  ``center`` subtracts the initial
    function (eq. 69).  ``branch`` makes the network residual (eq. 16) with this multiplier.  ``widths`` is
    the ratio nu, or a function of the layer (eq. 118).  ``outputs`` counts channels (eq. 120).  With
    ``parametrization="ntk"`` gamma0 becomes ``gamma0/sqrt(nu_L)`` (appendix B).  ``rule`` is a training
    rule or its name; the mean over samples is in the fields, so its rate is that of the summed loss.

    Fields: ``v``, ``h0`` (and ``xi``, the network's function, if centred) on features, ``Delta`` on samples,
    ``h(ell)`` and ``g(ell)``; with channels, their index ``c`` comes before the time.

    Raises :class:`ProgramError` for an unknown word, a depth below one, label noise without samples, a
    residual network of unequal widths, or fresh batches in continuous time.

    >>> [d.name for d in isotropic(data="online").causal_order()]
    ['g', 'g', 'v', 'Delta', 'h0', 'h', 'h']
    """
    build = LinearNetwork(
        depth,
        rule,
        widths=widths,
        outputs=outputs,
        branch=branch,
        scale=gamma0 if parametrization == "mean-field" else None,
    )
    if parametrization not in ("mean-field", "ntk"):
        raise ProgramError(f"parametrization = {parametrization!r}: must be 'mean-field' or 'ntk'")
    if data not in DATA:
        raise ProgramError(f"data = {data!r}: must be one of {', '.join(DATA)}")
    strength = sigma if noise is True else sympify(noise or 0)
    share, fresh = DATA[data], data == "online"
    if share == S.Infinity and strength != 0:
        raise ProgramError("noise: the population's loss has no samples, so its labels have no noise to fit")

    samples = Population("samples", ratio=share if share != S.Infinity else S.One)
    features = build.inputs
    Delta = Field("Delta", samples)
    X = GaussianMatrix(
        "X", samples, features, sources=("u_Delta", "u0"), responses=("R_vu", "R_Delta"), fresh=fresh
    )
    eps = GaussianVector("eps", samples, source="eps", indices=build.over, fresh=fresh)
    w_star = GaussianVector("w_star", features, source="w_star", indices=build.over)
    v, h0, at = build.v, build.h0, build.at

    definitions = build.function(w_star.symbol, center)
    if share == S.Infinity:
        definitions.append(Definition(at(h0), at(v), build.over))
    else:
        error = X @ at(v) + strength * eps.symbol
        definitions.append(Definition(at(Delta), error, build.over))
        definitions.append(Definition(at(h0), (X.T @ at(Delta)) / share, build.over))
    observed = {at(v): "C_v", at(h0): "C_h0"} | ({} if share == S.Infinity else {at(Delta): "C_Delta"})
    return build.program(
        f"deep linear network, isotropic data ({data})",
        definitions,
        fields=() if share == S.Infinity else (Delta,),
        matrices=() if share == S.Infinity else (X,),
        vectors=(w_star, *((eps,) if strength != 0 else ())),
        notation=observed,
    )


class LinearNetwork:
    """The part of a linear network that all data share: weights, forward and backward pass, function.

    ``inputs`` is the population of features (or modes); ``unit`` the variance of the entries of W0 in
    units of one over the reference size, ``scale`` the factor gamma0 (None for NTK's).
    """

    def __init__(
        self,
        depth: int | Expr,
        rule: str | TrainingRule,
        *,
        widths: Expr | Callable[[Expr], Expr] = nu,
        outputs: int | Expr | None = None,
        branch: Expr | float | None = None,
        scale: Expr | None = gamma0,
        inputs: Population | None = None,
        unit: Expr = S.One,
    ) -> None:
        self.depth, self.unit = sympify(depth), unit
        self.rule = training_rule(rule) if isinstance(rule, str) else rule
        if isinstance(self.depth, Integer) and self.depth < 1:
            raise ProgramError(f"depth = {depth}: a network has at least one hidden layer")
        uneven = callable(widths) and not isinstance(widths, Expr)
        if uneven and branch is not None:
            raise ProgramError("widths: the layers of a residual network are the same units, of one width")
        self.width: Callable[[Expr], Expr] = widths if uneven else lambda _: sympify(widths)
        self.branch = None if branch is None else sympify(branch)
        self.layer = Population("layer", ratio=self.width(ell), shared=branch is not None)
        self.inputs = Population("features") if inputs is None else inputs
        self.channels = () if outputs is None else (c,)
        self.over = () if outputs is None else (IndexRange(c, Integer(1), sympify(outputs)),)
        self.v, self.h0, self.xi = (Field(n, self.inputs) for n in ("v", "h0", "xi"))
        self.h, self.g = (Field(n, self.layer, layered=True) for n in "hg")
        last = self.width(self.depth)
        self.gamma = gamma0 / sqrt(last) if scale is None else scale
        self.readout = 1 / (last * unit * self.gamma)
        self.centred = False

    def at(self, x: Field, layer: Any = None, time: Any = t) -> Expr:
        """The field's entry: layer if it has one, channel if there are several, time."""
        return x(*(() if layer is None else (sympify(layer),)), *self.channels, sympify(time))

    def weights(self) -> tuple[tuple[TrainedMatrix, ...], TrainedVector]:
        """The trained matrices and the readout, with the gradient's updates."""
        at, h, g = self.at, self.h, self.g
        interior = IndexRange(ell, Integer(1), self.depth - 1)
        here, above = self.layer.at(ell), self.layer.at(ell + 1)
        W0 = GaussianMatrix("W0", self.layer.at(1), self.inputs, self.unit, sources=("u", "r0"))
        W = GaussianMatrix("W", above, here, 1 / self.width(ell), index=interior)
        w = GaussianVector("w", self.layer.at(self.depth), indices=self.over)
        through = S.One if self.branch is None else self.branch
        first = Outer(self.gamma * self.unit, at(g, 1), at(self.h0), self.over)
        inside = Outer(self.gamma * through / self.width(ell), at(g, ell + 1), at(h, ell), self.over)
        return (TrainedMatrix(W0, first, self.rule), TrainedMatrix(W, inside, self.rule)), TrainedVector(
            w, Along(self.gamma, at(h, self.depth)), self.rule
        )

    def passes(self) -> list[Definition]:
        """The forward pass of the averaged inputs and the backward pass."""
        at, h, g, over = self.at, self.h, self.g, self.over
        (W0, W), w = self.weights()
        family = (*over, W.initial.index) if W.initial.index else over
        up, down = W.initial(ell) @ at(h, ell), W.initial(ell).T @ at(g, ell + 1)
        if self.branch is not None:
            up, down = at(h, ell) + self.branch * up, at(g, ell + 1) + self.branch * down
        return [
            Definition(at(h, 1), W0.initial @ at(self.h0), over),
            Definition(at(h, ell + 1), up, family),
            Definition(at(g, self.depth), w.initial.symbol, over),
            Definition(at(g, ell), down, family),
        ]

    def function(self, target: Expr, center: bool) -> list[Definition]:
        """What the network has yet to learn, ``v = target - xi`` (plus ``xi(0)`` if centred)."""
        at, (W0, _) = self.at, self.weights()[0]
        learnt = self.readout * (W0.initial.T @ at(self.g, 1))
        self.centred = center
        if not center:
            return [Definition(at(self.v), target - learnt, self.over)]
        gap = target - at(self.xi) + at(self.xi, time=0)
        return [Definition(at(self.xi), learnt, self.over), Definition(at(self.v), gap, self.over)]

    def program(
        self,
        name: str,
        definitions: list[Definition],
        *,
        fields: tuple[Field, ...],
        matrices: tuple[GaussianMatrix, ...],
        vectors: tuple[GaussianVector, ...],
        notation: dict[Expr, str],
        attributes: tuple[Attribute, ...] = (),
    ) -> Program:
        """Everything put together."""
        weights, readout = self.weights()
        own = (*((self.xi,) if self.centred else ()), self.v, self.h0)
        return Program(
            name=name,
            rule=self.rule,
            fields=(*own, *fields, self.h, self.g),
            definitions=tuple(definitions + self.passes()),
            matrices=(*matrices, *weights),
            vectors=(*vectors, readout),
            attributes=attributes,
            constants=tuple(sorted(str(a.func) for a in self.layer.ratio.atoms(AppliedUndef))),
            notation=notation | {self.at(self.h, ell): "C_h", self.at(self.g, ell): "C_g"},
            depth=self.depth,
        )
