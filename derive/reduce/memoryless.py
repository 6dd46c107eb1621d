"""Theories without memory: sums over the past become states that move by equations of their own.

A sum over the past is a running total when the present enters it only as a factor: then what was added at
an earlier time need not be known any more.  With one hidden layer all sums are of this form, for any
nonlinearity, with momentum and weight decay too; what is Gaussian is drawn once, at the start.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import (
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integer,
    Integral,
    Mul,
    Pow,
    S,
    Sum,
    powsimp,
    simplify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import is_random
from derive.errors import NotApplicable
from derive.program.words import IndexRange, s, t
from derive.theory.theory import Equation, Source, Term, Theory


@dataclass(frozen=True)
class State:
    """A sum over the past that forgets when its terms were added.

    ``definition`` is the sum that ``symbol`` stands for, zero at time 0, and ``motion`` what follows by
    differentiation: ``d symbol/dt = ...``, or in steps ``symbol(t + 1) = ...``; its right-hand side is read
    at time t alone.
    """

    symbol: AppliedUndef
    definition: Expr
    motion: Eq
    ranges: tuple[IndexRange, ...] = ()


@dataclass(frozen=True)
class Markov:
    """A theory as a dynamical system: given what is drawn at the start, the present alone says what is next.

    ``start`` are the Gaussian variables (sources at time 0) with their covariances, ``states`` the sums over
    the past, ``fields`` the fields of ``theory`` at time t in terms of both and of each other.  Scalars and
    order parameters are averages over ``start``, as the theory has them.
    """

    theory: Theory
    start: tuple[Source, ...]
    states: tuple[State, ...]
    fields: tuple[Equation, ...]

    @property
    def discrete(self) -> bool:
        """Does time count steps?"""
        return bool(self.theory.program.rule.discrete)


def markov(theory: Theory) -> Markov:
    """The equations of motion of a theory without memory.

    Served are theories in which the present and the past enter every sum over the past in separate factors,
    or in a sum of such products (powers and exponentials of ``t - s``: momentum, decay), and in which noise
    enters only at the start: networks with one hidden layer, with biases, channels and feedback alignment.
    Raises :class:`NotApplicable`, naming the term, where two times are coupled: by kernels and responses
    of deeper networks, by noise at all times, by sums that contain the present.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> flow = markov(mean_field(mlp(1, "tanh", "flow")))
    >>> for x in flow.states: print(x.motion.rhs)
    Sum(gamma0*Delta(alpha, t)*K_x(mu, alpha)*g(1, alpha, t), (alpha, 1, P))
    Sum(gamma0*Delta(alpha, t)*tanh(h(1, alpha, t)), (alpha, 1, P))
    >>> print(flow.fields[0].eq)
    Eq(h(1, mu, t), past_h(1, mu, t) + u(1, mu, 0))
    >>> markov(mean_field(mlp(2, "tanh")))
    Traceback (most recent call last):
    derive.errors.NotApplicable: the source u(ell + 1, mu, t) is not drawn once: ...
    """
    return _Markov(theory).reduce()


class _Markov:
    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        self.discrete = bool(theory.program.rule.discrete)
        self.random = frozenset(e.name for e in theory.equations) | {
            str(x.func) for u in theory.sources for x in (u.symbol, u.partner)
        }
        self.states: list[State] = []

    def reduce(self) -> Markov:
        start, scales = self.start()
        fields = tuple(self.field(e, scales) for e in self.theory.equations)
        return Markov(self.theory, start, tuple(self.states), fields)

    # -- what is drawn at the start --------------------------------

    def start(self) -> tuple[tuple[Source, ...], dict[str, Expr]]:
        """The sources at time 0, and what each is multiplied by at time t."""
        found: list[Source] = []
        scales: dict[str, Expr] = {}
        for u in self.theory.sources:
            first = _at(u.covariance, 0, 0)
            scale = simplify(_at(u.covariance, t, 0) / first)
            together = scale * scale.xreplace({t: s}) * first
            if scale.atoms(AppliedUndef) or simplify(u.covariance - together) != 0:
                raise NotApplicable(
                    f"the source {u.symbol} is not drawn once: its covariance {u.covariance} does not follow "
                    "from that at the start"
                )
            for x in (u.symbol, u.partner):
                if scales.setdefault(str(x.func), scale) != scale:
                    raise NotApplicable(f"the source {x} has two dependences on time")
            found.append(Source(_at(u.symbol, 0, 0), _at(u.partner, 0, 0), first, u.ranges, u.matrix))
        return tuple(found), scales

    # -- sums over the past --------------------------------

    def field(self, e: Equation, scales: dict[str, Expr]) -> Equation:
        """A field in terms of sources at the start, states, and fields at the same time."""
        if e.lhs.is_Derivative:
            raise NotApplicable(f"{e.lhs} is given by a differential equation already")
        sums: dict[Expr, Expr] = {}
        kept: list[Term] = []
        for x in e.terms:
            for factor, part in self.separated(x.expr, e.lhs):
                sums[factor] = sums.get(factor, S.Zero) + part
            left = Add(*[y for y in Add.make_args(x.expr) if not _has_past(y)])
            if left != 0:
                kept.append(x.put(self.started(left, scales)))
        named = []
        for n, (factor, total) in enumerate(sums.items()):
            name = f"past_{e.name}{n + 1 if len(sums) > 1 else ''}"
            symbol = Function(name)(*e.lhs.args)
            self.states.append(State(symbol, total, self.motion(symbol, factor, total), e.ranges))
            named.append(symbol)
        if named:
            kept.append(Term.local(Add(*named), "memory", rule="sums over the past, as states"))
        return Equation(e.lhs, tuple(kept), e.ranges)

    def started(self, e: Expr, scales: dict[str, Expr]) -> Expr:
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in scales,
            lambda x: scales[str(x.func)] * _at(x, 0, 0),
        )

    def separated(self, e: Expr, lhs: Expr) -> list[tuple[Expr, Expr]]:
        """The sums over the past in ``e``, each with the factor in which the present enters it."""
        found = []
        for x in Add.make_args(e):
            if not _has_past(x):
                continue
            if isinstance(x, Mul):  # a number in front
                number, total = x.as_independent(Sum, Integral)
            else:
                number, total = S.One, x
            if number.has(t, s) or is_random(number, self.random):
                raise NotApplicable(f"{lhs}: {x} is no sum over the past")
            body, over, past = _opened(total, lhs)
            if past[1:] != ((Integer(0), t - 1) if self.discrete else (Integer(0), t)):
                raise NotApplicable(f"{lhs}: {x} contains the present, which is not known before it")
            for term in Add.make_args(body):
                for factor, product in self.factors(number * term, lhs):
                    found.append((factor, _closed(product, over, past, self.discrete)))
        return found

    def factors(self, term: Expr, lhs: Expr) -> list[tuple[Expr, Expr]]:
        """``term`` as a sum of products; each with its factor that depends on t."""
        free: list[Expr] = []
        coupled: list[Expr] = []
        for x in Mul.make_args(term):
            (coupled if x.has(t) else free).append(x)
        for x in coupled:
            for a in sorted(x.atoms(AppliedUndef), key=str):
                if a.has(t):
                    raise NotApplicable(
                        f"{lhs}: its sum over the past contains {a}, which couples the present to each "
                        "time of the past: the theory has memory"
                    )
        found = []
        for part in Add.make_args(_split(Mul(*coupled))):
            now = [x for x in Mul.make_args(part) if x.has(t)]
            if any(x.has(s) for x in now):
                raise NotApplicable(
                    f"{lhs}: {Mul(*now)} in its sum over the past couples the present to each time of the "
                    "past: the theory has memory"
                )
            found.append((Mul(*now), part * Mul(*free)))
        return found

    def motion(self, symbol: AppliedUndef, factor: Expr, total: Expr) -> Eq:
        """The derivative (or the next value) of a sum over the past, by the product rule."""
        if self.discrete:
            after = {t: t + 1}
            ratio = _tidy(factor.xreplace(after) / factor)
            new = Add(*[self.added(x, factor.xreplace(after) / factor) for x in Add.make_args(total)])
            return Eq(symbol.xreplace(after), ratio * symbol + new, evaluate=False)
        ratio = _tidy(factor.diff(t) / factor)
        new = Add(*[self.added(x, S.One) for x in Add.make_args(total)])
        return Eq(Derivative(symbol, t), ratio * symbol + new, evaluate=False)

    def added(self, total: Expr, change: Expr) -> Expr:
        """The term at s = t of a sum over the past, times the ``change`` of its factor in a step."""
        body, over, _ = _opened(total, total)
        numbers: list[Expr] = []
        rest: list[Expr] = []
        for x in Mul.make_args(body):
            (rest if x.has(AppliedUndef) else numbers).append(x)
        value = _tidy(change * Mul(*numbers).xreplace({s: t})) * Mul(*rest).xreplace({s: t})
        return Sum(value, *over) if over else value


def _at(e: Expr, now: Expr | int, past: Expr | int) -> Expr:
    return e.xreplace({t: Integer(now) if isinstance(now, int) else now, s: Integer(past)})


def _has_past(e: Expr) -> bool:
    """Does ``e`` contain a sum over earlier times?"""
    return any(lim[0] == s for x in e.atoms(Sum, Integral) for lim in x.limits)


def _opened(total: Expr, lhs: Expr) -> tuple[Expr, tuple[Expr, ...], tuple[Expr, ...]]:
    """The body of a sum over the past, its other sums, and its limits in time."""
    over: list[Expr] = []
    past: tuple[Expr, ...] | None = None
    body = total
    while isinstance(body, Sum | Integral):
        for lim in body.limits:
            if lim[0] == s:
                past = tuple(lim)
            else:
                over.append(lim)
        body = body.function
    if past is None or _has_past(body):
        raise NotApplicable(f"{lhs}: {total} is no single sum over the past")
    return body.expand() if isinstance(body, Add) else body, tuple(over), past


def _closed(body: Expr, over: tuple[Expr, ...], past: tuple[Expr, ...], discrete: bool) -> Expr:
    if discrete:
        return Sum(body, *over, past)
    return Integral(Sum(body, *over) if over else body, past)


def _split(e: Expr) -> Expr:
    """Powers and exponentials of differences of times as products; sums of them multiplied out."""
    swapped, bases = _positive(e)
    return swapped.expand().xreplace(bases)


def _tidy(e: Expr) -> Expr:
    """Powers of one base joined."""
    swapped, bases = _positive(e)
    return simplify(powsimp(swapped)).xreplace(bases)


def _positive(e: Expr) -> tuple[Expr, dict[Expr, Expr]]:
    """Bases of powers of times by symbols, since ``b**(t - s)`` is a product only where b is not zero."""
    found = {x.base for x in e.atoms(Pow) if x.exp.has(t, s)}
    bases = {x: Dummy("b", positive=True) for x in sorted(found, key=str)}
    swapped = e.xreplace({x: Pow(bases[x.base], x.exp) for x in e.atoms(Pow) if x.base in bases})
    return swapped, {b: x for x, b in bases.items()}


__all__ = ["Markov", "State", "markov"]
