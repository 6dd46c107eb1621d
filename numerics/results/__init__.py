"""Labelled results: what every variable is called, which dimensions it has, and its way to NetCDF and JSON.

result = dataset({"train_loss": loss, "G": g}, times=times, spec=experiment.text, seed=0)
save(result, "out.nc"); load("out.nc"); to_json(result)

A :class:`Result` is the same without xarray, which takes longer to import than many a solution takes.
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
from importlib.metadata import requires
from importlib.metadata import version as installed
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numerics.errors import SMALLER, Diverged, remedy_at_start
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
    """Yields a name beside `path` to write to; moves it onto `path` at the end, or removes it on any failure.

    An interrupt is a failure too, and a file that stood at `path` before stays as it was until the move,
    which comes after everything is on the disk.  A link stays one, and what it points to is replaced.  The
    name keeps the suffix, by which some writers choose the format.
    """
    path = Path(path).resolve()
    if path.exists() and not path.is_file():  # a device would be gone
        raise FileExistsError(errno.EEXIST, "is no regular file", str(path))
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
    """The same for a folder, new or old: files are moved when all of them are there, or none is."""
    path = Path(path).resolve()
    beside = _beside(path.with_suffix(""))
    try:
        with _naming(path, beside):
            beside.mkdir()
            yield beside
            for file in beside.iterdir():
                _sync(file)
            if not path.exists():
                with suppress(OSError):  # another run has made it now
                    os.rename(beside, path)
            if beside.exists():
                for file in beside.iterdir():
                    os.replace(file, path / file.name)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _naming(path: Path, beside: Path) -> Iterator[None]:
    """Failures name ``path``, which was asked for, and not what is ``beside`` it."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename).startswith(str(beside)):
            error.filename = str(path)
        raise


def _sync(path: Path) -> None:
    """Waits until it is on the disk."""
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _beside(path: Path) -> Path:
    return path.with_name(f".dmft-{os.urandom(6).hex()}.part{path.suffix}")


STDERR, SYSTEMATIC = "_stderr", "_systematic"
"""What beside a variable its standard error is called, and what else it may be off by: of sampled paths, with
the noise of what shows it."""
VARIANCE, SHIFT = "_variance", "_shift"
"""What beside a variable N times its variance over networks of width N is called, and N times their mean
minus the variable: both at equal times, to leading order."""
LARGEST = "largest_value"
"""The attribute of a variable cut to some of its times: its largest size at all times."""
TRACE = "_trace"
"""What beside a kernel its sum over equal samples is called."""

AUTHORED = "authored"
"""The attribute of variables that stand under a name of the program, not of a role: that name."""
LOSSES = ("train_loss", "test_loss")
BY_SAMPLE = frozenset({OUTPUT, "error", "test_f", "test_error", "tangent_kernel"})
"""Outputs, errors and their kernel, of which results know the indices of samples and channels."""
RUNAWAY = 1e8
"""By how much a loss may outgrow the larger of 1 and itself at the start: beyond it the dynamics diverged."""


@dataclass(frozen=True)
class Variable:
    """The dimensions of a result variable and its name in words and in the papers' symbols."""

    dims: tuple[str, ...]
    long_name: str
    channels: tuple[str, ...] = ()
    """The dimensions with several outputs, if they are others."""
    nonlinear: tuple[tuple[str, ...], ...] = ()
    """The dimensions of a nonlinear network with one output and with several, if they are others."""


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


BESIDE = {
    VARIANCE: "N times the variance over networks",
    SHIFT: "N times the shift of the mean over networks",
    STDERR: "standard error",
    SYSTEMATIC: "systematic error, at most,",
}
"""What stands beside a variable, in words."""


def named(name: str) -> str:
    """The variable itself, of which this is an error, a variance or a shift.

    >>> named("train_loss_stderr"), named("f_variance")
    ('train_loss', 'f')
    """
    own = name.removesuffix(STDERR).removesuffix(SYSTEMATIC)
    return own.removesuffix(VARIANCE).removesuffix(SHIFT)


def is_correction(name: str) -> bool:
    """Return whether it is a variance or a shift, or an error of one."""
    return name.removesuffix(STDERR).removesuffix(SYSTEMATIC).endswith((VARIANCE, SHIFT))


def dimensions(name: str, count: int, nonlinear: bool = False, positions: bool = False) -> tuple[str, ...]:
    """The dimensions of a variable that has so many of them; those of one output if no other number fits.

    Those of a ``nonlinear`` network may be others; where layers have ``positions``, as on a ring, each sample
    of a variable of the layers is followed by one.  Raises KeyError for an unknown name.

    >>> dimensions("error", 2), dimensions("error_stderr", 3)
    (('time', 'sample'), ('time', 'sample', 'channel'))
    >>> dimensions("Phi", 7, positions=True)
    ('layer', 'time', 'time_', 'sample', 'position', 'sample_', 'position_')
    >>> dimensions("tangent_kernel_variance", 3)
    ('time', 'sample', 'sample_')
    """
    variable = VARIABLES[named(name)]
    own = (*(variable.nonlinear if nonlinear else ()), variable.dims, variable.channels)
    if is_correction(name):
        own = tuple(tuple(x for x in dims if x != "time_") for dims in own)
    if positions and "layer" in variable.dims and not named(name).endswith(TRACE):
        own = tuple(_placed(dims) for dims in own)
    return next((dims for dims in own if len(dims) == count), own[0])


def _placed(dims: tuple[str, ...]) -> tuple[str, ...]:
    """With a position after each sample; with two at the end where units are the same for all samples."""
    at = {"sample": ("sample", "position"), "sample_": ("sample_", "position_")}
    if "sample" not in dims:
        return (*dims, "position", "position_")
    return tuple(y for x in dims for y in at.get(x, (x,)))


class Labelled(NamedTuple):
    """An array, its dimensions and what is said of it."""

    dims: tuple[str, ...]
    values: np.ndarray[Any, Any]
    attrs: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Result:
    """Labelled arrays, their coordinates and attributes, by the names that xarray has for them.

    Whoever reads no more than ``result[name].dims`` and ``.values``, ``data_vars``, ``coords`` and ``attrs``
    takes this or a dataset: :func:`save`, :func:`to_json` and :func:`interval` do.
    """

    data_vars: Mapping[str, Labelled]
    coords: Mapping[str, Labelled]
    spec: str
    notes: Mapping[str, Any]
    """What is told apart from ``spec`` and provenance."""

    @classmethod
    def of(
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
        """A result with the contract's names, dimensions, coordinates and attributes.

        `values` maps names of VARIABLES, or such a name with `_stderr` or `_systematic`, to arrays of the
        dimensions given there, those of a `nonlinear` network or not, of one whose layers have `positions` or
        not; with `orders` (powers of gamma0) every array has that leading dimension.  Layers are at 1, 2, ...
        unless `layers_at` says where.  Further `attributes` (seed, wall_time_s, error estimates ...) are
        stored as they are, except those that are None.

        `held` are the positions in `times` of the times that the result holds, all by default: values are
        those of every time, are checked at every time, and are cut here.  `time_name` is "step"
        or "time", the name of the coordinates of time.  `loss` says which loss is averaged.
        `authored` has dimensions and a long name for each variable that is not in VARIABLES, `coordinates`
        the values along their dimensions.

        Raises KeyError for an unknown name, ValueError for a wrong number of dimensions, and
        :class:`~numerics.errors.Diverged` with the time for a number that is not finite (attributes too) and
        for a loss beyond RUNAWAY: no such number is a result.
        """
        lead = () if orders is None else ("order",)
        arrays: dict[str, Labelled] = {}
        sizes: dict[str, int] = {}
        for name, value in values.items():
            array = np.asarray(value)
            if named(name) in (authored or {}):
                dims, long_name = (authored or {})[named(name)]
                dims = tuple(x for x in dims if x != "time_" or not is_correction(name))
            else:
                long_name = VARIABLES[named(name)].long_name
                dims = lead + dimensions(name, array.ndim - len(lead), nonlinear, positions)
            if array.ndim != len(dims):
                raise ValueError(f"{name} has shape {array.shape}, but its dimensions are {dims}")
            for end, what in BESIDE.items():
                if end in name.removeprefix(named(name)):
                    long_name = f"{what} of the {long_name}"
            attrs = {"long_name": long_name}
            if named(name) in (authored or {}):
                attrs[AUTHORED] = named(name)
            if named(name) in LOSSES:
                words = "the program's loss" if loss is None else loss
                attrs = {"long_name": long_name.format(loss=words), "loss": words}
            arrays[name] = Labelled(dims, array, attrs)
            sizes.update(zip(dims, array.shape, strict=True))
        every_time = np.asarray(times, dtype=np.float64)
        for name in sorted(arrays, key=lambda name: name not in LOSSES):  # a loss says most
            _bounded(name, *arrays[name][:2], every_time)
        for key, note in attributes.items():
            if isinstance(note, float) and not math.isfinite(note):
                raise Diverged(f"{key} is not finite: numbers on the way have overflown; {SMALLER}")
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
        found = {name: label for name, label in labels.items() if name in sizes or name == "time"}
        if orders is not None:
            found["order"] = orders
        named_times = {} if time_name is None else {x: {"long_name": time_name} for x in TWO_TIMES}
        coords = {x: Labelled((x,), np.asarray(a), named_times.get(x, {})) for x, a in found.items()}
        return cls(arrays, coords, spec, notes)

    @property
    def attrs(self) -> dict[str, Any]:
        """All attributes; to find the versions of what was used takes longer than many a solution."""
        return {"spec": self.spec, **provenance(), **self.notes}

    def __getitem__(self, name: str) -> Labelled:
        return self.data_vars[name] if name in self.data_vars else self.coords[name]

    def __contains__(self, name: str) -> bool:
        return name in self.data_vars or name in self.coords

    def dataset(self) -> xr.Dataset:
        """The same as a dataset of xarray."""
        import xarray as xr

        at = {
            x: _labels(x, a.values.dtype.str, a.values.tobytes(), a.attrs.get("long_name", ""))
            for x, a in self.coords.items()
        }
        variables = {x: labels.variables[x] for x, labels in at.items()}
        indexes = {x: labels.xindexes[x] for x, labels in at.items()}
        return xr.Dataset(self.data_vars, xr.Coordinates(variables, indexes), self.attrs)


@lru_cache(maxsize=256)
def _labels(dim: str, dtype: str, data: bytes, long_name: str) -> xr.Coordinates:
    """A dimension's coordinate and index, which take longer to make than many a result, and never change."""
    import xarray as xr

    attrs = {"long_name": long_name} if long_name else {}
    return xr.Coordinates({dim: xr.Variable(dim, np.frombuffer(data, dtype), attrs)})


def _at_times(x: Labelled, held: NDArray[np.intp], biased: bool) -> Labelled:
    """The variable at some of the times; where a ``bias`` is relative to its largest value, that is kept."""
    values, attrs = x.values, dict(x.attrs)
    if biased:
        attrs[LARGEST] = float(np.max(np.abs(values), initial=0.0, where=~np.isnan(values)))
    for axis, dim in enumerate(x.dims):
        if dim in TWO_TIMES:
            values = np.take(values, held, axis=axis)
    return Labelled(x.dims, values, attrs)


def at_times(result: xr.Dataset, held: NDArray[np.intp] | None) -> xr.Dataset:
    """Return a dataset at the positions ``held`` of both of its times; all of it for None.

    >>> at_times(dataset({"train_loss": [1.0, 0.5, 0.3]}, times=range(3), spec=""), np.array([0, 2])).sizes
    Frozen({'time': 2})
    """
    return result if held is None else result.isel({x: held for x in TWO_TIMES if x in result.dims})


COUNTED = ("sample", "sample_", "test_sample", "channel", "channel_", "position", "position_")
"""Dimensions whose coordinate is 0, 1, ..."""


def dataset(values: Mapping[str, ArrayLike], **said: Any) -> xr.Dataset:
    """What :meth:`Result.of` makes of the same arguments, as a dataset of xarray.

    >>> result = dataset({"train_loss": [1.0, 0.5]}, times=[0.0, 1.0], spec="", seed=0)
    >>> result.train_loss.sel(time=1.0).item(), result.attrs["seed"]
    (0.5, 0)
    """
    return Result.of(values, **said).dataset()


def ran_away(loss: NDArray[np.float64]) -> NDArray[np.bool_]:
    """At which times the size of a loss exceeds that at the start, or one, by RUNAWAY."""
    return ~np.asarray(np.abs(loss) <= RUNAWAY * max(1.0, abs(loss[0])))


def _bounded(
    name: str, dims: tuple[str, ...], array: np.ndarray[Any, Any], times: NDArray[np.float64]
) -> None:
    """Refuse what is not finite, and losses that ran away.

    A of the last layer, which none reads, is NaN; so is a coefficient that is not known, at all times.
    """
    flat = array.ravel(order="K")
    if name not in LOSSES and np.isfinite(flat @ flat):
        return  # the usual case, in one reading
    wrong, found = np.isfinite(array), "is not finite"
    every = bool(wrong.all())
    np.logical_not(wrong, out=wrong)
    if "order" in dims and not every:
        wrong[[bool(np.isnan(x).all()) for x in array]] = False
    if named(name) == FORWARD_RESPONSE and "layer" in dims and not every:
        at = dims.index("layer")
        last = np.arange(array.shape[at]) == array.shape[at] - 1
        wrong &= ~(np.isnan(array) & last.reshape([-1 if k == at else 1 for k in range(array.ndim)]))
    if not wrong.any() and name in LOSSES and dims == ("time",) and array.size:
        wrong, found = ran_away(array), f"has grown by more than a factor of {RUNAWAY:g}"
    if wrong.any():
        place = dict(zip(dims, np.argwhere(wrong)[0], strict=True))
        order = f" of order {place['order']}" if "order" in place else ""
        at = max(place.get("time", 0), place.get("time_", 0))
        steps = np.array_equal(times, np.arange(len(times)))
        when = "" if "time" not in place else f" at step {at}" if steps else f" at t = {times[at]:g}"
        start = "time" in place and at == 0
        said = f"{name}{order} {found}{when}; {remedy_at_start(array) if start else SMALLER}"
        raise Diverged(said, start=start, step=at if "time" in place else None)


def systematic(result: xr.Dataset | Result, name: str) -> NDArray[np.float64]:
    """What a variable is off by at most, beyond noise: its ``*_systematic``, or for what has none of its own
    the ``bias`` of the attributes, relative to the largest value.

    >>> result = dataset({"train_loss": [2.0, 1.0]}, times=[0.0, 1.0], spec="", bias=0.01)
    >>> systematic(result, "train_loss")
    array([0.02, 0.02])
    """
    if name + SYSTEMATIC in result:
        return np.asarray(result[name + SYSTEMATIC].values, dtype=float)
    values = np.abs(result[name].values)
    largest = result[name].attrs.get(LARGEST, values.max(initial=0.0))
    return np.full(values.shape, result.attrs.get("bias", 0.0) * float(largest))


def interval(result: xr.Dataset | Result, name: str, level: float = 0.95) -> NDArray[np.float64]:
    """Half the width of the interval about a Monte-Carlo estimate in which the true value lies with this
    probability at least: the narrowest one for an error of Student's t times the standard error, and a bias
    of either sign that is at most the one stated.

    The number of replicas (of networks: ``seeds``) is that of the attributes; the bias that of
    :func:`systematic`.

    >>> result = dataset({"train_loss": [1.0], "train_loss_stderr": [0.1]}, times=[0.0], spec="", replicas=8)
    >>> interval(result, "train_loss").round(3)
    array([0.236])
    >>> interval(result.assign_attrs(bias=0.02), "train_loss").round(3)
    array([0.239])
    """
    from scipy.special import stdtrit  # slow to import, and needed for what is sampled alone

    degrees = int(result.attrs.get("replicas", result.attrs.get("seeds", 2))) - 1
    bias = systematic(result, name)
    error = np.asarray(result[name + STDERR].values, dtype=float)
    if not bias.any():
        return np.asarray(stdtrit(degrees, (1 + level) / 2) * error)
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = bias + stdtrit(degrees, level) * error  # once the other side is too far to be reached
        near = np.interp(bias / error, *_widths(degrees, level), right=np.nan) * error
    return np.asarray(np.where(np.isnan(near), wide, near))


@cache
def _widths(degrees: int, level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Biases b in standard errors, and w with ``P(|T + b| <= w) = level`` for Student's T, by bisection."""
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
    """What computed a result, as attributes: ``version``, of a checkout with its commit (and ``.changed``
    where its files are others), and ``libraries``, the versions of Python and of what this package needs.

    >>> sorted(provenance())
    ['libraries', 'version']
    """
    package, root = "dmft-derive", Path(__file__).parents[2]
    version = installed(package)
    if (root / ".git").exists():
        git = ["git", "--no-optional-locks", "-C", str(root), "describe"]
        words = ["--always", "--exclude=*", "--abbrev=12", "--dirty=.changed"]
        with suppress(OSError):  # there is no git
            found = subprocess.run([*git, *words], capture_output=True, text=True, check=False)
            version += f"+g{found.stdout.strip()}" if found.returncode == 0 else ""
    needed = [re.split(r"[^\w.-]", x)[0] for x in requires(package) or () if "extra ==" not in x]
    libraries = ", ".join(f"{x} {installed(x)}" for x in sorted(needed))
    return MappingProxyType(
        {"version": version, "libraries": f"Python {platform.python_version()}, {libraries}"}
    )


def save(result: xr.Dataset | Result, path: str | Path) -> None:
    """Writes NetCDF (h5netcdf), as xarray reads it, with a checksum of each variable of numbers.  On any
    failure, an interrupt included, `path` is as it was before.

    The file is made in memory: the HDF5 library does not survive a disk that is full.
    """
    import h5netcdf
    from h5py import string_dtype

    memory, every = io.BytesIO(), {str(k): x for y in (result.coords, result.data_vars) for k, x in y.items()}
    with h5netcdf.File(memory, "w") as file:
        file.attrs.update(result.attrs)
        others = [name for name, x in every.items() if name in result.coords and name not in x.dims]
        if others:  # labels of no dimension
            file.attrs["coordinates"] = " ".join(others)
        file.dimensions = {
            str(d): n for x in every.values() for d, n in zip(x.dims, x.values.shape, strict=True)
        }
        for name, x in every.items():
            a, said, kind = x.values, dict(x.attrs), x.values.dtype.kind
            if kind == "b":  # of which NetCDF has none
                a, said["dtype"] = a.astype("i1"), "bool"
            numbers = kind in "biuf"  # words have a length of their own
            held = file.create_variable(
                name,
                x.dims,
                a.dtype if numbers else string_dtype(),
                a if numbers else a.astype(object),
                fletcher32=bool(numbers and a.size and x.dims),
            )
            held.attrs.update(said)
    with replacing(path) as beside:
        beside.write_bytes(memory.getbuffer())


def load(path: str | Path) -> xr.Dataset:
    """Reads a saved result into memory and closes the file."""
    import xarray as xr

    return xr.load_dataset(path, engine="h5netcdf")


def to_json(result: xr.Dataset | Result) -> dict[str, Any]:
    """What `--json` prints: attributes, `time`, and the variables over time (and order); NaN becomes null.

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
    """NetCDF has no booleans: they are stored as 0 and 1."""
    return int(value) if isinstance(value, bool | np.bool_) else value


def _listed(array: np.ndarray[Any, Any]) -> Any:
    def known(item: Any) -> Any:
        if isinstance(item, list):
            return [known(part) for part in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return known(array.tolist())
