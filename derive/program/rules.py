"""Training rules: linear equations of motion of a weight, and the memory that follows from them.

A rule is a linear system with the update ``U`` of the weight as input, in discrete steps or in continuous
time; coefficients may depend on time. The system determines the factor of the initial weight, the factor of
each update, and the covariance of the noise: ``W(t) = m(t) W(0) + sum_{s<t} k(t, s) U(s) + noise``, with an
integral over s in continuous time. Theories, integrators and finite networks use the system of a rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Protocol

from sympy import (
    Abs,
    And,
    Dummy,
    Eq,
    Expr,
    Ge,
    Gt,
    Heaviside,
    ImmutableMatrix,
    Integral,
    KroneckerDelta,
    Le,
    Lt,
    Matrix,
    MatrixBase,
    Max,
    Min,
    Mul,
    Piecewise,
    Poly,
    Product,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    factor_list,
    factor_terms,
    floor,
    integrate,
    log,
    roots,
    summation,
    sympify,
    together,
)
from sympy.core.function import AppliedUndef, Function
from sympy.simplify import powsimp, simplify

from derive.calculus.intervals import (
    FRACTION,
    NONNEGATIVE,
    POSITIVE,
    REAL,
    BoundedParameter,
    RealInterval,
)
from derive.calculus.sums import unused
from derive.calculus.symbols import expression, t
from derive.errors import ProgramError


@dataclass(frozen=True)
class LinearSystem:
    """Linear equation of motion of a weight and its hidden states, with the update of the weight as input.

    In steps ``z(t + 1) = A(t) z(t) + b(t) U(t) + noise``, in continuous time ``dz = (A(t) z + b(t) U) dt +
    noise``. The weight is the first component of ``z``; further ones, such as a velocity, start at zero.
    Time-dependent coefficients are expressions in :data:`derive.program.t`.

    Parameters
    ----------
    A : Expr or Matrix
        The matrix (n, n), or a number for a weight without hidden states.
    b : Expr or Matrix
        The factors of the update (n,), or a number.
    diffusion : Expr or Matrix
        Variance of the noise that a step adds to the weight, in units of the weight's initial variance (in
        continuous time per unit of time), or the covariance matrix (n, n) of the noise of all states. A
        number adds no noise to hidden states. 0 by default.
    start : Expr
        The factor of ``W(0)`` with which the weight starts; 1 by default.

    Examples
    --------
    >>> from sympy.abc import a
    >>> from derive.program import s, t
    >>> LinearSystem(a, S.One).steps(t, s)
    (a**t, a**(-s + t - 1))
    >>> LinearSystem(S.One, Function("eta")(t)).steps(t, s)
    (1, eta(s))
    """

    A: Expr | Matrix
    b: Expr | Matrix
    diffusion: Expr | Matrix = S.Zero
    start: Expr = S.One

    def __post_init__(self) -> None:
        """Convert coefficients to immutable SymPy objects, and cases (``Piecewise``) to step functions."""
        if isinstance(self.A, Matrix | ImmutableMatrix) and self.A.shape == (1, 1):
            for name in ("A", "b", "diffusion"):
                value = getattr(self, name)
                object.__setattr__(self, name, Matrix([value])[0])
        for name in ("A", "b", "diffusion", "start"):
            value = getattr(self, name)
            if hasattr(value, "as_immutable"):
                object.__setattr__(self, name, value.applyfunc(without_cases).as_immutable())
            else:
                object.__setattr__(self, name, without_cases(sympify(value)))

    @property
    def states(self) -> int:
        """Number of components: the weight and its hidden states."""
        return int(self.A.rows) if isinstance(self.A, ImmutableMatrix) else 1

    @cached_property
    def matrix(self) -> ImmutableMatrix:
        """The coefficient ``A`` as a matrix (n, n)."""
        return self.A if isinstance(self.A, ImmutableMatrix) else ImmutableMatrix([[self.A]])

    @property
    def input(self) -> tuple[Expr, ...]:
        """The factor of the update in each component, (n,)."""
        return tuple(self.b) if isinstance(self.b, ImmutableMatrix) else (self.b,)

    @cached_property
    def noise_matrix(self) -> ImmutableMatrix:
        """The covariance (n, n) of the noise of all components.

        If ``diffusion`` is a number, it is the entry of the weight, and all other entries are zero.
        """
        if isinstance(self.diffusion, ImmutableMatrix):
            return self.diffusion
        covariance = Matrix.zeros(self.states, self.states)
        covariance[0, 0] = self.diffusion
        return covariance.as_immutable()

    @property
    def coefficients(self) -> tuple[Expr, ...]:
        """All entries of ``A``, ``b`` and the covariance of the noise, and the factor of ``W(0)``."""
        return (*self.matrix, *self.input, *self.noise_matrix, self.start)

    @cached_property
    def noisy(self) -> bool:
        """Whether noise enters the weight or a hidden state."""
        return any(x != 0 for x in self.noise_matrix)

    @cached_property
    def tabulated(self) -> bool:
        """Whether the memory has no closed form and is a table of numbers.

        This is so if the matrix ``A`` of the equation of motion depends on time and states that act on the
        weight drive each other in a cycle. It is so too if ``A`` is constant and not all of its eigenvalues
        have a closed form, as the roots of a polynomial of degree five or more in general.
        """
        return self.chain is None if self.moves else not self._has_closed_eigenvalues

    @cached_property
    def _has_closed_eigenvalues(self) -> bool:
        """Whether SymPy has a closed form of all eigenvalues of a constant matrix ``A``."""
        if self.states < _LEAST_UNSOLVABLE:
            return True
        z = Dummy("z")
        _, parts = factor_list(self.matrix.charpoly().as_expr(z), z)
        high = [Poly(part, z) for part, _ in parts if Poly(part, z).degree() >= _LEAST_UNSOLVABLE]
        return all(sum(roots(part).values()) == part.degree() for part in high)

    @cached_property
    def moves(self) -> bool:
        """Whether ``A``, the matrix that multiplies the states in the equation of motion, depends on time."""
        return bool(self.matrix.has(t))

    @cached_property
    def steady(self) -> bool:
        """Whether no coefficient of the equation of motion depends on time."""
        return not any(x.has(t) for x in self.coefficients)

    def solution(self, name: str, time: Expr, past: Expr) -> Any:
        """Return the memory or the covariance of the noise at the times ``time`` and ``past``, from a cache.

        ``name`` is that of the method: ``steps`` and ``flow`` give the memory in discrete and continuous
        time, ``step_noise`` and ``flow_noise`` the covariance. The last results are cached, because each
        check of a program needs them again.
        """
        known, key = self._solutions, (name, time, past)
        if key not in known:
            if len(known) >= _MOST_SOLUTIONS:
                known.clear()
            known[key] = getattr(self, name)(time, past)
        return known[key]

    @cached_property
    def _solutions(self) -> dict[tuple[str, Expr, Expr], Any]:
        """Cache of the last results of :meth:`solution`, by name and times."""
        return {}

    # -- in steps ------------------------------------------------------------------------------------------

    def steps(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Return the factors of the initial weight and of the update at ``past`` in the weight at ``time``.

        For ``z(t + 1) = A(t) z(t) + b(t) U(t)`` they are ``m(t) = [A(t-1) ... A(0) z(0)]_1`` and ``k(t, s) =
        [A(t-1) ... A(s+1) b(s)]_1``, where component 1 of z is the weight.
        """
        if self.moves:
            kept = self.start * self._stepping(time, S.Zero)[0]
            return kept, self._update_factor(self._stepping(time, past + 1), past)
        if not isinstance(self.A, ImmutableMatrix):
            return self.start * self.A**time, self.A ** (time - past - 1) * _at(self.input[0], past)
        n, kept, row = self._stepped
        age = time - past - 1
        if not any(x.has(t) for x in self.input):
            return kept.subs(n, time), self._update_factor_by_steps.subs(n, age)
        return kept.subs(n, time), self._update_factor([x.subs(n, age) for x in row], past)

    @cached_property
    def _stepped(self) -> tuple[Symbol, Expr, list[Expr]]:
        """Solution after n steps of a system whose states a step multiplies by the constant matrix ``A``.

        The result is the symbol n, the factor of the initial weight in the weight after n steps, and the
        first row of ``A^n``, (states,).
        """
        n = Dummy("n", integer=True, nonnegative=True)
        power = self.matrix**n
        return n, self.start * _neat(power[0, 0]), [_neat(x) for x in power[0, :]]

    @cached_property
    def _update_factor_by_steps(self) -> Expr:
        """The factor of an update in the weight, n steps after the step that made the update.

        It is an expression in the symbol n of ``_stepped``, for constant factors ``b`` of the update in the
        states.
        """
        n = self._stepped[0]
        return _neat((self.matrix**n * Matrix(self.input))[0, 0])

    def _stepping(self, time: Expr, since: Expr) -> list[Expr]:
        """Return the first row of ``A(time - 1) ... A(since)``; a step multiplies the states by ``A``.

        It has one entry for each state: the factor of this state at ``since`` in the weight at ``time``.
        """
        return self._propagated(time, since, _STEPS)

    def step_noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise in the weight at two steps, in units of its initial variance.

        It is ``sum_{u < min(t, s)} [A(t-1) ... A(u+1) D(u) (A(s-1) ... A(u+1))^T]_11``, where a step
        multiplies the states by A and adds noise of covariance D, and component 1 is the weight.
        """
        if not self.noisy:
            return S.Zero
        if self.steady and self.states == 1:
            first, closed = self._step_variance
            lag = self.A ** (time + past - 2 * Min(time, past))
            return self.diffusion * lag * closed.subs(first, Min(time, past))
        u = self._unused(_NOISE, time, past)
        left, right = (self._row_of_steps(x, u + 1) for x in (time, past))
        return Sum(self._noise_between(left, right, u), (u, 0, Min(time, past) - 1))

    def _row_of_steps(self, time: Expr, since: Expr) -> list[Expr]:
        """Return the factors (states,) of all states at ``since`` in the weight at ``time``, in steps.

        They are the first row of the product of the matrices by which the steps ``since`` .. ``time - 1``
        multiply the states.
        """
        if self.moves:
            return self._stepping(time, since)
        if self.states == 1:
            return [self.A ** (time - since)]
        n, _, row = self._stepped
        return [x.subs(n, time - since) for x in row]

    @cached_property
    def _step_variance(self) -> tuple[Symbol, Expr]:
        """Variance that n steps with unit noise add to a weight that a step multiplies by the constant ``A``.

        The system has no hidden states. The result is the symbol n and the sum ``sum_(u<n) A^(2 u)`` as an
        expression of n.
        """
        u, first = (Dummy(n, integer=True, nonnegative=True) for n in ("u", "first"))
        kept = Dummy("kept", positive=True)
        # SymPy gives the sum of kept^(2 u) over the steps u with a case for kept = 1, and a last case for all
        # other values.
        in_general = summation(kept ** (2 * u), (u, 0, first - 1))
        if (1 - self.A**2).equals(0):
            return first, in_general.xreplace({kept: S.One})
        variance = in_general.args[-1][0].xreplace({kept: self.A})
        return first, variance if self.A.is_number else simplify(variance)

    # -- in continuous time --------------------------------------------------------------------------------

    def flow(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Return the factors of the initial weight and of the update at ``past`` in the weight at ``time``.

        For ``dz/dt = A(t) z + b(t) U(t)`` they are ``m(t) = [E(t, 0) z(0)]_1`` and ``k(t, s) = [E(t, s)
        b(s)]_1``, with the propagator ``dE(t, s)/dt = A(t) E(t, s)``; component 1 of z is the weight.
        """
        if self.moves:
            kept = self.start * self._flowing(time, S.Zero)[0]
            return kept, self._update_factor(self._flowing(time, past), past)
        if not isinstance(self.A, ImmutableMatrix):
            return self.start * exp(self.A * time), exp(self.A * (time - past)) * _at(self.input[0], past)
        x, kept, row = self._flowed
        age = time - past
        if not any(y.has(t) for y in self.input):
            return kept.subs(x, time), self._update_factor_by_flow.subs(x, age)
        return kept.subs(x, time), self._update_factor([y.subs(x, age) for y in row], past)

    @cached_property
    def _flowed(self) -> tuple[Symbol, Expr, list[Expr]]:
        """Solution after a time x of the flow ``dz/dt = A z`` with constant ``A``.

        The result is the symbol x, the factor of the initial weight in the weight after this time, and the
        first row of ``exp(A x)``, (states,).
        """
        x = Dummy("x", nonnegative=True)
        power = Matrix(self.matrix * x).exp()
        return x, self.start * _neat(power[0, 0]), [_neat(y) for y in power[0, :]]

    @cached_property
    def _update_factor_by_flow(self) -> Expr:
        """The factor of an update in the weight, a time x after the update was made.

        It is an expression in the symbol x of ``_flowed``, for constant factors ``b`` of the update in the
        states.
        """
        x = self._flowed[0]
        return _neat((Matrix(self.matrix * x).exp() * Matrix(self.input))[0, 0])

    def _flowing(self, time: Expr, since: Expr) -> list[Expr]:
        """Return the first row of the propagator ``E(time, since)``, the solution of ``dE/dt = A(t) E``.

        It has one entry for each state: the factor of this state at ``since`` in the weight at ``time``.
        """
        return self._propagated(time, since, _FLOW)

    def flow_noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise in the weight at two times, in units of its initial variance.

        It is ``integral_0^{min(t, s)} [E(t, u) D(u) E(s, u)^T]_11 du``, where E is the propagator of the
        states and D the covariance of the noise per unit of time; component 1 is the weight.
        """
        if not self.noisy:
            return S.Zero
        if self.steady and self.states == 1:
            x, y, covariance = self._flow_covariance
            return covariance.xreplace({x: time, y: past})
        u = self._unused(_NOISE, time, past)
        left, right = (self._row_of_flow(x, u) for x in (time, past))
        return Integral(self._noise_between(left, right, u), (u, 0, Min(time, past)))

    def _row_of_flow(self, time: Expr, since: Expr) -> list[Expr]:
        """Return the factors (states,) of all states at ``since`` in the weight at ``time``, in a flow.

        They are the first row of the propagator of ``dz/dt = A z``, in closed form if A is constant.
        """
        if self.moves:
            return self._flowing(time, since)
        if self.states == 1:
            return [exp(self.A * (time - since))]
        x, _, row = self._flowed
        return [y.subs(x, time - since) for y in row]

    @cached_property
    def _flow_covariance(self) -> tuple[Symbol, Symbol, Expr]:
        """Symbols x, y for two times, and the covariance of the noise in the weight at these times.

        The system is the flow of a single state with a constant rate.
        """
        u, first, x, y = (Dummy(n, nonnegative=True) for n in ("u", "first", "x", "y"))
        inner = integrate(exp(-2 * self.A * u), (u, 0, first))
        # If A may be zero, SymPy gives the integral of exp(-2 A u) a separate case for A = 0. This case is
        # the limit A -> 0 of the other case and is left out.
        if isinstance(inner, Piecewise):
            inner = inner.args[0][0]
        covariance = self.diffusion * exp(self.A * (x + y)) * inner.subs(first, Min(x, y))
        return x, y, factor_terms(powsimp(together(covariance)))

    # -- both ----------------------------------------------------------------------------------------------

    def _unused(self, variable: Symbol, *times: Expr) -> Symbol:
        """Return the variable of a sum over times, with another name if a coefficient contains it.

        ``times`` are those of the result, whose symbols are not used either.
        """
        noise = list(self.noise_matrix) if self.noisy else []
        return unused(
            variable, {x for e in (*self.matrix, *self.input, *noise, *times) for x in e.free_symbols}
        )

    def _update_factor(self, row: list[Expr], past: Expr) -> Expr:
        """Return the factor of an update made at ``past`` in the weight at a later time.

        It is ``row . b(past)``: b are the factors of the update in each state, and ``row``, (states,), the
        factors of these states in the weight at the later time.
        """
        return sum((x * _at(y, past) for x, y in zip(row, self.input, strict=True)), S.Zero)

    def _noise_between(self, left: list[Expr], right: list[Expr], when: Expr) -> Expr:
        """Return the part of the covariance of a weight at two later times that noise at ``when`` causes.

        It is ``left . D(when) . right`` for the covariance D of the noise of the states. ``left`` and
        ``right``, (n,), are the factors of the states at ``when`` in the weight at the two times.
        """
        noise = self.noise_matrix
        pairs = ((i, j) for i in range(self.states) for j in range(self.states))
        return sum((left[i] * _at(noise[i, j], when) * right[j] for i, j in pairs), S.Zero)

    @cached_property
    def chain(self) -> tuple[int, ...] | None:
        """The weight and the hidden states that act on it, ordered so that each acts on earlier ones only.

        The entries are numbers of states, and the first is 0, the weight. None if some of them act on each
        other in a cycle. With a chain, the memory of a time-dependent system is a sum over intermediate
        times.
        """
        A, order = self.matrix, list[int]()
        reached = {0}
        while more := {j for j in range(self.states) if any(A[k, j] != 0 for k in reached)} - reached:
            reached |= more
        while open_states := sorted(reached - set(order)):
            drives = {j: {k for k in reached - {j} if A[k, j] != 0} for j in open_states}
            free = [j for j in open_states if drives[j] <= set(order)]
            if not free:
                return None
            order.append(free[0])
        return tuple(order)

    def _propagated(self, time: Expr, since: Expr, kind: _Kind) -> list[Expr]:
        """Return the factors (states,) of all states at ``since`` in the weight at ``time``.

        The coefficients of the system depend on time. ``kind`` says whether time is discrete or continuous.
        """
        return [self._transfer(0, j, time, since, kind, 0) for j in range(self.states)]

    def _transfer(self, i: int, j: int, time: Expr, since: Expr, kind: _Kind, depth: int) -> Expr:
        """Return the factor of state j at ``since`` in state i at ``time``, if coefficients depend on time.

        ``E_ij(t, s) = sum_{r=s}^{t-1} prod_{q=r+1}^{t-1} A_ii(q) sum_k A_ik(r) E_kj(r, s)`` over the states k
        that drive i, for i other than j; in continuous time (``kind``) the sum over times is an integral and
        the product the exponential of one. ``depth`` counts nested sums, whose variables differ.
        """
        A = self.matrix
        if i == j:
            return kind.alone(A[i, i], since, time)
        r = self._unused(_between(depth), time, since)
        drivers = [k for k in range(self.states) if k != i and A[i, k] != 0]
        inner = sum(
            (_at(A[i, k], r) * self._transfer(k, j, r, since, kind, depth + 1) for k in drivers), S.Zero
        )
        if inner == 0:
            return S.Zero
        return kind.kind(kind.alone(A[i, i], r + kind.lag, time) * inner, (r, since, time - kind.lag))


@dataclass(frozen=True)
class _Kind:
    """Discrete or continuous time.

    ``kind`` is the class of sums over times: ``Sum`` for steps, ``Integral`` for a flow. ``lag`` is the delay
    of an update: 1 for steps, 0 for a flow.
    """

    kind: type[Sum] | type[Integral]
    lag: int

    def alone(self, rate: Expr, since: Expr, time: Expr) -> Expr:
        """Return the factor of a state at ``since`` in itself at ``time``, if no other state drives it.

        A step multiplies the state by ``rate``, in a flow ``dz/dt = rate z``; the result is a power, a
        product over steps, or an exponential.
        """
        if not rate.has(t):
            return rate ** (time - since) if self.lag else exp(rate * (time - since))
        each = unused(_EACH, rate.free_symbols | since.free_symbols | time.free_symbols)
        if self.lag:
            return Product(_at(rate, each), (each, since, time - 1))
        return exp(integral(_at(rate, each), each, since, time))


_STEPS, _FLOW = _Kind(Sum, 1), _Kind(Integral, 0)

_MOST_SOLUTIONS = 32
"""Largest number of solutions that a system caches."""

_EACH = Symbol("t_1", nonnegative=True)
"""The time over which a product, or an integral in an exponent, runs."""


def _between(depth: int) -> Symbol:
    """Return the summation variable for the time at which one state drives another.

    ``depth`` is the number of sums in which this sum is nested.
    """
    return Symbol(f"t_{depth + 3}", nonnegative=True)


_NOISE = Symbol("t_2", nonnegative=True)
"""The time at which noise enters."""


LARGEST_POWER = 1000
"""Largest numerator or denominator in the closed form of an integral with logarithms.

Exponentials of logarithms are powers, and SymPy multiplies out powers of numbers."""


def integral(e: Expr, x: Symbol, low: Expr, high: Expr) -> Expr:
    """Return the integral of ``e`` over x, in closed form if SymPy finds one without cases.

    The result is an unevaluated ``Integral`` if SymPy finds none, if ``e`` contains Max, Min, Abs or floor,
    or if the antiderivative has logarithms and rational numbers with a numerator or denominator above
    ``LARGEST_POWER``.
    """
    if e.has(Max, Min, Abs, floor):
        return Integral(e, (x, low, high))
    antiderivative = integrate(e, x)
    large = any(max(abs(y.p), y.q) > LARGEST_POWER for y in antiderivative.atoms(Rational))
    if antiderivative.has(Integral, Piecewise) or (antiderivative.has(log) and large):
        return Integral(e, (x, low, high))
    return antiderivative.xreplace({x: high}) - antiderivative.xreplace({x: low})


def _at(e: Expr, time: Expr) -> Expr:
    """Return a coefficient, an expression in ``t``, at another time."""
    return sympify(e).xreplace({t: time})


def _neat(e: Expr) -> Expr:
    """Return an expression for the memory of a weight, simplified.

    SymPy writes powers of a matrix by cases for ``0**n``; only the last case, that of a nonzero base, is
    kept.
    """
    if e.has(Piecewise):
        e = e.replace(lambda x: isinstance(x, Piecewise), lambda x: x.args[-1][0])
    return powsimp(simplify(e))


def without_cases(e: Expr) -> Expr:
    """Return ``e`` with cases (``Piecewise``) of time written as sums of step functions.

    Inside of a sum, SymPy would otherwise move the cases out, with conditions on the summation variable. The
    value is 0 where no condition holds. A condition is a comparison by ``<``, ``<=``, ``>``, ``>=`` or
    ``Eq``, or several of these joined by "and"; raises ProgramError for any other, such as ``Ne`` or "or".

    >>> without_cases(Piecewise((2, t >= 5), (3, True)))
    3 - Heaviside(t - 5, 1)
    """
    if not e.has(Piecewise):
        return e
    return e.replace(lambda x: isinstance(x, Piecewise), _as_steps)


def _as_steps(cases: Piecewise) -> Expr:
    """Return cases as a sum: each value times 1 where its condition is the first that holds, else 0.

    Where no condition holds the sum is 0.
    """
    total, left = S.Zero, S.One
    for value, condition in cases.args:
        here = _indicator(condition)
        total += value * here * left
        left *= 1 - here
    return total.expand()


def _indicator(condition: Any) -> Expr:
    """Return 1 where a condition on time holds and 0 elsewhere, by Heaviside and Kronecker functions.

    Raises ProgramError unless the condition is a comparison by ``<``, ``<=``, ``>``, ``>=`` or ``Eq``, or
    several of these joined by "and".
    """
    if condition in (S.true, S.false):
        return S(int(bool(condition)))
    if isinstance(condition, And):
        return Mul(*map(_indicator, condition.args))
    if isinstance(condition, Eq):
        return KroneckerDelta(condition.lhs, condition.rhs)
    if isinstance(condition, Ge | Gt | Le | Lt):
        later = condition.lhs - condition.rhs
        gap = later if isinstance(condition, Ge | Gt) else -later
        return Heaviside(gap, S(int(isinstance(condition, Ge | Le))))
    raise ProgramError(
        f"the condition {condition} in a coefficient of a training rule must be a comparison by <, <=, >, >= "
        "or Eq, such as t >= 5, or several of them joined by And"
    )


class TrainingRule(Protocol):
    """Interface of a training rule: its memory of initial weights and updates, and its noise."""

    @property
    def discrete(self) -> bool:
        """Whether time is discrete."""

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Return the factors of the initial weight and of a past update.

        Parameters
        ----------
        time, past : Expr
            The present time and that of the update.

        Returns
        -------
        tuple of Expr
            ``(m(t), k(t, s))``.
        """

    def noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of an entry of W(t) and W(s) by noise injected during training.

        Parameters
        ----------
        time, past : Expr
            The two times.

        Returns
        -------
        Expr
            The covariance, in units of the initial variance.
        """

    def __hash__(self) -> int:
        """Return a hash: rules are immutable, and results for a rule are cached."""


class LinearSystemRule:
    """Base class of rules that are a linear system; memory and noise are the solution of the system."""

    discrete: bool
    label: ClassVar[str] = ""
    domains: ClassVar[Mapping[str, RealInterval]] = {}
    """The intervals in which the parameters must be."""

    def __post_init__(self) -> None:
        """Raise :class:`ProgramError` for a parameter out of its domain, such as a negative rate."""
        for x in self.bounded:
            x.require()

    @property
    def bounded(self) -> tuple[BoundedParameter, ...]:
        """The parameters that must be in an interval at all times, each with this interval."""
        return _bounded(self, self.domains)

    @property
    def system(self) -> LinearSystem:
        """The equation of motion of the weight and its hidden states."""
        raise NotImplementedError

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Return ``(m(t), k(t, s))``, the factors of W(0) and of the update at ``past``.

        The memory of a system that is ``tabulated`` has no closed form; it is a pair of functions ``m(t)``
        and ``k(t, s)``, whose tables follow from the system.
        """
        system = system_of(self)
        if system.tabulated:
            return Function(_TABLES[0])(time), Function(_TABLES[1])(time, past)
        factors: tuple[Expr, Expr] = system.solution("steps" if self.discrete else "flow", time, past)
        return factors

    def noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise in the weight at two times, in units of its initial variance.

        It is 0 for a rule without noise, and the function ``n(time, past)`` of a table for a noisy system
        that is ``tabulated``.
        """
        system = system_of(self)
        if system.tabulated and system.noisy:
            return Function(_TABLES[2])(time, past)
        covariance: Expr = system.solution("step_noise" if self.discrete else "flow_noise", time, past)
        return covariance


def _bounded(rule: object, domains: Mapping[str, RealInterval]) -> tuple[BoundedParameter, ...]:
    """Return the parameters of a rule with the intervals in which they must be.

    ``domains`` maps names of parameters to intervals.
    """
    return tuple(
        BoundedParameter(label, expression(getattr(rule, name), label), domain)
        for name, domain in domains.items()
        for label in [f"{name} of {type(rule).__name__}"]
    )


@lru_cache(maxsize=256)
def system_of(rule: LinearSystemRule) -> LinearSystem:
    """Return the equation of motion of a rule from a cache; the equation caches its own solution."""
    return rule.system


_LEAST_UNSOLVABLE = 5
"""Lowest degree of polynomials whose roots have no closed form in general."""

_TABLES = ("m", "k", "n")
"""Names of the tables of a system whose memory has no closed form."""


def _matrix(rows: Sequence[Any], key: str) -> MatrixBase:
    """Return a matrix from a list of rows of equal length, or a column from a list of numbers.

    Entries are numbers or SymPy expressions. ``key`` is the name of the value in the message. Raises
    ProgramError for anything else.
    """
    inner = [len(row) if isinstance(row, list | tuple) else 0 for row in rows]
    entries = [x for row in rows for x in (row if isinstance(row, list | tuple) else [row])]
    if not entries or len({*inner}) > 1 or any(isinstance(x, list | tuple) for x in entries):
        raise ProgramError(
            f"{key} of a linear rule = {rows!r}: must be a nonempty list of numbers or expressions, or a "
            "list of nonempty rows of equal length"
        )
    return ImmutableMatrix(len(rows), inner[0] or 1, [expression(x, key) for x in entries])


@dataclass(frozen=True)
class LinearRule(LinearSystemRule):
    """Training rule of a user: a linear equation of motion of a weight and its hidden states.

    In steps ``z(t + 1) = A z(t) + b U(t) + noise``, in continuous time ``dz = (A z + b U) dt + noise``; ``z``
    holds the weight first, then hidden states that start at zero, and ``U`` is the update that the program
    derives. Coefficients may depend on :data:`derive.program.t` and are then evaluated at the time of the
    step.

    Parameters
    ----------
    A : Expr or Matrix
        Matrix (n, n), or a list of its rows; a number without hidden states.
    b : Expr or Matrix
        Factors of the update (n,), as a column or a list; a number without hidden states.
    diffusion : Expr or Matrix
        Variance of the noise of a step (in continuous time per unit of time) in the weight, or the covariance
        matrix (n, n) of the noise of all states; 0 by default. The units are those of
        :class:`GradientDescent`.
    start : Expr
        The factor of ``W(0)`` with which the weight starts; 1 by default.
    discrete : bool
        Whether time is discrete; true by default.
    name : str
        The name in printed theories.
    bounds : tuple of BoundedParameter, optional
        Parameters in the coefficients that must be in an interval at all times, as those of
        :func:`anchored_descent`.

    Raises
    ------
    ProgramError
        If the shapes of ``A``, ``b`` and ``diffusion`` do not fit, if an entry is text or not real, if a
        variance is negative or a parameter in ``bounds`` is outside of its interval, if a covariance matrix
        is not symmetric or, in numbers, has a negative eigenvalue, or if ``start`` depends on the time. With
        symbols only the diagonal is checked for its sign.

    Examples
    --------
    Nesterov's momentum, in the form of common packages:

    >>> from sympy import Matrix, symbols
    >>> from derive.program import s, t
    >>> eta, m = symbols("eta m", positive=True)
    >>> rule = LinearRule(Matrix([[1, eta * m**2], [0, m]]), Matrix([eta * (1 + m), 1]), name="Nesterov")
    >>> k = rule.memory(t, s)[1]
    >>> k.subs(s, t - 1).simplify(), (k.subs(s, t - 2) - eta * (1 + m + m**2)).simplify()
    (eta*(m + 1), 0)
    """

    A: Expr | Matrix
    b: Expr | Matrix
    diffusion: Expr | Matrix = S.Zero
    start: Expr = S.One
    discrete: bool = True
    name: str = "linear rule"
    bounds: tuple[BoundedParameter, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        """Convert the coefficients to SymPy objects and check them, as the class states."""
        for key in ("A", "b", "diffusion"):
            value = getattr(self, key)
            if isinstance(value, list | tuple):
                value = _matrix(value, key)
            if isinstance(value, MatrixBase):
                object.__setattr__(
                    self, key, value.applyfunc(lambda x, key=key: expression(x, key)).as_immutable()
                )
            else:
                object.__setattr__(self, key, expression(value, key))
        object.__setattr__(self, "start", expression(self.start, "start"))
        if self.start.has(t):
            raise ProgramError(
                f"start of LinearRule = {self.start}: must not depend on the time, because start is a "
                "factor of W(0)"
            )
        n = self.A.rows if isinstance(self.A, MatrixBase) else 1
        wanted = {"A": (n, n), "b": (n, 1), "diffusion": (n, n)}
        for key, shape in wanted.items():
            value = getattr(self, key)
            if value.shape != shape if isinstance(value, MatrixBase) else (n > 1 and key == "b"):
                given = f"has the shape {value.shape}" if isinstance(value, MatrixBase) else "is a number"
                raise ProgramError(
                    f"{key} of LinearRule {given}: must have the shape {shape}, where {n} is the number "
                    "of rows of A"
                )
        for key, coefficients in (("A", self.A), ("b", self.b), ("start", self.start)):
            for x in coefficients if isinstance(coefficients, MatrixBase) else (coefficients,):
                REAL.require(x, f"{key} of LinearRule")
        for x in self.diffusion if isinstance(self.diffusion, MatrixBase) else ():
            REAL.require(x, "diffusion of LinearRule")
        if isinstance(self.diffusion, MatrixBase):
            _require_covariance(self.diffusion)
        super().__post_init__()

    @property
    def bounded(self) -> tuple[BoundedParameter, ...]:
        """The parameters that must be in an interval, each with this interval.

        They are the variances of the noise, which must be at least zero, and those in ``bounds``.
        """
        noise = self.diffusion
        variances = noise.diagonal() if isinstance(noise, MatrixBase) else (noise,)
        name = "diffusion of LinearRule"
        return (*(BoundedParameter(name, x, NONNEGATIVE) for x in variances), *self.bounds)

    @cached_property
    def system(self) -> LinearSystem:
        """The equation of motion with the coefficients of the rule."""
        return LinearSystem(self.A, self.b, self.diffusion, self.start)


def _require_covariance(noise: MatrixBase) -> None:
    """Raise ProgramError for a matrix that is not symmetric, or of numbers and not positive semidefinite."""
    shown = f"diffusion of LinearRule = {noise.tolist()}"
    if any(simplify(x) != 0 for x in noise - noise.T):
        raise ProgramError(f"{shown}: must be a covariance matrix, and this one is not symmetric")
    if not noise.free_symbols and noise.is_positive_semidefinite is False:
        raise ProgramError(
            f"{shown}: must be a covariance matrix, and this one has a negative eigenvalue: let variances "
            "on the diagonal be >= 0, and make the other entries smaller in magnitude"
        )


_DESCENT = {"rate": NONNEGATIVE, "decay": NONNEGATIVE, "diffusion": NONNEGATIVE}


class _Descent(LinearSystemRule):
    """Base class of gradient descent and gradient flow, rules without hidden states such as a velocity."""

    @cached_property
    def system(self) -> LinearSystem:
        """The equation of motion of the weight."""
        rate, decay, noise = (expression(getattr(self, n), n) for n in ("rate", "decay", "diffusion"))
        return LinearSystem(1 - decay if self.discrete else -decay, rate, noise)


@dataclass(frozen=True)
class GradientDescent(_Descent):
    """Gradient descent in steps, ``W(t+1) = (1 - decay) W(t) + rate U(t) + sqrt(diffusion) xi(t)``.

    The memory is that of this recursion, see :class:`LinearSystem`. Raises :class:`ProgramError` for a
    negative parameter.

    Parameters
    ----------
    rate : Expr
        The learning rate; it may depend on :data:`derive.program.t`.
    decay : Expr
        The fraction of a weight lost in a step (learning rate times weight decay); 0 by default.
    diffusion : Expr
        The variance that noise adds to a weight in a step, 0 by default. In a program it is in units of the
        initial variance of the weight; a rule that is given to :meth:`.Network.train` states it for the raw
        weight, and is converted.
    discrete : bool
        True: time is discrete.

    Examples
    --------
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
    label: ClassVar[str] = "gradient descent"
    domains: ClassVar[Mapping[str, RealInterval]] = _DESCENT


@dataclass(frozen=True)
class GradientFlow(_Descent):
    """Gradient flow in continuous time, ``dW = (rate U - decay W) dt + sqrt(diffusion) dB``.

    Raises :class:`ProgramError` for a negative parameter.

    Parameters
    ----------
    rate : Expr
        The rate: 1, the default, for the summed loss, 1/P for its mean.
    decay : Expr
        The weight decay per unit of time; 0 by default.
    diffusion : Expr
        The variance that noise adds per unit of time, 0 by default, in the units of
        :class:`GradientDescent`.
    discrete : bool
        False: time is continuous.

    Examples
    --------
    >>> from sympy.abc import t, s
    >>> GradientFlow(decay=Symbol("lam")).memory(t, s)
    (exp(-lam*t), exp(-lam*(-s + t)))
    """

    rate: Expr = S.One
    decay: Expr = S.Zero
    diffusion: Expr = S.Zero
    discrete: bool = False
    label: ClassVar[str] = "gradient flow"
    domains: ClassVar[Mapping[str, RealInterval]] = _DESCENT


@dataclass(frozen=True)
class Momentum(LinearSystemRule):
    """Heavy-ball steps ``Q(t+1) = momentum Q(t) + U(t)``, ``W(t+1) = (1 - decay) W(t) + rate Q(t+1)``.

    Parameters
    ----------
    rate : Expr
        The learning rate, outside of the velocity as in PyTorch.
    momentum : Expr
        The fraction of the velocity that a step keeps, at least 0 and below 1.
    decay : Expr
        The fraction of a weight lost in a step; 0 by default.
    discrete : bool
        True: time is discrete.
    rate_inside : bool
        Whether the velocity accumulates ``rate U``: ``Q(t+1) = momentum Q(t) + rate U(t)``, ``W(t+1) = (1 -
        decay) W(t) + Q(t+1)``. The two differ if the rate depends on time. False by default.

    Raises
    ------
    ProgramError
        If a parameter is negative, or the momentum is 1 or more.

    Examples
    --------
    >>> from sympy.abc import t, s
    >>> m, k = Momentum(Symbol("eta"), Symbol("beta")).memory(t, s)
    >>> m, k.subs(s, t - 1).simplify(), k.subs(s, t - 2).simplify()
    (1, eta, eta*(beta + 1))
    """

    rate: Expr
    momentum: Expr
    decay: Expr = S.Zero
    discrete: bool = True
    rate_inside: bool = False
    label: ClassVar[str] = "gradient descent with momentum"
    domains: ClassVar[Mapping[str, RealInterval]] = {
        "rate": NONNEGATIVE,
        "momentum": FRACTION,
        "decay": NONNEGATIVE,
    }

    @cached_property
    def system(self) -> LinearSystem:
        """The recursions of the weight and of its velocity."""
        rate, m, decay = map(expression, (self.rate, self.momentum, self.decay))
        outside, inside = (S.One, rate) if self.rate_inside else (rate, S.One)
        A = Matrix([[1 - decay, outside * m], [S.Zero, m]])
        return LinearSystem(A, Matrix([outside * inside, inside]))


@dataclass(frozen=True)
class MomentumFlow(LinearSystemRule):
    """Gradient flow with momentum, ``beta dQ/dt = -Q + rate U``, ``dW/dt = Q`` (selfconsistent2023 L.1).

    Parameters
    ----------
    momentum : Expr
        The time constant beta of the velocity, a positive number of any size.
    rate : Expr
        The rate; 1 by default.
    discrete : bool
        False: time is continuous.

    Examples
    --------
    >>> from sympy.abc import t, s
    >>> MomentumFlow(Symbol("beta", positive=True)).memory(t, s)
    (1, 1 - exp(-(-s + t)/beta))
    """

    momentum: Expr
    rate: Expr = S.One
    discrete: bool = False
    label: ClassVar[str] = "gradient flow with momentum"
    domains: ClassVar[Mapping[str, RealInterval]] = {"momentum": POSITIVE, "rate": NONNEGATIVE}

    @cached_property
    def system(self) -> LinearSystem:
        """The differential equations of the weight and of its velocity."""
        m = expression(self.momentum, "momentum")
        return LinearSystem(Matrix([[S.Zero, S.One], [S.Zero, -1 / m]]), Matrix([S.Zero, self.rate / m]))


@dataclass(frozen=True)
class Multistep:
    """Explicit linear multistep integrator of the flow: W(t) contains ``rate w(t, s)`` times the update at s.

    Every explicit linear multistep method (Euler, Adams-Bashforth of any order, on any time grid) has this
    form, so that a discretised flow is a program with an exact mean-field theory. With decay, ``w(t, s)``
    includes the memory of updates.

    Parameters
    ----------
    rate : Expr
        The rate of the flow.
    weight : str
        The name of the table ``w(t, s)``.
    left : str, optional
        The name of the table of the factor of W(0), a function of t; None for the factor 1.
    heat : str, optional
        The name of a table, a function of t and s: the covariance of the noise divided by ``diffusion``. None
        for a rule without noise.
    discrete : bool
        True: time is discrete.
    diffusion : Expr
        A factor of the table ``heat``, in units of the initial variance; 0 stands for the factor 1.

    Examples
    --------
    >>> from sympy.abc import t, s
    >>> Multistep(left="m", heat="n").memory(t, s), Multistep(left="m", heat="n").noise(t, s)
    ((m(t), w(t, s)), n(t, s))
    """

    rate: Expr = S.One
    weight: str = "w"
    left: str | None = None
    heat: str | None = None
    discrete: bool = True
    label: ClassVar[str] = "multistep gradient flow"
    diffusion: Expr = field(default=S.Zero, repr=False)

    def __post_init__(self) -> None:
        """Raise :class:`ProgramError` for a rate or diffusion that is negative."""
        for x in self.bounded:
            x.require()

    @property
    def bounded(self) -> tuple[BoundedParameter, ...]:
        """The rate and the diffusion, each with the interval in which it must be: at least zero."""
        return _bounded(self, {"rate": NONNEGATIVE, "diffusion": NONNEGATIVE})

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Return the factors ``m(t)`` and ``rate w(t, s)``, with functions whose tables numerics supplies.

        The factor ``m(t)`` of W(0) is 1 if the rule has no table for it.

        Parameters
        ----------
        time, past : Expr
            The present time and that of the update.

        Returns
        -------
        tuple of Expr
            The two factors.
        """
        left = S.One if self.left is None else Function(self.left)(time)
        return left, self.rate * Function(self.weight)(time, past)

    def noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise, a factor times a table that numerics supplies; 0 without noise.

        The factor is ``diffusion``, or 1 if that is 0. There is no noise if ``heat`` is None.

        Parameters
        ----------
        time, past : Expr
            The two times.

        Returns
        -------
        Expr
            The covariance.
        """
        if self.heat is None:
            return S.Zero
        return (self.diffusion or S.One) * Function(self.heat)(time, past)


@lru_cache(maxsize=256)
def fixed_symbols(rule: TrainingRule) -> frozenset[Symbol]:
    """Return the symbols of a rule's memory and noise other than its two times.

    They have one value for the whole of training. If a time is among them, a parameter contains a time other
    than that of the step. Raises :class:`ProgramError` for a class in place of its instance, and for a rule
    whose memory or noise cannot be computed or is not a SymPy expression.

    >>> from derive.calculus.symbols import s
    >>> sorted(map(str, fixed_symbols(GradientDescent(Symbol("eta") / (1 + t + s)))))
    ['eta', 's']
    """
    if isinstance(rule, type):
        raise ProgramError(
            f"the training rule {rule.__name__} is a class: write a rule with its parameters, such as "
            "GradientDescent(eta)"
        )
    try:
        left, kept = rule.memory(_LATER, _PAST)
        stated = {
            "m(t), the factor of W(0),": left,
            "k(t, s), the factor of the update at s,": kept,
            "the noise": rule.noise(_LATER, _PAST),
        }
    except (TypeError, ValueError) as error:
        raise ProgramError(
            f"the memory or the noise of {rule!r} cannot be computed: {error}; memory(time, past) must "
            "return a pair, the factors of W(0) and of the update at past, and noise(time, past) one value"
        ) from error
    for name, value in stated.items():
        if not isinstance(value, Expr):
            raise ProgramError(
                f"{rule!r} states {name} as {value!r}, which is not a SymPy expression: write S({value!r}) "
                "for a number"
            )
    return frozenset(x for e in stated.values() for x in e.free_symbols) - {_LATER, _PAST}


_LATER, _PAST = Dummy("later", nonnegative=True), Dummy("past", nonnegative=True)
"""Two times that no parameter of a rule contains."""


@lru_cache(maxsize=256)
def tables_of(rule: TrainingRule) -> frozenset[str]:
    """Return the names of the functions that a rule uses without a formula, such as a schedule ``eta(t)``.

    They are in the coefficients of the rule's equation of motion; for a rule without such an equation, in its
    memory and noise.

    >>> sorted(tables_of(Multistep(left="m"))), sorted(tables_of(GradientDescent(Function("eta")(t))))
    (['m', 'w'], ['eta'])
    """
    system = getattr(rule, "system", None)
    stated = (
        (*rule.memory(_LATER, _PAST), rule.noise(_LATER, _PAST)) if system is None else system.coefficients
    )
    return frozenset(str(a.func) for e in stated for a in e.atoms(AppliedUndef))


def function_names(rule: TrainingRule) -> frozenset[str]:
    """Return the names of the functions in the coefficients, the memory and the noise of a rule.

    They are schedules, and tables of values.

    >>> from sympy import Matrix
    >>> d = Function("d")(t)
    >>> sorted(function_names(LinearRule(Matrix([[1, d], [-1, 1]]), Matrix([d, 1]))))
    ['d', 'k', 'm']
    """
    stated = (*rule.memory(_LATER, _PAST), rule.noise(_LATER, _PAST))
    return tables_of(rule).union(str(a.func) for e in stated for a in e.atoms(AppliedUndef))


def parameters_with(rule: TrainingRule, names: Collection[str]) -> dict[str, Expr]:
    """Return those parameters of a rule that contain a symbol with one of ``names``.

    Keys are the names of the rule's fields, such as ``rate``, and values the expressions. Fields that are not
    expressions, such as the tuple ``states`` of an entrywise rule, are left out.
    """
    keys: list[str] = [x.name for x in fields(rule)] if is_dataclass(rule) else []
    stated = {key: getattr(rule, key) for key in keys}
    expressions = {key: x for key, x in stated.items() if isinstance(x, Expr)}
    return {key: x for key, x in expressions.items() if any(y.name in names for y in x.free_symbols)}


def of_gradient(rule: TrainingRule, factor: Expr) -> TrainingRule:
    """Return the rule with ``factor * U`` in place of the update U, such as ``U/P`` for a mean loss.

    Linear rules have the factor in their rate, or in the factors of the update; other rules have a method
    ``of_gradient``. Raises :class:`ProgramError` for a rule with neither, unless the factor is 1.

    >>> of_gradient(GradientDescent(Symbol("eta")), Symbol("a")).rate
    a*eta
    """
    if factor == 1:
        return rule
    if type(rule) in (GradientDescent, GradientFlow, Momentum, MomentumFlow, Multistep):
        return replace(rule, rate=factor * expression(rule.rate, "rate"))  # type: ignore[type-var, attr-defined]
    if isinstance(rule, LinearRule):
        return replace(rule, b=factor * rule.b)
    if isinstance(rule, LinearSystemRule):
        system = system_of(rule)
        return LinearRule(
            system.A,
            factor * system.b,
            system.diffusion,
            system.start,
            rule.discrete,
            name=rule.label or type(rule).__name__,
            bounds=tuple(rule.bounded),
        )
    if hasattr(rule, "of_gradient"):
        return rule.of_gradient(factor)  # type: ignore[no-any-return]
    raise ProgramError(
        f"{rule!r} has no method of_gradient(factor), which returns the rule for a gradient times a factor, "
        "and the mean loss needs it: use the summed loss, and divide the gradient in the rule by the number "
        "of samples"
    )


def anchored_descent(rate: Expr, pull: Expr, since: Expr) -> LinearRule:
    """Return gradient descent whose weights decay towards those of an earlier step.

    Up to the step ``since`` it is plain descent; from then on ``W(t + 1) = W(t) + rate U(t) - pull (W(t) -
    W(since))``, which keeps a network close to an earlier solution.

    Parameters
    ----------
    rate : Expr
        Learning rate.
    pull : Expr
        Fraction of the distance to the earlier weights that is lost in a step.
    since : Expr or int
        The step of the earlier weights, an integer of at least 0 that does not depend on the time.

    Returns
    -------
    LinearRule
        A rule with the distance ``W(t) - W(since)`` as a hidden state.

    Raises
    ------
    ProgramError
        If ``since`` depends on the time or is not an integer of at least 0, or if ``rate`` or ``pull`` is
        negative.

    Examples
    --------
    >>> rule = anchored_descent(Symbol("eta"), Symbol("lam", positive=True), 5)
    >>> rule.A
    Matrix([
    [1,      -lam*Heaviside(t - 5, 1)],
    [0, (1 - lam)*Heaviside(t - 5, 1)]])
    """
    rate, pull = expression(rate, "rate of anchored_descent"), expression(pull, "pull of anchored_descent")
    bounds = (
        BoundedParameter("rate of anchored_descent", rate, NONNEGATIVE),
        BoundedParameter("pull of anchored_descent", pull, NONNEGATIVE),
    )
    step = expression(since, "since of anchored_descent")
    if step.has(t):
        raise ProgramError(
            f"since of anchored_descent = {since}: must be one step, such as 5, which does not change in time"
        )
    if step.is_integer is False or step.is_negative or (step.is_number and not step.is_Integer):
        raise ProgramError(f"since of anchored_descent = {since}: must be a step, an integer >= 0")
    after = Heaviside(t - step, S.One)
    A = Matrix([[S.One, -pull * after], [S.Zero, (1 - pull) * after]])
    b, name = Matrix([rate, rate * after]), "descent with decay towards earlier weights"
    return LinearRule(A, b, name=name, bounds=bounds)


def entry_covariance(rule: TrainingRule, time: Expr, past: Expr) -> Expr:
    """Return the covariance of an entry of a weight at two times, without the updates of the weight.

    Parameters
    ----------
    rule : TrainingRule
        The rule of the weight.
    time, past : Expr
        The two times, in any order.

    Returns
    -------
    Expr
        The covariance in units of the initial variance: decayed initial weights plus noise.

    Examples
    --------
    >>> from sympy.abc import t, s
    >>> entry_covariance(GradientDescent(Symbol("eta")), t, s)
    1
    """
    return rule.memory(time, past)[0] * rule.memory(past, time)[0] + rule.noise(time, past)


def with_noise(rule: TrainingRule, variance: Expr, name: str) -> TrainingRule:
    """Return the rule of a weight with its noise converted to units of the weight's initial variance.

    The ``diffusion`` of the rule is divided by ``variance``. Raises ProgramError, with the ``name`` of the
    weight, if the variance is zero. A rule without ``diffusion``, or with the diffusion 0, is returned
    unchanged.
    """
    heat = getattr(rule, "diffusion", S.Zero)
    if heat == 0 or variance == 1:
        return rule
    if variance == 0:
        raise ProgramError(
            f"{name} starts at zero: noise is counted in units of its initial variance, which must not be "
            f"zero; give {name} an initial variance, or a rule without noise"
        )
    return replace(rule, diffusion=heat / variance)  # type: ignore[type-var]


@lru_cache(maxsize=64)
def held_at_rest(rule: TrainingRule) -> Expr | None:
    """Return the ratio of a weight to its update at rest, ``W = number * U``: the fixed point of the system.

    Noise is left out, and the stability of the fixed point is not checked. The result is None for a rule
    without decay, whose weights rest only if updates vanish, for coefficients that depend on time, and for a
    rule without an equation of motion, such as :class:`Multistep`.

    >>> lam = Symbol("lam")
    >>> held_at_rest(GradientDescent(Symbol("eta"), decay=Symbol("eta") * lam)), held_at_rest(GradientFlow())
    (1/lam, None)
    """
    system = getattr(rule, "system", None)
    if system is None or not system.steady:
        return None
    A, b = Matrix(system.matrix), Matrix(system.input)
    moving = (A - Matrix.eye(A.rows) if rule.discrete else A).applyfunc(simplify)
    return None if simplify(moving.det()) == 0 else simplify((-moving.inv() * b)[0, 0])


def accumulate(rule: TrainingRule, integrand: Expr, past: Symbol, now: Expr) -> Expr:
    """Return the sum of ``integrand`` over the past of a rule in steps, or its integral for a flow.

    The variable ``past`` runs over the steps 0..now - 1, or in a flow from 0 to ``now``.
    """
    if rule.discrete:
        return Sum(integrand, (past, 0, now - 1))
    return Integral(integrand, (past, 0, now))
