"""Deep residual networks with frozen ends, trained on one sample in each step (depth2023).

Blocks have one matrix, linear (section 4, Program 1) or not (section 7), for any multiplier ``L^-alpha`` of
the branches and learning rate ``L^-gamma`` (appendix D), or two matrices (section 9), trained as they are or
linearised within each block. The input is the number ``xi(t)``, sent to the N units by the frozen vector U;
the output is read by the frozen vector V. Layers count from 0 to L: ``x(0)`` is the input and ``x(ell)``
follows block ``ell``. ``dx`` is the gradient of the loss, times N. Gradients are normalised by the multiplier
of their branch before they are multiplied by the learning rate, so that updates have no other power of L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sympy import Expr, Function, Integer, Rational, S

from derive.calculus.intervals import REAL
from derive.calculus.symbols import IndexRange, L, ell, expression, t
from derive.errors import ProgramError
from derive.program.language import Field, GaussianMatrix, GaussianVector, Mean, Population, layer_count
from derive.program.network import Network
from derive.program.program import Program
from derive.program.rules import GradientDescent, LinearSystem, LinearSystemRule
from derive.program.training import Gradient, Parametrization, TrainedMatrix

half = Rational(1, 2)
xi, f = Function("xi"), Function("f")


class _Loss(Function):
    """Loss ``loss(t, f)``, of which only the derivative ``dloss(t, f)`` by ``f`` is needed."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """Return ``dloss(t, f)``, the derivative by the output f, for any number of the argument.

        SymPy asks for the derivative by f only.
        """
        return Function("dloss")(*self.args)


def _scales(depth: Any, alpha: Any, gamma: Any) -> tuple[Expr, Expr, Expr]:
    """Return number of blocks, multiplier ``depth^-alpha`` of branches and rate ``depth^-gamma``."""
    blocks = layer_count(depth)
    for key, exponent in (("alpha", alpha), ("gamma", gamma)):
        REAL.require(exponent, key)
    return blocks, blocks ** -expression(alpha, "alpha"), blocks ** -expression(gamma, "gamma")


def depth_program(depth: int | Expr = L, alpha: Expr | float = half, gamma: Expr | float = half) -> Program:
    """Return the linear residual network of depth2023.

    For L blocks, branches are multiplied by ``L^-alpha``, and the learning rate is ``L^-gamma``; ``alpha =
    gamma = 1/2`` is Program 1.

    Parameters
    ----------
    depth : int or Expr
        The number of blocks.
    alpha, gamma : Expr or float
        The exponents of branch multiplier and learning rate, by default 1/2.

    Returns
    -------
    Program
        The program. The input ``xi(t)`` at step t and the derivative ``dloss(t, f)`` of the loss by the
        output are given functions; the scalar ``chi(t)`` is the value of this derivative.

    Raises
    ------
    ProgramError
        If the depth is below one, or an exponent is not real.

    Examples
    --------
    >>> [d.name for d in depth_program().causal_order()]
    ['x', 'x', 'readout', 'f', 'chi', 'dx', 'dx']
    """
    blocks, share, rate = _scales(depth, alpha, gamma)
    stream = Population("stream", shared=True)
    x = Field("x", stream, layered=True)
    inside = IndexRange(ell, Integer(1), blocks)
    W = GaussianMatrix("W", stream.at(ell), stream.at(ell - 1), index=inside)
    below = x(ell - 1, t)
    lines = {x(ell, t): below + share * (W(ell) @ below)}
    return _trained(
        "linear residual network with frozen ends", (x,), lines, (W,), blocks, {"W": rate / share}
    )


def nonlinear_program(depth: Expr | int = L, alpha: Expr = half, gamma: Expr = half) -> Program:
    """Return the residual network of depth2023 section 7, with one-layer blocks and frozen ends.

    Block ``ell`` is ``x(ell) = x(ell - 1) + depth^-alpha (phi(h) - mean(phi(h)))`` with the mean over units,
    ``h = W(ell) x(ell - 1)`` and an undefined function ``phi``. The number of blocks is ``depth``, and the
    learning rate is ``depth^-gamma``; both exponents are 1/2 by default. In the backward pass, ``dx`` is the
    gradient at the stream, and ``b`` the gradient at h divided by the branch multiplier. Raises
    :class:`ProgramError` for a depth below one and an exponent that is not real.

    >>> [str(d.rhs) for d in nonlinear_program().definitions if d.name == "b"]
    ['(dx(ell, t) - Mean(dx(ell, t)))*Derivative(phi(h(ell, t)), h(ell, t))']
    """
    blocks, share, rate = _scales(depth, alpha, gamma)
    stream = Population("stream", shared=True)
    x, h = (Field(n, stream, layered=True) for n in "xh")
    W = GaussianMatrix("W", stream.at(ell), stream.at(ell - 1), index=IndexRange(ell, S.One, blocks))
    seen, below = Function("phi")(h(ell, t)), x(ell - 1, t)
    lines = {h(ell, t): W(ell) @ below, x(ell, t): below + share * (seen - Mean(seen))}
    name = "residual network with mean subtraction and frozen ends"
    gradients = {"h": Gradient("b", normal=-1 / share)}
    return _trained(name, (x, h), lines, (W,), blocks, {"W": rate / share}, gradients=gradients)


def _trained(  # noqa: PLR0913 (options of a network, most of them keywords)
    name: str,
    fields: tuple[Field, ...],
    lines: dict[Expr, Expr],
    weights: tuple[GaussianMatrix, ...],
    blocks: Expr,
    rates: dict[str, Expr],
    frozen: tuple[GaussianMatrix, ...] = (),
    gradients: dict[str, Gradient] | None = None,
) -> Program:
    """Return the program of a residual stream whose input and output weights are frozen.

    ``lines`` are the definitions of the blocks, whose number is ``blocks``, and the first of ``fields`` is
    the stream. The matrices ``weights`` descend the loss of the output, with the learning rates ``rates`` by
    name; those in ``frozen`` are not trained. ``gradients`` gives names and normalisations of gradients by
    fields other than the stream.
    """
    x, stream = fields[0], fields[0].population
    readout, (U, V) = Field("readout", stream), (GaussianVector(n, stream, source=n) for n in "UV")
    inside = IndexRange(ell, S.One, blocks)
    forward = {x(0, t): xi(t) * U.symbol, **lines}
    forward |= {readout(t): V.symbol, f(t): Mean(x(blocks, t) * readout(t))}
    net = Network(name, (*fields, readout), forward, weights, (*frozen, U, V), ranges=(inside,), depth=blocks)
    minus = S.NegativeOne
    named = {"x": Gradient("dx", normal=minus), "f": Gradient("chi", normal=minus)}
    return net.train(
        _Loss(t, f(t)),
        GradientDescent(S.One),
        Parametrization(S.One, rates=tuple(rates.items())),
        gradients=named | (gradients or {}),
        notation={x(ell, t): "C_x", Function("dx")(ell, t): "C_dx"},
        together=True,
    )


@dataclass(frozen=True)
class Updates(LinearSystemRule):
    """Training rule of a weight that starts at zero and sums its updates, ``W(t + 1) = W(t) + U(t)``.

    >>> from sympy.abc import t, s
    >>> Updates().memory(t, s)
    (0, 1)
    """

    discrete: bool = True

    @property
    def system(self) -> LinearSystem:
        """The system ``W(t + 1) = W(t) + U(t)`` that starts at zero."""
        return LinearSystem(S.One, S.One, start=S.Zero)


def block_program(
    depth: int | Expr = L,
    alpha: Expr | float = half,
    gammas: tuple[Expr | float, Expr | float] = (half, half),
    *,
    multiplier: Expr = S.One,
    rate: Expr = S.One,
    linearised: bool = False,
) -> Program:
    """Return the residual network with frozen ends whose blocks have two matrices, ``Z(ell) W(ell)``.

    Branches are multiplied by ``multiplier depth^-alpha``. The rates of W and of Z are ``rate depth^-g`` for
    the two exponents g in ``gammas``. With ``linearised`` the changes of W and Z enter the network to first
    order only. ``xi(t)`` and ``dloss(t, f)`` are as for
    :func:`~derive.program.networks.residual.depth_program`. Raises :class:`ProgramError` for a depth below
    one, and if ``gammas`` are not two.

    >>> [d.name for d in block_program().definitions]
    ['x', 'h', 'x', 'readout', 'f', 'chi', 'dx', 'dx', 'b']
    >>> [d.name for d in block_program(linearised=True).definitions if d.name in "kc"]
    ['k', 'c']
    """
    blocks = layer_count(depth)
    share = multiplier * blocks ** -expression(alpha, "alpha")
    if not isinstance(gammas, Sequence) or len(gammas) != 2:
        raise ProgramError(f"gammas = {gammas!r}: must be two exponents, of the rates of W and of Z")
    slow, fast = (rate * blocks ** -expression(g, "gammas") for g in gammas)
    stream, hidden = Population("stream", shared=True), Population("hidden")
    x, h, k = Field("x", stream, layered=True), *(Field(n, hidden, layered=True) for n in "hk")
    inside = IndexRange(ell, S.One, blocks)
    W = GaussianMatrix("W", hidden.at(ell), stream.at(ell - 1), index=inside)
    Z = GaussianMatrix("Z", stream.at(ell), hidden.at(ell), index=inside)
    below, here = x(ell - 1, t), h(ell, t)
    name, passed = "residual network with blocks of two matrices", -1 / share
    if not linearised:
        lines = {here: W(ell) @ below, x(ell, t): below + share * (Z(ell) @ here)}
        rates, gradients = {"W": slow / share, "Z": fast / share}, {"h": Gradient("b", normal=passed)}
        return _trained(name, (x, h), lines, (W, Z), blocks, rates, gradients=gradients)
    moved_w, moved_z = replace(W, name="dW"), replace(Z, name="dZ")
    lines = {
        here: W(ell) @ below,
        k(ell, t): here + moved_w(ell) @ below,
        x(ell, t): below + share * (Z(ell) @ k(ell, t) + moved_z(ell) @ here),
    }
    rates = {"dW": slow / share, "dZ": fast / share}
    gradients = {"k": Gradient("b", normal=passed), "h": Gradient("c", normal=passed)}
    weights = (moved_w, moved_z)
    program = _trained(f"{name}, linearised", (x, h, k), lines, weights, blocks, rates, (W, Z), gradients)
    matrices: tuple[Any, ...] = tuple(
        replace(m, rule=Updates()) if isinstance(m, TrainedMatrix) else m for m in program.matrices
    )
    return replace(program, matrices=matrices)
