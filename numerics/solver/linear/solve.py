"""Solve a problem whose theory is linear: reduce the theory, march it, label what was found.

The order parameters of a theory decide which variables a result has: errors and kernels of fixed samples,
correlations and responses of random data.  A flow is marched as an integrator sees it, on ever finer grids:
an explicit one
(:class:`~numerics.solver.refine.AdamsBashforth`), or the trapezoidal rule
(:class:`~numerics.solver.refine.Trapezoidal`) on fixed samples with noise and on modes.  Where the error
jumps in the output (hinge) a ramp stands for the jump, and grids are extrapolated to none.  On isotropic
data, where fields answer within a step, the trapezoidal rule is of first order only, and not taken.
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
"""Smallest relative change at which kernels count as settled; vanished errors no longer test them."""

ROUGH, WIDER, PASSING = 1e-3, 4.0, 0.03
"""Smallest relative change at which a flow with jumps counts as settled; the width of a jump over what
outputs move in a step, and at most, over the outputs, where one is on its way through it.
"""

EDGE = 1e-9
"""The share of a jump that is rounding."""

COARSEST, COARSEST_GRADED = 16, 48
"""Steps of the coarsest grid of the trapezoidal rule: even ones, and such that grow with the time."""

ROOM = 2.0**31
"""Bytes up to which ``auto`` keeps two-time kernels of all pairs of samples."""

ROOM_TRACE = 2.0**29
"""Bytes of one response of all layers up to which ``auto`` keeps traces; making them takes ten times that."""


def solved(
    problem: Problem,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    *,
    reductions: tuple[Reduction, ...] | None = None,
) -> tuple[NamedArrays, dict[str, Any]]:
    """The contract's variables of a linear theory at integer depth, and what to report.

    Steps are solved exactly.  A flow takes ever shorter steps until Delta and G (of random data the test
    loss; where the error jumps f and G, to ROUGH at best) have settled to ``solver.rtol`` at every output
    time, relative to the largest; G to KERNELS at best, as ``kernel_error`` says.  ``kernels``, of fixed
    samples: ``full`` keeps Phi, A, B and the tangent kernel for all pairs of samples, ``trace`` the sample
    traces of Phi and the tangent kernel, ``none`` neither; ``auto`` is the most of these that is small (ROOM,
    ROOM_TRACE).  On isotropic data every correlation and response of the theory is kept, and, unless
    ``kernels`` is ``none``, the parts of the test loss.

    ``reductions`` (REDUCTIONS by default) are applied as far as the theory has the form for them; they change
    nothing but the time it takes.  Raises :class:`~numerics.errors.SpecError` when ``full`` fits in no
    memory, and what marches raise.
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
    """Return the default of ``kernels``: the most two-time kernels that are small enough to keep."""
    times, samples, depth = len(problem.times), problem.sample_count, problem.depth or 1
    if 8.0 * (depth + 1) * (samples * times) ** 2 <= ROOM:
        return "full"
    return "trace" if 8.0 * depth * samples * times**2 <= ROOM_TRACE else "none"


def numbers_held(problem: Problem, lowered: Lowered, kernels: KeptKernels) -> int:
    """How many numbers a solution on fixed samples holds for each pair of times, but kernels of all pairs of
    samples: two-time functions of the march, and those of samples that are found afterwards.
    """
    plan = planned(lowered.table, tuple(dict.fromkeys(Variables(problem, lowered, kernels).wanted())))
    rows = Rows(plan.table, 1, problem.numbers, {})
    pairs = {tuple(sorted(x, key=str)) for x in plan.rows}  # each is held one way round
    march_itself = sum(rows.sizes[i] * rows.widths[k] for i, k in plan.responses)
    march_itself += sum(rows.sizes[i] * rows.sizes[j] for i, j in pairs)
    return march_itself + (kernels != "none") * 2 * (problem.depth or 1) * problem.sample_count


def _refuse_too_large(problem: Problem, lowered: Lowered, kernels: KeptKernels) -> None:
    """Raise SpecError for two-time arrays that are larger than the memory, before anything runs."""
    times, samples, depth = len(problem.times), problem.sample_count, problem.depth or 1
    size = 8 * numbers_held(problem, lowered, kernels) * times**2
    said = problem.said("training.points" if problem.flow else "training.steps")
    require_memory(size, said, "for the two-time functions of the theory", "fewer times, or fewer samples")
    if kernels == "full":
        size, what = (
            8 * (depth + 1) * (samples * times) ** 2,
            "for the kernels of all pairs of samples and times",
        )
        require_memory(size, ("--kernels", kernels), what, "trace or none")


def responses_of_modes(problem: Problem, lowered: Lowered) -> int:
    """How many numbers the responses of modes hold for each pair of times, which finite sizes need."""
    if problem.spectrum is None or not problem.discrete.responses():
        return 0
    sources = len({n for n in lowered.table.source_indices if n[1] is None})
    return 2 * sources * len(problem.spectrum.counts)  # of v and h0 to each source


def _refuse_too_many_modes(problem: Problem) -> None:
    """Raise SpecError for responses of modes that are larger than the memory."""
    if problem.spectrum is None or problem.flow:
        return
    size = 8 * responses_of_modes(problem, reduced(problem, REDUCTIONS)) * len(problem.times) ** 2
    said = problem.said("training.steps")
    require_memory(size, said, "for the responses of modes", "fewer steps, or fewer modes")


def implicit_in_modes(problem: Problem) -> bool:
    """Whether a flow of modes is marched by the trapezoidal rule: none of its matrices is of data."""
    return all(isinstance(m, TrainedMatrix) for m in problem.program.matrices)


class _Run:
    """Marches of one problem on as many grids as its times need."""

    def __init__(
        self, problem: Problem, lowered: Lowered, kernels: KeptKernels, progress: Progress | None
    ) -> None:
        self.problem, self.table, self.progress = problem, lowered.table, progress
        self.variables = Variables(problem, lowered, kernels)
        self.fixed, self.spectrum = bool(problem.seen), problem.spectrum
        self.jumps = problem.flow and error_jumps(problem.program)
        self.constants: dict[Symbol, float] = dict(problem.numbers)

    def steps(self) -> NamedArrays:
        """Exact steps."""
        count = len(self.problem.times)
        return self.variables.values(self.march(count, arrays_on(self.problem, None)), np.arange(count), None)

    def flow(self) -> tuple[NamedArrays, dict[str, Any]]:
        """A flow, with what to report of its accuracy."""
        times, rtol = self.problem.times, self.problem.solver.rtol
        if self.jumps:
            return self.widened(AdamsBashforth(times, max(rtol, ROUGH), jumps=True))
        implicit = self.fixed and is_noisy(self.problem.program.rule)
        if self.spectrum is not None:  # fields of fixed samples answer within a step
            implicit = implicit_in_modes(self.problem)
        if not implicit:
            last = refine(AdamsBashforth(times, rtol), self.marched, change=self.moved)
            values = self.variables.values(last.found, last.grid.outputs, last.grid)
            return values, last.notes | self.kernel_error()
        tau = None
        if self.spectrum is not None:
            # some early time, on which no result depends; features move by gamma0 a time
            fastest = max(float(np.abs(a).max()) for a in self.spectrum.attributes.values())
            tau = 1 / ((self.variables.depth + 1) * fastest * max(1.0, self.constants.get(gamma0, 1.0)))
        even = Trapezoidal(times, rtol, first=COARSEST if tau is None else COARSEST_GRADED, tau=tau)
        change = _relative if self.spectrum is not None else self.moved
        found = refine(even, partial(self.implicit, even), change=change)
        return self.assembled(found.extrapolated(partial(self.read, even))), found.notes | self.kernel_error()

    def kernel_error(self) -> dict[str, Any]:
        """What kernels of fixed samples have settled to."""
        return {"kernel_error": max(self.problem.solver.rtol, KERNELS)} if self.fixed else {}

    def widened(self, clock: AdamsBashforth) -> tuple[NamedArrays, dict[str, Any]]:
        """A flow whose error jumps in the output: samples come to rest at a jump, where the error is what
        keeps them there, between its values on both sides.

        A jump as wide as WIDER times what outputs move in the longest step has such errors, and is stable;
        what it misses falls as the step, and grids are extrapolated.  An output on its way through a jump
        extrapolates smoothly too, as if it had always been there: at such times outputs are those of the last
        grid, whose jumps are no wider than PASSING, and ``*_systematic`` is that width.
        """
        self.constants[RISE] = 1.0
        for _, grid in clock.grids():
            with suppress(Diverged):
                f = self.on(grid).scalars[OUTPUT].reshape(len(grid.nodes), -1)
                break
        speed = float(np.max(np.abs(np.diff(f, axis=0)) / np.diff(grid.nodes)[:, None]))

        every: list[NDArray[np.bool_]] = []

        def run(grid: TimeGrid) -> Attempt[tuple[March, TimeGrid, NDArray[np.bool_]]]:
            self.constants[RISE] = width = WIDER * grid.step * speed
            found = self.on(grid)
            passing, size = self.passing(found, grid, width), size_of_largest(found.scalars[OUTPUT])
            every.append(passing)
            left = width / size if np.any(every[-2:]) and width > PASSING * size else 0.0
            return Attempt(self.watched(found)[grid.outputs], (found, grid, passing), left)

        found = refine(clock, run, change=self.moved)
        values = found.extrapolated(lambda x: self.variables.of_samples(x[0], x[1].outputs, x[1]))
        last, grid, _ = found.found
        passing = np.any([x[2] for _, x in found.answers], axis=0)
        at = passing.reshape(len(passing), -1).any(axis=1)
        for name, scalar in ((OUTPUT, OUTPUT), ("error", ERROR)):
            values[name][at] = last.scalars[scalar][grid.outputs[at]]
        values = self.assembled(values)
        if at.any():
            width, jump = at * self.constants[RISE], np.abs(last.scalars[ERROR]).max()
            error = of_training("error", passing * jump, self.problem.seen, False)
            missed = {"error": error, **{x: width * self.problem.outputs for x in LOSSES}}
            for x in (name for name in (OUTPUT, "test_f") if name in values):
                missed[x] = width[(..., *[None] * (values[x].ndim - 1))] + 0 * values[x]
            values |= {name + SYSTEMATIC: x for name, x in missed.items() if name in values}
        return values, found.notes

    def passing(self, found: March, grid: TimeGrid, width: float) -> NDArray[np.bool_]:
        """Which outputs are on their way through a jump at output times, ``(times, samples[, outputs])``.

        They are those that have come to it within the last step, or move as fast as their error Delta bids
        them, ``width |dDelta/dt| > speed |Delta|/3`` where Delta is relative to the jump, and have more than
        ROUGH left to go.  What rests there moves by less than the width while others move by one.
        """
        f, error = (found.scalars[x].reshape(len(grid.nodes), -1) for x in (OUTPUT, ERROR))
        steps = np.diff(grid.nodes)[:, None]
        speed = (np.abs(np.diff(f, axis=0)) / steps).max(axis=0)
        share = np.abs(error) / np.where(error.any(axis=0), np.abs(error).max(axis=0), 1.0)
        before, left = share[:-1], share[1:]
        rate = np.abs(np.diff(share, axis=0))
        beside = (np.minimum(before, 1 - before) < EDGE) & (np.minimum(left, 1 - left) > EDGE)
        fast = 3 * width * rate > speed * steps * left
        moving = (beside | fast) & (width * left > ROUGH * size_of_largest(f))
        every = np.concatenate([np.zeros_like(moving[:1]), moving])
        shape = found.scalars[ERROR].shape[1:]
        return np.asarray(every[grid.outputs].reshape(-1, *shape))

    def marched(self, grid: TimeGrid) -> Attempt[March]:
        """What a grid gives."""
        result = self.on(grid)
        return Attempt(self.watched(result)[grid.outputs], result)

    def implicit(self, even: Trapezoidal, grid: TimeGrid) -> Attempt[tuple[March, TimeGrid]]:
        """What a grid of the trapezoidal rule gives; of modes the logarithm of the loss is watched."""
        result = self.on(grid, self.problem.solver.rtol)
        seen = self.watched(result)
        watched = even.once(seen) if self.spectrum is None else even.log(seen)
        return Attempt(watched, (result, grid), result.residual)

    def read(self, even: Trapezoidal, found: tuple[March, TimeGrid]) -> NamedArrays:
        """The contract's variables at the output times; of equal-time correlations of random data the
        logarithms too.
        """
        result, grid = found
        nodes = np.arange(len(grid.nodes))
        if self.fixed:
            values = self.variables.of_samples(result, nodes, grid)
            return {
                name: even.once(a) if name == OUTPUT else even.read(name, a) for name, a in values.items()
            }
        values = self.variables.values(result, nodes, grid)
        read = {name: even.read(name, a) for name, a in values.items()}
        for name, a in values.items():
            if name.startswith("C_") and a.ndim < 4:  # of one output
                read[f"{name} now"] = even.log(np.einsum("...tt->t...", a))
        return read

    def assembled(self, found: NamedArrays) -> NamedArrays:
        """What is found by the contract's names: equal times put in, and losses."""
        if self.fixed:
            return split(self.problem, found)
        values = {name: a for name, a in found.items() if not name.endswith(" now")}
        for name in found.keys() - values.keys():
            whole, now = values[name.removesuffix(" now")], np.arange(len(found[name]))
            whole[..., now, now] = np.moveaxis(np.exp(found[name]), 0, -1)
        return values | self.variables.losses(values)

    def on(self, grid: TimeGrid, rtol: float | None = None) -> March:
        """A march on a grid; with ``rtol`` of an implicit rule."""
        implicit = None if rtol is None else max(1e-3 * rtol, 1e-11)
        return self.march(len(grid.nodes), arrays_on(self.problem, grid), implicit)

    def march(self, steps: int, data: dict[str, Array], implicit: float | None = None) -> March:
        """Solve the theory with some steps."""
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
        """What a flow is judged by, at all nodes: of fixed samples errors (outputs where these jump), and G
        at equal times, which remembers what was learnt after errors are gone.
        """
        if not self.fixed:
            return equal_times(two_times(result, LOSS))
        seen = result.scalars[OUTPUT] if self.jumps else watched(self.problem, result.scalars)
        at = np.arange(len(seen))
        kernels = [result.tensor(self.variables.gradient(k))[at, :, at] for k in self.variables.layers]
        return np.concatenate([x.reshape(len(at), -1) for x in (seen, *kernels)], axis=1)

    def moved(self, old: Array, new: Array) -> float:
        """The largest change of what is watched, of errors and of G relative to its own size; that of G
        counts less where more than KERNELS is asked for.
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
    """The largest relative change of a logarithm's argument, as long as it is above RESOLVED of the first."""
    before, after = np.exp(old), np.exp(new)
    return float(np.max(np.abs(after - before) / (before + RESOLVED * before[0])))
