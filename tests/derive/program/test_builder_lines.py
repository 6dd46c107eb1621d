"""No mean-field equation is typed in: change any line of mlp, and the theory changes or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from sympy import Function

from derive.program import (
    Definition,
    GaussianMatrix,
    L,
    Program,
    ProgramError,
    TrainedMatrix,
    TrainedVector,
    eta,
    gamma0,
)
from derive.program.rules import GradientDescent
from derive.theory import Theory
from derive.theory.compare import compare
from tests.derive.once import mean_field, mlp

phi = Function("phi")
Line = tuple[str, Callable[[], Program]]


def without(program: Program, part: str, i: int) -> Program:
    items = getattr(program, part)
    return replace(program, **{part: (*items[:i], *items[i + 1 :])})


def put(program: Program, part: str, i: int, new: object) -> Program:
    items = getattr(program, part)
    return replace(program, **{part: (*items[:i], new, *items[i + 1 :])})


def lines(program: Program) -> Iterator[Line]:
    """Yield every way to remove or change one line."""
    for part in ("fields", "definitions", "matrices", "vectors", "given", "scalars", "constants"):
        for i, item in enumerate(getattr(program, part)):
            yield f"without {part} {i}: {_name(item)}", lambda part=part, i=i: without(program, part, i)
    for i, d in enumerate(program.definitions):
        twice = Definition(d.lhs, 2 * d.rhs, d.ranges)
        yield f"twice {d.lhs}", lambda i=i, twice=twice: put(program, "definitions", i, twice)
    for part in ("matrices", "vectors"):
        for i, w in enumerate(getattr(program, part)):
            assert isinstance(w, TrainedMatrix | TrainedVector)
            wider = replace(w, initial=replace(w.initial, variance=2 * w.initial.variance))
            u = w.update
            faster = replace(w, update=replace(u, coefficient=2 * u.coefficient))
            ruled = replace(w, rule=GradientDescent(3 * eta))
            for what, new in (
                ("untrained", w.initial),
                ("wider", wider),
                ("faster", faster),
                ("ruled", ruled),
            ):
                yield f"{what} {w.name}", lambda part=part, i=i, new=new: put(program, part, i, new)
            if isinstance(u.over, tuple) and u.over:
                single = replace(w, update=replace(u, over=()))
                yield f"unsummed {w.name}", lambda part=part, i=i, new=single: put(program, part, i, new)
    for i, w in enumerate(program.matrices):
        if w.update.left.args[0] != 1:
            turned = replace(w, update=replace(w.update, left=w.update.left**2))
            yield f"squared update {w.name}", lambda i=i, new=turned: put(program, "matrices", i, new)
    if any(x.initial.responses and x.initial in _used_backwards(program) for x in program.matrices):
        yield "other scale", lambda: replace(program, scale=gamma0**2)
    yield "no notation", lambda: replace(program, notation={})


def _used_backwards(program: Program) -> list[GaussianMatrix]:
    products = [x for d in program.definitions for x in d.products() if x.transposed]
    return [program.matrix_of(x).initial for x in products]


def _name(x: object) -> str:
    if isinstance(x, Definition):
        return str(x.lhs)
    return str(getattr(x, "name", x))


PROGRAMS = {"tied": partial(mlp, L, phi), "untied": partial(mlp, L, phi, tied=False)}
CASES = [(k, name, make) for k, p in PROGRAMS.items() for name, make in lines(p())]
CASES = [(k, name, make) for k, name, make in CASES if k == "tied" or name.endswith(" V") or " z(" in name]
"""Of untied networks the lines that are not those of tied ones."""


@pytest.fixture(scope="module")
def theories() -> dict[str, Theory]:
    return {k: mean_field(p()) for k, p in PROGRAMS.items()}


@pytest.mark.parametrize(("which", "name", "make"), CASES, ids=[f"{k}: {n}" for k, n, _ in CASES])
def test_every_line_counts(
    which: str, name: str, make: Callable[[], Program], theories: dict[str, Theory]
) -> None:
    try:
        theory = mean_field(make())
    except ProgramError:
        assert name.startswith(("without ", "unsummed "))
        return
    assert compare(theory, theories[which])


def test_the_two_backward_passes_differ() -> None:
    assert compare(mean_field(mlp()), mean_field(mlp(tied=False)))
