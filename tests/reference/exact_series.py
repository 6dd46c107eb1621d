"""A theory with a polynomial activation as a power series in gamma0, in exact integers and fractions.

A random value is a polynomial in the Gaussian sources at every order of gamma0; averages are Isserlis's sums
over pairings, with covariances that are series themselves. The module is a reference for expansions, because
it has no expansion by hand, no sampling and no grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol

from derive.calculus.symbols import gamma0
from derive.theory import Theory
from numerics.errors import Unserved
from numerics.lowering.expressions import CompiledFunction
from numerics.names import MemberKey
from numerics.solver.direct.evaluation import entries, tables
from numerics.solver.direct.interpret import Interpreter, RandomValue, RandomVariables
from numerics.solver.direct.layout import Constants, Datum, EntryKey, Layout
from numerics.solver.named_values import place_of

Exact = int | Fraction
Table = NDArray[np.object_]

BITS = 8
"""Room for one exponent: a monomial is one integer, so that a product of monomials is a sum."""
MASK = (1 << BITS) - 1

Polynomial = dict[int, Any]
"""Coefficient of each monomial."""


class Power:
    """``sum_n gamma0^n polynomial_n``, orders above ``top`` left out.

    >>> x = Power({0: {0: 1}, 1: {0: 2}}, 2)
    >>> (x * x).orders
    {0: {0: 1}, 1: {0: 4}, 2: {0: 4}}
    """

    __slots__ = ("orders", "top")
    __array_ufunc__ = None

    def __init__(self, orders: dict[int, Polynomial], top: int) -> None:
        self.orders, self.top = orders, top

    def coefficient(self, n: int) -> Polynomial:
        """Return the polynomial at order ``n``."""
        return self.orders.get(n, {})

    def number(self, n: int) -> Exact:
        """Return order ``n`` of a series of numbers; raise ``Unserved`` if it depends on the sources."""
        found = self.coefficient(n)
        if any(found):
            raise Unserved("this depends on the sources; only its averages are numbers")
        value: Exact = found.get(0, 0)
        return value

    def __add__(self, other: Any) -> Power:
        return added([self, other], self.top)

    def __mul__(self, other: Any) -> Power:
        if not isinstance(other, Power):
            return Power({n: _scaled(p, other) for n, p in self.orders.items()}, self.top)
        found: dict[int, Polynomial] = {}
        for n, p in self.orders.items():
            for m, q in other.orders.items():
                if n + m <= self.top:
                    _multiply(found.setdefault(n + m, {}), p, q)
        return Power({n: c for n, p in found.items() if (c := _nonzero(p))}, self.top)

    def __pow__(self, n: int) -> Power:
        """Return a whole power; negative ones exist of a single number times a power of gamma0."""
        if n < 0:
            ((k, p),) = self.orders.items()
            if set(p) != {0}:
                raise Unserved("only a power of gamma0 can be divided by")
            return Power({n * k: {0: Fraction(p[0]) ** n}}, self.top)
        value = Power({0: {0: 1}}, self.top)
        for _ in range(n):
            value = value * self
        return value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Power):
            return self.orders == other.orders
        return self.orders == ({} if other == 0 else {0: {0: other}})

    def __hash__(self) -> int:
        return id(self)

    __radd__, __rmul__ = __add__, __mul__


def _scaled(p: Polynomial, x: Any) -> Polynomial:
    return {k: c * x for k, c in p.items()} if x else {}


def _multiply(into: Polynomial, p: Polynomial, q: Polynomial) -> None:
    if len(p) < len(q):
        p, q = q, p
    for k, c in q.items():
        for m, d in p.items():
            into[k + m] = into.get(k + m, 0) + c * d


def _nonzero(p: Polynomial) -> Polynomial:
    return {k: c for k, c in p.items() if c}


def added(values: list[Any], top: int) -> Power:
    """Return the sum of numbers and series."""
    found: dict[int, Polynomial] = {}
    for v in values:
        orders = v.orders if isinstance(v, Power) else {0: {0: v}}
        for n, p in orders.items():
            into = found.setdefault(n, {})
            for k, c in p.items():
                into[k] = into.get(k, 0) + c
    return Power({n: c for n, p in found.items() if (c := _nonzero(p))}, top)


class Gaussians(RandomVariables):
    """The algebra of series of polynomials in the sources."""

    def __init__(self, interpreter: Interpreter, top: int) -> None:
        self.interpreter, self.top = interpreter, top
        self.entries: list[EntryKey] = []
        self.numbers: dict[EntryKey, int] = {}
        self.pairs: dict[tuple[int, int], Power] = {}
        self.moments: dict[int, Power] = {0: Power({0: {0: 1}}, top)}

    def index(self, entry: EntryKey) -> int:
        """Return the position of a source in a monomial."""
        if entry not in self.numbers:
            self.numbers[entry] = len(self.entries)
            self.entries.append(entry)
        return self.numbers[entry]

    def source(self, entry: EntryKey) -> Power:
        """Return a source as a series."""
        return Power({0: {1 << (BITS * self.index(entry)): 1}}, self.top)

    def attribute(self, name: str) -> Power:
        """Raise ``Unserved``, because a series has no attributes of units."""
        raise Unserved(f"{name} is an attribute of units; a series needs units that are alike")

    def apply(self, f: CompiledFunction, args: list[RandomValue], tangent: bool) -> Power:
        """Raise ``Unserved``: polynomials are sums of products, other functions have no finite expansion."""
        raise Unserved(f"{f.expr} is not a polynomial: only polynomial activations have exact averages")

    def total(self, values: list[RandomValue]) -> RandomValue:
        """Return the sum; a sum of numbers stays a number, because it may be a bound of an index."""
        return added(values, self.top) if any(isinstance(v, Power) for v in values) else sum(values)

    def number(self, e: Expr) -> RandomValue:
        """Return a number, exact if it is rational."""
        return Fraction(int(e.p), int(e.q)) if e.is_Rational else float(e)

    def entry(self, name: str, v: RandomValue) -> Power:
        """Return an entry of a table as a series."""
        return v if isinstance(v, Power) else added([v], self.top)

    field = entry

    def mean(self, v: RandomValue) -> RandomValue:
        """Return the average over the sources."""
        if not isinstance(v, Power):
            return v
        parts: list[Any] = []
        for n, p in v.orders.items():
            for k, c in p.items():
                moment = self.moment(k).orders
                parts.append(
                    Power({n + m: {0: c * q[0]} for m, q in moment.items() if n + m <= self.top}, self.top)
                )
        return added(parts, self.top)

    def moment(self, monomial: int) -> Power:
        """Return the average of a monomial by Wick's theorem: its first factor is paired with each other."""
        if monomial not in self.moments:
            places = _places(monomial)
            first = places[0][0]
            rest = monomial - (1 << (BITS * first))
            parts: list[Any] = []
            for i, count in _places(rest):
                pair = self.pair(first, i)
                if pair.orders:
                    parts.append(pair * self.moment(rest - (1 << (BITS * i))) * count)
            self.moments[monomial] = added(parts, self.top)
        return self.moments[monomial]

    def pair(self, i: int, j: int) -> Power:
        """Return the covariance of two sources."""
        key = (min(i, j), max(i, j))
        if key not in self.pairs:
            value = self.interpreter.covariance(self.entries[key[0]], self.entries[key[1]])
            self.pairs[key] = added([value], self.top)
        return self.pairs[key]

    def derivative(self, v: RandomValue, source: EntryKey) -> RandomValue:
        """Return the derivative by a source."""
        if not isinstance(v, Power):
            return 0
        return Power({n: c for n, p in v.orders.items() if (c := self.partial(p, source))}, v.top)

    def partial(self, p: Polynomial, source: EntryKey) -> Polynomial:
        """Return the derivative of a polynomial by a source."""
        place = BITS * self.index(source)
        return {k - (1 << place): c * e for k, c in p.items() if (e := (k >> place) & MASK)}


def _places(monomial: int) -> list[tuple[int, int]]:
    """Return the pairs (source, exponent) of a monomial."""
    found, i = [], 0
    while monomial:
        if monomial & MASK:
            found.append((i, monomial & MASK))
        monomial >>= BITS
        i += 1
    return found


@dataclass(frozen=True)
class PowerSolution:
    """Solved theory: every order parameter, scalar, observable and field, order by order.

    ``orders`` counts the exact orders; quantities that are divided by gamma0 (responses, the output) are
    known to one order less than fields and kernels.
    """

    orders: int
    values: Mapping[MemberKey, Table]
    interpreter: Interpreter

    def coefficient(self, name: str, n: int, layer: int | None = None) -> Table:
        """Return order ``n`` of ``name`` (at ``layer``); axes as in :class:`.Evaluated`, entries exact."""
        table = self.values[place_of(self.values, name, layer)]
        return np.asarray(np.vectorize(lambda x: x.number(n), otypes=[object])(table))

    def field(self, name: str, *args: int) -> Power:
        """Return the field ``name(*args)``: polynomials in its sources."""
        value: Power = self.interpreter.demand("fields", name, args)
        return value


def evaluate_series(
    theory: Theory,
    *,
    steps: int,
    order: int,
    values: Mapping[Symbol | str, Exact],
    data: Mapping[str, Datum],
) -> PowerSolution:
    """Return the theory at times ``0..steps-1`` as a power series in gamma0.

    The kernels are exact to ``order``. ``values`` and ``data`` hold integers and fractions, for every symbol
    but gamma0. The activation must be a polynomial. Cost grows steeply with the order, the degree and the
    number of steps.

    Raises :class:`~numerics.errors.Unserved` for other activations, for attributes and flows.

    >>> from derive.theory import mean_field
    >>> from derive.program import P, eta, mlp
    >>> solved = evaluate_series(mean_field(mlp(2)), steps=2, order=2, values={eta: Fraction(1, 2), P: 1},
    ...                          data={"K_x": [[1]], "y": [1]})
    >>> [str(solved.coefficient("H", 2, 2)[0, 0, 1, 1]), str(solved.coefficient("Delta", 0)[1, 0])]
    ['5/4', '-1/2']
    """
    known: dict[str, Any] = {str(k): v for k, v in values.items()}
    top = order
    known[gamma0.name] = Power({1: {0: 1}}, top)
    layout = Layout(theory, known)
    constants = Constants(layout, data, object)
    found, interpreter = entries(layout, constants, steps, lambda x: Gaussians(x, top))
    return PowerSolution(order, tables(found, object), interpreter)


__all__ = ["Power", "PowerSolution", "evaluate_series"]
