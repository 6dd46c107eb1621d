"""What a linear recursion remembers: the weight with which W(0) and each update enter W(t).

A training rule is a linear system ``z(t+1) = A z(t) + b U(t) + n xi(t)`` (or the differential equation with
the same right-hand side) for the weight and whatever it carries along (a velocity); the weight is the
first component and the only one that starts from W(0).  Memories are its solutions, never written down.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Dummy, Expr, Matrix, Min, Piecewise, S, exp, eye, integrate, powsimp, simplify, summation


@dataclass(frozen=True)
class LinearSystem:
    """The system with matrix ``A`` (or a number), input ``b`` (same) and noise of variance ``diffusion`` on
    the weight itself; ``start`` is the share of W(0) that the weight begins with.

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
        n = Dummy("n", integer=True, nonnegative=True)
        power = self.A**n
        kept = self.start * _neat(power[0, 0])
        fed = _neat((power * self.b)[0, 0])
        return kept.subs(n, time), fed.subs(n, time - past - 1)

    def flow(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """``(m(t), k(t, s))`` in continuous time."""
        if not isinstance(self.A, Matrix):
            return self.start * exp(self.A * time), exp(self.A * (time - past)) * self.b
        x = Dummy("x", nonnegative=True)
        spread = (self.A * x).exp()
        kept = self.start * _neat(spread[0, 0])
        fed = _neat((spread * self.b)[0, 0])
        return kept.subs(x, time), fed.subs(x, time - past)

    def rest(self, discrete: bool) -> Expr | None:
        """What the same update, made at every time, makes of the weight in the end; None where it grows on.

        The fixed point of the system, which the start is forgotten at if the system is stable.

        >>> from sympy.abc import a, b
        >>> LinearSystem(1 - a, b).rest(discrete=True)
        b/a
        """
        A, b = Matrix([[self.A]]) if not isinstance(self.A, Matrix) else self.A, Matrix([self.b])
        moving = (A - eye(A.rows) if discrete else A).applyfunc(simplify)
        if simplify(moving.det()) == 0:
            return None
        return simplify((-moving.inv() * b)[0, 0])

    def step_noise(self, time: Expr, past: Expr) -> Expr:
        """``sum_{u < min(t, s)} A^{t-1-u} A^{s-1-u} diffusion``; ``A`` a number."""
        if self.diffusion == 0:
            return S.Zero
        u, first = Dummy("u", integer=True, nonnegative=True), Dummy("first", integer=True, positive=True)
        inner = summation(self.A ** (-2 * u), (u, 0, first - 1))
        if isinstance(inner, Piecewise):  # the case A^2 = 1 is the limit of the other
            inner = inner.args[-1][0]
        closed = simplify(inner * self.A ** (2 * (first - 1)))
        lag = self.A ** (time + past - 2 * Min(time, past))
        return self.diffusion * lag * closed.subs(first, Min(time, past))

    def flow_noise(self, time: Expr, past: Expr) -> Expr:
        """``integral_0^{min(t, s)} e^{A (t-u)} e^{A (s-u)} diffusion du``; ``A`` a number."""
        if self.diffusion == 0:
            return S.Zero
        u, first = Dummy("u", nonnegative=True), Dummy("first", nonnegative=True)
        inner = integrate(exp(-2 * self.A * u), (u, 0, first))
        if isinstance(inner, Piecewise):  # the case A = 0 is the limit of the other
            inner = inner.args[0][0]
        return simplify(self.diffusion * exp(self.A * (time + past)) * inner.subs(first, Min(time, past)))


def _neat(e: Expr) -> Expr:
    """A solution without the zero powers that SymPy's Jordan form leaves behind."""
    if e.has(Piecewise):
        e = e.replace(lambda x: isinstance(x, Piecewise), lambda x: x.args[-1][0])
    return powsimp(simplify(e))
