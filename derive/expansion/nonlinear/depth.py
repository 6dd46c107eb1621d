"""How coefficients depend on the layer and the depth, for one sample: the recursions over layers solved.

For one sample every tensor is a number for each layer, and its recursion is affine,
``X(ell) = m X(ell -+ 1) + known``.  Where the variance of the sources is the same at each layer (the sample's
``K_x`` is a fixed point of ``q -> <phi^2>_q``) the multipliers are constant, and all tensors are sums of
``ell^a L^b x^(i ell + j L) p^(k ell + l L)`` with two multipliers,

    x = <phi'^2>,   p = d<phi^2>/dq = <phi'^2> + <phi phi''>.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sympy import QQ, Expr, Mul, Rational, Sum, Symbol, field

from derive.calculus.gaussian import GaussianAverage
from derive.errors import NotApplicable
from derive.expansion.nonlinear.expansion import NonlinearExpansion
from derive.expansion.nonlinear.exponentials import ZERO, Series, p, x
from derive.expansion.nonlinear.fields import KERNELS, PAIR, Forest
from derive.expansion.nonlinear.laws import OUTPUT, Term
from derive.expansion.nonlinear.trees import ROW, Node, Tensor, oriented
from derive.program.words import L, ell

q = Symbol("q", positive=True)

Orders = tuple[int, ...]
Factor = tuple[Tensor, int]
"""A tensor and its layer relative to ``ell``."""


@dataclass(frozen=True)
class Product:
    """``coefficient * tensors * averages``: an average is the orders of phi's derivatives, and its layer."""

    coefficient: Any
    tensors: tuple[Factor, ...]
    averages: tuple[tuple[Orders, int], ...]

    def moved(self, by: int) -> Product:
        """At another layer."""
        return Product(
            self.coefficient,
            tuple((x, k + by) for x, k in self.tensors),
            tuple((x, k + by) for x, k in self.averages),
        )


Scalars = dict[Tensor, list[Product]]


def scalar_laws(expansion: NonlinearExpansion, names: Iterable[str], order: int) -> Scalars:
    """The laws for one sample, up to an order, responses written with the kernels C and D."""
    raw: Scalars = {}
    for tensor, law in expansion.laws.items():
        if tensor.order <= order and oriented(tensor)[0] == tensor:
            raw[tensor] = [_product(t).moved(-law.shift) for t in law.terms]
    found: Scalars = {}
    for tensor, products in raw.items():
        if tensor.name == OUTPUT:  # at the last layer, where there is no B
            products = [y for x in products for y in _replaced(x, raw, ("D",))]
            products = [x for x in products if all(t.name != "B" for t, _ in x.tensors)]
        if tensor.name in names:
            found[tensor] = [y for x in products for y in _replaced(x, raw, ("A", "B"))]
    return _with_whole_kernels(found)


def _with_whole_kernels(laws: Scalars) -> Scalars:
    """With ``D + D_now`` in place of D: for one sample both act on the same field, and nearly cancel."""
    parts = [t for t in laws if t.name == "D" and t.order == 0]
    now = next((t for t in parts if t.shape[0].marked), None)
    plain = next((t for t in parts if not t.shape[0].marked), None)
    if now is None or plain is None:
        return laws
    whole = Tensor("D", 0, WHOLE)
    rule = {plain: [Product(1, ((whole, 0),), ()), Product(-1, ((now, 0),), ())]}
    both = {**laws, whole: laws[plain] + laws[now]}
    del both[plain]
    return {
        t: _collected([y for x in v for y in _replaced(x, rule, ("D",), only=plain)]) for t, v in both.items()
    }


def _collected(products: list[Product]) -> list[Product]:
    found: dict[tuple[Any, Any], Any] = {}
    for y in products:
        key = tuple(sorted(y.tensors)), tuple(sorted(y.averages))
        found[key] = found.get(key, 0) + y.coefficient
    return [Product(c, *key) for key, c in found.items() if c != 0]


WHOLE = (Node(-1, ROW, marked=True),)


def _product(term: Term) -> Product:
    orders = tuple(sorted(a for _, found in term.averages for a in found))
    tensors = tuple((oriented(x.tensor)[0], x.shift) for x in term.statics)
    return Product(term.coefficient, tensors, ((orders, 0),) if orders else ())


def _replaced(x: Product, raw: Scalars, names: tuple[str, ...], only: Tensor | None = None) -> list[Product]:
    """With the laws of some tensors put in."""
    for i, (tensor, layer) in enumerate(x.tensors):
        if tensor.name in names and only in (None, tensor):
            rest = x.tensors[:i] + x.tensors[i + 1 :]
            parts = [
                Product(x.coefficient * y.coefficient, rest + y.tensors, x.averages + y.averages)
                for y in (z.moved(layer) for z in raw[tensor])
            ]
            return [y for part in parts for y in _replaced(part, raw, names, only)]
    return [x]


def wanted(expansion: NonlinearExpansion, names: tuple[str, ...]) -> Scalars:
    """The laws of these order parameters, and of what they need."""
    laws = scalar_laws(expansion, ("Phi", "G", "C", "D", OUTPUT), expansion.order)
    chosen: Scalars = {}
    stack = [t for t in laws if t.name in names]
    while stack:
        t = stack.pop()
        if t not in chosen:
            chosen[t] = laws[t]
            stack += [y for x in laws[t] for y, _ in x.tensors]
    return chosen


def in_order(laws: Scalars) -> list[Tensor]:
    """Each tensor after those its law needs.  Raises :class:`NotApplicable` where they need each other."""
    done: list[Tensor] = []
    left = dict(laws)
    while left:
        ready = [t for t, v in left.items() if all(y == t or y in done for x in v for y, _ in x.tensors)]
        if not ready:
            raise NotApplicable(
                f"{', '.join(sorted({t.name for t in left}))} depend on each other at a layer"
            )
        done += ready
        left = {t: v for t, v in left.items() if t not in ready}
    return done


def tangent_products(expansion: NonlinearExpansion) -> list[list[str]]:
    """The order parameters in the part of the tangent kernel that is summed over layers."""
    found = []
    for term in expansion.theory.observables[0].terms:
        if isinstance(term.expr, Sum):
            found.append([str(f.func) for f in Mul.make_args(term.expr.function)])
    return found


class AtFixedPoint:
    """All tensors of one sample whose variance is the same at every layer, with ell and L symbolic.

    ``moments`` gives numbers for averages by the orders of the derivatives in them, ``{(1, 1): 1}`` for
    ``<phi'^2> = 1``; others stay symbols, `symbols`.  The powers of a multiplier that is one are sums.
    """

    def __init__(
        self,
        expansion: NonlinearExpansion,
        moments: dict[Orders, Any] | None = None,
        names: tuple[str, ...] = ("Phi", "G"),
    ) -> None:
        self.expansion, self.given = expansion, dict(moments or {})
        self.laws = wanted(expansion, names)
        orders = {o for v in self.laws.values() for y in v for o, _ in y.averages}
        self.symbols = {o: Symbol("m_" + "_".join(map(str, o))) for o in sorted(orders)}
        gens = [x, p, q, *self.symbols.values()]
        self.field, *elements = field(gens, QQ)
        self.x, self.p, self.q, *others = elements
        self.moments = dict(zip(self.symbols, others, strict=True))
        if not {(0, 2), (1, 1)}.isdisjoint(self.given):
            self.x, self.p = self.field(self.given[1, 1]), self.field(self.given[1, 1] + self.given[0, 2])
        self.moments |= {(1, 1): self.x, (0, 2): self.p - self.x, (0, 0): self.q}
        self.moments |= {o: self.field(v) for o, v in self.given.items() if o in self.moments}
        self.found: dict[Tensor, Series] = {}
        for t in in_order(self.laws):
            self.found[t] = self.solved(t, self.laws[t])

    def product(self, y: Product, without: Tensor | None = None) -> Series:
        """A term, in closed form."""
        number = Rational(y.coefficient)
        value = self.constant(self.field(QQ(int(number.p), int(number.q))))
        for orders, _ in y.averages:
            value = value.times(self.constant(self.moments[orders]))
        for t, shift in y.tensors:
            if t != without:
                value = value.times(self.found[t].moved(shift))
        return value

    def constant(self, c: Any) -> Series:
        return Series(self, {ZERO: c} if c else {})

    def base(self, tensor: Tensor) -> tuple[int, bool, Series]:
        """A layer at which a tensor is known, counted from L or not, and its value there.

        C and D are known at the first and the last layer, where the response in them is gone.
        """
        if tensor.name in KERNELS:
            first = tensor.name == "C"
            parts = [y for y in self.raw(tensor) if all(t.name not in ("A", "B") for t, _ in y.tensors)]
            known = self.constant(self.field(0))
            for y in parts:
                known = known.plus(self.product(y))
            return (1 if first else 0), not first, known.at(1 if first else 0, not first)
        for (name, layer), value in self.expansion.site.bases.items():
            if name == tensor.name:
                last = layer != 0
                zero = tensor.order > 0 or tensor.shape != PAIR or value == 0
                number = 0 if zero else self.q if value.free_symbols else 1
                return int(layer - L) if last else 0, last, self.constant(self.field(number))
        raise NotApplicable(f"{tensor.name} is given at no layer")

    def raw(self, tensor: Tensor) -> list[Product]:
        """The law of C or D as it is derived."""
        known = [(t, law) for t, law in self.expansion.laws.items() if t.name == tensor.name and t.order == 0]
        if tensor.shape == WHOLE:
            return [_product(y) for _, law in known for y in law.terms]
        return [_product(y) for y in self.expansion.laws[tensor].terms]

    def solved(self, tensor: Tensor, law: list[Product]) -> Series:
        """``X(ell) = m X(ell + step) + known``."""
        if (tensor.name, tensor.order) == ("Phi", 0):
            return self.constant(self.q)
        step, m, known = 0, self.field(0), self.constant(self.field(0))
        for y in law:
            own = [k for t, k in y.tensors if t == tensor]
            if not own:
                known = known.plus(self.product(y))
                continue
            step = own[0]
            rest = self.product(y, tensor)
            if len(own) > 1 or set(rest.terms) - {ZERO}:
                raise NotApplicable(f"the recursion of {tensor.name} is not affine")
            m += rest.terms.get(ZERO, self.field(0))
        if step == 0:
            return known
        place, last, value = self.base(tensor)
        return known.summed(m, step == -1, place, last, value)

    def tangent(self, n: int, shape: Forest = PAIR) -> Expr:
        """What multiplies the forest ``shape`` in the tangent kernel at order n."""
        total = Series(self, {})
        for term in self.expansion.theory.observables[0].terms:
            body, layers = term.expr, None
            if isinstance(body, Sum):
                (_, low, high), body = body.limits[0], body.function
                layers = int(low), int(high - L)
            factors = [f for f in Mul.make_args(body) if str(f.func) in ("Phi", "G")]
            given = len(Mul.make_args(body)) > len(factors)
            for k in range(len(factors) if n else 1):
                value = self.constant(self.q if given else self.field(1))
                for i, f in enumerate(factors):
                    order = n if i == k else 0
                    tensor = oriented(Tensor(str(f.func), order, shape if order else PAIR))[0]
                    at = f.args[0]
                    series = self.found[tensor]
                    if layers is not None:
                        series = series.moved(int(at - ell))
                    else:
                        series = series.at(int(at - L) if at.has(L) else int(at), at.has(L))
                    value = value.times(series)
                if layers is not None:
                    running = value.summed(self.field(1), True, layers[0] - 1, False, Series(self, {}))
                    value = running.at(layers[1], True)
                total = total.plus(value)
        return total.expr()

    def expression(self, tensor: Tensor) -> Expr:
        """A tensor as a function of ell and L."""
        return self.found[tensor].expr()

    def average(self, orders: Orders) -> Expr:
        """What a symbol ``m_..`` stands for."""
        u = Symbol("u")
        phi = self.expansion.activation
        body = Mul(*[phi(u).diff(u, a) if a else phi(u) for a in orders])
        return GaussianAverage(body, {(u, u): q})


__all__ = ["AtFixedPoint", "p", "q", "scalar_laws", "x"]
