"""One experiment at many values of its keys: in memory or in a folder, in this process, several, or on a
cluster.

sweep(experiment, {"training.learning_rate": rates, "network.depth": range(1, 6)}, folder="runs", jobs=4)

In a folder every point has a file of its own, called by a digest of all that determines it: what is there is
not computed again, whoever computed it, and a sweep that was killed goes on where it was.
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
    require_whole,
    value_to_toml,
)
from numerics.experiment import Experiment
from numerics.experiment.experiment import TESTING, TRAINING, fingerprint
from numerics.experiment.numbers import require_numbers
from numerics.progress import Progress
from numerics.results import VARIABLES, load, provenance, replacing, save
from numerics.solver.method import KeptKernels
from numerics.solver.registry import solve

DEFECT = "a defect in dmft: "
"""How the status of a point begins at which a program error came up."""
OWN = ("spec", "wall_time_s")
"""Attributes of a result that are not gathered: the file of the sweep is, and time is not reproduced."""


class Executor(Protocol):
    """What runs functions elsewhere: of concurrent.futures, of submitit, a client of dask.distributed."""

    def submit(self, fn: Any, /, *args: Any) -> Any:
        """A future, whose ``result()`` waits for the value."""


@dataclass(frozen=True)
class Outcome:
    """What became of a point: ``status`` is that of its result, or why there is none."""

    status: str
    result: xr.Dataset | None = None


@dataclass(frozen=True)
class Point:
    """One experiment of a sweep, ``at`` these values of keys, and the folder that keeps what becomes of it.

    Without a folder nothing is kept.
    """

    experiment: Experiment
    at: tuple[tuple[str, object], ...]
    kernels: KeptKernels
    folder: Path | None

    @cached_property
    def file(self) -> Path:
        """Where its result stands, in the folder."""
        return (self.folder or Path()) / f"{digest(self.experiment, self.kernels)}.nc"

    @property
    def failed(self) -> Path:
        """Where it stands why there is none."""
        return self.file.with_suffix(".failed.json")

    @property
    def done(self) -> bool:
        """Whether the folder holds its result."""
        return self.file.exists()

    def kept(self, *, retry: bool = False) -> Outcome | None:
        """What the folder holds; with ``retry`` no failure.  What cannot be read is not there."""
        if self.folder is None:
            return None
        try:
            if self.done:
                result = load(self.file)
                return Outcome(str(result.attrs["status"]), result)
            if not retry and self.failed.exists():
                return Outcome(json.loads(self.failed.read_text(encoding="utf-8"))["status"])
        except (OSError, KeyError, ValueError):  # a file that was cut, on a disk that was full
            pass
        return None

    def run(self) -> Outcome:
        """Solves it.  A failure is an outcome: no point of a sweep stops the others."""
        try:
            result = solve(self.experiment, kernels=self.kernels)
        except (NumericsError, SpecError) as error:
            return self.keep(Outcome(str(error)))
        except MemoryError:
            return self.keep(Outcome("memory: this takes more than there is"))
        except Exception as error:
            return self.keep(Outcome(f"{DEFECT}{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
        return self.keep(Outcome(str(result.attrs["status"]), result))

    def keep(self, found: Outcome) -> Outcome:
        """Writes it down."""
        if self.folder is None:
            return found
        if found.result is None:
            said = {"status": found.status, "spec": self.experiment.text}
            with replacing(self.failed) as beside:
                beside.write_text(json.dumps(said), encoding="utf-8")
            self.file.unlink(missing_ok=True)  # one that was cut
        else:
            save(found.result, self.file)
            self.failed.unlink(missing_ok=True)
        return found

    def __call__(self) -> Outcome:
        """What the folder holds by now, or a run: a point that is sent again to a cluster is not redone.

        What is in a folder need not come back from another process.
        """
        found = self.kept(retry=True) or self.run()
        return found if self.folder is None else Outcome(found.status)

    def checkpoint(self) -> Any:
        """What submitit sends again when a job is cut off."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def digest(experiment: Experiment, *more: str) -> str:
    """A name for all that determines a result: every key of the file, those left out too, the arrays, the
    version, and ``more``.

    >>> tables = {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 3}}
    >>> one = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
    >>> digest(one) == digest(one.replace({"network.gamma0": 1.0})), len(digest(one))
    (True, 16)
    >>> digest(one) == digest(Experiment.from_dict(tables, kernel=[[1.0]], targets=[2.0]))
    False
    """
    tables = experiment.spec.model_dump()
    for key in (*TRAINING, *TESTING):  # names of files, whose numbers are in the fingerprint
        (tables["data"] or {}).pop(key, None)
    said = [tables, fingerprint(experiment.arrays), provenance()["version"], *more]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Grid:
    """An experiment at all combinations of values of some keys, the last key first.

    Raises SpecError for a combination that is no experiment, and for a folder that is none.
    """

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
        """Checks everything that can be checked before anything runs."""
        require_choice("kernels", kernels, get_args(KeptKernels))
        values = {path: list(x) for path, x in over.items()}
        if not values or not all(values.values()):
            raise SpecError(
                "sweep", list(values), "has nothing to run over", "keys of the file, each with values"
            )
        for path, some in values.items():
            if "." not in path:
                raise SpecError(path, some, "is no key of the file", "TABLE.KEY, such as training.steps")
            if len({value_to_toml(x) for x in some}) < len(some):
                raise SpecError(path, some, "has a value twice", "values that differ")
        names = [_name(path) for path in values]
        if len(set(names)) < len(names):
            raise SpecError("sweep", list(values), "names two keys alike", "keys that end differently")
        places = [tuple(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
        cases = [experiment.replace(dict(at)) for at in places]
        for case in cases:
            require_numbers(case, depth=case.network.branch is None)
        place = None if folder is None else Path(folder)
        if place is not None:
            if place.exists() and not place.is_dir():
                raise SpecError("folder", str(place), "is a file", "a folder, new or old")
            place.mkdir(exist_ok=True)
        return cls(
            experiment,
            values,
            tuple(Point(case, at, kernels, place) for case, at in zip(cases, places, strict=True)),
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
        """What became of every point, those that stand in the folder included, with or without ``results``.

        ``jobs`` processes share the work, or ``executor`` does it.  Ctrl-C with something done raises
        :class:`~numerics.errors.Interrupted`, whose ``result`` holds that.
        """
        found: dict[int, Outcome] = {}

        def became(n: int, x: Outcome) -> None:
            found[n] = x if results else Outcome(x.status)

        for n, point in enumerate(self.points):
            if (kept := point.kept(retry=retry)) is not None:
                became(n, kept)
        todo = [n for n in range(len(self.points)) if n not in found]
        if progress is not None and found:
            progress(len(found), len(self.points))
        try:
            with closing(_run([self.points[n] for n in todo], jobs, executor)) as runs:
                for n, outcome in runs:
                    became(todo[n], outcome)
                    if progress is not None:
                        progress(len(found), len(self.points))
        except KeyboardInterrupt:
            if not found:
                raise
            left = Outcome("interrupted")
            every = [found.get(n, left) for n in range(len(self.points))]
            raise Interrupted(self.gathered(every).assign_attrs(status="partial")) from None
        return [found[n] for n in range(len(self.points))]

    def gathered(self, outcomes: Sequence[Outcome]) -> xr.Dataset:
        """All results side by side: each key is a dimension, called by the last part of its path (``time``,
        which results have, by all of it).

        Where a point has no result its numbers are nan, and so are times, layers and samples that only
        others have.  ``status`` says what became of each; attributes that differ are variables too.
        """
        names = [_name(path) for path in self.over]
        shape = tuple(len(x) for x in self.over.values())
        every = [
            point.kept(retry=True) if x.result is None else x
            for point, x in zip(self.points, outcomes, strict=True)
        ]
        results = [xr.Dataset() if x is None or x.result is None else x.result for x in every]
        side = xr.concat(results, "point", data_vars="all", coords="minimal", compat="override", join="outer")
        found: dict[Any, tuple[tuple[Any, ...], Any]] = {
            name: ((*names, *x.dims[1:]), x.values.reshape(shape + x.shape[1:]))
            for name, x in side.data_vars.items()
        }
        attributes: dict[str, Any] = {}
        for key in sorted({str(key) for x in results for key in x.attrs} - {*OWN, *names}):
            said: list[Any] = [x.attrs.get(key) for x in results]
            there = [y for x, y in zip(results, said, strict=True) if x.attrs]
            if all(y is not None and np.array_equal(y, there[0]) for y in there):
                attributes[key] = there[0]
            elif all(np.ndim(y) == 0 for y in there if y is not None):
                texts = any(isinstance(y, str) for y in there)
                empty: Any = "" if texts else np.nan
                column = [empty if y is None else str(y) if texts else float(y) for y in said]
                found[key] = tuple(names), np.array(column, dtype=str if texts else float).reshape(shape)
        attributes.pop("status", None)
        found["status"] = tuple(names), np.array([x.status for x in outcomes], dtype=str).reshape(shape)
        labels = {name: _labels(x) for name, x in zip(names, self.over.values(), strict=True)}
        return xr.Dataset(found, {**side.coords, **labels}, {**attributes, "spec": self.experiment.text})


def _name(path: str) -> str:
    """What the dimension of a key is called: the last part of its path, or all of it where results have a
    dimension of that name.

    >>> _name("training.learning_rate"), _name("training.time")
    ('learning_rate', 'training.time')
    """
    last = path.rpartition(".")[2]
    return path if any(last in x.dims for x in VARIABLES.values()) else last


def _labels(values: Sequence[object]) -> list[object]:
    """The values as a coordinate: numbers or words as they are, else all as a file spells them."""
    alike = any(all(isinstance(x, kind) for x in values) for kind in (str, Real))
    return [x if alike or isinstance(x, str) else value_to_toml(x) for x in values]


def sweep(
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
    """The results of ``experiment`` at all combinations of values of some keys.

    ``over`` maps keys of the file (dotted paths) to values; each becomes a dimension, called by the last part
    of its path, in front of those of a result of :func:`numerics.solve` with these ``kernels``.  Where the
    dynamics diverged, a solver did not converge or a point is refused the numbers are nan, and the variable
    ``status`` says why; elsewhere it is that of the result.

    With a ``folder`` every result is a file in it, named by a digest of its experiment and the version, and
    a failure one with the reason: what is there is not computed again, failures only with ``retry``.
    ``jobs`` is the number of processes; an ``executor`` runs the points elsewhere: anything with a
    ``submit(function)`` that returns a future, such as a client of dask.distributed or, from
    :func:`cluster`, an executor of submitit.

    Raises :class:`~numerics.errors.SpecError` for a combination that is no experiment, before anything runs.
    Ctrl-C with some combinations done raises :class:`~numerics.errors.Interrupted`, whose ``result`` holds
    these; the others are nan, with the status "interrupted".

    >>> from numerics.experiment import Experiment
    >>> e = Experiment.from_dict({"network": {"depth": 1}, "data": {"kind": "isotropic"},
    ...                           "training": {"learning_rate": 0.1, "steps": 20}})
    >>> found = sweep(e, {"training.learning_rate": [0.1, 40.0]})
    >>> found.sizes["learning_rate"], found.status[1].item(), bool(found.test_loss[1].isnull().all())
    (2, 'C_v diverged at step 2; a smaller learning rate is needed', True)
    """
    require_whole("jobs", jobs, 1, "must be positive")
    grid = Grid.of(Experiment.of(experiment), over, folder, kernels)
    return grid.gathered(grid.run(jobs=jobs, retry=retry, executor=executor, progress=progress))


def cluster(folder: str | Path, *, hours: float, jobs: int, kind: str | None = None) -> Executor:
    """An executor of submitit, whose jobs are one array of at most ``jobs`` at a time, of one core each.

    ``folder`` takes the logs, ``hours`` is the bound of one point; a point that is cut off by it or by the
    cluster is sent again.  ``kind``: ``"slurm"``, ``"local"`` or ``"debug"``; the cluster there is if None.
    Raises SpecError where submitit is not installed.
    """
    try:
        import submitit
    except ImportError:
        accepted = "pip install 'dmft-derive[cluster]'"
        raise SpecError("--cluster", "submitit", "is not installed", accepted) from None
    found = submitit.AutoExecutor(Path(folder) / "jobs", cluster=kind)
    minutes = max(1, int(60 * hours))
    found.update_parameters(
        name="dmft", timeout_min=minutes, cpus_per_task=1, slurm_array_parallelism=max(1, jobs)
    )
    return cast(Executor, found)


def _run(
    points: Sequence[Point], jobs: int, executor: Executor | None
) -> Generator[tuple[int, Outcome], None, None]:
    """The place of each point and what became of it, as they end; of an ``executor`` in order."""
    if executor is None and (jobs == 1 or len(points) < 2):
        yield from ((n, point.run()) for n, point in enumerate(points))
    elif executor is None:
        with _processes(min(jobs, len(points))) as pool:
            places = {pool.submit(point): n for n, point in enumerate(points)}
            try:
                yield from ((places[done], done.result()) for done in as_completed(places))
            except BrokenExecutor:
                why = "a process of the sweep was killed, perhaps for its memory: finished points are kept"
                raise NumericsError(f"{why}; fewer jobs, or solver.samples, would do") from None
    else:
        with getattr(executor, "batch", nullcontext)():  # of submitit: one array of jobs
            futures = [executor.submit(point) for point in points]
        yield from ((n, future.result()) for n, future in enumerate(futures))


@contextmanager
def _processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this block, whatever they are at, and with this process, however it ends."""
    others = {*active_children()}
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begun)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in {*active_children()} - others:
            child.terminate()
        raise
    pool.shutdown()


def _begun() -> None:
    """What a process of a sweep does first.

    Ctrl-C is for the one that asked for it; to be ended is an exception, so that no half of a file is left.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """Ends this process when the one that began it has ended, be it by kill -9."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
