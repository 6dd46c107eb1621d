"""The same as figure 10 with branches over the depth (alpha = 1): features are learnt, layers are redundant.
In linear networks under descent learning rates carry over here as well: the shift is not in this theory."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from figure_10 import drawn
from gallery import Run, main


def draw(run: Run) -> None:
    cases = {"alpha = 1": (1.0, 0.0, 0.02, 3.0, r"$\alpha = 1, \gamma = 0$")}
    moved = drawn(run, cases, (4, 8, 32) if run.full else (4, 12), (5.0, 3.0))
    power, step = moved["alpha = 1"]
    words = "alpha = 1: power of the depth of the rate that leaves a tenth"
    run.number(words, power, step, 0.0, allowed=5.0, alternative=0.5)


if __name__ == "__main__":
    main(draw, ("Claim 7.4",))
