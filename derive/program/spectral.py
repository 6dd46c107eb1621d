"""Training rules that act on the singular values of the gradient of a matrix, such as Muon.

The gradient of a matrix is a sum of few outer products, ``A = sum_mu c_mu l_mu r_mu^T``, of order one entry
by entry. Let A have N rows and N columns, the singular values ``N sigma_k`` and the singular vectors ``u_k``
and ``v_k``. The step is ``sum_k F(sigma_k) u_k v_k^T`` over the positive ones, with the singular values
``F(sigma_k)``. With ``F = 1`` it is the orthogonal factor of A, the step of Muon without momentum.
:func:`derive.program.outer_steps.outer_products` writes the step as outer products of the same vectors,

    step = (1/N) sum_mu,alpha X_mu,alpha c_mu c_alpha l_mu r_alpha^T,
    X = (c l)^(-1/2) F[(c l)^(1/2) r^(1/2)] r^(-1/2),

with the matrices of inner products ``(c l)_mu,alpha = c_mu c_alpha <l_mu l_alpha>`` and ``r = <r r>``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sympy import Expr, S, Symbol

from derive.calculus.symbols import expression
from derive.errors import ProgramError
from derive.program.nonlinear import NonlinearRule

sigma = Symbol("sigma", positive=True)
"""A singular value of the gradient over N; of n rows and m columns, over ``sqrt(n m)``."""


@dataclass(frozen=True)
class Spectral(NonlinearRule):
    """Training rule that moves a matrix by a function of the singular values of its gradient.

    Parameters
    ----------
    rate : Expr
        Learning rate, which may depend on :data:`derive.program.t`.
    F : Expr
        Expression of :data:`derive.program.spectral.sigma`, the singular values of the gradient over N. Any
        other symbol is a parameter of the rule, also one called sigma that is not this one.
    decay : Expr
        Fraction of the weight that is lost in a step; it may depend on t. 0 by default.
    name : str
        Name in printed programs.
    memory_tables : tuple, optional
        A constant rate and the names of tables of m(t) and k(t, s), if the memory has no closed form. None:
        the memory follows from ``rate`` and ``decay``.

    Raises
    ------
    ProgramError
        If the rate or the decay is negative.

    Examples
    --------
    Steps with singular values of at most one:

    >>> from sympy import tanh
    >>> Spectral(Symbol("eta"), tanh(sigma)).F
    tanh(sigma)
    """

    rate: Expr
    F: Expr
    decay: Expr = S.Zero
    name: str = "spectral rule"
    memory_tables: tuple[Expr, str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Convert the parameters to expressions; raise ProgramError for a negative rate or decay."""
        for key in ("rate", "F", "decay"):
            object.__setattr__(self, key, expression(getattr(self, key), f"{key} of {self.name}"))
        for x in self.bounded:
            x.require()

    @property
    def law(self) -> tuple[Expr, ...]:
        """The function F by which the rule changes the singular values of the gradient, in a tuple."""
        return (self.F,)

    def of_gradient(self, factor: Expr) -> Spectral:
        """Return the rule with ``factor * A`` in place of the gradient A, such as ``A/P`` for a mean loss.

        Parameters
        ----------
        factor : Expr
            The factor, which is positive.

        Returns
        -------
        Spectral
            The rule in terms of the multiplied gradient.

        Examples
        --------
        >>> Spectral(Symbol("eta"), sigma).of_gradient(Symbol("a")).F
        a*sigma
        """
        return replace(self, F=self.F.xreplace({sigma: factor * sigma}))

    @property
    def inner(self) -> frozenset[Symbol]:
        """The symbol in F that stands for a singular value of the gradient over N, in a set."""
        return frozenset({sigma})


def muon(rate: Expr, decay: Expr = S.Zero) -> Spectral:
    """Return Muon without momentum: the step is the orthogonal factor of the gradient.

    Parameters
    ----------
    rate : Expr
        Learning rate.
    decay : Expr
        Fraction of a weight lost in a step.

    Returns
    -------
    Spectral
        The rule.

    Examples
    --------
    >>> muon(Symbol("eta")).F
    1
    """
    return Spectral(rate, S.One, decay=decay, name="Muon")


class SpectralEntry(Expr):
    """Entry ``X_row,column`` of ``X = left^(-1/2) F[left^(1/2) right^(1/2)] right^(-1/2)``.

    ``left`` and ``right`` are symmetric matrices, given by their entries at ``row`` and ``column``. The
    function F, an expression in the symbol ``sigma``, acts on the positive singular values of the product of
    roots.

    >>> from sympy import Function
    >>> from derive.calculus.symbols import alpha, mu
    >>> SpectralEntry(S.One, Function("G")(mu, alpha), Function("K")(mu, alpha), mu, alpha)
    [F(G(mu, alpha), K(mu, alpha))]_mu,alpha
    """

    is_commutative = True

    def __new__(cls, F: Any, left: Any, right: Any, row: Any, column: Any) -> SpectralEntry:
        """Return the unevaluated entry at ``row`` and ``column`` of the function F of two matrices."""
        node: SpectralEntry = Expr.__new__(cls, *map(S, (F, left, right, row, column)))
        return node

    @property
    def free_symbols(self) -> set[Symbol]:
        """The symbols of the entry, without the singular value, which is the variable of F."""
        return set().union(*(x.free_symbols for x in self.args)) - {sigma}

    @property
    def F(self) -> Expr:
        """The function F of the singular values, as an expression in :data:`sigma`."""
        return self.args[0]

    @property
    def matrices(self) -> tuple[Expr, Expr]:
        """The expressions of the entries of the matrices ``left`` and ``right``."""
        return self.args[1], self.args[2]

    @property
    def places(self) -> tuple[Symbol, Symbol]:
        """The symbols of the row and of the column of the entry."""
        return self.args[3], self.args[4]

    def _latex(self, printer: Any, *_: Any) -> str:
        left, right, row, column = map(printer._print, self.args[1:])
        inside = rf"\mathcal{{F}}\left({left}, {right}\right)"
        return rf"\left[{inside}\right]_{{{row}{column}}}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        left, right, row, column = map(printer._print, self.args[1:])
        return f"[F({left}, {right})]_{row},{column}"


def require_matrix(weight: Any) -> None:
    """Raise :class:`~derive.errors.ProgramError` for a vector of weights that moves by a spectral rule."""
    if isinstance(weight.rule, Spectral) and not hasattr(weight.update, "left"):
        raise ProgramError(
            f"{weight.name} is a vector of weights and moves by {weight.rule.name}, which acts on singular "
            'values of matrices: give it another rule, rules={"' + weight.name + '": adam(eta)}'
        )
