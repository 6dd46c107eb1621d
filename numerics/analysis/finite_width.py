"""Widths from which the limit of infinite width holds to one per cent, and below which order 1/N fails.

The input is N times variances over networks and N times shifts of their means, to leading order in 1/N
(:mod:`numerics.fluctuations`); the output is a width at each time.  `dmft limits finite-width` prints them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.errors import NotApplicable
from derive.scale.fluctuations import WidthValidity, width_validity
from numerics.analysis.limits import Finite
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.fluctuations.corrections import WidthCorrections
from numerics.fluctuations.finite_width import expanded_variables, largest_ratio
from numerics.names import C_FIELD, C_GRADIENT, FEATURE_KERNEL, GRADIENT_KERNEL
from numerics.progress import Progress
from numerics.results import LOSSES, SHIFT, VARIANCE

Array = NDArray[np.float64]

SHARE = 0.01
"""Relative error up to which the limit counts as right."""

SMALL = 1e-12
"""A loss or kernel is a rounding error up to this share of its largest value, and no width is given for it.

Variances are divided by squares of losses and kernels; there the share is that of the squares."""

KERNELS = ("tangent_kernel", FEATURE_KERNEL, GRADIENT_KERNEL, C_FIELD, C_GRADIENT)
"""Kernels by their names in results; for many samples results hold their traces instead."""


@dataclass(frozen=True)
class FiniteWidthLimit(Finite):
    """Widths at which corrections of order 1/N to the limit of infinite width are small, at each time.

    A width is the number of neurons of the widest hidden layer, or N itself for a program. Small means one
    per cent (SHARE) of the loss or kernel; a further width is that at which the expansion in 1/N fails.

    Attributes
    ----------
    time, loss
        Output times, and the loss at infinite width, ``(T,)``.
    name
        The loss: ``train_loss``, or ``test_loss`` of random data.
    loss_mean, kernel_mean
        Widths from which the mean over networks is right to SHARE, ``(T,)``; None if shifts are not known,
        and for kernels also if results hold no kernel.
    loss_network, kernel_network
        Widths from which one network is within SHARE of the limit (one standard deviation), ``(T,)``; None
        for kernels if results hold no kernel.
    failing
        Widths below which the leading order fails, ``(T,)``: there the standard deviation of the error
        relative to the error, ``sd(|Delta|)/|Delta|``, exceeds one.
    notes
        Attributes of the corrections, such as their method and standard errors.
    lazy
        Widths below which order 1/N fails in the lazy limit, in symbols; None if they are not derived.
    """

    time: Array
    name: str
    loss: Array
    loss_mean: Array | None
    loss_network: Array
    kernel_mean: Array | None
    kernel_network: Array | None
    failing: Array
    notes: dict[str, Any]
    lazy: WidthValidity | None = None

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions under which the widths hold at which corrections of order 1/N are small.

        Each is a sentence that begins with "derived:" or "assumed:".
        """
        basis = (
            "derived: variances and shifts are the leading order in 1/N of the path integral of the program",
            "assumed: higher orders in 1/N are small where the relative fluctuation of the error is",
        )
        return basis if self.lazy is None else (*basis, *self.lazy.conditions())

    @property
    def statements(self) -> tuple[str, ...]:
        """Conditions in symbols under which order 1/N fails in the lazy limit; empty if not derived."""
        return () if self.lazy is None else self.lazy.statements()

    def numbers(self) -> dict[str, Any]:
        """Return times, losses and widths over time, by name; null stands for a width that is not defined.

        A width is not defined where its loss is zero in the limit of infinite width, or where all kernels
        are; kernels that are zero beside others do not count. Widths for means over networks are null if
        shifts are not known, and widths for kernels are null if results hold no kernel.
        """
        columns = {
            "loss_mean_width": self.loss_mean,
            "loss_width": self.loss_network,
            "kernel_mean_width": self.kernel_mean,
            "kernel_width": self.kernel_network,
            "leading_order_width": self.failing,
        }
        return {
            "time": self.time.tolist(),
            self.name: self.loss.tolist(),
            "share": SHARE,
            **{key: None if x is None else _listed(x) for key, x in columns.items()},
            **{f"largest_{key}": _largest(x) for key, x in columns.items()},
            **self.notes,
            "lazy_limit": list(self.statements),
            "status": "ok",
        }


def finite_width_limit(
    source: Problem | Experiment | str | Path,
    *,
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> FiniteWidthLimit:
    """Return the widths from which the limit of infinite width holds to one per cent.

    Parameters
    ----------
    source : Problem, Experiment, str or Path
        Problem, experiment, or file of an experiment.
    progress : callable, optional
        Called with (step, total).
    say : callable, optional
        Called with a sentence before a run in steps that takes long; not for a flow.

    Returns
    -------
    FiniteWidthLimit
        Widths at each output time.

    Raises
    ------
    SpecError
        If the corrections cannot be computed, or the program states no loss.
    Diverged
        If the theory diverges.

    Examples
    --------
    >>> e = Experiment.from_dict({"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 2}},
    ...     kernel=[[1.0]], targets=[1.0])
    >>> found = finite_width_limit(e)
    >>> found.failing.round(3).tolist(), found.kernel_network.round().tolist()
    ([1.0, 1.088, 1.387], [20000.0, 19925.0, 19229.0])
    """
    problem = Problem.of(source)
    corrections, notes = expanded_variables(problem, "auto", progress, say)
    name = next((x for x in LOSSES if x in corrections.values and (x != "train_loss" or problem.seen)), None)
    if name is None:
        reason = "states no loss, from whose corrections at finite width the widths are computed"
        raise SpecError(*problem.key_and_value("training.loss"), reason, "a program with a loss")
    factor = largest_ratio(problem)
    loss, variance = corrections.values[name], factor * corrections.variances[name]
    kernels = _kernels(corrections)
    return FiniteWidthLimit(
        time=problem.held_times,
        name=name,
        loss=loss,
        loss_mean=_ratio(factor * np.abs(corrections.shifts[name]), SHARE * np.abs(loss))
        if corrections.shifts
        else None,
        loss_network=_ratio(variance, (SHARE * loss) ** 2),
        kernel_mean=_worst([factor * _mean(corrections, x) for x in kernels]) if corrections.shifts else None,
        kernel_network=_worst([factor * _network(corrections, x) for x in kernels]),
        failing=_ratio(variance, 4 * loss**2),
        notes={key: x for key, x in (notes | _sampled(corrections)).items() if x is not None},
        lazy=_lazy(problem),
    )


def _lazy(problem: Problem) -> WidthValidity | None:
    """Return the widths below which order 1/N fails in the lazy limit; None if they are not derived."""
    try:
        return width_validity(problem.program)
    except NotApplicable:
        return None


def _sampled(corrections: WidthCorrections) -> dict[str, Any]:
    """Return the largest relative standard error of sampled variances, and that of sampled shifts.

    They are called ``variance_error`` and ``shift_error``, are relative to the largest variance or shift of
    the same variable, and are left out where corrections are exact.
    """
    ends = {VARIANCE: corrections.variances, SHIFT: corrections.shifts}
    errors: dict[str, Any] = {}
    for end, values in ends.items():
        known = {x: corrections.errors[x + end] for x in values if x + end in corrections.errors}
        relative = [np.max(e) / (np.abs(values[x]).max(initial=0.0) or 1.0) for x, e in known.items()]
        if relative:
            errors[f"{end[1:]}_error"] = float(max(relative))
    return errors


def _kernels(corrections: WidthCorrections) -> list[str]:
    """Return the names of the kernels, or else of their traces, for which corrections are given."""
    names = [x if x in corrections.values else f"{x}_trace" for x in KERNELS]
    return [x for x in names if x in corrections.values]


def _by_layer(dims: tuple[str, ...], values: Array) -> Array:
    """Return an array in the shape (layers, times, entries), where entries counts all other dimensions.

    ``dims`` names its dimensions; without layers the first length is one.
    """
    order = sorted(range(len(dims)), key=lambda k: {"layer": 0, "time": 1}.get(dims[k], 2))
    moved = values.transpose(order)
    moved = moved if "layer" in dims else moved[None]
    return np.asarray(moved.reshape(*moved.shape[:2], -1))


def _size(corrections: WidthCorrections, name: str) -> Array:
    """Return the sum of the squared entries of a kernel in the limit of infinite width.

    The shape is (layers, times).
    """
    return np.asarray((_by_layer(corrections.dims[name], corrections.values[name]) ** 2).sum(axis=2))


def _network(corrections: WidthCorrections, name: str) -> Array:
    """Return the N, at each time (T,), from which a kernel of one network is within SHARE of the limit.

    The difference is one standard deviation in the norm of all entries; of several layers, the largest N
    counts. A layer whose kernel is zero does not count; the N is nan where all of them are zero.
    """
    variance = _by_layer(corrections.dims[name], corrections.variances[name]).sum(axis=2)
    return _largest_defined(_ratio(variance, SHARE**2 * _size(corrections, name)))


def _mean(corrections: WidthCorrections, name: str) -> Array:
    """Return the N, at each time (T,), from which a kernel's mean over networks is within SHARE of the limit.

    The difference from the limit is taken in the norm of all entries; of several layers, the largest N
    counts. A layer whose kernel is zero does not count; the N is nan where all of them are zero.
    """
    shift = (_by_layer(corrections.dims[name], corrections.shifts[name]) ** 2).sum(axis=2)
    return _largest_defined(_ratio(np.sqrt(shift), SHARE * np.sqrt(_size(corrections, name))))


def _ratio(number: Array, limit: Array) -> Array:
    """Return ``number / limit`` entry by entry; nan where ``limit`` is zero or a rounding error.

    A rounding error is at most SMALL times the largest entry of ``limit``.
    """
    known = limit > SMALL * limit.max(initial=0.0)
    return np.where(known, number / np.where(known, limit, 1.0), np.nan)


def _worst(widths: list[Array]) -> Array | None:
    """Return at each time the largest of several widths, such as those of different kernels.

    Those that are nan do not count. The result is nan where all of them are, and None for an empty list.
    """
    return _largest_defined(np.array(widths)) if widths else None


def _largest_defined(widths: Array) -> Array:
    """Return the largest along the first axis of the numbers that are not nan; nan where all of them are."""
    return np.asarray(np.fmax.reduce(widths, axis=0))


def _listed(numbers: Array) -> list[float | None]:
    """Return numbers as a list, None in place of those that are not finite."""
    return [float(v) if np.isfinite(v) else None for v in numbers]


def _largest(widths: Array | None) -> float | None:
    """Return the largest finite width over time; None if ``widths`` is None or holds no finite number."""
    known = np.zeros(0) if widths is None else widths[np.isfinite(widths)]
    return float(known.max()) if len(known) else None
