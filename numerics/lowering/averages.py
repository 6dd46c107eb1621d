"""Averages of a theory, read as a product of factors at t and at s, or as a response.

:func:`read_average` takes the body of an order parameter and returns a :class:`MeanProduct` or a
:class:`MeanResponse`. Linear theories, sampled paths and quadrature turn these into averages over fields,
paths and points of the quadrature.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Mul, S
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import s, t
from numerics.errors import Unserved


@dataclass(frozen=True)
class MeanProduct:
    """The average ``<late(t) early(s)>`` over units, as a pair of expressions in fields.

    ``early`` is 1 if no factor depends on s.
    """

    late: Expr
    early: Expr


@dataclass(frozen=True)
class MeanResponse:
    """The average response ``<d body(t) / d source(s)>`` of a function of fields to a source."""

    body: Expr
    source: AppliedUndef


def read_average(body: Expr) -> MeanProduct | MeanResponse:
    """Split the body of an average into a factor at t and a factor at s, or read it as a response.

    A factor without a time, such as 1/2 or a field at time zero, is multiplied with the factor at s if these
    two share an index that the factor at t does not have, and otherwise with the factor at t. Raises Unserved
    for a factor that contains both times, as in ``2*Response(h(t), r(s))``.

    >>> from sympy import Function
    >>> h, g, r = (Function(x) for x in "hgr")
    >>> read_average(2 * h(t) * g(s))
    MeanProduct(late=2*h(t), early=g(s))
    >>> read_average(Response(h(t), r(s)))
    MeanResponse(body=h(t), source=r(s))
    """
    if isinstance(body, Response):
        return MeanResponse(body.body, body.source)
    if s not in body.free_symbols:
        return MeanProduct(body, S.One)
    factors = Mul.make_args(body)
    early, late = (Mul(*[x for x in factors if time in x.free_symbols]) for time in (s, t))
    for x in factors:
        if not x.free_symbols & {s, t}:
            other_indices = x.free_symbols - late.free_symbols
            early, late = (early * x, late) if other_indices & early.free_symbols else (early, late * x)
    if t in early.free_symbols or s in late.free_symbols:
        raise Unserved(
            f"{Average(body)} is not supported: the averaged function must be a product of a factor at time "
            "t and a factor at time s"
        )
    return MeanProduct(late, early)
