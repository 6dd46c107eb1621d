"""The device that sampled paths are computed on: NumPy's memory, or a graphics card through PyTorch.

Order parameters and kernels stay in NumPy.  What has an axis of sampled paths, and the factors of the
covariances that they are drawn with, lie in NumPy's memory or on a device that PyTorch reaches, and are
computed there through the array API, with the namespace of their arrays: one code path, whatever the device.
Here is what the standard lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, is_numpy_array
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from sympy import Eq as Equal
from sympy import Expr, KroneckerDelta, Piecewise, Symbol, lambdify
from sympy.printing.numpy import SciPyPrinter

from numerics.errors import SpecError, Unserved

Array = NDArray[np.float64]
PathArray: TypeAlias = Any
"""An array of the device's namespace, float64."""

NAMES = {"fully_qualified_modules": False, "inline": True, "allow_unknown_functions": True}
"""How functions are written: of SciPy, which is slow to import, those are imported that an expression has."""

DEVICE = "solver.device"
"""The key of a file that names one."""


@dataclass(frozen=True)
class Device:
    """A namespace of the array API, which of its devices, and how many bytes are to be used at a time."""

    namespace: Any
    name: str
    memory: int = 2**30

    @property
    def is_numpy(self) -> bool:
        """Are its arrays NumPy's?"""
        return self.namespace is np

    def empty(self, *shape: int) -> PathArray:
        """An array with whatever was in it."""
        if self.is_numpy:
            return np.empty(shape)
        return self.namespace.empty(shape, dtype=self.namespace.float64, device=self.name)

    def zeros(self, *shape: int) -> PathArray:
        """An array of zeros."""
        if self.is_numpy:
            return np.zeros(shape)
        return self.namespace.zeros(shape, dtype=self.namespace.float64, device=self.name)

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> PathArray:
        """An array or a number in this shape; NumPy's takes long to find that there is nothing to do."""
        if np.shape(x) == shape:
            return x
        if self.is_numpy:
            return np.broadcast_to(x, shape)
        return self.namespace.broadcast_to(x if np.ndim(x) else self.put(np.array([x])), shape)

    def put(self, x: Any) -> PathArray:
        """A NumPy array or number on the device; numbers stay as they are."""
        if self.is_numpy or not np.ndim(x):
            return x
        return self.namespace.asarray(np.array(x, dtype=np.float64), device=self.name)

    def take(self, x: PathArray) -> Array:
        """An array of the device as NumPy's."""
        return x if self.is_numpy else np.asarray(x.cpu())

    def overlaid(self, x: PathArray, shape: tuple[int, ...]) -> PathArray:
        """``x``, of length one along axis 1, as ``shape``: all places along the axis are one, to write to."""
        if self.is_numpy:
            return as_strided(x, shape, (x.strides[0], 0, *x.strides[2:]))
        return x.expand(shape)

    def quantiles(self, x: PathArray) -> PathArray:
        """Normal numbers below which shares ``x`` of all lie."""
        if self.is_numpy:
            from scipy.special import ndtri  # most commands have no need of it

            return ndtri(x)
        return self.namespace.special.ndtri(x)

    def function(self, slots: tuple[Symbol, ...], e: Expr) -> Any:
        """``e`` of arrays of paths.  Raises Unserved for functions that PyTorch does not have."""
        e = e.replace(KroneckerDelta, lambda a, b: Piecewise((1, Equal(a, b)), (0, True)))
        if self.is_numpy:
            return _on_numpy(slots, e)
        try:
            return lambdify(slots, _plain(e), "torch", cse=True)
        except NotImplementedError as reason:
            raise Unserved(
                f"PyTorch lacks a function of {e}: {reason}; solver.device = 'cpu' has it"
            ) from None


CPU = Device(np, "cpu")


def namespace_of(x: PathArray) -> Any:
    """The namespace of an array; NumPy's is NumPy, as importing its wrapper takes a tenth of a second."""
    return np if is_numpy_array(x) else array_namespace(x)


def permuted(x: PathArray, axes: tuple[int, ...]) -> PathArray:
    """The axes in another order: ``permute_dims``, which NumPy has from its version 2 on."""
    return x.transpose(axes) if is_numpy_array(x) else array_namespace(x).permute_dims(x, axes)


def transposed(x: PathArray) -> PathArray:
    """Matrices with rows and columns exchanged."""
    return x.swapaxes(-1, -2)


def device_named(name: str) -> Device:
    """``"cpu"``, NumPy's arrays, or ``"cuda"``, PyTorch's.  Raises SpecError where there is none.

    >>> device_named("cpu").take(device_named("cpu").put(np.ones(2)))
    array([1., 1.])
    """
    if name == "cpu":
        return CPU
    try:
        from torch import cuda
    except ImportError:
        raise SpecError(DEVICE, name, "PyTorch is not installed", '"cpu", or installing torch') from None
    if not cuda.is_available():
        raise SpecError(DEVICE, name, "PyTorch finds no graphics card", '"cpu"')
    return torch_device(name)


def torch_device(name: str) -> Device:
    """A device of PyTorch, of which ``"cpu"`` is one too.  Raises ImportError where PyTorch is not there."""
    from torch import cuda, empty

    card = name.startswith("cuda")  # zeros take memory there, three times what is counted in NumPy
    return Device(array_namespace(empty(0)), name, cuda.mem_get_info(name)[0] // 3 if card else CPU.memory)


@lru_cache(maxsize=1024)
def _on_numpy(slots: tuple[Symbol, ...], e: Expr) -> Any:
    """``e`` of NumPy's arrays, compiled once."""
    return lambdify(slots, e, np, printer=SciPyPrinter(NAMES), cse=True)


def _plain(e: Expr) -> Expr:
    """``e`` with what SymPy prints of numbers alone as numbers, and jumps and extrema as cases: PyTorch's
    functions take no numbers."""
    cases = e.rewrite(Piecewise) if not e.is_number else e
    return cases.replace(lambda x: x.is_number and not x.is_Rational, lambda x: x.evalf(17))
