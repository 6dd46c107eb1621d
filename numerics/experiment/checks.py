"""Checks of arrays and numbers of a user, with the same error messages for files and for Python.

The checks take the key that error messages name, such as ``data.kernel``, and return float64.
:mod:`~numerics.experiment.experiment` calls them for the arrays of [data],
:mod:`~numerics.experiment.given_data` for those of a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numerics.errors import SpecError
from numerics.experiment.schema import check_times

if TYPE_CHECKING:
    from derive.program import Program

Array = NDArray[np.float64]
Number = TypeVar("Number")


def real_numbers(key: str, given: ArrayLike, name: str | None = None) -> Array:
    """Return a float64 copy of an array; errors name its ``key`` and, if it has one, its file ``name``.

    Raises SpecError for entries that are masked, not real (booleans, text and complex numbers, also without
    an imaginary part) or not finite, and for rows of unequal lengths.

    >>> real_numbers("arrays.y", [1.0, float("nan")])
    Traceback (most recent call last):
    numerics.errors.SpecError: arrays.y: is nan at index (1,) (entries that are not finite: 1) (accepted: ...
    """
    if isinstance(given, np.ma.MaskedArray) and np.ma.getmaskarray(given).any():
        count = int(np.ma.getmaskarray(given).sum())
        raise SpecError(
            key, name, f"has {count} masked entries, which have no value", "an array without a mask"
        )
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise SpecError(
            key,
            name,
            f"is not an array: {' '.join(str(error).split())[:100]}",
            "real numbers, all rows equally long",
        ) from None
    exact = array.dtype.kind == "O" and array.size and all(map(_is_real, array.flat))
    if array.dtype.kind not in "iuf" and not exact:
        raise SpecError(key, name, f"holds {array.dtype} entries, which are not real numbers", "real numbers")
    try:
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float64)
    except OverflowError:
        raise SpecError(
            key, name, "overflows: an integer is larger than any float", "finite numbers"
        ) from None
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        place = tuple(int(index) for index in bad[0])
        raise SpecError(
            key,
            name,
            f"is {numbers[place]} at index {place} (entries that are not finite: {len(bad)})",
            "finite numbers",
        )
    return numbers


def symmetric_positive(
    key: str, k: Array, precision: float, name: str | None = None, makes: str = ""
) -> Array:
    """Return the symmetric part ``(k + k^T)/2`` of a square matrix ``k`` (n, n) that is not empty.

    ``precision`` is the relative rounding error of the entries of ``k``; a value below that of float64, such
    as 0, counts as that of float64. Error messages name the ``key`` and the file ``name`` of the matrix, None
    without a file, and begin with ``makes``, such as "makes a kernel that ". Raises SpecError for a matrix
    that is not symmetric positive semidefinite beyond rounding.
    """
    # `eps` is the relative rounding error of the entries. It is at least that of float64, because the
    # eigenvalues below are computed in float64.
    eps = max(precision, float(np.finfo(np.float64).eps))
    scale = float(np.abs(k).max())
    asymmetry = float(np.abs(k - k.T).max())
    if asymmetry > eps * len(k) * scale:
        row, column = (int(i) for i in np.unravel_index(np.abs(k - k.T).argmax(), k.shape))
        raise SpecError(
            key,
            name,
            f"{makes}is not symmetric: its entries at ({row}, {column}) and ({column}, {row}) differ by "
            f"{asymmetry:.6g}",
            "a symmetric matrix",
        )
    k = k / 2 + k.T / 2
    eigenvalues = np.linalg.eigvalsh(k)
    tolerance = eps * len(k) * max(float(eigenvalues[-1]), 0.0)
    if eigenvalues[0] < -tolerance:
        raise SpecError(
            key,
            name,
            f"{makes}is not positive semidefinite: its most negative eigenvalue is {eigenvalues[0]:.6g} "
            f"(rounding errors explain at most {-tolerance:.2g})",
            "a positive semidefinite matrix",
        )
    return k


def precision_of(array: ArrayLike) -> float:
    """Return the machine epsilon of a floating-point array; 0 for other types, such as integers."""
    dtype = np.asarray(array).dtype
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


def finite_number(key: str, given: object) -> float:
    """Return a number as a float; raise SpecError if it is not a finite real number.

    Error messages name its ``key``. Integers, floats and fractions of Python, and real numbers of NumPy and
    SymPy are accepted. Booleans and texts such as "0.1" are not.

    >>> finite_number("numbers.eta", "fast")
    Traceback (most recent call last):
    numerics.errors.SpecError: numbers.eta = "fast": is not a number (accepted: a finite real number)
    """
    accepted = "a finite real number"
    number = given.item() if isinstance(given, np.ndarray) and given.ndim == 0 else given
    if not _is_real(number):
        shown = given if isinstance(given, bool | str | int | float | complex | list | tuple) else repr(given)
        raise SpecError(key, shown, "is not a number", accepted)
    try:
        value = float(number)  # type: ignore[arg-type]
    except OverflowError:
        value = float("inf")
    if not np.isfinite(value):
        raise SpecError(key, value, "is not finite", accepted)
    return value


def require_kernel(key: str, kernel: Array, precision: float) -> Array:
    """Return the symmetric part of a kernel, whose first half of axes are rows and second half columns.

    ``precision`` is the relative rounding error of its entries. Raises SpecError if both halves of the shape
    differ, and for a kernel that is empty or not symmetric positive semidefinite beyond rounding.
    """
    half = kernel.shape[: kernel.ndim // 2]
    if kernel.shape != (*half, *half) or kernel.size == 0 or kernel.ndim == 0:
        raise SpecError(
            key, None, f"has shape {kernel.shape}", "shape (n, n), or (n, m, n, m) for pairs of indices"
        )
    matrix = kernel.reshape(prod(half), -1)
    return symmetric_positive(key, matrix, precision).reshape(kernel.shape)


ROUNDING = 1e3 * float(np.finfo(np.float64).eps)
"""Relative rounding error that is allowed in the entries of kernels of data that Python functions take."""


def by_name(key: str, values: Mapping[Any, Number]) -> dict[str, Number]:
    """Return numbers by the names of their symbols or functions; ``key`` names the mapping in messages.

    Raises SpecError for a name with two different values, for example one by symbol and one by text.

    >>> from sympy import Symbol
    >>> by_name("values", {Symbol("eta"): 0.1, "P": 2})
    {'eta': 0.1, 'P': 2}
    """
    named: dict[str, Number] = {}
    for symbol, value in values.items():
        name = getattr(symbol, "__name__", str(symbol))  # functions have the former
        if name in named and named[name] != value:
            reason = f"is given a second time, with another value than {named[name]}"
            raise SpecError(f"{key}.{name}", str(value), reason, "one value for each name")
        named[name] = value
    return named


def given_arrays(program: Program, data: Mapping[str, Any], key: str = "data") -> dict[str, Array]:
    """Return the arrays of data of a program by name, as float64; error messages name them ``key.NAME``.

    Raises SpecError for entries that are not finite real numbers, and for a kernel of the program that is not
    symmetric positive semidefinite beyond rounding: ROUNDING, or the precision of the given array if that is
    coarser. Kernels are returned symmetrised.

    >>> from derive.program import mlp
    >>> given_arrays(mlp(1), {"K_x": [[1, 3], [0, 1]]})
    Traceback (most recent call last):
    numerics.errors.SpecError: data.K_x: is not symmetric: its entries at (0, 1) and (1, 0) differ by 3 ...
    """
    checked = {name: real_numbers(f"{key}.{name}", array) for name, array in data.items()}
    for name in {x.kernel for x in program.given} & checked.keys():
        precision = max(precision_of(data[name]), ROUNDING)
        checked[name] = require_kernel(f"{key}.{name}", checked[name], precision)
    return checked


def given_times(times: ArrayLike, *, steps: bool) -> Array:
    """Return output times, shape (times,), of a rule in steps or, if ``steps`` is false, of a flow.

    Raises SpecError for an empty or nested list, for times that are not finite, do not increase or are
    negative, and for a time of a rule in steps that is not an integer.

    >>> given_times([0.0, -1.0], steps=False)
    Traceback (most recent call last):
    numerics.errors.SpecError: times = [0.0, -1.0]: must rise, from 0 or later (accepted: rising times ...
    """
    checked = real_numbers("times", times)
    if checked.ndim != 1 or not len(checked):
        raise SpecError("times", None, f"has shape {checked.shape}", "a list of times")
    check_times("times", checked.tolist(), steps)
    return checked


def _is_real(number: object) -> bool:
    """Return whether the value is a real number of Python, NumPy or SymPy, not a boolean."""
    if isinstance(number, bool | np.bool_ | str):
        return False
    # Some real numbers of SymPy, such as pi and sqrt(2), are not instances of Python's class Real. Their
    # attributes is_number and is_real are both true.
    exact = getattr(number, "is_number", False) and getattr(number, "is_real", False)
    return isinstance(number, Real) or bool(exact)
