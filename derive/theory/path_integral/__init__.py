"""Second derivation of the mean-field theory: the path integral (selfconsistent2023 D.3-D.7).

Its steps are the disorder average, order parameters and their conjugates, the action, the saddle point and
auxiliary Gaussian fields, all in SymPy. It shares with Gaussian conditioning the list of products in a
program and the names of order parameters, but not the conditioning rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from sympy import Add, Eq, Expr

from derive.calculus.functional import functional_derivative
from derive.errors import require_type
from derive.program.program import Program
from derive.theory.applications import read
from derive.theory.data import Source, TheoryData
from derive.theory.path_integral.action import Action, average_exponent, entries, legs
from derive.theory.path_integral.saddle import Assembly, SaddlePoint, hatted_correlator
from derive.theory.shifted_products import products_at_plain_indices


@dataclass(frozen=True)
class PathIntegral:
    """Path integral of a program: the steps from the program to its theory.

    Parameters
    ----------
    program : Program
        Program.
    """

    program: Program

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a recipe for pickle: the program alone, as results in memory contain local functions."""
        return type(self), (self.program,)

    @cached_property
    def _action(self) -> Action:
        """Action as a function of the order parameters, with the list of products from which it is built."""
        reading = read(self.program)
        return Action(reading, legs(reading), entries(reading)).build()

    @cached_property
    def _saddle(self) -> SaddlePoint:
        """Stationarity conditions of the action, which are solved when needed."""
        return SaddlePoint(self._action)

    @cached_property
    def average_exponent(self) -> Expr:
        """Terms of the exponent that the average over all random weights gives (D.26).

        They are a function of inner products, each of two vectors of the program or hatted fields. The terms
        ``i hat field`` that enforce the definitions of fields are not included.
        """
        a = self._action
        return average_exponent(a.legs, a.entries, a.discrete)

    @cached_property
    def action(self) -> Expr:
        """Action divided by N (D.31): an algebraic part, and logarithms of the integrals over one unit.

        The integrand of the path integral is the exponential of N times this expression.
        """
        return self._action.expr()

    @cached_property
    def single_site(self) -> dict[str, Expr]:
        """Exponent of the path integral over the fields of one unit, by the name of its population (D.32)."""
        return {p: self._action.exponent(p) for p in self._action.sites}

    @cached_property
    def saddle_point(self) -> tuple[Eq, ...]:
        """Stationarity conditions: order parameters and conjugates as averages with hatted fields (D.33)."""
        return self._saddle.equations()

    @cached_property
    def conjugates(self) -> tuple[Eq, ...]:
        """Equations ``Chat = 0``: conjugates of correlations vanish at the saddle point (D.41)."""
        return tuple(self._saddle.vanished(q) for q in self._action.correlations.values())

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """Gaussian fields, with covariances, that replace the quadratic forms of hatted fields (D.39)."""
        return tuple(self._saddle.sources())

    @cached_property
    def processes(self) -> tuple[Eq, ...]:
        """Equations of the random parts of all weights: Gaussian source plus responses (D.40).

        There is one equation for each product of a matrix and a vector, and for each use of a vector of
        weights. They follow from the integral over the hatted fields, which gives delta functions. Responses
        are summed over all times, because causality is used later, and the updates of the weights are left
        out; :meth:`theory` has both. The right-hand side is zero for a matrix without a random part.
        """
        equations = []
        for x in self._action.variables:
            equations.append(
                Eq(x.primal, Add(*[y.expr for y in self._saddle.single_site(x)]), evaluate=False)
            )
        return tuple(equations)

    @cached_property
    def _theory(self) -> TheoryData:
        """Mean-field theory at the saddle point."""
        return Assembly(self._saddle).theory()

    def theory(self) -> TheoryData:
        """Return the complete theory, with the memory of trained weights (D.44).

        Returns
        -------
        TheoryData
            Theory in the same form as by Gaussian conditioning.
        """
        return self._theory


def path_integral(program: Program) -> PathIntegral:
    """Derive the path integral of a program; results are cached.

    Parameters
    ----------
    program : Program
        Program.

    Returns
    -------
    PathIntegral
        Steps of the path integral. They are derived when they are first used, and then raise ProgramError as
        :func:`derive.theory.mean_field` does.

    Raises
    ------
    NotApplicable
        If ``program`` is not a `Program`.

    Examples
    --------
    >>> from derive.program import mlp
    >>> for equation in path_integral(mlp(2)).processes: print(equation.lhs, "=", equation.rhs)
    chi(1, mu, t) = u(1, mu, t)
    chi(ell + 1, mu, t) = u(ell + 1, mu, t) + Sum(gamma0*A(ell, mu, t, s)*g(ell + 1, s), (s, 0, oo))
    xi(ell, t) = r(ell, t) + Sum(gamma0*B(ell, alpha, t, s)*h(ell, alpha, s), (alpha, 1, P), (s, 0, oo))
    xi(2, t) = r(2, t)
    """
    require_type(program, Program, "path_integral", "a program")
    return _carried_out(program)


@lru_cache(maxsize=32)
def _carried_out(program: Program) -> PathIntegral:
    """Return the path integral of a program; the last 32 are cached."""
    return PathIntegral(products_at_plain_indices(program))


__all__ = ["PathIntegral", "functional_derivative", "hatted_correlator", "path_integral"]
