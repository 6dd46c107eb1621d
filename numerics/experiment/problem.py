"""A problem: a theory with numbers for its symbols, named arrays and a clock.

    problem = Problem.of("digits.toml")                                       # an experiment file
    problem = Problem.of(program, numbers={...}, arrays={...}, times=range(51))  # a program of one's own

It is what methods solve.  Nothing in it is a key of a file: whoever wants to know whether a network is linear
asks the theory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sympy import Expr, Integer, Symbol
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.linear.form import LinearForm, linear_form
from derive.program import P, Program
from derive.program.networks.options import SAMPLE_WEIGHT
from derive.theory import Theory
from numerics.errors import SpecError
from numerics.experiment.arrays import HeldOut
from numerics.experiment.experiment import Experiment
from numerics.experiment.numbers import (
    Spectrum,
    arrays_of,
    layered_numbers,
    numbers_of,
    require_numbers,
    spectrum_of,
)
from numerics.experiment.schema import Solver
from numerics.experiment.theory import (
    Layered,
    Reduction,
    Variant,
    derived,
    integrated,
    program_of,
    reductions_of,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Problem:
    """A theory, the numbers for its symbols, named arrays, and a clock.

    Attributes:
    - ``program``: what is trained; its rule says whether time flows.
    - ``numbers``: one for each symbol of the theory.
    - ``arrays``: what no equation determines, by its name in the theory: ``K_x`` (P, P), ``y`` (P,) or
      (P, C), ``rho`` (P,).
    - ``times``: where the answer is wanted; steps 0, 1, ... of a rule that counts them.
    - ``solver``: samples, seed, tolerances and method.
    - ``reductions``: what is done to the derived theory: sums over modes, the limit of wide layers, ...
    - ``layered``: numbers for functions of the layer.
    - ``spectrum``: the modes of the data, if units have attributes.
    - ``seen``: the number of training samples, which come before test points; 0 of random data.
    - ``text``: what results keep as ``spec``.
    - ``experiment``: the file that the problem was read from, whose keys a refusal names; None of a program.
    """

    program: Program
    numbers: Mapping[Symbol, float]
    arrays: Mapping[str, Array]
    times: Array
    solver: Solver = field(default_factory=Solver)
    reductions: tuple[Reduction, ...] = ()
    layered: Layered = ()
    spectrum: Spectrum | None = None
    seen: int = 0
    text: str = ""
    experiment: Experiment | None = None

    @classmethod
    def of(
        cls,
        source: Problem | Experiment | Program | Theory | str | Path,
        *,
        numbers: Mapping[Symbol | str, float] | None = None,
        arrays: Mapping[str, ArrayLike] | None = None,
        times: ArrayLike | None = None,
        solver: Solver | None = None,
        text: str = "",
    ) -> Problem:
        """The problem that an experiment, its file, or a program (or its theory) with numbers, arrays and
        times poses.

        Raises :class:`~numerics.errors.SpecError` for a number, an array or a time that is missing, and for
        one that does not belong to the program.

        >>> from derive.program import eta, gamma0, mlp
        >>> given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "times": range(3)}
        >>> problem = Problem.of(mlp(2, "tanh"), arrays={"K_x": [[1.0]], "y": [1.0]}, **given)
        >>> problem.depth, problem.flow, problem.numbers[P]
        (2, False, 1.0)
        """
        mine = {"numbers": numbers, "arrays": arrays, "times": times, "solver": solver}
        for name, value in mine.items() if not isinstance(source, Program | Theory) else ():
            if value is not None:
                raise SpecError(name, None, "goes with a program: a file says its own", "leaving it out")
        if isinstance(source, Problem):
            return source
        if isinstance(source, str | Path | Experiment):
            return cls._of_experiment(Experiment.of(source))
        program = source.program if isinstance(source, Theory) else source
        return cls._of_program(program, numbers or {}, arrays or {}, times, solver or Solver(), text)

    @classmethod
    def _of_experiment(cls, experiment: Experiment) -> Problem:
        require_numbers(experiment, depth=False)
        spec = experiment.spec
        return cls(
            program=program_of(experiment),
            numbers=numbers_of(experiment),
            arrays=arrays_of(experiment),
            times=experiment.times,
            solver=spec.solver,
            reductions=reductions_of(spec),
            layered=layered_numbers(spec),
            spectrum=spectrum_of(experiment),
            seen=len(experiment.targets) if spec.kind == "fixed" else 0,
            text=experiment.text,
            experiment=experiment,
        )

    @classmethod
    def _of_program(
        cls,
        program: Program,
        numbers: Mapping[Symbol | str, float],
        arrays: Mapping[str, ArrayLike],
        times: ArrayLike | None,
        solver: Solver,
        text: str,
    ) -> Problem:
        if times is None:
            raise SpecError("times", None, "is missing", "times that rise from 0")
        at = np.asarray(times, dtype=float)
        if at.ndim != 1 or not len(at) or at[0] != 0 or (np.diff(at) <= 0).any():
            raise SpecError("times", at.tolist(), "must rise from 0", "such as 0, 1, 2")
        given = {str(k): float(v) for k, v in numbers.items()}
        if program.depth.is_Symbol and program.depth.name in given:
            program = program.at_depth(int(given.pop(program.depth.name)))
        data = {name: np.asarray(x, dtype=float) for name, x in arrays.items()}
        known = {*program.constants, *(x.kernel for x in program.given)}
        for name in data:
            if name not in known:
                raise SpecError(f"arrays.{name}", None, "is not in the program", ", ".join(sorted(known)))
        for name in sorted(known - set(data)):
            raise SpecError(f"arrays.{name}", None, "is missing", "an array of numbers")
        for name, size in _sizes(program, data).items():
            given.setdefault(name, size)
        symbols = derived(program).symbols
        for name in given:
            if name not in symbols and name not in _sizes(program, data):
                raise SpecError(
                    f"numbers.{name}", given[name], "is no symbol of the theory", ", ".join(symbols)
                )
        for name, x in symbols.items():
            if name not in given and not x.is_integer:
                raise SpecError(
                    f"numbers.{name}", None, "is missing", "a number for this symbol of the theory"
                )
        weights = data.get(SAMPLE_WEIGHT)
        samples = int(given.get(P.name, 0))
        seen = samples if weights is None else int(np.count_nonzero(weights))
        found = {x: given[name] for name, x in symbols.items() if name in given}
        return cls(program, found, data, at, solver, seen=seen, text=text)

    def varied(self, variant: Variant) -> Self:
        """The problem of another program made of this one, with the same numbers and arrays.

        >>> from derive.reduce.independence import independent_backward
        >>> tables = {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 3}}
        >>> e = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
        >>> Problem.of(e).varied(independent_backward).program == Problem.of(e).program
        False
        """
        return replace(self, program=variant(self.program))

    @property
    def flow(self) -> bool:
        """Whether time flows rather than counts steps."""
        return not self.program.rule.discrete

    @property
    def values(self) -> dict[Symbol | str, float]:
        """The numbers, with integers for those that are: sizes must be."""
        return {x: int(v) if float(v).is_integer() else v for x, v in self.numbers.items()}

    @property
    def depth(self) -> int | None:
        """The number of hidden layers; None if it is a symbol."""
        depth = self.program.depth
        return int(depth) if isinstance(depth, Integer) else None

    @property
    def sample_count(self) -> int:
        """The number of training samples and test points."""
        return int(self.numbers.get(P, 0))

    @property
    def outputs(self) -> int:
        """The number of outputs; of random data it is a number of the theory."""
        y = self.arrays.get("y")
        if y is not None:
            return y.shape[1] if y.ndim == 2 else 1
        return int(next((v for k, v in self.numbers.items() if k.name == "C"), 1))

    @cached_property
    def theory(self) -> Theory:
        """What is derived for the program, at its depth; functions of the layer are numbers."""
        return derived(self.program, self.reductions, self.layered)

    @cached_property
    def discrete(self) -> Theory:
        """The same in steps: of a flow, the theory as an integrator with weights ``w(t, s)`` has it."""
        return derived(integrated(self.program), self.reductions, self.layered)

    @cached_property
    def linear(self) -> LinearForm | NotApplicable:
        """The linear form of :attr:`discrete`, or the reason why it has none."""
        try:
            return linear_form(self.discrete)
        except NotApplicable as reason:
            return reason

    @property
    def held_out(self) -> HeldOut | None:
        """The test points: those of the file, or the samples that count nothing in a program's loss."""
        if self.experiment is not None:
            return self.experiment.held_out
        if SAMPLE_WEIGHT not in self.arrays:
            return None
        kernel, targets = self.arrays.get("K_x", np.zeros((0, 0))), self.arrays.get("y")
        return HeldOut(kernel, None if targets is None else targets[self.seen :], None, self.seen)

    @property
    def targets(self) -> Array:
        """y of training samples."""
        return self.arrays["y"][: self.seen]

    @property
    def objective(self) -> str | None:
        """The loss of an output by its name; None of a program, whose losses are squares of its errors."""
        return None if self.experiment is None else self.experiment.objective

    def said(self, key: str) -> tuple[str, Any]:
        """A key of the file with its value, for a refusal; of a program without a file its own name."""
        if self.experiment is None:
            return "program", self.program.name
        section, _, name = key.partition(".")
        table = getattr(self.experiment.spec, section)
        return key, None if table is None else getattr(table, name)


def _sizes(program: Program, data: Mapping[str, Array]) -> dict[str, float]:
    """The symbols that say how far an index runs, read off the arrays that carry the index."""
    ends: dict[Expr, Expr] = {r.index: r.upper for d in program.definitions for r in d.ranges}
    found: dict[str, float] = {}
    for d in program.definitions:
        for x in d.rhs.atoms(AppliedUndef):
            if str(x.func) in data:
                for index, size in zip(x.args, data[str(x.func)].shape, strict=False):
                    end = ends.get(index)
                    if isinstance(end, Symbol):
                        found[end.name] = float(size)
    return found
