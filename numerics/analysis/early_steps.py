"""The first few steps of an experiment on isotropic data, and whether a loss that rises comes down again.

Curves are the solved theory; the recursion beside them, its dropped terms and the rates of the lazy limit are
derived closed forms with the experiment's numbers put in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr, Pow, Rational, Symbol, nsimplify, sympify

from derive.errors import NotApplicable
from derive.program import eta, gamma0
from derive.program.networks.random_data import sigma
from derive.scale import lazy_steps, memory_free
from derive.theory import Theory
from numerics.analysis.sweep import Rate, largest_rate
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of, theory_at_depth

NODES = 4
"""Eigenvalues that stand for the spectrum of the lazy kernel."""


@dataclass(frozen=True)
class EarlySteps:
    """``C_v`` and the loss on fresh or repeated samples (``C_Delta``) after each step, as solved.

    ``memory_free`` is the recursion beside ``C_v``, and ``dropped`` its neglected terms in the second step by
    name; both are None, and ``refused`` says why, where the experiment has no such recursion.
    """

    C_v: tuple[float, ...]
    C_Delta: tuple[float, ...] | None
    noise: float
    memory_free: tuple[float, ...] | None
    dropped: Mapping[str, float] | None
    refused: str | None

    @property
    def test_growth_factor(self) -> float:
        """The test loss, label noise included, after the first step over that before."""
        return (self.C_v[1] + self.noise**2) / (self.C_v[0] + self.noise**2)

    @property
    def train_growth_factor(self) -> float | None:
        """The same of the training loss (online: on the batch of the step); None if there are no samples."""
        return None if self.C_Delta is None else self.C_Delta[1] / self.C_Delta[0]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "C_v": list(self.C_v),
            "test_growth_factor": self.test_growth_factor,
            "train_growth_factor": self.train_growth_factor,
            "memory_free": None if self.memory_free is None else list(self.memory_free),
            "dropped": None if self.dropped is None else dict(self.dropped),
        }


@dataclass(frozen=True)
class Recovery:
    """Rates: ``critical`` first raises the loss, below ``largest`` training still succeeds, as solved.

    ``lazy`` is the largest rate of the lazy limit and ``ceiling`` a bound on it in closed form; both are
    None, and ``refused`` says why, where that limit has no closed form.
    """

    critical: float | None
    largest: Rate
    lazy: float | None
    ceiling: float | None
    refused: str | None

    @property
    def recovers(self) -> bool:
        """Is there a rate at which the loss first rises and then falls below its start?"""
        return self.critical is not None and self.largest.stable > self.critical

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "largest_learning_rate": self.largest.value,
            "recovers": self.recovers,
            "lazy_largest_learning_rate": self.lazy,
            "lazy_ceiling": self.ceiling,
        }


def early_steps(experiment: Experiment, steps: int) -> EarlySteps:
    """``steps`` steps of ``experiment``, on isotropic data.

    Raises :class:`~numerics.errors.SpecError` for a depth that is a symbol and for no steps at all, and what
    the solver raises.

    >>> from numerics.experiment import Experiment
    >>> found = early_steps(Experiment.from_dict({
    ...     "network": {"depth": 1, "width_ratio": 1.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.25, "steps": 1, "center": True}}), 2)
    >>> found.memory_free
    (1.0, 0.3125, 0.09765625)
    >>> round(sum(found.dropped.values()) + found.memory_free[2] - found.C_v[2], 12)
    0.0
    """
    from numerics.solver import solve

    if steps < 1:
        raise SpecError("steps", steps, "is no number of steps", "1 or more")
    numbers = _numbers(experiment)
    solved = solve(experiment.replace({"training.steps": steps}))
    curves = {
        name: tuple(float(solved[name].values[t, t]) for t in range(steps + 1))
        for name in ("C_v", "C_Delta")
        if name in solved
    }
    rest = {sigma: numbers.pop(sigma, Rational(0))}
    found = (curves["C_v"], curves.get("C_Delta"), float(rest[sigma]))
    try:
        recursion = memory_free(_put(theory_at_depth(experiment), numbers))
    except NotApplicable as reason:
        return EarlySteps(*found, None, None, str(reason))
    repeated = tuple(float(recursion.loss(t).subs(rest)) for t in range(steps + 1))
    dropped = {k: float(x.subs(rest)) for k, x in recursion.dropped.items()}
    return EarlySteps(*found, repeated, dropped, None)


def recovery(experiment: Experiment, *, rtol: float = 0.01, nodes: int = NODES) -> Recovery:
    """The largest rate of ``experiment`` within its steps, beside the critical and the lazy ones.

    ``nodes`` eigenvalues stand for the lazy spectrum; the rate falls with their number, see
    :meth:`.LazySteps.largest_rate`.  Raises what :func:`.largest_rate` raises.

    >>> from numerics.experiment import Experiment
    >>> found = recovery(Experiment.from_dict({
    ...     "network": {"depth": 1, "width_ratio": 0.5, "gamma0": 0.5},
    ...     "data": {"kind": "isotropic", "batch_ratio": 0.25},
    ...     "training": {"rule": "sgd", "learning_rate": 0.1, "steps": 40, "center": True}}), rtol=0.02)
    >>> round(found.critical, 4), round(found.lazy, 3), found.ceiling, found.recovers
    (0.1333, 0.175, 0.2, True)
    """
    from numerics.analysis.early_time import early_time

    numbers = {x: value for x, value in _numbers(experiment).items() if x not in (eta, gamma0)}
    lazy: float | None = None
    ceiling: float | None = None
    refused: str | None = None
    try:
        found = lazy_steps(_put(theory_at_depth(experiment), numbers), nodes)
        lazy, ceiling = float(found.largest_rate()), float(found.ceiling)
    except NotApplicable as reason:
        refused = str(reason)
    critical = early_time(experiment).critical_learning_rate
    return Recovery(critical, largest_rate(experiment, rtol=rtol), lazy, ceiling, refused)


def _numbers(experiment: Experiment) -> dict[Symbol, Expr]:
    if experiment.symbolic:
        raise SpecError("network.depth", "L", "is a symbol; steps need a number", "a number of hidden layers")
    return {x: Rational(str(value)) for x, value in numbers_of(experiment).items()}


def _put(theory: Theory, numbers: Mapping[Symbol, Expr]) -> Theory:
    """With the numbers in place of symbols, in fractions: roots of numbers to thirty digits."""

    def exact(e: Expr) -> Expr:
        e = nsimplify(sympify(e).subs(numbers), rational=True)
        roots = [p for p in e.atoms(Pow) if p.is_number and not p.is_Rational]
        return e.xreplace({p: Rational(str(p.evalf(30))) for p in roots})

    return theory.map(exact)


__all__ = ["EarlySteps", "Recovery", "early_steps", "recovery"]
