"""The general network on P fixed samples: every option of a builder adds its lines to one program.

Conventions (selfconsistent2023 D.1-D.8; contract): ``f = w . phi(h^L)/(gamma0 N)``, weights N(0, 1) at first,
the update ``theta <- theta - eta gamma0^2 N grad(loss)`` and backward fields ``g^l = gamma0 sqrt(N N_l)
df/dh^l``.  A field has only the indices that its network needs: ``g(ell, mu, p, c, t)`` is the layer, the
sample, the position in an image, the output channel and the time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

from sympy import Expr, Function, Integer, S, Symbol, sqrt, sympify

from derive.errors import ProgramError
from derive.program.networks.activations import Activation, activation_of
from derive.program.networks.indices import Count, Indices, indices, over, symbols
from derive.program.networks.rules import Number, rule_of
from derive.program.networks.sample_weights import SAMPLE_WEIGHT, weight_of_sample
from derive.program.networks.sizes import PerLayer, per_layer
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
    P,
    P_train,
    Population,
    alpha,
    ell,
    gamma0,
    mu,
    t,
)

Backward = Literal["transposed", "independent", "fixed"]


class Options(TypedDict, total=False):
    """Keywords of :func:`network` that every builder of networks on fixed data passes on to it."""

    outputs: Count
    bias: bool | Number
    branch: Number | None
    relative_widths: PerLayer
    init_variance: PerLayer
    weight_decay: Number
    momentum: Number
    temperature: Number
    sample_weights: bool


def network(
    depth: int | Symbol = L,
    activation: str | Any = "linear",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    backward: Backward = "transposed",
    outputs: Count = 1,
    bias: bool | Number = False,
    branch: Number | None = None,
    relative_widths: PerLayer = None,
    init_variance: PerLayer = None,
    positions: Count = 1,
    receptive: Count = 0,
    weight_decay: Number = 0,
    momentum: Number = 0,
    temperature: Number = 0,
    sample_weights: bool = False,
) -> Program:
    """A network with ``depth`` hidden layers (an integer or the symbol ``L``) on P fixed samples.

    - ``activation``: a name, a SymPy function or an expression in one symbol (:func:`.activation_of`).
    - ``rule``, ``loss``, ``weight_decay``, ``momentum``, ``temperature``: see :func:`.training_rule`.
    - ``backward``: ``z^l = W^T g^{l+1}`` uses the ``"transposed"`` forward matrices, trained
      ``"independent"`` ones (gradient independence, O), or ``"fixed"`` random ones, with a fixed vector in
      place of the readout too (feedback alignment).
    - ``outputs``: C channels, each with its readout ``w(c)``, error ``Delta(mu, c, t)`` and backward fields;
      updates sum over channels (I).
    - ``bias``: ``b(ell)`` is added to ``h(ell)``, ell = 1..L, the same at all positions; it starts as N(0,
      1), or with the variance given here, and is trained (H.1, H.2, where ``b(ell + 1)`` is called b^l).
    - ``branch``: a residual network, ``h(ell+1) = h(ell) + branch W(ell) phi(h(ell))`` and ``g(ell) =
      g(ell+1) + branch phi'(h(ell)) W(ell)^T g(ell+1)`` (linear2025 71).  All layers are then the same units.
      A bias adds to the stream itself, not to the branch.
    - ``relative_widths``: ``a_l = N_l/N`` as a name (a function of ell), one number, or a list for l = 1..L.
      Layers divide by the root of their fan-in, ``W/sqrt(N_l)``, so that ``h^{l+1}`` starts with variance
      ``sigma_l^2 Phi^l`` at any width; then ``z^l = W^T g^{l+1}/sqrt(N_{l+1})``, and ``h^l`` and ``z^l``
      move by ``gamma0/sqrt(a_l)`` (D.45-D.54; there N is the width of the last layer, a_L = 1).
    - ``init_variance``: of the weights ``W^0 ... W^{L-1}, w``: a name for the standard deviation, ``"sigma"``
      for ``sigma(l)^2`` with l = 0..L (D.50), one number, or a list of L + 1.
    - ``positions``, ``receptive``: see :func:`.convolution`.
    - ``sample_weights``: the loss of sample mu counts ``rho(mu)`` times, a number known beforehand, so that
      ``Delta(mu, t) = rho(mu) (y(mu) - f(mu, t))``, minus the slope of the loss in its output (eq. 4).  One
      with ``rho = 0`` is a test point: it has fields, kernels and an output, and moves no weight.  The mean
      loss then divides by the symbol ``P_train``, the sum of all weights, instead of P.

    Raises :class:`ProgramError`, naming the option, for what does not describe a network.

    >>> network(2, "tanh", bias=True).name
    'multilayer perceptron with biases'
    """
    last = sympify(depth)
    if isinstance(last, Integer) and last < 1:
        raise ProgramError(f"depth = {depth}: a network has at least one hidden layer")
    if branch is not None and relative_widths is not None:
        raise ProgramError("relative_widths with branch: the layers of a residual network are the same units")
    variance = per_layer("init_variance", init_variance, 0, last)
    return _Network(
        last,
        activation_of(activation),
        rule_of(
            rule,
            loss,
            P_train if sample_weights else P,
            weight_decay=weight_decay,
            momentum=momentum,
            temperature=temperature,
        ),
        backward,
        indices(outputs, positions, receptive),
        None if bias is False else S.One if bias is True else sympify(bias),
        None if branch is None else sympify(branch),
        per_layer("relative_widths", relative_widths, 1, last),
        variance**2 if isinstance(init_variance, str) else variance,
        tuple(n for n in (relative_widths, init_variance) if isinstance(n, str)),
        sample_weights,
    ).program()


@dataclass(frozen=True)
class _Network:
    """The options, as expressions; each method writes the lines of one part of the program."""

    last: Expr
    activation: Activation
    rule: TrainingRule
    backward: Backward
    index: Indices
    bias: Expr | None
    branch: Expr | None
    width: Expr
    variance: Expr
    constants: tuple[str, ...]
    sample_weights: bool

    # -- populations, fields, weights at first ---------------------------------------------------------------

    @property
    def layer(self) -> Population:
        return Population("layer", ratio=self.width, shared=self.branch is not None)

    @property
    def h(self) -> Field:
        return Field("h", self.layer, layered=True)

    @property
    def g(self) -> Field:
        return Field("g", self.layer, layered=True)

    @property
    def z(self) -> Field:
        """Without a nonlinearity the pre-gradient is the gradient."""
        return self.g if self.activation.linear else Field("z", self.layer, layered=True)

    @property
    def seen(self) -> Field:
        """What the outputs read the last layer with; ``z``, unless feedback comes from elsewhere."""
        return Field("omega", self.layer, layered=True) if self.backward == "fixed" else self.z

    @property
    def x(self) -> GivenVector:
        return GivenVector("x", Population("input", given=True), "K_x")

    @property
    def interior(self) -> IndexRange:
        return IndexRange(ell, Integer(1), self.last - 1)

    @property
    def hidden(self) -> IndexRange:
        return IndexRange(ell, Integer(1), self.last)

    @property
    def W0(self) -> GaussianMatrix:
        start = self.variance.subs(ell, 0)
        return GaussianMatrix("W0", self.layer.at(1), self.x.population, start, others=self.index.offsets)

    @property
    def W(self) -> GaussianMatrix:
        rows, cols, start = self.layer.at(ell + 1), self.layer.at(ell), self.variance / self.width
        return GaussianMatrix(
            "W", rows, cols, start, self.interior, responses=("A", "B"), others=self.index.offsets
        )

    @property
    def V(self) -> GaussianMatrix:
        return self.W if self.backward == "transposed" else replace(self.W, name="V", responses=None)

    @property
    def w(self) -> GaussianVector:
        family = (*self.index.positions, *self.index.channels)
        return GaussianVector(
            "w", self.layer.at(self.last), self.variance.subs(ell, self.last), indices=family
        )

    @property
    def v(self) -> GaussianVector:
        return replace(self.w, name="v") if self.backward == "fixed" else self.w

    @property
    def b(self) -> GaussianVector:
        return GaussianVector("b", self.layer.at(ell), self.bias or S.Zero, "b", (self.hidden,))

    def width_at(self, site: Expr) -> Expr:
        return self.width.subs(ell, site)

    # -- one step --------------------------------------------------------------------------------------------

    def forward(self) -> list[Definition]:
        """Eq. D.1, G.1, H.1."""
        i, h, phi = self.index, self.h, self.activation.phi
        ranges = (*i.samples, *i.positions)
        first = i.product(S.One, self.W0, self.x(*i.shifted(i.at)))
        added = i.product(self.branch or S.One, self.W, phi(h(ell, *i.shifted(i.at), t)))
        stream = S.Zero if self.branch is None else h(ell, *i.at, t)
        biases = (S.Zero, S.Zero) if self.bias is None else (self.b(S.One), self.b(ell + 1))
        return [
            Definition(h(1, *i.at, t), first + biases[0], ranges),
            Definition(h(ell + 1, *i.at, t), stream + added + biases[1], (*ranges, self.interior)),
        ]

    def outputs(self) -> list[Definition]:
        """``f = sum over positions of w . phi(h^L)/(gamma0 N)``, and the error."""
        i, f, Delta, y = self.index, *(Function(n) for n in ("f", "Delta", "y"))
        phi = self.activation.phi(self.h(self.last, *i.at, t))
        mean = Mean(self.seen_at(self.last) * phi)
        value = sqrt(self.width_at(self.last)) * over(mean, i.positions) / gamma0
        error = y(mu, *i.channel) - f(mu, *i.channel, t)
        error = weight_of_sample() * error if self.sample_weights else error
        ranges = (*i.samples, *i.channels)
        read = Definition(self.seen_at(self.last), self.top(self.w), (*i.positions, *i.channels))
        return [
            *([read] if self.backward == "fixed" else []),
            Definition(f(mu, *i.channel, t), value, ranges),
            Definition(Delta(mu, *i.channel, t), error, ranges),
        ]

    def seen_at(self, site: Expr) -> Expr:
        i = self.index
        at = symbols(i.positions) if self.backward == "fixed" else i.at
        return self.seen(site, *at, *i.channel, t)

    def top(self, v: GaussianVector) -> Expr:
        return sqrt(self.width_at(self.last)) * v.symbol

    def backwards(self) -> list[Definition]:
        """The chain rule: D.4, D.46, G.2, I.2, linear2025 71."""
        i, g, z, linear = self.index, self.g, self.z, self.activation.linear
        ranges = (*i.samples, *i.positions, *i.channels)
        inside = (*ranges, self.interior)

        def at(field: Field, site: Expr) -> Expr:
            return field(site, *i.at, *i.channel, t)

        def slope(site: Expr) -> Expr:
            return self.activation.slope(self.h(site, *i.at, t)) * at(z, site)

        factor = sqrt(self.width) / sqrt(self.width_at(ell + 1))
        branch, stream = self.branch or S.One, S.Zero if self.branch is None else at(g, ell + 1)
        after = g(ell + 1, *i.shifted(i.at, -1), *i.channel, t)
        start = Definition(at(z, self.last), self.top(self.v), ranges)
        if linear:
            back = i.product(branch * factor, self.V, after, transposed=True)
            return [start, Definition(at(g, ell), stream + back, inside)]
        back = i.product(factor, self.V, after, transposed=True)
        chain = [start, Definition(at(z, ell), back, inside)]
        if self.branch is None:
            return [*chain, Definition(at(g, ell), slope(ell), (*ranges, self.hidden))]
        return [
            *chain,
            Definition(at(g, self.last), slope(self.last), ranges),
            Definition(at(g, ell), stream + branch * slope(ell), inside),
        ]

    # -- training --------------------------------------------------------------------------------------------

    def matrices(self) -> tuple[GaussianMatrix | TrainedMatrix, ...]:
        """Gradients of the output times the error (D.5, D.47, G.3)."""
        i, residual = self.index, self.branch or S.One
        phi = self.activation.phi(self.h(ell, *i.shifted(i.there), t))
        first = self.step(self.g_there(S.One), self.x(*i.shifted(i.there)), 1 / sqrt(self.width_at(S.One)))
        share = residual / (self.width * sqrt(self.width_at(ell + 1)))
        later = self.step(self.g_there(ell + 1), phi, share)
        if self.width != 1:  # raw weights learn at one rate, what is applied is W/sqrt(N_l)
            later = replace(later, gradient=residual / (gamma0 * sqrt(self.width_at(ell + 1))))
        found: list[GaussianMatrix | TrainedMatrix] = [
            TrainedMatrix(self.W0, first, with_noise(self.rule, self.W0.variance, "W0")),
            TrainedMatrix(self.W, later, with_noise(self.rule, self.variance, "W")),
        ]
        if self.backward == "independent":
            found.append(TrainedMatrix(self.V, later, with_noise(self.rule, self.variance, "V")))
        if self.backward == "fixed":
            found.append(self.V)
        return tuple(found)

    def vectors(self) -> tuple[GaussianVector | TrainedVector, ...]:
        """The readouts, and the biases (H.2)."""
        i = self.index
        error = gamma0 * Function("Delta")(alpha, *i.channel, t)
        phi = self.activation.phi(self.h(self.last, alpha, *symbols(i.positions), t))
        top = TrainedVector(
            self.w, Along(error, phi, i.other_samples), with_noise(self.rule, self.w.variance, "w")
        )
        found: list[GaussianVector | TrainedVector] = [top]
        if self.backward == "fixed":
            found.append(self.v)
        if self.bias is not None:
            up = Along(self.error / sqrt(self.width), self.g_there(ell), self.summed)
            found.append(TrainedVector(self.b, up, with_noise(self.rule, self.b.variance, "b")))
        return tuple(found)

    @property
    def summed(self) -> tuple[IndexRange, ...]:
        i = self.index
        return (*i.other_samples, *i.other_positions, *i.other_channels)

    @property
    def error(self) -> Expr:
        return gamma0 * Function("Delta")(alpha, *self.index.other_channel, t)

    def g_there(self, site: Expr) -> Expr:
        return self.g(site, *self.index.there, *self.index.other_channel, t)

    def step(self, left: Expr, right: Expr, share: Expr) -> Outer:
        return Outer(self.error * share, left, right, self.summed)

    # -- the whole -------------------------------------------------------------------------------------------

    def program(self) -> Program:
        i = self.index
        fields = (self.h, self.z, self.g, self.seen)
        phi = self.activation.phi(self.h(ell, *i.at, t))
        return Program(
            name=self.name,
            rule=self.rule,
            fields=tuple(dict.fromkeys(fields)),
            definitions=(*self.forward(), *self.outputs(), *self.backwards()),
            matrices=self.matrices(),
            vectors=self.vectors(),
            given=(self.x,),
            scalars=("f", "Delta"),
            constants=("y", *((SAMPLE_WEIGHT,) if self.sample_weights else ()), *self.constants),
            notation={
                phi: "H" if self.activation.linear else "Phi",
                self.g(ell, *i.at, *i.channel, t): "G",
            },
            scale=gamma0,
            depth=self.last,
        ).drop_idle_indices()

    @property
    def name(self) -> str:
        i, linear, residual = self.index, self.activation.linear, self.branch is not None
        plain = "network" if linear or residual else "multilayer perceptron"
        words = [
            *(["deep linear"] if linear else []),
            *(["residual"] if residual else []),
            "convolutional network" if i.positions else plain,
        ]
        extras = [
            *(["biases"] if self.bias is not None else []),
            *(["several outputs"] if i.channels else []),
            *(["fixed feedback"] if self.backward == "fixed" else []),
        ]
        return " ".join(words) + (f" with {' and '.join(extras)}" if extras else "")


def with_noise(rule: TrainingRule, variance: Expr, name: str) -> TrainingRule:
    """The rule for the weight ``name``: noise is the same for all weights, but is counted in units of their
    initial variance.
    """
    heat = getattr(rule, "diffusion", S.Zero)
    if heat == 0 or variance == 1:
        return rule
    if variance == 0:
        raise ProgramError(f"{name} starts at zero: noise is counted in units of its initial variance")
    return replace(rule, diffusion=heat / variance)  # type: ignore[type-var]
