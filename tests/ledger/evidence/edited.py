"""Trained finite networks against a derived theory, and against that theory with printed equations put in.

A printed flow is read as the Euler steps that networks take: integrals over the past become sums over s < t,
with the step eta where the error stands; responses are those of the steps, A for s < t and B for s <= t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import (
    Add,
    Basic,
    Derivative,
    Expr,
    Function,
    Heaviside,
    Integral,
    KroneckerDelta,
    S,
    Sum,
    sympify,
    tanh,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import ell, eta, s, t
from derive.program import Program
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from numerics.simulation import Measured, simulate_program
from numerics.solver.direct import Evaluated, evaluate
from tests.derive.once import mean_field
from tests.ledger.evidence.base import MUCH, Finding, agrees, contradicts

Array = NDArray[np.float64]
Claim = Mapping[str, Basic]

CLOSE = 4.5
"""Standard errors by which the worst of some hundred correlated entries may be off."""
ROUNDING = 1e-9
"""Below this a number is exact on both sides: where neither networks nor paths fluctuate."""


@dataclass(frozen=True)
class Experiment:
    """A program, its numbers and data, and how many networks of which width are trained how long.

    Networks are trained at widths N and 2N, and a correction of order 1/N is taken off.
    """

    program: Program
    values: Mapping[str, float]
    data: Mapping[str, Any]
    width: int = 200
    networks: int = 160
    steps: int = 3
    seed: int = 2023

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return int(self.program.depth)

    def theory(self) -> Theory:
        """Return the derived theory at integer depth."""
        return mean_field(self.program).at_depth(self.depth)

    def solved(self, theory: Theory | None = None, samples: int = 2**12) -> Evaluated:
        """Return the numerical solution of ``theory``, or of the derived one."""
        known = {k: v for k, v in self.data.items() if k != "x"}
        if "x" in self.data:
            known["K_x"] = kernel_of(np.asarray(self.data["x"]))
        return evaluate(
            theory or self.theory(), steps=self.steps + 1, values=self.values, data=known, samples=samples
        )

    def measured(self) -> dict[str, tuple[Array, Array]]:
        """Return order parameters of infinitely wide networks with standard errors, axes as in the theory.

        Names are ``Phi2`` for a kernel of layer 2, ``f`` for a number.
        """
        narrow, wide = (self._trained(self.width * k, self.networks // k, k) for k in (1, 2))
        found = {}
        for name, (value, error) in wide.items():
            other, spread = narrow[name]
            found[name] = 2 * value - other, np.sqrt(4 * error**2 + spread**2)
        return found

    def _trained(self, width: int, networks: int, seed: int) -> dict[str, tuple[Array, Array]]:
        runs = simulate_program(
            self.program,
            width=width,
            steps=self.steps,
            seeds=networks,
            values=self.values,
            data={k: v for k, v in self.data.items() if k != "K_x" or "x" not in self.data},
            seed=self.seed + seed,
        )
        return dict(x for name, run in runs.items() for x in _entries(name, run))


def kernel_of(x: Array) -> Array:
    """Return the Gram matrix of inputs (P, D), or of images (P, positions, D).

    The axes are sample (and position), twice.
    """
    flat = x.reshape(-1, x.shape[-1])
    return np.asarray((flat @ flat.T / x.shape[-1]).reshape(*x.shape[:-1], *x.shape[:-1]))


def _entries(name: str, run: Measured) -> list[tuple[str, tuple[Array, Array]]]:
    if run.axes[0][0] == "t":
        if len(run.axes) > 1 and run.axes[1][0] == "s":
            return [(name, (_times_last(run.mean), _times_last(run.stderr)))]
        return [(name, (run.mean, run.stderr))]
    layers = [int(x) for x in run.axes[0][1]]
    return [(f"{name}{k}", (_times_last(run[k].mean), _times_last(run[k].stderr))) for k in layers]


def _times_last(x: Array) -> Array:
    return np.moveaxis(x, (0, 1), (-2, -1))


def value(run: Evaluated, name: str) -> tuple[Array, Array]:
    """Return a number or a kernel of a layer (``Phi2``) with its standard error."""
    at = (name[:-1], int(name[-1])) if name[-1].isdigit() and (name, ()) not in run.values else (name, None)
    return run.value(*at), run.stderr(*at)


def worst(measured: Mapping[str, tuple[Array, Array]], run: Evaluated, *names: str) -> float:
    """Return the largest deviation of a theory from networks, in standard errors of the difference."""
    found = [0.0]
    for name in names or tuple(measured):
        (mean, error), (theory, spread) = measured[name], value(run, name)
        both, gap = np.sqrt(error**2 + spread**2), np.abs(mean - theory)
        exact = both < ROUNDING
        found += [float(np.max((gap / np.where(exact, 1.0, both))[~exact], initial=0.0))]
        if np.any(gap[exact] > 1e3 * ROUNDING):
            return float("inf")
    return max(found)


def right(what: str, experiment: Experiment, measured: Mapping[str, tuple[Array, Array]]) -> Finding:
    """Return the finding that all measured numbers agree with the derived theory."""
    count = sum(x.size for x, _ in measured.values())
    label = f"{what}: largest z of {count} numbers of the derived theory"
    return agrees(label, worst(measured, experiment.solved()), CLOSE)


def off(
    what: str, experiment: Experiment, measured: Mapping[str, tuple[Array, Array]], theory: Theory
) -> Finding:
    """Return the finding that the theory with printed equations disagrees with networks."""
    return contradicts(f"{what}: largest z", worst(measured, experiment.solved(theory)), 1.0, by=MUCH)


# -- printed equations in place of derived ones --------------------------------------------------------------


def edited(theory: Theory, claim: Claim, depth: int) -> Theory:
    """Return ``theory`` (at integer depth) with the equations, covariances and definitions of ``claim``.

    Covariances are named as ``cov_u``. Raises KeyError for a part of the claim that the theory lacks.
    """
    used: set[str] = set()

    def printed(key: str, layer: Expr) -> Expr | None:
        if key not in claim:
            return None
        used.add(key)
        return placed(sympify(claim[key]), int(layer), depth)

    def equation(e: Equation) -> Equation:
        new = printed(e.name, e.lhs.args[0])
        return e if new is None else Equation(e.lhs, (Term.local(new, "definition"),), e.ranges)

    def source(x: Source) -> Source:
        new = printed(f"cov_{x.symbol.func}", x.symbol.args[0])
        return x if new is None else replace(x, covariance=new)

    def parameter(q: OrderParameter) -> OrderParameter:
        new = printed(q.name, q.symbol.args[0])
        return q if new is None else replace(q, definition=new)

    changed = replace(
        theory,
        equations=tuple(map(equation, theory.equations)),
        sources=tuple(map(source, theory.sources)),
        order_parameters=tuple(map(parameter, theory.order_parameters)),
    )
    if unused := set(claim) - used:
        raise KeyError(f"the theory has no place for {', '.join(sorted(unused))}")
    return changed


def placed(e: Expr, layer: int, depth: int) -> Expr:
    """Return a printed right-hand side at one layer: tanh for phi, Euler steps, values at the end layers."""
    at = e.subs(ell, layer).replace(Function("phi"), tanh).replace(Heaviside, lambda *_: S.One)
    at = at.replace(lambda x: isinstance(x, Derivative), lambda x: x.doit())
    at = at.replace(Function("average"), Average)
    at = at.replace(Function("response"), lambda x, y: Average(Response(x, y)))
    return _ended(at.replace(lambda x: isinstance(x, Integral), _stepped), depth)


def _ended(e: Expr, depth: int) -> Expr:
    def end(x: AppliedUndef) -> Expr:
        name, place, rest = str(x.func), x.args[0], x.args[1:]
        if (name, place) in (("A", 0), ("A_eps", 0), ("B", depth), ("B_eps", depth)):
            return S.Zero
        if (name, place) == ("Phi", 0):
            return Function("K_x")(*rest[:-2])
        if (name, place) == ("G", depth + 1):
            index = rest[:-2]
            half = len(index) // 2
            return KroneckerDelta(index[1], index[half + 1]) if half > 1 else S.One
        return x

    return e.replace(lambda x: isinstance(x, AppliedUndef) and x.args, end)


def _stepped(past: Integral) -> Expr:
    """Return the sum over steps in place of the integral over time, term by term."""
    total = []
    for x in Add.make_args(past.function.expand()):
        body, limits = (x.function, list(x.limits)) if isinstance(x, Sum) else (x, [])
        for part in Add.make_args(body.expand()):
            names = {str(a.func) for a in part.atoms(AppliedUndef)}
            rate = S.One if names & {"A", "B"} else eta
            total.append(Sum(rate * part, *limits, (s, 0, t if "B" in names else t - 1)))
    return Add(*total)
