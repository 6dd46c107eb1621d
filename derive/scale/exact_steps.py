"""Order parameters of a linear theory at integer times, as rational functions of its symbols.

Where times and depth are numbers every order parameter is a rational function of the rate, gamma0 and the
ratios of the sizes.  A field is a linear form in the sources of its site, with such functions as
coefficients; correlations and responses follow from the forms, later ones from earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sympy import QQ, Add, Expr, Mul, Pow, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.errors import NotApplicable
from derive.program.words import eta, gamma0, s, t
from derive.scale.unrolled import Unrolled
from derive.theory.theory import Theory

Values = dict[AppliedUndef, Any]
"""Sources with coefficients, or order parameters with values: elements of a field of fractions."""


class ExactSteps:
    """Evaluates a linear theory in exact steps whose depth is a number.

    ``scaled`` multiplies the covariance of a source, by name: that of the target says how a step changes an
    error of any size.  ``order = (x, n)`` drops powers of the symbol x above n everywhere.  That is exact
    up to n for the rate, of which there are no negative powers; of gamma0, of which there are, two powers
    are lost.  Raises :class:`NotApplicable` for a depth that is a symbol and for what :class:`.Unrolled`
    refuses.

    >>> from derive.theory import mean_field
    >>> from derive.program import isotropic
    >>> from sympy import Function, factor
    >>> steps = ExactSteps(mean_field(isotropic(1, data="population", center=True)), order=(eta, 2))
    >>> factor(steps.expr(steps.value(Function("C_v")(2, 2))))
    (24*eta**2*nu + 6*eta**2 - 8*eta*nu + nu)/nu
    """

    def __init__(
        self,
        theory: Theory,
        *,
        scaled: Mapping[str, Symbol] | None = None,
        order: tuple[Symbol, int] | None = None,
    ) -> None:
        depth = theory.program.depth
        if not depth.is_Integer:
            raise NotApplicable(f"the depth {depth} is a symbol: exact steps beyond the first need a number")
        theory = theory.at_depth(int(depth))
        self.theory, self.read = theory, Unrolled(theory)
        self.scaled, self.order = dict(scaled or {}), order
        found: set[Symbol] = {eta, gamma0, *self.scaled.values()}
        told = [*(x.rhs for x in self.read.equations), *(sympify(u.covariance) for u in self.read.sources)]
        for e in told:
            found |= {x for x in e.free_symbols if isinstance(x, Symbol)}
        found -= {t, s}
        roots = {p for e in told for p in e.atoms(Pow) if not p.exp.is_Integer and p.base.is_Symbol}
        if roots:
            root = min(roots, key=str)
            raise NotApplicable(f"{root} is not rational: put in a number or a square (theory.map)")

        names = sorted(found, key=str)
        self.field = QQ.frac_field(*names)
        self.place = None if order is None else names.index(order[0])
        self.forms: dict[AppliedUndef, Values] = {}
        self.values: Values = {}
        self.covariances: dict[tuple[AppliedUndef, AppliedUndef], Any] = {}

    def expr(self, x: Any) -> Expr:
        """An element as an expression."""
        return self.field.to_sympy(x)

    def trimmed(self, x: Any) -> Any:
        """``x`` without the powers that are not asked for."""
        if self.order is None or not x or len(x.denom) != 1:
            return x
        i = self.place
        ((below, _),) = x.denom.terms()
        last = self.order[1] + below[i]
        if x.numer.degree(i) <= last:
            return x
        kept = x.numer.ring.from_dict({m: c for m, c in x.numer.terms() if m[i] <= last})
        return self.field(kept) / self.field(x.denom)

    # -- fields ----------------------------------------------------------------------------------------

    def form(self, field: AppliedUndef) -> Values:
        """A field at an integer time, in the sources of its site."""
        if field not in self.forms:
            equation, place = self.read.find(self.read.equations, lambda e: e.lhs, field)
            found: Values = {}
            for term in equation.terms:
                for part in self.read.written_out(term.expr.xreplace(place), field.args[-1]):
                    add_to(found, self.linear(part))
            cut = {k: self.trimmed(v) for k, v in found.items()}
            self.forms[field] = {k: v for k, v in cut.items() if v}
        return self.forms[field]

    def linear(self, part: Expr) -> Values:
        """One term, a factor times a field or a source."""
        if part == 0:
            return {}
        moving, factor = None, self.field.one
        for x in Mul.make_args(part):
            name = str(x.func) if isinstance(x, AppliedUndef) else ""
            if name in self.read.fields | self.read.source_names:
                if moving is not None:
                    raise NotApplicable(f"{part} is not linear in the fields")
                moving = x
            else:
                factor *= self.number(x)
        if moving is None:
            raise NotApplicable(f"{part} is not linear in the fields")
        if str(moving.func) in self.read.source_names:
            return {moving: factor}
        return {k: self.trimmed(v * factor) for k, v in self.form(moving).items()} if factor else {}

    def number(self, e: Expr) -> Any:
        """An expression of symbols and order parameters as an element."""
        if isinstance(e, AppliedUndef):
            return self.value(e)
        if isinstance(e, Add):
            return sum((self.number(x) for x in e.args), self.field.zero)
        if isinstance(e, Mul):
            found = self.field.one
            for x in e.args:
                found *= self.number(x)
            return found
        if isinstance(e, Pow) and e.exp.is_Integer:
            return self.number(e.base) ** int(e.exp)
        try:
            return self.field.from_sympy(e)
        except ValueError:
            raise NotApplicable(f"{e} differs between units, which is not served here") from None

    # -- order parameters ------------------------------------------------------------------------------

    def value(self, a: AppliedUndef) -> Any:
        """An order parameter at integer times."""
        a = self.read.standard(a)
        if not isinstance(a, AppliedUndef):
            return self.number(a)
        if a not in self.values:
            q, place = self.read.find(self.read.parameters, lambda q: q.symbol, a)
            definition = q.definition.xreplace(place).xreplace(dict(zip((t, s), a.args[-2:], strict=True)))
            averages = definition.atoms(Average)
            if len(averages) != 1:
                raise NotApplicable(f"{q.name} is a sum over units that differ, which is not served here")
            average = averages.pop()
            front = self.number((definition / average).expand())
            self.values[a] = self.trimmed(front * self.averaged(average.args[0]))
        return self.values[a]

    def averaged(self, body: Expr) -> Any:
        if isinstance(body, Response):
            return self.form(body.body).get(body.source, self.field.zero)
        factors = Mul.make_args(body) if isinstance(body, Mul) else (body.base, body.base)
        if not all(isinstance(x, AppliedUndef) and str(x.func) in self.read.fields for x in factors):
            raise NotApplicable(f"<{body}> is an average over units that differ, which is not served here")
        return self.overlap(self.form(factors[0]), self.form(factors[1]))

    def overlap(self, one: Values, two: Values) -> Any:
        """The average of the product of two forms."""
        total = self.field.zero
        for x, a in one.items():
            row = self.field.zero
            for y, b in two.items():
                c = self.covariance(x, y)
                if c:
                    row += self.trimmed(c * b)
            total += self.trimmed(a * row)
        return total

    def covariance(self, x: AppliedUndef, y: AppliedUndef) -> Any:
        if (x, y) not in self.covariances:
            found = self.number(self.read.covariance(x, y))
            if str(x.func) in self.scaled:
                found *= self.field.from_sympy(self.scaled[str(x.func)])
            self.covariances[x, y] = self.covariances[y, x] = found
        return self.covariances[x, y]


def add_to(form: Values, other: Values, factor: Any = None) -> None:
    """``form += factor * other``."""
    for x, c in other.items():
        c = c if factor is None else c * factor
        form[x] = form[x] + c if x in form else c


__all__ = ["ExactSteps", "Values", "add_to"]
