"""Random values of a linear theory, exactly: affine combinations of Gaussian sources.

A field is ``constant + sum_k coefficients[k] source_k``; its covariance with another is ``c^T Sigma c'`` and
its response to a source is the coefficient.  With attributes every number becomes one per unit, in a last
axis.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Unserved
from numerics.solver.direct.interpret import Compiled, Interpreter, Value
from numerics.solver.direct.layout import Entry

Array = NDArray[np.float64]


class Affine:
    """``constant`` a number or ``(units,)``; ``coefficients`` ``(sources,)`` or ``(sources, units)``."""

    __array_ufunc__ = None  # numpy numbers leave multiplication to this class

    def __init__(self, constant: Any, coefficients: Array) -> None:
        self.constant, self.coefficients = constant, coefficients

    @property
    def fixed(self) -> bool:
        """Does it depend on no source?"""
        return not self.coefficients.any()

    def scaled(self, x: Any) -> Affine:
        """Times a number, or one for each unit."""
        c = self.coefficients
        if np.ndim(x) and c.ndim == 1:
            c = c[:, None]
        return Affine(self.constant * x, c * x)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Products):
            return other + self
        if not isinstance(other, Affine):
            return Affine(self.constant + other, self.coefficients)
        a, b = self.coefficients, other.coefficients
        if a.ndim != b.ndim:
            a, b = (x if x.ndim == 2 else x[:, None] for x in (a, b))
        return Affine(self.constant + other.constant, a + b)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Products):
            return other * self
        if not isinstance(other, Affine):
            return self.scaled(other)
        if self.fixed:
            return other.scaled(self.constant)
        if other.fixed:
            return self.scaled(other.constant)
        return Products([(self, other)])

    __radd__, __rmul__ = __add__, __mul__


class Products:
    """A sum of products of affine combinations: what averages are taken of."""

    __array_ufunc__ = None

    def __init__(self, terms: list[tuple[Affine, ...]]) -> None:
        self.terms = terms

    def __add__(self, other: Any) -> Products:
        if isinstance(other, Products):
            return Products(self.terms + other.terms)
        if isinstance(other, Affine):
            return Products([*self.terms, (other,)])
        if other == 0:
            return self
        return Products([*self.terms, (Affine(other, np.zeros_like(self.terms[0][0].coefficients)),)])

    def __mul__(self, other: Any) -> Products:
        if isinstance(other, Products):
            return Products([(*x, *y) for x in self.terms for y in other.terms])
        if isinstance(other, Affine):
            return Products([(*x, other) for x in self.terms])
        return Products([(x[0].scaled(other), *x[1:]) for x in self.terms])

    __radd__, __rmul__ = __add__, __mul__


class Linear:
    """The algebra of affine combinations of at most ``capacity`` sources."""

    def __init__(self, interpreter: Interpreter, capacity: int) -> None:
        self.interpreter = interpreter
        self.columns: dict[Entry, int] = {}
        self.entries: list[Entry] = []
        self.capacity = capacity
        self.sigma = np.full((capacity, capacity), np.nan)

    # -- making values ---------------------------------------------------------------------------------

    def source(self, entry: Entry) -> Affine:
        """A source: the unit vector of its column."""
        coefficients = np.zeros(self.capacity)
        coefficients[self.column(entry)] = 1.0
        return Affine(0.0, coefficients)

    def column(self, entry: Entry) -> int:
        """The column of a source."""
        if entry not in self.columns:
            self.columns[entry] = len(self.entries)
            self.entries.append(entry)
        return self.columns[entry]

    def attribute(self, name: str) -> Affine:
        """One number for each unit."""
        return Affine(self.interpreter.constants.attribute(name), np.zeros(self.capacity))

    def apply(self, f: Compiled, args: list[Value], tangent: bool) -> Affine:
        """A function of attributes; of a field it would not be linear."""
        if any(isinstance(x, Products) or (isinstance(x, Affine) and not x.fixed) for x in args):
            raise Unserved(f"{f.expr} is not linear in the fields: use method='particles'")
        values = [x.constant if isinstance(x, Affine) else x for x in args]
        return Affine(f(*values), np.zeros(self.capacity))

    def total(self, values: list[Value]) -> Value:
        """The sum."""
        total: Value = 0
        for v in values:
            total = v + total
        return total

    def field(self, name: str, v: Value) -> Value:
        """A field must be affine."""
        if isinstance(v, Products):
            raise Unserved(f"the equation of {name} is not linear in the fields: use method='particles'")
        return v

    def restricted(self, v: Value, to: Entry | None) -> Value:
        """All derivatives are at hand anyway."""
        return v

    # -- averages --------------------------------------------------------------------------------------

    def mean(self, v: Value) -> float:
        """The mean over sources and units."""
        if isinstance(v, int | float):
            return float(v)
        if isinstance(v, Affine):
            return float(np.mean(v.constant))
        return float(sum(np.mean(self.wick(x)) for x in v.terms))

    def wick(self, factors: tuple[Affine, ...]) -> Any:
        """``<x y ...>`` for each unit: pair the first factor with each other one (Isserlis)."""
        if not factors:
            return 1.0
        first, rest = factors[0], factors[1:]
        value = first.constant * self.wick(rest) if np.any(first.constant) else 0.0
        for k, x in enumerate(rest):
            covariance = self.covariance(first.coefficients, x.coefficients)
            if np.any(covariance):
                value = value + covariance * self.wick(rest[:k] + rest[k + 1 :])
        return value

    def covariance(self, a: Array, b: Array) -> Any:
        """``a^T Sigma b`` for each unit; a covariance is computed when nonzero coefficients ask for it."""
        rows, cols = (np.flatnonzero(x if x.ndim == 1 else x.any(axis=1)) for x in (a, b))
        for i in rows:
            for j in cols:
                if np.isnan(self.sigma[i, j]):
                    value = self.interpreter.covariance(self.entries[i], self.entries[j])
                    self.sigma[i, j] = self.sigma[j, i] = value
        sigma = self.sigma[np.ix_(rows, cols)]
        if a.ndim == b.ndim == 1:
            return float(a[rows] @ sigma @ b[cols])
        left, right = (x if x.ndim == 2 else x[:, None] for x in (a[rows], b[cols]))
        return np.sum((sigma.T @ left) * right, axis=0)

    def derivative(self, v: Value, source: Entry) -> Value:
        """The coefficient of the source; of a product, by Leibniz's rule."""
        if isinstance(v, int | float) or source not in self.columns:
            return 0
        k = self.columns[source]
        if isinstance(v, Affine):
            return self.number(v.coefficients[k])
        total: Value = 0
        for x in v.terms:
            for i, factor in enumerate(x):
                rest: Value = self.number(factor.coefficients[k])
                for other in x[:i] + x[i + 1 :]:
                    rest = rest * other
                total = rest + total
        return total

    def number(self, x: Any) -> Value:
        """A coefficient: a number, or one for each unit."""
        return float(x) if np.ndim(x) == 0 else Affine(x, np.zeros(self.capacity))
