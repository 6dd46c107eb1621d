"""Solve a problem whose theory is linear: reduce the theory, march it, label what was found.

What a theory holds decides what a result holds: errors and kernels of fixed samples, correlations and
responses of random data.  A flow is marched as an integrator sees it, on ever finer grids: an explicit one
(:class:`~numerics.solver.refine.AdamsBashforth`), or the trapezoidal rule
(:class:`~numerics.solver.refine.Trapezoidal`) on fixed samples with noise and on modes.  Where the error
jumps in the output (hinge) a ramp stands for the jump, and grids are extrapolated to none.  On isotropic
data, where fields answer within a step, the trapezoidal rule is of first order only, and not taken.

The test loss of random data by what causes it: bias, limited width, limited data, label noise (eq. 13).

Reads the derived decomposition of ``C_v``: each part is a quadratic form ``H M H^T`` of transfer functions,
and these are inverses of causal operators, so all of it is a few matrix products once the march is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Expr, Mul, Pow, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import alpha, mu, s, t
from derive.errors import NotApplicable
from derive.linear.operators import Kernel
from derive.linear.overlap import read_first
from derive.linear.projection import error_projected
from derive.linear.propagators import START
from derive.program import Program, TrainedMatrix, gamma0
from derive.program.networks.random_data import sigma
from derive.reduce.data import BIAS, DATA, NOISE, WIDTH, LossDecomposition, loss_decomposition
from derive.theory import Equation, Term, Theory
from numerics.errors import Diverged, require_memory
from numerics.experiment.problem import Problem
from numerics.experiment.theory import (
    RISE,
    LayerFunctionNames,
    Reduction,
    derived,
    error_jumps,
    integrated,
    widened,
)
from numerics.lowering.expressions import KnownArrays, layers_written_out, observable
from numerics.lowering.indices import Axis, axes_of, node_of
from numerics.lowering.linear import lower
from numerics.lowering.table import FieldAtLayer, Request, Table
from numerics.names import (
    BACKWARD_RESPONSE,
    C_FIELD,
    C_GRADIENT,
    C_LEARNT,
    ERROR,
    FEATURE_KERNEL,
    FIELD,
    FORWARD_RESPONSE,
    GRADIENT,
    GRADIENT_KERNEL,
    INPUT_KERNEL,
    LINEAR_KERNEL,
    OUTPUT,
)
from numerics.predictions import (
    equal_times,
    of_training,
    random_losses,
    size_of,
    split,
    watched,
)
from numerics.progress import Progress
from numerics.results import LOSSES, SYSTEMATIC
from numerics.solver.afterwards import Afterwards, densities, needed
from numerics.solver.grid import TimeGrid, is_noisy, tables_of
from numerics.solver.march import March, march, planned
from numerics.solver.method import KeptKernels
from numerics.solver.refine import AdamsBashforth, Attempt, Trapezoidal, refine, size_of_largest
from numerics.solver.rows import RESOLVED, Rows

Array = NDArray[np.float64]
NamedArrays = dict[str, Array]


def first(theory: Theory) -> Theory:
    """The theory with outputs read in the first layer, if it has the form."""
    try:
        return read_first(theory)
    except NotApplicable:
        return theory


def projected(theory: Theory) -> Theory:
    """The theory projected on the error, if it has the form."""
    try:
        return error_projected(theory, FIELD, ERROR)
    except NotApplicable:
        return theory


REDUCTIONS: tuple[Reduction, ...] = (first, projected)
"""Tried in order; a theory that has not the form for one stays as it is."""

RANDOM = (C_LEARNT, "C_Delta", "C_h0", C_FIELD, C_GRADIENT, "R_hr", "R_gu", "R_Delta", "R_vu", "R_h0r0")
"""What a result on random data holds of the theory's order parameters, those that the theory has."""

LOSS: FieldAtLayer = (C_LEARNT, None)

KERNELS = 1e-5
"""What kernels settle to at best: where errors are gone, few times see how they came to be."""

ROUGH, WIDER, PASSING = 1e-3, 4.0, 0.03
"""What a flow settles to at best where the error jumps; the width of a jump over what outputs move in a step,
and at most, over the outputs, where one is on its way through it.
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

    Of the ``reductions`` (REDUCTIONS, if nobody says) those are made that the theory allows; they change
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


def unlabelled(problem: Problem, lowered: Lowered) -> str | None:
    """What a theory lacks of the names that results are made of, if it lacks any."""
    theory = lowered.theory
    there = {e.name for e in (*theory.equations, *theory.scalars)}
    there |= {x.name for x in theory.order_parameters}
    lacking = ({FIELD, GRADIENT, OUTPUT, ERROR} if problem.seen else {C_LEARNT}) - there
    if lacking:
        return f"the theory has no {', '.join(sorted(lacking))}"
    fields = {r.field for r in lowered.table.fields}
    layers = range(1, (problem.depth or 0) + 1) if problem.seen else ()
    unlayered = [x for x in (FIELD, GRADIENT) if any((x, k) not in fields for k in layers)]
    return f"{' and '.join(unlayered)} of the theory have no layers" if unlayered else None


def fitting(problem: Problem) -> KeptKernels:
    """How much of the kernels a result keeps when nobody says."""
    times, samples, depth = len(problem.times), problem.sample_count, problem.depth or 1
    if 8.0 * (depth + 1) * (samples * times) ** 2 <= ROOM:
        return "full"
    return "trace" if 8.0 * depth * samples * times**2 <= ROOM_TRACE else "none"


def numbers_held(problem: Problem, lowered: Lowered, kernels: KeptKernels) -> int:
    """How many numbers a solution on fixed samples holds for each pair of times, but kernels of all pairs of
    samples: two-time functions of the march, and those of samples that are found afterwards.
    """
    plan = planned(lowered.table, tuple(dict.fromkeys(_Run(problem, lowered, kernels, None).wanted())))
    rows = Rows(plan.table, 1, problem.numbers, {})
    pairs = {tuple(sorted(x, key=str)) for x in plan.rows}  # each is held one way round
    march_itself = sum(rows.sizes[i] * rows.widths[k] for i, k in plan.responses)
    march_itself += sum(rows.sizes[i] * rows.sizes[j] for i, j in pairs)
    return march_itself + (kernels != "none") * 2 * (problem.depth or 1) * problem.sample_count


def _refuse_too_large(problem: Problem, lowered: Lowered, kernels: KeptKernels) -> None:
    """What no memory holds is refused before anything runs."""
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


def _refuse_too_many_modes(problem: Problem) -> None:
    """The same of responses of modes, which layers of finite width need."""
    if problem.spectrum is None or problem.flow or not problem.discrete.responses():
        return
    steps = len(problem.times)
    sources = len({n for n in reduced(problem, REDUCTIONS).table.source_indices if n[1] is None})
    size = 8 * 2 * sources * steps**2 * len(problem.spectrum.counts)  # of v and h0 to each source
    said = problem.said("training.steps")
    require_memory(size, said, "for the responses of modes", "fewer steps, or fewer modes")


@dataclass(frozen=True, eq=False)
class Lowered:
    """The theory of a structure, reduced, and its rows."""

    theory: Theory
    table: Table

    @cached_property
    def decomposition(self) -> LossDecomposition:
        """The test loss of random data by its causes."""
        return loss_decomposition(self.theory)


def reduced(problem: Problem, reductions: tuple[Reduction, ...]) -> Lowered:
    """The theory of a problem after ``reductions``, in steps."""
    program = integrated(problem.program)
    program = widened(program) if problem.flow and error_jumps(program) else program
    return _lowered(program, (*problem.reductions, *reductions), tuple(problem.layered))


@lru_cache(maxsize=64)
def _lowered(program: Program, reductions: tuple[Reduction, ...], layered: LayerFunctionNames) -> Lowered:
    theory = derived(program, reductions, layered)
    return Lowered(theory, lower(theory))


class _Run:
    """An experiment with its theory: marched, and what was found by the contract's names."""

    def __init__(
        self, problem: Problem, lowered: Lowered, kernels: KeptKernels, progress: Progress | None
    ) -> None:
        self.problem, self.theory, self.table = problem, lowered.theory, lowered.table
        self.lowered, self.kernels, self.progress = lowered, kernels, progress
        self.fixed, self.spectrum, self.many = bool(problem.seen), problem.spectrum, problem.outputs > 1
        self.jumps = problem.flow and error_jumps(problem.program)
        self.depth = problem.depth or 0
        self.layers = range(1, self.depth + 1)
        self.constants: dict[Symbol, float] = dict(problem.numbers)

    def steps(self) -> NamedArrays:
        """Exact steps."""
        count = len(self.problem.times)
        return self.values(self.march(count, self.data(None)), np.arange(count), None)

    def flow(self) -> tuple[NamedArrays, dict[str, Any]]:
        """A flow, with what to report of its accuracy."""
        times, rtol = self.problem.times, self.problem.solver.rtol
        if self.jumps:
            return self.widened(AdamsBashforth(times, max(rtol, ROUGH), jumps=True))
        implicit = self.fixed and is_noisy(self.problem.program.rule)
        if self.spectrum is not None:  # fields of fixed samples answer within a step
            implicit = all(isinstance(m, TrainedMatrix) for m in self.problem.program.matrices)
        if not implicit:
            last = refine(AdamsBashforth(times, rtol), self.marched, change=self.moved)
            return self.values(last.found, last.grid.outputs, last.grid), last.notes | self.kernel_error()
        tau = None
        if self.spectrum is not None:
            # some early time, on which no result depends; features move by gamma0 a time
            fastest = max(float(np.abs(a).max()) for a in self.spectrum.attributes.values())
            tau = 1 / ((self.depth + 1) * fastest * max(1.0, self.constants.get(gamma0, 1.0)))
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
        values = found.extrapolated(lambda x: self.of_samples(x[0], x[1].outputs, x[1]))
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
            values = self.of_samples(result, nodes, grid)
            return {
                name: even.once(a) if name == OUTPUT else even.read(name, a) for name, a in values.items()
            }
        values = self.values(result, nodes, grid)
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
        return values | self.losses(values)

    def on(self, grid: TimeGrid, rtol: float | None = None) -> March:
        """A march on a grid; with ``rtol`` of an implicit rule."""
        implicit = None if rtol is None else max(1e-3 * rtol, 1e-11)
        return self.march(len(grid.nodes), self.data(grid), implicit)

    def data(self, grid: TimeGrid | None, weights: Array | None = None) -> dict[str, Array]:
        """The arrays of the problem, and of a flow the tables of its memory, with other ``weights``."""
        if grid is None:
            return dict(self.problem.data)
        given = grid.weights if weights is None else weights
        tables = tables_of(self.problem.program, self.constants, grid.nodes, given)
        return {**self.problem.arrays, **tables}

    def march(self, steps: int, data: dict[str, Array], implicit: float | None = None) -> March:
        """Solve the theory with some steps."""
        return march(
            self.table,
            steps=steps,
            constants=self.constants,
            data=data,
            wanted=tuple(dict.fromkeys(self.wanted())),
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
            return equal_times(_two_times(result, LOSS))
        seen = result.scalars[OUTPUT] if self.jumps else watched(self.problem, result.scalars)
        at = np.arange(len(seen))
        kernels = [result.tensor(self.gradient(k))[at, :, at] for k in self.layers]
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

    # -- what a result holds ---------------------------------------------------------------------------

    def wanted(self) -> Iterable[FieldAtLayer | Request]:
        """What the march must keep."""
        if not self.fixed:
            flow, last = self.problem.flow, self.last_response()
            yield from (n for n, q in self.table.tensors.items() if not flow or q.kind == "correlation")
            if last is not None and not flow:
                yield last
            return
        yield from map(self.gradient, self.layers)
        if self.kernels != "none":
            yield from needed(self.table, [(FIELD, k) for k in self.layers])
        if self.kernels == "full" and self.answers:
            if self.problem.flow:  # of steps they are found afterwards
                yield from (self.response_A(k) for k in self.layers)
            yield from (self.response_B(k) for k in self.layers[:-1])

    @staticmethod
    def gradient(k: int) -> Request:
        return Request("correlation", (GRADIENT, k), (GRADIENT, k), S.One)

    def response_A(self, k: int) -> Request:
        """A^k, that of the last layer too, which no layer above reads."""
        return Request("response", (FIELD, k), self.source(GRADIENT, k), 1 / gamma0)

    def source(self, name: str, k: int) -> FieldAtLayer:
        """The Gaussian source that drives a field of a layer."""
        return next(row.drives[0][0] for row in self.table.fields if row.field == (name, k))

    def response_B(self, k: int) -> Request:
        """B^k; of a theory projected on the error it is ``sum_c b_c Delta_{alpha c}``."""
        source = self.source("p" if self.projected else FIELD, k + 1)
        return Request("response", (GRADIENT, k + 1), source, 1 / gamma0)

    def last_response(self) -> Request | None:
        """The response of the last layer of random data, which no layer above reads."""
        known = next((q for (name, _), q in self.table.tensors.items() if name == "R_hr"), None)
        return known and Request(
            "response", (FIELD, self.depth), self.source(GRADIENT, self.depth), known.factor
        )

    @cached_property
    def answers(self) -> bool:
        """Do responses enter the theory?  Those of one layer alone are there to be read."""
        return self.depth == 1 or bool(self.theory.responses())

    @cached_property
    def projected(self) -> bool:
        """Was the theory projected on the error?"""
        return ("p", 1) in {r.field for r in self.table.fields}

    def values(self, result: March, at: NDArray[np.intp], grid: TimeGrid | None) -> NamedArrays:
        """The contract's variables at the nodes ``at``."""
        if self.fixed:
            return split(self.problem, self.of_samples(result, at, grid))
        values = self.of_random_data(result, at, grid)
        if self.kernels != "none" and self.spectrum is None:
            values |= self.parts(result, at, grid)
        return values

    # -- fixed samples ---------------------------------------------------------------------------------

    def of_samples(self, result: March, at: NDArray[np.intp], grid: TimeGrid | None) -> NamedArrays:
        """Of training samples and test points; traces are those over training samples."""
        values = {OUTPUT: result.scalars[OUTPUT][at], "error": result.scalars[ERROR][at]}
        G = {k: _picked(result.tensor(self.gradient(k)), at) for k in self.layers}
        values[GRADIENT_KERNEL] = np.stack([of_outputs(a) for a in G.values()])
        if self.kernels == "none":
            return values
        seen, data = self.problem.seen, self.data(grid)
        after = Afterwards(result, at, seen)
        tensors: dict[tuple[str, tuple[int, ...]], Array] = {
            (GRADIENT_KERNEL, (k,)): (a.transpose(1, 3, 0, 2) if self.many else a[:, 0, :, 0])[..., None]
            for k, a in G.items()
        }
        numbers = {str(k): v for k, v in self.constants.items()}
        if self.kernels == "trace":
            traces = [after.trace((FIELD, k)) for k in self.layers]
            values["Phi_trace"] = np.stack(traces)
            tensors |= {
                (LINEAR_KERNEL, (k,)): a[None, None, ..., None]
                for k, a in zip(self.layers, traces, strict=True)
            }
            single = {INPUT_KERNEL: np.trace(data[INPUT_KERNEL][:seen, :seen]).reshape(1, 1)}
            for e in self.theory.observables:
                # what has no sample counts once for each
                terms = Add.make_args(layers_written_out(e.rhs).expand())
                terms = [x if x.has(mu, alpha) else seen * x for x in terms]
                whole = replace(e, terms=(Term.local(Add(*terms), "definition"),))
                trace = observable(whole, tensors, numbers, single, self.axes(e))[..., 0]
                values["tangent_kernel_trace"] = (
                    np.einsum("tsacbc->ts", trace) if self.many else trace[:, :, 0, 0]
                )
            return values
        samples = result.sizes[FIELD, 1]
        every = np.empty((self.depth, len(at), samples, len(at), samples))
        full = {k: after.outputs((FIELD, k), (FIELD, k), x) for k, x in zip(self.layers, every, strict=True)}
        values[FEATURE_KERNEL] = every.transpose(0, 1, 3, 2, 4)
        tensors |= {(LINEAR_KERNEL, (k,)): a.transpose(1, 3, 0, 2)[..., None] for k, a in full.items()}
        for e in self.theory.observables:
            values["tangent_kernel"] = observable(e, tensors, numbers, data, self.axes(e))[..., 0]
        return values | (self.responses(after, grid) if self.answers else {})

    @staticmethod
    def axes(e: Equation) -> tuple[Symbol, ...]:
        """Times before indices, as results have them."""
        return t, s, *axes_of(e.lhs)

    def responses(self, after: Afterwards, grid: TimeGrid | None) -> NamedArrays:
        """A^l and B^l; for the flow as densities in s."""
        result, at, smooth = after.result, after.at, None
        error = result.scalars[ERROR][at]
        if grid is not None:
            once = self.data(grid, np.ones_like(grid.weights))
            smooth = densities(result, grid.nodes, once)

        def read(q: Request) -> Array:
            if smooth is None:
                return after.answer(q)[:, :, at]
            return result.number(q.factor) * _picked(smooth[q.first, q.second], at)

        A = [read(self.response_A(k)).transpose(0, 2, 1, 3) for k in self.layers]
        last = np.zeros_like(A[0].swapaxes(2, 3))
        channels = error if self.many else error[..., None]
        if self.projected:
            B = [np.einsum("tcsd,sad->tsca", read(self.response_B(k)), channels) for k in self.layers[:-1]]
        else:
            B = [read(self.response_B(k)).transpose(0, 2, 1, 3) for k in self.layers[:-1]]
        return {
            FORWARD_RESPONSE: np.stack([a if self.many else a[..., 0] for a in A]),
            BACKWARD_RESPONSE: np.stack([b if self.many else b[:, :, 0] for b in [*B, last]]),
        }

    # -- random data -----------------------------------------------------------------------------------

    def of_random_data(self, result: March, at: NDArray[np.intp], grid: TimeGrid | None) -> NamedArrays:
        """Every correlation and, in steps, every response."""
        values: NamedArrays = {}
        for name in RANDOM:
            nodes: dict[FieldAtLayer, FieldAtLayer | Request] = {
                n: n for n in self.table.tensors if n[0] == name
            }
            if grid is not None and name.startswith("R_"):
                continue
            if name == "R_hr" and (last := self.last_response()) is not None:
                nodes[name, self.depth] = last
            if nodes:
                found = {k: _two_times(result, q, at) for (_, k), q in nodes.items()}
                values[name] = by_layer(found, self.layers)
        return self.losses(values) | values

    def losses(self, values: NamedArrays) -> NamedArrays:
        """Test and training loss."""
        return random_losses(self.problem.theory, values, self.constants, self.problem.outputs)

    def parts(self, result: March, at: NDArray[np.intp], grid: TimeGrid | None) -> NamedArrays:
        """The test loss by what causes it; label noise counts with its own square, which nothing can fit."""
        outputs, noise = self.problem.outputs, self.constants.get(sigma, 0.0)
        forms = _Forms(self.lowered.decomposition, result, self.data(grid), self.constants, outputs)
        found: NamedArrays = {}
        for part in forms.split.parts:
            found[part.label] = found.get(part.label, 0.0) + forms.diagonal(part.expr)
        if noise:
            found[NOISE] = found.get(NOISE, np.zeros(result.steps)) + outputs * noise**2
        return {NAMES[k]: x[at] for k, x in found.items()}


def _two_times(result: March, n: FieldAtLayer | Request, at: NDArray[np.intp] | None = None) -> Array:
    """An order parameter with axes t, s (at some nodes) and, with several outputs, those of the outputs."""
    return of_outputs(result.tensor(n) if at is None else _picked(result.tensor(n), at))


def of_outputs(a: Array) -> Array:
    """Times first, after what stands before them; outputs, if there are several, last."""
    return a[..., 0, :, 0] if a.shape[-3] == a.shape[-1] == 1 else a.swapaxes(-3, -2)


def by_layer(found: Mapping[int | None, Array], layers: Iterable[int], axis: int = 0) -> Array:
    """What there is at each layer along one axis, zero where there is none; as it is without layers."""
    if list(found) == [None]:
        return found[None]
    nothing = np.zeros_like(next(iter(found.values())))
    return np.stack([found.get(k, nothing) for k in layers], axis=axis)


def _picked(a: Array, at: NDArray[np.intp]) -> Array:
    return a if len(at) == len(a) else a[at][:, :, at]


def _relative(old: Array, new: Array) -> float:
    """The largest relative change of a logarithm's argument, as long as it is above RESOLVED of the first."""
    before, after = np.exp(old), np.exp(new)
    return float(np.max(np.abs(after - before) / (before + RESOLVED * before[0])))


NAMES = {BIAS: "test_loss_bias", WIDTH: "test_loss_width", DATA: "test_loss_data", NOISE: "test_loss_noise"}
"""What the parts are called in results."""


@dataclass(eq=False)
class _Forms:
    """The forms that make up ``C_v(t, t)`` of ``n`` outputs, with what a march found and the tables of the
    integrator.
    """

    split: LossDecomposition
    result: March
    data: Mapping[str, Array]
    constants: Mapping[Symbol, float]
    n: int
    answers: dict[str, Array] = field(default_factory=dict)
    letters: dict[Expr, Array] = field(default_factory=dict)
    words: dict[Expr, Array] = field(default_factory=dict)

    @property
    def T(self) -> int:
        return self.result.steps

    # -- quadratic forms ---------------------------------------------------------------------------------

    def diagonal(self, form: Expr) -> Array:
        """``sum H(t, s_1) M(s_1, s_2) H(t, s_2)``, summed over outputs."""
        left, middle, right = self.split_up(form)
        value: Array = np.einsum("ij,ij->i", left @ middle, right).reshape(self.T, self.n).sum(1)
        return value

    def split_up(self, form: Expr) -> tuple[Array, Array, Array]:
        """Both transfer functions, and what stands between them."""
        assert isinstance(form, Sum)
        inner = [lim[0] for lim in form.limits]
        times, outputs = inner[-2:], inner[:-2]
        answers, rest = {}, []
        for x in Mul.make_args(form.function):
            if isinstance(x, AppliedUndef) and str(x.func).startswith("H_"):
                answers[times.index(x.args[-1])] = self.answer(str(x.func))
            else:
                rest.append(x)
        return answers[0], self.matrix(Mul(*rest), times, outputs), answers[1]

    def matrix(self, e: Expr, times: list[Expr], outputs: list[Expr]) -> Array:
        """A function of two times (and two outputs), entry by entry: shape (T n, T n)."""
        known = KnownArrays(
            {str(k): v for k, v in self.constants.items()}, self.data, first=dict.fromkeys(times, 0)
        )
        given = {x: self.inner(x)[..., None] for x in e.atoms(Sum)}
        for x in e.xreplace(dict.fromkeys(given, S.One)).atoms(AppliedUndef):
            if str(x.func) not in self.data:
                name, layers = node = node_of(x)
                a = self.result.tensor((name, next(iter(layers), None))).transpose(1, 3, 0, 2)
                known.found[node] = (a if outputs else a[0, 0])[..., None]
        shape = (self.T, self.n, self.T, self.n)
        axes = {times[0]: 0, times[1]: 2} | dict(zip(outputs, (1, 3), strict=False))
        with np.errstate(divide="ignore", invalid="ignore"):  # before a cause, where `kernel` has zeros
            value = known(e, {x: Axis(0, shape[k], k, 4) for x, k in axes.items()}, given)
        return np.broadcast_to(value, (*shape, 1)).reshape(self.T * self.n, -1)

    def inner(self, form: Expr) -> Array:
        """A quadratic form within another: axes (T, n, T, n)."""
        left, middle, right = self.split_up(form)
        return (left @ middle @ right.T).reshape(self.T, self.n, self.T, self.n)

    # -- transfer functions ------------------------------------------------------------------------------

    def answer(self, name: str) -> Array:
        """``H_y_x`` as a matrix, from its word in kernels."""
        if name not in self.answers:
            x = next(x for x in self.split.transfers if name.endswith(f"_{x.into}"))
            field = name.removeprefix("H_").removesuffix(f"_{x.into}")
            self.letters |= {k.operator: self.kernel(k) for k in x.kernels if k.operator not in self.letters}
            self.answers[name] = self.word(x.operators[field])
        return self.answers[name]

    def kernel(self, k: Kernel) -> Array:
        """The entries of an operator, causal."""
        *indices, now, past = k.entry.args
        full = self.matrix(k.definition, [now, past], [x for x in indices if isinstance(x, Symbol)])
        steps = np.repeat(np.arange(self.T), self.n)
        before = steps[:, None] > steps if k.causal == "strict" else steps[:, None] >= steps
        value: Array = np.where(before, full, 0.0)
        return value

    def word(self, e: Expr) -> Array:
        """A noncommutative expression with matrices put in; each inverse is taken once."""
        if e not in self.words:
            self.words[e] = self.worked_out(e)
        return self.words[e]

    def worked_out(self, e: Expr) -> Array:
        size = self.T * self.n
        if e in self.letters:
            return self.letters[e]
        if e == START:
            value = np.zeros((size, size))
            value.reshape(self.T, self.n, size)[:, :, : self.n] = np.eye(self.n)
            return value
        if e.is_number:
            return float(e) * np.eye(size)
        if isinstance(e, Add):
            return sum((self.word(x) for x in e.args), np.zeros((size, size)))
        if isinstance(e, Pow) and e.exp == -1:
            return np.asarray(np.linalg.inv(self.word(e.base)), dtype=float)
        if isinstance(e, Mul):
            numbers, letters = e.args_cnc()
            value = self.word(letters[0])
            for x in letters[1:]:
                value = value @ self.word(x)
            return float(Mul(*numbers)) * value
        raise NotImplementedError(f"{e} in a transfer function")
