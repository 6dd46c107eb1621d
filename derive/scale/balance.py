"""Rich training by dominant balance: the power of gamma0 with which every part of a linear theory goes.

For gamma0 -> oo the random start of the weights is small beside what they have learnt.  In the derived
equations that is said term by term: what a weight's updates gave (memory) balances the field, and what its
start gave (sources, responses) must come out smaller.  The balance is one linear system for the powers, with
the layer and the depth as symbols; the learning rate is one of its unknowns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sympy import Add, Eq, Expr, Mul, Poly, Pow, S, Symbol, fraction, log, sign, solve, together
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import IndexRange, L, ell, eta, gamma0, s, t
from derive.errors import NotApplicable
from derive.linear.form import Row, linear_form
from derive.show.latex import aligned_latex
from derive.theory import Equation, OrderParameter, Term, Theory

i, j = Symbol("i", nonnegative=True), Symbol("j", nonnegative=True)
"""How far a layer is from the first one, and from the last."""


@dataclass(frozen=True)
class Balance:
    """How the parts of a linear theory grow with gamma0 (and go with other parameters).

    ``rate`` is the learning rate at which training takes a number of steps that does not grow, up to a
    number, and ``sizes`` are those of the fields, each a product of powers.  ``dropped`` holds the terms that
    the random start gives, with their size beside the field in whose equation they stand, where that is
    largest over the layers; ``neglected`` is the largest of these.
    """

    theory: Theory
    rate: Expr
    sizes: Mapping[Expr, Expr]
    dropped: Mapping[Expr, Expr]
    neglected: Expr

    def conditions(self) -> tuple[str, ...]:
        """What the balance rests on, in words, and of each whether it is derived or assumed."""
        return (
            "assumed: as gamma0 -> oo, what updates gave to a weight balances the field in every equation",
            "assumed: powers of gamma0 are affine in the layer, unless the depth is a number",
            "derived: these powers; that what the random start gives is smaller, term by term",
        )

    def _repr_latex_(self) -> str:
        sizes = ((eta, self.rate), *self.sizes.items())
        return aligned_latex((Eq(x, e, evaluate=False) for x, e in sizes), self.theory)


def dominant_balance(theory: Theory) -> Balance:
    """The balance of a linear theory in exact steps as gamma0 -> oo; its depth is ``L`` or a number.

    Raises :class:`NotApplicable` where the powers are not affine in the layer, where more than one balance
    is possible, and where the random start is not smaller than what is learnt.

    >>> from derive.theory import mean_field
    >>> from derive.program import isotropic
    >>> found = dominant_balance(mean_field(isotropic(data="population", center=True)))
    >>> print(found.rate, found.neglected)
    gamma0**(-2*L/(L + 1)) gamma0**(-1/(L + 1))
    """
    if not theory.program.rule.discrete:
        raise NotApplicable("a flow has no learning rate: give the rule as exact steps")
    return _Balance(theory).found()


class _Balance:
    def __init__(self, theory: Theory) -> None:
        depth = theory.program.depth
        self.fixed = bool(depth.is_Integer)
        self.theory = theory.at_depth(int(depth)) if self.fixed else theory
        self.form = linear_form(self.theory)
        self.trained = {w.name for w in theory.program.trained()}
        self.unknown: dict[Expr, Symbol] = {}
        self.solved: dict[Symbol, Expr] = {}
        self.rate = self.named(eta)

    def found(self) -> Balance:
        rows = [row for e in self.theory.equations for row in self.rows(e)]
        unknown = list(self.unknown.values())
        solutions = solve(rows, unknown, dict=True)
        if len(solutions) != 1 or set(solutions[0]) != set(unknown):
            raise NotApplicable("updates do not balance in one way, with powers that are affine in the layer")
        self.solved = solutions[0]
        dropped = {}
        for e in self.theory.equations:
            for x in e.terms:
                if x not in self.kept(e):
                    dropped[x.expr] = self.largest(x, e)
        fields = {e.lhs: _monomial(self.value(self.size(e.lhs))) for e in self.theory.equations}
        worst = _greatest(dropped.values())
        relative = {x: _monomial(e) for x, e in dropped.items()}
        return Balance(self.theory, _monomial(self.value(self.rate)), fields, relative, _monomial(worst))

    def rows(self, e: Equation) -> Iterator[Expr]:
        """What must vanish for the kept terms to be as large as the field."""
        for x in self.kept(e):
            for part in Add.make_args(x.coefficient * x.kernel * x.field):
                gap = (self.size(part) - self.size(e.lhs)).expand()
                yield from Poly(gap, ell).coeffs() if gap.has(ell) else [gap]

    def kept(self, e: Equation) -> tuple[Term, ...]:
        """Updates and what nobody trains, the target; all terms of a definition, which has no updates."""
        if not any(x.kind == "memory" for x in e.terms):
            return e.terms
        return tuple(x for x in e.terms if x.kind == "memory" or x.matrix not in self.trained)

    def value(self, e: Expr) -> Expr:
        return e.xreplace(self.solved).expand()

    # -- sizes -------------------------------------------------------------------------------------------

    def named(self, key: Expr) -> Symbol:
        return self.unknown.setdefault(key, Symbol(f"_{len(self.unknown)}"))

    def size(self, e: Expr) -> Expr:
        """The logarithm of the size of a product, in those of parameters and of unknowns."""
        if e.is_Number:
            return S.Zero
        if isinstance(e, Mul):
            return Add(*[self.size(x) for x in e.args])
        if isinstance(e, Pow):
            return e.exp * self.size(e.base)
        if e == eta:
            return self.rate
        if isinstance(e, Symbol):
            return log(e)
        if isinstance(e, AppliedUndef):
            return self.of_name(e)
        raise NotApplicable(f"{e} is no product of fields, order parameters and numbers")

    def of_name(self, a: AppliedUndef) -> Expr:
        name = str(a.func)
        field = self.theory.program.field_of(name)
        if field is not None:
            if not field.layered:
                return self.named(a.func())
            if a.args[0].is_Integer and self.fixed:
                return self.named(a.func(a.args[0]))
            return self.named(a.func(S.Zero)) + self.named(a.func(S.One)) * a.args[0]
        for u in self.theory.sources:
            for symbol in (u.symbol, u.partner):
                if (place := _place(symbol, a, u.ranges)) is not None:
                    return self.size(u.covariance.xreplace(place)) / 2
        for q in self.theory.order_parameters:
            if (place := _place(q.symbol, a, q.ranges)) is not None:
                return self.average(q, place)
        raise NotApplicable(f"the theory has nothing for {a}")

    def average(self, q: OrderParameter, place: Mapping[Expr, Expr]) -> Expr:
        (average,) = q.definition.atoms(Average)
        rest, body = q.definition / average, average.args[0].xreplace(place)
        if isinstance(body, Response):
            return self.size(rest) + self.pushed(body.body, body.source, ())
        return self.size(rest) + self.size(body)

    def pushed(self, field: AppliedUndef, source: AppliedUndef, met: tuple[Expr, ...]) -> Expr:
        """How a field moves with a source of its unit: along its own updates, to which all else is small."""
        row, place = self.row(field)
        ways = []
        for x in row.sources:
            u = x.field.xreplace(place)
            if u.func == source.func and u.args[:-1] == source.args[:-1]:
                ways.append(self.size(x.weight.xreplace(place)))
        for x in row.actions:
            a = x.field.xreplace(place)
            known = x.term.kind == "response" or a.func in (field.func, *met)
            if known or a.args[:-1] != self.site(field, a):
                continue
            try:
                ways.append(self.size(x.weight.xreplace(place)) + self.pushed(a, source, (*met, field.func)))
            except _Nowhere:
                continue
        if not ways:
            raise _Nowhere(f"{field} does not move with {source}")
        return ways[0] if len({self.value(x) for x in ways}) == 1 else _greatest(map(self.value, ways))

    def site(self, field: AppliedUndef, other: AppliedUndef) -> tuple[Expr, ...] | None:
        """The layer of ``field``, if ``other`` is a field of the same units."""
        ours, theirs = (self.theory.program.field_of(str(a.func)) for a in (field, other))
        if ours is None or theirs is None or ours.population != theirs.population:
            return None
        return tuple(field.args[:-1])

    def row(self, a: AppliedUndef) -> tuple[Row, dict[Expr, Expr]]:
        """The equation of a field, and what ``ell`` is there."""
        for r in self.form.rows:
            if (place := _place(r.lhs, a, r.equation.ranges)) is not None:
                return r, place
        raise NotApplicable(f"the theory has no equation of {a}")

    # -- what is left out ----------------------------------------------------------------------------------

    def largest(self, x: Term, e: Equation) -> Expr:
        """The logarithm of a term over its field, at the layer where it is largest."""
        gap = self.value(self.size(x.coefficient * x.kernel * x.field) - self.size(e.lhs))
        layers = [r for r in e.ranges if r.index == ell]
        at = [gap.xreplace({ell: end}).expand() for r in layers for end in (r.lower, r.upper)] or [gap]
        worst = _greatest(at)
        if _sign(worst.coeff(log(gamma0))) != -1:
            raise NotApplicable(f"{x.expr} is no smaller than {e.lhs} as gamma0 -> oo")
        return worst


class _Nowhere(NotApplicable):
    """A field that does not depend on the source asked for."""


def _place(head: Expr, a: AppliedUndef, ranges: tuple[IndexRange, ...]) -> dict[Expr, Expr] | None:
    """What ``ell`` must be for ``head`` to be ``a``, times aside; None if it is not."""
    if not isinstance(head, AppliedUndef) or head.func != a.func or len(head.args) != len(a.args):
        return None
    if any(r.index == ell for r in ranges):
        return {ell: a.args[0] - (head.args[0] - ell)}
    return {} if all(x in (t, s, y) for x, y in zip(head.args, a.args, strict=True)) else None


def _monomial(e: Expr) -> Expr:
    """The product of powers whose logarithm is ``e``."""
    logs = sorted(e.atoms(log), key=str)
    return Mul(*[x.args[0] ** together(e.coeff(x)).factor() for x in logs])


def _greatest(logarithms: Iterable[Expr]) -> Expr:
    """The greatest as gamma0 -> oo; other parameters decide between equals."""
    values = list(logarithms)
    best = values[0]
    for x in values[1:]:
        if _sign((x - best).coeff(log(gamma0))) == 1:
            best = x
    return best


def _sign(e: Expr) -> int:
    """The sign of a rational function of the depth and the layer, at any; NotApplicable if it has none."""
    product = 1
    for x in fraction(together(e.xreplace({L: 1 + i + j, ell: 1 + i}))):
        signs = {int(sign(c)) for c in Poly(x, i, j).coeffs()}
        if len(signs) > 1:
            raise NotApplicable(f"{e} changes its sign with the depth")
        product *= signs.pop()
    return product
