"""Recurrences in the layer index: sums of polynomials, and exponential growth ``q^ell``.

``X(ell) = X(ell - 1) + p(ell)`` with a polynomial p is solved by summation (:class:`Layered`).
:class:`Recurrences` solves ``y(ell) = M y(ell + k) + f(ell)`` with k = 1 or -1 and constant M in two cases.
M is a 2x2 matrix with determinant one, whose eigenvalues are q and 1/q; or M is a number that is an integer
power of this q. Values are polynomials in ell and ``q^ell``. A parameter of the matrix is expressed by q, so
that all results are rational in q. Other M raise NotApplicable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise, zip_longest
from math import comb, factorial, gcd, lcm, prod
from operator import add, mul
from typing import Any

from sympy import (
    QQ,
    ZZ,
    Add,
    Dummy,
    Expr,
    Matrix,
    Mul,
    Poly,
    Pow,
    S,
    Symbol,
    cancel,
    factor_terms,
    isprime,
    primorial,
    solve,
    sqrt,
)
from sympy.polys.rings import PolyElement, PolyRing

from derive.calculus.sums import gathered
from derive.calculus.symbols import L, ell
from derive.errors import NotApplicable

# -- functions of the layer --------------------------------------------------------------------------------


class Layered:
    """Ring of functions of the layer ell and the depth L: sums of ``c ell^a L^b r^(i ell + j L)``.

    Each base r of exponential growth is an element of the field of the coefficients c; the integers i and j
    may be negative. Elements of the ring are polynomials in ``ell``, ``r^ell``, ``L``, ``r^L`` and further
    ``symbols``.

    >>> p = Layered()
    >>> p.expr(p.summed(p.of(L * ell), 1, ell))  # L (1 + ... + ell)
    L*ell**2/2 + L*ell/2
    """

    def __init__(self, symbols: Iterable[Symbol] = (), field: Any = QQ, bases: Sequence[Any] = ()) -> None:
        """Set the ring of the elements.

        ``symbols`` are symbols besides ell and L, ``field`` is the field of the coefficients, and ``bases``
        are the numbers r of the exponentials ``r^ell`` and ``r^L``.
        """
        grown = [[Dummy() for _ in bases] for _ in range(2)]
        names = [ell, *grown[0], L, *grown[1], *sorted(set(symbols) - {ell, L}, key=str)]
        self.ring, self.field, self.bases, self.width = PolyRing(names, field), field, bases, 1 + len(bases)
        self.one, self.zero = self.ring.one, self.ring.zero

    def of(self, e: Any) -> PolyElement:
        """Convert an expression in the ring's symbols to an element; raise ValueError if impossible."""
        if isinstance(e, int | PolyElement):
            return self.ring(e)
        return self.ring.from_expr(S(e))

    def expr(self, p: PolyElement) -> Expr:
        """Convert an element of the ring to an expanded SymPy expression.

        Exponentials ``r^ell`` and ``r^L`` are written as dummy symbols.
        """
        return p.as_expr()

    def element(self, terms: Iterable[tuple[tuple[int, ...], Any]]) -> PolyElement:
        """Return the element of the ring with the given terms, pairs of exponents and coefficient.

        Exponents are in the order ell, ``r^ell`` for each base, L, ``r^L`` for each base, further symbols;
        terms with the same exponents are added.
        """
        return self.ring.from_dict(gathered(terms))

    def power(self, exponents: Sequence[int], times: int = 1) -> Any:
        """Return ``(r_1^i_1 r_2^i_2 ...)^times`` for the bases r and the ``exponents`` i."""
        product = self.field.one
        for r, i in zip(self.bases, exponents, strict=True):
            product *= r ** (i * times)
        return product

    def moved(self, p: PolyElement, layer: Any) -> PolyElement:
        """Return a function of the layer at another layer: ``layer`` in place of ell in ``p``.

        ``layer`` is ``ell + n``, ``L + n`` or an integer n. Raises NotApplicable for any other layer.
        """
        by, place = S(layer).as_coeff_Add()
        if place not in (ell, L, 0) or not by.is_Integer:
            raise NotApplicable(f"{layer} is not a layer: must be ell + n, L + n or n with an integer n")
        n, w = int(by), self.width
        if place == ell and n == 0:
            return p
        terms = []
        for (a, *rest), c in p.terms():
            exponents, last = rest[: w - 1], rest[w - 1 : 2 * w - 1]
            front = c * self.power(exponents, n)
            for k in range(a + 1) if place != 0 else [0]:
                here = (k, *exponents) if place != 0 else (0,) * w
                there = last if place == ell else map(sum, zip(here, last, strict=True))
                stays = here if place == ell else (0,) * w
                terms.append(((*stays, *there, *rest[2 * w - 1 :]), front * (comb(a, k) * n ** (a - k))))
        return self.element(terms)

    def solved(
        self, known: PolyElement, exponents: Sequence[int], step: int, layer: Any, value: PolyElement
    ) -> PolyElement:
        """Solve ``X(ell) = m X(ell + step) + known(ell)`` with ``X = value`` at a layer ``L + n`` or n.

        ``step`` is 1 or -1. The factor m is ``r_1^i_1 r_2^i_2 ...`` for the bases r and the ``exponents`` i.
        The particular solution is a polynomial times ``rho^ell`` for each term ``c ell^a rho^ell``; the
        homogeneous solution is a multiple of ``m^(-step (ell - layer))``.
        """
        one, w, m = self.field.one, self.width, self.power(exponents)
        particular = self.element(
            ((n, *rest), c * y)
            for (a, *rest), c in known.terms()
            for n, y in enumerate(telescoped(a, step, m * self.power(rest[: w - 1], step), one))
        )
        by, place = S(layer).as_coeff_Add()
        free = [-step * i for i in exponents]
        back = [-i if place == L else 0 for i in free]
        rest = (value - self.moved(particular, layer)) * self.power(free, -int(by))
        others = (0,) * (self.ring.ngens - 2 * w)
        return particular + rest.mul_term(((0, *free, 0, *back, *others), one))

    def summed(self, p: PolyElement, lower: Any, upper: Any) -> PolyElement:
        """Return the sum over the layers k from ``lower`` to ``upper`` of ``p(k)``, in closed form.

        If ``upper`` is below ``lower - 1``, it is minus the sum from ``upper + 1`` to ``lower - 1``.
        """
        total = self.solved(p, (0,) * len(self.bases), -1, 0, self.zero)
        return self.moved(total, upper) - self.moved(total, S(lower) - 1)


class GridTooSmall(ArithmeticError):
    """Raised if the degree of a polynomial exceeds that of the grid on which its values are stored."""


class Sampled:
    """Polynomial in the layer ell and the depth L, stored by its values at integers (:class:`ValueGrid`).

    Equal polynomials are one object, so that sums and products of the same two are computed once. ``degree``
    bounds the total degree.
    """

    __slots__ = ("degree", "grid", "products", "sums", "values")

    def __init__(self, grid: ValueGrid, values: tuple[Any, ...], degree: int) -> None:
        """Store a polynomial in ell and L by its ``values`` at all integer pairs of the grid, and its degree.

        The values at ell = 0, 1, ... for L = 0 come first, then those for L = 1, and so on. ``degree`` is an
        upper bound of the total degree.
        """
        self.grid, self.values, self.degree = grid, values, degree
        self.sums: dict[Sampled, Sampled] = {}
        self.products: dict[Sampled, Sampled] = {}

    def __bool__(self) -> bool:
        return self is not self.grid.zero

    def __add__(self, other: Sampled) -> Sampled:
        total = self.sums.get(other)
        if total is None:
            values, degree = map(add, self.values, other.values), max(self.degree, other.degree)
            total = self.sums[other] = other.sums[self] = self.grid.element(values, degree)
        return total

    def __mul__(self, other: Sampled) -> Sampled:
        product = self.products.get(other)
        if product is None:
            values, degree = map(mul, self.values, other.values), self.degree + other.degree
            product = self.products[other] = other.products[self] = self.grid.element(values, degree)
        return product


class ValueGrid:
    """Ring of polynomials in ell and L up to a total degree, stored by their values at 0, ..., degree.

    Results agree with those of :class:`Layered` without growth and are much faster: products are taken point
    by point, a sum over layers is a cumulative sum, and most values at integers are integers. Each element
    carries a bound on its degree; operations raise :class:`GridTooSmall` if it exceeds that of the grid.

    >>> p = ValueGrid(4)
    >>> p.expr(p.summed(p.of(L * ell), 1, ell))
    L*ell**2/2 + L*ell/2
    """

    def __init__(self, degree: int, symbols: Iterable[Symbol] = ()) -> None:
        """Set the largest total degree of the polynomials in ell and L.

        ``symbols`` are further symbols that may occur in their coefficients.
        """
        self.degree, self.count, self.layered = degree, degree + 1, Layered(symbols)
        self.known: dict[Any, Any] = {}
        self.zero: Any = None
        self.zero, self.one = self.of(0), self.of(1)

    def element(self, values: Iterable[Any], degree: int) -> Sampled:
        """Return the polynomial with given values at all points of the grid, one object for equal values.

        ``values`` are in the order of :class:`Sampled`. ``degree`` is an upper bound of its total degree.
        Raises GridTooSmall if it exceeds that of the grid.
        """
        if degree > self.degree:
            raise GridTooSmall
        values = tuple(values)
        element = self.known.get(values)
        if element is None:
            element = self.known[values] = Sampled(self, values, degree)
        element.degree = min(element.degree, degree)
        return element

    def of(self, e: Any) -> Sampled:
        """Convert an expression in ell, L and the further symbols to its values on the grid.

        Raises ValueError if it is not a polynomial with rational coefficients, GridTooSmall if its degree in
        ell and L exceeds that of the grid.
        """
        ring, (x, y) = self.layered.ring, (self.layered.ring.gens[0], self.layered.ring.gens[1])
        p = self.layered.of(e)
        if p.is_ground:
            return self.element([_whole(p.LC)] * self.count**2, 0)
        degree = max(a + b for a, b, *_ in p.monoms())
        points = ((ring(i), ring(j)) for j in range(self.count) for i in range(self.count))
        values = (p.compose([(x, i), (y, j)]) for i, j in points)
        return self.element((_whole(v.LC) if v.is_ground else v for v in values), degree)

    def rows(self, p: Sampled) -> list[tuple[Any, ...]]:
        """Return the values of ``p`` as one tuple for each depth L = 0, ..., degree.

        A tuple has the values at all layers ell = 0, ..., degree.
        """
        return [p.values[k : k + self.count] for k in range(0, self.count**2, self.count)]

    def at(self, row: Sequence[Any], layer: int) -> Any:
        """Return the value at an integer ``layer`` of a polynomial with values ``row`` at 0, ..., degree."""
        if 0 <= layer <= self.degree:
            return row[layer]
        return sum(map(mul, self.weights(layer), row))

    def weights(self, at: int) -> tuple[int, ...]:
        """Return Lagrange weights: a polynomial's value at the integer ``at`` from those at 0, ..., degree.

        The value at ``at`` is the sum over 0, ..., degree of weight times value there.
        """
        if ("weights", at) not in self.known:
            points = range(self.degree + 1)
            ratios = (
                prod((Fraction(at - j, i - j) for j in points if j != i), start=Fraction(1)) for i in points
            )
            self.known["weights", at] = tuple(map(int, ratios))
        return self.known["weights", at]  # type: ignore[no-any-return]

    def moved(self, p: Sampled, layer: Any) -> Sampled:
        """Return a function of the layer at another layer: ``layer`` in place of ell in ``p``.

        ``layer`` is ``ell + n``, ``L + n`` or an integer n. Raises NotApplicable for any other layer.
        """
        if layer == ell or (p, layer) in self.known:
            return p if layer == ell else self.known[p, layer]
        by, place = S(layer).as_coeff_Add()
        if place not in (ell, L, 0) or not by.is_Integer:
            raise NotApplicable(f"{layer} is not a layer: must be ell + n, L + n or n with an integer n")
        n, values = int(by), []
        for depth, row in enumerate(self.rows(p)):
            if place == ell:
                values += [self.at(row, k + n) for k in range(self.count)]
            else:
                values += [self.at(row, n + (depth if place == L else 0))] * self.count
        moved = self.known[p, layer] = self.element(values, p.degree)
        return moved

    def summed(self, p: Sampled, lower: Any, upper: Any) -> Sampled:
        """Return the sum over the layers k from ``lower`` to ``upper`` of ``p(k)``, p a polynomial in ell."""
        if (p, None) not in self.known:
            values = (x for row in self.rows(p) for x in accumulate(row[1:], initial=0))
            self.known[p, None] = self.element(values, p.degree + 1)
        total = self.known[p, None]
        return self.moved(total, upper) + self.of(-1) * self.moved(total, S(lower) - 1)

    def polynomial(self, p: Sampled) -> PolyElement:
        """Convert a polynomial that is stored by its values to coefficients, by Newton's interpolation.

        With the differences ``c_ab`` at 0 it is ``sum_ab c_ab binomial(ell, a) binomial(L, b)``. The result
        is an element of the ring :attr:`layered`.
        """
        if ("polynomial", p) not in self.known:
            d = p.degree
            lines = [_differences(row[: d + 1 - k]) for k, row in enumerate(self.rows(p)[: d + 1])]
            newton = [_differences([x[a] for x in lines[: d + 1 - a]]) for a in range(d + 1)]
            whole = [
                [c * (factorial(d) // (factorial(a) * factorial(b))) for b, c in enumerate(x)]
                for a, x in enumerate(newton)
            ]
            in_depth = [_powers(x) for x in whole]
            both = [_powers([x[b] for x in in_depth[: d + 1 - b]]) for b in range(d + 1)]
            coefficients = {
                (a, b, *others): c
                for b, x in enumerate(both)
                for a, value in enumerate(x)
                if value
                for others, c in self.others(value, factorial(d))
            }
            self.known["polynomial", p] = self.layered.ring.from_dict(coefficients)
        return self.known["polynomial", p]

    def others(self, value: Any, below: int) -> Iterable[tuple[tuple[int, ...], Any]]:
        """Return ``value / below`` as pairs (exponents of the symbols besides ell and L, coefficient).

        ``value`` is a number or a polynomial of these symbols, and ``below`` an integer.
        """
        if isinstance(value, PolyElement):
            return ((powers[2:], c / below) for powers, c in value.terms())
        ratio = QQ(value, below) if isinstance(value, int) else value / below
        return [((0,) * (self.layered.ring.ngens - 2), ratio)]

    def expr(self, p: Sampled) -> Expr:
        """Convert a polynomial that is stored by its values to an expanded SymPy expression in ell and L."""
        return self.layered.expr(self.polynomial(p))


def _whole(c: Any) -> Any:
    """Return a number as an int if it is a rational number that is an integer, else unchanged."""
    return int(c) if c.denominator == 1 else c


def _differences(values: Sequence[Any]) -> list[Any]:
    """Return the forward differences f(0), f(1) - f(0), ... at 0 from the values f(0), f(1), ...."""
    differences, remaining = [], list(values)
    while remaining:
        differences.append(remaining[0])
        remaining = [b - a for a, b in pairwise(remaining)]
    return differences


def _powers(newton: Sequence[Any]) -> list[Any]:
    """Return the coefficients of ``x**k`` in ``sum_k c_k x (x - 1) ... (x - k + 1)``, c = ``newton``."""
    coefficients = list(newton)
    for k in reversed(range(len(coefficients) - 1)):
        for i in range(k, len(coefficients) - 1):
            coefficients[i] -= k * coefficients[i + 1]
    return coefficients


def factored(e: Expr) -> Expr:
    """Return a polynomial as a product of its factors.

    >>> factored(L**2 / 2 + L / 2)
    L*(L + 1)/2
    """
    number, powers = prime_factors(e)
    value = Mul(*[f.as_expr() ** power for f, power in powers])
    # SymPy multiplies out a rational number times a sum: 2*(L + 1) becomes 2*L + 2. `factor_terms` takes the
    # number out again.
    return factor_terms(number * value) if value.is_Add else number * value


def prime_factors(e: Expr | PolyElement) -> tuple[Expr, tuple[tuple[Any, int], ...]]:
    """Return a constant factor, and pairs of the irreducible polynomials in ``e`` and their powers.

    If all coefficients are rational, the polynomials are elements of a ring, and the first coefficient of
    each is positive; otherwise they are ``Poly`` objects.

    >>> prime_factors(L * ell / 2 - L**2 / 2)
    (-1/2, ((L, 1), (L - ell, 1)))
    """
    if not isinstance(e, PolyElement):
        if not e.free_symbols:
            return e, ()
        p = Poly(e, *sorted(e.free_symbols, key=str))
        if not p.domain.is_QQ and not p.domain.is_ZZ:
            number, parts = p.factor_list()
            return number, tuple(parts)
        e = PolyRing(p.gens, QQ).from_dict({k: QQ.from_sympy(c) for k, c in p.terms()})
    used = [k for k, powers in enumerate(zip(*e.monoms(), strict=True)) if any(powers)]
    if not used:
        return QQ.to_sympy(e.LC), ()
    used.sort(key=lambda k: str(e.ring.symbols[k]))
    denominator = lcm(*[int(c.denominator) for c in e.coeffs()])
    ring = PolyRing([e.ring.symbols[k] for k in used], ZZ)
    whole = ((m, int(c.numerator) * (denominator // int(c.denominator))) for m, c in e.terms())
    p, lines = _without_lines(ring.from_dict({tuple(m[k] for k in used): c for m, c in whole}))
    content, p = p.primitive()
    number = QQ.to_sympy(QQ(content if p.LC > 0 else -content, denominator))
    multiplicities = Counter(lines)
    if not p.is_ground:
        p = p if p.LC > 0 else -p
        multiplicities.update([p] if _is_irreducible(p) else dict(p.factor_list()[1]))
    return number, tuple(multiplicities.items())


LINES = 12
"""Largest |k| of factors ``x + k`` and ``x - y + k`` that are divided out before a polynomial is factored.

Sums over layers have many of them."""


def _without_lines(p: PolyElement) -> tuple[PolyElement, list[PolyElement]]:
    """Divide a polynomial by its factors ``x + k`` and ``x - y + k``; return (quotient, factors).

    x and y are variables and k integers from -12 to 12. The quotient is factored much faster. A factor
    is tried if p vanishes at a point where the factor is zero and where other factors rarely are, and is
    accepted if the division leaves no remainder.
    """
    lines, ring = [], p.ring
    at = [10007 + 101 * n for n in range(ring.ngens)]
    for i in range(ring.ngens):
        values = _along(p, i, at)
        for j in range(i, ring.ngens):
            x, place = (ring.gens[i] - ring.gens[j], at[j]) if j > i else (ring.gens[i], 0)
            for k in range(-LINES, LINES + 1):
                while len(values) > 1 and not _horner(values, place - k):
                    quotient = _quotient(p, i, j, k)
                    if quotient is None:
                        break
                    p, values = quotient, _divided(values, place - k)
                    lines.append(x + k)
    return p, lines


def _quotient(p: PolyElement, i: int, j: int, k: int) -> PolyElement | None:
    """Return ``p`` divided by ``x_i - x_j + k`` for j > i, or by ``x_i + k`` for j = i, by Horner's rule.

    The result is None if there is a remainder.
    """
    rows: list[dict[tuple[int, ...], int]] = [{} for _ in range(p.degree(i) + 1)]
    for powers, c in p.terms():
        rows[powers[i]][(*powers[:i], 0, *powers[i + 1 :])] = c
    for m in reversed(range(len(rows) - 1)):
        row = rows[m]
        for powers, c in rows[m + 1].items():
            row[powers] = row.get(powers, 0) - k * c
            if j > i:
                more = (*powers[:j], powers[j] + 1, *powers[j + 1 :])
                row[more] = row.get(more, 0) + c
    remainder, *quotient = rows
    if any(remainder.values()):
        return None
    numbered_rows = enumerate(quotient)
    return p.ring.from_dict(
        {(*w[:i], m, *w[i + 1 :]): c for m, row in numbered_rows for w, c in row.items() if c}
    )


def _along(p: PolyElement, i: int, at: Sequence[int]) -> list[int]:
    """Return the coefficients of a polynomial ``p`` in variable number ``i``, highest power first.

    Each other variable j has the value ``at[j]``.
    """
    coefficients = [0] * (p.degree(i) + 1)
    for powers, c in p.terms():
        others = (x**m for j, (x, m) in enumerate(zip(at, powers, strict=True)) if j != i)
        coefficients[-1 - powers[i]] += int(c) * prod(others)
    return coefficients


def _horner(coefficients: Iterable[int], at: int) -> int:
    """Return the value at ``at`` of a polynomial with coefficients in decreasing order of powers."""
    value = 0
    for c in coefficients:
        value = value * at + c
    return value


def _divided(coefficients: Iterable[int], root: int) -> list[int]:
    """Return the coefficients, highest power first, of a polynomial divided by ``x - root``."""
    *quotient, _ = accumulate(coefficients, lambda v, c: v * root + c)
    return quotient


SMALL = int(primorial(300, nth=False))
"""The product of the primes up to 300; they are divided out of values before a test for primes."""
ROOM, TRIES = 10**3, 100
"""Numbers in the proof that a polynomial is irreducible (see below).

They are the largest divisor of a value beside a prime, and the number of integers that are tried."""


def _is_irreducible(p: PolyElement) -> bool:
    """Return True if values on a line prove a primitive polynomial irreducible; False proves nothing.

    The line must be one on which the polynomial keeps its degree.
    """
    return any(_is_irreducible_along(u) for n in range(4) if (u := _on_line(p, n))[-1])


def _on_line(p: PolyElement, n: int) -> list[int]:
    """Return the coefficients, by powers of t, of a polynomial along a line in the space of its variables.

    Variable number k is ``(2 k + 3 + n (k + 2)) t + 97 k``, so that n selects one of several lines. Lines
    through small integers are avoided, because sums over layers vanish there although their factors do not.
    """
    rows_left = {powers: [int(c)] for powers, c in p.terms()}
    for k in reversed(range(p.ring.ngens)):
        rows: dict[tuple[int, ...], dict[int, list[int]]] = {}
        for powers, c in rows_left.items():
            rows.setdefault(powers[:k], {})[powers[k]] = c
        rows_left = {rest: _composed(row, 2 * k + 3 + n * (k + 2), 97 * k) for rest, row in rows.items()}
    return rows_left[()]


def _composed(row: Mapping[int, Sequence[int]], a: int, b: int) -> list[int]:
    """Return the coefficients, by powers of t, of ``sum over m of row[m](t) (a t + b)^m``.

    ``row[m]`` are the coefficients of a polynomial in t.
    """
    value: list[int] = []
    for m in range(max(row), -1, -1):
        value = [b * x + a * y for x, y in zip([*value, 0], [0, *value], strict=True)]
        value = [x + y for x, y in zip_longest(value, row.get(m, ()), fillvalue=0)]
    return value


def _is_irreducible_along(u: Sequence[int]) -> bool:
    """Return True if values prove a polynomial in one variable irreducible; False proves nothing.

    ``u`` are the coefficients u_k in increasing order of powers. Let all roots be below H, where ``|u_n| H^n
    > sum_(k<n) |u_k| H^k``. If the value at an integer beyond H + d is d times a prime that does not divide
    d, then one of two factors has a value that divides d, but both are larger than d there (Girstmair 2005).
    Integers at which small primes do not divide u are tried.
    """
    u = tuple(reversed(u))
    # `always` is the greatest common divisor of the values of the polynomial with the coefficients u at all
    # integers. The values at 0, 1, .., len(u) - 1 determine it, because each further value is a linear
    # combination of these values with integer coefficients.
    always = gcd(*[_horner(u, at) for at in range(len(u))])
    first, *others, bound = abs(u[0]), *(-abs(c) for c in u[1:]), 1
    while _horner((first, *others), bound) <= 0:
        bound *= 2
    at, step = 0, 1
    for small in (2, 3, 5, 7, 11, 13):
        free = next((x for x in range(at, at + small * step, step) if _horner(u, x) % small), None)
        if free is not None:
            at, step = free, step * small
    beyond = bound + ROOM * always + 1
    beyond += (at - beyond) % step
    for at in range(beyond, beyond + TRIES * step, step):
        value = rest = abs(_horner(u, at)) // always
        while (small := gcd(rest, SMALL)) > 1:
            rest //= small
        if value <= ROOM * rest and pow(2, rest - 1, rest) == 1 and isprime(rest):
            return True
    return False


def particular(power: int, gap: Any, moved: Callable[[int, int], Any], one: Any) -> list[Any]:
    """Return the coefficients of a polynomial p(n) with ``A p = n**power``, for a linear map A.

    A takes ``n**i`` to ``gap n**i`` plus ``moved(i, j) n**j`` for each lower degree j. Coefficients are in
    any field with unit ``one``, in increasing order of powers. If ``gap`` is zero (resonance), p has one
    degree more.
    """
    zero, resonant = one - one, int(not gap)
    coefficients = [zero] * (power + 2)
    for j in reversed(range(power + 1)):
        remainder = one if j == power else zero
        for i in range(j + 1 + resonant, power + 2):
            remainder -= coefficients[i] * moved(i, j)
        coefficients[j + resonant] = remainder / (moved(j + 1, j) if resonant else gap)
    return coefficients


def telescoped(power: int, step: int, ratio: Any, one: Any) -> list[Any]:
    """Return the coefficients of a polynomial p with ``p(n) - ratio p(n + step) = n**power``.

    They are in increasing order of powers, and elements of the field of ``ratio``, whose unit is ``one``. For
    ``ratio`` one, p has the degree ``power + 1``.

    >>> telescoped(1, -1, QQ(1), QQ(1)), telescoped(1, 1, QQ(1, 2), QQ(1))
    ([MPQ(0,1), MPQ(1,2), MPQ(1,2)], [MPQ(2,1), MPQ(2,1), MPQ(0,1)])
    """
    return particular(power, one - ratio, lambda i, j: -ratio * (comb(i, j) * step ** (i - j)), one)


# -- growth from layer to layer ------------------------------------------------------------------------------

q = Symbol("q")
"""Factor by which responses grow from layer to layer: an eigenvalue of a pair of recurrences."""
Z, Z_L = Dummy("Z"), Dummy("Z_L")
"""``q^ell`` and ``q^L``."""
MOVING = (ell, L, Z, Z_L)
"""Variables of the polynomials that solve recurrences; Z and Z_L also have negative powers."""


class Recurrences:
    """Solver of linear recurrences over the layer ell, one after the other, in powers of ell and q^ell.

    The first pair of coupled recurrences defines q, an eigenvalue of its matrix, whose determinant must be
    one. ``parameter`` is then a pair (symbol, expression): a symbol in the matrix, and its value in terms of
    q, which replaces it in all results. ``root`` is q in terms of this symbol. Both are None before.
    """

    def __init__(self) -> None:
        """Start without a definition of the eigenvalue q."""
        self.parameter: tuple[Symbol, Expr] | None = None
        self.root: Expr | None = None

    def settled(self, e: Expr) -> Expr:
        """Return ``e`` as a sum of products of ell, L, q^ell and q^L, with simplified coefficients.

        q is the eigenvalue of the recurrences; the symbol of ``parameter`` is replaced by its expression in
        q.
        """
        e = e.xreplace(dict([self.parameter])) if self.parameter else e
        if not e.has(*MOVING):
            return cancel(e)
        return Add(*[cancel(c) * x for x, c in _apart(e).items()])

    def solve(self, M: Matrix, f: Sequence[Expr], k: int, start: Sequence[Expr], at: Expr) -> list[Expr]:
        """Solve ``y(ell) = M y(ell + k) + f(ell)`` with y = ``start`` at one layer; k is 1 or -1.

        ``M`` has shape (n, n) with n = 1 or 2; ``f`` and ``start`` have length n. ``at`` is the pair of
        values of ell and of ``Z = q^ell`` at this layer. Raises :class:`NotApplicable` for larger systems,
        for an M that depends on the layer or that :meth:`diagonal` or (n = 1) :meth:`scalar` refuses, and
        for an f that is not a sum of terms ``c ell^a Z^b``.
        """
        if M.has(ell, Z):
            raise NotApplicable(
                "the coefficients of the recurrence depend on the layer; only recurrences with constant "
                "coefficients are solved"
            )
        if len(f) == 1:
            return [self.scalar(M[0], f[0], k, start[0], at)]
        if len(f) != 2:
            raise NotApplicable(
                f"{len(f)} coupled order parameters in the recurrence over layers; at most 2 are solved"
            )
        self.diagonal(M)
        M, f, start = M.applyfunc(self.settled), [*map(self.settled, f)], [*map(self.settled, start)]
        rows = [self.left(M, value) for value in (q, 1 / q)]
        solved = [
            self.scalar(value, _dot(w, f), k, _dot(w, start), at)
            for w, value in zip(rows, (q, 1 / q), strict=True)
        ]
        back = Matrix(rows).inv().applyfunc(cancel)
        return [self.settled(x) for x in back * Matrix(solved)]

    def diagonal(self, M: Matrix) -> None:
        """Define q such that q and 1/q are the eigenvalues of M, or check this for the q defined before.

        Raise :class:`NotApplicable` if the determinant of M is not 1, if its trace is not linear in a symbol,
        or if q was defined with other eigenvalues.
        """
        if self.settled(M.det()) != 1:
            raise NotApplicable(
                "the matrix of a pair of coupled recurrences over layers must have the determinant 1, so "
                "that its eigenvalues are q and 1/q"
            )
        trace = M.trace()
        if self.parameter is None:
            relation = (q**2 - trace * q + 1).expand()
            free = sorted(trace.free_symbols, key=str)
            linear = [x for x in free if trace.is_polynomial(x) and Poly(trace, x).degree() == 1]
            if not linear:
                raise NotApplicable(
                    f"the trace {trace} of the matrix of a pair of coupled recurrences over layers is not "
                    "linear in any symbol, so that no symbol is expressed by the eigenvalue q of the matrix"
                )
            self.parameter = (linear[0], cancel(solve(relation, linear[0])[0]))
            half = trace / 2
            self.root = (half + sqrt((half**2 - 1).factor())).expand()
        elif cancel(self.settled(trace) - q - 1 / q) != 0:
            raise NotApplicable(
                "two pairs of recurrences over layers have different eigenvalues; only one pair of "
                "eigenvalues q and 1/q is supported"
            )

    @staticmethod
    def left(M: Matrix, value: Expr) -> list[Expr]:
        """Return a left eigenvector of the 2x2 matrix M for the eigenvalue ``value``."""
        a, b, c, d = M
        return [c, cancel(value - a)] if c != 0 else [cancel(value - d), b]

    def scalar(self, m: Expr, f: Expr, k: int, start: Expr, at: Expr) -> Expr:
        """Solve ``y(ell) = m y(ell + k) + f(ell)`` with y = ``start`` at one layer; m is a power of q.

        k is 1 or -1, and ``at`` is the pair of values of ell and of ``Z = q^ell`` at this layer. Raises
        :class:`NotApplicable` for any other m, and for an f that is not a sum of terms ``c ell^a Z^b``.
        """
        m = self.settled(m)
        step = _power(m)
        value = S.Zero
        for (a, b), c in _monomials(self.settled(f)).items():
            # In y(ell) = m y(ell + k) + f(ell) with m = q^step, Z = q^ell and y = p(ell) Z^b, the term m
            # y(ell + k) is q^(step + b k) Z^b p(ell + k). After division by Z^b, p(ell + k) has the factor
            # q^gap with gap = step + b k.
            gap = step + b * k
            value += c * self.particular(a, k, gap) * Z**b
        free = Z ** S(-step // k)
        here = dict(zip((ell, Z), at, strict=True))
        gap = self.settled(start) - value.xreplace(here)
        return self.settled(value + gap / free.xreplace(here) * free)

    @staticmethod
    def particular(a: int, k: int, gap: int) -> Expr:
        """Return a polynomial p(ell) that solves ``p(ell) - q^gap p(ell + k) = ell^a``; k is 1 or -1."""
        return Add(*[cancel(c) * ell**i for i, c in enumerate(telescoped(a, k, q**gap, S.One))])


def _power(m: Expr) -> int:
    """Return the exponent j with ``m = q^j``; raise :class:`NotApplicable` for any other m."""
    if m == 1:
        return 0
    base, exponent = m.as_base_exp()
    if base != q or not exponent.is_Integer:
        raise NotApplicable(
            f"a recurrence over layers multiplies by {m} in each layer; closed forms are derived for the "
            "factor 1 and for integer powers of q, where q and 1/q are the eigenvalues of a pair of "
            "coupled recurrences"
        )
    return int(exponent)


def _monomials(f: Expr) -> dict[tuple[int, int], Expr]:
    """Return the coefficients of ``ell^a q^(b ell)`` in ``f``, with keys (a, b); Z stands for q^ell.

    b may be negative. Raises NotApplicable if ``f`` has another form.
    """
    coefficients: dict[tuple[int, int], Expr] = {}
    for moving, fixed in _apart(f).items():
        constant, powers_part = moving.as_independent(ell, Z, as_Add=False)
        powers = powers_part.as_powers_dict()
        whole = all(x.is_Integer for x in powers.values()) and powers.get(ell, S.Zero) >= 0
        if not set(powers) <= {S.One, ell, Z} or not whole:
            raise NotApplicable(
                f"the source of a recurrence over layers contains {moving}, which is not a product of "
                "ell**a and Z**b with an integer a >= 0 and an integer b; Z, which is printed as _Z, is "
                "q**ell"
            )
        key = int(powers.get(ell, 0)), int(powers.get(Z, 0))
        coefficients[key] = coefficients.get(key, S.Zero) + fixed * constant
    return coefficients


def _apart(e: Expr) -> dict[Expr, Expr]:
    """Return the coefficients of an expression by products of powers of ell, L, Z and Z_L.

    Z stands for q^ell and Z_L for q^L.
    """
    if e == 0:
        return {}
    # Symbols stand for the inverses of Z = q^ell and Z_L = q^L, because SymPy would multiply out
    # denominators: 1/(Z*(q - 1)) would become 1/(q*Z - Z).
    inverse = {x: Dummy() for x in (Z, Z_L)}
    powers = [x for x in e.atoms(Pow) if x.base in inverse and x.exp.is_negative]
    named = e.xreplace({x: inverse[x.base] ** -x.exp for x in powers})
    meant = {y: 1 / x for x, y in inverse.items()}
    parts: dict[Expr, Expr] = {}
    for term in Add.make_args(named.expand()):
        fixed, moving = term.as_independent(*MOVING, *meant, as_Add=False)
        moving = moving.xreplace(meant)
        parts[moving] = parts.get(moving, S.Zero) + fixed
    return parts


def _dot(w: Sequence[Expr], f: Sequence[Expr]) -> Expr:
    """Return the scalar product of two vectors."""
    return sum((x * y for x, y in zip(w, f, strict=True)), S.Zero)
