"""Flows in steps that grow with their age: outputs are solved for within a step, gradients are slow.

An explicit rule, ``W_n+1 = W_n + sum_m w_nm J_m^T Delta_m`` with ``J = df/dW``, is stable up to steps of
about one over the largest rate of learning, however little still happens.  What is fast are the outputs, few
numbers, which move by the tangent kernel ``K(t, s) = J(t) J(s)^T``.  So gradients are polynomials through the
last nodes, ``J~(s) = sum_m l_m(s) J_m``, and within a step outputs move as these have it:

    df/ds = rate K~(s) Delta(f) + r,    K~(s) = sum_km l_k(s) l_m(s) K(t_k, t_m),
    W(t_n+1) = m(t_n+1) W(0) + rate int_0^t_n+1 k(t_n+1, s) J~(s)^T Delta(f(s)) ds.

Radau's collocation, which is stable at any step, gives the first line, and the second is a sum over updates
with weights that differ from sample to sample: a training rule again, whose theory is marched as it is.  What
outputs do beyond the first line where weights decay, r, is what was missed over the last step, per time.  A
kernel K that is not that of the network would cost accuracy, which grids show, and not change what they
converge to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sympy import Function, Mul, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.errors import NotApplicable
from derive.expansion.orders import WEIGHT
from derive.theory import Term, Theory
from numerics.errors import NotConverged
from numerics.solver.grid import integral_weights, lagrange
from numerics.solver.paths.march import March
from numerics.solver.paths.reading import Model
from numerics.tensors import Axis, Jump, Known, Node, function, layers_written_out, node_of

Array = NDArray[np.float64]

STAGES = np.array([(4 - 6**0.5) / 10, (4 + 6**0.5) / 10, 1.0])
"""Radau's points, in steps."""

INSIDE = np.array([integral_weights(STAGES, 0.0, x) for x in STAGES])
"""Integrals up to each of them of the polynomial through all."""

SLOPE = 1e-7
"""The share of outputs by which they are moved for a derivative."""

POINTS, SHARES = np.polynomial.legendre.leggauss(20)
"""Gauss's rule, which integrates what is kept of updates over a step."""

NEWTON, HALVINGS, SETTLED = 60, 30, 1e-11
"""Iterations of Newton's method, halvings of each, and the last change of the outputs."""

ERROR, OUTPUT, TANGENT, WEIGHTS = "Delta", "f", "K", (WEIGHT, ())


def by_sample(theory: Theory) -> Theory:
    """The theory of an integrated flow with weights of its own for each error: ``w(t, s) Delta(mu, s)`` is
    ``w(mu, t, s)``.

    Raises NotApplicable where errors or weights enter in another way, where the error is no smooth function
    of the output, and where no tangent kernel is known.
    """
    known = {str(e.lhs.func): e for e in (*theory.scalars, *theory.observables)}
    weight = Function(WEIGHT)(t, s)
    one, other, pairs = (known[x].lhs.args if x in known else () for x in (ERROR, OUTPUT, TANGENT))
    if not pairs or one != other or len(pairs) != 2 * len(other):
        raise NotApplicable("no errors that are functions of its outputs, or no tangent kernel, are known")
    error = function(known[ERROR].rhs)
    for i, x in enumerate(error.leaves):
        if isinstance(x, AppliedUndef) and str(x.func) == OUTPUT:
            try:
                error.derivative(i)
            except Jump as reason:
                raise NotApplicable(str(reason)) from reason

    def own(x: Term) -> Term:
        if not (x.coefficient * x.kernel).has(weight):
            return x
        found = [a for a in x.kernel.args if isinstance(a, AppliedUndef) and str(a.func) == ERROR]
        rest = x.kernel / Mul(weight, *found)
        if len(found) != 1 or found[0].args[-1] != s or (x.coefficient * rest * x.field).has(weight):
            raise NotApplicable(f"{x.expr} is no sum over errors times gradients")
        return replace(x, kernel=rest * Function(WEIGHT)(*found[0].args[:-1], t, s))

    equations = tuple(replace(e, terms=tuple(map(own, e.terms))) for e in theory.equations)
    return replace(theory, equations=equations)


@dataclass(frozen=True)
class Stepping:
    """How a flow is stepped: its nodes, through how many gradients are interpolated, the rate, and what the
    rule keeps of an update, ``k(later, earlier)``; whether it ``forgets`` some.
    """

    nodes: Array
    order: int
    rate: float
    kept: Callable[[ArrayLike, ArrayLike], Array]
    forgets: bool

    def reads(self, model: Model) -> frozenset[Node]:
        """The order parameters that steps are found from: those of the tangent kernel."""
        rates = [layers_written_out(e.rhs) for e in model.layout.theory.observables]
        return frozenset(node_of(x) for e in rates for x in e.atoms(AppliedUndef))

    def start(self, march: March) -> Collocation:
        """The steps of a march, before its first one."""
        return Collocation(self, march)


class Collocation:
    """The weights of updates in a march, found step by step."""

    def __init__(self, stepping: Stepping, march: March) -> None:
        self.stepping, self.march = stepping, march
        scalars, known = march.model.scalars, march.known
        self.error, self.output = scalars[ERROR, ()], scalars[OUTPUT, ()]
        self.indices = self.output.indices
        self.sizes = march.model.size(self.indices)
        shape = (*self.sizes, march.steps, march.steps, march.replicas)
        self.weights = known.found[WEIGHTS] = np.zeros(shape)
        (tangent,) = (e for e in march.model.layout.theory.observables if str(e.lhs.func) == TANGENT)
        self.tangent = layers_written_out(tangent.rhs)
        self.axes = [x for x in tangent.lhs.args if x not in (t, s)]
        self.kernels: dict[tuple[int, int], Array] = {}
        self.drift = np.zeros((march.replicas, prod(self.sizes)))
        self.predicted: Array | None = None

    def errors(self, f: Array) -> Array:
        """Errors of outputs, both ``(cases, outputs)``."""
        known = self.march.known
        own = Known(known.values, known.data, {}, known.first, known.functions)
        own.found[self.output.node] = f.T.reshape(*self.sizes, 1, len(f))
        value = own(self.error.expr, _places(self.indices, self.sizes) | {t: 0})
        value = np.broadcast_to(value, (*self.sizes, len(f)))
        return np.ascontiguousarray(value.reshape(-1, len(f)).T)

    def slopes(self, f: Array) -> tuple[Array, Array]:
        """Errors and their derivatives by the outputs, ``(cases, outputs[, outputs])``."""
        count = f.shape[1]
        step = SLOPE * (1 + np.abs(f))
        moved = f[:, None] + np.eye(count) * step[:, None]
        whole = np.concatenate([f[:, None], moved], axis=1)
        found = self.errors(whole.reshape(-1, count)).reshape(whole.shape)
        return found[:, 0], ((found[:, 1:] - found[:, :1]) / step[..., None]).transpose(0, 2, 1)

    def kernel(self, later: int, earlier: int) -> Array:
        """The tangent kernel at two nodes, ``(replicas, outputs, outputs)``."""
        if later < earlier:
            return self.kernel(earlier, later).transpose(0, 2, 1)
        if (later, earlier) not in self.kernels:
            sizes = self.march.model.size(self.axes)
            at = _places(self.axes, sizes) | {t: later, s: earlier}
            value = self.march.known(self.tangent, at)
            full = np.moveaxis(np.broadcast_to(value, (*sizes, self.march.replicas)), -1, 0)
            self.kernels[later, earlier] = self.stepping.rate * full.reshape(len(full), prod(self.sizes), -1)
        return self.kernels[later, earlier]

    def outputs(self, now: int) -> Array:
        """The outputs at a node, ``(replicas, outputs)``."""
        found: Array = (
            self.march.known.found[self.output.node][..., now, :].reshape(-1, self.march.replicas).T
        )
        return found

    def fastest(self) -> float:
        """The largest rate at which outputs are learnt at the first node."""
        _, slopes = self.slopes(self.outputs(0))
        return float(np.abs(np.linalg.eigvals(self.kernel(0, 0) @ slopes)).max())

    def advance(self, done: int) -> None:
        """The weights with which the updates of the steps that are done enter at the next node."""
        nodes, now = self.stepping.nodes, done - 1
        if done == len(nodes):
            return
        last = range(max(0, now + 1 - self.stepping.order), now + 1)
        self.kernels = {x: k for x, k in self.kernels.items() if x[1] >= last[0]}
        step = nodes[now + 1] - nodes[now]
        at = nodes[now] + step * STAGES
        basis = lagrange(nodes[last[0] : now + 1], at)
        blocks = np.array([[self.kernel(k, m) for m in last] for k in last])
        kernels = np.einsum("qk,qm,kmrij->rqij", basis, basis, blocks)
        f = self.outputs(now)
        if self.predicted is not None and self.stepping.forgets:
            self.drift = self.drift + (f - self.predicted) / (nodes[now] - nodes[now - 1])
        stages, errors = self.relax(f, kernels, step)
        self.predicted = stages[:, -1]
        shares = self.shares(now, at, basis)  # (stages, last)
        new = np.einsum("qm,rqi->imr", shares, errors).reshape(*self.sizes, len(last), -1)
        kept = self.stepping.kept(nodes[now + 1], nodes[now])
        self.weights[..., now + 1, : now + 1, :] = kept * self.weights[..., now, : now + 1, :]
        self.weights[..., now + 1, last[0] : now + 1, :] += new

    def shares(self, now: int, at: Array, basis: Array) -> Array:
        """``int k(t_n+1, s) l_q(s) ds l_m(s_q)``: what an error at a stage counts of a gradient."""
        a, b = self.stepping.nodes[now : now + 2]
        points, share = a + (b - a) * (POINTS + 1) / 2, (b - a) * SHARES / 2
        kept = self.stepping.kept(b, points) * share
        whole: Array = kept @ lagrange(at, points)
        return whole[:, None] * basis

    def relax(self, f: Array, kernels: Array, step: float) -> tuple[Array, Array]:
        """Outputs and errors at the stages, ``f_q = f + step sum_p A_qp (K_p Delta(f_p) + r)``: Newton's
        method, with steps that are halved until the equations are met better.
        """
        cases, count = f.shape
        inside = step * INSIDE
        one = np.eye(count * len(STAGES))

        def left(stages: Array) -> tuple[Array, Array, Array]:
            errors, slopes = (x.reshape(*stages.shape, -1) for x in self.slopes(stages.reshape(-1, count)))
            moved = (kernels @ errors)[..., 0] + self.drift[:, None]
            missed = stages - f[:, None] - np.einsum("qp,rpi->rqi", inside, moved)
            return missed, errors[..., 0], slopes

        stages = np.repeat(f[:, None], len(STAGES), axis=1)
        missed, errors, slopes = left(stages)
        for _ in range(NEWTON):
            change = np.einsum("qp,rpik->rqipk", inside, kernels @ slopes).reshape(cases, *one.shape)
            jump = np.linalg.solve(one - change, missed.reshape(cases, -1, 1)).reshape(stages.shape)
            share = np.ones((cases, 1, 1))
            for _ in range(HALVINGS):
                tried = stages - share * jump
                again = left(tried)
                old, new = (np.abs(x).max(axis=(1, 2)) for x in (missed, again[0]))
                worse = new > np.maximum(old, SETTLED)
                if not worse.any():
                    break
                share[worse] /= 2
            stages, (missed, errors, slopes) = tried, again
            if not np.isfinite(stages).all():
                break
            if np.abs(jump).max() <= SETTLED * (1 + np.abs(stages).max()):
                return stages, errors
        raise NotConverged("the outputs of a step of the flow are not found; smaller steps would do")


def _places(indices: Sequence[Symbol], sizes: Sequence[int]) -> dict[Symbol, Any]:
    """Each index all along an axis of its own."""
    ndim = len(indices)
    return {x: Axis(0, n, k, ndim) for k, (x, n) in enumerate(zip(indices, sizes, strict=True))}
