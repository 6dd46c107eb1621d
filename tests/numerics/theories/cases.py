"""The programs of the papers, and some beyond them, each at a size that takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol

from derive.program import Program
from tests.derive.once import (
    convolution,
    depth_program,
    feedback_alignment,
    isotropic,
    mlp,
    perceptron,
    recurrent,
)
from tests.numerics.theories.programs import Row, compare_with_networks

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A program with numbers for its symbols; ``options`` go to the comparison."""

    name: str
    source: str
    program: Callable[[], Program]
    values: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, **changes: Any) -> Row:
        """Compare the theory with networks, and return the row of the table."""
        return compare_with_networks(self.program(), self.values, self.data, **{**self.options, **changes})


def _symbol(name: str) -> Symbol:
    return Symbol(name, positive=True)


def _images() -> Array:
    """Return the kernel of two images of three positions with five channels."""
    x = np.random.default_rng(0).standard_normal((2, 3, 5))
    kernel: Array = np.einsum("mpd,aqd->mpaq", x, x) / 5
    return kernel


KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.6])
PAIRS = np.array([[1.0, 0.5], [-0.6, 0.3]])

FIXED = {"eta": 0.3, "gamma0": 1.2, "P": 2}
SAMPLES = {"K_x": KERNEL, "y": TARGETS}
WIDE = {"eta": 0.3, "gamma0": 1.2, "nu": 0.5}


def _fixed(name: str, source: str, program: Callable[[], Program], data: Any = SAMPLES, **more: Any) -> Case:
    return Case(name, source, program, {**FIXED, **more}, data)


def _isotropic(name: str, source: str, program: Callable[[], Program], **more: Any) -> Case:
    return Case(name, source, program, {**WIDE, **more})


CASES: tuple[Case, ...] = (
    _fixed("linear", "selfconsistent2023 F", lambda: mlp(2)),
    _fixed("tanh", "selfconsistent2023 D, M", lambda: mlp(2, "tanh")),
    _fixed("relu", "selfconsistent2023 D, M", lambda: mlp(2, "relu")),
    _fixed("two layers", "selfconsistent2023 E", lambda: mlp(1, "erf")),
    _fixed("bias", "selfconsistent2023 H", lambda: mlp(2, "tanh", bias=True)),
    _fixed("channels", "selfconsistent2023 I", lambda: mlp(2, "tanh", outputs=2), {**SAMPLES, "y": PAIRS}),
    _fixed(
        "widths and variances",
        "selfconsistent2023 D.8",
        lambda: mlp(2, "tanh", relative_widths=[0.5, 1], init_variance=[1.2, 0.8, 1.0]),
    ),
    Case(
        "convolution",
        "selfconsistent2023 G",
        lambda: convolution(2, "tanh", positions=3, receptive=1),
        FIXED,
        {"K_x": _images(), "y": TARGETS},
        {"steps": 2},
    ),
    _fixed(
        "weight decay",
        "selfconsistent2023 J",
        lambda: mlp(2, "tanh", weight_decay=_symbol("lam")),
        lam=0.3,
    ),
    _fixed(
        "Langevin noise",
        "selfconsistent2023 K",
        lambda: mlp(2, "tanh", weight_decay=_symbol("lam"), temperature=_symbol("T")),
        lam=0.3,
        T=0.2,
    ),
    _fixed("momentum", "selfconsistent2023 L", lambda: mlp(2, "tanh", momentum=_symbol("m")), m=0.6),
    _fixed("independent backward matrices", "selfconsistent2023 O", lambda: mlp(2, "tanh", tied=False)),
    _isotropic(
        "isotropic, full batch", "linear2025 A", lambda: isotropic(2, noise=True), alpha=0.8, sigma=0.4
    ),
    _isotropic(
        "isotropic, online",
        "linear2025 D",
        lambda: isotropic(2, data="online", noise=True, center=True),
        alpha_B=0.8,
        sigma=0.4,
    ),
    _isotropic(
        "isotropic, residual",
        "linear2025 C",
        lambda: isotropic(3, data="population", branch=_symbol("beta")),
        beta=0.6,
    ),
    _isotropic("isotropic, channels", "linear2025 G", lambda: isotropic(2, outputs=2), alpha=0.8),
    Case(
        "linear residual, one sample a step",
        "depth2023 4",
        lambda: depth_program(3),
        {"eta": 0.5},
        {"xi": np.array([1.0, -0.7, 0.8, 1.1]), "dloss": lambda t, f: f - 0.5 * t},
    ),
    _fixed("residual, tanh", "beyond", lambda: mlp(3, "tanh", branch=_symbol("beta")), beta=0.6),
    _fixed("feedback alignment", "beyond", lambda: feedback_alignment(2, "tanh")),
    _fixed("tied weights", "beyond", lambda: recurrent(3, "tanh", bias=True)),
    Case("perceptron", "beyond", lambda: perceptron("teacher"), {"eta": 0.3, "kappa": 1.5}),
    Case(
        "residual, bias, channels, decay",
        "composition",
        lambda: mlp(2, "tanh", branch=_symbol("beta"), bias=True, outputs=2, weight_decay=_symbol("lam")),
        {**FIXED, "beta": 0.6, "lam": 0.3},
        {**SAMPLES, "y": PAIRS},
    ),
)
