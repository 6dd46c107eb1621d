"""The operations of a step print as mathematics, and are all that a runner needs.

``Literal`` is another runner: it takes the operations one by one, as they are written, without the march's
arrays, products of several arrays or views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Symbol, lambdify

from derive.calculus.symbols import s, t
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of
from numerics.experiment.problem import Problem
from numerics.lowering import Table, lower
from numerics.lowering.operations import (
    AddRow,
    ClearRow,
    CorrelationArray,
    EvaluateRow,
    EvaluateScalar,
    FactorArray,
    MarchStep,
    MirrorRow,
    MultiplyFactors,
    MultiplyRow,
    Operation,
    OrderParameterReading,
    ResponseArray,
    ScalarArray,
)
from numerics.lowering.table import DELTA, Factor, FieldAtLayer, Reach
from numerics.solver.linear.march import March, march
from numerics.solver.linear.operations import step_of
from numerics.solver.linear.reduction import REDUCTIONS, reduced
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import flow, gd, solvable
from tests.reference.adams_weights import adams_weights

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
STEPS = 5

Array = np.ndarray


class Literal:
    """Arrays by name: ``(T, n, T, m)`` of two times, ``(n, T, m)`` the rows of a step."""

    def __init__(
        self, table: Table, steps: int, constants: Mapping[Symbol, float], data: Mapping[str, Array]
    ):
        self.table, self.steps, self.constants, self.data = table, steps, dict(constants), data
        self.extents = {x: int(top.subs(self.constants)) for x, top in table.extents.items()}
        self.indices = {r.field: r.indices for r in table.fields} | table.source_indices
        self.arrays: dict[Any, Array] = {}
        self.functions: dict[Expr, Any] = {}

    def run(self, step: MarchStep) -> None:
        for now in range(self.steps):
            for operation in step.operations:
                self.do(operation, now)

    def shape(self, indices: tuple[Symbol, ...]) -> tuple[int, ...]:
        return tuple(self.extents[x] for x in indices)

    def number(self, e: Expr, now: int = 0, at: int = 0) -> float:
        if e not in self.functions:
            self.functions[e] = lambdify((t, s), e.subs(self.constants))
        return float(self.functions[e](now, at))

    def two_times(self, x: CorrelationArray | ResponseArray) -> Array:
        if x not in self.arrays:
            n, m = (int(np.prod(self.shape(self.indices[i]))) for i in (x.first, x.second))
            self.arrays[x] = np.zeros((self.steps, n, self.steps, m))
        return self.arrays[x]

    def do(self, x: Operation, now: int) -> None:
        spans = {"past": slice(now), "through": slice(now + 1), "now": slice(now, now + 1), "start": slice(1)}
        if isinstance(x, EvaluateRow):
            self.evaluate(x, now, range(self.steps)[spans[x.times]])
        elif isinstance(x, EvaluateScalar):
            self.scalar(x, now)
        elif isinstance(x, MultiplyFactors):
            rows = self.product(x.product.factors, {}, x.product.rows, now, now)
            self.arrays.setdefault(x.target, np.zeros((self.steps, *rows.shape)))[now] = rows
        elif isinstance(x, MirrorRow):
            columns = spans[x.times]
            row = self.two_times(x.source)[now][:, columns]
            self.two_times(x.source.exchanged)[columns, :, now] = row.transpose(1, 2, 0)
        else:
            assert isinstance(x, ClearRow | AddRow | MultiplyRow)
            row = self.two_times(x.target)[now][:, spans[x.times]]
            if isinstance(x, ClearRow) or x.begins:
                row[:] = 0.0
            if isinstance(x, AddRow):
                row += self.number(x.gain) * self.arrays[x.left][:, spans[x.times]]
            elif isinstance(x, MultiplyRow):
                left, right = self.arrays[x.left][:, spans[x.over]], self.two_times(x.right)
                if x.transposed:
                    right = right[spans[x.times]][:, :, spans[x.over]].transpose(2, 3, 0, 1)
                else:
                    right = right[spans[x.over]][:, :, spans[x.times]]
                row += self.number(x.gain) * np.einsum("nrp,rpsm->nsm", left, right)

    def evaluate(self, x: EvaluateRow, now: int, times: range) -> None:
        kernel, known = x.kernel, {q.tensor: q for q in x.readings}
        n, m = (int(np.prod(self.shape(side))) for side in (kernel.rows, kernel.cols))
        row = self.arrays.setdefault(x.target, np.zeros((n, self.steps, m)))
        for at in times:
            row[:, at] = 0.0
            reach: Reach = "now" if at == now else "past"
            for monomial in kernel.at(reach):
                factor = self.number(monomial.coefficient, now, at)
                value = self.product(monomial.factors, known, (*kernel.rows, *kernel.cols), now, at)
                row[:, at] += factor * value.reshape(n, m)

    def product(
        self,
        factors: tuple[Factor, ...],
        known: Mapping[FieldAtLayer, OrderParameterReading],
        axes: tuple[Symbol, ...],
        now: int,
        at: int,
    ) -> Array:
        """Return the product of factors at t = now, s = at, summed over all indices but ``axes``."""
        numbers: dict[Symbol, int] = {}
        operands: list[Any] = []
        for f in factors:
            letters = [numbers.setdefault(x, len(numbers)) for x in f.indices if x not in (t, s)]
            operands += [self.read(f, known.get(f.tensor), now, at), letters]
        for x in axes:
            if x not in numbers:
                operands += [np.ones(self.extents[x]), [numbers.setdefault(x, len(numbers))]]
        return np.einsum(*operands, [numbers[x] for x in axes]) if operands else np.ones(())

    def read(self, f: Factor, q: OrderParameterReading | None, now: int, at: int) -> Array:
        indices = tuple(x for x in f.indices if x not in (t, s))
        times = [now if x == t else at for x in f.indices if x in (t, s)]
        if q is not None:
            first, second = times
            found = np.zeros(self.shape(indices))
            if q.array is not None:
                found += self.two_times(q.array)[first, :, second].reshape(found.shape)  # type: ignore[arg-type]
            if first == second and q.direct != 0:
                found += self.number(q.direct) * (np.eye(*found.shape) if indices else 1.0)
            return self.number(q.factor) * found
        if f.tensor == DELTA:
            return np.eye(*self.shape(indices))
        for array in (ScalarArray(f.tensor[0]), FactorArray(f.tensor)):
            if array in self.arrays:
                return np.asarray(self.arrays[array][times[0] if times else now])
        return np.asarray(self.data[f.tensor[0]][tuple(times)])

    def scalar(self, x: EvaluateScalar, now: int) -> None:
        values: list[Array] = []
        for _, a, b in x.row.averages:
            full = self.equal(a.tensor, b.tensor, now).reshape(self.shape((*a.indices, *b.indices)))
            numbers = {y: k for k, y in enumerate(dict.fromkeys((*a.indices, *b.indices, *x.row.indices)))}
            letters = [[numbers[y] for y in side] for side in ((*a.indices, *b.indices), x.row.indices)]
            values.append(np.einsum(full, *letters))
        values += [self.read(f, None, now, now) for _, f in x.row.inputs]
        expression = x.row.expression.subs(self.constants)
        found = lambdify([t, *x.row.arguments], expression)(now, *values)
        shape = self.shape(x.row.indices)
        self.arrays.setdefault(x.target, np.zeros((self.steps, *shape)))[now] = found

    def equal(self, a: FieldAtLayer, b: FieldAtLayer, now: int) -> Array:
        pair = CorrelationArray(a, b)
        if pair in self.arrays:
            return self.arrays[pair][now, :, now]
        return self.arrays[pair.exchanged][now, :, now].T


def samples(depth: int, projected: bool) -> dict[str, Any]:
    e = gd(depth, 3, steps=STEPS - 1)
    data = {"K_x": e.kernel, "y": e.targets}
    table = lower(solvable(depth, "gd", "sum", projected))
    return {"table": table, "constants": numbers_of(e), "data": data, "wanted": ()}


def any_weights() -> dict[str, Any]:
    e = flow(1, 3, loss="sum")
    weights = adams_weights(np.array([0.0, 0.1, 0.25, 0.3, 0.5, 0.6]), 3)
    data = {"K_x": e.kernel, "y": e.targets, "w": weights}
    return {
        "table": lower(solvable(1, "flow", "sum")),
        "constants": numbers_of(e),
        "data": data,
        "wanted": (("G", 1),),
    }


def random_data(**network: Any) -> dict[str, Any]:
    e = Experiment.from_dict(
        {
            "network": {"depth": 1, "gamma0": 0.8, "width_ratio": 0.8} | network,
            "data": {"kind": "isotropic", "sample_ratio": 1.5},
            "training": {"learning_rate": 0.1, "steps": STEPS - 1},
        }
    )
    table = lower(Problem.of(e).discrete)
    wanted = tuple(table.tensors)
    return {"table": table, "constants": numbers_of(e), "data": arrays_of(e), "wanted": wanted}


def modes() -> dict[str, Any]:
    """Return online descent on data with a spectrum, whose modes are units with attributes."""
    e = Experiment.from_dict(
        {
            "network": {"depth": 1, "width": 16},
            "data": {"kind": "power-law", "capacity": 1.5, "source": 1.0, "modes": 4, "batch": 8},
            "training": {"rule": "sgd", "learning_rate": 0.1, "steps": 2},
        }
    )
    return {"table": reduced(Problem.of(e), REDUCTIONS).table, "wanted": ()}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "samples": lambda: samples(2, projected=False),
    "projected": lambda: samples(2, projected=True),
    "weights": any_weights,
    "random data": random_data,
    "residual": lambda: random_data(depth=2, branch=0.5),
    "modes": modes,
}


def gap(found: Literal, expected: March) -> float:
    """Return the largest difference of any array that the march holds."""
    worst = 0.0
    for kind, arrays in ((CorrelationArray, expected.correlations), (ResponseArray, expected.responses)):
        for (i, j), a in arrays.items():
            full = found.arrays[kind(i, j)]
            worst = max(worst, float(np.abs(full.reshape(a.shape) - a).max()))
    for x, a in found.arrays.items():
        if isinstance(x, ScalarArray):
            worst = max(worst, float(np.abs(a - expected.scalars[x.name]).max()))
    return worst


@pytest.mark.parametrize("case", [x for x in CASES if x != "modes"])
def test_operations_taken_literally_are_the_march(case: str) -> None:
    """A correlation that is held one way round is compared where the list fills it in: on and below s = t."""
    given = CASES[case]()
    steps = len(given["data"]["w"]) if "w" in given["data"] else STEPS
    literal = Literal(given["table"], steps, given["constants"], given["data"])
    literal.run(step_of(given["table"], given["wanted"]))
    expected = march(**given, steps=steps)
    assert gap(literal, expected) < 1e-12
    assert max(np.abs(a).max() for a in expected.responses.values()) > 0.1


def test_the_page_shows_the_operations_of_two_layers() -> None:
    """A hidden layer and a readout; the page is written by hand from ``str`` of the step."""
    step = step_of(lower(mean_field(mlp(1, "linear", "gd", "sum")).at_depth(1)))
    assert f"```text\n{step}\n```" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("case", "lines"),
    [
        (
            "residual",
            """
            K[g1,h1](t, s) = beta*R[g2,u2](t, s) + beta**2*eta*gamma0*C[g2,g2](t, s) for s < t
            K[h0,v](t, t) = (R[Delta,u_Delta](t, t) + 1)
            R[h2,u1](t, :t+1) += K[h2,h1](t, t) @ R[h1,u1](t, :t+1)
            C[v,v](t, :t) += -1/(gamma0*nu)*<r0 r0>(t, :t) @ R[v,r0](:t, :t)^T
            C[v,v](t, :t) += 1/(gamma0**2*nu**2)*<r0 r0>(t, :t)
            C[h2,h2](t, t) += K[h2,h1](t, t) @ C[h1,h2](t, t)
            C[h1,h2](:t, t) = C[h2,h1](t, :t)^T
            """,
        ),
        ("weights", "K[p1,g1](t, s) = gamma0*sum_mu(w(t, s)*Delta[mu](t)*hoisted0[mu](s)) for s < t"),
        (
            "modes",
            """
            K[v,xi](t, t) = -1
            K'[v,xi](t, 0) = 1
            C_v(t, s) = sum over units of lamda(k)*(b[v](t)*b[v](s)
                + a[v,r0](t, :t+1) @ <r0 r0>(:t+1, :s+1) @ a[v,r0](s, :s+1)^T
                + a[v,u0](t, :t) @ <u0 u0>(:t, :s+1) @ a[v,u0](s, :s+1)^T) for s <= t
            """,
        ),
    ],
)
def test_operations_print_what_they_do(case: str, lines: str) -> None:
    given = CASES[case]()
    found = str(step_of(given["table"], given["wanted"])).splitlines()
    for line in lines.strip().replace("\n                +", " +").splitlines():
        assert line.strip() in found


def test_units_print_their_equations() -> None:
    (line,) = [x for x in str(step_of(modes()["table"])).splitlines() if x.startswith("solve")]
    assert line.startswith(
        "solve at each unit: xi(t) = 1/(N*gamma0)*r0(t) + K[xi,h0](t, :t) @ h0(:t), v(t) = "
    )
    assert line.endswith("h0(t) = sqrt(lamda(k))/B*u0(t) + lamda(k)*K[h0,v](t, t) @ v(t)")
