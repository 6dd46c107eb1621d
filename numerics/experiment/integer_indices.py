"""First index values of arrays that a program or its theory reads at integers, such as ``y(mu, 2)``.

Integers are values of indices, as the user writes them.  An axis whose index runs from ``lower`` has its
first entry at ``lower``, and an axis of times at 0.  An axis that is read only at integers begins at 1, or at
the lowest of them if that is less.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import primed, s, t
from derive.program.shifted_constants import Slot
from numerics.errors import SpecError


@dataclass
class Literals:
    """Axis of an array that is read at integers, such as the second one of ``y(mu, 2)``.

    ``read`` are these integers, empty if the axis is read at indices only. ``first`` is the index value of
    the first entry of the axis.
    """

    first: int = 1
    read: set[int] = field(default_factory=set)

    def position(self, name: str, value: int, size: int) -> int:
        """Return the position, counted from 0, of an index value on an axis with ``size`` entries.

        ``name`` is that of the array. Raises ValueError if the axis has no such entry.
        """
        if not 0 <= value - self.first < size:
            last = self.first + size - 1
            raise ValueError(
                f"{name or 'an array'} is read at the index {value}, but its entries along this axis have "
                f"the indices {self.first}..{last}"
            )
        return value - self.first


def literals_of(
    expressions: Iterable[Expr], lowest: Mapping[Symbol, int], kernels: Container[str] = ()
) -> dict[Slot, Literals]:
    """Return, by (array, axis), every axis that is read at integers or at indices with known first values.

    ``lowest`` maps indices to their first values; times begin at 0. An axis that is read at several of these
    indices begins at the lowest of their values, and one that is read only at a sum such as ``k + 1`` at the
    first value of ``k``. ``kernels`` are names of arrays whose axes come in two equal halves, one for each
    vector of the kernel.

    >>> from sympy import Function
    >>> y, c = Function("y"), Symbol("c")
    >>> literals_of([y(c, 2) + y(0, 1)], {c: 0})
    {('y', 0): Literals(first=0, read={0}), ('y', 1): Literals(first=1, read={1, 2})}
    """
    axes: dict[Slot, Literals] = {}
    plain: dict[Slot, int] = {}
    shifted: dict[Slot, int] = {}
    lowest = {t: 0, s: 0, **lowest}
    uses = {x for e in expressions for x in e.atoms(AppliedUndef)}
    for x in sorted(uses, key=str):
        name = str(x.func)
        half = len(x.args) // 2 if name in kernels else len(x.args)
        for k, a in enumerate(x.args):
            slots = [(name, k)] if half == len(x.args) else [(name, k % half), (name, k % half + half)]
            for slot in slots:
                if a.is_Integer:
                    axes.setdefault(slot, Literals()).read.add(int(a))
                elif a in lowest:
                    plain[slot] = min(plain.get(slot, lowest[a]), lowest[a])
                elif (index := index_of_axis(a, lowest)) is not None:
                    shifted[slot] = lowest[index]
    for slot in {*plain, *shifted}:
        axes.setdefault(slot, Literals())
    for slot, axis in axes.items():
        axis.first = plain.get(slot, shifted.get(slot, min({1, *axis.read})))
    return axes


def index_of_axis(a: Expr, indices: Iterable[Symbol]) -> Symbol | None:
    """Return the index whose first value is the start of an axis that is read at ``a``, such as ``p + k``.

    If ``a`` contains several indices, it is the one that comes first in ``indices``. In this order a primed
    index counts as the index without its prime, so that both vectors of a kernel are read alike. None if
    ``a`` contains none.

    >>> p, p_, k = (Symbol(x, integer=True) for x in ("p", "p_", "k"))
    >>> index_of_axis(p_ + k, [p, k, p_])
    p_
    """
    order = [*indices]
    read = [i for i in order if i in a.free_symbols]
    if len(read) > 1:
        index_of = {primed(i): i for i in order}
        read.sort(key=lambda i: order.index(index_of.get(i, i)))
    return read[0] if read else None


def require_entries(
    reads: Mapping[Slot, tuple[int, int]],
    literals: Mapping[Slot, Literals],
    shapes: Mapping[str, tuple[int, ...]],
    group: str = "arrays",
) -> None:
    """Raise SpecError for an array that lacks an entry between the lowest and the highest value read.

    ``reads`` holds these values by (array, axis); an axis of length n has the index values ``first`` (from
    ``literals``, 1 if it has none) to ``first + n - 1``. ``shapes`` holds the shapes of arrays by name; an
    axis that is not in it is not checked. Error messages name the array as ``group.name``.

    >>> require_entries({("y", 1): (2, 4)}, {("y", 1): Literals()}, {"y": (2, 3)})
    Traceback (most recent call last):
    numerics.errors.SpecError: arrays.y: has shape (2, 3), but index 2 of y takes the values 2..4, ...
    """
    for (name, axis), (low, high) in reads.items():
        shape, first = shapes.get(name, ()), literals.get((name, axis), Literals()).first
        if axis >= len(shape) or (first <= low and high < first + shape[axis]):
            continue
        values = f"{low}..{high}" if low < high else str(low)
        reason = f"has shape {shape}, but index {axis + 1} of {name} takes the values {values}"
        accepted = f"at least {high - first + 1} entries along axis {axis + 1}"
        if low < first:
            accepted = f"an index of at least {first}, because indices of arrays do not wrap around"
        raise SpecError(
            f"{group}.{name}", None, f"{reason}, and the first entry is that of {first}", accepted
        )


def require_literals(literals: Mapping[Slot, Literals], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise SpecError if an array of shape ``shapes[name]`` has no entry at an integer that is read.

    ``literals`` holds these integers by (array, axis). Arrays without a shape are not checked.
    """
    for (name, axis), axis_of_literals in literals.items():
        shape = shapes.get(name, ())
        if axis >= len(shape):
            continue
        last = axis_of_literals.first + shape[axis] - 1
        for value in sorted(axis_of_literals.read):
            if not axis_of_literals.first <= value <= last:
                reason = f"has shape {shape}, but index {axis + 1} of {name} is read at {value}"
                low, high = min(axis_of_literals.read), max(axis_of_literals.read)
                if low < axis_of_literals.first:
                    accepted = f"an index of at least {axis_of_literals.first}, the first value there"
                else:
                    accepted = f"at least {high - axis_of_literals.first + 1} entries along axis {axis + 1}"
                raise SpecError(f"arrays.{name}", None, reason, accepted)
