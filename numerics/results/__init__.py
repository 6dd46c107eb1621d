"""Labelled results: names and dimensions of variables, and their storage as NetCDF and JSON.

    result = dataset({"train_loss": loss, "G": g}, times=times, spec=experiment.text, seed=0)
    save(result, "out.nc"); load("out.nc"); to_json(result)

Solvers, simulations and expansions make results here.  A :class:`Result` holds the same as a dataset without
importing xarray, which takes longer than many solutions.
"""

from __future__ import annotations

import errno
import io
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numerics.errors import SMALLER, Diverged, remedy_at_start, require_probability
from numerics.names import (
    BACKWARD_RESPONSE,
    C_FIELD,
    C_GRADIENT,
    C_LEARNT,
    FEATURE_KERNEL,
    FORWARD_RESPONSE,
    GRADIENT_KERNEL,
    OUTPUT,
)

if TYPE_CHECKING:
    import xarray as xr


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; move it onto `path` at the end, or remove it on any failure.

    An interrupt is a failure too.  A file at `path` is unchanged until the move, which comes after the new
    file is written to the disk.  If `path` is a link, the file that it points to is replaced.  The new name
    keeps the suffix, by which some writers choose the format.  Raises FileExistsError if there is something
    else than a file at `path`, such as a folder or a device.
    """
    path = Path(path).resolve()
    if path.exists() and not path.is_file():  # or a device such as /dev/null would become a file
        raise FileExistsError(errno.EEXIST, "is not a regular file", str(path))
    beside = _beside(path)
    try:
        with _naming(path, beside):
            yield beside
            _sync(beside)
            if path.exists():
                shutil.copymode(path, beside)
            os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` to write to.

    At the end its files are moved to the folder `path`, which is made if it does not exist, and where they
    replace files of the same names.  If writing fails, no file is moved.
    """
    path = Path(path).resolve()
    beside = _beside(path.with_suffix(""))
    try:
        with _naming(path, beside):
            beside.mkdir()
            yield beside
            for file in beside.iterdir():
                _sync(file)
            if not path.exists():
                with suppress(OSError):  # ignored, because another run may have created the folder meanwhile
                    os.rename(beside, path)
            if beside.exists():
                for file in beside.iterdir():
                    os.replace(file, path / file.name)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _naming(path: Path, beside: Path) -> Iterator[None]:
    """Replace the temporary name ``beside`` by ``path`` in errors of files that the ``with`` block raises.

    An error without a name of a file gets ``path``, too.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename).startswith(str(beside)):
            error.filename = str(path)
        raise


def _sync(path: Path) -> None:
    """Wait until the file is written to the disk."""
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _beside(path: Path) -> Path:
    """Return an unused temporary name in the folder of ``path``, with the same suffix."""
    return path.with_name(f".dmft-{os.urandom(6).hex()}.part{path.suffix}")


STDERR, SYSTEMATIC = "_stderr", "_systematic"
"""Suffixes of the standard error of a variable, and of a bound on its bias from sampled paths."""
VARIANCE, SHIFT = "_variance", "_shift"
"""Suffixes of N times the variance over networks of width N, and of N times the difference of their mean from
the variable: both at equal times, to leading order in 1/N."""
LARGEST = "largest_value"
"""Attribute of a variable cut to some of its times: its largest absolute value at all times."""
TRACE = "_trace"
"""Suffix of the trace of a kernel: its sum over equal samples."""

AUTHORED = "authored"
"""Attribute of variables named by the program and not by a role: that name."""
LOSSES = ("train_loss", "test_loss")
BY_SAMPLE = frozenset({OUTPUT, "error", "test_f", "test_error", "tangent_kernel"})
"""Outputs, errors and their kernel, whose indices are samples and channels."""
RUNAWAY = 1e8
"""Factor by which a loss may exceed the larger of 1 and its start; beyond it the dynamics diverged."""


@dataclass(frozen=True)
class Variable:
    """Description of a variable of results: its dimensions, and ``long_name`` in words and symbols.

    ``dims`` are the dimensions with one output, and ``channels`` those with several outputs. ``nonlinear``
    holds the dimensions in a nonlinear network, first those with one output, then those with several.
    ``channels`` and ``nonlinear`` are empty if the dimensions do not differ.
    """

    dims: tuple[str, ...]
    long_name: str
    channels: tuple[str, ...] = ()
    """Dimensions with several outputs, if they differ."""
    nonlinear: tuple[tuple[str, ...], ...] = ()
    """Dimensions of a nonlinear network with one output and with several, if they differ."""


LAYERED = ("layer", "time", "time_")
TWO_TIMES = ("time", "time_")
PAIRS = (*LAYERED, "sample", "sample_")

VARIABLES: Mapping[str, Variable] = {
    "train_loss": Variable(("time",), "training loss: mean over samples of {loss}"),
    "mean_square_error": Variable(
        ("time",), "mean over training samples of the square of target less output"
    ),
    "test_loss": Variable(("time",), "test loss: mean over test points of {loss}"),
    **{
        f"test_loss_{name}": Variable(("time",), f"part of the test loss that comes from {words}")
        for name, words in (
            ("bias", "the target: what is not learnt yet, in the mean over networks and data"),
            ("width", "the initial weights: limited width"),
            ("data", "the samples drawn: limited data"),
            ("noise", "the noise of the labels: its square, and what has been fitted of it"),
        )
    },
    "error": Variable(
        ("time", "sample"), "error Delta_mu(t) = y_mu - f_mu(t)", ("time", "sample", "channel")
    ),
    OUTPUT: Variable(("time", "sample"), "output f_mu(t)", ("time", "sample", "channel")),
    "test_f": Variable(
        ("time", "test_sample"), "prediction f(t) on test points", ("time", "test_sample", "channel")
    ),
    "test_error": Variable(
        ("time", "test_sample"), "error y - f(t) on test points", ("time", "test_sample", "channel")
    ),
    FEATURE_KERNEL: Variable(
        ("layer", "time", "time_", "sample", "sample_"), "feature kernel Phi^l_{mu alpha}(t,s); H^l if linear"
    ),
    "Phi_trace": Variable(LAYERED, "sum over samples of Phi^l_{mu mu}(t,s)"),
    GRADIENT_KERNEL: Variable(
        LAYERED,
        "gradient kernel G^l(t,s), of nonlinear networks G^l_{mu alpha}(t,s)",
        (*LAYERED, "channel", "channel_"),
        (PAIRS, (*LAYERED, "sample", "channel", "sample_", "channel_")),
    ),
    "G_trace": Variable(LAYERED, "sum over samples (and outputs) of G^l_{mu mu}(t,s)"),
    FORWARD_RESPONSE: Variable(
        (*LAYERED, "sample"),
        "response A^l_mu(t,s) of phi(h^l_mu(t)) to r^l(s), of nonlinear networks r^l_alpha(s), / gamma0",
        (*LAYERED, "sample", "channel"),
        (PAIRS, (*PAIRS, "channel_")),
    ),
    BACKWARD_RESPONSE: Variable(
        (*LAYERED, "sample"),
        "response B^l_mu(t,s) of g^{l+1}(t), of nonlinear networks g^{l+1}_mu(t), to u^{l+1}(s), / gamma0",
        (*LAYERED, "channel", "sample"),
        (PAIRS, (*LAYERED, "sample", "channel", "sample_")),
    ),
    "tangent_kernel": Variable(
        ("time", "time_", "sample", "sample_"),
        "tangent kernel K_{mu alpha}(t,s), summed over layers",
        ("time", "time_", "sample", "channel", "sample_", "channel_"),
    ),
    "tangent_kernel_trace": Variable(TWO_TIMES, "sum over samples of K_{mu mu}(t,s)"),
    **{
        name: Variable(dims, long_name, (*dims, "channel", "channel_"))
        for name, dims, long_name in (
            (C_LEARNT, TWO_TIMES, "correlation of v(t) and v(s)"),
            ("C_Delta", TWO_TIMES, "correlation of the errors"),
            ("C_h0", TWO_TIMES, "correlation of h^0(t) and h^0(s)"),
            (C_FIELD, LAYERED, "correlation of h^l(t) and h^l(s)"),
            (C_GRADIENT, LAYERED, "correlation of g^l(t) and g^l(s)"),
            ("R_hr", LAYERED, "response of h^l(t) to r^l(s)"),
            ("R_gu", LAYERED, "response of g^l(t) to u^l(s)"),
            ("R_Delta", TWO_TIMES, "response of the error to its source, the population error"),
            ("R_vu", TWO_TIMES, "response of v(t) to u^0(s)"),
            ("R_h0r0", TWO_TIMES, "response of h^0(t) to r^0(s)"),
        )
    },
}


SUFFIX_MEANINGS = {
    VARIANCE: "N times the variance over networks",
    SHIFT: "N times the shift of the mean over networks",
    STDERR: "standard error",
    SYSTEMATIC: "systematic error, at most,",
}
"""Meaning of each suffix, in words."""


def base_name(name: str) -> str:
    """Return the name of the variable to which an error, a bound on the bias, a variance or a shift belongs.

    A name without such a suffix is returned unchanged.

    >>> base_name("train_loss_stderr"), base_name("f_variance")
    ('train_loss', 'f')
    """
    without_errors = name.removesuffix(STDERR).removesuffix(SYSTEMATIC)
    return without_errors.removesuffix(VARIANCE).removesuffix(SHIFT)


def is_correction(name: str) -> bool:
    """Return whether the name is that of a variance or shift of order 1/N, or of the error of one."""
    return name.removesuffix(STDERR).removesuffix(SYSTEMATIC).endswith((VARIANCE, SHIFT))


def dimensions(name: str, count: int, nonlinear: bool = False, positions: bool = False) -> tuple[str, ...]:
    """Return the names of the dimensions of the variable ``name``, of which there are ``count``.

    The number decides between one output and several, for which dimensions are added; if no choice has this
    number, those for one output are returned. A ``nonlinear`` network may have other dimensions. Variances
    and shifts of networks do not have the second time. Where units of a layer have ``positions``, as on a
    ring, variables of layers, except traces, may have dimensions of positions: one after each sample
    dimension, or two at the end without samples. Raises KeyError for an unknown name.

    >>> dimensions("error", 2), dimensions("error_stderr", 3)
    (('time', 'sample'), ('time', 'sample', 'channel'))
    >>> dimensions("Phi", 7, positions=True)
    ('layer', 'time', 'time_', 'sample', 'position', 'sample_', 'position_')
    >>> dimensions("tangent_kernel_variance", 3)
    ('time', 'sample', 'sample_')
    """
    variable = VARIABLES[base_name(name)]
    choices = (*(variable.nonlinear if nonlinear else ()), variable.dims, variable.channels)
    if is_correction(name):
        choices = tuple(tuple(dim for dim in dims if dim != "time_") for dims in choices)
    if positions and "layer" in variable.dims and not base_name(name).endswith(TRACE):
        # Even if units have positions, some kernels do not depend on them. Dimensions with and without
        # positions are therefore both possible.
        placed = tuple(_placed(dims) for dims in choices)
        choices = (
            tuple(x for pair in zip(placed, choices, strict=True) for x in pair)
            if nonlinear
            else (*placed, *choices)
        )
    return next((dims for dims in choices if len(dims) == count), choices[0])


def _placed(dims: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dimensions ``dims`` of a variable of layers with those of positions of units added.

    ``position`` follows ``sample``, and ``position_`` follows ``sample_``. Dimensions without samples get
    both at the end, because a kernel has two positions.
    """
    with_position = {"sample": ("sample", "position"), "sample_": ("sample_", "position_")}
    if "sample" not in dims:
        return (*dims, "position", "position_")
    return tuple(placed for dim in dims for placed in with_position.get(dim, (dim,)))


class Labelled(NamedTuple):
    """Array with the names of its dimensions and a dictionary of attributes."""

    dims: tuple[str, ...]
    values: np.ndarray[Any, Any]
    attrs: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Result:
    """Labelled arrays with coordinates and attributes, under the names that xarray uses.

    A function that reads only ``result[name].dims`` and ``.values``, ``data_vars``, ``coords`` and ``attrs``
    accepts a Result and a dataset alike: :func:`save`, :func:`to_json` and :func:`interval` do.
    """

    data_vars: Mapping[str, Labelled]
    coords: Mapping[str, Labelled]
    spec: str
    notes: Mapping[str, Any]
    """Attributes other than ``spec`` and provenance."""

    @classmethod
    def of(  # noqa: PLR0913 - each argument is one part of a result, all but values keyword-only
        cls,
        values: Mapping[str, ArrayLike],
        *,
        times: ArrayLike,
        spec: str,
        status: str = "ok",
        orders: ArrayLike | None = None,
        layers_at: ArrayLike | None = None,
        nonlinear: bool = False,
        positions: bool = False,
        held: NDArray[np.intp] | None = None,
        time_name: str | None = None,
        loss: str | None = None,
        authored: Mapping[str, tuple[tuple[str, ...], str]] | None = None,
        coordinates: Mapping[str, ArrayLike] | None = None,
        **attributes: object,
    ) -> Self:
        """Return a result with the names, dimensions, coordinates and attributes that all results share.

        Parameters
        ----------
        values : mapping of str to array
            Arrays by names of VARIABLES, or such a name with `_stderr`, `_systematic`, `_variance` or
            `_shift`. Each has the dimensions of its variable, of which a variance or shift has only one time.
        times : array, shape (T,)
            Times of the arrays.
        spec : str
            Text of the experiment.
        status : str
            "ok", or why the result is incomplete.
        orders : array, optional
            Powers of the parameter of a series: every array then has a leading dimension of this length.
        layers_at : array, optional
            Coordinates of layers; 1, 2, ... if not given.
        nonlinear, positions : bool
            Whether arrays have the dimensions of a nonlinear network, and of layers with positions.
        held : array of int, optional
            Indices in `times` of the times that the result keeps.  Values are checked at all times and then
            cut.
        time_name : {"step", "time"}, optional
            Long name of the coordinates of time.
        loss : str, optional
            Expression of the loss that is averaged, as text for attributes.
        authored : mapping, optional
            Dimensions and long name of each variable that is not in VARIABLES.
        coordinates : mapping, optional
            Coordinates along the dimensions of such variables.
        **attributes
            Further attributes (seed, wall_time_s, error estimates, ...); those that are None are left out.

        Returns
        -------
        Result
            The labelled arrays.

        Raises
        ------
        KeyError
            For a name that is neither in VARIABLES nor in `authored`.
        ValueError
            For a wrong number of dimensions.
        Diverged
            For a number that is not finite, attributes included, and for a loss that exceeds RUNAWAY times
            the larger of 1 and its initial value.  A variable may be NaN everywhere in some layers, but
            not in all layers: the response A is not defined in the last layer.  A coefficient may be NaN
            if it is unknown at all times.
        """
        lead = () if orders is None else ("order",)
        arrays: dict[str, Labelled] = {}
        sizes: dict[str, int] = {}
        for name, value in values.items():
            array = np.asarray(value)
            if base_name(name) in (authored or {}):
                dims, long_name = (authored or {})[base_name(name)]
                dims = tuple(x for x in dims if x != "time_" or not is_correction(name))
                attrs = {"long_name": _long_name(name, long_name), AUTHORED: base_name(name)}
            else:
                dims = lead + dimensions(name, array.ndim - len(lead), nonlinear, positions)
                attrs = _contract_attributes(name, loss)
            if array.ndim != len(dims):
                raise ValueError(f"{name} has shape {array.shape}, but its dimensions are {dims}")
            arrays[name] = Labelled(dims, array, attrs)
            sizes.update(zip(dims, array.shape, strict=True))
        every_time = np.asarray(times, dtype=np.float64)
        # Losses are checked first, so that the message names a loss if one has diverged.
        for name in sorted(arrays, key=lambda name: name not in LOSSES):
            _bounded(name, *arrays[name][:2], every_time)
        for key, note in attributes.items():
            if isinstance(note, float) and not math.isfinite(note):
                raise Diverged(
                    f"{key} is not finite, for example because numbers in its computation overflow; {SMALLER}"
                )
        notes = {
            key: _plain(x)
            for key, x in {"status": status, "loss": loss, **attributes}.items()
            if x is not None
        }
        held_times = every_time
        if held is not None:
            arrays = {name: _at_times(x, held, "bias" in notes) for name, x in arrays.items()}
            held_times = every_time[held]
        labels: dict[str, ArrayLike] = {
            "time": held_times,
            "time_": held_times,
            "layer": np.arange(1, sizes.get("layer", 0) + 1) if layers_at is None else layers_at,
            **{x: np.arange(sizes.get(x, 0)) for x in COUNTED},
            **(coordinates or {}),
        }
        present = {name: label for name, label in labels.items() if name in sizes or name == "time"}
        if orders is not None:
            present["order"] = orders
        named_times = {} if time_name is None else {x: {"long_name": time_name} for x in TWO_TIMES}
        coords = {x: Labelled((x,), np.asarray(a), named_times.get(x, {})) for x, a in present.items()}
        return cls(arrays, coords, spec, notes)

    @property
    def attrs(self) -> dict[str, Any]:
        """All attributes: the text of the experiment, the versions of the libraries, and ``notes``.

        The versions are looked up when this property is first read, because that takes longer than many
        solutions.
        """
        return {"spec": self.spec, **provenance(), **self.notes}

    def __getitem__(self, name: str) -> Labelled:
        return self.data_vars[name] if name in self.data_vars else self.coords[name]

    def __contains__(self, name: str) -> bool:
        return name in self.data_vars or name in self.coords

    def dataset(self) -> xr.Dataset:
        """Return the result as a dataset of xarray."""
        import xarray as xr

        at = {
            x: _labels(x, a.values.dtype.str, a.values.tobytes(), a.attrs.get("long_name", ""))
            for x, a in self.coords.items()
        }
        variables = {x: labels.variables[x] for x, labels in at.items()}
        indexes = {x: labels.xindexes[x] for x, labels in at.items()}
        return xr.Dataset(self.data_vars, xr.Coordinates(variables, indexes), self.attrs)


def _long_name(name: str, long_name: str) -> str:
    """Return the long name of the variable of results called ``name``.

    ``long_name`` is that of the variable without a suffix. A suffix such as ``_stderr`` puts its meaning in
    front, as in "standard error of the training loss".
    """
    for suffix, meaning in SUFFIX_MEANINGS.items():
        if suffix in name.removeprefix(base_name(name)):
            long_name = f"{meaning} of the {long_name}"
    return long_name


def _contract_attributes(name: str, loss: str | None) -> dict[str, str]:
    """Return the attributes of a variable of VARIABLES: its long name, and of a loss also its expression."""
    long_name = _long_name(name, VARIABLES[base_name(name)].long_name)
    if base_name(name) not in LOSSES:
        return {"long_name": long_name}
    words = "the program's loss" if loss is None else loss
    return {"long_name": long_name.format(loss=words), "loss": words}


@lru_cache(maxsize=256)
def _labels(dim: str, dtype: str, data: bytes, long_name: str) -> xr.Coordinates:
    """Return the coordinate of dimension ``dim`` for xarray, cached because xarray takes long to make it.

    ``data`` are its values as bytes, ``dtype`` is their type and ``long_name`` its description.
    """
    import xarray as xr

    attrs = {"long_name": long_name} if long_name else {}
    return xr.Coordinates({dim: xr.Variable(dim, np.frombuffer(data, dtype), attrs)})


def _at_times(x: Labelled, held: NDArray[np.intp], biased: bool) -> Labelled:
    """Return a variable at some of its times; ``held`` are the indices of these.

    Both times of a kernel are cut. With ``biased`` its largest absolute value at all times is kept as an
    attribute, because a bias is stated relative to it.
    """
    values, attrs = x.values, dict(x.attrs)
    if biased:
        attrs[LARGEST] = float(np.max(np.abs(values), initial=0.0, where=~np.isnan(values)))
    for axis, dim in enumerate(x.dims):
        if dim in TWO_TIMES:
            values = np.take(values, held, axis=axis)
    return Labelled(x.dims, values, attrs)


def at_times(result: xr.Dataset, held: NDArray[np.intp] | None) -> xr.Dataset:
    """Return a result at some of its output times; ``held`` are the indices of these, None keeps all.

    Both times of kernels are cut.

    >>> at_times(dataset({"train_loss": [1.0, 0.5, 0.3]}, times=range(3), spec=""), np.array([0, 2])).sizes
    Frozen({'time': 2})
    """
    return result if held is None else result.isel({x: held for x in TWO_TIMES if x in result.dims})


COUNTED = ("sample", "sample_", "test_sample", "channel", "channel_", "position", "position_")
"""Dimensions whose coordinate is 0, 1, ..."""


def dataset(values: Mapping[str, ArrayLike], **arguments: Any) -> xr.Dataset:
    """Return the result that :meth:`Result.of` makes of the same arguments, as a dataset of xarray.

    >>> result = dataset({"train_loss": [1.0, 0.5]}, times=[0.0, 1.0], spec="", seed=0)
    >>> result.train_loss.sel(time=1.0).item(), result.attrs["seed"]
    (0.5, 0)
    """
    return Result.of(values, **arguments).dataset()


def has_run_away(loss: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return at which times (T,) a loss exceeds RUNAWAY times the larger of 1 and its initial value."""
    return ~np.asarray(np.abs(loss) <= RUNAWAY * max(1.0, abs(loss[0])))


def _bounded(
    name: str, dims: tuple[str, ...], array: np.ndarray[Any, Any], times: NDArray[np.float64]
) -> None:
    """Raise Diverged if a variable has numbers that are not finite, or is a loss that has grown too much.

    ``dims`` are the dimensions of ``array``, ``times`` its output times. A loss may not exceed RUNAWAY times
    the larger of 1 and its initial value. A variable may be NaN everywhere in some layers, but not in all
    layers: the response A is not defined in the last layer. A coefficient of a series may be NaN if it is
    unknown at all times.
    """
    flat = array.ravel(order="K")
    if name not in LOSSES and np.isfinite(flat @ flat):
        return  # if the sum of squares is finite, all numbers are; the test is one pass over the array
    wrong, reason = np.isfinite(array), "is not finite"
    every = bool(wrong.all())
    np.logical_not(wrong, out=wrong)
    if "order" in dims and not every:
        wrong[[bool(np.isnan(x).all()) for x in array]] = False
    if "layer" in dims:
        layers = np.moveaxis(array, dims.index("layer"), 0)
        undefined = np.isnan(layers.reshape(len(layers), -1)).all(axis=1)
        if not undefined.all():
            np.moveaxis(wrong, dims.index("layer"), 0)[undefined] = False
    if not wrong.any() and name in LOSSES and dims == ("time",) and array.size:
        wrong, reason = has_run_away(array), f"has grown by more than a factor of {RUNAWAY:g}"
    if wrong.any():
        place = dict(zip(dims, np.argwhere(wrong)[0], strict=True))
        order = f" of order {place['order']}" if "order" in place else ""
        at = max(place.get("time", 0), place.get("time_", 0))
        steps = np.array_equal(times, np.arange(len(times)))
        when = "" if "time" not in place else f" at step {at}" if steps else f" at t = {times[at]:g}"
        start = "time" in place and at == 0
        raise Diverged(
            f"{name}{order} {reason}{when}; {remedy_at_start(array) if start else SMALLER}",
            start=start,
            step=at if "time" in place else None,
        )


def systematic(result: xr.Dataset | Result, name: str) -> NDArray[np.float64]:
    """Return a bound on the error of a variable beyond its noise, of the variable's shape.

    The bound is the variable ``*_systematic`` if it exists, else the attribute ``bias`` of the result times
    the largest absolute value of the variable, which is the same for all its entries; zero without both.
    Values that are not known (NaN) do not count. If the result was cut to some of its times, the largest
    value is that at all times.

    >>> result = dataset({"train_loss": [2.0, 1.0]}, times=[0.0, 1.0], spec="", bias=0.01)
    >>> systematic(result, "train_loss")
    array([0.02, 0.02])
    """
    if name + SYSTEMATIC in result:
        return np.asarray(result[name + SYSTEMATIC].values, dtype=float)
    values = np.abs(result[name].values)
    largest = result[name].attrs.get(LARGEST, np.max(values, initial=0.0, where=~np.isnan(values)))
    return np.full(values.shape, result.attrs.get("bias", 0.0) * float(largest))


def interval(result: xr.Dataset | Result, name: str, level: float = 0.95) -> NDArray[np.float64]:
    """Return half the width of a confidence interval of a Monte-Carlo estimate, of the variable's shape.

    The interval holds the true value with probability at least ``level``: it is the narrowest one for an
    error of Student's t times the standard error, plus a bias of either sign that is at most
    :func:`systematic`.  The number of replicas (of networks: ``seeds``) is an attribute of the result, or two
    without it.  Raises KeyError for a variable without standard errors, and SpecError for a ``level`` that is
    not between 0 and 1.

    >>> result = dataset({"train_loss": [1.0], "train_loss_stderr": [0.1]}, times=[0.0], spec="", replicas=8)
    >>> interval(result, "train_loss").round(3)
    array([0.236])
    >>> interval(result.assign_attrs(bias=0.02), "train_loss").round(3)
    array([0.239])
    """
    from scipy.special import stdtrit  # slow to import, and needed only for sampled variables

    require_probability("level", level)
    degrees = int(result.attrs.get("replicas", result.attrs.get("seeds", 2))) - 1
    bias = systematic(result, name)
    error = np.asarray(result[name + STDERR].values, dtype=float)
    if not bias.any():
        return np.asarray(stdtrit(degrees, (1 + level) / 2) * error)
    with np.errstate(divide="ignore", invalid="ignore"):
        # `near` is for a bias of at most 5 standard errors, the end of the table of `_widths`. With a larger
        # bias the exact value can practically lie outside of the interval at one end only, so that `wide` has
        # a one-sided quantile.
        wide = bias + stdtrit(degrees, level) * error
        near = np.interp(bias / error, *_widths(degrees, level), right=np.nan) * error
    return np.asarray(np.where(np.isnan(near), wide, near))


@cache
def _widths(degrees: int, level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return biases b and half-widths w of confidence intervals, with ``P(|T + b| <= w) = level``.

    Both are in standard errors; T is Student's t with ``degrees`` degrees of freedom, and w is found by
    bisection.
    """
    from scipy.special import stdtr, stdtrit

    b = np.linspace(0.0, 5.0, 501)
    low, high = b.copy(), b + stdtrit(degrees, (1 + level) / 2)
    for _ in range(50):
        w = (low + high) / 2
        small = stdtr(degrees, w - b) - stdtr(degrees, -w - b) < level
        low, high = np.where(small, w, low), np.where(small, high, w)
    return b, (low + high) / 2


@cache
def provenance() -> Mapping[str, str]:
    """Return the versions that computed a result, as attributes ``version`` and ``libraries``.

    ``version`` is that of this package, in a checkout with its commit, and with ``.changed`` if files differ
    from the commit.  ``libraries`` are the versions of Python and of the dependencies.

    >>> sorted(provenance())
    ['libraries', 'version']
    """
    from importlib.metadata import requires  # slow to import, and only results need it
    from importlib.metadata import version as installed

    package, root = "dmft-derive", Path(__file__).parents[2]
    version = installed(package)
    if (root / ".git").exists():
        git = ["git", "--no-optional-locks", "-C", str(root), "describe"]
        words = ["--always", "--exclude=*", "--abbrev=12", "--dirty=.changed"]
        with suppress(OSError):  # raised if git is not installed: the version is then without a commit
            described = subprocess.run([*git, *words], capture_output=True, text=True, check=False)
            version += f"+g{described.stdout.strip()}" if described.returncode == 0 else ""
    needed = [re.split(r"[^\w.-]", x)[0] for x in requires(package) or () if "extra ==" not in x]
    libraries = ", ".join(f"{x} {installed(x)}" for x in sorted(needed))
    return MappingProxyType(
        {"version": version, "libraries": f"Python {platform.python_version()}, {libraries}"}
    )


def save(result: xr.Dataset | Result, path: str | Path) -> None:
    """Write a result as NetCDF (h5netcdf), with a checksum of each array of numbers.

    xarray reads the file.  On any failure, an interrupt included, `path` is unchanged.  The file is made in
    memory first, because the HDF5 library cannot recover from a full disk.
    """
    import h5netcdf
    from h5py import string_dtype

    memory, every = io.BytesIO(), {str(k): x for y in (result.coords, result.data_vars) for k, x in y.items()}
    with h5netcdf.File(memory, "w") as file:
        file.attrs.update(result.attrs)
        others = [name for name, x in every.items() if name in result.coords and name not in x.dims]
        # The attribute "coordinates" tells programs that read the file which variables are coordinates. Those
        # that are named like a dimension need no mention.
        if others:
            file.attrs["coordinates"] = " ".join(others)
        file.dimensions = {
            str(d): n for x in every.values() for d, n in zip(x.dims, x.values.shape, strict=True)
        }
        for name, x in every.items():
            a, attrs, kind = x.values, dict(x.attrs), x.values.dtype.kind
            if kind == "b":  # NetCDF has no booleans, which are stored as integers
                a, attrs["dtype"] = a.astype("i1"), "bool"
            numbers = kind in "biuf"  # the rest are strings of variable length, written without a checksum
            variable = file.create_variable(
                name,
                x.dims,
                a.dtype if numbers else string_dtype(),
                a if numbers else a.astype(object),
                fletcher32=bool(numbers and a.size and x.dims),
            )
            variable.attrs.update(attrs)
    with replacing(path) as beside:
        beside.write_bytes(memory.getbuffer())


def load(path: str | Path) -> xr.Dataset:
    """Return a saved result, read into memory.

    Raises OSError if there is no such file, or if a variable does not fit its checksum.
    """
    import xarray as xr

    return xr.load_dataset(path, engine="h5netcdf")


def to_json(result: xr.Dataset | Result) -> dict[str, Any]:
    """Return the dictionary that `--json` prints: attributes, `time`, and variables that depend on time only.

    For a series, `order` and the coefficients, which depend on time and order, are included.  Numbers that
    are not finite become None.

    >>> to_json(dataset({"train_loss": [1.0, 0.5]}, times=[0.0, 1.0], spec=""))["train_loss"]
    [1.0, 0.5]
    """
    curves = {
        str(name): _listed(array.values)
        for name, array in result.data_vars.items()
        if set(array.dims) <= {"time", "order"}
    }
    labels = {str(name): _listed(result[name].values) for name in ("order", "time") if name in result.coords}
    attributes = {str(key): _listed(np.asarray(value)) for key, value in result.attrs.items()}
    return {**attributes, **labels, **curves}


def _plain(value: object) -> object:
    """Return a boolean as 0 or 1, because NetCDF has no booleans; other values unchanged."""
    return int(value) if isinstance(value, bool | np.bool_) else value


def _listed(array: np.ndarray[Any, Any]) -> Any:
    """Return an array as nested lists, with None in place of numbers that are not finite."""

    def known(item: Any) -> Any:
        if isinstance(item, list):
            return [known(part) for part in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return known(array.tolist())
