"""One unit at the start of training: its Gaussian products, and the order parameters that average over it.

From the fluctuations of a program (`derive.fluctuations`) the module derives averages over Gaussian numbers.
At time 0 sums over earlier times are empty. A product of a weight and a vector is then Gaussian with the
covariance of its source, unless its equation contains a response at equal times that is not zero; averages
over such a product raise NotApplicable. An order parameter that averages over units is a Gaussian average in
which earlier order parameters are covariances. :mod:`derive.scale.fluctuations.initial` uses the module.
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
        """Return the family of order parameters, with symbolic layer and samples, to which ``atom`` belongs.

        For ``C_h(2, mu, nu)`` it is that of ``C_h(ell, ...)``.
        """
        return self.parameters[str(atom.func), len(atom.args)]

    def members_in(self, e: Expr) -> list[AppliedUndef]:
        """Return the order parameters in an expression, sorted."""
        members = (a for a in e.atoms(AppliedUndef) if (str(a.func), len(a.args)) in self.parameters)
        return sorted(members, key=default_sort_key)

    def binding(self, atom: AppliedUndef) -> dict[Expr, Expr]:
        """Return the values of the symbolic indices and times of a family at which it is ``atom``.

        Times are 0. Raises KeyError if ``atom`` does not belong to the family of its name.
        """
        q = self.family(atom)
        indices = match(q.symbol, atom, q.ranges)
        if indices is None:
            raise KeyError(
                f"the order parameter {atom} is not a member of the family {q.symbol} of order parameters"
            )
        return {**indices, **START}

    def unit(self, atom: AppliedUndef) -> Expr:
        """Return the function of one unit whose average over units is the order parameter ``atom``.

        Its variables are products of a weight and a vector, and response fields (hats), which stand for
        derivatives with respect to such products.
        """
        return self.in_products(substitute(self.family(atom).unit, self.binding(atom)))

    def place(self, atom: AppliedUndef) -> tuple[str, Expr] | None:
        """Return (name of the population, layer) over whose units an order parameter averages.

        The layer is 0 for a population without layers, or with the same units in all layers. Returns None for
        an order parameter that is a function of others and not an average.
        """
        home = self.family(atom).home
        if home is None:
            return None
        layer = (
            S.Zero if home.site is None or home.shared else sympify(home.site).xreplace(self.binding(atom))
        )
        return home.name, layer

    def ratio(self, atom: AppliedUndef) -> Expr:
        """Return the number of units over which an order parameter averages, divided by N.

        It is 1 for an order parameter that is a function of others and not an average.
        """
        home = self.family(atom).home
        return S.One if home is None else sympify(home.ratio).xreplace(self.binding(atom))

    def canonical(self, e: Expr) -> Expr:
        """Return an expression with the samples of symmetric order parameters in standard order.

        ``C(b, a)`` is written as ``C(a, b)``, which is the same number at equal times. Input kernels are
        symmetric too.
        """
        e = e.xreplace({a: self._ordered(a) for a in self.members_in(e)})
        kernels = {x.kernel for x in self.theory.program.given}
        input_kernels = (a for a in e.atoms(AppliedUndef) if str(a.func) in kernels and len(a.args) == 2)
        return e.xreplace({a: a.func(*sorted(a.args, key=_label_order)) for a in input_kernels})

    def _ordered(self, a: AppliedUndef) -> Expr:
        """Return a correlation of a vector with itself with its two samples in standard order.

        The value is the same, because both times are 0. Other order parameters are returned unchanged.
        """
        q = self.family(a)
        if q not in self.symmetric:
            return a
        at = self.binding(a)
        pairs = [(x, primed(x)) for x in at if primed(x) in at and x not in START]
        swapped = q.symbol.xreplace({**at, **{x: at[y] for x, y in pairs}, **{y: at[x] for x, y in pairs}})
        return min(q.symbol.xreplace(at), swapped, key=lambda x: [_label_order(y) for y in x.args])

    @cached_property
    def symmetric(self) -> list[FluctuatingParameter]:
        """Order parameters that are correlations of a vector with itself."""
        correlations = []
        for q in self.theory.parameters:
            indices = [r.index for r in q.ranges]
            pairs = [(x, primed(x)) for x in indices if primed(x) in indices]
            exchanged = dict(pairs) | {y: x for x, y in pairs}
            if q.kind == "correlation" and q.unit.xreplace(START) == q.unit.xreplace(exchanged).xreplace(
                START
            ):
                correlations.append(q)
        return correlations

    # -- fields ----------------------------------------------------------------------------------------------

    def in_products(self, body: Expr) -> Expr:
        """Return an expression at time 0 with fields of a unit replaced by their definitions.

        The definitions are in terms of products of a weight and a vector, which are Gaussian.
        """
        body = body.xreplace(START)
        hats = {a for x in body.atoms(Hatted) for a in x.atoms(AppliedUndef)}
        fields: dict[Expr, Expr] = {}
        for a in body.atoms(AppliedUndef) - hats:
            if str(a.func) in self.products:
                continue
            for e in self.theory.definitions:
                at = match(e.symbol, a, e.ranges)
                if at is not None:
                    fields[a] = self.in_products(substitute(e.rhs, {**at, **START}))
                    break
        body = body.xreplace(fields)
        return self.canonical(body.doit() if body.has(Sum) else body)

    def covariance(self, a: Expr, b: Expr) -> Expr:
        """Return the covariance at the start of training of two variables a and b of one unit.

        Both are products of a random weight and a vector, whose covariance is that of their sources. It is
        zero if the theory has no covariance of these sources.
        """
        for x in self.theory.terms:
            if len(x.hats) != 2:
                continue
            first, second = (y.field for y in x.hats)
            for one, other in ((a, b), (b, a)):
                at = match(first, one, x.addend.over)
                at = None if at is None else match(second, other, x.addend.over, at)
                if at is not None:
                    return self.canonical(substitute(x.addend.expr, {**at, **START}))
        return S.Zero

    def average(self, body: Expr) -> Expr:
        """Return the average over one unit of an expression in fields and response fields (hats).

        A hat stands for the derivative of all other factors with respect to one product of a weight and a
        vector. Terms of hats alone have the average zero.
        """
        total = []
        for term in Add.make_args(body.expand()):
            body_, hats = _without_hats(term)
            if hats and not self._products_in(body_):
                continue
            for field in hats:
                body_ = body_.diff(field)
            total.append(self._gaussian(body_))
        return Add(*total)

    def _products_in(self, e: Expr) -> list[AppliedUndef]:
        """Return the Gaussian variables in an expression: products of a weight and a vector."""
        products = (a for a in e.atoms(AppliedUndef) if str(a.func) in self.products)
        return sorted(products, key=default_sort_key)

    def _gaussian(self, body: Expr) -> Expr:
        """Return the average of a function of products of a weight and a vector, which are jointly Gaussian.

        Their covariances are those of :meth:`covariance`.
        """
        fields = self._products_in(body)
        if not fields:
            return body
        pairs = {(a, b): self.covariance(a, b) for i, a in enumerate(fields) for b in fields[i:]}
        return GaussianAverage(body, pairs).doit()

    # -- means, derivatives and noise ------------------------------------------------------------------------

    def mean(self, atom: AppliedUndef) -> Expr:
        """Return the value of an order parameter at infinite width, in terms of earlier order parameters.

        Raises NotApplicable if it averages over a product that is not Gaussian at time 0.
        """
        if atom not in self._means:
            q, at = self.family(atom), self.binding(atom)
            further = [substitute(x.whole, at) for x in q.rest if x.reach in INSTANT]
            value = self.average(self.unit(atom)) + self.canonical(Add(*further).doit())
            self._require_no_memory(self.unit(atom))
            self._means[atom] = value
        return self._means[atom]

    def _require_no_memory(self, body: Expr) -> None:
        """Raise NotApplicable if a product of a weight and a vector in ``body`` is not Gaussian at time 0.

        The product is not Gaussian if its equation contains a response at equal times that is not zero.
        """
        for field in self._products_in(body):
            for _, atom in self.kernels(field):
                if self._response(atom) != 0:
                    raise NotApplicable(
                        f"fluctuations at the start of training are not derived: the response {atom} is not "
                        f"zero, so that {field} is not Gaussian"
                    )

    def _response(self, atom: AppliedUndef) -> Expr:
        """Return the value at time 0 of a response, an order parameter whose definition contains a hat."""
        return self.average(self.unit(atom))

    def kernels(self, field: Expr) -> Iterator[tuple[Expr, AppliedUndef]]:
        """Yield (factor, order parameter) for each term in the equation of ``field`` that exists at time 0.

        ``field`` is a product of a weight and a vector, and the factor multiplies the order parameter in its
        equation. An index that is summed keeps its symbol. Sums over earlier times do not exist at time 0.
        """
        for x in self.theory.terms:
            if len(x.hats) == 1 and x.addend.reach in INSTANT and str(x.hats[0].field.func) in self.products:
                yield from self._kernels_of(x, field)

    def _kernels_of(self, x: ExponentTerm, field: Expr) -> Iterator[tuple[Expr, AppliedUndef]]:
        """Yield (factor, order parameter) for each order parameter in one term of the equation of ``field``.

        ``x`` is a term of the exponent of the path integral; nothing is yielded if it belongs to the equation
        of another field.
        """
        at = match(x.hats[0].field, field, x.addend.over)
        if at is None:
            return
        body = self.canonical(substitute(x.addend.expr, {**at, **START}))
        for atom in self.members_in(body):
            yield self.in_products(body.diff(atom)), atom

    def feedback(self, first: AppliedUndef) -> dict[AppliedUndef, Expr]:
        """Return the nonzero derivatives of the mean of an order parameter by others at time 0.

        They form one row of the matrix D of direct derivatives. Raises NotApplicable if the order parameter
        depends on a response at time 0.
        """
        value = self.mean(first)
        derivatives = {atom: value.diff(atom) for atom in self.members_in(value)}
        unit = self.unit(first)
        for field in self._products_in(unit):
            for factor, atom in self.kernels(field):
                slope = self.average(unit * factor * Hatted(field))
                if slope != 0:
                    raise NotApplicable(
                        f"fluctuations at the start of training are not derived: the order parameter {first} "
                        f"depends on the response {atom}"
                    )
        return {atom: x for atom, x in derivatives.items() if x != 0}

    def noise(self, first: AppliedUndef, second: AppliedUndef) -> Expr:
        """Return N times the covariance of two order parameters from the randomness of units alone (kappa).

        All other order parameters have fixed values. The result is zero unless both order parameters are
        averages over the units of one population at one layer.
        """
        if self.place(first) != self.place(second) or self.place(first) is None:
            return S.Zero
        a, b = self.unit(first), self.unit(second)
        return (self.average(a * b) - self.average(a) * self.average(b)) / self.ratio(first)


def _label_order(x: Expr) -> tuple[int, Any]:
    """Return a sort key of a symbol of a sample: mu is first, then alpha, then all others."""
    return (mu, alpha).index(x) if x in (mu, alpha) else 2, default_sort_key(x)


def _without_hats(term: Expr) -> tuple[Expr, list[Expr]]:
    """Return (product of the other factors, list of the fields of the hats) of a product of factors.

    A hat is a response field; a power of a hat adds its field several times.
    """
    parts, hats = S.One, []
    for x in Mul.make_args(term):
        base, power = (x.base, x.exp) if isinstance(x, Pow) else (x, S.One)
        if isinstance(base, Hatted):
            hats += [base.field] * int(power)
        else:
            parts *= x
    return parts, hats
