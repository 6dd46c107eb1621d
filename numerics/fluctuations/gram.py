"""Linear networks with one hidden layer of any width, trained by the recursion of their Gram matrices.

The module turns the matrices of :mod:`derive.scale.fluctuations.gram` and data into outputs, errors and
tangent kernels of many networks at once. The cost of a step does not depend on the width. It grows as ``P^4``
with the number P of samples, because of the tangent kernel. The distribution over networks is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, S, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import t
from derive.scale.fluctuations.gram import GramRecursion
from numerics.errors import Unserved
from numerics.names import OUTPUT

Array = NDArray[np.float64]


class GramNetworks:
    """Linear networks, represented by the Gram matrix M of their hidden fields and readout weights.

    Parameters
    ----------
    recursion : GramRecursion
        The derived recursion, in steps.
    samples : int
        The number of samples P.
    arrays : mapping
        Data by their names, kernels of inputs ``(P, P)`` and targets ``(P,)``.
    values : mapping
        The numbers of all symbols.

    Raises
    ------
    Unserved
        For flows, and if a symbol or an array is missing.

    Examples
    --------
    >>> from derive.calculus.symbols import eta, gamma0
    >>> from derive.program import mlp
    >>> from derive.scale.fluctuations import wishart_recursion
    >>> data = {"K_x": np.ones((1, 1)), "y": np.ones(1)}
    >>> networks = GramNetworks(wishart_recursion(mlp(1)), 1, data, {eta: 0.1, gamma0: 1.0})
    >>> found = networks.train(networks.start[None], 2)  # infinite width
    >>> found["f"][0, :, 0].round(6)
    array([0.     , 0.2    , 0.36288])
    """

    def __init__(
        self,
        recursion: GramRecursion,
        samples: int,
        arrays: Mapping[str, Array],
        values: Mapping[Symbol, float],
    ) -> None:
        if not recursion.discrete:
            raise Unserved(
                "Gram matrices are computed for rules in steps, not for flows: use a rule in steps, such as "
                "GradientDescent with a small rate"
            )
        matrices = recursion.matrices(samples)
        self._arrays, self._values = arrays, {x: sympify(float(v)) for x, v in values.items()}
        outputs, errors = list(matrices.outputs), list(matrices.errors)
        self.units = float(self._number(matrices.ratio))
        self.start = self._matrix(matrices.start)
        self.outputs = np.array([self._matrix(Q) for Q in matrices.outputs.values()])
        self.kernels = np.array([self._matrix(Q) for Q in matrices.kernels.values()])
        without = dict.fromkeys(errors, S.Zero)
        self.still = self._matrix(matrices.motion.xreplace(without))
        self.moves = np.array([self._matrix(matrices.motion.diff(d)) for d in errors])
        first = [f.xreplace({t: S.Zero}) for f in outputs]
        constant = dict.fromkeys([*outputs, *first], S.Zero)
        self.targets = np.array([float(self._number(e.xreplace(constant))) for e in matrices.errors.values()])
        # The error signals are linear in the present outputs (now) and in the initial outputs (before), so
        # that their derivatives by these are numbers.
        self.now, self.before = (
            np.array([[float(self._number(e.diff(f))) for f in fs] for e in matrices.errors.values()])
            for fs in (outputs, first)
        )

    def _number(self, e: Expr) -> Expr:
        """Return a SymPy expression with numbers inserted for its symbols and data for its functions.

        Arguments of functions are integers that count from 1. Raise Unserved if the result is not a number.
        """
        known: dict[Expr, Expr] = dict(self._values)
        for a in e.atoms(AppliedUndef):
            if str(a.func) in self._arrays:
                known[a] = sympify(float(self._arrays[str(a.func)][tuple(int(i) - 1 for i in a.args)]))
        value = e.xreplace(known)
        if not value.is_number:
            left = ", ".join(sorted(map(str, value.free_symbols | value.atoms(AppliedUndef))))
            raise Unserved(f"no number is given for {left}, which the recursion of Gram matrices contains")
        return value

    def _matrix(self, m: Expr) -> Array:
        """Return a SymPy matrix as an array of the same shape, with data and numbers inserted."""
        return np.array([[float(self._number(sympify(x))) for x in row] for row in m.tolist()])

    def draw(self, width: int, count: int, rng: np.random.Generator) -> Array:
        """Draw the initial Gram matrices of ``count`` networks of width N, ``(count, n, n)``.

        n is the number of fields of a unit: hidden fields of all samples and readout weights. The Gram
        matrices are random Wishart matrices, divided by the number of units, with the mean :attr:`start`
        ``(n, n)``. The number of units is ``width``, the size N, times the ratio of the hidden layer, rounded
        to an integer that must be at least 1.
        """
        values, vectors = np.linalg.eigh(self.start)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        size, units = len(values), round(self.units * width)
        if units < size:
            fields = rng.standard_normal((count, size, units))
        else:  # with enough units, a triangular factor of the Wishart matrix suffices (Bartlett)
            fields = np.tril(rng.standard_normal((count, size, size)), -1)
            degrees = units - np.arange(size)
            fields[:, np.arange(size), np.arange(size)] = np.sqrt(rng.chisquare(degrees, (count, size)))
        factor = root @ fields
        return np.asarray(factor @ factor.swapaxes(1, 2) / units)

    def train(self, M: Array, steps: int) -> dict[str, Array]:
        """Train networks by gradient descent, by the recursion of their Gram matrices.

        Parameters
        ----------
        M : ndarray, shape (count, n, n)
            Gram matrices at the start; :attr:`start` is that of infinite width.
        steps : int
            The number of steps.

        Returns
        -------
        dict of str to ndarray
            ``f`` and ``error`` ``(count, steps + 1, outputs)``, and ``tangent_kernel`` ``(count, steps + 1,
            pairs of outputs)``; ``outputs`` counts those of all samples.
        """
        series: dict[str, list[Array]] = {OUTPUT: [], "error": [], "tangent_kernel": []}
        first = np.einsum("kij,nij->nk", self.outputs, M)
        for step in range(steps + 1):
            f = np.einsum("kij,nij->nk", self.outputs, M)
            error = self.targets + f @ self.now.T + first @ self.before.T
            for name, value in ((OUTPUT, f), ("error", error)):
                series[name].append(value)
            series["tangent_kernel"].append(np.einsum("kij,nij->nk", self.kernels, M))
            if step < steps:
                U = self.still + np.einsum("nk,kij->nij", error, self.moves)
                M = U @ M @ U.swapaxes(1, 2)
        return {name: np.stack(x, axis=1) for name, x in series.items()}
