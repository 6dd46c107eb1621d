"""Every kind of linear experiment: what `dmft solve` gives beside what `dmft simulate` gives at two sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from numerics.experiment import Experiment
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.verification.networks import less_their_theory, quantities, scaled
from numerics.verification.plan import widths_near
from tests.numerics.theories.programs import Row, row

Tables = Mapping[str, Mapping[str, Any]]
Change = Callable[[xr.Dataset], xr.Dataset]

SMALLEST, SEEDS, SEED = 64, (60, 40), 1
"""Units in the narrowest population of the smaller networks; how many of each size; the randomness."""

TOLERANCE = 1e-4
"""What the steps of networks along a flow may miss, far less than they scatter."""

KERNEL = np.array([[1.0, 0.3, -0.2], [0.3, 1.2, 0.1], [-0.2, 0.1, 0.8]])
TARGETS = np.array([1.0, -0.5, 0.3])
PAIRS = np.stack([TARGETS, -0.7 * TARGETS[::-1]], axis=1)

FLOW = {"rule": "flow", "time": 2.0, "points": 5}
ONLINE = {"rule": "sgd"}


def fixed(network: Mapping[str, Any], training: Mapping[str, Any], targets: Any = TARGETS) -> Experiment:
    """Return an experiment with two layers, three samples and six steps, unless changed."""
    steps = {} if "rule" in training else {"learning_rate": 0.15, "steps": 6}
    tables = {
        "network": {"depth": 2, "gamma0": 1.2, **network},
        "training": {**steps, **training},
        "solver": {"rtol": 1e-4},
    }
    return Experiment.from_dict(tables, kernel=KERNEL, targets=targets)


def random(kind: str, network: Tables | Any, data: Any, training: Any) -> Experiment:
    """Return the same on random data."""
    own: dict[str, Any] = {"isotropic": {"width_ratio": 1.5}, "power-law": {}}[kind]
    law = {"capacity": 1.5, "source": 0.6, "modes": 60} if kind == "power-law" else {}
    steps = {} if training.get("rule") == "flow" else {"learning_rate": 0.1, "steps": 6}
    return Experiment.from_dict(
        {
            "network": {"depth": 2, "gamma0": 0.8, **own, **network},
            "data": {"kind": kind, **law, **data},
            "training": {**steps, **training},
            "solver": {"rtol": 1e-4},
        }
    )


def isotropic(network: Any, data: Any, training: Any) -> Experiment:
    """Return an experiment on isotropic data."""
    return random("isotropic", network, data, training)


def power_law(network: Any, data: Any, training: Any) -> Experiment:
    """Return an experiment on power-law data."""
    return random("power-law", network, data, training)


BATCHES = {"batch": 64, "noise": 0.2}
EXPERIMENTS: dict[str, tuple[str, Callable[[], Experiment]]] = {
    "one hidden layer": ("selfconsistent2023 F", lambda: fixed({"depth": 1}, {})),
    "three hidden layers": ("selfconsistent2023 F", lambda: fixed({"depth": 3}, {})),
    "flow": ("selfconsistent2023 F", lambda: fixed({"gamma0": 1.5}, FLOW)),
    "biases": ("selfconsistent2023 H", lambda: fixed({"bias": True}, {})),
    "two outputs": ("selfconsistent2023 I", lambda: fixed({"outputs": 2}, {}, PAIRS)),
    "unequal widths and variances": (
        "selfconsistent2023 D.8",
        lambda: fixed({"relative_widths": [1.0, 0.5], "init_variance": [1.0, 1.5, 0.7]}, {}),
    ),
    "weight decay": ("selfconsistent2023 J", lambda: fixed({}, {"weight_decay": 0.3})),
    "weight decay, flow": ("selfconsistent2023 J", lambda: fixed({}, {**FLOW, "weight_decay": 0.3})),
    "Langevin": ("selfconsistent2023 K", lambda: fixed({}, {"weight_decay": 0.3, "temperature": 0.2})),
    "Langevin, flow": (
        "selfconsistent2023 K",
        lambda: fixed({}, {**FLOW, "weight_decay": 0.3, "temperature": 0.2}),
    ),
    "momentum": ("selfconsistent2023 L", lambda: fixed({}, {"momentum": 0.6})),
    "momentum, flow": ("selfconsistent2023 L", lambda: fixed({}, {**FLOW, "momentum": 0.5})),
    "residual": ("beyond", lambda: fixed({"depth": 4, "branch": 0.6}, {})),
    "residual, biases, outputs, decay": (
        "composition",
        lambda: fixed({"branch": 0.6, "bias": True, "outputs": 2}, {"weight_decay": 0.3}, PAIRS),
    ),
    "isotropic, full batch": (
        "linear2025 A",
        lambda: isotropic({}, {"sample_ratio": 2.0, "noise": 0.3}, {}),
    ),
    "isotropic, full batch, centred": (
        "linear2025 A",
        lambda: isotropic({"depth": 3}, {"sample_ratio": 2.0}, {"center": True}),
    ),
    "isotropic, flow": ("linear2025 A", lambda: isotropic({}, {"sample_ratio": 2.0, "noise": 0.3}, FLOW)),
    "isotropic, online": (
        "linear2025 D",
        lambda: isotropic({}, {"batch_ratio": 2.0, "noise": 0.3}, ONLINE),
    ),
    "isotropic, online, unequal widths, centred": (
        "linear2025 D",
        lambda: isotropic({"width_ratio": [1.5, 0.75]}, {"batch_ratio": 2.0}, {**ONLINE, "center": True}),
    ),
    "isotropic, population": ("linear2025 3", lambda: isotropic({}, {}, {})),
    "isotropic, NTK": (
        "linear2025 B",
        lambda: isotropic({"parametrization": "ntk"}, {"sample_ratio": 2.0}, {}),
    ),
    "isotropic, residual": (
        "linear2025 C",
        lambda: isotropic({"depth": 4, "branch": 0.6}, {"sample_ratio": 2.0}, {"learning_rate": 0.04}),
    ),
    "isotropic, two outputs": (
        "linear2025 G",
        lambda: isotropic({"outputs": 2}, {"sample_ratio": 2.0}, {}),
    ),
    "isotropic, momentum and decay": (
        "composition",
        lambda: isotropic({}, {"sample_ratio": 2.0}, {"momentum": 0.5, "weight_decay": 0.2}),
    ),
    "power law, batches": ("linear2025 E", lambda: power_law({"width": 64}, BATCHES, ONLINE)),
    "power law, batches, NTK": (
        "linear2025 E",
        lambda: power_law({"width": 64, "parametrization": "ntk"}, BATCHES, ONLINE),
    ),
    "power law, population": ("linear2025 E.1", lambda: power_law({"depth": 3}, {}, {})),
    "power law, flow": ("linear2025 E.1", lambda: power_law({"depth": 1}, {}, FLOW)),
}


def compare_experiment(
    name: str,
    *,
    smallest: int = SMALLEST,
    seeds: tuple[int, int] = SEEDS,
    change: Change = lambda theory: theory,
) -> Row:
    """Solve and simulate one of EXPERIMENTS; ``change`` alters the solution first (to see it rejected).

    What is compared, and by which bound, is what `dmft verify` does, at two sizes.

    >>> found = compare_experiment("one hidden layer", smallest=32, seeds=(30, 20))
    >>> found.agrees, found.entries
    (True, 20)
    """
    experiment = EXPERIMENTS[name][1]()
    theory = change(solve(experiment))
    widths = widths_near(experiment, experiment.network.width or smallest)[:2]
    streams = np.random.SeedSequence([SEED, list(EXPERIMENTS).index(name)]).generate_state(2)
    trained = [
        simulate(scaled(experiment, n), width=n, seeds=k, rng=int(rng), tolerance=TOLERANCE)
        for n, k, rng in zip(widths, seeds, streams, strict=True)
    ]
    networks = less_their_theory(experiment, theory, trained)
    return row(theory, networks, quantities(theory, networks))
