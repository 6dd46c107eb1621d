"""How weights remember: training rules, the low-rank updates they accumulate, and the scale of both.

A trained weight is ``W(t) = m(t) W(0) + sum_{s<t} k(t, s) U(s)``, plus Gaussian noise if the rule injects
any.  The rule supplies the memory ``m`` and ``k`` and says whether steps are counted or time flows; the
program supplies the update ``U``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol

from sympy import Dummy, Expr, Integral, Matrix, Min, Piecewise, S, Sum, Symbol, exp, integrate, summation
from sympy.core.function import AppliedUndef, Function
from sympy.simplify import powsimp, simplify

from derive.calculus.symbols import IndexRange, expression, gamma0
from derive.errors import ProgramError
from derive.program.words import GaussianMatrix, GaussianVector, Mapped, numbered


@dataclass(frozen=True)
class LinearSystem:
    """The system with matrix ``A`` (or a number), input ``b`` (same) and noise of variance ``diffusion`` on
    the weight itself (``A`` is then a number); ``start`` is the share of W(0) that the weight begins with.

    >>> from sympy.abc import a, t, s
    >>> LinearSystem(a, S.One).steps(t, s)
    (a**t, a**(-s + t - 1))
    """

    A: Expr | Matrix
    b: Expr | Matrix
    diffusion: Expr = S.Zero
    start: Expr = S.One

    def steps(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """``(m(t), k(t, s))`` when time counts steps."""
        if not isinstance(self.A, Matrix):
            return self.start * self.A**time, self.A ** (time - past - 1) * self.b
        n, kept, fed = self._stepped
        return kept.subs(n, time), fed.subs(n, time - past - 1)

    def flow(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """``(m(t), k(t, s))`` in continuous time."""
        if not isinstance(self.A, Matrix):
            return self.start * exp(self.A * time), exp(self.A * (time - past)) * self.b
        x, kept, fed = self._flowed
        return kept.subs(x, time), fed.subs(x, time - past)

    @cached_property
    def _stepped(self) -> tuple[Symbol, Expr, Expr]:
        """A number of steps n, and the weight that ``A^n`` makes of the start and of an input that old."""
        n = Dummy("n", integer=True, nonnegative=True)
        return self._read(self.A**n, n)

    @cached_property
    def _flowed(self) -> tuple[Symbol, Expr, Expr]:
        """The same after a time x, of ``exp(A x)``."""
        x = Dummy("x", nonnegative=True)
        return self._read((self.A * x).exp(), x)

    def _read(self, power: Matrix, x: Symbol) -> tuple[Symbol, Expr, Expr]:
        return x, self.start * _neat(power[0, 0]), _neat((power * self.b)[0, 0])

    def step_noise(self, time: Expr, past: Expr) -> Expr:
        """``sum_{u < min(t, s)} A^{t-1-u} A^{s-1-u} diffusion``."""
        if self.diffusion == 0:
            return S.Zero
        first, closed = self._step_variance
        lag = self.A ** (time + past - 2 * Min(time, past))
        return self.diffusion * lag * closed.subs(first, Min(time, past))

    @cached_property
    def _step_variance(self) -> tuple[Symbol, Expr]:
        """A number of steps, and ``sum_u A^(2 u)`` over as many."""
        u, first = Dummy("u", integer=True, nonnegative=True), Dummy("first", integer=True, positive=True)
        inner = summation(self.A ** (-2 * u), (u, 0, first - 1))
        if isinstance(inner, Piecewise):  # the case A^2 = 1 is the limit of the other
            inner = inner.args[-1][0]
        return first, simplify(inner * self.A ** (2 * (first - 1)))

    def flow_noise(self, time: Expr, past: Expr) -> Expr:
        """``integral_0^{min(t, s)} e^{A (t-u)} e^{A (s-u)} diffusion du``."""
        if self.diffusion == 0:
            return S.Zero
        x, y, covariance = self._flow_covariance
        return covariance.xreplace({x: time, y: past})

    @cached_property
    def _flow_covariance(self) -> tuple[Symbol, Symbol, Expr]:
        """Two times, and the covariance of the noise until each."""
        u, first, x, y = (Dummy(n, nonnegative=True) for n in ("u", "first", "x", "y"))
        inner = integrate(exp(-2 * self.A * u), (u, 0, first))
        if isinstance(inner, Piecewise):  # the case A = 0 is the limit of the other
            inner = inner.args[0][0]
        return x, y, simplify(self.diffusion * exp(self.A * (x + y)) * inner.subs(first, Min(x, y)))


def _neat(e: Expr) -> Expr:
    """A solution without the zero powers that SymPy's Jordan form leaves behind."""
    if e.has(Piecewise):
        e = e.replace(lambda x: isinstance(x, Piecewise), lambda x: x.args[-1][0])
    return powsimp(simplify(e))


class TrainingRule(Protocol):
    """What the engine needs to know of a training rule."""

    @property
    def discrete(self) -> bool:
        """True when time counts steps."""

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """``(m(t), k(t, s))``: what is left of W(0), and the weight of the update made at ``past``."""

    def noise(self, time: Expr, past: Expr) -> Expr:
        """The covariance of W(t) and W(s) that noise injected during training adds, entry by entry."""

    def __hash__(self) -> int:
        """Rules are immutable: what is found of one is kept."""


class Recursion:
    """A rule that is an equation of motion, which its memory and its noise are the solution of."""

    discrete: bool

    @property
    def system(self) -> LinearSystem:
        """The equation, of the weight and of its velocity if it has one."""
        raise NotImplementedError

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """``(m(t), k(t, s))``: what is left of W(0), and the weight of the update made at ``past``."""
        return self.system.steps(time, past) if self.discrete else self.system.flow(time, past)

    def noise(self, time: Expr, past: Expr) -> Expr:
        """The noise of all steps, or moments, before both times."""
        return self.system.step_noise(time, past) if self.discrete else self.system.flow_noise(time, past)


class _Descent(Recursion):
    """``W' = -decay W + rate U + noise``, of the weight alone."""

    @cached_property
    def system(self) -> LinearSystem:
        rate, decay, noise = (expression(getattr(self, n), n) for n in ("rate", "decay", "diffusion"))
        return LinearSystem(1 - decay if self.discrete else -decay, rate, noise)


@dataclass(frozen=True)
class GradientDescent(_Descent):
    """Exact discrete steps ``W(t+1) = (1 - decay) W(t) + rate U(t) + sqrt(diffusion) xi(t)``.

    ``decay`` is the share of a weight lost in a step (learning rate times weight decay) and ``diffusion``
    the variance that noise adds to it.  The memory is that of this recursion, see :class:`LinearSystem`.

    >>> from sympy.abc import t, s
    >>> GradientDescent(Symbol("eta")).memory(t, s)
    (1, eta)
    >>> GradientDescent(Symbol("eta"), decay=Symbol("lam")).memory(t, s)
    ((1 - lam)**t, eta*(1 - lam)**(-s + t - 1))
    """

    rate: Expr
    decay: Expr = S.Zero
    diffusion: Expr = S.Zero
    discrete: bool = True


@dataclass(frozen=True)
class GradientFlow(_Descent):
    """Continuous time, ``dW = (rate U - decay W) dt + sqrt(diffusion) dB``.

    ``rate`` is 1 for the summed loss, 1/P for its mean.

    >>> from sympy.abc import t, s
    >>> GradientFlow(decay=Symbol("lam")).memory(t, s)
    (exp(-lam*t), exp(-lam*(-s + t)))
    """

    rate: Expr = S.One
    decay: Expr = S.Zero
    diffusion: Expr = S.Zero
    discrete: bool = False


@dataclass(frozen=True)
class Momentum(Recursion):
    """Heavy-ball steps ``Q(t+1) = momentum Q(t) + U(t)``, ``W(t+1) = (1 - decay) W(t) + rate Q(t+1)``.

    >>> from sympy.abc import t, s
    >>> m, k = Momentum(Symbol("eta"), Symbol("beta")).memory(t, s)
    >>> m, k.subs(s, t - 1).simplify(), k.subs(s, t - 2).simplify()
    (1, eta, eta*(beta + 1))
    """

    rate: Expr
    momentum: Expr
    decay: Expr = S.Zero
    discrete: bool = True

    @cached_property
    def system(self) -> LinearSystem:
        """The two recursions, of the weight and of its velocity."""
        rate, m, decay = map(expression, (self.rate, self.momentum, self.decay))
        return LinearSystem(Matrix([[1 - decay, rate * m], [S.Zero, m]]), Matrix([rate, S.One]))


@dataclass(frozen=True)
class MomentumFlow(Recursion):
    """The continuous limit ``beta dQ/dt = -Q + rate U``, ``dW/dt = Q`` (selfconsistent2023 L.1).

    >>> from sympy.abc import t, s
    >>> MomentumFlow(Symbol("beta", positive=True)).memory(t, s)
    (1, 1 - exp(-(-s + t)/beta))
    """

    momentum: Expr
    rate: Expr = S.One
    discrete: bool = False

    @cached_property
    def system(self) -> LinearSystem:
        """The two differential equations, of the weight and of its velocity."""
        m = expression(self.momentum, "momentum")
        return LinearSystem(Matrix([[S.Zero, S.One], [S.Zero, -1 / m]]), Matrix([S.Zero, self.rate / m]))


@dataclass(frozen=True)
class Multistep:
    """A linear multistep integrator of the flow: the update of step s enters W(t) with weight ``w(t, s)``.

    Every explicit linear multistep method (Euler, Adams-Bashforth of any order, on any time grid) is of
    this form, so a discretised flow is itself a program with an exact mean-field theory.  Of a flow that
    forgets, ``w(t, s)`` holds its memory of updates too; ``left`` names what is left of W(0), a function of
    t, and ``heat`` the covariance of its noise, a function of t and s; ``diffusion`` is how much a weight
    gets of it, in units of its initial variance (all, if nobody says).

    >>> from sympy.abc import t, s
    >>> Multistep(left="m", heat="n").memory(t, s), Multistep(left="m", heat="n").noise(t, s)
    ((m(t), w(t, s)), n(t, s))
    """

    rate: Expr = S.One
    weight: str = "w"
    left: str | None = None
    heat: str | None = None
    discrete: bool = True
    diffusion: Expr = field(default=S.Zero, repr=False)

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Both stay symbols, ``m(t)`` and ``w(t, s)``; numerics supplies their tables."""
        left = S.One if self.left is None else Function(self.left)(time)
        return left, self.rate * Function(self.weight)(time, past)

    def noise(self, time: Expr, past: Expr) -> Expr:
        """A symbol as well, where there is any."""
        if self.heat is None:
            return S.Zero
        return (self.diffusion or S.One) * Function(self.heat)(time, past)


@lru_cache(maxsize=256)
def fixed_symbols(rule: TrainingRule) -> frozenset[Symbol]:
    """Return the symbols of a rule's memory and noise other than the two times that it is asked for.

    They have one value for the whole of training.  If the time ``t`` is among them, a parameter depends on
    it, whose value would be read at the end of the memory and not at the update.  Raises
    :class:`ProgramError` for a rule whose memory or noise is not a SymPy expression.

    >>> from derive.calculus.symbols import t
    >>> sorted(map(str, fixed_symbols(GradientDescent(Symbol("eta") / (1 + t)))))
    ['eta', 't']
    """
    try:
        left, kept = rule.memory(_LATER, _PAST)
        found = {"m(t)": left, "k(t, s)": kept, "the noise": rule.noise(_LATER, _PAST)}
    except (TypeError, ValueError) as error:
        told = f"{rule!r} states no memory: {error}"
        raise ProgramError(
            f"{told}; memory(time, past) returns the pair m, k, and noise(time, past) one value"
        ) from error
    for name, value in found.items():
        if not isinstance(value, Expr):
            told = f"{rule!r} states {name} as {value!r}, which is not a SymPy expression"
            raise ProgramError(f"{told}: write S({value!r}) for a number")
    return frozenset(x for e in found.values() for x in e.free_symbols) - {_LATER, _PAST}


_LATER, _PAST = Dummy("later", nonnegative=True), Dummy("past", nonnegative=True)
"""Two times that no parameter of a rule holds."""


@lru_cache(maxsize=256)
def tables_of(rule: TrainingRule) -> frozenset[str]:
    """Return the names of the functions in a rule's memory and noise, such as a schedule ``eta(past)``.

    >>> sorted(tables_of(Multistep(left="m"))), sorted(tables_of(GradientFlow()))
    (['m', 'w'], [])
    """
    left, kept = rule.memory(_LATER, _PAST)
    stated = (left, kept, rule.noise(_LATER, _PAST))
    return frozenset(str(a.func) for e in stated for a in e.atoms(AppliedUndef))


def parameters_with(rule: TrainingRule, names: Collection[str]) -> dict[str, Expr]:
    """Return the parameters of a rule, by name, that hold a symbol called one of ``names``."""
    keys: list[str] = [x.name for x in fields(rule)] if is_dataclass(rule) else []
    stated = {key: getattr(rule, key) for key in keys}
    found = {key: x for key, x in stated.items() if isinstance(x, Expr)}
    return {key: x for key, x in found.items() if any(y.name in names for y in x.free_symbols)}


def entry_covariance(rule: TrainingRule, time: Expr, past: Expr) -> Expr:
    """The covariance of one entry of the random part of W at two times, in units of its initial variance.

    >>> from sympy.abc import t, s
    >>> entry_covariance(GradientDescent(Symbol("eta")), t, s)
    1
    """
    return rule.memory(time, past)[0] * rule.memory(past, time)[0] + rule.noise(time, past)


def with_noise(rule: TrainingRule, variance: Expr, name: str) -> TrainingRule:
    """The rule for the weight ``name``: noise is the same for all weights, but is counted in units of their
    initial variance.
    """
    heat = getattr(rule, "diffusion", S.Zero)
    if heat == 0 or variance == 1:
        return rule
    if variance == 0:
        raise ProgramError(f"{name} starts at zero: noise is counted in units of its initial variance")
    return replace(rule, diffusion=heat / variance)  # type: ignore[type-var]


@lru_cache(maxsize=64)
def held_at_rest(rule: TrainingRule) -> Expr | None:
    """The number of its own updates that a weight holds once neither moves: ``W = number * U``.

    It is the fixed point of the rule's system.  None for a rule that forgets nothing, whose weights rest only
    where updates vanish, and for one that is no recursion (:class:`Multistep`).

    >>> lam = Symbol("lam")
    >>> held_at_rest(GradientDescent(Symbol("eta"), decay=Symbol("eta") * lam)), held_at_rest(GradientFlow())
    (1/lam, None)
    """
    system = getattr(rule, "system", None)
    if system is None:
        return None
    A, b = Matrix([[system.A]]) if not isinstance(system.A, Matrix) else system.A, Matrix([system.b])
    moving = (A - Matrix.eye(A.rows) if rule.discrete else A).applyfunc(simplify)
    return None if simplify(moving.det()) == 0 else simplify((-moving.inv() * b)[0, 0])


def accumulate(rule: TrainingRule, integrand: Expr, past: Symbol, now: Expr) -> Expr:
    """Sum (or integrate) over past times ``past`` < ``now``."""
    if rule.discrete:
        return Sum(integrand, (past, 0, now - 1))
    return Integral(integrand, (past, 0, now))


@dataclass(frozen=True)
class Outer(Mapped):
    """The update ``U = sum coefficient * left right^T / N``: ``U v = coefficient * left * (right . v) / N``.

    The inner product over N is the ratio |C|/N of the columns times the mean ``<right v>``; on given
    populations it is the data's kernel.  ``left`` lives on the rows and ``right`` on the columns.  Written
    at the current time ``t``.

    ``gradient`` is the coefficient with which the gradient of an output is ``left right^T / N``, where it is
    not the update's own over its error and the square of the program's scale (layers of different widths).
    ``more`` are further terms, of a matrix that is used in several places.
    """

    coefficient: Expr
    left: Expr
    right: Expr
    over: tuple[IndexRange, ...] = ()
    gradient: Expr | None = None
    more: tuple[Outer, ...] = ()

    def __post_init__(self) -> None:
        _take_numbers(self, "left", "right")

    @property
    def terms(self) -> tuple[Outer, ...]:
        """Every outer product of the update."""
        return (self, *self.more)


@dataclass(frozen=True)
class Along(Mapped):
    """The update ``U = sum coefficient * vector`` of a trained vector.

    ``gradient`` is the coefficient with which the gradient of an output is ``vector/N``, where it is not the
    update's own over its error and the square of the program's scale (a weight with a rate of its own).
    """

    coefficient: Expr
    vector: Expr
    over: tuple[IndexRange, ...] = ()
    gradient: Expr | None = None

    def __post_init__(self) -> None:
        _take_numbers(self, "vector")

    @property
    def terms(self) -> tuple[Along, ...]:
        """The update itself, which is one term."""
        return (self,)


def _take_numbers(update: Outer | Along, *sides: str) -> None:
    """Puts the number in front of a field, a side of the update, into the coefficients."""
    for side in sides:
        number, vector = numbered(getattr(update, side))
        if number != 1:
            object.__setattr__(update, side, vector)
            object.__setattr__(update, "coefficient", number * update.coefficient)
            if update.gradient is not None:
                object.__setattr__(update, "gradient", number * update.gradient)


class _Trained(Mapped):
    initial: GaussianMatrix | GaussianVector

    @property
    def name(self) -> str:
        """The name by which definitions refer to the weight."""
        return self.initial.name


@dataclass(frozen=True)
class TrainedMatrix(_Trained):
    """A weight matrix: Gaussian at first, then moved by ``update`` as ``rule`` says."""

    initial: GaussianMatrix
    update: Outer
    rule: TrainingRule


@dataclass(frozen=True)
class TrainedVector(_Trained):
    """A trained vector parameter (a readout, a bias)."""

    initial: GaussianVector
    update: Along
    rule: TrainingRule


@dataclass(frozen=True)
class Gradient:
    """How the gradient with respect to a field is written.

    ``name`` is its name and ``inner`` that of the gradient with respect to a function of the field that a
    matrix is applied to (``z`` for ``phi(h)``).  ``normal`` is its normalisation over N (over 1 for a
    number); ``scale sqrt(N_x/N)`` if there is none.
    """

    name: str
    inner: str = ""
    normal: Expr | None = None


@dataclass(frozen=True)
class Parametrization(Mapped):
    """The factors that make the limit exist, in one place.

    A matrix that is applied to n units is ``theta/sqrt(n)``, and raw weights ``theta`` of order one follow
    ``theta <- theta - rate scale^2 N grad(loss)`` times the rule's own rate; ``scale`` is the gamma0 by which
    the outputs of the forward pass are divided.  ``rates`` multiplies the rates of single weights, ``rate``
    those of all; ``fan_in`` says n/N for matrices that are divided by something else.  Backward fields are
    ``g = scale sqrt(N N_l) df/dh``.

    >>> Parametrization(rates=(("W", gamma0),)).rate_of("W")
    gamma0
    """

    scale: Expr = gamma0
    rate: Expr = S.One
    rates: tuple[tuple[str, Expr], ...] = ()
    fan_in: tuple[tuple[str, Expr], ...] = ()

    def fan_in_of(self, m: GaussianMatrix) -> Expr:
        """The number n of units that a matrix is applied to, over N (given vectors: over their number)."""
        own = S.One if m.cols.given else expression(m.cols.ratio)
        return expression(dict(self.fan_in).get(m.name, own))

    def rate_of(self, weight: str) -> Expr:
        """By what the rate of a weight is multiplied."""
        return expression(self.rate, "rate") * expression(dict(self.rates).get(weight, S.One))
