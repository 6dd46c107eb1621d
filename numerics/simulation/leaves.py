"""What a formula consists of, once its indices are numbers: entries of fields, products, means, constants.

These only say what is read; :mod:`.rows` reads many of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Key = tuple[str, tuple[int, ...]]  # a name and the values of its indices, time left out
Place = tuple[str, int | None]  # a population and, if each layer has its own, the layer


@dataclass(eq=False)
class Leaf:
    """Something a formula reads off the state; ``place`` says where its entries live, None for a number."""

    @property
    def parts(self) -> tuple[Bound, ...]:
        """The formulas inside."""
        return ()


@dataclass(eq=False)
class Known(Leaf):
    """A number or a vector that never changes."""

    number: Any
    place: Place | None = None


@dataclass(eq=False)
class Clock(Leaf):
    """The time: the number of steps, or the time of a flow."""

    place: Place | None = None


@dataclass(eq=False)
class Timed(Leaf):
    """A constant of the step, such as the sample drawn at it."""

    lookup: Callable[[int], Any]
    place: Place | None = None


@dataclass(eq=False)
class Called(Leaf):
    """A given function of numbers of the program, such as the slope of a loss."""

    function: Callable[..., Any]
    arguments: tuple[Bound, ...]
    place: Place | None = None

    @property
    def parts(self) -> tuple[Bound, ...]:
        return self.arguments


@dataclass(eq=False)
class Entry(Leaf):
    """A field or a scalar, now or (``first``) at step 0."""

    key: Key
    first: bool
    place: Place | None = None


@dataclass(eq=False)
class Parameter(Leaf):
    """A vector parameter as it is now."""

    key: Key
    place: Place | None = None


@dataclass(eq=False)
class Applied(Leaf):
    """A matrix (or its transpose) applied to a vector of ``size`` entries."""

    key: Key
    transposed: bool
    vector: Bound
    size: int
    place: Place | None = None

    @property
    def parts(self) -> tuple[Bound, ...]:
        return (self.vector,)


@dataclass(eq=False)
class Averaged(Leaf):
    """The mean of a vector's entries."""

    vector: Bound
    place: Place | None = None

    @property
    def parts(self) -> tuple[Bound, ...]:
        return (self.vector,)


@dataclass(eq=False)
class Total(Leaf):
    """A sum over an index, written out."""

    addends: tuple[Bound, ...]
    place: Place | None = None

    @property
    def parts(self) -> tuple[Bound, ...]:
        return self.addends


@dataclass(eq=False)
class Bound:
    """A formula with its leaves: ``function(*values of leaves)``, entry by entry."""

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    expr: Any = ""

    def all_leaves(self) -> Iterator[Any]:
        """Every leaf, those inside products, means and sums included."""
        for x in self.leaves:
            yield x
            for part in x.parts:
                yield from part.all_leaves()

    def place(self) -> Place | None:
        """Where the entries live; None for a number.  ``ValueError`` if on two populations."""
        return common_place([x.place for x in self.leaves], self.expr)


def common_place(places: Iterable[Place | None], *words: object) -> Place | None:
    """The one place among ``places``; one without a layer is taken to be in the layer of the others.

    >>> common_place([None, ("layer", None), ("layer", 2)], "h + b")
    ('layer', 2)
    """
    found = {x for x in places if x is not None}
    precise = {x for x in found if x[1] is not None} or found
    if len(precise) > 1 or len({name for name, _ in found}) > 1:
        raise ValueError(f"{' '.join(map(str, words))} mixes the entries of {sorted(map(str, found))}")
    return next(iter(precise), None)
