"""Measure the response functions A and B in finite networks, by kicking a field and looking.

The mean-field theory says how h^l_mu(t) moves when the part r^l(s) of the gradient field g^l(s) = W^{l
T} g^{l+1}(s)/sqrt(N) moves, neuron by neuron: gamma_0 A^l_mu(t,s) = <d h^l_mu(t)/d r^l(s)>. In a
network, add eps v (v ~ N(0,I)) to g^l at step s only, where it is computed, so that the backward pass
below it and the updates of that step see it; then (1/N) v . (change of h^l_mu(t))/eps averages to the
mean diagonal response, with noise of order 1/sqrt(N). Likewise gamma_0 B^l_alpha(t,s) = <d g^{l+1}(t)/d
u^{l+1}_alpha(s)> by kicking the forward field h^{l+1}_alpha(s).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from numerics.threads import one_thread

from .ensemble import Setup, make_streams
from .moments import Moments
from .parameters import Parameters, add, backward, draw_parameters, forward, output, velocity

Array = NDArray[np.float64]
Kicks = Mapping[int, Array]


@one_thread
def response_probe(
    experiment: object,
    *,
    width: int,
    seeds: int,
    rng: int | np.random.Generator | None = None,
    source_steps: Sequence[int] | None = None,
    samples: Sequence[int] | None = None,
    epsilon: float = 1e-4,
) -> xr.Dataset:
    """A(layer,time,time_,sample) and B with ``_stderr``, from central differences in ``seeds`` networks.

    ``source_steps`` are the steps s at which fields are kicked (default: all but the last), ``samples`` the
    samples whose forward field is kicked for B (default: all); entries that were not measured are NaN.
    Layer axis 1..L as in the result files: A^L is the response that enters f, B^L is zero. Bias O(1/N).
    For rule "gd" only. Raises ``ValueError`` for flow, fewer than two seeds, or a step out of range.
    """
    setup = Setup.of(experiment)
    if setup.schedule.rule != "gd":
        raise ValueError("response_probe needs exact steps: training.rule must be 'gd'")
    count, depth, P = len(setup.schedule.times), setup.depth, len(setup.targets)
    sources = list(range(count - 1)) if source_steps is None else [int(s) for s in source_steps]
    if any(not 0 <= s < count for s in sources):
        raise ValueError(f"source_steps = {sources}: must lie in 0..{count - 1}")
    probed = list(range(P)) if samples is None else [int(a) for a in samples]
    entropy, streams = make_streams(seeds, rng)
    moments = Moments()
    for stream in streams:
        a = np.full((depth, count, count, P), np.nan)
        b = np.full((depth, count, count, P), np.nan)
        a[:, :, sources] = 0.0
        b[:, :, [[s] for s in sources], probed] = 0.0
        start = draw_parameters(setup.inputs.shape[1], depth, width, setup.gamma0, stream)
        for layer in range(1, depth + 1):
            for s in sources:
                v = stream.standard_normal(width)
                h, _ = _difference(setup, start, s, {}, {layer: epsilon * v}, layer)
                a[layer - 1, s + 1 :, s] = h[s + 1 :] @ v / (2 * epsilon * width * setup.gamma0)
                for alpha in probed if layer > 1 else []:
                    kick = np.zeros((P, width))
                    kick[alpha] = epsilon * v
                    _, g = _difference(setup, start, s, {layer: kick}, {}, layer)
                    b[layer - 2, s + 1 :, s, alpha] = g[s + 1 :] @ v / (2 * epsilon * width * setup.gamma0)
        moments.push({"A": a, "B": b})
    dims = ("layer", "time", "time_", "sample")
    mean, stderr = moments.mean(), moments.stderr()
    times = setup.schedule.times
    variables = {name: (dims, mean[name]) for name in mean}
    return xr.Dataset(
        variables | {f"{name}_stderr": (dims, stderr[name]) for name in mean},
        coords={"layer": np.arange(1, depth + 1), "time": times, "time_": times, "sample": np.arange(P)},
        attrs={"width": width, "seeds": seeds, "seed": entropy, "status": "ok", "epsilon": epsilon},
    )


def _difference(
    setup: Setup, start: Parameters, step: int, up: Kicks, down: Kicks, layer: int
) -> tuple[Array, Array]:
    """h^l (T,P,N) and g^l (T,N) with the kicks at ``step``, minus those with the opposite kicks."""
    plus = _kicked(setup, start.copy(), step, up, down, layer)
    minus = _kicked(
        setup,
        start.copy(),
        step,
        {k: -v for k, v in up.items()},
        {k: -v for k, v in down.items()},
        layer,
    )
    return plus[0] - minus[0], plus[1] - minus[1]


def _kicked(
    setup: Setup, p: Parameters, step: int, up: Kicks, down: Kicks, layer: int
) -> tuple[Array, Array]:
    h, g = [], []
    for t in range(len(setup.schedule.times)):
        fields = forward(p, setup.inputs, up if t == step else None)
        gradients = backward(p, down if t == step else None)
        h.append(fields[layer])
        g.append(gradients[layer - 1])
        error = setup.targets - output(p, fields)
        add(p, [(setup.schedule.rate, velocity(fields, gradients, error, p.gamma0))])
    return np.array(h), np.array(g)
