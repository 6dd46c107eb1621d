"""Arguments of the command line, read into experiments, programs and problems.

An argument ``spec.toml`` is an experiment file: it is read and checked, and no code in it runs.  An argument
``net.py:program`` *runs* ``net.py`` and takes the name ``program`` from it: a
:class:`~derive.program.Program`, or a function without arguments that returns one.
"""

from __future__ import annotations

import inspect
import re
import runpy
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tomli_w
from numpy.typing import NDArray

from derive.program import Program
from derive.program.networks.options import SAMPLE_WEIGHT
from derive.program.rules import LinearSystemRule
from numerics.errors import SpecError
from numerics.experiment.checks import finite_number
from numerics.experiment.experiment import Experiment, read_array
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver, TrainingSection, parse
from numerics.names import INPUT_KERNEL, TARGETS

Array = NDArray[np.float64]


PROGRAM = re.compile(r"(?P<file>.*\.py):(?P<name>[A-Za-z_]\w*)", re.DOTALL)
PYTHON = re.compile(r".*\.py(:.*)?", re.DOTALL)

ALIASES = {"kernel": INPUT_KERNEL, "targets": TARGETS, "weights": SAMPLE_WEIGHT}
"""Names of arrays in an experiment file, and the names of the same arrays in programs."""

SYMBOLS = {"network.gamma0": "gamma0", "training.learning_rate": "eta", "network.depth": "L"}
"""Keys of an experiment file, and the symbols of a program that they give numbers to."""

TIME_KEYS = ("rule", "learning_rate", "steps", "time", "points", "grid", "times")
"""Keys of [training] that --set can give for a program; its rule and its loss fix the other keys."""

NOT_PROGRAMS = {
    "Network": "Network.train(loss, rule) returns a program",
    "Theory": "the attribute `program` of the theory is the program",
    "Experiment": "name its TOML file on the command line",
}
"""Types of objects that are often named in place of a program, and the advice that the error gives."""


def is_program(text: str) -> bool:
    """Return whether the argument names a Python file: it ends in ``.py`` or contains ``.py:``.

    >>> is_program("net.py:program"), is_program("net.py"), is_program("spec.toml")
    (True, True, False)
    """
    return PYTHON.fullmatch(text) is not None


def program_in(text: str) -> Program:
    """Return the program that ``file.py:name`` names, after the file is run.

    The name is a :class:`~derive.program.Program`, or a function without arguments that returns one. Raises
    :class:`~numerics.errors.SpecError` if the text has no ``:name``, if the file does not exist or raises, or
    if the name is neither.
    """
    parts = PROGRAM.fullmatch(text)
    if parts is None:
        raise SpecError(
            "file", text, "names no program of this Python file", "FILE.py:NAME, such as net.py:program"
        )
    path, name = Path(parts["file"]), parts["name"]
    if not path.is_file():
        raise SpecError(
            "file", str(path), "no such file", "FILE.py:NAME, a program or a function that makes one"
        )
    names = _run_file(text, path, lambda: runpy.run_path(str(path)))
    if name not in names:
        programs = [f"{path}:{k}" for k, obj in names.items() if isinstance(obj, Program)]
        accepted = (
            ", ".join(programs[:SHOWN_NAMES]) or "the name of a program, or of a function that makes one"
        )
        raise SpecError("file", text, f"the file has no name {name}", accepted)
    value = names[name]
    if callable(value) and not isinstance(value, Program):
        _require_no_arguments(text, name, value)
        value = _run_file(text, path, value)
    if not isinstance(value, Program):
        kind = type(value).__name__
        accepted = NOT_PROGRAMS.get(kind, "a Program, or a function that returns one")
        raise SpecError("file", text, f"is an object of type {kind}, not a program", accepted)
    return value


SHOWN_NAMES = 5
"""Largest number of programs of a Python file that an error message lists."""


def _require_no_arguments(text: str, name: str, function: Callable[..., Any]) -> None:
    """Raise SpecError if a function, or a class, cannot be called without arguments.

    ``text`` (the argument of the command line) and ``name`` (of the function) are for the message.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature to check
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [x.name for x in parameters if x.default is x.empty and x.kind not in optional]
    if needed:
        raise SpecError(
            "file",
            text,
            f"{name} cannot be called without arguments: it needs {', '.join(needed)}",
            "a program, or a function without arguments that returns one",
        )


def _run_file(text: str, path: Path, call: Callable[[], Any]) -> Any:
    """Return the result of ``call()``, which runs code of a user's file; turn its exceptions into SpecError.

    The folder of the file ``path`` is importable meanwhile. Calls of ``sys.exit`` count as exceptions.
    ``text`` is the argument of the command line, for the message. The printed output of the code goes to
    stderr, because stdout holds only results.
    """
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            return call()
    except SystemExit as error:
        raise SpecError(
            "file",
            text,
            f"the file raised SystemExit({error.code!r})",
            "a file that runs to its end",
        ) from error
    except Exception as error:  # a user's file may raise any exception; the message is one line
        lines = [x.lineno for x in traceback.extract_tb(error.__traceback__) if x.filename == str(path)]
        where = f" at line {lines[-1]}" if lines else ""
        reason = " ".join(f"raised {type(error).__name__}{where}: {error}".split())
        raise SpecError("file", text, reason[:LONGEST], "a file that runs to its end") from error
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


LONGEST = 400
"""Characters of the message of a user's exception that the error message repeats."""


def problem_in(text: str, arrays: Mapping[str, str], settings: Mapping[str, str]) -> Problem:
    """Return the problem of a program in a Python file, with its arrays and its numbers.

    ``arrays`` maps names of arrays to files.  ``settings`` maps keys to values: the keys of [training] that
    set times and the learning rate, the keys of [solver], ``network.gamma0``, ``network.depth``, and names of
    symbols of the theory.  ``training.rule`` may be "gd" for a program in steps and "flow" for one in
    continuous time, if the rule of the program is linear, such as gradient descent or momentum.  Raises
    :class:`~numerics.errors.SpecError` as :meth:`.Problem.of` does, with the options of the command as keys.
    """
    program = program_in(text)
    values = {key: value_of(text_of_value) for key, text_of_value in settings.items()}
    tables: dict[str, dict[str, Any]] = {"network": {"depth": 1}, "training": {}, "solver": {}}
    numbers: dict[str, float] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if key in SYMBOLS or not section:
            numbers |= number_of(key, value, numbers)
        if section == "solver" or (section == "training" and name in TIME_KEYS):
            tables[section][name] = value
        elif section and key not in SYMBOLS:
            _refuse_setting(key, value)
    time_kind = "gd" if program.rule.discrete else "flow"
    given_rule = tables["training"].setdefault("rule", time_kind)
    is_linear = isinstance(program.rule, LinearSystemRule)
    if "training.rule" in values and not (is_linear and given_rule == time_kind):
        raise SpecError(
            "training.rule",
            given_rule,
            f"the rule of the program is {type(program.rule).__name__}",
            "leaving it out, or program.with_rule(...) in the file",
        )
    experiment = Experiment.without_arrays(tables)
    data = {ALIASES.get(k, k): read_array(f"-D {k}", name, Path()) for k, name in arrays.items()}
    record = tomli_w.dumps({"program": text, "data": dict(arrays), "settings": dict(values)})
    solver = parse(tables).solver if tables["solver"] else Solver()
    times = experiment.times
    try:
        problem = Problem.of(program, numbers=numbers, arrays=data, times=times, solver=solver, text=record)
    except SpecError as error:
        raise _as_option(error, settings) from error
    return replace(problem, output_times=experiment.output_times)


def _refuse_setting(key: str, value: object) -> NoReturn:
    """Raise SpecError for an option ``--set key=value`` that is not allowed for a program.

    The message says whether the key exists but follows from the program, or cannot be set at all.
    """
    section, _, name = key.partition(".")
    time_keys = ", ".join(f"training.{x}" for x in TIME_KEYS[1:-1])
    accepted = f"network.gamma0, network.depth, {time_keys}, keys of [solver], symbols of the theory"
    if section == "training" and name in TrainingSection.model_fields:
        raise SpecError(key, value, "follows from the program", accepted)
    raise SpecError(key, value, "cannot be set for a program", accepted)


def _as_option(error: SpecError, settings: Mapping[str, str]) -> SpecError:
    """Return an error about arrays or numbers of a program, with an option of the command line as its key.

    The key ``arrays.K_x``, for example, becomes ``-D kernel``. ``error`` is from :meth:`.Problem.of`,
    ``settings`` holds the values of ``--set``. Errors with other keys are returned unchanged.
    """
    kind, _, name = error.key.partition(".")
    if kind == "arrays":
        option = next((k for k, x in ALIASES.items() if x == name), name)
        accepted = f"-D {option}=FILE.npy" if error.problem == "is missing" else _options(error.accepted)
        return SpecError(f"-D {option}", error.value, error.problem, accepted)
    if kind == "numbers":
        keys = (k for k, x in SYMBOLS.items() if x == name)
        option = name if name in settings else next(keys, name)
        missing = error.problem == "is missing"
        return SpecError(
            option, error.value, error.problem, f"--set {option}=NUMBER" if missing else error.accepted
        )
    return error


def _options(names: str) -> str:
    """Return names of arrays as the option ``-D`` takes them, such as "kernel" for ``K_x``.

    ``names`` is a text of names of the theory, separated by ", "; the result has the same form. A name
    without an alias is kept.
    """
    options = {x: k for k, x in ALIASES.items()}
    return ", ".join(options.get(x, x) for x in names.split(", "))


def experiment_in(
    path: str, arrays: Mapping[str, str], settings: Mapping[str, str], *, read: bool = True
) -> Experiment:
    """Return the experiment of a file, with arrays and keys replaced by those of the command line.

    ``read=False`` reads no array: the experiment can be derived but not solved, and the files of arrays need
    not exist.  Raises :class:`~numerics.errors.SpecError` as :meth:`.Experiment.load` does.
    """
    if not arrays and not settings and read:
        return Experiment.load(path)
    tables = Experiment.tables_of(path)
    changes = {f"data.{k}": str(Path(name).absolute()) for k, name in arrays.items()}
    changes |= {key: value_of(text) for key, text in settings.items()}
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        if not section:
            raise SpecError(key, value, "is not a key of the file", "TABLE.KEY, such as training.steps")
        tables.setdefault(section, {})[name] = value
    if not read:
        return Experiment.without_arrays(tables)
    return Experiment.from_dict(tables, folder=Path(path).parent)


def number_of(key: str, value: Any, known: Mapping[str, float]) -> dict[str, float]:
    """Return the number that a setting gives to a symbol of a program, as a dictionary of one entry.

    ``key`` is the name of a symbol, or a key of the experiment file for which a program has a symbol;
    ``known`` are the numbers that other settings have given. Raises SpecError for a value that is not a
    finite number, and if the symbol has a number already.

    >>> number_of("training.learning_rate", 0.1, {})
    {'eta': 0.1}
    """
    symbol = SYMBOLS.get(key, key)
    if symbol in known:
        raise SpecError(key, value, f"is a second number for the symbol {symbol}", "one of them")
    return {symbol: finite_number(key, value)}


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return texts ``KEY=VALUE`` as a dictionary.

    ``option`` is the name of the option, for the message. Raises SpecError for a text without a key or
    ``=``, and for a key with several values.

    >>> pairs("--set", ["training.steps=5"])
    {'training.steps': '5'}
    """
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise SpecError(option, text, "is not a pair", "KEY=VALUE")
        if values.get(key, value) != value:
            raise SpecError(option, text, f"is a second value for {key}, after {values[key]}", "one of them")
        values[key] = value
    return values


def value_of(text: str) -> Any:
    """Return the value that a text has in TOML, or the text itself if it is not TOML.

    >>> value_of("5"), value_of("[1.0, 2.0]"), value_of("flow"), value_of("true")
    (5, [1.0, 2.0], 'flow', True)
    """
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):  # not TOML, nested too deeply, or a number too long for Python
        return text
