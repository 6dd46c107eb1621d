"""Identities of a theory and its solution that need no finite networks for comparison.

:func:`derivation`, :func:`gradient_step`, :func:`correlations`, :func:`causality` and :func:`start` hold for
any theory. :func:`direct_evaluation`, :func:`unreduced_theory`, :func:`output_changes` and
:func:`inner_products` need the exact solutions of linear theories.  For a flow the error estimate must not
exceed the error that the march states, and descent in small steps must converge to it: descent is another
program with another theory, without an integrator.  Its loss is that of the flow plus a series in the length
of the steps, whose powers are removed one by one by halving the step (Richardson extrapolation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import S, Symbol

from derive.errors import NotApplicable
from derive.program import gamma0, s, t
from derive.program.gradient_check import check_gradients
from derive.program.program import Program
from derive.theory import Theory, mean_field
from derive.theory.compare import compare
from derive.theory.path_integral import path_integral
from numerics.errors import Diverged, SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.rates import next_step_factors
from numerics.experiment.theory import error_jumps, slope_jumps
from numerics.lowering.expressions import observable
from numerics.lowering.indices import axes_of
from numerics.lowering.linear import NotLinear, lower
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
    MemberKey,
)
from numerics.results import AUTHORED, systematic
from numerics.results.predictions import split
from numerics.simulation import simulate_program
from numerics.solver import solve
from numerics.solver.direct.evaluation import evaluate
from numerics.solver.linear.march import March, march
from numerics.solver.linear.method import MarchMethod
from numerics.solver.linear.plan import NotCausal
from numerics.solver.method import MethodEstimate, estimate_or_refusal
from numerics.stats import bound
from numerics.verification.report import EPS, LEVEL, Check
from numerics.verification.smaller_problems import (
    WRITTEN,
    arrays_of_theory,
    at_gamma0,
    descent,
    directly_evaluated,
    in_steps,
    smaller_problem,
    spectrum_of_problem,
    with_solver,
)

Array = NDArray[np.float64]

ONE_STEP, ONE_WIDTH = (2, 1), 4
"""Samples, steps and width of the network whose step is compared with differences of the loss."""

SAMPLES, STEPS = 5, 10
"""Samples and steps of the smaller problem on which fields are compared that a solution does not keep."""

LEAST = 1.0
"""Smallest gamma0 at which identities that hold at any gamma0 are checked."""

LARGEST_MATRIX = 1300
"""Largest kernel matrix whose eigenvalues are computed; larger ones are restricted to fewer times."""

CORRELATIONS = (FEATURE_KERNEL, GRADIENT_KERNEL, C_LEARNT, "C_Delta", "C_h0", C_FIELD, C_GRADIENT)
RESPONSES = (FORWARD_RESPONSE, BACKWARD_RESPONSE, "R_hr", "R_gu", "R_Delta", "R_vu", "R_h0r0")
LETTERS = {FEATURE_KERNEL: "H^l", GRADIENT_KERNEL: "G^l", C_FIELD: "C_h^l", C_GRADIENT: "C_g^l"}

FEWEST, MOST = 32, 512
"""Fewest and most steps of descent up to the time at which a flow is compared."""

NEAR = 1e-7
"""Relative perturbation of data and numbers that measures the amplification of rounding errors."""

SHARE = 0.5
"""Loss at the time at which a flow is compared, relative to its start; it changes fast there."""

SETTLED = 1e-3
"""Relative accuracy of the loss extrapolated to steps of zero length."""

SAMPLED_STEPS = (16, 32)
"""Steps of descent where the loss is an average over paths, whose noise is larger."""


# -- the theory ------------------------------------------------------------------------------------------


def derivation(problem: Problem, symbolic: Program | None) -> list[Check]:
    """Check that the conditioning rule and the path integral give the same theory, term by term.

    A second row counts updates that differ from the gradient of the program's loss; programs without a loss,
    or whose updates are not a gradient by intention, have no such row.  ``symbolic`` is the same program with
    a symbolic number of layers, or None; both rows are repeated for it.
    """
    layered = any(x.layered for x in problem.program.fields)
    label = f", L = {problem.depth}" if layered else ""
    programs = {label: problem.program} if problem.program.depth.is_Integer else {}
    if symbolic is not None:
        programs[", symbolic L"] = symbolic
    checks = []
    for label, program in (programs or {"": problem.program}).items():
        one, two = mean_field(program), path_integral(program).theory()
        name, basis = f"two derivations{label}: differences", f"{_terms(one)} terms compared"
        checks.append(Check("derivation", name, len(compare(one, two)), 0, 0, basis))
        with suppress(NotApplicable):
            wrong = len(check_gradients(program))
            name = f"wrong updates{label}"
            checks.append(Check("derivation", name, wrong, 0, 0, "from the loss, 2 units"))
    return checks


def gradient_step(problem: Problem) -> list[Check]:
    """Check one step of a network by the program's updates against central differences of the loss.

    The outputs and errors of a small network after the step must agree to half of the digits; central
    differences are more accurate.  The width is ONE_WIDTH, or the length of arrays with a number for each
    unit.  The list is empty for random data, a symbolic depth, a step that diverges, and a network that
    cannot have this width. It is also empty for a program without a loss or whose updates are not a gradient
    by intention, and if the slope of an activation or the error jumps.
    """
    program = problem.program
    if program.loss is None or program.descent is None or program.depth.free_symbols:
        return []
    # If results name variables by role (`has_roles`), but no samples are given, as on random data, there is
    # no network to compare, and the check is left out.
    if problem.has_roles and not problem.seen:
        return []
    small = smaller_problem(problem, *ONE_STEP)
    # Numbers of single units are given for all units of a network, so that they fix its width.
    units = {len(small.arrays[x.name]) for x in small.program.attributes if x.name in small.arrays}
    if slope_jumps(program) or error_jumps(program) or len(units) > 1:
        return []
    width = units.pop() if units else ONE_WIDTH
    options: dict[str, Any] = {"width": width, "steps": 1, "seeds": 1, "seed": problem.solver.seed}
    # Networks are trained on inputs or on a kernel of inputs. Entrywise rules need inputs, beside which a
    # problem holds their kernel.
    kernels = {x.kernel for x in small.program.given if x.name in small.arrays}
    options |= {"values": small.values, "data": {k: v for k, v in small.arrays.items() if k not in kernels}}
    if small.flow:
        options["dt"] = float(small.times[1])
    numerically = {"loss": program.loss, "parametrization": program.descent}
    try:
        derived, by_differences = (simulate_program(small.program, **options, **x) for x in ({}, numerically))
    except (NotApplicable, Diverged):
        return []
    except SpecError as refused:
        # Some networks cannot have this width. Any other refusal is a fault of the check itself.
        if refused.key != "width":
            raise
        return []
    pairs = [(derived[name].mean, by_differences[name].mean) for name in program.scalars]
    deviation = max(float(np.max(np.abs(a - b))) / max(1.0, float(np.max(np.abs(a)))) for a, b in pairs)
    name = "one step vs differences of the loss"
    return [Check("derivation", name, deviation, 0, EPS**0.5, "half of the digits", upper=True)]


def _terms(theory: Theory) -> int:
    """Return the size of a theory: the number of terms of its equations, sources and order parameters."""
    equations = (*theory.equations, *theory.scalars, *theory.observables)
    return sum(len(e.terms) for e in equations) + len(theory.sources) + len(theory.order_parameters)


# -- the solution of a smaller problem ----------------------------------------------------------------------


def march_of(small: Problem, table: Table, wanted: Sequence[FieldAtLayer]) -> March:
    """Solve the theory in ``table`` by a causal march, with the numbers and times of a smaller problem.

    ``table`` is the theory lowered to array operations. ``wanted`` are the fields and order parameters, with
    their layers, whose values the result keeps.
    """
    units, data = spectrum_of_problem(small), arrays_of_theory(small)
    steps, wanted = len(small.times), tuple(wanted)
    return march(table, steps=steps, constants=small.numbers, data=data, wanted=wanted, units=units)


def as_evaluated(theory: Theory, result: March) -> dict[MemberKey, Array]:
    """Return the order parameters and scalars that a march computed, as the reference solver returns them.

    Keys are a name with the layer, if any. Arrays of order parameters have an axis for each index, followed
    by two times; arrays of scalars have the time first, followed by their indices.
    """
    values: dict[MemberKey, Array] = {(e.name, ()): result.scalars[e.name] for e in theory.scalars}
    for q in theory.order_parameters:
        layer = next((int(x) for x in q.symbol.args[:1] if x.is_Integer), None)
        sizes = [result.extents[x] for x in q.symbol.args if isinstance(x, Symbol) and x not in (t, s)]
        a = result.tensor((q.name, layer))  # (T, n, T, m), for n and m members of its two fields
        first = next(i for i in range(len(sizes) + 1) if prod(sizes[:i]) == a.shape[1])
        shaped = a.reshape(a.shape[0], *sizes[:first], a.shape[2], *sizes[first:])
        values[q.name, () if layer is None else (layer,)] = np.moveaxis(shaped, (0, first + 1), (-2, -1))
    return values


def derived_numbers(small: Problem) -> dict[MemberKey, Array] | None:
    """Return the values of all order parameters and scalars of a problem's theory, solved by the march.

    The theory is not reduced first. None if it is not linear or not causal, so that it cannot be marched.
    """
    try:
        table = lower(small.discrete)
        return as_evaluated(small.discrete, march_of(small, table, [*table.tensors]))
    except (NotLinear, NotCausal):
        return None


def direct_evaluation(problem: Problem) -> list[Check]:
    """Return a check of the march against the reference solver, which evaluates the theory's expressions.

    Both solve the first steps on a few samples, at gamma0 of at least LEAST; shown is the largest relative
    difference of any order parameter or scalar. The list is empty if the march cannot solve the theory.
    """
    small = _not_lazy(directly_evaluated(problem))
    march_values, steps = derived_numbers(small), len(small.times)
    if march_values is None:
        return []
    read = evaluate(
        small.discrete, steps=steps, values=small.values, data=arrays_of_theory(small), method="linear"
    )
    worst = max(relative(march_values[x] - read.values[x], read.values[x]) for x in march_values)
    terms = WRITTEN[0] * steps * ((problem.depth or 1) + 1)
    name = f"march vs direct evaluation, {steps} times"
    basis = f"rounding, {len(march_values)} arrays{_changed_gamma0(problem, small)}"
    return [Check("solution", name, worst, 0, EPS * terms * steps * amplified(small, march_values), basis)]


def amplified(small: Problem, found: Mapping[MemberKey, Array]) -> float:
    """Return the largest factor, at least one, by which relative errors of data and numbers are amplified.

    Each array and number of the problem is changed by the relative size NEAR, the theory is solved again, and
    absolute changes of each array in ``found``, the solution, are added. Steps beyond the edge of stability
    multiply the rounding errors of earlier steps.
    """
    near = [replace(small, arrays={**small.arrays, k: (1 + NEAR) * x}) for k, x in small.arrays.items()]
    near += [replace(small, numbers={**small.numbers, k: (1 + NEAR) * x}) for k, x in small.numbers.items()]
    moved: dict[MemberKey, Array] = {k: np.zeros_like(x) for k, x in found.items()}
    for other in near:
        for k, x in (derived_numbers(other) or {}).items():
            moved[k] += np.abs(x - found[k]) / NEAR
    return max(1.0, *(relative(x, found[k]) for k, x in moved.items()))


def _not_lazy(small: Problem) -> Problem:
    """Return the problem at gamma0 of at least LEAST, for identities that hold at any gamma0.

    At finite width f(0) is of order 1/gamma0, so that a small gamma0 loses digits by cancellation.
    """
    return at_gamma0(small, max(LEAST, small.numbers[gamma0])) if gamma0 in small.numbers else small


def _changed_gamma0(problem: Problem, small: Problem) -> str:
    """Return the text "; gamma0=..." for the table if a check runs at another gamma0 than the problem has.

    ``small`` is the problem on which it runs. The text is "" if gamma0 is the same.
    """
    given, used = (x.numbers.get(gamma0) for x in (problem, small))
    return "" if given == used else f"; gamma0={used:g}"


def _both(problem: Problem) -> tuple[Problem, xr.Dataset, dict[MemberKey, Array]] | None:
    """Return a smaller problem, its solution by ``solve``, and the solution of its unreduced theory.

    The problem has few samples and takes exact steps: a flow is replaced by descent in steps that resolve it.
    The last member holds arrays by name and layer. The result is None if the unreduced theory cannot be
    solved by the march, and for a flow that is not from an experiment file.
    """
    small = in_steps(problem, SAMPLES, STEPS)
    full = None if small is None else derived_numbers(small)
    return None if small is None or full is None else (small, solve(small, kernels="full"), full)


def unreduced_theory(problem: Problem) -> list[Check]:
    """Check that `solve`, which reduces the theory, gives the numbers of the unreduced theory.

    Compared are errors, feature kernels and gradient kernels of a smaller problem. The list is empty if the
    march cannot solve the unreduced theory, and for a flow that is not from an experiment file.
    """
    if (both := _both(problem)) is None:
        return []
    small, result, full = both
    count = small.seen
    error = full[ERROR, ()][:, :count]
    gaps = [relative(result["error"].to_numpy() - error, error)]
    for name, derived_name in ((FEATURE_KERNEL, LINEAR_KERNEL), (GRADIENT_KERNEL, GRADIENT_KERNEL)):
        for k in range(1, (small.depth or 1) + 1):
            expected = np.moveaxis(full[derived_name, (k,)], (-2, -1), (0, 1))
            if name == FEATURE_KERNEL:
                expected = expected[:, :, :count, :count]
            gaps.append(relative(result[name].to_numpy()[k - 1] - expected, expected))
    name = f"solve vs unreduced theory, {len(small.times)} times"
    return [Check("solution", name, max(gaps), 0, rounding(small), "rounding")]


def output_changes(problem: Problem) -> list[Check]:
    """Return a check of the change of outputs in one step, in the solution of a linear network.

    ``f(t+1) - f(t)`` must be ``k(t) K Delta(t)`` with the errors Delta and the learning rate k, divided by
    the number of samples if the loss is a mean. K is the theory's expression for the tangent kernel, with the
    gradient kernels G(t+1,t) and the feature kernels H(t,t): a product of matrices changes by the sum over
    its factors, with later factors at t+1 and earlier factors at t, at any step size. The list is empty if
    the march cannot solve the unreduced theory, if this has no tangent kernel, and for a flow that is not
    from an experiment file.
    """
    both = _both(problem)
    if both is None or not both[0].discrete.observables:
        return []
    small, result, full = both
    seen, (equation,) = small.seen, small.discrete.observables
    data = {k: x[:seen, :seen] if k == INPUT_KERNEL else x for k, x in small.data.items()}
    error, f = result["error"].to_numpy(), full[OUTPUT, ()][:, :seen]
    times = np.arange(len(error) - 1)
    features, gradients = result[FEATURE_KERNEL][:, :-1, :-1], result[GRADIENT_KERNEL][:, 1:, :-1]
    read = {LINEAR_KERNEL: features, GRADIENT_KERNEL: gradients}
    tensors: dict[MemberKey, Array] = {
        (name, (k,)): np.moveaxis(layer, (0, 1), (-2, -1))[..., None]
        for name, x in read.items()
        for k, layer in enumerate(x.to_numpy(), 1)
    }
    numbers = {str(x): v for x, v in small.numbers.items()}
    kernel = observable(equation, tensors, numbers, data, (t, s, *axes_of(equation.lhs)))[..., 0]
    kernel = kernel[times, times].reshape(len(times), error[0].size, error[0].size)
    error, f = error.reshape(len(error), -1), f.reshape(len(f), -1)
    predicted = next_step_factors(small)[:, None] * np.einsum("tij,tj->ti", kernel, error[:-1])
    gap = relative(np.diff(f, axis=0) - predicted, error)
    return [Check("solution", "f(t+1) - f(t) = K Delta, exact steps", gap, 0, rounding(small), "rounding")]


def rounding(small: Problem) -> float:
    """Return the allowed rounding error of a solution, relative to the largest entry of each variable.

    A number is a sum of T P C terms in each layer, for T times, P samples and C outputs; each of T steps adds
    the rounding error of such a sum.
    """
    return EPS * len(small.times) ** 2 * small.sample_count * small.outputs * ((small.depth or 1) + 1)


def inner_products(problem: Problem) -> list[Check]:
    """Check that the inner product of g^l and h^l at equal times is the same number at every layer.

    It is the function W^L ... W^0 x (with residual branches too), split at layer l, for any weights.
    Biases, which enter in every layer, are not part of such a product.  <g^l h^l> is a mean over the layer,
    so that it is multiplied by the layer's size: by N_l on random data; on fixed samples by its root, because
    g^l is the root of N N_l times the gradient. The list is empty for one layer.
    """
    small = _not_lazy(smaller_problem(problem, SAMPLES, STEPS))
    layers, steps = range(1, (small.depth or 1) + 1), len(small.times)
    if len(layers) == 1:
        return []
    table = lower(small.discrete)
    pairs: dict[FieldAtLayer, Request] = {
        ("gh", k): Request("correlation", (GRADIENT, k), (FIELD, k), S.One) for k in layers
    }
    result = march_of(small, replace(table, tensors={**table.tensors, **pairs}), [*pairs])
    sizes = dict(small.layered.get("nu", {}))
    sizes |= {k: x**0.5 for k, x in small.layered.get("a", {}).items()}
    times = np.arange(steps)
    read = [sizes.get(k, 1.0) * result.tensor(("gh", k))[times, :, times] for k in layers]
    worst = max(relative(x - read[-1], read[-1]) for x in read)
    units = spectrum_of_problem(small)
    summed = (SAMPLES if small.seen else 1) * (len(units.counts) if units else 1)
    terms = steps * (len(layers) + 1) * summed
    name = "<g^l h^l>, the same at every layer"
    basis = f"rounding, {steps} times{_changed_gamma0(problem, small)}"
    return [Check("solution", name, worst, 0, EPS * terms * steps, basis)]


# -- the solution itself, sampled or not -------------------------------------------------------------------


def correlations(
    theory: xr.Dataset,
    off: float = 0.0,
    letters: Mapping[str, str] = LETTERS,
    authored: Sequence[str] = (),
) -> list[Check]:
    """Return checks that correlations of a solution are symmetric and positive semidefinite.

    These are feature and gradient kernels, C_v, C_Delta, C_h0, C_h and C_g, unless the program's author gave
    these names, and those in ``authored``, as far as the solution holds them. ``off`` is the relative error
    that is allowed beside rounding, for example because correlations of a flow on power-law data are
    interpolated. ``letters`` maps names of variables to their symbols in the table. ``authored`` are names,
    given by the program's author, of correlations of a vector with itself.
    """
    checks = []
    for name in CORRELATIONS:
        if name in theory and AUTHORED not in theory[name].attrs:
            checks += covariance(letters.get(name, name), blocks(theory[name]), off)
    for name in authored:
        if name in theory and _is_paired(theory[name]):
            checks += covariance(name, blocks(theory[name]), off)
    return checks


def _is_paired(x: xr.DataArray) -> bool:
    """Return whether each dimension of a variable, except layers, occurs twice, as ``time`` and ``time_``."""
    paired = [d for d in x.dims if f"{d}_" in x.dims]
    return {*x.dims} - {"layer"} == {*paired, *(f"{d}_" for d in paired)}


def blocks(x: xr.DataArray) -> Array:
    """Return a correlation as an array (layers, times, n, times, n); without layers the first length is one.

    All dimensions other than layer and time, such as samples and outputs, are joined to one of length n.
    """
    x = x if "layer" in x.dims else x.expand_dims("layer")
    axes = [d for d in x.dims if f"{d}_" in x.dims and d != "time"]
    ordered = x.transpose("layer", "time", *axes, "time_", *(f"{d}_" for d in axes))
    times, n = x.sizes["time"], int(np.prod([x.sizes[d] for d in axes]))
    return ordered.to_numpy().reshape(x.sizes["layer"], times, n, times, n)


def covariance(name: str, values: Array, off: float = 0.0) -> list[Check]:
    """Return checks that the array of each layer is symmetric and positive semidefinite as a matrix.

    ``values`` has shape (layers, times, n, times, n), where n counts samples and outputs, and ``name`` is its
    label in the table. The allowed deviation, relative to the largest entry or eigenvalue, is that of
    rounding plus ``off``. Eigenvalues of matrices larger than LARGEST_MATRIX are those at fewer times.
    """
    times, block = values.shape[1:3]
    keep = np.unique(np.linspace(0, times - 1, min(times, LARGEST_MATRIX // block or 1)).astype(int))
    asymmetry, lowest, size = 0.0, np.inf, times * block
    for matrix in values:
        flat = matrix.reshape(size, size)
        asymmetry = max(asymmetry, relative(flat - flat.T, flat))
        chosen = matrix[keep][:, :, keep].reshape(len(keep) * block, -1)
        spectrum = np.linalg.eigvalsh((chosen + chosen.T) / 2)
        lowest = min(lowest, float(spectrum[0] / (spectrum[-1] or 1.0)))
    size = len(keep) * block
    allowed, source = EPS * size * times + off, "solver.rtol" if off else "rounding"
    basis = f"{source}, {size} x {size}"
    return [
        Check("solution", f"{name} is symmetric", asymmetry, 0, allowed, source),
        Check("solution", f"{name}: -lowest/highest eigenvalue", -lowest, 0, allowed, basis, upper=True),
    ]


def causality(problem: Problem, theory: xr.Dataset) -> list[Check]:
    """Return checks that a solution is causal.

    Responses to sources at later times must vanish, and a solution with half of the steps must equal the
    first half of the solution ``theory``. The list is empty for flows, because half a flow has another time
    grid. In sampled solutions, whose halves differ by noise, only responses are checked, without those of the
    last layer; the list is empty if there are no responses.
    """
    strict = {q.name: q.causal == "strict" for q in problem.discrete.order_parameters}
    sampled = "replicas" in theory.attrs
    names = [x for x in RESPONSES if x in theory and (x in strict or not sampled)]
    if problem.flow or (sampled and not names):
        return []
    worst = 0.0
    for name in names:
        response = theory[name].isel(layer=slice(0, -1)) if sampled else theory[name]
        values = response.transpose(..., "time", "time_").to_numpy()
        worst = max(worst, float(np.abs(np.triu(values, 0 if strict.get(name) else 1)).max()))
    basis = f"exact zeros, {len(names)} responses"
    checks = [Check("solution", "responses to later sources", worst, 0, 0, basis)]
    steps = (len(theory.time) - 1) // 2
    if steps == 0 or sampled:
        return checks
    half = solve(replace(problem, times=problem.times[: steps + 1], output_times=None), kernels="none")
    first = theory.isel(time=slice(steps + 1), time_=slice(steps + 1), missing_dims="ignore")
    gaps = [relative((half[x] - first[x]).to_numpy(), half[x].to_numpy()) for x in half.data_vars]
    allowed = EPS * theory.sizes["time"] ** 2 * ((problem.depth or 1) + 1)
    name = f"{steps} steps vs the first {steps} of {len(theory.time) - 1}"
    return [*checks, Check("solution", name, max(gaps), 0, allowed, "rounding")]


def start(problem: Problem, theory: xr.Dataset) -> list[Check]:
    """Return checks of the loss before training.

    On fixed samples it must be the loss of outputs that are zero, within a multiple of the standard error if
    there is one.
    On random data, of an experiment file, training and test loss must be equal. At finite width the initial
    outputs have a variance, which is proportional to 1/gamma0^2 and adds to the loss: from solutions at two
    values of gamma0 the loss without it is extrapolated, and must be that of zero outputs.
    """
    first = float(theory.train_loss[0])
    if problem.seen:
        y, stderr = problem.targets, None
        # outputs that are zero at all training and test points
        resting = np.zeros((1, problem.sample_count, *y.shape[1:]))
        expected = float(split(problem, {OUTPUT: resting, "error": y[None]})["train_loss"][0])
        allowed, basis = EPS * y.size * expected, "rounding"
        if "train_loss_stderr" in theory:
            stderr, basis = float(theory.train_loss_stderr[0]), "standard error"
            allowed += bound(1, LEVEL, theory.attrs["replicas"] - 1) * stderr
        return [Check("solution", "initial loss = loss at f = 0", first, expected, allowed, basis, stderr)]
    experiment, spectrum = problem.experiment, spectrum_of_problem(problem)
    assert experiment is not None
    noise = 0.0 if experiment.data is None else experiment.data.noise or 0.0
    target, basis = experiment.network.outputs * (1 + noise**2), "1 + noise^2"
    if spectrum is not None:
        of_modes = spectrum.attributes["lamda"] * spectrum.attributes["w_star"] ** 2
        target, basis = float(np.sum(of_modes)) + noise**2, "sum over modes + noise^2"
    scale = 10 * ((problem.depth or 1) + 1) * EPS * max(first, target)
    shortest = 1e-3 * float(problem.times[1])
    times = np.array([0.0, shortest]) if problem.flow else problem.times[:2]
    solver = problem.solver.model_copy(update={"rtol": 1e-2})
    richer = replace(at_gamma0(problem, 2 * float(problem.numbers[gamma0])), times=times, solver=solver)
    second = float(solve(richer).test_loss[0])
    test = float(theory.test_loss[0])
    without = (4 * second - test) / 3
    return [
        Check("solution", "initial train loss = initial test loss", first, test, scale, "rounding"),
        Check("solution", "initial loss less variance of f(0)", without, target, 2 * scale, basis),
    ]


def relative(difference: Array, of: Array) -> float:
    """Return the largest absolute entry of ``difference`` divided by that of the array ``of``.

    It is divided by one if all entries of ``of`` are zero.
    """
    scale = float(np.max(np.abs(of)))
    return float(np.max(np.abs(difference))) / (scale or 1.0)


# -- a flow ------------------------------------------------------------------------------------------------


def discretisation_error(problem: Problem, theory: xr.Dataset) -> list[Check]:
    """Return a check that the error estimate of a flow's solution is within the error stated by the march.

    ``theory`` is the solution of ``problem``. If the march refuses the problem, ``solver.rtol`` takes the
    place of the error that it states. The check is not used for sampled paths: their error estimate contains
    the noise of two replicas, and does not measure the time grid alone. Sampled flows are only compared with
    gradient descent in small steps (`small_steps`).
    """
    estimate, basis = float(theory.attrs["error_estimate"]), f"rtol, {theory.attrs['time_nodes']} nodes"
    return [Check("solution", "flow: error by refinement", estimate, 0, _stated(problem), basis, upper=True)]


def _stated(problem: Problem) -> float:
    """Return the error estimate of the march for a problem, or ``solver.rtol`` if the march refuses it."""
    estimate = estimate_or_refusal(MarchMethod(), problem, "none")
    return estimate.error if isinstance(estimate, MethodEstimate) else problem.solver.rtol


def small_steps(problem: Problem, theory: xr.Dataset) -> list[Check]:
    """Return a check of a flow's training loss against gradient descent in shorter and shorter steps.

    Losses are compared at the time of half the initial loss. Descent takes 32, 64, ... steps and is
    extrapolated to steps of zero length. Allowed are the change by the last halving, twice the stated error
    of the flow, and its bias. Sampled paths take 16 and 32 steps, and a multiple of the joint standard error
    is allowed in place of the stated error. The list is empty without an experiment file.
    """
    experiment = problem.experiment
    if experiment is None:
        return []
    end = halfway(theory)
    changes = {"training.time": end, "training.points": 3, "training.grid": "uniform", "training.times": None}
    flow = solve(experiment.replace(changes), kernels="none")
    expected, first = float(flow.train_loss[-1]), float(flow.train_loss[0])
    name = f"train loss at t = {end:.4g}, from descent"
    if "train_loss_stderr" not in flow:
        value, missed, steps = extrapolated(experiment, end)
        allowed = missed + 2 * _stated(problem) * first + float(systematic(flow, "train_loss")[-1])
        return [Check("solution", name, value, expected, allowed, f"<= {steps} steps, to dt = 0")]
    few, many = (
        solve(with_solver(descent(experiment, end, n), "paths"), kernels="none") for n in SAMPLED_STEPS
    )
    value = 2 * float(many.train_loss[-1]) - float(few.train_loss[-1])
    errors = [float(x.train_loss_stderr[-1]) for x in (few, many, flow)]
    stderr = float(np.sqrt(errors[0] ** 2 + 4 * errors[1] ** 2 + errors[2] ** 2))
    dof = min(int(x.attrs["replicas"]) for x in (few, many, flow)) - 1
    allowed = abs(value - float(many.train_loss[-1])) + bound(1, LEVEL, dof) * stderr
    allowed += sum(n * float(systematic(x, "train_loss")[-1]) for n, x in ((1, few), (2, many), (1, flow)))
    basis = f"{SAMPLED_STEPS[0]}, {SAMPLED_STEPS[1]} steps, to dt = 0"
    return [Check("solution", name, value, expected, allowed, basis, error=stderr)]


def halfway(theory: xr.Dataset) -> float:
    """Return the time at which the training loss of a solution has decreased to half of its initial value.

    The fraction is SHARE. It is the last time if the loss does not decrease so far.
    """
    loss, times = theory.train_loss.to_numpy(), theory.time.to_numpy()
    below = np.flatnonzero(loss <= SHARE * loss[0])
    if not len(below):
        return float(times[-1])
    k = max(1, int(below[0]))
    return float(np.interp(-SHARE * loss[0], -loss[k - 1 : k + 1], times[k - 1 : k + 1]))


def extrapolated(experiment: Experiment, end: float) -> tuple[float, float, int]:
    """Return the training loss of descent at time ``end``, extrapolated to steps of zero length.

    Descent in n, 2 n, 4 n, ... steps is extrapolated (Richardson) until the relative change is less than
    SETTLED, from FEWEST to at most MOST steps. The second member is its uncertainty, the change by the last
    doubling of n (infinite if only one n was solved); the third is the largest n. Step numbers at which
    descent diverges are left out; the loss is NaN if it always diverges.
    """
    last_column: list[float] = []
    count, missed, value = FEWEST, np.inf, np.nan
    while count <= MOST:
        try:
            column = [float(solve(descent(experiment, end, count), kernels="none").train_loss[-1])]
        except Diverged:
            column, last_column = [], []
        if column:
            for k, old in enumerate(last_column, 1):
                column.append(column[-1] + (column[-1] - old) / (2**k - 1))
            if last_column:
                missed = abs(column[-1] - last_column[-1])
            value, last_column = column[-1], column
            if missed <= SETTLED * abs(value):
                break
        count *= 2
    return value, missed, min(count, MOST)
