"""Large sizes: a theory in powers of 1/nu, 1/alpha or 1/alpha_B around that of unlimited width or data."""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Expr, Symbol, sympify

from derive.calculus.averages import Response
from derive.errors import NotApplicable
from derive.expansion.theories.series import TheorySeries
from derive.reduce.data import absorb_factors, instant_responses, scaled_sources, source_factor
from derive.theory import Theory


def expand_sizes(
    theory: Theory, size: Symbol, order: int, together: Mapping[Symbol, Expr] | None = None
) -> TheorySeries:
    """A linear theory on random data in powers of ``1/size``, up to ``order``.

    Sizes in ``together`` grow with it, as the given multiples of it (``{alpha: 2 * nu}``).  Sources in
    front of which a size stands are scaled (:func:`.absorb_factors`), and responses that are there at equal
    time only are put in.  The order zero is :func:`.theory_limit`, and what that refuses is refused here:
    widths in NTK parametrisation, where features do not move in the limit but the initial function stays.

    Raises :class:`NotApplicable` for a theory that is no power series in ``1/size``, that is not linear, or
    that does not depend on the size, and ValueError for a negative order.

    >>> from derive.theory import mean_field
    >>> from derive.program import isotropic
    >>> from derive.program.networks.isotropic import nu
    >>> wide = expand_sizes(mean_field(isotropic(data="population", depth=1)), nu, 2)
    >>> for e in wide.coefficient(1)[2:]: print(e.lhs, "=", e.rhs)
    h0__1(t) = v__1(t)
    h__1(1, t) = u__1(1, t) + Sum(R_h0r0(t, s)*g(1, s)/gamma0, (s, 0, t)) + ...
    """
    if order < 0:
        raise ValueError(f"order = {order}: must not be negative; 0 is the limit itself")
    theory = instant_responses(theory)
    small = Symbol(f"1/{size}", positive=True)
    values = {size: 1 / small} | {
        k: sympify(v, strict=True).subs(size, 1 / small) for k, v in (together or {}).items()
    }
    if not any(x.has(size) for x in _expressions(theory)):
        raise NotApplicable(f"the theory does not depend on {size}")
    scales: list[tuple[str, Expr]] = []
    absorbed = theory
    for name in dict.fromkeys(name for x in values for name in scaled_sources(theory, x)):
        factor = source_factor(absorbed, name).subs(values)
        scales += [(q.name, factor) for q in theory.responses() if _pushes(q.definition, name)]
        absorbed = absorb_factors(absorbed, name)
    scaled = absorbed.map(lambda e: sympify(e).subs(values))
    return TheorySeries(theory, scaled, 1 / size, small, order, scales=tuple(scales))


def _pushes(definition: Expr, source: str) -> bool:
    return any(str(x.source.func) == source for x in definition.atoms(Response))


def _expressions(theory: Theory) -> list[Expr]:
    found = [e.rhs for e in (*theory.equations, *theory.scalars)]
    return [*found, *(u.covariance for u in theory.sources)]


__all__ = ["expand_sizes"]
