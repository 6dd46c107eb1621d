"""depth2023 sections 3 and 7: the powers of the depth, measured in solved theories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from derive.calculus.symbols import L
from derive.depth import cross_layer
from derive.depth.balance import alpha, gamma
from derive.scale.depth import (
    DepthClass,
    DepthParametrization,
    GivenNumber,
    chi,
    first_update,
    x_0,
)
from derive.scale.depth_steps import at_steps
from tests.derive.once import depth_program, mean_field
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.depth_rows import DepthSolver, variance

Array = NDArray[np.float64]
Point = tuple[str, str]

SLOPES = (-1.0, 0.7, -0.5)
"""Of a loss that is linear in the output: what is measured does not hang on f."""
DEPTHS = (16, 32, 64, 128, 256)
GRID: Mapping[Point, int] = {
    ("1/2", "1/2"): 2,
    ("1/2", "1"): 2,
    ("1/2", "1/4"): 1,
    ("3/4", "1/4"): 2,
    ("3/4", "1/2"): 2,
    ("3/4", "0"): 1,
    ("1", "0"): 2,
    ("1", "1/2"): 2,
    ("1", "-1/4"): 1,
    ("3/2", "-1/2"): 2,
    ("2", "0"): 2,
    ("2", "-1/2"): 2,
}
"""Points of every region and edge, and the steps that are solved: one, where later ones explode."""
QUANTITIES = {"f": "output", "x": "stream", "h change": "feature", "h": "preactivation"}
CLOSE = 0.03
"""What is left of the corrections after extrapolation: those at (3/4, 0) are powers of L^(-1/2)."""


@lru_cache(maxsize=1)
def linear() -> DepthParametrization:
    """Return the classification that the theory of the linear network gives."""
    return DepthParametrization(mean_field(depth_program(alpha=alpha, gamma=gamma)))


@lru_cache(maxsize=64)
def classify(a: GivenNumber, g: GivenNumber, rule: str = "sgd") -> DepthClass:
    """Return the derived class of one (alpha, gamma)."""
    return linear().classify(a, g, rule)


@lru_cache(maxsize=3)
def solver(steps: int) -> DepthSolver:
    """Return the compiled solver of the linear network's derived rows."""
    return DepthSolver(at_steps(cross_layer(linear().theory), steps), lambda t, f: SLOPES[t])


@lru_cache(maxsize=8)
def solved(point: Point, depth: int, steps: int) -> dict[str, Array]:
    """Return the first steps of the infinitely wide linear network."""
    a, g = (float(classify(*point).alpha), float(classify(*point).gamma))
    return solver(steps)(depth, {"alpha": a, "gamma": g, "xi": 1.0})


def sizes(point: Point, depth: int, steps: int) -> dict[tuple[str, int], float]:
    """Return root mean squares at each step, in the middle of the network except for the output."""
    found, middle = solved(point, depth, steps), depth // 2
    unit = depth ** float(classify(*point).alpha)  # h is what a layer adds to the stream, without the branch
    sizes: dict[tuple[str, int], float] = {}
    for now in range(1, steps + 1):
        h = {(middle, now): unit, (middle - 1, now): -unit}
        before = {(middle, 0): -unit, (middle - 1, 0): unit}
        sizes["f", now] = abs(float(found[f"f_{now}"][()]))
        sizes["x", now] = variance(found, {(middle, now): 1.0, (middle, 0): -1.0}) ** 0.5
        sizes["h change", now] = variance(found, h | before) ** 0.5
        sizes["h", now] = variance(found, h) ** 0.5
    return sizes


def at_zero(values: Sequence[float], z: Sequence[float]) -> float:
    """Return the value at 0 of the polynomial that is ``values`` at ``z``."""
    rows, n = list(values), len(values)
    for k in range(1, n):
        rows = [(z[i] * rows[i + 1] - z[i + k] * rows[i]) / (z[i] - z[i + k]) for i in range(n - k)]
    return rows[0]


def corrections(point: Point, depths: Sequence[int]) -> list[float]:
    """Return the scale of the first corrections at finite depth: ``L^(1 - 2 alpha)`` or 1/L, the larger."""
    a = float(classify(*point).alpha)
    power = -1.0 if a <= 0.5 else max(1 - 2 * a, -1.0)
    return [float(d) ** power for d in depths]


def local_slopes(values: Sequence[float], depths: Sequence[float]) -> Array:
    """Return ``d log value / d log L`` between neighbouring depths."""
    result: Array = np.diff(np.log(values)) / np.diff(np.log(depths))
    return result


def measured(point: Point, steps: int, depths: Sequence[int] = DEPTHS) -> dict[tuple[str, int], float]:
    """Return local slopes in the depth, extrapolated from the last three."""
    rows = [sizes(point, d, steps) for d in depths]
    z = corrections(point, depths[1:])
    return {key: at_zero(list(local_slopes([r[key] for r in rows], depths))[-3:], z[-3:]) for key in rows[0]}


def exponents() -> Evidence:
    """Check claims 7.2, 7.3, 7.6, Def. 7.5: solved theories of 16 to 256 layers, all regions and edges."""
    worst, where = 0.0, ""
    moves = measured(("1/2", "1/2"), GRID["1/2", "1/2"])["h change", 1]
    for point, steps in GRID.items():
        derived = classify(*point).exponents
        for (name, now), slope in measured(point, steps).items():
            gap = abs(slope - float(derived[QUANTITIES[name]]))
            if gap > worst:
                worst, where = gap, f"{name} at step {now} of (alpha, gamma) = ({', '.join(point)})"
    return conclude(
        "depth_classes:exponents",
        f"{len(GRID)} points: exponents of f_t - f_0, x_t - x_0, h_t - h_0 and h_t, extrapolated from local "
        f"slopes up to 256 layers, agree with the derived ones; worst difference {worst:.3f}, {where}.",
        agrees("worst difference of an exponent", worst, CLOSE),
        contradicts("h_1 - h_0 at alpha = gamma = 1/2, minus that of W x, -1/2", moves + 0.5, CLOSE),
    )


def start() -> Evidence:
    """Check claim 7.1: below alpha = 1/2 the logarithm of the stream grows like L^(1 - 2 alpha)."""
    gaps = []
    depths = (32, 64, 128, 256)
    for a in ("1/4", "2/5"):
        logs = [float(np.log(solved((a, "1/2"), d, 0)["C_x_0_0"][-1])) for d in depths]
        power = 1 - 2 * float(classify(a, "1/2").alpha)
        z = [float(d) ** (power - 1) for d in depths[1:]]
        gaps.append(at_zero(list(local_slopes(logs, depths)), z) - power)
    edge = [float(solved(("1/2", "1/2"), d, 0)["C_x_0_0"][-1]) for d in depths]
    at_edge = at_zero(edge, [1 / d for d in depths])
    return conclude(
        "depth_classes:start",
        f"log <x_0^L x_0^L> grows like L^(1 - 2 alpha) at alpha = 1/4, 2/5 (exponents off by "
        f"{max(map(abs, gaps)):.4f}); at alpha = 1/2 it tends to e ({at_edge:.6f}).",
        agrees("worst difference of an exponent", max(map(abs, gaps)), 5e-3),
        contradicts("exponent at alpha = 2/5, 0 if that were stable", gaps[-1] + power, 5e-3),
        agrees("<x_0^L x_0^L> at alpha = 1/2 minus e", at_edge - np.e, 1e-4),
    )


STEPS = 2
EPSILONS = (1 / 4, 1 / 8, 1 / 16, 1 / 32)
DIVERSE: tuple[Point, ...] = (("1/2", "1/2"), ("3/4", "1/4"), ("1", "0"))


def diversity_exponent(point: Point, depths: Sequence[int] = DEPTHS[1:], now: int = 1) -> float:
    """Return kappa from the limit of infinite L at each distance and the local slope at small distance."""
    limits = []
    runs = {d: solved(point, d, STEPS) for d in depths}
    for e in EPSILONS:
        squares = [
            variance(found, {(d // 2 + round(e * d), now): 1.0, (d // 2, now): -1.0})
            for d, found in runs.items()
        ]
        limits.append(at_zero(squares, corrections(point, depths)))
    slopes = local_slopes(np.sqrt(limits).tolist(), EPSILONS)
    return 1.0 - at_zero(list(slopes), list(EPSILONS[1:]))


def diversity() -> Evidence:
    """Check claims 7.4, 7.5, Def. 7.6: kappa is 1/2 at alpha = 1/2 and 0 above.

    Before training there is no diversity above alpha = 1/2.
    """
    gaps, found = [], []
    for point in DIVERSE:
        for now in (1, 2):
            kappa = diversity_exponent(point, now=now)
            expected = classify(*point).diversity
            assert expected is not None
            found.append(kappa)
            gaps.append(abs(kappa - float(expected)))
    point = DIVERSE[1]
    before = [variance(solved(point, d, 0), {(3 * d // 4, 0): 1.0, (d // 2, 0): -1.0}) for d in DEPTHS[1:]]
    gone = at_zero(list(local_slopes(before, DEPTHS[1:])), corrections(point, DEPTHS[2:]))
    return conclude(
        "depth_classes:diversity",
        "kappa after one and two steps at alpha = 1/2, 3/4, 1 on the line: "
        f"{', '.join(f'{k:.3f}' for k in found)}.  At t = 0 and alpha = 3/4 the squared difference of layers "
        f"L/4 apart falls like L^{gone:.3f}: no power of epsilon bounds it from below.",
        agrees("worst difference of kappa", max(gaps), 0.04),
        agrees("power of L at t = 0 minus (1 - 2 alpha)", gone + 0.5, 5e-3),
        contradicts("power of L at t = 0 minus 0, as Def. 7.6 needs at all t", gone, 0.04),
    )


def unbounded() -> Evidence:
    """Check Def. 7.2, Claim 7.2: at alpha + gamma >= 1, gamma < 0 stream and output are stable, but not h."""
    point = ("3/2", "-1/2")
    found = measured(point, 1, (8, 16, 32, 64))
    return conclude(
        "depth_classes:unbounded",
        f"(alpha, gamma) = (3/2, -1/2): alpha + gamma = 1, and the changes of f and x are of order one (L^"
        f"{found['f', 1]:.3f}, L^{found['x', 1]:.3f}), that of h is L^{found['h change', 1]:.3f}.",
        agrees("exponent of f_1 - f_0", found["f", 1], CLOSE),
        agrees("exponent of x_1 - x_0", found["x", 1], CLOSE),
        agrees("exponent of h_1 - h_0 minus 1/2", found["h change", 1] - 0.5, CLOSE),
        contradicts(
            "(Claim 7.2), (Claim 7.3): exponent of h_1 - h_0, 0 if bounded", found["h change", 1], CLOSE
        ),
    )


def rates() -> Evidence:
    """Check section 3, Table 1: E A_L^2 at width one for every L, by sampling, and the powers that follow."""
    rng, gaps, powers = np.random.default_rng(3), [], {}
    for rule in ("sgd", "sign"):
        found = first_update(linear().theory.program, rule)
        values = {}
        for depth in (4, 1024, 4096):
            exact = float(found.square.subs({alpha: 0.5, L: depth, x_0: 1.0, chi: 1.0}))
            values[depth] = exact
            if depth == 4:
                w = 1 + rng.standard_normal((400_000, depth)) / np.sqrt(depth)
                product = np.prod(w, axis=1)[:, None] / w
                gradient = product / np.sqrt(depth) if rule == "sgd" else np.sign(product)
                squares = np.sum(product * gradient, axis=1) ** 2
                gaps.append((np.mean(squares) - exact) / (np.std(squares) / np.sqrt(len(squares))))
        powers[rule] = float(np.log(values[4096] / values[1024]) / np.log(4))
    worst = max(map(abs, gaps))
    return conclude(
        "depth_classes:rates",
        f"E A_L^2 in closed form is {worst:.1f} s.e. from samples at L = 4; from 1024 to 4096 layers it "
        f"grows like L^{powers['sgd']:.3f} (SGD), L^{powers['sign']:.3f} (signs): rates L^0 and L^(-1/2).",
        agrees("worst score of the samples", worst, 4.0),
        agrees("exponent for SGD minus 1", powers["sgd"] - 1.0, 0.05),
        agrees("exponent for signs minus 2", powers["sign"] - 2.0, 0.05),
    )
