"""Recurrences in the layer: sums of polynomials, and growth ``q^ell``.

``X(ell) = X(ell - 1) + p(ell)`` with a polynomial p is solved by its sum (:class:`Layered`), and
``y(ell) = M y(ell + k) + f(ell)`` with constant M by :class:`Recurrences`: values are polynomials in ell and
in ``q^ell``, where q is an eigenvalue of M that the recurrences introduce.  A pair of recurrences with
determinant one has eigenvalues q and 1/q; the parameter that they depend on is then written in terms of q, so
that all that follows is rational in q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import comb
from typing import Any

from sympy import QQ, Add, Dummy, Expr, Matrix, Poly, Pow, S, Symbol, cancel, factor_terms, solve, sqrt
from sympy.polys.rings import PolyElement, PolyRing

from derive.calculus.sums import gathered
from derive.calculus.symbols import L, ell
from derive.errors import NotApplicable

# -- functions of the layer --------------------------------------------------------------------------------


class Layered:
    """Sums of ``c ell^a L^b r^(i ell + j L) ...``, r being ``bases`` in the field of the coefficients c.

    They are polynomials in ``ell``, ``r^ell``, ``L``, ``r^L`` and further ``symbols``, powers of either sign.

    >>> p = Layered()
    >>> p.expr(p.summed(p.of(L * ell), 1, ell))  # L (1 + ... + ell)
    L*ell**2/2 + L*ell/2
    """

    def __init__(self, symbols: Iterable[Symbol] = (), field: Any = QQ, bases: Sequence[Any] = ()) -> None:
        grown = [[Dummy() for _ in bases] for _ in range(2)]
        names = [ell, *grown[0], L, *grown[1], *sorted(set(symbols) - {ell, L}, key=str)]
        self.ring, self.field, self.bases, self.width = PolyRing(names, field), field, bases, 1 + len(bases)
        self.one, self.zero = self.ring.one, self.ring.zero

    def of(self, e: Any) -> PolyElement:
        """``e`` as an element.  Raises ValueError if it is no polynomial with rational coefficients."""
        if isinstance(e, int | PolyElement):
            return self.ring(e)
        return self.ring.from_expr(S(e))

    def expr(self, p: PolyElement) -> Expr:
        """An element as a SymPy expression, expanded."""
        return p.as_expr()

    def element(self, terms: Iterable[tuple[tuple[int, ...], Any]]) -> PolyElement:
        """A sum of terms, each by its powers."""
        return self.ring.from_dict(gathered(terms))

    def power(self, exponents: Sequence[int], times: int = 1) -> Any:
        """``(r^i ...)^times``."""
        found = self.field.one
        for r, i in zip(self.bases, exponents, strict=True):
            found *= r ** (i * times)
        return found

    def moved(self, p: PolyElement, layer: Any) -> PolyElement:
        """``p`` at a layer ``ell + n``, ``L + n`` or a number."""
        by, place = S(layer).as_coeff_Add()
        n, w = int(by), self.width
        if place not in (ell, L, 0):
            raise NotApplicable(f"{layer} is no layer: it must be ell or L and a number, or a number")
        if place == ell and n == 0:
            return p
        found = []
        for (a, *rest), c in p.terms():
            own, last = rest[: w - 1], rest[w - 1 : 2 * w - 1]
            front = c * self.power(own, n)
            for k in range(a + 1) if place != 0 else [0]:
                here = (k, *own) if place != 0 else (0,) * w
                there = last if place == ell else map(sum, zip(here, last, strict=True))
                stays = here if place == ell else (0,) * w
                found.append(((*stays, *there, *rest[2 * w - 1 :]), front * (comb(a, k) * n ** (a - k))))
        return self.element(found)

    def solved(
        self, known: PolyElement, exponents: Sequence[int], step: int, layer: Any, value: PolyElement
    ) -> PolyElement:
        """The ``X(ell) = r^i ... X(ell + step) + known(ell)`` that is ``value`` at a layer ``L + n`` or n.

        For each ``c ell^a rho^ell`` a polynomial times ``rho^ell``; the rest is a multiple of
        ``(r^i ...)^(-step (ell - layer))``.
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
        """The sum of ``p(k)`` over the layers k from ``lower`` to ``upper``."""
        total = self.solved(p, (0,) * len(self.bases), -1, 0, self.zero)
        return self.moved(total, upper) - self.moved(total, S(lower) - 1)


@lru_cache(maxsize=10_000)
def factored(e: Expr) -> Expr:
    """A polynomial as a product of its factors.

    >>> factored(L**2 / 2 + L / 2)
    L*(L + 1)/2
    """
    if not e.free_symbols:
        return e
    symbols = sorted(e.free_symbols, key=str)
    rest, value = _without_lines(Poly(e, *symbols), symbols)
    number, factors = rest.factor_list()
    # the number is kept outside: a rational times a single sum would be multiplied out
    for f, power in factors:
        value *= f.as_expr() ** power
    return factor_terms(number * value) if value.is_Add else number * value


LINES = 12
"""Factors ``x + k`` and ``x - y + k`` are divided out for whole k up to this: sums over layers have many."""


def _without_lines(p: Poly, symbols: list[Symbol]) -> tuple[Poly, Expr]:
    """``p`` without its factors ``x + k`` and ``x - y + k``, and these; what is left is factored much faster.

    Such a factor is there if p vanishes at a point of the line that no polynomial vanishes at by accident,
    and the division leaves nothing.
    """
    value: Expr = S.One
    if not p.domain.is_QQ and not p.domain.is_ZZ:
        return p, value
    ring = PolyRing(symbols, QQ)
    left = ring.from_dict({powers: QQ.from_sympy(c) for powers, c in p.terms()})
    pairs = [(a, b) for a in range(len(symbols)) for b in range(a, len(symbols))]
    for i, j in pairs:
        for k in range(-LINES, LINES + 1):
            line = ring.gens[i] - (ring.gens[j] if j > i else 0) + k
            at = [QQ(10007 + 101 * n, 13) for n in range(len(symbols))]
            at[i] = (at[j] if j > i else 0) - QQ(k)
            while not left.is_ground and left.evaluate(list(zip(ring.gens, at, strict=True))) == 0:
                quotient, remainder = left.div(line)
                if remainder != 0:
                    break
                left, value = quotient, value * line.as_expr()
    return Poly(left.as_expr(), *symbols), value


def particular(power: int, gap: Any, moved: Callable[[int, int], Any], one: Any) -> list[Any]:
    """The coefficients of a polynomial p with ``A p = n**power`` in any field, ``one`` being its unit.

    The linear map A takes ``n**i`` to ``gap n**i`` plus ``moved(i, j) n**j`` for each lower degree j.  Where
    ``gap`` is zero, a resonance, p has one degree more.
    """
    zero, resonant = one - one, int(not gap)
    found = [zero] * (power + 2)
    for j in reversed(range(power + 1)):
        left = one if j == power else zero
        for i in range(j + 1 + resonant, power + 2):
            left -= found[i] * moved(i, j)
        found[j + resonant] = left / (moved(j + 1, j) if resonant else gap)
    return found


def telescoped(power: int, step: int, ratio: Any, one: Any) -> list[Any]:
    """The coefficients of a polynomial p with ``p(n) - ratio p(n + step) = n**power``, in any field.

    >>> telescoped(1, -1, QQ(1), QQ(1)), telescoped(1, 1, QQ(1, 2), QQ(1))
    ([MPQ(0,1), MPQ(1,2), MPQ(1,2)], [MPQ(2,1), MPQ(2,1), MPQ(0,1)])
    """
    return particular(power, one - ratio, lambda i, j: -ratio * (comb(i, j) * step ** (i - j)), one)


# -- growth from layer to layer ------------------------------------------------------------------------------

q = Symbol("q")
"""Growth of responses from layer to layer."""
Z, Z_L = Dummy("Z"), Dummy("Z_L")
"""``q^ell`` and ``q^L``."""
MOVING = (ell, L, Z, Z_L)
"""What values are polynomials in, with powers of Z of either sign."""


class Recurrences:
    """Solves recurrences one after the other; ``parameter`` (and its value in q) is set by the first pair."""

    def __init__(self) -> None:
        self.parameter: tuple[Symbol, Expr] | None = None
        self.root: Expr | None = None

    def settled(self, e: Expr) -> Expr:
        """``e`` with the parameter in terms of q, in normal form."""
        e = e.xreplace(dict([self.parameter])) if self.parameter else e
        if not e.has(*MOVING):
            return cancel(e)
        return Add(*[cancel(c) * x for x, c in _apart(e).items()])

    def solve(self, M: Matrix, f: Sequence[Expr], k: int, start: Sequence[Expr], at: Expr) -> list[Expr]:
        """The ``y(ell)`` with ``y(at) = start``; ``at`` is a pair's value of (ell, Z)."""
        if M.has(ell, Z):
            raise NotApplicable("the recurrence has coefficients that change from layer to layer")
        if len(f) == 1:
            return [self.scalar(M[0], f[0], k, start[0], at)]
        if len(f) != 2:
            raise NotApplicable(f"{len(f)} order parameters that depend on each other from layer to layer")
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
        """Let q and 1/q be the eigenvalues of M."""
        if self.settled(M.det()) != 1:
            raise NotApplicable("the pair of recurrences in the layer has no eigenvalues q and 1/q")
        trace = M.trace()
        if self.parameter is None:
            relation = (q**2 - trace * q + 1).expand()
            free = sorted(trace.free_symbols, key=str)
            linear = [x for x in free if trace.is_polynomial(x) and Poly(trace, x).degree() == 1]
            if not linear:
                raise NotApplicable(f"no parameter of {trace} can be written in terms of its eigenvalue")
            self.parameter = (linear[0], cancel(solve(relation, linear[0])[0]))
            half = trace / 2
            self.root = (half + sqrt((half**2 - 1).factor())).expand()
        elif cancel(self.settled(trace) - q - 1 / q) != 0:
            raise NotApplicable("two pairs of recurrences in the layer have different eigenvalues")

    @staticmethod
    def left(M: Matrix, value: Expr) -> list[Expr]:
        """A left eigenvector of a two by two matrix."""
        a, b, c, d = M
        return [c, cancel(value - a)] if c != 0 else [cancel(value - d), b]

    def scalar(self, m: Expr, f: Expr, k: int, start: Expr, at: Expr) -> Expr:
        """``y(ell) = m y(ell + k) + f(ell)``."""
        m = self.settled(m)
        step = _power(m)
        value = S.Zero
        for (a, b), c in _monomials(self.settled(f)).items():
            gap = step + b * k  # the coefficient in front of the shifted monomial is q^gap
            value += c * self.particular(a, k, gap) * Z**b
        free = Z ** S(-step // k)
        here = dict(zip((ell, Z), at, strict=True))
        gap = self.settled(start) - value.xreplace(here)
        return self.settled(value + gap / free.xreplace(here) * free)

    @staticmethod
    def particular(a: int, k: int, gap: int) -> Expr:
        """A polynomial p with ``p(ell) - q^gap p(ell + k) = ell^a``."""
        return Add(*[cancel(c) * ell**i for i, c in enumerate(telescoped(a, k, q**gap, S.One))])


def _power(m: Expr) -> int:
    """The j with ``m = q^j``."""
    if m == 1:
        return 0
    base, exponent = m.as_base_exp()
    if base != q:
        raise NotApplicable(f"a recurrence in the layer grows like {m}^ell, which has no closed form here")
    return int(exponent)


def _monomials(f: Expr) -> dict[tuple[int, int], Expr]:
    """Coefficients of ``ell^a Z^b``, b of either sign."""
    found: dict[tuple[int, int], Expr] = {}
    for moving, fixed in _apart(f).items():
        rest, own = moving.as_independent(ell, Z, as_Add=False)
        powers = own.as_powers_dict()
        if not set(powers) <= {S.One, ell, Z}:
            raise NotApplicable(f"{moving} is no polynomial in ell and q^ell")
        key = int(powers.get(ell, 0)), int(powers.get(Z, 0))
        found[key] = found.get(key, S.Zero) + fixed * rest
    return found


def _apart(e: Expr) -> dict[Expr, Expr]:
    """Coefficients of products of powers of ell, L, Z and Z_L."""
    if e == 0:
        return {}
    # SymPy multiplies out denominators, so the inverses of Z and Z_L need names of their own
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
    return sum((x * y for x, y in zip(w, f, strict=True)), S.Zero)
