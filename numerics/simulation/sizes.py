"""How many units each population has at a finite N, and what the inputs of given populations are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import sympify

from derive.program import GaussianMatrix, GivenVector, Population, Program

from .leaves import Place
from .values import Env, Values

Array = NDArray[np.float64]
Number = Callable[[Any, Env], float]


@dataclass
class Sizes:
    """The sizes of populations at width N.

    A population has round(ratio N) units; a given one as many as its vectors have entries, D.
    """

    width: int
    number: Number
    values: Values
    given: Mapping[str, int] = field(default_factory=dict)

    def place(self, p: Population, env: Env) -> Place:
        """Which population it is: all layers are one where units are shared."""
        site = None if p.shared or p.site is None else self.values.integer(p.site, env)
        return p.name, site

    def ratio(self, p: Population, env: Env) -> float:
        """Its size over N; ``p.at(layer)`` has put the layer in the place of ``ell``."""
        return self.number(sympify(p.ratio), env)

    def size(self, p: Population, env: Env) -> int:
        """The number of units; ``ValueError`` when none are left or no vector on a given one is known."""
        if p.given:
            if p.name not in self.given:
                raise ValueError(f"population {p.name} is given, but no vector on it says how large it is")
            return self.given[p.name]
        ratio = self.ratio(p, env)
        n = round(ratio * self.width)
        if n < 1:
            raise ValueError(f"population {p.name} has {ratio:g} * {self.width} units: must be at least one")
        return n

    def scale(self, m: GaussianMatrix, env: Env) -> float:
        """The N of ``m``: entries have variance ``variance/N`` and updates are divided by it.

        Towards a given population only inner products per unit x.x/D are known, so there N = D/ratio: then a
        product has the covariance variance * ratio * K_x for data of any dimension D.
        """
        ends = [p for p in (m.rows, m.cols) if p.given]
        if len(ends) > 1:
            raise ValueError(f"matrix {m.name} goes from one given population to another: not supported")
        if not ends:
            return float(self.width)
        return self.size(ends[0], env) / self.ratio(ends[0], env)


def given_vectors(program: Program, data: Mapping[str, Any]) -> dict[str, Array]:
    """The vectors on given populations, arrays with the population as last axis.

    ``data[name]`` holds the vectors themselves, (P, D) or (P, positions, D); ``data[kernel]`` their inner
    products per unit, (P, P) or (P, positions, P, positions), of which a square root is taken.  Raises
    ``ValueError`` when there is neither or both, or when vectors on one population differ in size.
    """
    found = {}
    for v in program.given:
        if (v.name in data) == (v.kernel in data):
            raise ValueError(f"give either data[{v.name!r}] (vectors) or data[{v.kernel!r}] (their kernel)")
        rivals = [w.name for w in program.given if w.population.name == v.population.name and w != v]
        if v.kernel in data and rivals:
            raise ValueError(
                f"{v.name} and {', '.join(rivals)} live on {v.population.name}: one kernel does not say how "
                "they overlap, give the vectors themselves"
            )
        found[v.name] = _vectors(v, data)
    return found


def given_sizes(program: Program, vectors: Mapping[str, Array]) -> dict[str, int]:
    """The size D of each given population."""
    sizes: dict[str, int] = {}
    for v in program.given:
        size = vectors[v.name].shape[-1]
        if sizes.setdefault(v.population.name, size) != size:
            raise ValueError(f"data[{v.name!r}]: vectors on {v.population.name} must all have {size} entries")
    return sizes


def _vectors(v: GivenVector, data: Mapping[str, Any]) -> Array:
    if v.name in data:
        x = np.asarray(data[v.name], dtype=float)
        if x.ndim < 1 or x.shape[-1] < 1:
            raise ValueError(f"data[{v.name!r}] of shape {x.shape}: the last axis must be the population")
        return x
    kernel = np.asarray(data[v.kernel], dtype=float)
    half = kernel.shape[: kernel.ndim // 2]
    if kernel.shape != (*half, *half):
        raise ValueError(f"data[{v.kernel!r}] of shape {kernel.shape}: must be square, index by index")
    count = int(np.prod(half, dtype=int))
    root = inputs_from_kernel(kernel.reshape(count, count))
    return root.reshape(*half, root.shape[-1])


def inputs_from_kernel(kernel: Array) -> Array:
    """Inputs x, shape (P, D) with D = rank, such that x x^T/D = kernel.

    Only the kernel matters: W^0 is Gaussian, so networks on any inputs with this kernel have the same law.
    Raises ``ValueError`` if the kernel is not symmetric positive semidefinite.

    >>> x = inputs_from_kernel(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> bool(np.allclose(x @ x.T / x.shape[1], [[2.0, 1.0], [1.0, 2.0]]))
    True
    """
    kernel = np.asarray(kernel, dtype=float)
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or not np.allclose(kernel, kernel.T):
        raise ValueError(f"kernel of shape {kernel.shape}: must be a symmetric matrix")
    values, vectors = np.linalg.eigh((kernel + kernel.T) / 2)
    top = max(float(values[-1]), 0.0)
    cutoff = len(values) * np.finfo(float).eps * top
    if values[0] < -1e3 * cutoff:
        raise ValueError(f"kernel has the eigenvalue {values[0]:.3g}: must be positive semidefinite")
    kept = values > cutoff
    if not kept.any():
        return np.zeros((len(kernel), 1))
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept] * kept.sum()))
