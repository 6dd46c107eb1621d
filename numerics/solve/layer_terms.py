"""One product of an equation in layer time at one step: its integral over cells, on either side of a jump."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr

from derive.calculus.symbols import s
from numerics.compile.layered import LAYER_TIMES, NotLowered, Product, reads_across

if TYPE_CHECKING:
    from numerics.solve.layer_grid import _Grid

Array = NDArray[np.float64]


class Term:
    """A product at one step, added to a row when it is called."""

    def __init__(self, grid: _Grid, p: Product, axes: list[Expr], now: int) -> None:
        self.p, self.n = p, grid.n
        self.number = grid.numbers.get(p, 1.0)
        self.broken = grid.broken(p) if p.layer else None
        b = None if self.broken is None else self.broken[0]
        self.plain = grid.contraction(p, axes, now, p.layer, b, False)
        self.jump = None if b is None else grid.contraction(p, axes, now, p.layer, b, True)
        names = list(self.plain[0].out)
        if p.bound == "all":
            names = names[1:]
        elif p.layer is not None:
            names = [LAYER_TIMES[0], *names[1:]]
        if self.jump and self.jump[0].out[1:] != self.plain[0].out[2:]:
            raise NotLowered(f"{p} has an index only where its answer does not jump")
        self.across = None
        if any(reads_across(x, p, grid.under) for x in p.reads):
            rest = [x for x in axes if x != LAYER_TIMES[1]]
            self.across = grid.contraction(p, rest, now, None, LAYER_TIMES[1], True)
        self.at: tuple[Any, ...] = tuple(now if p.present and x == s else slice(None) for x in axes)
        present = [x for x in axes if not (p.present and x == s)]
        self.present = present
        self.order = [names.index(x) for x in present if x in names]
        self.missing = tuple(None if x not in names else slice(None) for x in present)

    def __call__(self, above: Array, below: Array | None) -> None:
        """Add the product to a row; ``below`` is its diagonal tau = tau_ on the side of tau < tau_."""
        found = self.integral() if self.p.layer else self.plain[0](self.plain[1])
        value = self.number * found.transpose(self.order)[self.missing]
        if below is None:
            above[self.at] += value
            return
        value = np.broadcast_to(value, above[self.at].shape)
        if self.across is not None:
            below[self.at[1:]] += self.from_below()
        elif self.p.step != 1:
            below[self.at[1:]] += np.moveaxis(np.diagonal(value), -1, 0)
        if self.p.step:
            over = np.tri(self.n + 1)
            side = over if self.p.step == 1 else 1.0 - over
            value = value * side.reshape(side.shape + (1,) * (value.ndim - 2))
        above[self.at] += value

    def from_below(self) -> Array:
        """The product along tau = tau_, with the values of tau < tau_."""
        assert self.across is not None
        contraction, operands = self.across
        names, axes = list(contraction.out), [x for x in self.present if x != LAYER_TIMES[1]]
        value = contraction(operands).transpose([names.index(x) for x in axes if x in names])
        return self.number * value[tuple(None if x not in names else slice(None) for x in axes)]

    def integral(self) -> Array:
        """The integral over cells, each with the values of its own side of a jump."""
        value = self.plain[0](self.plain[1])
        cells = 0.5 * (value[:-1] + value[1:])
        if self.jump is not None and self.broken is not None:
            under = self.jump[0](self.jump[1])
            jump = 0.5 * (under - np.moveaxis(np.diagonal(value), -1, 0))
            c = np.arange(self.n)
            if self.broken[1]:
                cells[c, c + 1] += jump[1:]
            else:
                cells[c, c] += jump[:-1]
        cells /= self.n
        if self.p.bound == "all":
            total: Array = cells.sum(axis=0)
            return total
        total = np.zeros_like(value)
        if self.p.bound == "below":
            np.cumsum(cells, axis=0, out=total[1:])
        else:
            total[:-1] = np.cumsum(cells[::-1], axis=0)[::-1]
        return total
