"""Responses of linear2025 measured in finite networks: a source is added to one field at one time.

Networks are written out, without the engine, and a library finds their gradients.  R(t, t') is what a push of
size ``PUSH`` times a vector of random signs, given to a product with a matrix at t', adds along these signs
to the answering field at t.  W0 has entries of variance ``unit``, inputs have variances ``eigen``;
``unit = eigen = 1/D`` is (1), and ``unit = 1`` is (106).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray
from sympy import sympify

from numerics.solver.direct import Evaluated
from tests.ledger.claims import claimed
from tests.ledger.evidence import structured
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.isotropic_theory import CLOSE, VALUES, derived, solved, value
from tests.ledger.evidence.lab import Weights, gradients

Array = NDArray[np.float64]
Signs = tuple[str, int, Array]
"""Which source is pushed, when, and along which signs."""
Seen = dict[str, tuple[Array, Array]]
"""Mean and standard error by name."""

TIMES, PUSH = 3, 1e-4
FEATURES, NETWORKS, OF_MODES = 160, 64, 12
EXACT = 1e-10
ROUNDING = 1e-9
"""Of a quotient of differences; for t < t' networks answer nothing at all."""
ANSWERS = {
    "R_Delta": ("u_Delta", "Delta"),
    "R_vu": ("u0", "v"),
    "R_h0r0": ("r0", "h0"),
    "R_hr1": ("r1", "h1"),
    "R_gu1": ("u1", "g1"),
    "R_gu2": ("u2", "g2"),
}
"""For each response: the source, and the field that answers."""
STRICT = ("R_vu", "R_gu1", "R_gu2")
"""Responses that vanish at equal time."""
SUMS = ("R_h0r0", "R_vu")
"""Responses that are sums over modes."""


@dataclass(frozen=True)
class Setting:
    """Sizes and parameters of a network; ``gain`` is the factor of h0 = gain X^T Delta."""

    eigen: Array
    target: Array | None
    width: int
    samples: int
    unit: float
    gain: float
    gamma: float
    eta: float
    sigma: float
    fresh: bool
    center: bool

    def size(self, field: str) -> int:
        """Return the number of units of the population of a field."""
        return {"v": len(self.eigen), "h0": len(self.eigen), "Delta": self.samples}.get(field, self.width)


def isotropic_setting(fresh: bool) -> Setting:
    """Return setting 1 or 2 of the paper, with VALUES of the other evidence."""
    samples = round(VALUES["alpha_B" if fresh else "alpha"] * FEATURES)
    return Setting(
        eigen=np.full(FEATURES, 1 / FEATURES),
        target=None,
        width=round(VALUES["nu"] * FEATURES),
        samples=samples,
        unit=1 / FEATURES,
        gain=FEATURES / samples,
        gamma=VALUES["gamma0"],
        eta=VALUES["eta"],
        sigma=VALUES["sigma"],
        fresh=fresh,
        center=False,
    )


def structured_setting() -> Setting:
    """Return the centred online network of :mod:`.structured`."""
    of, data = structured.VALUES, structured.attributes()
    return Setting(
        eigen=data["lamda"],
        target=data["w_star"],
        width=round(of["N"]),
        samples=round(of["B"]),
        unit=1.0,
        gain=1 / of["B"],
        gamma=of["gamma0"],
        eta=of["eta"],
        sigma=of["sigma"],
        fresh=True,
        center=True,
    )


def trained(of: Setting, seed: int, push: Signs | None = None) -> dict[str, list[Array]]:
    """Return the fields at times 0..TIMES-1 of the network of ``seed``, with one source perturbed."""
    rng = np.random.default_rng(seed)
    width, modes = of.width, len(of.eigen)
    weights: Weights = (
        np.sqrt(of.unit) * rng.normal(size=(width, modes)),
        rng.normal(size=(width, width)) / np.sqrt(width),
        rng.normal(size=width),
    )
    rates = of.eta * of.gamma * np.array([of.unit, 1 / width, 1.0])
    target = rng.normal(size=modes) if of.target is None else of.target
    X, eps = _draw(of, rng)
    start: Array | None = None
    found: dict[str, list[Array]] = {x: [] for x in ("v", "Delta", "h0", "h1", "g1", "g2")}
    for now in range(TIMES):
        pushes = {push[0]: PUSH * push[2]} if push is not None and push[1] == now else {}
        fed, g1 = _backward(weights, pushes)
        learnt = fed / (width * of.gamma * of.unit) + pushes.get("r0", 0.0)
        start = learnt if start is None and of.center else start
        v = target - learnt + (0.0 if start is None else start)
        Delta = X @ v + pushes.get("u_Delta", 0.0) + of.sigma * eps
        h0 = of.gain * X.T @ Delta + pushes.get("u0", 0.0)
        h1 = weights[0] @ h0 + pushes.get("u1", 0.0)
        for name, x in zip(found, (v, Delta, h0, h1, g1, weights[2]), strict=True):
            found[name].append(x)
        updates = _updates(weights, h0, pushes)
        weights = tuple(w + rate * x for w, rate, x in zip(weights, rates, updates, strict=True))
        if of.fresh:
            X, eps = _draw(of, rng)
    return found


def _passed(w: Any, h0: Any, u1: Any, pushes: Mapping[str, Array]) -> Any:
    """Return ``g2 . h2 + r1 . h1``, whose gradients are the updates and the backward fields."""
    h1 = w[0] @ h0 + u1 + pushes.get("u1", 0.0)
    h2 = w[1] @ h1 + pushes.get("u2", 0.0)
    return w[2] @ h2 + anp.sum(pushes.get("r1", 0.0) * h1)


def _backward(weights: Weights, pushes: Mapping[str, Array]) -> Weights:
    """Return ``W0^T g1`` and ``g1``; the network is linear, so that they are the same at every h0."""
    nothing = (np.zeros(weights[0].shape[1]), np.zeros(len(weights[0])))
    return gradients(lambda x: _passed(weights, x[0], x[1], pushes), nothing)


def _updates(weights: Weights, h0: Array, pushes: Mapping[str, Array]) -> Weights:
    """Return ``g1 h0^T``, ``g2 h1^T`` and h2."""
    return gradients(lambda w: _passed(w, h0, 0.0, pushes), weights)


def _draw(of: Setting, rng: np.random.Generator) -> tuple[Array, Array]:
    return rng.normal(size=(of.samples, len(of.eigen))) * np.sqrt(of.eigen), rng.normal(size=of.samples)


def _one(of: Setting, names: Sequence[str], seed: int) -> Iterator[tuple[str, int, Array]]:
    """Return name, time of the perturbation and responses at all times, summed over weighted units."""
    base = trained(of, seed)
    rng = np.random.default_rng([seed, 1])
    for name in names:
        source, field = ANSWERS[name]
        signs = rng.choice([-1.0, 1.0], size=of.size(field))
        weight = of.eigen if of.unit == 1.0 and name == "R_vu" else 1.0
        for past in range(TIMES):
            moved = trained(of, seed, (source, past, signs))[field]
            yield (
                name,
                past,
                np.array(
                    [np.sum(weight * signs * (a - b)) / PUSH for a, b in zip(moved, base[field], strict=True)]
                ),
            )


@lru_cache(maxsize=4)
def measured(kind: str) -> dict[str, tuple[Array, Array]]:
    """Return responses (t, t') with standard errors: averages over units, or sums over modes."""
    if kind == "structured":
        return _measured(structured_setting(), SUMS, OF_MODES, 1.0)
    return _measured(isotropic_setting(kind == "online"), tuple(ANSWERS), NETWORKS, None)


def _measured(of: Setting, names: Sequence[str], networks: int, share: float | None) -> Seen:
    runs: dict[str, Array] = {n: np.zeros((networks, TIMES, TIMES)) for n in names}
    for k in range(networks):
        for name, past, answer in _one(of, names, 64 + k):
            runs[name][k, :, past] = answer / (share or of.size(ANSWERS[name][1]))
    return {n: (x.mean(axis=0), x.std(axis=0, ddof=1) / np.sqrt(networks)) for n, x in runs.items()}


def theory_of(run: Evaluated, name: str) -> Array:
    """Return a response of the derived theory at the measured times, in the paper's units."""
    layer = int(name[-1]) if name[:-1] in ("R_hr", "R_gu") else None
    return run.value(name[:-1] if layer else name, layer)[:TIMES, :TIMES]


def worst(seen: tuple[Array, Array], expected: Array) -> float:
    """Return the largest deviation in standard errors; exact values have the error ``ROUNDING``."""
    mean, error = seen
    return float(np.max(np.abs(mean - expected) / np.maximum(error, ROUNDING)))


def compared(kind: str, responses: Mapping[str, Array]) -> list[Finding]:
    """Return findings on responses (t, t') by name against networks: full-batch, online, structured."""
    seen = measured(kind)
    return [agrees(f"largest z of {n}, {kind}", worst(seen[n], x), CLOSE) for n, x in responses.items()]


def _equal_time(kind: str, responses: Mapping[str, Array]) -> list[Finding]:
    """Return findings that a response for t' < t only disagrees with networks."""
    seen = measured(kind)
    return [
        contradicts(f"{n} without t = t', {kind}: largest z", worst(seen[n], np.tril(x, -1)), 1.0)
        for n, x in responses.items()
        if n not in STRICT
    ]


def full_batch() -> Evidence:
    """Check (12), (64), (66): derivatives by sources, full batch; (15) from the derived R_vu."""
    run = solved(derived())
    responses = {n: theory_of(run, n) for n in ANSWERS}
    formula = sympify(claimed("linear2025", "15")["R_Delta"])
    gap = [
        value(formula, run, t=i, s=j) - responses["R_Delta"][i, j] for i in range(TIMES) for j in range(i + 1)
    ]
    equal = ", ".join(f"{n} {measured('full-batch')[n][0][0, 0]:.3f}" for n in responses if n not in STRICT)
    return conclude(
        "isotropic_responses:full_batch",
        f"Sources pushed in {NETWORKS} networks of {FEATURES} features: answers are the derived responses, "
        f"zero for t < t', with {equal} at t = t' = 0; (15) holds.",
        *compared("full-batch", responses),
        *_equal_time("full-batch", responses),
        agrees("(15) minus the derived R_Delta", float(np.max(np.abs(gap))), EXACT),
    )


def online() -> Evidence:
    """Check (101): derivatives by sources with fresh batches; the derived R_Delta is instantaneous."""
    run = solved(derived("online"))
    responses = {n: theory_of(run, n) for n in ANSWERS if n not in ("R_Delta", "R_vu")}
    responses["R_Delta"] = np.eye(TIMES)
    return conclude(
        "isotropic_responses:online",
        "Sources pushed in networks with fresh batches: answers are the derived responses, and errors of one "
        "batch do not answer to those of another.",
        *compared("online", responses),
        *_equal_time("online", responses),
    )


def modes() -> Evidence:
    """Check (109): responses as sums over modes."""
    run = structured.solved(structured.derived())
    forward, back = structured.mode_responses()
    responses = {"R_h0r0": forward[:TIMES, :TIMES], "R_vu": back[:TIMES, :TIMES]}
    derived_sum = structured.MODES * theory_of(run, "R_h0r0")
    return conclude(
        "isotropic_responses:modes",
        "Sources pushed along all modes: the sums of (109) over modes, taken from the transfer functions "
        "(111), are the answers of networks; R^0_hr is the derived one.",
        *compared("structured", responses),
        agrees(
            "R^0_hr from (111) minus derived",
            float(np.max(np.abs(responses["R_h0r0"] - derived_sum))),
            EXACT * structured.MODES,
        ),
        *_equal_time("structured", responses),
    )


__all__ = ["Setting", "compared", "full_batch", "measured", "modes", "online", "theory_of", "trained"]
