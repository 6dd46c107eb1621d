"""Theories without memory by quadrature: nodes move by the derived equations, and increase in number.

Nodes are points and weights for averages over a few independent standard normal numbers. For analytic
functions and n points along a dimension, the error falls as ``exp(-c n)`` for the trapezoidal rule, cut off
where the Gaussian is below rounding, and as ``exp(-c sqrt(n))`` for Gauss-Hermite, which is exact for
polynomials. Scrambled Sobol points are used for functions with kinks and in many dimensions. The method
``nodes`` solves networks with one hidden layer in this way.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_hermitenorm
from sympy import Abs, Expr, Heaviside, Max, Min, Piecewise, Symbol, sign

from derive.calculus.averages import Average
from derive.calculus.symbols import s, t
from derive.reduce.memoryless import markov
from derive.theory import Theory
from numerics.errors import (
    SMALLER,
    Diverged,
    NotConverged,
    SpecError,
    Unserved,
    require_choice,
    require_whole,
)
from numerics.experiment import Experiment
from numerics.experiment.checks import by_name, given_times
from numerics.experiment.parameter_domains import require_in_domains_at_steps
from numerics.experiment.problem import Problem
from numerics.lowering.averages import MeanResponse, read_average
from numerics.lowering.expressions import arranged, function, observable
from numerics.lowering.indices import IndexSymbols, RealNumber, at_integer_depth, axes_of, node_of
from numerics.lowering.memoryless import Present, System
from numerics.names import MemberKey
from numerics.quotients import without_overflow
from numerics.solver.named_values import Evaluated, averaged, stacked
from numerics.stats import normal_points
from numerics.threads import one_thread

Array = NDArray[np.float64]

FACTOR = 1.5
"""Ratio of successive numbers of points along a dimension, up to rounding."""
KINKED = (Abs, Max, Min, Heaviside, Piecewise, sign)
"""Functions with kinks or jumps."""
RATES = 20_000
"""Largest number of evaluations of the equations of motion of a flow."""
ENOUGH = 30
"""Number of points along a dimension from which the trapezoidal rule is more precise than Gauss-Hermite."""
QUADRATURE = 1e-6
"""Accuracy if the file does not state one."""
SCATTERED = 0.3
"""Measured relative error of scattered points times the root of their number."""
REPLICAS, TRIALS = 8, 2
"""Number of sets of scattered points, and number of sizes of these sets that a forecast tries."""
FEWEST = 256
"""Number of scattered points of the first run of a forecast."""
TRIED = 0.3
"""Largest seconds of a forecast with scattered points if another method may be chosen."""
EACH = 2.5e-8
"""Measured seconds for each value on a node at each time, for many nodes; few nodes take longer."""
LARGEST = 2**26
"""Largest number of values of fields at all times on all nodes."""


@dataclass(frozen=True)
class TwoLayerSolved(Evaluated):
    """Solution of :func:`solve_two_layer`.

    ``errors`` are differences between the two finest sets of nodes, or standard errors over the sets of
    scattered points.

    Attributes
    ----------
    rule : str
        Rule of quadrature.
    dimensions : int
        Number of independent normal numbers.
    nodes : int
        Number of nodes of the last set.
    times : numpy.ndarray
        Output times, shape ``(times,)``.
    reached : float
        Largest error of all values, relative to the largest value of the same name and layer. For a flow the
        tolerance of its integrator is added.
    scalar_error : float
        The same for scalars only.
    kernel_error : float or None
        The same for order parameters and observables; None if these were not computed.
    converged : bool
        Whether ``reached`` is at most the required accuracy.
    weights : numpy.ndarray
        Weight of each node: ``weights @ phi(paths["h", (1,)][-1, 0])`` is an average. Shape ``(nodes,)``.
    paths : dict
        Fields on the last set of nodes by name and layer, shape ``(times, *indices, nodes)``.
    """

    rule: str
    dimensions: int
    nodes: int
    times: Array
    reached: float
    scalar_error: float
    kernel_error: float | None
    converged: bool
    weights: Array = field(repr=False)
    paths: Mapping[MemberKey, Array] = field(repr=False)


@one_thread
def solve_two_layer(  # noqa: PLR0913 - public signature
    theory: Theory,
    *,
    steps: int | None = None,
    times: Sequence[float] | Array | None = None,
    values: Mapping[Symbol | str, RealNumber] | None = None,
    data: Mapping[str, Any] | None = None,
    accuracy: float = 1e-6,
    rule: Rule | Literal["auto"] = "auto",
    most: int = 2**18,
    replicas: int = 8,
    seed: int = 0,
    kernels: bool = True,
    start: int | None = None,
) -> TwoLayerSolved:
    """Solve a theory without memory, as of one hidden layer, by quadrature.

    In discrete time the solution is exact at ``0..steps-1`` apart from the error of quadrature; a flow is
    integrated at ``times`` with a tolerance far below ``accuracy``. The initial Gaussian variables are
    independent normal numbers times a root of their covariance, as many as its numerical rank: P + 1 for P
    independent samples and one output. Averages over them are sums over nodes that move by the derived
    equations (:func:`derive.reduce.memoryless.markov`).

    Parameters
    ----------
    theory : Theory
        Theory without memory.
    steps : int, optional
        Number of times of a theory in discrete time; None for a flow.
    times : array_like, optional
        Output times of a flow, increasing from 0 or later, shape ``(times,)``; None in discrete time.
    values : dict, optional
        Numbers for symbols.
    data : dict, optional
        Arrays of data by name.
    accuracy : float
        Tolerance, relative to the largest value of each name and layer. If it is not reached with ``most``
        nodes, the last solution is returned with ``converged`` false.
    rule : {"auto", "hermite", "trapezoid", "sobol"}
        ``"hermite"`` and ``"trapezoid"`` are tensor products of one-dimensional rules, whose number of points
        rises by half until two results agree to ``accuracy``. ``"sobol"`` takes ``replicas`` independent sets
        of scattered points, and doubles the points of each set until the standard error is small enough.
        ``"auto"`` takes Gauss-Hermite for polynomials in up to six dimensions; for other smooth functions in
        up to four dimensions the trapezoidal rule, or Gauss-Hermite if ``most`` allows fewer than 30 points
        along each; and scattered points otherwise.
    most : int
        Largest number of nodes of a set, at least 1. It is lowered if kernels would need too much memory. A
        first set of ``start`` points is used even if it has more nodes, and so is a tensor product of two
        points along each dimension, which is the smallest one.
    replicas : int
        Number of sets of scattered points, at least 2; the standard error follows from their scatter.
    seed : int
        Seed of the scattered points.
    kernels : bool
        Whether to compute order parameters and observables, which need most of the memory.
    start : int, optional
        First number of points, along each dimension or in each scattered set; by default it depends on the
        rule. If a tensor product has room for one set of nodes only, its error is unknown and infinite.

    Returns
    -------
    TwoLayerSolved
        Values, errors, nodes and paths.

    Raises
    ------
    NotApplicable
        For a theory with memory.
    Unserved
        For averages that no rule covers.
    ValueError
        For a symbolic depth, for missing values and data, for steps of a flow or times in discrete time, for
        missing steps or times, times that do not increase, ``steps``, ``start`` or ``most`` below 1,
        ``replicas`` below 2, another ``rule``, a kernel of the data that is not symmetric positive
        semidefinite, and a parameter of a training rule that leaves its interval at a step.
    Diverged
        If a value is not finite, or if the integrator of a flow fails.
    NotConverged
        For a flow whose rates of change are evaluated too many times.

    Examples
    --------
    >>> from derive.theory import mean_field
    >>> from derive.program import P, eta, gamma0, mlp
    >>> given = {"values": {eta: 0.5, gamma0: 1, P: 1}, "data": {"K_x": [[1.0]], "y": [1.0]}}
    >>> solved = solve_two_layer(mean_field(mlp(1, "tanh")), steps=3, accuracy=1e-9, **given)
    >>> print(solved.rule, solved.dimensions, solved.converged, solved.value("Delta").round(6).tolist())
    trapezoid 2 True [[1.0], [0.598979], [0.385721]]
    """
    for name, count in (("steps", steps), ("start", start)):
        if count is not None:
            require_whole(name, count, 1, "must be at least 1")
    most = require_whole("most", most, 1, "is the largest number of nodes of a set")
    require_whole("replicas", replicas, 2, "gives no standard error, which is the scatter of several sets")
    require_choice("rule", rule, ("auto", *get_args(Rule)))
    require_whole("seed", seed, 0, "must not be negative")
    if not accuracy > 0:
        raise SpecError("accuracy", accuracy, "is not a relative error", "a positive number")
    given: dict[str, Any] = {"steps": steps, "times": times, "values": values, "data": data}
    if steps is not None:
        require_in_domains_at_steps(theory.program, values, data, steps)
    solver = _NodeSolver(theory, kernels=kernels, accuracy=accuracy, most=most, rule=rule, **given)
    for last in solver.answers(start, replicas, seed):
        if last.reached <= accuracy:
            break
    scalars = {*solver.system.scalars}
    return TwoLayerSolved(
        "quadrature" if solver.rule != "sobol" else "scattered points",
        last.values,
        last.errors,
        rule=solver.rule,
        dimensions=solver.dimensions,
        nodes=len(solver.weights),
        times=solver.times,
        reached=last.reached,
        scalar_error=last.largest(scalars),
        kernel_error=last.largest(last.errors.keys() - scalars) if last.errors.keys() - scalars else None,
        converged=last.reached <= accuracy,
        weights=solver.weights,
        paths=solver.paths(),
    )


@dataclass(frozen=True)
class Forecast:
    """Estimated seconds, bytes and relative error of a solution by quadrature, and its number of ``nodes``.

    Each node is a set of initial fields that moves by the equations of the theory. If ``tried`` is true,
    cost and error were extrapolated from complete runs with few nodes; otherwise the cost is a lower bound,
    and the error follows from the number of scattered points alone.
    """

    cost: float
    memory: float
    error: float
    rule: str
    nodes: int
    tried: bool = True


@one_thread
def forecast(
    problem: Problem,
    accuracy: float,
    *,
    kernels: bool = True,
    most: int = 2**18,
    patience: float = np.inf,
) -> Forecast:
    """Estimate the cost of :func:`solve_nodes` and its error, from runs with few nodes.

    ``accuracy`` is the required relative error, ``most`` the largest number of nodes, and ``kernels`` states
    whether order parameters are computed. The error of a tensor product is assumed to fall exponentially with
    the number of points along a dimension, at the rate seen between the runs; that of scattered points falls
    as the inverse root of their number.

    For scattered points and a finite ``patience`` the trial runs may be left out, and the cost is then a
    lower bound. They are left out if the accuracy is at most QUADRATURE, which needs the largest number of
    points, and this takes longer than ``patience`` seconds; or if one set of FEWEST points, which is run,
    shows that the trial runs would take longer than TRIED seconds. Raises the errors of
    :func:`solve_two_layer`.
    """
    given = _given(problem) | {"most": most}
    plain = _NodeSolver(problem.theory, kernels=kernels, accuracy=accuracy, **given)
    trial = _NodeSolver(problem.theory, kernels=False, accuracy=max(accuracy, 1e-4), **given)
    trial.rule, d = plain.rule, plain.dimensions
    sobol, began = plain.rule == "sobol", clock.process_time()
    if sobol and accuracy <= QUADRATURE:
        cost = 2 * EACH * plain.entries * len(plain.times) * REPLICAS * plain.most
        if cost > patience:
            memory = 16.0 * plain.entries * len(plain.times) * plain.most
            return Forecast(
                cost, memory, SCATTERED * (REPLICAS * plain.most) ** -0.5, plain.rule, plain.most, tried=False
            )
    if sobol and patience < np.inf:
        points = normal_points(FEWEST, d, np.random.SeedSequence(problem.solver.seed))
        trial.run(Nodes(points, np.full(FEWEST, 1 / FEWEST)))
        overhead = clock.process_time() - began  # seconds that a replica takes even with the fewest nodes
        if TRIALS * REPLICAS * overhead > TRIED:
            enough = int(min(plain.most, max(1.0, (SCATTERED / accuracy) ** 2 / REPLICAS)))
            numbers = plain.entries * len(plain.times) * enough
            cost = (TRIALS + 1) * REPLICAS * overhead + 2 * EACH * REPLICAS * numbers
            error = max(accuracy, SCATTERED * (REPLICAS * enough) ** -0.5)
            return Forecast(cost, 16.0 * numbers, error, plain.rule, enough, tried=False)
        began = clock.process_time()
    counts: list[int] = []
    errors: list[float] = []
    sizes: list[int] = []
    spent: list[float] = []
    for answer in trial.answers(FEWEST if sobol else None, REPLICAS, problem.solver.seed):
        now = clock.process_time()
        counts, errors = [*counts, answer.count], [*errors, answer.reached]
        sizes, spent, began = [*sizes, len(trial.weights)], [*spent, now - began], now
        if len(counts) == (TRIALS if sobol else 3) or answer.reached <= accuracy:
            break
    last, error, size = counts[-1], errors[-1], 1 if sobol else max(d, 1)
    if sobol:
        count = min(most, last * max(1.0, (error / accuracy) ** 2))
        error = error * (last / count) ** 0.5
    else:
        # The last error is the difference between the results of the last two sets of nodes, and is taken as
        # the error of the coarser set. The number of points that is needed is therefore extrapolated from
        # that of the coarser set, counts[-2].
        finite = [e for e in errors if np.isfinite(e)]
        fall = np.log(finite[-2] / finite[-1]) / (counts[-2] - counts[-3]) if len(finite) > 1 else 0.0
        needed = counts[-2] + np.log(max(error / accuracy, 1.0)) / fall if fall > 0 else np.inf
        possible = list(_counts(plain.rule, d, plain.most, None))
        count = max(last, next((x for x in possible if x >= FACTOR * needed), possible[-1]))
        if error > accuracy:
            error *= float(np.exp(-max(fall, 0.0) * max(count / FACTOR - counts[-2], 0.0)))
    nodes = max(int(sizes[-1] * (count / last) ** size), sizes[-1])
    each = EACH * plain.entries * len(plain.times) * (REPLICAS if sobol else 1)
    if len(sizes) > 1:
        each = max(each, (spent[-1] - spent[-2]) / (sizes[-1] - sizes[-2]))
    # Each set of nodes is larger than the one before by a constant factor, so that the cost of all sets is a
    # geometric series. `sets` is the cost of all sets divided by that of the largest.
    sets = 1 / (1 - (0.5 if sobol else FACTOR**-size))
    cost = sets * (spent[-1] + each * (nodes - sizes[-1])) * (2.0 if kernels else 1.0) + sum(spent)
    return Forecast(cost, 16.0 * plain.entries * len(plain.times) * nodes, error, plain.rule, nodes)


def solve_nodes(source: Problem | Experiment, **options: Any) -> TwoLayerSolved:
    """Solve a problem or an experiment on given samples by :func:`solve_two_layer`, at its output times.

    ``options`` are those of :func:`solve_two_layer`. Raises its errors, such
    as :class:`~derive.errors.NotApplicable` at an integer depth other than one.

    >>> training = {"rule": "flow", "time": 1.0, "points": 3}
    >>> spec = {"network": {"depth": 1, "activation": "tanh"}, "training": training}
    >>> experiment = Experiment.from_dict(spec, kernel=[[1.0]], targets=[1.0])
    >>> solve_nodes(experiment).value("Delta").shape
    (3, 1)
    """
    problem = Problem.of(source)
    return solve_two_layer(problem.theory, **_given(problem) | options)


def _given(problem: Problem) -> dict[str, Any]:
    """Return numbers, data and times of a problem as keyword arguments of :func:`solve_two_layer`."""
    at = {"times": problem.times} if problem.flow else {"steps": len(problem.times)}
    return {"values": problem.values, "data": problem.arrays, **at}


moving = lru_cache(maxsize=32)(markov)
"""The equations of motion of a theory, derived once."""


def _chosen(system: System, dimensions: int, most: int) -> Rule:
    """Return the rule of quadrature for the functions of a theory and the number of dimensions.

    It is "sobol" for functions with kinks, for polynomials in more than six dimensions, and for other
    functions in more than four. Otherwise it is "hermite" for polynomials, and if ``most``, the largest
    number of nodes, allows fewer than ENOUGH points along each dimension; and "trapezoid" in all other cases.
    """
    polynomial = True
    for e in system.fields.values():
        f = function(e.rhs)
        if f.body.has(*KINKED):
            return "sobol"
        moving = [x for x, y in zip(f.slots, f.leaves, strict=True) if system.is_random(y)]
        polynomial = polynomial and bool(f.body.is_polynomial(*moving))
    if dimensions > (6 if polynomial else 4):
        return "sobol"
    return "hermite" if polynomial or most < ENOUGH**dimensions else "trapezoid"


def _counts(rule: Rule, dimensions: int, most: int, start: int | None) -> Iterator[int]:
    """Yield increasing numbers of points: along each dimension, or in each set of scattered points.

    ``most`` is the largest number of nodes, ``start`` the first number of points, which is yielded even if
    its nodes are more than ``most``. The default of the first number (None) has at most ``most`` nodes, but
    at least two points along a dimension, or one scattered point.
    """
    count = start or {"sobol": 1024, "hermite": 4, "trapezoid": 12}[rule]
    if start is None and rule == "sobol":
        count = min(count, 2 ** (max(most, 1).bit_length() - 1))  # Sobol sequences have powers of two
    elif start is None:
        # The error is the difference of the results of two sets of nodes. The first set is therefore so small
        # that a second, larger one has at most `most` nodes. The first set has at least two points along each
        # dimension, even if a second set is then too large.
        count = max(2, min(count, int(most ** (1 / max(dimensions, 1)) / FACTOR)))
    yield count
    while True:
        count = 2 * count if rule == "sobol" else max(count + 1, int(FACTOR * count))
        if (count if rule == "sobol" else count**dimensions) > most:
            return
        yield count


@dataclass(frozen=True)
class _Answer:
    """Solution with one number of points: values by key (name, layer), and errors in the same shapes."""

    count: int
    values: dict[MemberKey, Array]
    errors: dict[MemberKey, Array]
    steps: float
    """Error of the time steps, which is added to that of the points."""

    def largest(self, places: Iterable[MemberKey]) -> float:
        """Return the largest error of the values with these keys, relative to the largest value of each key.

        The tolerance of the integrator of a flow is added.
        """
        sizes = {k: max(float(np.abs(self.values[k]).max()), 1e-300) for k in places}
        return max((float(self.errors[k].max()) / x for k, x in sizes.items()), default=0.0) + self.steps

    @property
    def reached(self) -> float:
        """Largest error of all values, relative to the largest value of each key.

        The tolerance of the integrator of a flow is added.
        """
        return self.largest(self.errors)


class _NodeSolver:
    """Solver of a theory without memory by quadrature, one solution for each set of nodes.

    Each node is a set of initial fields that moves by the equations of the theory. The options are those of
    :func:`solve_two_layer`.
    """

    def __init__(  # noqa: PLR0913 - options of solve_two_layer
        self,
        theory: Theory,
        *,
        steps: int | None = None,
        times: Sequence[float] | Array | None = None,
        values: Mapping[Symbol | str, RealNumber] | None,
        data: Mapping[str, Any] | None,
        kernels: bool,
        accuracy: float,
        most: int,
        rule: Rule | Literal["auto"] = "auto",
    ) -> None:
        reduced = moving(at_integer_depth(theory, {}).map(without_overflow))
        if reduced.discrete == (steps is None) or reduced.discrete == (times is not None):
            raise ValueError(
                "a theory in discrete time needs steps and no times, and a flow needs times and no steps"
            )
        if times is None:
            assert steps is not None
            at = np.arange(steps, dtype=float)
        else:
            at = given_times(times, steps=False)
        system = System(reduced, by_name("values", values or {}), data or {})
        self.system, self.times, self.accuracy = system, at, accuracy
        self.kernels = reduced.theory.order_parameters if kernels else ()
        self.observables = reduced.theory.observables if kernels else ()
        self.pieces: dict[Expr, IndexSymbols] = {}
        self.halves = {q: self.split(q.definition) for q in self.kernels}
        self.weights: Array = np.zeros(0)
        self.dimensions = next(iter(system.root.values())).shape[-1] if system.root else 0
        self.most = min(most, LARGEST // (len(at) * self.entries)) if kernels else most
        self.rule = _chosen(system, self.dimensions, self.most) if rule == "auto" else rule

    def answers(self, start: int | None, replicas: int, seed: int) -> Iterator[_Answer]:
        """Yield solutions with increasing numbers of quadrature points, until the largest number is reached.

        Errors are differences from the solution before, infinite for the first one, or standard errors over
        ``replicas`` sets of scattered points. ``start`` is the first number of points; None takes a default.
        """
        last: dict[MemberKey, Array] | None = None
        for count in _counts(self.rule, self.dimensions, self.most, start):
            if self.rule == "sobol":
                seeds = np.random.SeedSequence(seed).spawn(replicas)
                points = (normal_points(count, self.dimensions, x) for x in seeds)
                runs = [self.run(Nodes(x, np.full(count, 1 / count))) for x in points]
                values, errors = averaged(stacked(runs))
            else:
                values = self.run(tensor(self.rule, count, self.dimensions))
                errors = {
                    k: np.abs(v - last[k]) if last else np.full(v.shape, np.inf) for k, v in values.items()
                }
                last = values
            yield _Answer(count, values, errors, self.steps)

    @property
    def steps(self) -> float:
        """Tolerance of the integrator of a flow; zero in discrete time.

        It is 1/1000 of the required accuracy, and at least 1e-12.
        """
        return 0.0 if self.system.markov.discrete else max(self.accuracy / 1000, 1e-12)

    @property
    def entries(self) -> int:
        """Number of values that are stored for each time and each node."""
        kept = sum(int(np.prod(self.system.shape(a))) for a in self.pieces.values())
        return max(kept + self.system.size, 1)

    def split(self, e: Expr) -> tuple[Expr, Expr, Expr]:
        """Return a, b and c of an order parameter ``e`` of the form ``c <a(t) b(s)>``, with a number c.

        In b the time s is replaced by t. Both functions are also added to ``pieces``, with their indices.
        Raises Unserved for a response, and for any other form.
        """
        number, average = e.as_independent(Average)
        if not isinstance(average, Average) or number.has(t, s):
            raise Unserved(
                f"the order parameter {e} is not supported: it must be one average times a constant"
            )
        body = read_average(average.body)
        if isinstance(body, MeanResponse):
            raise Unserved(
                f"the order parameter {e} is a response, and this method computes no responses, because it "
                "solves theories without memory: use another method"
            )
        late, early = body.late, body.early.xreplace({s: t})
        sizes = self.system.extents.sizes
        for piece in (late, early):
            self.pieces[piece] = tuple(y for y in sorted(piece.free_symbols, key=str) if y in sizes)
        return late, early, number

    def run(self, nodes: Nodes) -> dict[MemberKey, Array]:
        """Return the values of the theory by key (name, layer), from one set of nodes.

        These are the scalars and, with the option ``kernels``, order parameters and observables.
        """
        self.weights = nodes.weights
        self.start = {n: x @ nodes.points for n, x in self.system.root.items()}
        with np.errstate(over="ignore", invalid="ignore"):
            self.moved = self.march() if self.system.markov.discrete else self.flow()
            return self.results()

    def present(self, states: Array, time: float) -> Present:
        """Return an object that evaluates fields, scalars and averages of the theory at one time.

        ``states`` are the values at that ``time`` of the variables that move, at all nodes, shape
        ``(states, nodes)``.
        """
        return Present(self.system, self.start, self.weights, states, time)

    def march(self) -> list[Array]:
        """Return the states at all nodes of the quadrature in discrete time, one array for each time.

        States are the variables that move, which are zero at time 0. Each array has shape
        ``(states, nodes)``. Raises Diverged if a value is not finite.
        """
        states = [np.zeros((self.system.size, len(self.weights)))]
        for now in self.times[:-1]:
            states.append(self.present(states[-1], now).motion())
            if not np.isfinite(states[-1]).all():
                raise Diverged(
                    f"fields are not finite at step {int(now) + 1}: a smaller learning rate is needed"
                )
        return states

    def flow(self) -> list[Array]:
        """Return the states of the nodes at all output times of a flow, each of shape ``(states, nodes)``.

        Raises Diverged if a rate is not finite or the integrator fails, and NotConverged after RATES
        evaluations.
        """
        shape = (self.system.size, len(self.weights))

        count = 0

        def rate(time: float, y: Array) -> Array:
            nonlocal count
            count += 1
            if count > RATES:
                raise NotConverged(
                    f"the flow has only reached t = {time:g} after {RATES} evaluations of the rates of "
                    "change, possibly because fields at some nodes of the average over initial weights "
                    "move much faster than at others; use a shorter time or a larger tolerance (accuracy)"
                )
            motion = self.present(y.reshape(shape), time).motion().ravel()
            if not np.isfinite(motion).all():
                raise Diverged(
                    f"the flow diverges: at t = {time:g} a rate of change is not finite; use a shorter "
                    "time, or numbers nearer to one for symbols such as gamma0"
                )
            return motion

        from scipy.integrate import solve_ivp  # imported here because it is slow and seldom used

        first = np.zeros(shape)
        if self.times[-1] == 0:
            return [first]
        solution = solve_ivp(
            rate,
            (0.0, float(self.times[-1])),
            first.ravel(),
            t_eval=self.times,
            method="DOP853",
            rtol=self.steps,
            atol=self.steps,
        )
        if not solution.success or not np.isfinite(solution.y).all():
            last = solution.t[-1] if len(solution.t) else 0
            raise Diverged(
                f"the integrator of the flow fails after the output time t = {last:g}: {solution.message}"
            )
        return [y.reshape(shape) for y in solution.y.T]

    def results(self) -> dict[MemberKey, Array]:
        """Return scalars, order parameters and observables by key, from the states at all times.

        Raises Diverged if a value is not finite.
        """
        system = self.system
        results: dict[MemberKey, Array] = {}
        rows: dict[MemberKey, list[Array]] = {n: [] for n in system.scalars}
        pieces: dict[Expr, list[Array]] = {e: [] for e in self.pieces}
        for states, now in zip(self.moved, self.times, strict=True):
            present = self.present(states, now)
            for n, e in system.scalars.items():
                rows[n].append(present.array(n, e.lhs)[..., 0])
            for piece, axes in self.pieces.items():
                value = np.broadcast_to(present.value(piece, axes), (*system.shape(axes), len(self.weights)))
                pieces[piece].append(value)
        for n, row in rows.items():
            results[n] = np.stack(row)
        together = {e: np.stack(v) for e, v in pieces.items()}
        for q, (late, early, number) in self.halves.items():
            symbol_axes = axes_of(q.symbol)
            scale = self.present(self.moved[0], 0.0).value(number, ())
            results[node_of(q.symbol)] = scale.item() * self.correlate(together, late, early, symbol_axes)
        for e in self.observables:
            replicas = {k: v[..., None] for k, v in results.items()}
            extents, literals = system.extents, system.literals
            given = system.values, system.data, None, extents.first, literals, extents.sizes
            value = observable(e, replicas, *given)
            results[node_of(e.lhs)] = value[..., 0].copy()
        if not all(np.isfinite(x).all() for x in results.values()):
            raise Diverged(f"averages are not finite: {SMALLER}")
        return results

    def correlate(
        self, pieces: Mapping[Expr, Array], late: Expr, early: Expr, indices: IndexSymbols
    ) -> Array:
        """Return ``<late(t) early(s)>`` as a sum over nodes with their weights, for all times t and s.

        ``late`` and ``early`` are two functions of the state of a node, and ``pieces`` holds their values at
        all times and nodes. The axes of the result are ``indices``, t and s.
        """
        x, y = pieces[late], pieces[early]
        first, second = self.pieces[late], self.pieces[early]
        n = len(self.weights)
        flat = (x * self.weights).reshape(-1, n) @ y.reshape(-1, n).T
        shaped = flat.reshape(*x.shape[:-1], *y.shape[:-1])
        averages = arranged(shaped, (t, *first, s, *second), (*indices, t, s))
        return np.broadcast_to(averages, (*self.system.shape(indices), len(x), len(y)))

    def paths(self) -> dict[MemberKey, Array]:
        """Return the fields at all times on the last set of nodes, by key (name, layer)."""
        paths: dict[MemberKey, list[Array]] = {}
        for states, now in zip(self.moved, self.times, strict=True):
            present = self.present(states, now)
            for n, e in self.system.fields.items():
                value = present.array(n, e.lhs)
                full = np.broadcast_to(value, (*value.shape[:-1], len(self.weights)))
                paths.setdefault(n, []).append(full)
        return {n: np.stack(v) for n, v in paths.items()}


Rule = Literal["trapezoid", "hermite", "sobol"]

TENSOR_RULES = ("trapezoid", "hermite")
"""Rules along one dimension, of which nodes are products; ``"sobol"`` has scattered points."""

REACH = 8.3
"""Range of the trapezoidal rule in standard deviations; the Gaussian is 1e-15 of its maximum there."""
NEGLIGIBLE = 1e-16
"""Nodes with less than this share of the largest weight are left out."""


@dataclass(frozen=True)
class Nodes:
    """Nodes of a quadrature: ``points``, shape ``(dimensions, count)``, and ``weights`` with sum one."""

    points: Array
    weights: Array


def tensor(rule: Rule, count: int, dimensions: int) -> Nodes:
    """Return the product of ``dimensions`` one-dimensional rules of ``count`` points each.

    Nodes with less than NEGLIGIBLE of the largest weight are left out. Raises ValueError for "sobol".

    >>> nodes = tensor("trapezoid", 24, 2)
    >>> print(f"{nodes.weights @ (nodes.points[0]**2 * nodes.points[1]**4):.10f}")
    3.0000000000
    """
    require_choice("rule", rule, TENSOR_RULES)
    if rule == "hermite":
        x, w = roots_hermitenorm(count)
    else:
        x = np.linspace(-REACH, REACH, count)
        w = np.exp(-(x**2) / 2)
    points, weights = np.zeros((0, 1)), np.ones(1)
    for _ in range(dimensions):
        weights = (weights[:, None] * (w / w.max())).ravel()
        points = np.concatenate([np.repeat(points, count, axis=1), np.tile(x, points.shape[1])[None]])
        kept = weights > NEGLIGIBLE
        points, weights = points[:, kept], weights[kept]
    return Nodes(points, weights / weights.sum())
