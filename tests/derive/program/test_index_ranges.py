"""An index that stands in a line of a program without a range is refused by both derivations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sympy import Symbol

import numerics
from derive.errors import ProgramError
from derive.program import P, Program, convolution, ell, gamma0, mu
from derive.program.index_ranges import require_ranges
from derive.program.networks import attention, experts, normalised
from derive.theory.routes import check_routes
from tests.derive.once import mean_field, mlp

STRAY = Symbol("nu", integer=True, positive=True)
PROGRAMS = {
    "perceptron": lambda: mlp(2, "tanh"),
    "convolution": lambda: convolution(2, "tanh", positions=3, receptive=1),
    "experts": experts,
    "normalised": normalised,
    "attention": attention,
}


def with_part(program: Program, part: str, k: int, new: Any) -> Program:
    """Return the program with another element ``k`` of one of its tuples."""
    items = list(getattr(program, part))
    items[k] = new
    return replace(program, **{part: tuple(items)})


def strayed(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield a name and the program in which one line contains a sample index without a range."""
    for k, d in enumerate(program.definitions):
        if mu in d.rhs.free_symbols:
            yield (
                str(d.lhs),
                with_part(program, "definitions", k, replace(d, rhs=d.rhs.xreplace({mu: STRAY}))),
            )
    for part in ("matrices", "vectors"):
        for k, w in enumerate(getattr(program, part)):
            if w.update.over:
                single = replace(w, update=replace(w.update, over=()))
                yield f"update of {w.name}", with_part(program, part, k, single)


SLOW = ("attention", "experts")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in PROGRAMS]
)
def test_an_index_without_a_range_is_refused(name: str) -> None:
    program = PROGRAMS[name]()
    require_ranges(program)
    wrong_programs = dict(strayed(program))
    assert len(wrong_programs) > 3
    for wrong in wrong_programs.values():
        with pytest.raises(ProgramError, match=r"index (nu|alpha).*, which has no range there"):
            require_ranges(wrong)


def test_numbers_that_are_fixed_have_no_index() -> None:
    program = mlp(2, "tanh")
    first, second = program.matrices
    for number in (1 / (1 + mu), 1 / (1 + ell)):
        wide = replace(first, initial=replace(first.initial, variance=number))
        with pytest.raises(ProgramError, match=r"the variance of W0 is .* contains the index"):
            mean_field(replace(program, matrices=(wide, second)))
    with pytest.raises(ProgramError, match=r"scale = .* contains the index mu"):
        mean_field(replace(program, scale=gamma0 / mu))
    # The variance of a family of matrices may depend on its layer.
    by_layer = replace(second, initial=replace(second.initial, variance=1 / (1 + ell)))
    assert mean_field(replace(program, matrices=(first, by_layer)))


def test_every_reader_of_a_program_refuses_it() -> None:
    """Both derivations, the solver and the networks refuse an update that is not summed over samples."""
    program = mlp(1, "tanh")
    wrong = dict(strayed(program))["update of W0"]
    given: dict[str, Any] = {"numbers": {P: 1, "eta": 0.1, "gamma0": 1.0}, "times": range(2)}
    given["arrays"] = {"K_x": [[1.0]], "y": [1.0]}
    for read in (
        mean_field,
        check_routes,
        lambda x: numerics.solve(x, **given),
        lambda x: numerics.simulate(x, width=4, seeds=2, **given),
    ):
        with pytest.raises(ProgramError, match=r"index alpha"):
            read(wrong)
