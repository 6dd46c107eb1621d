"""Common parts of all figures of the gallery: options, style, results on disk, numbers with verdicts.

    python docs/gallery/linear2025/figure_2.py [--full] [-o DIR] [--format png|svg|pdf] [--fresh]

A script names the entries of the ledger that concern it and has a function ``draw(run)``. This function takes
results from the :class:`Run`, draws them, and records its numbers. The paper and the number of the figure are
those of the script's own path. A small JSON file beside the picture is its record.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices want one thread

import matplotlib as mpl

mpl.use("agg")

sys.path.insert(0, str(Path(__file__).parents[2]))  # this checkout, whatever is installed

import numpy as np
import xarray as xr
from matplotlib import pyplot as plt
from matplotlib.text import Text
from matplotlib.ticker import NullFormatter

import derive
import numerics
from derive.ledger import FINDINGS, Entry, distinguishing_number, entries, find
from numerics.plots import name_ends, save_figure
from numerics.stats import bound, extrapolate
from numerics.verification import compare

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "out" / "gallery"
"""Where pictures go that are asked for one by one; results are kept in its folder ``kept``."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that the colour-blind tell apart (Okabe and Ito)."""

STYLE: dict[str, Any] = {
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "errorbar.capsize": 0,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "image.cmap": "viridis",
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "savefig.dpi": 110,
    "svg.fonttype": "path",
    "svg.hashsalt": "gallery",
}
SIZES = (1.0, 0.8)
"""Shares of a figure's size at which its texts must not overlap."""

REJECTED = 5.0
"""Standard errors from which on a form is rejected."""


@dataclass(frozen=True)
class Number:
    """Comparison of a number and its error bar with an expected value, in standard errors.

    ``alternative`` is the value from which the number must be distinguished before it counts as agreement.
    """

    label: str
    value: float
    error: float
    expected: float
    errors_apart: float
    allowed: float
    rejects: bool = False
    alternative: float = 0.0

    @property
    def verdict(self) -> str:
        """The verdict on the number: it ``agrees`` only if it is five errors from the alternative."""
        if not self.holds:
            return "FAILS"
        if self.rejects:
            return "rejected"
        distinguished = abs(self.value - self.alternative) >= REJECTED * self.error
        return "agrees" if distinguished else f"not distinguished from {self.alternative:g}"

    @property
    def holds(self) -> bool:
        """Whether the number is within the allowed errors of the expected one (beyond, if rejected)."""
        return bool((self.errors_apart > self.allowed) == self.rejects)

    def __str__(self) -> str:
        value = f"{self.value:.5g}" + (f" ± {self.error:.1g}" if self.error else "")
        most = f"{'beyond' if self.rejects else 'allowed'} {self.allowed:.1f}"
        far = f"{self.errors_apart:.1f} errors apart, {most}"
        return f"{self.label}: {value} against {self.expected:.5g}, {far}: {self.verdict}"


def said_of(path: Path) -> tuple[str, str]:
    """Return the paper and the number of the figure that a script draws.

    >>> said_of(Path("docs/gallery/selfconsistent2023/figure_A1.py"))
    ('selfconsistent2023', 'A1')
    """
    return path.resolve().parent.name, path.stem.removeprefix("figure_")


@dataclass
class Run:
    """Drawing of one figure: its results, its picture and its numbers.

    ``full`` chooses the paper's sizes, or sizes as near to them as two cores compute in minutes.
    """

    script: Path
    folder: Path
    full: bool = False
    fresh: bool = False
    numbers: list[Number] = field(default_factory=list)
    spared: float = 0.0
    """Seconds that results which were kept took when they were computed."""

    # -- results ---------------------------------------------------------------------------------------------

    def kept(self, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Return ``function(*args, **given)``, read from disk if the same sources computed it before."""
        said = [
            _sources(),
            _word(function),
            *map(_word, args),
            *(k + _word(x) for k, x in sorted(given.items())),
        ]
        path = OUT / "kept" / (hashlib.sha256("\n".join(said).encode()).hexdigest()[:24] + ".pickle")
        if path.exists() and not self.fresh:
            seconds, found = pickle.loads(path.read_bytes())
            self.spared += seconds
            return found
        before = time.process_time()
        found = function(*args, **given)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_bytes(pickle.dumps((time.process_time() - before, found)))
        beside.replace(path)
        return found

    def solve(self, source: Any, **options: Any) -> xr.Dataset:
        """Return the numerical solution of the theory of an experiment."""
        return self.kept(numerics.solve, source, **options)

    def networks(
        self, source: Any, *sizes: tuple[int, int], **options: Any
    ) -> tuple[list[xr.Dataset], xr.Dataset]:
        """Return trained networks of some widths and their extrapolation to infinite width.

        ``sizes`` are pairs (width, number of networks). With a single width the second result is that of this
        width.
        """
        given = {"kernels": "none", **options}
        found = [self.kept(numerics.simulate, source, width=n, seeds=k, rng=n, **given) for n, k in sizes]
        return found, extrapolate(found) if len(found) > 1 else found[0]

    # -- numbers ---------------------------------------------------------------------------------------------

    def number(  # noqa: PLR0913 (each option changes the check of one number, and scripts name them)
        self,
        label: str,
        value: Any,
        error: Any,
        expected: Any,
        *,
        dof: Any = np.inf,
        allowed: float | None = None,
        rejects: bool = False,
        alternative: float | None = None,
    ) -> Number:
        """Record and print the worst of some deviations from expected values, in standard errors.

        The bound rejects a correct theory once in a hundred times (Sidak's correction for many numbers);
        ``allowed`` replaces it by a number of errors. With ``rejects`` the expected value must be rejected.
        ``alternative`` is the value from which a number must be distinguished: zero, unless zero is expected.
        Raises ``ValueError`` for an expected zero without an alternative.
        """
        v, e, x = (np.ravel(a).astype(float) for a in np.broadcast_arrays(value, error, expected))
        known = np.isfinite(v) & (e > 0)
        v, e, x = v[known], e[known], x[known]
        far = np.abs(v - x) / e
        worst = int(np.argmax(far))
        most = allowed or (REJECTED if rejects else float(bound(len(v), 0.01, dof)))
        many = f" (worst of {len(v)})" if len(v) > 1 else ""
        if alternative is None and not rejects and x[worst] == 0:
            raise ValueError(
                f"{label}: alternative = None: zero is expected, give a value to distinguish it from"
            )
        other = alternative or 0.0
        found = Number(label + many, v[worst], e[worst], x[worst], far[worst], most, rejects, other)
        self.numbers.append(found)
        print(" ", found)
        return found

    def losses(
        self,
        panel: Any,
        strength: float,
        colour: str,
        errors: Sequence[Any],
        every: int,
        dof: int,
        at: Any = None,
    ) -> None:
        """Draw the loss of theory and networks, and compare the networks extrapolated in width with theory.

        ``errors`` has the errors (run, t, sample) of the theory, of networks, and of networks of half the
        width; ``at`` lists the steps that are compared (default: all after the start).
        """
        ours, wide, half = ((x**2).mean(-1) for x in errors)
        (loss, error), (limit, bar) = averaged(ours), beyond(wide, half)
        panel.semilogy(loss, color=colour, label=rf"$\gamma_0 = {strength:g}$")
        points(panel, np.arange(len(loss)), *averaged(wide), colour, every)
        at = np.arange(1, len(loss)) if at is None else at
        self.number(f"gamma0 = {strength:g}: loss", limit[at], np.hypot(error, bar)[at], loss[at], dof=dof)

    def compare(
        self, label: str, theory: xr.Dataset, networks: Sequence[xr.Dataset], of: str = "loss"
    ) -> None:
        """Record the comparison of extrapolated networks and theory that is farthest off.

        ``of`` names the quantity, the loss by default.
        """
        checks = [c for c in compare(theory, networks).checks if c.error and of in c.name]
        worst = max(checks, key=lambda c: abs(c.observed - c.expected) / c.allowed)
        far = abs(worst.observed - worst.expected) / worst.error
        many = f"{label}: {worst.name} (worst of {len(checks)})"
        found = Number(many, worst.observed, worst.error, worst.expected, far, worst.allowed / worst.error)
        self.numbers.append(found)
        print(" ", found)

    # -- the picture -----------------------------------------------------------------------------------------

    def panels(self, *shape: int, size: tuple[float, float] = (9.0, 3.0), **options: Any) -> tuple[Any, Any]:
        """Return a figure and its panels, rows by columns."""
        self.figure, panels = plt.subplots(*shape, figsize=size, **options)
        return self.figure, panels

    def save(self, suffix: str) -> Path:
        """Save the picture; raise ``RuntimeError`` if texts overlap at one of the SIZES."""
        width, height = self.figure.get_size_inches()
        for axis in (x for panel in self.figure.axes for x in (panel.xaxis, panel.yaxis)):
            low, high = axis.get_view_interval()
            if axis.get_scale() == "log" and any(low <= x <= high for x in axis.get_majorticklocs()):
                axis.set_minor_formatter(NullFormatter())
        label_curves(self.figure)
        for share in (*SIZES[1:], SIZES[0]):
            self.figure.set_size_inches(share * width, share * height)
            if pairs := overlaps(self.figure):
                raise RuntimeError(f"at {share:g} of its size texts overlap: {pairs[:6]}")
        path = self.folder / f"{self.script.stem}.{suffix}"
        save_figure(self.figure, path)
        plt.close(self.figure)
        if suffix == "png":
            _fewer_colours(path)
        return path


def points(panel: Any, at: Any, value: Any, error: Any, colour: Any, every: int = 1, **style: Any) -> None:
    """Draw points with bars of one standard error."""
    at, value, error = (np.atleast_1d(x)[::every] for x in np.broadcast_arrays(at, value, error))
    panel.errorbar(
        at,
        value,
        error,
        **{"color": colour, "fmt": "o", "mfc": "white", "mew": 0.9, "elinewidth": 0.9, **style},
    )


def averaged(each: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard error over the first axis, which runs over networks or replicas."""
    each = np.asarray(each)
    return each.mean(0), each.std(0, ddof=1) / np.sqrt(len(each))


def beyond(wide: Any, narrow: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard error extrapolated to infinite width.

    ``wide`` and ``narrow`` hold networks along the first axis; the narrow ones have half the width. The
    extrapolation removes the term of order 1/N: twice the wide result minus the narrow one.
    """
    (a, da), (b, db) = averaged(wide), averaged(narrow)
    return 2 * a - b, np.hypot(2 * da, db)


@cache
def digits(each: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return handwritten 3s and 8s, ``each`` of both: inputs (2 each, 64) and targets 1 and -1."""
    x, y = (np.load(HERE.parent / "examples" / f"digits_{name}.npy") for name in "xy")
    chosen = np.r_[0:each, 10 : 10 + each]
    return x[chosen], y[chosen]


def on_digits(depth: int, strength: float, each: int, steps: int, rate: float) -> numerics.Experiment:
    """Return the experiment of a deep linear network trained on the mean loss of the digits."""
    x, y = digits(each)
    training = {"rule": "gd", "learning_rate": rate, "steps": steps, "loss": "mean"}
    network = {"depth": depth, "gamma0": strength}
    return numerics.Experiment.from_dict({"network": network, "training": training}, inputs=x, targets=y)


def of_digits(strength: float, each: int, rate: float) -> dict[str, Any]:
    """Return values and data of a program on the digits, with rate ``rate / each``."""
    x, y = digits(each)
    values = {derive.eta: rate / each, derive.gamma0: strength, derive.P: len(y)}
    return {"values": values, "data": {"K_x": x @ x.T / x.shape[1], "y": y}}


def label_curves(figure: Any) -> None:
    """Write the label of each curve beside its right end, in its colour, with distances between labels."""
    figure.canvas.draw()
    for panel in figure.axes:
        lines = [x for x in panel.get_lines() if not str(x.get_label()).startswith("_")]
        if panel.get_legend():
            continue
        heights = sorted((*_end(panel, x), k) for k, x in enumerate(lines))
        into = (panel.transAxes + panel.transData.inverted()).transform
        ends = [(into((1, y + 1e-4 * k))[1], lines[n]) for k, (y, _, n) in enumerate(heights)]
        apart = 10 / 72 * figure.dpi / (min(SIZES) * panel.get_window_extent().height)
        name_ends(panel, [(y, str(x.get_label()), x.get_color()) for y, x in ends], apart)


def _end(panel: Any, line: Any) -> tuple[float, float]:
    """Return the height at which a curve ends or leaves its panel, and a number that orders equal heights.

    The height is a share of the panel's. Of two curves that leave at the bottom, the one that leaves first is
    ordered below the other.
    """
    at = panel.transAxes.inverted().transform(panel.transData.transform(np.transpose(line.get_data())))
    at = at[np.isfinite(at).all(1)]
    inside = np.flatnonzero((at > -0.01).all(1) & (at < 1.01).all(1))
    if not len(inside):
        return 0.5, 0.0
    x, y = at[min(inside[-1] + 1, len(at) - 1)] if at[inside[-1], 0] < 0.97 else at[inside[-1]]
    return float(np.clip(y, 0.02, 0.98)), float(x if y < 0.5 else -x)


def overlaps(figure: Any) -> list[tuple[str, str]]:
    """Return pairs of texts that cover each other; the second is "the edge" for texts cut by the figure."""
    figure.canvas.draw()
    beyond = _beyond(figure)
    texts = [x for x in figure.findobj(Text) if x.get_visible() and x.get_text().strip() and x not in beyond]
    boxes = [(x.get_text(), x.get_window_extent().padded(-0.7)) for x in texts]
    frame = figure.bbox.padded(1)
    found = [
        (name, "the edge")
        for name, box in boxes
        if not (frame.contains(*box.min) and frame.contains(*box.max))
    ]
    for k, (name, box) in enumerate(boxes):
        found += [(name, other) for other, its in boxes[:k] if box.overlaps(its)]
    return found


def _beyond(figure: Any) -> set[Text]:
    """Return the labels of ticks outside the limits of an axis, which exist but are not drawn."""
    found = set()
    for axis in (x for panel in figure.axes for x in (panel.xaxis, panel.yaxis)):
        low, high = sorted(axis.get_view_interval())
        margin = 1e-9 * (high - low)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low - margin <= tick.get_loc() <= high + margin:
                found |= {tick.label1, tick.label2}
    return found


def _fewer_colours(path: Path) -> None:
    """Quantise a picture of curves to 96 colours, which makes the file a third as large."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(96, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


# -- what determines a result --------------------------------------------------------------------------------


@cache
def _sources() -> str:
    """Return a digest of all sources that compute results."""
    found = hashlib.sha256()
    rooms = (Path(str(package.__file__)).parent for package in (derive, numerics))
    for path in (Path(__file__), *(path for room in rooms for path in sorted(room.rglob("*.py")))):
        found.update(path.read_bytes())
    return found.hexdigest()


def _word(x: Any) -> str:
    """Return a text that identifies an argument: arrays by their numbers, functions by their source."""
    if isinstance(x, numerics.Experiment):
        return _word([x.spec.model_dump(exclude={"solver": {"hours"}}), *x.arrays.items()])
    if isinstance(x, np.ndarray):
        return f"{x.shape} {x.dtype} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()}"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{_word(k)}: {_word(v)}" for k, v in x.items()) + "}"
    if isinstance(x, (list, tuple)):
        return "(" + ", ".join(map(_word, x)) + ")"
    if callable(x) and hasattr(x, "__qualname__"):
        module = sys.modules[x.__module__]
        own = x.__module__ == "__main__" or x.__module__.startswith("figure_")
        return inspect.getsource(module if own else x)
    return repr(x)


# -- a figure from its script --------------------------------------------------------------------------------


def main(draw: Callable[[Run], None], numbers: Iterable[str] = (), argv: Sequence[str] | None = None) -> None:
    """Draw the figure of the calling script, print its numbers and the verdicts of the ledger about it.

    ``numbers`` are those of ledger entries beside the entry of the figure itself. The exit status is 1 if a
    number fails.
    """
    module = inspect.getmodule(draw)
    path = Path(str(inspect.getsourcefile(draw)))
    words = " ".join(str(module.__doc__).split())
    ask = argparse.ArgumentParser(description=words)
    ask.add_argument("--full", action="store_true", help="sizes nearer to the paper's; minutes")
    ask.add_argument(
        "-o", metavar="DIR", type=Path, help="where the picture goes (default: out/gallery/PAPER)"
    )
    ask.add_argument("--format", choices=("png", "svg", "pdf"), default="png")
    ask.add_argument("--fresh", action="store_true", help="compute again what was kept on disk")
    asked = ask.parse_args(argv)
    folder = asked.o or OUT / path.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    record = made(draw, path, words, tuple(numbers), folder, asked.full, asked.fresh, asked.format)
    if not all(x["holds"] for x in record["numbers"]):
        sys.exit(1)


def made(  # noqa: PLR0913 (the options of the command line)
    draw: Callable[[Run], None],
    path: Path,
    words: str,
    numbers: tuple[str, ...],
    folder: Path,
    full: bool,
    fresh: bool,
    suffix: str,
) -> dict[str, Any]:
    """Draw a figure into ``folder`` and return its record."""
    paper, name = said_of(path)
    print(f"{paper}, Figure {name}: {words}")
    started, run = time.process_time(), Run(path, folder, full, fresh)
    with mpl.rc_context(STYLE):
        draw(run)
        picture = run.save(suffix)
    told = verdicts(paper, name, numbers)
    for e in told:
        far = distinguishing_number(e) if e.verdict in FINDINGS else None
        print(f"  ledger {e.number}, {e.title}: {e.verdict}" + (f" ({far[0]}: {far[1]:.3g})" if far else ""))
    record = {
        "paper": paper,
        "figure": name,
        "words": words,
        "full": full,
        "numbers": [asdict(x) | {"holds": x.holds} for x in run.numbers],
        "ledger": [{"number": e.number, "verdict": e.verdict, "title": e.title} for e in told],
        "seconds": round(time.process_time() - started + run.spared, 1),
    }
    beside = folder / f"{path.stem}.json"
    beside.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"  {record['seconds']} s; {picture}")
    return record


def verdicts(paper: str, name: str, numbers: Iterable[str]) -> list[Entry]:
    """Return the ledger entries about a figure: its own if there is one, and those named."""
    own = [e.number for e in entries(paper) if e.number == f"Figure {name}"]
    return [find(paper, x) for x in dict.fromkeys([*own, *numbers])]
