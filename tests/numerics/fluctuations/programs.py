"""Finite networks of any program against its derived theory of finite width.

Input are a program with its numbers and arrays; output are distances, in standard errors, of ``N Var`` and
``N shift`` of networks at several widths, extrapolated, from those of the theory: of all numbers of the
program, and of all correlations of its vectors.  Networks are those of
:func:`numerics.simulation.simulate_program`, which takes a program literally.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Mul, sqrt
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.program import Program
from derive.theory.fluctuations import FluctuatingParameter
from numerics.experiment.problem import Problem
from numerics.fluctuations.dense import DenseFluctuations
from numerics.fluctuations.expanded_problem import lowered
from numerics.fluctuations.lowered import LoweredFluctuations
from numerics.fluctuations.sampled import sample_fluctuations
from numerics.simulation import Networks, simulate_program

from .estimates import Estimate, Samples, expansion_in_width

Array = NDArray[Any]


@dataclass(frozen=True)
class Posed:
    """A program with numbers, arrays and a number of steps."""

    program: Program
    numbers: Mapping[str, Any]
    arrays: Mapping[str, Any]
    steps: int

    @cached_property
    def problem(self) -> Problem:
        """The problem, in which quantities have the names of their roles."""
        times = range(self.steps + 1)
        return Problem.of(self.program, numbers=self.numbers, arrays=self.arrays, times=times)

    @cached_property
    def lowered(self) -> LoweredFluctuations:
        """The fluctuations as arrays."""
        return lowered(self.problem)

    @property
    def is_linear(self) -> bool:
        """Whether all functions of fields are linear."""
        return not self.lowered.features

    def moments(self, paths: int, seeds: int) -> list[Any]:
        """Return covariances and shifts: exact ones of a linear program, else samples."""
        if self.is_linear:
            return [DenseFluctuations(self.lowered)]
        return [sample_fluctuations(self.lowered, paths, seed) for seed in range(seeds)]

    @cached_property
    def measured(self) -> dict[str, FluctuatingParameter]:
        """Order parameters that networks measure, by name: numbers and correlations of vectors."""
        known = {x.name for x in self.problem.program.fields}
        found: dict[str, FluctuatingParameter] = {}
        for q in self.lowered.stated:
            fields = {str(a.func) for a in q.unit.atoms(AppliedUndef)}
            whole = q.kind == "correlation" and fields <= known and not q.unit.is_Add
            if q.name in self.problem.program.scalars or whole:
                found[q.name] = q
        return found

    @property
    def wanted(self) -> dict[str, Any]:
        """The vectors of each correlation, as :func:`simulate_program` takes them."""
        correlations = (q for q in self.measured.values() if q.kind == "correlation")
        return {q.name: _vectors(q.unit) for q in correlations}

    def networks(self, width: int, count: int, seed: int) -> Networks:
        """Train networks of one width."""
        problem = self.problem
        return simulate_program(
            problem.program,
            width=width,
            steps=self.steps,
            seeds=count,
            values={str(x): v for x, v in problem.values.items()},
            data=problem.data,
            wanted=self.wanted,
            seed=seed,
            each=True,
        )

    def numbers_of(self, name: str, axes: Sequence[tuple[str, tuple[float, ...]]]) -> Array | None:
        """Return the numbers of the order parameters in an array with these axes; None if it has others.

        Indices stand in the order of the theory, with times anywhere among them.
        """
        q = self.measured[name]
        times = [x for x in q.symbol.args if x in (t, s)]
        indices = [x for x in q.symbol.args if x not in (t, s)]
        own = [k for k, x in enumerate(axes) if x[0] not in ("t", "s")]
        if len(own) != len(indices) or len(axes) != len(q.symbol.args):
            return None
        grids = np.meshgrid(*[np.array(x[1], int) for x in axes], indexing="ij")
        place = {x: grids[k] for x, k in zip(indices, own, strict=True)}
        place |= {
            x: grids[k] for x, k in zip(times, [k for k in range(len(axes)) if k not in own], strict=True)
        }
        return self.lowered.parameters.find((name, len(q.symbol.args)), [place[x] for x in q.symbol.args])


def _vectors(unit: Expr) -> Any:
    """Return both vectors of a correlation, each at the time t, or one vector if they are the same."""
    factors = Mul.make_args(unit)
    late, early = (Mul(*[x for x in factors if x.has(time)]) for time in (t, s))
    if early == 1:  # at equal times one power stands for both
        return sqrt(late)
    first, second = (min(x.atoms(AppliedUndef), key=str) for x in (late, early))
    alike = early.xreplace(dict(zip(second.args, first.args, strict=True)))
    return late if alike == late else (late, early.xreplace({s: t}))


def distances(
    posed: Posed, counts: Mapping[int, int], paths: int = 2048, seeds: int = 4, seed: int = 0
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return distances of networks from theory in standard errors, by name, and their degrees of freedom.

    ``counts`` are numbers of networks by width.  Extrapolation is by a polynomial in 1/N through all widths.
    Without a limit that is known exactly, shifts follow from the means of networks alone.
    """
    moments, widths = posed.moments(paths, seeds), list(counts)
    ensembles = [posed.networks(N, count, seed + N) for N, count in counts.items()]
    found, degrees = {}, {}
    for name in posed.measured:
        axes = ensembles[0][name].axes
        numbers = posed.numbers_of(name, axes)
        if numbers is None:
            continue
        samples = [
            Samples(N, {name: x.each[name]}, np.zeros((len(x.each[name]), 0)))
            for N, x in zip(widths, ensembles, strict=True)
            if x.each is not None
        ]
        there = (numbers >= 0).ravel()
        at = numbers.ravel()[there]
        variances = expansion_in_width(widths, [x.scaled_variance(name) for x in samples])
        if posed.is_linear:
            limit = moments[0].values[numbers]
            means, order = expansion_in_width(widths, [x.scaled_shift(name, limit) for x in samples]), 0
        else:
            means, order = expansion_in_width(widths, [x.mean(name) for x in samples]), 1
        for kind, fit, k, of in (
            ("N Var", variances, 0, lambda x, at=at: np.diag(x.covariance)[at]),
            ("N shift", means, order, lambda x, at=at: x.shift[at]),
        ):
            networks = Estimate(fit.value[k].ravel()[there], fit.error[k].ravel()[there])
            theory = np.array([of(x) for x in moments])
            scatter = (
                np.zeros(len(at)) if len(theory) < 2 else theory.std(axis=0, ddof=1) / len(theory) ** 0.5
            )
            error = np.maximum(np.hypot(networks.error, scatter), 1e-9)
            z = (networks.value - theory.mean(axis=0)) / error
            found[f"{kind} {name}"] = z
            dof = (max(len(theory), 2) - 1) * (error / np.maximum(scatter, 1e-9)) ** 4
            degrees[f"{kind} {name}"] = np.minimum(dof, 1e12)
    return found, degrees
