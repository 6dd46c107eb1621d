"""One figure of each network of these pages: its theory as a line, trained networks of two widths as points.

python docs/networks/figures.py            draws all of them, as docs/networks/figures/NAME.png
python docs/networks/figures.py attention  draws those whose name contains the word

Programs, numbers and networks are those that the tests compare (``tests/numerics/networks``).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import xarray as xr
from matplotlib import pyplot as plt

from numerics.plots import save_figure
from tests.numerics.networks.case import Case
from tests.numerics.networks.cases import CASES

FOLDER = Path(__file__).parent / "figures"
PREFERRED = ("train_loss", "test_loss", "risk", "mse")
"""What is drawn if a result holds it, else its first number with an error bar."""


def path_of(name: str) -> Path:
    """Return the path of the figure of a network."""
    words = "".join(c if c.isalnum() else " " for c in name).split()
    return FOLDER / f"{'_'.join(words)}.png"


def drawn_in(found: xr.Dataset) -> str:
    """Return the name of the observable that the figure shows: a preferred one, or the first in time."""
    own = [str(x) for x in found.data_vars if found[x].dims == ("time",)]
    return next((x for x in PREFERRED if x in own), own[0])


def draw(name: str, case: Case) -> Any:
    """Draw the theory of a network, and trained networks of its widths."""
    theory, networks = case.theory(), case.networks()
    key = drawn_in(theory)
    figure, ax = plt.subplots(figsize=(4.2, 2.8), layout="constrained")
    ax.plot(theory.time, theory[key], "k", lw=1.3, label="theory")
    for trained, marker, colour in zip(networks, "os", ("#D55E00", "#0072B2"), strict=False):
        places = np.unique(np.linspace(0, len(theory.time) - 1, 13).round().astype(int))
        at = trained.isel(time=places)
        said = f"{trained.attrs['seeds']} networks, N = {trained.attrs['width']}"
        ax.errorbar(
            at.time, at[key], at[f"{key}_stderr"], fmt=marker, mfc="w", ms=4, color=colour, label=said
        )
    ax.set(xlabel="step", ylabel=key.replace("_", " "), title=name, yscale="log")
    ax.legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in CASES.items():
        if len(sys.argv) == 1 or any(word in name for word in sys.argv[1:]):
            save_figure(draw(name, make()), path_of(name))
            print(path_of(name))
