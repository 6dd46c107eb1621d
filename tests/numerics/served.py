"""Table of the commands that serve each key of an experiment file: docs/reference/served.md.

    python -m tests.numerics.served

Every row is run through every command, on an experiment of two samples and two steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.numerics.test_every_experiment import COMMANDS, outcome

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "served.md"

FIXED: dict[str, dict[str, Any]] = {
    "network": {"depth": 2},
    "data": {"kernel": "a.npy", "targets": "y.npy"},
    "training": {"learning_rate": 0.1, "steps": 2},
    "solver": {"samples": 64, "rtol": 1e-3},
}
ENTRIES = {**FIXED, "data": {"inputs": "a.npy", "targets": "y.npy"}}
ISOTROPIC = {**FIXED, "data": {"kind": "isotropic", "sample_ratio": 2.0}}
POPULATION = {
    **FIXED,
    "network": {"depth": 2, "width_ratio": 2.0},
    "data": {"kind": "isotropic"},
    "training": {"learning_rate": 0.1, "steps": 2, "center": True},
}
ONLINE = {
    **FIXED,
    "network": {"depth": 2, "width_ratio": 2.0},
    "data": {"kind": "isotropic", "batch_ratio": 1.0},
    "training": {"rule": "sgd", "learning_rate": 0.1, "steps": 2},
}
POWER_LAW = {**FIXED, "data": {"kind": "power-law", "capacity": 2.0, "source": 0.5, "modes": 6}}
FLOW = {**FIXED, "training": {"rule": "flow", "time": 1.0, "points": 3}}


def changed(base: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """Return the tables with keys like ``network_bias`` set."""
    tables = {k: dict(v) for k, v in base.items()}
    for path, value in keys.items():
        section, _, key = path.partition("_")
        tables[section][key] = value
    return tables


ROWS: dict[str, dict[str, Any]] = {
    "fixed samples, steps": changed(FIXED),
    '`network.depth = "L"`': changed(FIXED, network_depth="L"),
    "`network.activation`, one layer": changed(FIXED, network_depth=1, network_activation="tanh"),
    "`network.activation`": changed(FIXED, network_activation="tanh"),
    '`network.activation = "relu"`': changed(FIXED, network_activation="relu"),
    "`network.bias`": changed(FIXED, network_bias=True),
    "`network.bias`, tanh": changed(FIXED, network_bias=True, network_activation="tanh"),
    "`network.outputs`": changed(FIXED, network_outputs=2),
    "`network.branch`": changed(FIXED, network_branch=0.5),
    "`network.branch`, depth L": changed(FIXED, network_branch=0.5, network_depth="L"),
    "`network.init_variance`": changed(FIXED, network_init_variance=[1.0, 2.0, 1.0]),
    "`network.relative_widths`": changed(FIXED, network_relative_widths=[1.0, 2.0]),
    "`network.gamma0 = 1e-3`, tanh": changed(FIXED, network_gamma0=1e-3, network_activation="tanh"),
    "`data.test_kernel`": changed(FIXED, data_test_kernel="t.npy"),
    '`training.objective = "logistic"`': changed(FIXED, training_objective="logistic"),
    "`training.center`": changed(FIXED, training_center=True),
    "`training.weight_decay`": changed(FIXED, training_weight_decay=0.1),
    "`training.momentum`": changed(FIXED, training_momentum=0.5),
    "`training.temperature`": changed(FIXED, training_temperature=0.1),
    "flow": changed(FLOW),
    "flow, tanh": changed(FLOW, network_activation="tanh"),
    "flow, decay and temperature": changed(FLOW, training_weight_decay=0.1, training_temperature=0.1),
    "isotropic, infinitely wide": changed(ISOTROPIC),
    "isotropic, `network.width_ratio`": changed(ISOTROPIC, network_width_ratio=2.0),
    "isotropic, population, centred": POPULATION,
    "isotropic, fresh batches": ONLINE,
    "power law": POWER_LAW,
    "power law, `network.width`": changed(POWER_LAW, network_width=8),
    '`training.rule = "adam"`, `data.inputs`': changed(
        ENTRIES, network_activation="tanh", training_rule="adam"
    ),
    '`training.rule = "adam"`, `data.kernel`': changed(FIXED, training_rule="adam"),
    '`training.rule = "adam"`, `data.test_inputs`': changed(
        ENTRIES, training_rule="adam", data_test_inputs="t.npy"
    ),
    '`training.rule = "adam"`, `network.branch`, depth L': changed(
        ENTRIES, training_rule="adam", network_branch=0.5, network_depth="L"
    ),
    "`network.branch`, tanh, depth L": changed(
        FIXED, network_activation="tanh", network_branch=0.5, network_depth="L"
    ),
    '`network.parametrization = "ntk"`': changed(
        FIXED, network_parametrization="ntk", network_activation="tanh"
    ),
}


def cell(command: str, tables: dict[str, Any], notes: list[str]) -> str:
    """Return "yes", or the number of the note with the reason of the refusal."""
    status, _, err = outcome(command, {**tables, "rows": 2})
    if status == 0:
        return "yes"
    said = err.strip().splitlines()[-1].removeprefix("dmft: ")
    said = re.sub(r" \(accepted: [^()]*(\([^()]*\)[^()]*)*\)$", "", said)
    if said not in notes:
        notes.append(said)
    return f"[{notes.index(said) + 1}]"


def page() -> str:
    """Return the page as Markdown."""
    notes: list[str] = []
    lines = [
        "| experiment | " + " | ".join(f"`{c}`" for c in COMMANDS) + " |",
        "| --- " * (len(COMMANDS) + 1) + "|",
    ]
    for name, tables in ROWS.items():
        lines.append(f"| {name} | " + " | ".join(cell(c, tables, notes) for c in COMMANDS) + " |")
    said = [f"{i}. `{x}`" for i, x in enumerate(notes, 1)]
    return "\n".join(
        [
            "# Which command serves what",
            "",
            "Each row is a short experiment: a linear network with two hidden layers on two fixed samples,",
            "or on random data, with the change that the first column names. The rows that name",
            "`network.activation` without a value have tanh. The row of Adam with `data.inputs`",
            'and the row of `"ntk"` have the activation tanh too. The rows "population, centred" and',
            '"fresh batches" also have `network.width_ratio = 2.0`. Each column is a command',
            "(`early-time`, `largest-rate`, `depth`, `equilibrium` and `finite-width` are those of",
            "`dmft limits`; `solve --width` serves what `finite-width` does). A number points to the",
            "reason below the table. The reason is the last line that the command prints, without the",
            "list of accepted values. `python -m tests.numerics.served` makes the table and runs every",
            "cell.",
            "",
            *lines,
            "",
            *said,
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
