"""Two-point functions of a vector with itself are symmetric: one way of writing each is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sympy import Expr
from sympy.core.function import AppliedUndef

from derive.program.words import GivenVector, ell
from derive.theory.theory import OrderParameter

Order = Callable[[Expr], Expr]


def symmetric(
    parameters: Iterable[OrderParameter], given: Iterable[GivenVector] = (), covariances: Iterable[str] = ()
) -> Order:
    """A function that writes ``C(b, a, s, t)`` as ``C(a, b, t, s)`` wherever C is the same.

    Which parameters are symmetric is read off their definitions.  Kernels of given vectors always are, and
    so are ``covariances``, names of other functions of two points.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> from sympy import Function
    >>> from sympy.abc import k, m, t, s
    >>> order = symmetric(mean_field(mlp()).order_parameters)
    >>> order(Function("H")(1, k, m, s, t)), order(Function("A")(1, k, s, t))
    (H(1, m, k, t, s), A(1, k, s, t))
    """
    halves = {q.name: 1 if q.symbol.args[0] == ell else 0 for q in parameters if _is_symmetric(q)}
    kernels = {*(x.kernel for x in given), *covariances}

    def order(atom: AppliedUndef) -> Expr:
        name = str(atom.func)
        if name in kernels:
            half = len(atom.args) // 2
            return max(atom, atom.func(*atom.args[half:], *atom.args[:half]), key=_key)
        return max(atom, _turned(atom, halves[name]), key=_key)

    def is_one(e: Any) -> bool:
        return isinstance(e, AppliedUndef) and (str(e.func) in halves or str(e.func) in kernels)

    return lambda e: e.replace(is_one, order)


def _turned(atom: AppliedUndef, sites: int) -> AppliedUndef:
    """The two points exchanged: indices and times."""
    site, rest = atom.args[:sites], atom.args[sites:]
    half = len(rest) // 2 - 1
    first, second, (time, past) = rest[:half], rest[half : 2 * half], rest[2 * half :]
    return atom.func(*site, *second, *first, past, time)


def _is_symmetric(q: OrderParameter) -> bool:
    sites = 1 if q.symbol.args[0] == ell else 0
    if q.kind != "correlation" or (len(q.symbol.args) - sites) % 2:
        return False
    exchange = dict(zip(q.symbol.args, _turned(q.symbol, sites).args, strict=True))
    return bool(q.definition.xreplace(exchange) == q.definition)


def _key(atom: AppliedUndef) -> tuple[str, ...]:
    return tuple(str(x) for x in (*atom.args[-2:], *atom.args[:-2]))
