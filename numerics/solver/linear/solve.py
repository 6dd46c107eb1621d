"""Solution of problems with a linear theory: reduction, march, and variables of the result.

A flow is marched on ever finer grids, by an explicit integrator
(:class:`~numerics.solver.refine.AdamsBashforth`), or by the trapezoidal rule
(:class:`~numerics.solver.refine.Trapezoidal`) on fixed samples with noise and on modes of the data
(:func:`implicit_in_modes`). If the error jumps in the output (hinge) a ramp replaces the jump, and the
solutions on several grids are extrapolated to a ramp of zero width. On isotropic data fields respond within a
step, so that the trapezoidal rule would be of first order, and the explicit one is used.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol

from derive.program import TrainedMatrix, gamma0
from numerics.errors import Diverged, require_memory
from numerics.experiment.problem import Problem
from numerics.experiment.theory import (
    RISE,
    Reduction,
    error_jumps,
)
from numerics.names import (
    ERROR,
    OUTPUT,
)
from numerics.progress import Progress
from numerics.results import LOSSES, SYSTEMATIC
from numerics.results.predictions import (
    equal_times,
    of_training,
    size_of,
    split,
    watched,
)
from numerics.solver.grid import TimeGrid, is_noisy
from numerics.solver.linear.march import March, march, planned
from numerics.solver.linear.reduction import REDUCTIONS, Lowered, NamedArrays, arrays_on, reduced
from numerics.solver.linear.rows import RESOLVED, Rows
from numerics.solver.linear.variables import LOSS, Variables, two_times
from numerics.solver.method import KeptKernels
from numerics.solver.refine import AdamsBashforth, Attempt, Trapezoidal, refine, size_of_largest

Array = NDArray[np.float64]

KERNELS = 1e-5
"""Smallest tolerance of kernels: they change even after all errors have vanished."""

ROUGH, WIDER, PASSING = 1e-3, 4.0, 0.03
"""Smallest tolerance of a flow whose error jumps; ratio of the width of the ramp that replaces a jump to the
largest change of an output in a step; largest width, relative to the outputs, while an output passes through
it.
"""

EDGE = 1e-9
"""Difference of an error from its value on one side of a jump, divided by the height of the jump, up to which
the difference counts as rounding."""

COARSEST, COARSEST_GRADED = 16, 48
"""Numbers of steps of the coarsest grid of the trapezoidal rule: equal ones, and ones that grow with time."""

ROOM = 2.0**31
"""Largest number of bytes of kernels of all pairs of samples that ``auto`` keeps."""

ROOM_TRACE = 2.0**29
"""Largest number of bytes of one response of all layers for which ``auto`` keeps traces.

Traces need ten times as much.
"""


def solved(
    problem: Problem,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    *,
    reductions: tuple[Reduction, ...] | None = None,
) -> tuple[NamedArrays, dict[str, Any]]:
    """Return the variables of a result for a linear theory at integer depth, and the notes.

    Steps are solved exactly. A flow is refined until the estimated error of its values at all output times
    is at most ``solver.rtol``, relative to their largest values. For fixed samples these values are the
    error Delta and the kernel G, for G with a tolerance of at least KERNELS, which is the note
    ``kernel_error``. If the error jumps they are the output f and G, with a tolerance of at least ROUGH. For
    random data they are the test loss, with the trapezoidal rule relative to its value at each time.

    ``kernels`` of fixed samples: ``full`` keeps Phi, A, B and the tangent kernel for all pairs of samples (A
    and B only if they can be computed), ``trace`` the traces of Phi and the tangent kernel over samples,
    ``none`` neither; G is always kept. ``auto`` is the largest choice within ROOM and ROOM_TRACE bytes.
    Results on random data contain those of the correlations C_v, C_Delta, C_h0, C_h and C_g that the theory
    has, and for a rule in steps those of the responses R_hr, R_gu, R_Delta, R_vu and R_h0r0. If the data have
    no modes and ``kernels`` is not ``none``, they also contain the parts of the test loss.

    ``reductions`` (REDUCTIONS by default) are applied as far as possible; they change only the time of a
    solution. Raises :class:`~numerics.errors.SpecError` if two-time arrays need too much memory, and the
    errors of the march.
    """
    if not problem.seen:
        kernels = "none" if kernels == "none" else "full"
        _refuse_too_many_modes(problem)
    else:
        kernels = fitting(problem) if kernels == "auto" else kernels
    lowered = reduced(problem, REDUCTIONS if reductions is None else reductions)
    if problem.seen:
        _refuse_too_large(problem, lowered, kernels)
    run = _Run(problem, lowered, kernels, progress)
    values, notes = run.flow() if problem.flow else (run.steps(), {})
    return values, {"method": "linear causal march", "kernels": kernels if problem.seen else None, **notes}


def fitting(problem: Problem) -> KeptKernels:
    """Return the choice of two-time kernels that "auto" stands for, from the estimated size of arrays.

    It is "full" if kernels of all pairs of samples take at most ROOM bytes, otherwise "trace" if one response
    of all layers takes at most ROOM_TRACE bytes, and "none" if it takes more.
    """
    times, samples, depth = len(problem.times), problem.sample_count, problem.depth or 1
    if 8.0 * (depth + 1) * (samples * times) ** 2 <= ROOM:
        return "full"
    return "trace" if 8.0 * depth * samples * times**2 <= ROOM_TRACE else "none"


def numbers_held(problem: Problem, lowered: Lowered, kernels: KeptKernels) -> int:
    """Return how many numbers a solution on fixed samples stores for each pair of times (t, s).

    They are those of the two-time functions of the march, and of functions of samples that are computed
    afterwards; kernels of all pairs of samples are not counted.
    """
    plan = planned(lowered.table, tuple(dict.fromkeys(Variables(problem, lowered, kernels).wanted())))
    rows = Rows(plan.table, 1, problem.numbers, {})
    pairs = {tuple(sorted(x, key=str)) for x in plan.rows}  # <x y> and <y x> are stored once
    march_itself = sum(rows.sizes[i] * rows.widths[k] for i, k in plan.responses)
    march_itself += sum(rows.sizes[i] * rows.sizes[j] for i, j in pairs)
    return march_itself + (kernels != "none") * 2 * (problem.depth or 1) * problem.sample_count


def _refuse_too_large(problem: Problem, lowered: Lowered, kernels: KeptKernels) -> None:
    """Raise SpecError before a run on fixed samples if its two-time arrays are larger than the memory."""
    times, samples, depth = len(problem.times), problem.sample_count, problem.depth or 1
    size = 8 * numbers_held(problem, lowered, kernels) * times**2
    said = problem.key_and_value("training.points" if problem.flow else "training.steps")
    require_memory(size, said, "for the two-time functions of the theory", "fewer times, or fewer samples")
    if kernels == "full":
        size, what = (
            8 * (depth + 1) * (samples * times) ** 2,
            "for the kernels of all pairs of samples and times",
        )
        require_memory(size, ("--kernels", kernels), what, "trace or none")


def responses_of_modes(problem: Problem, lowered: Lowered) -> int:
    """Return how many numbers the responses of modes of the data store for each pair of times.

    The result is zero if the data have no modes, or if the theory contains no responses.
    """
    if problem.spectrum is None or not problem.discrete.responses():
        return 0
    rows = Rows(lowered.table, 1, problem.numbers, {})
    members = max(rows.sizes[r.field] for r in lowered.table.fields if r.unit)
    sources = sum(rows.widths[n] for n in lowered.table.source_indices if n[1] is None)
    # the factor 2, because the fields v and h0 of each mode have responses to each of these sources
    return 2 * members * sources * len(problem.spectrum.counts)


def _refuse_too_many_modes(problem: Problem) -> None:
    """Raise SpecError if the responses of all modes of the data, at all pairs of steps, exceed the memory.

    Flows are not tested here.
    """
    if problem.spectrum is None or problem.flow:
        return
    size = 8 * responses_of_modes(problem, reduced(problem, REDUCTIONS)) * len(problem.times) ** 2
    said = problem.key_and_value("training.steps")
    require_memory(size, said, "for the responses of modes", "fewer steps, or fewer modes")


def implicit_in_modes(problem: Problem) -> bool:
    """Return whether a flow of modes of the data is marched by the trapezoidal rule.

    That is so if all matrices of the program are trained. A program with a matrix of data, for example, uses
    the explicit rule.
    """
    return all(isinstance(m, TrainedMatrix) for m in problem.program.matrices)


class _Run:
    """Solution of one problem with a linear theory: one march in steps, or one for each grid of a flow."""

    def __init__(
        self, problem: Problem, lowered: Lowered, kernels: KeptKernels, progress: Progress | None
    ) -> None:
        self.problem, self.table, self.progress = problem, lowered.table, progress
        self.variables = Variables(problem, lowered, kernels)
        self.fixed, self.spectrum = bool(problem.seen), problem.spectrum
        self.jumps = problem.flow and error_jumps(problem.program)
        self.constants: dict[Symbol, float] = dict(problem.numbers)

    def steps(self) -> NamedArrays:
        """Return the variables of a rule in steps, which one march gives exactly."""
        count = len(self.problem.times)
        return self.variables.values(self.march(count, arrays_on(self.problem, None)), np.arange(count), None)

    def flow(self) -> tuple[NamedArrays, dict[str, Any]]:
        """Return the variables of a flow, with notes on its accuracy."""
        times, rtol = self.problem.times, self.problem.solver.rtol
        if self.jumps:
            return self.widened(AdamsBashforth(times, max(rtol, ROUGH), jumps=True))
        implicit = self.fixed and is_noisy(self.problem.program.rule)
        # If all matrices are trained, fields of modes do not respond to sources of the same step, and the
        # trapezoidal rule (implicit) may be used for them. A matrix of data excludes it.
        if self.spectrum is not None:
            implicit = implicit_in_modes(self.problem)
        if not implicit:
            last = refine(AdamsBashforth(times, rtol), self.marched, change=self.relative_change)
            values = self.variables.values(last.found, last.grid.outputs, last.grid)
            return values, last.notes | self.kernel_error()
        tau = None
        if self.spectrum is not None:
            # Steps grow at times beyond `tau`, the inverse of an estimate of the fastest rate. The estimate
            # has the factor max(1, gamma0), because features change at a rate of order gamma0. Converged
            # results do not depend on the estimate.
            fastest = max(float(np.abs(a).max()) for a in self.spectrum.attributes.values())
            tau = 1 / ((self.variables.depth + 1) * fastest * max(1.0, self.constants.get(gamma0, 1.0)))
        even = Trapezoidal(times, rtol, first=COARSEST if tau is None else COARSEST_GRADED, tau=tau)
        change = _relative if self.spectrum is not None else self.relative_change
        converged = refine(even, partial(self.implicit, even), change=change)
        values = self.assembled(converged.extrapolated(partial(self.read, even)))
        return values, converged.notes | self.kernel_error()

    def kernel_error(self) -> dict[str, Any]:
        """Return the note "kernel_error" of a flow without jumps: the relative tolerance of its kernels.

        The dictionary is empty for random data.
        """
        return {"kernel_error": max(self.problem.solver.rtol, KERNELS)} if self.fixed else {}

    def widened(self, sequence: AdamsBashforth) -> tuple[NamedArrays, dict[str, Any]]:
        """Return variables and notes of a flow whose error is a discontinuous function of the output.

        The jump is replaced by a ramp of width WIDER times the largest change of an output in a step.
        Outputs come to rest at a jump, with an error between its values on both sides. A ramp has such errors
        and is stable. The truncation error due to the ramp falls in proportion to the step, so that results
        on several grids are extrapolated to step zero.

        The extrapolation is wrong at times at which an output passes through a jump. Outputs and errors at
        these times are those of the last grid. Its ramp is at most PASSING times the largest output wide, or
        the tolerance of the flow times the largest output if that is larger.
        The variables ``*_systematic`` bound the bias there: for outputs it is the width of the ramp, for
        losses this width times the number of outputs, and for the errors of the outputs that pass it is the
        height of the jump. They are zero at other times.
        """
        self.constants[RISE] = 1.0
        for _, grid in sequence.grids():
            with suppress(Diverged):
                f = self.march_on(grid).scalars[OUTPUT].reshape(len(grid.nodes), -1)
                break
        speed = float(np.max(np.abs(np.diff(f, axis=0)) / np.diff(grid.nodes)[:, None]))

        passing_on_grids: list[NDArray[np.bool_]] = []

        def run(grid: TimeGrid) -> Attempt[tuple[March, TimeGrid, NDArray[np.bool_]]]:
            self.constants[RISE] = width = WIDER * grid.step * speed
            result = self.march_on(grid)
            passing, size = self.passing(result, grid, width), size_of_largest(result.scalars[OUTPUT])
            passing_on_grids.append(passing)
            is_too_wide = np.any(passing_on_grids[-2:]) and width > PASSING * size
            residual = width / size if is_too_wide else 0.0
            return Attempt(self.watched(result)[grid.outputs], (result, grid, passing), residual)

        converged = refine(sequence, run, change=self.relative_change)
        values = converged.extrapolated(lambda x: self.variables.of_samples(x[0], x[1].outputs, x[1]))
        last, grid, _ = converged.found
        passing = np.any([x[2] for _, x in converged.answers], axis=0)
        at = passing.reshape(len(passing), -1).any(axis=1)
        for name, scalar in ((OUTPUT, OUTPUT), ("error", ERROR)):
            values[name][at] = last.scalars[scalar][grid.outputs[at]]
        values = self.assembled(values)
        if at.any():
            width, jump = at * self.constants[RISE], np.abs(last.scalars[ERROR]).max()
            error = of_training("error", passing * jump, self.problem.seen, False, False)
            bias = {"error": error, **{x: width * self.problem.outputs for x in LOSSES}}
            for x in (name for name in (OUTPUT, "test_f") if name in values):
                bias[x] = width[(..., *[None] * (values[x].ndim - 1))] + 0 * values[x]
            values |= {name + SYSTEMATIC: x for name, x in bias.items() if name in values}
        return values, converged.notes

    def passing(self, result: March, grid: TimeGrid, width: float) -> NDArray[np.bool_]:
        """Return which outputs pass through a jump at output times, shape ``(times, samples[, outputs])``.

        These outputs have reached the jump within the last step, or they move fast: ``width |dDelta/dt| >
        speed |Delta|/3``, with Delta relative to the jump and ``speed`` the largest ``|df/dt|`` of the output
        f. In both cases they are further from their rest point than ROUGH times the largest output. The
        condition on the speed excludes outputs at rest at the jump, which move by less than the width while
        other outputs move by about one.
        """
        f, error = (result.scalars[x].reshape(len(grid.nodes), -1) for x in (OUTPUT, ERROR))
        steps = np.diff(grid.nodes)[:, None]
        speed = (np.abs(np.diff(f, axis=0)) / steps).max(axis=0)
        share = np.abs(error) / np.where(error.any(axis=0), np.abs(error).max(axis=0), 1.0)
        before, after = share[:-1], share[1:]
        rate = np.abs(np.diff(share, axis=0))
        has_arrived = (np.minimum(before, 1 - before) < EDGE) & (np.minimum(after, 1 - after) > EDGE)
        is_fast = 3 * width * rate > speed * steps * after
        is_moving = (has_arrived | is_fast) & (width * after > ROUGH * size_of_largest(f))
        at_nodes = np.concatenate([np.zeros_like(is_moving[:1]), is_moving])
        shape = result.scalars[ERROR].shape[1:]
        return np.asarray(at_nodes[grid.outputs].reshape(-1, *shape))

    def marched(self, grid: TimeGrid) -> Attempt[March]:
        """Return the solution of a flow on a time grid by the explicit rule.

        The result also holds, at the output times, the values by which solutions on two grids are compared to
        test convergence.
        """
        result = self.march_on(grid)
        return Attempt(self.watched(result)[grid.outputs], result)

    def implicit(self, even: Trapezoidal, grid: TimeGrid) -> Attempt[tuple[March, TimeGrid]]:
        """Return the solution of a flow on a time grid by the trapezoidal rule.

        It comes with the values by which convergence between grids is tested, at the output times; for modes
        they are the logarithm of the loss. ``even`` is the sequence of grids, which interpolates to the
        output times.
        """
        result = self.march_on(grid, self.problem.solver.rtol)
        seen = self.watched(result)
        watched = even.once(seen) if self.spectrum is None else even.log(seen)
        return Attempt(watched, (result, grid), result.residual)

    def read(self, even: Trapezoidal, solution: tuple[March, TimeGrid]) -> NamedArrays:
        """Return the variables of a solution by the trapezoidal rule, interpolated to the output times.

        For random data and a single output, the result also holds the logarithm of each correlation ``C_x``
        at equal times, under the name ``"C_x now"``.
        """
        result, grid = solution
        nodes = np.arange(len(grid.nodes))
        if self.fixed:
            values = self.variables.of_samples(result, nodes, grid)
            return {
                name: even.once(a) if name == OUTPUT else even.read(name, a) for name, a in values.items()
            }
        values = self.variables.values(result, nodes, grid)
        read = {name: even.read(name, a) for name, a in values.items()}
        for name, a in values.items():
            # Correlations of networks with one output have fewer than four axes. At equal times they are
            # positive, so that their logarithms can be interpolated.
            if name.startswith("C_") and a.ndim < 4:
                read[f"{name} now"] = even.log(np.einsum("...tt->t...", a))
        return read

    def assembled(self, extrapolated: NamedArrays) -> NamedArrays:
        """Return the variables of the result from extrapolated ones, with losses.

        Correlations at equal times are set to the exponentials of their logarithms.
        """
        if self.fixed:
            return split(self.problem, extrapolated)
        values = {name: a for name, a in extrapolated.items() if not name.endswith(" now")}
        for name in extrapolated.keys() - values.keys():
            whole, now = values[name.removesuffix(" now")], np.arange(len(extrapolated[name]))
            whole[..., now, now] = np.moveaxis(np.exp(extrapolated[name]), 0, -1)
        return values | self.variables.losses(values)

    def march_on(self, grid: TimeGrid, rtol: float | None = None) -> March:
        """Return the march on a time grid; ``rtol`` is given for the trapezoidal rule (iterated steps)."""
        implicit = None if rtol is None else max(1e-3 * rtol, 1e-11)
        return self.march(len(grid.nodes), arrays_on(self.problem, grid), implicit)

    def march(self, steps: int, data: dict[str, Array], implicit: float | None = None) -> March:
        """Return the march over so many ``steps`` with the arrays ``data``.

        If ``implicit`` is given, sums over the past include the present, and each step is iterated to this
        relative tolerance.
        """
        return march(
            self.table,
            steps=steps,
            constants=self.constants,
            data=data,
            wanted=tuple(dict.fromkeys(self.variables.wanted())),
            watched=() if self.fixed else (LOSS,),
            units=self.spectrum,
            implicit=implicit,
            progress=self.progress,
        )

    def watched(self, result: March) -> Array:
        """Return the values by which the convergence of a flow is tested, at all nodes.

        Of fixed samples they are errors (outputs if these jump), and G at equal times, which still changes
        with features after errors have vanished; of random data the test loss.
        """
        if not self.fixed:
            return equal_times(two_times(result, LOSS))
        seen = result.scalars[OUTPUT] if self.jumps else watched(self.problem, result.scalars)
        at = np.arange(len(seen))
        kernels = [result.tensor(self.variables.gradient(k))[at, :, at] for k in self.variables.layers]
        return np.concatenate([x.reshape(len(at), -1) for x in (seen, *kernels)], axis=1)

    def relative_change(self, old: Array, new: Array) -> float:
        """Return the largest relative change of watched values between two grids.

        For fixed samples, errors (outputs if errors jump) and G are each relative to their largest size, and
        the change of G is weighted less if ``solver.rtol`` is below KERNELS. For random data the change of
        the test loss is relative to its largest value.
        """
        if not self.fixed:
            return size_of_largest(new - old) / (size_of_largest(new) or 1.0)
        count = self.problem.sample_count * self.problem.outputs
        errors = new[:, :count].reshape(len(new), -1, self.problem.outputs)
        sizes = size_of(self.problem)(errors), size_of_largest(new[:, count:])
        error, kernels = np.split(np.abs(new - old), [count], axis=1)
        change = error, kernels * min(1.0, self.problem.solver.rtol / KERNELS)
        return max(float(x.max()) / (size or 1.0) for x, size in zip(change, sizes, strict=True))


def _relative(old: Array, new: Array) -> float:
    """Return the largest relative change of positive values between two solutions.

    ``old`` and ``new`` are the logarithms of the values, with time along the first axis. Each change of a
    value is divided by the old value plus RESOLVED times the old value at the first time, so that values far
    below the first one count less.
    """
    before, after = np.exp(old), np.exp(new)
    return float(np.max(np.abs(after - before) / (before + RESOLVED * before[0])))
