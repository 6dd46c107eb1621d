"""Convolutional networks: trained ones against theory and (G.6), small ones against (G.1)-(G.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Basic, sympify

from derive.program import P
from derive.theory import Theory
from numerics.solver.direct import evaluate
from tests.derive.once import convolution, mean_field
from tests.ledger.claims import claimed, corrected
from tests.ledger.claims.selfconsistent2023.convolution import S, X
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import CLOSE, Experiment, edited, worst
from tests.ledger.evidence.evaluated import Functions, largest, told_apart, valued
from tests.ledger.evidence.lab import EXACT, derivative, slope

Array = NDArray[np.float64]

POSITIONS, REACH = 3, 1
IMAGE = np.array([[[0.3, 0.8, 0.3], [-1.3, 0.9, 0.4], [-0.5, 0.6, 0.4]]])
TRAINED = Experiment(
    convolution(2, "tanh", positions=POSITIONS, receptive=REACH),
    {"eta": 0.3, "gamma0": 2.0, "P": 1},
    {"x": IMAGE, "y": np.array([1.0])},
    width=150,
    networks=120,
    steps=2,
)
PATHS = 2**10


def claim(*names: str) -> dict[str, Basic]:
    """Return parts of (G.6) for a ring of three positions and filters of three offsets."""
    built = claimed("selfconsistent2023", "G.6")
    return {x: sympify(built[x]).subs({X: POSITIONS, S: REACH}) for x in names}


@lru_cache(maxsize=1)
def networks() -> dict[str, tuple[Array, Array]]:
    """Return kernels and outputs of infinitely wide networks."""
    return TRAINED.measured()


def sources_and_responses() -> Evidence:
    """Check (G.4), (G.6): sums over offsets in covariances and responses."""
    theory = TRAINED.theory()
    parts = {
        "covariance of u": claim("cov_u"),
        "covariance of r": claim("cov_r"),
        "responses in h": claim("h"),
        "responses in z": claim("z"),
    }
    return conclude(
        "convolution:sources_and_responses",
        "Networks on a ring of three positions agree with sums over offsets in covariances and responses; "
        "each of the four printed forms alone is rejected.",
        agrees("convolution, L = 2: largest z of the derived theory", _far(theory), CLOSE),
        *[
            contradicts(f"{k} as in (G.6): largest z", _far(edited(theory, c, 2)), 1.0)
            for k, c in parts.items()
        ],
    )


def _far(theory: Theory) -> float:
    return worst(networks(), TRAINED.solved(theory, samples=PATHS))


def entries_of_kernels() -> Evidence:
    """Check (G.6) text: number of entries of a kernel at one pair of times (P = 2, 4 positions)."""
    findings = []
    for reach in (0, 1):
        program = convolution(2, positions=4, receptive=reach)
        x = np.eye(8).reshape(2, 4, 2, 4)
        run = evaluate(
            mean_field(program),
            steps=1,
            values={P: 2, "eta": 1, "gamma0": 1},
            data={"K_x": x, "y": np.ones(2)},
        )
        count = run.value("H", 1).size
        said = int(claimed("selfconsistent2023", "G.6 text")["samples"].subs({P: 2, S: reach})) ** 2
        what = f"{2 * reach + 1} offsets: entries of H"
        findings += [
            agrees(f"{what} minus (P positions)^2", count - 8**2, 0),
            contradicts(f"{what} minus (P |S|)^2", count - said, 1, by=1),
        ]
    return conclude(
        "convolution:entries_of_kernels",
        "Kernels join all pairs of positions, whatever the size of the filters.",
        *findings,
    )


# -- small networks: N units, filters W[k] for offsets -1, 0, 1 ----------------------------------------------

N, D, SAMPLES, GAMMA = 4, 2, 2, 1.5
OFFSETS = (-1, 0, 1)


@dataclass(frozen=True)
class Small:
    """Two hidden layers; ``w`` has one readout for each position."""

    first: Array
    inner: Array
    readout: Array

    def h1(self, x: Array) -> Any:
        """Return the fields of the first layer, (positions, N)."""
        return _convolved(self.first, x) / np.sqrt(D)

    def h2(self, h1: Any, inner: Any = None) -> Any:
        """Return the fields of the second layer, (positions, N)."""
        return _convolved(self.inner if inner is None else inner, np.tanh(h1)) / np.sqrt(N)

    def f(self, h2: Any) -> Any:
        """Return the output, summed over positions."""
        return np.sum(self.readout * np.tanh(h2)) / (GAMMA * N)


def _convolved(filters: Any, v: Any) -> Any:
    return np.stack(
        [sum(w @ v[(p + k) % len(v)] for k, w in zip(OFFSETS, filters, strict=True)) for p in range(len(v))]
    )


@lru_cache(maxsize=1)
def small() -> tuple[Small, Array]:
    """Return the same network and inputs each time."""
    rng = np.random.default_rng(11)
    draw = rng.standard_normal
    return Small(draw((3, N, D)), draw((3, N, N)), draw((3, N))), draw((SAMPLES, 3, D))


def gradients(net: Small, x: Array) -> tuple[Array, Array, Array, Array]:
    """Return h and g of both layers for one input."""
    h1 = net.h1(x)
    h2 = net.h2(h1)
    g1 = GAMMA * N * derivative(lambda h: net.f(net.h2(h)), h1)
    return h1, h2, g1, GAMMA * N * derivative(net.f, h2)


def on_ring(net: Small, **more: Any) -> dict[str, Any]:
    """Return the functions of claims about small networks: filters by layer and offset, on a ring."""
    return {
        "phi": np.tanh,
        "w": lambda unit, p: net.readout[(p - 1) % 3, (unit - 1) % N],
        "W": lambda layer, k=0: _filters(net, layer)[(k + 1) % 3],
        "W_top": lambda layer, k=0: _filters(net, layer)[(k + 1) % 3].T,
        "product": lambda matrix, v: matrix @ v / np.sqrt(N),
        **more,
    }


def _filters(net: Small, layer: int) -> Array:
    return {0: net.first, 1: net.inner}[layer]


NUMBERS = {"P": SAMPLES, "X": 3, "S": REACH, "N": N, "L": 2, "ell": 1, "mu": 1, "t": 1, "gamma0": GAMMA}


def at_positions(e: Basic, functions: Functions, step: float = 1.0) -> Array:
    """Return a right-hand side of a claim at each of the three positions."""
    return np.stack([np.asarray(valued(e, {**NUMBERS, "p": p}, functions, step)) for p in (1, 2, 3)])


def output_over_positions() -> Evidence:
    """Check (G.1) text: an output that reads one position has no gradient at the others."""
    net, x = small()
    h2, other = (net.h2(net.h1(v)) for v in x)
    claim, true = (built("selfconsistent2023", "G.1 text")["f"] for built in (claimed, corrected))

    def g_of(e: Basic, read: int) -> Array:
        """Return gamma0 N times the gradient of an output whose free position, if any, is ``read``."""

        def output(h: Any) -> Any:
            fields = {(2, 1): h, (2, 2): other}
            functions = on_ring(net, h=lambda k, mu, unit, p: fields[k, mu][(p - 1) % 3, (unit - 1) % N])
            return valued(e, {**NUMBERS, "p": read}, functions)

        return GAMMA * N * derivative(output, h2)

    printed = [g_of(claim, p) for p in (1, 2, 3)]
    expected = net.readout * slope(h2)
    return conclude(
        "convolution:output_over_positions",
        "Summed over positions, the output gives g^L_a = w_a phi'(h_a) at each; as printed it gives that at "
        "one position, and zero at the others.",
        contradicts("printed: g^L minus w phi'", min(largest(g - expected) for g in printed), EXACT),
        agrees("corrected: g^L minus w phi'", largest(g_of(true, 1) - expected), EXACT),
        agrees("gradient of the network minus w phi'", largest(gradients(net, x[0])[3] - expected), EXACT),
    )


def backward_recursion() -> Evidence:
    """Check (G.2): the sum over units is counted twice."""
    run = _stepped()
    h1, _, g1, _ = gradients(run.after, small()[1][0])
    functions = on_ring(run.after, g=_functions_of(run)["g"])
    both = [
        slope(h1) * at_positions(built("selfconsistent2023", "G.2")["z"], functions)
        for built in (claimed, corrected)
    ]
    times = float(np.vdot(both[0], g1) / np.vdot(g1, g1))
    return conclude(
        "convolution:backward_recursion",
        f"One sum over offsets and one matrix product give g; the printed one is {times:g} times too large.",
        *told_apart("phi' z", both, g1, EXACT),
    )


def _backward(filters: Array, g: Array) -> Array:
    """Return sum_b W_b^T g_{a-b}/sqrt(N)."""
    back = [w.T @ g[(p - k) % 3] for p in range(3) for k, w in zip(OFFSETS, filters, strict=True)]
    return np.asarray(np.sum(np.reshape(back, (3, len(OFFSETS), N)), axis=1) / np.sqrt(N))


def _moves(net: Small, x: Array, error: Array) -> tuple[Array, Array]:
    """Return the velocity of the inner filters, as gamma^2 times the gradient and by (G.3)."""
    flow, printed = np.zeros_like(net.inner), np.zeros_like(net.inner)
    for one, delta in zip(x, error, strict=True):
        h1, _, _, g2 = gradients(net, one)
        flow += GAMMA**2 * N * delta * derivative(_of_filters(net, h1), net.inner)
        for i, k in enumerate(OFFSETS):
            printed[i] += GAMMA / np.sqrt(N) * delta * g2.T @ np.tanh(h1[(np.arange(3) + k) % 3])
    return flow, printed


def _of_filters(net: Small, h1: Array) -> Callable[[Any], Any]:
    """Return the output as a function of the inner filters."""
    return lambda filters: net.f(net.h2(h1, filters))


def filter_velocity() -> Evidence:
    """Check (G.3): updates of the filters."""
    net, x = small()
    flow, printed = _moves(net, x, np.array([0.7, -0.4]))
    return conclude(
        "convolution:filter_velocity",
        "gamma^2 times the gradient of the outputs is the printed sum over positions and samples.",
        agrees("gradient minus (G.3)", float(np.max(np.abs(flow - printed))), EXACT),
        contradicts("with phi(h_{a-b})", float(np.max(np.abs(flow - printed[::-1]))), EXACT),
    )


@dataclass(frozen=True)
class _Step:
    """A network before and after a step of its inner filters, by fields ``[time][sample]`` (positions, N).

    The first filters shrink as well, so that features move; ``error`` is that of the samples in the step.
    """

    before: Small
    after: Small
    error: Array
    phi: list[list[Array]]
    g: list[list[Array]]
    h: list[list[tuple[Array, Array]]]
    rate: float


def _stepped() -> _Step:
    net, x = small()
    error, rate = np.array([0.7, -0.4]), 0.2
    after = replace(net, first=0.8 * net.first, inner=net.inner + rate * _moves(net, x, error)[0])
    found = [[gradients(n, v) for v in x] for n in (net, after)]
    return _Step(
        net,
        after,
        error,
        [[np.tanh(h1) for h1, *_ in run] for run in found],
        [[g2 for *_, g2 in run] for run in found],
        [[(h1, h2) for h1, h2, *_ in run] for run in found],
        rate,
    )


def _functions_of(run: _Step) -> dict[str, Any]:
    """Return fields and kernels of (G.4) by layer, sample, position and time; layer 1 is the lower one.

    A field without a time is the field at the time of the left-hand side.
    """

    def there(values: list[list[Array]], sample: int, p: int, time: int) -> Array:
        return np.asarray(values[time % 2][(sample - 1) % SAMPLES][(p - 1) % 3])

    def kernel(values: list[list[Array]], layer: int, own: int) -> Any:
        def of(at: int, mu: int, p: int, alpha: int, p_: int, t: int, s: int) -> float:
            if at != layer + own:
                raise KeyError(f"a kernel of layer {at}")
            return float(there(values, mu, p, t) @ there(values, alpha, p_, s) / N)

        return of

    def field(layer: int, sample: int, p: int, time: int = 1) -> Array:
        return np.asarray(run.h[time % 2][(sample - 1) % SAMPLES][layer - 1][(p - 1) % 3])

    def g(layer: int, sample: int, p: int, time: int) -> Array:
        return there({2: run.g}[layer], sample, p, time)

    def chi(layer: int, sample: int, p: int, time: int) -> Array:
        (h1, _) = run.h[time % 2][(sample - 1) % SAMPLES]
        return np.asarray({2: run.before.h2(h1)}[layer][(p - 1) % 3])

    def xi(layer: int, sample: int, p: int, time: int) -> Array:
        backward = _backward(run.before.inner, run.g[time % 2][(sample - 1) % SAMPLES])
        return np.asarray({1: backward}[layer][(p - 1) % 3])

    return on_ring(
        run.before,
        h=field,
        g=g,
        chi=chi,
        xi=xi,
        Phi=kernel(run.phi, 1, 0),
        G=kernel(run.g, 1, 1),
        Delta=lambda sample, time: run.error[(sample - 1) % SAMPLES] * (1 - time % 2),
    )


def driven_fields() -> Evidence:
    """Check (G.4): both memories once the filters have moved; and its text: chi is a sum over offsets."""
    run = _stepped()
    functions = _functions_of(run)
    claim, true = (built("selfconsistent2023", "G.4") for built in (claimed, corrected))
    h, z, right = (at_positions(e, functions, run.rate) for e in (claim["h"], claim["z"], true["z"]))
    h1, h2 = run.h[1][0]
    moved = run.after.h2(h1) - run.before.h2(h1)
    memory = h - np.stack([functions["chi"](2, 1, p, 1) for p in (1, 2, 3)])
    chi = h2 - memory
    said, sums = (built("selfconsistent2023", "G.4 text")["chi"] for built in (claimed, corrected))
    central = [_with_filter(said, functions, k) for k in OFFSETS]
    return conclude(
        "convolution:driven_fields",
        "After a step of the inner filters the fields minus the memories of (G.4) are sums over offsets of "
        "the initial filters, W_b(0) phi(h_{a+b})/sqrt(N) in h; no filter alone is enough, nor "
        "is a memory of z whose phi(h) has no time of its own.",
        agrees("(G.4): h as printed minus true", largest(h - h2), EXACT),
        contradicts("(G.4): memory of h, against none", largest(moved), EXACT),
        *told_apart("(G.4): z", (z, right), _backward(run.after.inner, run.g[1][0]), EXACT),
        contradicts(
            "(G.4 text): chi as printed minus h minus memory", min(largest(x - chi) for x in central), EXACT
        ),
        agrees(
            "(G.4 text): chi as corrected minus h minus memory",
            largest(at_positions(sums, functions) - chi),
            EXACT,
        ),
    )


def _with_filter(e: Basic, functions: Functions, own: int) -> Array:
    """Return a printed product with W that lacks an offset, with the filter of one offset in its place."""
    whole = functions["W"]
    return at_positions(e, {**functions, "W": lambda layer, k=own: whole(layer, k)})
