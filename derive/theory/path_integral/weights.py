"""What weights remember, as the path integral sees it: trajectories, from their own equations of motion.

The integral over a weight runs over ``W(t) = m(t) W(0) + sum_s k(t, s) U(s) + noise``.  Its random part
enters the disorder average with the covariance of one entry at two times; its updates are of rank one and
meet a vector in an inner product, which is an order parameter.  Nothing here is taken from the
conditioning rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sympy import Expr, Float, KroneckerDelta, Matrix, Min, Rational, S, Symbol, eye, prime, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.program.training import TrainedMatrix, TrainedVector, TrainingRule
from derive.theory.applications import Application, Parameter, Reading, apart
from derive.theory.data import Term
from derive.theory.names import vector


def covariance(use: Application | Parameter, time: Expr = t, past: Expr = s) -> Expr:
    """``<W(t) W(s)>/<W(0)^2>`` of one entry of what is random in a weight: the product of what two times have
    left of the start, plus the noise that both have met.
    """
    initial = use.matrix if isinstance(use, Application) else use.initial
    if initial.fresh:
        return KroneckerDelta(time, past)
    if use.trained is None:
        return S.One
    rule = use.trained.rule
    both = rule.memory(time, past)[0] * rule.memory(past, time)[0] + rule.noise(time, past)
    return both.xreplace(_member(use))


def _member(use: Application | Parameter) -> dict[Any, Any]:
    """The indices of the family of a weight, at the member that a use takes."""
    if isinstance(use, Parameter):
        return {r.index: x for r, x in zip(use.initial.indices, use.member.args, strict=True)}
    return {} if use.matrix.index is None else {use.matrix.index.index: use.member}


def variance(use: Application) -> Expr:
    """``N <W(0)^2>`` of the member that a use takes."""
    return sympify(use.matrix.variance).xreplace(_member(use))


def parameter_covariance(a: Parameter, b: Parameter, names: dict[Symbol, Symbol]) -> Expr:
    """``<w(t) w(s)>`` of one entry of a vector of weights; members of a family are independent."""
    value = sympify(a.initial.variance).xreplace(_member(a)) * covariance(a)
    for x, y in zip(a.member.args, b.member.args, strict=True):
        value *= KroneckerDelta(x, y.xreplace(names))
    return value


def matrix_memory(reading: Reading, a: Application, trained: TrainedMatrix) -> list[Term]:
    """``sum_s k(t, s) c(s) l(s) <r(s) a(t)>``: the updates ``c l r^T / N`` (or their transposes) applied."""
    member, found = _member(a), []
    weight = trained.rule.memory(t, s)[1].xreplace(member)
    for u in trained.update.terms:
        names, over = apart(u.over, a.indices)
        parts = (u.left, u.right, u.coefficient)
        left, right, c = (x.xreplace(member).xreplace(names | {t: s}) for x in parts)
        out, met = (right, left) if a.transposed else (left, right)
        inner = a.acts_on.ratio * reading.registry.correlation(a.vector, vector(reading.program, met, over))
        kernel, ranges = weight * c * inner, (*a.summed, *over)
        found.append(Term("memory", out, S.One, kernel, ranges, _reach(trained.rule), a.matrix.name, _RULE))
    return found


def vector_memory(p: Parameter, trained: TrainedVector) -> Term:
    """``sum_s k(t, s) c(s) v(s)``: the updates of a vector of weights, for the member that is used."""
    u = trained.update
    names, over = apart(u.over, p.indices)
    member = _member(p)
    moved, c = (x.xreplace(names).xreplace(member).xreplace({t: s}) for x in (u.vector, u.coefficient))
    kernel = trained.rule.memory(t, s)[1].xreplace(member) * c
    return Term("memory", moved, S.One, kernel, over, _reach(trained.rule), p.initial.name, _RULE)


_RULE = "updates so far"


def _reach(rule: TrainingRule) -> str:
    return "strict" if rule.discrete else "flow"


# -- trajectories --------------------------------------------------------------------------------------------


def broken_promises(rule: TrainingRule) -> Iterator[tuple[str, Expr, Expr]]:
    """Where the memory that a rule states is not the solution of the equation of motion that it states.

    Yields ``(what, stated, followed)``.  The equation ``z' = A z + b U + n xi`` is followed step by step (a
    flow: through its Taylor coefficients at the start), at rational values of its parameters; a linear
    recursion of dimension d is known once 2 d steps of it are.  A rule without such an equation, whose tables
    the numerics supply, promises nothing.

    >>> from derive.program import GradientDescent
    >>> list(broken_promises(GradientDescent(Symbol("eta"), decay=Symbol("lam"), diffusion=Symbol("D"))))
    []
    """
    system = getattr(rule, "system", None)
    if system is None:
        return
    A, b = Matrix([[system.A]]) if not isinstance(system.A, Matrix) else system.A, Matrix([system.b])
    free = sorted(A.free_symbols | b.free_symbols | sympify(system.diffusion).free_symbols, key=str)
    tables = [a for x in (*A, *b, sympify(system.diffusion)) for a in x.atoms(AppliedUndef)]
    point = {x: Rational(1, prime(5 + i)) for i, x in enumerate((*tables, *free))}
    A, b, noise = A.xreplace(point), b.xreplace(point), sympify(system.diffusion).xreplace(point)
    start = Matrix([system.start, *[S.Zero] * (A.rows - 1)])
    m, k = (sympify(x).xreplace(point) for x in rule.memory(t, s))
    heat = sympify(rule.noise(t, s)).xreplace(point)
    follow = _steps if rule.discrete else _taylor
    for what, stated, followed in follow(A, b, start, noise, m, k, heat):
        rounded = (stated - followed).has(Float)  # a user's decimal numbers know no more than their digits
        if abs((stated - followed).evalf(30)) > Rational(1, 10 ** (12 if rounded else 20)):
            yield what, stated, followed


def _steps(
    A: Matrix, b: Matrix, start: Matrix, noise: Expr, m: Expr, k: Expr, heat: Expr
) -> Iterator[tuple[str, Expr, Expr]]:
    """``z(n + 1) = A z(n)`` from the start and from one update; ``C(n + 1, n + 1) = A C(n, n) A + D``."""
    kept, fed, spread = start, b, S.Zero
    for n in range(2 * A.rows + 2):
        yield f"what is left of W(0) after {n} steps", _at(m, n, 0), kept[0]
        yield f"the weight of an update {n + 1} steps old", _at(k, n + 3, 2), fed[0]
        if A.rows == 1:
            lag = A[0] ** 2 * spread
            yield f"the noise at steps {n + 2} and {n}", _at(heat, n + 2, n), lag
            spread = A[0] ** 2 * spread + noise
        kept, fed = A * kept, A * fed


def _taylor(
    A: Matrix, b: Matrix, start: Matrix, noise: Expr, m: Expr, k: Expr, heat: Expr
) -> Iterator[tuple[str, Expr, Expr]]:
    """The derivatives of ``e^{A t} z(0)`` at 0; ``dC/dt = A C`` for t > s, ``dC(s, s)/ds = 2 A C + D``."""
    power = eye(A.rows)
    for n in range(2 * A.rows + 2):
        yield f"derivative {n} of what is left of W(0)", _at(m.diff(t, n), 0, 0), (power * start)[0]
        yield f"derivative {n} of the weight of an update", _at(k.diff(t, n), 2, 2), (power * b)[0]
        power = power * A
    if A.rows == 1:
        later = heat.xreplace({Min(s, t): s})
        equal = later.xreplace({t: s})
        rates = ((later.diff(t), A[0] * later), (equal.diff(s), 2 * A[0] * equal + noise))
        yield "the noise at the start", _at(heat, 0, 0), S.Zero
        for rate, followed in rates:
            yield "the rate of the noise", _at(rate, 3, 2), _at(followed, 3, 2)


def _at(e: Expr, time: int, past: int) -> Expr:
    return sympify(e.subs({t: time, s: past}))
