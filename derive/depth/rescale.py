"""Responses in units in which they stay of order one, the two ends of a network told apart.

In the body of a residual network a layer's source enters with the factor of the branch, so the answers to it
are as small; the first and last layer's sources enter whole.  Each gets a name of its own (``R_hu_1`` for the
answers to ``u(1, s)``), and the others are divided by the branch's factor (linear2025 (88), depth2023 Def. of
Gamma).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sympy import Add, Eq, Expr, Function, KroneckerDelta, Mul, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.linear.system import CrossLayer, Push, k
from derive.program.words import IndexRange, ell
from derive.theory.theory import Equation, Theory


def ends_apart(cross: CrossLayer) -> CrossLayer:
    """The same equations, with names of their own for answers to single members of a family of sources.

    >>> from sympy import Symbol
    >>> from derive.theory import mean_field
    >>> from derive.program.networks.isotropic import isotropic
    >>> from derive.program.words import L
    >>> theory = mean_field(isotropic(data="population", branch=Symbol("beta")))
    >>> from derive.linear.cross_layer import cross_layer
    >>> print(ends_apart(cross_layer(theory)).response("R_gr_L", L).rhs)
    KroneckerDelta(s, t) + Sum(eta*gamma0*R_hr_L(L, s_, s), (s_, s, t - 1))
    """
    cross = cross.closed()
    singles = {p.name: _singles(cross.theory, p) for p in cross.pushes if p.layers is not None}
    family = {p.name: _family(cross.theory, p) for p in cross.pushes if p.layers is not None}
    fields = {e.name for e in cross.theory.equations}
    of = {f"R_{f}{n}": n for n in singles for f in fields}

    def named(e: Expr) -> Expr:
        """Answers to single members by their own names."""
        return e.replace(
            lambda x: (
                isinstance(x, AppliedUndef)
                and str(x.func) in of
                and len(x.args) >= 4
                and x.args[1] in singles[of[str(x.func)]]
            ),
            lambda x: Function(f"{x.func}_{x.args[1]}")(x.args[0], *x.args[2:]),
        )

    responses: list[Equation] = []
    for e in cross.responses:
        name = str(e.lhs.func)
        if name not in of:
            responses.append(_each(e, named))
            continue
        rest = tuple(r for r in e.ranges if r.index != k)
        for site in singles[of[name]]:
            at = replace(e, lhs=e.lhs.xreplace({k: site}), ranges=rest)
            responses.append(
                _each(at, lambda x, site=site, e=e: named(_decided(x.xreplace({k: site}), e.ranges)))
            )
        inner = family[of[name]]
        bulk = replace(e, ranges=(*rest, inner))
        responses.append(_each(bulk, lambda x, r=bulk.ranges: named(_decided(x, r))))
    return replace(cross.map(named), responses=tuple(responses))


def rescale(cross: CrossLayer, factor: Expr) -> CrossLayer:
    """Divide the answers to every family of sources by ``factor`` (the ends apart, the system closed).

    >>> from sympy import Symbol
    >>> from derive.theory import mean_field
    >>> from derive.program.networks.isotropic import isotropic
    >>> beta = Symbol("beta", positive=True)
    >>> from derive.linear.cross_layer import cross_layer
    >>> found = rescale(cross_layer(mean_field(isotropic(data="population", branch=beta))), beta)
    >>> for x in found.response("R_hu", ell + 1).terms: print(x.expr)
    KroneckerDelta(k, ell + 1)*KroneckerDelta(s, t)
    Sum(beta**2*R_gu(ell + 1, k, s_, s)*R_hr(ell, ell, t, s_), (s_, s + 1, t))
    Sum(beta**2*eta*gamma0*C_h(ell, t, s_)*R_gu(ell + 1, k, s_, s), (s_, s + 1, t - 1))
    R_hu(ell, k, t, s)
    """
    cross = ends_apart(cross)
    families = {p.name for p in cross.pushes if p.layers is not None}
    bulk = {f"R_{f}{n}" for f in {e.name for e in cross.theory.equations} for n in families}

    def scaled(e: Expr) -> Expr:
        e = e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in bulk,
            lambda x: factor * Function(f"{x.func}@")(*x.args),
        )
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func).endswith("@"),
            lambda x: Function(str(x.func)[:-1])(*x.args),
        )

    responses = []
    for e in cross.responses:
        unit = factor if str(e.lhs.func) in bulk else S.One
        responses.append(_each(e, lambda x, unit=unit: divided(scaled(x), unit), lhs=False))
    return replace(cross.map(scaled), responses=tuple(responses))


def divided(e: Expr, unit: Expr) -> Expr:
    """``e / unit``, inside sums."""
    if isinstance(e, Sum):
        return e.func(Mul(e.function, 1 / unit), *e.limits)
    return Add(*[x / unit for x in Add.make_args(e)])


def relabelled(cross: CrossLayer, shifts: dict[str, Expr]) -> CrossLayer:
    """Sources of these names counted by other labels: what stands at k is called ``k + shift``."""
    fields = {e.name for e in cross.theory.equations}
    of = {f"R_{f}{n}": x for n, x in shifts.items() for f in fields}

    def moved(e: Expr) -> Expr:
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in of and len(x.args) >= 4,
            lambda x: x.func(x.args[0], x.args[1] + of[str(x.func)], *x.args[2:]),
        )

    responses = []
    for e in cross.responses:
        shift = of.get(str(e.lhs.func), S.Zero)
        back = {k: k - shift}
        ranges = tuple(
            IndexRange(k, r.lower + shift, r.upper + shift) if r.index == k else r for r in e.ranges
        )
        there = replace(e, ranges=ranges)
        responses.append(_each(there, lambda x, back=back: _tidy(moved(x.xreplace(back)))))

    def summed(e: Expr) -> Expr:
        """Sums over k in which only relabelled answers occur run over the new labels."""

        def put(x: Sum) -> Expr:
            found = {of.get(str(a.func), S.Zero) for a in x.function.atoms(AppliedUndef) if str(a.func) in of}
            shift = next(iter(found), S.Zero)
            if shift == 0 or not any(lim[0] == k for lim in x.limits):
                return x
            limits = [(v, a + shift, b + shift) if v == k else (v, a, b) for v, a, b in x.limits]
            return x.func(x.function.xreplace({k: k - shift}), *limits)

        return moved(e.replace(lambda x: isinstance(x, Sum), put))

    return replace(cross.map(summed), responses=tuple(responses))


def renamed(cross: CrossLayer, names: dict[str, str]) -> CrossLayer:
    """The same with other names for functions."""

    def put(e: Expr) -> Expr:
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in names,
            lambda x: Function(names[str(x.func)])(*x.args),
        )

    whole = cross.map(put)

    def left(items: tuple[Eq, ...]) -> tuple[Eq, ...]:
        return tuple(Eq(put(e.lhs), e.rhs, evaluate=False) for e in items)

    return replace(
        whole,
        responses=tuple(_each(e, put) for e in cross.responses),
        fields=left(whole.fields),
        correlations=left(whole.correlations),
        scalars=left(whole.scalars),
    )


def _each(e: Equation, fun: Callable[..., Expr], lhs: bool = True) -> Equation:
    terms = tuple(x.rewrite(fun) for x in e.terms)
    left = fun(e.lhs) if lhs else e.lhs
    kept = tuple(x for x in terms if x.expr != 0) or (terms[0].put(S.Zero),)
    return Equation(left, kept, e.ranges)


def _singles(theory: Theory, p: Push) -> list[Expr]:
    """The layers of members that have their own covariance, apart from the family."""
    found = []
    for u in theory.sources:
        if str(u.symbol.func) == p.name and not any(r.index == ell for r in u.ranges):
            found.append(u.symbol.args[0])
    return found


def _family(theory: Theory, p: Push) -> IndexRange:
    for u in theory.sources:
        r = next((r for r in u.ranges if r.index == ell), None)
        if str(u.symbol.func) == p.name and r is not None:
            shift = u.symbol.args[0] - ell
            return IndexRange(k, r.lower + shift, r.upper + shift)
    raise KeyError(p.name)


def _decided(e: Expr, ranges: tuple[IndexRange, ...]) -> Expr:
    """Kronecker deltas between layers that never meet are zero."""
    bounds = {r.index: (sympify(r.lower), sympify(r.upper)) for r in ranges}

    def decide(x: KroneckerDelta) -> Expr:
        gap = x.args[0] - x.args[1]
        inside = [i for i in bounds if gap.has(i)]
        if len(inside) != 1 or inside[0] not in (ell, k):
            return x
        i = inside[0]
        low, high = (gap.xreplace({i: b}) for b in bounds[i])
        same_sign = (low.is_positive and high.is_positive) or (low.is_negative and high.is_negative)
        monotone = gap.coeff(i) in (1, -1)
        first, last = (low, high) if gap.coeff(i) == 1 else (high, low)
        if monotone and (first.is_positive or last.is_negative or same_sign):
            return S.Zero
        return x

    return e.replace(lambda x: isinstance(x, KroneckerDelta), decide)


def _tidy(e: Expr) -> Expr:
    """``delta(k - 1, ell - 1)`` is ``delta(k, ell)``."""

    def put(x: KroneckerDelta) -> Expr:
        if not (x.has(k) and x.has(ell)):
            return x
        other = x.args[0] if x.args[1].has(k) else x.args[1]
        mine = x.args[1] if x.args[1].has(k) else x.args[0]
        return KroneckerDelta(k, other - (mine - k))

    return e.replace(lambda x: isinstance(x, KroneckerDelta), put)


__all__ = ["ends_apart", "relabelled", "renamed", "rescale"]
