"""The published iteration as the ledger states it: operators C and D, then (F.4), layer by layer.

No equation of the theory is written in this module. C and D come from a claim or from the engine's linear
closure, the rest from claims (F.3) and (F.4); this module only evaluates them on matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from sympy import Expr, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import alpha, ell, mu, s, t
from derive.linear.closure import linear_closure
from derive.program import L
from tests.derive.once import mean_field, mlp
from tests.ledger.claims import claimed
from tests.ledger.evidence.engine import Array, Solved
from tests.ledger.evidence.explicit import at_time, lattice

MATRICES = ("C", "D", "H_below", "G_above", "u", "r", "gamma0")


@dataclass(frozen=True)
class Iterate:
    """Iterate of the published scheme.

    ``H[l]`` (PT,PT), ``A[l]`` (PT,T), ``B[l]`` (T,PT), l = 0..L; ``G[l]`` (T,T), l = 1..L+1; error (T,P).
    """

    H: tuple[Array, ...]
    G: tuple[Array, ...]
    A: tuple[Array, ...]
    B: tuple[Array, ...]
    error: Array

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return len(self.H) - 1

    def change(self, other: Iterate) -> float:
        """Return the largest change of an entry."""
        pairs = [(self.error, other.error)]
        for name in ("H", "A", "B"):
            pairs += list(zip(getattr(self, name), getattr(other, name), strict=True))
        pairs += list(zip(self.G[1:], other.G[1:], strict=True))
        return float(max(np.max(np.abs(a - b)) for a, b in pairs))

    def as_solved(self, gamma: float) -> Solved:
        """Return the iterate with the engine's order of axes."""
        T, n = self.error.shape
        return Solved(
            gamma,
            tuple(x.reshape(T, n, T, n) for x in self.H),
            self.G,
            tuple(x.reshape(T, n, T) for x in self.A),
            tuple(x.reshape(T, T, n) for x in self.B),
            self.error,
        )


@dataclass(frozen=True)
class Scheme:
    """Iterated formulas for C and D, the layer of the response B, and the rule for the error.

    ``stored`` is the layer of the B that layer ell gives, ell - 1 in (F.4).  ``responses`` is the entry whose
    A and B are evaluated.  ``error`` is ``output`` (f = <g
    h>/gamma0), ``tangent`` (Euler steps of the tangent kernel, the published way) or ``fixed``.
    """

    C: Expr
    D: Expr
    stored: Expr = ell - 1
    responses: str = "F.4"
    error: str = "output"


@lru_cache(maxsize=2)
def derived_operators() -> tuple[Expr, Expr]:
    """Return entries of C and D as the engine derives them, for layer ell, with memory weights w(t, s)."""
    closure = linear_closure(mean_field(mlp(L, "linear", "multistep")))
    return closure.kernel("C").definition, closure.kernel("D").definition


@lru_cache(maxsize=64)
def _compiled(number: str, times: int, samples: int) -> dict[str, Callable[..., Any]]:
    found = {}
    for name, claim in claimed("selfconsistent2023", number).items():
        sizes = {x: {"T": times, "P": samples}[x.name] for x in claim.free_symbols if x.name in ("T", "P")}
        expr = claim.subs(sizes)
        known = {x.name: x for x in expr.free_symbols}
        found[name] = lambdify([known.get(k, Symbol(f"_{k}")) for k in MATRICES], expr, "numpy")
    return found


def evaluate(number: str, name: str, sizes: tuple[int, int], values: Mapping[str, Array | float]) -> Array:
    """Return one right-hand side of a matrix claim for sizes (T, P)."""
    full = {**dict.fromkeys(MATRICES, 0.0), **values}
    return np.asarray(_compiled(number, *sizes)[name](*[full[k] for k in MATRICES]))


def lazy(kernel: Array, targets: Array, steps: int, depth: int) -> Iterate:
    """Return the initial iterate: constant kernels, no responses, zero output."""
    n = len(targets)
    flat = np.einsum("ts,mn->tmsn", np.ones((steps, steps)), kernel).reshape(steps * n, steps * n)
    zero = np.zeros((steps * n, steps))
    return Iterate(
        H=(flat,) * (depth + 1),
        G=(np.full((steps, steps), np.nan), *[np.ones((steps, steps))] * (depth + 1)),
        A=(zero,) * (depth + 1),
        B=(zero.T,) * (depth + 1),
        error=np.broadcast_to(targets, (steps, n)).copy(),
    )


def operators(scheme: Scheme, now: Iterate, weights: Array, layer: int) -> tuple[Array, Array]:
    """Return C (PT,T) and D (T,PT) of a layer."""
    T, n = now.error.shape

    def read(atom: AppliedUndef) -> tuple[Array, list[Any]]:
        name, args = str(atom.func), [a for a in atom.args if a in (t, s)]
        if name == "w":
            return weights, args
        if name == "Delta":
            at_time(atom, s)
            index = [a for a in atom.args if a != s]
            return (now.error, [s, *index]) if index else (now.error[:, 0], [s])
        at_time(atom, t, s)
        at = int(atom.args[0].subs({ell: layer}))
        samples = [a for a in atom.args if a in (mu, alpha)]
        if name.startswith("G"):
            return now.G[at], [t, s]
        if name.startswith("H"):
            four = now.H[at].reshape(T, n, T, n)
            return (four, [t, samples[0], s, samples[1]]) if samples else (four[:, 0, :, 0], [t, s])
        if name.startswith("A"):
            value = now.A[at].reshape(T, n, T)
            return (value, [t, samples[0], s]) if samples else (value[:, 0], [t, s])
        value = now.B[at].reshape(T, T, n)
        return (value, [t, s, samples[0]]) if samples else (value[:, :, 0], [t, s])

    row = alpha if scheme.D.has(alpha) and not scheme.D.has(mu) else mu
    c = lattice(scheme.C, (t, mu, s), (T, n, T), read)
    d = lattice(scheme.D, (t, s, row), (T, T, n), read)
    return c.reshape(T * n, T), d.reshape(T, T * n)


def sweep(scheme: Scheme, now: Iterate, weights: Array, gamma: float) -> Iterate:
    """Update all layers once from the old iterate, then the error."""
    T, n = now.error.shape
    H, G, A, B = list(now.H), list(now.G), list(now.A), list(now.B)
    error = now.error
    for layer in range(1, now.depth + 1):
        c, d = operators(scheme, now, weights, layer)
        values: dict[str, Array | float] = {"C": c, "D": d, "gamma0": gamma}
        values |= {"H_below": now.H[layer - 1], "G_above": now.G[layer + 1]}
        H[layer] = evaluate("F.4", "H", (T, n), values)
        G[layer] = evaluate("F.4", "G", (T, n), values)
        A[layer] = evaluate(scheme.responses, "A", (T, n), values)
        below = "B_below" if scheme.responses == "F.4" else "B"
        B[int(scheme.stored.subs(ell, layer))] = evaluate(scheme.responses, below, (T, n), values)
        if layer == now.depth and scheme.error == "output":
            error = _targets(now) - _output(values, (T, n)) / gamma
    new = Iterate(tuple(H), tuple(G), tuple(A), tuple(B), error)
    return replace(new, error=_tangent_error(new, weights)) if scheme.error == "tangent" else new


def _targets(now: Iterate) -> Array:
    return np.asarray(now.error[0])  # f(0) = 0 in every iterate: nothing acts before the first step


def _output(values: Mapping[str, Array | float], sizes: tuple[int, int]) -> Array:
    """Return ``<g(t) h_mu(t)>`` of the last layer from the fields of (F.3), one unit source at a time."""
    T, n = sizes
    eye_u, eye_r = np.eye(T * n), np.eye(T)
    of_u = {**values, "u": eye_u, "r": np.zeros((T, T * n))}
    of_r = {**values, "u": np.zeros((T * n, T)), "r": eye_r}
    h_u, g_u = (evaluate("F.3", k, sizes, of_u) for k in ("h", "g"))
    h_r, g_r = (evaluate("F.3", k, sizes, of_r) for k in ("h", "g"))
    cross = h_u @ np.asarray(values["H_below"]) @ g_u.T + h_r @ np.asarray(values["G_above"]) @ g_r.T
    return np.asarray(np.einsum("tmt->tm", cross.reshape(T, n, T)))


def _tangent_error(now: Iterate, weights: Array) -> Array:
    """Return Delta from df/dt = K Delta (eq. 4), stepped with the weights."""
    kernel = np.einsum("tmta->tma", now.as_solved(1.0).tangent)
    error, slopes = now.error.copy(), np.zeros_like(now.error)
    for k in range(len(weights)):
        error[k] = _targets(now) - weights[k, :k] @ slopes[:k]
        slopes[k] = kernel[k] @ error[k]
    return error


def iterated(
    scheme: Scheme, start: Iterate, weights: Array, gamma: float, *, tolerance: float, most: int = 400
) -> tuple[Iterate, int]:
    """Iterate until nothing changes by more than ``tolerance``; return the iterate and the number of sweeps.

    Raises ``RuntimeError`` when ``most`` sweeps do not suffice.
    """
    now = start
    for count in range(1, most + 1):
        new = sweep(scheme, now, weights, gamma)
        change = new.change(now)
        if change <= tolerance:
            return new, count
        now = new
    raise RuntimeError(f"the published scheme still changes by {change:.1e} after {most} sweeps")
