"""Deeper convolutional networks over a wide range of gamma0.

Networks of two channel counts, extrapolated to infinitely many channels, are compared with the theory in the
loss and in the last kernel.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from figure_5 import drawn
from gallery import Run, main


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    drawn(run, 3, (0.2, 1.0, 4.0), (3, 30, 1024, 250, 24) if run.full else (2, 12, 256, 64, 32))


if __name__ == "__main__":
    main(draw, ("G.6",))
