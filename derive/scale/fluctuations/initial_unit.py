"""One unit at the start of training: its Gaussian products, and the order parameters that average over it.

From `derive.fluctuations` the module derives averages over Gaussian numbers. At time 0 memories are empty, so
that each product of a weight and a vector is Gaussian with the covariance of its source, and an order
parameter is a Gaussian average in which earlier order parameters are covariances.
:mod:`derive.scale.fluctuations.initial` uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from sympy import Add, Expr, Mul, Pow, S, Sum, default_sort_key, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.sums import match, substitute
from derive.calculus.symbols import alpha, mu, primed, s, t
from derive.errors import NotApplicable
from derive.theory.fluctuations import ExponentTerm, FluctuatingParameter, Fluctuations, Hatted

START: dict[Expr, Expr] = {t: S.Zero, s: S.Zero}
"""Both times at the start of training."""
INSTANT = ("", "past", "all")
"""Reaches of terms that exist at the start; sums over earlier times are empty."""


class InitialUnits:
    """Averages over one unit at the start of training.

    Order parameters and fields have explicit indices: layers are integers or one symbol, and samples are
    symbols, where different symbols are different samples.

    Parameters
    ----------
    theory : Fluctuations
        Fluctuations of a program whose weights are drawn at the start.
    """

    def __init__(self, theory: Fluctuations) -> None:
        self.theory = theory
        self.products = {str(e.symbol.func) for e in theory.products}
        self.parameters = {(str(q.symbol.func), len(q.symbol.args)): q for q in theory.parameters}
        self._means: dict[Expr, Expr] = {}

    # -- order parameters ------------------------------------------------------------------------------------

    def family(self, atom: AppliedUndef) -> FluctuatingParameter:
        """Return the order parameter of which ``atom`` is a member."""
        return self.parameters[str(atom.func), len(atom.args)]

    def members_in(self, e: Expr) -> list[AppliedUndef]:
        """Return the order parameters in an expression."""
        found = (a for a in e.atoms(AppliedUndef) if (str(a.func), len(a.args)) in self.parameters)
        return sorted(found, key=default_sort_key)

    def binding(self, atom: AppliedUndef) -> dict[Expr, Expr]:
        """Return the values of indices and times at which a family has the member ``atom``."""
        q = self.family(atom)
        found = match(q.symbol, atom, q.ranges)
        if found is None:
            raise KeyError(f"{atom} is no member of {q.symbol}")
        return {**found, **START}

    def unit(self, atom: AppliedUndef) -> Expr:
        """Return the averaged function of an order parameter, in products and their hats."""
        return self.written(substitute(self.family(atom).unit, self.binding(atom)))

    def place(self, atom: AppliedUndef) -> tuple[str, Expr] | None:
        """Return population and layer of the average of an order parameter; None for a function."""
        home = self.family(atom).home
        if home is None:
            return None
        layer = (
            S.Zero if home.site is None or home.shared else sympify(home.site).xreplace(self.binding(atom))
        )
        return home.name, layer

    def ratio(self, atom: AppliedUndef) -> Expr:
        """Return the number of units in the average of an order parameter, in units of N."""
        home = self.family(atom).home
        return S.One if home is None else sympify(home.ratio).xreplace(self.binding(atom))

    def canonical(self, e: Expr) -> Expr:
        """Return an expression with ``C_ba`` written as ``C_ab``, which is the same number at equal times."""
        e = e.xreplace({a: self._ordered(a) for a in self.members_in(e)})
        kernels = {x.kernel for x in self.theory.program.given}
        given = (a for a in e.atoms(AppliedUndef) if str(a.func) in kernels and len(a.args) == 2)
        return e.xreplace({a: a.func(*sorted(a.args, key=_label_order)) for a in given})

    def _ordered(self, a: AppliedUndef) -> Expr:
        """Return a correlation with its vectors in standard order."""
        q = self.family(a)
        if q not in self.symmetric:
            return a
        at = self.binding(a)
        pairs = [(x, primed(x)) for x in at if primed(x) in at and x not in START]
        swapped = q.symbol.xreplace({**at, **{x: at[y] for x, y in pairs}, **{y: at[x] for x, y in pairs}})
        return min(q.symbol.xreplace(at), swapped, key=lambda x: [_label_order(y) for y in x.args])

    @cached_property
    def symmetric(self) -> list[FluctuatingParameter]:
        """Correlations of a vector with itself."""
        found = []
        for q in self.theory.parameters:
            indices = [r.index for r in q.ranges]
            pairs = [(x, primed(x)) for x in indices if primed(x) in indices]
            both = dict(pairs) | {y: x for x, y in pairs}
            if q.kind == "correlation" and q.unit.xreplace(START) == q.unit.xreplace(both).xreplace(START):
                found.append(q)
        return found

    # -- fields ----------------------------------------------------------------------------------------------

    def written(self, body: Expr) -> Expr:
        """Return an expression at the start with products in place of fields."""
        body = body.xreplace(START)
        hats = {a for x in body.atoms(Hatted) for a in x.atoms(AppliedUndef)}
        found: dict[Expr, Expr] = {}
        for a in body.atoms(AppliedUndef) - hats:
            if str(a.func) in self.products:
                continue
            for e in self.theory.definitions:
                at = match(e.symbol, a, e.ranges)
                if at is not None:
                    found[a] = self.written(substitute(e.rhs, {**at, **START}))
                    break
        body = body.xreplace(found)
        return self.canonical(body.doit() if body.has(Sum) else body)

    def covariance(self, a: Expr, b: Expr) -> Expr:
        """Return the covariance of two products of one unit."""
        for x in self.theory.terms:
            if len(x.hats) != 2:
                continue
            first, second = (y.field for y in x.hats)
            for left, right in ((a, b), (b, a)):
                at = match(first, left, x.addend.over)
                at = None if at is None else match(second, right, x.addend.over, at)
                if at is not None:
                    return self.canonical(substitute(x.addend.expr, {**at, **START}))
        return S.Zero

    def average(self, body: Expr) -> Expr:
        """Return the average of a product of fields and hats over one unit.

        A hat differentiates all other factors by the product of its equation; the average of hats alone is
        zero.
        """
        total = []
        for term in Add.make_args(body.expand()):
            parts, hats = _without_hats(term)
            if hats and not self._products_in(parts):
                continue
            for field in hats:
                parts = parts.diff(field)
            total.append(self._gaussian(parts))
        return Add(*total)

    def _products_in(self, e: Expr) -> list[AppliedUndef]:
        """Return the products in an expression."""
        found = (a for a in e.atoms(AppliedUndef) if str(a.func) in self.products)
        return sorted(found, key=default_sort_key)

    def _gaussian(self, body: Expr) -> Expr:
        """Return the Gaussian average of an expression in products."""
        fields = self._products_in(body)
        if not fields:
            return body
        pairs = {(a, b): self.covariance(a, b) for i, a in enumerate(fields) for b in fields[i:]}
        return GaussianAverage(body, pairs).doit()

    # -- what the expansion needs ----------------------------------------------------------------------------

    def mean(self, atom: AppliedUndef) -> Expr:
        """Return the value at infinite width, in terms of earlier order parameters."""
        if atom not in self._means:
            q, at = self.family(atom), self.binding(atom)
            rest = [substitute(x.whole, at) for x in q.rest if x.reach in INSTANT]
            found = self.average(self.unit(atom)) + self.canonical(Add(*rest).doit())
            self._require_no_memory(self.unit(atom))
            self._means[atom] = found
        return self._means[atom]

    def _require_no_memory(self, body: Expr) -> None:
        """Raise if a response at equal times has a mean, so that a product is not its source alone."""
        for field in self._products_in(body):
            for _, atom in self.kernels(field):
                if self._response(atom) != 0:
                    raise NotApplicable(f"{atom} is not zero at the start, so that {field} is not Gaussian")

    def _response(self, atom: AppliedUndef) -> Expr:
        """Return a response at the start."""
        return self.average(self.unit(atom))

    def kernels(self, field: Expr) -> Iterator[tuple[Expr, AppliedUndef]]:
        """Yield the kernels that act on fields of the same time in a product: factors and order parameters.

        Summed samples keep their symbols, one for all.
        """
        for x in self.theory.terms:
            if len(x.hats) == 1 and x.addend.reach in INSTANT and str(x.hats[0].field.func) in self.products:
                yield from self._kernels_of(x, field)

    def _kernels_of(self, x: ExponentTerm, field: Expr) -> Iterator[tuple[Expr, AppliedUndef]]:
        """Yield the kernels in one term."""
        at = match(x.hats[0].field, field, x.addend.over)
        if at is None:
            return
        body = self.canonical(substitute(x.addend.expr, {**at, **START}))
        for atom in self.members_in(body):
            yield self.written(body.diff(atom)), atom

    def feedback(self, first: AppliedUndef) -> dict[AppliedUndef, Expr]:
        """Return the derivatives of one order parameter by all others at the start: a row of D."""
        value = self.mean(first)
        found = {atom: value.diff(atom) for atom in self.members_in(value)}
        unit = self.unit(first)
        for field in self._products_in(unit):
            for factor, atom in self.kernels(field):
                slope = self.average(unit * factor * Hatted(field))
                if slope != 0:
                    raise NotApplicable(f"{first} depends on the response {atom} at the start")
        return {atom: x for atom, x in found.items() if x != 0}

    def noise(self, first: AppliedUndef, second: AppliedUndef) -> Expr:
        """Return N times the covariance of two averages over units: kappa."""
        if self.place(first) != self.place(second) or self.place(first) is None:
            return S.Zero
        a, b = self.unit(first), self.unit(second)
        return (self.average(a * b) - self.average(a) * self.average(b)) / self.ratio(first)


def _label_order(x: Expr) -> tuple[int, Any]:
    """Return the sort key of a sample: mu, alpha, then the others."""
    return (mu, alpha).index(x) if x in (mu, alpha) else 2, default_sort_key(x)


def _without_hats(term: Expr) -> tuple[Expr, list[Expr]]:
    """Return a product without its hats, and the products of these hats."""
    parts, hats = S.One, []
    for x in Mul.make_args(term):
        base, power = (x.base, x.exp) if isinstance(x, Pow) else (x, S.One)
        if isinstance(base, Hatted):
            hats += [base.field] * int(power)
        else:
            parts *= x
    return parts, hats
