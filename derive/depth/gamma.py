"""The Gamma and C recursions of depth2023, for any multiplier and learning rate of the branches.

Gamma is a cross-layer response in units of ``1/sqrt(L)``, its source labelled by the matrix W^k it belongs
to; C of label k is the covariance of that matrix's source, forward or backward (Def. before Lemma 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Eq, Expr, Function, S, sqrt
from sympy.core.function import AppliedUndef

from derive.depth.rescale import relabelled, renamed, rescale
from derive.errors import NotApplicable
from derive.linear.cross_layer import cross_layer
from derive.linear.system import CrossLayer
from derive.program.words import L, ell
from derive.theory.theory import Equation, Theory


@dataclass(frozen=True)
class GammaC:
    """``Gamma_ab(ell, k, t, s) = sqrt(L) d field_a(ell, t) / d source_b(W^k, s)``, 0 forward and 1 backward;
    ``Gamma_aU(ell, t)`` and ``Gamma_aV`` for the frozen ends, without the factor.

    ``C_0(k, t, s)`` and ``C_1(k, t, s)`` are the covariances of the forward and backward source of W^k.
    """

    cross: CrossLayer

    @property
    def gamma(self) -> tuple[Equation, ...]:
        """The recursions and their starting values."""
        return self.cross.responses

    @property
    def covariances(self) -> tuple[Eq, ...]:
        """C in terms of Gamma."""
        return self.cross.correlations

    @property
    def outputs(self) -> tuple[Eq, ...]:
        """The network's function and what follows from it."""
        return self.cross.scalars


def gamma_c_recursion(theory: Theory) -> GammaC:
    """The recursions of Lemma 4.3 (and appendix D.3), from the cross-layer responses of ``theory``.

    Raises :class:`NotApplicable` for a theory that has not one field upwards and one downwards.

    >>> from derive.theory import mean_field
    >>> from derive.program.networks.infinite_depth import depth_program
    >>> for x in gamma_c_recursion(mean_field(depth_program())).cross.response("Gamma_01", ell).terms:
    ...     print(x.expr)
    Sum(Gamma_01(ell - 1, ell, t, s_)*Gamma_11(ell, k, s_, s)/L, (s_, s, t - 1))
    Sum(-C_0(ell, t, s_)*Gamma_11(ell, k, s_, s)/L, (s_, s, t - 1))
    Gamma_01(ell - 1, k, t, s)
    """
    cross = rescale(cross_layer(theory), 1 / sqrt(L))
    families = [u for u in theory.sources if u.ranges]
    if len(families) != 2:
        raise NotApplicable("Gamma needs one forward and one backward family of sources")
    shifts, names, correlations = {}, {}, {}
    for b, u in enumerate(families):
        name = str(u.symbol.func)
        shifts[name] = ell - u.symbol.args[0]
        covariance = u.covariance
        if not isinstance(covariance, AppliedUndef):
            raise NotApplicable(f"the covariance of {u.symbol} is no order parameter: {covariance}")
        correlations[str(covariance.func)] = (f"C_{b}", ell - covariance.args[0])
        names[name] = str(b)
    fields = {p: str(i) for i, p in enumerate(_streams(theory))}
    singles = [p.name for p in cross.pushes if p.layers is None]
    functions = {
        f"R_{f}{p}": f"Gamma_{a}{names.get(p, p)}" for f, a in fields.items() for p in (*names, *singles)
    }
    cross = renamed(relabelled(cross, shifts), functions)
    return GammaC(_covariances(cross, correlations))


def _streams(theory: Theory) -> list[str]:
    """The fields of every layer, in the order in which they are computed."""
    found = [e.name for e in theory.equations if any(r.index == ell for r in e.ranges)]
    if len(found) != 2:
        raise NotApplicable(f"one field upwards and one downwards are needed; there are {found}")
    return found


def _covariances(cross: CrossLayer, names: dict[str, tuple[str, Expr]]) -> CrossLayer:
    """Correlations labelled by the matrix whose source has them as covariance."""

    def put(e: Expr) -> Expr:
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in names,
            lambda x: Function(names[str(x.func)][0])(x.args[0] + names[str(x.func)][1], *x.args[1:]),
        )

    cross = cross.map(put)
    correlations = []
    for e in cross.correlations:
        shift = names[str(e.lhs.func)][1] if str(e.lhs.func) in names else S.Zero
        correlations.append(
            Eq(put(e.lhs).xreplace({ell: ell - shift}), e.rhs.xreplace({ell: ell - shift}), evaluate=False)
        )
    own = tuple(
        Eq(q.symbol, put(q.symbol), evaluate=False) for q in cross.theory.order_parameters if q.name in names
    )
    return replace(cross, correlations=tuple(correlations), diagonal=(*cross.diagonal, *own))
