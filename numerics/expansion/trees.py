"""Coefficients of the expansion in gamma0 of nonlinear networks: static tensors and forests.

The derived forests (:mod:`derive.expansion.nonlinear`) are sums over earlier times. Each summand is a
product of errors and of factors ``k(t, s)`` of past updates, with coefficients from :mod:`.statics`.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from derive.errors import NotApplicable
from derive.expansion.nonlinear import NonlinearExpansion
from derive.expansion.nonlinear import expand_nonlinear as derived
from derive.expansion.nonlinear.expansion import KINKS
from derive.expansion.nonlinear.trees import COL, OPAQUE, OUTPUT, ROW, Forest, ForestCoefficient, samples_of
from derive.program import L, Program, ell
from derive.theory import mean_field
from numerics.errors import SpecError
from numerics.expansion.coefficients import Evaluator, Setting, evaluated, parted, symbolic
from numerics.expansion.operators import time_table
from numerics.expansion.statics import Array, Moments, Points, Statics, contracted
from numerics.experiment.problem import Problem
from numerics.experiment.theory import integrated
from numerics.names import BACKWARD_RESPONSE, FEATURE_KERNEL, FORWARD_RESPONSE, GRADIENT_KERNEL, RESPONSES
from numerics.progress import Progress
from numerics.solver.grid import TimeGrid

Index = NDArray[np.intp]

QUADRATURE = 6
"""Number of samples up to which all averages are by quadrature, and responses are computed."""

SAMPLES = 4096
"""Default number of points of all replicas."""

REPLICAS = 8


def expand_nonlinear(
    problem: Problem,
    order: int,
    expansion: NonlinearExpansion | None = None,
    *,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Return the coefficients of gamma0^n, n <= ``order``, of every result variable of a nonlinear network.

    They are those of ``expansion``, an expansion up to the same ``order``; if it is None, it is derived from
    the problem's theory. Orders above 0 at which all variables but the tangent kernel vanish are left out.
    ``progress`` is called with the number of finished replicas and the number of all.  Raises
    :class:`~numerics.errors.SpecError` for kinks beyond order 0 and for networks whose theory is not
    expanded, :class:`~numerics.errors.Diverged` for a learning rate too large for the lazy network,
    :class:`~numerics.errors.NotConverged` if a flow does not converge to ``solver.rtol``, or an average does
    not converge.

    Averages are computed by quadrature.  Beyond order 0, and with more than six samples, averages over tuples
    of more than two samples are means over sampled points, about ``solver.samples`` in all and at least 32
    for each sample, in eight independent replicas: every variable then has a standard error.  A and B are
    computed for rules in steps and up to six samples, test points included.  Activations with a kink have
    order 0, without A and B.
    """
    started, solver = clock.perf_counter(), problem.solver
    few = problem.sample_count <= QUADRATURE
    sampled = order > 0 and not few
    if expansion is None:
        expansion = nonlinear(
            integrated(symbolic(problem)), order, *problem.key_and_value("network.activation")
        )
    bends = expansion.activation.expr.has(*KINKS)
    responses = few and not problem.flow and not bends
    # If responses are not among the results, the orders B0, B1, ... of the backward response B are skipped.
    # For order >= 1 only B0 is kept, because the recursions of order 1 and higher contain it.
    skipped = frozenset() if responses else frozenset(f"B{n}" for n in range(min(order, 1), order + 1))
    whole, exact = Setting(problem), dict[int, Moments]()
    count = 1 << max(4, int(np.ceil(np.log2((solver.samples or SAMPLES) / (2 * REPLICAS)))))

    def evaluate(statics: Statics, grid: TimeGrid | None) -> Evaluation:
        """Return the coefficients of one replica on one time grid, from its static tensors.

        ``grid`` is None for a rule in steps.
        """
        return Evaluation(Setting(problem, grid), statics, responses=responses)

    def replica(k: int) -> Evaluator:
        """Return the function that computes the coefficients of replica k on a time grid."""
        points = Points(count, (solver.seed, k)) if sampled else None
        data = whole.depth, whole.kernel, accuracy(problem)
        return partial(evaluate, Statics(expansion, *data, skipped, points, exact))

    notes: dict[str, Any] = {"method": "expansion in gamma0"}
    if sampled:
        notes["samples"] = 2 * REPLICAS * Points(count, ()).number(problem.sample_count)
    return evaluated(
        problem,
        [partial(replica, k) for k in range(REPLICAS if sampled else 1)],
        order,
        started,
        progress=progress,
        attributes={"nonlinear": True, **notes},
    )


def accuracy(problem: Problem) -> float:
    """Return the tolerance of averages by quadrature: ``solver.rtol/100``, at most 1e-9."""
    return min(1e-2 * problem.solver.rtol, 1e-9)


def nonlinear(program: Program, order: int, key: str, value: Any) -> NonlinearExpansion:
    """Return the expansion of a nonlinear program in gamma0, up to ``order``, in symbols.

    Raises SpecError if none exists. The error names ``key`` and ``value`` of the experiment file.
    """
    try:
        return _expansion(program, order)
    except NotApplicable as reason:
        problem = f"the theory of this network has no expansion in trees: {reason}"
        accepted = "a linear network, or a perceptron written like mlp; `dmft solve` needs no expansion"
        raise SpecError(key, value, problem, accepted) from None


@lru_cache(maxsize=16)
def _expansion(program: Program, order: int) -> NonlinearExpansion:
    """Return the expansion of a nonlinear program in gamma0, up to ``order``, in symbols; cached.

    Raises NotApplicable if none exists.
    """
    return derived(mean_field(program), order)


TIMES = 100
"""Label of the time axis of node 0 in sums; node i has TIMES + i, and lower labels are samples."""


def summed(
    nodes: Forest,
    parts: Sequence[tuple[Array, list[int]]],
    weight: Array,
    errors: Mapping[int, Array],
    *,
    out: Index | None = None,
    single: bool = False,
) -> Array:
    """Return the sum over the earlier times and samples of a forest, times further arrays.

    A forest is a product of trees whose nodes are times, each with a sample. A node at t' below a node at t
    has the factor ``k(t, t') Delta_a(t')``, with its sample a and with the order of the error that the node
    states; a node with the order OPAQUE has no factor.

    Parameters
    ----------
    nodes
        The forest.
    parts
        Further factors, such as a static tensor: each an array with the labels of its axes. An axis of
        samples has the number of the sample in the forest, an axis of times TIMES plus the position of the
        node.
    weight
        Weight k(t, s) of updates, (T, T), strictly lower triangular.
    errors
        The error Delta (T, P) at each order in gamma0, by this order; order 0 must be among them.
    out
        Positions of output times; None for all times.
    single
        Whether the forest has one root and no perturbed node, so that the result has axes for this root only.

    Returns
    -------
    array
        (T, P, T, P): time and sample of the first root, and of the second root or of the perturbed node. If
        the root itself is perturbed, entries are zero unless both times and both samples are equal. (T, P) if
        ``single``. T is the number of output times if ``out`` is given.
    """
    T, P = errors[0].shape
    marked = next((i for i, x in enumerate(nodes) if x.marked), None)
    row, *ends = [i for i, x in enumerate(nodes) if x.parent < 0]
    ends += [] if marked in (None, row) else [marked]
    at = {i: np.arange(T) if out is None else out for i in (row, *ends)}
    every, factors = np.arange(T), list(parts)
    for i, x in enumerate(nodes):
        if x.parent >= 0 and x.error != OPAQUE:
            here = at.get(i, every)
            kept = weight[np.ix_(at.get(x.parent, every), here)]
            factors += [(kept, [TIMES + x.parent, TIMES + i]), (errors[x.error][here], [TIMES + i, x.sample])]
    axes: list[int] = []
    for i, sample in zip((row, *ends), (ROW, COL), strict=False):
        axes += [TIMES + i, sample]
        factors.append((np.ones((len(at[i]), P)), axes[-2:]))
    value = contracted(axes, *factors)
    if single or ends:
        return value
    full, n, m = np.zeros(value.shape * 2), np.arange(len(at[row]))[:, None], np.arange(P)
    # Here the perturbed node is the root of the tree. The root responds only at the time and sample of the
    # perturbation, so that `value` is put on the diagonal of the response.
    full[n, m, n, m] = value
    return full


class Evaluation:
    """Coefficients in gamma0 of errors, outputs and order parameters of a nonlinear network.

    They are computed on the time grid of ``setting`` from the static tensors ``statics``. ``order`` is the
    highest order, by default that of the expansion in ``statics``. ``responses`` says whether the responses
    A and B are computed.
    """

    def __init__(
        self, setting: Setting, statics: Statics, order: int | None = None, *, responses: bool = False
    ) -> None:
        self.setting, self.statics, self.expansion = setting, statics, statics.expansion
        self.depth = setting.depth
        self.orders = range((self.expansion.order if order is None else order) + 1)
        self.responses = RESPONSES if responses else ()
        self.weight = time_table(self.expansion.site.weight, setting.numbers, setting.times, setting.tables)
        self.errors: dict[int, Array] = {}
        self.outputs: dict[int, Array] = {}
        for n in self.orders:
            self.errors[n], self.outputs[n] = self.error(n)

    def error(self, n: int) -> tuple[Array, Array]:
        """Return order n in gamma0 of the error, Delta_n, and of the output, f_n, both (T, P).

        f_n is linear in Delta_n, and its other terms follow from lower orders.
        """
        rest = np.zeros((len(self.weight), len(self.setting.targets)))
        feedback: Array | None = None
        for forest in self.expansion.forests(OUTPUT, n):
            tensor = self.statics.value(ForestCoefficient(OUTPUT, n, forest), self.depth)
            if any(x.error == n for x in forest):
                assert len(forest) == 2, "the error's own order stands alone"
                feedback = tensor
            else:
                rest += self.summed(forest, tensor, single=True)
        return self.error_and_output(rest, feedback, n)

    def error_and_output(self, rest: Array, feedback: Array | None, n: int) -> tuple[Array, Array]:
        """Return order n in gamma0 of the error and of the output, both (T, P).

        They solve ``f_n = rest + feedback sum_s k(t, s) Delta_n(s)``, where Delta_n follows from f_n and
        lower orders of f by the loss. ``rest`` (T, P) is the part of f_n without Delta_n. ``feedback`` is
        (P, P), or None if f_n does not contain Delta_n. Raises Diverged if Delta_n grows without bound.
        """
        lower = [self.outputs[k] for k in range(n)]
        drive = self.setting.error.order([*lower, rest])
        if not np.any(drive):
            return drive, rest
        # Without feedback f_n does not contain Delta_n: f_n = rest, and Delta_n = drive follows from it.
        if feedback is None:
            return drive, rest
        return self.setting.error_and_output(self.weight, feedback, rest, lower)

    def feedback(self, n: int) -> Array:
        """Return the matrix (P, P) that multiplies the sum over past errors Delta_n in the output f_n.

        It is the tangent kernel at order 0 in gamma0 for every n.
        """
        forest = next(x for x in self.expansion.forests(OUTPUT, n) if any(node.error == n for node in x))
        return self.statics.value(ForestCoefficient(OUTPUT, n, forest), self.depth)

    def kernel(self, name: str, n: int, layer: int, out: Index) -> Array:
        """Return order n in gamma0 of the order parameter ``name`` at one layer, (out, P, out, P).

        ``out`` are the positions of the output times. The layer 0 of Phi is the kernel of the data.
        """
        size = (len(out), len(self.setting.targets))
        total = np.zeros((*size, *size))
        base = self.statics.bases.get((name, layer))
        if base is not None:
            return total + base[None, :, None, :] if n == 0 else total
        for forest in self.expansion.forests(name, n):
            tensor = self.statics.value(ForestCoefficient(name, n, forest), layer)
            total += self.summed(forest, tensor, out=out)
        return total

    def summed(self, forest: Forest, tensor: Array, **options: Any) -> Array:
        """Return a term of the expansion in gamma0: a static tensor times its sum over earlier times.

        ``tensor`` is the coefficient, which does not depend on time; its axes are the samples of ``forest``.
        The forest states the sum: products of weights of updates and errors at earlier times, which are those
        of this evaluation. ``options`` and the shape of the result are those of :func:`summed`.
        """
        return summed(forest, [(tensor, [*samples_of(forest)])], self.weight, self.errors, **options)

    def tangent(self, n: int, out: Index) -> Array:
        """Return order n in gamma0 of the tangent kernel at output times, (out, P, out, P).

        It is a sum of products of order parameters, entry by entry.
        """
        size = (len(out), len(self.setting.targets))
        total = np.zeros((*size, *size))
        for factors in products(self.expansion, self.depth):
            for k in range(n + 1):
                orders = (k, n - k)
                if len(factors) == 1:
                    if k == n:
                        total += self.kernel(factors[0][0], n, factors[0][1], out)
                    continue
                a, b = (
                    self.kernel(name, m, layer, out) for (name, layer), m in zip(factors, orders, strict=True)
                )
                total += a * b
        return total

    @property
    def notes(self) -> dict[str, Any]:
        """Attribute of the result: ``average_error``, the largest estimated error of quadrature."""
        return {"average_error": max(m.error for m in self.statics.moments.values())}

    def watched(self) -> Array:
        """Return the errors at all orders in gamma0, (orders, T, P).

        They must converge as the time grid of a flow is refined.
        """
        return np.stack(list(self.errors.values()))

    def values(self) -> dict[str, Array]:
        """Return the coefficients of each result variable at output times, by name.

        The first axis is the order in gamma0. Order parameters have the further axes (layer, t, t', mu, mu'),
        the tangent kernel (t, t', mu, mu'). If responses are computed, B is zero at the last layer, and A is
        NaN there because no other layer needs it.
        """
        out, layers = self.setting.out, range(1, self.depth + 1)
        size = (len(out), len(self.setting.targets)) * 2
        kernels_by_name = {}
        for name in (FEATURE_KERNEL, GRADIENT_KERNEL, *self.responses):
            # At the last layer B is zero; A is not computed there (NaN), because no other layer needs it.
            last = {FORWARD_RESPONSE: np.full(size, np.nan), BACKWARD_RESPONSE: np.zeros(size)}.get(name)
            kernels = [
                [
                    last if k == self.depth and last is not None else self.kernel(name, n, k, out)
                    for k in layers
                ]
                for n in self.orders
            ]
            kernels_by_name[name] = np.array(kernels).transpose(0, 1, 2, 4, 3, 5)
        tangent = np.stack([self.tangent(n, out) for n in self.orders])
        kernels_by_name["tangent_kernel"] = tangent.transpose(0, 1, 3, 2, 4)
        error, f = (np.stack([x[n][out] for n in self.orders]) for x in (self.errors, self.outputs))
        return parted(self.setting.problem, error, f, kernels_by_name, self.orders, nonlinear=True)


def products(expansion: NonlinearExpansion, depth: int) -> list[list[tuple[str, int]]]:
    """Return the products of order parameters whose sum is the tangent kernel of a network.

    Each is a list of one or two (name, layer). The kernel of the data is named as Phi at layer 0.
    """
    terms = []
    for y in expansion.site.tangent:
        layers: Iterable[int] = (0,)
        if y.layers:
            layers = range(int(y.layers.lower), int(y.layers.upper.subs(L, depth)) + 1)
        for k in layers:
            # If a term contains the kernel of the data, this kernel is its first factor, under the name of
            # Phi at layer 0.
            factors = [(FEATURE_KERNEL, 0)] if y.given != 1 else []
            terms.append(factors + [(name, int(at.subs({ell: k, L: depth}))) for name, at in y.factors])
    return terms
