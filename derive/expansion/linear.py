"""Expansion of a linear theory in gamma0, with symbolic layer and depth.

`expand_linear` derives from a theory the coefficients of its order parameters as sums of operator words.
`LinearExpansion` gives them as words, matrices, iterated integrals of the error, or functions of time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import Expr, MatAdd, MatrixSymbol, lambdify

from derive.calculus.series import PowerSeries
from derive.calculus.symbols import L, ell, gamma0, s, t
from derive.errors import require_integer
from derive.expansion import integrals, printing
from derive.expansion.errors import OUTPUT
from derive.expansion.expansion import Expansion
from derive.expansion.in_time.series import in_time
from derive.expansion.operator_words import TANGENT, LinearSeries, linear_series, require_layer
from derive.expansion.order_recursions import MatrixChain, Orders, chain
from derive.linear.closure import linear_closure
from derive.theory import Theory


@dataclass(frozen=True, repr=False)
class LinearExpansion(LinearSeries, Expansion):
    """Order parameters of a linear theory as power series in gamma0.

    ``words[X][n]`` is the coefficient of gamma0^n of the operator X (``H``, ``G``, ``A``, ``B``, and the
    kernels ``C``, ``D``) at layer ``ell``: a sum of operator words with coefficients polynomial in ell and L.
    ``output[n]`` is the operator whose entries at equal times are f at that order. ``tangent[n]`` is the
    tangent kernel as triples (coefficient, word of G, word of H), to be multiplied entry by entry. ``Memory``
    letters contain the coefficients of the error. These lists end at order 8. Compare selfconsistent2023
    (16), (P.2)-(P.4), which leave out A and B.

    Parameters
    ----------
    closure : LinearClosure
        Operator equations of the theory.
    order : int
        Highest order.
    sums : dict
        ``sums[X][n]`` maps the words in order n of the operator X to their coefficients; X is also ``f``
        for the output and ``K`` for the tangent kernel, whose keys are pairs of words.
    """

    variable = gamma0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operators (order parameters and kernels) that have a series in gamma0."""
        return tuple(x for x in self.sums if x not in (OUTPUT, TANGENT))

    def coefficient(self, name: str, n: int, layer: Expr | int = ell) -> Expr:
        """Return the coefficient of gamma0^n in an operator at a layer.

        Parameters
        ----------
        name : str
            Name of the operator, one of :attr:`names`; not the output ``f`` or the tangent kernel ``K``.
        n : int
            Order.
        layer : Expr | int, optional
            Layer.

        Returns
        -------
        Expr
            Sum of words. Beyond order 8 there are too many words. The coefficient is then given by lower
            orders and by other operators, where ``H2[ell]`` is the coefficient of gamma0^2 in H.

        Raises
        ------
        KeyError
            If there is no operator of that name.
        IndexError
            If ``n`` is negative or beyond the order.
        ValueError
            If the layer is outside the network.

        Examples
        --------
        >>> from derive import L, mean_field, mlp
        >>> e = expand_linear(mean_field(mlp(rule="flow")), 2)
        >>> e.coefficient("C", 0)
        ell*C0[K_x]
        >>> e.coefficient("H", 1)
        0
        >>> e.coefficient("G", 2, L)
        L*J*transpose(C0[K_x])*transpose(D0[J]) + L*D0[J]*C0[K_x]*J + D0[J]*K_x*transpose(D0[J])
        """
        self.check_order(n)
        if name not in self.names:
            raise self.unknown(name)
        require_layer(self.closure, name, layer, beyond=True)
        value = self.expr(name, n) if n <= self.written else self.recursion.coefficient(name, n)
        return value.subs(ell, layer).expand() if layer is not ell else value

    @cached_property
    def recursion(self) -> Orders:
        """Equations that give order n of each operator by lower orders and by other operators."""
        return Orders(self.closure, self.order)

    def matrix(self, name: str, n: int, layer: Expr | int = ell) -> Expr:
        """Return order n in gamma0 of an operator as a matrix expression, for ``lambdify``.

        Parameters
        ----------
        name : str
            Name of the operator.
        n : int
            Order, at most 8.
        layer : Expr | int, optional
            Layer.

        Returns
        -------
        Expr
            Matrix expression, whose rows and columns are pairs (sample, time), or times; the number 0 if the
            coefficient vanishes.

        Raises
        ------
        KeyError
            If there is no operator of that name.
        IndexError
            If the order is negative or above that of the series.
        ValueError
            If the layer is outside the network.
        NotApplicable
            If the order is above 8.

        Examples
        --------
        >>> from derive import L, mean_field, mlp
        >>> sorted(map(str, expand_linear(mean_field(mlp(rule="flow")), 2).matrix("G", 2, L).args))
        ['D0[J]*K_x*D0[J].T', 'L*D0[J]*C0[K_x]*J', 'L*J*C0[K_x].T*D0[J].T']
        """
        self.check_written(n)
        return self.closure.matrix(self.coefficient(name, n, layer))

    def letters(self, name: str, layer: Expr | int = ell) -> tuple[Expr, ...]:
        """Return the matrices and numbers that the series of an operator depends on.

        Parameters
        ----------
        name : str
            Name of the operator.
        layer : Expr | int, optional
            Layer.

        Returns
        -------
        tuple[Expr, ...]
            Matrices, then numbers (the depth, the layer), each sorted by name.

        Raises
        ------
        KeyError
            If there is no operator of that name.
        ValueError
            If the layer is outside the network.
        NotApplicable
            If the series has an order above 8.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> expand_linear(mean_field(mlp(rule="flow")), 2).letters("G", 1)
        (C0[K_x], D0[J], J, K_x, L)
        """
        coefficients = [self.matrix(name, n, layer) for n in range(self.order + 1)]
        matrices = {x for e in coefficients for x in e.atoms(MatrixSymbol)}
        numbers = {x for e in coefficients for x in e.free_symbols} & {L, ell}
        return (*sorted(matrices, key=str), *sorted(numbers, key=str))

    def lambdify(
        self,
        name: str,
        *symbols: Expr,
        modules: Any = None,
        layer: Expr | int = ell,
        depth: int | None = None,
        **where: Any,
    ) -> Callable[..., Any]:
        """Return the truncated series of an operator as a function of matrices.

        Parameters
        ----------
        name : str
            Name of the operator.
        *symbols : Expr
            Arguments after gamma0; :meth:`letters` by default, or :meth:`given` if ``depth`` is given.
        modules : Any, optional
            Modules for the compiled function, as in SymPy's ``lambdify``.
        layer : Expr | int, optional
            Layer; an integer if ``depth`` is given.
        depth : int | None, optional
            Integer depth, at which the recursion of the closure is compiled. Without it the words are
            compiled, which exist up to order 8.
        **where : Any
            No further options; any raises TypeError.

        Returns
        -------
        Callable[..., Any]
            Function of gamma0 and the symbols.

        Raises
        ------
        KeyError
            If there is no operator of that name.
        ValueError
            If the layer is outside of the network, or symbolic at an integer depth, or for a wrong depth.
        NotApplicable
            If the order is above 8 and no depth is given.
        TypeError
            If there is another option.

        Notes
        -----
        Rows and columns are pairs (sample, time), or times: ``K_x`` is the kernel of the data at all pairs of
        times, ``J`` is 1 there, and ``C0[X]`` is the memory of X in C. For functions of time alone see
        :meth:`in_time`.

        Examples
        --------
        >>> import mpmath
        >>> from derive import mean_field, mlp
        >>> one = mpmath.matrix([[1]])
        >>> value = expand_linear(mean_field(mlp(rule="flow")), 2).lambdify("G", modules="mpmath", layer=1)
        >>> print(value(0.5, 2 * one, 3 * one, one, one, 1))  # 1 + (2 + 2) 3/4 ... with L = 1
        [6.25]

        With an integer ``depth`` and ``layer`` the closure's recursion is compiled as it stands, to any
        order.  Arguments are then gamma0 and :meth:`given`.
        """
        if where:
            unknown = next(iter(where))
            raise TypeError(f"lambdify() has no option {unknown!r}: must be modules, layer or depth")
        if depth is not None:
            steps, given, total = self._at_depth(name, layer, depth)
            return lambdify(  # type: ignore[no-any-return]
                [gamma0, *(symbols or given)], total, modules, cse=lambda e: (steps, e)
            )
        parts = [gamma0**n * self.matrix(name, n, layer) for n in range(self.order + 1)]
        total = MatAdd(*[x for x in parts if x != 0])
        compiled: Callable[..., Any] = lambdify(
            [gamma0, *(symbols or self.letters(name, layer))], total, modules
        )
        return compiled

    def given(self, name: str, layer: int, depth: int) -> tuple[MatrixSymbol, ...]:
        """Return the matrices on which the series of an operator at an integer depth depends.

        Parameters
        ----------
        name : str
            Name of the operator.
        layer : int
            Layer, within the network.
        depth : int
            Number of hidden layers.

        Returns
        -------
        tuple[MatrixSymbol, ...]
            Matrices, see Notes.

        Raises
        ------
        KeyError
            If there is no operator of that name.
        ValueError
            If the layer is not an integer or is outside the network, or if the depth is below 1 or not that
            of a theory of integer depth.

        Notes
        -----
        Indices are pairs (sample, time), or times. ``K_x`` is the kernel of the data at all pairs of times,
        and ``J`` is 1 there. ``W_C`` and ``W_D`` are the weights of an update at s in the weights at t, in
        the shapes of C and D. ``Delta_0[(alpha, s), s']`` is, for each order of the error, the error of
        sample alpha at s if s' = s.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> expand_linear(mean_field(mlp()), 4).given("H", 2, depth=2)
        (J, K_x, W_C, W_D, Delta_0, Delta_2)
        """
        return tuple(self._at_depth(name, layer, depth)[1])

    def _at_depth(self, name: str, layer: Expr | int, depth: int) -> MatrixChain:
        """Return the series of an operator at an integer depth, as a list of operations on matrices.

        The value is a triple (steps, input matrices, result). Each step is a matrix symbol with its
        definition by inputs and earlier steps; the result is an expression in gamma0 and these symbols.
        Raises KeyError for an unknown name, and ValueError for a depth that is no positive integer or a layer
        outside of the network.
        """
        if name not in self.names:
            raise self.unknown(name)
        depth = require_integer("depth", depth, 1)
        place = int(require_layer(self.closure, name, layer, depth))
        return chain(self.closure, depth, self.order, name, place)

    def error_estimate(self, name: str, now: Expr = t, past: Expr = s) -> Expr:
        """Return an estimate of the truncation error of an entry of an order parameter.

        Parameters
        ----------
        name : str
            Name of the quantity, as for :meth:`entry`.
        now : Expr, optional
            First time.
        past : Expr, optional
            Second time.

        Returns
        -------
        Expr
            Estimate for the :meth:`entry`, which continues its last coefficients as a geometric series.

        Raises
        ------
        KeyError
            If there is no quantity of that name.
        NotApplicable
            If one of the coefficients is not given in time integrals, as for :meth:`entry`.
        """
        coefficients = (self.entry(name, n, now, past) for n in range(self.order + 1))
        return PowerSeries(tuple(coefficients), gamma0).error_estimate()

    def truncate(self, n: int) -> LinearExpansion:
        """Return the expansion up to a lower order.

        Parameters
        ----------
        n : int
            New order.

        Returns
        -------
        LinearExpansion
            Truncated expansion.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.
        """
        self.check_order(n)
        return replace(self, order=n, sums={name: values[: n + 1] for name, values in self.sums.items()})

    entry = integrals.entry
    error_equation = integrals.error_equation
    iterated_integral = integrals.iterated_integral
    in_time = in_time
    render = printing.render


def expand_linear(theory: Theory, order: int = 2) -> LinearExpansion:
    """Expand a linear theory (of a family of layers) in gamma0.

    Parameters
    ----------
    theory : Theory
        Linear theory with a family of hidden layers.
    order : int, optional
        Highest order.

    Returns
    -------
    LinearExpansion
        The expansion.

    Raises
    ------
    NotApplicable
        If the theory is not linear or has no family of layers, if :func:`.linear_closure` refuses it (for
        biases, for example), or if the closure is not a first-order recursion in the layer.
    ValueError
        If the order is negative or not an integer.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> expand_linear(mean_field(mlp()), 1).output[1]
    0
    """
    order = require_integer("order", order, 0)
    return LinearExpansion(**vars(linear_series(linear_closure(theory), order)))
