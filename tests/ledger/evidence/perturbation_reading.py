"""Reads the printed formulas (P.6)-(P.26) as exact polynomials in the sources of one layer.

Operators and kernels come from the derived theory, solved as a power series in gamma0 in fractions; nothing
of the expansion is typed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Derivative, Expr, Mul, Poly, Pow, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.program import L, P, ell, eta, gamma0
from numerics.solver.direct.interpret import Interpreter
from tests.derive.once import mean_field, mlp
from tests.ledger.claims.selfconsistent2023 import perturbation as claim
from tests.reference.exact_series import Gaussians, Power, PowerSolution, evaluate_series

Array = NDArray[np.object_]
x = Symbol("x")

TOP = 3
"""Orders of gamma0 that are solved for."""


@dataclass(frozen=True)
class Case:
    """A polynomial activation, the data, and the depth; everything a fraction."""

    activation: Expr
    depth: int
    kernel: tuple[tuple[Fraction, ...], ...]
    targets: tuple[Fraction, ...]
    steps: int = 3
    rate: Fraction = Fraction(1, 2)
    order: int = TOP

    @property
    def samples(self) -> int:
        """P."""
        return len(self.targets)

    @cached_property
    def solution(self) -> PowerSolution:
        """The derived theory as a power series."""
        return evaluate_series(
            mean_field(mlp(self.depth, self.activation, "gd")),
            steps=self.steps,
            order=self.order,
            values={eta: self.rate, P: self.samples},
            data={"K_x": self.kernel, "y": self.targets},
        )

    def kernel_order(self, name: str, layer: int, n: int) -> Array:
        """Return order ``n`` of Phi or G of a layer as a matrix over (sample, time), also at the ends."""
        size = self.samples * self.steps
        if name == "Phi" and layer == 0:
            flat = np.array(self.kernel, dtype=object).repeat(self.steps, 0).repeat(self.steps, 1)
            return flat if n == 0 else 0 * flat
        if name == "G" and layer == self.depth + 1:
            return np.full((size, size), Fraction(int(n == 0)), dtype=object)
        table = self.solution.coefficient(name, n, layer)
        return np.asarray(table.transpose(0, 2, 1, 3).reshape(size, size))

    def tangent_order(self, n: int) -> Array:
        """Return order ``n`` of the tangent kernel."""
        name = next(k for k, _ in self.solution.values if k.startswith("K"))
        size = self.samples * self.steps
        return np.asarray(self.solution.coefficient(name, n).transpose(0, 2, 1, 3).reshape(size, size))


def algebra_of(formal: Interpreter) -> Gaussians:
    """Return the algebra of series that the entries of a solution belong to."""
    assert isinstance(formal.algebra, Gaussians)
    return formal.algebra


class Static(Gaussians):
    """Averages over the unperturbed sources: covariances at order zero only."""

    def pair(self, i: int, j: int) -> Power:
        key = (min(i, j), max(i, j))
        if key not in self.pairs:
            value = algebra_of(self.interpreter).pair(*key)
            self.pairs[key] = Power({0: value.coefficient(0)}, self.top)
        return self.pairs[key]


class Layer:
    """One layer of a solved case: fields, operators and averages, order by order."""

    def __init__(self, case: Case, layer: int) -> None:
        self.case, self.layer = case, layer
        self.formal: Interpreter = case.solution.interpreter
        self.static = Static(self.formal, TOP)
        whole = algebra_of(self.formal)
        self.static.entries, self.static.numbers = whole.entries, whole.numbers
        self.places = [(a + 1, k) for a in range(case.samples) for k in range(case.steps)]

    def vector(self, name: str) -> Array:
        """Return a field or a source, as series."""
        kind = "sources" if name in "ur" else "fields"
        found = [self.formal.demand(kind, name, (self.layer, *place)) for place in self.places]
        return np.array([*found, None], dtype=object)[:-1]

    def order(self, v: Array, n: int) -> Array:
        """Return order ``n`` of a vector of series, as polynomials."""
        found = [Power({0: c} if (c := e.coefficient(n)) else {}, TOP) for e in v]
        return np.array([*found, None], dtype=object)[:-1]

    @cached_property
    def operators(self) -> dict[str, list[Array]]:
        """C and D: what multiplies g in the equation of h, and phi(h) in that of z, over gamma0."""
        return {"C": self._operator("h", "g"), "D": self._operator("z", "h")}

    def _operator(self, field: str, driven: str) -> list[Array]:
        """Return the coefficients of ``driven`` in the derived equation of ``field``.

        The equation is evaluated with unknowns for ``driven``.
        """
        probe = Interpreter(self.formal.layout, self.formal.constants)
        probe.algebra = Gaussians(probe, TOP)
        kept = {k: v for k, v in self.formal.memo.items() if k[0] not in self.formal.layout.fields}
        probe.memo = kept | {
            (driven, (self.layer, *place)): probe.algebra.source(("probe", place)) for place in self.places
        }
        rows = [probe.compute("fields", field, (self.layer, *place)) for place in self.places]
        linear = Fraction(1, 1)
        if field == "z":
            linear = _fraction(self.case.activation.diff(x).subs(x, 0))
        found = []
        for n in range(TOP):
            matrix = [[_linear(probe, row, n + 1, place) / linear for place in self.places] for row in rows]
            found.append(np.array(matrix, dtype=object))
        return found

    def mean(self, a: Array, b: Array) -> Array:
        """Return <a b^T> over the unperturbed sources, at order zero."""
        return np.array([[self.static.mean(p * q).number(0) for q in b] for p in a], dtype=object)

    def hessian(self, source: str, kernel: Array, a: Array, b: Array) -> Array:
        """Return the trace of ``kernel`` with the average Hessian of a b^T."""
        names = [(source, (self.layer, *place)) for place in self.places]
        size = len(names)
        total = np.full((len(a), len(b)), Fraction(0), dtype=object)
        for i in range(size):
            for j in range(size):
                if kernel[i, j]:
                    for m, p in enumerate(a):
                        for n, q in enumerate(b):
                            twice = self.static.derivative(self.static.derivative(p * q, names[i]), names[j])
                            total[m, n] += kernel[i, j] * self.static.mean(twice).number(0)
        return total


def _linear(probe: Interpreter, row: Power, n: int, place: tuple[int, int]) -> Fraction:
    """Return the coefficient of one unknown, to first degree, at order ``n``."""
    single = 1 << (8 * algebra_of(probe).index(("probe", place)))
    return Fraction(row.coefficient(n).get(single, 0))


def _fraction(e: Any) -> Fraction:
    number = sympify(e)
    return Fraction(int(number.p), int(number.q))


@lru_cache(maxsize=64)
def _coefficients(activation: Expr, derivative: int) -> tuple[Fraction, ...]:
    found = Poly(activation.diff(x, derivative), x).all_coeffs()[::-1]
    return tuple(_fraction(c) for c in found)


def applied(activation: Expr, derivative: int, v: Array) -> Array:
    """Return phi^(derivative), entry by entry."""
    total: Array = np.asarray(0 * v)
    for c in reversed(_coefficients(activation, derivative)):
        total = total * v + _all(c, v)
    return total


def _all(c: Fraction, v: Array) -> Array:
    return np.array([c] * len(v), dtype=object)


@dataclass(frozen=True)
class Reading:
    """Values of the letters of a claim; ``operators`` may be changed to try another theory.

    ``numbers`` gives vectors as fractions in place of polynomials.
    """

    activation: Expr
    vectors: Callable[[str, int | None], Array]
    operators: dict[str, list[Array]]
    layer: Layer | None = None
    third: int = 3
    """What a third derivative is read as."""

    def vector(self, e: Expr) -> Array:  # noqa: PLR0911 (one return for each kind of expression)
        """Return the value of an expression in vectors, without powers of gamma0."""
        if isinstance(e, Symbol):
            return self.vectors(e.name, None)
        if isinstance(e, Derivative):
            (at, order) = e.args[1]
            order = self.third if int(order) == 3 else int(order)
            return applied(self.activation, order, self.vector(at))
        if isinstance(e, AppliedUndef):
            name = str(e.func)
            if name == "phi":
                return applied(self.activation, 0, self.vector(e.args[0]))
            if name in ("h_n", "z_n", "g_n"):
                return self.vectors(name[0], int(e.args[0]))
            if name in self.operators:
                order = int(e.args[0]) if len(e.args) == 2 else 0
                return np.asarray(self.operators[name][order] @ self.vector(e.args[-1]))
            raise KeyError(f"{e} is not a vector")
        if isinstance(e, Add):
            return np.asarray(sum(self.vector(a) for a in e.args))
        if isinstance(e, Mul):
            value: Any = 1
            for a in e.args:
                value = value * (_fraction(a) if a.is_Rational else self.vector(a))
            return np.asarray(value)
        if isinstance(e, Pow) and e.exp.is_Integer:
            base = self.vector(e.base)
            return np.asarray(np.multiply.reduce(np.stack([base] * int(e.exp)), axis=0))
        raise KeyError(f"{e} is not a vector")

    def kernel(self, e: Expr) -> Any:  # noqa: PLR0911 (one return for each kind of expression)
        """Return the value of an expression in kernels, at order zero of all its parts."""
        if e.is_Rational:
            return _fraction(e)
        if isinstance(e, Add):
            return sum(self.kernel(a) for a in e.args)
        if isinstance(e, Mul):
            value: Any = 1
            for a in e.args:
                value = value * self.kernel(a)
            return value
        layer = self.layer
        assert layer is not None
        if e == claim.Kx:
            return layer.case.kernel_order("Phi", 0, 0)
        name, args = str(e.func), e.args
        if name in ("Phi", "G"):
            return layer.case.kernel_order(name, self._place(args[0]), int(args[1]))
        if name == "transpose":
            return self.kernel(args[0]).T
        if name == "mean":
            return layer.mean(self.vector(args[0]), self.vector(args[1]))
        if name == "fixed":
            return self._fixed(int(args[0]), args[1], args[2])
        if name.startswith("hessian"):
            return layer.hessian(name[-1], self.kernel(args[0]), self.vector(args[1]), self.vector(args[2]))
        raise KeyError(f"{e} is not a kernel")

    def _place(self, e: Expr) -> int:
        assert self.layer is not None
        return int(e.subs({ell: self.layer.layer, L: self.layer.case.depth}))

    def _fixed(self, n: int, a: Expr, b: Expr) -> Array:
        """Return the n-th derivative in gamma0 of <a b^T>, for given covariances of the sources."""
        assert self.layer is not None
        full = replace(self, vectors=lambda name, _: self.layer.vector(name))  # type: ignore[union-attr]
        one, two = full.vector(a), full.vector(b)
        total: Any = 0
        for k in range(n + 1):
            total = total + self.layer.mean(self.layer.order(one, k), self.layer.order(two, n - k))
        return np.asarray(total * factorial(n))


def of_layer(layer: Layer, third: int = 3) -> Reading:
    """Return the letters as the derived theory has them in this layer."""

    def vectors(name: str, n: int | None) -> Array:
        return layer.order(layer.vector(name), 0 if n is None else n)

    return Reading(layer.case.activation, vectors, layer.operators, layer, third)


def off(printed: Any, right: Any) -> float:
    """Return the largest difference of two tables of fractions, relative to the largest of ``right``."""
    gap = np.asarray(printed, dtype=object) - np.asarray(right, dtype=object)
    largest = max((abs(v) for v in np.asarray(right, dtype=object).ravel()), default=Fraction(0))
    return float(max(abs(v) for v in gap.ravel()) / (largest or 1))


def off_polynomials(printed: Array, right: Array) -> float:
    """Return the same for vectors of polynomials, coefficient by coefficient."""
    sizes, gaps = [Fraction(0)], [Fraction(0)]
    for p, q in zip(printed, right, strict=True):
        a, b = _flat(p), _flat(q)
        gaps += [abs(a.get(k, Fraction(0)) - b.get(k, Fraction(0))) for k in a.keys() | b.keys()]
        sizes += [abs(v) for v in b.values()]
    return float(max(gaps) / (max(sizes) or 1))


def _flat(p: Any) -> dict[tuple[int, int], Fraction]:
    if not isinstance(p, Power):
        return {(0, 0): Fraction(p)}
    return {(n, k): Fraction(c) for n, q in p.orders.items() for k, c in q.items()}


__all__ = ["Case", "Layer", "Reading", "applied", "gamma0", "of_layer", "off", "off_polynomials", "x"]
