"""Error of a theory as a function of its output, and the orders of the error.

The error, minus the slope of the loss, is ``Delta_mu(t) = e(f_mu(t))``. With ``f = f_0 + gamma0 f_1 + ...``

    Delta_n = sum_k e^(k)(f_0) / k! [(gamma0 f_1 + gamma0^2 f_2 + ...)^k]_n ,

where ``[ ]_n`` is the coefficient of gamma0^n. For the square loss Delta_0 is ``y - f_0``, and Delta_n is
``-f_n`` for n > 0. All expansions in gamma0 use these orders of the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sympy import Add, Derivative, DiracDelta, Dummy, Expr, Heaviside, S, Sum, factorial
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import mu, t
from derive.errors import NotApplicable
from derive.theory import Theory
from derive.theory.data import Equation

ERROR, OUTPUT = "Delta", "f"


@dataclass(frozen=True)
class ErrorLaw:
    """Error as a function of the output: ``body`` is an expression in the symbol ``output``.

    Both are at one time and sample.

    >>> from derive import mean_field, mlp
    >>> law = ErrorLaw.of(mean_field(mlp(2, objective="logistic")))
    >>> law.body, law.affine
    (y(mu)/(exp(f(mu, t)*y(mu)) + 1), False)
    """

    body: Expr
    output: AppliedUndef

    @classmethod
    def of(cls, theory: Theory) -> ErrorLaw:
        """Return the error of a theory as a function of its single output.

        An output with one index of samples is taken at the sample mu. Raises
        :class:`~derive.errors.NotApplicable` if the theory has no single error and output, or if the error
        contains other scalars of the theory, a derivative, or a sum.
        """
        scalars = {e.name: e for e in theory.scalars}
        error, out = _error_and_output(scalars)
        output, body = scalars[out].lhs, scalars[error].rhs
        others = {x for x in body.atoms(AppliedUndef) if str(x.func) in scalars} - {output}
        if others or body.has(Derivative, Sum):
            raise NotApplicable(
                f"the error {body} must not contain other scalars of the theory than the output {output}, "
                "nor derivatives or sums"
            )
        samples = [x for x in output.args if x != t]
        standard = {samples[0]: mu} if len(samples) == 1 and samples[0].is_Symbol else {}
        return cls(body.xreplace(standard), output.xreplace(standard))

    @property
    def affine(self) -> bool:
        """Whether the error is an affine function of the output, as ``y - f`` of the square loss is."""
        x = Dummy("x", real=True)
        return not self.body.xreplace({self.output: x}).diff(x).has(x)

    def slope(self, k: int) -> Expr:
        """Return ``e^(k)(f)/k!``, a Taylor coefficient of the error e as a function of the output f.

        The result is an expression in the symbol of the output f; for k = 0 it is the error itself. Raises
        :class:`~derive.errors.NotApplicable` for k > 0 if the derivative of order k contains a step function
        or a delta function, or is not known.
        """
        x = Dummy("x", real=True)
        derivative = self.body.xreplace({self.output: x}).diff(x, k) / factorial(k) if k else self.body
        if k and derivative.has(DiracDelta, Heaviside, Derivative):
            raise NotApplicable(
                f"the derivative of order {k} of the error {self.body} with respect to the output jumps, "
                "contains a delta function or is not known, and this order of the series contains the "
                "derivative: take a lower order"
            )
        return derivative.xreplace({x: self.output})

    def order(self, outputs: Sequence[Expr]) -> Expr:
        """Return order n of the error, Delta_n, from the orders ``outputs = (f_0, ..., f_n)`` of the output.

        Orders are coefficients of powers of gamma0, without these powers; n is ``len(outputs) - 1``.

        >>> from derive import mean_field, mlp
        >>> from sympy import symbols
        >>> law = ErrorLaw.of(mean_field(mlp(2)))
        >>> f = symbols("f_0:3")
        >>> law.order(f[:1]), law.order(f)
        (-f_0 + y(mu), -f_2)
        """
        f0, *higher = outputs
        n = len(higher)
        power: list[Expr] = [S.One, *[S.Zero] * n]
        total: Expr = S.Zero
        for k in range(n + 1):
            if power[n] != 0:
                total += self.slope(k).xreplace({self.output: f0}) * power[n]
            power = [Add(*[power[i] * higher[m - i - 1] for i in range(m)]) for m in range(n + 1)]
        return total


def _error_and_output(scalars: Mapping[str, Equation]) -> tuple[str, str]:
    """Return the names of the error and of the output among the scalars of a theory.

    They are ``Delta`` and ``f`` if both exist. A program may use other names; then the error is the only
    scalar whose equation contains exactly one other scalar, the output. Raises NotApplicable if this does not
    hold.
    """
    if {ERROR, OUTPUT} <= {*scalars}:
        return ERROR, OUTPUT
    read = {
        n: {str(x.func) for x in e.rhs.atoms(AppliedUndef)} & {*scalars} - {n} for n, e in scalars.items()
    }
    pairs = [(n, others.pop()) for n, others in read.items() if len(others) == 1]
    if len(pairs) != 1:
        names = ", ".join(scalars) or "none"
        raise NotApplicable(
            "the error and the output of the theory are not found: exactly one of its scalars, the error, "
            f"must contain exactly one other scalar, the output; its scalars are {names}"
        )
    return pairs[0]
