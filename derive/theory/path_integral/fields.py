"""Products as integration variables: each ``chi = M a`` gets a hatted partner that enforces it.

Everything is written at the matrix's own layer index, so that all uses of one matrix can meet in one
exponent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from sympy import Expr, Function, Integral, Sum, Symbol, oo, sympify
from sympy.core.function import AppliedUndef

from derive.program.words import IndexRange, ell, s, t
from derive.theory.applications import Application, Parameter, Reading
from derive.theory.names import primed_apart

N = Symbol("N", positive=True)


class Inner(Expr):
    """``Inner(population, a, b)``: the inner product ``a . b`` over the units of a population."""

    is_commutative = True

    def __new__(cls, population: Any, left: Any, right: Any) -> Inner:
        return cast(Inner, Expr.__new__(cls, Symbol(str(population)), left, right))

    @property
    def population(self) -> str:
        """The units summed over."""
        return str(self.args[0])

    @property
    def vectors(self) -> tuple[Expr, Expr]:
        """The two vectors."""
        return self.args[1], self.args[2]

    def _latex(self, printer: Any, *_: Any) -> str:
        return r" \cdot ".join(rf"\boldsymbol{{{printer._print(x)}}}" for x in self.vectors)

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"({' . '.join(printer._print(x) for x in self.vectors)})"


def hatted(name: str) -> str:
    """``Phi`` -> ``Phihat``, ``C_phi`` -> ``Chat_phi``: SymPy prints a hat.

    >>> hatted("C_phi")
    'Chat_phi'
    """
    head, *rest = name.split("_", 1)
    return "_".join([f"{head}hat", *rest])


def over(integrand: Expr, ranges: Iterable[IndexRange], times: Sequence[Symbol], discrete: bool) -> Expr:
    """Sum over indices, and over all times (as a sum of steps or an integral)."""
    limits = [r.limits for r in ranges]
    whole = [(time, 0, oo) for time in times]
    if discrete:
        return Sum(integrand, *limits, *whole)
    return Integral(Sum(integrand, *limits) if limits else integrand, *whole)


@dataclass(frozen=True)
class Leg:
    """One use of a matrix as it enters the exponent: its vector, and the hatted field of its result."""

    use: Application
    primal: AppliedUndef
    hat: AppliedUndef
    source: AppliedUndef
    ranges: tuple[IndexRange, ...]

    @property
    def body(self) -> Expr:
        """The vector acted on."""
        return self.use.vector.body

    @property
    def row(self) -> Expr:
        """What lives on the rows of the matrix."""
        return self.body if self.use.transposed else self.hat

    @property
    def col(self) -> Expr:
        """What lives on its columns."""
        return self.hat if self.use.transposed else self.body

    @property
    def home(self) -> str:
        """The population of the hatted field."""
        return self.use.gives.name

    @property
    def ratio(self) -> Expr:
        """Units of that population over N."""
        return sympify(self.use.gives.ratio)

    @property
    def limits(self) -> tuple[IndexRange, ...]:
        """Ranges of layer and sample indices."""
        return (*self.use.layers, *self.ranges)

    def past(self, taken: Iterable[Symbol] = ()) -> Leg:
        """The same use at the time ``s``, with indices of its own."""
        use = self.use.past(taken)
        names: dict[Any, Any] = dict(zip(self.use.vector.indices, use.vector.indices, strict=True)) | {t: s}
        primal, hat, source = (x.xreplace(names) for x in (self.primal, self.hat, self.source))
        return Leg(use, primal, hat, source, use.vector.ranges)


@dataclass(frozen=True)
class Entry:
    """A vector parameter as it enters the exponent, entry by entry."""

    use: Parameter
    primal: AppliedUndef
    hat: AppliedUndef
    source: AppliedUndef
    home: str
    ratio: Expr
    limits: tuple[IndexRange, ...]

    def past(self, taken: Iterable[Symbol] = ()) -> Entry:
        """The same entry at the time ``s``, with indices of its own."""
        names: dict[Any, Any] = {i: primed_apart(i, taken) for i in self.use.indices}
        moved = [x.xreplace({**names, t: s}) for x in (self.primal, self.hat, self.source)]
        limits = tuple(IndexRange(names.get(r.index, r.index), r.lower, r.upper) for r in self.limits)
        return replace(self, primal=moved[0], hat=moved[1], source=moved[2], limits=limits)


def legs(reading: Reading) -> tuple[Leg, ...]:
    """Every use of a Gaussian matrix, with its integration variables."""
    found = []
    for use in (u.canonical() for u in reading.uses):
        name = _field_name(reading, use.source_name, "xi" if use.transposed else "chi")
        args = use.source().args
        found.append(
            Leg(use, Function(name)(*args), Function(hatted(name))(*args), use.source(), use.vector.ranges)
        )
    return tuple(found)


def entries(reading: Reading) -> tuple[Entry, ...]:
    """Every use of a vector parameter, with its integration variables; equal uses once."""
    found: dict[str, Entry] = {}
    for use in reading.entries:
        name = _field_name(reading, use.source_name, "xi")
        args = use.source().args
        found[str(use.source())] = Entry(
            use,
            Function(name)(*args),
            Function(hatted(name))(*args),
            use.source(),
            use.initial.population.name,
            sympify(reading.program.site_of(use.lhs).ratio),
            use.ranges,
        )
    return tuple(found.values())


def _field_name(reading: Reading, source: str, base: str) -> str:
    name = base if (base, source) in (("chi", "u"), ("xi", "r")) else f"{base}_{source}"
    known = {x.name for x in reading.program.fields} | set(reading.program.scalars)
    return f"{base}_{source}" if name in known else name


def layered(ranges: Iterable[IndexRange]) -> tuple[IndexRange, ...]:
    """Only the range of the layer index."""
    return tuple(r for r in ranges if r.index == ell)
