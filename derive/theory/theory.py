"""`Theory`: the mean-field theory of a program, with methods to print, explain, unfold and compare it.

`mean_field` returns it. Reductions, expansions, limits and solvers take it as input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sympy import Expr

from derive.theory import explain as explaining
from derive.theory import losses as measuring
from derive.theory import renaming as matching
from derive.theory import unfold as unfolding
from derive.theory.data import TheoryData

if TYPE_CHECKING:
    from derive.theory.document import Show


@dataclass(frozen=True, repr=False)
class Theory(TheoryData):
    """Mean-field theory of a program.

    ``print(theory)`` shows a summary, :meth:`render` shows all equations, and :meth:`explain` names the
    origin of each term.

    Parameters
    ----------
    program : Program
        Program of which this is the theory.
    sources : tuple of Source
        Gaussian sources with their covariances.
    equations : tuple of Equation
        Single-site equations of fields, in causal order.
    order_parameters : tuple of OrderParameter
        Correlations and responses with their definitions.
    scalars : tuple of Equation
        Equations of outputs and errors.
    observables : tuple of Equation
        Quantities that no other equation uses, such as the tangent kernel.
    reduction : str
        Name of the reduction by which the theory was obtained; empty for a derived theory.
    """

    def explain(self, name: str) -> str:
        """Return the origin of a field, source, order parameter, scalar or observable, term by term.

        Parameters
        ----------
        name : str
            Name of the quantity.

        Returns
        -------
        str
            Explanation in words.

        Raises
        ------
        KeyError
            If the theory has no quantity of that name.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> print(mean_field(mlp()).explain("A"))
        A(ell, mu, t, s): response function, <d h(ell, mu, t) / d r(ell, s)>/gamma0
            0 unless s < t: the vector moves only in steps after the source is perturbed
            stands in the equation of h(ell + 1, mu, t), by the use of W
        """
        return explaining.explain(self, name)

    def explain_term(self, term: Any) -> str:
        """Return the matrix and the rule that gave a term.

        Parameters
        ----------
        term : Any
            A `Term`, the expression of a term, or a part of such an expression. For a part, all terms that
            contain it are explained.

        Returns
        -------
        str
            Explanation in words.

        Raises
        ------
        KeyError
            If no equation, scalar, observable, covariance or definition of an order parameter contains the
            term.

        Examples
        --------
        >>> from derive.theory import mean_field
        >>> from derive.program import ell, mlp
        >>> from sympy import Function
        >>> theory = mean_field(mlp())
        >>> print(theory.explain_term(theory.equation("g").terms[0]))
        r(L, t)
            in the equation of g(L, t) = w
            w at initialisation, N(0, 1) in every unit; its updates are another term
        """
        return explaining.explain_term(self, term)

    def unfold(self, what: Any, levels: int = 1) -> Expr:
        """Return a response or an average with the equations of the theory substituted.

        Parameters
        ----------
        what : Any
            Expression, or the name of an order parameter or scalar.
        levels : int, optional
            Number of times that the equations are substituted; 0 returns the definition.

        Returns
        -------
        Expr
            The expression; see :func:`derive.theory.unfold.unfold`.
        """
        return unfolding.unfold(self, what, levels)

    def equivalent(self, other: Theory) -> bool:
        """Return whether two theories agree up to names.

        Parameters
        ----------
        other : Theory
            Theory to compare with.

        Returns
        -------
        bool
            True if a renaming of fields, sources, order parameters, data, activations and indices makes both
            equal. Symbols of numbers, such as a learning rate, must have the same names; see
            :meth:`renaming`.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> mean_field(mlp(2)).equivalent(mean_field(mlp(2, loss="mean")))
        False
        """
        return self.renaming(other) is not None

    def renaming(self, other: Theory, *, parameters: bool = False) -> dict[str, str] | None:
        """Return the name in another theory of each name of this theory.

        Parameters
        ----------
        other : Theory
            Theory to compare with.
        parameters : bool, optional
            Whether symbols of numbers, such as a learning rate, may be renamed as well.

        Returns
        -------
        dict[str, str] | None
            Names, or None if the theories are not equivalent; see :func:`derive.theory.renaming.renaming`.
        """
        return matching.renaming(self, other, parameters=parameters)

    def losses(self, noise: Expr | int = 0) -> Mapping[str, Expr]:
        """Return the training and the test loss of a program on random data, as mean squares of the error.

        Parameters
        ----------
        noise : Expr | int, optional
            Standard deviation of the label noise, used only where the theory contains no samples (training on
            the population). With samples the noise is part of the theory.

        Returns
        -------
        Mapping[str, Expr]
            ``train_loss`` and ``test_loss`` at time ``t``; for several outputs, as functions of the index of
            the output.

        Raises
        ------
        ProgramError
            If ``noise`` is not an expression, or negative.
        NotApplicable
            If the samples are given, because there is no test distribution then. If the loss of the program
            is not the mean square of one vector, or the error is not linear in the data and the noise. If the
            theory has no correlation for the mean square.

        Notes
        -----
        The error of a sample that was not trained on contains only the Gaussian sources, without the response
        to the errors of the same sample. The test loss is the variance of these sources at equal times; the
        training loss is the mean square of the whole error. Both agree if every sample is fresh, as with a
        new batch at each step, and on the population, where they are twice the loss of the program plus
        ``noise**2``. The vectors are found by their roles in the program, `Program.roles`, whatever their
        names.

        Examples
        --------
        >>> from derive import isotropic, mean_field
        >>> mean_field(isotropic(noise=True)).losses()["test_loss"]
        sigma**2 + C_v(t, t)
        >>> mean_field(isotropic(noise=True)).losses()["train_loss"]
        C_Delta(t, t)
        """
        return measuring.losses(self, noise)

    # -- printing ---------------------------------

    def render(self, show: Show = "all", format: str = "text") -> str:
        """Return the theory as text, LaTeX, srepr or JSON.

        Parameters
        ----------
        show : Show, optional
            Part of the theory: ``"single-site"``, ``"order-parameters"``, ``"responses"``, ``"action"``,
            ``"saddle-point"`` or ``"all"``.
        format : {"text", "latex", "srepr", "json"}
            Format.

        Returns
        -------
        str
            The document.

        Raises
        ------
        ValueError
            If the part or the format is unknown.
        NotApplicable
            If the action or the saddle point of a reduced theory is to be shown: both are those of the
            program without the reduction.
        """
        from derive.theory import document  # imported here, because it is slow to import

        return document.render(self, show, format)

    def __repr__(self) -> str:
        from derive.theory import document  # imported here, because it is slow to import

        return document.summary(self)

    def _repr_latex_(self) -> str:
        """Return the single-site equations in LaTeX, and a line that names the methods for other parts."""
        from derive.theory import document  # imported here, because it is slow to import

        return self.render("single-site", "latex") + "\n" + document.View(self).other_parts()
