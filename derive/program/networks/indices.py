"""The indices that a network's fields carry between layer and time: sample, position, channel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from sympy import Expr, Integer, S, Sum, Symbol, sympify

from derive.errors import ProgramError
from derive.program.words import GaussianMatrix, IndexRange, P, alpha, mu

c, c_, p, p_ = (Symbol(n, integer=True, positive=True) for n in ("c", "c_", "p", "p_"))
k = Symbol("k", integer=True)

Count: TypeAlias = int | Expr
Places = tuple[Expr, ...]


@dataclass(frozen=True)
class Indices:
    """Which indices a network has; a range is empty where there is nothing to run over.

    Definitions are written at the sample ``mu``, position ``p`` and channel ``c``; updates sum over
    ``alpha``, ``p_`` and ``c_``.
    """

    channels: tuple[IndexRange, ...] = ()
    positions: tuple[IndexRange, ...] = ()
    offsets: tuple[IndexRange, ...] = ()

    samples = (IndexRange(mu, Integer(1), P),)
    other_samples = (IndexRange(alpha, Integer(1), P),)

    @property
    def other_channels(self) -> tuple[IndexRange, ...]:
        """The channels that an update sums over."""
        return tuple(replace(r, index=c_) for r in self.channels)

    @property
    def other_positions(self) -> tuple[IndexRange, ...]:
        """The positions that an update sums over."""
        return tuple(replace(r, index=p_) for r in self.positions)

    @property
    def channel(self) -> Places:
        """``(c,)``, or nothing."""
        return symbols(self.channels)

    @property
    def other_channel(self) -> Places:
        """``(c_,)``, or nothing."""
        return symbols(self.other_channels)

    @property
    def at(self) -> Places:
        """``(mu, p)``."""
        return (mu, *symbols(self.positions))

    @property
    def there(self) -> Places:
        """``(alpha, p_)``."""
        return (alpha, *symbols(self.other_positions))

    def shifted(self, places: Places, sign: int = 1) -> Places:
        """``(mu, p + k)``: where the member ``k`` of a filter looks."""
        sample, *position = places
        return (sample, *(x + sign * k if self.offsets else x for x in position))

    def product(self, factor: Expr, matrix: GaussianMatrix, vector: Expr, transposed: bool = False) -> Expr:
        """``factor * sum_k M(k) @ vector``, with the vector written at the offset ``k``."""
        used = matrix(*matrix.symbol.args) if matrix.symbol.args else matrix
        each = factor * ((used.T if transposed else used) @ vector)
        return over(each, self.offsets)


def over(body: Expr, ranges: tuple[IndexRange, ...]) -> Expr:
    """The sum of ``body`` over ``ranges``, ``body`` itself if there are none."""
    return Sum(body, *[r.limits for r in ranges]) if ranges else body


def symbols(ranges: tuple[IndexRange, ...]) -> Places:
    """The indices that ``ranges`` run over."""
    return tuple(r.index for r in ranges)


def indices(outputs: Count = 1, positions: Count = 1, receptive: Count = 0) -> Indices:
    """The indices of a network with so many outputs, positions and neighbours on each side.

    Raises :class:`ProgramError` for numbers that are too small, and for a filter wider than the ring.

    >>> indices(outputs=3).channels, indices().positions
    ((IndexRange(index=c, lower=1, upper=3),), ())
    """
    found = {"outputs": outputs, "positions": positions, "receptive": receptive}
    for key, value in found.items():
        least = 0 if key == "receptive" else 1
        number = sympify(value)
        if number.is_integer is False or (number - least).is_negative:
            raise ProgramError(f"{key} = {value}: must be an integer, at least {least}")
    channels, size, reach = map(sympify, found.values())
    if (size - 2 * reach - 1).is_negative:
        raise ProgramError(
            f"receptive = {reach} with positions = {size}: a filter needs {2 * reach + 1} different positions"
        )
    return Indices(_run(c, S.One, channels), _run(p, S.One, size), _run(k, -reach, reach))


def _run(index: Symbol, first: Expr, last: Expr) -> tuple[IndexRange, ...]:
    return () if first == last else (IndexRange(index, first, last),)
