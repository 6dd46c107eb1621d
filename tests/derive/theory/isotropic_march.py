"""Exact solution of a linear theory, number by number: an independent interpreter of a Theory.

Every field at given indices and time is a linear combination of sources, from its equation; correlations are
bilinear forms in the sources' covariances and responses are coefficients. Numbers are computed recursively on
demand, so that a theory that is not causal would not end.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from sympy import Add, Expr, Integer, Mul, Pow, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef
from sympy.functions.special.tensor_functions import KroneckerDelta

from derive.theory import Average, Response, Theory

Linear = dict[tuple[Any, ...], float]


class March:
    """The numbers of a theory whose depth is an integer, for given parameters and attributes."""

    def __init__(
        self,
        theory: Theory,
        values: Mapping[Symbol, float],
        attributes: Mapping[str, list[float]] | None = None,
        functions: Mapping[str, Any] | None = None,
    ) -> None:
        self.theory, self.values = theory, dict(values)
        self.exact = {k: sympify(v) for k, v in values.items()}
        self.attributes, self.functions = attributes or {}, functions or {}
        self.names = {e.name for e in (*theory.equations, *theory.scalars)}
        self.sources = {str(u.symbol.func) for u in theory.sources}
        self.equations = by_name([(x.lhs, x) for x in (*theory.equations, *theory.scalars)])
        self.order_parameters = by_name([(x.symbol, x) for x in theory.order_parameters])
        self.fields: dict[tuple[Any, ...], float | Linear] = {}
        self.numbers: dict[tuple[Any, ...], float] = {}
        self.known: dict[tuple[Any, ...], float] = {}

    def __call__(self, name: str, *args: int) -> float:
        """Return the value of an order parameter."""
        return self.parameter(name, args)

    # -- reading --------------------------------

    def read(self, e: Expr, at: Mapping[Symbol, int]) -> float | Linear:  # noqa: C901, PLR0911 (one return for each kind of expression)
        """Return a number, or a linear combination of sources."""
        if isinstance(e, Sum):
            return self.summed(e, at)
        if isinstance(e, Add):
            return plus([self.read(x, at) for x in e.args])
        if isinstance(e, Mul):
            return times([self.read(x, at) for x in e.args])
        if isinstance(e, KroneckerDelta):
            a, b = (self.place(x, at) for x in e.args)
            return float(a == b)
        if isinstance(e, Pow):
            base, power = (self.read(x, at) for x in e.args)
            assert isinstance(base, float)
            assert isinstance(power, float)
            return base**power
        if isinstance(e, AppliedUndef):
            name, args = str(e.func), tuple(self.place(x, at) for x in e.args)
            if name in self.sources:
                return {(name, *args): 1.0}
            if name in self.names:
                return self.field(name, args)
            if name in self.attributes:
                return self.attributes[name][args[0] - 1]
            if name in self.functions:
                return float(self.functions[name](*args))
            return self.parameter(name, args)
        if isinstance(e, Average):
            return self.average(e, at)
        if isinstance(e, Symbol):
            return float(at[e]) if e in at else float(self.values[e])
        return float(e)

    def place(self, x: Expr, at: Mapping[Symbol, int]) -> int:
        """Return an integer argument of a function or a bound of a sum."""
        if x.is_Integer:
            return int(x)
        if x in at:
            return at[x]
        return int(x.xreplace({k: Integer(v) for k, v in at.items()}).xreplace(self.exact))

    def summed(self, e: Sum, at: Mapping[Symbol, int]) -> float | Linear:
        """Return the value of a sum."""

        def run(limits: list[Any], at: Mapping[Symbol, int]) -> list[float | Linear]:
            if not limits:
                return [self.read(e.function, at)]
            x, low, high = limits[-1]  # the last limit is the outermost
            span = range(self.place(low, at), self.place(high, at) + 1)
            return [y for i in span for y in run(limits[:-1], {**at, x: i})]

        return plus(run(list(e.limits), at))

    # -- parts of a theory -----------------------------------------------------------------------------------

    def field(self, name: str, args: tuple[int, ...]) -> float | Linear:
        """Return a field at integer arguments, computed once."""
        key = (name, *args)
        if key not in self.fields:
            e, at = matching(self.equations[name], args)
            self.fields[key] = self.read(e.rhs, at)
        return self.fields[key]

    def parameter(self, name: str, args: tuple[int, ...]) -> float:
        """Return an order parameter at integer arguments, computed once."""
        key = (name, *args)
        if key not in self.numbers:
            q, at = matching(self.order_parameters[name], args)
            value = self.read(q.definition, at)
            assert isinstance(value, float)
            self.numbers[key] = value
        return self.numbers[key]

    def average(self, e: Average, at: Mapping[Symbol, int]) -> float:
        """Return the average of a product of at most two random factors."""
        total = 1.0
        linear: list[Linear] = []
        for x in Mul.make_args(e.args[0]):
            if isinstance(x, Response):
                source = (str(x.source.func), *(self.place(y, at) for y in x.source.args))
                body = self.read(x.body, at)
                total *= body.get(source, 0.0) if isinstance(body, dict) else 0.0
                continue
            base, power = x.as_base_exp() if isinstance(x, Pow) and x.exp == 2 else (x, 1)
            for _ in range(int(power)):
                value = self.read(base, at)
                if isinstance(value, dict):
                    linear.append(value)
                else:
                    total *= value
        if not linear:
            return total
        assert len(linear) == 2
        one, two = linear
        return total * sum(
            a * b * self.covariance(x, y) for (x, a), (y, b) in product(one.items(), two.items())
        )

    def covariance(self, one: tuple[Any, ...], two: tuple[Any, ...]) -> float:
        """Return the covariance of two sources, computed once."""
        if one == two == ("one",):
            return 1.0
        key = (one, two)
        if key not in self.known:
            self.known[key] = 0.0 if ("one",) in key else self.look_up(one, two)
        return self.known[key]

    def look_up(self, one: tuple[Any, ...], two: tuple[Any, ...]) -> float:
        """Return the stated covariance of two sources, or zero."""
        for u in self.theory.sources:
            for a, b in ((one, two), (two, one)):
                if (str(u.symbol.func), str(u.partner.func)) == (a[0], b[0]):
                    at = match(u.symbol.args + u.partner.args, a[1:] + b[1:], u.ranges)
                    if at is not None:
                        value = self.read(sympify(u.covariance), at)
                        assert isinstance(value, float)
                        return value
        return 0.0


def by_name(items: list[tuple[Expr, Any]]) -> dict[str, list[tuple[tuple[Expr, ...], Any]]]:
    """Return items by the name of their symbol, each with the symbol's arguments."""
    table: dict[str, list[tuple[tuple[Expr, ...], Any]]] = {}
    for symbol, item in items:
        table.setdefault(str(symbol.func), []).append((symbol.args, item))
    return table


def matching(
    table: list[tuple[tuple[Expr, ...], Any]], args: tuple[int, ...]
) -> tuple[Any, dict[Symbol, int]]:
    """Return the first item whose arguments match, and the values of its symbols."""
    for pattern, item in table:
        if (at := match(pattern, args, item.ranges)) is not None:
            return item, at
    raise KeyError(args)


def match(
    pattern: tuple[Expr, ...], args: tuple[int, ...], ranges: tuple[Any, ...] = ()
) -> dict[Symbol, int] | None:
    """Return values of the symbols in ``pattern`` that make it equal to ``args``, or None."""
    if len(pattern) != len(args):
        return None
    found: dict[Symbol, int] = {}
    for p, a in zip(pattern, args, strict=True):
        if p.is_Integer:
            if int(p) != a:
                return None
            continue
        (x,) = p.free_symbols
        value = a - int(p - x)
        if found.setdefault(x, value) != value:
            return None
    for r in ranges:
        known = r.index in found and r.lower.is_Integer and r.upper.is_Integer
        if known and not int(r.lower) <= found[r.index] <= int(r.upper):
            return None
    return found


def plus(parts: list[float | Linear]) -> float | Linear:
    """Return the sum of numbers and linear combinations."""
    if not any(isinstance(x, dict) for x in parts):
        return float(sum(parts))  # type: ignore[arg-type]
    total: Linear = {}
    for part in parts:
        for k, v in (part if isinstance(part, dict) else {("one",): part}).items():
            total[k] = total.get(k, 0.0) + v
    return total


def times(parts: list[float | Linear]) -> float | Linear:
    """Return the product of numbers and at most one linear combination."""
    number, linear = 1.0, None
    for x in parts:
        if isinstance(x, dict):
            assert linear is None, "two random factors"
            linear = x
        else:
            number *= x
    return number if linear is None else {k: number * v for k, v in linear.items()}
