"""Responses in units in which they are of order one in the depth, with the two ends of a network separated.

In the body of a residual network the source of a layer enters with the branch multiplier, so that responses
to it are proportional to the multiplier; the sources of the first and last layer enter without it. Responses
to these have individual names (``R_hu_1`` to ``u(1, s)``), and the others are divided by the multiplier
(linear2025 (88)). In units of ``1/sqrt(L)``, with sources labelled by their matrix, they are the Gamma and C
of depth2023 (before Lemma 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from sympy import Eq, Expr, Function, KroneckerDelta, S, Sum, sqrt
from sympy.core.function import AppliedUndef

from derive.calculus.sums import fixed_by_delta, rewritten, times, within, without_empty
from derive.calculus.symbols import IndexRange, L, ell
from derive.errors import NotApplicable
from derive.linear.propagators import CrossLayer, cross_layer, k
from derive.theory import Equation, Theory


def ends_apart(cross: CrossLayer) -> CrossLayer:
    """Return the system in which responses to the sources of single layers have individual names.

    Single layers are the first and last ones, if their sources differ from the family of sources of the other
    layers. The name of such a response contains the layer: ``R_hu_1`` for ``R_hu(ell, 1, t, s)``.

    Parameters
    ----------
    cross : CrossLayer
        The recursions over layers of a linear theory.

    Returns
    -------
    CrossLayer
        The closed recursions; ``R_hu_1`` is the response to ``u(1, s)``.

    Examples
    --------
    >>> from sympy import Symbol
    >>> from derive import isotropic, mean_field
    >>> theory = mean_field(isotropic(data="population", branch=Symbol("beta")))
    >>> print(ends_apart(cross_layer(theory)).response("R_gr_L", L).rhs)
    KroneckerDelta(s, t) + Sum(eta*gamma0*R_hr_L(L, s_, s), (s_, s, t - 1))
    """
    cross = cross.closed()
    of = {
        f"R_{e.name}{p.name}": p
        for p in cross.perturbed_sources
        if p.family is not None
        for e in cross.theory.equations
    }

    def single(x: AppliedUndef) -> Expr:
        """Return a response ``R_hu(ell, 1, t, s)`` to the source of a single layer as ``R_hu_1(ell, t, s)``.

        Other responses are returned unchanged.
        """
        is_single = len(x.args) >= 4 and x.args[1] in of[str(x.func)].singles
        return Function(f"{x.func}_{x.args[1]}")(x.args[0], *x.args[2:]) if is_single else x

    def named(x: Expr) -> Expr:
        """Return an expression in which responses to the sources of single layers have individual names."""
        return rewritten(x, of, single)

    def members(e: Equation) -> Iterator[Equation]:
        """Yield the equations of the responses to single sources, then that for all other sources.

        ``e`` is the equation of a response to the sources of all layers. Single sources are those of the
        first and last layer; responses to them have names of their own. Any other equation is yielded once,
        with these names.
        """
        p = of.get(str(e.lhs.func))
        if p is None or p.family is None:
            yield _mapped(e, named)
            return

        def at_site(site: Expr, x: Expr) -> Expr:
            """Return the term ``x`` of a response's equation with the source's layer k set to ``site``.

            Responses to sources of single layers in it get their individual names.
            """
            return named(_decided(x.xreplace({k: site}), e.ranges))

        ranges = tuple(r for r in e.ranges if r.index != k)
        for site in p.singles:
            there = replace(e, lhs=e.lhs.xreplace({k: site}), ranges=ranges)
            yield _mapped(there, partial(at_site, site))
        inside = (*ranges, p.family)
        yield _mapped(replace(e, ranges=inside), lambda x: named(_decided(x, inside)))

    return replace(cross.map(named), responses=tuple(x for e in cross.responses for x in members(e)))


def rescale(cross: CrossLayer, factor: Expr) -> CrossLayer:
    """Return the system with responses divided by ``factor``, closed and with its two ends separated.

    Responses to the sources of single layers at the two ends, such as ``R_hu_1``, are not divided.

    Parameters
    ----------
    cross : CrossLayer
        Correlations and responses between layers.
    factor : Expr
        Number by which the responses to every family of sources are divided.

    Returns
    -------
    CrossLayer
        The rescaled system.

    Examples
    --------
    >>> from sympy import Symbol
    >>> from derive import isotropic, mean_field
    >>> beta = Symbol("beta", positive=True)
    >>> found = rescale(cross_layer(mean_field(isotropic(data="population", branch=beta))), beta)
    >>> for x in found.response("R_hu", ell + 1).terms: print(x.expr)
    KroneckerDelta(k, ell + 1)*KroneckerDelta(s, t)
    Sum(beta**2*R_gu(ell + 1, k, s_, s)*R_hr(ell, ell, t, s_), (s_, s + 1, t))
    Sum(beta**2*eta*gamma0*C_h(ell, t, s_)*R_gu(ell + 1, k, s_, s), (s_, s + 1, t - 1))
    R_hu(ell, k, t, s)
    """
    cross = ends_apart(cross)
    families = [p.name for p in cross.perturbed_sources if p.layers is not None]
    return in_units(cross, {f"R_{e.name}{n}": factor for e in cross.theory.equations for n in families})


def in_units(cross: CrossLayer, units: Mapping[str, Expr]) -> CrossLayer:
    """Return the system with each function X in ``units`` written as ``units[X] * X``.

    The equation of X is divided by its unit, so that the new X is the old one over the unit. A function whose
    unit is 0 is removed.
    """

    def put(e: Expr) -> Expr:
        return rewritten(e, units, lambda x: units[str(x.func)] * x)

    def row(e: Equation) -> Equation:
        """Return the equation of a response in the new units, divided by the unit of this response."""
        return _mapped(e, lambda x: without_empty(times(1 / units.get(str(e.lhs.func), S.One), put(x))))

    def averages(equations: tuple[Eq, ...]) -> tuple[Eq, ...]:
        """Return equations of correlations or scalars, each divided by the unit of its left-hand side."""
        known = ((e, units.get(str(e.lhs.func), S.One)) for e in equations)
        return tuple(Eq(e.lhs, times(1 / unit, e.rhs), evaluate=False) for e, unit in known if unit != 0)

    rows = [row(e) for e in cross.responses if units.get(str(e.lhs.func)) != 0]
    changed = cross.map(put)
    return replace(
        changed,
        responses=tuple(rows),
        correlations=averages(changed.correlations),
        scalars=averages(changed.scalars),
    )


def relabelled(cross: CrossLayer, shifts: Mapping[str, Expr]) -> CrossLayer:
    """Return the system in which the layers of some sources are counted from another layer.

    ``shifts`` maps the name of a source to a number n: a response to this source with the layer label k
    becomes one with the label k + n.
    """
    of = {f"R_{e.name}{n}": x for n, x in shifts.items() for e in cross.theory.equations}

    def label(x: AppliedUndef) -> Expr:
        return x.func(x.args[0], x.args[1] + of[str(x.func)], *x.args[2:]) if len(x.args) >= 4 else x

    def moved(e: Expr) -> Expr:
        return rewritten(e, of, label)

    def row(e: Equation) -> Equation:
        """Return the equation of a response with its source's layer label k replaced by the shifted label."""
        shift = of.get(str(e.lhs.func), S.Zero)
        ranges = (IndexRange(k, r.lower + shift, r.upper + shift) if r.index == k else r for r in e.ranges)
        return _mapped(replace(e, ranges=tuple(ranges)), lambda x: _tidy(moved(x.xreplace({k: k - shift}))))

    def put(x: Sum) -> Expr:
        """Return a sum over the layer label k of sources as a sum over the shifted labels."""
        label_shifts = {of[n] for a in x.function.atoms(AppliedUndef) if (n := str(a.func)) in of}
        shift = next(iter(label_shifts), S.Zero)
        if shift == 0 or not any(lim[0] == k for lim in x.limits):
            return x
        limits = [(v, a + shift, b + shift) if v == k else (v, a, b) for v, a, b in x.limits]
        return x.func(x.function.xreplace({k: k - shift}), *limits)

    summed = cross.map(lambda e: moved(e.replace(lambda x: isinstance(x, Sum), put)))
    return replace(summed, responses=tuple(map(row, cross.responses)))


def _mapped(e: Equation, fun: Callable[[Expr], Expr]) -> Equation:
    """Return an equation with ``fun`` applied to its left-hand side and to all terms.

    Terms that vanish are left out; if all vanish, one term that is zero is kept.
    """
    terms = tuple(x.rewrite(fun) for x in e.terms)
    kept = tuple(x for x in terms if x.expr != 0) or (terms[0].with_expression(S.Zero),)
    return Equation(fun(e.lhs), kept, e.ranges)


def _decided(e: Expr, ranges: tuple[IndexRange, ...]) -> Expr:
    """Return an expression with zero for Kronecker deltas of layers that never coincide.

    ``ranges`` are the ranges of the layers ell and k. A delta vanishes if the value of ell or k that it
    requires lies outside of its range.
    """

    def decide(x: KroneckerDelta) -> Expr:
        """Return a Kronecker delta, or zero if its layers never coincide."""
        met = ((fixed_by_delta(x, r.index), r) for r in ranges if r.index in (ell, k))
        apart = any(place and within(place[1], r.lower, r.upper, r.index) == 0 for place, r in met)
        return S.Zero if apart else x

    return e.replace(lambda x: isinstance(x, KroneckerDelta), decide)


def _tidy(e: Expr) -> Expr:
    """Return ``e`` with Kronecker deltas of ell and k solved for k, the layer label of a source.

    For example, ``delta(k - 1, ell - 1)`` becomes ``delta(k, ell)``.
    """

    def put(x: KroneckerDelta) -> Expr:
        with_k, other = sorted(x.args, key=lambda y: not y.has(k))
        return KroneckerDelta(k, other - (with_k - k))

    return e.replace(lambda x: isinstance(x, KroneckerDelta) and x.has(k) and x.has(ell), put)


# -- Gamma and C ---------------------------------------------------------------------------------------------


def gamma_c_recursion(theory: Theory) -> CrossLayer:
    """Return the recursions over layers of the responses Gamma and correlations C of depth2023.

    They are those of Lemma 4.3 and appendix D.3, and hold for any multiplier and learning rate of the
    branches.

    Parameters
    ----------
    theory : Theory
        A linear theory with one forward field and one backward field in each layer, its equations and
        sources in this order.

    Returns
    -------
    CrossLayer
        The recursions of Gamma and C.

    Raises
    ------
    NotApplicable
        If the theory has other fields or families of sources, or if the covariance of a source is not a
        single order parameter.

    Notes
    -----
    ``Gamma_ab(ell, k, t, s) = sqrt(L) d field_a(ell, t) / d source_b(W^k, s)`` with a, b = 0 forward and 1
    backward; ``Gamma_aU(ell, t)`` and ``Gamma_aV`` are responses to the frozen ends, without the factor. The
    correlations ``C_0(k, t, s)`` and ``C_1(k, t, s)`` are the covariances of the forward and backward source
    of W^k.

    Examples
    --------
    >>> from derive import mean_field
    >>> from derive.program.networks.residual import depth_program
    >>> for x in gamma_c_recursion(mean_field(depth_program())).response("Gamma_01", ell).terms:
    ...     print(x.expr)
    Sum(Gamma_01(ell - 1, ell, t, s_)*Gamma_11(ell, k, s_, s)/L, (s_, s, t - 1))
    Sum(-C_0(ell, t, s_)*Gamma_11(ell, k, s_, s)/L, (s_, s, t - 1))
    Gamma_01(ell - 1, k, t, s)
    """
    cross = rescale(cross_layer(theory), 1 / sqrt(L))
    families = [u for u in theory.sources if u.ranges]
    if len(families) != 2:
        raise NotApplicable(
            "the rescaled theory is derived for two sources with indices, those of the forward and of the "
            f"backward field of a layer; the theory has {[str(u.symbol) for u in families]}"
        )
    fields = [e.name for e in theory.equations if e.layers]
    if len(fields) != 2:
        raise NotApplicable(
            "the rescaled theory is derived for one forward and one backward field in each layer; the "
            f"theory has the fields {fields}"
        )
    shifts = {str(u.symbol.func): ell - u.symbol.args[0] for u in families}
    named: dict[str, tuple[str, Expr]] = {}
    for b, u in enumerate(families):
        if not isinstance(u.covariance, AppliedUndef):
            raise NotApplicable(
                f"the covariance of the source {u.symbol} is {u.covariance}; the rescaled theory is derived "
                "only where it is a single order parameter"
            )
        named[str(u.covariance.func)] = (f"C_{b}", ell - u.covariance.args[0])
    labels = {str(u.symbol.func): str(b) for b, u in enumerate(families)}
    labels |= {p.name: p.name for p in cross.perturbed_sources if p.layers is None}
    answers = {f"R_{f}{p}": f"Gamma_{a}{b}" for a, f in enumerate(fields) for p, b in labels.items()}
    cross = relabelled(cross, shifts)

    def put(e: Expr) -> Expr:
        e = rewritten(e, answers, lambda x: Function(answers[str(x.func)])(*x.args))
        covariances = {x: named[str(x.func)] for x in e.atoms(AppliedUndef) if str(x.func) in named}
        return e.xreplace({x: Function(n)(x.args[0] + d, *x.args[1:]) for x, (n, d) in covariances.items()})

    def row(e: Eq) -> Eq:
        """Return an equation with the names C of the correlations, and Gamma of the responses.

        If its left-hand side is one of the C, the layer is shifted so that C(ell) is the covariance of the
        source of the weight matrix ``W^ell``.
        """
        back = {ell: ell - named[str(e.lhs.func)][1]} if str(e.lhs.func) in named else {}
        return Eq(put(e.lhs).xreplace(back), put(e.rhs).xreplace(back), evaluate=False)

    covariance_equations = [
        Eq(q.symbol, put(q.symbol), evaluate=False) for q in theory.order_parameters if q.name in named
    ]
    whole = cross.map(put)
    return replace(
        whole,
        responses=tuple(_mapped(e, put) for e in cross.responses),
        fields=tuple(Eq(put(e.lhs), e.rhs, evaluate=False) for e in whole.fields),
        correlations=tuple(row(e) for e in cross.correlations),
        scalars=tuple(Eq(put(e.lhs), e.rhs, evaluate=False) for e in whole.scalars),
        diagonal=(*whole.diagonal, *covariance_equations),
    )
