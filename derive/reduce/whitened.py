"""Whitened data, one hidden layer: from P samples to one differential equation, and its solution (eq.
F.8-F.12).

With the identity as input kernel the equations keep error and kernel in the span of the target direction n
and the identity; that span is found, not assumed.  Conserved quantities then leave one equation, which is
separable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sympy import (
    Add,
    Derivative,
    Eq,
    Expr,
    Function,
    KroneckerDelta,
    Sum,
    Symbol,
    factor,
    fraction,
    limit,
    oo,
    simplify,
    solve,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.linear.contraction import Ansatz, Frame, closed_span, split_tensor, substitute
from derive.program.words import P, t
from derive.reduce.invariants import conserved
from derive.reduce.separable import Separable, separable
from derive.reduce.two_layer import TwoLayer

n = Function("n")
"""The unit vector along the targets."""
norm = Symbol("y", positive=True)
"""The length of the target vector."""
output = Symbol("f", positive=True)
"""The output along the targets."""


@dataclass(frozen=True)
class Whitened:
    """Two-layer theory for ``K_x = 1``.

    ``tensors`` say how the functions of samples look, ``scalar`` are the equations of their coefficients
    (F.8) and ``initial`` their values at 0; ``invariants`` are conserved (F.10), ``eliminated`` gives the
    other unknowns by the error, ``error`` and ``output`` are the remaining equation in Delta and in f
    (F.11), ``motion`` its solution.
    """

    theory: TwoLayer
    tensors: tuple[Eq, ...]
    scalar: tuple[Eq, ...]
    initial: tuple[Eq, ...]
    invariants: tuple[Expr, ...]
    eliminated: tuple[Eq, ...]
    error: Eq
    output: Eq
    motion: Separable

    @property
    def time(self) -> Eq:
        """The time to reach the output f (F.12)."""
        return Eq(t, self.motion.elapsed, evaluate=False)

    @property
    def solution(self) -> Eq:
        """The error at time t, in closed form: F.12 inverted."""
        top, bottom = fraction(self.motion.solution)
        return Eq(Function("Delta")(t), factor((norm * bottom - top).expand()) / bottom, evaluate=False)

    @property
    def final(self) -> tuple[Eq, ...]:
        """Functions of samples at the end of training, where the error is at its stable rest point (below
        F.10)."""
        error = self.error.lhs.args[0]
        rest = {error: stable_rest(self.error.rhs, error, norm)}
        last = {e.lhs: simplify(e.rhs.subs(rest)) for e in self.eliminated} | rest
        return tuple(Eq(e.lhs.xreplace({t: oo}), e.rhs.xreplace(last), evaluate=False) for e in self.tensors)


def whitened(theory: TwoLayer, degree: int = 2) -> Whitened:
    """Reduce the two-layer equations on whitened data to one equation, and solve it.

    Raises :class:`NotApplicable` for a theory whose equations do not close, or when the conserved
    quantities of at most ``degree`` do not leave one separable equation.

    >>> from derive.theory import mean_field
    >>> from derive.reduce.two_layer import two_layer
    >>> from derive.program import mlp
    >>> print(whitened(two_layer(mean_field(mlp(1, rule="flow")))).output.rhs)
    2*(-f + y)*sqrt(f**2*gamma0**2 + 1)
    """
    if not theory.closed:
        raise NotApplicable("whitened data: the moment equations do not close; the network must be linear")
    frame = Frame((n,))
    rates = {e.lhs.args[0]: on_targets(e.rhs) for e in theory.closed}
    starts = {x: on_targets(next(e.rhs for e in theory.initial if e.lhs.func == x.func)) for x in rates}
    ansatz = closed_span(rates, starts, frame, t)
    coefficients = Coefficients(rates, starts, ansatz, frame)
    scalar, initial, tensors = coefficients.scalar(), coefficients.initial(), coefficients.tensors()
    found = conserved(scalar, degree)
    delta = Function("Delta")(t)
    eliminated = eliminate(found, initial, delta)
    error = next(Eq(e.lhs, e.rhs.subs(eliminated), evaluate=False) for e in scalar if e.lhs.args[0] == delta)
    moved = _by_output(error, delta)
    motion = separable(moved.rhs, output, norm - initial[delta], t)
    return Whitened(
        theory,
        tensors,
        scalar,
        tuple(Eq(k.subs(t, 0), v, evaluate=False) for k, v in initial.items()),
        found,
        tuple(Eq(k, v, evaluate=False) for k, v in eliminated.items()),
        error,
        moved,
        motion,
    )


def on_targets(e: Expr) -> Expr:
    """Put the identity for the input kernel and ``y n(mu)`` for the targets."""
    e = e.replace(_named("K_x"), lambda x: KroneckerDelta(*x.args))
    return e.replace(_named("y"), lambda x: norm * n(*x.args))


def _named(name: str) -> Callable[[Expr], bool]:
    return lambda x: isinstance(x, AppliedUndef) and str(x.func) == name


class Coefficients:
    """Scalar unknowns: the coefficients that move, expressed by the function's projection on n."""

    def __init__(
        self, rates: dict[Expr, Expr], starts: dict[Expr, Expr], ansatz: dict[Expr, Ansatz], frame: Frame
    ) -> None:
        self.frame, self.ansatz = frame, ansatz
        self.rates: dict[Expr, Expr] = {}
        self.starts: dict[Expr, Expr] = {}
        for x, rate in rates.items():
            a = ansatz[x.func]
            now = split_tensor(frame.contract(substitute(rate, ansatz)), a.indices)
            then = split_tensor(frame.contract(starts[x]), a.indices)
            for tensor, c in a.parts:
                self.rates[c] = now.get(tensor, sympify(0))
                self.starts[c] = then.get(tensor, sympify(0))
        self.still = {c: self.starts[c] for c, rate in self.rates.items() if rate == 0}
        self.names: dict[Expr, Expr] = {}  # coefficient -> what it is in terms of the projection
        self.projections: dict[Expr, Expr] = {}
        for a in ansatz.values():
            moving = [c for _, c in a.parts if c not in self.still]
            if len(moving) != 1:
                raise NotApplicable(f"{a.function} moves in {len(moving)} ways; one is needed")
            whole = frame.contract(self._projected(a)).xreplace(self.still)
            label = str(a.function) if whole == moving[0] else f"{a.function}_y"
            new = Function(label)(t)
            self.names[moving[0]] = new if whole == moving[0] else solve(whole - new, moving[0])[0]
            self.projections[new] = whole

    def _projected(self, a: Ansatz) -> Expr:
        e = a.at(a.indices)
        for i in a.indices:
            e = Sum((n(i) * e).expand(), (i, 1, P))
        return e

    def tidy(self, e: Expr) -> Expr:
        return factor(e.xreplace(self.still).subs(self.names))

    def scalar(self) -> tuple[Eq, ...]:
        found = []
        for new, whole in self.projections.items():
            rate = Add(*[whole.diff(c) * r for c, r in self.rates.items() if whole.has(c)])
            found.append(Eq(Derivative(new, t), self.tidy(rate), evaluate=False))
        return tuple(found)

    def initial(self) -> dict[Expr, Expr]:
        return {new: whole.xreplace(self.starts) for new, whole in self.projections.items()}

    def tensors(self) -> tuple[Eq, ...]:
        return tuple(
            Eq(
                a.function(*a.indices, t),
                a.at(a.indices).xreplace(self.still).subs(self.names),
                evaluate=False,
            )
            for a in self.ansatz.values()
        )


def eliminate(invariants: tuple[Expr, ...], initial: dict[Expr, Expr], keep: Expr) -> dict[Expr, Expr]:
    """The other unknowns by ``keep``, on the branch of the level set that the initial values are on.

    Raises :class:`NotApplicable` unless exactly one branch passes through them.
    """
    others = [x for x in initial if x != keep]
    slots = {x: Symbol(f"_{k}") for k, x in enumerate(others)}
    level = [(i - i.subs(initial)).subs(slots) for i in invariants]
    branches = solve(level, list(slots.values()), dict=True)
    right = [
        b
        for b in branches
        if len(b) == len(others)
        and all(simplify(b[s].subs(keep, initial[keep]) - initial[x]) == 0 for x, s in slots.items())
    ]
    if len(right) != 1:
        raise NotApplicable(f"the invariants {invariants} do not determine {others} by {keep}")
    return {x: _readable(right[0][s], keep, initial[keep]) for x, s in slots.items()}


def _readable(e: Expr, x: Expr, start: Expr) -> Expr:
    """Write radicands as their initial value plus the rest, factored."""
    half = sympify(1) / 2

    def put(p: Expr) -> Expr:
        first = p.base.subs(x, start)
        return (simplify(first) + factor(p.base - first)) ** p.exp

    return e.replace(lambda p: p.is_Pow and p.exp == half, put)


def _by_output(error: Eq, delta: Expr) -> Eq:
    """The same equation for the output, ``Delta = y - f``."""
    rate = factor(-error.rhs.subs(delta, norm - output))
    return Eq(Derivative(Function("f")(t), t), simplify(rate), evaluate=False)


def stable_rest(rate: Expr, x: Expr, start: Expr) -> Expr:
    """The rest point of ``dx/dt = rate`` that is stable; the one that is reached from ``start``."""
    slot = Symbol("_x", real=True)
    points = [
        p
        for p in solve(rate.subs(x, slot), slot)
        if limit(rate.subs(x, slot).diff(slot), slot, p).is_negative
    ]
    if len(points) != 1:
        raise NotApplicable(f"{rate} has the stable rest points {points}")
    return points[0]
