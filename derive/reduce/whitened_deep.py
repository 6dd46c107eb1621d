"""Whitened data, any depth: the samples drop out of a linear theory (eq. F.15, F.16).

With the identity as input kernel everything that feeds back lies along the target direction n.  The form
``Delta, A, B along n`` and ``H = identity part + n n part`` is put into the theory; projecting on n gives a
theory without samples, and projecting on any direction m orthogonal to n must, and is checked to, give
nothing that moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from sympy import Derivative, Eq, Expr, Function, Integral, KroneckerDelta, S, Sum, Symbol, exp
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.errors import NotApplicable
from derive.linear.contraction import Frame
from derive.program.words import P, alpha, ell, mu, s, t
from derive.reduce.whitened import norm
from derive.theory.theory import Equation, OrderParameter, Source, Term, Theory

n, m = Function("n"), Function("m")
"""The unit vector along the targets, and one orthogonal to it."""


def whitened_deep(theory: Theory) -> Theory:
    """The theory of one sample that stands for all, for ``K_x = 1``; a Theory like any other.

    Names: ``h_y``, ``u_y``, ``H_y``, ``A_y``, ``B_y`` are projections on n; the scalars ``Delta(t)`` and
    ``f(t)`` keep their names, and the constant ``y`` is the length of the target vector. Raises
    :class:`NotApplicable` when something moves in a direction orthogonal to the targets.

    >>> from derive.theory import mean_field
    >>> from derive.program import ell, mlp
    >>> reduced = whitened_deep(mean_field(mlp(rule="flow")))
    >>> print(reduced.equation("h_y", ell + 1).terms[2].expr)
    Integral(gamma0*Delta(s)*H_y(ell, t, s)*g(ell + 1, s), (s, 0, t))
    """
    return _Whitened(theory).reduce()


@dataclass(frozen=True)
class Shape:
    """What becomes of a function of samples: ``along`` n, or ``form`` of identity and n n."""

    name: str
    new: str
    indices: tuple[int, ...]


class _Whitened:
    def __init__(self, theory: Theory) -> None:
        if theory.reduction:
            raise NotApplicable(f"the theory has been rewritten already ({theory.reduction})")
        self.theory, self.frame = theory, Frame((n, m))
        self.random = {e.name for e in theory.equations} | {str(u.symbol.func) for u in theory.sources}
        symbols = [e.lhs for e in (*theory.equations, *theory.scalars)]
        symbols += [u.symbol for u in theory.sources] + [q.symbol for q in theory.order_parameters]
        self.shapes: dict[str, Shape] = {}
        for x in symbols:
            places = tuple(i for i, a in enumerate(x.args) if a in (mu, alpha))
            if places:
                name = str(x.func)
                plain = name in {e.name for e in theory.scalars}
                self.shapes[name] = Shape(name, name if plain else f"{name}_y", places)

    # -- the form ------------------------------------------------

    def shaped(self, e: Expr) -> Expr:
        """Deterministic functions of samples in their form; the inputs and the targets as given."""

        def put(x: AppliedUndef) -> Expr:
            name = str(x.func)
            if name == "K_x":
                return KroneckerDelta(*x.args)
            if name == "y":
                return norm * n(*x.args)
            k = self.shapes[name]
            indices = [x.args[i] for i in k.indices]
            rest = [a for i, a in enumerate(x.args) if i not in k.indices]
            along = Function(k.new)(*rest)
            if len(indices) == 1:
                return along * n(indices[0])
            a, b = indices
            across = Function(f"{name}_0")(*rest)
            return across * KroneckerDelta(a, b) + (along - across) * n(a) * n(b)

        known = set(self.shapes) - self.random | {"K_x", "y"}
        return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in known, put)

    def projected(self, e: Expr, direction: Callable[[Expr], Expr], indices: tuple[Symbol, ...]) -> Expr:
        """Contract the free ``indices`` of ``e`` with a direction, and do the sums over samples."""
        e = self.shaped(e)
        for i in indices:
            e = _into_integrals(e, partial(_weighted, direction, i))
        return self.named(_into_integrals(e, self.contracted))

    def contracted(self, e: Expr) -> Expr:
        """Sums over samples apart from sums over the past."""
        return self.frame.contract(e)

    def named(self, e: Expr) -> Expr:
        """``sum_mu n_mu h_mu`` is called ``h_y``; ``h_m`` for the orthogonal direction."""

        def rename(x: Sum) -> Expr:
            factors = x.function.as_ordered_factors()
            index = x.limits[0][0]
            vectors = [a for a in factors if a.func in (n, m)]
            fields = [a for a in factors if isinstance(a, AppliedUndef) and str(a.func) in self.random]
            if len(factors) == 2 and len(vectors) == len(fields) == 1 and len(x.limits) == 1:
                k = self.shapes[str(fields[0].func)]
                name = k.new if vectors[0].func == n else f"{k.name}_m"
                return Function(name)(*[a for a in fields[0].args if a != index])
            return x

        return e.replace(lambda x: isinstance(x, Sum), rename)

    # -- the theory ------------------------------------------------

    def reduce(self) -> Theory:
        self.nothing_moves_across()
        return replace(
            self.theory,
            sources=tuple(self.source(u) for u in self.theory.sources),
            equations=tuple(self.equation(e) for e in self.theory.equations),
            order_parameters=tuple(self.order_parameter(q) for q in self.theory.order_parameters),
            scalars=tuple(self.equation(e) for e in self.theory.scalars),
            observables=tuple(self.equation(e) for e in self.theory.observables),
            reduction="whitened data",
        )

    def nothing_moves_across(self) -> None:
        """Each field's projection on m is its source, independent of what moves, and no feedback contains
        it."""
        for e in self.theory.equations:
            free = tuple(r.index for r in e.ranges if r.index in (mu, alpha))
            for x in e.terms:
                across = self.projected(x.expr, m, free) if free else self.projected(x.expr, n, ())
                if free and x.kind != "source" and across != 0:
                    raise NotApplicable(f"{e.lhs} moves across the targets: {across}")
                if any(str(a.func).endswith("_m") for a in across.atoms(AppliedUndef)) and x.kind != "source":
                    raise NotApplicable(f"{e.lhs} feels what lies across the targets: {across}")
        for u in self.theory.sources:
            both = [i for i in (mu, alpha) if u.symbol.has(i) or u.partner.has(i)]
            if len(both) == 2:
                mixed = self.frame.contract(self.shaped(u.covariance) * 1)
                mixed = self.frame.contract(
                    Sum((m(mu) * Sum((n(alpha) * mixed).expand(), (alpha, 1, P))).expand(), (mu, 1, P))
                )
                if mixed != 0:
                    raise NotApplicable(
                        f"{u.symbol} along the targets is correlated with what lies across: {mixed}"
                    )

    def equation(self, e: Equation) -> Equation:
        free = tuple(i for i in (mu, alpha) if e.lhs.has(i))
        terms = tuple(self.term(x, free) for x in e.terms)
        lhs = Function(self.label(e.lhs))(*[a for a in e.lhs.args if a not in free])
        return Equation(lhs, terms, tuple(r for r in e.ranges if r.index not in free))

    def label(self, x: AppliedUndef) -> str:
        name = str(x.func)
        if name in self.shapes:
            return self.shapes[name].new
        return f"{name}_y" if any(a in (mu, alpha) for a in x.args) else name

    def term(self, x: Term, free: tuple[Symbol, ...]) -> Term:
        if x.expr.has(Average):
            return x.put(x.expr.replace(lambda a: isinstance(a, Average), self.average))
        return x.put(self.projected(x.expr, n, free))

    def average(self, a: Average) -> Expr:
        return Average(self.along(a.body))

    def along(self, e: Expr) -> Expr:
        """Each random field by its projection on n (an average with one free index points along n)."""

        def put(x: AppliedUndef) -> Expr:
            k = self.shapes[str(x.func)]
            return Function(k.new)(*[a for i, a in enumerate(x.args) if i not in k.indices])

        return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.shapes, put)

    def source(self, u: Source) -> Source:
        free = tuple(i for i in (mu, alpha) if u.symbol.has(i) or u.partner.has(i))
        return replace(
            u,
            symbol=self.along(u.symbol),
            partner=self.along(u.partner),
            covariance=self.projected(u.covariance, n, free),
            ranges=tuple(r for r in u.ranges if r.index not in free),
        )

    def order_parameter(self, q: OrderParameter) -> OrderParameter:
        definition = q.definition.replace(
            lambda a: isinstance(a, Response), lambda a: Response(self.along(a.body), self.along(a.source))
        )
        if not q.definition.has(Response):
            definition = self.along(definition)
        ranges = tuple(r for r in q.ranges if r.index == ell)
        return replace(q, symbol=self.along(q.symbol), definition=definition, ranges=ranges)


def _weighted(direction: Callable[[Expr], Expr], index: Symbol, e: Expr) -> Expr:
    return Sum((direction(index) * e).expand(), (index, 1, P))


def _into_integrals(e: Expr, fun: Callable[[Expr], Expr]) -> Expr:
    """Apply ``fun`` under integrals and sums over the past."""
    if isinstance(e, Integral):
        body = _into_integrals(e.function, fun)
        return S.Zero if body == 0 else Integral(body, *e.limits)
    if isinstance(e, Sum) and e.limits[-1][0] == s:
        inner = Sum(e.function, *e.limits[:-1]) if len(e.limits) > 1 else e.function
        body = _into_integrals(inner, fun)
        return S.Zero if body == 0 else Sum(body, e.limits[-1])
    return fun(e)


def error_equation(theory: Theory) -> tuple[Eq, Eq]:
    """The error under flow, from the theory's tangent kernel: its equation and its solution (F.16).

    The kernel's equation ``df/dt = K(t, t) Delta`` is that of gradient flow; the theory itself defines f by
    an average, and the two agree (proved for one hidden layer by :func:`two_layer`, checked as power series
    for deeper networks). Raises :class:`NotApplicable` for a theory without tangent kernel, with samples
    left, or in counted steps.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> print(error_equation(whitened_deep(mean_field(mlp(1, rule="flow"))))[0].rhs)
    -(G(1, t, t) + H_y(1, t, t))*Delta(t)
    """
    if theory.program.rule.discrete or not theory.observables or theory.reduction != "whitened data":
        raise NotApplicable("the error's equation needs gradient flow, a tangent kernel and whitened data")
    rate, _ = theory.program.rule.memory(t, s)[::-1]
    kernel = rate * theory.observables[0].rhs
    now = kernel.xreplace({s: t})
    delta = Function("Delta")(t)
    start = Symbol("y", positive=True)
    solution = start * exp(-Integral(now.xreplace({t: s}), (s, 0, t)))
    return Eq(Derivative(delta, t), -delta * now, evaluate=False), Eq(delta, solution, evaluate=False)
