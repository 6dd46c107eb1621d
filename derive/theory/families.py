"""Layer families with their first and last layers included, and the base cases under which these fit.

A theory states the first or last layer separately, because its equation was derived separately. At that layer
the equation of the inner layers contains order parameters beyond their range (H^0, G^{L+1}, A^0, B^L). If
matching term by term with the separate equation gives each of them a value that is consistent in all
equations, the family is extended by one layer, and these values are its base cases. Otherwise the separate
equation, here called an end of the family, is kept. `Theory.render` and `unfold` use the module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sympy import Add, Expr, Integral, Mul, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.sums import without_empty
from derive.calculus.symbols import IndexRange, ell, s, t
from derive.theory.data import Equation, Source, Term, TheoryData

EquationOrSource = Equation | Source


@dataclass(frozen=True)
class Families:
    """Equations and sources of a theory in which first and last layers are part of the layer families.

    ``base_cases`` are equations that give order parameters beyond their range of layers the value with which
    the joined equations hold, such as ``A(0, mu, t, s) = 0``. Sums over layers in ``observables`` include the
    first and the last layer where these fit.
    """

    sources: tuple[Source, ...]
    equations: tuple[Equation, ...]
    observables: tuple[Equation, ...]
    base_cases: tuple[Equation, ...]


def families(theory: TheoryData) -> Families:
    """Return the statements of a theory with first and last layers joined to families where they fit.

    >>> from derive import mean_field, mlp
    >>> found = families(mean_field(mlp()))
    >>> for e in found.base_cases: print(e.lhs, "=", e.rhs)
    H(0, mu, alpha, t, s) = K_x(mu, alpha)
    G(L + 1, t, s) = 1
    A(0, mu, t, s) = 0
    B(L, alpha, t, s) = 0
    >>> [(e.lhs, e.ranges[0].lower, e.ranges[0].upper) for e in found.equations]
    [(h(ell, mu, t), 1, L), (g(ell, t), 1, L)]
    """
    return _FamilySearch(theory).run()


@dataclass(frozen=True)
class _End:
    """Separate equation or source that may be the first or last layer of a layer family.

    ``family`` is the equation or source of the other layers and ``boundary`` the separate one. ``layer`` is
    the value of the layer index, just below or just above its range, at which their left-hand sides agree.
    """

    family: EquationOrSource
    boundary: EquationOrSource
    layer: Expr


class _FamilySearch:
    """Search for first and last layers whose separate equations can be joined to those of a layer family.

    ``known`` maps (name, layer) of order parameters beyond their range of layers to the values with which the
    joined equations hold, as functions of the arguments with which the order parameter is defined.
    """

    def __init__(self, theory: TheoryData) -> None:
        self.theory = theory
        self.known: dict[tuple[str, Expr], Expr] = {}
        self.parameters = {q.name: q for q in theory.order_parameters}
        items: tuple[EquationOrSource, ...] = (
            *theory.sources,
            *theory.equations,
            *theory.scalars,
            *theory.observables,
        )
        self.indices = {t, s} | {r.index for x in items for r in x.ranges}
        self.fields = {e.name for e in theory.equations} | {str(u.symbol.func) for u in theory.sources}

    def run(self) -> Families:
        """Return the theory's equations and sources with first and last layers joined to layer families.

        Values of order parameters beyond their range of layers are found by comparison with the separate
        equations. A separate equation that does not agree with these values stays separate, and so does each
        other equation that needs one of its values. The search is then repeated.
        """
        ends = [*self.ends(self.theory.sources), *self.ends(self.theory.equations)]
        while True:
            self.known = {}
            for end in ends:
                self.solve(end)
            failed = [end for end in ends if not self.fits(end)]
            if not failed:
                break
            # The separate equations `failed` of first or last layers contradict values of order parameters
            # beyond the range of layers of these order parameters. Such a value is not a base case of the
            # family, so that other separate equations that need it are left out of the families too.
            contradicted = {key for end in failed for key in self.beyond(end)}
            ends = [end for end in ends if end not in failed and not contradicted & self.beyond(end)]
        sources = tuple(self.joined(self.theory.sources, ends))
        equations = tuple(self.joined(self.theory.equations, ends))
        observables = tuple(map(self.gathered, self.theory.observables))
        return Families(sources, equations, observables, self.base_cases())

    # -- candidates for ends of families ---------------------------------------------------------------

    def ends(self, items: tuple[Any, ...]) -> Iterator[_End]:
        """Yield the separate equations or sources that may be the first or last layer of a layer family.

        They are those of ``items`` whose left-hand side is that of the family at the layer just below or just
        above its range.
        """
        for family in items:
            r = family.layers
            if r is None or not family.symbol.args[0].has(ell):
                continue
            other_ranges = tuple(x for x in family.ranges if x is not r)
            single_layers = [x for x in items if x.layers is None and x.ranges == other_ranges]
            for layer in (r.lower - 1, r.upper + 1):
                shifted = [x.subs(ell, layer) for x in _heads(family)]
                yield from (_End(family, x, layer) for x in single_layers if _heads(x) == shifted)

    def extended(self, end: _End) -> list[tuple[str, Expr]]:
        """Return the terms of a layer family's equation as (kind, expression), at a layer beyond its range.

        The layer is that of ``end``, the separate equation of a first or last layer.
        """
        return [(kind, x.subs(ell, end.layer)) for kind, x in _terms(end.family)]

    def beyond(self, end: _End) -> set[tuple[str, Expr]]:
        """Return (name, layer) of order parameters beyond their range of layers in a family's equation.

        The equation is taken at the layer of ``end``, the separate equation of a first or last layer.
        """
        return {_key(a) for _, x in self.extended(end) for a in x.atoms(AppliedUndef) if self.outside(a)}

    def outside(self, atom: Expr) -> bool:
        """Return whether ``atom`` is an order parameter at a layer that is known to be beyond its range."""
        q = self.parameters.get(str(getattr(atom, "func", "")))
        r = None if q is None else q.layers
        if r is None:
            return False
        return bool((atom.args[0] - r.upper).is_positive or (r.lower - atom.args[0]).is_positive)

    # -- values of order parameters beyond their range -------------------------------------------------

    def solve(self, end: _End) -> None:
        """Find values of order parameters beyond their range of layers, and store them in ``known``.

        ``end`` is the separate equation of a first or last layer. The terms of the family's equation at that
        layer are compared with those of the separate equation. The value is zero if no term matches.
        """
        boundary = _terms(end.boundary)
        for kind, x in self.extended(end):
            a = self.substituted(x)
            for atom in sorted((a for a in a.atoms(AppliedUndef) if self.outside(a)), key=str):
                values = [v for k, b in boundary if k == kind and (v := _match(a, b, atom)) is not None]
                # The value of `atom`, an order parameter beyond its range of layers, may contain only indices
                # of `atom` and no field. The first line below drops candidates with other indices, the second
                # those with a field.
                values = [v for v in values if v.free_symbols & self.indices <= atom.free_symbols]
                values = [v for v in values if not self.fields & {str(x.func) for x in v.atoms(AppliedUndef)}]
                defined_arguments = dict(
                    zip(atom.args[1:], self.parameters[str(atom.func)].symbol.args[1:], strict=True)
                )
                self.known[_key(atom)] = values[0].xreplace(defined_arguments) if values else S.Zero

    def substituted(self, e: Expr) -> Expr:
        """Return ``e`` with order parameters at layers outside their range replaced by known values."""

        def value(a: Expr) -> Expr:
            arguments = self.parameters[str(a.func)].symbol.args[1:]
            renamed = dict(zip(arguments, a.args[1:], strict=True))
            return self.known[_key(a)].subs(renamed, simultaneous=True)

        table = {a: value(a) for a in e.atoms(AppliedUndef) if a.args and _key(a) in self.known}
        return without_empty(e.xreplace(table)) if table else e

    def fits(self, end: _End) -> bool:
        """Return whether a family's equation holds at a first or last layer with the values found so far.

        It holds if it has the same terms as ``end``, the separate equation of that layer.
        """
        ours = Counter((kind, y) for kind, x in self.extended(end) if (y := self.substituted(x)) != 0)
        return ours == Counter(_terms(end.boundary))

    def base_cases(self) -> tuple[Equation, ...]:
        """Return the values found for order parameters beyond their range of layers as equations."""
        equations = []
        for (name, layer), value in self.known.items():
            q = self.parameters[name]
            lhs = q.symbol.func(layer, *q.symbol.args[1:])
            ranges = tuple(r for r in q.ranges if r.index != ell)
            equations.append(
                Equation(lhs, (Term.local(value, "base case", rule="end of the family"),), ranges)
            )
        return tuple(equations)

    # -- the joined theory -----------------------------------------------------------------------------

    def joined(self, items: tuple[Any, ...], ends: list[_End]) -> Iterator[Any]:
        """Yield the equations or sources ``items`` with the layers of ``ends`` as part of layer families.

        The separate equations of ``ends`` (first or last layers) are left out, and the ranges of their
        families include these layers.
        """
        family_of = {id(end.boundary): end.family for end in ends}
        for family in dict.fromkeys(family_of.get(id(item), item) for item in items):
            yield _reaching(family, [end.layer for end in ends if end.family is family])

    def gathered(self, e: Equation) -> Equation:
        """Return an equation whose sum over layers includes separate terms that belong to it.

        A separate term belongs to the sum if it equals the summand, with base cases, one layer beyond the
        range.
        """
        terms = list(e.terms)
        for i, x in enumerate(terms):
            if isinstance(x.expr, Sum) and len(x.expr.limits) == 1 and x.expr.limits[0][0] == ell:
                _, lower, upper = x.expr.limits[0]
                other_terms = terms[:i] + terms[i + 1 :]
                for layer in (lower - 1, upper + 1):
                    value = self.substituted(x.expr.function.subs(ell, layer))
                    same = next((y for y in other_terms if y.expr == value), None)
                    if same is not None:
                        other_terms.remove(same)
                        lower, upper = (layer, upper) if layer == lower - 1 else (lower, layer)
                gathered = x.with_expression(Sum(x.expr.function, (ell, lower, upper)))
                return replace(e, terms=(gathered, *other_terms))
        return e


def _key(atom: Expr) -> tuple[str, Expr]:
    """Return name and layer of an order parameter; the layer is its first argument."""
    return str(atom.func), atom.args[0]


def _heads(item: EquationOrSource) -> list[Expr]:
    """Return the left-hand side of an equation, or the two correlated fields of a source."""
    return [item.lhs] if isinstance(item, Equation) else [item.symbol, item.partner]


def _terms(item: EquationOrSource) -> list[tuple[str, Expr]]:
    """Return (kind, expression) for each term of an equation; for a source, its covariance as one term."""
    if isinstance(item, Equation):
        return [(x.kind, x.expr) for x in item.terms]
    return [("covariance", sympify(item.covariance))]


def _match(a: Expr, b: Expr, unknown: Expr) -> Expr | None:
    """Return the value of ``unknown`` for which ``a`` equals ``b``, or None.

    A value is found if equal sums and factors can be removed from both until ``unknown`` is alone.
    """
    if a == unknown:
        return b
    if isinstance(a, Sum | Integral) and isinstance(b, a.func) and a.limits == b.limits:
        return _match(a.function, b.function, unknown)
    if isinstance(a, Mul):
        ours, theirs = Counter(Mul.make_args(a)), Counter(Mul.make_args(b))
        unmatched = list((ours - theirs).elements())
        if len(unmatched) == 1:
            return _match(unmatched[0], Mul(*(theirs - ours).elements()), unknown)
    return None


def _reaching(item: Any, layers: list[Expr]) -> Any:
    """Return the equation or source of a layer family with adjacent values of ell added to its range.

    The layer of the left-hand side becomes the index: ``h(ell + 1)`` for ell = 1..L-1, with the value 0 in
    ``layers``, becomes ``h(ell)`` for ell = 1..L.
    """
    r = item.layers
    if r is None or not layers:
        return item
    lower = r.lower - 1 if r.lower - 1 in layers else r.lower
    upper = r.upper + 1 if r.upper + 1 in layers else r.upper
    shift = item.symbol.args[0] - ell
    other_ranges = tuple(x for x in item.ranges if x is not r)
    ranges = (IndexRange(ell, Add(lower, shift), Add(upper, shift)), *other_ranges)

    def at(e: Expr) -> Expr:
        return sympify(e).subs(ell, ell - shift)

    return replace(item.map(at), ranges=ranges)
