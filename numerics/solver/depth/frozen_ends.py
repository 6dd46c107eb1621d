"""Linear residual network of depth2023 (Program 1), with frozen ends and one sample in each step.

Frozen ends are input and output weights that are not trained. Branches are scaled by ``L^-alpha``, the
learning rate by ``L^-gamma``. The network of L layers is solved from its derived theory by the march. The
limit of infinite depth is solved from the derived equations in layer time of correlations C and responses
Gamma, the first correction from those of all fields. ``inputs[t]`` is the number xi that the network reads at
step t, and ``slope(t, f)`` the derivative of the loss by its output. The gallery compares results with the
figures of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sympy import Expr, nsimplify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, s, t
from derive.depth import cross_layer, gamma_c_recursion, layer_time, rescale
from derive.depth.infinite import InfiniteDepth, infinite_depth
from derive.errors import NotApplicable
from derive.program.networks.residual import depth_program
from derive.theory import Source, Term, Theory, mean_field
from numerics.errors import SpecError
from numerics.lowering.layer_time import LayerTable, lower_layer_time
from numerics.lowering.linear import lower
from numerics.lowering.table import Table
from numerics.names import OUTPUT
from numerics.solver.depth.solve import FIRST, LAYERS, DepthCorrection, DepthLimit, extrapolated, on_grids
from numerics.solver.linear.march import march

Array = NDArray[np.float64]
Slope = Callable[[int, float], float]

STREAM = ("C_x", "C_dx")
"""Names of the correlations of the stream and of its gradient; their first axis is that of layers."""


def solve_frozen_ends(
    inputs: ArrayLike,
    slope: Slope,
    *,
    depth: int,
    alpha: float = 0.5,
    gamma: float = 0.5,
) -> dict[str, Array]:
    """Solve the infinitely wide linear residual network of depth2023 with ``depth`` layers, trained online.

    ``inputs``, shape (T,), is the number xi that the network reads at each step. ``slope(t, f)`` is the
    derivative of the loss by the output f at step t. Branches are multiplied by ``depth**-alpha``, the
    learning rate by ``depth**-gamma``. In the result ``f`` and ``chi``, shape (T,), are the output and the
    derivative of the loss; ``C_x`` and ``C_dx``, shape (depth + 1, T, T), are the correlations of the stream
    and of its gradient after each layer, with the input first. Raises :class:`~numerics.errors.Diverged` with
    the step, SpecError if ``inputs`` are empty, not finite or of another shape, and ValueError for a
    ``depth`` below one.

    >>> solution = solve_frozen_ends([1.0, 1.0], lambda step, f: f - 1.0, depth=2)
    >>> solution["C_x"][:, 0, 0]  # before training the stream grows by 1 + 1/L a layer
    array([1.  , 1.5 , 2.25])
    """
    xi = as_inputs(inputs)
    table = _table(depth, exact_power(alpha), exact_power(gamma))
    layers = {n: [(n, k) for k in range(depth + 1)] for n in STREAM}
    run = march(
        table,
        steps=len(xi),
        constants={},
        data={"xi": xi},
        functions={"dloss": slope},
        wanted=tuple(n for names in layers.values() for n in names),
    )
    correlations = {n: np.stack([run.tensor(x)[:, 0, :, 0] for x in names]) for n, names in layers.items()}
    return {OUTPUT: run.scalars[OUTPUT], "chi": run.scalars["chi"], **correlations}


def solve_frozen_ends_limit(
    inputs: ArrayLike, slope: Slope, *, layers: int = LAYERS, alpha: float = 0.5, gamma: float = 0.5
) -> DepthLimit:
    """Solve the linear residual network of depth2023, trained online, in the limit of infinite depth L.

    ``inputs``, shape (T,), is the number xi that the network reads at each step. ``slope(t, f)`` is the
    derivative of the loss by the output f at step t. Branches are multiplied by ``L**-alpha``, the learning
    rate by ``L**-gamma``. The result holds the output ``f`` and the derivative of the loss ``chi``, shape
    (T,), and the correlations ``C_x`` and ``C_dx`` of the stream and of its gradient, with an axis of nodes
    of layer time first. ``layers``, a multiple of 4, is the number of cells of layer time of the finest of
    three grids, from which the result is extrapolated at the nodes that all three have. Raises
    :class:`~derive.errors.NotApplicable` for powers without a limit, :class:`~numerics.errors.Diverged` with
    the step, and SpecError if ``inputs`` are empty, not finite or of another shape, if ``layers`` is not a
    multiple of 4, and if memory does not suffice.

    >>> limit = solve_frozen_ends_limit([1.0], lambda step, f: f - 1.0, layers=8)
    >>> bool(abs(limit["C_x"][-1, 0, 0] - np.e) < 1e-5)
    True
    """
    names = {OUTPUT: OUTPUT, "chi": "chi", "C_x": "C_0", "C_dx": "C_1"}
    table = _limit_table(exact_power(alpha), exact_power(gamma))
    return _in_layer_time(table, inputs, layers, [names], dloss=slope)[0]


def solve_frozen_ends_correction(
    inputs: ArrayLike,
    slope: Slope,
    curvature: Slope,
    *,
    layers: int = LAYERS,
    alpha: float = 0.5,
    gamma: float = 0.5,
) -> DepthCorrection:
    """Solve the linear residual network of depth2023, trained online, at large depth L to first order.

    ``inputs``, shape (T,), is the number xi that the network reads at each step. ``slope(t, f)`` and
    ``curvature(t, f)`` are the first and second derivative of the loss by the output f. Branches are
    multiplied by ``L**-alpha``, the learning rate by ``L**-gamma``. ``layers``, a multiple of 4, is the
    number of cells of the finest grid of layer time. A variable at depth L is ``limit + L**order * first`` of
    the result. ``order`` is -1 for alpha = 1/2, and ``1 - 2 alpha`` for alpha between 1/2 and 1, where the
    noise of the layers contributes more than their discreteness.

    Raises :class:`~derive.errors.NotApplicable` for powers without a limit, and if responses vanish in the
    limit, as for gamma above ``1 - alpha``; :class:`~numerics.errors.Diverged` with the step, and SpecError
    if ``inputs`` are empty, not finite or of another shape, if ``layers`` is not a multiple of 4, and if
    memory does not suffice.

    >>> solution = solve_frozen_ends_correction([1.0], lambda t, f: f, lambda t, f: 1.0, layers=8)
    >>> solution.order, bool(abs(solution.first["C_x"][-1, 0, 0] + np.e / 2) < 1e-3)  # (1 + 1/L)**L
    (-1.0, True)
    """
    powers = exact_power(alpha), exact_power(gamma)
    names = [{n: before + n for n in (OUTPUT, "chi", "C_x", "C_dx")} for before in ("", FIRST)]
    solutions = _in_layer_time(
        _corrected_table(*powers), inputs, layers, names, dloss=slope, ddloss=curvature
    )
    return DepthCorrection(float(frozen_ends_correction(*powers).power), *solutions)


def _in_layer_time(
    table: LayerTable, inputs: ArrayLike, layers: int, names: Sequence[Mapping[str, str]], **loss: Slope
) -> list[DepthLimit]:
    """Solve the equations ``table`` in layer time on three grids, and extrapolate to zero grid spacing.

    The finest grid has ``layers`` cells. Returns one solution for each mapping in ``names``, which maps names
    of variables of this solution to names of tensors of the table. ``inputs`` are the numbers xi that the
    network reads, (T,). ``loss`` has the slope of the loss, ``dloss``, and possibly its second derivative,
    ``ddloss``, as functions of step and output.
    """
    xi = as_inputs(inputs)
    runs = on_grids(table, layers, len(xi), known={"xi": lambda step: xi[step], **loss})
    return [
        extrapolated(layers, [{ours: run[theirs] for ours, theirs in x.items()} for run in runs], STREAM)
        for x in names
    ]


@lru_cache(maxsize=32)
def _table(depth: int, alpha: Expr, gamma: Expr) -> Table:
    """Derive the theory of the linear residual network of depth2023 with ``depth`` layers, for the march.

    Branches are multiplied by ``depth**-alpha``, the learning rate by ``depth**-gamma``. The result is the
    theory written as rows of kernels; results are cached.
    """
    theory = mean_field(depth_program(depth, alpha, gamma)).at_depth(depth)
    return lower(given_in_sources(theory, "xi"))


@lru_cache(maxsize=8)
def frozen_ends_correction(alpha: Expr, gamma: Expr) -> InfiniteDepth:
    """Derive the equations of the linear residual network of depth2023 at large depth L, to first order.

    Branches are multiplied by ``L**-alpha``, the learning rate by ``L**-gamma``. The result holds the
    equations in layer time of the limit and of the first correction, and the power of L of the correction.
    Results are cached. Raises :class:`~derive.errors.NotApplicable` for powers without a limit, and if
    responses vanish in the limit.
    """
    theory = mean_field(depth_program(L, alpha, gamma))
    return infinite_depth(rescale(cross_layer(theory), L**-alpha))


@lru_cache(maxsize=8)
def _corrected_table(alpha: Expr, gamma: Expr) -> LayerTable:
    """Return the equations of :func:`frozen_ends_correction` in the form that grids of layer time solve.

    They are those of the linear residual network of depth2023 at large depth L, to the first correction. The
    powers of L are ``-alpha`` in branches and ``-gamma`` in the learning rate. Results are cached.
    """
    return lower_layer_time(frozen_ends_correction(alpha, gamma).system)


@lru_cache(maxsize=8)
def _limit_table(alpha: Expr, gamma: Expr) -> LayerTable:
    """Return the equations of infinite depth in the form that :func:`.solve_layer_grid` solves; cached.

    They are those of the linear residual network of depth2023, whose branches are multiplied by ``L**-alpha``
    and whose learning rate is multiplied by ``L**-gamma``, for infinite depth L.
    """
    theory = mean_field(depth_program(L, alpha, gamma))
    return lower_layer_time(layer_time(gamma_c_recursion(theory)))


def given_in_sources(theory: Theory, name: str) -> Theory:
    """Return the theory with the product of a source and the given function of time ``name`` as one source.

    Its covariance is that of the source times the function at both times. Raises
    :class:`~derive.errors.NotApplicable` if the function multiplies an expression that is not a source, or if
    a source also occurs without the function.

    >>> theory = given_in_sources(mean_field(depth_program(1)), "xi")
    >>> theory.equation("x", 0).rhs, theory.sources[0].covariance
    (U(0, t), xi(s)*xi(t))
    """

    def is_given(x: Expr) -> bool:
        return isinstance(x, AppliedUndef) and str(x.func) == name

    # The keys of `factors` are the sources that the given function multiplies, such as U(0, t). The values
    # are this function.
    symbols, factors = {u.symbol for u in theory.sources}, {}
    for x in (x for e in theory.equations for x in e.terms):
        given = next((y for y in x.expr.atoms(AppliedUndef) if is_given(y)), None)
        if given is None:
            continue
        if x.expr / given not in symbols:
            raise NotApplicable(f"the term {x.expr} is not the product of {given} and a source")
        factors[x.expr / given] = given
    for x in (x for e in theory.equations for x in e.terms):
        bare = next((y for y in x.expr.atoms(AppliedUndef) if y in factors), None)
        if bare is not None and x.expr != bare * factors[bare]:
            raise NotApplicable(
                f"the term {x.expr} contains the source {bare}, but is not its product with {factors[bare]}: "
                "this source may only occur in that product"
            )

    def term(x: Term) -> Term:
        return x.with_expression(next((bare for bare, g in factors.items() if bare * g == x.expr), x.expr))

    def source(u: Source) -> Source:
        factor = factors.get(u.symbol)
        if factor is None:
            return u
        return replace(u, covariance=u.covariance * factor * factors[u.symbol].subs(t, s))

    equations = tuple(replace(e, terms=tuple(map(term, e.terms))) for e in theory.equations)
    return replace(theory, equations=equations, sources=tuple(map(source, theory.sources)))


def exact_power(power: float) -> Expr:
    """Return a decimal exponent, such as 0.5, as an exact fraction, such as 1/2."""
    return nsimplify(power, rational=True)


def as_inputs(inputs: ArrayLike) -> Array:
    """Return ``inputs`` as an array of one finite number for each step, shape (T,).

    Raises SpecError for an empty array, another shape, and a number that is not finite.
    """
    xi = np.asarray(inputs, dtype=float)
    if xi.ndim != 1 or not len(xi) or not np.all(np.isfinite(xi)):
        raise SpecError(
            "inputs", xi.tolist(), "must hold one finite number for each step", "an array of shape (T,)"
        )
    return xi
