"""The tables of an experiment file, their keys and what each accepts by itself.

A field's description is the text that a refusal prints after "accepted:".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
OneOrMany = Positive | Annotated[list[Positive], Field(min_length=1)]

Kind = Literal["fixed", "isotropic", "power-law"]


class Section(BaseModel):
    """One table of the file: immutable, no unknown keys, no coercion, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Network(Section):
    """[network]: the architecture and its feature-learning strength."""

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
    init_variance: OneOrMany = Field(
        default=1.0,
        description="a positive number, or a list of one for each of W^0 ... W^(L-1) and the readout",
    )
    width_ratio: OneOrMany | None = Field(
        default=None,
        description="N/D, a positive number, or a list of one for each hidden layer; left out, all are "
        "infinitely wide",
    )
    relative_widths: Annotated[list[Positive], Field(min_length=1)] | None = Field(
        default=None, description="a list of positive numbers, one for each hidden layer"
    )
    width: Count | None = Field(default=None, description="an integer >= 1")
    parametrization: Literal["mean-field", "ntk"] = Field(
        default="mean-field", description='"mean-field" or "ntk"'
    )


class Data(Section):
    """[data]: fixed samples, as inputs or as their kernel, and targets; or the statistics of random ones.

    Names of files are relative to the spec.
    """

    kind: Kind = Field(default="fixed", description='"fixed", "isotropic" or "power-law"')
    inputs: str | None = Field(default=None, description="the name of a .npy file of shape (P, D)")
    kernel: str | None = Field(default=None, description="the name of a .npy file of shape (P, P)")
    targets: str | None = Field(default=None, description="the name of a .npy file of shape (P,) or (P, C)")
    test_inputs: str | None = Field(default=None, description="the name of a .npy file of shape (P*, D)")
    test_kernel: str | None = Field(
        default=None, description="the name of a .npy file of shape (P*, P + P*), training samples first"
    )
    test_targets: str | None = Field(
        default=None, description="the name of a .npy file of shape (P*,) or (P*, C)"
    )
    sample_ratio: Positive | None = Field(default=None, description="P/D, a positive number")
    batch_ratio: Positive | None = Field(default=None, description="B/D, a positive number")
    noise: NonNegative | None = Field(
        default=None, description="the standard deviation of the noise in the labels, a number >= 0"
    )
    capacity: Positive | None = Field(default=None, description="a positive number")
    source: Positive | None = Field(default=None, description="a positive number")
    modes: Count | None = Field(default=None, description="an integer >= 1")
    batch: Count | None = Field(default=None, description="an integer >= 1")


class Training(Section):
    """[training]: the rule, and either its rate and steps (gd, sgd) or its time and output grid (flow)."""

    rule: Literal["gd", "flow", "sgd"] = Field(default="gd", description='"gd", "flow" or "sgd"')
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
    center: bool | None = Field(default=None, description="true or false")
    weight_decay: float = Field(default=0.0, ge=0, description="a number >= 0")
    momentum: float = Field(
        default=0.0,
        ge=0,
        description='a number >= 0 and < 1, the share of the velocity that a step keeps; with rule "flow" a '
        "time constant >= 0",
    )
    temperature: float = Field(default=0.0, ge=0, description="a number >= 0")


class Solver(Section):
    """[solver]: `samples` paths of a nonlinear process (a linear network has none), seed, tolerances.

    Left out, samples and replicas are chosen for `accuracy`, the standard error and the bias of losses and
    errors relative to the largest of them.  `rtol` bounds the time-discretisation error of a flow; exact
    steps (gd) have none.
    """

    samples: int | None = Field(
        default=None,
        ge=1,
        description="an even integer >= 1, or leaving it out: as many as solver.accuracy asks for",
    )
    accuracy: float | None = Field(default=None, gt=0, lt=1, description="a number between 0 and 1")
    seed: int = Field(default=0, ge=0, description="an integer >= 0")
    rtol: float = Field(default=1e-8, gt=0, lt=1, description="a number between 0 and 1")


class Spec(Section):
    """The whole file.  Only [network] is needed to derive; arrays and numbers are for computing."""

    network: Network = Field(description="a table [network]")
    data: Data | None = Field(default=None, description="a table [data]")
    training: Training = Field(default=Training(), description="a table [training]")
    solver: Solver = Field(default=Solver(), description="a table [solver]")

    @property
    def symbolic(self) -> bool:
        """Whether the depth is the symbol L."""
        return self.network.depth == "L"

    @property
    def kind(self) -> Kind:
        """The kind of data, "fixed" if there is no table [data]."""
        return "fixed" if self.data is None else self.data.kind

    @property
    def centered(self) -> bool:
        """Whether the initial function is subtracted; if the file does not say, only for power-law data."""
        center = self.training.center
        return self.kind == "power-law" if center is None else center

    @property
    def asks_elsewhere(self) -> bool:
        """Whether there are test points: samples that the network is asked on and not trained on."""
        return self.data is not None and (self.data.test_inputs, self.data.test_kernel) != (None, None)


SECTIONS: dict[str, type[Section]] = {
    "network": Network,
    "data": Data,
    "training": Training,
    "solver": Solver,
}
