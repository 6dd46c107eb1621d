"""Parts of the test loss of random data: bias, limited width, limited data, label noise (linear2025 eq. 13).

The derived decomposition of ``C_v`` is a sum of quadratic forms ``H M H^T`` of transfer functions, which are
inverses of causal operators, so that all parts are a few matrix products after the march. The input are the
arrays of a march, the output one array of times for each cause that occurs; results on isotropic data contain
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Expr, Mul, Pow, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.linear.operators import Kernel
from derive.linear.propagators import START
from derive.reduce.data import BIAS, DATA, NOISE, WIDTH, LossDecomposition
from numerics.lowering.expressions import KnownArrays
from numerics.lowering.indices import Axis, node_of
from numerics.solver.linear.march import March

Array = NDArray[np.float64]

NAMES = {BIAS: "test_loss_bias", WIDTH: "test_loss_width", DATA: "test_loss_data", NOISE: "test_loss_noise"}
"""Names of variables in results, by the cause of a part of the loss."""


@dataclass(eq=False)
class LossParts:
    """Evaluator of the parts of the test loss ``C_v(t, t)``, as quadratic forms of the arrays of a march.

    ``split`` is the derived decomposition of the loss, and ``result`` the march. ``data`` are the arrays of
    the problem, with the tables of the integrator of a flow, ``constants`` the values of the symbols, and
    ``n`` is the number of outputs. The other attributes cache matrices that were computed.
    """

    split: LossDecomposition
    result: March
    data: Mapping[str, Array]
    constants: Mapping[Symbol, float]
    n: int
    transfer_functions: dict[str, Array] = field(default_factory=dict)
    operators: dict[Expr, Array] = field(default_factory=dict)
    matrices: dict[Expr, Array] = field(default_factory=dict)

    @property
    def T(self) -> int:
        """Number of time steps of the march."""
        return self.result.steps

    # -- quadratic forms ---------------------------------------------------------------------------------

    def diagonal(self, form: Expr) -> Array:
        """Return the value of a quadratic form at each time, summed over outputs, shape ``(T,)``.

        The form is ``sum H(t, s_1) M(s_1, s_2) H(t, s_2)``.
        """
        left, middle, right = self.split_up(form)
        value: Array = np.einsum("ij,ij->i", left @ middle, right).reshape(self.T, self.n).sum(1)
        return value

    def split_up(self, form: Expr) -> tuple[Array, Array, Array]:
        """Return the matrices H, M and H' of a quadratic form ``H M H'^T``, each of shape ``(T n, T n)``.

        H and H' are the transfer functions from the times of the rows and of the columns of M to time t.
        """
        assert isinstance(form, Sum)
        inner = [lim[0] for lim in form.limits]
        times, outputs = inner[-2:], inner[:-2]
        transfers, others = {}, []
        for x in Mul.make_args(form.function):
            if isinstance(x, AppliedUndef) and str(x.func).startswith("H_"):
                transfers[times.index(x.args[-1])] = self.transfer_function(str(x.func))
            else:
                others.append(x)
        return transfers[0], self.matrix(Mul(*others), times, outputs), transfers[1]

    def matrix(self, e: Expr, times: list[Expr], outputs: list[Expr]) -> Array:
        """Return an expression in two ``times`` (and two ``outputs``) as a matrix, shape ``(T n, T n)``.

        ``times`` and ``outputs`` are the symbols of rows and columns. ``outputs`` is empty for an expression
        without indices of outputs, whose value is then repeated for all pairs of outputs.
        """
        known = KnownArrays(
            {str(k): v for k, v in self.constants.items()}, self.data, first=dict.fromkeys(times, 0)
        )
        given = {x: self.inner(x)[..., None] for x in e.atoms(Sum)}
        for x in e.xreplace(dict.fromkeys(given, S.One)).atoms(AppliedUndef):
            if str(x.func) not in self.data:
                name, layers = node = node_of(x)
                a = self.result.tensor((name, next(iter(layers), None))).transpose(1, 3, 0, 2)
                known.found[node] = (a if outputs else a[0, 0])[..., None]
        shape = (self.T, self.n, self.T, self.n)
        axes = {times[0]: 0, times[1]: 2} | dict(zip(outputs, (1, 3), strict=False))
        # values of kernels at s > t may be infinite, which does not matter: the method `kernel` sets them to
        # zero afterwards
        with np.errstate(divide="ignore", invalid="ignore"):
            value = known(e, {x: Axis(0, shape[k], k, 4) for x, k in axes.items()}, given)
        return np.broadcast_to(value, (*shape, 1)).reshape(self.T * self.n, -1)

    def inner(self, form: Expr) -> Array:
        """Return the values of a quadratic form ``H M H^T`` at all pairs of times, shape ``(T, n, T, n)``.

        It is used for a form that is the middle factor M of another form. n is the number of outputs.
        """
        left, middle, right = self.split_up(form)
        return (left @ middle @ right.T).reshape(self.T, self.n, self.T, self.n)

    # -- transfer functions ------------------------------------------------------------------------------

    def transfer_function(self, name: str) -> Array:
        """Return the transfer function ``H_y_x`` with this name as a matrix, shape ``(T n, T n)``.

        It is the response of the field y at t to a perturbation of the source x at s.
        """
        if name not in self.transfer_functions:
            x = next(x for x in self.split.transfers if name.endswith(f"_{x.into}"))
            field = name.removeprefix("H_").removesuffix(f"_{x.into}")
            self.operators |= {
                k.operator: self.kernel(k) for k in x.kernels if k.operator not in self.operators
            }
            self.transfer_functions[name] = self.operator_matrix(x.operators[field])
        return self.transfer_functions[name]

    def kernel(self, k: Kernel) -> Array:
        """Return the matrix of a kernel as an operator, shape ``(T n, T n)``.

        It is zero at later times, s > t, and for a strictly causal kernel also at s = t.
        """
        *indices, now, past = k.entry.args
        full = self.matrix(k.definition, [now, past], [x for x in indices if isinstance(x, Symbol)])
        steps = np.repeat(np.arange(self.T), self.n)
        before = steps[:, None] > steps if k.causal == "strict" else steps[:, None] >= steps
        value: Array = np.where(before, full, 0.0)
        return value

    def operator_matrix(self, e: Expr) -> Array:
        """Return an expression of operators (noncommutative symbols) as a matrix; results are stored."""
        if e not in self.matrices:
            self.matrices[e] = self.computed_matrix(e)
        return self.matrices[e]

    def computed_matrix(self, e: Expr) -> Array:
        """Compute an expression of operators as a matrix, shape ``(T n, T n)``.

        Raises NotImplementedError if it is not a sum, product or inverse of operators and numbers.
        """
        size = self.T * self.n
        if e in self.operators:
            return self.operators[e]
        if e == START:
            value = np.zeros((size, size))
            value.reshape(self.T, self.n, size)[:, :, : self.n] = np.eye(self.n)
            return value
        if e.is_number:
            return float(e) * np.eye(size)
        if isinstance(e, Add):
            return sum((self.operator_matrix(x) for x in e.args), np.zeros((size, size)))
        if isinstance(e, Pow) and e.exp == -1:
            return np.asarray(np.linalg.inv(self.operator_matrix(e.base)), dtype=float)
        if isinstance(e, Mul):
            numbers, letters = e.args_cnc()
            value = self.operator_matrix(letters[0])
            for x in letters[1:]:
                value = value @ self.operator_matrix(x)
            return float(Mul(*numbers)) * value
        raise NotImplementedError(
            f"the parts of the test loss cannot be computed: a transfer function contains {e}, which is not "
            "a sum, product or inverse of operators and numbers"
        )
