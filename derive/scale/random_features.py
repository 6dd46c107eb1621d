"""Laws of random features on power-law data: bottlenecks of time, of N features and of P samples.

The responses are eliminated from the Laplace transforms of the theory (:mod:`derive.linear.transforms`). At
the rate z, modes with eigenvalues above a cut-off ``lamda_c`` have been learnt, and ``S`` is the sum over
modes of ``lamda/(lamda + lamda_c)``. The theory is then one equation for the cut-off and one closed
expression of sums over modes for the correlation of errors at two rates. On power-law data both are powers
(Mellin transforms), which give the law of time, the final loss, the corrections of finite sizes before it,
and the division of a compute budget between features and time. ``dmft limits scaling --regime features`` uses
the module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

from sympy import (
    Add,
    And,
    Dummy,
    Eq,
    Expr,
    Function,
    Gt,
    Poly,
    S,
    Sum,
    Symbol,
    expand,
    factor,
    fraction,
    gammasimp,
    inverse_laplace_transform,
    limit,
    nan,
    oo,
    powdenest,
    powsimp,
    simplify,
    solve,
    together,
    true,
    zeta,
    zoo,
)
from sympy.logic.boolalg import Boolean

from derive.calculus.sums import opened
from derive.calculus.symbols import IndexRange, converted, t
from derive.errors import NotApplicable
from derive.linear.transforms import Transforms, transforms, z, z_
from derive.program.networks.random_data import N, P, k
from derive.program.networks.random_data import sigma as noise
from derive.scale.bottlenecks import Bottleneck
from derive.scale.lazy_responses import on_eigenvalues
from derive.scale.mellin import Power, Powers
from derive.scale.modes import beta, lamda, late, numbers, on_power_law, time
from derive.scale.modes import capacity as capacity_
from derive.scale.power_laws import PowerLaw, cut, cut_, sum_over_modes
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Theory

share, share_ = Symbol("S", positive=True), Symbol("Sprime", positive=True)
"""Sum over modes of ``lamda/(lamda + lamda_c)``, the effective number of learnt modes."""

_mode, _t, _t_ = (Dummy(n, positive=True) for n in ("lamda", "t", "t'"))
_SECOND: Mapping[Expr, Expr] = {z: z_, cut: cut_, share: share_}


@dataclass(frozen=True, repr=False)
class RandomFeatures(ConditionalResult):
    """Theory of random features with its responses eliminated.

    The cut-off is the eigenvalue above which modes have been learnt, and S is the sum over modes of
    ``lamda/(lamda + cut-off)``, their effective number.

    Attributes
    ----------
    theory
        Theory from which the equations are derived.
    balance
        Laplace rate z as a function of the cut-off and of S.
    error
        Correlation of errors at two rates, ``z z' C_v(z, z')``, in symbols for sums over modes.
    sums
        Definitions of these symbols.
    """

    theory: Theory
    balance: Eq
    error: Expr
    sums: Mapping[Symbol, Sum]

    def _repr_latex_(self) -> str:
        shown = Eq(Function("C_v")(z, z_), self.error.xreplace(self.sums) / (z * z_), evaluate=False)
        return aligned_latex([self.balance, shown])

    def conditions(self) -> tuple[str, ...]:
        """Return two sentences: the derived equations, and the assumed final value theorem."""
        return (
            "derived: the cut-off and the correlations of errors in Laplace transforms, in flow",
            "assumed: the loss has a limit at late times, which is that of its transform at small rates (the "
            "final value theorem)",
        )

    # -- final loss --------------------------------------------------------------------------------------

    def alone(self, size: Symbol) -> Expr:
        """Return ``z z' C_v(z, z')`` for N features or P samples if the other number is infinite.

        ``size`` is the finite one, N or P. ``C_v(z, z')`` is the Laplace transform of the correlation of
        errors at the rates z and z' of two times.
        """
        return factor(limit(self.error, P if size == N else N, oo))

    def floor(self, size: Symbol) -> Powers:
        """Return the final loss without label noise as powers of ``size``, N features or P samples.

        The data are power-law data, and the other size is infinite.

        >>> from derive import mean_field
        >>> from derive.program.networks import random_features
        >>> from derive.reduce.data import mode_sums
        >>> found = eliminated(mode_sums(mean_field(random_features(noise=True))))
        >>> for size in (N, P):
        ...     print(sorted([p.power for p in found.floor(size).terms], key=str))
        [-2*a, -a, -a*beta]
        [-2*a, -a*beta]
        """
        return self._floors[size]

    @cached_property
    def _floors(self) -> dict[Symbol, Powers]:
        """Final losses without label noise, by the size N (features) or P (samples), as powers of it.

        The other size is infinite.
        """
        return {size: self._in_size(self.alone(size).subs(noise, 0), size) for size in (N, P)}

    def label_floor(self, size: Symbol) -> Power:
        """Return the part of the final loss from label noise, as a power of the number P of samples.

        ``size`` must be P, with infinitely many features: without a finite number of samples label noise adds
        nothing, and there is no power. Raises ValueError for another size.
        """
        if size != P:
            raise ValueError(
                f"size = {size}: must be {P}, the number of samples; without a finite number of samples, "
                "label noise adds nothing to the loss"
            )
        (term,) = self._in_size(_noisy(self.alone(size)), size).terms
        return term

    @cached_property
    def learnt(self) -> Power:
        """Effective number S of learnt modes as a power of the cut-off, to leading order on power-law data.

        The cut-off is the eigenvalue above which modes have been learnt.
        """
        top = sum_over_modes(lamda(k) / (lamda(k) + cut), cut).terms[0]
        return Power(gammasimp(top.coefficient), -top.power)

    def _in_size(self, e: Expr, size: Symbol) -> Powers:
        """Return an expression of sums over modes at late times as powers of N or P.

        ``size`` is N or P, to which the effective number S of learnt modes tends at late times. Raises
        NotApplicable unless the denominator of the expression is a single power of the cut-off.
        """
        count = self.learnt
        values = {size: count.at(cut)}
        for symbol, total in self.sums.items():
            powers = sum_over_modes(opened(total)[0].subs(cut_, cut), cut).terms
            used = powers[:1] if symbol not in self._of_target else powers
            values[symbol] = Add(*[gammasimp(p.coefficient) * cut**-p.power for p in used])
        numerator, denominator = fraction(together(e.subs(cut_, cut)))
        denominator = _as_powers(denominator.subs(values))
        if len(denominator) != 1:
            raise NotApplicable(
                "the denominator of the loss at late times must be a single power of the cut-off of the "
                f"spectrum; the loss is {e}"
            )
        terms = []
        for p in _as_powers(numerator.subs(values)):
            power = simplify(p.power - denominator[0].power)
            front = p.coefficient / denominator[0].coefficient * count.coefficient ** (-power / count.power)
            terms.append(Power(powdenest(powsimp(front), force=True), simplify(power / count.power)))
        return Powers(size, tuple(terms))

    @cached_property
    def _of_target(self) -> frozenset[Symbol]:
        """Symbols of those sums over modes whose summands contain the target of a mode."""
        return frozenset(x for x, total in self.sums.items() if total.has(Function("w_star")))

    # -- before the loss is final ------------------------------------------------------------------------

    @cached_property
    def signal(self) -> Powers:
        """Loss for infinitely many features and samples, as powers of late time."""
        summand = self._in_time(limit(limit(self.error, P, oo), N, oo))
        return late(summand.subs(_t, t))

    def added(self, size: Symbol) -> Powers:
        """Return ``size`` times the correction of order 1/size of the loss before it is final.

        Label noise is left out. ``size`` is N features or P samples, and the result has powers of time. It
        holds under its
        ``conditions``: a sum over modes of the target, taken at late times, converges. If this sum does not
        converge, the correction is of the order of the loss of infinite sizes times ``S/size``, with the
        effective number S of learnt modes, and the result does not hold.
        """
        return self._early[size]

    @cached_property
    def _early(self) -> dict[Symbol, Powers]:
        """Corrections of order 1/N and 1/P of the loss before it is final, times N or P, by size.

        Label noise is left out.
        """
        return {size: self._order_one(self.alone(size).subs(noise, 0), size) for size in (N, P)}

    def label_added(self, size: Symbol) -> Powers:
        """Return the part of the loss of order 1/size from label noise, times ``size``, as powers of time.

        ``size`` must be P, the number of samples, because label noise adds nothing at infinitely many
        samples. The result holds before the loss is final.
        """
        return self._order_one(_noisy(self.alone(size)), size)

    def _order_one(self, e: Expr, size: Symbol) -> Powers:
        """Return the coefficient of 1/size in a loss ``e``, as powers of time.

        ``e`` is ``z z'`` times the Laplace transform of the loss, where z and z' are the rates of the two
        times. ``size`` is N or P. Raises NotApplicable unless each term contains exactly one sum over modes
        without the target, and at most one with the target.
        """
        coefficient = expand(limit(size * (e - limit(e, size, oo)), size, oo))
        terms: list[Power] = []
        converges: list[Boolean] = []
        for part in Add.make_args(coefficient):
            symbols = part.free_symbols & {*self.sums}
            target_sums, mode_sums = symbols & self._of_target, symbols - self._of_target
            if len(target_sums) > 1 or len(mode_sums) != 1:
                raise NotApplicable(
                    f"the term {part} of order 1/{size} must contain one sum over modes without the target, "
                    "and at most one sum with the target"
                )
            value = S.One
            for x in target_sums:
                summand = on_eigenvalues(on_power_law(opened(self.sums[x])[0].subs({cut: 0, cut_: 0})))
                power = Power.of(powsimp(powdenest(summand, force=True)), k)
                value = power.coefficient * zeta(-power.power)
                converges.append(Gt(-power.power, 1))
                part /= x
            top = sum_over_modes(self._in_time(part), 1 / _t).terms[0]
            terms.append(Power(value * top.coefficient, top.power))
        return Powers(time, tuple(terms), conditions=And(*converges))

    def _in_time(self, e: Expr) -> Expr:
        """Return the summand over modes of an expression in Laplace transforms, as a function of time.

        ``e`` is a factor times one sum over modes, and ``z z'`` times the transform at the rates z and z'.
        The result holds at equal times.
        """
        (symbol,) = e.free_symbols & {*self.sums}
        body = factor(e / symbol * opened(self.sums[symbol])[0] / (z * z_)).subs({cut: z, cut_: z_})
        body = body.xreplace({lamda(k): _mode})
        front, body = body.as_independent(z, z_, as_Add=False)
        in_time = inverse_laplace_transform(body, z, _t)
        in_both_times = simplify(inverse_laplace_transform(in_time, z_, _t_).subs(_t_, _t)).expand()
        return (front * in_both_times).xreplace({_mode: lamda(k)})


@dataclass(frozen=True)
class Optimum:
    """Division of a budget ``C = N t`` between features and time with the smallest loss.

    ``loss``, ``features`` (N) and ``time`` (t) are the powers of C.
    """

    loss: Expr
    features: Expr
    time: Expr


def optimum(terms: Iterable[tuple[Expr, Expr]]) -> Optimum:
    """Return the best powers ``t ~ C^x`` and ``N ~ C^(1 - x)`` for a loss that is a sum of powers of t and N.

    ``terms`` are pairs of powers (of t, of N), one for each term; all are numbers. The loss has the power
    of its slowest term, which falls fastest at an end of the range of x or where two terms have the same
    power of C.

    >>> print(optimum([(-S.Half, S.Zero), (S.Zero, -S.One)]))
    Optimum(loss=-1/3, features=1/3, time=2/3)
    """
    powers = [(converted(a), converted(b)) for a, b in terms]
    x = Dummy("x")
    exponents = [a * x + b * (1 - x) for a, b in powers]
    candidates = {S.Zero, S.One}
    for one, other in combinations(exponents, 2):
        candidates |= {p for p in solve(one - other, x) if p.is_number and 0 <= p <= 1}
    best = min(candidates, key=lambda p: max(line.subs(x, p) for line in exponents))
    return Optimum(max(line.subs(x, best) for line in exponents), 1 - best, best)


def features_law(theory: RandomFeatures, source: Any = beta, capacity: Any = capacity_) -> PowerLaw:
    """Return the law of random features: the power of time, and the effects of finite sizes that end it.

    ``theory`` must have label noise; ``source`` and ``capacity`` are numbers or symbols. ``bottlenecks`` of
    the result are N features, P samples and their label noise. ``share`` is the correction of the loss before
    it is final, divided by the law of time, or None unless it falls more slowly than this law. ``after`` is
    the final loss, or the part of it that label noise adds. ``crossover`` is the time at which the share is
    one; without a share it is the time at which the law of time meets the final loss, or None if symbols do
    not determine the largest power of the final loss. ``optimum`` is None if a power contains a symbol.

    Raises
    ------
    NotApplicable
        For a source at which two powers are equal, where a logarithm occurs.
    ValueError
        For a capacity of 1 or less, or a source that is not positive.

    Examples
    --------
    >>> from derive import mean_field
    >>> from derive.program.networks import random_features
    >>> from derive.reduce.data import mode_sums
    >>> found = eliminated(mode_sums(mean_field(random_features(noise=True))))
    >>> law = features_law(found, "1/2", 2)
    >>> features, samples, _ = law.bottlenecks
    >>> print(law.exponent, features.after.coefficient, samples.after.coefficient, features.exponent(N))
    1/2 pi**2/(4*N) pi**2/(4*P) 2
    >>> print(law.optimum)
    Optimum(loss=-1/3, features=1/3, time=2/3)
    """
    values = numbers(1, source, capacity, summed=True)
    signal = theory.signal.subs(values)
    (top,) = signal.terms
    conditions = [
        "flow; 1 << t << M**a, M the number of modes, 1 << N, P << M",
        *theory.conditions(),
        "assumed: eigenvalues and targets are powers of k, and there are so many modes that sums over them "
        "are infinite sums",
    ]
    bottlenecks = tuple(_ended(theory, name, size, top, values) for name, size in SIZES.items())
    floor = (x.power for x in _largest(theory.floor(N), values))
    law = PowerLaw("features", signal.expr, -top.power, top.coefficient, tuple(conditions), {}, signal)
    law = replace(law, bottlenecks=(*bottlenecks, _noise(theory, top, values)))
    before = [(p.power, -S.One) for p in _added(theory, N, top, values)] if top.power.is_number else []
    powers = [(top.power, S.Zero), *before, *((S.Zero, p) for p in floor)]
    if not all(power.is_number for pair in powers for power in pair):
        return law
    return replace(law, optimum=optimum(powers))


SIZES = {"features": N, "samples": P}
"""Symbols of the finite sizes, by the names of their bottlenecks."""


def _largest(expansion: Powers, values: Mapping[Any, Any]) -> tuple[Power, ...]:
    """Return the largest term of a sum of powers of a size after substitution of values.

    ``expansion`` is in powers of N or P, and the result has one term. If symbols do not determine the
    largest, all terms are returned. Raises NotApplicable if the two largest powers are equal.
    """
    terms = [p.subs(values) for p in expansion.terms]
    if not all(p.power.is_number for p in terms):
        return tuple(terms)
    slowest = max(p.power for p in terms)
    largest = [p for p in terms if p.power == slowest]
    if len(largest) > 1 or largest[0].coefficient.has(zoo, nan):
        raise NotApplicable(
            f"source = {values[beta]}: two powers of {expansion.variable} are equal at this source, so that "
            "a logarithm occurs, which is not derived"
        )
    return tuple(largest)


def _ended(
    theory: RandomFeatures, name: str, size: Symbol, top: Power, values: Mapping[Any, Any]
) -> Bottleneck:
    """Return the effect of a finite number of features (N) or samples (P): the final loss and its onset.

    ``name`` is that of the bottleneck, ``size`` the symbol N or P, ``top`` the loss of infinite sizes as a
    power of time, and ``values`` are those of source and capacity.
    """
    floor = _largest(theory.floor(size), values)
    added = _added(theory, size, top, values)
    conditions = [
        f"1 << {size}, and the other size (N or P) is much larger; the share holds for t << "
        f"{size}**({values[capacity_]})"
    ]
    final, share_ = Add(*[p.at(size) for p in floor]), None
    crossover = (final / top.coefficient) ** (1 / top.power) if len(floor) == 1 else None
    for p in added:
        crossover = Power(p.coefficient / size, p.power).meets(top)
        share_ = Power(p.coefficient / size / top.coefficient, simplify(p.power - top.power))
        conditions.append(
            f"between the crossover and t ~ {size}**({values[capacity_]}) the loss is {p.at(time)}/{size}"
        )
    if not added:
        conditions.append(
            f"before the loss is final, {size} changes it relatively by powers of "
            f"t**({1 / values[capacity_]})/{size}"
        )
    return Bottleneck(name, size, share_, crossover, Power(final, S.Zero), None, tuple(conditions))


def _added(theory: RandomFeatures, size: Symbol, top: Power, values: Mapping[Any, Any]) -> tuple[Power, ...]:
    """Return the correction of order 1/size of the loss before it is final, times ``size``, or ().

    It is a power of time. The result is () unless the correction is known to fall more slowly than ``top``,
    the loss of infinite sizes, and the sum over modes of the target in it converges. ``values`` are those of
    source and capacity.
    """
    added = theory.added(size)
    if added.conditions.subs(values) != true:
        return ()
    return tuple(p for p in (x.subs(values) for x in added.terms) if (p.power - top.power).is_positive)


def _noise(theory: RandomFeatures, top: Power, values: Mapping[Any, Any]) -> Bottleneck:
    """Return the effect of label noise on P samples, for many more features than samples.

    ``top`` is the loss of infinite sizes as a power of time, and ``values`` are those of source and capacity.
    """
    (before,) = theory.label_added(P).subs(values).terms
    floor = theory.label_floor(P).subs(values)
    share_ = Power(before.coefficient / P / top.coefficient, simplify(before.power - top.power))
    crossover = share_.coefficient ** (-1 / share_.power)
    conditions = (
        "many more features than samples; at late times samples are fitted together with their label noise",
        f"the share holds while t << P**({values[capacity_]}); the loss after the crossover is the part that "
        "label noise adds to the final loss",
    )
    return Bottleneck("noise", P, share_, crossover, Power(floor.at(P), S.Zero), None, conditions)


def _noisy(e: Expr) -> Expr:
    """Return the part of a loss that label noise adds: its value minus that without the noise."""
    return factor(e - e.subs(noise, 0))


def _as_powers(e: Expr) -> list[Power]:
    """Return a sum of powers of the cut-off eigenvalue as a list of terms; equal powers are added."""
    coefficients: dict[Expr, Expr] = {}
    for x in Add.make_args(powsimp(expand(e))):
        p = Power.of(x, cut)
        power = simplify(p.power)
        coefficients[power] = coefficients.get(power, S.Zero) + p.coefficient
    return [Power(simplify(c), power) for power, c in coefficients.items() if simplify(c) != 0]


def eliminated(theory: Theory) -> RandomFeatures:
    """Return the theory of flow on random features as one equation for the cut-off and one for the loss.

    The cut-off is the eigenvalue above which modes have been learnt; all responses are functions of it.
    Raises :class:`NotApplicable` for theories whose Laplace transforms are not derived, such as those in
    steps or with layers, and where responses do not depend on one cut-off.

    >>> from derive import mean_field
    >>> from derive.program.networks import random_features
    >>> from derive.reduce.data import mode_sums
    >>> found = eliminated(mode_sums(mean_field(random_features(noise=True))))
    >>> print(found.balance)
    Eq(z, lamda_c*(N - S)*(P - S)/(N*P))
    >>> print(found.signal.expr)
    gamma(beta)/(2**beta*a*t**beta)
    """
    transformed = transforms(theory)
    solution = _responses(transformed)
    at = {x: e for x, e in solution.items() if x != z}
    at |= {x.xreplace({z: z_}): e.xreplace(_SECOND) for x, e in at.items()}
    rates = {z: solution[z], z_: solution[z].xreplace(_SECOND)}
    sums: dict[Expr, Symbol] = {}

    def total(e: Expr, units: IndexRange | None) -> Expr:
        """Return the sum of ``e`` over the modes ``units``, as a factor times a symbol for the sum.

        Responses in ``e`` are first replaced by functions of the cut-off. Without ``units`` there is no sum,
        and the expression is returned in factored form.
        """
        body = factor(e.xreplace(at).xreplace(rates))
        if units is None:
            return body
        front, inner = body.as_independent(*body.atoms(lamda, Function("w_star")), as_Add=False)
        return front * sums.setdefault(inner, Symbol(f"sum_{len(sums)}", positive=True))

    letters = {e.symbol: Dummy(str(e.symbol.func)) for e in transformed.correlations}
    system = []
    for e in transformed.correlations:
        terms = (
            x.factor * letters.get(x.correlation, x.correlation) * total(x.left * x.right, e.units)
            for x in e.terms
        )
        system.append(letters[e.symbol] - Add(*terms))
    (solved,) = solve(system, [*letters.values()], dict=True)
    learnt = transformed.correlation("C_v")
    error = factor(solved[letters[learnt.symbol]] * rates[z] * rates[z_])
    if error.has(share, share_) or learnt.units is None:
        raise NotApplicable(
            "the correlation C_v of errors must have an index of modes, and must not contain S, the sum of "
            "lamda/(lamda + lamda_c) over modes with the cut-off lamda_c"
        )
    limits = learnt.units.limits
    balance = Eq(z, solution[z], evaluate=False)
    return RandomFeatures(theory, balance, error, {x: Sum(body, limits) for body, x in sums.items()})


def _responses(transformed: Transforms) -> dict[Expr, Expr]:
    """Return, by symbol, the Laplace transforms of the responses and the rate z at which they are taken.

    Values are functions of the cut-off, the eigenvalue above which modes have been learnt, and of S, the
    effective number of learnt modes. Raises NotApplicable unless all responses have one cut-off.
    """
    unknowns = {e.lhs: Symbol(str(e.lhs.func)) for e in transformed.responses}
    cuts = {factor(_pole(x)) for e in transformed.responses for x in e.rhs.atoms(Sum)}
    if len(cuts) != 1:
        raise NotApplicable(
            "the sums over modes in the equations of the responses must have one common cut-off lamda_c, "
            "as in sums of lamda/(lamda + lamda_c); their cut-offs are "
            f"{', '.join(map(str, cuts)) or 'none'}: give a theory of random features with sums over modes, "
            "as mode_sums returns it"
        )
    (cutoff,) = cuts

    def counted(total: Expr) -> Expr:
        """Return a sum over modes as a factor times S, the sum of ``lamda/(lamda + lamda_c)``.

        ``lamda_c`` is the cut-off. Raises NotApplicable for another sum.
        """
        front = factor(_body(total) * (_mode + cutoff) / _mode)
        if front.has(_mode):
            raise NotApplicable(
                f"the sum {total} in the equation of a response is not a multiple of S, the sum of "
                f"lamda/(lamda + lamda_c) over modes with the cut-off lamda_c = {cutoff}"
            )
        return front * share

    right_sides = {e.lhs: e.rhs.replace(lambda x: isinstance(x, Sum), counted) for e in transformed.responses}
    system = [fraction(together((x - e).xreplace(unknowns)))[0] for x, e in right_sides.items()]
    system.append(fraction(together(cut - cutoff.xreplace(unknowns)))[0])
    solutions = solve(system, [*unknowns.values(), z], dict=True)
    if len(solutions) != 1:
        raise NotApplicable(
            f"the equations of the responses must have one solution; they have {len(solutions)}"
        )
    return {x: factor(solutions[0][letter]) for x, letter in unknowns.items()} | {z: factor(solutions[0][z])}


def _body(total: Expr) -> Expr:
    """Return the summand of a sum over modes, with a plain symbol in place of the eigenvalue ``lamda(k)``."""
    return opened(total)[0].xreplace({lamda(k): _mode})


def _pole(total: Expr) -> Expr:
    """Return the cut-off in a sum over modes: c, if the summand has its only pole at the eigenvalue ``-c``.

    Raises NotApplicable for summands with several poles or none.
    """
    coefficients = Poly(fraction(together(_body(total)))[1], _mode).all_coeffs()
    if len(coefficients) != 2:
        raise NotApplicable(
            f"the summand of {total}, as a function of the eigenvalue, must have one simple pole and no other"
        )
    return coefficients[1] / coefficients[0]
