"""Interpreter of the expressions of a theory: the value of any expression at given indices and times.

Values are computed when they are first read: an order parameter from the fields at its two times, a field
from the order parameters in its equation. This ends because a theory is causal; if not, the error names the
entries that depend on themselves. The reference solver uses it with affine functions of sources or
sampled paths, and tests use it with series.
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
    """Raised by the exact solution of linear theories for a theory that is not linear in its fields."""


@lru_cache(maxsize=100_000)
def _number(body: Expr, slots: tuple[Dummy, ...], values: tuple[float, ...]) -> float:
    """Return the value of a function of numbers, computed by SymPy.

    SymPy evaluates functions such as Min and Piecewise, which are then not translated to NumPy. ``body`` is
    the expression, and ``slots`` are the symbols for which ``values`` are inserted. The result is NaN if it
    is not real.
    """
    value = body.subs(dict(zip(slots, values, strict=True)))
    value = value if value.is_Number else value.evalf()
    if value.is_number and not value.is_extended_real:
        return float("nan")  # a value that is not real, such as the root of a negative number
    return float(value)


RandomValue = Any
"""A number, or a random value in the representation of a subclass of RandomVariables."""

At = Mapping[Symbol, RealNumber]
Handler = Callable[[Any, At], RandomValue]


class CyclicDemand(ValueError):
    """Raised if a quantity of the theory depends on itself, because the theory is not causal."""


class RandomVariables:
    """Interface of the arithmetic of random values: their storage, and operations besides + and *.

    Subclasses store the value of a field as an affine function of Gaussian sources, or as an array over
    sampled paths. They must define ``source``, ``attribute``, ``apply``, ``mean`` and ``derivative``, which
    raise NotImplementedError here; the other methods have a default. ``is_undetermined`` is set if an average
    response is undetermined, because several sources determine each other.
    """

    is_undetermined: bool = False

    def source(self, entry: EntryKey) -> RandomValue:
        """Return the Gaussian source with this key (name, indices and time) as a random value.

        Equal keys are the same random variable.
        """
        raise NotImplementedError

    def attribute(self, name: str) -> RandomValue:
        """Return the attribute ``name`` as a random value.

        An attribute is a given constant of each unit of a population, such as the eigenvalue of a mode.
        """
        raise NotImplementedError

    def apply(self, f: CompiledFunction, args: list[RandomValue], tangent: bool) -> RandomValue:
        """Return ``f`` of numbers and random values as a random value, with derivatives if ``tangent``."""
        raise NotImplementedError

    def mean(self, v: RandomValue) -> RandomValue:
        """Return the average of a random value over the single-site process, as a number."""
        raise NotImplementedError

    def derivative(self, v: RandomValue, source: EntryKey) -> RandomValue:
        """Return the derivative of a random value by the source with this key."""
        raise NotImplementedError

    def total(self, values: list[RandomValue]) -> RandomValue:
        """Return the sum of numbers and random values."""
        return sum(values)

    def number(self, e: Expr) -> RandomValue:
        """Return the value of a constant expression without symbols, such as pi or sqrt(2): a float.

        Subclasses may return another kind of number.
        """
        return float(e)

    def field(self, name: str, v: RandomValue) -> RandomValue:
        """Return the value ``v`` of the field ``name`` in the form in which it is kept in memory.

        It is the value itself, unless a subclass refuses it or converts it.
        """
        return v

    def entry(self, name: str, v: RandomValue) -> RandomValue:
        """Return the value of the order parameter or scalar ``name`` in the form in which it is stored.

        Raises Unserved if the value is random, because order parameters and scalars must be numbers.
        """
        if not isinstance(v, int | float):
            raise Unserved(
                f"{name} must be a number, but its definition is random: define {name} by averages"
            )
        return float(v)

    def restricted(self, v: RandomValue, to: EntryKey | None) -> RandomValue:
        """Return a random value without those of its derivatives that are not needed.

        With ``to`` = ALL its derivatives by all sources are kept, with the key of a source only the
        derivative by that source, and with None no derivative. This default returns ``v`` as it is.
        """
        return v


ALL = ("", ())
"""Value of ``tangent`` for which derivatives by all sources are computed."""


class Interpreter:
    """Interpreter of one theory with one representation of random values; each value is computed once.

    ``memo`` holds the computed values by key (name, indices and times), ``undetermined`` the keys of
    responses that are undetermined because sources determine each other. ``tangent`` states by which sources
    derivatives are computed at present: ALL, the key of one source, or None.
    """

    def __init__(self, layout: Layout, constants: Constants) -> None:
        self.layout, self.constants = layout, constants
        self.algebra: RandomVariables
        self.memo: dict[EntryKey, RandomValue] = {}
        self.undetermined: set[EntryKey] = set()
        self.under_way: dict[EntryKey, None] = {}
        self.tangent: EntryKey | None = ALL
        self._handlers: dict[Expr, Handler] = {}
        self._random: dict[Expr, bool] = {}
        self._factors: dict[Expr, tuple[Expr, ...]] = {}

    # -- entries ---------------------------------------------------------------------------------------

    def demand(self, kind: str, name: str, args: tuple[int, ...]) -> RandomValue:
        """Return the value ``name(args)`` of a field, source, scalar, order parameter or observable.

        ``kind`` is the group of quantities that contains the name: "fields", "sources", "scalars", "order" or
        "observables". ``args`` are its integer indices and times. The value is computed at the first call and
        cached. Raises CyclicDemand if it depends on itself.
        """
        entry = (name, args)
        if entry in self.memo:
            return self.memo[entry]
        if entry in self.under_way:
            cycle = [*list(self.under_way)[list(self.under_way).index(entry) :], entry]
            raise CyclicDemand(
                "the theory is not causal, because these quantities depend on each other: "
                + " <- ".join(f"{n}({', '.join(map(str, a))})" for n, a in cycle)
            )
        self.under_way[entry] = None
        try:
            self.memo[entry] = self.compute(kind, name, args)
        finally:
            del self.under_way[entry]
        return self.memo[entry]

    def compute(self, kind: str, name: str, args: tuple[int, ...]) -> RandomValue:
        """Compute the value ``name(args)`` from its equation, definition or source; it is not cached here.

        ``kind`` is the group of quantities that contains the name: "fields", "sources", "scalars", "order" or
        "observables". ``args`` are its integer indices and times.
        """
        if kind == "sources":
            return self.algebra.source((name, args))
        family: Family = getattr(self.layout, kind)[name]
        member = family.get(args)
        assert member is not None
        before, self.algebra.is_undetermined = self.algebra.is_undetermined, False
        with self.wanting(ALL if kind == "fields" else None):
            value = self.value(member.expr, member.at(*family.times(args)))
        if self.algebra.is_undetermined:
            self.undetermined.add((name, args))
        self.algebra.is_undetermined = before
        return self.algebra.field(name, value) if kind == "fields" else self.algebra.entry(name, value)

    def covariance(self, a: EntryKey, b: EntryKey) -> RandomValue:
        """Return ``<a b>`` of the sources with these keys; zero if the theory has no covariance for them."""
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
        """Context manager: choose by which sources values carry derivatives while the context lasts.

        ``tangent`` is ALL, the key of one source, or None for no derivatives.
        """
        before, self.tangent = self.tangent, tangent
        try:
            yield
        finally:
            self.tangent = before

    # -- expressions -----------------------------------------------------------------------------------

    def value(self, e: Expr, at: At) -> RandomValue:
        """Return the value of an expression of the theory, a number or a random value.

        ``at`` maps the symbols of indices and times to integers.
        """
        handler = self._handlers.get(e)
        if handler is None:
            handler = self._handlers[e] = self.handler(e)
        return handler(e, at)

    def handler(self, e: Expr) -> Handler:
        """Return the method that evaluates expressions of the type of ``e``, such as sums or symbols.

        The method takes an expression and the values of its indices. Raises Unserved for an integral over
        time.
        """
        if e.is_Integer:
            return lambda e, at: int(e)
        if isinstance(e, Integral):
            raise Unserved(
                f"the reference solver needs a training rule in steps, and {e} is an integral over time"
            )
        handlers: list[tuple[type, Handler]] = [
            (Symbol, self.symbol),
            (AppliedUndef, self.applied),
            (Average, self.average),
            (Response, self.response),
            (Sum, self.summed),
        ]
        for kind, handler in handlers:
            if isinstance(e, kind):
                return handler
        if e.is_number and not e.has(AppliedUndef, Sum, Average):
            number = self.algebra.number(e)
            return lambda e, at: number
        return self._arithmetic(e)

    def _arithmetic(self, e: Expr) -> Handler:
        """Return the method that evaluates ``e``: a sum of terms, a product, a power, or another function."""
        if isinstance(e, Add):
            return self.added
        if isinstance(e, Mul):
            return self.multiplied
        if isinstance(e, Pow) and not self.is_random(e):
            return self.power
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 1:
            return self.repeated
        return self.function

    def summed(self, e: Sum, at: At) -> RandomValue:
        """Return the value of a sum over indices, ``Sum`` of SymPy."""
        return self.algebra.total(list(self.summands(e, at)))

    def added(self, e: Add, at: At) -> RandomValue:
        """Return the value of a sum of terms, ``Add`` of SymPy."""
        return self.algebra.total([self.value(x, at) for x in e.args])

    def average(self, e: Average, at: At) -> RandomValue:
        """Return the average over the single-site process of the body of ``e``, without derivatives."""
        with self.wanting(None):
            return self.algebra.mean(self.value(e.body, at))

    def power(self, e: Pow, at: At) -> RealNumber:
        """Return a power of numbers: infinity on overflow, NaN for a root of a negative number.

        An integer base with an integer exponent that is not negative is raised as Python does, without
        rounding.
        """
        base, exponent = self.value(e.base, at), self.value(e.exp, at)
        exact = isinstance(base, int) and isinstance(exponent, int) and exponent >= 0
        if isinstance(base, int | float) and not exact:
            return float(np.float_power(base, exponent))
        number: RealNumber = base**exponent
        return number

    def repeated(self, e: Pow, at: At) -> RandomValue:
        """Return a positive integer power of a random value as a product."""
        return reduce(mul, [self.value(e.base, at)] * int(e.exp))

    def function(self, e: Expr, at: At) -> RandomValue:
        """Return the value of a function applied to expressions, such as tanh(h(t)) or Piecewise.

        ``at`` maps the symbols of indices and times to integers.
        """
        f = function(e)
        values = [self.value(x, at) for x in f.leaves]
        if all(isinstance(x, int | float) for x in values):
            return _number(f.body, f.slots, tuple(values))
        return self.algebra.apply(f, values, self.tangent is not None)

    def symbol(self, e: Symbol, at: At) -> RealNumber:
        """Return the number of an index or time in ``at``, or of another symbol in the given values.

        Raises ValueError for a symbol without a number.
        """
        if e in at:
            return at[e]
        if e.name in self.layout.values:
            return self.layout.values[e.name]
        raise ValueError(f"values must hold a number for {e}")

    def multiplied(self, e: Mul, at: At) -> RandomValue:
        """Return the value of a product; factors after an exact zero are not evaluated."""
        if e not in self._factors:
            self._factors[e] = tuple(sorted(e.args, key=self.cost))
        value: RandomValue = 1
        for x in self._factors[e]:
            value = self.value(x, at) * value
            if isinstance(value, int | float) and value == 0:
                return 0
        return value

    def cost(self, e: Expr) -> int:
        """Return the sort key of a factor: 0, 1 or 2.

        It is 2 for a random value, 1 for an expression of order parameters, scalars or given data, and 0 for
        numbers and symbols. Factors with a smaller key cost less, and are evaluated first.
        """
        return 2 if self.is_random(e) else 1 if e.atoms(AppliedUndef) else 0

    def is_random(self, e: Any) -> bool:
        """Return whether an expression depends on fields, sources or attributes outside averages."""
        if isinstance(e, Average) or not isinstance(e, Expr):
            return False
        if e not in self._random:
            named = isinstance(e, AppliedUndef) and (
                str(e.func) in self.layout.random or str(e.func) in self.layout.attributes
            )
            self._random[e] = named or any(self.is_random(x) for x in e.args)
        return self._random[e]

    def summands(self, e: Sum, at: At) -> Iterator[RandomValue]:
        """Yield the values of the terms of a sum over one or more indices.

        The bounds of an index may contain the indices of outer sums; the last index is the outermost one.
        """

        def run(limits: tuple[Any, ...], at: At) -> Iterator[RandomValue]:
            if not limits:
                yield self.value(e.function, at)
                return
            index, lower, upper = limits[-1]
            for x in range(self.integer(lower, at), self.integer(upper, at) + 1):
                yield from run(limits[:-1], {**at, index: x})

        return run(tuple(e.limits), at)

    def integer(self, e: Any, at: At) -> int:
        """Return the integer value of an expression; raise ValueError if the value is not an integer."""
        x = self.value(sympify(e), at)
        if x != int(x):
            raise ValueError(f"{e} = {x}: an index, and the bound of an index, must be an integer")
        return int(x)

    def response(self, e: Response, at: At) -> RandomValue:
        """Return the derivative of the body of a response by its source, a number or a random value."""
        r = e.source
        source = self.entry("sources", r, tuple(self.integer(x, at) for x in r.args))
        with self.wanting(source):
            body = self.value(e.body, at)
        return self.algebra.derivative(body, source)

    def applied(self, e: AppliedUndef, at: At) -> RandomValue:
        """Return the value of a function symbol of indices and times, such as ``h(2, mu, t)``.

        It is an attribute (a given constant of each unit), given data, or a field, source, scalar, order
        parameter or observable. ``at`` maps the symbols of its indices and times to integers. Raises Unserved
        for a function without an expression whose argument is random.
        """
        name = str(e.func)
        if name in self.layout.attributes:
            return self.algebra.attribute(name)
        kind = _kind(self.layout, name)
        if kind is None and any(self.is_random(x) for x in e.args):
            raise Unserved(
                f"{e}: {name} is a function without an expression; use a named activation such as tanh"
            )
        if kind is None:
            return self.constants(name, tuple(self.value(x, at) for x in e.args), e.args)
        args = tuple(self.integer(x, at) for x in e.args)
        value = self.demand(kind, *self.entry(kind, e, args))
        return self.algebra.restricted(value, self.tangent) if kind in ("fields", "sources") else value

    def entry(self, kind: str, e: AppliedUndef, args: tuple[int, ...]) -> EntryKey:
        """Return the key (name, indices and times) of the value of a function symbol such as ``h(p + 1, t)``.

        ``e`` is the symbol, ``args`` are the numbers of its arguments, and ``kind`` is the group of
        quantities that contains it, such as "fields". A shifted index, such as p + 1, beyond its range is
        periodic, unless its values are ordered (places in a sequence). Raises ValueError for values that the
        theory lacks.
        """
        name = str(e.func)
        family: Family = getattr(self.layout, kind)[name]
        if any(x < 0 for x in family.times(args)):
            raise ValueError(f"{e} stands for {name}{args}, a value before the first step")
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
            raise ValueError(f"{e} stands for {name}{args}, which the theory does not determine")
        return name, tuple(wrapped)


KINDS = ("fields", "sources", "scalars", "order", "observables")


def _kind(layout: Layout, name: str) -> str | None:
    """Return the group of quantities that contains a name: "fields", "sources", "scalars" or another.

    The result is None for a name that is not a quantity of the theory, such as given data.
    """
    return next((k for k in KINDS if name in getattr(layout, k)), None)
