"""Lazy training: eigenvalue distribution of the constant tangent kernel, and the resulting loss.

From the responses, on the population loss, for layers of any width (:func:`lazy_kernel`): as gamma0 -> 0
correlation functions keep their initial values, and responses depend on time differences only. Every kernel
is then a function of one operator, the sum over all earlier steps, and the equations of the responses become
algebraic. With y the learning rate times that operator, the response of the error to the target is

    H(y) = <1/(1 + k y)>,

an average over the eigenvalues k of the tangent kernel, because the error v and the target w_star obey ``v =
w_star - k y v`` for each of them.

From the first steps, also with fresh batches (:func:`lazy_steps`, linear2025 appendix D.2): a centred network
learns with ``v(t + 1) = v(t) - eta K h0(t)``, where K is the tangent kernel, ``h0 = v + noise``, and the
variance of the noise is a function q of the loss ``C_v``. An eigenvalue k of K keeps the fraction ``x = (1 -
eta k)^2`` of its part of the loss in a step:

    C_v(t) = <x^t> + sum_{s < t} eta^2 <k^2 x^(t - 1 - s)> q(C_v(s)).

Moments of the spectrum follow from the derived theory, and q from its equation of h0. K is assumed to be
constant; that the theory then gives the sum above is checked, step by step, when the moments are computed.
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
    Float,
    Function,
    Integer,
    Matrix,
    Mul,
    Poly,
    Rational,
    S,
    Symbol,
    binomial,
    cancel,
    factor,
    factor_list,
    fraction,
    lambdify,
    solve,
    sqrt,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.series import solved_series
from derive.calculus.sums import rewritten
from derive.calculus.symbols import eta, exact, gamma0, s, t
from derive.errors import NotApplicable, require_integer, require_type
from derive.linear.form import LinearTerm, linear_form
from derive.program.nonlinear import require_linear_rules
from derive.program.parts import gaussian
from derive.program.program import plain_steps, used_once
from derive.program.training import TrainedVector
from derive.scale.first_steps import exact_steps, same_unit
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import OrderParameter, Theory

MOST = 400
"""Largest number of continuation steps to the edge of the spectrum."""
FIRST = "1e-12"
"""Length of the first continuation step in H."""
CLOSE = 0.05
"""Largest distance of a continuation step from the parabola through earlier points, over its length."""
y, H, k = Symbol("y"), Symbol("H"), Symbol("k", positive=True)
"""Rate times the sum over earlier steps; response of the error to the target; eigenvalue."""
SIZE = Dummy("c", positive=True)
"""``C_v`` as the argument of the noise."""
remaining = (1 - eta * k) ** 2
"""Fraction of the loss along an eigenvector that remains after a step."""


def _crossing(below: Callable[[Any], bool], high: Any, digits: int) -> Any:
    """Return the largest number between 0 and ``high`` up to which ``below`` is true, by bisection.

    ``below`` must be true at small and false at large numbers. ``digits`` decimal digits are determined.
    """
    low = high * 0
    for _ in range(int(3.33 * digits)):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


# -- from the responses --------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LazyKernel(ConditionalResult):
    """Eigenvalue distribution of the tangent kernel of a lazy network.

    Parameters
    ----------
    theory : Theory
        Theory at this depth.
    depth : int
        Number of hidden layers.
    equations : Mapping[Symbol, Expr]
        Right-hand side of the equation of each response, in terms of the others and of y, the learning rate
        times the sum over earlier steps. A symbol is the response of a backward field to a forward one over
        gamma0, or of a forward field to a backward one times gamma0; ``H`` is the response of the error to
        the target, ``H(y) = <1/(1 + k y)>`` with ``H(0) = 1``.
    """

    theory: Theory
    depth: int
    equations: Mapping[Symbol, Expr]

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the eigenvalues.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            "assumed: as gamma0 -> 0 correlation functions keep their initial values",
            "assumed: responses depend on differences of times alone; backward fields respond to forward "
            "ones with a factor gamma0, forward fields to backward ones with 1/gamma0",
            "derived: the equations of the responses in this limit, and the eigenvalue distribution from "
            "them",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex(Eq(x, e, evaluate=False) for x, e in self.equations.items())

    def moments(self, n: int, values: Mapping[Symbol, Any] | None = None) -> tuple[Expr, ...]:
        """Return the moments of the eigenvalues k of the tangent kernel.

        They follow from the power series of ``H(y) = <1/(1 + k y)>``, in which ``y^n`` has the coefficient
        ``(-1)^n <k^n>``.

        Parameters
        ----------
        n : int
            Order of the highest moment, at least 0.
        values : Mapping[Symbol, Any] | None, optional
            Numbers for symbols, as in :meth:`at`; other symbols stay.

        Returns
        -------
        tuple[Expr, ...]
            ``<k^0>, ..., <k^n>``.

        Raises
        ------
        NotApplicable
            If the power series is not derived, as for residual networks.

        Examples
        --------
        >>> from derive import isotropic, mean_field
        >>> lazy_kernel(mean_field(isotropic(data="population", center=True)), 2).moments(2)
        (1, 3, 9 + 5/nu)
        """
        n = require_integer("n", n, 0)
        series = solved_series(self.at(values or {}).equations, y, n)[H]
        return tuple(((-1) ** i * c).expand() for i, c in enumerate(series))

    def growth(self, steps: int, values: Mapping[Symbol, Any] | None = None) -> Expr:
        """Return the ratio of the loss after a number of steps to the initial loss.

        Parameters
        ----------
        steps : int
            Number of steps, at least 0.
        values : Mapping[Symbol, Any] | None, optional
            Numbers for symbols other than the learning rate, as in :meth:`at`; other symbols stay.

        Returns
        -------
        Expr
            ``<(1 - eta k)^(2 steps)>``, averaged over the eigenvalues k of the tangent kernel.
        """
        steps = require_integer("steps", steps, 0)
        moments = self.moments(2 * steps, values)
        return Add(*[binomial(2 * steps, i) * (-eta) ** i * m for i, m in enumerate(moments)])

    def rate(self, steps: int, values: Mapping[Symbol, Any]) -> float:
        """Return the largest learning rate at which the loss is at most its initial value after each step.

        Parameters
        ----------
        steps : int
            Number of steps, at least 1; later ones are not considered.
        values : Mapping[Symbol, Any]
            Numbers for all symbols except the learning rate, as in :meth:`at`.

        Returns
        -------
        float
            The rate. It falls to 2 over :meth:`edge` as the number of steps grows.

        Notes
        -----
        After n steps the loss has the factor ``<(1 - eta k)^(2n)>``. The 2n-th root of this average grows
        with n, so that only the last step is tested.
        """
        steps = require_integer("steps", steps, 1)
        self._require_numbers(values)
        _, first, second = self.moments(2, values)
        with mpmath.workdps(30 + 2 * steps):
            growth = lambdify(eta, self.growth(steps, values), "mpmath")
            # The search ends at the rate 2 <k>/<k^2> (a little above it, for rounding), with the first two
            # moments <k> and <k^2> of the eigenvalues of the tangent kernel. After one step at this rate the
            # loss has its initial value again, and for more steps the largest rate is not larger.
            high = mpmath.mpf(2) * float(first / second) * (1 + mpmath.mpf(10) ** -12)
            return float(_crossing(lambda rate: growth(rate) < 1, high, 16))

    def at(self, values: Mapping[Symbol, Any]) -> LazyKernel:
        """Return the distribution for given values of symbols.

        Parameters
        ----------
        values : Mapping[Symbol, Any]
            Rational numbers by symbol of the theory; a float is read as the decimal number that it prints as.
            Symbols that are not given stay.

        Returns
        -------
        LazyKernel
            The distribution.

        Raises
        ------
        NotApplicable
            For a key that is not a symbol of the theory.
        ValueError
            For a value that is not a rational number, or not positive where the symbol is.
        """
        require_type(values, Mapping, "values", "a mapping from symbols to numbers")
        known = self.theory.symbols
        numbers = {}
        for x, v in values.items():
            if x not in known.values():
                raise NotApplicable(
                    f"values = {{{x!r}: {v}}}: the theory does not contain this symbol; its symbols, to be "
                    f"taken with their assumptions from theory.symbols, are {', '.join(known)}"
                )
            numbers[x] = sympify(exact(str(x), v))
            if not numbers[x].is_Rational or (x.is_positive and not numbers[x] > 0):
                kind = "positive rational number" if x.is_positive else "rational number"
                raise ValueError(f"values: {x} = {v} must be a {kind}, such as 0.7 or 2/3")
        return replace(self, equations={x: e.xreplace(numbers) for x, e in self.equations.items()})

    def _require_numbers(self, values: Mapping[Symbol, Any]) -> None:
        """Raise NotApplicable unless ``values`` has numbers for all symbols of the equations."""
        symbols = {x for e in self.at(values).equations.values() for x in e.free_symbols}
        if missing := sorted(map(str, symbols - {*self.equations, y})):
            raise NotApplicable(f"values: {', '.join(missing)} missing; give a number for each")

    @cached_property
    def chain(self) -> tuple[tuple[tuple[Symbol, Expr], ...], Expr]:
        """Solution of the equations of the responses one after the other, in terms of ``H`` and ``y``.

        ``H(y) = <1/(1 + k y)>`` is the average over the eigenvalues k of the tangent kernel. The first
        element has pairs (response, expression in H, y and earlier responses). The second is an expression
        that vanishes at H(y), an equation for H. Raises NotApplicable if the equations are not linear in the
        responses, one after the other.
        """
        rows = [fraction(cancel(e - x))[0] for x, e in self.equations.items()]
        unsolved, solutions = set(self.equations) - {H}, []
        while unsolved:
            unknown = [(e, x) for e in rows for x in unsolved if e.free_symbols & unsolved == {x}]
            linear = next(((e, x) for e, x in unknown if Poly(e, x).degree() == 1), None)
            if linear is None:
                raise NotApplicable(
                    "the equations of the responses cannot be solved one after the other, each for one "
                    "linear unknown"
                )
            solutions.append((linear[1], solve(*linear)[0]))
            unsolved.discard(linear[1])
            rows.remove(linear[0])
        (last,) = rows
        return tuple(solutions), last

    @cached_property
    def polynomial(self) -> Expr:
        """Polynomial in H and y that vanishes at ``H(y) = <1/(1 + k y)>``.

        The average is over the eigenvalues k of the tangent kernel. The degree in H doubles with each layer.
        Raises NotApplicable unless exactly one factor of the polynomial has the solution ``H(0) = 1``.

        >>> from derive import isotropic, mean_field
        >>> lazy_kernel(mean_field(isotropic(1, data="population", center=True))).polynomial
        H**2*y**2 + H**2*y + H*nu + H*y*(2*nu - 1) - nu
        """
        solutions, e = self.chain
        for x, value in reversed(solutions):
            e = fraction(cancel(e.xreplace({x: value})))[0]
        factors = [f for f, _ in factor_list(e, H, y)[1] if f.has(H) and f.subs({H: 1, y: 0}).expand() == 0]
        if len(factors) != 1:
            raise NotApplicable(
                "the equation of H(y), the function that generates the moments of the lazy kernel, does "
                "not have exactly one solution with H(0) = 1"
            )
        return factors[0]

    def edge(self, values: Mapping[Symbol, Any]) -> float:
        """Return the largest eigenvalue; two over it is the largest learning rate at which no mode diverges.

        Parameters
        ----------
        values : Mapping[Symbol, Any]
            Numbers for all symbols, as in :meth:`at`.

        Returns
        -------
        float
            The eigenvalue.

        Raises
        ------
        NotApplicable
            If a symbol has no number, or if the solution cannot be continued, as can happen for layers much
        narrower than the input.

        Notes
        -----
        For y below 0, H grows from 1 to the end of the distribution at ``y = -1/k``, where y as a function of
        H has a minimum.

        Examples
        --------
        >>> from derive import isotropic, mean_field
        >>> from derive.program.networks.random_data import nu
        >>> kernel = lazy_kernel(mean_field(isotropic(data="population", center=True)), 1)
        >>> round(kernel.edge({nu: 4}), 12)  # 1 + (1 + 1/sqrt(nu))^2
        3.25
        """
        self._require_numbers(values)
        solutions, last = self.at(values).chain
        names = {x: Dummy(f"r{i}") for i, (x, _) in enumerate(solutions)}
        substitutions = [(names[x], value.xreplace(names)) for x, value in solutions]
        gap = lambdify([H, y], last.xreplace(names), "mpmath", cse=lambda e: (substitutions, e))
        try:
            return float(-1 / _turning(gap, float(self.depth + 1)))
        except NotApplicable:
            raise
        except (ValueError, ZeroDivisionError):
            raise NotApplicable(
                "the edge of the kernel's spectrum is not found, as can happen for layers that are much "
                "narrower than the input: give wider layers"
            ) from None


def lazy_kernel(theory: Theory, depth: int | None = None) -> LazyKernel:
    """Return the eigenvalue distribution of the tangent kernel of a linear theory.

    Parameters
    ----------
    theory : Theory
        Linear theory in exact steps on the population loss.
    depth : int | None, optional
        Number of hidden layers, if that of the theory is a symbol.

    Returns
    -------
    LazyKernel
        The distribution.

    Raises
    ------
    NotApplicable
        For a flow, for weights with decay, memory or noise, for random samples, for several outputs, without
        a number of hidden layers, and if a response over gamma0 (or times it) diverges as gamma0 -> 0.

    Examples
    --------
    >>> from derive import isotropic, mean_field
    >>> kernel = lazy_kernel(mean_field(isotropic(data="population", center=True)), 1)
    >>> kernel.equations[H]
    1/(_R_gu(1, t, s) + y + 1)
    """
    require_linear_rules(theory.program, "the lazy kernel")
    program_depth = theory.program.depth
    layers = int(program_depth) if program_depth.is_Integer else depth
    if layers is None or depth not in (None, layers):
        raise NotApplicable(
            f"depth = {depth}: must be the number of hidden layers; that of the theory is {program_depth}"
        )
    plain_steps(theory.program)
    return LazyKernel(theory, layers, _Responses(theory.at_depth(layers)).equations())


class _Responses:
    """Responses of a linear theory in the limit gamma0 -> 0, as algebraic functions of y.

    y is the learning rate times the operator that sums over all earlier steps. Because kernels depend on time
    differences only, this operator can be treated as a number.
    """

    def __init__(self, theory: Theory) -> None:
        used_once(theory.program, "the kernel's first steps")
        self.theory = theory
        self.names = {q.name for q in theory.order_parameters}
        pairs = [gaussian(m).sources for m in theory.program.matrices]
        self.power = {up: 1 for up, _ in pairs} | {down: -1 for _, down in pairs}
        trained = {w.name: w for w in theory.program.trained()}
        if any(gaussian(m).name not in trained for m in theory.program.matrices):
            raise NotApplicable(
                "the lazy kernel is not derived for programs with untrained random matrices, such as that "
                "of samples: in place of samples give the population loss, data='population'"
            )
        readouts = [w for w in trained.values() if isinstance(w, TrainedVector)]
        if len(readouts) != 1 or any(w.update.over for w in trained.values()):
            raise NotApplicable(
                "the lazy kernel is derived for one trained readout vector and for updates that are not "
                "sums, as those of one output on isotropic data with the population loss"
            )
        self.unit = readouts[0].update.coefficient
        self.form = linear_form(theory)
        self.unknown: dict[AppliedUndef, tuple[Symbol, Expr]] = {}

    def equations(self) -> dict[Symbol, Expr]:
        """Return an equation for each response in terms of the others, in the limit gamma0 -> 0.

        Keys are symbols of the responses, and values are right-hand sides in y. The key ``H`` is the response
        of the error to the target.
        """
        rows = {H: self.answer(*self.error())}
        for q in self.theory.responses():
            x, unit = self.response(q.symbol)
            (average,) = q.definition.atoms(Average)
            response = average.args[0]
            rows[x] = q.definition / average * self.answer(response.body, response.source) / unit
        return {x: limit_at_zero(e, "a response diverges in the limit gamma0 -> 0") for x, e in rows.items()}

    def error(self) -> tuple[AppliedUndef, AppliedUndef]:
        """Return (error field, target), as symbols.

        The target is the Gaussian source of a vector that is not trained, such as the weights of a teacher.
        The error is the field whose equation contains it. Raises NotApplicable if there is no such source.
        """
        weights = {w.name for w in self.theory.program.trained()}
        for e in self.theory.equations:
            for x in e.terms:
                if x.kind == "source" and x.matrix not in weights:
                    return e.lhs, x.field
        raise NotApplicable(
            "the theory has no target: no equation of a field contains the Gaussian source of an untrained "
            "vector, such as a teacher"
        )

    def response(self, a: AppliedUndef) -> tuple[Symbol, Expr]:
        """Return (symbol, unit) of a response, which is the symbol times the unit.

        ``a`` is the response at any two times; its name and layer select it. The unit is gamma0 for the
        response of a backward field to a forward source, and its inverse for that of a forward field to a
        backward source, so that the symbol is finite as gamma0 -> 0. Backward fields respond to forward ones
        by the updates. Forward fields respond to backward ones by the error, which contains the inverse of
        gamma0.
        """
        q = self.named(self.theory.responses(), a)
        if q.symbol not in self.unknown:
            (average,) = q.definition.atoms(Average)
            unit = self.unit ** self.power[average.args[0].source.func.__name__]
            self.unknown[q.symbol] = Dummy(str(q.symbol)), unit
        return self.unknown[q.symbol]

    def answer(self, field: AppliedUndef, source: AppliedUndef) -> Expr:
        """Return the response of a field to a source of the same population and layer, as a function of y.

        It solves the linear system of the equations of all fields of this population and layer.
        """
        rows = [r for r in self.form.rows if same_unit(self.theory, r.field, field)]
        symbols = {r.field.func: Dummy(r.name) for r in rows}
        system = []
        for r in rows:
            source_terms = [x for x in r.sources if x.name == str(source.func)]
            value = Add(*[x.weight for x in source_terms if x.field.args[:-1] == source.args[:-1]])
            for x in r.actions:
                if x.field.func in symbols and x.field.args[-1] != 0:
                    value += self.kernel(x) * symbols[x.field.func]
            system.append(symbols[r.field.func] - value)
        solutions = solve(system, list(symbols.values()), dict=True)
        return solutions[0][symbols[field.func]]

    @staticmethod
    def named(those: tuple[OrderParameter, ...], a: AppliedUndef) -> OrderParameter:
        """Return the order parameter in ``those`` with the name and the layer of ``a``; times may differ."""
        return next(q for q in those if q.symbol.func == a.func and q.symbol.args[:-2] == a.args[:-2])

    def kernel(self, x: LinearTerm) -> Expr:
        """Return the kernel of a term of an equation as a number, which multiplies the field of the term.

        Without a sum over steps it is the factor of the field. In the factor of a sum with a response, the
        response is replaced by its symbol times its unit. In the factor of another sum over earlier steps, a
        correlation function is replaced by its initial value, and the factor is multiplied by ``y/eta``.
        Raises NotApplicable for a sum without a response over other times, or with several order parameters.
        """
        if not x.reach:
            return x.weight
        parameters = [a for a in x.weight.atoms(AppliedUndef) if str(a.func) in self.names]
        if len(parameters) == 1 and any(q.name == str(parameters[0].func) for q in self.theory.responses()):
            name, unit = self.response(parameters[0])
            return x.weight.xreplace({parameters[0]: name * unit})
        if x.reach != "strict" or len(parameters) > 1:
            raise NotApplicable(
                f"the lazy kernel is derived for gradient descent: the memory {x.expr} must be a sum over "
                "earlier steps only, and must contain at most one order parameter"
            )
        return x.weight.xreplace({a: self.start(a) for a in parameters}) / eta * y

    def start(self, a: AppliedUndef) -> Expr:
        """Return the initial value of a correlation function, which it keeps as gamma0 -> 0.

        It is the covariance of the Gaussian source that the equation of its field contains with the factor
        one. If there is no such source, the result is a new positive symbol, because only that the value is
        finite matters.
        """
        q = self.named(self.theory.correlations(), a)
        (average,) = q.definition.atoms(Average)
        field = next(iter(average.args[0].atoms(AppliedUndef))).xreplace({s: t})
        sources = [x.field for r in self.form.rows if r.lhs == field for x in r.sources if x.weight == 1]
        for u in self.theory.sources:
            if u.symbol in sources:
                return rewritten(sympify(u.covariance), self.names, self.start)
        # The equation of the field contains no Gaussian source with the factor one, so that the correlation
        # is not the covariance of a source. A symbol stands for its initial value, because it matters only
        # that this value is finite.
        return Dummy("c", positive=True)


def _turning(gap: Callable[[Any, Any], Any], start: float) -> Any:
    """Return the minimum of the function y(H) that starts at ``y(1) = 0`` and falls as H grows.

    y(H) is the solution of ``gap(H, y) = 0``, followed in small steps of H. ``start`` is minus the slope of
    H(y) at y = 0. The first step is much shorter than any distance to the minimum, and a step is divided by
    four unless the solution there is close to the parabola through earlier points, so that no other solution
    is reached. Raises NotApplicable if the solution cannot be followed to the minimum.
    """
    with mpmath.workdps(60):

        def by_y(h: Any, z: Any) -> Any:
            return mpmath.diff(lambda x: gap(h, x), z, relative=True)

        def along(h: Any, z: Any) -> Any:
            for _ in range(50):
                change = gap(h, z) / by_y(h, z)
                z -= change
                # The size of gap(h, z) does not tell how close z is to the solution, because gap is
                # proportional to a power of z near z = 0.
                if abs(change) <= abs(z) * mpmath.mpf("1e-25"):
                    return z
            raise ValueError

        def slope(h: Any, z: Any) -> Any:
            return -mpmath.diff(lambda x: gap(x, z), h) / by_y(h, z)

        h, z, step = mpmath.mpf(1), mpmath.mpf(0), mpmath.mpf(FIRST)
        falls, bends = -1 / mpmath.mpf(start), mpmath.mpf(0)  # first and second derivative of y(H)
        for _ in range(MOST):
            move = step * falls + step**2 * bends / 2
            try:
                following = along(h + step, z + move)
                slope_there = slope(h + step, following)
            except (ValueError, ZeroDivisionError):  # the step of the continuation was too long
                step /= 4
                continue
            distance = abs(following - z - move) / max(abs(step * falls), abs(step**2 * bends))
            if distance > CLOSE:
                step /= 4
                continue
            if slope_there >= 0:
                break
            bends = (slope_there - falls) / step
            h, z, falls = h + step, following, slope_there
            step *= 2 if distance < CLOSE / 8 else mpmath.mpf("1.2")
            step = min(step, 2 * abs(falls / bends))  # the minimum of the parabola is at half of this
        else:
            raise NotApplicable(
                "the edge of the kernel's spectrum is not found: the numerical solution of the equation of "
                f"H(y), from H(0) = 1 on, does not reach its smallest y in {MOST} steps"
            )
        return along(h + _crossing(lambda more: slope(h + more, along(h + more, z)) < 0, step, 12), z)


# -- from the first steps ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LazySteps(ConditionalResult):
    """Moments of the spectrum of the lazy tangent kernel, and the noise of fresh batches.

    Parameters
    ----------
    theory : Theory
        Theory from which they are derived.
    moments : tuple[Expr, ...]
        ``<k>, <k^2>, ...`` of the eigenvalues k of the kernel.
    noise : Callable[[Expr], Expr]
        Variance of the noise of the batch gradient ``h0 = error + noise``, as a function of the loss ``C_v``.

    Notes
    -----
    Without noise ``C_v(t) = <x^t>`` are the moments of the positive variable ``x = (1 - eta k)^2``, so that
    ``C_v(t + 1)/C_v(t)`` never falls (Cauchy-Schwarz). A loss that increases in one step then increases in
    all later steps.
    """

    theory: Theory
    moments: tuple[Expr, ...]
    noise: Callable[[Expr], Expr]

    def conditions(self) -> tuple[str, ...]:
        """Return the derivation and the assumptions of the moments of the kernel's eigenvalues.

        Returns
        -------
        tuple[str, ...]
            Sentences that start with "derived: " or "assumed: ".
        """
        count = len(self.moments)
        return (
            f"derived: moments 1 to {count} of the kernel, from {count // 2} steps of the theory as gamma0 "
            "-> 0",
            "derived: in these steps the kernel is constant",
            "assumed: the kernel is constant in all later steps",
            "assumed: gamma0 -> 0 before the number of steps grows, so that a large loss (catapult) does not "
            "change the kernel",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex(Eq(Average(k**n), m, evaluate=False) for n, m in enumerate(self.moments, 1))

    def average(self, e: Expr) -> Expr:
        """Return the average of a polynomial in ``k`` over the spectrum of the tangent kernel.

        Parameters
        ----------
        e : Expr
            Polynomial in the eigenvalue ``k``, the positive symbol of this module.

        Returns
        -------
        Expr
            Average.

        Raises
        ------
        NotApplicable
            If the degree of the polynomial is above the number of known moments.
        """
        total = S.Zero
        for (power,), c in Poly(e, k).terms():
            if power > len(self.moments):
                raise NotApplicable(
                    f"the average needs moment {power} of the kernel, and {len(self.moments)} are known: "
                    "give more steps"
                )
            total += c * (self.moments[power - 1] if power else S.One)
        return total

    def loss(self, steps: int) -> Expr:
        """Return the loss ``C_v`` after a number of steps, for a constant kernel with the noise of batches.

        Parameters
        ----------
        steps : int
            Number of steps, at least 0.

        Returns
        -------
        Expr
            ``C_v``, which is 1 before training.

        Raises
        ------
        NotApplicable
            If fewer than ``2 steps`` moments are known.
        """
        steps = require_integer("steps", steps, 0)
        losses: list[Expr] = []
        for n in range(steps + 1):
            noise_terms = [
                self.average(k**2 * remaining ** (n - 1 - m)) * self.noise(losses[m]) for m in range(n)
            ]
            losses.append((self.average(remaining**n) + eta**2 * Add(*noise_terms)).expand())
        return losses[steps]

    @cached_property
    def spread(self) -> Expr:
        """Variance ``<k^2> - <k>^2`` of the eigenvalues k of the tangent kernel.

        If it is zero, ``C_v(t + 1) = <x> C_v(t) + eta^2 <k^2> q(C_v(t))`` is exact at every step. Here ``x =
        (1 - eta k)^2``, and q is the variance of the noise.
        """
        return factor(self.moments[1] - self.moments[0] ** 2)

    @cached_property
    def free_cumulants(self) -> tuple[Expr, ...]:
        """Free cumulants of the eigenvalue distribution of the lazy kernel, one for each known moment.

        Each moment is ``<k^n> = sum_j kappa_j sum_(i_1 + .. + i_j = n - j) <k^i_1> .. <k^i_j>``. In layers of
        ``nu D`` units, with D input features, the cumulants for n > 1 are ``c_n(L) nu^(1 - n)``. They are
        those of the sum of ``nu D`` matrices ``(d/nu) w w^T`` with independent random unit vectors w of D
        entries, where ``<d^n> = c_n`` does not depend on the width.

        Examples
        --------
        >>> from derive import isotropic, mean_field
        >>> lazy_steps(mean_field(isotropic(1, data="population", center=True))).free_cumulants
        (2, 1/nu, nu**(-2), nu**(-3))
        """
        moments, cumulants = (S.One, *self.moments), list[Expr]()
        for n in range(1, len(moments)):
            lower, power = S.Zero, [S.One] + [S.Zero] * n
            for j, kappa in enumerate(cumulants, 1):
                power = [Add(*[power[i] * moments[m - i] for i in range(m + 1)]) for m in range(n)]
                lower += kappa * power[n - j]
            cumulants.append(factor(moments[n] - lower))
        return tuple(cumulants)

    @cached_property
    def slope(self) -> Expr:
        """Derivative q' of the noise variance of a batch gradient with respect to the loss ``C_v``."""
        return factor(self.noise(SIZE).diff(SIZE))

    @cached_property
    def first_rise(self) -> Expr:
        """Learning rate above which the first step increases the lazy loss; label noise is left out."""
        growth = self.average(remaining) + eta**2 * self.moments[1] * self.slope - 1
        return factor(solve(cancel(growth / eta), eta)[0])

    @cached_property
    def settles(self) -> Expr:
        """Function S(k) of a kernel's eigenvalue k by which the convergence of the loss is decided.

        The loss converges if ``<S(k)> < 1``, and ``eta k < 2`` for all k. S is ``q' sum_t eta^2 k^2 x^t``,
        the total response to a perturbation of the loss, where ``x = (1 - eta k)^2`` and q' is :attr:`slope`.
        Its terms are positive, so that the sum for ``C_v`` converges if and only if the average is below 1
        (the renewal theorem).

        >>> from derive import isotropic, mean_field
        >>> lazy_steps(mean_field(isotropic(1, data="online", center=True))).settles
        -eta*k/(alpha_B*(eta*k - 2))
        """
        return factor(self.slope * eta**2 * k**2 / (1 - remaining))

    @cached_property
    def ceiling(self) -> Expr:
        """Upper bound of the learning rate at which the loss converges, exact if all eigenvalues are equal.

        The response :attr:`settles` is convex in the eigenvalue k, so that its average is at least its value
        at ``<k>``, which is 1 at this rate. Without noise the loss converges up to the rate 2 over the
        largest eigenvalue, which is at most ``2/<k>``; the result is then ``2/<k>``.
        """
        if self.slope == 0:
            return 2 / self.moments[0]
        return factor(solve(self.settles.subs(k, self.moments[0]) - 1, eta)[0])

    @cached_property
    def widest(self) -> Expr:
        """Ratio of the largest convergent learning rate to :attr:`first_rise`, in the limit of large noise.

        ``first_rise`` is the rate above which the first step increases the loss. In this limit :attr:`slope`
        is large and both rates are small; the ratio is ``<k^2>/<k>^2`` for the eigenvalues k of the kernel.
        """
        return factor(self.moments[1] / self.moments[0] ** 2)

    def spectrum(self, nodes: int | None = None, digits: int = 20) -> list[tuple[Float, Float]]:
        """Return the nodes and weights of Gauss quadrature for the spectrum.

        Parameters
        ----------
        nodes : int | None, optional
            Number of nodes, at most half the number of moments, which is the default (rounded down).
        digits : int, optional
            Number of decimal digits of the results.

        Returns
        -------
        list[tuple[Float, Float]]
            Eigenvalues and weights that reproduce the moments.

        Raises
        ------
        NotApplicable
            If moments are not numbers or too few for the nodes, or belong to a spectrum of fewer points.

        Examples
        --------
        >>> from sympy import Rational
        >>> three = LazySteps(None, tuple(Rational(1 + 3**n, 2) for n in range(1, 5)), lambda c: c * 0)
        >>> [(round(float(k), 6), round(float(w), 6)) for k, w in three.spectrum()]
        [(1.0, 0.5), (3.0, 0.5)]
        """
        digits = require_integer("digits", digits, 1)
        count = len(self.moments) // 2 if nodes is None else require_integer("nodes", nodes, 1)
        if any(not x.is_number for x in self.moments):
            raise NotApplicable(
                "the moments of the kernel contain symbols: give numbers for all symbols, such as widths=4 "
                "in isotropic, or replace the symbols in the field moments"
            )
        if not 1 <= count <= len(self.moments) // 2:
            raise NotApplicable(
                f"a spectrum of {max(count, 1)} nodes needs {2 * max(count, 1)} moments, and "
                f"{len(self.moments)} are known: derive more moments, or give fewer nodes"
            )
        precision = digits + 10 * count
        m = [x if x.is_Rational else Rational(str(x.evalf(precision))) for x in (S.One, *self.moments)]
        # The nodes are the zeros of the polynomial of degree `count` that is orthogonal to all polynomials of
        # lower degree. Its coefficients are the null vector of the matrix of the moments m_(i+j).
        null_vectors = Matrix(count, count + 1, lambda i, j: m[i + j]).nullspace()
        if len(null_vectors) != 1:
            raise NotApplicable(
                f"nodes = {count}: the spectrum of the kernel has fewer points than that; give fewer nodes"
            )
        points = Poly(list(reversed(null_vectors[0])), k).nroots(n=precision, maxsteps=200)
        weights = [self.average(Mul(*[(k - z) / (x - z) for z in points if z != x])) for x in points]
        return [(Float(x, digits), Float(w, digits)) for x, w in zip(points, weights, strict=True)]

    def largest_rate(self, nodes: int | None = None) -> Float:
        """Return an upper bound of the largest rate at which the lazy loss converges.

        Parameters
        ----------
        nodes : int | None, optional
            Number of nodes of :meth:`spectrum`; half the number of moments by default.

        Returns
        -------
        Float
            The rate; all symbols except the rate must be numbers. More nodes give smaller rates, and one node
            gives :attr:`ceiling`.

        Notes
        -----
        Every even derivative of :attr:`settles` in k is positive, so that Gauss quadrature underestimates the
        average, and its largest node is below the edge of the spectrum.

        Examples
        --------
        >>> from derive import isotropic, mean_field
        >>> from derive.program.networks.random_data import alpha_B, nu
        >>> from sympy import Rational
        >>> numbers = {alpha_B: Rational(1, 4), nu: Rational(1, 2)}
        >>> theory = mean_field(isotropic(1, data="online", center=True)).map(lambda e: e.xreplace(numbers))
        >>> found = lazy_steps(theory, 3)
        >>> [round(float(found.largest_rate(n)), 4) for n in (1, 2, 3)], found.first_rise
        ([0.2, 0.1761, 0.1754], 2/15)
        """
        spectrum = self.spectrum(nodes)
        highest = 2 / max(v for v, _ in spectrum)
        if self.slope == 0:
            return highest
        total = lambdify(eta, Add(*[w * self.settles.subs(k, v) for v, w in spectrum]), "mpmath")
        return Float(_crossing(lambda rate: total(rate) < 1, highest, 15))

    def bound(self, steps: int) -> Expr:
        """Return an upper bound of the error of the recursion ``C_v(t + 1) = F C_v(t)``.

        The recursion has no memory of earlier steps: ``F = <x> + eta^2 <k^2> q'``, with the fraction ``x = (1
        - eta k)^2`` of the loss that an eigenvalue k keeps in a step, and q' of :attr:`slope`.

        Parameters
        ----------
        steps : int
            Number of steps.

        Returns
        -------
        Expr
            Bound of the absolute difference between the recursion and ``C_v`` after these steps; 0 for at
            most one step.

        Notes
        -----
        With ``V = <x^2> - <x>^2`` a step neglects

            d_t = cov(x, x^t) + eta^2 q' sum_{s < t} cov(x, k^2 x^(t - 1 - s)) C_v(s).

        For ``eta k <= 2``, which is a condition on the spectrum, ``x <= 1``. Then the first covariance is
        between 0 and ``t V`` (``x^t`` has slopes up to t), the others are at most ``sqrt(V <k^4>)``
        (Cauchy-Schwarz), and ``C_v(s) <= (1 + eta^2 <k^2> q')^s``. After T steps the errors add up to ``sum_t
        F^(T - 1 - t) d_t``. Without noise the errors are positive, so that the recursion is a lower bound of
        ``C_v`` at every step. Label noise is left out. Four moments are needed.
        """
        steps = require_integer("steps", steps, 0)
        V = self.average(remaining**2) - self.average(remaining) ** 2
        noise_growth = eta**2 * self.moments[1] * self.slope
        F = self.average(remaining) + noise_growth
        total = S.Zero
        for n in range(1, steps):
            dropped = n * V
            if self.slope != 0:
                past = Add(*[(1 + noise_growth) ** m for m in range(n)])
                dropped += eta**2 * self.slope * sqrt(V * self.moments[3]) * past
            total += F ** (steps - 1 - n) * dropped
        return total


def lazy_steps(theory: Theory, steps: int = 2) -> LazySteps:
    """Return the moments of the lazy tangent kernel of a centred linear theory, from its first steps.

    Parameters
    ----------
    theory : Theory
        Centred linear theory of one output on isotropic data, with fresh batches or the population loss, and
        with fields called ``v``, ``h0`` and ``xi`` as in :func:`.isotropic`.
    steps : int, optional
        Number of steps, at least 1, which gives twice as many moments. For the depth L the moment of order n
        is a polynomial of degree ``2 n - 1`` in L.

    Returns
    -------
    LazySteps
        Moments of the kernel.

    Raises
    ------
    NotApplicable
        If the theory is not centred or has several outputs, for a flow and for weights with decay, memory or
        noise, and if the loss of the steps is not that of a constant kernel, as in two or more steps with
        samples that are used again.

    Examples
    --------
    >>> from derive import isotropic, mean_field
    >>> found = lazy_steps(mean_field(isotropic(data="online", center=True)), 1)
    >>> print(found.moments[0], "|", found.spread, "|", found.ceiling)
    L + 1 | L*(L + 1)*(2*L + 1)/(6*nu) | 2*alpha_B/((L + 1)*(alpha_B + 1))
    >>> print(found.widest)
    (2*L**2 + 6*L*nu + L + 6*nu)/(6*nu*(L + 1))
    """
    steps = require_integer("steps", steps, 1)
    names = {e.name for e in theory.equations}
    if not {"v", "h0", "xi"} <= names or len(theory.order_parameter("C_v").symbol.args) != 2:
        raise NotApplicable(
            "lazy_steps needs a centred network of one output on isotropic data: give isotropic with "
            "center=True and without the option outputs"
        )
    plain_steps(theory.program)
    number = theory.program.depth.is_Integer
    # w_star is the initial error. Its covariance is multiplied by the symbol SIZE, so that the first step
    # gives the noise of batches as a function of the initial loss.
    covariances = {
        u: u.covariance * (SIZE if u.symbol.func == Function("w_star") else 1) for u in theory.sources
    }
    sources = tuple(replace(u, covariance=e) for u, e in covariances.items())
    first = exact_steps(replace(theory, sources=sources), (eta, 0))
    start = cancel(first.closed_form(Function("C_h0")(S.Zero, S.Zero)) - SIZE)

    spectrum = LazySteps(theory, (), lambda size: start.subs(SIZE, size))
    steps_ = exact_steps(theory, (gamma0, 0) if number else (eta, 2 * steps))
    for n in range(1, steps + 1):
        value = limit_at_zero(steps_.closed_form(Function("C_v")(Integer(n), Integer(n))))
        unknown = (Dummy("m"), Dummy("m"))
        expected = Poly(replace(spectrum, moments=(*spectrum.moments, *unknown)).loss(n) - value, eta)
        solved = solve([expected.nth(2 * n - 1), expected.nth(2 * n)], unknown, dict=True)
        if not solved or any(cancel(c.subs(solved[0])) != 0 for c in expected.all_coeffs()):
            raise NotApplicable(
                f"the loss after {n} lazy steps is not that of a constant kernel with independent noise of "
                "batches, as happens if samples are used again: give data='online' or 'population'"
            )
        spectrum = replace(spectrum, moments=(*spectrum.moments, *[factor(solved[0][x]) for x in unknown]))
    return spectrum


def limit_at_zero(
    value: Expr, infinite: str = "the lazy limit is infinite, as for networks that are not centred"
) -> Expr:
    """Return the limit of a rational function at ``gamma0 = 0``.

    Raises NotApplicable with the message ``infinite`` if it is not finite.
    """
    top, bottom = fraction(cancel(value))
    if bottom.subs(gamma0, 0).expand() == 0:
        raise NotApplicable(infinite)
    return (top / bottom).subs(gamma0, 0)
