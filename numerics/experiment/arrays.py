"""Given samples and test points: arrays read and refused where they cannot be a kernel, inputs or targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from numerics.errors import SpecError
from numerics.experiment.schema import Data

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
        raise SpecError("data.targets", None, "is missing", f"the name of a file of {_shape('P', outputs)}")
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
    """The array in a file: ``x.npy``, ``all.npz:x`` (one of several) or ``x.csv`` (rows of numbers, which may
    begin with one line of names); pickled objects are never loaded.

    Raises SpecError for a file that is not there or is none of these.
    """
    accepted = "a .npy, .npz (file.npz:name) or .csv file of numbers, relative to the experiment file"
    file, _, member = name.rpartition(".npz:")
    path = folder / (f"{file}.npz" if file else name)
    try:
        if file or path.suffix == ".npz":
            return _member(key, name, path, member if file else "")
        if path.suffix == ".csv":
            return _table(path)
        with path.open("rb") as opened:
            array: NDArray[Any] = np.lib.format.read_array(opened, allow_pickle=False)
    except FileNotFoundError:
        raise SpecError(key, name, f"no such file: {path}", accepted) from None
    except SpecError:
        raise
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise SpecError(key, name, f"cannot be read as an array: {error}", accepted) from None
    return array


def _member(key: str, name: str, path: Path, member: str) -> NDArray[Any]:
    """One array of an .npz file."""
    with np.load(path, allow_pickle=False) as arrays:
        if member not in arrays.files:
            problem = f"has no array {member}" if member else "does not say which array"
            accepted = ", ".join(f"{path.name}:{x}" for x in arrays.files)
            raise SpecError(key, name, problem, accepted or "an .npz file with arrays")
        array: NDArray[Any] = arrays[member]
    return array


def _table(path: Path) -> NDArray[Any]:
    """Numbers of a .csv file; a first line that holds a word is one of names, one column is a vector."""
    rows = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if rows and any(_is_word(x) for x in rows[0].split(",")):
        rows = rows[1:]
    if not rows:
        raise ValueError("no numbers are in it")
    array: NDArray[Any] = np.loadtxt(rows, delimiter=",", ndmin=2)
    return array[:, 0] if array.shape[1] == 1 else array


def _is_word(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return bool(text.strip())
    return False


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

    >>> from numerics.experiment.arrays import make_samples
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
