"""What a formula consists of, once its indices are numbers: entries of fields, products, means, constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Key = tuple[str, tuple[int, ...]]  # a name and the values of its indices, time left out
Place = tuple[str, int | None]  # a population and, if each layer has its own, the layer


@dataclass(eq=False)
class State:
    """One network at one time.

    ``fields`` are the vectors and scalars computed so far in this step, ``start`` those of step 0;
    ``weights`` the matrices and vectors as they are now; ``velocities`` what momentum carries.  Where time
    ``flows``, ``step`` counts the recorded times.
    """

    weights: dict[Key, Array]
    velocities: dict[Key, Array] = field(default_factory=dict)
    fields: dict[Key, Any] = field(default_factory=dict)
    start: dict[Key, Any] = field(default_factory=dict)
    products: dict[Applied, Array] = field(default_factory=dict)
    step: int = 0
    time: float = 0.0
    flows: bool = False


class Leaf:
    """Something a formula reads off the state; ``place`` says where its entries live, None for a number."""

    place: Place | None = None

    def value(self, state: State) -> Any:
        """The number, or the vector of entries."""
        raise NotImplementedError

    def parts(self) -> tuple[Bound, ...]:
        """The formulas inside."""
        return ()


@dataclass(eq=False)
class Known(Leaf):
    """A number or a vector that never changes."""

    number: Any
    place: Place | None = None

    def value(self, state: State) -> Any:
        return self.number


@dataclass(eq=False)
class Clock(Leaf):
    """The time: the number of steps, or the time of a flow."""

    def value(self, state: State) -> Any:
        return state.time


@dataclass(eq=False)
class Timed(Leaf):
    """A constant of the step, such as the sample drawn at it."""

    lookup: Callable[[int], Any]
    place: Place | None = None

    def value(self, state: State) -> Any:
        return self.lookup(state.step)


@dataclass(eq=False)
class Called(Leaf):
    """A given function of numbers of the program, such as the slope of a loss."""

    function: Callable[..., Any]
    arguments: tuple[Bound, ...]

    def value(self, state: State) -> Any:
        return float(self.function(*[x.value(state) for x in self.arguments]))

    def parts(self) -> tuple[Bound, ...]:
        return self.arguments


@dataclass(eq=False)
class Entry(Leaf):
    """A field or a scalar, now or (``first``) at step 0."""

    key: Key
    first: bool
    place: Place | None = None

    def value(self, state: State) -> Any:
        return state.start[self.key] if self.first and state.step > 0 else state.fields[self.key]


@dataclass(eq=False)
class Parameter(Leaf):
    """A vector parameter as it is now."""

    key: Key
    place: Place | None = None

    def value(self, state: State) -> Any:
        return state.weights[self.key]


@dataclass(eq=False)
class Applied(Leaf):
    """A matrix (or its transpose) applied to a vector; computed once a step."""

    key: Key
    transposed: bool
    vector: Bound
    size: int
    place: Place | None = None

    def value(self, state: State) -> Any:
        if self not in state.products:
            apply([self], state)
        return state.products[self]

    def parts(self) -> tuple[Bound, ...]:
        return (self.vector,)


@dataclass(eq=False)
class Averaged(Leaf):
    """The mean of a vector's entries."""

    vector: Bound

    def value(self, state: State) -> Any:
        return float(np.mean(self.vector.value(state)))

    def parts(self) -> tuple[Bound, ...]:
        return (self.vector,)


@dataclass(eq=False)
class Total(Leaf):
    """A sum over an index, written out."""

    addends: tuple[Bound, ...]
    place: Place | None = None

    def value(self, state: State) -> Any:
        return sum(x.value(state) for x in self.addends)

    def parts(self) -> tuple[Bound, ...]:
        return self.addends


@dataclass(eq=False)
class Bound:
    """A formula with its leaves: ``function(*values of leaves)``, entry by entry."""

    function: Callable[..., Any]
    leaves: tuple[Leaf, ...]
    text: str = ""

    def value(self, state: State) -> Any:
        """A number, or the vector of entries."""
        return self.function(*[x.value(state) for x in self.leaves])

    def all_leaves(self) -> Iterator[Leaf]:
        """Every leaf, those inside products, means and sums included."""
        for x in self.leaves:
            yield x
            for part in x.parts():
                yield from part.all_leaves()

    def place(self) -> Place | None:
        """Where the entries live; None for a number.  ``ValueError`` if on two populations."""
        return common_place([x.place for x in self.leaves], self.text)


def common_place(places: Iterable[Place | None], text: str) -> Place | None:
    """The one place among ``places``; one without a layer is taken to be in the layer of the others.

    >>> common_place([None, ("layer", None), ("layer", 2)], "h + b")
    ('layer', 2)
    """
    found = {x for x in places if x is not None}
    precise = {x for x in found if x[1] is not None} or found
    if len(precise) > 1 or len({name for name, _ in found}) > 1:
        raise ValueError(f"{text} mixes the entries of {sorted(map(str, found))}")
    return next(iter(precise), None)


def apply(products: list[Applied], state: State) -> None:
    """Compute products, those with the same matrix as one product with a matrix of vectors."""
    groups: dict[tuple[Key, bool], list[Applied]] = {}
    for x in products:
        if x not in state.products:
            groups.setdefault((x.key, x.transposed), []).append(x)
    for (key, transposed), group in groups.items():
        matrix = state.weights[key]
        rows = np.stack([np.broadcast_to(x.vector.value(state), (x.size,)) for x in group])
        results = rows @ (matrix if transposed else matrix.T)
        state.products.update(zip(group, results, strict=True))
