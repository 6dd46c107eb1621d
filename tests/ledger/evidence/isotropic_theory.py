"""Theories of deep linear networks on random data: as derived, and with equations put in as printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Basic, Expr, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell
from derive.program import Program
from derive.reduce.data import absorb_factors
from derive.theory import Equation, Source, Term, Theory
from numerics.simulation import Measured, simulate_program
from numerics.solver.direct import Evaluated, evaluate
from tests.derive.once import isotropic, mean_field
from tests.ledger.evidence.base import MUCH, Finding, agrees, contradicts

Array = NDArray[np.float64]
Claim = Mapping[str, Basic]

DEPTH = 2
VALUES = {"eta": 0.25, "gamma0": 2.0, "nu": 0.75, "alpha": 1.5, "alpha_B": 1.5, "sigma": 0.5}
STEPS = 3
"""Steps of descent; kernels are at times 0..3."""
FEATURES, NETWORKS = 800, 48
ENDS = {("h", 1), ("u", 1), ("g", DEPTH), ("r", DEPTH)}
"""Members that have an equation of their own."""
CLOSE = 4.0
"""Standard errors that a right number may be off."""


Place = tuple[str, int, int, int]
"""Name of a correlation, its layer (0: none), two times."""


@lru_cache(maxsize=16)
def program(data: str = "full-batch", center: bool = False, noise: bool = True) -> Program:
    """Return the program with two hidden layers."""
    return isotropic(DEPTH, data=data, center=center, noise=noise)


def in_units_of_the_paper(p: Program) -> Theory:
    """Return the derived theory, with factor one in front of r0 and u0."""
    theory = mean_field(p)
    there = {str(x.symbol.func) for x in theory.sources}
    return absorb_factors(theory, *[n for n in ("r0", "u0") if n in there])


@lru_cache(maxsize=16)
def derived(data: str = "full-batch", center: bool = False, noise: bool = True) -> Theory:
    """Return the derived theory of :func:`program`."""
    return in_units_of_the_paper(program(data, center, noise))


def printed(theory: Theory, claim: Claim) -> Theory:
    """Return ``theory`` with the equations and covariances of ``claim`` in place of its own."""
    used: set[str] = set()

    def equation(e: Equation) -> Equation:
        new = _put(claim, used, e.lhs, "")
        return e if new is None else Equation(e.lhs, (Term.local(new, "definition"),), e.ranges)

    def source(u: Source) -> Source:
        new = _put(claim, used, u.symbol, "cov_")
        return u if new is None else replace(u, covariance=new)

    changed = replace(
        theory,
        equations=tuple(map(equation, theory.equations)),
        sources=tuple(map(source, theory.sources)),
    )
    if unused := set(claim) - used:
        raise KeyError(f"the theory has no equation for {', '.join(sorted(unused))}")
    return changed


def _put(claim: Claim, used: set[str], symbol: AppliedUndef, prefix: str) -> Expr | None:
    """Return the printed right-hand side for ``symbol``, of its layer if there is one, else of the family."""
    name, layer = str(symbol.func), symbol.args[0] if len(symbol.args) == 2 else None
    keys = [prefix + name]
    if layer is not None and layer.is_Integer:
        family = [] if (name, int(layer)) in ENDS else keys
        keys = [f"{prefix}{name}{layer}", *([f"{prefix}{name}L"] if layer == DEPTH else []), *family]
    for key in keys:
        if key in claim:
            used.add(key)
            return sympify(claim[key]).subs(ell, ell if layer is None else layer)
    return None


def solved(theory: Theory, **values: float) -> Evaluated:
    """Return all order parameters at times 0..STEPS."""
    return evaluate(theory, steps=STEPS + 1, values={**VALUES, **values})


@lru_cache(maxsize=8)
def networks(data: str = "full-batch", center: bool = False) -> dict[str, Measured]:
    """Return means over finite networks, with standard errors."""
    return simulate_program(
        program(data, center), width=FEATURES, steps=STEPS, seeds=NETWORKS, values=VALUES, seed=2025
    )


@lru_cache(maxsize=8)
def measured(data: str = "full-batch", center: bool = False) -> dict[tuple[str, int], tuple[Array, Array]]:
    """Return the same by name and layer (0 if it has no layer): value and standard error."""
    found: dict[tuple[str, int], tuple[Array, Array]] = {}
    for name, x in networks(data, center).items():
        for layer in range(1, DEPTH + 1) if name in ("C_h", "C_g") else (0,):
            one = x[layer] if layer else x
            found[name, layer] = one.mean, one.stderr
    return found


def deviation(run: Evaluated, place: Place, data: str = "full-batch", center: bool = False) -> float:
    """Return the deviation of networks from a theory at one entry, in standard errors."""
    name, layer, *at = place
    value, error = measured(data, center)[name, layer]
    theory = run.value(name, layer or None)
    return float((value[tuple(at)] - theory[tuple(at)]) / error[tuple(at)])


def right(data: str = "full-batch", center: bool = False) -> list[Finding]:
    """Return findings that the derived theory agrees with networks in all entries of all correlations."""
    run, findings = solved(derived(data, center)), []
    for (name, layer), (value, error) in measured(data, center).items():
        z = np.abs(value - run.value(name, layer or None))[error > 0] / error[error > 0]
        what = f"largest z of the derived {label((name, layer, None, None))}, {data}{', centred' * center}"
        findings.append(agrees(what, float(np.max(z)), CLOSE))
    return findings


def off(
    claim: Claim, what: str, *places: Place, data: str = "full-batch", center: bool = False, by: float = MUCH
) -> list[Finding]:
    """Return findings that the theory with a printed claim disagrees with networks."""
    run = solved(printed(derived(data, center), claim))
    return [
        contradicts(f"z of {label(p)}, {what}", deviation(run, p, data, center), 1.0, by=by) for p in places
    ]


def value(e: Basic, run: Evaluated, **at: int) -> float:
    """Return a printed formula at integer times (``t=2``), with order parameters from ``run``.

    >>> from tests.ledger.claims.linear2025.full_batch import losses
    >>> value(losses()["test"], solved(derived()), t=0) > 1
    True
    """
    times = {x: at[str(x)] for x in e.free_symbols if str(x) in at}
    expr = sympify(e).subs(times).doit()
    found = {a: _entry(a, run) for a in expr.atoms(AppliedUndef)}
    numbers = {x: VALUES[str(x)] for x in expr.free_symbols}
    return float(expr.xreplace({**found, **numbers}))


def _entry(a: AppliedUndef, run: Evaluated) -> float:
    *layer, i, j = (int(x) for x in a.args)
    return float(run.value(str(a.func), *layer)[i, j])


def label(p: tuple[str, int, int | None, int | None]) -> str:
    """Return the label of an entry of a correlation."""
    name, layer, *at = p
    times = "" if None in at else f"({at[0]},{at[1]})"
    return f"{name}{f'^{layer}' if layer else ''}{times}"
