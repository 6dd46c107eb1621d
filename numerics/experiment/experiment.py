"""An experiment: what its TOML file says, checked, with the arrays it names.

    experiment = Experiment.load("digits.toml")
    experiment.kernel, experiment.targets, experiment.network.gamma0, experiment.times

Everything that can be wrong with it is refused here, as a `SpecError`, before anything runs.  What is merely
left out is not wrong: the equations can be derived without arrays, rates and times (`require_numbers` says
what computing needs).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w
from numpy.typing import ArrayLike

from numerics.errors import SpecError
from numerics.experiment.arrays import (
    KEYS,
    Array,
    HeldOut,
    Samples,
    check_outputs,
    make_held_out,
    make_samples,
    read_held_out,
    read_samples,
)
from numerics.experiment.schema import Data, Network, Solver, Spec, Training, parse

LOG_GRID_DECADES = 4

GIVEN = "(array)"
"""What stands in a spec for the name of an array of test points that was given without a file."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """A validated spec with its samples; immutable. Make one with `load`, `from_dict` or `replace`.

    Attributes: `spec`, the pydantic model of the file; `samples`, None if [data] names no arrays or the data
    are random; `path` of the file, None if there is none; `text`, the TOML that results keep; `held_out`, the
    test points, if there are any.
    """

    spec: Spec
    samples: Samples | None
    path: Path | None
    text: str
    held_out: HeldOut | None = None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads and checks an experiment file; raises SpecError."""
        path = Path(path)
        spec = parse(cls.tables_of(path))
        samples, held_out = _samples_of(spec, path.parent)
        return cls(spec, samples, path, path.read_text(encoding="utf-8"), held_out)

    @classmethod
    def of(cls, source: Self | str | Path) -> Self:
        """An experiment as it is, or that of the file at a path; raises SpecError."""
        return cls.load(source) if isinstance(source, str | Path) else source

    @staticmethod
    def tables_of(path: str | Path) -> dict[str, Any]:
        """What a file says, as tables; raises SpecError for one that is not there or is no TOML."""
        accepted = "an experiment file in TOML"
        try:
            return tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SpecError("file", str(path), "no such file", accepted) from None
        except OSError as error:
            raise SpecError("file", str(path), f"cannot be read: {error.strerror}", accepted) from None
        except UnicodeDecodeError as error:
            raise SpecError("file", str(path), f"is not UTF-8 text: {error.reason}", accepted) from None
        except (ValueError, RecursionError) as error:  # of tomllib, and of numbers or nesting without end
            raise SpecError("file", str(path), f"is not valid TOML: {error}", accepted) from None

    @classmethod
    def from_dict(
        cls,
        tables: Mapping[str, Any],
        *,
        inputs: ArrayLike | None = None,
        kernel: ArrayLike | None = None,
        targets: ArrayLike | None = None,
        test_inputs: ArrayLike | None = None,
        test_kernel: ArrayLike | None = None,
        test_targets: ArrayLike | None = None,
        folder: str | Path = ".",
    ) -> Self:
        """Checks tables like those of a file; arrays given here stand in for files.

        >>> e = Experiment.from_dict(
        ...     {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 3}},
        ...     kernel=[[1.0]], targets=[1.0])
        >>> e.depth, e.times
        (2, array([0., 1., 2., 3.]))
        """
        held = {"inputs": test_inputs, "kernel": test_kernel, "targets": test_targets}
        given = {key: np.asarray(value) for key, value in held.items() if value is not None}
        if targets is None:
            if given:
                raise SpecError("data.targets", None, "is missing", "an array, as for the test points")
            spec = parse(tables)
            samples, held_out = _samples_of(spec, Path(folder))
            return cls(spec, samples, None, _text(spec), held_out)
        if (inputs is None) == (kernel is None):
            raise SpecError("data.inputs", None, "give inputs or kernel, not both or neither", "one array")
        spec = parse(_with_arrays(tables, [f"test_{key}" for key in given]))
        if spec.kind != "fixed":
            raise SpecError("data.kind", spec.kind, "has random samples, but arrays are given", '"fixed"')
        samples = make_samples(
            targets=np.asarray(targets),
            inputs=None if inputs is None else np.asarray(inputs),
            kernel=None if kernel is None else np.asarray(kernel),
            outputs=spec.network.outputs,
        )
        held_out = None
        if given:
            held_out = make_held_out(
                samples,
                inputs=given.get("inputs"),
                kernel=given.get("kernel"),
                targets=given.get("targets"),
                outputs=spec.network.outputs,
            )
        return cls(spec, samples, None, _text(spec), held_out)

    @classmethod
    def without_arrays(cls, tables: Mapping[str, Any]) -> Self:
        """Checks tables and reads none of the files that they name: enough to derive."""
        spec = parse(tables)
        return cls(spec, None, None, _text(spec))

    def replace(self, changes: Mapping[str, object]) -> Self:
        """A copy with keys changed by dotted path, checked again; None drops a key. Given samples are kept.

        >>> e = Experiment.from_dict({"network": {"depth": "L"}})
        >>> e.replace({"network.gamma0": 0.5}).network.gamma0
        0.5
        """
        tables = self.spec.model_dump(exclude_unset=True)
        for path, value in changes.items():
            section, _, key = path.partition(".")
            if section == "data" and self.samples is not None:
                raise SpecError(path, value, "replace keeps the samples", "keys of the other tables")
            table = tables.setdefault(section, {})
            table.pop(key, None)
            if value is not None:
                table[key] = value
        spec = parse(tables)
        if self.samples is not None:
            check_outputs(self.samples, spec.network.outputs)
        return type(self)(spec, self.samples, self.path, _text(spec), self.held_out)

    @property
    def network(self) -> Network:
        """The table [network]."""
        return self.spec.network

    @property
    def data(self) -> Data | None:
        """The table [data]."""
        return self.spec.data

    @property
    def training(self) -> Training:
        """The table [training]."""
        return self.spec.training

    @property
    def solver(self) -> Solver:
        """The table [solver]."""
        return self.spec.solver

    @property
    def symbolic(self) -> bool:
        """Whether the depth is the symbol L: enough to derive and to print, not to compute."""
        return self.spec.symbolic

    @property
    def depth(self) -> int:
        """The number of hidden layers; raises SpecError if it is a symbol."""
        depth = self.network.depth
        if isinstance(depth, str):
            raise SpecError("network.depth", depth, "numbers need a depth that is one", "an integer >= 1")
        return depth

    @property
    def kernel(self) -> Array:
        """K^x = x.x/D, read-only, shape (P, P)."""
        return self._known_samples.kernel

    @property
    def targets(self) -> Array:
        """y, read-only, shape (P,), or (P, C) with C > 1 outputs."""
        return self._known_samples.targets

    @property
    def inputs(self) -> Array | None:
        """x, read-only, shape (P, D), or None if only the kernel was given."""
        return self._known_samples.inputs

    @property
    def objective(self) -> str:
        """The loss of an output."""
        return self.training.objective

    @property
    def sample_count(self) -> int:
        """The number of training samples and test points."""
        return len(self.targets) + (0 if self.held_out is None else len(self.held_out))

    @property
    def effective_rate(self) -> float:
        """What multiplies the sum over samples in an update: eta, or eta/P (mean); flow has eta = 1."""
        rate = 1.0 if self.training.rule == "flow" else self.training.learning_rate
        if rate is None:
            raise SpecError("training.learning_rate", None, "is missing", "a positive number")
        return rate / len(self.targets) if self.training.loss == "mean" else rate

    @property
    def times(self) -> Array:
        """The output times: 0, 1, ..., steps for gd and sgd; `points` times from 0 to `time` for flow.

        The log grid is 0 and then a geometric progression over the last four decades up to `time`.
        """
        training = self.training
        if training.rule != "flow":
            if training.steps is None:
                raise SpecError("training.steps", None, "is missing", "an integer >= 1")
            return np.arange(training.steps + 1, dtype=np.float64)
        if training.time is None:
            raise SpecError("training.time", None, "is missing", "a positive number")
        if training.grid == "uniform" or training.points == 2:
            return np.linspace(0.0, training.time, training.points)
        first = training.time * 10.0**-LOG_GRID_DECADES
        return np.concatenate([[0.0], np.geomspace(first, training.time, training.points - 1)])

    @property
    def _known_samples(self) -> Samples:
        if self.samples is not None:
            return self.samples
        accepted = "a table [data] with data.inputs or data.kernel, and data.targets"
        if self.data is None:
            raise SpecError("data", None, "is missing", accepted)
        if self.data.kind != "fixed":
            raise SpecError("data.kind", self.data.kind, "has random samples, not given ones", '"fixed"')
        raise SpecError("data.inputs", None, "is missing", accepted)


def _samples_of(spec: Spec, folder: Path) -> tuple[Samples | None, HeldOut | None]:
    """The samples and the test points that the spec names, if it names any."""
    data = spec.data
    if data is None or all(getattr(data, key) is None for key in ("inputs", "kernel", "targets", *KEYS)):
        return None, None
    samples = read_samples(data, folder, outputs=spec.network.outputs)
    return samples, read_held_out(data, folder, samples, outputs=spec.network.outputs)


def _with_arrays(tables: Mapping[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """The tables with a name for each array of test points, as whether there are any is part of a spec."""
    data = dict(tables.get("data", {}))
    for key in KEYS:
        if data.get(key) is not None and key not in given and data[key] != GIVEN:
            raise SpecError(
                f"data.{key}", data[key], "names a file, but samples are given as arrays", "an array"
            )
        data.pop(key, None)
    return {**tables, "data": data | dict.fromkeys(given, GIVEN)}


def _text(spec: Spec) -> str:
    return tomli_w.dumps(spec.model_dump(exclude_unset=True, exclude_none=True))
