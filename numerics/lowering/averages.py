"""Averages of a theory as every solver reads them: of something at t and something at s, or of a response.

:func:`read_average` takes what an order parameter averages apart.  Linear theories, sampled paths and
quadrature make pairs of fields, of quantities on paths and of values on nodes of it.
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
    """``<late(t) early(s)>``; ``early`` is one where nothing stands at s."""

    late: Expr
    early: Expr


@dataclass(frozen=True)
class MeanResponse:
    """``<d body(t) / d source(s)>``."""

    body: Expr
    source: AppliedUndef


def read_average(body: Expr) -> MeanProduct | MeanResponse:
    """Read what is averaged.  Raises Unserved for no product of something at t and something at s.

    Factors without a time, such as 1/2 and fields at time zero, stand with what has their indices, and else
    with what is at t.

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
            apart = x.free_symbols - late.free_symbols
            early, late = (early * x, late) if apart & early.free_symbols else (early, late * x)
    if t in early.free_symbols or s in late.free_symbols:
        raise Unserved(f"{Average(body)} is no product of something at t and something at s")
    return MeanProduct(late, early)
