"""Error projection of a linear network: samples enter only through ``p(t) = sum_mu Delta_mu(t) h_mu(t)``.

The backward fields contain the samples only through p, so the P x P blocks of the closure reduce: the
response of g to the source u_alpha(s) is Delta_alpha(s) times its response to u_p = sum_alpha Delta_alpha
u_alpha. Both statements are derived by rewriting the equations of a theory; the projection raises if another
dependence on the samples remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sympy import Add, Expr, Function, Mul, S, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, alpha, ell, expression, mu, primed, s, t
from derive.errors import NotApplicable
from derive.program import Program, TrainedMatrix
from derive.program.naming import free_name
from derive.program.nonlinear import require_linear_rules
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.conditioning import theory_of
from derive.theory.names import unused_primed

RULE = "projected on the error"
"""Rule of the terms in the equation of a projected field."""


def tidy_sums(e: Expr) -> Expr:
    """Return an expression with constants in front of its sums over one index.

    The summed index is renamed alpha, or a primed alpha if the expression contains alpha already. It keeps
    its name if the summand contains another sum.
    """
    taken = e.free_symbols
    name = alpha if alpha not in taken else unused_primed(alpha, taken)

    def tidy(x: Sum) -> Expr:
        """Return one sum for each term of the summand, with constant factors in front of the sums."""
        (index, lower, upper), parts = x.limits[0], []
        for y in Add.make_args(x.function.expand()):
            fixed, moving = y.as_independent(index, as_Add=False)
            new_index = index
            if name not in moving.free_symbols and not moving.has(Sum):
                moving, new_index = moving.xreplace({index: name}), name
            parts.append(fixed * Sum(moving, (new_index, lower, upper)))
        return Add(*parts)

    return e.replace(lambda x: isinstance(x, Sum) and len(x.limits) == 1, tidy)


def error_projected(theory: Theory | Program, field: str | None = None, error: str | None = None) -> Theory:
    """Rewrite a linear theory in terms of the projection of a field on the error.

    Errors with several channels have one projection for each channel.

    Parameters
    ----------
    theory : Theory or Program
        A linear theory, or a program of a linear network. Its order parameters must be averages within one
        layer, not between steps of a recurrent network.
    field, error : str, optional
        The names of the projected field h and of the error Delta. By default they are read from the updates
        of the trained matrices: the error is the scalar in their coefficients, and the field is the vector
        that the matrices of a family of layers act on. Without a family, the field is the product of a
        trained matrix. If these are not unique, they are ``h`` and ``Delta``.

    Returns
    -------
    Theory
        The theory with the new field ``p(ell, t) = sum_mu Delta_mu(t) h_mu(t)`` and its source
        ``u_p(ell, t) = sum_mu Delta_mu(t) u_mu(t)``, where u is the Gaussian source of h. New correlations
        are ``q(ell, mu, t, s) = <h_mu(t) p(s)>`` and ``Q(ell, t, s) = <p(t) p(s)>``. For each response ``A``
        of h to a source other than u there is a response ``a`` of p. A response ``B`` of another field to the
        source u of h is replaced by ``b``, its response to u_p, with ``B_alpha(t, s) = b(t, s)
        Delta_alpha(s)``. If the theory has the name ``a`` or ``b`` already, the new response is named ``A_p``
        or ``B_p``; other names get a number, as ``q_2``.

    Raises
    ------
    NotApplicable
        If a training rule is not linear in the updates, if an equation contains past values of the projected
        field otherwise than in the projection, if the equation of the field has a term that cannot be
        projected, if the theory has no such error with samples, or no Gaussian source or correlation of the
        field, if the field or its correlation has other indices than a layer and samples, or if the theory is
        projected already.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> print(error_projected(mean_field(mlp())).equation("g").rhs)
    r(L, t) + Sum(eta*gamma0*p(L, s), (s, 0, t - 1))
    """
    theory = theory_of(theory, "error_projected")
    require_linear_rules(theory.program, "the projection on the error")
    roles = _field_and_error(theory.program)
    return _Projection(theory, field or roles[0], error or roles[1]).reduce()


def _field_and_error(program: Program) -> tuple[str, str]:
    """Return the names of the field to project and of the error; ``h`` and ``Delta`` if they are not unique.

    The field is the one that a family of trained matrices acts on; without a family, the one that is the
    product of a trained matrix and another vector.
    """
    trained = [w for w in program.trained() if isinstance(w, TrainedMatrix)]
    families = [w for w in trained if w.initial.index is not None]
    updates = [u for w in families or trained for u in w.update.terms]
    vectors = [u.right for u in updates]
    if not families:
        names = {w.initial.name for w in trained}
        forward = ((d, p) for d in program.definitions for p in d.products() if not p.transposed)
        vectors = [
            d.lhs
            for d, p in forward
            if str(getattr(p.matrix, "func", p.matrix)) in names or str(p.matrix) in names
        ]
    fields = {str(v.func) for v in vectors if isinstance(v, AppliedUndef)}
    read = {str(a.func) for u in updates for a in expression(u.coefficient).atoms(AppliedUndef)}
    errors = read & {*program.scalars}
    one, two = next(iter(fields), "h"), next(iter(errors), "Delta")
    return (one if len(fields) == 1 else "h"), (two if len(errors) == 1 else "Delta")


class _Projection:
    """Projection ``p_c(t) = sum_mu Delta_{mu c}(t) h_mu(t)`` of a theory, with channels c of the error.

    Sources ``u_p`` are projected likewise. Then ``sum_alpha Delta_{alpha c}(s) h_alpha(s) = p_c(s)``,
    ``sum_alpha Delta_{alpha c}(s) <h_mu(t) h_alpha(s)> = q_{mu c}(t, s)`` and ``B_alpha(t, s) = sum_c b_c(t,
    s) Delta_{alpha c}(s)``; for every order parameter x of the field at time t, ``sum_mu Delta_{mu c}(t)
    x_mu(t, s)`` is the order parameter of p.
    """

    def __init__(self, theory: Theory, field: str, error: str) -> None:
        """Find the error, the sources of the field, and the order parameters that contain the field.

        Raises NotApplicable for a theory that is projected already, for an error that the theory does not
        have or that has no index of samples, for a field without a Gaussian source in its equation or without
        a correlation with itself, and for those that :meth:`require_one_layer` refuses.
        """
        self.theory, self.field, self.error = theory, field, error
        if any(x.rule == RULE for e in theory.equations for x in e.terms):
            raise NotApplicable(
                "the theory is projected on the error already; use it as it is, or project the theory from "
                "which it was made"
            )
        self.taken = _names(theory)
        self.p, self.q = Function(self.free("p")), Function(self.free("q"))
        error_equation = next((e for e in theory.scalars if e.name == error), None)
        if error_equation is None:
            names = ", ".join(e.name for e in theory.scalars) or "none"
            raise NotApplicable(
                f"the theory has no scalar {error}, the error on which fields are projected; its scalars: "
                f"{names}"
            )
        if mu not in error_equation.lhs.args:
            raise NotApplicable(
                f"the error {error_equation.lhs} has no index {mu} of samples, over which the projection sums"
            )
        channels = [x for x in error_equation.lhs.args if x not in (mu, t)]
        self.channels = tuple(r for r in error_equation.ranges if r.index in channels)
        sources = {
            str(a.func)
            for e in theory.equations
            if e.name == field
            for x in e.terms
            if x.kind == "source"
            for a in x.expr.atoms(AppliedUndef)
            if any(str(u.symbol.func) == str(a.func) for u in theory.sources)
        }
        if not sources:
            names = ", ".join(dict.fromkeys(e.name for e in theory.equations))
            raise NotApplicable(
                f"{field} must be a field whose equation has a Gaussian source; the theory has the fields "
                f"{names}"
            )
        self.sources = {x: self.free(f"{x}_p") for x in sorted(sources)}
        """Name of the projection of each source of the field."""
        places = (e.lhs.args for e in theory.equations if e.name == field)
        self.layers = next((at.index(mu) for at in places if mu in at), 0)
        """Number of arguments before the index of samples: 1 for a family of layers, 0 for a single field."""
        self.split: dict[str, str] = {}  # response to a source of the field -> name of the projected response
        # `present` maps names of order parameters that contain the field to names of the same order
        # parameters with the projection in place of the field. Its keys are the correlation q of the field
        # with its projection, and the responses of the field to other sources than its own.
        self.present: dict[str, str] = {str(self.q): self.free("Q")}
        for x in theory.responses():
            response = next(iter(x.definition.atoms(Response)))
            lower_name = x.name.lower()
            if str(response.source.func) in self.sources:
                kinds = self.split
            elif str(response.body.func) == field:
                kinds = self.present
            else:
                continue
            kinds[x.name] = self.free(f"{x.name}_p" if lower_name in self.taken else lower_name)
        correlation = next((x for x in theory.correlations() if _pair_of(x, field)), None)
        if correlation is None:
            raise NotApplicable(f"the theory has no correlation function of {field} with itself")
        self.correlation = correlation.name
        self.require_one_layer(correlation)

    def free(self, name: str) -> str:
        """Return a name that the theory does not have, ``name`` if possible; it is taken from now on."""
        found = free_name(name, self.taken)
        self.taken.add(found)
        return found

    def require_one_layer(self, correlation: OrderParameter) -> None:
        """Raise NotApplicable if the field, its sources or its ``correlation`` have further indices.

        They may have a layer ``ell``, the same for both fields of a correlation, samples ``mu`` and
        ``alpha``, and times only.
        """
        sources = [u for u in self.theory.sources if str(u.symbol.func) in self.sources]
        fields = [e for e in self.theory.equations if e.name == self.field]
        checked: list[tuple[Any, Any]] = [(e.lhs, e) for e in fields]
        checked += [(correlation.symbol, correlation), *((u.symbol, u) for u in sources)]
        for symbol, x in checked:
            others = any(r.index not in (ell, mu, alpha) for r in x.ranges)
            if others or (mu in symbol.args and x in fields and symbol.args[self.layers :] != (mu, t)):
                raise NotApplicable(
                    f"{symbol} has further indices: a field that is projected on the error, its sources "
                    "and its correlation may have a layer ell, samples mu and alpha, and times only, as "
                    "those of mlp"
                )

    def reduce(self) -> Theory:
        """Return the theory with the projection of the field on the error as a new field."""
        equations: list[Equation] = []
        for e in self.theory.equations:
            rewritten_equation = Equation(e.lhs, tuple(map(self.rewrite, e.terms)), e.ranges)
            self.refuse_leftovers(rewritten_equation)
            equations.append(rewritten_equation)
            if e.name == self.field:
                equations.append(self.projection_of(rewritten_equation))
        return replace(
            self.theory,
            sources=self.projected_sources(),
            equations=tuple(equations),
            order_parameters=self.order_parameters(),
            reduction="error projection",
        )

    # -- sums over samples, term by term --------------------------------

    def others(self) -> tuple[IndexRange, ...]:
        """Return the ranges of the channels of the error at the earlier of two times.

        They are the ranges at the later time, with primed indices as in ``c'``.
        """
        return tuple(replace(r, index=primed(r.index)) for r in self.channels)

    def rewrite(self, x: Term) -> Term:
        """Return a term of an equation with sums over samples replaced by the projection on the error.

        ``sum_alpha Delta_alpha(s) h_alpha(s)`` becomes the field p(s), and
        ``sum_alpha Delta_alpha(s) <h_mu(t) h_alpha(s)>`` becomes ``q_mu(t, s)``.
        """
        x = self.split_responses(x)
        weight, field, left = x.coefficient * x.kernel, x.field, []
        for r in x.over:
            fixed, moving = weight.as_independent(r.index, as_Add=False)
            if not field.has(r.index):
                weight = fixed * self.named(moving, r)
            elif isinstance(projected := self.named(moving * field, r), AppliedUndef):
                weight, field = fixed, projected
            else:
                left.append(r)
        return replace(x, coefficient=S.One, kernel=weight, field=field, over=tuple(left))

    def split_responses(self, x: Term) -> Term:
        """Return a term in which responses of other fields to the source of a sample are replaced.

        Such a response is proportional to the error of the sample: ``B_alpha(t, s) = sum_c b_c(t, s)
        Delta_{alpha c}(s)``, over the channels c of the error.
        """
        responses = [a for a in x.kernel.atoms(AppliedUndef) if str(a.func) in self.split]
        if not responses:
            return x
        at = [r.index for r in self.others()]
        parts = {}
        for a in responses:
            *before, sample, _, past = a.args
            b = Function(self.split[str(a.func)])(*before, *at, *a.args[-2:])
            parts[a] = b * Function(self.error)(sample, *at, past)
        return replace(x, kernel=x.kernel.xreplace(parts), over=(*x.over, *self.others()))

    def named(self, moving: Expr, r: IndexRange) -> Expr:
        """Return the sum of the product ``moving`` over the samples in ``r``, by its name if it has one.

        The sum of error times projected field is the field p, and that of error times its correlation is q;
        any other sum is returned as a sum.
        """
        parts = Mul.make_args(moving)
        error = next((x for x in parts if isinstance(x, AppliedUndef) and str(x.func) == self.error), None)
        if error is not None and error.args[0] == r.index and error.args[-1] == s:
            other_factor, channels = moving / error, error.args[1:-1]
            if isinstance(other_factor, AppliedUndef) and str(other_factor.func) == self.field:
                return self.p(*other_factor.args[: self.layers], *channels, s)
            if isinstance(other_factor, AppliedUndef) and str(other_factor.func) == self.correlation:
                return self.q(
                    *other_factor.args[: self.layers + 1], *channels, *other_factor.args[self.layers + 2 :]
                )
        return over(moving, [r])

    def refuse_leftovers(self, e: Equation) -> None:
        """Raise NotApplicable if a rewritten equation still contains the unprojected field at past times."""
        for x in e.terms:
            past = [a for a in x.expr.atoms(AppliedUndef) if str(a.func) == self.field and a.args[-1] != t]
            if past:
                raise NotApplicable(
                    f"the equation of {e.lhs} contains {past[0]}; values of {self.field} at other times "
                    f"than {t} may enter only by the projection, the sum over samples of "
                    f"{self.error}*{self.field}"
                )

    # -- the new field --------------------------------

    def projection_of(self, e: Equation) -> Equation:
        """Return the equation of ``p_c(t) = sum_mu Delta_{mu c}(t) h_mu(t)`` from that of h, ``e``.

        Raises NotApplicable if h has no index of samples, and for a term of another kind than a source, a sum
        or integral over past times of a field without this index, or the field at mu and t with a factor that
        does not depend on mu.
        """
        index = next((r for r in e.ranges if r.index == mu), None)
        if index is None:
            raise NotApplicable(
                f"the field {e.lhs} has no index {mu} of samples, over which the projection sums"
            )
        at = tuple(r.index for r in self.channels)
        terms = []
        for x in e.terms:
            if x.kind == "source":
                projected = x.map(lambda y: self.with_projected_sources(y, at))
            elif x.remembers and not x.field.has(mu):
                projected = replace(x, kernel=self.weighted(x.kernel, index))
            elif not x.over and {mu} & x.expr.free_symbols <= x.field.free_symbols and self.is_now(x.field):
                projected = replace(x, field=self.p(*x.field.args[: self.layers], *at, t))
            else:
                raise NotApplicable(
                    f"the equation of {e.lhs} has the term {x.expr}; each term must be a Gaussian source, "
                    f"a sum or integral over past times of a field without the index {mu}, or the field "
                    f"{self.field} at {mu} and {t} with a factor that does not depend on {mu}"
                )
            terms.append(replace(projected, matrix=x.matrix, rule=RULE))
        ranges = tuple(r for r in e.ranges if r.index != mu)
        return Equation(self.p(*e.lhs.args[: self.layers], *at, t), tuple(terms), (*ranges, *self.channels))

    def is_now(self, x: Expr) -> bool:
        """Return whether an expression is the unprojected field h at the sample mu and the time t."""
        return isinstance(x, AppliedUndef) and str(x.func) == self.field and x.args[self.layers :] == (mu, t)

    def with_projected_sources(self, e: Expr, at: Sequence[Expr]) -> Expr:
        """Return an expression with the projection ``u_p(c, t)`` for each source ``u_mu(t)`` of the field.

        ``u_p`` is the sum over samples of error times u; ``at`` are the index symbols of the channels c of
        the error.
        """
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.sources,
            lambda x: Function(self.sources[str(x.func)])(*x.args[:-2], *at, x.args[-1]),
        )

    def weighted(self, e: Expr, r: IndexRange) -> Expr:
        """Return the sum ``sum_mu Delta_mu(t) e`` over the samples in ``r``: error times an expression.

        If the factor of e that depends on mu is an order parameter of the field h at time t, the sum contains
        the order parameter of the projection ``p = sum_mu Delta_mu h_mu`` in its place.
        """
        at = [x.index for x in self.channels]
        fixed, moving = e.as_independent(r.index, as_Add=False)
        if isinstance(moving, AppliedUndef) and (name := self.present.get(str(moving.func))):
            return fixed * self.of_p(name, moving, r.index)
        return fixed * over(Function(self.error)(r.index, *at, t) * moving, [r])

    def of_p(self, name: str, x: AppliedUndef, index: Expr) -> Expr:
        """Return the order parameter ``x`` of the field h rewritten as that of its projection p.

        It is the function ``name``, in which the indices of channels replace the index of samples, ``index``.
        """
        at = [r.index for r in self.channels]
        return Function(name)(*[y for a in x.args for y in (at if a == index else [a])])

    def projected_sources(self) -> tuple[Source, ...]:
        """Return the covariances of the Gaussian sources, with those of projected sources added.

        For each source u of the projected field there are ``<u u_p>``, ``<u_p u>`` and ``<u_p u_p>``, where
        u_p is the sum over samples of error times u.
        """
        sources: list[Source] = []
        here, there = self.channels, self.others()
        at, past = ([r.index for r in x] for x in (here, there))
        for u in self.theory.sources:
            sources.append(u)
            if str(u.symbol.func) not in self.sources:
                continue
            second = next(r for r in u.ranges if r.index == alpha)
            first = next(r for r in u.ranges if r.index == mu)
            layers = tuple(r for r in u.ranges if r.index == ell)
            up, other = (
                self.with_projected_sources(u.symbol, at),
                self.with_projected_sources(u.partner, past),
            )
            whole = Function(self.error)(alpha, *past, s) * u.covariance
            fixed, moving = whole.as_independent(second.index, as_Add=False)
            cross = fixed * self.named(moving, second)
            back, both = self.weighted(u.covariance, first), self.weighted(cross, first)
            sources.append(Source(u.symbol, other, cross, (*layers, first, *there), u.matrix))
            sources.append(Source(up, u.partner, back, (*layers, *here, second), u.matrix))
            sources.append(Source(up, other, both, (*layers, *here, *there), u.matrix))
        return tuple(sources)

    def order_parameters(self) -> tuple[OrderParameter, ...]:
        """Return the order parameters of the theory, and those with the projection p for the field.

        A response of another field to the source u of the field is replaced by its response to ``u_p``.
        """
        parameters = []
        there = self.others()
        past = [r.index for r in there]
        for x in self.theory.order_parameters:
            if x.name in self.split:
                response = next(iter(x.definition.atoms(Response)))
                body, source = response.body, response.source
                scale = x.definition / Average(response)
                definition = Average(Response(body, self.with_projected_sources(source, past))) * scale
                at = [a for a in x.symbol.args[self.layers :] if a not in source.args and a != t]
                symbol = Function(self.split[x.name])(*x.symbol.args[: self.layers], *at, *past, t, s)
                ranges = tuple(r for r in x.ranges if r.index == ell or r.index in at)
                parameters.append(OrderParameter(symbol, definition, "response", (*ranges, *there), x.causal))
            elif x.name in self.present:
                parameters += [x, self.at_present(x, mu)]
            elif x.name == self.correlation:
                h, at = Function(self.field), x.symbol.args[: self.layers]
                ranges = tuple(r for r in x.ranges if r.index in (ell, mu))
                body = Average(h(*at, mu, t) * self.p(*at, *past, s))
                symbol = self.q(*at, mu, *past, t, s)
                q = OrderParameter(symbol, body, "correlation", (*ranges, *there))
                parameters += [x, q, self.at_present(q, mu)]
            else:
                parameters.append(x)
        return tuple(parameters)

    def at_present(self, x: OrderParameter, index: Expr) -> OrderParameter:
        """Return the order parameter ``x`` of the field h at time t rewritten as that of its projection.

        In its definition h is replaced by ``p = sum_mu Delta_mu h_mu``. ``index`` is the sample of h in x.
        """
        field_atom = next(a for a in x.definition.atoms(AppliedUndef) if str(a.func) == self.field)
        projected = field_atom.xreplace({field_atom: self.of_p(self.p.__name__, field_atom, index)})
        symbol = self.of_p(self.present[x.name], x.symbol, index)
        ranges = tuple(y for r in x.ranges for y in (self.channels if r.index == index else (r,)))
        return replace(
            x, symbol=symbol, definition=x.definition.xreplace({field_atom: projected}), ranges=ranges
        )


def _names(theory: Theory) -> set[str]:
    """Return the names of all functions and symbols of a theory."""
    items = (*theory.equations, *theory.scalars, *theory.observables)
    expressions = [e for x in items for e in (x.symbol, x.rhs)]
    expressions += [e for u in theory.sources for e in (u.symbol, u.partner, expression(u.covariance))]
    expressions += [e for q in theory.order_parameters for e in (q.symbol, q.definition)]
    functions = {str(a.func) for e in expressions for a in e.atoms(AppliedUndef)}
    return (
        functions | {x.name for e in expressions for x in e.free_symbols} | {*theory.program.names_in_theory}
    )


def _pair_of(q: OrderParameter, field: str) -> bool:
    """Return whether an order parameter is defined as an average of ``field`` alone, as ``<h(t) h(s)>``."""
    body = q.definition.args[0] if isinstance(q.definition, Average) else Add()
    return {str(a.func) for a in body.atoms(AppliedUndef)} == {field}
