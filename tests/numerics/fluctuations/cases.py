"""Experiments with linear networks, each with something that most of them lack."""

from __future__ import annotations

from typing import Any

import numpy as np

from numerics.experiment import Experiment

KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.5])


def experiment(network: dict[str, Any], training: dict[str, Any], data: dict[str, Any]) -> Experiment:
    """Return a linear network trained for a few steps, on two samples unless ``data`` differs."""
    tables: dict[str, Any] = {"network": {"depth": 2} | network}
    given = {"learning_rate": 0.1, "steps": 3} | training
    tables["training"] = {key: x for key, x in given.items() if x is not None}
    if "kind" in data:
        return Experiment.from_dict({**tables, "data": data})
    return Experiment.from_dict(tables, **({"kernel": KERNEL, "targets": TARGETS} | data))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "three layers": ({"depth": 3}, {}, {}),
    "memory": ({"bias": True}, {"momentum": 0.5, "weight_decay": 0.2}, {}),
    "noise": ({}, {"temperature": 0.3, "weight_decay": 0.2}, {}),
    "residual": ({"depth": 3, "branch": 0.6}, {}, {}),
    "widths": ({"relative_widths": [1.0, 0.5], "init_variance": [1.0, 0.5, 2.0]}, {}, {}),
    "outputs": ({"outputs": 2}, {"steps": 2}, {"targets": np.array([[1.0, 0.2], [-0.5, 0.4]])}),
    "classes": (
        {"outputs": 2},
        {"steps": 2, "objective": "cross-entropy"},
        {"targets": np.array([[1.0, 0.0], [0.0, 1.0]])},
    ),
    "centred": ({}, {"center": True, "objective": "logistic"}, {}),
    "online": (
        {"width_ratio": [1.5, 0.7]},
        {"rule": "sgd", "learning_rate": 0.05},
        {"kind": "isotropic", "batch_ratio": 0.5, "noise": 0.2},
    ),
    "full batch": ({"width_ratio": 1.5}, {"steps": 2}, {"kind": "isotropic", "sample_ratio": 2.0}),
}


def case(name: str) -> Experiment:
    """Return the experiment of a case."""
    return experiment(*CASES[name])
