"""Lazy training of layers of any width: the law of the tangent kernel's eigenvalues, from the responses.

As gamma0 -> 0 correlation functions stay as they start and responses depend on the time between only.  Then
every kernel is a function of one operator, the sum over all earlier steps, and the equations of the responses
become algebraic.  With y the learning rate times that operator, the answer of the error to the target is

    H(y) = <1/(1 + k y)>,

an average over the eigenvalues k of the tangent kernel, as ``v = w_star - k y v`` for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import mpmath
from sympy import (
    Add,
    Dummy,
    Eq,
    Expr,
    Mul,
    Poly,
    Rational,
    Symbol,
    binomial,
    cancel,
    discriminant,
    factor_list,
    fraction,
    lambdify,
    solve,
    sympify,
    together,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.series import solved_series
from derive.calculus.symbols import eta, gamma0, s, t
from derive.errors import NotApplicable
from derive.linear.form import Action, linear_form
from derive.program.program import gaussian, used_once
from derive.program.training import TrainedVector
from derive.show.latex import aligned_latex
from derive.theory import OrderParameter, Theory

MOST = 400
"""Steps along which the answer is followed to the end of the law."""
y, H, k = Symbol("y"), Symbol("H"), Symbol("k", positive=True)
"""The rate times the sum over earlier steps; the answer of the error to the target; an eigenvalue."""


@dataclass(frozen=True)
class LazyKernel:
    """The law of the eigenvalues k of the tangent kernel of a lazy network of ``depth`` hidden layers.

    ``equations`` give each response, over gamma0 or times it, by the others, in the units of the rate; that
    of the symbol ``H`` is ``H(y) = <1/(1 + k y)>``, with ``H(0) = 1``.
    """

    theory: Theory
    depth: int
    equations: Mapping[Symbol, Expr]

    def conditions(self) -> tuple[str, ...]:
        """What the law rests on, in words, and of each whether it is derived or assumed."""
        return (
            "assumed: as gamma0 -> 0 correlation functions stay as they start",
            "assumed: responses depend on the time between only, and have the size of their unit",
            "derived: the equations of the responses in this limit, and all that follows from them",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex(Eq(x, e, evaluate=False) for x, e in self.equations.items())

    def moments(self, n: int, values: Mapping[Symbol, Any] | None = None) -> tuple[Expr, ...]:
        """``<k^0>..<k^n>``, from the power series of H.

        >>> from derive.theory import mean_field
        >>> from derive.program import isotropic
        >>> lazy_kernel(mean_field(isotropic(data="population", center=True)), 2).moments(2)
        (1, 3, 9 + 5/nu)
        """
        series = solved_series(self.at(values or {}).equations, y, n)[H]
        return tuple(((-1) ** i * c).expand() for i, c in enumerate(series))

    def growth(self, steps: int, values: Mapping[Symbol, Any] | None = None) -> Expr:
        """The loss after a number of steps over that before, ``<(1 - eta k)^(2 steps)>``."""
        of = self.moments(2 * steps, values)
        return Add(*[binomial(2 * steps, i) * (-eta) ** i * m for i, m in enumerate(of)])

    def rate(self, steps: int, values: Mapping[Symbol, Any]) -> float:
        """The largest rate at which the loss is never above its start within a number of steps.

        The 2n-th root of ``<(1 - eta k)^(2n)>`` grows with n, so the last step decides.  As the number of
        steps grows the rate falls to 2 over :meth:`edge`.  ``values`` are the numbers of all other symbols.
        """
        _, first, second = self.moments(2, values)
        with mpmath.workdps(30 + 2 * steps):
            growth = lambdify(eta, self.growth(steps, values), "mpmath")
            low, high = mpmath.mpf(0), mpmath.mpf(2) * float(first / second)
            high *= 1 + mpmath.mpf(10) ** -12  # one step is back at its start there, more are beyond
            while high - low > mpmath.mpf(10) ** -16 * high:
                middle = (low + high) / 2
                low, high = (middle, high) if growth(middle) < 1 else (low, middle)
            return float(low)

    def at(self, values: Mapping[Symbol, Any]) -> LazyKernel:
        """The same for numbers."""
        exact = {x: Rational(str(v)) for x, v in values.items()}
        return replace(self, equations={x: e.xreplace(exact) for x, e in self.equations.items()})

    @cached_property
    def chain(self) -> tuple[tuple[tuple[Symbol, Expr], ...], Expr]:
        """Every response in H, y and those before it, and an expression that vanishes at H(y)."""
        rows = [fraction(cancel(e - x))[0] for x, e in self.equations.items()]
        todo, found = set(self.equations) - {H}, []
        while todo:
            for e in rows:
                left = e.free_symbols & todo
                if len(left) == 1 and Poly(e, *left).degree() == 1:
                    break
            else:
                raise NotApplicable("the responses do not follow from one another, layer by layer")
            (x,) = left
            found.append((x, solve(e, x)[0]))
            todo.discard(x)
            rows.remove(e)
        (last,) = rows
        return tuple(found), last

    @cached_property
    def polynomial(self) -> Expr:
        """A polynomial in H and y that vanishes at H(y); its degree in H doubles with each layer.

        >>> from derive.theory import mean_field
        >>> from derive.program import isotropic
        >>> lazy_kernel(mean_field(isotropic(1, data="population", center=True))).polynomial
        H**2*y**2 + H**2*y + H*nu + H*y*(2*nu - 1) - nu
        """
        found, e = self.chain
        for x, value in reversed(found):
            e = fraction(cancel(e.xreplace({x: value})))[0]
        parts = [f for f, _ in factor_list(e, H, y)[1] if f.has(H) and f.subs({H: 1, y: 0}).expand() == 0]
        if len(parts) != 1:
            raise NotApplicable("the law of the kernel is not determined by its start")
        return parts[0]

    @cached_property
    def edge_polynomial(self) -> Expr:
        """A polynomial in k that vanishes at the ends of the law: there H has a square root."""
        top = fraction(together(discriminant(self.polynomial, H).subs(y, -1 / k)))[0]
        return Mul(*[f for f, _ in factor_list(top, k)[1] if f.has(k) and f != k])

    def edge(self, values: Mapping[Symbol, Any]) -> float:
        """The largest eigenvalue for given numbers of all other symbols; 2 over it is the largest rate.

        From y = 0 downwards H grows from 1 on, up to the end of the law at ``y = -1/k``, where y as a
        function of H turns.

        >>> from derive.theory import mean_field
        >>> from derive.program import isotropic
        >>> from derive.program.networks.random_data import nu
        >>> kernel = lazy_kernel(mean_field(isotropic(data="population", center=True)), 1)
        >>> round(kernel.edge({nu: 4}), 12)  # 1 + (1 + 1/sqrt(nu))^2
        3.25

        Raises :class:`NotApplicable` where it cannot be followed (many layers much narrower than the input).
        """
        found, last = self.at(values).chain
        names, values_of = [H, y], []
        for x, value in found:
            values_of.append(lambdify(names, value, "mpmath"))
            names.append(x)
        end = lambdify(names, last, "mpmath")

        def gap(h: Any, z: Any) -> Any:
            numbers = [h, z]
            for value in values_of:
                numbers.append(value(*numbers))
            return end(*numbers)

        try:
            return float(-1 / _turning(gap, float(self.depth + 1)))
        except ZeroDivisionError:
            raise NotApplicable("the law of the kernel cannot be followed to its end: too narrow") from None


def lazy_kernel(theory: Theory, depth: int | None = None) -> LazyKernel:
    """The law of the tangent kernel of a linear theory in exact steps on the loss of the population.

    ``depth`` is needed if that of the theory is a symbol.  Raises :class:`NotApplicable` for a flow, for
    random samples, and where a response is not of the size that the limit needs.

    >>> from derive.theory import mean_field
    >>> from derive.program import isotropic
    >>> kernel = lazy_kernel(mean_field(isotropic(data="population", center=True)), 1)
    >>> kernel.equations[H]
    1/(_R_gu(1, t, s) + y + 1)
    """
    own = theory.program.depth
    layers = int(own) if own.is_Integer else depth
    if layers is None or (depth is not None and layers != depth):
        raise NotApplicable(
            f"depth = {depth}: must be a number of hidden layers, that of the theory if it has one"
        )
    if not theory.program.rule.discrete:
        raise NotApplicable("a flow has no learning rate: give the rule as exact steps")
    return LazyKernel(theory, layers, _Responses(theory.at_depth(layers)).equations())


class _Responses:
    """The responses of a theory at gamma0 -> 0, as numbers that belong to one value of y."""

    def __init__(self, theory: Theory) -> None:
        used_once(theory.program, "the kernel's first steps")
        self.theory = theory
        self.names = {q.name for q in theory.order_parameters}
        pairs = [gaussian(m).sources for m in theory.program.matrices]
        self.power = {up: 1 for up, _ in pairs} | {down: -1 for _, down in pairs}
        trained = {w.name: w for w in theory.program.trained()}
        if any(gaussian(m).name not in trained for m in theory.program.matrices):
            raise NotApplicable("the data are random: give the loss of the population")
        readouts = [w for w in trained.values() if isinstance(w, TrainedVector)]
        if len(readouts) != 1 or any(w.update.over for w in trained.values()):
            raise NotApplicable("a network of several outputs has a kernel for each pair of them")
        self.unit = readouts[0].update.coefficient
        self.form = linear_form(theory)
        self.unknown: dict[AppliedUndef, tuple[Symbol, Expr]] = {}

    def equations(self) -> dict[Symbol, Expr]:
        """Each response by the others, in the limit."""
        rows = {H: self.answer(*self.error())}
        for q in self.theory.responses():
            x, unit = self.response(q.symbol)
            (average,) = q.definition.atoms(Average)
            push = average.args[0]
            rows[x] = q.definition / average * self.answer(push.body, push.source) / unit
        return {x: _at_zero(e) for x, e in rows.items()}

    def error(self) -> tuple[AppliedUndef, AppliedUndef]:
        """The field that the target enters, and the target."""
        weights = {w.name for w in self.theory.program.trained()}
        for e in self.theory.equations:
            for x in e.terms:
                if x.kind == "source" and x.matrix not in weights:
                    return e.lhs, x.field
        raise NotApplicable("there is no target")

    def response(self, a: AppliedUndef) -> tuple[Symbol, Expr]:
        """What stands for a response, and its unit: the strength of feature learning, or its inverse.

        Backward fields move with forward ones by what was learnt; forward fields move with backward ones by
        the error, that is by the function, which has the inverse of that strength in it.
        """
        q = self.named(self.theory.responses(), a)
        if q.symbol not in self.unknown:
            (average,) = q.definition.atoms(Average)
            unit = self.unit ** self.power[average.args[0].source.func.__name__]
            self.unknown[q.symbol] = Dummy(str(q.symbol)), unit
        return self.unknown[q.symbol]

    def answer(self, field: AppliedUndef, source: AppliedUndef) -> Expr:
        """How a field answers a push of a source of its unit: a linear system for all fields of the unit."""
        rows = [r for r in self.form.rows if self.together(r.field, field)]
        letters = {r.field.func: Dummy(r.name) for r in rows}
        system = []
        for r in rows:
            pushed = [x for x in r.sources if x.name == str(source.func)]
            value = Add(*[x.weight for x in pushed if x.field.args[:-1] == source.args[:-1]])
            for x in r.actions:
                if x.field.func in letters and x.field.args[-1] != 0:
                    value += self.kernel(x) * letters[x.field.func]
            system.append(letters[r.field.func] - value)
        found = solve(system, list(letters.values()), dict=True)
        return found[0][letters[field.func]]

    @staticmethod
    def named(those: tuple[OrderParameter, ...], a: AppliedUndef) -> OrderParameter:
        """The order parameter of which ``a`` is a value."""
        return next(q for q in those if q.symbol.func == a.func and q.symbol.args[:-2] == a.args[:-2])

    def together(self, one: AppliedUndef, other: AppliedUndef) -> bool:
        """Are these fields of the same unit?"""
        ours, theirs = (self.theory.program.field_of(str(x.func)) for x in (one, other))
        if ours is None or theirs is None or ours.population != theirs.population:
            return False
        return bool(one.args[:-1] == other.args[:-1])

    def kernel(self, x: Action) -> Expr:
        """What is in front of a field, as a number that belongs to y."""
        if not x.reach:
            return x.weight
        order = [a for a in x.weight.atoms(AppliedUndef) if str(a.func) in self.names]
        if len(order) == 1 and any(q.name == str(order[0].func) for q in self.theory.responses()):
            name, unit = self.response(order[0])
            return x.weight.xreplace({order[0]: name * unit})
        if x.reach != "strict" or len(order) > 1:
            raise NotApplicable(f"{x.expr} has no kernel of plain descent")
        return x.weight.xreplace({a: self.start(a) for a in order}) / eta * y

    def start(self, a: AppliedUndef) -> Expr:
        """A correlation function as gamma0 -> 0: what the sources of its field have."""
        q = self.named(self.theory.correlations(), a)
        (average,) = q.definition.atoms(Average)
        field = next(iter(average.args[0].atoms(AppliedUndef))).xreplace({s: t})
        drawn = [x.field for r in self.form.rows if r.lhs == field for x in r.sources if x.weight == 1]
        for u in self.theory.sources:
            if u.symbol in drawn:
                return sympify(u.covariance).replace(
                    lambda b: isinstance(b, AppliedUndef) and str(b.func) in self.names, self.start
                )
        return Dummy("c", positive=True)  # moved by other responses; finite, which is all that matters


def _at_zero(e: Expr) -> Expr:
    """The limit ``gamma0 -> 0`` of a rational function."""
    top, bottom = fraction(cancel(e))
    if bottom.subs(gamma0, 0).expand() == 0:
        raise NotApplicable("a response grows faster than its unit as gamma0 -> 0")
    return (top / bottom).subs(gamma0, 0)


def _turning(gap: Callable[[Any, Any], Any], start: float) -> Any:
    """The value of y at which y(H), from y(1) = 0 on with ``gap(H, y(H)) = 0``, stops falling."""
    with mpmath.workdps(30):

        def along(h: Any, z: Any) -> Any:
            for _ in range(50):
                move = gap(h, z) / mpmath.diff(lambda x: gap(h, x), z)
                z -= move
                if abs(move) < mpmath.mpf(10) ** -20 * abs(z):
                    return z
            raise NotApplicable("the step along the law of the kernel is too long")

        def slope(h: Any, z: Any) -> Any:
            return -mpmath.diff(lambda x: gap(x, z), h) / mpmath.diff(lambda x: gap(h, x), z)

        h, z, step = mpmath.mpf(1), mpmath.mpf(0), mpmath.mpf("0.02")
        below = -1 / mpmath.mpf(start)
        for _ in range(MOST):
            try:
                move = step * (slope(h, z) if z else below)
                following = along(h + step, z + move)
                turned = slope(h + step, following) >= 0
                if abs(following - z - move) > abs(move):
                    raise NotApplicable("another root")
            except (NotApplicable, ZeroDivisionError):
                step /= 4
                continue
            if turned:
                break
            h, z = h + step, following
            step *= mpmath.mpf("1.05")
        else:
            raise NotApplicable("the law of the kernel cannot be followed to its end")
        low, high = h, h + step
        for _ in range(100):
            middle = (low + high) / 2
            z = along(middle, z)
            low, high = (middle, high) if slope(middle, z) < 0 else (low, middle)
            if high - low < mpmath.mpf(10) ** -12 * high:
                break
        return z
