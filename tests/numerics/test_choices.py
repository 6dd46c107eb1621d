"""Public functions refuse a name that is not in their fixed list, in one sentence."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import pytest

import derive
import numerics
from derive.program import eta, network
from derive.program.networks import attention, normalised
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.fluctuations import finite_width
from numerics.solver import choose, explain
from numerics.solver.direct import evaluate
from numerics.solver.paths import solve_particles, solve_to_accuracy
from numerics.solver.quadrature import solve as quadrature
from tests.derive.once import mean_field, mlp

UNKNOWN = "sampling"
GIVEN: dict[str, Any] = {
    "values": {"eta": 0.5, "gamma0": 1.0, "P": 1},
    "data": {"K_x": [[1.0]], "y": [1.0]},
    "steps": 2,
}


def experiment() -> Experiment:
    """Return an experiment with one hidden layer and one sample."""
    tables = {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 2}}
    return Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])


CALLS: dict[tuple[str, str], Callable[[Any], object]] = {
    ("Fluctuations.render", "show"): lambda x: derive.fluctuations(mlp(1)).render(show=x),
    ("Theory.render", "show"): lambda x: mean_field(mlp(1)).render(show=x),
    ("TheorySeries.render", "show"): lambda x: derive.expand(mean_field(mlp(1)), eta, 1).render(show=x),
    ("attention", "read"): lambda x: attention(read=x),
    ("attention", "scores"): lambda x: attention(scores=x),
    ("choose", "keep"): lambda x: choose(Problem.of(experiment()), x),
    ("evaluate", "method"): lambda x: evaluate(mean_field(mlp(1)), method=x, **GIVEN),
    ("explain", "kernels"): lambda x: explain(experiment(), kernels=x),
    ("finite_width", "kernels"): lambda x: finite_width(experiment(), kernels=x),
    ("network", "backward"): lambda x: network(2, backward=x),
    ("normalised", "place"): lambda x: normalised(2, place=x),
    ("simulate", "kernels"): lambda x: numerics.simulate(experiment(), width=4, seeds=2, kernels=x),
    ("solve", "kernels"): lambda x: numerics.solve(experiment(), kernels=x),
    ("solve_particles", "responses"): lambda x: solve_particles(mean_field(mlp(1)), responses=x, **GIVEN),
    ("solve_to_accuracy", "responses"): lambda x: solve_to_accuracy(
        mean_field(mlp(1)), accuracy=0.5, responses=x, **GIVEN
    ),
    ("solve_two_layer", "rule"): lambda x: quadrature.solve_two_layer(mean_field(mlp(1)), rule=x, **GIVEN),
    ("sweep", "kernels"): lambda x: numerics.sweep(experiment(), {"network.gamma0": [1.0]}, kernels=x),
    ("tensor", "rule"): lambda x: quadrature.tensor(x, 4, 1),
}


@pytest.mark.parametrize(("function", "parameter"), CALLS)
def test_an_unknown_name_is_refused(function: str, parameter: str) -> None:
    """``evaluate(method="sampling")`` and ``responses="meen"`` acted as "auto"."""
    with pytest.raises(ValueError, match=f"{UNKNOWN}.*(must be|accepted: )") as refusal:
        CALLS[function, parameter](UNKNOWN)
    assert str(refusal.value).startswith(parameter)
    assert "\n" not in str(refusal.value)


def test_an_unknown_way_to_compute_responses_of_a_problem_is_refused() -> None:
    problem = Problem.of(experiment().replace({"network.activation": "tanh", "solver.method": "paths"}))
    object.__setattr__(problem, "response_method", UNKNOWN)
    with pytest.raises(SpecError, match=f"^responses = .{UNKNOWN}"):
        numerics.solve(problem)


def literals(hint: Any) -> Iterator[Any]:
    """Yield the literal types of text in a type hint."""
    if get_origin(hint) is Literal:
        yield from (hint,) * all(isinstance(x, str) for x in get_args(hint))
    for part in () if get_origin(hint) is Literal else get_args(hint):
        yield from literals(part)


def functions(module: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions that a package exports, and the public methods of its classes."""
    for exported in (getattr(module, name) for name in getattr(module, "__all__", ())):
        if inspect.isfunction(exported):
            yield exported
        elif inspect.isclass(exported):
            members = vars(exported).items()
            yield from (x for name, x in members if inspect.isfunction(x) and not name.startswith("_"))


def choices(function: Callable[..., Any], aliases: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of a function with each parameter that takes a name from a fixed list."""
    function = inspect.unwrap(function)
    for parameter, hint in function.__annotations__.items():
        known = {**aliases, **function.__globals__}
        names = str(hint).replace(" ", "").split("|")
        hints = [known.get(name.split(".")[-1]) for name in names]
        if parameter != "return" and any(x for part in hints for x in literals(part)):
            yield function.__qualname__, parameter


def test_every_public_function_with_a_fixed_list_of_names_is_tested() -> None:
    """Aliases of literal types are collected first, because some are imported for type checkers only."""
    packages = [
        import_module(name)
        for root in (derive, numerics)
        for name in (
            root.__name__,
            *(x.name for x in pkgutil.walk_packages(root.__path__, f"{root.__name__}.") if x.ispkg),
        )
        if ".cli" not in name
    ]
    exported = [x for package in packages for x in functions(package)]
    modules = {import_module(x.__module__) for x in exported}
    modules |= {import_module(f"derive.theory.{x}document") for x in ("", "fluctuations.")}
    aliases = {n: x for m in modules for n, x in vars(m).items() if get_origin(x) is Literal}
    chosen = {pair for x in exported for pair in choices(x, aliases)}
    assert {("evaluate", "method"), ("Fluctuations.render", "show")} <= chosen <= {*CALLS}
