"""Decaying, noisy weights seen as two Gaussian matrices: what is left of the start, and the noise since
(selfconsistent2023 J.2, K.14).

The engine gives each product one source, with the covariance of an entry at two times, ``c(t, s) = m(t) m(s)
+ noise(t, s)``, in front.  Written apart, ``u -> m(t) u + u_eps`` with two independent sources, a response to
u at s is m(s) times the response to the whole, and one to u_eps is that response itself: ``c A = m(t) [m(s)
A] + noise A``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sympy import Expr, Function, Integral, Min, Mul, Sum, simplify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.responses import Response
from derive.errors import NotApplicable
from derive.program.training import TrainingRule, entry_covariance
from derive.program.words import s, t
from derive.theory.theory import Equation, OrderParameter, Source, Term, Theory


@dataclass(frozen=True)
class TwoSources:
    """The theory with two sources a product, and the factors that it was split with.

    ``kept`` is m(t), ``noise`` the covariance of the noise at t and s, both in units of the initial variance.
    In ``theory`` each source ``u`` has a partner ``u_eps`` (none without noise), and each response ``A`` an
    ``A_eps``, which has the noise as a factor in its definition.
    """

    theory: Theory
    kept: Expr
    noise: Expr

    def merged(self, e: Expr) -> Expr:
        """An expression of ``theory`` in terms of the responses of the theory with one source."""
        past = self.kept.xreplace({t: s})
        names = {q.name for q in self.theory.responses()}

        def whole(x: AppliedUndef) -> Expr:
            name = str(x.func)
            factor = self.noise if name.endswith("_eps") else past
            return factor * Function(name.removesuffix("_eps"))(*x.args)

        return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in names, whole)


def two_sources(theory: Theory) -> TwoSources:
    """Write a theory whose weights decay or diffuse with separate sources for start and noise.

    Raises :class:`NotApplicable` when the weights do neither, or when a rule of theirs differs from the
    program's.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> from sympy import Symbol
    >>> lam = Symbol("lam", positive=True)
    >>> split = two_sources(mean_field(mlp(rule="flow", weight_decay=lam)))
    >>> print(split.theory.equation("h", 1).terms[0].expr, split.theory.sources[0].covariance)
    u(1, mu, t)*exp(-lam*t) K_x(mu, alpha)
    """
    rule = theory.program.rule
    kept, noise = rule.memory(t, s)[0], rule.noise(t, s)
    if kept == 1 and noise == 0:
        raise NotApplicable("the weights keep their start and meet no noise: there is nothing to split")
    if any(w.rule != rule for w in theory.program.trained()):
        raise NotApplicable("the weights follow different rules")
    return _Split(theory, rule, kept, noise).split()


@dataclass(frozen=True)
class _Split:
    theory: Theory
    rule: TrainingRule
    kept: Expr
    noise: Expr

    def split(self) -> TwoSources:
        theory = replace(
            self.theory,
            sources=tuple(x for u in self.theory.sources for x in self.sources(u)),
            equations=tuple(self.equation(e) for e in self.theory.equations),
            order_parameters=tuple(x for q in self.theory.order_parameters for x in self.order(q)),
            reduction="sources of the start and of the noise apart",
        )
        return TwoSources(theory, self.kept, self.noise)

    @property
    def entries(self) -> Expr:
        return entry_covariance(self.rule, t, s)

    def sources(self, u: Source) -> Iterator[Source]:
        bare = simplify(u.covariance / self.entries)
        if {t, s} & {x for x in bare.free_symbols if not bare.atoms(AppliedUndef)}:
            raise NotApplicable(f"the covariance {u.covariance} has not the factor {self.entries}")
        yield replace(u, covariance=bare)
        if self.noise != 0:
            names = {x: Function(f"{x.func}_eps")(*x.args) for x in (u.symbol, u.partner)}
            yield replace(
                u,
                symbol=names[u.symbol],
                partner=names[u.partner],
                covariance=self.noise * bare,
            )

    def equation(self, e: Equation) -> Equation:
        terms: list[Term] = []
        for x in e.terms:
            if x.kind == "source":
                terms.append(x.times(self.kept))
                if self.noise != 0:
                    eps = Function(f"{x.expr.func}_eps")(*x.expr.args)
                    terms.append(replace(x.put(eps), rule="noise met since the start"))
            elif x.kind == "response":
                terms += [x.put(y) for y in self.response(x.expr)]
            else:
                terms.append(x)
        return replace(e, terms=tuple(terms))

    def response(self, e: Expr) -> Iterator[Expr]:
        """``int c A g`` as ``m(t) int A g + int A_eps g``."""
        inner, sums = e, []
        while isinstance(inner, Sum | Integral):
            sums.append((inner.func, inner.limits))
            inner = inner.function
        early = {Min(s, t): s}  # within a sum over the past
        bare = simplify(inner.xreplace(early) / self.entries.xreplace(early))
        (response,) = [a for a in bare.atoms(AppliedUndef) if str(a.func) in self.names]

        def whole(x: Expr) -> Expr:
            for func, limits in reversed(sums):
                x = func(x, *limits)
            return x

        yield whole(self.kept * bare)
        if self.noise != 0:
            yield whole(bare.xreplace({response: Function(f"{response.func}_eps")(*response.args)}))

    @property
    def names(self) -> set[str]:
        return {q.name for q in self.theory.responses()}

    def order(self, q: OrderParameter) -> Iterator[OrderParameter]:
        yield q
        if q.kind != "response" or self.noise == 0:
            return
        (response,) = q.definition.atoms(Response)
        source = response.source
        factor = Mul(*[x for x in Mul.make_args(q.definition) if not isinstance(x, Average)])
        pushed = Average(Response(response.body, Function(f"{source.func}_eps")(*source.args)))
        symbol = Function(f"{q.name}_eps")(*q.symbol.args)
        yield replace(q, symbol=symbol, definition=factor * self.noise * pushed)


__all__ = ["TwoSources", "two_sources"]
