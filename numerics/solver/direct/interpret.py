"""The interpreter: the value of any expression of a theory at given indices and times, on demand.

An order parameter is computed when it is first read, from the fields at its two times; a field from the
order parameters in its equation.  That a theory is causal means that this ends; if it does not, the demand
that came back to itself is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, reduce
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import (
    Add,
    Dummy,
    Expr,
    Integral,
    Mul,
    Pow,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from numerics.errors import Unserved
from numerics.lowering.expressions import CompiledFunction, function
from numerics.lowering.indices import RealNumber
from numerics.solver.direct.layout import Constants, EntryKey, Family, Layout

Array = NDArray[np.float64]


class NonlinearTheory(Unserved):
    """A theory is not linear in its fields."""


@lru_cache(maxsize=100_000)
def _number(body: Expr, slots: tuple[Dummy, ...], values: tuple[float, ...]) -> float:
    """A function of numbers, by SymPy (Min and Piecewise need no NumPy form)."""
    value = body.subs(dict(zip(slots, values, strict=True)))
    value = value if value.is_Number else value.evalf()
    if (
        value.is_number and not value.is_extended_real
    ):  # the root of a negative number, infinity less infinity
        return float("nan")
    return float(value)


RandomValue = Any
"""A number, or a random value as an algebra represents it."""

At = Mapping[Symbol, RealNumber]
Handler = Callable[[Any, At], RandomValue]


class CyclicDemand(ValueError):
    """An entry of the theory is needed to compute itself: the theory is not causal."""


class RandomVariables:
    """Random values: how sources are represented, and what is done with them besides ``+`` and ``*``.

    ``is_open`` says whether a derivative was taken that sources which determine each other leave open.
    """

    is_open: bool = False

    def source(self, entry: EntryKey) -> RandomValue:
        """A Gaussian source."""
        raise NotImplementedError

    def attribute(self, name: str) -> RandomValue:
        """A number that each unit has."""
        raise NotImplementedError

    def apply(self, f: CompiledFunction, args: list[RandomValue], tangent: bool) -> RandomValue:
        """A function of numbers and random values; with its derivatives if ``tangent``."""
        raise NotImplementedError

    def mean(self, v: RandomValue) -> RandomValue:
        """The average over the single-site process."""
        raise NotImplementedError

    def derivative(self, v: RandomValue, source: EntryKey) -> RandomValue:
        """The derivative of ``v`` by a source."""
        raise NotImplementedError

    def total(self, values: list[RandomValue]) -> RandomValue:
        """The sum."""
        return sum(values)

    def number(self, e: Expr) -> RandomValue:
        """A number of the theory that is no integer."""
        return float(e)

    def field(self, name: str, v: RandomValue) -> RandomValue:
        """The value of a field, to be kept."""
        return v

    def entry(self, name: str, v: RandomValue) -> RandomValue:
        """The value of an order parameter or a scalar, to be kept."""
        if not isinstance(v, int | float):
            raise Unserved(f"{name} should be a number; its definition is random")
        return float(v)

    def restricted(self, v: RandomValue, to: EntryKey | None) -> RandomValue:
        """``v`` as it must be known: with its derivative by one source only, or by none."""
        return v


ALL = ("", ())
"""All derivatives are wanted."""


class Interpreter:
    """Values of one theory in one algebra, each computed once."""

    def __init__(self, layout: Layout, constants: Constants) -> None:
        self.layout, self.constants = layout, constants
        self.algebra: RandomVariables
        self.memo: dict[EntryKey, RandomValue] = {}
        self.open: set[EntryKey] = set()
        self.under_way: dict[EntryKey, None] = {}
        self.tangent: EntryKey | None = ALL
        self._handlers: dict[Expr, Handler] = {}
        self._random: dict[Expr, bool] = {}
        self._factors: dict[Expr, tuple[Expr, ...]] = {}

    # -- entries ---------------------------------------------------------------------------------------

    def demand(self, kind: str, name: str, args: tuple[int, ...]) -> RandomValue:
        """The entry ``name(args)`` of a field, scalar, order parameter or observable."""
        entry = (name, args)
        if entry in self.memo:
            return self.memo[entry]
        if entry in self.under_way:
            cycle = [*list(self.under_way)[list(self.under_way).index(entry) :], entry]
            raise CyclicDemand(
                "these need each other, so the theory is not causal: "
                + " <- ".join(f"{n}({', '.join(map(str, a))})" for n, a in cycle)
            )
        self.under_way[entry] = None
        try:
            self.memo[entry] = self.compute(kind, name, args)
        finally:
            del self.under_way[entry]
        return self.memo[entry]

    def compute(self, kind: str, name: str, args: tuple[int, ...]) -> RandomValue:
        if kind == "sources":
            return self.algebra.source((name, args))
        family: Family = getattr(self.layout, kind)[name]
        member = family.get(args)
        assert member is not None
        before, self.algebra.is_open = self.algebra.is_open, False
        with self.wanting(ALL if kind == "fields" else None):
            value = self.value(member.expr, member.at(*family.times(args)))
        if self.algebra.is_open:
            self.open.add((name, args))
        self.algebra.is_open = before
        return self.algebra.field(name, value) if kind == "fields" else self.algebra.entry(name, value)

    def covariance(self, a: EntryKey, b: EntryKey) -> RandomValue:
        """``<a b>`` of two sources, as the theory lists it; zero if it does not."""
        families = self.layout.sources
        for x, y in ((a, b), (b, a)):
            keys = (x[0], families[x[0]].key(x[1])), (y[0], families[y[0]].key(y[1]))
            member = self.layout.covariances.get(keys)
            if member is not None:
                times = (*families[x[0]].times(x[1]), *families[y[0]].times(y[1]))
                with self.wanting(None):
                    return self.value(member.expr, member.at(*times))
        return 0.0

    @contextmanager
    def wanting(self, tangent: EntryKey | None) -> Iterator[None]:
        """Within this context: derivatives by all sources, by one, or by none."""
        before, self.tangent = self.tangent, tangent
        try:
            yield
        finally:
            self.tangent = before

    # -- expressions -----------------------------------------------------------------------------------

    def value(self, e: Expr, at: At) -> RandomValue:
        """The value of ``e`` where indices and times are ``at``."""
        handler = self._handlers.get(e)
        if handler is None:
            handler = self._handlers[e] = self.handler(e)
        return handler(e, at)

    def handler(self, e: Expr) -> Handler:
        """How an expression of this form is evaluated."""
        if e.is_Integer:
            return lambda e, at: int(e)
        if isinstance(e, Symbol):
            return self.symbol
        if isinstance(e, AppliedUndef):
            return self.applied
        if isinstance(e, Average):
            return self.average
        if isinstance(e, Response):
            return self.response
        if isinstance(e, Sum):
            return lambda e, at: self.algebra.total(list(self.summands(e, at)))
        if isinstance(e, Integral):
            raise Unserved(f"{e} integrates over time; time counts steps here")
        if e.is_number and not e.has(AppliedUndef, Sum, Average):
            number = self.algebra.number(e)
            return lambda e, at: number
        if isinstance(e, Add):
            return lambda e, at: self.algebra.total([self.value(x, at) for x in e.args])
        if isinstance(e, Mul):
            return self.multiplied
        if isinstance(e, Pow) and not self.is_random(e):
            return self.power
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 1:
            return self.repeated
        return self.function

    def average(self, e: Average, at: At) -> RandomValue:
        with self.wanting(None):
            return self.algebra.mean(self.value(e.body, at))

    def power(self, e: Pow, at: At) -> RealNumber:
        """A power of numbers; what overflows is infinite, and a root of a negative number is no number."""
        base, exponent = self.value(e.base, at), self.value(e.exp, at)
        if isinstance(base, int | float) and (isinstance(base, float) or exponent < 0):
            return float(np.float_power(base, exponent))
        number: RealNumber = base**exponent
        return number

    def repeated(self, e: Pow, at: At) -> RandomValue:
        return reduce(mul, [self.value(e.base, at)] * int(e.exp))

    def function(self, e: Expr, at: At) -> RandomValue:
        f = function(e)
        values = [self.value(x, at) for x in f.leaves]
        if all(isinstance(x, int | float) for x in values):
            return _number(f.body, f.slots, tuple(values))
        return self.algebra.apply(f, values, self.tangent is not None)

    def symbol(self, e: Symbol, at: At) -> RealNumber:
        if e in at:
            return at[e]
        if e.name in self.layout.values:
            return self.layout.values[e.name]
        raise ValueError(f"values has no number for {e}")

    def multiplied(self, e: Mul, at: At) -> RandomValue:
        """A product; what multiplies an exact zero is not asked for."""
        if e not in self._factors:
            self._factors[e] = tuple(sorted(e.args, key=self.cost))
        value: RandomValue = 1
        for x in self._factors[e]:
            value = self.value(x, at) * value
            if isinstance(value, int | float) and value == 0:
                return 0
        return value

    def cost(self, e: Expr) -> int:
        """Numbers first, then order parameters, then random values."""
        return 2 if self.is_random(e) else 1 if e.atoms(AppliedUndef) else 0

    def is_random(self, e: Any) -> bool:
        """Does ``e`` depend on fields, sources or attributes outside averages?"""
        if isinstance(e, Average) or not isinstance(e, Expr):
            return False
        if e not in self._random:
            named = isinstance(e, AppliedUndef) and (
                str(e.func) in self.layout.random or str(e.func) in self.layout.attributes
            )
            self._random[e] = named or any(self.is_random(x) for x in e.args)
        return self._random[e]

    def summands(self, e: Sum, at: At) -> Iterator[RandomValue]:
        """The terms of a sum; bounds may hold indices of the outer limits, which come last."""

        def run(limits: tuple[Any, ...], at: At) -> Iterator[RandomValue]:
            if not limits:
                yield self.value(e.function, at)
                return
            index, lower, upper = limits[-1]
            for x in range(self.integer(lower, at), self.integer(upper, at) + 1):
                yield from run(limits[:-1], {**at, index: x})

        return run(tuple(e.limits), at)

    def integer(self, e: Any, at: At) -> int:
        x = self.value(sympify(e), at)
        if x != int(x):
            raise ValueError(f"{e} = {x} must be an integer")
        return int(x)

    def response(self, e: Response, at: At) -> RandomValue:
        r = e.source
        source = self.entry("sources", r, tuple(self.integer(x, at) for x in r.args))
        with self.wanting(source):
            body = self.value(e.body, at)
        return self.algebra.derivative(body, source)

    def applied(self, e: AppliedUndef, at: At) -> RandomValue:
        name = str(e.func)
        if name in self.layout.attributes:
            return self.algebra.attribute(name)
        kind = _kind(self.layout, name)
        if kind is None and any(self.is_random(x) for x in e.args):
            raise Unserved(f"{e}: {name} is not given; use a named activation such as tanh")
        if kind is None:
            return self.constants(name, tuple(self.value(x, at) for x in e.args), e.args)
        args = tuple(self.integer(x, at) for x in e.args)
        value = self.demand(kind, *self.entry(kind, e, args))
        return self.algebra.restricted(value, self.tangent) if kind in ("fields", "sources") else value

    def entry(self, kind: str, e: AppliedUndef, args: tuple[int, ...]) -> EntryKey:
        """The entry that ``e`` names; an index such as ``a + k`` beyond its range is taken periodically."""
        name = str(e.func)
        family: Family = getattr(self.layout, kind)[name]
        if any(x < 0 for x in family.times(args)):
            raise ValueError(f"{e} is read at {name}{args}: before the first step")
        if family.key(args) in family.members:
            return name, args
        wrapped = list(args)
        for i, x in enumerate(args):
            written = sympify(e.args[i])
            if (
                i in family.places
                or written.is_Integer
                or written.is_Symbol
                or self.layout.is_ordered(written)
            ):
                continue
            first, last = family.extent(i)
            wrapped[i] = first + (x - first) % (last - first + 1)
        if family.get(tuple(wrapped)) is None:
            raise ValueError(f"{e} is read at {name}{args}, which the theory does not determine")
        return name, tuple(wrapped)


KINDS = ("fields", "sources", "scalars", "order", "observables")


def _kind(layout: Layout, name: str) -> str | None:
    return next((k for k in KINDS if name in getattr(layout, k)), None)
