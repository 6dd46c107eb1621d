"""Responses of a flow as functions of two times.

What the march of a flow holds is the response to a source at one node: the density times that node's weight
only where the steps are even, since an explicit multistep rule read backwards is no consistent rule at its
start or where the step changes.  Sums over nodes do not feel this; single entries do.  So the densities are
solved for once the march is done, from the same rows with weights one and integrals in place of sums:

    rho_ik(t, s) = sum_l [l driven by k] g_l K_il(t, s) + sum_l int_s^t K_il(t, t') rho_lk(t', s) dt' ,

fields that stand in another's equation at the same time put in, with what drives them.

The integral runs over the polynomials through four nodes each, all of them between s and t; its error falls
as the fourth power of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from numerics.compile.table import Node
from numerics.errors import NotConverged
from numerics.solver.afterwards import opened
from numerics.solver.grid import integral_weights
from numerics.solver.march import March

Array = NDArray[np.float64]

SETTLED = 1e-13
MAX_SWEEPS = 100


def densities(result: March, nodes: Array, data: Mapping[str, Array]) -> dict[tuple[Node, Node], Array]:
    """For every response (i, k) of the march the density ``rho_ik``, shape (T, n_i, T, n_k), zero for s > t.

    Its diagonal is the limit s -> t.  ``nodes`` are the times of the march, ``data`` what it was given, with
    ones in place of the integrator's weights: of ``w`` the flow's own memory is left.  On settled grids the
    densities, at s = 0 and s = t too, are about as accurate as the correlations that the march found: within
    a factor of three of their error, uniform or log output times (tests/numerics/solver/test_flow.py).
    Raises :class:`~numerics.errors.NotConverged` on a grid so coarse that a row does not settle.
    """
    plan, T = result.plan, len(nodes)
    table = plan.table
    found: dict[tuple[Node, Node], Array] = {}
    rows = replace(result, data=data, responses=found)
    for i, k in plan.responses:
        found[i, k] = np.zeros((T * result.sizes[i], T * rows.widths[k]))
    order = [(kind, i, j) for kind, i, j in plan.order if kind in ("kernel", "response")]
    compiled = {
        id(c): rows.compile(c.kernel, "through" if c.kernel.reach == "past" else None)
        for r in table.fields
        for c in r.couplings
    }
    equations = {r.field: opened(table, r.field, result.number) for r in table.fields}
    K: dict[int, Array] = {}

    def now(i: Node, step: int) -> slice:
        return slice(step * result.sizes[i], (step + 1) * result.sizes[i])

    for step, weights in enumerate(interval_weights(nodes)):
        upto = step + 1
        weighted: dict[tuple[Node, Node], Array] = {}
        for (i, k), a in found.items():
            n, m = result.sizes[i], rows.widths[k]
            if step:  # the row before is the first guess
                a[now(i, step), : step * m] = a[now(i, step - 1), : step * m]
            block = a[: upto * n, : upto * m].reshape(upto, n, upto, m)
            weighted[i, k] = (block * weights.T[:, None, :, None]).reshape(upto * n, upto * m)
        for _ in range(MAX_SWEEPS):  # rows at the same time enter through the end of the integral
            change = 0.0
            for kind, i, j in order:
                if kind == "kernel":
                    c = plan.rows_of[i].couplings[j[1] or 0]
                    K[id(c)] = compiled[id(c)](step)
                    continue
                n, m = result.sizes[i], rows.widths[j]
                value = np.zeros((n, upto * m))
                for factor, c in equations[i][1]:
                    if (c.field, j) in found:
                        value += factor * K[id(c)] @ weighted[c.field, j]
                    if (gain := equations[c.field][0].get(j)) is not None:
                        value += factor * gain * K[id(c)]
                row = found[i, j][now(i, step), : upto * m]
                moved = np.max(np.abs(value - row)) / max(1.0, np.max(np.abs(value)))
                change = float(np.maximum(change, moved))  # nan if it is
                row[:] = value
                last = row.reshape(n, upto, m) * weights[:, step][:, None]
                weighted[i, j][step * n :] = last.reshape(n, upto * m)
            if change <= SETTLED:
                break
        else:
            raise NotConverged(
                f"the responses at t = {nodes[step]:.3g} did not settle: the time step is too long"
            )
    return {(i, k): a.reshape(T, result.sizes[i], T, -1) for (i, k), a in found.items()}


def interval_weights(nodes: Array) -> Iterator[Array]:
    """For n = 0, 1, ...: the weights (n + 1, n + 1) of nodes 0..n in the integrals from node m to node n.

    Row m uses only nodes m..n, and integrates polynomials of third degree exactly if there are four of them.

    >>> [w.tolist() for w in interval_weights(np.array([0.0, 1.0, 2.0]))][1]
    [[0.5, 0.5], [0.0, 0.0]]
    """
    settled = np.zeros((len(nodes), len(nodes)))  # over the cells whose four nodes are all known
    for n in range(len(nodes)):
        if n >= 3:
            four = np.arange(n - 3, n + 1)
            if n >= 4:
                settled[: n - 3, four] += integral_weights(nodes[four], nodes[n - 2], nodes[n - 1])
            settled[n - 3, four] = integral_weights(nodes[four], nodes[n - 3], nodes[n - 1])
        total = settled[: n + 1, : n + 1].copy()
        if n >= 3:
            total[: n - 2, four] += integral_weights(nodes[four], nodes[n - 1], nodes[n])
        for m in range(max(0, n - 2), n):
            total[m, m:] = integral_weights(nodes[m : n + 1], nodes[m], nodes[n])
        yield total
