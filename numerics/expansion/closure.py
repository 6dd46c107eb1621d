"""The expansion in gamma0 of a linear network as numbers: its closure's recursion in the layer.

The words of the expansion multiply by ten or more with each power of gamma0^2.  Their sums do not: the
closure's equations give each order of an operator by products of lower ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Indexed, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell
from derive.errors import NotApplicable
from derive.expansion.words import layer_products, parts_of
from derive.linear.closure import LinearClosure
from derive.linear.operators import J, Kernel, operator
from numerics.errors import Diverged
from numerics.expansion.coefficients import Setting, parted
from numerics.expansion.operators import (
    Algebra,
    Dense,
    Separable,
    Stream,
    Times,
    Value,
    add,
    convolved,
    memory_weight,
    multiplied,
    remembered,
)
from numerics.solver.afterwards import interval_weights
from numerics.solver.grid import Grid, tables_of

Array = NDArray[np.float64]
Place = tuple[str, int]
"""An operator's name and layer."""

DATA = operator("K_x")

PROBED = 16
"""So many times say how the output at order 0 depends on the error."""
LEFT, LOST = 1e-9, 1e-5
"""What may be left of the error's own equation, relative to the largest term in it; and what rounding leaves
at most, where kernels of a step that is too long have grown large."""


@dataclass(frozen=True, eq=False)
class Layers:
    """A closure's equations layer by layer, at a depth: all that no number and no time enters.

    ``base`` says where each operator is given, and what it is there; ``laws`` and ``made_of`` its equation,
    and what a kernel is made of (responses, and correlations remembered), at each layer; ``products`` the
    addends of the tangent kernel, (layers, left, right), of factors by name and layer or as data.
    """

    base: Mapping[str, tuple[int, Expr]]
    laws: Mapping[str, Mapping[int, Expr]]
    kernels: Mapping[str, Kernel]
    made_of: Mapping[Place, tuple[list[Place], list[Place]]]
    average: Expr
    products: list[tuple[Expr | Place, Expr | Place]]


@lru_cache(maxsize=64)
def layers_of(closure: LinearClosure, depth: int) -> Layers:
    """Raises :class:`~derive.errors.NotApplicable` for a closure without a family of layers."""
    if closure.layers is None:
        raise NotApplicable("the expansion needs a family of layers")
    upper, every = closure.layers.upper, range(1, depth + 1)

    def site(e: Expr | int) -> int:
        return int(sympify(e).subs(upper, depth))

    def place(a: AppliedUndef, layer: int) -> Place:
        return str(a.func), site(a.args[0].subs(ell, layer))

    def factor(a: AppliedUndef | None, layer: int) -> Expr | Place:
        if a is None:
            return J
        return place(a, layer) if str(a.func) in laws else operator(str(a.func))

    equations = {str(e.lhs.args[0]): e for e in (*closure.covariances, *closure.responses)}
    laws = {
        name: {k: e.rhs.subs(ell, k - (e.lhs.args[1] - ell)).subs(upper, depth) for k in every}
        for name, e in equations.items()
    }
    kernels = {k.name: k for k in closure.kernels if k.operator.has(ell) and k.name not in laws}
    made_of: dict[Place, tuple[list[Place], list[Place]]] = {}
    for name, kernel in kernels.items():
        responses, memories = parts_of(kernel, closure)
        for k in every:
            made_of[name, k] = [place(a, k) for a in responses], [place(a, k) for a in memories]
    products = []
    for limits, a, b in layer_products(closure):
        low, high = (0, 0) if limits is None else (site(limits[0]), site(limits[1]))
        products += [(factor(a, k), factor(b, k)) for k in range(low, high + 1)]
    return Layers(
        base={str(e.lhs.args[0]): (site(e.lhs.args[1]), e.rhs) for e in closure.base},
        laws=laws,
        kernels=kernels,
        made_of=made_of,
        average=closure.outputs[0].rhs.subs(upper, depth),
        products=products,
    )


@lru_cache(maxsize=10_000)
def place_of(x: Indexed) -> Place:
    """The name and the layer of an operator."""
    return x.base.label.name, int(x.indices[0])


class Closed:
    """Orders 0, 1, 2, ... of every operator at every layer, on one time grid.

    ``memory[C]`` is the weight with which kernel C remembers, (T, T); ``kernel`` the data's constant kernel.
    """

    def __init__(
        self,
        layers: Layers,
        depth: int,
        constants: Mapping[Symbol, float],
        memory: Mapping[str, Array],
        kernel: Array,
    ) -> None:
        self.layers, self.depth, self.memory, self.kernel = layers, depth, memory, kernel
        self.constants = constants
        self.T, self.P = next(iter(memory.values())).shape[0], len(kernel)
        self.base, self.laws, self.kernels = layers.base, layers.laws, layers.kernels
        self.correlations = [x for x in self.laws if self.base.get(x, (0, 0))[1] != 0]
        self.errors: dict[int, Array] = {}
        self.outputs: list[Array] = []
        self.settled = -1
        self.operators: dict[Place, Stream] = {}
        self.numbers: dict[Expr, float] = {}
        self.algebra = Algebra(self.known, self.number, self.is_correlation)
        self.average = self.algebra.series(layers.average)

    @classmethod
    def of(cls, setting: Setting, closure: LinearClosure) -> Self:
        """The closure of a problem's theory with its numbers, depth and data."""
        layers = layers_of(closure, setting.depth)
        return cls(layers, setting.depth, setting.numbers, memories(setting, closure), setting.kernel)

    def upto(self, now: int | None = None) -> Closed:
        """The same equations with nothing known yet, up to a time only."""
        memory = {k: v[:now, :now] for k, v in self.memory.items()}
        return Closed(self.layers, self.depth, self.constants, memory, self.kernel)

    # -- operators -------------------------------------------------------------------------------------

    def number(self, e: Expr) -> float:
        """A constant of the closure."""
        if e not in self.numbers:
            self.numbers[e] = float(e if e.is_Number else e.subs(self.constants))
        return self.numbers[e]

    def known(self, x: Expr) -> Stream:
        """An operator by its symbol: data, or one of the family at a layer."""
        return self.constant(x) if x.is_Symbol else self.operator(*place_of(x))

    def is_correlation(self, x: Expr) -> bool:
        """Is an operator a correlation, or data?  These are of low rank."""
        return bool(x.is_Symbol) or place_of(x)[0] in self.correlations

    def constant(self, x: Expr) -> Stream:
        """Kernels without memory."""
        if x == J:
            one = np.ones((self.T, 1, 1))
            value = Separable(one, np.ones((1, 1)), one)
        elif x == DATA:
            eye = np.broadcast_to(np.eye(self.P), (self.T, self.P, self.P))
            value = Separable(eye, self.kernel, eye)
        else:
            raise NotApplicable(f"the kernel {x} is not given")
        return Stream(lambda n: value if n == 0 else None)

    def operator(self, name: str, site: int) -> Stream:
        """One operator at one layer."""
        if (name, site) not in self.operators:
            self.operators[name, site] = self.stream(name, site)
        return self.operators[name, site]

    def stream(self, name: str, site: int) -> Stream:
        if name in self.base and self.base[name][0] == site:
            value = self.base[name][1]
            return self.constant(value) if value != 0 else Stream(lambda n: None)
        if name not in self.laws:
            return self.remembering(name, site)
        inner: list[Stream] = []

        def rule(n: int) -> Value | None:
            if not inner:  # deferred, so that a law may name the layers that it is made from
                inner.append(self.algebra.series(self.laws[name][site]))
            return inner[0].at(n)

        return Stream(rule) if name in self.correlations else self.algebra.new(rule)

    def remembering(self, name: str, site: int) -> Stream:
        """A kernel: the response of the neighbouring layer, and the memory of a correlation."""
        kernel = self.kernels[name]
        responses, memories = (
            [self.operator(*x) for x in places] for places in self.layers.made_of[name, site]
        )

        def rule(n: int) -> Value | None:
            if n > self.settled + 1:
                raise NotApplicable(
                    f"{name} at order {n} is needed before the error at order {n - 1} is known"
                )
            if n == self.settled + 1 and n not in self.errors:
                raise NotApplicable(f"{name} at order {n} is needed for correlations of that order")
            parts = [x.at(n) for x in responses]
            for x in memories:
                for j in range(n + 1):
                    body = x.at(n - j)
                    if body is not None and np.any(self.errors[j]):
                        parts.append(remembered(kernel, self.memory[name], self.errors[j], body))
            return add(*parts)

        return self.algebra.new(rule)

    # -- the error -------------------------------------------------------------------------------------

    @cached_property
    def weight(self) -> Array:
        """How an update at s enters at t, (T, T)."""
        return next(iter(self.memory.values()))

    @cached_property
    def gain(self) -> float:
        """The number in ``f_0(t) = gain K_x sum_s w(t, s) Delta_0(s)``, read off f_0 at some error.

        Raises :class:`~derive.errors.NotApplicable` where f_0 depends on the error in another way.
        """
        some = np.linspace(0, self.T - 1, min(PROBED, self.T)).astype(int)
        memory = {k: v[np.ix_(some, some)] for k, v in self.memory.items()}
        lazy = Closed(self.layers, self.depth, self.constants, memory, self.kernel)
        lazy.remember(np.random.default_rng(0).standard_normal((lazy.T, self.P)), 0)
        size = float(np.max(np.abs(self.kernel))) or 1.0  # squares of the smallest kernels are no numbers
        f, known = lazy.output(0) / size, lazy.weight @ lazy.errors[0] @ (self.kernel / size)
        scale = float(np.max(np.abs(known))) or 1.0  # nor are those of the shortest times
        if scale < np.finfo(float).tiny:
            raise Diverged(f"what is learnt in so short a time, {scale:.0e}, is rounded away")
        f, known = f / scale, known / scale
        gain = float(np.vdot(known, f)) / max(float(np.vdot(known, known)), 1e-300)
        if np.max(np.abs(f - gain * known)) > LEFT * np.max(np.abs(f)):
            raise NotApplicable("the output at order 0 is no multiple of what the data's kernel remembers")
        return gain

    def advance(self, setting: Setting) -> None:
        """One more order of everything.

        f_n contains Delta_n as f_0 contains Delta_0, :attr:`gain` times the memory of the input kernel: the
        average f is linear in the error at lowest order in gamma0.  What is left of its equation is checked.
        Raises :class:`~numerics.errors.Diverged`.
        """
        n = self.settled + 1
        for name in self.correlations:
            for site in self.inwards(name):
                self.operator(name, site).at(n)  # needs no error of order n; remembering() refuses it
        self.errors[n] = np.zeros((self.T, self.P))
        f, law = self.output(n), setting.error
        drive = law.order([*self.outputs, f])
        if np.any(drive):
            self.errors[n], _ = setting.answer(self.weight, self.gain * self.kernel, f, self.outputs)
            self.algebra.forget(n)
            f = self.output(n)
            left = np.max(np.abs(law.order([*self.outputs, f]) - self.errors[n]))
            scale = max(float(np.max(np.abs(x))) for x in (drive, self.errors[n]))
            if LEFT * scale < left <= LOST * scale:
                raise Diverged(f"Delta at order {n} has lost its accuracy: {left / scale:.1e} is rounding")
            if left > LEFT * scale:
                raise NotApplicable(
                    f"the error's equation at order {n} is not that of order 0: {left:.1e} is left"
                )
        self.settled = n
        self.outputs.append(f)

    def remember(self, error: Array, order: int) -> None:
        """Let ``error`` be remembered in full, as if it did not depend on gamma0."""
        self.errors = {n: error if n == 0 else np.zeros_like(error) for n in range(order + 1)}
        self.settled = order

    def inwards(self, name: str) -> list[int]:
        """The layers from the end where an operator is given."""
        place = self.base[name][0]
        return sorted(range(1, self.depth + 1), key=lambda k: abs(k - place))

    def output(self, n: int) -> Array:
        """f at order n, (T, P): the average it is made of carries one power of gamma0 more."""
        value = self.average.at(n + 1)
        if value is None:
            return np.zeros((self.T, self.P))
        assert isinstance(value, Separable)
        return value.diagonal().reshape(self.T, self.P)

    # -- values ----------------------------------------------------------------------------------------

    def value(self, name: str, n: int, site: int) -> Value | None:
        """Order n of an operator at a layer."""
        return self.operator(name, site).at(n)

    def tangent(self, n: int, out: Times, into: Array) -> None:
        """Order n of the tangent kernel at output times, (out, P, out, P): sums of products entry by entry.

        Products with the same factor are one: at order 0 all kernels are the data's, or 1.
        """
        pairs: list[tuple[Value, Value]] = []
        for places in self.layers.products:
            streams = [self.operator(*x) if isinstance(x, tuple) else self.constant(x) for x in places]
            for k in range(n + 1):
                left, right = streams[0].at(k), streams[1].at(n - k)
                if left is not None and right is not None:
                    pairs.append((left, right))
        pairs = [(x, y) for y, x in merged([(x, y) for y, x in merged(pairs)])]
        product = np.empty_like(into)
        for left, right in pairs:
            right.at(out, product)
            into += np.multiply(product, left.at(out), out=product)


def merged(pairs: list[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
    """Those with the same second value as one, with the sum of their first."""
    found: dict[tuple[bytes, ...], tuple[list[Value], Value]] = {}
    for x, y in pairs:
        assert isinstance(y, Separable)
        key = y.left.tobytes(), y.core.tobytes(), y.right.tobytes()
        found.setdefault(key, ([], y))[0].append(x)
    return [(total, y) for xs, y in found.values() if (total := add(*xs)) is not None]


class Densities(Closed):
    """The same equations with what the rule remembers of an update alone, and integrals from s to t in place
    of sums.

    A memory holds the quadrature's weights times what is ``kept`` at t of an update at s (all of it without
    momentum), and a factor, which is read off their sums.
    """

    def __init__(self, found: Closed, setting: Setting, grid: Grid) -> None:
        given = setting.problem.program.rule, setting.numbers, grid.nodes
        kept = tables_of(*given, np.tri(found.T))["w"]
        whole = float(np.sum(setting.tables["w"][-1]))
        plain = {name: kept * (float(np.sum(w[-1])) / whole) for name, w in found.memory.items()}
        self.found, self.weights = found, list(interval_weights(grid.nodes))
        super().__init__(found.layers, found.depth, found.constants, plain, found.kernel)
        self.algebra.multiply = self.multiply
        self.errors, self.settled = found.errors, found.settled

    def stream(self, name: str, site: int) -> Stream:
        if name in self.correlations:
            return self.found.operator(name, site)
        return super().stream(name, site)

    def multiply(self, a: Value, b: Value) -> Value:
        """The product of two causal operators, or an ordinary one."""
        if isinstance(a, Dense) and isinstance(b, Dense):
            return Dense(convolved(a.block, b.block, self.weights))
        return multiplied(a, b)


class OrderByOrder:
    """The coefficients up to ``order`` of a problem whose network has this closure, on one time grid."""

    def __init__(self, setting: Setting, closure: LinearClosure, order: int) -> None:
        self.setting, self.order = setting, order
        self.closed = Closed.of(setting, closure)
        for _ in range(order + 1):
            self.closed.advance(setting)
        family = [self.closed.operator(x, k) for x in self.closed.laws for k in range(1, setting.depth + 1)]
        self.orders = [n for n in range(order + 1) if any(x.at(n) is not None for x in family)]
        self.notes: dict[str, Any] = {}

    def watched(self) -> Array:
        """Errors at every order and node, (order + 1, T, P)."""
        return np.stack(list(self.closed.errors.values()))

    def values(self) -> dict[str, Array]:
        """Every variable at output times, with the order first."""
        P, closed, grid = self.closed.P, self.closed, self.setting.grid
        out: Times = slice(None) if grid is None else grid.outputs
        source = closed if grid is None else Densities(closed, self.setting, grid)

        orders, depth, T = self.orders, self.setting.depth, len(self.setting.problem.times)

        def read(name: str, found: Closed, rows: int, cols: int) -> Array:
            """Axes: orders, layers, times t, rows, times s, columns."""
            values = np.zeros((len(orders), depth, T, rows, T, cols))
            for i, n in enumerate(orders):
                for k in range(depth):
                    if (x := found.operator(name, k + 1).at(n)) is not None:
                        x.at(out, values[i, k])
            return values

        tangent = np.zeros((len(orders), T, P, T, P))
        for n, into in zip(orders, tangent, strict=True):
            closed.tangent(n, out, into)
        kernels = {
            "Phi": read("H", closed, P, P).swapaxes(3, 4),
            "G": read("G", closed, 1, 1)[:, :, :, 0, :, 0],
            "A": read("A", source, P, 1)[..., 0].swapaxes(3, 4),
            "B": read("B", source, 1, P)[:, :, :, 0],
            "tangent_kernel": tangent.swapaxes(2, 3),
        }
        error, f = self.watched()[:, out], np.stack(self.closed.outputs)[:, out]
        return parted(self.setting.problem, error, f, kernels, self.orders)


def memories(setting: Setting, closure: LinearClosure) -> dict[str, Array]:
    """The weight with which each kernel remembers, (T, T), by its name."""
    causal = [k for k in closure.kernels if k.causal and k.definition != 0]
    return {k.name: memory_weight(k, "Delta", setting.numbers, setting.times, setting.tables) for k in causal}
