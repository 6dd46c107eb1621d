"""Experiments: the validated content of a TOML file, with the arrays that it names.

    experiment = Experiment.load("digits.toml")
    experiment.kernel, experiment.targets, experiment.network.gamma0, experiment.times

Invalid input raises `SpecError` before anything runs.  Keys may be missing: equations can be derived without
arrays, rates and times; :func:`numerics.experiment.numbers.require_numbers` raises for what computing needs.
"""

from __future__ import annotations

import csv
import hashlib
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w
from numpy.typing import ArrayLike, NDArray

from numerics.errors import SpecError, require_mapping
from numerics.experiment.checks import precision_of, real_numbers, symmetric_positive
from numerics.experiment.schema import (
    SECTIONS,
    Data,
    NetworkSection,
    Solver,
    Spec,
    TrainingSection,
    parse,
    plain_value,
    require_tables,
)

Array = NDArray[np.float64]


TRAINING, TESTING = ("inputs", "kernel", "targets"), ("test_inputs", "test_kernel", "test_targets")
"""Keys of [data] that are arrays: of training samples, and of test points."""


@dataclass(frozen=True, eq=False)
class Samples:
    """P training samples: `kernel` K^x = x.x/D of shape (P, P), `targets`, and `inputs` (P, D) or None.

    `targets` has shape (P,), or (P, C) for C > 1 outputs.  All arrays are read-only.  `rounding` is the
    relative rounding error of the entries of the kernel that the user gave; 0 if inputs were given.
    """

    kernel: Array
    targets: Array
    inputs: Array | None = None
    rounding: float = 0.0


@dataclass(frozen=True, eq=False)
class HeldOut:
    """P* test points beside P training samples; its length is P*.

    ``kernel`` K^x of all of them has shape (P + P*, P + P*), training samples first. ``targets`` of test
    points have shape (P*,) or (P*, C), and ``inputs`` (P*, D); both are None if they are not known.
    ``training`` is P.  The arrays of an experiment are read-only.
    """

    kernel: Array
    targets: Array | None = None
    inputs: Array | None = None
    training: int = 0

    def __len__(self) -> int:
        return len(self.kernel) - self.training


def make_samples(
    arrays: Mapping[str, ArrayLike], *, names: Mapping[str, str] | None = None, outputs: int = 1
) -> tuple[Samples, HeldOut | None]:
    """Return checked samples, and test points or None, from arrays by the keys of [data].

    The keys are `inputs` (P, D) or `kernel` (P, P), and `targets`; for test points `test_inputs` (P*, D) or
    `test_kernel` (P*, P + P*), and `test_targets`.  `names` are the files of the arrays, for error messages;
    `outputs` is the number of outputs of the network.

    Raises SpecError for arrays that are missing or exclude each other, wrong shapes, numbers that are not
    finite or so large that their products overflow, and a kernel that is not symmetric positive semidefinite.

    >>> training = {"inputs": np.eye(2), "targets": np.ones(2)}
    >>> found, held_out = make_samples(training | {"test_inputs": np.ones((1, 2))})
    >>> found.kernel
    array([[0.5, 0. ],
           [0. , 0.5]])
    >>> held_out.kernel
    array([[0.5, 0. , 0.5],
           [0. , 0.5, 0.5],
           [0.5, 0.5, 1. ]])
    """
    return _Checked(arrays, names or {}, outputs).samples()


@dataclass(frozen=True)
class _Checked:
    """Checks of the arrays of [data].

    ``arrays`` holds arrays by key, ``names`` the names of their files, and ``outputs`` the number of outputs
    of the network.
    """

    arrays: Mapping[str, ArrayLike]
    names: Mapping[str, str]
    outputs: int

    def error(self, key: str, problem: str, accepted: str) -> SpecError:
        """Return the SpecError for the array of ``key``, with its problem and the accepted values."""
        return SpecError(f"data.{key}", self.names.get(key), problem, accepted)

    def samples(self) -> tuple[Samples, HeldOut | None]:
        """Return the checked training samples, and the test points or None."""
        check_complete(self.arrays, self.names, self.outputs)
        x, rounding = None, 0.0
        if "inputs" in self.arrays:
            x = self.numbers("inputs")
            if x.ndim != 2 or x.size == 0:
                raise self.error("inputs", f"has shape {x.shape}", "shape (P, D), also if P or D is 1")
            k = self.kernel_of("inputs", x)
        else:
            k = self.numbers("kernel")
            if k.ndim != 2 or k.shape[0] != k.shape[1] or k.size == 0:
                raise self.error("kernel", f"has shape {k.shape}", "shape (P, P), also if P is 1")
            rounding = precision_of(self.arrays["kernel"])
            k = self.positive("kernel", k, rounding)
        y = self.targets("targets", "P", len(k), "inputs" if x is not None else "kernel", "samples")
        samples = Samples(frozen(k), frozen(y), None if x is None else frozen(x), rounding)
        if not self.arrays.keys() & {*TESTING}:
            return samples, None
        count, source = len(k), "test_inputs" if "test_inputs" in self.arrays else "test_kernel"
        whole = (self.kernel_from_test_inputs if source == "test_inputs" else self.kernel_from_test_kernel)(
            samples
        )
        # In the kernel of training samples and test points, the block of the training samples is replaced by
        # the training kernel k. The two should be equal, but products of larger matrices may round the
        # entries of the block differently.
        whole[:count, :count] = k
        known = xt = None
        if "test_targets" in self.arrays:
            known = frozen(self.targets("test_targets", "P*", len(whole) - count, source, "test points"))
        if source == "test_inputs":
            xt = frozen(self.numbers(source))
        return samples, HeldOut(frozen(whole), known, xt, count)

    def numbers(self, key: str) -> Array:
        """Return the array of a key as float64.

        Raise SpecError for entries that are not finite real numbers.
        """
        return real_numbers(f"data.{key}", self.arrays[key], self.names.get(key))

    def targets(self, key: str, symbol: str, expected: int, source: str, unit: str) -> Array:
        """Return the targets of a key, shape (n,) for one output or (n, C) for C outputs.

        Raises SpecError for a wrong shape, and for numbers whose squares overflow. ``expected`` is the number
        n of samples in the array with the key ``source``. Messages call this number ``symbol`` ("P" or "P*")
        and the samples ``unit`` ("samples" or "test points").
        """
        y = self.numbers(key)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        if y.ndim not in (1, 2) or y.size == 0:
            raise self.error(key, f"has shape {y.shape}", _shape(symbol, self.outputs))
        _check_columns(y, self.outputs, self.names.get(key), f"data.{key}")
        with np.errstate(over="ignore"):
            if not np.isfinite(np.vdot(y, y)):
                raise self.error(key, "has squares that overflow", "targets of order one")
        if len(y) != expected:
            problem = f"is for {len(y)} {unit}, but data.{source} has {expected} {unit}"
            raise self.error(key, problem, _shape(expected, self.outputs))
        return y

    def kernel_of(self, key: str, x: Array) -> Array:
        """Return the kernel ``x.x/D`` of inputs ``x`` (P, D), shape (P, P).

        Raises SpecError, which names the array of ``key``, if the kernel overflows.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            kernel: Array = x @ x.T / x.shape[1]
        if not np.all(np.isfinite(kernel)):
            raise self.error(key, "has a kernel x.x/D that overflows", "inputs of order one")
        return kernel

    def kernel_from_test_inputs(self, samples: Samples) -> Array:
        """Return the kernel of training samples and test points from their inputs, shape (P + P*, P + P*).

        Raises SpecError if training inputs are not given or have another dimension D, or if a test kernel is
        given too.
        """
        key = "test_inputs"
        if "test_kernel" in self.arrays:
            raise self.error(key, "is given in addition to data.test_kernel", "one of the two")
        if samples.inputs is None:
            problem = "is given beside data.kernel, which has no entries for test points"
            raise self.error(key, problem, "data.test_kernel, or data.inputs in place of data.kernel")
        x, features = self.numbers(key), samples.inputs.shape[1]
        if x.ndim != 2 or x.size == 0 or x.shape[1] != features:
            problem = f"has shape {x.shape}, but data.inputs has {features} features"
            raise self.error(key, problem, f"shape (P*, {features})")
        return self.kernel_of(key, np.concatenate([samples.inputs, x]))

    def kernel_from_test_kernel(self, samples: Samples) -> Array:
        """Return the kernel of training samples and test points, (P + P*, P + P*), from the given kernels.

        Raises SpecError without a test kernel, for a wrong shape, if training inputs are given, or if the
        result is not symmetric positive semidefinite.
        """
        key, count = "test_kernel", len(samples.kernel)
        if key not in self.arrays:
            accepted = "data.test_inputs or data.test_kernel too"
            raise self.error("test_targets", "is given without test points", accepted)
        if samples.inputs is not None:
            raise self.error(
                key,
                "is given in addition to data.inputs",
                "data.test_inputs, or data.kernel in place of inputs",
            )
        k = self.numbers(key)
        if k.ndim != 2 or k.size == 0 or k.shape[1] != count + k.shape[0]:
            problem = f"has shape {k.shape}, but there are {count} training samples"
            raise self.error(key, problem, f"shape (P*, {count} + P*)")
        rounding = max(precision_of(self.arrays[key]), samples.rounding)
        both = np.block([[samples.kernel, k[:, :count].T], [k]])
        return self.positive(key, both, rounding, "makes a kernel of all points that ")

    def positive(self, key: str, k: Array, precision: float, makes: str = "") -> Array:
        """Return the symmetric part of the kernel ``k``, whose relative rounding error is ``precision``.

        Raises SpecError if it is not symmetric positive semidefinite; ``makes`` is a prefix of the message.
        """
        return symmetric_positive(f"data.{key}", k, precision, self.names.get(key), makes)


def check_complete(given: Collection[str], names: Mapping[str, str], outputs: int = 1) -> None:
    """Raise SpecError unless the keys ``given`` contain targets and exactly one of inputs and kernel.

    ``names`` are the files of the arrays, by key; ``outputs`` is the number of outputs, for the shape in the
    message.
    """
    if ("inputs" in given) == ("kernel" in given):
        problem = "neither is given"
        if "inputs" in given:
            problem = (
                f'data.kernel = "{names["kernel"]}" is given too' if names else "the kernel is given too"
            )
        raise SpecError("data.inputs", names.get("inputs"), problem, "one of data.inputs and data.kernel")
    if "targets" not in given:
        raise SpecError(
            "data.targets", None, "is missing", f"an array (or its file) of {_shape('P', outputs)}"
        )


def _check_columns(y: Array, outputs: int, name: str | None = None, key: str = "data.targets") -> None:
    """Raise SpecError if the targets ``y`` do not have one column for each output of the network.

    ``name`` is the name of their file and ``key`` their key, for the message.
    """
    columns = y.shape[1] if y.ndim == 2 else 1
    if columns != outputs:
        raise SpecError(
            key, name, f"has shape {y.shape}, but network.outputs = {outputs}", _shape(len(y), outputs)
        )


def _shape(count: int | str, outputs: int) -> str:
    """Return the shape of targets of ``count`` samples in words, "shape (P, 2)"."""
    return f"shape ({count},)" if outputs == 1 else f"shape ({count}, {outputs})"


def read_array(key: str, name: str, folder: Path) -> NDArray[Any]:
    """Return the array in a file ``x.npy``, ``all.npz:x`` or ``x.csv``; pickled objects are never loaded.

    ``name`` is relative to ``folder``, and ``all.npz:x`` is the array x of several in a file.  A .csv file
    holds rows of numbers after an optional line with a name for each column, and is a matrix also if it has a
    single column. Raises SpecError, which names ``key``, for a file that does not exist or has another
    format.
    """
    accepted = "a .npy, .npz (file.npz:name) or .csv file of numbers, relative to the experiment file"
    file, _, member = name.rpartition(".npz:")
    path = folder / (f"{file}.npz" if file else name)
    require_file(key, name, path, accepted)
    try:
        if file or path.suffix == ".npz":
            return _member(key, name, path, member if file else "")
        if path.suffix == ".csv":
            return _table(path)
        with path.open("rb") as opened:
            # The shape in a header of version 1.0 is checked here, because NumPy 1.26 accepts negative sizes
            # in it.
            if np.lib.format.read_magic(opened) == (1, 0):
                shape, _, _ = np.lib.format.read_array_header_1_0(opened)
                if min(shape, default=0) < 0:
                    raise ValueError(f"the shape {shape} in the header of the file is not valid")
            opened.seek(0)
            array: NDArray[Any] = np.lib.format.read_array(opened, allow_pickle=False)
    except SpecError:
        raise
    except Exception as error:  # a broken header raises many types, because NumPy evaluates it as Python
        raise SpecError(
            key, name, f"cannot be read as an array: {' '.join(str(error).split())[:200]}", accepted
        ) from None
    return array


def require_file(key: str, name: str, path: Path, accepted: str) -> None:
    """Raise SpecError if the path does not exist, or is a folder, a pipe or a device.

    ``key`` and ``name`` are the key of the experiment file and its value; ``accepted`` says in words what
    the key takes.
    """
    try:
        regular = path.is_file()
        there = regular or path.exists()
    except (OSError, ValueError) as error:  # the name is too long, or holds a null character
        raise SpecError(key, name, f"is not the name of a file: {error}", accepted) from None
    if not there:
        raise SpecError(key, name, "no such file" + (f": {path}" if str(path) != name else ""), accepted)
    if not regular:
        what = "a folder" if path.is_dir() else "no regular file"
        raise SpecError(key, name, f"cannot be read: {path} is {what}", accepted)


def _member(key: str, name: str, path: Path, member: str) -> NDArray[Any]:
    """Return the array ``member`` of an .npz file; ``key`` and ``name`` are those of the experiment file.

    Raises SpecError if there is no such array.
    """
    with np.load(path, allow_pickle=False) as arrays:
        if member not in arrays.files:
            problem = f"has no array {member}" if member else "does not say which array"
            accepted = ", ".join(f"{path.name}:{x}" for x in arrays.files)
            raise SpecError(key, name, problem, accepted or "an .npz file with arrays")
        array: NDArray[Any] = arrays[member]
    return array


def _table(path: Path) -> NDArray[Any]:
    """Return the numbers of a .csv file as a matrix, also if it has a single column or a single row.

    Blank lines, lines at the start of the file that begin with ``#``, and then a line of names of columns are
    left out. Raises ValueError if no line of numbers is left, for an ambiguous first line, for names that do
    not fit the columns, for lines of unequal lengths, and for a later cell that is not a number.
    """
    # Excel may write a byte-order mark at the start of a file; "utf-8-sig" leaves it out.
    lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    rows = list(dropwhile(_is_comment, lines))
    names = _names_of_columns(rows[0]) if rows else []
    if names:
        rows = rows[1:]
    if not rows:
        raise ValueError("the file has no line of numbers")
    array: NDArray[Any] = np.loadtxt(rows, delimiter=",", ndmin=2, comments=None, quotechar='"')
    if names and len(names) != array.shape[1]:
        raise ValueError(f"the line of names has {len(names)} names, and rows have {array.shape[1]} numbers")
    return array


EXCEL_ERRORS = ("#n/a", "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!")
MISSING = frozenset(("na", "n/a", "null", "none", "nil", "missing", "-", "?", ".", *EXCEL_ERRORS))
"""Cells of tables, in small letters, that stand for a number without a value."""


def _is_comment(line: str) -> bool:
    """Return whether a line of a .csv file is a comment, which begins with ``#``.

    A line is not a comment if its first cell stands for a missing number, such as ``#N/A``.
    """
    return line.lstrip().startswith("#") and line.split(",")[0].strip().lower() not in MISSING


def _names_of_columns(line: str) -> list[str]:
    """Return the names of columns in the first line of a .csv file; empty if the line holds numbers.

    Raises ValueError for a line with a cell that is not a number and one that is a number, blank or missing.
    Such a line is ambiguous: it may be a sample, or names of columns beside a column of row numbers.
    """
    cells = [cell.strip() for cell in next(csv.reader([line]))]
    words = [cell for cell in cells if not _is_number(cell) and cell.lower() not in {"", *MISSING}]
    if len(words) == len(cells):
        return cells
    if not all(map(_is_number, cells)):
        wrong = next(cell for cell in cells if not _is_number(cell))
        raise ValueError(
            f"the first line has the cell {wrong!r}, so that it holds neither numbers alone nor a name for "
            "each column"
        )
    return []


def _is_number(text: str) -> bool:
    """Return whether the text of a cell is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def fingerprint(arrays: Mapping[str, Array]) -> str | None:
    """Return a hash of arrays, which a result keeps to identify its data; None without arrays.

    It is the SHA-256 of all arrays in the order of the mapping: for each its name, its shape as Python prints
    it, and its numbers as little-endian float64.

    >>> fingerprint({"targets": np.ones(2)})[:12]
    '7032157bdf0c'
    """
    whole = hashlib.sha256()
    for name, x in arrays.items():
        whole.update(f"{name}{x.shape}".encode())
        whole.update(np.ascontiguousarray(x, dtype="<f8").tobytes())
    return whole.hexdigest() if arrays else None


def frozen(array: Array) -> Array:
    """Make the array itself read-only, not a copy of it, and return it."""
    array.setflags(write=False)
    return array


LOG_GRID_DECADES = 4
"""Number of decades of a logarithmic time grid."""

MOST_PARTS = 100
"""Largest number of dots in a dotted name in an experiment file."""

GIVEN = "(array)"
"""Placeholder in a spec for the name of an array of test points that was given without a file."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """A validated experiment with its samples; immutable.

    `load`, `from_dict` and `replace` make experiments.

    Attributes
    ----------
    spec : Spec
        Keys of the file, as a pydantic model.
    samples : Samples or None
        Training samples; None if no arrays are given or named by [data], if the data are random, and for an
        experiment of `without_arrays`.
    held_out : HeldOut or None
        Test points; None if there are none.
    path : Path or None
        The file; None if the experiment was made from tables in Python.
    text : str
        The TOML text that results keep: that of the file, or the given keys as TOML.
    """

    spec: Spec
    samples: Samples | None = None
    held_out: HeldOut | None = None
    path: Path | None = None
    text: str = ""

    def __post_init__(self) -> None:
        """Raise SpecError for an entrywise rule and samples without inputs.

        Steps of such a rule depend on the entries of inputs.
        """
        rule = self.spec.training.rule
        if self.spec.training.entrywise and self.samples is not None and self.samples.inputs is None:
            raise SpecError(
                "data.kernel",
                None,
                f'gives no entries of inputs, and steps of training.rule = "{rule}" depend on them',
                'data.inputs in its place, or training.rule = "gd"',
            )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the experiment of a file.

        Parameters
        ----------
        path : str or Path
            The TOML file; names of arrays in it are relative to its folder.

        Returns
        -------
        Experiment
            The checked experiment with its arrays.

        Raises
        ------
        SpecError
            If the file or an array cannot be read, or an array or a key is invalid.
        """
        path = Path(path)
        spec = parse(cls.tables_of(path))
        return cls(spec, *_samples_of(spec, path.parent), path, _text_of(path))

    @classmethod
    def of(cls, source: Self | str | Path) -> Self:
        """Return an experiment unchanged, or load that of a file.

        Parameters
        ----------
        source : Experiment, str or Path
            The experiment, or its file.

        Returns
        -------
        Experiment
            The checked experiment.

        Raises
        ------
        SpecError
            If the file is not valid, and for a source of another type.
        """
        if isinstance(source, str | Path):
            return cls.load(source)
        _require_experiment(source)
        return source

    @staticmethod
    def tables_of(path: str | Path) -> dict[str, Any]:
        """Return the tables of a TOML file.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        dict
            The tables, not validated.

        Raises
        ------
        SpecError
            If the file does not exist, cannot be read, or is not TOML.
        """
        accepted = "an experiment file in TOML"
        require_file("file", str(path), Path(path), accepted)
        try:
            text = _text_of(Path(path))
            # Names with many parts, such as a.b.c, are refused before tomllib reads them, because the time of
            # tomllib is quadratic in the number of parts.
            for line in text.splitlines():
                name = line.partition("=")[0]
                if name.count(".") > MOST_PARTS and "," not in name and not name.lstrip().startswith("#"):
                    raise ValueError(
                        f"a line of the file has {name.count('.')} dots before any =, and at most "
                        f"{MOST_PARTS} are allowed"
                    )
            return tomllib.loads(text)
        except OSError as error:
            raise SpecError("file", str(path), f"cannot be read: {error.strerror}", accepted) from None
        except UnicodeDecodeError as error:
            raise SpecError("file", str(path), f"is not UTF-8 text: {error.reason}", accepted) from None
        except (
            ValueError,
            RecursionError,
        ) as error:  # tomllib raises ValueError or RecursionError for syntax, long numbers, deep nesting
            raise SpecError("file", str(path), f"is not valid TOML: {error}", accepted) from None

    @classmethod
    def from_dict(  # noqa: PLR0913 - one argument for each array of [data]
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
        """Return the experiment of tables like those of a file.

        Parameters
        ----------
        tables : mapping of str to mapping
            The tables [network], [data], [training] and [solver]. If arrays are given, no files are read:
            those of training samples that [data] names are ignored, and those of test points must be given as
            arrays.
        inputs : array, shape (P, D), optional
            Inputs of training samples.
        kernel : array, shape (P, P), optional
            Kernel x.x/D of the inputs, in place of ``inputs``.
        targets : array, shape (P,) or (P, C), optional
            Targets; needed if inputs or a kernel are given.
        test_inputs : array, shape (P*, D), optional
            Inputs of test points.
        test_kernel : array, shape (P*, P + P*), optional
            Kernel between test points and all points, in place of ``test_inputs``.
        test_targets : array, shape (P*,) or (P*, C), optional
            Targets of test points.
        folder : str or Path
            Folder of array files that the tables name.

        Returns
        -------
        Experiment
            The checked experiment.

        Raises
        ------
        SpecError
            If a key or an array is invalid, if arrays are given for random data, or if arrays are given and
            the tables name a file of test points that is not among them.

        Examples
        --------
        >>> e = Experiment.from_dict(
        ...     {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 3}},
        ...     kernel=[[1.0]], targets=[1.0])
        >>> e.depth, e.times
        (2, array([0., 1., 2., 3.]))
        """
        every = (inputs, kernel, targets, test_inputs, test_kernel, test_targets)
        given = {k: x for k, x in zip((*TRAINING, *TESTING), every, strict=True) if x is not None}
        if not given:
            spec = parse(tables)
            return cls(spec, *_samples_of(spec, Path(folder)), text=_text(spec))
        check_complete(given, {})
        spec = parse(_with_arrays(tables, [key for key in given if key in TESTING]))
        if spec.kind != "fixed":
            raise SpecError("data.kind", spec.kind, "has random samples, but arrays are given", '"fixed"')
        return cls(spec, *make_samples(given, outputs=spec.network.outputs), text=_text(spec))

    @classmethod
    def without_arrays(cls, tables: Mapping[str, Any]) -> Self:
        """Return the experiment of tables without reading array files, which is enough to derive equations.

        Parameters
        ----------
        tables : mapping of str to mapping
            The tables of an experiment.

        Returns
        -------
        Experiment
            The checked experiment, without samples.
        """
        spec = parse(tables)
        return cls(spec, text=_text(spec))

    def replace(self, changes: Mapping[str, object]) -> Self:
        """Return a copy with some keys changed, checked again; samples are kept.

        Parameters
        ----------
        changes : mapping of str to object
            Values by dotted path, such as "network.gamma0"; None removes a key. A whole table is not
            accepted. Numbers and arrays of NumPy stand for numbers and lists.

        Returns
        -------
        Experiment
            The changed experiment.

        Raises
        ------
        SpecError
            If a path is not TABLE.KEY or a value is invalid, if a key of [data] is changed and the experiment
            has samples, if the number of outputs no longer fits the targets, or if the new rule is entrywise
            and the experiment has samples that are given by a kernel, without inputs.

        Examples
        --------
        >>> e = Experiment.from_dict({"network": {"depth": "L"}})
        >>> e.replace({"network.gamma0": 0.5}).network.gamma0
        0.5
        """
        require_mapping("changes", changes, '{"TABLE.KEY": value}, such as {"training.steps": 10}')
        tables = self.spec.model_dump(exclude_unset=True)
        for path, new_value in changes.items():
            section, _, key = path.partition(".") if isinstance(path, str) else ("", "", "")
            value = plain_value(new_value)
            if section not in SECTIONS or not key:
                accepted = f"TABLE.KEY, such as training.steps, with the table {', '.join(SECTIONS)}"
                raise SpecError(str(path), value, "is not a key of the file", accepted)
            if section == "data" and self.samples is not None:
                problem = "cannot be changed by replace(), which keeps the samples"
                raise SpecError(path, value, problem, "keys of tables other than [data]")
            table = tables[section] = tables.get(section) or {}
            table.pop(key, None)
            if value is not None:
                table[key] = value
        spec = parse(tables)
        if self.samples is not None:
            _check_columns(self.samples.targets, spec.network.outputs)
        return type(self)(spec, self.samples, self.held_out, self.path, _text(spec))

    @property
    def network(self) -> NetworkSection:
        """The table [network]."""
        return self.spec.network

    @property
    def data(self) -> Data | None:
        """The table [data]; None if it is missing."""
        return self.spec.data

    @property
    def training(self) -> TrainingSection:
        """The table [training]."""
        return self.spec.training

    @property
    def solver(self) -> Solver:
        """The table [solver]."""
        return self.spec.solver

    def value(self, path: str) -> Any:
        """Return the value of a key, such as "training.steps".

        Parameters
        ----------
        path : str
            Dotted path of a key of the schema. An unknown table raises AttributeError, and so does an unknown
            key of a table, except of a missing table [data].

        Returns
        -------
        object
            The value, or the default of a key that is not given. Without a table [data] it is "fixed" for
            data.kind and None for other keys of [data].

        Examples
        --------
        >>> Experiment.from_dict({"network": {"depth": "L"}}).value("network.depth")
        'L'
        """
        section, _, key = path.partition(".")
        table = getattr(self.spec, section)
        return self.spec.kind if path == "data.kind" else None if table is None else getattr(table, key)

    @property
    def symbolic(self) -> bool:
        """Whether the depth is the symbol L and not a number."""
        return self.spec.symbolic

    @property
    def depth(self) -> int:
        """Number of hidden layers; raises SpecError if it is a symbol."""
        depth = self.network.depth
        if isinstance(depth, str):
            raise SpecError(
                "network.depth",
                depth,
                "is a symbol, but computing needs a number of layers",
                "an integer >= 1",
            )
        return depth

    @property
    def kernel(self) -> Array:
        """Kernel K^x = x.x/D of training samples, read-only, shape (P, P).

        Raises SpecError if there are no samples.
        """
        return self._known_samples.kernel

    @property
    def targets(self) -> Array:
        """Targets y of training samples, read-only, shape (P,), or (P, C) with C > 1 outputs.

        Raises SpecError if there are no samples.
        """
        return self._known_samples.targets

    @property
    def inputs(self) -> Array | None:
        """Inputs x of training samples, read-only, shape (P, D), or None if only their kernel was given.

        Raises SpecError if there are no samples.
        """
        return self._known_samples.inputs

    @property
    def arrays(self) -> dict[str, Array]:
        """Given arrays, by their keys of [data]; empty without samples.

        There are "inputs", or "kernel" if only the kernel was given, and "targets". Of test points there are
        "test_inputs", or "test_kernel", and "test_targets" if they were given. Unlike the key of the file,
        "test_kernel" is the kernel of training samples and test points, (P + P*, P + P*).
        """
        arrays: dict[str, Array | None] = {}
        for prefix, part in (("", self.samples), ("test_", self.held_out)):
            if part is not None:
                features = {"kernel": part.kernel} if part.inputs is None else {"inputs": part.inputs}
                arrays |= {f"{prefix}{k}": x for k, x in {**features, "targets": part.targets}.items()}
        return {k: x for k, x in arrays.items() if x is not None}

    @property
    def objective(self) -> str:
        """Name of the loss function of an output, such as "square" or "logistic"."""
        return self.training.objective

    @property
    def sample_count(self) -> int:
        """Number P + P* of training samples and test points together.

        Raises SpecError if there are no samples.
        """
        return len(self.targets) + (0 if self.held_out is None else len(self.held_out))

    @property
    def effective_rate(self) -> float:
        """Factor of the sum over samples in an update: eta, or eta/P (mean loss); a flow has eta = 1.

        Raises SpecError if the learning rate of a rule in steps is missing or an expression in t, and for a
        mean loss without samples.
        """
        rate = 1.0
        if self.training.rule != "flow":
            self.require_constant("the rate of an update", "learning_rate")
            if self.training.learning_rate is None:
                raise SpecError("training.learning_rate", None, "is missing", "a positive number")
            rate = float(self.training.learning_rate)
        return rate / len(self.targets) if self.training.loss == "mean" else rate

    def require_constant(self, what: str, *keys: str) -> None:
        """Raise SpecError if a key of [training] is an expression in t.

        Parameters
        ----------
        what : str
            The analysis that needs constants, in words.
        *keys : str
            Keys that must be constant, without the name of the table, such as "learning_rate"; all if none is
            given.

        Examples
        --------
        >>> training = {"learning_rate": "0.1/(1 + t)", "steps": 3}
        >>> e = Experiment.from_dict({"network": {"depth": 1}, "training": training})
        >>> e.require_constant("the growth of the first step")
        Traceback (most recent call last):
        numerics.errors.SpecError: training.learning_rate = "0.1/(1 + t)": depends on the time, and th...
        """
        for key, text in self.training.schedules.items():
            if key in keys or not keys:
                raise SpecError(
                    f"training.{key}", text, f"depends on the time, and {what} needs a constant", "a number"
                )

    def require_linear_rule(self, what: str) -> None:
        """Raise SpecError for an entrywise rule, whose steps are not linear in the gradient.

        Parameters
        ----------
        what : str
            The analysis that needs a linear rule, in words.

        Examples
        --------
        >>> e = Experiment.from_dict({"network": {"depth": 1}, "training": {"rule": "sign"}})
        >>> e.require_linear_rule("the expansion in gamma0")
        Traceback (most recent call last):
        numerics.errors.SpecError: training.rule = "sign": has steps that are not linear in the gradie...
        """
        if self.training.entrywise:
            raise SpecError(
                "training.rule",
                self.training.rule,
                f"has steps that are not linear in the gradient, and {what} needs linear ones",
                '"gd", "flow" or "sgd"; or `dmft solve`, which takes this rule',
            )

    def require_moving_features(self, what: str) -> None:
        """Raise SpecError for fixed samples in NTK scaling, whose features do not move.

        Parameters
        ----------
        what : str
            The analysis that needs moving features, in words.

        Examples
        --------
        >>> e = Experiment.from_dict({"network": {"depth": 1, "parametrization": "ntk"}})
        >>> e.require_moving_features("the expansion in gamma0")
        Traceback (most recent call last):
        numerics.errors.SpecError: network.parametrization = "ntk": leaves no features that move at infini...
        """
        if self.spec.features_rest:
            raise SpecError(
                "network.parametrization",
                "ntk",
                f"leaves no features that move at infinite width, and {what} needs them",
                '"mean-field"',
            )

    @property
    def times(self) -> Array:
        """Times that are solved for, shape (T,).

        They are 0, 1, ..., steps for rules in steps. For a flow they are `points` times from 0 to `time`, or
        0, `training.times` and `time` if the file gives `training.times`.  The log grid is 0 and then a
        geometric progression over the last four decades up to `time`.  Raises SpecError if `steps` or `time`
        is missing.
        """
        training = self.training
        if training.rule != "flow":
            if training.steps is None:
                raise SpecError("training.steps", None, "is missing", "an integer >= 1")
            return np.arange(training.steps + 1, dtype=np.float64)
        if training.time is None:
            raise SpecError("training.time", None, "is missing", "a positive number")
        if training.times is not None:
            return np.unique([0.0, *training.times, training.time])
        if training.grid == "uniform" or training.points == 2:
            return np.linspace(0.0, training.time, training.points)
        first = training.time * 10.0**-LOG_GRID_DECADES
        return np.concatenate([[0.0], np.geomspace(first, training.time, training.points - 1)])

    @property
    def output_times(self) -> Array | None:
        """Times that a result holds, `training.times`; None for all of `times`."""
        times = self.training.times
        return None if times is None else np.array(times)

    def at_all_times(self) -> Self:
        """Return the experiment whose results hold all times that are solved for.

        Returns
        -------
        Experiment
            The experiment itself if it has no ``training.times``. Else the experiment without them for a rule
            in steps; for a flow ``training.times`` are then all times that are solved for.

        Examples
        --------
        >>> tables = {"network": {"depth": 2}, "training": {"steps": 9, "times": [0, 5]}}
        >>> Experiment.from_dict(tables).at_all_times().output_times is None
        True
        """
        if self.training.times is None:
            return self
        return self.replace({"training.times": self.times.tolist() if self.training.rule == "flow" else None})

    @property
    def _known_samples(self) -> Samples:
        """Training samples; raises SpecError if there are none."""
        if self.samples is not None:
            return self.samples
        accepted = "a table [data] with data.inputs or data.kernel, and data.targets"
        if self.data is None:
            raise SpecError("data", None, "is missing", accepted)
        if self.data.kind != "fixed":
            raise SpecError("data.kind", self.data.kind, "has random samples, not given ones", '"fixed"')
        raise SpecError("data.inputs", None, "is missing", accepted)


def _samples_of(spec: Spec, folder: Path) -> tuple[Samples | None, HeldOut | None]:
    """Return training samples and test points from the files that the spec names.

    Both are None if the spec names no files; test points are None if it names no files of test arrays.
    """
    data = spec.data
    names = (
        {} if data is None else {k: x for k in (*TRAINING, *TESTING) if (x := getattr(data, k)) is not None}
    )
    if not names:
        return None, None
    check_complete(names, names, spec.network.outputs)
    arrays = {key: read_array(f"data.{key}", name, folder) for key, name in names.items()}
    return make_samples(arrays, names=names, outputs=spec.network.outputs)


def _with_arrays(tables: Mapping[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """Return the tables with the text GIVEN as the file name of each test array in ``given``.

    ``given`` are the keys of the test arrays that are given. With this text the tables state that there are
    test points. Raises SpecError if the tables name a file of a test array that is not in ``given``.
    """
    require_tables(tables)
    if not isinstance(tables.get("data") or {}, Mapping):
        return {**tables}  # `parse` refuses it
    data = dict(tables.get("data") or {})
    for key in TESTING:
        if data.get(key) is not None and key not in given and data[key] != GIVEN:
            raise SpecError(
                f"data.{key}",
                data[key],
                "names a file, but samples are given as arrays",
                f"the argument {key} with the array, or leaving this key out",
            )
        data.pop(key, None)
    return {**tables, "data": data | dict.fromkeys(given, GIVEN)}


def _require_experiment(source: object) -> None:
    """Raise SpecError for an object that is not an experiment."""
    if not isinstance(source, Experiment):
        accepted = "an experiment, the path of its file, or Experiment.from_dict(tables)"
        raise SpecError("experiment", None, f"{type(source).__name__} is not an experiment", accepted)


def _text_of(path: Path) -> str:
    """Return the text of an experiment file, without the byte-order mark that some editors write."""
    return path.read_text(encoding="utf-8-sig")


def _text(spec: Spec) -> str:
    """Return the keys that the user gave, without defaults, as the TOML text of an experiment file."""
    return tomli_w.dumps(spec.model_dump(exclude_unset=True, exclude_none=True))
