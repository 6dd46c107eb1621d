"""Polynomial conserved quantities of polynomial differential equations, found by linear algebra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement

from sympy import Add, Derivative, Eq, Expr, Matrix, Mul, Poly, S, Symbol, cancel


def rates_of(odes: Sequence[Eq] | Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """``{x(t): dx/dt}``.  Raises ValueError for an equation that is not ``Derivative(x(t), t) = ...``."""
    if isinstance(odes, Mapping):
        return dict(odes)
    for e in odes:
        if not isinstance(e.lhs, Derivative):
            raise ValueError(f"{e.lhs} = {e.rhs}: the left-hand side must be a time derivative")
    return {e.lhs.expr: e.rhs for e in odes}


def conserved(odes: Sequence[Eq] | Mapping[Expr, Expr], degree: int = 2) -> tuple[Expr, ...]:
    """Polynomials in the unknowns, of at most ``degree``, that do not change along solutions.

    Invariants that are polynomials of ones found at lower degree are left out.  The equations must be
    autonomous and polynomial in the unknowns; parameters may enter as rational functions.  Raises
    ValueError if they are not.

    >>> from sympy import symbols, Function
    >>> t = symbols("t")
    >>> q, p = Function("q")(t), Function("p")(t)
    >>> conserved([Eq(q.diff(t), p), Eq(p.diff(t), -q)])
    (p(t)**2 + q(t)**2,)
    """
    rates = rates_of(odes)
    slots = {x: Symbol(f"_{k}") for k, x in enumerate(rates)}
    names = list(slots.values())
    flow = {slots[x]: rate.xreplace(slots) for x, rate in rates.items()}
    for x, rate in rates.items():
        late = {a for u in rates for a in u.free_symbols} & flow[slots[x]].free_symbols
        if late or not flow[slots[x]].is_polynomial(*names):
            raise ValueError(f"d{x}/dt = {rate}: must be autonomous and polynomial in the unknowns")
    found: list[Expr] = []
    for d in range(1, degree + 1):
        for candidate in _invariants(flow, names, d):
            fresh = _independent(candidate, _products(found, names, d), names)
            if fresh is not None:
                found.append(fresh)
    back = {v: k for k, v in slots.items()}
    return tuple((x / Poly(x, *names).LC()).expand().xreplace(back) for x in found)


def _monomials(names: list[Symbol], degree: int) -> list[Expr]:
    return [Mul(*c) for d in range(1, degree + 1) for c in combinations_with_replacement(names, d)]


def _invariants(flow: dict[Symbol, Expr], names: list[Symbol], degree: int) -> list[Expr]:
    """A basis of the kernel of ``I -> dI/dt`` on polynomials without constant term."""
    monomials = _monomials(names, degree)
    images = [Poly(Add(*[m.diff(x) * flow[x] for x in names]), *names).as_dict() for m in monomials]
    powers = sorted({k for image in images for k in image})
    if not powers:
        return monomials
    table = Matrix([[image.get(k, S.Zero) for image in images] for k in powers])
    kernel = table.nullspace(simplify=cancel, iszerofunc=lambda x: cancel(x) == 0)
    return [cancel(Add(*[c * m for c, m in zip(v, monomials, strict=True)])).expand() for v in kernel]


def _products(found: list[Expr], names: list[Symbol], degree: int) -> list[Expr]:
    """Products of known invariants up to the degree."""
    size = {x: Poly(x, *names).total_degree() for x in found}
    return [
        Mul(*c).expand()
        for n in range(1, degree + 1)
        for c in combinations_with_replacement(found, n)
        if sum(size[x] for x in c) <= degree
    ]


def _independent(candidate: Expr, known: list[Expr], names: list[Symbol]) -> Expr | None:
    """The candidate if it is not a linear combination of what is known."""
    if not known:
        return candidate
    rows = [Poly(x, *names).as_dict() for x in (*known, candidate)]
    powers = sorted({k for row in rows for k in row})
    table = Matrix([[row.get(k, S.Zero) for k in powers] for row in rows])
    rank = table.rank(simplify=cancel, iszerofunc=lambda x: cancel(x) == 0)
    return candidate if rank == len(_basis(rows[:-1], powers)) + 1 else None


def _basis(rows: list[dict[tuple[int, ...], Expr]], powers: list[tuple[int, ...]]) -> list[int]:
    """Indices of linearly independent rows."""
    table = Matrix([[row.get(k, S.Zero) for k in powers] for row in rows])
    return list(range(table.rank(simplify=cancel, iszerofunc=lambda x: cancel(x) == 0)))
