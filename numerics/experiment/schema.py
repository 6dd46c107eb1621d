"""Schema of the experiment file: keys, types, accepted values, and combinations that are excluded.

The description of a field is the text that error messages print after "accepted:".  Combinations of keys are
excluded if they contradict each other or if their theory is not derived.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from numerics.errors import SpecError, require_mapping, value_to_toml

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
KeptShare = Annotated[float, Field(ge=0, lt=1)]
PositiveInteger = Annotated[int, Field(ge=1)]

SCHEDULED = ("learning_rate", "weight_decay", "momentum", "temperature")
"""Keys of [training] that take an expression in the step, or time, t."""


def _positive(value: float | str) -> float | str:
    """Return a positive number or the text of an expression unchanged; used by pydantic.

    Raise PydanticCustomError for another number.
    """
    if not isinstance(value, str) and value <= 0:
        raise PydanticCustomError("greater_than", "Input should be greater than 0")
    return value


def _not_negative(value: float | str) -> float | str:
    """Return a number >= 0 or the text of an expression unchanged; used by pydantic.

    Raise PydanticCustomError for a negative number.
    """
    if not isinstance(value, str) and value < 0:
        raise PydanticCustomError("greater_than_equal", "Input should be greater than or equal to 0")
    return value


IN_TIME = ', or an expression in t such as "0.2*min(1, (t + 1)/10)"'

PositiveInTime = Annotated[float | str, AfterValidator(_positive)]
NonNegativeInTime = Annotated[float | str, AfterValidator(_not_negative)]
"""A number, or the text of an expression in t."""

OneOrMany = Positive | Annotated[list[Positive], Field(min_length=1)]

MOST_STEPS = 1_000_000
"""Largest number of steps, and of ``training.points`` of a flow."""

DataKind = Literal["fixed", "isotropic", "power-law"]
RuleName = Literal["gd", "flow", "sgd", "sign", "adam", "adamw", "rmsprop", "lion"]

CONSTANTS: dict[str, dict[str, float]] = {
    "sign": {},
    "adam": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "rmsprop": {"beta2": 0.999, "epsilon": 1e-8},
    "lion": {"beta1": 0.9, "beta2": 0.99},
}
"""Entrywise rules, which use the history of each weight's own gradient, with defaults of their constants."""


def plain_value(value: object) -> object:
    """Return numbers and arrays of NumPy, also those in lists, as numbers and lists of Python.

    Other values are unchanged.

    >>> plain_value(np.arange(2)), plain_value([np.float64(0.5)]), plain_value("L")
    ([0, 1], [0.5], 'L')
    """
    if isinstance(value, list):
        return [plain_value(x) for x in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


class FileSection(BaseModel):
    """Base class of the tables of the file, which are immutable.

    Unknown keys, NaN and infinity are refused. Values are not converted to the type of a key, so that the
    text "1" is refused for a number; an integer may stand for a float, and numbers of NumPy for those of
    Python.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _of_python(cls, keys: Any) -> Any:
        """Return the keys with numbers of Python in place of those of NumPy."""
        return {k: plain_value(x) for k, x in keys.items()} if isinstance(keys, dict) else keys


class NetworkSection(FileSection):
    """Table [network]: architecture and feature-learning strength."""

    depth: Annotated[int, Field(ge=1)] | Literal["L"] = Field(
        description='the number of hidden layers, an integer >= 1, or "L" to keep it a symbol'
    )
    activation: str = Field(
        default="linear",
        description='a name, such as "linear", "relu", "tanh", or an expression in h: "tanh(0.8*h)/0.8"',
    )
    gamma0: float = Field(
        default=1.0,
        gt=0,
        description="a positive number; f carries 1/gamma0, so for the lazy limit take a small value such as "
        "1e-3, or the order-0 term of `dmft expand`",
    )
    bias: bool = Field(default=False, description="true or false")
    outputs: int = Field(default=1, ge=1, description="an integer >= 1")
    branch: Positive | None = Field(default=None, description="a positive number")
    init_variance: Positive | Annotated[list[NonNegative], Field(min_length=1)] = Field(
        default=1.0,
        description="a positive number, or a list of one for each of W^0 ... W^(L-1) and the readout, whose "
        "may be zero",
    )
    width_ratio: OneOrMany | None = Field(
        default=None,
        description="N/D, a positive number, or a list of one for each hidden layer; left out, all are "
        "infinitely wide",
    )
    relative_widths: Annotated[list[Positive], Field(min_length=1)] | None = Field(
        default=None, description="a list of positive numbers, one for each hidden layer"
    )
    width: PositiveInteger | None = Field(default=None, description="an integer >= 1")
    parametrization: Literal["mean-field", "ntk"] = Field(
        default="mean-field", description='"mean-field" or "ntk"'
    )


class Data(FileSection):
    """Table [data]: fixed samples, as inputs or as their kernel, and targets; or statistics of random data.

    Names of files are relative to the experiment file.
    """

    kind: DataKind = Field(default="fixed", description='"fixed", "isotropic" or "power-law"')
    inputs: str | None = Field(
        default=None, description="the name of a .npy (.npz, .csv) file of shape (P, D)"
    )
    kernel: str | None = Field(
        default=None, description="the name of a .npy (.npz, .csv) file of shape (P, P)"
    )
    targets: str | None = Field(
        default=None, description="the name of a .npy (.npz, .csv) file of shape (P,) or (P, C)"
    )
    test_inputs: str | None = Field(
        default=None, description="the name of a .npy (.npz, .csv) file of shape (P*, D)"
    )
    test_kernel: str | None = Field(
        default=None,
        description="the name of a .npy (.npz, .csv) file of shape (P*, P + P*), training samples first",
    )
    test_targets: str | None = Field(
        default=None, description="the name of a .npy (.npz, .csv) file of shape (P*,) or (P*, C)"
    )
    sample_ratio: Positive | None = Field(default=None, description="P/D, a positive number")
    batch_ratio: Positive | None = Field(default=None, description="B/D, a positive number")
    noise: NonNegative | None = Field(
        default=None, description="the standard deviation of the noise in the labels, a number >= 0"
    )
    capacity: Positive | None = Field(default=None, description="a positive number")
    source: Positive | None = Field(default=None, description="a positive number")
    modes: PositiveInteger | None = Field(default=None, description="an integer >= 1")
    batch: PositiveInteger | None = Field(default=None, description="an integer >= 1")


class TrainingSection(FileSection):
    """Table [training]: the rule, with its rate and steps or with the time and output grid of a flow."""

    rule: RuleName = Field(
        default="gd",
        description='"gd", "flow" or "sgd", or of given inputs "sign", "adam", "adamw", "rmsprop" or "lion"',
    )
    learning_rate: PositiveInTime | None = Field(default=None, description=f"a positive number{IN_TIME}")
    steps: int | None = Field(
        default=None, ge=1, le=MOST_STEPS, description="an integer >= 1, at most a million"
    )
    time: float | None = Field(default=None, gt=0, description="a positive number")
    points: int = Field(
        default=200, ge=2, le=MOST_STEPS, description="an integer >= 2, at most a million, both ends included"
    )
    grid: Literal["uniform", "log"] = Field(default="uniform", description='"uniform" or "log"')
    times: Annotated[list[NonNegative], Field(min_length=1)] | None = Field(
        default=None,
        description="a rising list of the steps that a result holds, such as [0, 5, 10], or of the times of "
        "a flow; left out, all steps, or the times that points and grid say",
    )
    loss: Literal["mean", "sum"] = Field(default="mean", description='"mean" or "sum"')
    objective: Literal["square", "logistic", "hinge", "cross-entropy"] = Field(
        default="square",
        description='"square"; "logistic" or "hinge", of targets that are signs; or "cross-entropy", of '
        "outputs that are classes",
    )
    center: bool | None = Field(default=None, description="true or false")
    weight_decay: NonNegativeInTime = Field(default=0.0, description=f"a number >= 0{IN_TIME}")
    momentum: NonNegativeInTime = Field(
        default=0.0,
        description='a number >= 0 and < 1, the share of the velocity that a step keeps; with rule "flow" a '
        f"time constant >= 0{IN_TIME}",
    )
    temperature: NonNegativeInTime = Field(default=0.0, description=f"a number >= 0{IN_TIME}")
    beta1: KeptShare | None = Field(
        default=None,
        description="the share of the mean gradient that a step keeps, >= 0 and < 1, usually 0.9",
    )
    beta2: KeptShare | None = Field(
        default=None,
        description="the share of the mean square (with lion of the momentum) that a step keeps, >= 0 and "
        "< 1; 0.999 if it is left out, with lion 0.99",
    )
    epsilon: Positive | None = Field(
        default=None,
        description="a positive number added to the root of the mean square, in units of the gradient of one "
        "weight times gamma0 N; 1e-8 if it is left out",
    )

    @property
    def entrywise(self) -> bool:
        """Whether the rule acts on each weight separately, by the history of its own gradient."""
        return self.rule in CONSTANTS

    @property
    def constants(self) -> dict[str, float]:
        """Constants of an entrywise rule by key, with defaults for missing ones; empty for other rules."""
        usual = CONSTANTS.get(self.rule, {})
        return {key: x if (given := getattr(self, key)) is None else given for key, x in usual.items()}

    @property
    def schedules(self) -> dict[str, str]:
        """Expressions in t that the table gives in place of numbers, as text by key."""
        values = {key: getattr(self, key) for key in SCHEDULED}
        return {key: x for key, x in values.items() if isinstance(x, str)}

    @property
    def end(self) -> float | None:
        """Number of steps, or time of a flow; None if it is missing."""
        return self.time if self.rule == "flow" else self.steps


class Solver(FileSection):
    """Table [solver]: `samples` paths of a nonlinear process, seed, tolerances, device and method.

    Most linear networks need no sampled paths, unless the rule is entrywise, such as Adam, or `method` is
    "paths". If `samples` is missing, the numbers of samples and of replicas are chosen for `accuracy`: the
    standard error and the bias of losses and errors relative to the largest of them. `rtol` bounds the
    estimated time-discretisation error of a flow; rules in steps have none. A computation whose estimate
    exceeds `hours` raises SpecError. Sampled paths may run on a graphics card (`device`).
    """

    samples: int | None = Field(
        default=None,
        ge=16,
        description="an even integer >= 16, or leaving it out: as many as solver.accuracy asks for",
    )
    accuracy: float | None = Field(default=None, gt=0, lt=1, description="a number between 0 and 1")
    seed: int = Field(default=0, ge=0, lt=2**64, description="an integer >= 0, less than 2^64")
    rtol: float = Field(default=1e-8, gt=0, lt=1, description="a number between 0 and 1")
    hours: float = Field(default=24.0, gt=0, description="a positive number")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description='"cpu" or "cuda"')
    method: Literal["auto", "transform", "march", "layers", "nodes", "lazy", "paths", "rest", "direct"] = (
        Field(
            default="auto",
            description='"auto", or a method by its name: "transform", "march", "layers", "nodes", "lazy", '
            '"paths", "rest" or "direct"; `dmft solve --explain` says what each can do',
        )
    )

    if not TYPE_CHECKING:  # type checkers take the arguments from the fields of the class

        def __init__(self, **keys: Any) -> None:
            """Make the table from its keys; raise SpecError with one sentence for a wrong key or value."""
            try:
                super().__init__(**keys)
            except ValidationError as error:
                raise refusal(error, {"solver": keys}, "solver") from None


class Spec(FileSection):
    """Whole experiment file.  Deriving needs only [network]; computing also needs numbers and samples."""

    network: NetworkSection = Field(description="a table [network]")
    data: Data | None = Field(default=None, description="a table [data]")
    training: TrainingSection = Field(default=TrainingSection(), description="a table [training]")
    solver: Solver = Field(default=Solver(), description="a table [solver]")

    @property
    def symbolic(self) -> bool:
        """Whether the depth is the symbol L."""
        return self.network.depth == "L"

    @property
    def kind(self) -> DataKind:
        """Kind of data, "fixed" if there is no table [data]."""
        return "fixed" if self.data is None else self.data.kind

    @property
    def features_rest(self) -> bool:
        """Whether the theory has gamma0/sqrt(N) in place of gamma0: NTK scaling on fixed samples.

        This number is zero at infinite width, so that features do not move.
        """
        return self.kind == "fixed" and self.network.parametrization == "ntk"

    @property
    def centered(self) -> bool:
        """Whether the initial outputs are subtracted.

        The default is true for power-law data and for fixed samples in NTK scaling.
        """
        center = self.training.center
        return self.kind == "power-law" or self.features_rest if center is None else center

    @property
    def has_test_points(self) -> bool:
        """Whether there are test points: the file names test inputs or a test kernel."""
        return self.data is not None and (self.data.test_inputs, self.data.test_kernel) != (None, None)


SECTIONS: dict[str, type[FileSection]] = {
    "network": NetworkSection,
    "data": Data,
    "training": TrainingSection,
    "solver": Solver,
}


def refusal(error: ValidationError, tables: Mapping[str, Any], *table: str) -> SpecError:
    """Return the SpecError for the first unknown key of a file, or else for its first validation error.

    A misspelt key is the most likely reason that another key is missing. ``tables`` are the tables of the
    file. ``table`` is the name of the validated table, and empty if all tables were validated.
    """
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    first = details[0]
    first["loc"] = (*table, *first["loc"])
    return _refusal(first, tables)


def _refusal(detail: ErrorDetails, tables: Mapping[str, Any]) -> SpecError:
    """Return the SpecError for one validation error of pydantic; ``tables`` are the tables of the file."""
    if isinstance(error := detail.get("ctx", {}).get("error"), SpecError):
        return error  # the check of a table has made this one itself
    path = [str(part) for part in detail["loc"][:2]]
    key = ".".join(path)
    if detail["type"] == "extra_forbidden":
        return _unknown_key(path, detail["input"])
    accepted = _description(path)
    if detail["type"] == "missing":
        return SpecError(key, None, "is missing", accepted)
    problem = detail["msg"].replace("Input should be", "must be")
    if detail["type"] in ("model_type", "model_attributes_type"):
        problem = "must be a table"
    elif detail["type"] == "literal_error" and len(detail["loc"]) == 2:
        problem = "is not one of its values"
    elif len(detail["loc"]) > 2:
        # Pydantic's message is about one entry of the value, or one of several types that the key accepts.
        # Alone it would mislead, so that the error states what the key takes as a whole.
        return SpecError(key, tables[path[0]][path[1]], "is not what this key takes", accepted)
    return SpecError(key, detail["input"], problem, accepted)


def _description(path: list[str]) -> str:
    """Return the accepted values of a key, a path such as ["network", "depth"], in words."""
    model: type[FileSection] = Spec if len(path) == 1 else SECTIONS[path[0]]
    return model.model_fields[path[-1]].description or "leaving it out"


def _unknown_key(path: list[str], value: object) -> SpecError:
    """Return the SpecError for an unknown key.

    It suggests this key in another table, else a similar key, if any.
    """
    key = path[-1]
    elsewhere = [f"{name}.{key}" for name, model in SECTIONS.items() if key in model.model_fields]
    known = list(SECTIONS) if len(path) == 1 else list(SECTIONS[path[0]].model_fields)
    near = elsewhere or [".".join([*path[:-1], name]) for name in difflib.get_close_matches(key, known, n=1)]
    problem = "unknown key" + (f", perhaps {near[0]} was meant" if near else "")
    return SpecError(".".join(path), value, problem, ", ".join(known))


DATA_KEYS = {
    "fixed": ("inputs", "kernel", "targets", "test_inputs", "test_kernel", "test_targets"),
    "isotropic": ("sample_ratio", "batch_ratio", "noise"),
    "power-law": ("capacity", "source", "modes", "batch", "noise"),
}
"""Keys of [data] of each kind of data."""

NETWORK_KINDS = {
    "bias": ("fixed",),
    "outputs": ("fixed", "isotropic"),
    "branch": ("fixed", "isotropic"),
    "init_variance": ("fixed",),
    "width_ratio": ("isotropic",),
    "relative_widths": ("fixed",),
    "width": ("power-law",),
}
"""Kinds of data that accept a value other than the default for a key of [network]."""

STEPPED = ("learning_rate", "steps")
MIN = sys.float_info.min

RULE_KEYS: dict[str, tuple[str, ...]] = {
    "gd": STEPPED,
    "sgd": STEPPED,
    "flow": ("time", "points", "grid"),
    **{rule: (*STEPPED, *constants) for rule, constants in CONSTANTS.items()},
}
"""Keys of [training] that only some rules have, by rule."""


def rules_with(key: str) -> str:
    """Return in words the rules that have a key of [training]; empty if all have it.

    >>> rules_with("points"), rules_with("steps"), rules_with("epsilon"), rules_with("loss")
    ('"flow"', 'any but "flow"', '"adam", "adamw" or "rmsprop"', '')
    """
    rules = [f'"{rule}"' for rule, keys in RULE_KEYS.items() if key in keys]
    if len(rules) == len(RULE_KEYS) - 1:
        return f'any but "{next(rule for rule, keys in RULE_KEYS.items() if key not in keys)}"'
    return " or ".join(filter(None, (", ".join(rules[:-1]), *rules[-1:])))


def check_together(spec: Spec) -> None:
    """Raise SpecError for keys that exclude each other, and invalid numbers, lists, times or schedules."""
    _check_digits(spec)
    _check_data(spec)
    _check_network(spec)
    _check_lists(spec)
    _check_rule(spec)
    _check_times(spec)
    _check_schedules(spec)
    for key, wrong, problem, accepted in CLASHES:
        if wrong(spec):
            raise SpecError(key, attrgetter(key)(spec), problem.format(spec), accepted)


def is_given(section: FileSection, key: str) -> bool:
    """Return whether the file gives the key of this table a value other than its default."""
    return bool(getattr(section, key) != type(section).model_fields[key].default)


def _given_keys(section: FileSection) -> Iterable[tuple[str, Any]]:
    """Yield the keys of a table that the file gives, with their values, also those equal to the default."""
    for key in type(section).model_fields:
        value = getattr(section, key)
        if key in section.model_fields_set and value is not None:
            yield key, value


def _check_digits(spec: Spec) -> None:
    """Raise SpecError for a nonzero number in the file that is too small for a normal float.

    The absolute value of such a number is below the smallest normal floating-point number.
    """
    for name in SECTIONS:
        section = getattr(spec, name)
        for key, value in () if section is None else _given_keys(section):
            for x in value if isinstance(value, list) else [value]:
                if isinstance(x, float) and 0 < abs(x) < MIN:
                    raise SpecError(
                        f"{name}.{key}",
                        value,
                        "is closer to 0 than the smallest normal floating-point number",
                        f"0, or an absolute value of at least {MIN!r}",
                    )


def _kinds(kinds: Iterable[str]) -> str:
    """Return kinds of data in words, 'data.kind = "fixed" or data.kind = "isotropic"'."""
    return " or ".join(f'data.kind = "{kind}"' for kind in kinds)


def _check_data(spec: Spec) -> None:
    """Raise SpecError for keys of [data] that the kind of data in the file does not have.

    It is also raised if both sample_ratio and batch_ratio are given.
    """
    if spec.data is None:
        return
    for key, value in _given_keys(spec.data):
        kinds = [kind for kind, keys in DATA_KEYS.items() if key in keys]
        if key != "kind" and spec.kind not in kinds:
            valid_keys = ", ".join(DATA_KEYS[spec.kind])
            raise SpecError(
                f"data.{key}",
                value,
                f'belongs to {_kinds(kinds)}, but data.kind = "{spec.kind}"',
                f"leaving it out; this kind has {valid_keys}",
            )
    if spec.data.sample_ratio is not None and spec.data.batch_ratio is not None:
        raise SpecError(
            "data.batch_ratio",
            spec.data.batch_ratio,
            f"excludes data.sample_ratio = {spec.data.sample_ratio}",
            "sample_ratio (the same samples in each step), batch_ratio (new ones in each), or neither",
        )


def _check_network(spec: Spec) -> None:
    """Raise SpecError for keys of [network] that the kind of data in the file does not allow.

    A key counts as given if its value differs from the default.
    """
    for key, kinds in NETWORK_KINDS.items():
        if is_given(spec.network, key) and spec.kind not in kinds:
            value = getattr(spec.network, key)
            default = type(spec.network).model_fields[key].default
            instead = "leaving it out" if default is None else value_to_toml(default)
            raise SpecError(
                f"network.{key}",
                value,
                f'belongs to {_kinds(kinds)}, but data.kind = "{spec.kind}"',
                f"{instead}, or {_kinds(kinds)}",
            )


def _check_lists(spec: Spec) -> None:
    """Raise SpecError unless lists have an entry for each layer (init_variance: L + 1 weights).

    Lists need an integer depth. Only the last entry of init_variance, that of the readout, may be zero.
    """
    depth = spec.network.depth
    for key, extra in (("init_variance", 1), ("width_ratio", 0), ("relative_widths", 0)):
        value = getattr(spec.network, key)
        if not isinstance(value, list):
            continue
        if isinstance(depth, str):
            instead = "leaving it out" if key == "relative_widths" else "one number"
            raise SpecError(
                f"network.{key}",
                value,
                f'is a list, but network.depth = "{depth}"',
                f"{instead}, or an integer network.depth",
            )
        if len(value) != depth + extra:
            layers = f"each of the {depth} hidden layers"
            each = f"each of W^0 ... W^{depth - 1} and the readout" if extra else layers
            raise SpecError(
                f"network.{key}",
                value,
                f"has {len(value)} entries, but network.depth = {depth}",
                f"a list of {depth + extra}: one for {each}",
            )
        if not all(value[:depth]):  # a zero is allowed for the readout only, which comes last
            raise SpecError(
                f"network.{key}",
                value,
                "has a zero for a hidden layer, from which no signal and no gradient comes",
                "zero for the readout alone, the last entry",
            )


def _check_rule(spec: Spec) -> None:
    """Raise SpecError for keys of [training] that the rule in the file does not have."""
    training = spec.training
    for key, value in _given_keys(training):
        rules = rules_with(key)
        if rules and key not in RULE_KEYS[training.rule]:
            valid_keys = ", ".join(RULE_KEYS[training.rule])
            raise SpecError(
                f"training.{key}",
                value,
                f'belongs to rule {rules}, but training.rule = "{training.rule}"',
                f"leaving it out; use {valid_keys}",
            )


def check_times(key: str, times: Sequence[float], steps: bool) -> None:
    """Raise SpecError for output times that do not rise, are negative, or, with ``steps``, are not integers.

    >>> check_times("times", [0.0, 2.5], steps=True)
    Traceback (most recent call last):
    numerics.errors.SpecError: times = [0.0, 2.5]: 2.5 is not a step (accepted: rising step numbers, ...)
    """
    accepted = (
        "rising step numbers, such as [0, 5, 10]" if steps else "rising times >= 0, such as [0, 0.5, 2]"
    )
    if any(x < 0 for x in times) or any(b <= a for a, b in pairwise(times)):
        raise SpecError(key, list(times), "must rise, from 0 or later", accepted)
    fraction = next((x for x in times if steps and x != int(x)), None)
    if fraction is not None:
        raise SpecError(key, list(times), f"{fraction:g} is not a step", accepted)


def _check_times(spec: Spec) -> None:
    """Raise SpecError for output times that are invalid, exceed the end, or stand beside points or grid."""
    training, key = spec.training, "training.times"
    if training.times is None:
        return
    flow = training.rule == "flow"
    check_times(key, training.times, steps=not flow)
    end, name = (training.time, "time") if flow else (training.steps, "steps")
    if end is not None and training.times[-1] > end:
        raise SpecError(
            key,
            training.times,
            f"ends after training.{name} = {value_to_toml(end)}",
            f"times up to training.{name}, or a larger one",
        )
    for other in ("points", "grid"):
        if other in training.model_fields_set and getattr(training, other) is not None:
            raise SpecError(
                key,
                training.times,
                f"excludes training.{other} = {value_to_toml(getattr(training, other))}",
                "one of the two",
            )


def _check_schedules(spec: Spec) -> None:
    """Raise SpecError for expressions in t that cannot be read, or that leave the range of their key."""
    training = spec.training
    if not training.schedules:
        return
    from derive.calculus.intervals import FRACTION, NONNEGATIVE, POSITIVE
    from numerics.experiment.finite_coefficients import with_extremes
    from numerics.experiment.parameter_domains import before_rounding, first_outside
    from numerics.experiment.schedule import POINTS, parse_schedule, values_of

    steps, end = training.rule != "flow", training.end
    for name, text in training.schedules.items():
        key = f"training.{name}"
        schedule = parse_schedule(key, text, end, steps, _description(["training", name]))
        times = np.arange(1.0 if end is None else end) if steps else np.linspace(0.0, end or 0.0, POINTS + 1)
        if not steps:
            times = with_extremes(partial(values_of, schedule), np.unique(times))
        values = values_of(schedule, times)
        accepted, interval = "values >= 0", NONNEGATIVE
        if name == "momentum":
            accepted = "values >= 0 and < 1" if steps else "positive values"
            interval = FRACTION if steps else POSITIVE
        at = first_outside(interval, values, before_rounding(interval, schedule, times))
        if at is not None:
            raise SpecError(key, text, f"is {values[at]:g} at t = {times[at]:g}", f"{accepted} throughout")


def is_positive(value: float | str | None) -> bool:
    """Return whether a key is given by a positive number, or by an expression in t."""
    return isinstance(value, str) or bool(value)


def _nonlinear(spec: Spec) -> bool:
    """Return whether the activation in the file is not the identity."""
    if spec.network.activation == "linear":
        return False
    from numerics.experiment.activation import is_linear

    return not is_linear(spec.network.activation)


def _vanishes(spec: Spec) -> bool:
    """Return whether the gamma0 of the theory is zero, for random data in NTK scaling.

    It is gamma0/sqrt(width), which is zero if the layers are infinitely wide. False for fixed samples and in
    mean-field scaling.
    """
    network, sgd = spec.network, spec.training.rule == "sgd"
    if network.parametrization == "mean-field" or spec.kind == "fixed":
        return False
    if spec.kind == "power-law" and sgd:
        return False
    return (network.width if spec.kind == "power-law" else network.width_ratio) is None


def _batches(spec: Spec, key: str) -> bool:
    """Return whether the file gives ``key``, a key of [data] for the size of batches."""
    return spec.data is not None and getattr(spec.data, key) is not None


def _below_one(momentum: float | str) -> bool:
    """Return whether the momentum in the file is less than one, or an expression in t."""
    return isinstance(momentum, str) or momentum < 1


CLASHES: tuple[tuple[str, Callable[[Spec], bool], str, str], ...] = (
    *(
        (
            f"network.{key}",
            lambda x, key=key: x.network.branch is not None and isinstance(getattr(x.network, key), list),
            "excludes network.branch = {0.network.branch}: layers of a residual network are equally wide",
            f"{instead}, or no network.branch",
        )
        for key, instead in (("relative_widths", "leaving it out"), ("width_ratio", "one number"))
    ),
    (
        "network.activation",
        lambda x: x.kind != "fixed" and _nonlinear(x),
        'excludes data.kind = "{0.kind}": the theory of random data is that of linear networks',
        '"linear", or data.kind = "fixed"',
    ),
    (
        "network.parametrization",
        _vanishes,
        "makes this network lazy: gamma0/sqrt(width) is zero, because the layers are infinitely wide",
        '"mean-field" with a small network.gamma0; random data with network.width_ratio or width',
    ),
    (
        "training.rule",
        lambda x: x.training.rule == "sgd" and not _batches(x, "batch_ratio") and x.kind != "power-law",
        "takes new samples at each step, but [data] has no batches",
        '"gd" or "flow"; or data.kind = "isotropic" with data.batch_ratio, or data.kind = "power-law"',
    ),
    *(
        (
            "training.rule",
            lambda x, key=key: x.training.rule != "sgd" and _batches(x, key),
            f"excludes data.{key}, which is a size of new samples at each step",
            '"sgd"',
        )
        for key in ("batch", "batch_ratio")
    ),
    (
        "data.noise",
        lambda x: x.data is not None and (x.data.noise or 0.0) * (x.data.noise or 0.0) == inf,
        "has a square that overflows",
        "noise of order one",
    ),
    (
        "training.objective",
        lambda x: x.training.objective != "square" and x.kind != "fixed",
        'excludes data.kind = "{0.kind}": the theory of random data is that of the square loss',
        '"square", or data.kind = "fixed"',
    ),
    (
        "training.objective",
        lambda x: x.training.objective == "cross-entropy" and x.network.outputs == 1,
        "needs several outputs, but network.outputs = 1",
        "network.outputs = the number of classes",
    ),
    (
        "training.loss",
        lambda x: x.training.loss == "sum" and x.kind != "fixed",
        'excludes data.kind = "{0.kind}", whose loss is the mean',
        '"mean"',
    ),
    (
        "data.kind",
        lambda x: x.training.entrywise and x.kind != "fixed",
        'gives no entries of inputs, and steps of training.rule = "{0.training.rule}" depend on them',
        '"fixed" with data.inputs, or training.rule = "gd"',
    ),
    *(
        (
            f"data.{key}",
            lambda x, key=key: (
                x.training.entrywise and x.data is not None and getattr(x.data, key) is not None
            ),
            'gives no entries of inputs, and steps of training.rule = "{0.training.rule}" depend on them',
            f'{instead} in its place, or training.rule = "gd"',
        )
        for key, instead in (("kernel", "data.inputs"), ("test_kernel", "data.test_inputs"))
    ),
    (
        "training.weight_decay",
        lambda x: x.training.rule == "adam" and is_positive(x.training.weight_decay),
        'excludes training.rule = "adam", because its running means would contain the decay',
        '0.0, or training.rule = "adamw", whose decay stands outside of the means',
    ),
    *(
        (
            f"training.{key}",
            lambda x, key=key: x.training.entrywise and is_positive(getattr(x.training, key)),
            f'excludes training.rule = "{{0.training.rule}}", {why}',
            '0.0, or training.rule = "gd"',
        )
        for key, why in (
            ("momentum", "which has no velocity; beta1 is the momentum of adam, adamw and lion"),
            ("temperature", "whose noise is not derived"),
        )
    ),
    (
        "training.momentum",
        lambda x: x.training.rule != "flow" and not _below_one(x.training.momentum),
        "must be less than 1",
        "a number >= 0 and < 1",
    ),
    (
        "training.momentum",
        lambda x: is_positive(x.training.momentum) and is_positive(x.training.temperature),
        "excludes training.temperature = {0.training.temperature}: noise through a velocity is not derived",
        "0.0, or training.temperature = 0.0",
    ),
    (
        "training.momentum",
        lambda x: (
            x.training.rule == "flow"
            and is_positive(x.training.momentum)
            and is_positive(x.training.weight_decay)
        ),
        "excludes training.weight_decay = {0.training.weight_decay} in a flow, which is not derived",
        '0.0, or training.rule = "gd"',
    ),
)
"""Combinations of keys that are excluded: the key named, the condition, the reason, and accepted values."""


def require_tables(tables: object) -> None:
    """Raise SpecError for an argument that is not a mapping, as the tables of a file are."""
    require_mapping("tables", tables, '{"network": {"depth": 2}}; Experiment.load reads a file')


def parse(tables: Mapping[str, Any]) -> Spec:
    """Return the validated form of the tables of a file; raise `SpecError` for the first invalid key.

    >>> parse({"network": {"depth": "L"}}).symbolic
    True
    >>> parse({"network": {"depth": 0}})
    Traceback (most recent call last):
    numerics.errors.SpecError: network.depth = 0: is not what this key takes (accepted: the number of ...)
    >>> parse({"network": {"depth": 2, "bias": True}, "data": {"kind": "isotropic"}})
    Traceback (most recent call last):
    numerics.errors.SpecError: network.bias = true: belongs to data.kind = "fixed", but data.kind = ...
    """
    require_tables(tables)
    try:
        spec = Spec.model_validate(dict(tables))
    except ValidationError as error:
        raise refusal(error, tables) from None
    check_together(spec)
    return spec
