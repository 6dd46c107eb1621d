"""Reference numbers of finite networks, means and variances at several widths, in a table.

Input are the experiments below; output is ``reference.toml``, with standard errors, from at least 20,000
networks a width.  Quick tests of the derived corrections of finite width read it, and slow tests train the
networks again.  Run ``python -m tests.numerics.fluctuations.reference`` (30 minutes on one core) to write
it, with names of experiments to replace these alone.
"""

from __future__ import annotations

import json
import sys
import textwrap
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .estimates import Estimate, Samples, expansion_in_width
from .isotropic import Isotropic, train_isotropic
from .networks import Training, train

Array = NDArray[Any]

TABLE = Path(__file__).with_name("reference.toml")

ONE = ([[1.0]], [1.0])
TWO = ([[1.0, 0.3], [0.3, 0.8]], [1.0, -0.5])
FOUR = (
    [[1.0, 0.3, -0.2, 0.1], [0.3, 0.8, 0.2, 0.0], [-0.2, 0.2, 0.9, 0.3], [0.1, 0.0, 0.3, 0.7]],
    [0.8, -0.4, 0.3, 0.5],
)
"""Kernels of the inputs and targets for 1, 2 and 4 samples."""


@dataclass(frozen=True)
class Experiment:
    """Networks whose statistics are in the table.

    Attributes
    ----------
    training : Training or Isotropic
        Architecture, data and rule.
    times : tuple of int
        Steps whose numbers are kept.
    counts : dict of int to int
        Number of networks of each width.
    """

    training: Training | Isotropic
    times: tuple[int, ...]
    counts: Mapping[int, int]

    def samples(self, width: int, seed: int, count: int | None = None) -> Samples:
        """Train networks of one width, by default as many as for the table."""
        number = self.counts[width] if count is None else count
        if isinstance(self.training, Isotropic):
            return train_isotropic(self.training, width, number, seed)
        return train(self.training, width, number, seed)


QUICK = {32: 200_000, 64: 200_000, 128: 200_000}
USUAL = {32: 40_000, 64: 80_000, 128: 60_000}
FLOW = {16: 60_000, 32: 60_000, 64: 40_000}


def _fixed(
    depth: int, data: tuple[Any, Any], eta: float, steps: int, activation: str = "linear", **options: Any
) -> Training:
    """Return a training on one of the data sets above."""
    return Training(depth, np.array(data[0]), np.array(data[1]), eta, steps, activation, **options)


EXPERIMENTS: dict[str, Experiment] = {
    "linear-1-1": Experiment(_fixed(1, ONE, 0.1, 8), (0, 1, 2, 5, 8), QUICK),
    "linear-1-2": Experiment(_fixed(1, TWO, 0.1, 8), (0, 1, 2, 5, 8), QUICK),
    "linear-1-4": Experiment(_fixed(1, FOUR, 0.1, 8), (0, 2, 8), QUICK),
    "linear-2-1": Experiment(_fixed(2, ONE, 0.08, 8), (0, 1, 2, 5, 8), USUAL),
    "linear-2-2": Experiment(_fixed(2, TWO, 0.08, 8), (0, 1, 2, 5, 8), USUAL),
    "linear-2-4": Experiment(_fixed(2, FOUR, 0.08, 6), (0, 2, 6), USUAL),
    "linear-3-1": Experiment(_fixed(3, ONE, 0.05, 6), (0, 1, 2, 4, 6), USUAL),
    "linear-3-2": Experiment(_fixed(3, TWO, 0.05, 6), (0, 1, 2, 4, 6), USUAL),
    "linear-3-4": Experiment(_fixed(3, FOUR, 0.05, 6), (0, 2, 6), USUAL),
    "linear-2-1-gamma": Experiment(_fixed(2, ONE, 0.08, 6, gamma0=1.6), (0, 1, 2, 4, 6), USUAL),
    "linear-2-2-centred": Experiment(_fixed(2, TWO, 0.08, 6, centred=True), (0, 1, 2, 4, 6), USUAL),
    "linear-2-1-momentum": Experiment(_fixed(2, ONE, 0.06, 6, momentum=0.5), (0, 1, 2, 4, 6), USUAL),
    "linear-2-1-decay": Experiment(_fixed(2, ONE, 0.08, 6, weight_decay=0.5), (0, 1, 2, 4, 6), USUAL),
    "linear-2-2-bias": Experiment(_fixed(2, TWO, 0.05, 5, bias=True), (0, 1, 2, 5), USUAL),
    "flow-1-2": Experiment(_fixed(1, TWO, 0.25, 5, substeps=4), (0, 1, 2, 5), USUAL),
    "flow-2-1": Experiment(_fixed(2, ONE, 0.15, 4, substeps=3), (0, 1, 2, 4), FLOW),
    "tanh-1-1": Experiment(_fixed(1, ONE, 0.2, 6, "tanh"), (0, 1, 2, 4, 6), QUICK),
    "tanh-1-2": Experiment(_fixed(1, TWO, 0.2, 6, "tanh"), (0, 1, 2, 4, 6), QUICK),
    "tanh-2-1": Experiment(_fixed(2, ONE, 0.2, 5, "tanh"), (0, 1, 2, 4, 5), USUAL),
    "tanh-2-2": Experiment(_fixed(2, TWO, 0.2, 5, "tanh"), (0, 1, 2, 4, 5), USUAL),
    "tanh-2-1-bias": Experiment(_fixed(2, ONE, 0.1, 5, "tanh", bias=True), (0, 1, 2, 5), USUAL),
    "relu-1-1": Experiment(_fixed(1, ONE, 0.15, 6, "relu"), (0, 1, 2, 4, 6), QUICK),
    "relu-1-2": Experiment(_fixed(1, TWO, 0.15, 6, "relu"), (0, 1, 2, 4, 6), QUICK),
    "relu-2-1": Experiment(_fixed(2, ONE, 0.15, 5, "relu"), (0, 1, 2, 4, 5), USUAL),
    "relu-2-2": Experiment(_fixed(2, TWO, 0.15, 5, "relu"), (0, 1, 2, 4, 5), USUAL),
    "isotropic-1": Experiment(Isotropic(1, 1.0, 2.0, 0.1, 6), (0, 1, 2, 4, 6), QUICK),
    "isotropic-2": Experiment(Isotropic(2, 0.75, 2.0, 0.06, 6), (0, 1, 2, 4, 6), USUAL),
    "isotropic-2-centred": Experiment(
        Isotropic(2, 1.5, 0.5, 0.04, 5, gamma0=0.8, noise=0.5, centred=True), (0, 1, 2, 5), USUAL
    ),
    "linear-3-1-gamma": Experiment(_fixed(3, ONE, 0.05, 6, gamma0=2.0), (0, 1, 2, 4, 6), USUAL),
}
"""By name: activation, depth, number of samples, and what is special."""


@dataclass(frozen=True)
class Reference:
    """Statistics of one experiment at several widths.

    Attributes
    ----------
    experiment : Experiment
        The networks.
    widths : tuple of int
        The widths.
    means, variances : dict of str to list of Estimate
        Means and ``N Var`` of each observable, one estimate a width, arrays (len(times), ...) as in
        ``train``.
    """

    experiment: Experiment
    widths: tuple[int, ...]
    means: dict[str, list[Estimate]]
    variances: dict[str, list[Estimate]]

    def scaled_variance(self, name: str, degree: int | None = None) -> Estimate:
        """Extrapolate ``N Var`` to infinite width by a polynomial in 1/N, of degree 2 for three widths."""
        fit = expansion_in_width(self.widths, self.variances[name], degree)
        return Estimate(fit.value[0], fit.error[0])

    def scaled_shift(self, name: str, limit: Any = None, degree: int | None = None) -> Estimate:
        """Extrapolate ``N (mean - limit)`` to infinite width by a polynomial in 1/N.

        With a limit, an array over the times of the experiment, errors are some four times smaller.
        """
        if limit is None:
            fit = expansion_in_width(self.widths, self.means[name], degree)
            return Estimate(fit.value[1], fit.error[1])
        pairs = zip(self.widths, self.means[name], strict=True)
        shifts = [Estimate(N * (mean.value - limit), N * mean.error) for N, mean in pairs]
        fit = expansion_in_width(self.widths, shifts, degree)
        return Estimate(fit.value[0], fit.error[0])


# -- table -------------------------------------------------------------------------------------------------


def _folded(name: str, x: Array) -> Array:
    """Return (times, entries) of an observable (times, ...), without the lower triangles of matrices."""
    if name in ("Phi", "G", "tangent_kernel"):
        rows, columns = np.triu_indices(x.shape[-1])
        x = x[..., rows, columns]
    return np.asarray(x.reshape(len(x), -1))


def _unfolded(name: str, x: Array, layers: int) -> Array:
    """Return the observable (times, ...) of which `_folded` made this array."""
    if name in ("C_h", "C_g", "f"):
        return x
    if name not in ("Phi", "G", "tangent_kernel"):
        return np.asarray(x[:, 0])
    if name != "tangent_kernel":
        x = x.reshape(len(x), layers, -1)
    size = round((2 * x.shape[-1] + 0.25) ** 0.5 - 0.5)
    rows, columns = np.triu_indices(size)
    full = np.zeros((*x.shape[:-1], size, size))
    full[..., rows, columns] = full[..., columns, rows] = x
    return full


def statistics(name: str) -> dict[str, Any]:
    """Train the networks of an experiment, and return its entry of the table."""
    experiment = EXPERIMENTS[name]
    seed = 1 + list(EXPERIMENTS).index(name)
    entry: dict[str, Any] = {"widths": list(experiment.counts), "networks": list(experiment.counts.values())}
    entry["seeds"] = [1000 * seed + width for width in experiment.counts]
    times = list(experiment.times)
    for width, number in zip(entry["widths"], entry["seeds"], strict=True):
        samples = experiment.samples(width, number)
        values = {key: x[:, times] for key, x in samples.values.items() if key != "train_loss"}
        kept = Samples(width, values, samples.controls, samples.rounding)
        for key in values:
            for kind, estimate in (("mean", kept.mean(key)), ("variance", kept.scaled_variance(key))):
                for part in ("value", "error"):
                    numbers = _folded(key, getattr(estimate, part))
                    entry.setdefault(f"{key}_{kind}_{part}", []).append(numbers)
    return entry


def _settings(name: str) -> dict[str, Any]:
    """Return the attributes of a training, arrays as lists."""
    settings = asdict(EXPERIMENTS[name].training)
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in settings.items()}


def _written(name: str, entry: Mapping[str, Any]) -> str:
    """Return an entry as TOML, numbers with seven digits and errors with three."""
    training = ", ".join(f"{k} = {json.dumps(v)}" for k, v in _settings(name).items())
    lines = [f"[{name}]", f"training = {{{training}}}", f"times = {list(EXPERIMENTS[name].times)}"]
    for key, value in entry.items():
        if not key.endswith(("_value", "_error")):
            lines.append(f"{key} = {value}")
            continue
        digits = 7 if key.endswith("_value") else 3
        rows = ["  [" + ", ".join(_row(row, digits) for row in width) + "]" for width in value]
        lines.append("\n".join([f"{key} = [", *(f"{row}," for row in rows), "]"]))
    return "\n".join(lines) + "\n"


def _row(numbers: Array, digits: int) -> str:
    """Return numbers as a TOML array of floats."""
    return str([float(f"{x:.{digits}g}") for x in numbers])


def write(names: Sequence[str], path: Path = TABLE) -> None:
    """Train the networks of some experiments, and write their numbers to the table or replace them there."""
    texts = _entries(path)
    for name in names:
        start = time.perf_counter()
        texts[name] = _written(name, statistics(name))
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        head = textwrap.fill(" ".join((__doc__ or "").split("\n\n")[0].split()), 108)
        comment = "\n".join(f"# {line}" for line in head.splitlines())
        ordered = [texts[x] for x in EXPERIMENTS if x in texts]
        path.write_text("\n".join([comment + "\n", *ordered]))


def _entries(path: Path) -> dict[str, str]:
    """Return the text of each entry of a table."""
    if not path.exists():
        return {}
    parts = path.read_text().split("\n[")[1:]
    return {x.split("]")[0]: "[" + x.rstrip("\n") + "\n" for x in parts if x.split("]")[0] in EXPERIMENTS}


def load(name: str, path: Path = TABLE) -> Reference:
    """Read the numbers of an experiment from the table.

    Parameters
    ----------
    name : str
        Key of ``EXPERIMENTS``.
    path : Path
        The table.

    Returns
    -------
    Reference
        Means and variances of ``f``, ``loss``, ``Phi``, ``G`` and ``tangent_kernel``, or of ``C_v``,
        ``C_Delta``, ``C_h0``, ``C_h`` and ``C_g``, at the times of the experiment.

    Raises
    ------
    ValueError
        If the numbers belong to another training or to other times than those of ``EXPERIMENTS``.
    """
    entry, experiment = tomllib.loads(_entries(path)[name])[name], EXPERIMENTS[name]
    if (entry["training"], entry["times"]) != (_settings(name), list(experiment.times)):
        raise ValueError(f"{path.name}: the entry {name} is of another training, write it again")
    found: dict[str, dict[str, list[Estimate]]] = {"mean": {}, "variance": {}}
    for key in (x.removesuffix("_mean_value") for x in entry if x.endswith("_mean_value")):
        for kind, estimates in found.items():
            value, error = (
                [
                    _unfolded(key, np.array(rows, dtype=float), experiment.training.depth)
                    for rows in entry[f"{key}_{kind}_{part}"]
                ]
                for part in ("value", "error")
            )
            estimates[key] = [Estimate(a, b) for a, b in zip(value, error, strict=True)]
    return Reference(experiment, tuple(entry["widths"]), found["mean"], found["variance"])


if __name__ == "__main__":
    write(sys.argv[1:] or list(EXPERIMENTS))
