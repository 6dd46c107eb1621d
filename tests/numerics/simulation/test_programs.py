"""Programs taken literally, against training loops written by hand from the same initial weights."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Function, Max, Sum, Symbol, tanh

from derive.program import (
    Along,
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Outer,
    Population,
    Program,
    TrainedMatrix,
    TrainedVector,
    alpha,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.simulation import inputs_from_kernel, simulate_program
from tests.derive.once import mlp

N, STEPS, RATE, GAMMA = 7, 4, 0.3, 1.3
X = np.random.default_rng(1).standard_normal((3, 5))
Y = np.array([1.0, -0.5, 0.3])
VALUES = {eta: RATE, gamma0: GAMMA, "P": 3}
EXACT = {"rtol": 1e-11, "atol": 1e-12}


def draw(*shape, scale=1.0, seed=0):
    return scale * np.random.default_rng([seed, *shape]).standard_normal(shape)


def first(n=N, seed=0):
    """Return W0 as it is applied: x.x/D is the kernel."""
    return draw(n, 5, scale=5**-0.5, seed=seed)


def interior(layer, n=N):
    return draw(n, n, scale=n**-0.5, seed=100 + layer)


def overlaps(a, b):
    """Return (1/n) sum_i a_i(t, ...) b_i(s, ...), from arrays (times, indices, n)."""
    c = np.tensordot(np.array(a), np.array(b), (-1, -1)) / np.shape(a)[-1]
    return np.moveaxis(c, np.ndim(a) - 1, 1)


def simulate(program, *, initial, data=None, values=VALUES, steps=STEPS, **options):
    """Return one network with the given weights."""
    data = {"x": X, "y": Y} if data is None else data
    return simulate_program(
        program, width=N, steps=steps, seeds=1, values=values, data=data, initial=initial, **options
    )


# -- networks on fixed data ----------------------------------------------------------------------------------


def linear_loop(W, w, steps=STEPS, rate=RATE):
    """Return a linear network with N(0, 1) weights divided by roots of sizes, with descent written out."""
    W, w = [m.copy() for m in W], w.copy()
    record = {"h": [], "g": [], "f": []}
    for _ in range(steps + 1):
        h, g = [X], [w]
        for m in W:
            h.append(h[-1] @ m.T / m.shape[1] ** 0.5)
        for m in W[:0:-1]:
            g.insert(0, m.T @ g[0] / N**0.5)
        f = h[-1] @ w / (GAMMA * N)
        for name, x in (("h", h[1:]), ("g", g), ("f", f)):
            record[name].append(np.array(x))
        pulled = [rate * GAMMA * (Y - f) @ x for x in h]
        for m, left, right in zip(W, g, pulled, strict=False):
            m += np.outer(left, right) / m.shape[1] ** 0.5
        w = w + pulled[-1]
    return {name: np.array(x) for name, x in record.items()}


def test_linear_network_against_descent_written_out():
    W0, W1, w = draw(N, 5), draw(N, N), draw(N)
    other = linear_loop([W0, W1], w)
    run = simulate(mlp(2), initial={"W0": W0 / 5**0.5, "W": {1: W1 / N**0.5}, "w": w})
    np.testing.assert_allclose(run["f"].mean, other["f"], **EXACT)
    for layer in (1, 2):
        h, g = other["h"][:, layer - 1], other["g"][:, layer - 1]
        np.testing.assert_allclose(run["H"][layer].mean, overlaps(h, h), **EXACT)
        np.testing.assert_allclose(run["G"][layer].mean, overlaps(g, g), **EXACT)


def tanh_loop(depth, W, w, *, targets=Y, bias=None, branch=None, backward=None, fixed=False):  # noqa: PLR0913 (variants of one loop)
    """Return a trained tanh network with passes and updates by sample and channel.

    ``W`` = [W0, ..., W_{L-1}] as applied, ``w`` (C, N), ``targets`` (P, C), ``backward`` matrices for the
    backward pass, trained like the forward ones unless ``fixed``.
    """
    W, w = [m.copy() for m in W], w.copy()
    V = W if backward is None else [m.copy() for m in backward]
    b = None if bias is None else bias.copy()
    beta, samples, channels = branch or 1.0, range(len(X)), range(len(w))
    record = {"phi": [], "g": [], "f": []}
    for _ in range(STEPS + 1):
        h = np.zeros((depth + 1, len(X), N))
        g = np.zeros((depth + 1, len(X), len(w), N))
        for i in samples:
            h[1, i] = W[0] @ X[i] + (0 if b is None else b[0])
            for k in range(1, depth):
                stream = 0 if branch is None else h[k, i]
                h[k + 1, i] = stream + beta * W[k] @ np.tanh(h[k, i]) + (0 if b is None else b[k])
        slope = 1 - np.tanh(h) ** 2
        f = np.array([[w[c] @ np.tanh(h[depth, i]) / (GAMMA * N) for c in channels] for i in samples])
        for i in samples:
            for c in channels:
                g[depth, i, c] = slope[depth, i] * w[c]
                for k in range(depth - 1, 0, -1):
                    stream = 0 if branch is None else g[k + 1, i, c]
                    g[k, i, c] = stream + beta * slope[k, i] * (V[k].T @ g[k + 1, i, c])
        error = targets - f
        record["phi"].append(np.tanh(h[1:]))
        record["g"].append(g[1:])
        record["f"].append(f)
        for i in samples:
            for c in channels:
                step = RATE * GAMMA * error[i, c]
                W[0] += step * np.outer(g[1, i, c], X[i]) / 5
                for k in range(1, depth):
                    move = beta * step * np.outer(g[k + 1, i, c], np.tanh(h[k, i])) / N
                    W[k] += move
                    if backward is not None and not fixed:
                        V[k] += move
                for k in range(depth if b is not None else 0):
                    b[k] += step * g[k + 1, i, c]
                w[c] += step * np.tanh(h[depth, i])
    return {name: np.array(x) for name, x in record.items()}


def weights(depth):
    return [first(), *(interior(k) for k in range(1, depth))]


def test_tanh_network():
    W, w = weights(3), draw(1, N)
    loop = tanh_loop(3, W, w, targets=Y[:, None])
    run = simulate(mlp(3, tanh), initial={"W0": W[0], "W": {1: W[1], 2: W[2]}, "w": w[0]})
    np.testing.assert_allclose(run["f"].mean, loop["f"][..., 0], **EXACT)
    for layer in (1, 2, 3):
        phi, g = loop["phi"][:, layer - 1], loop["g"][:, layer - 1, :, 0]
        np.testing.assert_allclose(run["Phi"][layer].mean, overlaps(phi, phi), **EXACT)
        np.testing.assert_allclose(run["G"][layer].mean, overlaps(g, g), **EXACT)


def test_a_named_activation_is_the_function_it_is_told_to_be():
    initial = {"W0": first(), "W": {1: interior(1)}, "w": draw(N)}
    told = simulate(mlp(2, Function("phi")), initial=initial, values={**VALUES, "phi": tanh})
    np.testing.assert_array_equal(told["f"].mean, simulate(mlp(2, tanh), initial=initial)["f"].mean)


@pytest.mark.parametrize("fixed", [False, True])
def test_independent_backward_matrices(fixed):
    """Trained like the forward ones; the same loop without their training gives something else."""
    W, V, w = weights(3), [np.zeros((N, 5)), interior(11), interior(12)], draw(1, N)
    loop = tanh_loop(3, W, w, targets=Y[:, None], backward=V, fixed=fixed)["f"][..., 0]
    initial = {"W0": W[0], "W": {1: W[1], 2: W[2]}, "V": {1: V[1], 2: V[2]}, "w": w[0]}
    run = simulate(mlp(3, tanh, tied=False), initial=initial)
    assert np.allclose(run["f"].mean, loop, **EXACT) == (not fixed)


def test_residual_network_with_biases():
    """All layers are the same units, so correlations between layers exist."""
    W, w, b = weights(3), draw(1, N), draw(3, N, scale=0.5)
    loop = tanh_loop(3, W, w, targets=Y[:, None], bias=b, branch=0.7)
    program = mlp(3, tanh, branch=Symbol("beta"), bias=True)
    initial = {"W0": W[0], "W": {1: W[1], 2: W[2]}, "w": w[0], "b": {1: b[0], 2: b[1], 3: b[2]}}
    run = simulate(program, initial=initial, values={**VALUES, "beta": 0.7})
    np.testing.assert_allclose(run["f"].mean, loop["f"][..., 0], **EXACT)
    assert [name for name, _ in run["G"].axes] == ["t", "s", "ell", "mu", "ell'", "mu'"]
    np.testing.assert_allclose(run["G"].mean, overlaps(loop["g"][..., 0, :], loop["g"][..., 0, :]), **EXACT)
    np.testing.assert_allclose(run["Phi"].mean, overlaps(loop["phi"], loop["phi"]), **EXACT)


def test_several_outputs():
    W, w, targets = weights(2), draw(2, N), np.stack([Y, Y**2], axis=1)
    loop = tanh_loop(2, W, w, targets=targets)
    initial = {"W0": W[0], "W": {1: W[1]}, "w": {1: w[0], 2: w[1]}}
    run = simulate(mlp(2, tanh, outputs=2), initial=initial, data={"x": X, "y": targets})
    np.testing.assert_allclose(run["f"].mean, loop["f"], **EXACT)
    assert [name for name, _ in run["G"].axes] == ["ell", "t", "s", "mu", "c", "mu'", "c'"]
    np.testing.assert_allclose(run["G"][1].mean, overlaps(loop["g"][:, 0], loop["g"][:, 0]), **EXACT)


def test_initial_weights_of_families_may_be_one_array():
    """``initial={"w": array}`` of two readouts ended in "the program has no weight w"."""
    W, w = weights(3), draw(2, N)
    program, data = mlp(3, tanh, outputs=2), {"x": X, "y": np.stack([Y, Y**2], axis=1)}
    by_member = {"W0": W[0], "W": {1: W[1], 2: W[2]}, "w": {1: w[0], 2: w[1]}}
    whole = {"W0": W[0], "W": np.stack(W[1:3]), "w": w}
    one, other = (simulate(program, initial=x, data=data)["f"].mean for x in (by_member, whole))
    np.testing.assert_array_equal(one, other)
    wrong = [
        (
            "w",
            w.T,
            r"must be a mapping from members .* {1: array of shape \(7,\)}.* one array of shape \(2, 7\)",
        ),
        ("W", {3: W[1]}, "has the member 3: must be one of 1, 2"),
        ("W", {"1": W[1]}, "has the member '1': must be one of 1, 2"),
        ("W0", {1: W[0]}, "is a mapping: must be an array of shape .* because W0 is one weight"),
        ("q", w, "the program has no weight q; it has W, W0, w"),
    ]
    for name, value, told in wrong:
        with pytest.raises(ValueError, match=told):
            simulate(program, initial={name: value}, data=data)


# -- convolution ---------------------------------------------------------------------------------------------

PLACES, REACH = 4, 1
IMAGES = np.random.default_rng(5).standard_normal((2, PLACES, 5))


def convolution():
    """Return one hidden convolution after the first, on a ring, with a readout shared by positions."""
    a, k, b = (Symbol(n, integer=True) for n in "akb")
    layer, inputs = Population("layer"), Population("input", given=True)
    h, g, z = (Field(n, layer, layered=True) for n in "hgz")
    x = GivenVector("x", inputs, "K_x")
    f, Delta, y = (Function(n) for n in ("f", "Delta", "y"))
    samples, places = IndexRange(mu, 1, 2), IndexRange(a, 0, PLACES - 1)
    offsets = (IndexRange(k, -REACH, REACH),)
    over = (IndexRange(alpha, 1, 2), IndexRange(b, 0, PLACES - 1))
    W0 = GaussianMatrix("W0", layer.at(1), inputs, others=offsets)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, 1, 1), others=offsets)
    w, rule, window = GaussianVector("w", layer.at(2)), GradientDescent(eta), (k, -REACH, REACH)

    def step(left, right):
        return Outer(gamma0 * Delta(alpha, t), left, right, over)

    return Program(
        name="convolution",
        rule=rule,
        fields=(h, z, g),
        definitions=(
            Definition(h(1, mu, a, t), Sum(W0(k) @ x(mu, a + k), window), (samples, places)),
            Definition(h(2, mu, a, t), Sum(W(1, k) @ tanh(h(1, mu, a + k, t)), window), (samples, places)),
            Definition(
                f(mu, t), Sum(Mean(g(2, mu, a, t) * h(2, mu, a, t)), (a, 0, PLACES - 1)) / gamma0, (samples,)
            ),
            Definition(Delta(mu, t), y(mu) - f(mu, t), (samples,)),
            Definition(g(2, mu, a, t), w.symbol, (samples, places)),
            Definition(
                g(1, mu, a, t),
                (1 - tanh(h(1, mu, a, t)) ** 2) * z(1, mu, a, t),
                (samples, places),
            ),
            Definition(z(1, mu, a, t), Sum(W(1, k).T @ g(2, mu, a - k, t), window), (samples, places)),
        ),
        matrices=(
            TrainedMatrix(W0, step(g(1, alpha, b, t), x(alpha, b + k)), rule),
            TrainedMatrix(W, step(g(ell + 1, alpha, b, t), tanh(h(ell, alpha, b + k, t))), rule),
        ),
        vectors=(TrainedVector(w, Along(gamma0 * Delta(alpha, t), h(2, alpha, b, t), over), rule),),
        given=(x,),
        scalars=("f", "Delta"),
        constants=("y",),
        notation={h(ell, mu, a, t): "H", g(ell, mu, a, t): "G"},
    )


def convolution_loop(W0, W, w, targets):
    W0, W, w = ({k: m.copy() for k, m in W0.items()}, {k: m.copy() for k, m in W.items()}, w.copy())
    outputs, hidden = [], []
    for _ in range(STEPS + 1):
        h1, h2, g1 = (np.zeros((2, PLACES, N)) for _ in range(3))
        for i, a, k in np.ndindex(2, PLACES, 3):
            h1[i, a] += W0[k - 1] @ IMAGES[i, (a + k - 1) % PLACES]
        for i, a, k in np.ndindex(2, PLACES, 3):
            h2[i, a] += W[k - 1] @ np.tanh(h1[i, (a + k - 1) % PLACES])
        for i, a, k in np.ndindex(2, PLACES, 3):
            # the entry h1[i, a + k] feeds h2[i, a] through W[k]
            g1[i, (a + k - 1) % PLACES] += W[k - 1].T @ w
        g1 *= 1 - np.tanh(h1) ** 2
        f = np.array([sum(w @ h2[i, a] for a in range(PLACES)) for i in range(2)]) / (GAMMA * N)
        outputs.append(f)
        hidden.append(h1)
        for i, b in np.ndindex(2, PLACES):
            step = RATE * GAMMA * (targets[i] - f[i])
            for k in (-1, 0, 1):
                W0[k] += step * np.outer(g1[i, b], IMAGES[i, (b + k) % PLACES]) / 5
                W[k] += step * np.outer(w, np.tanh(h1[i, (b + k) % PLACES])) / N
        w = w + RATE * GAMMA * sum((targets[i] - f[i]) * h2[i, b] for i, b in np.ndindex(2, PLACES))
    return np.array(outputs), np.array(hidden)


def test_convolution_on_a_ring():
    W0 = {k: first(seed=k + 20) for k in (-1, 0, 1)}
    W, w = {k: interior(k + 40) for k in (-1, 0, 1)}, draw(N)
    f, h = convolution_loop(W0, W, w, Y[:2])
    initial = {"W0": W0, "W": {(1, k): m for k, m in W.items()}, "w": w}
    run = simulate(convolution(), initial=initial, data={"x": IMAGES, "y": Y[:2]})
    np.testing.assert_allclose(run["f"].mean, f, **EXACT)
    assert run["H"].axes[3:5] == (("mu", (1, 2)), ("a", (0, 1, 2, 3)))
    np.testing.assert_allclose(run["H"][1].mean, overlaps(h, h), **EXACT)


def test_relu_as_a_maximum():
    W0, w = first(), draw(N)
    run = simulate(mlp(1, lambda v: Max(0, v)), initial={"W0": W0, "w": w}, steps=1)
    h = X @ W0.T
    f = np.maximum(h, 0) @ w / (GAMMA * N)
    g = w * (h > 0)
    W0 = W0 + RATE * GAMMA * np.einsum("p,pi,pj->ij", Y - f, g, X) / 5
    w = w + RATE * GAMMA * (Y - f) @ np.maximum(h, 0)
    np.testing.assert_allclose(run["f"].mean, [f, np.maximum(X @ W0.T, 0) @ w / (GAMMA * N)], **EXACT)


def test_inputs_from_a_singular_kernel():
    kernel = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    x = inputs_from_kernel(kernel)
    assert x.shape == (3, 2)
    assert x @ x.T / 2 == pytest.approx(kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        np.diag([1.0, -1.0]),
        np.ones((2, 3)),
        np.array([[1.0, 0.5], [0.2, 1.0]]),
        np.eye(4).reshape(2, 2, 2, 2),
        np.ones((2, 1, 2, 1)),
    ],
)
def test_impossible_kernels_are_refused(kernel):
    with pytest.raises(ValueError, match=r"has shape|is not symmetric|semidefinite"):
        inputs_from_kernel(kernel)
