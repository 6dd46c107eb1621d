"""Arrays of sampled paths in NumPy's memory or on a graphics card through PyTorch, by the array API.

:class:`Device` makes arrays, copies them to and from NumPy, and compiles SymPy expressions for them. Arrays
with an axis of sampled paths, and the factors of the covariances from which paths are drawn, stay on the
device; order parameters and kernels stay in NumPy. Solvers use one code path for all devices, with the
namespace of their arrays; this module has the functions that the array API does not define.
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
"""Array in double precision in the namespace of a device."""

NAMES = {"fully_qualified_modules": False, "inline": True, "allow_unknown_functions": True}
"""Settings of SymPy's printer: functions of SciPy, which is slow to import, are imported one by one."""

DEVICE = "solver.device"
"""Key of the experiment file that names the device."""


@dataclass(frozen=True)
class Device:
    """Device for arrays of sampled paths.

    Attributes
    ----------
    namespace : module
        Namespace of the array API, such as ``numpy``.
    name : str
        Name of the device in this namespace, such as ``"cpu"`` or ``"cuda"``.
    memory : int
        Bytes that one operation may use.
    """

    namespace: Any
    name: str
    memory: int = 2**30

    @property
    def is_numpy(self) -> bool:
        """Whether the arrays are NumPy arrays."""
        return self.namespace is np

    def empty(self, *shape: int) -> PathArray:
        """Return an uninitialised array of shape ``shape`` on the device."""
        if self.is_numpy:
            return np.empty(shape)
        return self.namespace.empty(shape, dtype=self.namespace.float64, device=self.name)

    def zeros(self, *shape: int) -> PathArray:
        """Return an array of zeros of shape ``shape`` on the device."""
        if self.is_numpy:
            return np.zeros(shape)
        return self.namespace.zeros(shape, dtype=self.namespace.float64, device=self.name)

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> PathArray:
        """Return an array or a number broadcast to ``shape``; it may be a view that must not be written to.

        An array that has this shape is returned as it is, because ``numpy.broadcast_to`` is slow in that case
        too.
        """
        if np.shape(x) == shape:
            return x
        if self.is_numpy:
            return np.broadcast_to(x, shape)
        return self.namespace.broadcast_to(x if np.ndim(x) else self.put(np.array([x])), shape)

    def put(self, x: Any) -> PathArray:
        """Copy a NumPy array to the device; return a number unchanged.

        The device of NumPy returns the array itself.
        """
        if self.is_numpy or not np.ndim(x):
            return x
        return self.namespace.asarray(np.array(x, dtype=np.float64), device=self.name)

    def take(self, x: PathArray) -> Array:
        """Copy an array from the device to NumPy; the device of NumPy returns the array itself."""
        return x if self.is_numpy else np.asarray(x.cpu())

    def overlaid(self, x: PathArray, shape: tuple[int, ...]) -> PathArray:
        """Return a view of shape ``shape`` of an array that has length 1 along axis 1.

        ``shape`` differs from that of the array only along this axis. The only entry along it is repeated
        without a copy: all positions share the same memory, so that writing to one writes to all.
        """
        if self.is_numpy:
            return as_strided(x, shape, (x.strides[0], 0, *x.strides[2:]))
        return x.expand(shape)

    def quantiles(self, x: PathArray) -> PathArray:
        """Return the numbers that a standard normal variable does not exceed with the probabilities ``x``."""
        if self.is_numpy:
            from scipy.special import ndtri  # slow to import, and most commands do not use it

            return ndtri(x)
        return self.namespace.special.ndtri(x)

    def function(self, slots: tuple[Symbol, ...], e: Expr) -> Any:
        """Compile an expression in the symbols ``slots`` as a function of arrays on the device.

        The function takes one array for each symbol, in the order of ``slots``. For a constant expression it
        returns a number. Raises Unserved for functions that PyTorch does not have.
        """
        e = e.replace(KroneckerDelta, lambda a, b: Piecewise((1, Equal(a, b)), (0, True)))
        if self.is_numpy:
            return _on_numpy(slots, e)
        try:
            return lambdify(slots, _plain(e), "torch", cse=True)
        except NotImplementedError as reason:
            raise Unserved(
                f"PyTorch does not have a function in {e}: {reason}; use solver.device = 'cpu'"
            ) from None


CPU = Device(np, "cpu")


def namespace_of(x: PathArray) -> Any:
    """Return the module of the array API to which an array belongs, such as ``numpy``.

    For a NumPy array it is ``numpy`` itself, because the wrapper of ``array_api_compat`` takes 0.1 s to
    import.
    """
    return np if is_numpy_array(x) else array_namespace(x)


def permuted(x: PathArray, axes: tuple[int, ...]) -> PathArray:
    """Return an array with its axes in the order ``axes`` (``permute_dims`` of the array API)."""
    return x.transpose(axes) if is_numpy_array(x) else array_namespace(x).permute_dims(x, axes)


def transposed(x: PathArray) -> PathArray:
    """Return matrices with the last two axes exchanged."""
    return x.swapaxes(-1, -2)


def device_named(name: str) -> Device:
    """Return the device ``"cpu"`` (NumPy arrays) or ``"cuda"`` (PyTorch arrays).

    Raises SpecError for ``"cuda"`` if PyTorch is not installed or finds no graphics card.

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
    """Return a device of PyTorch, which may be ``"cpu"``; raise ImportError if PyTorch is not installed."""
    from torch import cuda, empty

    is_graphics_card = name.startswith("cuda")
    # On a graphics card an operation may need three times the bytes that it needs in NumPy, where arrays of
    # zeros take no memory until they are written. Only a third of the free memory of a graphics card is
    # therefore counted as available.
    memory = cuda.mem_get_info(name)[0] // 3 if is_graphics_card else CPU.memory
    return Device(array_namespace(empty(0)), name, memory)


@lru_cache(maxsize=1024)
def _on_numpy(slots: tuple[Symbol, ...], e: Expr) -> Any:
    """Return an expression as a function of NumPy arrays, one for each symbol in ``slots``.

    Functions are cached, so that an expression is compiled once.
    """
    return lambdify(slots, e, np, printer=SciPyPrinter(NAMES), cse=True)


def _plain(e: Expr) -> Expr:
    """Rewrite an expression so that PyTorch can evaluate it.

    Constants that are not rational become decimal numbers, and ``Max``, ``Heaviside`` and the like become
    cases, because functions of PyTorch take arrays and not numbers.
    """
    cases = e.rewrite(Piecewise) if not e.is_number else e
    return cases.replace(lambda x: x.is_number and not x.is_Rational, lambda x: x.evalf(17))
