"""Solution at ``gamma0 = 0``: kernels layer by layer from Gaussian averages, and lazy dynamics.

The input are a theory, numbers and data; the output are kernels by layer and outputs at all times. The method
``lazy`` and the verification of results use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import frexp, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Dummy, Expr, Float, Mul, S, Symbol, factor_terms
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.symbols import s, t
from derive.reduce.memoryless import Markov
from derive.reduce.stationary import Static, static
from derive.theory import OrderParameter, Theory
from numerics.averages.kink_quadrature import Moment
from numerics.errors import Unserved, require_whole
from numerics.experiment.checks import by_name, given_times
from numerics.lowering.expressions import layers_written_out
from numerics.lowering.indices import RealNumber, at_integer_depth, axes_of, connected_groups, node_of
from numerics.lowering.memoryless import Present, System
from numerics.names import MemberKey
from numerics.quotients import without_overflow
from numerics.solver.named_values import place_of
from numerics.threads import one_thread

Array = NDArray[np.float64]
Groups = list[tuple[MemberKey, ...]]
"""Sources in groups that are mutually independent."""

DIGITS = 14
"""Digits to which variances and correlations of averages must agree so that the averages count as equal."""


@dataclass(frozen=True)
class LazySolved:
    """Solution of :func:`solve_lazy`.

    Attributes
    ----------
    kernels : dict
        Kernels by name and layer, the tangent kernel included, with the axes of their indices (``Phi(ell, mu,
        alpha)`` has shape ``(P, P)`` at each layer).
    scalars : dict
        Errors and outputs, shape ``(times, *indices)``; empty without a tangent kernel.
    times : numpy.ndarray
        Output times, shape ``(times,)``.
    error : float
        Largest error of an average, relative to the average of the absolute value of the same function.
    tails : float
        Product over the Gaussian fields of all layers of ``<f^4> / (3 <f^2>^2)``, which is one for a linear
        f. f is the function of the field that a kernel averages; the largest ratio counts, and at least one.
        The second order of kernels in the change of fields is larger by about this factor.
    """

    kernels: Mapping[MemberKey, Array]
    scalars: Mapping[str, Array]
    times: Array
    error: float
    tails: float

    def kernel(self, name: str, layer: int | None = None) -> Array:
        """Return the kernel ``name``, at ``layer`` if each layer has one.

        Raises KeyError with a list of all kernels if there is no such kernel.
        """
        return self.kernels[place_of(self.kernels, name, layer)]


@one_thread
def solve_lazy(
    theory: Theory,
    *,
    steps: int = 1,
    times: Sequence[float] | Array | None = None,
    values: Mapping[Symbol | str, RealNumber] | None = None,
    data: Mapping[str, Any] | None = None,
    accuracy: float = 1e-10,
) -> LazySolved:
    """Return kernels and outputs of a theory of integer depth at ``gamma0 = 0``.

    The recursion is derived (:func:`derive.reduce.stationary.static`): each kernel is an average over
    Gaussian fields whose covariances are the kernels of the neighbouring layer. Averages over one or two
    variables are integrals, computed to ``accuracy`` (relative to the average of the absolute value);
    averages of one function are taken to be equal if variances and correlation agree to 14 digits. The
    kernels are also those of time 0 for any gamma0. ``values`` are numbers for symbols, ``data`` arrays by
    name. Errors and outputs are given at ``0..steps-1``, or at ``times`` of a flow; outputs are zero at the
    start. The error of a flow must be an affine function of the output, as for the square loss.

    Raises :class:`~derive.errors.NotApplicable` if fields move at gamma0 = 0,
    :class:`~numerics.errors.Unserved` for averages of unsupported forms, as over more than two variables, for
    flows with momentum or a rate that depends on time, and for flows whose error is not an affine function of
    the output (losses other than the square), :class:`~numerics.errors.NotConverged` if an integral does not
    reach ``accuracy``, and ValueError for missing values or data, for a kernel of the data that is not
    symmetric positive semidefinite, for ``steps`` below 1, for a flow without ``times``, for ``times`` of a
    rule in steps, and for times that are not finite or do not increase from 0 or later.

    >>> from derive.theory import mean_field
    >>> from derive.program import P, eta, mlp
    >>> given = {"values": {eta: 0.5, P: 1}, "data": {"K_x": [[1.0]], "y": [1.0]}}
    >>> solved = solve_lazy(mean_field(mlp(2, "relu")), steps=3, **given)
    >>> [solved.kernel("Phi", layer).round(6).item() for layer in (1, 2)]
    [0.5, 0.25]
    >>> solved.scalars["Delta"].round(6).tolist()
    [[1.0], [0.625], [0.390625]]
    """
    if bool(theory.program.rule.discrete) != (times is None):
        raise ValueError("a theory in discrete time needs steps and no times, and a flow needs times")
    require_whole("steps", steps, 1, "must be at least 1")
    at = np.arange(steps, dtype=float) if times is None else given_times(times, steps=False)
    theory = at_integer_depth(theory, {}).map(without_overflow)
    solver = _LazySolver(static(theory), values or {}, data or {}, accuracy)
    kernels = solver.all_kernels()
    scalars = solver.outputs(at) if solver.static.output is not None else {}
    return LazySolved(kernels, scalars, at, solver.error, prod(solver.tails.values()))


def coupling_of(reduced: Static) -> tuple[Expr, tuple[Symbol, ...]]:
    """Return the factor of an earlier error in the equation of the output, and the indices of that error.

    The output is the sum, or integral, of this factor times the error over earlier times and over these
    indices. ``reduced`` must have an equation of the output, which it lacks without a tangent kernel.
    """
    output, theory = reduced.output, reduced.theory
    assert output is not None
    error = next(e for e in theory.scalars if e.lhs != output.lhs)
    total = output.rhs if theory.program.rule.discrete else output.rhs.function
    past = next(x for x in total.function.atoms(AppliedUndef) if x.func == error.lhs.func)
    return total.function / past, tuple(x[0] for x in total.limits if x[0] != s)


def error_is_linear(reduced: Static) -> bool:
    """Return whether the error is an affine function of the outputs, as it is for the square loss.

    Tested is whether it is affine in a common factor of all outputs. ``reduced`` must have an equation of the
    output.
    """
    output = reduced.output
    assert output is not None
    error = next(e.rhs for e in reduced.theory.scalars if e.lhs != output.lhs)
    scale = Dummy()
    scaled = error.xreplace({x: scale * x for x in error.atoms(AppliedUndef) if x.func == output.lhs.func})
    return bool(scaled.diff(scale, 2) == 0)


def _digits_of(variance: float) -> tuple[float, int]:
    """Return the mantissa of a number, rounded to DIGITS decimals, and its binary exponent."""
    mantissa, exponent = frexp(variance)
    return round(mantissa, DIGITS), exponent


def _correlation(first: float, second: float, cross: float) -> float:
    """Return the correlation coefficient of two variables, rounded to DIGITS decimals.

    ``first`` and ``second`` are their variances, and ``cross`` is their covariance. The result is zero if a
    variance is zero.
    """
    deviations = sqrt(max(first, 0.0)) * sqrt(max(second, 0.0))
    return round(cross / deviations, DIGITS) if deviations else 0.0


class _LazySolver(Present):
    """Values of a theory at gamma0 = 0; each kernel is computed when it is first read.

    ``known`` caches averages over two Gaussian variables, by their function and covariances. ``tails`` holds
    ``<f^4> / (3 <f^2>^2)`` for functions f of a Gaussian field whose products are averaged: the largest
    ratio, and at least one, by the name and layer of the field.
    """

    def __init__(
        self, reduced: Static, values: Mapping[Any, RealNumber], data: Mapping[str, Any], accuracy: float
    ) -> None:
        numbers = by_name("values", values)
        system = System(Markov(reduced.theory, reduced.sources, (), reduced.fields), numbers, data)
        super().__init__(system, {}, np.ones(1))
        self.static, self.accuracy, self.error = reduced, accuracy, 0.0
        self.kernels = {node_of(q.symbol): q for q in reduced.kernels}
        self.moments: dict[Expr, Moment] = {}
        self.known: dict[tuple[Any, ...], float] = {}
        self.tails: dict[MemberKey, float] = {}

    def array(self, node: MemberKey, x: Expr) -> Array:
        """Return the array of ``x``, a kernel, field, scalar or given data of the theory.

        ``node`` is its key (name, integer indices). A kernel is computed at the first call. The array of a
        kernel has the axes of its indices, and then one of length one.
        """
        if node in self.kernels and node not in self.found:
            self.found[node] = self.computed(self.kernels[node])
        return super().array(node, x)

    def all_kernels(self) -> dict[MemberKey, Array]:
        """Return all kernels, the tangent kernel included, by key (name, layer).

        The axes of a kernel are its indices.
        """
        kernels = {n: self.array(n, q.symbol)[..., 0] for n, q in self.kernels.items()}
        tangent = self.static.tangent
        if tangent is not None:
            axes = axes_of(tangent.lhs)
            value = self.value(layers_written_out(tangent.rhs), axes)
            value = np.broadcast_to(value, (*self.system.shape(axes), 1))
            self.found[node_of(tangent.lhs)] = value
            kernels[node_of(tangent.lhs)] = value[..., 0]
        return kernels

    # -- averages --------------------------------------------------------------------------------------

    def computed(self, q: OrderParameter) -> Array:
        """Return the array of the order parameter ``q``, an average over Gaussian fields.

        It is written as a sum of products of averages of mutually independent factors. Its axes are the
        indices of ``q``, and then one of length one. Raises Unserved if ``q`` is not an average times a
        number.
        """
        axes = axes_of(q.symbol)
        number, average = q.definition.as_independent(Average)
        if not isinstance(average, Average):
            raise Unserved(f"the order parameter {q.definition} is not an average times a number")
        body = self.unfolded(average.body)
        total = np.zeros((*self.system.shape(axes), 1))
        for term in self.products(body, self.groups(body)):
            part: Any = self.value(number, axes)
            for e in sorted(term, key=lambda e: (len(self.atoms(e)), str(e))):
                if not np.any(part):
                    break
                part = part * self.mean(e, axes)
            total = total + part
        return total

    def mean(self, e: Expr, axes: tuple[Symbol, ...]) -> Any:
        """Return the average of ``e``, a function of up to two Gaussian variables, for all index values.

        ``axes`` are the axes of the result, indices that ``e`` may contain; an axis of length one follows.
        Raises Unserved for more than two variables.
        """
        atoms = self.atoms(e)
        if not atoms:
            return self.value(e, axes)
        e = self.numbered(e, axes)
        if len(atoms) > 2:
            raise Unserved(
                f"<{e}> is an average over {len(atoms)} Gaussian variables; at most two are supported"
            )
        if e not in self.moments:
            self.moments[e] = Moment(e, tuple(atoms))
        x, y = atoms[0], atoms[-1]
        shape = (*self.system.shape(axes), 1)
        flat = [
            np.broadcast_to(self.value(self.covariance(*pair), axes), shape).ravel()
            for pair in ((x, x), (y, y), (x, y))
        ]
        means = [self.moment(e, *map(float, numbers)) for numbers in zip(*flat, strict=True)]
        if node_of(x) == node_of(y):
            self.tails[node_of(x)] = max(
                self.tails.get(node_of(x), 1.0), self.tail(e, x, y, float(flat[0].max()))
            )
        return np.reshape(means, shape)

    def tail(self, e: Expr, x: AppliedUndef, y: AppliedUndef, variance: float) -> float:
        """Return ``<f^4> / (3 <f^2>^2)`` of a function f of a Gaussian variable, where ``e`` is f(x) f(y).

        ``variance`` is that of the variable. The result is one if ``<f^2>`` is zero.
        """
        both = e.xreplace({y: x})
        second, fourth = (
            Moment(part, (x,))(variance, variance, variance, self.accuracy)[0] for part in (both, both**2)
        )
        return fourth / (3 * second**2) if second else 1.0

    def numbered(self, e: Expr, axes: tuple[Symbol, ...]) -> Expr:
        """Return ``e`` with numbers for its symbols and data.

        Gaussian variables and the indices in ``axes`` stay symbols.
        """
        free = {x for x in e.atoms(Symbol) if x not in axes}
        calls = {x for x in e.atoms(AppliedUndef) if not self.system.is_random(x)}
        return e.xreplace({x: Float(np.asarray(self.value(x, ())).item()) for x in free | calls})

    def moment(self, e: Expr, first: float, second: float, cross: float) -> float:
        """Return the average of ``e`` over two Gaussian variables with these variances and covariance.

        A cached average is returned for variances and a correlation that agree with earlier ones to DIGITS
        digits.
        """
        key = e, *_digits_of(first), *_digits_of(second), _correlation(first, second, cross)
        if key not in self.known:
            self.known[key], error, size = self.moments[e].averages(first, second, cross, self.accuracy)
            self.error = max(self.error, error / size if size else 0.0)
        return self.known[key]

    # -- Gaussian fields -------------------------------------------------------------------------------

    def is_source(self, x: AppliedUndef) -> bool:
        """Return whether a symbol is a Gaussian source."""
        return node_of(x) in self.system.start

    def equation(self, x: AppliedUndef) -> Expr:
        """Return the right-hand side of the equation of the field ``x``, at its indices.

        Raises Unserved for a function of fields that has neither an equation nor an expression.
        """
        if node_of(x) not in self.system.fields:
            raise Unserved(
                f"{x}: {x.func} is a function without an expression; use a named activation such as tanh"
            )
        e = self.system.fields[node_of(x)]
        return e.rhs.xreplace(dict(zip(e.lhs.args, x.args, strict=True)))

    def combination(self, x: AppliedUndef) -> dict[AppliedUndef, Expr] | None:
        """Return the coefficients by source of a field that is linear in the sources, else None."""
        if self.is_source(x):
            return {x: S.One}
        coefficients: dict[AppliedUndef, Expr] = {}
        for term in Add.make_args(self.equation(x).expand()):
            factors = [y for y in Mul.make_args(term) if self.system.is_random(y)]
            if len(factors) != 1 or not isinstance(factors[0], AppliedUndef):
                return None
            inner = self.combination(factors[0])
            if inner is None:
                return None
            for u, c in inner.items():
                coefficients[u] = coefficients.get(u, S.Zero) + c * term / factors[0]
        return coefficients

    def unfolded(self, e: Expr) -> Expr:
        """Return ``e`` with each field that is nonlinear in the sources replaced by its equation."""
        for x in sorted(e.atoms(AppliedUndef), key=str):
            if self.system.is_random(x) and self.combination(x) is None:
                e = e.xreplace({x: self.unfolded(self.equation(x))})
        return e

    def atoms(self, e: Expr) -> list[AppliedUndef]:
        """Return the Gaussian variables in an expression: sources, and fields linear in them."""
        return sorted((x for x in e.atoms(AppliedUndef) if self.system.is_random(x)), key=str)

    def covariance(self, x: AppliedUndef, y: AppliedUndef) -> Expr:
        """Return ``<x y>`` of two Gaussian variables, from the covariances of the sources."""
        first, second = self.combination(x), self.combination(y)
        assert first is not None
        assert second is not None
        return Add(*[a * b * self.between(u, v) for u, a in first.items() for v, b in second.items()])

    def between(self, u: AppliedUndef, v: AppliedUndef) -> Expr:
        """Return the covariance of two Gaussian sources at their indices; zero if they are independent."""
        for source in self.static.sources:
            pair = node_of(source.symbol), node_of(source.partner)
            for x, y in ((u, v), (v, u)):
                if pair == (node_of(x), node_of(y)):
                    names = [*zip(source.symbol.args, x.args, strict=True)]
                    names += [*zip(source.partner.args, y.args, strict=True)]
                    put = {a: b for a, b in names if isinstance(a, Symbol)}
                    return source.covariance.subs(put, simultaneous=True)
        return S.Zero

    # -- independent factors ---------------------------------------------------------------------------

    def groups(self, e: Expr) -> Groups:
        """Return all Gaussian sources of the theory in groups that are mutually independent.

        Sources with a covariance are in one group, and so are sources that one Gaussian variable in ``e``
        combines.
        """
        links: Groups = [(node_of(u.symbol), node_of(u.partner)) for u in self.static.sources]
        links += [tuple(map(node_of, self.combination(x) or ())) for x in self.atoms(e)]
        return connected_groups((n for link in links for n in link), filter(None, links))

    def of(self, e: Expr, groups: Groups) -> set[int]:
        """Return the positions in ``groups`` of the groups of sources on which an expression depends.

        ``groups`` is a list of groups of Gaussian sources that are mutually independent.
        """
        nodes = {node_of(u) for x in self.atoms(e) for u in self.combination(x) or {}}
        return {i for i, g in enumerate(groups) if nodes & {*g}}

    def products(self, e: Expr, groups: Groups) -> list[tuple[Expr, ...]]:
        """Write an expression as a sum of products whose factors depend on independent Gaussian sources.

        Each product is a tuple of its factors. ``groups`` are the mutually independent groups of sources.
        Raises Unserved for a function of several of them that is not a sum of products.
        """
        if len(self.of(e, groups)) < 2:
            return [(e,)]
        separate: dict[frozenset[int], Expr] = {}
        mixed: Expr = S.One
        for x in Mul.make_args(factor_terms(e) if isinstance(e, Add) else e):
            key = frozenset(self.of(x, groups))
            if len(key) < 2:
                separate[key] = separate.get(key, S.One) * x
            else:
                mixed *= x
        terms = Add.make_args(mixed.expand())
        if mixed == 1:
            return [tuple(separate.values())]
        if len(terms) == 1:
            raise Unserved(
                f"the average <{e}> is over several groups of Gaussian variables that are independent of "
                "each other. It is supported only if the averaged function is a sum of products, and each "
                "factor depends on one group"
            )
        return [p for x in terms for p in self.products(Mul(x, *separate.values()), groups)]

    # -- outputs ---------------------------------------------------------------------------------------

    def outputs(self, times: Array) -> dict[str, Array]:
        """Return errors and outputs at these times.

        ``f(t) = sum_s K(t, s) Delta(s)`` in steps, and ``f' = K Delta`` for a flow with an error ``Delta``
        affine in f. K is the factor that :func:`coupling_of` returns, with its sum over samples; f is zero at
        the start. Raises Unserved for a flow in which K depends on time, as with momentum, or whose error is
        not affine in f.
        """
        output, theory = self.static.output, self.static.theory
        assert output is not None
        discrete = theory.program.rule.discrete
        error = next(e for e in theory.scalars if e.lhs != output.lhs)
        axes = axes_of(output.lhs)
        size = int(np.prod(self.system.shape(axes)))
        coupling, others = coupling_of(self.static)
        schedules = (
            a for a in coupling.atoms(AppliedUndef) if a.args == (s,) and str(a.func) in self.system.data
        )
        tables = {a: Symbol(f"_{a.func}_then") for a in schedules} if discrete else {}

        def matrix(now: float, then: float) -> Array:
            e = coupling.xreplace({t: Symbol("_now"), s: Symbol("_then"), **tables})
            read = {str(x): self.system.data[str(a.func)][int(then)] for a, x in tables.items()}
            self.values = {**self.values, "_now": now, "_then": then, **read}
            pairs = (*axes, *others)
            value = np.broadcast_to(self.value(e, pairs), (*self.system.shape(pairs), 1))
            return value.reshape(size, size)

        def errors(f: Array) -> Array:
            self.found[node_of(output.lhs)] = f.reshape(*self.system.shape(axes), 1)
            value = np.asarray(self.value(error.rhs, axes_of(error.lhs)))
            return np.broadcast_to(value, (*self.system.shape(axes), 1)).ravel()

        start = errors(np.zeros(size))
        if discrete:
            past, totals = [start], [np.zeros(size)]
            for now in range(1, len(times)):
                if coupling.has(t, s):
                    total = sum((matrix(now, k) @ past[k] for k in range(now)), np.zeros(size))
                else:
                    total = totals[-1] + matrix(0.0, 0.0) @ past[-1]
                totals.append(total)
                past.append(errors(total))
        else:
            from scipy.linalg import expm  # imported here because it is slow and seldom used

            if coupling.has(t, s):
                raise Unserved(
                    "a flow at gamma0 = 0 is solved only for a constant rate without momentum: use a "
                    "training rule in steps"
                )
            if not error_is_linear(self.static):
                raise Unserved(
                    f"the error {error.name} = {error.rhs} is not a linear function of the output "
                    f"{output.lhs.func} plus a constant, which a flow at gamma0 = 0 needs: use the square "
                    "loss, or a training rule in steps"
                )
            slopes = np.stack([errors(x) - start for x in np.eye(size)], axis=1)
            # the flow is affine in the outputs, f' = A f + b: a constant 1 beside f makes it linear
            rate = np.zeros((size + 1, size + 1))
            rate[:size, :size], rate[:size, size] = matrix(0.0, 0.0) @ slopes, matrix(0.0, 0.0) @ start
            totals = [expm(rate * now)[:size, size] for now in times]
        shape = (len(times), *self.system.shape(axes))
        return {
            error.name: np.stack([errors(f) for f in totals]).reshape(shape),
            str(output.lhs.func): np.stack(totals).reshape(shape),
        }
