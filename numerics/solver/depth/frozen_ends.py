"""The linear residual network of depth2023 (Program 1): frozen ends, one sample a step, branches times
``L^-alpha``, learning rate ``L^-gamma``.

The network of L layers is solved from its derived theory by the march; infinite depth from the derived
equations of Gamma and C in layer time, where they exist, and to first order from those of all fields.
``inputs[t]`` is the number xi that the network sees at step t, and ``slope(t, f)`` the derivative there of
the loss with respect to its output.
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
"""The correlations, with an axis of layers, the first one."""


def solve_frozen_ends(
    inputs: ArrayLike,
    slope: Slope,
    *,
    depth: int,
    alpha: float = 0.5,
    gamma: float = 0.5,
) -> dict[str, Array]:
    """The infinitely wide network of ``depth`` layers at the steps of ``inputs``.

    ``f`` and ``chi``, shape (T,), are its output and the slope of the loss; ``C_x`` and ``C_dx``, shape
    (L + 1, T, T), the correlations of the stream and of its gradient after each layer, the input before.
    Raises :class:`~numerics.errors.Diverged` with the step.

    >>> found = solve_frozen_ends([1.0, 1.0], lambda step, f: f - 1.0, depth=2)
    >>> found["C_x"][:, 0, 0]  # before training the stream grows by 1 + 1/L a layer
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
    found = {n: np.stack([run.tensor(x)[:, 0, :, 0] for x in names]) for n, names in layers.items()}
    return {OUTPUT: run.scalars[OUTPUT], "chi": run.scalars["chi"], **found}


def solve_frozen_ends_limit(
    inputs: ArrayLike, slope: Slope, *, layers: int = LAYERS, alpha: float = 0.5, gamma: float = 0.5
) -> DepthLimit:
    """The same in the limit of infinite depth, with the names of :func:`solve_frozen_ends`: the layers of
    ``C_x`` and ``C_dx`` are nodes of layer time.

    ``layers`` cells are the finest of three grids, extrapolated.  Raises
    :class:`~derive.errors.NotApplicable` for powers without a limit.

    >>> found = solve_frozen_ends_limit([1.0], lambda step, f: f - 1.0, layers=8)
    >>> bool(abs(found["C_x"][-1, 0, 0] - np.e) < 1e-5)
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
    """The same to first order in one over the depth; ``curvature(t, f)`` is the second derivative of the
    loss.

    ``order`` is ``1 - 2 alpha`` for alpha between 1/2 and 1, where what the noise of the layers still does is
    more than layers being steps; -1 at both ends.

    >>> found = solve_frozen_ends_correction([1.0], lambda t, f: f, lambda t, f: 1.0, layers=8)
    >>> found.order, bool(abs(found.first["C_x"][-1, 0, 0] + np.e / 2) < 1e-3)  # (1 + 1/L)**L
    (-1.0, True)
    """
    powers = exact_power(alpha), exact_power(gamma)
    names = [{n: before + n for n in (OUTPUT, "chi", "C_x", "C_dx")} for before in ("", FIRST)]
    found = _in_layer_time(_corrected_table(*powers), inputs, layers, names, dloss=slope, ddloss=curvature)
    return DepthCorrection(float(frozen_ends_correction(*powers).power), *found)


def _in_layer_time(
    table: LayerTable, inputs: ArrayLike, layers: int, names: Sequence[Mapping[str, str]], **loss: Slope
) -> list[DepthLimit]:
    """Each table of names for tensors, extrapolated."""
    xi = as_inputs(inputs)
    runs = on_grids(table, layers, len(xi), known={"xi": lambda step: xi[step], **loss})
    return [
        extrapolated(layers, [{ours: run[theirs] for ours, theirs in x.items()} for run in runs], STREAM)
        for x in names
    ]


@lru_cache(maxsize=32)
def _table(depth: int, alpha: Expr, gamma: Expr) -> Table:
    theory = mean_field(depth_program(depth, alpha, gamma)).at_depth(depth)
    return lower(given_in_sources(theory, "xi"))


@lru_cache(maxsize=8)
def frozen_ends_correction(alpha: Expr, gamma: Expr) -> InfiniteDepth:
    """The equations of depth2023's Program 1 for other powers, to first order."""
    theory = mean_field(depth_program(L, alpha, gamma))
    return infinite_depth(rescale(cross_layer(theory), L**-alpha))


@lru_cache(maxsize=8)
def _corrected_table(alpha: Expr, gamma: Expr) -> LayerTable:
    return lower_layer_time(frozen_ends_correction(alpha, gamma).system)


@lru_cache(maxsize=8)
def _limit_table(alpha: Expr, gamma: Expr) -> LayerTable:
    theory = mean_field(depth_program(L, alpha, gamma))
    return lower_layer_time(layer_time(gamma_c_recursion(theory)))


def given_in_sources(theory: Theory, name: str) -> Theory:
    """A source that is multiplied by a given function of its time, as a source that contains it.

    >>> theory = given_in_sources(mean_field(depth_program(1)), "xi")
    >>> theory.equation("x", 0).rhs, theory.sources[0].covariance
    (U(0, t), xi(s)*xi(t))
    """

    def is_given(x: Expr) -> bool:
        return isinstance(x, AppliedUndef) and str(x.func) == name

    found = {}
    for e in theory.equations:
        for x in e.terms:
            given = next((y for y in x.expr.atoms(AppliedUndef) if is_given(y)), None)
            if given is not None:
                found[x.expr / given] = given

    def term(x: Term) -> Term:
        return x.put(next((bare for bare, g in found.items() if bare * g == x.expr), x.expr))

    def source(u: Source) -> Source:
        factor = found.get(u.symbol)
        if factor is None:
            return u
        return replace(u, covariance=u.covariance * factor * found[u.symbol].subs(t, s))

    equations = tuple(replace(e, terms=tuple(map(term, e.terms))) for e in theory.equations)
    return replace(theory, equations=equations, sources=tuple(map(source, theory.sources)))


def exact_power(power: float) -> Expr:
    """A power as a fraction."""
    return nsimplify(power, rational=True)


def as_inputs(inputs: ArrayLike) -> Array:
    """One finite number a step, or a refusal."""
    xi = np.asarray(inputs, dtype=float)
    if xi.ndim != 1 or not len(xi) or not np.all(np.isfinite(xi)):
        raise SpecError("inputs", xi.tolist(), "one finite number a step is needed", "an array of shape (T,)")
    return xi
