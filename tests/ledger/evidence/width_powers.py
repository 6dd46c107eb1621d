"""Powers of the width in trained networks, measured and counted: (N.3)-(N.9) of selfconsistent2023.

The networks are (N.1), (N.2) as printed, in plain NumPy; the powers are those that
:mod:`derive.scale.power_counting` finds on the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray
from sympy import Function, Rational, tanh

from derive.program import Definition, IndexRange, Mean, P, Program, mu, t
from derive.scale.power_counting import Counted, count_powers
from derive.scale.width import named, parametrized, with_exponents
from tests.derive.once import mlp
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.lab import Weights, along, gradients, moved

Array = NDArray[np.float64]

ACTIVATIONS: dict[str, Any] = {"tanh": anp.tanh, "relu": lambda h: anp.maximum(h, 0), "linear": lambda h: h}
WEIGHTS = ("W0", "W", "w")
INPUTS: Array = np.random.default_rng(3).standard_normal((3, 4))
GAMMA0, ETA = 1.2, 0.3
BOUND = 4.0
PRECISE = 0.06
"""The largest error with which powers that differ by 1/4 are told apart."""
HALF = Rational(1, 2)


def draw(n: int, seeds: int, seed: int = 0) -> tuple[Array, ...]:
    """Return normal numbers for the weights of networks of width n."""
    rng = np.random.default_rng([seed, n])
    shapes = ((n, INPUTS.shape[1]), (n, n), (1, n))
    return tuple(rng.standard_normal((seeds, *x)) for x in shapes)


@dataclass(frozen=True)
class Networks:
    """``seeds`` networks of width n with two hidden layers on three samples, (N.1), trained at once."""

    n: int
    powers: Mapping[str, float]
    activation: str = "tanh"
    seeds: int = 20
    seed: int = 0
    normal: tuple[Array, ...] = ()

    def start(self) -> list[Array]:
        """Return W^0, W^1 and w, from the same normal numbers for all parametrisations."""
        drawn = self.normal or draw(self.n, self.seeds, self.seed)
        return [self.n ** (-self.powers[f"b_{k}"] / 2) * x for k, x in zip(WEIGHTS, drawn, strict=True)]

    @property
    def inputs(self) -> Array:
        """Inputs, (samples, dimensions)."""
        return INPUTS

    targets = np.array([1.0, -0.7, 0.4])

    def scale(self, k: str) -> float:
        """Return the factor of a weight in the forward pass."""
        own = 1 / np.sqrt(self.inputs.shape[1]) if k == "W0" else 1.0
        return float(own * self.n ** -self.powers[f"a_{k}"])

    @property
    def gamma(self) -> float:
        """Scale gamma = gamma0 N^d of the output."""
        return float(GAMMA0 * self.n ** self.powers["d"])

    def fields(self, weights: Sequence[Any]) -> list[Any]:
        """Return h^1, h^2 by unit and sample, and f."""
        phi = ACTIVATIONS[self.activation]
        h1 = self.scale("W0") * anp.matmul(weights[0], self.inputs.T)
        h2 = self.scale("W") * anp.matmul(weights[1], phi(h1))
        return [h1, h2, self.scale("w") / self.gamma * anp.matmul(weights[2], phi(h2))]

    def push(self, weights: Sequence[Array], rate: float) -> Weights:
        """Return ``-eta_0 gamma^2 N^-c dL/dW`` for each raw weight, with L half the sum of squared errors."""
        raw = rate * self.gamma**2 * self.n ** -self.powers["c"]
        return gradients(
            lambda w: -raw * anp.sum((self.targets - self.fields(w)[2]) ** 2) / 2, tuple(weights)
        )

    def rates(self) -> dict[tuple[str, str], Array]:
        """Return mean squares over units and samples of each network: initial values and first change."""
        weights = tuple(self.start())
        h1, h2, f = self.fields(weights)
        d1, d2, df = along(self.fields, weights, self.push(weights, ETA))
        found = {"start": (h1, h2, f), "rate": (d1, d2, df)}
        return {
            (kind, k): np.mean(x**2, axis=(1, 2))
            for kind, xs in found.items()
            for k, x in zip(("h1", "h2", "f"), xs, strict=True)
        }

    def trained(self, steps: int) -> list[list[Array]]:
        """Return h^1, h^2, f before and after each step."""
        weights = self.start()
        found = [self.fields(weights)]
        for _ in range(steps):
            weights = list(moved(tuple(weights), self.push(weights, ETA)))
            found.append(self.fields(weights))
        return found

    def changes(self, steps: int) -> dict[tuple[str, str], Array]:
        """Return mean squares of the changes of fields, output and the kernel Phi^2 by ``steps`` updates."""
        phi = ACTIVATIONS[self.activation]
        ends = self.trained(steps)
        first, last = ends[0], ends[-1]
        kernels = [np.swapaxes(phi(x[1]), 1, 2) @ phi(x[1]) / self.n for x in (first, last)]
        pairs = zip(("h1", "h2", "f"), first, last, strict=True)
        squares = {("change", k): np.mean((y - x) ** 2, axis=(1, 2)) for k, x, y in pairs}
        diagonal = np.diagonal(kernels[1] - kernels[0], axis1=1, axis2=2)
        return squares | {("change", "Phi2"): np.mean(diagonal**2, axis=1)}


def slope_of(widths: Sequence[int], logs: Sequence[Array], curved: bool = False) -> tuple[float, float]:
    """Return the power of N in root mean squares with these logarithms, and its standard error.

    It is the slope of a line in log N through the means of the logarithms over networks, with a term in
    N^-1/2 if ``curved``, for a size with a correction smaller by the power 1/2. The change by leaving out the
    narrowest width is part of the error.
    """
    y = np.array([np.mean(x) / 2 for x in logs])
    error = np.array([np.std(x, ddof=1) / 2 / np.sqrt(x.size) for x in logs])
    n = np.array(widths, dtype=float)
    columns = np.stack([np.log(n), np.ones_like(n), n**-0.5][: 3 if curved else 2], axis=1)
    fits = []
    for k in (0, 1):
        A = columns[k:] / error[k:, None]
        covariance = np.linalg.inv(A.T @ A)
        fits.append((float((covariance @ A.T @ (y[k:] / error[k:]))[0]), float(np.sqrt(covariance[0, 0]))))
    (whole, noise), (wide, wider) = fits
    value, own = (whole, noise) if curved else (wide, wider)
    return value, float(np.hypot(own, wide - whole))


def measured(
    widths: Sequence[int], work: int, powers: Mapping[str, Mapping[str, Any]], steps: int, chunk: int = 2**21
) -> dict[tuple[str, str, str], list[Array]]:
    """Return logarithms of mean squares of every network by parametrisation, kind and field.

    Each value lists the widths. There are ``work`` networks of the narrowest width, and a number proportional
    to 1/N of others. With ``steps = 0`` the initial values and the first change are measured, else the change
    after ``steps`` updates.
    """
    found: dict[tuple[str, str, str], list[Array]] = {}
    for n in widths:
        left, part = max(24, work * widths[0] // n), 0
        rows: dict[tuple[str, str, str], list[Array]] = {}
        while left > 0:
            seeds = min(left, max(1, chunk // n**2))
            normal = draw(n, seeds, part)
            for name, own in powers.items():
                plain = {k: float(v) for k, v in own.items()}
                run = Networks(n, plain, kind_of(name), seeds, normal=normal)
                for (when, what), x in (run.changes(steps) if steps else run.rates()).items():
                    rows.setdefault((name, when, what), []).append(np.log(x))
            left, part = left - seeds, part + 1
        for key, xs in rows.items():
            found.setdefault(key, []).append(np.concatenate(xs))
    return found


def kind_of(name: str) -> str:
    """Return the activation of a case; fields that vanish or grow at the start need a homogeneous one."""
    return "linear" if name == "any numbers" else "tanh"


@lru_cache(maxsize=64)
def counted(activation: str, items: tuple[tuple[str, Any], ...], steps: int, first: bool) -> Counted:
    """Return the powers of the program for these exponents, with its kernel Phi^2."""
    return count_powers(
        with_exponents(parametrized(with_kernel(activation)), dict(items)), steps, first=first
    )


def with_kernel(activation: str) -> Program:
    """Return two hidden layers with the number ``Phi2 = mean phi(h^2)^2`` beside the output."""
    program = mlp(2, activation)
    h, Phi2 = Function("h"), Function("Phi2")
    phi = {"tanh": tanh, "linear": lambda x: x}[activation](h(2, mu, t))
    kernel = Definition(Phi2(mu, t), Mean(phi**2), (IndexRange(mu, Rational(1), P),))
    definitions, scalars = (*program.definitions, kernel), (*program.scalars, "Phi2")
    return replace(program, definitions=definitions, scalars=scalars)


def cases() -> dict[str, dict[str, Any]]:
    """Return parametrisations, good and bad, by name."""
    known = named(mlp(2, "tanh"))
    mean_field, ntk, one = known["mean-field"], known["NTK"], Rational(1)
    return {
        **known,
        "first scale as the others": {**known["muP"], "a_W0": Rational(0), "b_W0": Rational(0)},
        "outputs too small": {**mean_field, "d": Rational(1)},
        "rate too large": {**mean_field, "c": -HALF},
        "small readout": {**ntk, "a_W0": HALF, "b_W0": -one, "a_W": one, "b_W": -one, "d": one},
        "any numbers": {**SKEW, "a_w": -Rational(1, 4), "b_w": Rational(8, 5), "b_W": Rational(1, 4)},
    }


SKEW = {
    "a_W0": Rational(1, 5),
    "b_W0": -Rational(2, 5),
    "a_W": Rational(3, 10),
    "b_W": HALF,
    "a_w": Rational(3, 20),
    "b_w": Rational(4, 5),
    "c": Rational(2, 5),
    "d": Rational(1, 4),
}
NODES = {"h1": ("h", 1), "h2": ("h", 2), "f": ("f", None), "Phi2": ("Phi2", None)}


def rates(widths: Sequence[int] = (32, 64, 128, 256, 512, 1024), work: int = 700) -> Evidence:
    """Check fields and outputs at the start, and their first change, for good and bad parametrisations."""
    chosen = {k: x for k, x in cases().items() if k != "small readout"}
    found, findings = measured(widths, work, chosen, 0), []
    for (name, when, what), logs in found.items():
        theory = counted(kind_of(name), tuple(cases()[name].items()), 1, True)
        said = theory.power(*NODES[what]) if when == "start" else theory.change(*NODES[what])
        findings += _judged(f"{name}, {what}, {when}", widths, logs, said)
    return conclude(
        "width_powers:rates",
        "Powers of N of fields, outputs and their first change are those counted on the program, at N = "
        f"{widths[0]} to {widths[-1]}, for parametrisations that work and for some that do not.",
        *findings,
    )


def several_steps(
    widths: Sequence[int] = (32, 64, 128, 256, 512), work: int = 600, steps: int = 3
) -> Evidence:
    """Check changes by a few updates: features and their kernel, in NTK, mean field and muP, and d = 1."""
    chosen = {k: cases()[k] for k in ("NTK", "mean-field", "muP", "small readout")}
    found, findings = measured(widths, work, chosen, steps), []
    for (name, _, what), logs in found.items():
        theory = counted("tanh", tuple(chosen[name].items()), steps, False)
        said = theory.change(*NODES[what], step=steps)
        findings += _judged(f"{name}, {what} after {steps} updates", widths, logs, said)
    return conclude(
        "width_powers:several_steps",
        "After a few updates features and their kernel have moved by order one in mean field and muP; in NTK "
        "features by N^-1/2, the kernel by 1/N. At d = 1 they move by order one as well, if the readout "
        "starts smaller than its updates.",
        *findings,
    )


def _judged(label: str, widths: Sequence[int], logs: Sequence[Array], said: Any) -> list[Finding]:
    """Return findings that the measured power is the counted one, and not a quarter more or less."""
    slope, error = slope_of(widths, logs, label.startswith("small readout"))
    return [
        agrees(f"{label}: measured power minus {said}", slope - float(said), BOUND * error),
        agrees(f"{label}: error of the measured power", error, PRECISE),
        contradicts(f"{label}: measured power minus {said} - 1/2", slope - float(said) + 0.5, error, by=5),
    ]


def symmetry(n: int = 16, steps: int = 4) -> Evidence:
    """Check exponents shifted along the derived directions: the same network at every step, to rounding."""
    from derive.scale.width import symmetries

    findings = []
    for activation in ("tanh", "relu", "linear"):
        base = {k: float(v) for k, v in SKEW.items()}
        own = Networks(n, base, activation, seeds=3).trained(steps)
        directions = symmetries(mlp(2, activation))
        for shift in directions:
            moved = dict(base)
            for x, v in shift.items():
                moved[str(x).split("(")[0]] += 0.3 * float(v)
            found = Networks(n, moved, activation, seeds=3).trained(steps)
            gap = max(float(np.max(np.abs(a[-1] - b[-1]))) for a, b in zip(own, found, strict=True))
            direction = ", ".join(f"{x} {float(v):+.3g}" for x, v in shift.items())
            findings.append(agrees(f"{activation}, along {direction}: outputs", gap, 1e-11))
        for key in ("a_W0", "b_W", "c", "d"):
            other = Networks(n, {**base, key: base[key] + 0.3}, activation, seeds=3).trained(steps)
            gap = max(float(np.max(np.abs(a[-1] - b[-1]))) for a, b in zip(own, other, strict=True))
            findings.append(contradicts(f"{activation}, {key} alone: outputs", gap, 1e-11))
    return conclude(
        "width_powers:symmetry",
        "Networks whose exponents differ by a derived direction have the same outputs at every step; others "
        "do not.",
        *findings,
    )


def conventions() -> Evidence:
    """Check 2 a_L + b_L = 1 as a convention for gamma: outputs do not depend on it.

    d moves with a_L and c.
    """
    findings = []
    base = {k: float(v) for k, v in cases()["mean-field"].items()}
    own = Networks(16, base, seeds=3).trained(4)
    for d in (0.0, 0.3, 1.0):
        shift = d - base["d"]
        moved = {**base, "d": d, "a_w": base["a_w"] - shift, "c": base["c"] + 2 * shift}
        found = Networks(16, moved, seeds=3).trained(4)
        gaps = [
            float(np.max(np.abs(x - y)))
            for a, b in zip(own, found, strict=True)
            for x, y in zip(a, b, strict=True)
        ]
        findings.append(agrees(f"d = {d:g}: fields and outputs minus those at d = 1/2", max(gaps), 1e-11))
    return conclude(
        "width_powers:conventions",
        "Fields move by order one at any d, if the readout's scale and the rate go along: the networks are "
        "the same to rounding. d = 1/2 follows with the convention that h^{L+1} starts at order one.",
        *findings,
    )
