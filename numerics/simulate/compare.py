"""Theory against networks, with error bars that mean what they say.

Entries of a kernel are strongly correlated: summing the squared z-scores of all of them would count one
fluctuation thousands of times. A few summary curves are preselected instead (``series.py``): the loss
at a few fractions of the run, every other curve at its end. Each is one number per network, so its
standard error comes from independent samples. The largest |z| is judged by Sidak's bound, which holds
whatever the correlations are among Gaussian estimates (and is conservative when they are strong), with
Student's t for the finite number of networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import t as student

from .extrapolate import Line, check_same_axes
from .series import theory_series

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One observable: z = (network - theory)/stderr; ``dof`` of the standard error; two-sided ``p_value``."""

    name: str
    time: float
    theory: float
    network: float
    stderr: float
    z: float
    dof: float
    p_value: float


@dataclass(frozen=True)
class Comparison:
    """All observables, judged together at significance ``level``."""

    rows: tuple[Row, ...]
    level: float
    extrapolated: bool

    @property
    def worst(self) -> Row:
        """The row with the smallest p-value."""
        return min(self.rows, key=lambda row: row.p_value)

    @property
    def p_value(self) -> float:
        """At most this chance that any row is as bad as the worst if the theory is right (Sidak)."""
        p = self.worst.p_value
        return 1.0 if p >= 1.0 else float(-np.expm1(len(self.rows) * np.log1p(-p)))

    @property
    def passed(self) -> bool:
        return self.p_value >= self.level

    @property
    def tolerance(self) -> float:
        """The largest |network - theory|/|theory| that some row could have had and passed."""
        each = -np.expm1(np.log1p(-self.level) / len(self.rows))
        allowed = [
            float(student.isf(each / 2, row.dof)) * row.stderr / abs(row.theory)
            for row in self.rows
            if row.stderr > 0 and row.theory != 0
        ]
        return max(allowed, default=0.0)

    def __str__(self) -> str:
        lines = [f"{'observable':<16}{'time':>9}{'theory':>12}{'networks':>12}{'+-':>10}{'z':>7}"]
        lines += [
            f"{r.name:<16}{r.time:>9.4g}{r.theory:>12.6g}{r.network:>12.6g}{r.stderr:>10.2g}{r.z:>7.2f}"
            for r in self.rows
        ]
        verdict = "agree" if self.passed else "DISAGREE"
        among = f"the worst of {len(self.rows)} (level {self.level:g})"
        lines.append(f"{verdict}: p = {self.p_value:.3g} for {among}")
        return "\n".join(lines)


def compare(
    theory: xr.Dataset,
    networks: xr.Dataset | Sequence[xr.Dataset],
    *,
    at: Sequence[float] = (0.25, 0.5, 1.0),
    level: float = 0.01,
) -> Comparison:
    """z-scores of the preselected observables and one verdict at significance ``level``.

    ``theory``: a dataset with train_loss, Phi, G, tangent_kernel on the networks' time axis.
    ``networks``: results of ``simulate``, at two or more widths to be extrapolated to 1/N -> 0, or at
    one width (then the O(1/N) difference counts against the theory). ``at`` are the fractions of the
    run at which losses are compared. Raises ``ValueError`` if the axes differ.
    """
    data = [networks] if isinstance(networks, xr.Dataset) else list(networks)
    for d in data:
        check_same_axes(theory, d)
    counts = [d.sizes["network"] for d in data]
    widths = [d.attrs["width"] for d in data]
    weights = np.ones(1) if len(data) == 1 else Line.through(widths, counts).intercept
    expected = theory_series(theory)
    names = [str(name) for name in expected["observable"].to_numpy()]
    for d in data:
        if [str(name) for name in d["observable"].to_numpy()] != names:
            raise ValueError("the axis 'observable' differs: the networks have another depth")
    curves = [d["series"].to_numpy() for d in data]
    last = theory.sizes["time"] - 1
    rows = []
    for index, name in enumerate(names):
        places = sorted({round(x * last) for x in at}) if name == "train_loss" else [last]
        for place in places:
            draws = [c[:, index, place] for c in curves]
            value = float(expected.to_numpy()[index, place])
            rows.append(_row(name, float(theory["time"][place]), value, draws, weights))
    return Comparison(tuple(rows), level, extrapolated=len(data) > 1)


def _row(name: str, time: float, theory: float, draws: Sequence[Array], weights: Array) -> Row:
    mean = float(sum(w * d.mean() for w, d in zip(weights, draws, strict=True)))
    parts = np.array([w**2 * d.var(ddof=1) / len(d) for w, d in zip(weights, draws, strict=True)])
    stderr = float(np.sqrt(parts.sum()))
    difference = mean - theory
    if stderr == 0.0:
        z = 0.0 if difference == 0.0 else float(np.copysign(np.inf, difference))
        return Row(name, time, theory, mean, stderr, z, np.inf, float(z == 0.0))
    # Welch-Satterthwaite: degrees of freedom of a sum of independent variance estimates
    dof = float(parts.sum() ** 2 / (parts**2 / np.array([len(d) - 1 for d in draws])).sum())
    z = difference / stderr
    return Row(name, time, theory, mean, stderr, z, dof, float(2 * student.sf(abs(z), dof)))
