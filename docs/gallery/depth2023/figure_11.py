"""Learning rates as in figure 10, with branches over the depth (alpha = 1).

The class of this parametrisation in figure 1 is redundant: features are learnt, but layers are alike. The
rate that leaves a tenth of the error is the same for both depths within its error. So linear networks under
descent do not show the shift of the paper.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from figure_10 import drawn
from gallery import Run, main


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    cases = {"alpha = 1": (1.0, 0.0, 0.02, 3.0, r"$\alpha = 1, \gamma = 0$")}
    moved = drawn(run, cases, (4, 8, 32) if run.full else (4, 12), (5.0, 3.0))
    power, step = moved["alpha = 1"]
    words = "alpha = 1: power of the depth of the rate that leaves a tenth"
    run.number(words, power, step, 0.0, allowed=5.0, alternative=0.5)


if __name__ == "__main__":
    main(draw, ("Claim 7.4",))
