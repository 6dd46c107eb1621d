"""The operators of a theory at an integer depth, from the equations of its closure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sympy import Add, Expr, Indexed, Mul, Pow, Symbol, sympify
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose
from sympy.polys.rings import PolyElement

from derive.errors import NotApplicable
from derive.expansion.in_time.operators import Algebra, Operator, Vector
from derive.expansion.in_time.values import Values
from derive.expansion.words import layer_products
from derive.linear.closure import LinearClosure
from derive.linear.operators import J
from derive.program.words import L, ell, gamma0


@dataclass(frozen=True)
class Multiple:
    """A multiple of the identity."""

    number: PolyElement


Value = Operator | Multiple | None
"""An operator, a multiple of the identity, or zero."""


class AtDepth(Values):
    """Values by the closure's equations, at an integer depth."""

    def __init__(self, closure: LinearClosure, depth: int, algebra: Algebra, rates: Sequence[Any]) -> None:
        super().__init__(closure, algebra, rates)
        if closure.layers is None:
            raise NotApplicable("derive the theory at symbolic depth and give the depth here")
        self.depth = depth
        self.laws = {str(e.lhs.args[0]): (e.lhs, e.rhs) for e in (*closure.covariances, *closure.responses)}
        self.ends = {(str(e.lhs.args[0]), int(self.placed(e.lhs.args[1]))): e.rhs for e in closure.base}
        self.known: dict[tuple[Any, int], Value] = {}

    def placed(self, e: Any) -> Expr:
        """With the depth put in."""
        return sympify(e).subs(L, self.depth)

    def forget(self, n: int) -> None:
        self.known = {k: v for k, v in self.known.items() if k[1] < n}

    def operator(self, name: str, n: int, layer: Any = ell) -> Operator:
        place = self.placed(layer)
        if not place.is_Integer:
            raise ValueError(f"layer = {layer}: at depth {self.depth} give an integer, or L")
        value = self.at(name, int(place), n)
        if value is None:
            return Operator({}, name not in self.correlations)
        assert isinstance(value, Operator)
        return value

    @property
    def correlations(self) -> set[str]:
        """Names of operators that are not causal."""
        return {str(e.lhs.args[0]) for e in self.closure.covariances}

    def output(self, n: int) -> Vector:
        found = self.coefficient(self.placed(self.closure.outputs[0].rhs), n + 1)
        if found is None:
            return Vector({})
        assert isinstance(found, Operator)
        return self.algebra.equal_times(found)

    def tangent(self, n: int) -> Operator:
        a = self.algebra
        parts = [Operator({}, False)]
        for limits, left, right in layer_products(self.closure):
            lower, upper = (0, 0) if limits is None else (int(self.placed(x)) for x in limits)
            for layer in range(lower, upper + 1):
                for k in range(n + 1):
                    x, y = self.factor(left, layer, k), self.factor(right, layer, n - k)
                    if x is not None and y is not None:
                        assert isinstance(x, Operator)
                        assert isinstance(y, Operator)
                        parts.append(a.elementwise(x, y))
        return a.add(*parts)

    def factor(self, x: AppliedUndef | None, layer: int, n: int) -> Value:
        """Order n of a factor of the tangent kernel; None stands for the kernel that is 1."""
        if x is not None and str(x.func) in self.laws:
            return self.at(str(x.func), int(self.placed(x.args[0]).subs(ell, layer)), n)
        if n > 0:
            return None
        return self.constant(J if x is None else Symbol(str(x.func), commutative=False))

    # -- order n of an expression ------------------------------------------------------------------------

    def at(self, name: str, layer: int, n: int) -> Value:
        """Order n of an operator at a layer."""
        key = (name, layer), n
        if key not in self.known:
            if (name, layer) in self.ends:
                value = self.coefficient(self.ends[name, layer], n)
            elif name in self.kernels:
                value = self.kernel(name, layer, n)
            else:
                lhs, rhs = self.laws[name]
                value = self.coefficient(self.placed(rhs.subs(ell, layer + ell - lhs.args[1])), n)
            self.known[key] = value
        return self.known[key]

    def kernel(self, name: str, layer: int, n: int) -> Value:
        """The response of the neighbouring layer, and what is remembered of the correlation there."""
        parts: list[Operator] = []
        for part in Add.make_args(self.kernels[name].definition):
            atom = next(x for x in part.atoms(AppliedUndef) if str(x.func) in self.laws)
            place = int(self.placed(atom.args[0].subs(ell, layer)))
            for k in [0] if part == atom else range(len(self.errors)):
                value = self.at(str(atom.func), place, n - k) if n >= k else None
                if value is None:
                    continue
                assert isinstance(value, Operator)
                parts.append(value if part == atom else self.remembered(name, k, value))
        return self.sum(parts)

    def coefficient(self, e: Expr, n: int) -> Value:
        """The coefficient of gamma0^n."""
        key = e, n
        if key not in self.known:
            self.known[key] = self._coefficient(e, n)
        return self.known[key]

    def _coefficient(self, e: Expr, n: int) -> Value:
        if e.is_commutative:
            # numbers and powers of gamma0
            found = e.coeff(gamma0, n)
            return Multiple(self.number(found)) if found != 0 else None
        if isinstance(e, Indexed):
            return self.at(str(e.args[0]), int(e.args[1]), n)
        if isinstance(e, Transpose):
            found = self.coefficient(e.args[0], n)
            return self.algebra.transpose(found) if isinstance(found, Operator) else found
        if isinstance(e, Add):
            return self.sum([self.coefficient(x, n) for x in e.args])
        if isinstance(e, Mul):
            return self.multiplied(e.args, n)
        if isinstance(e, Pow) and e.exp == -1:
            return self.inverse(e, n)
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0:
            return self.multiplied((e.base,) * int(e.exp), n)
        return self.constant(e) if n == 0 else None

    def multiplied(self, factors: tuple[Expr, ...], n: int) -> Value:
        """Order n of a product; what is multiplied by zero is not asked for."""
        first, *rest = factors
        if not rest:
            return self.coefficient(first, n)
        parts: list[Value] = []
        for k in range(n + 1):
            a = self.coefficient(first, k)
            if a is not None:
                parts.append(self.times(a, self.multiplied(tuple(rest), n - k)))
        return self.sum(parts)

    def inverse(self, e: Pow, n: int) -> Value:
        """``1 / (1 - M) = 1 + M / (1 - M)``."""
        if n == 0:
            one = Multiple(self.algebra.functions.one)
            if self.coefficient(e.base, 0) != one:
                raise NotApplicable(f"{e} at gamma0 = 0 is not 1")
            return one
        parts: list[Value] = []
        for k in range(1, n + 1):
            a = self.coefficient(e.base, k)
            if a is not None:
                minus = Multiple(-self.algebra.functions.one)
                parts.append(self.times(minus, self.times(a, self.coefficient(e, n - k))))
        return self.sum(parts)

    def times(self, a: Value, b: Value) -> Value:
        if a is None or b is None:
            return None
        if isinstance(a, Multiple):
            return (
                Multiple(a.number * b.number) if isinstance(b, Multiple) else self.algebra.scale(a.number, b)
            )
        if isinstance(b, Multiple):
            return self.algebra.scale(b.number, a)
        return self.algebra.product(a, b)

    def sum(self, parts: Sequence[Value]) -> Value:
        operators = [x for x in parts if isinstance(x, Operator)]
        multiples = [x.number for x in parts if isinstance(x, Multiple)]
        if operators and multiples:
            raise NotApplicable("a multiple of the identity, added to an operator at the same order")
        if operators:
            return self.algebra.add(*operators)
        total = sum(multiples, self.algebra.functions.zero)
        return Multiple(total) if total else None


__all__ = ["AtDepth"]
