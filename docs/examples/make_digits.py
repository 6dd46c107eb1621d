"""Preparation of handwritten digits, ten 3s and ten 8s, for training and for tests.

It writes digits_x.npy and digits_y.npy. The images are the first ten of each class of the UCI 8x8 digits that
scikit-learn carries. The mean image of the twenty is subtracted and the result is scaled so that the average
of x.x/D is one; targets are +1 for a 3 and -1 for an 8. The next ten of each class are digits_xt.npy and
digits_yt.npy, less the mean image of the first twenty and scaled by the same factor. Run with the `docs`
extra installed:

    python docs/examples/make_digits.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

CLASSES = (3, 8)
PER_CLASS = 10


def main() -> None:
    """Write the centred and scaled images of 3s and 8s with their targets, for training and for tests."""
    digits = load_digits()
    train, test = (
        np.concatenate([np.flatnonzero(digits.target == c)[chosen] for c in CLASSES])
        for chosen in (slice(PER_CLASS), slice(PER_CLASS, 2 * PER_CLASS))
    )
    mean = digits.data[train].mean(axis=0)
    scale = np.sqrt(np.mean((digits.data[train] - mean) ** 2))
    here = Path(__file__).parent
    for rows, mark in ((train, ""), (test, "t")):
        np.save(here / f"digits_x{mark}.npy", (digits.data[rows] - mean) / scale)
        np.save(here / f"digits_y{mark}.npy", np.where(digits.target[rows] == CLASSES[0], 1.0, -1.0))


if __name__ == "__main__":
    main()
