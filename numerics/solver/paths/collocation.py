"""Flows in steps that grow with time: implicit collocation of the outputs, with slowly varying gradients.

An explicit rule, ``W_n+1 = W_n + sum_m w_nm J_m^T Delta_m`` with ``J = df/dW``, is stable up to steps of
about one over the largest learning rate of a mode, even if little changes. Only the outputs are fast, few
numbers which move by the tangent kernel ``K(t, s) = J(t) J(s)^T``. So gradients are polynomials through the
last nodes, ``J~(s) = sum_m l_m(s) J_m``, and within a step outputs obey

    df/ds = rate K~(s) Delta(f) + r,    K~(s) = sum_km l_k(s) l_m(s) K(t_k, t_m),
    W(t_n+1) = m(t_n+1) W(0) + rate int_0^t_n+1 k(t_n+1, s) J~(s)^T Delta(f(s)) ds.

Radau collocation, which is stable for any step, solves the first line, and the second is a sum over updates
with weights that differ from sample to sample: a training rule again, whose theory is marched as it is. The
remainder r of outputs with weight decay or noise is the error of the first line over the last step, per time.
An inaccurate kernel K reduces accuracy, which grids show, and does not change the limit of fine grids.

A rule with a velocity is a linear system, ``z' = A z + b U`` with the weight ``z_0`` and the update U: its
state is a sum over updates like the weight, ``z_i(t_n) = sum_m S_i(m) J_m^T``, with weights S_i(m) of each
error, and within a step outputs obey

    df/ds = b_0 J~(s) U(s) + sum_j>0 A_0j J~(s) z_j(s),
    z(s) = e^(A (s - t_n)) z(t_n) + int_t_n^s e^(A (s - s')) b U(s') ds',    U(s) = rate J~(s)^T Delta(f(s)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Function, Mul, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.errors import NotApplicable
from derive.expansion.orders import WEIGHT
from derive.theory import Term, Theory
from numerics.errors import NotConverged
from numerics.lowering.expressions import KnownArrays, UnseenJump, function, layers_written_out
from numerics.lowering.indices import Axis, node_of
from numerics.names import ERROR, OUTPUT, MemberKey
from numerics.solver.grid import integral_weights, lagrange
from numerics.solver.paths.causal_order import Model
from numerics.solver.paths.march import PathMarch

Array = NDArray[np.float64]

STAGES = np.array([(4 - 6**0.5) / 10, (4 + 6**0.5) / 10, 1.0])
"""Radau's points in a time step, in units of its length."""

INSIDE = np.array([integral_weights(STAGES, 0.0, x) for x in STAGES])
"""Weights of the integrals from 0 to each point, shape ``(points, points)``."""

SLOPE = 1e-7
"""Relative change of outputs for numerical derivatives."""

TAYLOR = np.linalg.inv(np.vander(STAGES, increasing=True))
"""Coefficients of the Lagrange polynomials of the points, shape ``(powers, points)``."""

NEWTON, HALVINGS, CONVERGED = 60, 30, 1e-11
"""Largest number of Newton iterations; largest number of halvings of each; relative change at convergence."""

TANGENT, WEIGHTS = "K", (WEIGHT, ())
"""Name of the tangent kernel in a theory, and key of the weights of updates."""


def by_sample(theory: Theory) -> Theory:
    """Return the theory of an integrated flow with separate weights of updates for each error.

    In the sums over updates, the product ``w(t, s) Delta(mu, s)`` of weight and error is replaced by one
    function ``w(mu, t, s)``. Raises NotApplicable if errors or weights enter in another way, if the error is
    a discontinuous function of the output, if output and error do not have the same indices, and if no
    tangent kernel is known.
    """
    known = {str(e.lhs.func): e for e in (*theory.scalars, *theory.observables)}
    weight = Function(WEIGHT)(t, s)
    one, other, pairs = (known[x].lhs.args if x in known else () for x in (ERROR, OUTPUT, TANGENT))
    if not pairs or one != other or len(pairs) != 2 * len(other):
        raise NotApplicable(
            f"collocation needs an output {OUTPUT} and an error {ERROR} with the same indices, and a tangent "
            f"kernel {TANGENT} of two outputs"
        )
    error = function(known[ERROR].rhs)
    for i, x in enumerate(error.leaves):
        if isinstance(x, AppliedUndef) and str(x.func) == OUTPUT:
            try:
                error.derivative(i)
            except UnseenJump as reason:
                raise NotApplicable(str(reason)) from reason

    def with_weights_of_errors(x: Term) -> Term:
        if not x.expr.has(weight):
            return x
        errors = [a for a in x.kernel.args if isinstance(a, AppliedUndef) and str(a.func) == ERROR]
        rest = x.kernel / Mul(weight, *errors)
        if len(errors) != 1 or errors[0].args[-1] != s or (x.coefficient * rest * x.field).has(weight):
            raise NotApplicable(
                f"collocation needs sums over errors times gradients, and the term {x.expr} has another form"
            )
        return replace(x, kernel=rest * Function(WEIGHT)(*errors[0].args[:-1], t, s))

    equations = tuple(replace(e, terms=tuple(map(with_weights_of_errors, e.terms))) for e in theory.equations)
    return replace(theory, equations=equations)


@dataclass(frozen=True)
class Stepping:
    """Time steps of a flow by collocation: nodes, and the linear system of the training rule.

    The system is ``z' = A z + rate b U`` with ``A`` (n, n), ``b`` (n,) and the learning rate ``rate``.
    ``drifts`` states whether weight decay or noise moves outputs. Gradients are interpolated through
    ``order`` nodes; with ``drifts`` through one more, by a polynomial of the same degree
    (:func:`without_alternation`).
    """

    nodes: Array
    order: int
    rate: float
    A: Array
    b: Array
    drifts: bool

    def over(self, step: float, share: float = 1.0) -> tuple[Array, Array]:
        """Return the propagator of the linear system over a ``share`` of a step, and weights of its input.

        They are ``e^(A x)`` (n, n), and ``int_0^x e^(A (x - y)) b l_q(y) dy`` (n, stages) with the
        polynomials l_q through the stages of a ``step``, at ``x = share step``. Both follow from one matrix
        exponential, because the system is linear in ``(z, p_0, p_1, p_2)``: the input p_0 is a polynomial of
        ``y/x``, and the derivatives by ``y/x`` are ``p_n' = (n + 1) p_(n+1)``.

        >>> kept, fed = Stepping(np.zeros(1), 1, 1.0, np.array([[-2.0]]), np.ones(1), True).over(3.0)
        >>> bool(np.isclose(kept[0, 0], np.exp(-6))), bool(np.isclose(fed.sum(), (1 - np.exp(-6)) / 2))
        (True, True)
        """
        from scipy.linalg import expm  # imported here because it is slow and seldom used

        n, powers, x = len(self.A), len(STAGES), step * share
        whole = np.zeros((n + powers, n + powers))
        whole[:n, :n], whole[:n, n] = self.A * x, self.b * x
        whole[range(n, n + powers - 1), range(n + 1, n + powers)] = np.arange(1, powers)
        exponential = expm(whole)
        return exponential[:n, :n], exponential[:n, n:] * share ** np.arange(powers) @ TAYLOR

    def reads(self, model: Model) -> frozenset[MemberKey]:
        """Return the keys of the order parameters, scalars and data in the theory's observables.

        One of these is the tangent kernel, from which the time steps of the outputs are computed. A march
        must therefore keep them in memory.
        """
        rates = [layers_written_out(e.rhs) for e in model.tables.observables]
        return frozenset(node_of(x) for e in rates for x in e.atoms(AppliedUndef))

    def start(self, march: PathMarch) -> Collocation:
        """Return the collocation of a march, whose first step has not been taken."""
        return Collocation(self, march)


class Collocation:
    """Weights of the updates of a flow in a march of paths, computed step by step.

    In each step collocation, an implicit method, gives the outputs and errors, from which the weights follow.
    """

    def __init__(self, stepping: Stepping, march: PathMarch) -> None:
        self.stepping, self.march = stepping, march
        scalars, known = march.tables.scalars, march.known
        self.error, self.output = scalars[ERROR, ()], scalars[OUTPUT, ()]
        self.indices = self.output.indices
        self.sizes = march.tables.size(self.indices)
        shape = (*self.sizes, march.steps, march.steps, march.replicas)
        self.weights = known.found[WEIGHTS] = np.zeros(shape)
        (tangent,) = (e for e in march.tables.observables if str(e.lhs.func) == TANGENT)
        self.tangent = layers_written_out(tangent.rhs)
        self.axes = [x for x in tangent.lhs.args if x not in (t, s)]
        self.states = np.zeros((len(stepping.A), *self.sizes, march.steps, march.replicas))
        self.rows: dict[int, Array] = {}
        self.drift = np.zeros((march.replicas, prod(self.sizes)))
        self.predicted: Array | None = None

    def errors(self, f: Array) -> Array:
        """Return the errors Delta (minus the derivative of the loss by each output) of outputs ``f``.

        Both have shape ``(cases, outputs)``. The rows are independent of each other, for example one for each
        replica and stage of a step.
        """
        known = self.march.known
        known_outputs = KnownArrays(
            known.values, known.data, {}, known.first, known.functions, known.literals
        )
        known_outputs.found[self.output.node] = f.T.reshape(*self.sizes, 1, len(f))
        value = known_outputs(self.error.expr, _places(self.indices, self.sizes) | {t: 0})
        value = np.broadcast_to(value, (*self.sizes, len(f)))
        return np.ascontiguousarray(value.reshape(-1, len(f)).T)

    def slopes(self, f: Array) -> tuple[Array, Array]:
        """Return the errors of outputs ``f``, (cases, outputs), and their derivatives by the outputs.

        The derivatives have shape (cases, outputs, outputs), and are finite differences.
        """
        count = f.shape[1]
        step = SLOPE * (1 + np.abs(f))
        moved = f[:, None] + np.eye(count) * step[:, None]
        whole = np.concatenate([f[:, None], moved], axis=1)
        errors = self.errors(whole.reshape(-1, count)).reshape(whole.shape)
        return errors[:, 0], ((errors[:, 1:] - errors[:, :1]) / step[..., None]).transpose(0, 2, 1)

    def row(self, node: int, first: int) -> Array:
        """Return the tangent kernel K(t, s) at the time node ``node`` for nodes s from ``first`` to ``node``.

        It is multiplied by the learning rate. Shape ``(nodes s, replicas, outputs, outputs)``.
        """
        sizes = self.march.tables.size(self.axes)
        at = _places((s, *self.axes), (node + 1 - first, *sizes))
        at[s] = at[s]._replace(start=first, stop=node + 1)
        value = self.march.known(self.tangent, at | {t: node})
        full = np.broadcast_to(value, (node + 1 - first, *sizes, self.march.replicas))
        shaped = np.moveaxis(full, -1, 1).reshape(len(full), self.march.replicas, prod(self.sizes), -1)
        return self.stepping.rate * shaped

    def kernels(self, last: range, first: int) -> Array:
        """Return the tangent kernel of the ``last`` nodes with all nodes from ``first`` on, times the rate.

        Shape ``(last nodes, nodes, replicas, outputs, outputs)``.
        """
        self.rows[last[-1]] = self.row(last[-1], first)
        self.rows = {k: x[-(k + 1 - first) :] for k, x in self.rows.items() if k >= last[0]}

        def later(k: int) -> list[Array]:
            return [self.rows[m][k - first].transpose(0, 2, 1) for m in range(k + 1, last[-1] + 1)]

        return np.array([[*self.rows[k], *later(k)] for k in last])

    def outputs(self, now: int) -> Array:
        """Return the outputs at time node ``now``, shape ``(replicas, outputs)``."""
        outputs: Array = (
            self.march.known.found[self.output.node][..., now, :].reshape(-1, self.march.replicas).T
        )
        return outputs

    def fastest(self) -> float:
        """Return the largest rate (1/time) at which outputs are learnt at the first node, of all replicas."""
        _, slopes = self.slopes(self.outputs(0))
        return float(np.abs(np.linalg.eigvals(self.row(0, 0)[0] @ slopes)).max())

    def advance(self, done: int) -> None:
        """Compute the weights of the updates of all completed steps at the next node.

        ``done`` is the number of completed steps; after the last one nothing is done. Collocation gives the
        errors ``Delta(f_q)`` at the stages q of the step, at times s_q. The state z_i of a weight is a sum
        over the gradients at nodes m with weights ``S_i(m)``, which follow from
        ``S(m) <- e^(A step) S(m) + sum_q new_q l_m(s_q) Delta(f_q)``. Here new_q are the weights of the input
        (:meth:`Stepping.over`), and l_m are the polynomials that interpolate gradients. The weights of the
        updates are ``S_0(m)``.
        """
        nodes, now = self.stepping.nodes, done - 1
        if done == len(nodes):
            return
        order = self.stepping.order + self.stepping.drifts
        last = range(max(0, now + 1 - order), now + 1)
        step = nodes[now + 1] - nodes[now]
        known, at = nodes[last[0] : now + 1], nodes[now] + step * STAGES
        basis = without_alternation(known, at) if self.stepping.drifts and now else lagrange(known, at)
        f = self.outputs(now)
        if self.predicted is not None and self.stepping.drifts:
            self.drift = self.drift + (f - self.predicted) / (nodes[now] - nodes[now - 1])
        moved, fed = self.velocities(last, basis, step)
        inside = step * INSIDE
        stages, errors = self.relax(f, f[:, None] + inside @ moved, np.einsum("qp,rpsij->rqsij", inside, fed))
        self.predicted = stages[:, -1]
        kept, new = self.stepping.over(step)
        self.states = np.tensordot(kept, self.states, 1)
        shares = np.einsum("nq,qm,rqi->nimr", new, basis, errors)
        self.states[..., last[0] : now + 1, :] += shares.reshape(-1, *self.sizes, *shares.shape[2:])
        self.weights[..., now + 1, :, :] = self.states[0]

    def velocities(self, last: range, basis: Array, step: float) -> tuple[Array, Array]:
        """Return A and B of ``df_p/ds = A_p + sum_q B_pq Delta(f_q)``, for outputs at the stages p of a step.

        Delta are the errors of the outputs f_q at the stages. ``last`` are the time nodes through which
        gradients are interpolated, ``basis`` the values of their polynomials at the stages, shape (stages,
        nodes), and ``step`` is the length of the step. A has shape (replicas, stages, outputs), and B
        (replicas, stages, stages, outputs, outputs).
        """
        A, b, now = self.stepping.A, self.stepping.b, last[-1]
        whole = self.kernels(last, last[0] if len(A) == 1 else 0)
        kernels = np.einsum("pk,qm,kmrij->rpqij", basis, basis, whole[:, -len(last) :])
        share = b[0] * np.eye(len(STAGES))
        moved = np.repeat(self.drift[:, None], len(STAGES), axis=1)
        if len(A) > 1:
            held = self.states[1:, ..., : now + 1, :].reshape(len(A) - 1, -1, now + 1, self.march.replicas)
            carried = np.einsum("kmrij,njmr->nkri", whole, held)
            for p, (left, fed) in enumerate(self.stepping.over(step, x) for x in STAGES):
                share[p] += A[0, 1:] @ fed[1:]
                moved[:, p] += np.einsum("n,k,nkri->ri", A[0, 1:] @ left[1:, 1:], basis[p], carried)
        return moved, share[:, :, None, None] * kernels

    def relax(self, f: Array, start: Array, fed: Array) -> tuple[Array, Array]:
        """Solve ``f_q = start_q + sum_p fed_qp Delta(f_p)`` for the outputs f_q at the stages q of a step.

        ``Delta`` are the errors of outputs. ``f``, shape (replicas, outputs), is the first guess at all
        stages; ``start`` has shape (replicas, stages, outputs) and ``fed`` (replicas, stages, stages,
        outputs, outputs). Returns outputs and errors at the stages, both (replicas, stages, outputs).
        Newton's method is used; its steps are halved until the residual falls. Raises NotConverged if it does
        not converge.
        """
        cases, count = f.shape
        one = np.eye(count * len(STAGES))

        def left(stages: Array) -> tuple[Array, Array, Array]:
            errors, slopes = (x.reshape(*stages.shape, -1) for x in self.slopes(stages.reshape(-1, count)))
            missed = stages - start - np.einsum("rqpij,rpj->rqi", fed, errors[..., 0])
            return missed, errors[..., 0], slopes

        stages = np.repeat(f[:, None], len(STAGES), axis=1)
        missed, errors, slopes = left(stages)
        for _ in range(NEWTON):
            change = (fed @ slopes[:, None]).transpose(0, 1, 3, 2, 4).reshape(cases, *one.shape)
            jump = np.linalg.solve(one - change, missed.reshape(cases, -1, 1)).reshape(stages.shape)
            share = np.ones((cases, 1, 1))
            for _ in range(HALVINGS):
                tried = stages - share * jump
                again = left(tried)
                old, new = (np.abs(x).max(axis=(1, 2)) for x in (missed, again[0]))
                worse = new > np.maximum(old, CONVERGED)
                if not worse.any():
                    break
                share[worse] /= 2
            stages, (missed, errors, slopes) = tried, again
            if not np.isfinite(stages).all():
                break
            if np.abs(jump).max() <= CONVERGED * (1 + np.abs(stages).max()):
                return stages, errors
        raise NotConverged(
            "Newton's method for the outputs in a time step of the flow does not converge; shorter time "
            "steps may help"
        )


def without_alternation(nodes: Array, at: Array) -> Array:
    """Return the weights of values at ``nodes`` in a polynomial at the points ``at``: ``(at, nodes)``.

    The polynomial is zero for the values 1, -1, 1, ... at successive nodes. Its degree is one less than that
    of the polynomial through all nodes.

    >>> without_alternation(np.array([0.0, 1.0, 2.0]), np.array([3.0])).tolist()
    [[-0.75, 0.5, 1.25]]
    """
    gaps = nodes[:, None] - nodes + np.eye(len(nodes))
    # `difference` has the weights of the values in their divided difference over all nodes. The divided
    # difference is zero for values of a polynomial whose degree is below the number of nodes minus 1.
    difference = 1 / gaps.prod(axis=1)
    signs = (-1.0) ** np.arange(len(nodes))
    basis = lagrange(nodes, at)
    return basis - np.outer(basis @ signs / (difference @ signs), difference)


def _places(indices: Sequence[Symbol], sizes: Sequence[int]) -> dict[Symbol, Any]:
    """Return, for each index, the description of its axis in an array whose axes are ``indices``.

    A description is an ``Axis``: the first value of the index (0), the length of the axis from ``sizes``, its
    position, and the number of axes of the array.
    """
    ndim = len(indices)
    return {x: Axis(0, n, k, ndim) for k, (x, n) in enumerate(zip(indices, sizes, strict=True))}
