"""Derived corrections of order 1/N, variances and shifts of means, compared with finite networks.

From estimates of the cost of :mod:`numerics.fluctuations` this module decides up to which of the compared
times N times variances and N times shifts are derived, and derives them.  It changes the comparisons of
:mod:`.networks` accordingly: the derived shift is subtracted from means over networks instead of a fitted
slope, and rows for the variances are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from numerics.errors import NumericsError, SpecError
from numerics.experiment.problem import Problem
from numerics.fluctuations.corrections import WidthCorrections, corrections
from numerics.fluctuations.expanded_problem import SizeGrowth, lowered, size_growth
from numerics.fluctuations.finite_width import largest_ratio
from numerics.fluctuations.methods import REPLICAS
from numerics.fluctuations.plan import WidthPlan
from numerics.fluctuations.variables import VariableBuilder
from numerics.names import FEATURE_KERNEL, GRADIENT_KERNEL
from numerics.results import LOSSES, SHIFT, STDERR, SYSTEMATIC, VARIANCE, systematic
from numerics.stats import Line, bound
from numerics.verification.controls import DOF, MEAN_LOSS
from numerics.verification.networks import (
    N_VAR,
    ComparedQuantity,
    Comparison,
    compared_times,
    degrees_of,
    entry_of,
    freedom_of,
    line_of,
    size_of,
    widths_of,
)
from numerics.verification.plan import SLOPE, NetworkPlan, keeps_pairs, plan_of
from numerics.verification.report import LEVEL, Check
from numerics.verification.smaller_problems import Effort
from numerics.verification.stability import edge_of_stability

Array = NDArray[np.float64]

SHARE = 0.25
"""Share of the work of a verification that derived corrections may take, by the estimate of their solver."""

DERIVING = 1.0
"""Measured time in seconds to derive the fluctuations of a program."""

MOST_DEFINITIONS = 20
"""Largest number of definitions for which DERIVING holds; programs with 23 to 36 take 2 to 61 s."""

FEWEST = 100
"""Fewest networks of a width whose variance is compared; its error needs their fourth moment."""

SEEN, NUMBERS = 0.5, 30
"""Variances are compared if this relative error is significant among so many numbers."""

FLOW = "those of a flow are extrapolated in the step length, which takes longer than training more networks"
SHORT = "deriving the fluctuations of this program takes longer than training these networks"


# -- plans of derived corrections -----------------------------------------------------------------------


@dataclass(frozen=True)
class CorrectionsPlan:
    """Plan of derived corrections of order 1/N: up to which of the compared times they are affordable.

    The corrections are N times the variance over networks, and the shift: N times the difference of their
    mean from the limit.

    Attributes
    ----------
    shifted
        The plan up to the last time at which shifts and variances are derived; None if there is no such time.
    varied
        The plan of a later time at which only variances are derived; None if there is no such time.
    places
        Positions of the compared times.
    reason
        Why shifts or variances are not derived at all compared times; empty if they are.
    """

    shifted: WidthPlan | None
    varied: WidthPlan | None
    places: tuple[int, ...]
    reason: str = ""

    @property
    def seconds(self) -> float:
        """Estimated time in seconds to derive the corrections."""
        return sum(x.seconds for x in (self.shifted, self.varied) if x is not None)

    def left_of(self, effort: Effort) -> Effort:
        """Return ``effort`` with its work reduced by the estimated work of deriving the corrections.

        The remaining work is spent on training finite networks. Nothing is subtracted for a flow, for a
        program of many definitions, and for an effort whose share is less than the time DERIVING.
        """
        spent = 0.0 if self.reason in (SHORT, FLOW) else DERIVING + self.seconds
        return replace(effort, work=effort.work - 1e9 * spent)

    @property
    def has_slopes(self) -> bool:
        """Whether shifts, the slopes of means in 1/N, are derived at all times that are compared.

        Then networks of two widths suffice for the extrapolation to infinite width, because no slope is
        fitted.
        """
        return self.shifted is not None and last_of(self.shifted) == self.places[-1]


def last_of(plan: WidthPlan) -> int:
    """Return the position, among the output times, of the last time that a plan of corrections covers."""
    return plan.sizes.times - 1


def plan_corrections(problem: Problem, places: Sequence[int], effort: Effort, pairs: bool) -> CorrectionsPlan:
    """Return up to which time the corrections of order 1/N are derived, from estimates of cost alone.

    ``places`` are positions, among the output times, of the times at which theory and networks are
    compared. At most the fraction SHARE of the work of ``effort`` is used. ``pairs`` states whether
    corrections of kernels of all pairs of samples are needed, or those of traces only. No corrections are
    planned for flows, for programs of many definitions, for an effort whose share is less than the time
    DERIVING, where features do not move, and where the expansion in 1/N refuses the problem; the plan states
    the reason.
    """
    places, most = tuple(places), SHARE * effort.work * 1e-9 - DERIVING
    if len(problem.program.definitions) > MOST_DEFINITIONS:
        return CorrectionsPlan(None, None, places, SHORT)
    if most <= 0 or problem.flow:
        return CorrectionsPlan(None, None, places, FLOW if problem.flow else SHORT)
    try:
        if problem.experiment is not None:
            problem.experiment.require_moving_features("the expansion in 1/N at fixed gamma0")
        growth = size_growth(problem)
    except SpecError as error:
        return CorrectionsPlan(None, None, places, str(error))
    kernels = "full" if pairs else "trace"
    shifted, reason = _latest(problem, growth, places, most, kernels, shifts=True)
    if shifted is not None and last_of(shifted) == places[-1]:
        return CorrectionsPlan(shifted, None, places)
    later = [x for x in places if shifted is None or x > last_of(shifted)]
    left = most - (0.0 if shifted is None else shifted.seconds)
    varied, _ = _latest(problem, growth, later, left, "trace", shifts=False)
    return CorrectionsPlan(shifted, varied, places, reason)


def _latest(
    problem: Problem, growth: SizeGrowth, places: Sequence[int], most: float, kernels: Any, shifts: bool
) -> tuple[WidthPlan | None, str]:
    """Return the plan of corrections up to the latest affordable time, and why later times are not.

    ``places`` are positions of candidate times, ``most`` is the time in seconds that may be used, and
    ``growth`` gives sizes of the calculation by the number of times. ``kernels`` is "full" or "trace".
    ``shifts`` states whether shifts of means are needed beside variances. The plan is None if no time is
    affordable; the reason is "" if the last time is.
    """
    first = ""
    for place in sorted(places, reverse=True):
        outputs = sum(x <= place for x in places) if shifts else 1
        try:
            plan = WidthPlan.of(problem, growth.at(place + 1), outputs, kernels)
            plan.require_resources()
        except SpecError as error:
            first = first or str(error)
            continue
        no_shift = plan.method.no_shift(plan.sizes) if shifts else None
        if no_shift is None and plan.seconds <= most:
            return plan, first
        costly = f"about {plan.seconds:.2g} s for time {problem.times[place]:g}, by {plan.method.name}"
        first = first or no_shift or costly
    return None, first


# -- corrections in numbers -----------------------------------------------------------------------------


@dataclass(frozen=True)
class DerivedNumber:
    """Number, or array, with its errors: a derived coefficient of 1/N, or a value of theory or networks.

    ``stderr`` is its standard error, with ``dof`` degrees of freedom, and ``systematic`` a bound on its bias;
    both are zero where averages are exact. The arrays have equal shapes.
    """

    value: Array
    stderr: Array
    systematic: Array
    dof: int = REPLICAS - 1

    def scaled(self, factor: float) -> DerivedNumber:
        """Return the value multiplied by ``factor``, and its errors by the absolute value of ``factor``."""
        size = abs(factor)
        return replace(
            self,
            value=factor * self.value,
            stderr=size * self.stderr,
            systematic=size * self.systematic,
        )


@dataclass(frozen=True)
class CorrectionsAtTimes:
    """Derived corrections of order 1/N at some output times, and the name of the method that derived them.

    ``times`` are positions among the output times, ``found`` holds variances and shifts of each variable at
    these times, for the N of the theory. ``factor`` is the width of the widest layer divided by this N;
    networks are labelled by the width of the widest layer, so that corrections are multiplied by it.
    """

    times: tuple[int, ...]
    found: WidthCorrections
    factor: float
    method: str

    @classmethod
    def of(cls, plan: WidthPlan, times: Sequence[int]) -> CorrectionsAtTimes:
        """Derive the corrections of order 1/N of a plan, at the output times with the positions ``times``."""
        problem = plan.problem
        solved = plan.method.solve(lowered(problem, times=plan.sizes.times), problem.solver)
        builder = VariableBuilder(problem, solved.lowered, solved.values, times, plan.keep)
        width_corrections = corrections(solved, builder.variables())
        return cls(tuple(times), width_corrections, largest_ratio(problem), plan.method.name)

    def entry(self, name: str, end: str, at: Mapping[str, int], dims: Sequence[Any]) -> DerivedNumber | None:
        """Return the derived variance or shift of variable ``name`` at a time and layer, or None.

        ``end`` is VARIANCE or SHIFT, and ``at`` gives positions by dimension (``time``, ``time_``,
        ``layer``). The result is an array over the remaining dimensions ``dims``, in this order. None if it
        is not derived there, or has other dimensions; corrections are derived at equal times only.
        """
        values = self.found.variances if end == VARIANCE else self.found.shifts
        if name not in values or at.get("time") not in self.times:
            return None
        if at.get("time_", at["time"]) != at["time"]:
            return None
        variable_dims = self.found.dims[name]
        place = {"time": self.times.index(at["time"]), **{k: v for k, v in at.items() if k == "layer"}}
        parts: list[Array] = []
        for x in (values[name], self.found.errors.get(name + end), self.found.systematic.get(name + end)):
            array = xr.DataArray(np.zeros_like(values[name]) if x is None else x, dims=variable_dims)
            array = array.isel({k: v for k, v in place.items() if k in variable_dims})
            if {*array.dims} != {*dims}:
                return None
            parts.append(array.transpose(*dims).to_numpy())
        value, stderr, systematic = parts
        return DerivedNumber(value, stderr, systematic).scaled(self.factor)


@dataclass(frozen=True)
class DerivedCorrections:
    """Derived corrections of order 1/N of a problem, used in comparisons of theory and finite networks.

    ``parts`` hold the corrections at different times. ``has_variances`` states whether measured variances
    over networks are compared with derived ones.
    """

    parts: tuple[CorrectionsAtTimes, ...] = ()
    has_variances: bool = True

    @classmethod
    def of(cls, plan: CorrectionsPlan) -> DerivedCorrections:
        """Derive the corrections of order 1/N of a plan: shifts and variances, and variances at a later time.

        Raises
        ------
        SpecError, NumericsError
            If the method fails although it was planned.
        """
        parts = []
        if plan.shifted is not None:
            held = [x for x in plan.places if x <= last_of(plan.shifted)]
            parts.append(CorrectionsAtTimes.of(plan.shifted, held))
        if plan.varied is not None:
            parts.append(CorrectionsAtTimes.of(plan.varied, [last_of(plan.varied)]))
        return cls(tuple(parts))

    @property
    def variances(self) -> frozenset[str]:
        """Names of variables whose variances are compared; of a kernel that has a trace, the trace only."""
        if not self.has_variances:
            return frozenset()
        names = {x for part in self.parts for x in part.found.variances}
        whole = (FEATURE_KERNEL, GRADIENT_KERNEL, "tangent_kernel")
        return frozenset(x for x in names if x not in whole or f"{x}_trace" not in names)

    def largest_slope(self) -> float:
        """Return the largest relative shift ``|c/value|`` of a loss, whose mean over networks is value + c/N.

        If no shift of a loss is derived, the typical number SLOPE is returned.
        """
        ratios = [
            float(np.max(np.abs(part.factor * part.found.shifts[name] / part.found.values[name])))
            for part in self.parts
            for name in LOSSES
            if name in part.found.shifts and (part.found.values[name] != 0).all()
        ]
        return max(ratios, default=SLOPE)

    def entry(self, x: Comparison, end: str) -> DerivedNumber | None:
        """Return the derived correction of order 1/N of the compared quantity in ``x``, or None.

        ``end`` is VARIANCE for N times the variance over networks, SHIFT for N times the shift of the mean.
        """
        q = x.quantity
        if q.name == MEAN_LOSS:
            return self._mean_loss(x) if end == SHIFT else None
        dims = x.theory[q.name].isel(q.at).dims
        entries = (part.entry(q.name, end, q.at, dims) for part in self.parts)
        return next((y for y in entries if y is not None), None)

    def _mean_loss(self, x: Comparison) -> DerivedNumber | None:
        """Return N times the shift of the loss of the mean error, ``sum_a <Delta_a>^2/P``, or None.

        It is ``2 sum_a Delta_a shift_a/P``, with the shifts of the errors Delta_a of P samples; None if these
        are not derived.
        """
        if "error" not in x.theory:
            return None
        error = x.theory["error"].isel(x.quantity.at)
        error_shift = self.entry(replace(x, quantity=replace(x.quantity, name="error")), SHIFT)
        if error_shift is None:
            return None
        weights = 2 * error.to_numpy() / x.theory.sizes["sample"]
        sizes = np.abs(weights)
        return replace(
            error_shift,
            value=np.asarray(np.sum(weights * error_shift.value)),
            stderr=np.asarray(np.sum(sizes * error_shift.stderr)),
            systematic=np.asarray(np.sum(sizes * error_shift.systematic)),
        )

    def amended(self, rows: Sequence[Comparison]) -> list[Comparison]:
        """Return comparisons of theory and networks that use the derived corrections.

        In each of ``rows`` the fitted slope in 1/N is replaced by the derived shift if that lowers the
        standard error. Comparisons of measured with derived variances follow.
        """
        less_shift = [self._less_shift(x) for x in rows]
        variances = [self._variance(x) for x in rows if self.has_variances and _is_single(x)]
        return [*less_shift, *(x for x in variances if x is not None)]

    def _less_shift(self, x: Comparison) -> Comparison:
        """Return a comparison with the derived shift subtracted from networks, if that lowers its noise.

        With the shift c, ``value(N) - c/N = value + d/N^2``, and d is fitted. An error e of c changes the fit
        at ``1/N = 0`` by e/(3 N) for networks of widths N and 2 N, so that the comparison tests c, too. The
        noise is the standard error of the difference of networks and theory. ``x`` is returned unchanged
        without a derived shift, or if the noise is not lower.
        """
        shift, q = self.entry(x, SHIFT), x.quantity
        if shift is None:
            return x
        widths = np.array(widths_of(x.networks), dtype=float)
        entries = [_of_networks(d, q) for d in x.networks]
        moved = [replace(y, value=y.value - shift.value / n) for y, n in zip(entries, widths, strict=True)]
        reach = float(np.sum(line_of(x.networks, 2).intercept / widths))
        theory = _sum(_of_theory(x.theory, q), shift.scaled(reach), _of_theory(x.theory, q).value)
        derived_quantity = replace(q, at={}, size=size_of(x.theory, q), order=2, slope=shift.value)
        derived = _comparison(derived_quantity, theory, moved, x)
        return derived if _noise(derived) < _noise(x) else x

    def _variance(self, x: Comparison) -> Comparison | None:
        """Return a comparison of measured with derived variances over networks, for the quantity of ``x``.

        Both are N times the variance. The measured ones are fitted by ``V + b/N``, and V is compared with the
        derived number. The relative standard error is that of the jackknife. It is multiplied by the measured
        or the derived variance, whichever is larger, because an estimate that is low by chance has a low
        standard error, too. None if the variance is not derived, or if fewer than two widths have enough
        networks.
        """
        variance, q = self.entry(x, VARIANCE), x.quantity
        if variance is None:
            return None
        name = q.name + VARIANCE
        networks = [d for d in x.networks if name in d and int(d.attrs["seeds"]) >= FEWEST]
        if len(networks) < 2:
            return None
        moved = []
        for d in networks:
            y = _of_networks(d, replace(q, name=name))
            size = np.maximum(y.value, variance.value)
            relative = np.divide(y.stderr, y.value, out=np.zeros_like(y.stderr), where=y.value > 0)
            moved.append(replace(y, stderr=relative * size))
        variance_quantity = replace(q, label=f"{N_VAR} {q.label}", at={}, scale=q.scale**2, size=None)
        return _comparison(variance_quantity, variance, moved, replace(x, networks=networks))


def _is_single(x: Comparison) -> bool:
    """Return whether the variance over networks of a compared quantity is compared, too.

    It is not compared for kernels of all pairs of samples, whose trace is compared instead, and for the loss
    of the mean error.
    """
    name = x.quantity.name
    whole = name in (FEATURE_KERNEL, GRADIENT_KERNEL) and f"{name}_trace" in x.theory
    return name != MEAN_LOSS and not whole


def _of_networks(d: xr.Dataset, q: ComparedQuantity) -> DerivedNumber:
    """Return the mean over networks of a compared quantity, with its standard error.

    ``d`` is the result of networks of one width, ``q`` names the variable and its entries.
    """
    value, stderr = (entry_of(d, q.name + x, q.at).to_numpy() for x in ("", STDERR))
    return DerivedNumber(value, stderr, np.zeros_like(value), degrees_of(d, q.name))


def _of_theory(theory: xr.Dataset, q: ComparedQuantity) -> DerivedNumber:
    """Return the value of a compared quantity in the solution ``theory``, with its standard error and bias.

    ``q`` names the variable and its entries.
    """
    value = theory[q.name].isel(q.at).to_numpy()
    bias = theory[q.name].copy(data=systematic(theory, q.name)).isel(q.at).to_numpy()
    if q.name + STDERR not in theory:
        return DerivedNumber(value, np.zeros_like(value), bias, 1)
    stderr = theory[q.name + STDERR].isel(q.at).to_numpy()
    return DerivedNumber(value, stderr, bias, int(freedom_of(theory, q.name)))


def _sum(one: DerivedNumber, two: DerivedNumber, value: Array) -> DerivedNumber:
    """Return ``value`` with the joint errors of two independent numbers, of which it is a combination.

    Variances are added, and so are bounds of biases; the degrees of freedom follow from Welch's formula, and
    are the fewest of all entries.
    """
    parts = one.stderr**2, two.stderr**2
    variance = parts[0] + parts[1]
    spread = parts[0] ** 2 / one.dof + parts[1] ** 2 / two.dof
    dof = np.divide(variance**2, spread, out=np.full_like(variance, np.inf), where=spread > 0)
    least = max(1, int(min(dof.min(initial=np.inf), 1e9)))
    return DerivedNumber(value, np.sqrt(variance), one.systematic + two.systematic, least)


def _comparison(
    q: ComparedQuantity, theory: DerivedNumber, networks: Sequence[DerivedNumber], x: Comparison
) -> Comparison:
    """Return the comparison of the number ``theory`` with the numbers ``networks``, one for each width.

    ``q`` describes the quantity. Widths and numbers of networks are copied from the comparison ``x``.
    """
    ends = ("", STDERR, SYSTEMATIC)
    parts = (theory.value, theory.stderr, theory.systematic)
    arrays = {f"{q.name}{end}": _array(y, theory.dof) for end, y in zip(ends, parts, strict=True)}
    data = []
    for y, d in zip(networks, x.networks, strict=True):
        variables = {q.name: _array(y.value, y.dof), q.name + STDERR: _array(y.stderr, y.dof)}
        data.append(xr.Dataset(variables, attrs={k: d.attrs[k] for k in ("width", "seeds")}))
    return Comparison(q, xr.Dataset(arrays), data)


def _array(x: Array, dof: int) -> xr.DataArray:
    """Return an array as a data array with the dimensions ``axis_0``, ``axis_1``, ...

    ``dof``, the degrees of freedom of its standard error, is stored as an attribute.
    """
    return xr.DataArray(x, dims=[f"axis_{k}" for k in range(np.ndim(x))], attrs={DOF: dof})


def _noise(x: Comparison) -> float:
    """Return the root mean square standard error of a comparison of theory and networks.

    The error is that of the difference at 1/N = 0, averaged over all entries of the compared quantity.
    """
    q = x.quantity
    variance = np.zeros(())
    for weight, d in zip(line_of(x.networks, q.order).intercept, x.networks, strict=True):
        variance = variance + weight**2 * _of_networks(d, q).stderr ** 2
    variance = variance + _of_theory(x.theory, q).stderr ** 2
    return float(np.sqrt(np.mean(variance)))


# -- networks to train ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class UsedCorrections:
    """Plan of the networks to train, with the plan and values of corrections that they are compared with.

    ``networks`` holds widths and numbers of networks, ``plan`` up to which times corrections of order 1/N
    are derived, ``found`` the derived corrections, which have no parts if none was derived. ``failed`` is
    the reason why none was derived although it was planned, or "".
    """

    networks: NetworkPlan
    plan: CorrectionsPlan
    found: DerivedCorrections
    failed: str = ""


def prepare(problem: Problem, theory: xr.Dataset, effort: Effort) -> UsedCorrections:
    """Return which networks are to be trained, and the derived corrections of order 1/N for the comparison.

    Variances over networks are compared only if these networks would show a relative error of one half
    (SEEN). ``theory`` is the solution of the problem. If deriving the corrections fails, slopes in 1/N are
    fitted, and the reason is in ``failed``.
    """
    places = compared_times(theory, edge_of_stability(problem, theory))
    plan = plan_corrections(problem, places, effort, keeps_pairs(problem, effort))
    try:
        derived = DerivedCorrections.of(replace(plan, varied=None))
        slope = derived.largest_slope() if plan.has_slopes else None
        networks = plan_of(problem, plan.left_of(effort), slope)
        has_variances = variance_tolerance(networks) <= SEEN
        if plan.varied is not None and has_variances:
            derived = DerivedCorrections(
                (*derived.parts, *DerivedCorrections.of(replace(plan, shifted=None)).parts)
            )
        elif plan.varied is not None:
            plan = replace(plan, varied=None)
            networks = plan_of(problem, plan.left_of(effort), slope)
        return UsedCorrections(networks, plan, replace(derived, has_variances=has_variances))
    except (SpecError, NumericsError) as error:
        networks = plan_of(problem, plan.left_of(effort))
        return UsedCorrections(networks, plan, DerivedCorrections(), str(error))


def variance_tolerance(networks: NetworkPlan) -> float:
    """Return the smallest relative error of a derived variance that the planned networks would show.

    The variance is N times that over networks, extrapolated to 1/N = 0. Results of single networks are taken
    to be Gaussian, and NUMBERS variances are tested together. Infinite if fewer than two widths have enough
    networks.

    >>> variance_tolerance(NetworkPlan((64, 128), (4000, 4000))) < 0.3
    True
    """
    enough = [(n, k) for n, k in zip(networks.widths, networks.seeds, strict=True) if k >= FEWEST]
    if len(enough) < 2:
        return float("inf")
    widths, seeds = zip(*enough, strict=True)
    weights = Line.through(widths, seeds).intercept
    return float(bound(NUMBERS, LEVEL) * np.sqrt((weights**2 * 2 / np.array(seeds)).sum()))


# -- notes ----------------------------------------------------------------------------------------------


def describe(used: UsedCorrections, networks: NetworkPlan, checks: Sequence[Check]) -> str:
    """Return the notes on the words "shift", "fit" and "N Var" in the table of checks.

    They state by which method shifts and variances of order 1/N were derived, and the reason if they were
    not.  ``networks`` is the plan of the networks that were trained, ``checks`` are the rows of the table.
    """
    plan, derived = used.plan, used.found
    if not derived.parts:
        return (
            "fit: slopes in 1/N are fitted, and variances are not compared. No corrections of order 1/N are\n"
            f"derived: {used.failed or plan.reason}"
        )
    words = []
    if plan.shifted is not None:
        words.append(
            f"shift: the slope is derived ({plan.shifted.method.name}): value(N) - shift/N = value + c/N^2 "
            "with a fitted c."
        )
    if derived.has_variances:
        how = derived.parts[-1].method
        words.append(
            "N Var: N times the variance over networks, extrapolated to 1/N = 0; its expected value is "
            f"derived ({how}){_seen(checks)}."
        )
    else:
        words.append(
            f"variances: not compared, because these networks ({networks}) would not show\nan error of "
            f"{SEEN:.0%}."
        )
    if plan.reason:
        words.append(f"fit: a fitted slope in 1/N, because the derived one is not available: {plan.reason}")
    return "\n".join(words)


def _seen(checks: Sequence[Check]) -> str:
    """Return, as text, how wrong a derived variance must be for its check to fail: smallest to largest.

    The text begins with a semicolon, to follow another phrase. It is empty if no check compares variances.
    """
    variance_checks = [
        x for x in checks if x.name.startswith(N_VAR) and x.error is not None and x.expected != 0
    ]
    reach = [x.allowed / abs(x.expected) for x in variance_checks]
    return f"; a relative error of {min(reach):.0%} to {max(reach):.0%} would fail" if reach else ""
