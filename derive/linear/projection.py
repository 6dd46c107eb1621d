"""Sums over samples taken once: inner products with the data's kernel, and projection on the error.

Sums over samples with Kronecker deltas and unit vectors, and the tensors that such sums keep among
themselves.

The error-projected closure: in a linear network only ``p(t) = sum_mu Delta_mu(t) h_mu(t)`` feeds back.

The backward fields see the samples only through p, so the P x P blocks of the closure collapse: the
response of g to the source u_alpha(s) is Delta_alpha(s) times its response to u_p = sum_alpha Delta_alpha
u_alpha.  Both statements are found by rewriting the derived equations, and refused when the rewriting
leaves anything over.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Add, Expr, Function, Mul, S, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, alpha, ell, mu, s, t
from derive.errors import NotApplicable
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.names import primed


def primed_free(x: Expr, taken: set[Expr]) -> Expr:
    """A name for an index made by priming until it is free."""
    y = primed(primed(x)) if x == mu else primed(x)
    return y if y not in taken else primed_free(y, taken)


def tidy_sums(e: Expr) -> Expr:
    """Pull constants out of sums, and give each summed index the first free name."""
    taken = e.free_symbols
    name = alpha if alpha not in taken else primed_free(alpha, taken)

    def tidy(x: Sum) -> Expr:
        (index, lower, upper), parts = x.limits[0], []
        for y in Add.make_args(x.function.expand()):
            fixed, moving = (
                Mul(*[z for z in Mul.make_args(y) if z.has(index) is has]) for has in (False, True)
            )
            own = index
            if name not in moving.free_symbols and not moving.has(Sum):
                moving, own = moving.xreplace({index: name}), name
            parts.append(fixed * Sum(moving, (own, lower, upper)))
        return Add(*parts)

    return e.replace(lambda x: isinstance(x, Sum) and len(x.limits) == 1, tidy)


def error_projected(theory: Theory, field: str = "h", error: str = "Delta") -> Theory:
    """Rewrite a linear theory in terms of the projection of ``field`` on ``error``.

    New names: ``p(ell, t)``, its source ``u_p(ell, t)``, ``q(ell, mu, t, s) = <h_mu(t) p(s)>`` and, for a
    response ``B`` to the source of ``field``, ``b`` with ``B_alpha(t, s) = b(t, s) Delta_alpha(s)``.
    Raises :class:`NotApplicable` when some other field depends on ``field`` otherwise than through the
    projection.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> print(error_projected(mean_field(mlp())).equation("g").rhs)
    r(L, t) + Sum(eta*gamma0*p(L, s), (s, 0, t - 1))
    """
    return _Projection(theory, field, error).reduce()


class _Projection:
    def __init__(self, theory: Theory, field: str, error: str) -> None:
        self.theory, self.field, self.error = theory, field, error
        self.p, self.q = Function("p"), Function("q")
        sources = {
            str(a.func)
            for e in theory.equations
            if e.name == field
            for x in e.terms
            if x.kind == "source"
            for a in x.expr.atoms(AppliedUndef)
        }
        if len(sources) != 1:
            raise NotApplicable(f"{field} must have one Gaussian source; it has {sorted(sources) or 'none'}")
        self.source = next(iter(sources))
        self.projected = Function(f"{self.source}_p")
        self.split: dict[str, str] = {}  # response to the source of the field -> its projected name
        for x in theory.responses():
            response = next(iter(x.definition.atoms(Response)))
            if str(response.source.func) == self.source:
                self.split[x.name] = x.name.lower()
        self.correlation = next((x.name for x in theory.correlations() if _pair_of(x, field)), None)
        if self.correlation is None:
            raise NotApplicable(f"the theory has no correlation function of {field}")

    def reduce(self) -> Theory:
        equations: list[Equation] = []
        for e in self.theory.equations:
            new = Equation(e.lhs, tuple(map(self.rewrite, e.terms)), e.ranges)
            self.refuse_leftovers(new)
            equations.append(new)
            if e.name == self.field:
                equations.append(self.projection_of(new))
        return replace(
            self.theory,
            sources=self.sources(),
            equations=tuple(equations),
            order_parameters=self.order_parameters(),
            reduction="error projection",
        )

    # -- sums over samples, term by term --------------------------------

    def rewrite(self, x: Term) -> Term:
        """Every ``sum_alpha Delta_alpha(s) ...`` in a term done, kernel and field by their new names."""
        x = x.map(self.split_responses)
        weight, field, left = x.coefficient * x.kernel, x.field, []
        for r in x.over:
            fixed, moving = _parted(weight, r)
            if not field.has(r.index):
                weight = fixed * self.named(moving, r)
            elif isinstance(found := self.named(moving * field, r), AppliedUndef):
                weight, field = fixed, found
            else:
                left.append(r)
        return replace(x, coefficient=S.One, kernel=weight, field=field, over=tuple(left))

    def split_responses(self, e: Expr) -> Expr:
        """``B_alpha(t, s) = b(t, s) Delta_alpha(s)``."""
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.split,
            lambda x: (
                Function(self.split[str(x.func)])(x.args[0], *x.args[2:])
                * Function(self.error)(x.args[1], x.args[3])
            ),
        )

    def named(self, moving: Expr, r: IndexRange) -> Expr:
        """``sum_alpha moving``: p or q by name, else as it stands."""
        rest = moving / Function(self.error)(r.index, s)
        if isinstance(rest, AppliedUndef):
            if str(rest.func) == self.field:
                return self.p(rest.args[0], s)
            if str(rest.func) == self.correlation:
                return self.q(rest.args[0], rest.args[1], *rest.args[3:])
        return over(moving, [r])

    def refuse_leftovers(self, e: Equation) -> None:
        for x in e.terms:
            past = [a for a in x.expr.atoms(AppliedUndef) if str(a.func) == self.field and a.args[-1] != t]
            if past:
                raise NotApplicable(
                    f"{e.lhs} depends on {past[0]} otherwise than through sum {self.error} {self.field}"
                )

    # -- the new field --------------------------------

    def projection_of(self, e: Equation) -> Equation:
        """``p(t) = sum_mu Delta_mu(t) h_mu(t)``, term by term."""
        index = next(r for r in e.ranges if r.index == mu)
        site = e.lhs.args[0]
        terms = []
        for x in e.terms:
            if x.kind == "source":
                new = Term.local(self.projected(site, t), "source")
            elif x.remembers and not x.field.has(mu):
                new = replace(x, kernel=self.weighted(x.kernel, index))
            else:
                raise NotApplicable(f"{e.lhs} has the term {x.expr}, which the projection does not know")
            terms.append(replace(new, matrix=x.matrix, rule="projected on the error"))
        ranges = tuple(r for r in e.ranges if r.index != mu)
        return Equation(self.p(site, t), tuple(terms), ranges)

    def weighted(self, e: Expr, r: IndexRange) -> Expr:
        """``sum_mu Delta_mu(t) e``."""
        fixed, moving = _parted(e, r)
        return fixed * over(Function(self.error)(r.index, t) * moving, [r])

    def sources(self) -> tuple[Source, ...]:
        found: list[Source] = []
        for u in self.theory.sources:
            found.append(u)
            if str(u.symbol.func) != self.source:
                continue
            second = next(r for r in u.ranges if r.index == alpha)
            first = next(r for r in u.ranges if r.index == mu)
            layers = tuple(r for r in u.ranges if r.index == ell)
            site = u.symbol.args[0]
            delta = Function(self.error)
            fixed, moving = _parted(delta(alpha, s) * u.covariance, second)
            cross = fixed * self.named(moving, second)
            both = self.weighted(cross, first)
            up = self.projected
            found.append(Source(u.symbol, up(site, s), cross, (*layers, first), u.matrix))
            found.append(
                Source(
                    up(site, t), u.partner, self.weighted(u.covariance, first), (*layers, second), u.matrix
                )
            )
            found.append(Source(up(site, t), up(site, s), both, layers, u.matrix))
        return tuple(found)

    def order_parameters(self) -> tuple[OrderParameter, ...]:
        found = []
        for x in self.theory.order_parameters:
            if x.name in self.split:
                response = next(iter(x.definition.atoms(Response)))
                body, source = response.body, response.source
                scale = x.definition / Average(response)
                pushed = Average(Response(body, self.projected(source.args[0], s))) * scale
                symbol = Function(self.split[x.name])(x.symbol.args[0], t, s)
                ranges = tuple(r for r in x.ranges if r.index == ell)
                found.append(OrderParameter(symbol, pushed, "response", ranges, x.causal))
            elif x.name == self.correlation:
                h = Function(self.field)
                ranges = tuple(r for r in x.ranges if r.index in (ell, mu))
                body = Average(h(ell, mu, t) * self.p(ell, s))
                found += [x, OrderParameter(self.q(ell, mu, t, s), body, "correlation", ranges)]
            else:
                found.append(x)
        return tuple(found)


def _parted(e: Expr, r: IndexRange) -> tuple[Expr, Expr]:
    """The factors without an index, and those with it."""
    factors = Mul.make_args(e)
    return Mul(*[x for x in factors if not x.has(r.index)]), Mul(*[x for x in factors if x.has(r.index)])


def _pair_of(q: OrderParameter, field: str) -> bool:
    body = q.definition.args[0] if isinstance(q.definition, Average) else Add()
    return {str(a.func) for a in body.atoms(AppliedUndef)} == {field}
