"""Nonlinear networks of several depths and strengths of feature learning, theory beside networks.

Loss, errors, kernels, responses and distributions of the derived theory, solved by sampled paths, are
compared with those of networks of two widths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Expr, Function, S, cos, sin

from derive.calculus.averages import Average
from derive.program import IndexRange, P, ell, mu
from derive.program import t as now
from derive.theory import OrderParameter, Theory
from numerics.simulation import Trainer
from numerics.solver.paths import solve_particles
from numerics.verification.networks import ComparedQuantity
from tests.derive.once import mean_field, mlp
from tests.numerics.theories.probes import KINKED, SMOOTH, probed
from tests.numerics.theories.programs import Row, row

Array = NDArray[np.float64]
Change = Callable[[Theory], Theory]

RATES = {"tanh": 0.3, "erf": 0.2, "relu": 0.1, "softplus": 0.1}
"""A learning rate for each activation."""

KINKS = ("relu",)
DEPTHS = (1, 2, 3)
STRENGTHS = (0.5, 1.0, 3.0)

KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.6])

STEPS = 8
WIDTHS, SEEDS = (128, 256), (100, 60)
SAMPLES, REPLICAS = 4096, 16
SEED = 1

RESPONSES = {"A": ("G", 1), "B": ("Phi", 0)}
"""Responses, and the kernel (with its layer above theirs) that weights them where a slope jumps."""
KERNELS = (("Phi", "Phi^{}"), ("G", "G^{}"))


FIELDS = ("h", "z")
FUNCTIONS: Mapping[str, tuple[str, Expr]] = {
    "cos": ("cos {}", cos(mu)),
    "cos2": ("cos 2{}", cos(2 * mu)),
    "sin": ("sin {}", sin(mu)),
    "fourth": ("{}^4", mu**4),
}
"""Functions of a field (here called mu), and how their averages are called."""


def averages() -> dict[str, Expr]:
    """Return the functions of all fields, by the names of their averages.

    >>> averages()["cos2_h"]
    cos(2*h(ell, mu, t))
    """
    return {
        f"{name}_{field}": body.subs(mu, Function(field)(ell, mu, now))
        for field in FIELDS
        for name, (_, body) in FUNCTIONS.items()
    }


def label_of(name: str) -> str:
    """Return the label of an average in a table.

    >>> label_of("fourth_z")
    '<z^4>'
    """
    function, field = name.split("_")
    return f"<{FUNCTIONS[function][0].format(field)}>"


def with_distributions(theory: Theory) -> Theory:
    """Return the theory with these averages among its order parameters.

    ``h`` and ``z`` carry layer and sample.
    """
    ranges = (IndexRange(ell, S.One, theory.program.depth), IndexRange(mu, S.One, P))
    more = tuple(
        OrderParameter(Function(name)(ell, mu, now), Average(body), "correlation", ranges)
        for name, body in averages().items()
    )
    return replace(theory, order_parameters=(*theory.order_parameters, *more))


def averages_wanted() -> dict[str, tuple[Expr, Expr]]:
    """Return the averages as measurements of networks; the second time does not matter."""
    return {name: (body, S.One) for name, body in averages().items()}


@dataclass(frozen=True)
class Nonlinear:
    """Network whose theory ``case.compare()`` compares with trained networks."""

    activation: str
    depth: int
    gamma0: float

    @property
    def name(self) -> str:
        """Its row in the table.

        >>> Nonlinear("tanh", 2, 3.0).name
        'tanh, L = 2, gamma0 = 3'
        """
        return f"{self.activation}, L = {self.depth}, gamma0 = {self.gamma0:g}"

    @property
    def values(self) -> dict[str, Any]:
        """The numbers of its program."""
        return {"eta": RATES[self.activation], "gamma0": self.gamma0, "P": len(TARGETS)}

    def compare(
        self,
        *,
        steps: int = STEPS,
        widths: tuple[int, int] = WIDTHS,
        seeds: tuple[int, int] = SEEDS,
        samples: int = SAMPLES,
        replicas: int = REPLICAS,
        change: Change = lambda theory: theory,
    ) -> Row:
        """Solve and train; ``change`` alters the theory first (to see it rejected).

        >>> found = Nonlinear("tanh", 1, 1.0).compare(steps=2, widths=(32, 64), seeds=(40, 30), samples=512)
        >>> found.agrees
        True
        """
        theory = mean_field(mlp(self.depth, self.activation))
        solved = self.solved(change(theory), steps, samples, replicas)
        networks = [self.trained(theory, steps, n, k) for n, k in zip(widths, seeds, strict=True)]
        return row(solved, networks, self.places(solved))

    def solved(self, theory: Theory, steps: int, samples: int, replicas: int) -> xr.Dataset:
        """Return the solution by sampled paths in the layout of results, with standard errors."""
        found = solve_particles(
            with_distributions(theory),
            steps=steps + 1,
            values=self.values,
            data={"K_x": KERNEL, "y": TARGETS},
            samples=samples,
            replicas=replicas,
            seed=SEED,
        )
        names = sorted({q.name for q in theory.order_parameters} | {"Delta", *averages()})
        runs: dict[str, Array] = {}
        for name in names:
            layers = sorted(at for n, at in found.runs if n == name)
            if not layers:  # a response whose entries these few paths do not tell apart is left out
                continue
            stacked = np.stack([found.runs[name, at] for at in layers], axis=1)
            if name == "Delta":
                runs["error"] = stacked[:, 0]
                continue
            times = 1 if name in averages() else 2
            last = tuple(range(-times, 0))
            runs[name] = np.moveaxis(stacked, last, tuple(range(2, 2 + times)))
        return _dataset(self.weighted(runs), replicas=replicas)

    def trained(self, theory: Theory, steps: int, width: int, seeds: int) -> xr.Dataset:
        """Return the measurements of networks of a width."""
        program = probed(theory.program, theory)
        own = {name: vector for vector, name in theory.program.notation.items()}
        networks = Trainer.of(
            program.program,
            width=width,
            steps=steps,
            values=self.values,
            data={"K_x": KERNEL, "y": TARGETS, **program.data},
            wanted={**own, **program.wanted, **averages_wanted()},
        )
        size = KINKED if self.activation in KINKS else SMOOTH
        found: dict[str, list[Array]] = {}
        for seed in np.random.SeedSequence([SEED, width]).spawn(seeds):
            run = networks.train(seed) | program.measured(networks, seed, size, self.values)
            for name in averages():
                run[name] = run[name][:, :, 0]
            run["error"] = run.pop("Delta")
            del run["f"]
            for name, x in run.items():
                found.setdefault(name, []).append(x)
        runs = self.weighted({k: np.stack(x) for k, x in found.items()})
        return _dataset(runs, width=width, seeds=seeds)

    def weighted(self, runs: dict[str, Array]) -> dict[str, Array]:
        """Replace responses by weighted sums over the past if a slope of the activation jumps.

        The weight is a kernel. Responses then come from Stein's lemma. Sources of neighbouring steps are
        nearly equal, so that it resolves such sums, but hardly single entries.
        """
        if self.activation not in KINKS:
            return runs
        found = dict(runs)
        for name, (kernel, above) in RESPONSES.items():
            if name in runs:
                layers = runs[name].shape[1]
                weight = runs[kernel][:, above : above + layers]
                t = np.arange(runs[name].shape[2])
                past = (t[:, None] >= t)[:, :, None, None]
                found[name] = np.einsum("nltsma,nlsrab->nltrmb", runs[name] * past, weight)
        return found

    def places(self, theory: xr.Dataset) -> list[ComparedQuantity]:
        """Return the compared quantities, which are fixed in advance.

        They are numbers halfway and at the end, kernels at equal times and with the start, and responses of
        the end to every earlier step.
        """
        end = theory.sizes["time"] - 1
        half = (end + 1) // 2
        found = []
        for t in (half, end):
            found.append(_quantity(f"loss, t = {t}", "train_loss", {"time": t}, _rms(theory.train_loss[t])))
            found.append(_quantity(f"Delta, t = {t}", "error", {"time": t}, _rms(theory.error[t])))
        for layer in range(self.depth):
            for name, words in KERNELS:
                own = theory[name].isel(layer=layer)
                for t, s in ((half, half), (end, end), (end, 0)):
                    size = np.sqrt(_rms(own[t, t]) * _rms(own[s, s]))
                    shown = f"{words.format(layer + 1)}({t},{s})"
                    found.append(_quantity(shown, name, {"layer": layer, "time": t, "time_": s}, float(size)))
            for name in averages():
                for t in (half, end):
                    at = {"layer": layer, "time": t}
                    shown = f"{label_of(name)}, l = {layer + 1}, t = {t}"
                    found.append(_quantity(shown, name, at, max(1.0, _rms(theory[name].isel(at)))))
        for name, (kernel, above) in RESPONSES.items():
            for layer in range(self.depth - 1 if name in theory else 0):
                earlier = slice(0, end if name == "A" else end + 1)
                past: dict[str, Any] = {"below": layer, "time": end, "time_": earlier}
                words = f"{name}^{layer + 1}({end},s)"
                if self.activation in KINKS:
                    words = f"{name}^{layer + 1} {kernel}^{layer + above + 1}({end},s)"
                found.append(_quantity(words, name, past, np.inf))
        return found


def _quantity(label: str, name: str, at: dict[str, Any], size: float) -> ComparedQuantity:
    return ComparedQuantity(label, name, at, size=size)


CASES = tuple(Nonlinear(a, d, g) for a in RATES for d in DEPTHS for g in STRENGTHS)

LAYOUT = ("layer", "time", "time_", "sample", "sample_")


def _dataset(runs: dict[str, Array], **attributes: int) -> xr.Dataset:
    """Return means over the first axis, networks or replicas, and their standard errors."""
    runs = {**runs, "train_loss": (runs["error"] ** 2).mean(axis=2)}
    variables = {}
    for name, x in runs.items():
        dims: tuple[str, ...] = LAYOUT
        if name in averages():
            dims = ("layer", "time", "sample")
        if name in ("error", "train_loss"):
            dims = ("time", "sample")[: x.ndim - 1]
        if name in RESPONSES:
            dims = ("below", *LAYOUT[1:])
        variables[name] = (dims, x.mean(axis=0))
        variables[f"{name}_stderr"] = (dims, x.std(axis=0, ddof=1) / np.sqrt(len(x)))
    return xr.Dataset(variables, attrs=dict(attributes))


def _rms(x: xr.DataArray) -> float:
    return float(np.sqrt(np.mean(x.to_numpy() ** 2)))
