"""Attention on sequences of two tokens, one of which has a mark; the label is the marked token, +1 or -1."""

from __future__ import annotations

from typing import Any

import numpy as np
from sympy import Min, Rational, cos, pi

from derive.program import adamw, eta, t
from derive.program.networks import attention
from numerics.experiment.schema import Solver
from tests.numerics.networks.case import Case

A, B, MARK = np.eye(3)
SEQUENCES = np.array([[A + MARK, B], [A, B + MARK], [B + MARK, A], [B, A + MARK]])
LABELS = np.array([1.0, -1.0, -1.0, 1.0])


def kernel(sequences: Any) -> Any:
    """Return inner products of tokens, with axes sequence, position, sequence, position."""
    return np.einsum("apd,bqd->apbq", sequences, sequences)


def marked(steps: int = 60) -> Case:
    """Return a block with a causal mask and RMS normalisation, read at the last position."""
    program = attention(1, causal=True, read="last")
    arrays = {"K_x": kernel(SEQUENCES), "y": LABELS}
    numbers, solver = {"eta": 0.01, "gamma0": 3.0}, Solver(samples=2**10)
    return Case(program, numbers, arrays, steps, (48, 96), (120, 60), solver)


def two_heads(steps: int = 30) -> Case:
    """Return two heads that prefer different positions, layer normalisation, and the mean over positions."""
    program = attention(1, heads=2, offsets=True, normalisation="layer")
    offsets = np.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    arrays = {"K_x": kernel(SEQUENCES), "y": LABELS, "offset": offsets}
    numbers, solver = {"eta": 0.01, "gamma0": 3.0}, Solver(samples=2**11)
    return Case(program, numbers, arrays, steps, (48, 96), (120, 60), solver)


def random_scores(steps: int = 20) -> Case:
    """Return a population of heads with random scores, k.q/sqrt(n) with n = 4 N keys."""
    program = attention(1, None, scores="random", read="last", causal=True)
    arrays = {"K_x": kernel(SEQUENCES), "y": LABELS + np.array([0.0, 0.0, 0.5, 0.5])}
    numbers, solver = {"eta": 0.05, "gamma0": 1.0, "kappa": 4.0}, Solver(samples=2**11)
    return Case(program, numbers, arrays, steps, (48, 96), (120, 60), solver)


def blocks(steps: int = 20) -> Case:
    """Return two blocks with branches of size 1/sqrt(L), on the first two sequences."""
    program = attention(2, causal=True, read="last", branch=0.5**0.5)
    arrays = {"K_x": kernel(SEQUENCES[:2]), "y": LABELS[:2]}
    numbers, solver = {"eta": 0.01, "gamma0": 3.0}, Solver(samples=2**11)
    return Case(program, numbers, arrays, steps, (48, 96), (120, 60), solver)


def everything(steps: int = 20) -> Case:
    """Return a block with cross-entropy, AdamW, biases, RMS and a mask.

    The rate has warm-up and cosine decay, and there is weight decay.
    """
    rate = eta * Min(1, (t + 1) / 5) * (1 + cos(pi * t / 40)) / 2
    rule = adamw(rate, rate / 10, beta2=Rational(95, 100), epsilon=Rational(1, 1000))
    options: Any = {"bias": True, "outputs": 2, "objective": "cross-entropy"}
    program = attention(1, "tanh", rule, causal=True, read="last", **options)
    arrays = {"x": SEQUENCES[:2] * 3**0.5, "y": np.eye(2)}
    numbers = {"eta": 0.05, "gamma0": 1.0}
    return Case(program, numbers, arrays, steps, (48, 96), (100, 50), Solver(samples=2**9))
