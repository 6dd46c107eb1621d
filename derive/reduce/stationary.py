"""Theories at ``gamma0 = 0``, at all times and at long times; weights that decay and diffuse.

At ``gamma0 = 0`` fields are their Gaussian sources, and kernels obey a recursion over layers. If weights
decay and diffuse, the covariance of an entry at two times tends to a function of their difference, and so do
all kernels (selfconsistent2023 K.15, K.16). :func:`two_sources` writes the decayed initial weights and the
noise as two sources of each product (J.2, K.14).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sympy import (
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
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
from derive.calculus.sums import defined, rewritten, unused
from derive.calculus.symbols import gamma0, s, t
from derive.errors import NotApplicable
from derive.program.nonlinear import require_linear_rules
from derive.program.program import Program
from derive.program.rules import accumulate, entry_covariance
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import Equation, OrderParameter, Source, Term, Theory

# -- at all times: only the output moves ---------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Static(Summarised):
    """Theory at ``gamma0 = 0``, where only the output moves; symbols of other quantities have no times.

    ``fields`` are the equations of the fields without the terms that vanish, ``sources`` and ``kernels``
    (correlation functions) refer to each other layer by layer, ``tangent`` is the tangent kernel in terms of
    them, and ``output`` the output at time t as a sum over past errors. The last two are None if the theory
    has no tangent kernel, and ``output`` too if the program has no unique output with one error.
    """

    theory: Theory
    sources: tuple[Source, ...]
    fields: tuple[Equation, ...]
    kernels: tuple[OrderParameter, ...]
    tangent: Equation | None
    output: Eq | None

    def _repr_latex_(self) -> str:
        kernels = (Eq(q.symbol, q.definition, evaluate=False) for q in self.kernels)
        moved = () if self.output is None else (self.output,)
        return aligned_latex((*kernels, *moved), self.theory)


def static(theory: Theory) -> Static:
    """Return the limit ``gamma0 -> 0`` of a theory of one layer or of a family of layers.

    Only the output moves. It is the sum over past times s of the tangent kernel times the errors and the
    factor ``k(t, s)`` with which the training rule keeps an update. Kernels are those of the network at time
    0 for any gamma0; for linear networks :mod:`derive.linear.lazy` gives closed forms. Raises
    :class:`NotApplicable` if fields move at ``gamma0 = 0`` (weight decay, noise, or updates without factor
    gamma0), if weights have different rules, and for an output that is not a linear function of averages or
    that is not zero without updates.

    >>> from derive import mean_field, mlp
    >>> end = static(mean_field(mlp(activation="erf")))
    >>> print(end.sources[1].covariance, "|", end.kernels[0].symbol, "=", end.kernels[0].definition)
    Phi(ell, mu, alpha) | Phi(ell, mu, alpha) = <erf(h(ell, alpha))*erf(h(ell, mu))>
    >>> print(end.output.rhs)
    Sum(eta*Delta(alpha, s)*K(mu, alpha), (alpha, 1, P), (s, 0, t - 1))
    """
    require_linear_rules(theory.program, "the theory at gamma0 = 0")
    for u in theory.sources:
        if timeless(sympify(u.covariance)).has(t, s):
            raise NotApplicable(
                f"the source {u.symbol} moves at gamma0 = 0: its covariance {u.covariance} depends on the "
                "time"
            )
    sources = tuple(u.map(timeless) for u in theory.sources)
    kernels = tuple(q.map(timeless) for q in theory.correlations())
    tangent = None
    if theory.observables:
        e = theory.observables[0]
        tangent = Equation(timeless(e.lhs), (Term.local(timeless(e.rhs), "definition"),), e.ranges)
    fields = tuple(map(_at_zero_gamma0, theory.equations))
    return Static(theory, sources, fields, kernels, tangent, _output(theory, tangent))


def _at_zero_gamma0(e: Equation) -> Equation:
    """Return the equation of a field at ``gamma0 = 0``, with functions that have no times.

    Terms with a factor gamma0 are left out. Raises NotApplicable if another term contains a time, so that the
    field may move, or a sum.
    """
    terms = []
    for x in e.terms:
        if (x.coefficient * x.kernel).subs(gamma0, 0) == 0:
            continue
        at_zero = x.map(lambda y: timeless(y.subs(gamma0, 0)))
        if x.remembers or at_zero.expr.has(t, s, Sum):
            raise NotApplicable(
                f"the field {e.lhs} is not shown to be constant in time at gamma0 = 0: its term {x.expr} "
                "does not vanish there, and contains a time, a sum or an integral"
            )
        if at_zero.expr != 0:
            terms.append(at_zero)
    return Equation(timeless(e.lhs), tuple(terms), e.ranges)


def _output(theory: Theory, tangent: Equation | None) -> Eq | None:
    """Return the output: a sum over past errors times tangent kernel and kept fraction of updates.

    The result is None if there is no tangent kernel, or if the program has no unique output with one error.
    Raises NotApplicable for an output that is not zero without updates, and for different rules.
    """
    rule, roles = theory.program.rule, theory.program.roles
    if tangent is None or roles.output is None or roles.error is None:
        return None
    output, error = (
        next(e for e in theory.scalars if e.name == str(x.func)) for x in (roles.output, roles.error)
    )
    require_one_rule(theory.program, "the theory at gamma0 = 0")
    if offset_of(output) != 0:
        raise NotApplicable(
            f"the theory at gamma0 = 0 needs an output that is zero without updates, and {output.lhs} = "
            f"{output.rhs} has the offset {offset_of(output)}: leave the offset out of the output, and "
            "subtract it from the target"
        )
    ranges = tangent.ranges[len(output.lhs.args) - 1 :]
    past = Function(error.name)(*[r.index for r in ranges], s)
    body = Sum(rule.memory(t, s)[1] * tangent.lhs * past, *[r.limits for r in ranges])
    return Eq(output.lhs, accumulate(rule, body, s, t), evaluate=False)


def require_one_rule(program: Program, what: str) -> None:
    """Raise NotApplicable, naming ``what``, if a weight is trained by another rule than the program's."""
    for w in program.trained():
        if w.rule != program.rule:
            raise NotApplicable(
                f"{what} needs one training rule for all weights, and {w.name} has a rule of its own: leave "
                "out the rules of single weights, and give their learning rates by "
                f"Parametrization(rates={{...}})"
            )


def offset_of(output: Equation) -> Expr:
    """Return the part of an output that is left if all averages in it are zero.

    Raises NotApplicable if the output is not a linear function of averages.
    """
    averages = {x: Dummy() for x in output.rhs.atoms(Average)}
    masked = output.rhs.xreplace(averages)
    if any(masked.diff(x).has(*averages.values()) for x in averages.values()):
        raise NotApplicable(
            f"the limit gamma0 = 0 needs an output that is linear in averages, not {output.lhs} = "
            f"{output.rhs}"
        )
    return masked.xreplace(dict.fromkeys(averages.values(), S.Zero)).doit()


def timeless(e: Expr) -> Expr:
    """Return an expression in which the times t and s are removed from the arguments of functions."""
    return e.replace(
        lambda x: isinstance(x, AppliedUndef) and bool({t, s} & set(x.args)),
        lambda x: x.func(*[a for a in x.args if a not in (t, s)]),
    )


# -- long times ----------------------------------------------------------------------------------------------

tau = Symbol("tau", nonnegative=True)
"""The difference of two times."""


@dataclass(frozen=True, repr=False)
class Stationary(Summarised):
    """Kernels of a theory at ``gamma0 -> 0`` and then at long times, as functions of the time lag ``tau``.

    ``entry`` is the covariance of an entry of the weights at two times, the same for all weights; ``fields``
    are the covariances of the fields (``H`` of h, ``Z`` of z) in terms of kernels, and ``kernels`` the
    kernels as Gaussian averages in terms of these covariances. A kernel that is one of these covariances is
    left out of ``kernels``.
    """

    theory: Theory
    entry: Expr
    fields: tuple[Eq, ...]
    kernels: tuple[Eq, ...]

    def closed(self) -> tuple[Eq, ...]:
        """Return ``kernels`` with every Gaussian average evaluated that has a closed form.

        >>> from derive import mean_field, mlp
        >>> lam, beta = Symbol("lam", positive=True), Symbol("beta", positive=True)
        >>> network = mlp(activation="erf", rule="flow", weight_decay=lam/beta, temperature=1/beta)
        >>> print(stationary(mean_field(network)).closed()[0].rhs)
        2*asin(2*H(ell, mu, alpha, tau)/(sqrt(2*H(ell, alpha, alpha, 0) + 1)*sqrt(2*H(ell, mu, mu, 0) +
        1)))/pi
        """
        done = (
            (e.lhs, e.rhs.replace(GaussianAverage, lambda *x: GaussianAverage(*x).doit()))
            for e in self.kernels
        )
        return tuple(Eq(*e, evaluate=False) for e in done)

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.fields, *self.kernels), self.theory)


def stationary(theory: Theory) -> Stationary:
    """Return the stationary kernels of Langevin dynamics at weak feature learning, at any depth.

    As gamma0 goes to zero the fields are their Gaussian sources, because memory has a factor gamma0 and
    responses vanish on the sources. Discrete steps have another stationary state: with steps eta, the
    variance is that of the flow over 1 - eta decay/2. Raises :class:`NotApplicable` for noise without decay,
    for decay without noise, for weights with different covariances at two times, for biases, for a field with
    different sources at different layers or steps, for a kernel that is not a product of averages over one
    field each, and if memory or a response does not vanish at gamma0 = 0.

    >>> from derive import mean_field, mlp
    >>> lam, beta = Symbol("lam", positive=True), Symbol("beta", positive=True)
    >>> network = mlp(activation=Function("phi"), rule="flow", weight_decay=lam/beta, temperature=1/beta)
    >>> rest = stationary(mean_field(network))
    >>> print(rest.entry, "|", rest.fields[1])
    exp(-lam*tau/beta)/lam | Eq(H(ell + 1, mu, alpha, tau), Phi(ell, mu, alpha, tau)*exp(-lam*tau/beta)/lam)
    >>> print(rest.kernels[1].rhs)
    Z(ell, mu, alpha, tau)*<Derivative(phi(x), x)*Derivative(phi(y), y)>_{x,y}
    """
    require_linear_rules(theory.program, "the stationary theory")
    return _Stationary(theory).limit()


class _Stationary:
    """Derivation of the stationary kernels of one theory."""

    def __init__(self, theory: Theory) -> None:
        """Find the field into which each source enters, and the definitions of all other fields."""
        self.theory = theory
        self.sources_of: dict[str, list[str]] = {}
        for e in theory.equations:
            known = self.sources_of.setdefault(e.name, [])
            known += [x.field.name for x in e.terms if x.kind == "source" and x.field.name not in known]
        self.moving = {name for name, sources in self.sources_of.items() if sources}
        self.of_source = {source: name for name, sources in self.sources_of.items() for source in sources}
        defining = (e for e in theory.equations if all(x.kind == "definition" for x in e.terms))
        self.definitions = [(e.lhs, e.rhs) for e in defining]

    def limit(self) -> Stationary:
        """Return the kernels at ``gamma0 -> 0`` and then at long times.

        Raises NotApplicable if memory or a response does not vanish at gamma0 = 0, if a field has several
        sources, or if weights have different covariances at two times.
        """
        for e in self.theory.equations:
            for x in e.terms:
                if x.kind == "memory" and (x.coefficient * x.kernel).subs(gamma0, 0) != 0:
                    raise NotApplicable(
                        f"stationary kernels are not derived: the memory {x.expr} does not vanish at gamma0 "
                        "= 0"
                    )
            if sum(x.kind == "source" for x in e.terms) > 1:
                raise NotApplicable(
                    f"stationary kernels are not derived: the equation of {e.lhs} has more than one source, "
                    "as with a bias in addition to a matrix"
                )
        for name, sources in self.sources_of.items():
            if len(sources) > 1:
                raise NotApplicable(
                    f"stationary kernels are not derived: equations of the field {name} have different "
                    f"sources, {' and '.join(sources)}, as at the steps of a recurrent network"
                )
        for q in self.theory.responses():
            self.vanishing(q)
        entries = {self.entry(x) for x in {_weight_and_kernel(u.covariance)[0] for u in self.theory.sources}}
        if len(entries) != 1:
            raise NotApplicable(
                "stationary kernels need the same covariance of a weight at two times for all weights; the "
                f"covariances at time lag tau are {', '.join(sorted(map(str, entries)))}"
            )
        entry = entries.pop()
        fields = tuple(self.covariance(u, entry) for u in self.theory.sources)
        kernels = (x for x in map(self.kernel, self.theory.correlations()) if x.lhs != x.rhs)
        return Stationary(self.theory, entry, fields, tuple(kernels))

    def entry(self, factor: Expr) -> Expr:
        """Return the covariance of an entry of the weights at long times as a function of the time lag tau.

        ``factor`` is the covariance at the times t and s. Raises NotApplicable if it has no finite, nonzero
        limit.
        """
        past, lag = Dummy("past", positive=True), Dummy("lag", positive=True)
        late = self.late_limit(factor.xreplace({t: past + lag, s: past}), past)
        if late in (0, oo) or late.has(past):
            raise NotApplicable(
                "weights have no stationary covariance that is finite and not zero: at long times the "
                f"covariance {factor} of a weight at the times t and s tends to {late}"
            )
        return simplify(late).xreplace({lag: tau})

    def late_limit(self, e: Expr, past: Expr) -> Expr:
        """Return the limit of ``e`` as the time ``past`` goes to infinity.

        In discrete time the factor by which a step multiplies a weight is assumed to be below one.
        """
        rule = self.theory.program.rule
        if not rule.discrete:
            return limit(simplify(e), past, oo)
        factor_of_step, loss = rule.memory(S.One, S.Zero)[0], Dummy("loss", positive=True)
        shrunk = e.replace(
            lambda x: x.is_Pow and x.base == factor_of_step and x.exp.free_symbols,
            lambda x: exp(-loss * x.exp),
        )
        late = limit(simplify(shrunk), past, oo)
        return late.replace(lambda x: isinstance(x, exp), lambda x: factor_of_step ** (-x.exp / loss))

    def covariance(self, u: Source, entry: Expr) -> Eq:
        """Return the equation of the covariance of a source at time lag tau.

        It is ``entry``, the covariance of a weight, times the kernel of the vector that the weights multiply
        (that of the layer below for h, of the layer above for z).
        """
        _, kernel = _weight_and_kernel(u.covariance)
        site, *first = u.symbol.args[:-1]
        name = self.of_source[str(u.symbol.func)].upper()
        symbol = Function(name)(site, *first, *u.partner.args[1:-1], tau)
        return Eq(symbol, entry * self.lagged(kernel), evaluate=False)

    @staticmethod
    def lagged(e: Expr) -> Expr:
        """Return an expression with functions of the times (t, s) as functions of their lag tau."""
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and x.args[-2:] == (t, s),
            lambda x: x.func(*x.args[:-2], tau),
        )

    def kernel(self, q: OrderParameter) -> Eq:
        """Return the equation of a kernel, a product of Gaussian averages over independent fields.

        Raises NotApplicable if its definition is not the average of such a product.
        """
        body = factor_terms(defined(q.definition.body, self.definitions))
        fields = {a for a in body.atoms(AppliedUndef) if str(a.func) in self.moving}
        value: Expr = Mul(*[x for x in Mul.make_args(body) if not x.atoms(AppliedUndef)])
        for name in sorted({str(a.func) for a in fields}):
            of_field = {a for a in fields if str(a.func) == name}
            factors = [x for x in Mul.make_args(body) if x.atoms(AppliedUndef) & of_field]
            if any(x.atoms(AppliedUndef) & (fields - of_field) for x in factors):
                raise NotApplicable(
                    f"stationary kernels are not derived: a factor of <{body}> contains several fields, so "
                    "that the average is not a product of averages over one field each"
                )
            value *= self.pair(name, Mul(*factors), of_field)
        return Eq(self.lagged(q.symbol), value, evaluate=False)

    def pair(self, name: str, body: Expr, fields: set[AppliedUndef]) -> Expr:
        """Return the Gaussian average of ``body``, a function of the field ``name`` at the times t and s.

        Covariances of the field are functions of the time lag tau, such as ``H(ell, mu, alpha, tau)``.
        ``fields`` are the field at both times.
        """
        now, then = (next(a for a in fields if a.args[-1] == time) for time in (t, s))
        taken = body.free_symbols | now.free_symbols | then.free_symbols  # constants of phi may be called x
        x, y = (unused(Symbol(name, real=True), taken) for name in ("x", "y"))
        H = Function(name.upper())
        (site, *a), b = now.args[:-1], then.args[1:-1]
        table = {
            (x, x): H(site, *a, *a, S.Zero),
            (x, y): H(site, *a, *b, tau),
            (y, y): H(site, *b, *b, S.Zero),
        }
        average = GaussianAverage(body.xreplace({now: x, then: y}), table)
        return average.doit() if body == now * then else average

    def vanishing(self, q: OrderParameter) -> None:
        """Raise NotApplicable unless the response ``q`` is zero when the fields are their sources.

        It is zero if its derivative by the chain rule is zero, or odd in a source that is independent of the
        other sources, so that its average vanishes.
        """
        (response,) = q.definition.atoms(Response)
        names = {field: Function(source) for source, field in self.of_source.items()}
        body = defined(response.body, self.definitions)
        body = rewritten(body, names, lambda x: names[str(x.func)](*x.args))
        sources = tuple(self.of_source)
        response_value = Response(body, response.source).doit(sources=sources, fields=sources, discrete=False)
        if response_value == 0:
            return
        for name in sources:
            of_source = [a for a in response_value.atoms(AppliedUndef) if str(a.func) == name]
            if any(set(of_source) & set(x.variables) for x in response_value.atoms(Derivative)):
                continue
            if simplify(response_value.xreplace({a: -a for a in of_source}) + response_value) == 0:
                return
        raise NotApplicable(
            f"stationary kernels are not derived: the response {q.symbol}, which is <{response_value}> at "
            "gamma0 = 0, is not shown to vanish there"
        )


def _weight_and_kernel(covariance: Expr) -> tuple[Expr, Expr]:
    """Split the covariance of a Gaussian source ``W v`` into variance of a weight and kernel of ``v``.

    The kernel is the product of the factors with two arguments or more, such as samples and times; variances
    of weights are functions of the layer only.
    """
    args = Mul.make_args(covariance)
    kernel = Mul(*[x for x in args if isinstance(x, KroneckerDelta | AppliedUndef) and len(x.args) > 1])
    return covariance / kernel, kernel


# -- two sources of one product ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoSources:
    """Theory with two sources for each product: of the decayed initial weights and of the noise.

    ``kept`` is the factor m(t) by which initial weights decay, and ``noise`` the covariance of the noise at t
    and s over the initial variance. In ``theory`` each source ``u`` has a partner ``u_eps``
    (none without noise), and each response ``A`` a partner ``A_eps``, whose definition contains the noise as
    a factor.
    """

    theory: Theory
    kept: Expr
    noise: Expr


def two_sources(theory: Theory) -> TwoSources:
    """Return a theory with separate sources for decayed initial weights and noise.

    A derived theory has one source for each product, with the covariance of an entry at two times, ``c(t, s)
    = m(t) m(s) + noise(t, s)``, as a factor. With ``u -> m(t) u + u_eps`` and two independent sources, a
    response to u at s is m(s) times the response to the whole, and one to u_eps is that response itself: ``c
    A = m(t) [m(s) A] + noise A``. Raises :class:`NotApplicable` if the weights neither decay nor diffuse, if
    rules of weights differ, or for a source of constant covariance, as of an untrained random vector.

    >>> from derive import mean_field, mlp
    >>> lam = Symbol("lam", positive=True)
    >>> split = two_sources(mean_field(mlp(rule="flow", weight_decay=lam)))
    >>> print(split.theory.equation("h", 1).terms[0].expr, split.theory.sources[0].covariance)
    u(1, mu, t)*exp(-lam*t) K_x(mu, alpha)
    """
    rule = theory.program.rule
    kept, noise = rule.memory(t, s)[0], rule.noise(t, s)
    if kept == 1 and noise == 0:
        raise NotApplicable(
            "the sources of initial weights and of noise are not separated, because the training rule of "
            "the program has neither weight decay nor noise"
        )
    if any(w.rule != rule for w in theory.program.trained()):
        raise NotApplicable(
            "two sources are derived if all weights follow the training rule of the program, with noise in "
            "units of their initial variances, and some weights follow another rule"
        )
    split = _Split(theory, entry_covariance(rule, t, s), kept, noise)
    equations = (
        replace(e, terms=tuple(y for x in e.terms for y in split.terms(x))) for e in theory.equations
    )
    divided = replace(
        theory,
        sources=tuple(x for u in theory.sources for x in split.sources(u)),
        equations=tuple(equations),
        order_parameters=tuple(x for q in theory.order_parameters for x in split.order(q)),
        reduction="separate sources of initial weights and noise",
    )
    return TwoSources(divided, kept, noise)


class _Split:
    """Derivation of a theory with separate sources and responses for initial weights and for noise."""

    def __init__(self, theory: Theory, entries: Expr, kept: Expr, noise: Expr) -> None:
        """Set the parts of ``entries``, the covariance of a weight at two times.

        ``kept`` is the factor by which its initial value decays, and ``noise`` the covariance of its noise.
        """
        self.entries, self.kept, self.noise = entries, kept, noise
        self.names = {q.name for q in theory.responses()}

    def sources(self, u: Source) -> Iterator[Source]:
        """Yield two sources in place of one: of the initial weights, and of the noise if there is any.

        The covariance of the first has no factor of time for the decay of the weights; equations contain it
        instead. Let ``c(t, s)`` be the covariance of a weight at two times over its initial variance. Raises
        NotApplicable if the covariance of ``u`` over c depends on time and contains no kernel.
        """
        bare = simplify(u.covariance / self.entries)
        if {t, s} & bare.free_symbols and not bare.atoms(AppliedUndef):
            raise NotApplicable(
                f"the covariance {u.covariance} of the source {u.symbol} does not have the factor "
                f"{self.entries}, the covariance of a weight at two times"
            )
        yield replace(u, covariance=bare)
        if self.noise != 0:
            yield replace(u, symbol=_other(u.symbol), partner=_other(u.partner), covariance=self.noise * bare)

    def terms(self, x: Term) -> Iterator[Term]:
        """Yield the terms of both sources or responses that replace one term.

        ``u`` becomes ``m(t) u + u_eps``, and ``int c A g`` becomes ``m(t) int A g + int A_eps g``.
        """
        if x.kind == "source":
            yield x.times(self.kept)
            if self.noise != 0:
                yield replace(x, field=_other(x.field), rule="noise since time 0")
        elif x.kind == "response":
            early = {Min(s, t): s}  # the response is summed over the past, s <= t
            bare = simplify(x.kernel.xreplace(early) / self.entries.xreplace(early))
            (response,) = {a for a in bare.atoms(AppliedUndef) if str(a.func) in self.names}
            yield replace(x, coefficient=self.kept * x.coefficient, kernel=bare)
            if self.noise != 0:
                yield replace(x, kernel=bare.xreplace({response: _other(response)}))
        else:
            yield x

    def order(self, q: OrderParameter) -> Iterator[OrderParameter]:
        """Yield an order parameter and, if it is a response and there is noise, its partner for the noise.

        The partner ``A_eps`` is the covariance of the noise times the response to the source ``u_eps``.
        """
        yield q
        if q.kind == "response" and self.noise != 0:
            (average,) = q.definition.atoms(Average)
            (response,) = q.definition.atoms(Response)
            response_to_noise = Average(Response(response.body, _other(response.source)))
            definition = q.definition / average * self.noise * response_to_noise
            yield replace(q, symbol=_other(q.symbol), definition=definition)


def _other(x: AppliedUndef) -> AppliedUndef:
    """Return the symbol for the noise that belongs to a source or response: ``u_eps`` for ``u``."""
    return Function(f"{x.func}_eps")(*x.args)
