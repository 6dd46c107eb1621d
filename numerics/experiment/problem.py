"""A problem: a theory with numbers for its symbols, named arrays and a clock.

    problem = Problem.of("digits.toml")                                       # an experiment file
    problem = Problem.of(program, numbers={...}, arrays={...}, times=range(51))  # a program of one's own

It is what methods solve.  Nothing in it is a key of a file: whoever wants to know whether a network is linear
asks the theory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sympy import Expr, Integer, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell, expression, mu, t
from derive.errors import NotApplicable
from derive.linear.form import LinearForm, linear_form
from derive.program import Network, P, Program, gamma0
from derive.program.networks.random_data import M
from derive.program.parts import gaussian, parameter
from derive.program.shifts import Slot
from derive.reduce.data import UNITS, instant_responses, mode_sums, unit_averages
from derive.theory import Theory, mean_field
from derive.theory.theory import ERROR_VECTOR
from numerics.errors import SpecError
from numerics.experiment.checks import real_numbers
from numerics.experiment.experiment import Experiment, HeldOut, fingerprint
from numerics.experiment.finite import not_finite
from numerics.experiment.given import (
    checked_arrays,
    checked_numbers,
    literals_in,
    names_of_arrays,
    or_a_weight,
    require_constants,
    require_domain,
)
from numerics.experiment.literals import Literals
from numerics.experiment.memory import symbols_of_rules, tables_of_program
from numerics.experiment.naming import named_by_role, symbols_of
from numerics.experiment.numbers import (
    Spectrum,
    arrays_of,
    layered_numbers,
    numbers_of,
    require_numbers,
    spectrum_of,
)
from numerics.experiment.schema import MOST_STEPS, Solver, check_times
from numerics.experiment.theory import (
    Reduction,
    Variant,
    derived,
    error_jumps,
    general,
    integrated,
    program_of,
    reductions_of,
    scheduled,
    widened,
)
from numerics.names import C_LEARNT, ERROR, GRADIENT_KERNEL, INPUT_KERNEL, OUTPUT, TARGETS

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Given:
    """The reduction of a derived theory to one that stands in its place."""

    theory: Theory

    def __call__(self, _: Theory) -> Theory:
        return self.theory


DERIVATION = 2e-2, 2e-4
"""Seconds to derive and compile a layer, and each pair of layers, measured up to 512."""


def derivation(depth: object) -> float:
    """About how many seconds the equations of so many layers take; of a symbolic number none to speak of."""
    layers = float(depth) if isinstance(depth, int) else 0.0
    return DERIVATION[0] * layers + DERIVATION[1] * layers**2


def require_derivation(said: tuple[str, Any], depth: object, most: float) -> None:
    """Raises SpecError, which names the key and the value that were ``said``, for layers whose equations take
    more than so many hours.
    """
    hours = derivation(depth) / 3600
    if hours > most:
        reason = f"deriving its equations takes about {hours:.2g} hours"
        raise SpecError(*said, reason, "fewer layers, or a larger solver.hours")


@dataclass(frozen=True, eq=False)
class Problem:
    """A theory, the numbers for its symbols, named arrays, and a clock.

    Attributes:
    - ``program``: what is trained; its rule says whether time flows.
    - ``numbers``: one for each symbol of the theory.
    - ``arrays``: what no equation determines, by its name in the theory: ``K_x`` (P, P), ``y`` (P,) or
      (P, C), ``rho`` (P,).
    - ``times``: the times that are solved for: all steps 0, 1, ... of a rule that counts them, of a flow 0
      and the output times.
    - ``output_times``: the times that results hold, some of ``times``; None for all of them.
    - ``solver``: samples, seed, tolerances and method.
    - ``reductions``: what is done to the derived theory: sums over modes, the limit of wide layers, ...
    - ``layered``: functions of the layer that are numbers, which ``numbers`` has too.
    - ``spectrum``: the modes of the data, if units have attributes.
    - ``seen``: the number of training samples, which come before test points; 0 of random data.
    - ``text``: what results keep as ``spec``.
    - ``author``: names of a program that its author calls otherwise, with the author's name for each.
    - ``written``: the program as its author wrote it, where that has other names.
    - ``family``: the program at symbolic depth that was given with a number for the depth.
    - ``response_method``: how sampled paths find responses: by derivatives along paths, by Stein's lemma, or
      by what costs less for networks of few layers.
    - ``experiment``: the file that the problem was read from, whose keys a refusal names; None of a program.
    """

    program: Program
    numbers: Mapping[Symbol, float]
    arrays: Mapping[str, Array]
    times: Array
    output_times: Array | None = None
    solver: Solver = field(default_factory=Solver)
    reductions: tuple[Reduction, ...] = ()
    layered: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    spectrum: Spectrum | None = None
    seen: int = 0
    text: str = ""
    author: Mapping[str, str] = field(default_factory=dict)
    written: Program | None = None
    family: Program | None = None
    experiment: Experiment | None = None
    response_method: Literal["auto", "jacobian", "stein"] = "auto"

    def __post_init__(self) -> None:
        """Raises SpecError for more layers than ``solver.hours`` allows to derive the equations of.

        >>> given = {"kernel": [[1.0]], "targets": [1.0]}
        >>> tables = {"network": {"depth": 10**9}, "training": {"learning_rate": 0.1, "steps": 3}}
        >>> Problem.of(Experiment.from_dict(tables, **given))
        Traceback (most recent call last):
        numerics.errors.SpecError: network.depth = 1000000000: deriving its equations takes about ...
        """
        require_derivation(self.said("network.depth"), self.depth, self.solver.hours)

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

        A theory that is not what its program derives, such as one with a term left out, is solved as it is.

        Raises :class:`~numerics.errors.SpecError` for a number, an array or a time that is missing, for one
        that does not belong to the program, and for a flow whose theory was changed.

        >>> from derive.program import eta, gamma0, mlp
        >>> given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "times": range(3)}
        >>> problem = Problem.of(mlp(2, "tanh"), arrays={"K_x": [[1.0]], "y": [1.0]}, **given)
        >>> problem.depth, problem.flow, problem.numbers[P]
        (2, False, 1.0)
        """
        mine = {"numbers": numbers, "arrays": arrays, "times": times, "solver": solver}
        for name in ("numbers", "arrays"):
            if not isinstance(mine[name], Mapping | None):
                raise SpecError(name, None, f"is {type(mine[name]).__name__}", "a mapping by name, {...}")
        if not isinstance(solver, Solver | None):
            raise SpecError(
                "solver", None, f"is {type(solver).__name__}", "numerics.experiment.schema.Solver(...)"
            )
        given: object = source
        if isinstance(given, Network):
            accepted = (
                "the program that its training by a rule gives, network.train(loss, GradientDescent(eta))"
            )
            raise SpecError("source", given.name, "is a Network, which says no loss and no rule", accepted)
        if not isinstance(given, Problem | Experiment | Program | Theory | str | Path):
            accepted = "an experiment, the path of its file, a program or a theory"
            raise SpecError("source", None, f"{type(given).__name__} is no problem", accepted)
        for name, value in mine.items() if not isinstance(source, Program | Theory) else ():
            if value is not None:
                kind = "a problem" if isinstance(source, Problem) else "an experiment file"
                raise SpecError(name, None, f"is given beside {kind}, which has its own", "leaving it out")
        if isinstance(source, Problem):
            return source
        if isinstance(source, str | Path | Experiment):
            found = cls._of_experiment(Experiment.of(source))
            found.require_finite_rules()
            return found
        program = source.program if isinstance(source, Theory) else source
        changed = isinstance(source, Theory) and source not in (derived(program), mean_field(program))
        asked = (numbers or {}, arrays or {}, times, solver or Solver(), text)
        found = cls._of_program(program, *asked, by_role=not changed)
        found.require_finite_rules()
        if not isinstance(source, Theory) or not changed:
            return found
        if found.flow:
            accepted = "its program, or the same change of a theory in steps"
            raise SpecError(
                "theory", None, "is not what its program derives, and a flow needs steps", accepted
            )
        layers = None if source.program.depth.is_Integer else found.depth
        return replace(found, reductions=(Given(source if layers is None else source.at_depth(layers)),))

    @classmethod
    def _of_experiment(cls, experiment: Experiment) -> Problem:
        require_numbers(experiment, depth=False)
        spec, program = experiment.spec, program_of(experiment)
        return cls(
            program=scheduled(program, spec) if spec.training.rule == "flow" else program,
            numbers=numbers_of(experiment),
            arrays=arrays_of(experiment),
            times=experiment.times,
            output_times=experiment.output_times,
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
        *,
        by_role: bool = True,
    ) -> Problem:
        at, output_times = _times_of(times, program.rule.discrete)
        given = checked_numbers(numbers)
        if program.depth.is_Integer:
            require_derivation(("program.depth", int(program.depth)), int(program.depth), solver.hours)
        program = program.with_layers_counted()
        family: Program | None = None
        if program.depth.is_Symbol and program.depth.name in given:
            require_domain(program, program.depth, given[program.depth.name])
            depth = int(given.pop(program.depth.name))
            require_derivation((f"numbers.{program.depth.name}", depth), depth, solver.hours)
            family, program = program, program.at_depth(depth)
        data, sizes = checked_arrays(
            program, arrays, len(at), {k: given[k] for k in _sizes(program) & {*given}}
        )
        given = sizes | given
        if not program.rule.discrete and program.tables and hasattr(program.rule, "system"):
            name, reason = min(program.tables), "is a table in the training rule of a flow"
            raise SpecError(f"arrays.{name}", None, reason, "an expression in derive.program.t in its place")
        written, author, counted = program, dict[str, str](), dict[str, float]()
        if by_role:
            program, author, counted = named_by_role(program)
        of_roles = _symbols(program)
        stated = {x.name: x for x in symbols_of(written)}
        names = {author.get(name, name): name for name in of_roles if name not in counted}
        symbols = {own: stated.get(own, of_roles[name]) for own, name in names.items()}
        for name, value in given.items():
            if name not in symbols and name not in sizes:
                raise SpecError(f"numbers.{name}", value, "is no symbol of the theory", ", ".join(symbols))
        for name, x in symbols.items():
            if name in given:
                require_domain(written, x, given[name])
            elif not x.is_integer:
                accepted = f"a number for this symbol of the theory{or_a_weight(written, name)}"
                raise SpecError(f"numbers.{name}", None, "is missing", accepted)
        require_constants(written, {x: given[name] for name, x in symbols.items() if name in given})
        if by_role:
            # a number and a function of one name are renamed apart
            symbol_of = {own: name for name, own in author.items() if name in {*of_roles, *_sizes(program)}}
            role = {own: name for name, own in author.items() if name in names_of_arrays(program)}
            given = counted | {symbol_of.get(name, name): x for name, x in given.items()}
            data = {role.get(name, name): x for name, x in data.items()}
        found = {x: given[name] for name, x in of_roles.items() if name in given}
        seen = _training_samples(program, data, int(given.get(P.name, 0)))
        origin: dict[str, Any] = {"author": author, "written": written} if author else {}
        if family is not None and by_role:
            family = named_by_role(family)[0]
            family = family if family.at_depth(depth) == program else None
        origin["family"] = family
        problem = cls(program, found, data, at, output_times, solver, seen=seen, text=text, **origin)
        of_modes = problem.attributes and problem.has_roles and problem.is_random_data
        return problem._over_modes() if of_modes else problem

    def _over_modes(self) -> Self:
        """The problem of random data whose modes have attributes, with sums over modes in its theory.

        Raises SpecError for a number of modes that is not the length of these arrays.
        """
        arrays = {x.name: self.arrays[x.name] for x in self.program.attributes}
        count = len(next(iter(arrays.values())))
        spectrum, fresh = (
            Spectrum(arrays, np.ones(count)),
            any(gaussian(m).fresh for m in self.program.matrices),
        )
        first: tuple[Reduction, ...] = (instant_responses,) if fresh else ()
        counted = {M: float(count)} if M in _symbols(self.program).values() else {}
        numbers = {**counted, **self.numbers}
        try:  # a program that counts its modes
            derived(integrated(self.program), (*first, mode_sums))
        except NotApplicable:
            numbers[UNITS] = float(count)
            return replace(self, reductions=(*first, unit_averages), spectrum=spectrum, numbers=numbers)
        if numbers.get(M, count) != count:
            reason = f"is not the number of modes of {', '.join(self.attributes)}"
            raise SpecError(f"numbers.{M}", numbers[M], reason, str(count))
        return replace(self, reductions=(*first, mode_sums), spectrum=spectrum, numbers=numbers)

    @property
    def is_random_data(self) -> bool:
        """Whether results hold losses of random data, those of the theory's ``C_v``, and no outputs."""
        known = self.program.roles.learnt is not None and C_LEARNT in self.program.notation.values()
        return known and not self.program.scalars

    def varied(self, variant: Variant) -> Self:
        """The problem of another program made of this one, with the same numbers and arrays.

        >>> from derive.reduce.independence import independent_backward
        >>> tables = {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 3}}
        >>> e = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
        >>> Problem.of(e).varied(independent_backward).program == Problem.of(e).program
        False
        """
        return replace(self, program=variant(self.program), family=None)

    def require_finite_rules(self) -> None:
        """Raise SpecError for a coefficient of a training rule that is infinite or not real at a time."""
        numbers = {**self.numbers, P: self.numbers.get(P, self.seen)}
        found = not_finite(self.program, numbers, self.arrays, self.times)
        if found is not None:
            coefficient, at = found
            what = f"the coefficient {coefficient} of its training rule"
            told = f"{what} is not a finite real number at t = {at:.6g}"
            accepted = f"a rule whose coefficients are finite from t = 0 to {self.times[-1]:g}"
            raise SpecError(*self.said("training.rule"), told, accepted)

    def at_all_times(self) -> Self:
        """The problem whose results hold all times that are solved for."""
        experiment = None if self.experiment is None else self.experiment.at_all_times()
        return replace(self, output_times=None, experiment=experiment)

    @property
    def held(self) -> NDArray[np.intp] | None:
        """The positions of the output times among ``times``; None for all of them."""
        if self.output_times is None or np.array_equal(self.output_times, self.times):
            return None
        return np.searchsorted(self.times, self.output_times)

    @property
    def time_name(self) -> str:
        """What time counts: "step", or "time" of a flow."""
        return "time" if self.flow else "step"

    def told(self, names: Iterable[str]) -> list[str]:
        """What the author of the program calls these names of it."""
        return [self.author.get(name, name) for name in names]

    @property
    def has_roles(self) -> bool:
        """Whether results call variables by role.

        A program needs one output ``f`` with its error, or ``C_v`` among its correlations, the error of a
        function that is learnt from random data.  Of other programs results hold what there is under the
        names of its author.
        """
        scalars = {*self.program.scalars}
        if self.experiment is not None or {OUTPUT, ERROR} <= scalars:
            return True
        return self.is_random_data

    @property
    def features_rest(self) -> bool:
        """Whether gamma0 of the file stands for gamma0/sqrt(N) on fixed samples: zero at infinite width."""
        return self.experiment is not None and self.experiment.spec.features_rest

    def at_width(self, width: int) -> Self:
        """The problem of networks of ``width``, whose gamma0 is divided by the root of it in NTK scaling.

        >>> tables = {"network": {"depth": 2, "parametrization": "ntk"},
        ...     "training": {"learning_rate": 0.1, "steps": 3}}
        >>> e = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
        >>> Problem.of(e).at_width(400).numbers[gamma0]
        0.05
        """
        if not self.features_rest:
            return self
        return replace(self, numbers={**self.numbers, gamma0: self.numbers[gamma0] / width**0.5})

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

    def open_depth(self) -> SpecError:
        """Return the refusal of a depth that is a symbol, for what needs a number."""
        reason = "is a symbol, and numbers need a number of layers"
        if self.experiment is not None:
            return SpecError(
                "network.depth", self.experiment.value("network.depth"), reason, "an integer >= 1"
            )
        name = str(self.program.depth)
        accepted = f'numbers={{..., "{name}": 2}}, program.at_depth(2), or --set network.depth=2'
        return SpecError("program", self.program.name, f"its depth {name} {reason}", accepted)

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Tables of the memory of rules in steps, by the names that :attr:`discrete` gives them.

        Those of a flow depend on the grid of its integrator, and are not here.
        """
        if self.flow:
            return {}
        found: dict[str, Array] = {}
        numbers = {**self.numbers, P: self.numbers.get(P, self.seen)}
        for _, tables in tables_of_program(self.program):
            found |= tables.values(numbers, self.times, arrays=self.arrays)
        return found

    @property
    def data(self) -> dict[str, Array]:
        """The arrays of the problem, and :attr:`memory`."""
        return {**self.arrays, **self.memory}

    @cached_property
    def literals(self) -> dict[Slot, Literals]:
        """The axes of arrays that the program reads at integers."""
        return literals_in(self.program, {str(x): v for x, v in self.numbers.items()})

    def position(self, symbol: AppliedUndef, axis: int) -> int:
        """The position of the integer that stands at this axis of an array, in ``y(mu, 2)`` at axis 1."""
        name = str(symbol.func)
        found = self.literals.get((name, axis), Literals())
        return found.position(int(symbol.args[axis]), self.arrays[name].shape[axis])

    @property
    def sample_count(self) -> int:
        """The number of training samples and test points."""
        return int(self.numbers.get(P, self.seen))

    @property
    def positions(self) -> bool:
        """Whether units of a layer stand at positions, as those of a convolution do."""
        return self.program.roles.position is not None

    @cached_property
    def by_sample(self) -> bool:
        """Whether backward fields differ from sample to sample; those of a linear network do not."""
        stated = general(integrated(self.program), self.reductions).order_parameters
        return any(q.symbol.has(mu) for q in stated if q.name == GRADIENT_KERNEL)

    @property
    def outputs(self) -> int:
        """The number of outputs: of the targets, else what the theory or the program says."""
        roles = self.program.roles
        end = _channels_of_random_data(self.program) if roles.output is None else roles.channels
        return 1 if end is None else int(expression(end).subs(self.numbers))

    @cached_property
    def theory(self) -> Theory:
        """What is derived for the program, at its depth."""
        return derived(self.program, self.reductions, tuple(self.layered))

    @cached_property
    def discrete(self) -> Theory:
        """The same in steps: of a flow, the theory as an integrator with weights ``w(t, s)`` has it."""
        return derived(integrated(self.program), self.reductions, tuple(self.layered))

    def stepped(self, *reductions: Reduction) -> Theory:
        """The theory in steps after further ``reductions``; where the error of a flow jumps it is a ramp."""
        program = integrated(self.program)
        program = widened(program) if self.flow and error_jumps(program) else program
        return derived(program, (*self.reductions, *reductions), tuple(self.layered))

    @cached_property
    def linear(self) -> LinearForm | NotApplicable:
        """The linear form of :attr:`discrete`, or the reason why it has none."""
        return _linear(self.discrete)

    @property
    def data_sha256(self) -> str | None:
        """The :func:`.fingerprint` of the arrays that were given, not of what follows from them."""
        return fingerprint(self.arrays if self.experiment is None else self.experiment.arrays)

    @property
    def held_out(self) -> HeldOut | None:
        """The test points: those of the file, or the samples that count nothing in a program's loss."""
        if self.experiment is not None:
            return self.experiment.held_out
        if self.seen == self.sample_count:
            return None
        kernel, targets = self.arrays.get(INPUT_KERNEL, np.zeros((0, 0))), self.arrays.get(TARGETS)
        return HeldOut(kernel, None if targets is None else targets[self.seen :], None, self.seen)

    @property
    def targets(self) -> Array:
        """y of training samples."""
        return self.arrays[TARGETS][: self.seen]

    @property
    def objective(self) -> str | None:
        """The loss of an output by its name; None of a program, whose losses are squares of its errors."""
        return None if self.experiment is None else self.experiment.objective

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the numbers that units of the program keep, read from arrays.

        Modes of random data have a spectrum instead.
        """
        own = () if self.experiment is not None or self.spectrum is not None else self.program.attributes
        return tuple(self.told(x.name for x in own))

    def require_no_attributes(self, what: str) -> None:
        """Raise SpecError if units of the program have attributes, which ``what`` does not take."""
        if self.attributes:
            names = ", ".join(self.attributes)
            reason = f"has attributes of units ({names}), which {what} does not take"
            raise SpecError("program", self.program.name, reason, "solve and simulate")

    def said(self, key: str) -> tuple[str, Any]:
        """A key of the file with its value, for a refusal; of a program without a file its own name."""
        if self.experiment is None:
            return "program", self.program.name
        return key, self.experiment.value(key)


EVALUATE = "numerics.solver.direct.evaluate, which solves it for a few steps"
"""What serves programs that methods do not."""


def _channels_of_random_data(program: Program) -> Expr | None:
    """How far the index of outputs runs, which the error of the function learnt has."""
    ends = [r.upper for d in program.definitions for r in d.ranges if d.name == ERROR_VECTOR]
    return ends[0] if len(ends) == 1 else None


def _training_samples(program: Program, data: Mapping[str, Array], samples: int) -> int:
    """How many samples are trained on: those before the last ones with weight zero.

    One of a stream, and none of random data.
    """
    roles = program.roles
    if roles.learnt is not None:
        return 0
    if roles.output is None or roles.sample is None:
        return samples if roles.output is None else 1
    weights = data.get(roles.weight or "")
    if weights is None or weights.ndim != 1 or not weights.any():
        return samples
    trained = int(np.flatnonzero(weights)[-1]) + 1
    return trained if weights[:trained].all() else samples


@lru_cache(maxsize=64)
def _linear(theory: Theory) -> LinearForm | NotApplicable:
    try:
        return linear_form(theory)
    except NotApplicable as reason:
        return reason


def _times_of(times: ArrayLike | None, steps: bool) -> tuple[Array, Array | None]:
    """The times to solve for, and the output times among them if these are fewer.

    >>> _times_of([0, 2], steps=True)
    (array([0., 1., 2.]), array([0., 2.]))
    """
    if times is None:
        accepted = "rising step numbers" if steps else "rising times >= 0"
        raise SpecError("times", None, "is missing", accepted)
    at = real_numbers("times", times)
    if at.ndim != 1 or not len(at):
        raise SpecError("times", None, f"has shape {at.shape}", "a list of times")
    check_times("times", at.tolist(), steps)
    if steps and at[-1] > MOST_STEPS:
        raise SpecError("times", at[-1], "is too many steps", f"at most {MOST_STEPS}")
    whole = np.arange(at[-1] + 1) if steps else np.unique([0.0, *at])
    return whole, None if np.array_equal(whole, at) else at


def _symbols(program: Program) -> dict[str, Symbol]:
    """The symbols of a program that need numbers, by name: those of its theory, loss and training rules."""
    indices = {t, ell, *(r.index for d in program.definitions for r in d.ranges)}
    weights = {gaussian(m).name for m in program.matrices} | {parameter(v).name for v in program.vectors}
    loss = expression(0 if program.loss is None else program.loss)
    own = {x.name: x for x in loss.free_symbols - indices if x.name not in weights}
    return own | symbols_of_rules(program) | derived(program).symbols


def _sizes(program: Program) -> set[str]:
    """The names of the symbols that say how far an index runs."""
    return {r.upper.name for d in program.definitions for r in d.ranges if isinstance(r.upper, Symbol)}
