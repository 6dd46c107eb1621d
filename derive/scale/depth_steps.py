"""The closed equations of a residual network at its first steps: one function of the layers for each pair of
times.

A response ``R_xu(ell, k, t, s)`` at the times (1, 0) becomes ``R_xu_1_0(ell, k)``.  Sums over times are
written out; a sum over the layers k of a source becomes the factor :data:`over_layers`, whose body keeps its
k.  What then stands on the right is a polynomial, which :mod:`.depth_counting` reads for powers of L and a
solver for numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sympy import Add, Expr, Function, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.depth.infinite import layers_of
from derive.errors import NotApplicable
from derive.linear.propagators import CrossLayer, k
from derive.program.words import s, t

over_layers = Symbol("over_layers", positive=True)
"""Stands for a sum over the layers k of a source; no term has two."""


@dataclass(frozen=True)
class Row:
    """``symbol = rhs``; ``neighbour`` is the same function one layer before or after, if this is a recursion.

    ``now`` and ``past`` are the times in the function's name (``past`` is None if there is one only).
    """

    symbol: AppliedUndef
    rhs: Expr
    neighbour: Expr
    now: int
    past: int | None

    @property
    def name(self) -> str:
        """The function's name, which has its times."""
        return str(self.symbol.func)

    @property
    def terms(self) -> tuple[Expr, ...]:
        """What the row adds to its neighbour."""
        found = Add.make_args((self.rhs - self.neighbour).expand())
        return tuple(sorted((x for x in found if x != 0), key=str))


@dataclass(frozen=True)
class Steps:
    """The rows of all functions at the times ``0 .. last``, in the order of the equations and of time.

    ``kinds`` says of each function's name what it is without its times; at equal times it is another kind.
    """

    rows: tuple[Row, ...]
    last: int
    kinds: Mapping[str, str]

    def row(self, name: str) -> Row:
        """The recursion of a function, or its one equation.  Raises KeyError, naming what there is.

        >>> Steps((), 0, {}).row("f_0")
        Traceback (most recent call last):
        ...
        KeyError: 'no row of f_0; there are '
        """
        found = [r for r in self.rows if r.name == name]
        for r in sorted(found, key=lambda r: r.neighbour == 0):
            return r
        raise KeyError(f"no row of {name}; there are {', '.join(sorted({r.name for r in self.rows}))}")


def at_steps(cross: CrossLayer, steps: int, same: Iterable[str] = ("xi",)) -> Steps:
    """Write the closed equations out at the times ``0 .. steps``.

    Functions named in ``same`` (the input) are one number at all times, so that what changes has been learnt.
    Gaussian averages of an activation that is not given keep their names and have no rows.  Raises
    :class:`NotApplicable` for equations in continuous time.

    >>> from derive.theory import mean_field
    >>> from derive.depth import cross_layer
    >>> from derive.program import depth_program
    >>> found = at_steps(cross_layer(mean_field(depth_program())), 1)
    >>> for x in found.row("R_xV_1").terms: print(x)
    -C_x_1_0(ell - 1)*R_dxV_0(ell)/L
    R_dxV_0(ell)*R_xr_1_0(ell - 1, ell - 1)/sqrt(L)
    """
    if not cross.theory.program.rule.discrete:
        raise NotApplicable("the network is trained in continuous time: there is no first step")
    cross = cross.closed()
    write = _Writer(cross, frozenset(same))
    rows = []
    for now in range(steps + 1):
        for e in (*cross.responses, *cross.correlations, *cross.scalars):
            if e.rhs.has(GaussianAverage):
                continue
            pasts: Iterable[int | None] = range(now + 1) if s in e.lhs.args else (None,)
            rows += [write.row(e.lhs, e.rhs, now, past) for past in pasts]
    return Steps(tuple(rows), steps, write.kinds)


class _Writer:
    def __init__(self, cross: CrossLayer, same: frozenset[str]) -> None:
        self.layers = layers_of(cross)
        self.same = same
        self.correlations = {
            str(e.lhs.func) for e in cross.correlations if s in e.lhs.args and not e.rhs.has(GaussianAverage)
        }
        self.responses = {str(e.lhs.func) for e in cross.responses}
        self.kinds: dict[str, str] = {}

    def row(self, lhs: AppliedUndef, rhs: Expr, now: int, past: int | None) -> Row:
        times: dict[Expr, Expr] = {t: S(now)} | ({} if past is None else {s: S(past)})
        symbol = self.named(lhs.xreplace(times))
        value = self.written(self.unrolled(rhs, times))
        near = [
            x
            for x in Add.make_args(value)
            if isinstance(x, AppliedUndef) and x.func == symbol.func and x.args[1:] == symbol.args[1:]
        ]
        return Row(symbol, value, near[0] if near else S.Zero, now, past)

    def unrolled(self, e: Expr, times: dict[Expr, Expr]) -> Expr:
        """Sums over times written out: none if the upper end is below the lower one."""
        if isinstance(e, Sum):
            (index, lower, upper), *outer = e.limits
            body = e.function
            if outer:  # the last limit is the outermost sum
                (index, lower, upper) = outer[-1]
                body = Sum(e.function, *e.limits[:-1])
            if index == k:
                return over_layers * self.unrolled(body, times)
            first, last = int(lower.xreplace(times)), int(upper.xreplace(times))
            return Add(*[self.unrolled(body, times | {index: S(i)}) for i in range(first, last + 1)])
        if not e.has(Sum):
            return e.xreplace(times)
        return e.func(*[self.unrolled(x, times) for x in e.args])

    def written(self, e: Expr) -> Expr:
        e = e.replace(lambda x: isinstance(x, AppliedUndef), self.named)
        return e.expand()

    def named(self, x: AppliedUndef) -> Expr:
        """A function with its times in the name: correlations later time first, responses zero before."""
        name, n = str(x.func), self.layers.get(str(x.func), 0)
        places, times = x.args[:n], x.args[n:]
        if name in self.same:
            return Symbol(name, real=True)
        if not all(y.is_Integer for y in times):
            return x  # a given function of a scalar: the loss's slope
        if name in self.correlations:
            times = tuple(sorted(times, reverse=True))
        elif name in self.responses and len(times) == 2 and times[0] < times[1]:
            return S.Zero
        whole = "_".join([name, *map(str, times)])
        self.kinds[whole] = f"{name}(t, t)" if len(times) == 2 and times[0] == times[1] else name
        return Function(whole)(*places)


__all__ = ["Row", "Steps", "at_steps", "over_layers"]
