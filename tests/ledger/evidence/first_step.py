"""The first step of online descent, (103)-(105) of linear2025: closed form, solved theory and networks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import autograd.numpy as anp
import numpy as np
from sympy import Expr, Function, Integer, sympify

from derive.program import L, ell
from derive.program.networks.random_data import isotropic, nu
from derive.scale import FirstStep, first_step
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of
from numerics.solver import solve
from tests.derive.once import mean_field
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.lab import Weights, descend

SIZES = {100: 400, 200: 200}
"""Numbers of features and of networks, extrapolated linearly in 1/D."""
GAMMA0, RATIO, BATCH = 1.2, 1.0, 4.0
"""gamma0, N/D and B/D."""
MANY = 4.0
"""Standard errors of a mean over networks."""
ROUNDING = 1e-12


def gradients() -> Evidence:
    """Check (103): the last printed form is that of the first step, the two before it are not."""
    values = {str(k): x for k, x in closed_form().values.items()}
    first, inputs = {ell: Integer(1)}, values["C_h0(0, 0)"]
    C_g, R_gu = values["C_g(ell, 1, 1)"], values["R_gu(ell, 1, 0)"]
    gain, one = (C_g - values["C_g(ell, 0, 0)"]).subs(first), (C_g - C_g.subs(ell, ell + 1)).subs(first)
    printed = {
        k: sympify(x).replace(Function("C_h0"), lambda *_: inputs)
        for k, x in claimed("linear2025", "103").items()
    }
    return conclude(
        "first_step:gradients",
        "Of (103) the response and the last form are derived; the gain of a layer is too large by 4, and the "
        "form with a sum lacks gamma0^2.",
        agrees("R_gu", number(printed["R_gu"] - R_gu.subs(first)), ROUNDING),
        agrees("gain of C_g^1, last form", number(printed["gain in the end"] - gain), ROUNDING),
        contradicts("gain of C_g^1, form with a sum", number(printed["gain"] - gain), ROUNDING),
        contradicts("gain of one layer", number(printed["gain of one layer"] - one), ROUNDING),
        agrees("gain of one layer, a quarter", number(printed["gain of one layer"] / 4 - one), ROUNDING),
    )


def growth() -> Evidence:
    """Check (104), (105) text: the growth against networks, at L and at L + 1 for the printed L."""
    findings: list[Finding] = []
    words = []
    forms = {
        "(104)": sympify(claimed("linear2025", "104")["growth"]),
        "caption": sympify(claimed("linear2025", "105 text")["growth"]),
    }
    for depth, rate in ((1, 0.2), (3, 0.1)):
        e = experiment(depth, rate)
        derived = at(closed_form().growth_factor, e)
        solved = solve(e).C_v.values
        measured, error = networks(depth, rate)
        findings += [
            agrees(
                f"L = {depth}: closed form over solved theory, minus 1",
                derived * solved[0, 0] / solved[1, 1] - 1,
                ROUNDING,
            ),
            agrees(f"L = {depth}: networks minus closed form", measured - derived, MANY * error),
        ]
        for name, form in forms.items():
            for layers in (L, L + 1):
                there = at(form.subs(L, layers), e)
                label = f"L = {depth}: networks minus {name} with {layers} layers"
                findings.append(contradicts(label, measured - there, error, by=2 * MANY))
        words.append(
            f"{measured:.3f} +- {error:.3f}, derived {derived:.3f}, (104) {at(forms['(104)'], e):.3f}, "
            f"caption {at(forms['caption'], e):.3f}"
        )
    right = forms["(104)"] - closed_form().growth_factor
    findings.append(agrees("terms of (104) with nu, minus derived", number(right.diff(nu)), ROUNDING))
    return conclude(
        "first_step:growth", "C_v(1)/C_v(0) of networks, L = 1, 3: " + "; ".join(words) + ".", *findings
    )


def critical_rate() -> Evidence:
    """Check (105): at the printed rate the loss of networks moves, at the derived one it stays."""
    depth = 1
    printed = sympify(claimed("linear2025", "105")["rate"])
    rates = {
        k: at(x, experiment(depth))
        for k, x in (("derived", closed_form().critical_learning_rate), ("printed", printed))
    }
    found = {k: networks(depth, rate) for k, rate in rates.items()}
    return conclude(
        "first_step:critical_rate",
        f"L = {depth}: at the derived rate {rates['derived']:.4f} the loss of networks is multiplied by "
        f"{found['derived'][0]:.3f} +- {found['derived'][1]:.3f}, at the printed {rates['printed']:.4f} by "
        f"{found['printed'][0]:.3f} +- {found['printed'][1]:.3f}.",
        agrees("growth at the derived rate, minus 1", found["derived"][0] - 1, MANY * found["derived"][1]),
        contradicts(
            "growth at the printed rate, minus 1", found["printed"][0] - 1, found["printed"][1], by=2 * MANY
        ),
    )


@lru_cache(maxsize=1)
def closed_form() -> FirstStep:
    """Return the first step of the centred online theory at every depth."""
    return first_step(mean_field(isotropic(data="online", center=True)))


def experiment(depth: int, rate: float = 0.1) -> Experiment:
    """Return the experiment of a centred network whose width is the dimension of the inputs."""
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": GAMMA0, "width_ratio": RATIO},
            "data": {"kind": "isotropic", "batch_ratio": BATCH},
            "training": {"rule": "sgd", "learning_rate": rate, "steps": 1, "center": True},
        }
    )


@lru_cache(maxsize=8)
def networks(depth: int, rate: float) -> tuple[float, float]:
    """Return the growth of the loss of networks at D = infinity, and its standard error."""
    found = []
    for size, count in SIZES.items():
        rng = np.random.default_rng(size)
        runs = [trained(depth, rate, size, rng) for _ in range(count)]
        found.append((float(np.mean(runs)), float(np.std(runs, ddof=1)) / count**0.5))
    small, large = SIZES
    weights = np.array([-small, large]) / (large - small)
    mean, error = np.array(found).T
    return float(weights @ mean), float(np.linalg.norm(weights * error))


def trained(depth: int, rate: float, D: int, rng: np.random.Generator) -> float:
    """Return |v|^2 after a step over that before, of one network trained on (1) of the paper, centred."""
    N, B = round(RATIO * D), round(BATCH * D)
    matrices = [rng.normal(size=(N, D if k == 0 else N)) for k in range(depth)]
    readout, target, X = rng.normal(size=N), rng.normal(size=D), rng.normal(size=(B, D))
    weights = (*matrices, readout)

    def learnt(weights: Weights) -> Any:
        """Return the vector that the network multiplies inputs with, in the units of the target."""
        above = weights[-1]
        for W in weights[-2:0:-1]:
            above = anp.dot(W.T, above) / N**0.5
        return D**0.5 / (N * GAMMA0) * anp.dot(weights[0].T, above)

    start = learnt(weights)

    def loss(weights: Weights) -> Any:
        return anp.sum(anp.dot(X, target - learnt(weights) + start) ** 2) / (2 * B * D)

    _, after = descend(loss, weights, rate * GAMMA0**2 * N, 1)
    error = target - learnt(after) + start
    return float(error @ error / (target @ target))


def at(e: Expr, experiment: Experiment) -> float:
    """Return the value of a formula for an experiment."""
    return float(e.subs(L, experiment.depth).subs(numbers_of(experiment)))


def number(e: Expr) -> float:
    """Return the value of a difference of formulas at one set of numbers."""
    return at(e, experiment(3))
