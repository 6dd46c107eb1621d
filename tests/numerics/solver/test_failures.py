"""Tests of failures: divergence with its step, cycles, and no file of the command line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from sympy import Function, S, Symbol, exp, log, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Parametrization,
    Population,
    eta,
    gamma0,
    mu,
    s,
)
from derive.program import t as now
from numerics.cli import run
from numerics.errors import Diverged, NumericsError, SpecError
from numerics.experiment import Experiment
from numerics.experiment.schema import Solver
from numerics.lowering.table import Coupling, Factor, FieldRow, KernelRow, Monomial, Request, Table
from numerics.solution import solved
from numerics.solver import solve
from numerics.solver.linear.march import march
from numerics.solver.linear.plan import NotCausal, Plan
from tests.derive.once import mlp
from tests.numerics.solver.helpers import flow, gd


def test_divergence_names_the_step():
    e = gd(2, 3, rate=0.7, steps=50)
    with pytest.raises(Diverged, match=r"diverged at step (\d+)") as found:
        solve(e)
    step = int(re.findall(r"diverged at step (\d+)", str(found.value))[0])
    assert 2 < step < 20
    before = solve(gd(2, 3, rate=0.7, steps=step - 1))  # one step fewer is still a result
    assert np.isfinite(before.train_loss).all()


def test_inputs_that_are_not_normalised_are_named():
    """Raw pixels have a kernel of 1600; the message names the inputs, and the growth is measured."""
    raw = gd(1, 3, rate=0.1, steps=6)
    large = Experiment.from_dict(
        {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 6}},
        kernel=1600 * raw.kernel / raw.kernel.max(),
        targets=raw.targets,
    )
    with pytest.raises(Diverged, match=r"K_x of the inputs reaches 1600, .* normalise the inputs") as found:
        solve(large)
    one = abs(solve(large.replace({"training.steps": 1})).error).max("sample")
    said = float(re.findall(r"multiplies the largest error by (\S+);", str(found.value))[0])
    assert said == pytest.approx(float(one[1] / one[0]), rel=5e-3)  # three digits are printed
    assert "reaches 1600" in solve(large.replace({"training.learning_rate": 1e-4})).attrs["note"]
    assert "note" not in solve(raw.replace({"training.learning_rate": 1e-4})).attrs


def test_an_average_without_a_limit_is_not_blamed_on_the_learning_rate():
    """<exp(h^2)> of a Gaussian of variance 1 is infinite before any step, and the rate was blamed."""
    z, n = Function("z"), Function("n")
    units, pixels = Population("units"), Population("input", given=True)
    x, h = GivenVector("x", pixels, "K_x"), Field("h", units)
    A, w = GaussianMatrix("A", units, pixels), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    forward = {
        h(mu, now): A @ x(mu),
        n(mu, now): Mean(w.symbol * exp(h(mu, now) ** 2)),
        z(mu, now): Mean(exp(h(mu, now) ** 2)),
        f(mu, now): n(mu, now) / z(mu, now) / gamma0,
    }
    net = Network("softmax over units", (h,), forward, weights=(A, w), given=(x,))
    program = net.train((y(mu) - f(mu, now)) ** 2 / 2, GradientDescent(eta))
    with pytest.raises(NumericsError) as found:
        solve(
            program,
            numbers={"eta": 0.1, "gamma0": 1.0},
            arrays={"K_x": np.array([[1.0, 0.3], [0.3, 0.8]]), "y": [1.0, -0.6]},
            times=range(4),
            solver=Solver(method="paths"),
        )
    assert "a smaller learning rate is needed" not in str(found.value)


def test_a_flow_whose_first_steps_are_too_long_is_cut_until_it_is_not():
    r = solve(flow(1, 2, time=20.0, points=2, rtol=1e-2, gamma0=0.3), kernels="none")
    assert r.attrs["error_estimate"] <= 1e-2
    assert float(r.train_loss[-1]) < 1e-4


SPEC = """
[network]
depth = 2
[data]
kernel = "k.npy"
targets = "y.npy"
[training]
learning_rate = 7.5
steps = 40
"""


def test_the_command_writes_nothing_for_a_rate_that_diverges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("k.npy", np.eye(2))
    np.save("y.npy", np.ones(2))
    Path("spec.toml").write_text(SPEC)
    own = {p.name for p in tmp_path.iterdir()}
    assert run(["solve", "spec.toml", "-o", "out.nc", "--plot", "out.png"]) == 3
    out, err = capsys.readouterr()
    assert "training.learning_rate = 7.5" in err
    assert "at step" in err
    assert out == ""
    assert {p.name for p in tmp_path.iterdir()} == own


def test_kernels_that_no_memory_holds_are_refused_before_anything_runs(monkeypatch):
    one_gibibyte = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**18}
    monkeypatch.setattr(os, "sysconf", one_gibibyte.__getitem__)
    e = gd(2, kernel=np.eye(50), targets=np.ones(50), steps=400)
    with pytest.raises(SpecError, match=r'--kernels = "full": needs .* GiB .*accepted: trace or none'):
        solve(e, kernels="full")


def test_times_that_no_memory_holds_are_refused_before_anything_runs():
    e = gd(2, kernel=np.eye(50), targets=np.ones(50), steps=200_000)
    with pytest.raises(SpecError, match=r"solver.hours = 24.0: .*takes about 6.2e\+03 hours .*fewer steps"):
        solve(e)
    tables = {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 200_000}}
    lifted = Experiment.from_dict(tables | {"solver": {"hours": 1e9}}, kernel=np.eye(50), targets=np.ones(50))
    with pytest.raises(SpecError, match=r"training.steps = 200000: needs .* GiB .*accepted: fewer times"):
        solve(lifted)


def table(*, cyclic: bool) -> Table:
    """Return the table of x(t) = u(t) + sum_{s<t} D(t,s) y(s), D = <y y>, <u u> = D.

    If ``cyclic``, y(t) = v(t) + sum_{s<t} C(t,s) x(s) with C = <x x>, so that C at a step needs D at that
    step, which needs C.
    """
    x, y, u, v, C, D = ((n, None) for n in "xyuvCD")

    def row(tensor):
        return KernelRow((), (), (Monomial(S.One, (Factor(tensor, (now, s)),)),))

    one = KernelRow((), (), (Monomial(S.One, ()),))
    return Table(
        fields=(
            FieldRow(x, (), ((u, S.One),), (Coupling(y, row(D)),)),
            FieldRow(y, (), ((v, S.One),), (Coupling(x, row(C)),) if cyclic else ()),
        ),
        covariances={(u, u): row(D), (v, v): one},
        source_indices={u: (), v: ()},
        tensors={C: Request("correlation", x, x, S.One), D: Request("correlation", y, y, S.One)},
        scalars=(),
        hoisted=(),
    )


def test_a_cycle_within_a_step_is_not_causal():
    with pytest.raises(NotCausal, match=r"depend on each other: .*C\[x,x\]\(t, :t\).*->"):
        Plan(table(cyclic=True), wanted=(("C", None),))


def test_a_missing_covariance_of_two_sources_is_not_causal():
    fine = table(cyclic=False)
    u, v = ("u", None), ("v", None)
    half = {**fine.covariances, (v, u): KernelRow((), (), ())}
    one_way = Table(fine.fields, half, fine.source_indices, fine.tensors, fine.scalars, fine.hoisted)
    with pytest.raises(NotCausal, match=r"needs the covariance .* the theory states"):
        Plan(one_way, wanted=(("C", None),))


def test_a_table_without_its_cycle_solves():
    """Check x(t) = u + t v and C(t,s) = 1 + t s, because y = v is one number for all times."""
    C = march(table(cyclic=False), steps=4, constants={}, data={}, wanted=(("C", None),))
    times = np.arange(4.0)
    assert C.tensor(("C", None))[:, 0, :, 0] == pytest.approx(1 + np.outer(times, times))


def test_as_many_layers_as_one_likes_are_planned():
    """Check that a plan of 400 layers does not end in RecursionError.

    x_l(t) = u_l(t) + sum_{s<t} R_{l-1}(t,s) x_l(s) with R_l = <d x_l(t)/d u_l(s)>: each layer needs the one
    below, which a chain of calls of the functions of Plan resolved.
    """
    layers = range(400)
    fields, tensors, covariances = [], {}, {}
    one = KernelRow((), (), (Monomial(S.One, ()),))
    for n in layers:
        x, u, response = ((name, n) for name in ("x", "u", "R"))
        below = KernelRow((), (), (Monomial(S.One, (Factor(("R", n - 1), (now, s)),) if n else ()),))
        fields.append(FieldRow(x, (), ((u, S.One),), (Coupling(x, below),)))
        tensors[response] = Request("response", x, u, S.One)
        covariances[u, u] = one
    chain = Table(tuple(fields), covariances, {("u", n): () for n in layers}, tensors, (), ())
    plan = Plan(chain, wanted=(("R", layers[-1]),))
    assert len(plan.responses) == len(layers)


def test_depths_whose_equations_take_too_long_are_refused_before_they_are_derived():
    given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
    with pytest.raises(
        SpecError, match=r"program.depth = 100000: deriving its equations takes about .* hours"
    ):
        solve(mlp(10**5), times=range(3), **given)


def test_an_unknown_field_has_no_row():
    with pytest.raises(KeyError):
        table(cyclic=False).row(("z", None))
    assert mu not in table(cyclic=False).source_indices


def test_a_number_that_is_read_at_one_value_of_an_index_is_left_to_the_reference_solver():
    """A cross-entropy whose channels are written out."""
    units, pixels, c = Population("units"), Population("input", given=True), Symbol("c", integer=True)
    x, h, f = GivenVector("x", pixels, "K_x"), Field("h", units), Function("f")
    channels = IndexRange(c, S.One, S(2))
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units, indices=(channels,))
    forward = {h(mu, now): W @ x(mu), f(mu, c, now): Mean(w(c) * tanh(h(mu, now)))}
    network = Network("written out", (h,), forward, (W, w), given=(x,), ranges=(channels,))
    loss = log(exp(f(mu, 1, now)) + exp(f(mu, 2, now))) - f(mu, 1, now)
    given = {"numbers": {"eta": 0.1}, "arrays": {"K_x": [[1.0]]}, "times": range(3)}
    program = network.train(loss, GradientDescent(eta), Parametrization(S.One))
    assert solve(program, **given).attrs["method"] == "direct"
    with pytest.raises(SpecError, match="is read at one value of an index"):
        solve(program, solver=Solver(method="paths", samples=64), **given)


def test_a_program_without_samples_is_solved():
    units = Population("units")
    h, f, x, w = Field("h", units), Function("f")(now), GaussianVector("x", units), GaussianVector("w", units)
    W = GaussianMatrix("W", units, units)
    forward = {h(now): W @ Field("start", units)(now), Field("start", units)(now): x.symbol}
    forward[f] = Mean(w.symbol * tanh(h(now)))
    network = Network("no sample", (h, Field("start", units)), forward, (W, w), (x,))
    program = network.train((1 - f) ** 2 / 2, GradientDescent(eta), Parametrization(S.One))
    found = solve(program, numbers={"eta": 0.5}, times=range(3), solver=Solver(samples=256))
    assert abs(found.error.values[-1, 0]) < abs(found.error.values[0, 0])


@pytest.mark.parametrize("width", [0, -3, 2.5])
def test_the_width_of_a_result_is_checked(width):
    with pytest.raises(SpecError, match=f"width = {width}: must be"):
        solved(gd(1, 2, rate=0.1, steps=1), width=width)
