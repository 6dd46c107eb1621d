"""Fixed samples: reads the arrays of [data] and refuses those that cannot be a kernel, inputs or targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.errors import SpecError
from numerics.spec import Data

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Samples:
    """P samples: `kernel` K^x = x.x/D of shape (P, P), `targets`, and `inputs` (P, D) if they are known.

    `targets` has shape (P,), or (P, C) for C > 1 outputs.  All arrays are read-only.  `rounding` is the
    relative rounding of the entries of a kernel that was given.
    """

    kernel: Array
    targets: Array
    inputs: Array | None = None
    rounding: float = 0.0


def read_samples(data: Data, folder: Path, outputs: int = 1) -> Samples:
    """The samples that [data] names, with paths relative to `folder`, for a network with so many outputs.

    Raises SpecError for a missing or unreadable file, a wrong shape, numbers that are not finite, and a
    kernel that is not symmetric positive semidefinite.
    """
    if (data.inputs is None) == (data.kernel is None):
        given = "neither is given" if data.inputs is None else f'data.kernel = "{data.kernel}" is given too'
        raise SpecError("data.inputs", data.inputs, given, "one of data.inputs and data.kernel")
    if data.targets is None:
        raise SpecError(
            "data.targets", None, "is missing", f"the name of a .npy file of {_shape('P', outputs)}"
        )
    return make_samples(
        inputs=None if data.inputs is None else read_array("data.inputs", data.inputs, folder),
        kernel=None if data.kernel is None else read_array("data.kernel", data.kernel, folder),
        targets=read_array("data.targets", data.targets, folder),
        names={"inputs": data.inputs, "kernel": data.kernel, "targets": data.targets},
        outputs=outputs,
    )


def make_samples(
    *,
    targets: NDArray[Any],
    inputs: NDArray[Any] | None = None,
    kernel: NDArray[Any] | None = None,
    names: dict[str, str | None] | None = None,
    outputs: int = 1,
) -> Samples:
    """Checked samples from arrays, `inputs` (P, D) or `kernel` (P, P), for a network with so many outputs.

    `names` are what refusals call the arrays.

    >>> make_samples(inputs=np.eye(2), targets=np.ones(2)).kernel
    array([[0.5, 0. ],
           [0. , 0.5]])
    """
    names = names or {}
    y = as_targets("data.targets", names.get("targets"), targets, outputs)
    x = None
    if inputs is not None:
        x = as_numbers("data.inputs", names.get("inputs"), inputs)
        k = _kernel_of_inputs(x, names.get("inputs"))
    else:
        assert kernel is not None
        k = _checked_kernel(np.asarray(kernel), names.get("kernel"))
    if len(k) != len(y):
        source = "data.inputs" if x is not None else "data.kernel"
        problem = f"is for {len(y)} samples, but {source} has {len(k)} samples"
        raise SpecError("data.targets", names.get("targets"), problem, _shape(len(k), outputs))
    return Samples(
        kernel=frozen(k),
        targets=frozen(y),
        inputs=None if x is None else frozen(x),
        rounding=0.0 if kernel is None else precision_of(np.asarray(kernel)),
    )


def as_targets(key: str, name: str | None, array: NDArray[Any], outputs: int, count: str = "P") -> Array:
    """Targets of so many outputs, one dimension of one output; raises SpecError."""
    y = as_numbers(key, name, array)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or y.size == 0:
        raise SpecError(key, name, f"has shape {y.shape}", _shape(count, outputs))
    _check_columns(y, outputs, name, key)
    return y


def check_outputs(samples: Samples, outputs: int) -> None:
    """Raises SpecError if the targets are not those of a network with so many outputs.

    >>> check_outputs(make_samples(kernel=np.eye(2), targets=np.ones(2)), 1)
    """
    _check_columns(samples.targets, outputs, None)


def _check_columns(y: Array, outputs: int, name: str | None, key: str = "data.targets") -> None:
    columns = y.shape[1] if y.ndim == 2 else 1
    if columns != outputs:
        problem = f"has shape {y.shape}, but network.outputs = {outputs}"
        raise SpecError(key, name, problem, _shape(len(y), outputs))


def _shape(count: int | str, outputs: int) -> str:
    return f"shape ({count},)" if outputs == 1 else f"shape ({count}, {outputs})"


def read_array(key: str, name: str, folder: Path) -> NDArray[Any]:
    """The array in the .npy file `name`; pickled objects are never loaded."""
    path = folder / name
    accepted = "a .npy file of numbers, its path relative to the experiment file"
    try:
        with path.open("rb") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise SpecError(key, name, f"no such file: {path}", accepted) from None
    except (OSError, ValueError, EOFError) as error:
        raise SpecError(key, name, f"cannot be read as an array: {error}", accepted) from None
    return array


def as_numbers(key: str, name: str | None, array: NDArray[Any]) -> Array:
    """A float64 copy; refuses what is not real or not finite, with the place of the first bad entry."""
    array = np.asarray(array)
    if array.dtype.kind not in "iuf":
        raise SpecError(key, name, f"holds {array.dtype}", "real numbers")
    numbers = array.astype(np.float64)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        place = tuple(int(index) for index in bad[0])
        problem = f"is {numbers[place]} at index {place} ({len(bad)} such entries)"
        raise SpecError(key, name, problem, "finite numbers")
    return numbers


def _kernel_of_inputs(x: Array, name: str | None) -> Array:
    if x.ndim != 2 or x.size == 0:
        raise SpecError("data.inputs", name, f"has shape {x.shape}", "shape (P, D)")
    with np.errstate(over="ignore", invalid="ignore"):
        kernel: Array = x @ x.T / x.shape[1]
    if not np.all(np.isfinite(kernel)):
        raise SpecError("data.inputs", name, "has a kernel x.x/D that overflows", "inputs of order one")
    return kernel


def _checked_kernel(kernel: NDArray[Any], name: str | None) -> Array:
    k = as_numbers("data.kernel", name, kernel)
    if k.ndim != 2 or k.shape[0] != k.shape[1] or k.size == 0:
        raise SpecError("data.kernel", name, f"has shape {k.shape}", "shape (P, P)")
    return psd_kernel("data.kernel", name, k, precision_of(kernel))


def precision_of(array: NDArray[Any]) -> float:
    """The relative rounding of the numbers that a file was written in."""
    return float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0


def psd_kernel(key: str, name: str | None, k: Array, precision: float, makes: str = "") -> Array:
    """The symmetric part of ``k``; raises SpecError if it is not symmetric positive semidefinite.

    Entries are rounded by ``precision``; ``makes`` begins what a refusal says: "makes a kernel that ".
    """
    eps = max(precision, float(np.finfo(np.float64).eps))  # never finer than that of the eigenvalues below
    scale = float(np.abs(k).max())
    asymmetry = float(np.abs(k - k.T).max())
    if asymmetry > eps * len(k) * scale:
        row, column = (int(i) for i in np.unravel_index(np.abs(k - k.T).argmax(), k.shape))
        entries = f"its entries at ({row}, {column}) and back differ by {asymmetry:.6g}"
        problem = f"{makes}is not symmetric: {entries}"
        raise SpecError(key, name, problem, "a symmetric matrix")
    k = (k + k.T) / 2
    eigenvalues = np.linalg.eigvalsh(k)
    tolerance = eps * len(k) * max(float(eigenvalues[-1]), 0.0)
    if eigenvalues[0] < -tolerance:
        problem = (
            f"{makes}is not positive semidefinite: its most negative eigenvalue is {eigenvalues[0]:.6g} "
            f"(rounding would excuse {-tolerance:.2g})"
        )
        raise SpecError(key, name, problem, "a positive semidefinite matrix")
    return k


def frozen(array: Array) -> Array:
    """The array, read-only."""
    array.setflags(write=False)
    return array
