"""Solve a LinearClosure by sweeping over its operator equations until nothing changes.

The closure is causal, so that the sweeps end after finitely many steps: for counted steps with matrices, for
flow with kernels that are truncated power series in time (exact in gamma0 and in the targets).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sympy import QQ, Add, Expr, Indexed, Mul, Pow, Symbol, lambdify, ring, transpose

from derive.calculus.symbols import P, alpha, ell, eta, gamma0, mu, s, t
from derive.linear.closure import LinearClosure
from derive.linear.operators import Kernel

Table = dict[tuple[str, int | None], Any]


def word_value(
    e: Expr, table: Table, number: Callable[[Expr], Any], inverse: Callable[[Any, Any], Any]
) -> Any:
    """Return the value of an operator expression; ``inverse(c, M)`` is ``(c + M)^-1``."""
    if isinstance(e, Add):
        parts = [word_value(x, table, number, inverse) for x in e.args]
        total = parts[0]
        for x in parts[1:]:
            total = total + x
        return total
    if isinstance(e, Mul):
        numbers, word = e.args_cnc()
        value = word_value(word[0], table, number, inverse)
        for x in word[1:]:
            value = value @ word_value(x, table, number, inverse)
        for x in numbers:
            value = value * number(x)
        return value
    if isinstance(e, Pow) and e.exp == -1:
        one, rest = e.base.as_coeff_Add()
        return inverse(one, word_value(rest, table, number, inverse))
    if e.func == transpose:
        return word_value(e.args[0], table, number, inverse).T
    if isinstance(e, Indexed):
        return table[(str(e.args[0]), int(e.args[1]))]
    assert isinstance(e, Symbol), e
    return table[(e.name, None)]


def layers_of(closure: LinearClosure) -> list[int | None]:
    """Return the layers over which the closure's equations are repeated.

    The list is [None] if they are written out.
    """
    if closure.layers is None:
        return [None]
    return list(range(int(closure.layers.lower), int(closure.layers.upper) + 1))


def at_layer(e: Expr, layer: int | None) -> Expr:
    """Return the expression at a layer."""
    return e if layer is None else e.subs(ell, layer)


# -- counted steps: matrices ------------------------------------------------


@dataclass
class Matrices:
    """The solution: ``table[name, layer]`` with rows (sample, time) or (time,); ``error`` (T, P)."""

    table: Table
    error: np.ndarray


def solve_steps(  # noqa: C901 (a reference solver in the order of the closure's equations)
    closure: LinearClosure,
    kernel: np.ndarray,
    targets: np.ndarray,
    *,
    gamma: float,
    rate: float,
    steps: int,
    scalar: bool = False,
) -> Matrices:
    """Solve a closure in steps: evaluate all equations until no number changes.

    ``scalar`` theories have no sample index.
    """
    p, table = len(targets), {}  # type: int, Table
    error = np.zeros((steps, p))
    error[:] = targets

    def call(name: str) -> Callable[..., Any]:
        def value(*args: Any) -> Any:
            *head, a, b = args
            layer, indices = int(head[0]), [int(i) - 1 for i in head[1:]]
            if (name, layer) not in table:
                return 0.0
            shaped = table[(name, layer)]
            rows = shaped.shape[0] // steps
            row = indices.pop(0) * steps + a if rows > 1 else a
            col = indices.pop(0) * steps + b if shaped.shape[1] // steps > 1 else b
            return shaped[row, col]

        return value

    names = {e.lhs.args[0].name for e in (*closure.covariances, *closure.responses) if e.lhs.args}
    functions = {n: call(n) for n in names}
    functions |= {
        "Delta": (lambda a: error[a, 0]) if scalar else (lambda m, a: error[a, m - 1]),
        "K_x": lambda m, a: kernel[m - 1, a - 1],
    }

    def fill(k: Kernel, layer: int | None) -> np.ndarray:
        f = lambdify((ell, mu, alpha, t, s, P, eta), k.definition, modules=[functions, "math"])
        n, m = (p if k.rows else 1), (p if k.cols else 1)
        out = np.zeros((n * steps, m * steps))
        for i in range(n):
            for j in range(m):
                for a in range(steps):
                    for b in range(a if k.causal else steps):
                        first, second = (
                            (i + 1, j + 1) if k.rows and k.cols else (i + 1, (j if k.cols else i) + 1)
                        )
                        if k.cols and not k.rows:
                            first = second
                        out[i * steps + a, j * steps + b] = f(layer or 0, first, second, a, b, p, rate)
        return out

    def number(x: Expr) -> float:
        return float(x.subs({gamma0: gamma, eta: rate}))

    def inverse(one: Expr, m: np.ndarray) -> np.ndarray:
        return np.linalg.inv(float(one) * np.eye(len(m)) + m)

    for _ in range(60):
        before, old = error.copy(), dict(table)
        for layer in layers_of(closure):
            for k in closure.kernels:
                site = k.site[0] if k.site else None
                if site is not None and not site.has(ell):
                    table[(k.name, int(site))] = fill(k, int(site))
                elif site is None:
                    table[(k.name, None)] = fill(k, None)
                else:
                    table[(k.name, layer)] = fill(k, layer)
            for e in (*closure.covariances, *closure.responses):
                lhs, rhs = at_layer(e.lhs, layer), at_layer(e.rhs, layer)
                for x in rhs.atoms(Indexed):
                    size = p * steps if str(x.args[0]) == "H" else steps
                    table.setdefault((str(x.args[0]), int(x.args[1])), np.zeros((size, size)))
                if lhs in [b.lhs for b in closure.base]:
                    continue
                table[(str(lhs.args[0]), int(lhs.args[1]))] = word_value(rhs, table, number, inverse)
        cross = word_value(closure.outputs[0].rhs, table, number, inverse) / gamma
        error = targets - np.array([[cross[i * steps + a, a] for i in range(p)] for a in range(steps)])
        still = old.keys() == table.keys() and all(np.allclose(old[k], table[k], 0, 1e-13) for k in old)
        if still and np.abs(error - before).max() < 1e-13:
            break
    else:
        raise AssertionError("the sweeps did not settle")
    return Matrices(table, error)


# -- flow: power series in time ------------------------------------------------

RING, T_, S_, X_, G_, Y_ = ring("t,s,x,g,y", QQ)


@dataclass
class Series:
    """Kernel ``one * identity + kernel``.

    ``kind`` is its support: s < t, s > t, or all times.
    """

    one: Any
    kernel: Any
    kind: str
    order: int

    def cut(self, p: Any) -> Any:
        """Return a polynomial without terms beyond the order."""
        return RING.from_dict({m: c for m, c in p.items() if m[0] + m[1] + m[2] <= self.order})

    @property
    def T(self) -> Series:
        """Transposed kernel."""
        flip = {"causal": "anti", "anti": "causal", "full": "full"}
        return Series(self.one, self.kernel.compose([(T_, S_), (S_, T_)]), flip[self.kind], self.order)

    def __add__(self, other: Series) -> Series:
        assert self.kind == other.kind or not self.kernel or not other.kernel
        kind = self.kind if self.kernel else other.kind
        return Series(self.one + other.one, self.kernel + other.kernel, kind, self.order)

    def __mul__(self, number: Any) -> Series:
        return Series(self.one * number, self.kernel * number, self.kind, self.order)

    def __matmul__(self, other: Series) -> Series:
        mixed = integral(self.kernel, other.kernel, self.kind, other.kind)
        kernel = self.cut(mixed) + self.kernel * other.one + other.kernel * self.one
        if not self.kernel:
            kind = other.kind
        elif not other.kernel:
            kind = self.kind
        else:
            kind = self.kind if self.kind == other.kind else "full"
        return Series(self.one * other.one, self.cut(kernel), kind, self.order)


def integral(a: Any, b: Any, first: str, second: str) -> Any:
    """Return ``int a(t, x) b(x, s) dx`` over the x at which both are nonzero."""
    if not a or not b:
        return RING.zero
    body = a.compose([(S_, X_)]) * b.compose([(T_, X_)])
    whole = RING.from_dict({(i, j, k + 1, u, v): c / (k + 1) for (i, j, k, u, v), c in body.items()})
    limits = {
        ("causal", "causal"): (S_, T_),
        ("causal", "full"): (RING.zero, T_),
        ("full", "anti"): (RING.zero, S_),
        ("anti", "anti"): (T_, S_),
    }
    lower, upper = limits[(first, second)]
    return whole.compose([(X_, upper)]) - whole.compose([(X_, lower)])


def solve_series(closure: LinearClosure, order: int) -> tuple[Table, Any]:  # noqa: C901 (as solve_steps)
    """Return kernels and error of a sample-free flow closure as power series.

    They are exact to total degree ``order``.
    """
    table: Table = {}
    state = {"error": Y_}
    base = {(k.name, int(k.site[0])) for k in closure.kernels if k.site and not k.site[0].has(ell)}

    def call(name: str) -> Callable[..., Any]:
        return lambda layer, *_: (
            table[(name, int(layer))].kernel if (name, int(layer)) in table else RING.zero
        )

    names = {e.lhs.args[0].name for e in (*closure.covariances, *closure.responses)}
    functions: dict[str, Any] = {n: call(n) for n in names}
    functions["Delta"] = lambda _: state["error"].compose([(T_, S_)])
    unit = Series(RING.one, RING.zero, "causal", order)

    def fill(k: Kernel, layer: int | None) -> Series:
        value = lambdify((ell, t, s), k.definition, modules=[functions])(layer, T_, S_)
        return Series(RING.zero, unit.cut(RING(value)), "causal" if k.causal else "full", order)

    def number(x: Expr) -> Any:
        return G_ ** int(x.exp) if x.is_Pow else (G_ if x == gamma0 else RING(QQ(int(x))))

    def inverse(one: Expr, m: Series) -> Series:
        total, power = unit, unit
        for _ in range(order):
            power = power @ (m * RING(-1))
            total = total + power
        return total

    for _ in range(2 * order * len(layers_of(closure)) + 4):
        before = dict(table), state["error"]
        for layer in layers_of(closure):
            for k in closure.kernels:
                own = k.site and k.site[0].has(ell)
                place = layer if own else (int(k.site[0]) if k.site else None)
                table[(k.name, place)] = fill(k, place)
            for e in (*closure.covariances, *closure.responses):
                lhs, rhs = at_layer(e.lhs, layer), at_layer(e.rhs, layer)
                for x in rhs.atoms(Indexed):
                    table.setdefault(
                        (str(x.args[0]), int(x.args[1])), Series(RING.zero, RING.zero, "full", order)
                    )
                key = (str(lhs.args[0]), int(lhs.args[1]))
                if key not in base:
                    table[key] = word_value(rhs, table, number, inverse)
        cross = word_value(closure.outputs[0].rhs, table, number, inverse).kernel
        output = cross.compose([(S_, T_)]).exquo(G_) if cross else RING.zero
        state["error"] = unit.cut(Y_ - output)
        if before[1] == state["error"] and all(before[0].get(k) == v for k, v in table.items()):
            break
    else:
        raise AssertionError("the sweeps did not settle")
    return table, state["error"]
