"""Beyond the first step of online descent (linear2025 D.2, figure 9): memory, recovery and gamma0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from sympy import Poly, cancel, sympify

from derive.program import eta
from derive.program.networks.random_data import isotropic, nu
from derive.scale import first_step, memory_free
from numerics.analysis.limits import early_steps, early_time, recovery
from numerics.experiment import Experiment
from numerics.simulation import simulate
from numerics.solver import solve
from tests.derive.once import mean_field
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.first_step import at

SIZES, FEWER = {32: 1200, 64: 600}, {16: 800, 32: 400}
"""Neurons in a layer and networks, extrapolated linearly in one over the width."""
MANY_SHORT, WIDER = {32: 8000, 64: 8000}, {64: 600, 128: 300}
"""One step is cheap; after twenty at this rate a few narrow networks are most of the mean."""
MANY, FAR, ROUNDING = 4.0, 5.0, 1e-12
"""Standard errors of a mean over networks that agrees, and of one that does not; rounding."""
RATE, STEPS = 0.15, 3
NARROW, MOST = {"depth": 1, "gamma0": 1.0, "width_ratio": 0.1}, {"batch_ratio": 4.0}
"""Where width matters and the losses of networks vary little."""
NOISY = {"batch_ratio": 0.8, "noise": 0.5}
FORMS = {"(104)": "104", "caption": "105 text"}


def memory() -> Evidence:
    """Check (104) as a recursion: its second step omits four times the width term that it keeps."""
    e = _experiment(RATE, NARROW, MOST)
    found = early_steps(e, STEPS)
    assert found.memory_free is not None
    assert found.dropped is not None
    solved, repeated = found.C_v, found.memory_free
    every = memory_free(mean_field(isotropic(data="population", center=True)), order=2)
    kept, lost = (
        Poly(x.expand(), eta, 1 / nu).coeff_monomial(eta**2 / nu) for x in (every.factor, every.error)
    )
    measured, error = networks(e, STEPS, FEWER)
    printed = {k: sympify(claimed("linear2025", x)["growth"]) for k, x in FORMS.items()}
    powers = {"recursion": repeated[STEPS]} | {k: at(x, e) ** STEPS for k, x in printed.items()}
    words = ", ".join(f"{k} {x:.2f}" for k, x in powers.items())
    return conclude(
        "early_steps:memory",
        f"Networks have {measured:.3f} +- {error:.3f} in {STEPS} steps, solved {solved[STEPS]:.3f}; {words}. "
        "At small rates the second step drops 4 times the term with 1/nu that it keeps.",
        agrees("first step: recursion minus solved", repeated[1] - solved[1], ROUNDING),
        agrees(
            "dropped terms minus what the recursion misses",
            sum(found.dropped.values()) - (solved[2] - repeated[2]),
            ROUNDING,
        ),
        agrees("dropped over kept of the width, minus 4", float(cancel(lost / kept)) - 4, ROUNDING),
        agrees("networks minus solved", measured - solved[STEPS], MANY * error),
        *[
            contradicts(f"networks minus {k}", measured - x, error, by=FAR)
            for k, x in zip(("recursion (104 text)", *FORMS), powers.values(), strict=True)
        ],
    )


def not_centred() -> Evidence:
    """Check (105) text: gamma0 in the first step, by networks that are not centred, with noisy labels."""
    step = first_step(mean_field(isotropic(1, data="online", noise=True)))
    findings, words = [], []
    for strength in (0.7, 1.4):
        e = _experiment(0.2, {"depth": 1, "gamma0": strength, "width_ratio": 0.5}, NOISY, 1, center=False)
        derived = at(step.after, e)
        measured, error = networks(e, 1)
        words.append(f"{measured:.3f} +- {error:.3f} ({derived:.3f})")
        findings += [
            agrees(
                f"gamma0 = {strength}: closed form minus solved", derived - _losses(e)[1], ROUNDING * derived
            ),
            agrees(f"gamma0 = {strength}: networks minus closed form", measured - derived, MANY * error),
        ]
        centred = at(first_step(mean_field(isotropic(1, data="online", noise=True, center=True))).after, e)
        findings.append(
            contradicts(
                f"gamma0 = {strength}: networks minus centred form", measured - centred, error, by=FAR
            )
        )
    return conclude(
        "early_steps:not_centred",
        "C_v(1) of networks that are not centred (and closed form), gamma0 = 0.7, 1.4: "
        + ", ".join(words)
        + ".",
        *findings,
    )


def separation() -> Evidence:
    """Check (105): below the critical rate the loss of networks falls, above it rises.

    The networks have three hidden layers.
    """
    e = _experiment(RATE, {"depth": 3, "gamma0": 0.5, "width_ratio": 1.0}, {"batch_ratio": 1.0}, 1)
    critical = early_time(e).critical_learning_rate
    assert critical is not None
    findings, words = [], []
    for share in (0.7, 1.4):
        measured, error = networks(e.replace({"training.learning_rate": share * critical}), 1)
        words.append(f"{measured:.3f} +- {error:.3f}")
        side = 1 if share > 1 else -1
        far = contradicts(f"growth at {share} of the critical rate, minus 1", measured - 1, error, by=FAR)
        findings.append(replace(far, holds=far.holds and side * far.value > 0))
        solved = _losses(e.replace({"training.learning_rate": share * critical}))[1]
        findings.append(
            agrees(f"the same, networks minus solved, at {share}", measured - solved, MANY * error)
        )
    return conclude(
        "early_steps:separation",
        f"L = 3: growth of networks at 0.7 and 1.4 of the critical rate {critical:.4f}: "
        + ", ".join(words)
        + ".",
        *findings,
    )


def recovers() -> Evidence:
    """Check Figure 9: with gamma0 > 0 a rising loss can recover; with gamma0 -> 0 too, in small batches."""
    rate, late = 0.155, 20
    lazy = _experiment(rate, {"depth": 1, "gamma0": 1e-3, "width_ratio": 0.5}, {"batch_ratio": 0.25}, 60)
    numbers = recovery(lazy.replace({"training.steps": 20}), rtol=0.1)
    assert numbers.critical is not None
    assert numbers.lazy is not None
    (first, error), (last, last_error) = networks(lazy, 1, MANY_SHORT), networks(lazy, late, WIDER)
    below, above = (_losses(lazy.replace({"training.learning_rate": x * numbers.lazy})) for x in (0.97, 1.03))
    alone = _losses(_experiment(0.7, {"depth": 1, "gamma0": 1e-4, "width_ratio": 0.5}, {}, 8))
    slowing = -np.diff(alone[1:] / alone[:-1])
    rich = recovery(
        _experiment(0.3, {"depth": 3, "gamma0": 0.5, "width_ratio": 4.0}, {}, 100), rtol=0.02, nodes=2
    )
    assert rich.critical is not None
    assert rich.lazy is not None
    return conclude(
        "early_steps:recovers",
        f"Lazy, L = 1, nu = 1/2, alpha_B = 1/4: the loss rises first above {numbers.critical:.4f}, recovers "
        f"up to {numbers.lazy:.4f}; networks at {rate} have {first:.3f} +- {error:.3f} after one step and "
        f"{last:.2f} +- {last_error:.2f} after {late}. Without noise of batches no lazy loss recovers; at "
        f"gamma0 = 1/2, L = 3, nu = 4 it does up to {rich.largest.value / rich.critical:.2f} critical rates.",
        _below("minus the rise of networks in the first step, with 4 errors", 1 - first + MANY * error, 0),
        _below(f"loss of networks after {late} steps, with 4 errors", last + MANY * last_error, 1),
        _below("lazy, 3 % below the largest rate: loss after 60 steps over 30", below[60] / below[30], 0.6),
        _below("lazy, 3 % above: loss after 30 steps over 60", above[30] / above[60], 0.6),
        _below("no noise: largest fall of the growth from step to step", slowing.max(), 0),
        _below("no noise: largest lazy rate over the critical one", rich.lazy / rich.critical, 0.9),
        _below(
            "gamma0 = 1/2: critical rate over one that recovers", rich.critical / rich.largest.stable, 0.9
        ),
    )


def _below(label: str, value: float, limit: float) -> Finding:
    """Return the finding of a number that must be below a limit."""
    return Finding(label, float(value), limit, bool(value < limit))


def _losses(e: Experiment) -> np.ndarray:
    """Return ``C_v`` of the solved theory."""
    return np.diag(solve(e).C_v.values)


def networks(e: Experiment, step: int, sizes: Mapping[int, int] = SIZES) -> tuple[float, float]:
    """Return ``C_v`` of infinitely large networks after some steps, and its standard error."""
    found = []
    for width, count in sizes.items():
        run = simulate(e.replace({"training.steps": step}), width=width, seeds=count, rng=width)
        noise = float(e.spec.data.noise or 0) ** 2 if e.spec.data is not None else 0.0
        found.append((float(run.test_loss[step]) - noise, float(run.test_loss_stderr[step])))
    small, large = sizes
    weights = np.array([-small, large]) / (large - small)
    mean, error = np.array(found).T
    return float(weights @ mean), float(np.linalg.norm(weights * error))


def _experiment(
    rate: float,
    network: Mapping[str, object],
    data: Mapping[str, object],
    steps: int = STEPS,
    *,
    center: bool = True,
) -> Experiment:
    rule = "sgd" if "batch_ratio" in data else "gd"
    training = {"rule": rule, "learning_rate": rate, "steps": steps, "center": center}
    return Experiment.from_dict(
        {"network": dict(network), "data": {"kind": "isotropic", **data}, "training": training}
    )
