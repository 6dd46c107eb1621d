"""Problems: a theory with numbers for its symbols, named arrays and times.

    problem = Problem.of("digits.toml")                                       # an experiment file
    problem = Problem.of(program, numbers={...}, arrays={...}, times=range(51))  # a program

Methods solve problems.  Whether the network of a problem is linear, for example, follows from its theory and
not from a key of a file.
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
from derive.program.shifted_constants import Slot
from derive.reduce.data import UNITS, instant_responses, mode_sums, unit_averages
from derive.theory import Theory, mean_field
from numerics.errors import SpecError
from numerics.experiment.checks import given_times
from numerics.experiment.experiment import Experiment, HeldOut, fingerprint
from numerics.experiment.finite_coefficients import not_finite
from numerics.experiment.given_data import (
    checked_arrays,
    checked_numbers,
    literals_in,
    names_of_arrays,
    or_a_weight,
    require_constants,
    require_domain,
    require_ranges,
)
from numerics.experiment.integer_indices import Literals
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
from numerics.experiment.parameter_domains import require_in_domains
from numerics.experiment.schema import MOST_STEPS, Solver
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
class ReplacedTheory:
    """Reduction that ignores the derived theory and returns the one that the user gave.

    It is used if the user changed the theory of a program before solving it.
    """

    theory: Theory

    def __call__(self, _: Theory) -> Theory:
        """Return the theory of the user in place of the derived theory."""
        return self.theory


DERIVATION = 2e-2, 2e-4
"""Seconds to derive and compile a layer, and each pair of layers; measured for up to 512 layers."""


def derivation(depth: object) -> float:
    """Return the estimated seconds to derive the equations of ``depth`` layers; 0 unless it is an ``int``."""
    layers = float(depth) if isinstance(depth, int) else 0.0
    return DERIVATION[0] * layers + DERIVATION[1] * layers**2


def require_derivation(key_value: tuple[str, Any], depth: object, most: float) -> None:
    """Raise SpecError if deriving the equations for ``depth`` layers takes more than ``most`` hours.

    ``key_value`` are the key that the error names, and its value.  A depth that is a symbol takes no time.
    """
    hours = derivation(depth) / 3600
    if hours > most:
        raise SpecError(
            *key_value,
            f"deriving its equations takes about {hours:.2g} hours",
            "fewer layers, or a larger solver.hours",
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """A theory, numbers for its symbols, named arrays and times.

    Attributes
    ----------
    program : Program
        The program that is trained; its rule counts steps or is a flow.
    numbers : mapping of Symbol to float
        A number for each symbol of the theory.
    arrays : mapping of str to array
        Given arrays, by their names in the theory, such as ``K_x`` (P, P), ``y`` (P,) or (P, C), and ``rho``
        (P,), where P counts test points too.
    times : array, shape (T,)
        Times that are solved for: all steps 0, 1, ... of a rule in steps; for a flow 0, the output times, and
        the end of training if an experiment states it.
    output_times : array or None
        Times that results hold, some of ``times``; None for all of them.
    solver : Solver
        Samples, seed, tolerances and method.
    reductions : tuple of callable
        Changes of the derived theory: sums over modes, the limit of wide layers, ...
    layered : mapping
        Numbers of each layer, by the name of their function; ``numbers`` holds them too.
    spectrum : Spectrum or None
        Modes of random data, if units have attributes; None for other data.
    seen : int
        Number of training samples, which come before test points; 0 for random data.
    text : str
        The text that results keep as ``spec``.
    author : mapping of str to str
        The author's names of the program, by the names in ``program``.
    written : Program or None
        The program as its author wrote it, if that has other names.
    family : Program or None
        The program at symbolic depth, if ``program`` is that program at a depth given in ``numbers``.
    experiment : Experiment or None
        The experiment of the problem, whose keys error messages name; None for a program.
    response_method : {"auto", "jacobian", "stein"}
        How sampled paths compute responses: by derivatives along paths, by Stein's lemma, or by the cheaper
        of the two for networks of few layers.
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
        """Raise SpecError if deriving the equations takes longer than ``solver.hours``.

        >>> given = {"kernel": [[1.0]], "targets": [1.0]}
        >>> tables = {"network": {"depth": 10**9}, "training": {"learning_rate": 0.1, "steps": 3}}
        >>> Problem.of(Experiment.from_dict(tables, **given))
        Traceback (most recent call last):
        numerics.errors.SpecError: network.depth = 1000000000: deriving its equations takes about ...
        """
        require_derivation(self.key_and_value("network.depth"), self.depth, self.solver.hours)

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
        **unknown: object,
    ) -> Problem:
        """Return the problem of an experiment, its file, or a program (or theory) with its numbers.

        ``numbers``, by symbol or name, ``arrays``, by name, ``times``, ``solver`` and ``text``, which results
        keep, belong to a program or theory. Numbers and arrays are needed as far as the program contains
        symbols and data; ``times`` are the output times, which a program always needs; None for ``solver`` is
        the default table [solver]. A problem is returned unchanged. A theory that differs from the one that
        its program derives, such as one with a term left out, is solved as it is.

        Raises :class:`~numerics.errors.SpecError` for a number, an array or a time that is missing, for one
        that does not belong to the program, for a training rule that is not valid at a time, for numbers,
        arrays, times, a solver or text beside an experiment or a problem, and for a flow whose theory was
        changed. Raises TypeError for any other argument.

        >>> from derive.program import eta, gamma0, mlp
        >>> given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "times": range(3)}
        >>> problem = Problem.of(mlp(2, "tanh"), arrays={"K_x": [[1.0]], "y": [1.0]}, **given)
        >>> problem.depth, problem.flow, problem.numbers[P]
        (2, False, 1.0)
        """
        if unknown:
            names = ", ".join(f"{name} = {value!r}" for name, value in unknown.items())
            settings = ", ".join(sorted(Solver.model_fields))
            raise TypeError(
                f"{names}: not an argument of a problem: the arguments are numbers, arrays, times, solver "
                f"and text, and solver = Solver(...) has the settings {settings}"
            )
        given = {"numbers": numbers, "arrays": arrays, "times": times, "solver": solver, "text": text or None}
        _require_source(source, given)
        if isinstance(source, Problem):
            return source
        if isinstance(source, str | Path | Experiment):
            problem = cls._of_experiment(Experiment.of(source))
            problem.require_valid_rules()
            return problem
        program = source.program if isinstance(source, Theory) else source
        changed = isinstance(source, Theory) and source not in (derived(program), mean_field(program))
        asked = (numbers or {}, arrays or {}, times, solver or Solver(), text)
        problem = cls._of_program(program, *asked, by_role=not changed)
        problem.require_valid_rules()
        if not isinstance(source, Theory) or not changed:
            return problem
        if problem.flow:
            raise SpecError(
                "theory",
                None,
                "differs from the theory that is derived from its program. Such a theory is solved only for "
                "rules in steps, and this theory is a flow",
                "the program of the theory, or the same change of a theory in steps",
            )
        layers = None if source.program.depth.is_Integer else problem.depth
        return replace(
            problem, reductions=(ReplacedTheory(source if layers is None else source.at_depth(layers)),)
        )

    @classmethod
    def _of_experiment(cls, experiment: Experiment) -> Problem:
        """Return the problem of an experiment."""
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
        """Return the problem of a program with numbers, arrays and times.

        ``times`` are the output times; None raises SpecError. ``text`` is the specification that results
        keep. With ``by_role`` the program gets the names that results use, such as f for its output; without
        it the names of the author stay.
        """
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
            program, arrays, len(at), {k: given[k] for k in _sizes(program) & {*given}}, given
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
        symbols = {
            author_name: stated.get(author_name, of_roles[name]) for author_name, name in names.items()
        }
        for name, value in given.items():
            if name not in symbols and name not in sizes:
                raise SpecError(f"numbers.{name}", value, "is not a symbol of the theory", ", ".join(symbols))
        for name, x in symbols.items():
            if name in given:
                require_domain(written, x, given[name])
            elif not x.is_integer:
                raise SpecError(
                    f"numbers.{name}",
                    None,
                    "is missing",
                    f"a number for this symbol of the theory{or_a_weight(written, name)}",
                )
        numbers_given = {x: given[name] for name, x in symbols.items() if name in given}
        require_constants(written, numbers_given)
        require_ranges(written, numbers_given)
        if by_role:
            # An author may give a number and a function the same name. Therefore there are two dictionaries:
            # `symbol_of` renames numbers, and `role` renames functions, which are given as arrays.
            symbol_of = {
                author_name: name
                for name, author_name in author.items()
                if name in {*of_roles, *_sizes(program)}
            }
            role = {
                author_name: name for name, author_name in author.items() if name in names_of_arrays(program)
            }
            given = counted | {symbol_of.get(name, name): x for name, x in given.items()}
            data = {role.get(name, name): x for name, x in data.items()}
        numbers_by_symbol = {x: given[name] for name, x in of_roles.items() if name in given}
        seen = _training_samples(program, data, int(given.get(P.name, 0)))
        origin: dict[str, Any] = {"author": author, "written": written} if author else {}
        if family is not None and by_role:
            family = named_by_role(family)[0]
            family = family if family.at_depth(depth) == program else None
        origin["family"] = family
        problem = cls(
            program, numbers_by_symbol, data, at, output_times, solver, seen=seen, text=text, **origin
        )
        of_modes = problem.attributes and problem.has_roles and problem.is_random_data
        return problem._over_modes() if of_modes else problem

    def _over_modes(self) -> Self:
        """Return the problem with averages over modes of random data computed from the given attributes.

        The attributes of modes, such as eigenvalues, are arrays with an entry for each mode. Averages become
        sums over modes, or means over these entries if they cannot be written as sums. For sums, raises
        SpecError if the number of modes in the program is not the length of these arrays.
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
        # `mode_sums` turns averages into sums over modes. It raises NotApplicable, for example if the number
        # of modes M does not cancel. In this case `unit_averages` is used instead, which turns averages into
        # means over the entries of the attributes.
        try:
            derived(integrated(self.program), (*first, mode_sums))
        except NotApplicable:
            numbers[UNITS] = float(count)
            return replace(self, reductions=(*first, unit_averages), spectrum=spectrum, numbers=numbers)
        if numbers.get(M, count) != count:
            raise SpecError(
                f"numbers.{M}",
                numbers[M],
                f"is not the number of modes of {', '.join(self.attributes)}",
                str(count),
            )
        return replace(self, reductions=(*first, mode_sums), spectrum=spectrum, numbers=numbers)

    @property
    def is_random_data(self) -> bool:
        """Whether results hold losses of random data, from the theory's ``C_v``, and no outputs."""
        known = self.program.roles.learnt is not None and C_LEARNT in self.program.notation.values()
        return known and not self.program.scalars

    def varied(self, variant: Variant) -> Self:
        """Return the problem of the program ``variant(program)``, with the same numbers and arrays.

        >>> from derive.reduce.independence import independent_backward
        >>> tables = {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 3}}
        >>> e = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
        >>> Problem.of(e).varied(independent_backward).program == Problem.of(e).program
        False
        """
        return replace(self, program=variant(self.program), family=None)

    def require_valid_rules(self) -> None:
        """Raise SpecError for a training rule that is not valid at a time of the problem.

        Refused are coefficients that are infinite or not real, and parameters that leave their interval, such
        as a rate that becomes negative. For an experiment only the former are checked here, because its
        schema checks the intervals.
        """
        numbers = {**self.numbers, P: self.numbers.get(P, self.seen)}
        bad = not_finite(self.program, numbers, self.arrays, self.times)
        if bad is not None:
            coefficient, at = bad
            raise SpecError(
                *self.key_and_value("training.rule"),
                f"the coefficient {coefficient} of its training rule is not a finite real number at t = "
                f"{at:.6g}",
                f"a rule whose coefficients are finite from t = 0 to {self.times[-1]:g}",
            )
        if self.experiment is not None:
            return  # the schema has checked each schedule of the file by its key
        named = {self.author.get(x.name, x.name): v for x, v in numbers.items()}
        arrays = {self.author.get(name, name): x for name, x in self.arrays.items()}
        program = self.program if self.written is None else self.written
        require_in_domains(program, named, arrays, self.times)

    def at_all_times(self) -> Self:
        """Return the problem whose results hold all times that are solved for."""
        experiment = None if self.experiment is None else self.experiment.at_all_times()
        return replace(self, output_times=None, experiment=experiment)

    @property
    def held(self) -> NDArray[np.intp] | None:
        """Positions of the output times among ``times``; None for all of them."""
        if self.output_times is None or np.array_equal(self.output_times, self.times):
            return None
        return np.searchsorted(self.times, self.output_times)

    @property
    def held_times(self) -> Array:
        """Output times of the results: the entries of ``times`` at the positions ``held``.

        They are all ``times`` if ``held`` is None.
        """
        return self.times if self.held is None else self.times[self.held]

    @property
    def time_name(self) -> str:
        """Unit of time: "step", or "time" for a flow."""
        return "time" if self.flow else "step"

    def author_names(self, names: Iterable[str]) -> list[str]:
        """Return the names by which the author of the program calls ``names``, in the same order.

        ``names`` are those of the renamed program, whose output is f and whose error is Delta. A name that
        was not changed is returned as it is.
        """
        return [self.author.get(name, name) for name in names]

    @property
    def has_roles(self) -> bool:
        """Whether results name variables by role.

        They always do for an experiment. A program needs one output ``f`` and its error, or ``C_v`` among its
        correlations, the error of a function learnt from random data. Results of other programs use the
        author's names.
        """
        scalars = {*self.program.scalars}
        if self.experiment is not None or {OUTPUT, ERROR} <= scalars:
            return True
        return self.is_random_data

    @property
    def features_rest(self) -> bool:
        """Whether features do not move at infinite width, because of NTK scaling on fixed samples.

        gamma0 of the file then means gamma0/sqrt(N), which is zero in this limit. False for a program.
        """
        return self.experiment is not None and self.experiment.spec.features_rest

    def at_width(self, width: int) -> Self:
        """Return the problem of networks of ``width``: in NTK scaling gamma0 is divided by sqrt(width).

        This is done for fixed samples only; other problems are returned unchanged.

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
        """Whether time is continuous and not counted in steps."""
        return not self.program.rule.discrete

    @property
    def values(self) -> dict[Symbol | str, float]:
        """Numbers by symbol, with integers where they are whole, because sizes must be integers."""
        return {x: int(v) if float(v).is_integer() else v for x, v in self.numbers.items()}

    @property
    def depth(self) -> int | None:
        """Number of hidden layers; None if it is a symbol."""
        depth = self.program.depth
        return int(depth) if isinstance(depth, Integer) else None

    def open_depth(self) -> SpecError:
        """Return the SpecError for a depth that is a symbol where a number of layers is needed."""
        reason = "is a symbol, but computing needs a number of layers"
        if self.experiment is not None:
            return SpecError(
                "network.depth", self.experiment.value("network.depth"), reason, "an integer >= 1"
            )
        name = str(self.program.depth)
        return SpecError(
            "program",
            self.program.name,
            f"its depth {name} {reason}",
            f'numbers={{..., "{name}": 2}}, program.at_depth(2), or --set network.depth=2',
        )

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Tables of the memory of rules in steps, by the names that :attr:`discrete` gives them.

        Empty for a flow, whose tables depend on the grid of its integrator.
        """
        if self.flow:
            return {}
        memory: dict[str, Array] = {}
        numbers = {**self.numbers, P: self.numbers.get(P, self.seen)}
        for _, tables in tables_of_program(self.program):
            memory |= tables.values(numbers, self.times, arrays=self.arrays)
        return memory

    @property
    def data(self) -> dict[str, Array]:
        """Arrays of the problem, and :attr:`memory`."""
        return {**self.arrays, **self.memory}

    @cached_property
    def literals(self) -> dict[Slot, Literals]:
        """Index value of the first entry, and integers that are read, of axes by (array name, axis).

        The dictionary holds the axes that are read at integers, as in ``y(mu, 2)``, or at indices with known
        first values.
        """
        return literals_in(self.program, {str(x): v for x, v in self.numbers.items()})

    def position(self, symbol: AppliedUndef, axis: int) -> int:
        """Return the position, counted from 0, of the integer index in ``symbol`` on an axis of its array.

        For example, ``symbol`` is ``y(mu, 2)`` and ``axis`` is 1. Raises ValueError if the array has no such
        entry.
        """
        name = str(symbol.func)
        axis_literals = self.literals.get((name, axis), Literals())
        return axis_literals.position(name, int(symbol.args[axis]), self.arrays[name].shape[axis])

    @property
    def sample_count(self) -> int:
        """Number of training samples and test points together; 0 for random data of an experiment."""
        return int(self.numbers.get(P, self.seen))

    @property
    def positions(self) -> bool:
        """Whether fields have exactly one index besides those of layer, sample, output and time.

        Mostly this index numbers positions within a layer, as in a convolution; it may count steps or
        experts.
        """
        return self.program.roles.position is not None

    @cached_property
    def by_sample(self) -> bool:
        """Whether an order parameter named ``G`` has an index of samples.

        In an experiment on fixed samples ``G`` is the correlation of gradients, which has no such index in a
        linear network. The author of a program may give this name to another order parameter.
        """
        stated = general(integrated(self.program), self.reductions).order_parameters
        return any(q.symbol.has(mu) for q in stated if q.name == GRADIENT_KERNEL)

    @property
    def outputs(self) -> int:
        """Number of outputs of the network; 1 for a program without an index of outputs."""
        return len(self.output_values)

    @property
    def output_values(self) -> range:
        """Values of the index of outputs in the program; the value 1 if there is no such index."""
        ends = _range_of_outputs(self.program)
        first, last = (int(expression(x).subs(self.numbers)) for x in ends or (1, 1))
        return range(first, last + 1)

    @cached_property
    def theory(self) -> Theory:
        """Theory of the program at its depth, after :attr:`reductions`."""
        return derived(self.program, self.reductions, tuple(self.layered))

    @cached_property
    def discrete(self) -> Theory:
        """Theory in steps after :attr:`reductions`.

        For a flow, it is the theory of its integrator with quadrature weights ``w(t, s)``.
        """
        return derived(integrated(self.program), self.reductions, tuple(self.layered))

    def stepped(self, *reductions: Reduction) -> Theory:
        """Return the theory in steps after further ``reductions``, which follow those of the problem.

        For a flow, it is the theory of its integrator, in which jumps of the error as a function of the
        output become steep ramps.
        """
        program = integrated(self.program)
        program = widened(program) if self.flow and error_jumps(program) else program
        return derived(program, (*self.reductions, *reductions), tuple(self.layered))

    @cached_property
    def linear(self) -> LinearForm | NotApplicable:
        """Linear form of :attr:`discrete`, or the reason why it has none."""
        return _linear(self.discrete)

    @property
    def data_sha256(self) -> str | None:
        """The :func:`.fingerprint` of the arrays of [data], or of those of a program; None without arrays."""
        return fingerprint(self.arrays if self.experiment is None else self.experiment.arrays)

    @property
    def held_out(self) -> HeldOut | None:
        """Test points of the file, or the samples of weight zero in a program's loss.

        None if there are none. The kernel of a program without an array ``K_x`` is nan.
        """
        if self.experiment is not None:
            return self.experiment.held_out
        if self.seen == self.sample_count:
            return None
        unknown = np.full((self.sample_count, self.sample_count), np.nan)
        kernel, targets = self.arrays.get(INPUT_KERNEL, unknown), self.arrays.get(TARGETS)
        return HeldOut(kernel, None if targets is None else targets[self.seen :], None, self.seen)

    @property
    def targets(self) -> Array:
        """Targets of training samples, (P,) or (P, C).

        Raises KeyError for a problem without the array ``y``, such as one of random data.
        """
        return self.arrays[TARGETS][: self.seen]

    @property
    def objective(self) -> str | None:
        """Name of the loss of an output; None for a program."""
        return None if self.experiment is None else self.experiment.objective

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names that the author gave to the attributes of units, which are read from arrays.

        Modes of random data have a spectrum instead; the result is then empty.
        """
        attributes = (
            () if self.experiment is not None or self.spectrum is not None else self.program.attributes
        )
        return tuple(self.author_names(x.name for x in attributes))

    def require_no_attributes(self, what: str) -> None:
        """Raise SpecError if units of the program have attributes, which ``what`` does not support."""
        if self.attributes:
            names = ", ".join(self.attributes)
            raise SpecError(
                "program",
                self.program.name,
                f"has attributes of units ({names}), which {what} does not take",
                "solve and simulate",
            )

    def key_and_value(self, key: str) -> tuple[str, Any]:
        """Return the first two arguments of a SpecError: a dotted key of the file, and its value.

        For the problem of a program, which has no file, these are "program" and the name of the program.
        """
        if self.experiment is None:
            return "program", self.program.name
        return key, self.experiment.value(key)


EVALUATE = "numerics.solver.direct.evaluate, which solves the program for a few steps"
"""Advice for programs that no method supports."""


def _require_source(source: object, given: Mapping[str, object]) -> None:
    """Raise SpecError for a source that no problem is made of, and for arguments that do not fit.

    An argument does not fit if it has a wrong type, or if the source has its own numbers.
    ``given`` holds the other arguments of :meth:`Problem.of` by name.
    """
    for name in ("numbers", "arrays"):
        if not isinstance(given[name], Mapping | None):
            raise SpecError(name, None, f"is {type(given[name]).__name__}", "a mapping by name, {...}")
    if not isinstance(given["solver"], Solver | None):
        kind = type(given["solver"]).__name__
        raise SpecError("solver", None, f"is {kind}", "numerics.experiment.schema.Solver(...)")
    if isinstance(source, Network):
        raise SpecError(
            "source",
            source.name,
            "is a Network, which has no loss and no rule",
            "the program that its training by a rule gives, network.train(loss, GradientDescent(eta))",
        )
    if not isinstance(source, Problem | Experiment | Program | Theory | str | Path):
        raise SpecError(
            "source",
            None,
            f"{type(source).__name__} is not a problem",
            "an experiment, the path of its file, a program or a theory",
        )
    if isinstance(source, Program | Theory):
        return
    for name, value in given.items():
        if value is not None:
            kind = "a problem" if isinstance(source, Problem) else "an experiment"
            raise SpecError(
                name, None, f"is given in addition to {kind}, which has its own", "leaving it out"
            )


def _range_of_outputs(program: Program) -> tuple[Expr, Expr] | None:
    """Return the first and the last value of the index of outputs in a program.

    For random data it is the index of the error vector. None if the program has no such index, or several.
    """
    roles = program.roles
    name = roles.learnt if roles.output is None else str(roles.output.func)
    ranges = [r for d in program.definitions for r in d.ranges if d.name == name]
    if roles.output is not None:
        ranges = [r for r in ranges if r.index == roles.channel]
    return (ranges[0].lower, ranges[0].upper) if len(ranges) == 1 else None


def _training_samples(program: Program, data: Mapping[str, Array], samples: int) -> int:
    """Return the number of training samples; samples of weight zero at the end are test points.

    The weight is that in the loss, an array in ``data``. All samples count if weights are not given or are
    all zero, or if a sample of weight zero comes before one of another weight. The result is one for a
    program with an output but without an index of samples, and zero for random data. ``samples`` is the
    number of all samples, which is also the result for a program without a single output.
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
    """Return the linear form of a theory, or the NotApplicable error that states why it has none."""
    try:
        return linear_form(theory)
    except NotApplicable as reason:
        return reason


def _times_of(times: ArrayLike | None, steps: bool) -> tuple[Array, Array | None]:
    """Return the times to solve for, and ``times`` as output times, or None if both are equal.

    Times to solve for are all steps from 0 to the last one; for a flow (``steps`` is false), 0 and ``times``.
    Raises SpecError for times that are missing, do not increase, are negative, or are not steps, for more
    than MOST_STEPS steps, and for a flow that ends at time 0.

    >>> _times_of([0, 2], steps=True)
    (array([0., 1., 2.]), array([0., 2.]))
    """
    if times is None:
        accepted = "rising step numbers" if steps else "rising times >= 0"
        raise SpecError("times", None, "is missing", accepted)
    at = given_times(times, steps=steps)
    if not steps and at[-1] == 0:
        reason = "ends at the start, and a flow is solved up to a later time"
        raise SpecError("times", at.tolist(), reason, "rising times >= 0, the last of which is positive")
    if steps and at[-1] > MOST_STEPS:
        raise SpecError("times", at[-1], "is too many steps", f"at most {MOST_STEPS}")
    whole = np.arange(at[-1] + 1) if steps else np.unique([0.0, *at])
    return whole, None if np.array_equal(whole, at) else at


def _symbols(program: Program) -> dict[str, Symbol]:
    """Return the symbols of theory, loss and training rules of a program that need numbers, by name."""
    indices = {t, ell, *(r.index for d in program.definitions for r in d.ranges)}
    weights = {gaussian(m).name for m in program.matrices} | {parameter(v).name for v in program.vectors}
    loss = expression(0 if program.loss is None else program.loss)
    of_loss = {x.name: x for x in loss.free_symbols - indices if x.name not in weights}
    return of_loss | symbols_of_rules(program) | derived(program).symbols


def _sizes(program: Program) -> set[str]:
    """Return the names of the symbols in a program that are upper ends of indices, such as P."""
    return {r.upper.name for d in program.definitions for r in d.ranges if isinstance(r.upper, Symbol)}
