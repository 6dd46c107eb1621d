"""Sweeps: one experiment at many values of its keys, in this process, in several, or on a cluster.

    sweep(experiment, {"training.learning_rate": rates, "network.depth": range(1, 6)}, folder="runs", jobs=4)

With a folder every point has its own file, named by a digest of everything that determines the result.  A
point whose file exists is not computed again, so that a sweep that was stopped can be continued.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from multiprocessing import active_children, get_context, parent_process
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, cast, get_args

import numpy as np
import xarray as xr

from numerics.errors import (
    Interrupted,
    NumericsError,
    SpecError,
    require_choice,
    require_mapping,
    require_whole,
    value_to_toml,
)
from numerics.experiment import Experiment
from numerics.experiment.experiment import TESTING, TRAINING, fingerprint
from numerics.experiment.numbers import require_numbers
from numerics.experiment.schema import plain_value
from numerics.progress import Progress
from numerics.results import VARIABLES, load, provenance, replacing, save
from numerics.solver.method import KeptKernels
from numerics.solver.registry import solve

DEFECT = "a defect in dmft: "
"""Prefix of the status of a point at which an unexpected exception was raised."""
NOT_GATHERED = ("spec", "wall_time_s")
"""Attributes of a result that a gathered sweep leaves out: it has its own experiment, and no wall time."""


class Executor(Protocol):
    """Interface of executors: concurrent.futures, submitit, or a client of dask.distributed."""

    def submit(self, fn: Any, /, *args: Any) -> Any:
        """Return a future, whose ``result()`` waits for the value of ``fn(*args)``."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one point of a sweep: its result, and a text ``status``.

    The status is that of the result, such as "ok", or the reason for which there is no result. ``result`` is
    None for a point without a result, and also where the dataset is left out, for example because it is in
    the folder of the sweep.
    """

    status: str
    result: xr.Dataset | None = None


@dataclass(frozen=True)
class Point:
    """One point of a sweep: an experiment, and its values ``at`` of the keys that are varied.

    ``kernels`` names the two-time kernels that its result holds. Its outcome is kept in ``folder``; without a
    folder nothing is kept.
    """

    experiment: Experiment
    at: tuple[tuple[str, object], ...]
    kernels: KeptKernels
    folder: Path | None

    @cached_property
    def file(self) -> Path:
        """Path of the file, in the folder of the sweep, that holds the result of this point."""
        return (self.folder or Path()) / f"{digest(self.experiment, self.kernels)}.nc"

    @property
    def failed(self) -> Path:
        """Path of the file that holds the reason why this point has no result."""
        return self.file.with_suffix(".failed.json")

    @property
    def done(self) -> bool:
        """Whether the file for the result of this point exists; the file is not read."""
        return self.file.exists()

    def kept(self, *, retry: bool = False) -> Outcome | None:
        """Return the outcome of this point that the folder of the sweep holds, or None if it holds none.

        A file that cannot be read counts as missing, and with ``retry`` so does a stored failure.
        """
        if self.folder is None:
            return None
        try:
            if self.done:
                result = load(self.file)
                return Outcome(str(result.attrs["status"]), result)
            if not retry and self.failed.exists():
                return Outcome(json.loads(self.failed.read_text(encoding="utf-8"))["status"])
        # A file that is incomplete, for example after a full disk, counts as missing.
        except (OSError, KeyError, ValueError):
            pass
        return None

    def run(self) -> Outcome:
        """Solve the experiment and keep its outcome; a failure is an outcome and is not raised."""
        try:
            result = solve(self.experiment, kernels=self.kernels)
        except (NumericsError, SpecError) as error:
            return self.keep(Outcome(str(error)))
        except MemoryError:
            return self.keep(Outcome("memory: the computation needs more than is available"))
        except Exception as error:
            return self.keep(Outcome(f"{DEFECT}{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
        return self.keep(Outcome(str(result.attrs["status"]), result))

    def keep(self, outcome: Outcome) -> Outcome:
        """Write an outcome to the folder, if there is one, and return it."""
        if self.folder is None:
            return outcome
        if outcome.result is None:
            record = {"status": outcome.status, "spec": self.experiment.text}
            with replacing(self.failed) as beside:
                beside.write_text(json.dumps(record), encoding="utf-8")
            # A point whose result can be read is not solved again. A result file beside a failure is
            # therefore incomplete, and is removed.
            self.file.unlink(missing_ok=True)
        else:
            save(outcome.result, self.file)
            self.failed.unlink(missing_ok=True)
        return outcome

    def __call__(self) -> Outcome:
        """Return the outcome of this point, from a result in the folder or by solving the experiment.

        A cluster may send a point again; it is then not solved twice. A failure in the folder is tried again.
        With a folder the result itself is not returned, because the calling process can read it there.
        """
        outcome = self.kept(retry=True) or self.run()
        return outcome if self.folder is None else Outcome(outcome.status)

    def checkpoint(self) -> Any:
        """Return the job to be sent again when the cluster ends this one early: the point itself.

        The executor submitit calls this method.
        """
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def digest(experiment: Experiment, *more: str) -> str:
    """Return a hash of everything that determines a result: all keys, arrays, version and ``more``.

    Names of data files are left out, because the numbers in them count.

    >>> tables = {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 3}}
    >>> one = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
    >>> digest(one) == digest(one.replace({"network.gamma0": 1.0})), len(digest(one))
    (True, 16)
    >>> digest(one) == digest(Experiment.from_dict(tables, kernel=[[1.0]], targets=[2.0]))
    False
    """
    tables = experiment.spec.model_dump()
    # The fingerprint depends on the numbers in the data files. Their names are left out, so that a renamed
    # file counts as the same data.
    for key in (*TRAINING, *TESTING):
        (tables["data"] or {}).pop(key, None)
    record = [tables, fingerprint(experiment.arrays), provenance()["version"], *more]
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Grid:
    """An experiment at all combinations of values of some keys, ``over``; the last key varies fastest."""

    experiment: Experiment
    over: Mapping[str, Sequence[object]]
    points: tuple[Point, ...]

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        over: Mapping[str, Iterable[object]],
        folder: str | Path | None = None,
        kernels: KeptKernels = "none",
    ) -> Grid:
        """Return the grid of points for the values ``over``; check all of them before any runs.

        ``folder`` keeps outcomes; it is created if it is missing, but not the folder above it. ``kernels``
        are the two-time kernels in results. Raises SpecError for a combination that is not a valid
        experiment, for a key without values or with a value twice, for two keys with the same last part, for
        a folder that is a file or cannot be made, for unknown ``kernels``, and as :func:`_values_by_key`.
        """
        require_choice("kernels", kernels, get_args(KeptKernels))
        values = _values_by_key(over)
        if not values or not all(values.values()):
            raise SpecError(
                "sweep", list(values), "has no values to run over", "keys of the file, each with values"
            )
        for path, list_of_values in values.items():
            if len({value_to_toml(x) for x in list_of_values}) < len(list_of_values):
                raise SpecError(path, list_of_values, "has a value twice", "values that differ")
        names = [_name(path) for path in values]
        if len(set(names)) < len(names):
            raise SpecError(
                "sweep", list(values), "has two keys with the same last part", "keys that end differently"
            )
        places = [tuple(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
        cases = [experiment.replace(dict(at)) for at in places]
        for case in cases:
            require_numbers(case, depth=case.network.branch is None)
        directory = None if folder is None else _made_folder(folder)
        return cls(
            experiment,
            values,
            tuple(Point(case, at, kernels, directory) for case, at in zip(cases, places, strict=True)),
        )

    def run(
        self,
        *,
        jobs: int = 1,
        retry: bool = False,
        executor: Executor | None = None,
        progress: Progress | None = None,
        results: bool = True,
    ) -> list[Outcome]:
        """Return the outcomes of all points; those that the folder holds are not computed again.

        ``results=False`` leaves out the datasets. ``jobs`` processes share the work; an ``executor`` runs the
        points in place of ``jobs``. ``retry`` computes again the points that failed before.
        Ctrl-C after a finished point raises :class:`~numerics.errors.Interrupted`, whose ``result`` holds the
        finished points.
        """
        outcomes: dict[int, Outcome] = {}

        def record(n: int, x: Outcome) -> None:
            """Store the outcome ``x`` of point number ``n``, without its dataset if ``results`` is false."""
            outcomes[n] = x if results else Outcome(x.status)

        for n, point in enumerate(self.points):
            if (kept := point.kept(retry=retry)) is not None:
                record(n, kept)
        todo = [n for n in range(len(self.points)) if n not in outcomes]
        if progress is not None and outcomes:
            progress(len(outcomes), len(self.points))
        try:
            with closing(_run([self.points[n] for n in todo], jobs, executor)) as runs:
                for n, outcome in runs:
                    record(todo[n], outcome)
                    if progress is not None:
                        progress(len(outcomes), len(self.points))
        except KeyboardInterrupt:
            if not outcomes:
                raise
            unfinished = Outcome("interrupted")
            all_outcomes = [outcomes.get(n, unfinished) for n in range(len(self.points))]
            raise Interrupted(self.gathered(all_outcomes).assign_attrs(status="partial")) from None
        return [outcomes[n] for n in range(len(self.points))]

    def gathered(self, outcomes: Sequence[Outcome]) -> xr.Dataset:
        """Return all results in one dataset, with a dimension for each key.

        A dimension is named by the last part of the key, or by the whole key if results have a dimension of
        that name (``time``).  Where a point has no result its numbers are nan, and so are times, layers and
        samples that only other points have.  ``status`` holds the status of each point. Attributes that
        differ become variables if they are numbers or texts; lists that differ are left out.
        """
        names = [_name(path) for path in self.over]
        shape = tuple(len(x) for x in self.over.values())
        kept = [
            point.kept(retry=True) if x.result is None else x
            for point, x in zip(self.points, outcomes, strict=True)
        ]
        results = [xr.Dataset() if x is None or x.result is None else x.result for x in kept]
        combined = xr.concat(
            results, "point", data_vars="all", coords="minimal", compat="override", join="outer"
        )
        variables: dict[Any, tuple[tuple[Any, ...], Any]] = {
            name: ((*names, *x.dims[1:]), x.values.reshape(shape + x.shape[1:]))
            for name, x in combined.data_vars.items()
        }
        attributes: dict[str, Any] = {}
        for key in sorted({str(key) for x in results for key in x.attrs} - {*NOT_GATHERED, *names}):
            column: list[Any] = [x.attrs.get(key) for x in results]
            present = [value for x, value in zip(results, column, strict=True) if x.attrs]
            if all(value is not None and np.array_equal(value, present[0]) for value in present):
                attributes[key] = present[0]
            elif all(np.ndim(value) == 0 for value in present if value is not None):
                texts = any(isinstance(value, str) for value in present)
                empty: Any = "" if texts else np.nan
                cells = [empty if x is None else str(x) if texts else float(x) for x in column]
                variables[key] = tuple(names), np.array(cells, dtype=str if texts else float).reshape(shape)
        attributes.pop("status", None)
        variables["status"] = tuple(names), np.array([x.status for x in outcomes], dtype=str).reshape(shape)
        labels = {name: _labels(x) for name, x in zip(names, self.over.values(), strict=True)}
        return xr.Dataset(
            variables, {**combined.coords, **labels}, {**attributes, "spec": self.experiment.text}
        )


def _values_by_key(over: Mapping[str, Iterable[object]]) -> dict[str, list[object]]:
    """Return the values of each key as a list; NumPy's numbers and arrays become numbers and lists.

    Raises SpecError for an argument that is not a mapping, for a name that is not a key of a table, and for
    values that are text or no list.
    """
    require_mapping("over", over, '{"TABLE.KEY": values}, such as {"training.steps": [10, 20]}')
    values: dict[str, list[object]] = {}
    for path, given in over.items():
        if not isinstance(path, str) or "." not in path:
            shown = list(given) if isinstance(given, Iterable) else given
            raise SpecError(str(path), shown, "is not a key of the file", "TABLE.KEY, such as training.steps")
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise SpecError(path, given, "is not a list of values", f"[{value_to_toml(given)}]")
        values[path] = [plain_value(x) for x in given]
    return values


def _made_folder(folder: str | Path) -> Path:
    """Return a folder, which is made if it does not exist; raise SpecError for one that cannot be made."""
    directory, accepted = Path(folder), "a folder, new or old, in a folder that exists"
    try:
        if directory.exists() and not directory.is_dir():
            raise SpecError("folder", str(directory), "is a file", accepted)
        if not directory.absolute().parent.is_dir():
            problem = f"there is no folder {directory.absolute().parent}"
            raise SpecError("folder", str(directory), problem, accepted)
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise SpecError("folder", str(directory), f"cannot be made: {error.strerror}", accepted) from None
    return directory


def _name(path: str) -> str:
    """Return the name of the dimension of a key: its last part, or the whole key if that name is taken.

    >>> _name("training.learning_rate"), _name("training.time")
    ('learning_rate', 'training.time')
    """
    last = path.rpartition(".")[2]
    return path if any(last in x.dims for x in VARIABLES.values()) else last


def _labels(values: Sequence[object]) -> list[object]:
    """Return the values of a key as labels of a dimension of the result.

    Values that are all numbers or all words are unchanged; otherwise all but words become TOML text.
    """
    alike = any(all(isinstance(x, kind) for x in values) for kind in (str, Real))
    return [x if alike or isinstance(x, str) else value_to_toml(x) for x in values]


def sweep(  # noqa: PLR0913 - public options, all but two of them keyword-only
    experiment: Experiment | str | Path,
    over: Mapping[str, Iterable[object]],
    *,
    jobs: int = 1,
    folder: str | Path | None = None,
    retry: bool = False,
    kernels: KeptKernels = "none",
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Return the results of an experiment at all combinations of values of some keys.

    Parameters
    ----------
    experiment : Experiment, str or Path
        The experiment, or its file.
    over : mapping of str to iterable
        Keys of the file (dotted paths) and their values.
    jobs : int
        Number of processes.
    folder : str or Path, optional
        Folder that keeps each result as a file, named by a digest of the experiment and the version, and each
        failure with its reason.  Results that it holds are not computed again.  It is created if it is
        missing, but not the folder above it.
    retry : bool
        Compute again the points that failed before.
    kernels : {"auto", "full", "trace", "none"}
        Two-time kernels that the results hold, as in :func:`numerics.solve`.
    executor : Executor, optional
        Object with a method ``submit(function)`` that returns a future, such as a client of dask.distributed,
        or an executor of submitit from :func:`cluster`.  It runs the points in place of ``jobs``.
    progress : callable, optional
        Called with (points done, number of points).

    Returns
    -------
    Dataset
        A dimension for each key, named by the last part of its path, or by the whole path if results have a
        dimension of that name, before the dimensions of a result of :func:`numerics.solve`.  The variable
        ``status`` is that of the result. Where a point has no result, for example because the dynamics
        diverged or the point is refused, the numbers are nan and ``status`` gives the reason.

    Raises
    ------
    SpecError
        If a combination is not a valid experiment, or the grid is not valid; before anything runs.
    Interrupted
        After Ctrl-C, if a point is finished.  Its ``result`` holds finished points; others are nan with the
        status "interrupted".
    NumericsError
        If one of several processes is killed, for example for lack of memory.

    Examples
    --------
    >>> from numerics.experiment import Experiment
    >>> e = Experiment.from_dict({"network": {"depth": 1}, "data": {"kind": "isotropic"},
    ...                           "training": {"learning_rate": 0.1, "steps": 20}})
    >>> found = sweep(e, {"training.learning_rate": [0.1, 40.0]})
    >>> found.sizes["learning_rate"], found.status[1].item(), bool(found.test_loss[1].isnull().all())
    (2, 'C_v diverged at step 2; a smaller learning rate (of a flow: a shorter time) is needed', True)
    """
    require_whole("jobs", jobs, 1, "must be positive")
    grid = Grid.of(Experiment.of(experiment), over, folder, kernels)
    return grid.gathered(grid.run(jobs=jobs, retry=retry, executor=executor, progress=progress))


def cluster(folder: str | Path, *, hours: float, jobs: int, kind: str | None = None) -> Executor:
    """Return an executor of submitit that runs points as one array of jobs, at most ``jobs`` at a time.

    Each job has one core.  The subfolder ``jobs`` of ``folder`` holds the logs; ``hours`` bounds the time of
    one point, and is at least one minute.  A point that is cut off by this bound or by the cluster is sent
    again.  ``kind`` is ``"slurm"``, ``"local"`` or ``"debug"``; None stands for the cluster of the machine.
    Raises SpecError if submitit is not installed.
    """
    try:
        import submitit
    except ImportError:
        raise SpecError(
            "--cluster", "submitit", "is not installed", "pip install 'dmft-derive[cluster]'"
        ) from None
    executor = submitit.AutoExecutor(Path(folder) / "jobs", cluster=kind)
    minutes = max(1, int(60 * hours))
    executor.update_parameters(
        name="dmft", timeout_min=minutes, cpus_per_task=1, slurm_array_parallelism=max(1, jobs)
    )
    return cast(Executor, executor)


def _run(
    points: Sequence[Point], jobs: int, executor: Executor | None
) -> Generator[tuple[int, Outcome], None, None]:
    """Yield the index and the outcome of each point when it ends; with an ``executor``, in order of index.

    Without an ``executor``, ``jobs`` processes share the work. Raises NumericsError if one of them is killed.
    """
    if executor is None and (jobs == 1 or len(points) < 2):
        yield from ((n, point.run()) for n, point in enumerate(points))
    elif executor is None:
        with _processes(min(jobs, len(points))) as pool:
            places = {pool.submit(point): n for n, point in enumerate(points)}
            try:
                yield from ((places[done], done.result()) for done in as_completed(places))
            except BrokenExecutor:
                raise NumericsError(
                    "a process of the sweep was killed, possibly for lack of memory: use fewer jobs, or a "
                    "smaller solver.samples; if the sweep has a folder, it keeps the finished points"
                ) from None
    else:
        # An executor of submitit has a method `batch`, in whose context all points are sent as one array of
        # jobs.
        with getattr(executor, "batch", nullcontext)():
            futures = [executor.submit(point) for point in points]
        yield from ((n, future.result()) for n, future in enumerate(futures))


@contextmanager
def _processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of ``count`` processes, which end with this block or with this process."""
    others = {*active_children()}
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_prepare_process)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in {*active_children()} - others:
            child.terminate()
        raise
    pool.shutdown()


def _prepare_process() -> None:
    """Prepare a process of a sweep: ignore Ctrl-C, exit by an exception, and end with the parent process.

    The parent process handles Ctrl-C.  SIGTERM raises SystemExit, so that half-written files are removed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent has ended, even by kill -9."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
