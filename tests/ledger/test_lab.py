"""Gradients of the library and by complex steps, which share nothing, on one network."""

import autograd.numpy as anp
import numpy as np

from tests.ledger.evidence.lab import EXACT, along, derivative, gradients, layers, slopes


def test_reverse_mode_is_the_complex_step() -> None:
    draw = np.random.default_rng(1).standard_normal
    x, weights = draw((3, 2)), (draw((4, 2)), draw((4, 4)), draw((1, 4)))

    def outputs(w):
        return layers(w, x, anp.tanh)[-1][:, 0]

    found, summed = slopes(outputs, weights), gradients(lambda w: anp.sum(outputs(w) ** 2) / 2, weights)
    for k, w in enumerate(weights):
        exact = derivative(lambda v, k=k: outputs((*weights[:k], v, *weights[k + 1 :])), w)
        assert np.max(np.abs(found[k] - exact)) < EXACT
        assert np.max(np.abs(summed[k] - np.tensordot(outputs(weights), exact, 1))) < EXACT
    by = tuple(draw(w.shape) for w in weights)
    moved = sum(np.tensordot(s, v, v.ndim) for s, v in zip(found, by, strict=True))
    assert np.max(np.abs(along(lambda w: [outputs(w)], weights, by)[0] - moved)) < EXACT
