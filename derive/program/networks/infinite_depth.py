"""Deep residual networks with frozen ends, linear or not, trained on one sample a step (depth2023 sections 4,
7), for any multiplier ``L^-a`` of their branches and learning rate ``L^-b`` (appendix D).

The input is the number ``xi(t)``, sent to the network's N units by the frozen vector U; the output is read
by the frozen vector V.  Layers count from 0 to L: ``x(0)`` is the input and ``x(ell)`` comes after block
``ell``.  ``dx`` is the gradient of the loss, times N.
"""

from __future__ import annotations

from sympy import Derivative, Expr, Function, Integer, Rational, S, sympify

from derive.errors import ProgramError
from derive.program.program import Definition, Program
from derive.program.training import GradientDescent, Outer, TrainedMatrix
from derive.program.words import (
    Field,
    GaussianMatrix,
    GaussianVector,
    IndexRange,
    L,
    Mean,
    Population,
    ell,
    t,
)

half = Rational(1, 2)


def depth_program(depth: int | Expr = L, alpha: Expr | float = half, gamma: Expr | float = half) -> Program:
    """The linear residual network of depth2023: branches times ``L^-alpha``, learning rate ``L^-gamma``.

    At ``alpha = gamma = 1/2`` this is Program 1.  ``xi(t)`` is the input at step t and ``chi(t)`` the slope
    ``dloss(t, f)`` of the loss there; both functions are given.

    Raises :class:`ProgramError` for a depth below one.

    >>> [d.name for d in depth_program().causal_order()]
    ['x', 'x', 'readout', 'f', 'chi', 'dx', 'dx']
    """
    blocks = sympify(depth)
    if isinstance(blocks, Integer) and blocks < 1:
        raise ProgramError(f"depth = {depth}: a network has at least one block")
    share, rate = blocks ** -sympify(alpha), blocks ** -sympify(gamma)
    stream = Population("stream", shared=True)
    x, dx = (Field(n, stream, layered=True) for n in ("x", "dx"))
    readout = Field("readout", stream)
    xi, f, chi, dloss = (Function(n) for n in ("xi", "f", "chi", "dloss"))
    inside = IndexRange(ell, Integer(1), blocks)

    W = GaussianMatrix("W", stream.at(ell), stream.at(ell - 1), index=inside)
    U = GaussianVector("U", stream, source="U")
    V = GaussianVector("V", stream, source="V")
    gradient = Outer(-rate, dx(ell, t), x(ell - 1, t))

    return Program(
        name="linear residual network with frozen ends",
        rule=(rule := GradientDescent(S.One)),
        fields=(x, dx, readout),
        definitions=(
            Definition(x(0, t), xi(t) * U.symbol),
            Definition(x(ell, t), x(ell - 1, t) + share * (W(ell) @ x(ell - 1, t)), (inside,)),
            Definition(readout(t), V.symbol),
            Definition(f(t), Mean(x(blocks, t) * readout(t))),
            Definition(chi(t), dloss(t, f(t))),
            Definition(dx(blocks, t), chi(t) * readout(t)),
            Definition(dx(ell - 1, t), dx(ell, t) + share * (W(ell).T @ dx(ell, t)), (inside,)),
        ),
        matrices=(TrainedMatrix(W, gradient, rule),),
        vectors=(U, V),
        scalars=("f", "chi"),
        constants=("xi", "dloss"),
        notation={x(ell, t): "C_x", dx(ell, t): "C_dx"},
        depth=blocks,
    )


def nonlinear_program(depth: Expr | int = L, alpha: Expr = half, gamma: Expr = half) -> Program:
    """The residual network of depth2023 section 7 with one-layer blocks, frozen ends and one sample a step.

    ``b`` is the gradient in front of the nonlinearity, in units of the branch; the learning rate is L^-gamma.
    """
    blocks = sympify(depth)
    share, rate = blocks ** -sympify(alpha), blocks ** -sympify(gamma)
    stream = Population("stream", shared=True)
    x, h, b, dx = (Field(n, stream, layered=True) for n in ("x", "h", "b", "dx"))
    readout = Field("readout", stream)
    xi, f, chi, dloss = (Function(n) for n in ("xi", "f", "chi", "dloss"))
    inside = IndexRange(ell, S.One, blocks)
    W = GaussianMatrix("W", stream.at(ell), stream.at(ell - 1), index=inside)
    U, V = (GaussianVector(n, stream, source=n) for n in "UV")
    rule = GradientDescent(S.One)
    phi, now = Function("phi"), h(ell, t)
    slope = Derivative(phi(now), now)
    return Program(
        name="residual network with mean subtraction and frozen ends",
        rule=rule,
        fields=(x, h, b, dx, readout),
        definitions=(
            Definition(x(0, t), xi(t) * U.symbol),
            Definition(h(ell, t), W(ell) @ x(ell - 1, t), (inside,)),
            Definition(x(ell, t), x(ell - 1, t) + share * (phi(now) - Mean(phi(now))), (inside,)),
            Definition(readout(t), V.symbol),
            Definition(f(t), Mean(x(blocks, t) * readout(t))),
            Definition(chi(t), dloss(t, f(t))),
            Definition(dx(blocks, t), chi(t) * readout(t)),
            Definition(b(ell, t), slope * (dx(ell, t) - Mean(dx(ell, t))), (inside,)),
            Definition(dx(ell - 1, t), dx(ell, t) + share * (W(ell).T @ b(ell, t)), (inside,)),
        ),
        matrices=(TrainedMatrix(W, Outer(-rate, b(ell, t), x(ell - 1, t)), rule),),
        vectors=(U, V),
        scalars=("f", "chi"),
        constants=("xi", "dloss"),
        notation={x(ell, t): "C_x", dx(ell, t): "C_dx"},
        depth=blocks,
    )
