"""The expansion in gamma0 of a linear network as numbers: its closure's recursion in the layer.

The words of the expansion multiply by ten or more with each power of gamma0^2.  Their sums do not: the
closure's equations give each order of an operator by products of lower ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell
from derive.errors import NotApplicable
from derive.expansion.words import layer_products, parts_of
from derive.linear.closure import LinearClosure
from derive.linear.operators import J, operator
from numerics.errors import Diverged
from numerics.expansion.coefficients import Setting, parted
from numerics.expansion.operators import (
    Algebra,
    Dense,
    Separable,
    Stream,
    Value,
    add,
    convolved,
    memory_weight,
    multiplied,
    remembered,
)

Array = NDArray[np.float64]
Place = tuple[str, int]
"""An operator's name and layer."""

DATA = operator("K_x")

LEFT, LOST = 1e-9, 1e-5
"""What may be left of the error's own equation, relative to the largest term in it; and what rounding leaves
at most, where kernels of a step that is too long have grown large."""


class Closed:
    """Orders 0, 1, 2, ... of every operator at every layer, on one time grid.

    ``memory[C]`` is the weight with which kernel C remembers, (T, T); ``kernel`` the data's constant kernel.
    Raises :class:`~derive.errors.NotApplicable` for a closure without a family of
    layers.
    """

    def __init__(
        self,
        closure: LinearClosure,
        depth: int,
        constants: Mapping[Symbol, float],
        memory: Mapping[str, Array],
        kernel: Array,
    ) -> None:
        if closure.layers is None:
            raise NotApplicable("the expansion needs a family of layers")
        self.closure, self.depth, self.memory, self.kernel = closure, depth, memory, kernel
        self.upper = closure.layers.upper
        self.constants = dict(constants) | {self.upper: depth}
        self.T, self.P = next(iter(memory.values())).shape[0], len(kernel)
        self.base = {str(e.lhs.args[0]): (self.site(e.lhs.args[1]), e.rhs) for e in closure.base}
        self.laws = {str(e.lhs.args[0]): (e.lhs, e.rhs) for e in (*closure.covariances, *closure.responses)}
        self.kernels = {k.name: k for k in closure.kernels if k.operator.has(ell) and k.name not in self.laws}
        self.correlations = [x for x in self.laws if self.base.get(x, (0, 0))[1] != 0]
        self.errors: dict[int, Array] = {}
        self.outputs: list[Array] = []
        self.settled = -1
        self.operators: dict[Place, Stream] = {}
        self.numbers: dict[Expr, float] = {}
        self.made_of: dict[Place, tuple[list[Place], list[Place]]] = {}
        self.algebra = Algebra(self.known, self.number, self.is_correlation)
        self.average_law = closure.outputs[0].rhs.subs(self.upper, depth)
        self.average = self.algebra.series(self.average_law)

    @classmethod
    def of(cls, setting: Setting, closure: LinearClosure) -> Self:
        """The closure of a problem's theory with its numbers, depth and data."""
        data = memories(setting, closure), setting.kernel
        return cls(closure, setting.depth, setting.numbers, *data)

    def upto(self, now: int | None = None) -> Closed:
        """The same equations with nothing known yet, up to a time only."""
        memory = {k: v[:now, :now] for k, v in self.memory.items()}
        return Closed(self.closure, self.depth, self.constants, memory, self.kernel)

    # -- operators -------------------------------------------------------------------------------------

    def site(self, e: Expr | int) -> int:
        """A layer as a number."""
        return int(sympify(e).subs(self.upper, self.depth))

    def number(self, e: Expr) -> float:
        """A constant of the closure."""
        if e not in self.numbers:
            self.numbers[e] = float(e.subs(self.constants))
        return self.numbers[e]

    def known(self, x: Expr) -> Stream:
        """An operator by its symbol: data, or one of the family at a layer."""
        return self.constant(x) if x.is_Symbol else self.operator(str(x.args[0]), int(x.args[1]))

    def is_correlation(self, x: Expr) -> bool:
        """Is an operator a correlation, or data?  These are of low rank."""
        return bool(x.is_Symbol) or str(x.args[0]) in self.correlations

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
        lhs, rhs = self.laws[name]
        inner: list[Stream] = []

        def rule(n: int) -> Value | None:
            # deferred, so that a law may name the layers that it is made from
            if not inner:
                inner.append(self.algebra.series(rhs.subs(ell, site - (lhs.args[1] - ell))))
            return inner[0].at(n)

        return Stream(rule) if name in self.correlations else self.algebra.new(rule)

    def remembering(self, name: str, site: int) -> Stream:
        """A kernel: the response of the neighbouring layer, and the memory of a correlation."""
        kernel = self.kernels[name]
        responses, memories = ([self.operator(*x) for x in places] for places in self.parts(name, site))

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

    def parts(self, name: str, site: int) -> tuple[list[Place], list[Place]]:
        """What a kernel is made of, each by name and layer: responses, and the correlations remembered."""
        if (name, site) in self.made_of:
            return self.made_of[name, site]
        responses, memories = (
            [(str(a.func), self.site(a.args[0].subs(ell, site))) for a in atoms]
            for atoms in parts_of(self.kernels[name], self.closure)
        )
        self.made_of[name, site] = responses, memories
        return responses, memories

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
        lazy = self.upto()
        lazy.remember(np.random.default_rng(0).standard_normal((self.T, self.P)), 0)
        size = float(np.max(np.abs(self.kernel))) or 1.0  # squares of the smallest kernels are no numbers
        f, known = lazy.output(0) / size, self.weight @ lazy.errors[0] @ (self.kernel / size)
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

    def tangent(self, n: int, out: NDArray[np.intp]) -> Array:
        """Order n of the tangent kernel at output times, (out, out, P, P)."""
        total = np.zeros((len(out), len(out), self.P, self.P))
        for limits, a, b in layer_products(self.closure):
            low, high = (0, 0) if limits is None else (self.site(limits[0]), self.site(limits[1]))
            for layer in range(low, high + 1):
                for k in range(n + 1):
                    left, right = self.factor(a, layer, k), self.factor(b, layer, n - k)
                    if left is not None and right is not None:
                        G = left.at(out)[:, 0, :, 0]
                        total += G[:, :, None, None] * right.at(out).transpose(0, 2, 1, 3)
        return total

    def factor(self, a: AppliedUndef | None, layer: int, n: int) -> Value | None:
        """A factor of the tangent kernel at order n; None stands for the kernel that is 1."""
        if a is None:
            return self.constant(J).at(n)
        if str(a.func) not in self.laws:
            return self.constant(operator(str(a.func))).at(n)
        return self.operator(str(a.func), self.site(a.args[0].subs(ell, layer))).at(n)


class Densities(Closed):
    """The same equations with a memory of weight one, and integrals from s to t in place of sums."""

    def __init__(self, found: Closed, nodes: Array) -> None:
        plain = {
            name: np.tril(np.ones_like(w)) * (np.sum(w[-1]) / nodes[-1]) for name, w in found.memory.items()
        }
        self.found, self.nodes = found, nodes
        super().__init__(found.closure, found.depth, found.constants, plain, found.kernel)
        self.algebra.multiply = self.multiply
        self.errors, self.settled = found.errors, found.settled

    def stream(self, name: str, site: int) -> Stream:
        if name in self.correlations:
            return self.found.operator(name, site)
        return super().stream(name, site)

    def multiply(self, a: Value, b: Value) -> Value:
        """The product of two causal operators, or an ordinary one."""
        if isinstance(a, Dense) and isinstance(b, Dense):
            return Dense(convolved(a.block, b.block, self.nodes))
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
        out, P, closed = self.setting.out, self.closed.P, self.closed
        source = closed if self.setting.grid is None else Densities(closed, self.setting.grid.nodes)

        def read(name: str, found: Closed, rows: int, cols: int) -> Array:
            """Axes: orders, layers, times t, rows, times s, columns."""
            zero = np.zeros((len(out), rows, len(out), cols))
            layers = range(1, self.setting.depth + 1)
            values = [[found.operator(name, k).at(n) for k in layers] for n in self.orders]
            return np.array([[zero if x is None else x.at(out) for x in row] for row in values])

        kernels = {
            "Phi": read("H", closed, P, P).swapaxes(3, 4),
            "G": read("G", closed, 1, 1)[:, :, :, 0, :, 0],
            "A": read("A", source, P, 1)[..., 0].swapaxes(3, 4),
            "B": read("B", source, 1, P)[:, :, :, 0],
            "tangent_kernel": np.stack([closed.tangent(n, out) for n in self.orders]),
        }
        error, f = self.watched()[:, out], np.stack(self.closed.outputs)[:, out]
        return parted(self.setting.problem, error, f, kernels, self.orders)


def memories(setting: Setting, closure: LinearClosure) -> dict[str, Array]:
    """The weight with which each kernel remembers, (T, T), by its name."""
    causal = [k for k in closure.kernels if k.causal and k.definition != 0]
    return {k.name: memory_weight(k, "Delta", setting.numbers, setting.times, setting.tables) for k in causal}
