"""Langevin dynamics long after its start, at weak feature learning (selfconsistent2023 K.15, K.16).

As gamma0 goes to zero the fields are their Gaussian sources: memory carries a factor gamma0, and the
responses vanish on the sources.  The random part of a weight forgets its start, so that the covariance of an
entry at two times tends to a function of their difference; with it go all kernels, layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import (
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    KroneckerDelta,
    Mul,
    S,
    Symbol,
    exp,
    factor_terms,
    limit,
    oo,
    simplify,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.responses import Response
from derive.errors import NotApplicable
from derive.program.words import gamma0, s, t
from derive.theory.theory import OrderParameter, Source, Theory

tau = Symbol("tau", nonnegative=True)
"""The difference of two times."""


@dataclass(frozen=True)
class Stationary:
    """The kernels of a theory at ``gamma0 -> 0`` and then at long times, as functions of the time lag
    ``tau``.

    ``entry`` is the covariance of a weight's entry; ``fields`` are the covariances of the fields (``H`` of h,
    ``Z`` of z) by the kernels, ``kernels`` those by the covariances of the fields, as Gaussian averages.
    """

    theory: Theory
    entry: Expr
    fields: tuple[Eq, ...]
    kernels: tuple[Eq, ...]

    def closed(self) -> tuple[Eq, ...]:
        """``kernels`` with every Gaussian average that has a closed form evaluated.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> lam, beta = Symbol("lam", positive=True), Symbol("beta", positive=True)
        >>> network = mlp(activation="erf", rule="flow", weight_decay=lam/beta, temperature=1/beta)
        >>> print(stationary(mean_field(network)).closed()[0].rhs)
        2*asin(2*H(ell, mu, alpha, tau)/(sqrt(2*H(ell, alpha, alpha, 0) + 1)*sqrt(2*H(ell, mu, mu, 0) +
        1)))/pi
        """
        folded = lambda x: isinstance(x, GaussianAverage)  # noqa: E731
        return tuple(
            Eq(e.lhs, e.rhs.replace(folded, lambda x: x.doit()), evaluate=False) for e in self.kernels
        )


def stationary(theory: Theory) -> Stationary:
    """The stationary kernels of Langevin dynamics at weak feature learning, at any depth.

    Flows, or steps with their own law: a step of length eta leaves weights of the variance of the flow over
    1 - eta decay/2.  Raises :class:`NotApplicable` when weights do not reach a stationary state (no decay),
    for biases, and when a response survives at gamma0 = 0.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> lam, beta = Symbol("lam", positive=True), Symbol("beta", positive=True)
    >>> network = mlp(activation=Function("phi"), rule="flow", weight_decay=lam/beta, temperature=1/beta)
    >>> rest = stationary(mean_field(network))
    >>> print(rest.entry, "|", rest.fields[1])
    exp(-lam*tau/beta)/lam | Eq(H(ell + 1, mu, alpha, tau), Phi(ell, mu, alpha, tau)*exp(-lam*tau/beta)/lam)
    >>> steps = mlp(activation="tanh", weight_decay=lam, temperature=1/beta)
    >>> print(stationary(mean_field(steps)).entry.subs(tau, 0))
    -2/(beta*lam*(eta*lam - 2))
    >>> print(rest.kernels[1].rhs)
    Z(ell, mu, alpha, tau)*<Derivative(phi(x), x)*Derivative(phi(y), y)>_{x,y}
    """
    return _Stationary(theory).limit()


class _Stationary:
    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        self.moving = {e.name: e for e in theory.equations if any(x.kind == "source" for x in e.terms)}
        self.of_source = {
            str(x.expr.func): name
            for name in self.moving
            for e in theory.equations
            if e.name == name
            for x in e.terms
            if x.kind == "source"
        }
        self.definitions = {
            e.lhs: e.rhs for e in theory.equations if all(x.kind == "definition" for x in e.terms)
        }

    def limit(self) -> Stationary:
        for e in self.theory.equations:
            for x in e.terms:
                if x.kind == "memory" and x.expr.subs(gamma0, 0).doit() != 0:
                    raise NotApplicable(f"the memory {x.expr} survives at gamma0 = 0")
            if sum(x.kind == "source" for x in e.terms) > 1:
                raise NotApplicable(
                    f"{e.lhs} has a source of its own besides a product with a matrix: a bias"
                )
        for q in self.theory.responses():
            self.vanishing(q)
        entries = {self.entry(u) for u in self.theory.sources}
        if len(entries) != 1:
            raise NotApplicable(f"the weights relax differently: {entries}")
        entry = entries.pop()
        return Stationary(
            self.theory,
            entry,
            tuple(self.covariance(u, entry) for u in self.theory.sources),
            tuple(x for x in map(self.kernel, self.theory.correlations()) if x.lhs != x.rhs),
        )

    def entry(self, u: Source) -> Expr:
        """The covariance of an entry at lag tau, long after the start."""
        past, lag = Dummy("past", positive=True), Dummy("lag", positive=True)
        factor, _ = _apart(u.covariance)
        late = self.settled(factor.xreplace({t: past + lag, s: past}), past)
        if late in (0, oo) or late.has(past):
            raise NotApplicable(f"weights reach no stationary state: the covariance {factor} tends to {late}")
        return simplify(late).xreplace({lag: tau})

    def settled(self, e: Expr, past: Expr) -> Expr:
        """The limit of large ``past``, where what a step keeps of a weight is less than all of it."""
        rule = self.theory.program.rule
        if not rule.discrete:
            return limit(simplify(e), past, oo)
        kept, loss = rule.memory(S.One, S.Zero)[0], Dummy("loss", positive=True)
        shrunk = e.replace(
            lambda x: x.is_Pow and x.base == kept and x.exp.free_symbols, lambda x: exp(-loss * x.exp)
        )
        late = limit(simplify(shrunk), past, oo)
        return late.replace(lambda x: isinstance(x, exp), lambda x: kept ** (-x.exp / loss))

    def covariance(self, u: Source, entry: Expr) -> Eq:
        """``<h h>``, which is that of the source, by the kernel of the vector below (above)."""
        name = self.of_source[str(u.symbol.func)].upper()
        _, kernel = _apart(u.covariance)
        site, *first = u.symbol.args[:-1]
        symbol = Function(name)(site, *first, *u.partner.args[1:-1], tau)
        return Eq(symbol, entry * self.lagged(kernel), evaluate=False)

    @staticmethod
    def lagged(e: Expr) -> Expr:
        """Two-time functions by their lag."""
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and x.args[-2:] == (t, s),
            lambda x: x.func(*x.args[:-2], tau),
        )

    def kernel(self, q: OrderParameter) -> Eq:
        """A kernel as a product of Gaussian averages over the independent fields that it is made of."""
        body = factor_terms(self.unfolded(q.definition.body))
        value: Expr = Mul(*[x for x in Mul.make_args(body) if not x.atoms(AppliedUndef)])
        for name in sorted({str(a.func) for a in body.atoms(AppliedUndef) if str(a.func) in self.moving}):
            fields = {a for a in body.atoms(AppliedUndef) if str(a.func) == name}
            own = [x for x in Mul.make_args(body) if x.atoms(AppliedUndef) & fields]
            if any(
                str(a.func) in self.moving and str(a.func) != name for x in own for a in x.atoms(AppliedUndef)
            ):
                raise NotApplicable(f"<{body}> does not factorise over independent fields")
            value *= self.pair(name, Mul(*own), fields)
        return Eq(self.lagged(q.symbol), value, evaluate=False)

    def pair(self, name: str, body: Expr, fields: set[AppliedUndef]) -> Expr:
        """A Gaussian average over one field at two times."""
        now, then = (next(a for a in fields if a.args[-1] == time) for time in (t, s))
        x, y = Symbol("x", real=True), Symbol("y", real=True)
        H = Function(name.upper())
        site, *a = now.args[:-1]
        b = then.args[1:-1]
        table = {
            (x, x): H(site, *a, *a, S.Zero),
            (x, y): H(site, *a, *b, tau),
            (y, y): H(site, *b, *b, S.Zero),
        }
        average = GaussianAverage(body.xreplace({now: x, then: y}), table)
        return average.doit() if body == now * then else average

    def unfolded(self, body: Expr) -> Expr:
        for lhs, rhs in self.definitions.items():
            for a in [a for a in body.atoms(AppliedUndef) if a.func == lhs.func]:
                body = body.xreplace({a: _placed(rhs, lhs, a)})
        return body

    def vanishing(self, q: OrderParameter) -> None:
        """A response is zero when the fields are their sources: by its own chain rule, and by symmetry.

        What the chain rule leaves is odd in a source that is independent of the others.
        """
        (response,) = q.definition.atoms(Response)
        names = {field: Function(source) for source, field in self.of_source.items()}
        body = self.unfolded(response.body)
        body = body.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in names,
            lambda x: names[str(x.func)](*x.args),
        )
        left = Response(body, response.source).doit(
            sources=tuple(self.of_source), fields=tuple(self.of_source), discrete=False
        )
        if left == 0:
            return
        for name in self.of_source:
            own = [a for a in left.atoms(AppliedUndef) if str(a.func) == name]
            if any(set(own) & set(x.variables) for x in left.atoms(Derivative)):
                continue
            if simplify(left.xreplace({a: -a for a in own}) + left) == 0:
                return
        raise NotApplicable(f"the response {q.symbol} = <{left}> survives at gamma0 = 0")


def _apart(covariance: Expr) -> tuple[Expr, Expr]:
    """The covariance of an entry, and the kernel of what the weights are applied to."""
    kernels = [x for x in Mul.make_args(covariance) if isinstance(x, KroneckerDelta) or _is_kernel(x)]
    return covariance / Mul(*kernels), Mul(*kernels)


def _is_kernel(x: Expr) -> bool:
    """A function of two samples; variances of weights are functions of the layer."""
    return isinstance(x, AppliedUndef) and len(x.args) > 1


def _placed(e: Expr, lhs: Expr, atom: Expr) -> Expr:
    names: Mapping[Expr, Expr] = {a: b for a, b in zip(lhs.args, atom.args, strict=True) if a != b}
    return sympify(e).xreplace(dict(names))


__all__ = ["Stationary", "stationary", "tau"]
