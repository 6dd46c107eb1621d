"""The linear residual network of depth2023 (Program 1): frozen ends, one sample a step, branches times
``L^-alpha``, learning rate ``L^-gamma``.

The network of L layers is solved from its derived theory by the march; infinite depth from the derived
equations of Gamma and C in layer time, where they exist.  ``inputs[t]`` is the number xi that the network
sees at step t, and ``slope(t, f)`` the derivative there of the loss with respect to its output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sympy import Expr, nsimplify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, s, t
from derive.depth import gamma_c_recursion, layer_time
from derive.program.networks.residual import depth_program
from derive.theory import Source, Term, Theory, mean_field
from numerics.compile.layered import LayerTable, lower_layer_time
from numerics.compile.lower import lower
from numerics.compile.table import Table
from numerics.errors import SpecError
from numerics.simulation import simulate_program
from numerics.solver.depth import GRIDS, LAYERS, DepthLimit, extrapolated
from numerics.solver.layer_grid import solve_layer_grid
from numerics.solver.march import march

Array = NDArray[np.float64]
Slope = Callable[[int, float], float]
Progress = Callable[[int, int], None]


def solve_frozen_ends(
    inputs: ArrayLike,
    slope: Slope,
    *,
    depth: int,
    alpha: float = 0.5,
    gamma: float = 0.5,
    progress: Progress | None = None,
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
    layers = {n: [(n, k) for k in range(depth + 1)] for n in ("C_x", "C_dx")}
    run = march(
        table,
        steps=len(xi),
        constants={},
        data={"xi": xi},
        functions={"dloss": slope},
        wanted=tuple(n for names in layers.values() for n in names),
        progress=progress,
    )
    found = {n: np.stack([run.tensor(x)[:, 0, :, 0] for x in names]) for n, names in layers.items()}
    return {"f": run.scalars["f"], "chi": run.scalars["chi"], **found}


def solve_frozen_ends_limit(
    inputs: ArrayLike,
    slope: Slope,
    *,
    layers: int = LAYERS,
    alpha: float = 0.5,
    gamma: float = 0.5,
    progress: Progress | None = None,
) -> DepthLimit:
    """The same in the limit of infinite depth, with the names of :func:`solve_frozen_ends`: the layers of
    ``C_x`` and ``C_dx`` are nodes of layer time.

    ``layers`` cells are the finest of three grids, extrapolated.  Raises
    :class:`~derive.errors.NotApplicable` for powers without a limit.

    >>> found = solve_frozen_ends_limit([1.0], lambda step, f: f - 1.0, layers=8)
    >>> bool(abs(found["C_x"][-1, 0, 0] - np.e) < 1e-5)
    True
    """
    xi = as_inputs(inputs)
    if layers < 4 or layers % 4:
        raise SpecError("layers", layers, "is the finest of three grids", "a multiple of 4")
    table = _limit_table(exact_power(alpha), exact_power(gamma))
    runs = []
    for part in GRIDS:
        run = solve_layer_grid(
            table,
            layers=int(layers * part),
            steps=len(xi),
            constants={},
            known={"xi": lambda step: xi[step], "dloss": slope},
            progress=progress,
        )
        runs.append({"f": run["f"], "chi": run["chi"], "C_x": run["C_0"], "C_dx": run["C_1"]})
    return extrapolated(layers, runs, ("C_x", "C_dx"))


def simulate_frozen_ends(
    inputs: ArrayLike,
    slope: Slope,
    *,
    depth: int,
    width: int,
    seeds: int,
    alpha: float = 0.5,
    gamma: float = 0.5,
    seed: int = 0,
) -> dict[str, Array]:
    """Means over ``seeds`` networks of ``width`` units, with ``*_stderr``; names and shapes as in
    :func:`solve_frozen_ends`.
    """
    xi = as_inputs(inputs)
    run = simulate_program(
        depth_program(depth, exact_power(alpha), exact_power(gamma)),
        width=width,
        steps=len(xi) - 1,
        seeds=seeds,
        values={},
        data={"xi": xi, "dloss": lambda step, f: slope(int(step), f)},
        seed=seed,
    )
    found: dict[str, Array] = {}
    for name in ("f", "chi", "C_x", "C_dx"):
        for part, suffix in (("mean", ""), ("stderr", "_stderr")):
            value = getattr(run[name], part)
            if value.ndim > 1:  # each layer with itself
                value = np.stack([value[:, :, k, k] for k in range(depth + 1)])
            found[name + suffix] = value
    return found


@lru_cache(maxsize=32)
def _table(depth: int, alpha: Expr, gamma: Expr) -> Table:
    theory = mean_field(depth_program(depth, alpha, gamma)).at_depth(depth)
    return lower(given_in_sources(theory, "xi"))


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
