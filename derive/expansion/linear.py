"""The linear theory expanded in gamma0, with the layer and the depth symbolic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sympy import Eq, Expr, MatAdd, MatrixSymbol, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.series import PowerSeries
from derive.calculus.symbols import L, ell, gamma0, s, t
from derive.expansion import integrals
from derive.expansion.expansion import Expansion
from derive.expansion.in_time.series import InTime, in_time
from derive.expansion.integrals import render
from derive.expansion.words import LinearSeries, linear_series
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

    @property
    def variable(self) -> Symbol:
        """gamma0."""
        return gamma0

    @property
    def names(self) -> tuple[str, ...]:
        """The operators that have a series."""
        return tuple(self.words)

    def coefficient(self, name: str, n: int, layer: Expr | int = ell) -> Expr:
        """The coefficient of gamma0^n in the operator ``name`` at ``layer``; a sum of words.

        Raises KeyError for an unknown name and IndexError beyond ``order``.

        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> e = expand_linear(mean_field(mlp(rule="flow")), 2)
        >>> e.coefficient("C", 0)
        ell*C0[K_x]
        >>> e.coefficient("H", 1)
        0
        >>> e.coefficient("G", 2, L)
        L*J*transpose(C0[K_x])*transpose(D0[J]) + L*D0[J]*C0[K_x]*J + D0[J]*K_x*transpose(D0[J])
        """
        self.check_order(n)
        if name not in self.words:
            raise self.unknown(name)
        value = self.words[name][n]
        return value.subs(ell, layer).expand() if layer is not ell else value

    def matrix(self, name: str, n: int, layer: Expr | int = ell) -> Expr:
        """The same as a matrix expression, for ``lambdify``; rows and columns are (sample, time), or times.

        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> sorted(map(str, expand_linear(mean_field(mlp(rule="flow")), 2).matrix("G", 2, L).args))
        ['D0[J]*K_x*D0[J].T', 'L*D0[J]*C0[K_x]*J', 'L*J*C0[K_x].T*D0[J].T']
        """
        return self.closure.matrix(self.coefficient(name, n, layer))

    def letters(self, name: str, layer: Expr | int = ell) -> tuple[Expr, ...]:
        """What the series of an operator is computed from: matrices, then numbers (the depth, the layer).

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> expand_linear(mean_field(mlp(rule="flow")), 2).letters("G", 1)
        (C0[K_x], D0[J], J, K_x, L)
        """
        found = [self.matrix(name, n, layer) for n in range(self.order + 1)]
        matrices = {x for e in found for x in e.atoms(MatrixSymbol)}
        numbers = {x for e in found for x in e.free_symbols} & {L, ell}
        return (*sorted(matrices, key=str), *sorted(numbers, key=str))

    def lambdify(
        self, name: str, *symbols: Expr, modules: Any = None, layer: Expr | int = ell, **where: Any
    ) -> Callable[..., Any]:
        """The truncated series of an operator as a function of gamma0 and the matrices that letters are.

        Arguments are gamma0 and ``symbols``, by default :meth:`letters`.  Rows and columns are (sample, time)
        or times: ``K_x`` is the data's kernel at all pairs of times, ``J`` is 1 there, and ``C0[X]`` is
        what C remembers of X.  The words themselves have no ``lambdify``; for functions of time alone see
        :meth:`in_time`.

        >>> import mpmath
        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> one = mpmath.matrix([[1]])
        >>> value = expand_linear(mean_field(mlp(rule="flow")), 2).lambdify("G", modules="mpmath", layer=1)
        >>> print(value(0.5, 2 * one, 3 * one, one, one, 1))  # 1 + (2 + 2) 3/4 ... with L = 1
        [6.25]
        """
        parts = [gamma0**n * self.matrix(name, n, layer) for n in range(self.order + 1)]
        total = MatAdd(*[x for x in parts if x != 0])
        found: Callable[..., Any] = lambdify(
            [gamma0, *(symbols or self.letters(name, layer))], total, modules
        )
        return found

    def error_estimate(self, name: str, now: Expr = t, past: Expr = s) -> Expr:
        """An estimate of what the truncation misses in an order parameter's :meth:`entry`.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> expand_linear(mean_field(mlp(rule="flow")), 0).error_estimate("f")
        oo
        """
        found = (self.entry(name, n, now, past) for n in range(self.order + 1))
        return PowerSeries(tuple(found), gamma0).error_estimate()

    def truncate(self, n: int) -> LinearExpansion:
        """The series up to gamma0^n only.  Raises IndexError beyond ``order``.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> expand_linear(mean_field(mlp()), 2).truncate(0).coefficient("H", 0)
        K_x
        """
        self.check_order(n)
        kept = {name: values[: n + 1] for name, values in self.words.items()}
        return replace(self, order=n, words=kept, output=self.output[: n + 1], tangent=self.tangent[: n + 1])

    def entry(self, name: str, n: int, now: Expr = t, past: Expr = s) -> Expr:
        """The coefficient of gamma0^n of an order parameter's entry, as time integrals ``v`` of the error.

        ``name`` is one of ``H``, ``G``, ``A``, ``B``, ``C``, ``D``, ``K`` (the tangent kernel) and ``f``
        (at time ``now``); samples are called mu and alpha.  Raises
        :class:`~derive.errors.NotApplicable` where products of such integrals under
        one more sum over time do not reduce (discrete rules, from order 4).

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> expand_linear(mean_field(mlp(rule="flow")), 0).entry("A", 0)
        ell*Sum(Delta0(beta, s)*K_x(mu, beta), (beta, 1, P))
        """
        return integrals.entry(self, name, n, now, past)

    def error_equation(self, n: int) -> Eq:
        """The equation of the error at order n, in time integrals.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> print(expand_linear(mean_field(mlp(rule="flow")), 0).error_equation(0).rhs)
        (-L - 1)*Sum(K_x(mu, beta)*v(beta, t), (beta, 1, P)) + y(mu)
        """
        return integrals.error_equation(self, n)

    def iterated_integral(self, v: AppliedUndef) -> Expr:
        """What a time integral ``v(...)`` in the entries stands for."""
        return integrals.iterated_integral(self, v)

    def in_time(
        self,
        eigenvalues: Sequence[Any] = (1,),
        targets: Sequence[Any] | None = None,
        multiplicities: Sequence[Any] | None = None,
        *,
        depth: int | None = None,
        order: int | None = None,
        constants: Mapping[Symbol, Any] | None = None,
    ) -> InTime:
        """The series for a kernel with these eigenvalues: explicit functions of time, in its eigenbasis.

        ``targets`` are the projections of the targets on the eigenvectors (symbols by default), and
        ``multiplicities`` how many eigenvectors each eigenvalue has; the default is whitened data, of any
        number of samples.  All are exact: numbers decide themselves whether rates resonate, symbols are
        taken to be generic.  Layer and depth stay symbols, to the order of this expansion; with an integer
        ``depth`` the closure's equations are solved as they stand, to any ``order``.  ``constants`` gives
        values to symbols of the rule, such as eta.

        Raises ValueError for numbers that are not exact or not possible,
        :class:`~derive.errors.NotApplicable` for a rule whose weights forget, and
        for steps that remove the lazy error of a mode at once.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> e = expand_linear(mean_field(mlp(rule="flow", loss="sum")), 2)
        >>> e.in_time(depth=1).Delta(0)
        y*exp(-2*t)
        >>> e.in_time(depth=1).Delta(2)
        -t*y**3*exp(-2*t) + 3*y**3*exp(-2*t)/4 - y**3*exp(-4*t) + y**3*exp(-6*t)/4
        """
        return in_time(
            self, eigenvalues, targets, multiplicities, depth=depth, order=order, constants=constants
        )

    def render(self, format: str = "text") -> str:
        """The series as ``text`` or ``latex``.  Raises ValueError for another format."""
        return render(self, format)


def expand_linear(theory: Theory, order: int = 2) -> LinearExpansion:
    """Expand a linear theory (of a family of layers) in gamma0 up to ``order``.

    Raises :class:`~derive.errors.NotApplicable` when the closure is no first-order
    recursion in the layer, ValueError for a negative order.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> expand_linear(mean_field(mlp()), 1).output[1]
    0
    """
    if order < 0:
        raise ValueError(f"order = {order}: must be 0 or more")
    found = linear_series(linear_closure(theory), order)
    return LinearExpansion(**vars(found))


__all__ = ["LinearExpansion", "expand_linear"]
