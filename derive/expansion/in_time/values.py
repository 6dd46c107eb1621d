"""The operators of an expansion as functions of time, order by order, and the errors that they leave.

There are two routes: the words of the expansion (any depth at once), and the closure's own equations at an
integer depth.  Either says what the output is for given errors; the error is what that leaves of the targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sympy import Add, Expr, Indexed, Symbol, sympify
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose
from sympy.polys.rings import PolyElement

from derive.calculus.symbols import L, ell, s, t
from derive.errors import NotApplicable
from derive.expansion.in_time.exponentials import Algebra, Operator, Vector
from derive.expansion.words import (
    LinearSeries,
    Memory,
    OrderByOrder,
    layer_products,
    letters,
    parts_of,
    terms,
)
from derive.linear.closure import LinearClosure
from derive.linear.operators import J, operator

ZERO = Operator({}, causal=False)


class Values(ABC):
    """Operators of a linear theory for the errors found so far (``errors[n]`` of order n)."""

    def __init__(self, closure: LinearClosure, algebra: Algebra, rates: Sequence[Any]) -> None:
        self.closure, self.algebra, self.rates = closure, algebra, rates
        self.errors: list[Vector] = []
        self.kernels = {k.name: k for k in closure.kernels if k.operator.has(ell)}
        self.data = {e.rhs for e in closure.base if e.rhs not in (0, J)}

    @abstractmethod
    def operator(self, name: str, n: int, layer: Any = ell) -> Operator:
        """Order n of an operator."""

    @abstractmethod
    def output(self, n: int) -> Vector:
        """Order n of the output, without the part that errors not found yet have in it."""

    @abstractmethod
    def tangent(self, n: int) -> Operator:
        """Order n of the tangent kernel."""

    @abstractmethod
    def forget(self, n: int) -> None:
        """Forget values of order n and beyond: an error has been found."""

    def constant(self, x: Expr) -> Operator:
        """A kernel that does not depend on time: 1, or the data's, which is diagonal."""
        f = self.algebra.functions
        if x == J:
            return Operator({(0, 0, f.idle): f.one}, causal=False)
        if x not in self.data or len(self.data) != 1:
            raise NotApplicable(f"{x} is no kernel of the data: its eigenvalues are not known")
        entries = {(k, k, f.idle): f.ring(rate) for k, rate in enumerate(self.rates) if rate}
        return Operator(entries, unit=-1, causal=False)

    def number(self, c: Any) -> PolyElement:
        """A coefficient: a polynomial in the parameters."""
        f = self.algebra.functions
        out = f.zero
        for part in Add.make_args(sympify(c).expand()):
            number, rest = part.as_coeff_Mul()
            value = f.ring(f.field.from_sympy(number))
            for base, power in rest.as_powers_dict().items():
                if base != 1:
                    value = value * f.parameters[base] ** int(power)
            out += value
        return out

    def remembered(self, kernel: str, order: int, body: Operator) -> Operator:
        """What a kernel remembers of a correlation with the error of one order."""
        if order >= len(self.errors):
            return Operator({})
        return self.algebra.remembered(body, self.errors[order], bool(self.kernels[kernel].rows))


# -- at any depth: words -----------------------------------------------------------------------------------


class FromWords(Values):
    """Values of operator words; the layer and the depth may be symbols."""

    def __init__(self, series: LinearSeries, algebra: Algebra, rates: Sequence[Any]) -> None:
        super().__init__(series.closure, algebra, rates)
        self.series = series
        self.known: dict[tuple[Expr, ...], Operator] = {}
        self.outputs: dict[int, tuple[Vector, list[tuple[Expr, Expr]]]] = {}

    def operator(self, name: str, n: int, layer: Any = ell) -> Operator:
        found, a = self.series.words[name][n].subs(ell, layer), self.algebra
        parts = [a.scale(c, self.word(w)) for x, w in terms(found.expand()) if (c := self.number(x))]
        return a.add(*parts) if parts else ZERO

    def output(self, n: int) -> Vector:
        # words are kept once their errors are known; equal times first, which leaves far fewer terms
        found, pending = self.outputs.get(n) or (Vector({}), terms(self.series.output[n]))
        ready = [(c, w) for c, w in pending if self.settled(letters(w))]
        a = self.algebra
        found = a.add(found, *[a.scale(self.number(c), a.equal_times(self.word(w))) for c, w in ready])
        self.outputs[n] = found, [x for x in pending if x not in ready]
        return found

    def tangent(self, n: int) -> Operator:
        a = self.algebra
        products = ((self.number(c), self.word(g), self.word(h)) for c, g, h in self.series.tangent[n])
        return a.add(ZERO, *[a.scale(c, a.elementwise(g, h)) for c, g, h in products])

    def forget(self, n: int) -> None:
        """Words that an error was missing from were not kept."""

    def settled(self, ls: Sequence[Expr]) -> bool:
        """Are all errors in these letters known?"""
        return all(x.order < len(self.errors) for y in ls for x in y.atoms(Memory))

    def word(self, w: Expr) -> Operator:
        """A word: the product of its letters."""
        return self.product(tuple(letters(w)))

    def product(self, ls: tuple[Expr, ...]) -> Operator:
        if ls in self.known:
            return self.known[ls]
        value = self.letter(ls[0])
        if value.causal and not value.flipped:
            value = self.algebra.product(value, self.product(ls[1:])) if ls[1:] else value
        else:  # after a constant only flipped letters can stand: K a^T b^T is taken from the left
            for x in ls[1:]:
                value = self.algebra.product(value, self.letter(x))
        if self.settled(ls):
            self.known[ls] = value
        return value

    def letter(self, x: Expr) -> Operator:
        if isinstance(x, Transpose):
            return self.algebra.transpose(self.letter(x.args[0]))
        if not isinstance(x, Memory):
            return self.constant(x)
        return self.known[x,] if (x,) in self.known else self.remembered(x.kernel, x.order, self.word(x.body))


# -- at an integer depth: the closure's equations ----------------------------------------------------------


@dataclass(frozen=True)
class Multiple:
    """A multiple of the identity."""

    number: PolyElement


class AtDepth(Values, OrderByOrder[Operator | Multiple]):
    """Values by the closure's equations, at an integer depth."""

    def __init__(self, closure: LinearClosure, depth: int, algebra: Algebra, rates: Sequence[Any]) -> None:
        Values.__init__(self, closure, algebra, rates)
        OrderByOrder.__init__(self)
        if closure.layers is None:
            raise NotApplicable("derive the theory at symbolic depth and give the depth here")
        self.depth = depth
        self.laws = {str(e.lhs.args[0]): (e.lhs, e.rhs) for e in (*closure.covariances, *closure.responses)}
        self.ends = {(str(e.lhs.args[0]), int(self.placed(e.lhs.args[1]))): e.rhs for e in closure.base}

    def placed(self, e: Any) -> Expr:
        """With the depth put in."""
        return sympify(e).subs(L, self.depth)

    def forget(self, n: int) -> None:
        OrderByOrder.forget(self, n)

    def operator(self, name: str, n: int, layer: Any = ell) -> Operator:
        place = self.placed(layer)
        if not place.is_Integer:
            raise ValueError(f"layer = {layer}: at depth {self.depth} give an integer, or L")
        correlations = {str(e.lhs.args[0]) for e in self.closure.covariances}
        return _operator(self.at(name, place, n)) or Operator({}, causal=name not in correlations)

    def output(self, n: int) -> Vector:
        found = _operator(self.at_order(self.placed(self.closure.outputs[0].rhs), n + 1))
        return Vector({}) if found is None else self.algebra.equal_times(found)

    def tangent(self, n: int) -> Operator:
        parts = [ZERO]
        for limits, left, right in layer_products(self.closure):
            lower, upper = (0, 0) if limits is None else (int(self.placed(x)) for x in limits)
            for layer in range(lower, upper + 1):
                for k in range(n + 1):
                    x, y = self.factor(left, layer, k), self.factor(right, layer, n - k)
                    if x is not None and y is not None:
                        parts.append(self.algebra.elementwise(x, y))
        return self.algebra.add(*parts)

    def factor(self, x: AppliedUndef | None, layer: int, n: int) -> Operator | None:
        """Order n of a factor of the tangent kernel; None stands for the kernel that is 1."""
        if x is not None and str(x.func) in self.laws:
            return _operator(self.at(str(x.func), self.placed(x.args[0]).subs(ell, layer), n))
        if n > 0:
            return None
        return self.constant(J if x is None else operator(str(x.func)))

    def known(self, x: Indexed, n: int) -> Operator | Multiple | None:
        return self.at(str(x.args[0]), x.args[1], n)

    def at(self, name: str, place: Expr, n: int) -> Operator | Multiple | None:
        """Order n of an operator at a layer."""
        return self._once((name, int(place)), n, self.found)

    def found(self, at: tuple[str, int], n: int) -> Operator | Multiple | None:
        name, layer = at
        if at in self.ends:
            return self.at_order(self.ends[at], n)
        if name not in self.kernels:
            lhs, rhs = self.laws[name]
            return self.at_order(self.placed(rhs.subs(ell, layer + ell - lhs.args[1])), n)
        # the response of the neighbouring layer, and what is remembered of the correlation there
        responses, memories = parts_of(self.kernels[name], self.closure)
        parts: list[Operator | Multiple | None] = []
        for x in responses:
            parts.append(self.at(str(x.func), self.placed(x.args[0].subs(ell, layer)), n))
        for x in memories:
            for k in range(min(n + 1, len(self.errors))):
                body = _operator(self.at(str(x.func), self.placed(x.args[0].subs(ell, layer)), n - k))
                parts.append(None if body is None else self.remembered(name, k, body))
        return self._total(parts)

    # -- sums and products -----------------------------------------------------------------------------

    def identity(self, c: Expr | int) -> Multiple:
        return Multiple(self.number(c))

    def sum(self, parts: Sequence[Operator | Multiple]) -> Operator | Multiple | None:
        operators = [x for x in parts if isinstance(x, Operator)]
        multiples = [x.number for x in parts if isinstance(x, Multiple)]
        if operators and multiples:
            raise NotApplicable("a multiple of the identity, added to an operator at the same order")
        if operators:
            return self.algebra.add(*operators)
        total = sum(multiples, self.algebra.functions.zero)
        return Multiple(total) if total else None

    def times(self, a: Operator | Multiple, b: Operator | Multiple) -> Operator | Multiple:
        if isinstance(a, Operator) and isinstance(b, Operator):
            return self.algebra.product(a, b)
        if isinstance(a, Operator):
            a, b = b, a  # numbers commute
        assert isinstance(a, Multiple)
        return Multiple(a.number * b.number) if isinstance(b, Multiple) else self.algebra.scale(a.number, b)

    def transpose(self, a: Operator | Multiple) -> Operator | Multiple:
        return self.algebra.transpose(a) if isinstance(a, Operator) else a


def _operator(x: Operator | Multiple | None) -> Operator | None:
    assert not isinstance(x, Multiple)
    return x


# -- the error ---------------------------------------------------------------------------------------------


def memory_weight(closure: LinearClosure, constants: Mapping[Symbol, Expr]) -> Expr:
    """The constant with which kernels remember an update: ``eta``, ``1/P``, ...

    Raises NotApplicable when it depends on time (weights that forget).
    """
    weight = sympify(closure.theory.program.rule.memory(t, s)[1]).subs(dict(constants))
    if weight.has(t, s):
        raise NotApplicable(f"kernels remember with a weight that depends on time: {weight}")
    return weight


def solved(
    values: Values, targets: Sequence[PolyElement], powers: Sequence[tuple[int, ...]], order: int
) -> None:
    """Find the errors up to ``order``: each obeys a linear Volterra equation, driven by what is known.

    Every solution is put back.  Raises NotApplicable where it is none, since then the output depends on the
    error of its own order in another way than at order 0.
    """
    a = values.algebra
    f = a.functions
    for n in range(len(values.errors), order + 1):
        rest = values.output(n)
        drive = {k: -g for k, g in rest.entries.items()}
        if n == 0:
            if drive:
                raise NotApplicable("the output without errors must be zero at order 0")
            drive = {k: y for k, y in enumerate(targets) if y}
        found = {k: f.volterra(g, values.rates[k], powers[k]) for k, g in drive.items()}
        values.errors.append(
            a.reduced(Vector({k: g for k, g in found.items() if g}, rest.unit, rest.damping))
        )
        values.forget(n)
        check(values, targets, n)


def check(values: Values, targets: Sequence[PolyElement], n: int) -> None:
    """Error and output of order n must add up to the targets, exactly."""
    a = values.algebra
    found = (values.output(n), values.errors[n])
    top = max(v.damping for v in found)
    for k, y in enumerate(targets):
        total = y * a.feedback**top if n == 0 else a.functions.zero
        for v in found:
            total -= v.entries.get(k, a.functions.zero) * a.feedback ** (top - v.damping)
        if total:
            raise NotApplicable(
                f"the error's equation at order {n} is not that at order 0, with another drive"
            )


def feedback(values: Values) -> PolyElement:
    """The number c in ``f = c rate integral(Delta)``, the output's dependence on the error of its own order.

    ``values`` must have no errors yet, and ``1`` for the feedback of its algebra.
    """
    f = values.algebra.functions
    trial = f.one + f.ring.gens[0] * 3
    values.errors.append(Vector(dict.fromkeys(range(len(values.rates)), trial)))
    out = values.output(0)
    quotients = []
    for k, x in enumerate(values.rates):
        once = f.integral(trial) * x
        q, rest = out.entries.get(k, f.zero).div(once) if x else (None, out.entries.get(k, f.zero))
        if rest:
            raise NotApplicable("the output is no running integral of the error")
        if q is not None:
            quotients.append(q)
    if not quotients or any(q != quotients[0] for q in quotients) or not quotients[0]:
        raise NotApplicable(f"the output depends on the error through {quotients}, not through one number")
    return quotients[0]


__all__ = ["AtDepth", "FromWords", "Values", "feedback", "memory_weight", "solved"]
