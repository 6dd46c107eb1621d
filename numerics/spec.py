"""The keys of an experiment file, their types and what each accepts (shared contract, "Experiment file").

Every key of the contract is known here, so that a key which this version does not serve yet is refused by
its value and not as a stranger. A field's description is the text that a refusal prints after "accepted:".
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from numerics.errors import SpecError
from numerics.toml import value_to_toml

SYMBOLIC_DEPTH = "L"

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
OneOrMany = Positive | list[Positive]


def only(*served: object) -> AfterValidator:
    """Accepts the listed values and refuses every other as one that this version does not serve."""
    names = " or ".join(map(value_to_toml, served))

    def check(value: object) -> object:
        if value not in served:
            raise PydanticCustomError("not_served", "is not served by this version", {"accepted": names})
        return value

    return AfterValidator(check)


def unserved(why: str) -> AfterValidator:
    """Refuses any value of a key that belongs to something this version does not serve."""

    def check(value: object) -> object:
        if value is not None:
            raise PydanticCustomError(
                "not_served", "is not served by this version", {"accepted": f"leaving it out; {why}"}
            )
        return value

    return AfterValidator(check)


ISOTROPIC = "it belongs to isotropic data"
POWER_LAW = "it belongs to power-law data"


class Section(BaseModel):
    """One table of the file: immutable, no unknown keys, no coercion, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Network(Section):
    """[network]: the architecture and its feature-learning strength."""

    depth: Annotated[int, Field(ge=1)] | Literal["L"] = Field(
        description='the number of hidden layers, an integer >= 1, or "L" to keep it a symbol'
    )
    activation: Annotated[str, only("linear")] = Field(default="linear", description='"linear"')
    gamma0: float = Field(
        default=1.0,
        gt=0,
        description="a positive number; f carries 1/gamma0, so for the lazy limit take a small value such as "
        "1e-3, or the order-0 term of `dmft expand`",
    )
    bias: Annotated[bool, only(False)] = Field(default=False, description="false")
    outputs: Annotated[int, only(1)] = Field(default=1, ge=1, description="1")
    branch: Annotated[Positive | None, unserved("it belongs to residual networks")] = None
    init_variance: Annotated[OneOrMany, only(1.0)] = Field(default=1.0, description="1.0")
    width_ratio: Annotated[OneOrMany | None, unserved(ISOTROPIC)] = None
    relative_widths: Annotated[list[Positive] | None, unserved("all layers are equally wide")] = None
    width: Annotated[int | None, unserved(POWER_LAW)] = None
    parametrization: Annotated[Literal["mean-field", "ntk"], only("mean-field")] = Field(
        default="mean-field", description='"mean-field"'
    )


class Data(Section):
    """[data]: the samples, as inputs or as their kernel, and the targets; files are relative to the spec."""

    kind: Annotated[Literal["fixed", "isotropic", "power-law"], only("fixed")] = Field(
        default="fixed", description='"fixed"'
    )
    inputs: str | None = Field(default=None, description="the name of a .npy file of shape (P, D)")
    kernel: str | None = Field(default=None, description="the name of a .npy file of shape (P, P)")
    targets: str | None = Field(default=None, description="the name of a .npy file of shape (P,)")
    sample_ratio: Annotated[Positive | None, unserved(ISOTROPIC)] = None
    batch_ratio: Annotated[Positive | None, unserved(ISOTROPIC)] = None
    noise: Annotated[NonNegative | None, unserved("it belongs to isotropic and power-law data")] = None
    capacity: Annotated[Positive | None, unserved(POWER_LAW)] = None
    source: Annotated[Positive | None, unserved(POWER_LAW)] = None
    modes: Annotated[int | None, unserved(POWER_LAW)] = None
    batch: Annotated[int | None, unserved(POWER_LAW)] = None


class Training(Section):
    """[training]: the rule, and either its rate and steps (gd) or its time and output grid (flow)."""

    rule: Annotated[Literal["gd", "flow", "sgd"], only("gd", "flow")] = Field(
        default="gd", description='"gd" or "flow"'
    )
    learning_rate: float | None = Field(default=None, gt=0, description="a positive number")
    steps: int | None = Field(
        default=None, ge=1, le=1_000_000, description="an integer >= 1, at most a million"
    )
    time: float | None = Field(default=None, gt=0, description="a positive number")
    points: int = Field(
        default=200, ge=2, le=1_000_000, description="an integer >= 2, at most a million, both ends included"
    )
    grid: Literal["uniform", "log"] = Field(default="uniform", description='"uniform" or "log"')
    loss: Literal["mean", "sum"] = Field(default="mean", description='"mean" or "sum"')
    center: Annotated[bool, only(False)] = Field(default=False, description="false")
    weight_decay: Annotated[float, only(0.0)] = Field(default=0.0, ge=0, description="0.0")
    momentum: Annotated[float, only(0.0)] = Field(default=0.0, ge=0, lt=1, description="0.0")
    temperature: Annotated[float, only(0.0)] = Field(default=0.0, ge=0, description="0.0")


class Solver(Section):
    """[solver]: `samples` particles of the nonlinear march (a linear network has none), seed, tolerance.

    `rtol` bounds the time-discretisation error of a flow; exact steps (gd) have none.
    """

    samples: int = Field(default=4096, ge=1, description="an integer >= 1")
    seed: int = Field(default=0, ge=0, description="an integer >= 0")
    rtol: float = Field(default=1e-8, gt=0, lt=1, description="a number between 0 and 1")


class Spec(Section):
    """The whole file. With the depth a symbol, data and the numbers of the training are not needed."""

    network: Network = Field(description="a table [network]")
    data: Data | None = Field(default=None, description="a table [data]")
    training: Training = Field(default=Training(), description="a table [training]")
    solver: Solver = Field(default=Solver(), description="a table [solver]")

    @property
    def symbolic(self) -> bool:
        """Whether the depth is the symbol L."""
        return self.network.depth == SYMBOLIC_DEPTH


OWN_KEYS = {"gd": ("learning_rate", "steps"), "flow": ("time", "points", "grid")}


def _check_rule(training: Training, needed: bool) -> None:
    """Refuses the keys of the other rule, and the absence of the numbers of this one."""
    other = "flow" if training.rule == "gd" else "gd"
    for key in OWN_KEYS[other]:
        if key in training.model_fields_set:
            problem = f'belongs to rule "{other}", but training.rule = "{training.rule}"'
            own = ", ".join(OWN_KEYS[training.rule])
            raise SpecError(f"training.{key}", getattr(training, key), problem, f"leaving it out; use {own}")
    for key in OWN_KEYS[training.rule]:
        if needed and getattr(training, key) is None:
            accepted = Training.model_fields[key].description or ""
            raise SpecError(f"training.{key}", None, f'is missing; rule "{training.rule}" needs it', accepted)


SECTIONS: dict[str, type[Section]] = {
    "network": Network,
    "data": Data,
    "training": Training,
    "solver": Solver,
}


def parse(tables: Mapping[str, Any]) -> Spec:
    """The validated form of what `tomllib` read; raises `SpecError` naming the first key that will not do.

    >>> parse({"network": {"depth": "L"}}).symbolic
    True
    >>> parse({"network": {"depth": 0}})
    Traceback (most recent call last):
    numerics.errors.SpecError: network.depth = 0: is not what this key takes (accepted: the number of ...)
    """
    try:
        spec = Spec.model_validate(dict(tables))
    except ValidationError as error:
        # a misspelt key is the likeliest reason that another is missing: name it first
        details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        raise _refusal(details[0]) from None
    _check_rule(spec.training, needed=not spec.symbolic)
    if spec.data is None and not spec.symbolic:
        raise SpecError("data", None, "is missing", 'a table [data], or network.depth = "L"')
    return spec


def _refusal(detail: ErrorDetails) -> SpecError:
    path = [str(part) for part in detail["loc"][:2]]
    key = ".".join(path)
    if detail["type"] == "extra_forbidden":
        return _unknown_key(path, detail["input"])
    accepted = detail.get("ctx", {}).get("accepted") or _description(path)
    if detail["type"] == "missing":
        return SpecError(key, None, "is missing", accepted)
    problem = detail["msg"].replace("Input should be", "must be")
    if detail["type"] in ("model_type", "model_attributes_type"):
        problem = "must be a table"
    elif len(detail["loc"]) > 2:  # one branch of a union: its message alone would mislead
        problem = "is not what this key takes"
    return SpecError(key, detail["input"], problem, accepted)


def _description(path: list[str]) -> str:
    model: type[Section] = Spec if len(path) == 1 else SECTIONS[path[0]]
    return model.model_fields[path[-1]].description or "leaving it out"


def _unknown_key(path: list[str], value: object) -> SpecError:
    """Names the key that may have been meant: the same one in another table, else the nearest in this one."""
    key = path[-1]
    elsewhere = [f"{name}.{key}" for name, model in SECTIONS.items() if key in model.model_fields]
    known = list(SECTIONS) if len(path) == 1 else list(SECTIONS[path[0]].model_fields)
    near = elsewhere or [".".join([*path[:-1], name]) for name in difflib.get_close_matches(key, known, n=1)]
    problem = "unknown key" + (f", perhaps {near[0]} was meant" if near else "")
    return SpecError(".".join(path), value, problem, ", ".join(known))
