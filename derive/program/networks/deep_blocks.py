"""A deep linear residual network whose blocks have two matrices (depth2023 section 9), trained as it is or
linearised within each block.

``x(ell) = x(ell - 1) + multiplier L^-alpha Z W x(ell - 1)``, frozen ends, one sample a step.  The updates of
W and Z go with ``rate L^-gamma``.  Linearised within its blocks, ``Z W x`` is replaced by ``Z0 W0 x + (Z -
Z0) W0 x + Z0 (W - W0) x``, in the forward pass and in the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Function, Integer, S, sympify

from derive.errors import ProgramError
from derive.program.memory import LinearSystem
from derive.program.networks.infinite_depth import half
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


@dataclass(frozen=True)
class Updates:
    """The sum of all updates, without the weights that they were made to.

    >>> from sympy.abc import t, s
    >>> Updates().memory(t, s)
    (0, 1)
    """

    discrete: bool = True

    @property
    def system(self) -> LinearSystem:
        """A sum that starts at nothing."""
        return LinearSystem(S.One, S.One, start=S.Zero)

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Nothing of W(0), every update whole."""
        return self.system.steps(time, past)

    def noise(self, time: Expr, past: Expr) -> Expr:
        """There is none."""
        return S.Zero


def block_program(
    depth: int | Expr = L,
    alpha: Expr | float = half,
    gammas: tuple[Expr | float, Expr | float] = (half, half),
    *,
    multiplier: Expr = S.One,
    rate: Expr = S.One,
    linearised: bool = False,
) -> Program:
    """The network with blocks of two matrices; ``gammas`` are the powers of L of the rates of W and of Z.

    ``xi(t)``, ``dloss(t, f)`` as for :func:`~derive.program.networks.infinite_depth.depth_program`.  Raises
    :class:`ProgramError` for a depth below one.

    >>> [d.name for d in block_program().definitions]
    ['x', 'h', 'x', 'readout', 'f', 'chi', 'dx', 'b', 'dx']
    >>> [d.name for d in block_program(linearised=True).definitions if d.name in "kc"]
    ['k', 'c']
    """
    blocks = sympify(depth)
    if isinstance(blocks, Integer) and blocks < 1:
        raise ProgramError(f"depth = {depth}: a network has at least one block")
    share = multiplier * blocks ** -sympify(alpha)
    slow, fast = (rate * blocks ** -sympify(g) for g in gammas)
    stream, hidden = Population("stream", shared=True), Population("hidden")
    x, dx = (Field(n, stream, layered=True) for n in ("x", "dx"))
    h, b = (Field(n, hidden, layered=True) for n in ("h", "b"))
    readout = Field("readout", stream)
    xi, f, chi, dloss = (Function(n) for n in ("xi", "f", "chi", "dloss"))
    inside = IndexRange(ell, S.One, blocks)
    W = GaussianMatrix("W", hidden.at(ell), stream.at(ell - 1), index=inside)
    Z = GaussianMatrix("Z", stream.at(ell), hidden.at(ell), index=inside)
    U, V = (GaussianVector(n, stream, source=n) for n in "UV")
    below, here, above = x(ell - 1, t), h(ell, t), dx(ell, t)
    of_w, of_z = Outer(-slow, b(ell, t), below), Outer(-fast, above, here)
    extra: tuple[Field, ...] = ()
    more: tuple[Definition, ...] = ()
    matrices: tuple[GaussianMatrix | TrainedMatrix, ...]
    if linearised:
        k, c = (Field(n, hidden, layered=True) for n in ("k", "c"))
        moved_w = GaussianMatrix("dW", hidden.at(ell), stream.at(ell - 1), index=inside)
        moved_z = GaussianMatrix("dZ", stream.at(ell), hidden.at(ell), index=inside)
        matrices = (W, Z, TrainedMatrix(moved_w, of_w, Updates()), TrainedMatrix(moved_z, of_z, Updates()))
        extra = (k, c)
        branch = Z(ell) @ k(ell, t) + moved_z(ell) @ here
        back = W(ell).T @ c(ell, t) + moved_w(ell).T @ b(ell, t)
        more = (
            Definition(k(ell, t), here + moved_w(ell) @ below, (inside,)),
            Definition(c(ell, t), b(ell, t) + moved_z(ell).T @ above, (inside,)),
        )
    else:
        rule = GradientDescent(S.One)
        matrices = (TrainedMatrix(W, of_w, rule), TrainedMatrix(Z, of_z, rule))
        branch, back = Z(ell) @ here, W(ell).T @ b(ell, t)
    return Program(
        name="residual network with blocks of two matrices" + ", linearised" * linearised,
        rule=GradientDescent(S.One),
        fields=(x, h, *extra[:1], b, *extra[1:], dx, readout),
        definitions=(
            Definition(x(0, t), xi(t) * U.symbol),
            Definition(here, W(ell) @ below, (inside,)),
            *more[:1],
            Definition(x(ell, t), below + share * branch, (inside,)),
            Definition(readout(t), V.symbol),
            Definition(f(t), Mean(x(blocks, t) * readout(t))),
            Definition(chi(t), dloss(t, f(t))),
            Definition(dx(blocks, t), chi(t) * readout(t)),
            Definition(b(ell, t), Z(ell).T @ above, (inside,)),
            *more[1:],
            Definition(dx(ell - 1, t), above + share * back, (inside,)),
        ),
        matrices=matrices,
        vectors=(U, V),
        scalars=("f", "chi"),
        constants=("xi", "dloss"),
        notation={x(ell, t): "C_x", dx(ell, t): "C_dx"},
        depth=blocks,
    )
