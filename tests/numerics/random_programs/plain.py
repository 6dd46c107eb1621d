"""A network's forward pass, loss and training in NumPy, read from its expressions.

The expressions of ``Network.forward`` are evaluated on small arrays, entry by entry. Gradients of the loss
are complex-step derivatives by every entry of every trained weight. This module is a reference for
:mod:`derive` and :mod:`numerics`, and uses no code of theirs that differentiates or solves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import sympy
from scipy.special import erf
from sympy import Add, Expr, Mul, Piecewise, Pow, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from derive.program import (
    Definition,
    GaussianMatrix,
    GaussianVector,
    IndexRange,
    Momentum,
    Network,
    Parametrization,
    Population,
    Product,
    ell,
    t,
)
from derive.program.language import Mean

Array = Any
Key = tuple[str, tuple[int, ...]]
Index = dict[Symbol, int]
STEP = 1e-30
"""The imaginary step: derivatives are exact to rounding."""


def largest(*values: Array) -> Array:
    """Return the maximum by real parts, with SymPy's derivative of one half at a tie."""
    total = values[0]
    for x in values[1:]:
        a, b = np.broadcast_arrays(total, x)
        total = np.where(a.real == b.real, (a + b) / 2, np.where(a.real > b.real, a, b))
    return total


FUNCTIONS: dict[Any, Callable[..., Array]] = {
    sympy.tanh: np.tanh,
    sympy.sinh: np.sinh,
    sympy.cosh: np.cosh,
    sympy.exp: np.exp,
    sympy.log: np.log,
    sympy.sin: np.sin,
    sympy.cos: np.cos,
    sympy.erf: erf,
    sympy.Max: largest,
    sympy.Min: lambda *values: -largest(*[-x for x in values]),
    sympy.Abs: lambda x: x * np.sign(x.real),
    sympy.sign: lambda x: np.sign(x.real) + 0j,
    sympy.Heaviside: lambda x, *_: np.heaviside(x.real, 0.5) + 0j,
}


@dataclass(frozen=True)
class Shape:
    """The number N of units of a population with ratio 1, and the number D of inputs."""

    width: int
    inputs: int

    def size(self, population: Population, numbers: Callable[[Any], float]) -> int:
        """Return the number of units of a population."""
        return self.inputs if population.given else round(numbers(population.ratio) * self.width)

    def fan(self, matrix: GaussianMatrix) -> int:
        """Return the N of entries of variance ``variance/N``."""
        return self.inputs if matrix.rows.given or matrix.cols.given else self.width


@dataclass
class Plain:
    """A network with numbers for its symbols.

    ``numbers`` has a number for each symbol by name, ``functions`` a SymPy function for each undefined one,
    ``data`` constants by name (arrays whose first index is one, or functions of the indices) and the vectors
    on given populations with their units along the last axis.
    """

    network: Network
    loss: Expr
    shape: Shape
    numbers: Mapping[str, float]
    functions: Mapping[str, Any]
    data: Mapping[str, Any]
    definitions: tuple[Definition, ...] = field(init=False)
    first: Any = field(default=None, init=False)
    """The forward pass at step 0, whose values are known numbers later."""

    def __post_init__(self) -> None:
        self.definitions = tuple(d.map(self.defined) for d in self.network.definitions())
        self.loss = self.defined(self.loss)
        self.fields = {x.name: x for x in self.network.fields}
        self.weights: dict[str, Any] = {w.name: w for w in (*self.network.weights, *self.network.frozen)}
        self.attributes = {x.name for x in self.network.attributes}
        self.given = {x.name for x in self.network.given}
        self.of: dict[str, list[Definition]] = {}
        for d in self.definitions:
            self.of.setdefault(d.name, []).append(d)

    def defined(self, e: Any) -> Any:
        """Put functions in the places of undefined ones."""
        known = self.functions
        return sympy.sympify(e).replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in known,
            lambda x: known[str(x.func)](*x.args),
        )

    def number(self, e: Any, at: Mapping[Symbol, int] | None = None) -> float:
        """Return the value of an expression of numbers, indices and constants."""
        return float(np.real(Pass(self, {}, 0).value(sympy.sympify(e), dict(at or {}))).ravel()[0])

    def integer(self, e: Any, at: Mapping[Symbol, int] | None = None) -> int:
        """Return the integer value of an expression of indices."""
        e = sympy.sympify(e)
        table: dict[Any, int] = {x: n for x, n in (at or {}).items()}
        table |= {x: int(self.numbers[x.name]) for x in e.free_symbols if x not in table}
        return int(e.xreplace({x: sympy.Integer(n) for x, n in table.items()}))

    def members(self, ranges: Sequence[IndexRange], at: Index | None = None) -> list[Index]:
        """Return all values of the indices of ``ranges``."""
        found = [dict(at or {})]
        for r in ranges:
            found = [
                {**x, r.index: i}
                for x in found
                for i in range(self.integer(r.lower, x), self.integer(r.upper, x) + 1)
            ]
        return found

    def keys(self, weight: GaussianMatrix | GaussianVector) -> list[tuple[Key, Index]]:
        """Return the members of a family of weights, or the weight itself."""
        if isinstance(weight, GaussianVector):
            ranges = weight.indices
        else:
            ranges = (*((weight.index,) if weight.index else ()), *weight.others)
        return [((weight.name, tuple(at.values())), at) for at in self.members(ranges)]

    def start(self, rng: np.random.Generator, steps: int) -> dict[Key, Array]:
        """Return initial weights as they are applied; fresh ones have the step as first axis."""
        found: dict[Key, Array] = {}
        for weight in self.weights.values():
            for key, at in self.keys(weight):
                deviation = np.sqrt(self.number(weight.variance, at))
                if isinstance(weight, GaussianVector):
                    size = self.shape.size(weight.population, lambda e, at=at: self.number(e, at))
                    times = (steps + 1,) if weight.fresh else ()
                    found[key] = deviation * rng.standard_normal((*times, size))
                    continue
                rows, cols = (
                    self.shape.size(p, lambda e, at=at: self.number(e, at))
                    for p in (weight.rows, weight.cols)
                )
                found[key] = deviation * rng.standard_normal((rows, cols)) / np.sqrt(self.shape.fan(weight))
        return found

    def losses(self, weights: Mapping[Key, Array], step: int) -> Array:
        """Return the loss, summed over its indices, of each network along the first axis of weights."""
        forward = Pass(self, weights, step, self.first)
        ranges = {r.index: r for d in self.definitions for r in d.ranges}
        free = [ranges[x] for x in sorted(self.loss.free_symbols & set(ranges), key=str)]
        return sum(forward.value(self.loss, {**at, t: step}) for at in self.members(free))

    def slope(self, weights: Mapping[Key, Array], key: Key, step: int) -> Array:
        """Return the derivative of the loss by every entry of one weight, at most 512 at a time."""
        value = weights[key][None]
        flat: list[Array] = []
        for first in range(0, value.size, 512):
            some = np.arange(first, min(first + 512, value.size))
            moved = np.repeat(value.reshape(1, -1), len(some), axis=0).astype(complex)
            moved[np.arange(len(some)), some] += 1j * STEP
            every = {k: x[None] for k, x in weights.items()} | {key: moved.reshape(-1, *value.shape[1:])}
            loss = np.broadcast_to(self.losses(every, step), (len(some), 1))
            flat.append(loss[:, 0].imag / STEP)
        return np.concatenate(flat).reshape(value.shape[1:])

    def trained(
        self, start: Mapping[Key, Array], rule: Any, parametrization: Parametrization, steps: int
    ) -> list[dict[str, Array]]:
        """Return every number of the forward pass at each step of training, as arrays over its indices.

        Raw weights ``theta``, of which a matrix is ``theta/sqrt(n)``, follow ``theta <- (1 - decay) theta -
        rate scale^2 N dloss/dtheta``, with heavy-ball momentum if the rule has it.
        """
        fresh = {key for w in self.weights.values() if w.fresh for key, _ in self.keys(w)}
        weights = {k: x[0] if k in fresh else x for k, x in start.items()}
        velocities = {k: np.zeros_like(x) for k, x in weights.items()}
        self.first = Pass(self, {k: x[None] for k, x in weights.items()}, 0)
        found = [self.numbers_at(weights, 0)]
        for step in range(steps):
            moved = dict(weights)
            for weight in self.network.weights:
                for key, at in self.keys(weight):
                    rate, update = self._update(weights, weight, key, {**at, t: step}, rule, parametrization)
                    beta = self.number(rule.momentum, {t: step}) if isinstance(rule, Momentum) else 0.0
                    velocities[key] = beta * velocities[key] + update
                    decay = self.number(rule.decay, {t: step})
                    moved[key] = (1 - decay) * weights[key] + rate * velocities[key]
            weights = {k: start[k][step + 1] if k in fresh else x for k, x in moved.items()}
            found.append(self.numbers_at(weights, step + 1))
        return found

    def _update(
        self,
        weights: Mapping[Key, Array],
        weight: GaussianMatrix | GaussianVector,
        key: Key,
        at: Index,
        rule: Any,
        parametrization: Parametrization,
    ) -> tuple[float, Array]:
        """Return the rule's learning rate, and minus ``scale^2 N/n`` times the gradient."""
        slope = self.slope(weights, key, at[t])
        factor = self.number(parametrization.scale, at) ** 2 * self.number(parametrization.rate, at)
        factor *= self.number(dict(parametrization.rates).get(weight.name, sympy.S.One), at)
        if isinstance(weight, GaussianMatrix):
            own = self.number(parametrization.fan_in_of(weight), at)
            units = own * (self.shape.inputs if weight.cols.given else self.shape.width)
            factor /= units
        return self.number(rule.rate, at), -factor * self.shape.width * slope

    def numbers_at(self, weights: Mapping[Key, Array], step: int) -> dict[str, Array]:
        """Return every number that the forward pass defines, as arrays over its indices in order."""
        every = {k: x[None] for k, x in weights.items()}
        forward, found = Pass(self, every, step, self.first), {}
        for name, lines in self.of.items():
            if name in self.fields:
                continue
            places: dict[tuple[int, ...], float] = {}
            for d in lines:
                for at in self.members(d.ranges):
                    spot = tuple(self.integer(a, at) for a in d.lhs.args[:-1])
                    places[spot] = float(forward.entry(name, spot).real.ravel()[0])
            axes = [sorted({spot[i] for spot in places}) for i in range(len(next(iter(places))))]
            values = [places.get(spot, np.nan) for spot in product(*axes)]
            found[name] = np.array(values).reshape([len(a) for a in axes])
        return found


class Pass:
    """One forward pass at one step, for networks along the first axis of weights."""

    def __init__(
        self, plain: Plain, weights: Mapping[Key, Array], step: int, before: Pass | None = None
    ) -> None:
        self.plain, self.weights, self.step = plain, weights, step
        self.known: dict[Key, Array] = {}
        self.before = before

    def entry(self, name: str, spot: tuple[int, ...]) -> Array:
        """Return a field, (networks, units), or a number, (networks, 1), at integer indices."""
        if (name, spot) not in self.known:
            found = self._definition(name, spot)
            if found is None:
                found = self._definition(name, self._on_ring(name, spot))
            if found is None:
                raise KeyError(f"{name}{spot} has no definition")
            d, at = found
            self.known[name, spot] = self.value(d.rhs, {**at, t: self.step})
        return self.known[name, spot]

    def _definition(self, name: str, spot: tuple[int, ...]) -> tuple[Definition, Index] | None:
        """Return the definition of an entry, and the values of its indices there."""
        for d in self.plain.of[name]:
            at: Index = {}
            ranges = {r.index: r for r in d.ranges}
            fits = True
            for a, i in zip(d.lhs.args[:-1], spot, strict=True):
                free = sorted(a.free_symbols & set(ranges), key=str)
                if free:
                    at[free[0]] = i - self.plain.integer(a - free[0], at)
                elif self.plain.integer(a) != i:
                    fits = False
            for x, i in at.items():
                r = ranges[x]
                fits = fits and self.plain.integer(r.lower, at) <= i <= self.plain.integer(r.upper, at)
            if fits:
                return d, at
        return None

    def _on_ring(self, name: str, spot: tuple[int, ...]) -> tuple[int, ...]:
        """Return indices outside of their ranges shifted back on the ring, except those of layers."""
        moved = list(spot)
        for d in self.plain.of[name]:
            ranges = {r.index: r for r in d.ranges}
            for j, a in enumerate(d.lhs.args[:-1]):
                if a in ranges and a != ell:
                    low, high = (self.plain.integer(x) for x in (ranges[a].lower, ranges[a].upper))
                    moved[j] = low + (spot[j] - low) % (high - low + 1)
        return tuple(moved)

    def value(self, e: Expr, at: Index) -> Array:  # noqa: PLR0911 (one return for each kind of expression)
        """Return an expression at values of its indices: (networks, units), or (networks, 1) of a number."""
        plain = self.plain
        if e.is_number and not e.has(AppliedUndef):
            return np.full((1, 1), complex(e))
        if isinstance(e, Symbol):
            return self._symbol(e, at)
        if isinstance(e, Product):
            return self._product(e, at)
        if isinstance(e, Mean):
            return self.value(e.args[0], at).mean(axis=-1, keepdims=True)
        if isinstance(e, Sum):
            return self._sum(e.function, e.limits, at)
        if isinstance(e, Add):
            return sum((self.value(x, at) for x in e.args[1:]), self.value(e.args[0], at))
        if isinstance(e, Mul):
            return np.prod(np.array(np.broadcast_arrays(*[self.value(x, at) for x in e.args])), axis=0)
        if isinstance(e, Pow):
            base, power = self.value(e.base, at), self.value(e.exp, at)
            return base ** (int(e.exp) if e.exp.is_Integer else power)
        if isinstance(e, AppliedUndef):
            return self._applied(e, at)
        if isinstance(e, Piecewise):
            return self._piecewise(e, at)
        if isinstance(e, sympy.KroneckerDelta):
            return np.full((1, 1), complex(plain.integer(e.args[0], at) == plain.integer(e.args[1], at)))
        return FUNCTIONS[e.func](*[self.value(x, at) for x in e.args])

    def _symbol(self, e: Symbol, at: Index) -> Array:
        if e in at:
            return np.full((1, 1), complex(at[e]))
        if (e.name, ()) in self.weights:
            return self.weights[e.name, ()]
        return np.full((1, 1), complex(self.plain.numbers[e.name]))

    def _product(self, e: Product, at: Index) -> Array:
        name = str(e.matrix.func) if e.matrix.args else str(e.matrix)
        spot = tuple(self.plain.integer(a, at) for a in e.matrix.args)
        matrix, vector = self.weights[name, spot], self.value(e.vector, at)
        return np.einsum("bji,bj->bi" if e.transposed else "bij,bj->bi", matrix, vector)

    def _sum(self, body: Expr, limits: Sequence[Any], at: Index) -> Array:
        """Return a sum whose last limit is the outermost, as SymPy orders them."""
        if not limits:
            return self.value(body, at)
        index, low, high = limits[-1]
        runs = range(self.plain.integer(low, at), self.plain.integer(high, at) + 1)
        return sum((self._sum(body, limits[:-1], {**at, index: i}) for i in runs), np.zeros((1, 1), complex))

    def _applied(self, e: AppliedUndef, at: Index) -> Array:
        plain, name = self.plain, str(e.func)
        if name in plain.of:
            first = e.args[-1] == 0 and self.before is not None
            return (self.before if first else self).entry(
                name, tuple(plain.integer(a, at) for a in e.args[:-1])
            )  # type: ignore[union-attr]
        if name in plain.attributes:
            value = np.asarray(plain.data[name])
            return np.tile(value, plain.shape.width // len(value))[None].astype(complex)
        spot = tuple(plain.integer(a, at) for a in e.args)
        if name in plain.weights:
            return self.weights[name, spot]
        data = plain.data[name]
        if callable(data):
            return np.full((1, 1), complex(data(*spot)))
        places = tuple(i if a == t else i - 1 for a, i in zip(e.args, spot, strict=True))
        value = np.asarray(data)[places]
        return value[None].astype(complex) if name in plain.given else np.full((1, 1), complex(value))

    def _piecewise(self, e: Piecewise, at: Index) -> Array:
        total: Array = np.full((1, 1), np.nan + 0j)
        for value, condition in reversed(e.args):
            if condition == sympy.true:
                total = self.value(value, at)
            else:
                assert isinstance(condition, Relational)
                left, right = (self.value(x, at).real for x in (condition.lhs, condition.rhs))
                compare = {
                    sympy.Gt: np.greater,
                    sympy.Ge: np.greater_equal,
                    sympy.Lt: np.less,
                    sympy.Le: np.less_equal,
                }
                total = np.where(compare[condition.func](left, right), self.value(value, at), total)
        return total


__all__ = ["Plain", "Shape"]
