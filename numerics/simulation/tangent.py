"""The tangent kernel of one network, from its kernels.

Gradients are outer products, so that inner products of gradients are products of kernels, at any width.
Which products, the program's updates say: the formula is read off them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from sympy import Dummy, Expr, Integer, KroneckerDelta, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.program import Program, s, t
from derive.theory import Equation
from derive.theory.applications import read, tangent_kernel
from numerics.experiment.problem import Problem

from .rows import Array


@lru_cache(maxsize=64)
def _formula(program: Program) -> tuple[Equation, ...]:
    return tuple(tangent_kernel(read(program)))


@dataclass(frozen=True)
class TangentKernel:
    """The formula, and the arrays and numbers in it; ``equal``: of every output with itself alone."""

    leaves: tuple[Expr, ...]
    function: Callable[..., Array]
    axes: tuple[Symbol, ...]
    feature: str
    data: Mapping[str, Array]
    equal: bool

    @classmethod
    def of(cls, problem: Problem, equal: bool = False) -> Self | None:
        """That of a problem on fixed samples; None of others, and of programs that name not all factors."""
        program = problem.program
        found = _formula(program) if problem.seen else ()
        if len(found) != 1:
            return None
        equation, whole = found[0], found[0].rhs.doit()
        layered = {k: dict(x) for k, x in problem.layered}
        numbers: dict[Expr, Any] = {k: v for k, v in problem.numbers.items() if k in whole.free_symbols}
        for a in whole.atoms(AppliedUndef):
            if str(a.func) in layered:
                numbers[a] = layered[str(a.func)][int(a.args[0])]
        indices = [x for x in equation.lhs.args if x not in (t, s)]
        if equal:
            half = len(indices) // 2
            numbers |= dict(zip(indices[half:], indices[:half], strict=True))
            indices = indices[:half]
        feature = "Phi" if "Phi" in program.notation.values() else "H"
        formula = whole.subs(numbers)
        leaves = sorted(formula.atoms(AppliedUndef, KroneckerDelta), key=str)
        names = {str(a.func) for a in leaves if isinstance(a, AppliedUndef)}
        if not names <= {feature, "G", *problem.arrays} & {*program.notation.values(), *problem.arrays}:
            return None
        places = [Dummy(f"x{i}") for i in range(len(leaves))]
        function = lambdify(places, formula.xreplace(dict(zip(leaves, places, strict=True))))
        return cls(tuple(leaves), function, (t, s, *indices), feature, problem.arrays, equal)

    def __call__(self, kernels: Mapping[str, Array]) -> Array:
        """K, axes t, s and then samples (and channels), from ``Phi`` and ``G`` of all layers."""
        named = {self.feature: kernels["Phi"], "G": kernels["G"]}
        sizes: dict[Symbol, int] = {}
        for a in self.leaves:
            if isinstance(a, AppliedUndef):
                x, args = self._array(a, named)
                sizes |= dict(zip(args, x.shape, strict=True))
        values = [self._placed(a, named, sizes) for a in self.leaves]
        kernel: Array = np.broadcast_to(self.function(*values), [sizes[x] for x in self.axes])
        return kernel

    def _array(self, a: AppliedUndef, named: Mapping[str, Array]) -> tuple[Array, list[Symbol]]:
        """The array of a factor and its indices in the order of its axes."""
        name, args = str(a.func), [x for x in a.args if not isinstance(x, Integer)]
        x = named[name][int(a.args[0]) - 1] if name in named else np.asarray(self.data[name])
        if name in named:
            x = np.moveaxis(x, (0, 1), (-2, -1))
        return x, args if x.ndim == len(args) else list(dict.fromkeys(args))

    def _placed(self, a: Expr, named: Mapping[str, Array], sizes: Mapping[Symbol, int]) -> Array:
        """A factor on all axes."""
        x, args = (
            self._array(a, named) if isinstance(a, AppliedUndef) else (np.eye(sizes[a.args[0]]), [*a.args])
        )
        letters = {y: chr(97 + i) for i, y in enumerate(self.axes)}
        used = [y for y in self.axes if y in args]
        x = np.einsum(f"{''.join(letters[y] for y in args)}->{''.join(letters[y] for y in used)}", x)
        shape = iter(x.shape)
        placed: Array = x.reshape([next(shape) if y in used else 1 for y in self.axes])
        return placed

    def traces(self, problem: Problem, found: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Sums over training samples, of kernels that were measured at equal samples."""
        kernel = self(found)[:, :, : problem.seen]
        yield "Phi_trace", found["Phi"][..., : problem.seen].sum(axis=-1)
        if found["G"].ndim > 3 and self.feature == "Phi":
            yield (
                "G_trace",
                found["G"][:, :, :, : problem.seen].reshape(*found["G"].shape[:3], -1).sum(axis=-1),
            )
        yield "tangent_kernel_trace", kernel.reshape(*kernel.shape[:2], -1).sum(axis=-1)
