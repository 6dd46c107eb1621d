"""Outputs of a linear network evaluated in its first layer instead of its last one.

An output is the overlap ``<g h>`` of a layer's field and gradient. Its change from layer to layer follows
from the theory: the field of the upper layer and the gradient of the lower one are replaced by their
equations, and Stein's lemma replaces sources by responses, so that both overlaps are expressions in the order
parameters. Terms of the upper field that the lower overlap does not contain are contributions of the layer;
all other terms must cancel. If one matrix leads from a layer to the next and back, there are no contributions
and every layer has the same overlap. After the projection on the error (:mod:`derive.linear.projection`) the
fields of samples above the first layer are then not needed by any other equation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sympy import Add, Expr, Function, Min, Mul, S, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import match, normal_form, substitute
from derive.calculus.symbols import IndexRange, ell, t
from derive.errors import NotApplicable
from derive.program.nonlinear import require_linear_rules
from derive.theory import Equation, Term, Theory, stein


def read_first(theory: Theory) -> Theory:
    """Return the theory with its output evaluated in the first layer.

    The output is the average ``<g h>`` of gradient and field of the last layer. The same average of the first
    layer differs from it by what further layers add (biases, for example). If they add anything, the
    additions become a new field such as ``h_own``, and the output is the average of the first layer plus the
    sum of ``<g h_own>`` over the other layers. Raises :class:`NotApplicable` for a training rule that is not
    linear in the updates, if the scalars contain other averages than one of a product of two fields of the
    last layer, or if the additions of a layer cannot be separated (another matrix on the way back, or a flow
    of several layers).

    >>> from derive import mean_field, mlp
    >>> print(read_first(mean_field(mlp())).equation("f").rhs)
    <g(1, t)*h(1, mu, t)>/gamma0
    >>> for x in read_first(mean_field(mlp(3, bias=True))).equation("h_own").terms: print(x.rule, x.expr)
    value at initialisation b(ell + 1, mu, t)
    updates so far Sum(eta*gamma0*Delta(alpha, s)*g(ell + 1, s), (alpha, 1, P), (s, 0, t - 1))
    """
    require_linear_rules(theory.program, "the march of linear networks")
    last, name = theory.program.depth, theory.program.name
    averages = [(e, a) for e in theory.scalars for a in e.rhs.atoms(Average)]
    pairs = [Mul.make_args(a.body) for _, a in averages]
    if len(pairs) != 1 or len(pairs[0]) != 2 or any(getattr(x, "args", ())[:1] != (last,) for x in pairs[0]):
        raise NotApplicable(
            f"the scalars of {name} must contain exactly one average, and this average must be of a "
            "product of two fields of the last layer"
        )
    ((output, overlap),) = averages

    def at(layer: Expr, e: Expr) -> Any:
        """Return an expression with ``layer`` for the last layer as the first argument of functions."""
        of_last = [a for a in e.atoms(AppliedUndef) if a.args[0] == last]
        return e.xreplace({a: a.func(layer, *a.args[1:]) for a in of_last})

    def terms(layer: Expr, k: int) -> dict[Term, Expr]:
        """Return the average ``<g h>`` at ``layer``, with its factor in the output, term by term.

        One of the two fields (number ``k``, 0 or 1) is replaced by its equation. Keys are the terms of this
        equation and values their contributions to the average. The result is empty if the field has no
        equation for inner layers.
        """
        opened = _opened(theory, [at(layer, x) for x in pairs[0]], k)
        return {x: at(layer, output.rhs / overlap) * value for x, value in opened.items()}

    def added(k: int) -> Equation | None:
        """Return the equation of what a layer adds to ``<g h>``, the average that gives the output.

        Field number ``k`` of the upper layer and the other field of the lower layer are replaced by their
        equations. Terms of the first equation that the second does not cancel are the addition. The result is
        None if the difference of the two averages is not the contribution of such terms, or if one of the
        fields has no equation for inner layers.
        """
        row, upper, lower = _row(theory, at(ell + 1, pairs[0][k])), terms(ell + 1, k), terms(ell, 1 - k)
        if row is None or not lower:
            return None

        def left(*without: Term) -> tuple[Expr, ...]:
            """Return the addends of ``<g h>`` at layer ell + 1 minus ``<g h>`` at layer ell.

            In the first of the two averages the contributions of the terms ``without`` are left out. The
            result is empty if everything cancels.
            """
            whole = Add(*[y for x, y in upper.items() if x not in without], *[-y for y in lower.values()])
            rest = normal_form(whole)
            return () if rest == 0 else Add.make_args(rest)

        every = len(left())
        kept = tuple(x for x in upper if len(left(x)) < every)
        if left(*kept):
            return None
        return replace(row, lhs=Function(f"{row.name}_own")(*row.lhs.args), terms=kept)

    ways = [e for k in (0, 1) if last != 1 and (e := added(k))]
    if last != 1 and not ways:
        raise NotApplicable(
            f"the output {output.rhs} of {name} cannot be evaluated in the first layer: the difference of "
            "this average between two neighbouring layers is not found as a sum of terms in the equation "
            "of one of its fields"
        )
    first = tuple(x.rewrite(lambda e: at(S.One, e)) for x in output.terms)
    added_equations = tuple(e for e in ways[:1] if e.terms)
    for e in added_equations:
        whole = next(at(ell + 1, x) for x in pairs[0] if e.name == f"{x.func}_own")
        more = Sum(at(ell + 1, output.rhs).xreplace({whole: e.lhs}), (ell, 1, last - 1))
        first += (Term.local(more.doit(deep=False), rule="contributions of the layers"),)
    scalars = tuple(replace(e, terms=first) if e is output else e for e in theory.scalars)
    reduction = "evaluation of outputs in the first layer"
    equations = (*theory.equations, *added_equations)
    return replace(theory, equations=equations, scalars=scalars, reduction=reduction)


def _row(theory: Theory, field: Expr) -> Equation | None:
    """Return the equation of ``field``, a field such as ``h(ell + 1)`` or ``g(ell)``, for inner layers.

    In such an equation ell runs from 1 to the depth minus 1, so that it holds for all layers but the first or
    the last. The result is None if there is no such equation of ``field`` at this layer.
    """
    inner = [e for e in theory.equations if _between(e.layers, theory)]
    return next((e for e in inner if (match(e.lhs, field, e.ranges) or {}).get(ell) == ell), None)


def _opened(theory: Theory, pair: list[Any], k: int) -> dict[Term, Expr]:
    """Return the average of a product of two fields, one replaced by its equation, term by term.

    The fields are ``pair``, and ``k`` (0 or 1) is the one that is replaced. Keys are the terms of the
    equation; values are the averages of term times other field, in order parameters. The result is
    empty if the field has no equation for inner layers.
    """
    field, other = pair[k], pair[1 - k]
    row = _row(theory, field)
    if row is None:
        return {}
    random = {x.name for x in (*theory.equations, *theory.sources)}
    strict = {q.symbol.func for q in theory.responses() if q.causal == "strict"}

    def traded(body: Expr) -> Expr:
        """Return the average of ``body`` with sources replaced by responses (Stein's lemma)."""
        return stein(Average(body), theory.sources).replace(Average, lambda x: _named(theory, x))

    def before(body: Expr, *limits: Any) -> Expr:
        """Return the sum of ``body`` over past times, with limits as in ``Sum``.

        The present t is left out if the body contains a response that is zero at equal times.
        """
        late = {a.args[-1] for a in body.atoms(AppliedUndef) if a.func in strict and a.args[-2] == t}
        body = body.xreplace({Min(v, t): v for v, _, up in limits if up in (t, t - 1)})
        return Sum(body, *[(v, low, t - 1 if v in late and up == t else up) for v, low, up in limits])

    at = match(row.lhs, field, row.ranges) or {}
    terms = {x: Average(substitute(x.expr, at) * other).linear(random) for x in row.terms}
    return {x: e.replace(Average, traded).replace(Sum, before) for x, e in terms.items()}


def _between(layers: IndexRange | None, theory: Theory) -> bool:
    """Return whether layers run from 1 to the depth minus 1: one for each pair of neighbouring layers."""
    return layers is not None and layers.lower == 1 and layers.upper == theory.program.depth - 1


def _named(theory: Theory, body: Expr) -> Expr:
    """Return the average of ``body`` in terms of the order parameter that is defined by it.

    The body may be the product of two fields or a response. If no order parameter is a multiple of this
    average, the average itself is returned.
    """
    response, other_fields = isinstance(body, Response), _leaves(body)
    for q in theory.order_parameters:
        (average,) = q.definition.atoms(Average)
        fields = _leaves(average.body)
        if isinstance(average.body, Response) != response or not len(fields) == len(other_fields) == 2:
            continue
        for one, two in [fields] if response else [fields, fields[::-1]]:
            at = match(one, other_fields[0], q.ranges)
            at = None if at is None else match(two, other_fields[1], q.ranges, at)
            if at is not None and at.get(t, t) == t:
                return substitute(q.symbol, at) * average / q.definition
    return Average(body)


def _leaves(body: Expr) -> list[Any]:
    """Return the factors of a product of fields, or field and source of a response, as a list."""
    return list(body.args) if isinstance(body, Response) else list(Mul.make_args(body))
