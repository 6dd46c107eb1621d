"""Tests of the number of packages through which a theory passes on its way to a result.

A room is a package with its modules. It is entered when one of its functions is called from another room with
the subject among its arguments: the file, the experiment, the problem, the program, or the theory that is
solved or expanded. Calls of the package that defines the subject, and checks of the subject's type, do not
count. A reader who follows the subject reads these packages, in this order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import derive
import numerics
from derive.linear.form import LinearForm
from derive.program import Program
from derive.theory import Theory
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.lowering.table import Table
from numerics.solver.linear.march import March
from numerics.solver.linear.reduction import Lowered

SUBJECTS = (Experiment, Problem, Program, Theory, LinearForm, Lowered, Table, March)
"""What is handed on from room to room, beside what a call starts with."""

WORDS = ("derive.errors", "numerics.errors")
"""What refusals are made of, and checks of types."""

MOST_ROOMS, MOST_RETURNS = 9, 4
"""The first room is ``numerics.solution``, which puts corrections of finite width beside a solution."""

DEPTHS = count(1)
"""Each call solves another theory: what is derived already is on no way."""


def room_of(module: str) -> str:
    """Return the package of a module, or the module if it is directly in ``derive`` or ``numerics``."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(2, len(parts) + 1)]
    packages = [name for name in names if hasattr(sys.modules[name], "__path__")]
    return packages[-1] if packages else names[0]


def journey(call: Callable[[], object], start: object) -> list[str]:
    """Return the packages that ``start`` and its results are passed to, in order."""
    rooms: list[str] = []
    room = cache(room_of)

    def subject(frame: FrameType) -> Any:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in names if name not in ("self", "cls")]
        return next((x for x in values if x is start or isinstance(x, SUBJECTS)), None)

    passed: set[CodeType] = set()  # calls are many, and most of them are of other packages

    def watch(frame: FrameType, *_: object) -> None:
        if frame.f_code in passed:
            return
        module = frame.f_globals.get("__name__", "")
        hidden = frame.f_code.co_name.startswith(("<", "__"))
        if not module.startswith(("derive.", "numerics.")) or hidden or module in WORDS:
            passed.add(frame.f_code)
            return
        x = subject(frame)
        if x is None or (rooms and rooms[-1] == room(module)):
            return
        own = room(type(x).__module__) if isinstance(x, SUBJECTS) else None
        caller = frame.f_back.f_globals.get("__name__", "") if frame.f_back else ""
        inside = caller.startswith(("derive.", "numerics.")) and room(caller) == room(module)
        if inside or own == room(module):
            return
        rooms.append(room(module))

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        call()
    finally:
        sys.settrace(before)
    return rooms


def test_a_linear_file_passes_few_rooms_on_its_way_to_a_result(tmp_path: Path) -> None:
    np.save(tmp_path / "kernel.npy", np.array([[1.0, 0.25], [0.25, 1.0]]))
    np.save(tmp_path / "targets.npy", np.array([1.0, -1.0]))
    file = tmp_path / "journey.toml"
    file.write_text(
        f'[network]\ndepth = {next(DEPTHS)}\nbias = true\n[data]\nkernel = "kernel.npy"\n'
        'targets = "targets.npy"\n[training]\nlearning_rate = 0.1\nweight_decay = 0.01\nsteps = 4\n'
    )
    rooms = journey(lambda: numerics.solve(file), file)
    assert {"numerics.experiment", "numerics.lowering", "numerics.solver.linear", "numerics.results"} <= {
        *rooms
    }
    assert len({*rooms}) <= MOST_ROOMS, rooms
    assert len(rooms) - len({*rooms}) <= MOST_RETURNS, rooms


def test_a_theory_passes_few_rooms_on_its_way_to_an_expansion() -> None:
    theory = derive.mean_field(derive.mlp(3))
    rooms = journey(lambda: derive.expand(theory, order=2), theory)
    assert {"derive.linear", "derive.expansion"} <= {*rooms}
    assert len({*rooms}) <= MOST_ROOMS, rooms
    assert len(rooms) - len({*rooms}) <= MOST_RETURNS, rooms
