"""The series evaluated: against exact Taylor coefficients, numerical derivatives and the full solution."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sympy import lambdify
from sympy.functions.elementary.complexes import transpose

import numerics.expansion
from derive.expansion import LinearExpansion, expand_linear
from derive.expansion.operator_words import Memory, letters
from derive.program import L, P, alpha, ell, mu, s, t
from numerics.cli import run
from numerics.errors import Diverged, NotConverged, SpecError
from numerics.expansion import expand
from numerics.experiment import Experiment
from numerics.results import load
from numerics.solver import solve
from numerics.solver.grid import TimeGrid, flow_grid
from tests.derive.once import mean_field, mlp
from tests.reference.adams_weights import step_sum_weights
from tests.reference.power_series import gamma_expansion, loss_expansion
from tests.reference.solution import Solution

GD: dict[str, Any] = {"rule": "gd", "learning_rate": 0.1, "steps": 6}
FLOW: dict[str, Any] = {"rule": "flow", "time": 1.0, "points": 4}
NAMES = ("Phi", "G", "A", "B", "error", "tangent_kernel", "train_loss")


def experiment(
    samples: int,
    depth: int,
    training: dict[str, Any],
    *,
    gamma0: float = 1.0,
    loss: str = "sum",
    rtol: float = 1e-8,
) -> Experiment:
    rng = np.random.default_rng([samples, depth])
    inputs = rng.standard_normal((samples, 2 * samples))
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": gamma0},
            "training": {"loss": loss, **training},
            "solver": {"rtol": rtol},
        },
        kernel=inputs @ inputs.T / (2 * samples),
        targets=rng.standard_normal(samples),
    )


def with_gamma0(e: Experiment, gamma0: float) -> Experiment:
    return e.replace({"network.gamma0": float(gamma0)})


def agree(found: xr.Dataset, exact: list[Solution], names: tuple[str, ...], tolerance: float) -> None:
    """Require agreement relative to the largest entry of each coefficient."""
    for k, one in enumerate(exact):
        at = found.sel(order=2 * k)
        for name in names:
            expected = loss_expansion(exact)[k] if name == "train_loss" else getattr(one, name)
            size = max(1e-12, float(np.abs(expected).max()))
            assert np.abs(at[name].values - expected).max() <= tolerance * size, (name, 2 * k)


# -- exact Taylor coefficients -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "depth", "order", "loss"),
    [
        (3, 1, 2, "mean"),
        pytest.param(2, 2, 4, "sum", marks=pytest.mark.slow),
        (3, 3, 4, "mean"),
        (1, 5, 2, "sum"),
        pytest.param(2, 3, 6, "sum", marks=pytest.mark.slow),
    ],
)
def test_steps_against_the_exact_taylor_coefficients(samples: int, depth: int, order: int, loss: str) -> None:
    e = experiment(samples, depth, GD, loss=loss)
    weights = step_sum_weights(GD["steps"], e.effective_rate)
    exact = gamma_expansion(e.kernel, e.targets, weights, depth=depth, order=order // 2)
    agree(expand(e, order), exact, NAMES, 1e-12)


@given(
    arrays(np.float64, (2, 3), elements=st.floats(-1.5, 1.5)),
    arrays(np.float64, (2,), elements=st.floats(-2, 2)),
    st.integers(1, 3),
    st.floats(0.01, 0.5),
)
@settings(max_examples=4)
def test_random_samples_against_the_exact_taylor_coefficients(
    inputs: np.ndarray, targets: np.ndarray, depth: int, rate: float
) -> None:
    e = Experiment.from_dict(
        {"network": {"depth": depth}, "training": {"learning_rate": rate, "steps": 3}},
        kernel=inputs @ inputs.T / 3,
        targets=targets,
    )
    found = expand(e, 2)
    weights = step_sum_weights(3, e.effective_rate)
    exact = gamma_expansion(e.kernel, e.targets, weights, depth=depth, order=1)
    for k, one in enumerate(exact):
        for name in ("Phi", "G", "A", "B", "error", "tangent_kernel"):
            value = found[name].sel(order=2 * k).values if 2 * k in found.order.values else 0.0
            expected = getattr(one, name)
            assert np.abs(value - expected).max() <= 1e-12 * (1 + np.abs(expected).max()), name


@pytest.mark.parametrize(("depth", "order"), [(2, 2), (1, 4)])
def test_the_flow_against_the_exact_taylor_coefficients_on_its_grid(
    depth: int, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = experiment(2, depth, {**FLOW, "points": 3})
    grid = flow_grid(e.times, step=0.5, order=2)
    every = TimeGrid(grid.nodes, grid.weights, np.arange(len(grid.nodes)), grid.order)

    def once(clock: Any, attempt: Any) -> Any:
        return SimpleNamespace(parts=(every, attempt(every).found, {}))

    monkeypatch.setattr("numerics.expansion.coefficients.refine", once)
    found = numerics.expansion.expand(e.replace({"training.points": len(grid.nodes)}), order)
    exact = gamma_expansion(e.kernel, e.targets, grid.weights, depth=depth, order=order // 2)
    agree(found, exact, ("Phi", "G", "error", "tangent_kernel", "train_loss"), 1e-12)


# -- derivatives of the full solution ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("training", "depth", "rtol"),
    [
        (GD, 2, 1e-8),
        *(pytest.param(FLOW, depth, 1e-9, marks=pytest.mark.slow) for depth in (1, 2)),
    ],
)
def test_coefficients_are_numerical_derivatives(training: dict[str, Any], depth: int, rtol: float) -> None:
    """Half the second derivative in gamma0, by extrapolated differences of `solve`."""
    e = experiment(2, depth, training, rtol=rtol)
    found = expand(e, 2)
    sizes = {n: np.abs(found[n].sel(order=2)).max() for n in NAMES}
    steps = np.array([0.0, 0.05, 0.1, 0.15, 0.2]) / depth
    full = [solve(with_gamma0(e, max(g, 1e-9))) for g in steps]
    matrix = np.linalg.inv(np.vander(steps**2, increasing=True))[1]
    for name in NAMES:
        second = sum(w * r[name] for w, r in zip(matrix, full, strict=True))
        gap = float(np.abs(second - found[name].sel(order=2)).max())
        assert gap <= 1e-6 * max(1e-6, float(sizes[name])), name


# -- truncation errors -------------------------------------------------------------------------------------

ALL = [(depth, samples) for depth in (1, 2, 3, 4, 5) for samples in (1, 3, 8)]
FAST = [(2, 3)]


def exponents(e: Experiment, order: int) -> dict[str, float]:
    """Return the fitted power of gamma0 of the truncation error, for every quantity and layer."""
    found = expand(e, order)
    ratios = [
        float(np.abs(found[n].sel(order=2)).max() / np.abs(found[n].sel(order=0)).max())
        for n in NAMES
        if np.abs(found[n].sel(order=0)).max() > 0
    ]
    largest = np.sqrt(0.02 / max(ratios)) * (1 if order == 2 else 2)
    strengths = largest * 2.0 ** (-np.arange(3) * 3 / 4)
    missed: dict[str, list[float]] = {}
    for g in strengths:
        full = solve(with_gamma0(e, g))
        part = sum(found.sel(order=n) * g**n for n in found.order.values)
        for name in NAMES:
            rest = np.abs(full[name] - part[name])
            layers = rest.layer.values if "layer" in rest.dims else [None]
            for k in layers:
                value = float((rest if k is None else rest.sel(layer=k)).max())
                missed.setdefault(name if k is None else f"{name}^{k}", []).append(value)
    return {
        k: float(np.polyfit(np.log(strengths), np.log(v), 1)[0])
        for k, v in missed.items()
        if max(v) > 1e-13  # B of the last layer, and all of B at depth 1, are zero
    }


def expected_names(depth: int) -> set[str]:
    layers = range(1, depth + 1)
    found = {f"{n}^{k}" for n in ("Phi", "G", "A") for k in layers} | {f"B^{k}" for k in layers if k < depth}
    return found | {"error", "tangent_kernel", "train_loss"}


@pytest.mark.parametrize(
    ("depth", "samples"), [pytest.param(*x, marks=() if x in FAST else pytest.mark.slow) for x in ALL]
)
def test_steps_miss_the_fourth_power(depth: int, samples: int) -> None:
    fitted = exponents(experiment(samples, depth, GD), 2)
    assert set(fitted) == expected_names(depth)
    assert all(abs(x - 4) <= 0.2 for x in fitted.values()), fitted


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "samples"), ALL)
def test_the_flow_misses_the_fourth_power(depth: int, samples: int) -> None:
    fitted = exponents(experiment(samples, depth, FLOW), 2)
    assert set(fitted) == expected_names(depth)
    assert all(abs(x - 4) <= 0.2 for x in fitted.values()), fitted


def test_fourth_order_misses_the_sixth_power() -> None:
    fitted = exponents(experiment(3, 2, GD), 4)
    assert set(fitted) == expected_names(2)
    assert all(abs(x - 6) <= 0.3 for x in fitted.values()), fitted


# -- the interface -----------------------------------------------------------------------------------------


def test_only_orders_that_do_not_vanish() -> None:
    e = experiment(2, 2, GD)
    assert list(expand(e, 0).order.values) == [0]
    assert list(expand(e, 1).order.values) == [0]
    found = expand(e, 3)
    assert list(found.order.values) == [0, 2]
    assert found.attrs["truncation_order"] == 3
    xr.testing.assert_allclose(found, expand(e, 2))


def test_zero_targets_leave_the_kernels_at_rest() -> None:
    e = Experiment.from_dict({"network": {"depth": 2}, "training": GD}, kernel=np.eye(2), targets=np.zeros(2))
    assert list(expand(e, 2).order.values) == [0]


def test_negative_orders_are_refused() -> None:
    with pytest.raises(SpecError, match="--order = -1"):
        expand(experiment(1, 1, GD), -1)


def test_a_flow_that_does_not_settle() -> None:
    e = experiment(1, 1, {**FLOW, "time": 1e5, "points": 3})
    with pytest.raises(NotConverged):
        expand(e, 2)


def test_a_rate_that_diverges() -> None:
    e = experiment(2, 2, {**GD, "learning_rate": 100.0, "steps": 30})
    with pytest.raises(Diverged, match="order 0 diverged at step"):
        expand(e, 2)


# -- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.array([[1.0, 0.0], [0.5, 1.0]]))
    np.save(tmp_path / "y.npy", np.array([1.0, -1.0]))
    path = tmp_path / "spec.toml"
    path.write_text(
        '[network]\ndepth = 2\n[data]\ninputs = "x.npy"\ntargets = "y.npy"\n'
        "[training]\nlearning_rate = 0.25\nsteps = 3\n"
    )
    (tmp_path / "symbolic.toml").write_text('[network]\ndepth = "L"\n[training]\nrule = "flow"\n')
    return path


def test_command_writes_numbers(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = spec.parent / "x.nc"
    assert run(["expand", str(spec), "--order", "2", "-o", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["order"] == [0, 2]
    assert set(NAMES) <= set(load(out))


@pytest.mark.parametrize(
    ("form", "name", "order"), [("text", "spec.toml", "0"), ("latex", "symbolic.toml", "0")]
)
def test_command_prints_symbols(
    spec: Path, capsys: pytest.CaptureFixture[str], form: str, name: str, order: str
) -> None:
    assert run(["expand", str(spec.parent / name), "--order", order, "--show", form]) == 0
    shown = capsys.readouterr().out
    assert ("H^ℓ" if form == "text" else r"\boldsymbol{H}^{\ell}") in shown


@pytest.mark.slow
def test_command_prints_symbols_as_json(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = spec.parent / "x.nc"
    arguments = ["expand", str(spec), "--order", "2", "--show", "latex", "--json", "-o", str(out)]
    assert run(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["series"].startswith("\\begin{align*}")
    assert shown["order"] == [0, 2]
    assert out.exists()


@pytest.mark.parametrize("order", ["-1", "two"])
def test_command_refuses_orders(spec: Path, capsys: pytest.CaptureFixture[str], order: str) -> None:
    assert run(["expand", str(spec), "--order", order]) == 2
    assert "order" in capsys.readouterr().err


def test_command_needs_a_number_for_numbers(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["expand", str(spec.parent / "symbolic.toml"), "--order", "2"]) == 2
    assert "network.depth" in capsys.readouterr().err


# -- printed expressions by lambdify -----------------------------------------------------------------------


def three_samples() -> Experiment:
    kernel = [[1.5, 0.4, 0.1], [0.4, 1.0, -0.3], [0.1, -0.3, 0.7]]
    training = {"learning_rate": 0.2, "steps": 5}
    return Experiment.from_dict(
        {"network": {"depth": 3}, "training": training}, kernel=kernel, targets=[1.0, -0.7, 0.4]
    )


def as_matrix(word: Any, series: LinearExpansion, known: dict[str, Any]) -> np.ndarray:
    """Return a word as a product of matrices with rows and columns (time, sample).

    A letter holds ``w(t, s) sum_b Delta_b(s) X_ab(t, s)``, or ``w(t, s) Delta_b(s) X(t, s)``, of the word X
    in it.
    """
    if isinstance(word, transpose):
        return as_matrix(word.args[0], series, known).T
    if not isinstance(word, Memory):
        if str(word) in known:
            return known[str(word)]
        return reduce(np.matmul, [as_matrix(x, series, known) for x in letters(word)])
    w, error = known["weight"], known["errors"][word.order]
    T, P = error.shape
    body = as_matrix(word.body, series, known)
    if not series.closure.kernel(word.kernel).rows:
        return ((w * body)[:, :, None] * error).reshape(T, T * P)
    return np.einsum("ts,sb,tasb->tas", w, error, body.reshape(T, P, T, P)).reshape(T * P, T)


@pytest.mark.parametrize(
    ("module", "order", "name"),
    [
        ("numpy", 2, "H"),
        ("numpy", 2, "B"),
        ("mpmath", 2, "G"),
        *(pytest.param("numpy", 4, name, marks=pytest.mark.slow) for name in "HGAB"),
    ],
)
def test_coefficients_go_through_lambdify(name: str, module: str, order: int) -> None:
    """Compare words as matrices, compiled by SymPy alone, with the recursion.

    Products keep their order and their transposes. Rows and columns are (time, sample).
    """
    task, strength = three_samples(), 0.7
    series = numerics.expansion.series(task, order)
    assert isinstance(series, LinearExpansion)
    found, T = numerics.expansion.expand(task, order), len(task.times)
    known: dict[str, Any] = {"J": np.ones((T, T)), "K_x": np.kron(np.ones((T, T)), task.kernel)}
    known["weight"] = task.effective_rate * np.tril(np.ones((T, T)), -1)
    known["errors"] = {n: found.error.sel(order=n).values for n in found.order.values}
    memory = {str(y): y for e in series.words[name] for y in e.atoms(Memory)}
    for layer in (1, 2, 3) if order == 2 else (2,):
        values: list[Any] = [
            3 if x == L else as_matrix(memory.get(str(x), x), series, known)
            for x in series.letters(name, layer)
        ]
        if module == "mpmath":
            values = [mpmath.matrix(v.tolist()) if isinstance(v, np.ndarray) else v for v in values]
        got = series.lambdify(name, modules=module, layer=layer)(strength, *values)
        got = np.array(got.tolist(), dtype=float)
        at = found.sel(layer=layer)[{"H": "Phi"}.get(name, name)]
        expected = sum(strength**n * at.sel(order=n).values for n in found.order.values)
        if name == "H":
            expected = expected.transpose(0, 2, 1, 3).reshape(got.shape)
        if name == "A":
            expected = expected.transpose(0, 2, 1).reshape(got.shape)
        if name == "B":
            expected = expected.reshape(got.shape)
        np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize(("order", "names"), [(4, "HB"), pytest.param(12, "HGAB", marks=pytest.mark.slow)])
def test_the_recursion_at_a_depth_goes_through_lambdify(order: int, names: str) -> None:
    """Compiled by SymPy alone, beside the recursion of the solver; at gamma0 = 3 the highest orders count."""
    task, strength = experiment(3, 2, GD), 3.0
    found, T = numerics.expansion.expand(task, order), len(task.times)
    series = expand_linear(mean_field(mlp(rule="gd", loss="sum")), order)
    weight = task.effective_rate * np.tril(np.ones((T, T)), -1)
    known: dict[str, Any] = {"J": np.ones((T, T)), "K_x": np.kron(np.ones((T, T)), task.kernel)}
    known |= {"W_C": np.kron(weight, np.ones((3, 1))), "W_D": np.kron(weight, np.ones((1, 3)))}
    for n in found.order.values:
        errors = found.error.sel(order=n).values
        known[f"Delta_{n}"] = np.einsum("ts,ta->tas", np.eye(T), errors).reshape(3 * T, T)
    for name in names:
        given = [known[x.name] for x in series.given(name, 1, depth=2)]
        got = series.lambdify(name, modules="numpy", layer=1, depth=2)(strength, *given)
        at = found.sel(layer=1)[{"H": "Phi"}.get(name, name)]
        expected = sum(strength**n * at.sel(order=n).values for n in found.order.values)
        samples = {"H": (0, 2, 1, 3), "A": (0, 2, 1)}.get(name)
        expected = (expected.transpose(samples) if samples else expected).reshape(got.shape)
        np.testing.assert_allclose(got, expected, atol=1e-13 * np.abs(expected).max())


def test_words_refuse_plain_lambdify() -> None:
    """SymPy would multiply letters entry by entry and drop transposes: 0.065 for 0.168 in version 0.1."""
    words = expand_linear(mean_field(mlp(rule="gd")), 2)
    for name in words.names:
        e = words.coefficient(name, 2)
        for modules in ("numpy", "mpmath", "math"):
            with pytest.raises(TypeError, match="has no shape"):
                lambdify(sorted(e.atoms(Memory), key=str), e, modules)
        with pytest.raises(TypeError, match="has no shape"):
            words.series(name).lambdify(*sorted(e.free_symbols, key=str))


def test_entries_go_through_lambdify() -> None:
    """Time integrals, given as functions of the lazy error, beside the grid's values: H and f to gamma0^2."""
    task = three_samples()
    series, found = numerics.expansion.series(task, 2), numerics.expansion.expand(task, 2)
    assert isinstance(series, LinearExpansion)
    kernel, errors = np.array(task.kernel), {n: found.error.sel(order=n).values for n in (0, 2)}
    weight = 0.2 / 3  # rate over samples

    def integral(orders: tuple[int, ...], *args: float) -> float:
        *samples, time = args
        if not samples:
            return 1.0
        first, *rest = orders
        row = errors[first][:, int(samples[0]) - 1]
        inner = (row[j] * integral(tuple(rest), *samples[1:], j) for j in range(int(time)))
        return weight * sum(inner)

    given = {
        "K_x": lambda a, b: kernel[int(a) - 1, int(b) - 1],
        "v": lambda *args: integral((0,) * (len(args) - 1), *args),
        "v_2": lambda *args: integral((2,), *args),
    }
    numbers = {L: 3, ell: 2, P: 3}
    H = lambdify([mu, alpha, t, s], series.entry("H", 2).subs(numbers), [given, "math"])
    f = lambdify([mu, t], series.entry("f", 2, t).subs(numbers), [given, "math"])
    at = found.sel(order=2)
    for i in (0, 1, 2):
        np.testing.assert_allclose(f(i + 1, 4), -at.error.values[4, i], atol=1e-12)
        for j in (0, 1, 2):
            expected = at.Phi.sel(layer=2).values[4, 3, i, j]
            np.testing.assert_allclose(H(i + 1, j + 1, 4, 3), expected, atol=1e-12)
