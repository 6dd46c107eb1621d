"""A change of variables: a constant in front of a Gaussian source becomes part of the source.

The engine's sources have the covariances that their matrices give them; papers often scale them, so that
``v = w - r0/(nu gamma0)`` with ``<r0 r0> = nu C_g`` reads ``v = w - r0`` with ``<r0 r0> = C_g/(nu
gamma0^2)``.  Responses to the source change by the same factor.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Expr, Mul, S, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.errors import NotApplicable
from derive.program.words import s, t
from derive.theory.theory import OrderParameter, Theory


def absorb_factors(theory: Theory, *sources: str) -> Theory:
    """The same theory with each of the named sources scaled so that it enters with factor 1 or -1.

    What depends on time (the memory of a rule with decay) stays outside.  An attribute of the unit goes
    along into the source's covariance.  Raises :class:`NotApplicable` for a source that does not occur, or
    enters two equations with different factors.

    >>> from derive.theory import mean_field
    >>> from derive.program.networks.isotropic import isotropic
    >>> theory = absorb_factors(mean_field(isotropic()), "r0", "u0")
    >>> print(theory.equation("h", 1).terms[1].expr)
    Sum(R_h0r0(t, s)*g(1, s)/(gamma0*nu), (s, 0, t))
    """
    for name in sources:
        theory = _absorbed(theory, name)
    return theory


def _absorbed(theory: Theory, name: str) -> Theory:
    factor = source_factor(theory, name)
    if factor == 1:
        return theory
    changed, scales = [], {}
    for q in theory.order_parameters:
        new, scale = _pushed(theory, q, name, factor)
        changed.append(new)
        if scale != 1:
            scales[q.symbol.func] = scale

    def rescaled(e: Expr) -> Expr:
        return sympify(e).replace(
            lambda x: isinstance(x, AppliedUndef) and x.func in scales, lambda x: scales[x.func] * x
        )

    moved = theory.map(rescaled)

    def bare(e: Expr) -> Expr:
        return e.replace(lambda x: _called(x, name), lambda x: x / factor)

    return replace(
        moved,
        equations=tuple(replace(e, terms=tuple(x.rewrite(bare) for x in e.terms)) for e in moved.equations),
        sources=tuple(
            replace(
                u,
                covariance=u.covariance
                * (factor if _called(u.symbol, name) else 1)
                * (factor if _called(u.partner, name) else 1),
            )
            for u in moved.sources
        ),
        order_parameters=tuple(changed),
    )


def source_factor(theory: Theory, name: str) -> Expr:
    """What multiplies the source wherever it occurs, without sign and without what depends on time."""
    found = set()
    for e in theory.equations:
        for x in e.terms:
            for a in sorted((a for a in x.expr.atoms(AppliedUndef) if _called(a, name)), key=str):
                constant, _ = (x.expr / a).as_independent(t, s)
                found.add(-constant if constant.could_extract_minus_sign() else constant)
    if not found:
        raise NotApplicable(f"the theory has no source called {name}")
    if len(found) > 1:
        raise NotApplicable(f"{name} enters with different factors: {', '.join(sorted(map(str, found)))}")
    return found.pop()


def _pushed(theory: Theory, q: OrderParameter, name: str, factor: Expr) -> tuple[OrderParameter, Expr]:
    """A response with its definition in the new source, and what its old value is in units of the new."""
    hits = [x for x in q.definition.atoms(Response) if _called(x.source, name)]
    if not hits:
        return q, S.One
    old = hits[0]
    fixed, moving = _split(theory, old.body)
    units, number = _split_unit(theory, factor * fixed)
    outside = q.definition / next(iter(q.definition.atoms(Average)))
    return replace(q, definition=outside * Average(units * Response(moving, old.source))), number


def _split(theory: Theory, body: Expr) -> tuple[Expr, Expr]:
    """Factors that no source moves, and the rest."""
    return Mul(*_moved(theory, body, False)), Mul(*_moved(theory, body, True))


def _moved(theory: Theory, body: Expr, random: bool) -> list[Expr]:
    names = {x.name for x in theory.program.fields}
    return [
        x for x in Mul.make_args(body) if random == any(str(a.func) in names for a in x.atoms(AppliedUndef))
    ]


def _split_unit(theory: Theory, e: Expr) -> tuple[Expr, Expr]:
    """Attributes of the unit, which stay in averages, and numbers, which come out."""
    own = {x.name for x in theory.program.attributes}
    args = Mul.make_args(e)
    units = [x for x in args if any(str(a.func) in own for a in x.atoms(AppliedUndef))]
    return Mul(*units), Mul(*[x for x in args if x not in units])


def _called(x: Expr, name: str) -> bool:
    return isinstance(x, AppliedUndef) and str(x.func) == name
