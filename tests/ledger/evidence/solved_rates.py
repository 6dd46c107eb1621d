"""Largest stable learning rates (linear2025 appendix B): closed forms, solved theory and networks.

The closed forms are derived, the theory is that of isotropic data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from derive.calculus.symbols import L, gamma0
from derive.program.networks.random_data import nu as width_ratio
from derive.scale.largest_rate import LargestRate, largest_rate
from derive.scale.lazy import LazyKernel, lazy_kernel
from numerics.analysis.limits import largest_rate as measured_rate
from numerics.experiment import Experiment
from tests.derive.once import isotropic, mean_field
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.isotropic_rates import Descent

SCALINGS = ("mean-field", "ntk")
DEPTHS = (1, 2, 4)
RATIOS = (1.0, 10.0**0.5, 10.0, 10.0**1.5, 100.0)
RICH = {1: 1000.0, 2: 1000.0, 4: 3000.0}
"""gamma0 by depth: rich at every width."""
LAZY = 1e-3
STEPS = {1: 80, 2: 160, 4: 300}
"""Steps that leave the start behind: the larger gamma0 and the depth, the longer the loss rests there."""
RTOL = 0.01
MANY = 5.0
"""Standard errors of a power."""


def largest_rates() -> Evidence:
    """Check (70): over two decades of nu the largest rate of the solved theory is the derived one.

    Its power and its coefficient agree; the printed power is wrong at every depth.
    """
    printed = claimed("linear2025", "70")
    findings: list[Finding] = []
    words = []
    for depth in DEPTHS:
        for scaling, label in zip(SCALINGS, ("mean field", "ntk"), strict=True):
            form, gamma = derived(scaling, "rich"), RICH[depth]
            expected = float(form.exponent.subs(L, depth))
            found = [_settling(depth, gamma, scaling, ratio) for ratio in RATIOS]
            slope, error, local = powers(RATIOS, found)
            off = [r / of_form(form, depth, gamma, x) - 1 for r, x in zip(found, RATIOS, strict=True)]
            worst = max(off, key=abs)
            rest = max(neglected(form, depth, gamma, x) for x in RATIOS)
            case = f"L = {depth}, {label}"
            drift = MANY * error + rest / np.log(RATIOS[-1] / RATIOS[0])
            findings += [
                agrees(f"{case}: power of nu minus the derived {expected:.3f}", slope - expected, drift),
                agrees(f"{case}: worst local power minus it", max(local - expected, key=abs), 0.05),
                agrees(
                    f"{case}: worst rate over the derived one, minus 1", max(off, key=abs), near(depth, rest)
                ),
            ]
            if label == "ntk":
                gap = slope - float(printed["ntk"].subs(L, depth))
                text = f"{case}: power of nu minus the printed one"
                findings.append(contradicts(text, gap, error, by=MANY))
                words.append(f"{slope:.4f} +- {error:.4f} ({worst:+.1%})")
    return conclude(
        "solved_rates:largest_rates",
        "Powers of nu, 1 to 100, in the largest rate of the solved theory at gamma0 = 1000, 1000, 3000, NTK, "
        "L = 1, 2, 4, and how far the rate is from the derived one at worst: "
        + ", ".join(words)
        + "; derived 1/2, 2/3, 4/5, printed 0, 1/2, 3/4.",
        *findings,
    )


def criteria() -> Evidence:
    """Check (70): the definition of the largest rate changes the coefficient and not the power."""
    findings = []
    ends = (1.0, 100.0)
    form = derived("ntk", "rich")
    rates: dict[str, list[float]] = {"dies out": [], "never above its start": []}
    for ratio in ends:
        e = _experiment(2, RICH[2], "ntk", ratio, STEPS[2]).replace(
            {"training.learning_rate": 0.6 * of_form(form, 2, RICH[2], ratio)}
        )
        rates["dies out"].append(measured_rate(e, rtol=RTOL, settle=True).value)
        rates["never above its start"].append(measured_rate(e, rtol=RTOL, rise=False).value)
    for label, found in rates.items():
        slope, error, _ = powers(ends, found)
        expected = float(form.exponent.subs(L, 2))
        findings.append(
            agrees(f"the loss {label}: power of nu minus derived", slope - expected, MANY * error)
        )
    ratio = rates["never above its start"][0] / rates["dies out"][0]
    findings.append(contradicts("ratio of the two rates, minus 1", ratio - 1, RTOL))
    return conclude(
        "solved_rates:criteria",
        f"L = 2, gamma0 = {RICH[2]:g}, NTK: that the loss stays below its start allows rates {ratio:.2f} "
        "times those at which it dies out, with the same power of nu.",
        *findings,
    )


def lazy_rates() -> Evidence:
    """Check text after (70): at gamma0 << 1 the largest rate is that of the derived law of the kernel.

    It is the largest rate within a number of steps, at every width and in both scalings, and tends to 2/(L +
    1) as width and steps grow.
    """
    findings = []
    steps = 8
    for depth in DEPTHS:
        for ratio in (0.5, 4.0, 64.0):
            expected = kernel(depth).rate(steps, {width_ratio: ratio})
            for scaling in SCALINGS:
                e = _experiment(depth, LAZY, scaling, ratio, steps)
                found = measured_rate(e, rtol=1e-4, rise=False).value
                label = f"L = {depth}, nu = {ratio:g}, {scaling}: rate over the derived one, minus 1"
                findings.append(agrees(label, found / expected - 1, 1e-4))
        form, ends = derived("ntk", "lazy"), (100.0, 10000.0)
        gaps = [of_form(form, depth, LAZY, x) * kernel(depth).edge({width_ratio: x}) / 2 - 1 for x in ends]
        text = f"L = {depth}: closed form of wide layers over 2/k, minus 1, nu = 10000, beside nu = 100"
        findings.append(agrees(text, gaps[1], gaps[0] / 50))
    return conclude(
        "solved_rates:lazy_rates",
        f"At gamma0 = {LAZY:g} the rate at which the loss of the solved theory returns to its start within "
        f"{steps} steps is that of the derived kernel to 1e-4 for nu = 0.5, 4, 64 in both scalings; with "
        "more steps it falls to 2 over the kernel's largest eigenvalue, which is 2/(L + 1) for wide layers, "
        "with the derived correction of order 1/sqrt(nu).",
        *findings,
    )


def rates_of_networks() -> Evidence:
    """Check (70), networks: rich networks of 24 features in NTK scaling, and lazy ones of 200."""
    printed = claimed("linear2025", "70")["ntk"]
    findings: list[Finding] = []
    words = []
    form = derived("ntk", "rich")
    ratios = (1.0, 4.0, 16.0)
    for depth in (1, 2):
        found = np.array(
            [[rate_of_network(depth, x, seed, RICH[depth]) for x in ratios] for seed in range(4)]
        )
        slopes = np.array([powers(ratios, list(row))[0] for row in found])
        slope = float(slopes.mean())
        error = max(float(slopes.std(ddof=1)) / 2, powers(ratios, list(found[0]))[1])
        expected = float(form.exponent.subs(L, depth))
        off = found / [of_form(form, depth, RICH[depth], x) for x in ratios] - 1
        worst = float(off.flat[abs(off).argmax()])
        rest = max(neglected(form, depth, RICH[depth], x) for x in ratios)
        case = f"L = {depth}, networks"
        findings += [
            agrees(f"{case}: power of nu minus the derived", slope - expected, MANY * error),
            contradicts(f"{case}: minus the printed", slope - float(printed.subs(L, depth)), error, by=MANY),
            agrees(f"{case}: worst rate over the derived one, minus 1", worst, near(depth, rest)),
        ]
        words.append(f"{slope:.3f} +- {error:.3f}")
    for depth in (1, 2):
        own = [_sharpness(depth, 4.0, seed) for seed in range(6)]
        error = float(np.std(own, ddof=1) / np.sqrt(len(own)))
        edge = kernel(depth).edge({width_ratio: 4})
        size = (200 * 4) ** (-2 / 3) * edge  # of fluctuations at the end of a spectrum
        label = f"L = {depth}, nu = 4: largest eigenvalue minus derived {edge:.4f}"
        findings.append(agrees(label, float(np.mean(own)) - edge, 3 * error + size))
    return conclude(
        "solved_rates:rates_of_networks",
        "Networks in NTK scaling, L = 1, 2: powers of nu "
        + ", ".join(words)
        + " (derived 1/2, 2/3; printed 0, 1/2).",
        *findings,
    )


@lru_cache
def derived(scaling: str, regime: str) -> LargestRate:
    """Return the closed form for every depth."""
    return largest_rate(isotropic(data="population", center=True, parametrization=scaling), regime)


@lru_cache
def kernel(depth: int) -> LazyKernel:
    """Return the law of the lazy kernel."""
    return lazy_kernel(mean_field(isotropic(depth, data="population", center=True)))


def of_form(form: LargestRate, depth: int, gamma: float, ratio: float) -> float:
    """Return the value of the closed form."""
    return float(form.rate.subs({L: depth, gamma0: gamma, width_ratio: ratio}))


def neglected(form: LargestRate, depth: int, gamma: float, ratio: float) -> float:
    """Return the square of the terms in fields that the closed form neglects.

    Kernels are quadratic in fields, and initial fields are random.
    """
    return float(form.neglected.subs({L: depth, gamma0: gamma, width_ratio: ratio})) ** 2


def near(depth: int, rest: float) -> float:
    """Return the relative tolerance of a rate.

    It has three parts: the bisection; the last quarter of the steps, in which the loss has to halve, so that
    (1 - rate K)^(steps/2) < 1/2; and neglected terms.
    """
    return RTOL + float(np.log(2)) / STEPS[depth] + rest


def powers(ratios: tuple[float, ...], rates: list[float]) -> tuple[float, float, np.ndarray]:
    """Return the fitted power of nu, its standard error, and the powers between neighbours.

    An interval of the bisection is the rate's whole range; its standard deviation is its length over
    sqrt(12). The error is at least that of the scatter about the line.
    """
    x, y = np.log(ratios), np.log(rates)
    slope, start = np.polyfit(x, y, 1)
    spread = RTOL**2 / 12
    if len(x) > 2:
        spread = max(spread, float(np.sum((y - start - slope * x) ** 2)) / (len(x) - 2))
    return float(slope), float(np.sqrt(spread / np.sum((x - x.mean()) ** 2))), np.diff(y) / np.diff(x)


def _settling(depth: int, gamma: float, scaling: str, ratio: float) -> float:
    """Return the rate above which the loss of the solved theory does not vanish."""
    guess = 0.6 * of_form(derived(scaling, "rich"), depth, gamma, ratio)
    e = _experiment(depth, gamma, scaling, ratio, STEPS[depth]).replace({"training.learning_rate": guess})
    return measured_rate(e, rtol=RTOL, settle=True).value


def _experiment(depth: int, gamma: float, scaling: str, ratio: float, steps: int) -> Experiment:
    network = {"depth": depth, "gamma0": gamma, "width_ratio": ratio, "parametrization": scaling}
    training = {"learning_rate": 0.1, "steps": steps, "center": True}
    return Experiment.from_dict({"network": network, "data": {"kind": "isotropic"}, "training": training})


def rate_of_network(depth: int, ratio: float, seed: int, gamma: float, features: int = 24) -> float:
    """Return the rate above which the loss of one network in NTK scaling does not vanish.

    The criterion is that of the theory.
    """
    steps, width = STEPS[depth], round(ratio * features)
    target = np.full(features, features**-0.5)

    def dies_out(rate: float) -> bool:
        net = Descent.drawn(depth, width, target, np.ones(features), gamma / ratio**0.5, seed)
        loss = [float(np.sum((net.target - net.learnt()) ** 2))]
        for _ in range(steps):
            net.move(net.target - net.learnt(), rate)
            loss.append(float(np.sum((net.target - net.learnt()) ** 2)))
            if not loss[-1] < 1e6:
                return False
        quarter = steps // 4
        return max(loss[-quarter:]) <= max(max(loss[-2 * quarter : -quarter]) / 2, 1e-12)

    return _bisected(dies_out, of_form(derived("ntk", "rich"), depth, gamma, ratio))


def _bisected(stable: Callable[[float], bool], near: float) -> float:
    low, high = 0.6 * near, 1.6 * near
    if not stable(low) or stable(high):
        raise RuntimeError(f"the largest rate is not between {low:.3g} and {high:.3g}")
    while high / low > 1 + RTOL:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if stable(middle) else (low, middle)
    return float(np.sqrt(low * high))


def _sharpness(depth: int, ratio: float, seed: int, features: int = 200) -> float:
    """Return the largest eigenvalue of the initial tangent kernel of one network, without its theory."""
    nothing, ones = np.zeros(features), np.ones(features)
    return Descent.drawn(depth, round(ratio * features), nothing, ones, 1.0, [70, seed]).sharpness()
