"""What a command or a function is given: an experiment file, or a program in a Python file with its arrays.

``spec.toml`` is read and checked; nothing in it is run.  ``net.py:program`` *runs* ``net.py`` and takes the
name ``program`` from it: a :class:`~derive.program.Program`, or a function without arguments that makes one.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from derive.program import Program
from numerics.errors import SpecError
from numerics.experiment.arrays import read_array
from numerics.experiment.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver, parse

PROGRAM = re.compile(r"(?P<file>.*\.py):(?P<name>[A-Za-z_]\w*)")

ALIASES = {"kernel": "K_x", "targets": "y", "weights": "rho"}
"""Names of the file for what the programs of :mod:`derive.program` call otherwise."""

SYMBOLS = {"network.gamma0": "gamma0", "training.learning_rate": "eta", "network.depth": "L"}
"""Keys of the file that are numbers for symbols of a program."""


def is_program(text: str) -> bool:
    """Does it name a program in a Python file?

    >>> is_program("net.py:program"), is_program("spec.toml")
    (True, False)
    """
    return PROGRAM.fullmatch(text) is not None


def program_in(text: str) -> Program:
    """The program that ``file.py:name`` stands for; this runs the file.

    Raises :class:`~numerics.errors.SpecError` for a file that is not there or fails, and for a name
    that is no program.
    """
    found = PROGRAM.fullmatch(text)
    accepted = "FILE.py:NAME, a program or a function that makes one"
    if found is None:
        raise SpecError("file", text, "names no program", accepted)
    path, name = Path(found["file"]), found["name"]
    if not path.is_file():
        raise SpecError("file", str(path), "no such file", accepted)
    try:
        value = runpy.run_path(str(path)).get(name)
        program = value() if callable(value) and not isinstance(value, Program) else value
    except Exception as error:  # whatever a user's file raises is said in one line
        raise SpecError("file", text, f"raised {type(error).__name__}: {error}", accepted) from error
    if not isinstance(program, Program):
        what = "is not there" if value is None else f"is {type(program).__name__}, no program"
        raise SpecError("file", text, what, accepted)
    return program


def problem_in(text: str, arrays: Mapping[str, str], settings: Mapping[str, str]) -> Problem:
    """The problem of a program in a file, with names of array files and with numbers by key or by symbol.

    ``settings`` has keys of [training] and [solver] as an experiment file has them, ``network.gamma0``,
    ``network.depth``, and any other name as a symbol of the theory.  Raises
    :class:`~numerics.errors.SpecError` as :meth:`.Problem.of` does.
    """
    program = program_in(text)
    values = {key: value_of(said) for key, said in settings.items()}
    tables: dict[str, dict[str, Any]] = {"network": {"depth": 1}, "training": {}, "solver": {}}
    numbers: dict[str, float] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if key in SYMBOLS or not section:
            numbers[SYMBOLS.get(key, key)] = _number(key, value)
        if section in ("training", "solver"):
            tables[section][name] = value
        elif section and key not in SYMBOLS:
            raise SpecError(
                key, value, "is not set for a program", "keys of [training] and [solver], symbols"
            )
    tables["training"].setdefault("rule", "gd" if program.rule.discrete else "flow")
    experiment = Experiment.without_arrays(tables)
    data = {ALIASES.get(k, k): read_array(f"-D {k}", name, Path()) for k, name in arrays.items()}
    kept = {"program": text, "data": dict(arrays), "settings": dict(values)}
    solver = parse(tables).solver if tables["solver"] else Solver()
    return Problem.of(
        program, numbers=numbers, arrays=data, times=experiment.times, solver=solver, text=tomli_w.dumps(kept)
    )


def experiment_in(path: str, arrays: Mapping[str, str], settings: Mapping[str, str]) -> Experiment:
    """The experiment of a file, with other names of arrays and values of keys.

    Raises :class:`~numerics.errors.SpecError` as :meth:`.Experiment.load` does.
    """
    if not arrays and not settings:
        return Experiment.load(path)
    tables = Experiment.tables_of(path)
    changes = {f"data.{k}": str(Path(name).absolute()) for k, name in arrays.items()}
    for key, value in {**changes, **{k: value_of(said) for k, said in settings.items()}}.items():
        section, _, name = key.rpartition(".")
        if not section:
            raise SpecError(key, value, "is no key of the file", "TABLE.KEY, such as training.steps")
        tables.setdefault(section, {})[name] = value
    return Experiment.from_dict(tables, folder=Path(path).parent)


def pairs(option: str, said: Sequence[str]) -> dict[str, str]:
    """``KEY=VALUE`` each.

    >>> pairs("--set", ["training.steps=5"])
    {'training.steps': '5'}
    """
    found = {}
    for text in said:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SpecError(option, text, "is no pair", "KEY=VALUE")
        found[key] = value
    return found


def value_of(text: str) -> Any:
    """A value as TOML spells it; other text is a string.

    >>> value_of("5"), value_of("[1.0, 2.0]"), value_of("flow"), value_of("true")
    (5, [1.0, 2.0], 'flow', True)
    """
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(key, value, "is no number", "a number")
    return float(value)
