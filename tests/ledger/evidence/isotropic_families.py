"""Trained networks and theories in NTK parametrisation, of unequal widths and of several outputs.

The networks are deep and linear (linear2025, appendices B, F, G). For these the paper prints definitions and
statements only. The rejected alternative is the theory of a similar network: mean-field for NTK, equal widths
for unequal ones, uncoupled channels for several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Function, Sum, sympify

from derive.calculus.symbols import gamma0
from derive.program import Program
from derive.program.language import GaussianVector
from derive.program.networks.random_data import c
from derive.theory import Theory
from numerics.solver.direct import evaluate
from tests.derive.once import isotropic, mean_field
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import Experiment, off, right
from tests.ledger.evidence.isotropic_theory import DEPTH, STEPS, VALUES

Array = NDArray[np.float64]

WIDTHS = {1: 0.5, 2: 1.25}
"""Ratios nu_1, nu_2 of the network of unequal widths."""
MANY = (1e3, 4e3)
"""Ratios nu between which powers of nu are read off."""
EXACT = 1e-10
CALM = {"eta": 0.4, "gamma0": 1.0, "nu": 2.0, "alpha": 3.0, "sigma": 0.3}
"""Where networks of a few hundred units fluctuate little."""
FEATURES, NETWORKS = 200, 96


def _experiment(
    program: Program, values: Mapping[str, float] = VALUES, features: int = FEATURES
) -> Experiment:
    data = {"nu": WIDTHS} if "nu" in program.constants else {}
    return Experiment(program, values, data, width=features, networks=NETWORKS, steps=STEPS)


@lru_cache(maxsize=4)
def _theory(parametrization: str = "mean-field") -> Theory:
    return mean_field(isotropic(DEPTH, noise=True, parametrization=parametrization))


def _learnt(theory: Theory, nu: float) -> float:
    """Return the growth of <g^1 g^1> until after the last step."""
    values = {**VALUES, "nu": nu, "gamma0": 1.0}
    return float(evaluate(theory, steps=STEPS + 1, values=values).value("C_g", 1)[-1, -1] - 1)


def _power(theory: Theory) -> float:
    few, many = (_learnt(theory, nu) for nu in MANY)
    return float(np.log(many / few) / np.log(MANY[1] / MANY[0]))


def _rescaled(theory: Theory, factor: Expr) -> Theory:
    """Return the theory with gamma0 times a factor everywhere."""

    def new(e: Expr) -> Expr:
        return e.subs(gamma0, gamma0 * factor)

    return replace(
        theory,
        equations=tuple(replace(e, terms=tuple(x.rewrite(new) for x in e.terms)) for e in theory.equations),
        sources=tuple(replace(u, covariance=new(u.covariance)) for u in theory.sources),
    )


def parametrisations() -> Evidence:
    """Check text before (14), text after (70): gamma0/sqrt(nu), and features fixed as nu grows."""
    ntk = _experiment(
        isotropic(DEPTH, noise=True, parametrization="ntk"), {**VALUES, "nu": 3.0}, FEATURES // 2
    )
    claims = {k: sympify(e) for k, e in claimed("linear2025", "14 text").items()}
    printed = _rescaled(_theory(), claims["ntk"] / claims["mean field"])
    run = evaluate(printed.at_depth(DEPTH), steps=STEPS + 1, values=ntk.values)
    gap = max(float(np.max(np.abs(run.value(n) - ntk.solved().value(n)))) for n in ("C_v", "C_h0", "C_Delta"))
    powers = _power(_theory("ntk")), _power(_theory())
    measured = ntk.measured()
    return conclude(
        "isotropic_families:parametrisations",
        f"NTK networks agree with gamma0/sqrt(nu) and reject gamma0; after {STEPS} steps the growth of C_g^1 "
        f"goes like nu^{powers[0]:.3f} in NTK and nu^{powers[1]:.3f} in mean-field parametrisation.",
        right("NTK", ntk, measured),
        agrees("mean field at the printed gamma0/sqrt(nu) minus NTK", gap, EXACT),
        off("mean field at gamma0", ntk, measured, _theory().at_depth(DEPTH)),
        agrees("NTK: power of nu in the growth of C_g^1, plus 1", powers[0] + 1, 0.05),
        agrees("mean field: power of nu in the growth of C_g^1", powers[1], 0.05),
    )


def unequal_widths() -> Evidence:
    """Check (117), (118): layers of different widths."""
    experiment = _experiment(isotropic(DEPTH, noise=True, widths=Function("nu")))
    measured = experiment.measured()
    start = float(experiment.solved().value("C_g", 1)[0, 0])
    level = isotropic(DEPTH, noise=True, widths=sympify(WIDTHS[DEPTH]))
    return conclude(
        "isotropic_families:unequal_widths",
        f"Networks with nu_1 = {WIDTHS[1]:g}, nu_2 = {WIDTHS[2]:g} agree with the derived theory, "
        f"C_g^1(0,0) = nu_2/nu_1 = {start:g} included, and reject equal widths nu_2.",
        right("unequal widths", experiment, measured),
        agrees("C_g^1(0,0) minus nu_2/nu_1", start - WIDTHS[2] / WIDTHS[1], EXACT),
        off("equal widths", experiment, measured, mean_field(level).at_depth(DEPTH)),
    )


def outputs() -> Evidence:
    """Check (123)-(125): two outputs, which need correlations and responses across channels."""
    experiment = _experiment(_with_common_target(isotropic(DEPTH, noise=True, outputs=2)), CALM)
    measured, theory = experiment.measured(), experiment.theory()
    across, error = (x[0, 1] for x in measured["C_h1"])
    seen = np.max(np.abs(across) / np.where(error > 0, error, np.inf))
    return conclude(
        "isotropic_families:outputs",
        "Networks with two outputs agree with the derived equations, sums over both channels in every "
        "memory; channels that do not talk are rejected.",
        right("two outputs", experiment, measured),
        contradicts("largest z of C_h^1 across channels", float(seen), 1.0),
        off("memory of the own channel only", experiment, measured, _apart(theory)),
    )


def _with_common_target(program: Program) -> Program:
    """Return the program with a part of the target that all outputs share.

    With independent targets alone every correlation across channels vanishes, because changing the sign of
    one channel's target, readout and noise changes nothing.
    """
    features = next(x.population for x in program.fields if x.name == "v")
    common = GaussianVector("b", features, source="b")
    learning = [replace(d, rhs=d.rhs + common.symbol) if d.name == "v" else d for d in program.definitions]
    return replace(program, definitions=tuple(learning), vectors=(*program.vectors, common))


def _apart(theory: Theory) -> Theory:
    """Return the theory with memory and responses of the same channel only."""

    def own(e: Expr) -> Expr:
        return e.replace(lambda x: isinstance(x, Sum), _own_channel)

    return replace(
        theory,
        equations=tuple(replace(e, terms=tuple(x.rewrite(own) for x in e.terms)) for e in theory.equations),
    )


def _own_channel(e: Sum) -> Expr:
    other = [x for x in e.variables if str(x) == "c_"]
    return Sum(e.function.subs(other[0], c), *[x for x in e.limits if x[0] not in other]) if other else e


__all__ = ["outputs", "parametrisations", "unequal_widths"]
