"""The error-projected closure: in a linear network only ``p(t) = sum_mu Delta_mu(t) h_mu(t)`` feeds back.

The backward fields see the samples only through p, so the P x P blocks of the closure collapse: the
response of g to the source u_alpha(s) is Delta_alpha(s) times its response to u_p = sum_alpha Delta_alpha
u_alpha.  Both statements are found by rewriting the derived equations, and refused when the rewriting
leaves anything over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sympy import Add, Expr, Function, Mul, S, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, alpha, ell, expression, mu, primed, s, t
from derive.errors import NotApplicable
from derive.program import Program, TrainedMatrix
from derive.program.nonlinear import require_linear_rules
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.conditioning import theory_of
from derive.theory.names import primed_apart


def tidy_sums(e: Expr) -> Expr:
    """Pull constants out of sums, and give each summed index the first free name."""
    taken = e.free_symbols
    name = alpha if alpha not in taken else primed_apart(alpha, taken)

    def tidy(x: Sum) -> Expr:
        (index, lower, upper), parts = x.limits[0], []
        for y in Add.make_args(x.function.expand()):
            fixed, moving = y.as_independent(index, as_Add=False)
            own = index
            if name not in moving.free_symbols and not moving.has(Sum):
                moving, own = moving.xreplace({index: name}), name
            parts.append(fixed * Sum(moving, (own, lower, upper)))
        return Add(*parts)

    return e.replace(lambda x: isinstance(x, Sum) and len(x.limits) == 1, tidy)


def error_projected(theory: Theory | Program, field: str | None = None, error: str | None = None) -> Theory:
    """Rewrite a linear theory in terms of the projection of ``field`` on ``error``.

    By default they are read off the updates of the program's matrices: the error multiplies them, and the
    field is what a family of layers hands on.

    New names: ``p(ell, t)``, its source ``u_p(ell, t)``, ``q(ell, mu, t, s) = <h_mu(t) p(s)>``, ``Q(ell, t,
    s) = <p(t) p(s)>``, for a response ``A`` of ``field`` that of p, ``a``, and for a response ``B`` to its
    source ``b`` with ``B_alpha(t, s) = b(t, s) Delta_alpha(s)``.  Errors with channels have a projection for
    each.  Raises :class:`NotApplicable` when some other field depends on
    ``field`` otherwise than through the projection.

    >>> from derive import mean_field, mlp
    >>> print(error_projected(mean_field(mlp())).equation("g").rhs)
    r(L, t) + Sum(eta*gamma0*p(L, s), (s, 0, t - 1))
    """
    theory = theory_of(theory, "error_projected")
    require_linear_rules(theory.program, "the projection on the error")
    roles = _field_and_error(theory.program)
    return _Projection(theory, field or roles[0], error or roles[1]).reduce()


def _field_and_error(program: Program) -> tuple[str, str]:
    """The names of the field that a family of matrices is applied to, and of the error in its updates."""
    families = [w for w in program.trained() if isinstance(w, TrainedMatrix) and w.initial.index is not None]
    updates = [u for w in families for u in w.update.terms]
    fields = {str(u.right.func) for u in updates if isinstance(u.right, AppliedUndef)}
    read = {str(a.func) for u in updates for a in expression(u.coefficient).atoms(AppliedUndef)}
    errors = read & {*program.scalars}
    one, two = next(iter(fields), "h"), next(iter(errors), "Delta")
    return (one if len(fields) == 1 else "h"), (two if len(errors) == 1 else "Delta")


class _Projection:
    """``p_c(t) = sum_mu Delta_{mu c}(t) h_mu(t)``, its sources ``u_p`` likewise, c the channels of the error.

    With them ``sum_alpha Delta_{alpha c}(s) h_alpha(s) = p_c(s)``, ``sum_alpha Delta_{alpha c}(s)
    <h_mu(t) h_alpha(s)> = q_{mu c}(t, s)`` and ``B_alpha(t, s) = sum_c b_c(t, s) Delta_{alpha c}(s)``; and
    ``sum_mu Delta_{mu c}(t) x_mu(t, s)`` is that of p for every order parameter x that holds the field at t.
    """

    def __init__(self, theory: Theory, field: str, error: str) -> None:
        self.theory, self.field, self.error = theory, field, error
        self.p, self.q = Function("p"), Function("q")
        own = next((e for e in theory.scalars if e.name == error), None)
        if own is None:
            raise NotApplicable(f"the theory has no scalar {error}")
        if mu not in own.lhs.args:
            raise NotApplicable(f"{own.lhs} has no index {mu} of samples, over which the projection sums")
        channels = [x for x in own.lhs.args if x not in (mu, t)]
        self.channels = tuple(r for r in own.ranges if r.index in channels)
        self.sources = {
            str(a.func)
            for e in theory.equations
            if e.name == field
            for x in e.terms
            if x.kind == "source"
            for a in x.expr.atoms(AppliedUndef)
            if any(str(u.symbol.func) == str(a.func) for u in theory.sources)
        }
        if not self.sources:
            raise NotApplicable(f"{field} must have a Gaussian source; it has none")
        self.split: dict[str, str] = {}  # response to a source of the field -> its projected name
        self.present: dict[str, str] = {"q": "Q"}  # the same of what holds the field at the present time
        taken = {str(a.func) for e in theory.equations for a in e.rhs.atoms(AppliedUndef)}
        for x in theory.responses():
            response = next(iter(x.definition.atoms(Response)))
            small = x.name.lower()
            name = f"{x.name}_p" if small in taken else small
            if str(response.source.func) in self.sources:
                self.split[x.name] = name
            elif str(response.body.func) == field:
                self.present[x.name] = name
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
            sources=self.projected_sources(),
            equations=tuple(equations),
            order_parameters=self.order_parameters(),
            reduction="error projection",
        )

    # -- sums over samples, term by term --------------------------------

    def others(self) -> tuple[IndexRange, ...]:
        """The channels once more, by other names."""
        return tuple(replace(r, index=primed(r.index)) for r in self.channels)

    def rewrite(self, x: Term) -> Term:
        """Every ``sum_alpha Delta_alpha(s) ...`` in a term done, kernel and field by their new names."""
        x = self.split_responses(x)
        weight, field, left = x.coefficient * x.kernel, x.field, []
        for r in x.over:
            fixed, moving = weight.as_independent(r.index, as_Add=False)
            if not field.has(r.index):
                weight = fixed * self.named(moving, r)
            elif isinstance(found := self.named(moving * field, r), AppliedUndef):
                weight, field = fixed, found
            else:
                left.append(r)
        return replace(x, coefficient=S.One, kernel=weight, field=field, over=tuple(left))

    def split_responses(self, x: Term) -> Term:
        """``B_alpha(t, s) = sum_c b_c(t, s) Delta_{alpha c}(s)``."""
        found = [a for a in x.kernel.atoms(AppliedUndef) if str(a.func) in self.split]
        if not found:
            return x
        at = [r.index for r in self.others()]
        parts = {}
        for a in found:
            *before, sample, _, past = a.args
            b = Function(self.split[str(a.func)])(*before, *at, *a.args[-2:])
            parts[a] = b * Function(self.error)(sample, *at, past)
        return replace(x, kernel=x.kernel.xreplace(parts), over=(*x.over, *self.others()))

    def named(self, moving: Expr, r: IndexRange) -> Expr:
        """``sum_alpha moving``: p or q by name, else as it stands."""
        parts = Mul.make_args(moving)
        error = next((x for x in parts if isinstance(x, AppliedUndef) and str(x.func) == self.error), None)
        if error is not None and error.args[0] == r.index and error.args[-1] == s:
            rest, channels = moving / error, error.args[1:-1]
            if isinstance(rest, AppliedUndef) and str(rest.func) == self.field:
                return self.p(rest.args[0], *channels, s)
            if isinstance(rest, AppliedUndef) and str(rest.func) == self.correlation:
                return self.q(*rest.args[:2], *channels, *rest.args[3:])
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
        """``p_c(t) = sum_mu Delta_{mu c}(t) h_mu(t)``, term by term."""
        index = next((r for r in e.ranges if r.index == mu), None)
        if index is None:
            raise NotApplicable(f"{e.lhs} has no index {mu} of samples, over which the projection sums")
        at = tuple(r.index for r in self.channels)
        terms = []
        for x in e.terms:
            if x.kind == "source":
                new = x.map(lambda y: self.pushed(y, at))
            elif x.remembers and not x.field.has(mu):
                new = replace(x, kernel=self.weighted(x.kernel, index))
            elif not x.over and {mu} & x.expr.free_symbols <= x.field.free_symbols and self.is_now(x.field):
                new = replace(x, field=self.p(x.field.args[0], *at, t))
            else:
                raise NotApplicable(f"{e.lhs} has the term {x.expr}, which the projection does not know")
            terms.append(replace(new, matrix=x.matrix, rule="projected on the error"))
        ranges = tuple(r for r in e.ranges if r.index != mu)
        return Equation(self.p(e.lhs.args[0], *at, t), tuple(terms), (*ranges, *self.channels))

    def is_now(self, x: Expr) -> bool:
        """Is it the field itself, at the same sample and time?"""
        return isinstance(x, AppliedUndef) and str(x.func) == self.field and x.args[1:] == (mu, t)

    def pushed(self, e: Expr, at: Sequence[Expr]) -> Expr:
        """``u_mu(t)`` replaced by ``u_p(c, t)``, of every source."""
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.sources,
            lambda x: Function(f"{x.func}_p")(x.args[0], *at, x.args[-1]),
        )

    def weighted(self, e: Expr, r: IndexRange) -> Expr:
        """``sum_mu Delta_mu(t) e``."""
        at = [x.index for x in self.channels]
        fixed, moving = e.as_independent(r.index, as_Add=False)
        if isinstance(moving, AppliedUndef) and (name := self.present.get(str(moving.func))):
            return fixed * self.of_p(name, moving, r.index)
        return fixed * over(Function(self.error)(r.index, *at, t) * moving, [r])

    def of_p(self, name: str, x: AppliedUndef, index: Expr) -> Expr:
        """What holds the field, with the channels of its projection in the place of its sample."""
        at = [r.index for r in self.channels]
        return Function(name)(*[y for a in x.args for y in (at if a == index else [a])])

    def projected_sources(self) -> tuple[Source, ...]:
        """``<u u_p>``, ``<u_p u>`` and ``<u_p u_p>`` beside ``<u u>``."""
        found: list[Source] = []
        here, there = self.channels, self.others()
        at, past = ([r.index for r in x] for x in (here, there))
        for u in self.theory.sources:
            found.append(u)
            if str(u.symbol.func) not in self.sources:
                continue
            second = next(r for r in u.ranges if r.index == alpha)
            first = next(r for r in u.ranges if r.index == mu)
            layers = tuple(r for r in u.ranges if r.index == ell)
            up, other = self.pushed(u.symbol, at), self.pushed(u.partner, past)
            whole = Function(self.error)(alpha, *past, s) * u.covariance
            fixed, moving = whole.as_independent(second.index, as_Add=False)
            cross = fixed * self.named(moving, second)
            back, both = self.weighted(u.covariance, first), self.weighted(cross, first)
            found.append(Source(u.symbol, other, cross, (*layers, first, *there), u.matrix))
            found.append(Source(up, u.partner, back, (*layers, *here, second), u.matrix))
            found.append(Source(up, other, both, (*layers, *here, *there), u.matrix))
        return tuple(found)

    def order_parameters(self) -> tuple[OrderParameter, ...]:
        found = []
        there = self.others()
        past = [r.index for r in there]
        for x in self.theory.order_parameters:
            if x.name in self.split:
                response = next(iter(x.definition.atoms(Response)))
                body, source = response.body, response.source
                scale = x.definition / Average(response)
                pushed = Average(Response(body, self.pushed(source, past))) * scale
                at = [a for a in x.symbol.args[1:] if a not in source.args and a != t]
                symbol = Function(self.split[x.name])(x.symbol.args[0], *at, *past, t, s)
                ranges = tuple(r for r in x.ranges if r.index == ell or r.index in at)
                found.append(OrderParameter(symbol, pushed, "response", (*ranges, *there), x.causal))
            elif x.name in self.present:
                found += [x, self.at_present(x, mu)]
            elif x.name == self.correlation:
                h = Function(self.field)
                ranges = tuple(r for r in x.ranges if r.index in (ell, mu))
                body = Average(h(ell, mu, t) * self.p(ell, *past, s))
                symbol = self.q(ell, mu, *past, t, s)
                q = OrderParameter(symbol, body, "correlation", (*ranges, *there))
                found += [x, q, self.at_present(q, mu)]
            else:
                found.append(x)
        return tuple(found)

    def at_present(self, x: OrderParameter, index: Expr) -> OrderParameter:
        """The same with p at the present time in the place of the field."""
        own = next(a for a in x.definition.atoms(AppliedUndef) if str(a.func) == self.field)
        projected = own.xreplace({own: self.of_p(self.p.__name__, own, index)})
        symbol = self.of_p(self.present[x.name], x.symbol, index)
        ranges = tuple(y for r in x.ranges for y in (self.channels if r.index == index else (r,)))
        return replace(x, symbol=symbol, definition=x.definition.xreplace({own: projected}), ranges=ranges)


def _pair_of(q: OrderParameter, field: str) -> bool:
    body = q.definition.args[0] if isinstance(q.definition, Average) else Add()
    return {str(a.func) for a in body.atoms(AppliedUndef)} == {field}
