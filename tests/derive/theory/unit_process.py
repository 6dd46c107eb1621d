"""One unit of a theory whose functions are polynomials: its fields as polynomials of Gaussian numbers.

Order parameters have given values, which need not solve the theory: averages over one unit and their
derivatives exist for all of them.  Every time, sample and layer is written out, and nothing is taken from the
exponent: fields follow from the equations of products and definitions, averages from the covariance of
sources, and a hat is the derivative by a number that is added to the equation of its field.
"""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Add, Dummy, Expr, Integer, KroneckerDelta, Piecewise, Poly, Rational, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import match, substitute
from derive.theory.fluctuations import Fluctuations
from derive.theory.fluctuations.coefficients import Propagator, ScaledCovariance


def fraction(a: Expr) -> Rational:
    """Return a fraction fixed by the name and the arguments of a function, rarely shared by others."""
    return Rational(sum(ord(x) * (k + 1) for k, x in enumerate(str(a))) % 19 - 9, 10)


class WrittenOut:
    """Expressions with sums over indices and times 0 to ``times - 1`` written out; ``numbers`` are values."""

    def __init__(self, times: int, numbers: Mapping[Symbol, Expr]) -> None:
        self.times, self.numbers = times, dict(numbers)

    def __call__(self, e: Expr) -> Expr:  # noqa: PLR0911 (one return for each kind of expression)
        """Return the expression without sums and cases, with the values of functions."""
        e = e.xreplace(self.numbers)
        if isinstance(e, Sum):
            *inner, (index, low, high) = e.limits
            body = Sum(e.function, *inner) if inner else e.function
            last = self.times - 1 if high is S.Infinity else int(high)
            return Add(*[self(substitute(body, {index: Integer(k)})) for k in range(int(low), last + 1)])
        if isinstance(e, Piecewise):
            return next((self(x) for x, condition in e.args if condition == True), S.Zero)  # noqa: E712
        if isinstance(e, Average):
            return self.average(e.body)
        if isinstance(e, AppliedUndef):
            return self.function(e)
        if isinstance(e, ScaledCovariance):
            return fraction(ScaledCovariance(*sorted(e.args, key=str)))
        if isinstance(e, Propagator):
            return fraction(e)
        return e.func(*map(self, e.args)) if e.args and not isinstance(e, KroneckerDelta) else e

    def function(self, a: AppliedUndef) -> Expr:
        """Return the value of a function."""
        return a

    def average(self, body: Expr) -> Expr:
        """Return the value of an average."""
        return Average(self(body))


class UnitProcess(WrittenOut):
    """The fields of one unit at times 0 to ``times - 1``.

    ``values`` are those of order parameters that are not to be fractions.
    """

    def __init__(
        self,
        found: Fluctuations,
        times: int,
        numbers: Mapping[Symbol, Expr],
        values: Mapping[Expr, Expr] | None = None,
    ) -> None:
        super().__init__(times, numbers)
        self.found, self.values = found, dict(values or {})
        self.gaussian = {str(x.func) for u in found.sources for x in (u.symbol, u.partner)}
        self.fields: dict[Expr, Expr] = {}
        self.pushes: dict[Expr, Dummy] = {}
        self.variables: dict[Expr, Dummy] = {}
        self.known: dict[tuple[Expr, Expr], Expr] = {}

    def function(self, a: AppliedUndef) -> Expr:
        """Return a source, a field, or the value of an order parameter or of data."""
        if str(a.func) in self.gaussian:
            return self.variables.setdefault(a, Dummy(str(a)))
        if str(a.func) in self.found.random:
            if a not in self.fields:
                self.fields[a] = self.field(a)
            return self.fields[a]
        return self.values.get(a, fraction(a))

    def field(self, a: AppliedUndef) -> Expr:
        """Return a field, with the number that perturbs it, as a polynomial of sources."""
        for e in (*self.found.products, *self.found.definitions):
            ranges = tuple(r.subs(self.numbers) for r in e.ranges)
            at = match(e.symbol.xreplace(self.numbers), a, ranges)
            if at is not None:
                return self(substitute(e.rhs, at)).expand() + self.pushes.setdefault(a, Dummy(f"push {a}"))
        raise KeyError(f"no equation for {a}")

    # -- averages --------------------------------------------------------------------------------------------

    def average(self, body: Expr) -> Expr:
        """Return the average of a polynomial of fields; responses are derivatives by perturbations."""
        hats = []
        while isinstance(body, Response):
            hats.append(body.source.xreplace(self.numbers))
            body = body.body
        value = self(body)
        for hat in hats:
            self.function(hat)
            value = value.diff(self.pushes[hat])
        value = value.xreplace(dict.fromkeys(self.pushes.values(), S.Zero)).expand()
        variables = sorted(value.atoms(Dummy) & {*self.variables.values()}, key=str)
        if not variables:
            return value
        places = {d: a for a, d in self.variables.items()}
        total = S.Zero
        for powers, coefficient in Poly(value, *variables).terms():
            factors = [places[d] for d, n in zip(variables, powers, strict=True) for _ in range(n)]
            total += coefficient * self.moment(tuple(factors))
        return total.expand()

    def moment(self, factors: tuple[Expr, ...]) -> Expr:
        """Return the average of a product of sources: all pairings."""
        if not factors:
            return S.One
        first, *others = factors
        pairs = enumerate(others)
        return Add(
            *[self.covariance(first, x) * self.moment((*others[:k], *others[k + 1 :])) for k, x in pairs]
        )

    def covariance(self, one: Expr, other: Expr) -> Expr:
        """Return the covariance of two sources, symmetric for a source with itself."""
        if (one, other) not in self.known:
            half = Rational(1, 2) if one.func == other.func else S.One
            both = self.stated(one, other) + self.stated(other, one)
            self.known[one, other] = half * both
        return self.known[one, other]

    def stated(self, one: Expr, other: Expr) -> Expr:
        """Return the covariance that is stated of two sources in this order, zero if none is stated."""
        for u in self.found.sources:
            ranges = tuple(r.subs(self.numbers) for r in u.ranges)
            at = match(u.symbol.xreplace(self.numbers), one, ranges)
            at = None if at is None else match(u.partner.xreplace(self.numbers), other, ranges, at)
            if at is not None:
                return self(substitute(u.covariance, at))
        return S.Zero
