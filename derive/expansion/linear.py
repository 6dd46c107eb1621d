"""The linear theory expanded in gamma0, with the layer and the depth symbolic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import Expr, MatAdd, MatrixSymbol, lambdify, sympify

from derive.calculus.series import PowerSeries
from derive.calculus.symbols import L, ell, gamma0, s, t
from derive.expansion import integrals, printing
from derive.expansion.errors import OUTPUT
from derive.expansion.expansion import Expansion
from derive.expansion.in_time.series import in_time
from derive.expansion.laws import MatrixChain, Orders, chain
from derive.expansion.words import TANGENT, LinearSeries, linear_series
from derive.linear.closure import linear_closure
from derive.theory import Theory


@dataclass(frozen=True)
class LinearExpansion(LinearSeries, Expansion):
    """The order parameters of a linear theory as power series in gamma0.

    ``words[X][n]`` is the coefficient of gamma0^n of the operator X (``H``, ``G``, ``A``, ``B``, and the
    kernels ``C``, ``D``) at layer ``ell``: a sum of operator words with coefficients polynomial in ell and L.
    ``output[n]`` is the operator whose entries at equal times are f at that order; ``tangent[n]`` the tangent
    kernel as triples (coefficient, word of G, word of H), to be multiplied entry by entry.  ``Memory``
    letters carry the error's own coefficients.  Compare selfconsistent2023 (16), (P.2)-(P.4), which leave out
    A and B.
    """

    variable = gamma0

    @property
    def names(self) -> tuple[str, ...]:
        """The operators that have a series."""
        return tuple(x for x in self.sums if x not in (OUTPUT, TANGENT))

    def coefficient(self, name: str, n: int, layer: Expr | int = ell) -> Expr:
        """The coefficient of gamma0^n in the operator ``name`` at ``layer``; a sum of words.

        Beyond order 8 words are too many: these coefficients are given by lower orders, ``H2[ell]`` being
        that of gamma0^2 in H.  Raises KeyError for an unknown name and IndexError beyond ``order``.

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
        value = self.expr(name, n) if n <= self.written else self.recursion.coefficient(name, n)
        return value.subs(ell, layer).expand() if layer is not ell else value

    @cached_property
    def recursion(self) -> Orders:
        """Each order by those below."""
        return Orders(self.closure, self.order)

    def matrix(self, name: str, n: int, layer: Expr | int = ell) -> Expr:
        """The same as a matrix expression, for ``lambdify``; rows and columns are (sample, time), or times.

        >>> from derive import L, mean_field, mlp
        >>> sorted(map(str, expand_linear(mean_field(mlp(rule="flow")), 2).matrix("G", 2, L).args))
        ['D0[J]*K_x*D0[J].T', 'L*D0[J]*C0[K_x]*J', 'L*J*C0[K_x].T*D0[J].T']
        """
        self.check_written(n)
        return self.closure.matrix(self.coefficient(name, n, layer))

    def letters(self, name: str, layer: Expr | int = ell) -> tuple[Expr, ...]:
        """What the series of an operator is computed from: matrices, then numbers (the depth, the layer).

        >>> from derive import mean_field, mlp
        >>> expand_linear(mean_field(mlp(rule="flow")), 2).letters("G", 1)
        (C0[K_x], D0[J], J, K_x, L)
        """
        found = [self.matrix(name, n, layer) for n in range(self.order + 1)]
        matrices = {x for e in found for x in e.atoms(MatrixSymbol)}
        numbers = {x for e in found for x in e.free_symbols} & {L, ell}
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
        """The truncated series of an operator as a function of gamma0 and the matrices that letters are.

        Arguments are gamma0 and ``symbols``, by default :meth:`letters`.  Rows and columns are (sample, time)
        or times: ``K_x`` is the data's kernel at all pairs of times, ``J`` is 1 there, and ``C0[X]`` is
        what C remembers of X.  The words themselves have no ``lambdify``; for functions of time alone see
        :meth:`in_time`.

        >>> import mpmath
        >>> from derive import mean_field, mlp
        >>> one = mpmath.matrix([[1]])
        >>> value = expand_linear(mean_field(mlp(rule="flow")), 2).lambdify("G", modules="mpmath", layer=1)
        >>> print(value(0.5, 2 * one, 3 * one, one, one, 1))  # 1 + (2 + 2) 3/4 ... with L = 1
        [6.25]

        With an integer ``depth`` and ``layer`` the closure's recursion is compiled as it stands, to any
        order.  Arguments are then gamma0 and :meth:`given`.
        """
        if depth is not None:
            steps, given, total = self._at_depth(name, layer, depth)
            return lambdify(  # type: ignore[no-any-return]
                [gamma0, *(symbols or given)], total, modules, cse=lambda e: (steps, e)
            )
        parts = [gamma0**n * self.matrix(name, n, layer) for n in range(self.order + 1)]
        total = MatAdd(*[x for x in parts if x != 0])
        found: Callable[..., Any] = lambdify(
            [gamma0, *(symbols or self.letters(name, layer))], total, modules
        )
        return found

    def given(self, name: str, layer: int, depth: int) -> tuple[MatrixSymbol, ...]:
        """What the series at an integer depth is computed from, by matrices of (sample, time), or times.

        The data's ``K_x`` at all pairs of times, ``J``, which is 1 there; ``W_C`` and ``W_D``, the weight of
        what is learned at s in the weights at t, in the shapes of C and D; and of each order of the error
        ``Delta_0[(alpha, s), s']``, which is the error of sample alpha at s where s' = s.

        >>> from derive import mean_field, mlp
        >>> expand_linear(mean_field(mlp()), 4).given("H", 2, depth=2)
        (J, K_x, W_C, W_D, Delta_0, Delta_2)
        """
        return tuple(self._at_depth(name, layer, depth)[1])

    def _at_depth(self, name: str, layer: Expr | int, depth: int) -> MatrixChain:
        if name not in self.names:
            raise self.unknown(name)
        if depth < 1 or not sympify(layer).is_Integer:
            raise ValueError(f"layer = {layer}, depth = {depth}: must be integers, and the depth 1 or more")
        return chain(self.closure, depth, self.order, name, int(layer))

    def error_estimate(self, name: str, now: Expr = t, past: Expr = s) -> Expr:
        """An estimate of what the truncation misses in an order parameter's :meth:`entry`."""
        found = (self.entry(name, n, now, past) for n in range(self.order + 1))
        return PowerSeries(tuple(found), gamma0).error_estimate()

    def truncate(self, n: int) -> LinearExpansion:
        self.check_order(n)
        return replace(self, order=n, sums={name: values[: n + 1] for name, values in self.sums.items()})

    entry = integrals.entry
    error_equation = integrals.error_equation
    iterated_integral = integrals.iterated_integral
    in_time = in_time
    render = printing.render


def expand_linear(theory: Theory, order: int = 2) -> LinearExpansion:
    """Expand a linear theory (of a family of layers) in gamma0 up to ``order``.

    Raises :class:`~derive.errors.NotApplicable` when the closure is no first-order
    recursion in the layer, ValueError for a negative order.

    >>> from derive import mean_field, mlp
    >>> expand_linear(mean_field(mlp()), 1).output[1]
    0
    """
    if order < 0:
        raise ValueError(f"order = {order}: must be 0 or more")
    return LinearExpansion(**vars(linear_series(linear_closure(theory), order)))
