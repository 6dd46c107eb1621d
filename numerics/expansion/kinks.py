"""Coefficients of the first powers of ``|gamma0|`` for piecewise linear activations, in steps.

The source u of a unit is the Gaussian part of its field h, and is all of h at the initial time. A unit is at
the kink of a sample if its u is of order ``gamma0`` there initially; its initial position is ``x =
u/|gamma0|``.  Units at the kink of a sample differ by the signs of the other samples' u, by their backward
source r, by the change of their source u and by x. Integrals over x are exact, and so are probabilities of
signs up to six samples.  With one hidden layer r is one number and u is constant; with more layers the
directions of the Gaussian vectors behind r and behind the change of u are sampled.

Units at the kink do not contribute to the covariance of the change of a source since the initial time, so
that this covariance is found first, layer by layer upwards.  With it units at the kink are followed in every
layer.  Then the responses B and the gradient kernels G are computed layer by layer downwards, the responses A
and the feature kernels Phi upwards.

The distance of a unit from the kink, over ``|gamma0|``, is x plus contributions of its source and of its own
past slopes, so that the line of all x falls into intervals on which all slopes are constant: integrals over
it are exact sums.  The integrand is homogeneous in x and the sources: only directions are needed, and the
radius is integrated in closed form.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import gammaln
from sympy import Add, Expr, Mul, Rational, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.jumps import SignPolynomial
from derive.calculus.symbols import alpha, mu
from derive.errors import NotApplicable
from derive.expansion.nonlinear.kinks import AverageJump, Cases, KinkExpansion, TermsByLaw, kappa, x, xi
from derive.expansion.nonlinear.kinks import expand_kinks as derived
from derive.expansion.nonlinear.trees import LOWEST, ROW, Piece
from derive.program import Program, s, t
from derive.theory import mean_field
from numerics.averages.orthants import SIGNS, of_products, rows_of
from numerics.errors import SpecError
from numerics.expansion.coefficients import Evaluator, Setting, evaluated, symbolic
from numerics.expansion.statics import Array, Moments, Points, Statics, contracted
from numerics.expansion.trees import TIMES, Evaluation, Index, accuracy, summed
from numerics.experiment.problem import Problem
from numerics.experiment.theory import integrated
from numerics.names import (
    BACKWARD_RESPONSE,
    ERROR,
    FEATURE_KERNEL,
    FIELD,
    FORWARD_RESPONSE,
    GRADIENT_KERNEL,
    OUTPUT,
)
from numerics.progress import Progress
from numerics.results import STDERR
from numerics.solver.grid import TimeGrid
from numerics.stats import normal_points

HIGHEST = 2
"""Highest power of ``|gamma0|`` that is derived."""

REPLICAS = 8
EXACT = SIGNS + 2
"""Number of samples up to which probabilities of signs are exact."""

POINTS = 32
"""Least number of sampled points in each replica, if signs are not enumerated; their negatives are added.

With more than ``POINTS/2`` samples there are more points."""

DIRECTIONS = 256
"""Default number of random directions of a unit's sources in each replica, with several layers.

With each come three more (:class:`Directions`)."""

PARALLEL = 1e-9
"""Samples whose cosine differs from 1 or -1 by less than this are parallel."""


def series(program: Program, order: int, key: str, value: Any) -> KinkExpansion:
    """Return the derived series in ``|gamma0|`` of a program, with all orders that are known.

    ``order``, the highest one that is needed, is only checked. Raises :class:`~numerics.errors.SpecError` for
    an order above two, and for a program whose series is not derived, because it is no perceptron written
    like mlp or its activation is not piecewise linear with its kink at zero. That error names ``key`` and
    ``value`` of the experiment file.
    """
    if order > HIGHEST:
        accepted = f"0 to {HIGHEST}, or a smooth activation"
        raise SpecError("--order", order, f"powers of |gamma0| are known up to {HIGHEST} only", accepted)
    try:
        return _derived(program)
    except NotApplicable as error:
        problem = f"has a slope that jumps, and the theory has no expansion in |gamma0|: {error}"
        accepted = (
            "a perceptron written like mlp, with a smooth activation or a piecewise linear one with its kink "
            'at 0, such as "relu" or "max(h, h/10)"; `dmft solve` needs no expansion'
        )
        raise SpecError(key, value, problem, accepted) from error


@lru_cache(maxsize=16)
def _derived(program: Program) -> KinkExpansion:
    """Return the derived series in ``|gamma0|`` of a program, cached."""
    return derived(mean_field(program))


def expand_kinks(whole: Problem, order: int, *, progress: Progress | None = None) -> xr.Dataset:
    """Return the coefficients of ``|gamma0|^n``, n <= ``order``, which is 1 or 2.

    Each variable has the attribute ``known_to_order``: ``order`` for Phi, 1 for the others, whose coefficient
    of order 2 is not known and is NaN.  The dataset's attribute ``powers_of`` is ``|gamma0|``.

    With one hidden layer and up to six samples, test points included, the coefficients are exact to rounding.
    With several layers directions of a unit's sources are sampled, about ``solver.samples`` of them for each
    sign pattern and replica; with more than six samples the signs at the other samples are those of sampled
    points. Both use independent replicas, and variables then have standard errors.

    ``progress`` is called with the number of finished replicas and the number of all. Raises SpecError as
    :func:`series` does, for flows (a unit that both sides push onto the kink has no slope there: use steps),
    and for samples that are zero or multiples of each other.
    """
    program = whole.program if whole.depth == 1 else symbolic(whole)
    if not whole.flow:
        program = integrated(program)
    expansion = series(program, order, *whole.key_and_value("network.activation"))
    if whole.flow:
        problem = (
            "gives a flow, in which units may slide along the kink; the expansion follows units in steps"
        )
        accepted = 'rule = "gd", with a small learning_rate if the flow is meant'
        raise SpecError(*whole.key_and_value("training.rule"), problem, accepted)
    started = clock.perf_counter()
    setting = Setting(whole)
    _check_apart(setting.kernel)
    many, deep = len(setting.targets) > EXACT, setting.depth > 1
    seed, samples = whole.solver.seed, whole.solver.samples
    count = 1 << max(2, int(np.ceil(np.log2((samples or 4 * DIRECTIONS) / 4))))

    data = setting.depth, setting.kernel, accuracy(whole), frozenset({"B0"})
    terms = (p for law in expansion.laws.values() for p in law)
    needed, exact = {tuple(orders for _, orders in p.averages) for p in terms}, dict[int, Moments]()

    def evaluate(statics: Statics, k: int, grid: TimeGrid | None) -> AtKinks:
        """Return the coefficients of replica k on one time grid, from the static tensors ``statics``."""
        return AtKinks(setting, statics, expansion, Directions(count, (seed, k)), order)

    shared = None if many else Statics(expansion.bulk, *data, needed=needed)

    def replica(k: int) -> Evaluator:
        """Return the function that computes the coefficients of replica k on a time grid."""
        points = Points(POINTS, (seed, k))
        return partial(evaluate, shared or Statics(expansion.bulk, *data, points, exact, needed), k)

    notes = {"method": "expansion in |gamma0|, with units at the kink", "powers_of": "|gamma0|"}
    sampled = 2 * REPLICAS * Points(POINTS, ()).number(len(setting.targets))
    sizes = ({"samples": sampled} if many else {}) | ({"directions": 4 * count} if deep else {})
    attributes = {"nonlinear": True, **notes, **sizes}
    replicas = [partial(replica, k) for k in range(REPLICAS if many or deep else 1)]
    result = evaluated(whole, replicas, order, started, progress=progress, every=True, attributes=attributes)
    known = expansion.known
    for name, variable in result.data_vars.items():
        variable_name = str(name).removesuffix(STDERR)
        variable.attrs["known_to_order"] = min(known[NAMES.get(variable_name, variable_name)], order)
    return result


NAMES = {
    "error": ERROR,
    "train_loss": ERROR,
    "mean_square_error": ERROR,
    "tangent_kernel": "K",
    "test_f": ERROR,
    "test_error": ERROR,
    "test_loss": ERROR,
}
"""Name in the derived expansion of the quantity to which a result variable belongs."""


def _check_apart(K: Array) -> None:
    """Raise SpecError for samples that are zero, or multiples of each other.

    K (P, P) is the kernel of the data.
    """
    size = np.sqrt(np.diag(K))
    if np.any(size == 0):
        raise SpecError(
            "data", "a sample with K_x = 0", "has all its units at the kink initially", "inputs not 0"
        )
    overlap = np.abs(K / np.outer(size, size)) - np.eye(len(K))
    if np.any(overlap > 1 - PARALLEL):
        i, j = np.argwhere(overlap > 1 - PARALLEL)[0]
        raise SpecError(
            "data",
            f"samples {i} and {j}",
            "are parallel: their units cross the kink together",
            "samples of which no two are multiples of each other",
        )


class AtKinks(Evaluation):
    """Coefficients of orders 0 to 2 in ``|gamma0|`` of errors, outputs and order parameters.

    Each is the average over all units with the slopes of the activation held at their initial values, plus
    the contribution of units whose field crosses the kink at some sample.
    """

    def __init__(
        self,
        setting: Setting,
        statics: Statics,
        series: KinkExpansion,
        directions: Directions,
        order: int,
    ) -> None:
        self.series, self.known = series, series.known
        self.directions = directions
        self.kink_layers: KinkLayers | None = None
        super().__init__(setting, statics, order)

    def error(self, n: int) -> tuple[Array, Array]:
        """Return order n in ``|gamma0|`` of the error and of the output, (T, P); NaN if it is not known.

        The error of order 1 follows from the change of the output by units whose field is at the kink.
        """
        if n == 0:
            return super().error(0)
        if n > self.known[ERROR]:
            unknown = np.full_like(self.errors[0], np.nan)
            return unknown, unknown
        times = TwoTimes(self.statics, self.series.laws, self.weight, self.errors)
        self.kink_layers = KinkLayers(self.series, times, self.directions)
        return self.error_and_output(self.kink_layers.output, self.feedback(0), n)

    def kernel(self, name: str, n: int, layer: int, out: Index) -> Array:
        """Return order n in ``|gamma0|`` of the order parameter ``name`` at a layer, (out, P, out, P).

        ``out`` are the output times. Entries are NaN if the order is not known.
        """
        total = super().kernel(name, n, layer, out)
        if n == 0 or (name, layer) in self.statics.bases:
            return total
        if n > self.known[name]:
            return np.full_like(total, np.nan)
        assert self.kink_layers is not None
        moving = self.kink_layers.times.moving.get((name, n, layer))
        return total if moving is None else total + moving[out][:, :, out]


# -- units at the kink, through the layers ------------------------------------------------------------------


class UnitMotion:
    """Motion of the field h of a unit whose field at some sample is close to the kink of the activation.

    Attributes
    ----------
    slope_effect
        W (P, P, T, T): effect of slopes at earlier times on the change of the field h_i from its source u_i,
        at first order: ``sum_b sum_s W(i, b, t, s) slope_b(s) r_b`` over samples b and earlier times s, with
        the backward source r.
    place
        Function of the initial position x = u/``|gamma0|`` and of xi, the change of the source u since the
        initial time over ``|gamma0|``: the distance of the unit from the kink at time t over ``|gamma0|``,
        without the effect of slopes.
    side
        Function that returns the slope of the activation at a distance from the kink.
    phi
        The activation.
    """

    def __init__(
        self, series: KinkExpansion, statics: Statics, layer: int, weight: Array, error: Array
    ) -> None:
        T, P = error.shape
        self.slope_effect = np.zeros((P, P, T, T))
        for p, c in series.motion.items():
            root, node = p.nodes
            assert (root.phi, root.r, node.phi, node.r) == ((), 0, (1,), 1), "linear in one slope and its r"
            known = [(statics.value(y.tensor, layer + y.shift), list(y.samples)) for y in p.statics]
            now, past = TIMES, TIMES + 1
            parts = [*known, (weight, [now, past]), (error, [past, node.sample])]
            self.slope_effect += float(c) * contracted([ROW, node.sample, now, past], *parts)
        z = Symbol("z", real=True)
        self.place = lambdify((x, xi(t)), series.place)
        self.side = lambdify(z, series.side(z))
        self.phi = lambdify(z, series.bulk.activation(z))


@dataclass(frozen=True)
class Sources:
    """Gaussian sources of units whose source u at sample k is at the kink, for given signs of u elsewhere.

    Attributes
    ----------
    slopes, features, upsilon
        Slope and value of the activation at each sample, and ``K^-1 u``, as means (P,).
    r, rho
        Backward source and ``G^-1`` times it, (P, N) for N sampled directions.
    xi
        Change of the source u at sample k since the initial time over ``|gamma0|``, (T, N).
    dimension
        Dimension of the Gaussian vector of which r, rho and xi are linear functions. The arrays hold their
        values for vectors of length one.
    """

    slopes: Array
    features: Array
    upsilon: Array
    r: Array
    rho: Array
    xi: Array
    dimension: int


@dataclass(frozen=True)
class UnitsAtKink:
    """Units whose field at ``sample`` is at the kink, grouped by intervals of their initial position x.

    The position is x = u/``|gamma0|``, the scaled distance from the kink. In an interval all slopes are
    constant in x, so that integrals over x are exact by the midpoint rule.

    Attributes
    ----------
    sample, sources, motion
        Number of the sample, sources of the units, and their equation of motion.
    x, widths
        Middle and length of each interval.
    column
        Number of the sampled direction of the sources to which each interval belongs.
    slope, start
        Slope of the activation at each time, (T, intervals), and at the initial position.
    low, high
        Times at which units at the lower and upper end of the interval cross the kink; -1 if they do not.
    """

    sample: int
    sources: Sources
    x: Array
    widths: Array
    column: Index
    slope: Array
    start: Array
    low: Index
    high: Index
    motion: UnitMotion

    def add(self, total: Array, jump: AverageJump, share: float) -> None:
        """Add the contribution of these units to an order parameter to ``total``, (T, P, T or 1, P or 1).

        ``jump`` is the integrand over the initial position of a unit. ``share`` is the density of units at
        the kink times the probability of their signs at the other samples.
        """
        self._add(total, jump.cases, share, self.widths)
        if jump.after:
            self._add(total, jump.after, share, None)

    def _add(self, total: Array, cases: Cases, share: float, widths: Array | None) -> None:
        """Add an integral over the initial position x of units at the kink to ``total``.

        ``cases`` maps each case (which of the samples mu, alpha is the sample of the kink) to its integrand.
        ``widths`` are the lengths of the intervals of x; for None the integrand does not depend on x and is
        not integrated. ``share`` is a factor.
        """
        others = [i for i in range(len(self.sources.slopes)) if i != self.sample]
        T = len(self.slope)
        dx = np.ones(self.sources.r.shape[1]) if widths is None else widths
        for are_kappa, e in cases.items():
            first = [self.sample] if are_kappa[0] else others
            second = [0] if len(are_kappa) == 1 else [self.sample] if are_kappa[-1] else others
            for number, early, late in read(e):
                degree = sum(power for name, _, _, power in early + late if name in LINEAR)
                scale = radius(self.sources.dimension, degree + (widths is not None))
                scale *= share * number / self.sources.r.shape[1]
                for i in first:
                    for j in second:
                        left = self.factor(early, i, j, widths is None)
                        right = self.factor(late, i, j, widths is None)
                        if total.shape[2] == 1:
                            value = (left * right) @ dx
                            total[:, i, 0, j] += scale * np.broadcast_to(value, (T,))
                        else:
                            total[:, i, :, j] += scale * np.broadcast_to((left * dx) @ right.T, (T, T))

    def turning(self, jump: AverageJump) -> Array:
        """Return order -1 in ``|gamma0|`` of the response B at the sample of the kink, (T, T).

        The axes are the time of the response and that of the perturbation of u. A perturbation changes the
        time at which units cross the kink: it moves the ends of the intervals of initial positions in which
        slopes are constant.
        """
        times = np.arange(len(self.slope))[:, None]
        edges = (times == self.low).astype(float) - (times == self.high)
        total = np.zeros((len(self.slope), len(self.slope)))
        for number, early, late in (y for e in jump.cases.values() for y in read(e)):
            parts = tuple(y for y in early + late if y[0] != "turned")
            degree = sum(power for name, _, _, power in parts if name in LINEAR)
            share = number * radius(self.sources.dimension, degree) / self.sources.r.shape[1]
            total += (self.slope * self.factor(parts, self.sample, self.sample, False)) @ edges.T * share
        return total

    # -- fields ----------------------------------------------------------------------------------------

    def factor(self, parts: tuple[FieldPower, ...], i: int, j: int, columns: bool) -> Array:
        """Return a product of powers of fields of the units, (T or 1, intervals).

        ``parts`` are the fields, each with its sample and power. The samples mu and alpha in them have the
        numbers i and j. If ``columns`` is true, no field depends on the initial position
        ``x = u/|gamma0|`` of a unit. The shape is then (T or 1, directions), with one column for each sampled
        direction of the sources.
        """
        product = np.ones((1, 1))
        for name, who, timed, power in parts:
            sample = self.sample if who == kappa else i if who == mu else j
            field = self.source(name, sample) if columns else self.field(name, sample, timed)
            product = product * field**power
        size = self.sources.r.shape[1] if columns else len(self.x)
        return np.broadcast_to(product, (len(product), size))

    def source(self, name: str, sample: int) -> Array:
        """Return a field of the units that does not depend on their initial position x.

        ``name`` is r (backward source), rho (``G^-1 r``), xi (change of the source u at the sample of the
        kink, over ``|gamma0|``), sigma (slope of the activation), phi (activation) or upsilon (``K^-1 u``).
        ``sample`` is the number of the sample; xi does not depend on it. The shape is (T or 1, directions or
        1). Raises KeyError for another name.
        """
        sources = self.sources
        if name in ("r", "rho"):
            return np.asarray(getattr(sources, name)[None, sample])
        if name == "xi":
            return sources.xi
        static = {"sigma": sources.slopes, "phi": sources.features, "upsilon": sources.upsilon}
        return np.full((1, 1), static[name][sample])

    def field(self, name: str, sample: int, timed: bool) -> Array:
        """Return the field ``name`` of the units at one sample, (T or 1, intervals or 1).

        ``name`` is sigma (slope of the activation), X (scaled distance from the kink, at the sample of the
        kink), V (change of the field h from its source u), Xbar or Vbar (like X and V, but with the initial
        slope at the kink at all times), or a name that :meth:`source` accepts. ``timed`` is true for sigma at
        each time, and false for sigma at the initial position. Raises KeyError for an unknown name.
        """
        if name == "sigma" and sample == self.sample:
            return self.slope if timed else self.start[None]
        if name in ("X", "Xbar"):
            of_source = self.motion.place(self.x, self.sources.xi[:, self.column])
            return np.asarray(self.moved(self.sample, name == "X") + of_source)
        if name in ("V", "Vbar"):
            return self.moved(sample, name == "V")
        static = self.source(name, sample)
        return static if static.shape[1] == 1 else static[:, self.column]

    def moved(self, sample: int, followed: bool) -> Array:
        """Return the change of the field h from its source u at one sample, at first order, (T, intervals).

        The slope at the kink is that at each time if ``followed`` is true, else that at the initial
        position.
        """
        if (sample, followed) not in self.moved_cache:
            push, r = self.motion.slope_effect[sample, self.sample], self.sources.r[self.sample, self.column]
            from_kink = push @ self.slope if followed else push.sum(axis=1)[:, None] * self.start
            self.moved_cache[sample, followed] = (
                self.from_other_samples[sample][:, self.column] + from_kink * r
            )
        return np.asarray(self.moved_cache[sample, followed])

    @cached_property
    def moved_cache(self) -> dict[tuple[int, bool], Array]:
        """Cache of the results of :meth:`moved`, by its arguments (sample, followed)."""
        return {}

    @cached_property
    def from_other_samples(self) -> Array:
        """Part of the change of fields h from their sources u that comes from updates at the other samples.

        The shape is (P, T, directions), for sampled directions of the sources.
        """
        return from_other_samples(self.sample, self.sources, self.motion)


def from_other_samples(k: int, sources: Sources, motion: UnitMotion) -> Array:
    """Return the part of the change of fields h from their sources u from updates at samples other than k.

    The change is that of units at the kink of sample k, at first order, (P, T, directions) for sampled
    directions of the sources. The slopes at the other samples are constant in time.
    """
    others = np.array([i != k for i in range(len(sources.slopes))])
    return np.asarray(
        np.einsum("ibt,b,bn->itn", motion.slope_effect.sum(axis=3), sources.slopes * others, sources.r)
    )


def follow(k: int, sources: Sources, motion: UnitMotion) -> UnitsAtKink:
    """Return the units whose field at sample k is close to the kink, with their slopes at all times.

    ``sources`` and ``motion`` are the Gaussian sources of these units and their equation of motion. The
    initial position x is the distance of the initial field from the kink, divided by ``|gamma0|``. The range
    of x contains all units that cross the kink. It is divided at x = 0 and at the values of x for which the
    field at sample k is at the kink at some time, so that slopes are constant in each interval.
    """
    from_kink, N = motion.slope_effect[k, k], sources.r.shape[1]
    T = len(from_kink)
    given = from_other_samples(k, sources, motion)[k] + motion.place(0.0, sources.xi)
    steepest = np.abs(motion.side(np.array([-1.0, 1.0]))).max()
    reach = np.abs(given).max(axis=0) + np.abs(from_kink).sum(axis=1).max() * steepest * np.abs(sources.r[k])
    reach = 1.001 * reach + 1e-300
    zero = np.zeros(N)
    low, high = np.concatenate([-reach, zero]), np.concatenate([zero, reach])
    column = np.tile(np.arange(N), 2)
    none, first = np.full(N, -1), np.zeros(N, dtype=int)
    early, late = np.concatenate([none, first]), np.concatenate([first, none])
    on = np.zeros((0, 2 * N))
    for now in range(T):
        moved = given[now, column] + from_kink[now, :now] @ on * sources.r[k, column]
        cut = (low < -moved) & (-moved < high)
        at = -moved[cut]
        low, high = np.concatenate([low, at]), np.concatenate([np.where(cut, -moved, high), high[cut]])
        early, late = (
            np.concatenate([early, np.full(len(at), now)]),
            np.concatenate([np.where(cut, now, late), late[cut]]),
        )
        on, moved, column = (np.concatenate([a, a[..., cut]], axis=-1) for a in (on, moved, column))
        on = np.concatenate([on, motion.side((low + high) / 2 + moved)[None]])
    middle = (low + high) / 2
    start = motion.side(middle)
    return UnitsAtKink(k, sources, middle, high - low, column, on, start, early, late, motion)


FieldPower = tuple[str, Symbol, bool, int]
"""Name of a field, its sample, whether it depends on time, and its power."""

LINEAR = ("X", "Xbar", "V", "Vbar", "xi", "r", "rho")
"""Fields that are homogeneous of degree one in the initial position x and the sources."""


@lru_cache(maxsize=64)
def read(e: Expr) -> list[tuple[float, tuple[FieldPower, ...], tuple[FieldPower, ...]]]:
    """Return an expression in the fields of a unit at the kink as a sum of products.

    Each product is (number, factors at t or constant in time, factors at s). A factor is a power of a field,
    see :data:`FieldPower`.
    """
    products = []
    for term in Add.make_args(e.expand()):
        number, rest = term.as_coeff_Mul()
        early: list[FieldPower] = []
        late: list[FieldPower] = []
        for factor in Mul.make_args(rest):
            base, power = factor.as_base_exp()
            who = next((x for x in (mu, alpha, kappa) if base.has(x)), kappa)
            part = (str(base.func), who, base.has(t, s), int(power))
            (late if base.has(s) else early).append(part)
        products.append((float(number), tuple(early), tuple(late)))
    return products


def radius(dimension: int, power: int) -> float:
    """Return the mean of a power of the length of a standard normal vector of this dimension.

    >>> print(f"{radius(3, 2):.12f}")
    3.000000000000
    """
    return float(2 ** (power / 2) * np.exp(gammaln((dimension + power) / 2) - gammaln(dimension / 2)))


SMALL = 1e-12
"""Variance, relative to the largest one, below which a direction of a source is left out."""


@dataclass(eq=False)
class TwoTimes:
    """Averages over all units with the slopes of the activation at their initial values, at each layer.

    :class:`KinkLayers` computes the contributions of units that cross the kink.

    Attributes
    ----------
    statics
        Static tensors of the expansion.
    laws
        Derived terms of each order parameter and order.
    weight, errors
        Weight of updates (T, T), and the orders of the error, (T, P).
    moving
        Orders of order parameters found so far, by (name, order, layer), (T, P, T, P); zero if missing.
    """

    statics: Statics
    laws: TermsByLaw
    weight: Array
    errors: Mapping[int, Array]
    moving: dict[tuple[str, int, int], Array] = field(default_factory=dict)

    def value(self, name: str, n: int, layer: int) -> Array:
        """Return order n in ``|gamma0|`` of the order parameter ``name`` at a layer, for fixed slopes.

        Slopes of the activation are held at their initial values. The shape is (T, P, T, P), or (T, P) for
        the output f.
        """
        single = name == OUTPUT
        total = np.zeros(self.errors[0].shape * (1 if single else 2))
        for p, c in self.laws.get((name, n), {}).items():
            total += float(c) * self.piece(p, layer, single)
        return total

    def piece(self, p: Piece, layer: int, single: bool) -> Array:
        """Return the term ``p`` of an average over all units of a layer, with slopes at their initial values.

        The term is a product of static tensors, order parameters, averages, errors and weights, summed over
        earlier times and samples. The shape is (T, P, T, P), or (T, P) if ``single``.
        """
        places = {x.sample: TIMES + i for i, x in reversed(list(enumerate(p.nodes)))}
        parts: list[tuple[Array, list[int]]] = []
        for static in p.statics:
            tensor, at = static.tensor, layer + static.shift
            if tensor.moves:
                array = self.moving.get((tensor.name, tensor.order, at))
                axes = [axis for i in static.samples for axis in (places[i], i)]
            else:
                array, axes = self.statics.value(tensor, at), list(static.samples)
            if array is None or not np.any(array):
                return np.zeros(self.errors[0].shape * (1 if single else 2))
            parts.append((array, axes))
        if p.averages:
            labels = [i for i, _ in p.averages]
            parts.append((self.statics.averages(layer)(tuple(o for _, o in p.averages)), labels))
        return summed(p.nodes, parts, self.weight, self.errors, single=single)


@dataclass(frozen=True)
class Directions:
    """Sample of directions of the Gaussian vector behind the sources r and xi of units at the kink.

    ``count`` directions are random. With each come three more, with the part of r, of xi or of both
    reversed. ``seeds`` determine the random numbers.
    """

    count: int
    seeds: tuple[int, ...]

    def of(self, first: int, second: int, place: tuple[int, ...]) -> Array:
        """Return unit vectors as columns, (first + second, 4 count).

        The first ``first`` entries determine the source r, the others its partner xi. ``place`` is part of
        the seed. A vector with one entry has the two directions 1 and -1.
        """
        if first + second == 1:
            return np.array([[1.0, -1.0]])
        x = normal_points(self.count, first + second, [*self.seeds, *place])
        x /= np.sqrt((x**2).sum(axis=0))
        turn = np.concatenate([np.ones(first), -np.ones(second)])[:, None]
        return np.concatenate([x, -x, turn * x, -turn * x], axis=1)


class KinkLayers:
    """Contributions in powers of ``|gamma0|`` to the order parameters of all layers, beyond the lazy limit.

    The orders are 2 for Phi, 1 for G and A, and -1 and 0 for B. The contributions come from units whose field
    is at the kink of the activation, and from their effect on other units. ``times.moving`` holds the results
    for Phi, G and responses. ``output`` is the part of f_1 without the error Delta_1, (T, P), which
    determines Delta_1.
    """

    def __init__(self, series: KinkExpansion, times: TwoTimes, directions: Directions) -> None:
        self.series, self.times, self.directions = series, times, directions
        self.statics, self.depth = times.statics, times.statics.depth
        self.weight, self.error = times.weight, times.errors[0]
        self.site = series.bulk.site
        (variance,) = series.density.atoms(AppliedUndef)
        self.density = lambdify(variance, series.density)
        T, P = self.error.shape
        self.drift = {1: np.zeros((T, P, T, P))}
        self.output = np.zeros((T, P))
        moving = self.times.moving
        for layer in range(1, self.depth):
            moving[FEATURE_KERNEL, 2, layer] = self.times.value(FEATURE_KERNEL, 2, layer)
            self.drift[layer + 1] = since_start(series.drift, moving[FEATURE_KERNEL, 2, layer])
        self.added = {layer: self.crossing(layer) for layer in range(1, self.depth + 1)}
        for layer in range(self.depth, 0, -1):
            self.down(layer)
        for layer in range(1, self.depth + 1):
            self.up(layer)
        self.output += self.added[self.depth][OUTPUT][:, :, 0, 0] + self.times.value(OUTPUT, 1, self.depth)

    # -- from layer to layer ---------------------------------------------------------------------------

    def down(self, layer: int) -> None:
        """Compute and store in ``times.moving`` the orders in ``|gamma0|`` of backward quantities.

        They are, in this order: the memory kernel of the backward field z at a layer, the gradient kernel G
        there, and the response B at the layer below.
        """
        moving, times = self.times.moving, self.times
        if self.site.backward is not None:
            for n in (LOWEST, 0):
                moving["D", n, layer] = self.memory("z", n, layer)
        moving[GRADIENT_KERNEL, 1, layer] = (
            times.value(GRADIENT_KERNEL, 1, layer) + self.added[layer][GRADIENT_KERNEL]
        )
        if self.site.backward is not None and layer > 1:
            below = layer + self.site.backward
            for n, name in ((LOWEST, "turning"), (0, BACKWARD_RESPONSE)):
                moving[BACKWARD_RESPONSE, n, below] = (
                    times.value(BACKWARD_RESPONSE, n, layer) + self.added[layer][name]
                )

    def up(self, layer: int) -> None:
        """Compute and store in ``times.moving`` the orders in ``|gamma0|`` of forward quantities.

        They are, in this order: the memory kernel of the field h at a layer, the response A there (not at the
        last layer), and the feature kernel Phi.
        """
        moving, times = self.times.moving, self.times
        if self.site.forward is not None:
            moving["C", 1, layer] = self.memory(FIELD, 1, layer)
            if layer < self.depth:
                moving[FORWARD_RESPONSE, 1, layer + self.site.forward] = (
                    times.value(FORWARD_RESPONSE, 1, layer) + self.added[layer][FORWARD_RESPONSE]
                )
        moving[FEATURE_KERNEL, 2, layer] = (
            times.value(FEATURE_KERNEL, 2, layer) + self.added[layer][FEATURE_KERNEL]
        )

    def memory(self, field: str, n: int, layer: int) -> Array:
        """Return order n of the kernel that multiplies past fields in the equation of h or z, (T, P, T, P).

        ``field`` is the name of h, or "z" for the backward field. The contribution of the error of order 1
        is left out.
        """
        T, P = self.error.shape
        total = np.zeros((T, P, T, P))
        for edge in self.site.h if field == FIELD else self.site.z:
            at = layer + edge.kernel.shift
            if not edge.memory:
                total += self.times.moving.get((edge.kernel.name, n, at), 0.0)
            elif n == 0:
                kernel = self.statics.correlation(edge.kernel.name, at)
                total += np.einsum("ts,sb,ab->tasb", self.weight, self.error, kernel)
        return total

    # -- units at the kink -----------------------------------------------------------------------------

    def crossing(self, layer: int) -> dict[str, Array]:
        """Return the contributions of units at the kink of a layer to order parameters, by name.

        Shapes are (T, P, T, P), and (T, P, 1, 1) for the output f. The responses A and B are summed over the
        time of the perturbation, and this sum is stored at s = t. The name "turning" stands for the order -1
        of B, which depends on both times.
        """
        T, P = self.error.shape
        jumps = self.series.jumps
        sizes = {OUTPUT: (T, P, 1, 1), FORWARD_RESPONSE: (T, P, 1, P), BACKWARD_RESPONSE: (T, P, 1, P)}
        total = {name: np.zeros(sizes.get(name, (T, P, T, P))) for name in jumps}
        total["turning"] = np.zeros((T, P, T, P))
        wanted = {
            n
            for n in jumps
            if not (n == FORWARD_RESPONSE and layer == self.depth)
            and not (n == BACKWARD_RESPONSE and layer == 1)
        }
        motion = UnitMotion(self.series, self.statics, layer, self.weight, self.error)
        K = self.statics.correlation(self.site.u.name, layer + self.site.u.shift)
        for k in range(P):
            sources = Patterns(self, motion, layer, k, K)
            for share, pattern in sources:
                units = follow(k, pattern, motion)
                share *= self.density(K[k, k])
                for name in wanted:
                    units.add(total[name], jumps[name], share)
                total["turning"][:, k, :, k] += share * units.turning(self.series.turning)
        for name in {FORWARD_RESPONSE, BACKWARD_RESPONSE} & set(total):
            total[name] = np.einsum("tasb,ts->tasb", np.broadcast_to(total[name], (T, P, T, P)), np.eye(T))
        return total


class Patterns:
    """Units whose field at sample k is at the kink, for each pattern of signs of u at the other samples.

    ``K`` is the covariance of the source u. Iteration yields the probability of a pattern and the sources of
    its units.
    """

    def __init__(self, layers: KinkLayers, motion: UnitMotion, layer: int, k: int, K: Array) -> None:
        self.layers, self.motion, self.layer, self.k, self.K = layers, motion, layer, k, K
        self.points = layers.statics.points

    @cached_property
    def gaussian(self) -> tuple[Array, Array, Array, int]:
        """Values of the sources r, rho and xi in each sampled direction, and the dimension of their vector.

        r and rho are (P, directions), xi is (T, directions). They are linear functions of one Gaussian
        vector, which is represented by unit vectors of this dimension.
        """
        layers, layer = self.layers, self.layer
        site, drift = layers.site, layers.drift[layer][:, self.k, :, self.k]
        G = layers.statics.correlation(site.r.name, layer + site.r.shift)
        left, right = root(G), root(drift)
        unit = layers.directions.of(left.shape[1], right.shape[1], (layer, self.k))
        first, second = unit[: left.shape[1]], unit[left.shape[1] :]
        rho = np.linalg.pinv(left).T @ first
        return left @ first, rho, right @ second, len(unit)

    def sources(self, signs: Array, means: Array) -> Sources:
        """Return the sources of the units for which u at the samples has the given signs.

        ``signs`` (P,) are the signs of u at each sample, and ``means`` (P,) the means of u for these signs.
        Both are zero at the sample whose u is at the kink.
        """
        r, rho, xi, dimension = self.gaussian
        # `signs` say on which side of the kink the source u is at each sample. phi is linear on each side, so
        # that its slope is known, and the mean of phi(u) over one side is phi of the mean of u there.
        slopes, features = np.asarray(self.motion.side(signs)), np.asarray(self.motion.phi(means))
        upsilon = np.zeros(len(means))
        if BACKWARD_RESPONSE in self.layers.series.jumps and self.layer > 1:
            upsilon[:] = np.linalg.solve(self.K, means)
        return Sources(slopes, features, upsilon, r, rho, xi, dimension)

    def __iter__(self) -> Iterator[tuple[float, Sources]]:
        for share, signs, means in self.sides():
            yield share, self.sources(signs, means)

    def sides(self) -> Iterator[tuple[float, Array, Array]]:
        """Yield (probability, signs, means) for each pattern of signs of u at the other samples.

        u is Gaussian and conditioned on ``u_k = 0``. ``means`` are the means of u for the pattern; the entry
        k is zero in both arrays (P,).
        """
        K, k, P = self.K, self.k, len(self.K)
        others = [i for i in range(P) if i != k]
        left = (K - np.outer(K[k], K[k]) / K[k, k])[np.ix_(others, others)]
        signs, means = np.zeros(P), np.zeros(P)
        if not others:
            yield 1.0, signs, means
        elif self.points is None:
            rows = rows_of(left)[None]
            for pattern in product((1, -1), repeat=len(others)):
                step = [sided(0, sign) for sign in pattern]
                share = float(of_products(step, rows)[0][0])
                if share <= 0:
                    continue
                first = [
                    float(of_products([*step[:i], sided(1, sign), *step[i + 1 :]], rows)[0][0])
                    for i, sign in enumerate(pattern)
                ]
                signs, means = np.zeros(P), np.zeros(P)
                signs[others], means[others] = pattern, np.array(first) / share
                yield share, signs, means
        else:
            u = self.points.of(left, k)
            patterns, which = np.unique(u > 0, axis=0, return_inverse=True)
            for j, on in enumerate(patterns):
                here = u[which.ravel() == j]
                signs, means = np.zeros(P), np.zeros(P)
                signs[others], means[others] = np.where(on, 1, -1), here.mean(axis=0)
                yield len(here) / len(u), signs, means


def sided(power: int, sign: int) -> SignPolynomial:
    """Return the function ``x**power`` for x of this sign, and 0 for x of the other sign.

    It is a sum of terms ``x**power`` and ``x**power sign(x)``, as a dictionary from terms to coefficients.
    """
    return {(power, 0, -1): Rational(1, 2), (power, 1, -1): Rational(sign, 2)}


def root(C: Array) -> Array:
    """Return a matrix X with ``X X^T = C`` for a covariance C, without columns of zeros.

    The columns are eigenvectors times square roots of eigenvalues above rounding.
    """
    values, vectors = np.linalg.eigh((C + C.T) / 2)
    kept = values > SMALL * max(values[-1], 0.0)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def since_start(drift: Expr, C: Array) -> Array:
    """Return the covariance of the changes of a source up to t and up to s, (T, P, T, P).

    Changes count from the initial time. ``drift`` is the formula of the result in terms of the covariance of
    the source at second order in ``|gamma0|``, whose values are C (T, P, T, P).
    """
    total = np.zeros_like(C)
    for term in Add.make_args(drift):
        number, kernel = term.as_coeff_Mul()
        first, second = (slice(None) if time in (t, s) else slice(0, 1) for time in kernel.args[-2:])
        total += float(number) * C[first, :, second]
    return total
