"""Recursions in the layer, ``y(n) = M y(n + k) + f(n)`` with constant M, in closed form.

Values are polynomials in n and in ``q^n``, where q is an eigenvalue of M that the recursions introduce.  A
pair of recursions with determinant one has eigenvalues q and 1/q; the parameter that they depend on is then
written in terms of q, so that all that follows is rational in q.
"""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Add, Dummy, Expr, Integer, Matrix, Poly, Pow, S, Symbol, cancel, degree, solve, sqrt

from derive.calculus.symbols import L
from derive.errors import NotApplicable

n = Dummy("n", integer=True)
"""The layer."""
q = Symbol("q")
"""Growth of responses from layer to layer."""
Z, Z_L = Dummy("Z"), Dummy("Z_L")
"""``q^n`` and ``q^L``."""
MOVING = (n, L, Z, Z_L)
"""What values are polynomials in, with powers of Z of either sign."""


class Recursions:
    """Solves recursions one after the other; ``parameter`` (and its value in q) is set by the first pair."""

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
        """The ``y(n)`` with ``y(at) = start``; ``at`` is a pair's value of (n, Z)."""
        if M.has(n, Z):
            raise NotApplicable("the recursion in the layer has coefficients that change from layer to layer")
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
            raise NotApplicable("the pair of recursions in the layer has no eigenvalues q and 1/q")
        trace = M.trace()
        if self.parameter is None:
            relation = (q**2 - trace * q + 1).expand()
            free = sorted(trace.free_symbols, key=str)
            linear = [x for x in free if trace.is_polynomial(x) and degree(trace, x) == 1]
            if not linear:
                raise NotApplicable(f"no parameter of {trace} can be written in terms of its eigenvalue")
            self.parameter = (linear[0], cancel(solve(relation, linear[0])[0]))
            half = trace / 2
            self.root = (half + sqrt((half**2 - 1).factor())).expand()
        elif cancel(self.settled(trace) - q - 1 / q) != 0:
            raise NotApplicable("two pairs of recursions in the layer have different eigenvalues")

    @staticmethod
    def left(M: Matrix, value: Expr) -> list[Expr]:
        """A left eigenvector of a two by two matrix."""
        a, b, c, d = M
        return [c, cancel(value - a)] if c != 0 else [cancel(value - d), b]

    def scalar(self, m: Expr, f: Expr, k: int, start: Expr, at: Expr) -> Expr:
        """``y(n) = m y(n + k) + f(n)``."""
        m = self.settled(m)
        step = _power(m)
        value = S.Zero
        for (a, b), c in _monomials(self.settled(f)).items():
            gap = step + b * k  # the coefficient in front of the shifted monomial is q^gap
            value += c * self.particular(a, k, gap) * Z**b
        free = Z ** Integer(-step / k)
        here = dict(zip((n, Z), at, strict=True))
        gap = self.settled(start) - value.xreplace(here)
        return self.settled(value + gap / free.xreplace(here) * free)

    @staticmethod
    def particular(a: int, k: int, gap: int) -> Expr:
        """A polynomial p with ``p(n) - q^gap p(n + k) = n^a``."""
        top = a + 1 if gap == 0 else a
        unknown = [Dummy(f"p{i}") for i in range(1 if gap == 0 else 0, top + 1)]
        p = sum((x * n**i for i, x in enumerate(unknown, 1 if gap == 0 else 0)), S.Zero)
        rest = Poly((p - q**gap * p.subs(n, n + k) - n**a).expand(), n)
        solved = solve(rest.all_coeffs(), unknown, dict=True)
        return p.xreplace(solved[0])


def _power(m: Expr) -> int:
    """The j with ``m = q^j``."""
    if m == 1:
        return 0
    base, exponent = m.as_base_exp()
    if base != q:
        raise NotApplicable(f"a recursion in the layer grows like {m}^n, which has no closed form here")
    return int(exponent)


def _monomials(f: Expr) -> dict[tuple[int, int], Expr]:
    """Coefficients of ``n^a Z^b``, b of either sign."""
    found: dict[tuple[int, int], Expr] = {}
    for moving, fixed in _apart(f).items():
        rest, own = moving.as_independent(n, Z, as_Add=False)
        powers = own.as_powers_dict()
        if not set(powers) <= {S.One, n, Z}:
            raise NotApplicable(f"{moving} is no polynomial in n and q^n")
        key = int(powers.get(n, 0)), int(powers.get(Z, 0))
        found[key] = found.get(key, S.Zero) + fixed * rest
    return found


def _apart(e: Expr) -> dict[Expr, Expr]:
    """Coefficients of products of powers of n, L, Z and Z_L."""
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
