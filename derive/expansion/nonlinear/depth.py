"""Depth dependence of coefficients of the nonlinear expansion for one sample: solved recursions over layers.

For one sample every tensor (a number that multiplies a sum over times) is a number for each layer, and its
recursion is affine, ``X(ell) = m X(ell -+ 1) + known``. There are two cases.

* If the variance of the sources is the same at each layer (the ``K_x`` of the sample is a fixed point of
  ``q -> <phi^2>_q``), the multipliers are constant, and all tensors are sums of
  ``ell^a L^b x^(i ell + j L) p^(k ell + l L)`` with ``x = <phi'^2>`` and
  ``p = d<phi^2>/dq = <phi'^2> + <phi phi''>``: :class:`AtFixedPoint`.
* For an odd phi with slope 1 and a negative third derivative at zero (tanh, sin) the variance falls as
  ``1/(mu ell)``, from
  ``<phi^2> = q - mu q^2 + ..``, for any initial value. Averages become powers of ell, multipliers
  ``1 - r/ell``, and the recursions differential equations; for large ell and L every tensor is a sum of
  ``c ell^a L^b`` of one degree ``a + b``: :class:`AtCriticality`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import product as choices
from typing import Any

from sympy import QQ, Add, Dummy, Expr, Mul, Poly, Rational, S, Symbol, factorial2, field, sympify
from sympy.polys.rings import PolyElement

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.recurrences import Layered
from derive.calculus.sums import gathered, unused
from derive.calculus.symbols import L, ell
from derive.errors import NotApplicable, require_order
from derive.expansion.nonlinear.single_site import Site, Summand
from derive.expansion.nonlinear.trees import (
    BOUND,
    KERNELS,
    OUTPUT,
    PAIR,
    PERMUTED,
    ROW,
    Forest,
    ForestCoefficient,
    Laws,
    Node,
    Piece,
    Terms,
    fresh,
    grafted,
    oriented,
    samples_of,
    standard,
)

q, x, p = (Symbol(name, positive=True) for name in "qxp")

WHOLE = (Node(-1, ROW, marked=True),)
"""Forest of the sum of D and its part at equal times: for one sample both act on the same field."""

# -- the laws of one sample ----------------------------------------------------------------------------------

DerivativeOrders = tuple[int, ...]
"""An average, by the orders of the derivatives of phi in it."""

LayerMonomial = tuple[tuple[tuple[ForestCoefficient, int], ...], tuple[tuple[DerivativeOrders, int], ...]]
"""A product of tensors and averages, each with its layer relative to ``ell``."""

LayerPolynomial = dict[LayerMonomial, Any]
"""A sum of products of tensors and averages: each product with its coefficient."""


def laws_of_one_sample(laws: Laws, names: Collection[str]) -> dict[ForestCoefficient, LayerPolynomial]:
    """Return the recursions over layers of the tensors in the order parameters ``names``, for one sample.

    A tensor is a number for each layer that multiplies a sum over times. The recursions of all tensors that
    these need are included, each after those it depends on. Responses are replaced by the kernels C and D.
    Raises :class:`NotApplicable` for a network of one hidden layer, and if tensors depend on each other at
    one layer; ValueError for a name without a recursion, and for no names.
    """
    if laws.site.layer != ell:
        raise NotApplicable(
            "a network of one hidden layer has no recursions over layers: expand the theory of symbolic "
            "depth, such as mean_field(mlp(L, phi))"
        )
    raw = {t: _at_layer(law.terms, -law.shift) for t, law in laws.laws.items() if oriented(t)[0] == t}
    responses, D = ({t: v for t, v in raw.items() if t.name in ns} for ns in (("A", "B"), ("D",)))
    recursions = {}
    for t, law in raw.items():
        if t.name == OUTPUT:  # the output belongs to the last layer, where the response B does not exist
            law = {k: c for k, c in _put_in(law, D).items() if all(y.name != "B" for y, _ in k[0])}
        if t not in responses:
            recursions[t] = _put_in(law, responses)
    recursions = _with_whole_kernels(recursions)
    known = sorted({t.name for t in recursions})
    if other := [name for name in names if name not in known]:
        raise ValueError(
            f"names: {other[0]!r} has no recursion over layers; those with one are {', '.join(known)}"
        )
    if not names:
        raise ValueError(f"names is empty; must have at least one of {', '.join(known)}")
    chosen: dict[ForestCoefficient, set[ForestCoefficient]] = {}
    stack = [t for t in recursions if t.name in names]
    while stack:
        t = stack.pop()
        if t not in chosen:
            chosen[t] = {y for tensors, _ in recursions[t] for y, _ in tensors} - {t}
            stack += chosen[t]
    try:
        return {t: recursions[t] for t in TopologicalSorter(chosen).static_order()}
    except CycleError as error:
        raise NotApplicable(
            f"the order parameters {', '.join(sorted({t.name for t in error.args[1]}))} depend on each other "
            "at one layer, so that they have no recursion over layers"
        ) from error


def _at_layer(terms: Terms, moved: int = 0) -> LayerPolynomial:
    """Return a sum of products as a polynomial in tensors and Gaussian averages, for one sample.

    A tensor is a number for each layer that multiplies a sum over times. Each tensor and each average is
    listed with its layer minus ell; ``moved`` is added to all of these.
    """
    monomials = []
    for p, c in terms.items():
        orders = tuple(sorted(a for _, derivatives in p.averages for a in derivatives))
        tensors = [(oriented(y.tensor)[0], y.shift + moved) for y in p.statics]
        monomials.append((tensors, [(orders, moved)] if orders else [], c))
    return _collected(monomials)


def _collected(
    parts: Iterable[tuple[list[tuple[ForestCoefficient, int]], list[tuple[DerivativeOrders, int]], Any]],
) -> LayerPolynomial:
    """Return a polynomial in tensors and averages from its monomials (tensors, averages, coefficient).

    Tensors and averages are pairs with their layer relative to ell. The coefficients of equal monomials are
    added.
    """
    return gathered(((tuple(sorted(tensors)), tuple(sorted(averages))), c) for tensors, averages, c in parts)


def _put_in(law: LayerPolynomial, rules: Mapping[ForestCoefficient, LayerPolynomial]) -> LayerPolynomial:
    """Replace tensors in the right-hand side of a recursion over layers by the right-hand sides in ``rules``.

    A tensor is a number for each layer that multiplies a sum over times. Replacement is repeated until no key
    of ``rules`` is left.
    """
    done, left = [], [([*tensors], [*averages], c) for (tensors, averages), c in law.items()]
    while left:
        tensors, averages, c = left.pop()
        i = next((i for i, (t, _) in enumerate(tensors) if t in rules), None)
        if i is None:
            done.append((tensors, averages, c))
            continue
        tensor, at = tensors[i]
        rest = tensors[:i] + tensors[i + 1 :]
        for (others, more), d in rules[tensor].items():
            inner = [(t, k + at) for t, k in others]
            left.append((rest + inner, averages + [(o, k + at) for o, k in more], c * d))
    return _collected(done)


def _with_whole_kernels(
    laws: dict[ForestCoefficient, LayerPolynomial],
) -> dict[ForestCoefficient, LayerPolynomial]:
    """Return the recursions with the sum of D and its part at equal times as one tensor, instead of D.

    D is the kernel in the equation of z at order 0: it has one tensor for earlier times and one for equal
    times. The sum replaces the first of them. The keys of ``laws`` are tensors, the values the right-hand
    sides of their recursions over layers. Without both tensors the recursions are returned unchanged.
    """
    parts = [t for t in laws if t.name == "D" and t.order == 0]
    now = next((t for t in parts if t.shape[0].marked), None)
    plain = next((t for t in parts if not t.shape[0].marked), None)
    if now is None or plain is None:
        return laws
    whole = ForestCoefficient("D", 0, WHOLE)
    rule: dict[ForestCoefficient, LayerPolynomial] = {plain: {(((whole, 0),), ()): 1, (((now, 0),), ()): -1}}
    sides = ((*k, c) for t in (plain, now) for k, c in laws[t].items())
    both = {**laws, whole: _collected(([*a], [*b], c) for a, b, c in sides)}
    del both[plain]
    return {t: _put_in(v, rule) for t, v in both.items()}


# -- a variance that stays -----------------------------------------------------------------------------------


def _averages(moments: Mapping[DerivativeOrders, Any]) -> dict[DerivativeOrders, Any]:
    """Return given averages of derivatives of phi, by the orders of the derivatives.

    Raises ValueError unless orders are sorted, averages are numbers, and <phi'^2> and <phi phi''> are given
    together.
    """
    for orders, value in moments.items():
        if tuple(sorted(orders)) != orders:
            raise ValueError(f"moments: the orders {orders} must be sorted, {tuple(sorted(orders))}")
        if not sympify(value).is_number:
            raise ValueError(f"moments[{orders}] = {value}: must be a number")
    if ((1, 1) in moments) != ((0, 2) in moments):
        given, other = ((1, 1), (0, 2)) if (1, 1) in moments else ((0, 2), (1, 1))
        raise ValueError(
            f"moments: {given} is given without {other}; give both, <phi'^2> as (1, 1) and <phi phi''> as "
            "(0, 2), or neither"
        )
    return dict(moments)


class AtFixedPoint:
    """Tensors of one sample in closed form in ell and L, if the variance of h is the same at every layer.

    A tensor is a number for each layer that multiplies a sum over times in the nonlinear expansion; ``found``
    maps it to its closed form, in terms of the averages ``q = <phi^2>``, the variance, ``x = <phi'^2>`` and
    ``p = <phi'^2> + <phi phi''>``. ``moments`` gives numbers for Gaussian averages of derivatives of phi, by
    the orders of the derivatives: ``{(1, 1): 1, (0, 2): 0}`` states ``<phi'^2> = 1`` and ``<phi phi''> = 0``.
    These two are given together, and the orders of an average are sorted; other input raises ValueError.
    Other averages are symbols such as ``m_1_3``, for ``<phi' phi'''>``.
    """

    def __init__(
        self,
        laws: Laws,
        moments: dict[DerivativeOrders, Any] | None = None,
        names: tuple[str, ...] = ("Phi", "G"),
    ) -> None:
        self.given, self.site, self.derived = _averages(moments or {}), laws.site, laws
        self.laws = laws_of_one_sample(laws, names)
        orders = {o for v in self.laws.values() for _, averages in v for o, _ in averages}
        self.symbols = {o: Symbol("m_" + "_".join(map(str, o))) for o in sorted(orders)}
        numbers, slope, rate, variance, *others = field([x, p, q, *self.symbols.values()], QQ)
        self.moments = dict(zip(self.symbols, others, strict=True))
        if (1, 1) in self.given:
            slope, rate = numbers(self.given[1, 1]), numbers(self.given[1, 1] + self.given[0, 2])
        self.growth = Layered(field=numbers.to_domain(), bases=(slope, rate))
        self.moments |= {(1, 1): slope, (0, 2): rate - slope, (0, 0): variance}
        self.moments |= {o: numbers(v) for o, v in self.given.items() if o in self.moments}
        self.found: dict[ForestCoefficient, PolyElement] = {}
        for t, law in self.laws.items():
            self.found[t] = self.solved(t, law)

    def constant(self, c: Any) -> PolyElement:
        """Return a number c as a function of the layer ell that does not depend on ell."""
        return self.growth.ring(self.growth.field(c))

    def exponents(self, m: Any) -> tuple[int, int]:
        """Return (i, k) of the factor ``m = x^i p^k`` in a recursion ``X(ell) = m X(ell + step) + known``.

        x is ``<phi'^2>`` and p is ``<phi'^2> + <phi phi''>``. Raises NotApplicable unless the factor is 1, x,
        p, ``x p`` or ``x^2``.
        """
        for exponents in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0)):
            if self.growth.power(exponents) == m:
                return exponents
        raise NotApplicable(
            f"a recursion over layers multiplies by {m.as_expr()} in each layer; must be 1, x, p, x*p or "
            "x**2 with x = <phi'^2> and p = <phi'^2> + <phi phi''>"
        )

    def written(self, e: PolyElement) -> Expr:
        """Return a function of the layer as a SymPy expression in ell, L and the averages q, x and p.

        q is the variance ``<phi^2>``, x is ``<phi'^2>`` and p is ``<phi'^2> + <phi phi''>``, averages over
        the Gaussian field h.
        """
        return Add(
            *[
                c.as_expr() * ell**a * L**b * x ** (i * ell + j * L) * p ** (k * ell + n * L)
                for (a, i, k, b, j, n), c in e.terms()
            ]
        )

    def product(self, y: LayerMonomial, c: Any, without: ForestCoefficient | None = None) -> PolyElement:
        """Return one term in the recursion of a tensor as a function of the layer ell.

        The term is ``c`` times the tensors and Gaussian averages in ``y``. The tensor ``without``, for which
        the recursion is being solved, is left out.
        """
        number = Rational(c)
        value = self.constant(QQ(int(number.p), int(number.q)))
        for orders, _ in y[1]:
            value = value * self.constant(self.moments[orders])
        for t, shift in y[0]:
            if t != without:
                value = value * self.growth.moved(self.found[t], ell + shift)
        return value

    def base(self, tensor: ForestCoefficient) -> tuple[Expr, PolyElement]:
        """Return (layer, value): a layer at which a tensor of the expansion is known, and its value there.

        The kernel C is known at layer 1 and D at layer L, because they contain no response there; order
        parameters have given values before the first or after the last layer. Raises NotApplicable for an
        order parameter without such a value.
        """
        if tensor.name in KERNELS:
            whole = tensor.shape == WHOLE
            parts = [y for y in self.derived.laws if y == tensor or (whole and (y.name, y.order) == ("D", 0))]
            raw = [_at_layer(self.derived.laws[y].terms) for y in parts]
            known = self.constant(0)
            for y, c in (z for law in raw for z in law.items()):
                if all(t.name not in ("A", "B") for t, _ in y[0]):
                    known += self.product(y, c)
            end = S.One if tensor.name == "C" else L
            return end, self.growth.moved(known, end)
        for (name, layer), value in self.site.bases.items():
            if name == tensor.name:
                zero = tensor.order > 0 or tensor.shape != PAIR or value == 0
                start = self.constant(0 if zero else self.moments[0, 0] if value.free_symbols else 1)
                return layer, start
        raise NotApplicable(
            f"the order parameter {tensor.name} has no given value at any layer, from which its recursion "
            "over layers could start"
        )

    def solved(self, tensor: ForestCoefficient, law: LayerPolynomial) -> PolyElement:
        """Solve the recursion ``X(ell) = m X(ell + step) + known`` of a tensor X over layers, in closed form.

        ``law`` is the right-hand side as a polynomial in tensors. Raises NotApplicable if it is not linear in
        X, or if the factor m depends on the layer.
        """
        if (tensor.name, tensor.order) == ("Phi", 0):
            return self.constant(self.moments[0, 0])
        step, m, known = 0, self.growth.field.zero, self.constant(0)
        for y, c in law.items():
            shifts = [k for t, k in y[0] if t == tensor]
            if not shifts:
                known += self.product(y, c)
                continue
            step = shifts[0]
            rest = self.product(y, c, tensor)
            if len(shifts) > 1 or not rest.is_ground:
                raise NotApplicable(
                    f"the recursion of {tensor.name} over layers is not solved: its right-hand side must be "
                    "a factor that is the same in all layers, times the value in the neighbouring layer, "
                    "plus a source"
                )
            m += rest.coeff(1)
        if step == 0:
            return known
        return self.growth.solved(known, self.exponents(m), step, *self.base(tensor))

    def tangent(self, n: int, shape: Forest = PAIR) -> Expr:
        """Return a coefficient of order n in gamma0 of the tangent kernel, as a function of L.

        It multiplies the forest ``shape``, a sum over times that does not depend on the layer. By default
        that is the forest of order 0, which is 1. The tangent kernel is a sum of products of order
        parameters; the orders of the factors add up to n, and their forests together are ``shape``. An order
        that vanishes, such as an odd one, is 0. Raises KeyError if another order n does not contain this
        forest, and IndexError if n is not an order of the expansion.
        """
        total = self.constant(0)
        for y, tensors in _tangent_products(self.derived, n, shape):
            value = self.constant(1 if y.given == 1 else self.moments[0, 0])
            for tensor, (_, at) in zip(tensors, y.factors, strict=True):
                value *= self.growth.moved(self.found[tensor], at)
            if y.layers:
                value = self.growth.summed(value, y.layers.lower, y.layers.upper)
            total += value
        return self.written(total)

    def expression(self, tensor: ForestCoefficient) -> Expr:
        """Return a tensor of the nonlinear expansion in closed form, as a function of ell and L.

        A tensor is the factor of a sum over times, here for one sample. For a tensor of the output ``f`` the
        result holds at ``ell = L`` only.
        """
        return self.written(self.found[tensor])

    def average(self, orders: DerivativeOrders) -> Expr:
        """Return the Gaussian average for which a symbol such as ``m_1_3`` stands, here ``<phi' phi'''>``.

        ``orders`` are the orders of the derivatives of phi whose product is averaged.
        """
        slot, phi = Dummy(), self.site.activation
        body = Mul(*[phi(slot).diff(slot, a) if a else phi(slot) for a in orders])
        u = unused(Symbol("u"), body.free_symbols)  # constants of phi may be called u
        return GaussianAverage(body.xreplace({slot: u}), {(u, u): q})


def _tangent_products(
    laws: Laws, n: int, shape: Forest
) -> list[tuple[Summand, tuple[ForestCoefficient, ...]]]:
    """Return the products in order n of the tangent kernel that multiply the forest ``shape``.

    Each is a pair: a term of the tangent kernel, and the keys of tensors, one for each of its factors. The
    orders of the tensors add up to n, and the product of their forests, sums over times, is ``shape``. There
    are none if order n vanishes. Raises KeyError if only other forests have products, IndexError for an order
    that the expansion does not have, and NotApplicable if the forest has too many samples to be compared.
    """
    require_order(n, laws.order)
    if len(samples_of(shape)) - BOUND > PERMUTED:
        raise NotApplicable(
            f"shape: the forest has {len(samples_of(shape)) - BOUND} samples that are summed over; at most "
            f"{PERMUTED} are supported"
        )
    wanted, products, others = standard(Piece(shape)), [], False
    for y in laws.site.tangent:
        forests = [
            [(name, k, x) for k in range(n + 1) for x in laws.forests(name, k)] for name, _ in y.factors
        ]
        for factors in choices(*forests):
            if sum(k for _, k, _ in factors) != n:
                continue
            others = True
            if _joined(x for _, _, x in factors) == wanted:
                products.append((y, tuple(oriented(ForestCoefficient(*x))[0] for x in factors)))
    if others and not products:
        names = " or ".join(
            f"forests({x!r}, {n})" for x in dict.fromkeys(x for y in laws.site.tangent for x, _ in y.factors)
        )
        raise KeyError(
            f"order {n} of the tangent kernel does not contain the forest (iterated sum over times) "
            "that is given as shape (by default 1, the forest of order 0): give one that this order "
            f"contains, such as one of the expansion's {names}"
        )
    return products


def _forests(laws: Laws, name: str, n: int) -> list[tuple[str, int, Forest]]:
    """Return (name, order, forest) of the forests in all orders up to n of an order parameter."""
    return [(name, k, x) for k in range(n + 1) for x in laws.forests(name, k)]


def _joined(forests: Iterable[Forest]) -> Piece:
    """Return the product of several forests of the same two times, in standard form."""
    total = Piece(PAIR)
    for forest in forests:
        piece = Piece(forest).shifted(fresh(total))
        at = {i: piece.nodes[i].sample for i in piece.roots}
        total = grafted(total, at, piece)
    return standard(total)


# -- a variance that decays ----------------------------------------------------------------------------------

TERMS = 8
"""The Taylor series of phi ends at the power ``2 TERMS + 1``, averages at ``TERMS - 4`` of the variance."""

DepthPowers = dict[tuple[Rational, Rational], Any]
"""The coefficient of each ``ell^a L^b``."""

NOTHING = Rational(-(10**6))
"""A degree below all others."""


@dataclass(frozen=True)
class Leading:
    """Leading terms of a function of ell and L: those ``c ell^a L^b`` of the highest degree a + b.

    ``terms`` maps (a, b) to c. Terms of degree ``beyond`` or less, which may contain logarithms, are unknown.
    """

    terms: DepthPowers
    beyond: Rational = NOTHING

    @property
    def degree(self) -> Rational:
        """Highest degree of the known terms; without any, an upper bound of the degree."""
        return max((i + j for i, j in self.terms), default=self.beyond)

    def __mul__(self, other: Leading) -> Leading:
        """Return the leading powers of ell and L of a product of two functions from those of the factors."""
        terms = [
            {(i + k, j + m): c * d} for (i, j), c in self.terms.items() for (k, m), d in other.terms.items()
        ]
        return Leading(_added(*terms), max(self.degree + other.beyond, self.beyond + other.degree))

    def __add__(self, other: Leading) -> Leading:
        """Return the leading powers of ell and L of a sum; if they cancel, no term is known."""
        beyond = max(self.beyond, other.beyond)
        terms = {k: c for k, c in _added(self.terms, other.terms).items() if k[0] + k[1] > beyond}
        top = max((i + j for i, j in terms), default=beyond)
        kept = {k: c for k, c in terms.items() if k[0] + k[1] == top}
        return Leading(kept, max(beyond, top - 1) if terms else beyond)

    def expr(self) -> Expr:
        """Return the leading terms as a SymPy expression.

        Raises :class:`NotApplicable` if the leading powers cancel, so that no term is known.
        """
        if not self.terms:
            known = self.beyond + 1
            raise NotApplicable(
                "the leading powers of a coefficient cancel, and lower powers are not computed: the degree "
                f"of this coefficient in ell and L is only known to be below {known}"
            )
        return Add(*[c * ell**a * L**b for (a, b), c in self.terms.items()])


UNIT = Leading({(S.Zero, S.Zero): S.One})


def _added(*parts: DepthPowers) -> DepthPowers:
    """Return the sum of functions of ell and L that are given as dictionaries from (a, b) to coefficients."""
    return gathered(pair for part in parts for pair in part.items())


class AtCriticality:
    """Leading powers of ell and L of the tensors of one sample, for a given phi.

    The tensors are those in the order parameters ``names``, and all that their recursions over layers
    contain. Raises :class:`NotApplicable` unless phi is odd with slope 1 at zero and has a variance that
    falls as 1/ell, and if a leading power depends on the first layers.

    >>> from sympy import tanh
    >>> from derive.expansion.nonlinear.trees import solved_laws
    >>> from derive.expansion.nonlinear.single_site import read
    >>> from derive import mean_field, mlp
    >>> law = AtCriticality(solved_laws(read(mean_field(mlp(L, tanh))), 0))
    >>> [law.expression(ForestCoefficient(name, 0, PAIR)) for name in ("Phi", "G")]
    [1/(2*ell), ell/L]
    """

    def __init__(self, laws: Laws, names: tuple[str, ...] = ("Phi", "G")) -> None:
        self.site: Site = laws.site
        self.derived = laws
        self.phi = self.site.activation
        x = self.phi.variables[0]
        if self.phi.expr.subs(x, -x) != -self.phi.expr or self.phi.expr.diff(x).subs(x, 0) != 1:
            raise NotApplicable(
                f"phi = {self.phi.expr}: must be odd with slope 1 at zero, in a form that shows this, such "
                "as tanh(x)"
            )
        self.taylor = self.phi.expr.series(x, 0, 2 * TERMS + 2).removeO()
        variance = self.moment((0, 0))
        self.mu = -variance.get(2, S.Zero)
        if variance.get(1) != 1 or not self.mu.is_positive:
            raise NotApplicable(
                f"<phi^2> of phi = {self.phi.expr} must be q - mu q^2 + ..., with a positive mu, where q is "
                "the variance of the argument, so that the variance falls as 1/ell; the coefficients of "
                f"powers of q are {variance}"
            )
        self.laws = laws_of_one_sample(laws, names)
        self.found: dict[ForestCoefficient, Leading] = {}
        for t, law in self.laws.items():
            self.found[t] = self.solved(t, law)

    def moment(self, orders: DerivativeOrders) -> dict[int, Any]:
        """Return the Gaussian average ``<phi^(a)(u) phi^(b)(u) ...>`` as a series in the variance q of u.

        ``orders`` are the orders a, b, ... of the derivatives of phi. The result maps each power of q to its
        coefficient, from the Taylor series of phi and ``<u^2k> = (2k - 1)!! q^k``.
        """
        x = self.phi.variables[0]
        product = Poly(Mul(*[self.taylor.diff(x, a) for a in orders]), x)
        even = {k // 2: c * factorial2(k - 1) for (k,), c in product.terms() if k % 2 == 0}
        # The Taylor series of phi ends at x^17, and its derivative of order a ends a powers earlier. Powers
        # of q up to TERMS - 4 = 4, that is of u up to 8, are complete for derivatives up to order 9.
        return {k: c for k, c in sorted(even.items()) if k <= TERMS - 4}

    def average(self, orders: DerivativeOrders) -> Leading:
        """Return the leading term in 1/ell of a Gaussian average of derivatives of phi at layer ell.

        The variance of the Gaussian is ``1/(mu ell)``; ``orders`` are the orders of the derivatives.
        """
        series = self.moment(orders)
        k = min(series)
        return Leading({(Rational(-k), S.Zero): series[k] / self.mu**k}, Rational(-k - 1))

    def solved(self, tensor: ForestCoefficient, law: LayerPolynomial) -> Leading:
        """Return the leading powers of ell and L in a tensor X, from its recursion over layers.

        The recursion is ``X(ell) = (1 - r/ell + ..) X(ell + step) + known`` with step 1 or -1; ``law`` is its
        right-hand side. Raises NotApplicable if the factor of X does not tend to 1 in deep layers.
        """
        if (tensor.name, tensor.order) == ("Phi", 0):
            return Leading({(Rational(-1), S.Zero): 1 / self.mu}, Rational(-2))
        step, multiplier, rate, known = 0, S.Zero, S.Zero, Leading({})
        for y, c in law.items():
            shifts = [k for t, k in y[0] if t == tensor]
            if not shifts:
                known += self.product(y, c)
                continue
            step = shifts[0]
            ((orders, _),) = y[1][:1]
            series = self.moment(orders)
            multiplier += c * series.get(0, S.Zero)
            rate -= c * series.get(1, S.Zero) / self.mu
        if step == 0:
            return known
        if multiplier != 1:
            raise NotApplicable(
                f"the recursion of {tensor.name} must have the multiplier 1 in deep layers for a power law; "
                f"the multiplier is {multiplier}"
            )
        return self.forward(known, rate) if step == -1 else self.backward(tensor, known, rate)

    def product(self, y: LayerMonomial, c: Any) -> Leading:
        """Return the leading powers of ell and L of one term in a recursion over layers.

        The term is ``c`` times the Gaussian averages and the tensors in ``y``.
        """
        value = Leading({(S.Zero, S.Zero): c})
        for orders, _ in y[1]:
            value *= self.average(orders)
        for t, _ in y[0]:
            value *= self.found[t]
        return value

    def forward(self, known: Leading, rate: Any) -> Leading:
        """Return the leading powers of the solution of ``dX/dell = -rate X/ell + known``, for deep layers.

        The homogeneous part ``ell^-rate`` is smaller and left out. Raises NotApplicable if it is not smaller,
        because X then depends on the first layers.
        """
        for a, _ in known.terms:
            if (a + 1 + rate).is_nonpositive:
                raise NotApplicable(
                    f"the recursion dX/dell = -({rate}) X/ell + c ell^({a}) is not solved in deep layers: "
                    f"the part ell^({-rate}) of X depends on the first layers, where averages are not powers "
                    "of ell, and is not smaller than the rest by a power of ell"
                )
        out = {(a + 1, b): c / (a + 1 + rate) for (a, b), c in known.terms.items()}
        return Leading(out, known.beyond + 1)

    def backward(self, tensor: ForestCoefficient, known: Leading, rate: Any) -> Leading:
        """Return the leading powers of the solution of ``dX/dell = rate X/ell - known``, for deep layers.

        X is known beyond the last layer: the given value of the order parameter ``tensor`` there, or zero.
        Raises NotApplicable if the solution contains a logarithm.
        """
        total = Leading({})
        base = self.site.bases.get((tensor.name, L + 1))
        if base is not None and tensor.order == 0 and tensor.shape == PAIR:
            total = Leading({(rate, -rate): sympify(base)}, Rational(-1))
        out: DepthPowers = {}
        for (a, b), c in known.terms.items():
            if a + 1 == rate:
                raise NotApplicable(
                    f"the recursion dX/dell = ({rate}) X/ell - c ell^({a}) from the last layer gives no "
                    "power law: X contains a logarithm of ell"
                )
            w = c / (a + 1 - rate)
            out = _added(out, {(rate, b + a + 1 - rate): w}, {(a + 1, b): -w})
        return total + Leading(out, known.beyond + 1) if out or not total.terms else total

    def tangent(self, n: int, shape: Forest = PAIR) -> Expr:
        """Return the leading term in L of a coefficient in order n of the tangent kernel.

        The coefficient multiplies the forest ``shape``, a sum over times. The tangent kernel is a sum over
        layers of products of order parameters; the orders of the factors add up to n, and their forests
        together are ``shape``. The terms at the ends have lower degree in L and are left out. An order that
        vanishes, such as an odd one, is 0. Raises NotApplicable if the sum depends on the first layers or the
        leading powers cancel, KeyError if another order n does not contain this forest, and IndexError if n
        is not an order of the expansion.
        """
        total = Leading({})
        products = _tangent_products(self.derived, n, shape)
        for y, tensors in products:
            if not y.layers:
                continue
            value = UNIT
            for tensor in tensors:
                value *= self.found[tensor]
            if any((a + 1).is_nonpositive for a, _ in value.terms):
                raise NotApplicable(
                    "a sum over layers in the tangent kernel depends on the first layers, where averages "
                    "are not powers of ell"
                )
            parts = [{(S.Zero, a + b + 1): c / (a + 1)} for (a, b), c in value.terms.items()]
            total += Leading(_added(*parts), value.beyond + 1)
        return total.expr() if products else S.Zero

    def expression(self, tensor: ForestCoefficient) -> Expr:
        """Return a tensor of the nonlinear expansion as its leading power law in ell and L.

        A tensor is the factor of a sum over times. For a tensor of the output ``f`` the result holds at
        ``ell = L`` only. Raises :class:`NotApplicable` if the leading powers cancel.
        """
        return self.found[tensor].expr()
