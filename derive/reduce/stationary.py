"""Theories without feature learning, at all times and long after the start; weights that decay and diffuse.

At ``gamma0 = 0`` fields are their Gaussian sources, and kernels a recursion over the layers.  Where weights
decay and diffuse, the covariance of an entry at two times tends to a function of their difference, and with
it all kernels (selfconsistent2023 K.15, K.16).  What is left of the start and the noise since are two
sources of one product (J.2, K.14).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sympy import (
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integral,
    KroneckerDelta,
    Min,
    Mul,
    S,
    Sum,
    Symbol,
    exp,
    factor_terms,
    limit,
    oo,
    simplify,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.gaussian import GaussianAverage
from derive.errors import NotApplicable
from derive.program.training import TrainingRule, accumulate, entry_covariance
from derive.program.words import gamma0, s, t
from derive.theory import Equation, OrderParameter, Source, Term, Theory


@dataclass(frozen=True)
class Static:
    """A theory at ``gamma0 = 0``; symbols carry no times, for nothing here moves but the output.

    ``fields`` are what is left of their equations, ``sources`` and ``kernels`` (correlation functions) refer
    to each other layer by layer, ``tangent`` is the tangent kernel in terms of them.  ``output`` is the
    output at time t as a memory of past errors; both are None where the theory has no tangent kernel.
    """

    theory: Theory
    sources: tuple[Source, ...]
    fields: tuple[Equation, ...]
    kernels: tuple[OrderParameter, ...]
    tangent: Equation | None
    output: Eq | None


def static(theory: Theory) -> Static:
    """The limit ``gamma0 -> 0`` of a theory, of one layer or of a family of layers.

    The kernels are also those of the network at time 0 for any gamma0.  Raises :class:`NotApplicable` where
    fields move at ``gamma0 = 0``: weight decay, noise, theories whose updates gamma0 does not multiply.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> end = static(mean_field(mlp(activation="erf")))
    >>> print(end.sources[1].covariance, "|", end.kernels[0].symbol, "=", end.kernels[0].definition)
    Phi(ell, mu, alpha) | Phi(ell, mu, alpha) = <erf(h(ell, alpha))*erf(h(ell, mu))>
    >>> print(end.output.rhs)
    Sum(eta*Delta(alpha, s)*K(mu, alpha), (alpha, 1, P), (s, 0, t - 1))
    """
    for u in theory.sources:
        if _still(sympify(u.covariance)).has(t, s):
            raise NotApplicable(
                f"the source {u.symbol} moves at gamma0 = 0: its covariance is {u.covariance}"
            )
    sources = tuple(
        Source(_still(u.symbol), _still(u.partner), _still(u.covariance), u.ranges, u.matrix)
        for u in theory.sources
    )
    kernels = tuple(
        OrderParameter(_still(q.symbol), _still(q.definition), q.kind, q.ranges)
        for q in theory.correlations()
    )
    tangent = None
    if theory.observables:
        e = theory.observables[0]
        tangent = Equation(_still(e.lhs), (Term.local(_still(e.rhs), "definition"),), e.ranges)
    fields = tuple(_left(e) for e in theory.equations)
    return Static(theory, sources, fields, kernels, tangent, _output(theory, tangent))


def _left(e: Equation) -> Equation:
    """A field's equation at gamma0 = 0."""
    terms = []
    for x in e.terms:
        value = x.expr.replace(
            lambda y: isinstance(y, Sum | Integral) and y.function.subs(gamma0, 0) == 0, lambda y: S.Zero
        ).subs(gamma0, 0)
        if value.has(s) or value.has(Sum, Integral):
            raise NotApplicable(f"{e.lhs} moves at gamma0 = 0: {x.expr} does not vanish")
        if value != 0:
            terms.append(x.put(_still(value)))
    found = Equation(_still(e.lhs), tuple(terms), e.ranges)
    if found.rhs.has(t):
        raise NotApplicable(f"{e.lhs} moves at gamma0 = 0: {found.rhs}")
    return found


def _output(theory: Theory, tangent: Equation | None) -> Eq | None:
    """The output, moved along its tangent kernel by all updates that the rule remembers."""
    if tangent is None:
        return None
    output = next(e for e in theory.scalars if e.rhs.has(Average))
    error = next(e for e in theory.scalars if e.lhs != output.lhs)
    own = len(output.lhs.args) - 1
    ranges = tangent.ranges[own:]
    _, weight = theory.program.rule.memory(t, s)
    past = Function(error.name)(*[r.index for r in ranges], s)
    body = Sum(weight * tangent.lhs * past, *[r.limits for r in ranges])
    if theory.program.rule.discrete:
        return Eq(output.lhs, Sum(body.function, *body.limits, (s, 0, t - 1)), evaluate=False)
    return Eq(output.lhs, accumulate(theory.program.rule, body, s, t), evaluate=False)


def _still(e: Expr) -> Expr:
    """Without times in the arguments of functions."""
    found: Expr = e.replace(
        lambda x: isinstance(x, AppliedUndef) and bool({t, s} & set(x.args)),
        lambda x: x.func(*[a for a in x.args if a not in (t, s)]),
    )
    return found


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


__all__ = ["Static", "Stationary", "TwoSources", "static", "stationary", "tau", "two_sources"]
