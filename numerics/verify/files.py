"""The files of a verification, each written beside its place and then moved there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from numerics.files import replacing
from numerics.plots import save_figure
from numerics.results import save
from numerics.verify.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCUMENT = r"""\documentclass{article}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{amsmath,amssymb}
\allowdisplaybreaks
\begin{document}
%s
\end{document}
"""


def write(
    folder: Path, report: Report, tex: str, theory: xr.Dataset, networks: xr.Dataset | None, figure: Figure
) -> None:
    """Writes all files into `folder`, which is made if it is not there (its parent must be).

    Where there are no networks there is no networks.nc, nor one left of another run.
    """
    folder.mkdir(exist_ok=True)
    checks = [check.as_dict() for check in report.checks]
    summary = {"title": report.title, "passed": report.passed, "notes": report.notes, "checks": checks}
    _text(folder / "equations.txt", report.equations)
    _text(folder / "equations.tex", DOCUMENT % tex)
    _text(folder / "table.txt", report.table())
    _text(folder / "checks.json", json.dumps(summary, indent=2, allow_nan=False))
    save(theory, folder / "theory.nc")
    if networks is None:
        (folder / "networks.nc").unlink(missing_ok=True)
    else:
        save(networks, folder / "networks.nc")
    save_figure(figure, folder / "figure.png")


def _text(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text.rstrip() + "\n", encoding="utf-8")
