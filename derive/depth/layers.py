"""Equations between layers expanded in layer time, to any order in the inverse depth.

A function of the layers is ``X(ell, k) = sum over n of u^n X_n(tau, tau_)`` at ``tau = ell/L``, ``tau_ =
k/L``. Three rules turn equations between layers into equations of the ``X_n``::

    Taylor              X(ell + a) = sum over j of (a/L)^j X^(j)(tau) / j!
    Euler, Maclaurin    sum over k from p to q - 1 of g(k/L), for p = L x + a, q = L y + b,  =  L int_x^y g
                        + sum over j of L^-j [B_(j+1)(b) g^(j)(y) - B_(j+1)(a) g^(j)(x)] / (j+1)!
    recursions          X(ell + p) = X(ell + p - 1) + r(ell) is the sum of r from an end of the network

with Bernoulli polynomials B. A function of two layers is assumed to be smooth on either side of ``ell = k``,
and may jump there. A sum across ``ell = k`` is divided into the sums on both sides and a few layers between,
if the functions in it jump at different layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sympy import (
    Add,
    Derivative,
    DiracDelta,
    Dummy,
    Expr,
    Function,
    Integral,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
    bernoulli,
    factorial,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.series import PowerCoefficients, SeriesRing
from derive.calculus.symbols import L, ell
from derive.depth.balance import delta
from derive.errors import NotApplicable
from derive.linear.propagators import CrossLayer, k
from derive.theory import Equation, Theory

tau = Symbol("tau", nonnegative=True)
"""Layer time ell/L."""
tau_ = Symbol("tau_", nonnegative=True)
"""Layer time of a source."""
between = Symbol("tau_1", nonnegative=True)
"""A layer time between the ends of an integral."""
tau_2 = Symbol("tau_2", nonnegative=True)
"""Another layer time."""
BELOW, ABOVE = "_below", "_above"
ORDERS = ("", "first_", "second_", "third_")


def require_free_layer_times(theory: Theory) -> None:
    """Raise NotApplicable if a symbol of the theory is equal to one of the symbols of layer times.

    In the equations in layer time such a symbol could not be told from the layer time ``tau``.
    """
    for x in (tau, tau_, between, tau_2):
        if x in theory.symbols.values():
            raise NotApplicable(
                f"the theory has the symbol {x}, which is a layer time of the limit: give this symbol of "
                "the theory another name"
            )


def coefficient_name(name: str, n: int, slopes: tuple[int, int] = (0, 0)) -> str:
    """Return the name of the coefficient of order n of the function ``name``.

    ``slopes`` counts the derivatives by the layer time of the field and by that of the source.

    >>> coefficient_name("C", 1), coefficient_name("C", 0, (1, 0)), coefficient_name("X", 1, (0, 1))
    ('first_C', 'slope_C', 'source_slope_first_X')
    """
    order = ORDERS[n] if n < len(ORDERS) else f"order{n}_"
    return "source_slope_" * slopes[1] + "slope_" * slopes[0] + order + name


def layers_of(cross: CrossLayer) -> dict[str, int]:
    """Return the number of layer arguments of each function by its name: 0, 1, or 2 for field and source."""
    counts: dict[str, int] = {}
    for e in cross.responses:
        one = any(x.lhs.args and x.lhs.args[0].has(ell) for x in cross.responses if x.lhs.func == e.lhs.func)
        two = len(e.lhs.args) > 1 and e.lhs.args[1] == k
        counts[str(e.lhs.func)] = max(counts.get(str(e.lhs.func), 0), 1 + two if one else 0)
    for q in (*cross.correlations, *cross.fields):
        counts.setdefault(str(q.lhs.func), int(bool(q.lhs.args) and q.lhs.args[0].has(ell)))
    for p in cross.perturbed_sources:
        counts.setdefault(p.name, int(p.layers is not None))
    for q in cross.theory.order_parameters:
        counts.setdefault(str(q.symbol.func), int(bool(q.symbol.args) and q.symbol.args[0].has(ell)))
    return counts


@dataclass(frozen=True)
class LayerRecursion:
    """A recursion ``X(ell + p) = X(ell + p - direction) + smooth terms + jumps`` of a response over layers.

    ``lhs`` is ``X(ell + p, ...)``, and ``direction`` is 1 towards higher layers and -1 towards lower ones.
    ``smooth`` are terms that are added in every layer. A member (c, d) of ``jumps`` is the term ``c *
    delta(k, ell + d)``, added once at the layer k of the source. ``ell`` runs from ``low`` to ``L + high``.
    """

    lhs: AppliedUndef
    direction: int
    smooth: tuple[Expr, ...]
    jumps: tuple[tuple[Expr, int], ...]
    low: int
    high: int
    """``ell`` runs from ``low`` to ``L + high``."""

    @property
    def shift(self) -> int:
        """The integer p in the left-hand side ``X(ell + p)`` of a recursion over layers."""
        return int(self.lhs.args[0] - ell)


def neighbour(e: Equation) -> Expr | None:
    """Return the term of an equation that is its left-hand side at the next or previous layer.

    Returns None if no term is, so that the equation is not a recursion over layers.
    """
    for x in e.terms:
        y = x.expr
        same = isinstance(y, AppliedUndef) and y.func == e.lhs.func and y.args[1:] == e.lhs.args[1:]
        if same and y.args[0].has(ell) and e.lhs.args[0] - y.args[0] in (1, -1):
            return y
    return None


def recursion(e: Equation) -> LayerRecursion:
    """Return an equation that continues from a neighbouring layer as a recursion over layers.

    Its terms are sorted into the function at the neighbouring layer, the terms that are added in every layer,
    and the jumps at the layer of the source.
    """
    near = neighbour(e)
    assert near is not None
    added = [x.expr for x in e.terms if x.expr != near]
    inside = next(r for r in e.ranges if r.index == ell)
    return LayerRecursion(
        e.lhs,
        int(e.lhs.args[0] - near.args[0]),
        tuple(x for x in added if delta(x) is None),
        tuple(d for x in added if (d := delta(x)) is not None),
        int(inside.lower),
        int(inside.upper - L),
    )


# -- series of expressions -------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerExpansion(SeriesRing[Expr]):
    """Expansion in the inverse depth of expressions in functions of layers.

    The series is in u, the power of L of the first correction, up to ``u^order``; powers of L in front of an
    expression are taken out before. ``slots`` counts the layers among the arguments of each unknown function.
    ``cuts`` maps a function of the layers ell of the field and k of the source to a number c: the function is
    on the upper side of its source for ``ell >= k + c``. ``step`` is the n with ``1/L = u^n``, None if n is
    beyond the order of the expansion. A function at equal layers is written ``X(tau, tau)`` if ``order`` is
    0, and by its side, ``X_above`` or ``X_below``, if ``order`` is higher. ``made`` collects each coefficient
    function that was written: function, order, derivatives and side.
    """

    slots: Mapping[str, int]
    cuts: Mapping[str, int] = field(default_factory=dict)
    order: int = 0
    step: int | None = None
    made: dict[str, tuple[str, int, int, int, str]] = field(default_factory=dict)
    """Name, order, derivatives and side of each function that occurs in an expanded expression."""

    def series(self, e: Expr) -> PowerCoefficients:
        """Return the coefficients of u^0, u^1, ... of an expression in functions of layers.

        u is the small power of L in which the expansion is made. The coefficients are functions of the layer
        times tau of the field and ``tau_`` of the source.

        >>> t, X, C = Symbol("t"), Function("X"), Function("C")
        >>> LayerExpansion({"X": 2, "C": 1}, {"X": 0}, 1, 1).series(C(ell - 1, t) * X(ell, ell, t))[1]
        C(tau, t)*first_X_above(tau, t) + X_above(tau, t)*first_C(tau, t) - X_above(tau, t)*slope_C(tau, t)
        """
        return tuple(self.evaluate(e, self.known))

    def known(self, e: Expr) -> PowerCoefficients | None:
        """Return the series of a function of layers, a sum over layers or times, a constant, or ``exp(f)``.

        The last stands for any known function of one argument, and this argument is expanded as well. The
        series is a tuple of coefficients. The result is None for any other expression, such as a product.
        """
        if isinstance(e, Sum | Integral):
            return self._sum(e)
        if isinstance(e, AppliedUndef):
            return self._function(e)
        if not e.has(AppliedUndef, ell, k):
            return self.constant(e)
        return self._composed(e) if isinstance(e, Function) and len(e.args) == 1 else None

    def number(self, e: Any) -> Expr:
        """Convert a number, or an expression for which there is no other rule, to a coefficient of order 0.

        Other expressions than numbers, such as a Gaussian average, are converted only if the expansion has
        order 0: the functions of layers in them become functions of layer times. Raises
        :class:`NotApplicable` at higher orders, and for an expression without undefined functions.
        """
        if sympify(e).is_Number:
            return sympify(e)
        if not self.order and e.has(AppliedUndef):
            return sympify(e).replace(lambda x: isinstance(x, AppliedUndef), lambda x: self._function(x)[0])
        raise NotApplicable(
            f"no rule expands {e} in powers of the inverse depth; without a rule, an expression must be a "
            "number or, at order 0, contain a function such as X(ell, t)"
        )

    def total(self, *xs: Expr) -> Expr:
        """Return the sum of coefficients of a series."""
        return Add(*xs)

    def dot(self, pairs: Iterable[tuple[Expr, Expr]]) -> Expr:
        """Return the sum of products ``a * b`` over pairs of coefficients of two series."""
        return Add(*[(a * b).expand(deep=False) for a, b in pairs])

    def reciprocal(self, c: Expr) -> Expr:
        """Return ``1/c`` for the coefficient c of a series."""
        return 1 / c

    def steps(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (j, n) with ``L^-j = u^n``, where u is the small parameter of the series.

        j begins at ``start``, and n ends at the order of the expansion.
        """
        if start == 0:
            yield 0, 0
        if self.step is not None:
            yield from ((j, j * self.step) for j in range(max(start, 1), self.order // self.step + 1))

    # -- functions -------------------------------------------------------------------------------------------

    def _function(self, e: AppliedUndef) -> PowerCoefficients:
        """Return the series in the inverse depth of a function of layers: its Taylor series about layer time.

        ``X(ell + a)`` is ``X(tau + a/L)`` with tau = ell/L. A function that is not in ``slots`` is a
        constant. Raises :class:`NotApplicable` for a shifted second layer, unless the expansion has order 0.
        """
        name = str(e.func)
        inner = [x for x in e.args if x.has(AppliedUndef)]
        if inner:
            return self._given(e, inner)
        if name not in self.slots:
            return self.constant(e)
        n = self.slots[name]
        places = [place(x) for x in e.args[:n]]
        if self.order and any(offset for _, offset in places[1:]):
            raise NotApplicable(
                "the expansion in the inverse depth takes responses whose second layer, that of the "
                f"source, is not shifted; in {e} it is shifted"
            )
        at, offset, side = tuple(x for x, _ in places), places[0][1] if n else 0, ""
        if n == 2 and at[0] == at[1] and self.order:
            side = ABOVE if offset >= places[1][1] + self.cuts[name] else BELOW
        total = [S.Zero] * (self.order + 1)
        for j, shift in self.steps():
            for m in range(self.order + 1 - shift):
                share = offset**j / factorial(j)
                total[m + shift] += share * self.value(name, m, (j, 0), at, e.args[n:], side)
        return tuple(total)

    def value(
        self,
        name: str,
        m: int,
        slopes: tuple[int, int],
        at: tuple[Expr, ...],
        rest: tuple[Expr, ...],
        side: str = "",
    ) -> Expr:
        """Return the coefficient of order m of the function ``name``, or a derivative of it, as a function.

        ``slopes`` counts the derivatives by the layer times tau of the field and ``tau_`` of the source.
        ``at`` are the layer times and ``rest`` the other arguments. With a ``side`` (suffix for above or
        below the source) the two layer times are equal and one is written.
        """
        whole = coefficient_name(name, m, slopes) + side
        self.made[whole] = (name, m, *slopes, side)
        return Function(whole)(*(at[:1] if side else at), *rest)

    def _composed(self, e: Expr) -> PowerCoefficients:
        """Return the series of a known function of an expression, such as ``exp(f(t))``.

        The expression is a series in the inverse depth itself. Raises :class:`NotApplicable` if a derivative
        that is needed contains a Dirac delta or is not known.
        """
        scalar, x = self.series(e.args[0]), Dummy("x", real=True)
        slopes = [e.func(x).diff(x, j) / factorial(j) for j in range(self.order + 1)]
        if any(y.has(DiracDelta, Derivative) for y in slopes):
            raise NotApplicable(
                f"the function {e}, or a derivative of {e}, jumps or is not known, so that {e} has no "
                "expansion in the inverse depth"
            )
        return self._taylor([y.xreplace({x: scalar[0]}) for y in slopes], scalar)

    def _taylor(self, slopes: Sequence[Expr], scalar: PowerCoefficients) -> PowerCoefficients:
        """Return a function of a series by its derivatives: ``sum_j slopes_j (scalar - scalar_0)^j``.

        ``scalar`` is the list of coefficients of the inner series, ``slopes_j`` the derivative of order j
        over j!.
        """
        moved, total = self.constant(S.One), self.constant(S.Zero)
        for slope in slopes:
            total = self.add(total, [slope * y for y in moved])
            moved = self.mul(moved, [S.Zero, *scalar[1:]])
        return total

    def _given(self, e: AppliedUndef, inner: list[Expr]) -> PowerCoefficients:
        """Return the series of a given function of an unknown one, such as ``dloss(t, f(t))``, in u.

        u is the small power of L. ``inner`` holds the arguments that contain unknown functions; raises
        :class:`NotApplicable` unless this is the last argument alone. The derivatives of the given function
        by it have the prefixes ``d``, ``dd``, ... before its name.
        """
        if len(inner) > 1 or e.args[-1] != inner[0]:
            raise NotApplicable(f"only the last argument of {e} may contain an unknown function")
        scalar = self.series(inner[0])
        places = (*e.args[:-1], scalar[0])
        slopes = [Function(f"{'d' * j}{e.func}")(*places) / factorial(j) for j in range(self.order + 1)]
        return self._taylor(slopes, scalar)

    # -- sums over layers ------------------------------------------------------------------------------------

    def _sum(self, e: Sum | Integral) -> PowerCoefficients:
        """Return the series in the inverse depth of a sum over times, or over the layers k of sources.

        The sum over layers is divided by L and expanded by the formula of Euler and Maclaurin.
        """
        over = [x for x in e.limits if x[0] == k]
        times = [x for x in e.limits if x[0] != k]
        inside = self.series(e.function)
        if over:
            ((_, low, high),) = over
            inside = self._layers(e.function, inside, int(low), int(high - L))
        return tuple(_spread(x, times, e.func) for x in inside) if times else inside

    def _layers(self, body: Expr, f: PowerCoefficients, low: int, high: int) -> PowerCoefficients:
        """Return the series of ``1/L sum over k from low to L + high`` of ``body`` by Euler and Maclaurin.

        ``f`` is the series of ``body``. The result is the integral over ``tau_``, plus terms at both ends,
        plus terms at the layer where functions in ``body`` jump.
        """
        total = [Integral(x, (tau_, S.Zero, S.One)) if x != 0 else S.Zero for x in f]
        # A function of the layer ell + a and of the layer k of its source is on the upper side of the source
        # for k up to ell + a - cuts[n], where n is its name. The next layer k is the first on the lower side.
        firsts = {n: a - self.cuts[n] + 1 for n, a in self._crossing(body, low, high)} if self.order else {}
        ends = self.missed(f, tau_, (S.Zero, low), (S.One, high + 1))
        jumps = self.jump(f, tau_, tau, firsts, (ABOVE, BELOW))
        return self.add(total, ends, jumps)

    def _crossing(self, body: Expr, low: int, high: int) -> list[tuple[str, int]]:
        """Return the pairs (name, a) for the functions of the layers (ell + a, k) in a summand over k.

        Raises :class:`NotApplicable` if a function at an end of the network jumps inside the sum.
        """
        functions = []
        for x in sorted(body.atoms(AppliedUndef), key=str):
            name = str(x.func)
            if self.slots.get(name) != 2 or x.args[1] != k:
                continue
            at, a = place(x.args[0])
            if at == tau:
                functions.append((name, a))
            elif (at == 0 and a - self.cuts[name] >= low) or (at == 1 and a - self.cuts[name] < high):
                raise NotApplicable(
                    f"a sum over the layers k is not expanded in the inverse depth: the sum contains {x}, a "
                    "function of a layer at an end of the network, which jumps within the range of k"
                )
        return functions

    def missed(
        self, f: PowerCoefficients, x: Symbol, lower: tuple[Expr, int] | None, upper: tuple[Expr, int] | None
    ) -> PowerCoefficients:
        """Return 1/L times a sum over layers minus its integral over layer time, the part from the two ends.

        By Euler and Maclaurin it is ``sum over j of L^-(j+1) [B_(j+1)(b) f^(j)(upper) - B_(j+1)(a)
        f^(j)(lower)] / (j+1)!``, where f is the summand as a series and x the layer time that is summed over.
        An end is a pair of layer time and offset (a or b); None leaves out its term.
        """
        total = [S.Zero] * (self.order + 1)
        for j, shift in self.steps(1):
            for m in range(self.order + 1 - shift):
                slope = self.derivatives(f[m], x, j - 1)
                for end, sign in ((upper, 1), (lower, -1)):
                    if end is not None:
                        share = sign * bernoulli(j, sympify(end[1])) / factorial(j)
                        total[m + shift] += share * self.at_layer(slope, x, end[0])
        return tuple(total)

    def jump(
        self,
        f: PowerCoefficients,
        x: Symbol,
        place: Symbol,
        firsts: Mapping[str, int],
        sides: tuple[str, str],
    ) -> PowerCoefficients:
        """Return the terms that the Euler-Maclaurin formula adds where a summand jumps between two layers.

        ``f`` is the series of the summand in the layer time x, and ``place`` is the layer time of the jump.
        ``firsts`` maps each function that jumps to the offset from ``place`` of the first layer on its second
        side; ``sides`` are the suffixes of the first and second side. Layers at which only some of the
        functions have jumped are counted one by one.
        """
        total = [S.Zero] * (self.order + 1)
        if not firsts:
            return tuple(total)
        start, stop = min(firsts.values()), max(firsts.values())

        def at(e: Expr, shift: int) -> Expr:
            """Return ``e`` at the layer time ``place``, in the form for the layer ``shift`` layers after it.

            Each function that jumps is the limit from the side of its jump, above or below the source, on
            which this layer is.
            """
            return self.on_sides(e, {n: sides[shift >= c] for n, c in firsts.items()}, place)

        for j, shift in self.steps(1):
            for m in range(self.order + 1 - shift):
                slope = self.derivatives(f[m], x, j - 1)
                before, after = (bernoulli(j, sympify(y)) / factorial(j) for y in (start, stop))
                total[m + shift] += before * at(slope, start - 1) - after * at(slope, stop)
                for c in range(start, stop):
                    total[m + shift] += c ** (j - 1) / factorial(j - 1) * at(slope, c)
        return tuple(total)

    def at_layer(self, e: Expr, where: Symbol, value: Expr) -> Expr:
        """Return an expression with the layer time ``where`` replaced by ``value``, an end of an integral.

        At an end of the network (0 or 1) a function of two equal layers takes its limit from inside.
        """
        at_end = e.xreplace({where: value})
        if not value.is_number or not self.order:
            return at_end

        def put(x: AppliedUndef) -> Expr:
            name, m, i, j, _ = self.made[str(x.func)]
            return self.value(name, m, (i, j), x.args[:2], x.args[2:], ABOVE if value == 1 else BELOW)

        return at_end.replace(lambda x: self._layered(x) and x.args[:2] == (value, value), put)

    def on_sides(self, e: Expr, sides: Mapping[str, str] | str, place: Expr) -> Expr:
        """Return an expression at ``tau = tau_ = place``, with functions as limits from one side.

        tau and ``tau_`` are the layer times of field and source. ``sides`` is the suffix of the side (above
        or below the source) for all functions, or a mapping from their names.
        """

        def put(x: AppliedUndef) -> Expr:
            name, m, i, j, _ = self.made[str(x.func)]
            side = sides if isinstance(sides, str) else sides[name]
            return self.value(name, m, (i, j), (place,), x.args[2:], side)

        on_side = e.replace(lambda x: self._layered(x) and x.args[:2] == (tau, tau_), put)
        return on_side.xreplace({tau: place, tau_: place})

    def _layered(self, x: Expr) -> bool:
        """Return whether an expression is a coefficient with two layer times, of the field and the source."""
        if not (isinstance(x, AppliedUndef) and str(x.func) in self.made):
            return False
        name, *_, side = self.made[str(x.func)]
        return self.slots[name] == 2 and not side

    # -- derivatives by layer time ---------------------------------------------------------------------------

    def derivatives(self, e: Expr, x: Symbol, times: int) -> Expr:
        """Return the derivative of order ``times`` of a coefficient by the layer time x, tau or ``tau_``."""
        for _ in range(times):
            e = self.derivative(e, x)
        return e

    def derivative(self, e: Expr, x: Symbol) -> Expr:
        """Return the derivative of a coefficient e of a series by the layer time x (tau or ``tau_``).

        At ``tau = tau_`` coefficients jump, and the derivative of the jump is not part of the result. Raises
        NotApplicable for an e that depends on x and has another form than a sum, product or integer power of
        coefficients, or a sum or integral over them.
        """
        if isinstance(e, Sum):
            return _spread(self.derivative(e.function, x), e.limits)
        if isinstance(e, Integral):
            return self._derivative_of_integral(e, x)
        if isinstance(e, Add | Mul) or (isinstance(e, Pow) and e.exp.is_Integer):
            return self._derivative_of_polynomial(e, x)
        if isinstance(e, AppliedUndef) and str(e.func) in self.made:
            return self._derivative_of_function(e, x)
        if e.has(x):
            raise NotApplicable(
                f"no rule gives the derivative of {e} by the layer time {x}, which the expansion in the "
                "inverse depth needs"
            )
        return S.Zero

    def _derivative_of_integral(self, e: Integral, x: Symbol) -> Expr:
        """Return the derivative by the layer time x of an integral over the other layer time.

        The integrand may jump at ``tau = tau_``; this point moves with x, so that the difference of the
        integrand on both sides is added.
        """
        inner = self.derivative(e.function, x)
        total = Integral(inner, *e.limits) if inner != 0 else S.Zero
        if any(self._layered(y) and y.args[:2] == (tau, tau_) for y in e.function.atoms(AppliedUndef)):
            total += self.on_sides(e.function, ABOVE, x) - self.on_sides(e.function, BELOW, x)
        return total

    def _derivative_of_polynomial(self, e: Expr, x: Symbol) -> Expr:
        """Return the derivative by the layer time x of a sum, product or integer power of coefficients."""
        if isinstance(e, Add):
            return Add(*[self.derivative(y, x) for y in e.args])
        if isinstance(e, Pow):
            return e.exp * e.base ** (e.exp - 1) * self.derivative(e.base, x)
        return Add(*[Mul(*e.args[:i], self.derivative(y, x), *e.args[i + 1 :]) for i, y in enumerate(e.args)])

    def _derivative_of_function(self, e: AppliedUndef, x: Symbol) -> Expr:
        """Return the derivative by the layer time x of one coefficient, such as ``first_X(tau, tau_)``.

        It is a sum of two terms if both layer times of the coefficient are x.
        """
        name, m, i, j, side = self.made[str(e.func)]
        places = (2 if self.slots[name] == 2 else 0) if side else self.slots[name]
        layer_times = e.args[:1] * 2 if side else e.args[:places]
        other_arguments = e.args[1 if side else places :]
        slopes = [(i + (n == 0), j + (n == 1)) for n, y in enumerate(layer_times) if y == x]
        return Add(*[self.value(name, m, w, layer_times, other_arguments, side) for w in slopes])


def place(layer: Expr) -> tuple[Expr, int]:
    """Return ``(layer time, offset)`` of a layer: (tau, 2) of ``ell + 2``, (1, -1) of ``L - 1``, (0, 1) of 1.

    The layer time of the layer k of a source is ``tau_``. Raises :class:`NotApplicable` for any other layer.
    """
    base, at = next(((x, y) for x, y in ((ell, tau), (k, tau_), (L, S.One)) if layer.has(x)), (0, S.Zero))
    if not (layer - base).is_Integer:
        raise NotApplicable(
            f"{layer} is in the place of a layer, which must be ell, k or L plus an integer, or an integer: "
            "take the result of derive.depth.cross_layer, divided by its power of the depth with "
            "derive.depth.rescale"
        )
    return at, int(layer - base)


def _spread(e: Expr, limits: Iterable[Expr], kind: type[Expr] = Sum) -> Expr:
    """Return the Sum (or Integral, ``kind``) over ``limits`` of ``e`` as one such sum for each term."""
    return Add(*[kind(x, *limits) for x in Add.make_args(e.expand(deep=False)) if x != 0])


def cuts(rows: list[LayerRecursion], slots: Mapping[str, int]) -> dict[str, int]:
    """Return, for each function of two layers (ell, k), the value of ``ell - k`` at which it may jump.

    For this and larger values the function is on the upper side of its source at layer k. The value is that
    of its own jump, or follows from the functions in its equation; it is 0 for a function that does not jump.
    ``rows`` are the recursions over layers; ``slots`` counts the layer arguments of each function. Raises
    :class:`NotApplicable` if a function jumps neither at the layer where the functions in its equation jump,
    nor one layer below (above, for a recursion towards lower layers).
    """
    offsets: dict[str, int] = {}
    of_two = [e for e in rows if slots[str(e.lhs.func)] == 2]

    def firsts(e: LayerRecursion) -> dict[str, int]:
        return crossings(e.smooth, slots, offsets)

    while len(offsets) < len(of_two):
        before = len(offsets)
        for e in of_two:
            name, at = str(e.lhs.func), e.shift
            if name in offsets:
                continue
            if e.jumps:
                offsets[name] = at - e.jumps[0][1] + (0 if e.direction == 1 else 1)
            elif begun := firsts(e):
                offsets[name] = at + min(begun.values())
        if len(offsets) == before:  # the remaining functions are smooth at ell = k: any offset will do
            offsets |= {n: 0 for e in of_two if (n := str(e.lhs.func)) not in offsets}
    # Each function of two layers must jump where the functions in its equation do, or one layer below (above,
    # for a recursion towards lower layers).
    for e in of_two:
        gaps = {offsets[str(e.lhs.func)] - e.shift - c for c in firsts(e).values()}
        if gaps - ({0, -1} if e.direction == 1 else {0, 1}):
            raise NotApplicable(
                f"the equation of {e.lhs} is not expanded in the inverse depth: {e.lhs} must jump at the "
                "same layer as the functions on the right-hand side, or one layer "
                f"{'below' if e.direction == 1 else 'above'}"
            )
    return offsets


def crossings(added: Iterable[Expr], slots: Mapping[str, int], cuts: Mapping[str, int]) -> dict[str, int]:
    """Return, for each function of (ell + a, k) in the terms ``added``, the ``ell - k`` at which it jumps.

    The result maps names to values. From its value of ``ell - k`` on a function is on the upper side of its
    source at layer k. ``cuts`` has the value for a = 0, and ``slots`` counts layer arguments. For a function
    with several shifts a the lowest value is returned. Functions that are not in ``cuts`` are left out.
    """
    offsets: dict[str, int] = {}
    for e in added:
        for x in e.atoms(AppliedUndef):
            name = str(x.func)
            if slots.get(name) == 2 and x.args[1] == k and name in cuts:
                offset = cuts[name] - int(x.args[0] - ell)
                offsets[name] = min(offsets.get(name, offset), offset)
    return offsets
