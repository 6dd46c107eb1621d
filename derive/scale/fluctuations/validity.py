"""Widths from which order 1/N is sufficient, from the ratio of successive orders of the lazy loss.

A lazy error is a function of the tangent kernel, which varies from network to network. Averaged over a
Gaussian kernel of variance V/N the loss is a series in 1/N. The width at which its second term is as large as
the first grows with time; below this width the leading order fails. The initial output gives another such
width.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Eq, Expr, Symbol, cancel, factor, limit, oo
from sympy.functions.combinatorial.factorials import factorial

from derive.calculus.symbols import t
from derive.errors import NotApplicable
from derive.program.program import Program
from derive.scale.fluctuations.lazy import LazyFluctuations, lamda_k, lazy_fluctuations
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex

V_K, V_f = Symbol("V_K", positive=True), Symbol("V_f", positive=True)
"""N Var of the tangent kernel and of the output at the start."""
y = Symbol("y", real=True)
"""The target of a mode."""


@dataclass(frozen=True, repr=False)
class WidthValidity(ConditionalResult):
    """Widths N below which the leading order in 1/N of the loss of lazy networks fails.

    ``V_K`` and ``V_f`` are N times the initial variances of the tangent kernel and of the output.

    Parameters
    ----------
    lazy : LazyFluctuations
        Lazy fluctuations of one sample or one mode of the kernel, from which the widths follow.
    kernel_width : Expr
        Width at which the orders 1/N^2 and 1/N of the lazy loss are equal, in terms of ``V_K`` and time (in
        steps also of the learning rate and the kernel ``lamda_k``): N times their ratio.
    late : Expr
        Leading term of ``kernel_width`` at late times, proportional to the squared time.
    output_width : Expr
        Width at which order 1/N of the initial loss, from the initial output, is equal to its order one, in
        terms of ``V_f``; zero for centred outputs.
    """

    lazy: LazyFluctuations
    kernel_width: Expr
    late: Expr
    output_width: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return derived and assumed statements about the widths where order 1/N fails.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            "derived: the ratio of successive orders in 1/N of the lazy loss of one mode, which depends on "
            "the network through its tangent kernel and its initial output",
            "assumed: late times, at which the skewness of the tangent kernel matters less than its variance",
            "assumed: gamma0 -> 0; feature learning changes the kernel by a fraction of order gamma0^2 y^2",
        )

    def statements(self) -> tuple[str, ...]:
        """Return sentences that give the widths N below which order 1/N is not sufficient.

        Returns
        -------
        tuple[str, ...]
            One sentence about the tangent kernel at late times, and one about initial outputs unless they
            are centred.
        """
        sentences = [
            f"order 1/N is not sufficient unless N > {self.late}, because rates differ between networks"
        ]
        if self.output_width != 0:
            sentences.append(
                f"order 1/N is not sufficient unless N > {self.output_width}, because initial outputs are as "
                "large as the target"
            )
        return tuple(sentences)

    def _repr_latex_(self) -> str:
        widths = [Eq(Symbol("N_K"), self.late, evaluate=False)]
        if self.output_width != 0:
            widths.append(Eq(Symbol("N_f"), self.output_width, evaluate=False))
        return aligned_latex(widths)

    def at(self, kernel_variance: Expr, output_variance: Expr) -> WidthValidity:
        """Return the widths below which order 1/N fails, for given initial variances.

        Parameters
        ----------
        kernel_variance : Expr
            N times the initial variance of the kernel.
        output_variance : Expr
            N times the initial variance of the output.

        Returns
        -------
        WidthValidity
            Widths.
        """
        values = {V_K: kernel_variance, V_f: output_variance}
        widths = (x.xreplace(values) for x in (self.kernel_width, self.late, self.output_width))
        return WidthValidity(self.lazy, *widths)

    def of_one_sample(self) -> WidthValidity:
        """Return the widths below which order 1/N fails for one sample of the program.

        The initial variances of kernel and output are derived from the program. For training in steps the
        widths also contain the symbol ``lamda_k``, the initial kernel of the sample.

        Returns
        -------
        WidthValidity
            Widths.

        Examples
        --------
        >>> from derive.program import mlp
        >>> found = width_validity(mlp(rule="flow")).of_one_sample()
        >>> print(found.late, "|", found.output_width)
        2*L*t**2*(L + 1)*(2*L + 1)*K_x(mu, mu)**2/3 | K_x(mu, mu)/(gamma0**2*y**2)
        """
        return self.at(self.lazy.kernel_covariance.value, self.lazy.output_covariance.value)


def width_validity(program: Program) -> WidthValidity:
    """Return the widths below which the leading order in 1/N of the lazy loss fails.

    Parameters
    ----------
    program : Program
        As for :func:`derive.scale.fluctuations.lazy.lazy_fluctuations`.

    Returns
    -------
    WidthValidity
        Widths.

    Raises
    ------
    NotApplicable
        As :func:`derive.scale.fluctuations.lazy.lazy_fluctuations`, and if the ratio of successive orders in
        1/N does not grow with the square of the time.

    Examples
    --------
    >>> from derive.program import mlp
    >>> for x in width_validity(mlp(rule="flow")).statements(): print(x)
    order 1/N is not sufficient unless N > V_K*t**2, because rates differ between networks
    order 1/N is not sufficient unless N > V_f/y**2, because initial outputs are as large as the target
    """
    lazy = lazy_fluctuations(program)
    loss = lazy.decay.subs(program.roles.samples, 1) ** 2
    first, second = (_order(loss, n) for n in (1, 2))
    ratio = factor(cancel((second / first).simplify()))
    growth = limit(ratio / t**2, t, oo)
    if growth.has(oo) or growth == 0:
        raise NotApplicable(
            f"the ratio {ratio} of the orders 1/N**2 and 1/N of the loss does not grow in proportion to the "
            "square of the time t"
        )
    start = lazy.initial.subs(t, 0)
    return WidthValidity(lazy, ratio, factor(growth * t**2), factor(start**2 * V_f / y**2))


def _order(loss: Expr, n: int) -> Expr:
    """Return the coefficient of 1/N^n of the mean of a function of a Gaussian kernel of variance V_K/N.

    ``loss`` is the function, and ``lamda_k`` the mean of the kernel in it. Only the n-th power of the
    variance is included.
    """
    return loss.diff(lamda_k, 2 * n) * V_K**n / (2**n * factorial(n))
