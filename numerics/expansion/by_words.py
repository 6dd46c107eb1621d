"""The expansion in gamma0 computed as numbers by evaluating its operator words."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Expr, Function, Integer, Sum

from derive.expansion import LinearExpansion, time_integrals
from derive.expansion.words import Memory, has_error, letters, terms
from derive.linear.closure import LinearClosure
from derive.linear.operators import J
from derive.program import L, ell, mu, t
from numerics.expansion.operators import Dense, Separable, Words, combined, memory_weight
from numerics.expansion.setting import Setting
from numerics.solver.grid import Grid

Array = NDArray[np.float64]


@lru_cache(maxsize=100_000)
def _monomials(c: Expr) -> tuple[tuple[tuple[int, int], Fraction], ...]:
    """A polynomial as ((power of ell, power of L), number)."""
    found = []
    for x in Add.make_args(c.expand()):
        number, rest = x.as_coeff_Mul()
        powers = rest.as_powers_dict()
        found.append(
            ((int(powers.get(ell, 0)), int(powers.get(L, 0))), Fraction(int(number.p), int(number.q)))
        )
    return tuple(found)


@lru_cache(maxsize=100_000)
def _number(c: Expr, layer: int, depth: int) -> float:
    return float(sum((q * layer**a * depth**b for (a, b), q in _monomials(c)), Fraction(0)))


@lru_cache(maxsize=10_000)
def _terms(e: Expr) -> tuple[tuple[Expr, Expr], ...]:
    return tuple(terms(e))


@lru_cache(maxsize=100_000)
def _has_error(word: Expr, n: int) -> bool:
    return has_error(letters(word), n)


class ByWords:
    """The errors at every order, and the words they make, on one time grid."""

    errors: dict[int, Array]
    outputs: dict[int, Array]

    def __init__(self, setting: Setting, expansion: LinearExpansion, gains: tuple[Expr, ...]) -> None:
        self.setting, self.expansion, self.gains = setting, expansion, gains
        kernels = {k.name: k for k in expansion.closure.kernels if k.causal and k.definition != 0}
        self.words = Words(kernels, memories(setting, expansion.closure), {"K_x": setting.kernel}, {})
        self.shape = (setting.times, len(setting.targets))
        self.densities: dict[Expr, Array] = {}
        self.errors, self.outputs = self.words.errors, {}
        for n in range(expansion.order + 1):
            self.errors[n], self.outputs[n] = self.error(n)

    def occurs(self, n: int) -> bool:
        """May anything at this order differ from zero?"""
        return any(values[n] != 0 for values in self.expansion.words.values())

    def number(self, c: Expr, layer: int = 0) -> float:
        """A coefficient at this depth and ``layer``."""
        return _number(c, layer, self.setting.depth)

    def terms(self, name: str, n: int) -> tuple[tuple[Expr, Expr], ...]:
        """Order n of an operator as (coefficient, word)."""
        return _terms(self.expansion.words[name][n])

    def error(self, n: int) -> tuple[Array, Array]:
        """Delta_n and f_n, (T, P): f_n is linear in Delta_n (a Volterra equation), the rest is known."""
        rest = np.zeros(self.shape)
        for c, w in _terms(self.expansion.output[n]):
            if not _has_error(w, n) and self.number(c) != 0:
                value = self.words.value(w)
                assert isinstance(value, Separable)
                rest += self.number(c) * value.diagonal()[:, :, 0]
        drive = self.setting.target(n) - rest
        if not np.any(drive):
            return drive, rest
        K, w = self.number(self.gains[n]) * self.setting.kernel, next(iter(self.words.memory.values()))
        found = self.setting.answer(w, K, drive, n)
        return found, rest + w @ found @ K

    def layer(self, name: str, n: int, layer: int, out: NDArray[np.intp], into: Array) -> None:
        """Order n of a correlation at one layer and at output times, into (out, rows, out, cols)."""
        found = [(number, w) for c, w in self.terms(name, n) if (number := self.number(c, layer)) != 0]
        if not found:
            into[...] = 0.0
            return
        combined([(number, self.separable(w)) for number, w in found], self.chosen(out), into)

    def separable(self, word: Expr) -> Separable:
        """A word with a constant kernel."""
        value = self.words.value(word)
        assert isinstance(value, Separable)
        return value

    def chosen(self, out: NDArray[np.intp]) -> NDArray[np.intp] | slice:
        """A slice where all times are wanted: no copies."""
        return slice(None) if len(out) == self.shape[0] else out

    def responses(self, name: str, n: int, layer: int, out: NDArray[np.intp]) -> Array:
        """Order n of a response, (out, out, P); for the flow as a density."""
        total = np.zeros((len(out), len(out), self.shape[1]))
        for c, w in self.terms(name, n):
            if (number := self.number(c, layer)) != 0:
                total += number * self.response(name, w, out)
        return total

    def response(self, name: str, word: Expr, out: NDArray[np.intp]) -> Array:
        """A causal word, (out, out, P)."""
        value = self.words.value(word)
        assert isinstance(value, Dense)
        grid = self.setting.grid
        block = value.block if grid is None else self.density(word, grid)
        if len(out) < self.shape[0]:
            block = block[out][:, :, out]
        return block[..., 0].transpose(0, 2, 1) if name == "A" else block[:, 0]

    def density(self, word: Expr, grid: Grid) -> Array:
        """Densities are shared by all layers."""
        if word not in self.densities:
            self.densities[word] = self.words.density(word, grid.nodes)
        return self.densities[word]

    def tangent(self, n: int, out: NDArray[np.intp]) -> Array:
        """Words of G times words of H, entry by entry: (out, out, P, P)."""
        P, T, times = self.shape[1], len(out), self.chosen(out)
        total = np.zeros((T, T, P, P))
        # words that share a constant factor first make one sum
        fixed: dict[Expr, list[tuple[float, Separable]]] = {}
        moving: dict[Expr, list[tuple[float, Separable]]] = {}
        for c, g, h in self.expansion.tangent[n]:
            if h.has(Memory):
                moving.setdefault(g, []).append((self.number(c), self.separable(h)))
            else:
                fixed.setdefault(h, []).append((self.number(c), self.separable(g)))
        for h, parts in fixed.items():
            right = self.separable(h)
            now = (right.left[:1] @ right.core) @ right.right[0].T
            total += combined(parts, times)[:, 0, :, 0][:, :, None, None] * now
        for g, parts in moving.items():
            factor = combined(parts, times).transpose(0, 2, 1, 3)
            total += factor if g == J else self.separable(g).at(out)[:, 0, :, 0][:, :, None, None] * factor
        return total


def memories(setting: Setting, closure: LinearClosure) -> dict[str, Array]:
    """The weight with which each kernel remembers, (T, T), by its name."""
    causal = [k for k in closure.kernels if k.causal and k.definition != 0]
    return {k.name: memory_weight(k, "Delta", setting.numbers, setting.times, setting.tables) for k in causal}


def feedback(expansion: LinearExpansion, n: int) -> Expr:
    """The number in front of ``sum_beta K_mu,beta v_beta(t)`` in f_n, v the integral of Delta_n.

    Raises NotImplementedError if Delta_n enters f_n in another way.
    """
    own = Add(*[c * w for c, w in terms(expansion.output[n]) if _has_error(w, n)])
    letters = own.atoms(Memory)
    lazy = own.xreplace({x: Memory(x.kernel, 0, x.body) for x in letters if x.order == n})
    if (lazy - expansion.output[0]).expand() != 0:
        raise NotImplementedError(
            f"the error's equation at order {n} has {own} where order 0 has {expansion.output[0]}"
        )
    total: Expr = Integer(0)
    for c, w in terms(lazy):
        found = time_integrals(expansion, w, mu, None, t, t)
        beta = found.limits[0][0] if isinstance(found, Sum) else mu
        if not isinstance(found, Sum) or found.function != Function("K_x")(mu, beta) * Function("v")(beta, t):
            raise NotImplementedError(f"the error's equation at order {n} has the term {found}")
        total += c
    return total


__all__ = ["ByWords", "feedback", "memories"]
