"""A mean-field theory that a user holds: its equations, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sympy import Expr, Integer
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import primed, s, t
from derive.errors import NotApplicable
from derive.theory import document
from derive.theory import explain as explaining
from derive.theory import renaming as matching
from derive.theory import unfold as unfolding
from derive.theory.data import TheoryData
from derive.theory.document import Show

ERROR, ERROR_VECTOR = "Delta", "v"
"""The error of a sample, and the vector whose product with an input it is, without the noise of its label."""


@dataclass(frozen=True, repr=False)
class Theory(TheoryData):
    """The mean-field theory of a program.

    A bare theory prints a summary; :meth:`render` prints all, :meth:`explain` says where a term is from.
    """

    def explain(self, name: str) -> str:
        """Where a field, source, order parameter or scalar comes from, term by term, in words.

        Raises KeyError for a name that the theory does not have.

        >>> from derive import mean_field, mlp
        >>> print(mean_field(mlp()).explain("A"))
        A(ell, mu, t, s): response function, <d h(ell, mu, t) / d r(ell, s)>/gamma0
            0 unless s < t: the vector moves only in steps after the source is pushed
            stands in the equation of h(ell + 1, mu, t), by the use of W
        """
        return explaining.explain(self, name)

    def explain_term(self, term: Any) -> str:
        """Which matrix and which rule a term came from: a Term, its expression, or any part of one.

        Raises KeyError when no equation, scalar, observable or covariance contains it.

        >>> from derive.theory import mean_field
        >>> from derive.program import ell, mlp
        >>> from sympy import Function
        >>> theory = mean_field(mlp())
        >>> print(theory.explain_term(theory.equation("g").terms[0]))
        r(L, t)
            in the equation of g(L, t) = w
            w at initialisation, N(0, 1) in every unit; what training adds to it is another term
        """
        return explaining.explain_term(self, term)

    def unfold(self, what: Any, levels: int = 1) -> Expr:
        """A response or an average, or the order parameter of that name, with the equations put in.

        See :func:`derive.theory.unfold.unfold`.
        """
        return unfolding.unfold(self, what, levels)

    def equivalent(self, other: Theory) -> bool:
        """Is this the same theory, up to the names of fields, sources, order parameters and indices?

        >>> from derive import mean_field, mlp
        >>> mean_field(mlp(2)).equivalent(mean_field(mlp(2, loss="mean")))
        False
        """
        return self.renaming(other) is not None

    def renaming(self, other: Theory, *, parameters: bool = False) -> dict[str, str] | None:
        """What ``other`` calls each name of this theory; None unless they are equivalent.

        See :func:`derive.theory.renaming.renaming`.
        """
        return matching.renaming(self, other, parameters=parameters)

    def losses(self, noise: Expr | int = 0) -> Mapping[str, Expr]:
        """``train_loss`` and ``test_loss`` at time ``t``, of each output, for programs on random data.

        A sample that no update has met has an error of which only the Gaussian sources are there: what
        training adds, the response to the errors of the same sample, is missing.  The test loss is the
        variance of these sources at equal times; the training loss is the mean square of the whole error.
        Where every sample is fresh (a batch a step, the population) both are the same.  On the population no
        sample stands in the theory: ``noise`` is the standard deviation of the labels then.
        Raises :class:`NotApplicable` for a theory of given samples.

        >>> from derive import isotropic, mean_field
        >>> mean_field(isotropic(noise=True)).losses()["test_loss"]
        sigma**2 + C_v(t, t)
        >>> mean_field(isotropic(noise=True)).losses()["train_loss"]
        C_Delta(t, t)
        """
        names = {e.name for e in self.equations}
        if ERROR_VECTOR not in names:
            raise NotApplicable(f"{self.program.name} has no field {ERROR_VECTOR}: its samples are given")
        if ERROR not in names:
            fresh = _now(self.order_parameter(f"C_{ERROR_VECTOR}").symbol) + noise**2
            return MappingProxyType({"train_loss": fresh, "test_loss": fresh})
        terms = self.equation(ERROR).terms
        covariance = {u.symbol.func: u.covariance for u in self.sources}
        fresh = Integer(0)
        for x in terms:
            if x.kind == "source":
                (source,) = (y for y in x.expr.atoms(AppliedUndef) if y.func in covariance)
                fresh += (x.expr / source) ** 2 * _now(covariance[source.func])
        seen = _now(self.order_parameter(f"C_{ERROR}").symbol)
        met = any(x.kind != "source" for x in terms)
        return MappingProxyType({"train_loss": seen if met else fresh, "test_loss": fresh})

    # -- seeing it --------------------------------

    def render(self, show: Show = "all", format: str = "text") -> str:
        """The theory as text, LaTeX, srepr or JSON; ``show`` picks a part (``single-site``, ``responses``,
        ...).
        """
        return document.render(self, show, format)

    def __repr__(self) -> str:
        return document.summary(self)

    def _repr_latex_(self) -> str:
        return self.render(format="latex")


def _now(e: Expr) -> Expr:
    """A correlation of a field with itself at the same time: partners of indices are the indices."""
    partners = {primed(x): x for x in e.free_symbols if primed(x) in e.free_symbols}
    return e.subs({s: t, **partners})
