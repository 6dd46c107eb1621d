"""Test points: inputs outside the training set, on which the network is asked and not trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.errors import SpecError
from numerics.samples import (
    Array,
    Samples,
    as_numbers,
    as_targets,
    frozen,
    precision_of,
    psd_kernel,
    read_array,
)
from numerics.spec import Data

KEYS = ("test_inputs", "test_kernel", "test_targets")
"""The keys of [data] that are about test points."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """P* test points beside P training samples.

    ``kernel`` K^x of all of them has shape (P + P*, P + P*), training samples first; ``targets`` (P*,) or
    (P*, C), and ``inputs`` (P*, D), if they are known.  All arrays are read-only.
    """

    kernel: Array
    targets: Array | None = None
    inputs: Array | None = None
    training: int = 0

    def __len__(self) -> int:
        return len(self.kernel) - self.training


def read_held_out(data: Data, folder: Path, samples: Samples, outputs: int = 1) -> HeldOut | None:
    """The test points that [data] names beside `samples`, if it names any; paths are relative to `folder`.

    Raises SpecError as `make_held_out`, and for targets of test points that are not there.
    """
    names: dict[str, str | None] = {key: getattr(data, key) for key in KEYS}
    inputs, kernel, targets = (
        None if names[key] is None else read_array(f"data.{key}", str(names[key]), folder) for key in KEYS
    )
    if inputs is None and kernel is None and targets is None:
        return None
    return make_held_out(samples, inputs=inputs, kernel=kernel, targets=targets, names=names, outputs=outputs)


def make_held_out(
    samples: Samples,
    *,
    inputs: NDArray[Any] | None = None,
    kernel: NDArray[Any] | None = None,
    targets: NDArray[Any] | None = None,
    names: dict[str, str | None] | None = None,
    outputs: int = 1,
) -> HeldOut:
    """Checked test points from arrays: `inputs` (P*, D) beside those of `samples`, or `kernel` (P*, P + P*).

    Raises SpecError for wrong shapes, numbers that are not finite, and a kernel that makes no symmetric
    positive semidefinite one of all points.

    >>> from numerics.samples import make_samples
    >>> samples = make_samples(inputs=np.eye(2), targets=np.ones(2))
    >>> make_held_out(samples, inputs=np.array([[1.0, 1.0]])).kernel
    array([[0.5, 0. , 0.5],
           [0. , 0.5, 0.5],
           [0.5, 0.5, 1. ]])
    """
    names = names or {}
    if inputs is None and kernel is None:
        problem = "without test points"
        accepted = "data.test_inputs or data.test_kernel too"
        raise SpecError("data.test_targets", names.get("test_targets"), problem, accepted)
    x = None
    if inputs is not None:
        if kernel is not None:
            problem = "with data.test_kernel"
            raise SpecError("data.test_inputs", names.get("test_inputs"), problem, "one of the two")
        x, whole = _whole_of_inputs(samples, inputs, names.get("test_inputs"))
    else:
        assert kernel is not None
        whole = _whole_of_kernel(samples, kernel, names.get("test_kernel"))
    count = len(whole) - len(samples.kernel)
    y = None
    if targets is not None:
        y = as_targets("data.test_targets", names.get("test_targets"), targets, outputs, "P*")
        if len(y) != count:
            source = "data.test_kernel" if x is None else "data.test_inputs"
            problem = f"is for {len(y)} test points, but {source} has {count}"
            accepted = f"shape ({count},)" if outputs == 1 else f"shape ({count}, {outputs})"
            raise SpecError("data.test_targets", names.get("test_targets"), problem, accepted)
        y = frozen(y)
    return HeldOut(frozen(whole), y, None if x is None else frozen(x), len(samples.kernel))


def _whole_of_inputs(samples: Samples, inputs: NDArray[Any], name: str | None) -> tuple[Array, Array]:
    key = "data.test_inputs"
    if samples.inputs is None:
        problem = "with data.kernel, which does not say how it is continued"
        raise SpecError(key, name, problem, "data.test_kernel, or data.inputs in place of data.kernel")
    x = as_numbers(key, name, inputs)
    features = samples.inputs.shape[1]
    if x.ndim != 2 or x.size == 0 or x.shape[1] != features:
        problem = f"has shape {x.shape}, but data.inputs has {features} features"
        raise SpecError(key, name, problem, f"shape (P*, {features})")
    both = np.concatenate([samples.inputs, x])
    with np.errstate(over="ignore", invalid="ignore"):
        whole: Array = both @ both.T / features
    if not np.all(np.isfinite(whole)):
        raise SpecError(key, name, "has a kernel x.x/D that overflows", "inputs of order one")
    count = len(samples.kernel)
    whole[:count, :count] = samples.kernel  # bit by bit: products of other sizes may round differently
    return x, whole


def _whole_of_kernel(samples: Samples, kernel: NDArray[Any], name: str | None) -> Array:
    key, count = "data.test_kernel", len(samples.kernel)
    if samples.inputs is not None:
        raise SpecError(key, name, "with data.inputs", "data.test_inputs, or data.kernel in place of inputs")
    k = as_numbers(key, name, kernel)
    if k.ndim != 2 or k.size == 0 or k.shape[1] != count + k.shape[0]:
        problem = f"has shape {k.shape}, but there are {count} training samples"
        raise SpecError(key, name, problem, f"shape (P*, {count} + P*)")
    whole = np.block([[samples.kernel, k[:, :count].T], [k]])
    rounding = max(precision_of(np.asarray(kernel)), samples.rounding)
    whole = psd_kernel(key, name, whole, rounding, "makes a kernel of all points that ")
    whole[:count, :count] = samples.kernel
    return whole
