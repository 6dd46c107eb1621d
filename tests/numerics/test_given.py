"""Arrays and numbers that Python gives: the refusals of files, from every entry point that takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, Rational, Sum, Symbol

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    P,
    Population,
    Program,
    adam,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from numerics.solver.lazy.solve import solve_lazy
from numerics.solver.long_times.solve import stationary_kernels
from numerics.solver.paths import solve_particles
from numerics.solver.quadrature.solve import solve_two_layer
from tests.derive.once import convolution, mean_field, mlp

K, Y = [[1.0, 0.2], [0.2, 0.9]], [1.0, -0.5]
NUMBERS = {"eta": 0.1, "gamma0": 1.0}
decay, heat = Symbol("decay", positive=True), Symbol("heat", positive=True)

BAD_ARRAYS: dict[str, tuple[str, Any, str]] = {
    "asymmetric": ("K_x", [[1.0, 0.2], [0.3, 1.0]], "is not symmetric: its entries at"),
    "negative": ("K_x", [[1.0, 2.0], [2.0, 1.0]], "is not positive semidefinite: its most negative"),
    "NaN": ("y", [1.0, float("nan")], "is nan at index"),
    "infinite": ("K_x", [[1.0, 0.2], [0.2, float("inf")]], "is inf at index"),
    "complex": ("y", [1.0, 2j], "holds complex128"),
    "strings": ("y", ["a", "b"], "holds <U1"),
    "objects": ("y", [None, 1.0], "holds object"),
    "truth values": ("y", [True, False], "holds bool"),
    "masked": ("y", np.ma.masked_array([1.0, 2.0], mask=[0, 1]), "has 1 masked entries"),
    "ragged": ("K_x", [[1.0], [1.0, 2.0]], "is not an array"),
    "integer without end": ("y", [10**400, 1], "overflows"),
}
BAD_SHAPES: dict[str, tuple[str, Any, str]] = {
    "too long": ("y", [1.0, 2.0, 3.0], "has shape (3,)"),
    "too short": ("y", [1.0], "has shape (1,)"),
    "a number": ("y", 1.0, "has shape ()"),
    "a column too many": ("y", [[1.0, 2.0], [3.0, 4.0]], "has shape (2, 2)"),
    "a vector for a kernel": ("K_x", [1.0, 2.0], "has shape (2,)"),
    "not square": ("K_x", [[1.0, 0.2, 0.1], [0.2, 0.9, 0.1]], "has shape (2, 3)"),
    "empty": ("K_x", np.zeros((0, 0)), "has shape (0, 0)"),
}


def in_python(arrays: dict[str, Any], numbers: dict[str, Any] = NUMBERS) -> object:
    return Problem.of(mlp(1), numbers=numbers, arrays=arrays, times=range(3))


def evaluated(arrays: dict[str, Any], numbers: dict[str, Any] = NUMBERS) -> object:
    return evaluate(mean_field(mlp(1)), steps=2, values={"P": 2, **numbers}, data=arrays)


def trained(arrays: dict[str, Any], numbers: dict[str, Any] = NUMBERS) -> object:
    return simulate_program(mlp(1), width=4, steps=1, seeds=1, values={"P": 2, **numbers}, data=arrays)


def in_a_file(arrays: dict[str, Any]) -> object:
    return Experiment.from_dict({"network": {"depth": 1}}, kernel=arrays["K_x"], targets=arrays["y"])


@pytest.mark.parametrize("case", BAD_ARRAYS)
@pytest.mark.parametrize("entry", [in_python, evaluated, trained, in_a_file])
def test_arrays_are_refused_everywhere_in_the_same_words(entry: Callable[..., object], case: str) -> None:
    name, value, reason = BAD_ARRAYS[case]
    with pytest.raises(SpecError) as refusal:
        entry({"K_x": K, "y": Y, name: value})
    assert refusal.value.key.rpartition(".")[2] == (
        {"K_x": "kernel", "y": "targets"}[name] if entry is in_a_file else name
    )
    assert reason in str(refusal.value)


@pytest.mark.parametrize("case", BAD_SHAPES)
@pytest.mark.parametrize("entry", [in_python, in_a_file])
def test_shapes_are_those_of_the_indices(entry: Callable[..., object], case: str) -> None:
    name, value, reason = BAD_SHAPES[case]
    with pytest.raises(SpecError) as refusal:
        entry({"K_x": K, "y": Y, name: value})
    if entry is in_python:  # a file names the other array too
        assert reason in str(refusal.value)
        assert refusal.value.key == f"arrays.{name}"


@pytest.mark.parametrize("entry", [numerics.solve, numerics.verify])
def test_no_entry_point_computes_with_such_arrays(entry: Callable[..., object]) -> None:
    for name, value, _ in (*BAD_ARRAYS.values(), *BAD_SHAPES.values()):
        with pytest.raises(SpecError):
            entry(mlp(1), numbers=NUMBERS, arrays={"K_x": K, "y": Y, name: value}, times=range(3))


def by_paths(arrays: dict[str, Any], numbers: dict[Any, Any] = NUMBERS) -> object:
    return solve_particles(mean_field(mlp(1)), steps=2, values={"P": 2, **numbers}, data=arrays, samples=8)


def by_nodes(arrays: dict[str, Any], numbers: dict[Any, Any] = NUMBERS) -> object:
    return solve_two_layer(mean_field(mlp(1)), steps=2, values={"P": 2, **numbers}, data=arrays)


def without_features(arrays: dict[str, Any], numbers: dict[Any, Any] = NUMBERS) -> object:
    return solve_lazy(mean_field(mlp(1)), steps=2, values={"P": 2, **numbers}, data=arrays)


def at_rest(arrays: dict[str, Any]) -> object:
    noisy = mean_field(mlp(1, weight_decay=decay, temperature=heat))
    values = {decay: 1.0, heat: 0.5, eta: 0.2, P: 2, gamma0: 1.0}
    return stationary_kernels(noisy, values=values, data=arrays)


@pytest.mark.parametrize("entry", [evaluated, trained, by_paths, by_nodes, without_features, at_rest])
def test_arrays_of_solvers_have_the_length_of_their_index(entry: Callable[..., object]) -> None:
    """A target too few was used for both samples, and the last of three was left out, without a word."""
    entry({"K_x": K, "y": Y})
    for name, value in (("y", [1.0]), ("y", [1.0, 2.0, 3.0]), ("K_x", np.eye(3)), ("K_x", np.eye(1))):
        with pytest.raises(ValueError, match=rf"data(\.|\[')({name}|y|x).* shape"):
            entry({"K_x": K, "y": Y, name: value})


@pytest.mark.parametrize("entry", [evaluated, trained, by_paths, by_nodes, without_features])
def test_sizes_are_integers(entry: Callable[..., object]) -> None:
    """A number of samples or a depth of 2.5 was taken for 2."""
    with pytest.raises(ValueError, match=r"2\.5"):
        entry({"K_x": K, "y": Y}, {"P": 2.5, **NUMBERS})


@pytest.mark.parametrize("solver", [evaluate, solve_particles])
def test_a_depth_is_an_integer(solver: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match=r"L = 2\.5.* must be an integer"):
        solver(mean_field(mlp()), steps=2, values={"P": 2, "L": 2.5, **NUMBERS}, data={"K_x": K, "y": Y})


@pytest.mark.parametrize("entry", [in_python, evaluated, trained, by_paths, by_nodes, without_features])
def test_a_name_has_one_number(entry: Callable[..., object]) -> None:
    """A symbol and its name are the same number: the last of both was taken."""
    entry({"K_x": K, "y": Y}, {"eta": 0.1, eta: 0.1, "gamma0": 1.0})
    with pytest.raises(SpecError, match=r"eta = .*is given a second time, with another value than 0\.1"):
        entry({"K_x": K, "y": Y}, {"eta": 0.1, eta: 0.2, "gamma0": 1.0})


@pytest.mark.parametrize("entry", [numerics.solve, numerics.verify, numerics.simulate])
def test_an_unknown_argument_is_refused_with_the_known_ones(entry: Callable[..., object]) -> None:
    options = {"width": 4, "seeds": 2} if entry is numerics.simulate else {}
    with pytest.raises(
        TypeError, match=r"method = 'paths': .*solver = Solver\(\.\.\.\) has the settings .*method"
    ):
        entry(mlp(1), numbers=NUMBERS, arrays={"K_x": K, "y": Y}, times=range(3), method="paths", **options)


def test_several_outputs_and_positions_have_their_axes() -> None:
    given: dict[str, Any] = {"numbers": NUMBERS, "times": range(3)}
    Problem.of(mlp(1, outputs=3), arrays={"K_x": K, "y": np.ones((2, 3))}, **given)
    with pytest.raises(SpecError, match=r"but the index c takes 3 values \(accepted: shape \(2, 3\)\)"):
        Problem.of(mlp(1, outputs=3), arrays={"K_x": K, "y": np.ones((2, 2))}, **given)
    net = convolution(1, "tanh", positions=3, receptive=1)
    kernel = np.eye(6).reshape(2, 3, 2, 3)
    assert Problem.of(net, arrays={"K_x": kernel, "y": Y}, **given).sample_count == 2
    kernel[0, 0, 1, 1] = 0.5
    with pytest.raises(SpecError, match="is not symmetric"):
        Problem.of(net, arrays={"K_x": kernel, "y": Y}, **given)


def test_what_is_right_is_taken_as_it_is() -> None:
    for y in (np.array(Y, dtype=np.float32), [1, -1], [Rational(1, 2), 1], [[1.0], [2.0]], np.ma.array(Y)):
        found = Problem.of(mlp(1), numbers=NUMBERS, arrays={"K_x": K, "y": y}, times=range(3))
        assert found.arrays["y"].dtype == np.float64
        np.testing.assert_array_equal(found.arrays["y"], np.ravel(np.asarray(y, dtype=float)))
        np.testing.assert_array_equal(found.arrays["K_x"], K)
    numbers = {"eta": Rational(1, 10), "gamma0": np.float32(1.0)}
    assert set(
        Problem.of(mlp(1), numbers=numbers, arrays={"K_x": K, "y": Y}, times=[0]).numbers.values()
    ) == {
        0.1,
        1.0,
        2.0,
    }


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("eta", float("nan"), "is not finite"),
        ("eta", float("inf"), "is not finite"),
        ("eta", 10**400, "is not finite"),
        ("eta", "0.1", "is not a number"),
        ("eta", True, "is not a number"),
        ("eta", None, "is not a number"),
        ("eta", 1 + 1j, "is not a number"),
        ("eta", [0.1], "is not a number"),
        ("eta", -0.1, "must not be negative"),
        ("gamma0", 0, "is zero, and a definition divides by it"),
        ("P", -1, "is not a size"),
        ("P", 2.5, "is not a size"),
        ("P", 3, "but numbers.P says P = 3"),
        ("L", 2.5, "is not a size"),
        ("L", 0, "is not a size"),
    ],
)
def test_numbers_are_finite_reals_in_the_domain_of_their_symbol(name: str, value: Any, reason: str) -> None:
    with pytest.raises(SpecError) as refusal:
        Problem.of(
            mlp(),
            numbers={**NUMBERS, "L": 1, name: value},
            arrays={"K_x": K, "y": Y},
            times=range(3),
        )
    assert reason in str(refusal.value)


@pytest.mark.parametrize("entry", [evaluated, trained])
@pytest.mark.parametrize("value", [float("nan"), True, 10**400])
def test_numbers_of_evaluate_and_of_networks_are_finite(entry: Callable[..., object], value: Any) -> None:
    with pytest.raises(SpecError, match=r"values.eta"):
        entry({"K_x": K, "y": Y}, {**NUMBERS, "eta": value})


def test_tables_of_other_types_are_refused() -> None:
    for given in ({"numbers": [1.0]}, {"arrays": [K, Y]}, {"solver": {"method": "paths"}}):
        with pytest.raises(SpecError, match=r"is (list|dict)"):
            Problem.of(mlp(1), times=range(3), **given)


def test_inputs_of_a_rule_that_takes_kernels_are_not_said_to_be_missing_from_the_program() -> None:
    """Adam of a hidden matrix does not need the entries of x, the vector of which the kernel is K_x."""
    program = mlp(2, "tanh", rules={"W": adam(eta)})
    given: dict[str, Any] = {"numbers": NUMBERS, "times": range(2)}
    said = (
        r"^arrays\.x: holds the entries of a given vector, and no matrix on this vector has an entrywise "
        r"rule \(accepted: arrays\.K_x, the means over entries of the products of two such vectors\)$"
    )
    with pytest.raises(SpecError, match=said):
        numerics.solve(program, arrays={"x": [[1.0, 0.2], [0.1, 0.9]], "y": Y}, **given)
    with pytest.raises(SpecError, match=r"^arrays\.W: is not an array of the program \(accepted: K_x, y\)$"):
        numerics.solve(program, arrays={"W": np.eye(2), "K_x": K, "y": Y}, **given)


def test_samples_of_weight_zero_are_counted_without_a_kernel() -> None:
    """Once the number of test points was negative for a program with two kinds of inputs."""
    units = Population("units")
    x, z = (GivenVector(n, Population(n + "s", given=True), "K_" + n) for n in "xz")
    h, w = Field("h", units), GaussianVector("w", units)
    U, V = (GaussianMatrix(n, units, v.population) for n, v in zip("UV", (x, z), strict=True))
    f, y, rho = Function("f"), Function("y"), Function("rho")
    forward = {h(mu, t): U @ x(mu) + V @ z(mu), f(mu, t): Mean(w.symbol * h(mu, t)) / gamma0}
    net = Network("two inputs", (h,), forward, weights=(U, V, w), given=(x, z))
    program = net.train(rho(mu) * (y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    arrays = {"K_x": K, "K_z": K, "y": Y, "rho": np.array([1.0, 0.0])}
    problem = Problem.of(program, numbers={"eta": 0.1, "gamma0": 1.0}, arrays=arrays, times=range(2))
    assert problem.held_out is not None
    assert (len(problem.held_out), problem.seen) == (1, 1)


b, c = Function("b"), Function("c")
p, q, k = (Symbol(n, integer=True) for n in "pqk")
LAST = Symbol("M", integer=True, positive=True)
LENGTHS: dict[str, tuple[Expr, int, str]] = {
    "at an integer beyond its index": (
        Sum(b(p), (p, 2, 3)) * b(4),
        3,
        r"index 1 of b takes the values 2\.\.4",
    ),
    "to a size and one": (Sum(b(k), (k, 0, LAST)), 4, r"the index k takes M \+ 1 = 4 values"),
    "to the number of samples and one": (Sum(b(k), (k, 0, P)), 3, r"the index k takes P \+ 1 = 3 values"),
    "at two indices": (Sum(b(p), (p, 1, 3)) * Sum(b(q), (q, 1, 4)), 4, "the index q takes 4 values"),
    "to another index": (Sum(p * Sum(b(q), (q, 1, p)), (p, 1, 3)), 3, "the index q takes 3 values"),
    "beside a longer sum over its index": (
        Sum(b(p), (p, 1, 2)) * Sum(p, (p, 1, 3)),
        2,
        "the index p takes 2 values",
    ),
}


def scaled(factor: Expr) -> Program:
    """Return one hidden linear layer with outputs that are multiplied by a factor."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, f, y = GivenVector("x", pixels, "K_x"), Field("h", units), Function("f"), Function("y")
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    forward = {h(mu, t): W @ x(mu), f(mu, t): factor * Mean(w.symbol * h(mu, t)) / gamma0}
    network = Network("scaled", (h,), forward, weights=(W, w), given=(x,))
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize("case", LENGTHS)
def test_arrays_have_the_entries_that_are_read(case: str) -> None:
    """Each read once left some length unchecked, or refused all lengths."""
    factor, length, reason = LENGTHS[case]
    program = scaled(factor)
    numbers = NUMBERS | ({"M": 3} if factor.has(LAST) else {})

    def problem(entries: int) -> Problem:
        arrays = {"K_x": K, "y": Y, "b": np.arange(1.0, entries + 1)}
        return Problem.of(program, numbers=numbers, arrays=arrays, times=range(2))

    assert problem(length).arrays["b"].shape == (length,)
    for wrong in (length - 1, length + 1):
        accepted = rf" \(accepted: shape \({length},\)\)"
        with pytest.raises(SpecError, match=rf"^arrays\.b: has shape \({wrong},\), but {reason}{accepted}$"):
            problem(wrong)


@pytest.mark.parametrize(
    ("time", "entries", "reason"),
    [
        (t - 1, 3, r"is read at t - 1, whose smallest value is -1"),
        (t + 1, 3, r"has shape \(3,\), but it is read at t \+ 1, whose largest value is 3"),
    ],
)
def test_times_of_arrays_do_not_wrap_around(time: Expr, entries: int, reason: str) -> None:
    """The entry of time -1 was that of the last time."""
    program, array = scaled(b(time)), np.arange(1.0, entries + 1)
    data = {"K_x": K, "y": Y, "b": array}
    with pytest.raises(SpecError, match=rf"^arrays\.b: {reason}"):
        numerics.solve(program, numbers=NUMBERS, arrays=data, times=range(3))
    with pytest.raises(ValueError, match=r"b is read at t [+-] 1 = (-1|3), but data\['b'\] holds"):
        evaluate(mean_field(program), steps=3, values={"P": 2, **NUMBERS}, data=data)


def test_arrays_over_time_may_be_longer_than_needed() -> None:
    """Sampled paths ended in an error of shapes."""
    solver = Solver(method="paths", samples=16)
    given: dict[str, Any] = {"numbers": NUMBERS, "times": range(2), "solver": solver}
    outputs = [
        numerics.solve(scaled(b(t)), arrays={"K_x": K, "y": Y, "b": array}, **given)["f"].values
        for array in ([1.0, 2.0], [1.0, 2.0, 3.0])
    ]
    np.testing.assert_array_equal(*outputs)
