"""Makes digits_x.npy and digits_y.npy: twenty handwritten digits, ten 3s and ten 8s.

The images are the first ten of each class of the UCI 8x8 digits that scikit-learn carries. The mean image of
the twenty is subtracted and the whole is scaled so that the average of x.x/D is one; targets are +1 for a 3
and -1 for an 8. Run with the `docs` extra installed:

    python docs/examples/make_digits.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

CLASSES = (3, 8)
PER_CLASS = 10


def main() -> None:
    digits = load_digits()
    rows = np.concatenate([np.flatnonzero(digits.target == c)[:PER_CLASS] for c in CLASSES])
    pixels = digits.data[rows] - digits.data[rows].mean(axis=0)
    inputs = pixels / np.sqrt(np.mean(pixels**2))
    targets = np.where(digits.target[rows] == CLASSES[0], 1.0, -1.0)
    here = Path(__file__).parent
    np.save(here / "digits_x.npy", inputs)
    np.save(here / "digits_y.npy", targets)


if __name__ == "__main__":
    main()
