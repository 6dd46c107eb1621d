"""The operators of a theory at any depth, from the words of its expansion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sympy import Expr
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.expansion.in_time.operators import Algebra, Operator, Vector
from derive.expansion.in_time.values import Values
from derive.expansion.words import LinearSeries, Memory, letters, terms
from derive.program.words import ell


class FromWords(Values):
    """Values of operator words; the layer and the depth may be symbols."""

    def __init__(self, expansion: LinearSeries, algebra: Algebra, rates: Sequence[Any]) -> None:
        super().__init__(expansion.closure, algebra, rates)
        self.expansion = expansion
        self.known: dict[tuple[Expr, ...], Operator] = {}
        self.outputs: dict[int, tuple[Vector, list[tuple[Expr, Expr]]]] = {}

    def operator(self, name: str, n: int, layer: Any = ell) -> Operator:
        found = self.expansion.words[name][n]
        return self.total(found if layer is ell else found.subs(ell, layer).expand())

    def output(self, n: int) -> Vector:
        # words are kept once their errors are known; equal times first, which leaves far fewer terms
        found, pending = self.outputs.get(n) or (Vector({}), terms(self.expansion.output[n]))
        ready = [(c, w) for c, w in pending if all(x.order < len(self.errors) for x in w.atoms(Memory))]
        a = self.algebra
        parts = [a.scale_vector(self.number(c), a.equal_times(self.word(w))) for c, w in ready]
        found = a.add_vectors(found, *parts)
        self.outputs[n] = found, [x for x in pending if x not in ready]
        return found

    def tangent(self, n: int) -> Operator:
        a = self.algebra
        return a.add(
            Operator({}, False),
            *[
                a.scale(self.number(c), a.elementwise(self.word(g), self.word(h)))
                for c, g, h in self.expansion.tangent[n]
            ],
        )

    def forget(self, n: int) -> None:
        """Words that an error was missing from were not kept."""

    def total(self, e: Expr) -> Operator:
        """A sum of words."""
        a = self.algebra
        return a.add(
            *[a.scale(c, self.word(w)) for x, w in terms(e) if (c := self.number(x))] or [Operator({}, False)]
        )

    def word(self, w: Expr) -> Operator:
        """A word: the product of its letters."""
        return self.product(tuple(letters(w)))

    def product(self, ls: tuple[Expr, ...]) -> Operator:
        if ls not in self.known:
            if len(ls) == 1:
                value = self.letter(ls[0])
            else:
                first = self.letter(ls[0])
                # after a constant only flipped letters can stand: K a^T b^T is taken from the left
                causal = first.causal and not first.flipped
                value = self.algebra.product(first, self.product(ls[1:])) if causal else self.from_left(ls)
            if any(x.order >= len(self.errors) for y in ls for x in y.atoms(Memory)):
                return value
            self.known[ls] = value
        return self.known[ls]

    def from_left(self, ls: tuple[Expr, ...]) -> Operator:
        """A word taken letter by letter from the left."""
        value = self.letter(ls[0])
        for x in ls[1:]:
            value = self.algebra.product(value, self.letter(x))
        return value

    def letter(self, x: Expr) -> Operator:
        if isinstance(x, Transpose):
            return self.algebra.transpose(self.letter(x.args[0]))
        if isinstance(x, Memory):
            if (x,) not in self.known:
                return self.remembered(x.kernel, x.order, self.word(x.body))
            return self.known[x,]
        return self.constant(x)


__all__ = ["FromWords"]
